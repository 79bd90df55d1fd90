"""The tables of a run: results, outcomes, comparisons, claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from runs import MODELS, STUDY, WITHOUT_VARIANTS, edit, make_records, printed, words

from mahalens.report import run_tables as show
from mahalens.report.records import Outcome, Row, RunRecords, load_run
from mahalens.report.tables import MISSING, Cell, Section, Table
from mahalens.studies.plots import Ridges
from mahalens.studies.study import Metric, Study


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    return make_records(tmp_path_factory.mktemp("tables") / "run", lost=(3,))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    return make_records(tmp_path_factory.mktemp("single") / "run", WITHOUT_VARIANTS)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    sets = [f"set-{place}" for place in range(9)]
    return make_records(tmp_path_factory.mktemp("many") / "run", variants=sets, trials=5)


def with_summary(run: RunRecords, **changes: Any) -> RunRecords:
    """Return the same records with another summary."""
    return replace(run, summary=msgspec.structs.replace(run.summary, **changes))


def rows_of(table: Table) -> dict[str, tuple[Cell, ...]]:
    """Return the lines of a table by their heads."""
    return {line[0].text: line[1:] for line in table.lines if not isinstance(line, Section)}


def sections_of(table: Table) -> list[str]:
    return [line.title for line in table.lines if isinstance(line, Section)]


# --- Words


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([], "This run checks no claims."),
        (["not measured"] * 3, "None of the claims (3) was measured in this run."),
        (["holds"], "The one claim holds in this run."),
        (["fails", "fails"], "Both claims fail in this run."),
        (["undecided"] * 3, "All 3 claims are undecided in this run."),
        (["fails", "holds"], "1 of 2 claims holds in this run and 1 fails."),
        (
            ["holds", "undecided", "fails", "not measured", "fails", "not measured"],
            "1 of 6 claims holds in this run, 2 fail, 1 is undecided and 2 were not measured.",
        ),
    ],
)
def test_the_headline_gives_the_verdicts(verdicts: list[str], sentence: str) -> None:
    assert show.headline(verdicts) == sentence


class TestAnswer:
    def test_the_best_model_of_each_variant_then_the_verdicts(self, run: RunRecords) -> None:
        iris, wine, verdicts = show.answer(run)
        row = run.variants()[0].row("round", "accuracy")
        assert row is not None
        start = f"On Iris, Round has the highest test accuracy: {row.mean:.2f} ± "
        assert iris.startswith(start)
        assert iris.endswith(
            "\N{NO-BREAK SPACE}% (mean of 9 trials). 2 of 2 tested differences are significant."
        )
        assert wine.startswith("On Wine, Round has the highest test accuracy: ")
        assert verdicts == "5 of 7 claims hold in this scaled run and 2 were not measured."

    def test_a_full_run_is_not_called_scaled(self, run: RunRecords) -> None:
        full = with_summary(run, protocol="published")
        assert show.answer(full)[-1].startswith("5 of 7 claims hold in this run")

    @pytest.mark.parametrize(
        ("means", "better", "who"),
        [
            ([1, 2, 3], "low", "Plain has the lowest m: 1"),
            ([1, 3, 3, 2], "high", "Bent, twice and Round share the highest m: 3"),
            ([3, 3, 3, 3, *range(-5, 0)], "high", "4 of 9 networks share the highest m: 3"),
        ],
    )
    def test_one_or_several_are_best(
        self, single: RunRecords, means: list[float], better: Any, who: str
    ) -> None:
        study = replace(single.study, metrics={"m": Metric("M m", "", better=better)}, primary="m")
        names = [*MODELS, *(f"model-{place}" for place in range(9))]
        rows = [Row(model, "m", mean, 5) for model, mean in zip(names, means, strict=False)]
        records = with_summary(single, rows=rows, outcomes=[], comparisons=[], claims=[])
        first, _ = show.answer(replace(records, study=study, all_trials={}))
        assert first.replace("M m", "m").startswith(who)

    def test_what_was_computed_is_no_rival(self, single: RunRecords) -> None:
        outcomes = [
            msgspec.structs.replace(o, statuses={"analytic": 1}) if o.model == "round" else o
            for o in single.summary.outcomes
        ]
        records = with_summary(single, outcomes=outcomes)
        assert show.answer(records)[0].startswith("Bent, twice has the highest test accuracy")
        cells = rows_of(show.results_tables(records)[0])
        assert [cells[name][0].bold for name in cells] == [False, True, False]

    def test_own_data_come_first(self, run: RunRecords) -> None:
        assert show.own_data(run) == []
        assert "of other data" not in printed(show.claims_table({"run": run}))
        data = ["iris", "some/my wine.npz"]
        config = msgspec.structs.replace(run.config, options={"data": data})
        names = {"iris": "iris", "wine": "my-wine"}
        rows = [
            msgspec.structs.replace(row, group={"data": names[row.group["data"]]})
            for row in run.summary.rows
        ]
        mine = replace(with_summary(run, rows=rows, outcomes=[]), config=config, all_trials={})
        assert [sentence[:8] for sentence in show.answer(mine)] == [
            "On my-wi",
            "On Iris,",
            "5 of 7 c",
        ]
        last = show.reservations(mine)[-1]
        assert last == "The sources claim this of other data than some/my wine.npz."
        assert last in " ".join(printed(show.claims_table({"run": mine})).split())

    def test_many_variants_are_counted(self, many: RunRecords) -> None:
        count = len(many.variants())
        assert show.answer(many)[0] == f"Best test accuracy on {count} data sets: Round on {count}."

    def test_advice_takes_the_place_of_the_best_model(self, run: RunRecords) -> None:
        study = replace(run.study, advice=lambda rows: [f"Take any of {len(rows)}."])
        sentences = show.answer(replace(run, study=study))
        assert sentences[:-1] == [f"Take any of {len(run.summary.rows)}."]


def test_claims_that_a_small_run_leaves_open_say_so_first(run: RunRecords) -> None:
    assert show.reservations(run) == []  # none fails
    verdicts = ["fails", "undecided", *["holds"] * 5]
    claims = [
        msgspec.structs.replace(claim, verdict=verdict, why="Because.")
        for claim, verdict in zip(run.summary.claims, verdicts, strict=True)
    ]
    small = with_summary(run, claims=claims)
    assert show.reservations(small) == [
        "This run is scaled down: a claim that fails or is undecided here may hold in the full "
        "protocol."
    ]
    reasons = [
        why
        for line in show.ledger_table(small).lines
        if not isinstance(line, Section)
        for name, why in line[0].details
        if name != "claim"
    ]
    assert reasons.count("Scaled run. Because.") == 2
    assert reasons.count("Because.") == len(reasons) - 2
    full = with_summary(small, protocol="published")
    assert show.reservations(full) == []


def test_about_says_data_scale_and_cautions(run: RunRecords, single: RunRecords) -> None:
    sizes = "(105 training, 45 test samples)"
    scaled = "Scaled: trials: 10 instead of 20."
    warned = with_summary(run, cautions=["networks still learned"])
    text = show.about(warned)
    assert text == f"Data: Iris {sizes}, Wine {sizes}. {scaled} Mind: networks still learned."
    assert show.about(warned.variants()[0], brief=True).startswith(
        f"Data: Iris {sizes}. Scaled run: "
    )
    assert show.about(single) == scaled
    full = with_summary(run, protocol="published")
    assert show.about(full).endswith("Full protocol, nothing scaled down.")
    one = with_summary(single, facts={"data": "digits", "training_samples": 7})
    assert show.data_line(one) == "digits (7 training samples)"


def test_of_many_data_sets_the_names_will_do(many: RunRecords) -> None:
    assert show.data_line(many).startswith("set-0, set-1, ")
    odd = with_summary(many, facts={"data": {"iris": 3}})
    assert show.data_line(odd) == "Iris"


# --- Results


def test_results_stand_beside_the_published_ones(run: RunRecords) -> None:
    iris, wine = show.results_tables(run)
    assert (iris.title, wine.title) == ("Iris", "Wine")
    assert [c.label.replace("\xa0", " ") for c in iris.columns] == [
        "Model",
        "Test accuracy (%) ↑",
        "Loss ↓",  # and not void, which has no number
    ]
    cells = rows_of(iris)
    row = run.variants()[0].row("bent", "accuracy")
    assert row is not None
    assert row.mean is not None
    assert row.interval is not None
    half = (row.interval[1] - row.interval[0]) / 2
    assert cells["Bent, twice"][0] == Cell(f"{row.mean:.2f}", f"± {half:.2f} (91.50)")
    assert cells["Round"][0].below == "9 trials"
    assert "In brackets: the published mean." in iris.notes


def test_the_best_mean_is_bold(run: RunRecords) -> None:
    cells = rows_of(show.results_tables(run)[0])
    assert [cells[name][0].bold for name in cells] == [False, False, True]  # higher is better
    assert [cells[name][1].bold for name in cells] == [True, False, False]  # lower is better


@pytest.mark.parametrize(
    ("means", "better", "bold"),
    [
        ([1, 2, 3], "high", [False, False, True]),
        ([1, 2, 3], "low", [True, False, False]),
        ([1, 2, 3], None, [False, False, False]),
        ([None, 2, 3], "low", [False, True, False]),
        ([3, 3, 2], "high", [False, False, False]),  # most share it
        ([None, None, 3], "high", [False, False, False]),
    ],
)
def test_which_mean_is_best(
    single: RunRecords, means: list[float | None], better: Any, bold: list[bool]
) -> None:
    study = replace(single.study, metrics={"m": Metric("M", "", better=better)}, shown=("m",))
    rows = [Row(model, "m", mean, 5) for model, mean in zip(MODELS, means, strict=True)]
    records = replace(with_summary(single, rows=rows), study=study)
    assert [cells[0].bold for cells in rows_of(show.results_tables(records)[0]).values()] == bold


def test_more_metrics_than_fit_become_lines(single: RunRecords) -> None:
    names = [f"m{place}" for place in range(9)]
    rows = [Row(model, name, 1.5, 10, published=2.0) for name in names for model in MODELS]
    records = with_summary(single, rows=rows)
    table = show.results_tables(records)[0]
    assert [column.label for column in table.columns] == ["Metric", "Plain", "Bent, twice", "Round"]
    assert list(rows_of(table)) == names
    assert rows_of(table)["m3"][0] == Cell("1.500", "(2)")


def test_a_single_trial_has_no_interval(tmp_path: Path) -> None:
    records = make_records(tmp_path / "run", trials=1)
    text = printed(show.results_tables(records)[0])
    assert "±" not in text.partition("Model")[2]


def test_every_metric_has_every_figure(run: RunRecords) -> None:
    table = show.metrics_tables(run)[1]
    assert sections_of(table) == ["Test accuracy (%)", "Loss", "Turns", "Void"]
    note = {line.title: line.note for line in table.lines if isinstance(line, Section)}
    assert note["Test accuracy (%)"] == "Share of samples. Higher is better."
    assert note["Void"] == "Never measured. Lower is better. No value in this run."
    row = Row("bent", "accuracy", 0.11, 3, 0.22, 0.55, 0.66, 0.77, (0.33, 0.44), 0.122, {"sd": 0.5})
    bent = rows_of(show.metrics_tables(with_summary(run.variants()[0], rows=[row]))[0])[
        "Bent, twice"
    ]
    assert [cell.text for cell in bent] == [
        *("0.110", "0.122", "0.220", "0.330 to 0.440", "0.550", "0.660", "0.770", "3"),
    ]
    assert bent[1].below == "sd 0.500"
    assert "the highest test accuracy" in table.notes[0]
    lost = msgspec.structs.replace(row, mean=None)
    bent = rows_of(show.metrics_tables(with_summary(run.variants()[0], rows=[lost]))[0])[
        "Bent, twice"
    ]
    assert bent[0].text == "no value"


# --- Outcomes


def test_outcomes_name_lost_trials_and_the_best(run: RunRecords) -> None:
    iris = run.variants()[0]
    cells = rows_of(show.outcomes_table(iris))["Round"]
    assert cells[1] == Cell("9 done, 1 non-finite", below="not finite: trial 3")
    assert list(rows_of(show.outcomes_table(iris, only_odd=True))) == ["Round"]
    best, row = iris.outcome("plain"), iris.row("plain", "accuracy")
    assert best is not None
    assert row is not None
    plain = rows_of(show.outcomes_table(iris))["Plain"]
    assert (plain[2].text, plain[4].text) == (str(best.best_trial), "1.5 s")
    assert show.all_endings(run) == "60 trials: 58 done, 2 non-finite."


def test_trials_that_would_have_gone_on_say_where() -> None:
    basins = {"zero residual": 1, "saddle point": 1}
    stopped = Outcome("a", 2, {"done": 2}, basins)
    assert show.endings_of(stopped).startswith("2 done; converged from there: 1 zero residual")
    assert show.is_odd(stopped)
    assert not show.is_odd(Outcome("a", 1, {"analytic": 1}))
    assert not show.is_odd(Outcome("a", 2000, {"done": 2000}))
    assert show.endings_of(Outcome("a", 0, {})) == MISSING


# --- Comparisons


def test_comparisons_show_every_test_by_family(run: RunRecords) -> None:
    tables = show.comparison_tables(run)
    assert [table.title for table in tables] == [
        "Iris, test accuracy: 2 of 2 differences significant",
        "Iris, loss: 2 of 2 differences significant",
        "Wine, test accuracy: 2 of 2 differences significant",
        "Wine, loss: 2 of 2 differences significant",
    ]
    line, cells = run.summary.comparisons[0], rows_of(tables[0])["(Bent, twice) − Plain"]
    assert line.mean_difference is not None
    assert cells[0].text == f"+{line.mean_difference:.2f}"
    assert " to " in cells[0].below
    assert cells[0].bold
    assert cells[8].bold
    assert cells[8].text == "< 0.0001"
    assert cells[7].text in ("paired t", "Wilcoxon")


def test_tests_that_could_not_be_made_are_dashes(run: RunRecords) -> None:
    bare = type(run.summary.comparisons[0])("iris", "bent (iris)", "plain (iris)")
    table = show.comparison_tables(with_summary(run, comparisons=[bare]))[0]
    assert table.title == "Iris: 0 of 1 differences significant"
    assert {cell.text for cell in rows_of(table)["(Bent, twice) − Plain"]} == {MISSING}
    assert not show.comparison_tables(with_summary(run, comparisons=[bare]), only_significant=True)[
        0
    ]


def test_a_model_against_itself_names_the_variants(run: RunRecords) -> None:
    pixels = replace(run, study=replace(STUDY, variant="pixels"))
    label = show.pair_label(pixels, "plain (raw)", "plain (normalised)")
    assert label == "Plain: raw pixels − normalised pixels"
    across = type(run.summary.comparisons[0])("across", "plain (raw)", "plain (normalised)")
    table = show.comparison_tables(with_summary(pixels, comparisons=[across]))[0]
    assert table.title.startswith("Between kinds of pixels: ")


# --- Claims


def test_statements_gather_what_belongs_together(run: RunRecords) -> None:
    statements = show.statements_of(run)
    assert {key: list(statement) for key, statement in statements.items()} == {
        "pretend/bent-beats-plain": ["iris", "wine"],
        "pretend/plain-loses-less": ["iris", "wine"],
        "pretend/square": ["iris", "wine"],
        "pretend/everywhere": [""],
    }
    assert show.unmeasured(run) == [("Square is best.", "This run has no numbers for it.")]


def test_the_ledger_has_a_column_for_each_variant(run: RunRecords) -> None:
    table = show.ledger_table(run)
    assert [column.label for column in table.columns] == ["Claim", "Iris", "Wine", "Published"]
    assert sections_of(table) == [
        "Interpreting Neural Networks through Mahalanobis Distance (arXiv 2410.19352)",
        "This project",
    ]
    lines = rows_of(table)
    assert [cell.text for cell in lines["Claims that hold"]] == ["2 of 2", "2 of 2", ""]
    first = lines["Bent is more accurate than Plain."]
    assert [cell.text for cell in first] == ["holds", "holds", "91.5 against 89"]
    assert first[0].verdict
    assert first[0].note
    assert lines["Round is never worse by a point."][0].span == 2
    head = next(
        line[0] for line in table.lines if not isinstance(line, Section) and line[0].details
    )
    assert [name for name, _ in head.details] == ["Iris", "Wine", "claim"]
    assert not head.is_open
    assert not table.is_compact


def test_one_column_of_verdicts_has_its_reasons_open(single: RunRecords) -> None:
    table = show.ledger_table(single)
    assert [column.label for column in table.columns] == ["Claim", "Verdict", "Published"]
    head = next(line[0] for line in table.lines if not isinstance(line, Section))
    assert head.is_open
    assert head.details[0][0] == ""
    assert "averages" in head.details[0][1]


def test_many_variants_have_signs(many: RunRecords) -> None:
    dense = show.ledger_table(many)
    assert dense.is_compact
    assert "Signs: ✓ holds" in dense.notes[0]
    assert {cell.note for cell in rows_of(dense)["Bent is more accurate than Plain."]} == {""}
    few = with_summary(many, claims=[c for c in many.summary.claims if c.data < "set-5"])
    compact = show.ledger_table(few)
    assert compact.is_compact
    assert len(compact.columns) == 7
    assert all(cell.note for cell in rows_of(compact)["Bent is more accurate than Plain."][:5])


def test_an_undecided_claim_says_how_many_trials_it_wants(run: RunRecords) -> None:
    open_ = [
        msgspec.structs.replace(c, verdict="undecided", measured=None, trials_to_decide=1_200)
        for c in run.summary.claims
    ]
    table = show.ledger_table(with_summary(run, claims=open_))
    cell = rows_of(table)["Bent is more accurate than Plain."][0]
    assert (cell.text, cell.note) == ("undecided", "about 1,200 trials")
    assert table.notes[0].startswith("Beside an undecided one: how many trials")
    assert not any("undecided one" in note for note in show.ledger_table(run).notes)


def test_variants_that_the_run_lacks_are_named(run: RunRecords) -> None:
    other = [
        msgspec.structs.replace(c, data="mnist", id=f"{c.id[:-5]}/mnist")
        for c in run.summary.claims
        if c.data == "wine"
    ]
    table = show.ledger_table(with_summary(run, claims=[*run.summary.claims, *other]))
    assert [column.label for column in table.columns][1:3] == ["Iris", "Wine"]
    assert table.notes[-1] == "This run has no numbers for MNIST."


def test_the_terminal_counts_what_was_not_measured(run: RunRecords) -> None:
    text = words(printed(show.claims_table({"a": run})))
    assert "Not measured by this run: 1 more claim." in text
    assert "pretend/bent-beats-plain" in text
    assert "Square is best." not in text


def test_runs_stand_side_by_side(run: RunRecords, single: RunRecords) -> None:
    fails = [
        msgspec.structs.replace(c, verdict="fails", published="0.0339") for c in run.summary.claims
    ]
    text = printed(show.claims_table({"a": run, "b": with_summary(run, claims=fails), "c": single}))
    head = next(line for line in text.splitlines() if "Claim" in line and "Published" in line)
    assert head.split() == ["Claim", "a", "b", "c", "Published"]
    line = next(line for line in text.splitlines() if line.strip().startswith("iris"))
    assert line.index("✓ holds") < line.index("✗ fails") < line.index(MISSING)
    assert "0.0339 (b)" in words(text)  # runs that differ each say their own
    whole = next(line for line in text.splitlines() if "Round is never worse" in line)
    assert whole.count("holds") == 1


# --- Plots and terminals


def test_moments_are_those_of_the_models_that_the_plot_shows(run: RunRecords) -> None:
    plot = Ridges(name="latent", title="", caption="", models=lambda model: model == "bent")
    iris, wine = show.moments_tables(plot, run)
    assert (iris.title, wine.title) == ("Bent, twice, Iris", "Bent, twice, Wine")
    assert [column.label for column in iris.columns][:3] == [
        "Class",
        "Node 4, mean",
        "Node 4, variance",
    ]
    assert [cell.text for cell in rows_of(iris)["1"]] == ["3", "4", "5", "9", "10", "11"]
    assert len(show.moments_tables(replace(plot, models=None), run)) == 6


def test_what_a_run_prints(run: RunRecords, single: RunRecords) -> None:
    tables = {table.title.partition(":")[0]: table for table in show.run_tables("runs/a", run)}
    assert list(tables) == ["Results", "Comparisons", "Outcomes of the trials", "Claims"]
    assert sections_of(tables["Results"]) == ["Iris", "Wine"]
    assert "60 trials: 58 done, 2 non-finite." in tables["Results"].notes
    assert "Outcomes of the trials" not in [table.title for table in show.run_tables("a", single)]


def test_of_very_many_tests_a_terminal_shows_the_significant_ones(run: RunRecords) -> None:
    line = run.summary.comparisons[0]
    dull = msgspec.structs.replace(line, holm_preferred=0.5)
    table = show.run_tables("a", with_summary(run, comparisons=[line, *[dull] * 60]))[1]
    assert sections_of(table) == ["Iris, test accuracy: 1 of 61 differences significant"]
    assert len(rows_of(table)) == 1
    assert table.notes == ("Of 61 tests, the significant ones; all are in comparisons.csv.",)


def test_a_summary_with_nothing_in_it_makes_no_tables(run: RunRecords) -> None:
    bare = replace(with_summary(run, rows=[], claims=[], outcomes=[], comparisons=[]))
    bare = replace(bare, all_trials={})
    assert show.run_tables("a", bare) == []


@pytest.mark.parametrize("study", [STUDY, WITHOUT_VARIANTS], ids=["variants", "single"])
@pytest.mark.parametrize("width", [80, 120])
def test_all_tables_keep_to_the_terminal(tmp_path: Path, study: Study[Any], width: int) -> None:
    for table in show.run_tables("a", make_records(tmp_path / "run", study, trials=2)):
        assert all(len(line) <= width for line in printed(table, width).splitlines())


def test_unknown_models_and_metrics_go_by_their_names(run: RunRecords, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_records(folder)
    edit(folder / "summary.json", lambda r: r["rows"][0].update(model="new", metric="late_gain"))
    records = load_run(folder, replace(STUDY, shown=()))
    assert "new" in rows_of(show.results_tables(records)[0])
    assert sections_of(show.metrics_tables(records)[0])[-1] == "late gain"
