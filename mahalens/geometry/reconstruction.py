"""Points from their distances to ellipsoids: the inverse of :meth:`Ellipsoids.distances`.

:func:`reconstruct` is the call. A :class:`SearchProblem` has the ellipsoids and the distances;
:class:`NewtonSearch`, :class:`AdamSearch` and :func:`solve_spheres` find the points, and
:func:`assess` finds out how well the distances determine them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from mahalens._show import table_html
from mahalens.errors import InputError
from mahalens.geometry._checks import (
    count_of,
    require_finite,
    require_norm,
    require_same_kind,
    require_tensor,
    tensor_of,
    without_autocast,
)
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.kinds import SphericalEllipsoids
from mahalens.geometry.ellipsoids.products import Norm, Tangent, widest

Method = Literal["auto", "newton", "adam", "closed-form"]

_NEWTON_STEPS = 200
_ADAM_STEPS = 10_000
"""The number of steps of the published ellipsoid study."""
_POOR = 1e-3
"""A residual above this share of the distances, and of three times the noise if that is known,
looks like a local minimum."""
_UNDETERMINED = 1e-6
"""Directions that change the distances this much less than the best one count as open."""


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
    """Find the points x [N, D] that have these distances [N, K] to K ellipsoids.

    ===============  =======================================================================
    ``newton``       Levenberg and Marquardt's method, until no step helps; from up to
                     ``restarts`` further places for points with a large residual
    ``adam``         as in the published ellipsoid study: 10,000 steps (``steps``) at a rate
                     of 1 / K (``lr``)
    ``closed-form``  one linear system; for spheres only
    ``auto``         the closed form for spheres, then ``newton`` from there; otherwise
                     ``newton``
    ===============  =======================================================================

    ``subset`` has the numbers of the ellipsoids that the distances belong to, if not all were
    measured. ``noise`` is the standard deviation of the distances, if known: the result then has
    the error it leads to, and points that meet their distances within the noise are not searched
    again. Fewer distances than inputs leave directions open, which stay as in ``start`` [N, D];
    :meth:`Reconstruction.describe` says so.

    >>> from mahalens.geometry import SphericalEllipsoids
    >>> means = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> result = reconstruct(SphericalEllipsoids(means, torch.ones(3)), torch.ones(1, 3) * 8**0.5)
    >>> result.x.round(decimals=4)
    tensor([[2., 2.]])
    """
    distances = tensor_of("distances", distances, ellipsoids.means)
    start = tensor_of("start", start, ellipsoids.means)
    problem = SearchProblem.of(ellipsoids, distances, norm=norm, subset=subset)
    steps, restarts = _checked_options(method, steps, lr, noise, restarts)
    if start is not None:
        start = _checked_start(start, problem)
    with without_autocast(distances.device.type):
        if problem.targets.dtype == torch.float64 or problem.has_room():
            return _reconstruct(problem, start, method, steps, lr, noise, restarts)
        start = None if start is None else start.double()
        result = _reconstruct(problem.double(), start, method, steps, lr, noise, restarts)
        return replace(result, x=result.x.float())


def _checked_options(
    method: str, steps: int | None, lr: float | None, noise: float | None, restarts: int
) -> tuple[int | None, int]:
    """Return the numbers of steps and of restarts."""
    if method not in get_args(Method):
        raise InputError(f'method is {method!r}, wanted "auto", "newton", "adam" or "closed-form"')
    if steps is not None:
        steps = count_of("steps", steps)
    for name, value in (("noise", noise), ("lr", lr)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value!r}, wanted a positive number")
    return steps, count_of("restarts", restarts, least=0)


def _checked_start(start: Tensor, problem: SearchProblem) -> Tensor:
    require_tensor("start", start, "[..., N, D]")
    require_same_kind("start", start, "the ellipsoids", problem.ellipsoids.means)
    shape = [len(problem), problem.dim]
    if list(start.shape) != shape:
        raise InputError(f"start has shape {list(start.shape)}, wanted {shape}")
    require_finite("start", start)
    return start.detach()


def _reconstruct(
    problem: SearchProblem,
    start: Tensor | None,
    method: Method,
    steps: int | None,
    lr: float | None,
    noise: float | None,
    restarts: int,
) -> Reconstruction:
    if start is None:
        start = problem.start()
    no_steps = torch.zeros(len(problem), dtype=torch.int64)
    if method == "adam":
        adam = AdamSearch(problem, start, steps=steps or _ADAM_STEPS, lr=lr)
        adam.advance()
        return assess(problem, adam.x, method, no_steps + adam.step, no_steps.bool(), noise)
    spheres = isinstance(problem.ellipsoids, SphericalEllipsoids) and problem.norm == "l2"
    if method == "closed-form" or (method == "auto" and spheres):
        start = solve_spheres(problem, start)
    if method == "closed-form":
        return assess(problem, start, method, no_steps, ~no_steps.bool(), noise)
    newton = _search_with_restarts(problem, start, steps or _NEWTON_STEPS, noise, restarts)
    return assess(problem, newton.x, "newton", newton.taken, newton.converged, noise)


def _search_with_restarts(
    problem: SearchProblem, start: Tensor, steps: int, noise: float | None, restarts: int
) -> NewtonSearch:
    search = NewtonSearch(problem, start, steps=steps)
    search.advance()
    residuals = _residuals(problem, search.x)
    bounds = problem.bounds(noise)
    for attempt in range(1, restarts + 1):
        poor = (residuals > bounds).nonzero()[:, 0]
        if not len(poor):
            break
        again = problem.some(poor)
        other = NewtonSearch(again, problem.restart(attempt)[poor], steps=steps)
        other.advance()
        new = _residuals(again, other.x)
        better = new < residuals[poor]
        improved = poor[better]
        search.x[improved] = other.x[better]
        search.taken[improved] += other.taken[better]
        search.converged[improved] = other.converged[better]
        residuals[improved] = new[better]
    return search


@torch.no_grad()
def _residuals(problem: SearchProblem, x: Tensor) -> Tensor:
    """Return the root mean square [N] of d_k(x) - target_k."""
    blocks = []
    for block in problem.blocks():
        gaps = problem.tangent(x[block]).distances - problem.targets[block]
        blocks.append(gaps.double().square().mean(dim=1).sqrt())
    return torch.cat(blocks)


@dataclass(frozen=True, repr=False)
class Reconstruction:
    """The N points that :func:`~mahalens.geometry.reconstruct` returns, and how good they are.

    ======================  ===================================================================
    ``x`` [N, D]            the points
    ``residual`` [N]        root mean square of d_k(x) - distance_k
    ``poor`` [N]            True where the residual is so large that this may be a local minimum,
                            unless the distances are noisy
    ``rank`` [N]            number of the D directions that the distances determine
    ``condition`` [N]       longest over shortest slope among those: 1 is perfect, large is vague
    ``noise`` [N]           standard deviation of the distances: passed, or estimated from the
                            residual; NaN where no distances are left to estimate it from
    ``expected_error`` [N]  root mean square of ``|x - truth|`` that this noise leads to
    ``steps`` [N]           steps taken
    ``converged`` [N]       True where the search ended because no step helps; False for Adam
    ======================  ===================================================================
    """

    x: Tensor
    residual: Tensor
    poor: Tensor
    rank: Tensor
    condition: Tensor
    noise: Tensor
    expected_error: Tensor
    steps: Tensor
    converged: Tensor
    count: int
    method: str

    def __len__(self) -> int:
        return len(self.x)

    def describe(self, point: int = 0) -> str:
        """Describe in a few sentences how well point number ``point`` is determined."""
        dim, rank = self.x.shape[1], int(self.rank[point])
        fit = f"The distances are met within {float(self.residual[point]):.2g} (root mean square)."
        if bool(self.poor[point]):
            fit += (
                " That is poor unless they are noisy: it may be a local minimum; give a start, "
                "more restarts, or their noise."
            )
        if rank < dim:
            text = (
                f"{self.count} distances determine {rank} of {dim} directions; the other "
                f"{dim - rank} stay near the starting point."
            )
        else:
            text = (
                f"{self.count} distances determine all {dim} directions, condition number "
                f"{float(self.condition[point]):.3g}."
            )
        if not bool(torch.isnan(self.expected_error[point])):
            text += (
                f" Noise of {float(self.noise[point]):.2g} in a distance leads to an error of "
                f"about {float(self.expected_error[point]):.2g} along them."
            )
        elif rank == self.count:
            text += " They are met exactly by others too; their noise cannot be estimated."
        return f"{fit} {text}"

    def _repr_html_(self) -> str:
        """Return a row for each point: how well it is determined."""
        names = ("residual", "poor", "rank", "condition", "expected_error", "steps", "converged")
        columns = [getattr(self, name).tolist() for name in names]
        rows = [
            (place, *("yes" if v is True else "no" if v is False else v for v in values))
            for place, values in enumerate(zip(*columns, strict=True))
        ]
        heads = ("point", *(name.replace("_", " ") for name in names))
        return table_html(repr(self), heads, rows)

    def __repr__(self) -> str:
        return (
            f"Reconstruction(points={len(self)}, dim={self.x.shape[1]}, distances={self.count}, "
            f"method={self.method!r}, largest residual={float(self.residual.max()):.2g})"
        )


@torch.no_grad()
def assess(
    problem: SearchProblem,
    x: Tensor,
    method: str,
    steps: Tensor,
    converged: Tensor,
    noise: float | None,
) -> Reconstruction:
    """Return the points x [N, D] of a search with their residuals, ranks and expected errors."""
    blocks = [_quality(problem.some(block), x[block], noise) for block in problem.blocks()]
    columns = {name: torch.cat([quality[name] for quality in blocks]) for name in blocks[0]}
    return Reconstruction(
        x=x, steps=steps, converged=converged, count=problem.count, method=method, **columns
    )


def _quality(problem: SearchProblem, x: Tensor, noise: float | None) -> dict[str, Tensor]:
    """Return the columns of a :class:`Reconstruction` that follow from residuals and slopes."""
    tangent = problem.tangent(x)
    jacobian = tangent.jacobian().double()
    wide = problem.count < problem.dim
    gram = jacobian @ jacobian.mT if wide else jacobian.mT @ jacobian
    slopes = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(-1)
    open_ = ~(slopes > _UNDETERMINED * slopes[:, :1])
    rank = (~open_).sum(dim=1)
    shortest = torch.where(open_, torch.inf, slopes).amin(dim=1)
    spare = problem.count - rank
    squares = (tangent.distances - problem.targets).double().square().sum(dim=1)
    if noise is None:
        sigma = torch.where(spare > 0, (squares / spare.clamp(min=1)).sqrt(), torch.nan)
    else:
        sigma = torch.full_like(squares, noise)
    inverse = torch.where(open_, 0.0, 1 / torch.where(open_, 1.0, slopes).square()).sum(dim=1)
    residual = (squares / problem.count).sqrt()
    return {
        "residual": residual,
        "poor": residual > problem.bounds(noise),
        "rank": rank,
        "condition": slopes[:, 0] / shortest,
        "noise": sigma,
        "expected_error": sigma * inverse.sqrt(),
    }


@dataclass(frozen=True)
class SearchProblem:
    """A search for N points: K ellipsoids, the target distances [N, K] and their norm.

    :meth:`of` checks them; use it for data of a user. ``block_bytes`` bounds the memory of slopes.
    """

    ellipsoids: Ellipsoids
    targets: Tensor
    norm: Norm = "l2"
    block_bytes: int = 2**28

    @classmethod
    def of(
        cls,
        ellipsoids: Ellipsoids,
        distances: Tensor,
        *,
        norm: Norm = "l2",
        subset: Sequence[int] | Tensor | None = None,
    ) -> SearchProblem:
        """Check the distances of a user; ``subset`` has the numbers of their ellipsoids."""
        require_norm(norm)
        if subset is not None:
            ellipsoids = ellipsoids[_indices(subset, len(ellipsoids))]
        require_tensor("distances", distances, "[..., N, K]")
        require_same_kind("distances", distances, "the ellipsoids", ellipsoids.means)
        count = len(ellipsoids)
        if distances.ndim != 2 or distances.shape[1] != count:
            owners = "ellipsoids" if subset is None else "ellipsoids of the subset"
            raise InputError(
                f"distances have shape {list(distances.shape)}, wanted [N, {count}], one for each "
                f"of the {count} {owners}; name those that were measured with subset="
            )
        require_finite("distances", distances)
        lowest = distances.detach().min().item()
        if lowest < 0:
            raise InputError(
                f"distances are as small as {lowest:.3g}, wanted at least 0; with much noise, "
                "clamp them at 0"
            )
        return cls(ellipsoids, distances.detach(), norm)

    def has_room(self) -> bool:
        """Return whether the dtype holds the squares of all lengths and targets."""
        largest = float(self.targets.max())
        return self.ellipsoids._has_room() and largest <= widest(self.targets.dtype)

    def double(self) -> SearchProblem:
        """Return the same problem in float64."""
        wide = self.ellipsoids.to(torch.float64)
        return replace(self, ellipsoids=wide, targets=self.targets.double())

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def dim(self) -> int:
        """D, the number of inputs."""
        return self.ellipsoids.dim

    @property
    def count(self) -> int:
        """K, the number of distances of a point."""
        return len(self.ellipsoids)

    @torch.no_grad()
    def tangent(self, x: Tensor) -> Tangent:
        """Return the distances of x [N, D] and their slopes."""
        return self.ellipsoids.tangent(x, self.norm)

    @torch.no_grad()
    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient [N, D] of ``½ Σ_k (d_k(x) - target_k)²``."""
        return self.ellipsoids.descend(x, self.targets, self.norm)

    def some(self, points: slice | Tensor) -> SearchProblem:
        """Return the problem of some of the points."""
        return replace(self, targets=self.targets[points])

    def bounds(self, noise: float | None) -> Tensor:
        """Return the residuals [N] above which a point looks like a local minimum."""
        size = self.targets.double().square().mean(dim=1).sqrt()
        return _POOR * size + 3 * (noise or 0.0)

    def blocks(self) -> list[slice]:
        """Return groups of n points with slopes, [n, K, D] in two dtypes, in a bounded memory."""
        each = self.dim * (self.count + self.dim) * 12
        size = max(1, self.block_bytes // each)
        return [slice(i, i + size) for i in range(0, len(self), size)]

    def start(self) -> Tensor:
        """Return points [N, D] among the nearest means, where a search begins by default.

        Means are weighted by the inverse square of the distance from them. A small step to one
        side keeps the start off the kinks at the means.
        """
        squares = self.targets.square()
        weights = 1 / (squares + 1e-3 * squares.mean(dim=1, keepdim=True) + 1e-30)
        start = weights / weights.sum(dim=1, keepdim=True) @ self.ellipsoids.means.detach()
        return start + 0.01 * self.scale() * self._noise(0)

    def restart(self, attempt: int) -> Tensor:
        """Return other points to begin from [N, D]."""
        means = self.ellipsoids.means.detach()
        return means.mean(dim=0) + self.scale() * self._noise(attempt)

    def scale(self) -> Tensor:
        """Return how far the means lie apart, or the points from a single one [N, 1]."""
        means = self.ellipsoids.means.detach()
        spread = (means - means.mean(dim=0)).square().mean().sqrt()
        if bool(spread > 0):
            return spread.expand(len(self), 1)
        return self.targets.mean(dim=1, keepdim=True).clamp(min=1e-3)

    def _noise(self, attempt: int) -> Tensor:
        generator = torch.Generator().manual_seed(attempt)
        # The same for all points: a result does not depend on which others are searched.
        noise = torch.randn(1, self.dim, generator=generator, dtype=torch.float64)
        return noise.to(self.targets)


def _indices(subset: Sequence[int] | Tensor, count: int) -> Tensor:
    indices = torch.as_tensor(subset)
    if indices.dtype == torch.bool:
        if indices.shape != (count,):
            raise InputError(
                f"subset has shape {list(indices.shape)}, wanted one true or false for each of "
                f"the {count} ellipsoids"
            )
        indices = indices.nonzero()[:, 0]
    if indices.ndim != 1 or not len(indices) or indices.is_floating_point():
        raise InputError("subset is empty or not a list; give the numbers of some ellipsoids")
    if int(indices.min()) < -count or int(indices.max()) >= count:
        raise InputError(f"subset names an ellipsoid outside 0 to {count - 1}")
    return indices


class NewtonSearch:
    """A converging search: minimises ``½ ‖d(x) - target‖²`` for every point.

    A step solves ``(Jᵀ J + damping m I) step = -Jᵀ r`` with the slopes J [K, D], the residuals r
    and m the mean diagonal of Jᵀ J; in K unknowns where there are fewer distances than inputs,
    which leaves open directions as they were at the start. It is taken if it lowers the sum; the
    damping follows from how well the step was predicted.

    Reference: Nielsen, "Damping parameter in Marquardt's method", 1999.
    """

    _largest_damping = 1e12
    _roundings = 2.0  # units of rounding by which a distance is off, about

    def __init__(
        self, problem: SearchProblem, start: Tensor, *, steps: int = _NEWTON_STEPS
    ) -> None:
        self.problem = problem
        self.steps = steps
        self.step = 0
        self.x = start.clone()
        count = len(start)
        self.taken = torch.zeros(count, dtype=torch.int64)
        self.converged = torch.zeros(count, dtype=torch.bool)
        self._active = torch.ones(count, dtype=torch.bool)
        self._damping = torch.full((count,), 1e-3, dtype=torch.float64)
        self._growth = torch.full((count,), 2.0, dtype=torch.float64)
        self._tolerance = 1e-7 if start.dtype == torch.float32 else 1e-13

    @property
    def finished(self) -> bool:
        """Whether all points have converged or all steps are taken."""
        return self.step >= self.steps or not bool(self._active.any())

    @torch.no_grad()
    def advance(self, until: int | None = None) -> None:
        """Search on to step ``until``, or to the end."""
        until = self.steps if until is None else min(until, self.steps)
        while self.step < until and not self.finished:
            self.step += 1
            for block in self.problem.blocks():
                here = torch.arange(len(self.x))[block]
                active = here[self._active[here]]
                if len(active):
                    self._improve(active)

    def _improve(self, points: Tensor) -> None:
        """Take one step for some points; where it fails, shorter ones with the same slopes."""
        problem = self.problem.some(points)
        x = self.x[points]
        tangent = problem.tangent(x)
        residual = (tangent.distances - problem.targets).double()
        cost = residual.square().sum(dim=1) / 2
        jacobian = tangent.jacobian().double()
        system = _System(jacobian, residual)
        off = self._roundings * torch.finfo(x.dtype).eps * problem.targets.double()
        rounding = off.square().sum(dim=1) / 2
        waiting = torch.ones(len(points), dtype=torch.bool)
        while bool(waiting.any()):
            damping = self._damping[points]
            step, predicted = system.solve(damping)
            step[~waiting] = 0
            trial = (x.double() + step).to(x)
            new_cost = _cost(problem.tangent(trial), problem.targets)
            gain = (cost - new_cost) / predicted.clamp(min=1e-300)
            better = waiting & (new_cost < cost) & torch.isfinite(new_cost)
            self.x[points[better]] = trial[better]
            self.taken[points[better]] += 1
            factor = (1 - (2 * gain - 1).clamp(-1, 1) ** 3).clamp(min=1 / 3)
            self._damping[points[better]] = (damping * factor)[better].clamp(min=1e-15)
            self._growth[points[better]] = 2.0
            worse = waiting & ~better
            self._damping[points[worse]] *= self._growth[points[worse]]
            self._growth[points[worse]] *= 2
            length = torch.linalg.vector_norm(step, dim=1)
            reach = torch.linalg.vector_norm(x.double(), dim=1) + 1e-300
            # A step this short, or one predicted to gain less than rounding loses, changes nothing.
            short = (length <= self._tolerance * reach) | (predicted <= rounding)
            arrived = waiting & short
            stuck = worse & (self._damping[points] > self._largest_damping)
            self.converged[points[arrived | stuck]] = True
            self._active[points[arrived | stuck]] = False
            waiting = worse & ~arrived & ~stuck


class _System:
    """The equations of a Newton step, for any damping."""

    def __init__(self, jacobian: Tensor, residual: Tensor) -> None:
        self._jacobian, self._residual = jacobian, residual
        self._wide = jacobian.shape[1] < jacobian.shape[2]
        self._gram = jacobian @ jacobian.mT if self._wide else jacobian.mT @ jacobian
        self._gradient = torch.einsum("nkd,nk->nd", jacobian, residual)
        trace = self._gram.diagonal(dim1=-2, dim2=-1).sum(dim=1)
        self._unit = trace / jacobian.shape[2] + 1e-300

    def solve(self, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Return steps [n, D], and by how much they should lower the cost [n]."""
        added = damping * self._unit
        identity = torch.eye(self._gram.shape[-1], dtype=torch.float64)
        matrix = self._gram + added[:, None, None] * identity
        right = self._residual if self._wide else self._gradient
        factor, failed = torch.linalg.cholesky_ex(matrix)
        solved = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
        step = -torch.einsum("nkd,nk->nd", self._jacobian, solved) if self._wide else -solved
        step[failed > 0] = 0  # more damping will help
        predicted = (step * (added[:, None] * step - self._gradient)).sum(dim=1) / 2
        return step, predicted


def _cost(tangent: Tangent, targets: Tensor) -> Tensor:
    return (tangent.distances - targets).double().square().sum(dim=1) / 2


class AdamSearch:
    """The search of the published ellipsoid study: ``½ Σ_k (d_k(x) - target_k)²`` by Adam.

    Betas are (0.9, 0.999), eps is 1e-8, the learning rate 1 / K by default; the gradient is
    ``Σ_k (d_k - target_k) grad d_k``, without autograd. All points move together, each as if it
    were alone.
    """

    betas = (0.9, 0.999)
    eps = 1e-8

    def __init__(
        self, problem: SearchProblem, start: Tensor, *, steps: int, lr: float | None = None
    ) -> None:
        self.problem = problem
        self.steps = steps
        self.lr = 1 / problem.count if lr is None else lr
        self.step = 0
        self.x = start.clone()
        self._first = torch.zeros_like(start)
        self._second = torch.zeros_like(start)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.steps

    @torch.no_grad()
    def advance(self, until: int | None = None) -> None:
        """Search on to step ``until``, or to the end."""
        until = self.steps if until is None else min(until, self.steps)
        beta1, beta2 = self.betas
        while self.step < until:
            self.step += 1
            gradient = self.problem.gradient(self.x)
            self._first.mul_(beta1).add_(gradient, alpha=1 - beta1)
            self._second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            size = self.lr / (1 - beta1**self.step)
            root = (self._second / (1 - beta2**self.step)).sqrt_().add_(self.eps)
            self.x.addcdiv_(self._first, root, value=-size)

    def state(self) -> dict[str, Tensor]:
        """Return everything that the rest of the search depends on."""
        step = torch.tensor(self.step)
        tensors = {"x": self.x, "first": self._first, "second": self._second}
        return {name: tensor.clone() for name, tensor in tensors.items()} | {"step": step}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""
        self.x, self._first, self._second = (
            state[name].clone() for name in ("x", "first", "second")
        )
        self.step = int(state["step"])


@torch.no_grad()
def solve_spheres(problem: SearchProblem, start: Tensor) -> Tensor:
    """Return the points [N, D] for spheres, from one least-squares problem that all of them share.

    With radii ``q_k = spread_k target_k``, ``‖x - mean_k‖² = q_k²`` less its average over k is::

        2 (mean_k - centre) · x = ‖mean_k‖² - q_k² - average of the same

    Where this leaves directions open (at most D spheres, or means in a plane), they stay as in
    ``start``, except that the average equation then settles how far out the point lies.
    """
    if problem.norm != "l2" or not isinstance(problem.ellipsoids, SphericalEllipsoids):
        raise InputError(
            f'method "closed-form" is for spheres with norm "l2", not for kind '
            f'{problem.ellipsoids.kind!r} with norm {problem.norm!r}; take method="newton"'
        )
    means = problem.ellipsoids.means.detach().double()
    radii = problem.targets.double() * problem.ellipsoids.spreads.detach().double()
    centre = means.mean(dim=0)
    relative = means - centre
    begin = start.double() - centre
    right = relative.square().sum(dim=1) - radii.square()
    right = (right - right.mean(dim=1, keepdim=True)) / 2
    right = right - begin @ relative.T  # for the step from the start
    inverse: Tensor = torch.linalg.pinv(relative, atol=1e-12 * float(means.abs().max()), rtol=1e-10)
    x = begin + right @ inverse.T
    open_share = torch.eye(problem.dim, dtype=torch.float64) - inverse @ relative
    across = x @ open_share.T
    if float(open_share.diagonal().sum()) > 0.5:
        # ‖x - centre‖² is the average of q_k² - ‖mean_k - centre‖²: it fixes the length across.
        length = (radii.square() - relative.square().sum(dim=1)).mean(dim=1)
        wanted = (length - (x - across).square().sum(dim=1)).clamp(min=0).sqrt()
        size = torch.linalg.vector_norm(across, dim=1)
        x = x + across * (wanted / size.clamp(min=1e-300) - 1)[:, None]
    return (x + centre).to(start)
