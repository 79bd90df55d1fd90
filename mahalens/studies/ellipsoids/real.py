"""Classes of a labelled data set as ellipsoids: fitted, timed, and used to classify.

Everything is in float64: errors are then those of the models and not of rounding, and times compare
with scikit-learn's in the same arithmetic. float32 chooses the same classes but for a sample in
ten thousand; it would save two thirds of the scoring time of low ranks, and little of that of full
ellipsoids, many of whose distances are then measured again in float64.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mahalens.data import LabelledData, stream
from mahalens.errors import InputError
from mahalens.geometry import ellipsoids
from mahalens.geometry.ellipsoids import Ellipsoids, LowRankEllipsoids
from mahalens.studies.ellipsoids.real_options import (
    METRICS,
    TRAINING_SHARE,
    RealOptions,
    model_names,
)
from mahalens.studies.ellipsoids.rivals import measure_rival, require_sklearn

__all__ = ["METRICS", "RealOptions", "RealTrial", "model_names"]

SAMPLES_PER_AXIS = 4
"""A cluster keeps the largest of the ranks for which it has this many samples per axis."""
CLUSTER_SEEDS = 5
"""How many starts of k-means are tried until no cluster is left with a single sample."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Ellipsoids, M for each of C classes in order, with the share [C * M] of each in the samples.

    ``seconds`` is how long it took to fit them.
    """

    ellipsoids: Ellipsoids
    classes: Tensor
    """The label [C] of each class."""
    shares: Tensor
    seconds: float

    def by_distance(self, squared: Tensor) -> Tensor:
        """Give the class [N] of the nearest ellipsoid, from squared distances [N, C * M]."""
        return self.classes[squared.argmin(dim=1) // self._per_class]

    def by_density(self, squared: Tensor) -> Tensor:
        """Give the class [N] with the largest share times density.

        The density of a class is that of the mixture of its ellipsoids. (2 pi)^(-D/2), the same
        for all, is left out.
        """
        each = -0.5 * (squared + self.ellipsoids.log_determinants) + self.shares.log()
        of_class = each.unflatten(1, (-1, self._per_class)).logsumexp(dim=2)
        return self.classes[of_class.argmax(dim=1)]

    @property
    def parameters(self) -> int:
        """Numbers that make up the ellipsoids, without zeros that only fill up a tensor."""
        tensors = self.ellipsoids.tensors()
        count = sum(tensor.numel() for tensor in tensors.values())
        if "whitening" in tensors:  # triangular
            size = tensors["whitening"].shape[-1]
            count -= len(self.ellipsoids) * size * (size - 1) // 2
        if isinstance(self.ellipsoids, LowRankEllipsoids):  # some may have fewer axes than others
            filled = tensors["spreads"].numel() - int(self.ellipsoids.ranks.sum())
            count -= filled * (self.ellipsoids.dim + 1)
        return count

    @property
    def _per_class(self) -> int:
        return len(self.ellipsoids) // len(self.classes)


class RealTrial:
    """One trial: a training set drawn from that of ``data``, and what models make of it.

    Pixels are scaled to 0 to 1, and classes keep their shares. All models of a trial see the same
    samples, and the whole test set of ``data``.
    """

    def __init__(self, data: LabelledData, options: RealOptions, trial: int) -> None:
        if max(options.ranks) > data.inputs:
            raise InputError(
                f"ranks go up to {max(options.ranks)} and {data.name} has {data.inputs} inputs; "
                f"wanted ranks of at most {data.inputs}"
            )
        size = options.train_size
        if size is None:
            size = max(1, round(TRAINING_SHARE * len(data.y)))
        if size > len(data.y):
            raise InputError(
                f"train_size is {size} and {data.name} has {len(data.y)} training samples; wanted "
                "at most as many"
            )
        drawn = data.subset(size, stream(options.seed, "real", trial)).scaled()
        self.options, self.trial = options, trial
        self.x, self.y = drawn.x.double(), drawn.y
        self.test_x, self.test_y = drawn.test_x.double(), drawn.test_y
        self.classes, sizes = self.y.unique(return_counts=True)
        self._shares = sizes.double() / len(self.y)
        self._axes: dict[int, Fitted] = {}
        self._require_sizes(data.name, sizes)
        if options.rivals:
            require_sklearn()
        _warm_up()

    def _require_sizes(self, name: str, sizes: Tensor) -> None:
        most = max(self.options.clusters, default=1)
        fewest = int(sizes.min())
        if fewest < 2 * most:
            what = f"2 for each of {most} clusters" if most > 1 else "to see any spread"
            raise InputError(
                f"class {int(self.classes[sizes.argmin()])} of {name} has {fewest} of the "
                f"{len(self.y)} training samples of a trial; wanted at least {2 * most}, {what}: "
                "give a larger train_size, or ask for fewer clusters"
            )

    def measure(self, model: str) -> dict[str, float]:
        """Fit a model, classify the test set, and give its :data:`METRICS`.

        ``error_distance`` and ``error_density`` are shares of the test set: wrong by the nearest
        ellipsoid, and by the largest share times density. ``distance_error`` is the median, over
        all test samples and classes, of |d - d_full| / d_full. ``fit_seconds`` is the wall time of
        fitting this model alone, from the samples on: nothing that another model has computed is
        used in it (truncated-R is rank-R without its remainder, and has its time).
        ``score_seconds`` is that of classifying the whole test set, by distance and by density.
        ``parameters`` counts the numbers of the model, shares of classes and clusters aside. What
        makes no sense for a model is NaN.
        """
        if model not in model_names(self.options, len(self.classes)):
            known = ", ".join(model_names(self.options, len(self.classes)))
            raise InputError(f"model is {model!r}, wanted one of {known}")
        found = dict.fromkeys(METRICS, math.nan)
        kind = model.split("-")[0]
        if kind in ("qda", "mixture"):
            return found | measure_rival(
                model,
                (self.x.numpy(), self.y.numpy()),
                (self.test_x.numpy(), self.test_y.numpy()),
                shrinkage=self.options.shrinkage,
                seed=self._seed(model),
            )
        if model == "full":
            return found | self._full[0]
        measured, distances = self._score(self.fit(model))
        if kind != "clusters":
            exact = self._full[1]
            off = (distances - exact).abs() / exact.clamp(min=1e-300)  # a sample may be a mean
            measured["distance_error"] = float(off.median())
        return found | measured

    def fit(self, model: str) -> Fitted:
        """Fit the ellipsoids of a model."""
        kind, _, number = model.partition("-")
        if kind == "clusters":
            return self._clusters(int(number))
        if kind == "shared":
            return self._one_per_class(kind="shared-basis", rank=int(number))
        if kind in ("rank", "truncated"):
            return self._ranked(int(number), truncated=kind == "truncated")
        return self._one_per_class(kind=kind)

    @functools.cached_property
    def _full(self) -> tuple[dict[str, float], Tensor]:
        """The figures of ``full`` and its distances [N, C], which all others are held against."""
        measured, distances = self._score(self.fit("full"))
        return measured | {"distance_error": 0.0}, distances

    def _score(self, fitted: Fitted) -> tuple[dict[str, float], Tensor]:
        """Classify the test set; the distances [N, K] are given along."""
        start = perf_counter()
        squared = fitted.ellipsoids.distances(self.test_x, squared=True)
        by_distance = fitted.by_distance(squared)
        has_density = fitted.ellipsoids.kind != "low-rank"
        by_density = fitted.by_density(squared) if has_density else None
        seconds = perf_counter() - start
        return {
            "error_distance": self._error(by_distance),
            "error_density": math.nan if by_density is None else self._error(by_density),
            "fit_seconds": fitted.seconds,
            "score_seconds": seconds,
            "parameters": float(fitted.parameters),
        }, squared.sqrt()

    def _error(self, predicted: Tensor) -> float:
        return float((predicted != self.test_y).double().mean())

    def _one_per_class(self, **choice: Any) -> Fitted:
        shrinkage = self.options.shrinkage
        found, seconds = _timed(
            lambda: ellipsoids.from_data(self.x, self.y, shrinkage=shrinkage, **choice)
        )
        return Fitted(found, self.classes, self._shares, seconds)

    def _ranked(self, rank: int, *, truncated: bool) -> Fitted:
        """R axes of each class, found once for ``rank-R`` and ``truncated-R``."""
        if rank not in self._axes:
            self._axes[rank] = self._one_per_class(kind="low-rank+remainder", rank=rank)
        fitted = self._axes[rank]
        if not truncated:
            return fitted
        tensors = fitted.ellipsoids.tensors()
        del tensors["remainder"]
        bare = LowRankEllipsoids.from_tensors(tensors)
        return Fitted(bare, self.classes, self._shares, fitted.seconds)

    def _clusters(self, count: int) -> Fitted:
        """``count`` clusters of each class by k-means, each with an ellipsoid of low rank.

        A cluster of n samples keeps the largest of the ranks that is at most n / 4, and the
        smallest of them if there is none: an axis takes samples to be found.
        """

        def fit() -> tuple[Ellipsoids, list[int]]:
            parts, sizes = [], []
            for label in self.classes.tolist():
                members = self.x[self.y == label]
                found = self._split(members, label, count)
                for cluster in range(count):
                    some = members[found == cluster]
                    sizes.append(len(some))
                    parts.append(
                        ellipsoids.from_data(
                            some,
                            torch.zeros(len(some), dtype=torch.int64),
                            kind="low-rank+remainder",
                            rank=self.cluster_rank(len(some)),
                            shrinkage=self.options.shrinkage,
                        )
                    )
            return ellipsoids.concatenate(parts), sizes

        (joined, sizes), seconds = _timed(fit)
        shares = torch.tensor(sizes, dtype=torch.float64) / len(self.y)
        return Fitted(joined, self.classes, shares, seconds)

    def cluster_rank(self, size: int) -> int:
        """How many axes a cluster of ``size`` samples keeps."""
        ranks = self.options.ranks
        return max((r for r in ranks if SAMPLES_PER_AXIS * r <= size), default=min(ranks))

    def _split(self, members: Tensor, label: int, count: int) -> Tensor:
        """The cluster [n] of each of the samples [n, D] of a class, by k-means."""
        for attempt in range(CLUSTER_SEEDS):
            seed = self._seed("clusters", count, label, attempt)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of an empty cluster, which is refused below
                    return ellipsoids.from_clusters(
                        members, count, seed=seed, kind="spherical", ridge=1.0
                    )[1]
            except InputError as error:
                last = error
        raise InputError(f"class {label}: {last} ({CLUSTER_SEEDS} seeds tried)")

    def _seed(self, *purpose: str | int) -> int:
        generator = stream(self.options.seed, "real", self.trial, *purpose)
        return int(torch.randint(2**31 - 1, (), generator=generator))


def _timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    start = perf_counter()
    found = fit()
    return found, perf_counter() - start


@functools.cache
def _warm_up() -> None:
    """Load the libraries behind a fit and start their threads, so that no model pays for them."""
    x = torch.randn(200, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(200) % 2
    for kind, rank in (("full", None), ("low-rank+remainder", 2), ("shared-basis", 2)):
        ellipsoids.from_data(x, labels, kind=kind, rank=rank).distances(x)  # type: ignore[arg-type]
    ellipsoids.from_clusters(x, 2, kind="spherical")
