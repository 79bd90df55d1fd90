"""One line of a summary: what all trials of a model come to in one metric. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mahalens.stats import summarise
from mahalens.studies.claims import is_finite


def summary_row(
    group: Mapping[str, Any],
    model: str,
    metric: str,
    values: ArrayLike,
    *,
    best: int | None,
    published: float | None,
    published_detail: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """A row of ``summary.json``; ``best`` is the number of the best trial, if there is one."""
    given = np.asarray(values, dtype=np.float64)
    summary = summarise(given)
    return {
        "group": dict(group),
        "model": model,
        "metric": metric,
        "mean": summary.mean,
        "std": summary.std,
        "variance": summary.variance,
        "median": summary.median,
        "min": summary.min,
        "max": summary.max,
        "n": summary.n,
        "ci95": summary.ci95,
        "best": None if best is None else is_finite(float(given[best])),
        "published": published,
        "published_detail": None if published is None else published_detail,
    }
