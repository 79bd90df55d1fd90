"""Calling torch's loaders without unpickling code, without noise and without traces."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator

_FORCE, _FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_lock = threading.RLock()


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """Within, ``torch.load`` reads tensors and containers only, whatever its caller asks for.

    torch's own loaders of programs ask for more in places. The environment is as before at the
    end.
    """
    with _lock:
        before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORCE_NOT)}
        os.environ[_FORCE] = "1"
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, torch neither warns nor logs: what matters is said in one line by the caller."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def first_line(error: BaseException, longest: int = 200) -> str:
    """The beginning of what an error says, or its kind if it says nothing.

    >>> first_line(ValueError("no such size\\nand so on"))
    'no such size'
    >>> first_line(KeyError())
    'KeyError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"\s+", " ", lines[0]) if lines else type(error).__name__
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
