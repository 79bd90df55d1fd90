"""The tables of a run, from its records alone: one form for all studies.

=============================  ================================================================
:func:`answer`                 the answer of a run in a few sentences
:func:`results_tables`         the metrics that a study shows first, one table per variant
:func:`metrics_tables`         every metric with spread, interval, extremes and published value
:func:`outcomes_table`         how the trials of each model ended
:func:`comparison_tables`      tests between models, one table per family
:func:`ledger_table`           claims and verdicts of one run, by variant
:func:`claims_table`           the same, or several runs side by side
:func:`moments_tables`         the numbers behind a :class:`~mahalens.studies.plots.Ridges` plot
:func:`run_tables`             what ``mahalens run`` prints at its end
=============================  ================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from mahalens.report.records import Comparison, Outcome, Row, RunRecords, in_order, split_name
from mahalens.report.tables import (
    MISSING,
    Cell,
    Column,
    Line,
    Section,
    Table,
    anything,
    duration,
    in_sentence,
    interval,
    is_number,
    mean_and_half,
    number,
    p_value,
    published_value,
    signed,
    stack,
)
from mahalens.studies.claims import Judgement
from mahalens.studies.plots import Ridges
from mahalens.studies.study import Metric, variant_name

_WIDE = 7  # columns of numbers that fit beside each other
_WORDS = 3  # columns of verdicts in words that do
_FEW = 3  # variants, or models with the same mean, that a sentence can name
_MOST_TESTS = 60  # with more, a terminal shows the significant ones


# --- Words for what tables show ---------------------------------------------------------------


def label_of(metric: Metric) -> str:
    """Return the label of a metric, with its unit unless the label says it.

    >>> label_of(Metric("Test accuracy", "", "%")), label_of(Metric("Epochs", "", "epochs"))
    ('Test accuracy (%)', 'Epochs')
    """
    has_unit = metric.unit.lower() in metric.label.lower()
    return metric.label if has_unit else f"{metric.label} ({metric.unit})"


def phrase_of(records: RunRecords) -> str:
    """Return the variant as the end of a phrase: ", MNIST", ", raw pixels", or nothing."""
    by_pixels = records.study.variant == "pixels"
    title = in_sentence(records.title) if by_pixels else records.title
    return f", {title}" if title else ""


def about(records: RunRecords, *, brief: bool = False) -> str:
    """Return the data of a run, what was scaled down and what to mind, in a few sentences.

    ``brief`` leaves out what the head of a page has said.
    """
    data = data_line(records)
    sentences = [f"Data: {data}."] if data else []
    scaled = records.config.scaled or records.summary.scaled
    if records.summary.protocol == "published":
        sentences.append(f"{records.study.protocol.capitalize()} protocol, nothing scaled down.")
    elif brief:
        sentences.append("Scaled run: the head of this page says what was changed.")
    else:
        sentences.append(f"Scaled: {'; '.join(scaled) or 'not recorded'}.")
    if not brief:
        sentences += [f"Mind: {caution}." for caution in records.summary.cautions]
    return " ".join(sentences)


def data_line(records: RunRecords) -> str:
    """Return the data sets of a run with their sizes; of many, their names."""
    facts = records.summary.facts
    data = facts.get("data")
    if not isinstance(data, dict):
        return f"{data}{_sizes(facts)}" if data else ""
    title = records.study.variant_title if records.study.variant == "data" else str
    few = len(data) <= 3
    return ", ".join(
        f"{title(name)}{_sizes(fact) if few and isinstance(fact, dict) else ''}"
        for name, fact in data.items()
    )


def _sizes(facts: Mapping[str, object]) -> str:
    counts = [
        f"{anything(facts[f'{kind}_samples'])} {kind}"
        for kind in ("training", "test")
        if is_number(facts.get(f"{kind}_samples"))
    ]
    return f" ({', '.join(counts)} samples)" if counts else ""


def headline(verdicts: Iterable[str], run: str = "this run") -> str:
    """Return how many claims hold in one sentence, from the verdicts of the claims.

    >>> headline(["holds", "fails", "holds", "not measured"])
    '2 of 4 claims hold in this run, 1 fails and 1 was not measured.'
    >>> headline(["holds", "holds"])
    'Both claims hold in this run.'
    """
    verdicts = list(verdicts)
    total = len(verdicts)
    if not verdicts:
        return "This run checks no claims."
    if set(verdicts) == {"not measured"}:
        return f"None of the claims ({total}) was measured in {run}."
    verbs = {
        "holds": ("holds", "hold"),
        "fails": ("fails", "fail"),
        "undecided": ("is undecided", "are undecided"),
        "not measured": ("was not measured", "were not measured"),
    }
    if len(set(verdicts)) == 1:
        every = {1: "The one claim", 2: "Both claims"}.get(total, f"All {total} claims")
        return f"{every} {verbs[verdicts[0]][total > 1]} in {run}."
    counts = [(verdicts.count(verdict), forms) for verdict, forms in verbs.items()]
    (count, verb), *others = [(n, forms[n > 1]) for n, forms in counts if n]
    parts = [f"{count} of {total} claims {verb} in {run}"]
    parts += [f"{n} {word}" for n, word in others]
    return f"{', '.join(parts[:-1])} and {parts[-1]}."


def answer(records: RunRecords) -> list[str]:
    """Return the answer of a run in a few sentences, the user's own data first, verdicts last.

    They name the model with the best mean of the primary metric on each variant, or give the
    study's advice, and say how many differences are significant and how many claims hold.
    """
    own = set(map(variant_name, own_data(records)))
    variants = sorted(records.variants(), key=lambda variant: variant.variant not in own)
    sentences = advice(records)
    if len(variants) <= _FEW:
        sentences += [_leaders(variant) for variant in variants] if not sentences else []
    else:
        sentences.append(_leaders_by_variant(records, variants))
    is_scaled = records.summary.protocol != "published"
    run = "this scaled run" if is_scaled else "this run"
    sentences.append(headline((claim.verdict for claim in records.summary.claims), run))
    return [sentence for sentence in sentences if sentence]


def advice(records: RunRecords) -> list[str]:
    """Return the study's sentences for the user's own data, if it has any."""
    return list(records.study.advice(records.summary.rows)) if records.study.advice else []


def own_data(records: RunRecords) -> list[str]:
    """Return the files and folders of the user that a run read, as they were given."""
    data = records.config.options.get("data") or ()
    names = (data,) if isinstance(data, str) else data
    return [str(name) for name in names if PurePath(str(name)).suffix or "/" in str(name)]


def _best_models(records: RunRecords) -> tuple[list[str], int]:
    """Return the models with the best mean of the primary metric, and how many were compared.

    Models that were computed and not measured, such as a ground truth, are left out.
    """
    name = records.primary()
    rows = {model: records.row(model, name) for model in records.models()}
    means = {
        model: row.mean
        for model, row in rows.items()
        if row is not None and row.mean is not None and not _is_computed(records.outcome(model))
    }
    best = _best(records.metric(name), [rows[model] for model in means])
    return [model for model, mean in means.items() if mean == best], len(means)


def _is_computed(outcome: Outcome | None) -> bool:
    return outcome is not None and set(outcome.statuses) == {"analytic"}


def _leaders(records: RunRecords) -> str:
    """Return which models are best on a variant, and whether the tests tell models apart."""
    models, compared = _best_models(records)
    row = records.row(models[0], records.primary()) if models else None
    if row is None:
        return ""
    metric = records.metric(records.primary())
    labels = [records.study.look(model).label for model in models]
    who = f"{labels[0]} has"
    if len(labels) > _FEW:
        who = f"{len(labels)} of {compared} {records.study.thing}s share"
    elif len(labels) > 1:
        who = f"{', '.join(labels[:-1])} and {labels[-1]} share"
    end = "highest" if metric.better == "high" else "lowest"
    value = " ± ".join(filter(None, mean_and_half(row.mean, row.ci95, metric.unit == "%")))
    unit = f"\N{NO-BREAK SPACE}{metric.unit}" if label_of(metric) != metric.label else ""
    trials = f"mean of {number(row.n)} trials" if row.n > 1 else "one trial"
    where = f"On {phrase_of(records)[2:]}, " if records.title else ""
    first = f"{where}{who} the {end} {in_sentence(metric.label)}: {value}{unit} ({trials})."
    tests = [t for t in records.summary.comparisons if t.metric in ("", records.primary())]
    clear = sum(test.is_significant for test in tests)
    if not tests:
        return first
    rest = f"{clear or 'None'} of {len(tests)} tested differences {'is' if clear < 2 else 'are'}"
    return f"{first} {rest} significant."


def _leaders_by_variant(records: RunRecords, variants: Sequence[RunRecords]) -> str:
    """Return which models are best on most of many variants."""
    leaders = Counter(model for variant in variants for model in _best_models(variant)[0][:1])
    parts = [f"{records.study.look(model).label} on {n}" for model, n in leaders.most_common(_FEW)]
    metric = in_sentence(records.metric(records.primary()).label)
    kind = {"data": "data sets", "network": "networks"}.get(records.study.variant, "variants")
    return f"Best {metric} on {len(variants)} {kind}: {', '.join(parts)}." if parts else ""


# --- Results ----------------------------------------------------------------------------------


def results_tables(records: RunRecords) -> list[Table]:
    """Return one table per variant: a line per model and a column per metric of ``study.shown``.

    Cells have the mean over the trials, the half-width of its 95 % interval and the published
    mean. With more metrics than fit beside each other, and fewer models, lines and columns are
    exchanged.
    """
    metrics = records.metrics()
    metrics = [name for name in records.study.shown if name in metrics] or metrics
    models = records.models()
    exchange = len(metrics) > max(_WIDE, len(models))
    return [_results(variant, metrics, models, exchange) for variant in records.variants()]


def _results(
    records: RunRecords, metrics: Sequence[str], models: Sequence[str], exchange: bool
) -> Table:
    rows = {(m, name): records.row(m, name) for m in models for name in metrics}
    rivals = [model for model in models if not _is_computed(records.outcome(model))]
    best = {name: _best(records.metric(name), [rows[m, name] for m in rivals]) for name in metrics}
    cells = {
        key: _mean(row, records.metric(key[1]), best[key[1]], records.outcome(key[0]))
        for key, row in rows.items()
    }
    heads = {name: _heading(records.metric(name)) for name in metrics}
    if exchange:
        columns = [Column("Metric", True)] + [Column(records.study.look(m).label) for m in models]
        lines = [(Cell(heads[n]), *(cells[m, n] for m in models)) for n in metrics]
    else:
        columns = [Column(records.study.thing.capitalize(), True)]
        columns += [Column(heads[name]) for name in metrics]
        there = [m for m in models if any(rows[m, name] is not None for name in metrics)]
        lines = [(model_cell(records, m), *(cells[m, n] for n in metrics)) for m in there]
    known = any(row is not None and row.published is not None for row in rows.values())
    notes = ["Mean over the trials ± half-width of its 95 % interval."]
    notes += ["In brackets: the published mean."] if known else []
    if any(value is not None for value in best.values()):
        notes.append("Bold: the best mean of a metric (↑ higher is better, ↓ lower is).")
    return Table(records.title, tuple(columns), tuple(lines) if metrics else (), tuple(notes))


def model_cell(records: RunRecords, model: str) -> Cell:
    """Return the head of a model's line: its label and colour."""
    look = records.study.look(model)
    return Cell(look.label, colour=look.colour)


def _heading(metric: Metric) -> str:
    arrow = {"high": "\N{NO-BREAK SPACE}↑", "low": "\N{NO-BREAK SPACE}↓"}.get(
        metric.better or "", ""
    )
    return f"{label_of(metric)}{arrow}"


def _best(metric: Metric, rows: Sequence[Row | None]) -> float | None:
    """Return the best mean of a metric; none if neither end is good, or if most models share it."""
    means = [row.mean for row in rows if row is not None and row.mean is not None]
    if metric.better is None or len(means) < 2:
        return None
    best = max(means) if metric.better == "high" else min(means)
    return best if 2 * means.count(best) <= len(means) else None


def _mean(row: Row | None, metric: Metric, best: float | None, outcome: Outcome | None) -> Cell:
    if row is None or row.is_empty:
        return Cell()
    percent = metric.unit == "%"
    mean, half = mean_and_half(row.mean, row.ci95, percent)
    published = f"({published_value(row.published, percent)})"
    notes = [f"± {half}" if half else "", published if row.published is not None else ""]
    lost = outcome is not None and row.mean is not None and row.n < outcome.trials
    return Cell(
        mean,
        note=" ".join(filter(None, notes)),
        below=f"{number(row.n)} trial{'s' * (row.n != 1)}" if lost else "",
        bold=row.mean is not None and row.mean == best,
    )


def metrics_tables(records: RunRecords) -> list[Table]:
    """Return one table per variant of every metric: mean, published value, spread and extremes."""
    return [_metrics(variant) for variant in records.variants()]


def _metrics(records: RunRecords) -> Table:
    lines: list[Line] = []
    for name in in_order((row.metric for row in records.summary.rows), records.study.metrics):
        metric = records.metric(name)
        direction = {"low": "Lower is better.", "high": "Higher is better."}
        note = f"{metric.explanation} {direction.get(metric.better or '', '')}".strip()
        rows = [(model, records.row(model, name)) for model in records.models()]
        there = [(model, row) for model, row in rows if row is not None and not row.is_empty]
        lines.append(Section(label_of(metric), note if there else f"{note} No value in this run."))
        lines += [_metric_line(records, model, row) for model, row in there]
    primary = records.metric(records.primary())
    end = "highest" if primary.better == "high" else "lowest"
    heads = ("Mean", "Published", "SD", "95 % interval", "Min", "Max", "Best", "n")
    return Table(
        records.title,
        (Column(records.study.thing.capitalize(), True), *map(Column, heads)),
        tuple(lines),
        (
            "Over the n trials that have a value. “Published” is the source’s mean, with the other "
            "figures it gives; the interval is that of the mean; “Best” is the value of the trial "
            f"with the {end} {in_sentence(primary.label)}.",
        ),
    )


def _metric_line(records: RunRecords, model: str, row: Row) -> tuple[Cell, ...]:
    detail = row.published_detail or {}
    text = ", ".join(f"{name} {number(v)}" for name, v in detail.items() if is_number(v))
    mean = Cell("no value") if row.mean is None else Cell(number(row.mean), bold=True)
    spread = (row.std, row.min, row.max, row.best, row.n)
    sd, *rest = (Cell(number(value)) for value in spread)
    published = Cell(published_value(row.published), below=text)
    return (model_cell(records, model), mean, published, sd, Cell(interval(row.ci95)), *rest)


# --- Outcomes ---------------------------------------------------------------------------------


def outcomes_table(records: RunRecords, *, only_odd: bool = False) -> Table:
    """Return how the trials of each model ended; ``only_odd``: where not all are just done."""
    primary = records.primary()
    lines: list[Line] = []
    for model in records.models():
        outcome = records.outcome(model)
        if outcome is None or (only_odd and not is_odd(outcome)):
            continue
        row = records.row(model, primary)
        lost = outcome.non_finite
        trials = f"trial{'' if len(lost) == 1 else 's'} {', '.join(map(str, lost))}"
        line = (
            model_cell(records, model),
            Cell(number(outcome.trials)),
            Cell(endings_of(outcome), below=f"not finite: {trials}" if lost else ""),
            Cell(number(outcome.best_trial)),
            Cell(number(None if row is None else row.best)),
            Cell(duration(outcome.seconds)),
        )
        lines.append(line)
    columns = (
        Column(records.study.thing.capitalize(), True),
        Column("Trials"),
        Column("How they ended", True),
        Column("Best trial"),
        Column(f"Its {in_sentence(records.metric(primary).label)}", on_page=True),
        Column("Time"),
    )
    return Table(records.title, columns, tuple(lines))


def is_odd(outcome: Outcome) -> bool:
    """Return whether there is more to say of some trials than that they are done."""
    return endings_of(outcome) not in ("1 analytic", f"{number(outcome.trials)} done")


def endings_of(outcome: Outcome) -> str:
    """Return how many trials ended in which way.

    Where trials were trained for a fixed time, also where they would have gone:

    >>> endings_of(Outcome("abs", 2, {"done": 2}, {"zero residual": 2}))
    '2 done; converged from there: 2 zero residual'
    """
    ends = _counted(outcome.statuses)
    if outcome.basins and outcome.basins != outcome.statuses and "done" in outcome.statuses:
        ends += f"; converged from there: {_counted(outcome.basins)}"
    return ends or MISSING


def all_endings(records: RunRecords) -> str:
    """Return how the trials of all models ended, in one sentence."""
    totals: Counter[str] = Counter()
    for outcome in records.summary.outcomes:
        totals.update(outcome.statuses)
    if set(totals) == {"done"}:
        return f"All {number(totals.total())} trials ran to their end."
    return f"{number(totals.total())} trials: {_counted(totals)}."


def _counted(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{number(amount)} {name}" for name, amount in amounts.items())


# --- Comparisons ------------------------------------------------------------------------------


def comparison_tables(records: RunRecords, *, only_significant: bool = False) -> list[Table]:
    """Return the tests between models, one table per family: a metric on a variant."""
    families: dict[tuple[str, str], list[Comparison]] = {}
    for line in records.summary.comparisons:
        families.setdefault((line.family, line.metric), []).append(line)
    columns = (
        Column("Pair", True),
        Column("Difference"),
        Column("Paired t (df)", on_page=True),
        Column("p", on_page=True),
        Column("Holm p", on_page=True),
        Column("Welch p", on_page=True),
        Column("Wilcoxon p", on_page=True),
        Column("Cohen’s d"),
        Column("Preferred test", True),
        Column("Its Holm p"),
    )
    tables = []
    for family, lines in families.items():
        clear = [line for line in lines if line.is_significant]
        title = f"{_family(records, *family)}: {len(clear)} of {len(lines)} differences significant"
        shown = clear if only_significant else lines
        tables.append(Table(title, columns, tuple(_comparison(records, line) for line in shown)))
    return tables


def _family(records: RunRecords, family: str, metric: str) -> str:
    title = records.study.variant_title(family) if family else "This run"
    if family == "across":
        title = "Between kinds of pixels" if records.study.variant == "pixels" else "Between data"
    return f"{title}, {in_sentence(records.metric(metric).label)}" if metric else title


def _comparison(records: RunRecords, line: Comparison) -> tuple[Cell, ...]:
    t = f"{number(line.paired_t)} ({number(line.paired_df)})" if line.paired_df else MISSING
    p_values = (line.paired_p, line.holm_paired, line.welch_p, line.wilcoxon_p)
    clear = line.is_significant
    return (
        Cell(pair_label(records, line.a, line.b)),
        _estimate(
            line.mean_difference, line.difference_ci95_low, line.difference_ci95_high, bold=clear
        ),
        Cell(t),
        *(Cell(p_value(p)) for p in p_values),
        _estimate(line.cohens_d, line.cohens_d_ci95_low, line.cohens_d_ci95_high),
        Cell(line.preferred_test or MISSING),
        Cell(p_value(line.holm_preferred), bold=clear),
    )


def _estimate(
    value: float | None, low: float | None, high: float | None, bold: bool = False
) -> Cell:
    """Return an estimate with its interval; what only rounding keeps from 0 is 0.

    >>> _estimate(-2.8e-15, -0.6, 0.6).text
    '0'
    """
    ends = interval([low, high])
    if value and low is not None and high is not None and abs(value) < 1e-9 * (high - low):
        value = 0.0
    return Cell(signed(value), below="" if ends == MISSING else ends, bold=bold)


def pair_label(records: RunRecords, a: str, b: str) -> str:
    """Return what is subtracted from what; of a model against itself, its name and variants."""
    (first, here), (second, there) = (split_name(name) for name in (a, b))
    labels = [records.study.look(model).label for model in (first, second)]
    if first == second:
        variants = [records.study.variant_title(variant) for variant in (here, there)]
        return f"{labels[0]}: {' − '.join(map(in_sentence, variants))}"
    if ", " in labels[0]:  # "ReLU, bias": or the minus would seem to belong to "bias"
        labels[0] = f"({labels[0]})"
    return f"{labels[0]} − {labels[1]}"


# --- Claims -----------------------------------------------------------------------------------


Statement = dict[str, Judgement]
"""A claim as it was put to several variants of a run ("" for the whole run)."""


def statements_of(records: RunRecords) -> dict[str, Statement]:
    """Return the claims of a run by key, those of one source after another."""
    statements: dict[str, Statement] = {}
    sources = list(dict.fromkeys(claim.source for claim in records.summary.claims))
    for claim in sorted(records.summary.claims, key=lambda claim: sources.index(claim.source)):
        key = claim.id.removesuffix(f"/{claim.data}")
        statements.setdefault(key, {})[claim.data] = claim
    return statements


def _is_measured(statement: Statement) -> bool:
    return any(judgement.verdict != "not measured" for judgement in statement.values())


def _first(statement: Statement) -> Judgement:
    return next(iter(statement.values()))


def claims_table(runs: Mapping[str, RunRecords]) -> Table:
    """Return claims and verdicts, by source: of one run by variant, of several runs side by side.

    Statements that no run measured are counted in a note, see :func:`unmeasured`.
    """
    if len(runs) == 1:
        records = next(iter(runs.values()))
        table = ledger_table(records)
        count = len(unmeasured(records))
        rest = [f"Not measured by this run: {count} more claim{'s' if count > 1 else ''}."]
        return replace(
            table, notes=(*reservations(records), *table.notes, *(rest if count else []))
        )
    every = {name: statements_of(records) for name, records in runs.items()}
    lines: list[Line] = []
    source = ""
    for key in dict.fromkeys(key for statements in every.values() for key in statements):
        known = {name: statements.get(key, {}) for name, statements in every.items()}
        first = next(_first(statement) for statement in known.values() if statement)
        if first.source != source:
            source = first.source
            lines.append(_source(first))
        variants = dict.fromkeys(variant for statement in known.values() for variant in statement)
        whole = Cell(first.statement, below=key)
        if "" not in variants:
            lines.append((whole, *[Cell("")] * (len(known) + 1)))
        for variant in variants:
            head = Cell(f"  {variant}") if variant else whole
            lines.append((head, *_side_by_side(known, variant)))
    columns = [Column("Claim", True), *(Column(name, True) for name in runs)]
    notes = (f"{name}: {about(records)}" for name, records in runs.items())
    return Table("Claims", (*columns, Column("Published", True)), tuple(lines), tuple(notes))


def _side_by_side(known: Mapping[str, Statement], variant: str) -> list[Cell]:
    """Return the verdict of each run, and the published figure: each run's own if they differ."""
    judgements = {name: statement.get(variant) for name, statement in known.items()}
    figures: dict[str, list[str]] = {}
    for name, judgement in judgements.items():
        if judgement is not None:
            figures.setdefault(judgement.published or MISSING, []).append(name)
    published = [f"{figure} ({', '.join(names)})" for figure, names in figures.items()]
    texts = published if len(figures) > 1 else list(figures)
    return [*map(_verdict, judgements.values()), Cell("; ".join(texts))]


def ledger_table(records: RunRecords) -> Table:
    """Return the claims that a run measured, with a column of verdicts for each variant.

    With many variants a verdict is a sign, with more of them one without its number.
    """
    shown = {key: s for key, s in statements_of(records).items() if _is_measured(s)}
    judgements = [judgement for statement in shown.values() for judgement in statement.values()]
    there = [variant.variant for variant in records.variants() if variant.variant]
    variants = [v for v in there if any(v in s for s in shown.values())]
    is_compact = len(variants) > _WORDS
    is_dense = len(variants) > _WIDE
    has_published = any(judgement.published for judgement in judgements)
    lines: list[Line] = []
    if len(variants) > 1:
        totals = [_total(shown.values(), variant) for variant in variants]
        lines.append((Cell("Claims that hold"), *totals, *[Cell("")] * has_published))
    source = None
    for key, statement in shown.items():
        first = _first(statement)
        if first.source != source:
            source = first.source
            lines.append(_source(first))
        lines.append(_statement(records, key, statement, variants, is_dense, has_published))
    titles = [records.study.variant_title(variant) for variant in variants]
    columns = [Column("Claim", True)]
    columns += [Column(title, True) for title in titles] or [Column("Verdict", True)]
    columns += [Column("Published", True)] * has_published
    notes = [about(records)]
    if not is_dense and any(judgement.trials_to_decide for judgement in judgements):
        notes.insert(0, "Beside an undecided one: how many trials like these would decide it.")
    if not is_dense and any(judgement.measured is not None for judgement in judgements):
        notes.insert(0, "Beside a verdict: the number it rests on.")
    if is_compact:
        notes.insert(0, "Signs: ✓ holds, ✗ fails, ? undecided, – not measured.")
    asked = dict.fromkeys(variant for statement in shown.values() for variant in statement)
    if absent := [records.study.variant_title(v) for v in asked if v and v not in there]:
        notes.append(f"This run has no numbers for {', '.join(map(in_sentence, absent))}.")
    return Table("Claims", tuple(columns), tuple(lines), tuple(notes), is_compact)


def _source(claim: Judgement) -> Section:
    return Section(claim.source[:1].upper() + claim.source[1:])


def _statement(
    records: RunRecords,
    key: str,
    judgements: Statement,
    variants: Sequence[str],
    is_dense: bool,
    has_published: bool,
) -> tuple[Cell, ...]:
    whole = judgements.get("")
    reasons = [
        (
            records.study.variant_title(variant) if variant else "",
            f"{'Scaled run. ' * _may_change(records, judgement)}{judgement.why}",
        )
        for variant, judgement in judgements.items()
        if variant in ("", *variants)
    ]
    few = len(reasons) == 1 and len(variants) < 2
    if few:
        reasons = [("", why) for _, why in reasons]
    head = Cell(
        _first(judgements).statement,
        below=key,
        details=(*((name, why) for name, why in reasons if why), ("claim", key)),
        is_open=few,
    )
    cells = [_verdict(judgements.get(variant), is_dense) for variant in variants]
    if whole is not None:
        cells = [replace(_verdict(whole), span=max(1, len(variants)))]
    texts = dict.fromkeys(j.published or MISSING for j in judgements.values())
    published = [Cell("; ".join(texts))] if has_published else []
    return (head, *cells, *published)


def reservations(records: RunRecords) -> list[str]:
    """Return what to know before the verdicts of a run: that it is small, or about other data."""
    sentences = []
    if any(_may_change(records, claim) for claim in records.summary.claims):
        sentences.append(
            "This run is scaled down: a claim that fails or is undecided here may hold in the "
            f"{records.study.protocol} protocol."
        )
    if (own := own_data(records)) and records.summary.claims:
        sentences.append(f"The sources claim this of other data than {', '.join(own)}.")
    return sentences


def _may_change(records: RunRecords, judgement: Judgement) -> bool:
    """Return whether a run of full size may come to another verdict, a better one."""
    is_open = judgement.verdict in ("fails", "undecided")
    return is_open and records.summary.protocol != "published"


def _verdict(judgement: Judgement | None, is_dense: bool = False) -> Cell:
    if judgement is None:
        return Cell()
    note = ""
    if judgement.trials_to_decide and not is_dense:
        note = f"about {judgement.trials_to_decide:,} trials"
    elif judgement.measured is not None and not is_dense:
        note = number(judgement.measured)
    return Cell(judgement.verdict, note=note, verdict=True)


def _total(statements: Iterable[Statement], variant: str) -> Cell:
    verdicts = [s[variant].verdict for s in statements if variant in s]
    return Cell(f"{verdicts.count('holds')} of {len(verdicts)}")


def unmeasured(records: RunRecords) -> list[tuple[str, str]]:
    """Return the statements that this run did not measure, each with the reason."""
    return [
        (_first(statement).statement, _first(statement).why)
        for statement in statements_of(records).values()
        if not _is_measured(statement)
    ]


# --- The numbers behind a plot, and the tables of a terminal ----------------------------------


def moments_tables(plot: Ridges, records: RunRecords) -> list[Table]:
    """Return mean, variance and skewness of every class along the nodes that a plot shows."""
    tables = []
    for variant in records.variants():
        for model in variant.models():
            moments = variant.plots.get(f"{model}/latent.moments")
            nodes = variant.plots.get(f"{model}/latent.nodes")
            if moments is None or nodes is None or not (plot.models or bool)(model):
                continue
            heads = [
                Column(f"Node {node}, {name}")
                for node in nodes.tolist()
                for name in ("mean", "variance", "skewness")
            ]
            lines = [
                (Cell(str(label)), *(Cell(number(value)) for value in of_class.ravel().tolist()))
                for label, of_class in enumerate(moments.transpose(1, 0, 2))
            ]
            label = variant.study.look(model).label
            title = f"{label}{phrase_of(variant)}"
            tables.append(Table(title, (Column("Class", True), *heads), tuple(lines)))
    return tables


def run_tables(name: str, records: RunRecords) -> list[Table]:
    """Return what ``mahalens run`` prints at its end, in order."""
    count = len(records.summary.comparisons)
    tests = comparison_tables(records, only_significant=count > _MOST_TESTS)
    star = f"Of {count} tests, the significant ones; all are in comparisons.csv."
    note = star if count > _MOST_TESTS else "Bold: p < 0.05 after Holm's correction."
    outcomes = [outcomes_table(variant, only_odd=True) for variant in records.variants()]
    return [
        table
        for table in (
            stack("Results", results_tables(records), about(records), all_endings(records)),
            stack("Comparisons: first minus second, over the shared trials", tests, note),
            stack("Outcomes of the trials", [table for table in outcomes if table]),
            claims_table({name: records}),
        )
        if table
    ]
