"""The samples that prototypes refer to, fetched in a second pass over the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.auditing.classes import Classes
from mahalens.auditing.record import LayerRecord
from mahalens.auditing.watch.batches import Batches

_MOST_BYTES = 2**25
"""Samples are kept up to 32 MB."""


@dataclass
class Examples:
    """Samples by their number in the data."""

    samples: Tensor
    numbers: Tensor
    labels: Tensor | None
    image: tuple[int, ...] | None
    notes: tuple[str, ...]


def collect_examples(
    batches: Batches,
    layers: Sequence[LayerRecord],
    classes: Classes,
    image: tuple[int, ...] | None = None,
) -> Examples | None:
    """Fetch the samples that the units' prototypes are; where they are too many, the best ones.

    Best are, in turn, the first prototypes of every unit, then the second ones, and so on. None
    if samples are no numbers to look at.
    """
    wanted = _by_rank(layers)
    if not wanted:
        return None
    chosen = torch.tensor(wanted)
    numbers, samples, labels = [], [], []
    limit = 0
    for batch in batches:
        x = batch.first
        if not limit:
            limit = max(1, _MOST_BYTES // max(1, x[0].numel() * x.element_size()))
            chosen = chosen[:limit].sort().values
        first, last = torch.searchsorted(chosen, torch.tensor([batch.start, batch.start + len(x)]))
        if first == last:
            continue
        here = chosen[first:last] - batch.start
        numbers.append(here + batch.start)
        samples.append(x[here.to(x.device)].detach().to("cpu").as_subclass(Tensor))
        if (of_class := classes.peek(batch)) is not None:
            labels.append(of_class[here])
    if not samples or len({tuple(part.shape[1:]) for part in samples}) > 1:
        return None
    notes: tuple[str, ...] = ()
    if len(wanted) > limit:
        notes = (f"{limit} of the {len(wanted)} samples that prototypes refer to are kept",)
    found = torch.cat(samples)
    return Examples(
        found,
        torch.cat(numbers),
        torch.cat(labels) if labels else None,
        image or _image_shape(found),
        notes,
    )


def _by_rank(layers: Sequence[LayerRecord]) -> list[int]:
    found: dict[int, None] = {}
    readings = [layer.prototypes for layer in layers if layer.prototypes is not None]
    most = max((reading.near_sample.shape[1] for reading in readings), default=0)
    for rank in range(most):
        for reading in readings:
            for samples in (reading.near_sample, reading.active_sample):
                found.update(dict.fromkeys(samples[:, rank].tolist()))
    found.pop(-1, None)
    return list(found)


def _image_shape(samples: Tensor) -> tuple[int, ...] | None:
    """The shape of an image, for samples [M, H, W] or [M, C, H, W] of a fitting size."""
    shape = tuple(samples.shape[1:])
    if not samples.is_floating_point() and samples.dtype != torch.uint8:
        return None
    if len(shape) == 2 and min(shape) >= 5 and max(shape) <= 4 * min(shape):
        return shape
    if len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 5:
        return shape
    return None
