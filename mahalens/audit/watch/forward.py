"""Calling a model on batches, and finding its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.audit.watch.batches import Batch
from mahalens.audit.watch.survey import Site, Survey
from mahalens.audit.watch.trace import Names, Tracer, Use, tensors_in
from mahalens.errors import InputError, MahalensError

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
                "was made from, or convert its file with mahalens.audit.model_files.load_model"
            )
        if not isinstance(model, nn.Module):
            raise InputError(f"the model is a {type(model).__name__}, wanted an nn.Module")
        self.model = model
        self.names = Names(model)
        self.notes: list[str] = []
        self._forward = forward
        floats = {p.dtype for p in model.parameters() if p.is_floating_point()}
        self._dtype = floats.pop() if len(floats) == 1 else None
        first = next(iter(model.parameters()), None)
        self._device = None if first is None else first.device

    def run(
        self,
        batch: Batch,
        on_layer: Callable[[Use], Any],
        on_other: Callable[..., Any] | None = None,
    ) -> tuple[Any, Tracer]:
        """The model's output on a batch; each use of a layer is shown to ``on_layer``."""
        args, kwargs = self._fitted((batch.args, batch.kwargs))
        tracer = Tracer(self.names, on_layer, on_other)
        try:
            with self.names.following(), tracer:
                if self._forward is not None:
                    return self._forward(self.model, *args, **kwargs), tracer
                return self.model(*args, **kwargs), tracer
        except MahalensError:
            raise
        except Exception as error:
            if tracer.fault is error:
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            shapes = ", ".join(str(list(t.shape)) for t in tensors_in((args, kwargs)))
            raise InputError(
                f"the model fails on the data, a batch of shape {shapes}: {reason}; check that "
                f"the model takes such inputs"
            ) from error

    def survey(self, batch: Batch) -> tuple[dict[str, Site], dict[str, str]]:
        """The layers in the order of their first use, and those that are not read, with reasons."""
        sizes = [3, 2] if batch.size >= 3 else [batch.size]
        try:
            found, unread = self._look(batch.cut(sizes[0]))
        except InputError:
            if len(sizes) == 1 or batch.size == 3:
                raise
            sizes = [batch.size]  # a program exported for batches of one size takes no other
            found, unread = self._look(batch)
        second = None
        if len(sizes) == 2:
            try:
                second, _ = self._look(batch.cut(sizes[1]))
            except InputError:
                sizes = sizes[:1]
        for name, site in found.items():
            other = second.get(name) if second is not None else None
            site.batch_axis = _batch_axis(site, other, sizes)
        count = sizes[0]
        several = [
            site
            for site in found.values()
            if site.batch_axis is not None and site.shapes[0][site.batch_axis] > count > 1
        ]
        if several:
            turned, _ = self._look(batch.cut(count).turned())
            for site in several:
                site.sample_major = _sample_major(site, turned.get(site.name), count)
        for site in found.values():
            site.first_output = None
        return found, unread

    def _look(self, batch: Batch) -> tuple[dict[str, Site], dict[str, str]]:
        survey = Survey()
        output, tracer = self.run(batch, survey.on_layer, survey.on_other)
        survey.finish(output)
        return survey.sites, tracer.unread

    def _fitted(self, value: Any) -> Any:
        """The inputs on the model's device, and in its precision."""
        if isinstance(value, Tensor):
            if self._dtype is not None and value.is_floating_point() and value.dtype != self._dtype:
                note = f"inputs were converted from {value.dtype} to the model's {self._dtype}"
                if note not in self.notes:
                    self.notes.append(note)
                value = value.to(self._dtype)
            return value if self._device is None else value.to(self._device)
        if isinstance(value, tuple):
            return tuple(self._fitted(part) for part in value)
        if isinstance(value, list):
            return [self._fitted(part) for part in value]
        if isinstance(value, dict):
            return {key: self._fitted(part) for key, part in value.items()}
        return value


def _batch_axis(site: Site, other: Site | None, sizes: list[int]) -> int | None:
    """The axis of the output that grows with the samples, by comparing two batch sizes."""
    shape = site.shapes[0]
    units = (len(shape) - 1) if not site.convolution else len(shape) - len(site.geometry["kernel"])
    units -= 1 if site.convolution else 0
    axes = [axis for axis in range(len(shape)) if axis != units]
    if other is not None and len(other.shapes[0]) == len(shape):
        first, second = sizes
        for axis in axes:
            if shape[axis] * second == other.shapes[0][axis] * first and shape[axis]:
                return axis
        return None
    return next((axis for axis in axes if shape[axis] % sizes[0] == 0), None)


def _sample_major(site: Site, turned: Site | None, samples: int) -> bool:
    """Whether an axis holds the rows of one sample after those of another, or step by step.

    Found by giving the samples in reverse order: the rows must come out in reverse too.
    """
    if turned is None or site.first_output is None or turned.first_output is None:
        return True
    assert site.batch_axis is not None
    rows = [out.movedim(site.batch_axis, 0) for out in (site.first_output, turned.first_output)]
    if rows[0].shape != rows[1].shape:
        return True
    misses = []
    for axis, shape in ((0, (samples, -1)), (1, (-1, samples))):
        first, second = (row.unflatten(0, shape).float() for row in rows)
        misses.append(float((first.flip(axis) - second).abs().nan_to_num().sum()))
    return misses[0] <= misses[1]


def scores_of(output: Any, samples: int) -> Tensor | None:
    """The class scores [B, C] in a model's output, if it has any."""
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, dict):
        logits = output.get("logits")
    if logits is None:
        logits = next(iter(tensors_in(output)), None)
    fits = isinstance(logits, Tensor) and logits.ndim == 2 and logits.shape[0] == samples
    return logits if fits and logits.shape[1] > 1 else None
