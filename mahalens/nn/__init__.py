"""Modules that speak in distances, and architectures as data."""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.nn.architectures import mahalanobis_model, md_abs, md_relu, md_sigmoid
    from mahalens.nn.chain import Chain, Layer
    from mahalens.nn.layers import Abs, Neg, Norm
    from mahalens.nn.mixed import AbsReLU
    from mahalens.nn.offset_l2 import OffsetL2
    from mahalens.nn.point_slope import PointSlope

__all__ = [
    "Abs",
    "AbsReLU",
    "Chain",
    "Layer",
    "Neg",
    "Norm",
    "OffsetL2",
    "PointSlope",
    "mahalanobis_model",
    "md_abs",
    "md_relu",
    "md_sigmoid",
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
        "Chain": "mahalens.nn.chain",
        "Layer": "mahalens.nn.chain",
        "mahalanobis_model": "mahalens.nn.architectures",
        "md_abs": "mahalens.nn.architectures",
        "md_relu": "mahalens.nn.architectures",
        "md_sigmoid": "mahalens.nn.architectures",
    },
)
