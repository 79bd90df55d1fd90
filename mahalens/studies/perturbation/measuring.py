"""Accuracy of trained networks with the units of their hidden layer perturbed, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mahalens.auditing.perturbation import GRID_LEVELS, Kind, perturb
from mahalens.errors import Interrupted
from mahalens.nn.chain import ELEMENTWISE, Chain
from mahalens.studies.representation.problem import Group, Problem
from mahalens.studies.representation.reading import hidden_layers, part_of
from mahalens.studies.running import one_thread
from mahalens.train import TrialStack

Stop = Callable[[], bool]
Result = dict[str, Tensor]

_BLOCK = 1 << 18  # hidden values at once: few enough to stay in the cache
_APPLY: dict[str, Callable[[Tensor], Tensor]] = {"ReLU": torch.relu, "Abs": torch.abs}


@dataclass(frozen=True)
class Halves:
    """T trials cut at their hidden layer: what is below it, its activation, what is above."""

    below: TrialStack
    activation: Callable[[Tensor], Tensor]
    above: TrialStack

    @classmethod
    def of(cls, stack: TrialStack) -> Halves:
        """Cut trained trials; a hidden layer without an activation function keeps its values."""
        chain = stack.chain
        depth = hidden_layers(chain)
        last = chain.layers[depth - 1].kind
        own = last in ELEMENTWISE
        above = Chain(chain.widths[depth], chain.layers[depth:])
        tensors = {}
        for name, tensor in stack.tensors().items():
            place, rest = name.split(".", 1)
            if int(place) >= depth:
                tensors[f"{int(place) - depth}.{rest}"] = tensor
        return cls(
            part_of(stack, depth - own),
            _APPLY[last] if own else torch.nn.Identity(),
            TrialStack.from_tensors(above, tensors),
        )

    def rows(self) -> int:
        """How many samples to look at together."""
        return max(16, _BLOCK // (len(self.below) * self.above.chain.inputs))

    def ranges(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the greatest activation of every hidden unit over samples [T, 1, K]."""
        ends = []
        for xs in x.split(self.rows()):
            hidden = self.activation(self.below(xs))
            ends.append((hidden.amin(1), hidden.amax(1)))
        low, high = (torch.stack(side) for side in zip(*ends, strict=True))
        return low.amin(0).unsqueeze(1), high.amax(0).unsqueeze(1)


def measure(
    problem: Problem, group: Group, stack: TrialStack, should_stop: Stop | None = None
) -> Result:
    """Accuracies of the trials in per cent, unperturbed [T] and by level [T, L].

    Ranges are those over the training samples, also where test samples are perturbed. Under
    ``train/KIND`` and ``test/KIND`` the perturbation stands before the activation function, under
    ``after/KIND`` after it, on the training samples. Equal on any number of threads.
    """
    x, test_x = problem.inputs(group.pixels)
    y, test_y = problem.data.y, problem.data.test_y
    with one_thread():
        halves = Halves.of(stack)
        ends = halves.ranges(x)
        result = _accuracies(halves, ends, x, y, ("train", "after"), should_stop)
        return result | _accuracies(halves, ends, test_x, test_y, ("test",), should_stop)


def _accuracies(
    halves: Halves,
    ends: tuple[Tensor, Tensor],
    x: Tensor,
    y: Tensor,
    wanted: tuple[str, ...],
    should_stop: Stop | None,
) -> Result:
    trials = len(halves.below)
    hits = {f"{wanted[0]}/unperturbed": torch.zeros(trials, dtype=torch.int64)}
    for name in wanted:
        for kind, levels in GRID_LEVELS.items():
            hits[f"{name}/{kind}"] = torch.zeros(trials, len(levels), dtype=torch.int64)
    rows = halves.rows()
    for xs, ys in zip(x.split(rows), y.split(rows), strict=True):
        if should_stop is not None and should_stop():
            raise Interrupted("stopped by the user")
        before = halves.below(xs)
        after = halves.activation(before)
        hits[f"{wanted[0]}/unperturbed"] += _right(halves, after, ys)
        for kind, levels in GRID_LEVELS.items():
            for place, level in enumerate(levels):
                for name in wanted:
                    values = _perturbed(halves, name, before, after, ends, kind, level)
                    hits[f"{name}/{kind}"][:, place] += _right(halves, values, ys)
    return {name: 100 * counted.double() / len(y) for name, counted in hits.items()}


def _perturbed(
    halves: Halves,
    name: str,
    before: Tensor,
    after: Tensor,
    ends: tuple[Tensor, Tensor],
    kind: Kind,
    level: float,
) -> Tensor:
    if name == "after":
        return perturb(after, *ends, kind, level)
    return halves.activation(perturb(before, *ends, kind, level))


def _right(halves: Halves, hidden: Tensor, y: Tensor) -> Tensor:
    """How many samples each trial puts into their class [T]."""
    return (halves.above(hidden).argmax(-1) == y).sum(1)
