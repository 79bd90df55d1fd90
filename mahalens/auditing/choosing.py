"""Which layers and units are to be read, and as what samples are drawn: what a user asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mahalens.auditing.record import Skipped
from mahalens.auditing.watch.site import Site
from mahalens.errors import InputError

Nodes = Sequence[int] | Mapping[str, Sequence[int]] | None


def check_image(image: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
    """Ask for a picture that has as many pixels as a sample has numbers."""
    if image is None:
        return
    wanted = f"wanted [H, W] or [C, H, W] of the {math.prod(shape)} numbers of a sample"
    if len(image) not in (2, 3) or math.prod(image) != math.prod(shape):
        raise InputError(f"image is {list(image)}, {wanted}")


def check_nodes(nodes: Nodes, sites: Mapping[str, Site]) -> None:
    """Ask for units that there are, in layers that there are."""
    widest = max(site.units for site in sites.values())
    given: Mapping[Any, Sequence[int]]
    if isinstance(nodes, int):
        raise InputError(f"nodes is {nodes}, wanted a list of units, such as [{nodes}]")
    given = nodes if isinstance(nodes, Mapping) else {None: nodes or ()}
    for name, wanted in given.items():
        if name is not None and name not in sites:
            known = ", ".join(sites)
            raise InputError(f"nodes names the layer {name!r}, wanted some of {known}")
        most = widest if name is None else sites[name].units
        for node in wanted:
            if not isinstance(node, int) or not 0 <= node < most:
                raise InputError(
                    f"nodes has the unit {node!r}, but no layer has one; the widest has {most}"
                )


def chosen_layers(
    sites: dict[str, Site], layers: Sequence[str] | None, skipped: Sequence[Skipped]
) -> dict[str, Site]:
    """The layers to read."""
    if not sites:
        why = f"; {skipped[0].name} ({skipped[0].kind}) {skipped[0].reason}" if skipped else ""
        raise InputError(f"the model uses no Linear and no convolution that can be read{why}")
    if layers is None:
        return sites
    if missing := [wanted for wanted in layers if wanted not in sites]:
        raise InputError(
            f"the model uses no layer {missing[0]!r}; those it uses are {', '.join(sites)}"
        )
    return {key: site for key, site in sites.items() if key in set(layers)}
