"""The ellipsoids, points and distances of a run, all from one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from mahalens.data import stream
from mahalens.data.ellipsoids import DrawnCovariances, draw_points
from mahalens.geometry import Ellipsoids, FullEllipsoids, LowRankEllipsoids, SphericalEllipsoids
from mahalens.geometry.ellipsoids import top_eigenpairs
from mahalens.geometry.ellipsoids.products import Norm
from mahalens.geometry.memory import require_memory
from mahalens.geometry.reconstruction import AdamSearch, NewtonSearch, Problem
from mahalens.studies.ellipsoids.config import EllipsoidConfig, split_model

DTYPE = torch.float32
"""As published, as far as one can tell."""


@dataclass
class Drawn:
    """Ellipsoids and points of a run, shared by all methods.

    ``whitening`` [K, D, D], ``axes`` [K, R, D] with ``spreads`` [K, R], and ``rest`` [K, number of
    ranks] (spreads across the kept axes, by mean precision) are there if a method needs them.
    ``truth`` and ``start`` are [T, D].
    """

    config: EllipsoidConfig
    means: Tensor
    whitening: Tensor | None
    axes: Tensor | None
    spreads: Tensor | None
    rest: Tensor | None
    truth: Tensor
    start: Tensor

    def metric(self, model: str) -> tuple[Ellipsoids, Norm]:
        """The ellipsoids of a model, and the norm over their components."""
        method, rank = split_model(model)
        if method == "elliptical":
            return self.full, "l2"
        if method == "spherical":
            return SphericalEllipsoids(self.means, torch.ones(len(self.means))), "l2"
        assert self.axes is not None
        assert self.spreads is not None
        assert rank is not None
        axes, spreads = self.axes[:, :rank], self.spreads[:, :rank]
        if method == "remainder":
            assert self.rest is not None
            rest = torch.minimum(self.rest[:, self.config.ranks.index(rank)], spreads[:, -1])
            return LowRankEllipsoids(self.means, axes, spreads, rest), "l2"
        return LowRankEllipsoids(self.means, axes, spreads), "l1" if method == "pca-l1" else "l2"

    @cached_property
    def full(self) -> FullEllipsoids:
        """The full ellipsoids."""
        assert self.whitening is not None
        return FullEllipsoids(self.means, self.whitening)

    @cached_property
    def full_distances(self) -> Tensor | None:
        """Mahalanobis distances of the true points [T, K], if whole covariances are there."""
        return None if self.whitening is None else self.full.distances(self.truth)

    def problem(self, ellipsoids: Ellipsoids, norm: Norm, model: str) -> Problem:
        """What is searched: the true points by their distances, with noise if there is any."""
        targets = ellipsoids.distances(self.truth, norm=norm)
        if self.config.noise:
            noise = [
                torch.randn(targets.shape[1], generator=stream(self.config.seed, "noise", model, t))
                for t in range(len(targets))
            ]
            targets = (targets + self.config.noise * torch.stack(noise)).clamp(min=0)
        return Problem.of(ellipsoids, targets, norm=norm)

    def search(self, problem: Problem) -> AdamSearch | NewtonSearch:
        """A search for all trials at once, from their starting points."""
        kind = NewtonSearch if self.config.solver == "newton" else AdamSearch
        return kind(problem, self.start[: len(problem)], steps=self.config.steps)


def check_memory(config: EllipsoidConfig) -> None:
    """Say before anything is drawn that a run would not fit."""
    full = config.count * config.dim**2 * 4 * 17 // 10 if config.needs_full else 0
    low = config.count * config.largest_rank * config.dim * 4 * 4
    slopes = (
        min(config.trials * config.count * config.dim * 16, 2**29)
        if config.solver == "newton"
        else 0
    )
    small = config.dim**2 * 8 * 8
    remedy = "give a smaller --count or --dim"
    if config.needs_full:
        remedy = f"leave out the full distance (--methods spherical,pca-l2), or {remedy}"
    require_memory(
        full + low + slopes + small,
        f"--count {config.count} with --dim {config.dim}",
        remedy,
    )


def draw(config: EllipsoidConfig, each: Callable[[int], None] | None = None) -> Drawn:
    """Draw a run's ellipsoids, one covariance at a time; ``each`` is called after every one.

    Factors and axes are computed in float64 from the same covariance and then rounded, so that
    no covariance is drawn twice and none is kept.
    """
    count, dim, rank = config.count, config.dim, config.largest_rank
    ranked = "remainder" in config.methods
    covariances = DrawnCovariances(dim, count, config.seed)
    whitening = torch.empty(count, dim, dim, dtype=DTYPE) if config.needs_full else None
    axes = torch.empty(count, rank, dim, dtype=DTYPE) if rank else None
    spreads = torch.empty(count, rank, dtype=DTYPE) if rank else None
    rest = torch.empty(count, len(config.ranks), dtype=DTYPE) if ranked else None
    for k in range(count):
        covariance = covariances[k]
        precisions = 0.0
        if whitening is not None or rest is not None:
            inverse = invert_factor(covariance)
            precisions = float(inverse.square().sum())
            if whitening is not None:
                whitening[k] = inverse
        if axes is not None and spreads is not None:
            values, vectors = top_eigenpairs(covariance.numpy(), rank)
            axes[k] = torch.from_numpy(vectors)
            spreads[k] = torch.from_numpy(np.sqrt(values))
            if rest is not None:
                kept = np.cumsum(1 / values)
                for place, r in enumerate(config.ranks):
                    left = precisions - kept[r - 1]
                    rest[k, place] = ((dim - r) / left) ** 0.5 if r < dim else spreads[k, -1]
        if each is not None:
            each(k + 1)
    return Drawn(
        config=config,
        means=draw_points(dim, count, config.seed, "means", DTYPE),
        whitening=whitening,
        axes=axes,
        spreads=spreads,
        rest=rest,
        truth=draw_points(dim, config.trials, config.seed, "truth", DTYPE),
        start=draw_points(dim, config.trials, config.seed, "start", DTYPE),
    )


def invert_factor(covariance: Tensor) -> Tensor:
    """Give L^-1 [D, D] for a covariance that is surely positive definite, by LAPACK's trtri."""
    factor = torch.linalg.cholesky(covariance)
    inverse, _ = lapack.dtrtri(factor.numpy(), lower=1)
    return torch.from_numpy(np.tril(inverse))
