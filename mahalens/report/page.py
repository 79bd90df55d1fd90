"""Writes ``report.html``: gathers what the page shows from the records, and fills the template."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path
from typing import Any

from mahalens.files import write_file
from mahalens.report.again import run_again
from mahalens.report.catalogue import headline, metric_view, metrics_of, remark_on
from mahalens.report.figures import DrawnFigure, draw_figures, file_name
from mahalens.report.numbers import is_number, number
from mahalens.report.page_parts import about_of, by_parts
from mahalens.report.protocol import SOLVERS, protocol_of
from mahalens.report.records import RunRecords, load_run
from mahalens.report.sections import claims_of, outcomes_of, primary_of, results_of
from mahalens.report.views import every_figure, view_of

_FEW = 3  # data sets that a title can name


def write_report(folder: Path) -> Path:
    """Draw the figures into ``folder/figures``, write ``folder/report.html``, return its path."""
    records = load_run(folder)
    drawn = []
    for figure in draw_figures(records):
        write_file(folder / "figures" / f"{figure.name}.png", figure.png)
        drawn.append(figure)
    known = {file_name(name) for name in every_figure()}
    for name in known - {figure.name for figure in drawn}:
        # One left from other records would show what this run does not hold.
        with contextlib.suppress(OSError):
            (folder / "figures" / f"{name}.png").unlink()
    page = folder / "report.html"
    write_file(page, render_page(records, drawn).encode("utf-8"))
    return page


def render_page(records: RunRecords, figures: list[DrawnFigure]) -> str:
    """The page as text: one HTML document that refers to nothing outside itself."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mahalens.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parted = by_parts(records)
    best = metric_view(metrics_of(records.study), primary_of(records))
    return environment.get_template("report.html.j2").render(
        title=_title(records),
        headline=headline(c["verdict"] for c in records.summary["claims"]),
        claims=[] if parted else claims_of(records),
        scaled=records.config["protocol"] == "scaled",
        changes=records.config.get("scaled", []),
        about=about_of(records),
        remark=remark_on(records.study),
        protocol=protocol_of(records),
        results=[] if parted else results_of(records),
        best=best.mid_sentence,
        best_end="highest" if best.better == "high" else "lowest",
        outcomes=[] if parted else outcomes_of(records),
        by_parts=parted,
        figures=[_figure(figure) for figure in figures],
        again=run_again(records),
    )


def _title(records: RunRecords) -> str:
    options = records.config["options"]
    parts = [f"{records.study.capitalize()} study"]
    data = options.get("data")
    if of_parts := view_of(records.study).parts:  # a user's file goes by its name, not its path
        data = records.summary.get("facts", {}).get("data") or data
        if of_parts.of_data:
            titles = [part.title for part in records.parts()]
            data = ", ".join(titles) if len(titles) <= _FEW else f"{len(titles)} data sets"
    if data:
        return f"{parts[0]}, {data}"
    if is_number(options.get("dim")):
        parts.append(f"{number(options['dim'])}-D")
    if is_number(options.get("count")):
        parts.append(f"{number(options['count'])} ellipsoids")
    if options.get("solver"):
        parts.append(SOLVERS.get(options["solver"], str(options["solver"])))
    return ", ".join(parts)


def _figure(figure: DrawnFigure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "uri": f"data:image/png;base64,{base64.b64encode(figure.png).decode('ascii')}",
        # Half: figures are drawn with two pixels for each one of the page.
        "width": figure.width // 2,
        "height": figure.height // 2,
    }
