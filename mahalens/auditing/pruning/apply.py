"""Takes away the units that an audit found to be superfluous, without changing the outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.pruning.checks import require_fitting
from mahalens.auditing.pruning.plan import ACTIONS, LayerPlan, Left, Planner
from mahalens.auditing.record import AuditRecord
from mahalens.errors import InputError
from mahalens.nn.layers import Abs
from mahalens.nn.mixed import AbsReLU

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@dataclass(frozen=True)
class Done:
    """Something that was done to a layer; pairs (i, j) are now one unit, i."""

    layer: str
    action: str
    units: tuple[int, ...] | tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Pruned:
    """A smaller model that computes the same on the audited data.

    Attributes:
        model: the new model.
        done: what was done, by layer and action (``dead``, ``duplicate``, ``mirrored``); units
            are numbered as in the record.
        left: what was found but not done, and why.
        parameters: how many parameters there were before, and are now.
    """

    model: nn.Module
    done: tuple[Done, ...]
    left: tuple[Left, ...]
    parameters: tuple[int, int]

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [f"{before:,} -> {after:,} parameters" if self.done else "nothing was pruned"]
        words = {
            "dead": "dead unit{} removed",
            "duplicate": "duplicate{} merged",
            "mirrored": "mirrored pair{} folded into one unit each",
        }
        for step in self.done:
            count = len(step.units)
            lines.append(f"  {step.layer}: {count} {words[step.action].format('s' * (count > 1))}")
        rest = [f"  {x.layer}: {len(x.units)} {x.action} left: {x.reason}" for x in self.left]
        return "\n".join([*lines, *rest])


def prune(model: nn.Module, record: AuditRecord, *, actions: Iterable[str] = ACTIONS) -> Pruned:
    """Take superfluous units out of a copy of a model.

    Only what leaves the outputs on the audited data as they are, within rounding:

    - ``dead`` units, whose activation is 0 on all of it, go, and so does what reads them;
    - ``duplicate`` units, ``(w_j, b_j) = a (w_i, b_i)`` with a > 0, become one, which is read with
      ``v_i + a v_j``. Under an activation that does not scale with its input only if a = 1;
    - ``mirrored`` ReLU units, ``(w_j, b_j) = -a (w_i, b_i)``, become one absolute value where they
      are read with ``v_i = a v_j``: ``v_i relu(z) + v_j relu(-a z) = v_i |z|``. The ReLU's module
      becomes an :class:`~mahalens.nn.AbsReLU`. Under Abs, or no activation, any such pair is one.

    A layer is left alone if anything but one other layer reads its activations, if it is used
    several times, if its weights are shared or computed, or if the way to its reader is not
    plain; the result says so. Parameters stay frozen or not, as they were, and modules in their
    mode and on their device.

    Args:
        model: the model that was audited; it is not changed.
        record: what :func:`mahalens.audit` found in it.
        actions: some of ``dead``, ``duplicate`` and ``mirrored``.

    Example:
        >>> pruned = prune(model, mahalens.audit(model, data))  # doctest: +SKIP
        >>> print(pruned)  # doctest: +SKIP
        25,450 -> 22,270 parameters
          fc1: 3 dead units removed
          fc1: 1 mirrored pair folded into one unit each
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, wanted an nn.Module")
    if not isinstance(record, AuditRecord):
        raise InputError(f"the record is a {type(record).__name__}, wanted what audit returns")
    wanted = (actions,) if isinstance(actions, str) else tuple(actions)
    for action in wanted:
        if action not in ACTIONS:
            raise InputError(f"there is no action {action!r}; there are {', '.join(ACTIONS)}")
    require_fitting(model, record)
    planner = Planner(model, record, wanted)
    plans = [plan for layer in record.layers if (plan := planner.plan(layer)) is not None]
    try:
        smaller = copy.deepcopy(model)
    except Exception as error:  # any, from the user's own modules
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the model cannot be copied ({reason}); it was not changed") from error
    done: list[Done] = []
    for plan in plans:
        _apply(smaller, plan)
        done += _told(plan)
    return Pruned(
        model=smaller,
        done=tuple(done),
        left=tuple(planner.left),
        parameters=(_count(model), _count(smaller)),
    )


def _apply(model: nn.Module, plan: LayerPlan) -> None:
    """Change the sizes of a layer, its batch norms, its reader and perhaps its activation."""
    kept = torch.tensor(plan.kept)
    layer, reader = model.get_submodule(plan.layer.name), model.get_submodule(plan.reader)
    units = plan.layer.units_count
    weight: Any = reader.weight
    # In float64, where sums of two are rounded once; columns that are not touched come back exact.
    reads = weight.detach().to("cpu").to(torch.float64).reshape(len(weight), units, -1).clone()
    for i, j, factor in plan.merges:
        reads[:, i] += factor * reads[:, j]
    chosen = reads[:, kept]
    shape = weight.shape[2:] if weight.ndim > 2 else ()
    narrow = chosen.reshape(len(weight), -1, *shape) if shape else chosen.flatten(1)
    _replace(reader, "weight", narrow)
    for name in ("weight", "bias"):
        _select(layer, name, kept)
    for path in plan.path.norms:
        norm: Any = model.get_submodule(path)
        for name in ("weight", "bias", "running_mean", "running_var"):
            _select(norm, name, kept)
        norm.num_features = len(kept)
    _set_sizes(layer, outputs=len(kept))
    _set_sizes(reader, inputs=narrow.shape[1])
    if plan.folds:
        _replace_activation(model, plan, kept)


def _select(module: nn.Module, name: str, kept: Tensor) -> None:
    tensor = getattr(module, name)
    if tensor is not None:
        _replace(module, name, tensor.detach()[kept.to(tensor.device)])


def _replace(module: nn.Module, name: str, values: Tensor) -> None:
    """Put new numbers into a parameter or buffer, on the same device and of the same type."""
    old = getattr(module, name)
    new = values.to(device=old.device, dtype=old.dtype).contiguous()
    if isinstance(old, nn.Parameter):
        setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))
    else:
        setattr(module, name, new)


def _set_sizes(module: nn.Module, inputs: int | None = None, outputs: int | None = None) -> None:
    kind = "features" if isinstance(module, nn.Linear) else "channels"
    for side, size in (("in", inputs), ("out", outputs)):
        if size is not None:
            setattr(module, f"{side}_{kind}", size)


def _replace_activation(model: nn.Module, plan: LayerPlan, kept: Tensor) -> None:
    assert plan.path.activation is not None
    absolute = torch.isin(kept, torch.tensor([i for i, _ in plan.folds]))
    layer = model.get_submodule(plan.layer.name)
    weight: Any = layer.weight
    new: nn.Module = Abs()
    if not bool(absolute.all()):
        # Counted from the end, the axis of a convolution's units is the same without a batch.
        dim = -1 if isinstance(layer, nn.Linear) else 1 - weight.ndim
        new = AbsReLU(absolute, dim=dim, device=weight.device)
    parent, _, name = plan.path.activation.rpartition(".")
    holder = model.get_submodule(parent)
    old = holder.get_submodule(name)
    new.train(old.training)
    for hooks in _HOOKS:
        setattr(new, hooks, getattr(old, hooks))
    setattr(holder, name, new)


def _told(plan: LayerPlan) -> list[Done]:
    name = plan.layer.name
    mirrored = (*plan.merged.get("mirrored", ()), *plan.folds)
    steps: list[tuple[str, Any]] = [
        ("dead", tuple(plan.dead)),
        ("duplicate", tuple(plan.merged.get("duplicate", ()))),
        ("mirrored", tuple(mirrored)),
    ]
    return [Done(name, action, units) for action, units in steps if units]


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
