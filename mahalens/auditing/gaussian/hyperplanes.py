"""The hyperplanes of a linear layer against a point or a Gaussian."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mahalens.auditing._inputs import as_bias, as_gaussian, as_point, as_weight, unit_rows
from mahalens.geometry.gaussian import Gaussian


def distance_to_hyperplanes(weight: Tensor, bias: Tensor, point: Tensor) -> Tensor:
    """How far a point lies from the hyperplane ``w·x + b = 0`` of each unit.

    ``|w·p + b| / ‖w‖``. A unit with w = 0 has no hyperplane: its entry is NaN, to be skipped
    with ``nanmean`` and the like.

    Args:
        weight: rows of the layer [K, D].
        bias: their offsets [K].
        point: the point p [D].

    Returns:
        Distances in input units [K], float64.

    Example:
        >>> weight, bias = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([5.0, 1.0])
        >>> distance_to_hyperplanes(weight, bias, torch.zeros(2))
        tensor([1., nan], dtype=torch.float64)
    """
    rows = as_weight(weight)
    offset = (rows @ as_point(point, rows) + as_bias(bias, rows)).abs()
    _, lengths = unit_rows(rows)
    return _divided(offset, lengths)


def distance_in_spreads(weight: Tensor, bias: Tensor, gaussian: Gaussian) -> Tensor:
    """How far the mean lies from each hyperplane, in spreads of the data along its normal.

    ``|w·μ + b| / √(wᵀΣw)``: the distance divided by the standard deviation of ``w·x / ‖w‖``.
    A unit with w = 0 has no hyperplane: its entry is NaN.

    Args:
        weight: rows of the layer [K, D].
        bias: their offsets [K].
        gaussian: a single Gaussian in D dimensions.

    Returns:
        Distances in standard deviations [K], float64.

    Example:
        >>> covariance = torch.diag(torch.tensor([4.0, 1.0]))
        >>> gaussian = Gaussian.from_covariance(torch.zeros(2), covariance)
        >>> distance_in_spreads(torch.eye(2), torch.ones(2), gaussian)
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    rows = as_weight(weight)
    law = as_gaussian(gaussian, rows.shape[1])
    offset = (rows @ law.mean + as_bias(bias, rows)).abs()
    # wᵀΣw = ‖wᵀL‖² with Σ = LLᵀ: no matrix is squared on the way.
    _, spreads = unit_rows(rows @ law.factor)
    return _divided(offset, spreads)


def sphericity(weight: Tensor, gaussian: Gaussian) -> float:
    """How far the layer is from whitening the Gaussian, up to scale.

    ``‖M / d̄ - I‖_F`` with ``M = WΣWᵀ`` [K, K], the covariance of the layer's outputs, and d̄
    the mean of its diagonal. It is 0 for a whitening and for any multiple or rotation of one. A
    layer with more rows than inputs cannot reach 0, because M then has rank D: that is why
    mirrored ReLU units are deduplicated first. NaN if all rows are zero.

    Args:
        weight: rows of the layer [K, D].
        gaussian: a single Gaussian in D dimensions.

    Example:
        >>> covariance = torch.diag(torch.tensor([4.0, 1.0]))
        >>> gaussian = Gaussian.from_covariance(torch.zeros(2), covariance)
        >>> sphericity(torch.diag(torch.tensor([0.5, 1.0])), gaussian)
        0.0
        >>> round(sphericity(torch.eye(2), gaussian), 4)  # M / d̄ = diag(1.6, 0.4)
        0.8485
    """
    rows = as_weight(weight)
    outputs = rows @ as_gaussian(gaussian, rows.shape[1]).factor  # [K, D], M = outputs outputsᵀ
    largest = outputs.abs().max()
    if largest == 0:
        return math.nan
    outputs = outputs / largest  # the norm below does not depend on the scale
    covariance = outputs @ outputs.T
    scaled = covariance / covariance.diagonal().mean()
    identity = torch.eye(rows.shape[0], dtype=torch.float64)
    return float(torch.linalg.matrix_norm(scaled - identity))


def _divided(offset: Tensor, length: Tensor) -> Tensor:
    """``offset / length``, NaN where there is no length to divide by."""
    return torch.where(length > 0, offset / length, torch.full_like(offset, math.nan))
