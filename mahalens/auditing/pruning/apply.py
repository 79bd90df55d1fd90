"""Takes away the units that an audit found to be superfluous, without changing the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mahalens.auditing.pruning.checks import copied, require_fitting
from mahalens.auditing.pruning.outputs import Comparison, verify_same_outputs
from mahalens.auditing.pruning.paths import Shapes
from mahalens.auditing.pruning.plan import ACTIONS, LayerPlan, Left, Planner
from mahalens.auditing.record import AuditRecord
from mahalens.auditing.watch.batches import Batch, Batches
from mahalens.auditing.watch.forward import Forward, Runner
from mahalens.auditing.watch.untouched import untouched
from mahalens.errors import InputError
from mahalens.nn.layers import Abs
from mahalens.nn.mixed import AbsReLU

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Done:
    """Something that was done to a layer; pairs (i, j) are now one unit, i."""

    layer: str
    action: str
    units: tuple[int, ...] | tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Pruned:
    """What :func:`prune` did; it stands beside the smaller model, as ``smaller.pruned``.

    Attributes:
        done: what was done, by layer and action (``dead``, ``duplicate``, ``mirrored``); units
            are numbered as in the record.
        left: what the record shows but was not tried, and why.
        taken_back: what was tried and undone because it changed an output, and by how much.
        parameters: how many parameters there were before, and are now.
        samples: on how many samples the outputs were compared; 0 if nothing was done.
        change: the largest change of an output, relative to the largest output.
        rounding: the largest such change that counts as rounding.
    """

    done: tuple[Done, ...]
    left: tuple[Left, ...]
    taken_back: tuple[Left, ...]
    parameters: tuple[int, int]
    samples: int
    change: float
    rounding: float

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
        for word, rest in (("taken back", self.taken_back), ("left", self.left)):
            lines += [f"  {x.layer}: {len(x.units)} {x.action} {word}: {x.reason}" for x in rest]
        return "\n".join(lines)


def prune(
    model: M,
    record: AuditRecord,
    data: Any = None,
    *,
    actions: Iterable[str] = ACTIONS,
    batch_size: int = 512,
    drop_last: bool = False,
    forward: Forward | None = None,
) -> M:
    """Return a copy of a model without its superfluous units.

    Only what leaves the outputs on the data as they are, within rounding:

    - ``dead`` units, whose activation is 0 on all of it, go, and so does what reads them. A small
      activation counts as 0 if its reader makes less than rounding of it;
    - ``duplicate`` units, ``(w_j, b_j) = a (w_i, b_i)`` with a > 0, become one, which is read with
      ``v_i + a v_j``. Under an activation that does not scale with its input only if a = 1;
    - ``mirrored`` ReLU units, ``(w_j, b_j) = -a (w_i, b_i)``, become one absolute value where they
      are read with ``v_i = a v_j``: ``v_i relu(z) + v_j relu(-a z) = v_i |z|``. The ReLU's module
      becomes an :class:`~mahalens.nn.AbsReLU`. Under Abs, or no activation, any such pair is one.

    A layer is left alone if anything but one other layer reads its activations, if it is used
    several times, if its weights are shared or computed, or if the way to its reader is not
    plain (a hook, pooling across units, a reader along another axis).

    Before it returns, both models run on all of the data, in evaluation mode, and every tensor that
    they return is compared. Rounding is a change of ``16 L ε`` times the largest magnitude of that
    tensor, with L layers and the machine epsilon ε (``2 L ε`` in half precision). A layer that
    changes more, or makes the model fail, is taken back. ``smaller.pruned``, a :class:`Pruned`,
    holds what was done, left and taken back. Parameters stay frozen or not, as they were, and
    modules in their mode and on their device.

    Args:
        model: the model that was audited; it is not changed.
        record: what :func:`mahalens.audit` found in it.
        data: what the audit was given; outputs stay the same on it.
        actions: some of ``dead``, ``duplicate`` and ``mirrored``.
        batch_size: samples per batch, where the data does not come in batches.
        drop_last: leave out a last batch that is smaller, for models of a fixed batch size.
        forward: how to call the model: ``forward(model, *inputs)``.

    Example:
        >>> record = mahalens.audit(model, data)  # doctest: +SKIP
        >>> smaller = prune(model, record, data)  # doctest: +SKIP
        >>> print(smaller.pruned)  # doctest: +SKIP
        25,450 -> 22,270 parameters
          fc1: 3 dead units removed
          fc1: 1 mirrored pair folded into one unit each
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, wanted an nn.Module")
    if not isinstance(record, AuditRecord):
        raise InputError(f"the record is a {type(record).__name__}, wanted what audit returns")
    if data is None:
        raise InputError(
            "prune compares the outputs of the smaller model with those of the whole one before it "
            "returns, but data is None; give the data of the audit: prune(model, record, data)"
        )
    wanted = (actions,) if isinstance(actions, str) else tuple(actions)
    for action in wanted:
        if action not in ACTIONS:
            raise InputError(f"there is no action {action!r}; there are {', '.join(ACTIONS)}")
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    if not isinstance(getattr(model, "pruned", None), Pruned | None):
        raise InputError(
            "the model has an attribute 'pruned', where prune puts its record; rename it first"
        )
    require_fitting(model, record)
    batches = Batches(data, batch_size, labelled=False, drop_last=drop_last)
    try:
        return _prune(model, record, wanted, batches, forward)
    finally:
        batches.restore()


def _prune(
    model: M,
    record: AuditRecord,
    actions: tuple[str, ...],
    batches: Batches,
    forward: Forward | None,
) -> M:
    # A forward pass may keep things on its modules; only copies are run, and none is returned.
    whole = copied(model, share=True)
    planner = Planner(model, record, actions, lambda: _shapes(whole, record, batches, forward))
    plans = [plan for layer in record.layers if (plan := planner.plan(layer)) is not None]
    taken_back: list[Left] = []
    found = Comparison()
    while plans:
        tried = _smaller(model, plans)
        found = verify_same_outputs(whole, tried, batches, forward, see=planner.see)
        if planner.drop_audible(plans):
            plans = [plan for plan in plans if len(plan.kept) < plan.layer.units_count]
        elif found.fault:
            plans = _without_culprits(whole, plans, found, forward, taken_back)
        else:
            break
        found = Comparison()
    smaller = _smaller(model, plans)
    vars(smaller)["pruned"] = Pruned(
        done=tuple(step for plan in plans for step in _steps(plan)),
        left=tuple(planner.left),
        taken_back=tuple(taken_back),
        parameters=(_count(model), _count(smaller)),
        samples=found.samples,
        change=found.change,
        rounding=found.rounding,
    )
    return smaller


def _shapes(
    model: nn.Module, record: AuditRecord, batches: Batches, forward: Forward | None
) -> Shapes:
    """The shapes of what the audited layers are fed and give, on a few samples."""
    runner = Runner(model, forward)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def note_for(name: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            shapes[name] = tuple(x.shape), tuple(output.shape)

        return note

    modules = dict(model.named_modules(remove_duplicate=False))
    handles = []
    try:
        for layer in record.layers:
            if (module := modules.get(layer.name)) is not None:
                note = note_for(layer.name)
                handles.append(module.register_forward_hook(note, with_kwargs=True, prepend=True))
        with untouched(model):
            batch = next(iter(batches), None)
            if batch is None:
                raise InputError("the data has no samples; wanted at least one batch")
            try:
                runner.run(batch.cut(3), lambda use: None)
            except InputError:
                runner.run(batch, lambda use: None)  # a model for batches of one size
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _without_culprits(
    model: nn.Module,
    plans: Sequence[LayerPlan],
    found: Comparison,
    forward: Forward | None,
    taken_back: list[Left],
) -> list[LayerPlan]:
    """The plans that change nothing on the batch where all together do, one after another."""
    assert found.batch is not None
    scales = {place: part.scale for place, part in found.parts.items()}
    trials: list[Batch] = [found.batch]
    good: list[LayerPlan] = []
    faults: list[tuple[LayerPlan, str]] = []
    for plan in plans:
        changed = _smaller(model, [*good, plan])
        alone = verify_same_outputs(model, changed, trials, forward, scales=scales)
        if alone.fault:
            faults.append((plan, alone.fault))
        else:
            good.append(plan)
    if not faults:  # the model does not repeat itself, so nothing can be promised
        faults, good = [(plan, found.fault) for plan in plans], []
    for plan, fault in faults:
        taken_back += [Left(step.layer, step.action, step.units, fault) for step in _steps(plan)]
    return good


def _smaller(model: M, plans: Iterable[LayerPlan]) -> M:
    """A copy of the model with the plans carried out."""
    smaller = copied(model)
    for plan in plans:
        _apply(smaller, plan)
    return smaller


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
    weight: Any = model.get_submodule(plan.layer.name).weight
    new: nn.Module = Abs()
    if not bool(absolute.all()):
        # Counted from the end, the axis of a convolution's units is the same without a batch.
        new = AbsReLU(absolute, dim=plan.path.dim, device=weight.device)
    parent, _, name = plan.path.activation.rpartition(".")
    holder = model.get_submodule(parent)
    new.train(holder.get_submodule(name).training)
    setattr(holder, name, new)


def _steps(plan: LayerPlan) -> list[Done]:
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
