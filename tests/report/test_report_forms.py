"""The learning curves of the activations study: medians and quartiles, a panel for each form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mahalens.report.figures import draw_figures, forms
from mahalens.report.figures.accuracy_axis import AccuracyScale
from mahalens.report.figures.style import styled
from mahalens.report.records import RunRecords, load_run
from mahalens.studies.activations.config import ActivationsConfig
from mahalens.studies.activations.presentation import COLOURS
from mahalens.studies.activations.run import carry_on, start

MODELS = ("relu", "relu2", "gelu", "gelu2", "leakyrelu2", "gelu2-neg")


class Silent:
    def stage(self, name):
        return lambda progress: None

    def note(self, text):
        pass


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunRecords:
    path = tmp_path_factory.mktemp("forms") / "run"
    config = ActivationsConfig.with_defaults(
        data=["digits", "wine"], models=MODELS, trials=3, epochs=60, train_size=60
    )
    with start(config, path) as folder:
        carry_on(folder, Silent(), workers=1)
    return load_run(path)


def drawn(run: RunRecords):
    with styled():
        figure = forms.draw(run)
        figure.draw_without_rendering()
    return figure


def test_a_row_for_each_data_set_and_a_panel_for_each_form(run):
    axes = drawn(run).axes
    titles = [ax.get_title(loc="left") for ax in axes]
    said = ("outputs free", "held to intensities", "held to distances")
    assert titles == [f"{name}: {form}" for name in ("Digits", "Wine") for form in said]
    for ax, names in zip(
        axes, [("relu", "gelu"), ("relu", "gelu", "leakyrelu"), ("gelu",)] * 2, strict=True
    ):
        assert [line.get_color() for line in ax.lines] == [COLOURS[name] for name in names]
        assert len(ax.collections) == len(names)
    for row in (axes[:3], axes[3:]):
        assert len({ax.get_ylim() for ax in row}) == 1


def test_lines_are_medians_of_the_trials(run):
    part = run.parts()[0]
    curves = list(part.curves["gelu2"].values())
    every = [v for own in part.curves.values() for c in own.values() for v in c.value]
    wanted = AccuracyScale(every).at(np.median([c.value for c in curves], axis=0))
    line = drawn(run).axes[1].lines[1]
    assert line.get_xdata().tolist() == curves[0].step.tolist()
    np.testing.assert_allclose(line.get_ydata(), wanted)


def test_forms_that_were_not_run_have_no_panel(run):
    part = run.parts()[1]
    few = replace(part, curves={m: part.curves[m] for m in ("gelu", "gelu2")})
    assert [ax.get_title(loc="left") for ax in drawn(few).axes] == [
        "Outputs free",
        "Held to intensities",
    ]
    with styled():
        assert forms.draw(replace(part, curves={})) is None


def test_a_model_whose_trials_all_ran_away_has_no_line(run):
    part = run.parts()[0]
    gone = {
        trial: replace(curve, value=np.full(len(curve.value), np.nan))
        for trial, curve in part.curves["relu2"].items()
    }
    axes = drawn(replace(part, curves={**part.curves, "relu2": gone})).axes
    assert [line.get_color() for line in axes[1].lines] == [COLOURS["gelu"], COLOURS["leakyrelu"]]


def test_the_page_has_it(run):
    names = [figure.name for figure in draw_figures(run)]
    assert names == ["compared", "forms"]
