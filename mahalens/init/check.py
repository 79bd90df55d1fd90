"""What is wrong with starting weights, before any training: :func:`check_init`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from torch import nn

from mahalens.audit.network import audit
from mahalens.audit.record import LayerRecord

_SHOWN = 8
_UNUSED = {"perturb": False, "examples": False, "labelled": False}


class LayerCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one layer; units by number."""

    name: str
    kind: str
    units: int
    activation: str
    dead: tuple[int, ...] = ()
    """Units that no input reaches: their activation is 0 on every row."""
    outside: tuple[int, ...] = ()
    """Units whose hyperplane misses the data: all rows are on one side of it. Not the dead ones."""
    flat: tuple[int, ...] = ()
    """Units that are constant, or at a flat end of their activation on nearly all rows."""
    copies: tuple[tuple[int, int], ...] = ()
    """Pairs of units with the same hyperplane and side, which training cannot tell apart."""
    silent: float = 0.0
    """Share of the rows that no unit reaches."""
    silent_samples: tuple[int, ...] = ()
    """The first few samples with such a row."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, in words."""
        found = []
        if self.dead:
            found.append(f"{self._of(self.dead)} reached by no input ({_few(self.dead)})")
        if self.outside:
            place = f"with all data on one side ({_few(self.outside)})"
            found.append(f"{self._of(self.outside)} {place}")
        if self.flat:
            found.append(f"{self._of(self.flat)} flat from the start ({_few(self.flat)})")
        if self.copies:
            pairs = [f"{i} = {j}" for i, j in self.copies]
            found.append(f"{len(self.copies)} pairs of copies ({_few(pairs)})")
        if self.silent:
            share = f"{100 * self.silent:.3g} %"
            found.append(f"{share} of inputs reach no unit ({_few(self.silent_samples)})")
        return tuple(found)

    def _of(self, units: Sequence[int]) -> str:
        return f"{len(units)} of {self.units} units"


class InitCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with starting weights; made by :func:`check_init`."""

    layers: tuple[LayerCheck, ...]
    samples: int
    unread: tuple[str, ...] = ()
    """Parts with weights that are read as no hyperplanes."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any layer that was read."""
        return all(layer.ok for layer in self.layers)

    def layer(self, name: str) -> LayerCheck:
        """The layer of that name."""
        from mahalens.errors import InputError

        for layer in self.layers:
            if layer.name == name:
                return layer
        known = ", ".join(layer.name for layer in self.layers)
        raise InputError(f"there is no layer {name!r} in this check; there are {known}")

    def __str__(self) -> str:
        """The answer, then a line for each layer with something wrong."""
        count, bad = len(self.layers), [layer for layer in self.layers if not layer.ok]
        on = f"on {self.samples} samples"
        if not bad:
            lines = [f"ready to train: nothing wrong in {count} layer{'s' * (count > 1)} {on}"]
        else:
            lines = [f"not ready: something is wrong in {len(bad)} of {count} layers {on}"]
        for layer in bad:
            follows = "" if layer.activation == "none" else f", {layer.activation}"
            lines.append(f"  {layer.name} ({layer.kind}{follows}): {'; '.join(layer.problems)}")
        if self.unread:
            lines.append(f"  not read: {', '.join(self.unread)}")
        return "\n".join(lines)


def check_init(model: nn.Module, data: Any, **options: Any) -> InitCheck:
    """Look at a model before it is trained: units and inputs that cannot be reached.

    An audit (:func:`mahalens.audit`) reads every Linear and every convolution on the data:

    - **dead**: units whose activation is 0 on all data. Behind ReLU they get no gradient, ever;
    - **outside**: other units with all data on one side of their hyperplane: they divide nothing,
      and behind ReLU or Abs they are linear;
    - **flat**: constant units, and those at a flat end of a sigmoid or tanh on nearly all data;
    - **copies**: pairs with the same hyperplane and side;
    - **silent**: inputs (rows: samples, or patches of a convolution) that reach no unit, so that
      nothing behind the layer can tell them apart.

    The output layer is held to the same, except for ``outside``: nothing bends there. The model
    is left as it was.

    Args:
        model: any ``nn.Module``.
        data: as for :func:`mahalens.audit`; labels are not looked at.
        **options: of :func:`mahalens.audit`, such as ``batch_size``, ``layers`` or ``tolerance``.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
        >>> state = {"0.weight": torch.ones(2, 1), "0.bias": torch.tensor([-1.0, -9.0])}
        >>> _ = model.load_state_dict(state)
        >>> print(check_init(model, torch.tensor([[0.0], [2.0], [3.0], [4.0]])))
        not ready: something is wrong in 1 of 1 layers on 4 samples
          0 (Linear, relu): 1 of 2 units reached by no input (1); 25 % of inputs reach no unit (0)
    """
    record = audit(model, data, **{**_UNUSED, **options})
    return InitCheck(
        layers=tuple(_checked(layer) for layer in record.layers),
        samples=record.data.samples,
        unread=tuple(part.name for part in record.skipped),
    )


def _checked(layer: LayerRecord) -> LayerCheck:
    units = layer.units
    dead = set(units.dead)
    beyond = ((units.least > 0) | (units.greatest < 0)).nonzero()[:, 0].tolist()
    bends = layer.activation != "none"
    return LayerCheck(
        name=layer.name,
        kind=layer.kind,
        units=layer.units_count,
        activation=layer.activation,
        dead=units.dead,
        outside=tuple(unit for unit in beyond if unit not in dead) if bends else (),
        flat=tuple(unit for unit in units.saturated if unit not in dead),
        copies=() if layer.pairs is None else layer.pairs.duplicate,
        silent=units.silent_share,
        silent_samples=units.silent_samples,
    )


def _few(items: Sequence[Any]) -> str:
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    return f"{shown}, ..." if len(items) > _SHOWN else shown
