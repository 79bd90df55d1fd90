"""The representation study: networks held to distance or to intensity outputs.

The experiment of *Neural Networks Learn Distance Metrics*: six two-layer networks, their twins
with an output bias, and OffsetL2, on raw pixels (as the published code ran) and on normalised ones
(as the paper says), with dead nodes, class distributions and tests between models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np

from mahalens import nn, train
from mahalens.errors import InputError
from mahalens.studies._torch import torch
from mahalens.studies.claims import (
    Average,
    Both,
    Claim,
    Difference,
    Every,
    Indistinguishable,
    Lower,
    MoreVariable,
    Within,
)
from mahalens.studies.plots import Curves, Dots, Grid, Ridges, Scatter, Spans
from mahalens.studies.study import (
    Config,
    Job,
    Measures,
    Metric,
    Model,
    Option,
    PublishedValue,
    Results,
    Study,
    hidden_option,
    jobs_of,
    learning_rate_option,
    name_of,
    still_learning,
    train_size_option,
)

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.studies.run import Context

# --- Models -----------------------------------------------------------------------------------
# A name says how a network is built: the activation of the hidden layer (relu, abs, linear for
# none), 2 if the same activation follows the output layer, l2 if the output layer is OffsetL2, then
# what is added: neg for a negation at the end, bias for a bias of the output layer, code for the
# published code's OffsetL2, point for an output layer in point-slope form.

PRIMARY = ("relu", "abs", "relu2", "abs2", "relu2-neg", "abs2-neg")
"""The six architectures of Table 1, without an output bias."""
OFFSET_L2 = ("relu-l2", "relu-l2-neg", "abs-l2", "abs-l2-neg", "linear-l2", "linear-l2-neg")
"""Distances to prototypes by the paper's formula (Table 5); Linear-L2 is ours."""
FAMILIES = {
    "primary": PRIMARY,
    "biased": tuple(f"{name}-bias" for name in PRIMARY),
    "offset-l2": OFFSET_L2,
    "published-code": tuple(f"{name}-code" for name in OFFSET_L2),
    "point-slope": tuple(f"{name}-point" for name in PRIMARY),
}
"""Networks by family: ``biased`` is Table 3; in ``published-code`` alpha enters unsquared."""
FAMILY_TITLES = {
    "primary": "Without output bias",
    "biased": "With output bias",
    "offset-l2": "OffsetL2",
    "published-code": "OffsetL2 by the published code",
    "point-slope": "Point-slope outputs",
}
_ACTIVATIONS = {"relu": "ReLU", "abs": "Abs", "linear": "Linear"}
_ADDED = {"bias": ", bias", "code": ", published code", "point": ", point-slope"}
_MARKERS = {"primary": "o", "biased": "s", "offset-l2": "^", "published-code": "v"}
# Warm for ReLU, cool for Abs, grey for neither.
_COLOURS = {
    "relu": "#E69F00",
    "relu2": "#D55E00",
    "relu2-neg": "#CC79A7",
    "abs": "#56B4E9",
    "abs2": "#0072B2",
    "abs2-neg": "#009E73",
    "relu-l2": "#D55E00",
    "relu-l2-neg": "#CC79A7",
    "abs-l2": "#0072B2",
    "abs-l2-neg": "#009E73",
    "linear-l2": "#333333",
    "linear-l2-neg": "#8a8a8a",
}


def family_of(model: str) -> str:
    """Return the family that a network belongs to; empty for one nobody knows."""
    return next((name for name, models in FAMILIES.items() if model in models), "")


def text_of(model: str, classes: int | str = "C", hidden: int = 128) -> str:
    """Return the architecture of a model as the text of a chain.

    >>> text_of("abs2"), text_of("relu2-neg-bias", 10)
    ('Linear(128), Abs, Linear(C, bias=False), Abs', 'Linear(128), ReLU, Linear(10), ReLU, Neg')
    >>> text_of("abs-l2-neg-code", 10)
    'Linear(128), Abs, OffsetL2(10, variant=published-code), Neg'
    """
    first, *added = model.split("-")
    name = first.removesuffix("2")
    activation = "" if name == "linear" else _ACTIVATIONS[name]
    if "l2" in added:
        output = f"OffsetL2({classes}{', variant=published-code' if 'code' in added else ''})"
    elif "point" in added:
        output = f"PointSlope({classes})"
    else:
        output = f"Linear({classes})" if "bias" in added else f"Linear({classes}, bias=False)"
    layers = [f"Linear({hidden})", activation, output]
    layers += [activation] if first.endswith("2") else []
    layers += ["Neg"] if "neg" in added else []
    return ", ".join(layer for layer in layers if layer)


def _model(name: str) -> Model:
    """Return how a network is shown: dashed if held to intensities, dotted if to distances."""
    first, *added = name.split("-")
    bare = "-".join([first, *(part for part in added if part not in _ADDED)])
    label = _ACTIVATIONS[first.removesuffix("2")] + "2" * first.endswith("2")
    label += "".join(f"-{part.capitalize()}" for part in added if part not in _ADDED)
    label += "".join(_ADDED.get(part, "") for part in added)
    line = ":" if bare.endswith("neg") else "--" if first.endswith("2") else "-"
    marker = _MARKERS.get(family_of(name), "P")
    return Model(label, text_of(name), _COLOURS[bare], marker, line)


MODELS = {name: _model(name) for family in FAMILIES.values() for name in family}


def choose_models(names: tuple[str, ...], bias: str | None) -> tuple[str, ...]:
    """Return the models that the options ask for, in the order of tables.

    ``names`` are models, families, or ``all``; ``bias`` says which form the six primary models
    among them take: ``no``, ``yes`` or ``both``. Left open, the models are those named.

    >>> choose_models(("relu", "abs-l2"), "both")
    ('relu', 'relu-bias', 'abs-l2')
    """
    chosen: set[str] = set()
    for name in names:
        if name == "all":
            chosen |= set(MODELS)
        elif name in FAMILIES:
            chosen |= set(FAMILIES[name])
        elif name in MODELS:
            chosen.add(name)
        else:
            known = ", ".join(("all", *FAMILIES, *MODELS))
            raise InputError(f"--models {name}: unknown model; give {known}")
    if bias is not None:
        twins = {name: f"{name}-bias" for name in PRIMARY}
        asked = {p for p, b in twins.items() if p in chosen or b in chosen}
        chosen -= {*PRIMARY, *twins.values()}
        chosen |= asked if bias in ("no", "both") else set()
        chosen |= {twins[p] for p in asked} if bias in ("yes", "both") else set()
    together = [twin for name in PRIMARY for twin in (name, f"{name}-bias")]
    order = (*together, *(name for name in MODELS if name not in together))
    return tuple(name for name in order if name in chosen)


# --- Options ----------------------------------------------------------------------------------

PIXELS = {
    "normalised": "zero mean and unit spread over the data set, as the paper says",
    "raw": "as the files have them (0 to 255), as its published code ran",
}
PUBLISHED_EPOCHS, LONG_EPOCHS, PUBLISHED_TRIALS = 5_000, 50_000, 20


def pixels_option(usual: tuple[str, ...], shown: str) -> Option:
    """Return the option ``--pixels``."""
    return Option(
        "Kinds of pixels.",
        usual,
        shown=shown,
        choices=PIXELS,
        metavar=f"{'|'.join(PIXELS)}|both",
    )


def both_pixels(given: Any) -> Any:
    """Return the kinds of pixels that ``--pixels both`` means."""
    return (
        tuple(PIXELS)
        if given in ("both", ("both",))
        else (given,)
        if isinstance(given, str)
        else given
    )


class RepresentationConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``group`` is how many trials of a model are trained together; ``nodes`` are the hidden nodes
    with class distributions to draw (empty: those that differ most between classes).
    """

    data: Annotated[
        str,
        Option(
            "A data set, or a file or folder of yours.",
            "digits",
            published="mnist",
            fixed=lambda data: data != "mnist",
            metavar="NAME|FILE",
        ),
    ]
    bias: Annotated[
        str | None,
        Option(
            "Output bias of the six primary models.",
            choices={"no": "without", "yes": "with", "both": "both forms"},
            metavar="no|yes|both",
        ),
    ] = None
    models: Annotated[
        tuple[str, ...],
        Option(
            f"Models by name, families ({', '.join(FAMILIES)}), or all.",
            tuple(MODELS),
            published=PRIMARY,
            shown="all",
            choices={name: model.text for name, model in MODELS.items()},
            subset=True,
            metavar="a,b,...",
        ),
    ]
    pixels: Annotated[tuple[str, ...], pixels_option(tuple(PIXELS), "both")]
    train_size: Annotated[int | None, train_size_option()]
    epochs: Annotated[
        int,
        Option(
            "Epochs of full-batch descent.",
            PUBLISHED_EPOCHS,
            # Table 5 was trained for longer.
            published=lambda chosen: (
                LONG_EPOCHS if chosen.get("epochs") == LONG_EPOCHS else PUBLISHED_EPOCHS
            ),
            fixed=lambda epochs: epochs != LONG_EPOCHS,
            shown=str(PUBLISHED_EPOCHS),
            least=1,
        ),
    ]
    trials: Annotated[
        int,
        Option(
            "Trials of each model.",
            PUBLISHED_TRIALS,
            published=PUBLISHED_TRIALS,
            fixed=True,
            least=1,
        ),
    ]
    group: Annotated[
        int,
        Option(
            "Trials trained together.",
            lambda chosen: (
                min(5, chosen["trials"]) if chosen.get("executor") == "dask" else chosen["trials"]
            ),
            shown="all; dask: 5",
            least=1,
        ),
    ]
    hidden: Annotated[int, hidden_option()] = 128
    learning_rate: Annotated[float, learning_rate_option()] = 1e-3
    nodes: Annotated[
        tuple[int, ...],
        Option("Hidden nodes with distributions to draw.", (), shown="the most telling", least=0),
    ] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models or not self.pixels:
            raise InputError("a run without models or pixels; give at least one of each")
        for node in self.nodes:
            if node >= self.hidden:
                raise InputError(f"--nodes {node}: give whole numbers of at most {self.hidden - 1}")

    @classmethod
    def with_defaults(cls, *, published: bool = False, **given: Any) -> Self:
        """Fill in the options that are not given: the published protocol but for the data."""
        names = given.get("models")
        if names is not None and not names:
            raise InputError(f"--models is empty: give some of all, {', '.join(MODELS)}")
        bias = given.get("bias")
        if names is not None or bias is not None:
            if bias not in (None, "no", "yes", "both"):
                raise InputError(f"--bias {bias}: give no, yes or both")
            given["models"] = choose_models(names or ("all",), bias)
        else:
            given["models"] = choose_models(("all",), "both")
        given["pixels"] = both_pixels(given.get("pixels"))
        return super().with_defaults(published=published, **given)


# --- Metrics ----------------------------------------------------------------------------------

_RARE = (
    "Share of the {layer} units whose activation after the last activation function exceeds 1e-6 "
    "in size on {bound} of the {data} inputs."
)
_BOUNDS = {"dead": "none", "rare1": "fewer than 1 %", "rare5": "fewer than 5 %"}
_RARE_NAMES = {"dead": "Dead", "rare1": "Rarely active (< 1 %)", "rare5": "Rarely active (< 5 %)"}
_ACTIVITY = {
    f"{kind}_{place}{ending}": Metric(
        f"{_RARE_NAMES[kind]} {layer} units" + (", test data" if ending else ""),
        _RARE.format(layer=layer, bound=bound, data=data),
        unit="%",
    )
    for data, ending in (("training", ""), ("test", "_test"))
    for layer, place in (("output", "outputs"), ("hidden", "hidden"))
    for kind, bound in _BOUNDS.items()
}

METRICS: dict[str, Metric] = {
    "test_accuracy": Metric(
        "Test accuracy",
        "Share of the test samples whose class has the largest output, after the last epoch.",
        unit="%",
        better="high",
    ),
    "train_accuracy": Metric(
        "Training accuracy", "The same on the training samples.", unit="%", better="high"
    ),
    "train_loss": Metric(
        "Training loss", "Cross-entropy on the training samples, before the last update.", log=True
    ),
    "epochs_to_converge": Metric(
        "Epochs to convergence",
        "First measured epoch from which on the test accuracy stays within 1 point of its last "
        "value.",
        unit="epochs",
        better="low",
        log=True,
    ),
    "late_gain": Metric(
        "Still gaining",
        "Test accuracy gained over the last tenth of the epochs: near 0 once training has "
        "converged.",
        unit="points",
        better=None,
    ),
    **_ACTIVITY,
    "dead_outputs_start": Metric(
        "Dead output units before training",
        "Share of the output units that are active on none of the training inputs with the "
        "starting weights.",
        unit="%",
    ),
    "silent_inputs": Metric(
        "Inputs without an active output",
        "Share of the test samples for which no output unit is active: their class is a guess.",
        unit="%",
    ),
    "own_centre": Metric(
        "Hyperplane to own class centre",
        "|output c at the centre of class c| before the last activation function, in spreads of "
        "that output over the training data, averaged over the classes c; the centre is the mean "
        "of the class's hidden activations. For a linear output, the distance of the hyperplane.",
        unit="spreads",
        better=None,
    ),
    "other_centre": Metric(
        "Hyperplane to other class centres",
        "The same for the centres of all other classes.",
        unit="spreads",
        better=None,
    ),
    "centre_ratio": Metric(
        "Own over other centres",
        "The first over the second: below 1 the output measures distance from its own class, "
        "above 1 from the others (intensity).",
        unit="ratio",
        better=None,
        log=True,
    ),
    "gap_from_dead": Metric(
        "Gap explained by dead outputs",
        "For models with ReLU outputs: accuracy that the baseline of the same trial has on the "
        "classes whose output is dead here, as a share of what this model lacks.",
        unit="share",
        better=None,
    ),
}

# --- Claims -----------------------------------------------------------------------------------

ACCURACY = "test_accuracy"
PAPER = "learn-metrics"
FAILS = -20.0
"""Points below the baseline from which on a model counts as failed."""
_LIVING = ("relu2-neg", "abs", "abs2", "abs2-neg")


def _lower(model: str, than: str) -> Lower:
    return Lower(ACCURACY, model, than)


def _within(model: str, than: str, margin: float) -> Within:
    return Within(ACCURACY, model, than, margin)


CLAIMS = (
    Claim(
        "relu-equals-abs",
        "ReLU and Abs do not differ: within half a point, and not significantly.",
        Indistinguishable(ACCURACY, "relu", "abs", 0.5),
        source=PAPER,
    ),
    Claim(
        "relu2-fails",
        "Held to intensities, ReLU2 fails: more than 20 points below ReLU.",
        Difference(ACCURACY, "relu2", "relu", "below", FAILS),
        source=PAPER,
    ),
    Claim(
        "relu2-neg-recovers",
        "Held to distances, ReLU2-Neg recovers: better than ReLU2, and within 2 points of ReLU.",
        Both(_lower("relu2", "relu2-neg"), _within("relu2-neg", "relu", 2.0)),
        source=PAPER,
    ),
    Claim(
        "abs2-equals-abs",
        "Abs2 equals Abs: within half a point, and not significantly different.",
        Indistinguishable(ACCURACY, "abs2", "abs", 0.5),
        source=PAPER,
    ),
    Claim(
        "abs2-neg-is-worse",
        "Abs2-Neg is worse than Abs2.",
        _lower("abs2-neg", "abs2"),
        source=PAPER,
    ),
    Claim(
        "abs2-neg-is-more-variable",
        "Abs2-Neg varies more from trial to trial than Abs2.",
        MoreVariable(ACCURACY, "abs2-neg", "abs2"),
        source=PAPER,
    ),
    Claim(
        "bias-changes-nothing",
        "An output bias changes nothing: each of the six stays within a point.",
        Every(tuple(_within(f"{model}-bias", model, 1.0) for model in PRIMARY)),
        source=PAPER,
    ),
    Claim(
        "bias-does-not-save-relu2",
        "ReLU2 fails with an output bias too: more than 20 points below ReLU.",
        Difference(ACCURACY, "relu2-bias", "relu-bias", "below", FAILS),
        source=PAPER,
    ),
    Claim(
        "l2-removes-the-gap",
        "OffsetL2 removes the gap between a model and its negation: within half a point.",
        Every((_within("relu-l2-neg", "relu-l2", 0.5), _within("abs-l2-neg", "abs-l2", 0.5))),
        source=PAPER,
    ),
    Claim(
        "l2-avoids-the-failure",
        "ReLU-L2 avoids the failure of ReLU2: better by more than 20 points.",
        Difference(ACCURACY, "relu2", "relu-l2", "below", FAILS),
        source=PAPER,
    ),
    Claim(
        "l2-beats-the-baselines",
        "OffsetL2 beats the baselines: ReLU-L2 beats ReLU, Abs-L2 beats Abs.",
        Every((_lower("relu", "relu-l2"), _lower("abs", "abs-l2"))),
        source=PAPER,
    ),
    Claim(
        "l2-has-the-smallest-spread",
        "OffsetL2 has the smallest spread: each of the six varies more than Abs-L2.",
        Every(tuple(MoreVariable(ACCURACY, m, "abs-l2") for m in PRIMARY)),
        source=PAPER,
    ),
    Claim(
        "relu2-outputs-die",
        "Output nodes of ReLU2 die: more than a tenth is never active.",
        Average("dead_outputs", "relu2", "above", 10.0),
        source=PAPER,
    ),
    Claim(
        "training-kills-outputs",
        "It is training that kills ReLU2's outputs: more are dead after it than before.",
        Lower("dead_outputs", "untrained relu2", "relu2"),
        source=PAPER,
    ),
    Claim(
        "other-outputs-live",
        "ReLU2-Neg and the Abs models have no dead outputs: fewer than 1 %.",
        Every(tuple(Average("dead_outputs", m, "below", 1.0) for m in _LIVING)),
        source=PAPER,
    ),
    Claim(
        "dead-outputs-explain-the-failure",
        "Dead outputs explain ReLU2's failure: they cost at least half of what it lacks "
        "against ReLU.",
        Average("gap_from_dead", "relu2", "above", 0.5),
        source=PAPER,
    ),
    Claim(
        "hidden-nodes-live",
        "Hidden ReLU nodes hardly die: fewer than 1 % are active on fewer than 5 % of the inputs.",
        Average("rare5_hidden", "relu", "below", 1.0),
        source=PAPER,
    ),
    Claim(
        "distance-models-pass-through-their-class",
        "Hyperplanes of distance models lie nearer to their own class than to the others.",
        Every(tuple(Average("centre_ratio", f"{m}2-neg", "below", 1.0) for m in ("relu", "abs"))),
        source=PAPER,
    ),
    Claim(
        "intensity-models-pass-through-other-classes",
        "Hyperplanes of intensity models lie nearer to the other classes than to their own.",
        Every(tuple(Average("centre_ratio", f"{m}2", "above", 1.0) for m in ("relu", "abs"))),
        source=PAPER,
    ),
    Claim(
        "raw-pixels-cause-the-failure",
        "ReLU2 fails with raw pixels only: with normalised ones it stays within 20 points of ReLU.",
        Both(
            Difference(ACCURACY, "relu2 (raw)", "relu (raw)", "below", FAILS),
            Difference(ACCURACY, "relu2 (normalised)", "relu (normalised)", "below", FAILS),
            negated=True,
        ),
        each=False,
    ),
    Claim(
        "raw-pixels-kill-outputs",
        "More of ReLU2's outputs die with raw than with normalised pixels.",
        Lower("dead_outputs", "relu2 (normalised)", "relu2 (raw)"),
        each=False,
    ),
    Claim(
        "l2-code-equals-formula",
        "The published code's OffsetL2 and the paper's formula reach the same accuracy: within "
        "half a point (Abs-L2, normalised pixels).",
        Within(ACCURACY, "abs-l2-code (normalised)", "abs-l2 (normalised)", 0.5),
        each=False,
    ),
    Claim(
        "point-slope-changes-nothing",
        "An output layer in point-slope form reaches the accuracy of a linear one: within a point "
        "(ReLU, Abs, normalised pixels).",
        Every(
            tuple(
                Within(ACCURACY, f"{m}-point (normalised)", f"{m} (normalised)", 1.0)
                for m in ("relu", "abs")
            )
        ),
        each=False,
    ),
)

_PAIRS = (
    ("relu", "abs"),
    ("relu2", "relu"),
    ("abs2", "abs"),
    ("relu2-neg", "relu2"),
    ("relu2-neg", "relu"),
    ("abs2-neg", "abs"),
    ("abs2-neg", "abs2"),
)
"""The comparisons of the paper's sections 5.1 to 5.3."""
_L2_PAIRS = (
    ("relu-l2", "relu"),
    ("abs-l2", "abs"),
    ("relu-l2-neg", "relu-l2"),
    ("abs-l2-neg", "abs-l2"),
    ("linear-l2-neg", "linear-l2"),
    ("relu-l2", "abs-l2"),
    ("linear-l2", "relu-l2"),
)
PAIRS = (
    *_PAIRS,
    *((f"{model}-bias", model) for model in PRIMARY),
    *_L2_PAIRS,
    *((f"{model}-code", model) for model in OFFSET_L2),
    *((f"{model}-point", model) for model in PRIMARY),
)

# --- Published values -------------------------------------------------------------------------

# The six without output bias after 5,000 epochs: the text of section 5 and 6, and for the two
# baselines the author's notes. Table 2 carries the same label, but holds the figures of Table 5.
_SHORT: dict[tuple[str, str], PublishedValue] = {
    ("test_accuracy", "relu"): PublishedValue(95.64, std=0.19),
    ("test_accuracy", "abs"): PublishedValue(95.26, std=0.19),
    ("test_accuracy", "relu2"): PublishedValue(47.20, std=12.00),
    ("test_accuracy", "abs2"): PublishedValue(95.35, std=0.17),
    ("test_accuracy", "relu2-neg"): PublishedValue(94.93, std=0.15),
    ("test_accuracy", "abs2-neg"): PublishedValue(90.08, std=2.56),
    # Table 3.
    ("test_accuracy", "relu-bias"): PublishedValue(95.69, std=0.17),
    ("test_accuracy", "abs-bias"): PublishedValue(95.23, std=0.16),
    ("test_accuracy", "relu2-bias"): PublishedValue(39.94, std=18.84),
    ("test_accuracy", "abs2-bias"): PublishedValue(95.38, std=0.17),
    ("test_accuracy", "relu2-neg-bias"): PublishedValue(94.92, std=0.18),
    ("test_accuracy", "abs2-neg-bias"): PublishedValue(90.53, std=2.36),
    # Section 6.2; the author's notes say 22 % never active, and below 1 % instead of 5 %.
    ("dead_outputs", "relu2"): PublishedValue(33.0),
    ("rare5_outputs", "relu2"): PublishedValue(53.5),
}

# Table 5, 50,000 epochs. Its names have a bias for all but ReLU2_Neg, which Table 3 calls so too.
_LONG: dict[tuple[str, str], PublishedValue] = {
    ("test_accuracy", "relu-bias"): PublishedValue(96.62, std=0.17),
    ("test_accuracy", "abs-bias"): PublishedValue(95.87, std=0.22),
    ("test_accuracy", "relu2-bias"): PublishedValue(56.31, std=19.31),
    ("test_accuracy", "abs2-bias"): PublishedValue(95.95, std=0.17),
    ("test_accuracy", "relu2-neg-bias"): PublishedValue(96.46, std=0.17),
    ("test_accuracy", "abs2-neg-bias"): PublishedValue(92.25, std=2.07),
}

_OFFSET_L2: dict[tuple[str, str], PublishedValue] = {
    ("test_accuracy", "relu-l2"): PublishedValue(97.33, std=0.13),
    ("test_accuracy", "relu-l2-neg"): PublishedValue(97.36, std=0.14),
    ("test_accuracy", "abs-l2"): PublishedValue(97.61, std=0.07),
    ("test_accuracy", "abs-l2-neg"): PublishedValue(97.56, std=0.09),
}


def published_value(metric: str, model: str, data: str, epochs: int) -> PublishedValue | None:
    """Return what the paper gives for a model on MNIST: after 5,000 epochs, or from 50,000 on.

    OffsetL2 was trained for 50,000 only; its figures stand beside shorter runs too, as there are no
    others. The formula that its figures come from is the published code's.
    """
    if data != "mnist":
        return None
    key = (metric, model.removesuffix("-code"))
    if key in _OFFSET_L2:
        return _OFFSET_L2[key]
    if epochs >= LONG_EPOCHS:
        return _LONG.get((metric, model)) or _LONG.get((metric, f"{model}-bias"))
    return _SHORT.get((metric, model))


# --- Measure ----------------------------------------------------------------------------------


def check(config: RepresentationConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data; refuse data that nothing can be learned from, and runs that do not fit."""
    from mahalens.geometry._memory import require_memory
    from mahalens.studies.networks import facts_of, training_data

    data = training_data(config.data, config.train_size, config.seed)
    if "normalised" in config.pixels and float(data.x.min()) == float(data.x.max()):
        raise InputError(
            f"--data {config.data}: all pixels are equal; nothing can be learned from them"
        )
    # Where every output lies to the centre of every class, in all trials.
    results = 8 * data.classes**2 * config.trials * len(config.models) * len(config.pixels)
    what = f"--data {config.data} with {data.classes:,} classes"
    require_memory(results, what, "give fewer --trials or --models")
    return facts_of(data, config.epochs)


def jobs(config: RepresentationConfig) -> list[Job]:
    """Cut the work: ``group`` trials of one model with one kind of pixels.

    The first trials of all models come first, so that a run that is stopped can compare them.
    """
    size = min(config.group, config.trials)
    cut = [
        job
        for pixels in config.pixels
        for model in config.models
        for job in jobs_of([pixels], [model], config.trials, size)
    ]
    return sorted(cut, key=lambda job: job.first)


def measure(config: RepresentationConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train the trials of a job and read them."""
    from mahalens.studies import networks as of
    from mahalens.studies.run import thread_count

    data = of.training_data(config.data, config.train_size, config.seed)
    inputs = of.pixel_inputs(data, job.variant, config.device)
    chain = nn.Chain.parse(text_of(job.work, data.classes, config.hidden), inputs=data.inputs)
    start = of.start_of(chain, config.seed, job.trials, config.device)
    how: dict[str, Any] = {"epochs": config.epochs, "lr": config.learning_rate}
    solver = of.train_networks(start, data, inputs, context, **how)
    epochs, losses = solver.curve
    seen, accuracy = solver.history.epochs, solver.history["accuracy"].T.double().cpu()
    with thread_count(1):
        metrics, plots, latent = _read(config, job, start, solver.stack, data, inputs)
    metrics["train_loss"] = solver.final_loss.double().cpu()
    metrics |= of.curve_metrics(seen, accuracy)
    metrics["gap_from_dead"] = torch.full((job.count,), math.nan).double()
    codes = solver.codes.cpu()
    lost = codes == train.Status.NON_FINITE.code  # a trial that ran away has no reading
    every = list(train.Status)
    measures = Measures(
        metrics={name: torch.where(lost, math.nan, values) for name, values in metrics.items()},
        seconds=solver.seconds,
        curves={"train_loss": (epochs, losses.T), "test_accuracy": (seen, accuracy)},
        plots=latent,
        trial_plots=plots,
        weights=solver.stack.tensors(),
        chain=str(chain),
        columns={"steps": solver.steps.tolist()},
        statuses=[every[code].value for code in codes.tolist()],
    )
    return {job.work: measures}


def _read(
    config: RepresentationConfig,
    job: Job,
    start: train.TrialStack,
    stack: train.TrialStack,
    data: Any,
    inputs: tuple[Tensor, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return metrics, arrays by trial, and distributions of everything read off the weights."""
    from mahalens.studies.networks import Reading, centre_metrics, latent_distributions

    x, test_x = inputs
    training = Reading(stack, x, data.y, data.classes)
    test = Reading(stack, test_x, data.test_y, data.classes)
    before = Reading(start, x, data.y, data.classes)
    positions = training.positions(stack)
    metrics = {
        "test_accuracy": test.accuracy,
        "train_accuracy": training.accuracy,
        **training.activity(),
        **{f"{name}_test": values for name, values in test.activity().items()},
        "silent_inputs": 100 * test.silent.double() / test.samples,
        "dead_outputs_start": before.activity()["dead_outputs"],
        **centre_metrics(positions),
    }
    plots = {
        "positions": positions,
        "class_accuracies": test.class_accuracy,
        "output_activity": training.active_outputs.double() / training.samples,
    }
    latent = {}
    if job.first == 0:
        latent = latent_distributions(stack, x, data.y, data.classes, config.nodes)
    return metrics, plots, {f"latent.{name}": array for name, array in latent.items()}


def finish(config: RepresentationConfig, results: Results) -> None:
    """Add what dead outputs cost, what was dead before training, and a warning if it went on."""
    from mahalens.studies.networks import training_data

    data = training_data(config.data, config.train_size, config.seed)
    sizes = torch.bincount(data.test_y, minlength=data.classes).double()
    for (pixels, model), own in results.measures.items():
        starting = own.values("dead_outputs_start")
        results.evidence[pixels, f"untrained {model}", "dead_outputs"] = starting
        base = results.measures.get((pixels, model.replace("relu2", "relu")))
        if not model.startswith("relu2") or "neg" in model or base is None:
            continue
        dead = own.trial_plots["output_activity"] == 0
        lost = (dead * base.trial_plots["class_accuracies"] * sizes).nansum(1) / sizes.sum()
        gap = base.values("test_accuracy") - own.values("test_accuracy")
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(gap > 0, lost.numpy() / gap, math.nan)
        metrics = {**own.metrics, "gap_from_dead": torch.from_numpy(share)}
        results.measures[pixels, model] = replace(own, metrics=metrics)
    results.cautions += still_learning(results.mean("late_gain"))


def published(
    config: RepresentationConfig, metric: str, model: str, variant: str
) -> PublishedValue | None:
    """Return the published value."""
    return published_value(metric, model, config.data, config.epochs)


STUDY = Study(
    name="representation",
    question="Do networks held to distances learn well, and networks held to intensities fail?",
    source=PAPER,
    config=RepresentationConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    published=published,
    primary=ACCURACY,
    variant="pixels",
    asked=tuple(PIXELS),
    pairs=PAIRS,
    across=lambda config: [(name_of(m, "raw"), name_of(m, "normalised")) for m in config.models],
    tested=(ACCURACY,),
    columns=("steps",),
    stacked=True,
    protocol="published",
    thing="network",
    shown=(
        ACCURACY,
        "train_accuracy",
        "dead_outputs",
        "rare5_outputs",
        "rare5_hidden",
        "centre_ratio",
        "epochs_to_converge",
    ),
    remark="The published figures are those of all of MNIST. The paper says that its images were "
    "normalised; the code it published ran on raw ones.",
    plots=(
        Dots(
            name="accuracy",
            title="How accurate is each network, and how much does that vary?",
            caption="A wide cloud means that the starting point decides.",
            metric=ACCURACY,
            family=lambda model: FAMILY_TITLES.get(family_of(model), ""),
        ),
        Curves(
            name="learning",
            title="How fast does each network learn?",
            caption="A line that still rises at the right edge has not converged: its accuracy "
            "says how long it was trained. Dashed: outputs held to intensities; dotted: to "
            "distances.",
            column=ACCURACY,
            panel=lambda model: FAMILY_TITLES.get(family_of(model), ""),
        ),
        Grid(
            name="outputs",
            title="Which outputs are dead, in which trial?",
            caption="Share of the training samples on which an output exceeds 1e-6, for networks "
            "that end in ReLU: a row per trial, a column per output. A dead output can never name "
            "its class; where the same column is dark in many trials, the class is the reason, "
            "else the starting point.",
            array="output_activity",
            label="active on this share of the samples",
            models=lambda model: model.startswith("relu2"),
            below=(
                ("dead_outputs", "dead"),
                ("dead_outputs_start", "at the start"),
                ("rare5_outputs", "below 5 %"),
            ),
        ),
        Scatter(
            name="dead",
            title="Do dead outputs explain the failure?",
            caption="Each mark is a trial of a network that ends in ReLU. A class whose output is "
            "dead cannot be named, so that each dead output costs about its share of the samples: "
            "the dashed line is the mean of ReLU less that cost. Marks along it fail because "
            "outputs died, marks well below it for another reason as well.",
            x="dead_outputs",
            y=ACCURACY,
            models=lambda model: model.startswith("relu2"),
            loss="relu",
            loss_label="ReLU less the dead classes",
        ),
        Spans(
            name="centres",
            title="Does an output measure distance or intensity?",
            caption="How far the centre of a class lies from where an output is 0, in spreads of "
            "that output, averaged over classes and trials; thin lines are 95 % intervals. An "
            "output that measures distance passes through its own class, one that measures "
            "intensity through the others. Grey: the interval of the ratio of the two holds 1. "
            "Outputs of OffsetL2 are distances already; theirs are not from a hyperplane but from "
            "the prototype.",
            first="own_centre",
            second="other_centre",
            ratio="centre_ratio",
            family=lambda model: FAMILY_TITLES.get(family_of(model), ""),
            label="distance from the hyperplane",
            words=("own nearer: distance", "others nearer: intensity", "no clear difference"),
        ),
        Ridges(
            name="latent",
            title="How do the classes lie along hidden nodes?",
            caption="Pre-activations of hidden nodes of the first trial, on the training samples: "
            "a ridge per class, every ridge of the same area, the tick its mean. The dashed line "
            "at 0 is the node’s hyperplane. Look for the classes it passes through: these are the "
            "ones the node measures distance from. Overlapping ridges are classes that this node "
            "cannot tell apart.",
            models=lambda model: model in ("relu", "abs"),
        ),
    ),
)
