"""The named models of the sources, as chains. Needs no torch until something is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mahalens.nn.chain import Chain

if TYPE_CHECKING:
    from torch import nn

    from mahalens.geometry import Gaussian


def md_abs(dim: int) -> Chain:
    """``MD_Abs`` of source 000: ``√Σ |w·x + b|²`` over D units.

    >>> print(md_abs(3))
    Linear(3), Abs, Norm
    """
    return Chain.parse(f"Linear({dim}), Abs, Norm", inputs=dim)


def md_relu(dim: int) -> Chain:
    """``MD_ReLU`` of source 000: 2D units, so that pairs can stand in for ``Abs``."""
    return Chain.parse(f"Linear({2 * dim}), ReLU, Norm", inputs=dim)


def md_sigmoid(dim: int) -> Chain:
    """``MD_Sigmoid`` of source 000: the baseline without a distance reading."""
    return Chain.parse(f"Linear({2 * dim}), Sigmoid, Norm", inputs=dim)


def mahalanobis_model(gaussian: Gaussian) -> nn.Sequential:
    """``MD_Abs`` with its weights set to the truth: ``W = Λ^(-1/2) Vᵀ``, ``b = -W μ``.

    >>> import torch
    >>> from mahalens.geometry import Gaussian
    >>> gaussian = Gaussian.from_covariance(torch.ones(2), 4 * torch.eye(2))
    >>> mahalanobis_model(gaussian)(torch.tensor([[3.0, 1.0]])).tolist()
    [1.0]
    """
    model = md_abs(gaussian.dim).build(dtype=gaussian.dtype, device=gaussian.device)
    whitening = gaussian.whitening("pca")
    model.load_state_dict({"0.weight": whitening, "0.bias": -(whitening @ gaussian.mean)})
    return model
