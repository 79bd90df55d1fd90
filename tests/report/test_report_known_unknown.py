"""The figure of accuracy against AUROC, from hand-made records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from paired_runs import pretend, write_paired

from mahalens.report.figures import known_unknown
from mahalens.report.figures.style import styled
from mahalens.report.records import RunRecords, load_run

MODELS = ("softmax", "abs", "relu", "half-abs-half-relu")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecords:
    pretend(monkeypatch, MODELS)
    parts = ("digits", "mnist")
    return load_run(write_paired(tmp_path / "run", models=MODELS, parts=parts))


def drawn(run: RunRecords) -> Figure:
    with styled():
        figure = known_unknown.draw(run)
        assert isinstance(figure, Figure)
        figure.canvas.draw()
    return figure


def test_every_model_stands_where_its_means_are(run: RunRecords) -> None:
    figure = drawn(run)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Digits", "MNIST"]
    for ax, part in zip(figure.axes, run.parts(), strict=True):
        marks = {
            (float(x[0]), float(y[0]))
            for line in ax.get_lines()
            for x, y in [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))]
            if len(x) == 1
        }
        wanted = {
            (float(part.row(m, "test_accuracy")["mean"]), float(part.row(m, "auroc")["mean"]))
            for m in MODELS
        }
        assert marks == wanted
        low, high = ax.get_xlim()
        assert all(low < x < high for x, _ in wanted)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["Softmax", "Abs", "Relu", "Half abs half relu"]


def test_dashed_lines_go_through_softmax(run: RunRecords) -> None:
    ax, part = drawn(run).axes[0], run.parts()[0]
    dashed = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
    assert len(dashed) == 2
    across = float(part.row("softmax", "test_accuracy")["mean"])
    assert np.asarray(dashed[0].get_xdata()).tolist() == [across, across]


def test_nothing_is_drawn_without_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, MODELS)
    monkeypatch.setattr(known_unknown, "_UP", "nosuch")
    run = load_run(write_paired(tmp_path / "run", models=MODELS, parts=("digits",)))
    assert known_unknown.draw(run) is None
    assert "dashed lines" in known_unknown.caption(run)
