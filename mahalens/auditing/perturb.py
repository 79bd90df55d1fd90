"""Perturbations of a layer's units (arXiv 2411.17932), and the accuracy that they cost.

If a unit measures a distance, its values near zero matter, and the size of its large values does
not; if it measures an intensity, the other way round. So the units of a trained network are
perturbed in both ways, and the accuracy that is lost shows which of the two it relies on.

**Where.** In the paper the perturbation stands *between* a layer and its activation function,
while the range of a unit, low to high, is that of its activation *after* the function. Hand
:func:`perturb` the pre-activations z with that range, and apply the function to what it returns.
After the function (an offset then only adds a constant to what the next layer sums up) is another
experiment; the perturbation study measures both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch import Tensor

from mahalens._show import Shown
from mahalens.auditing.readings import activation_range

if TYPE_CHECKING:
    from mahalens.auditing.batches import Batch, DataBatches
    from mahalens.auditing.gather import LayerGatherer
    from mahalens.auditing.runner import Runner
    from mahalens.auditing.site import Site
    from mahalens.auditing.trace import Use


class PerturbationReading(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy with this layer's activations perturbed; see the perturbation study."""

    baseline: float
    scale: dict[str, float]
    clip: dict[str, float]
    offset: dict[str, float]
    """Accuracy 0 to 1 by level, such as ``"-0.1"`` for an offset of -10 %."""
    index: float | None
    """From -1, relies on intensities only, to 1, on distances only; None if nothing is lost."""


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
    """Return the name of a level in :class:`PerturbationReading` and in the study's metrics.

    >>> level_key(-0.1), level_key(0.01), level_key(10.0)
    ('-0.1', '0.01', '10')
    """
    return f"{level:g}"


def perturb(
    activation: Tensor, low: Tensor, high: Tensor, kind: str, level: float, dim: int = -1
) -> Tensor:
    """Return the values of a layer's units, each perturbed in proportion to its range.

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
    if low.dim() == 1:
        shape = [1] * activation.dim()
        shape[dim] = len(low)
        low, high = low.reshape(shape), high.reshape(shape)
    low, high = low.to(activation), high.to(activation)
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
    """Return how much more a layer relies on distances than on intensities, -1 to 1.

    With D the mean accuracy lost under the offsets of :data:`TABLE_LEVELS`, and I the mean lost
    under its scales and clips (a gain counts as no loss), it is ``(D - I) / (D + I)``: 1 if only
    offsets cost accuracy, -1 if only scales and clips do. It compares these levels and no others:
    other ones would give another number.

    Args:
        baseline: accuracy (0 to 1) of the unperturbed network.
        scale, clip, offset: accuracy by level (see :func:`level_key`); levels that are not in
            the table are ignored.

    Returns:
        The index; None if ``D + I`` is less than :data:`NOTICEABLE`.

    Example:
        >>> reliance_index(1.0, {"0.01": 1, "0.1": 1}, {"0.1": 1, "0.5": 1},
        ...                {"-0.1": 1, "-0.01": 1, "0.01": 1, "0.1": 1, "0.25": 0.5})
        1.0
    """
    by_kind = {"scale": scale, "clip": clip, "offset": offset}
    lost = {
        kind: [max(0.0, baseline - by_kind[kind][level_key(level)]) for level in levels]
        for kind, levels in TABLE_LEVELS.items()
    }
    distance, intensity = lost["offset"], [*lost["scale"], *lost["clip"]]
    d, i = sum(distance) / len(distance), sum(intensity) / len(intensity)
    return None if d + i < NOTICEABLE else (d - i) / (d + i)


_Guess = Callable[[Any, "Batch"], Tensor | None]


def perturb_layers(
    runner: Runner,
    batches: DataBatches,
    gatherers: Mapping[str, LayerGatherer],
    guess: _Guess,
    baseline: float,
    progress: Callable[[str, int], None],
) -> dict[str, PerturbationReading]:
    """Run the model once for each layer, kind and level of :data:`TABLE_LEVELS`.

    A perturbation stands between a layer (with what is folded in) and its activation, and is
    measured in each unit's range of activations over the data.
    """
    readings = {}
    for name, gatherer in gatherers.items():
        if gatherer.site.between is not None:
            continue  # what enters its activation cannot be changed unit by unit at its output
        ends = activation_range(gatherer)

        def accuracy(kind: str, level: float) -> float:
            def change(use: Use) -> Tensor | None:
                if use.name != name:  # noqa: B023 (called before the name changes)
                    return None
                return _changed(use, gatherer.site, ends, kind, level)  # noqa: B023

            right = total = 0
            for batch in batches:
                labels = guess(runner.run(batch, change)[0], batch)
                if labels is not None and batch.labels is not None:
                    right += int((labels.to("cpu") == batch.labels).sum())
                    total += batch.size
            progress(f"perturbing {name}", total)  # noqa: B023
            return right / max(1, total)

        accuracies = {
            str(kind): {level_key(level): accuracy(kind, level) for level in levels}
            for kind, levels in TABLE_LEVELS.items()
        }
        readings[name] = PerturbationReading(
            baseline=baseline, **accuracies, index=reliance_index(baseline, **accuracies)
        )
    return readings


def _changed(use: Use, site: Site, ends: tuple[Tensor, Tensor], kind: str, level: float) -> Tensor:
    """Return the layer's output, perturbed where its activation is about to be applied."""
    dim = site.unit_axis(use.output)
    shape = [1] * use.output.ndim
    shape[dim] = site.units
    z = use.output.detach().double() if use.output.dtype == torch.float64 else use.output.float()
    scale = torch.ones(()).to(z) if site.scale is None else site.scale.to(z).view(shape)
    shift = torch.zeros(()).to(z) if site.shift is None else site.shift.to(z).view(shape)
    z = perturb(z * scale + shift, *ends, kind, level, dim=dim) - shift
    return (z / torch.where(scale == 0, torch.ones_like(scale), scale)).to(use.output.dtype)
