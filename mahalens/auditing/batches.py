"""The data of an audit: batches, whatever form the user has it in, and the classes of samples."""

from __future__ import annotations

import contextlib
import math
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from mahalens.auditing.trace import mapped, tensors_in
from mahalens.errors import InputError, require_extra
from mahalens.geometry._checks import count_of

if TYPE_CHECKING:
    from mahalens.auditing.record import Settings

_WANTED = (
    "give a tensor x [N, ...], a pair (x, y), a dict of arguments, a Dataset, or a DataLoader of "
    "x, (x, y) or dict batches"
)
USUAL_MASK = "attention_mask"
"""The key under which batches for transformers say which tokens are no padding."""

_MOST_CLASSES = 100_000
_MANY_CLASSES = 1_000  # up to so many different labels may be nearly as many as samples
_SURELY_MANY = 20_000


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
        """Return the first samples only."""
        return self._each(lambda part: part[:count])

    def pick(self, rows: Tensor) -> Batch:
        """Return some of the samples, by their places [n]."""
        return self._each(lambda part: part[rows.to(part.device)])

    def turned(self) -> Batch:
        """Return the samples in reverse order."""
        return self._each(lambda part: part.flip(0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        parts = (self.args, self.kwargs, self.labels, self.mask)
        args, kwargs, labels, mask = _each_sample(parts, self.size, change)
        return Batch(args, kwargs, labels, self.start, mask)


def join(first: Batch, second: Batch) -> Batch | None:
    """Return the arguments of two batches as one batch, or None if their samples differ in shape.

    Labels and masks are left out.
    """
    one, two = (list(tensors_in((batch.args, batch.kwargs))) for batch in (first, second))
    whole: list[Tensor] = []
    for a, b in zip(one, two, strict=False):
        samples = [t.ndim and len(t) == n for t, n in ((a, first.size), (b, second.size))]
        if all(samples) and a.shape[1:] == b.shape[1:] and a.dtype == b.dtype:
            whole.append(torch.cat([a, b.to(a.device)]))
        elif any(samples):
            return None
        else:
            whole.append(a)  # not of samples: the same in every batch
    if len(one) != len(two):
        return None
    parts = iter(whole)
    args, kwargs = mapped(
        (first.args, first.kwargs), lambda v: next(parts) if isinstance(v, Tensor) else v
    )
    return Batch(args, kwargs, None, first.start)


def _each_sample(value: Any, size: int, change: Callable[[Tensor], Tensor]) -> Any:
    """Change the tensors in a value that have so many samples, and leave the rest."""

    def changed(part: Any) -> Any:
        samples = isinstance(part, Tensor) and part.ndim and len(part) == size
        return change(part) if samples else part

    return mapped(value, changed)


class DataBatches:
    """The data of an audit in batches, the same ones in each pass.

    Args:
        data: see :func:`mahalens.audit`.
        batch_size: samples per batch, where the data comes as tensors or a Dataset.
        labelled: whether labels in the data are to be used.
        drop_last: leave out the last batch if it is smaller.
        mask: key of the mask [B, T] in batches that are dicts, 0 for tokens that do not count;
            None for none. A batch may lack the usual key.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        labelled: bool = True,
        drop_last: bool = False,
        mask: str | None = USUAL_MASK,
    ) -> None:
        batch_size = count_of("batch_size", batch_size)
        if mask is not None and not isinstance(mask, str):
            raise InputError(
                f"mask is a {type(mask).__name__}; give the key of a batch's mask, such as "
                f"{USUAL_MASK!r}, or None"
            )
        self.labelled = labelled
        self.mask = mask
        self._no_labels: tuple[str, ...] = ()
        self._source = _as_iterable(data, batch_size, drop_last)
        # A loader draws its order, and its workers their seeds, from these: put back before each
        # pass, they make every pass alike.
        groups = getattr(self._source, "batch_sampler", None)
        samplers = [getattr(self._source, "sampler", None), getattr(groups, "sampler", None)]
        self._shuffled = any(isinstance(sampler, RandomSampler) for sampler in samplers)
        parts = (self._source, groups, *samplers)
        generators = {id(g): g for part in parts if (g := getattr(part, "generator", None))}
        self._generators = [
            (g, g.get_state()) for g in generators.values() if isinstance(g, torch.Generator)
        ]
        self._global = torch.random.get_rng_state()
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 (what a user's Dataset draws from)

    def __iter__(self) -> Iterator[Batch]:
        """Go through the data once."""
        torch.random.set_rng_state(self._global)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        self.restore()
        start = 0
        for item in self._source:
            batch = self._batch(item, start)
            if batch.size:
                yield batch
            start += batch.size

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the data."""
        drawn = "samples are numbered in the order in which the loader gave them"
        return ((drawn,) if self._shuffled else ()) + self._no_labels

    def restore(self) -> None:
        """Give the loader's own generators back the state they came with."""
        for generator, state in self._generators:
            generator.set_state(state)

    def _batch(self, item: Any, start: int) -> Batch:
        labels = None
        if isinstance(item, Mapping):  # a dict, or what a tokenizer returns
            kwargs = {key: _as_tensor(value) for key, value in item.items()}
            note: tuple[str, ...] = ()
            for key in ("labels", "label"):
                value = kwargs.pop(key, None)
                labels = _labels(value) if labels is None else labels
                if value is not None and labels is None and self.labelled:
                    note = (_no_classes(f"{key!r}", value),)
            if labels is None and note:
                self._no_labels = note
            batch = Batch((), kwargs, labels, start)
        else:
            parts = list(item) if isinstance(item, list | tuple) else [item]
            if len(parts) > 1:
                labels = _labels(parts[-1])
                # A float target of a regression goes to no model as an argument.
                if labels is None and len(parts) == 2 and self.labelled:
                    self._no_labels = (_no_classes("the second part", parts[-1]),)
                parts = parts[:-1] if labels is not None or len(parts) == 2 else parts
            batch = Batch(tuple(parts), {}, labels, start)
        if not any(True for _ in tensors_in((batch.args, batch.kwargs))):
            raise InputError(f"a batch of the data is a {type(item).__name__}; {_WANTED}")
        if batch.first.ndim == 0:
            raise InputError(f"a batch of the data has no samples, only one number; {_WANTED}")
        if labels is not None and len(labels) != batch.size:
            raise InputError(
                f"a batch has {batch.size} samples but {len(labels)} labels; give one label per "
                f"sample"
            )
        batch.mask = self._mask(batch)
        _require_finite(batch)
        if not self.labelled:
            batch.labels = None
        elif labels is not None and len(labels) and int(labels.min()) < 0:
            raise InputError(f"the data has the label {int(labels.min())}; give classes from 0 on")
        return batch

    def _mask(self, batch: Batch) -> Tensor | None:
        """Return which tokens of a batch count [B, T]; None without a mask."""
        if self.mask is None:
            return None
        mask = batch.kwargs.get(self.mask)
        if isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == batch.size:
            return mask.to("cpu") != 0
        if self.mask == USUAL_MASK:
            return None  # of another kind, or none at all
        have = ", ".join(map(str, batch.kwargs)) or "no keys"
        reason = f"is {list(mask.shape)}" if isinstance(mask, Tensor) else f"not among {have}"
        raise InputError(
            f"mask names {self.mask!r}, {reason} in a batch of the data; give a key of a dict with "
            f"a value [B, T], 0 for padding"
        )


def _as_iterable(data: Any, batch_size: int, drop_last: bool) -> Iterable[Any]:
    if isinstance(data, Tensor | np.ndarray):
        data = (torch.as_tensor(data),)
    if any(part.layout != torch.strided for part in tensors_in(data)):
        raise InputError("the data is sparse; give dense tensors, for example with to_dense()")
    if isinstance(data, Mapping):
        return _Slices(_whole(data), batch_size, drop_last)
    if isinstance(data, tuple) and len(data) == 2 and _is_array(data[0]):
        data = (data[0], _as_array(data[1]))  # labels may be a plain list
    arrays = isinstance(data, tuple | list) and data and all(map(_is_array, data))
    if arrays and isinstance(data, list) and not _ends_in_labels(data):
        return data  # batches
    if arrays and data[0].ndim:
        tensors = [torch.as_tensor(part) for part in data]
        lengths = [len(part) if part.ndim else 0 for part in tensors]
        if len(set(lengths)) > 1:
            raise InputError(
                f"x has {lengths[0]} samples but y has {lengths[-1]} labels; give one label per "
                f"sample"
            )
        data = TensorDataset(*tensors)
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, Dataset):
        if hasattr(data, "__len__") and len(data) == 0:
            raise InputError(f"the data has no samples; {_WANTED}")
        if isinstance(data, TensorDataset):  # without collating sample by sample
            return _Slices(data.tensors, batch_size, drop_last)
        return DataLoader(data, batch_size=batch_size, drop_last=drop_last)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | Iterator):
        return data
    advice = "; an iterator is used up after one pass" if isinstance(data, Iterator) else ""
    raise InputError(f"the data is a {type(data).__name__}{advice}; {_WANTED}")


@dataclass
class _Slices:
    """Tensors, or a dict of them, cut into batches; what has no samples goes into every batch."""

    parts: Any
    size: int
    drop_last: bool

    def __iter__(self) -> Iterator[Any]:
        count = len(next(tensors_in(self.parts)))
        for start in range(0, count, self.size):
            if not (self.drop_last and start + self.size > count and start):
                rows = slice(start, start + self.size)
                yield _each_sample(self.parts, count, operator.itemgetter(rows))


def _whole(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return all samples as one dict of arguments."""
    parts = {key: _as_tensor(value) for key, value in data.items()}
    first = next(tensors_in(parts), None)
    if first is None or not first.ndim:
        raise InputError(
            f"the data is a {type(data).__name__} without tensors; give arguments of the model by "
            f"name, such as {{'input_ids': tensor [N, T]}}, from a tokenizer with "
            f"return_tensors='pt'"
        )
    if not len(first):
        raise InputError(f"the data has no samples; {_WANTED}")
    return parts


def _as_tensor(value: Any) -> Any:
    """Return an array or nested lists of numbers as a tensor, and other values unchanged."""
    array = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    if array or (isinstance(value, list) and value and isinstance(value[0], list | int | float)):
        with contextlib.suppress(TypeError, ValueError):
            return torch.as_tensor(value)
    return value


def _as_array(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError):
        raise InputError(
            f"labels are a list of {type(value[0]).__name__}; give whole numbers, "
            f"for example with numpy.unique(labels, return_inverse=True)[1]"
        ) from None


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _ends_in_labels(arrays: Sequence[Any]) -> bool:
    """Return whether the last of several arrays has a whole number for each sample of the first."""
    first, last = (torch.as_tensor(part) for part in (arrays[0], arrays[-1]))
    return len(arrays) > 1 and last.ndim == 1 and _labels(last) is not None and first.ndim > 0


def _no_classes(name: str, target: Any) -> str:
    """Return a note on a target that is not read."""
    shape = f"{target.dtype} {list(target.shape)}" if isinstance(target, Tensor) else "no tensor"
    return f"{name} of a batch ({shape}) is not read as classes, which are whole numbers [B]"


def _labels(value: Any) -> Tensor | None:
    """Return the labels of a batch [B], or None if the value is something else."""
    if isinstance(value, int | list | np.ndarray):
        value = torch.as_tensor([value] if isinstance(value, int) else value)
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        return None
    if value.ndim == 2 and value.shape[1] == 1:
        value = value[:, 0]
    if value.ndim != 1:
        return None
    labels: Tensor = value.to("cpu").to(torch.int64)
    return labels


def _require_finite(batch: Batch) -> None:
    for tensor in tensors_in((batch.args, batch.kwargs)):
        # The sum is one quick pass, and finite for all but faulty (or enormous) numbers.
        if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
            continue
        mask = bool(((tensor == 0) | (tensor == -math.inf)).all())  # to be added to scores
        faulty = ~tensor.isfinite()
        if bool(faulty.any()) and not mask:
            rows = faulty.flatten(1).any(1) if tensor.ndim > 1 else faulty
            raise InputError(
                f"the data has NaN or infinite values, first in sample "
                f"{batch.start + int(rows.nonzero()[0])}; remove or repair such samples"
            )


class Classes:
    """Gives each sample its class, and counts them.

    The classes are the labels that occur, in ascending order; with names, one for each label from
    0 on. While the data streams by, classes are numbered as they appear: :meth:`settle` puts
    them in order and returns how.

    Args:
        names: names of the classes, if the user gave them.
        settings: with ``clusters``, data without labels is divided into so many by k-means.
    """

    def __init__(self, names: Sequence[str] | None, settings: Settings) -> None:
        self._names = None if names is None else tuple(str(name) for name in names)
        self._settings = settings
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._values = torch.zeros(0, dtype=torch.int64)
        """The labels that have occurred, in the order of their numbers."""
        self._means: Any = None
        self.kind = "none"

    @property
    def labelled(self) -> bool:
        """True if the classes are the labels of the data."""
        return self.kind == "given"

    @property
    def _listed(self) -> bool:
        """True if classes are numbered in the order of their labels."""
        return self.labelled and self._names is None

    def prepare(
        self, batches: DataBatches, labelled: bool, progress: Callable[[str, int], None]
    ) -> None:
        """Find clusters, if there are no labels and clusters are wanted."""
        if labelled:
            self.kind = "given"
        elif self._settings.clusters is not None:
            self.kind = "clusters"
            self._means = _find_clusters(
                batches, self._settings.clusters, self._settings.seed, progress
            )

    def labels_of(self, batch: Batch) -> Tensor | None:
        """Return the classes of a batch's samples [B], and count them."""
        if self._listed:
            self._learn(self._of(batch))
        labels = self.peek(batch)
        if labels is None:
            return None
        if self._names is not None and self.labelled and int(labels.max()) >= len(self._names):
            raise InputError(
                f"the data has the label {int(labels.max())}, but classes names only "
                f"{len(self._names)}; name one for each label from 0 on"
            )
        counts = torch.bincount(labels, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        if self._listed:
            self._require_fewer(0.95, _SURELY_MANY)
        return labels

    def settle(self) -> Tensor | None:
        """Put the classes in ascending order of their labels, once all data has been seen.

        Returns:
            For each class the number it had while the data streamed by [C]; None if they keep it.
        """
        if not self._listed:
            return None
        self._require_fewer(0.5, _MANY_CLASSES)
        self._values, order = self._values.sort()
        self._counts = self._counts[order]
        return order

    def peek(self, batch: Batch) -> Tensor | None:
        """Return the classes of a batch's samples, without counting them again."""
        labels: Tensor | None = self._of(batch)
        if labels is None or not self._listed:
            return labels
        ascending, places = self._values.sort()
        return places[torch.searchsorted(ascending, labels)]

    def _of(self, batch: Batch) -> Any:
        """Return the labels or clusters of a batch's samples."""
        if self.kind == "none":
            return None
        if self.kind == "clusters":
            return torch.from_numpy(self._means.predict(_flat(batch))).long()
        if batch.labels is None:
            raise InputError(
                f"the batch from sample {batch.start} on has no labels, though others have; give "
                f"labels for all, or labelled=False"
            )
        return batch.labels

    def _learn(self, labels: Tensor) -> None:
        """Number the labels that have not occurred before."""
        different = labels.unique()
        new = different[~torch.isin(different, self._values, assume_unique=True)]
        self._values = torch.cat([self._values, new])
        if len(self._values) > _MOST_CLASSES:
            raise InputError(
                f"the data has more than {_MOST_CLASSES:,} different labels; "
                "give labels with fewer values, or labelled=False"
            )

    def _require_fewer(self, share: float, many: int) -> None:
        """Refuse labels of which nearly every sample has another."""
        different, samples = len(self._values), int(self._counts.sum())
        if different > many and different > share * samples:
            raise InputError(
                f"the data has {different:,} different labels in {samples:,} samples; give "
                "classes with several samples each, or labelled=False"
            )

    def count(self) -> int:
        """Return the number of classes, 0 without any."""
        return len(self.names())

    def fit(self, scores: int) -> bool:
        """Return whether so many outputs can be a score for each label from 0 on.

        Where classes have names there is one for each; otherwise there may be classes that the
        data has no samples of.
        """
        if self._names is not None:
            return scores == len(self._names)
        return not len(self._values) or scores > int(self._values.max())

    def names(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        if self.kind == "clusters":
            return tuple(f"cluster {number}" for number in range(len(self._counts)))
        if self._listed:
            return tuple(str(label) for label in self._values.tolist())
        return self._names or () if self.labelled else ()

    def facts(self) -> dict[str, Any]:
        """Return names, numbers of samples and kind of the classes, as a record has them."""
        names, counts = self.names(), self._counts.tolist()
        counts += [0] * (len(names) - len(counts))
        return {"classes": names, "counts": tuple(counts), "labels": self.kind}


def _find_clusters(
    batches: DataBatches, clusters: int, seed: int, progress: Callable[[str, int], None]
) -> Any:
    require_extra("sklearn", "clusters=", "sklearn")
    from sklearn.cluster import MiniBatchKMeans

    means = MiniBatchKMeans(clusters, random_state=seed, n_init=3)
    waiting: list[Any] = []
    done = 0
    for batch in batches:
        waiting.append(_flat(batch))
        done += batch.size
        if sum(len(part) for part in waiting) >= 10 * clusters:
            means.partial_fit(np.concatenate(waiting))
            waiting = []
        progress("clustering", done)
    if waiting and (hasattr(means, "cluster_centers_") or done >= clusters):
        means.partial_fit(np.concatenate(waiting))
    if not hasattr(means, "cluster_centers_"):
        raise InputError(f"clusters is {clusters}, but the data has {done} samples; ask for fewer")
    return means


def _flat(batch: Batch) -> Any:
    return batch.first.detach().to("cpu").float().flatten(1).numpy()
