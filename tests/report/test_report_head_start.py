"""The figure of who is ahead of the usual start, on numbers that are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import same_color
from scipy import stats

from mahalens.report.figures import head_start
from mahalens.report.figures.style import styled
from mahalens.report.records import Curve

STEPS = np.array([0.0, 1.0, 2.0, 3.0])


def records(*models: str, trials: int = 4, parts: tuple[str, ...] = ("Iris", "Wine")) -> Any:
    rng = np.random.default_rng(0)

    def part(title: str) -> Any:
        curves = {
            model: {t: Curve(STEPS, 80 + rng.normal(size=4)) for t in range(trials)}
            for model in models
        }
        return SimpleNamespace(title=title, curves=curves, study="init")

    made = [part(title) for title in parts]
    return SimpleNamespace(study="init", parts=lambda: made)


def drawn(run: Any) -> Any:
    with styled():
        return head_start.draw(run)


def test_lines_are_mean_leads_over_kaiming_of_the_same_trials():
    run = records("abs-kaiming", "abs-cluster-pca", "abs-lsuv", "relu-kaiming", "relu-whiten")
    figure = drawn(run)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["Iris: Abs", "Iris: ReLU", "Wine: Abs", "Wine: ReLU"]
    own = run.parts()[1].curves
    ahead = np.array(
        [own["abs-cluster-pca"][t].value - own["abs-kaiming"][t].value for t in range(4)]
    )[:, 1:]
    ax = figure.axes[2]
    line = next(one for one in ax.lines if same_color(one.get_color(), "#d55e00"))
    assert line.get_xdata().tolist() == [1, 2, 3]  # not the guesses before training
    np.testing.assert_allclose(line.get_ydata(), ahead.mean(0))
    (band,) = ax.collections
    low, high = stats.t.interval(0.95, 3, ahead.mean(0), stats.sem(ahead))
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(high.max())
    assert heights.min() == pytest.approx(low.min())
    assert not figure.axes[3].collections  # only the start that the study is about has a band
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["LSUV", "Whitening", "Cluster PCA"]


def test_trials_that_the_usual_start_lacks_are_left_out():
    run = records("abs-kaiming", "abs-lsuv", parts=("Iris",))
    curves = run.parts()[0].curves
    del curves["abs-kaiming"][2]
    lead = np.mean(
        [curves["abs-lsuv"][t].value - curves["abs-kaiming"][t].value for t in (0, 1, 3)], axis=0
    )
    (ax,) = drawn(run).axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), lead[1:])


def test_nothing_is_drawn_without_the_usual_start():
    assert head_start.draw(records("abs-lsuv", "relu-cluster-pca")) is None
    assert head_start.draw(records("abs-kaiming", "relu-kaiming")) is None
    assert head_start.draw(records("abs-kaiming", "relu-lsuv")) is None


def test_one_trial_has_no_interval_and_large_leads_have_room():
    run = records("relu-kaiming", "relu-cluster-pca", trials=1, parts=("Iris",))
    curve = run.parts()[0].curves["relu-cluster-pca"][0]
    curve.value[1] += 40
    (ax,) = drawn(run).axes
    assert not ax.collections
    assert ax.get_ylim()[1] > 40
    assert "+20" in [label.get_text() for label in ax.get_yticklabels()]


def test_the_caption_says_what_is_compared():
    assert "Kaiming" in head_start.caption(records("abs-kaiming"))
