"""The methods by name."""

from __future__ import annotations

from mahalens.detection.base import Detector
from mahalens.detection.gaussian import (
    ClassGaussians,
    LowRank,
    Mahalanobis,
    MahaVar,
    Marginal,
    Relative,
)
from mahalens.detection.logits import GEN, Energy, MaxLogit, MaxSoftmax, ViM
from mahalens.detection.neighbours import Neighbours

METHODS: dict[str, type[Detector]] = {
    kind.method: kind
    for kind in (
        Mahalanobis,
        ClassGaussians,
        LowRank,
        Marginal,
        Relative,
        MahaVar,
        Neighbours,
        Energy,
        MaxSoftmax,
        MaxLogit,
        GEN,
        ViM,
    )
}
"""All detectors by the name of their method."""
