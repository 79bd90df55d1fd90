"""T trials of one chain as one matrix of parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.nn.chain import Chain


class TrialStack:
    """T trials of one chain: a matrix ``values`` of shape ``[T, P]``, a row per trial.

    A ``Linear`` of K units on D inputs takes ``K·(D+1)`` columns and is seen through
    :meth:`affine` as ``[T, K, D+1]``, weight and bias side by side: one matrix product then
    covers both. (Without bias: ``[T, K, D]``.) ``stack[i]`` is trial i as a plain module, and
    :meth:`from_modules` goes the other way.

    >>> chain = Chain.parse("Linear(4), ReLU, Norm", inputs=2)
    >>> modules = [chain.build() for _ in range(3)]
    >>> stack = TrialStack.from_modules(chain, modules)
    >>> stack.values.shape
    torch.Size([3, 12])
    >>> torch.equal(stack[1][0].weight, modules[1][0].weight)
    True
    """

    def __init__(self, chain: Chain, values: Tensor) -> None:
        width = parameter_count(chain)
        if values.ndim != 2 or values.shape[1] != width:
            raise InputError(
                f"parameters of shape {tuple(values.shape)} for the chain {chain}; "
                f"give [T, {width}]"
            )
        self.chain = chain
        self.values = values

    @classmethod
    def from_modules(cls, chain: Chain, modules: Sequence[nn.Module]) -> TrialStack:
        """Stack modules built from ``chain``; they are copied."""
        if not modules:
            raise InputError("no modules to stack; give at least one")
        kinds = [type(part).__name__ for part in chain.build()]
        for trial, module in enumerate(modules):
            if isinstance(module, nn.Sequential):
                parts = [type(part).__name__ for part in module]
                if parts != kinds:
                    raise InputError(
                        f"trial {trial}: a module of {', '.join(parts)} for the chain {chain}"
                    )
        states = [module.state_dict() for module in modules]
        dtypes = {str(tensor.dtype) for state in states for tensor in state.values()}
        if len(dtypes) > 1:
            raise InputError(f"modules of {' and '.join(sorted(dtypes))}; make them equal")
        names = parameter_shapes(chain)
        for trial, state in enumerate(states):
            for name in {**names, **state}:
                got = tuple(state[name].shape) if name in state else None
                if got != names.get(name):
                    raise InputError(
                        f"trial {trial}: parameter {name!r} has shape {got}, "
                        f"but the chain {chain} wants {names.get(name)}"
                    )
        return cls.from_tensors(chain, {n: torch.stack([s[n] for s in states]) for n in names})

    @classmethod
    def from_tensors(cls, chain: Chain, tensors: dict[str, Tensor]) -> TrialStack:
        """Pack stacked parameters, named as in ``state_dict``; :meth:`tensors` goes back."""
        for name, shape in parameter_shapes(chain).items():
            got = tuple(tensors[name].shape) if name in tensors else None
            if got is None or got[1:] != shape:
                wanted = ", ".join(("T", *map(str, shape)))
                raise InputError(
                    f"stacked parameter {name!r} has shape {got}, but the chain {chain} "
                    f"wants ({wanted})"
                )
        parts = []
        for place, layer in enumerate(chain.layers):
            if layer.kind != "Linear":
                continue
            part = tensors[f"{place}.weight"]
            if layer.bias:
                part = torch.cat([part, tensors[f"{place}.bias"].unsqueeze(-1)], -1)
            parts.append(part.flatten(1))
        return cls(chain, torch.cat(parts, 1).contiguous())

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, trial: int) -> nn.Sequential:
        """Trial ``trial`` as a plain module of its own."""
        module = self.chain.build(dtype=self.values.dtype, device=self.values.device)
        module.load_state_dict({name: t[trial].clone() for name, t in self.tensors().items()})
        return module

    def affine(self) -> list[Tensor]:
        """Views ``[T, K, D+1]`` (or ``[T, K, D]`` without bias), one per ``Linear``."""
        views = []
        start, width = 0, self.chain.inputs
        for layer in self.chain.layers:
            if layer.units is None:
                continue
            columns = width + layer.bias
            stop = start + layer.units * columns
            views.append(self.values[:, start:stop].unflatten(1, (layer.units, columns)))
            start, width = stop, layer.units
        return views

    def tensors(self) -> dict[str, Tensor]:
        """Views of weight ``[T, K, D]`` and bias ``[T, K]`` under their ``state_dict`` names."""
        named = {}
        views = iter(self.affine())
        for place, layer in enumerate(self.chain.layers):
            if layer.kind != "Linear":
                continue
            view = next(views)
            named[f"{place}.weight"] = view[..., :-1] if layer.bias else view
            if layer.bias:
                named[f"{place}.bias"] = view[..., -1]
        return named


def parameter_shapes(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of the plain module."""
    shapes: dict[str, tuple[int, ...]] = {}
    width = chain.inputs
    for place, layer in enumerate(chain.layers):
        if layer.units is not None:
            shapes[f"{place}.weight"] = (layer.units, width)
            if layer.bias:
                shapes[f"{place}.bias"] = (layer.units,)
            width = layer.units
    return shapes


def parameter_count(chain: Chain) -> int:
    """How many parameters one trial has."""
    return sum(torch.Size(shape).numel() for shape in parameter_shapes(chain).values())
