"""The penalties study: do orthogonal rows or white pre-activations help a network generalise?

Asked by *Interpreting Neural Networks through Mahalanobis Distance*: a whitening is not unique, and
a penalty could choose among them. Every penalty is added to the cross-entropy with a strength that
each trial chooses on held-out training samples. Training sets are small by default, because that
is where generalisation shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mahalens import data, nn, train
from mahalens.errors import InputError
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Claim, Difference, GainsMore, Ratio
from mahalens.studies.plots import Differences, Dots
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Option, Results, Study

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.studies.run import Context
    from mahalens.studies.samples import Samples
    from mahalens.train import TrialStack

# --- Penalties --------------------------------------------------------------------------------

Weights = Mapping[str, "Tensor"]
"""Parameters of one network by their names in ``state_dict``."""
HIDDEN, OUTPUT = "0.weight", "2.weight"


def whitening_penalty(weight: Tensor, covariance: Tensor) -> Tensor:
    """Return ``‖W Σ Wᵀ − I‖² / K``: 0 if the outputs of K rows are white, 1 if they are constant.

    Every rotation of a whitening is white, too. Shapes: weight ``[K, D]``, covariance ``[D, D]``.

    >>> import torch
    >>> whitening_penalty(torch.tensor([[0.5, 0.0], [0.0, 1.0]]), torch.tensor([4.0, 1.0]).diag())
    tensor(0.)
    """
    error = weight @ covariance @ weight.mT - torch.eye(len(weight), device=weight.device)
    return error.square().sum() / len(weight)


@dataclass(frozen=True)
class Penalty:
    """A term of the loss: its function of weights and Σ, and the strengths to choose from.

    ``aim`` is the metric that the penalty says to lower.
    """

    label: str
    text: str
    colour: str
    strengths: tuple[float, ...] = (0.0,)
    term: Callable[[Weights, Tensor], Tensor] | None = None
    aim: str = ""


def _white(weights: Weights, covariance: Tensor) -> Tensor:
    return whitening_penalty(weights[HIDDEN], covariance)


def _orthogonal(weights: Weights, covariance: Tensor | None = None) -> Tensor:
    return nn.orthogonality_penalty(weights[HIDDEN], covariance)


PENALTIES = {
    "none": Penalty("plain", "cross-entropy alone", "#777777"),
    "decay": Penalty(
        "decay",
        "weight decay: half the squared weights of both layers",
        "#000000",
        (0.001, 0.01, 0.1),
        lambda weights, _: (weights[HIDDEN].square().sum() + weights[OUTPUT].square().sum()) / 2,
    ),
    "orthogonal": Penalty(
        "orthogonal",
        "the mean squared cosine between rows of the first layer",
        "#0072B2",
        (0.1, 1.0, 10.0),
        lambda weights, _: _orthogonal(weights),
        "row_cosine",
    ),
    "uncorrelated": Penalty(
        "uncorrelated",
        "the mean squared correlation between hidden pre-activations: rows at right angles in the "
        "metric of the inputs' covariance",
        "#009E73",
        (0.1, 1.0, 10.0),
        _orthogonal,
        "correlation",
    ),
    "white": Penalty(
        "white",
        "the squared distance of the pre-activations' covariance from the identity",
        "#D55E00",
        (0.001, 0.01, 0.1),
        _white,
        "whitening_error",
    ),
    "axes": Penalty(
        "white+orthogonal",
        "the sum of both: 0 at the PCA whitening",
        "#CC79A7",
        (0.001, 0.01, 0.1),
        lambda weights, covariance: _white(weights, covariance) + _orthogonal(weights),
        "whitening_error",
    ),
}
PROPOSED = ("orthogonal", "uncorrelated", "white", "axes")
"""The penalties that the open question is about; weight decay is their ordinary rival."""

# --- Models and options -----------------------------------------------------------------------

ACTIVATIONS = {"abs": "Abs", "relu": "ReLU"}
MODELS = {
    f"{short}-{name}": Model(
        f"{activation} {penalty.label}",
        f"{activation} units; {penalty.text}",
        penalty.colour,
        "o" if short == "abs" else "s",
    )
    for short, activation in ACTIVATIONS.items()
    for name, penalty in PENALTIES.items()
}
DEFAULT_DATA = ("digits", "wine", "breast-cancer", "iris")
FULL_DATA = (*DEFAULT_DATA, "mnist", "fashion-mnist")


def split(model: str) -> tuple[str, Penalty]:
    """Return the activation function of a model and its penalty.

    >>> split("relu-white")[0], split("relu-white")[1].label
    ('ReLU', 'white')
    """
    short, _, name = model.partition("-")
    return ACTIVATIONS[short], PENALTIES[name]


class PenaltiesConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[tuple[str, ...], study.data_option(DEFAULT_DATA, FULL_DATA)]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    trials: Annotated[int, study.count_option("Trials of each model.", 10, full=20)]
    epochs: Annotated[int, study.count_option("Epochs of training.", 150, large=60)]
    train_size: Annotated[
        int,
        Option(
            "Most training samples of a data set, few on purpose.",
            study.unless_large(60, 1_000),
            published=study.unless_large(60, 1_000),
            shown="60; 1000 with large data sets",
            label="training samples",
            show=lambda size: f"at most {size:,}",
            least=4,
        ),
    ]
    hidden: Annotated[
        int,
        Option(
            "Hidden units; where there are fewer inputs, one for each.",
            32,
            published=32,
            label="hidden units",
            least=1,
            most=100_000,
        ),
    ] = 32
    learning_rate: Annotated[
        float, Option("Step of Adam, the same for all models.", 0.01, published=0.01, least=1e-12)
    ] = 0.01

    def units(self, inputs: int) -> int:
        """Return the number of hidden units: more rows than inputs cannot all be orthogonal."""
        return min(self.hidden, inputs)


# --- Metrics ----------------------------------------------------------------------------------

METRICS: dict[str, Metric] = {
    "test_accuracy": study.NETWORK_METRICS["test_accuracy"],
    "train_accuracy": study.NETWORK_METRICS["train_accuracy"],
    "gap": Metric("Gap", "Training accuracy less test accuracy.", "points"),
    "test_loss": Metric("Test loss", "Cross-entropy on test samples, without penalty.", log=True),
    "train_loss": Metric("Training loss", "The same on training samples.", "", None, log=True),
    "row_cosine": Metric(
        "Cosine between rows",
        "Root mean square over pairs of rows of the first layer: 0 at right angles.",
    ),
    "correlation": Metric(
        "Correlation of pre-activations",
        "Root mean square over pairs of hidden units, on training samples.",
    ),
    "whitening_error": Metric(
        "Whitening error",
        "Distance of the covariance of pre-activations from the identity, on training samples, "
        "divided by the root of the number of units: 0 is white, 1 is what constants have.",
        log=True,
    ),
    "axis_cosine": Metric(
        "Cosine with an axis",
        "Of each row with the nearest principal axis of the training samples, mean over rows.",
        better=None,
    ),
    "start_row_cosine": Metric("Cosine between rows, start", "Before training.", better=None),
    "start_correlation": Metric("Correlation, start", "Before training.", better=None),
    "start_whitening_error": Metric("Whitening error, start", "Before training.", better=None),
    "dead": Metric("Dead units", "Hidden units that exceed 1e-6 on no training sample.", "%"),
    "strength": Metric(
        "Strength", "Of the penalty: the best on held-out training samples.", better=None, log=True
    ),
    "seconds": Metric("Time", "Of the last training of a trial, without the choice.", "s"),
}

# --- Claims -----------------------------------------------------------------------------------

ACCURACY = "test_accuracy"
THEORY = "interpreting"
HALF = 0.5
"""A penalty does what it says if its measure is below so much of that without penalty."""


def _about(short: str, name: str, sets: Sequence[str]) -> list[Claim]:
    """Return the claims about one penalty with one activation function."""
    model, none, decay = (f"{short}-{other}" for other in (name, "none", "decay"))
    aim, mean = PENALTIES[name].aim, "in the mean over all sets."
    rows: dict[str, tuple[str, claims.Predicate]] = {
        "generalises": (
            f"test accuracy is higher than without a penalty, {mean}",
            Difference(ACCURACY, model, none, "above", 0.0),
        ),
        "narrows-gap": (
            f"the gap between training and test accuracy is narrower than without, {mean}",
            Difference("gap", model, none, "below", 0.0),
        ),
    }
    if aim:
        rows["beats-decay"] = (
            f"test accuracy is higher than with weight decay, {mean}",
            Difference(ACCURACY, model, decay, "above", 0.0),
        )
        rows["does-what-it-says"] = (
            f"on every set the {METRICS[aim].label.lower()} is less than half of that without.",
            claims.every(
                Ratio(aim, study.name_of(model, one), study.name_of(none, one), "below", HALF)
                for one in sets
            ),
        )
    source = {"generalises": THEORY, "narrows-gap": THEORY} if aim else {}
    return [
        Claim(
            f"{model}-{key}",
            f"{MODELS[model].label}: {text}",
            predicate,
            source.get(key, claims.OURS),
            each=False,
        )
        for key, (text, predicate) in rows.items()
    ]


def claims_of(config: PenaltiesConfig) -> tuple[Claim, ...]:
    """Return the claims, each about all data sets of a run together."""
    sets = [study.variant_name(name) for name in config.data]
    more = [
        Claim(
            f"{name}-helps-abs-more",
            f"The penalty {PENALTIES[name].label!r} gains more test accuracy with Abs units than "
            "with ReLU units, in the mean over all sets.",
            GainsMore(ACCURACY, f"abs-{name}", "abs-none", f"relu-{name}", "relu-none"),
            each=False,
        )
        for name in PROPOSED
        if {f"abs-{name}", f"relu-{name}"}.issubset(config.models)
    ]
    each = [
        claim
        for name in (*PROPOSED, "decay")
        for short in ACTIVATIONS
        if f"{short}-{name}" in config.models
        for claim in _about(short, name, sets)
    ]
    return (*each, *more)


PAIRS = tuple(
    (f"{short}-{name}", f"{short}-{than}")
    for than in ("none", "decay")
    for short in ACTIVATIONS
    for name in PENALTIES
    if name not in ("none", than)
)
"""Each penalty beside none, and each beside weight decay."""

# --- Measure ----------------------------------------------------------------------------------

AT_ONCE = 10
"""Trials of a job on a small set."""
OFTEN = 0.5
"""Share of trials at the weakest or strongest penalty that calls for a caution."""
ACTIVE = 1e-6
"""An activation above this counts as one."""


def check(config: PenaltiesConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data sets; refuse one with too few samples to hold some out."""
    from mahalens.studies.samples import check_sets, option_of
    from mahalens.studies.transfer import FOLDS

    facts = check_sets(config.data, config.train_size)
    for name in config.data:
        about = facts[study.variant_name(name)]
        if about["training_samples"] < FOLDS:
            raise InputError(
                f"{option_of(name, config.train_size)}: {about['training_samples']} training "
                f"samples; give at least {FOLDS}, some to be held out"
            )
        about["units"] = config.units(about["inputs"])
    return {"data": facts, "epochs": config.epochs}


def jobs(config: PenaltiesConfig) -> list[Job]:
    """Cut the work: some trials of one model; one by one where samples may be many."""
    return [
        job
        for name in config.data
        for job in study.jobs_of(
            [name], config.models, config.trials, AT_ONCE if name in DEFAULT_DATA else 1
        )
    ]


def measure(config: PenaltiesConfig, job: Job, context: Context) -> dict[str, Measures]:
    """Choose the strength of each trial, train it on all of its samples, and test it."""
    from mahalens.studies.samples import samples_of

    how: dict[str, Any] = {"seed": config.seed, "train_size": config.train_size}
    sets = [samples_of(job.variant, trial=t, **how).to(config.device) for t in job.trials]
    fit = partial(_fit, config, context, job.work, sets[0].classes)
    strengths, choosing = _choose(config, job, sets, fit)
    x, y = torch.stack([s.x for s in sets]), torch.stack([s.y for s in sets])
    stack, seconds = fit("training", list(job.trials), x, y, strengths)
    start, covariance = _start(config, job.work, sets[0].classes, job.trials, x), covariance_of(x)
    before = {f"start_{name}": values for name, values in row_measures(start, covariance).items()}
    test = [judge(stack, t, s.test_x, s.test_y) for t, s in enumerate(sets)]
    known = [judge(stack, t, s.x, s.y) for t, s in enumerate(sets)]
    (accuracy, loss), (train_accuracy, train_loss) = (
        torch.tensor(part, dtype=torch.float64).T for part in (test, known)
    )
    metrics = {
        "test_accuracy": accuracy,
        "train_accuracy": train_accuracy,
        "gap": train_accuracy - accuracy,
        "test_loss": loss,
        "train_loss": train_loss,
        **row_measures(stack, covariance),
        "axis_cosine": axis_cosines(stack, covariance),
        **before,
        "dead": dead_units(stack, x),
        "strength": strengths,
        "seconds": torch.full((len(sets),), seconds / len(sets)),
    }
    if split(job.work)[1].term is None:
        del metrics["strength"]
    lost = ~loss.isfinite()  # a trial that ran away has no reading
    measures = Measures(
        metrics={n: torch.where(lost, math.nan, v.double().cpu()) for n, v in metrics.items()},
        seconds=choosing + seconds,
        weights=stack.tensors(),
    )
    return {job.work: measures}


def _choose(
    config: PenaltiesConfig, job: Job, sets: Sequence[Samples], fit: Callable[..., Any]
) -> tuple[Tensor, float]:
    """Return the strength of each trial ``[T]`` and the seconds that the choice took.

    All strengths train on the same parts of the training samples; the rest judges them.
    """
    from mahalens.studies.transfer import folds_of

    strengths = split(job.work)[1].strengths
    if len(strengths) == 1:
        return torch.full((len(sets),), strengths[0], dtype=torch.float64), 0.0
    trials, parts = [], []
    for trial, samples in zip(job.trials, sets, strict=True):
        folds = folds_of(samples.y.cpu(), data.stream(config.seed, "folds", trial))
        parts += [(samples, fold) for fold in folds for _ in strengths]
        trials += [trial] * (len(folds) * len(strengths))
    x, y = (torch.stack([getattr(s, name)[f.fit] for s, f in parts]) for name in "xy")
    offered = torch.tensor(strengths, dtype=torch.float64)
    stack, seconds = fit("choice", trials, x, y, offered.repeat(len(parts) // len(strengths)))
    scores = [judge(stack, t, s.x[f.held], s.y[f.held]) for t, (s, f) in enumerate(parts)]
    accuracy, loss = (
        column.reshape(len(sets), -1, len(strengths)).mean(1)
        for column in torch.tensor(scores, dtype=torch.float64).T
    )
    return offered[best_of(accuracy, loss)], seconds


def best_of(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Return the column ``[T]`` with the highest accuracy ``[T, S]``, of equals the lowest loss.

    >>> import torch
    >>> best_of(torch.tensor([[90.0, 95.0, 95.0]]), torch.tensor([[0.1, 0.3, 0.2]]))
    tensor([2])
    """
    # A network that ran away is taken last; sums of equal shares may differ in their last digits.
    accuracy = accuracy.nan_to_num(-1.0).round(decimals=3)
    best = accuracy == accuracy.max(1, keepdim=True).values
    return torch.where(best, loss.nan_to_num(math.inf), math.inf).argmin(1)


# --- Training ---------------------------------------------------------------------------------


def _start(
    config: PenaltiesConfig, model: str, classes: int, trials: Sequence[int], x: Tensor
) -> TrialStack:
    """Return untrained networks; all penalties and both activations start from the same weights."""
    from mahalens.studies.networks import start_of

    inputs = x.shape[-1]
    text = f"Linear({config.units(inputs)}), {split(model)[0]}, Linear({classes})"
    chain = nn.Chain.parse(text, inputs=inputs)
    return start_of(chain, config.seed, trials, config.device)


def _fit(
    config: PenaltiesConfig,
    context: Context,
    model: str,
    classes: int,
    stage: str,
    trials: Sequence[int],
    x: Tensor,
    y: Tensor,
    strengths: Tensor,
) -> tuple[TrialStack, float]:
    """Train networks by Adam on the full batch, each with its samples and strength.

    Returns them, NaN where the loss ran away, and the seconds that it took.
    """
    start, term = _start(config, model, classes, trials, x), split(model)[1].term
    kind = train.CrossEntropy if term is None else partial(_penalised(), term, strengths)
    solver = train.Adam(
        kind(start.model, x, y, engine=context.engine),
        start,
        config.epochs,
        lr=config.learning_rate,
        betas=(0.9, 0.999),
        # The compiled engine knows no penalties: it is asked for the gradients of each epoch.
        small_flops=1e8 if term is None else 0.0,
    )
    context.drive(stage, solver, share=(0.0, 0.8) if stage == "choice" else (0.8, 1.0))
    lost = (solver.codes == train.Status.NON_FINITE.code).to(x.device)
    values = torch.where(lost[:, None], math.nan, solver.stack.values)
    return train.TrialStack(start.model, values), solver.seconds


@cache
def _penalised() -> Any:
    """Return the type of a cross-entropy with a penalty; made here to import without torch."""

    class Penalised(train.CrossEntropy):
        """``CE_t + strength_t · term(weights_t, Σ_t)`` with Σ_t the covariance of the samples."""

        def __init__(
            self, term: Any, strengths: Tensor, model: Any, x: Tensor, y: Tensor, **how: Any
        ):
            super().__init__(model, x, y, **how)
            self.term, self.strengths = torch.func.vmap(term), strengths.to(x)
            self.covariance = covariance_of(x)

        def loss_and_gradient(self, stack: Any, rows: Any = None) -> tuple[Tensor, Tensor]:
            """Add the penalty, differentiated by autograd, to the loss and its gradient."""
            loss, gradient = super().loss_and_gradient(stack, rows)
            index = self._index(stack)
            values = stack.values.detach().requires_grad_()
            weights = train.TrialStack(stack.model, values).tensors()
            penalty = self.strengths[index] * self.term(weights, self.covariance[index])
            (slope,) = torch.autograd.grad(penalty.sum(), values)
            return loss + penalty.detach(), gradient + slope

    return Penalised


# --- Reading ----------------------------------------------------------------------------------


def covariance_of(x: Tensor) -> Tensor:
    """Return the covariance ``[..., D, D]`` of samples ``[..., N, D]``, divided by N."""
    centred = x - x.mean(-2, keepdim=True)
    return centred.mT @ centred / x.shape[-2]


def judge(stack: TrialStack, trial: int, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return accuracy in percent and cross-entropy of one network; NaN both if it ran away."""
    with torch.no_grad():
        output = stack[trial](x)
    if not bool(output.isfinite().all()):
        return math.nan, math.nan
    right = 100 * float((output.argmax(1) == y).double().mean())
    return right, float(torch.nn.functional.cross_entropy(output, y))


def row_measures(stack: TrialStack, covariance: Tensor) -> dict[str, Tensor]:
    """Return the measures that penalties are to lower, ``[T]`` each; see ``METRICS``."""
    rows, vmap = stack.tensors()[HIDDEN], torch.func.vmap
    return {
        "row_cosine": vmap(nn.orthogonality_penalty)(rows).sqrt(),
        "correlation": vmap(nn.orthogonality_penalty)(rows, covariance).sqrt(),
        "whitening_error": vmap(whitening_penalty)(rows, covariance).sqrt(),
    }


def axis_cosines(stack: TrialStack, covariance: Tensor) -> Tensor:
    """Return the cosine of rows with their nearest principal axis ``[T]``, mean over the rows."""
    from mahalens.studies.networks import nearest_cosines

    axes = torch.linalg.eigh(covariance.double()).eigenvectors
    return nearest_cosines(stack.tensors()[HIDDEN], axes)


def dead_units(stack: TrialStack, x: Tensor) -> Tensor:
    """Return the share of hidden units ``[T]`` that no sample ``[T, N, D]`` activates, in %."""
    from mahalens.studies.networks import part_of

    active = part_of(stack, 2)(x).amax(1) > ACTIVE
    return 100 * (~active).double().mean(1)


def finish(config: PenaltiesConfig, results: Results) -> None:
    """Add means over all sets, for the claims, and warn where other strengths may be better."""
    import numpy as np

    sets = dict.fromkeys(variant for variant, _ in results.measures)
    for model in dict.fromkeys(model for _, model in results.measures):
        for metric in (ACCURACY, "gap"):
            columns = [results.measures[one, model].values(metric) for one in sets]
            results.evidence["", model, metric] = np.mean(columns, axis=0)
    for word, other, end in (("weakest", "weaker", min), ("strongest", "stronger", max)):
        often = [
            study.name_of(MODELS[model].label, variant)
            for (variant, model), measured in results.measures.items()
            if "strength" in measured.metrics
            and np.mean(measured.values("strength") == end(split(model)[1].strengths)) > OFTEN
        ]
        if often:
            shown = ", ".join(often[:3]) + (" and others" if len(often) > 3 else "")
            results.cautions.append(
                f"most trials chose the {word} penalty on offer in {len(often)} of the cases "
                f"({shown}): a {other} one might suit better"
            )


def _activation(model: str) -> str:
    return split(model)[0]


STUDY = Study(
    name="penalties",
    question="Do orthogonal rows or white units help networks generalise?",
    source=THEORY,
    config=PenaltiesConfig,
    models=MODELS,
    metrics=METRICS,
    claims=claims_of,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    primary=ACCURACY,
    pairs=PAIRS,
    tested=(ACCURACY, "gap", "test_loss"),
    shown=(
        ACCURACY,
        "gap",
        "test_loss",
        "row_cosine",
        "correlation",
        "whitening_error",
        "axis_cosine",
        "dead",
        "strength",
    ),
    remark="Trial i of all models has the same samples and the same starting weights. Every trial "
    "chose the strength of its penalty by held-out training samples. Training sets are small on "
    "purpose. Verdicts are not corrected for the number of claims; the tests are.",
    plots=(
        Differences(title="Test accuracy: which differences are real?", metric=ACCURACY),
        Differences(
            name="differences-test_loss",
            title="Test loss: which differences are real?",
            metric="test_loss",
        ),
        Dots(title="How accurate is each network?", metric=ACCURACY, family=_activation),
        Dots(
            name="row_cosine",
            title="Do penalties make rows orthogonal?",
            caption="The penalty is as strong as held-out samples want it, which may be weak.",
            metric="row_cosine",
            family=_activation,
        ),
        Dots(
            name="whitening_error",
            title="Do penalties make pre-activations white?",
            caption="1 is what constant pre-activations have.",
            metric="whitening_error",
            family=_activation,
        ),
    ),
)
