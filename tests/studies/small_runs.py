"""Small runs of all studies, and what reads a run folder as a stranger would."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from mahalens.studies.registry import load_study
from mahalens.studies.run import execute, start

SMALL = {
    "gaussian": {"dim": 2, "epochs": 40, "trials": 3, "samples": 60},
    "ellipsoids": {"dim": 8, "count": 12, "steps": 30, "trials": 2, "ranks": (2, 4)},
    "representation": {
        "data": "digits",
        "models": ("relu", "relu2", "abs-l2"),
        "epochs": 6,
        "trials": 3,
        "train_size": 100,
        "group": 2,
    },
    "pixels": {
        "network": ("relu", "relu2"),
        "models": ("raw", "step", "normalised"),
        "epochs": 6,
        "trials": 2,
        "train_size": 100,
    },
    "perturbation": {"data": "digits", "epochs": 6, "trials": 2, "train_size": 100},
    "activations": {
        "data": ("digits",),
        "models": ("relu", "relu2", "gelu2-neg"),
        "epochs": 5,
        "trials": 2,
        "train_size": 100,
    },
    "init": {
        "data": ("iris", "wine"),
        "models": ("abs-kaiming", "abs-cluster-pca"),
        "epochs": 2,
        "trials": 2,
    },
    "hybrid": {
        "data": ("iris",),
        "models": ("abs-0", "abs-50", "narrow-0", "narrow-learned"),
        "epochs": 2,
        "trials": 2,
    },
    "heads": {
        "data": ("digits",),
        "models": ("softmax", "knn", "fitted", "distance", "duq"),
        "epochs": 1,
        "trials": 2,
        "train_size": 400,
    },
    "detect": {
        "data": ("digits", "wine"),
        "models": ("auto", "mahalanobis", "relative++", "energy"),
        "trials": 2,
    },
    "clusters": {
        "data": ("2d-apart-stretched", "10d-overlap-round"),
        "models": ("abs-classes", "relu-distances", "abs-classes-clusters", "relu-classes-deep"),
        "epochs": 5,
        "trials": 2,
        "samples": 20,
    },
    "mechanisms": {
        "data": "digits",
        "models": ("relu", "relu2", "relu2-of-3", "relu2-balanced", "abs2-8", "linear-rbf"),
        "pixels": ("raw",),
        "epochs": 4,
        "trials": 2,
        "train_size": 100,
    },
    "transfer": {
        "data": ("iris", "wine"),
        "models": ("relu-linear", "relu-l2-neg", "boosting", "knn"),
        "epochs": 4,
        "trials": 2,
    },
    "penalties": {
        "data": ("iris", "wine"),
        "models": ("abs-none", "abs-decay", "abs-orthogonal", "relu-none", "relu-white"),
        "epochs": 3,
        "trials": 2,
        "train_size": 30,
    },
}
"""Options of a run of a few seconds, by study."""


class Watcher:
    """Hears what a run says."""

    def __init__(self):
        self.notes, self.stages, self.shares = [], [], []

    def stage(self, name):
        self.stages.append(name)
        return lambda work: self.shares.append(work.progress[0])

    def note(self, text):
        self.notes.append(text)


class Run:
    """A run folder as a stranger would read it: with csv and json only."""

    def __init__(self, path, watcher=None):
        self.path = Path(path)
        self.watcher = watcher
        self.config = self.json("config.json")
        self.summary = self.json("summary.json")
        self.trials = self.csv("trials.csv")

    def json(self, name):
        def refuse(word):
            raise AssertionError(f"{name} holds {word}, which is no JSON")

        return json.loads((self.path / name).read_text("utf-8"), parse_constant=refuse)

    def csv(self, name):
        with (self.path / name).open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def numbers(self):
        """Return every table and verdict, without times."""
        names = ("trials.csv", "curves.csv", "comparisons.csv", "levels.csv")
        tables = {
            name: [_timeless(row) for row in self.csv(name)]
            for name in names
            if (self.path / name).exists()
        }
        claims = [_timeless_claim(claim) for claim in self.summary["claims"]]
        return tables, claims

    def of(self, model):
        return [row for row in self.trials if row["model"] == model]

    def row(self, model, metric):
        rows = self.summary["rows"]
        (row,) = (r for r in rows if (r["model"], r["metric"]) == (model, metric))
        return row

    def outcome(self, model):
        (outcome,) = (o for o in self.summary["outcomes"] if o["model"] == model)
        return outcome


def _timeless(row):
    return {name: value for name, value in row.items() if "second" not in name}


def _timeless_claim(claim):
    timed = claim["id"] == "ellipsoids/rank-4-matches-full"  # which is also about seconds
    return {} if timed else {k: v for k, v in claim.items() if k in ("id", "verdict", "measured")}


def config_of(study, **options):
    return load_study(study).config.with_defaults(**{**SMALL[study], **options})


def make_run(study, path, should_stop=None, how=None, **options):
    """Make a run of a study in a folder, small unless options say otherwise."""
    value, watcher = load_study(study), Watcher()
    with start(value, config_of(study, **options), path, command=f"mahalens run {study}") as folder:
        execute(value, folder, watcher, should_stop, **{"workers": 1, **(how or {})})
    return Run(path, watcher)


def go_on(path, should_stop=None, **how):
    """Go on with a run that was stopped."""
    from mahalens.studies.folder import RunFolder

    watcher = Watcher()
    with RunFolder.open(path) as folder:
        execute(load_study(folder.config.study), folder, watcher, should_stop, **how)
    return Run(path, watcher)
