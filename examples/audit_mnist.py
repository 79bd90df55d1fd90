"""Trains a small ReLU network on MNIST and audits it: the network of the README's picture.

    mahalens data fetch mnist
    OMP_NUM_THREADS=1 python examples/audit_mnist.py --out audits/mnist

The picture is the top of ``audits/mnist/report.html``, 1,200 pixels wide; that of
docs/guides/audit.md is its unit 13, opened.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import mahalens
from mahalens.report.audit.folder import write_audit


def trained() -> nn.Module:
    """Two hidden layers, three epochs of Adam."""
    digits = mahalens.load_set("mnist").scaled()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(3):
        for chosen in torch.randperm(len(digits.x)).split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(digits.x[chosen]), digits.y[chosen]).backward()
            optimiser.step()
    return model


def main() -> None:
    """Train, audit on the test images, write the folder."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--out", type=Path, default=Path("audits/mnist"))
    out = asked.parse_args().out
    digits = mahalens.load_set("mnist").scaled()
    record = mahalens.audit(
        trained(),
        (digits.test_x, digits.test_y),
        perturb=True,
        image=(28, 28),
        name="ReLU network of 784-64-32-10",
        source="MNIST, test images, pixels from 0 to 1",
    )
    print(record.verdict)
    print(write_audit(record, out, force=True))


if __name__ == "__main__":
    main()
