"""What a report relies on in the JSON records. More fields may be there; they are left alone."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Config(msgspec.Struct):
    """``config.json``."""

    study: str
    options: dict[str, Any]
    protocol: Literal["published", "scaled"]
    scaled: list[str] = []


class Row(msgspec.Struct):
    """One metric of one model, in ``summary.json``."""

    model: str
    metric: str
    mean: float | None
    n: int
    std: float | None = None
    min: float | None = None
    max: float | None = None
    best: float | None = None
    ci95: tuple[float | None, float | None] | None = None
    published: float | None = None
    published_detail: dict[str, Any] | None = None
    group: dict[str, Any] = {}


class Outcome(msgspec.Struct):
    """What became of the trials of one model."""

    model: str
    trials: int
    statuses: dict[str, int]
    basins: dict[str, int] = {}
    non_finite: list[int] = []
    best_trial: int | None = None
    seconds: float | None = None
    group: dict[str, Any] = {}


class Claim(msgspec.Struct):
    """A claim and its verdict."""

    id: str
    source: str
    statement: str
    verdict: Literal["holds", "fails", "undecided", "not measured"]
    data: str = ""
    why: str = ""


class Comparison(msgspec.Struct):
    """A test of one model against another; the numbers that are shown."""

    family: str
    a: str
    b: str
    metric: str = ""
    mean_difference: float | None = None
    difference_ci95_low: float | None = None
    difference_ci95_high: float | None = None
    paired_t: float | None = None
    paired_df: float | None = None
    paired_p: float | None = None
    welch_p: float | None = None
    cohens_d: float | None = None
    cohens_d_ci95_low: float | None = None
    cohens_d_ci95_high: float | None = None
    wilcoxon_p: float | None = None
    preferred_test: str | None = None
    holm_paired: float | None = None
    holm_preferred: float | None = None


class Summary(msgspec.Struct):
    """``summary.json``."""

    study: str
    protocol: Literal["published", "scaled"]
    rows: list[Row]
    claims: list[Claim]
    facts: dict[str, Any] = {}
    outcomes: list[Outcome] = []
    comparisons: list[Comparison] = []
    scaled: list[str] = []
    cautions: list[str] = []


class Gaussian(msgspec.Struct):
    """``gaussian.json``."""

    mean: list[float]
    covariance: list[list[float]]
