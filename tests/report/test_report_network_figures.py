"""The figures of the representation study, drawn from hand-made records."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from network_runs import MODELS, write_networks

from mahalens.report.catalogue import model_colours
from mahalens.report.figures import (
    accuracy,
    centres,
    dead,
    draw_figures,
    latent,
    learning,
    outputs,
)
from mahalens.report.figures.accuracy_axis import AccuracyScale
from mahalens.report.figures.rows import family_rows
from mahalens.report.figures.style import styled
from mahalens.report.records import Curve, RunRecords, TrialTable, load_run
from mahalens.report.views import view_of
from mahalens.studies.representation.models import MODELS as ALL

MODULES = {
    m.__name__.rsplit(".", 1)[1]: m for m in (accuracy, learning, outputs, dead, centres, latent)
}
EVERY = view_of("representation").figures


def drawn(module: Any, records: RunRecords) -> Figure:
    with styled():
        figure = module.draw(records)
        assert isinstance(figure, Figure)
        figure.draw_without_rendering()
    return figure


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


def panel(figure: Figure, *parts: str) -> Axes:
    return next(ax for ax in figure.axes if all(part in ax.get_title(loc="left") for part in parts))


def names(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    return load_run(write_networks(tmp_path_factory.mktemp("figures") / "run"))


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"trials": 1}, ()),
        ({"models": ("relu2",), "pixels": ("raw",), "trials": 1}, ()),
        ({"models": ("abs",)}, ("outputs", "dead")),
        ({"lost": (0, 2)}, ()),
        ({"lost": (0,), "trials": 1}, ("accuracy", "dead", "centres")),
        ({"dead": True}, ()),
        ({"classes": 2, "models": ("relu2", "abs")}, ()),
        ({"classes": 50, "models": ("relu2", "abs"), "trials": 2}, ()),
        ({"models": ALL, "trials": 2}, ()),
    ],
)
def test_every_figure_that_has_data_is_drawn(
    tmp_path: Path, options: dict[str, Any], missing: tuple[str, ...]
) -> None:
    figures = list(draw_figures(load_run(write_networks(tmp_path / "run", **options))))
    assert [figure.name for figure in figures] == [n for n in EVERY if n not in missing]
    for figure in figures:
        assert figure.width == 2000
        assert figure.height < 3200
        assert figure.title.endswith("?")
        assert figure.caption.endswith(".")


@pytest.mark.parametrize("name", EVERY)
def test_a_run_without_the_data_has_no_such_figure(run: RunRecords, name: str) -> None:
    bare = dataclasses.replace(
        run,
        plots={},
        curves={},
        trials=TrialTable([], [], [], {}),
        summary={**run.summary, "rows": []},
    )
    with styled():
        assert MODULES[name].draw(bare) is None


@pytest.mark.parametrize("name", EVERY)
def test_panels_do_not_cut_their_text(run: RunRecords, name: str) -> None:
    figure = drawn(MODULES[name], run)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    width, height = figure.canvas.get_width_height()
    for ax in figure.axes:
        box = ax.get_tightbbox(renderer)
        assert box is not None
        assert box.x0 >= -1
        assert box.x1 <= width + 1
        assert box.y0 >= -1
        assert box.y1 <= height + 1


def test_accuracy_shows_every_trial_and_the_published_mean(run: RunRecords) -> None:
    figure = drawn(accuracy, run)
    assert titles(figure) == ["Normalized pixels", "Raw pixels"]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[-2:] == ["ReLU2, bias", "Abs-L2, published code"]
    raw = run.parts()[1]
    values = list(raw.trials.of("relu2", "test_accuracy").values())
    every = [
        v for p in run.parts() for m in MODELS for v in p.trials.of(m, "test_accuracy").values()
    ]
    places = AccuracyScale([*every, 95.64]).at(values)
    row = family_rows(MODELS).places["relu2"]
    colour = model_colours(["relu2"], "representation")["relu2"]
    lines = [
        line
        for line in figure.axes[1].lines
        if line.get_color() == colour and np.all(np.abs(np.asarray(line.get_ydata()) - row) < 0.5)
    ]
    np.testing.assert_allclose(np.asarray(lines[0].get_xdata()), places)
    diamonds = [line for line in figure.axes[1].lines if line.get_marker() == "D"]
    assert len(diamonds) == 1
    assert "published mean" in names(figure)


def test_a_failing_network_does_not_squash_the_others() -> None:
    scale = AccuracyScale([20.0, 95.0, 97.0])
    low, high = scale.limits()
    worst, good, best = scale.at([20.0, 95.0, 97.0])
    assert (best - good) / (high - low) > 0.1
    assert worst < good < best


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
@example([100.0])
@example([0.0, 100.0])
@example([99.999999999, 100.0])
def test_the_axis_holds_all_accuracies_in_their_order(values: list[float]) -> None:
    scale = AccuracyScale(values)
    low, high = scale.limits()
    places = scale.at(sorted(values))
    assert np.all(np.diff(places) >= 0)
    assert np.all((places >= low) & (places <= high))
    ticks = [place for place, _ in scale.ticks()]
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= high + 1e-9 for tick in ticks)


def test_learning_has_a_panel_for_each_family_and_kind_of_pixels(run: RunRecords) -> None:
    figure = drawn(learning, run)
    assert titles(figure) == [
        f"{family}, {pixels} pixels"
        for family in (
            "Without output bias",
            "With output bias",
            "OffsetL2 by the published code",
        )
        for pixels in ("normalized", "raw")
    ]
    ax = panel(figure, "With output bias", "raw")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ReLU2, bias"]
    trials = run.parts()[1].curves["relu2-bias"].values()
    every = [c.value for p in run.parts() for t in p.curves.values() for c in t.values()]
    scale = AccuracyScale(np.concatenate(every).tolist())
    mean = scale.at(np.mean([curve.value for curve in trials], axis=0))
    np.testing.assert_allclose(np.asarray(ax.lines[0].get_ydata()), mean)
    assert "from the worst trial to the best" in names(figure)
    assert "worst trial" in learning.caption(run)


def test_a_curve_that_stops_early_is_not_carried_on(run: RunRecords) -> None:
    whole = Curve(np.array([0.0, 1.0, 2.0]), np.array([10.0, 50.0, 80.0]))
    short = Curve(np.array([0.0, 1.0]), np.array([10.0, 30.0]))
    curves = {"raw/relu": {0: whole, 1: short}}
    ax = drawn(learning, dataclasses.replace(run, curves=curves)).axes[0]
    scale = AccuracyScale([10.0, 80.0])
    np.testing.assert_allclose(np.asarray(ax.lines[0].get_ydata()), scale.at([10.0, 40.0, 80.0]))


def test_outputs_show_which_are_dead_and_which_are_rare(run: RunRecords) -> None:
    activity = np.array([[0.0, 1e-9, 0.009], [0.01, 0.049, 0.05], [0.3, 0.8, np.nan]])
    plots = {**run.plots, "raw/relu2/output_activity": activity}
    figure = drawn(outputs, dataclasses.replace(run, plots=plots))
    ax = panel(figure, "ReLU2\n", "raw")
    levels = np.ma.asarray(ax.collections[0].get_array()).reshape(3, 3)
    assert levels.filled(-1).tolist() == [[0, 1, 1], [2, 2, 3], [4, 5, -1]]
    assert "not finite" in names(figure)
    row = run.parts()[1].row("relu2", "dead_outputs")
    assert f"dead: {row['mean']:.3g}"[:8] in ax.get_xlabel()
    assert len(figure.axes) == 6  # relu2, relu2-neg and relu2-bias, twice


def test_texts_below_the_outputs_stay_apart(tmp_path: Path) -> None:
    figure = drawn(outputs, load_run(write_networks(tmp_path / "run", models=ALL, trials=7)))
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [ax.xaxis.label.get_window_extent(renderer) for ax in figure.axes]
    assert len(boxes) == 12
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])
    assert "at the start: " in figure.axes[0].get_xlabel()


def test_dead_outputs_stand_against_accuracy(run: RunRecords) -> None:
    figure = drawn(dead, run)
    raw = run.parts()[1]
    ax = panel(figure, "Raw")
    found = raw.trials.of("relu2", "test_accuracy")
    assert any(np.allclose(np.asarray(ln.get_ydata()), list(found.values())) for ln in ax.lines[:3])
    line = next(
        line for line in ax.lines if line.get_linestyle() == "--" or len(line.get_xdata()) == 2
    )  # type: ignore[arg-type]
    assert np.asarray(line.get_ydata()).tolist() == [raw.row("relu", "test_accuracy")["mean"], 0]
    assert "% of what ReLU2 lacks" in ax.get_title(loc="right")
    assert names(figure) == ["ReLU2", "ReLU2-Neg", "ReLU2, bias", "ReLU less the dead classes"]


@pytest.mark.parametrize(
    ("own", "other", "ratio", "colour"),
    [
        (0.5, 1.5, [0.3, 0.4], "#0072B2"),
        (1.5, 0.5, [2.0, 4.0], "#D55E00"),
        (1.1, 1.0, [0.8, 1.4], "#8a8a8a"),
        (0.0, 1.5, None, "#0072B2"),
    ],
)
def test_centres_say_distance_or_intensity(
    run: RunRecords, own: float, other: float, ratio: list[float] | None, colour: str
) -> None:
    given_now = {"own_centre": (own, [own - 1, own + 1]), "other_centre": (other, None)}
    rows = [
        {
            "group": {"pixels": "raw"},
            "model": "relu2",
            "metric": m,
            "mean": mean,
            "n": 3,
            "ci95": ci,
        }
        for m, (mean, ci) in {**given_now, "centre_ratio": (1.0, ratio)}.items()
    ]
    bare = dataclasses.replace(
        run,
        summary={**run.summary, "rows": rows, "outcomes": []},
        trials=TrialTable([], [], [], {}),
    )
    (ax,) = drawn(centres, bare).axes
    bar = next(line for line in ax.lines if line.get_linewidth() == 3)
    assert bar.get_color() == colour
    assert np.asarray(bar.get_xdata())[1] == other


def test_latent_draws_the_baselines_with_a_ridge_per_class(run: RunRecords) -> None:
    figure = drawn(latent, run)
    assert len(figure.axes) == 8  # ReLU and Abs, two nodes, two kinds of pixels
    ax = panel(figure, "ReLU, node 3", "raw")
    marks = [float(np.asarray(ln.get_xdata())[0]) for ln in ax.lines if ln.get_marker() == "|"]
    means = run.plots["raw/relu/latent.moments"][0, :, 0]
    np.testing.assert_allclose(marks, means[np.abs(means) <= 2])
    assert [label.get_text() for label in ax.get_yticklabels()] == [str(c) for c in range(10)]
    alone = dataclasses.replace(run, plots={k: v for k, v in run.plots.items() if "abs2-neg" in k})
    assert "Abs2-Neg, node 3" in titles(drawn(latent, alone))[0]


def test_of_thousands_of_classes_the_first_are_drawn(run: RunRecords) -> None:
    plots = {
        **{name: array for name, array in run.plots.items() if name.startswith("raw/relu/")},
        "raw/relu/latent.counts": np.ones((2, 3_000, 8)),
        "raw/relu/latent.moments": np.zeros((2, 3_000, 3)),
    }
    many = dataclasses.replace(run, plots=plots)
    for ax in drawn(latent, many).axes:
        assert sum(line.get_marker() == "|" for line in ax.lines) == 22
    assert "The first 22 of 3,000 classes are drawn." in latent.caption(many)
    assert "classes are drawn" not in latent.caption(run)


def test_a_class_without_samples_has_no_ridge(run: RunRecords) -> None:
    counts = run.plots["raw/relu/latent.counts"].copy()
    counts[:, 4] = 0
    moments = run.plots["raw/relu/latent.moments"].copy()
    moments[:, 4] = np.nan
    plots = {"raw/relu/latent.counts": counts, "raw/relu/latent.moments": moments}
    assert drawn(latent, dataclasses.replace(run, plots={**run.plots, **plots})) is not None
