"""Faults of starting weights, before any training: :func:`check_init`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from mahalens._show import Shown, table_html
from mahalens.auditing.api import audit
from mahalens.auditing.batches import DataBatches as Batches
from mahalens.auditing.record import LayerRecord
from mahalens.auditing.runner import Forward, Runner, untouched
from mahalens.errors import InputError
from mahalens.init.model import fresh_norms, settled_norms, watch_calls
from mahalens.nn.head import DistanceHead
from mahalens.nn.layers import OffsetL2
from mahalens.nn.mahalanobis import Mahalanobis

_UNUSED = {"perturb": False, "examples": False, "labelled": False, "baseline": None}
_SHOWN = 8

Distances = OffsetL2 | Mahalanobis


class LayerCheck(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Faults of the starting weights of one layer; units by number.

    Empty tuples and 0 mean that nothing was found. ``ok`` sums it up.
    """

    name: str
    kind: str
    units: int
    activation: str
    dead: tuple[int, ...] = ()
    """Units that no input reaches: their activation is 0 on every row."""
    outside: tuple[int, ...] = ()
    """Units whose hyperplane misses the data: all rows are on one side of it. Not the dead ones.
    Of prototypes: those that no row is nearest to."""
    flat: tuple[int, ...] = ()
    """Units that are constant, or at a flat end of their activation on nearly all rows."""
    copies: tuple[tuple[int, int], ...] = ()
    """Pairs of units with the same hyperplane and side, which training cannot tell apart."""
    silent: float = 0.0
    """Share of the rows that no unit reaches."""
    silent_samples: tuple[int, ...] = ()
    """The first few samples with such a row."""
    faulty: tuple[int, ...] = ()
    """Units that are NaN or infinite on some row."""
    positions: int = 1
    """Rows of a sample: patches of a convolution, places in a sequence."""
    prototypes: bool = False
    """Whether the units are distances to prototypes, and not hyperplanes."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """The faults in words."""
        kind = "prototypes" if self.prototypes else "units"
        place = "that no input is nearest to" if self.prototypes else "with all data on one side"
        faults = [
            (self.faulty, "NaN or infinite"),
            (self.dead, "reached by no input"),
            (self.outside, place),
            (self.flat, "flat from the start"),
        ]
        problems = [
            f"{len(units)} of {self.units} {kind} {fault} ({_few(units)})"
            for units, fault in faults
            if units
        ]
        if self.copies:
            pairs = [f"{i} = {j}" for i, j in self.copies]
            problems.append(f"{len(self.copies)} pairs of copies ({_few(pairs)})")
        if self.silent and (self.positions == 1 or self.silent == 1):
            problems.append(self._silence("inputs"))
        return tuple(problems)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks that are no faults: a blank patch may reach no unit, where others do."""
        if self.positions == 1 or not 0 < self.silent < 1:
            return ()
        return (self._silence("patches" if self.kind.startswith("Conv") else "rows"),)

    def _silence(self, rows: str) -> str:
        return f"{100 * self.silent:.3g} % of {rows} reach no unit ({_few(self.silent_samples)})"


class InitCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Faults of the starting weights of a model; made by :func:`check_init`.

    ``print(check)`` gives the answer and a line for each layer with a fault; ``check.ok`` is the
    answer alone, ``check.layer(name)`` the :class:`LayerCheck` of one layer.
    """

    layers: tuple[LayerCheck, ...]
    samples: int
    unread: tuple[str, ...] = ()
    """Parts with weights that are read neither as hyperplanes nor as prototypes."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any layer that was read."""
        return all(layer.ok for layer in self.layers)

    def layer(self, name: str) -> LayerCheck:
        """Return the layer of that name, or raise."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        known = ", ".join(layer.name for layer in self.layers)
        raise InputError(f"there is no layer {name!r} in this check; there are {known}")

    def __repr__(self) -> str:
        return f"InitCheck({str(self).splitlines()[0]})"

    def _repr_html_(self) -> str:
        """Return a row for each layer, with its problems and remarks."""
        rows = [
            (layer.name, layer.kind, layer.activation, layer.units, text)
            for layer in self.layers
            for text in ["; ".join((*layer.problems, *layer.remarks)) or "nothing wrong"]
        ]
        notes = [f"Not read: {', '.join(self.unread)}."] if self.unread else []
        columns = ("layer", "kind", "activation", "units", "problems")
        return table_html(str(self).splitlines()[0], columns, rows, notes)

    def __str__(self) -> str:
        """Return the answer, then a line for each layer with problems or remarks."""
        count, bad = len(self.layers), [layer for layer in self.layers if not layer.ok]
        on = f"on {self.samples} sample{'s' * (self.samples != 1)}"
        if not bad:
            lines = [f"ready to train: nothing wrong in {count} layer{'s' * (count > 1)} {on}"]
        else:
            lines = [f"not ready: something is wrong in {len(bad)} of {count} layers {on}"]
        for layer in self.layers:
            follows = "" if layer.activation == "none" else f", {layer.activation}"
            notes = [*layer.problems, *(f"by the way, {remark}" for remark in layer.remarks)]
            if notes:
                lines.append(f"  {layer.name} ({layer.kind}{follows}): {'; '.join(notes)}")
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
    - **silent**: inputs that reach no unit, so that nothing behind the layer can tell them apart.
      Of a convolution, patches are counted and remarked on: a blank one is no fault;
    - **faulty**: units that are NaN or infinite.

    Units of ``OffsetL2``, ``Mahalanobis`` and ``DistanceHead`` are distances. There **outside** are
    prototypes that no input is nearest to, and **copies** those at one place that measure alike.

    The output layer is held to the same, except for ``outside``: nothing bends there. Batch norms
    that have seen nothing yet are taken as they will be in training, with the statistics of the
    data. The model is left as it was.

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
    if not isinstance(model, nn.Module) or not fresh_norms(model):
        return _check(model, data, options)
    batches = Batches(data, options.get("batch_size", 512))
    try:
        with settled_norms(Runner(model, options.get("forward")), batches):
            return _check(model, data, options)
    finally:
        batches.restore()


def _check(model: nn.Module, data: Any, options: dict[str, Any]) -> InitCheck:
    layers = options.pop("layers", None)
    measuring = _prototype_layers(model) if isinstance(model, nn.Module) else {}
    wanted = measuring
    others = None
    if layers is not None:
        wanted = {name: measuring[name] for name in layers if name in measuring}
        others = [name for name in layers if name not in measuring]
    checks: list[LayerCheck] = []
    if wanted:
        running = {name: options[name] for name in ("batch_size", "forward") if name in options}
        checks, samples, more = _check_prototypes(model, wanted, data, **running)
        if checks and (others == [] or (others is None and not more)):
            return InitCheck(layers=tuple(checks), samples=samples)
    record = audit(model, data, layers=others, **{**_UNUSED, **options})
    # The audit reads prototypes as well, a head's under the head's name or that of its distances.
    prototypes = {name for layer in checks for name in (layer.name, f"{layer.name}.distance")}
    others_read = [layer for layer in record.layers if layer.name not in prototypes]
    read = [*map(_checked, others_read), *checks]
    # A PointSlope is read as the Linear that it is, though its points are no weight of one.
    names = {layer.name for layer in read} | prototypes
    return InitCheck(
        layers=tuple(read),
        samples=record.data.samples,
        unread=tuple(part.name for part in record.skipped if part.name not in names),
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
        faulty=tuple(units.mean.isnan().nonzero()[:, 0].tolist()),
        positions=layer.positions,
        silent=units.silent_share,
        silent_samples=units.silent_samples,
    )


def _prototype_layers(model: nn.Module) -> dict[str, tuple[str, Distances]]:
    """Return kind and layer of prototypes by name; that of a head goes by the name of the head."""
    model = getattr(model, "_orig_mod", model)
    modules = dict(model.named_modules())
    heads = {id(m.distance): name for name, m in modules.items() if isinstance(m, DistanceHead)}
    layers = {}
    for name, module in modules.items():
        if isinstance(module, Distances):
            kind = "DistanceHead" if id(module) in heads else type(module).__name__
            layers[heads.get(id(module), name) or kind] = kind, module
    return layers


def _check_prototypes(
    model: nn.Module,
    layers: dict[str, tuple[str, Distances]],
    data: Any,
    batch_size: int = 512,
    forward: Forward | None = None,
) -> tuple[list[LayerCheck], int, bool]:
    """Return the checks, the number of samples, and whether there are hyperplanes to read."""
    runner, batches = Runner(model, forward), Batches(data, batch_size, False)
    watched = {name: layer for name, (_, layer) in layers.items()}
    seen = {name: _Seen(len(layer.mu)) for name, layer in watched.items()}
    samples, more = 0, False
    try:
        with untouched(runner.model):
            first = next(iter(batches), None)
            more = first is not None and bool(runner.survey(first)[0])
        with (
            untouched(runner.model),
            watch_calls(watched, lambda name, x, output: seen[name].add(output)),
        ):
            for batch in batches:
                runner.run(batch, lambda use: None)
                samples += batch.size
    finally:
        batches.restore()
    checks = [
        seen[name].check(name, kind, layer)
        for name, (kind, layer) in layers.items()
        if seen[name].rows
    ]
    return checks, samples, more


class _Seen:
    """Extremes of the distances to K prototypes, over all rows."""

    def __init__(self, units: int) -> None:
        self.rows = 0
        self._nearest = torch.zeros(units, dtype=torch.int64)
        self._least = torch.full((units,), torch.inf, dtype=torch.float64)
        self._greatest = -self._least
        self._faulty = torch.zeros(units, dtype=torch.bool)

    def add(self, output: Tensor) -> None:
        """Take in the output of one call."""
        distances = output.detach().to("cpu").double().reshape(-1, len(self._nearest))
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
    """Return prototypes at one place that measure alike, each with the first that it repeats."""
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


def _few(items: Sequence[Any]) -> str:
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    return f"{shown}, ..." if len(items) > _SHOWN else shown
