"""Which units of a layer can go without changing what the network computes, and which cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.pruning.checks import Changes, double, require_same_weights
from mahalens.auditing.pruning.paths import Path, Paths
from mahalens.auditing.record import AuditRecord, LayerRecord

ACTIONS = ("dead", "duplicate", "mirrored")
HOMOGENEOUS = ("relu", "abs", "leaky_relu", "none")
"""Activations with f(az) = a f(z) for every a > 0."""
NO_ACTIVITY = 1e-6
"""Units whose activations are never larger than this may be taken for dead."""
_ROUNDING = 8  # units in the last place by which equal weights may differ


@dataclass(frozen=True)
class Left:
    """Units that were left as they are, and why."""

    layer: str
    action: str
    units: tuple[int, ...] | tuple[tuple[int, int], ...]
    reason: str


@dataclass
class LayerPlan:
    """What to do with a layer of K units.

    ``merges`` (i, j, a) adds a times what is read of unit j to what is read of unit i, and takes
    j away; ``folds`` (i, j) makes unit i an absolute value and takes j away.
    """

    layer: LayerRecord
    reader: str
    path: Path
    dead: list[int] = field(default_factory=list)
    merges: list[tuple[int, int, float]] = field(default_factory=list)
    merged: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Pairs in ``merges`` by the action that they come from."""
    folds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def kept(self) -> list[int]:
        """The units that stay, in order."""
        gone = {*self.dead, *(j for _, j, _ in self.merges), *(j for _, j in self.folds)}
        return [unit for unit in range(self.layer.units_count) if unit not in gone]


class Planner:
    """Plans for the layers of a model; nothing is changed.

    Args:
        model: the model that was audited.
        record: what was found.
        actions: some of ``dead``, ``duplicate``, ``mirrored``.
    """

    def __init__(self, model: nn.Module, record: AuditRecord, actions: tuple[str, ...]) -> None:
        self.model, self.record, self.actions = model, record, actions
        self.layers = {layer.name: layer for layer in record.layers}
        self._left: dict[tuple[str, str, str], list[Any]] = {}
        self._paths: Paths | None = None
        self._changes = Changes(model)

    def plan(self, layer: LayerRecord) -> LayerPlan | None:
        """What can be done with a layer, or None; what cannot be is in ``left``."""
        wanted = self._wanted(layer)
        if not any(wanted.values()):
            return None
        path = self._obstacle(layer)
        if isinstance(path, str):
            for action, units in wanted.items():
                self._leave(layer, action, units, path)
            return None
        assert layer.feeds is not None
        plan = LayerPlan(layer, layer.feeds, path)
        weight, bias, reads = self._numbers(plan)
        require_same_weights(layer, weight)
        self._plan_dead(plan, wanted["dead"])
        self._plan_duplicates(plan, wanted["duplicate"], weight, bias, reads)
        self._plan_mirrored(plan, wanted["mirrored"], weight, bias, reads)
        return plan if len(plan.kept) < layer.units_count else None

    def _wanted(self, layer: LayerRecord) -> dict[str, tuple[Any, ...]]:
        pairs = layer.pairs
        return {
            "dead": layer.units.dead if "dead" in self.actions else (),
            "duplicate": pairs.duplicate if pairs and "duplicate" in self.actions else (),
            "mirrored": pairs.mirrored if pairs and "mirrored" in self.actions else (),
        }

    @property
    def left(self) -> list[Left]:
        """What cannot be done, so far."""
        return [
            Left(layer, action, tuple(units), reason)
            for (layer, action, reason), units in self._left.items()
        ]

    def _leave(self, layer: LayerRecord, action: str, units: Iterable[Any], reason: str) -> None:
        for unit in units:
            self._left.setdefault((layer.name, action, reason), []).append(unit)

    def _obstacle(self, layer: LayerRecord) -> Path | str:
        """The way to the layer's only reader, or why nothing can be taken from the layer."""
        if layer.calls != 1:
            return f"it is used {layer.calls} times in a forward pass"
        if layer.feeds is None:
            return "its activations are not read by one layer alone"
        reader = self.layers.get(layer.feeds)
        if reader is None or reader.calls != 1:
            return f"{layer.feeds} reads other things too"
        if layer.activation in ("mixed", "prelu"):
            return f"its activation ({layer.activation}) is not the same for all units"
        if layer.folded not in (None, "BatchNorm"):
            return f"{layer.folded} stands between it and its activation"
        for name in (layer.name, layer.feeds):
            fault = self._changes.fault(name)
            if fault:
                return f"{name} {fault}"
        if self._paths is None:
            self._paths = Paths(self.model)
        path = self._paths.find(layer.name, layer.feeds)
        if isinstance(path, Path):
            for name in path.norms:
                fault = self._changes.fault(name)
                if fault:
                    return f"{name} {fault}"
            if (layer.folded is None) != (not path.norms):
                return "the batch norm that the audit saw before its activation was not found"
            if (layer.activation == "none") == path.active:
                return "the activation that the audit saw was not found"
        return path

    def _numbers(self, plan: LayerPlan) -> tuple[Tensor, Tensor, Tensor]:
        """Weights [K, D] and biases [K] with batch norms folded in, and what reads them [O, K, S].

        All in float64. S numbers read a unit: kernel places of a convolution, or places of a
        flattened picture.
        """
        layer: Any = self.model.get_submodule(plan.layer.name)
        weight = double(layer.weight).flatten(1)
        units = len(weight)
        bias = weight.new_zeros(units) if layer.bias is None else double(layer.bias)
        for name in plan.path.norms:
            norm: Any = self.model.get_submodule(name)
            scale = (double(norm.running_var) + norm.eps).rsqrt()
            scale = scale if norm.weight is None else scale * double(norm.weight)
            bias = (bias - double(norm.running_mean)) * scale
            bias = bias if norm.bias is None else bias + double(norm.bias)
            weight = weight * scale[:, None]
        reads = double(self.model.get_submodule(plan.reader).weight)
        return weight, bias, reads.reshape(len(reads), units, -1).clone()

    def _plan_dead(self, plan: LayerPlan, units: Iterable[int]) -> None:
        layer, reading = plan.layer, plan.layer.units
        dead = list(units)
        if self.record.settings.tolerance > NO_ACTIVITY:
            # Of a ReLU the largest pre-activation says the same more sharply.
            small = (reading.greatest <= NO_ACTIVITY).tolist()
            far = [u for u in dead if not (layer.activation == "relu" and small[u])]
            reason = f"activations up to {self.record.settings.tolerance:g} counted as none"
            self._leave(layer, "dead", far, reason)
            dead = [unit for unit in dead if unit not in far]
        if len(dead) == layer.units_count:
            self._leave(layer, "dead", dead[:1], "a layer needs at least one unit")
            dead = dead[1:]
        plan.dead = dead

    def _plan_duplicates(
        self,
        plan: LayerPlan,
        pairs: Iterable[tuple[int, int]],
        weight: Tensor,
        bias: Tensor,
        reads: Tensor,
    ) -> None:
        layer = plan.layer
        precision = self._precision(layer.name)
        into: dict[int, int] = {}
        for first, j in sorted(pairs):
            i = into.get(first, first)
            if j in into or i in plan.dead or j in plan.dead:
                continue
            factor = _factor(weight, bias, i, j, precision)
            if factor is None or factor < 0:
                self._leave(layer, "duplicate", [(i, j)], "equal only nearly, not within rounding")
            elif layer.activation not in HOMOGENEOUS and abs(factor - 1) > precision:
                reason = f"{layer.activation} does not scale with its input, and they differ in it"
                self._leave(layer, "duplicate", [(i, j)], reason)
            else:
                into[j] = i
                _merge(plan, "duplicate", i, j, factor, reads)

    def _plan_mirrored(
        self,
        plan: LayerPlan,
        pairs: Iterable[tuple[int, int]],
        weight: Tensor,
        bias: Tensor,
        reads: Tensor,
    ) -> None:
        layer, path = plan.layer, plan.path
        into = {j: i for i, j, _ in plan.merges}
        used: set[int] = set()
        for given in pairs:
            i, j = sorted(into.get(unit, unit) for unit in given)
            if i == j or {i, j} & used or any(unit in plan.dead for unit in given):
                continue
            factor = _factor(weight, bias, i, j, self._precision(layer.name))
            if factor is None or factor > 0:
                reason = "not the same hyperplane within rounding"
            elif layer.activation == "abs":  # |-az| = a|z|
                reason = ""
                _merge(plan, "mirrored", i, j, -factor, reads)
            elif layer.activation == "none" and path.linear:
                reason = ""
                _merge(plan, "mirrored", i, j, factor, reads)
            else:
                reason = self._no_absolute_value(plan, reads[:, i], -factor * reads[:, j])
                if not reason:
                    plan.folds.append((i, j))
            if reason:
                self._leave(layer, "mirrored", [(i, j)], reason)
            else:
                used |= {i, j}

    def _no_absolute_value(self, plan: LayerPlan, first: Tensor, second: Tensor) -> str:
        """Why ``first relu(z) + second relu(-z)`` cannot be written as ``first |z|``."""
        path, activation = plan.path, plan.layer.activation
        if activation != "relu":
            return f"pairs are an absolute value under relu, not under {activation}"
        if path.activation is None:
            return "its ReLU is no module that is used once, so nothing can stand in its place"
        if type(self.model.get_submodule(path.activation)) is not nn.ReLU:
            return f"{path.activation} is no plain nn.ReLU"
        if not path.linear:
            return "max pooling follows, and the larger of two is not their sum"
        if (first - second).norm() > self._precision(plan.reader) * first.norm():
            return "the two are read with different weights, so they are no absolute value"
        return ""

    def _precision(self, name: str) -> float:
        module: Any = self.model.get_submodule(name)
        return _ROUNDING * torch.finfo(module.weight.dtype).eps


def _merge(plan: LayerPlan, action: str, i: int, j: int, factor: float, reads: Tensor) -> None:
    reads[:, i] += factor * reads[:, j]
    plan.merges.append((i, j, factor))
    plan.merged.setdefault(action, []).append((i, j))


def _factor(weight: Tensor, bias: Tensor, i: int, j: int, precision: float) -> float | None:
    """The a with ``(w_j, b_j) = a (w_i, b_i)`` within rounding, of any sign; None if none."""
    first, second = weight[i], weight[j]
    square, length = float(first @ first), float(second.norm())
    if not square > 0 or not length > 0:
        return None
    factor = float(first @ second) / square
    apart = float((second - factor * first).norm())
    shifted = abs(float(bias[j]) - factor * float(bias[i]))
    equal = apart <= precision * length and shifted <= precision * (abs(float(bias[j])) + length)
    return factor if equal else None
