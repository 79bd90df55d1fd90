"""Compares the outputs of a model and of an edited copy: :func:`verify_same_outputs`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.watch.batches import Batch
from mahalens.auditing.watch.forward import Forward, Runner
from mahalens.auditing.watch.trace import Use
from mahalens.auditing.watch.untouched import untouched
from mahalens.errors import InputError

ROUNDING, HALF_ROUNDING = 16, 2
"""Machine epsilons per layer that count as rounding; the second in half precision.

Other orders of summation change outputs by about one epsilon per layer (by up to five in a chain of
32 convolutions). In half precision sums are accumulated in float32, and change by a tenth of that.
"""


@dataclass
class _Part:
    """One tensor of the outputs, over all batches."""

    scale: float = 0.0
    """Largest finite magnitude in the first model."""
    difference: float = 0.0
    epsilon: float = 0.0
    batch: Batch | None = None
    """Where the difference is largest."""

    @property
    def change(self) -> float:
        """Largest difference, relative to the largest magnitude."""
        if self.difference == 0:
            return 0.0
        return self.difference / self.scale if self.scale else float("inf")


@dataclass
class Comparison:
    """How far the outputs of two models are apart.

    Attributes:
        samples: number of samples compared.
        layers: largest number of layers that a forward pass uses.
        fault: what keeps the outputs from being equal; empty if they are, up to rounding.
        batch: the batch where ``fault`` shows, or None.
        parts: scale and difference of each tensor of the output, by its place in it.
    """

    samples: int = 0
    layers: int = 1
    fault: str = ""
    batch: Batch | None = None
    parts: dict[str, _Part] = field(default_factory=dict)

    @property
    def change(self) -> float:
        """Largest difference in any tensor, relative to the largest magnitude in that tensor."""
        return max((part.change for part in self.parts.values()), default=0.0)

    @property
    def rounding(self) -> float:
        """Largest relative change that counts as rounding."""
        return max((self._allowed(part) for part in self.parts.values()), default=0.0)

    def _allowed(self, part: _Part) -> float:
        half = part.epsilon > torch.finfo(torch.float32).eps
        return (HALF_ROUNDING if half else ROUNDING) * self.layers * part.epsilon

    def judge(self) -> None:
        """Set ``fault`` if a tensor changes by more than rounding."""
        for part in self.parts.values():
            if not self.fault and not part.change <= self._allowed(part):
                share = f"{100 * part.change:.2g} %" if part.scale else "more than rounding"
                if part.difference == float("inf"):
                    share = "an infinite amount, or makes it NaN"
                self.fault, self.batch = f"changes an output by {share}", part.batch


def verify_same_outputs(
    before: nn.Module,
    after: nn.Module,
    batches: Iterable[Batch],
    forward: Forward | None = None,
    *,
    see: Callable[[Use], Any] = lambda use: None,
    scales: Mapping[str, float] | None = None,
) -> Comparison:
    """Run two models on the same batches, and compare every tensor that they return.

    Two tensors are equal if no entries differ by more than ``16 L ε`` times the largest magnitude
    of that tensor over all batches: ``L`` layers are used in a forward pass, and ``ε`` is the
    machine epsilon of the outputs or the parameters, whichever is coarser (``2 L ε`` in half
    precision). Whole numbers must be equal. NaN equals NaN, and infinity itself.

    Both models run in evaluation mode from the same random state and are left as they were; inputs
    are copied, in case a model writes to them. A second model that raises is not equal.

    Args:
        before: the model.
        after: the edited copy.
        batches: what to run them on.
        forward: how to call a model: ``forward(model, *inputs)``.
        see: called with every use of a layer in ``before``.
        scales: known largest magnitudes, where ``batches`` are only some of the data.
    """
    one, two = Runner(before, forward), Runner(after, forward)
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    epsilons = [torch.finfo(p.dtype).eps for p in before.parameters() if p.is_floating_point()]
    result = Comparison(parts={place: _Part(scale) for place, scale in (scales or {}).items()})
    with untouched(before), untouched(after):
        for batch in batches:
            uses: list[str] = []
            others: list[str] = []

            def note(use: Use, names: list[str] = uses) -> None:
                names.append(use.name)
                see(use)

            def note_other(use: Use, names: list[str] = others) -> None:
                names.append(use.name)

            with torch.random.fork_rng(devices=devices):
                wanted, _ = one.run(_copied(batch), note)
            result.samples += batch.size
            result.layers = max(result.layers, len(uses))
            try:
                outputs, _ = two.run(_copied(batch), note_other)
            except InputError as error:
                reason = " ".join(str(error.__cause__ or error).split())[:200]
                result.fault, result.batch = f"makes the model fail ({reason})", batch
                return result
            if uses and not others:
                raise InputError(
                    "forward does not run the model that it is given, so that an edited copy "
                    "cannot be tried; use its first argument: forward(model, *inputs)"
                )
            fault = _compare(wanted, outputs, batch, max(epsilons, default=0.0), result.parts)
            if fault:
                result.fault, result.batch = fault, batch
                return result
    result.judge()
    return result


def _compare(
    wanted: Any, outputs: Any, batch: Batch, epsilon: float, parts: dict[str, _Part]
) -> str:
    """Note the differences in ``parts``; return what no rounding explains."""
    first, second = dict(_tensors(wanted)), dict(_tensors(outputs))
    if first.keys() != second.keys():
        return "gives the output another form"
    for place, one in first.items():
        two = second[place]
        if one.shape != two.shape or one.dtype != two.dtype:
            return f"gives an output of shape {list(two.shape)} instead of {list(one.shape)}"
        if not (one.is_floating_point() or one.is_complex()):
            if not torch.equal(one, two):
                return f"changes {int((one != two).sum())} whole numbers of an output"
            continue
        part = parts.setdefault(place, _Part())
        part.epsilon = max(part.epsilon, epsilon, torch.finfo(one.dtype).eps)
        if one.dtype in (torch.float16, torch.bfloat16):
            one, two = one.float(), two.float()
        sizes = one.abs()
        if one.numel():
            finite = sizes.masked_fill(~sizes.isfinite(), 0)
            part.scale = max(part.scale, float(finite.max()))
        if torch.equal(one, two):
            continue
        equal = (one == two) | (one.isnan() & two.isnan())
        apart = (one - two).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(equal, 0)
        difference = float(apart.max())
        if difference > part.difference:
            part.difference, part.batch = difference, batch
    return ""


def _tensors(
    value: Any, place: str = "", above: tuple[int, ...] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor and number in an output, with its place."""
    if id(value) in above:
        return
    above = (*above, id(value))
    if isinstance(value, Tensor):
        if value.is_nested:
            yield from _tensors(value.unbind(), place, above)
        else:
            plain = value.dequantize() if value.is_quantized else value.detach()
            yield place, plain if plain.layout == torch.strided else plain.to_dense()
    elif isinstance(value, bool | int | float | complex):
        yield place, torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _tensors(part, f"{place}.{index}", above)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, f"{place}.{key}", above)
    elif not isinstance(value, nn.Module | type):
        for key, part in getattr(value, "__dict__", {}).items():
            yield from _tensors(part, f"{place}.{key}", above)


def _copied(batch: Batch) -> Batch:
    try:
        return copy.deepcopy(batch)
    except RuntimeError:  # tensors with a graph cannot be copied
        return batch
