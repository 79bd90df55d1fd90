"""Distance to the nearest known samples themselves."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mahalens.detection.base import Detector
from mahalens.detection.known import Known, Wanted, betas_of, root, scaled, square_distances
from mahalens.geometry._checks import require_count


class Neighbours(Detector):
    """Distance to the k-th nearest known sample, of features of length 1; needs no labels.

    ::

        score(z) = ‖z′ − z′_(k)‖        z′ = z / ‖z‖^β

    where z_(k) is the k-th nearest of the remembered samples: all of them, or a random subset of
    at most 50,000 rows or 2²⁵ numbers with as many of each class as possible. The nearest class is
    that of the nearest sample. Scoring costs a product with all remembered samples.

    Sun et al. 2022, *Out-of-Distribution Detection with Deep Nearest Neighbors*: β = 1, k = 50.

    Args:
        k: which neighbour counts; the last one, if fewer are remembered.
        normalise: "unit", "none" or β. "auto" is "unit".

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> detector = Neighbours(k=5, normalise="none").fit_features(z)
    >>> detector.reject_features([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "neighbours"
    needs_labels: bool = False
    beta: Tensor
    rows: Tensor
    places: Tensor

    def __init__(self, *, k: int = 50, normalise: str | float = "unit") -> None:
        require_count("k", k)
        super().__init__(k=k, normalise=normalise)
        self._beta = betas_of(normalise)[-1]

    @property
    def wanted(self) -> Wanted:
        """A sample of the rows."""
        return Wanted(sample=True)

    def settle(self, known: Known) -> None:
        """Remember the normalised rows and their classes."""
        rows = scaled(known.some.z, self._beta)
        beta = torch.tensor(self._beta, dtype=known.dtype, device=known.device)
        self.remember(beta=beta, rows=rows, places=known.some.y.to(known.device))

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the distance to the k-th neighbour, and the class of the nearest."""
        del logits
        squares = square_distances(scaled(z.to(self.rows.dtype), self.beta), self.rows)
        k = min(self.options["k"], len(self.rows))
        nearest, order = squares.topk(k, dim=1, largest=False, sorted=True)
        return root(nearest[:, -1]), self.places[order[:, 0]]

    @property
    def columns(self) -> int:
        """One distance per remembered sample."""
        return len(self.rows)
