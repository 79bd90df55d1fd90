"""The row-wise reading: each weight row taken for one eigenvector of the covariance.

The theory writes the Mahalanobis distance as ``‖Λ^(-1/2) Vᵀ (x - μ)‖``: row i points along the
eigenvector vᵢ and has length ``λᵢ^(-1/2)``. But any rotation of those rows gives the same
distance, so a network that has learned the distance perfectly need not show the eigenvectors.
:func:`chance_cosine` says what agreement a random rotation gives;
:func:`mahalens.auditing.read_gram` reads what does not depend on the rotation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mahalens.auditing._inputs import as_gaussian, as_weight, unit_rows
from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian


@dataclass(frozen=True)
class RowMatch:
    """Weight rows matched to eigenvectors, in the order of the eigenvectors.

    Attributes:
        rows: the row matched to each eigenvector [D], -1 where none is.
        cosines: |cosine| between the two [D], NaN where unmatched.
        eigenvalues: the estimates ``1 / ‖wᵢ‖²`` [D], NaN where unmatched.
        errors: their relative errors ``|1 / ‖wᵢ‖² - λ| / λ`` [D], NaN where unmatched.
        mean_cosine: mean over the matched eigenvectors, NaN if there is none.
        mean_error: mean over the matched eigenvectors, NaN if there is none.
    """

    rows: Tensor
    cosines: Tensor
    eigenvalues: Tensor
    errors: Tensor
    mean_cosine: float
    mean_error: float


@dataclass(frozen=True)
class ChanceCosine:
    """Mean matched |cosine| of randomly rotated whitenings: its mean and 95 % range."""

    mean: float
    low: float
    high: float


def match_rows(weight: Tensor, gaussian: Gaussian) -> RowMatch:
    """Match the rows of a layer one-to-one to the eigenvectors of the covariance.

    The matching maximises the sum of ``|cos(wᵢ, vⱼ)|``. With K != D only ``min(K, D)`` of them
    are matched; rows of zeros have no direction and stay out. Where eigenvalues repeat, their
    eigenvectors, and so the cosines, are arbitrary within the eigenspace.

    Args:
        weight: rows of the layer [K, D].
        gaussian: a single Gaussian in D dimensions.

    Example:
        >>> covariance = torch.diag(torch.tensor([4.0, 1.0]))
        >>> gaussian = Gaussian.from_covariance(torch.zeros(2), covariance)
        >>> match = match_rows(torch.tensor([[0.0, -1.0], [0.5, 0.0]]), gaussian)
        >>> match.rows, match.mean_cosine
        (tensor([1, 0]), 1.0)
        >>> match.eigenvalues
        tensor([4., 1.], dtype=torch.float64)
    """
    rows = as_weight(weight)
    truth = as_gaussian(gaussian, rows.shape[1]).spectrum
    unit, lengths = unit_rows(rows)
    directed = torch.nonzero(lengths > 0).squeeze(1)
    row, vector, cosine = match_directions(unit[directed] @ truth.vectors)
    row = directed[row]

    dimensions = rows.shape[1]
    matched = torch.full((dimensions,), -1, dtype=torch.int64)
    cosines = torch.full((dimensions,), math.nan, dtype=torch.float64)
    eigenvalues = cosines.clone()
    matched[vector] = row
    cosines[vector] = cosine
    eigenvalues[vector] = lengths[row] ** -2
    errors = (eigenvalues - truth.values).abs() / truth.values
    return RowMatch(
        rows=matched,
        cosines=cosines,
        eigenvalues=eigenvalues,
        errors=errors,
        mean_cosine=float(cosines.nanmean()),
        mean_error=float(errors.nanmean()),
    )


def chance_cosine(
    gaussian: Gaussian, draws: int = 200, generator: torch.Generator | None = None
) -> ChanceCosine:
    """What the row-wise reading gives for a whitening that knows nothing of the eigenvectors.

    Each draw takes ``W = QΛ^(-1/2)Vᵀ`` with Q uniform (Haar) over the orthogonal matrices. It
    whitens as well as the PCA whitening ``Λ^(-1/2)Vᵀ`` does, so the mean matched |cosine| that
    :func:`match_rows` finds for it is the null against which "the rows are the eigenvectors" has
    to be judged. It depends on the eigenvalues alone, and is far above 0 in few dimensions.

    Args:
        gaussian: a single Gaussian in D dimensions.
        draws: random rotations to take.
        generator: source of randomness; by default one with a fixed seed, so that the answer is
            always the same and the global random state is not touched.

    Returns:
        The mean over the draws and the range from their 2.5 % to their 97.5 % quantile.

    Example:
        >>> gaussian = Gaussian.from_covariance(torch.zeros(2), torch.eye(2))
        >>> chance = chance_cosine(gaussian)
        >>> 0.7 < chance.low < chance.mean < chance.high <= 1
        True
    """
    if draws < 1:
        raise InputError(f"draws is {draws}, but at least one random rotation is wanted")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    deviations = as_gaussian(gaussian).eigenvalues.sqrt()
    means = torch.empty(draws, dtype=torch.float64)
    for draw in range(draws):
        # In the basis of the eigenvectors the rotated whitening is QΛ^(-1/2).
        rows = random_rotation(deviations.shape[0], generator) / deviations
        unit, _ = unit_rows(rows)
        _, _, cosine = match_directions(unit)
        means[draw] = cosine.mean()
    ends = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return ChanceCosine(mean=float(means.mean()), low=ends[0], high=ends[1])


def wnorm_precision_distance(weight: Tensor, gaussian: Gaussian) -> float:
    """Unit rows against the precision: ``‖W_normᵀ W_norm - Σ⁻¹‖_F``.

    W_norm has the rows of W at unit length; rows of zeros contribute nothing. The norm is
    absolute, as the published study computes it. Normalising throws the eigenvalues away: the
    true PCA whitening has orthonormal rows after it and scores ``‖I - Σ⁻¹‖_F``, so 0 is out of
    reach except for Σ = I. For the comparison that a perfect layer wins, see
    :func:`mahalens.auditing.read_gram`.

    Args:
        weight: rows of the layer [K, D].
        gaussian: a single Gaussian in D dimensions.

    Example:
        >>> covariance = torch.diag(torch.tensor([0.5, 1.0]))
        >>> gaussian = Gaussian.from_covariance(torch.zeros(2), covariance)
        >>> round(wnorm_precision_distance(torch.eye(2), gaussian), 6)
        1.0
    """
    rows = as_weight(weight)
    law = as_gaussian(gaussian, rows.shape[1])
    unit, _ = unit_rows(rows)
    return float(torch.linalg.matrix_norm(unit.T @ unit - law.precision))


def match_directions(cosine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The one-to-one matching of rows and columns with the largest sum of |cosine|.

    Args:
        cosine: cosines between two sets of directions [A, B].

    Returns:
        Row indices, column indices and |cosine| of the matched, each [min(A, B)].
    """
    size = cosine.abs()
    first, second = linear_sum_assignment(size.numpy(), maximize=True)
    row, column = torch.from_numpy(first), torch.from_numpy(second)
    # Rounding may take the cosine of equal directions past 1.
    return row, column, size[row, column].clamp(max=1.0)


def random_rotation(dimensions: int, generator: torch.Generator) -> Tensor:
    """An orthogonal matrix [D, D] from the Haar distribution, float64 on the CPU.

    QR of a matrix of standard normals, with the signs of R's diagonal made positive: without
    that, Q depends on the conventions of the QR routine and is not uniform.

    Reference:
        F. Mezzadri, How to generate random matrices from the classical compact groups,
        Notices of the AMS 54 (2007).
    """
    normal = torch.randn(
        dimensions, dimensions, generator=generator, device=generator.device, dtype=torch.float64
    )
    q, r = torch.linalg.qr(normal.cpu())
    signs = torch.where(r.diagonal() < 0, -1.0, 1.0).to(torch.float64)
    rotation: Tensor = q * signs
    return rotation
