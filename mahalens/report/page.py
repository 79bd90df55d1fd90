"""Writes ``report.html``: gathers what the page shows from the records, and fills the template."""

from __future__ import annotations

import base64
import contextlib
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from mahalens.files import write_file
from mahalens.report.catalogue import (
    VERDICT_SYMBOLS,
    VERDICTS,
    headline,
    in_order,
    metric_view,
    metrics_of,
    model_colours,
    model_label,
    models_in_order,
    primary_metric,
    remark_on,
)
from mahalens.report.figures import FIGURES, DrawnFigure, draw_figures
from mahalens.report.numbers import (
    MISSING,
    anything,
    duration,
    interval,
    is_number,
    number,
)
from mahalens.report.protocol import SOLVERS, protocol_of
from mahalens.report.records import RunRecords, load_run
from mahalens.report.tables import group_label, statuses_line, trials_line

_RECORDS = {
    "config.json": "what was run, with versions and seed",
    "gaussian.json": "mean and covariance of the Gaussian",
    "trials.csv": "every metric of every trial",
    "curves.csv": "training loss, or error, of every trial on its way",
    "summary.json": "the figures and verdicts on this page",
    "plots.safetensors": "the arrays behind the figures",
    "weights": "the trained weights, or the points found, of every trial",
    "figures": "the figures on this page",
}


def write_report(folder: Path) -> Path:
    """Draw the figures into ``folder/figures``, write ``folder/report.html``, return its path."""
    records = load_run(folder)
    drawn = []
    for figure in draw_figures(records):
        write_file(folder / "figures" / f"{figure.name}.png", figure.png)
        drawn.append(figure)
    known = {name for names in FIGURES.values() for name in names}
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
    return environment.get_template("report.html.j2").render(
        title=_title(records),
        headline=headline(claim["verdict"] for claim in records.summary["claims"]),
        claims=_claims(records),
        scaled=records.config["protocol"] == "scaled",
        changes=records.config.get("scaled", []),
        remark=remark_on(records.study),
        protocol=protocol_of(records),
        results=_results(records),
        best=metric_view(metrics_of(records.study), _primary(records)).label,
        outcomes=_outcomes(records),
        figures=[_figure(figure) for figure in figures],
        again=_run_again(records),
    )


def _primary(records: RunRecords) -> str:
    return primary_metric(records.study, (row["metric"] for row in records.summary["rows"]))


def _title(records: RunRecords) -> str:
    options = records.config["options"]
    parts = [f"{records.study.capitalize()} study"]
    if options.get("data"):
        return f"{parts[0]}, {options['data']}"
    if is_number(options.get("dim")):
        parts.append(f"{number(options['dim'])}-D")
    if is_number(options.get("count")):
        parts.append(f"{number(options['count'])} ellipsoids")
    if options.get("solver"):
        parts.append(SOLVERS.get(options["solver"], str(options["solver"])))
    return ", ".join(parts)


def _claims(records: RunRecords) -> list[dict[str, str]]:
    claims = sorted(records.summary["claims"], key=lambda c: VERDICTS.index(c["verdict"]))
    return [
        {
            "id": claim["id"],
            "source": claim["source"],
            "statement": claim["statement"],
            "verdict": claim["verdict"],
            "symbol": VERDICT_SYMBOLS[claim["verdict"]],
            "kind": claim["verdict"].replace(" ", "-"),
            "published": anything(claim.get("published")),
            "measured": anything(claim.get("measured")),
            "why": claim.get("why") or "",
        }
        for claim in claims
    ]


def _results(records: RunRecords) -> list[dict[str, Any]]:
    """One block a metric (and group, where there are several), one line a model."""
    known = metrics_of(records.study)
    rows = records.summary["rows"]
    colours = model_colours(row["model"] for row in rows)
    groups = list(dict.fromkeys(group_label(row) for row in rows))
    blocks = []
    for group in groups:
        own = [row for row in rows if group_label(row) == group]
        for name in in_order((row["metric"] for row in own), known):
            metric = metric_view(known, name)
            lines = {row["model"]: row for row in own if row["metric"] == name}
            if not any(
                is_number(r["mean"]) or is_number(r.get("published")) for r in lines.values()
            ):
                lines = {}
            blocks.append(
                {
                    "label": metric.label_with_unit,
                    "group": group if len(groups) > 1 else "",
                    "explanation": f"{metric.explanation} {metric.direction}".strip(),
                    "lines": [
                        _result_line(model, lines[model], colours[model])
                        for model in models_in_order(lines)
                    ],
                }
            )
    return blocks


def _result_line(model: str, row: dict[str, Any], colour: str) -> dict[str, Any]:
    detail = row.get("published_detail") or {}
    return {
        "model": model_label(model),
        "colour": colour,
        "empty": not is_number(row["mean"]),
        "mean": number(row["mean"]),
        "sd": number(row.get("std")),
        "interval": interval(row.get("ci95")),
        "min": number(row.get("min")),
        "max": number(row.get("max")),
        "best": number(row.get("best")),
        "n": number(row["n"]),
        "published": number(row.get("published")),
        "published_detail": [f"{name} {number(v)}" for name, v in detail.items() if is_number(v)],
    }


def _outcomes(records: RunRecords) -> list[dict[str, Any]]:
    colours = model_colours(records.outcomes)
    primary = _primary(records)
    lines = []
    for model, outcome in ((m, records.outcomes[m]) for m in models_in_order(records.outcomes)):
        lost = outcome.get("non_finite") or []
        lines.append(
            {
                "model": model_label(model),
                "colour": colours[model],
                "trials": number(outcome["trials"]),
                "statuses": statuses_line(outcome),
                "tells": statuses_line(outcome) not in ("1 analytic", f"{outcome['trials']} done"),
                "lost": trials_line(lost) if lost else "none",
                "best": number(outcome.get("best_trial")),
                "best_value": number(records.row(model, primary).get("best")),
                "time": duration(outcome.get("seconds")),
            }
        )
    return lines


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


def _run_again(records: RunRecords) -> dict[str, Any]:
    config = records.config
    command = str(config.get("command") or "")
    folder = shlex.quote(_out_folder(command) or records.folder.resolve().name)
    versions = {name: config.get(name) for name in ("mahalens", "torch", "python")}
    return {
        "command": command,
        "report": f"mahalens report {folder}",
        "resume": f"mahalens run --resume {folder}",
        "versions": ", ".join(f"{name} {anything(v)}" for name, v in versions.items() if v),
        "created": _date(str(config.get("created") or "")),
        "records": [
            (f"{name}/" if (records.folder / name).is_dir() else name, told)
            for name, told in _RECORDS.items()
            if (records.folder / name).exists()
        ],
    }


def _out_folder(command: str) -> str | None:
    """The folder a recorded command wrote to: it says more than the last part of a path."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    for place, word in enumerate(words):
        if word == "--out":
            return " ".join(words[place + 1 : place + 2]) or None
        if word.startswith("--out="):
            return word.removeprefix("--out=") or None
    return None


def _date(stamp: str) -> str:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp or MISSING
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".strip()
