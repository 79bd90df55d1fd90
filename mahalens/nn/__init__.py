"""Modules that speak in distances, and architectures as data."""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.nn.architectures import mahalanobis_model, md_abs, md_relu, md_sigmoid
    from mahalens.nn.chain import Chain, Layer
    from mahalens.nn.head import DistanceHead
    from mahalens.nn.layers import Abs, Neg, Norm
    from mahalens.nn.mahalanobis import Mahalanobis
    from mahalens.nn.mixed import AbsReLU
    from mahalens.nn.offset_l2 import OffsetL2
    from mahalens.nn.penalties import (
        compactness_penalty,
        orthogonality_penalty,
        volume_penalty,
    )
    from mahalens.nn.point_slope import PointSlope
    from mahalens.nn.prediction import Prediction

__all__ = [
    "Abs",
    "AbsReLU",
    "Chain",
    "DistanceHead",
    "Layer",
    "Mahalanobis",
    "Neg",
    "Norm",
    "OffsetL2",
    "PointSlope",
    "Prediction",
    "compactness_penalty",
    "mahalanobis_model",
    "md_abs",
    "md_relu",
    "md_sigmoid",
    "orthogonality_penalty",
    "volume_penalty",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Abs": "mahalens.nn.layers",
        "Neg": "mahalens.nn.layers",
        "Norm": "mahalens.nn.layers",
        "AbsReLU": "mahalens.nn.mixed",
        "OffsetL2": "mahalens.nn.offset_l2",
        "PointSlope": "mahalens.nn.point_slope",
        "Mahalanobis": "mahalens.nn.mahalanobis",
        "DistanceHead": "mahalens.nn.head",
        "Prediction": "mahalens.nn.prediction",
        "compactness_penalty": "mahalens.nn.penalties",
        "orthogonality_penalty": "mahalens.nn.penalties",
        "volume_penalty": "mahalens.nn.penalties",
        "Chain": "mahalens.nn.chain",
        "Layer": "mahalens.nn.chain",
        "mahalanobis_model": "mahalens.nn.architectures",
        "md_abs": "mahalens.nn.architectures",
        "md_relu": "mahalens.nn.architectures",
        "md_sigmoid": "mahalens.nn.architectures",
    },
)
