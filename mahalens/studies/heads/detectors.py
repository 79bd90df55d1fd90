"""Rivals that read the features of a trained network, through scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mahalens.data import stream

NEIGHBOURS, BANK = 50, 10_000
"""Which neighbour's distance counts, and how many training samples are kept to look among."""

Scorer = Callable[[Tensor], Tensor]
"""Gives features [N, D] a score [N] each, high where a sample is like nothing known."""


def neighbours(features: Tensor, seed: int, trial: int) -> Scorer:
    """Distance to the 50th nearest training sample, features scaled to length 1 (Sun et al. 2022).

    With fewer than 1,000 training samples it is the neighbour that 5 % of them are nearer than.
    """
    from sklearn.neighbors import NearestNeighbors

    if len(features) > BANK:
        chosen = torch.randperm(len(features), generator=stream(seed, "bank", trial))[:BANK]
        features = features[chosen]
    count = max(1, min(NEIGHBOURS, len(features) // 20))
    near = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(_unit(features).numpy())

    def score(given: Tensor) -> Tensor:
        distances, _ = near.kneighbors(_unit(given).numpy())
        return torch.from_numpy(distances[:, -1].copy())

    return score


def class_distance(features: Tensor, y: Tensor, *, relative: bool) -> Scorer:
    """Squared Mahalanobis distance to the nearest class mean, in the covariance within classes.

    Lee et al. 2018; ``relative`` takes off that to the mean of all in the covariance of all, as
    Ren et al. 2021 do.
    """
    from sklearn.covariance import EmpiricalCovariance

    x = features.double()
    means = torch.stack([x[y == label].mean(0) for label in range(int(y.max()) + 1)])
    within = EmpiricalCovariance(assume_centered=True).fit((x - means[y]).numpy())
    around = EmpiricalCovariance().fit(x.numpy())

    def score(given: Tensor) -> Tensor:
        z = given.double()
        found = [torch.from_numpy(within.mahalanobis((z - mean).numpy())) for mean in means]
        nearest = torch.stack(found).amin(0)
        if relative:
            nearest = nearest - torch.from_numpy(around.mahalanobis(z.numpy()))
        return nearest

    return score


def _unit(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=-1)
