"""Networks, heads and detectors of the heads study: what one trial trains, and how it is read.

Every network has the same backbone, the same start and the same batches whatever head it has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, elu, one_hot

from mahalens.data import held_out, stream
from mahalens.detection.metrics import fpr_at
from mahalens.errors import InputError
from mahalens.nn import DistanceHead
from mahalens.nn.head import best_temperature, reject_threshold
from mahalens.studies.heads import (
    DISTANCE,
    DUQ,
    ENSEMBLE,
    MEMBERS,
    METRICS,
    OTHER,
    READERS,
    SOFTMAX,
    HeadsConfig,
    held_share,
    known_of,
)
from mahalens.studies.records import join
from mahalens.studies.samples import samples_of, standardise, whole_set
from mahalens.studies.study import Job, Measures

if TYPE_CHECKING:
    from mahalens.studies.run import Context

# --- The task of a trial ----------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """The samples of one trial, standardised by those to train with, float32 ``[N, D]``.

    ``held`` are training samples that no network is trained with: temperatures and reject
    thresholds are set on them. ``unknown`` is of no class that is known, ``shuffled`` are the test
    samples with the values of each in random order.
    """

    classes: int
    image_shape: tuple[int, ...] | None
    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    test_x: Tensor
    test_y: Tensor
    unknown: Tensor
    shuffled: Tensor


def task_of(config: HeadsConfig, data: str, trial: int) -> Task:
    """Return the task of one trial, the same for all models.

    Where another set is the unknown one, all classes are known and its test samples are unknown.
    Else a share of the classes is drawn to be known, and all samples of the others are unknown.
    """
    draw = _against_other if data in OTHER else _against_left_out
    x, y, test_x, test_y, unknown, shape = draw(config, data, trial)
    held = held_out(y, held_share(len(y)), stream(config.seed, "held out", trial))
    shuffled = shuffle(test_x, stream(config.seed, "shuffled", trial))
    tensors = (x[~held], y[~held], x[held], y[held], test_x, test_y, unknown, shuffled)
    return Task(int(y.max()) + 1, shape, *(part.to(config.device) for part in tensors))


_Parts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, tuple[int, ...] | None]


def _against_other(config: HeadsConfig, data: str, trial: int) -> _Parts:
    whole, other = whole_set(data), whole_set(OTHER[data])
    if config.train_size is not None and config.train_size < len(whole.y):
        whole = whole.subset(config.train_size, stream(config.seed, "subset", trial))
    tested = len(whole.test_y)
    x, rest = standardise(whole.x, torch.cat((whole.test_x, other.test_x)), pixels=True)
    return x, whole.y, rest[:tested], whole.test_y, rest[tested:], whole.image_shape


def _against_left_out(config: HeadsConfig, data: str, trial: int) -> _Parts:
    samples = samples_of(data, seed=config.seed, trial=trial, train_size=config.train_size)
    labels = draw_known(samples.y, stream(config.seed, "known classes", trial))
    y, test_y = labels[samples.y], labels[samples.test_y]
    known, test_known = y >= 0, test_y >= 0
    unknown = torch.cat((samples.x[~known], samples.test_x[~test_known]))
    test_x = samples.test_x[test_known]
    # What is left out must not have a say in what mean and spread are.
    pixels, tested = samples.image_shape is not None, len(test_x)
    x, rest = standardise(samples.x[known], torch.cat((test_x, unknown)), pixels)
    return x, y[known], rest[:tested], test_y[test_known], rest[tested:], samples.image_shape


def draw_known(y: Tensor, generator: torch.Generator) -> Tensor:
    """Draw which classes are known: the new number of each class, -1 where it is unknown.

    >>> labels = draw_known(torch.arange(10), torch.Generator().manual_seed(0))
    >>> int((labels < 0).sum()), labels[labels >= 0].tolist()
    (3, [0, 1, 2, 3, 4, 5, 6])
    """
    present = y.unique()
    count = known_of(len(present))
    drawn = present[torch.randperm(len(present), generator=generator)[:count]].sort().values
    labels = torch.full((int(present.max()) + 1,), -1)
    labels[drawn] = torch.arange(count)
    return labels


def shuffle(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return each sample with its values in a random order: nothing but their spread is left."""
    order = torch.rand(x.shape, generator=generator).argsort(1)
    return x.gather(1, order)


# --- The backbone -----------------------------------------------------------------------------

WIDTHS = (16, 32, 64)
FEATURES = 64
SMALLEST = 2
"""A convolution halves the sides of an image; none follows where one is this short."""


class Seen(NamedTuple):
    """A network's values for N samples: ``features`` [N, 64], a summary of ``layers`` [N, S]."""

    features: Tensor
    layers: Tensor


class Backbone(nn.Module):
    """Up to three strided convolutions with batch normalisation and ReLU, then 64 ELU features.

    Images of 28 x 28 become 14 x 14, 7 x 7 and 4 x 4 with 16, 32 and 64 channels (89,000
    parameters); those of 8 x 8 become 4 x 4 and 2 x 2. Samples that are no images go through
    linear layers of the widths 64 and 64 instead.

    The summary of the layers is the mean and the spread of each channel over the image, or the
    units themselves where there is no image, and the features before their ELU.

    >>> one = Backbone((28, 28), 784)
    >>> [part.shape[1] for part in one.look(torch.zeros(2, 784))]
    [64, 288]
    """

    def __init__(self, image_shape: tuple[int, ...] | None, inputs: int) -> None:
        super().__init__()
        self.shape: tuple[int, ...] | None = None
        parts: list[nn.Module] = []
        if image_shape is not None and len(image_shape) in (2, 3) and min(image_shape[-2:]) > 2:
            self.shape = image_shape if len(image_shape) == 3 else (1, *image_shape)
            channels, *sides = self.shape
            for width in WIDTHS:
                if min(sides) <= SMALLEST:
                    break
                layer = nn.Conv2d(channels, width, 3, stride=2, padding=1)
                parts.append(nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU()))
                channels, sides = width, [math.ceil(side / 2) for side in sides]
            inputs = channels * sides[0] * sides[1]
        else:
            for _ in range(2):
                layers = (nn.Linear(inputs, FEATURES), nn.BatchNorm1d(FEATURES), nn.ReLU())
                parts.append(nn.Sequential(*layers))
                inputs = FEATURES
        self.parts = nn.ModuleList(parts)
        self.last = nn.Linear(inputs, FEATURES)
        # Convolutions on the CPU are faster with channels last, and give the same numbers.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Return features [N, 64] of samples [N, D]."""
        return elu(self._through(x)[-1])

    def look(self, x: Tensor) -> Seen:
        """Return features and the summary of all layers."""
        *layers, last = self._through(x)
        if self.shape is not None:
            pooled = (torch.std_mean(layer, (2, 3), correction=0) for layer in layers)
            layers = [part for both in pooled for part in reversed(both)]
        return Seen(elu(last), torch.cat((*layers, last), 1))

    def _through(self, x: Tensor) -> list[Tensor]:
        """Return the output of every layer, the last one before its ELU."""
        if self.shape is not None:
            x = x.view(-1, *self.shape).contiguous(memory_format=torch.channels_last)
        layers = []
        for part in self.parts:
            x = part(x)
            layers.append(x)
        return [*layers, self.last(x.flatten(1))]


@torch.no_grad()
def look(backbone: Backbone, x: Tensor, at_once: int = 2_000) -> Seen:
    """Return what a trained network makes of many samples, a part of them at a time."""
    backbone.eval()
    parts = [backbone.look(some) for some in x.split(at_once)]
    return Seen(*(torch.cat(part) for part in zip(*parts, strict=True)))


# --- An RBF head as in DUQ (van Amersfoort et al. 2020) ---------------------------------------

LENGTH, MOMENTUM, PENALTY = 0.1, 0.999, 0.05
"""Width of the kernels, share of the centroids that is kept, weight of the penalty: as published
for Fashion-MNIST."""
PENALISED = 4
"""The penalty is taken over one sample of so many: it costs two more passes through the network."""


class KernelHead(nn.Module):
    """One RBF kernel per class, in a class-specific linear projection of the features.

    ``K_c = exp(−‖W_c f − e_c‖² / (2 n σ²))`` with f the features [N, D], W_c [n, D], n = D. The
    centroids e_c follow the class means with momentum: ``e_c = m_c / N_c`` where m_c and N_c are
    running sums and counts. Binary cross-entropy of each K_c, and ``(‖∇_x Σ_c K_c‖² − 1)²``, which
    keeps the network from being blind to changes of its input.
    """

    sums: Tensor
    counts: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features, features))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.register_buffer("counts", torch.full((classes,), 12.0))
        self.register_buffer("sums", torch.randn(classes, features) * 0.05 * 12.0)

    def images(self, features: Tensor) -> Tensor:
        """Return the features as each class sees them: [N, D] to [N, C, n]."""
        return torch.einsum("nd,cmd->ncm", features, self.weight)

    def log_kernels(self, features: Tensor) -> Tensor:
        """Return log K_c, at most 0: [N, D] to [N, C]."""
        away = self.images(features) - self.sums / self.counts[:, None]
        return -away.square().mean(-1) / (2 * LENGTH**2)

    def loss(self, features: Tensor, y: Tensor) -> Tensor:
        """Return the binary cross-entropy: a sample's kernel of its class near 1, others near 0."""
        kernels = self.log_kernels(features).exp()
        return binary_cross_entropy(kernels, one_hot(y, kernels.shape[1]).to(kernels.dtype))

    def slope_penalty(self, backbone: nn.Module, x: Tensor) -> Tensor:
        """Return how far slopes of the sum of kernels are from length 1, over some of x."""
        some = x[: -(-len(x) // PENALISED)].clone().requires_grad_()
        kernels = self.log_kernels(backbone(some)).exp()
        (slope,) = torch.autograd.grad(kernels.sum(), some, create_graph=True)
        return (slope.flatten(1).square().sum(1) - 1).square().mean()

    @torch.no_grad()
    def follow(self, features: Tensor, y: Tensor) -> None:
        """Move the centroids a little towards these samples."""
        wanted = one_hot(y, len(self.counts)).to(features.dtype)
        sums = torch.einsum("ncm,nc->cm", self.images(features), wanted)
        self.counts.mul_(MOMENTUM).add_((1 - MOMENTUM) * wanted.sum(0))
        self.sums.mul_(MOMENTUM).add_((1 - MOMENTUM) * sums)


# --- Training ---------------------------------------------------------------------------------

RATE, DECAY, WARM_UP = 3e-3, 5e-4, 0.2
MANY = 12_800
"""From so many samples on, batches have 128 of them, else 32, for enough steps in an epoch."""

Loss = Callable[[Tensor, Tensor], Tensor]
Head = TypeVar("Head", bound=nn.Module)


def begin(
    config: HeadsConfig, task: Task, trial: int, make: Callable[[], Head], member: int = 0
) -> tuple[Backbone, Head]:
    """Return a backbone and a head before training; the backbone is the same for every head."""
    seed = stream(config.seed, "start", trial, member).initial_seed()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(task.image_shape, task.x.shape[1]).to(task.x.device)
        return backbone, make().to(task.x.device)


def softmax_network(
    config: HeadsConfig, task: Task, trial: int, member: int = 0
) -> tuple[Backbone, nn.Linear, float]:
    """Train a network with a linear head; also the time it took."""
    backbone, head = begin(config, task, trial, lambda: nn.Linear(FEATURES, task.classes), member)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(head(backbone(x)), y)

    return backbone, head, train(config, task, trial, (backbone, head), loss, member)


def distance_network(
    config: HeadsConfig, task: Task, trial: int
) -> tuple[Backbone, DistanceHead, float]:
    """Train a network with a distance head, samples kept near their prototypes."""
    backbone, head = begin(
        config,
        task,
        trial,
        lambda: DistanceHead(FEATURES, task.classes, logits="squared", normalise="none"),
    )

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = head(backbone(x))
        # These logits are −d²/2, and log det Σ is 0: this is compactness_penalty(head, features, y)
        # without computing all distances once more.
        compactness = -logits.gather(1, y[:, None]).mean()
        return cross_entropy(logits, y) + config.compactness * compactness

    return backbone, head, train(config, task, trial, (backbone, head), loss)


def kernel_network(
    config: HeadsConfig, task: Task, trial: int
) -> tuple[Backbone, KernelHead, float]:
    """Train a network with an RBF head as in DUQ: its loss, then its centroids, batch by batch."""
    backbone, head = begin(config, task, trial, lambda: KernelHead(FEATURES, task.classes))

    seen = torch.empty(0)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        nonlocal seen
        features = backbone(x)
        seen = features.detach()
        return head.loss(features, y) + PENALTY * head.slope_penalty(backbone, x)

    def after(x: Tensor, y: Tensor) -> None:
        head.follow(seen, y)

    return backbone, head, train(config, task, trial, (backbone, head), loss, after=after)


def train(
    config: HeadsConfig,
    task: Task,
    trial: int,
    parts: tuple[nn.Module, nn.Module],
    loss: Loss,
    member: int = 0,
    after: Callable[[Tensor, Tensor], None] | None = None,
) -> float:
    """Train for all epochs with AdamW, one cycle of learning rates; gives the seconds it took.

    The seconds are those of this process on its core, whatever else the machine does.
    """
    size = 128 if len(task.y) >= MANY else 32
    size = min(size, len(task.y))
    batches = len(task.y) // size
    # Prototypes and centroids have no reason to shrink towards 0.
    decays = (DECAY, DECAY if isinstance(parts[1], nn.Linear) else 0.0)
    groups = [
        {"params": [p for p in part.parameters() if p.requires_grad], "weight_decay": decay}
        for part, decay in zip(parts, decays, strict=True)
    ]
    optimiser = torch.optim.AdamW(groups, lr=RATE)
    steps = config.epochs * batches
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, RATE, total_steps=steps + 1, pct_start=WARM_UP
    )
    order = stream(config.seed, "order", trial, member)
    began = time.process_time()
    for part in parts:
        part.train()
    for _ in range(config.epochs):
        for batch in torch.randperm(len(task.y), generator=order)[: batches * size].split(size):
            x, y = task.x[batch], task.y[batch]
            optimiser.zero_grad()
            loss(x, y).backward()
            optimiser.step()
            schedule.step()
            if after is not None:
                after(x, y)
    for part in parts:
        part.eval()
    return time.process_time() - began


# --- Detectors on the features of a network ---------------------------------------------------

NEIGHBOURS, BANK = 50, 10_000
"""Which neighbour's distance counts, and how many training samples are kept to look among."""

Scorer = Callable[[Tensor], Tensor]
"""Gives features [N, D] a score [N] each, high where a sample is like nothing known."""


def neighbours(features: Tensor, seed: int, trial: int) -> Scorer:
    """Return the distance to the 50th nearest training sample, at length 1 (Sun et al. 2022).

    With fewer than 1,000 training samples it is the neighbour that 5 % of them are nearer than.
    """
    from sklearn.neighbors import NearestNeighbors

    if len(features) > BANK:
        chosen = torch.randperm(len(features), generator=stream(seed, "bank", trial))[:BANK]
        features = features[chosen]
    count = max(1, min(NEIGHBOURS, len(features) // 20))
    near = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(_unit(features).cpu().numpy())

    def score(x: Tensor) -> Tensor:
        distances, _ = near.kneighbors(_unit(x).cpu().numpy())
        return torch.from_numpy(distances[:, -1].copy())

    return score


def class_distance(features: Tensor, y: Tensor, *, relative: bool) -> Scorer:
    """Return the squared Mahalanobis distance to the nearest class mean, within classes.

    Lee et al. 2018; ``relative`` takes off that to the mean of all in the covariance of all, as
    Ren et al. 2021 do.
    """
    from sklearn.covariance import EmpiricalCovariance

    x, y = features.double().cpu(), y.cpu()
    means = torch.stack([x[y == label].mean(0) for label in range(int(y.max()) + 1)])
    within = EmpiricalCovariance(assume_centered=True).fit((x - means[y]).numpy())
    around = EmpiricalCovariance().fit(x.numpy())

    def score(x_new: Tensor) -> Tensor:
        z = x_new.double().cpu()
        distances = [torch.from_numpy(within.mahalanobis((z - mean).numpy())) for mean in means]
        nearest = torch.stack(distances).amin(0)
        if relative:
            nearest = nearest - torch.from_numpy(around.mahalanobis(z.numpy()))
        return nearest

    return score


def _unit(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=-1)


# --- Scores -----------------------------------------------------------------------------------

BINS = 15


def negative_log_likelihood(logits: Tensor, y: Tensor) -> float:
    """Return the mean of −log p(y) with p the softmax of the logits [N, C]."""
    return float(torch.nn.functional.cross_entropy(logits.double(), y))


def calibration_error(logits: Tensor, y: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: how far the probability of the chosen class is from its accuracy.

    ``Σ_b (n_b / N) |accuracy_b − mean probability_b|`` over bins of equal width of the largest
    probability (Guo et al. 2017).

    >>> z = torch.tensor([[0.0, 0.0]] * 4)  # half sure, and right in three of four
    >>> calibration_error(z, torch.tensor([0, 0, 0, 1]))
    0.25
    """
    sure, chosen = logits.double().softmax(-1).max(-1)
    place = (sure * bins).long().clamp(max=bins - 1)
    gap = (chosen == y).double() - sure
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, gap)
    return float(sums.abs().sum() / len(y))


def temperature_of(logits: Tensor, y: Tensor) -> float:
    """Return the best temperature for these labels; NaN if there is none, as if all are right."""
    try:
        return best_temperature(logits, y)
    except InputError:
        return math.nan


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Probability that an unknown sample has a higher score than a known one, ties half.

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    which = torch.cat((torch.zeros(len(known)), torch.ones(len(unknown))))
    return float(roc_auc_score(which.numpy(), torch.cat((known, unknown)).double().numpy()))


def rejected_shares(held: Tensor, rate: float, *parts: Tensor) -> list[float]:
    """Share of each part that is beyond the threshold of held-out scores, in per cent."""
    limit = reject_threshold(held, rate)
    return [_per_cent(scores > limit) for scores in parts]


# --- Measuring --------------------------------------------------------------------------------

PARTS = ("held", "test", "unknown", "shuffled")
FITTED_TO = 20_000
"""So many training samples are enough for an ellipsoid of some hundred dimensions."""
RIDGE = 1e-3


@dataclass(frozen=True)
class Answers:
    """A model's outputs for the samples of a task.

    ``logits`` of held-out and of test samples, ``scores`` of all parts, high where a sample is
    like nothing known; ``rejected``: in per cent, of the test and of the unknown samples.
    """

    logits: Mapping[str, Tensor]
    scores: Mapping[str, Tensor]
    rejected: tuple[float, float] | None = None

    @property
    def finite(self) -> bool:
        """Whether all of them are numbers."""
        values_of = (*self.logits.values(), *self.scores.values())
        return all(bool(values.isfinite().all()) for values in values_of)


def measure_network(config: HeadsConfig, job: Job, context: Context) -> dict[str, Measures]:
    """Train the network that a job is about, in each of its trials, and measure its readers."""
    pieces: dict[str, list[Measures]] = {}
    for trial in job.trials:
        context.look()
        for model, measured in _of_trial(config, job, trial).items():
            pieces.setdefault(model, []).append(measured)
    return {model: join(measured) for model, measured in pieces.items()}


def _of_trial(config: HeadsConfig, job: Job, trial: int) -> dict[str, Measures]:
    began = time.perf_counter()
    task = task_of(config, job.variant, trial)
    answers, seconds, weights = _NETWORKS[job.work](config, task, trial)
    wanted = [model for model in READERS[job.work] if model in config.models]
    shared = (time.perf_counter() - began) / max(1, len(wanted))
    measures = {}
    for model in wanted:
        numbers = numbers_of(answers.get(model), task, config.reject_rate)
        numbers["seconds"] = seconds * (MEMBERS if model == ENSEMBLE else 1)
        metrics = {
            name: torch.tensor([number], dtype=torch.float64) for name, number in numbers.items()
        }
        kept = weights if model == job.work else {}
        measures[model] = Measures(metrics, shared, weights=kept)
    return measures


def numbers_of(answers: Answers | None, task: Task, rate: float) -> dict[str, float]:
    """Return all numbers of one model in one trial; NaN where training has lost its way."""
    if answers is None or not answers.finite:
        return dict.fromkeys((name for name in METRICS if name != "seconds"), math.nan)
    held, test = answers.logits["held"], answers.logits["test"]
    temperature = temperature_of(held, task.held_y)
    known, unknown = answers.scores["test"], answers.scores["unknown"]
    rejected = answers.rejected or rejected_shares(answers.scores["held"], rate, known, unknown)
    numbers = {
        "test_accuracy": _per_cent(test.argmax(-1) == task.test_y),
        "auroc": auroc(known, unknown),
        "auroc_shuffled": auroc(known, answers.scores["shuffled"]),
        "missed_at_95": 100 * fpr_at(known, unknown, 0.95),
        "rejected_known": rejected[0],
        "rejected_unknown": rejected[1],
    }
    # Without a temperature there are no calibrated errors, rather than those of a made-up one.
    calibrated = test / temperature if math.isfinite(temperature) else None
    for ending, logits in (("", test), ("_calibrated", calibrated)):
        for name, error in (("ece", calibration_error), ("nll", negative_log_likelihood)):
            value = math.nan if logits is None else error(logits, task.test_y)
            numbers[f"{name}{ending}"] = value
    return numbers


Outcome = tuple[dict[str, Answers | None], float, dict[str, Tensor]]
"""The answers of each model, None where it has none; the time of training; the weights."""


def _see(backbone: Backbone, task: Task) -> dict[str, Seen]:
    """Return what a network makes of all parts of a task, and of samples to fit heads to."""
    parts = {"fit": task.x[: to_fit(task.y)], "held": task.held_x, "test": task.test_x}
    parts |= {"unknown": task.unknown, "shuffled": task.shuffled}
    return {name: look(backbone, x) for name, x in parts.items()}


def to_fit(y: Tensor) -> int:
    """Return how many training samples to fit to: the first, or all if a class is rare there."""
    first = y[:FITTED_TO]
    shares = torch.bincount(first, minlength=int(y.max()) + 1) / torch.bincount(y)
    return len(first) if float(shares.min()) > 0.5 * len(first) / len(y) else len(y)


def _softmax(config: HeadsConfig, task: Task, trial: int) -> Outcome:
    backbone, linear, seconds = softmax_network(config, task, trial)
    seen = {name: one.features for name, one in _see(backbone, task).items()}
    if not all(bool(features.isfinite().all()) for features in seen.values()):
        return {}, seconds, _weights(backbone, linear)
    with torch.no_grad():
        logits = {name: linear(seen[name]) for name in PARTS}
    answers: dict[str, Answers | None] = {}
    answers["softmax"] = Answers(logits, {k: -z.softmax(-1).amax(-1) for k, z in logits.items()})
    answers["energy"] = Answers(logits, {k: -z.logsumexp(-1) for k, z in logits.items()})
    y = task.y[: len(seen["fit"])]
    for model, scorer in (
        ("knn", neighbours(seen["fit"], config.seed, trial)),
        ("mahalanobis", class_distance(seen["fit"], y, relative=False)),
        ("relative-mahalanobis", class_distance(seen["fit"], y, relative=True)),
    ):
        if model in config.models:
            answers[model] = Answers(logits, {name: scorer(seen[name]) for name in PARTS})
    if "fitted" in config.models:
        answers["fitted"] = answers_of(None, y, seen, config)
    if ENSEMBLE in config.models:
        answers[ENSEMBLE] = _ensemble(config, task, trial, logits)
    return answers, seconds, _weights(backbone, linear)


def _ensemble(config: HeadsConfig, task: Task, trial: int, first: Mapping[str, Tensor]) -> Answers:
    """Return the mean probabilities of the trial's network and four more."""
    total = {name: logits.double().softmax(-1) for name, logits in first.items()}
    for member in range(1, MEMBERS):
        backbone, linear, _ = softmax_network(config, task, trial, member)
        seen = _see(backbone, task)
        with torch.no_grad():
            for name in PARTS:
                total[name] += linear(seen[name].features).double().softmax(-1)
    means = {name: sums / MEMBERS for name, sums in total.items()}
    tiny = torch.finfo(torch.float64).tiny
    logs = {name: mean.clamp(min=tiny).log() for name, mean in means.items()}
    return Answers(logs, {name: -(means[name] * logs[name]).sum(-1) for name in PARTS})


def _distance(config: HeadsConfig, task: Task, trial: int) -> Outcome:
    backbone, head, seconds = distance_network(config, task, trial)
    seen = _see(backbone, task)
    last = {name: one.features for name, one in seen.items()}
    y = task.y[: len(last["fit"])]
    answers = {"distance": answers_of(head, y, last, config)}
    if "refitted" in config.models:
        answers["refitted"] = answers_of(None, y, last, config)
    if "layered" in config.models:
        # One head says which class, the other, which sees all layers, whether it is any of them.
        every = {name: one.layers for name, one in seen.items()}
        which, watch = answers["distance"], answers_of(None, y, every, config)
        answers["layered"] = which and watch and replace(watch, logits=which.logits)
    return answers, seconds, _weights(backbone, head)


def fitted_head(features: Tensor, y: Tensor) -> DistanceHead:
    """Return a head with one ellipsoid for all classes, in closed form from features [N, D]."""
    width = features.shape[1]
    kind: dict[str, Any] = {"metric": "shared", "rank": width, "logits": "squared"}
    head = DistanceHead(width, int(y.max()) + 1, normalise="none", **kind)
    return head.fit_prototypes(features, y, ridge=RIDGE)


@torch.no_grad()
def answers_of(
    head: DistanceHead | None, y: Tensor, seen: Mapping[str, Tensor], config: HeadsConfig
) -> Answers | None:
    """Return the answers of a distance head, its threshold set as a user would.

    Without a head, those of one that is fitted to the features with labels y. None where there
    is nothing to fit it to: features that are no numbers, or the same for all.
    """
    try:
        head = head or fitted_head(seen["fit"], y)
        head.set_reject(seen["held"], config.reject_rate)
        assessed = {name: head.assess(seen[name]) for name in PARTS}
    except InputError:
        return None
    return Answers(
        logits={name: head(seen[name]) for name in ("held", "test")},
        scores={name: one.score for name, one in assessed.items()},
        rejected=(_per_cent(assessed["test"].rejected), _per_cent(assessed["unknown"].rejected)),
    )


def _duq(config: HeadsConfig, task: Task, trial: int) -> Outcome:
    backbone, head, seconds = kernel_network(config, task, trial)
    seen = _see(backbone, task)
    with torch.no_grad():
        logs = {name: head.log_kernels(seen[name].features) for name in PARTS}
    # Among so many samples, exp would round the smallest kernels to one and the same 0.
    far = {name: -kernel.amax(-1) for name, kernel in logs.items()}
    return {"duq": Answers(logs, far)}, seconds, {}


def _weights(backbone: torch.nn.Module, head: torch.nn.Module) -> dict[str, Tensor]:
    """Return both as they are in a state_dict, with an axis for the trial before the others."""
    both = {"backbone": backbone.state_dict(), "head": head.state_dict()}
    return {
        f"{part}.{name}": tensor.detach().clone()[None]
        for part, state in both.items()
        for name, tensor in state.items()
    }


def _per_cent(which: Tensor) -> float:
    return 100 * which.double().mean().item()


_NETWORKS = {SOFTMAX: _softmax, DISTANCE: _distance, DUQ: _duq}
