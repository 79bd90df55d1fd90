"""Things that are made of tensors once, and again when the tensors change."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


class Keeper:
    """Has tensors, and keeps what was made of them."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[Tensor], list[tuple[int, int]], Any]] = {}

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""

    def _keep(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` gives, made once: again only if a tensor was replaced or changed in place.

        (Changes through ``.data``, which hide from autograd, hide from this too.)
        """
        tensors = list(self.tensors().values())
        # In inference mode tensors do not count their changes.
        state = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
        kept = self._kept.get(name)
        same = kept is not None and all(a is b for a, b in itertools.zip_longest(kept[0], tensors))
        if kept is None or not same or kept[1] != state:
            kept = self._kept[name] = (tensors, state, make())
        found: T = kept[2]
        return found
