"""What models, metrics and verdicts are called and coloured, wherever they are shown."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mahalens.report.views import view_of

_SPARE_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9")

VERDICTS = ("fails", "holds", "undecided", "not measured")  # in the order a reader needs them
VERDICT_SYMBOLS = {"holds": "✓", "fails": "✗", "undecided": "?", "not measured": "–"}


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
    def mid_sentence(self) -> str:
        """The label as it stands in the middle of a sentence: abbreviations keep their capitals.

        >>> MetricView("a", "Test accuracy").mid_sentence, MetricView("b", "AUROC").mid_sentence
        ('test accuracy', 'AUROC')
        """
        plain = self.label[1:2].islower()
        return self.label[:1].lower() + self.label[1:] if plain else self.label

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


def models_in_order(names: Iterable[str], study: str = "") -> list[str]:
    """Model names in the order every table and figure of a study uses."""
    return in_order(names, view_of(study).order)


def model_label(model: str, study: str = "") -> str:
    """The name of a model as the sources of its study write it.

    >>> model_label("abs"), model_label("pca-l2-64"), model_label("my-model")
    ('MD_Abs', 'PCA-L2, 64', 'my-model')
    >>> model_label("abs", "representation")
    'Abs'
    """
    return view_of(study).label(model)


def model_colours(models: Iterable[str], study: str = "") -> dict[str, str]:
    """One fixed colour a model or family; others share what is left of the palette."""
    fixed = view_of(study).colour
    ordered = models_in_order(models, study)
    unknown = [model for model in ordered if fixed(model) is None]
    spare = {m: _SPARE_COLOURS[i % len(_SPARE_COLOURS)] for i, m in enumerate(unknown)}
    return {model: fixed(model) or spare[model] for model in ordered}


def primary_metric(study: str, metrics: Iterable[str]) -> str:
    """The metric of a run by which its best trial is chosen.

    >>> primary_metric("gaussian", ["test_mse", "train_mse"])
    'train_mse'
    """
    given = list(dict.fromkeys(metrics))
    known = [name for name in view_of(study).primary if name in given]
    return (known or given or ["train_mse"])[0]


def remark_on(study: str) -> str:
    """What a reader must know before comparing a study's figures with the published ones."""
    return view_of(study).remark


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
        "undecided": ("is undecided", "are undecided"),
        "not measured": ("was not measured", "were not measured"),
    }
    if len(set(given)) == 1:
        everyone = {1: "The one claim", 2: "Both claims"}.get(total, f"All {total} claims")
        return f"{everyone} {one_or_many[given[0]][total > 1]} in this run."
    counts = {verdict: given.count(verdict) for verdict in one_or_many if verdict in given}
    first, *others = (f"{n} {one_or_many[verdict][n > 1]}" for verdict, n in counts.items())
    amount, verb = first.split(" ", 1)
    begun = ", ".join([f"{amount} of {total} claims {verb} in this run", *others[:-1]])
    return f"{begun} and {others[-1]}."
