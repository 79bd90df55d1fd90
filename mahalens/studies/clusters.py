"""The cluster study: networks on mixtures of Gaussians, where all means and axes are known.

*Interpreting Neural Networks through Mahalanobis Distance* expects that the hyperplanes of a
trained network pass through cluster means, that a cluster's units are its axes, and that the next
layer gathers them into clusters. Here every mean and every axis is known, so each of these has a
number, and a chance level beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

from mahalens import auditing, data, init, nn, train
from mahalens.errors import InputError
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Average, Claim, Difference
from mahalens.studies.plots import Curves, Dots, Plane
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Option, Results, Study

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from mahalens.geometry.gaussian import Gaussian
    from mahalens.studies.run import Context
    from mahalens.train import TrialStack

# --- Models -----------------------------------------------------------------------------------

CLASSES, DISTANCES = "classes", "distances"
_ACTIVATIONS = {"abs": ("Abs", "#D55E00"), "relu": ("ReLU", "#0072B2")}
_TASKS = {CLASSES: "classify", DISTANCES: "measure"}
_KINDS = {
    "": ("", "one hidden layer, PyTorch's start"),
    "clusters": (", cluster start", "one hidden layer, started on the axes of the clusters"),
    "deep": (", deep", "two hidden layers"),
    "wide": (", wide", "four times the hidden units"),
}
_MARKERS = {"": "o", "clusters": "s", "deep": "^", "wide": "D"}
WIDE = 4
"""How many times the usual units a wide layer has."""


@dataclass(frozen=True)
class Network:
    """A network: its activation, what it is trained to output, and in what it is special."""

    activation: str
    task: str
    kind: str = ""

    @property
    def name(self) -> str:
        """Its name as a model."""
        return "-".join(filter(None, (self.activation, self.task, self.kind)))

    @property
    def model(self) -> Model:
        """How it is shown: colours tell activations apart, lines tasks, markers the rest."""
        label, colour = _ACTIVATIONS[self.activation]
        word, text = _KINDS[self.kind]
        goal = "the cluster of a sample" if self.task == CLASSES else "its distances to clusters"
        return Model(
            f"{label}, {self.task}{word}",
            f"{label} units, outputs {goal}, {text}",
            colour,
            _MARKERS[self.kind],
            "-" if self.task == CLASSES else "--",
        )

    def chain(self, inputs: int, hidden: int, clusters: int) -> nn.Chain:
        """Return its layers. The second hidden layer has as many units per cluster as axes in 4-D.

        >>> print(Network("abs", "classes", "deep").chain(2, 8, 3))
        Linear(8), Abs, Linear(12), Abs, Linear(3)
        """
        units = hidden * WIDE if self.kind == "wide" else hidden
        activation = _ACTIVATIONS[self.activation][0]
        widths = [units, 4 * clusters] if self.kind == "deep" else [units]
        layers = [f"Linear({width}), {activation}" for width in widths]
        return nn.Chain.parse(", ".join([*layers, f"Linear({clusters})"]), inputs=inputs)


NETWORKS = {
    network.name: network
    for activation in _ACTIVATIONS
    for task in _TASKS
    for kind in _KINDS
    for network in [Network(activation, task, kind)]
}
MODELS = {name: network.model for name, network in NETWORKS.items()}
PLAIN = tuple(name for name, network in NETWORKS.items() if not network.kind)

# --- Mixtures ---------------------------------------------------------------------------------

APART = {"apart": 8.0, "overlap": 2.0}
"""Distance between the two nearest means, in root mean square spreads of a cluster."""
STRETCH = {"round": 1.0, "stretched": 25.0}
"""Largest variance of a cluster over its smallest."""
DIMENSIONS = (2, 10, 50)
MIXTURES = {
    f"{dim}d-{apart}-{shape}": (dim, apart, shape)
    for dim in DIMENSIONS
    for apart in APART
    for shape in STRETCH
}
STRETCHED = tuple(name for name in MIXTURES if name.endswith("-stretched"))
_DRAWS = 32  # of means, of which the most even set is taken
_WORDS = {"apart": "separated", "overlap": "overlapping"}
TITLES = {
    name: f"{dim}-D, {_WORDS[apart]}, {shape}" for name, (dim, apart, shape) in MIXTURES.items()
}


def draw_mixture(mixture: str, clusters: int, generator: torch.Generator) -> Gaussian:
    """Draw the Gaussians of a mixture [K], float64, each with the same weight.

    Every cluster has variances from large to small in equal steps of their logarithm, with mean 1,
    along random axes. Means are standard normal draws, scaled until the nearest two are as far
    apart as the name says; of 32 draws the one whose distances differ least is taken. All is then
    shifted and scaled, so that the whole mixture has mean 0 and a mean variance of 1.
    """
    from mahalens.auditing.gaussian import random_rotation
    from mahalens.geometry.gaussian import Gaussian

    dim, apart, shape = MIXTURES[mixture]
    draws = torch.randn(_DRAWS, clusters, dim, generator=generator, dtype=torch.float64)
    i, j = torch.triu_indices(clusters, clusters, 1)
    pairs = torch.cdist(draws, draws)[:, i, j]  # [draws, pairs]
    best = int((pairs.amin(1) / pairs.mean(1)).argmax())
    means = draws[best] * (APART[apart] / pairs[best].min())
    variances = STRETCH[shape] ** -torch.linspace(0, 1, dim, dtype=torch.float64)
    deviations = (variances / variances.mean()).sqrt()
    axes = torch.stack([random_rotation(dim, generator) for _ in range(clusters)])
    means = means - means.mean(0)
    scale = (1 + means.square().sum(1).mean() / dim).rsqrt()
    stretched = axes * deviations * scale  # columns are axes
    return Gaussian.from_covariance(means * scale, stretched @ stretched.mT)


def draw_samples(
    mixture: Gaussian, samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw samples [N, D], as many of each cluster, and their clusters [N]."""
    x = mixture.sample(samples, generator)  # [K, n, D]
    return x.flatten(0, 1), torch.arange(len(mixture)).repeat_interleave(samples)


# --- Options ----------------------------------------------------------------------------------

MOST_UNITS = 64


class ClustersConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[
        tuple[str, ...],
        Option(
            "Mixtures to draw samples from.",
            tuple(MIXTURES),
            published=tuple(MIXTURES),
            shown="all",
            label="mixtures",
            choices=TITLES,
            subset=True,
            ordered=True,
        ),
    ]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    trials: Annotated[int, study.count_option("Trials, each with a new mixture.", 6)]
    epochs: Annotated[int, study.count_option("Steps of full-batch Adam.", 300)]
    clusters: Annotated[
        int, Option("Clusters of a mixture.", 4, published=4, least=2, most=1_000)
    ] = 4
    samples: Annotated[
        int,
        Option("Training samples of a cluster.", 250, published=250, least=2, most=10**6),
    ] = 250
    hidden: Annotated[
        int | None,
        Option(
            "Units of the hidden layer.",
            published=None,
            shown=f"one for each axis of each cluster, at most {MOST_UNITS}",
            label="hidden units",
            show=lambda units: "as usual" if units is None else str(units),
            least=1,
            most=100_000,
        ),
    ] = None
    learning_rate: Annotated[
        float, Option("Step of the solver.", 0.01, published=0.01, least=1e-12)
    ] = 0.01

    def units(self, dim: int) -> int:
        """Return how many units the usual hidden layer has."""
        return self.hidden or min(MOST_UNITS, self.clusters * dim)


# --- Metrics ----------------------------------------------------------------------------------

REACH = 0.5
"""A hyperplane passes through a mean that is so many spreads away, as in an audit."""

METRICS: dict[str, Metric] = {
    "test_accuracy": study.NETWORK_METRICS["test_accuracy"],
    "bayes_accuracy": Metric(
        "Best accuracy", "The same for the true densities: what can be reached.", "%", "high"
    ),
    "fit": Metric(
        "Fit of the distances",
        "Share of the variance of the true distances that the outputs explain, on test samples.",
        "%",
        "high",
    ),
    "through": Metric(
        "Through a mean",
        f"Hyperplanes at most {REACH:g} spreads from a true mean, but from no more than half of "
        "the means, which would single none out.",
        "%",
        None,
    ),
    "through_gain": Metric(
        "Through a mean, above chance",
        "The same less its chance level: every hyperplane moved to a random sample.",
        "points",
        "high",
    ),
    "through_change": Metric(
        "Through a mean, gained in training",
        "Share above chance after training less that before.",
        "points",
        "high",
    ),
    "between": Metric(
        "Between clusters",
        "Hyperplanes more than 1 spread from every mean, with means on both sides.",
        "%",
        None,
    ),
    "axes": Metric(
        "Along an axis",
        "Largest |cosine| of a weight row with the axes of the cluster that its hyperplane is "
        "nearest to, mean over units.",
        better=None,
    ),
    "axes_gain": Metric(
        "Along an axis, above chance", "The same less that of random directions.", better="high"
    ),
    "axes_over_whitening": Metric(
        "Along an axis, above whitening",
        "The same less that of the rows of a whitening of the cluster, rotated at random.",
        better="high",
    ),
    "whitened": Metric(
        "Clusters whitened",
        "How evenly the units nearest to a cluster measure it in all directions: 100 if their rows "
        "whiten it as far as so many rows can, 0 for a cluster without units; mean over clusters.",
        "%",
        "high",
    ),
    "whitened_gain": Metric(
        "Clusters whitened, above chance",
        "The same less that of the same rows rotated at random.",
        "points",
        "high",
    ),
    "gathers": Metric(
        "Gathered by the next layer",
        "Share of a unit's incoming weight that comes from units of one cluster, the largest; mean "
        "over the units of the second layer.",
        "%",
        None,
    ),
    "gathers_gain": Metric(
        "Gathered, above chance",
        "The same less that of first-layer units dealt to clusters at random.",
        "points",
        "high",
    ),
    "hidden_prototypes": Metric(
        "Prototypes of hidden units",
        "Samples of the nearest cluster that are closer to its true mean than the audit's "
        "prototypes of a unit (nearest its hyperplane); 50 by chance.",
        "%",
    ),
    "output_prototypes": Metric(
        "Prototypes of outputs",
        "The same of an output for its cluster: samples with an output nearest 0, or of largest "
        "score.",
        "%",
    ),
    "seconds": Metric("Time", "Training and reading, share of a trial.", "s"),
}

# --- Claims -----------------------------------------------------------------------------------

THEORY = "interpreting"


def _plain_claims(name: str) -> list[Claim]:
    """Return what the theory expects of a network with one hidden layer."""
    network, label = NETWORKS[name], MODELS[name].label
    nearest = "outputs nearest 0" if network.task == DISTANCES else "largest scores"
    return [
        Claim(
            f"{name}-through-means",
            f"{label}: hyperplanes pass through cluster means more often than by chance.",
            Average("through_gain", name, "above", 0.0),
        ),
        Claim(
            f"{name}-moves-to-means",
            f"{label}: training brings hyperplanes to cluster means.",
            Average("through_change", name, "above", 0.0),
        ),
        Claim(
            f"{name}-axes",
            f"{label}: weight rows lie along the axes of their cluster more than random directions "
            "do.",
            Average("axes_gain", name, "above", 0.0),
            on=STRETCHED,
        ),
        Claim(
            f"{name}-whitens",
            f"{label}: the rows of a cluster whiten it more than the same rows rotated.",
            Average("whitened_gain", name, "above", 0.0),
            on=STRETCHED,
        ),
        Claim(
            f"{name}-gathers",
            f"{label}: the next layer gathers units by cluster, more than by chance.",
            Average("gathers_gain", name, "above", 0.0),
        ),
        Claim(
            f"{name}-prototypes",
            f"{label}: the samples with the {nearest} lie near the true means, closer than 90 % of "
            "their cluster.",
            Average("output_prototypes", name, "below", 10.0),
        ),
    ]


def _compared(key: str, statement: str, metric: str, model: str, than: str) -> Claim:
    return Claim(key, statement, Difference(metric, model, than, "above", 0.0))


_DEPTH = [
    Claim(
        f"{name}-gathers",
        f"{MODELS[name].label}: the second hidden layer gathers units by cluster, more than by "
        "chance.",
        Average("gathers_gain", name, "above", 0.0),
    )
    for name in (f"{plain}-deep" for plain in PLAIN)
]
_OWN = [
    *(
        _compared(
            f"{activation}-distances-beat-classes",
            f"{label}: networks that measure distances put more hyperplanes through means than "
            "networks that classify.",
            "through_gain",
            f"{activation}-{DISTANCES}",
            f"{activation}-{CLASSES}",
        )
        for activation, (label, _) in _ACTIVATIONS.items()
    ),
    *(
        _compared(
            f"{task}-abs-beats-relu",
            f"Trained on {task}, Abs units pass through means more often than ReLU units.",
            "through_gain",
            f"abs-{task}",
            f"relu-{task}",
        )
        for task in _TASKS
    ),
    *(
        _compared(
            f"{name}-start-lasts",
            f"{MODELS[name].label}: a start on the clusters leaves more hyperplanes at means after "
            "training.",
            "through_gain",
            f"{name}-clusters",
            name,
        )
        for name in PLAIN
    ),
    *(
        _compared(
            f"{name}-{kind}-helps",
            f"{MODELS[name].label}: {change} brings more hyperplanes to means.",
            "through_gain",
            f"{name}-{kind}",
            name,
        )
        for kind, change in (("deep", "a second hidden layer"), ("wide", "a wider layer"))
        for name in PLAIN
    ),
]
CLAIMS = (
    *claims.claims_from(THEORY, *(c for name in PLAIN for c in _plain_claims(name)), *_DEPTH),
    *_OWN,
)
PAIRS = (
    *((f"{name}-{kind}", name) for name in PLAIN for kind in _KINDS if kind),
    *((f"abs-{task}", f"relu-{task}") for task in _TASKS),
    *((f"{activation}-{DISTANCES}", f"{activation}-{CLASSES}") for activation in _ACTIVATIONS),
)

# --- Measure ----------------------------------------------------------------------------------

POINTS = 12
"""How often hyperplanes are read while a network trains."""
ROTATIONS, PERMUTATIONS, DIRECTIONS = 20, 100, 4_000
"""Draws behind the chance levels of whitening, gathering and axes."""


def check(config: ClustersConfig, folder: Path | None) -> dict[str, Any]:
    """Refuse cluster starts that have too few axes or samples; return facts about the mixtures."""
    facts = {}
    for name in config.data:
        dim, apart, shape = MIXTURES[name]
        units = config.units(dim)
        for model in config.models:
            network = NETWORKS[model]
            axes = math.ceil(units / 2) if network.activation == "relu" else units
            most = config.clusters * min(dim, config.samples - 1)
            if network.kind == "clusters" and axes > most:
                raise InputError(
                    f"--hidden {units}: {model} starts each unit on an axis, and {config.clusters} "
                    f"clusters of {config.samples} samples in {dim}-D have {most}; give a smaller "
                    "--hidden, more --samples, or leave it out of --models"
                )
        facts[name] = {
            "dimensions": dim,
            "hidden_units": units,
            "distance_of_means": APART[apart],
            "variance_ratio": STRETCH[shape],
        }
    return {"mixtures": facts, "clusters": config.clusters, "epochs": config.epochs}


@dataclass(frozen=True)
class Trial:
    """One trial of a mixture: the truth, and samples drawn from it, float64."""

    mixture: Gaussian
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def draw(cls, config: ClustersConfig, name: str, trial: int) -> Trial:
        """Draw the mixture and the samples of a trial, the same for all models."""
        generator = data.stream(config.seed, "mixture", name, trial)
        mixture = draw_mixture(name, config.clusters, generator)
        x, y = draw_samples(mixture, config.samples, generator)
        return cls(mixture, x, y, *draw_samples(mixture, config.samples, generator))

    def distances(self, x: Tensor) -> Tensor:
        """Return the distances of samples [N, D] to all clusters in spreads [N, K]."""
        return self.mixture.mahalanobis(x).T

    @property
    def scale(self) -> float:
        """The root mean square of the training distances, which targets are divided by."""
        return float(self.distances(self.x).square().mean().sqrt())


def measure(config: ClustersConfig, job: Job, context: Context) -> dict[str, Measures]:
    """Train one network in the job's trials, each on its own mixture, and read it."""
    import time

    began = time.perf_counter()
    network = NETWORKS[job.work]
    trials = [Trial.draw(config, job.variant, trial) for trial in job.trials]
    start = _start(config, network, job.trials, trials)
    solver = _train(config, network, start, trials, context)
    gained = solver.history["through_gain"].T.double().cpu()
    stack = solver.stack
    rows = []
    for place, (number, trial) in enumerate(zip(job.trials, trials, strict=True)):
        context.look()
        generator = data.stream(config.seed, "chance", job.variant, job.work, number)
        module = stack[place].cpu()
        rows.append(
            read_network(module, trial, generator) | _scores(network, module, trial)
            if bool(stack.values[place].isfinite().all())
            else {}
        )
    names = [name for name in METRICS if any(name in row for row in rows)] or ["through"]
    metrics = {n: torch.tensor([row.get(n, math.nan) for row in rows]).double() for n in names}
    metrics["through_change"] = gained[:, -1] - gained[:, 0]
    seconds = time.perf_counter() - began
    metrics["seconds"] = torch.full((len(trials),), seconds / len(trials)).double()
    plots = {}
    if trials[0].x.shape[1] == 2:
        plots = _first_layer(stack, 0) | {
            f"start_{n}": a for n, a in _first_layer(start, 0).items()
        }
    return {
        job.work: Measures(
            metrics=metrics,
            seconds=seconds,
            curves={"through_gain": (solver.history.epochs, gained)},
            plots=plots,
            weights=stack.tensors(),
            chain=str(stack.chain),
        )
    }


def _first_layer(stack: TrialStack, trial: int) -> dict[str, Tensor]:
    tensors = stack.tensors()
    return {n: tensors[f"0.{n}"][trial].double().cpu().clone() for n in ("weight", "bias")}


def _start(
    config: ClustersConfig, network: Network, numbers: Sequence[int], trials: Sequence[Trial]
) -> TrialStack:
    """Return untrained networks; those of one shape start from the same weights in a trial."""
    from mahalens.studies.networks import start_of

    dim = trials[0].x.shape[1]
    chain = network.chain(dim, config.units(dim), config.clusters)
    start = start_of(chain, config.seed, numbers)
    if network.kind == "clusters":
        modules: list[Any] = [start[place] for place in range(len(trials))]
        for number, module, trial in zip(numbers, modules, trials, strict=True):
            init.cluster_pca_(
                module[0],
                trial.x.float(),
                trial.y,
                mirror=network.activation == "relu",
                generator=data.stream(config.seed, "cluster start", number),
            )
        start = train.TrialStack.from_modules(chain, modules)
    return train.TrialStack(chain, start.values.to(config.device))


def _train(
    config: ClustersConfig,
    network: Network,
    start: TrialStack,
    trials: Sequence[Trial],
    context: Context,
) -> Any:
    """Train all trials at once by full-batch Adam, reading the hyperplanes on the way."""
    from mahalens.studies.networks import measured_epochs

    x = torch.stack([trial.x for trial in trials]).float().to(config.device)
    if network.task == CLASSES:
        y = torch.stack([trial.y for trial in trials]).to(config.device)
        objective: Any = train.CrossEntropy(start.model, x, y, engine=context.engine)
    else:
        targets = [trial.distances(trial.x) / trial.scale for trial in trials]
        y = torch.stack(targets).float().to(config.device)
        objective = train.MeanSquaredError(start.model, x, y, engine=context.engine)
    solver = train.Adam(objective, start, config.epochs, lr=config.learning_rate)

    def read(running: Any) -> dict[str, Tensor]:
        rows = []
        for place, trial in enumerate(trials):
            layer = _first_layer(running.stack, place)
            planes = read_planes(layer["weight"], layer["bias"], trial.mixture, trial.x)
            rows.append(through(planes)["through_gain"])
        return {"through_gain": torch.tensor(rows, dtype=torch.float64)}

    at = measured_epochs(config.epochs, POINTS)
    return context.drive("training", solver, share=(0.0, 0.8), metrics=read, at=at)


# --- Reading ----------------------------------------------------------------------------------


def read_network(module: Module, trial: Trial, generator: torch.Generator) -> dict[str, float]:
    """Return all readings of a network whose first two linear maps are the layers 0 and 2."""
    layers: Any = module
    weight, bias = (part.detach().double() for part in (layers[0].weight, layers[0].bias))
    planes = read_planes(weight, bias, trial.mixture, trial.x)
    with torch.no_grad():
        hidden = layers[1](layers[0](trial.x.float())).double()
    nearest = planes.nearest
    return {
        **through(planes),
        **axes_along(weight, nearest, trial.mixture),
        **whitened(weight, nearest, trial.mixture, generator),
        **gathered(
            layers[2].weight.detach().double(), hidden, nearest, len(trial.mixture), generator
        ),
    }


class Planes(NamedTuple):
    """Hyperplanes among K clusters: where the means lie, and which ones they pass through."""

    spreads: Tensor
    """Signed distances of the means, in spreads of their clusters along the normal [K, H]."""
    nearest: Tensor
    """The cluster whose mean is the fewest spreads away [H]; -1 for none."""
    through: Tensor
    """Whether it passes through a mean, but not near more than half of them [H]."""
    common: Tensor
    """Whether it is near more than half of the means [H]."""
    chance: Tensor
    """How often it would pass through a mean if it were moved to a random sample [H]."""


def read_planes(weight: Tensor, bias: Tensor, mixture: Gaussian, x: Tensor) -> Planes:
    """Return where hyperplanes [H, D], [H] lie among the true clusters and samples [N, D].

    The reading of an audit (:func:`mahalens.auditing.readings.read_hyperplanes`), with the true
    means and spreads in the place of those of the samples.
    """
    from mahalens.auditing.readings import GRID, ascending_rows, quantiles_of, read_hyperplanes

    z = x @ weight.T + bias  # [N, H]
    spreads = torch.linalg.vector_norm(weight @ mixture.factor, dim=-1)  # √(wᵀΣw) [K, H]
    read = read_hyperplanes(
        length=torch.linalg.vector_norm(weight, dim=1),
        mean=z.mean(0),
        std=z.std(0),
        positive=(z > 0).double().mean(0),
        grid=quantiles_of(ascending_rows(z), GRID),
        class_mean=mixture.mean @ weight.T + bias,
        class_std=spreads,
        through=REACH,
    )
    parts = (read.class_spreads, read.nearest, read.through, read.common, read.chance)
    return Planes(*(cast("Tensor", part) for part in parts))


def through(planes: Planes) -> dict[str, float]:
    """Return the share of hyperplanes through a mean, above chance, and that between clusters.

    Hyperplanes near more than half of the means are left aside, as is the chance of becoming one.
    """
    counted = planes.chance.isfinite() & ~planes.common
    passing = planes.through[counted].double()
    spreads = planes.spreads
    both = (spreads > 0).any(0) & (spreads < 0).any(0)
    between = (spreads.abs() > 1).all(0) & both
    return {
        "through": _percent(passing),
        "through_gain": _percent(passing - planes.chance[counted]),
        "between": _percent(between.double()),
    }


def axes_along(weight: Tensor, nearest: Tensor, mixture: Gaussian) -> dict[str, float]:
    """Return the largest |cosine| of each row with the axes of its cluster, and above chance.

    NaN where clusters are round: every direction is an axis then.
    """
    empty = dict.fromkeys(("axes", "axes_gain", "axes_over_whitening"), math.nan)
    values, vectors = mixture.spectrum  # [K, D], [K, D, D]
    if bool((values[:, 0] < values[:, -1] * (1 + 1e-6)).any()):
        return empty
    known = (nearest >= 0) & (weight.norm(dim=1) > 0)
    if not bool(known.any()):
        return empty
    rows = weight[known] / weight[known].norm(dim=1, keepdim=True)
    cosines = (rows.unsqueeze(1) @ vectors[nearest[known]]).squeeze(1).abs()
    axes = float(cosines.amax(1).mean())
    uniform, rotated = axes_chance(tuple((values[0] / values[0, 0]).tolist()))
    return {"axes": axes, "axes_gain": axes - uniform, "axes_over_whitening": axes - rotated}


@study.remember(64)
def axes_chance(variances: tuple[float, ...]) -> tuple[float, float]:
    """Return the mean largest |cosine| with the axes: of random directions, of rotated whitenings.

    In the basis of the axes a random direction is ``g / ‖g‖`` with g standard normal, and a row of
    a randomly rotated whitening ``Λ^(-1/2) g`` over its length.
    """
    generator = data.stream(0, "axes", len(variances))
    g = torch.randn(DIRECTIONS, len(variances), generator=generator, dtype=torch.float64)
    white = g / torch.tensor(variances, dtype=torch.float64).sqrt()
    uniform, rotated = (float((v.abs().amax(1) / v.norm(dim=1)).mean()) for v in (g, white))
    return uniform, rotated


def whitened(
    weight: Tensor, nearest: Tensor, mixture: Gaussian, generator: torch.Generator
) -> dict[str, float]:
    """Return how far the rows of each cluster whiten it, and above the same rows rotated.

    With W the n rows nearest to a cluster and ``M = WΣWᵀ``, ``(tr M)² / (min(n, D) tr M²)``: 1 if
    all eigenvalues of M that can differ from 0 are equal, as for any rotation of a whitening.
    """
    groups = [weight[nearest == cluster] for cluster in range(len(mixture))]

    def score(turn: Tensor | None) -> float:
        shares = []
        for rows, factor in zip(groups, mixture.factor, strict=True):
            white = (rows if turn is None else rows @ turn) @ factor
            gram = white.T @ white if len(white) > white.shape[1] else white @ white.T
            total, square = gram.trace(), gram.square().sum()
            shares.append(float(total**2 / (len(gram) * square)) if square > 0 else 0.0)
        return 100 * sum(shares) / len(shares)

    from mahalens.auditing.gaussian import random_rotation

    own = score(None)
    turns = [random_rotation(mixture.dim, generator) for _ in range(ROTATIONS)]
    return {
        "whitened": own,
        "whitened_gain": own - sum(score(turn) for turn in turns) / len(turns),
    }


def gathered(
    weight: Tensor,
    hidden: Tensor,
    nearest: Tensor,
    clusters: int,
    generator: torch.Generator,
) -> dict[str, float]:
    """Return how far units of the next layer [J, H] read units of one cluster, and above chance.

    A unit reads ``|v| s`` from each unit below, with s the spread of its activation [N, H]. Chance
    deals the same clusters to the units below at random.
    """
    mass = weight.abs() * hidden.std(0)
    total = mass.sum(1)
    mass = mass[total > 0] / total[total > 0].unsqueeze(1)
    if not len(mass):
        return {}
    owner = torch.nn.functional.one_hot(nearest.clamp(min=0), clusters).double()
    owner = owner * (nearest >= 0).unsqueeze(1)

    def score(order: Tensor) -> float:
        return 100 * float((mass @ owner[order]).amax(1).mean())

    count = len(owner)
    own = score(torch.arange(count))
    draws = (torch.randperm(count, generator=generator) for _ in range(PERMUTATIONS))
    return {"gathers": own, "gathers_gain": own - sum(map(score, draws)) / PERMUTATIONS}


def _scores(network: Network, module: Module, trial: Trial) -> dict[str, float]:
    """Return how well the network does its task, and where the audit's prototypes lie."""
    with torch.no_grad():
        output = module(trial.test_x.float()).double()
    scores = prototypes(network, module, trial)
    if network.task == DISTANCES:
        true = trial.distances(trial.test_x) / trial.scale
        rest = (output - true).square().mean() / true.var(correction=0)
        return {**scores, "fit": 100 * float(1 - rest)}
    best = trial.mixture.log_density(trial.test_x).argmax(0)
    return {
        **scores,
        "test_accuracy": _percent((output.argmax(1) == trial.test_y).double()),
        "bayes_accuracy": _percent((best == trial.test_y).double()),
    }


def prototypes(network: Network, module: Module, trial: Trial) -> dict[str, float]:
    """Return how many samples of a cluster lie closer to its mean than the audit's prototypes.

    In percent, mean over units: of hidden units the samples nearest their hyperplanes, for the
    cluster each is nearest to; of outputs the samples of smallest distance or of largest score.
    """
    record = auditing.audit(
        module, (trial.x.float(), trial.y), baseline=None, examples=False, nodes=[]
    )
    first, last = record.layers[0], record.layers[-1]
    distances = trial.distances(trial.x)
    means = {}
    planes = first.hyperplanes
    if first.prototypes is not None and planes is not None and planes.nearest is not None:
        means["hidden_prototypes"] = closer_share(
            first.prototypes.near_sample, planes.nearest, distances, trial.y
        )
    if last.prototypes is not None:
        chosen = last.prototypes
        sample = chosen.near_sample if network.task == DISTANCES else chosen.active_sample
        means["output_prototypes"] = closer_share(
            sample, torch.arange(len(sample)), distances, trial.y
        )
    return means


def closer_share(sample: Tensor, cluster: Tensor, distances: Tensor, y: Tensor) -> float:
    """Return how many samples of a cluster lie closer to its mean than some prototypes, in percent.

    Args:
        sample: numbers of the samples that are prototypes of each unit [H, P]; -1 for none.
        cluster: the cluster of each unit [H]; -1 for none.
        distances: of all samples to all clusters [N, K].
        y: the clusters of the samples [N].

    >>> distances = torch.tensor([[1.0, 9.0], [2.0, 9.0], [9.0, 1.0]])
    >>> closer_share(torch.tensor([[1]]), torch.tensor([0]), distances, torch.tensor([0, 0, 1]))
    50.0
    """
    shares = []
    for unit, own in zip(sample, cluster.tolist(), strict=True):
        unit = unit[unit >= 0]
        if own >= 0 and len(unit):
            closer = distances[y == own, own] < distances[unit, own].unsqueeze(1)
            shares.append(float(closer.double().mean()))
    return 100 * sum(shares) / len(shares) if shares else math.nan


def _percent(values: Tensor) -> float:
    return 100 * float(values.mean()) if len(values) else math.nan


# --- Figures ----------------------------------------------------------------------------------

GRID = 161
SHOWN = ("2d-apart-stretched", *(name for name in MIXTURES if name.startswith("2d-")))
"""The mixtures for the picture in the plane, best first."""
BEFORE, CLUSTERS = "before", "before-clusters"
_STARTS = {BEFORE: "Before training", CLUSTERS: "Cluster start, before training"}


def finish(config: ClustersConfig, results: Results) -> None:
    """Add the plane of the first trial on one 2-D mixture, and drop the arrays of the others."""
    variant = next((name for name in SHOWN if name in config.data), None)
    if variant is not None:
        results.plots |= _plane(config, variant, results.measures)
    for key, own in results.measures.items():
        results.measures[key] = replace(own, plots={})


def _plane(
    config: ClustersConfig, variant: str, measures: Mapping[tuple[str, str], Measures]
) -> dict[str, Tensor]:
    """Return true clusters, samples, and the hyperplanes before and after training."""
    trial = Trial.draw(config, variant, 0)
    low, high = trial.x.amin(0), trial.x.amax(0)
    reach = 0.54 * float((high - low).max())
    steps = torch.linspace(-reach, reach, GRID, dtype=torch.float64)
    grid_x, grid_y = ((low + high) / 2)[:, None] + steps
    points = torch.cartesian_prod(grid_y, grid_x).flip(1)
    plots = {
        "plane/mean": trial.mixture.mean,
        "plane/samples": trial.x[:: max(1, len(trial.x) // 400)],
        "plane/grid_x": grid_x,
        "plane/grid_y": grid_y,
        "plane/true": trial.distances(points).amin(1).reshape(GRID, GRID),
    }
    layers: dict[str, Mapping[str, Tensor]] = {}
    for (where, model), own in measures.items():
        if where == variant and own.plots:
            start = {name: own.plots[f"start_{name}"] for name in ("weight", "bias")}
            if not NETWORKS[model].kind:
                layers |= {model: own.plots, BEFORE: start}
            elif model == f"abs-{CLASSES}-clusters":
                layers[CLUSTERS] = start
    for model, layer in layers.items():
        planes = read_planes(layer["weight"], layer["bias"], trial.mixture, trial.x)
        shown = {"weight": layer["weight"], "bias": layer["bias"], "through": planes.through}
        plots |= {f"plane/{model}/{name}": array.double() for name, array in shown.items()}
    return plots


STUDY = Study(
    name="clusters",
    question="Do hyperplanes of trained networks pass through the means of known clusters?",
    source=THEORY,
    config=ClustersConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=lambda config: study.jobs_of(config.data, config.models, config.trials),
    measure=measure,
    finish=finish,
    reads=lambda config: (),
    primary="through_gain",
    pairs=PAIRS,
    tested=("through_gain",),
    model=lambda name: Model(_STARTS[name]) if name in _STARTS else None,
    titles=TITLES,
    shown=("through", "through_gain", "axes_gain", "whitened", "gathers_gain", "output_prototypes"),
    thing="network",
    remark="Every trial draws a new mixture. All networks of a trial share its samples, and those "
    "of one shape their starting weights.",
    plots=(
        Plane(
            name="plane",
            title="Where do hyperplanes lie before and after training?",
            caption="The first trial in two dimensions. All networks of PyTorch's start begin as "
            "the panel Before training. In theory hyperplanes end on the crosses, across the axes "
            "of the ellipses.",
            panels=(
                BEFORE,
                *(f"{activation}-{CLASSES}" for activation in _ACTIVATIONS),
                CLUSTERS,
                *(f"{activation}-{DISTANCES}" for activation in _ACTIVATIONS),
            ),
        ),
        Dots(
            title="Do hyperplanes pass through means more often than by chance?",
            metric="through_gain",
            family=lambda model: NETWORKS[model].task,
        ),
        Curves(
            name="training",
            title="Does training bring hyperplanes to the means?",
            caption="Points above chance. Above zero and rising is what the theory expects.",
            column="through_gain",
            models=lambda model: not NETWORKS[model].kind,
        ),
        Dots(
            name="prototypes",
            title="Do the audit's prototypes of outputs lie on the means?",
            caption="0: on the true mean; 50: as far as a random sample of the cluster.",
            metric="output_prototypes",
            family=lambda model: NETWORKS[model].task,
            models=lambda model: not NETWORKS[model].kind,
        ),
    ),
)
