"""Judging detectors by known samples alone: held-out classes and self-made unknowns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mahalens.detection.base import Detector
from mahalens.detection.known import Known, Rows, moments_of
from mahalens.detection.metrics import auroc

FOLDS = 3
ROWS = 8_000
"""Samples that detectors are judged on, at most."""

SHARE = 4
"""One of so many samples judges, the others are fitted to."""

FAR = 5.0
"""Made-up features are shorter and longer than known ones by so many spreads of log length."""

Scores = tuple[Tensor, Tensor]
"""Scores of known and of unknown samples."""


class Judge:
    """Tasks made of known samples, on which detectors can be compared.

    A sample of the known samples, at most 8,000, is divided class by class: detectors are fitted to
    three quarters and judged on the rest. With three classes or more, three folds of classes are
    unknown in turn. Then all are known, and unknown are features that were made up: every column
    shuffled, so that only its distribution stays; the same shorter; the same longer, each by five
    standard deviations of the logarithm of the length.

    Args:
        known: the known samples.
        seed: of folds and shuffles.
    """

    def __init__(self, known: Known, *, seed: int = 0) -> None:
        self._known = known
        rows = known.some
        order = rows.draw.argsort()[:ROWS]
        order = order[rows.y[order].argsort(stable=True)]
        judges = torch.arange(len(order)) % SHARE == SHARE - 1
        self._fit, self._rest = rows[order[~judges]], rows[order[judges]]
        generator = torch.Generator().manual_seed(seed)
        count = len(known.classes) if known.labelled else 0
        classes = torch.randperm(count, generator=generator)
        self._folds = [classes[fold::FOLDS] for fold in range(FOLDS if count >= FOLDS else 0)]
        self._made = _made(self._rest, generator)

    @property
    def folds(self) -> int:
        """The number of tasks with classes held out, which come first."""
        return len(self._folds)

    def inside(self, make: Callable[[], Detector]) -> Tensor:
        """Return the scores of known samples that a detector was not fitted to."""
        detector = self._fitted(make(), torch.arange(len(self._known.classes)))
        return detector.run(self._rest)

    def scores(self, make: Callable[[], Detector]) -> list[Scores]:
        """Return scores for each task: first the folds of classes, then the made unknowns."""
        classes = torch.arange(len(self._known.classes))
        whole = self._fitted(make(), classes)
        inside = whole.run(self._rest)
        made = [(inside, whole.run(rows)) for rows in self._made]
        return [self._fold(make(), fold) for fold in self._folds] + made

    def _fold(self, detector: Detector, fold: Tensor) -> Scores:
        classes = torch.arange(len(self._known.classes))
        stay = classes[~torch.isin(classes, fold)]
        self._fitted(detector, stay)
        inside = torch.isin(self._rest.y, stay)
        one, two = (detector.run(_columns(self._rest[rows], stay)) for rows in (inside, ~inside))
        return one, two

    def _fitted(self, detector: Detector, stay: Tensor) -> Detector:
        """Fit a detector to the rows of some classes."""
        rows = self._fit[torch.isin(self._fit.y, stay)]
        rows = _columns(replace(rows, y=torch.searchsorted(stay, rows.y)), stay)
        classes = self._known.classes[stay]
        linear = self._known.linear if len(stay) == len(self._known.classes) else None
        part = replace(self._known, classes=classes, sample=rows, linear=linear)
        detector.learn(moments_of(part, detector.wanted))
        return detector


def area(task: Sequence[Scores]) -> float:
    """Return the AUROC of the average of several detectors on one task, each standardised."""
    sums = [torch.zeros_like(side) for side in task[0]]
    for sides in task:
        spread, mean = torch.std_mean(sides[0], correction=0)
        sums = [a + (b - mean) / spread.clamp(min=1e-30) for a, b in zip(sums, sides, strict=True)]
    return auroc(*sums)


def _made(rows: Rows, generator: torch.Generator) -> list[Rows]:
    """Return made-up features: shuffled, and the same shorter and longer."""
    order = torch.rand(rows.z.shape, generator=generator).argsort(0)
    shuffled = rows.z.gather(0, order.to(rows.z.device))
    lengths = torch.linalg.vector_norm(rows.z, dim=1).clamp(min=1e-30).log()
    spread = float(lengths.std(correction=0).clamp(max=1.0))
    return [replace(rows, z=shuffled * math.exp(way * FAR * spread)) for way in (0, -1, 1)]


def _columns(rows: Rows, stay: Tensor) -> Rows:
    """Return rows with the logits of some classes only, where there is one for each class."""
    if rows.logits is None or rows.logits.shape[1] <= int(stay.max()):
        return rows
    return replace(rows, logits=rows.logits[:, stay])
