"""Table, figures and page of the perturbation study, from hand-made records."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.numpy import load_file, save_file

from mahalens.errors import RunFolderError
from mahalens.report import build_report
from mahalens.report.figures import draw_figures, levels, places
from mahalens.report.figures.style import styled
from mahalens.report.level_table import levels_of
from mahalens.report.records import load_run
from mahalens.report.tables import run_tables
from mahalens.studies.perturbation.metrics import METRICS

LEVELS = {"scale": (0.01, 0.1, 1.0), "clip": (0.1, 0.5, 1.0), "offset": (-0.1, 0.0, 0.1, 0.25)}
MODELS = ("relu-bias", "abs-bias")


def write(folder: Path, *, pixels: tuple[str, ...] = ("raw",), trials: int = 5, published=True):
    """What `mahalens run perturbation` leaves, but for weights."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    rows, outcomes, plots, table = [], [], {}, []
    for way in pixels:
        for model in MODELS:
            for metric in METRICS:
                row = {
                    "group": {"pixels": way},
                    "model": model,
                    "metric": metric,
                    "mean": 98.763,
                    "n": trials,
                    "std": 1.0,
                    "min": 97.0,
                    "max": 99.5,
                    "best": 99.0,
                    "ci95": [98.513, 99.013] if trials > 1 else None,
                    "published": 81.40 if metric == "offset_0.1" and published else None,
                }
                rows.append(row)
            outcomes.append(
                {
                    "model": model,
                    "group": {"pixels": way},
                    "trials": trials,
                    "statuses": {"done": trials},
                    "non_finite": [],
                    "best_trial": 0,
                    "seconds": 1.5,
                }
            )
            table += [[model, way, t, "done", 9, *[50.0] * len(METRICS)] for t in range(trials)]
            for kind, own in LEVELS.items():
                start = f"{way}/{model}/{kind}"
                known = [81.4 if p == 0.1 and published else np.nan for p in own]
                plots[f"{start}.levels"] = np.array(own)
                plots[f"{start}.published"] = np.array(known)
                for what in ("train", "test", "after"):
                    mean = rng.uniform(20, 90, len(own))
                    half = 5.0 if trials > 1 else np.nan
                    plots[f"{start}.{what}"] = np.stack([mean, mean - half, mean + half])
    claim = {
        "id": "2411.17932/abs-relies-on-distance/raw",
        "source": "arXiv 2411.17932",
        "statement": "Abs relies on distances (raw pixels).",
        "published": "mean 0.433",
        "measured": 0.4,
        "verdict": "holds",
        "why": "Mean 0.4.",
    }
    facts = {"data": "mnist", "training_samples": 5000, "test_samples": 10000, "networks": "here"}
    common: dict[str, Any] = {"study": "perturbation", "protocol": "scaled"}
    options = {
        "data": "mnist",
        "models": list(MODELS),
        "pixels": list(pixels),
        "networks": "runs/r",
    }
    config = {**common, "scaled": ["trials: 5 instead of 20"], "options": options}
    summary = {**common, "facts": facts, "outcomes": outcomes, "rows": rows, "claims": [claim]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    with (folder / "trials.csv").open("w", newline="") as stream:
        head = ["model", "pixels", "trial", "status", "steps", *METRICS]
        csv.writer(stream).writerows([head, *table])
    save_file(plots, folder / "plots.safetensors")
    return folder


@pytest.fixture
def run(tmp_path):
    return load_run(write(tmp_path / "run"))


def drawn(module, records) -> Figure:
    with styled():
        figure = module.draw(records)
        figure.draw_without_rendering()
    return figure


def test_the_table_has_a_line_per_level_and_a_column_per_network(run):
    found = levels_of(run.parts()[0].summary)
    assert found.networks == ["ReLU, bias", "Abs, bias"]
    assert [line.label for line in found.lines][2:5] == ["scale 1 %", "scale 10 %", "clip 10 %"]
    lines = {line.label: line for line in found.lines}
    assert [cell.text for cell in lines["offset +10 %"].cells] == ["98.76 ± 0.25 (81.40)"] * 2
    assert [cell.text for cell in lines["offset -10 %"].cells] == ["98.76 ± 0.25"] * 2
    assert found.published


def test_what_was_not_measured_is_left_open(run):
    part = run.parts()[0].summary
    kept = [r for r in part["rows"] if (r["model"], r["metric"]) != ("abs-bias", "clip_0.1")]
    lines = {line.label: line for line in levels_of({**part, "rows": kept}).lines}
    assert lines["clip 10 %"].cells[0] is not None
    assert lines["clip 10 %"].cells[1] is None
    text = "\n".join(_printed({**run.summary, "rows": kept}))
    assert "–" in next(line for line in text.splitlines() if "clip 10 %" in line)


def _printed(summary) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    for table in run_tables("run", summary):
        console.print(table)
    return console.export_text().splitlines()


def test_the_terminal_shows_both_parts(tmp_path):
    records = load_run(write(tmp_path / "run", pixels=("normalized", "raw")))
    text = _printed(records.summary)
    heads = [line.strip() for line in text if line.strip() in ("Normalized pixels", "Raw pixels")]
    assert heads[:2] == ["Normalized pixels", "Raw pixels"]
    assert any("98.76 ± 0.25 (81.40)" in line for line in text)
    assert any("in brackets: the published mean" in line for line in text)


def test_nothing_in_brackets_where_nothing_was_published(tmp_path):
    folder = write(tmp_path / "run", published=False)
    assert not any("in brackets" in line for line in _printed(load_run(folder).summary))
    build_report(folder)
    assert "In brackets" not in (folder / "report.html").read_text()


def test_lines_are_the_means_and_bands_their_intervals(run):
    figure = drawn(levels, run)
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "Intensity scale, raw pixels",
        "Intensity clip, raw pixels",
        "Distance offset, raw pixels",
    ]
    for ax, kind in zip(figure.axes, LEVELS, strict=True):
        lines = [line for line in ax.lines if len(line.get_xdata()) == len(LEVELS[kind])]
        for line, model in zip(lines, MODELS, strict=True):
            np.testing.assert_array_equal(line.get_xdata(), LEVELS[kind])
            mean = run.plots[f"raw/{model}/{kind}.train"][0]
            np.testing.assert_array_equal(line.get_ydata(), mean)
        assert len(ax.collections) == 2
        published = [line for line in ax.lines if line.get_marker() == "D"]
        wanted = [([0.1], [81.4])] * 2 if 0.1 in LEVELS[kind] else []
        assert [(list(p.get_xdata()), list(p.get_ydata())) for p in published] == wanted
    colours = {
        line.get_color() for ax in figure.axes for line in ax.lines if line.get_marker() == "."
    }
    assert len(colours) == 2


def test_places_show_before_and_after(run):
    figure = drawn(places, run)
    assert len(figure.axes) == 4
    ax = figure.axes[3]
    assert ax.get_title(loc="left") == "Abs, bias\nraw pixels"
    drawn_lines = [list(line.get_ydata()) for line in ax.lines]
    for what in ("train", "after"):
        assert list(run.plots[f"raw/abs-bias/offset.{what}"][0]) in drawn_lines


def test_one_trial_has_no_band(tmp_path):
    records = load_run(write(tmp_path / "run", trials=1))
    figure = drawn(levels, records)
    assert not any(ax.collections for ax in figure.axes)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "95 % interval of the mean" not in names


def test_networks_that_ran_away_are_not_drawn(tmp_path):
    folder = write(tmp_path / "run")
    plots = load_file(folder / "plots.safetensors")
    for name in plots:
        if name.split(".")[-1] in ("train", "test", "after"):
            plots[name] = np.full_like(plots[name], np.nan)
    save_file(plots, folder / "plots.safetensors")
    assert [figure.name for figure in draw_figures(load_run(folder))] == []
    assert build_report(folder).exists()


def test_arrays_that_do_not_fit_are_named(tmp_path):
    folder = write(tmp_path / "run")
    plots = load_file(folder / "plots.safetensors")
    plots["raw/abs-bias/offset.train"] = np.zeros((3, 2))
    save_file(plots, folder / "plots.safetensors")
    with pytest.raises(RunFolderError, match=r"raw/abs-bias/offset\.train has shape \[3, 2\]"):
        load_run(folder)


def test_the_page_has_table_figures_claims_and_what_was_scaled(tmp_path):
    folder = write(tmp_path / "run", pixels=("normalized", "raw"))
    page = build_report(folder).read_text()
    assert sorted(p.name for p in (folder / "figures").iterdir()) == ["levels.png", "places.png"]
    assert page.count("<small>(81.40)</small>") == 4
    assert "Abs relies on distances." in page
    assert "trials: 5 instead of 20" in page
    assert "runs/r" in page
    assert "Perturbation study, mnist" in page
    assert "In brackets: the published mean" in page
