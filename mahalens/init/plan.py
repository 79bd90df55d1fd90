"""Which layers of a model are started, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from mahalens.errors import InputError
from mahalens.init.methods import Method, check_fit, check_options, method_of, options_of
from mahalens.init.rows import Convolution, Layer
from mahalens.init.targets import has_bias, parameters_of
from mahalens.nn.head import DistanceHead
from mahalens.nn.mahalanobis import Mahalanobis
from mahalens.nn.offset_l2 import OffsetL2
from mahalens.nn.point_slope import PointSlope

Methods = str | Mapping[str, str]
"""A method for all layers, or one by layer."""
Carriers = Callable[[list[nn.Module]], Mapping[nn.Module, nn.Module | str]]
"""Finds batch norms that can place the hyperplanes of layers without a bias."""


class Plan:
    """The layers to start, each with its method, and those to leave alone, each with the reason.

    What the caller named must fit; of what was not named, that which does not fit is left alone.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Methods,
        layers: Sequence[str] | None,
        options: Mapping[str, Any],
        carriers: Carriers = lambda layers: {},
    ) -> None:
        self.chosen: dict[str, tuple[Layer, Method]] = {}
        self.norms: dict[str, nn.Module] = {}
        """Batch norms that place the hyperplanes of layers without a bias, by layer."""
        self.left: dict[str, str] = {}
        self._options = options
        by_layer = isinstance(method, Mapping)
        if by_layer and layers is not None:
            raise InputError("layers and methods by layer are both given; give one of them")
        if by_layer and not method:
            raise InputError("the methods by layer are empty; name at least one layer")
        ways = [
            method_of(name)
            for name in (method.values() if isinstance(method, Mapping) else [method])
        ]
        # With several methods an option may be for one of them only.
        for name, value in options.items():
            if not any(name in way.options for way in ways):
                check_options(ways[0], {name: value})
        # A model that is itself a layer goes by its class, as in an audit.
        modules = {name or type(part).__name__: part for name, part in model.named_modules()}
        inside = _inside_heads(model)
        found = [
            name for name, part in modules.items() if _is_layer(part) and id(part) not in inside
        ]
        wanted = list(method) if by_layer else layers
        if missing := [name for name in wanted or () if name not in modules]:
            known = ", ".join(found) or "none"
            raise InputError(f"the model has no layer {missing[0]!r}; those with weights: {known}")
        ways_by_name = {
            name: method_of(method[name] if isinstance(method, Mapping) else method)
            for name in (found if wanted is None else wanted)
        }
        bare = [modules[n] for n, way in ways_by_name.items() if way.places and _bare(modules[n])]
        carrying = carriers(bare) if bare else {}
        owners: dict[int, str] = {}
        for name, way in ways_by_name.items():
            carrier = carrying.get(modules[name])
            try:
                if (head := inside.get(id(modules[name]))) is not None:
                    raise InputError(f"is part of the DistanceHead {head!r}; start that one")
                layer = check_fit(way, modules[name], carrier)
                parameters = parameters_of(layer)
                for owner in (owners[id(p)] for p in parameters if id(p) in owners):
                    raise InputError(f"shares its weights with layer {owner!r}; start one of them")
            except InputError as error:
                if wanted is not None:
                    raise InputError(f"layer {name!r}: {error}") from None
                self.left[name] = str(error)
                continue
            owners |= {id(parameter): name for parameter in parameters}
            self.chosen[name] = layer, way
            if isinstance(carrier, nn.Module):
                self.norms[name] = carrier
        if not self.chosen:
            why = next((f": {reason}" for reason in self.left.values()), "")
            raise InputError(f"the model has no layer that can be started{why}")

    def needs_data(self) -> str | None:
        """The name of a method that looks at data, if there is one."""
        return next((way.name for _, way in self.chosen.values() if way.data), None)

    def options_for(self, layer: Layer, way: Method) -> dict[str, Any]:
        """The options that such a layer knows: one call may meet layers of several kinds."""
        known = options_of(way, layer)
        return {name: value for name, value in self._options.items() if name in known}

    def parameters(self) -> list[Tensor]:
        """All that will be changed."""
        own = [p for layer, _ in self.chosen.values() for p in parameters_of(layer)]
        return [*own, *(p for norm in self.norms.values() for p in norm.parameters())]


def _is_layer(module: nn.Module) -> bool:
    """Whether one would look for a module among those started or left alone."""
    made = nn.Linear | _ConvNd | PointSlope | OffsetL2 | Mahalanobis | DistanceHead
    return isinstance(module, made)


def _inside_heads(model: nn.Module) -> dict[int, str]:
    """The layers that are part of a head, with its name."""
    heads = {n: part for n, part in model.named_modules() if isinstance(part, DistanceHead)}
    return {id(head.distance): name or "DistanceHead" for name, head in heads.items()}


def _bare(module: nn.Module) -> bool:
    """Whether a module is a layer of hyperplanes without a bias."""
    return isinstance(module, nn.Linear | Convolution) and not has_bias(module)
