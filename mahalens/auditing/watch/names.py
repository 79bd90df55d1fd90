"""Which layer of a model a weight belongs to."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


class Names:
    """Says which layer a weight belongs to: by the tensor itself, or by the module at work."""

    def __init__(self, model: nn.Module) -> None:
        # The first name of a tied weight counts. What torch.compile wraps keeps its own name.
        tensors = [*model.named_buffers(), *model.named_parameters()]
        self.weights = {id(t): name.replace("_orig_mod.", "") for name, t in tensors}
        modules = [(m, name.replace("_orig_mod", "")) for name, m in model.named_modules()]
        self.modules = {id(m): name.replace("..", ".").strip(".") for m, name in modules}
        self.at_work: list[nn.Module] = []
        self.used: set[str] = set()
        """Names of the weights that layers were seen to use."""
        self._turned: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def turn(self, source: Any, result: Any) -> None:
        """Remember that ``result`` is a transposed weight."""
        if isinstance(result, Tensor) and (known := self.weights.get(id(source))) is not None:
            self._turned[id(result)] = (weakref.ref(result), known)

    def was_used(self, weight: Tensor) -> bool:
        """Whether a layer was seen to use this parameter."""
        return self.weights.get(id(weight)) in self.used

    def layer_of(self, weight: Tensor, computed: bool = False) -> str | None:
        """The layer's name, or None for a matrix that is no weight of the model.

        ``computed`` says that a weight may be one that the module at work makes of its own.
        """
        known = self.weights.get(id(weight))
        if known is None and (turned := self._turned.get(id(weight))) is not None:
            known = turned[1] if turned[0]() is weight else None
        module = self.at_work[-1] if self.at_work else None
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
        if last == "weight":
            return path or "weight"
        return f"{path}.{last.removesuffix('_weight')}" if path else last.removesuffix("_weight")

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
    def following(self) -> Iterator[None]:
        """Keep track of the module at work, by two global hooks that are always taken away."""

        def enter(module: nn.Module, args: Any) -> None:
            self.at_work.append(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self.at_work:
                self.at_work.pop()

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


def _made_of(module: nn.Module, weight: Tensor) -> list[Tensor]:
    """Parameters that a module makes a weight from, as by weight norm; empty if it does not."""
    linear = isinstance(module, nn.Linear | _ConvNd)
    own: list[Tensor] = list(module.parameters(recurse=False))
    parts = module._modules.get("parametrizations")
    hidden: list[Tensor] = [] if parts is None else list(parts.parameters())
    wanted = module.weight.shape if linear else None
    fits = weight.shape == wanted or any(weight.shape == part.shape for part in own)
    return own + hidden if fits and not weight._is_view() else []
