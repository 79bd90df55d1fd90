"""The networks of source 003 as chains, by name. Needs no torch.

A name says how a network is built: the activation of the hidden layer (``relu``, ``abs``,
``linear`` for none), ``2`` if the same activation follows the output layer, ``l2`` if the output
layer is ``OffsetL2``, then what is added: ``neg`` for a negation at the end, ``bias`` for a bias of
the output layer, ``code`` for the published code's OffsetL2, ``point`` for an output layer in
point-slope form.
"""

from __future__ import annotations

from mahalens.errors import InputError
from mahalens.nn.chain import Chain

PRIMARY = ("relu", "abs", "relu2", "abs2", "relu2-neg", "abs2-neg")
"""The six architectures of Table 1, without an output bias."""

BIASED = tuple(f"{name}-bias" for name in PRIMARY)
"""Their twins with one (Table 3)."""

OFFSET_L2 = ("relu-l2", "relu-l2-neg", "abs-l2", "abs-l2-neg", "linear-l2", "linear-l2-neg")
"""Distances to prototypes by the paper's formula (Table 5); Linear-L2 is ours."""

PUBLISHED_CODE = tuple(f"{name}-code" for name in OFFSET_L2)
"""The same by the formula of the published code, where alpha enters unsquared."""

POINT_SLOPE = tuple(f"{name}-point" for name in PRIMARY)
"""The six with an output layer in point-slope form."""

FAMILIES = {
    "primary": PRIMARY,
    "biased": BIASED,
    "offset-l2": OFFSET_L2,
    "published-code": PUBLISHED_CODE,
    "point-slope": POINT_SLOPE,
}

MODELS = tuple(name for family in FAMILIES.values() for name in family)

_ACTIVATIONS = {"relu": "ReLU", "abs": "Abs", "linear": ""}


def chain_of(model: str, inputs: int, classes: int, hidden: int = 128) -> Chain:
    """The architecture of a model.

    >>> print(chain_of("relu2-neg-bias", 784, 10))
    Linear(128), ReLU, Linear(10), ReLU, Neg
    >>> print(chain_of("abs-l2-neg-code", 784, 10))
    Linear(128), Abs, OffsetL2(10, variant=published-code), Neg
    """
    return Chain.parse(text_of(model, classes, hidden), inputs=inputs)


def text_of(model: str, classes: int | str = "C", hidden: int = 128) -> str:
    """The architecture of a model in words; without a number of classes, for people only.

    >>> text_of("abs2")
    'Linear(128), Abs, Linear(C, bias=False), Abs'
    """
    if model not in MODELS:
        raise InputError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    first, *added = model.split("-")
    activation = _ACTIVATIONS[first.removesuffix("2")]
    if "l2" in added:
        output = f"OffsetL2({classes}{', variant=published-code' if 'code' in added else ''})"
    elif "point" in added:
        output = f"PointSlope({classes})"
    else:
        output = f"Linear({classes})" if "bias" in added else f"Linear({classes}, bias=False)"
    layers = [f"Linear({hidden})", activation, output]
    layers += [activation] if first.endswith("2") else []
    layers += ["Neg"] if "neg" in added else []
    return ", ".join(layer for layer in layers if layer)


def choose(names: tuple[str, ...], bias: str | None) -> tuple[str, ...]:
    """The models that the options ask for, in the order of :data:`MODELS`.

    ``names`` are models, families, or ``all``; ``bias`` says which form the six primary models
    among them take: ``no``, ``yes`` or ``both``. Left open, it is ``both`` for ``all``, and
    otherwise the models are those named.

    >>> choose(("relu", "abs-l2"), "both")
    ('relu', 'relu-bias', 'abs-l2')
    """
    if not names:
        raise InputError("--models is empty: give some of all, " + ", ".join(MODELS))
    if bias not in (None, "no", "yes", "both"):
        raise InputError(f"--bias {bias}: give no, yes or both")
    chosen: set[str] = set()
    for name in names:
        if name == "all":
            chosen |= set(MODELS)
        elif name in FAMILIES:
            chosen |= set(FAMILIES[name])
        elif name in MODELS:
            chosen.add(name)
        else:
            known = ", ".join(("all", *FAMILIES, *MODELS))
            raise InputError(f"--models {name}: unknown model; known: {known}")
    if bias is not None:
        twins = {name: f"{name}-bias" for name in PRIMARY}
        asked = {p for p, b in twins.items() if p in chosen or b in chosen}
        chosen -= {*PRIMARY, *BIASED}
        chosen |= asked if bias in ("no", "both") else set()
        chosen |= {twins[p] for p in asked} if bias in ("yes", "both") else set()
    together = [twin for name in PRIMARY for twin in (name, f"{name}-bias")]
    order = (*together, *(name for name in MODELS if name not in together))
    return tuple(name for name in order if name in chosen)
