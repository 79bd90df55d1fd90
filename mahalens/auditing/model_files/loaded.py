"""A loaded model, and what every loader needs: silence, one line for an error, Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mahalens.errors import InputError

QUANTISED = (
    "holds a quantised network, whose packed weights cannot be read as hyperplanes; give the "
    "float network it was made from"
)


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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings and logs within: the caller says in one line what matters."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once within.

    TorchScript runs in native code, where Python's handler waits for the end of the program; a
    program that loops for ever would never let it run.
    """
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def first_line(error: BaseException, longest: int = 200) -> str:
    """Return the beginning of an error's message, or its kind if it has none.

    >>> first_line(ValueError("no such size\\nand so on"))
    'no such size'
    >>> first_line(KeyError())
    'KeyError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"\s+", " ", lines[0]) if lines else type(error).__name__
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
