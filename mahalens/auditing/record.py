"""What an audit found in a network, as typed records; :mod:`readings` has the parts of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

from mahalens.auditing.readings import (
    HistogramReading,
    HyperplaneReading,
    PairReading,
    PerturbationReading,
    PrototypeReading,
    Suggestion,
    UnitReading,
    Verdict,
    WhiteningReading,
)

if TYPE_CHECKING:
    import os

    import pandas as pd

    from mahalens.auditing.records.difference import AuditDifference

FORMAT = 1
"""Version of the record's form, stored with it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
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


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
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
        """The answer, and how much there is behind it."""
        return (
            f"AuditRecord({self.model!r}, {len(self.layers)} layers, "
            f"{self.data.samples:,} samples: {self.verdict})"
        )

    def layer(self, name: str) -> LayerRecord:
        """The layer of that name."""
        from mahalens.errors import InputError

        for layer in self.layers:
            if layer.name == name:
                return layer
        known = ", ".join(layer.name for layer in self.layers)
        text = "" if isinstance(name, str) else f", and a name is a text, such as {str(name)!r}"
        raise InputError(f"there is no layer {name!r} in this record; there are {known}{text}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to one ``.safetensors`` file; :func:`mahalens.load_audit` reads it."""
        from mahalens.auditing.records.files import save_record

        save_record(self, path)

    def diff(self, after: AuditRecord) -> AuditDifference:
        """What changed from this record to a later one of the same network."""
        from mahalens.auditing.records.difference import difference
        from mahalens.errors import InputError

        if not isinstance(after, AuditRecord):
            raise InputError(f"the other record is a {type(after).__name__}, wanted an AuditRecord")
        return difference(self, after)

    def to_frame(self, what: str = "units") -> pd.DataFrame:
        """A data frame with a row per unit, or per ``layers``, ``classes`` or ``pairs``."""
        from mahalens.auditing.records.frames import frame_of

        return frame_of(self, what)
