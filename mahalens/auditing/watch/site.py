"""A layer as the survey of a model found it: its weights, and how its output is to be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mahalens.auditing.watch.trace import Use

Activation = Callable[[Tensor], Tensor]


class Layout(NamedTuple):
    """Where the samples are in the output of one use of a layer."""

    axis: int | None
    """Axis of the output that grows with the number of samples; None if none does."""
    sample_major: bool = True
    """Where that axis holds several rows of each sample: whether those of one stand together."""


class Fold(NamedTuple):
    """What stands between a layer and its activation and is affine in each unit [K]."""

    scale: Tensor
    shift: Tensor
    called: str

    def then(self, other: Fold) -> Fold:
        """This one and ``other`` after it."""
        scale = self.scale * other.scale
        return Fold(scale, self.shift * other.scale + other.shift, f"{self.called}, {other.called}")

    def same(self, other: Fold | None) -> bool:
        """Whether ``other`` does the same to every unit."""
        return (
            other is not None
            and torch.equal(self.scale, other.scale)
            and torch.equal(self.shift, other.shift)
        )


@dataclass
class Site:
    """A layer as the survey found it."""

    name: str
    kind: str
    weight: Tensor
    """[K, D], float64, CPU; what is folded in is not in it."""
    bias: Tensor
    shape: tuple[int, ...]
    """Of the weight as the model has it."""
    geometry: dict[str, tuple[int, ...]]
    calls: int = 0
    outputs: list[Tensor] = field(default_factory=list)
    """Of each call on the few samples of the survey; emptied when the layouts are known."""
    layouts: list[Layout] = field(default_factory=list)
    """Of each call."""
    followed: dict[str, Activation | None] = field(default_factory=dict)
    """Functions that follow, by name; "none" for one that is no activation."""
    folds: list[Fold | None] = field(default_factory=list)
    """What was folded in before each of them."""
    scale: Tensor | None = None
    shift: Tensor | None = None
    folded: str | None = None
    output: bool = False
    """Whether the model's output has its units."""
    readers: set[str | None] = field(default_factory=set)
    """Layers that read the activations as they are; None for any other reader."""
    notes: list[str] = field(default_factory=list)

    @property
    def units(self) -> int:
        """How many units K the layer has."""
        return self.weight.shape[0]

    @property
    def convolution(self) -> bool:
        """Whether units are along axis 1 of the output, and not along the last."""
        return self.kind.startswith("Conv")

    @property
    def activation(self) -> str:
        """The activation that follows; ``none``, or ``mixed`` where several functions do."""
        names = [name for name in self.followed if name != "none"]
        if not names:
            return "none"
        return names[0] if len(self.followed) == 1 else "mixed"

    @property
    def apply(self) -> Activation | None:
        """z -> f(z), where the activation treats each unit by itself."""
        return self.followed.get(self.activation)

    @property
    def feeds(self) -> str | None:
        """The one layer that reads the activations, if nothing else does."""
        return next(iter(self.readers)) if len(self.readers) == 1 else None

    def layout(self, call: int) -> Layout:
        """Where the samples are in the output of a call; later ones are like the last known."""
        if not self.layouts:
            return Layout(0)
        return self.layouts[min(call, len(self.layouts) - 1)]

    def unit_axis(self, output: Tensor) -> int:
        """The axis of an output along which the units are."""
        return output.ndim - 1 - (len(self.geometry["kernel"]) if self.convolution else 0)

    def feeds_into(self, use: Use) -> bool:
        """Whether inputs of ``use`` are this layer's units, in order, each with equal share."""
        units = self.units
        if use.kind == "Linear":
            width = use.weight.shape[1]
            return width % units == 0 if self.convolution else width == units
        return self.convolution and use.weight.shape[1] == units and use.geometry["groups"] == (1,)

    def is_followed(self, name: str, function: Activation | None, fold: Fold | None) -> None:
        """Note what follows the layer in one place, and what stands between."""
        self.followed.setdefault(name, function)
        self.folds.append(fold)

    def settle(self) -> None:
        """Fold in what stands between the layer and what follows, if it is the same everywhere."""
        if not self.folds or all(fold is None for fold in self.folds):
            return
        first = self.folds[0]
        if first is not None and all(first.same(fold) for fold in self.folds):
            self.scale, self.shift, self.folded = first
            return
        # The activation applies to something else than this layer's own output.
        self.followed = {"none": None}
        self.notes.append(
            "uses of its output differ in what stands before the activation, such as a batch "
            "norm, which is therefore not folded in"
        )

    def rows(self) -> Tensor:
        """The weights [K, D] with what follows folded in."""
        return self.weight if self.scale is None else self.weight * self.scale[:, None]

    def offsets(self) -> Tensor:
        """The biases [K] with what follows folded in."""
        scaled = self.bias if self.scale is None else self.bias * self.scale
        return scaled if self.shift is None else scaled + self.shift


def find_layouts(
    site: Site, fewer: Site | None, turned: Site | None, samples: int, fewer_samples: int
) -> None:
    """Find where the samples are in each call's output.

    Args:
        site: as found with ``samples`` samples; its layouts are set.
        fewer: the same layer with the first ``fewer_samples`` of them, if the model takes that.
        turned: the same layer with the samples in reverse order: their rows must come out in
            reverse too.
        samples: how many there were.
        fewer_samples: how many ``fewer`` had.
    """
    site.layouts = []
    for call, output in enumerate(site.outputs):
        other = _output(fewer, call)
        back = _output(turned, call)
        axes = [axis for axis in range(output.ndim) if axis != site.unit_axis(output)]
        if other is not None and other.ndim == output.ndim:
            grown = [a for a in axes if output.shape[a] * fewer_samples == other.shape[a] * samples]
        else:
            grown = [a for a in axes if output.shape[a] % samples == 0]
        tried = [
            Layout(axis, major)
            for axis in grown
            for major in (True, False)
            if output.shape[axis] and (major or output.shape[axis] > samples > 1)
        ]
        if len(tried) > 1 and back is not None and back.shape == output.shape:
            misses = [_miss(layout, output, back, samples) for layout in tried]
            tried = [tried[misses.index(min(misses))]]
        site.layouts.append(tried[0] if tried else Layout(None))
    site.outputs = []


def _output(site: Site | None, call: int) -> Tensor | None:
    return site.outputs[call] if site is not None and call < len(site.outputs) else None


def _miss(layout: Layout, output: Tensor, back: Tensor, samples: int) -> float:
    """How far the rows of reversed samples are from the reversed rows."""
    assert layout.axis is not None
    shape, axis = ((samples, -1), 0) if layout.sample_major else ((-1, samples), 1)
    first, second = (
        o.movedim(layout.axis, 0).unflatten(0, shape).double().nan_to_num() for o in (output, back)
    )
    return float((first.flip(axis) - second).abs().sum())
