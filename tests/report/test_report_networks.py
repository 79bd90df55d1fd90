"""Names, records, tables and page of the representation study, from hand-made records."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_runs import SCALED, claims, write_networks
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file, save_file

from mahalens.errors import RunFolderError
from mahalens.report import build_report
from mahalens.report.about import about
from mahalens.report.catalogue import headline, model_colours, model_label, models_in_order
from mahalens.report.comparisons import comparisons, p_value, pair_label
from mahalens.report.ledger import statements, upgrade
from mahalens.report.networks import families_of, has_relu_outputs, network_style
from mahalens.report.overview import overview
from mahalens.report.page import render_page
from mahalens.report.records import RunRecords, load_run
from mahalens.report.tables import claims_table, comparisons_table, results_table, run_tables
from mahalens.studies.representation.models import MODELS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_networks(tmp_path_factory.mktemp("networks") / "run")


@pytest.fixture(scope="module")
def run(folder: Path) -> RunRecords:
    return load_run(folder)


def printed(table: Table, width: int = 150) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def words(html: str) -> str:
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


# ---------------------------------------------------------------- names


def test_all_networks_have_a_name_of_their_own_and_a_look_of_their_own() -> None:
    labels = [model_label(model, "representation") for model in MODELS]
    assert len(set(labels)) == len(MODELS)
    for wanted in ("ReLU2-Neg, bias", "Abs-L2-Neg, published code", "ReLU2, point-slope"):
        assert wanted in labels
    looks = {
        (model_colours([m], "representation")[m], *map(str, network_style(m).values()))
        for m in MODELS
    }
    assert len(looks) == len(MODELS)
    for own in families_of(MODELS).values():  # within a panel colour alone must do
        assert len(set(model_colours(own, "representation").values())) == len(own)


def test_the_same_name_means_another_model_in_another_study() -> None:
    assert (model_label("abs"), model_label("abs", "representation")) == ("MD_Abs", "Abs")
    assert models_in_order(["new", "abs", "relu"], "representation") == ["relu", "abs", "new"]
    assert model_label("new", "representation") == "new"
    assert model_colours(["new"], "representation")["new"].startswith("#")


def test_only_networks_that_end_in_relu_can_have_dead_outputs() -> None:
    found = [model for model in MODELS if has_relu_outputs(model)]
    assert found == [m for m in MODELS if m.startswith("relu2")]


# ---------------------------------------------------------------- records


def test_parts_split_everything_and_lose_nothing(run: RunRecords) -> None:
    parts = run.parts()
    assert [part.title for part in parts] == ["Normalized pixels", "Raw pixels"]
    assert sum(len(part.summary["rows"]) for part in parts) == len(run.summary["rows"])
    assert sum(len(part.trials.model) for part in parts) == len(run.trials.model)
    assert sum(len(part.plots) for part in parts) == len(run.plots)
    normalized, raw = parts
    assert raw.row("relu2", "test_accuracy")["mean"] < 40
    assert normalized.row("relu2", "test_accuracy")["mean"] > 80
    assert max(raw.trials.of("relu2", "test_accuracy").values()) < 40
    assert raw.outcomes["relu2"]["group"] == {"pixels": "raw"}
    stored = load_file(run.folder / "plots.safetensors")
    np.testing.assert_array_equal(
        raw.plots["relu2/output_activity"], stored["raw/relu2/output_activity"]
    )
    assert [part.title for part in raw.parts()] == ["Raw pixels"]  # a part has no parts


def test_curves_hold_accuracies_alone(run: RunRecords) -> None:
    curve = run.parts()[1].curves["relu"][0]
    assert curve.step.tolist() == [0, 1, 10, 100]  # epoch 50 has a loss only
    assert np.isfinite(curve.value).all()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("raw/relu/latent.edges", "where 2 x 9 is wanted"),
        ("raw/relu/latent.moments", "where 2 x 10 x 3 is wanted"),
        ("raw/relu2/output_activity", "where any x any is wanted"),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    folder: Path, tmp_path: Path, name: str, part: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    path = copy / "plots.safetensors"
    save_file({**load_file(path), name: np.zeros(3)}, path)
    with pytest.raises(RunFolderError) as caught:
        load_run(copy)
    assert str(path) in str(caught.value)
    assert f"{name} has shape [3] {part}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["trials.csv", "curves.csv"])
def test_a_table_without_its_pixels_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    path = copy / name
    path.write_text(path.read_text().replace("pixels", "colours", 1))
    with pytest.raises(RunFolderError, match=rf"{name}: is damaged \(no column 'pixels'\)"):
        load_run(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["comparisons"][0].update(paired_p="small"),
        lambda s: s["comparisons"][0].pop("family"),
        lambda s: s["outcomes"][0].update(group=3),
        lambda s: s.update(scaled="all"),
    ],
)
def test_a_damaged_summary_is_one_line(folder: Path, tmp_path: Path, change: Any) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    summary = json.loads((copy / "summary.json").read_text())
    change(summary)
    (copy / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunFolderError, match=r"summary\.json: is damaged") as caught:
        build_report(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["curves.csv", "plots.safetensors"])
def test_a_missing_record_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / name).unlink()
    with pytest.raises(RunFolderError, match=f"{name}: is missing"):
        build_report(copy)


# ---------------------------------------------------------------- terminal


def test_every_table_names_the_data_and_says_what_was_scaled(run: RunRecords) -> None:
    tables = run_tables("run", run.summary)
    assert len(tables) == 4
    for table in tables:
        text = " ".join(" ".join(printed(table)).split())
        assert "digits (1,437 training, 360 test samples)" in text
        assert all(change in text for change in SCALED)


def test_a_published_run_says_that_nothing_was_scaled(tmp_path: Path) -> None:
    summary = load_run(write_networks(tmp_path / "run", scaled=False)).summary
    assert about(summary).endswith("Published protocol, nothing scaled down.")


def test_results_give_both_kinds_of_pixels_and_the_published_figure(run: RunRecords) -> None:
    lines = printed(results_table(run.summary))
    heads = [place for place, line in enumerate(lines) if line.strip().endswith("pixels")]
    assert [lines[place].strip() for place in heads] == ["Normalized pixels", "Raw pixels"]
    raw = run.parts()[1].row("relu2", "test_accuracy")
    line = next(line for line in lines[heads[1] :] if line.split()[:1] == ["ReLU2"])
    half = (raw["ci95"][1] - raw["ci95"][0]) / 2
    assert f"{raw['mean']:.2f} ± {half:.2g}" in line
    assert "95.64 (SD 0.19)" in next(line for line in lines if line.split()[:1] == ["ReLU"])


def test_a_single_trial_has_no_interval(tmp_path: Path) -> None:
    summary = load_run(write_networks(tmp_path / "run", trials=1, models=("relu",))).summary
    assert not any("±" in line for line in printed(results_table(summary))[1:])


def test_comparisons_show_every_test_and_which_to_lean_on(run: RunRecords) -> None:
    lines = printed(comparisons_table(run.summary), 170)
    text = "\n".join(lines)
    pairs = [line for line in lines if "ReLU2 − ReLU" in line]
    assert len(pairs) == 2
    for part in ("-10.2", "-8.05 (3)", "0.0013", "0.0078", "0.015", "+2.03", "< 0.0001"):
        assert part in pairs[1]
    assert "– (–)" in pairs[0]
    assert pairs[1].endswith("paired t (0.0078)*")
    assert "(-13.7 to -6.67)" in text
    assert [t for t in ("Normalized pixels", "Raw pixels", "Raw − normalized") if t in text] == [
        "Normalized pixels",
        "Raw pixels",
        "Raw − normalized",
    ]
    assert not any(line.endswith("(0.20)*") for line in lines)


def test_pairs_and_p_values_read_well() -> None:
    assert pair_label("relu2-bias (raw)", "relu2 (raw)") == "(ReLU2, bias) − ReLU2"
    assert pair_label("relu (raw)", "relu (normalized)") == "ReLU"
    assert [p_value(p) for p in (0.5, 1.0, 0.0, float("nan"))] == ["0.50", "1", "< 0.0001", "–"]
    assert comparisons({"study": "representation"}) == {}


def test_outcomes_gather_networks_that_ended_alike(tmp_path: Path) -> None:
    summary = load_run(write_networks(tmp_path / "run", lost=(2,))).summary
    summary["outcomes"][0].update(statuses={"done": 4}, non_finite=[])
    lines = printed(run_tables("run", summary)[2])
    assert "4 done" in next(line for line in lines if line.split()[:1] == ["ReLU"])
    assert "3 done, 1 non-finite" in next(line for line in lines if "7 networks" in line)
    assert sum("not finite: trial 2" in line for line in lines) == 2
    assert "8 networks" in "\n".join(lines)


def test_the_ledger_has_both_verdicts_in_one_row(run: RunRecords) -> None:
    text = "\n".join(printed(claims_table([("here", run.summary)])))
    assert text.count("ReLU2 fails: more than 20 points") == 1
    assert "normalized: ✗ fails, -0.500" in text
    assert "raw: ✓ holds, -57" in text
    assert "normalized: – not measured" in text
    assert "raw: ? undecided" in text


def test_runs_of_several_studies_share_a_ledger(run: RunRecords) -> None:
    other = {"study": "gaussian", "protocol": "published", "rows": [], "claims": claims()[-1:]}
    text = "\n".join(printed(claims_table([("a", run.summary), ("b", other)])))
    assert "a: Data: digits" in text
    assert text.count("More outputs die") == 1


@pytest.mark.parametrize("width", [80, 120])
def test_tables_keep_to_the_terminal(run: RunRecords, width: int) -> None:
    for table in run_tables("run", run.summary):
        assert all(len(line) <= width for line in printed(table, width))


def test_text_of_a_record_is_never_markup(run: RunRecords) -> None:
    summary = json.loads(json.dumps(run.summary))
    summary["facts"]["data"] = "[red]x[/red]"
    summary["rows"][0]["model"] = "[b]y"
    text = "\n".join(printed(results_table(summary)))
    assert "[red]x[/red]" in text
    assert "[b]y" in text


def test_statements_gather_what_belongs_together() -> None:
    found = statements(map(upgrade, claims()))
    assert [list(statement.claims) for statement in found] == [
        ["normalized", "raw"],
        ["normalized", "raw"],
        [""],
    ]
    assert found[0].text == "ReLU2 fails: more than 20 points below ReLU."
    assert [c["verdict"] for c in found[1].claims.values()] == ["not measured", "undecided"]
    assert headline(["holds", "fails", "undecided", "not measured"]) == (
        "1 of 4 claims holds in this run, 1 fails, 1 is undecided and 1 was not measured."
    )


def test_overview_orders_by_family(run: RunRecords) -> None:
    lines = overview(run.summary, "raw pixels")
    assert [line.label for line in lines[-2:]] == ["ReLU2, bias", "Abs-L2, published code"]
    assert [line.family for line in lines[-2:]] == [
        "With output bias",
        "OffsetL2 by the published code",
    ]
    assert overview(run.summary, "no such pixels") == []


# ---------------------------------------------------------------- page


def test_the_page_has_both_verdicts_side_by_side_and_what_was_run(run: RunRecords) -> None:
    html = render_page(run, [])
    text = words(html)
    assert "1 of 5 claims holds in this run, 2 fail, 1 is undecided and 1 was not measured" in text
    row = html[html.index("ReLU2 fails: more than") :]
    row = words(row[: row.index("</tr>")])
    assert row.index("✗ fails -0.500") < row.index("✓ holds -57")
    assert "Normalized: relu2 (normalized) averages less." in row
    for part in (
        "Data digits",
        "Source of the data scikit-learn&#39;s digits",
        "Training samples 1,437",
        "Pixels normalized, raw",
        "Networks (8) ReLU; Abs; ReLU2",
        "Epochs 100",
        "Trials a network 4",
        "Engine compiled",
        "Budget 1 min 30 s",
        "Cut to keep the budget epochs: cut to 100 by the budget",
        "Seed 0",
        "Time 12.0 s",
        "All 32 trials ran to their end.",
        "Raw pixels: 1 of 1 differences are significant",
    ):
        assert part in text


def test_every_table_of_the_page_says_what_was_scaled(run: RunRecords) -> None:
    class_of = re.compile(r'<table class="\w+">')
    pieces = class_of.split(render_page(run, []))[1:]
    assert len(pieces) == 10  # the ledger, three for each kind of pixels, three blocks of tests
    for piece in pieces:
        rest = words(piece[piece.index("</table>") :])
        assert rest.startswith("Data: digits (1,437 training, 360 test samples). Scaled: ")
        assert all(change in rest[:250] for change in SCALED)


def test_one_kind_of_pixels_has_one_column(tmp_path: Path) -> None:
    run = load_run(write_networks(tmp_path / "run", pixels=("raw",), models=("relu",)))
    text = words(render_page(run, []))
    assert "2 claims about normalized pixels were not measured: this run has none." in text
    assert "Statement Raw pixels" in text
    assert "Normalized pixels" not in text


def test_lost_trials_are_told_at_the_top(tmp_path: Path) -> None:
    run = load_run(write_networks(tmp_path / "run", lost=(1,), models=("relu", "abs")))
    html = render_page(run, [])
    assert "ReLU, raw pixels: 3 done, 1 non-finite" in words(html[: html.index("</header>")])
    assert "8 trials: 6 done, 2 non-finite." in words(html)
    assert not re.search(r"\b(None|nan|inf|Undefined)\b", words(html))


def test_a_summary_with_nothing_in_it_still_makes_a_page(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    summary = {"study": "representation", "protocol": "scaled", "rows": [], "claims": []}
    (copy / "summary.json").write_text(json.dumps(summary))
    text = words(render_page(load_run(copy), []))
    assert "This run checks no claims." in text
    assert "holds no results" in text


def test_hostile_text_stays_text(folder: Path, tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script>{{ 7 * 7 }}"
    copy = shutil.copytree(folder, tmp_path / "run")
    summary = json.loads((copy / "summary.json").read_text())
    summary["claims"][0].update(statement=hostile, why=hostile)
    summary["comparisons"][0].update(a=hostile, family=hostile)
    summary["facts"]["data"] = summary["rows"][0]["model"] = hostile
    summary["rows"][1]["group"] = {"pixels": hostile}
    (copy / "summary.json").write_text(json.dumps(summary))
    html = render_page(load_run(copy), [])
    assert "<script" not in html
    assert html.count("{{ 7 * 7 }}") >= 4


def test_a_whole_report_is_the_same_twice_and_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    first = build_report(copy).read_bytes()
    script = (
        "import sys\nfrom mahalens.report import build_report, records, tables\n"
        "build_report(sys.argv[1])\n"
        "tables.run_tables('a', records.load_run(sys.argv[1]).summary)\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script, str(copy)], check=True)
    assert (copy / "report.html").read_bytes() == first
    assert len(first) < 5_000_000
    assert first.count(b"<img ") == 6
    assert {p.name for p in (copy / "figures").iterdir()} == {
        f"{name}.png" for name in ("accuracy", "learning", "outputs", "dead", "centres", "latent")
    }
    text = words(first.decode())
    assert "Mean, variance and skewness of every class" in text
