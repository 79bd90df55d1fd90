import csv
import json
from pathlib import Path

import pytest
import torch

from mahalens.studies.gaussian.config import GaussianConfig
from mahalens.studies.gaussian.run import carry_on, start


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Runs that are compared bit by bit must be made with the same number of threads."""
    torch.set_num_threads(1)


class Watcher:
    """Hears what a run says."""

    def __init__(self):
        self.notes, self.stages = [], []

    def stage(self, name):
        self.stages.append(name)
        return lambda solver: None

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
        self.curves = self.csv("curves.csv")

    def json(self, name):
        def refuse(word):
            raise AssertionError(f"{name} holds {word}, which is no JSON")

        return json.loads((self.path / name).read_text("utf-8"), parse_constant=refuse)

    def csv(self, name):
        with (self.path / name).open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def of(self, model):
        return [row for row in self.trials if row["model"] == model]

    def row(self, model, metric):
        rows = self.summary["rows"]
        (found,) = (r for r in rows if (r["model"], r["metric"]) == (model, metric))
        return found

    def outcome(self, model):
        (found,) = (o for o in self.summary["outcomes"] if o["model"] == model)
        return found


def make_run(path, **options):
    watcher = Watcher()
    config = GaussianConfig.with_defaults(**{"trials": 3, "samples": 100, **options})
    with start(config, path, command="mahalens run gaussian") as folder:
        carry_on(folder, watcher)
    return Run(path, watcher)


@pytest.fixture(scope="session")
def runner():
    """Make a small run: ``runner(path, **options)``."""
    return make_run


@pytest.fixture(scope="session")
def watcher():
    """The kind of object that hears what a run says."""
    return Watcher


@pytest.fixture(scope="session")
def adam_run(tmp_path_factory):
    """Adam in 2-D: 3 trials of all models, 300 epochs, float32."""
    return make_run(tmp_path_factory.mktemp("adam") / "run", epochs=300)


@pytest.fixture(scope="session")
def newton_run(tmp_path_factory):
    """Newton in 2-D: 6 trials of all models, float64."""
    return make_run(tmp_path_factory.mktemp("newton") / "run", trials=6, solver="newton", seed=1)
