"""All trials of a network with their accuracies under every perturbation, and what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mahalens.auditing.perturbation import GRID_LEVELS, level_key, reliance_index
from mahalens.studies.folder import CHECKPOINTS, RunFolder
from mahalens.studies.perturbation.claims import LOST, after_name
from mahalens.studies.perturbation.levels import TABLE, column, perturbed
from mahalens.studies.perturbation.metrics import METRICS
from mahalens.studies.perturbation.published import (
    BASELINE,
    published_figure,
    published_level,
)
from mahalens.studies.representation.claims import name_of
from mahalens.studies.representation.problem import Group, Problem, result_file
from mahalens.train import Status, TrialStack

Floats = NDArray[np.float64]


def measured_file(group: Group) -> str:
    """Where the accuracies of a group are kept until the run is complete."""
    return f"{CHECKPOINTS}/{group.name}.perturbed.safetensors"


@dataclass(frozen=True)
class Measured:
    """All trials of one network with one kind of pixels.

    ``accuracies`` are in per cent, as :func:`~mahalens.studies.perturbation.measuring.measure`
    names them; NaN for trials whose numbers ran away.
    """

    model: str
    pixels: str
    stack: TrialStack
    statuses: list[str]
    steps: list[int]
    seconds: float
    late_gain: Floats
    accuracies: dict[str, Floats]

    @property
    def name(self) -> str:
        """The model with its pixels."""
        return name_of(self.model, self.pixels)

    @property
    def best(self) -> int | None:
        """The trial with the highest training accuracy, which is what was trained for."""
        accuracy = self.accuracies["train/unperturbed"]
        return int(np.nanargmax(accuracy)) if np.isfinite(accuracy).any() else None

    def at(self, what: str, kind: str, level: float) -> Floats:
        """Accuracies at one level [T]; a scale is the same before and after the activation."""
        where = "train" if (what, kind) == ("after", "scale") else what
        return self.accuracies[f"{where}/{kind}"][:, _LEVELS[kind].index(level)]

    def metrics(self, data: str) -> dict[str, Floats]:
        """The columns of ``trials.csv``, one number per trial."""
        found = {
            "train_accuracy": self.accuracies["train/unperturbed"],
            "test_accuracy": self.accuracies["test/unperturbed"],
            "late_gain": self.late_gain,
        }
        for start, what in (("", "train"), ("test_", "test"), ("after_", "after")):
            for kind, levels in TABLE.items():
                for level in levels:
                    found[f"{start}{column(kind, level)}"] = self.at(what, kind, level)
        found["reliance"] = self._reliance("train")
        found["reliance_test"] = self._reliance("test")
        found["reliance_after"] = self._reliance("after")
        found["misfit"] = self._misfit("train", data)
        found["misfit_after"] = self._misfit("after", data)
        return {name: found[name] for name in METRICS}

    def _reliance(self, what: str) -> Floats:
        unperturbed = self.accuracies[f"{'test' if what == 'test' else 'train'}/unperturbed"]
        found = np.full(len(unperturbed), math.nan)
        for trial, baseline in enumerate(unperturbed):
            if not math.isfinite(baseline):
                continue
            parts = {
                kind: {level_key(p): self.at(what, kind, p)[trial] / 100 for p in levels}
                for kind, levels in TABLE.items()
            }
            index = reliance_index(baseline / 100, parts["scale"], parts["clip"], parts["offset"])
            found[trial] = math.nan if index is None else index
        return found

    def _misfit(self, what: str, data: str) -> Floats:
        """Mean distance from the published table [T]; NaN where it is of other data or networks."""
        gaps = [
            np.abs(self.at(what, kind, level) - figure)
            for kind, levels in TABLE.items()
            for level in levels
            if (figure := published_level(self.model, kind, level)) is not None
        ]
        if not gaps or data != "mnist":
            return np.full(len(self.statuses), math.nan)
        return np.asarray(np.mean(gaps, axis=0))

    def evidence(self, data: str) -> Iterator[tuple[tuple[str, str], Floats]]:
        """What claims are judged by: columns, and points lost under every level."""
        columns = self.metrics(data)
        for metric, values in columns.items():
            yield (self.name, metric), values
        for metric in ("reliance", "misfit"):
            yield (after_name(self.name), metric), columns[f"{metric}_after"]
        baseline = columns["train_accuracy"]
        for place, what in (("before", "train"), ("after", "after")):
            for kind, levels in _LEVELS.items():
                for level in levels:
                    name = perturbed(self.name, kind, level, place)
                    yield (name, "train_accuracy"), self.at(what, kind, level)
                    yield (name, LOST), baseline - self.at(what, kind, level)


_LEVELS: dict[str, tuple[float, ...]] = {str(kind): p for kind, p in GRID_LEVELS.items()}


def gather(folder: RunFolder, problem: Problem, groups: Sequence[Group]) -> list[Measured]:
    """Read what was trained and measured, in the order of the run."""
    return [_read(folder, problem, group) for group in groups]


def _read(folder: RunFolder, problem: Problem, group: Group) -> Measured:
    trained: dict[str, Tensor] = folder.read_tensors(folder.path / result_file(group))
    measured: dict[str, Tensor] = folder.read_tensors(folder.path / measured_file(group))
    codes = trained["codes"].tolist()
    lost = [code == Status.NON_FINITE.code for code in codes]
    accuracies = {name: tensor.double().numpy().copy() for name, tensor in measured.items()}
    for values in accuracies.values():
        values[lost] = math.nan
    return Measured(
        group.model,
        group.pixels,
        TrialStack(problem.chain(group.model), trained["values"]),
        [list(Status)[code].value for code in codes],
        trained["steps"].tolist(),
        float(trained["seconds"]),
        trained["metric.late_gain"].double().numpy(),
        accuracies,
    )


def published_of(data: str, pixels: Sequence[str]) -> Callable[[str, str], float | None]:
    """The published number behind a name and a metric, as claims ask for it."""
    known: dict[tuple[str, str], float] = {}
    for way in pixels if data == "mnist" else ():
        for metric, model in BASELINE:
            known[metric, name_of(model, way)] = BASELINE[metric, model].mean
        for model in dict.fromkeys(model for _, model in BASELINE):
            index = published_figure("reliance", model, data)
            if index is not None:
                known["reliance", name_of(model, way)] = index.mean
            for kind, levels in _LEVELS.items():
                for level in levels:
                    figure = published_level(model, kind, level)
                    if figure is not None:
                        name = perturbed(name_of(model, way), kind, level)
                        baseline = BASELINE["train_accuracy", model].mean
                        known["train_accuracy", name] = figure
                        known[LOST, name] = round(baseline - figure, 2)
    return lambda metric, name: known.get((metric, name))
