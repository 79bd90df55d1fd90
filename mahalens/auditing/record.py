"""Records of audits: typed results, how their fields fit together, and the file that holds them.

:class:`AuditRecord` is what :func:`mahalens.audit` returns; :mod:`readings` has the parts of a
layer. :data:`FIELDS` is the one table of what those parts hold: saved records are checked against
it, and :mod:`record_tables` lays out ``audit.json`` and tables by it.

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
from mahalens.auditing.suggestions import Suggestion
from mahalens.auditing.verdict import Verdict
from mahalens.auditing.whitening import WhiteningReading
from mahalens.errors import InputError
from mahalens.files import open_file, replacing

if TYPE_CHECKING:
    import pandas as pd

    from mahalens.auditing.difference import AuditDifference

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
    """What was found in one layer."""

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
    """What an audit found in a network; made by :func:`mahalens.audit`."""

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
    """The samples that prototypes refer to [M, *shape], for pictures."""
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
        from mahalens.auditing.difference import difference

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
