"""What the networks of source 003 are called, and how they are drawn. Needs no torch.

Colour says what a network is made of: warm for ReLU, cool for Abs, grey for none; its shade and
line whether the outputs are free, held to intensities or held to distances. The marker says which
family it belongs to: a twin with an output bias has the colour of the network without.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mahalens.studies.representation.models import FAMILIES, MODELS

STUDIES = ("representation", "perturbation")
"""The studies of these networks: with parts, and more metrics than a table can hold."""

_FIRST = {"relu": "ReLU", "relu2": "ReLU2", "abs": "Abs", "abs2": "Abs2", "linear": "Linear"}
_ADDED = {"bias": ", bias", "code": ", published code", "point": ", point-slope"}
FAMILY_TITLES = {
    "primary": "Without output bias",
    "biased": "With output bias",
    "offset-l2": "OffsetL2",
    "published-code": "OffsetL2 by the published code",
    "point-slope": "Point-slope outputs",
}
_MARKERS = {"primary": "o", "biased": "s", "offset-l2": "^", "published-code": "v"}
# Okabe and Ito's palette, told apart under every common form of colour blindness.
_COLOURS = {
    "relu": "#E69F00",
    "relu2": "#D55E00",
    "relu2-neg": "#CC79A7",
    "abs": "#56B4E9",
    "abs2": "#0072B2",
    "abs2-neg": "#009E73",
    "relu-l2": "#D55E00",
    "relu-l2-neg": "#CC79A7",
    "abs-l2": "#0072B2",
    "abs-l2-neg": "#009E73",
    "linear-l2": "#333333",
    "linear-l2-neg": "#8a8a8a",
}


def _bare(model: str) -> str:
    """The network without what is added to the output layer alone.

    >>> _bare("relu2-neg-bias"), _bare("abs-l2-code")
    ('relu2-neg', 'abs-l2')
    """
    return "-".join(part for part in model.split("-") if part not in _ADDED)


def network_label(model: str) -> str:
    """The name of a network as source 003 writes it, and what is different about it.

    >>> network_label("relu2-neg-bias"), network_label("abs-l2-neg-code"), network_label("mine")
    ('ReLU2-Neg, bias', 'Abs-L2-Neg, published code', 'mine')
    """
    if model not in MODELS:
        return model
    first, *added = model.split("-")
    name = _FIRST[first] + "".join(f"-{part.capitalize()}" for part in added if part not in _ADDED)
    return name + "".join(_ADDED.get(part, "") for part in added)


def named_in_full(name: str) -> tuple[str, str]:
    """Model and pixels of a name as claims and comparisons write it.

    >>> named_in_full("relu2 (raw)"), named_in_full("relu2")
    (('relu2', 'raw'), ('relu2', ''))
    """
    model, bracket, rest = name.partition(" (")
    return (model, rest.removesuffix(")")) if bracket else (name, "")


def family_of(model: str) -> str:
    """The family that a network belongs to; empty for one nobody knows."""
    return next((name for name, models in FAMILIES.items() if model in models), "")


def families_of(models: Iterable[str]) -> dict[str, list[str]]:
    """Networks by family, both in the order of the study; unknown ones last, under no name.

    >>> families_of(["abs-bias", "new", "relu-bias", "abs"])
    {'primary': ['abs'], 'biased': ['relu-bias', 'abs-bias'], '': ['new']}
    """
    given = list(dict.fromkeys(models))
    found = {
        family: [model for model in members if model in given]
        for family, members in FAMILIES.items()
    }
    found[""] = [model for model in given if model not in MODELS]
    return {family: own for family, own in found.items() if own}


def network_colour(model: str) -> str | None:
    """The colour of a network; none for one nobody knows."""
    return _COLOURS.get(_bare(model)) if model in MODELS else None


def network_style(model: str) -> dict[str, Any]:
    """Marker and line of a network: dashed if held to intensities, dotted if to distances.

    >>> network_style("relu2-bias")
    {'marker': 's', 'ls': (0, (5, 2))}
    """
    bare = _bare(model)
    dotted, dashed, solid = (0, (1.2, 1.3)), (0, (5, 2)), (0, ())
    held = bare.split("-")[0].endswith("2")
    line = dotted if bare.endswith("neg") else dashed if held else solid
    return {"marker": _MARKERS.get(family_of(model), "P"), "ls": line}


def has_relu_outputs(model: str) -> bool:
    """Whether an output of the network can die: the last activation function is ReLU.

    >>> has_relu_outputs("relu2-neg"), has_relu_outputs("relu"), has_relu_outputs("abs2")
    (True, False, False)
    """
    return model in MODELS and model.startswith("relu2")
