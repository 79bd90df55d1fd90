"""How far the distance along the longest axes is from the full one, for every rank."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mahalens.data.ellipsoids import DrawnCovariances, draw_points
from mahalens.studies.ellipsoids.config import EllipsoidConfig

SAMPLE = 24
POINTS = 256
KINDS = ("truncated", "variance", "precision")
QUANTILES = (0.25, 0.5, 0.75)

Floats = NDArray[np.float64]


def rank_grid(dim: int, ranks: tuple[int, ...]) -> list[int]:
    """Powers of two up to D, the ranks of the run, and D.

    >>> rank_grid(12, (3,))
    [1, 2, 3, 4, 8, 12]
    """
    powers = [2**i for i in range(dim.bit_length()) if 2**i <= dim]
    return sorted({*powers, *(r for r in ranks if r <= dim), dim})


def distance_errors(config: EllipsoidConfig) -> dict[str, Floats]:
    """Relative error of the distance by rank: quartiles [3, G] for each way to treat the rest.

    Over some of the run's ellipsoids and standard normal points, as source 002 draws them. In the
    coordinates of its axes, c = V^T (x - mean), the squared distance to an ellipsoid is
    sum_i c_i^2 / l_i; the first R terms are the truncated one, and a remainder s stands for the
    others as sum_{i > R} c_i^2 / s.
    """
    grid = rank_grid(config.dim, config.ranks)
    count = min(config.count, SAMPLE)
    covariances = DrawnCovariances(config.dim, config.count, config.seed)
    means = draw_points(config.dim, count, config.seed, "means", torch.float64).numpy()
    points = draw_points(config.dim, POINTS, config.seed, "ranks", torch.float64).numpy()
    errors: dict[str, list[Floats]] = {kind: [] for kind in KINDS}
    for k in range(count):
        values, vectors = np.linalg.eigh(covariances[k].numpy())
        values, vectors = values[::-1], vectors[:, ::-1]
        squares = ((points - means[k]) @ vectors) ** 2
        kept = np.cumsum(squares / values, axis=1)
        full = np.sqrt(kept[:, -1:])
        left = squares.sum(axis=1, keepdims=True) - np.cumsum(squares, axis=1)
        places = np.array(grid) - 1
        dropped = np.maximum(config.dim - np.array(grid), 1)
        variance = (values.sum() - np.cumsum(values))[places] / dropped
        inverse = (1 / values).sum() - np.cumsum(1 / values)
        precision = dropped / np.maximum(inverse[places], 1e-300)
        last = np.array(grid) == config.dim  # nothing is left over there
        for kind, rest in zip(KINDS, (np.inf, variance, precision), strict=True):
            more = np.maximum(left[:, places], 0) / np.where(last, np.inf, rest)
            errors[kind].append(np.abs(np.sqrt(kept[:, places] + more) / full - 1))
    found = {
        f"ranks/{kind}": np.quantile(np.concatenate(parts), QUANTILES, axis=0)
        for kind, parts in errors.items()
    }
    return {"ranks/grid": np.array(grid, dtype=np.float64), **found}
