"""How to run a run again, and what its folder holds."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

from mahalens.report.numbers import MISSING, anything
from mahalens.report.records import RunRecords

_RECORDS = {
    "config.json": "what was run, with versions and seed",
    "gaussian.json": "mean and covariance of the Gaussian",
    "trials.csv": "every metric of every trial",
    "curves.csv": "training loss, accuracy or error of every trial on its way",
    "comparisons.csv": "every test between two models",
    "levels.csv": "accuracy of every trial at every level of perturbation",
    "summary.json": "the figures and verdicts on this page",
    "plots.safetensors": "the arrays behind the figures",
    "weights": "the trained weights, or the points found, of every trial",
    "tensorboard": "event files for TensorBoard",
    "figures": "the figures on this page",
}


def run_again(records: RunRecords) -> dict[str, Any]:
    """Commands, versions, date and the records that are there."""
    config = records.config
    command = str(config.get("command") or "")
    folder = shlex.quote(_out_folder(command) or records.folder.resolve().name)
    versions = {name: config.get(name) for name in ("mahalens", "torch", "python")}
    return {
        "command": command,
        "report": f"mahalens report {folder}",
        "resume": f"mahalens run --resume {folder}",
        "versions": ", ".join(f"{name} {anything(v)}" for name, v in versions.items() if v),
        "created": _date(str(config.get("created") or "")),
        "records": [
            (f"{name}/" if (records.folder / name).is_dir() else name, told)
            for name, told in _RECORDS.items()
            if (records.folder / name).exists()
        ],
    }


def _out_folder(command: str) -> str | None:
    """The folder a recorded command wrote to: it says more than the last part of a path."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    for place, word in enumerate(words):
        if word == "--out":
            return " ".join(words[place + 1 : place + 2]) or None
        if word.startswith("--out="):
            return word.removeprefix("--out=") or None
    return None


def _date(stamp: str) -> str:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp or MISSING
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".strip()
