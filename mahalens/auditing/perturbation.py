"""Perturbations of a layer's units, as arXiv 2411.17932 has them, and what their cost says.

If a unit measures a distance, what it says near zero matters, and how loud its loud values are
does not; if it measures an intensity, the other way round. So the units of a trained network are
perturbed in two ways, and the accuracy that is lost tells which of the two it relies on.

**Where.** In the paper the perturbation stands *between* a layer and its activation function,
while the range of a unit, low to high, is that of its activation *after* the function. Hand
:func:`perturb` the pre-activations z with that range, and apply the function to what it returns.
After the function (an offset then only adds a constant to what the next layer sums up) is another
experiment; the perturbation study measures both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from mahalens.auditing.readings import PerturbationReading
from mahalens.errors import InputError

Kind = Literal["scale", "clip", "offset"]

TABLE_LEVELS: dict[Kind, tuple[float, ...]] = {
    "scale": (0.01, 0.1),
    "clip": (0.1, 0.5),
    "offset": (-0.1, -0.01, 0.01, 0.1, 0.25),
}
"""The levels by which a layer is judged; 0.1 is 10 %."""

GRID_LEVELS: dict[Kind, tuple[float, ...]] = {
    "scale": (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0),
    "clip": (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    "offset": (
        *(-2.0, -1.5, -1.0, -0.75, -0.5, -0.35, -0.25, -0.15, -0.1, -0.05, -0.03, -0.02, -0.01),
        0.0,
        *(0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0),
    ),
}
"""All levels of the paper's figures and tables, with some between; the table's are among them.

A scale of 1, a clip of 1 and an offset of 0 change nothing on the data that the range is from.
"""

NOTICEABLE = 0.01
"""Accuracy (0 to 1), the mean lost to offsets plus the mean lost to intensities, below which
:func:`reliance_index` has no answer."""


def level_key(level: float) -> str:
    """A level as :class:`PerturbationReading` and the metrics of the study name it.

    >>> level_key(-0.1), level_key(0.01), level_key(10.0)
    ('-0.1', '0.01', '10')
    """
    return f"{level:g}"


def perturb(
    activation: Tensor, low: Tensor, high: Tensor, kind: str, level: float, dim: int = -1
) -> Tensor:
    """The values of a layer's units with each unit perturbed by its own range.

    With a unit's range over the data from ``low`` to ``high``, ``r = high - low`` and the level
    p (0.1 for 10 %)::

        scale    a -> p a
        clip     a -> min(a, low + p r)
        offset   a -> a + p (high - a)  =  (1 - p) a + p high

    An offset moves the low end of the range by ``p r`` and keeps the high end, so that small
    values change most and large ones hardly. A negative p pulls the low end down to
    ``low - |p| r``, a p of 1 leaves ``high`` on every input. With ``low = 0``, as for ReLU, and
    nearly so for Abs, it is the published ``((high - p r) / high) a + p r``; unlike that, it is
    defined for a unit that is never positive, and does not turn a unit around whose ``p r``
    exceeds ``high``. A unit with ``r = 0`` keeps its value under an offset and a clip.

    Args:
        activation: values of K units along ``dim``, of any shape: [N, K], [N, K, H, W], ...
        low, high: the least and the greatest activation of each unit over the data [K]; or, for
            stacks of trials, tensors with as many dimensions as ``activation`` that stretch to it.
        kind: ``scale``, ``clip`` or ``offset``.
        level: p, any finite number; not negative for scale and clip.
        dim: which dimension of ``activation`` holds the units.

    Returns:
        A new tensor of the shape and dtype of ``activation``.

    Example:
        >>> a, high = torch.tensor([[0.0], [1.0], [4.0]]), torch.tensor([4.0])
        >>> perturb(a, 0 * high, high, "offset", 0.25).flatten().tolist()
        [1.0, 1.75, 4.0]
        >>> perturb(a, 0 * high, high, "clip", 0.5).flatten().tolist()
        [0.0, 1.0, 2.0]
    """
    _check(kind, level)
    if not activation.is_floating_point():
        raise InputError(
            f"activations have dtype {activation.dtype}, but real floating point numbers are "
            "wanted; convert them with .float()"
        )
    low, high = (_placed(end, activation, dim) for end in (low, high))
    if kind == "scale":
        return level * activation
    if kind == "clip":
        return torch.minimum(activation, low + level * (high - low))
    return activation + level * (high - activation)


def reliance_index(
    baseline: float,
    scale: Mapping[str, float],
    clip: Mapping[str, float],
    offset: Mapping[str, float],
) -> float | None:
    """How much more a layer relies on distances than on intensities, -1 to 1.

    With D the mean accuracy lost under the offsets of :data:`TABLE_LEVELS`, and I the mean lost
    under its scales and clips (a gain counts as no loss), it is ``(D - I) / (D + I)``: 1 if only
    offsets cost accuracy, -1 if only scales and clips do. It compares these levels and no others:
    other ones would give another number.

    Args:
        baseline: accuracy (0 to 1) of the unperturbed network.
        scale, clip, offset: accuracy by level (see :func:`level_key`); levels that are not in
            the table are left alone.

    Returns:
        The index; None if ``D + I`` is less than :data:`NOTICEABLE`.

    Example:
        >>> reliance_index(1.0, {"0.01": 1, "0.1": 1}, {"0.1": 1, "0.5": 1},
        ...                {"-0.1": 1, "-0.01": 1, "0.01": 1, "0.1": 1, "0.25": 0.5})
        1.0
    """
    given: dict[Kind, Mapping[str, float]] = {"scale": scale, "clip": clip, "offset": offset}
    lost: dict[Kind, list[float]] = {
        kind: _lost(baseline, kind, accuracies) for kind, accuracies in given.items()
    }
    distance = _mean(lost["offset"])
    intensity = _mean([*lost["scale"], *lost["clip"]])
    total = distance + intensity
    return None if total < NOTICEABLE else (distance - intensity) / total


def perturbation_reading(
    baseline: float,
    scale: Mapping[float, float],
    clip: Mapping[float, float],
    offset: Mapping[float, float],
) -> PerturbationReading:
    """A reading from accuracies (0 to 1) by level as a number.

    >>> even = {kind: dict.fromkeys(levels, 0.9) for kind, levels in TABLE_LEVELS.items()}
    >>> perturbation_reading(0.9, **even).offset["-0.1"]
    0.9
    """
    parts = [{level_key(p): float(a) for p, a in given.items()} for given in (scale, clip, offset)]
    return PerturbationReading(
        baseline=float(baseline),
        scale=parts[0],
        clip=parts[1],
        offset=parts[2],
        index=reliance_index(baseline, *parts),
    )


def _check(kind: str, level: float) -> None:
    if kind not in TABLE_LEVELS:
        raise InputError(f"kind is {kind!r}, but one of {', '.join(TABLE_LEVELS)} is wanted")
    if not abs(level) < float("inf"):
        raise InputError(f"level is {level}, but a finite number such as 0.1 for 10 % is wanted")
    if level < 0 and kind != "offset":
        raise InputError(
            f"level is {level} for {kind}, but only offsets may be negative; give 0 or more"
        )


def _placed(end: Tensor, activation: Tensor, dim: int) -> Tensor:
    """One end of the range, so that it stretches over the activations."""
    if not -activation.dim() <= dim < activation.dim():
        raise InputError(
            f"dim is {dim}, but the activations have shape {list(activation.shape)}; give the "
            "dimension that holds the units"
        )
    if end.dim() == 1 and len(end) == activation.shape[dim]:
        shape = [1] * activation.dim()
        shape[dim] = len(end)
        return end.to(activation).reshape(shape)
    fits = end.dim() == activation.dim() > 1 and all(
        mine in (1, other) for mine, other in zip(end.shape, activation.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"a range of shape {list(end.shape)} for activations {list(activation.shape)}, but one "
            f"number per unit of dimension {dim} is wanted: [{activation.shape[dim]}]"
        )
    return end.to(activation)


def _lost(baseline: float, kind: Kind, accuracies: Mapping[str, float]) -> list[float]:
    """The accuracy lost at each level of the table."""
    found = []
    for level in TABLE_LEVELS[kind]:
        key = level_key(level)
        if key not in accuracies:
            raise InputError(
                f"{kind} has no accuracy at {key}; the index needs the levels "
                f"{', '.join(level_key(wanted) for wanted in TABLE_LEVELS[kind])}"
            )
        for name, value in (("baseline", baseline), (f"{kind} {key}", accuracies[key])):
            if not 0 <= value <= 1:
                raise InputError(f"{name} is {value}, but an accuracy from 0 to 1 is wanted")
        found.append(max(0.0, baseline - accuracies[key]))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
