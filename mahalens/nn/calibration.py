"""Numbers set after training: a temperature, and how far is too far."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.errors import InputError

Floats = NDArray[np.float64]


def best_temperature(logits: Tensor, y: Tensor) -> float:
    """Give the T that makes ``softmax(logits / T)`` most likely for labels y [N]; logits [N, C].

    With β = 1/T the mean of ``log Σ_k exp(β z_k) − β z_y`` is convex. Its slope
    ``mean(Σ_k p_k z_k − z_y)`` grows with β and is followed to its only zero (Brent's method, in
    float64). There is none where every sample is right, so that T = 0 would be best, nor where
    logits of the labels are below average, so that T = ∞ would be; both are errors.

    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> y = torch.tensor([0, 0, 0, 1])  # right three times of four: softmax(2 / T) = 3/4
    >>> round(best_temperature(z, y), 6) == round(2 / math.log(3), 6)
    True
    """
    from scipy.optimize import brentq

    z = logits.detach().cpu().double().numpy()
    z = z - z.max(axis=1, keepdims=True)
    labels = y.cpu().numpy()
    wanted = float(z[np.arange(len(z)), labels].mean())
    if wanted == 0:
        raise InputError(
            f"all {len(z)} samples are right, so that no temperature is best (the lower, the "
            "better); calibrate on more samples, which training has not seen"
        )
    if float(z.mean()) >= wanted:
        raise InputError(
            f"the labels of {len(z)} samples have no better logits than other classes, so that no "
            "temperature is best (the higher, the better); check the labels, or train first"
        )

    def slope(log_beta: float) -> float:
        return _expected(z, math.exp(log_beta)) - wanted

    # Shifted by their largest, logits are at most 0: the scale of a soft decision is their mean.
    low = high = -math.log(-float(z.mean()))
    while slope(low) > 0:
        low -= 1
    while slope(high) < 0:
        high += 1
    if low == high:
        return math.exp(-low)
    return math.exp(-float(brentq(slope, low, high, xtol=1e-12)))


def _expected(z: Floats, beta: float) -> float:
    """Mean of Σ_k p_k z_k; z has its largest entry of each row at 0."""
    weights = np.exp(beta * z)
    return float(((weights * z).sum(axis=1) / weights.sum(axis=1)).mean())


def require_rate(rate: object) -> float:
    """Ask for a share strictly between 0 and 1."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < float(rate) < 1:
        raise InputError(
            f"reject rate is {rate!r}, wanted a number between 0 and 1, such as 0.05 to reject "
            "5 % of ordinary samples"
        )
    return float(rate)


def reject_threshold(scores: Tensor, rate: float, of: str = "samples") -> Tensor:
    """Give the score [] that a new sample like these exceeds with probability ``rate`` at most.

    The ⌈(n + 1)(1 − rate)⌉-th smallest of n scores: a new one is equally likely to fall between
    any two of them, so this holds exactly, for any n and any distribution, where the scores are
    those of samples that nothing else was fitted to.

    >>> reject_threshold(torch.arange(1.0, 100.0), 0.05)  # 99 scores
    tensor(95.)
    """
    count = len(scores)
    # Rounded first: (n + 1)(1 - rate) may come out a hair above the whole number it stands for.
    place = math.ceil(round((count + 1) * (1 - rate), 9))
    if place > count:
        raise InputError(
            f"a reject rate of {rate:g} cannot be told from {count} {of}; give at least "
            f"{math.ceil(1 / rate) - 1}, or a higher rate"
        )
    return torch.sort(scores.detach()).values[max(place, 1) - 1]
