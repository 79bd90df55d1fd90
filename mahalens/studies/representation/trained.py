"""All trials of a model, put together from the results of their groups."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.studies.folder import RunFolder
from mahalens.studies.representation.claims import name_of
from mahalens.studies.representation.metrics import METRICS
from mahalens.studies.representation.problem import Group, Problem, result_file
from mahalens.train import Status, TrialStack

PLOTTED = ("positions", "class_accuracies", "output_activity")
"""What figures are drawn from, one row per trial."""


@dataclass(frozen=True)
class Trained:
    """All trials of one model with one kind of pixels, put together from their groups."""

    model: str
    pixels: str
    stack: TrialStack
    metrics: dict[str, NDArray[np.float64]]
    statuses: list[str]
    seconds: float
    tensors: dict[str, Tensor]

    @property
    def name(self) -> str:
        """The model with its pixels."""
        return name_of(self.model, self.pixels)

    @property
    def best(self) -> int | None:
        """The trial with the highest test accuracy."""
        accuracy = self.metrics["test_accuracy"]
        return int(np.nanargmax(accuracy)) if np.isfinite(accuracy).any() else None


def gather(folder: RunFolder, problem: Problem, groups: Sequence[Group]) -> list[Trained]:
    """Put the groups of each model together, in the order of their trials."""
    parts: dict[tuple[str, str], list[dict[str, Tensor]]] = defaultdict(list)
    for group in sorted(groups, key=lambda g: g.first):
        result = folder.read_tensors(folder.path / result_file(group))
        parts[group.pixels, group.model].append(result)
    config = problem.config
    order = [(way, model) for way in config.pixels for model in config.models]
    found = [_join(problem, way, model, parts[way, model]) for way, model in order]
    _add_gap_from_dead(found, problem)
    return found


def _join(problem: Problem, pixels: str, model: str, parts: list[dict[str, Tensor]]) -> Trained:
    first, every = parts[0], list(Status)

    def whole(name: str) -> Tensor:
        return torch.cat([part[name] for part in parts])

    names = [n.removeprefix("metric.") for n in first if n.startswith("metric.")]
    metrics = {name: whole(f"metric.{name}").double().numpy() for name in names}
    metrics["gap_from_dead"] = np.full(problem.config.trials, math.nan)
    tensors = {name: first[name] for name in first if name.startswith("latent.")}
    tensors |= {name: whole(name) for name in ("steps", *PLOTTED)}
    for along, what in (("loss.epochs", "losses"), ("accuracy.epochs", "accuracies")):
        tensors[along], tensors[what] = _aligned(parts, along, what)
    return Trained(
        model,
        pixels,
        TrialStack(problem.chain(model), whole("values")),
        {name: metrics[name] for name in METRICS},
        [every[code].value for code in whole("codes").tolist()],
        sum(float(part["seconds"]) for part in parts),
        tensors,
    )


def _add_gap_from_dead(trained: list[Trained], problem: Problem) -> None:
    """Of models with ReLU outputs: how much of what they lack lies in classes with dead outputs."""
    found = {one.name: one for one in trained}
    sizes = torch.bincount(problem.data.test_y, minlength=problem.data.classes).double()
    for one in trained:
        base = found.get(name_of(one.model.replace("relu2", "relu"), one.pixels))
        if not one.model.startswith("relu2") or "neg" in one.model or base is None:
            continue
        dead = one.tensors["output_activity"] == 0
        lost = (dead * base.tensors["class_accuracies"] * sizes).nansum(1) / sizes.sum()
        gap = base.metrics["test_accuracy"] - one.metrics["test_accuracy"]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(gap > 0, lost.numpy() / gap, math.nan)
        one.metrics["gap_from_dead"][:] = share


def _aligned(parts: list[dict[str, Tensor]], along: str, what: str) -> tuple[Tensor, Tensor]:
    """Curves of all groups on one axis; NaN where a group had ended before."""
    epochs = torch.cat([part[along] for part in parts]).unique()
    rows = []
    for part in parts:
        row = part[what].new_full((len(part[what]), len(epochs)), torch.nan)
        row[:, torch.searchsorted(epochs, part[along])] = part[what]
        rows.append(row)
    return epochs, torch.cat(rows)
