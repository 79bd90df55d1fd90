"""Terms to add to a loss: rows at right angles, units alive and different, compact classes.

The Mahalanobis paper (arXiv 2410.19352) leaves open how to use that a whitening is not unique, and
suggests a penalty for orthogonality. It also describes units that die or whose hyperplane ends up
outside the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry._checks import tensor_of, whole_tensor_of, without_autocast
from mahalens.nn.layers import root

if TYPE_CHECKING:
    from mahalens.nn.head import DistanceHead


def orthogonality_penalty(weight: Tensor, covariance: Tensor | None = None) -> Tensor:
    """Return the mean squared cosine between the rows of a layer: 0 for rows at right angles.

    ``P(W) = mean over i < j of (wᵢᵀ M wⱼ)² / (wᵢᵀ M wᵢ · wⱼᵀ M wⱼ)``, from 0 to 1, whatever the
    lengths of the rows, with M = I or the ``covariance`` of the inputs.

    A layer that has learned the Mahalanobis distance of a Gaussian is some whitening
    ``W = Q Λ^(-1/2) Vᵀ``: every rotation Q gives the same distances, so rows need not be
    eigenvectors. With M = I they must: ``W Wᵀ = Q Λ⁻¹ Qᵀ`` is diagonal only where Q is a
    permutation with signs, if the eigenvalues are distinct. The penalty is 0 at the PCA whitening:
    it moves nothing but Q. With M = Σ it asks for uncorrelated outputs instead, which
    every whitening has: rows that are at right angles in both are eigenvectors of Σ.

    With more rows than inputs not all can be at right angles; the least is then
    ``(K − D) / (D (K − 1))``, which mirrored pairs of orthogonal rows also reach. Rows of zeros
    are at right angles to everything, and get no gradient.

    Args:
        weight: rows of a layer [K, ...]; filters of a convolution are flattened to [K, D].
        covariance: Σ of its inputs [D, D], positive definite.

    >>> orthogonality_penalty(torch.tensor([[3.0, 0.0], [0.0, 2.0]]))
    tensor(0.)
    >>> orthogonality_penalty(torch.tensor([[3.0, 0.0], [2.0, 2.0]]))
    tensor(0.5000)
    """
    rows = _exact("orthogonality_penalty", "the weight of a layer, [K, D]", weight).flatten(1)
    units, inputs = rows.shape
    with without_autocast(rows.device.type):
        if covariance is None:
            gram = rows @ rows.mT
        else:
            covariance = tensor_of("covariance", covariance, rows)
            if tuple(covariance.shape) != (inputs, inputs):
                raise InputError(
                    f"covariance has shape {tuple(covariance.shape)} for rows of {inputs} inputs; "
                    f"give [{inputs}, {inputs}]"
                )
            gram = rows @ covariance.to(rows) @ rows.mT
        cosines = _off_diagonal(_normalised(gram, gram.diagonal()))
        return (cosines.square().sum() / max(1, units * (units - 1))).to(weight.dtype)


def volume_penalty(
    outputs: Tensor,
    *,
    spread: float = 1.0,
    reach: float | None = None,
    ridge: float = 1e-3,
) -> Tensor:
    """Keep the units of a layer different from each other and alive, by their outputs on a batch.

    With means mₖ, standard deviations sₖ and correlations R of the outputs over the batch::

        − log det((1 − ridge) R + ridge I) / K        different: the volume they span
        + mean max(0, 1 − sₖ / spread)²               alive: none becomes a constant
        + mean max(0, |mₖ| / sₖ − reach)²             hyperplanes within the data (if reach)

    det R is the squared volume spanned by the standardised units: 1 where they are uncorrelated,
    0 where one repeats others. It knows nothing of scale, so it cannot be raised by large weights,
    and the second term asks for no more than ``spread``: 1 is what a whitening gives. The third
    is for outputs before the activation, whose hyperplane is then at most ``reach`` spreads from
    the mean: in theory it passes through a prototype, and a ReLU beyond all data gives no
    gradient by which any other term could bring it back. It is what to use against dead units.

    All is 0 for a whitened layer with its hyperplanes through the mean. Mirrored ReLU units are
    opposites before the activation, so apply the penalty to their outputs after it. With more
    units than inputs, or than samples, linear outputs are always dependent; ``ridge`` keeps the
    volume above 0. Units that are constant on the batch have no correlation with others and, after
    an activation, no gradient.

    Args:
        outputs: of K units on a batch [N, K], N at least 2; other axes than the last are samples.
        spread: below which a unit is pulled up.
        reach: how many spreads a hyperplane may be from the mean of the data, None for any.
        ridge: share of the identity in the correlations, between 0 and 1.

    >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    >>> volume_penalty(z, reach=1.0).item() == 0
    True
    >>> volume_penalty(z[:, [0, 0]]).item() > 3  # the same unit twice
    True
    """
    exact = _exact("volume_penalty", "outputs [N, K]", outputs)
    if outputs.numel() < 2 * outputs.shape[-1] or not outputs.shape[-1]:
        raise InputError(
            f"volume_penalty was given outputs of shape {tuple(outputs.shape)}; give [N, K] with "
            "at least 2 samples and 1 unit"
        )
    if not spread > 0:
        raise InputError(f"spread is {spread!r}, wanted a number above 0")
    if reach is not None and not reach >= 0:
        raise InputError(f"reach is {reach!r}, wanted a number of at least 0, or None")
    if not 0 < ridge < 1:
        raise InputError(f"ridge is {ridge!r}, wanted a number between 0 and 1")
    with without_autocast(outputs.device.type):
        return _volume(exact.flatten(0, -2), spread, reach, ridge).to(outputs.dtype)


def _volume(flat: Tensor, spread: float, reach: float | None, ridge: float) -> Tensor:
    """Return the penalty of outputs [N, K] that have been checked."""
    means = flat.mean(0)
    centred = flat - means
    covariance = centred.mT @ centred / len(flat)
    variances = covariance.diagonal()
    correlation = _off_diagonal(_normalised(covariance, variances))
    identity = torch.eye(len(variances), dtype=flat.dtype, device=flat.device)
    # Its diagonal is 1 by definition: units without spread count as uncorrelated.
    _, log_volume = torch.linalg.slogdet(identity + (1 - ridge) * correlation)
    deviations = root(variances)
    total: Tensor = (
        -log_volume / len(variances) + (1 - deviations / spread).clamp(min=0).square().mean()
    )
    if reach is not None:
        constant = deviations == 0
        away = means.abs() / torch.where(constant, torch.ones_like(deviations), deviations)
        total = total + (away - reach).clamp(min=0).square().where(~constant, 0).mean()
    return total


def compactness_penalty(head: DistanceHead, features: Tensor, y: Tensor) -> Tensor:
    """Keep samples near the prototype of their class, which gives distances a meaning.

    ``mean over n of (d_y(x_n)² + log det Σ_y) / 2``: minus the log-density of each sample in its
    own class, up to a constant. Cross-entropy asks only that other classes be farther, and is as
    content with prototypes where no sample ever is; the smallest distance then says nothing about
    what is known. The second part keeps ellipsoids from growing until all is near.

    Args:
        head: the head that is being trained.
        features: its inputs [N, D].
        y: the class of each sample [N].

    >>> from mahalens.nn import DistanceHead
    >>> head, x, y = DistanceHead(1, 1), torch.tensor([[3.0], [5.0]]), torch.tensor([0, 0])
    >>> compactness_penalty(head.fit_prototypes(x, y), x, y).item()  # d² = 1/2, log det = log 2
    0.5965735912322998
    """
    if not hasattr(head, "log_determinants") or not hasattr(head, "distances"):
        raise InputError(
            f"compactness_penalty was given a {type(head).__name__}; give a DistanceHead"
        )
    features = tensor_of("features", features, head.prototypes)
    y = whole_tensor_of("labels", y)
    squares: Tensor = head.distance(head.scaled(features)).square()
    if not isinstance(y, Tensor) or y.shape != squares.shape[:-1] or y.is_floating_point():
        kind = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"type {type(y).__name__}"
        raise InputError(
            f"labels have {kind} for features of shape {tuple(features.shape)}; "
            "give one whole number for each sample"
        )
    if not y.numel():
        raise InputError("compactness_penalty was given no samples; give at least 1")
    both = squares + head.log_determinants
    try:  # looking at the labels themselves would stop torch.compile and vmap
        of_class = both.gather(-1, y.long()[..., None])
    except RuntimeError as error:
        raise InputError(
            f"a label is not one of the classes; labels are from 0 to {head.classes - 1}"
        ) from error
    return of_class.mean() / 2


def _exact(owner: str, wanted: str, values: Tensor) -> Tensor:
    """Return floats with at least 2 axes, in float32 at least, or raise."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{owner} was given {kind}; give a tensor of floats, {wanted}")
    if values.ndim < 2:
        shape = tuple(values.shape)
        raise InputError(f"{owner} was given an array of shape {shape}; give {wanted}")
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _normalised(gram: Tensor, squares: Tensor) -> Tensor:
    """Return inner products divided by the lengths of both rows; rows of length 0 stay 0."""
    lengths = root(squares)
    safe = torch.where(lengths == 0, torch.ones_like(lengths), lengths)
    return gram / safe / safe[:, None]


def _off_diagonal(square: Tensor) -> Tensor:
    return square - torch.diag_embed(square.diagonal())
