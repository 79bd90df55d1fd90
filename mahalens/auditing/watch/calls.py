"""Reads the arguments of a linear map or a convolution, however it is called."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mahalens.auditing.watch.functions import CONVOLUTIONS

Read = tuple[str, Tensor, Tensor, Tensor | None, dict[str, tuple[int, ...]]]


def read_linear(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Read | None:
    """What a product with a matrix is a product of, or None if there is no such matrix."""
    given = list(args)
    if name == "einsum":
        return _read_einsum(given)
    if name == "addmm":
        if len(given) < 3 or kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1:
            return None
        bias, x, weight = given[:3]
    else:
        names = ("input", "weight") if name == "linear" else ("input", "other")
        x = given[0] if given else kwargs.get(names[0])
        weight = given[1] if len(given) > 1 else kwargs.get(names[1], kwargs.get("mat2"))
        bias = (given[2] if len(given) > 2 else kwargs.get("bias")) if name == "linear" else None
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor) and weight.ndim == 2):
        return None
    vector = bias if isinstance(bias, Tensor) and bias.ndim == 1 else None
    return "Linear", x, weight, vector, {}


def _read_einsum(args: list[Any]) -> Read | None:
    """``einsum("...d,kd->...k", x, w)`` or with w's letters in the other order."""
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if len(operands) != 2 or not isinstance(args[0], str):
        return None
    (x, weight), (left, _, out) = operands, args[0].replace(" ", "").partition("->")
    of_x, _, of_weight = left.partition(",")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor) and len(of_weight) == 2):
        return None
    inputs = of_x[-1:]
    unit = of_weight.replace(inputs, "", 1)
    if len(unit) != 1 or unit in of_x or out != of_x[:-1] + unit or weight.ndim != 2:
        return None
    geometry: dict[str, tuple[int, ...]] = {"turned": ()} if of_weight[0] == inputs else {}
    return "Linear", x, weight, None, geometry


def read_convolution(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Read | None:
    """What a convolution is of, with its geometry."""
    order = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    if name == "convolution":
        order[6:] = ["transposed", "output_padding", "groups"]
    given = dict(zip(order, args, strict=False)) | kwargs
    x, weight = given.get("input"), given.get("weight")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        return None
    dims = CONVOLUTIONS[name] or weight.ndim - 2
    padding = given.get("padding", 0)
    geometry = {
        "kernel": tuple(weight.shape[2:]),
        "stride": _each(given.get("stride", 1), dims),
        "dilation": _each(given.get("dilation", 1), dims),
        "groups": (int(given.get("groups", 1)),),
    }
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(geometry["dilation"], weight.shape[2:], strict=True)]
        geometry["padding"] = tuple(span // 2 for span in spans)
        geometry["padding_end"] = tuple(span - span // 2 for span in spans)
    else:
        geometry["padding"] = _each(0 if padding == "valid" else padding, dims)
    if given.get("transposed"):
        geometry["transposed"] = (1,)
    return f"Conv{dims}d", x, weight, given.get("bias"), geometry


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(int(v) for v in value) if isinstance(value, list | tuple) else (int(value),)
    return values * dims if len(values) == 1 else values
