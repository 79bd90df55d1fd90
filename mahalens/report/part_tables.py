"""Tables for the terminal of runs that have parts: many models, several kinds of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from mahalens.report.catalogue import model_label, models_in_order
from mahalens.report.comparisons import comparisons
from mahalens.report.endings import statuses_line, trials_line
from mahalens.report.level_table import levels_of, part_summary
from mahalens.report.numbers import MISSING, duration, is_number, number
from mahalens.report.overview import about, overview, part_of, parts_of

_MANY = 4  # networks that can be named in one cell


def new_table(title: str, *lines: str) -> Table:
    """A table with its title; ``lines`` below the title, of text that is never markup."""
    heading = Text(title)
    for line in lines:
        heading.append(f"\n{line}", style="dim")
    return Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, show_lines=False)


def results_by_part(summary: Mapping[str, Any]) -> Table:
    """Test accuracy and what else tells most, a line per network, part after part.

    Of a perturbation run, training accuracy by level.
    """
    if summary["study"] == "perturbation":
        return _levels_by_part(summary)
    parts = {part: overview(summary, part) for part in parts_of(summary)}
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


def _levels_by_part(summary: Mapping[str, Any]) -> Table:
    """A line per level and a column per network, part after part."""
    some = any(is_number(row.get("published")) for row in summary["rows"])
    told = ["in brackets: the published mean"] if some else []
    title = "Training accuracy (%) under perturbation: mean ± half-width of its 95 % interval"
    parts = [part_summary(summary, part) for part in parts_of(summary)]
    networks = list(dict.fromkeys(name for p in parts for name in levels_of(p).networks))
    table = new_table(title, about(summary), *told)
    table.add_column("perturbation", min_width=22)
    for name in networks:
        table.add_column(Text(name), justify="right")
    for own in parts:
        found = levels_of(own)
        _section(table, part_of(own["rows"][0]) if own["rows"] else "")
        for line in found.lines:
            cells = dict(zip(found.networks, line.cells, strict=True))
            given = (cells.get(name) for name in networks)
            table.add_row(Text(f"  {line.label}"), *(Text(c.text if c else MISSING) for c in given))
    return table


def outcomes_by_part(summary: Mapping[str, Any]) -> Table:
    """How the trials ended; networks whose trials all ended alike share a line."""
    study = str(summary["study"])
    table = new_table("Outcomes of the trials", about(summary))
    for name in ("networks", "trials of each", "how they ended", "time"):
        table.add_column(
            name, justify="left" if name in ("networks", "how they ended") else "right"
        )
    for part in dict.fromkeys(part_of(outcome) for outcome in summary.get("outcomes", [])):
        _section(table, part)
        alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for outcome in (o for o in summary["outcomes"] if part_of(o) == part):
            lost = outcome.get("non_finite") or []
            told = f"not finite: {trials_line(lost)}" if lost else ""
            key = (number(outcome["trials"]), statuses_line(outcome), told)
            alike.setdefault(key, []).append(outcome)
        for (count, ends, told), own in alike.items():
            models = models_in_order((str(o["model"]) for o in own), study)
            names = "; ".join(model_label(model, study) for model in models)
            named = names if len(models) <= _MANY else f"{len(models)} networks"
            cell = Text(ends)
            if told:
                cell.append(f"\n{told}", style="red")
            seconds = sum(o.get("seconds") or 0.0 for o in own)
            table.add_row(Text(f"  {named}"), count, cell, duration(seconds))
    return table


def comparisons_table(summary: Mapping[str, Any]) -> Table:
    """Every test between two models, block by block.

    Differences are in points of test accuracy, first minus second. A star marks a difference
    that is significant (p < 0.05) by the test to lean on, after Holm's correction in its block.
    """
    star = "* significant (p < 0.05) after Holm's correction within its block"
    title = "Comparisons of test accuracy: difference in points (95 % interval)"
    table = new_table(title, about(summary), star)
    table.add_column("pair", min_width=18)
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
    for title, pairs in comparisons(summary).items():
        _section(table, title)
        for pair in pairs:
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
        shown = title[0].upper() + title[1:]
        table.add_row(Text(shown, style="bold"), *[""] * (len(table.columns) - 1))
