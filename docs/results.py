"""Makes the tables of docs from run folders, for the terminal and for the site.

    python docs/results.py [--show PARTS] [--models NAMES] [--metrics NAMES] RUN...
    python docs/results.py --show figures|draws|means|verdicts RUN...

Prints Markdown. ``PARTS`` are some of :data:`PARTS`, separated by commas, each about one run; or
one of :data:`TOGETHER`, a table with all runs side by side. The site's pages hold the same request
(see ``docs/_ext/runs.py``) and answer it from the records in ``docs/runs``, so that nothing in
those tables is typed by hand. A run is a folder, or the name of one in ``docs/runs``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from mahalens.errors import InputError, RunFolderError
from mahalens.report.records import Row, RunRecords, load_run, split_name
from mahalens.report.run_tables import (
    about,
    all_endings,
    claims_table,
    comparison_tables,
    metrics_tables,
    outcomes_table,
    results_tables,
)
from mahalens.report.tables import SYMBOLS, Cell, Column, Section, Table, duration, number
from mahalens.studies.claims import Both, Every, Judgement, Predicate
from mahalens.studies.folder import upgrade_options
from mahalens.studies.run import POOLED_OPTIONS
from mahalens.studies.study import SOURCES

RUNS = Path(__file__).parent / "runs"
"""The committed records: a folder for each run behind a figure."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--show", default=DEFAULT, help=f"default: {DEFAULT}")
    for what in ("models", "metrics"):
        parser.add_argument(f"--{what}", default="", help=f"the {what} to show, in this order")
    options = parser.parse_args()
    try:
        lines = render(options.runs, options.show, options.models, options.metrics)
    except (InputError, RunFolderError) as error:
        parser.error(str(error))
    sys.stdout.write("\n".join(lines) + "\n")


def render(runs: Sequence[str], show: str = "", models: str = "", metrics: str = "") -> list[str]:
    """Return the lines of Markdown that a page asks for.

    Args:
        runs: folders, or names of folders in :data:`RUNS`, or only "all" for all of these.
        show: parts of a run, or one table of several runs; by default :data:`DEFAULT`.
        models: names of the models to show, separated by commas; by default all.
        metrics: names of the metrics to show, in this order; by default those of the study.
    """
    parts = names_of(show or DEFAULT)
    records = {
        name: narrowed(load(name), names_of(models), names_of(metrics)) for name in runs_of(runs)
    }
    if not records:
        raise InputError("no run is named; give the name of a folder in docs/runs")
    if len(parts) == 1 and parts[0] in TOGETHER:
        return written([replace(TOGETHER[parts[0]](records), title="")])
    for part in parts:
        if part not in PARTS:
            raise InputError(f"{part}: unknown part; give {', '.join((*PARTS, *TOGETHER))}")
    return [line for run in records.values() for part in parts for line in PARTS[part](run)]


def runs_of(names: Sequence[str]) -> Sequence[str]:
    """Return the names of runs; of "all" alone, all in :data:`RUNS`."""
    if list(names) != ["all"]:
        return names
    return sorted(folder.name for folder in RUNS.iterdir() if folder.is_dir())


def names_of(text: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def load(name: str) -> RunRecords:
    """Read the records of a run: of a folder, or of a name in :data:`RUNS`."""
    committed = RUNS / name
    return load_run(committed if committed.is_dir() else Path(name))


def narrowed(records: RunRecords, models: Sequence[str], metrics: Sequence[str]) -> RunRecords:
    """Return the records of some models and metrics; refuse names that the run does not have.

    Claims are left out if they name none of the models.
    """
    there = {row.model for row in records.summary.rows}, {r.metric for r in records.summary.rows}
    for names, known in zip((models, metrics), there, strict=True):
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"{records.folder.name} has no {unknown[0]}; give {', '.join(known)}")
    summary = records.summary
    if models:
        summary = msgspec.structs.replace(
            summary,
            rows=[row for row in summary.rows if row.model in models],
            outcomes=[outcome for outcome in summary.outcomes if outcome.model in models],
            comparisons=[
                c
                for c in summary.comparisons
                if {split_name(name)[0] for name in (c.a, c.b)} <= set(models)
            ],
            claims=[
                claim
                for claim in summary.claims
                if any(own in models for own, _ in claimed_models(records, claim).values())
            ],
        )
        keep = {
            variant: {
                metric: {model: own[model] for model in models if model in own}
                for metric, own in trials.items()
            }
            for variant, trials in records.all_trials.items()
        }
        records = replace(records, all_trials=keep)
    if metrics:
        rows = [row for row in summary.rows if row.metric in metrics]
        summary = msgspec.structs.replace(summary, rows=rows)
        records = replace(records, study=replace(records.study, shown=tuple(metrics)))
    return replace(records, summary=summary)


def figure(run: str, name: str, models: str = "") -> bytes:
    """Return a PNG: a figure of the study's report, or a metric with every trial, by their name."""
    from mahalens.report import plots, style  # with matplotlib, which tables do without
    from mahalens.studies.plots import Dots

    records = load(run)
    plot = next((each for each in records.study.plots if each.name == name), None)
    metrics = [] if plot else [name]
    records = narrowed(records, names_of(models), metrics)
    with style.styled():
        drawn = plots.draw(plot or Dots(title="", metric=name), records)
        if drawn is None:
            raise InputError(f"{run} has no numbers for {name}; give another figure or metric")
        return style.render(drawn)[0]


# --- Parts of one run -------------------------------------------------------------------------


def command(records: RunRecords) -> list[str]:
    """Return how a run was made: command, versions, data and what was scaled."""
    config = records.config
    made_by = (
        f"mahalens {config.mahalens}, torch {config.torch}, threads: {config.threads}, engine: "
        f"{config.engine}, seed {config.seed}. {about(records)} {all_endings(records)} It took "
        f"{took(records)}."
    )
    return ["```sh", *commands(records), "```", "", made_by, ""]


def commands(records: RunRecords) -> list[str]:
    """Return what was typed for a run; of a pooled one, for its parts first."""
    parts = records.config.pooled or []
    return [*(part.command for part in parts), records.config.command]


def took(records: RunRecords) -> str:
    """Return the time that a run took, of a pooled one that of all its parts."""
    return duration(records.summary.facts["seconds"])


def line(records: RunRecords) -> list[str]:
    """Return an item of a list: trials of a model, time and command of a run."""
    trials = max((row.n for row in records.summary.rows), default=0)
    others = ", pooled with other seeds" if records.config.pooled else ""
    how = f"`{commands(records)[0]}`{others}"
    return [f"- **{records.folder.name}**, {trials} trials, {took(records)}: {how}"]


def in_markdown(make: Callable[[RunRecords], Sequence[Table]]) -> Callable[[RunRecords], list[str]]:
    """Return a part that writes the tables of a run."""
    return lambda records: written(make(records))


def written(tables: Sequence[Table]) -> list[str]:
    """Return tables in Markdown with their titles, and each note once."""
    lines: list[str] = []
    before: tuple[str, ...] = ()
    for table in filter(None, tables):
        if table.notes and table.notes != before:
            lines += [" ".join(table.notes), ""]
        before = table.notes
        lines += [*([f"**{table.title}**", ""] if table.title else []), table.markdown(), ""]
    return lines


def claims(records: RunRecords) -> list[Table]:
    """Return the claims that a run measured: by variant, or with the numbers behind a verdict."""
    if any(claim.data for claim in records.summary.claims):
        return [replace(without_ids(claims_table({"": records})), title="", notes=())]
    judged = [claim for claim in records.summary.claims if claim.verdict != "not measured"]
    has_published = any(claim.published for claim in judged)
    heads = ("Claim", "Verdict", *["Published"] * has_published, "Why")
    lines = tuple(
        (
            Cell(claim.statement),
            Cell(claim.verdict, verdict=True),
            *[Cell(claim.published or "–")] * has_published,
            Cell(claim.why),
        )
        for claim in judged
    )
    return [Table("", tuple(Column(head, True) for head in heads), lines)]


def without_ids(table: Table) -> Table:
    """Return a table of claims without their ids, which stand below the statements."""
    lines = tuple(
        line if isinstance(line, Section) else (replace(line[0], below=""), *line[1:])
        for line in table.lines
    )
    return replace(table, lines=lines)


def outcomes(records: RunRecords) -> list[Table]:
    """Return how trials ended, where there is more to say than that they are done."""
    return [outcomes_table(variant, only_odd=True) for variant in records.variants()]


def by_variant(records: RunRecords) -> list[Table]:
    """Return results with a line per variant: a table per metric, or one of a single model."""
    tables = results_tables(records)
    models = [records.study.look(model).label for model in records.models()]
    metrics = tables[0].columns[1:]
    head = Column(records.study.variant.capitalize(), True)
    if len(models) == 1:
        lines = tuple((Cell(table.title), *cells_of(table, models[0])) for table in tables)
        return [replace(tables[0], title=models[0], columns=(head, *metrics), lines=lines)]
    return [
        replace(
            tables[0],
            title=metric.label,
            columns=(head, *map(Column, models)),
            lines=tuple(
                (Cell(table.title), *(cells_of(table, model)[place] for model in models))
                for table in tables
            ),
        )
        for place, metric in enumerate(metrics)
    ]


def cells_of(table: Table, model: str) -> tuple[Cell, ...]:
    """Return the cells of a model's line in a table of results; empty ones if it has none."""
    lines = (line for line in table.lines if not isinstance(line, Section))
    found = (line[1:] for line in lines if line[0].text == model)
    return next(found, (Cell(),) * (len(table.columns) - 1))


PARTS: dict[str, Callable[[RunRecords], list[str]]] = {
    "command": command,
    "results": in_markdown(results_tables),
    "by-variant": in_markdown(by_variant),
    "metrics": in_markdown(metrics_tables),
    "tests": in_markdown(comparison_tables),
    "outcomes": in_markdown(outcomes),
    "claims": in_markdown(claims),
    "line": line,
}
"""What can be shown of a run: each a function of its records."""
DEFAULT = "command,results,claims"


# --- Several runs side by side ----------------------------------------------------------------


def side_by_side(runs: dict[str, RunRecords]) -> Table:
    """Return the verdict on each claim in each run."""
    table = without_ids(claims_table(runs))
    lines = tuple(
        line if isinstance(line, Section) else line[: len(runs) + 1] for line in table.lines
    )
    return replace(table, columns=table.columns[: len(runs) + 1], lines=lines, notes=())


def verdicts(runs: dict[str, RunRecords]) -> Table:
    """Return how many claims of each run hold, fail, are undecided or were not measured."""
    heads = [Column("Run", True), *(Column(verdict) for verdict in SYMBOLS)]
    lines = []
    for name, records in runs.items():
        counts = Counter(claim.verdict for claim in records.summary.claims)
        lines.append((Cell(name), *(Cell(str(counts[verdict])) for verdict in SYMBOLS)))
    return Table("", tuple(heads), tuple(lines))


def means(runs: dict[str, RunRecords]) -> Table:
    """Return the results of each model with a column per run and variant, metric by metric."""
    first = next(iter(runs.values()))
    models = [first.study.look(name).label for name in first.models()]
    lines: list[Section | tuple[Cell, ...]] = []
    columns: dict[str, Table] = {}
    for metric in (shown := [name for name in first.study.shown if name in first.metrics()]):
        for name, records in runs.items():
            for table in (own := results_tables(narrowed(records, (), (metric,)))):
                variant = table.title if len(own) > 1 or len(runs) == 1 else ""
                columns[", ".join(filter(None, (name if len(runs) > 1 else "", variant)))] = table
        head = next(iter(columns.values())).columns[1].label
        lines += [Section(head)] * (len(shown) > 1)
        lines += [
            (Cell(model), *(cells_of(table, model)[0] for table in columns.values()))
            for model in models
        ]
    if len(shown) != 1:
        head = first.study.thing.capitalize()
    heads = (Column(head, True), *map(Column, columns))
    return Table("", heads, tuple(lines), results_tables(first)[0].notes)


def verdict_counts(runs: Sequence[str], source: str = "") -> str:
    """Return the verdicts of some runs in words: "5 hold, 2 fail, 1 undecided".

    A claim that several runs with the same settings judge counts once, by the one with the most
    trials. A run that lacks some of its models and leaves it undecided counts only if no other run
    judges it better. With a key of :data:`~mahalens.studies.study.SOURCES`, only claims of that
    source count.
    """
    if source and source not in SOURCES:
        raise InputError(f"{source}: unknown source; give {', '.join(SOURCES)}")
    verdicts: dict[tuple[str, ...], str] = {}
    complete: set[tuple[str, ...]] = set()
    for records in sorted(map(load, runs), key=lambda run: run.config.options.get("trials", 0)):
        settings = json.dumps(
            {
                name: value
                for name, value in records.config.options.items()
                if not records.study.pools or name not in POOLED_OPTIONS
            },
            sort_keys=True,
        )
        for claim in records.summary.claims:
            if claim.verdict == "not measured" or (source and claim.source != SOURCES[source]):
                continue
            key = (records.config.study, settings, claim.id)
            if claim.verdict == "undecided" and missing_models(records, claim):
                if key in complete:
                    continue
            else:
                complete.add(key)
            verdicts[key] = claim.verdict
    counts = Counter(verdicts.values())
    words = {"holds": ("holds", "hold"), "fails": ("fails", "fail")}
    parts = [
        f"{counts[verdict]} {words.get(verdict, (verdict, verdict))[counts[verdict] != 1]}"
        for verdict in ("holds", "fails", "undecided")
        if counts[verdict]
    ]
    return ", ".join(parts) or "none measured"


def missing_models(records: RunRecords, judgement: Judgement) -> list[str]:
    """Return the models that a claim compares and that have no numbers in a run."""
    there = {
        (model, place)
        for place, metrics in records.all_trials.items()
        for models in metrics.values()
        for model in models
    }
    there |= {(model, "") for model, _ in there}  # a claim on a whole run may name no variant
    return [name for name, at in claimed_models(records, judgement).items() if at not in there]


def claimed_models(records: RunRecords, judgement: Judgement) -> dict[str, tuple[str, str]]:
    """Return model and variant of each name that a claim compares."""
    study, variant = records.study, judgement.data
    listed = study.claims
    if callable(listed):
        options = upgrade_options(records.config.options)
        listed = listed(msgspec.convert(options, study.config))
    places = {}
    for claim in listed:
        if "/".join(filter(None, (study.name, claim.key, variant))) == judgement.id:
            for name in models_of(claim.predicate):
                model, place = (name, variant) if variant else split_name(name)
                if model in study.models or (study.model and study.model(model)):
                    places[name] = (model, place)  # others are made of several models
    return places


def models_of(predicate: Predicate) -> list[str]:
    """Return the names of the models that a predicate compares."""
    if isinstance(predicate, Every):
        return [name for part in predicate.parts for name in models_of(part)]
    if isinstance(predicate, Both):
        return [*models_of(predicate.first), *models_of(predicate.second)]
    fields = ("model", "base", "than", "than_base")
    return [getattr(predicate, field) for field in fields if hasattr(predicate, field)]


def figures(runs: dict[str, RunRecords]) -> Table:
    """Return one line per published figure: ours, theirs, and what explains the difference."""
    first = next(iter(runs.values()))
    columns = [Column("", True), Column("Model", True)]
    for records in runs.values():
        columns += [Column(f"{records.config.options['dim']}-D here"), Column("Published")]
        columns.append(Column("Differs by", True))
    lines = []
    for metric, shown in first.study.metrics.items():
        for model in first.models():
            rows = [(records, records.row(model, metric)) for records in runs.values()]
            if any(row is not None and row.published is not None for _, row in rows):
                head = (Cell(shown.label), Cell(first.study.look(model).label))
                lines.append((*head, *(cell for pair in rows for cell in beside(*pair))))
    for model in (name for name in ("abs", "relu") if name in first.models()):
        cells = [cell for records in runs.values() for cell in (basins(records, model), "–", "")]
        head = (Cell("Trials lie at"), Cell(first.study.look(model).label))
        lines.append((*head, *map(Cell, cells)))
    return Table("", tuple(columns), tuple(lines))


def beside(records: RunRecords, row: Row | None) -> Iterator[Cell]:
    """Yield our mean, the published one, and letters for what may explain the difference.

    No letter if the published mean lies in our 95 % interval. D: the draw of the Gaussian is
    another, which is always so. Measured in our run: L, trials at a local minimum; N, trials that
    have not arrived although the converging solver leads from them to the perfect fit.
    """
    if row is None or row.mean is None or row.published is None:
        yield from map(Cell, (mean_of(row), "–", "–"))
        return
    low, high = row.interval or (row.mean, row.mean)
    outcome = records.outcome(row.model)
    ends = outcome.basins if outcome is not None else {}
    letters = "D" + "L" * ("local minimum" in ends)
    losses = records.values(row.model, "train_mse").values()
    variance = records.summary.facts["target_variance"]
    if sum(loss < 1e-3 * variance for loss in losses) < ends.get("zero residual", 0):
        letters += "N"
    inside = low <= row.published <= high
    yield from map(Cell, (mean_of(row), number(row.published), "–" if inside else letters))


def draws(runs: dict[str, RunRecords]) -> Table:
    """Return how MD_Abs fares on each draw, ordered by condition number."""
    heads = ("Seed", "Condition number of Σ", "Training MSE, mean", "Min to max", "Sphericity norm")
    lines = []
    for records in sorted(runs.values(), key=condition):
        loss, shape = records.row("abs", "train_mse"), records.row("abs", "sphericity")
        ends = "–" if loss is None else f"{number(loss.min)} to {number(loss.max)}"
        head = (number(records.config.seed), number(condition(records)))
        cells = (*head, mean_of(loss), ends, mean_of(shape), basins(records, "abs"))
        lines.append(tuple(map(Cell, cells)))
    return Table("", (*map(Column, heads), Column("Trials lie at", True)), tuple(lines))


def condition(records: RunRecords) -> float:
    """Return the condition number of a run's draw of Σ."""
    return float(records.summary.facts["condition_number"])


def basins(records: RunRecords, model: str) -> str:
    """Return where the trials of a model lie."""
    outcome = records.outcome(model)
    ends = sorted(outcome.basins.items()) if outcome is not None else []
    return ", ".join(f"{count} {basin}" for basin, count in ends)


def mean_of(row: Row | None) -> str:
    """Return a mean with the half-width of its interval."""
    if row is None or row.interval is None:
        return number(None if row is None else row.mean)
    return f"{number(row.mean)} ± {number((row.interval[1] - row.interval[0]) / 2, 2)}"


TOGETHER: dict[str, Callable[[dict[str, RunRecords]], Table]] = {
    "figures": figures,
    "draws": draws,
    "means": means,
    "verdicts": verdicts,
    "side-by-side": side_by_side,
}
"""Tables with several runs: each a function of all their records."""


if __name__ == "__main__":
    main()
