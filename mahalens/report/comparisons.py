"""Tests between models as text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mahalens.report.catalogue import metric_view, metrics_of, model_label
from mahalens.report.networks import named_in_full
from mahalens.report.numbers import MISSING, interval, is_number, number
from mahalens.report.views import view_of

ALPHA = 0.05
_PAIRED = (
    "first model minus second, over the shared trials, with 95 % intervals. Holm's correction is "
    "made within each block. The test to lean on is the paired t-test where the differences pass "
    "as normal, else Wilcoxon's signed-rank test; Welch's test stands beside them because"
)


@dataclass(frozen=True)
class Pair:
    """One test, every number as text; ``significant`` after the correction for many tests."""

    pair: str
    difference: str
    difference_interval: str
    paired_t: str
    paired_p: str
    holm: str
    welch_p: str
    effect: str
    effect_interval: str
    wilcoxon_p: str
    lean_on: str
    lean_p: str
    significant: bool


def explanation(study: str) -> str:
    """What the tests of a study are, and which of them to lean on."""
    parts = view_of(study).parts
    if parts is not None and parts.of_data:
        return (
            "Differences in the unit of the metric (points for percentages), "
            f"{_PAIRED} it needs no pairs: where it sees less, the shared trials have helped."
        )
    return (
        f"Differences of test accuracy in points, {_PAIRED} the code of source 003 ran an "
        "unpaired one."
    )


def comparisons(summary: Mapping[str, Any]) -> dict[str, list[Pair]]:
    """The tests of a run by the block within which they were corrected, under its title."""
    study = str(summary["study"])
    found: dict[str, list[Pair]] = {}
    for line in summary.get("comparisons", []):
        found.setdefault(_block(line, study), []).append(_pair(line, study))
    return found


def _block(line: Mapping[str, Any], study: str) -> str:
    """A part of the run, or (of models on several data sets) a part and a metric."""
    family, parts = str(line["family"]), view_of(study).parts
    if family == "across":
        return "Raw − normalized pixels"
    title = parts.title(family) if parts else family
    if parts is None or not parts.of_data:
        return title
    metric = metric_view(metrics_of(study), str(line.get("metric") or ""))
    return f"{title}, {metric.mid_sentence}" if metric.label else title


def _pair(line: Mapping[str, Any], study: str) -> Pair:
    p = line.get("holm_preferred")
    df = line.get("paired_df")
    return Pair(
        pair=pair_label(str(line["a"]), str(line["b"]), study),
        difference=_signed(line.get("mean_difference")),
        difference_interval=_ends(line, "difference_ci95"),
        paired_t=f"{number(line.get('paired_t'))} ({number(df)})" if is_number(df) else MISSING,
        paired_p=p_value(line.get("paired_p")),
        holm=p_value(line.get("holm_paired")),
        welch_p=p_value(line.get("welch_p")),
        effect=_signed(line.get("cohens_d")),
        effect_interval=_ends(line, "cohens_d_ci95"),
        wilcoxon_p=p_value(line.get("wilcoxon_p")),
        lean_on=str(line.get("preferred_test") or MISSING),
        lean_p=p_value(p),
        significant=is_significant(line),
    )


def is_significant(line: Mapping[str, Any]) -> bool:
    """Whether a difference is, by the test to lean on and after Holm's correction."""
    p = line.get("holm_preferred")
    return p is not None and is_number(p) and p < ALPHA


def pair_label(a: str, b: str, study: str = "representation") -> str:
    """What is subtracted from what; of a model against itself, its name.

    >>> pair_label("relu2 (raw)", "relu (raw)")
    'ReLU2 − ReLU'
    >>> pair_label("relu2 (raw)", "relu2 (normalized)")
    'ReLU2'
    """
    first, second = named_in_full(a)[0], named_in_full(b)[0]
    if first == second:
        return model_label(first, study)
    labels = [model_label(model, study) for model in (first, second)]
    if ", " in labels[0]:  # "ReLU, bias": or the minus would seem to belong to "bias"
        labels[0] = f"({labels[0]})"
    return f"{labels[0]} − {labels[1]}"


def p_value(p: float | None) -> str:
    """A p-value with two figures.

    >>> p_value(0.0312), p_value(3.2e-9), p_value(None)
    ('0.031', '< 0.0001', '–')
    """
    if p is None or not is_number(p):
        return MISSING
    return "< 0.0001" if p < 1e-4 else number(p, 2)


def _signed(value: float | None) -> str:
    text = number(value)
    return f"+{text}" if value is not None and is_number(value) and value > 0 else text


def _ends(line: Mapping[str, Any], name: str) -> str:
    return interval([line.get(f"{name}_low"), line.get(f"{name}_high")])
