"""Measure how well a detector on a pretrained network keeps its rate, over splits of CIFAR-10.

    python examples/unknown_images.py [--splits 12]

Known: 1,000 vehicles, 700 of them to fit (a fifth of which sets the threshold), 300 to measure.
Unknown: 500 animals. The first split is that of the README; the others are drawn at random.
Needs `mahalens data fetch cifar10` and `mahalens data fetch efficientnet-lite0`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from mahalens import data, detect_features

VEHICLES = torch.tensor([0, 1, 8, 9])


def main() -> None:
    """Print the share of known and unknown images that each split rejects, and their means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=12)
    splits = parser.parse_args().splits
    cifar = data.load_samples("cifar10", limit=2500)
    vehicle = torch.isin(cifar.y, VEHICLES)
    vehicles, animals = features(cifar.x[vehicle][:1000]), features(cifar.x[~vehicle][:500])
    labels = cifar.y[vehicle][:1000]
    shares = []
    for seed in range(splits):
        order = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))
        order = order if seed else torch.arange(1000)
        fit, new = order[:700], order[700:]
        detector = detect_features(vehicles[fit], labels[fit], seed=seed)
        rejected = [detector.reject_features(z).float().mean() for z in (vehicles[new], animals)]
        shares.append(rejected)
        print(f"split {seed}: known {rejected[0]:.1%}, unknown {rejected[1]:.1%} rejected")
    for name, values in zip(("known", "unknown"), torch.tensor(shares).T, strict=True):
        print(f"{name}: {values.mean():.1%} rejected ({values.min():.1%} to {values.max():.1%})")


def features(pixels: Tensor) -> Tensor:
    """Return the penultimate features of flat images, in blocks."""
    network = data.load_backbone("efficientnet-lite0", size=96)[:-1]
    with torch.no_grad():
        return torch.cat([network(images) for images in pixels.view(-1, 3, 32, 32).split(50)])


if __name__ == "__main__":
    main()
