from __future__ import annotations

import itertools

import pytest

from mahalens.report.catalogue import (
    headline,
    metric_view,
    metrics_of,
    model_colours,
    model_label,
    models_in_order,
)
from mahalens.studies.gaussian.metrics import METRICS


def test_the_gaussian_study_brings_its_metrics() -> None:
    views = metrics_of("gaussian")
    assert list(views) == list(METRICS)
    for name, view in views.items():
        assert (view.label, view.log) == (METRICS[name].label, METRICS[name].log)


@pytest.mark.parametrize("study", ["", "no_such_study", "../gaussian", "gaussian.metrics", "os;x"])
def test_a_study_without_metadata_goes_by_plain_names(study: str) -> None:
    assert metrics_of(study) == {}
    assert metric_view(metrics_of(study), "test_accuracy").label == "test accuracy"


def test_the_unit_is_not_said_twice() -> None:
    views = metrics_of("gaussian")
    assert views["mean_distance"].label_with_unit == "Hyperplane to mean (input units)"
    assert views["dead_units"].label_with_unit == "Dead units"
    assert views["train_mse"].label_with_unit == "Final training MSE"


def test_models_keep_order_label_and_colour_whatever_else_is_there() -> None:
    assert models_in_order(["ground-truth", "new", "abs", "abs"]) == ["abs", "ground-truth", "new"]
    assert model_label("relu") == "MD_ReLU"
    alone, together = model_colours(["relu"]), model_colours(["new", "relu", "abs", "sigmoid"])
    assert alone["relu"] == together["relu"]
    assert len(set(together.values())) == 4


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([], "This run checks no claims."),
        (["fails"], "The one claim fails in this run."),
        (["fails"] * 3, "All 3 claims fail in this run."),
        (["not measured"] * 2, "None of the claims (2) was measured in this run."),
        (["holds", "fails"], "1 of 2 claims holds in this run and 1 fails."),
        (["fails", "not measured"], "1 of 2 claims fails in this run and 1 was not measured."),
        (
            ["holds"] * 4 + ["fails"] * 2 + ["not measured"] * 3,
            "4 of 9 claims hold in this run, 2 fail and 3 were not measured.",
        ),
    ],
)
def test_the_headline_says_the_verdicts(verdicts: list[str], sentence: str) -> None:
    for order in set(itertools.islice(itertools.permutations(verdicts), 50)):
        assert headline(order) == sentence
