"""Points that were found, with how well their distances fit and how well they are determined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.geometry.reconstruction.problem import Problem

POOR = 1e-3
"""A residual above this share of the distances, and of three times the noise if that is known,
looks like a local minimum."""
UNDETERMINED = 1e-6
"""Directions that change the distances this much less than the best one count as open."""


@dataclass(frozen=True, repr=False)
class Reconstruction:
    """What :func:`~mahalens.geometry.reconstruct` gives for N points.

    =================  ========================================================================
    ``x`` [N, D]       the points
    ``residual`` [N]   root mean square of d_k(x) - distance_k
    ``poor`` [N]       whether that is so large that this may be a local minimum, unless the
                       distances are noisy
    ``rank`` [N]       how many of the D directions the distances determine
    ``condition`` [N]  longest over shortest slope among those: 1 is perfect, large is vague
    ``noise`` [N]      standard deviation of the distances: given, or estimated from the residual;
                       NaN where no distances are left to estimate it from
    ``expected_error`` [N]  root mean square of |x - truth| that this noise leads to
    ``steps`` [N]      steps taken
    ``converged`` [N]  whether the search ended where no step helps; always False for Adam
    =================  ========================================================================
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
        """How well point number ``point`` is determined, in a sentence or two."""
        dim, rank = self.x.shape[1], int(self.rank[point])
        fit = f"The distances are met within {float(self.residual[point]):.2g} (root mean square)."
        if bool(self.poor[point]):
            fit += (
                " That is poor unless they are noisy: it may be a local minimum; give a start, "
                "more restarts, or their noise."
            )
        if rank < dim:
            told = (
                f"{self.count} distances determine {rank} of {dim} directions; the other "
                f"{dim - rank} stay near the starting point."
            )
        else:
            told = (
                f"{self.count} distances determine all {dim} directions, condition number "
                f"{float(self.condition[point]):.3g}."
            )
        if not bool(torch.isnan(self.expected_error[point])):
            told += (
                f" Noise of {float(self.noise[point]):.2g} in a distance leads to an error of "
                f"about {float(self.expected_error[point]):.2g} along them."
            )
        elif rank == self.count:
            told += " They are met exactly by others too; their noise cannot be estimated."
        return f"{fit} {told}"

    def __repr__(self) -> str:
        return (
            f"Reconstruction(points={len(self)}, dim={self.x.shape[1]}, distances={self.count}, "
            f"method={self.method!r}, largest residual={float(self.residual.max()):.2g})"
        )


@torch.no_grad()
def assess(
    problem: Problem,
    x: Tensor,
    *,
    method: str,
    steps: Tensor,
    converged: Tensor,
    noise: float | None,
) -> Reconstruction:
    """Look at residuals and slopes where a search has ended."""
    columns: dict[str, list[Tensor]] = {
        name: [] for name in ("residual", "poor", "rank", "condition", "noise", "expected_error")
    }
    for block in problem.blocks():
        tangent = problem.tangent(x[block])
        residual = (tangent.distances - problem.targets[block]).double()
        jacobian = tangent.jacobian().double()
        wide = problem.count < problem.dim
        gram = jacobian @ jacobian.mT if wide else jacobian.mT @ jacobian
        slopes = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(-1)
        open_ = ~(slopes > UNDETERMINED * slopes[:, :1])
        rank = (~open_).sum(dim=1)
        shortest = torch.where(open_, torch.inf, slopes).amin(dim=1)
        spare = problem.count - rank
        squares = residual.square().sum(dim=1)
        if noise is None:
            sigma = torch.where(spare > 0, (squares / spare.clamp(min=1)).sqrt(), torch.nan)
        else:
            sigma = torch.full_like(squares, noise)
        inverse = torch.where(open_, 0.0, 1 / torch.where(open_, 1.0, slopes).square()).sum(dim=1)
        fit = (squares / problem.count).sqrt()
        bound = POOR * problem.targets[block].double().square().mean(dim=1).sqrt()
        columns["residual"].append(fit)
        columns["poor"].append(fit > bound + 3 * (noise or 0.0))
        columns["rank"].append(rank)
        columns["condition"].append(slopes[:, 0] / shortest)
        columns["noise"].append(sigma)
        columns["expected_error"].append(sigma * inverse.sqrt())
    joined = {name: torch.cat(parts) for name, parts in columns.items()}
    return Reconstruction(
        x=x, steps=steps, converged=converged, count=problem.count, method=method, **joined
    )
