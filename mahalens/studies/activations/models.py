"""The networks of the study, by name. Needs no torch.

A name is an activation, with ``2`` if it also follows the output layer (outputs held to
intensities), and with ``2-neg`` if these are negated (outputs held to distances). ReLU and Abs are
the two of source 003; their six architectures are the references.
"""

from __future__ import annotations

from mahalens.nn.chain import Chain

ACTIVATIONS = {
    "relu": "ReLU",
    "abs": "Abs",
    "gelu": "GELU",
    "silu": "SiLU",
    "tanh": "Tanh",
    "softplus": "Softplus",
    "leakyrelu": "LeakyReLU",
}
"""How each activation is called in a chain, and by people."""

ONE_SIDED = ("relu", "gelu", "silu", "softplus")
"""Flat towards minus infinity: a unit far below 0 passes no gradient on, and stays there."""
TWO_SIDED = ("abs", "tanh", "leakyrelu")
"""With a slope on both sides of 0."""

FREE, INTENSITIES, DISTANCES = "", "2", "2-neg"
FORMS = {
    FREE: "outputs free",
    INTENSITIES: "held to intensities",
    DISTANCES: "held to distances",
}
"""What a name ends in, and what that does to the outputs."""


def text_of(activation: str, form: str, classes: int | str = "C", hidden: int = 128) -> str:
    """The architecture in words; without a number of classes, for people only.

    >>> text_of("gelu", "2-neg")
    'Linear(128), GELU, Linear(C, bias=False), GELU, Neg'
    """
    kind = ACTIVATIONS[activation]
    layers = [f"Linear({hidden})", kind, f"Linear({classes}, bias=False)"]
    layers += [kind] if form else []
    layers += ["Neg"] if form == DISTANCES else []
    return ", ".join(layers)


MODELS = {f"{name}{form}": text_of(name, form) for name in ACTIVATIONS for form in FORMS}
"""All networks, and how each is built."""


def split(model: str) -> tuple[str, str]:
    """Activation and form of a network.

    >>> split("gelu2-neg"), split("abs")
    (('gelu', '2-neg'), ('abs', ''))
    """
    name = model.removesuffix("-neg").removesuffix("2")
    return name, model.removeprefix(name)


def chain_of(model: str, inputs: int, classes: int, hidden: int = 128) -> Chain:
    """The architecture of a network.

    >>> print(chain_of("softplus2", 784, 10))
    Linear(128), Softplus, Linear(10, bias=False), Softplus
    """
    return Chain.parse(text_of(*split(model), classes, hidden), inputs=inputs)


def label_of(model: str) -> str:
    """What people call a network.

    >>> label_of("leakyrelu2-neg")
    'LeakyReLU2-Neg'
    """
    name, form = split(model)
    return ACTIVATIONS[name] + form.replace("neg", "Neg")
