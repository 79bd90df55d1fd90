"""An architecture as data: a chain of layers that builds one module or a stack of trials."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from mahalens.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

ELEMENTWISE = (*("Abs", "ReLU", "Sigmoid", "Neg", "GELU", "SiLU", "Tanh", "Softplus", "LeakyReLU"),)
"""Layers that act on each unit alone."""

MIXED = "AbsReLU"
"""The layer whose units differ: the first are absolute values, the others ReLUs."""

PARAMETRISED = ("Linear", "OffsetL2", "PointSlope")
"""Layers with units and parameters of their own."""

VARIANTS = ("paper", "published-code")
"""What ``OffsetL2`` can mean; see :class:`mahalens.nn.OffsetL2`."""

_OPTIONS = {"Linear": ", bias=False", "OffsetL2": ", variant=published-code", "PointSlope": ""}
_LINEAR = re.compile(r"Linear\(\s*(\d+)\s*(?:,\s*bias\s*=\s*(True|False)\s*)?\)")
_OFFSET_L2 = re.compile(r"OffsetL2\(\s*(\d+)\s*(?:,\s*variant\s*=\s*([\w-]+)\s*)?\)")
_POINT_SLOPE = re.compile(r"PointSlope\(\s*(\d+)\s*\)")
_ABS_RELU = re.compile(r"AbsReLU\(\s*absolute\s*=\s*(\d+)\s*\)")
_LEAKY_RELU = re.compile(r"LeakyReLU\(\s*([-+.\w]+)\s*\)")
_SEPARATOR = re.compile(r",(?![^()]*\))")


class Layer(msgspec.Struct, frozen=True):
    """One link of a chain: a layer with units (``PARAMETRISED``), an activation, or ``Norm``.

    ``bias`` is an option of ``Linear``, ``variant`` one of ``OffsetL2``, ``absolute`` says how many
    units of an ``AbsReLU`` are absolute values, ``slope`` is that of a ``LeakyReLU`` below 0.
    """

    kind: str
    units: int | None = None
    bias: bool = True
    variant: str = "paper"
    absolute: int | None = None
    slope: float = 0.01

    def __str__(self) -> str:
        if self.units is None:
            marked = "" if self.absolute is None else f"(absolute={self.absolute})"
            leak = "" if self.slope == 0.01 else f"({self.slope!r})"
            return f"{self.kind}{marked}{leak}"
        bias = "" if self.bias else ", bias=False"
        variant = "" if self.variant == "paper" else f", variant={self.variant}"
        return f"{self.kind}({self.units}{bias}{variant})"


class Chain(msgspec.Struct, frozen=True):
    """A named sequence of layers on ``inputs`` inputs.

    Its text can be pasted back, and is what run folders record:

    >>> chain = Chain.parse("Linear(4), ReLU, Norm", inputs=2)
    >>> print(chain)
    Linear(4), ReLU, Norm
    >>> import torch
    >>> chain.build()(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    inputs: int
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        if self.inputs < 1:
            raise InputError(f"a chain with {self.inputs} inputs; give at least 1")
        if not self.layers:
            raise InputError("a chain without layers; give at least one, such as 'Linear(4), Abs'")
        normed = False
        for place, layer in enumerate(self.layers):
            if fault := _fault(layer):
                raise InputError(f"layer {place}: {fault}")
            if normed and layer.kind in (*PARAMETRISED, MIXED):
                raise InputError(f"layer {place}: {layer.kind} after Norm, which leaves no units")
            if normed and layer.kind == "Norm":
                raise InputError(f"layer {place}: a second Norm; the first left no units")
            normed = normed or layer.kind == "Norm"
        for place, (layer, width) in enumerate(zip(self.layers, self.widths, strict=True)):
            if layer.absolute is not None and layer.absolute > width:
                raise InputError(
                    f"layer {place}: {layer} on {width} units; give at most {width} absolute ones"
                )

    @classmethod
    def parse(cls, text: str, *, inputs: int) -> Chain:
        """Read a chain from text such as ``"Linear(128), ReLU, Linear(10, bias=False)"``."""
        if not text.strip():
            raise InputError("the text of a chain is empty; write one such as 'Linear(4), Abs'")
        parts = (part.strip() for part in _SEPARATOR.split(text))
        return cls(inputs, tuple(_read(part) for part in parts))

    @classmethod
    def from_module(cls, module: nn.Module) -> Chain:
        """Read the chain that a plain ``nn.Sequential`` is; :meth:`build` goes the other way.

        It may hold ``nn.Linear``, ``OffsetL2``, ``PointSlope``, the activations and ``Norm``, of
        exactly these classes, without hooks, parametrizations, and frozen or shared parameters.

        >>> from torch import nn
        >>> chain = Chain.from_module(nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 3)))
        >>> print(chain)
        Linear(4), GELU, Linear(3)
        """
        from mahalens.nn.reading import read_chain

        return read_chain(module)

    def __str__(self) -> str:
        return ", ".join(str(layer) for layer in self.layers)

    @property
    def scalar(self) -> bool:
        """Whether the chain ends in one number per sample (it has a ``Norm``)."""
        return any(layer.kind == "Norm" for layer in self.layers)

    @property
    def outputs(self) -> int | None:
        """How many outputs there are per sample, or ``None`` for one number (with a ``Norm``)."""
        if self.scalar:
            return None
        return next((layer.units for layer in reversed(self.layers) if layer.units), self.inputs)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers per sample enter each layer: 1 after a ``Norm``.

        >>> Chain.parse("Linear(4), ReLU, Norm, Neg", inputs=2).widths
        (2, 4, 4, 1)
        """
        widths = [self.inputs]
        for layer in self.layers[:-1]:
            widths.append(1 if layer.kind == "Norm" else layer.units or widths[-1])
        return tuple(widths)

    def build(
        self,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        init: str | None = None,
        data: Any = None,
    ) -> nn.Sequential:
        """Make the plain module, with PyTorch's default starting weights.

        With ``init``, a name such as ``"cluster_pca"``, it is started on ``data`` by
        :func:`mahalens.init.initialise`.

        Shapes: ``[..., D]`` to ``[..., K]`` of the last layer with units, or to ``[...]`` with
        ``Norm``.
        """
        from torch import nn

        from mahalens.nn.layers import WITHOUT_PARAMETERS
        from mahalens.nn.mixed import AbsReLU, first_units
        from mahalens.nn.offset_l2 import OffsetL2
        from mahalens.nn.point_slope import PointSlope
        from mahalens.nn.sizes import require_parameters

        for layer, width in zip(self.layers, self.widths, strict=True):
            parts = 1 if layer.kind == "Linear" else 2
            require_parameters(str(layer), parts * width * (layer.units or 0), device, dtype)
        modules: list[nn.Module] = []
        for layer, width in zip(self.layers, self.widths, strict=True):
            module: nn.Module
            if layer.absolute is not None:
                module = AbsReLU(first_units(layer.absolute, width), device=device)
            elif layer.kind == "LeakyReLU":
                module = nn.LeakyReLU(layer.slope)
            elif layer.units is None:
                module = WITHOUT_PARAMETERS[layer.kind]()
            elif layer.kind == "Linear":
                module = nn.Linear(width, layer.units, layer.bias, device=device, dtype=dtype)
            elif layer.kind == "PointSlope":
                module = PointSlope(width, layer.units, device=device, dtype=dtype)
            else:
                variant = layer.variant
                module = OffsetL2(width, layer.units, variant=variant, device=device, dtype=dtype)
            modules.append(module)
        model = nn.Sequential(*modules)
        if init is not None:
            from mahalens.init.model import initialise

            initialise(model, data, init)
        elif data is not None:
            raise InputError("data is given, but no init that would use it; name one")
        return model


def _read(part: str) -> Layer:
    """Read one layer; whether there is such a layer is for :class:`Chain` to say."""
    if match := _LINEAR.fullmatch(part):
        return Layer("Linear", int(match[1]), match[2] != "False")
    if match := _OFFSET_L2.fullmatch(part):
        return Layer("OffsetL2", int(match[1]), variant=match[2] or "paper")
    if match := _POINT_SLOPE.fullmatch(part):
        return Layer("PointSlope", int(match[1]))
    if match := _ABS_RELU.fullmatch(part):
        return Layer(MIXED, absolute=int(match[1]))
    if part.startswith(MIXED):
        raise InputError(f"cannot read {part!r}; write {MIXED}(absolute=4) for 4 Abs units")
    if part.startswith("LeakyReLU("):
        return Layer("LeakyReLU", slope=_slope(part))
    for kind, option in _OPTIONS.items():
        if part.startswith(kind):
            other = f" or {kind}(4{option})" if option else ""
            raise InputError(f"cannot read {part!r}; write {kind}(4){other}")
    return Layer(part)


def _slope(part: str) -> float:
    """Read the slope of a ``LeakyReLU``."""
    match = _LEAKY_RELU.fullmatch(part)
    try:
        return float(match[1] if match else "")
    except ValueError:
        raise InputError(f"cannot read {part!r}; write LeakyReLU or LeakyReLU(0.2)") from None


def _fault(layer: Layer) -> str | None:
    """What is wrong with a layer wherever it stands."""
    kind, variant = layer.kind, layer.variant
    if kind not in (*PARAMETRISED, *ELEMENTWISE, MIXED, "Norm"):
        named = (*(f"{name}(units)" for name in PARAMETRISED), *ELEMENTWISE)
        known = ", ".join((*named, f"{MIXED}(absolute=units)", "Norm"))
        return f"unknown layer {kind!r}; known: {known}"
    if kind == MIXED and (layer.absolute is None or layer.absolute < 0):
        return f"{kind} needs absolute, the number of its Abs units, 0 or more"
    if kind != MIXED and layer.absolute is not None:
        return f"{kind} takes no absolute units; only {MIXED} does"
    if kind == "LeakyReLU" and not math.isfinite(layer.slope):
        return f"LeakyReLU with slope {layer.slope}; give a finite number"
    if kind != "LeakyReLU" and layer.slope != Layer(kind).slope:
        return f"{kind} takes no slope, but {layer.slope} was given; only LeakyReLU has one"
    if kind not in PARAMETRISED:
        plain = layer == Layer(kind, absolute=layer.absolute, slope=layer.slope)
        return None if plain else f"{kind} takes no units, bias or variant of its own"
    if layer.units is None or layer.units < 1:
        return f"{kind} needs at least 1 unit"
    if kind != "OffsetL2" and variant != "paper":
        return f"{kind} takes no variant, but {variant!r} was given; only OffsetL2 has variants"
    if kind != "Linear" and not layer.bias:
        return f"{kind} takes no bias option; leave it at True"
    if variant not in VARIANTS:
        return f"unknown variant {variant!r} of OffsetL2; known: {', '.join(VARIANTS)}"
    return None
