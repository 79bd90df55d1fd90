"""What is wrong with layers of prototypes before training; part of :func:`mahalens.check_init`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.watch.batches import Batches
from mahalens.auditing.watch.forward import Forward, Runner
from mahalens.auditing.watch.untouched import untouched
from mahalens.init.layer_check import LayerCheck
from mahalens.nn.head import DistanceHead
from mahalens.nn.mahalanobis import Mahalanobis
from mahalens.nn.offset_l2 import OffsetL2

Distances = OffsetL2 | Mahalanobis


def prototype_layers(model: nn.Module) -> dict[str, Distances]:
    """The layers of prototypes by name; that of a head goes by the head's own."""
    model = getattr(model, "_orig_mod", model)
    modules = dict(model.named_modules())
    heads = {id(m.distance): name for name, m in modules.items() if isinstance(m, DistanceHead)}
    found = {}
    for name, module in modules.items():
        if isinstance(module, Distances):
            name = heads.get(id(module), name)
            found[name or ("DistanceHead" if id(module) in heads else type(module).__name__)] = (
                module
            )
    return found


def check_prototypes(
    model: nn.Module,
    layers: dict[str, Distances],
    data: Any,
    batch_size: int = 512,
    forward: Forward | None = None,
) -> tuple[list[LayerCheck], int, bool]:
    """Look at these layers on the data.

    Gives what was found, how many samples there were, and whether there are hyperplanes to read.
    """
    runner, batches = Runner(model, forward), Batches(data, batch_size, False)
    seen = {name: _Seen(len(layer.mu)) for name, layer in layers.items()}
    samples, more = 0, False
    try:
        with untouched(runner.model):
            first = next(iter(batches), None)
            more = first is not None and bool(runner.survey(first)[0])
        with untouched(runner.model), _watching(layers, seen):
            for batch in batches:
                runner.run(batch, lambda use: None)
                samples += batch.size
    finally:
        batches.restore()
    heads = [m for m in runner.model.modules() if isinstance(m, DistanceHead)]
    owners = {id(head.distance): "DistanceHead" for head in heads}
    checks = []
    for name, layer in layers.items():
        if seen[name].rows:
            kind = owners.get(id(layer), type(layer).__name__)
            checks.append(seen[name].check(name, kind, layer))
    return checks, samples, more


class _Seen:
    """What the distances to K prototypes were, over all rows."""

    def __init__(self, units: int) -> None:
        self.rows = 0
        self._nearest = torch.zeros(units, dtype=torch.int64)
        self._least = torch.full((units,), torch.inf)
        self._greatest = torch.full((units,), -torch.inf)
        self._faulty = torch.zeros(units, dtype=torch.bool)

    def add(self, output: Tensor) -> None:
        """Take in the output of one call."""
        distances = output.detach().to("cpu").float().reshape(-1, len(self._nearest))
        if not len(distances):
            return
        self.rows += len(distances)
        odd = ~distances.isfinite()
        self._faulty |= odd.any(0)
        nearest = distances.masked_fill(odd, torch.inf).argmin(1)
        self._nearest += torch.bincount(nearest, minlength=len(self._nearest))
        self._least = torch.minimum(self._least, distances.amin(0))
        self._greatest = torch.maximum(self._greatest, distances.amax(0))

    def check(self, name: str, kind: str, layer: Distances) -> LayerCheck:
        """What is wrong."""
        constant = (self._least == self._greatest) & ~self._faulty
        missed = (self._nearest == 0) & ~constant & ~self._faulty
        return LayerCheck(
            name=name,
            kind=kind,
            units=len(self._nearest),
            activation="none",
            prototypes=True,
            outside=_numbers(missed),
            flat=_numbers(constant),
            copies=_copies(layer),
            faulty=_numbers(self._faulty),
        )


def _copies(layer: Distances) -> tuple[tuple[int, int], ...]:
    """Prototypes at the same place that measure alike; each with the first that it repeats."""
    parts: list[Tensor] = [layer.mu]
    if isinstance(layer, OffsetL2):
        parts.append(layer.alpha)
    elif not layer.shared:
        parts += [layer.axes.flatten(1), layer.log_spread]
    rows = torch.cat([part.detach() for part in parts], 1)
    _, place = torch.unique(rows, dim=0, return_inverse=True)
    first: dict[int, int] = {}
    return tuple(
        (first[number], unit)
        for unit, number in enumerate(place.tolist())
        if first.setdefault(number, unit) != unit
    )


def _numbers(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[:, 0].tolist())


@contextmanager
def _watching(layers: dict[str, Distances], seen: dict[str, _Seen]) -> Iterator[None]:
    """Show the output of each call of these layers; the hooks are always taken away."""

    def hook_for(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            seen[name].add(output)

        return hook

    handles = [layer.register_forward_hook(hook_for(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
