"""What loading a model gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mahalens.auditing.model_files.program_checks import QUANTISED
from mahalens.errors import InputError


@dataclass(frozen=True)
class LoadedModel:
    """A network from a file or a factory, in evaluation mode, and what it says of its input."""

    module: nn.Module
    name: str
    kind: str
    """``torch.export program``, ``TorchScript file`` or ``factory``."""
    batch_size: int | None = None
    """The only number of samples that it takes at once; None where any will do."""
    dtype: torch.dtype | None = None
    """The type of number that its input has to have, where it is known."""
    input_shape: tuple[int | None, ...] | None = None
    """The shape of its input with the batch axis, None for sizes that are free."""
    notes: tuple[str, ...] = ()
    """What a reader of the audit should know about how it was loaded."""

    def cast(self, x: Tensor) -> Tensor:
        """The samples in the type of number that the model computes with.

        Whole numbers, such as those of tokens, stay whole where the model takes them.
        """
        if self.dtype is None or x.dtype == self.dtype:
            return x
        if x.is_floating_point() and not self.dtype.is_floating_point:
            raise InputError(
                f"the model takes whole numbers ({_name_of(self.dtype)}) and x is "
                f"{_name_of(x.dtype)}; give x of that kind"
            )
        return x.to(self.dtype)

    def whole_batches(self, samples: int) -> int:
        """How many of so many samples fit into whole batches, where the size is fixed.

        >>> LoadedModel(nn.Identity(), "net", "factory", batch_size=32).whole_batches(100)
        96
        """
        if self.batch_size is None:
            return samples
        whole = samples - samples % self.batch_size
        if not whole:
            raise InputError(
                f"the model takes batches of exactly {self.batch_size} and there are {samples} "
                f"samples; give more, or export it with a free batch size"
            )
        return whole


def float_dtype(module: nn.Module) -> torch.dtype | None:
    """The type of the model's floating-point parameters; None if there is none or several."""
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return kinds.pop() if len(kinds) == 1 else None


def require_float(module: nn.Module) -> None:
    """Refuse a quantised network, whose weights are packed."""
    for part in module.modules():
        if "quantized" in type(part).__module__ and hasattr(part, "_packed_params"):
            raise InputError(QUANTISED)
    for tensor in (*module.parameters(), *module.buffers()):
        if not isinstance(tensor, nn.UninitializedParameter) and tensor.is_quantized:
            raise InputError(QUANTISED)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
