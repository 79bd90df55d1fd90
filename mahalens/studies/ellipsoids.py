"""The ellipsoid study: find points from their distances to many ellipsoids.

*Experiment 12: PCA Mahalanobis Approximation* recovers a point from its distances to 1,024
ellipsoids in 784 dimensions: full Mahalanobis distances, Euclidean ones, and distances along
principal axes. With ``--data``, ellipsoids are fitted to the classes of real data instead
(:mod:`.ellipsoids_data`), to put the experiment's conclusions to the test there.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
import numpy as np

from mahalens import geometry
from mahalens.errors import InputError, RunFolderError
from mahalens.studies import torch
from mahalens.studies.claims import Average, Both, Claim, Lower, Ratio, TrialShare, claims_from
from mahalens.studies.plots import Against, AllMetrics, Curves, Levels
from mahalens.studies.study import (
    Chosen,
    Config,
    Job,
    Measures,
    Metric,
    Model,
    Option,
    PublishedValue,
    Results,
    Study,
    jobs_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from mahalens.geometry import Ellipsoids, FullEllipsoids
    from mahalens.geometry.ellipsoids.products import Norm
    from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch, SearchProblem
    from mahalens.studies.run import Context

# --- Models -----------------------------------------------------------------------------------

METHODS = {
    "elliptical": "full Mahalanobis distance, a triangular factor per ellipsoid",
    "spherical": "Euclidean distance to the means",
    "pca-l2": "root of the sum of squares along the R longest axes",
    "pca-l1": "sum of absolute values along the R longest axes",
    "remainder": "pca-l2 with one spread for all other directions",
}
WITH_RANK = ("pca-l2", "pca-l1", "remainder")
_FIXED = {
    "elliptical": Model("Elliptical", METHODS["elliptical"], "#333333"),
    "full": Model("Full", "one ellipsoid per class, with all of its covariance", "#333333"),
    "diagonal": Model("Diagonal", "with a spread along every input", "#E69F00"),
    "spherical": Model("Spherical", METHODS["spherical"], "#CC79A7"),
    "qda": Model("QDA (scikit-learn)", "QuadraticDiscriminantAnalysis", "#8a6d00"),
}
_SIZED = {
    "pca-l2": ("PCA-L2, {}", "#0072B2"),
    "pca-l1": ("PCA-L1, {}", "#D55E00"),
    "remainder": ("PCA-L2 + rest, {}", "#009E73"),
    "rank": ("Rank {} + rest", "#009E73"),
    "truncated": ("Rank {}, truncated", "#0072B2"),
    "shared": ("Shared basis, {}", "#56B4E9"),
    "clusters": ("{} clusters a class", "#D55E00"),
    "mixture": ("Mixture of {} (scikit-learn)", "#8a6d00"),
}
"""Models that come in several sizes, such as ``pca-l2-64``: the number follows the name."""


def split_model(model: str) -> tuple[str, int | None]:
    """Return the method and the rank of a model.

    >>> split_model("pca-l2-64"), split_model("elliptical")
    (('pca-l2', 64), ('elliptical', None))
    """
    method, _, rank = model.rpartition("-")
    return (method, int(rank)) if rank.isdigit() else (model, None)


def model_of(name: str) -> Model | None:
    """Return how a model of some size is shown."""
    method, rank = split_model(name)
    if rank is None or method not in _SIZED:
        return None
    label, colour = _SIZED[method]
    return Model(label.format(rank), METHODS.get(method, ""), colour)


# --- Options ----------------------------------------------------------------------------------

SOLVERS = {
    "adam": "the published protocol: hand-written Adam, lr 1/K, betas (0.9, 0.999)",
    "newton": "Levenberg and Marquardt's method until convergence, from the same starting points",
}
RANKS, DATA_RANKS = (4, 8, 64), (1, 2, 4, 8, 16, 32)
NEWTON_STEPS = 200


def _ranks(chosen: Chosen) -> tuple[int, ...]:
    if chosen.get("data"):
        return DATA_RANKS
    return tuple(r for r in RANKS if r <= chosen["dim"]) or (chosen["dim"],)


def _steps(full: int) -> Any:
    return lambda chosen: NEWTON_STEPS if chosen["solver"] == "newton" else full


class EllipsoidConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    With ``data`` the run is one of ellipsoids fitted to real data: then ``ranks``, ``trials``,
    ``seed``, ``clusters``, ``train_size`` and ``shrinkage`` count, and the others do not.
    """

    data: Annotated[
        str | None,
        Option("Fit ellipsoids to the classes of a data set, file or folder.", metavar="NAME|FILE"),
    ] = None
    dim: Annotated[int, Option("Dimensions.", 96, published=784, least=1)]
    count: Annotated[int, Option("Ellipsoids.", 128, published=1_024, least=1)]
    ranks: Annotated[
        tuple[int, ...],
        Option(
            "Components kept.",
            _ranks,
            published=RANKS,
            shown="4,8,64; with --data: 1,2,4,8,16,32",
            subset=True,
            least=1,
        ),
    ]
    methods: Annotated[
        tuple[str, ...],
        Option(
            "Distances to search with.",
            tuple(METHODS),
            published=tuple(METHODS)[:-1],
            subset=True,
            choices=METHODS,
            metavar="a,b,...",
        ),
    ]
    solver: Annotated[
        Literal["adam", "newton"],
        Option("Adam as published, or second order.", "adam", published="adam", choices=SOLVERS),
    ]
    steps: Annotated[
        int,
        Option(
            "Steps of Adam, or most steps of Newton.",
            _steps(3_000),
            published=_steps(10_000),
            shown="3000; newton: 200",
            least=1,
        ),
    ]
    trials: Annotated[int, Option("Points to find, or fits.", 5, least=1)]
    noise: Annotated[
        float, Option("Noise in a distance.", 0.0, published=0.0, least=0, most=1e300)
    ] = 0.0
    clusters: Annotated[
        tuple[int, ...],
        Option(
            "With --data: clusters per class.",
            lambda chosen: (2, 4) if chosen.get("data") else (),
            shown="2,4",
            least=1,
        ),
    ] = ()
    train_size: Annotated[
        int | None, Option("With --data: samples to fit to.", shown="80 %", least=2)
    ] = None
    shrinkage: Annotated[
        float, Option("With --data: of every covariance, from 0 to below 1.", 0.1, least=0)
    ] = 0.1
    rivals: Annotated[
        bool, Option("", lambda chosen: chosen.get("data") is not None, flag=False)
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ranks:
            raise InputError("--ranks is empty: give some whole numbers, such as 4,8,64")
        if self.data is None and (above := [r for r in self.ranks if r > self.dim]):
            raise InputError(
                f"--ranks {above[0]}: is more than --dim {self.dim}; give ranks of at most that"
            )
        if not 0 <= self.shrinkage < 1:
            raise InputError(f"--shrinkage {self.shrinkage}: give a number from 0 to below 1")

    @classmethod
    def with_defaults(cls, *, published: bool = False, **values: Any) -> Self:
        """Fill in the options that are not given: a small run, or the size of the experiment."""
        if published and values.get("data") is not None:
            raise InputError(
                "--published and --data: the experiment has no data; leave one of them out"
            )
        if values.get("data") is None:
            for name in ("clusters", "train-size", "shrinkage"):
                if values.get(name.replace("-", "_")) is not None:
                    raise InputError(f"--{name} without --data: it is for fits to data; add --data")
        return super().with_defaults(published=published, **values)

    @property
    def models(self) -> tuple[str, ...]:
        """Methods with their ranks, in the order of the experiment's table; with data none."""
        if self.data is not None:
            return ()
        names: list[str] = []
        for method in METHODS:
            if method in self.methods:
                ranked = method in WITH_RANK
                names += [f"{method}-{rank}" for rank in self.ranks] if ranked else [method]
        return tuple(names)

    @property
    def needs_full(self) -> bool:
        """Whether whole covariances are factored."""
        return "elliptical" in self.methods

    @property
    def largest_rank(self) -> int:
        """How many axes of each ellipsoid are needed; 0 for none."""
        return max(self.ranks) if any(m in WITH_RANK for m in self.methods) else 0

    def _deviations(self) -> dict[str, str]:
        if self.data is not None:
            data = f"data: ellipsoids fitted to {self.data}, which the experiment does not do"
            return {"data": data}
        sentences = super()._deviations()
        if self.solver == "newton":  # whose steps were not published
            sentences.pop("steps", None)
        return sentences


# --- Metrics ----------------------------------------------------------------------------------

SEARCH_METRICS: dict[str, Metric] = {
    "final_error": Metric(
        "Final error",
        "‖x_true − x_found‖ at the end of the search; a random point is about √(2D) away.",
        "input units",
        log=True,
    ),
    "residual": Metric(
        "Misfit of the distances",
        "Root mean square of d_k(x_found) − target_k over the ellipsoids.",
        "spreads",
        log=True,
    ),
    "seconds": Metric(
        "Time of one search",
        "For this trial's point alone, without drawing and factoring. Adam: seconds per step, "
        "timed over some steps, times the steps. Newton: the whole search.",
        "seconds",
        log=True,
    ),
    "steps": Metric("Steps", "Steps of the search.", "steps", better=None),
    "distance_error": Metric(
        "Distance against the full one",
        "Median of |d / d_full − 1| over the ellipsoids at the true point (with data: over test "
        "samples and classes): how well this distance stands in for the Mahalanobis distance.",
        "relative",
        log=True,
    ),
    "cross_error": Metric(
        "Error from full distances",
        "‖x_true − x_found‖ when the point is sought with this distance but the targets are full "
        "Mahalanobis distances (Newton): what the approximation costs.",
        "input units",
        log=True,
    ),
}

DATA_METRICS: dict[str, Metric] = {
    "error_density": Metric(
        "Test error by density",
        "Share of the test samples whose class has not the largest log-density plus log prior.",
        "share",
    ),
    "error_distance": Metric(
        "Test error by distance",
        "Share of the test samples whose nearest ellipsoid belongs to another class.",
        "share",
    ),
    "distance_error": SEARCH_METRICS["distance_error"],
    "fit_seconds": Metric("Time to fit", "Fitting this model alone.", "seconds", log=True),
    "score_seconds": Metric("Time to score", "Scoring the test set.", "seconds", log=True),
    "parameters": Metric("Numbers stored", "Size of the fitted model.", "numbers", log=True),
}

_ERRORS = {name: DATA_METRICS[name] for name in ("error_density", "error_distance")}
METRICS: dict[str, Metric] = {**_ERRORS, **SEARCH_METRICS, **DATA_METRICS}

# --- Claims -----------------------------------------------------------------------------------

EXPERIMENT = "experiment-12"
ADAM, NEWTON = {"solver": "adam"}, {"solver": "newton"}


def _lower(model: str, than: str) -> Lower:
    return Lower("final_error", model, than)


CLAIMS = claims_from(
    EXPERIMENT,
    Claim(
        "rank-4-matches-full",
        "PCA-L2 with 4 components matches the full distance (error at most 1.5 times as large) in "
        "at most a fifteenth of its time.",
        Both(
            Ratio("final_error", "pca-l2-4", "elliptical", "below", 1.5),
            Ratio("seconds", "pca-l2-4", "elliptical", "below", 1 / 15),
        ),
        needs=ADAM,
    ),
    *(
        Claim(
            f"rank-{rank}-beats-full",
            f"PCA-L2 with {rank} components leaves a smaller error than the full distance.",
            _lower(f"pca-l2-{rank}", "elliptical"),
            needs=ADAM,
        )
        for rank in (4, 64)
    ),
    Claim(
        "error-falls-with-rank",
        "PCA-L2 improves smoothly with more components: 8 beat 4, and 64 beat 8.",
        Both(_lower("pca-l2-8", "pca-l2-4"), _lower("pca-l2-64", "pca-l2-8")),
        needs=ADAM,
    ),
    Claim(
        "l1-is-worse",
        "PCA-L1 is worse than PCA-L2 with as many components (64).",
        _lower("pca-l2-64", "pca-l1-64"),
    ),
    Claim(
        "pca-beats-spherical",
        "PCA-L2 with 4 components beats the Euclidean distance.",
        _lower("pca-l2-4", "spherical"),
        needs=ADAM,
    ),
    Claim(
        "full-beats-spherical",
        "The full distance beats the Euclidean one, which ignores shape.",
        _lower("elliptical", "spherical"),
        needs=ADAM,
    ),
    Claim(
        "rank-64-approximates",
        "PCA-L2 approximates the Mahalanobis distance: with 64 components within 10 %.",
        Average("distance_error", "pca-l2-64", "below", 0.1),
    ),
    Claim(
        "rank-4-approximates",
        "Few components suffice to approximate the Mahalanobis distance: 4 within 10 %.",
        Average("distance_error", "pca-l2-4", "below", 0.1),
    ),
    *(
        Claim(
            f"{key}-the-point",
            f"Searched until convergence, {what} the point back: error below 0.01.",
            TrialShare("final_error", model, "below", 0.01),
            needs=NEWTON,
        )
        for key, what, model in (
            ("full-distances-determine", "full distances give", "elliptical"),
            ("rank-4-determines", "PCA-L2 with 4 components gives", "pca-l2-4"),
            ("euclidean-determines", "Euclidean distances give", "spherical"),
            ("l1-determines", "PCA-L1 with 64 components gives", "pca-l1-64"),
        )
    ),
)

# The experiment has no data; these put its conclusions to the test on some.
DATA_CLAIMS: tuple[Claim, ...] = (
    Claim(
        "data/remainder-beats-truncation",
        "On real data, one spread for the dropped directions classifies better by distance than "
        "dropping them (rank 8).",
        Lower("error_distance", "rank-8", "truncated-8"),
    ),
    Claim(
        "data/low-rank-matches-full",
        "On real data, a few components (8) match the full ellipsoid: test error at most 1.1 times "
        "as large.",
        Ratio("error_density", "rank-8", "full", "below", 1.1),
    ),
    *(
        Claim(
            f"data/{key}",
            f"On real data, {what} the full distance within 10 %.",
            Average("distance_error", model, "below", 0.1),
        )
        for key, what, model in (
            ("truncation-approximates", "distances along 32 components are", "truncated-32"),
            ("remainder-approximates", "32 components with a remainder give", "rank-32"),
        )
    ),
    Claim(
        "data/adaptive-clusters-help",
        "On real data, several ellipsoids per class (2 clusters) classify better than one (rank "
        "8).",
        Lower("error_density", "clusters-2", "rank-8"),
    ),
)

_PUBLISHED = {
    ("final_error", "elliptical"): PublishedValue(0.161, extra={"another draw": 0.318}),
    ("final_error", "spherical"): PublishedValue(0.628, extra={"another draw": 1.717}),
    ("final_error", "pca-l2-4"): PublishedValue(0.116),
    ("final_error", "pca-l2-8"): PublishedValue(0.235),
    ("final_error", "pca-l2-64"): PublishedValue(0.074),
    ("final_error", "pca-l1-64"): PublishedValue(19.85),
    ("seconds", "elliptical"): PublishedValue(65.1, extra={"another draw": 63.0}),
    ("seconds", "spherical"): PublishedValue(3.3, extra={"another draw": 3.2}),
    ("seconds", "pca-l2-4"): PublishedValue(4.1),
    ("seconds", "pca-l2-8"): PublishedValue(4.0),
    ("seconds", "pca-l2-64"): PublishedValue(12.6),
    ("seconds", "pca-l1-64"): PublishedValue(12.7),
}


def published(
    config: EllipsoidConfig, metric: str, model: str, variant: str
) -> PublishedValue | None:
    """Return the published value for runs of its size; beside a smaller run it would mislead."""
    full_size = config.data is None and (config.dim, config.count) == (784, 1_024)
    return _PUBLISHED.get((metric, model)) if full_size else None


# --- Ellipsoids and points --------------------------------------------------------------------


@dataclass
class Drawn:
    """Ellipsoids and points of a run, shared by all methods.

    ``parts`` are ``whitening`` [K, D, D], ``axes`` [K, R, D] with ``spreads`` [K, R], and ``rest``
    [K, number of ranks] (spreads across the kept axes, by mean precision), if a method needs them.
    ``truth`` and ``start`` are [T, D]; all are float32, as published as far as one can tell.
    """

    config: EllipsoidConfig
    means: Tensor
    truth: Tensor
    start: Tensor
    parts: dict[str, Tensor]
    seconds: float

    def metric(self, model: str) -> tuple[Ellipsoids, Norm]:
        """Return the ellipsoids of a model, and the norm over their components."""
        method, rank = split_model(model)
        if method == "elliptical":
            return self.full, "l2"
        if method == "spherical":
            ones = torch.ones(len(self.means), device=self.means.device)
            return geometry.SphericalEllipsoids(self.means, ones), "l2"
        axes, spreads = (self.parts[name][:, :rank] for name in ("axes", "spreads"))
        if method == "remainder":
            place = self.config.ranks.index(int(rank or 0))
            rest = torch.minimum(self.parts["rest"][:, place], spreads[:, -1])
            return geometry.LowRankEllipsoids(self.means, axes, spreads, rest), "l2"
        norm: Norm = "l1" if method == "pca-l1" else "l2"
        return geometry.LowRankEllipsoids(self.means, axes, spreads), norm

    @cached_property
    def full(self) -> FullEllipsoids:
        """The full ellipsoids."""
        return geometry.FullEllipsoids(self.means, self.parts["whitening"])

    @cached_property
    def full_distances(self) -> Tensor | None:
        """Mahalanobis distances of the true points [T, K], if whole covariances are there."""
        return self.full.distances(self.truth) if "whitening" in self.parts else None

    def problem(self, model: str) -> SearchProblem:
        """Return what is searched: the true points by their distances, with noise if asked for."""
        from mahalens.data import stream
        from mahalens.geometry.reconstruction import SearchProblem

        ellipsoids, norm = self.metric(model)
        targets = ellipsoids.distances(self.truth, norm=norm)
        if self.config.noise:
            seed = self.config.seed
            noise = [
                torch.randn(targets.shape[1], generator=stream(seed, "noise", model, t))
                for t in range(len(targets))
            ]
            drawn = torch.stack(noise).to(targets.device)
            targets = (targets + self.config.noise * drawn).clamp(min=0)
        return SearchProblem.of(ellipsoids, targets, norm=norm)

    def search(self, problem: SearchProblem) -> AdamSearch | NewtonSearch:
        """Return a search for all trials at once, from their starting points."""
        from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch

        kind = NewtonSearch if self.config.solver == "newton" else AdamSearch
        return kind(problem, self.start[: len(problem)], steps=self.config.steps)


@functools.lru_cache(maxsize=1)
def draw(config: EllipsoidConfig) -> Drawn:
    """Draw a run's ellipsoids, one covariance at a time.

    Factors and axes are computed in float64 from the same covariance and then rounded, so that
    no covariance is drawn twice and none is kept.
    """
    from mahalens.data.draws import DrawnCovariances, draw_points
    from mahalens.geometry.ellipsoids import top_eigenpairs

    began = time.perf_counter()
    count, dim, rank = config.count, config.dim, config.largest_rank
    covariances = DrawnCovariances(dim, count, config.seed)
    parts = {}
    if config.needs_full:
        parts["whitening"] = torch.empty(count, dim, dim)
    if rank:
        parts |= {"axes": torch.empty(count, rank, dim), "spreads": torch.empty(count, rank)}
    if "remainder" in config.methods:
        parts["rest"] = torch.empty(count, len(config.ranks))
    for k in range(count):
        covariance = covariances[k]
        precisions = 0.0
        if {"whitening", "rest"} & parts.keys():
            inverse = _invert_factor(covariance)
            precisions = float(inverse.square().sum())
            if "whitening" in parts:
                parts["whitening"][k] = inverse
        if rank:
            values, vectors = top_eigenpairs(covariance.numpy(), rank)
            parts["axes"][k] = torch.from_numpy(vectors)
            parts["spreads"][k] = spreads = torch.from_numpy(np.sqrt(values))
            if "rest" in parts:
                left = precisions - np.cumsum(1 / values)
                for place, r in enumerate(config.ranks):
                    across = ((dim - r) / left[r - 1]) ** 0.5 if r < dim else float(spreads[-1])
                    parts["rest"][k, place] = across
    points = {
        name: draw_points(dim, number, config.seed, name, torch.float32).to(config.device)
        for name, number in (("means", count), ("truth", config.trials), ("start", config.trials))
    }
    moved = {name: part.to(config.device) for name, part in parts.items()}
    return Drawn(config, **points, parts=moved, seconds=time.perf_counter() - began)


def _invert_factor(covariance: Tensor) -> Tensor:
    """Return L^-1 [D, D] for a covariance that is surely positive definite, by LAPACK's trtri."""
    from scipy.linalg import lapack

    factor = torch.linalg.cholesky(covariance)
    inverse, _ = lapack.dtrtri(factor.numpy(), lower=1)
    return torch.from_numpy(np.tril(inverse))


# --- Measure ----------------------------------------------------------------------------------

CURVE_POINTS = 150
SAVE_EVERY = 20.0
CHUNK_SECONDS = 0.5
TIMED_SECONDS = 0.1
TIMED_STEPS = 3
CROSS_STEPS = 25
LARGE_STEP = 1e9
"""Multiplications of a step from which a second thread is worth its while."""


def check(config: EllipsoidConfig, folder: Path | None) -> dict[str, Any]:
    """Refuse a run that would not fit into memory, or data that do not fit the options."""
    from mahalens.geometry._checks import require_memory

    if config.data is not None:
        from mahalens.studies.ellipsoids_data import check_data

        return check_data(config)
    full = config.count * config.dim**2 * 4 * 17 // 10 if config.needs_full else 0
    low = config.count * config.largest_rank * config.dim * 4 * 4
    slopes = min(config.trials * config.count * config.dim * 16, 2**29)
    newton = slopes if config.solver == "newton" else 0
    remedy = "give a smaller --count or --dim"
    if config.needs_full:
        remedy = f"leave out the full distance (--methods spherical,pca-l2), or {remedy}"
    size = full + low + newton + config.dim**2 * 8 * 8
    require_memory(size, f"--count {config.count} with --dim {config.dim}", remedy)
    return {"dim": config.dim, "count": config.count, "solver": config.solver}


def jobs(config: EllipsoidConfig) -> list[Job]:
    """Cut the work: all trials of one method, or with data all models of one trial."""
    if config.data is not None:
        return jobs_of([""], ["fits"], config.trials, 1)
    return jobs_of([""], config.models, config.trials)


def measure(config: EllipsoidConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Search for the points of a run with one method, or fit all models of one trial to data."""
    from mahalens.studies.run import thread_count

    if config.data is not None:
        from mahalens.studies.ellipsoids_data import measure_fits

        return measure_fits(config, job, context)
    context.report(0.0, "drawing ellipsoids")
    # The options that decide what is drawn and sought, for the cache of drawings.
    drawn = draw(msgspec.structs.replace(config, budget=None, shortened=(), tensorboard=False))
    rank = split_model(job.work)[1] or (config.dim if job.work == "elliptical" else 1)
    small = config.trials * config.count * rank * config.dim < LARGE_STEP
    with thread_count(1) if small else contextlib.nullcontext():
        return {job.work: _search(drawn, job.work, context)}


def _search(drawn: Drawn, model: str, context: Context) -> Measures:
    """Search with one method from the start, or from its saved state, and read the result."""
    from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch

    problem = drawn.problem(model)
    search = drawn.search(problem)
    noted, spent = _restore(search, context)

    def save() -> None:
        if isinstance(search, AdamSearch):
            state = search.state() | _curve(noted) | {"spent": torch.tensor(spent)}
            context.save("search", state)

    marks = set(milestones(search.steps))
    last_save, pace = time.monotonic(), 1
    if search.step == 0:
        noted[0] = _errors(search.x, drawn.truth)
    while not search.finished:
        ahead = min((m for m in marks if m > search.step), default=search.steps)
        if isinstance(search, NewtonSearch):
            ahead = search.step + 1
        began = time.perf_counter()
        search.advance(min(ahead, search.step + pace))
        took = time.perf_counter() - began
        spent += took
        pace = 2 * pace if took < CHUNK_SECONDS / 2 else max(1, pace // 2) if took > 1 else pace
        if search.step in marks or isinstance(search, NewtonSearch):
            noted[search.step] = _errors(search.x, drawn.truth)
        newest = float(noted[max(noted)].mean())
        context.report(search.step / search.steps, f"error {newest:.2g}")
        stopping = context.should_stop() and not search.finished
        if stopping or time.monotonic() - last_save > SAVE_EVERY:
            save()
            last_save = time.monotonic()
        if stopping:
            context.look()
    return _read(drawn, problem, search, noted, spent)


def _restore(
    search: AdamSearch | NewtonSearch, context: Context
) -> tuple[dict[int, Tensor], float]:
    """Go back to a saved state; return the errors noted so far and the seconds spent."""
    from mahalens.geometry.reconstruction import AdamSearch

    saved = context.load("search")
    if saved is None or not isinstance(search, AdamSearch):
        return {}, 0.0
    try:
        steps, errors = saved.pop("steps"), saved.pop("errors")
        spent = float(saved.pop("spent"))
        search.restore(saved)
        return dict(zip(steps.tolist(), errors, strict=True)), spent
    except (KeyError, RuntimeError, ValueError) as error:
        raise RunFolderError(
            f"the saved state of {context.job} does not fit this run ({error}); delete its "
            "checkpoints to search from the start"
        ) from None


def milestones(steps: int) -> list[int]:
    """Return the steps at which the error is noted: the first, the last, evenly on a log scale.

    >>> milestones(4)
    [0, 1, 2, 3, 4]
    """
    grid = torch.logspace(0, torch.log10(torch.tensor(float(steps))).item(), CURVE_POINTS)
    return sorted({0, steps, *(int(step) for step in grid.round().clamp(max=steps))})


def _read(
    drawn: Drawn,
    problem: SearchProblem,
    search: AdamSearch | NewtonSearch,
    noted: dict[int, Tensor],
    spent: float,
) -> Measures:
    from mahalens.geometry.reconstruction import NewtonSearch

    trials = len(search.x)
    gaps = problem.tangent(search.x).distances - problem.targets
    steps, converged = torch.full((trials,), search.step), torch.zeros(trials, dtype=torch.bool)
    if isinstance(search, NewtonSearch):
        steps, converged = search.taken, search.converged
    seconds = [_time_alone(drawn, problem, trial) for trial in range(trials)]
    error = _errors(search.x, drawn.truth)
    curve = _curve(noted)
    metrics = {
        "final_error": error,
        "residual": gaps.double().square().mean(dim=1).sqrt(),
        "seconds": torch.tensor(seconds).double(),
        "steps": steps.double(),
        "distance_error": _distance_error(drawn, problem),
        "cross_error": _cross_error(drawn, problem),
    }
    ends = ("done", "done") if drawn.config.solver == "adam" else ("not converged", "converged")
    return Measures(
        metrics={name: values.cpu() for name, values in metrics.items()},
        seconds=spent,
        curves={"error": (curve["steps"], curve["errors"].T)},
        weights={"x": search.x},
        columns={"drawing": [drawn.seconds] * trials},
        statuses=[
            ends[bool(done)] if math.isfinite(value) else "non-finite"
            for value, done in zip(error.tolist(), converged.tolist(), strict=True)
        ],
    )


def _time_alone(drawn: Drawn, problem: SearchProblem, trial: int) -> float:
    """Return the seconds of the search for one point: Adam's by some steps, Newton's as a whole."""
    from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch

    alone = problem.some(slice(trial, trial + 1))
    start = drawn.start[trial : trial + 1]
    if drawn.config.solver == "newton":
        newton = NewtonSearch(alone, start, steps=drawn.config.steps)
        began = time.perf_counter()
        newton.advance()
        return time.perf_counter() - began
    adam = AdamSearch(alone, start, steps=10**9)
    adam.advance(1)
    began = time.perf_counter()
    while adam.step < 1 + TIMED_STEPS or time.perf_counter() - began < TIMED_SECONDS:
        adam.advance(adam.step + 1)
    return (time.perf_counter() - began) / (adam.step - 1) * drawn.config.steps


def _distance_error(drawn: Drawn, problem: SearchProblem) -> Tensor:
    """Return the median relative error of the distances of the true points, without noise [T]."""
    full = drawn.full_distances
    if full is None:
        return torch.full((len(problem),), math.nan, dtype=torch.float64)
    distances = problem.ellipsoids.distances(drawn.truth, norm=problem.norm)
    return (distances.double() / full.double() - 1).abs().median(dim=1).values


def _cross_error(drawn: Drawn, problem: SearchProblem) -> Tensor:
    """Return the error when full distances are read with this method's ellipsoids [T]."""
    from mahalens.geometry.reconstruction import NewtonSearch, SearchProblem

    full = drawn.full_distances
    if full is None or problem.norm == "l1":
        return torch.full((len(problem),), math.nan, dtype=torch.float64)
    other = SearchProblem.of(problem.ellipsoids, full, norm=problem.norm)
    search = NewtonSearch(other, drawn.start, steps=CROSS_STEPS)
    search.advance()
    return _errors(search.x, drawn.truth)


def _errors(x: Tensor, truth: Tensor) -> Tensor:
    errors: Tensor = torch.linalg.vector_norm(x.double() - truth.double(), dim=1).cpu()
    return errors


def _curve(noted: Mapping[int, Tensor]) -> dict[str, Tensor]:
    return {"steps": torch.tensor(list(noted)), "errors": torch.stack(list(noted.values()))}


# --- Distance error by rank -------------------------------------------------------------------

SAMPLE, POINTS = 24, 256
KINDS = ("truncated", "variance", "precision")
QUANTILES = (0.25, 0.5, 0.75)


def rank_grid(dim: int, ranks: tuple[int, ...]) -> list[int]:
    """Return powers of two up to D, the ranks of the run, and D.

    >>> rank_grid(12, (3,))
    [1, 2, 3, 4, 8, 12]
    """
    powers = [2**i for i in range(dim.bit_length()) if 2**i <= dim]
    return sorted({*powers, *(r for r in ranks if r <= dim), dim})


def distance_errors(config: EllipsoidConfig) -> dict[str, NDArray[np.float64]]:
    """Return quartiles [3, G] of the relative error by rank, for each way to treat the rest.

    Over some of the run's ellipsoids and standard normal points, as the experiment draws them. In
    the coordinates of its axes, c = V^T (x - mean), the squared distance to an ellipsoid is
    sum_i c_i^2 / l_i; the first R terms are the truncated one, and a remainder s stands for the
    others as sum_{i > R} c_i^2 / s.
    """
    from mahalens.data.draws import DrawnCovariances, draw_points

    grid = rank_grid(config.dim, config.ranks)
    count = min(config.count, SAMPLE)
    covariances = DrawnCovariances(config.dim, config.count, config.seed)
    means = draw_points(config.dim, count, config.seed, "means", torch.float64).numpy()
    points = draw_points(config.dim, POINTS, config.seed, "ranks", torch.float64).numpy()
    errors: dict[str, list[NDArray[np.float64]]] = {kind: [] for kind in KINDS}
    for k in range(count):
        values, vectors = np.linalg.eigh(covariances[k].numpy())
        values, vectors = values[::-1], vectors[:, ::-1]
        squares = ((points - means[k]) @ vectors) ** 2
        kept = np.cumsum(squares / values, axis=1)
        full = np.sqrt(kept[:, -1:])
        left = squares.sum(axis=1, keepdims=True) - np.cumsum(squares, axis=1)
        places = np.array(grid) - 1
        dropped = np.maximum(config.dim - np.array(grid), 1)
        variance = (values.sum() - np.cumsum(values))[places] / dropped
        inverse = (1 / values).sum() - np.cumsum(1 / values)
        precision = dropped / np.maximum(inverse[places], 1e-300)
        last = np.array(grid) == config.dim  # nothing is left over there
        for kind, rest in zip(KINDS, (np.inf, variance, precision), strict=True):
            more = np.maximum(left[:, places], 0) / np.where(last, np.inf, rest)
            errors[kind].append(np.abs(np.sqrt(kept[:, places] + more) / full - 1))
    quartiles = {
        f"ranks/{kind}": np.quantile(np.concatenate(parts), QUANTILES, axis=0)
        for kind, parts in errors.items()
    }
    return {"ranks/grid": np.array(grid, dtype=np.float64), **quartiles}


def finish(config: EllipsoidConfig, results: Results) -> None:
    """Add the points that were sought, and the distance error by rank."""
    if config.data is not None:
        return
    from mahalens.data.draws import draw_points

    drawing = max(float(measured.columns["drawing"][0]) for measured in results.measures.values())
    results.facts |= {"drawing_seconds": drawing, "seconds": drawing}
    results.weights["points"] = {
        name: draw_points(config.dim, config.trials, config.seed, name, torch.float32)
        for name in ("truth", "start")
    }
    results.plots |= {n: torch.from_numpy(array) for n, array in distance_errors(config).items()}


def _group(config: EllipsoidConfig, variant: str) -> dict[str, Any]:
    if config.data is not None:
        from mahalens.studies.ellipsoids_data import load

        return {"data": load(config).name}
    return {"dim": config.dim, "count": config.count, "solver": config.solver}


_RANKED = {
    "rank": "rank R + one spread for the rest",
    "truncated": "rank R, rest dropped",
    "shared": "basis of R shared by all classes",
}


def _rank(model: str) -> int | None:
    """Return the rank of ellipsoids fitted to data; clusters and mixtures have another number."""
    method, rank = split_model(model)
    return rank if method in _RANKED else None


def _method_label(model: str) -> str:
    """Return the label of a model without its size."""
    method, _ = split_model(model)
    return _SIZED[method][0].partition(",")[0] if method in _SIZED else _FIXED[method].label


STUDY = Study(
    name="ellipsoids",
    question="Can points be found from distances to many ellipsoids, and by how few axes?",
    source=EXPERIMENT,
    config=EllipsoidConfig,
    models=_FIXED,
    model=model_of,
    metrics=METRICS,
    claims=lambda config: CLAIMS if config.data is None else DATA_CLAIMS,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    pools=False,
    published=published,
    primary=("final_error", "error_density"),
    variant="",
    group=_group,
    stacked=True,
    length="steps",
    along="step",
    protocol="published",
    thing="method",
    shown=(
        "final_error",
        "residual",
        "seconds",
        "distance_error",
        "error_density",
        "error_distance",
        "fit_seconds",
        "score_seconds",
        "parameters",
    ),
    remark="Trials differ in the point that is sought and in where the search begins (with data: "
    "in the samples fitted to); all methods share them, and the ellipsoids.",
    plots=(
        Curves(
            name="convergence",
            title="Convergence",
            caption="Distance of the found point from the true one. A line that still falls at the "
            "right edge says how long was searched, not what the distances can tell; one that "
            "levels off high has found no way on.",
            column="error",
            panel=_method_label,
            draw="trials",
            metric="final_error",
            label="error ‖x − x_true‖",
            log=True,
        ),
        Levels(
            name="ranks",
            title="Distance error against rank",
            caption="Relative error of the distance against the full Mahalanobis distance, for "
            "random points and ellipsoids drawn as in the experiment: median and quartiles. The "
            "longest axes contribute least to a Mahalanobis distance, so that dropping the others "
            "loses nearly all of it; one spread for all of them recovers most.",
            kinds=("ranks",),
            what=(
                ("truncated", "the rest dropped"),
                ("variance", "one spread, by mean variance"),
                ("precision", "one spread, by mean precision"),
            ),
            array="ranks/{what}",
            levels="ranks/grid",
            order=(1, 0, 2),
            axes=("components kept (log scale)",),
            label="relative error of the distance (log scale)",
            band="from the lower to the upper quartile",
            log=True,
        ),
        Against(
            name="classification",
            title="Classification by ellipsoids",
            caption="Means over the trials with 95 % intervals. Lines across: models without a "
            "rank. Density weighs distances by the size of the ellipsoid and the share of the "
            "class; distance alone takes the nearest ellipsoid in units of its own spread, and "
            "favours large ones.",
            metrics=("error_density", "error_distance", "distance_error"),
            at=_rank,
            line=lambda model: _RANKED[split_model(model)[0]],
            label="rank R",
            log=True,
        ),
        AllMetrics(
            name="metrics",
            title="Metrics over all trials",
            caption="Compare the spread of the dots with the gap between methods.",
        ),
    ),
)
