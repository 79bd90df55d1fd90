"""Sample-whitened coordinates: the same network, seen where all directions have spread 1."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from mahalens.errors import IllConditionedWarning, InputError, SingularCovarianceError
from mahalens.geometry import Gaussian
from mahalens.nn.chain import Chain
from mahalens.train.stack import TrialStack


class WhitenedInputs:
    """Maps a first layer to the inputs ``z = L⁻¹ (x - m)`` and back, m and L from the samples.

    ``W x + b = (W L) z + (W m + b)``: the function is the same, but the badly scaled directions
    of x, which make second-order methods crawl, are gone. A layer without bias cannot be shifted:
    then m is 0 and ``L Lᵀ`` the second moment about 0 (``centred=False``).
    """

    def __init__(self, x: Tensor, *, centred: bool = True) -> None:
        self.centred = centred
        with warnings.catch_warnings():
            # Any invertible map will do as coordinates: a rough one only costs steps.
            warnings.simplefilter("ignore", IllConditionedWarning)
            try:
                self.gaussian = self._spread(x, 0.0)
            except SingularCovarianceError:
                self.gaussian = self._spread(x, 1e-3)

    def _spread(self, x: Tensor, ridge: float) -> Gaussian:
        if self.centred:
            return Gaussian.from_data(x, ridge=ridge)
        moment = x.T @ x / len(x)
        moment += ridge * moment.diagonal().mean() * torch.eye(len(moment)).to(moment)
        return Gaussian.from_covariance(x.new_zeros(x.shape[1]), moment)

    @staticmethod
    def fit(chain: Chain) -> bool:
        """Whether a chain begins with the ``Linear`` that this needs."""
        return chain.layers[0].kind == "Linear"

    def inputs(self, x: Tensor) -> Tensor:
        """Samples ``[N, D]`` in whitened coordinates."""
        return self.gaussian.whiten(x, kind="cholesky")

    def enter(self, stack: TrialStack) -> TrialStack:
        """The same trials acting on whitened inputs."""
        tensors = self._first(stack)
        weight = tensors["0.weight"]
        tensors["0.weight"] = weight @ self.gaussian.factor
        if self.centred:
            tensors["0.bias"] = tensors["0.bias"] + weight @ self.gaussian.mean
        return TrialStack.from_tensors(stack.chain, tensors)

    def leave(self, stack: TrialStack) -> TrialStack:
        """Trials on whitened inputs, as they act on the original ones."""
        tensors = self._first(stack)
        factor = self.gaussian.factor.expand(len(stack), -1, -1)
        weight = torch.linalg.solve_triangular(factor, tensors["0.weight"], upper=False, left=False)
        tensors["0.weight"] = weight
        if self.centred:
            tensors["0.bias"] = tensors["0.bias"] - weight @ self.gaussian.mean
        return TrialStack.from_tensors(stack.chain, tensors)

    def _first(self, stack: TrialStack) -> dict[str, Tensor]:
        tensors = stack.tensors()
        if self.centred and "0.bias" not in tensors:
            raise InputError(f"the chain {stack.chain} has no bias in its first layer to shift")
        return dict(tensors)
