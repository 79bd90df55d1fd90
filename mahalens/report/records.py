"""Reads a run folder for the report: every record typed, every fault one line that names the file.

:func:`load_run` returns the :class:`RunRecords` of a folder, with the
:class:`~mahalens.studies.study.Study` that made it. Tables, page and figures take everything from
there. Folders of earlier versions are read as if this one had made them. Needs no torch.
"""

from __future__ import annotations

import csv
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens.errors import RunFolderError
from mahalens.files import is_folder, name_of, read_file
from mahalens.progress import printable
from mahalens.report.numbers import number
from mahalens.studies.claims import SIGNIFICANT, Judgement
from mahalens.studies.folder import CONFIG, CURVES, PLOTS, SUMMARY, TRIALS, RunConfig, checksums
from mahalens.studies.plots import AllMetrics
from mahalens.studies.registry import STUDIES, load_study
from mahalens.studies.study import SOURCES, Config, Metric, Study

Floats = NDArray[np.float64]
T = TypeVar("T")


# --- The shapes of the records ----------------------------------------------------------------


class Row(msgspec.Struct, frozen=True):
    """One metric of one model on one variant, over its trials."""

    model: str
    metric: str
    mean: float | None
    n: int
    std: float | None = None
    min: float | None = None
    max: float | None = None
    best: float | None = None
    ci95: tuple[float | None, float | None] | None = None
    published: float | None = None
    published_detail: dict[str, Any] | None = None
    group: dict[str, Any] = {}

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean, if it has one."""
        low, high = self.ci95 or (None, None)
        return None if low is None or high is None else (low, high)

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a measured nor a published mean."""
        return self.mean is None and self.published is None


class Outcome(msgspec.Struct, frozen=True):
    """How the trials of one model on one variant ended."""

    model: str
    trials: int
    statuses: dict[str, int]
    basins: dict[str, int] = {}
    non_finite: list[int] = []
    best_trial: int | None = None
    seconds: float | None = None
    group: dict[str, Any] = {}


class Comparison(msgspec.Struct, frozen=True):
    """A test of model ``a`` against model ``b``; a family is one metric on one variant."""

    family: str
    a: str
    b: str
    metric: str = ""
    mean_difference: float | None = None
    difference_ci95_low: float | None = None
    difference_ci95_high: float | None = None
    paired_t: float | None = None
    paired_df: float | None = None
    paired_p: float | None = None
    welch_p: float | None = None
    cohens_d: float | None = None
    cohens_d_ci95_low: float | None = None
    cohens_d_ci95_high: float | None = None
    wilcoxon_p: float | None = None
    preferred_test: str | None = None
    holm_paired: float | None = None
    holm_preferred: float | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the preferred test finds a difference, after Holm's correction."""
        return self.holm_preferred is not None and self.holm_preferred < SIGNIFICANT


class Summary(msgspec.Struct, frozen=True):
    """What the report reads of ``summary.json``; other keys may be there."""

    study: str
    protocol: Literal["published", "scaled"]
    rows: list[Row]
    claims: list[Judgement]
    facts: dict[str, Any] = {}
    outcomes: list[Outcome] = []
    comparisons: list[Comparison] = []
    scaled: list[str] = []
    cautions: list[str] = []


@dataclass(frozen=True)
class TrialTable:
    """``trials.csv`` by column, one entry per trial and model; NaN where a metric has no value."""

    model: list[str]
    variant: list[str]
    trial: list[int]
    status: list[str]
    metrics: dict[str, Floats]

    @property
    def models(self) -> list[str]:
        """The models, each once."""
        return list(dict.fromkeys(self.model))

    def of(self, model: str, metric: str) -> dict[int, float]:
        """Return the value of ``metric`` for each trial of ``model`` that has a finite one."""
        values = self.metrics.get(metric)
        if values is None:
            return {}
        rows = zip(self.model, self.trial, values.tolist(), strict=True)
        return {trial: value for name, trial, value in rows if name == model and np.isfinite(value)}

    def on(self, variant: str) -> TrialTable:
        """Return the entries of one variant."""
        places = [place for place, name in enumerate(self.variant) if name == variant]
        return TrialTable(
            [self.model[place] for place in places],
            [variant] * len(places),
            [self.trial[place] for place in places],
            [self.status[place] for place in places],
            {name: values[places] for name, values in self.metrics.items()},
        )


@dataclass(frozen=True)
class Curve:
    """One trial along its way: ``value[i]``, a loss or an accuracy, after step ``step[i]``."""

    step: Floats
    value: Floats


Curves = dict[str, dict[str, dict[int, Curve]]]
"""Column of ``curves.csv``, model, trial."""


# --- A run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecords:
    """Everything that a report shows of one run, or of one variant of it.

    Args:
        folder: where the run is.
        config: ``config.json``.
        summary: ``summary.json``; of a variant, its rows, outcomes, claims and comparisons.
        study: the study that made it; for one that is unknown here, a plain one with its name.
        trials: ``trials.csv``.
        curves: ``curves.csv`` by column, model and trial; of a run with variants empty, see
            :meth:`variants`.
        plots: the arrays of ``plots.safetensors``; of a variant, without its name before them.
        variant: the name of the variant in the records; empty for the whole run.
        title: what people call the variant.
    """

    folder: Path
    config: RunConfig
    summary: Summary
    study: Study[Any]
    trials: TrialTable
    curves: Curves = field(default_factory=dict)
    plots: dict[str, NDArray[Any]] = field(default_factory=dict)
    variant: str = ""
    title: str = ""
    by_variant: dict[str, Curves] = field(default_factory=dict, repr=False)

    def row(self, model: str, metric: str) -> Row | None:
        """Return the summary of one metric of one model, if there is one."""
        rows = (r for r in self.summary.rows if r.model == model and r.metric == metric)
        return next(rows, None)

    def outcome(self, model: str) -> Outcome | None:
        """Return how the trials of a model ended."""
        return next((o for o in self.summary.outcomes if o.model == model), None)

    def models(self) -> list[str]:
        """Return the models of this run in the order of the study; those it lacks come last."""
        entries: tuple[Row | Outcome, ...] = (*self.summary.rows, *self.summary.outcomes)
        return in_order((*(e.model for e in entries), *self.trials.models), self.study.models)

    def metrics(self) -> list[str]:
        """Return the metrics that have a number here, in the order of the study."""
        rows = (row.metric for row in self.summary.rows if not row.is_empty)
        return in_order(rows, self.study.metrics)

    def metric(self, name: str) -> Metric:
        """Return how a metric is shown; one that the study lacks goes by its name."""
        return self.study.metrics.get(name) or _plain_metric(name)

    def primary(self) -> str:
        """Return the metric that decides which trial is best."""
        return self.study.primary_of(row.metric for row in self.summary.rows)

    def variants(self) -> list[RunRecords]:
        """Return each variant as records with a title; the run itself if it has none."""
        if not self.study.variant or self.variant:
            return [self]
        entries: tuple[Row | Outcome, ...] = (*self.summary.rows, *self.summary.outcomes)
        names = (*(self._variant_of(entry) for entry in entries), *self.trials.variant)
        return [self._on(name) for name in dict.fromkeys(names)]

    def _variant_of(self, entry: Row | Outcome) -> str:
        return str(entry.group.get(self.study.variant, ""))

    def _on(self, variant: str) -> RunRecords:
        whole, start = self.summary, f"{variant}/"
        facts = dict(whole.facts)
        if isinstance(facts.get("data"), dict):
            facts["data"] = {n: fact for n, fact in facts["data"].items() if n == variant}
        summary = msgspec.structs.replace(
            whole,
            facts=facts,
            rows=[row for row in whole.rows if self._variant_of(row) == variant],
            outcomes=[o for o in whole.outcomes if self._variant_of(o) == variant],
            claims=[claim for claim in whole.claims if claim.data == variant],
            comparisons=[line for line in whole.comparisons if line.family == variant],
        )
        return replace(
            self,
            summary=summary,
            trials=self.trials.on(variant),
            curves=self.by_variant.get(variant, {}),
            plots={n[len(start) :]: a for n, a in self.plots.items() if n.startswith(start)},
            variant=variant,
            title=self.study.variant_title(variant) if variant else "",
            by_variant={},
        )


def in_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return names without repetition: those that are known in their order, then the others.

    >>> in_order(["new", "b", "a", "b"], ["a", "b", "c"])
    ['a', 'b', 'new']
    """
    given = dict.fromkeys(names)
    first = [name for name in known if name in given]
    return list(dict.fromkeys([*first, *given]))


def load_runs(folders: Iterable[Path]) -> dict[str, RunRecords]:
    """Read several run folders, by the names of the folders; where these repeat, by their paths."""
    folders = list(folders)
    names = [printable(folder.name) for folder in folders]
    if not all(names) or len(set(names)) < len(names):
        names = [printable(folder) for folder in folders]
    return {name: load_run(folder) for name, folder in zip(names, folders, strict=True)}


def load_run(folder: str | os.PathLike[str], study: Study[Any] | None = None) -> RunRecords:
    """Read a finished run folder.

    Args:
        folder: what ``mahalens run`` has made.
        study: the study that made it, if it is not one of this package.

    Raises :class:`~mahalens.errors.RunFolderError`, naming the file, if the folder is not there,
    the run is not finished, or a record is missing or damaged.

    >>> records = load_run("runs/hybrid")  # doctest: +SKIP
    >>> [variant.title for variant in records.variants()]  # doctest: +SKIP
    ['Iris', 'Wine']
    """
    folder = Path(folder)
    if not is_folder(folder):
        raise RunFolderError(f"{folder}: no such folder; give one that `mahalens run` has made")
    if not is_record(folder / CONFIG):
        raise RunFolderError(
            f"{folder}: holds no run ({CONFIG} is missing); give a folder that `mahalens run` has "
            "made"
        )
    config = _read_json(folder / CONFIG, RunConfig, _upgrade_config)
    if not is_record(folder / SUMMARY):
        raise RunFolderError(
            f"{folder}: the run is not finished ({SUMMARY} is missing); finish it with "
            f"`mahalens run --resume {folder}`"
        )
    summary = _read_json(folder / SUMMARY, Summary, _upgrade_summary)
    is_known = study is not None or summary.study in STUDIES
    if study is None:
        study = load_study(summary.study) if is_known else _plain_study(summary)
    written = checksums(folder)

    def optional(name: str, read: Callable[[Path], T], otherwise: T) -> T:
        there = name in written or (folder / name).exists()
        return read(folder / name) if there else otherwise

    plots: dict[str, NDArray[Any]] = optional(PLOTS, _read_arrays, {})
    curves: dict[str, Curves] = {}
    if is_known:  # others may count along a column of another name
        curves = optional(CURVES, partial(_read_curves, study=study), {})
    if study.variant == "pixels":
        plots = {_british(name): array for name, array in plots.items()}
    return RunRecords(
        folder=folder,
        config=config,
        summary=summary,
        study=study,
        trials=_read_trials(folder / TRIALS, study),
        curves=curves.get("", {}),
        plots=plots,
        by_variant=curves,
    )


def _plain_metric(name: str) -> Metric:
    return Metric(name.replace("_", " "), "", better=None)


def _plain_study(summary: Summary) -> Study[Any]:
    """Make a study of what the records say, for one that this version does not have."""

    def nothing(*_: object) -> Any:
        raise RunFolderError(f"study {summary.study!r} is unknown to this version")

    metrics = {row.metric: _plain_metric(row.metric) for row in summary.rows}
    groups = {name for outcome in summary.outcomes for name in outcome.group}
    return Study(
        name=summary.study,
        question="",
        source="here",
        config=Config,
        models={},
        metrics=metrics,
        claims=(),
        check=nothing,
        jobs=nothing,
        measure=nothing,
        primary=next(iter(metrics), ""),
        variant="data" if "data" in groups else "pixels" if "pixels" in groups else "",
        plots=(AllMetrics(name="metrics", title="All metrics", caption="Every trial is a dot."),),
    )


# --- Folders of earlier versions --------------------------------------------------------------

_OLD_SOURCES = {
    "000": "gaussian-results",
    "001": "interpreting",
    "002": "experiment-12",
    "003": "learn-metrics",
    "004": "next-checks",
    "arXiv 2411.17932": "use-metrics",
    "here": "here",
}
# Before claims had the field, "(raw pixels)" or "(on digits)" ended the statement.
_PUT_TO = re.compile(
    r"(?P<stated>.*) \((?:(?P<pixels>\w+) pixels|on (?P<data>[\w-]+))\)\.", re.DOTALL
)


def _british(value: Any) -> Any:
    """Spell the name of the variant ``normalised`` as records do now, wherever it stands.

    >>> _british({"a": "relu (normalized)", "b": ["normalized", "raw"]})
    {'a': 'relu (normalised)', 'b': ['normalised', 'raw']}
    """
    if isinstance(value, str):
        return re.sub(r"(?:^|(?<=[(/]))normalized(?=$|[)/])", "normalised", value)
    if isinstance(value, dict):
        return {name: _british(entry) for name, entry in value.items()}
    return [_british(entry) for entry in value] if isinstance(value, list) else value


def _upgrade_config(record: dict[str, Any]) -> dict[str, Any]:
    options = record.get("options")
    if isinstance(options, dict) and "pixels" in options:
        record["options"] = {**options, "pixels": _british(options["pixels"])}
    return record


def _upgrade_summary(record: dict[str, Any]) -> dict[str, Any]:
    if isinstance(record.get("claims"), list):
        study = str(record.get("study", ""))
        record["claims"] = [
            upgrade_claim(claim, study) if isinstance(claim, dict) else claim
            for claim in record["claims"]
        ]
    rows = record.get("rows")
    first = rows[0] if isinstance(rows, list) and rows else {}
    by_pixels = isinstance(first, dict) and "pixels" in (first.get("group") or {})
    return {name: _british(part) for name, part in record.items()} if by_pixels else record


def upgrade_claim(claim: Mapping[str, Any], study: str) -> dict[str, Any]:
    """Return a claim of an earlier version as this one writes it.

    Earlier versions wrote the data set into the statement, "not measured" for what was measured
    but is undecided, and numbers for sources.

    >>> old = {"id": "003/fails/raw", "source": "003", "statement": "It fails (raw pixels).",
    ...        "why": "Undecided. 1.", "verdict": "not measured"}
    >>> new = upgrade_claim(old, "representation")
    >>> new["id"], new["statement"], new["data"], new["verdict"]
    ('representation/fails/raw', 'It fails.', 'raw', 'undecided')
    >>> new["source"]
    'Neural Networks Learn Distance Metrics (arXiv 2502.02103)'
    """
    new = {"published": None, "measured": None, "why": "", **claim}
    if isinstance(new["published"], int | float):
        new["published"] = number(new["published"])
    if new.get("source") in _OLD_SOURCES:
        new["source"] = SOURCES[_OLD_SOURCES[new["source"]]]
    first, slash, key = str(new.get("id", "")).partition("/")
    if slash and first != study:
        new["id"] = f"{study}/{key}"
    if "data" in new:
        return new
    match = _PUT_TO.fullmatch(str(new.get("statement", "")))
    data = (match["pixels"] or match["data"]) if match else ""
    new["data"] = ""
    if match and str(new["id"]).endswith(f"/{data}"):
        new |= {"data": data, "statement": f"{match['stated']}."}
    is_open = str(new["why"]).startswith(("Undecided", "Too few trials"))
    if new.get("verdict") == "not measured" and is_open:
        new["verdict"] = "undecided"
    return new


# --- Files ------------------------------------------------------------------------------------

_REDO = "run the study again into a new folder, or bring the file back from a copy"


def damaged(path: Path, why: object) -> RunFolderError:
    """Return the error for a record that is there but cannot be understood or drawn."""
    return RunFolderError(f"{path}: is damaged ({' '.join(str(why).split())}); {_REDO}")


def is_record(path: Path) -> bool:
    """Return whether there is a file at ``path``; refuse pipes and devices, which may hang."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(
            f"{path}: cannot be read ({reason}); give a path that exists and you may read"
        ) from None
    if not stat.S_ISREG(mode):
        raise RunFolderError(
            f"{path}: is {name_of(mode)}, not a file; bring the file back from a copy"
        )
    return True


def _contents(path: Path) -> bytes:
    if not is_record(path):
        raise RunFolderError(f"{path}: is missing; {_REDO}")
    try:
        return read_file(path)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror}); check that it is a file you may read"
        ) from None


def _printable(value: Any) -> Any:
    """Make all texts of a JSON value printable: they go to terminals and pages."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _printable(part) for name, part in value.items()}
    return [_printable(part) for part in value] if isinstance(value, list) else value


def _read_json(path: Path, kind: type[T], upgrade: Callable[[dict[str, Any]], dict[str, Any]]) -> T:
    try:
        record = _printable(msgspec.json.decode(_contents(path)))
        return msgspec.convert(upgrade(record) if isinstance(record, dict) else record, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, error) from None


def _read_csv(path: Path, wanted: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each line of a CSV file by column, with its number."""
    try:
        text = _contents(path).decode("utf-8")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(reader, [])
        for name in wanted:
            if name not in header:
                raise damaged(path, f"no column {name!r}")
        for cells in reader:
            if len(cells) != len(header):
                raise damaged(
                    path, f"line {reader.line_num} has {len(cells)} of {len(header)} cells"
                )
            yield reader.line_num, dict(zip(header, map(printable, cells), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise damaged(path, error) from None


def _parse(path: Path, line: int, column: str, text: str, kind: Callable[[str], T]) -> T:
    try:
        return kind(text)
    except ValueError:
        raise damaged(path, f"line {line}, column {column}: {text!r} is not a number") from None


def _number(text: str) -> float:
    return float(text) if text.strip() else np.nan


def _variant_in(cells: Mapping[str, str], study: Study[Any]) -> str:
    name = cells.get(study.variant, "")
    return str(_british(name)) if study.variant == "pixels" else name


def _read_trials(path: Path, study: Study[Any]) -> TrialTable:
    table = TrialTable([], [], [], [], {})
    metrics: dict[str, list[float]] = {}
    by = (study.variant,) if study.variant else ()
    for line, cells in _read_csv(path, ("model", "trial", "status", *by)):
        table.model.append(cells["model"])
        table.variant.append(_variant_in(cells, study))
        table.trial.append(_parse(path, line, "trial", cells["trial"], int))
        table.status.append(cells["status"])
        for name, text in cells.items():
            if name in study.metrics:
                metrics.setdefault(name, []).append(_parse(path, line, name, text, _number))
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in metrics.items()}
    return replace(table, metrics=columns)


def _read_curves(path: Path, study: Study[Any]) -> dict[str, Curves]:
    """Return the curves by variant; a point without a number is left out."""
    by = (study.variant,) if study.variant else ()
    points: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}
    for line, cells in _read_csv(path, ("model", "trial", study.along, *by)):
        variant, model = _variant_in(cells, study), cells["model"]
        trial = _parse(path, line, "trial", cells["trial"], int)
        step = _parse(path, line, study.along, cells[study.along], float)
        for column in cells.keys() - {"model", "trial", study.along, *by}:
            value = _parse(path, line, column, cells[column], _number)
            if not np.isnan(value):
                points.setdefault((variant, column, model, trial), []).append((step, value))
    curves: dict[str, Curves] = {}
    for (variant, column, model, trial), pairs in points.items():
        step, value = np.asarray(sorted(pairs), dtype=np.float64).T
        of_model = curves.setdefault(variant, {}).setdefault(column, {}).setdefault(model, {})
        of_model[trial] = Curve(step, value)
    return curves


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(_contents(path))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from None
