"""Records of audits: typed results, how their fields fit together, their file, two compared.

:class:`AuditRecord` is what :func:`mahalens.audit` returns; :mod:`readings` has the parts of a
layer, and :class:`AuditDifference` what changed from one record to another. :data:`FIELDS` is the
one table of what those parts hold: saved records are checked against it, and :mod:`record_tables`
lays out ``audit.json`` and tables by it.

In a file the tensors of a record lie under the path that leads to them, such as
``layers.0.units.mean``. All the rest is JSON text in the file's metadata, in which
``{"tensor": name}`` stands for a tensor and ``{"float": "nan"}`` for a number that JSON does not
have. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from mahalens._show import LONGEST, Shown, counted, cut, quoted, table_html
from mahalens.auditing.pairs import PairReading
from mahalens.auditing.perturb import PerturbationReading
from mahalens.auditing.readings import (
    HistogramReading,
    HyperplaneReading,
    PrototypeReading,
    UnitReading,
)
from mahalens.auditing.verdict import Suggestion, Verdict
from mahalens.auditing.whitening import WhiteningReading
from mahalens.errors import InputError
from mahalens.files import open_file, replacing
from mahalens.progress import printable

if TYPE_CHECKING:
    import pandas as pd


FORMAT = 1
"""Version of the record's form, stored with it."""


class Settings(Shown, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of an audit: with the same ones it finds the same."""

    tolerance: float = 1e-6
    """An activation of at most this share of the layer's own spread is no activity."""
    rare: tuple[float, ...] = (0.05, 0.01)
    """Units active on less than these shares of the rows are rarely active."""
    through: float = 0.5
    """A hyperplane passes through a class whose mean is within so many of its spreads."""
    cosine: float = 0.999
    """Two units are parallel or mirrored beyond this cosine."""
    quantiles: tuple[float, ...] = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    bins: int = 40
    rows_kept: int = 4096
    """Rows drawn at random from all, for quantiles and histograms (all, if there are fewer)."""
    patches: int = 16
    """Positions per sample drawn at random for the covariance of a convolution's patches."""
    widest: int = 1536
    """Inputs per row up to which the covariance of a layer's input is gathered."""
    prototypes: int = 8
    clusters: int | None = None
    seed: int = 0


class DataFacts(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The data that the audit saw."""

    samples: int
    shape: tuple[int, ...]
    """Shape of one sample, as the model is given it."""
    classes: tuple[str, ...] = ()
    """Names of the classes; empty without labels."""
    counts: tuple[int, ...] = ()
    """Samples of each class."""
    labels: str = "none"
    """``given``, ``clusters`` (found by k-means) or ``none``."""
    source: str = ""
    image: tuple[int, ...] | None = None
    """The shape [H, W] or [C, H, W] to draw a sample as, where it is an image."""


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The results for one layer."""

    name: str
    kind: str
    """``Linear``, ``Conv1d``, ``Conv2d``, ``Conv3d``, or ``features`` for given activations."""
    units_count: int
    inputs: int
    """Inputs of a row: of a Linear its width, of a convolution channels x kernel."""
    activation: str
    """The function that follows, such as ``relu``; ``none``, or ``mixed`` if uses differ."""
    folded: str | None = None
    """What stands between the layer and its activation and counts as part of it."""
    calls: int
    """Uses of the layer in one forward pass."""
    positions: int
    """Rows per sample, over all uses."""
    rows: int
    feeds: str | None = None
    """The one layer that reads the activations, if they go there and nowhere else unchanged."""
    geometry: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Of a convolution: kernel, stride, padding, dilation, groups."""
    units: UnitReading
    hyperplanes: HyperplaneReading | None
    pairs: PairReading | None
    whitening: WhiteningReading | None = None
    prototypes: PrototypeReading | None = None
    histograms: HistogramReading | None = None
    perturbation: PerturbationReading | None = None
    verdict: Verdict
    suggestions: tuple[Suggestion, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out or scaled down here, and why."""

    def __repr__(self) -> str:
        dead = counted(len(self.units.dead), "dead unit")
        word = cut(self.verdict.word, 40)
        return f"LayerRecord({quoted(self.name)}, {self._title}: {dead}, {word})"

    def _repr_html_(self) -> str:
        """Return the units that are worth a look, and the verdict."""
        units, pairs = self.units, self.pairs
        lists: dict[str, Sequence[Any]] = {
            "dead": units.dead,
            **{
                f"active on less than {level} of the rows": some
                for level, some in units.rare.items()
            },
            "always active": units.always,
            "saturated": units.saturated,
        }
        if pairs is not None:
            lists |= {f"{kind} pairs": getattr(pairs, kind) for kind in fields_in("pairs", "pairs")}
        rows = [(name, len(some), _first_few(some)) for name, some in lists.items()]
        suggestions = [f"{advice.action}: {advice.effect}" for advice in self.suggestions]
        notes = [f"Verdict: {self.verdict.word}. {self.verdict.reason}", *suggestions, *self.notes]
        caption = f"Layer {self.name}: {self._title}"
        return table_html(caption, ("units", "count", "which"), rows, notes)

    @property
    def _title(self) -> str:
        follows = "" if self.activation == "none" else f" + {cut(self.activation, 30)}"
        kind = f"{cut(self.kind, 30)}{follows}"
        return f"{kind}, {counted(self.units_count, 'unit')} of {counted(self.inputs, 'input')}"


def _first_few(numbers: Sequence[Any], few: int = 10) -> str:
    shown = [" = ".join(map(str, n)) if isinstance(n, tuple) else str(n) for n in numbers[:few]]
    return ", ".join(shown) + (", …" if len(numbers) > few else "")


class Skipped(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A part of the network with weights that the audit cannot read as hyperplanes."""

    name: str
    kind: str
    reason: str


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Results of an audit; made by :func:`mahalens.audit`, read back by :func:`load_audit`.

    ``print(record.verdict)`` is the answer in a sentence, ``record.layers`` has one entry for each
    layer. ``audit.json`` holds the same.
    """

    format: int = FORMAT
    mahalens: str
    torch: str
    model: str
    settings: Settings
    data: DataFacts
    layers: tuple[LayerRecord, ...]
    skipped: tuple[Skipped, ...] = ()
    accuracy: float | None = None
    """Share of the samples whose largest output is at their label, where that makes sense."""
    verdict: str
    """One sentence about the whole network."""
    baseline: str = "none"
    """What layers were compared with: ``fresh`` (a newly initialised copy), ``shuffled`` (a copy
    with the entries of some weights in random order), ``given``, or ``none``: not asked for, not
    possible (a note says why), or not needed, as no layer differs from chance."""
    examples: Tensor | None = None
    """The samples that prototypes refer to, ``[M, *shape]``, for pictures."""
    example_samples: Tensor | None = None
    """Their numbers in the data [M], int64, ascending."""
    example_labels: Tensor | None = None
    """Their classes [M], int64; None without labels."""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        head = (
            f"AuditRecord({quoted(self.model)}, {counted(len(self.layers), 'layer')}, "
            f"{counted(self.data.samples, 'sample')}: "
        )
        return f"{head}{cut(self.verdict, LONGEST - len(head) - 1)})"

    def _repr_html_(self) -> str:
        """Return a table with a row per layer."""
        from mahalens.auditing.record_tables import layer_row

        names = ("units", "dead", "saturated", "mirrored_pairs", "duplicate_pairs", "verdict")
        rows = []
        for layer in self.layers:
            row = layer_row(layer)
            kind = f"{layer.kind}{'' if layer.activation == 'none' else f' + {layer.activation}'}"
            rows.append((layer.name, kind, *(row[name] for name in names)))
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.2%}"
        return table_html(
            f"{self.model}: {counted(self.data.samples, 'sample')}{accuracy}",
            ("layer", "kind", *(name.replace("_", " ") for name in names)),
            rows,
            (self.verdict, *self.notes),
        )

    def report(self, folder: str | os.PathLike[str], *, figures: bool = False) -> Path:
        """Write the page ``report.html`` into a folder; return its path.

        With ``figures`` the pictures are written as ``figures/*.png`` too. See
        :func:`mahalens.report.write_audit_report`.
        """
        from mahalens.report import write_audit_report

        return write_audit_report(self, folder, figures=figures)

    def show(self) -> Path:
        """Write the page into a new temporary folder and open it in a browser; return its path.

        The file stays, because the browser may read it later: delete it when you like.
        """
        page = self.report(tempfile.mkdtemp(prefix="mahalens-"))
        webbrowser.open(page.as_uri())
        return page

    def layer(self, name: str) -> LayerRecord:
        """Return the layer of that name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        names = ", ".join(layer.name for layer in self.layers)
        hint = "" if isinstance(name, str) else f", and a name is a text, such as {str(name)!r}"
        raise InputError(f"there is no layer {name!r} in this record; there are {names}{hint}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to one ``.safetensors`` file; :func:`mahalens.load_audit` reads it.

        It is written under a temporary name and moved into place; a missing folder is made.
        """
        _save(self, Path(path))

    def diff(self, after: AuditRecord) -> AuditDifference:
        """Return what changed from this record to a later one of the same network."""
        if not isinstance(after, AuditRecord):
            raise InputError(f"the other record is a {type(after).__name__}, wanted an AuditRecord")
        return difference(self, after)

    def to_frame(self, what: str = "units") -> pd.DataFrame:
        """Return a data frame with a row per unit, or per ``layers``, ``classes`` or ``pairs``."""
        from mahalens.auditing.record_tables import frame_of

        return frame_of(self, what)


class Field(NamedTuple):
    """A field of a reading: what it holds, the axes of a tensor, the table it is a column of."""

    kind: str
    """Tensors: ``float``, ``int64``, ``bool``, ``count`` (whole numbers, of any type). Others:
    ``units`` (numbers of units, or such by threshold), ``pairs`` of units, ``number``."""
    axes: str = ""
    """A letter per axis: K units, C classes (at least one: H), Q quantile levels; ? is any length.
    Other letters are lengths that agree within a layer."""
    table: str = ""
    """``units``, ``classes``, ``pairs`` or ``layers``, with columns in the order given here."""


_PER_UNIT, _PER_CLASS = Field("float", "K", "units"), Field("float", "CK", "classes")

FIELDS: dict[str, dict[str, Field]] = {
    "units": {
        **dict.fromkeys(("dead", "rare", "always", "saturated"), Field("units", table="units")),
        **dict.fromkeys(("active", "flat", "mean", "std", "skewness"), _PER_UNIT),
        **dict.fromkeys(("least", "greatest"), _PER_UNIT),
        "quantiles": Field("float", "KQ", "units"),
        **dict.fromkeys(("class_active", "class_mean", "class_std", "class_skewness"), _PER_CLASS),
        "class_quantiles": Field("float", "CKQ"),
        "silent_share": Field("number", table="layers"),
        "silent_by_class": Field("float", "C"),
    },
    "hyperplanes": {
        **dict.fromkeys(("length", "mean_distance", "mean_spreads"), _PER_UNIT),
        **dict.fromkeys(("class_distance", "class_spreads"), _PER_CLASS),
        "nearest": Field("int64", "K", "units"),
        "through": Field("bool", "K", "units"),
        **dict.fromkeys(("chance", "positive"), _PER_UNIT),
        "common": Field("bool", "K"),
    },
    "pairs": {
        **dict.fromkeys(("mirrored", "duplicate", "parallel"), Field("pairs", table="pairs")),
        "kept": Field("units", table="units"),
    },
    "whitening": {
        **dict.fromkeys(("sphericity", "isotropy"), Field("number", table="layers")),
        **dict.fromkeys(
            ("precision_error", "precision_scale", "precision_cosine"),
            Field("number", table="layers"),
        ),
        **dict.fromkeys(("spectrum", "recovered", "output_spectrum"), Field("float", "?")),
        **dict.fromkeys(("input_rank", "output_rank"), Field("number", table="layers")),
    },
    "prototypes": {
        **dict.fromkeys(
            ("near_sample", "near_position", "active_sample", "active_position"),
            Field("int64", "KP"),
        ),
        **dict.fromkeys(("near_distance", "active_value"), Field("float", "KP")),
    },
    "histograms": {
        "units": Field("units"),
        "edges": Field("float", "UE"),
        "counts": Field("count", "UHB"),
        "overlap": Field("float", "UH"),
    },
}
"""What the readings of a layer hold, by part and field."""


def fields_in(table: str, part: str) -> dict[str, Field]:
    """Return the fields of a part that are columns of a table."""
    return {name: field for name, field in FIELDS[part].items() if field.table == table}


def to_plain(
    value: Any,
    tensor: Callable[[str, Tensor], Any],
    unfinite: Callable[[float], Any],
    path: str = "",
) -> Any:
    """Return a record, or a part of one, as dictionaries, lists, texts and numbers.

    Args:
        value: the record.
        tensor: called with the path that leads to a tensor and the tensor, for what stands there.
        unfinite: called with a float that JSON does not have, likewise.
        path: where the value lies.
    """
    if isinstance(value, Tensor):
        return tensor(path, value)
    if isinstance(value, float) and not math.isfinite(value):
        return unfinite(value)
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    within = f"{path}." if path else ""
    if isinstance(value, dict):
        return {k: to_plain(v, tensor, unfinite, f"{within}{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v, tensor, unfinite, f"{within}{i}") for i, v in enumerate(value)]
    return value


KEY = "mahalens.audit"
_LARGEST = 90_000_000  # characters; the format takes no header of more than 100 MB
_HOW = "give a file that save of an audit's record wrote"


def _save(record: AuditRecord, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}

    def put_aside(name: str, tensor: Tensor) -> dict[str, str]:
        tensors[name] = tensor
        return {"tensor": name}

    plain = to_plain(record, put_aside, lambda number: {"float": str(number)})
    text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    if len(text) > _LARGEST:
        raise InputError(
            f"{path}: the lists of units and pairs take {len(text) / 1e6:.0f} MB, more than a "
            "file can hold; audit with a larger cosine, so that fewer pairs are found"
        )
    try:
        with replacing(path) as temporary:
            # Cloned, as the format has no two names for one memory.
            plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
            save_file(plain, temporary, {KEY: text})
    except SafetensorError as error:
        raise InputError(f"{path}: cannot be written ({_line(error)})") from None


def load_audit(path: str | os.PathLike[str]) -> AuditRecord:
    """Read a record that :meth:`AuditRecord.save` wrote; every number is as it was.

    A file that is missing, damaged, of another kind or of another version is an
    :class:`~mahalens.errors.InputError` of one line that names the file.

    Example:
        >>> record.save("audit.safetensors")  # doctest: +SKIP
        >>> mahalens.load_audit("audit.safetensors").layers[0].units.dead  # doctest: +SKIP
        (3, 17)
    """
    path = Path(path)
    text, tensors = _read(path)
    if text is None:
        raise InputError(f"{path}: holds no audit; {_HOW}")
    try:
        plain = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _damaged(path, error) from None
    if not isinstance(plain, dict) or "format" not in plain:
        raise _damaged(path, "it does not say its format")
    if plain["format"] != FORMAT:
        raise InputError(
            f"{path}: is an audit in format {plain['format']!r} of mahalens "
            f"{plain.get('mahalens', 'unknown')}, and this mahalens reads format {FORMAT}; "
            "audit again, or use that version"
        )
    try:
        record = msgspec.convert(_from_plain(plain, tensors), AuditRecord)
        _check_record(record)
    except (msgspec.ValidationError, KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, error.args[0] if isinstance(error, KeyError) else error) from None
    return record


def _read(path: Path) -> tuple[str | None, dict[str, Tensor]]:
    """Return the text in the metadata and the tensors of a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with open_file(path):  # the library says less about files that are not there
            pass
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is None:
                return None, {}
            return text, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        reason = error.strerror or _line(error)
        raise InputError(f"{path}: cannot be read ({reason}); {_HOW}") from None
    except SafetensorError as error:
        raise InputError(
            f"{path}: is not a safetensors file, or damaged ({_line(error)}); {_HOW}"
        ) from None


def _from_plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            ((kind, content),) = value.items()
            if kind == "tensor" and isinstance(content, str):
                if content not in tensors:
                    raise KeyError(f"tensor {content} is missing")
                return tensors[content]
            if kind == "float" and isinstance(content, str):
                return float(content)
        return {name: _from_plain(part, tensors) for name, part in value.items()}
    if isinstance(value, list):
        return [_from_plain(part, tensors) for part in value]
    return value


def _damaged(path: Path, why: object) -> InputError:
    return InputError(f"{path}: is a damaged audit ({_line(why)}); audit again, or bring a copy")


def _line(why: object) -> str:
    return " ".join(str(why).split())


def _check_record(record: AuditRecord) -> None:
    """Raise ``ValueError`` if shapes, types or numbers of units do not fit together.

    ``msgspec`` has checked the types of all that is no tensor before.
    """
    names, data, examples = [layer.name for layer in record.layers], record.data, record.examples
    _require(len(set(names)) == len(names), "two layers have the same name")
    same = not data.counts or len(data.counts) == len(data.classes)
    _require(same, "data.counts and data.classes differ in length")
    _require(all(size > 0 for size in data.image or ()), "data.image has a side without pixels")
    together = (examples is None) == (record.example_samples is None)
    _require(together, "examples and example_samples belong together")
    for name in ("example_samples", "example_labels"):
        if (tensor := getattr(record, name)) is not None:
            vector = tensor.ndim == 1 and tensor.dtype == torch.int64
            _require(vector, f"{name} is no vector of whole numbers")
            same = examples is not None and examples.shape[:1] == tensor.shape
            _require(same, f"examples and {name} differ in length")
    for layer in record.layers:
        _check_layer(layer, len(data.classes), len(record.settings.quantiles))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_layer(layer: LayerRecord, classes: int, levels: int) -> None:
    here = f"layer {layer.name}:"
    sizes = {"K": layer.units_count, "C": classes, "Q": levels, "H": max(classes, 1)}
    units = {f"{here} {suggestion.action}": suggestion.units for suggestion in layer.suggestions}
    for part, fields in FIELDS.items():
        for name, field in fields.items() if getattr(layer, part) is not None else ():
            value, where = getattr(getattr(layer, part), name), f"{here} {part}.{name}"
            if isinstance(value, Tensor):
                _check_tensor(where, value, field, sizes)
            elif field.kind in ("units", "pairs"):
                units[where] = _flat(value)
    for where, numbers in units.items():
        named = all(0 <= unit < layer.units_count for unit in numbers)
        _require(named, f"{where} names a unit that is not among {layer.units_count}")
    if layer.histograms is not None:
        counts = layer.histograms.counts
        fits = sizes["U"] == len(layer.histograms.units) and sizes["E"] == sizes["B"] + 1
        _require(fits, f"{here} the parts of histograms differ in length")
        whole = bool(((counts >= 0) & counts.isfinite()).all())
        _require(whole, f"{here} histograms.counts holds what is no count")
    nearest = None if layer.hyperplanes is None else layer.hyperplanes.nearest
    known = nearest is None or bool(((nearest >= -1) & (nearest < classes)).all())
    _require(known, f"{here} nearest names a class that is not among {classes}")


def _check_tensor(where: str, tensor: Tensor, field: Field, sizes: dict[str, int]) -> None:
    axes = f"{where} has {tensor.ndim} axes in place of {len(field.axes)}"
    _require(tensor.ndim == len(field.axes), axes)
    for axis, length in zip(field.axes, tensor.shape, strict=True):
        same = axis == "?" or sizes.setdefault(axis, length) == length
        _require(same, f"{where} has a length of {length} in place of {sizes.get(axis)}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    allowed = {"count": True, "float": tensor.dtype.is_floating_point}
    _require(allowed.get(field.kind, dtype == field.kind), f"{where} is of type {dtype}")


def _flat(value: Any) -> tuple[int, ...]:
    """Return every number in numbers, pairs of them, or a dictionary of them."""
    if isinstance(value, int):
        return (value,)
    parts = value.values() if isinstance(value, dict) else value
    return tuple(number for part in parts for number in _flat(part))


Number = float | int | None
Pairs = tuple[tuple[int, int], ...]

_RELATIVE, _ABSOLUTE = 1e-6, 1e-9  # numbers closer than this are the same but for rounding
_STILL = 1e-5  # hyperplanes that moved by fewer spreads stand still
_MOST_NAMED = 8
_COUNTS = ("dead", "mirrored_pairs", "duplicate_pairs")
_COMPARED = (
    *_COUNTS,
    *("silent_share", "score", "sphericity", "precision_error", "input_rank", "output_rank"),
    "perturbation_index",
)


class Change(msgspec.Struct, frozen=True):
    """A number before and after; None where it was not measured."""

    before: Number
    after: Number

    @property
    def changed(self) -> bool:
        """Whether the two differ by more than rounding."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        if math.isnan(self.before) or math.isnan(self.after):
            return not (math.isnan(self.before) and math.isnan(self.after))
        return not math.isclose(self.before, self.after, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)

    def __str__(self) -> str:
        texts = [
            "unknown" if n is None else str(n) if isinstance(n, int) else f"{n:.4g}"
            for n in (self.before, self.after)
        ]
        return " -> ".join(texts)


class LayerDifference(Shown, msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Changes in one layer. Lists of units are empty where the two layers differ in size."""

    name: str
    units: Change
    verdict_before: str
    verdict_after: str
    died: tuple[int, ...] = ()
    revived: tuple[int, ...] = ()
    became_rare: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """By threshold; units that died included."""
    mirrored_gained: Pairs = ()
    mirrored_lost: Pairs = ()
    duplicate_gained: Pairs = ()
    duplicate_lost: Pairs = ()
    numbers: dict[str, Change]
    """Counts of units and pairs, ``sphericity``, ``precision_error``, ``input_rank``,
    ``output_rank``, ``score``, ``silent_share``, ``perturbation_index``."""
    shift: Tensor | None = None
    """By how many spreads the data's mean moved relative to each hyperplane [K]."""
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True if something changed by more than rounding."""
        return bool(self.findings())

    def findings(self) -> list[str]:
        """Return each change in a few words, the most important first."""
        lines = []
        if self.verdict_before != self.verdict_after:
            lines.append(f"{self.verdict_before} -> {self.verdict_after}")
        if self.units.changed:
            lines.append(f"units {self.units}")
        lists: list[tuple[str, tuple[Any, ...]]] = [
            ("died", self.died),
            ("came back to life", self.revived),
        ]
        for threshold, units in self.became_rare.items():
            rare = tuple(unit for unit in units if unit not in self.died)
            lists.append((f"now active on less than {threshold}", rare))
        for kind in ("mirrored", "duplicate"):
            lists.append((f"{kind} new", getattr(self, f"{kind}_gained")))
            lists.append((f"{kind} lost", getattr(self, f"{kind}_lost")))
        lines += [f"{len(items)} {words} ({_named(items)})" for words, items in lists if items]
        listed = not self.units.changed  # else the counts are all there is to tell
        for name, change in self.numbers.items():
            if change.changed and not (listed and name in _COUNTS):
                lines.append(f"{name.replace('_', ' ')} {change}")
        return lines + _moved(self.shift)


class AuditDifference(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Changes from one record to another; ``print`` shows them in a few lines."""

    layers: tuple[LayerDifference, ...]
    """The layers that both records have."""
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    accuracy: Change
    notes: tuple[str, ...] = ()
    """Why the two records may not be comparable."""

    @property
    def changed(self) -> bool:
        """True if something changed by more than rounding."""
        layers = any(layer.changed for layer in self.layers)
        return layers or bool(self.removed or self.added) or self.accuracy.changed

    def __repr__(self) -> str:
        return f"AuditDifference({cut(str(self).splitlines()[0], 150)})"

    def _repr_html_(self) -> str:
        """Return a row for each change of a layer."""
        rows = [(layer.name, change) for layer in self.layers for change in layer.findings()]
        caption = str(self).splitlines()[0]
        return table_html(caption, ("layer", "change"), rows, self.notes)

    def __str__(self) -> str:
        different = [layer for layer in self.layers if layer.changed]
        heads = []
        if different:
            total = len(self.layers)
            heads.append(f"{len(different)} of {total} layer{'s' * (total > 1)} changed")
        if self.accuracy.changed:
            heads.append(f"accuracy {self.accuracy}")
        if self.removed:
            heads.append(f"gone: {_named(self.removed)}")
        if self.added:
            heads.append(f"new: {_named(self.added)}")
        lines = ["; ".join(heads) or "nothing changed"]
        lines += [f"  {layer.name}: {'; '.join(layer.findings())}" for layer in different]
        notes = [*self.notes, *(f"{x.name}: {note}" for x in self.layers for note in x.notes)]
        # Names in a record may hold anything.
        return "\n".join(map(printable, [*lines, *(f"note: {note}" for note in notes)]))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row per layer and number: ``layer what before after changed``."""
        rows: list[tuple[Any, ...]] = [
            ("", "accuracy", self.accuracy.before, self.accuracy.after, self.accuracy.changed)
        ]
        for layer in self.layers:
            was, now = layer.verdict_before, layer.verdict_after
            rows.append((layer.name, "verdict", was, now, was != now))
            for what, change in {"units": layer.units, **layer.numbers}.items():
                rows.append((layer.name, what, change.before, change.after, change.changed))
        columns = ("layer", "what", "before", "after", "changed")
        return [dict(zip(columns, row, strict=True)) for row in rows]


def difference(before: AuditRecord, after: AuditRecord) -> AuditDifference:
    """Compare two records of a network, layer by layer of the same name.

    Records of other data or with other settings are compared all the same, with a note. Where a
    layer's number of units differs its units cannot be told apart, and only the layer's numbers
    are compared. Numbers equal within rounding (1e-6) count as unchanged.

    Example:
        >>> print(before.diff(after))  # doctest: +SKIP
        1 of 3 layers changed; accuracy 0.925 -> 0.931
          fc1: mixed -> distance-like; 2 died (3, 17); sphericity 2.31 -> 0.4
    """
    was = {layer.name: layer for layer in before.layers}
    now = {layer.name: layer for layer in after.layers}
    return AuditDifference(
        layers=tuple(_layer_difference(was[name], now[name]) for name in was if name in now),
        removed=tuple(name for name in was if name not in now),
        added=tuple(name for name in now if name not in was),
        accuracy=Change(before.accuracy, after.accuracy),
        notes=tuple(_notes(before, after)),
    )


def _layer_difference(before: LayerRecord, after: LayerRecord) -> LayerDifference:
    from mahalens.auditing.record_tables import layer_row

    was, now = layer_row(before), layer_row(after)
    units = Change(before.units_count, after.units_count)
    notes = [
        f"{name} {was[name]} -> {now[name]}"
        for name in ("kind", "activation", "inputs")
        if was[name] != now[name]
    ]
    if units.changed:
        notes.append("another number of units, so only numbers of the layer are compared")
    return LayerDifference(
        name=before.name,
        units=units,
        verdict_before=before.verdict.word,
        verdict_after=after.verdict.word,
        numbers={name: Change(was[name], now[name]) for name in _COMPARED},
        notes=tuple(notes),
        **({} if units.changed else _unit_differences(before, after)),
    )


def _unit_differences(before: LayerRecord, after: LayerRecord) -> dict[str, Any]:
    """Return the parts of a difference that are about single units."""
    parts: dict[str, Any] = {
        "died": _without(after.units.dead, before.units.dead),
        "revived": _without(before.units.dead, after.units.dead),
        "became_rare": {
            threshold: _without(units, before.units.rare[threshold])
            for threshold, units in after.units.rare.items()
            if threshold in before.units.rare
        },
    }
    if before.pairs is not None and after.pairs is not None:
        for kind in ("mirrored", "duplicate"):
            was, now = getattr(before.pairs, kind), getattr(after.pairs, kind)
            parts[f"{kind}_gained"] = _without(now, was)
            parts[f"{kind}_lost"] = _without(was, now)
    if before.hyperplanes is not None and after.hyperplanes is not None:
        parts["shift"] = after.hyperplanes.mean_spreads - before.hyperplanes.mean_spreads
    return parts


def _notes(before: AuditRecord, after: AuditRecord) -> list[str]:
    notes = []
    for what in ("data", "settings"):
        was, now = getattr(before, what), getattr(after, what)
        other = [name for name in was.__struct_fields__ if getattr(was, name) != getattr(now, name)]
        if other:
            names = ", ".join(name.replace("_", " ") for name in other)
            notes.append(f"the two audits differ in {what} ({names}), not only in the network")
    if before.model != after.model:
        notes.append(f"the models are called {before.model} and {after.model}")
    if before.mahalens != after.mahalens:
        notes.append(f"made by mahalens {before.mahalens} and {after.mahalens}")
    return notes


def _without(these: Any, those: Any) -> Any:
    known = set(those)
    return tuple(item for item in these if item not in known)


def _moved(shift: Tensor | None) -> list[str]:
    if shift is None or not shift.numel():
        return []
    size = shift.double().abs().nan_to_num(nan=0.0)
    unit = int(size.argmax())
    if size[unit] <= _STILL:
        return []
    median = float(torch.quantile(size, 0.5))
    return [
        f"hyperplanes moved by {median:.2g} spreads (median), at most {size[unit]:.2g} ({unit})"
    ]


def _named(items: tuple[Any, ...]) -> str:
    names = ["-".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in items]
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
