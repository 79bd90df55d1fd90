"""Records into figures, tables and one HTML page. Computes nothing, and needs no torch.

``build_report(folder)`` draws the figures of a run folder and writes its ``report.html``;
``write_audit_report(record, folder)`` does so for an audit (:mod:`.audit`).
The parts: :mod:`.records` reads a folder, :mod:`.tables` makes tables for the terminal,
:mod:`.figures` draws, :mod:`.page` fills the HTML template, :mod:`.numbers` decides how every
number looks and :mod:`.catalogue` what models and metrics are called.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.report.audit.page import write_audit_report

__all__ = ["build_report", "write_audit_report"]

__getattr__, __dir__ = attach(
    __name__,
    # Needs torch, for a record holds tensors.
    {"write_audit_report": "mahalens.report.audit.page"},
)


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Draw the figures of a run folder, write its ``report.html`` and return that file's path.

    Every file is written under a temporary name and moved into place, so a page that is there
    is whole. Raises :class:`~mahalens.errors.RunFolderError` when the folder holds no finished
    run, when a record in it is damaged, or when it cannot be written.
    """
    from mahalens.report.page import write_report  # drawing libraries load only when needed

    return write_report(Path(folder))
