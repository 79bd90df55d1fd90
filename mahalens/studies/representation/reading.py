"""What trained networks of the study show: accuracy, dead units, where hyperplanes lie."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.nn.chain import ELEMENTWISE, Chain
from mahalens.studies.representation.metrics import ACTIVE
from mahalens.train import TrialStack
from mahalens.train.layers import activation_rule

RARE = {"dead": None, "rare1": 0.01, "rare5": 0.05}
"""Below which share of the inputs a unit counts as rarely active; dead: on none."""

_BLOCK_BYTES = 1 << 26


def part_of(stack: TrialStack, layers: int) -> TrialStack:
    """The first layers of the trials as a stack of their own."""
    chain = Chain(stack.chain.inputs, stack.chain.layers[:layers])
    names = stack.tensors()
    kept = {n: tensor for n, tensor in names.items() if int(n.split(".")[0]) < layers}
    return TrialStack.from_tensors(chain, kept)


def hidden_layers(chain: Chain) -> int:
    """How many layers lead to the hidden activations: all before the output layer.

    >>> hidden_layers(Chain.parse("Linear(128), ReLU, Linear(10), ReLU, Neg", inputs=784))
    2
    """
    places = [place for place, layer in enumerate(chain.layers) if layer.units is not None]
    return places[-1]


class Reading:
    """Numbers of T trials on one set of samples, gathered block by block.

    ``outputs`` is what the network gives; ``scores`` the output layer before its activation;
    ``hidden`` the activations it is given.
    """

    def __init__(self, stack: TrialStack, x: Tensor, y: Tensor, classes: int) -> None:
        trials, samples = len(stack), len(x)
        chain = stack.chain
        self.depth = hidden_layers(chain)
        below, scores = part_of(stack, self.depth), part_of(stack, self.depth + 1)
        units = chain.widths[self.depth]
        self.samples = samples
        self.class_sizes = torch.bincount(y, minlength=classes)
        self.correct = torch.zeros(trials, classes, dtype=torch.int64)
        self.active_hidden = torch.zeros(trials, units, dtype=torch.int64)
        self.active_outputs = torch.zeros(trials, classes, dtype=torch.int64)
        self.silent = torch.zeros(trials, dtype=torch.int64)
        self.sums = torch.zeros(trials, classes, units, dtype=torch.float64)
        self.score_sum = torch.zeros(trials, classes, dtype=torch.float64)
        self.score_squares = torch.zeros(trials, classes, dtype=torch.float64)
        rows = max(16, _BLOCK_BYTES // (4 * trials * max(units, classes)))
        after = [layer for layer in chain.layers[self.depth + 1 :] if layer.kind in ELEMENTWISE]
        for xs, ys in zip(x.split(rows), y.split(rows), strict=True):
            hidden, score = below(xs), scores(xs)
            output = score
            for layer in after:
                output = activation_rule(layer).forward(output)
            chosen = output.argmax(-1)
            hits = (chosen == ys).to(torch.int64)
            self.correct.index_add_(1, ys, hits)
            self.active_hidden += (hidden.abs() > ACTIVE).sum(1)
            active = output.abs() > ACTIVE
            self.active_outputs += active.sum(1)
            self.silent += (~active.any(-1)).sum(1)
            self.sums.index_add_(1, ys, hidden.double())
            self.score_sum += score.double().sum(1)
            self.score_squares += score.double().square().sum(1)
            self.see(hidden, output, chosen)

    def see(self, hidden: Tensor, output: Tensor, chosen: Tensor) -> None:
        """For readings that gather more: ``[T, n, H]``, ``[T, n, C]`` and ``[T, n]`` of a block."""

    @property
    def accuracy(self) -> Tensor:
        """Share of samples put into their class, in percent ``[T]``."""
        return 100 * self.correct.sum(1).double() / self.samples

    @property
    def class_accuracy(self) -> Tensor:
        """The same class by class ``[T, C]``; NaN for a class without samples."""
        return 100 * self.correct.double() / self.class_sizes

    def activity(self) -> dict[str, Tensor]:
        """Shares of dead and rarely active units in percent ``[T]``, by layer."""
        found = {}
        for place, counts in (("outputs", self.active_outputs), ("hidden", self.active_hidden)):
            for kind, share in RARE.items():
                few = counts == 0 if share is None else counts < share * self.samples
                found[f"{kind}_{place}"] = 100 * few.double().mean(1)
        return found

    def centres(self) -> Tensor:
        """Mean hidden activations of every class ``[T, C, H]``: estimates of the source's z_c."""
        return self.sums / self.class_sizes[:, None]

    def positions(self, stack: TrialStack) -> Tensor:
        """``|f_c(z_j)| / sd(f_c)`` ``[T, c, j]``: how far output c's zero is from class j's centre.

        Of a linear output this is the distance of its hyperplane in spreads along its normal.
        """
        chain = stack.chain
        top = Chain(chain.widths[self.depth], chain.layers[self.depth : self.depth + 1])
        names = {
            f"0.{name.split('.', 1)[1]}": tensor.double()
            for name, tensor in stack.tensors().items()
            if int(name.split(".")[0]) == self.depth
        }
        at = TrialStack.from_tensors(top, names)(self.centres())  # [T, j, c]
        mean = self.score_sum / self.samples
        variance = (self.score_squares / self.samples - mean.square()).clamp(min=0)
        return at.abs().transpose(1, 2) / variance.sqrt().unsqueeze(-1)


def centre_metrics(positions: Tensor) -> dict[str, Tensor]:
    """Own and other centres, averaged over the classes ``[T]``; NaN where an output is constant."""
    classes = positions.shape[1]
    own = positions.diagonal(dim1=1, dim2=2).mean(1)
    other = (positions.sum((1, 2)) - positions.diagonal(dim1=1, dim2=2).sum(1)) / (
        classes * (classes - 1)
    )
    return {"own_centre": own, "other_centre": other, "centre_ratio": own / other}
