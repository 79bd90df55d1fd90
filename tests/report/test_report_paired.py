"""Records, tables and page of paired studies, from hand-made records."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paired_runs import METRICS, PARTS, SCALED, STUDY, claims, names, pretend, write_paired
from rich.console import Console
from rich.table import Table

from mahalens.errors import RunFolderError
from mahalens.report import build_report
from mahalens.report.about import about
from mahalens.report.catalogue import model_colours, model_label, models_in_order, primary_metric
from mahalens.report.comparisons import comparisons
from mahalens.report.ledger import statements, upgrade
from mahalens.report.page import render_page
from mahalens.report.parts import parts_of
from mahalens.report.records import RunRecords, load_run
from mahalens.report.shown_table import shown_metrics, shown_of
from mahalens.report.tables import claims_table, comparisons_table, results_table, run_tables
from mahalens.report.views import view_of
from mahalens.studies.paired.presentation import PAIRED, presentation_of

MODELS = names(4)
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module", autouse=True)
def pretended() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, MODELS)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    absent = (("digits", MODELS[2]),)
    return write_paired(tmp_path_factory.mktemp("paired") / "run", absent=absent, lost=(3,))


@pytest.fixture(scope="module")
def run(folder: Path) -> RunRecords:
    return load_run(folder)


def printed(table: Table, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue()


def plain(text: str) -> str:
    body = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def section(html: str, name: str) -> str:
    start = html.index(f'<section id="{name}"')
    return html[start : html.index("</section>", start)]


# ---------------------------------------------------------------- names


def test_a_study_says_itself_how_it_is_shown() -> None:
    assert model_label(MODELS[2], STUDY) == "Half abs half relu"
    assert models_in_order(["new", "relu", "abs"], STUDY) == ["abs", "relu", "new"]
    assert model_colours(["abs", "relu"], STUDY) == {"abs": "#0072B2", "relu": "#D55E00"}
    assert primary_metric(STUDY, ["ece", "test_accuracy"]) == "test_accuracy"
    assert view_of(STUDY).remark == "Nobody has published on this."


def test_a_study_that_is_not_written_yet_is_shown_plainly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mahalens.studies.paired.presentation.PAIRED", (*PAIRED, "unwritten"))
    assert presentation_of("unwritten") is None
    folder = write_paired(tmp_path / "run", models=("abs", "relu"), trials=3)
    for name in ("config", "summary"):
        record = json.loads((folder / f"{name}.json").read_text())
        (folder / f"{name}.json").write_text(json.dumps({**record, "study": "unwritten"}))
    run = load_run(folder)
    assert [part.title for part in run.parts()] == ["Digits", "MNIST"]
    assert shown_metrics(run.summary) == list(METRICS)
    assert "Test accuracy" not in plain(render_page(run, []))  # nobody says what it is called
    assert "test accuracy" in plain(render_page(run, []))


def test_a_fault_inside_a_presentation_is_not_taken_for_its_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name.endswith("hybrid.presentation"):
                raise ModuleNotFoundError("No module named 'nonsense'", name="nonsense")

    monkeypatch.delitem(sys.modules, "mahalens.studies.hybrid.presentation")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        presentation_of("hybrid")


@pytest.mark.parametrize("study", PAIRED)
def test_what_each_study_says_fits_together(study: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("presentation", "metrics"):
            patch.delitem(sys.modules, f"mahalens.studies.{study}.{name}", raising=False)
        told, view = presentation_of(study), view_of(study)
        assert told is not None
        metrics = __import__(f"mahalens.studies.{study}.metrics", fromlist=["METRICS"]).METRICS
    assert told.primary in told.shown
    assert set(told.shown) <= set(metrics)
    assert set(told.colours) == set(told.labels)
    assert set(told.markers) <= set(told.labels)
    assert len(set(told.labels.values())) == len(told.labels)
    assert told.figures
    looks = {(view.colour(model), view.marker(model)) for model in told.labels}
    assert len(looks) == len(told.labels)  # told apart by colour and marker
    for figure in told.figures:
        drawing, _, metric = figure.partition(":")
        module = __import__(f"mahalens.report.figures.{drawing}", fromlist=["draw"])
        assert callable(module.draw)
        assert callable(module.caption)
        assert not metric or metric in metrics


# ---------------------------------------------------------------- records


def test_parts_are_data_sets_and_lose_nothing(run: RunRecords) -> None:
    parts = run.parts()
    assert [(p.part, p.title, p.phrase) for p in parts] == [
        ("digits", "Digits", "Digits"),
        ("mnist", "MNIST", "MNIST"),
    ]
    for name in ("rows", "outcomes", "comparisons"):
        assert sum(len(p.summary[name]) for p in parts) == len(run.summary[name]) > 0
    assert sum(len(p.trials.model) for p in parts) == len(run.trials.model)
    assert sum(len(p.curves) for p in parts) == len(run.curves) == 7
    digits, mnist = parts
    assert mnist.row("leaky-relu", "test_accuracy")["mean"] < 40
    assert max(mnist.trials.of("leaky-relu", "test_accuracy").values()) < 40
    assert min(digits.trials.of("leaky-relu", "test_accuracy").values()) > 90
    assert list(mnist.summary["facts"]["data"]) == ["mnist"]
    assert {line["family"] for line in mnist.summary["comparisons"]} == {"mnist"}
    assert [part.title for part in mnist.parts()] == ["MNIST"]


def test_a_users_file_goes_by_its_own_name(tmp_path: Path) -> None:
    run = load_run(write_paired(tmp_path / "run", parts=("my-set", "iris"), trials=2))
    assert [part.title for part in run.parts()] == ["my-set", "Iris"]
    assert plain(render_page(run, [])).startswith("Hybrid study, my-set, Iris")


def test_curves_are_those_of_the_column_that_the_study_names(
    run: RunRecords, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = run.parts()[1].curves["abs"][0]
    assert curve.step.tolist() == [0, 1, 2, 5, 10, 20]
    assert curve.value[-1] == pytest.approx(run.parts()[1].trials.of("abs", "test_accuracy")[0])
    assert 3 not in run.parts()[1].curves["abs"]  # nothing was finite there
    pretend(monkeypatch, MODELS, curve="train_loss")
    assert set(load_run(folder).curves["mnist/abs"][0].value) == {1.5}
    pretend(monkeypatch, MODELS, curve="")
    assert load_run(folder).curves == {}


def test_a_run_needs_no_curves(tmp_path: Path) -> None:
    folder = write_paired(tmp_path / "run", trials=2, models=("abs", "relu"), curves=False)
    html = build_report(folder).read_text()
    assert 'id="figure-compared"' in html
    assert 'id="figure-progress"' not in html


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("trials.csv", lambda t: t.replace("data", "set", 1), "no column 'data'"),
        ("trials.csv", lambda t: t.replace(",done,", ",done,many", 1), "is not a number"),
        ("trials.csv", lambda t: t + "abs,digits\n", "has 2 of 9 cells"),
        ("curves.csv", lambda t: t.replace("data", "set", 1), "no column 'data'"),
        ("curves.csv", lambda t: t.replace("test_acc", "acc", 1), "no column 'test_accuracy'"),
        ("summary.json", lambda t: t[:-20], "truncated"),
        ("config.json", lambda t: "[]", "Expected `object`"),
    ],
)
def test_a_damaged_record_is_one_line_that_names_it(
    folder: Path, tmp_path: Path, name: str, change: Callable[[str], str], told: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / name).write_text(change((copy / name).read_text()))
    with pytest.raises(RunFolderError, match=re.escape(f"{copy / name}: is damaged (")) as caught:
        build_report(copy)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["rows"][0].pop("mean"),
        lambda s: s["rows"][0].update(group="digits"),
        lambda s: s["comparisons"][0].update(metric=3),
        lambda s: s["comparisons"][0].update(mean_difference="large"),
        lambda s: s["claims"][0].update(verdict="perhaps"),
        lambda s: s.update(cautions=3),
        lambda s: s.update(facts=3),
    ],
)
def test_a_damaged_summary_is_one_line(folder: Path, tmp_path: Path, change: Change) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    summary = json.loads((copy / "summary.json").read_text())
    change(summary)
    (copy / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunFolderError, match=r"summary\.json: is damaged") as caught:
        build_report(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("facts", [{}, {"data": "digits"}, {"data": {}}, {"data": {"digits": 3}}])
def test_facts_that_say_little_are_no_fault(
    folder: Path, tmp_path: Path, facts: dict[str, Any]
) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "facts": facts}))
    run = load_run(copy)
    assert "Hybrid study, Digits, MNIST" in plain(render_page(run, []))
    assert run_tables("run", run.summary)


def test_an_empty_summary_still_makes_a_page(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    summary = {"study": STUDY, "protocol": "scaled", "rows": [], "claims": []}
    (copy / "summary.json").write_text(json.dumps(summary))
    text = plain(render_page(load_run(copy), []))
    assert "This run checks no claims." in text
    assert "holds no results" in text
    assert len(run_tables("run", load_run(copy).summary)) == 3


# ---------------------------------------------------------------- results


def test_the_best_mean_of_each_column_is_marked_and_no_other(run: RunRecords) -> None:
    for part in parts_of(run.summary):
        found = shown_of(part.summary)
        assert [view.name for view in found.metrics] == list(view_of(STUDY).shown)
        rows = {(r["model"], r["metric"]): r["mean"] for r in part.summary["rows"]}
        models = models_in_order((model for model, _ in rows), STUDY)
        assert [line.label for line in found.lines] == [model_label(m, STUDY) for m in models]
        for place, view in enumerate(found.metrics):
            means = [rows[model, view.name] for model in models]
            wanted = max(means) if view.better == "high" else min(means)
            marked = [line.cells[place].best for line in found.lines]  # type: ignore[union-attr]
            assert marked == [mean == wanted for mean in means]


@pytest.mark.parametrize(
    ("means", "better", "best"),
    [
        ([97.001, 97.002], "high", [False, True]),  # alike when rounded
        ([97.0, 97.0], "high", [False, False]),
        ([97.0, 97.0, 96.0], "high", [False, False, False]),  # most are as good
        ([97.0, 97.0, 96.0, 95.0], "high", [True, True, False, False]),
        ([0.1, 0.2], "low", [True, False]),
        ([0.1, None], "low", [False, False]),  # nothing to beat
        ([64.0, 65.0], None, [False, False]),
    ],
)
def test_what_is_best(means: list[float | None], better: str | None, best: list[bool]) -> None:
    metric = {"high": "test_accuracy", "low": "ece", None: "width"}[better]
    rows = [
        {"model": f"m{i}", "metric": metric, "mean": mean, "n": 3, "published": 1.0, "group": {}}
        for i, mean in enumerate(means)
    ]
    lines = shown_of({"study": STUDY, "rows": rows}, [metric]).lines
    assert [line.cells[0].best for line in lines] == best  # type: ignore[union-attr]


def test_cells_give_interval_published_mean_and_lost_trials(run: RunRecords) -> None:
    digits = parts_of(run.summary)[0]
    first, second, last = shown_of(digits.summary, ["test_accuracy"]).lines
    row = run.parts()[0].row("relu", "test_accuracy")
    half = (row["ci95"][1] - row["ci95"][0]) / 2
    assert second.cells[0] is not None
    assert second.cells[0].text == f"{row['mean']:.2f} ± {half:.2f} (95.64)"
    assert first.cells[0] is not None
    assert first.cells[0].text.endswith(", n = 9")
    assert last.cells[0] is not None
    assert last.cells[0].published == last.cells[0].n == ""


def test_metrics_without_a_number_are_not_shown(run: RunRecords) -> None:
    rows = [
        {**row, "mean": None, "published": None} if row["metric"] == "ece" else row
        for row in run.summary["rows"]
    ]
    shown = shown_metrics({**run.summary, "rows": rows})
    assert shown == ["test_accuracy", "auroc", "epochs_to_95"]


def test_the_terminal_has_a_section_for_each_data_set(run: RunRecords) -> None:
    lines = printed(results_table(run.summary)).splitlines()
    heads = [line.strip() for line in lines if line.strip() in ("Digits", "MNIST")]
    assert heads == ["Digits", "MNIST"]
    after = lines[[line.strip() for line in lines].index("MNIST") :]
    row = run.parts()[1].row("leaky-relu", "test_accuracy")
    assert f"{row['mean']:.2f} ± " in next(line for line in after if "Leaky relu" in line)
    assert sum("Half abs half relu" in line for line in lines) == 1  # not run on digits
    table = results_table(run.summary)
    bold = [
        cell.plain
        for column in table.columns[1:]
        for cell in column.cells
        if not isinstance(cell, str) and cell.style == "bold"  # type: ignore[union-attr]
    ]
    assert len(bold) == 8  # four metrics, two data sets
    assert all(cell.endswith(", n = 9") for cell in bold)  # the first model leads in all


def test_every_table_says_what_was_scaled(run: RunRecords) -> None:
    tables = run_tables("run", run.summary)
    assert len(tables) == 4
    for table in tables:
        text = " ".join(printed(table).split())
        assert "Data: Digits (1,437 training, 360 test samples), MNIST (1,437" in text
        assert all(change in text for change in SCALED)


def test_a_full_run_says_so_and_many_sets_are_named_without_sizes(tmp_path: Path) -> None:
    folder = write_paired(tmp_path / "run", parts=PARTS, models=("abs",), trials=2, scaled=False)
    said = about(load_run(folder).summary)
    assert said == (
        "Data: Digits, MNIST, Fashion-MNIST, Iris, Wine, Breast cancer. Full protocol, nothing "
        "scaled down."
    )
    text = plain(render_page(load_run(folder), []))
    assert text.startswith("Hybrid study, 6 data sets")
    assert "Full protocol; nothing was scaled down." in text
    assert "Protocol: full." in text
    assert "published protocol" not in text.lower()


# ---------------------------------------------------------------- tests between models


def test_tests_stand_by_data_set_and_metric(run: RunRecords) -> None:
    found = comparisons(run.summary)
    assert {title: [pair.pair for pair in pairs] for title, pairs in found.items()} == {
        "Digits, test accuracy": ["Relu − Abs", "Leaky relu − Abs"],
        "Digits, calibration error": ["Relu − Abs", "Leaky relu − Abs"],
        "MNIST, test accuracy": ["Relu − Abs", "Half abs half relu − Abs", "Leaky relu − Abs"],
        "MNIST, calibration error": ["Relu − Abs", "Half abs half relu − Abs", "Leaky relu − Abs"],
    }
    assert [pair.significant for pair in found["MNIST, test accuracy"]] == [False, False, True]
    text = printed(comparisons_table(run.summary))
    assert all(title in text for title in found)
    assert "in points where it is one of percentages" in text


def test_of_very_many_tests_the_terminal_shows_the_significant_ones(tmp_path: Path) -> None:
    many = names(12)
    run = load_run(write_paired(tmp_path / "run", models=many, parts=PARTS[:4]))
    found = comparisons(run.summary)
    table = comparisons_table(run.summary)
    text = printed(table)
    assert sum(map(len, found.values())) == 88
    clear = sum(pair.significant for pairs in found.values() for pair in pairs)
    assert 0 < clear < 88
    shown = [str(cell) for cell in table.columns[0].cells]
    assert sum(cell.startswith("  ") for cell in shown) == clear
    assert "Of 88 tests, those that are significant" in text
    own = [pair.significant for pair in found["Digits, test accuracy"]]
    assert f"Digits, test accuracy: {sum(own)} of 11" in text


# ---------------------------------------------------------------- claims


def test_claims_put_to_data_sets_share_a_statement() -> None:
    found = statements(map(upgrade, claims(("digits", "fashion-mnist"), 2)))
    assert [list(statement.claims) for statement in found] == [
        ["digits", "fashion-mnist"],
        ["digits", "fashion-mnist"],
        [""],
    ]
    assert found[0].text == "Half Abs beats number 0 by a point."
    assert found[0].key == "hybrid/half-beats-0"
    other = {"id": "hybrid/x/iris", "statement": "It works (on wine).", "verdict": "holds"}
    assert upgrade(other) == other | {"data": ""}
    new = other | {"data": "wine", "verdict": "not measured", "why": "Undecided."}
    assert upgrade(new) == new


def test_the_terminal_has_one_row_for_a_statement(run: RunRecords) -> None:
    text = printed(claims_table([("here", run.summary)]))
    assert text.count("Half Abs beats number 0") == 1
    assert "digits: ✓ holds, 1.25" in text
    assert "mnist: ? undecided" in text


def test_few_data_sets_have_verdicts_in_words(run: RunRecords) -> None:
    html = section(render_page(run, []), "claims")
    assert "Statement Digits MNIST Claims that hold 1 of 4 1 of 4" in plain(html)
    row = html[html.index("Half Abs beats number 0") :]
    row = plain(row[: row.index("</tr>")])
    assert row.index("✓ holds 1.25") < row.index("✗ fails -0.500")
    assert "Digits: Half Abs averages more." in row
    assert "compact" not in html
    listed = [upgrade(claim) for claim in claims(PARTS[:2], 5)]
    more = dataclasses.replace(run, summary={**run.summary, "claims": listed})
    assert "Claims that hold 2 of 5 1 of 5" in plain(section(render_page(more, []), "claims"))


def test_many_data_sets_and_claims_have_signs(tmp_path: Path) -> None:
    models = ("abs", "relu")
    folder = write_paired(tmp_path / "run", models=models, parts=PARTS, statements=20, trials=2)
    page = render_page(load_run(folder), [])
    html = section(page, "claims")
    assert "30 of 121 claims hold in this run, 31 fail" in plain(page)
    assert html.count("<tr") == 1 + 1 + 21  # head, totals, statements
    assert plain(html).count("5 of 20") == 6
    row = html[html.index("Half Abs beats number 0") :]
    cells = re.findall(r'<td class="text ([\w-]+)">(.*?)</td>', row[: row.index("</tr>")])
    assert [kind for kind, _ in cells] == [
        *("holds", "fails", "undecided", "not-measured"),
        *("holds", "fails"),
    ]
    assert [plain(cell) for _, cell in cells[:4]] == [
        *("✓ holds 1.25", "✗ fails -0.500", "? undecided", "– not measured")
    ]
    whole = html[html.index("Half Abs is nowhere worse") :]
    assert 'colspan="6"' in whole


def test_more_data_sets_still_fit_beside_each_other(tmp_path: Path) -> None:
    more = (*PARTS, "gunpoint", "arrow-head")
    folder = write_paired(tmp_path / "run", models=("abs", "relu"), parts=more, trials=2)
    html = section(render_page(load_run(folder), []), "claims")
    assert 'class="ledger compact dense"' in html
    row = html[html.index("Half Abs beats number 0") :]
    row = row[row.index("<td") : row.index("</tr>")]
    assert 'title="holds (1.25)"' in row  # the number is there for who asks
    assert "1.25" not in plain(row)
    assert "Beside a verdict" not in html


def test_what_no_data_set_measured_stands_apart(run: RunRecords) -> None:
    lost = [
        {**claim, "verdict": "not measured", "why": "This run has no numbers for it."}
        if "number 0" in claim["statement"]
        else claim
        for claim in run.summary["claims"]
    ]
    html = section(
        render_page(dataclasses.replace(run, summary={**run.summary, "claims": lost}), []), "claims"
    )
    table, after = html.split("</table>")
    assert "number 0" not in table
    assert "1 statement not measured by this run Half Abs beats number 0" in plain(after)
    assert "Claims that hold 0 of 3 1 of 3" in plain(table)
    assert "not measured by this run" not in section(render_page(run, []), "claims")
    every = [{**claim, "verdict": "not measured", "why": ""} for claim in lost]
    bare = dataclasses.replace(run, summary={**run.summary, "claims": every})
    html = section(render_page(bare, []), "claims")
    assert "5 statements not measured" in plain(html)
    assert "<table" not in html


# ---------------------------------------------------------------- page


def test_the_page_says_what_was_run(run: RunRecords) -> None:
    text = plain(section(render_page(run, []), "protocol"))
    for part in (
        "Data (2) Digits (1,437 training samples, 360 test samples, 64 inputs, 10 classes, from a "
        "file); MNIST (",
        "Models (4) Abs; Relu; Half abs half relu; Leaky relu",
        "Trials a model 10",
        "Epochs 20",
        "Training samples at most 500",
        "Seed 0",
        "Engine compiled",
        "Hidden units 64",
        "Time, all models together 12.0 s",
    ):
        assert part in text
    assert text.count("Epochs") == 1


def test_the_page_marks_the_best_and_tells_of_lost_trials(run: RunRecords) -> None:
    html = render_page(run, [])
    text = plain(html)
    assert "Abs, Digits: 9 done, 1 non-finite Abs, MNIST: 9 done" in plain(
        html.split("</header>")[0]
    )
    results = section(html, "results")
    first = results[results.index("<h3>MNIST</h3>") :]
    first = first[first.index("<tbody>") : first.index("</tbody>")]
    mean = run.parts()[1].row("abs", "test_accuracy")["mean"]
    assert f"<strong>{mean:.2f}</strong>" in first
    assert first.count("<strong>") == 4
    assert "Test accuracy (%) ↑ Calibration error ↓ AUROC ↑" in text
    assert "All metrics, MNIST" in text
    assert "How the trials ended, MNIST: 40 trials: 39 done, 1 non-finite." in text
    assert not re.search(r"\b(None|nan|inf|Undefined)\b", text)


def test_tables_of_a_data_set_speak_of_it_alone(run: RunRecords) -> None:
    results = section(render_page(run, []), "results")
    digits, mnist = results.split("<h3>MNIST</h3>")
    assert digits.count("Data: Digits (1,437 training, 360 test samples). Scaled") == 3
    assert mnist.count("Data: MNIST (1,437 training, 360 test samples). Scaled") == 3
    assert "Data: MNIST" not in digits
    assert "Data: Digits" not in mnist


def test_hostile_text_stays_text(folder: Path, tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script>{{ 7 * 7 }}"
    copy = shutil.copytree(folder, tmp_path / "run")
    summary = json.loads((copy / "summary.json").read_text())
    summary["claims"][0].update(statement=hostile, why=hostile)
    summary["comparisons"][0].update(a=hostile, family=hostile, metric=hostile)
    summary["rows"][0].update(model=hostile, metric=hostile)
    summary["rows"][5]["group"] = {"data": hostile}
    summary["facts"]["data"][hostile] = {"source": hostile}
    (copy / "summary.json").write_text(json.dumps(summary))
    html = render_page(load_run(copy), [])
    assert "<script" not in html
    assert html.count("{{ 7 * 7 }}") >= 6
    for table in run_tables("[red]x[/red]", {**summary, "scaled": ["[b]y"]}):
        assert "[b]y" in printed(table)


def test_a_single_trial_has_no_interval(tmp_path: Path) -> None:
    summary = load_run(write_paired(tmp_path / "run", trials=1)).summary
    cells = [c for p in parts_of(summary) for line in shown_of(p.summary).lines for c in line.cells]
    assert cells
    assert not any(cell.half_width for cell in cells if cell)
    assert np.isfinite([float(cell.mean) for cell in cells if cell]).all()
