"""What a search for points is given: ellipsoids, and the distances the points should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry.checks import require_finite, require_same_kind, require_tensor
from mahalens.geometry.ellipsoids import Ellipsoids, Tangent
from mahalens.geometry.ellipsoids.checks import require_norm
from mahalens.geometry.ellipsoids.products import Norm, widest

BLOCK_BYTES = 2**28


@dataclass(frozen=True)
class Problem:
    """Ellipsoids, targets [N, K] and the norm over components."""

    ellipsoids: Ellipsoids
    targets: Tensor
    norm: Norm

    @classmethod
    def of(
        cls,
        ellipsoids: Ellipsoids,
        distances: Tensor,
        *,
        norm: Norm = "l2",
        subset: Sequence[int] | Tensor | None = None,
    ) -> Problem:
        """Check what the user gives; ``subset`` says which ellipsoids the distances belong to."""
        require_norm(norm)
        if subset is not None:
            ellipsoids = ellipsoids[_indices(subset, len(ellipsoids))]
        require_tensor("distances", distances, "[..., N, K]")
        require_same_kind("distances", distances, "the ellipsoids", ellipsoids.means)
        count = len(ellipsoids)
        if distances.ndim != 2 or distances.shape[1] != count:
            which = "ellipsoids" if subset is None else "ellipsoids of the subset"
            raise InputError(
                f"distances have shape {list(distances.shape)}, wanted [N, {count}], one for each "
                f"of the {count} {which}; name those that were measured with subset="
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
        """The distances of x [N, D] and their slopes."""
        return self.ellipsoids.tangent(x, self.norm)

    @torch.no_grad()
    def gradient(self, x: Tensor) -> Tensor:
        """The gradient [N, D] of ``1/2 sum_k (d_k(x) - target_k)^2``."""
        return self.ellipsoids.descend(x, self.targets, self.norm)

    def some(self, which: slice | Tensor) -> Problem:
        """The same for some of the points."""
        return Problem(self.ellipsoids, self.targets[which], self.norm)

    def blocks(self) -> list[slice]:
        """Points in groups whose slopes, [n, K, D] in two dtypes, fit in a bounded memory."""
        each = self.dim * (self.count + self.dim) * 12
        size = max(1, BLOCK_BYTES // each)
        return [slice(i, i + size) for i in range(0, len(self), size)]

    def start(self) -> Tensor:
        """Where to begin when nothing better is known [N, D]: among the nearest means.

        Means count by the inverse square of the distance from them. A small step to one side
        keeps the start off the kinks at the means.
        """
        squares = self.targets.square()
        weights = 1 / (squares + 1e-3 * squares.mean(dim=1, keepdim=True) + 1e-30)
        start = weights / weights.sum(dim=1, keepdim=True) @ self.ellipsoids.means.detach()
        return start + 0.01 * self.scale() * self._noise(0)

    def restart(self, attempt: int) -> Tensor:
        """Other places to begin [N, D]."""
        means = self.ellipsoids.means.detach()
        return means.mean(dim=0) + self.scale() * self._noise(attempt)

    def scale(self) -> Tensor:
        """How far the means lie apart, or a point from a single one [N, 1]."""
        means = self.ellipsoids.means.detach()
        spread = (means - means.mean(dim=0)).square().mean().sqrt()
        if bool(spread > 0):
            return spread.expand(len(self), 1)
        return self.targets.mean(dim=1, keepdim=True).clamp(min=1e-3)

    def _noise(self, attempt: int) -> Tensor:
        generator = torch.Generator().manual_seed(attempt)
        # The same for all points: what is found does not depend on which others are sought.
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
        raise InputError("subset is empty or no list; wanted the numbers of some ellipsoids")
    if int(indices.min()) < -count or int(indices.max()) >= count:
        raise InputError(f"subset names an ellipsoid outside 0 to {count - 1}")
    return indices
