"""The data of an audit in batches, whatever form the user has it in."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from mahalens.auditing.watch.trace import tensors_in
from mahalens.errors import InputError

WANTED = (
    "wanted a tensor x [N, ...], a pair (x, y), a dict of arguments, a Dataset, or a DataLoader of "
    "x, (x, y) or dict batches"
)
USUAL_MASK = "attention_mask"
"""The key under which batches for transformers say which tokens are no padding."""


@dataclass
class Batch:
    """Some samples: arguments for the model, and labels where there are any."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Tensor | None
    start: int
    """Number of the first sample."""
    mask: Tensor | None = None
    """Which tokens count [B, T]; False for padding. None if all do."""

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self.first)

    @property
    def first(self) -> Tensor:
        """The first tensor that the model is given: the samples themselves, as a rule."""
        return next(iter(tensors_in((self.args, self.kwargs))))

    def cut(self, count: int) -> Batch:
        """The first samples only."""
        return self._each(lambda part: part[:count])

    def pick(self, rows: Tensor) -> Batch:
        """Some of the samples, by their places [n]."""
        return self._each(lambda part: part[rows.to(part.device)])

    def turned(self) -> Batch:
        """The samples in reverse order."""
        return self._each(lambda part: part.flip(0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        size = self.size

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value) if value.ndim and len(value) == size else value
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*map(changed, value))
            if isinstance(value, tuple | list):
                return type(value)(map(changed, value))
            if isinstance(value, Mapping):
                return {key: changed(part) for key, part in value.items()}
            return value

        labels, mask = (None if own is None else change(own) for own in (self.labels, self.mask))
        return Batch(changed(self.args), changed(self.kwargs), labels, self.start, mask)


class Batches:
    """Batches of the data, the same ones each time they are gone through.

    Args:
        data: see :func:`mahalens.auditing.network.audit`.
        batch_size: samples per batch, where the data comes as tensors or a Dataset.
        labelled: whether labels in the data are to be used.
        drop_last: leave out the last batch if it is smaller.
        mask: the key of batches that are dicts under which is said which tokens count [B, T];
            None for none. A batch may lack the usual one.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        labelled: bool = True,
        drop_last: bool = False,
        mask: str | None = USUAL_MASK,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is {batch_size}, wanted a whole number of at least 1")
        if mask is not None and not isinstance(mask, str):
            raise InputError(
                f"mask is a {type(mask).__name__}; give the key of a batch's mask, such as "
                f"{USUAL_MASK!r}, or None"
            )
        self.labelled = labelled
        self.mask = mask
        self._drawn: tuple[str, ...] = ()
        self._no_labels: tuple[str, ...] = ()
        self._source = _as_iterable(data, batch_size, drop_last)
        if isinstance(getattr(self._source, "sampler", None), RandomSampler):
            self._drawn = ("samples are numbered in the order in which the loader gave them",)
        # A loader draws its order, and its workers their seeds, from these: put back before each
        # pass, they make every pass alike.
        self._own = getattr(self._source, "generator", None)
        sampler = getattr(self._source, "sampler", None)
        generators = [self._own, getattr(sampler, "generator", None)]
        self._generators = [g for g in generators if isinstance(g, torch.Generator)]
        self._states = [g.get_state() for g in self._generators]
        self._global = torch.random.get_rng_state()
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 (what a user's Dataset draws from)

    def __iter__(self) -> Iterator[Batch]:
        """Go through the data once."""
        torch.random.set_rng_state(self._global)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        start = 0
        for item in self._source:
            batch = self._batch(item, start)
            if batch.size:
                yield batch
            start += batch.size

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said about the data."""
        return (*self._drawn, *self._no_labels)

    def restore(self) -> None:
        """Give the loader's own generators back the state they came with."""
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)

    def _batch(self, item: Any, start: int) -> Batch:
        labels = None
        if isinstance(item, Mapping):  # a dict, or what a tokenizer returns
            kwargs = {key: _as_tensor(value) for key, value in item.items()}
            for key in ("labels", "label"):
                value = kwargs.pop(key, None)
                labels = _labels(value) if labels is None else labels
            batch = Batch((), kwargs, labels, start)
        elif isinstance(item, list | tuple):
            parts = list(item)
            if len(parts) > 1:
                labels = _labels(parts[-1])
                # A float target of a regression goes to no model as an argument.
                if labels is None and len(parts) == 2 and self.labelled:
                    self._no_labels = (_no_classes(parts[-1]),)
                parts = parts[:-1] if labels is not None or len(parts) == 2 else parts
            batch = Batch(tuple(parts), {}, labels, start)
        else:
            batch = Batch((item,), {}, None, start)
        if not any(True for _ in tensors_in((batch.args, batch.kwargs))):
            raise InputError(f"a batch of the data is {_described(item)}; {WANTED}")
        if batch.first.ndim == 0:
            raise InputError(f"a batch of the data has no samples, only one number; {WANTED}")
        if labels is not None and len(labels) != batch.size:
            raise InputError(
                f"a batch has {batch.size} samples and {len(labels)} labels; wanted one label per "
                f"sample"
            )
        batch.mask = self._mask(batch)
        _require_finite(batch)
        if not self.labelled:
            batch.labels = None
        return batch

    def _mask(self, batch: Batch) -> Tensor | None:
        """Which tokens of a batch count [B, T], where it says so."""
        if self.mask is None:
            return None
        mask = batch.kwargs.get(self.mask)
        if isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == batch.size:
            return mask.to("cpu") != 0
        if self.mask == USUAL_MASK:
            return None  # of another kind, or none at all
        have = ", ".join(map(str, batch.kwargs)) or "no keys"
        given = f"is {list(mask.shape)}" if isinstance(mask, Tensor) else f"not among {have}"
        raise InputError(
            f"mask names {self.mask!r}, {given} in a batch of the data; give a key of a dict whose "
            f"value is [B, T], 0 for padding"
        )


def _as_iterable(data: Any, batch_size: int, drop_last: bool) -> Iterable[Any]:
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    if isinstance(data, Tensor):
        data = (data,)
    if any(part.layout != torch.strided for part in tensors_in(data)):
        raise InputError("the data is sparse, wanted dense tensors; convert it with to_dense()")
    if isinstance(data, Mapping):
        return _Parts(_whole(data), batch_size, drop_last)
    if isinstance(data, tuple) and len(data) == 2 and _is_array(data[0]):
        data = (data[0], _as_array(data[1]))  # labels may be a plain list
    if isinstance(data, tuple | list) and data and all(_is_array(part) for part in data):
        tensors = [torch.as_tensor(part) for part in data]
        lengths = [len(part) if part.ndim else 0 for part in tensors]
        if len(set(lengths)) > 1:
            raise InputError(
                f"x has {lengths[0]} samples and y {lengths[-1]} labels; wanted one label per "
                f"sample"
            )
        data = TensorDataset(*tensors)
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, Dataset):
        if hasattr(data, "__len__") and len(data) == 0:
            raise InputError(f"the data has no samples; {WANTED}")
        if isinstance(data, TensorDataset):
            return _Slices(data.tensors, batch_size, drop_last)
        return DataLoader(data, batch_size=batch_size, drop_last=drop_last)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | Iterator):
        return data
    advice = "; an iterator is used up after one pass" if isinstance(data, Iterator) else ""
    raise InputError(f"the data is {_described(data)}{advice}; {WANTED}")


@dataclass
class _Slices:
    """Tensors cut into batches, without collating sample by sample."""

    tensors: tuple[Tensor, ...]
    size: int
    drop_last: bool

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        count = len(self.tensors[0])
        for start in itertools.count(0, self.size):
            if start >= count or (self.drop_last and start + self.size > count and start):
                return
            yield tuple(tensor[start : start + self.size] for tensor in self.tensors)


@dataclass
class _Parts:
    """A dict of tensors cut into batches; what has no samples goes into every batch."""

    parts: dict[str, Any]
    size: int
    drop_last: bool

    def __iter__(self) -> Iterator[dict[str, Any]]:
        tensors = {key: part for key, part in self.parts.items() if isinstance(part, Tensor)}
        count = len(next(iter(tensors.values())))
        cut = {key: part for key, part in tensors.items() if part.ndim and len(part) == count}
        for rows in _Slices(tuple(cut.values()), self.size, self.drop_last):
            yield self.parts | dict(zip(cut, rows, strict=True))


def _whole(data: Mapping[str, Any]) -> dict[str, Any]:
    """All samples as one dict of arguments."""
    parts = {key: _as_tensor(value) for key, value in data.items()}
    first = next((part for part in parts.values() if isinstance(part, Tensor)), None)
    if first is None or not first.ndim:
        raise InputError(
            f"the data is a {type(data).__name__} without tensors; give arguments of the model by "
            f"name, such as {{'input_ids': tensor [N, T]}}, from a tokenizer with "
            f"return_tensors='pt'"
        )
    if not len(first):
        raise InputError(f"the data has no samples; {WANTED}")
    return parts


def _as_tensor(value: Any) -> Any:
    """An array, or nested lists of numbers of equal length, as a tensor; others as they are."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value)
    if isinstance(value, list) and value and isinstance(value[0], list | int | float):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError):
            return value
    return value


def _as_array(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError):
        raise InputError(
            f"labels are a list of {type(value[0]).__name__}, wanted whole numbers; number them, "
            f"for example with numpy.unique(labels, return_inverse=True)[1]"
        ) from None


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _no_classes(target: Any) -> str:
    """What to say of a target that is left alone."""
    shape = f"{target.dtype} {list(target.shape)}" if isinstance(target, Tensor) else "no tensor"
    return (
        f"the second part of a batch ({shape}) is not read as classes, which are whole numbers [B]"
    )


def _labels(value: Any) -> Tensor | None:
    """The labels of a batch [B], or None if the value is something else."""
    if isinstance(value, int):
        value = [value]
    if isinstance(value, list | np.ndarray):
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        return None
    if value.ndim == 2 and value.shape[1] == 1:
        value = value[:, 0]
    if value.ndim != 1:
        return None
    labels: Tensor = value.to("cpu").to(torch.int64)
    if len(labels) and int(labels.min()) < 0:
        raise InputError(f"the data has the label {int(labels.min())}, wanted classes from 0 on")
    return labels


def _require_finite(batch: Batch) -> None:
    for tensor in tensors_in((batch.args, batch.kwargs)):
        # The sum is one quick pass, and finite for all but faulty (or enormous) numbers.
        suspect = tensor.is_floating_point() and not math.isfinite(float(tensor.sum()))
        if suspect and not bool(tensor.isfinite().all()) and not _is_mask(tensor):
            rows = (~tensor.isfinite()).flatten(1).any(1) if tensor.ndim > 1 else ~tensor.isfinite()
            first = batch.start + int(rows.nonzero()[0])
            raise InputError(
                f"the data has NaN or infinite values, first in sample {first}; remove or repair "
                f"such samples"
            )


def _is_mask(tensor: Tensor) -> bool:
    """Whether a tensor is a mask to be added to scores: 0 where allowed, -inf where not."""
    return bool(((tensor == 0) | (tensor == -math.inf)).all())


def _described(value: Any) -> str:
    return f"a {type(value).__name__}"
