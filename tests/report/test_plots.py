"""Plots, from records made by hand: what is drawn are the numbers."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from msgspec.structs import replace as changed
from PIL import Image

from mahalens.report.array_plots import visible_part
from mahalens.report.plots import draw, draw_figures, remark_on
from mahalens.report.records import Comparison, Curve, Outcome, Row, RunRecords, Summary
from mahalens.report.style import (
    AccuracyScale,
    PlainScale,
    log_ticks,
    scale_for,
    styled,
    tick_label,
)
from mahalens.studies import plots
from mahalens.studies.study import Config, Metric, Model, Study

ACCURACY = Metric("Test accuracy", "", unit="%", better="high")
METRICS = {
    "accuracy": ACCURACY,
    "loss": Metric("Loss", "", log=True),
    "dead": Metric("Dead outputs", "", unit="%"),
    "auroc": Metric("AUROC", "", better="high"),
    "own": Metric("Own class", "", unit="spreads", log=True),
    "other": Metric("Other classes", "", unit="spreads", log=True),
    "ratio": Metric("Ratio", ""),
}
MODELS = {
    "relu": Model("ReLU", colour="#D55E00"),
    "abs": Model("Abs", colour="#0072B2"),
    "relu-2": Model("ReLU, 2", colour="#D55E00", marker="s"),
    "abs-2": Model("Abs, 2", colour="#0072B2", marker="s"),
}
TRIALS = 6
STEPS = np.array([0.0, 1.0, 2.0, 5.0, 10.0, 100.0])


def study(variant="data", models=MODELS):
    about = {"name": "made-up", "question": "", "source": "here", "config": Config, "claims": ()}
    calls = dict.fromkeys(("check", "jobs", "measure"))
    return Study(
        models=models, metrics=METRICS, primary="accuracy", variant=variant, **about, **calls
    )


def make(variants=("iris", "wine"), models=MODELS, by="data", trials=TRIALS):
    """Return a run with every metric, curve, test and array; a trial of the first model is lost."""
    rng = np.random.default_rng(0)
    rows, outcomes, tests, arrays, curves, values = [], [], [], {}, {}, {}
    first, *others = models
    for variant in variants:
        group = {by: variant} if variant else {}
        columns = {"accuracy": {}, "loss": {}}
        values[variant] = {name: {} for name in METRICS}
        for model in models:
            numbers = {
                "accuracy": rng.uniform(60, 99, trials),
                "loss": 10 ** rng.uniform(-3, 1, trials),
                "dead": rng.integers(0, 3, trials) * 10.0,
                "auroc": rng.uniform(0.4, 0.9, trials),
                "own": rng.uniform(0.2, 1, trials),
                "other": rng.uniform(1, 5, trials),
                "ratio": rng.uniform(0.1, 0.4, trials),
            }
            for metric, own in numbers.items():
                if model == first and trials > 1:
                    own[trials - 1] = np.nan
                seen = own[np.isfinite(own)]
                mean, half = float(seen.mean()), 2 * float(seen.std()) / math.sqrt(len(seen))
                ends = (mean - half, mean + half) if trials > 1 else None
                known = 80.5 if (model, metric) == (first, "accuracy") else None
                row = Row(model, metric, mean, len(seen), best=float(seen[0]), group=group)
                rows.append(changed(row, ci95=ends, published=known))
                values[variant][metric][model] = finite_of(own)
            lost = [trials - 1] if model == first and trials > 1 else []
            outcomes.append(Outcome(model, trials, {}, {}, lost, 0, group=group))
            for column, ends in (("accuracy", (10.0, 95.0)), ("loss", (2.0, 0.01))):
                columns[column][model] = {
                    trial: Curve(STEPS, np.linspace(*ends, len(STEPS)) + rng.normal(0, 0.001, 6))
                    for trial in range(trials)
                }
            start = f"{variant}/{model}".lstrip("/")
            arrays |= {f"{start}/{name}": own for name, own in arrays_of(rng, trials).items()}
        curves[variant] = columns
        for place, model in enumerate(others):
            for metric in ("accuracy", "loss"):
                middle, p = 3.0 * place - 2, 0.01 if place != 1 else 0.5
                names = [f"{m} ({variant})" if variant else m for m in (model, first)]
                line = Comparison(variant, *names, metric, middle, middle - 1, middle + 2)
                tests.append(changed(line, holm_preferred=p))
    summary = Summary("made-up", "scaled", rows, [], outcomes=outcomes, comparisons=tests)
    return RunRecords(
        folder=Path(),
        config=None,
        summary=summary,
        study=study(by if variants != ("",) else "", models),
        all_trials=values,
        all_curves=curves,
        plots={**arrays, **plane(models)},
    )


def finite_of(values):
    return {trial: float(value) for trial, value in enumerate(values) if np.isfinite(value)}


def with_values(records, change, variant=""):
    """Return records in which every metric of every model is changed on a variant."""
    own = {
        metric: {model: change(metric, model, trials) for model, trials in of.items()}
        for metric, of in records.all_trials[variant].items()
    }
    return replace(records, all_trials={**records.all_trials, variant: own})


def arrays_of(rng, trials):
    """Return the arrays of one model."""
    mean = rng.uniform(20, 90, 5)
    half = 5.0 if trials > 1 else np.nan
    return {
        "offset.levels": np.array([-1.0, -0.1, 0.0, 0.1, 0.5]),
        "offset.train": np.stack([mean, mean - half, mean + half]),
        "offset.after": np.stack([mean - 9, mean - 9 - half, mean - 9 + half]),
        "offset.published": np.array([np.nan, 50.0, np.nan, np.nan, np.nan]),
        "activity": rng.choice([0.0, 0.005, 0.02, 0.5, 0.9], (trials, 4)),
        "latent.nodes": np.array([3, 8]),
        "latent.edges": np.tile(np.linspace(-2, 2, 9), (2, 1)),
        "latent.counts": rng.integers(0, 9, (2, 4, 8)),
        "latent.moments": rng.normal(0, 0.9, (2, 4, 3)),
    }


def plane(models):
    """Return a 2-D Gaussian at the origin, which every model has learned but for a factor."""
    grid = np.linspace(-4, 4, 41)
    true = np.hypot(*np.meshgrid(grid, grid))
    shared = {"mean": np.zeros(2), "samples": np.eye(2), "grid_x": grid, "grid_y": grid}
    arrays = {f"plane/{name}": array for name, array in {**shared, "true": true}.items()}
    arrays["eigenvalues/true"] = np.array([0.5, 1.0, 2.0])
    for place, model in enumerate(models):
        arrays[f"plane/{model}/distance"] = true * (1 + 0.1 * place)
        arrays[f"plane/{model}/weight"] = np.array([[1.0, 0.0], [0.0, -1.0], [1.0, 1.0]])
        arrays[f"plane/{model}/bias"] = np.array([0.0, 1.0, 500.0])
        arrays[f"eigenvalues/{model}/rows"] = np.array([[0.4, 1.1, 2.5], [np.nan, 1e9, 2.0]])
        arrays[f"fit/{model}/learned"] = np.array([0.1, 1.0, 2.2, np.inf, 1e6, np.nan])
        arrays[f"fit/{model}/true"] = np.array([0.1, 1.0, 2.0, 2.5, 3.0, 1.0])
    return arrays


def plot(kind, **fields):
    return kind(name=kind.__name__.lower(), title="Is it?", caption="Look.", **fields)


KINDS = (
    plot(plots.Dots, metric="accuracy"),
    plot(plots.AllMetrics),
    plot(plots.Curves, column="accuracy"),
    plot(plots.Curves, column="loss", panel="model", draw="trials", log=True),
    plot(plots.Curves, column="accuracy", than=lambda m: "relu" if m in MODELS else "model-0"),
    plot(plots.Differences, metric="accuracy"),
    plot(plots.Scatter, x="dead", y="accuracy", loss="relu", loss_label="lost"),
    plot(plots.Scatter, x="accuracy", y="auroc", average=True, reference="relu"),
    plot(plots.Spans, first="own", second="other", ratio="ratio"),
    plot(
        plots.Against, metrics=("accuracy", "loss"), at=len, line=lambda m: m[:2], label="letters"
    ),
    plot(plots.Levels, kinds=("offset",), what=(("train", "trained"),)),
    plot(plots.Grid, array="activity", label="active"),
    plot(plots.Ridges),
)
ALONE = (
    plot(plots.Plane, metric="loss"),
    plot(
        plots.Diagonal,
        group="eigenvalues",
        true="eigenvalues/true",
        learned=(("rows", "r"),),
        log=True,
    ),
    plot(plots.Diagonal, group="fit", true="fit/{model}/true", learned=(("learned", "distance"),)),
)
"""Plots of arrays that belong to no variant."""


@pytest.fixture(scope="module")
def run():
    return make()


@pytest.fixture(scope="module")
def single():
    return make(("",))


def drawn(asked, records):
    with styled():
        figure = draw(asked, records)
    assert isinstance(figure, Figure)
    return figure


def titles(figure):
    return [ax.get_title(loc="left") for ax in figure.axes]


def names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rows(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def points(line):
    x, y = (np.asarray(data, dtype=float).tolist() for data in (line.get_xdata(), line.get_ydata()))
    return x, y


def marked(ax, marker):
    return [line for line in ax.lines if line.get_marker() == marker]


def notes(ax):
    return "\n".join(text.get_text() for text in ax.texts)


def with_plots(records, **arrays):
    new = {name.replace("__", "/").replace("_dot_", "."): array for name, array in arrays.items()}
    return replace(records, plots={**records.plots, **new})


# --- All plots --------------------------------------------------------------------------------


def test_every_plot_is_drawn_as_a_picture_of_the_page_s_width(run):
    asked = (plot(plots.Dots, metric="nosuch"), KINDS[0], KINDS[5])
    records = replace(run, study=replace(run.study, plots=asked))
    figures = draw_figures(records)
    assert [figure.name for figure in figures] == [one.name for one in asked[1:]]
    for figure in figures:
        image = Image.open(io.BytesIO(figure.png))
        assert image.size == (figure.width, figure.height)
        assert figure.width == 2000
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50  # something is on it
        assert figure.caption.startswith("Look.")


def test_settings_of_the_caller_stay_and_do_not_show(run):
    asked = (plot(plots.Differences, metric="accuracy"),)
    records = replace(run, study=replace(run.study, plots=asked))
    (usual,) = draw_figures(records)
    with mpl.rc_context({"font.size": 33.0, "axes.facecolor": "red", "savefig.facecolor": "red"}):
        before = dict(mpl.rcParams)
        (other,) = draw_figures(records)
        assert dict(mpl.rcParams) == before
    assert usual.png == other.png


@pytest.mark.parametrize("asked", [*KINDS, *ALONE], ids=lambda asked: asked.name)
def test_nothing_measured_is_nothing_drawn(asked, run):
    empty = replace(
        run,
        summary=Summary("made-up", "scaled", [], []),
        all_trials={},
        plots={},
        all_curves={},
    )
    assert draw(asked, empty) is None
    nobody = replace(asked, models=lambda model: False)
    if not isinstance(asked, plots.Ridges):  # which falls back on the first model
        assert draw(nobody, run) is None
    assert draw(asked, replace(empty, study=study(""))) is None


def test_a_plot_that_nothing_draws_is_refused(run):
    with pytest.raises(TypeError, match="nothing draws a Plot"):
        draw(plot(plots.Plot), run)


MANY = {f"model-{n}": Model(f"A model of number {n}", colour="#0072B2") for n in range(20)}
BIG = ("a", "b", "c", "d", "e")
WIDE = [one for one in KINDS if not (isinstance(one, plots.Curves) and one.panel == "model")]


@pytest.fixture(scope="module")
def large():
    return make(BIG, MANY, trials=3)


def boxes(figure):
    """Return all texts with where they stand."""
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        texts += [ax.title, ax._left_title, ax._right_title, ax.xaxis.label, ax.yaxis.label]
        for axis in (ax.xaxis, ax.yaxis):  # matplotlib keeps labels that it does not draw
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks(len(axis.get_majorticklocs()))
            texts += [
                t.label1 for t in ticks if low <= t.get_loc() <= high and t.label1.get_visible()
            ]
    renderer = figure.canvas.get_renderer()
    return [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text()]


@pytest.mark.parametrize("asked", WIDE, ids=lambda asked: asked.name)
@pytest.mark.parametrize("size", ["run", pytest.param("large", marks=pytest.mark.slow)])
def test_texts_keep_clear_of_each_other_and_of_the_edge(asked, size, request):
    records = request.getfixturevalue(size)
    if size == "large" and isinstance(asked, (plots.AllMetrics, plots.Grid, plots.Ridges)):
        records = records.variants()[0]  # or there would be hundreds of panels
        asked = replace(asked, models=lambda model: model < "model-3")
    figure = drawn(asked, records)
    with styled():
        figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    found = boxes(figure)
    for place, (text, box) in enumerate(found):
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= height + 1, text
        for other, second in found[place + 1 :]:
            assert not box.padded(-0.5).overlaps(second.padded(-0.5)), (text, other)


# --- Dots -------------------------------------------------------------------------------------


def test_dots_are_the_trials_with_mean_interval_and_published_mean(run):
    figure = drawn(plot(plots.Dots, metric="accuracy"), run)
    assert titles(figure) == ["Iris", "Wine"]
    assert rows(figure.axes[0]) == ["ReLU", "Abs", "ReLU, 2", "Abs, 2"]
    for ax, variant in zip(figure.axes, run.variants(), strict=True):
        trials = {m: list(variant.values(m, "accuracy").values()) for m in MODELS}
        scale = AccuracyScale([*(v for own in trials.values() for v in own), 80.5])
        dots = [line for line in ax.lines if line.get_alpha() == 0.65]
        for place, (line, own) in enumerate(zip(dots, trials.values(), strict=True)):
            x, y = points(line)
            assert x == scale.at(own).tolist()
            assert np.all(np.abs(np.array(y) - place) < 0.3)
        for place, model in enumerate(MODELS):
            row = variant.row(model, "accuracy")
            assert points(marked(ax, "|")[place]) == (scale.at([row.mean]).tolist(), [place])
            ends = scale.at(row.interval).tolist(), [place, place]
            assert ends in map(points, ax.lines)
        (diamond,) = marked(ax, "D")
        assert points(diamond) == (scale.at([80.5]).tolist(), [0.0])
    assert len(names(figure)) == 3


def test_one_trial_has_no_mean(run):
    figure = drawn(plot(plots.Dots, metric="loss"), make(trials=1))
    assert not any(marked(ax, "|") for ax in figure.axes)
    assert len(names(figure)) == 1


def test_variants_share_an_axis_only_with_the_same_data():
    own, shared = (
        drawn(plot(plots.Dots, metric="accuracy"), make(("raw", "normalised"), by=by)).axes
        for by in ("data", "pixels")
    )
    assert own[0].get_xlim() != own[1].get_xlim()
    assert shared[0].get_xlim() == shared[1].get_xlim()


def test_families_stand_apart_and_missing_values_are_named(run):
    records = with_values(run, lambda _, model, own: own if model[-2:] == "-2" else {}, "iris")
    asked = plot(plots.Dots, metric="accuracy", family=lambda model: model[-2:])
    figure = drawn(asked, records)
    assert rows(figure.axes[0]) == ["ReLU", "Abs", "ReLU, 2", "Abs, 2"]
    places = figure.axes[0].get_yticks()
    assert places.tolist() == [0.0, 1.6, 3.2, 4.2]
    assert notes(figure.axes[0]) == "no value\nno value"


def test_models_with_the_same_values_share_a_row_but_by_the_primary_metric(run):
    same = run
    for variant in run.all_trials:
        same = with_values(same, lambda *of: dict.fromkeys(of[2], 0.5), variant)
    asked = plot(plots.Dots, metric="auroc")
    assert rows(drawn(asked, same).axes[0]) == ["ReLU", "Abs"]  # ReLU lost a trial
    assert "Abs stands for ReLU, 2 and Abs, 2" in remark_on(asked, same)
    assert len(rows(drawn(plot(plots.Dots, metric="accuracy"), same).axes[0])) == 4
    assert remark_on(plot(plots.Dots, metric="accuracy"), same) == ""
    assert remark_on(asked, run) == ""


def test_models_and_metrics_of_an_unknown_study_are_shown(single):
    table = {"": {"some_score": {"new $x$": {0: 3.0}}}}
    summary = Summary("new", "scaled", [Row("new $x$", "some_score", 3.0, 1)], [])
    records = replace(single, all_trials=table, summary=summary, study=study("", {}))
    figure = drawn(plot(plots.AllMetrics), records)
    assert titles(figure) == ["some score"]
    # A known study may be unable to say what a model is that it lacks.
    assert draw(plot(plots.AllMetrics), replace(records, study=single.study)) is None


def test_every_metric_with_numbers_has_a_panel(single):
    records = with_values(single, lambda metric, _, own: {} if metric == "dead" else own)
    figure = drawn(plot(plots.AllMetrics), records)
    assert titles(figure) == [m.label for name, m in METRICS.items() if name != "dead"]
    rings = [points(line) for line in figure.axes[2].lines if line.get_zorder() == 6]
    assert [x for x, _ in rings] == [[single.values(m, "auroc")[0]] for m in MODELS]


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1e-31, 0.0, 0.2, 1.0], True),
        ([0.0, 0.0, 0.0, 0.0], False),
        ([0.2, 0.21, 0.22, 0.2], False),  # less than a power of ten apart
        ([0.01, 0.1, 1.0, 1e300], True),
        ([5e-324, 1.0, 1.0, 1.0], True),
        ([-1.0, 0.1, 1.0, 10.0], False),
    ],
)
def test_log_metrics_with_awkward_values(single, values, log):
    table = {"": {"loss": {"abs": finite_of(values)}}}
    ax = drawn(plot(plots.AllMetrics), replace(single, all_trials=table)).axes[0]
    low, high = ax.get_xlim()
    (line,) = [line for line in ax.lines if line.get_alpha() == 0.65]
    x, _ = points(line)
    assert all(low < place < high for place in x)
    assert ("log" in ax.get_xlabel()) == log
    if log and 0.0 in values:
        ticks = dict(zip(rows_of_x(ax), ax.get_xticks(), strict=True))
        assert x[1] == ticks["0"] < x[0]


def rows_of_x(ax):
    return [label.get_text() for label in ax.get_xticklabels()]


# --- Curves -----------------------------------------------------------------------------------


def test_curves_are_medians_with_quartiles(run):
    figure = drawn(plot(plots.Curves, column="accuracy"), run)
    assert titles(figure) == ["Iris", "Wine"]
    for ax, variant in zip(figure.axes, run.variants(), strict=True):
        curves = variant.curves["accuracy"]
        bands = [
            np.percentile([c.value for c in own.values()], (25, 50, 75), axis=0)
            for own in curves.values()
        ]
        scale = AccuracyScale(np.concatenate(bands).ravel().tolist())
        for line, (low, middle, high), band in zip(ax.lines, bands, ax.collections, strict=True):
            assert points(line)[0] == STEPS.tolist()
            np.testing.assert_allclose(points(line)[1], scale.at(middle))
            heights = band.get_paths()[0].vertices[:, 1]
            assert heights.max() == pytest.approx(scale.at(high).max())
            assert heights.min() == pytest.approx(scale.at(low).min())
    assert len(names(figure)) == len(MODELS) + 1


def with_curves(records, **curves):
    return replace(records, all_curves={"": {"accuracy": curves, "loss": curves}})


def test_a_trial_that_stopped_is_not_carried_on_and_a_lost_model_has_no_line(single):
    whole = Curve(np.array([0.0, 1.0, 2.0]), np.array([10.0, 50.0, 80.0]))
    short = Curve(np.array([0.0, 1.0]), np.array([10.0, 30.0]))
    gone = Curve(np.array([0.0, 1.0]), np.array([np.nan, np.inf]))
    records = with_curves(single, relu={0: whole, 1: short}, abs={0: gone})
    (ax,) = drawn(plot(plots.Curves, column="accuracy"), records).axes
    scale = AccuracyScale([10.0, 80.0])
    (line,) = ax.lines
    np.testing.assert_allclose(points(line)[1], scale.at([10.0, 40.0, 80.0]))
    assert draw(plot(plots.Curves, column="accuracy"), with_curves(single, abs={0: gone})) is None


@pytest.mark.parametrize(
    ("variants", "panel", "shape", "first"),
    [
        (("iris", "wine"), lambda m: "two" if m[-2:] == "-2" else "one", (2, 2), "Iris: one"),
        (("iris", "wine"), lambda m: f"{m}!", (4, 2), "Iris: relu!"),
        (("",), lambda m: f"{m}!", (2, 2), "Relu!"),
        (("",), "model", (2, 2), "ReLU"),
        (("a", "b", "c", "d"), "", (2, 2), "a"),
    ],
)
def test_panels_are_groups_by_variants(variants, panel, shape, first):
    figure = drawn(plot(plots.Curves, column="accuracy", panel=panel), make(variants))
    assert figure.axes[0].get_gridspec().get_geometry() == shape
    assert titles(figure)[0] == first
    assert len(figure.axes) == shape[0] * shape[1]
    assert all(ax.lines for ax in figure.axes)


def test_every_trial_is_a_line_and_the_best_stands_out(single):
    asked = plot(plots.Curves, column="loss", panel="model", draw="trials", metric="accuracy")
    levels = [
        changed(row, published=0.05 if row.published else None) for row in single.summary.rows
    ]
    summary = changed(single.summary, rows=levels)
    ax = drawn(asked, replace(single, summary=summary)).axes[0]
    lines = [line for line in ax.lines if len(points(line)[0]) == len(STEPS)]
    curves = single.curves["loss"]["relu"]
    assert len(lines) == TRIALS
    np.testing.assert_allclose(points(lines[0])[1], np.log10(curves[0].value))
    widths = [line.get_linewidth() for line in lines]
    assert widths[0] > 2 * max(widths[1:])  # the best trial
    (cross,) = marked(ax, "X")
    assert points(cross)[0] == STEPS[-1:]
    level = next(line for line in ax.lines if points(line)[0] == [0.0, 1.0])
    assert points(level)[1] == pytest.approx([math.log10(0.05)] * 2)
    assert ax.get_xscale() == "symlog"  # a long way, from step 0 on


def test_a_loss_of_zero_has_a_place(single):
    curve = Curve(np.array([1.0, 10.0, 100.0]), np.array([2.0, 1e-3, 0.0]))
    asked = plot(plots.Curves, column="loss", panel="model", draw="trials")
    ax = drawn(asked, with_curves(single, abs={0: curve})).axes[0]
    places = points(ax.lines[0])[1]
    low, high = ax.get_ylim()
    assert all(low < place < high for place in places)
    assert dict(zip(rows(ax), ax.get_yticks(), strict=True))["0"] == places[-1]
    assert ax.get_xscale() == "log"


def test_models_of_a_group_are_drawn_with_their_median(single):
    asked = plot(plots.Curves, column="loss", panel=lambda m: m[-2:], draw="trials")
    ax = drawn(asked, single).axes[-1]
    wide = [line for line in ax.lines if line.get_linewidth() > 1]
    for line, model in zip(wide, ("relu-2", "abs-2"), strict=True):
        values = [curve.value for curve in single.curves["loss"][model].values()]
        np.testing.assert_allclose(points(line)[1], np.log10(np.median(values, axis=0)))


def test_differences_of_curves_are_means_of_shared_trials(single):
    def curve(*values):
        return Curve(np.arange(len(values), dtype=float), np.array(values))

    records = with_curves(
        single,
        relu={0: curve(9, 10, 20, 30), 1: curve(9, 10, 20, 30)},
        abs={0: curve(0, 11, 20, 29), 1: curve(0, 13, 20, 29), 7: curve(0, 99, 99, 99)},
    )
    records.curves["accuracy"]["abs-2"] = {5: curve(1, 2, 3, 4)}  # shares no trial
    asked = plot(plots.Curves, column="accuracy", than=lambda model: "relu")
    (ax,) = drawn(asked, records).axes
    line, zero = ax.lines
    assert points(line) == ([1.0, 2.0, 3.0], [2.0, 0.0, -1.0])  # not before training
    assert points(zero)[1] == [0.0, 0.0]
    (band,) = ax.collections
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(2 + 12.706, abs=0.01)
    unbanded = replace(asked, band=lambda model: False)
    assert not drawn(unbanded, records).axes[0].collections


def test_models_are_told_apart_by_lines_and_named_once():
    large = make(("",), MANY, trials=2)
    figure = drawn(plot(plots.Curves, column="accuracy"), large)
    looks = [str(line._unscaled_dash_pattern) for line in figure.axes[0].lines[:5]]
    assert len(set(looks)) == 5
    grouped = plot(plots.Curves, column="accuracy", panel=lambda m: f"{int(m[6:]) % 2}")
    inside = drawn(grouped, large).axes[0].get_legend()
    assert len(inside.get_texts()) == 10
    named = replace(grouped, line=lambda m: f"line {int(m[6:]) // 2}")
    assert len(names(drawn(named, large))) == 10 + 1


# --- Differences ------------------------------------------------------------------------------


def test_differences_are_filled_where_significant(run):
    figure = drawn(plot(plots.Differences, metric="accuracy"), run)
    assert rows(figure.axes[0]) == ["Abs", "ReLU, 2", "Abs, 2"]  # all were tested against ReLU
    assert "ReLU" in figure.axes[0].get_xlabel()
    for ax, variant in zip(figure.axes, run.variants(), strict=True):
        tests = [line for line in variant.summary.comparisons if line.metric == "accuracy"]
        dots = marked(ax, "o")
        for place, (dot, line) in enumerate(zip(dots, tests, strict=True)):
            assert points(dot) == ([line.mean_difference], [place])
            ends = [line.difference_ci95_low, line.difference_ci95_high]
            assert (ends, [place, place]) in map(points, ax.lines)
            filled = not same_color(dot.get_markerfacecolor(), "white")
            assert filled == line.is_significant
    assert len(names(figure)) == 3  # better, worse, not significant
    flat = changed(METRICS["loss"], better=None)
    other = replace(run.study, metrics={"loss": flat})
    plain = drawn(plot(plots.Differences, metric="loss"), replace(run, study=other))
    assert len(names(plain)) == 2


def with_tests(records, tests):
    summary = changed(records.summary, comparisons=tests)
    return replace(records, summary=summary)


def test_pairs_of_several_models_are_named_in_full_and_missing_ones_too(run):
    more = Comparison("wine", "abs-2 (wine)", "abs (wine)", "accuracy", 1.0)
    figure = drawn(
        plot(plots.Differences, metric="accuracy"),
        with_tests(run, [*run.summary.comparisons, more]),
    )
    assert rows(figure.axes[0])[1:] == ["(ReLU, 2) − ReLU", "(Abs, 2) − ReLU", "(Abs, 2) − Abs"]
    assert notes(figure.axes[0]) == "no value"


@pytest.mark.parametrize(("farthest", "scale"), [(-60.0, "symlog"), (-4.0, "linear")])
def test_a_difference_far_larger_than_most_does_not_hide_them(single, farthest, scale):
    tests = [Comparison("", m, "relu", "accuracy", 1.0, 0.0, 2.0) for m in ("abs", "relu-2", "x")]
    tests.append(Comparison("", "abs-2", "relu", "accuracy", farthest, farthest, farthest))
    (ax,) = drawn(plot(plots.Differences, metric="accuracy"), with_tests(single, tests)).axes
    assert ax.get_xscale() == scale
    low, high = ax.get_xlim()
    assert low < farthest < 2.0 < high
    assert all(low < tick < high for tick in ax.get_xticks() if scale == "symlog")


# --- Two metrics ------------------------------------------------------------------------------


def test_a_scatter_has_every_trial_and_the_line_of_what_is_lost(run):
    asked = plot(plots.Scatter, x="dead", y="accuracy", loss="relu", loss_label="lost")
    figure = drawn(asked, run)
    for ax, variant in zip(figure.axes, run.variants(), strict=True):
        for line, model in zip(ax.lines, MODELS, strict=False):
            x, y = points(line)
            assert y == list(variant.values(model, "accuracy").values())
            np.testing.assert_allclose(x, list(variant.values(model, "dead").values()), atol=1)
        row = variant.row("relu", "accuracy")
        assert ([0.0, 100.0], [row.mean, 0.0]) in map(points, ax.lines)
    assert names(figure) == ["ReLU", "Abs", "ReLU, 2", "Abs, 2", "lost"]


def test_a_scatter_of_means_has_both_intervals(run):
    asked = plot(plots.Scatter, x="accuracy", y="auroc", average=True, reference="relu")
    figure = drawn(asked, run)
    for ax, variant in zip(figure.axes, run.variants(), strict=True):
        every = list(map(points, ax.lines))
        for model in MODELS:
            x, y = variant.row(model, "accuracy"), variant.row(model, "auroc")
            assert ([x.mean], [y.mean]) in every
            assert (list(x.interval or ()), [y.mean, y.mean]) in every
            assert ([x.mean, x.mean], list(y.interval or ())) in every
        dashed = [points(line) for line in ax.lines if line.get_linestyle() == "--"]
        row = variant.row("relu", "accuracy")
        assert dashed[0][0] == [row.mean, row.mean]


@pytest.mark.parametrize(
    ("own", "other", "ratio", "colour"),
    [
        (0.5, 1.5, (0.3, 0.4), 0),
        (1.5, 0.5, (2.0, 4.0), 1),
        (1.1, 1.0, (0.8, 1.4), 2),
        (0.0, 1.5, None, 0),
    ],
)
def test_spans_show_which_is_smaller(single, own, other, ratio, colour):
    rows = [
        Row("abs", "own", own, 3, ci95=(own - 1, own + 1)),
        Row("abs", "other", other, 3),
        Row("abs", "ratio", 1.0, 3, ci95=ratio),
        Row("relu", "own", 7.0, 3),
    ]
    if ratio is None:
        rows.pop(2)
    summary = Summary("made-up", "scaled", rows, [])
    bare = replace(single, summary=summary, all_trials={})
    figure = drawn(plot(plots.Spans, first="own", second="other", ratio="ratio"), bare)
    (ax,) = figure.axes
    bar = next(line for line in ax.lines if line.get_linewidth() == 3)
    scale = scale_for(METRICS["own"], [*(own + d for d in (-1, 0, 1)), other])
    assert points(bar) == (scale.at([own, other]).tolist(), [0.0, 0.0])
    keys = figure.legends[0].get_lines()[2:]
    assert same_color(bar.get_color(), keys[colour].get_color())


# --- Metrics against a number -----------------------------------------------------------------


def test_models_of_a_line_are_joined_and_others_are_levels(run):
    places = {"relu": 10.0, "relu-2": 20.0, "abs": 10.0}
    asked = plot(
        plots.Against,
        metrics=("auroc",),
        at=places.get,
        line=lambda model: model[:3],
        label="units",
    )
    figure = drawn(asked, run)
    assert names(figure) == ["rel", "abs", "Abs, 2"]
    for ax, variant in zip(figure.axes, run.variants(), strict=True):
        mean = {m: row.mean for m in MODELS if (row := variant.row(m, "auroc"))}
        joined = [points(line) for line in marked(ax, "o")]
        assert joined[0][1] == [mean["relu"], mean["relu-2"]]
        np.testing.assert_allclose(joined[0][0], [10.0, 20.0], atol=0.2)
        row = variant.row("abs", "auroc")
        assert any(y == list(row.interval or ()) for _, y in map(points, ax.lines))
        assert any(points(line) == ([0, 1], [mean["abs-2"]] * 2) for line in ax.lines)


def test_several_metrics_have_panels_and_a_level_of_zero_is_left_out(single):
    rows = [
        changed(row, mean=0.0, ci95=(0.0, 0.0)) if row.model == "abs-2" else row
        for row in single.summary.rows
    ]
    summary = changed(single.summary, rows=rows)
    at = {"relu": 1.0, "relu-2": 100.0, "abs": 10.0}
    asked = plot(
        plots.Against,
        metrics=("dead", "loss"),
        at=at.get,
        line=lambda _: "all",
        label="R",
        log=True,
    )
    dead, loss = drawn(asked, replace(single, summary=summary)).axes
    assert points(marked(dead, "o")[0])[0] == [0.0, 1.0, 2.0]
    assert [0.0, 0.0] in [points(line)[1] for line in dead.lines]
    assert not any(points(line)[0] == [0, 1] for line in loss.lines)


def test_a_line_keeps_its_marker_where_another_has_no_numbers(single):
    rows = [r for r in single.summary.rows if r.metric != "loss" or not r.model.startswith("relu")]
    less = replace(single, summary=changed(single.summary, rows=rows), all_trials={})
    at = {"relu": 1.0, "abs": 1.0, "abs-2": 2.0}
    asked = plot(
        plots.Against, metrics=("dead", "loss"), at=at.get, line=lambda m: m[:3], label="R"
    )
    dead, loss = drawn(asked, less).axes
    assert len(marked(dead, "o")) == len(marked(dead, "s")) == len(marked(loss, "s")) == 1
    assert not marked(loss, "o")


# --- Levels -----------------------------------------------------------------------------------

OFFSETS = {"kinds": ("offset",), "axes": ("offset (%)",), "percent": True, "limits": (0, 100)}


def test_levels_are_means_with_intervals_and_published_means(run):
    figure = drawn(plot(plots.Levels, what=(("train", "trained"),), **OFFSETS), run)
    assert titles(figure) == ["Offset, iris", "Offset, wine"]
    for ax, variant in zip(figure.axes, run.variants(), strict=True):
        for line, model in zip(marked(ax, "."), MODELS, strict=True):
            levels = variant.plots[f"{model}/offset.levels"].tolist()
            assert points(line) == (levels, variant.plots[f"{model}/offset.train"][0].tolist())
        assert len(ax.collections) == len(MODELS)
        assert list(map(points, marked(ax, "D"))) == [([-0.1], [50.0])] * 4
    assert len(names(figure)) == len(MODELS) + 2
    bare = drawn(plot(plots.Levels, what=(("train", "trained"),), **OFFSETS), make(trials=1))
    assert not any(ax.collections for ax in bare.axes)
    assert len(names(bare)) == len(MODELS) + 1


def test_what_is_measured_stands_side_by_side_model_by_model(run):
    what = (("train", "before"), ("after", "after"))
    figure = drawn(plot(plots.Levels, what=what, row="model", **OFFSETS), run)
    assert len(figure.axes) == 8
    ax, variant = figure.axes[1], run.variants()[0]
    assert [points(line)[1] for line in marked(ax, ".")] == [
        variant.plots[f"abs/offset.{name}"][0].tolist() for name, _ in what
    ]
    assert len(names(figure)) == 4 + 1 + 2
    both = drawn(plot(plots.Levels, what=what, **OFFSETS), run)
    assert len(names(both)) == 2 * 4 + 2


def test_arrays_of_no_model_are_lines_of_their_own(single):
    records = with_plots(
        single,
        ranks__grid=np.array([1.0, 4.0, 8.0, 16.0]),
        ranks__cut=np.array([[0.4, 0.2, 0.1, 0.0], [0.5, 0.3, 0.2, 0.0], [0.6, 0.4, 0.3, 0.0]]),
    )
    arrays = {"array": "ranks/{what}", "levels": "ranks/grid", "order": (1, 0, 2)}
    asked = plot(plots.Levels, kinds=("r",), what=(("cut", "a"), ("none", "b")), log=True, **arrays)
    (ax,) = drawn(asked, records).axes
    assert points(ax.lines[0]) == ([1.0, 4.0, 8.0], [0.5, 0.3, 0.2])  # without an error of 0
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert names(drawn(asked, records))[0] == "a"


# --- Grids and ridges -------------------------------------------------------------------------


def test_a_grid_shows_the_step_that_each_share_belongs_to(single):
    shares = np.array([[0.0, 1e-9, 0.009], [0.01, 0.049, 0.05], [0.3, 0.8, np.nan]])
    asked = plot(
        plots.Grid, array="activity", label="active", below=(("dead", "dead"), ("no", "no"))
    )
    figure = drawn(asked, with_plots(single, relu__activity=shares))
    levels = np.ma.asarray(figure.axes[0].collections[0].get_array()).reshape(3, 3)
    assert levels.filled(-1).tolist() == [[0, 1, 1], [2, 2, 3], [4, 5, -1]]
    assert len(names(figure)) == 7
    row = single.row("abs", "dead")
    assert f"dead: {row.mean:.3g}"[:7] in figure.axes[1].get_xlabel()


def test_ridges_are_those_of_preferred_models(run):
    figure = drawn(plot(plots.Ridges, models=lambda model: model in ("abs", "abs-2")), run)
    assert titles(figure)[:2] == ["Abs, node 3\niris", "Abs, node 8\niris"]
    assert len(figure.axes) == 8
    marks = [points(line)[0][0] for line in marked(figure.axes[0], "|")]
    means = run.plots["iris/abs/latent.moments"][0, :, 0]
    assert marks == means[np.abs(means) <= 2].tolist()
    other = drawn(plot(plots.Ridges, models=lambda model: False), run)
    assert titles(other)[0] == "ReLU, node 3\niris"


def test_of_many_classes_the_first_are_drawn_and_empty_ones_do_no_harm(single):
    many = with_plots(
        single,
        relu__latent_dot_counts=np.ones((2, 3_000, 8)),
        relu__latent_dot_moments=np.zeros((2, 3_000, 3)),
    )
    assert all(len(marked(ax, "|")) == 22 for ax in drawn(plot(plots.Ridges), many).axes)
    assert "22 of 3,000" in remark_on(plot(plots.Ridges), many)
    assert remark_on(plot(plots.Ridges), single) == ""
    few = with_plots(
        single,
        relu__latent_dot_counts=np.array([[[0] * 8, [1] * 8]] * 2),
        relu__latent_dot_moments=np.array([[[np.nan] * 3, [0.5] * 3]] * 2),
    )
    assert [len(marked(ax, "|")) for ax in drawn(plot(plots.Ridges), few).axes] == [1, 1]


# --- The plane and the diagonal ---------------------------------------------------------------


def test_hyperplanes_in_view_have_an_arrow_and_others_are_counted(single):
    weight = np.array([[0.0, 0.0], [np.inf, 1.0], [1.0, 1.0]])
    flat = np.full((41, 41), 0.5)
    records = with_plots(single, plane__abs__weight=weight, plane__abs__distance=flat)
    figure = drawn(plot(plots.Plane, metric="loss"), records)
    assert len(figure.axes) == 4
    relu, strange, *_ = figure.axes
    arrows = [text for text in relu.texts if getattr(text, "arrow_patch", None) is not None]
    for arrow, w in zip(arrows, ([1.0, 0.0], [0.0, -1.0]), strict=True):
        step = np.subtract(arrow.xy, arrow.get_position())
        assert step @ w / np.linalg.norm(step) == pytest.approx(1.0)
    assert "1 of 3 hyperplanes outside" in notes(relu)
    assert "2 of 3 units without" in notes(strange)
    assert "no contour 1, 2, 3" in notes(strange)
    assert {ax.get_aspect() for ax in figure.axes} == {1.0}
    row = single.row("relu", "loss")
    assert f"{row.best:.3g}" in relu.get_title()


def test_the_plane_shows_several_means_and_marks_hyperplanes_through_them(single):
    arrays = {name: a for name, a in single.plots.items() if not name.endswith("/distance")}
    arrays |= {"plane/mean": np.eye(2), "plane/abs/through": np.array([1.0, 0.0, 0.0])}
    records = replace(single, plots=arrays)
    figure = drawn(plot(plots.Plane, panels=("abs",)), records)
    absolute, relu = figure.axes[:2]
    assert absolute.get_title() == single.study.look("abs").label
    (means,) = (line for line in absolute.lines if line.get_marker() == "P")
    assert means.get_xydata().tolist() == np.eye(2).tolist()
    lines = [[ln.get_lw() for ln in ax.lines if ln.get_ls() == "-"] for ax in (absolute, relu)]
    assert lines == [[2.2, 1.1], [1.1, 1.1]]


finite = st.floats(-50, 50)


@settings(deadline=None)
@given(st.tuples(finite, finite), st.floats(-500, 500))
def test_the_visible_part_of_a_line(normal, b):
    w = np.array(normal)
    assume(np.linalg.norm(w) >= 1e-3)
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
    np.testing.assert_allclose(mirrored, ends, atol=1e-9)


def test_a_hyperplane_at_infinity_is_outside():
    box = np.zeros(2), np.ones(2)
    assert visible_part(np.array([1e-300, 0.0]), 1e200, *box) is None
    assert visible_part(np.array([0.0, 1.0]), 7.0, *box) is None
    assert visible_part(np.array([0.0, 1.0]), -0.5, *box) is not None


def test_learned_stands_against_true_and_what_is_outside_is_counted(single):
    eigenvalues, fit = ALONE[1:]
    figure = drawn(eigenvalues, single)
    ax = figure.axes[0]
    every, best, _ = ax.lines
    assert points(every) == ([0.5, 1.0, 2.0, 2.0], [0.4, 1.1, 2.5, 2.0])
    assert points(best) == ([0.5, 1.0, 2.0], [0.4, 1.1, 2.5])
    assert "1 of 6 outside" in notes(ax)
    assert "1 of 6 not defined" in notes(ax)
    assert ax.get_ylim()[1] < 1e3
    two = replace(eigenvalues, learned=(("rows", "rows"), ("none", "none")))
    assert "no estimate" in notes(drawn(two, single).axes[-1])
    ax = drawn(fit, single).axes[0]
    assert points(ax.lines[0]) == ([0.1, 1.0, 2.0], [0.1, 1.0, 2.2])
    assert ax.get_xlim() == ax.get_ylim()
    assert "2 of 6 outside" in notes(ax)


# --- Scales -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
@example([100.0])
@example([0.0, 100.0])
@example([99.999999999, 100.0])
def test_an_axis_of_accuracies_holds_all_in_their_order(values):
    scale = AccuracyScale(values)
    low, high = scale.limits()
    places = scale.at(sorted(values))
    assert np.all(np.diff(places) >= 0)
    assert np.all((places >= low) & (places <= high))
    ticks = [place for place, _ in scale.ticks()]
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= high + 1e-9 for tick in ticks)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.booleans())
@example([0.0, 1e-249, 1e249], True)
def test_a_plain_axis_holds_all_in_their_order(values, log):
    scale = PlainScale(values, log)
    low, high = scale.limits()
    places = scale.at(sorted(values))
    assert np.isfinite(places).all()
    assert np.all(np.diff(places) >= 0)
    assert np.all((places >= low) & (places <= high))
    assert low < high
    positive = [value for value in values if value > 0]
    spans = bool(positive) and max(positive) >= 10 * min(positive) and min(values) >= 0
    assert scale.log == (log and spans)
    if scale.log:
        assert float(scale.at([-1.0])[0]) < low


@settings(deadline=None)
@given(st.floats(-290, 290), st.floats(1e-3, 500), st.integers(3, 8))
@example(-288.0, 0.25, 3)  # so little that matplotlib takes it for 0
@example(0.71, 0.28, 3)  # 6, 7, 8 and 9, and nothing rounder
def test_ticks_are_few_sorted_and_inside(start, decades, most):
    low, high = 10.0**start, 10.0 ** min(start + decades, 305.0)
    assume(high > low)
    ticks = log_ticks(low, high, most)
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= max(most, 4)
    if decades > 0.1:  # closer than three figures can tell, labels may be the same
        assert len({tick_label(tick) for tick in ticks}) == len(ticks) >= 1
