"""The init study: networks started from clusters, principal axes or class means.

*Interpreting Neural Networks through Mahalanobis Distance* proposes to start a layer from k-means
clusters and the principal axes of each. Here such starts, and simpler ones from data, stand beside
Kaiming and LSUV. Every trial chooses its learning rate by held-out training samples, so that each
start is seen at the rate that suits it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from mahalens import data, nn, train
from mahalens.errors import InputError
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Average, Claim, Difference, Lower
from mahalens.studies.plots import Curves, Differences, Dots
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Option, Results, Study

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from mahalens.studies.run import Context
    from mahalens.studies.samples import Samples

# --- Models -----------------------------------------------------------------------------------

ACTIVATIONS = {"abs": "Abs", "relu": "ReLU"}


@dataclass(frozen=True)
class Start:
    """The start of a network with one hidden layer.

    Each start from data differs in the hidden layer alone from one of the two usual ones: its
    output layer is that of Kaiming where its rows are Kaiming's, and that of LSUV where the data
    decide how long they are.

    Args:
        hidden: the method of the hidden layer, a name of :data:`mahalens.init.METHODS`.
        output: that of the output layer.
        label: a few words for tables and figures.
        text: one line that explains it.
        colour: in figures.
        options: of the method of the hidden layer.
        variance: take the leading axes that hold this share of the variance only.
        activations: with which activation functions it is tried.
    """

    hidden: str
    output: str
    label: str
    text: str
    colour: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variance: float | None = None
    activations: tuple[str, ...] = tuple(ACTIVATIONS)


STARTS = {
    "kaiming": Start("kaiming", "kaiming", "Kaiming", "random rows through the origin", "#000000"),
    "lsuv": Start("lsuv", "lsuv", "LSUV", "orthonormal rows, unit output variance", "#8a8a8a"),
    "sample-point": Start(
        "sample_point_bias", "kaiming", "Sample points", "hyperplanes through samples", "#56b4e9"
    ),
    "class-mean": Start(
        "class_mean", "kaiming", "Class means", "hyperplanes through means of classes", "#009e73"
    ),
    "whiten": Start("whiten", "lsuv", "Whitening", "a whitening of the whole input", "#0072b2"),
    "whiten-90": Start(
        "whiten",
        "lsuv",
        "Whitening to 90 %",
        "a whitening of the axes that hold 90 % of the variance",
        "#cc79a7",
        variance=0.9,
    ),
    "cluster-pca": Start(
        "cluster_pca", "lsuv", "Cluster PCA", "principal axes of k-means clusters", "#d55e00"
    ),
    "cluster-pca-3": Start(
        "cluster_pca",
        "lsuv",
        "Cluster PCA by 3 axes",
        "cluster-pca with more clusters, 3 axes of each",
        "#e69f00",
        {"axes": 3},
    ),
    "cluster-pca-all": Start(
        "cluster_pca",
        "cluster_pca",
        "Cluster PCA throughout",
        "cluster-pca in the output layer too, from its inputs",
        "#8a4a00",
    ),
    "cluster-pca-mirror": Start(
        "cluster_pca",
        "lsuv",
        "Mirrored cluster PCA",
        "cluster-pca with units in pairs w, -w, which are an Abs together",
        "#a89b00",
        {"mirror": True},
        activations=("relu",),
    ),
}
RIVALS = ("kaiming", "lsuv")
"""The usual starts, which all others are compared with."""
FROM_DATA = ("cluster-pca", "whiten", "sample-point", "class-mean")
"""The starts that look at the data, without their variants."""
MODELS = {
    f"{activation}-{name}": Model(
        f"{shown}: {start.label}",
        f"{shown}, {start.text}",
        start.colour,
        "o" if activation == "abs" else "s",
        "-" if activation == "abs" else "--",
    )
    for activation, shown in ACTIVATIONS.items()
    for name, start in STARTS.items()
    if activation in start.activations
}


def read_model(model: str) -> tuple[str, Start]:
    """Return the activation function of a model, as a chain names it, and its start.

    >>> read_model("abs-cluster-pca")[0], read_model("abs-cluster-pca")[1].hidden
    ('Abs', 'cluster_pca')
    """
    activation, _, start = model.partition("-")
    return ACTIVATIONS[activation], STARTS[start]


# --- Options ----------------------------------------------------------------------------------

SMALL_SETS = ("digits", "iris", "wine", "breast-cancer")
ALL_SETS = (*SMALL_SETS, "mnist", "fashion-mnist")
IMAGE_RATES, TABLE_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.1, 0.3)
IMAGE_UNITS, TABLE_UNITS = 128, 32
"""Hidden units on images, and on all other data."""


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _rates_option(rates: tuple[float, ...], where: str) -> Option:
    return Option(
        "",
        rates,
        published=rates,
        label=f"learning rates on {where}",
        show=_listed,
        least=1e-300,
        flag=False,
    )


class InitConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``image_rates`` and ``table_rates`` are the learning rates that every trial chooses from, with
    a part of its training samples held out: once on images, ``tunings`` times on all other data,
    where that part may be small. A start is computed from ``start_rows`` samples at most.
    """

    data: Annotated[tuple[str, ...], study.data_option(SMALL_SETS, ALL_SETS, subset=True)]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    train_size: Annotated[int | None, study.train_size_option(5_000)]
    epochs: Annotated[int, study.count_option("Epochs of training.", 20)]
    trials: Annotated[int, study.count_option("Trials of each model.", 10)]
    image_rates: Annotated[tuple[float, ...], _rates_option(IMAGE_RATES, "images")] = IMAGE_RATES
    table_rates: Annotated[tuple[float, ...], _rates_option(TABLE_RATES, "tables")] = TABLE_RATES
    tunings: Annotated[
        int,
        Option("", 3, published=3, label="splits of a table to choose one", least=1, flag=False),
    ] = 3
    start_rows: Annotated[
        int,
        Option("", 5_000, published=5_000, label="samples to start from", least=2, flag=False),
    ] = 5_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for rates in (self.image_rates, self.table_rates):
            if not rates or not all(math.isfinite(rate) for rate in rates):
                shown = _listed(rates) or "none"
                raise InputError(f"learning rates of {shown}; give positive numbers")


# --- Metrics ----------------------------------------------------------------------------------

METRICS: dict[str, Metric] = {
    "mean_accuracy": Metric(
        "Mean accuracy on the way",
        "Test accuracy averaged over the ends of all epochs: high for networks that train fast.",
        "%",
        "high",
    ),
    "test_accuracy": study.NETWORK_METRICS["test_accuracy"],
    "first_accuracy": Metric(
        "Accuracy after one epoch", "The same after the first epoch.", "%", "high"
    ),
    "epochs_to_tenth": Metric(
        "Epochs to a tenth",
        "After how many epochs the mean training loss, interpolated between the middles of epochs, "
        "is a tenth of that of guessing, ln(classes). None if that does not happen.",
        "epochs",
    ),
    "reached": Metric(
        "Reached a tenth", "100 if that happened, 0 if not: the mean is a share.", "%", "high"
    ),
    "train_loss": Metric(
        "Training loss", "Mean cross-entropy in the last epoch.", "nats", log=True
    ),
    "start_loss": Metric(
        "Loss at the start", "The same on the samples of the start, before training.", "nats"
    ),
    "idle_units": Metric(
        "Idle units at the start",
        "Share of the hidden units that no sample reaches, or that have all samples on one side.",
        "%",
    ),
    "longest_row": Metric(
        "Longest row at the start",
        "Length of the longest row of weights in the hidden layer.",
        better=None,
        log=True,
    ),
    "start_seconds": Metric("Time of the start", "What computing the start took.", "s"),
    "learning_rate": Metric(
        "Learning rate",
        "The one with the best mean accuracy on the way on held-out training samples.",
        better=None,
        log=True,
    ),
    "rate_at_end": Metric(
        "Rate at the end of the grid",
        "100 if it is the lowest or highest on offer, so that the best may lie beyond, 0 if not.",
        "%",
        None,
    ),
}

# --- Claims -----------------------------------------------------------------------------------

THEORY = "interpreting"
NEW = "cluster-pca"
_CALLED = {
    "kaiming": "Kaiming",
    "lsuv": "LSUV",
    "sample-point": "Hyperplanes through samples",
    "class-mean": "Hyperplanes through class means",
    "whiten": "A whitening",
    "cluster-pca": "Cluster PCA",
}
_VARIANTS = (
    ("whiten-90", "whiten", "A whitening is faster with few axes"),
    ("cluster-pca-3", NEW, "Cluster PCA is faster with 3 axes of more clusters"),
    ("cluster-pca-all", NEW, "Cluster PCA is faster with the output layer started so too"),
    ("cluster-pca-mirror", NEW, "Cluster PCA is faster with units in pairs w, -w"),
)


def _faster(activation: str, start: str, than: str) -> Lower:
    """Return that a start has the higher mean accuracy on the way, trial by trial."""
    return Lower("mean_accuracy", f"{activation}-{than}", f"{activation}-{start}")


def _no_worse(activation: str, start: str, than: str) -> Difference:
    a, b = f"{activation}-{start}", f"{activation}-{than}"
    return Difference("test_accuracy", a, b, "above", -1.0)


def _beside(activation: str, rival: str) -> tuple[Claim, ...]:
    """Return the claims about cluster PCA beside one of the usual starts."""
    key, names = f"{rival}-{activation}", f"{_CALLED[rival]} with {ACTIVATIONS[activation]}"
    faster, no_worse = _faster(activation, NEW, rival), _no_worse(activation, NEW, rival)
    better = Lower("test_accuracy", f"{activation}-{rival}", f"{activation}-{NEW}")
    less = f"Cluster PCA ends at most 1 point less accurate than {names}."
    rows: claims.Rows = {
        f"{NEW}-faster-than-{key}": (f"Cluster PCA trains faster than {names}.", faster),
        f"{NEW}-better-than-{key}": (f"Cluster PCA ends more accurate than {names}.", better),
    }
    return (*claims.from_rows(THEORY, rows), Claim(f"{NEW}-no-worse-than-{key}", less, no_worse))


def _claims_with(activation: str) -> tuple[Claim, ...]:
    """Return all claims about networks with one activation function."""
    shown, kaiming = ACTIVATIONS[activation], f"{activation}-kaiming"
    rows: claims.Rows = {
        f"{NEW}-ahead-after-one-epoch-{activation}": (
            f"After one epoch cluster PCA is ahead of Kaiming with {shown}.",
            Lower("first_accuracy", kaiming, f"{activation}-{NEW}"),
        ),
        f"{NEW}-sooner-at-a-tenth-{activation}": (
            "Cluster PCA takes the training loss to a tenth of guessing in fewer epochs than "
            f"Kaiming with {shown}.",
            Lower("epochs_to_tenth", f"{activation}-{NEW}", kaiming),
        ),
    }
    ours: claims.Rows = {
        f"{NEW}-faster-than-sample-point-{activation}": (
            "It takes the axes: cluster PCA trains faster than Kaiming rows through random samples "
            f"with {shown}.",
            _faster(activation, NEW, "sample-point"),
        ),
        **{
            f"{start}-faster-than-kaiming-{activation}": (
                f"{_CALLED[start]}: faster than Kaiming with {shown}.",
                _faster(activation, start, "kaiming"),
            )
            for start in FROM_DATA[1:]
        },
        **{
            f"{variant}-faster-{activation}": (
                f"{statement}, with {shown}.",
                _faster(activation, variant, base),
            )
            for variant, base, statement in _VARIANTS
            if activation in STARTS[variant].activations
        },
    }
    beside = (claim for rival in RIVALS for claim in _beside(activation, rival))
    return (*beside, *claims.from_rows(THEORY, rows), *claims.from_rows(claims.OURS, ours))


_NO_WORSE: claims.Rows = {
    f"{start}-no-worse-than-kaiming": (
        f"{_CALLED[start]}: at most 1 point less accurate in the end than Kaiming, with Abs and "
        "with ReLU.",
        claims.every(_no_worse(activation, start, "kaiming") for activation in ACTIVATIONS),
    )
    for start in FROM_DATA[1:]
}
_GAINS: claims.Rows = {
    f"abs-gains-more-on-{rival}": (
        f"Abs gains more speed from cluster PCA on {_CALLED[rival]} than ReLU does.",
        claims.GainsMore(
            "mean_accuracy", f"abs-{NEW}", f"abs-{rival}", f"relu-{NEW}", f"relu-{rival}"
        ),
    )
    for rival in RIVALS
}
_UNITS: claims.Rows = {
    "abs-wants-hyperplanes-apart": (
        "Abs trains faster with hyperplanes through samples than with all of them through one "
        "point, as Kaiming, LSUV and a whitening have them.",
        claims.every(_faster("abs", "sample-point", s) for s in ("kaiming", "lsuv", "whiten")),
    ),
    "no-idle-units": (
        "Whitening and cluster PCA start without a unit that is idle.",
        claims.every(
            Average("idle_units", f"{activation}-{start}", "below", 1e-9)
            for activation in ACTIVATIONS
            for start in ("whiten", NEW)
        ),
    ),
    "kaiming-has-idle-units": (
        "Kaiming with ReLU starts with more than 1 % of the units idle.",
        Average("idle_units", "relu-kaiming", "above", 1.0),
    ),
}
CLAIMS = (
    *(claim for activation in ACTIVATIONS for claim in _claims_with(activation)),
    *claims.from_rows(claims.OURS, _NO_WORSE),
    *claims.from_rows(THEORY, _GAINS),
    *claims.from_rows(claims.OURS, _UNITS),
)
PAIRS = tuple(
    pair
    for activation in ACTIVATIONS
    for pair in (
        *((f"{activation}-{start}", f"{activation}-kaiming") for start in list(STARTS)[1:]),
        *(
            (f"{activation}-{start}", f"{activation}-lsuv")
            for start in FROM_DATA
            if STARTS[start].output == "lsuv"
        ),
        (f"{activation}-cluster-pca", f"{activation}-sample-point"),
    )
)
"""Every start beside Kaiming, and beside LSUV those that share its output layer. Cluster PCA is
also beside hyperplanes through random samples, to see what its axes do. Variants are beside Kaiming
alone: the more pairs, the less a correction for all leaves."""

# --- Measure ----------------------------------------------------------------------------------

AT_ONCE = 5
"""Trials in one job: less than a minute of work but for all samples of a large set."""
VALIDATION = 0.25
"""Share of the training samples of each class that a learning rate is chosen by."""
HIDDEN, OUTPUT = "0", "2"


def check(config: InitConfig, folder: Path | None) -> dict[str, Any]:
    """Load all data; refuse a set from which some start cannot be computed."""
    from mahalens.studies.samples import check_sets, option_of

    facts = check_sets(config.data, config.train_size)
    for name in config.data:
        samples, option = _samples(config, name, 0), option_of(name, config.train_size)
        units, sizes = _units(samples), torch.bincount(samples.y.cpu(), minlength=samples.classes)
        if len(samples.y) < 2 * units:
            raise InputError(
                f"{option}: {len(samples.y)} training samples for a hidden layer of {units} units; "
                f"give at least {2 * units}"
            )
        if int(sizes.min()) < 2:
            raise InputError(
                f"{option}: class {int(sizes.argmin())} has {int(sizes.min())} of the "
                f"{len(samples.y)} training samples; give at least 2 of each"
            )
    return {"data": facts, "epochs": config.epochs}


def measure(config: InitConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Measure some trials of one model, each with a learning rate of its own."""
    began = time.monotonic()
    rows = []
    for place, trial in enumerate(job.trials):
        context.look()
        context.report(place / job.count)
        rows.append(_trial(config, job, trial, choose_rate(config, job, trial)))
    epochs = torch.arange(config.epochs + 1)
    curves = {
        "test_accuracy": (epochs, torch.stack([accuracy for _, accuracy, _ in rows])),
        "train_loss": (epochs, torch.stack([loss for _, _, loss in rows])),
    }
    metrics = {
        name: torch.tensor([numbers[name] for numbers, _, _ in rows], dtype=torch.float64)
        for name in METRICS
    }
    return {job.work: Measures(metrics, time.monotonic() - began, curves)}


def choose_rate(config: InitConfig, job: Job, trial: int) -> float:
    """Return the rate with the highest mean accuracy on the way on held-out training samples.

    Every trial chooses for itself, from its own training samples. On data other than images, where
    few samples are held out, ``config.tunings`` trainings are averaged, each with a start, a split
    and an order of its own. Of equal rates the lowest is taken.
    """
    samples = _samples(config, job.variant, trial)
    rates = _rates(config, samples)
    total = torch.zeros(len(rates), dtype=torch.float64)
    for run in range(1 if samples.image_shape is not None else config.tunings):
        who = ("tuning", trial, run)
        generator = data.stream(config.seed, "validation", trial, run)
        out = data.held_out(samples.y.cpu(), VALIDATION, generator).to(samples.y.device)
        x, y = samples.x[~out], samples.y[~out]
        network = start(job.work, samples, x, y, config, *who)
        held = (samples.x[out], samples.y[out])
        accuracy, _ = _train(network, (x, y), held, rates, config, *who)
        total += accuracy[:, 1:].mean(1)
    return rates[int(total.argmax())]


def _trial(
    config: InitConfig, job: Job, trial: int, rate: float
) -> tuple[dict[str, float], Tensor, Tensor]:
    """Return the metrics of one trial, and its curves of accuracy and loss ``[E + 1]``."""
    samples, who = _samples(config, job.variant, trial), ("trial", trial)
    x, y, rows = samples.x, samples.y, config.start_rows
    network = start(job.work, samples, x, y, config, *who)
    before = _look(network, x[:rows], y[:rows])
    seen = (samples.test_x, samples.test_y)
    accuracies, losses = _train(network, (x, y), seen, [rate], config, *who)
    accuracy, loss = accuracies[0], losses[0]
    with_start = torch.cat((torch.tensor([before["start_loss"]], dtype=torch.float64), loss))
    reached = epochs_to(before["start_loss"], loss, math.log(samples.classes) / 10)
    rates = _rates(config, samples)
    numbers = {
        "mean_accuracy": float(accuracy[1:].mean()),
        "test_accuracy": float(accuracy[-1]),
        "first_accuracy": float(accuracy[1]),
        "epochs_to_tenth": reached,
        "reached": 0.0 if math.isnan(reached) else 100.0,
        "train_loss": float(loss[-1]),
        **before,
        "start_seconds": network.seconds,
        "learning_rate": rate,
        "rate_at_end": 100.0 * (rate in (rates[0], rates[-1])),
    }
    if not math.isfinite(numbers["train_loss"]):  # weights that are no numbers classify nothing
        numbers = dict.fromkeys(numbers, math.nan)
    return numbers, accuracy, with_start


def _rates(config: InitConfig, samples: Samples) -> list[float]:
    """Return the learning rates to choose from, the lowest first."""
    return sorted(config.table_rates if samples.image_shape is None else config.image_rates)


def _units(samples: Samples) -> int:
    return TABLE_UNITS if samples.image_shape is None else IMAGE_UNITS


def _samples(config: InitConfig, name: str, trial: int) -> Samples:
    """Return the samples of a trial; kept where all trials share them, as these are large."""
    from mahalens.studies.samples import is_split_anew, whole_set

    size = config.train_size
    drawn = is_split_anew(name) or (size is not None and size < len(whole_set(name).y))
    return _kept_samples(name, config.seed, trial if drawn else 0, size, config.device)


@study.remember(2)
def _kept_samples(name: str, seed: int, trial: int, train_size: int | None, device: str) -> Samples:
    from mahalens.studies.samples import samples_of

    return samples_of(name, seed=seed, trial=trial, train_size=train_size).to(device)


class Network(NamedTuple):
    """A network before training, and how long its start took."""

    chain: nn.Chain
    module: Module
    seconds: float


def start(
    model: str, samples: Samples, x: Tensor, y: Tensor, config: InitConfig, *who: str | int
) -> Network:
    """Start a network on x ``[N, D]`` and y ``[N]``, from at most ``start_rows`` of these rows.

    Both layers draw from streams of their own named by ``who``, such as ``"trial", 3``, so that a
    Kaiming output layer is the same whatever the hidden layer is.
    """
    from mahalens.init import initialise

    activation, way = read_model(model)
    text = f"Linear({_units(samples)}), {activation}, Linear({samples.classes})"
    chain = nn.Chain.parse(text, inputs=samples.inputs)
    with torch.random.fork_rng(devices=[]):  # building a module draws weights that are not used
        module = chain.build().to(x.device)
    began = time.perf_counter()
    options, rows = dict(way.options), config.start_rows
    if way.variance is not None:
        options["rank"] = leading_axes(x[:rows], way.variance)
    for layer, method, more in ((HIDDEN, way.hidden, options), (OUTPUT, way.output, {})):
        draws = data.stream(config.seed, f"start of layer {layer}", *who)
        initialise(module, (x, y), method, layers=[layer], rows=rows, generator=draws, **more)
    return Network(chain, module, time.perf_counter() - began)


def leading_axes(x: Tensor, share: float) -> int:
    """Return how many principal axes of rows ``[N, D]`` hold a share of their variance.

    >>> import torch
    >>> leading_axes(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 0.85)
    1
    """
    variances = torch.linalg.eigvalsh(torch.cov(x.double().T)).flip(0).clamp_min(0)
    held = variances.cumsum(0) / variances.sum()
    return int((held < share).sum()) + 1


def _look(network: Network, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return loss, idle units and the longest row of a network before training."""
    from mahalens.init import check_init

    layer = check_init(network.module, x).layer(HIDDEN)
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(network.module(x), y)
        longest = network.module.get_parameter(f"{HIDDEN}.weight").norm(dim=1).max()
    return {
        "start_loss": float(loss),
        "idle_units": 100 * (len(layer.dead) + len(layer.outside)) / layer.units,
        "longest_row": float(longest),
    }


def batch_size(samples: int) -> int:
    """Return how many samples go into a mini-batch: fewer of a small set, for enough steps.

    >>> batch_size(105), batch_size(1437), batch_size(60_000)
    (16, 32, 128)
    """
    return 16 if samples < 1_000 else 32 if samples < 5_000 else 128


def _train(
    network: Network,
    samples: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor],
    rates: Sequence[float],
    config: InitConfig,
    *who: str | int,
) -> tuple[Tensor, Tensor]:
    """Train a network once with each learning rate, and test it on other samples.

    All see the same batches, in an order that is drawn from the stream named by ``who``: also all
    models of a trial. Returns accuracies in per cent ``[R, E + 1]``, before training and after
    every epoch, and mean training losses ``[R, E]``; NaN from where they were not finite.
    """
    x, y = samples
    epochs = config.epochs
    generator = data.stream(config.seed, "order of batches", *who)
    order = int(torch.randint(2**62, (), generator=generator))
    solver = train.fit(
        train.TrialStack.from_modules(network.chain, [network.module] * len(rates)),
        x,
        y,
        epochs=epochs,
        loss="cross-entropy",
        solver="adam",
        batch_size=batch_size(len(y)),
        seeds=[order] * len(rates),
        metrics=lambda running: {"accuracy": _accuracy(running.stack, *seen)},
        at=range(epochs + 1),
        lr=list(rates),
        betas=(0.9, 0.999),
        # So many that, spaced evenly on a log scale, they leave out no epoch.
        curve_points=4 * epochs * max(1, epochs.bit_length()),
    )
    at, curve = solver.curve
    loss = torch.full((len(rates), epochs), math.nan, dtype=torch.float64)
    loss[:, : len(at)] = curve.T.double().cpu()
    accuracy = solver.history["accuracy"].T.cpu()
    # If no training goes on, there are no epochs to look at: what they would show is known.
    missing = accuracy[:, -1:].expand(-1, epochs + 1 - accuracy.shape[1])
    return torch.cat((accuracy, missing), 1), loss.where(loss.isfinite(), math.nan)


def _accuracy(stack: train.TrialStack, x: Tensor, y: Tensor) -> Tensor:
    """Return the share of the samples whose class has the largest output ``[T]``, in per cent.

    Trial by trial, as one large product is faster than many small ones.
    """
    linear = torch.nn.functional.linear
    apply = {"ReLU": torch.relu, "Abs": torch.abs}[stack.chain.layers[1].kind]
    weights = stack.tensors()
    accuracies = []
    for trial in range(len(stack)):
        hidden = apply(
            linear(x, weights[f"{HIDDEN}.weight"][trial], weights[f"{HIDDEN}.bias"][trial])
        )
        output = linear(
            hidden, weights[f"{OUTPUT}.weight"][trial], weights[f"{OUTPUT}.bias"][trial]
        )
        accuracies.append(100 * (output.argmax(1) == y).double().mean())
    return torch.stack(accuracies)


def epochs_to(start: float, loss: Tensor, bound: float) -> float:
    """Return after how many epochs the training loss is down at ``bound``; NaN if it never is.

    The mean loss of an epoch, of ``[E]``, is taken for that in its middle, and ``start`` for that
    before the first; between them its logarithm is interpolated.

    >>> import torch
    >>> epochs_to(4.0, torch.tensor([2.0, 0.5, 0.1]), 1.0)
    1.0
    """
    below = (loss <= bound).nonzero()
    if start <= bound:
        return 0.0
    if not len(below):
        return math.nan
    first = int(below[0, 0])
    before, after = (start if not first else float(loss[first - 1])), float(loss[first])
    begun, width = (first - 0.5, 1.0) if first else (0.0, 0.5)
    # A loss of 0 has no logarithm; it is below any bound, and the middle of its epoch will do.
    share = math.log(before / bound) / math.log(before / after) if after > 0 else 1.0
    return begun + width * share


def finish(config: InitConfig, results: Results) -> None:
    """Warn where the best learning rate may lie outside of those to choose from."""
    for variant in dict.fromkeys(variant for variant, _ in results.measures):
        at_end = []
        for (where, model), measured in results.measures.items():
            count = int((measured.metrics["rate_at_end"] > 0).sum())
            if where == variant and 2 * count > measured.trials:
                at_end.append(f"{model} in {count} of {measured.trials}")
        if at_end:
            results.cautions.append(
                f"on {variant} most trials of some models chose the lowest or the highest learning "
                f"rate on offer, so that theirs may lie beyond it: {', '.join(at_end)}"
            )


def _kaiming(model: str) -> str | None:
    """Return the usual start with the same activation function."""
    activation, _, start = model.partition("-")
    return None if start == "kaiming" else f"{activation}-kaiming"


_AHEAD = ("lsuv", "sample-point", "class-mean", "whiten", "whiten-90", "cluster-pca")

STUDY = Study(
    name="init",
    question="Do networks started from clusters, axes or class means train faster or better?",
    source=THEORY,
    config=InitConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=lambda config: study.jobs_of(config.data, config.models, config.trials, AT_ONCE),
    measure=measure,
    finish=finish,
    primary="mean_accuracy",
    pairs=PAIRS,
    tested=("mean_accuracy", "test_accuracy", "first_accuracy", "epochs_to_tenth"),
    thing="start",
    shown=("mean_accuracy", "test_accuracy", "first_accuracy", "epochs_to_tenth"),
    remark="Every trial chose its learning rate by held-out training samples, so that each start "
    "is seen at the rate that suits it. Trial i of all models has the same samples and order of "
    "batches.",
    plots=(
        Differences(
            title="Mean accuracy on the way: which differences are real?", metric="mean_accuracy"
        ),
        Differences(
            name="differences-test_accuracy",
            title="Test accuracy: which differences are real?",
            metric="test_accuracy",
        ),
        Curves(
            name="head_start",
            title="Who is ahead of Kaiming, and for how long?",
            caption="Test accuracy of each start minus that of Kaiming with the same activation "
            "function, in the same trial: means over the trials. A start that trains faster is "
            "above zero at the left; one that ends better stays there.",
            column="test_accuracy",
            panel=lambda model: ACTIVATIONS[model.partition("-")[0]],
            than=_kaiming,
            models=lambda model: model.partition("-")[2] in _AHEAD,
            line=lambda model: STARTS[model.partition("-")[2]].label,
            band=lambda model: model.endswith("-cluster-pca"),
            label="points ahead of Kaiming",
        ),
        Dots(
            title="How fast does each start train?",
            metric="mean_accuracy",
            family=lambda model: ACTIVATIONS[model.partition("-")[0]],
        ),
    ),
)
