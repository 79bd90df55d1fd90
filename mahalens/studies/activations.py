"""The activations study: which activation functions bear to be held to intensities or distances.

*Next checks of Neural Networks Learn Distance Metrics* asks whether what the paper reports of ReLU
and Abs holds for smooth activations. Networks are trained as in the representation study; a name is
an activation, with ``2`` if it also follows the output layer (outputs held to intensities), and
with ``2-neg`` if these are negated (outputs held to distances).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from mahalens import nn, train
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Average, Both, Claim, Difference, Lower, Within
from mahalens.studies.plots import Curves, Dots
from mahalens.studies.representation import (
    ACTIVATIONS,
    EPOCHS_TO_CONVERGE,
    PIXELS,
    PUBLISHED_EPOCHS,
    PUBLISHED_TRIALS,
    published_value,
    text_of,
)
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Option, Results, Study

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.data import LabelledData
    from mahalens.studies.run import Context

# --- Models -----------------------------------------------------------------------------------

_COLOURS = {
    "relu": "#0072B2",
    "abs": "#D55E00",
    "gelu": "#009E73",
    "silu": "#56B4E9",
    "tanh": "#CC79A7",
    "softplus": "#E69F00",
    "leakyrelu": "#000000",
}
ONE_SIDED = ("relu", "gelu", "silu", "softplus")
"""Flat towards minus infinity: a unit far below 0 passes no gradient on, and stays there."""
TWO_SIDED = ("abs", "tanh", "leakyrelu")
"""With a slope on both sides of 0."""
INTENSITIES, DISTANCES = "2", "2-neg"
FORMS = {"": "outputs free", INTENSITIES: "held to intensities", DISTANCES: "held to distances"}
"""What a name ends in, and what that does to the outputs."""
_MARKERS = {"": "o", INTENSITIES: "^", DISTANCES: "v"}  # large is strong, small is near


def split(model: str) -> tuple[str, str]:
    """Return the activation and the form of a network.

    >>> split("gelu2-neg"), split("abs")
    (('gelu', '2-neg'), ('abs', ''))
    """
    name = model.removesuffix("-neg").removesuffix("2")
    return name, model.removeprefix(name)


MODELS = {
    f"{name}{form}": Model(
        label + form.replace("neg", "Neg"), text_of(f"{name}{form}"), _COLOURS[name], _MARKERS[form]
    )
    for name, label in ACTIVATIONS.items()
    for form in FORMS
}

# --- Options ----------------------------------------------------------------------------------

SOLVERS = {
    "sgd": "full-batch gradient descent, as the paper trains",
    "adam": "full-batch Adam, which has converged after as many epochs",
}


class ActivationsConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[
        tuple[str, ...],
        study.data_option(("digits",), ("mnist",), fixed=lambda data: tuple(data) != ("mnist",)),
    ]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    train_size: Annotated[int | None, study.train_size_option(5_000)]
    epochs: Annotated[
        int, study.count_option("Epochs of training.", 2_000, large=1_000, full=PUBLISHED_EPOCHS)
    ]
    trials: Annotated[int, study.count_option("Trials of each model.", 10, full=PUBLISHED_TRIALS)]
    solver: Annotated[
        str,
        Option(
            "How networks are trained.",
            "sgd",
            published="sgd",
            fixed=lambda solver: solver != "sgd",
            choices=SOLVERS,
        ),
    ] = "sgd"
    pixels: Annotated[str, Option("Kind of pixels.", "normalised", choices=PIXELS)] = "normalised"
    hidden: Annotated[int, study.hidden_option()] = 128
    learning_rate: Annotated[float, study.learning_rate_option()] = 1e-3

    @classmethod
    def with_defaults(cls, *, published: bool = False, **given: Any) -> Self:
        """Fill in the options that are not given; ``swish`` is another name of ``silu``."""
        if given.get("models"):
            given["models"] = tuple(re.sub("^swish", "silu", name) for name in given["models"])
        return super().with_defaults(published=published, **given)


# --- Metrics ----------------------------------------------------------------------------------

FLAT = 0.01
"""A unit is flat if its spread over the training samples is below this share of the largest one in
its layer. Unlike a size of 1e-6, that means the same for smooth activations."""
RARE = 0.1
"""An output is rarely chosen if it is for fewer samples than this share of those of its class."""

_FLAT = f"spread over the training samples is below {FLAT:.0%} of the largest in their layer"
_DEAD = "units that exceed 1e-6 in size on none of the training samples"
_STATES = {
    "unused": ("Outputs never chosen", "that are the largest for none of the training samples"),
    "rare": (
        "Outputs rarely chosen",
        f"chosen for fewer training samples than {RARE:.0%} of those of their class",
    ),
    "flat": ("Flat outputs", f"whose {_FLAT}: they say nothing"),
    "dead": ("Dead outputs", f"among {_DEAD}"),
}
METRICS = {
    **{
        name: study.NETWORK_METRICS[name]
        for name in ("test_accuracy", "train_accuracy", "train_loss")
    },
    **{
        f"{kind}_outputs{ending}": Metric(f"{label}{when}", f"Share of outputs {text}{how}.", "%")
        for when, ending, how in (
            ("", "", ""),
            (" before training", "_start", ", with the starting weights"),
        )
        for kind, (label, text) in _STATES.items()
    },
    "outputs_lost": Metric(
        "Outputs flattened by training", "Flat outputs after training less before.", "points"
    ),
    "flat_hidden": Metric("Flat hidden units", f"Share of hidden units whose {_FLAT}.", "%"),
    "dead_hidden": Metric("Dead hidden units", f"Share of hidden {_DEAD}.", "%"),
    "epochs_to_converge": EPOCHS_TO_CONVERGE,
    "late_gain": study.NETWORK_METRICS["late_gain"],
}

# --- Claims -----------------------------------------------------------------------------------

ACCURACY = "test_accuracy"
PAPER, CHECKS = "learn-metrics", "next-checks"
_OTHERS = tuple(name for name in ACTIVATIONS if name != "abs")
_NEW = tuple(name for name in ACTIVATIONS if name not in ("relu", "abs"))
_lower, _within = partial(Lower, ACCURACY), partial(Within, ACCURACY)
_below = partial(Difference, ACCURACY, side="below")
_above = partial(Difference, ACCURACY, side="above")
_few = partial(Average, side="below", bound=1.0)


def _list(names: Sequence[str]) -> str:
    """Return names for a sentence.

    >>> _list(("gelu", "silu", "softplus"))
    'GELU, SiLU and Softplus'
    """
    labels = [ACTIVATIONS[name] for name in names]
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


# A network held to intensities has collapsed if it is 20 points below the free one.
_RELU2: claims.Rows = {
    "relu2-collapses": (
        "ReLU2 collapses: more than 20 points below ReLU.",
        _below("relu2", "relu", bound=-20.0),
    ),
}
_COLLAPSE: claims.Rows = {
    "one-sided-collapse": (
        f"Other activations that are flat on one side ({_list(ONE_SIDED[1:])}) collapse too: "
        "held to intensities, more than 20 points below their free networks.",
        claims.every(_below(f"{name}2", name, bound=-20.0) for name in ONE_SIDED[1:]),
    ),
    "two-sided-survive": (
        f"Activations with a slope on both sides ({_list(TWO_SIDED)}) do not collapse: less "
        "than 20 points below their free networks.",
        claims.every(_above(f"{name}2", name, bound=-20.0) for name in TWO_SIDED),
    ),
}
# These two were added after a first run on digits by Adam: only others can test them.
_AFTERWARDS: claims.Rows = {
    "only-relu-fails": (
        "Only ReLU fails: held to intensities, every other activation stays within 2 points of "
        "its free network.",
        claims.every(_within(f"{name}2", name, 2.0) for name in ACTIVATIONS if name != "relu"),
    ),
    "a-slope-prevents-it": (
        "A slope of 0.01 below 0 prevents it: LeakyReLU2 is more than 5 points above ReLU2, "
        "and fewer than 1 % of its outputs are flat.",
        Both(_above("leakyrelu2", "relu2", bound=5.0), _few("flat_outputs", "leakyrelu2")),
    ),
}
_CHECKS: claims.Rows = {
    "one-sided-outputs-flatten": (
        f"Training flattens intensity outputs of one-sided activations ({_list(ONE_SIDED)}): "
        "more of them are flat after it than before.",
        claims.every(Average("outputs_lost", f"{name}2", "above", 0.0) for name in ONE_SIDED),
    ),
    "two-sided-outputs-live": (
        f"Intensity outputs of two-sided activations ({_list(TWO_SIDED)}) live: fewer than 1 % "
        "are flat after training.",
        claims.every(_few("flat_outputs", f"{name}2") for name in TWO_SIDED),
    ),
    "distance-outputs-live": (
        "Distance outputs live with every activation: fewer than 1 % are never chosen.",
        claims.every(_few("unused_outputs", f"{name}2-neg") for name in ACTIVATIONS),
    ),
    "abs2-is-best": (
        "Abs keeps its advantage: held to intensities, no other activation is as accurate as Abs2.",
        claims.every(_lower(f"{name}2", "abs2") for name in _OTHERS),
    ),
    "abs2-neg-is-worst": (
        "Abs keeps its weakness: held to distances, every other activation is more accurate "
        "than Abs2-Neg.",
        claims.every(_lower("abs2-neg", f"{name}2-neg") for name in _OTHERS),
    ),
}
_CONTROLS: claims.Rows = {
    "free-are-equal": (
        "Free, it matters little which: each of the five stays within a point of ReLU.",
        claims.every(_within(name, "relu", 1.0) for name in _NEW),
    ),
    "tanh-has-no-side": (
        "A control: as Tanh is odd, negated outputs change nothing; Tanh2-Neg stays within a "
        "point of Tanh2.",
        _within("tanh2-neg", "tanh2", 1.0),
    ),
}


def _claims_about(name: str) -> tuple[Claim, ...]:
    """Return what is asked of every activation."""
    models = name, f"{name}{INTENSITIES}", f"{name}{DISTANCES}"
    (free, held, far), (a, b, c) = models, (MODELS[model].label for model in models)
    source = PAPER if name in ("relu", "abs") else CHECKS
    # The paper has Abs2 equal to Abs, and Abs2-Neg worse than Abs2.
    unless_abs = claims.OURS if name == "abs" else source
    cost = f"Held to intensities, {b} is less accurate than {a}."
    no_worse = f"Held to distances, {c} is no worse than {b}: at most a point below."
    equal = f"Held to distances, {c} stays within a point of {a}."
    vary = f"{b} varies more from trial to trial than {a}."
    return (
        Claim(f"{name}-intensities-cost", cost, _lower(held, free), unless_abs),
        Claim(f"{name}-distances-no-worse", no_worse, _above(far, held, bound=-1.0), unless_abs),
        Claim(f"{name}-distances-equal-free", equal, _within(far, free, 1.0), source),
        Claim(
            f"{name}-intensities-vary", vary, claims.MoreVariable(ACCURACY, held, free), unless_abs
        ),
    )


CLAIMS = (
    *claims.from_rows(PAPER, _RELU2),
    *claims.from_rows(CHECKS, _COLLAPSE),
    *claims.from_rows(claims.OURS, _AFTERWARDS),
    *claims.from_rows(CHECKS, _CHECKS),
    *claims.from_rows(claims.OURS, _CONTROLS),
    *(claim for name in ACTIVATIONS for claim in _claims_about(name)),
)
PAIRS = (
    *(
        pair
        for name in ACTIVATIONS
        for pair in (
            (f"{name}{INTENSITIES}", name),
            (f"{name}{DISTANCES}", f"{name}{INTENSITIES}"),
            (f"{name}{DISTANCES}", name),
        )
    ),
    *(
        (f"{name}{form}", f"{rival}{form}")
        for form in FORMS
        for name in ACTIVATIONS
        for rival in {"relu": (), "abs": ("relu",)}.get(name, ("relu", "abs"))
    ),
)
"""The forms of each activation, and each form with that of ReLU and Abs."""

# --- Measure ----------------------------------------------------------------------------------

AT_ONCE = 5
"""Trials of a job: enough to share what samples cost, few enough to lose little when stopped."""


def check(config: ActivationsConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data sets."""
    from mahalens.studies.samples import check_sets

    facts = check_sets(config.data, config.train_size)
    for name in config.data:
        _data(config, name)
    return {"data": facts, "epochs": config.epochs}


def _data(config: ActivationsConfig, name: str) -> LabelledData:
    """Return a data set with at most ``train_size`` training samples, the same in all trials."""
    from mahalens.studies.networks import training_data
    from mahalens.studies.samples import whole_set

    size = config.train_size
    fewer = size if size is not None and size < len(whole_set(name).y) else None
    return training_data(name, fewer, config.seed)


def _inputs(config: ActivationsConfig, data: LabelledData) -> tuple[Tensor, Tensor]:
    """Return training and test samples; features of a table are normalised one by one."""
    from mahalens.studies.networks import pixel_inputs
    from mahalens.studies.samples import standardise

    if config.pixels == "normalised" and data.image_shape is None:
        x, test_x = standardise(data.x, data.test_x)
        return x.to(config.device), test_x.to(config.device)
    return pixel_inputs(data, config.pixels, config.device)


def measure(config: ActivationsConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train the trials of a job and read them, before and after."""
    from mahalens.studies import networks as of

    began = time.perf_counter()
    data = _data(config, job.variant)
    inputs = _inputs(config, data)
    chain = nn.Chain.parse(text_of(job.work, data.classes, config.hidden), inputs=data.inputs)
    kind = train.Adam if config.solver == "adam" else train.SGD
    trained = of.train_networks(config, chain, job.trials, data, inputs, context, kind=kind)
    stack = trained.solver.stack
    (before, _), (after, more) = (_read(s, data, inputs[0]) for s in (trained.start, stack))
    metrics = {
        "test_accuracy": of.accuracies(stack, inputs[1], data.test_y.to(config.device)).cpu(),
        "train_loss": trained.solver.final_loss.double().cpu(),
        **after,
        **{f"{name}_start": values for name, values in before.items()},
        "outputs_lost": after["flat_outputs"] - before["flat_outputs"],
        **more,
        **of.curve_metrics(*trained.curve),
    }
    measures = Measures(
        metrics=trained.unless_lost(metrics),
        seconds=time.perf_counter() - began,
        curves={"test_accuracy": trained.curve},
        weights=stack.tensors(),
    )
    return {job.work: measures}


def _read(
    stack: train.TrialStack, data: LabelledData, x: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the shares of outputs that are no longer used, and what else is read, ``[T]`` each."""
    from mahalens.studies.networks import Reading

    class UseReading(Reading):
        """A reading that also counts which outputs are chosen, and how units vary."""

        def __init__(self) -> None:
            self.chosen = torch.zeros(len(stack), data.classes, dtype=torch.int64)
            self.units, self.outputs = _Spread(), _Spread()
            super().__init__(stack, x, data.y, data.classes)

        def see(self, hidden: Tensor, output: Tensor, chosen: Tensor) -> None:
            self.chosen.scatter_add_(1, chosen, torch.ones_like(chosen))
            self.units.add(hidden)
            self.outputs.add(output)

    reading = UseReading()
    few = reading.chosen < RARE * reading.class_sizes
    states = {"unused": reading.chosen == 0, "rare": few, "flat": reading.outputs.flat()}
    outputs = {f"{kind}_outputs": 100 * hit.double().mean(1) for kind, hit in states.items()}
    activity = reading.activity()
    outputs["dead_outputs"] = activity["dead_outputs"]
    return outputs, {
        "train_accuracy": reading.accuracy,
        "flat_hidden": 100 * reading.units.flat().double().mean(1),
        "dead_hidden": activity["dead_hidden"],
    }


class _Spread:
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

    def flat(self) -> Tensor:
        """Return which units ``[T, K]`` vary by less than the stated share of the one that most."""
        mean = self._sum / self._samples
        spread = (self._squares / self._samples - mean.square()).clamp(min=0).sqrt()
        return spread <= FLAT * spread.amax(1, keepdim=True)


def finish(config: ActivationsConfig, results: Results) -> None:
    """Warn if networks were still learning when training ended."""
    results.cautions += study.still_learning(results.mean("late_gain", lambda m: MODELS[m].label))


STUDY = Study(
    name="activations",
    question="Which activations can be held to intensities or distances?",
    source=CHECKS,
    config=ActivationsConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=lambda config: study.jobs_of(config.data, config.models, config.trials, AT_ONCE),
    measure=measure,
    finish=finish,
    # What the paper gives for its six networks on MNIST after 5,000 epochs.
    published=lambda _, metric, model, data: published_value(metric, model, data, PUBLISHED_EPOCHS),
    primary=ACCURACY,
    pairs=PAIRS,
    tested=(ACCURACY,),
    thing="network",
    shown=(
        ACCURACY,
        "train_accuracy",
        "unused_outputs",
        "flat_outputs",
        "flat_outputs_start",
        "dead_outputs",
        "late_gain",
    ),
    remark="A name is an activation: alone, outputs are free; with 2 it also follows the output "
    "layer, which holds outputs to intensities; with 2-Neg these are negated, which holds them to "
    "distances. Trials differ in their starting weights alone.",
    plots=(
        Dots(
            title="How accurate is each network?",
            metric=ACCURACY,
            family=lambda model: FORMS[split(model)[1]],
        ),
        Curves(
            name="forms",
            title="Which activations learn, and what does holding their outputs do to them?",
            caption="An activation that falls behind in the middle panel does not bear to be held "
            "to intensities; one that is back on the right is repaired by distances. A line that "
            "still moves at the right edge has not converged.",
            column=ACCURACY,
            panel=lambda model: FORMS[split(model)[1]],
            line=lambda model: ACTIVATIONS[split(model)[0]],
        ),
    ),
)
