"""All detectors with their formulas written out slowly, for the laws in the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp, softmax

from mahalens.detection import METHODS

Formula = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Case(NamedTuple):
    """A detector's options, and its score of new features from those of known samples."""

    method: str
    options: dict[str, Any]
    formula: Formula
    digits: float = 1e-8

    def make(self, **more: Any):
        return METHODS[self.method](**{**self.options, **more})


def classes_of(z, y):
    return [z[y == label] for label in np.unique(y)]


def within(z, y):
    return sum((part - part.mean(0)).T @ (part - part.mean(0)) for part in classes_of(z, y)) / len(
        z
    )


def shrunk(covariance, share):
    return (1 - share) * covariance + share * np.eye(len(covariance)) * np.trace(covariance) / len(
        covariance
    )


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def squares(new, mean, covariance):
    """One sample at a time, by a solve."""
    return np.array([(x - mean) @ np.linalg.solve(covariance, x - mean) for x in new])


def to_classes(z, y, new, covariance):
    return np.stack([squares(new, part.mean(0), covariance) for part in classes_of(z, y)], 1)


def mahalanobis(share=0.0, change=lambda z: z):
    def formula(z, y, new):
        z, new = change(z), change(new)
        return np.sqrt(to_classes(z, y, new, shrunk(within(z, y), share)).min(1))

    return formula


def low_rank_covariance(covariance, rank):
    values, axes = np.linalg.eigh(covariance)
    values[:-rank] = values[:-rank].mean()
    return (axes * values) @ axes.T


def tied_rank(z, y, new):
    return np.sqrt(to_classes(z, y, new, low_rank_covariance(within(z, y), 2)).min(1))


def marginal(z, y, new):
    return np.sqrt(squares(new, z.mean(0), np.cov(z.T, bias=True)))


def relative(z, y, new):
    nearest = to_classes(z, y, new, within(z, y)).min(1)
    return nearest - squares(new, z.mean(0), np.cov(z.T, bias=True))


def mahavar(z, y, new):
    distances = np.sqrt(to_classes(z, y, new, within(z, y)))
    return np.array([min(d) ** 2 - 0.5 * np.var(d) for d in distances])


def densities(rank=None):
    def formula(z, y, new):
        scores = []
        for part in classes_of(z, y):
            covariance = np.cov(part.T, bias=True)
            if rank is not None:
                covariance = low_rank_covariance(covariance, rank)
            volume = np.linalg.slogdet(covariance)[1]
            scores.append(squares(new, part.mean(0), covariance) + volume)
        return np.min(scores, 0)

    return formula


def neighbour(z, y, new):
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(n_neighbors=4).fit(unit(z)).kneighbors(unit(new))[0][:, -1]


def probed(score):
    """The slow twin of the probe is scikit-learn's logistic regression."""

    def formula(z, y, new):
        return score(probe_logits(z, y, new))

    return formula


def probe_logits(z, y, new):
    from sklearn.linear_model import LogisticRegression

    spread, mean = z.std(0), z.mean(0)
    probe = LogisticRegression(tol=1e-10, max_iter=10_000).fit((z - mean) / spread, y)
    return probe.decision_function((new - mean) / spread)


def gen(logits):
    shares = np.sort(softmax(logits, 1), 1)[:, ::-1][:, :2]
    return np.array([sum(p**0.3 * (1 - p) ** 0.3 for p in row) for row in shares])


def vim(z, y, new):
    from sklearn.linear_model import LogisticRegression

    spread, mean = z.std(0), z.mean(0)
    probe = LogisticRegression(tol=1e-10, max_iter=10_000).fit((z - mean) / spread, y)
    weight = probe.coef_ / spread
    origin = -np.linalg.pinv(weight) @ (probe.intercept_ - weight @ mean)
    axes = np.linalg.svd(z - origin, full_matrices=False)[2][:2]
    rest = [np.linalg.norm(x - x @ axes.T @ axes, axis=1) for x in (z - origin, new - origin)]
    alpha = probe_logits(z, y, z).max(1).mean() / rest[0].mean()
    return alpha * rest[1] - logsumexp(probe_logits(z, y, new), 1)


def combined(z, y, new):
    """Each score standardised by known samples that its detector was not fitted to."""
    from mahalens.detection.layered import SHARE

    total = 0
    draw = np.random.default_rng(0).random((len(z), 2))[:, 1]
    order = np.argsort(draw)
    order = order[np.argsort(y[order], kind="stable")]
    judges = np.arange(len(z)) % SHARE == SHARE - 1
    fit, rest = order[~judges], order[judges]
    for formula in (mahalanobis(), neighbour):
        inside = formula(z[fit], y[fit], z[rest])
        total = total + (formula(z, y, new) - inside.mean()) / inside.std(ddof=1) / 2
    return total


PLAIN = {"normalise": "none", "shrinkage": 0.0}

CASES = {
    "mahalanobis": Case("mahalanobis", PLAIN, mahalanobis()),
    "mahalanobis, shrunk": Case("mahalanobis", {**PLAIN, "shrinkage": 0.3}, mahalanobis(0.3)),
    "mahalanobis, unit": Case(
        "mahalanobis", {"normalise": "unit", "shrinkage": 0.01}, mahalanobis(0.01, unit)
    ),
    "mahalanobis, half": Case(
        "mahalanobis",
        {"normalise": 0.5, "shrinkage": 0.0},
        mahalanobis(0.0, lambda z: z / np.linalg.norm(z, axis=1, keepdims=True) ** 0.5),
    ),
    "mahalanobis, rank 2": Case("mahalanobis", {**PLAIN, "rank": 2}, tied_rank),
    "marginal": Case("marginal", PLAIN, marginal),
    "relative": Case("relative", PLAIN, relative),
    "mahavar": Case("mahavar", {**PLAIN, "weight": 0.5}, mahavar),
    "class-gaussians": Case("class-gaussians", PLAIN, densities()),
    "low-rank": Case("low-rank", {**PLAIN, "rank": 2}, densities(2)),
    "neighbours": Case("neighbours", {"k": 4}, neighbour),
    "energy": Case(
        "energy", {"temperature": 2.0}, probed(lambda logits: -2 * logsumexp(logits / 2, 1)), 1e-4
    ),
    "max-softmax": Case(
        "max-softmax", {}, probed(lambda logits: -np.log(softmax(logits, 1).max(1))), 1e-4
    ),
    "max-logit": Case("max-logit", {}, probed(lambda logits: -logits.max(1)), 1e-4),
    "gen": Case("gen", {"gamma": 0.3, "top": 2}, probed(gen), 1e-4),
    "vim": Case("vim", {"rank": 2}, vim, 1e-4),
    "combined": Case(
        "combined", {"parts": [("mahalanobis", PLAIN), ("neighbours", {"k": 4})]}, combined
    ),
    "low-rank, full": Case("low-rank", {**PLAIN, "rank": 9}, densities()),
}


def samples(count=300, dim=5, classes=3, seed=0, dtype=torch.float64):
    """Known samples of classes with gaps in their labels, and new ones."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (count,), generator=draw)
    mix = torch.randn(dim, dim, generator=draw, dtype=torch.float64)
    means = 3 * torch.randn(classes, dim, generator=draw, dtype=torch.float64)
    z = torch.randn(count, dim, generator=draw, dtype=torch.float64) @ mix + means[y]
    new = 3 * torch.randn(40, dim, generator=draw, dtype=torch.float64) @ mix
    labels = torch.tensor([-5, 3, 100, 7, 8])[:classes]
    return z.to(dtype), labels[y], new.to(dtype)
