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


class Classes:
    """Gives each sample its class, and counts them.

    Args:
        names: names of the classes, if the user gave them.
        settings: with ``clusters``, data without labels is divided into so many by k-means.
    """

    def __init__(self, names: Sequence[str] | None, settings: Settings) -> None:
        self._given_names = None if names is None else tuple(str(name) for name in names)
        self._settings = settings
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._means: Any = None
        self.scores = 0
        """Outputs that the model was seen to have for a sample."""
        self.kind = "none"

    @property
    def given(self) -> bool:
        """Whether the classes are labels of the data."""
        return self.kind == "given"

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
        """The classes of a batch's samples [B]; they are counted."""
        labels = self._of(batch)
        if labels is None:
            return None
        most = int(labels.max())
        if self._given_names is not None and self.given and most >= len(self._given_names):
            raise InputError(
                f"the data has the label {most}, but classes names only "
                f"{len(self._given_names)}; name one for each label from 0 on"
            )
        if most >= _MOST_CLASSES:
            raise InputError(
                f"the data has the label {most}; wanted classes 0, 1, 2, ..., at most "
                f"{_MOST_CLASSES:,}; number them, or give labelled=False"
            )
        counts = torch.bincount(labels, minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        return labels

    def peek(self, batch: Batch) -> Tensor | None:
        """The classes of a batch's samples, without counting them again."""
        return self._of(batch)

    def _of(self, batch: Batch) -> Tensor | None:
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

    def count(self) -> int:
        """How many classes there are, 0 without any."""
        return len(self.names())

    def fit(self, scores: int) -> bool:
        """Whether so many outputs can be a score for each class.

        Where classes have names there is one for each; otherwise there may be classes that the
        data has no samples of.
        """
        self.scores = scores
        if self._given_names is not None:
            return scores == len(self._given_names)
        return scores >= len(self._counts)

    def rebuilt(self, inputs: int) -> bool:
        """Whether the outputs are rather a sample made again, as by an autoencoder, than scores."""
        return self.scores == inputs and self.scores > self.count()

    def names(self) -> tuple[str, ...]:
        """Their names."""
        if self.kind == "none":
            return ()
        if self.given and self._given_names is not None:
            return self._given_names
        word = "cluster " if self.kind == "clusters" else ""
        return tuple(f"{word}{number}" for number in range(len(self._counts)))

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
