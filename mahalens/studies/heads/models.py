"""What the study compares: heads and detectors, and which of them read one trained network."""

from __future__ import annotations

SOFTMAX, DISTANCE, DUQ = "softmax", "distance", "duq"
ENSEMBLE = "ensemble"
MEMBERS = 5

MODELS = {
    "softmax": "linear layer and softmax; unknown is what no class is likely for (the twin of all)",
    "energy": "the same network; unknown is what has a low log-sum of exponentials of its logits",
    "knn": "the same network; unknown is what is far from its 50th nearest training sample",
    "mahalanobis": "the same network; unknown is what is far from all class means, in one "
    "covariance",
    "relative-mahalanobis": "the same, less the distance to the mean of all classes",
    "fitted": "DistanceHead fitted to the same network: one ellipsoid for all classes, closed form",
    "ensemble": "five networks with softmax; unknown is where their mean has a high entropy",
    "duq": "RBF kernels around running class centroids, gradient penalty (van Amersfoort et al.)",
    "distance": "DistanceHead trained with the network: squared distances, compactness penalty",
    "refitted": "the same network; DistanceHead fitted to it again, one ellipsoid for all classes",
    "layered": "the same network and classes; a second DistanceHead, fitted to all layers, rejects",
}

READERS = {
    SOFTMAX: (
        "softmax",
        "energy",
        "knn",
        "mahalanobis",
        "relative-mahalanobis",
        "fitted",
        "ensemble",
    ),
    DISTANCE: ("distance", "refitted", "layered"),
    DUQ: ("duq",),
}
"""The networks that are trained, and the models that read each of them."""

DISTANCES = ("fitted", "distance", "refitted", "layered")
"""The models that are distance heads of this package."""
