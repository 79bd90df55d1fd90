"""The classes of the data: given by labels, found by k-means, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mahalens.auditing.record import Settings
from mahalens.auditing.watch.batches import Batch, Batches
from mahalens.errors import InputError

_MOST_CLASSES = 100_000
_MANY_CLASSES = 1_000
"""Up to so many different labels may be nearly as many as samples."""
_SURELY_MANY = 20_000


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
        self._given_names = None if names is None else tuple(str(name) for name in names)
        self._settings = settings
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._values = torch.zeros(0, dtype=torch.int64)
        self._sorted, self._places = self._values, self._values
        self._means: Any = None
        self.kind = "none"

    @property
    def given(self) -> bool:
        """Whether the classes are labels of the data."""
        return self.kind == "given"

    @property
    def _listed(self) -> bool:
        """Whether classes are numbered as their labels occur."""
        return self.given and self._given_names is None

    def prepare(
        self, batches: Batches, labelled: bool, progress: Callable[[str, int], None]
    ) -> None:
        """Find clusters, if there are no labels and clusters are wanted."""
        if labelled:
            self.kind = "given"
        elif self._settings.clusters is not None:
            self.kind = "clusters"
            self._means = _find_clusters(batches, self._settings, progress)

    def labels_of(self, batch: Batch) -> Tensor | None:
        """Return the classes of a batch's samples [B], and count them."""
        labels = self._of(batch)
        if labels is None:
            return None
        if self._listed:
            self._learn(labels)
            labels = self._numbers(labels)
        elif self._given_names is not None and self.given:
            most = int(labels.max())
            if most >= len(self._given_names):
                raise InputError(
                    f"the data has the label {most}, but classes names only "
                    f"{len(self._given_names)}; name one for each label from 0 on"
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
        order = self._values.argsort()
        self._values, self._counts = self._values[order], self._counts[order]
        self._sorted, self._places = self._values, torch.arange(len(order))
        return order

    def peek(self, batch: Batch) -> Tensor | None:
        """Return the classes of a batch's samples, without counting them again."""
        labels = self._of(batch)
        return self._numbers(labels) if labels is not None and self._listed else labels

    def _of(self, batch: Batch) -> Tensor | None:
        """The labels or clusters of a batch's samples."""
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
        if not len(new):
            return
        self._values = torch.cat([self._values, new])
        if len(self._values) > _MOST_CLASSES:
            raise InputError(
                f"the data has more than {_MOST_CLASSES:,} different labels; classes are wanted: "
                "give labels with fewer values, or labelled=False"
            )
        self._sorted, self._places = self._values.sort()

    def _numbers(self, labels: Tensor) -> Tensor:
        """The classes of labels that have occurred."""
        return self._places[torch.searchsorted(self._sorted, labels)]

    def _require_fewer(self, share: float, many: int) -> None:
        """Refuse labels of which nearly every sample has another."""
        different, samples = len(self._values), int(self._counts.sum())
        if different > many and different > share * samples:
            raise InputError(
                f"the data has {different:,} different labels in {samples:,} samples; classes are "
                "wanted, each with several samples: give labels with fewer values, or "
                "labelled=False"
            )

    def count(self) -> int:
        """How many classes there are, 0 without any."""
        if self.given and self._given_names is not None:
            return len(self._given_names)
        return 0 if self.kind == "none" else len(self._counts)

    def fit(self, scores: int) -> bool:
        """Whether so many outputs can be a score for each label from 0 on.

        Where classes have names there is one for each; otherwise there may be classes that the
        data has no samples of.
        """
        if self._given_names is not None:
            return scores == len(self._given_names)
        if self._listed:
            return not len(self._values) or scores > int(self._values.max())
        return scores >= len(self._counts)

    def names(self) -> tuple[str, ...]:
        """Their names."""
        if self.kind == "none":
            return ()
        if self.given and self._given_names is not None:
            return self._given_names
        if self.given:
            return tuple(str(label) for label in self._values.tolist())
        return tuple(f"cluster {number}" for number in range(len(self._counts)))

    def counts(self) -> tuple[int, ...]:
        """Samples of each class."""
        counts = self._counts.tolist()
        return tuple(counts + [0] * (self.count() - len(counts)))


def _find_clusters(
    batches: Batches, settings: Settings, progress: Callable[[str, int], None]
) -> Any:
    from sklearn.cluster import MiniBatchKMeans

    assert settings.clusters is not None
    means = MiniBatchKMeans(settings.clusters, random_state=settings.seed, n_init=3)
    waiting: list[Any] = []
    done = 0
    for batch in batches:
        waiting.append(_flat(batch))
        done += batch.size
        if sum(len(part) for part in waiting) >= 10 * settings.clusters:
            means.partial_fit(_joined(waiting))
            waiting = []
        progress("clustering", done)
    if waiting and (hasattr(means, "cluster_centers_") or done >= settings.clusters):
        means.partial_fit(_joined(waiting))
    if not hasattr(means, "cluster_centers_"):
        raise InputError(
            f"clusters is {settings.clusters}, but the data has {done} samples; ask for fewer"
        )
    return means


def _joined(parts: list[Any]) -> Any:
    import numpy as np

    return np.concatenate(parts)


def _flat(batch: Batch) -> Any:
    return batch.first.detach().to("cpu").float().flatten(1).numpy()
