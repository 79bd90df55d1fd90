"""Whether the parts of a record fit together: shapes, types and numbers of units."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mahalens.auditing.record import AuditRecord, LayerRecord

# What each tensor of a layer is: its axes by letter (? is any length) and its type. K units,
# C classes, Q quantile levels; U, B, P of the histograms and prototypes, the same within a layer.
_AXES = {
    "units": {
        **dict.fromkeys(("active", "flat", "mean", "std", "skewness", "least", "greatest"), "K"),
        "quantiles": "KQ",
        **dict.fromkeys(("class_active", "class_mean", "class_std", "class_skewness"), "CK"),
        "class_quantiles": "CKQ",
        "silent_by_class": "C",
    },
    "hyperplanes": {
        **dict.fromkeys(("length", "mean_distance", "mean_spreads", "chance", "positive"), "K"),
        **dict.fromkeys(("class_distance", "class_spreads"), "CK"),
        "nearest": "K",
        "through": "K",
    },
    "whitening": dict.fromkeys(("spectrum", "recovered", "output_spectrum"), "?"),
    "prototypes": dict.fromkeys(
        (
            "near_sample",
            "near_position",
            "near_distance",
            "active_sample",
            "active_position",
            "active_value",
        ),
        "KP",
    ),
    "histograms": {"edges": "UE", "counts": "UHB", "overlap": "UH"},
}
_WHOLE = {"nearest", "near_sample", "near_position", "active_sample", "active_position"}


def check_shapes(record: AuditRecord) -> None:
    """Raise ``ValueError`` with what does not fit, if anything does not.

    ``msgspec`` has checked the types of all that is no tensor before.
    """
    names = [layer.name for layer in record.layers]
    if len(set(names)) != len(names):
        raise ValueError("two layers have the same name")
    if record.data.counts and len(record.data.counts) != len(record.data.classes):
        raise ValueError("data.counts and data.classes differ in length")
    if record.data.image is not None and any(size < 1 for size in record.data.image):
        raise ValueError("data.image has a side without pixels")
    _check_examples(record)
    for layer in record.layers:
        _check_layer(layer, len(record.data.classes), len(record.settings.quantiles))


def _check_examples(record: AuditRecord) -> None:
    examples, samples = record.examples, record.example_samples
    if (examples is None) != (samples is None):
        raise ValueError("examples and example_samples belong together")
    for name in ("example_samples", "example_labels"):
        tensor = getattr(record, name)
        if tensor is None:
            continue
        if tensor.ndim != 1 or tensor.dtype != torch.int64:
            raise ValueError(f"{name} is no vector of whole numbers")
        if examples is None or examples.ndim < 1 or len(examples) != len(tensor):
            raise ValueError(f"examples and {name} differ in length")


def _check_layer(layer: LayerRecord, classes: int, levels: int) -> None:
    sizes = {"K": layer.units_count, "C": classes, "Q": levels}
    for part, fields in _AXES.items():
        reading = getattr(layer, part)
        for field, axes in fields.items() if reading is not None else ():
            tensor = getattr(reading, field)
            if tensor is not None:
                _check_tensor(f"layer {layer.name}: {part}.{field}", tensor, axes, sizes)
    histograms = layer.histograms
    if histograms is not None and (
        len(histograms.units) != histograms.edges.shape[0]
        or histograms.edges.shape[1] != histograms.counts.shape[2] + 1
        or histograms.counts.shape[1] != max(classes, 1)
    ):
        raise ValueError(f"layer {layer.name}: the parts of histograms differ in length")
    if histograms is not None and not bool(
        ((histograms.counts >= 0) & histograms.counts.isfinite()).all()
    ):
        raise ValueError(f"layer {layer.name}: histograms.counts holds what is no count")
    nearest = None if layer.hyperplanes is None else layer.hyperplanes.nearest
    if nearest is not None and not bool(((nearest >= -1) & (nearest < classes)).all()):
        raise ValueError(f"layer {layer.name}: nearest names a class that is not among {classes}")
    for what, units in _listed(layer):
        if any(not 0 <= unit < layer.units_count for unit in units):
            raise ValueError(
                f"layer {layer.name}: {what} names a unit that is not among {layer.units_count}"
            )


def _check_tensor(name: str, tensor: Tensor, axes: str, sizes: dict[str, int]) -> None:
    if tensor.ndim != len(axes):
        raise ValueError(f"{name} has {tensor.ndim} axes in place of {len(axes)}")
    for axis, length in zip(axes, tensor.shape, strict=True):
        if axis != "?" and sizes.setdefault(axis, length) != length:
            raise ValueError(f"{name} has a length of {length} in place of {sizes[axis]}")
    field = name.rsplit(".", 1)[-1]
    if field in _WHOLE:
        fits = tensor.dtype == torch.int64
    elif field == "through":
        fits = tensor.dtype == torch.bool
    else:  # counts may be whole numbers or floats that hold some
        fits = tensor.dtype.is_floating_point or field == "counts"
    if not fits:
        raise ValueError(f"{name} is of type {str(tensor.dtype).removeprefix('torch.')}")


def _listed(layer: LayerRecord) -> Iterable[tuple[str, Iterable[int]]]:
    """Every list of units in a layer, with what it is called."""
    for name in ("dead", "always", "saturated"):
        yield name, getattr(layer.units, name)
    for threshold, units in layer.units.rare.items():
        yield f"rare {threshold}", units
    if layer.pairs is not None:
        for name in ("mirrored", "duplicate", "parallel"):
            yield name, [unit for pair in getattr(layer.pairs, name) for unit in pair]
        yield "kept", layer.pairs.kept
    if layer.histograms is not None:
        yield "histograms", layer.histograms.units
    for suggestion in layer.suggestions:
        yield suggestion.action, suggestion.units
