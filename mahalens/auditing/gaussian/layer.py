"""Every metric of one linear layer, with the conventions that its activation calls for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mahalens.auditing._inputs import as_bias, as_gaussian, as_inputs, as_weight
from mahalens.auditing.gaussian.gram import read_gram
from mahalens.auditing.gaussian.hyperplanes import (
    distance_in_spreads,
    distance_to_hyperplanes,
    sphericity,
)
from mahalens.auditing.gaussian.rows import match_rows, wnorm_precision_distance
from mahalens.auditing.repeats.pairs import deduplicate, mirrored_pairs
from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian

ACTIVATIONS = ("abs", "relu", "sigmoid")
"""Activations that :func:`read_layer` knows how to read."""

LAYER_METRICS = (
    "mirrored_pairs",
    "unique_units",
    "mean_distance",
    "mean_distance_spread",
    "sphericity",
    "row_cosine",
    "row_eigenvalue_error",
    "wnorm_precision_distance",
    "gram_precision_error",
    "gram_eigenvalue_error",
    "gram_cosine",
    "centre_error",
    "dead_units",
)
"""Names of the metrics that :func:`read_layer` gives, in its order."""


def read_layer(
    weight: Tensor,
    bias: Tensor | None,
    gaussian: Gaussian,
    *,
    activation: str,
    inputs: Tensor | None = None,
) -> dict[str, float]:
    """Read one layer ``activation(Wx + b)`` against a Gaussian.

    Sphericity, the row-wise reading and W_norm use the rows of :func:`rows_to_read`; the
    distances to the mean, the Gram reading (scaled by :func:`gram_scale`), pairs and dead units
    use all rows. Distances are averaged over the units that have a hyperplane.

    A dead unit is a ReLU whose argument is at most 0 on all ``inputs``; NaN if there are no
    inputs to tell. The other activations are never constantly 0, so they have none. If a weight
    or bias is not finite, nothing can be read and every metric is NaN.

    Args:
        weight: rows of the layer [K, D].
        bias: their offsets [K]; None for a layer without bias, whose hyperplanes pass through 0.
        gaussian: a single Gaussian in D dimensions.
        activation: one of :data:`ACTIVATIONS`; an analytic whitening is read as "abs".
        inputs: samples that the layer was trained on [N, D].

    Returns:
        One number for each name in :data:`LAYER_METRICS`.

    Example:
        >>> gaussian = Gaussian.from_covariance(torch.ones(2), torch.diag(torch.tensor([4.0, 1.0])))
        >>> whitening = torch.diag(torch.tensor([0.5, 1.0]))
        >>> weight = torch.cat([whitening, -whitening])  # ReLU units in mirrored pairs
        >>> metrics = read_layer(weight, -weight @ torch.ones(2), gaussian, activation="relu")
        >>> metrics["mirrored_pairs"], metrics["unique_units"], metrics["gram_precision_error"]
        (2.0, 2.0, 0.0)
    """
    _check_activation(activation)
    rows = as_weight(weight, finite=False)
    given = rows.new_zeros(len(rows)) if bias is None else bias
    offsets = as_bias(given, rows, finite=False)
    law = as_gaussian(gaussian, rows.shape[1])
    samples = None if inputs is None else as_inputs(inputs, rows)
    if not (rows.isfinite().all() and offsets.isfinite().all()):
        return dict.fromkeys(LAYER_METRICS, math.nan)

    pairs = mirrored_pairs(rows)
    unique = rows_to_read(rows, activation)
    match = match_rows(unique, law)
    gram = read_gram(rows, offsets, law, scale=gram_scale(activation))
    return {
        "mirrored_pairs": float(len(pairs)),
        "unique_units": float(rows.shape[0] - len(pairs)),
        "mean_distance": float(distance_to_hyperplanes(rows, offsets, law.mean).nanmean()),
        "mean_distance_spread": float(distance_in_spreads(rows, offsets, law).nanmean()),
        "sphericity": sphericity(unique, law),
        "row_cosine": match.mean_cosine,
        "row_eigenvalue_error": match.mean_error,
        "wnorm_precision_distance": wnorm_precision_distance(unique, law),
        "gram_precision_error": gram.precision_error,
        "gram_eigenvalue_error": gram.eigenvalue_error,
        "gram_cosine": gram.cosine,
        "centre_error": gram.centre_error,
        "dead_units": _dead_units(rows, offsets, samples, activation),
    }


def rows_to_read(weight: Tensor, activation: str) -> Tensor:
    """The rows whose directions count: for ReLU one of each mirrored pair, otherwise all.

    Args:
        weight: rows of the layer [K, D].
        activation: one of :data:`ACTIVATIONS`.

    Example:
        >>> rows_to_read(torch.tensor([[1.0], [-1.0]]), "relu")
        tensor([[1.]])
    """
    _check_activation(activation)
    if activation != "relu":
        return weight
    return weight[deduplicate(weight, mirrored_pairs(weight)).to(weight.device)]


def gram_scale(activation: str) -> float:
    """The factor c in ``c WᵀW = Σ⁻¹``: 1/2 for ReLU units, each of which sees half the space.

    Example:
        >>> gram_scale("relu"), gram_scale("abs")
        (0.5, 1.0)
    """
    _check_activation(activation)
    return 0.5 if activation == "relu" else 1.0


def _dead_units(rows: Tensor, offsets: Tensor, samples: Tensor | None, activation: str) -> float:
    if activation != "relu":
        return 0.0
    if samples is None:
        return math.nan
    return float((torch.addmm(offsets, samples, rows.T) <= 0).all(dim=0).sum())


def _check_activation(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise InputError(
            f"activation is {activation!r}, but one of {', '.join(ACTIVATIONS)} is wanted"
        )
