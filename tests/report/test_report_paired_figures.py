"""Figures of paired studies, from hand-made records."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.text import Text
from paired_runs import PARTS, STUDY, names, pretend, write_paired

from mahalens.report import build_report
from mahalens.report.catalogue import MetricView
from mahalens.report.comparisons import is_significant
from mahalens.report.figures import compared, differences, draw_figures, progress
from mahalens.report.figures.accuracy_axis import AccuracyScale
from mahalens.report.figures.metric_axis import PlainScale, scale_of
from mahalens.report.figures.part_panels import columns_for, part_panels
from mahalens.report.figures.style import styled
from mahalens.report.records import Curve, RunRecords, load_run
from mahalens.report.views import View, view_of

MODELS, MANY = names(4), names(20)


@pytest.fixture(scope="module", autouse=True)
def pretended() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, MANY)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    folder = tmp_path_factory.mktemp("paired") / "run"
    return load_run(write_paired(folder, absent=(("digits", MODELS[2]),), lost=(3,)))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    folder = tmp_path_factory.mktemp("paired") / "large"
    return load_run(write_paired(folder, models=MANY, parts=PARTS, epochs=300))


def drawn(module: ModuleType, run: RunRecords, *metric: str) -> Figure:
    with styled():
        figure = module.draw(run, *metric)
        assert isinstance(figure, Figure)
        figure.canvas.draw()
    return figure


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


def keys(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rows(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


# ---------------------------------------------------------------- what is drawn


def test_compared_has_every_trial_with_mean_interval_and_published_mean(run: RunRecords) -> None:
    figure = drawn(compared, run)
    assert titles(figure) == ["Digits", "MNIST"]
    assert rows(figure.axes[0]) == ["Abs", "Relu", "Half abs half relu", "Leaky relu"]
    for ax, part in zip(figure.axes, run.parts(), strict=True):
        models = [m for m in MODELS if part.trials.of(m, "test_accuracy")]
        every = [v for m in models for v in part.trials.of(m, "test_accuracy").values()]
        scale = AccuracyScale([*every, 95.64])
        dots = [line for line in ax.lines if line.get_alpha() == 0.65 and len(line.get_xdata())]  # type: ignore[arg-type]
        assert len(dots) == len(models)
        for dot, model in zip(dots, models, strict=True):
            found = part.trials.of(model, "test_accuracy")
            assert len(found) == (9 if model == "abs" else 10)
            np.testing.assert_allclose(np.asarray(dot.get_xdata()), scale.at(list(found.values())))
        ends = [line for line in ax.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
        row = part.row("relu", "test_accuracy")
        assert any(np.allclose(np.asarray(e.get_xdata()), scale.at(row["ci95"])) for e in ends)
        diamonds = [line for line in ax.lines if line.get_marker() == "D"]
        assert [np.asarray(d.get_xdata()).tolist() for d in diamonds] == [
            scale.at([95.64]).tolist()
        ]
    assert keys(figure) == ["a trial", "mean with 95 % interval", "published mean"]
    assert [t.get_text() for t in figure.axes[0].texts] == ["no value"]
    assert "log scale of the error" in figure.axes[0].get_xlabel()


def test_compared_draws_any_metric(run: RunRecords) -> None:
    figure = drawn(compared, run, "auroc")
    ax = figure.axes[1]
    found = run.parts()[1].trials.of("relu", "auroc")
    assert any(
        np.asarray(line.get_xdata()).tolist() == list(found.values())  # on a linear axis
        for line in ax.lines
    )
    assert ax.get_xlabel() == "AUROC"
    assert keys(figure) == ["a trial", "mean with 95 % interval"]
    assert compared.title(run, "auroc").startswith("AUROC: ")
    assert "Higher is better." in compared.caption(run, "auroc")
    assert "halve the error" in compared.caption(run)
    assert compared.draw(run, "unheard_of") is None


def test_a_log_metric_stands_on_a_log_axis(run: RunRecords) -> None:
    ax = drawn(compared, run, "epochs_to_95").axes[1]
    found = run.parts()[1].trials.of("relu", "epochs_to_95")
    assert any(
        np.allclose(np.asarray(ln.get_xdata()), np.log10(list(found.values())))
        for ln in ax.lines
        if len(ln.get_xdata()) == len(found)
    )  # type: ignore[arg-type]
    assert ax.get_xlabel() == "epochs to 95 % (epochs), log scale"


def test_a_study_can_ask_for_a_linear_axis(
    run: RunRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, MANY, axis="linear")
    assert drawn(compared, run).axes[0].get_xlabel() == "test accuracy (%)"


def test_progress_draws_median_and_quartiles(run: RunRecords) -> None:
    figure = drawn(progress, run)
    assert titles(figure) == ["Digits", "MNIST"]
    mnist = run.parts()[1]
    together = np.array([c.value for c in mnist.curves["relu"].values()])
    low, median, high = np.percentile(together, (25, 50, 75), axis=0)
    every = [
        np.percentile([c.value for c in trials.values()], (25, 50, 75), axis=0).ravel()
        for trials in mnist.curves.values()
    ]
    scale = AccuracyScale(np.concatenate(every).tolist())
    line = next(line for line in figure.axes[1].lines if same_color(line.get_color(), "#D55E00"))
    np.testing.assert_allclose(np.asarray(line.get_ydata()), scale.at(median))
    assert np.asarray(line.get_xdata()).tolist() == [0, 1, 2, 5, 10, 20]
    band = figure.axes[1].collections[1].get_paths()[0].vertices
    assert float(np.max(band[:, 1])) == pytest.approx(float(scale.at(high).max()))
    assert float(np.min(band[:, 1])) == pytest.approx(float(scale.at(low).min()))
    assert keys(figure) == ["Abs", "Relu", "Half abs half relu", "Leaky relu"]
    assert figure.axes[0].get_xscale() == "linear"


def test_a_trial_that_stopped_is_not_carried_on(run: RunRecords) -> None:
    whole = Curve(np.array([0.0, 1.0, 2.0]), np.array([10.0, 50.0, 80.0]))
    short = Curve(np.array([0.0, 1.0]), np.array([10.0, 30.0]))
    ax = drawn(progress, dataclasses.replace(run, curves={"mnist/abs": {0: whole, 1: short}})).axes[
        0
    ]
    scale = AccuracyScale([10.0, 80.0])
    np.testing.assert_allclose(np.asarray(ax.lines[0].get_ydata()), scale.at([10.0, 40.0, 80.0]))


def test_models_of_one_colour_have_different_lines(large: RunRecords) -> None:
    figure = drawn(progress, large)
    looks = [
        (line.get_color(), str(line._unscaled_dash_pattern))  # type: ignore[attr-defined]
        for line in figure.axes[0].lines
    ]
    assert len(looks) == len(set(looks)) == 20
    assert figure.axes[0].get_xscale() == "symlog"


def test_differences_are_filled_where_significant(run: RunRecords) -> None:
    figure = drawn(differences, run)
    assert titles(figure) == ["Digits", "MNIST"]
    # All were tested against one model: it is named once.
    assert rows(figure.axes[0]) == ["Relu", "Half abs half relu", "Leaky relu"]
    assert figure.axes[0].get_xlabel() == "difference in test accuracy from Abs (points)"
    for ax, part in zip(figure.axes, run.parts(), strict=True):
        lines = [ln for ln in part.summary["comparisons"] if ln["metric"] == "test_accuracy"]
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        assert [np.asarray(d.get_xdata())[0] for d in dots] == [
            ln["mean_difference"] for ln in lines
        ]
        for dot, line in zip(dots, lines, strict=True):
            filled = not same_color(dot.get_markerfacecolor(), "white")
            assert filled == is_significant(line)
        bars = [np.asarray(ln.get_xdata()).tolist() for ln in ax.lines if ln.get_linewidth() == 1.6]
        wanted = [[ln["difference_ci95_low"], ln["difference_ci95_high"]] for ln in lines]
        assert bars == wanted
        assert any(np.asarray(ln.get_xdata()).tolist() == [0.0, 0.0] for ln in ax.lines)
    assert keys(figure) == ["significantly worse than Abs", "not significant"]


def test_a_lower_error_is_better(run: RunRecords) -> None:
    figure = drawn(differences, run, "ece")
    assert keys(figure) == ["significantly worse than Abs"]  # all are larger
    assert figure.axes[0].get_xlabel() == "difference in calibration error from Abs"
    turned = [
        {**line, "mean_difference": -line["mean_difference"]} for line in run.summary["comparisons"]
    ]
    other = dataclasses.replace(run, summary={**run.summary, "comparisons": turned})
    assert keys(drawn(differences, other, "ece")) == ["significantly better than Abs"]


def test_pairs_of_several_models_are_named_in_full(run: RunRecords) -> None:
    tests = run.summary["comparisons"]
    more = {**tests[0], "a": "leaky-relu (digits)", "b": "relu (digits)"}
    other = dataclasses.replace(run, summary={**run.summary, "comparisons": [*tests, more]})
    figure = drawn(differences, other)
    assert "Leaky relu − Relu" in rows(figure.axes[0])
    assert "significant, second is better" in keys(figure)
    assert "the first model minus the second" in differences.caption(other)


def test_a_difference_far_larger_than_most_does_not_hide_them(large: RunRecords) -> None:
    figure = drawn(differences, large)
    ax = figure.axes[1]
    assert ax.get_xscale() == "symlog"
    assert titles(figure)[1] == "MNIST"
    assert ax.get_title(loc="right") == "log scale beyond ±5"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["−50", "−5", "0"]
    low, high = ax.get_xlim()
    assert all(low < np.asarray(line.get_xdata()).min() for line in ax.lines)
    assert figure.axes[0].get_xscale() == "linear"
    assert high > 0
    # Three long labels would touch: it stands under the middle column alone.
    assert [bool(ax.get_xlabel()) for ax in figure.axes] == [False] * 4 + [True, False]


def test_many_small_differences_stand_on_a_plain_axis(run: RunRecords) -> None:
    """Nearly equal means with wide intervals are not far beyond most: all intervals are alike."""
    line = run.parts()[0].summary["comparisons"][0]
    ends = {"difference_ci95_low": -1.5, "difference_ci95_high": 2.0}
    lines = [{**line, **ends, "mean_difference": 0.01 * place} for place in range(5)]
    ax = Figure().add_subplot()
    differences._set_axis(ax, lines, 0.2)
    assert ax.get_xscale() == "linear"
    assert ax.get_title(loc="right") == ""


def test_models_that_share_all_values_share_a_row_but_by_the_primary_metric(
    run: RunRecords,
) -> None:
    same = run.trials.metrics["test_accuracy"]
    trials = dataclasses.replace(run.trials, metrics={**run.trials.metrics, "ece": 0 * same + 0.5})
    other = dataclasses.replace(run, trials=trials)
    assert rows(drawn(compared, other, "ece").axes[0]) == ["Abs", "Relu", "Half abs half relu"]
    told = compared.caption(other, "ece")  # one trial of Abs was lost
    assert "share a row: Relu stands for Leaky relu. " in told
    flat = dataclasses.replace(run.trials, metrics={"test_accuracy": 0 * same + 90.0})
    every = dataclasses.replace(run, trials=flat)
    assert len(rows(drawn(compared, every).axes[0])) == 4
    assert "share a row" not in compared.caption(every)
    assert "share a row" not in compared.caption(run, "ece")


def test_a_panel_alone_in_its_row_says_what_is_along_it(large: RunRecords) -> None:
    with styled():
        _, axes = part_panels([*large.parts(), large.parts()[0]], 1.0, "points")
    assert [bool(ax.get_xlabel()) for ax in axes] == [False] * 4 + [True, False, True]


def test_nothing_measured_is_nothing_drawn(run: RunRecords) -> None:
    bare = dataclasses.replace(
        run,
        curves={},
        summary={**run.summary, "rows": [], "comparisons": []},
        trials=dataclasses.replace(run.trials, metrics={}),
    )
    assert [module.draw(bare) for module in (compared, progress, differences)] == [None] * 3
    assert list(draw_figures(bare)) == []


# ---------------------------------------------------------------- that it can be read


@pytest.mark.parametrize("module", [compared, progress, differences])
def test_texts_keep_clear_of_each_other_and_of_the_edge(
    large: RunRecords, run: RunRecords, module: ModuleType
) -> None:
    for records in (large, run):
        figure = drawn(module, records)
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        width, height = figure.canvas.get_width_height()
        texts: list[Text] = [ax.title for ax in figure.axes]
        for ax in figure.axes:
            texts += [ax._left_title, ax.xaxis.label, ax.yaxis.label]  # type: ignore[attr-defined]
            for axis in (ax.xaxis, ax.yaxis):  # matplotlib keeps labels that it does not draw
                low, high = sorted(axis.get_view_interval())
                ticks = axis.get_major_ticks(len(axis.get_majorticklocs()))
                texts += [t.label1 for t in ticks if low <= t.get_loc() <= high]
        texts += figure.legends[0].get_texts()
        boxes = [
            (text.get_text(), text.get_window_extent(renderer))
            for text in texts
            if text.get_text() and text.get_visible()
        ]
        for said, box in boxes:
            assert box.x0 >= 0, said
            assert box.y0 >= 0, said
            assert box.x1 <= width + 1, said
            assert box.y1 <= height + 1, said
        for place, (said, box) in enumerate(boxes):
            for other, second in boxes[place + 1 :]:
                assert not box.padded(-0.5).overlaps(second.padded(-0.5)), (said, other)


def test_panels_stand_in_even_rows() -> None:
    assert [columns_for(n) for n in range(1, 10)] == [1, 2, 3, 2, 3, 3, 3, 3, 3]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.booleans())
def test_a_plain_scale_holds_all_values_in_their_order(values: list[float], log: bool) -> None:
    scale = PlainScale(values, log)
    low, high = scale.limits()
    places = scale.at(sorted(values))
    assert np.isfinite(places).all()
    assert np.all(np.diff(places) >= 0)
    assert np.all((places >= low) & (places <= high))
    assert low < high
    assert scale.log == (log and min(values) > 0)


def test_which_axis_a_metric_has() -> None:
    view = view_of(STUDY)
    percent = MetricView("test_accuracy", "Test accuracy", "", "%", "high")
    assert isinstance(scale_of(percent, view, [90.0])[0], AccuracyScale)
    lost = dataclasses.replace(percent, better="low")
    assert isinstance(scale_of(lost, view, [90.0])[0], PlainScale)
    linear = View(primary=("test_accuracy",), linear=True)
    assert isinstance(scale_of(percent, linear, [90.0])[0], PlainScale)
    other = dataclasses.replace(percent, name="train_accuracy")
    assert isinstance(scale_of(other, linear, [90.0])[0], AccuracyScale)


# ---------------------------------------------------------------- the whole report


def test_figures_are_those_the_study_asks_for_and_stale_ones_go(tmp_path: Path) -> None:
    folder = write_paired(tmp_path / "run", models=MODELS[:2], parts=("iris",), trials=3)
    (folder / "figures").mkdir()
    (folder / "figures" / "accuracy.png").write_bytes(b"of another run")
    (folder / "figures" / "mine.png").write_bytes(b"of the user")
    first = build_report(folder).read_bytes()
    wanted = ["compared", "compared-auroc", "progress", "differences", "differences-ece"]
    assert re.findall(r'id="figure-([\w-]+)"', first.decode()) == wanted
    assert {path.stem for path in (folder / "figures").iterdir()} == {*wanted, "mine"}
    assert build_report(folder).read_bytes() == first
