"""Metrics of all trials at chosen epochs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mahalens.errors import InputError


class History:
    """What a metrics function returned, epoch by epoch.

    ``history["accuracy"]`` is ``[E, T]`` for the epochs ``history.epochs`` ``[E]``.

    >>> history = History()
    >>> history.add(10, {"accuracy": torch.tensor([0.5, 0.25])}, trials=2)
    >>> history["accuracy"].tolist()
    [[0.5, 0.25]]
    """

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._records: dict[str, list[Tensor]] = {}

    def add(self, epoch: int, metrics: Mapping[str, Tensor] | None, trials: int) -> None:
        """Add one epoch: a number per trial ``[T]`` for every metric, the same ones every time."""
        metrics = {} if metrics is None else metrics
        if self._epochs and set(metrics) != set(self._records):
            raise InputError(
                f"metrics {sorted(metrics)} at epoch {epoch}, but {sorted(self._records)} before; "
                "return the same ones every time"
            )
        for name, tensor in metrics.items():
            if not isinstance(tensor, Tensor) or tuple(tensor.shape) != (trials,):
                raise InputError(f"metric {name!r}: give a tensor with one number per trial")
            self._records.setdefault(name, []).append(tensor.detach().cpu().clone())
        self._epochs.append(epoch)

    @property
    def epochs(self) -> Tensor:
        """The epochs ``[E]``."""
        return torch.tensor(self._epochs, dtype=torch.int64)

    @property
    def names(self) -> list[str]:
        """The metrics."""
        return list(self._records)

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._epochs

    def __getitem__(self, name: str) -> Tensor:
        return torch.stack(self._records[name])

    def state(self) -> dict[str, Tensor]:
        """Everything in it, as tensors for a checkpoint."""
        return {
            "history.epochs": self.epochs,
            **{f"history.of.{name}": self[name] for name in self._records},
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a saved state."""
        self._epochs = state["history.epochs"].tolist()
        self._records = {
            name.removeprefix("history.of."): list(tensor.clone())
            for name, tensor in state.items()
            if name.startswith("history.of.")
        }
