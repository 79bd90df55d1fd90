"""Accuracy of a network with one layer's units perturbed at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mahalens.auditing.gather.layer import LayerGatherer
from mahalens.auditing.gather.readings import activation_range
from mahalens.auditing.perturbation import TABLE_LEVELS, level_key, perturb, reliance_index
from mahalens.auditing.readings import PerturbationReading
from mahalens.auditing.watch.batches import Batch, Batches
from mahalens.auditing.watch.forward import Runner
from mahalens.auditing.watch.trace import Use

Guess = Callable[[Any, Batch], Tensor | None]


def perturb_layers(
    runner: Runner,
    batches: Batches,
    gatherers: Mapping[str, LayerGatherer],
    guess: Guess,
    baseline: float,
    progress: Callable[[str, int], None],
) -> dict[str, PerturbationReading]:
    """Run the model once for each layer, kind and level of the paper's table.

    A perturbation stands between a layer (with what is folded in) and its activation, and is
    measured in each unit's range of activations over the data; see :mod:`perturbation`.
    """
    found = {}
    for name, gatherer in gatherers.items():
        if gatherer.site.between is not None:
            continue  # what enters its activation cannot be changed unit by unit at its output
        low, high = activation_range(gatherer)
        accuracies: dict[str, dict[str, float]] = {}
        for kind, levels in TABLE_LEVELS.items():
            accuracies[kind] = {}
            for level in levels:
                right = total = 0

                def change(use: Use, kind: str = kind, level: float = level) -> Tensor | None:
                    if use.name != name:  # noqa: B023 (called before the name changes)
                        return None
                    return _changed(use, gatherer, low, high, kind, level)  # noqa: B023

                for batch in batches:
                    output, _ = runner.run(batch, change)
                    said = guess(output, batch)
                    if said is not None and batch.labels is not None:
                        right += int((said.to("cpu") == batch.labels).sum())
                        total += batch.size
                accuracies[kind][level_key(level)] = right / max(1, total)
                progress(f"perturbing {name}", total)
        found[name] = PerturbationReading(
            baseline=baseline,
            scale=accuracies["scale"],
            clip=accuracies["clip"],
            offset=accuracies["offset"],
            index=reliance_index(
                baseline, accuracies["scale"], accuracies["clip"], accuracies["offset"]
            ),
        )
    return found


def _changed(
    use: Use, gatherer: LayerGatherer, low: Tensor, high: Tensor, kind: str, level: float
) -> Tensor:
    """The layer's output, perturbed where its activation is about to be applied."""
    site = gatherer.site
    dim = use.output.ndim - 1
    if site.convolution:
        dim -= len(site.geometry["kernel"])
    shape = [1] * use.output.ndim
    shape[dim] = site.units
    z = use.output.detach().double() if use.output.dtype == torch.float64 else use.output.float()
    scale = None if site.scale is None else site.scale.to(z).view(shape)
    shift = None if site.shift is None else site.shift.to(z).view(shape)
    z = z if scale is None else z * scale
    z = z if shift is None else z + shift
    z = perturb(z, low.to(z), high.to(z), kind, level, dim=dim)
    z = z if shift is None else z - shift
    z = z if scale is None else z / torch.where(scale == 0, torch.ones_like(scale), scale)
    return z.to(use.output.dtype)
