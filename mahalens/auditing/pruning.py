"""Prune a network: take away the units that an audit found superfluous, keeping the outputs.

:func:`prune` makes plans (:mod:`mahalens.auditing._prune_plan`), carries them out on a copy, and
compares the outputs of both models on the data with :func:`verify_same_outputs`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mahalens._show import counted, table_html
from mahalens.auditing._prune_plan import (
    ACTIONS,
    Done,
    LayerPlan,
    Left,
    Planner,
    Shapes,
    as_double,
    copied,
    require_fitting,
)
from mahalens.auditing.batches import Batch, DataBatches
from mahalens.auditing.record import AuditRecord
from mahalens.auditing.runner import Forward, Runner, untouched
from mahalens.auditing.trace import Use
from mahalens.errors import InputError
from mahalens.nn.layers import Abs, AbsReLU

M = TypeVar("M", bound=nn.Module)


_WORDS = {
    "dead": "dead unit{} removed",
    "duplicate": "duplicate{} merged",
    "mirrored": "mirrored pair{} folded into one unit each",
}


@dataclass(frozen=True, repr=False)
class Pruned:
    """The changes that :func:`prune` made, beside the smaller model as ``smaller.pruned``.

    Attributes:
        done: what was done, by layer and action (``dead``, ``duplicate``, ``mirrored``); units
            are numbered as in the record, and pairs (i, j) are now one unit, i.
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

    def __repr__(self) -> str:
        return f"Pruned({str(self).splitlines()[0]}, {counted(len(self.done), 'step')})"

    def _repr_html_(self) -> str:
        """Return a row for each step that was taken, taken back or left."""
        steps = {"done": self.done, "taken back": self.taken_back, "left": self.left}
        rows = [
            (step.layer, step.action, len(step.units), outcome, getattr(step, "reason", ""))
            for outcome, some in steps.items()
            for step in some
        ]
        columns = ("layer", "action", "units", "outcome", "reason")
        return table_html(str(self).splitlines()[0], columns, rows)

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [f"{before:,} -> {after:,} parameters" if self.done else "nothing was pruned"]
        for step in self.done:
            count = len(step.units)
            lines.append(f"  {step.layer}: {count} {_WORDS[step.action].format('s' * (count > 1))}")
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
    with untouched(model):  # to read a weight may change it: spectral norm in training
        require_fitting(model, record)
    batches = DataBatches(data, batch_size, labelled=False, drop_last=drop_last)
    try:
        return _prune(model, record, wanted, batches, forward)
    finally:
        batches.restore()


def _prune(
    model: M,
    record: AuditRecord,
    actions: tuple[str, ...],
    batches: DataBatches,
    forward: Forward | None,
) -> M:
    # A forward pass may keep things on its modules; only copies are run, and none is returned.
    whole = copied(model, share=True)
    planner = Planner(model, record, actions, lambda: _shapes(whole, record, batches, forward))
    plans = [plan for layer in record.layers if (plan := planner.plan(layer)) is not None]
    taken_back: list[Left] = []
    comparison = Comparison()
    while plans:
        tried = _smaller(model, plans)
        comparison = verify_same_outputs(whole, tried, batches, forward, see=planner.see)
        if planner.drop_audible(plans):
            plans = [plan for plan in plans if len(plan.kept) < plan.layer.units_count]
        elif comparison.fault:
            plans = _without_culprits(whole, plans, comparison, forward, taken_back)
        else:
            break
        comparison = Comparison()
    smaller = _smaller(model, plans)
    vars(smaller)["pruned"] = Pruned(
        done=tuple(step for plan in plans for step in plan.steps()),
        left=tuple(planner.left),
        taken_back=tuple(taken_back),
        parameters=(_count(model), _count(smaller)),
        samples=comparison.samples,
        change=comparison.change,
        rounding=comparison.rounding,
    )
    return smaller


def _shapes(
    model: nn.Module, record: AuditRecord, batches: DataBatches, forward: Forward | None
) -> Shapes:
    """Return the shapes of what the audited layers are fed and give, on a few samples."""
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        x = args[0] if args else next(iter(kwargs.values()))
        shapes[name] = tuple(x.shape), tuple(output.shape)

    audited = {layer.name for layer in record.layers}
    with contextlib.ExitStack() as hooks, untouched(model):
        for path, part in model.named_modules(remove_duplicate=False):
            if (name := path.replace("_orig_mod.", "")) in audited:
                see = partial(note, name)
                hooks.enter_context(part.register_forward_hook(see, prepend=True, with_kwargs=True))
        batch = next(iter(batches), None)
        if batch is None:
            raise InputError("the data has no samples; wanted at least one batch")
        runner = Runner(model, forward)
        try:
            runner.run(batch.cut(3), lambda use: None)
        except InputError:
            runner.run(batch, lambda use: None)  # a model for batches of one size
    return shapes


def _without_culprits(
    model: nn.Module,
    plans: list[LayerPlan],
    together: Comparison,
    forward: Forward | None,
    taken_back: list[Left],
) -> list[LayerPlan]:
    """Return the plans that change nothing on the batch where all together do, one by one."""
    assert together.batch is not None
    scales = {place: part.scale for place, part in together.parts.items()}
    trials: list[Batch] = [together.batch]
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
        faults, good = [(plan, together.fault) for plan in plans], []
    for plan, fault in faults:
        taken_back += [Left(step.layer, step.action, step.units, fault) for step in plan.steps()]
    return good


def _smaller(model: M, plans: Iterable[LayerPlan]) -> M:
    """Return a copy of the model with the plans carried out."""
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
    reads = as_double(weight).reshape(len(weight), units, -1).clone()
    for i, j, factor in plan.merges:
        reads[:, i] += factor * reads[:, j]
    narrow = reads[:, kept].reshape(len(weight), -1, *weight.shape[2:])
    _replace(reader, "weight", narrow)
    for path in (plan.layer.name, *plan.path.norms):
        module: Any = model.get_submodule(path)
        for name in ("weight", "bias", "running_mean", "running_var"):
            if (tensor := getattr(module, name, None)) is not None:
                _replace(module, name, tensor.detach()[kept.to(tensor.device)])
        if path != plan.layer.name:
            module.num_features = len(kept)
    _set_size(layer, "out", len(kept))
    _set_size(reader, "in", narrow.shape[1])
    if plan.folds:
        _replace_activation(model, plan, kept)


def _replace(module: nn.Module, name: str, values: Tensor) -> None:
    """Put new numbers into a parameter or buffer, on the same device and of the same type."""
    old = getattr(module, name)
    new = values.to(device=old.device, dtype=old.dtype).contiguous()
    if isinstance(old, nn.Parameter):
        setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))
    else:
        setattr(module, name, new)


def _set_size(module: nn.Module, side: str, size: int) -> None:
    setattr(module, f"{side}_{'features' if isinstance(module, nn.Linear) else 'channels'}", size)


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


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


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
    """The largest difference between the outputs of two models.

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
    whole, edited = Runner(before, forward), Runner(after, forward)
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
                wanted, _ = whole.run(_copied(batch), note)
            result.samples += batch.size
            result.layers = max(result.layers, len(uses))
            try:
                outputs, _ = edited.run(_copied(batch), note_other)
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
    """Yield every tensor and number in an output, with its place."""
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
    elif not isinstance(value, nn.Module | type):
        value = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        for key, part in parts.items():
            yield from _tensors(part, f"{place}.{key}", above)


def _copied(batch: Batch) -> Batch:
    try:
        return copy.deepcopy(batch)
    except RuntimeError:  # tensors with a graph cannot be copied
        return batch
