"""The difference of two records: before and after training, say, or pruning."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from mahalens._show import Shown, cut, table_html
from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.auditing.record_tables import layer_row
from mahalens.progress import printable

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
    """What changed in one layer. Lists of units are empty where the two layers differ in size."""

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
    """What changed from one record to another; ``print`` shows it in a few lines."""

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
