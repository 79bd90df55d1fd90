"""The ways to start a layer, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.init import clusters, placed
from mahalens.init.rows import Layer, Rows, width_of
from mahalens.init.targets import Start, check_layer, has_bias, put, units_of
from mahalens.nn.offset_l2 import OffsetL2


@dataclass(frozen=True)
class Method:
    """One way to start a layer."""

    name: str
    hyperplanes: Callable[..., Start]
    """From units, rows and a generator, with options."""
    prototypes: Callable[..., Start] | None = None
    """The same for a layer of prototypes; None if there is no such thing."""
    options: tuple[str, ...] = ()
    prototype_options: tuple[str, ...] = ()
    places: bool = True
    """Whether hyperplanes are placed in the data, for which a layer needs a bias."""
    data: bool = True
    """Whether it looks at data at all."""
    labels: str = "unused"
    """``unused``, ``optional`` or ``needed``."""
    alive: bool = False
    """Whether every unit has rows on both sides of its hyperplane, so that no ReLU is dead."""


METHODS = {
    method.name: method
    for method in (
        Method("kaiming", placed.kaiming, placed.drawn_prototypes, places=False, data=False),
        Method("sample_point_bias", placed.sample_point_bias, placed.sample_prototypes),
        Method("whiten", placed.whiten, options=("kind", "rank", "mirror"), alive=True),
        Method(
            "cluster_pca",
            clusters.cluster_pca,
            clusters.cluster_prototypes,
            options=("clusters", "axes", "mirror"),
            prototype_options=("clusters",),
            labels="optional",
            alive=True,
        ),
        Method("class_mean", placed.class_mean, clusters.class_prototypes, labels="needed"),
        Method("lsuv", placed.lsuv, places=False),
    )
}
"""The methods of :func:`mahalens.init.initialise`."""


def method_of(name: str) -> Method:
    """The method of that name."""
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"there is no start {name!r}; known: {', '.join(METHODS)}")
    return METHODS[name]


def check_fit(method: Method, layer: nn.Module) -> Layer:
    """The layer, if this method can start it; otherwise say why not."""
    fit = check_layer(layer)
    kind = type(layer).__name__
    if isinstance(fit, OffsetL2) and method.prototypes is None:
        other = ", ".join(m.name for m in METHODS.values() if m.prototypes is not None)
        raise InputError(f"{kind} has prototypes and no rows for {method.name}; take {other}")
    if method.places and not has_bias(fit):
        free = ", ".join(m.name for m in METHODS.values() if not m.places)
        raise InputError(
            f"{kind} has no bias, which {method.name} places its hyperplanes with; build it with "
            f"bias=True, or take {free}"
        )
    return fit


def check_options(method: Method, options: Mapping[str, Any], layer: Layer | None = None) -> None:
    """Ask for options that the method has, for such a layer if one is given."""
    of_prototypes = isinstance(layer, OffsetL2)
    known = method.prototype_options if of_prototypes else method.options
    if unknown := [name for name in options if name not in known]:
        kind = " for OffsetL2" if of_prototypes else ""
        have = f"has {', '.join(known)}" if known else "has none"
        raise InputError(f"{method.name}{kind} has no option {unknown[0]!r}; it {have}")


def check_generator(generator: torch.Generator | None) -> None:
    """Ask for a generator of the CPU: a seed then means the same start on every device."""
    if generator is not None and generator.device.type != "cpu":
        raise InputError(
            f"the generator is on {generator.device}, wanted one on the CPU, whatever the layer's "
            f"device; use torch.Generator()"
        )


def start_layer(
    layer: Layer,
    method: Method,
    rows: Rows | None,
    generator: torch.Generator | None,
    options: Mapping[str, Any],
) -> None:
    """Compute starting weights from rows, and when they are there put them into the layer."""
    make = method.prototypes if isinstance(layer, OffsetL2) else method.hyperplanes
    assert make is not None
    source = width_of(layer) if not method.data else rows
    put(layer, make(units_of(layer), source, generator, **options))
