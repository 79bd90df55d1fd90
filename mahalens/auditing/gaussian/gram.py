"""The Gram reading: what ``WᵀW`` and ``Wc = -b`` say, whatever rotation the layer has learned.

``‖W(x - c)‖² = (x - c)ᵀ WᵀW (x - c)``: a layer that measures the Mahalanobis distance has
``WᵀW = Σ⁻¹`` and meets the mean at c. Rotating or permuting the rows changes neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.auditing._inputs import as_bias, as_gaussian, as_weight
from mahalens.auditing.gaussian.rows import match_directions
from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian


@dataclass(frozen=True)
class GramReading:
    """The Gaussian that a layer measures distances from, beside the true one.

    Attributes:
        precision: ``scale · WᵀW`` [D, D].
        precision_error: ``‖scale · WᵀW - Σ⁻¹‖_F / ‖Σ⁻¹‖_F``.
        eigenvalues: eigenvalues of the covariance, ``1 / (scale · s²)`` with s the singular
            values of W, descending [D]; infinite in directions that the layer does not see.
        eigenvectors: the directions they belong to, as columns [D, D].
        rank: number of directions that the layer sees.
        eigenvalue_error: mean of ``|estimate - λ| / λ``, both in descending order; ``math.inf``
            if the layer does not see all directions.
        cosine: mean |cosine| between the directions that the layer sees and the true
            eigenvectors, matched one-to-one; NaN if it sees none.
        centre: least-squares solution of ``Wc = -b`` [D], the shortest one if there are many.
        centre_error: Mahalanobis distance of the centre from the true mean.
    """

    precision: Tensor
    precision_error: float
    eigenvalues: Tensor
    eigenvectors: Tensor
    rank: int
    eigenvalue_error: float
    cosine: float
    centre: Tensor
    centre_error: float


def read_gram(weight: Tensor, bias: Tensor, gaussian: Gaussian, scale: float = 1.0) -> GramReading:
    """Read precision, eigenstructure and centre off ``WᵀW`` and b.

    Everything comes from one singular value decomposition ``W = U S Vᵀ``, so WᵀW is never
    decomposed itself and small eigenvalues keep their digits. Singular values below
    ``max(K, D) · ε · s_max`` count as 0: the layer does not see those directions, the spread
    that it gives them is infinite, and so is ``eigenvalue_error``. Never raises for a
    rank-deficient W. An error too large for a float is ``math.inf`` too.

    Where singular values repeat, the eigenvectors are arbitrary within their space, and ``cosine``
    with them; ``precision_error`` and ``eigenvalue_error`` are not touched by this.

    Args:
        weight: rows of the layer [K, D].
        bias: their offsets [K].
        gaussian: a single Gaussian in D dimensions.
        scale: factor of WᵀW. 1 if every unit sees all of the space; 1/2 for ReLU units in
            mirrored pairs, each of which sees one half of it.

    Example:
        >>> gaussian = Gaussian.from_covariance(torch.ones(2), torch.diag(torch.tensor([4.0, 1.0])))
        >>> whitening = torch.tensor([[0.3, 0.8], [0.4, -0.6]])  # a rotation of diag(1/2, 1)
        >>> reading = read_gram(whitening, -whitening @ torch.ones(2), gaussian)
        >>> reading.eigenvalues
        tensor([4.0000, 1.0000], dtype=torch.float64)
        >>> reading.precision_error < 1e-6, reading.centre_error < 1e-6
        (True, True)
    """
    rows = as_weight(weight)
    offsets = as_bias(bias, rows)
    law = as_gaussian(gaussian, rows.shape[1])
    if not (scale > 0 and math.isfinite(scale)):
        raise InputError(
            f"scale is {scale}, but a positive number is wanted; "
            "pass 1 for units that see all of the space and 1/2 for ReLU units"
        )
    units, dimensions = rows.shape
    left, singular, right = torch.linalg.svd(rows, full_matrices=True)
    tolerance = max(units, dimensions) * torch.finfo(torch.float64).eps * singular[0]
    rank = int((singular > tolerance).sum())
    left, seen, right_seen = left[:, :rank], singular[:rank], right[:rank]  # right holds Vᵀ

    precision = scale * rows.T @ rows
    true_precision, truth = law.precision, law.spectrum
    difference = torch.linalg.matrix_norm(precision - true_precision)

    eigenvalues = torch.full((dimensions,), math.inf, dtype=torch.float64)
    eigenvalues[:rank] = seen**-2 / scale
    eigenvalues = eigenvalues.flip(0)  # singular values descend, so these ascend before the flip
    relative = (eigenvalues - truth.values).abs() / truth.values
    _, _, cosines = match_directions(right_seen @ truth.vectors)

    centre = -right_seen.T @ ((left.T @ offsets) / seen)
    return GramReading(
        precision=precision,
        precision_error=_error(difference / torch.linalg.matrix_norm(true_precision)),
        eigenvalues=eigenvalues,
        eigenvectors=right.T.flip(1),
        rank=rank,
        eigenvalue_error=_error(relative.mean()),
        cosine=float(cosines.mean()) if rank else math.nan,
        centre=centre,
        centre_error=_error(law.mahalanobis(centre[None])),
    )


def _error(value: Tensor) -> float:
    """The error as a number. The layer is finite, so NaN means inf - inf or 0 · inf: overflow."""
    number = float(value)
    return math.inf if math.isnan(number) else number
