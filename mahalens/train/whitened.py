"""Sample-whitened coordinates: the same network, seen where all directions have spread 1."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from mahalens.errors import IllConditionedWarning, InputError, SingularCovarianceError
from mahalens.geometry import Gaussian
from mahalens.train.stack import TrialStack


class WhitenedInputs:
    """Maps a first layer to the inputs ``z = L⁻¹ (x - m)`` and back, m and L from the samples.

    ``W x + b = (W L) z + (W m + b)``: the function is the same, but the badly scaled directions
    of x, which make second-order methods crawl, are gone.
    """

    def __init__(self, x: Tensor) -> None:
        with warnings.catch_warnings():
            # Any invertible map will do as coordinates: a rough one only costs steps.
            warnings.simplefilter("ignore", IllConditionedWarning)
            try:
                self.gaussian = Gaussian.from_data(x)
            except SingularCovarianceError:
                self.gaussian = Gaussian.from_data(x, ridge=1e-3)

    def inputs(self, x: Tensor) -> Tensor:
        """Samples ``[N, D]`` in whitened coordinates."""
        return self.gaussian.whiten(x, kind="cholesky")

    def enter(self, stack: TrialStack) -> TrialStack:
        """The same trials acting on whitened inputs."""
        tensors = self._first(stack)
        weight, bias = tensors["0.weight"], tensors["0.bias"]
        tensors["0.weight"] = weight @ self.gaussian.factor
        tensors["0.bias"] = bias + weight @ self.gaussian.mean
        return TrialStack.from_tensors(stack.chain, tensors)

    def leave(self, stack: TrialStack) -> TrialStack:
        """Trials on whitened inputs, as they act on the original ones."""
        tensors = self._first(stack)
        factor = self.gaussian.factor.expand(len(stack), -1, -1)
        weight = torch.linalg.solve_triangular(factor, tensors["0.weight"], upper=False, left=False)
        tensors["0.weight"] = weight
        tensors["0.bias"] = tensors["0.bias"] - weight @ self.gaussian.mean
        return TrialStack.from_tensors(stack.chain, tensors)

    def _first(self, stack: TrialStack) -> dict[str, Tensor]:
        tensors = stack.tensors()
        if "0.bias" not in tensors:
            raise InputError(f"the chain {stack.chain} has no bias in its first layer to shift")
        return dict(tensors)
