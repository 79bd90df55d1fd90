"""What an audit found in one layer, by question asked.

K units, C classes (or clusters), Q quantile levels, B bins, P prototypes per unit. *Rows* are
what a layer is fed: one per sample for a Linear, one per sample and position for a convolution
(its patches) or a sequence. All tensors are on the CPU. A unit's pre-activation is
``z = w·x + b``, with a batch norm that stands between the layer and its activation folded into
w and b.
"""

from __future__ import annotations

import msgspec
from torch import Tensor


class UnitReading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """How each unit responds, over all rows; quantiles over the kept ones."""

    dead: tuple[int, ...]
    """Never active: ``|activation|`` at most ``tolerance`` of the layer's spread on every row, and
    too small to matter to the layer that reads it, where one is known."""
    rare: dict[str, tuple[int, ...]]
    """By threshold (``"0.05"``): active on a smaller share of the rows; dead ones included."""
    always: tuple[int, ...]
    """Active on every row."""
    saturated: tuple[int, ...]
    """Constant or at the flat end of the activation on nearly all rows, and not dead."""
    active: Tensor
    """Share of the rows on which the unit is active [K]."""
    flat: Tensor
    """Share of the rows at a flat end of the activation [K]; 0 where it has none but zero."""
    mean: Tensor
    std: Tensor
    skewness: Tensor
    least: Tensor
    greatest: Tensor
    """Moments and range of z [K]."""
    quantiles: Tensor
    """Of z [K, Q]."""
    class_active: Tensor | None = None
    class_mean: Tensor | None = None
    class_std: Tensor | None = None
    class_skewness: Tensor | None = None
    """The same within each class [C, K]."""
    class_quantiles: Tensor | None = None
    """[C, K, Q]; absent where classes x units x bins would be too many."""
    silent_share: float = 0.0
    """Share of the rows on which no unit of the layer is active."""
    silent_samples: tuple[int, ...] = ()
    """The first few samples with such a row."""
    silent_by_class: Tensor | None = None
    """Share of the rows of each class on which no unit is active [C]."""


class HyperplaneReading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Where the hyperplanes ``z = 0`` lie in the data. Distances are signed: + where z > 0."""

    length: Tensor
    """‖w‖ [K]."""
    mean_distance: Tensor
    """Of the mean of all rows, in input units: ``mean(z) / ‖w‖`` [K]; NaN where w = 0."""
    mean_spreads: Tensor
    """The same in spreads of all rows along the normal: ``mean(z) / std(z)`` [K]."""
    class_distance: Tensor | None = None
    """Of the mean of each class, in input units [C, K]."""
    class_spreads: Tensor | None = None
    """The same in spreads of that class along the normal [C, K]."""
    nearest: Tensor | None = None
    """The class whose mean is the fewest of its spreads away [K], int64; -1 if there is none."""
    through: Tensor
    """Whether the hyperplane passes through a class: is near one, but not more than half, of the
    classes; without classes, whether it passes through the data's mean [K]."""
    chance: Tensor
    """How often it would if it were moved along its normal to the row of a random sample, where
    it would not be common [K]; NaN if it would be everywhere."""
    positive: Tensor
    """Share of the rows with z > tolerance · spread [K]; the rest is on the other side or on the
    plane."""
    common: Tensor | None = None
    """Whether it is near more than half of the classes at once, and so through none of them [K]."""


class PairReading(msgspec.Struct, frozen=True, kw_only=True):
    """Units that repeat one another. Each list holds pairs (i, j) with i < j."""

    mirrored: tuple[tuple[int, int], ...]
    """Opposite directions, the most opposite first; a unit pairs once."""
    duplicate: tuple[tuple[int, int], ...]
    """Same direction and same hyperplane: w and b equal up to a positive factor."""
    parallel: tuple[tuple[int, int], ...]
    """Same or opposite direction, other hyperplane, the most parallel first."""
    kept: tuple[int, ...]
    """The deduplicated layer: one unit of each mirrored pair and of each set of duplicates."""
    parallel_left_out: int = 0
    """Parallel pairs beyond those listed."""


class WhiteningReading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Whether the layer whitens its input; over the deduplicated units."""

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


class PrototypeReading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The inputs that explain each unit under both readings, best first."""

    near_sample: Tensor
    near_position: Tensor
    near_distance: Tensor
    """Rows nearest the zero set: sample, position and |z| / ‖w‖ [K, P]; -1 where there are none."""
    active_sample: Tensor
    active_position: Tensor
    active_value: Tensor
    """Rows with the largest activation: sample, position and activation [K, P]."""


class HistogramReading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Histograms of z over the kept rows, by class, for chosen units."""

    units: tuple[int, ...]
    edges: Tensor
    """[U, B + 1]."""
    counts: Tensor
    """[U, C, B], whole numbers; C is 1 without classes."""
    overlap: Tensor
    """Share that the histogram of each class has in common with all others' [U, C]."""


class PerturbationReading(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy with this layer's activations perturbed; see the perturbation study."""

    baseline: float
    scale: dict[str, float]
    clip: dict[str, float]
    offset: dict[str, float]
    """Accuracy 0 to 1 by level, such as ``"-0.1"`` for an offset of -10 %."""
    index: float | None
    """From -1, relies on intensities only, to 1, on distances only; None if nothing is lost."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of layer this is, and the numbers that say so."""

    word: str
    """``distance-like``, ``intensity-like``, ``mixed``, ``even``, ``too few units``,
    ``not judged`` or ``broken``."""
    score: float | None
    """-1 to 1: how much more often hyperplanes pass through classes than by chance."""
    share: float | None
    """Share of the live units that pass through a class."""
    chance: float | None
    reason: str
    interval: tuple[float, float] | None = None
    """95 % interval of the score, over samples and units; None where it is not known."""
    p_chance: float | None = None
    """Of a layer no different from chance, Holm-corrected over the judged layers."""
    p_baseline: float | None = None
    """Of a layer no different from the same layer untrained, corrected likewise."""
    baseline_score: float | None = None
    """The score of the same layer untrained."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do about a layer."""

    action: str
    """``remove dead``, ``restart dead``, ``merge duplicates``, ``fold mirrored``,
    ``normalise input``, ``lower saturation``."""
    units: tuple[int, ...]
    effect: str
    """What is expected of it, in words and numbers."""
    exact: bool
    """Whether :func:`mahalens.prune` may apply it without changing the outputs."""
