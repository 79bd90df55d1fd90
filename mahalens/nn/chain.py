"""Architectures as data: a chain of layers that is written, built and read back.

:data:`LAYERS` has one entry for each layer that a chain may have; a new layer is one more entry.
Nothing here loads torch before a module is built or read.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from mahalens._show import cut, table_html
from mahalens.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mahalens.geometry import Gaussian

VARIANTS = ("paper", "published-code")
"""The two meanings of ``OffsetL2``; see :class:`mahalens.nn.OffsetL2`."""

_SEPARATOR = re.compile(r",(?![^()]*\))")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Layer(msgspec.Struct, frozen=True):
    """One link of a chain: a layer with units, an activation, or ``Norm``.

    ``units`` is an option of ``Linear``, ``OffsetL2`` and ``PointSlope``, ``bias`` of ``Linear``,
    ``variant`` of ``OffsetL2``; ``absolute`` is the number of units of an ``AbsReLU`` that are
    absolute values, ``slope`` that of a ``LeakyReLU`` below 0.

    >>> print(Layer("Linear", 4, bias=False))
    Linear(4, bias=False)
    """

    kind: str
    units: int | None = None
    bias: bool = True
    variant: str = "paper"
    absolute: int | None = None
    slope: float = 0.01

    def __str__(self) -> str:
        options = [
            repr(value) if option in ("units", "slope") else f"{option}={value}"
            for option, value in self.changed_options()
        ]
        return f"{self.kind}({', '.join(options)})" if options else self.kind

    def changed_options(self) -> Iterator[tuple[str, Any]]:
        """Yield the options that are not at their default, with their values."""
        for option, default in zip(_OPTIONS, self.__struct_defaults__, strict=True):
            if (value := getattr(self, option)) != default:
                yield option, value


class _Option(msgspec.Struct, frozen=True):
    """Reading of an option from text, and the values that it may have."""

    parse: Callable[[str], Any]
    is_valid: Callable[[Any], bool]
    wanted: str


_OPTIONS = {
    "units": _Option(int, lambda n: n is not None and n >= 1, "at least 1"),
    "bias": _Option("True".__eq__, lambda bias: True, "True or False"),
    "variant": _Option(str, VARIANTS.__contains__, " or ".join(VARIANTS)),
    "absolute": _Option(int, lambda n: n is not None and n >= 0, "the number of Abs units"),
    "slope": _Option(float, math.isfinite, "a finite number"),
}


@dataclass(frozen=True)
class LayerKind:
    """Description of one kind of layer: how it is written, built and read.

    It is called like its class, which is in :mod:`mahalens.nn` or :mod:`torch.nn`.

    Args:
        pattern: what follows its name in text; the named groups are its options.
        example: how to write it, for errors.
        parameters: the names of its ``[K, D]`` parameters.
        settings: attributes that a chain does not record, each with the only value it may have.
        build: ``build(class, layer, width, device=..., dtype=...)`` makes the module.
        read: ``read(module, name)`` returns the options of a module, and the width of its inputs,
            ``None`` for any.
    """

    pattern: str = ""
    example: str = ""
    parameters: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[..., nn.Module] = lambda make, layer, width, **place: make()
    read: Callable[[Any, str], tuple[dict[str, Any], int | None]] = lambda module, name: ({}, None)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of :class:`Layer` that it has."""
        return tuple(re.compile(self.pattern).groupindex)


def _build_abs_relu(make: Any, layer: Layer, width: int, **place: Any) -> nn.Module:
    from mahalens.nn.layers import first_units

    module: nn.Module = make(first_units(layer.absolute or 0, width), device=place["device"])
    return module


def _read_abs_relu(module: Any, name: str) -> tuple[dict[str, Any], int]:
    from mahalens.nn.layers import first_units

    mask = module.absolute
    if mask.is_meta:
        raise InputError(f"{name} is on the device meta, without a mask; build it elsewhere")
    count = int(mask.sum())
    if mask.tolist() != first_units(count, len(mask)).tolist():
        raise InputError(
            f"{name} cannot be part of a chain, in which the first units are the absolute ones"
        )
    return {"absolute": count}, len(mask)


LAYERS: dict[str, LayerKind] = {
    "Linear": LayerKind(
        r"\(\s*(?P<units>\d+)\s*(?:,\s*bias\s*=\s*(?P<bias>True|False)\s*)?\)",
        "Linear(4) or Linear(4, bias=False)",
        ("weight",),
        build=lambda make, layer, width, **place: make(width, layer.units, layer.bias, **place),
        read=lambda module, name: (
            {"units": module.weight.shape[0], "bias": module.bias is not None},
            module.weight.shape[1],
        ),
    ),
    "OffsetL2": LayerKind(
        r"\(\s*(?P<units>\d+)\s*(?:,\s*variant\s*=\s*(?P<variant>[\w-]+)\s*)?\)",
        "OffsetL2(4) or OffsetL2(4, variant=published-code)",
        ("mu", "alpha"),
        build=lambda make, layer, width, **place: make(
            width, layer.units, variant=layer.variant, **place
        ),
        read=lambda module, name: (
            {"units": module.mu.shape[0], "variant": module.variant},
            module.mu.shape[1],
        ),
    ),
    "PointSlope": LayerKind(
        r"\(\s*(?P<units>\d+)\s*\)",
        "PointSlope(4)",
        ("weight", "point"),
        build=lambda make, layer, width, **place: make(width, layer.units, **place),
        read=lambda module, name: ({"units": module.weight.shape[0]}, module.weight.shape[1]),
    ),
    "Abs": LayerKind(),
    "ReLU": LayerKind(),
    "Sigmoid": LayerKind(),
    "Neg": LayerKind(),
    "GELU": LayerKind(settings={"approximate": "none"}),
    "SiLU": LayerKind(),
    "Tanh": LayerKind(),
    "Softplus": LayerKind(settings={"beta": 1, "threshold": 20}),
    "LeakyReLU": LayerKind(
        r"(?:\(\s*(?P<slope>[-+.\w]+)\s*\))?",
        "LeakyReLU or LeakyReLU(0.2)",
        build=lambda make, layer, width, **place: make(layer.slope),
        read=lambda module, name: ({"slope": module.negative_slope}, None),
    ),
    "AbsReLU": LayerKind(
        r"\(\s*absolute\s*=\s*(?P<absolute>\d+)\s*\)",
        "AbsReLU(absolute=4) for 4 Abs units",
        settings={"dim": -1},
        build=_build_abs_relu,
        read=_read_abs_relu,
    ),
    "Norm": LayerKind(),
}
"""The layers that a chain may have, by name."""
_ALIASES = {"Swish": "SiLU"}

PARAMETRISED = tuple(kind for kind, entry in LAYERS.items() if entry.parameters)
"""Layers with units and parameters of their own."""

MIXED = "AbsReLU"
"""The layer whose units differ: the first are absolute values, the others ReLUs."""

ELEMENTWISE = tuple(kind for kind in LAYERS if kind not in (*PARAMETRISED, MIXED, "Norm"))
"""Layers that act on each unit alone."""


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
            _check_layer(place, layer)
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
        return cls(inputs, tuple(_parse_layer(part.strip()) for part in _SEPARATOR.split(text)))

    @classmethod
    def from_module(cls, module: nn.Module) -> Chain:
        """Read the chain that a plain ``nn.Sequential`` is; :meth:`build` goes the other way.

        It may hold the modules of :data:`LAYERS`, of exactly these classes. Anything that a chain
        does not record and that could change outputs or training is refused rather than lost:
        hooks, parametrizations, frozen and shared parameters.

        >>> from torch import nn
        >>> chain = Chain.from_module(nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 3)))
        >>> print(chain)
        Linear(4), GELU, Linear(3)
        """
        return _read_chain(module)

    def __repr__(self) -> str:
        return f"Chain.parse({cut(repr(str(self)), 160)}, inputs={self.inputs})"

    def _repr_html_(self) -> str:
        """Return a row for each layer, with the numbers that enter it."""
        layers = zip(map(str, self.layers), self.widths, strict=True)
        rows = [(place, *layer) for place, layer in enumerate(layers)]
        return table_html(repr(self), ("place", "layer", "inputs"), rows)

    def __str__(self) -> str:
        return ", ".join(str(layer) for layer in self.layers)

    @property
    def scalar(self) -> bool:
        """Whether the chain ends in one number per sample (it has a ``Norm``)."""
        return any(layer.kind == "Norm" for layer in self.layers)

    @property
    def outputs(self) -> int | None:
        """Number of outputs per sample, or ``None`` for a single number (with a ``Norm``)."""
        if self.scalar:
            return None
        return next((layer.units for layer in reversed(self.layers) if layer.units), self.inputs)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers per sample that enter each layer: 1 after a ``Norm``.

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

        from mahalens.nn.layers import require_parameters

        links = list(zip(self.layers, self.widths, strict=True))
        for layer, width in links:
            count = len(LAYERS[layer.kind].parameters) * width * (layer.units or 0)
            require_parameters(str(layer), count, device, dtype)
        modules = []
        for layer, width in links:
            make = LAYERS[layer.kind].build
            modules.append(make(_class_of(layer.kind), layer, width, device=device, dtype=dtype))
        model = nn.Sequential(*modules)
        if init is not None:
            from mahalens.init.model import initialise

            initialise(model, data, init)
        elif data is not None:
            raise InputError("data is given, but no init that would use it; name one")
        return model


def md_abs(dim: int) -> Chain:
    """Return ``MD_Abs`` of the Gaussian study: ``√Σ |w·x + b|²`` over D units.

    >>> print(md_abs(3))
    Linear(3), Abs, Norm
    """
    return Chain.parse(f"Linear({dim}), Abs, Norm", inputs=dim)


def md_relu(dim: int) -> Chain:
    """Return ``MD_ReLU`` of the Gaussian study: 2D units, whose pairs can stand in for ``Abs``.

    ``√Σ max(w·x + b, 0)²``; two units with opposite weights make one absolute value.

    >>> print(md_relu(3))
    Linear(6), ReLU, Norm
    """
    return Chain.parse(f"Linear({2 * dim}), ReLU, Norm", inputs=dim)


def md_sigmoid(dim: int) -> Chain:
    """Return ``MD_Sigmoid`` of the Gaussian study: the baseline without a distance reading.

    ``√Σ sigmoid(w·x + b)²`` over 2D units.

    >>> print(md_sigmoid(3))
    Linear(6), Sigmoid, Norm
    """
    return Chain.parse(f"Linear({2 * dim}), Sigmoid, Norm", inputs=dim)


def mahalanobis_model(gaussian: Gaussian) -> nn.Sequential:
    """Build ``MD_Abs`` with its weights set to the truth: ``W = Λ^(-1/2) Vᵀ``, ``b = -W μ``.

    >>> import torch
    >>> from mahalens.geometry import Gaussian
    >>> gaussian = Gaussian.from_covariance(torch.ones(2), 4 * torch.eye(2))
    >>> mahalanobis_model(gaussian)(torch.tensor([[3.0, 1.0]])).tolist()
    [1.0]
    """
    model = md_abs(gaussian.dim).build(dtype=gaussian.dtype, device=gaussian.device)
    whitening = gaussian.whitening("pca")
    model.load_state_dict({"0.weight": whitening, "0.bias": -(whitening @ gaussian.mean)})
    return model


def _parse_layer(text: str) -> Layer:
    """Read one layer; :class:`Chain` refuses kinds that do not exist."""
    written = re.split(r"\W", text, maxsplit=1)[0]
    kind = _ALIASES.get(written, written)
    if kind not in LAYERS:
        return Layer(text)
    entry = LAYERS[kind]
    if match := re.fullmatch(entry.pattern, text.removeprefix(written)):
        options = {name: value for name, value in match.groupdict().items() if value}
        with contextlib.suppress(ValueError):
            return Layer(kind, **{name: _OPTIONS[name].parse(options[name]) for name in options})
    raise InputError(f"cannot read {text!r}; write {entry.example or kind}")


def _check_layer(place: int, layer: Layer) -> None:
    """Raise where a layer is wrong wherever it stands."""
    kind = layer.kind
    if kind not in LAYERS:
        raise InputError(f"layer {place}: unknown layer {kind!r}; known: {', '.join(LAYERS)}")
    for option, value in layer.changed_options():
        if option not in LAYERS[kind].options:
            others = ", ".join(name for name, entry in LAYERS.items() if option in entry.options)
            raise InputError(
                f"layer {place}: {kind} takes no {option}, but {value!r} was given; only {others} "
                "does"
            )
    for option in LAYERS[kind].options:
        value, rule = getattr(layer, option), _OPTIONS[option]
        if not rule.is_valid(value):
            raise InputError(f"layer {place}: {kind} with {option} {value!r}; give {rule.wanted}")


def _class_of(kind: str) -> type[nn.Module]:
    """Return the class of a kind, which has its name."""
    import torch

    import mahalens.nn

    module: type[nn.Module] = getattr(mahalens.nn, kind, None) or getattr(torch.nn, kind)
    return module


def _read_chain(module: nn.Module) -> Chain:
    """Return the chain that builds modules like ``module``; see :meth:`Chain.from_module`."""
    from torch import nn

    with_units = ", ".join(PARAMETRISED)
    if type(module) is not nn.Sequential:
        name, known = type(module).__name__, ", ".join(LAYERS)
        raise InputError(f"{name} is not read as a chain; give a plain nn.Sequential of {known}")
    if not len(module):
        raise InputError(f"nn.Sequential without layers; give at least one of {with_units}")
    _refuse_changes(module, "nn.Sequential")
    _refuse_parameters(module, "nn.Sequential", set())
    layers: list[Layer] = []
    inputs: int | None = None
    owners: dict[int, int] = {}  # the layer in which each parameter was met
    for place, part in enumerate(module):
        name = f"layer {place}: {type(part).__name__}"
        _refuse_changes(part, name)
        layer, width = _read_layer(part, name)
        if width is not None:
            inputs = inputs or width
            # Layers after a Norm are refused by Chain, whatever their width.
            before = Chain(inputs, tuple(layers)).outputs if layers else inputs
            if before is not None and width != before:
                raise InputError(
                    f"{name} takes {width} inputs, but is given {before}; make them equal"
                )
        for key, parameter in part.named_parameters(remove_duplicate=False):
            if id(parameter) in owners:
                raise InputError(
                    f"{name} shares its {key} with layer {owners[id(parameter)]}; "
                    "give each layer parameters of its own"
                )
            owners[id(parameter)] = place
        layers.append(layer)
    if inputs is None:
        raise InputError(
            f"no layer of nn.Sequential says how many inputs it takes; give at least one of "
            f"{with_units}"
        )
    return Chain(inputs, tuple(layers))


def _read_layer(part: nn.Module, name: str) -> tuple[Layer, int | None]:
    """Return the layer and the width of its inputs, ``None`` for any. Exact classes only."""
    kind = type(part).__name__
    if kind not in LAYERS or type(part) is not _class_of(kind):
        raise InputError(f"{name} cannot be part of a chain; known: {', '.join(LAYERS)}")
    entry = LAYERS[kind]
    if any(getattr(part, key) != value for key, value in entry.settings.items()):
        settings = ", ".join(f"{key}={getattr(part, key)!r}" for key in entry.settings)
        wanted = ", ".join(f"{key}={value!r}" for key, value in entry.settings.items())
        raise InputError(f"{name}({settings}) cannot be part of a chain; make it with {wanted}")
    biased = "bias" in entry.options and part.bias is not None
    _refuse_parameters(part, name, {*entry.parameters} | ({"bias"} if biased else set()))
    options, width = entry.read(part, name)
    return Layer(kind, **options), width


def _refuse_changes(part: nn.Module, name: str) -> None:
    """Raise where a module was made to compute or train differently from its class."""
    from torch.nn.utils import parametrize

    if parametrize.is_parametrized(part):
        raise InputError(f"{name} has parametrizations, which a chain cannot hold; remove them")
    hooked = any(getattr(part, hooks) for hooks in _HOOKS) or any(
        p._backward_hooks or p._post_accumulate_grad_hooks for p in part.parameters(recurse=False)
    )
    if hooked:
        raise InputError(f"{name} has hooks, which a chain cannot hold; remove them")
    if "forward" in vars(part):
        raise InputError(f"{name} has been given another forward, which a chain cannot hold")


def _refuse_parameters(part: nn.Module, name: str, wanted: set[str]) -> None:
    """Raise where parameters are other than ``wanted``, or frozen."""
    parameters = dict(part.named_parameters(recurse=False, remove_duplicate=False))
    if parameters.keys() != wanted:
        raise InputError(
            f"{name} has the parameters {', '.join(sorted(parameters)) or 'none'}; "
            f"a chain wants {', '.join(sorted(wanted)) or 'none'}"
        )
    for key, parameter in parameters.items():
        if not parameter.requires_grad:
            raise InputError(
                f"{name} has a {key} with requires_grad=False, which a chain cannot hold; "
                "set it to True"
            )
