"""Tables for the terminal of runs that have parts: several kinds of pixels, or data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from mahalens.report.about import about
from mahalens.report.catalogue import (
    metric_view,
    metrics_of,
    model_label,
    models_in_order,
)
from mahalens.report.comparisons import comparisons
from mahalens.report.endings import statuses_line, trials_line
from mahalens.report.level_table import levels_of
from mahalens.report.numbers import MISSING, duration, is_number, number
from mahalens.report.overview import overview
from mahalens.report.parts import parts_of
from mahalens.report.shown_table import shown_metrics, shown_of
from mahalens.report.views import Parts, view_of

_MANY = 4  # models that can be named in one cell
_MOST_TESTS = 60  # with more, a terminal shows those alone that are significant


def new_table(title: str, *lines: str) -> Table:
    """A table with its title; ``lines`` below the title, of text that is never markup."""
    heading = Text(title)
    for line in lines:
        heading.append(f"\n{line}", style="dim")
    return Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, show_lines=False)


def results_by_part(summary: Mapping[str, Any], parts: Parts) -> Table:
    """The metrics that tell most, a line per model, part after part.

    Of a perturbation run, training accuracy by level.
    """
    make = {"overview": _overview, "levels": _levels, "shown": _shown}
    return make[parts.table](summary)


def _overview(summary: Mapping[str, Any]) -> Table:
    """Test accuracy and what else a reader asks first about networks."""
    parts = {part.title: overview(part.summary) for part in parts_of(summary)}
    lines = [line for own in parts.values() for line in own]
    published = any(line.published != MISSING for line in lines)
    told = about(summary)
    table = new_table("Results: mean over the trials ± half-width of its 95 % interval", told)
    table.add_column("network", min_width=14)
    table.add_column("test accuracy (%)", justify="right")
    if published:
        table.add_column("published", justify="right")
    for name in ("SD", "dead outputs (%)", "epochs to converge"):
        table.add_column(name, justify="right")
    for part, own in parts.items():
        _section(table, part)
        for line in own:
            half = "" if line.half_width == MISSING else f" ± {line.half_width}"
            cells = [f"{line.accuracy}{half}", line.sd, line.dead, line.epochs]
            if published:
                sd = "" if line.published_sd == MISSING else f" (SD {line.published_sd})"
                cells.insert(1, f"{line.published}{sd}")
                if line.dead_published != MISSING:
                    cells[3] += f" (published {line.dead_published})"
            table.add_row(Text(f"  {line.label}"), *(Text(cell) for cell in cells))
    return table


def _levels(summary: Mapping[str, Any]) -> Table:
    """A line per level and a column per network, part after part."""
    some = any(is_number(row.get("published")) for row in summary["rows"])
    told = ["in brackets: the published mean"] if some else []
    title = "Training accuracy (%) under perturbation: mean ± half-width of its 95 % interval"
    parts = [(part.title, levels_of(part.summary)) for part in parts_of(summary)]
    networks = list(dict.fromkeys(name for _, found in parts for name in found.networks))
    table = new_table(title, about(summary), *told)
    table.add_column("perturbation", min_width=22)
    for name in networks:
        table.add_column(Text(name), justify="right")
    for title, found in parts:
        _section(table, title)
        for line in found.lines:
            cells = dict(zip(found.networks, line.cells, strict=True))
            given = (cells.get(name) for name in networks)
            table.add_row(Text(f"  {line.label}"), *(Text(c.text if c else MISSING) for c in given))
    return table


def _shown(summary: Mapping[str, Any]) -> Table:
    """A line per model and a column per metric, part after part; the best means are bold."""
    metrics = shown_metrics(summary)
    parts = [(part.title, shown_of(part.summary, metrics)) for part in parts_of(summary)]
    told = ["bold: the best mean of its column on this data set"]
    if any(found.published for _, found in parts):
        told.append("in brackets: the published mean")
    title = "Results: mean over the trials ± half-width of its 95 % interval"
    table = new_table(title, about(summary), *told)
    table.add_column("model", min_width=14)
    known = metrics_of(str(summary["study"]))
    for metric in metrics:
        table.add_column(Text(metric_view(known, metric).label_with_unit), justify="right")
    for title, found in parts:
        _section(table, title)
        for line in found.lines:
            cells = (
                Text(cell.text, style="bold" if cell.best else "") if cell else Text(MISSING)
                for cell in line.cells
            )
            table.add_row(Text(f"  {line.label}"), *cells)
    return table


def outcomes_by_part(summary: Mapping[str, Any], parts: Parts) -> Table:
    """How the trials ended; models whose trials all ended alike share a line."""
    study = str(summary["study"])
    table = new_table("Outcomes of the trials", about(summary))
    models_of = f"{parts.model}s"
    for name in (models_of, "trials of each", "how they ended", "time"):
        table.add_column(name, justify="left" if name in (models_of, "how they ended") else "right")
    for part in parts_of(summary):
        if not part.summary["outcomes"]:
            continue
        _section(table, part.title)
        alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for outcome in part.summary["outcomes"]:
            lost = outcome.get("non_finite") or []
            told = f"not finite: {trials_line(lost)}" if lost else ""
            key = (number(outcome["trials"]), statuses_line(outcome), told)
            alike.setdefault(key, []).append(outcome)
        for (count, ends, told), own in alike.items():
            models = models_in_order((str(o["model"]) for o in own), study)
            names = "; ".join(model_label(model, study) for model in models)
            named = names if len(models) <= _MANY else f"{len(models)} {models_of}"
            cell = Text(ends)
            if told:
                cell.append(f"\n{told}", style="red")
            seconds = sum(o.get("seconds") or 0.0 for o in own)
            table.add_row(Text(f"  {named}"), count, cell, duration(seconds))
    return table


def comparisons_table(summary: Mapping[str, Any]) -> Table:
    """Every test between two models, block by block; of very many, those that are significant.

    Differences are first minus second, in points where the metric is a percentage. A star marks
    a difference that is significant (p < 0.05) by the test to lean on, after Holm's correction in
    its block.
    """
    star = "* significant (p < 0.05) after Holm's correction within its block"
    parts = view_of(str(summary["study"])).parts
    of_data = parts is not None and parts.of_data
    title = "Comparisons of test accuracy: difference in points (95 % interval)"
    if of_data:
        title = "Comparisons: difference (95 % interval), in points where it is one of percentages"
    blocks = comparisons(summary)
    count = sum(len(pairs) for pairs in blocks.values())
    told = []
    if of_data and count > _MOST_TESTS:
        told.append(f"Of {count} tests, those that are significant; all are in comparisons.csv.")
    table = new_table(title, about(summary), star, *told)
    # Titles stand in the first column; those of a data set with a metric are long.
    widest = min(36, max(map(len, blocks), default=0)) if of_data else 0
    table.add_column("pair", min_width=max(18, widest))
    for name in (
        "difference",
        "paired t (df)",
        "p",
        "Holm p",
        "Welch p",
        "Cohen's d",
        "Wilcoxon p",
    ):
        table.add_column(name, justify="right")
    table.add_column("lean on (Holm p)")
    for title, pairs in blocks.items():
        clear = sum(pair.significant for pair in pairs)
        _section(table, f"{title}: {clear} of {len(pairs)}" if told else title)
        for pair in pairs:
            if told and not pair.significant:
                continue
            mark = "*" if pair.significant else ""
            table.add_row(
                Text(f"  {pair.pair}"),
                _with_ends(pair.difference, pair.difference_interval),
                pair.paired_t,
                pair.paired_p,
                pair.holm,
                pair.welch_p,
                _with_ends(pair.effect, pair.effect_interval),
                pair.wilcoxon_p,
                Text(f"{pair.lean_on} ({pair.lean_p}){mark}", style="bold" if mark else ""),
            )
    return table


def _with_ends(value: str, ends: str) -> Text:
    return Text(value if ends == MISSING else f"{value}\n({ends})")


def _section(table: Table, title: str) -> None:
    if title:
        table.add_section()
        table.add_row(Text(title, style="bold"), *[""] * (len(table.columns) - 1))
