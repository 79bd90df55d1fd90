"""What is compared: activation functions and ways to start a network, by name. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACTIVATIONS = {"abs": "Abs", "relu": "ReLU"}


@dataclass(frozen=True)
class Start:
    """How a network with one hidden layer is started.

    Each start from data differs in the hidden layer alone from one of the two usual ones: its
    output layer is that of Kaiming where its rows are Kaiming's, and that of LSUV where the data
    decide how long they are.

    Args:
        hidden: the method of the hidden layer, a name of :data:`mahalens.init.METHODS`.
        output: that of the output layer.
        text: one line for people.
        label: a few words for tables and figures.
        options: of the method of the hidden layer.
        variance: take the leading axes that hold this share of the variance only.
        activations: with which activation functions it is tried.
    """

    hidden: str
    output: str
    text: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variance: float | None = None
    activations: tuple[str, ...] = tuple(ACTIVATIONS)


STARTS = {
    "kaiming": Start(
        "kaiming", "kaiming", "random rows through the origin: the usual start", "Kaiming"
    ),
    "lsuv": Start("lsuv", "lsuv", "orthonormal rows at unit output variance, both layers", "LSUV"),
    "sample-point": Start(
        "sample_point_bias", "kaiming", "Kaiming, hyperplanes through samples", "Sample points"
    ),
    "class-mean": Start(
        "class_mean", "kaiming", "Kaiming, hyperplanes through the means of classes", "Class means"
    ),
    "whiten": Start(
        "whiten", "lsuv", "a whitening of the whole input, output layer by LSUV", "Whitening"
    ),
    "whiten-90": Start(
        "whiten",
        "lsuv",
        "a whitening of the axes that hold 90 % of the variance",
        "Whitening to 90 %",
        variance=0.9,
    ),
    "cluster-pca": Start(
        "cluster_pca",
        "lsuv",
        "principal axes of k-means clusters, output layer by LSUV (source 001)",
        "Cluster PCA",
    ),
    "cluster-pca-3": Start(
        "cluster_pca",
        "lsuv",
        "cluster-pca with more clusters, 3 axes of each",
        "Cluster PCA by 3 axes",
        {"axes": 3},
    ),
    "cluster-pca-all": Start(
        "cluster_pca",
        "cluster_pca",
        "cluster-pca in the output layer too, from what it is fed",
        "Cluster PCA throughout",
    ),
    "cluster-pca-mirror": Start(
        "cluster_pca",
        "lsuv",
        "cluster-pca with units in pairs w, -w, which are an Abs together",
        "Mirrored cluster PCA",
        {"mirror": True},
        activations=("relu",),
    ),
}
RIVALS = ("kaiming", "lsuv")
"""The usual starts, which all others are compared with."""
FROM_DATA = ("cluster-pca", "whiten", "sample-point", "class-mean")
"""The starts that look at the data, without their variants."""

MODELS = {
    f"{activation}-{name}": f"{shown}, {start.text}"
    for activation, shown in ACTIVATIONS.items()
    for name, start in STARTS.items()
    if activation in start.activations
}
"""All models with one line of text each."""


def read_model(model: str) -> tuple[str, Start]:
    """The activation function of a model, as a chain names it, and its start.

    >>> read_model("abs-cluster-pca")[0], read_model("abs-cluster-pca")[1].hidden
    ('Abs', 'cluster_pca')
    """
    activation, _, start = model.partition("-")
    return ACTIVATIONS[activation], STARTS[start]
