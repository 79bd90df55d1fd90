"""Which outputs and hidden units of trained networks still say something."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.studies.activations.metrics import FLAT, RARE
from mahalens.studies.representation.reading import Reading
from mahalens.train import TrialStack


class UseReading(Reading):
    """A reading of T trials that also sees which outputs are chosen, and how units vary."""

    def __init__(self, stack: TrialStack, x: Tensor, y: Tensor, classes: int) -> None:
        trials = len(stack)
        self.chosen = torch.zeros(trials, classes, dtype=torch.int64)
        self._hidden, self._output = Spread(), Spread()
        super().__init__(stack, x, y, classes)

    def see(self, hidden: Tensor, output: Tensor, chosen: Tensor) -> None:
        """Count the choices and add up what spreads are made of."""
        self.chosen.scatter_add_(1, chosen, torch.ones_like(chosen))
        self._hidden.add(hidden)
        self._output.add(output)

    def outputs(self) -> dict[str, Tensor]:
        """Shares of the outputs that are no longer used, by kind, in percent ``[T]``."""
        few = self.chosen < RARE * self.class_sizes
        found = {"unused": self.chosen == 0, "rare": few, "flat": self._output.flat()}
        shares = {f"{kind}_outputs": 100 * hit.double().mean(1) for kind, hit in found.items()}
        return shares | {"dead_outputs": self.activity()["dead_outputs"]}

    def hidden(self) -> dict[str, Tensor]:
        """Shares of the hidden units that vary no more, in percent ``[T]``."""
        flat = 100 * self._hidden.flat().double().mean(1)
        return {"flat_hidden": flat, "dead_hidden": self.activity()["dead_hidden"]}


class Spread:
    """The spread of every unit over samples that come block by block ``[T, n, K]``."""

    def __init__(self) -> None:
        self._samples = 0
        self._sum, self._squares = torch.zeros(()), torch.zeros(())
        self._middle: Tensor | None = None

    def add(self, block: Tensor) -> None:
        """Take in the next samples."""
        values = block.double()
        if self._middle is None:  # taken out, so that no small difference of large sums is left
            self._middle = values.mean(1, keepdim=True)
        away = values - self._middle
        self._samples += block.shape[1]
        self._sum = self._sum + away.sum(1)
        self._squares = self._squares + away.square().sum(1)

    def spread(self) -> Tensor:
        """The standard deviation of every unit ``[T, K]``."""
        mean = self._sum / self._samples
        return (self._squares / self._samples - mean.square()).clamp(min=0).sqrt()

    def flat(self) -> Tensor:
        """Which units ``[T, K]`` vary by less than the stated share of the one that does most."""
        spread = self.spread()
        return spread <= FLAT * spread.amax(1, keepdim=True)
