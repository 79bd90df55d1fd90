"""What each column of a run of the ellipsoid study means. Needs no torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric

SEARCH_METRICS: dict[str, Metric] = {
    "final_error": Metric(
        "Final error",
        "‖x_true − x_found‖ at the end of the search; a random point is about √(2D) away.",
        unit="input units",
        log=True,
    ),
    "residual": Metric(
        "Misfit of the distances",
        "Root mean square of d_k(x_found) − target_k over the ellipsoids.",
        unit="spreads",
        log=True,
    ),
    "seconds": Metric(
        "Time of one search",
        "Adam: seconds per step, timed over some steps for this trial's point alone, times the "
        "steps. Newton: the search for this trial's point alone. Without drawing and factoring.",
        unit="seconds",
        log=True,
    ),
    "steps": Metric("Steps", "Steps of the search.", unit="steps", better=None),
    "distance_error": Metric(
        "Distance against the full one",
        "Median of |d / d_full − 1| over the ellipsoids at the true point (with data: over test "
        "samples and classes): how well this distance stands in for the Mahalanobis distance.",
        unit="relative",
        log=True,
    ),
    "cross_error": Metric(
        "Error from full distances",
        "‖x_true − x_found‖ when the point is sought with this distance but the targets are full "
        "Mahalanobis distances (Newton): what the approximation costs.",
        unit="input units",
        log=True,
    ),
}

DATA_METRICS: dict[str, Metric] = {
    "error_density": Metric(
        "Test error by density",
        "Share of the test samples whose class has not the largest log-density plus log prior.",
        unit="share",
    ),
    "error_distance": Metric(
        "Test error by distance",
        "Share of the test samples whose nearest ellipsoid belongs to another class.",
        unit="share",
    ),
    "distance_error": SEARCH_METRICS["distance_error"],
    "fit_seconds": Metric("Time to fit", "Fitting this model alone.", unit="seconds", log=True),
    "score_seconds": Metric(
        "Time to score", "Classifying the whole test set.", unit="seconds", log=True
    ),
    "parameters": Metric("Numbers stored", "Size of the fitted model.", unit="numbers", log=True),
}

_FIRST = ("error_density", "error_distance")
METRICS: dict[str, Metric] = {
    **{name: DATA_METRICS[name] for name in _FIRST},
    **SEARCH_METRICS,
    **{name: metric for name, metric in DATA_METRICS.items() if name not in _FIRST},
}
