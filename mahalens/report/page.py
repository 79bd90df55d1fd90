"""Writes ``report.html``: gathers what the page shows from the records, and fills the template."""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mahalens.errors import require_extra
from mahalens.files import write_file
from mahalens.report import run_tables
from mahalens.report.records import RunRecords, damaged, load_run
from mahalens.report.tables import MISSING, anything, duration, environment, in_sentence, interval
from mahalens.studies.folder import FIGURES, PLOTS, REPORT, is_unchanged
from mahalens.studies.plots import Ridges
from mahalens.studies.study import Option, Study

if TYPE_CHECKING:
    from mahalens.report.plots import DrawnFigure

_FEW_VARIANTS = 3  # that a title can name
_FEW_TESTS = 24  # that can be shown without folding them away
_MANY_ENDINGS = 30  # models with lost trials that the head of the page can name


def build_report(folder: str | os.PathLike[str], study: Study[Any] | None = None) -> Path:
    """Draw the figures of a run folder, write its ``report.html`` and return that file's path.

    ``study`` is the one that made the run, if it is not a study of this package.

    Every file is written under a temporary name and moved into place, so a page that is there
    is whole. Raises :class:`~mahalens.errors.RunFolderError` when the folder holds no finished
    run, when a record in it is damaged, or when it cannot be written.
    """
    require_extra("report", "a report", "jinja2", "matplotlib", "rich")
    from mahalens.report.plots import draw_figures  # loads the drawing library

    folder = Path(folder)
    records = load_run(folder, study)
    try:
        figures = draw_figures(records)
        page = render_page(records, figures)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if is_unchanged(folder, PLOTS):  # then it is no fault of the arrays
            raise
        raise damaged(folder / PLOTS, error) from None
    for figure in figures:
        write_file(folder / FIGURES / f"{figure.name}.png", figure.png)
    drawn = {figure.name for figure in figures}
    for plot in records.study.plots:
        if plot.name not in drawn:  # a file of earlier records would show what is not there
            with contextlib.suppress(OSError):
                (folder / FIGURES / f"{plot.name}.png").unlink()
    write_file(folder / REPORT, page.encode("utf-8"))
    return folder / REPORT


def render_page(records: RunRecords, figures: Sequence[DrawnFigure]) -> str:
    """Return the page: one HTML document that refers to nothing outside itself."""
    config, summary = records.config, records.summary
    comparisons = run_tables.comparison_tables(records)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            title=_title(records),
            question=records.study.question,
            answer=run_tables.answer(records),
            protocol=records.study.protocol,
            scaled=(config.scaled or summary.scaled) if config.protocol == "scaled" else None,
            cautions=summary.cautions,
            remark=records.study.remark,
            losses=_losses(records),
            claims=run_tables.ledger_table(records),
            reservations=run_tables.reservations(records),
            unmeasured=run_tables.unmeasured(records),
            variants=_variants(records),
            thing=records.study.thing,
            comparisons=comparisons,
            few_comparisons=len(summary.comparisons) <= _FEW_TESTS,
            figures=[_figure(records, figure) for figure in figures],
            facts=facts_of(records),
            again=_again(records, {FIGURES} if figures else set()),
        )
    )


def _title(records: RunRecords) -> str:
    """Return the study and what tells its runs apart: data sets, or the group of its rows."""
    name = f"{records.study.name.capitalize()} study"
    titles = [run_tables.phrase_of(variant)[2:] for variant in records.variants() if variant.title]
    if records.study.variant == "data" and len(titles) > _FEW_VARIANTS:
        titles = [f"{len(titles)} data sets"]
    if records.study.variant in ("pixels", "network"):
        titles = [anything(records.summary.facts.get("data")), *titles]
    if not titles and records.summary.rows:
        group = records.summary.rows[0].group
        titles = [f"{key} {anything(value)}" for key, value in group.items() if key]
    return ", ".join([name, *titles])


def _losses(records: RunRecords) -> list[tuple[str, str]]:
    """Return the models that lost trials, and how; of many, how many."""
    odd = []
    for variant in records.variants():
        of = run_tables.phrase_of(variant)
        for model in variant.models():
            outcome = variant.outcome(model)
            if outcome is not None and outcome.non_finite:
                odd.append(
                    (f"{records.study.look(model).label}{of}:", run_tables.endings_of(outcome))
                )
    rest = len(odd) - _MANY_ENDINGS
    return [*odd[:_MANY_ENDINGS], *([("", f"and {rest} more, see the results")] * (rest > 0))]


def _variants(records: RunRecords) -> list[dict[str, Any]]:
    """Return the tables of each variant."""
    tables = zip(
        records.variants(),
        run_tables.results_tables(records),
        run_tables.metrics_tables(records),
        strict=True,
    )
    return [
        {
            "title": variant.title,
            "of": run_tables.phrase_of(variant),
            "results": results,
            "metrics": metrics,
            "outcomes": run_tables.outcomes_table(variant),
            "endings": run_tables.all_endings(variant),
            "is_odd": any(run_tables.is_odd(outcome) for outcome in variant.summary.outcomes),
            "about": run_tables.about(variant, brief=True),
        }
        for variant, results, metrics in tables
    ]


def _figure(records: RunRecords, figure: DrawnFigure) -> dict[str, Any]:
    plots = (plot for plot in records.study.plots if plot.name == figure.name)
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "uri": f"data:image/png;base64,{base64.b64encode(figure.png).decode('ascii')}",
        # Half: figures are drawn with two pixels for each one of the page.
        "width": figure.width // 2,
        "height": figure.height // 2,
        "tables": [
            table
            for plot in plots
            if isinstance(plot, Ridges)
            for table in run_tables.moments_tables(plot, records)
        ],
    }


# --- What was run -----------------------------------------------------------------------------


def facts_of(records: RunRecords) -> list[tuple[str, str]]:
    """Return options and facts of a run by the names people use, as text."""
    config, facts = records.config, dict(records.summary.facts)
    options, known = dict(config.options), records.study.config.options()
    shown: dict[str, str] = {"Protocol": _protocol(records)}
    data = facts.pop("data", None)
    if isinstance(data, dict):
        sets = [_data_set(records, name, fact) for name, fact in data.items()]
        shown[f"Data ({len(sets)})"] = "; ".join(sets)
        options.pop("data", None)
    elif data:
        shown["Data"] = anything(data)
        options.pop("data", None)
    models = options.pop("models", None)
    if isinstance(models, list):
        labels = [records.study.look(str(model)).label for model in models]
        shown[f"{records.study.thing.capitalize()}s ({len(labels)})"] = "; ".join(labels)
    seconds = facts.pop("seconds", None)
    for name, value in {"seed": config.seed, "device": config.device, **options}.items():
        option = known.get(name)
        text = _option(option, value)
        if text:
            shown[_name(name, option)] = text
    shown |= {"Engine": config.engine, "Threads": anything(config.threads)}
    for name, value in facts.items():
        if name not in options and value is not None:
            is_time = name.endswith("_seconds")
            label = _name(name.removesuffix("_seconds"), None)
            shown[f"Time, {in_sentence(label)}" if is_time else label] = (
                duration(value) if is_time else _fact(value)
            )
    if seconds is not None:
        shown["Time, all together"] = duration(seconds)
    return list(shown.items())


def _protocol(records: RunRecords) -> str:
    if records.config.protocol == "published":
        return f"{records.study.protocol}, nothing was scaled down"
    changes = records.config.scaled or records.summary.scaled
    return f"scaled: {'; '.join(changes) or 'not recorded'}"


def _name(name: str, option: Option | None) -> str:
    label = option.label if option is not None and option.label != "without" else ""
    text = label or name.replace("_", " ")
    return text[:1].upper() + text[1:]


def _option(option: Option | None, value: Any) -> str:
    """Write an option as the study does, otherwise as one would type it: 0.05 and not 0.0500."""
    if option is not None and option.show is not None:
        with contextlib.suppress(TypeError, ValueError):  # a value of an earlier version
            return option.show(tuple(value) if isinstance(value, list) else value)
    if value is None or value in ("", [], ()):
        return ""
    return anything(_typed(value))


def _typed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_typed(item) for item in value]
    return f"{value:g}" if isinstance(value, float) else value


def _fact(value: Any) -> str:
    """Write a fact; a pair of numbers is an interval."""
    if isinstance(value, list) and len(value) == 2 and interval(value) != MISSING:
        return interval(value)
    return anything(value)


def _data_set(records: RunRecords, name: str, facts: object) -> str:
    """Return a data set with everything that the summary says of it."""
    title = records.study.variant_title(name) if records.study.variant == "data" else name
    if not isinstance(facts, Mapping):
        return title
    parts = [
        f"from {value}" if key == "source" else f"{anything(value)} {key.replace('_', ' ')}"
        for key, value in facts.items()
        if value not in (None, "", [])
    ]
    return f"{title} ({', '.join(parts)})" if parts else title


# --- How to run it again ----------------------------------------------------------------------

_RECORDS = {
    "config.json": "what was run, with versions and seed",
    "gaussian.json": "mean and covariance of the Gaussian",
    "trials.csv": "every metric of every trial",
    "curves.csv": "loss, accuracy or error of every trial along its way",
    "comparisons.csv": "every test between two models",
    "levels.csv": "accuracy of every trial at every level of perturbation",
    "summary.json": "the figures and verdicts on this page",
    "checksums.json": "SHA-256 of the records",
    "plots.safetensors": "the arrays behind the figures",
    "measures.safetensors": "everything measured, for pooling with other runs",
    "weights": "the trained weights, or the points found, of every trial",
    "tensorboard": "event files for TensorBoard",
    "figures": "the figures on this page",
}


def _again(records: RunRecords, soon: set[str]) -> dict[str, Any]:
    """Return commands, versions, date and the records that are there, or will be ``soon``."""
    config = records.config
    folder = shlex.quote(_out_folder(config.command) or records.folder.resolve().name)
    versions = {"mahalens": config.mahalens, "torch": config.torch, "python": config.python}
    return {
        "command": config.command,
        "report": f"mahalens report {folder}",
        "resume": f"mahalens run --resume {folder}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "created": _date(config.created),
        "records": [
            (f"{name}/" if "." not in name else name, text)
            for name, text in _RECORDS.items()
            if name in soon or (records.folder / name).exists()
        ],
    }


def _out_folder(command: str) -> str | None:
    """Return the folder that a command wrote to: it says more than the last part of a path."""
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
