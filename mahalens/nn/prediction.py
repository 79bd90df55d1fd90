"""What a head says of samples."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

REJECTED = -1
"""The label of a sample that is too far from every class."""


class Prediction(NamedTuple):
    """What a head says of N samples.

    ``labels`` [N], -1 where rejected; ``nearest`` [N], the class with the largest logit, rejected
    or not, and -1 where no distance is a finite number; ``score`` [N], the smallest distance;
    ``distances`` [N, C].
    """

    labels: Tensor
    nearest: Tensor
    score: Tensor
    distances: Tensor

    @property
    def rejected(self) -> Tensor:
        """Which samples are too far from every class [N], bool."""
        return self.labels == REJECTED
