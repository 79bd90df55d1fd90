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

METHODS: dict[str, type[Detector]] = {
    kind.method: kind
    for kind in (Mahalanobis, ClassGaussians, LowRank, Marginal, Relative, MahaVar)
}
"""All detectors by the name of their method."""
