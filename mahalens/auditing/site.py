"""A layer as the survey of a model finds it: its weights, and how to read its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


class Fold(NamedTuple):
    """An affine map of each unit [K], between a layer and its activation."""

    scale: Tensor
    shift: Tensor
    called: str

    @property
    def identity(self) -> bool:
        """Whether nothing is changed, up to rounding."""
        return bool(((self.scale - 1).abs() <= 1e-12).all()) and not bool(self.shift.any())

    def then(self, other: Fold) -> Fold:
        """Return this fold followed by ``other``."""
        scale = self.scale * other.scale
        called = ", ".join(dict.fromkeys([*self.called.split(", "), other.called]))
        return Fold(scale, self.shift * other.scale + other.shift, called)

    def same(self, other: Fold | None) -> bool:
        """Return whether ``other`` does the same to every unit."""
        return (
            other is not None
            and torch.equal(self.scale, other.scale)
            and torch.equal(self.shift, other.shift)
        )


class Layout(NamedTuple):
    """The place of the samples in the output of one use of a layer."""

    axis: int | None
    """Axis of the output that grows with the number of samples; None if none does."""
    sample_major: bool = True
    """Where that axis holds several rows of each sample: whether those of one stand together."""


@dataclass
class Site:
    """A layer as the survey found it."""

    name: str
    kind: str
    weight: Tensor
    """[K, D], float64, CPU; what is folded in is not in it."""
    bias: Tensor
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
    betweens: list[tuple[str, Any, Any] | None] = field(default_factory=list)
    """What mixes units before each of them: its name, and the nodes it begins and ends at."""
    between: Activation | None = None
    """Makes of the layer's output what enters the activation, where that mixes units."""
    distance: bool = False
    """Whether the units are distances by construction, as in :class:`mahalens.nn.OffsetL2`."""
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
        """Return where the samples are in the output of a call; later calls are like the last."""
        if not self.layouts:
            return Layout(0)
        return self.layouts[min(call, len(self.layouts) - 1)]

    def unit_axis(self, output: Tensor) -> int:
        """Return the axis of an output along which the units are."""
        return output.ndim - 1 - (len(self.geometry["kernel"]) if self.convolution else 0)

    @property
    def placed(self) -> bool:
        """Whether each unit has a hyperplane: z = w·x + b enters its activation."""
        return self.between is None and not self.distance and self.weight.shape[1] > 0

    def is_followed(
        self,
        name: str,
        function: Activation | None,
        fold: Fold | None,
        between: tuple[str, Any, Any] | None = None,
    ) -> None:
        """Note what follows the layer in one place, and what stands between."""
        if self.distance:
            name, function, fold, between = "none", None, None, None  # the units are distances
        self.followed.setdefault(name, function)
        self.folds.append(fold)
        self.betweens.append(between)

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def settle(self) -> None:
        """Fold in what stands between the layer and what follows, if it is the same everywhere."""
        mixed = [between for between in self.betweens if between is not None]
        if mixed:
            if len({between[2] for between in mixed}) == 1 and len(mixed) == len(self.betweens):
                name, first, last = mixed[0]
                self.between = lambda z: last.value({first: z.clone()})
                self.folded = name
            else:
                self._unfold(f"{mixed[0][0]} stands before only some uses of its output")
                return
        if all(fold is None for fold in self.folds):
            return
        first_fold = self.folds[0]
        if first_fold is not None and all(first_fold.same(fold) for fold in self.folds):
            self.scale, self.shift, called = first_fold
            self.folded = called if self.folded is None else f"{self.folded}, {called}"
            return
        # The activation applies to something else than this layer's own output.
        self._unfold(
            "uses of its output differ in what stands before the activation, such as a batch "
            "norm, which is therefore not folded in"
        )

    def _unfold(self, why: str) -> None:
        """Read the layer's own output, with nothing that follows it."""
        self.followed = {"none": None}
        self.scale = self.shift = self.folded = self.between = None
        self.readers.add(None)
        self.note(why)

    def compare(self, other: Site | None) -> None:
        """Unfold what other samples were not treated by in the same way."""
        if other is None or (self.folded is None and other.folded is None):
            return
        pairs = ((self.scale, other.scale), (self.shift, other.shift))
        same = self.folded == other.folded and all(
            a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
        )
        if same and self.between is not None and other.between is not None:
            same = all(_same_values(self.between, other.between, z) for z in other.outputs)
        if not same:
            self._unfold(
                f"what stands before its activation ({self.folded or other.folded}) depends on "
                f"the samples of a batch, and is therefore not folded in"
            )

    def rows(self) -> Tensor:
        """Return the weights [K, D] with what follows folded in."""
        return self.weight if self.scale is None else self.weight * self.scale[:, None]

    def offsets(self) -> Tensor:
        """Return the biases [K] with what follows folded in."""
        scaled = self.bias if self.scale is None else self.bias * self.scale
        return scaled if self.shift is None else scaled + self.shift


def _same_values(one: Activation, two: Activation, z: Tensor) -> bool:
    """Return whether two functions make the same of an output."""
    try:
        made, wanted = one(z), two(z)
    except Exception:  # one that was made for another number of samples
        return False
    return made.shape == wanted.shape and torch.allclose(made, wanted, 1e-4, 1e-5, equal_nan=True)


def find_layouts(
    site: Site, fewer: Site | None, turned: Site | None, samples: int, fewer_samples: int
) -> None:
    """Set the layouts of a layer: where the samples are in each call's output.

    ``fewer`` is the same layer with the first ``fewer_samples`` of the ``samples``, ``turned`` with
    all in reverse order, in which their rows must come out in reverse too.
    """
    site.layouts = []
    for call, output in enumerate(site.outputs):
        other, back = (
            of.outputs[call] if of is not None and call < len(of.outputs) else None
            for of in (fewer, turned)
        )
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
        layout = tried[0] if tried else Layout(None)
        site.layouts.append(layout)
        if site.between is not None and not _samples_apart(site.between, output, layout, samples):
            site._unfold(f"{site.folded} mixes samples before its activation")
    site.outputs = []


def _samples_apart(between: Activation, output: Tensor, layout: Layout, samples: int) -> bool:
    """Return whether a function of an output keeps samples when the first one changes."""
    if layout.axis is None or output.shape[layout.axis] != samples or samples < 2:
        return True
    other = output.clone()
    other.select(layout.axis, 0).mul_(-1.5).add_(1)
    one, two = (between(z).narrow(layout.axis, 1, samples - 1) for z in (output, other))
    return torch.allclose(one, two, 1e-4, 1e-5, equal_nan=True)


def _miss(layout: Layout, output: Tensor, back: Tensor, samples: int) -> float:
    """Return how far the rows of reversed samples are from the reversed rows."""
    assert layout.axis is not None
    shape, axis = ((samples, -1), 0) if layout.sample_major else ((-1, samples), 1)
    first, second = (
        o.movedim(layout.axis, 0).unflatten(0, shape).double().nan_to_num() for o in (output, back)
    )
    return float((first.flip(axis) - second).abs().sum())
