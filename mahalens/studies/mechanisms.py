"""The mechanisms study: why networks held to distances or intensities work or fail.

Section 6 of *Neural Networks Learn Distance Metrics* explains its results by mechanisms that it
does not measure. Here each is put into a number that it predicts: networks with fewer classes, with
balanced targets, with few and many hidden units and with the three heads of the paper's Table 4,
beside the six of its Table 1, trained as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from mahalens import data as sets
from mahalens import nn, train
from mahalens.errors import InputError
from mahalens.studies import claims, representation, study, torch
from mahalens.studies.claims import Average, Difference, GainsMore, Lower, Within
from mahalens.studies.plots import Against, Dots, Spans
from mahalens.studies.representation import PIXELS, PRIMARY, both_pixels, text_of
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Results, Study

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.data import LabelledData
    from mahalens.studies.run import Context
    from mahalens.train import TrialStack

# --- Models -----------------------------------------------------------------------------------

HIDDEN = 128
"""Hidden units of all networks but those that are narrow or wide on purpose."""
FEWER = (2, 3, 5)
WIDTHS = (8, 32, 512)
RANK = 32
"""Axes of each class in the Mahalanobis head."""
ONE_VS_REST, BALANCED, RBF = "one-vs-rest", "balanced", "rbf"
_LOSSES = {
    ONE_VS_REST: "a logistic loss of every output, whose targets are mostly off",
    BALANCED: "the same with as much weight on targets that are on as on those that are off",
}
MAHALANOBIS = "linear-mahalanobis"


@dataclass(frozen=True)
class Network:
    """A network: as the representation study calls it, and in what it differs from that.

    ``classes`` is how many classes it is trained on, 0 for all; ``width`` its hidden units.
    """

    base: str
    classes: int = 0
    width: int = HIDDEN
    loss: str = ""

    @property
    def model(self) -> Model:
        """How it is shown: as the network it comes from, with what differs."""
        look, text = representation.MODELS[self.base], text_of(self.base, "C", self.width)
        if self.classes:
            return replace(
                look,
                label=f"{look.label}, {self.classes} classes",
                text=f"{text}, trained on {self.classes} classes, drawn anew in every trial",
                marker="s",
            )
        if self.loss in _LOSSES:
            return replace(
                look, label=f"{look.label}, {self.loss}", text=f"{text}; {_LOSSES[self.loss]}"
            )
        if self.width != HIDDEN:
            return replace(look, label=f"{look.label}, {self.width} units", text=text, marker="D")
        return replace(look, text=text)


OFFSET_L2 = "linear-l2-neg"
NETWORKS = {
    **{name: Network(name) for name in PRIMARY},
    **{
        f"{name}-of-{count}": Network(name, classes=count)
        for count in FEWER
        for name in ("relu", "relu2")
    },
    **{f"relu2-{loss}": Network("relu2", loss=loss) for loss in _LOSSES},
    **{
        f"{name}-{width}": Network(name, width=width)
        for width in WIDTHS
        for name in ("abs2", "abs2-neg")
    },
    OFFSET_L2: Network(OFFSET_L2),
    "linear-rbf": Network(OFFSET_L2, loss=RBF),
    MAHALANOBIS: Network(OFFSET_L2),
}
MODELS = {name: network.model for name, network in NETWORKS.items()} | {
    OFFSET_L2: Model("Linear-L2", "Linear(128), classes by exp(-d), d of OffsetL2", "#333333", "^"),
    "linear-rbf": Model("Linear-RBF", "the same, classes by exp(-d²/2)", "#CC79A7", "^"),
    MAHALANOBIS: Model(
        "Linear-Mahalanobis",
        f"Linear(128), classes by exp(-d), d the length of {RANK} linear maps of a class",
        "#0072B2",
        "^",
    ),
}

# --- Options ----------------------------------------------------------------------------------


class MechanismsConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[str, representation.one_set_option()]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    pixels: Annotated[tuple[str, ...], representation.pixels_option(tuple(PIXELS), "both")]
    train_size: Annotated[int | None, study.train_size_option()]
    epochs: Annotated[
        int,
        study.count_option(
            "Epochs of full-batch descent.", 1_000, full=representation.PUBLISHED_EPOCHS
        ),
    ]
    trials: Annotated[
        int,
        study.count_option("Trials of each model.", 5, full=representation.PUBLISHED_TRIALS),
    ]
    learning_rate: Annotated[float, study.learning_rate_option()] = 1e-3

    @classmethod
    def with_defaults(cls, *, published: bool = False, **values: Any) -> Self:
        """Fill in the options that are not given."""
        values["pixels"] = both_pixels(values.get("pixels"))
        return super().with_defaults(published=published, **values)


# --- Metrics ----------------------------------------------------------------------------------

_KNOWN = representation.METRICS
METRICS: dict[str, Metric] = {
    **study.NETWORK_METRICS,
    "lost": Metric(
        "Lost against ReLU",
        "What ReLU has above guessing in the same trial, with as many classes, and this network "
        "has not, as a share.",
        "%",
    ),
    "dead_outputs": _KNOWN["dead_outputs"],
    "push_start": Metric(
        "Push before training",
        "Slope of the loss that pushes outputs down, by samples of other classes, over that which "
        "pulls them up, by samples of their own; summed over outputs and training samples, before "
        "the last activation function. 1: both are as strong.",
        better=None,
        log=True,
    ),
    "output_correlation": Metric(
        "Correlation of outputs",
        "|Correlation| of two outputs before the last activation function, over the training "
        "samples, mean over all pairs.",
    ),
    "output_correlation_start": Metric(
        "Correlation of outputs before training", "The same with the starting weights."
    ),
    "class_correlation": Metric(
        "Correlation of classes",
        "|Correlation| of the means of two classes over the hidden units, before their activation; "
        "each unit in spreads of its class means; mean over all pairs of classes.",
    ),
    "ties": Metric(
        "Ties", "Test samples for which two outputs are largest, both exactly as large.", "%"
    ),
    "own_below": Metric(
        "Own class below 0",
        "Outputs that are negative on average on their own class, before the last activation.",
        "%",
        None,
    ),
    "intruders": Metric(
        "Intruders",
        "Training samples of other classes that an output prefers to the median sample of its own "
        "class, mean over outputs.",
        "%",
    ),
    **{name: _KNOWN[name] for name in ("own_centre", "other_centre", "centre_ratio")},
    "furthest_centre": Metric(
        "Hyperplane to the furthest centre", "The same for the furthest class.", "spreads", None
    ),
    "own_nearest": Metric(
        "Own centre is nearest", "Outputs that no other class centre is nearer to.", "%", None
    ),
    "own_furthest": Metric(
        "Own centre is furthest", "Outputs that no other class centre is further from.", "%", None
    ),
    "node_accuracy": Metric(
        "Best single node",
        "Training samples that the best hidden node alone gives their class, by the most frequent "
        "class in each 48th of its values.",
        "%",
        None,
    ),
    "node_spreads": Metric(
        "Widest over narrowest class",
        "Largest over smallest standard deviation of a class along a hidden node; median of nodes.",
        "ratio",
        None,
    ),
}

# --- Claims -----------------------------------------------------------------------------------

ACCURACY = "test_accuracy"
PAPER = "learn-metrics"
_DISTANCES, _INTENSITIES = ("relu2-neg", "abs2-neg"), ("relu2", "abs2")
_more = partial(Average, side="above", bound=50.0)
_ALL_WIDTHS = ("-8", "-32", "", "-512")

_PAPER_CLAIMS: claims.Rows = {
    # 6.1: Figure 1 and the two centres
    "classes-overlap": (
        "Figure 1, all six networks: classes overlap along hidden nodes; the best single node "
        "tells fewer than half of the samples.",
        claims.every(Average("node_accuracy", name, "below", 50.0) for name in PRIMARY),
    ),
    "classes-differ-in-spread": (
        "Figure 1, all six networks: classes differ in spread; along the median node the widest "
        "spreads more than 1.5 times as far as the narrowest.",
        claims.every(Average("node_spreads", name, "above", 1.5) for name in PRIMARY),
    ),
    "distance-own-nearest": (
        "z_c: of distance networks, most hyperplanes lie nearer to the centre of their own class "
        "than to any other.",
        claims.every(_more("own_nearest", name) for name in _DISTANCES),
    ),
    "distance-through-own": (
        "z_c: hyperplanes of distance networks pass through it, on average within half a spread.",
        claims.every(Average("own_centre", name, "below", 0.5) for name in _DISTANCES),
    ),
    "intensity-own-furthest": (
        "Its opposite: of intensity networks, most hyperplanes lie further from the centre of "
        "their own class than from any other.",
        claims.every(_more("own_furthest", name) for name in _INTENSITIES),
    ),
    "intensity-through-others": (
        "Its opposite: hyperplanes of intensity networks pass through the centres of other "
        "classes, on average within half a spread.",
        claims.every(Average("other_centre", name, "below", 0.5) for name in _INTENSITIES),
    ),
    # 6.2: imbalance and decorrelation
    "imbalance-pushes-down": (
        "Imbalance: as nine of ten targets are off, outputs of ReLU2 are pushed down more than "
        "pulled up; at the start by more than 1.1 times.",
        Average("push_start", "relu2", "above", 1.1),
    ),
    "fewer-classes-fewer-dead": (
        "Imbalance: with 2 classes, half of the targets on, fewer outputs of ReLU2 die than with "
        "all classes.",
        Lower("dead_outputs", "relu2-of-2", "relu2"),
    ),
    "fewer-classes-smaller-gap": (
        "Imbalance: with 2 classes ReLU2 loses a smaller share of ReLU's accuracy than with all.",
        Lower("lost", "relu2-of-2", "relu2"),
    ),
    "balance-fewer-dead": (
        "Imbalance: with a loss of one against the rest, fewer outputs of ReLU2 die if it gives "
        "both kinds of targets the same weight.",
        Lower("dead_outputs", "relu2-balanced", "relu2-one-vs-rest"),
    ),
    "balance-more-accurate": (
        "Imbalance: so balanced, ReLU2 is more accurate.",
        Lower(ACCURACY, "relu2-one-vs-rest", "relu2-balanced"),
    ),
    "own-class-below": (
        "ReLU2-Neg: most outputs are negative on average on their own class.",
        _more("own_below", "relu2-neg"),
    ),
    "decorrelated-against-relu": (
        "Decorrelation: outputs of ReLU2-Neg are less correlated than those of ReLU.",
        Lower("output_correlation", "relu2-neg", "relu"),
    ),
    "training-decorrelates": (
        "Decorrelation: training decorrelates the outputs of ReLU2-Neg.",
        Lower("output_correlation", "relu2-neg", "untrained relu2-neg"),
    ),
    "classes-decorrelated": (
        "Decorrelation: along the hidden units of ReLU2-Neg classes are less correlated than along "
        "those of ReLU.",
        Lower("class_correlation", "relu2-neg", "relu"),
    ),
    "ties-are-rare": (
        "Decorrelation keeps classes apart that ReLU2-Neg zeroes: fewer than 5 % of the test "
        "samples are ties.",
        Average("ties", "relu2-neg", "below", 5.0),
    ),
    # 6.3: the further points of Abs2-Neg, the freedom of Abs2
    "gap-grows-with-width": (
        "127 further points: Abs2-Neg has more of them the wider it is, and falls further behind "
        "Abs2 with 512 hidden units than with 8.",
        GainsMore(ACCURACY, "abs2-512", "abs2-neg-512", "abs2-8", "abs2-neg-8"),
    ),
    "gap-at-every-width": (
        "127 further points: Abs2-Neg is worse than Abs2 with 8, 32, 128 and 512 hidden units.",
        claims.every(Lower(ACCURACY, f"abs2-neg{w}", f"abs2{w}") for w in _ALL_WIDTHS),
    ),
    "variance-grows-with-width": (
        "127 further points: Abs2-Neg varies more with 512 hidden units than with 8.",
        claims.MoreVariable(ACCURACY, "abs2-neg-512", "abs2-neg-8"),
    ),
    "other-classes-near": (
        "127 further points: more samples of other classes intrude in Abs2-Neg than in Abs2.",
        Lower("intruders", "abs2", "abs2-neg"),
    ),
    "freedom-grows-with-width": (
        "Abs2 is free to choose among the other classes in every dimension: it gains more than a "
        "point from 128 to 512 hidden units.",
        Difference(ACCURACY, "abs2-512", "abs2", "above", 1.0),
    ),
    # 6.4: the heads of Table 4
    "l2-equals-mahalanobis": (
        "Table 4: after a linear layer, OffsetL2 is equivalent to the Mahalanobis distance: within "
        "a point.",
        Within(ACCURACY, OFFSET_L2, MAHALANOBIS, 1.0),
    ),
    "l2-equals-rbf": (
        "Table 4: OffsetL2 is like a traditional RBF: within a point.",
        Within(ACCURACY, OFFSET_L2, "linear-rbf", 1.0),
    ),
}
_OUR_CLAIMS: claims.Rows = {
    "neg-needs-width": (
        "Abs2-Neg needs more units than Abs2: it gains more from 8 to 512 hidden units.",
        GainsMore(ACCURACY, "abs2-neg-512", "abs2-neg-8", "abs2-512", "abs2-8"),
    ),
    "imbalance-kills": (
        "Imbalance that reaches the outputs kills: one against the rest, more outputs of ReLU2 die "
        "than by cross-entropy.",
        Lower("dead_outputs", "relu2", "relu2-one-vs-rest"),
    ),
}
CLAIMS = claims.from_rows(PAPER, _PAPER_CLAIMS) + claims.from_rows(claims.OURS, _OUR_CLAIMS)
PAIRS = (
    ("relu2", "relu"),
    ("relu2-neg", "relu"),
    ("abs2-neg", "abs2"),
    *((f"relu2-of-{count}", f"relu-of-{count}") for count in FEWER),
    ("relu2-balanced", "relu2-one-vs-rest"),
    *((f"abs2-neg-{width}", f"abs2-{width}") for width in WIDTHS),
    (OFFSET_L2, "linear-rbf"),
    (OFFSET_L2, MAHALANOBIS),
)

# --- Measure ----------------------------------------------------------------------------------


def check(config: MechanismsConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data; refuse networks for fewer classes than there are."""
    from mahalens.studies.networks import pixel_facts

    facts = pixel_facts(config)
    for name in config.models:
        if NETWORKS[name].classes >= facts["classes"]:
            raise InputError(
                f"--models {name}: {config.data} has {facts['classes']} classes, which leaves none "
                "out; name other --models"
            )
    return facts


def jobs(config: MechanismsConfig) -> list[Job]:
    """Cut the work: all trials of a network, one by one where each has its own classes."""
    return [
        job
        for pixels in config.pixels
        for name in config.models
        for job in study.jobs_of(
            [pixels], [name], config.trials, 1 if NETWORKS[name].classes else None
        )
    ]


def measure(config: MechanismsConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train the trials of a job and read them."""
    from mahalens.studies import networks as of
    from mahalens.studies.run import thread_count

    network = NETWORKS[job.work]
    data = of.training_data(config.data, config.train_size, config.seed)
    inputs = of.pixel_inputs(data, job.variant, config.device)
    if job.work == MAHALANOBIS:
        return {job.work: _measure_mahalanobis(config, job, data, inputs, context)}
    if network.classes:
        generator = sets.stream(config.seed, "classes", job.first)
        data, inputs = with_classes(data, inputs, network.classes, generator)
    text = text_of(network.base, data.classes, network.width)
    chain = nn.Chain.parse(text, inputs=data.inputs)
    how: dict[str, Any] = {}
    if network.loss:
        one = of.OneVsRest(data.classes, balanced=network.loss == BALANCED)
        kind = of.SquaredDistances() if network.loss == RBF else one
        how["loss"] = partial(of.OtherLoss, kind=kind)
    trained = of.train_networks(config, chain, job.trials, data, inputs, context, **how)
    with thread_count(1):
        metrics = _read(network, trained.start, trained.solver.stack, data, inputs)
    metrics["train_loss"] = trained.solver.final_loss.double().cpu()
    metrics["late_gain"] = of.curve_metrics(*trained.curve)["late_gain"]
    measures = Measures(
        metrics=trained.unless_lost(metrics),
        seconds=trained.solver.seconds,
        curves={ACCURACY: trained.curve},
        statuses=of.statuses(trained.codes),
    )
    return {job.work: measures}


def with_classes(
    data: LabelledData, inputs: tuple[Tensor, Tensor], count: int, generator: torch.Generator
) -> tuple[LabelledData, tuple[Tensor, Tensor]]:
    """Return the samples of some classes, drawn at random, with labels from 0 on."""
    classes = torch.randperm(data.classes, generator=generator)[:count].sort().values
    keep, test_keep = torch.isin(data.y, classes), torch.isin(data.test_y, classes)
    x, test_x = inputs[0][keep], inputs[1][test_keep]
    fewer = replace(
        data,
        x=data.x[keep],
        y=torch.searchsorted(classes, data.y[keep]),
        test_x=data.test_x[test_keep],
        test_y=torch.searchsorted(classes, data.test_y[test_keep]),
    )
    return fewer, (x, test_x)


def _measure_mahalanobis(
    config: MechanismsConfig,
    job: Job,
    data: LabelledData,
    inputs: tuple[Tensor, Tensor],
    context: Context,
) -> Measures:
    """Train a hidden linear layer, and a distance by linear maps for each class, which is no chain.

    The rows of a class are its axes over their spreads; its biases hold the mean. Layers draw their
    start in order, so that the first one of a trial is that of all other networks.
    """
    from mahalens.studies import networks as of

    first, classes = nn.Chain.parse(f"Linear({HIDDEN})", inputs=data.inputs), data.classes

    def build() -> torch.nn.Module:
        rows = (first.build()[0], torch.nn.Linear(HIDDEN, classes * RANK))
        by_class = torch.nn.Unflatten(-1, (classes, RANK))
        return torch.nn.Sequential(*rows, by_class, nn.Norm(), nn.Neg())

    seeds = [of.seed_of_trial(config.seed, trial) for trial in job.trials]
    start = train.TrialStack.from_seeds(build, seeds)
    start = train.TrialStack(start.model, start.values.to(config.device))
    (x, test_x), y = inputs, data.y.to(config.device)
    solver = train.SGD(
        train.CrossEntropy(start.model, x, y), start, config.epochs, lr=config.learning_rate
    )
    solver = context.drive("training", solver)
    trained = of.Trained(start, solver, (torch.zeros(0), torch.zeros(0)))
    sides = {"train_accuracy": (x, data.y), ACCURACY: (test_x, data.test_y)}
    metrics = {name: _accuracies(solver.stack, *side) for name, side in sides.items()}
    return Measures(
        metrics=trained.unless_lost({**metrics, "train_loss": solver.final_loss.cpu()}),
        seconds=solver.seconds,
        statuses=of.statuses(trained.codes),
    )


def _accuracies(stack: TrialStack, x: Tensor, y: Tensor) -> Tensor:
    """Return the share of samples put into their class, in percent [T]."""
    chosen = torch.cat([stack(part).argmax(-1).cpu() for part in x.split(1_000)], 1)
    return 100 * (chosen == y).double().mean(1)


def _read(
    network: Network,
    start: TrialStack,
    stack: TrialStack,
    data: LabelledData,
    inputs: tuple[Tensor, Tensor],
) -> dict[str, Tensor]:
    """Return everything that is read off the networks of a job, ``[T]`` each."""
    from mahalens.studies import networks as of

    x, test_x = inputs
    training = of.Reading(stack, x, data.y, data.classes)
    test = of.Reading(stack, test_x, data.test_y, data.classes)
    metrics = {
        ACCURACY: test.accuracy,
        "train_accuracy": training.accuracy,
        "dead_outputs": training.activity()["dead_outputs"],
    }
    if "l2" in network.base:
        return metrics
    positions = training.positions(stack)
    metrics |= {**of.centre_metrics(positions), **centre_ranks(positions)}
    rows = []
    for trial in range(len(stack)):
        one, before = (
            train.TrialStack(every.model, every.values[trial, None]) for every in (stack, start)
        )
        hidden, score = (of.part_of(one, depth)(x)[0].double().cpu() for depth in (1, 3))
        first = of.part_of(before, 3)(x)[0].double().cpu()
        logit, test_logit = one(x)[0].cpu(), one(test_x)[0].cpu()
        rows.append(
            {
                "push_start": push(network, first, data.y),
                "output_correlation": mean_correlation(score.T),
                "output_correlation_start": mean_correlation(first.T),
                "ties": ties(test_logit),
                "own_below": own_below(score, data.y),
                "intruders": intruders(logit, data.y),
                **read_nodes(hidden, data.y, data.classes),
            }
        )
    return metrics | {
        name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]
    }


def centre_ranks(positions: Tensor) -> dict[str, Tensor]:
    """Return how class centres lie around hyperplanes, from distances ``[T, c, j]``; ``[T]`` each.

    The furthest centre, and the share of outputs to which that of their own class is the nearest
    or the furthest of all.
    """
    own = torch.arange(positions.shape[1])
    return {
        "furthest_centre": positions.amax(2).mean(1),
        "own_nearest": 100 * (positions.argmin(2) == own).double().mean(1),
        "own_furthest": 100 * (positions.argmax(2) == own).double().mean(1),
    }


def push(network: Network, score: Tensor, y: Tensor) -> float:
    """Return how much more the loss pushes scores [N, C] down than it pulls them up.

    Σ of its slope over the samples of other classes, divided by minus that over those of the
    output's own. Through a last ReLU only what is active passes. NaN for networks but ReLU and
    ReLU2.

    By cross-entropy without a last activation it is 1, whatever the scores: the slopes of a sample
    add up to 0.

    >>> score, y = torch.tensor([[3.0, -1.0, 0.5], [0.0, 2.0, 1.0]]), torch.tensor([0, 2])
    >>> round(push(NETWORKS["relu"], score, y), 6)
    1.0
    """
    if network.base not in ("relu", "relu2"):
        return math.nan
    leaf = score.detach().requires_grad_()
    logit = leaf.relu() if network.base == "relu2" else leaf
    (slope,) = torch.autograd.grad(_loss(network, logit, y), leaf)
    own = torch.nn.functional.one_hot(y, score.shape[1]).bool()
    up = -float(slope[own].sum())
    return float(slope[~own].sum()) / up if up > 0 else math.nan


def _loss(network: Network, logit: Tensor, y: Tensor) -> Tensor:
    """Return the loss that a network is trained by."""
    if not network.loss:
        return torch.nn.functional.cross_entropy(logit, y)
    classes = logit.shape[1]
    hot = torch.nn.functional.one_hot(y, classes).to(logit)
    on = classes - 1.0 if network.loss == BALANCED else 1.0
    weight = torch.full((classes,), on, dtype=logit.dtype)
    return torch.nn.functional.binary_cross_entropy_with_logits(logit, hot, pos_weight=weight)


def mean_correlation(rows: Tensor) -> float:
    """Return the mean |correlation| of all pairs of rows [K, N] that vary.

    >>> rows = torch.tensor([[0.0, 1, 2], [2, 1, 0], [1, 0, 1]])
    >>> round(mean_correlation(rows), 4)  # 1, 0 and 0
    0.3333
    """
    centred = rows - rows.mean(1, keepdim=True)
    length = torch.linalg.vector_norm(centred, dim=1)
    unit = centred[length > 0] / length[length > 0].unsqueeze(1)
    if len(unit) < 2:
        return math.nan
    i, j = torch.triu_indices(len(unit), len(unit), 1)
    return float((unit @ unit.T)[i, j].abs().mean())


def ties(logit: Tensor) -> float:
    """Return the share of samples [N, C] whose largest output is not alone, in percent.

    >>> ties(torch.tensor([[0.0, 0.0, -1.0], [0.0, -2.0, -1.0]]))
    50.0
    """
    largest = logit == logit.amax(1, keepdim=True)
    return 100 * float((largest.sum(1) > 1).double().mean())


def own_below(score: Tensor, y: Tensor) -> float:
    """Return the share of outputs [N, C] that are negative on average on their class, in percent.

    >>> own_below(torch.tensor([[-3.0, 1.0], [1.0, 2.0], [0.0, 5.0]]), torch.tensor([0, 0, 1]))
    50.0
    """
    means = torch.stack([score[y == c, c].mean() for c in range(score.shape[1])])
    return 100 * float((means < 0).double().mean())


def intruders(logit: Tensor, y: Tensor) -> float:
    """Return the share of samples of other classes above the median of the class, in percent.

    For output c of [N, C]: samples not of c whose output c is at least the median over samples of
    c. 50 by chance, 0 if all classes are apart; mean over outputs.

    >>> logit = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 2.0], [4.0, 1.0]])
    >>> intruders(logit, torch.tensor([0, 0, 0, 1]))  # the medians are 3 and 1
    66.66666666666666
    """
    shares = []
    for c in range(logit.shape[1]):
        own, others = logit[y == c, c], logit[y != c, c]
        shares.append(float((others >= own.quantile(0.5)).double().mean()))
    return 100 * sum(shares) / len(shares)


def read_nodes(hidden: Tensor, y: Tensor, classes: int) -> dict[str, float]:
    """Return how classes lie along hidden nodes, from pre-activations [N, H]."""
    from mahalens.studies.networks import BINS

    samples, nodes = hidden.shape
    hot = torch.nn.functional.one_hot(y, classes).to(hidden)
    sizes = hot.sum(0).unsqueeze(1)
    means = hot.T @ hidden / sizes  # [C, H]
    spreads = (hot.T @ (hidden - means[y]).square() / sizes).sqrt()
    apart = means.std(0)
    profiles = (means - means.mean(0))[:, apart > 0] / apart[apart > 0]
    # Each node cuts its values into parts of equally many samples.
    part = hidden.argsort(0).argsort(0) * BINS // samples  # [N, H]
    places = (torch.arange(nodes) * BINS + part) * classes + y.unsqueeze(1)
    counts = torch.bincount(places.flatten(), minlength=nodes * BINS * classes)
    hits = counts.reshape(nodes, BINS, classes).amax(2).sum(1)
    narrowest = spreads.amin(0)
    ratios = spreads.amax(0)[narrowest > 0] / narrowest[narrowest > 0]
    return {
        "class_correlation": mean_correlation(profiles),
        "node_accuracy": 100 * float(hits.max()) / samples,
        "node_spreads": float(ratios.median()) if len(ratios) else math.nan,
    }


def finish(config: MechanismsConfig, results: Results) -> None:
    """Add what ReLU2 loses against ReLU, and what outputs were before training."""
    from mahalens.studies.networks import training_data

    every = training_data(config.data, config.train_size, config.seed).classes
    for (pixels, name), measured in results.measures.items():
        start = "output_correlation_start"
        if start in measured.metrics:
            key = (pixels, f"untrained {name}", "output_correlation")
            results.evidence[key] = measured.values(start)
        network = NETWORKS[name]
        classes = network.classes or every
        base = results.measures.get((pixels, f"relu-of-{classes}" if network.classes else "relu"))
        lost = torch.full((measured.trials,), math.nan, dtype=torch.float64)
        if base is not None and network.base == "relu2" and not network.loss:
            best = base.metrics[ACCURACY]
            above = best - 100 / classes
            lost = torch.where(above > 0, 100 * (best - measured.metrics[ACCURACY]) / above, lost)
        metrics = {**measured.metrics, "lost": lost}
        results.measures[pixels, name] = replace(measured, metrics=metrics)
    results.cautions += study.still_learning(results.mean("late_gain"))


# --- The study --------------------------------------------------------------------------------


def _family(name: str) -> str:
    network = NETWORKS[name]
    if network.classes or network.loss:
        return "targets"
    if "l2" in network.base:
        return "heads"
    return "widths" if network.width != HIDDEN else "the six"


STUDY = Study(
    name="mechanisms",
    question="Do the explanations for failing networks show in numbers?",
    source=PAPER,
    config=MechanismsConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    primary=ACCURACY,
    variant="pixels",
    pairs=PAIRS,
    tested=(ACCURACY,),
    stacked=True,
    thing="network",
    shown=(ACCURACY, "dead_outputs", "lost", "output_correlation", "intruders", "centre_ratio"),
    remark="All networks of a trial start from the same first layer, if it is as wide. The paper "
    "names mechanisms, not numbers: what each predicts, and the bound, are ours.",
    plots=(
        Dots(
            name="accuracy",
            title="How accurate is each network?",
            metric=ACCURACY,
            family=_family,
        ),
        Against(
            name="width",
            title="Does Abs2-Neg fall behind Abs2 because of its further points?",
            caption="If it did, the gap would grow with the hidden units. Intruders are samples of "
            "other classes that an output prefers to half of its own.",
            metrics=(ACCURACY, "intruders"),
            at=lambda name: float(NETWORKS[name].width),
            line=lambda name: representation.MODELS[NETWORKS[name].base].label,
            label="hidden units",
            log=True,
            models=lambda name: NETWORKS[name].base in ("abs2", "abs2-neg"),
        ),
        Dots(
            name="dead",
            title="Do outputs die because most of their targets are off?",
            caption="If so, fewer would die with fewer classes and with balanced targets.",
            metric="dead_outputs",
            models=lambda name: NETWORKS[name].base == "relu2",
        ),
        Dots(
            name="correlation",
            title="Are the outputs of ReLU2-Neg decorrelated?",
            caption="If it needs decorrelated outputs, ReLU2-Neg lies left of ReLU.",
            metric="output_correlation",
            models=lambda name: name in PRIMARY,
        ),
        Spans(
            name="centres",
            title="How far are hyperplanes from the centres of classes?",
            caption="In spreads of an output, averaged over classes and trials; thin lines are "
            "95 % intervals. In theory the own centre lies at 0 in networks that end in Neg, and "
            "the others do in ReLU2 and Abs2. Grey: the interval of the ratio holds 1.",
            first="own_centre",
            second="other_centre",
            ratio="centre_ratio",
            label="distance from the hyperplane",
            words=("own nearer: distance", "others nearer: intensity", "no clear difference"),
            models=lambda name: name in PRIMARY,
        ),
    ),
)
