"""The second part of the ellipsoid study: classes of a labelled data set as ellipsoids.

They are fitted, timed, and used to classify. Everything is in float64: errors are then those of the
models and not of rounding, and times compare with scikit-learn's in the same arithmetic. float32
chooses the same classes but for a sample in ten thousand; it would save two thirds of the scoring
time of low ranks, and little of that of full ellipsoids, many of whose distances are then measured
again in float64.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.data import LabelledData, load_set, stream
from mahalens.data.named import SETS
from mahalens.errors import InputError
from mahalens.geometry import ellipsoids
from mahalens.geometry.ellipsoids import Ellipsoids, LowRankEllipsoids
from mahalens.studies.ellipsoids import DATA_METRICS, EllipsoidConfig
from mahalens.studies.study import Job, Measures, remember

if TYPE_CHECKING:
    from mahalens.studies.run import Context

SHARED_FROM = 4
"""A basis for all classes is tried from this rank on: with fewer directions it tells too little."""
TRAINING_SHARE = 0.8
SAMPLES_PER_AXIS = 4
"""A cluster keeps the largest of the ranks for which it has this many samples per axis."""
CLUSTER_SEEDS = 5
"""How many starts of k-means are tried until no cluster is left with a single sample."""


def model_names(config: EllipsoidConfig, classes: int) -> list[str]:
    """Return all models of a run, in the order they are shown.

    ================  =========================================================================
    ``full``          one ellipsoid per class, with all of its covariance
    ``diagonal``      with a spread along every input
    ``spherical``     with one spread
    ``rank-R``        its R longest axes, and the mean variance of all other directions
    ``truncated-R``   its R longest axes alone: distances, but no density
    ``shared-R``      R directions for all classes, from R = 4 on and for two classes or more
    ``clusters-M``    M clusters per class by k-means, each with an ellipsoid of low rank
    ``qda``           scikit-learn's QuadraticDiscriminantAnalysis
    ``mixture-M``     scikit-learn's GaussianMixture of M full components per class
    ================  =========================================================================
    """
    names = ["full", "diagonal", "spherical"]
    names += [f"rank-{rank}" for rank in config.ranks]
    names += [f"truncated-{rank}" for rank in config.ranks]
    if classes > 1:  # the basis of a single class is its own: rank-R by another name
        names += [f"shared-{rank}" for rank in config.ranks if rank >= SHARED_FROM]
    names += [f"clusters-{count}" for count in config.clusters]
    if config.rivals:
        if classes > 1:  # which QDA insists on
            names.append("qda")
        names += [f"mixture-{count}" for count in config.clusters]
    return names


@remember(1)
def _loaded(name: str) -> LabelledData:
    return load_set(name if name in SETS else Path(name))


def load(config: EllipsoidConfig) -> LabelledData:
    """Return the data set of a run."""
    return _loaded(str(config.data))


def check_data(config: EllipsoidConfig) -> dict[str, Any]:
    """Refuse data that are not there or do not fit the options; return facts about them."""
    data = load(config)
    if (above := max(config.ranks)) > data.inputs:
        raise InputError(
            f"--ranks {above}: is more than the {data.inputs} inputs of {data.name}; give ranks of "
            "at most that"
        )
    RealTrial(data, config, 0)
    return {
        "data": data.source,
        "classes": data.classes,
        "inputs": data.inputs,
        "training_samples": config.train_size or round(TRAINING_SHARE * len(data.y)),
        "test_samples": len(data.test_y),
    }


def measure_fits(config: EllipsoidConfig, job: Job, context: Context) -> dict[str, Measures]:
    """Fit and measure all models of one trial."""
    data = load(config)
    trial = RealTrial(data, config, job.first)
    names = model_names(config, data.classes)
    measures = {}
    for place, name in enumerate(names):
        context.look()
        context.report(place / len(names), name)
        numbers = trial.measure(name)
        seconds = (numbers["fit_seconds"], numbers["score_seconds"])
        measures[name] = Measures(
            metrics={n: torch.tensor([numbers[n]], dtype=torch.float64) for n in DATA_METRICS},
            seconds=math.fsum(s for s in seconds if math.isfinite(s)),
            statuses=["done"],
        )
    return measures


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
        """Return the class [N] of the nearest ellipsoid, from squared distances [N, C * M]."""
        return self.classes[squared.argmin(dim=1) // self._per_class]

    def by_density(self, squared: Tensor) -> Tensor:
        """Return the class [N] with the largest share times density.

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

    def __init__(self, data: LabelledData, config: EllipsoidConfig, trial: int) -> None:
        size = config.train_size or max(1, round(TRAINING_SHARE * len(data.y)))
        if size > len(data.y):
            raise InputError(
                f"train_size is {size} and {data.name} has {len(data.y)} training samples; give "
                "at most as many"
            )
        drawn = data.subset(size, stream(config.seed, "real", trial)).scaled()
        self.config, self.trial = config, trial
        self.x, self.y = drawn.x.double(), drawn.y
        self.test_x, self.test_y = drawn.test_x.double(), drawn.test_y
        self.classes, sizes = self.y.unique(return_counts=True)
        self._shares = sizes.double() / len(self.y)
        self._axes: dict[str, Fitted] = {}
        self._require_sizes(data.name, sizes)
        _warm_up()

    def _require_sizes(self, name: str, sizes: Tensor) -> None:
        most = max(self.config.clusters, default=1)
        fewest = int(sizes.min())
        if fewest < 2 * most:
            what = f"2 for each of {most} clusters" if most > 1 else "to see any spread"
            raise InputError(
                f"class {int(self.classes[sizes.argmin()])} of {name} has {fewest} of the "
                f"{len(self.y)} training samples of a trial; give at least {2 * most}, {what}: "
                "give a larger train_size, or ask for fewer clusters"
            )

    def measure(self, model: str) -> dict[str, float]:
        """Fit a model, classify the test set, and return its :data:`DATA_METRICS`.

        ``error_distance`` and ``error_density`` are shares of the test set: wrong by the nearest
        ellipsoid, and by the largest share times density. ``distance_error`` is the median, over
        all test samples and classes, of |d - d_full| / d_full. ``fit_seconds`` is the wall time of
        fitting this model alone, from the samples on: nothing that another model has computed is
        used in it (truncated-R is rank-R without its remainder, and has its time).
        ``score_seconds`` is that of classifying the whole test set, by distance and by density.
        ``parameters`` counts the numbers of the model, shares of classes and clusters aside. What
        makes no sense for a model is NaN.
        """
        numbers = dict.fromkeys(DATA_METRICS, math.nan)
        kind = model.split("-")[0]
        if kind in ("qda", "mixture"):
            return numbers | measure_rival(
                model,
                (self.x.numpy(), self.y.numpy()),
                (self.test_x.numpy(), self.test_y.numpy()),
                shrinkage=self.config.shrinkage,
                seed=self._seed(model),
            )
        if model == "full":
            return numbers | self._full[0]
        measured, distances = self._score(self.fit(model))
        if kind != "clusters":
            exact = self._full[1]
            off = (distances - exact).abs() / exact.clamp(min=1e-300)  # a sample may be a mean
            measured["distance_error"] = float(off.median())
        return numbers | measured

    def fit(self, model: str) -> Fitted:
        """Fit the ellipsoids of a model."""
        kind, _, number = model.partition("-")
        if kind == "clusters":
            return self._clusters(int(number))
        if kind == "shared":
            return self._one_per_class("shared-basis", int(number))
        if kind in ("full", "diagonal", "spherical"):
            return self._one_per_class(kind)
        if number not in self._axes:  # found once for rank-R and truncated-R
            self._axes[number] = self._one_per_class("low-rank+remainder", int(number))
        fitted = self._axes[number]
        if kind == "rank":
            return fitted
        tensors = fitted.ellipsoids.tensors()
        del tensors["remainder"]
        return replace(fitted, ellipsoids=LowRankEllipsoids.from_tensors(tensors))

    @functools.cached_property
    def _full(self) -> tuple[dict[str, float], Tensor]:
        """Return the figures of ``full`` and its distances [N, C], to hold others against."""
        measured, distances = self._score(self.fit("full"))
        return measured | {"distance_error": 0.0}, distances

    def _score(self, fitted: Fitted) -> tuple[dict[str, float], Tensor]:
        """Classify the test set; return the distances [N, K] too."""
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

    def _one_per_class(self, kind: Any, rank: int | None = None) -> Fitted:
        shrinkage = self.config.shrinkage
        fitted, seconds = _timed(
            lambda: ellipsoids.from_data(self.x, self.y, kind=kind, rank=rank, shrinkage=shrinkage)
        )
        return Fitted(fitted, self.classes, self._shares, seconds)

    def _clusters(self, count: int) -> Fitted:
        """Return ``count`` clusters of each class by k-means, each with an ellipsoid of low rank.

        A cluster of n samples keeps the largest of the ranks that is at most n / 4, and the
        smallest of them if there is none: an axis takes samples to be found.
        """

        def fit() -> tuple[Ellipsoids, list[int]]:
            parts, sizes = [], []
            for label in self.classes.tolist():
                members = self.x[self.y == label]
                places = self._split(members, label, count)
                for cluster in range(count):
                    some = members[places == cluster]
                    sizes.append(len(some))
                    parts.append(
                        ellipsoids.from_data(
                            some,
                            torch.zeros(len(some), dtype=torch.int64),
                            kind="low-rank+remainder",
                            rank=self.cluster_rank(len(some)),
                            shrinkage=self.config.shrinkage,
                        )
                    )
            return ellipsoids.concatenate(parts), sizes

        (joined, sizes), seconds = _timed(fit)
        shares = torch.tensor(sizes, dtype=torch.float64) / len(self.y)
        return Fitted(joined, self.classes, shares, seconds)

    def cluster_rank(self, size: int) -> int:
        """Return how many axes a cluster of ``size`` samples keeps."""
        ranks = self.config.ranks
        return max((r for r in ranks if SAMPLES_PER_AXIS * r <= size), default=min(ranks))

    def _split(self, members: Tensor, label: int, count: int) -> Tensor:
        """Return the cluster [n] of each of the samples [n, D] of a class, by k-means."""
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
        generator = stream(self.config.seed, "real", self.trial, *purpose)
        return int(torch.randint(2**31 - 1, (), generator=generator))


def _timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    start = perf_counter()
    result = fit()
    return result, perf_counter() - start


@functools.cache
def _warm_up() -> None:
    """Load the libraries behind a fit and start their threads, so that no model pays for them."""
    x = torch.randn(200, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(200) % 2
    for kind, rank in (("full", None), ("low-rank+remainder", 2), ("shared-basis", 2)):
        ellipsoids.from_data(x, labels, kind=kind, rank=rank).distances(x)  # type: ignore[arg-type]
    ellipsoids.from_clusters(x, 2, kind="spherical")
    import sklearn.discriminant_analysis
    import sklearn.mixture  # noqa: F401


# --- scikit-learn's models of the same classes ------------------------------------------------

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Samples = tuple[Floats, Labels]

MIXTURE_ROUNDS = 100
"""Rounds of expectation and maximisation at most; a mixture that still moves is taken as it is."""
LEAST_ADDED = 1e-6
"""scikit-learn's own default of what is added to the variances of a mixture."""


def mean_variance(x: Floats, y: Labels) -> float:
    """Return the variance of an input within a class, on average over inputs and classes."""
    return float(np.mean([x[y == label].var(axis=0, ddof=1).mean() for label in np.unique(y)]))


def measure_rival(
    model: str, train: Samples, test: Samples, *, shrinkage: float, seed: int
) -> dict[str, float]:
    """Measure ``qda`` or ``mixture-M``; samples are x [N, D] and their classes y [N].

    scikit-learn shrinks towards the identity, whatever the unit of the data; ellipsoids shrink
    towards their mean variance. So the samples are first divided by the root of the mean variance
    within a class (no part of the time): then the mean variance of the classes is 1 on average,
    and the identity is what ellipsoids shrink to, on average. Decisions do not depend on the unit
    otherwise. ``reg_param`` of QDA is the shrinkage a; a mixture has no such weight and adds
    a / (1 - a) to all variances, which is (1 - a) S + a I up to the factor 1 - a.
    """
    (x, y), (test_x, test_y) = train, test
    unit = math.sqrt(mean_variance(x, y)) or 1.0
    x, test_x = x / unit, test_x / unit
    count = model.removeprefix("mixture-")

    def fit() -> Any:
        if model == "qda":
            return _discriminant(x, y, shrinkage)
        return _Mixtures(x, y, int(count), shrinkage, seed)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mixtures that have not converged
        fitted, fit_seconds = _timed(fit)
        if fitted is None:
            return {}
        predicted, score_seconds = _timed(lambda: fitted.predict(test_x))
    return {
        "error_density": float(np.mean(predicted != test_y)),
        "fit_seconds": fit_seconds,
        "score_seconds": score_seconds,
        "parameters": float(_discriminant_size(fitted) if model == "qda" else fitted.size),
    }


def _discriminant(x: Floats, y: Labels, shrinkage: float) -> Any:
    """Return QDA by its usual solver, or None where scikit-learn has no way to fit it.

    That solver leaves out the directions a class has no samples in, and refuses (in older
    releases: warns and goes on) where a class has no more samples than inputs. There
    scikit-learn's other solver is taken, as its message says, whose shrinkage is that of
    ellipsoids; older releases have none.
    """
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

    usual = int(np.unique(y, return_counts=True)[1].min()) > x.shape[1]
    options: dict[str, object] = {"reg_param": shrinkage}
    if not usual:
        if "solver" not in inspect.signature(QuadraticDiscriminantAnalysis).parameters:
            return None
        options = {"solver": "eigen", "shrinkage": shrinkage}
    try:
        return QuadraticDiscriminantAnalysis(tol=0.0, **options).fit(x, y)
    except np.linalg.LinAlgError as error:
        raise InputError(f"scikit-learn's QDA: {error}; give more shrinkage") from None


def _discriminant_size(fitted: Any) -> int:
    """Return the size of means, rotations and scalings: what QDA's predictions are made of."""
    parts = (fitted.means_, *fitted.rotations_, *fitted.scalings_)
    return sum(int(part.size) for part in parts)


class _Mixtures:
    """One mixture of ``count`` full components for each class; the likeliest class is chosen."""

    def __init__(self, x: Floats, y: Labels, count: int, shrinkage: float, seed: int) -> None:
        from sklearn.mixture import GaussianMixture

        make: Callable[..., Any] = GaussianMixture
        self.labels, sizes = np.unique(y, return_counts=True)
        self.log_shares = np.log(sizes / len(y))
        self.mixtures = [
            make(
                count,
                reg_covar=max(shrinkage / (1 - shrinkage), LEAST_ADDED),
                max_iter=MIXTURE_ROUNDS,
                random_state=seed,
            ).fit(x[y == label])
            for label in self.labels
        ]
        dim = x.shape[1]
        self.size = len(self.labels) * count * (dim + dim * (dim + 1) // 2)
        """Means and triangular factors."""

    def predict(self, x: Floats) -> Labels:
        """Return the class [N] with the largest share times density."""
        densities = np.stack([mixture.score_samples(x) for mixture in self.mixtures], axis=1)
        predicted: Labels = self.labels[(densities + self.log_shares).argmax(axis=1)]
        return predicted
