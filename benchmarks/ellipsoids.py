"""How long distances to many ellipsoids take, and the way back: ours, what others use, the limit.

    python benchmarks/ellipsoids.py [--quick] [--only GROUP] [--json FILE]

All sides of a case do the same work in one process, taking turns, in float32 (scipy's cdist knows
only float64); the figures are medians. The limit is the matrix product that gives the components
of all points under all ellipsoids, alone, in blocks that fit in the cache or all at once, whichever
is faster; for full ellipsoids it is the dense product, of which a triangular factor needs half.

"full" cases: points and ellipsoids drawn as in Experiment 12. "rank 16" cases: covariances with
eigenvalues 1/i and random axes, as images have them, and points of these ellipsoids; "error" is
the median relative error of the distance against the full one.

"kind" cases: the same ellipsoids held in other ways; the baseline is our own full distance.
"reconstruction": a point from its distances by Levenberg and Marquardt's method, as users call it,
against the published 10,000 steps of Adam in the source's own way (a product with the inverse of
every covariance), of which 20 are measured; "own_adam_s" is our Adam's time for as many.
"axes" cases: the longest axes of one covariance against a full decomposition.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from measure import Work, alternate, arguments, case, finish
from scipy.spatial.distance import cdist
from sides import BLOCKS
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.distributions.multivariate_normal import _batch_mahalanobis

from mahalens.data import draw_ellipsoids
from mahalens.data.draws import DrawnCovariances, draw_points
from mahalens.geometry import FullEllipsoids, LowRankEllipsoids, ellipsoids, reconstruct
from mahalens.geometry.ellipsoids import Ellipsoids, top_eigenpairs
from mahalens.geometry.reconstruction import AdamSearch, SearchProblem

PUBLISHED_STEPS = 10_000


def mixture_of(full: FullEllipsoids) -> GaussianMixture:
    """scikit-learn's mixture with the same parameters and equal weights."""
    count = len(full)
    found = GaussianMixture(count, covariance_type="full")
    found.weights_ = np.full(count, 1 / count, dtype=np.float32)
    found.means_ = full.means.numpy()
    found.precisions_cholesky_ = full.whitening.mT.contiguous().numpy()
    return found


def product(x: Tensor, rows: Tensor, block: int | None) -> Work:
    """The limit: all points times all rows, and nothing else."""
    size = block or len(x)
    columns = 1600 if block else len(rows)
    buffer = torch.empty(min(size, len(x)), min(columns, len(rows)))

    def work() -> None:
        for part in rows.split(columns):
            for some in x.split(size):
                torch.mm(some, part.T, out=buffer[: len(some), : len(part)])

    return work


def limit_of(x: Tensor, rows: Tensor, rounds: int) -> float:
    sides = {str(block): product(x, rows, block) for block in BLOCKS}
    return min(alternate(sides, rounds).values())


def full_cases(quick: bool) -> list[dict[str, Any]]:
    points, count, dim = (200, 8, 20) if quick else (10_000, 64, 100)
    full = draw_ellipsoids(dim, count)
    assert isinstance(full, FullEllipsoids)
    x = draw_points(dim, points, 0, "points", torch.float32)
    mixture, numbers = mixture_of(full), x.double().numpy()
    whitening = full.whitening.double()
    precisions = (whitening.mT @ whitening).numpy()
    means = full.means.double().numpy()
    factors = torch.linalg.inv(full.whitening)

    def by_cdist() -> None:
        for mean, precision in zip(means, precisions, strict=True):
            cdist(numbers, mean[None], "mahalanobis", VI=precision)

    def by_torch() -> None:
        _batch_mahalanobis(factors, x[:, None] - full.means)

    sides = {
        "ours": lambda: full.distances(x),
        "ours scoring": lambda: full.log_likelihood(x),
        "mixture": lambda: mixture.score_samples(x.numpy()),
        "cdist": by_cdist,
        "torch": by_torch,
    }
    taken = alternate(sides, 1 if quick else 7)
    limit = limit_of(x, full.whitening.reshape(-1, dim), 1 if quick else 7)
    name = f"full, {dim}-D"
    return [
        case(f"{name}: GaussianMixture", taken["ours scoring"], taken["mixture"], limit),
        case(f"{name}: loop of cdist", taken["ours"], taken["cdist"], limit),
        case(f"{name}: _batch_mahalanobis", taken["ours"], taken["torch"], limit),
    ]


class ImageLike(DrawnCovariances):
    """Covariances with eigenvalues 1 / i along random axes."""

    def __getitem__(self, k: Any) -> Any:
        generator = torch.Generator().manual_seed(k)
        random = torch.randn(self.dim, self.dim, generator=generator, dtype=torch.float64)
        axes = torch.linalg.qr(random).Q
        values = 1 / torch.arange(1, self.dim + 1, dtype=torch.float64)
        return (axes * values) @ axes.T


def kinds_cases(quick: bool) -> list[dict[str, Any]]:
    points, count, dim, rank = (200, 6, 40, 4) if quick else (10_000, 256, 784, 16)
    drawn = ImageLike(dim, count)
    covariances = [drawn[k] for k in range(count)]  # drawing them is no part of building
    means = draw_points(dim, count, 0, "means", torch.float32)
    began = time.perf_counter()
    full = ellipsoids.from_covariance(means, covariances)
    taken_to_build = {"full": time.perf_counter() - began}
    assert isinstance(full, FullEllipsoids)
    owners = torch.arange(points) % count
    noise = torch.randn(points, dim, generator=torch.Generator().manual_seed(1))
    x = means[owners].clone()
    for k in range(count):  # points of the ellipsoids themselves
        mine = owners == k
        solved = torch.linalg.solve_triangular(full.whitening[k], noise[mine].T, upper=False)
        x[mine] += solved.T
    mixture = mixture_of(full)
    sides = {"full": lambda: full.distances(x), "mixture": lambda: mixture.score_samples(x.numpy())}
    taken = alternate(sides, 1)
    exact = full.distances(x)
    options: dict[str, dict[str, Any]] = {
        f"rank {rank}": {"kind": "low-rank", "rank": rank},
        f"rank {rank} + rest": {"kind": "low-rank+remainder", "rank": rank},
        "auto, error 2 %": {"kind": "low-rank+remainder", "rank": "auto", "error": 0.02},
        f"shared basis, {4 * rank}": {"kind": "shared-basis", "rank": 4 * rank},
        "diagonal": {"kind": "diagonal"},
        "spherical": {"kind": "spherical"},
    }
    cases = [_kind_case("full", full, full, taken["full"], taken["full"], exact, taken_to_build)]
    cases[0].pop("ratio")
    for name, kind in options.items():
        began = time.perf_counter()
        low = ellipsoids.from_covariance(means, covariances, **kind)
        taken_to_build[name] = time.perf_counter() - began
        own = alternate({"ours": lambda low=low: low.distances(x)}, 1 if quick else 3)["ours"]
        error = (low.distances(x) / exact - 1).abs()[torch.arange(points), owners]
        found = _kind_case(name, low, full, own, taken["full"], exact, taken_to_build)
        found["error"] = float(error.median())
        cases.append(found)
        if isinstance(low, LowRankEllipsoids) and name == f"rank {rank} + rest":
            rows = low.axes.reshape(-1, dim)
            sides = {
                "ours": lambda low=low: low.log_likelihood(x),
                "distances": lambda low=low: low.distances(x),
            }
            mine = alternate(sides, 1 if quick else 5)
            limit = limit_of(x, rows, 1 if quick else 5)
            against = case(
                f"rank {rank} + rest, {dim}-D: full GaussianMixture",
                mine["ours"],
                taken["mixture"],
                limit,
                error=float(error.median()),
            )
            cases.insert(0, against)
    return cases


def _kind_case(
    name: str,
    low: Ellipsoids,
    full: FullEllipsoids,
    own: float,
    baseline: float,
    exact: Tensor,
    built: dict[str, float],
) -> dict[str, Any]:
    size = sum(t.numel() * t.element_size() for t in low.tensors().values()) / 2**20
    return case(f"kind: {name}", own, baseline, None, error=0.0, build_s=built[name], mb=size)


def axes_cases(quick: bool) -> list[dict[str, Any]]:
    dim = 60 if quick else 784
    found = []
    for name, drawn in (("flat", DrawnCovariances(dim, 1)), ("1/i", ImageLike(dim, 1))):
        matrix = drawn[0].numpy()
        for rank in (1,) if quick else (4, 16, 64):
            sides: dict[str, Work] = {
                "ours": lambda matrix=matrix, rank=rank: top_eigenpairs(matrix, rank),
                "full": lambda matrix=matrix: np.linalg.eigh(matrix),
            }
            taken = alternate(sides, 1 if quick else 5)
            label = f"axes: {rank} of {dim}, {name} spectrum"
            found.append(case(label, taken["ours"], taken["full"], None))
    return found


def reconstruction_cases(quick: bool) -> list[dict[str, Any]]:
    dim, count, steps = (30, 50, 3) if quick else (784, 1024, 20)
    full = draw_ellipsoids(dim, count)
    truth, start = (draw_points(dim, 1, 0, name, torch.float32) for name in ("truth", "start"))
    targets = full.distances(truth)
    full = draw_ellipsoids(dim, count)  # anew: what a first call arranges is part of the time
    began = time.perf_counter()
    found = reconstruct(full, targets, start=start, method="newton")
    ours = time.perf_counter() - began
    error = float((found.x - truth).norm())
    if not error < 1e-3:
        raise SystemExit(f"reconstruction: ended {error:.2g} from the point")
    search = AdamSearch(SearchProblem.of(full, targets), start, steps=10**9)
    search.advance(2)
    began = time.perf_counter()
    search.advance(2 + steps)
    own_adam = (time.perf_counter() - began) / steps
    means, whitening = full.means, full.whitening
    del full, search
    inverses = torch.empty_like(whitening)
    for k, one in enumerate(whitening):
        inverses[k] = one.T @ one
    del whitening
    adam = source_adam(inverses, means, targets[0], start[0])
    adam(2)
    began = time.perf_counter()
    adam(steps)
    step = (time.perf_counter() - began) / steps
    more = {"error": error, "own_adam_s": own_adam * PUBLISHED_STEPS}
    return [case("reconstruction", ours, step * PUBLISHED_STEPS, None, **more)]


def source_adam(inverses: Tensor, means: Tensor, targets: Tensor, start: Tensor) -> Any:
    """Adam as Experiment 12 describes it: full inverses, a gradient by hand, no autograd."""
    x, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    done, rate = 0, 1 / len(means)

    def steps(count: int) -> None:
        nonlocal done
        for _ in range(count):
            done += 1
            gap = x - means
            pulled = torch.einsum("kij,kj->ki", inverses, gap)
            distances = (gap * pulled).sum(dim=1).sqrt()
            gradient = ((distances - targets) / distances) @ pulled
            first.mul_(0.9).add_(gradient, alpha=0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = (second / (1 - 0.999**done)).sqrt() + 1e-8
            x.sub_(rate * first / (1 - 0.9**done) / root)

    return steps


def main() -> None:
    """Measure all cases and print a table."""
    groups = {
        "full": full_cases,
        "kinds": kinds_cases,
        "reconstruction": reconstruction_cases,
        "axes": axes_cases,
    }
    options = arguments(__doc__, [*groups])
    chosen = [options.only] if options.only else [*groups]
    cases = [case for name in chosen for case in groups[name](options.quick)]
    finish("ellipsoids", cases, options)


if __name__ == "__main__":
    main()
