"""The report of an ellipsoid run: figures from records alone, tables with a line per model."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

from mahalens.errors import RunFolderError
from mahalens.report import build_report
from mahalens.report.figures import classification, convergence, draw_figures, ranks
from mahalens.report.figures.style import styled
from mahalens.report.records import Curve, load_run
from mahalens.report.tables import results_table
from mahalens.studies.ellipsoids.config import EllipsoidConfig
from mahalens.studies.ellipsoids.run import carry_on, start


class Silent:
    def stage(self, name):
        return lambda progress: None

    def note(self, text):
        pass


def make(path, **options):
    torch.set_num_threads(1)
    with start(EllipsoidConfig.with_defaults(**options), path) as folder:
        carry_on(folder, Silent())
    return path


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    path = tmp_path_factory.mktemp("searched") / "run"
    return make(path, dim=8, count=12, ranks=(2, 3), steps=20, trials=2)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("fitted") / "run"
    return make(path, data="digits", ranks=(2, 8), clusters=(2,), train_size=300, trials=2)


def drawn(module, records):
    with styled():
        figure = module.draw(records)
        if figure is not None:
            figure.draw_without_rendering()
    return figure


def test_a_search_has_its_figures_and_a_fit_its_own(searched, fitted):
    assert [f.name for f in draw_figures(load_run(searched))] == ["convergence", "ranks", "metrics"]
    assert [f.name for f in draw_figures(load_run(fitted))] == ["classification", "metrics"]


def test_convergence_has_a_panel_per_method_and_a_line_per_rank(searched):
    figure = drawn(convergence, load_run(searched))
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["Elliptical", "Spherical", "PCA-L2", "PCA-L1", "PCA-L2 + rest"]
    labels = [t.get_text() for t in figure.axes[2].get_legend().get_texts()]
    assert labels == ["2 components", "3 components"]
    bold = [line for line in figure.axes[0].get_lines() if line.get_linewidth() == 2.0]
    records = load_run(searched)
    curves = [records.curves["elliptical"][t].value for t in range(2)]
    np.testing.assert_allclose(bold[0].get_ydata(), np.sqrt(curves[0] * curves[1]))


def test_published_errors_are_drawn_where_the_record_has_them(searched):
    records = load_run(searched)
    rows = [
        {**row, "published": 0.161}
        if (row["model"], row["metric"]) == ("elliptical", "final_error")
        else row
        for row in records.summary["rows"]
    ]
    with_figure = dataclasses.replace(records, summary={**records.summary, "rows": rows})
    texts = drawn(convergence, with_figure).axes[0].get_legend().get_texts()
    assert [t.get_text() for t in texts] == ["here (published: 0.161)"]


def test_curves_that_reach_zero_or_stop_early_are_drawn(searched):
    records = load_run(searched)
    curves = {
        "elliptical": {
            0: Curve(np.array([0.0, 1.0, 5.0]), np.array([3.0, 1.0, 0.0])),
            1: Curve(np.array([0.0, 1.0]), np.array([2.0, 1e-3])),
        }
    }
    assert drawn(convergence, dataclasses.replace(records, curves=curves)) is not None
    assert drawn(convergence, dataclasses.replace(records, curves={})) is None


def test_ranks_show_every_rank_but_the_last(searched):
    figure = drawn(ranks, load_run(searched))
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 1]
    assert len(lines) == 3
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3, 4]] * 3
    assert drawn(ranks, dataclasses.replace(load_run(searched), plots={})) is None


def test_classification_shows_shares_in_percent_with_rivals_across(fitted):
    records = load_run(fitted)
    figure = drawn(classification, records)
    ax = figure.axes[0]
    assert ax.get_title(loc="left") == "Test error by density (%)"
    means = [100 * records.row(f"rank-{r}", "error_density")["mean"] for r in (2, 8)]
    found = [list(line.get_ydata()) for line in ax.get_lines()]
    assert any(np.allclose(line, means) for line in found if len(line) == 2)
    labels = [t.get_text() for t in figure.legends[0].get_texts()]
    for word in ("Full", "QDA (scikit-learn)", "2 clusters a class", "Mixture of 2 (scikit-learn)"):
        assert word in labels


def test_many_models_make_a_table_with_a_line_each(searched):
    table = results_table(load_run(searched).summary)
    console = Console(width=200, record=True, file=None, quiet=True)
    console.print(table)
    assert table.row_count == 8
    assert [str(c.header) for c in table.columns][:2] == ["model", "Final error (input units)"]


def test_pages_name_the_run_and_leave_out_what_does_not_tell(searched, fitted):
    page = build_report(searched).read_text()
    assert "Ellipsoids study, 8-D, 12 ellipsoids, Adam" in page
    assert "2 done</li>" not in page
    assert "Shrinkage" not in page
    page = build_report(fitted).read_text()
    assert "Ellipsoids study, digits" in page
    assert "Shrinkage" in page
    assert "Noise" not in page


def test_damaged_arrays_are_named(searched, tmp_path):
    from safetensors.numpy import save_file

    folder = tmp_path / "run"
    shutil.copytree(searched, folder)
    plots = {"ranks/grid": np.arange(4.0), "ranks/truncated": np.zeros((3, 5))}
    save_file(plots, folder / "plots.safetensors")
    with pytest.raises(RunFolderError, match="ranks/truncated has shape"):
        load_run(folder)
