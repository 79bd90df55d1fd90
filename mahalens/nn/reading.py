"""The chain that a plain PyTorch module is, if it is one."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from mahalens.errors import InputError
from mahalens.nn.chain import MIXED, PARAMETRISED, Chain, Layer
from mahalens.nn.layers import WITHOUT_PARAMETERS
from mahalens.nn.mixed import AbsReLU, first_units
from mahalens.nn.offset_l2 import OffsetL2
from mahalens.nn.point_slope import PointSlope

_KINDS = {made: kind for kind, made in WITHOUT_PARAMETERS.items()}
_KNOWN = ", ".join((*PARAMETRISED, *WITHOUT_PARAMETERS, MIXED))
_WITH_UNITS = ", ".join(PARAMETRISED)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def read_chain(module: nn.Module) -> Chain:
    """Return the chain that builds modules like ``module``; see :meth:`Chain.from_module`.

    Only what a chain says completely is read. Whatever else could change the outputs or the
    training, such as a hook or a frozen or shared parameter, is refused rather than lost.

    >>> print(read_chain(nn.Sequential(nn.Linear(2, 4), nn.ReLU())))
    Linear(4), ReLU
    """
    if type(module) is not nn.Sequential:
        given = type(module).__name__
        raise InputError(f"{given} is not read as a chain; give a plain nn.Sequential of {_KNOWN}")
    if not len(module):
        raise InputError(f"nn.Sequential without layers; give at least one of {_WITH_UNITS}")
    _refuse_changes(module, "nn.Sequential")
    _refuse_parameters(module, "nn.Sequential", set())
    layers: list[Layer] = []
    inputs: int | None = None
    owners: dict[int, int] = {}  # the layer each parameter was met in
    for place, part in enumerate(module):
        name = f"layer {place}: {type(part).__name__}"
        _refuse_changes(part, name)
        layer, width = _read_layer(part, name)
        if width is not None:
            inputs = inputs or width
            # What stands after a Norm is refused by Chain, whatever its width.
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
            "no layer of nn.Sequential says how many inputs it takes; "
            f"give at least one of {_WITH_UNITS}"
        )
    return Chain(inputs, tuple(layers))


def _read_layer(part: nn.Module, name: str) -> tuple[Layer, int | None]:
    """Return the layer and the width it takes, ``None`` for any. Exact types only."""
    if type(part) is nn.Linear:
        _refuse_parameters(part, name, {"weight"} if part.bias is None else {"weight", "bias"})
        units, width = part.weight.shape
        return Layer("Linear", units, part.bias is not None), width
    if type(part) is OffsetL2:
        _refuse_parameters(part, name, {"mu", "alpha"})
        units, width = part.mu.shape
        return Layer("OffsetL2", units, variant=part.variant), width
    if type(part) is PointSlope:
        _refuse_parameters(part, name, {"weight", "point"})
        units, width = part.weight.shape
        return Layer("PointSlope", units), width
    if type(part) is AbsReLU:
        _refuse_parameters(part, name, set())
        if part.absolute.is_meta:
            raise InputError(f"{name} is on the device meta, without a mask; build it elsewhere")
        units, marked = len(part.absolute), int(part.absolute.sum())
        if part.dim != -1 or part.absolute.tolist() != first_units(marked, units).tolist():
            raise InputError(
                f"{name} cannot be part of a chain, in which the first units are the absolute "
                "ones, along the last axis"
            )
        return Layer(MIXED, absolute=marked), units
    if type(part) not in _KINDS:
        raise InputError(f"{name} cannot be part of a chain; known: {_KNOWN}")
    if type(part) is nn.GELU and part.approximate != "none":
        raise InputError(
            f"{name}(approximate={part.approximate!r}) cannot be part of a chain; use nn.GELU()"
        )
    if type(part) is nn.Softplus and (part.beta, part.threshold) != (1, 20):
        raise InputError(
            f"{name}(beta={part.beta}, threshold={part.threshold}) cannot be part of a chain; use "
            "nn.Softplus()"
        )
    _refuse_parameters(part, name, set())
    if type(part) is nn.LeakyReLU:
        return Layer("LeakyReLU", slope=part.negative_slope), None
    return Layer(_KINDS[type(part)]), None


def _refuse_changes(part: nn.Module, name: str) -> None:
    """Refuse a module that has been made to compute or train otherwise than its class says."""
    if parametrize.is_parametrized(part):
        raise InputError(f"{name} has parametrizations, which a chain cannot hold; remove them")
    parameters = part.parameters(recurse=False)
    hooked = any(getattr(part, hooks) for hooks in _HOOKS) or any(
        p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters
    )
    if hooked:
        raise InputError(f"{name} has hooks, which a chain cannot hold; remove them")
    if "forward" in vars(part):
        raise InputError(f"{name} has been given another forward, which a chain cannot hold")


def _refuse_parameters(part: nn.Module, name: str, wanted: set[str]) -> None:
    """Refuse parameters other than ``wanted``, and frozen ones."""
    held = dict(part.named_parameters(recurse=False, remove_duplicate=False))
    if held.keys() != wanted:
        raise InputError(
            f"{name} has the parameters {', '.join(sorted(held)) or 'none'}; "
            f"a chain wants {', '.join(sorted(wanted)) or 'none'}"
        )
    for key, parameter in held.items():
        if not parameter.requires_grad:
            raise InputError(
                f"{name} has a {key} with requires_grad=False, which a chain cannot hold; "
                "set it to True"
            )
