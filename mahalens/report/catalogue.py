"""What models, metrics and verdicts are called and coloured, wherever they are shown."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MODEL_LABELS = {
    "abs": "MD_Abs",
    "relu": "MD_ReLU",
    "sigmoid": "MD_Sigmoid",
    "ground-truth": "Ground truth",
}
# Okabe and Ito's palette: told apart under every common form of colour blindness.
_MODEL_COLOURS = {
    "abs": "#0072B2",
    "relu": "#D55E00",
    "sigmoid": "#009E73",
    "ground-truth": "#333333",
}
_SPARE_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9")

VERDICTS = ("fails", "holds", "not measured")  # in the order a reader needs them
VERDICT_SYMBOLS = {"holds": "✓", "fails": "✗", "not measured": "?"}

_REMARKS = {
    "gaussian": "The published figures belong to another random draw of the Gaussian: compare "
    "patterns and ranges, not digits.",
}


@dataclass(frozen=True)
class MetricView:
    """How one metric is shown."""

    name: str
    label: str
    explanation: str = ""
    unit: str = ""
    better: str | None = None
    log: bool = False

    @property
    def label_with_unit(self) -> str:
        """The label, and the unit in brackets unless there is none or the label says it."""
        said = self.unit.lower() in self.label.lower()
        return self.label if said else f"{self.label} ({self.unit})"

    @property
    def direction(self) -> str:
        """Which values are good, in words; empty when neither large nor small ones are."""
        return {"low": "Lower is better.", "high": "Higher is better."}.get(self.better or "", "")


def metrics_of(study: str) -> dict[str, MetricView]:
    """The metrics of a study, in the order to show them.

    They come from ``METRICS`` in ``mahalens.studies.<study>.metrics``, which must not need
    torch. A study without that module has no metadata: see :func:`metric_view`.

    >>> metrics_of("gaussian")["train_mse"].label
    'Final training MSE'
    """
    # The name was read from a file, so nothing but a plain module name may reach the import.
    if re.fullmatch(r"[a-z][a-z0-9_]*", study) is None:
        return {}
    package = f"mahalens.studies.{study}"
    try:
        module = importlib.import_module(f"{package}.metrics")
    except ModuleNotFoundError as error:
        if error.name in (package, f"{package}.metrics"):
            return {}
        raise
    metrics: Mapping[str, Any] = module.METRICS
    return {
        name: MetricView(name, m.label, m.explanation, m.unit, m.better, m.log)
        for name, m in metrics.items()
    }


def metric_view(known: Mapping[str, MetricView], name: str) -> MetricView:
    """How to show the metric ``name``; one without metadata goes by its own name.

    >>> metric_view({}, "test_accuracy").label
    'test accuracy'
    """
    return known.get(name) or MetricView(name, name.replace("_", " "))


def in_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """``names`` without repetition: first those ``known``, in that order, then the others.

    >>> in_order(["new", "b", "a", "b"], ["a", "b", "c"])
    ['a', 'b', 'new']
    """
    given = dict.fromkeys(names)
    first = [name for name in known if name in given]
    return [*first, *(name for name in given if name not in set(first))]


def models_in_order(names: Iterable[str]) -> list[str]:
    """Model names in the order every table and figure uses."""
    return in_order(names, _MODEL_LABELS)


def model_label(model: str) -> str:
    """The name of a model as the sources write it.

    >>> model_label("abs"), model_label("my-model")
    ('MD_Abs', 'my-model')
    """
    return _MODEL_LABELS.get(model, model)


def model_colours(models: Iterable[str]) -> dict[str, str]:
    """One fixed colour a model; models without one share what is left of the palette."""
    ordered = models_in_order(models)
    unknown = [model for model in ordered if model not in _MODEL_COLOURS]
    spare = {m: _SPARE_COLOURS[i % len(_SPARE_COLOURS)] for i, m in enumerate(unknown)}
    return {model: _MODEL_COLOURS.get(model) or spare[model] for model in ordered}


def remark_on(study: str) -> str:
    """What a reader must know before comparing a study's figures with the published ones."""
    return _REMARKS.get(study, "")


def headline(verdicts: Iterable[str]) -> str:
    """The answer of a run in one sentence, from the verdicts of its claims.

    >>> headline(["holds", "fails", "holds", "not measured"])
    '2 of 4 claims hold in this run, 1 fails and 1 was not measured.'
    >>> headline(["holds", "holds"])
    'Both claims hold in this run.'
    """
    given = list(verdicts)
    total = len(given)
    if not given:
        return "This run checks no claims."
    if set(given) == {"not measured"}:
        return f"None of the claims ({total}) was measured in this run."
    one_or_many = {
        "holds": ("holds", "hold"),
        "fails": ("fails", "fail"),
        "not measured": ("was not measured", "were not measured"),
    }
    if len(set(given)) == 1:
        everyone = {1: "The one claim", 2: "Both claims"}.get(total, f"All {total} claims")
        return f"{everyone} {one_or_many[given[0]][total > 1]} in this run."
    counts = {verdict: given.count(verdict) for verdict in one_or_many if verdict in given}
    first, *others = (f"{n} {one_or_many[verdict][n > 1]}" for verdict, n in counts.items())
    amount, verb = first.split(" ", 1)
    rest = " and ".join(others)
    joint = ", " if len(others) > 1 else " and "
    return f"{amount} of {total} claims {verb} in this run{joint}{rest}."
