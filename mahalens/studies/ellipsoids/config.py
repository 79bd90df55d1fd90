"""What a run of the ellipsoid study is told, and how that differs from the published protocol."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Literal

import msgspec

from mahalens.errors import InputError
from mahalens.studies.ellipsoids.real_options import (
    DEFAULT_CLUSTERS,
    DEFAULT_RANKS,
    DEFAULT_SHRINKAGE,
)
from mahalens.studies.options import check_count

METHODS = {
    "elliptical": "full Mahalanobis distance, a triangular factor per ellipsoid",
    "spherical": "Euclidean distance to the means",
    "pca-l2": "root of the sum of squares along the R longest axes",
    "pca-l1": "sum of absolute values along the R longest axes",
    "remainder": "pca-l2 with one spread for all other directions",
}
SOLVERS = {
    "adam": "the published protocol: hand-written Adam, lr 1/K, betas (0.9, 0.999)",
    "newton": "Levenberg and Marquardt's method until convergence, from the same starting points",
}
WITH_RANK = ("pca-l2", "pca-l1", "remainder")

PUBLISHED = {"dim": 784, "count": 1024, "steps": 10_000}
SMALL = {"dim": 96, "count": 128, "steps": 3_000}
RANKS = (4, 8, 64)
NEWTON_STEPS = 200
TRIALS = 5


class EllipsoidConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the numbers of a run.

    With ``data`` the run is one of ellipsoids fitted to real data: then ``ranks``, ``trials``,
    ``seed``, ``clusters``, ``train_size`` and ``shrinkage`` count, and the others do not.
    """

    dim: int
    count: int
    ranks: tuple[int, ...]
    methods: tuple[str, ...]
    solver: Literal["adam", "newton"]
    steps: int
    trials: int
    noise: float
    seed: int
    data: str | None = None
    clusters: tuple[int, ...] = ()
    train_size: int | None = None
    shrinkage: float = DEFAULT_SHRINKAGE
    rivals: bool = False

    def __post_init__(self) -> None:
        for name in ("dim", "count", "steps", "trials"):
            check_count(name, getattr(self, name), 1)
        check_count("seed", self.seed, 0, 2**63 - 1)
        _check_each("ranks", self.ranks)
        if self.data is None and (above := [r for r in self.ranks if r > self.dim]):
            raise InputError(
                f"--ranks {above[0]}: is more than --dim {self.dim}; give ranks of at most that"
            )
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise InputError(f"--noise {self.noise}: give a number of at least 0")
        _check_names("methods", self.methods, METHODS)
        _check_each("clusters", self.clusters)
        if self.train_size is not None:
            check_count("train-size", self.train_size, 2)
        if not 0 <= self.shrinkage < 1:
            raise InputError(f"--shrinkage {self.shrinkage}: give a number from 0 to below 1")

    @classmethod
    def with_defaults(
        cls,
        *,
        dim: int | None = None,
        count: int | None = None,
        ranks: tuple[int, ...] | None = None,
        methods: tuple[str, ...] = tuple(METHODS),
        solver: str = "adam",
        steps: int | None = None,
        trials: int = TRIALS,
        noise: float = 0.0,
        seed: int = 0,
        published: bool = False,
        data: str | None = None,
        clusters: tuple[int, ...] | None = None,
        train_size: int | None = None,
        shrinkage: float | None = None,
    ) -> EllipsoidConfig:
        """Fill in what is not given: a small run, or with ``published`` the size of source 002."""
        if solver not in SOLVERS:
            raise InputError(f"--solver {solver}: unknown; known: {', '.join(SOLVERS)}")
        if published and data is not None:
            raise InputError(
                "--published and --data: source 002 has no data; leave one of them out"
            )
        if data is None:
            given = {"clusters": clusters, "train-size": train_size, "shrinkage": shrinkage}
            for name, value in given.items():
                if value is not None:
                    raise InputError(f"--{name} without --data: it is for fits to data; add --data")
        size = PUBLISHED if published else SMALL
        dim = size["dim"] if dim is None else dim
        if ranks is None:
            ranks = DEFAULT_RANKS if data else tuple(r for r in RANKS if r <= dim) or (dim,)
        longest = NEWTON_STEPS if solver == "newton" else size["steps"]
        return cls(
            dim=dim,
            count=size["count"] if count is None else count,
            ranks=ranks,
            methods=methods,
            solver="newton" if solver == "newton" else "adam",
            steps=longest if steps is None else steps,
            trials=trials,
            noise=noise,
            seed=seed,
            data=data,
            clusters=(DEFAULT_CLUSTERS if data else ()) if clusters is None else clusters,
            train_size=train_size,
            shrinkage=DEFAULT_SHRINKAGE if shrinkage is None else shrinkage,
            rivals=data is not None and find_spec("sklearn") is not None,
        )

    @property
    def models(self) -> tuple[str, ...]:
        """Methods with their ranks, in the order of the source's table."""
        found: list[str] = []
        for method in METHODS:
            if method in self.methods:
                ranked = method in WITH_RANK
                found += [f"{method}-{rank}" for rank in self.ranks] if ranked else [method]
        return tuple(found)

    @property
    def needs_full(self) -> bool:
        """Whether whole covariances are factored."""
        return "elliptical" in self.methods

    @property
    def largest_rank(self) -> int:
        """How many axes of each ellipsoid are needed; 0 for none."""
        return max(self.ranks) if any(m in WITH_RANK for m in self.methods) else 0

    def deviations(self) -> list[str]:
        """What differs from the published protocol, one sentence each; none means published."""
        if self.data is not None:
            return [f"data: ellipsoids fitted to {self.data}, which source 002 does not do"]
        found = []

        def compare(name: str, value: object, published: object) -> None:
            if value != published:
                found.append(f"{name}: {value} instead of {published}")

        compare("dim", self.dim, PUBLISHED["dim"])
        compare("count", self.count, PUBLISHED["count"])
        compare("solver", self.solver, "adam")
        if self.solver == "adam":
            compare("steps", self.steps, PUBLISHED["steps"])
        compare("noise", self.noise, 0.0)
        wanted = ["elliptical", "spherical", "pca-l2", "pca-l1"]
        if missing := [m for m in wanted if m not in self.methods]:
            found.append(f"methods: without {', '.join(missing)}")
        if missing_ranks := [str(r) for r in RANKS if r not in self.ranks]:
            found.append(f"ranks: without {', '.join(missing_ranks)}")
        return found


def split_model(model: str) -> tuple[str, int | None]:
    """Method and rank of a model.

    >>> split_model("pca-l2-64"), split_model("elliptical")
    (('pca-l2', 64), ('elliptical', None))
    """
    method, _, rank = model.rpartition("-")
    return (method, int(rank)) if rank.isdigit() else (model, None)


def _check_each(name: str, values: tuple[int, ...]) -> None:
    for value in values:
        check_count(name, value, 1)
    if len(set(values)) < len(values):
        raise InputError(f"--{name} {','.join(map(str, values))}: a number is named twice")
    if name == "ranks" and not values:
        raise InputError("--ranks is empty: give some whole numbers, such as 4,8,64")


def _check_names(name: str, given: tuple[str, ...], known: dict[str, str]) -> None:
    if not given:
        raise InputError(f"--{name} is empty: give some of {', '.join(known)}")
    for one in given:
        if one not in known:
            raise InputError(f"--{name} {one}: unknown; known: {', '.join(known)}")
    if len(set(given)) < len(given):
        raise InputError(f"--{name} {','.join(given)}: one is named twice")
