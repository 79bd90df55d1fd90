"""What fitting and scoring a Mahalanobis detector costs beside other code for the same scores.

    python benchmarks/detect.py [--quick] [--only CASE] [--json FILE]

50,000 samples of 1,280 features in 100 classes are fitted to and 10,000 scored (features as they
are, no shrinkage). "pytorch-ood" is the formula of its detector (0.4.0) in torch: class means, one
covariance in float32, its inverse, and for each class the diagonal of (z − μ) Σ⁻¹ (z − μ)ᵀ; there
batches of 256 are scored at once, because it makes a square matrix of each. "scikit-learn" is
``EmpiricalCovariance`` of the samples less class means, and its ``mahalanobis`` for each class.
All sides work in one process, taking turns; the figures are medians. "difference" is the largest
relative one between scores. "peak_mb" is by how much a fresh process grows at most while it fits
to the samples, "peak_4x_mb" to four times as many; their data do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import Work, alternate, arguments, case, finish, peak_growth
from torch import Tensor

from mahalens.detection import Mahalanobis

BATCH = 256


class Data(NamedTuple):
    z: Tensor
    y: Tensor
    new: Tensor


def data(samples: int, dim: int, classes: int) -> Data:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % classes
    means = torch.randn(classes, dim, generator=draw)
    z = torch.randn(samples, dim, generator=draw).add_(means[y])
    return Data(z, y, torch.randn(samples // 5, dim, generator=draw))


class Ours:
    def fit(self, z: Tensor, y: Tensor) -> None:
        self.detector = Mahalanobis(normalise="none", shrinkage=0.0)
        self.detector.fit_features(z, y, hold_out=0)

    def score(self, z: Tensor) -> Tensor:
        return self.detector.score_features(z).square()


class PytorchOod:
    """Its formula in torch."""

    def fit(self, z: Tensor, y: Tensor) -> None:
        classes = int(y.max()) + 1
        self.means = torch.empty(classes, z.shape[1])
        covariance = torch.zeros(z.shape[1], z.shape[1])
        for c in range(classes):
            rows = z[y == c]
            self.means[c] = rows.mean(0)
            away = rows - self.means[c]
            covariance += away.T @ away
        self.precision = torch.linalg.inv(covariance / len(z))

    def score(self, z: Tensor) -> Tensor:
        return torch.cat([self._score(some) for some in z.split(BATCH)])

    def _score(self, z: Tensor) -> Tensor:
        distances = []
        for mean in self.means:
            away = z - mean
            distances.append((away @ self.precision @ away.T).diag())
        return torch.stack(distances, 1).amin(1)


class ScikitLearn:
    def fit(self, z: Tensor, y: Tensor) -> None:
        from sklearn.covariance import EmpiricalCovariance

        rows, labels = z.numpy(), y.numpy()
        self.means = np.stack([rows[labels == c].mean(0) for c in range(labels.max() + 1)])
        self.covariance = EmpiricalCovariance(assume_centered=True).fit(rows - self.means[labels])

    def score(self, z: Tensor) -> Tensor:
        rows = z.numpy()
        distances = [self.covariance.mahalanobis(rows - mean) for mean in self.means]
        return torch.from_numpy(np.min(distances, 0))


OTHERS: dict[str, Callable[[], Any]] = {"pytorch-ood": PytorchOod, "scikit-learn": ScikitLearn}


def compare(name: str, quick: bool) -> list[dict[str, Any]]:
    """Return a row for fitting and one for scoring."""
    samples = data(*((400, 32, 5) if quick else (50_000, 1_280, 100)))
    ours, other = Ours(), OTHERS[name]()
    rounds = 1 if quick else 3
    sides = {"ours": ours, "other": other}
    fits = {n: (lambda side=side: side.fit(samples.z, samples.y)) for n, side in sides.items()}
    scores = {n: (lambda side=side: side.score(samples.new)) for n, side in sides.items()}
    fitting, scoring = alternate(fits, rounds), alternate(scores, rounds)
    one, two = ours.score(samples.new), other.score(samples.new)
    gap = float(((one - two).abs() / two.abs()).max())
    peaks = {} if quick else {"peak_mb": growth(name, 1), "peak_4x_mb": growth(name, 4)}
    both = {n: fitting[n] + scoring[n] for n in sides}
    return [
        case(f"{name}: fit", fitting["ours"], fitting["other"], **peaks),
        case(f"{name}: score", scoring["ours"], scoring["other"], difference=gap),
        case(f"{name}: both", both["ours"], both["other"]),
    ]


def growth(name: str, times: int) -> float | None:
    return peak_growth(growing, (name, 500), (name, 10_000 * times))


def growing(name: str, samples: int) -> Work:
    """Fitting alone, in a process of its own."""
    some = data(samples, 1_280, 100)
    side = Ours() if name == "ours" else OTHERS[name]()
    return lambda: side.fit(some.z, some.y)


def main() -> None:
    """Measure all cases and print a table."""
    options = arguments(__doc__, tuple(OTHERS))
    chosen = [options.only] if options.only else list(OTHERS)
    rows = [row for name in chosen for row in compare(name, options.quick)]
    if not options.quick:
        rows.append({"case": "ours", "peak_mb": growth("ours", 1), "peak_4x_mb": growth("ours", 4)})
    finish("detect", rows, options)


if __name__ == "__main__":
    main()
