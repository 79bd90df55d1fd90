"""Which layer of a model a weight belongs to."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from mahalens.nn.head import DistanceHead
from mahalens.nn.mahalanobis import Mahalanobis
from mahalens.nn.offset_l2 import OffsetL2
from mahalens.nn.point_slope import PointSlope

# What watches a module that measures distances: its name, the module, its inputs and outputs.
Measured = Callable[[str, nn.Module, Any, Tensor], Any]


class Names:
    """Says which layer a weight belongs to: by the tensor itself, or by the module at work."""

    def __init__(self, model: nn.Module) -> None:
        # The first name of a tied weight counts. What torch.compile wraps keeps its own name.
        tensors = [*model.named_buffers(), *model.named_parameters()]
        self.weights = {id(t): name.replace("_orig_mod.", "") for name, t in tensors}
        modules = [(m, name.replace("_orig_mod", "")) for name, m in model.named_modules()]
        self.modules = {id(m): name.replace("..", ".").strip(".") for m, name in modules}
        self.at_work: list[nn.Module] = []
        self.measuring = 0
        """Modules at work that measure distances: nothing inside them is a layer of its own."""
        self.used: set[str] = set()
        """Names of the weights that layers were seen to use."""
        self._copies: dict[int, tuple[weakref.ref[Tensor], str, bool]] = {}
        # Which way round a weight is used where it gives its layer the name: as the module has
        # it, or else as it is used first.
        self._way: dict[str, bool] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | _ConvNd):
                known = self.weights.get(id(module._parameters.get("weight")))
                if known is not None and known == f"{name}.weight".lstrip("."):
                    self._way[known] = False

    def copied(self, source: Any, result: Any, moved: bool) -> None:
        """Remember that ``result`` is a weight: transposed, if ``moved``, or in other memory."""
        if not isinstance(result, Tensor) or not isinstance(source, Tensor):
            return
        known, turned = self._origin(source)
        if known is None or result is source or result.ndim != source.ndim:
            return
        if moved and result.ndim == 2:
            turned ^= result.stride() == source.stride()[::-1] or result.shape != source.shape
        key = id(result)
        self._copies[key] = (weakref.ref(result, lambda _: self._copies.pop(key)), known, turned)

    def _origin(self, weight: Tensor) -> tuple[str | None, bool]:
        """The name of the parameter that a tensor is, and whether it is transposed."""
        known = self.weights.get(id(weight))
        if known is None and (copy := self._copies.get(id(weight))) is not None:
            ref, name, turned = copy
            if ref() is weight:
                return name, turned
        return known, False

    def point_slope(self, weight: Tensor) -> bool:
        """Whether a weight is that of the :class:`~mahalens.nn.PointSlope` at work."""
        module = self.at_work[-1] if self.at_work else None
        return isinstance(module, PointSlope) and module.weight is weight

    def was_used(self, weight: Tensor) -> bool:
        """Whether a layer was seen to use this parameter."""
        return self.weights.get(id(weight)) in self.used

    def layer_of(self, weight: Tensor, computed: bool = False, across: bool = False) -> str | None:
        """The layer's name, or None for a matrix that is no weight of the model.

        A weight that is used both ways round, as that of an encoder in its decoder, makes two
        layers, of which the second is called ``name (transposed)``.

        Args:
            weight: as a function is given it.
            computed: whether it may be one that the module at work makes of its own.
            across: whether its columns, and not its rows, are the units.
        """
        known, turned = self._origin(weight)
        module = self.at_work[-1] if self.at_work else None
        if isinstance(module, PointSlope) and self.point_slope(weight):
            self.used.add(self.weights.get(id(module.point), ""))  # its bias is made of it
        if module is not None and id(module) in self.modules:
            own = self.modules[id(module)] or type(module).__name__
            if isinstance(module, nn.Linear | _ConvNd) and (
                module._parameters.get("weight") is weight
            ):
                self.used.add(known or "")
                return own
            if known is None and computed and (made_of := _made_of(module, weight)):
                self.used |= {self.weights.get(id(part), "") for part in made_of}
                return own
        if known is None:
            return self._part_of(weight)
        self.used.add(known)
        path, _, last = known.rpartition(".")
        name = path or "weight"
        if last != "weight":
            last = last.removesuffix("_weight")
            name = f"{path}.{last}" if path else last
        way = turned != across
        return name if self._way.setdefault(known, way) == way else f"{name} (transposed)"

    def _part_of(self, weight: Tensor) -> str | None:
        """The name of some rows of a weight, as attention takes them of one large matrix."""
        whole = weight._base
        known = None if whole is None else self.weights.get(id(whole))
        if whole is None or known is None or weight.shape[1:] != whole.shape[1:]:
            return None
        if weight.ndim < 2 or weight.stride() != whole.stride():
            return None
        self.used.add(known)
        first = weight.storage_offset() // whole.stride(0)
        stem = known.removesuffix(".weight").removesuffix("_weight")
        return f"{stem}[{first}:{first + len(weight)}]"

    @contextmanager
    def following(self, measured: Measured) -> Iterator[None]:
        """Keep track of the module at work, by two global hooks that are always taken away.

        ``measured`` is shown the distances that our own layers measure, and may return others.
        """

        def enter(module: nn.Module, args: Any) -> None:
            self.at_work.append(module)
            self.measuring += isinstance(module, OffsetL2 | Mahalanobis)

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            if self.at_work:
                self.at_work.pop()
            if not isinstance(module, OffsetL2 | Mahalanobis):
                return None
            try:
                owner = self.at_work[-1] if self.at_work else module
                owner = owner if isinstance(owner, DistanceHead) else module
                if not isinstance(output, Tensor) or id(owner) not in self.modules:
                    return None
                self.used |= {self.weights.get(id(part), "") for part in module.parameters()}
                name = self.modules[id(owner)] or type(owner).__name__
                return measured(name, owner, args, output)
            finally:
                self.measuring -= 1

        handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.at_work.clear()
            self.measuring = 0


def _made_of(module: nn.Module, weight: Tensor) -> list[Tensor]:
    """Parameters that a module makes a weight from, as by weight norm; empty if it does not."""
    linear = isinstance(module, nn.Linear | _ConvNd)
    own: list[Tensor] = list(module.parameters(recurse=False))
    parts = module._modules.get("parametrizations")
    hidden: list[Tensor] = [] if parts is None else list(parts.parameters())
    wanted = module.weight.shape if linear else None
    fits = weight.shape == wanted or any(weight.shape == part.shape for part in own)
    return own + hidden if fits and not weight._is_view() else []
