"""The folder and the page of ``mahalens detect``: answer, distributions, pictures, methods."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from mahalens.detection.record import NO_MODEL, DetectionRecord, MethodResult, Scores
from mahalens.errors import RunFolderError
from mahalens.files import contents, write_file
from mahalens.report.style import render, styled
from mahalens.report.tables import Cell, Column, Table, environment

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.detection.base import Detector

RECORD = "detect.json"
PAGE = "report.html"
_KNOWN, _UNKNOWN = "#0072B2", "#D55E00"
_PICTURES = 10  # samples of each kind that are shown
_BOTH = "Scores of known and unknown samples"
_SCORES = "The known samples took no part in the fit."
_SAMPLES = "p is the share of known samples that are as unusual; {:g} and below is rejected."


def require_free(path: Path, *, force: bool = False) -> None:
    """Refuse a folder that holds other things, or a detector unless it is to be replaced."""
    content = contents(path)
    if content and RECORD not in content:
        raise RunFolderError(
            f"{path}: already holds other files ({content[0]}); give --out a new or empty folder"
        )
    if content and not force:
        raise RunFolderError(
            f"{path}: already holds a detector; replace it with --force, or give --out another "
            "folder"
        )


def write_detection(
    path: Path,
    detector: Detector,
    record: DetectionRecord,
    scores: Scores,
    pictures: dict[str, list[tuple[Tensor, float]]],
) -> Path:
    """Write a detector, its record, scores and page into a folder; return the page.

    ``pictures`` has images [H, W] or [C, H, W] with their p-values, by what they show. The files of
    an older detector are removed first.
    """
    path.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    write_file(path / RECORD, text)
    figures_there = (f"figures/{name}.png" for name in ("scores", "samples"))
    for old in (PAGE, "detector.safetensors", "scores.csv", *figures_there):
        (path / old).unlink(missing_ok=True)
    detector.save(path / "detector.safetensors")
    write_file(path / "scores.csv", _scores_csv(scores))
    title = "Scores of known samples" if scores.unknown is None else _BOTH
    figures = [("scores", title, draw_scores(record, scores), _SCORES)]
    if pictures:
        seen = _SAMPLES.format(record.rate)
        figures.append(("samples", "Least and most unusual samples", draw_samples(pictures), seen))
    shown: list[dict[str, Any]] = []
    for name, title, figure, caption in figures:
        png, width, height = render(figure)
        write_file(path / "figures" / f"{name}.png", png)
        data = base64.b64encode(png).decode()
        shown.append(
            {"title": title, "data": data, "width": width // 2, "height": height // 2}
            | {"caption": caption}
        )
    write_file(path / PAGE, _page(record, shown, candidates_table(detector)).encode())
    return path / PAGE


def methods_table(record: DetectionRecord) -> Table:
    """Return the table of methods, the chosen one first and the others by falling AUROC."""
    chosen, *others = record.results
    others.sort(key=lambda result: -1.0 if result.separation is None else -result.separation.auroc)
    others = [r for r in others if r.separation is not None] + [
        r for r in others if r.separation is None
    ]
    heads = (
        "method",
        "AUROC",
        "95 % interval",
        "FPR at 95 %",
        "known rejected",
        "unknown rejected",
    )
    lines = tuple(_line(result, result is chosen, record) for result in (chosen, *others))
    notes = ("FPR at 95 %: share of unknown samples that pass where 95 % of known ones pass.",)
    return Table("Methods", tuple(Column(h, h == "method") for h in heads), lines, notes)


def _line(result: MethodResult, is_chosen: bool, record: DetectionRecord) -> tuple[Cell, ...]:
    name = f"{record.name} (chosen)" if is_chosen else result.method
    area = result.separation
    cells = [name if not result.note else f"{name}: {result.note}"]
    if area is None:
        cells += ["", "", ""]
    else:
        low, high = area.auroc_ci95
        cells += [f"{area.auroc:.3f}", f"{low:.3f} to {high:.3f}", f"{100 * area.fpr95:.1f} %"]
    for share in (result.known_rejected, result.unknown_rejected):
        cells.append("" if share is None else f"{100 * share.share:.1f} %")
    return tuple(Cell(text, bold=is_chosen) for text in cells)


def candidates_table(detector: Detector) -> Table:
    """Return the chosen candidate beside each detector alone; empty if there was no choice."""
    trials = () if detector.choice is None else detector.choice.shown
    heads = ("candidate", "classes held out", "made-up unknowns")
    lines = tuple(
        (
            Cell(" + ".join(trial.parts)),
            Cell("" if trial.classes is None else f"{trial.classes:.3f}"),
            Cell(f"{trial.made_up:.2f}"),
        )
        for trial in trials
    )
    notes = ("AUROC on known samples alone, which decided: the chosen one, and each part alone.",)
    return Table("Candidates", tuple(Column(h, h == "candidate") for h in heads), lines, notes)


def draw_scores(record: DetectionRecord, scores: Scores) -> Figure:
    """Draw the distributions of scores, known and unknown, with the thresholds."""
    known = scores.known.double().numpy()
    unknown = None if scores.unknown is None else scores.unknown.double().numpy()
    every = known if unknown is None else np.concatenate([known, unknown])
    low, high = np.quantile(every, [0.0, 0.995])
    low, high = min(low, *record.thresholds), max(high, *(1.02 * t for t in record.thresholds))
    bins = np.linspace(low, high, 60).tolist()
    with styled():
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        ax = figure.subplots()
        kinds: list[tuple[Any, str, str]] = [(known, "known", _KNOWN)]
        if unknown is not None:
            kinds.append((unknown, "unknown", _UNKNOWN))
        for values, name, colour in kinds:
            weights = np.full(len(values), 100 / len(values))
            ax.hist(
                np.clip(values, low, high), bins, weights=weights, color=colour, alpha=0.55,
                label=f"{name} ({len(values):,})",
            )  # fmt: skip
        first, last = min(record.thresholds), max(record.thresholds)
        ax.axvspan(first, last, color="#555555", alpha=0.15, lw=0)
        ax.axvline(last, color="#333333", lw=1.2, label="rejected to the right")
        ax.set(xlabel=f"Score of {record.method}: larger is less like anything known")
        ax.set_ylabel("Samples (%)")
        ax.legend(frameon=False)
    return figure


def draw_samples(pictures: dict[str, list[tuple[Tensor, float]]]) -> Figure:
    """Draw samples as images, one row for each kind, with p-values above them."""
    columns = max(len(row) for row in pictures.values())
    with styled():
        layout = ConstrainedLayoutEngine(hspace=0.12, rect=(0, 0, 1, 0.97))
        figure = Figure(figsize=(7.2, 0.3 + 1.1 * len(pictures)), layout=layout)
        for place, (name, row) in enumerate(pictures.items()):
            for column in range(columns):
                ax = figure.add_subplot(len(pictures), columns, place * columns + column + 1)
                ax.set_axis_off()
                if column == 0:
                    title = ax.text(0, 1.24, name, transform=ax.transAxes, weight="bold", size=7.5)
                    title.set_in_layout(False)  # or it would widen the first column
                if column < len(row):
                    image, p = row[column]
                    ax.imshow(_as_image(image), cmap="gray", interpolation="nearest")
                    ax.text(
                        0.5, 1.02, f"p = {p:.3f}", transform=ax.transAxes, ha="center",
                        va="bottom", fontsize=6,
                    )  # fmt: skip
    return figure


def _as_image(image: Tensor) -> Any:
    """Return pixels [H, W] or [H, W, 3] from 0 to 1."""
    values = image.double()
    values = (values - values.min()) / (values.max() - values.min()).clamp(min=1e-12)
    if values.ndim == 3:
        values = values.permute(1, 2, 0) if values.shape[0] in (1, 3) else values[0]
        values = values[..., 0] if values.ndim == 3 and values.shape[-1] == 1 else values
    return values.numpy()


def unusual(
    images: Tensor, p_values: Tensor, scores: Tensor, *, most: bool
) -> list[tuple[Tensor, float]]:
    """Return the most or least unusual images with their p-values."""
    order = scores.argsort(descending=most)[:_PICTURES]
    return [(images[i].cpu(), float(p_values[i])) for i in order.tolist()]


def _scores_csv(scores: Scores) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["sample", "kind", "score", "p_value"])
    rows = zip(
        scores.known_rows.tolist(), scores.known.tolist(), scores.known_p.tolist(), strict=True
    )
    writer.writerows((row, "known", score, p) for row, score, p in rows)
    if scores.unknown is not None and scores.unknown_p is not None:
        pairs = zip(scores.unknown.tolist(), scores.unknown_p.tolist(), strict=True)
        writer.writerows((row, "unknown", score, p) for row, (score, p) in enumerate(pairs))
    return text.getvalue().encode()


def _page(record: DetectionRecord, figures: Sequence[dict[str, Any]], candidates: Table) -> str:
    facts = [
        ("Model", record.model),
        ("Known", record.known),
        ("Unknown", record.unknown or "none given"),
        ("Features", f"{record.features:,} from {record.layer}"),
        ("Samples", f"{record.fitted:,} fitted, {record.held_out:,} held out for the threshold"),
        ("Why this method", record.reason),
        *(("Note", note) for note in record.notes),
    ]
    template = environment().get_template("detection.html.j2")
    return template.render(
        record=record,
        has_model=record.model != NO_MODEL,
        figures=figures,
        facts=facts,
        methods=methods_table(record),
        candidates=candidates,
    )
