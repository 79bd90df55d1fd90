"""Twenty trials of two heads on scikit-learn's digits: a linear one, and distances to prototypes.

    pip install scikit-learn; python examples/digits.py

Both are trained from the same 20 seeds with shuffled mini-batches, all trials at once.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from mahalens import Chain, TrialStack, fit

digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
train, test = slice(0, 1400), slice(1400, None)


def accuracy(solver):
    """Share of the test images that each trial gets right."""
    outputs = solver.stack(x[test])  # [T, N, K]
    return {"accuracy": (outputs.argmax(-1) == y[test]).float().mean(1)}


for text in ("Linear(64), ReLU, Linear(10)", "Linear(64), Abs, OffsetL2(10), Neg"):
    done = fit(
        TrialStack.from_seeds(Chain.parse(text, inputs=64), range(20)),
        x[train],
        y[train],
        loss="cross-entropy",
        epochs=100,
        lr=3e-3,
        batch_size=64,
        metrics=accuracy,
        at=[10],
    )
    print(text)
    for epoch, right in zip(done.history.epochs, done.history["accuracy"], strict=True):
        print(f"  epoch {epoch}: {right.mean():.1%} right, {right.std():.1%} between seeds")
