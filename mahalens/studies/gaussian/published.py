"""The published figures of the Gaussian study: the author's own result files, 20 trials, Adam."""

from __future__ import annotations

from mahalens.studies.figure import Figure

# "<1e-6" in the source is given here as its bound.
PUBLISHED: dict[tuple[str, str, int], Figure] = {
    ("train_mse", "relu", 2): Figure(0.0284, variance=1.94e-3, min=2e-6, max=0.2080),
    ("train_mse", "relu", 10): Figure(0.0279, variance=1.70e-5, min=0.0210, max=0.0373),
    ("train_mse", "relu", 100): Figure(0.0077, variance=3.6e-5, min=0.0020, max=0.0293),
    ("train_mse", "abs", 2): Figure(0.1220, variance=9.94e-3, min=0.0, max=0.2069),
    ("train_mse", "abs", 10): Figure(0.0339, variance=1e-6, min=0.0334, max=0.0347),
    ("train_mse", "abs", 100): Figure(0.0165, variance=2e-6, min=0.0150, max=0.0201),
    ("train_mse", "sigmoid", 2): Figure(0.2675, variance=7e-6),
    ("train_mse", "sigmoid", 10): Figure(0.2743, variance=1.6e-5),
    ("train_mse", "sigmoid", 100): Figure(0.1274, variance=2.1e-5),
    ("mirrored_pairs", "relu", 2): Figure(0.40, std=0.60),
    ("mirrored_pairs", "relu", 10): Figure(0.0),
    ("mirrored_pairs", "relu", 100): Figure(0.0),
    ("mean_distance", "relu", 2): Figure(0.37, std=0.46),
    ("mean_distance", "relu", 10): Figure(0.18, std=0.09),
    ("mean_distance", "relu", 100): Figure(0.57, std=0.09),
    ("mean_distance", "abs", 2): Figure(1.01, std=1.28),
    ("mean_distance", "abs", 10): Figure(0.07, std=0.01),
    ("mean_distance", "abs", 100): Figure(0.04, std=0.00),
    ("mean_distance", "sigmoid", 2): Figure(3.57, std=1.79),
    ("mean_distance", "sigmoid", 10): Figure(5.12, std=0.55),
    ("mean_distance", "sigmoid", 100): Figure(5.28, std=0.14),
    ("sphericity", "relu", 2): Figure(1.90, std=0.56),
    ("sphericity", "relu", 10): Figure(5.74, std=2.08),
    ("sphericity", "relu", 100): Figure(23.08, std=0.58),
    ("sphericity", "abs", 2): Figure(0.85, std=0.71),
    ("sphericity", "abs", 10): Figure(1.06, std=0.00),
    ("sphericity", "abs", 100): Figure(3.64, std=0.18),
    ("sphericity", "sigmoid", 2): Figure(3.41, std=0.03),
    ("sphericity", "sigmoid", 10): Figure(7.85, std=0.25),
    ("sphericity", "sigmoid", 100): Figure(36.86, std=0.30),
    ("sphericity", "ground-truth", 2): Figure(9.1e-7),
    ("sphericity", "ground-truth", 10): Figure(5.8e-6),
    ("sphericity", "ground-truth", 100): Figure(2.4e-3),
}


def published_mean(metric: str, model: str, dim: int) -> float | None:
    """The published mean, or ``None`` where the source gives none."""
    figure = PUBLISHED.get((metric, model, dim))
    return None if figure is None else figure.mean
