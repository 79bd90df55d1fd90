"""What fitting and scoring a Mahalanobis detector costs beside other code for the same scores.

    python benchmarks/detect.py [--quick] [--only CASE] [--json FILE]

50,000 samples of 1,280 features in 100 classes are fitted to and 2,000 scored (features as they
are, no shrinkage). "pytorch-ood" is the formula of its detector (0.4.0) in torch: class means, one
covariance in float32, its inverse, and for each class the diagonal of (z − μ) Σ⁻¹ (z − μ)ᵀ; there
batches of 256 are scored at once, because it makes a square matrix of each. "scikit-learn" is
``EmpiricalCovariance`` of the samples less class means, and its ``mahalanobis`` for each class.
All sides work in one process, taking turns; the figures are medians. "difference" is the largest
relative one between scores. "peak_mb" is by how much a fresh process grows at most while it fits
to 10,000 samples, "peak_4x_mb" to four times as many; their data do not count.

"stream" fits to 1,280 features made batch by batch, which never exist at once: ``mahalens.detect``
with one method, and with the choice among all. There "peak_mb" is for a quarter of the samples
and "peak_4x_mb" for all, a million.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import Work, alternate, arguments, case, finish, peak_growth
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from mahalens.detection import Mahalanobis, detect

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
    return Data(z, y, torch.randn(samples // 25, dim, generator=draw))


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
    rounds = 1 if quick or name == "scikit-learn" else 3  # which takes minutes
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


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches of samples in 100 classes, drawn when they are wanted."""

    def __init__(self, samples: int, dim: int) -> None:
        self.samples, self.dim = samples, dim

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        draw = torch.Generator().manual_seed(0)
        means = torch.randn(100, self.dim, generator=draw)
        for start in range(0, self.samples, 1_000):
            y = torch.arange(start, min(start + 1_000, self.samples)) % 100
            yield torch.randn(len(y), self.dim, generator=draw).add_(means[y]), y


def streaming(method: str, samples: int, dim: int = 1_280) -> Work:
    loader = DataLoader(Stream(samples, dim), batch_size=None)
    options = {} if method == "auto" else {"normalise": "unit"}
    return lambda: detect(nn.Identity(), loader, method, **options)


def stream(quick: bool) -> list[dict[str, Any]]:
    """Return a row for one method and one for the choice among all."""
    rows: list[dict[str, Any]] = []
    for method in ("mahalanobis", "auto"):
        if quick:
            streaming(method, 2_000, 32)()
            rows.append({"case": f"stream: {method}"})
            continue
        peaks = {}
        for name, samples in (("peak_mb", 250_000), ("peak_4x_mb", 1_000_000)):
            began = time.perf_counter()
            peaks[name] = peak_growth(streaming, (method, 3_000), (method, samples))
            seconds = time.perf_counter() - began
        rows.append({"case": f"stream: {method}", "ours_s": seconds, **peaks})
    return rows


def main() -> None:
    """Measure all cases and print a table."""
    options = arguments(__doc__, (*OTHERS, "memory", "stream"))
    chosen = [options.only] if options.only else [*OTHERS, "memory", "stream"]
    rows = [row for name in chosen if name in OTHERS for row in compare(name, options.quick)]
    if "memory" in chosen and not options.quick:
        rows.append({"case": "ours", "peak_mb": growth("ours", 1), "peak_4x_mb": growth("ours", 4)})
    if "stream" in chosen:
        rows += stream(options.quick)
    finish("detect", rows, options)


if __name__ == "__main__":
    main()
