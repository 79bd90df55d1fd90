"""What building with distances costs: layers, heads and starts beside what one would use instead.

    python benchmarks/building.py [--quick] [--json FILE]

Each case computes the same on both sides, except those called "cost of", whose ratio below 1 says
how much longer the distance takes than the linear layer in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from measure import Work, alternate, arguments, finish
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from torch import nn
from torch.distributions import LowRankMultivariateNormal

from mahalens import DistanceHead, Mahalanobis
from mahalens.init import cluster_pca_


def layer_step(samples: int, inputs: int, classes: int, rank: int) -> dict[str, Work]:
    """Squared distances to low-rank ellipsoids and their gradients, three ways."""
    torch.manual_seed(0)
    x = torch.randn(samples, inputs)
    layer = Mahalanobis(inputs, classes, rank, squared=True)

    def ours() -> None:
        layer.zero_grad()
        layer(x).sum().backward()

    def dense() -> None:
        """Every covariance as a matrix, solved one class after the other."""
        layer.zero_grad()
        total = x.new_zeros(())
        for mean, covariance in zip(layer.mu, layer.covariances, strict=True):
            far = x - mean
            total = total + (far * torch.linalg.solve(covariance, far.mT).mT).sum()
        total.backward()

    def library() -> None:
        """torch's own low-rank Gaussians; their log-density has the same distance inside."""
        layer.zero_grad()
        variances = (2 * layer.log_spread).exp().expand(-1, inputs)
        found = LowRankMultivariateNormal(layer.mu, layer.axes.mT, variances, validate_args=False)
        found.log_prob(x[:, None]).sum().backward()

    return {"ours": ours, "dense loop": dense, "torch.distributions": library}


def shared_step(samples: int, inputs: int, classes: int, rank: int) -> dict[str, Work]:
    """Squared distances with one ellipsoid for all classes, and gradients; or one like it each."""
    torch.manual_seed(0)
    x = torch.randn(samples, inputs)
    one = Mahalanobis(inputs, classes, rank, squared=True, shared=True)
    each = Mahalanobis(inputs, classes, rank, squared=True)
    with torch.no_grad():
        each.mu.copy_(one.mu)
        each.axes.copy_(one.axes.expand_as(each.axes))
        each.log_spread.copy_(one.log_spread.expand_as(each.log_spread))

    def step_of(layer: Mahalanobis) -> Work:
        def work() -> None:
            layer.zero_grad()
            layer(x).sum().backward()

        return work

    return {"ours": step_of(one), "an ellipsoid for each class": step_of(each)}


def network_step(samples: int, head: nn.Module) -> Work:
    """A step of a network 784-256-128 with a head on top, loss and gradients."""
    torch.manual_seed(0)
    x, y = torch.randn(samples, 784), torch.randint(10, (samples,))
    body = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
    model = nn.Sequential(body, head)

    def work() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    return work


def start(samples: int, inputs: int, units: int, clusters: int) -> dict[str, Work]:
    """A layer from clusters and their principal axes, and scikit-learn's parts in a loop."""
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(clusters, inputs, generator=generator)
    chosen = torch.randint(clusters, (samples,), generator=generator)
    x = centres[chosen] + torch.randn(samples, inputs, generator=generator)
    layer = nn.Linear(inputs, units)

    def ours() -> None:
        cluster_pca_(layer, x, clusters=clusters, generator=torch.Generator().manual_seed(0))

    def library() -> None:
        data = x.numpy()
        labels = KMeans(clusters, n_init=3, random_state=0).fit_predict(data)
        rows: list[Any] = []
        for label in range(clusters):
            own = data[labels == label]
            found = PCA(units // clusters, random_state=0).fit(own)
            unit = found.components_ / np.sqrt(found.explained_variance_)[:, None]
            rows.append(np.hstack([unit, -(unit @ own.mean(0))[:, None]]))
        np.vstack(rows)

    return {"ours": ours, "scikit-learn": library}


def scores(samples: int, known: int, inputs: int, classes: int) -> dict[str, Work]:
    """How far new samples lie from what is known: prototypes against all known samples."""
    torch.manual_seed(0)
    x, y = torch.randn(known, inputs), torch.arange(known) % classes
    new = torch.randn(samples, inputs)
    head = DistanceHead(inputs, classes, metric="shared", rank=16)
    head.fit_prototypes(x, y)
    neighbours = NearestNeighbors(n_neighbors=10).fit(x.numpy())

    def ours() -> None:
        with torch.no_grad():
            head.ood_score(new)

    def library() -> None:
        neighbours.kneighbors(new.numpy())

    return {"ours": ours, "10 nearest neighbours": library}


def cases_of(name: str, seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """A line for each rival of ours."""
    ours = seconds["ours"]
    return [
        {"case": f"{name}: {rival}", "ours_s": ours, "baseline_s": taken, "ratio": taken / ours}
        for rival, taken in seconds.items()
        if rival != "ours"
    ]


def main() -> None:
    """Measure every case."""
    options = arguments(__doc__)
    torch.set_num_threads(1)
    quick = options.quick
    rounds = 1 if quick else 9
    size = 100 if quick else 1_000
    found = []
    step = layer_step(size, 32 if quick else 128, 10, 4 if quick else 16)
    found += cases_of("Mahalanobis(128, 10, 16), a step", alternate(step, rounds))
    shared = shared_step(*((50, 16, 10, 2) if quick else (256, 512, 100, 16)))
    found += cases_of(
        "one ellipsoid for 100 classes, 512 inputs", alternate(shared, min(rounds, 5))
    )
    linear = network_step(size, nn.Linear(128, 10))
    heads = {
        "euclidean": DistanceHead(128, 10),
        "diagonal": DistanceHead(128, 10, metric="diagonal"),
        "low-rank": DistanceHead(128, 10, metric="low-rank", rank=16),
        "shared": DistanceHead(128, 10, metric="shared", rank=16),
    }
    sides = {name: network_step(size, head) for name, head in heads.items()}
    taken = alternate({"linear": linear, **sides}, rounds)
    for name in heads:
        one = {"ours": taken[name], "linear head": taken["linear"]}
        found += cases_of(f"cost of a {name} head, a step of 784-256-128-10", one)
    begun = start(*((500, 16, 20, 5) if quick else (20_000, 64, 160, 10)))
    found += cases_of("cluster_pca_, 20,000 x 64", alternate(begun, min(rounds, 5)))
    scored = scores(*((100, 1_000, 16, 10) if quick else (10_000, 60_000, 128, 10)))
    found += cases_of("ood_score of 10,000 against 60,000", alternate(scored, min(rounds, 3)))
    finish("building", found, options)


if __name__ == "__main__":
    main()
