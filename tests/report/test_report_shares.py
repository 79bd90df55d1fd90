"""The figure of what Abs units gain: every number of the summary where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from mahalens.report.figures import shares
from mahalens.report.records import RunRecords, TrialTable

Gains = Mapping[str, tuple[float | None, tuple[float, float] | None]]
GAINS: Gains = {
    "abs-0": (0.0, (0.0, 0.0)),
    "abs-12": (0.5, (0.25, 0.75)),
    "abs-100": (1.0, (-1.0, 3.0)),
    "narrow-0": (0.0, (0.0, 0.0)),
    "narrow-50": (4.0, (3.0, 5.0)),
    "narrow-100": (-2.0, (-4.0, 0.0)),
    "narrow-double": (6.0, (5.5, 6.5)),
}


def records(gains: Gains) -> RunRecords:
    rows = [
        {"group": {"data": "iris"}, "model": model, "metric": "gain", "mean": mean, "ci95": ends}
        for model, (mean, ends) in gains.items()
    ]
    table = TrialTable([], [], [], {})
    return RunRecords(Path(), {}, {"study": "hybrid", "rows": rows}, table, title="Iris")


def panel(gains: Gains) -> Axes:
    figure = shares.draw(records(gains))
    assert figure is not None
    (ax,) = figure.axes
    return ax


def lines(ax: Axes) -> list[tuple[list[float], list[float]]]:
    return [
        ([float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()])
        for line in ax.lines
    ]


def test_a_line_for_each_width_through_the_means_by_share() -> None:
    drawn = lines(panel(GAINS))
    assert ([-1.2, 11.3, 98.8], [0.0, 0.5, 1.0]) in drawn
    assert ([1.2, 51.2, 101.2], [0.0, 4.0, -2.0]) in drawn


def test_intervals_and_the_level_of_twice_the_units() -> None:
    drawn = lines(panel(GAINS))
    assert ([51.2, 51.2], [3.0, 5.0]) in drawn
    assert ([98.8, 98.8], [-1.0, 3.0]) in drawn
    assert ([0.0, 1.0], [6.0, 6.0]) in drawn


@pytest.mark.parametrize("learned", [False, True])
def test_learned_mixtures_stand_apart(learned: bool) -> None:
    more = {"learned": (2.0, (1.0, 3.0))} if learned else {}
    ax = panel({**GAINS, **more})
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["0", "25", "50", "75", "100", *(["learned"] if learned else [])]
    assert (([114.8], [2.0]) in lines(ax)) == learned


def test_the_legend_names_what_is_there() -> None:
    figure = shares.draw(records(GAINS))
    assert figure is not None
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told[:2] == ["wide layer", "narrow layer"]
    assert len(told) == 3
    only = shares.draw(records({"abs-0": (0.0, None), "abs-50": (1.0, None)}))
    assert only is not None
    assert [text.get_text() for text in only.legends[0].get_texts()] == ["wide layer"]


@pytest.mark.parametrize("gains", [{}, {"abs-50": (None, None)}])
def test_no_figure_without_gains(gains: Gains) -> None:
    assert shares.draw(records(gains)) is None
