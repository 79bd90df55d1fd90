"""What each column of a Gaussian run means: labels, units and how to show it. Needs no torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric

METRICS: dict[str, Metric] = {
    "train_mse": Metric(
        "Final training MSE",
        "Loss of the last epoch (Newton: of the final weights) on the training set.",
        log=True,
    ),
    "test_mse": Metric(
        "MSE on new data",
        "Loss on 1,000 samples drawn anew for this evaluation.",
        log=True,
    ),
    "late_decrease": Metric(
        "Loss still falling",
        "Share of the loss that went in the last tenth of the epochs (Adam): near 0 once training "
        "has converged. Losses below 0.1 % of the targets' variance count as 0.1 %.",
        unit="relative",
        better=None,
    ),
    "mirrored_pairs": Metric(
        "Mirrored pairs",
        "Pairs of units whose weights point in opposite directions (cosine below -0.999); "
        "each unit pairs once.",
        unit="pairs",
        better=None,
    ),
    "unique_units": Metric(
        "Units after deduplication",
        "Units left when one of each mirrored pair is dropped.",
        unit="units",
        better=None,
    ),
    "mean_distance": Metric(
        "Hyperplane to mean",
        "|w·μ + b| / ‖w‖, averaged over the units: how far the hyperplanes miss the mean.",
        unit="input units",
        log=True,
    ),
    "mean_distance_spread": Metric(
        "Hyperplane to mean, in spreads",
        "|w·μ + b| / √(wᵀΣw), averaged over the units: the same in standard deviations of the "
        "data along the unit's normal.",
        unit="spreads",
        log=True,
    ),
    "sphericity": Metric(
        "Sphericity norm",
        "‖M/d̄ − I‖_F with M = WΣWᵀ and d̄ its mean diagonal, on the deduplicated rows; "
        "0 means that the layer whitens.",
        log=True,
    ),
    "row_cosine": Metric(
        "Rows against eigenvectors",
        "Mean |cosine| between the weight rows and the true eigenvectors under the best "
        "one-to-one matching.",
        better="high",
    ),
    "row_eigenvalue_error": Metric(
        "Eigenvalue error, row by row",
        "Mean |1/‖wᵢ‖² − λ| / λ over the same matching.",
        unit="relative",
        log=True,
    ),
    "wnorm_precision_distance": Metric(
        "‖W_normᵀW_norm − Σ⁻¹‖_F",
        "The source's comparison with unit rows; the true whitening does not score 0 either.",
        better=None,
        log=True,
    ),
    "gram_precision_error": Metric(
        "Precision error of WᵀW",
        "‖c WᵀW − Σ⁻¹‖_F / ‖Σ⁻¹‖_F with c = 1 (ReLU: 1/2, each unit sees half the space).",
        unit="relative",
        log=True,
    ),
    "gram_eigenvalue_error": Metric(
        "Eigenvalue error, from WᵀW",
        "Mean relative error of the covariance eigenvalues read off WᵀW, in order of size.",
        unit="relative",
        log=True,
    ),
    "gram_cosine": Metric(
        "Eigenvectors of WᵀW against the truth",
        "Mean |cosine| between the eigenvectors of WᵀW and the true ones, matched one-to-one.",
        better="high",
    ),
    "centre_error": Metric(
        "Centre read off the layer",
        "Mahalanobis distance of the least-squares solution of Wc = −b from the true mean.",
        unit="spreads",
        log=True,
    ),
    "dead_units": Metric(
        "Dead units",
        "Units whose activation is 0 on every training sample.",
        unit="units",
    ),
}
