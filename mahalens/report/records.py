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
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mahalens._show import Shown, counted, cut, quoted, table_html
from mahalens.errors import RunFolderError
from mahalens.files import is_folder, name_of, read_file
from mahalens.progress import printable
from mahalens.report.tables import number
from mahalens.studies.claims import SIGNIFICANT, Judgement
from mahalens.studies.folder import CONFIG, CURVES, PLOTS, SUMMARY, TRIALS, RunConfig, checksums
from mahalens.studies.plots import AllMetrics
from mahalens.studies.registry import STUDIES, load_study
from mahalens.studies.study import SOURCES, Config, Metric, Study

Floats = NDArray[np.float64]
T = TypeVar("T")


# --- The shapes of the records ----------------------------------------------------------------


class Row(Shown, msgspec.Struct, frozen=True):
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


class Outcome(Shown, msgspec.Struct, frozen=True):
    """The ends of the trials of one model on one variant."""

    model: str
    trials: int
    statuses: dict[str, int]
    basins: dict[str, int] = {}
    non_finite: list[int] = []
    best_trial: int | None = None
    seconds: float | None = None
    group: dict[str, Any] = {}


class Comparison(Shown, msgspec.Struct, frozen=True):
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
    """The part of ``summary.json`` that the report reads; other keys may be there."""

    study: str
    protocol: Literal["published", "scaled"]
    rows: list[Row]
    claims: list[Judgement]
    facts: dict[str, Any] = {}
    outcomes: list[Outcome] = []
    comparisons: list[Comparison] = []
    scaled: list[str] = []
    cautions: list[str] = []

    def __repr__(self) -> str:
        sizes = (counted(len(self.rows), "row"), counted(len(self.claims), "claim"))
        return f"Summary({cut(self.study, 40)}, {self.protocol}: {', '.join(sizes)})"

    def _repr_html_(self) -> str:
        """Return a row for each model and metric."""
        names = ("model", "metric", "mean", "std", "n", "published")
        rows = [
            (", ".join(map(str, row.group.values())), *(getattr(row, name) for name in names))
            for row in self.rows
        ]
        return table_html(repr(self), ("group", *names), rows)


@dataclass(frozen=True, repr=False)
class Curve(Shown):
    """One trial along its way: ``value[i]``, a loss or an accuracy, after step ``step[i]``."""

    step: Floats
    value: Floats


Trials = dict[str, dict[str, dict[int, float]]]
"""Metric, model, trial: the finite numbers of ``trials.csv``."""
Curves = dict[str, dict[str, dict[int, Curve]]]
"""Column of ``curves.csv``, model, trial."""


# --- A run ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class RunRecords:
    """Everything that a report shows of one run, or of one variant of it.

    Args:
        folder: where the run is.
        config: ``config.json``.
        summary: ``summary.json``; of a variant, its rows, outcomes, claims and comparisons.
        study: the study that made it; for one that is unknown here, a plain one with its name.
        all_trials: ``trials.csv`` by variant.
        all_curves: ``curves.csv`` by variant.
        plots: the arrays of ``plots.safetensors``; of a variant, without its name before them.
        variant: the name of the variant in the records; empty for the whole run.
        title: what people call the variant.
    """

    folder: Path
    config: RunConfig
    summary: Summary
    study: Study[Any]
    all_trials: dict[str, Trials]
    all_curves: dict[str, Curves] = field(default_factory=dict)
    plots: dict[str, NDArray[Any]] = field(default_factory=dict)
    variant: str = ""
    title: str = ""

    def __repr__(self) -> str:
        sizes = (
            counted(len(self.models()), self.study.thing),
            counted(len(self.metrics()), "metric"),
            counted(len(self.summary.claims), "claim"),
        )
        variant = f", {quoted(self.variant)}" if self.variant else ""
        study = f"{cut(self.study.name, 40)}{variant}, {self.summary.protocol} protocol"
        return f"RunRecords({study}: {', '.join(sizes)})"

    def _repr_html_(self) -> str:
        """Return the answer of the run, then its tables as ``mahalens run`` prints them."""
        from mahalens.report.run_tables import headline, run_tables

        answer = headline(claim.verdict for claim in self.summary.claims)
        tables = run_tables(self.folder.name, self)
        return "\n".join([table_html(answer), *(table._repr_html_() for table in tables)])

    @property
    def trials(self) -> Trials:
        """The numbers of this variant; of a run with variants empty, see :meth:`variants`."""
        return self.all_trials.get(self.variant, {})

    @property
    def curves(self) -> Curves:
        """The curves of this variant, likewise."""
        return self.all_curves.get(self.variant, {})

    def values(self, model: str, metric: str) -> dict[int, float]:
        """Return the value of ``metric`` for each trial of ``model`` that has a finite one."""
        return self.trials.get(metric, {}).get(model, {})

    def row(self, model: str, metric: str) -> Row | None:
        """Return the summary of one metric of one model, if there is one."""
        rows = (r for r in self.summary.rows if r.model == model and r.metric == metric)
        return next(rows, None)

    def outcome(self, model: str) -> Outcome | None:
        """Return how the trials of a model ended."""
        return next((o for o in self.summary.outcomes if o.model == model), None)

    def best_trial(self, model: str) -> int | None:
        """Return the best trial of a model, if one is known."""
        outcome = self.outcome(model)
        return None if outcome is None else outcome.best_trial

    def lost_trials(self, model: str) -> list[int]:
        """Return the trials of a model that ran away."""
        outcome = self.outcome(model)
        return [] if outcome is None else outcome.non_finite

    def models(self) -> list[str]:
        """Return the models of this run in the order of the study; those it lacks come last."""
        entries = (entry.model for entry in self._entries)
        return in_order((*entries, *self.measured_models()), self.study.models)

    def measured_models(self) -> list[str]:
        """Return the models that have trials here."""
        return [
            m
            for by_model in self.all_trials.values()
            for models in by_model.values()
            for m in models
        ]

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
        names = (*map(self._variant_of, self._entries), *self.all_trials)
        return [self._on(name) for name in dict.fromkeys(names)]

    @property
    def _entries(self) -> tuple[Row | Outcome, ...]:
        return (*self.summary.rows, *self.summary.outcomes)

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
            all_trials={n: models for n, models in self.all_trials.items() if n == variant},
            plots={n[len(start) :]: a for n, a in self.plots.items() if n.startswith(start)},
            variant=variant,
            title=self.study.variant_title(variant) if variant else "",
        )


def split_name(name: str) -> tuple[str, str]:
    """Return model and variant of a name in a comparison.

    >>> split_name("relu2 (raw)"), split_name("relu2")
    (('relu2', 'raw'), ('relu2', ''))
    """
    model, _, variant = name.partition(" (")
    return model, variant.removesuffix(")")


def in_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return names without repetition: those that are known in their order, then the others.

    >>> in_order(["new", "b", "a", "b"], ["a", "b", "c"])
    ['a', 'b', 'new']
    """
    unique = dict.fromkeys(names)
    first = [name for name in known if name in unique]
    return list(dict.fromkeys([*first, *unique]))


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
            f"`mahalens run --resume {shlex.quote(str(folder))}`"
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
        all_trials=_read_trials(folder / TRIALS, study),
        all_curves=curves,
        plots=plots,
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
        variant=next((name for name in ("data", "pixels", "network") if name in groups), ""),
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
    pattern = r"(?:^|(?<=[(/]))normalized(?=$|[)/])"
    return _changed(value, lambda text: re.sub(pattern, "normalised", text))


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with all of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _changed(part, change) for name, part in value.items()}
    return [_changed(part, change) for part in value] if isinstance(value, list) else value


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
    upgraded: dict[str, Any] = _british(record) if by_pixels else record
    return upgraded


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


def _read_json(path: Path, kind: type[T], upgrade: Callable[[dict[str, Any]], dict[str, Any]]) -> T:
    try:
        record = _changed(msgspec.json.decode(_contents(path)), printable)  # for terminals
        return msgspec.convert(upgrade(record) if isinstance(record, dict) else record, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, error) from None


def _read_csv(
    path: Path, study: Study[Any], columns: Iterable[str] | None, *wanted: str
) -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """Yield variant, model and trial of each line, and the numbers in ``columns`` (None: all).

    A cell without a number is NaN, but not in the columns ``wanted``, which must be there.
    """
    known = ("model", "trial", *((study.variant,) if study.variant else ()))
    try:
        text = _contents(path).decode("utf-8")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(reader, [])
        for name in (*known, *wanted):
            if name not in header:
                raise damaged(path, f"no column {name!r}")
        for cells in reader:
            place = f"line {reader.line_num}"
            if len(cells) != len(header):
                raise damaged(path, f"{place} has {len(cells)} of {len(header)} cells")
            line = dict(zip(header, map(printable, cells), strict=True))
            numbers = {
                name: _parse(path, f"{place}, column {name}", text, name not in wanted)
                for name, text in line.items()
                if (name not in known if columns is None else name in columns)
            }
            trial = _parse(path, f"{place}, column trial", line["trial"], False, int)
            variant = line.get(study.variant, "")
            variant = _british(variant) if study.variant == "pixels" else variant
            yield variant, line["model"], int(trial), numbers
    except (csv.Error, UnicodeDecodeError) as error:
        raise damaged(path, error) from None


def _parse(
    path: Path, place: str, text: str, or_nan: bool, kind: Callable[[str], float] = float
) -> float:
    if or_nan and not text.strip():
        return np.nan
    try:
        return kind(text)
    except ValueError:
        raise damaged(path, f"{place}: {text!r} is not a number") from None


def _read_trials(path: Path, study: Study[Any]) -> dict[str, Trials]:
    trials: dict[str, Trials] = {}
    lines = _read_csv(path, study, study.metrics, "status")
    for variant, model, trial, numbers in lines:
        for metric, value in numbers.items():
            of_metric = trials.setdefault(variant, {}).setdefault(metric, {})
            of_model = of_metric.setdefault(model, {})
            if np.isfinite(value):
                of_model[trial] = value
    return trials


def _read_curves(path: Path, study: Study[Any]) -> dict[str, Curves]:
    """Return the curves by variant; a point without a number is left out."""
    points: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}
    for variant, model, trial, numbers in _read_csv(path, study, None, study.along):
        step = numbers.pop(study.along)
        for column, value in numbers.items():
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
