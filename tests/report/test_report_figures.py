from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from mahalens.report.catalogue import model_colours, model_label
from mahalens.report.figures import (
    draw_figures,
    eigenvalues,
    fit,
    hyperplanes,
    loss,
    metrics,
)
from mahalens.report.figures.hyperplanes import visible_part
from mahalens.report.figures.scales import log_ticks, padded, tick_label, zero_edge, zero_place
from mahalens.report.figures.style import styled
from mahalens.report.records import Curve, RunRecords, TrialTable, load_run
from mahalens.report.views import view_of

GAUSSIAN = view_of("gaussian").figures

MakeRun = Callable[..., Path]
MODULES = {m.__name__.rsplit(".", 1)[1]: m for m in (hyperplanes, loss, metrics, eigenvalues, fit)}


def drawn(module: Any, records: RunRecords) -> Figure:
    with styled():
        figure = module.draw(records)
        assert figure is not None
        figure.draw_without_rendering()
    assert isinstance(figure, Figure)
    return figure


def texts(ax: Axes) -> str:
    titles = [ax.get_title(loc=loc) for loc in ("left", "center", "right")]  # type: ignore[arg-type]
    return "\n".join([*titles, *(text.get_text() for text in ax.texts)])


def panel(figure: Figure, label: str) -> Axes:
    return next(ax for ax in figure.axes if label in texts(ax))


@pytest.fixture
def run(make_run: MakeRun) -> RunRecords:
    return load_run(make_run(trials=4))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"trials": 3}, GAUSSIAN),
        ({"dim": 10, "solver": "newton", "trials": 3, "models": ("abs",)}, GAUSSIAN[1:]),
        ({"trials": 1, "models": ("sigmoid", "abs")}, GAUSSIAN),
    ],
)
def test_every_figure_the_run_has_data_for_is_drawn(
    make_run: MakeRun, options: dict[str, Any], names: tuple[str, ...]
) -> None:
    figures = list(draw_figures(load_run(make_run(**options))))
    assert tuple(figure.name for figure in figures) == names
    for figure in figures:
        image = Image.open(io.BytesIO(figure.png))
        assert image.size == (figure.width, figure.height)
        assert figure.width == 2000
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50  # something is on it
        assert figure.caption.endswith(".")


def test_settings_of_the_caller_are_left_as_they_were(run: RunRecords) -> None:
    with mpl.rc_context({"font.size": 33.0, "axes.grid": False, "lines.linewidth": 7.0}):
        before = dict(mpl.rcParams)
        list(draw_figures(dataclasses.replace(run, plots={}, trials=TrialTable([], [], [], {}))))
        assert dict(mpl.rcParams) == before


def test_the_caller_s_settings_do_not_show(run: RunRecords) -> None:
    bare = dataclasses.replace(run, plots={}, trials=TrialTable([], [], [], {}))
    (plain,) = draw_figures(bare)
    with mpl.rc_context({"font.size": 33.0, "axes.facecolor": "red", "savefig.facecolor": "red"}):
        (other,) = draw_figures(bare)
    assert plain.png == other.png


@pytest.mark.parametrize("name", GAUSSIAN)
def test_a_run_without_the_data_has_no_such_figure(run: RunRecords, name: str) -> None:
    bare = dataclasses.replace(run, plots={}, curves={}, trials=TrialTable([], [], [], {}))
    with styled():
        assert MODULES[name].draw(bare) is None


@pytest.mark.parametrize("name", sorted(set(GAUSSIAN) - {"metrics"}))
def test_a_model_has_one_colour_in_every_figure(run: RunRecords, name: str) -> None:
    colours = model_colours(["abs", "relu", "sigmoid", "ground-truth"])
    figure = drawn(MODULES[name], run)
    for model, colour in colours.items():
        if name == "loss" and model == "ground-truth":
            continue
        ax = panel(figure, model_label(model))
        title = next(t for t in (ax.title, ax._left_title) if t.get_text())  # type: ignore[attr-defined]
        assert to_hex(title.get_color()) == colour.lower()


@pytest.mark.parametrize("name", GAUSSIAN)
def test_arrays_without_a_finite_value_do_no_harm(run: RunRecords, name: str) -> None:
    kept = ("plane/mean", "plane/samples", "plane/grid_x", "plane/grid_y", "plane/true")
    plots = {
        key: array if key in kept or key.endswith("true") else np.full_like(array, np.nan)
        for key, array in run.plots.items()
    }
    curves = {
        model: {t: Curve(c.step, np.full_like(c.value, np.nan)) for t, c in trials.items()}
        for model, trials in run.curves.items()
    }
    curves["abs"][0] = run.curves["abs"][0]
    drawn(MODULES[name], dataclasses.replace(run, plots=plots, curves=curves))


# ---------------------------------------------------------------- hyperplanes


def test_hyperplanes_outside_the_view_are_counted(run: RunRecords) -> None:
    figure = drawn(hyperplanes, run)
    assert "1 of 4 hyperplanes outside the view" in texts(panel(figure, "MD_ReLU"))
    assert "outside" not in texts(panel(figure, "Ground truth"))
    assert all(ax.get_aspect() == 1.0 for ax in figure.axes)
    assert len({ax.get_xlim() for ax in figure.axes}) == 1


def test_units_without_a_hyperplane_are_counted(run: RunRecords) -> None:
    weight = run.plots["plane/abs/weight"].copy()
    weight[0] = 0.0
    weight[1, 0] = np.inf
    plots = {**run.plots, "plane/abs/weight": weight}
    figure = drawn(hyperplanes, dataclasses.replace(run, plots=plots))
    assert "2 of 2 units without a hyperplane" in texts(panel(figure, "MD_Abs"))


def test_one_arrow_for_each_hyperplane_in_view(run: RunRecords) -> None:
    ax = panel(drawn(hyperplanes, run), "Ground truth")
    arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == 2
    weight = run.plots["plane/ground-truth/weight"].astype(float)
    for arrow, w in zip(arrows, weight, strict=True):
        step = np.subtract(arrow.xy, arrow.get_position())  # type: ignore[attr-defined]
        assert step @ w / np.linalg.norm(step) / np.linalg.norm(w) == pytest.approx(1.0)


finite = st.floats(-50, 50)


@settings(deadline=None)
@given(st.tuples(finite, finite), st.floats(-500, 500))
def test_the_visible_part_of_a_line(normal: tuple[float, float], b: float) -> None:
    w = np.array(normal)
    if np.linalg.norm(w) < 1e-3:
        return
    low, high = np.array([-3.0, 2.0]), np.array([5.0, 4.0])
    corners = np.array([[x, y] for x in (-3.0, 5.0) for y in (2.0, 4.0)])
    sides = corners @ w + b
    ends = visible_part(w, b, low, high)
    scale = float(np.abs(w).sum() * 5 + abs(b))
    if ends is None:  # the box lies on one side (or is touched in a corner)
        assert np.all(sides >= -1e-9 * scale) or np.all(sides <= 1e-9 * scale)
        return
    np.testing.assert_allclose(ends @ w + b, 0.0, atol=1e-9 * scale)
    assert np.all(ends >= low - 1e-9)
    assert np.all(ends <= high + 1e-9)
    mirrored = visible_part(-w, -b, low, high)
    assert mirrored is not None
    np.testing.assert_allclose(mirrored, ends, atol=1e-9)


def test_a_hyperplane_at_infinity_is_outside() -> None:
    box = np.zeros(2), np.ones(2)
    assert visible_part(np.array([1e-300, 0.0]), 1e200, *box) is None
    assert visible_part(np.array([0.0, 1.0]), -0.5, *box) is not None


# ---------------------------------------------------------------- loss


def test_every_trial_has_its_line_and_the_best_stands_out(run: RunRecords) -> None:
    ax = panel(drawn(loss, run), "MD_Abs")
    colour = model_colours(["abs"])["abs"]
    widths = [line.get_linewidth() for line in ax.lines if line.get_color() == colour]
    assert len(widths) == 4
    assert sorted(widths)[-1] > 2 * sorted(widths)[-2]
    assert "published mean 0.122" in texts(ax)


@pytest.mark.parametrize(("solver", "unit"), [("adam", "epoch"), ("newton", "step")])
def test_the_loss_says_epoch_or_step(make_run: MakeRun, solver: str, unit: str) -> None:
    figure = drawn(loss, load_run(make_run(solver=solver, trials=2)))
    assert all(ax.get_xlabel().startswith(unit) for ax in figure.axes)
    assert {ax.get_yscale() for ax in figure.axes} == {"log"}


def test_a_stopped_trial_is_marked_and_a_missing_curve_is_not_needed(run: RunRecords) -> None:
    crosses = [
        line for line in panel(drawn(loss, run), "MD_ReLU").lines if line.get_marker() == "X"
    ]
    assert len(crosses) == 1
    assert crosses[0].get_xdata()[0] == 40  # type: ignore[index]
    curves = {**run.curves, "relu": {t: c for t, c in run.curves["relu"].items() if t != 3}}
    figure = drawn(loss, dataclasses.replace(run, curves=curves))
    assert not any(line.get_marker() == "X" for line in panel(figure, "MD_ReLU").lines)


def test_a_loss_of_zero_and_epoch_zero_have_a_place(run: RunRecords) -> None:
    curve = Curve(np.array([0.0, 1.0, 10.0]), np.array([2.0, 1e-3, 0.0]))
    ax = drawn(loss, dataclasses.replace(run, curves={"abs": {0: curve}})).axes[0]
    heights = ax.lines[0].get_ydata()
    low, high = ax.get_ylim()
    assert all(low < h < high for h in np.asarray(heights))
    labels = {
        float(y): t.get_text() for y, t in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
    }
    assert labels[float(np.asarray(heights)[-1])] == "0"
    assert ax.get_xticks()[0] == 0


# ---------------------------------------------------------------- metrics


def dots(ax: Axes, colour: str) -> tuple[np.ndarray, np.ndarray]:
    line = next(
        line for line in ax.lines if line.get_marker() == "o" and line.get_color() == colour
    )
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def test_each_trial_is_a_dot_in_the_row_of_its_model(run: RunRecords) -> None:
    ax = panel(drawn(metrics, run), "Rows against eigenvectors")
    for place, model in enumerate(["abs", "relu", "sigmoid", "ground-truth"]):
        x, y = dots(ax, model_colours([model])[model])
        assert sorted(x) == sorted(run.trials.of(model, "row_cosine").values())
        assert np.all(np.abs(y - place) < 0.3)


def test_published_means_are_open_diamonds(run: RunRecords) -> None:
    figure = drawn(metrics, run)
    diamonds = [line for line in panel(figure, "Sphericity norm").lines if line.get_marker() == "D"]
    assert [float(np.asarray(d.get_xdata())[0]) for d in diamonds] == [0.85, 1.9, 3.41, 9.1e-7]
    assert not [line for line in panel(figure, "Centre").lines if line.get_marker() == "D"]


def test_only_metrics_with_data_have_a_panel(run: RunRecords) -> None:
    columns = {**run.trials.metrics, "dead_units": np.full(len(run.trials.model), np.nan)}
    trials = dataclasses.replace(run.trials, metrics=columns)
    figure = drawn(metrics, dataclasses.replace(run, trials=trials))
    assert len(figure.axes) == len(columns) - 1
    assert not any("Dead units" in texts(ax) for ax in figure.axes)


def test_a_model_without_a_value_says_so(run: RunRecords) -> None:
    assert texts(panel(drawn(metrics, run), "Mirrored pairs")).count("no value") == 2


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1e-31, 0.0, 0.2, 1.0], "log"),
        ([0.0, 0.0, 0.0, 0.0], "linear"),
        ([0.2, 0.21, 0.22, 0.2], "linear"),  # less than a power of ten apart
        ([0.01, 0.1, 1.0, 1e300], "log"),
        ([5e-324, 1.0, 1.0, 1.0], "log"),
        ([-1.0, 0.1, 1.0, 10.0], "linear"),
    ],
)
def test_log_metrics_with_awkward_values(run: RunRecords, values: list[float], scale: str) -> None:
    trials = TrialTable(["abs"] * 4, [0, 1, 2, 3], ["done"] * 4, {"test_mse": np.array(values)})
    ax = drawn(metrics, dataclasses.replace(run, trials=trials)).axes[0]
    assert ax.get_xscale() == scale
    x, _ = dots(ax, model_colours(["abs"])["abs"])
    low, high = ax.get_xlim()
    assert np.all((x > low) & (x < high))
    if values[0] == 1e-31:
        place = {
            label.get_text(): tick
            for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        }
        assert x[1] == place["0"] < 1e-31


def test_a_metric_nobody_described_is_still_shown(run: RunRecords) -> None:
    trials = TrialTable(["new model $x$"], [0], ["done"], {"some_score": np.array([3.0])})
    figure = drawn(metrics, dataclasses.replace(run, trials=trials))
    assert "some score" in texts(figure.axes[0])


# ---------------------------------------------------------------- eigenvalues, fit


def test_eigenvalues_outside_the_view_are_counted(run: RunRecords) -> None:
    figure = drawn(eigenvalues, run)
    assert len(figure.axes) == 8
    sigmoid = panel(figure, "MD_Sigmoid")
    assert "1 of 8 outside the view" in texts(sigmoid)
    assert "4 of 8 not defined" in texts(sigmoid)
    assert sigmoid.get_ylim()[1] < 1e3
    assert (
        {ax.get_xscale() for ax in figure.axes}
        == {ax.get_yscale() for ax in figure.axes}
        == {"log"}
    )


def test_the_best_trial_of_the_eigenvalues_stands_out(run: RunRecords) -> None:
    ax = panel(drawn(eigenvalues, run), "MD_Abs")
    best = run.plots["eigenvalues/abs/rows"][0].astype(float)
    strong = [line for line in ax.lines if line.get_markersize() == 7.0]
    assert [np.asarray(line.get_ydata()).tolist() for line in strong] == [best.tolist()]


def test_the_fit_shows_its_mse_and_counts_what_it_cannot_show(run: RunRecords) -> None:
    learned = run.plots["fit/abs/learned"].copy()
    learned[:5] = [np.inf, np.nan, 1e6, 1e30, -np.inf]
    plots = {**run.plots, "fit/abs/learned": learned}
    figure = drawn(fit, dataclasses.replace(run, plots=plots))
    ax = panel(figure, "MD_Abs")
    assert "5 of 500 outside the view" in texts(ax)
    assert f"MSE {run.row('abs', 'test_mse')['best']:.3g}"[:7] in texts(ax)
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_ylim()[1] < 20


# ---------------------------------------------------------------- scales


@settings(deadline=None)
@given(st.floats(-290, 290), st.floats(1e-3, 500), st.integers(3, 8))
@example(-288.0, 0.25, 3)  # so little that matplotlib takes it for 0
@example(0.71, 0.28, 3)  # 6, 7, 8 and 9, and nothing rounder
def test_ticks_are_few_sorted_and_inside(start: float, decades: float, most: int) -> None:
    low = 10.0**start
    high = 10.0 ** min(start + decades, 305.0)
    if high <= low:
        return
    ticks = log_ticks(low, high, most)
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= max(most, 4)
    if decades > 0.1:  # closer than three figures can tell, labels may be the same
        assert len({tick_label(tick) for tick in ticks}) == len(ticks) >= 1


def test_tick_labels_are_plain_near_one() -> None:
    labels = [tick_label(v) for v in (1.0, 0.3, 0.001, 20.0, 10_000.0, 1e-4, 3e-31, 0.235)]
    assert labels == [
        "1",
        "0.3",
        "0.001",
        "20",
        "10,000",
        "$10^{-4}$",
        r"$3\times 10^{-31}$",
        "0.235",
    ]


@settings(deadline=None)
@given(st.lists(st.floats(1e-249, 1e249), min_size=1))
def test_zero_lies_below_all_that_is_positive(values: list[float]) -> None:
    assert zero_place(values) is None
    zero = zero_place([*values, 0.0])
    assert zero is not None
    assert 0 < zero < zero_edge(zero, min(values)) < min(values)
    low, high = padded(zero, max(values))
    assert 0 < low < zero
    assert max(values) < high < math.inf


def test_zero_has_no_place_among_nothing_positive() -> None:
    assert zero_place([0.0, 0.0]) is None
    assert zero_place([]) is None
