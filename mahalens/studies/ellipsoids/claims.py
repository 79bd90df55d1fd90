"""The claims of source 002."""

from __future__ import annotations

from mahalens.studies.claims import Average, Both, Claim, Lower, Ratio, TrialShare

ADAM, NEWTON = {"solver": "adam"}, {"solver": "newton"}


def _lower(model: str, than: str) -> Lower:
    return Lower("final_error", model, than)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "002/rank-4-matches-full",
        "002",
        "PCA-L2 with 4 components matches the full distance (error at most 1.5 times as large) in "
        "at most a fifth of its time.",
        Both(
            Ratio("final_error", "pca-l2-4", "elliptical", "below", 1.5),
            Ratio("seconds", "pca-l2-4", "elliptical", "below", 0.2),
        ),
        needs=ADAM,
    ),
    Claim(
        "002/rank-4-beats-full",
        "002",
        "PCA-L2 with 4 components leaves a smaller error than the full distance.",
        _lower("pca-l2-4", "elliptical"),
        needs=ADAM,
    ),
    Claim(
        "002/rank-64-beats-full",
        "002",
        "PCA-L2 with 64 components leaves a smaller error than the full distance.",
        _lower("pca-l2-64", "elliptical"),
        needs=ADAM,
    ),
    Claim(
        "002/error-falls-with-rank",
        "002",
        "PCA-L2 improves smoothly with more components: 8 beat 4, and 64 beat 8.",
        Both(_lower("pca-l2-8", "pca-l2-4"), _lower("pca-l2-64", "pca-l2-8")),
        needs=ADAM,
    ),
    Claim(
        "002/l1-is-worse",
        "002",
        "PCA-L1 is worse than PCA-L2 with as many components (64).",
        _lower("pca-l2-64", "pca-l1-64"),
    ),
    Claim(
        "002/pca-beats-spherical",
        "002",
        "PCA-L2 with 4 components beats the Euclidean distance.",
        _lower("pca-l2-4", "spherical"),
        needs=ADAM,
    ),
    Claim(
        "002/full-beats-spherical",
        "002",
        "The full distance beats the Euclidean one, which ignores shape.",
        _lower("elliptical", "spherical"),
        needs=ADAM,
    ),
    Claim(
        "002/rank-64-approximates",
        "002",
        "PCA-L2 approximates the Mahalanobis distance: with 64 components within 10 %.",
        Average("distance_error", "pca-l2-64", "below", 0.1),
    ),
    Claim(
        "002/rank-4-approximates",
        "002",
        "Few components suffice to approximate the Mahalanobis distance: 4 within 10 %.",
        Average("distance_error", "pca-l2-4", "below", 0.1),
    ),
    Claim(
        "002/full-distances-determine-the-point",
        "002",
        "Searched until convergence, full distances give the point back: error below 0.01.",
        TrialShare("final_error", "elliptical", "below", 0.01),
        needs=NEWTON,
    ),
    Claim(
        "002/rank-4-determines-the-point",
        "002",
        "Searched until convergence, PCA-L2 with 4 components gives the point back: error below "
        "0.01.",
        TrialShare("final_error", "pca-l2-4", "below", 0.01),
        needs=NEWTON,
    ),
    Claim(
        "002/euclidean-determines-the-point",
        "002",
        "Searched until convergence, Euclidean distances give the point back: error below 0.01.",
        TrialShare("final_error", "spherical", "below", 0.01),
        needs=NEWTON,
    ),
    Claim(
        "002/l1-determines-the-point",
        "002",
        "Searched until convergence, PCA-L1 with 64 components gives the point back: error below "
        "0.01.",
        TrialShare("final_error", "pca-l1-64", "below", 0.01),
        needs=NEWTON,
    ),
)

# Source 002 has no data; these put its conclusions to the test on some.
DATA_CLAIMS: tuple[Claim, ...] = (
    Claim(
        "ellipsoids/data/remainder-beats-truncation",
        "here",
        "On real data, one spread for the dropped directions classifies better by distance than "
        "dropping them (rank 8).",
        Lower("error_distance", "rank-8", "truncated-8"),
    ),
    Claim(
        "ellipsoids/data/low-rank-matches-full",
        "here",
        "On real data, a few components (8) match the full ellipsoid: test error at most 1.1 times "
        "as large.",
        Ratio("error_density", "rank-8", "full", "below", 1.1),
    ),
    Claim(
        "ellipsoids/data/truncation-approximates",
        "here",
        "On real data, the distance along 32 components approximates the full one within 10 %.",
        Average("distance_error", "truncated-32", "below", 0.1),
    ),
    Claim(
        "ellipsoids/data/remainder-approximates",
        "here",
        "On real data, 32 components with a remainder approximate the full distance within 10 %.",
        Average("distance_error", "rank-32", "below", 0.1),
    ),
    Claim(
        "ellipsoids/data/adaptive-clusters-help",
        "here",
        "On real data, several ellipsoids per class (2 clusters) classify better than one (rank "
        "8).",
        Lower("error_density", "clusters-2", "rank-8"),
    ),
)
