"""Reads the records of a run folder, and says in one line what is wrong with it if it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens.errors import RunFolderError
from mahalens.report.files import (
    damaged,
    float_or_nan,
    parse_cell,
    read_arrays,
    read_csv,
    read_json,
)

Floats = NDArray[np.float64]
T = TypeVar("T")

# Every study writes config.json, trials.csv and summary.json; what else it must write is here.
_ALSO_NEEDED = {"gaussian": ("gaussian.json", "curves.csv", "plots.safetensors")}
_CURVE_COLUMNS = {"gaussian": ("epoch", "train_mse"), "ellipsoids": ("step", "error")}


@dataclass(frozen=True)
class TrialTable:
    """``trials.csv`` by column, one entry a trial and model; NaN where a metric has no value."""

    model: list[str]
    trial: list[int]
    status: list[str]
    metrics: dict[str, Floats]

    def of(self, model: str, metric: str) -> dict[int, float]:
        """The value of ``metric`` for each trial of ``model`` that has a finite one."""
        values = self.metrics.get(metric)
        if values is None:
            return {}
        rows = zip(self.model, self.trial, values, strict=True)
        return {t: float(v) for name, t, v in rows if name == model and np.isfinite(v)}


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
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    trials: TrialTable
    curves: dict[str, dict[int, Curve]] = field(default_factory=dict)
    plots: dict[str, NDArray[Any]] = field(default_factory=dict)
    gaussian: dict[str, Floats] | None = None

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


def load_run(folder: str | os.PathLike[str]) -> RunRecords:
    """Read a finished run folder.

    Raises :class:`~mahalens.errors.RunFolderError`, naming the file, when the folder is not
    there, the run is unfinished, or a record is missing or damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such folder; give one that `mahalens run` has made")
    if not (folder / "config.json").is_file():
        raise RunFolderError(
            f"{folder}: holds no run (config.json is missing); give a folder that "
            "`mahalens run` has made"
        )
    config = read_json(folder / "config.json", _Config)
    if not (folder / "summary.json").is_file():
        raise RunFolderError(
            f"{folder}: the run is not finished (summary.json is missing); finish it with "
            f"`mahalens run --resume {folder}`"
        )
    summary = read_json(folder / "summary.json", _Summary)
    needed = _ALSO_NEEDED.get(summary["study"], ())

    def optional(name: str, read: Callable[[Path], T], otherwise: T) -> T:
        return read(folder / name) if name in needed or (folder / name).exists() else otherwise

    plots: dict[str, NDArray[Any]] = optional("plots.safetensors", read_arrays, {})
    _check_plots(folder / "plots.safetensors", plots)
    return RunRecords(
        folder=folder,
        config=config,
        summary=summary,
        trials=_trials(folder / "trials.csv"),
        curves=optional("curves.csv", partial(_curves, study=summary["study"]), {}),
        plots=plots,
        gaussian=optional("gaussian.json", _gaussian, None),
    )


# What a report relies on. More fields may be there; they are left alone.
class _Config(msgspec.Struct):
    study: str
    options: dict[str, Any]
    protocol: Literal["published", "scaled"]
    scaled: list[str] = []


class _Row(msgspec.Struct):
    model: str
    metric: str
    mean: float | None
    n: int
    std: float | None = None
    min: float | None = None
    max: float | None = None
    best: float | None = None
    ci95: tuple[float | None, float | None] | None = None
    published: float | None = None
    published_detail: dict[str, Any] | None = None
    group: dict[str, Any] = {}


class _Outcome(msgspec.Struct):
    model: str
    trials: int
    statuses: dict[str, int]
    basins: dict[str, int] = {}
    non_finite: list[int] = []
    best_trial: int | None = None
    seconds: float | None = None


class _Claim(msgspec.Struct):
    id: str
    source: str
    statement: str
    verdict: Literal["holds", "fails", "not measured"]
    why: str = ""


class _Summary(msgspec.Struct):
    study: str
    protocol: Literal["published", "scaled"]
    rows: list[_Row]
    claims: list[_Claim]
    facts: dict[str, Any] = {}
    outcomes: list[_Outcome] = []


class _Gaussian(msgspec.Struct):
    mean: list[float]
    covariance: list[list[float]]


def _gaussian(path: Path) -> dict[str, Floats] | None:
    record = read_json(path, _Gaussian)
    mean = np.asarray(record["mean"], dtype=np.float64)
    if any(len(row) != len(mean) for row in record["covariance"]):
        raise damaged(path, "the covariance is not as wide as the mean is long")
    covariance = np.asarray(record["covariance"], dtype=np.float64)
    return {"mean": mean, "covariance": covariance}


def _trials(path: Path) -> TrialTable:
    model: list[str] = []
    trial: list[int] = []
    status: list[str] = []
    metrics: dict[str, list[float]] = {}
    for line, cells in read_csv(path, ("model", "trial", "status")):
        model.append(cells.pop("model"))
        trial.append(parse_cell(path, line, "trial", cells.pop("trial"), int))
        status.append(cells.pop("status"))
        cells.pop("steps", None)
        cells.pop("basin", None)
        for name, text in cells.items():
            value = parse_cell(path, line, name, text, float_or_nan)
            metrics.setdefault(name, []).append(value)
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in metrics.items()}
    return TrialTable(model, trial, status, columns)


def _curves(path: Path, study: str) -> dict[str, dict[int, Curve]]:
    along, what = _CURVE_COLUMNS.get(study, ("epoch", "train_mse"))
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for line, cells in read_csv(path, ("model", "trial", along, what)):
        trial = parse_cell(path, line, "trial", cells["trial"], int)
        step = parse_cell(path, line, along, cells[along], float)
        value = parse_cell(path, line, what, cells[what], float_or_nan)
        points.setdefault(cells["model"], {}).setdefault(trial, []).append((step, value))

    def curve(pairs: list[tuple[float, float]]) -> Curve:
        step, value = np.asarray(sorted(pairs), dtype=np.float64).T
        return Curve(step, value)

    return {m: {t: curve(pairs) for t, pairs in trials.items()} for m, trials in points.items()}


def _check_plots(path: Path, plots: Mapping[str, NDArray[Any]]) -> None:
    """Arrays that are drawn against each other must fit each other."""

    def agree(name: str, shape: tuple[int | None, ...]) -> None:
        got = plots[name].shape
        fits = len(got) == len(shape) and all(
            w is None or w == g for w, g in zip(shape, got, strict=True)
        )
        if not fits:
            want = " x ".join("any" if w is None else str(w) for w in shape)
            raise damaged(path, f"{name} has shape {list(got)} where {want} is wanted")

    def length(name: str) -> int | None:
        return plots[name].shape[0] if name in plots and plots[name].ndim == 1 else None

    for name in plots:
        kind, _, rest = name.partition("/")
        model, _, part = rest.rpartition("/")
        if kind == "eigenvalues" and part in ("rows", "gram"):
            agree(name, (None, length("eigenvalues/true")))
        elif kind == "fit" and part == "learned":
            agree(name, (length(f"fit/{model}/true"),))
        elif kind == "plane" and (part == "distance" or rest == "true"):
            agree(name, (length("plane/grid_y"), length("plane/grid_x")))
        elif kind == "plane" and part == "weight":
            agree(name, (length(f"plane/{model}/bias"), 2))
        elif kind == "plane" and rest == "samples":
            agree(name, (None, 2))
        elif kind == "ranks" and rest != "grid":
            agree(name, (3, length("ranks/grid")))
