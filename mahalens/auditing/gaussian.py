"""Reads one linear layer against a Gaussian that is known: what rulers has it learned?

:func:`read_layer` gives every metric at once, with the conventions of the layer's activation.

**Hyperplanes.** :func:`distance_to_hyperplanes`, :func:`distance_in_spreads`, :func:`sphericity`.

**The row-wise reading** takes each weight row for one eigenvector of the covariance. The theory
writes the Mahalanobis distance as ``‖Λ^(-1/2) Vᵀ (x - μ)‖``: row i points along the eigenvector vᵢ
and has length ``λᵢ^(-1/2)``. But any rotation of those rows gives the same distance, so a network
that has learned the distance perfectly need not show the eigenvectors. :func:`match_rows` measures
the agreement, :func:`chance_cosine` the agreement that a random rotation gives.

**The Gram reading** does not depend on the rotation. ``‖W(x - c)‖² = (x - c)ᵀ WᵀW (x - c)``: a
layer that measures the Mahalanobis distance has ``WᵀW = Σ⁻¹`` and meets the mean at c, where
``Wc = -b``. :func:`read_gram` reads both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mahalens._show import Shown
from mahalens.auditing.pairs import deduplicate, mirrored_pairs, unit_rows
from mahalens.errors import InputError
from mahalens.geometry._checks import as_bias, as_weight, in_float64
from mahalens.geometry.gaussian import Gaussian


def distance_to_hyperplanes(weight: Tensor, bias: Tensor, point: Tensor) -> Tensor:
    """Return how far a point lies from the hyperplane ``w·x + b = 0`` of each unit.

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
    offset = (rows @ _as_point(point, rows) + as_bias(bias, rows)).abs()
    _, lengths = unit_rows(rows)
    return _divided(offset, lengths)


def distance_in_spreads(weight: Tensor, bias: Tensor, gaussian: Gaussian) -> Tensor:
    """Return how far the mean lies from each hyperplane, in spreads of the data along its normal.

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
    law = _as_gaussian(gaussian, rows.shape[1])
    offset = (rows @ law.mean + as_bias(bias, rows)).abs()
    # wᵀΣw = ‖wᵀL‖² with Σ = LLᵀ: no matrix is squared on the way.
    _, spreads = unit_rows(rows @ law.factor)
    return _divided(offset, spreads)


def sphericity(weight: Tensor, gaussian: Gaussian) -> float:
    """Return how far the layer is from whitening the Gaussian, up to scale.

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
    outputs = rows @ _as_gaussian(gaussian, rows.shape[1]).factor  # [K, D], M = outputs outputsᵀ
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


@dataclass(frozen=True, repr=False)
class RowMatch(Shown):
    """Weight rows matched to eigenvectors, in the order of the eigenvectors.

    Attributes:
        rows: the row matched to each eigenvector [D], -1 where none is.
        cosines: ``|cosine|`` between the two [D], NaN where unmatched.
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
    """Mean matched ``|cosine|`` of randomly rotated whitenings: its mean and 95 % range.

    ``mean``, and ``low`` to ``high``, between which 95 % of the rotations lie. Made by
    :func:`chance_cosine`; a layer's own cosine means something only above ``high``.
    """

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
    truth = _as_gaussian(gaussian, rows.shape[1]).spectrum
    unit, lengths = unit_rows(rows)
    directed = torch.nonzero(lengths > 0).squeeze(1)
    row, vector, cosine = _match_directions(unit[directed] @ truth.vectors)
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
    """Return what :func:`match_rows` gives for whitenings that are rotated at random.

    Each draw takes ``W = QΛ^(-1/2)Vᵀ`` with Q uniform (Haar) over the orthogonal matrices. It
    whitens as well as the PCA whitening ``Λ^(-1/2)Vᵀ`` does, so the mean matched ``|cosine|`` that
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
        raise InputError(f"draws is {draws}; give at least one random rotation")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    deviations = _as_gaussian(gaussian).eigenvalues.sqrt()
    means = torch.empty(draws, dtype=torch.float64)
    for draw in range(draws):
        # In the basis of the eigenvectors the rotated whitening is QΛ^(-1/2).
        rows = random_rotation(deviations.shape[0], generator) / deviations
        unit, _ = unit_rows(rows)
        _, _, cosine = _match_directions(unit)
        means[draw] = cosine.mean()
    ends = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return ChanceCosine(mean=float(means.mean()), low=ends[0], high=ends[1])


def wnorm_precision_distance(weight: Tensor, gaussian: Gaussian) -> float:
    """Return the distance of unit rows to the precision: ``‖W_normᵀ W_norm - Σ⁻¹‖_F``.

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
    law = _as_gaussian(gaussian, rows.shape[1])
    unit, _ = unit_rows(rows)
    return float(torch.linalg.matrix_norm(unit.T @ unit - law.precision))


def _match_directions(cosine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Match rows and columns one-to-one with the largest sum of ``|cosine|``.

    Args:
        cosine: cosines between two sets of directions [A, B].

    Returns:
        Row indices, column indices and ``|cosine|`` of the matched, each [min(A, B)].
    """
    size = cosine.abs()
    first, second = linear_sum_assignment(size.numpy(), maximize=True)
    row, column = torch.from_numpy(first), torch.from_numpy(second)
    # Rounding may take the cosine of equal directions past 1.
    return row, column, size[row, column].clamp(max=1.0)


def random_rotation(dimensions: int, generator: torch.Generator) -> Tensor:
    """Draw an orthogonal matrix [D, D] from the Haar distribution, float64 on the CPU.

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


@dataclass(frozen=True, repr=False)
class GramReading(Shown):
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
        cosine: mean ``|cosine|`` between the directions that the layer sees and the true
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
    law = _as_gaussian(gaussian, rows.shape[1])
    if not (scale > 0 and math.isfinite(scale)):
        raise InputError(
            f"scale is {scale}; give a positive number: "
            "1 for units that see all of the space and 1/2 for ReLU units"
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
    _, _, cosines = _match_directions(right_seen @ truth.vectors)

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
    """Return an error as a number; NaN, which is inf - inf or 0 · inf here, is an overflow."""
    number = float(value)
    return math.inf if math.isnan(number) else number


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
    bias = rows.new_zeros(len(rows)) if bias is None else bias
    offsets = as_bias(bias, rows, finite=False)
    law = _as_gaussian(gaussian, rows.shape[1])
    samples = None if inputs is None else _as_inputs(inputs, rows)
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
    """Return the rows whose directions count: for ReLU one of each mirrored pair, otherwise all.

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
    """Return the factor c in ``c WᵀW = Σ⁻¹``: 1/2 for ReLU units, which see half the space each.

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
        raise InputError(f"activation is {activation!r}; give one of {', '.join(ACTIVATIONS)}")


def _as_point(point: Tensor, weight: Tensor) -> Tensor:
    """Return a point [D] of the input space of ``weight`` [K, D] as float64 on the CPU."""
    if point.shape != (weight.shape[1],):
        raise InputError(
            f"point has shape {list(point.shape)}, but the weight {list(weight.shape)} wants "
            f"[{weight.shape[1]}]; pass one point of the layer's input space"
        )
    return in_float64(point, "point")


def _as_inputs(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return samples [N, D] of the input space of ``weight`` [K, D] as float64 on the CPU."""
    if inputs.dim() != 2 or inputs.shape[0] == 0 or inputs.shape[1] != weight.shape[1]:
        raise InputError(
            f"inputs have shape {list(inputs.shape)}, but the weight {list(weight.shape)} wants "
            f"[N, {weight.shape[1]}] with N >= 1; pass the samples that the layer is fed"
        )
    return in_float64(inputs, "inputs")


def _as_gaussian(gaussian: Gaussian, columns: int | None = None) -> Gaussian:
    """Return one Gaussian in float64 on the CPU, in ``columns`` dimensions if that is given.

    A Gaussian that is already so is returned as it is.
    """
    if gaussian.batch_shape:
        raise InputError(
            f"the Gaussian is a batch {list(gaussian.batch_shape)}; "
            "read the members of the batch one at a time"
        )
    if columns is not None and gaussian.dim != columns:
        raise InputError(
            f"the Gaussian has {gaussian.dim} dimensions and the weight {columns} columns; "
            "pass the Gaussian of the layer's inputs"
        )
    mean, factor = gaussian.mean, gaussian.factor
    plain = not (mean.requires_grad or factor.requires_grad)
    if plain and gaussian.dtype == torch.float64 and gaussian.device.type == "cpu":
        return gaussian
    return Gaussian(mean.detach(), factor.detach()).to(torch.float64, "cpu")
