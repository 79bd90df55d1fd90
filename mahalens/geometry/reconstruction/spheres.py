"""The closed form for spheres: differences of squared distances are linear in the point."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.ellipsoids import SphericalEllipsoids
from mahalens.geometry.reconstruction.problem import Problem


@torch.no_grad()
def solve_spheres(problem: Problem, start: Tensor) -> Tensor:
    """Give the points [N, D] from one least-squares problem that all of them share.

    With radii ``q_k = spread_k target_k``, ``|x - mean_k|^2 = q_k^2`` less its average over k is::

        2 (mean_k - centre) . x = |mean_k|^2 - q_k^2 - average of the same

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
    found = begin + right @ inverse.T
    open_share = torch.eye(problem.dim, dtype=torch.float64) - inverse @ relative
    across = found @ open_share.T
    if float(open_share.diagonal().sum()) > 0.5:
        # |x - centre|^2 is the average of q_k^2 - |mean_k - centre|^2: it fixes the length across.
        length = (radii.square() - relative.square().sum(dim=1)).mean(dim=1)
        wanted = (length - (found - across).square().sum(dim=1)).clamp(min=0).sqrt()
        size = torch.linalg.vector_norm(across, dim=1)
        found = found + across * (wanted / size.clamp(min=1e-300) - 1)[:, None]
    return (found + centre).to(start)
