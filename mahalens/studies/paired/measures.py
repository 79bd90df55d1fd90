"""What a job gives: numbers of each trial, by model; kept in a file until the run is complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

DONE, NON_FINITE = "done", "non-finite"


@dataclass(frozen=True)
class Measures:
    """The numbers of T trials of one model on one data set.

    Args:
        metrics: one number per trial ``[T]`` under the name of its metric; NaN where there is
            none. A trial without a single finite number but its ``seconds`` counts as non-finite.
        seconds: how long the trials took together.
        epochs: at which epochs ``curves`` were taken ``[L]``.
        curves: what was seen on the way, by column of ``curves.csv``, ``[T, L]`` each.
        plots: arrays behind the figures of the study, of any shape, from any of the trials.
        weights: trained weights, trials first, to be kept in the run folder.
    """

    metrics: Mapping[str, Tensor]
    seconds: float
    epochs: Tensor | None = None
    curves: Mapping[str, Tensor] = field(default_factory=dict)
    plots: Mapping[str, Tensor] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return len(next(iter(self.metrics.values())))

    @property
    def statuses(self) -> list[str]:
        """How each trial ended."""
        told = [values for name, values in self.metrics.items() if name != "seconds"]
        told = told or list(self.metrics.values())
        finite = torch.stack([values.isfinite() for values in told]).any(0)
        return [DONE if ended else NON_FINITE for ended in finite.tolist()]


_GROUPS = ("metrics", "curves", "plots", "weights")


def pack(found: Mapping[str, Measures]) -> dict[str, Tensor]:
    """The measures of several models as named tensors, for a file."""
    tensors: dict[str, Tensor] = {}
    for model, own in found.items():
        tensors[f"{model}|seconds|"] = torch.tensor(own.seconds, dtype=torch.float64)
        if own.epochs is not None:
            tensors[f"{model}|epochs|"] = own.epochs
        for group in _GROUPS:
            for name, values in getattr(own, group).items():
                tensors[f"{model}|{group}|{name}"] = values
    return tensors


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Measures]:
    """The opposite of :func:`pack`."""
    models: dict[str, dict[str, dict[str, Tensor]]] = {}
    for key, values in tensors.items():
        model, group, name = key.split("|", 2)
        models.setdefault(model, {}).setdefault(group, {})[name] = values
    return {
        model: Measures(
            seconds=float(own["seconds"][""]),
            epochs=own.get("epochs", {}).get(""),
            metrics=own["metrics"],
            curves=own.get("curves", {}),
            plots=own.get("plots", {}),
            weights=own.get("weights", {}),
        )
        for model, own in models.items()
    }


def join(parts: Iterable[Measures]) -> Measures:
    """The trials of several jobs, one after the other; plots are those of the first job."""
    given = list(parts)

    def together(group: str) -> dict[str, Tensor]:
        names = dict.fromkeys(name for one in given for name in getattr(one, group))
        return {name: torch.cat([getattr(one, group)[name] for one in given]) for name in names}

    return Measures(
        metrics=together("metrics"),
        seconds=sum(one.seconds for one in given),
        epochs=given[0].epochs,
        curves=together("curves"),
        plots=given[0].plots,
        weights=together("weights"),
    )
