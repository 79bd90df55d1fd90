"""The pixels study: why networks on raw and on normalised pixels tell different stories.

With ``s = 1 / (largest pixel · spread)`` and x the raw pixels, normalised ones are ``s x - shift``.
Three parts lead from one to the other, and a condition takes each from either side:

- the *start* of the first layer: read as weights on x, it is ``s`` times as large if normalised;
- the *step* of these weights: read in the same way, it is ``s²`` times as long;
- the *shift* of the mean pixel to 0. It also moves the hyperplanes of the start, which pass near
  the black image without it and near the mean pixel with it.

There is no fourth: biases and the output layer start and step alike with both kinds of pixels.
Every condition is a run of the representation study with ``--init-scale`` and ``--rate-scale``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import compress, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec.structs import replace

from mahalens import nn
from mahalens.studies import claims, representation, study
from mahalens.studies.claims import Average, Both, Claim, Difference
from mahalens.studies.plots import Curves, Dots
from mahalens.studies.study import Config, Job, Measures, Model, Option, Results, Study

if TYPE_CHECKING:
    from mahalens.data import LabelledData
    from mahalens.studies.run import Context

# --- Models -----------------------------------------------------------------------------------

FACTORS = ("start", "step", "shift")
"""The parts in which normalised pixels differ from raw ones."""
CONDITIONS = {
    {0: "raw", 3: "normalised"}.get(len(taken), "-".join(taken)): frozenset(taken)
    for which in product((False, True), repeat=3)
    for taken in [tuple(compress(FACTORS, which))]
}
"""The parts that a condition takes from normalised pixels; the others are those of raw pixels."""
_COLOURS = {"": "#D55E00", "start": "#E69F00", "step": "#56B4E9", "start-step": "#0072B2"}


def _model(name: str) -> Model:
    """Return how a condition is shown: colours by start and step, squares with the shift."""
    taken = CONDITIONS[name]
    colour = _COLOURS[_without_shift(name)]
    parts = " and ".join(factor for factor in FACTORS if factor in taken)
    label = name.capitalize() if name in ("raw", "normalised") else f"Raw + {parts}"
    ends = f"{name} pixels as they are"
    text = ends if label == name.capitalize() else f"raw pixels, {parts} of normalised ones"
    return Model(label, text, colour, "s" if "shift" in taken else "o")


def _without_shift(name: str) -> str:
    """Return what two conditions share that differ in the shift alone: start and step."""
    return "-".join(factor for factor in FACTORS[:2] if factor in CONDITIONS[name])


MODELS = {name: _model(name) for name in CONDITIONS}


def pairs_of(factor: str) -> list[tuple[str, str]]:
    """Return the conditions that differ in one part alone, that with normalised pixels' first.

    >>> pairs_of("step")[:2]
    [('step', 'raw'), ('step-shift', 'shift')]
    """
    names = {taken: name for name, taken in CONDITIONS.items()}
    return [
        (names[taken | {factor}], name) for name, taken in CONDITIONS.items() if factor not in taken
    ]


# --- Options ----------------------------------------------------------------------------------

NETWORKS = ("relu", "relu2", "relu2-neg", "abs2-neg")
"""Those whose stories differ between raw and normalised pixels, and their baseline."""
_CHAINS = {name: representation.text_of(name) for name in representation.PRIMARY}


class PixelsConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[str, representation.one_set_option()]
    network: Annotated[
        tuple[str, ...],
        Option(
            "Networks of the representation study.",
            NETWORKS,
            published=NETWORKS,
            choices=_CHAINS,
            subset=True,
            ordered=True,
        ),
    ]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    train_size: Annotated[int | None, study.train_size_option(5_000)]
    epochs: Annotated[
        int,
        study.count_option(
            "Epochs of full-batch descent.",
            2_000,
            large=1_500,
            full=representation.PUBLISHED_EPOCHS,
        ),
    ]
    trials: Annotated[
        int,
        study.count_option(
            "Trials of each network.", 10, large=5, full=representation.PUBLISHED_TRIALS
        ),
    ]
    hidden: Annotated[int, study.hidden_option()] = 128
    learning_rate: Annotated[float, study.learning_rate_option()] = 1e-3

    @property
    def pixels(self) -> tuple[str, ...]:
        """The kinds of pixels that the conditions lie between."""
        return tuple(representation.PIXELS)


# --- Metrics ----------------------------------------------------------------------------------

ACCURACY, RARE = "test_accuracy", "rare5_hidden"
METRICS = {
    name: representation.METRICS[name]
    for name in (
        ACCURACY,
        "train_accuracy",
        "train_loss",
        "late_gain",
        "dead_outputs",
        "rare5_outputs",
        "dead_hidden",
        "rare1_hidden",
        RARE,
        "centre_ratio",
    )
} | {
    f"{name}_start": replace(
        representation.METRICS[name],
        label=f"{representation.METRICS[name].label} before training",
        explanation="The same with the starting weights.",
    )
    for name in ("rare1_hidden", RARE)
}

# --- Claims -----------------------------------------------------------------------------------
# A difference between raw and normalised pixels counts from a size: 20 points for a collapse, as in
# the representation study, and 5 for the rest, which is what Abs2-Neg is published to lose.


UNTRAINED = "untrained"


def effect_of(factor: str) -> str:
    """Return what evidence calls the effect of a part, averaged over the settings of the others."""
    return f"effect of the {factor}"


def _story(
    key: str, whole: str, subject: str, network: str, metric: str, points: float
) -> Iterator[Claim]:
    """Yield that both kinds of pixels differ in a metric, and which part that follows."""
    side: claims.Side = "above" if points > 0 else "below"
    does = f"{'raises' if points > 0 else 'lowers'} {{}} by more than {abs(points):g} points"
    named = partial(study.name_of, variant=network)
    ends = Difference(metric, named("normalised"), named("raw"), side, points)
    share = "their share" if metric == RARE else "its accuracy"
    yield Claim(key, f"{whole}: normalising {does.format(share)}.", ends, each=False)
    for factor in FACTORS:
        yield Claim(
            f"{key}-by-{factor}",
            f"{subject} the {factor}: on average, that of normalised pixels {does.format(share)}.",
            Average(metric, named(effect_of(factor)), side, points),
            each=False,
        )


def _as_published(condition: str) -> Claim:
    """Return that a condition shows both ReLU2's collapse and hidden units that are active."""
    relu, relu2 = (study.name_of(condition, network) for network in ("relu", "relu2"))
    return Claim(
        f"as-published-{condition}",
        f"{MODELS[condition].label}: ReLU2 collapses (over 20 points below ReLU) and fewer than "
        "1 % of ReLU's hidden units are rarely active, both as published.",
        Both(
            Difference(ACCURACY, relu2, relu, "below", -20.0),
            Average(RARE, relu, "below", 1.0),
        ),
        each=False,
    )


CLAIMS = (
    *_story(
        "relu2-collapses",
        "ReLU2 collapses with raw pixels",
        "ReLU2's collapse follows",
        "relu2",
        ACCURACY,
        20.0,
    ),
    *_story(
        "relu2-neg-fails",
        "ReLU2-Neg fails with normalised pixels",
        "ReLU2-Neg's failure follows",
        "relu2-neg",
        ACCURACY,
        -5.0,
    ),
    *_story(
        "abs2-neg-loses",
        "Abs2-Neg loses with raw pixels",
        "Abs2-Neg's loss follows",
        "abs2-neg",
        ACCURACY,
        5.0,
    ),
    *_story(
        "hidden-rarely-active",
        "Hidden units of ReLU are rarely active with raw pixels",
        "Rarely active hidden units follow",
        "relu",
        RARE,
        -5.0,
    ),
    Claim(
        "training-idles-hidden-units",
        "With raw pixels it is training that makes ReLU's hidden units rarely active: it raises "
        "their share by more than 5 points.",
        Difference(RARE, "raw (relu)", f"{UNTRAINED} raw (relu)", "above", 5.0),
        each=False,
    ),
    *(_as_published(condition) for condition in CONDITIONS),
)

# --- Measure ----------------------------------------------------------------------------------


def check(config: PixelsConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data; refuse data that nothing can be learned from."""
    from mahalens.studies.networks import pixel_facts, training_data

    facts = pixel_facts(config)
    data = training_data(config.data, config.train_size, config.seed)
    return facts | {"conditions": {name: options_of(name, data) for name in config.models}}


def options_of(condition: str, data: LabelledData) -> dict[str, Any]:
    """Return the options of the representation study that make a condition.

    The shift decides the kind of pixels; ``init_scale`` and ``rate_scale`` are relative to those.
    """
    from mahalens.studies.networks import scale_of

    taken = CONDITIONS[condition]
    s = 1 / (data.largest * scale_of(data)[1])
    shifted = "shift" in taken
    other = 1 / s if shifted else s  # the other kind's start, on the pixels of this kind
    return {
        "pixels": "normalised" if shifted else "raw",
        "init_scale": 1.0 if ("start" in taken) == shifted else other,
        "rate_scale": 1.0 if ("step" in taken) == shifted else other**2,
    }


def measure(config: PixelsConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train the network ``job.variant`` under the condition ``job.work`` and read it."""
    from mahalens.studies import networks as of

    data = of.training_data(config.data, config.train_size, config.seed)
    options = options_of(job.work, data)
    pixels = options.pop("pixels")
    same = ("data", "train_size", "epochs", "trials", "seed", "device", "hidden", "learning_rate")
    run = representation.RepresentationConfig.with_defaults(
        models=(job.variant,),
        pixels=(pixels,),
        **options,
        **{name: getattr(config, name) for name in same},
    )
    like = Job(pixels, job.variant, job.first, job.count)
    measured = representation.measure(run, like, context)[job.variant]
    metrics = {name: values for name, values in measured.metrics.items() if name in METRICS}
    chain = nn.Chain.parse(measured.chain, inputs=data.inputs)
    start = of.start_of(chain, config.seed, job.trials, config.device)
    start = of.with_first_scaled(start, options["init_scale"])
    x, _ = of.pixel_inputs(data, pixels, config.device)
    before = of.Reading(start, x, data.y, data.classes).activity()
    metrics |= {f"{name}_start": before[name] for name in ("rare1_hidden", RARE)}
    return {
        job.work: Measures(
            metrics,
            measured.seconds,
            curves={ACCURACY: measured.curves[ACCURACY]},
            columns=measured.columns,
            statuses=measured.statuses,
        )
    }


def finish(config: PixelsConfig, results: Results) -> None:
    """Add the effect of each part, the mean of four differences within a trial, and the start."""
    for (network, condition), measured in results.measures.items():
        untrained = measured.values(f"{RARE}_start")
        results.evidence[network, f"{UNTRAINED} {condition}", RARE] = untrained
    for network, factor, metric in product(config.network, FACTORS, METRICS):
        pairs = [
            [results.measures.get((network, name)) for name in pair] for pair in pairs_of(factor)
        ]
        differences = [
            a.values(metric) - b.values(metric) for a, b in pairs if a is not None and b is not None
        ]
        if len(differences) == len(pairs):
            effect = np.mean(differences, axis=0)
            results.evidence[network, effect_of(factor), metric] = effect
    results.cautions += study.still_learning(results.mean("late_gain"))


STUDY = Study(
    name="pixels",
    question="Why do raw and normalised pixels tell different stories?",
    source=representation.PAPER,
    config=PixelsConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=lambda config: study.jobs_of(config.network, config.models, config.trials),
    measure=measure,
    finish=finish,
    primary=ACCURACY,
    variant="network",
    titles={name: model.label for name, model in representation.MODELS.items()},
    pairs=tuple(pair for factor in FACTORS for pair in pairs_of(factor)),
    tested=(ACCURACY, RARE),
    columns=("steps",),
    stacked=True,
    thing="condition",
    shown=(ACCURACY, "dead_outputs", "rare5_outputs", "rare1_hidden", RARE, f"{RARE}_start"),
    remark="Start: of the first layer's weights. Step: of these weights. Shift: of the mean pixel "
    "to 0. A part that is not named is that of raw pixels.",
    plots=(
        Dots(
            name="accuracy",
            title="Which part of normalising decides how accurate a network is?",
            caption="Rows of a pair differ in the shift alone, pairs in the start or the step.",
            metric=ACCURACY,
            family=_without_shift,
        ),
        Dots(
            name="hidden",
            title="Which part decides how many hidden units are rarely active?",
            caption="Share of the hidden units that are active on fewer than 5 % of the training "
            "inputs; Abs units never are among them. Rows of a pair differ in the shift alone.",
            metric=RARE,
            family=_without_shift,
        ),
        Curves(name="learning", title="How fast does each network learn?", column=ACCURACY),
    ),
)
