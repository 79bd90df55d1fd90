"""Any ``nn.Module`` as the pattern of a stack of trials."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mahalens.errors import InputError


class Template:
    """A module whose trainable parameters differ from trial to trial, and nothing else does.

    Buffers and frozen parameters are constants: they must be equal in all trials. Layers that
    change their buffers while training, such as ``BatchNorm`` with running statistics, cannot be
    stacked.
    """

    def __init__(self, module: nn.Module) -> None:
        for name, part in module.named_modules():
            if part.training and getattr(part, "running_mean", None) is not None:
                raise InputError(
                    f"layer {name!r}: {type(part).__name__} keeps running statistics, which cannot "
                    "be stacked; use LayerNorm or GroupNorm, or call its .eval()"
                )
        self.module = copy.deepcopy(module)
        self.shapes = {
            name: tuple(tensor.shape)
            for name, tensor in module.named_parameters()
            if tensor.requires_grad
        }
        # Tied parameters have several names; only the first of them is kept apart.
        every = module.named_parameters(remove_duplicate=False)
        self.trained = {name for name, tensor in every if tensor.requires_grad}
        if not self.shapes:
            raise InputError(f"{type(module).__name__}: has no trainable parameters to stack")

    def __str__(self) -> str:
        return type(self.module).__name__

    @property
    def count(self) -> int:
        """How many trainable parameters one trial has."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Stacked parameters by name as one row per trial, ``[T, P]``."""
        return torch.cat([tensors[n].reshape(len(tensors[n]), -1) for n in self.shapes], 1)

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """Views of the parameters of all trials, each ``[T, *shape]``."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        columns = values.split(sizes, 1)
        return {
            name: column.unflatten(1, shape) if shape else column.squeeze(1)
            for (name, shape), column in zip(self.shapes.items(), columns, strict=True)
        }

    def outputs(self, values: Tensor, x: Tensor) -> Tensor:
        """Outputs of all trials on shared samples, ``[T, N, ...]``."""

        def output(one: Tensor) -> Tensor:
            named = {name: tensor[0] for name, tensor in self.named(one[None]).items()}
            result: Tensor = torch.func.functional_call(self.module, named, (x,))
            return result

        every: Tensor = torch.func.vmap(output, randomness="different")(values)
        return every

    def output_on(self, x: Tensor) -> Tensor:
        """The first trial's output on some samples, without any trace."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module = copy.deepcopy(self.module)
            result: Tensor = (module.to(x.dtype) if x.dtype.is_floating_point else module)(x)
        return result

    def build(
        self, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> nn.Module:
        """A module of its own, with the parameters of the first trial."""
        return copy.deepcopy(self.module).to(device=device, dtype=dtype)


def check_alike(template: Template, modules: Sequence[nn.Module]) -> None:
    """Refuse modules that differ from the first in more than their trainable parameters."""
    wanted = template.module.state_dict()
    kinds = [type(part) for part in template.module.modules()]
    modes = [part.training for part in template.module.modules()]
    for trial, module in enumerate(modules):
        if [type(part) for part in module.modules()] != kinds:
            raise InputError(
                f"trial {trial}: is not built of the same layers as trial 0; stack modules of "
                "one architecture"
            )
        state = module.state_dict()
        for name in {**wanted, **state}:
            got = tuple(state[name].shape) if name in state else None
            want = tuple(wanted[name].shape) if name in wanted else None
            if got != want:
                raise InputError(
                    f"trial {trial}: {name!r} has shape {got}, but trial 0 has {want}; "
                    "stack modules of one architecture"
                )
            if name not in template.trained and not _same(state[name], wanted[name]):
                raise InputError(
                    f"trial {trial}: the constant {name!r} differs from that of trial 0; only "
                    "trainable parameters may differ"
                )
        trainable = {n: tuple(t.shape) for n, t in module.named_parameters() if t.requires_grad}
        if trainable != template.shapes:
            raise InputError(f"trial {trial}: trains other parameters than trial 0")
        # What a layer prints of itself: slopes, rates, sizes. The mode is not among it.
        if str(module) != str(template.module) or [p.training for p in module.modules()] != modes:
            raise InputError(
                f"trial {trial}: has layers with other settings than trial 0; stack modules of one "
                "architecture, all in .train() or all in .eval()"
            )


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two constants are equal; NaN, as for what is not set yet, is like NaN."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
