"""What the transfer study compares, by name. Needs no torch.

A name is a backbone and a head. Backbones are a hidden layer with ReLU, Abs or no activation, or
``kernels``: random convolutions, for sequences only. Heads are ``linear``, with a bias; ``l2``,
the distances of OffsetL2 taken as they are, so that the class that is furthest away wins;
``l2-neg``, minus the distances, so that the nearest class wins; both also by the formula of the
published code, ``-code``. The rest are yardsticks of other kinds.
"""

from __future__ import annotations

from mahalens.errors import InputError
from mahalens.nn.chain import Chain

BACKBONES = {
    "relu": "a hidden layer with ReLU",
    "abs": "a hidden layer with Abs",
    "none": "a hidden layer without activation",
    "kernels": "random convolution kernels, for sequences",
}
HEADS = {
    "linear": "a linear head",
    "l2": "OffsetL2, the furthest class wins",
    "l2-neg": "OffsetL2 negated, the nearest class wins",
    "l2-code": "OffsetL2 by the published code",
    "l2-neg-code": "OffsetL2 by the published code, negated",
}
YARDSTICKS = {
    "boosting": "gradient-boosted trees (scikit-learn)",
    "knn": "k nearest neighbours, k chosen on training data (scikit-learn)",
    "dtw": "the nearest neighbour by dynamic time warping, for sequences",
}

_PLAIN = ("linear", "l2", "l2-neg")
NETWORKS = (
    *(f"{backbone}-{head}" for backbone in ("relu", "abs", "none") for head in HEADS),
    *(f"kernels-{head}" for head in _PLAIN),
)
ALL = (*NETWORKS, *YARDSTICKS)
DEFAULT = tuple(name for name in ALL if "code" not in name and name != "none-l2")
"""Without the published code's formula, and what the others tell already."""
SEQUENCES_ONLY = (*(f"kernels-{head}" for head in _PLAIN), "dtw")
"""These need an order in time."""

_ACTIVATIONS = {"relu": "ReLU", "abs": "Abs", "none": ""}


def split(model: str) -> tuple[str, str]:
    """Backbone and head of a network.

    >>> split("relu-l2-neg")
    ('relu', 'l2-neg')
    """
    backbone, _, head = model.partition("-")
    return backbone, head


def text_of(model: str) -> str:
    """A model in words.

    >>> text_of("abs-linear")
    'a hidden layer with Abs, a linear head'
    """
    if model in YARDSTICKS:
        return YARDSTICKS[model]
    backbone, head = split(model)
    return f"{BACKBONES[backbone]}, {HEADS[head]}"


MODELS = {model: text_of(model) for model in ALL}
"""All models with what they are."""


def chain_of(model: str, inputs: int, classes: int, hidden: int) -> Chain:
    """The network of a model, on its inputs, or on what its kernels make of them.

    >>> print(chain_of("abs-l2-neg-code", 13, 3, 128))
    Linear(128), Abs, OffsetL2(3, variant=published-code), Neg
    >>> print(chain_of("kernels-linear", 512, 3, 128))
    Linear(3)
    """
    if model not in NETWORKS:
        raise InputError(f"unknown network {model!r}; known: {', '.join(NETWORKS)}")
    backbone, head = split(model)
    layers = [] if backbone == "kernels" else [f"Linear({hidden})", _ACTIVATIONS[backbone]]
    if head == "linear":
        layers.append(f"Linear({classes})")
    else:
        variant = ", variant=published-code" if "code" in head else ""
        layers.append(f"OffsetL2({classes}{variant})")
        layers += ["Neg"] if "neg" in head else []
    return Chain.parse(", ".join(layer for layer in layers if layer), inputs=inputs)


def label_of(model: str) -> str:
    """What a model is called in tables and figures.

    >>> label_of("relu-l2-neg-code"), label_of("none-linear"), label_of("knn")
    ('ReLU-L2-Neg-Code', 'None-Linear', 'Nearest neighbours')
    """
    named = {"boosting": "Boosting", "knn": "Nearest neighbours", "dtw": "Time warping"}
    if model in named:
        return named[model]
    return "-".join("ReLU" if word == "relu" else word.capitalize() for word in model.split("-"))
