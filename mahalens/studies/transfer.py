"""The transfer study: OffsetL2 heads beside linear ones on tables and sequences.

*Next checks of Neural Networks Learn Distance Metrics* asks whether OffsetL2 carries over from
images to other data. Every network chooses its learning rate and its epochs on held-out training
samples. A name is a backbone and a head. Backbones are a hidden layer with ReLU, Abs or no
activation, or ``kernels``: random convolutions, for sequences only. Heads are ``linear``, with a
bias; ``l2``, the distances of OffsetL2 as they are, so that the furthest class wins; ``l2-neg``,
minus the distances, so that the nearest class wins; both also by the formula of the published code,
``-code``. Boosted trees and nearest neighbours are yardsticks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from mahalens import data, nn, train
from mahalens.data.named import GROUP, SEQUENCES, TABLES
from mahalens.errors import InputError
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Claim, Difference, Every
from mahalens.studies.plots import Differences, Dots
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Option, Results, Study

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from mahalens.studies.run import Context
    from mahalens.studies.samples import Samples

# --- Models -----------------------------------------------------------------------------------

BACKBONES = {
    "relu": "a hidden layer with ReLU",
    "abs": "a hidden layer with Abs",
    "none": "a hidden layer without activation",
    "kernels": "random convolution kernels, for sequences",
}
HEADS = {
    "linear": "a linear head",
    "l2": "OffsetL2, the furthest class wins",
    "l2-neg": "OffsetL2 negated, the nearest class wins",
    "l2-code": "OffsetL2 by the published code",
    "l2-neg-code": "OffsetL2 by the published code, negated",
}
YARDSTICKS = {
    "boosting": Model("Boosting", "gradient-boosted trees (scikit-learn)", "#E69F00", "s"),
    "knn": Model("Nearest neighbours", "k nearest neighbours (scikit-learn)", "#56B4E9", "s"),
    "dtw": Model("Time warping", "nearest neighbour by dynamic time warping", "#000000", "s"),
}
_PLAIN = ("linear", "l2", "l2-neg")
NETWORKS = (
    *(f"{backbone}-{head}" for backbone in ("relu", "abs", "none") for head in HEADS),
    *(f"kernels-{head}" for head in _PLAIN),
)
_COLOURS = {"relu": "#0072B2", "abs": "#D55E00", "none": "#CC79A7", "kernels": "#009E73"}
_MARKERS = {"l2": "^", "l2-neg": "v", "l2-code": "<", "l2-neg-code": ">"}  # large is far


def split(model: str) -> tuple[str, str]:
    """Return the backbone and the head of a network.

    >>> split("relu-l2-neg")
    ('relu', 'l2-neg')
    """
    backbone, _, head = model.partition("-")
    return backbone, head


def _network(model: str) -> Model:
    backbone, head = split(model)
    words = ("ReLU" if word == "relu" else word.capitalize() for word in model.split("-"))
    text = f"{BACKBONES[backbone]}, {HEADS[head]}"
    return Model("-".join(words), text, _COLOURS[backbone], _MARKERS.get(head, "o"))


MODELS = {**{model: _network(model) for model in NETWORKS}, **YARDSTICKS}
DEFAULT = tuple(name for name in MODELS if "code" not in name and name != "none-l2")
"""Without the published code's formula, and what the others tell already."""
SEQUENCES_ONLY = (*(f"kernels-{head}" for head in _PLAIN), "dtw")
"""These need an order in time."""


def chain_of(model: str, inputs: int, classes: int, hidden: int) -> nn.Chain:
    """Return the network of a model, on its inputs, or on what its kernels make of them.

    >>> print(chain_of("abs-l2-neg-code", 13, 3, 128))
    Linear(128), Abs, OffsetL2(3, variant=published-code), Neg
    >>> print(chain_of("kernels-linear", 512, 3, 128))
    Linear(3)
    """
    backbone, head = split(model)
    activation = {"relu": "ReLU", "abs": "Abs"}.get(backbone, "")
    layers = [] if backbone == "kernels" else [f"Linear({hidden})", activation]
    if head == "linear":
        layers.append(f"Linear({classes})")
    else:
        variant = ", variant=published-code" if "code" in head else ""
        layers.append(f"OffsetL2({classes}{variant})")
        layers += ["Neg"] if "neg" in head else []
    return nn.Chain.parse(", ".join(layer for layer in layers if layer), inputs=inputs)


# --- Options ----------------------------------------------------------------------------------

TABLE_SETS = (*TABLES, "digits")
SMALL_SEQUENCES = ("gunpoint", "italy-power-demand", "arrow-head")
"""With these a run takes minutes; the others have more inputs and are left to the full protocol."""
FULL_DATA = (*TABLE_SETS, *SEQUENCES)
GROUPS = {"tables": TABLE_SETS, GROUP: tuple(SEQUENCES)}
"""What ``--data`` takes for several sets at once."""
NAMED = 5
"""As many missing ones are named, more are counted."""


class TransferConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``rates`` are the learning rates that every head may choose from, ``kernels`` how many random
    convolutions there are; ``without`` says what was left out as it is not on this machine.
    """

    data: Annotated[
        tuple[str, ...],
        Option(
            f"Data sets or files; tables and {GROUP} are groups.",
            (*TABLE_SETS, *SMALL_SEQUENCES),
            shown="tables, and three sets of sequences if they are here",
            metavar="NAME|FILE,...",
        ),
    ]
    models: Annotated[tuple[str, ...], study.models_option(MODELS, usual=DEFAULT)]
    trials: Annotated[int, study.count_option("Trials of each model.", 10, full=30)]
    epochs: Annotated[int, study.count_option("Most epochs of training.", 300)]
    train_size: Annotated[int | None, study.train_size_option()]
    hidden: Annotated[int, Option("", 128, least=1, flag=False)] = 128
    rates: Annotated[
        tuple[float, ...],
        Option("", (0.001, 0.004, 0.016), least=1e-300, most=10, flag=False),
    ] = (0.001, 0.004, 0.016)
    kernels: Annotated[int, Option("", 256, least=1, flag=False)] = 256
    without: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rates:
            raise InputError("no learning rates; give some above 0")
        if set(self.models) <= set(SEQUENCES_ONLY) and not any(map(is_sequence, self.data)):
            raise InputError(
                f"--models {','.join(self.models)}: these are for sequences, and --data has none; "
                f"give one of {', '.join(SEQUENCES)}"
            )

    @classmethod
    def with_defaults(cls, *, published: bool = False, **values: Any) -> Self:
        """Fill in the options that are not given; sequences are left out if they are not here.

        >>> config = TransferConfig.with_defaults(data=["tables"], trials=3)
        >>> config.data, config.trials, config.epochs
        (('iris', 'wine', 'breast-cancer', 'digits'), 3, 300)
        """
        names = values.get("data")
        if names is None and published:
            names = FULL_DATA
        elif names is None:
            here = study.are_here(*SMALL_SEQUENCES)
            names = (*TABLE_SETS, *(SMALL_SEQUENCES if here else ()))
            missing = "sequences are not on this machine; get them with: mahalens data fetch"
            values["without"] = None if here else f"{missing} {GROUP}"
        values["data"] = tuple(name for group in names for name in GROUPS.get(group, (group,)))
        return super().with_defaults(published=published, **values)

    def deviations(self) -> list[str]:
        """Return what differs from the full protocol, one sentence each; long lists as counts."""
        deviations = []
        every = (("data sets", self.data, FULL_DATA), ("models", self.models, tuple(MODELS)))
        for what, have, full in every:
            missing = [name for name in full if name not in have]
            if missing:
                named = f" (without {', '.join(missing)})" if len(missing) <= NAMED else ""
                deviations.append(f"{len(full) - len(missing)} of {len(full)} {what}{named}")
            if added := [name for name in have if name not in full]:
                deviations.append(f"{what} besides: {', '.join(added)}")
        rest = [text for name, text in self._deviations().items() if name != "models"]
        without = [self.without] if self.without else []
        return [*deviations, *without, *rest, *self.shortened]


def is_sequence(name: str) -> bool:
    """Return whether a set is made of sequences: by its name, or by that of the user's file.

    >>> is_sequence("gunpoint"), is_sequence("mine/X_TRAIN.ts"), is_sequence("wine")
    (True, True, False)
    """
    return name in SEQUENCES or name.lower().endswith(".ts")


def models_on(config: TransferConfig, name: str) -> tuple[str, ...]:
    """Return those of the models that a set is for."""
    return tuple(m for m in config.models if is_sequence(name) or m not in SEQUENCES_ONLY)


# --- Metrics ----------------------------------------------------------------------------------

METRICS: dict[str, Metric] = {
    "test_accuracy": study.NETWORK_METRICS["test_accuracy"],
    "balanced_accuracy": Metric(
        "Balanced accuracy", "The same averaged over classes, rare or common.", "%", "high"
    ),
    "log_loss": Metric(
        "Test log loss",
        "Mean of minus the logarithm of the probability of the right class; neighbours give none.",
        "nats",
        log=True,
    ),
    "train_accuracy": Metric(
        "Training accuracy", "Share of training samples classified rightly.", "%", None
    ),
    "chosen_rate": Metric(
        "Learning rate", "Chosen on held-out parts of the training samples.", "", None, log=True
    ),
    "chosen_epochs": Metric("Epochs", "At which training ended, chosen in the same way.", "", None),
    "at_limit": Metric(
        "At the limit", "1 if training went on to the last epoch allowed, else 0.", "", None
    ),
    "neighbours": Metric("Neighbours", "How many vote; chosen in the same way.", "", None),
}

# --- Claims -----------------------------------------------------------------------------------

ACCURACY = "test_accuracy"
CHECKS = "next-checks"
KEEPS_UP = -2.0
"""Points that a head may lie below another and still keep up with it."""
COLLAPSE = -20.0
"""Points below its linear twin from which on a network counts as collapsed."""
_named = study.name_of


def _above(model: str, than: str, points: float) -> Difference:
    return Difference(ACCURACY, model, than, "above", points)


def _keeps_up(model: str, than: str, source: str, on: tuple[str, ...] = ()) -> Claim:
    statement = f"{MODELS[model].label} loses less than 2 points against {MODELS[than].label}."
    key = f"{model}-keeps-up-with-{than}"
    return Claim(key, statement, _above(model, than, KEEPS_UP), source, on=on)


def _over(kind: str, where: str, sets: Sequence[str]) -> tuple[Claim, ...]:
    """Return the claims about all sets of a kind together."""
    on = f"on {where}, ReLU with minus its distances"
    loses = f"OffsetL2 carries over: {on} loses less than 2 points against a linear head."
    better = f"OffsetL2 is better, as on MNIST: {on} beats a linear head."
    worth = f"Networks with OffsetL2 are worth their training: {on} beats nearest neighbours."

    def beats(than: str, points: float) -> Every:
        return claims.every(
            _above(_named("relu-l2-neg", one), _named(than, one), points) for one in sets
        )

    rows: claims.Rows = {
        f"keeps-up-{kind}": (loses, beats("relu-linear", KEEPS_UP)),
        f"better-{kind}": (better, beats("relu-linear", 0.0)),
    }
    ours: claims.Rows = {f"knn-{kind}": (worth, beats("knn", 0.0))}
    both = ((CHECKS, rows), (claims.OURS, ours)) if sets else ()
    return tuple(c for source, part in both for c in claims.from_rows(source, part, each=False))


def _no_collapse(config: TransferConfig) -> tuple[Claim, ...]:
    """Return that no network with OffsetL2 falls far behind its linear twin, on any set."""
    falls = tuple(
        _above(_named(model, variant), _named(f"{split(model)[0]}-linear", variant), COLLAPSE)
        for name in config.data
        for model in models_on(config, name)
        for variant in [study.variant_name(name)]
        if model not in YARDSTICKS and split(model)[1] != "linear"
    )
    statement = (
        "No OffsetL2 head collapses: on every set each stays less than 20 points below the linear "
        "head on the same backbone."
    )
    return (Claim("no-collapse", statement, Every(falls), CHECKS, each=False),) if falls else ()


def claims_of(config: TransferConfig) -> tuple[Claim, ...]:
    """Return what a run is to decide: set by set, and over all sets of a kind."""
    tables = [study.variant_name(name) for name in config.data if not is_sequence(name)]
    sequences = tuple(study.variant_name(name) for name in config.data if is_sequence(name))
    in_time = (
        _keeps_up("kernels-l2-neg", "kernels-linear", CHECKS, sequences),
        _keeps_up("kernels-l2-neg", "dtw", claims.OURS, sequences),
    )
    beats = "With ReLU, the distances of OffsetL2, negated, beat a linear head."
    nearest = "With ReLU, OffsetL2 is better where the nearest class wins than the furthest."
    return (
        _keeps_up("relu-l2-neg", "relu-linear", CHECKS),
        _keeps_up("abs-l2-neg", "abs-linear", CHECKS),
        Claim("l2-neg-beats-linear", beats, _above("relu-l2-neg", "relu-linear", 0.0), CHECKS),
        Claim("nearest-beats-furthest", nearest, _above("relu-l2-neg", "relu-l2", 0.0)),
        _keeps_up("relu-l2-neg", "boosting", claims.OURS),
        *(in_time if sequences else ()),
        *_over("tables", "every table", tables),
        *_over("sequences", "every set of sequences", sequences),
        *_no_collapse(config),
    )


PAIRS = (
    *(
        pair
        for b in BACKBONES
        for pair in (
            (f"{b}-l2", f"{b}-linear"),
            (f"{b}-l2-neg", f"{b}-linear"),
            (f"{b}-l2-neg", f"{b}-l2"),
            (f"{b}-l2-code", f"{b}-l2"),
            (f"{b}-l2-neg-code", f"{b}-l2-neg"),
        )
    ),
    ("relu-l2-neg", "boosting"),
    ("relu-l2-neg", "knn"),
    ("relu-linear", "boosting"),
    ("kernels-l2-neg", "dtw"),
)
"""Heads on one backbone, and some beside yardsticks."""

# --- Samples ----------------------------------------------------------------------------------

FOLDS = 4
"""Parts of the training samples; held out in turn, or only the first where there are many."""
MANY = 200
"""Training samples from which on one part held out tells enough."""


class Fold(NamedTuple):
    """Training samples that are trained with, and those that are held out, as indices."""

    fit: Tensor
    held: Tensor


@study.remember(8)
def series_shape(name: str) -> tuple[int, int] | None:
    """Return channels and steps of a set of sequences; ``None`` for any other set."""
    if not is_sequence(name):
        return None
    series, _ = data.load_series(name)
    return int(series.x.shape[1]), int(series.x.shape[2])


def trial_samples(config: TransferConfig, name: str, trial: int) -> Samples:
    """Return the samples of one trial, standardised by its training samples.

    Tables, digits and sequences by name are split anew by every trial, with as many training
    samples of each class as their own split has. Features of a table are standardised one by one,
    the pixels of images all as one, and sequences channel by channel, over all steps.
    """
    from mahalens.studies.samples import Samples, standardise, whole_set

    whole = whole_set(name)
    x, y, test_x, test_y = whole.x, whole.y, whole.test_x, whole.test_y
    if is_resampled(name):
        taken = _drawn(y, test_y, data.stream(config.seed, "split", trial))
        every, labels = torch.cat((x, test_x)), torch.cat((y, test_y))
        x, y, test_x, test_y = every[taken], labels[taken], every[~taken], labels[~taken]
    if config.train_size is not None and config.train_size < len(y):
        kept = _subset(y, config.train_size, data.stream(config.seed, "subset", trial))
        x, y = x[kept], y[kept]
    shape = series_shape(name)
    if shape is None:
        x, test_x = standardise(x, test_x, whole.image_shape is not None)
    else:
        x, test_x = by_channel(x, test_x, shape)
    return Samples(whole.name, x, y, test_x, test_y, whole.classes, shape or whole.image_shape)


def is_resampled(name: str) -> bool:
    """Return whether every trial splits a set anew: those by name that are too small for one."""
    return name in TABLES or name == "digits" or (is_sequence(name) and not name.endswith(".ts"))


def by_channel(x: Tensor, other: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return flattened series with mean 0 and spread 1 in each channel, by x ``[N, C L]``."""

    def steps(flat: Tensor) -> Tensor:
        return flat.reshape(-1, *shape).transpose(1, 2).reshape(-1, shape[0])  # [N L, C]

    def back(columns: Tensor, like: Tensor) -> Tensor:
        return columns.reshape(len(like), shape[1], shape[0]).transpose(1, 2).flatten(1)

    from mahalens.studies.samples import standardise

    one, two = standardise(steps(x), steps(other))
    return back(one, x), back(two, other)


def folds_of(y: Tensor, generator: Generator) -> list[Fold]:
    """Return equal parts of the training samples to hold out in turn, each class spread over them.

    >>> import torch
    >>> [fold.held.tolist() for fold in folds_of(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
    ...     torch.Generator().manual_seed(0))]
    [[0, 4], [3, 7], [2, 5], [1, 6]]
    """
    order, size = _by_class(y, generator), len(y) // FOLDS
    if not size:
        raise InputError(f"{len(y)} training samples; give at least {FOLDS}")
    folds = []
    for first in range(FOLDS if len(y) < MANY else 1):
        held = order[first::FOLDS][:size]
        kept = torch.ones(len(y), dtype=torch.bool)
        kept[held] = False
        folds.append(Fold(kept.nonzero().squeeze(1), held))
    return folds


def _drawn(y: Tensor, test_y: Tensor, generator: Generator) -> Tensor:
    """Return which of all samples ``[N + M]`` to train with: of each class as many as in ``y``."""
    labels = torch.cat((y, test_y))
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label in y.unique().tolist():
        members = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=generator)
        taken[members[order[: int((y == label).sum())]]] = True
    return taken


def _by_class(y: Tensor, generator: Generator) -> Tensor:
    """Return a random order of samples in which classes come one after another."""
    order = torch.randperm(len(y), generator=generator)
    return order[y[order].argsort(stable=True)]


def _subset(y: Tensor, size: int, generator: Generator) -> Tensor:
    """Return which of the samples to keep: evenly over an order by class, so that shares stay."""
    places = (torch.arange(size) * len(y)) // size
    return _by_class(y, generator)[places].sort().values


# --- Measure ----------------------------------------------------------------------------------

AT_ONCE = 5
"""Trials of a job: enough to share what samples cost, few enough to lose little when stopped."""
OFTEN = 0.5
"""Share of trials at the last epoch from which on a network was not done."""


def check(config: TransferConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data sets; refuse one with too few samples to hold some out."""
    from mahalens.studies.samples import check_sets, option_of

    facts = check_sets(config.data, config.train_size)
    for name in config.data:
        about = facts[study.variant_name(name)]
        if about["training_samples"] < FOLDS:
            raise InputError(
                f"{option_of(name, config.train_size)}: {about['training_samples']} training "
                f"samples; give at least {FOLDS}, some to be held out"
            )
        shape = series_shape(name)
        if shape is not None:
            about |= {"channels": shape[0], "steps": shape[1]}
        if is_resampled(name):
            about["source"] += ", split anew by every trial"
    return {"data": facts, "epochs": config.epochs}


def jobs(config: TransferConfig) -> list[Job]:
    """Cut the work: a few trials of one model on one set, without models a set is not for."""
    every = study.jobs_of(config.data, config.models, config.trials, AT_ONCE)
    return [job for job in every if job.work in models_on(config, job.variant)]


def measure(config: TransferConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train or fit the trials of a job and test them."""
    began = time.perf_counter()
    samples = [trial_samples(config, job.variant, trial) for trial in job.trials]
    if job.work in YARDSTICKS:
        judge = _JUDGES[job.work]
        judged = [
            judge(config, trial_set, t) for trial_set, t in zip(samples, job.trials, strict=True)
        ]
        metrics = _yardstick_metrics(judged, samples)
        return {job.work: Measures(metrics=metrics, seconds=time.perf_counter() - began)}
    if split(job.work)[0] == "kernels":
        both = zip(samples, job.trials, strict=True)
        samples = [_through_kernels(config, trial_set, trial) for trial_set, trial in both]
    samples = [trial_set.to(config.device) for trial_set in samples]
    first = samples[0]
    chain = chain_of(job.work, first.inputs, first.classes, config.hidden)
    trained = _train(config, chain, job.trials, samples, context)
    test_y = torch.stack([trial_set.test_y for trial_set in samples])
    ends = trained.epochs[trained.chosen]
    metrics = {
        "test_accuracy": _accuracy(trained.outputs, test_y),
        "balanced_accuracy": _balanced(trained.outputs.argmax(-1), test_y),
        "log_loss": _log_loss(trained.outputs, test_y).double(),
        "train_accuracy": trained.train_accuracy.double(),
        "chosen_rate": trained.rates.double(),
        "chosen_epochs": ends.double(),
        "at_limit": (ends == config.epochs).double(),
    }
    # A trial that ran away has no reading.
    lost = ~trained.outputs.isfinite().flatten(1).all(1).cpu()
    measures = Measures(
        metrics={
            name: torch.where(lost, math.nan, values.cpu()) for name, values in metrics.items()
        },
        seconds=time.perf_counter() - began,
        curves={"test_accuracy": (trained.epochs, trained.curve.double())},
        weights=trained.weights,
    )
    return {job.work: measures}


def _balanced(predicted: Tensor, y: Tensor) -> Tensor:
    """Return the accuracy of each class, averaged over those that occur ``[T]``, in percent."""
    accuracies = []
    for classes, truth in zip(predicted, y, strict=True):
        there = truth.unique().tolist()
        right = [(classes[truth == label] == label).double().mean() for label in there]
        accuracies.append(100 * torch.stack(right).mean())
    return torch.stack(accuracies)


# --- Training ---------------------------------------------------------------------------------

SHARES = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0)
"""Of the epochs at which training may end."""


class _Trained(NamedTuple):
    """Networks of T trials at E epochs: ``chosen`` is at which of them each trial ends ``[T]``.

    ``outputs`` are those of the test samples at the end ``[T, M, C]``, ``curve`` is the test
    accuracy by epoch ``[T, E]`` in percent, ``weights`` are those at the end, trials first.
    """

    epochs: Tensor
    rates: Tensor
    chosen: Tensor
    outputs: Tensor
    train_accuracy: Tensor
    curve: Tensor
    weights: dict[str, Tensor]


def _train(
    config: TransferConfig,
    chain: nn.Chain,
    trials: Sequence[int],
    samples: Sequence[Samples],
    context: Context,
) -> _Trained:
    """Choose learning rate and epochs of each trial on held-out parts, then train on all samples.

    What is chosen has the lowest mean log loss on the parts held out; a run that turned non-finite
    is never chosen. Networks learn by Adam on the full batch, all trials at once.
    """
    from mahalens.studies.networks import start_of

    rates, places = _choose(config, chain, trials, samples, context)
    marks = milestones(config.epochs)
    x, y = torch.stack([s.x for s in samples]), torch.stack([s.y for s in samples])
    test_x = torch.stack([s.test_x for s in samples])
    test_y = torch.stack([s.test_y for s in samples])
    start = start_of(chain, config.seed, trials, config.device)
    outputs = x.new_full((*test_x.shape[:2], samples[0].classes), math.nan)
    known = x.new_full((len(trials),), math.nan, dtype=torch.float64)
    values = start.values.clone()
    ends = torch.tensor(marks)[places]

    def look(running: Any) -> dict[str, Tensor]:
        seen = running.stack(test_x)
        due = ends == running.epoch
        if due.any():
            outputs[due] = seen[due]
            known[due] = _accuracy(running.stack(x), y)[due]
            values[due] = running.stack.values[due]
        return {"accuracy": _accuracy(seen, test_y)}

    last = int(ends.max())
    at = [mark for mark in marks if mark <= last]
    solver = train.fit(
        start, x, y, loss="cross-entropy", epochs=last, lr=rates, metrics=look, at=at
    )
    curve = torch.full((len(trials), len(marks)), math.nan)
    for place, epoch in enumerate(solver.history.epochs.tolist()):
        curve[:, marks.index(epoch)] = solver.history["accuracy"][place].float()
    curve[torch.arange(len(marks)) > places[:, None]] = math.nan
    weights = train.TrialStack(chain, values).tensors()
    return _Trained(torch.tensor(marks), rates, places, outputs, known, curve, weights)


def _choose(
    config: TransferConfig,
    chain: nn.Chain,
    trials: Sequence[int],
    samples: Sequence[Samples],
    context: Context,
) -> tuple[Tensor, Tensor]:
    """Return the rate ``[T]`` and the milestone ``[T]`` with the least held-out loss."""
    from mahalens.studies.networks import start_of

    folds = [
        folds_of(trial_set.y, data.stream(config.seed, "folds", trial))
        for trial_set, trial in zip(samples, trials, strict=True)
    ]
    pairs = [
        (trial_set, fold) for trial_set, parts in zip(samples, folds, strict=True) for fold in parts
    ]
    x, y = (
        torch.stack([getattr(trial_set, name)[fold.fit] for trial_set, fold in pairs])
        for name in "xy"
    )
    held_x, held_y = (
        torch.stack([getattr(trial_set, name)[fold.held] for trial_set, fold in pairs])
        for name in "xy"
    )
    count = len(folds[0])
    each = [trial for trial in trials for _ in range(count)]
    start = start_of(chain, config.seed, each, config.device)
    marks = milestones(config.epochs)

    def look(running: Any) -> dict[str, Tensor]:
        return {"loss": _log_loss(running.stack(held_x), held_y)}

    losses = torch.full((len(config.rates), len(marks), len(pairs)), math.inf)
    for place, rate in enumerate(config.rates):
        context.look()
        how: dict[str, Any] = {"epochs": config.epochs, "lr": rate, "metrics": look, "at": marks}
        solver = train.fit(start, x, y, loss="cross-entropy", **how)
        for epoch, seen in zip(solver.history.epochs.tolist(), solver.history["loss"], strict=True):
            losses[place, marks.index(epoch)] = seen.float().nan_to_num(math.inf)
    mean = losses.reshape(len(config.rates), len(marks), len(trials), count).mean(-1)
    best = mean.flatten(0, 1).argmin(0)  # the first of equals: the smaller rate, the earlier end
    return torch.tensor(config.rates)[best // len(marks)], best % len(marks)


def milestones(epochs: int) -> list[int]:
    """Return the epochs at which training may end.

    >>> milestones(300)
    [3, 6, 11, 15, 22, 30, 45, 60, 90, 120, 165, 225, 300]
    """
    return sorted({max(1, round(share * epochs)) for share in SHARES})


def _log_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean log loss ``[T]`` of outputs ``[T, N, C]``."""
    flat = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
    return flat.reshape(y.shape).mean(1)


def _accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the accuracy ``[T]`` in percent; NaN for a trial with non-finite outputs."""
    right = 100 * (outputs.argmax(-1) == y).double().mean(1)
    return torch.where(outputs.isfinite().flatten(1).all(1), right, math.nan)


# --- Yardsticks -------------------------------------------------------------------------------

NEIGHBOURS = (1, 3, 5, 7, 9, 15)
"""How many may vote."""
SMALL, SMALL_LEAF, LEAF = 200, 5, 20
"""Trees on fewer samples than ``SMALL`` get smaller leaves than scikit-learn's default, with which
36 samples make a single split; nothing else of the defaults is touched."""


class _Judged(NamedTuple):
    """Classes ``[M]`` that a yardstick gives the test samples of one trial, and what else it says.

    There are no classes of training samples where a sample would vote for itself.
    """

    predicted: Tensor
    train_predicted: Tensor | None = None
    probabilities: Tensor | None = None
    neighbours: int | None = None


def _boosted(config: TransferConfig, samples: Samples, trial: int) -> _Judged:
    """Gradient-boosted trees as scikit-learn sets them, 100 rounds."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    seed = int(torch.randint(2**31 - 1, (1,), generator=data.stream(config.seed, "trees", trial)))
    trees = HistGradientBoostingClassifier(
        early_stopping=False,
        min_samples_leaf=SMALL_LEAF if len(samples.y) < SMALL else LEAF,
        random_state=seed,
    )
    trees.fit(samples.x.numpy(), samples.y.numpy())
    shares = torch.from_numpy(trees.predict_proba(samples.test_x.numpy()))
    # Classes that no training sample has get no column.
    probabilities = torch.zeros(len(samples.test_y), samples.classes, dtype=torch.float64)
    probabilities[:, torch.from_numpy(trees.classes_)] = shares
    known = torch.from_numpy(trees.predict(samples.x.numpy()))
    return _Judged(probabilities.argmax(1), known, probabilities)


def _nearest(config: TransferConfig, samples: Samples, trial: int) -> _Judged:
    """Classify by the k nearest neighbours; k has the best accuracy on parts held out."""
    x, y = samples.x.numpy(), samples.y.numpy()
    folds = folds_of(samples.y, data.stream(config.seed, "folds", trial))
    # NumPy takes a tensor of one index for the index itself, and drops the axis.
    parts = [(fold.fit.numpy(), fold.held.numpy()) for fold in folds]
    allowed = [k for k in NEIGHBOURS if k <= min(len(fit) for fit, _ in parts)]
    right = {
        k: sum(float((_vote(k, x[fit], y[fit], x[held]) == y[held]).mean()) for fit, held in parts)
        for k in allowed
    }
    k = max(allowed, key=lambda k: right[k])  # the first of equals
    predicted = _vote(k, x, y, samples.test_x.numpy())
    return _Judged(torch.from_numpy(predicted), neighbours=k)


def _warped(config: TransferConfig, samples: Samples, trial: int) -> _Judged:
    """Classify by the nearest neighbour of dynamic time warping, within a tenth of the length."""
    shape = samples.image_shape
    if shape is None:
        raise InputError(f"{samples.name} is no set of sequences; there is no time to warp")
    x, test_x = (part.reshape(-1, *shape) for part in (samples.x, samples.test_x))
    distances = warped_distances(test_x, x)
    return _Judged(samples.y[distances.argmin(1)], neighbours=1)


def _vote(k: int, x: Any, y: Any, test_x: Any) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(n_neighbors=k).fit(x, y).predict(test_x)


_JUDGES: dict[str, Callable[[TransferConfig, Samples, int], _Judged]] = {
    "boosting": _boosted,
    "knn": _nearest,
    "dtw": _warped,
}


def _yardstick_metrics(judged: Sequence[_Judged], samples: Sequence[Samples]) -> dict[str, Tensor]:
    predicted = torch.stack([one.predicted for one in judged])
    test_y = torch.stack([trial_set.test_y for trial_set in samples])
    metrics = {
        "test_accuracy": 100 * (predicted == test_y).double().mean(1),
        "balanced_accuracy": _balanced(predicted, test_y),
    }
    more: dict[str, list[Tensor]] = {}
    for one, trial_set in zip(judged, samples, strict=True):
        if one.train_predicted is not None:
            share = 100 * (one.train_predicted == trial_set.y).double().mean()
            more.setdefault("train_accuracy", []).append(share)
        if one.probabilities is not None:
            right = one.probabilities.clamp_min(1e-15).log().gather(1, trial_set.test_y[:, None])
            more.setdefault("log_loss", []).append(-right.mean())
        if one.neighbours is not None:
            more.setdefault("neighbours", []).append(torch.tensor(float(one.neighbours)))
    return metrics | {name: torch.stack(values) for name, values in more.items()}


# --- Sequences --------------------------------------------------------------------------------

LENGTHS = (7, 9, 11)


def kernel_features(x: Tensor, count: int, generator: Generator) -> Tensor:
    """Return two features of every series for each of ``count`` random kernels.

    Kernels are drawn as in ROCKET (Dempster, Petitjean and Webb 2020, arXiv 1910.13051): 7, 9 or
    11 weights, normal and centred, a bias from [-1, 1], a dilation up to the length of the series,
    with or without padding, on a random few of the channels. Of what a kernel gives along a
    series, the features are its largest value and the share of steps above 0.

    Shapes: x ``[N, C, L]`` to ``[N, 2 count]``.

    >>> import torch
    >>> made = kernel_features(torch.randn(5, 1, 24), 8, torch.Generator().manual_seed(0))
    >>> made.shape
    torch.Size([5, 16])
    """
    _, channels, steps = x.shape
    columns = []
    for _ in range(count):
        length = min(LENGTHS[_below(len(LENGTHS), generator)], steps)
        few = int(2 ** _uniform(0, math.log2(min(channels, length) + 1), generator))
        chosen = torch.randperm(channels, generator=generator)[: max(1, few)]
        weights = torch.randn(1, len(chosen), length, generator=generator)
        weights -= weights.mean(-1, keepdim=True)
        bias = _uniform(-1, 1, generator)
        widest = math.log2((steps - 1) / (length - 1)) if 1 < length < steps else 0.0
        dilation = int(2 ** _uniform(0, widest, generator))
        padding = _below(2, generator) * ((length - 1) * dilation // 2)
        how: dict[str, Any] = {"dilation": dilation, "padding": padding}
        seen = torch.nn.functional.conv1d(x[:, chosen], weights, **how)[:, 0] + bias
        columns += [seen.amax(1), (seen > 0).to(x.dtype).mean(1)]
    return torch.stack(columns, 1)


def features_of(
    x: Tensor, test_x: Tensor, shape: tuple[int, ...], count: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Return features ``[N, 2 count]`` of flattened series ``[N, C L]``, standardised by x's."""
    from mahalens.studies.samples import standardise

    together = torch.cat((x, test_x)).reshape(-1, *shape)
    features = kernel_features(together, count, generator)
    return standardise(features[: len(x)], features[len(x) :])


def _below(limit: int, generator: Generator) -> int:
    return int(torch.randint(limit, (1,), generator=generator))


def _uniform(low: float, high: float, generator: Generator) -> float:
    return low + (high - low) * float(torch.rand(1, generator=generator))


def _through_kernels(config: TransferConfig, samples: Samples, trial: int) -> Samples:
    """Return features of random kernels in place of the series, the same for all heads."""
    if samples.image_shape is None:
        raise InputError(f"{samples.name} has no sequences; kernels have no time to go along")
    generator = data.stream(config.seed, "kernels", trial)
    x, test_x = features_of(
        samples.x, samples.test_x, samples.image_shape, config.kernels, generator
    )
    return replace(samples, x=x, test_x=test_x, image_shape=None)


SHARE = 0.1
"""How far a series may be ahead of another, as a share of their length."""
PAIRS_AT_ONCE = 4096
"""So few that their rows stay in the cache."""


def warped_distances(
    a: Tensor, b: Tensor, share: float = SHARE, at_once: int = PAIRS_AT_ONCE
) -> Tensor:
    """Return squared distances by dynamic time warping between series, ``[N, M]``.

    ``d(i, j) = ‖aᵢ − bⱼ‖² + min(d(i−1, j), d(i, j−1), d(i−1, j−1))`` within a band of
    ``|i − j| ≤ share · L`` (Sakoe and Chiba 1978); the distance is d(L, L). All channels are
    warped together. The cells of an anti-diagonal depend on the two before it alone, so that each
    is one step for all pairs.

    Shapes: a ``[N, C, L]``, b ``[M, C, L]``.

    >>> import torch
    >>> late = torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0]]])
    >>> warped_distances(late.roll(1, 2), late, 0.2).item(), warped_distances(late, late).item()
    (0.0, 0.0)
    """
    rows, columns = (
        index.flatten()
        for index in torch.meshgrid(torch.arange(len(a)), torch.arange(len(b)), indexing="ij")
    )
    pieces = [
        _pairs(a[one], b[two], math.ceil(share * a.shape[-1]))
        for one, two in zip(rows.split(at_once), columns.split(at_once), strict=True)
    ]
    return torch.cat(pieces).reshape(len(a), len(b))


def _pairs(a: Tensor, b: Tensor, band: int) -> Tensor:
    """Return the distance of each pair ``[P]`` of series ``[P, C, L]``."""
    pairs, _, steps = a.shape
    # Steps first, so that a diagonal is a run of whole rows; b backwards, as j falls where i rises.
    left = a.permute(2, 0, 1).contiguous()  # [L, P, C]
    right = b.permute(2, 0, 1).flip(0).contiguous()
    # Row i + 1 of a diagonal holds d(i, diagonal - i); what lies outside the band is out of reach.
    # Of it only the rows beside the band are ever read, as that moves by a row at a time.
    before, last, here = (left.new_full((steps + 1, pairs), math.inf) for _ in range(3))
    for diagonal in range(2 * steps - 1):
        low = max(0, diagonal - steps + 1, math.ceil((diagonal - band) / 2))
        high = min(steps - 1, diagonal, (diagonal + band) // 2)
        first = steps - 1 - (diagonal - low)  # where b's step j = diagonal - low lies
        cost = (left[low : high + 1] - right[first : first + high - low + 1]).square().sum(-1)
        if diagonal:
            reach = torch.minimum(last[low : high + 1], last[low + 1 : high + 2])
            cost += torch.minimum(reach, before[low : high + 1])
        here[low + 1 : high + 2] = cost
        here[low], here[high + 2 : high + 3] = math.inf, math.inf
        before, last, here = last, here, before
    return last[steps]


def finish(config: TransferConfig, results: Results) -> None:
    """Warn of trials that overlap, and of networks that more epochs might have helped."""
    if any(map(is_resampled, config.data)):
        results.cautions.append(
            "trials split the same samples anew, so that their training sets overlap: intervals "
            "and p values over trials are narrower than those over new samples would be"
        )
    if config.without:
        results.cautions.append(config.without)
    limited = [
        study.name_of(MODELS[model].label, variant)
        for (variant, model), measured in results.measures.items()
        if "at_limit" in measured.metrics and float(measured.metrics["at_limit"].nanmean()) > OFTEN
    ]
    if limited:
        shown = ", ".join(limited[:3]) + (" and others" if len(limited) > 3 else "")
        results.cautions.append(
            f"{len(limited)} of the networks were trained to the last epoch allowed in most "
            f"trials ({shown}): more epochs might help them"
        )


_TITLES = {
    "gunpoint": "GunPoint",
    "italy-power-demand": "Italy power demand",
    "arrow-head": "ArrowHead",
    "basic-motions": "BasicMotions",
    "japanese-vowels": "Japanese vowels",
    "osuleaf": "OSU leaf",
    "pickup-gesture": "Pickup gesture",
    "acsf1": "ACSF1",
}


def _family(model: str) -> str:
    return "Yardsticks" if model in YARDSTICKS else BACKBONES[split(model)[0]].capitalize()


STUDY = Study(
    name="transfer",
    question="Do OffsetL2 heads carry over to tables and sequences?",
    source=CHECKS,
    config=TransferConfig,
    models=MODELS,
    metrics=METRICS,
    claims=claims_of,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    primary=ACCURACY,
    pairs=PAIRS,
    tested=(ACCURACY, "log_loss"),
    titles=_TITLES,
    shown=(
        ACCURACY,
        "balanced_accuracy",
        "log_loss",
        "train_accuracy",
        "chosen_rate",
        "chosen_epochs",
    ),
    remark="A name is a backbone and its head. L2: the class whose prototype is furthest away "
    "wins; L2-Neg: the nearest one. Every trial splits a set anew, so that spreads show what the "
    "split does, and the samples of trials overlap.",
    plots=(
        Dots(title="How accurate is each head, on each backbone?", metric=ACCURACY, family=_family),
        Differences(title="Test accuracy: which differences are real?", metric=ACCURACY),
        Dots(
            name="compared-log_loss",
            title="How good are the probabilities?",
            caption="Log loss on test samples: low is good. Votes of neighbours have none.",
            metric="log_loss",
            family=_family,
        ),
    ),
)
