"""Makes run folders of paired studies, with numpy and scipy only and in a moment.

They go by the name of a study that exists, with models and metrics of their own: `pretend` puts
those in the place of what the study says.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from mahalens.stats import compare_family
from mahalens.studies.metric import Metric
from mahalens.studies.paired.presentation import Presentation
from mahalens.studies.rows import summary_row

STUDY = "hybrid"
PARTS = ("digits", "mnist", "fashion-mnist", "iris", "wine", "breast-cancer")
SCALED = ["trials: 10 instead of 20", "train_size: 500 instead of all"]
METRICS = {
    "test_accuracy": Metric("Test accuracy", "Share of test samples.", "%", "high"),
    "ece": Metric("Calibration error", "Mean gap of confidence and accuracy.", "", "low"),
    "auroc": Metric("AUROC", "How well strangers are told apart.", "", "high"),
    "epochs_to_95": Metric("Epochs to 95 %", "The first epoch there.", "epochs", "low", log=True),
    "width": Metric("Width", "Neither large nor small is good.", "", None),
}
TESTED = ("test_accuracy", "ece")
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")


def names(count: int) -> tuple[str, ...]:
    """Models by name: short ones and long ones."""
    ends = ("abs", "relu", "half-abs-half-relu", "leaky-relu", "softplus-with-a-very-long-name")
    return tuple(f"{ends[i % 5]}-{i // 5}" if i >= 5 else ends[i] for i in range(count))


def presentation(models: tuple[str, ...], **changes: Any) -> Presentation:
    """What the study says of itself."""
    told: dict[str, Any] = {
        "labels": {m: m.replace("-", " ").capitalize() for m in models},
        "colours": {m: _PALETTE[i % len(_PALETTE)] for i, m in enumerate(models)},
        "markers": {m: "osv^D"[i // len(_PALETTE)] for i, m in enumerate(models)},
        "primary": "test_accuracy",
        "shown": ("test_accuracy", "ece", "auroc", "epochs_to_95"),
        "figures": ("compared", "compared:auroc", "progress", "differences", "differences:ece"),
        "remark": "Nobody has published on this.",
        "curve": "test_accuracy",
    }
    return Presentation(**{**told, **changes})


def pretend(
    monkeypatch: pytest.MonkeyPatch, models: tuple[str, ...] = names(4), **changes: Any
) -> None:
    """Let the study have these models, and the metrics of this module."""
    said = {"presentation": ("PRESENTATION", presentation(models, **changes))}
    said["metrics"] = ("METRICS", METRICS)  # type: ignore[assignment]
    for name, (variable, value) in said.items():
        module = ModuleType(f"mahalens.studies.{STUDY}.{name}")
        setattr(module, variable, value)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def flat(result: msgspec.Struct) -> dict[str, Any]:
    """A comparison as one line, as the records of a study have it."""
    line: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(result).items():
        if isinstance(value, msgspec.Struct):
            line |= flat(value)
        elif name.endswith("ci95") or isinstance(value, tuple):
            line[f"{name}_low"], line[f"{name}_high"] = value or (None, None)
        else:
            line[name] = value
    return line


def claims(parts: tuple[str, ...], statements: int = 4) -> list[dict[str, Any]]:
    """Statements put to each data set, of every verdict, and one about the whole run."""
    ways = (
        ("holds", 1.25, "Half Abs averages more."),
        ("fails", -0.5, "It does not."),
        ("not measured", None, "Undecided. The interval reaches zero."),
        ("not measured", None, "This run has no numbers for it."),
    )
    found = []
    for place in range(statements):
        for at, part in enumerate(parts):
            verdict, measured, why = ways[(place + at) % 4]
            found.append(
                {
                    "id": f"{STUDY}/half-beats-{place}/{part}",
                    "source": "001" if place % 2 else "here",
                    "statement": f"Half Abs beats number {place} by a point (on {part}).",
                    "published": None,
                    "measured": measured,
                    "verdict": verdict,
                    "why": why,
                }
            )
    whole = {
        "id": f"{STUDY}/everywhere",
        "source": "here",
        "statement": "Half Abs is nowhere worse.",
        "published": None,
        "measured": 0.5,
        "verdict": "fails",
        "why": "On 1 of 2 it is.",
    }
    return [*found, whole]


def _values(
    rng: np.random.Generator, place: int, part: int, trials: int
) -> dict[str, np.ndarray[Any, Any]]:
    shared = rng.normal(size=trials)
    accuracy = (
        97.0
        - 2.0 * part
        - (0.35 if part else 0.05) * place
        - (60.0 if place == 3 and part == 1 else 0.0)
    )
    return {
        "test_accuracy": np.clip(accuracy + 0.5 * shared + 0.3 * rng.normal(size=trials), 0, 100),
        "ece": 0.02 + 0.01 * place * rng.uniform(0.8, 1.2, trials),
        "auroc": np.clip(0.95 - 0.02 * place + 0.01 * rng.normal(size=trials), 0, 1),
        "epochs_to_95": np.round(4.0 * (place + 1) * np.exp(0.2 * rng.normal(size=trials))) + 1,
        "width": np.full(trials, 64.0),
    }


def write_paired(
    folder: Path,
    *,
    models: tuple[str, ...] = names(4),
    parts: tuple[str, ...] = PARTS[:2],
    trials: int = 10,
    epochs: int = 20,
    lost: tuple[int, ...] = (),
    absent: tuple[tuple[str, str], ...] = (),
    statements: int = 4,
    scaled: bool = True,
    curves: bool = True,
) -> Path:
    """Write the records of a run: what `mahalens run hybrid` leaves, but for weights.

    In ``lost`` trials of the first model nothing is finite; ``absent`` pairs of part and model
    were not run.
    """
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    table, seen = [], []
    rows: list[dict[str, Any]] = []
    outcomes: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    for at, part in enumerate(parts):
        found = {}
        for place, model in enumerate(models):
            values = _values(rng, place, at, trials)
            if (part, model) in absent:
                continue
            gone = lost if place == 0 else ()
            for trial in gone:
                for own in values.values():
                    own[trial] = np.nan
            found[model] = values
            for trial in range(trials):
                cells = [values[metric][trial] for metric in METRICS]
                status = "non-finite" if trial in gone else "done"
                shown = ["" if np.isnan(cell) else repr(float(cell)) for cell in cells]
                table.append([model, part, trial, status, *shown])
                for epoch in dict.fromkeys((0, 1, 2, 5, epochs // 2, epochs)):
                    end = values["test_accuracy"][trial]
                    gained = end - (end - 10.0) * np.exp(-3.0 * epoch / (place + 1))
                    text = "" if np.isnan(gained) else repr(float(gained))
                    seen.append([model, part, trial, epoch, "1.5", text])
            rows += [
                summary_row(
                    {"data": part},
                    model,
                    metric,
                    values[metric],
                    best=0,
                    published=95.64 if metric == "test_accuracy" and place == 1 else None,
                )
                for metric in METRICS
            ]
            counted = {"done": trials - len(gone), "non-finite": len(gone)}
            outcomes.append(
                {
                    "model": model,
                    "group": {"data": part},
                    "trials": trials,
                    "statuses": {name: count for name, count in counted.items() if count},
                    "non_finite": list(gone),
                    "best_trial": 0,
                    "seconds": 1.5,
                }
            )
        for metric in TESTED:
            named = {f"{model} ({part})": own[metric] for model, own in found.items()}
            first = f"{models[0]} ({part})"
            pairs = [(name, first) for name in named if name != first and first in named]
            tests += [
                {"family": part, "metric": metric} | flat(result)
                for result in compare_family(named, pairs)
            ]
    protocol, told = ("scaled", SCALED) if scaled else ("published", [])
    config = {
        "study": STUDY,
        "mahalens": "0.1.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
        "created": "2026-11-15T19:40:00+00:00",
        "seed": 0,
        "device": "cpu",
        "threads": 2,
        "engine": "compiled",
        "protocol": protocol,
        "scaled": told,
        "command": "mahalens run hybrid --out runs/demo",
        "options": {
            "data": list(parts),
            "models": list(models),
            "trials": trials,
            "epochs": epochs,
            "train_size": 500,
            "seed": 0,
            "hidden_units": 64,
        },
    }
    facts = {
        "training_samples": 1437,
        "test_samples": 360,
        "inputs": 64,
        "classes": 10,
        "source": "a file",
    }
    summary = {
        "study": STUDY,
        "protocol": protocol,
        "facts": {"data": dict.fromkeys(parts, facts), "epochs": epochs, "seconds": 12.0},
        "outcomes": outcomes,
        "rows": rows,
        "comparisons": tests,
        "claims": claims(parts, statements),
        "scaled": told,
        "cautions": [],
    }
    for name, record in (("config", config), ("summary", summary)):
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(record))
    head = ["model", "data", "trial", "status", *METRICS]
    columns = ["model", "data", "trial", "epoch", "train_loss", "test_accuracy"]
    tables = {"trials": [head, *table], **({"curves": [columns, *seen]} if curves else {})}
    if tests:
        tables["comparisons"] = [list(tests[0]), *(list(line.values()) for line in tests)]
    for file, lines in tables.items():
        with (folder / f"{file}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(lines)
    json.loads((folder / "summary.json").read_text())  # as strict a reader as any
    return folder
