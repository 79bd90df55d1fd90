"""The ways to start a layer, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.init import clusters, ellipsoids, placed
from mahalens.init.rows import Ellipsoidal, Layer, Rows, width_of
from mahalens.init.targets import (
    Hyperplanes,
    Start,
    check_layer,
    groups_of,
    has_bias,
    put,
    units_of,
)
from mahalens.nn.head import DistanceHead
from mahalens.nn.offset_l2 import OffsetL2


@dataclass(frozen=True)
class Method:
    """One way to start a layer."""

    name: str
    hyperplanes: Callable[..., Start]
    """From units, rows and a generator, with options."""
    prototypes: Callable[..., Start] | None = None
    """The same for a layer of prototypes; None if there is no such thing."""
    ellipsoids: Callable[..., Start] | None = None
    """From a Mahalanobis or a head, rows and a generator; None if there is no such thing."""
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
        Method(
            "kaiming",
            placed.kaiming,
            placed.drawn_prototypes,
            ellipsoids.drawn,
            places=False,
            data=False,
        ),
        Method(
            "sample_point_bias",
            placed.sample_point_bias,
            placed.sample_prototypes,
            ellipsoids.at_samples,
        ),
        Method(
            "whiten",
            placed.whiten,
            None,
            ellipsoids.whitening,
            options=("kind", "rank", "mirror"),
            alive=True,
        ),
        Method(
            "cluster_pca",
            clusters.cluster_pca,
            clusters.cluster_prototypes,
            ellipsoids.of_clusters,
            options=("clusters", "axes", "mirror"),
            prototype_options=("clusters",),
            labels="optional",
            alive=True,
        ),
        Method(
            "class_mean",
            placed.class_mean,
            clusters.class_prototypes,
            ellipsoids.at_classes,
            labels="needed",
        ),
        Method("lsuv", placed.lsuv, places=False),
    )
}
"""The methods of :func:`mahalens.init.initialise`."""


def method_of(name: str) -> Method:
    """The method of that name."""
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"there is no start {name!r}; known: {', '.join(METHODS)}")
    return METHODS[name]


def check_fit(method: Method, layer: nn.Module, carrier: nn.Module | str | None = None) -> Layer:
    """The layer, if this method can start it; otherwise say why not.

    A ``carrier`` is the batch norm that stands in for a missing bias, or why there is none.
    """
    fit = check_layer(layer)
    kind = type(layer).__name__
    if _maker(method, fit) is None:
        other = ", ".join(m.name for m in METHODS.values() if _maker(m, fit) is not None)
        raise InputError(f"{kind} has prototypes and no rows for {method.name}; take {other}")
    if method.places and not has_bias(fit) and not isinstance(carrier, nn.Module):
        free = ", ".join(m.name for m in METHODS.values() if not m.places)
        why = "" if carrier is None else f", {carrier}"
        raise InputError(
            f"{kind} has no bias, which {method.name} places its hyperplanes with{why}; build it "
            f"with bias=True, or take {free}"
        )
    return fit


def check_options(method: Method, options: Mapping[str, Any], layer: Layer | None = None) -> None:
    """Ask for options that the method has, for such a layer if one is given."""
    known = options_of(method, layer)
    if unknown := [name for name in options if name not in known]:
        kind = "" if known == method.options else f" for {type(layer).__name__}"
        have = f"has {', '.join(known)}" if known else "has none"
        raise InputError(f"{method.name}{kind} has no option {unknown[0]!r}; it {have}")


def options_of(method: Method, layer: Layer | None = None) -> tuple[str, ...]:
    """The options that the method has, for such a layer if one is given."""
    of_prototypes = isinstance(layer, OffsetL2 | Ellipsoidal)
    return method.prototype_options if of_prototypes else method.options


def labels_for(method: Method, layer: Layer) -> str:
    """``unused``, ``optional`` or ``needed``: a prototype of a head stands for its own class."""
    of_classes = isinstance(layer, DistanceHead) and method.data
    return "needed" if of_classes else method.labels


def check_generator(generator: torch.Generator | None) -> None:
    """Ask for a generator of the CPU: a seed then means the same start on every device."""
    if generator is not None and not hasattr(generator, "device"):
        raise InputError(f"the generator is {generator!r}, wanted a torch.Generator, or None")
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
) -> Start:
    """Compute starting weights from rows, put them into the layer, and return them."""
    make = _maker(method, layer)
    assert make is not None
    source = width_of(layer) if not method.data else rows
    if rows is not None and method.data and bool((rows.values == rows.values[0]).all()):
        raise InputError(
            f"the {rows.count} rows are constant in all {rows.width} inputs, so that nothing can "
            f"be told from them; give samples that differ"
        )
    start: Start
    if isinstance(layer, Ellipsoidal):
        start = make(layer, source, generator, **options)
    elif groups_of(layer) == 1:
        start = make(units_of(layer), source, generator, **options)
    else:
        start = _by_group(layer, make, source, generator, options)
    put(layer, start)
    return start


def _maker(method: Method, layer: Layer) -> Callable[..., Start] | None:
    """What computes such a start for such a layer, if anything does."""
    if isinstance(layer, DistanceHead) and isinstance(layer.distance, OffsetL2):
        return method.ellipsoids if method.prototypes is not None else None
    if isinstance(layer, Ellipsoidal):
        return method.ellipsoids
    return method.prototypes if isinstance(layer, OffsetL2) else method.hyperplanes


def _by_group(
    layer: Layer,
    make: Callable[..., Start],
    source: Rows | int | None,
    generator: torch.Generator | None,
    options: Mapping[str, Any],
) -> Hyperplanes:
    """Start each group of a convolution as the layer of its own that it is."""
    groups = groups_of(layer)
    units = units_of(layer) // groups
    parts = []
    for number in range(groups):
        own = (
            source.group(number, groups) if isinstance(source, Rows) else width_of(layer) // groups
        )
        # Classes go on from one group to the next: often a group has a single unit.
        turn = {"first": number * units} if make is placed.class_mean else {}
        try:
            part = make(units, own, generator, **options, **turn)
        except InputError as error:
            raise InputError(f"group {number} of {groups}: {error}") from None
        assert isinstance(part, Hyperplanes)
        parts.append(part)
    return Hyperplanes(
        torch.cat([part.weight for part in parts]), torch.cat([part.point for part in parts])
    )
