"""One detector tried on a user's data: what it promises, what it did, how other methods did."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from mahalens._show import Shown, cut, table_html
from mahalens.detection.base import Detector
from mahalens.detection.choose import METHODS, NAMED, detect_features
from mahalens.detection.metrics import Separation, separation
from mahalens.errors import InputError
from mahalens.stats.summaries import Proportion, proportion

NO_MODEL = "features in the file"
"""The model of a record whose samples were features already."""

TEST_SHARE = 0.2
"""Share of the known samples that neither fits nor calibrates, but measures."""


class MethodResult(Shown, msgspec.Struct, frozen=True):
    """The results of one method: AUROC against the unknown samples, shares that it rejects.

    ``note`` says why a method was not tried; its numbers are None then.
    """

    method: str
    separation: Separation | None = None
    known_rejected: Proportion | None = None
    unknown_rejected: Proportion | None = None
    note: str = ""


class DetectionRecord(msgspec.Struct, frozen=True):
    """The content of detect.json, as ``mahalens detect`` writes it.

    ``thresholds`` has one score per known class, above which a sample nearest to that class is
    rejected. ``results`` has the chosen method first, then all others with their usual options.
    """

    model: str
    known: str
    unknown: str | None
    layer: str
    features: int
    classes: tuple[str, ...]
    rate: float
    method: str
    options: dict[str, Any]
    reason: str
    thresholds: tuple[float, ...]
    fitted: int
    held_out: int
    results: tuple[MethodResult, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"DetectionRecord({cut(self.answer, 150)})"

    def _repr_html_(self) -> str:
        """Return a row for each method."""
        rows = [
            (
                result.method,
                None if result.separation is None else result.separation.auroc,
                "" if result.known_rejected is None else percent(result.known_rejected),
                "" if result.unknown_rejected is None else percent(result.unknown_rejected),
                result.note,
            )
            for result in self.results
        ]
        columns = ("method", "AUROC", "known rejected", "unknown rejected", "note")
        return table_html(self.answer, columns, rows, self.notes)

    @property
    def answer(self) -> str:
        """One sentence: which detector, at which threshold, and what to expect of it."""
        best = self.results[0]
        low, high = min(self.thresholds), max(self.thresholds)
        at = f"threshold {low:.4g}"
        if low != high:
            at = f"thresholds from {low:.4g} to {high:.4g}, by nearest class"
        parts = [f"On your data, use {self.name} at {at}."]
        if best.known_rejected is not None:
            parts.append(
                f"It is set to reject {100 * self.rate:.3g} % of known samples; on "
                f"{best.known_rejected.n} new ones it rejected {percent(best.known_rejected)}."
            )
        if best.unknown_rejected is not None and best.separation is not None:
            area = best.separation
            parts.append(
                f"Of your {best.unknown_rejected.n} unknown samples it rejected "
                f"{percent(best.unknown_rejected)}; AUROC {area.auroc:.3f} "
                f"({area.auroc_ci95[0]:.3f} to {area.auroc_ci95[1]:.3f})."
            )
            better = max(self.results, key=lambda r: r.separation.auroc if r.separation else 0.0)
            if better.separation and better.separation.auroc > area.auroc + 0.01:
                chosen = "" if self.reason == NAMED else "; the choice saw known samples only"
                parts.append(
                    f"Method {better.method} separates these unknown samples better (AUROC "
                    f"{better.separation.auroc:.3f}){chosen}."
                )
        return " ".join(parts)

    @property
    def name(self) -> str:
        """The method with its options."""
        chosen = {name: value for name, value in self.options.items() if value is not None}
        options = ", ".join(f"{name}={value}" for name, value in chosen.items())
        if "parts" in chosen:
            options = ", ".join(method for method, _ in chosen["parts"])
        return f"{self.method} ({options})" if options else self.method


def percent(share: Proportion) -> str:
    """Return a share as text: ``4.8 % (3.9 to 5.9 %)``."""
    low, high = share.ci95
    return f"{100 * share.share:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"


class Scores(NamedTuple):
    """Scores, p-values and nearest classes of the test samples, and which samples they are."""

    known: Tensor
    known_p: Tensor
    known_rows: Tensor
    unknown: Tensor | None
    unknown_p: Tensor | None


class Features(NamedTuple):
    """Features [N, D] of samples, with logits [N, L] and labels [N] if there are any."""

    z: Tensor
    logits: Tensor | None = None
    y: Tensor | None = None

    def rows(self, which: Tensor) -> Features:
        """Return some of the samples."""
        return Features(*(None if part is None else part[which] for part in self))  # type: ignore[arg-type]


def try_detector(
    known: Features,
    unknown: Features | None,
    /,
    *,
    method: str = "auto",
    rate: float = 0.05,
    hold_out: float = 0.2,
    seed: int = 0,
    compare: bool = True,
    **about: Any,
) -> tuple[Detector, DetectionRecord, Scores]:
    """Fit a detector to most of the known samples and measure it on the rest, and on unknown ones.

    A random fifth of the known samples is for measuring only; of the rest, a share ``hold_out``
    sets the threshold. With ``compare`` and unknown samples every other method is fitted and
    measured too, with its usual options. ``about`` are fields of the record that only describe.
    """
    order = torch.randperm(len(known.z), generator=torch.Generator().manual_seed(seed))
    count = max(1, round(TEST_SHARE * len(order)))
    test_rows, fit_rows = order[:count].sort().values, order[count:].sort().values
    fit, test = known.rows(fit_rows), known.rows(test_rows)
    how: dict[str, Any] = {"rate": rate, "hold_out": hold_out, "seed": seed}
    detector = detect_features(fit.z, fit.y, method, logits=fit.logits, **how)
    result, scores = _measure(detector, test, unknown)
    results = [result]
    if compare and unknown is not None:
        others = (name for name in METHODS if name not in (detector.method, "combined", "layered"))
        results += [_other(name, fit, test, unknown, how) for name in others]
    calibration = detector.calibration
    assert calibration is not None
    choice = detector.choice
    record = DetectionRecord(
        features=detector.width,
        rate=rate,
        method=detector.method,
        options=dict(detector.options),
        reason="" if choice is None else choice.reason,
        thresholds=tuple(calibration.thresholds().double().tolist()),
        fitted=len(fit_rows) - len(detector.held_scores),
        held_out=len(detector.held_scores),
        results=tuple(results),
        **about,
    )
    return detector, record, scores._replace(known_rows=test_rows)


def _other(
    name: str, fit: Features, test: Features, unknown: Features, how: dict[str, Any]
) -> MethodResult:
    try:
        other = detect_features(fit.z, fit.y, name, logits=fit.logits, **how)
        return _measure(other, test, unknown)[0]
    except InputError as error:
        return MethodResult(name, note=str(error))


def _measure(
    detector: Detector, test: Features, unknown: Features | None
) -> tuple[MethodResult, Scores]:
    scores = detector.score_features(test.z, logits=test.logits).cpu()
    rejected = detector.reject_features(test.z, logits=test.logits)
    p = detector.p_value_features(test.z, logits=test.logits).cpu()
    rows = torch.arange(len(scores))
    if unknown is None:
        return MethodResult(detector.method, None, _share(rejected)), Scores(
            scores, p, rows, None, None
        )
    strange = detector.score_features(unknown.z, logits=unknown.logits).cpu()
    strange_p = detector.p_value_features(unknown.z, logits=unknown.logits).cpu()
    result = MethodResult(
        detector.method,
        separation(scores, strange),
        _share(rejected),
        _share(detector.reject_features(unknown.z, logits=unknown.logits)),
    )
    return result, Scores(scores, p, rows, strange, strange_p)


def _share(rejected: Tensor) -> Proportion:
    return proportion(int(rejected.sum()), len(rejected))
