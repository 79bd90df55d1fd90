"""Reads the records of a run folder, and says in one line what is wrong with it if it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mahalens.errors import RunFolderError
from mahalens.files import is_folder
from mahalens.report.arrays import check_plots
from mahalens.report.files import (
    damaged,
    float_or_nan,
    is_record,
    parse_cell,
    read_arrays,
    read_csv,
    read_json,
)
from mahalens.report.ledger import upgrade
from mahalens.report.parts import parts_of
from mahalens.report.shapes import Config, Gaussian, Summary
from mahalens.report.views import Parts, View, view_of

Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class TrialTable:
    """``trials.csv`` by column, one entry a trial and model; NaN where a metric has no value.

    ``part`` says to which part of the run an entry belongs; it is empty for runs without parts.
    """

    model: list[str]
    trial: list[int]
    status: list[str]
    metrics: dict[str, Floats]
    part: list[str] = field(default_factory=list)

    def of(self, model: str, metric: str) -> dict[int, float]:
        """The value of ``metric`` for each trial of ``model`` that has a finite one."""
        values = self.metrics.get(metric)
        if values is None:
            return {}
        rows = zip(self.model, self.trial, values, strict=True)
        return {t: float(v) for name, t, v in rows if name == model and np.isfinite(v)}

    def of_part(self, part: str) -> TrialTable:
        """The entries of one part."""
        kept = [place for place, own in enumerate(self.part) if own == part]
        return TrialTable(
            [self.model[place] for place in kept],
            [self.trial[place] for place in kept],
            [self.status[place] for place in kept],
            {name: values[kept] for name, values in self.metrics.items()},
        )


@dataclass(frozen=True)
class Curve:
    """What a trial has come to: ``value[i]``, a loss or an error, after step ``step[i]``."""

    step: Floats
    value: Floats


@dataclass(frozen=True)
class RunRecords:
    """All a report needs to know about one run.

    ``curves`` maps model and trial to the loss curve, ``plots`` holds the arrays of
    ``plots.safetensors`` by name, ``gaussian`` the mean [D] and covariance [D, D] where the
    study has one.

    A run may have parts, in each of which every model was trained (with raw pixels, say). Then
    models of ``curves`` and names of ``plots`` begin with the part and a slash, and a model has
    several rows and outcomes: tables and figures take :meth:`parts`, one after the other. A part
    has a name (``part``), a title, and a ``phrase`` for the middle of a sentence.
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    trials: TrialTable
    curves: dict[str, dict[int, Curve]] = field(default_factory=dict)
    plots: dict[str, NDArray[Any]] = field(default_factory=dict)
    gaussian: dict[str, Floats] | None = None
    part: str = ""
    title: str = ""
    phrase: str = ""

    @property
    def study(self) -> str:
        """The name of the study."""
        return str(self.summary["study"])

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        """What became of the trials, by model."""
        return {str(o["model"]): o for o in self.summary.get("outcomes", [])}

    def row(self, model: str, metric: str) -> dict[str, Any]:
        """The summary of one metric of one model (empty when there is none)."""
        rows: list[dict[str, Any]] = self.summary["rows"]
        matching = (r for r in rows if r["model"] == model and r["metric"] == metric)
        return next(matching, {})

    def parts(self) -> list[RunRecords]:
        """The parts of the run as records of their own, each with a title; else the run itself."""
        if view_of(self.study).parts is None or self.title:
            return [self]

        def under(entries: dict[str, T], part: str) -> dict[str, T]:
            start = f"{part}/"
            return {n.removeprefix(start): v for n, v in entries.items() if n.startswith(start)}

        return [
            replace(
                self,
                summary=part.summary,
                trials=self.trials.of_part(part.name),
                curves=under(self.curves, part.name),
                plots=under(self.plots, part.name),
                part=part.name,
                title=part.title,
                phrase=part.phrase,
            )
            for part in parts_of(self.summary, self.trials.part)
        ]


def load_run(folder: str | os.PathLike[str]) -> RunRecords:
    """Read a finished run folder.

    Raises :class:`~mahalens.errors.RunFolderError`, naming the file, when the folder is not
    there, the run is unfinished, or a record is missing or damaged.
    """
    folder = Path(folder)
    if not is_folder(folder):
        raise RunFolderError(f"{folder}: no such folder; give one that `mahalens run` has made")
    if not is_record(folder / "config.json"):
        raise RunFolderError(
            f"{folder}: holds no run (config.json is missing); give a folder that "
            "`mahalens run` has made"
        )
    config = read_json(folder / "config.json", Config)
    if not is_record(folder / "summary.json"):
        raise RunFolderError(
            f"{folder}: the run is not finished (summary.json is missing); finish it with "
            f"`mahalens run --resume {folder}`"
        )
    summary = read_json(folder / "summary.json", Summary)
    summary["claims"] = [upgrade(claim) for claim in summary["claims"]]
    view = view_of(summary["study"])

    def optional(name: str, read: Callable[[Path], T], otherwise: T) -> T:
        return read(folder / name) if name in view.needed or (folder / name).exists() else otherwise

    plots: dict[str, NDArray[Any]] = optional("plots.safetensors", read_arrays, {})
    check_plots(folder / "plots.safetensors", plots)
    return RunRecords(
        folder=folder,
        config=config,
        summary=summary,
        trials=_trials(folder / "trials.csv", view.parts),
        curves=optional("curves.csv", partial(_curves, view=view), {}),
        plots=plots,
        gaussian=optional("gaussian.json", _gaussian, None),
    )


def _gaussian(path: Path) -> dict[str, Floats] | None:
    record = read_json(path, Gaussian)
    mean = np.asarray(record["mean"], dtype=np.float64)
    if any(len(row) != len(mean) for row in record["covariance"]):
        raise damaged(path, "the covariance is not as wide as the mean is long")
    covariance = np.asarray(record["covariance"], dtype=np.float64)
    return {"mean": mean, "covariance": covariance}


def _trials(path: Path, parts: Parts | None) -> TrialTable:
    by = parts.by if parts else ""
    part: list[str] = []
    model: list[str] = []
    trial: list[int] = []
    status: list[str] = []
    metrics: dict[str, list[float]] = {}
    for line, cells in read_csv(path, ("model", "trial", "status", *([by] if by else ()))):
        model.append(cells.pop("model"))
        trial.append(parse_cell(path, line, "trial", cells.pop("trial"), int))
        status.append(cells.pop("status"))
        if by:
            part.append(cells.pop(by))
        cells.pop("steps", None)
        cells.pop("basin", None)
        for name, text in cells.items():
            value = parse_cell(path, line, name, text, float_or_nan)
            metrics.setdefault(name, []).append(value)
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in metrics.items()}
    return TrialTable(model, trial, status, columns, part)


def _curves(path: Path, view: View) -> dict[str, dict[int, Curve]]:
    if view.curve is None:
        return {}
    along, what = view.curve
    by = view.parts.by if view.parts else ""
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for line, cells in read_csv(path, ("model", "trial", along, what, *([by] if by else ()))):
        trial = parse_cell(path, line, "trial", cells["trial"], int)
        step = parse_cell(path, line, along, cells[along], float)
        value = parse_cell(path, line, what, cells[what], float_or_nan)
        if by and np.isnan(value):
            continue  # a line that is there for its loss alone
        model = f"{cells[by]}/{cells['model']}" if by else cells["model"]
        points.setdefault(model, {}).setdefault(trial, []).append((step, value))

    def curve(pairs: list[tuple[float, float]]) -> Curve:
        step, value = np.asarray(sorted(pairs), dtype=np.float64).T
        return Curve(step, value)

    return {m: {t: curve(pairs) for t, pairs in trials.items()} for m, trials in points.items()}
