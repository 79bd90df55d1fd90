"""Curves and summaries as TensorBoard event files, for those who look at runs there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from mahalens.studies.folder import TENSORBOARD, RunFolder
from mahalens.studies.representation.metrics import METRICS
from mahalens.studies.representation.trained import Trained


def write_events(folder: RunFolder, trained: Sequence[Trained]) -> None:
    """Write one event folder per model and kind of pixels.

    Scalars over epochs, ``test_accuracy/mean`` and ``train_loss/mean`` and the same for every
    trial; the final metrics as text.
    """
    for old in (folder.path / TENSORBOARD).glob("*/events.out.tfevents.*"):
        with contextlib.suppress(OSError):  # of a run that was stopped while it wrote
            old.unlink()
    for one in trained:
        _write_model(folder, one)


def _write_model(folder: RunFolder, one: Trained) -> None:
    from torch.utils.tensorboard import SummaryWriter

    curves = {
        "train_loss": (one.tensors["loss.epochs"], one.tensors["losses"]),
        "test_accuracy": (one.tensors["accuracy.epochs"], one.tensors["accuracies"]),
    }
    where = folder.path / TENSORBOARD / f"{one.pixels}-{one.model}"
    with SummaryWriter(str(where)) as writer:
        for metric, (epochs, values) in curves.items():
            lines = {"mean": values.double().nanmean(0)}
            lines |= {f"trial {trial:02d}": row for trial, row in enumerate(values)}
            for name, line in lines.items():
                for epoch, value in zip(epochs.tolist(), line.tolist(), strict=True):
                    if math.isfinite(value):
                        writer.add_scalar(f"{metric}/{name}", value, epoch)
        writer.add_text("final metrics", _table(one))


def _table(one: Trained) -> str:
    """The final metrics of all trials as a Markdown table."""
    lines = ["| metric | " + " | ".join(f"trial {t}" for t in range(len(one.statuses))) + " |"]
    lines.append("|---|" + "---:|" * len(one.statuses))
    for name, values in one.metrics.items():
        cells = " | ".join(f"{v:.4g}" if math.isfinite(v) else "–" for v in values.tolist())
        lines.append(f"| {METRICS[name].label} | {cells} |")
    return "\n".join(lines)
