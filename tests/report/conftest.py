"""Makes run folders that look like real ones, with numpy only and in a moment."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

MODELS = ("abs", "relu", "sigmoid", "ground-truth")
PUBLISHED = {
    ("abs", "train_mse"): (0.122, {"variance": 0.00994, "min": 0.0, "max": 0.2069}),
    ("relu", "train_mse"): (0.0284, {"variance": 0.00194, "min": 2e-6, "max": 0.208}),
    ("sigmoid", "train_mse"): (0.2675, {"variance": 7e-6}),
    ("relu", "mirrored_pairs"): (0.4, {"sd": 0.6}),
    ("relu", "mean_distance"): (0.37, {"sd": 0.46}),
    ("abs", "mean_distance"): (1.01, {"sd": 1.28}),
    ("sigmoid", "mean_distance"): (3.57, {"sd": 1.79}),
    ("abs", "sphericity"): (0.85, {"sd": 0.71}),
    ("relu", "sphericity"): (1.9, {"sd": 0.56}),
    ("sigmoid", "sphericity"): (3.41, {"sd": 0.03}),
    ("ground-truth", "sphericity"): (9.1e-7, None),
}
# Typical size of each metric: abs, relu, sigmoid, ground truth (None: not defined for it).
TYPICAL: dict[str, tuple[float | None, ...]] = {
    "train_mse": (0.1, 0.03, 0.27, 0.0),
    "test_mse": (0.11, 0.035, 0.28, 0.0),
    "mirrored_pairs": (None, 0.4, 0.0, None),
    "unique_units": (2.0, 3.6, 4.0, 2.0),
    "mean_distance": (0.9, 0.4, 3.6, 0.0),
    "mean_distance_spread": (1.3, 0.6, 5.0, 0.0),
    "sphericity": (0.8, 1.9, 3.4, 9e-7),
    "row_cosine": (0.85, 0.9, 0.8, 1.0),
    "row_eigenvalue_error": (1.2, 1.8, 6.0, 1e-7),
    "wnorm_precision_distance": (36.0, 35.0, 37.0, 36.5),
    "gram_precision_error": (0.3, 0.15, 0.9, 2e-7),
    "gram_eigenvalue_error": (0.4, 0.2, 4.0, 2e-7),
    "gram_cosine": (0.97, 0.98, 0.9, 1.0),
    "centre_error": (0.3, 0.2, 2.0, 1e-7),
    "dead_units": (None, 0.1, 0.0, None),
}
COUNTS = {"mirrored_pairs", "unique_units", "dead_units"}
CLAIMS: list[dict[str, Any]] = [
    {
        "id": "000/abs-beats-sigmoid",
        "source": "000",
        "statement": "MD_Abs reaches a lower training MSE than MD_Sigmoid.",
        "published": "0.122 against 0.2675",
        "measured": 0.95,
        "verdict": "holds",
        "why": "MD_Abs ended lower in 19 of 20 trials. The median ratio of the two is 0.31.",
    },
    {
        "id": "000/hyperplanes-through-mean",
        "source": "000",
        "statement": "The hyperplanes of MD_Abs pass through the mean.",
        "published": 1.01,
        "measured": 0.884,
        "verdict": "fails",
        "why": "6 of 20 trials keep one hyperplane outside the data, more than 1 spread away.",
    },
    {
        "id": "000/eigenvectors-on-rows",
        "source": "000",
        "statement": "The rows of the weight matrix are the eigenvectors of the covariance.",
        "published": None,
        "measured": 2.9e-31,
        "verdict": "fails",
        "why": "The mean |cosine| lies within what random rotations of a whitening give.",
    },
    {
        "id": "001/relu-pairs",
        "source": "001",
        "statement": "ReLU units pair up to stand in for an absolute value.",
        "published": "0.40 of 2 pairs",
        "measured": None,
        "verdict": "not measured",
        "why": "",
    },
]


def _draws(
    rng: np.random.Generator, metric: str, size: float | None, trials: int
) -> list[float | None]:
    if size is None:
        return [None] * trials
    if size == 0.0:
        return [0.0] * trials
    if metric in COUNTS:
        return [float(v) for v in rng.poisson(size, trials)]
    if "cosine" in metric:
        return [float(v) for v in 1 - (1 - size) * rng.uniform(0, 2, trials)]
    spread = 0.02 if size > 30 else 0.8
    return [float(v) for v in size * np.exp(spread * rng.normal(size=trials))]


def _weights(
    rng: np.random.Generator, model: str, mean: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [K, D] and biases [K] such as training leaves behind."""
    dim = len(mean)
    values, vectors = np.linalg.eigh(covariance)
    whitening = (vectors / np.sqrt(values)).T
    if model == "ground-truth":
        return whitening, -whitening @ mean
    rotation = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    weight = rotation @ whitening * (1 + 0.1 * rng.normal(size=(dim, 1)))
    if model == "relu":
        weight = np.concatenate([weight, -weight * (1 + 0.05 * rng.normal(size=(dim, 1)))])
    if model == "sigmoid":
        weight = rng.normal(size=(2 * dim, dim)) * 1.5
    bias = -weight @ mean + 0.2 * rng.normal(size=len(weight))
    if model == "relu":
        bias[-1] -= 60.0  # one hyperplane far outside the data
    return weight, bias


def _distance(model: str, weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = x @ weight.T + bias
    if model == "relu":
        z = np.maximum(z, 0)
    if model == "sigmoid":
        z = 1 / (1 + np.exp(-z))
    return np.sqrt((z**2).sum(-1))


def _row(model: str, metric: str, values: list[float | None], group: dict[str, Any]) -> dict:
    kept = np.array([v for v in values if v is not None and math.isfinite(v)])
    published, detail = PUBLISHED.get((model, metric), (None, None))
    some, several = len(kept) > 0, len(kept) > 1
    mean = float(kept.mean()) if some else None
    std = float(kept.std(ddof=1)) if several else None
    half = 2.09 * std / math.sqrt(len(kept)) if several else 0.0
    return {
        "group": group,
        "model": model,
        "metric": metric,
        "mean": mean,
        "std": std,
        "variance": std**2 if several else None,
        "median": float(np.median(kept)) if some else None,
        "min": float(kept.min()) if some else None,
        "max": float(kept.max()) if some else None,
        "n": len(kept),
        "ci95": [mean - half, mean + half] if several else None,
        "best": float(kept[0]) if some else None,
        "published": published,
        "published_detail": detail,
    }


def _plots(
    rng: np.random.Generator,
    models: tuple[str, ...],
    trials: int,
    mean: np.ndarray,
    covariance: np.ndarray,
) -> dict[str, np.ndarray]:
    dim = len(mean)
    true = np.linalg.eigvalsh(covariance)[::-1]
    precision = np.linalg.inv(covariance)

    def mahalanobis(x: np.ndarray) -> np.ndarray:
        return np.sqrt(np.einsum("...i,ij,...j->...", x - mean, precision, x - mean))

    new = rng.multivariate_normal(mean, covariance, 500)
    plots = {"eigenvalues/true": true}
    if dim == 2:
        reach = 4.2 * np.sqrt(np.diag(covariance))
        gx, gy = (np.linspace(m - r, m + r, 90) for m, r in zip(mean, reach, strict=True))
        plane = np.stack(np.meshgrid(gx, gy), axis=-1)
        plots |= {
            "plane/mean": mean,
            "plane/samples": rng.multivariate_normal(mean, covariance, 400),
            "plane/grid_x": gx,
            "plane/grid_y": gy,
            "plane/true": mahalanobis(plane),
        }
    for model in models:
        count = 1 if model == "ground-truth" else trials
        scatter = 0.0 if model == "ground-truth" else 0.9 if model == "sigmoid" else 0.5
        rows = true * np.exp(scatter * rng.normal(size=(count, dim)))
        if model == "sigmoid":
            rows[:, -1] = np.nan
            rows[0, 0] = 1e9
        plots[f"eigenvalues/{model}/rows"] = rows
        gram = true * np.exp(0.2 * scatter * rng.normal(size=(count, dim)))
        plots[f"eigenvalues/{model}/gram"] = np.sort(gram, axis=1)[:, ::-1]
        weight, bias = _weights(rng, model, mean, covariance)
        plots[f"fit/{model}/true"] = mahalanobis(new)
        plots[f"fit/{model}/learned"] = _distance(model, weight, bias, new)
        if dim == 2:
            plots[f"plane/{model}/distance"] = _distance(model, weight, bias, plane)
            plots[f"plane/{model}/weight"] = weight
            plots[f"plane/{model}/bias"] = bias
    return {name: np.ascontiguousarray(v, dtype=np.float32) for name, v in plots.items()}


def write_run(
    folder: Path,
    *,
    dim: int = 2,
    solver: str = "adam",
    models: tuple[str, ...] = MODELS,
    trials: int = 20,
    seed: int = 0,
    non_finite: bool = True,
    gaussian_file: str | None = None,
    protocol: str = "published",
) -> Path:
    """Write the records of a run: what `mahalens run gaussian` leaves, but for the weights."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    newton = solver == "newton"
    mean = rng.uniform(-10, 10, dim)
    factor = rng.normal(size=(dim, dim))
    covariance = factor @ factor.T + 1e-3 * np.eye(dim)
    covariance /= np.linalg.eigvalsh(covariance)[-1]
    epochs = None if newton else 10_000
    group = {"dim": dim, "solver": solver}
    lost = {("relu", trials - 1)} if non_finite and trials > 1 else set()

    table: list[dict[str, Any]] = []
    curves: list[tuple[str, int, int, str]] = []
    rows, outcomes = [], []
    for column, model in enumerate(models):
        slot = MODELS.index(model) if model in MODELS else column % len(MODELS)
        count = 1 if model == "ground-truth" else trials
        gone = [t for t in range(count) if (model, t) in lost]
        values = {
            metric: _draws(rng, metric, sizes[slot], count) for metric, sizes in TYPICAL.items()
        }
        if newton and model != "ground-truth":
            for metric in ("train_mse", "test_mse", "centre_error", "gram_precision_error"):
                values[metric] = [
                    float(10 ** rng.uniform(-31, -28)) if rng.random() < 0.7 else v
                    for v in values[metric]
                ]
        statuses: dict[str, int] = {}
        for t in range(count):
            solved = (values["train_mse"][t] or 0.0) < 1e-20
            status = "zero residual" if solved else "local minimum"
            status = status if newton else "done"
            status = "analytic" if model == "ground-truth" else status
            status = "non-finite" if t in gone else status
            statuses[status] = statuses.get(status, 0) + 1
            if t in gone:
                for metric in values:
                    values[metric][t] = None
            steps = 0 if model == "ground-truth" else 137 if newton else 10_000
            cells = {m: "" if v[t] is None else repr(v[t]) for m, v in values.items()}
            table.append({"model": model, "trial": t, "status": status, "steps": steps, **cells})
            if model == "ground-truth":
                continue
            end = values["train_mse"][t] or 0.1
            last = 40 if t in gone else steps
            points = np.unique(np.geomspace(1, last, 120).round().astype(int))
            progress = np.log(points) / np.log(steps)
            losses = 10 ** (1.2 + (np.log10(end) - 1.2) * progress**1.5)
            curves += [
                (model, t, int(e), repr(float(v))) for e, v in zip(points, losses, strict=True)
            ]
        rows += [_row(model, metric, v, group) for metric, v in values.items()]
        outcomes.append(
            {
                "model": model,
                "trials": count,
                "statuses": statuses,
                "non_finite": gone,
                "best_trial": 0,
                "seconds": 3.21,
            }
        )

    eigenvalues = np.linalg.eigvalsh(covariance)
    command = f"mahalens run gaussian --dim {dim} --solver {solver} --out runs/demo"
    options = {
        "dim": dim,
        "trials": trials,
        "epochs": epochs,
        "samples": 1000,
        "solver": solver,
        "models": list(models),
        "dtype": "float64" if newton else "float32",
        "device": "cpu",
        "seed": seed,
        "gaussian": gaussian_file,
    }
    config = {
        "study": "gaussian",
        "mahalens": "0.1.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
        "created": "2026-11-15T19:40:00+00:00",
        "seed": seed,
        "device": "cpu",
        "threads": 2,
        "engine": "compiled",
        "protocol": protocol,
        "scaled": [] if protocol == "published" else [f"trials: {trials} instead of 20"],
        "command": command,
        "options": options,
    }
    facts = {
        "dim": dim,
        "solver": solver,
        "method": "levenberg-marquardt" if newton else "adam",
        "condition_number": float(eigenvalues[-1] / eigenvalues[0]),
        "largest_eigenvalue": 1.0,
        "smallest_eigenvalue": float(eigenvalues[0]),
        "target_variance": 0.43,
        "row_cosine_chance": [0.71, 0.99],
        "seconds": 12.3,
    }
    summary = {
        "study": "gaussian",
        "protocol": protocol,
        "facts": facts,
        "outcomes": outcomes,
        "rows": rows,
        "claims": CLAIMS,
    }
    gaussian = {"mean": mean.tolist(), "covariance": covariance.tolist()}
    for name, record in (("config", config), ("summary", summary), ("gaussian", gaussian)):
        (folder / f"{name}.json").write_text(json.dumps(record, allow_nan=False))
    with (folder / "trials.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["model", "trial", "status", "steps", *TYPICAL])
        writer.writeheader()
        writer.writerows(table)
    with (folder / "curves.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("model", "trial", "epoch", "train_mse"), *curves])
    save_file(_plots(rng, models, trials, mean, covariance), folder / "plots.safetensors")
    return folder


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON record in place."""
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """``make_run(**options)`` writes a run folder and returns it; see :func:`write_run`."""
    made = iter(range(1000))
    return lambda **options: write_run(tmp_path / f"run{next(made)}", **options)


@pytest.fixture(scope="session")
def write_a_run() -> MakeRun:
    """:func:`write_run` itself, for fixtures that outlive a test."""
    return write_run


@pytest.fixture
def edit() -> Callable[[Path, Callable[[dict[str, Any]], object]], None]:
    """``edit(path, change)`` applies ``change`` to a JSON record in place."""
    return rewrite
