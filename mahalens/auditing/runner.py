"""Calling a model on batches, and finding its layers."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from mahalens.auditing.batches import Batch
from mahalens.auditing.site import Site, find_layouts
from mahalens.auditing.survey import Survey
from mahalens.auditing.trace import Names, Tracer, Use, mapped, tensors_in
from mahalens.errors import InputError, MahalensError


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluate a model; afterwards its modes, values and the random state are as before.

    No gradients are recorded. Every module is in evaluation mode meanwhile; the flag is set
    module by module, because exported programs and some users' models do not take ``eval()``.
    Parameters and buffers that the forward pass writes to (a counter, an embedding with
    ``max_norm``) get their values back, attributes that it sets (a hidden state) their old objects,
    and lists, dicts, sets and deques that it fills (a cache) their old entries, also after an
    error. What was compiled runs as it was written.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]  # scripted modules keep it elsewhere
    attributes = [_attributes(module) for module in modules]
    tensors = [*model.parameters(), *model.buffers()]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    state, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (a user's own state)
    compiled = "torch._dynamo" in sys.modules  # run as Python, where it can be watched
    try:
        with (
            torch.random.fork_rng(devices=list(devices)),
            torch.no_grad(),
            torch.compiler.set_stance("force_eager") if compiled else nullcontext(),
        ):
            for module in modules:
                module.training = False
            yield
    finally:
        for module, mode, (plain, tables) in zip(modules, modes, attributes, strict=True):
            _put_back(module, plain, tables)
            module.training = mode
        for tensor, value in values:
            # NaN is equal to nothing: a tensor with NaN is put back in any case.
            if tensor.shape != value.shape:
                tensor.data = value
            elif not torch.equal(tensor, value):
                tensor.data.copy_(value)
        random.setstate(state)
        np.random.set_state(numbers)  # noqa: NPY002


def _attributes(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a module's attributes, and the entries of its dicts, lists, sets and deques."""
    plain = dict(vars(module))
    return plain, {
        name: dict(value) if isinstance(value, dict) else list(value)
        for name, value in plain.items()
        if isinstance(value, dict | list | set | deque)
    }


def _put_back(module: nn.Module, plain: dict[str, Any], entries: dict[str, Any]) -> None:
    now = vars(module)
    for name in [name for name in now if name not in plain]:
        del now[name]
    now.update(plain)
    for name, old in entries.items():
        held = now[name]
        if not _same_entries(held, old):
            held.clear()
            if isinstance(held, dict | set):
                held.update(old)
            else:
                held.extend(old)


def _same_entries(held: Any, old: Any) -> bool:
    """Return whether something holds the same objects as before, in the same order."""
    if isinstance(held, dict):
        return list(held) == list(old) and all(held[key] is old[key] for key in old)
    if isinstance(held, set):
        return held == set(old)
    return len(held) == len(old) and all(a is b for a, b in zip(held, old, strict=True))


def model_failure(inputs: Any, error: Exception) -> InputError:
    """Return the error to raise where a model fails on some inputs."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    shapes = ", ".join(str(list(t.shape)) for t in tensors_in(inputs))
    return InputError(
        f"the model fails on the data, a batch of shape {shapes}: {reason}; check that the model "
        f"takes such inputs"
    )


Forward = Callable[..., Any]


class Runner:
    """Runs a model on batches and shows every use of a layer.

    Args:
        model: the model.
        forward: how to call it: ``forward(model, *inputs)``; by default ``model(*inputs)``.
    """

    def __init__(self, model: nn.Module, forward: Forward | None = None) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise InputError(
                "the model is TorchScript, whose inside cannot be watched; give the nn.Module it "
                "was made from, or convert its file with "
                "mahalens.auditing.load.load_model(path, trust=True)"
            )
        if not isinstance(model, nn.Module):
            raise InputError(f"the model is a {type(model).__name__}; give an nn.Module")
        model = getattr(model, "_orig_mod", model)  # what torch.compile was given
        _require_values(model)
        self.model = model
        self._compiled = any(hasattr(part, "_orig_mod") for part in model.modules())
        self.names = Names(model)
        self.notes: list[str] = []
        self.forward = forward
        floats = {p.dtype for p in model.parameters() if p.is_floating_point()}
        self._dtype = floats.pop() if len(floats) == 1 else None
        first = next(iter(model.parameters()), None)
        self._device = None if first is None else first.device

    def run(
        self,
        batch: Batch,
        on_layer: Callable[[Use], Any],
        on_other: Callable[..., Any] | None = None,
        on_before: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, Tracer]:
        """Return the model's output on a batch, and show each use of a layer to ``on_layer``."""
        args, kwargs = mapped((batch.args, batch.kwargs), self._fitted)
        tracer = Tracer(self.names, on_layer, on_other, on_before)
        try:
            with contextlib.ExitStack() as stack:
                if self._compiled:  # hooks see compiled parts twice, and torch warns of it
                    stack.enter_context(warnings.catch_warnings())
                    warnings.filterwarnings("ignore", message=".*global hooks on modules.*")
                stack.enter_context(self.names.following(tracer.measured))
                stack.enter_context(tracer)
                if self.forward is not None:
                    return self.forward(self.model, *args, **kwargs), tracer
                return self.model(*args, **kwargs), tracer
        except MahalensError:
            raise
        except Exception as error:
            if tracer.fault is error:
                raise
            raise model_failure((args, kwargs), error) from error

    def survey(self, batch: Batch, whole: bool = False) -> tuple[dict[str, Site], dict[str, str]]:
        """Return the layers in order of first use, and those that cannot be read, with reasons.

        A few samples are looked at; with ``whole`` all, as a few may use fewer layers.
        """
        sizes = [3, 2] if batch.size >= 3 else [2, 1][2 - batch.size :]
        sizes = [batch.size] if whole else sizes
        try:
            sites, unread = self._look(batch.cut(sizes[0]))
        except InputError:
            if batch.size == sizes[0]:
                raise
            sizes = [batch.size]  # a program exported for batches of one size takes no other
            sites, unread = self._look(batch)
        others: list[dict[str, Site]] = [{}, {}]  # with fewer samples, and in reverse order
        if len(sizes) == 2:
            with contextlib.suppress(InputError):
                others[0], _ = self._look(batch.cut(sizes[1]))
        if sizes[0] > 1:
            others[1], _ = self._look(batch.cut(sizes[0]).turned())
        for name, site in sites.items():
            fewer, turned = (other.get(name) for other in others)
            if not all(_same_weight(other, site) for other in (fewer, turned)):
                unread[name] = "has a weight that is computed anew for each batch"
            site.compare(fewer)
            site.compare(turned)
            find_layouts(site, fewer, turned, sizes[0], sizes[-1])
        return {name: site for name, site in sites.items() if name not in unread}, unread

    def _look(self, batch: Batch) -> tuple[dict[str, Site], dict[str, str]]:
        survey = Survey()
        output, tracer = self.run(batch, survey.on_layer, survey.on_other, survey.on_before)
        survey.finish(output)
        return survey.sites, tracer.unread

    def _fitted(self, value: Any) -> Any:
        """Return an input on the model's device, and in its precision."""
        if not isinstance(value, Tensor):
            return value
        if self._dtype is not None and value.is_floating_point() and value.dtype != self._dtype:
            note = f"inputs were converted from {value.dtype} to the model's {self._dtype}"
            if note not in self.notes:
                self.notes.append(note)
            value = value.to(self._dtype)
        return value if self._device is None else value.to(self._device)


def _same_weight(other: Site | None, site: Site) -> bool:
    if other is None:
        return True
    one, two = (of.weight.nan_to_num() for of in (other, site))
    return one.shape == two.shape and torch.equal(one, two)


def _require_values(model: nn.Module) -> None:
    """Refuse a model whose weights are not there yet, before anything is done with it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise InputError(
                f"the model's {name} has no shape yet (a lazy module); run the model once on data "
                f"before it is read"
            )
        if tensor.is_meta:
            raise InputError(
                f"the model's {name} is on the meta device and has no values; load its weights "
                f"first, for example with model.to_empty(device='cpu') and load_state_dict"
            )


def scores_of(output: Any, samples: int) -> Tensor | None:
    """Return the class scores [B, C] in a model's output, if it has any."""
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, dict):
        logits = output.get("logits")
    if logits is None:
        logits = next(iter(tensors_in(output)), None)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.is_complex():
        return None
    return logits if logits.shape[0] == samples and logits.shape[1] > 1 else None


def predicted(output: Any, samples: int, predict: Callable[[Any], Tensor]) -> Tensor:
    """Return the classes [B] that the user's ``predict`` finds in a model's output."""
    try:
        classes = predict(output)
    except Exception as error:  # any, from the user's own function
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"predict fails on the model's output, a {type(output).__name__} "
            f"({type(error).__name__}: {reason}); give a function from it to classes [B]"
        ) from error
    if not isinstance(classes, Tensor) or tuple(classes.shape) != (samples,):
        kind = list(classes.shape) if isinstance(classes, Tensor) else type(classes).__name__
        raise InputError(f"predict gives {kind}; give the classes of a batch, [{samples}]")
    return classes
