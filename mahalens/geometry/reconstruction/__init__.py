"""Points from their distances to ellipsoids: the inverse of :meth:`Ellipsoids.distances`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import (
    require_count,
    require_finite,
    require_same_kind,
    require_tensor,
    tensor_of,
)
from mahalens.geometry.ellipsoids import Ellipsoids, SphericalEllipsoids
from mahalens.geometry.ellipsoids.products import Norm
from mahalens.geometry.reconstruction.adam import PUBLISHED_STEPS, AdamSearch
from mahalens.geometry.reconstruction.newton import STEPS, NewtonSearch
from mahalens.geometry.reconstruction.problem import Problem
from mahalens.geometry.reconstruction.result import POOR, Reconstruction, assess
from mahalens.geometry.reconstruction.spheres import solve_spheres

__all__ = [
    "PUBLISHED_STEPS",
    "STEPS",
    "AdamSearch",
    "NewtonSearch",
    "Problem",
    "Reconstruction",
    "assess",
    "reconstruct",
    "solve_spheres",
]

Method = Literal["auto", "newton", "adam", "closed-form"]


def reconstruct(
    ellipsoids: Ellipsoids,
    distances: Tensor,
    *,
    method: Method = "auto",
    norm: Norm = "l2",
    subset: Sequence[int] | Tensor | None = None,
    start: Tensor | None = None,
    steps: int | None = None,
    lr: float | None = None,
    noise: float | None = None,
    restarts: int = 10,
) -> Reconstruction:
    """Find the points x [N, D] whose distances [N, K] to K ellipsoids are given.

    ===============  =======================================================================
    ``newton``       Levenberg and Marquardt's method, until no step helps; from up to
                     ``restarts`` further places for points whose distances are met poorly
    ``adam``         as in source 002: 10,000 steps (``steps``) at a rate of 1 / K (``lr``)
    ``closed-form``  for spheres
    ``auto``         the closed form for spheres, then ``newton`` from there; else ``newton``
    ===============  =======================================================================

    ``subset`` names the ellipsoids that the distances belong to, where not all were measured.
    ``noise`` is the standard deviation of the distances, if known: the answer says which error
    it leads to, and no point is searched for again because its distances are met within it.
    Fewer distances than inputs leave directions open, which then stay as in ``start`` [N, D];
    :meth:`Reconstruction.describe` says so.

    >>> from mahalens.geometry import SphericalEllipsoids
    >>> means = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> found = reconstruct(SphericalEllipsoids(means, torch.ones(3)), torch.ones(1, 3) * 8**0.5)
    >>> found.x.round(decimals=4)
    tensor([[2., 2.]])
    """
    distances = tensor_of("distances", distances, ellipsoids.means)
    start = tensor_of("start", start, ellipsoids.means)
    problem = Problem.of(ellipsoids, distances, norm=norm, subset=subset)
    if ellipsoids.dtype == torch.float32 and not problem.has_room():
        begin = None if start is None else _checked_start(start, problem).double()
        wide = reconstruct(
            ellipsoids.to(torch.float64),
            distances.double(),
            method=method,
            norm=norm,
            subset=subset,
            start=begin,
            steps=steps,
            lr=lr,
            noise=noise,
            restarts=restarts,
        )
        return replace(wide, x=wide.x.float())
    if method not in ("auto", "newton", "adam", "closed-form"):
        raise InputError(f'method is {method!r}, wanted "auto", "newton", "adam" or "closed-form"')
    if steps is not None:
        require_count("steps", steps)
    for name, value in (("noise", noise), ("lr", lr)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value!r}, wanted a positive number")
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise InputError(f"restarts is {restarts!r}, wanted a whole number of at least 0")
    begin = problem.start() if start is None else _checked_start(start, problem)
    none = torch.zeros(len(problem), dtype=torch.int64)
    spheres = isinstance(problem.ellipsoids, SphericalEllipsoids) and norm == "l2"
    if method == "adam":
        adam = AdamSearch(problem, begin, steps=steps or PUBLISHED_STEPS, lr=lr)
        adam.advance()
        ended = none.bool()
        return assess(
            problem, adam.x, method="adam", steps=none + adam.step, converged=ended, noise=noise
        )
    if method == "closed-form" or (method == "auto" and spheres):
        begin = solve_spheres(problem, begin)
        if method == "closed-form":
            return assess(
                problem, begin, method=method, steps=none, converged=~none.bool(), noise=noise
            )
    found = _search(problem, begin, steps or STEPS, noise, restarts)
    return assess(
        problem,
        found.x,
        method="newton",
        steps=found.taken,
        converged=found.converged,
        noise=noise,
    )


def _search(
    problem: Problem, begin: Tensor, steps: int, noise: float | None, restarts: int
) -> NewtonSearch:
    search = NewtonSearch(problem, begin, steps=steps)
    search.advance()
    residual = _residuals(problem, search.x)
    bound = POOR * problem.targets.double().square().mean(dim=1).sqrt()
    if noise is not None:
        bound = bound + 3 * noise
    for attempt in range(1, restarts + 1):
        poor = (residual > bound).nonzero()[:, 0]
        if not len(poor):
            break
        again = problem.some(poor)
        other = NewtonSearch(again, problem.restart(attempt)[poor], steps=steps)
        other.advance()
        new = _residuals(again, other.x)
        better = new < residual[poor]
        places = poor[better]
        search.x[places] = other.x[better]
        search.taken[places] += other.taken[better]
        search.converged[places] = other.converged[better]
        residual[places] = new[better]
    return search


@torch.no_grad()
def _residuals(problem: Problem, x: Tensor) -> Tensor:
    found = []
    for block in problem.blocks():
        gaps = problem.tangent(x[block]).distances - problem.targets[block]
        found.append(gaps.double().square().mean(dim=1).sqrt())
    return torch.cat(found)


def _checked_start(start: Tensor, problem: Problem) -> Tensor:
    require_tensor("start", start, "[..., N, D]")
    require_same_kind("start", start, "the ellipsoids", problem.ellipsoids.means)
    wanted = (len(problem), problem.dim)
    if tuple(start.shape) != wanted:
        raise InputError(f"start has shape {list(start.shape)}, wanted {list(wanted)}")
    require_finite("start", start)
    return start.detach()
