"""From logits and scores to the numbers of a trial."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.nn.calibration import best_temperature, reject_threshold

BINS = 15


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Share of the samples whose class has the largest logit, in per cent."""
    return 100 * (logits.argmax(-1) == y).double().mean().item()


def negative_log_likelihood(logits: Tensor, y: Tensor) -> float:
    """Mean of −log p(y) with p the softmax of the logits [N, C]."""
    return float(torch.nn.functional.cross_entropy(logits.double(), y))


def calibration_error(logits: Tensor, y: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: how far the probability of the chosen class is from its accuracy.

    ``Σ_b (n_b / N) |accuracy_b − mean probability_b|`` over bins of equal width of the largest
    probability (Guo et al. 2017).

    >>> z = torch.tensor([[0.0, 0.0]] * 4)  # half sure, and right in three of four
    >>> calibration_error(z, torch.tensor([0, 0, 0, 1]))
    0.25
    """
    sure, chosen = logits.double().softmax(-1).max(-1)
    place = (sure * bins).long().clamp(max=bins - 1)
    gap = (chosen == y).double() - sure
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, gap)
    return float(sums.abs().sum() / len(y))


def temperature(logits: Tensor, y: Tensor) -> float:
    """The best temperature for these labels; NaN where none is, as where all of them are right."""
    try:
        return best_temperature(logits, y)
    except InputError:
        return math.nan


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Probability that an unknown sample has a higher score than a known one, ties half.

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    which = torch.cat((torch.zeros(len(known)), torch.ones(len(unknown))))
    return float(roc_auc_score(which.numpy(), torch.cat((known, unknown)).double().numpy()))


def missed_at_95(known: Tensor, unknown: Tensor) -> float:
    """Share of the unknown samples that pass where 95 % of the known ones do, in per cent.

    >>> missed_at_95(torch.arange(100.0), torch.tensor([50.0, 94.0, 95.0, 200.0]))
    50.0
    """
    place = -(-95 * len(known) // 100)  # rounded up
    limit = known.sort().values[place - 1]
    return 100 * (unknown <= limit).double().mean().item()


def rejected(held: Tensor, rate: float, *parts: Tensor) -> list[float]:
    """Share of each part that is beyond the threshold of held-out scores, in per cent."""
    limit = reject_threshold(held, rate)
    return [100 * (scores > limit).double().mean().item() for scores in parts]
