"""The published figures of the ellipsoid study: one run on CUDA, seed 42."""

from __future__ import annotations

PUBLISHED: dict[tuple[str, str], float] = {
    ("final_error", "elliptical"): 0.161,
    ("final_error", "spherical"): 0.628,
    ("final_error", "pca-l2-4"): 0.116,
    ("final_error", "pca-l2-8"): 0.235,
    ("final_error", "pca-l2-64"): 0.074,
    ("final_error", "pca-l1-64"): 19.85,
    ("seconds", "elliptical"): 65.1,
    ("seconds", "spherical"): 3.3,
    ("seconds", "pca-l2-4"): 4.1,
    ("seconds", "pca-l2-8"): 4.0,
    ("seconds", "pca-l2-64"): 12.6,
    ("seconds", "pca-l1-64"): 12.7,
}
DETAILS: dict[tuple[str, str], dict[str, float]] = {
    ("final_error", "elliptical"): {"another draw": 0.318},
    ("final_error", "spherical"): {"another draw": 1.717},
    ("seconds", "elliptical"): {"another draw": 63.0},
    ("seconds", "spherical"): {"another draw": 3.2},
}


def published_figure(metric: str, model: str) -> float | None:
    """The figure of the source's table, or ``None`` where it gives none."""
    return PUBLISHED.get((metric, model))
