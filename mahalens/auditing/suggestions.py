"""What to do about a layer, as it follows from what was found in it."""

from __future__ import annotations

import math

import msgspec
import torch
from torch import Tensor

from mahalens._show import Shown
from mahalens.auditing.pairs import PairReading
from mahalens.auditing.readings import UnitReading
from mahalens.auditing.trace import ELEMENTWISE, HOMOGENEOUS
from mahalens.auditing.whitening import WhiteningReading


class Suggestion(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Something to do about a layer."""

    action: str
    """``remove dead``, ``restart dead``, ``merge duplicates``, ``fold mirrored``,
    ``normalise input``, ``lower saturation``."""
    units: tuple[int, ...]
    effect: str
    """What is expected of it, in words and numbers."""
    exact: bool
    """Whether :func:`mahalens.prune` may apply it without changing the outputs."""


_TOLD = 1e9

CONDITION = 1e6
"""From this ratio of the largest to the smallest variance on, an input is worth normalising."""

OFFSET = 3.0
"""From this many spreads between its mean and 0 on, an input is worth normalising."""

SPREADS = 100.0
"""From this ratio of wide to narrow spreads of single inputs on, an input is worth normalising."""

# Units under these can be taken out one by one; prelu may have a slope for each unit.
_PER_UNIT = (ELEMENTWISE | {"none"}) - {"prelu"}


def suggest(
    *,
    activation: str,
    feeds: str | None,
    inputs: int,
    units: UnitReading,
    pairs: PairReading | None = None,
    whitening: WhiteningReading | None = None,
    input_mean: Tensor | None = None,
    input_std: Tensor | None = None,
) -> tuple[Suggestion, ...]:
    """Return suggestions about a layer, with the effect to expect.

    ===================  ==================================================================
    ``remove dead``      if there are dead units. Exact where they act one by one and are
                         read by one known layer
    ``restart dead``     the same units, the other way. Changes the outputs
    ``merge duplicates`` if there are duplicates. Exact under the same conditions; under an
                         activation that does not scale, only for copies of equal length
    ``fold mirrored``    if there are mirrored pairs under relu or abs. Exact for the pairs
                         that share a hyperplane and, under relu, are read alike
    ``normalise input``  if variances reach over a factor of :data:`CONDITION` or more, the
                         mean lies :data:`OFFSET` spreads or more from 0, or the spreads of
                         single inputs reach over a factor of :data:`SPREADS` or more
    ``lower saturation`` if there are saturated units
    ===================  ==================================================================

    ``exact`` says that :func:`mahalens.prune` may apply a suggestion; it checks every unit and
    leaves those for which the outputs would change. The variances are the eigenvalues of the
    input's covariance (``whitening.spectrum``). The mean's distance from 0 is
    ``‖mean‖ / √(Σ std²)``, and the spreads of single inputs are compared at their 5th and 95th
    percentiles, constant inputs apart.

    Args:
        activation: name of the function that follows.
        feeds: the one layer that reads the activations, if there is one.
        inputs: D, inputs of a row.
        units: how the units respond.
        pairs: units that repeat one another; None where the weights are not known.
        whitening: for the spectrum of the input.
        input_mean: mean of each input [D].
        input_std: its standard deviation [D].

    Example:
        >>> one = torch.ones(4)
        >>> units = UnitReading(
        ...     dead=(2,), rare={}, always=(), saturated=(), active=one, flat=0 * one, mean=one,
        ...     std=one, skewness=one, least=one, greatest=one, quantiles=one[:, None])
        >>> remove, restart = suggest(activation="relu", feeds="out", inputs=7, units=units)
        >>> remove.action, remove.units, remove.exact
        ('remove dead', (2,), True)
        >>> remove.effect.partition(";")[0]
        'saves 1 of 4 units (25 %), 7 weights here and the column of out that reads each'
    """
    exact = feeds is not None and activation in _PER_UNIT
    count, dead, stuck = len(units.active), units.dead, units.saturated
    copies = tuple(sorted({j for _, j in pairs.duplicate})) if pairs else ()
    mirrored = pairs.mirrored if pairs and activation in ("relu", "abs") else ()
    rows: list[tuple[str, tuple[int, ...], str, bool]] = []  # the fields of a suggestion
    if dead:
        readers = f"the column of {feeds} that reads each" if feeds else "whatever reads them"
        effect = f"saves {_saved(len(dead), count, inputs)} and {readers}; the outputs on the "
        rows.append(("remove dead", dead, f"{effect}audited data stay as they are", exact))
        some = "one unit has" if len(dead) == 1 else f"{len(dead)} units have"
        effect = (
            f"{some} something to measure again, if new weights place the hyperplane in the data "
            f"({_share(len(dead), count)} of the layer); the outputs change, so training must go on"
        )
        rows.append(("restart dead", dead, effect, False))
    if copies:
        where = "once what reads a copy is added to the original's"
        if activation not in HOMOGENEOUS:
            where = f"where copies have equal length, for {activation} does not scale with its "
            where += "input; prune checks this"
        effect = f"saves {_saved(len(copies), count, inputs)}; the outputs stay as they are {where}"
        rows.append(("merge duplicates", copies, effect, exact))
    if mirrored:
        effect = _folded(len(mirrored), activation, _saved(len(mirrored), count, inputs))
        both = tuple(sorted(unit for pair in mirrored for unit in pair))
        rows.append(("fold mirrored", both, effect, exact))
    if reasons := _scales(whitening, input_mean, input_std):
        effect = "; ".join(reasons) + "; gradient steps then suit all directions alike"
        rows.append(("normalise input", (), effect, False))
    if stuck:
        flat = 100 * float(units.flat[list(stuck)].mean())
        effect = (
            f"{len(stuck)} of {count} units pass on gradients again: they are constant or at a "
            f"flat end of {activation} (on {flat:.0f} % of the rows); smaller weights, or a bias "
            "that brings their mean to the middle, change the outputs, so training must go on"
        )
        rows.append(("lower saturation", stuck, effect, False))
    return tuple(Suggestion(action=a, units=u, effect=e, exact=x) for a, u, e, x in rows)


def _folded(number: int, activation: str, saved: str) -> str:
    what = "1 pair becomes one unit" if number == 1 else f"{number} pairs become one unit each"
    absolute, and_read, checked = "", ", since |-z| = |z|", "this"
    if activation == "relu":
        absolute, checked = " with an absolute value", "both"
        and_read = " and are read with equal weights"
    return (
        f"up to {what}{absolute}, which saves {saved}; the outputs stay as they are for pairs that "
        f"share a hyperplane{and_read}; prune checks {checked}"
    )


def _scales(
    whitening: WhiteningReading | None, mean: Tensor | None, std: Tensor | None
) -> list[str]:
    """Return what is wrong with the spectrum, the place and the spreads of the input."""
    reasons = []
    if whitening is not None and len(whitening.spectrum) > 1:
        condition = float(whitening.spectrum[0] / whitening.spectrum[-1])
        if condition >= CONDITION:
            # Where rounding hides the number, a bound.
            size = f"{condition:.1e}" if condition < _TOLD else f"above {_TOLD:.0e}"
            reasons.append(
                f"whitening it would bring its condition number from {size} to 1, and normalising "
                "each input brings it nearer"
            )
    if mean is None or std is None:
        return reasons
    mean, std = mean.to(torch.float64), std.to(torch.float64)
    varying = torch.sort(std[(std > 0) & std.isfinite()]).values
    if len(varying) == 0 or not bool(mean.isfinite().all()):
        return reasons
    offset = float(torch.linalg.vector_norm(mean) / torch.linalg.vector_norm(varying))
    if offset >= OFFSET:
        reasons.append(f"its mean lies {offset:.1f} spreads from 0 and would lie at 0")
    last = len(varying) - 1
    narrow, wide = varying[round(0.05 * last)], varying[round(0.95 * last)]
    ratio = float(wide / narrow)
    if ratio >= SPREADS and math.isfinite(ratio):
        reasons.append(
            f"spreads of single inputs differ by a factor of {ratio:.3g} and would be equal"
        )
    return reasons


def _saved(spare: int, count: int, inputs: int) -> str:
    noun = "weight" if spare * inputs == 1 else "weights"
    return f"{spare} of {count} units ({_share(spare, count)}), {spare * inputs} {noun} here"


def _share(part: int, count: int) -> str:
    return f"{100 * part / count:.0f} %"
