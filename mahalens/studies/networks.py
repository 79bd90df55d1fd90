"""Training and reading of networks as *Neural Networks Learn Distance Metrics* does it.

Shared by the studies of these networks: all trials start from PyTorch's own weights, trial i from
the same first layer in every model, and train by full-batch gradient descent on cross-entropy.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mahalens.data import LabelledData, stream
from mahalens.errors import InputError
from mahalens.geometry._checks import require_memory
from mahalens.nn import Chain
from mahalens.nn.chain import ELEMENTWISE
from mahalens.studies.run import thread_count
from mahalens.studies.samples import whole_set
from mahalens.studies.study import remember
from mahalens.train import SGD, CrossEntropy, Objective, Status, TrialStack
from mahalens.train.engines import LOSSES, TorchEngine
from mahalens.train.layers import activation_rule

if TYPE_CHECKING:
    from mahalens.studies.run import Context

MNIST_MEAN, MNIST_SPREAD = 0.1307, 0.3081
"""Of MNIST's pixels between 0 and 1, as the paper has them."""
CURVE_POINTS = 30
"""Epochs at which accuracy is measured."""
ACTIVE = 1e-6
"""A unit is active on an input if its activation is larger than this in size."""
RARE = {"dead": None, "rare1": 0.01, "rare5": 0.05}
"""Below which share of the inputs a unit counts as rarely active; dead: on none."""
DEFAULT_NODES, BINS = 4, 48

_BLOCK = 1 << 20  # hidden activations at once: few enough to stay in the cache
_BLOCK_BYTES = 1 << 26


# --- Data -------------------------------------------------------------------------------------


@remember(2)
def training_data(name: str, train_size: int | None, seed: int) -> LabelledData:
    """Load a data set, with ``train_size`` training samples drawn from it, the same in all trials.

    Raises :class:`~mahalens.errors.InputError` where networks cannot be trained on it.
    """
    data = whole_set(name)
    if data.classes < 2:
        raise InputError(f"--data {name}: has one class; there is nothing to tell apart")
    if train_size is not None:
        if not data.classes <= train_size <= len(data.y):
            raise InputError(
                f"--train-size {train_size}: {name} has {len(data.y):,} training samples of "
                f"{data.classes} classes; give {data.classes} to {len(data.y):,}"
            )
        data = data.subset(train_size, stream(seed, "subset"))
    # Samples, both packed copies of the engine, and the test set.
    size = 4 * (3 * data.x.numel() + 2 * data.test_x.numel())
    require_memory(size, f"--data {name}", "give a smaller --train-size")
    return data


def scale_of(data: LabelledData) -> tuple[float, float]:
    """Return mean and spread of the pixels, divided by the largest, that normalising takes out."""
    if data.name == "mnist":
        return MNIST_MEAN, MNIST_SPREAD
    scaled = data.x.double() / data.largest
    return float(scaled.mean()), float(scaled.std(correction=0))


@remember(1)
def pixel_inputs(data: LabelledData, pixels: str, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return training and test samples, ``raw`` or ``normalised`` by the set's mean and spread."""
    x, test_x = data.x, data.test_x
    if pixels != "raw":
        mean, spread = scale_of(data)
        x, test_x = (x / data.largest - mean) / spread, (test_x / data.largest - mean) / spread
    return x.to(device), test_x.to(device)


def pixel_facts(config: Any) -> dict[str, Any]:
    """Load the data of a run; return facts for its summary, about the data and the training."""
    data = training_data(config.data, config.train_size, config.seed)
    if "normalised" in config.pixels and float(data.x.min()) == float(data.x.max()):
        raise InputError(
            f"--data {config.data}: all pixels are equal; nothing can be learned from them"
        )
    mean, spread = scale_of(data)
    return {
        "data": data.name,
        "source": data.source,
        "training_samples": len(data.y),
        "test_samples": len(data.test_y),
        "inputs": data.inputs,
        "classes": data.classes,
        "epochs": config.epochs,
        "largest_pixel": data.largest,
        "pixel_mean": mean,
        "pixel_spread": spread,
    }


# --- Training ---------------------------------------------------------------------------------


def seed_of_trial(seed: int, trial: int) -> int:
    """Return the seed that a trial starts from, whatever the model and the number of trials."""
    return int(torch.randint(2**62, (), generator=stream(seed, "start", trial)))


def start_of(chain: Chain, seed: int, trials: Sequence[int], device: str = "cpu") -> TrialStack:
    """Return starting weights: PyTorch's own, trial i from the same first layer in every model."""
    start = TrialStack.from_seeds(chain, [seed_of_trial(seed, trial) for trial in trials])
    return start if device == "cpu" else TrialStack(start.model, start.values.to(device))


def with_first_scaled(stack: TrialStack, factor: float) -> TrialStack:
    """Return the trials with the weights of their first layer, not its bias, multiplied."""
    if factor == 1:
        return stack
    tensors = {**stack.tensors()}
    tensors["0.weight"] = tensors["0.weight"] * factor
    return TrialStack.from_tensors(stack.model, tensors)


class Trained(NamedTuple):
    """Trials of one network: as they started, their solver, and epochs and test accuracies."""

    start: TrialStack
    solver: Any
    curve: tuple[Tensor, Tensor]

    @property
    def codes(self) -> Tensor:
        """How each trial ended ``[T]``."""
        codes: Tensor = self.solver.codes.cpu()
        return codes

    def unless_lost(self, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return metrics ``[T]`` in float64, NaN where a trial ran away: it has no reading."""
        lost = self.codes == Status.NON_FINITE.code
        return {n: torch.where(lost, torch.nan, v.double()) for n, v in metrics.items()}


def train_networks(
    config: Any,
    chain: Chain,
    trials: Sequence[int],
    data: LabelledData,
    inputs: tuple[Tensor, Tensor],
    context: Context,
    *,
    kind: Any = SGD,
    loss: Callable[..., Objective] = CrossEntropy,
    share: tuple[float, float] = (0.0, 0.95),
    first: float = 1.0,
) -> Trained:
    """Train some trials by full-batch descent, and test them on the way.

    ``first`` multiplies the weights that the first layer starts from.
    """
    x, test_x = inputs
    y, test_y = data.y.to(x.device), data.test_y.to(x.device)
    start = with_first_scaled(start_of(chain, config.seed, trials, config.device), first)
    objective = loss(start.model, x, y, engine=context.engine)
    solver = kind(objective, start, config.epochs, lr=config.learning_rate)

    def accuracy(running: Any) -> dict[str, Tensor]:
        return {"accuracy": accuracies(running.stack, test_x, test_y)}

    at = measured_epochs(config.epochs)
    solver = context.drive("training", solver, share=share, metrics=accuracy, at=at)
    history = solver.history
    return Trained(start, solver, (history.epochs, history["accuracy"].T.double().cpu()))


class OtherLoss(CrossEntropy):
    """An objective like cross-entropy with another loss of outputs and labels, by torch.

    ``kind`` takes outputs [T, K, n] and labels [S, 1, n], and returns sums over samples [T].
    """

    def __init__(self, *args: Any, kind: Any, **options: Any) -> None:
        self._other = kind
        super().__init__(*args, **options)

    def _choose(self, engine: str) -> TorchEngine:
        self.kind = self._other
        return self.by_torch


class _ByLabel:
    """What losses of outputs and labels have in common."""

    name = label = "loss"

    def targets(self, y: Tensor) -> Tensor:
        return y.unsqueeze(1)

    def scale(self, outputs: int | None, samples: int) -> float:
        return 1 / samples

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        return self.total_and_slope(output, target, 1.0)[0]

    @abc.abstractmethod
    def total_and_slope(
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return sums over samples [T], and the slope of the mean [T, K, n]."""


class OneVsRest(_ByLabel):
    """The logistic loss of every output, is the sample of its class or not, summed over outputs.

    ``Σₖ wₖ (log(1 + exp fₖ) - tₖ fₖ)`` with t 1 for the class of a sample and 0 elsewhere. An
    output's targets are off in all classes but one. ``balanced`` weights them, so that both kinds
    count half: C/2 for those that are on, C/(2(C - 1)) for the others.
    """

    def __init__(self, classes: int, *, balanced: bool) -> None:
        self.on, self.off = 1.0, 1.0
        if balanced:
            self.on, self.off = classes / 2, classes / (2 * (classes - 1))

    def total_and_slope(  # noqa: D102
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        hot = torch.zeros_like(output).scatter_(1, target.expand(len(output), -1, -1), 1.0)
        weight = self.off + (self.on - self.off) * hot
        total = (torch.nn.functional.softplus(output) - hot * output) * weight
        return total.sum((1, 2)), (output.sigmoid() - hot) * weight * scale


class SquaredDistances(_ByLabel):
    """Cross-entropy of ``-f²/2``: of normalised RBF ``exp(-d²/2)`` if outputs are ``f = -d``."""

    def total_and_slope(  # noqa: D102
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        logit = output.square().mul_(-0.5)
        total, slope = LOSSES["cross-entropy"].total_and_slope(logit, target, scale)
        return total, slope.mul_(-output)


def statuses(codes: Tensor) -> list[str]:
    """Return the words for how trials ended."""
    every = list(Status)
    return [every[code].value for code in codes.tolist()]


def measured_epochs(epochs: int, points: int = CURVE_POINTS) -> list[int]:
    """Return the epochs of the learning curve: the start, evenly on a log scale, near the end.

    >>> measured_epochs(6)
    [0, 1, 2, 3, 4, 5, 6]
    """
    spaced = np.geomspace(1, epochs, points).round().astype(int).tolist()
    return sorted({0, *spaced, max(0, epochs - max(1, epochs // 10)), epochs})


def accuracies(stack: TrialStack, x: Tensor, y: Tensor) -> Tensor:
    """Return the share of samples put into their class, in percent ``[T]``."""
    rows = max(16, _BLOCK // (len(stack) * max(stack.chain.widths[1:])))
    hits = torch.zeros(len(stack), dtype=torch.int64, device=x.device)
    with thread_count(1):
        for xs, ys in zip(x.split(rows), y.split(rows), strict=True):
            hits += (stack(xs).argmax(-1) == ys).sum(1)
    return 100 * hits.double() / len(y)


def curve_metrics(epochs: Tensor, accuracy: Tensor) -> dict[str, Tensor]:
    """Return when the accuracy ``[T, E]`` came within a point of its last, and its late gain."""
    near = (accuracy - accuracy[:, -1:]).abs() <= 1.0
    stays = near.flip(1).cumprod(1).flip(1).bool()
    first = stays.to(torch.int64).argmax(1)
    late = int((epochs <= max(0, int(epochs[-1]) - max(1, int(epochs[-1]) // 10))).sum()) - 1
    return {
        "epochs_to_converge": epochs[first].double(),
        "late_gain": accuracy[:, -1] - accuracy[:, max(late, 0)],
    }


# --- Reading ----------------------------------------------------------------------------------


def part_of(stack: TrialStack, end: int, first: int = 0) -> TrialStack:
    """Return the layers of the trials from ``first`` to before ``end`` as a stack of their own."""
    chain = Chain(stack.chain.widths[first], stack.chain.layers[first:end])
    tensors = {}
    for name, tensor in stack.tensors().items():
        place, rest = name.split(".", 1)
        if first <= int(place) < end:
            tensors[f"{int(place) - first}.{rest}"] = tensor
    return TrialStack.from_tensors(chain, tensors)


def unit_layers(chain: Chain) -> list[int]:
    """Return the places of the layers with units: the hidden layers, then the output layer.

    >>> unit_layers(Chain.parse("Linear(128), ReLU, Linear(10), ReLU, Neg", inputs=784))
    [0, 2]
    """
    return [place for place, layer in enumerate(chain.layers) if layer.units is not None]


class Reading:
    """Numbers of T trials on one set of samples, gathered block by block.

    ``output`` is what the network returns, ``score`` the output layer before its activation,
    ``hidden`` the activations below it: those of the last hidden layer. Active hidden units are
    counted in all hidden layers. ``below`` is how many layers lead to the output layer. All sums
    are on the CPU.
    """

    def __init__(self, stack: TrialStack, x: Tensor, y: Tensor, classes: int) -> None:
        trials, samples = len(stack), len(x)
        chain = stack.chain
        places = unit_layers(chain)
        self.below = places[-1]
        # From each layer with units to the next; the last part is the output layer alone.
        parts = [part_of(stack, b, a) for a, b in pairwise([*places, self.below + 1])]
        units = chain.widths[self.below]
        every = sum(chain.widths[place] for place in places[1:])
        self.samples = samples
        self.class_sizes = torch.bincount(y, minlength=classes)
        self.correct = torch.zeros(trials, classes, dtype=torch.int64)
        self.active_hidden = torch.zeros(trials, every, dtype=torch.int64)
        self.active_outputs = torch.zeros(trials, classes, dtype=torch.int64)
        self.silent = torch.zeros(trials, dtype=torch.int64)
        self.sums = torch.zeros(trials, classes, units, dtype=torch.float64)
        self.score_sum = torch.zeros(trials, classes, dtype=torch.float64)
        self.score_squares = torch.zeros(trials, classes, dtype=torch.float64)
        rows = max(16, _BLOCK_BYTES // (4 * trials * max(every, classes)))
        after = [layer for layer in chain.layers[self.below + 1 :] if layer.kind in ELEMENTWISE]
        for xs, ys in zip(x.split(rows), y.split(rows), strict=True):
            layers, values = [], xs
            for part in parts:
                values = part(values)
                layers.append(values.cpu())
            for layer in after:
                values = activation_rule(layer).forward(values)
            self._add(layers[:-1], layers[-1], values.cpu(), ys)

    def _add(self, layers: list[Tensor], score: Tensor, output: Tensor, ys: Tensor) -> None:
        chosen, hidden = output.argmax(-1), layers[-1]
        self.correct.index_add_(1, ys, (chosen == ys).to(torch.int64))
        self.active_hidden += torch.cat([(layer.abs() > ACTIVE).sum(1) for layer in layers], 1)
        active = output.abs() > ACTIVE
        self.active_outputs += active.sum(1)
        self.silent += (~active.any(-1)).sum(1)
        self.sums.index_add_(1, ys, hidden.double())
        self.score_sum += score.double().sum(1)
        self.score_squares += score.double().square().sum(1)
        self.see(hidden, output, chosen)

    def see(self, hidden: Tensor, output: Tensor, chosen: Tensor) -> None:
        """Gather more in a subclass: ``[T, n, H]``, ``[T, n, C]`` and ``[T, n]`` of a block."""

    @property
    def accuracy(self) -> Tensor:
        """The share of samples put into their class, in percent ``[T]``."""
        return 100 * self.correct.sum(1).double() / self.samples

    @property
    def class_accuracy(self) -> Tensor:
        """The same class by class ``[T, C]``; NaN for a class without samples."""
        return 100 * self.correct.double() / self.class_sizes

    def activity(self) -> dict[str, Tensor]:
        """Return the shares of dead and rarely active units in percent ``[T]``, by layer."""
        shares = {}
        for place, counts in (("outputs", self.active_outputs), ("hidden", self.active_hidden)):
            for kind, share in RARE.items():
                few = counts == 0 if share is None else counts < share * self.samples
                shares[f"{kind}_{place}"] = 100 * few.double().mean(1)
        return shares

    def positions(self, stack: TrialStack) -> Tensor:
        """Return ``|f_c(z_j)| / sd(f_c)`` ``[T, c, j]`` with z_j the mean hidden vector of class j.

        How far the zero of output c is from the centre of class j; of a linear output the distance
        of its hyperplane in spreads along its normal.
        """
        top = part_of(stack, self.below + 1, self.below)
        centres = self.sums / self.class_sizes[:, None]
        at = TrialStack(top.model, top.values.double().cpu())(centres)  # [T, j, c]
        mean = self.score_sum / self.samples
        variance = (self.score_squares / self.samples - mean.square()).clamp(min=0)
        return at.abs().transpose(1, 2) / variance.sqrt().unsqueeze(-1)


def nearest_cosines(rows: Tensor, axes: Tensor) -> Tensor:
    """Return the cosine of rows ``[T, H, D]`` with their nearest axis, mean over the rows ``[T]``.

    Axes are columns ``[..., D, R]`` of length 1, at right angles; what a row has in directions
    without an axis does not count.
    """
    parts = torch.nn.functional.normalize(rows @ axes.to(rows), dim=-1)
    return parts.abs().amax(-1).mean(-1)


def centre_metrics(positions: Tensor) -> dict[str, Tensor]:
    """Return own and other centres, averaged over classes ``[T]``; NaN for constant outputs."""
    classes = positions.shape[1]
    own = positions.diagonal(dim1=1, dim2=2).mean(1)
    other = (positions.sum((1, 2)) - positions.diagonal(dim1=1, dim2=2).sum(1)) / (
        classes * (classes - 1)
    )
    return {"own_centre": own, "other_centre": other, "centre_ratio": own / other}


def latent_distributions(
    stack: TrialStack, x: Tensor, y: Tensor, classes: int, nodes: tuple[int, ...]
) -> dict[str, Tensor]:
    """Return histograms of pre-activations by class, for some nodes of the first trial.

    The nodes are in the last hidden layer. Without ``nodes``, those whose class means differ most
    in units of the spread within classes (the largest F statistics). Moments are mean, variance and
    skewness.

    Returns ``nodes`` ``[K]``, ``edges`` ``[K, B+1]``, ``counts`` ``[K, C, B]``, ``moments``
    ``[K, C, 3]``.
    """
    below = part_of(stack, unit_layers(stack.chain)[-2] + 1)
    alone = TrialStack(below.model, below.values[:1])
    values = alone(x)[0].double().cpu()  # [N, H]
    if not bool(values.isfinite().all()):  # a trial that ran away has no distributions
        return {}
    chosen = list(nodes) or _most_telling(values, y, classes)
    edges, counts, moments = [], [], []
    for column in values[:, chosen].T.contiguous():
        low, high = column.quantile(torch.tensor([0.001, 0.999], dtype=column.dtype)).tolist()
        room = 0.05 * (high - low) or 1.0
        low, high = low - room, high + room
        cut = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
        place = torch.bucketize(column, cut[1:-1])  # what lies outside counts to the ends
        table = torch.zeros(classes, BINS, dtype=torch.int64)
        table.index_put_((y, place), torch.ones_like(y), accumulate=True)
        edges.append(cut)
        counts.append(table)
        moments.append(_moments(column, y, classes))
    return {
        "nodes": torch.tensor(chosen),
        "edges": torch.stack(edges),
        "counts": torch.stack(counts),
        "moments": torch.stack(moments),
    }


def _most_telling(values: Tensor, y: Tensor, classes: int) -> list[int]:
    """Return the nodes whose classes lie furthest apart, by their F statistic, in order."""
    sizes = torch.bincount(y, minlength=classes).double()[:, None]
    sums = torch.zeros(classes, values.shape[1], dtype=values.dtype).index_add_(0, y, values)
    means = sums / sizes.clamp(min=1)
    within = (values - means[y]).square().sum(0)
    between = (sizes * (means - values.mean(0)).square()).sum(0)
    ratio = torch.where(within > 0, between / within, 0.0).nan_to_num(0.0)
    return sorted(ratio.topk(min(DEFAULT_NODES, len(ratio))).indices.tolist())


def _moments(values: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return mean, variance and skewness [C, 3]; NaN where a class has no samples or no spread."""
    sizes = torch.bincount(y, minlength=classes).to(values.dtype)

    def average(of: Tensor) -> Tensor:
        return torch.zeros_like(sizes).index_add_(0, y, of) / sizes

    mean = average(values)
    rest = values - mean[y]
    variance, third = average(rest.square()), average(rest.pow(3))
    return torch.stack([mean, variance, third / variance.pow(1.5)], dim=1)
