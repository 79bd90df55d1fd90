"""Metrics of detectors against scikit-learn, slow formulas and simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from mahalens.detection.metrics import (
    accuracy_coverage,
    aupr,
    auroc,
    compare_separation,
    fpr_at,
    separation,
)
from mahalens.errors import InputError


def draw(seed, known=80, unknown=50, shift=1.0, digits=None):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal(known), rng.standard_normal(unknown) + shift
    return (a, b) if digits is None else (a.round(digits), b.round(digits))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("digits", [None, 0], ids=["distinct", "ties"])
def test_areas_are_those_of_scikit_learn(seed, digits):
    known, unknown = draw(seed, digits=digits)
    scores, label = np.concatenate([known, unknown]), np.repeat([0, 1], [80, 50])
    assert auroc(known, unknown) == pytest.approx(roc_auc_score(label, scores))
    assert aupr(known, unknown) == pytest.approx(average_precision_score(label, scores))
    assert separation(known, unknown, resamples=3).aupr_known == pytest.approx(
        average_precision_score(1 - label, -scores)
    )
    false, true, _ = roc_curve(1 - label, -scores, drop_intermediate=False)
    assert fpr_at(known, unknown) == pytest.approx(false[true >= 0.95 - 1e-9][0])


def test_delong_is_its_formula():
    known, unknown = draw(1, 30, 20, digits=1)
    other = np.random.default_rng(2).standard_normal(30), unknown + 0.3

    def matrix(a, b):
        return (b[:, None] > a) + 0.5 * (b[:, None] == a)

    psi = matrix(known, unknown) - matrix(*other)
    variance = psi.mean(0).var(ddof=1) / 30 + psi.mean(1).var(ddof=1) / 20
    result = compare_separation((known, unknown), other)
    assert result.difference == pytest.approx(psi.mean())
    assert (result.ci95[1] - result.ci95[0]) / 2 == pytest.approx(1.959964 * variance**0.5)


def test_intervals_cover_and_tests_keep_their_level():
    covered = rejected = 0
    truth = 0.7602499  # Φ(1/√2): probability that N(1, 1) exceeds N(0, 1)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        known, unknown = rng.standard_normal(60), rng.standard_normal(60) + 1
        low, high = separation(known, unknown, resamples=0).auroc_ci95
        covered += low <= truth <= high
        noise = rng.standard_normal((2, 120))
        pair = [(known + noise[i, :60], unknown + noise[i, 60:]) for i in range(2)]
        rejected += compare_separation(*pair).p < 0.05
    assert 0.91 <= covered / 300 <= 0.985
    assert rejected / 300 <= 0.09


def test_perfect_and_tied_scores():
    best = separation([0.0, 1.0], [2.0, 3.0])
    assert (best.auroc, best.aupr_unknown, best.fpr95) == (1.0, 1.0, 0.0)
    assert best.auroc_ci95[1] == 1.0
    assert 0 < best.auroc_ci95[0] < 1
    assert auroc([1.0, 1.0], [1.0]) == 0.5
    assert compare_separation(([0.0, 1.0], [2.0]), ([0.0, 2.0], [4.0])).p == 1.0


def test_coverage_is_the_accuracy_of_the_least_unusual():
    rng = np.random.default_rng(0)
    scores, right = rng.random(40), rng.random(40) < 0.7
    result = accuracy_coverage(scores, right)
    for k in range(1, 41):
        kept = np.argsort(scores)[:k]
        assert result.accuracy[k - 1] == pytest.approx(right[kept].mean())
    assert result.area_ci95[0] <= result.area <= result.area_ci95[1]


def test_tensors_are_taken():
    known, unknown = draw(3)
    assert auroc(torch.tensor(known), torch.tensor(unknown)) == auroc(known, unknown)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc([], [1.0]), r"known has shape \(0,\); give the scores of samples"),
        (lambda: auroc([1.0], [[1.0]]), r"unknown has shape \(1, 1\)"),
        (lambda: auroc([np.nan, 1.0], [1.0]), "1 of 2 known scores are NaN"),
        (
            lambda: compare_separation(([1.0], [2.0]), ([1.0, 2.0], [2.0])),
            "give both scores of the same samples",
        ),
        (lambda: accuracy_coverage([1.0, 2.0], [True]), "2 scores but 1 answers"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()
