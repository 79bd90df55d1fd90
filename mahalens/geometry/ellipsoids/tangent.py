"""Distances with their slopes: what a search for points needs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Tangent(ABC):
    """The distances of N points, and how they change with the points.

    ``distances`` is [N, K]. A slope at 0, where the distance has a kink, is 0.
    """

    distances: Tensor

    @abstractmethod
    def pull(self, weights: Tensor) -> Tensor:
        """Give sum_k weights_nk grad d_k(x_n) [N, D] for weights [N, K]."""

    @abstractmethod
    def jacobian(self) -> Tensor:
        """Give grad d_k(x_n) for every n and k: [N, K, D]."""


def inverse(distances: Tensor) -> Tensor:
    """1 / d, and 0 at 0: the slope at the kink."""
    return torch.where(distances > 0, 1 / torch.where(distances > 0, distances, 1.0), 0.0)
