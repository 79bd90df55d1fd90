"""The numbers of a trial of the heads study, beside the obvious slow way."""

from __future__ import annotations

import math

import pytest
import torch

from mahalens.studies.heads import scores


def drawn(seed, count=400, classes=5):
    make = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=make)
    return logits, torch.randint(classes, (count,), generator=make)


@pytest.mark.parametrize("seed", range(3))
def test_calibration_error_bin_by_bin(seed):
    logits, y = drawn(seed)
    sure, chosen = logits.double().softmax(1).max(1)
    y = torch.where(sure < 0.6, chosen, y)  # too unsure here, too sure there
    total = 0.0
    for place in range(scores.BINS):
        low, high = place / scores.BINS, (place + 1) / scores.BINS
        own = (sure >= low) & ((sure < high) | (place == scores.BINS - 1))
        if own.any():
            right = (chosen[own] == y[own]).double().mean()
            total += own.double().mean().item() * abs(float(right - sure[own].mean()))
    assert scores.calibration_error(logits, y) == pytest.approx(total, abs=1e-12)


def test_certain_and_right_is_calibrated_and_certain_and_wrong_is_not():
    logits = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    assert scores.calibration_error(logits, torch.tensor([0, 1])) == 0.0
    assert scores.calibration_error(logits, torch.tensor([1, 0])) == 1.0


def test_likelihood_of_the_labels():
    logits, y = drawn(3, count=7)
    slow = [
        -torch.log(row.double().softmax(0)[label]) for row, label in zip(logits, y, strict=True)
    ]
    assert scores.negative_log_likelihood(logits, y) == pytest.approx(float(sum(slow)) / 7)


@pytest.mark.parametrize("seed", range(3))
def test_auroc_counts_pairs(seed):
    make = torch.Generator().manual_seed(seed)
    known = torch.randint(6, (40,), generator=make).float()
    unknown = torch.randint(8, (30,), generator=make).float()
    pairs = [(b > a) + 0.5 * (b == a) for a in known.tolist() for b in unknown.tolist()]
    assert scores.auroc(known, unknown) == pytest.approx(sum(pairs) / len(pairs))


def test_auroc_ends():
    low, high = torch.arange(5.0), torch.arange(5.0) + 10
    assert (scores.auroc(low, high), scores.auroc(high, low)) == (1.0, 0.0)


@pytest.mark.parametrize("count", [7, 100, 333])
def test_95_per_cent_of_the_known_pass(count):
    known = torch.rand(count, generator=torch.Generator().manual_seed(count))
    unknown = torch.linspace(0, 1.2, 50)
    passing = [
        t for t in known.tolist() if sum(k <= t for k in known.tolist()) >= 0.95 * count - 1e-9
    ]
    limit = min(passing)
    slow = 100 * sum(u <= limit for u in unknown.tolist()) / 50
    assert scores.missed_at_95(known, unknown) == pytest.approx(slow)


def test_rejected_beyond_the_threshold_of_others():
    held = torch.arange(1.0, 100.0)  # the 95th of 99 is the limit
    found = scores.rejected(held, 0.05, torch.tensor([95.0, 95.5, 1.0, 200.0]))
    assert found == [50.0]


def test_temperature_softens_what_is_too_sure():
    logits, y = drawn(5)
    y[:250] = logits[:250].argmax(1)  # right in five of eight, and surer than that
    assert scores.temperature(3 * logits, y) > 1
    assert scores.temperature(3 * logits, y) == pytest.approx(3 * scores.temperature(logits, y))
    right = torch.nn.functional.one_hot(y, 5).float()
    assert math.isnan(scores.temperature(right, y))  # none is best where all is right
