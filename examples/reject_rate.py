"""Does a head turn away as many known samples as it was told to?

    python examples/reject_rate.py [--data digits|mnist|fashion-mnist] [--splits 8]

Heads are fitted in closed form to one part of the training samples, told to reject 5 % by another
part, and tried on a third. Beside it: what happens if the rejection is set by the samples that the
head was fitted to.
"""

from __future__ import annotations

import argparse

import torch

from mahalens import DistanceHead, load_set
from mahalens.stats import summarise

RATE = 0.05
HEADS = {
    "euclidean": {"metric": "euclidean"},
    "low-rank, rank 8": {"metric": "low-rank", "rank": 8},
    "shared, rank 16": {"metric": "shared", "rank": 16},
}


def rejected(head: DistanceHead, given: torch.Tensor, new: torch.Tensor) -> float:
    """The share of new samples that is rejected after the threshold was set by the given ones."""
    head.set_reject(given, RATE)
    return float((head.predict(new) == -1).float().mean())


def main() -> None:
    """Print a line for each head."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--splits", type=int, default=8)
    options = parser.parse_args()
    data = load_set(options.data).scaled()
    fitted, held = min(2_000, len(data.y) // 3), min(600, len(data.y) // 3)
    print(f"{data.name}, {options.splits} splits, {RATE:.0%} asked for; mean ± half-width of 95 %")
    for name, choice in HEADS.items():
        rates: dict[str, list[float]] = {"by others": [], "by those fitted to": []}
        for split in range(options.splits):
            order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(split))
            x, y = data.x[order], data.y[order]
            head = DistanceHead(data.inputs, data.classes, **choice)
            head.fit_prototypes(x[:fitted], y[:fitted])
            new = x[fitted + held : fitted + held + 3_000]
            rates["by others"].append(rejected(head, x[fitted : fitted + held], new))
            rates["by those fitted to"].append(rejected(head, x[:fitted], new))
        told = []
        for way, found in rates.items():
            summary = summarise(found)
            half = (summary.ci95[1] - summary.ci95[0]) / 2 if summary.ci95 else float("nan")
            told.append(f"{way} {summary.mean:.1%} ± {half:.1%}")
        print(f"{name:<18} {', '.join(told)}")


if __name__ == "__main__":
    main()
