"""What a trained hidden layer is like: which units are off, do not fold, move the outputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mahalens.nn import AbsReLU

ACTIVE = 1e-6
"""An activation above this counts as one."""


@torch.no_grad()
def read_layer(module: nn.Sequential, x: Tensor) -> dict[str, float]:
    """Numbers of one trained network ``Linear, activation, Linear`` on samples ``[N, D]``.

    - ``dead``: the share of all units that no sample activates, and ``dead_relu`` of the ReLU
      units;
    - ``flat_abs``: the share of the Abs units with all samples on one side of their hyperplane,
      where they do not fold and are linear;
    - ``abs_weight``: the share of Abs units in what moves the outputs. What unit k moves is
      ``sₖ Σ_c |V_ck - V̄_k|`` with s the spread of its activation and V̄ its mean weight over the
      classes, which softmax does not see;
    - ``learned_abs``: how much of an Abs a unit has learned to be on average, minus its slope for
      negative numbers: 0 is a ReLU, 1 an Abs, -1 a linear unit.

    All in percent but the last; NaN where there are no such units.

    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), AbsReLU([True, False]), nn.Linear(2, 2))
    >>> _ = nn.init.ones_(net[0].weight)
    >>> found = read_layer(net, torch.tensor([[-1.0], [-2.0]]))
    >>> found["dead"], found["dead_relu"], found["flat_abs"], found["abs_weight"]
    (50.0, 100.0, 100.0, 100.0)
    """
    first, activation, last = module
    if not (isinstance(first, nn.Linear) and isinstance(last, nn.Linear)):
        raise TypeError("a network of the study is Linear, activation, Linear")
    z = first(x)
    active = activation(z)
    found = dict.fromkeys(("dead_relu", "flat_abs", "abs_weight", "learned_abs"), math.nan)
    dead = active.abs().amax(0) <= ACTIVE
    found["dead"] = _percent(dead)
    if isinstance(activation, nn.PReLU):
        found["learned_abs"] = -float(activation.weight.mean())
        return found
    if not isinstance(activation, AbsReLU):
        raise TypeError(f"{type(activation).__name__} is no activation of the study")
    absolute = activation.absolute
    found["dead_relu"] = _percent(dead[~absolute])
    flat = ((z >= 0).all(0) | (z <= 0).all(0))[absolute]
    found["flat_abs"] = _percent(flat)
    if 0 < int(absolute.sum()) < len(absolute):
        weight = last.weight - last.weight.mean(0)
        moved = active.std(0, correction=0) * weight.abs().sum(0)
        found["abs_weight"] = 100 * float(moved[absolute].sum() / moved.sum())
    return found


def _percent(marked: Tensor) -> float:
    """The share of the marked units, NaN of none."""
    return 100 * float(marked.double().mean()) if len(marked) else math.nan
