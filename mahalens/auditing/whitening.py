"""Reads how far a layer whitens its input: WΣWᵀ against I, and WᵀW against Σ⁻¹."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from mahalens._show import Shown


class WhiteningReading(Shown, msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The whitening of a layer's input, over the deduplicated units."""

    rows: int
    """Rows that the covariance Σ of the layer's input is estimated from."""
    shrinkage: float
    """Weight of the multiple of the identity in the estimate of Σ, 0 to 1."""
    sphericity: float
    """``‖M / d̄ - I‖_F`` of the output's covariance M = WΣWᵀ with mean diagonal d̄."""
    isotropy: float
    """``(tr M)² / (K · tr M²)``, 1/K to 1: 1 for a whitening."""
    precision_error: float | None
    """``min over c of ‖c WᵀW - Σ⁻¹‖_F / ‖Σ⁻¹‖_F``; None where D is too large."""
    precision_scale: float | None
    """The c of that minimum: 1 for whitening by Abs units."""
    precision_cosine: float | None
    """Cosine between WᵀW and Σ⁻¹ as vectors."""
    spectrum: Tensor
    """Eigenvalues of Σ, descending."""
    recovered: Tensor
    """Eigenvalues of the covariance that WᵀW stands for, 1/s², descending; inf where unseen."""
    output_spectrum: Tensor
    """Eigenvalues of M, descending."""
    input_rank: float
    output_rank: float
    """Effective rank, exp of the entropy of the normalised eigenvalues, of Σ and of M."""


FEW_ROWS = 10
"""The covariance is shrunk if there are fewer than this many rows per input."""

VARIES = 1e-12
"""The data vary along a direction if its variance is more than this share of the largest."""


def oas_shrinkage(covariance: Tensor, rows: int) -> float:
    """Return the weight of the multiple of the identity in the OAS estimate of a covariance.

    Oracle approximating shrinkage (Chen, Wiesel, Eldar, Hero 2010), for Gaussian data:
    ``Σ̂ = (1 - ρ) S + ρ m I`` with ``m = tr(S) / D``, ``a = ‖S‖²_F / D²`` and
    ``ρ = min(1, (a + m²) / ((N + 1) (a - m² / D)))``. It is 1 if S is a multiple of the
    identity already, and 0 for a single input or S = 0, where there is nothing to shrink.

    Args:
        covariance: sample covariance S [D, D]; its scale does not matter.
        rows: number N of rows that it comes from.

    Example:
        >>> round(oas_shrinkage(torch.diag(torch.tensor([3.0, 1.0])), rows=25), 6)
        0.5
    """
    scale = float(covariance.abs().max())
    if len(covariance) == 1 or scale == 0:
        return 0.0
    sample = covariance.double() / scale
    mean_square = float(sample.square().mean())
    level = float(sample.diagonal().mean()) ** 2
    uneven = (rows + 1) * (mean_square - level / len(sample))
    return min(1.0, (mean_square + level) / uneven) if uneven > 0 else 1.0


def read_whitening(weight: Tensor, covariance: Tensor, rows: int) -> WhiteningReading:
    """Read how far a layer whitens an input of this covariance, up to scale and rotation.

    Inputs that are constant say nothing about whitening: they are left out, with their columns
    of W. Among the D' that vary, if there are fewer than :data:`FEW_ROWS` · D' rows, Σ is the
    OAS estimate (:func:`oas_shrinkage`). With more rows it is the sample covariance itself: what
    shrinkage adds to the smallest variances would then do more harm than the noise it removes,
    and a layer that whitens the data exactly should be told so. Directions in which the data do
    not vary (variance at most :data:`VARIES` of the largest) are left out too: Σ⁻¹ is the
    inverse on the R directions that remain, and W is projected on them, for no data can tell
    what W does elsewhere. ``spectrum`` and ``recovered`` have R entries.

    - ``M = WΣWᵀ``; sphericity ``‖M / d̄ - I‖_F``, isotropy ``(tr M)² / (K tr M²)``;
    - ``c = <WᵀW, Σ⁻¹> / ‖WᵀW‖²``, error ``‖c WᵀW - Σ⁻¹‖ / ‖Σ⁻¹‖``, and the cosine
      ``<WᵀW, Σ⁻¹> / (‖WᵀW‖ ‖Σ⁻¹‖)``, norms and products over all entries;
    - recovered spectrum ``1 / s²`` of the singular values s of W, infinite where the layer does
      not see a direction;
    - effective rank ``exp(-Σ pᵢ log pᵢ)`` with ``pᵢ = λᵢ / Σ λ`` (Roy & Vetterli 2007).

    If all outputs are constant, sphericity and isotropy are NaN and the output's rank is 0; a W
    of zeros has c = 0, error 1 and cosine 0. If the input is constant, the precision fields are
    None.

    Args:
        weight: rows of the deduplicated layer [K, D], float64, finite.
        covariance: sample covariance of its input [D, D], float64, finite.
        rows: number of rows that the covariance comes from.

    Example:
        >>> covariance = torch.tensor([4.0, 1.0, 0.0]).double().diag()  # the last is constant
        >>> weight = torch.tensor([[0.3, 0.8, 5.0], [0.4, -0.6, 7.0]]).double()
        >>> reading = read_whitening(weight, covariance, rows=1000)
        >>> reading.sphericity < 1e-6, reading.precision_error < 1e-6
        (True, True)
        >>> reading.spectrum, reading.recovered
        (tensor([4., 1.], dtype=torch.float64), tensor([4.0000, 1.0000], dtype=torch.float64))
    """
    variance = covariance.diagonal()
    varying = variance > VARIES * variance.max()
    shrinkage, sample, units = 0.0, covariance[varying][:, varying], weight[:, varying]
    spectrum, dimensions = variance.new_zeros(0), len(sample)
    if dimensions:
        if rows < FEW_ROWS * dimensions:
            shrinkage = oas_shrinkage(sample, rows)
            level = sample.diagonal().mean()
            sample = (1 - shrinkage) * sample
            sample.diagonal().add_(shrinkage * level)
        values, vectors = torch.linalg.eigh(sample)
        seen = values > max(VARIES, dimensions * torch.finfo(torch.float64).eps) * values[-1]
        spectrum, vectors = values[seen].flip(0), vectors[:, seen].flip(1)
        units = units @ vectors  # [K, R]: from here on in the eigenvectors' coordinates

    scale, error, cosine = _against_precision(units, spectrum)
    outputs = units * spectrum.sqrt()  # [K, R], M = outputs outputsᵀ
    # What is asked of M can be had from outputsᵀ outputs as well, which may be much smaller.
    size = float(outputs.abs().max()) if outputs.numel() else 0.0
    outputs = outputs / size if size else outputs
    wide = outputs.shape[0] > outputs.shape[1]
    gram = outputs.T @ outputs if wide else outputs @ outputs.T
    return WhiteningReading(
        rows=rows,
        shrinkage=shrinkage,
        precision_error=error,
        precision_scale=scale,
        precision_cosine=cosine,
        spectrum=spectrum,
        recovered=_recovered(units),
        input_rank=effective_rank(spectrum),
        **_of_output(gram, len(units), size**2),
    )


def output_whitening(covariance: Tensor, rows: int) -> WhiteningReading:
    """Read the covariance M of a layer's outputs alone, where its input is too wide.

    As :func:`read_whitening`, but the fields on the precision are None, the input's effective
    rank is NaN, and ``spectrum`` and ``recovered`` are empty. M is taken as it is: nothing is
    shrunk.

    Args:
        covariance: covariance of the outputs of the deduplicated layer [K, K], float64.
        rows: number of rows that it comes from.

    Example:
        >>> reading = output_whitening(2 * torch.eye(3).double(), rows=100)
        >>> reading.sphericity, reading.isotropy, round(reading.output_rank, 6)
        (0.0, 1.0, 3.0)
    """
    of_output = _of_output(covariance, len(covariance))
    of_output["output_spectrum"] = of_output["output_spectrum"].clamp(min=0)
    nothing = covariance.new_zeros(0)
    return WhiteningReading(
        rows=rows,
        shrinkage=0.0,
        precision_error=None,
        precision_scale=None,
        precision_cosine=None,
        spectrum=nothing,
        recovered=nothing,
        input_rank=math.nan,
        **of_output,
    )


def effective_rank(eigenvalues: Tensor) -> float:
    """Return how many directions share the variance: exp of the entropy of its shares.

    It is n if n eigenvalues are equal and the rest 0; 0 if all are. Negative ones, which only
    rounding makes, count as 0.

    Example:
        >>> effective_rank(torch.tensor([2.0, 2.0, 0.0]))
        2.0
    """
    values = eigenvalues.to(torch.float64).clamp(min=0)
    if values.numel() == 0 or not values.max() > 0:
        return 0.0
    shares = values / values.max()
    return float(torch.special.entr(shares / shares.sum()).sum().exp())


def _against_precision(
    units: Tensor, spectrum: Tensor
) -> tuple[float | None, float | None, float | None]:
    """Return scale, error and cosine of ``units`` [K, R] against the precision.

    In the coordinates of its eigenvectors Σ⁻¹ is diagonal, and nothing needs to be inverted. W and
    Σ are brought to size 1 first, so that no square overflows or vanishes.
    """
    if len(spectrum) == 0:
        return None, None, None
    precision = spectrum[-1] / spectrum  # Σ⁻¹ times its smallest variance
    length = torch.linalg.vector_norm(precision)
    size = units.abs().max()
    if size == 0:
        return 0.0, 1.0, 0.0
    gram = (units / size).T @ (units / size)
    along = gram.diagonal() @ precision
    norm = torch.linalg.matrix_norm(gram)
    factor = along / norm**2
    difference = factor * gram
    difference.diagonal().sub_(precision)
    error = torch.linalg.matrix_norm(difference) / length
    scale = factor / size / size / spectrum[-1]
    return float(scale), float(error), float(along / (norm * length))


def _recovered(units: Tensor) -> Tensor:
    """``1 / s²`` of the singular values of ``units`` [K, R], descending; inf where it is 0."""
    number, directions = units.shape
    recovered = torch.full((directions,), math.inf, dtype=torch.float64)
    if directions:
        singular = torch.linalg.svdvals(units)
        tolerance = max(number, directions) * torch.finfo(torch.float64).eps * singular[0]
        seen = singular[singular > tolerance]
        recovered[directions - len(seen) :] = seen.flip(0) ** -2
    return recovered


def _of_output(gram: Tensor, units: int, scale: float = 1.0) -> dict[str, Any]:
    """Return the fields about the outputs' covariance M [K, K].

    ``scale · gram`` is M itself, or for more units than directions a smaller matrix with the same
    eigenvalues but for zeros.
    """
    spectrum, sphericity, isotropy = gram.new_zeros(units), math.nan, math.nan
    trace = float(gram.diagonal().sum())
    if trace > 0:
        spectrum[: len(gram)] = torch.linalg.eigvalsh(gram).flip(0)
        scaled = gram * (units / trace)  # M / d̄, whose trace is K
        square = float(torch.linalg.matrix_norm(scaled)) ** 2
        isotropy = min(1.0, units / square)
        if len(gram) < units:
            sphericity = math.sqrt(square - units)  # at least 1: no digits are lost
        else:
            scaled.diagonal().sub_(1)
            sphericity = float(torch.linalg.matrix_norm(scaled))
    spectrum = spectrum * scale
    rank = effective_rank(spectrum)
    numbers = {"sphericity": sphericity, "isotropy": isotropy, "output_rank": rank}
    return {**numbers, "output_spectrum": spectrum}
