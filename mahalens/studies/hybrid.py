"""The hybrid study: hidden layers that mix Abs and ReLU units, where units are many and few.

Proposed in *Interpreting Neural Networks through Mahalanobis Distance*, which expects such layers
to combine the strengths of both. Every trial of every model chooses its learning rate by held-out
training samples, then trains on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mahalens import data, nn, train
from mahalens.errors import InputError
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Average, Both, Claim, Difference, Every, Lower, Within
from mahalens.studies.plots import Against, Curves, Dots
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Option, Results, Study

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from mahalens.studies.run import Context
    from mahalens.studies.samples import Samples

# --- Models -----------------------------------------------------------------------------------

WIDE, NARROW = "wide", "narrow"
_FRACTIONS = {0.125: "1/8", 0.25: "1/4", 0.5: "1/2", 0.75: "3/4", 0.875: "7/8"}


@dataclass(frozen=True)
class Mixture:
    """A hidden layer: how wide it is, and which share of its units are absolute values.

    ``share`` is None where every unit learns its own slope for negative numbers, from half-way
    between ReLU (0) and Abs (-1). ``times`` is how many times as wide as its family it is.
    """

    family: str
    share: float | None
    times: int = 1

    def absolute(self, units: int) -> int:
        """Return how many of so many units are absolute values.

        >>> MIXTURES["abs-75"].absolute(32), MIXTURES["narrow-100"].absolute(4)
        (24, 4)
        """
        return round((self.share or 0.0) * units)

    @property
    def model(self) -> Model:
        """How it is shown: blue for ReLU, vermilion for Abs, squares for narrow layers."""
        marker = "s" if self.family == NARROW else "o"
        if self.times > 1:
            text = "ReLU units, twice as many as in the narrow layer"
            return Model("Narrow ReLU, twice the units", text, "#000000", marker)
        if self.share is None:
            name, text = "learned", "every unit learns how much of an Abs it is"
        elif self.share in (0, 1):
            name = "Abs" if self.share else "ReLU"
            text = f"all units {name}"
        else:
            name = f"{_FRACTIONS[self.share]} Abs"
            text = f"{_FRACTIONS[self.share]} of the units Abs, the others ReLU"
        label = f"Narrow, {name}" if self.family == NARROW else name[:1].upper() + name[1:]
        return Model(label, f"a {self.family} layer, {text}", self._colour(), marker)

    def _colour(self) -> str:
        if self.share is None:
            return "#009E73"
        relu, middle, absolute = (0x00, 0x72, 0xB2), (0x94, 0x67, 0xA8), (0xD5, 0x5E, 0x00)
        low, high = (relu, middle) if self.share < 0.5 else (middle, absolute)
        along = 2 * self.share - (self.share >= 0.5)
        mixed = (round(a + along * (b - a)) for a, b in zip(low, high, strict=True))
        return "#" + "".join(f"{part:02X}" for part in mixed)


MIXTURES = {
    **{f"abs-{round(100 * s)}": Mixture(WIDE, s) for s in (0, 0.125, 0.25, 0.5, 0.75, 0.875, 1)},
    "learned": Mixture(WIDE, None),
    **{f"narrow-{round(100 * s)}": Mixture(NARROW, s) for s in (0, 0.25, 0.5, 0.75, 1)},
    "narrow-learned": Mixture(NARROW, None),
    "narrow-double": Mixture(NARROW, 0.0, 2),
}
MODELS = {name: mixture.model for name, mixture in MIXTURES.items()}
REFERENCE = {WIDE: "abs-0", NARROW: "narrow-0"}
"""The layer of each family that has ReLU units alone."""

# --- Options ----------------------------------------------------------------------------------

DEFAULT_DATA = ("digits", "iris", "wine", "breast-cancer")
FULL_DATA = (*DEFAULT_DATA, "mnist", "fashion-mnist")
FIXED_MIXTURES = tuple(name for name, mixture in MIXTURES.items() if mixture.share is not None)
"""The default: learned mixtures are no chain, and train as slowly as a single network each."""

RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
"""The learning rates that every model of every trial chooses from."""
IMAGE_UNITS, TABLE_UNITS, NARROW_UNITS = 128, 32, 4
FEW = 1_000
"""Below so many training samples a set is small."""
BATCH, SMALL_BATCH = 64, 16
VALIDATION, SMALL_DRAWS = 0.2, 3
"""The share of the training samples that judges learning rates, and how often it is drawn anew
in a small set, of which a fifth is little to judge by."""


class HybridConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[tuple[str, ...], study.data_option(DEFAULT_DATA, FULL_DATA)]
    models: Annotated[tuple[str, ...], study.models_option(MODELS, usual=FIXED_MIXTURES)]
    trials: Annotated[int, study.count_option("Trials of each model.", 20, large=10)]
    epochs: Annotated[int, study.count_option("Epochs of training.", 100, large=20)]
    train_size: Annotated[int | None, study.train_size_option(5_000)]
    hidden: Annotated[
        int | None,
        Option(
            "Units of wide layers, a multiple of 8.",
            published=None,
            shown=f"{IMAGE_UNITS} on images, {TABLE_UNITS} on tables",
            label="units of wide layers",
            show=lambda units: "as usual" if units is None else str(units),
            least=1,
            most=100_000,
        ),
    ] = None
    narrow: Annotated[
        int,
        Option(
            "Units of narrow layers, a multiple of 4.",
            NARROW_UNITS,
            published=NARROW_UNITS,
            label="units of narrow layers",
            least=1,
            most=100_000,
        ),
    ] = NARROW_UNITS

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, units, parts in (("hidden", self.hidden, 8), ("narrow", self.narrow, 4)):
            if units is not None and units % parts:
                raise InputError(
                    f"--{option} {units}: give {parts} or a multiple of it, so that shares are "
                    "whole"
                )

    def units(self, model: str, image: bool) -> int:
        """Return how many units the hidden layer of a model has."""
        mixture = MIXTURES[model]
        wide = self.hidden or (IMAGE_UNITS if image else TABLE_UNITS)
        return mixture.times * (self.narrow if mixture.family == NARROW else wide)


# --- Metrics ----------------------------------------------------------------------------------

METRICS: dict[str, Metric] = {
    "test_accuracy": study.NETWORK_METRICS["test_accuracy"],
    "gain": Metric(
        "Gain over ReLU",
        "Test accuracy less that of the layer of the same family with ReLU units alone.",
        "points",
        "high",
    ),
    "area": Metric(
        "Mean accuracy along training",
        "Test accuracy averaged over all epochs: high where training is fast.",
        "%",
        "high",
    ),
    "train_loss": study.NETWORK_METRICS["train_loss"],
    "epochs_to_tenth": Metric(
        "Epochs to a tenth",
        "First epoch with a training loss of at most a tenth of that of guessing, ln C / 10; one "
        "more than there are where there is none.",
        "epochs",
        log=True,
    ),
    "fastest_epochs": Metric(
        "Fewest epochs to a tenth",
        "The same at the learning rate that gets there first, of those that are tried.",
        "epochs",
        log=True,
    ),
    "late_gain": study.NETWORK_METRICS["late_gain"],
    "dead": Metric("Dead units", "Hidden units that exceed 1e-6 on no training sample.", "%"),
    "dead_relu": Metric("Dead ReLU units", "The same among the ReLU units.", "%"),
    "flat_abs": Metric(
        "Abs units that do not fold",
        "Abs units with all training samples on one side, where they are linear.",
        "%",
        None,
    ),
    "abs_weight": Metric(
        "Weight on Abs units",
        "Share of Abs units in what moves the outputs: the spread of each unit's activation times "
        "the size of its weights to the classes.",
        "%",
        None,
    ),
    "learned_abs": Metric(
        "Learned part of an Abs",
        "Minus the mean slope for negative numbers that units have learned, from 0.5: 0 is a ReLU, "
        "1 an Abs, -1 a linear unit.",
        better=None,
    ),
    "rate": Metric(
        "Learning rate", "The best on held-out training samples.", better=None, log=True
    ),
    "seconds": Metric("Time", "Of the last training of a trial, without the choice of rate.", "s"),
}

# --- Claims -----------------------------------------------------------------------------------

ACCURACY = "test_accuracy"
THEORY = "interpreting"


_above = partial(Difference, ACCURACY, side="above")
_faster = partial(Lower, "fastest_epochs")


def _beats(model: str, than: str, points: float = 0.0) -> Difference:
    return _above(model, than, bound=points)


MIXED = tuple(n for n, m in MIXTURES.items() if m.family == WIDE and 0 < (m.share or 0) < 1)

_EXPECTED: claims.Rows = {
    "half-beats-relu": (
        "A layer half of Abs units is more accurate than one of ReLU units alone.",
        _beats("abs-50", "abs-0"),
    ),
    "half-beats-both": (
        "A layer half of Abs units is more accurate than both pure layers.",
        Both(_beats("abs-50", "abs-0"), _beats("abs-50", "abs-100")),
    ),
    "narrow-half-beats-both": (
        "So it is where units are scarce: a narrow layer half of Abs units beats both pure ones.",
        Both(_beats("narrow-50", "narrow-0"), _beats("narrow-50", "narrow-100")),
    ),
    "abs-equals-relu": (
        "Abs units and ReLU units say the same: pure layers differ by less than a point.",
        Within(ACCURACY, "abs-100", "abs-0", 1.0),
    ),
    "narrow-abs-beats-relu": (
        "Where units are scarce, Abs units alone are more accurate than as many ReLU units.",
        _beats("narrow-100", "narrow-0"),
    ),
    "one-abs-for-two-relu": (
        "One Abs unit stands for two ReLU units: the narrow Abs layer is at most a point less "
        "accurate than twice as many ReLU units.",
        _beats("narrow-100", "narrow-double", -1.0),
    ),
    "narrow-gains-more": (
        "Abs units gain more over ReLU units in the narrow layer than in the wide one.",
        Difference("gain", "narrow-100", "abs-100", "above", 0.0),
    ),
}
_OUR_CLAIMS: claims.Rows = {
    "mixing-costs-nothing": (
        "Mixing costs nothing: no wide mixture is a point less accurate than ReLU units alone.",
        claims.every(_beats(name, "abs-0", -1.0) for name in MIXED),
    ),
    "more-abs-more-accurate": (
        "The more Abs units, the more accurate: half beats none, and all beat half.",
        Every((_beats("abs-50", "abs-0"), _beats("abs-100", "abs-50"))),
    ),
    "more-abs-faster": (
        "The more Abs units, the faster: at its fastest learning rate, half gets to a tenth of "
        "the loss of guessing in fewer epochs than none, and all in fewer than half.",
        Every((_faster("abs-50", "abs-0"), _faster("abs-100", "abs-50"))),
    ),
    "narrow-more-abs-faster": (
        "Where units are scarce, too: half Abs units are faster than none, and all than half.",
        Every((_faster("narrow-50", "narrow-0"), _faster("narrow-100", "narrow-50"))),
    ),
    "relu-varies-more": (
        "Where units are scarce, the accuracy of ReLU units varies more than that of Abs units.",
        claims.MoreVariable(ACCURACY, "narrow-0", "narrow-100"),
    ),
    "only-relu-units-die": (
        "Units of the wide ReLU layer die (more than 1 %), those of the Abs layer do not (fewer).",
        Every((Average("dead", "abs-0", "above", 1.0), Average("dead", "abs-100", "below", 1.0))),
    ),
    "outputs-lean-on-abs": (
        "Given as many of both, outputs lean on Abs units: more than half of what moves them.",
        Average("abs_weight", "abs-50", "above", 50.0),
    ),
}
CLAIMS = (
    *claims.from_rows(THEORY, _EXPECTED),
    *claims.from_rows(claims.OURS, _OUR_CLAIMS),
    *(
        Claim(
            f"{model}-becomes-abs",
            f"Units of a {where} layer that may choose become more of an Abs than of a ReLU (above "
            "0.5, where they start).",
            Average("learned_abs", model, "above", 0.5),
            only=(model,),
        )
        for model, where in (("learned", WIDE), ("narrow-learned", NARROW))
    ),
)
PAIRS = tuple(
    (a, b)
    for a, b in (
        *((name, REFERENCE[mixture.family]) for name, mixture in MIXTURES.items()),
        ("abs-50", "abs-100"),
        ("narrow-50", "narrow-100"),
        ("narrow-100", "narrow-double"),
    )
    if a != b
)
"""Each layer with ReLU units alone, and some with Abs units alone."""

# --- Measure ----------------------------------------------------------------------------------


def check(config: HybridConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data sets; refuse one that leaves no samples to choose learning rates by."""
    from mahalens.studies.samples import check_sets, samples_of

    facts = check_sets(config.data, config.train_size)
    for name in config.data:
        y = samples_of(name, seed=config.seed, trial=0, train_size=config.train_size).y
        if not data.held_out(y, VALIDATION, data.stream(config.seed, "validation", 0, 0)).any():
            raise InputError(
                f"--data {name}: {len(y)} training samples leave none to choose learning rates by; "
                "give at least 5 of some class"
            )
    return {"data": facts, "epochs": config.epochs}


def jobs(config: HybridConfig) -> list[Job]:
    """Cut the work: some trials of all layers of one family; one by one where samples are many."""
    families = dict.fromkeys(MIXTURES[name].family for name in config.models)
    return [
        job
        for name in config.data
        for job in study.jobs_of([name], families, config.trials, 4 if name in DEFAULT_DATA else 1)
    ]


TENTH = 0.1
"""A loss is reached when it is so much of the loss of guessing, ``ln C``."""
HALF_WAY = -0.5
"""The slope for negative numbers that units of a learned mixture start with."""
POINTS = 25
"""How often a network is tested while it trains."""
ACTIVE = 1e-6
"""An activation above this counts as one."""


def measure(config: HybridConfig, job: Job, context: Context) -> dict[str, Measures]:
    """Train and read every layer of the family ``job.work`` in the job's trials."""
    from mahalens.studies.samples import samples_of

    how: dict[str, Any] = {"seed": config.seed, "train_size": config.train_size}
    sets = [samples_of(job.variant, trial=t, **how).to(config.device) for t in job.trials]
    names = [name for name in config.models if MIXTURES[name].family == job.work]
    measures: dict[str, Measures] = {}
    for place, name in enumerate(names):
        context.look()
        context.report(place / len(names), name)
        measures[name] = _measure_model(config, name, job.trials, sets)
    return measures


def _measure_model(
    config: HybridConfig, model: str, trials: Sequence[int], sets: Sequence[Samples]
) -> Measures:
    from mahalens.studies.networks import curve_metrics, measured_epochs

    rates, rate_losses, seconds = _choose_rates(config, model, trials, sets)
    rows = [
        _Row(trial, samples.x, samples.y, rate)
        for trial, samples, rate in zip(trials, sets, rates.tolist(), strict=True)
    ]

    def test(solver: Any) -> dict[str, Tensor]:
        stack = solver.stack
        scores = [_judge(stack[t], s.test_x, s.test_y) for t, s in enumerate(sets)]
        return {"accuracy": torch.stack([accuracy for accuracy, _ in scores])}

    at = measured_epochs(config.epochs, POINTS)
    solver = _fit(config, model, rows, sets[0], test, at)
    # Where all trials ran away and training ended early, later accuracies stay NaN.
    accuracy = torch.full((len(sets), len(at)), math.nan)
    reached = [at.index(epoch) for epoch in solver.history.epochs.tolist() if epoch in at]
    accuracy[:, reached] = solver.history["accuracy"].T[:, : len(reached)].cpu()
    losses, epochs = _losses(solver, config.epochs), torch.tensor(at)
    goal = TENTH * math.log(sets[0].classes)
    readings = [read_layer(solver.stack[t], samples.x) for t, samples in enumerate(sets)]
    metrics = {
        "test_accuracy": accuracy[:, -1].double(),
        "area": area(epochs, accuracy),
        "train_loss": losses[:, -1].double(),
        "epochs_to_tenth": epochs_until(losses, goal),
        "fastest_epochs": epochs_until(rate_losses, goal).amin(1),
        "late_gain": curve_metrics(epochs, accuracy)["late_gain"].double(),
        **{name: torch.tensor([r[name] for r in readings]).double() for name in readings[0]},
        "rate": rates,
        "seconds": torch.full((len(sets),), solver.seconds / len(sets)).double(),
    }
    lost = ~metrics["test_accuracy"].isfinite()
    metrics = {name: torch.where(lost, math.nan, values) for name, values in metrics.items()}
    before = losses.new_full((len(sets), 1), math.nan)  # no epoch, no loss
    train_loss = torch.cat([before, losses], 1)[:, epochs]
    return Measures(
        metrics=metrics,
        seconds=seconds + solver.seconds,
        curves={"test_accuracy": (epochs, accuracy), "train_loss": (epochs, train_loss)},
        weights=solver.stack.tensors(),
    )


@dataclass(frozen=True)
class _Row:
    """One network of a stack: from the start of which trial, on which samples, how fast."""

    trial: int
    x: Tensor
    y: Tensor
    rate: float


def _choose_rates(
    config: HybridConfig, model: str, trials: Sequence[int], sets: Sequence[Samples]
) -> tuple[Tensor, Tensor, float]:
    """Choose the learning rate of each trial by samples held out of its training.

    Returns the rates ``[T]``, the losses with all rates and draws ``[T, R, E]``, and the seconds.
    """
    draws = SMALL_DRAWS if len(sets[0].y) < FEW else 1
    rows, held = [], []
    for trial, samples in zip(trials, sets, strict=True):
        for draw in range(draws):
            generator = data.stream(config.seed, "validation", trial, draw)
            out = data.held_out(samples.y.cpu(), VALIDATION, generator).to(samples.y.device)
            x, y = samples.x[~out], samples.y[~out]
            rows += [_Row(trial, x, y, rate) for rate in RATES]
            held += [(samples.x[out], samples.y[out])] * len(RATES)
    solver = _fit(config, model, rows, sets[0])
    stack = solver.stack
    scores = [_judge(stack[place], *samples) for place, samples in enumerate(held)]
    accuracy, loss = (
        torch.stack(part).double().reshape(len(trials), draws, len(RATES)).mean(1).cpu()
        for part in zip(*scores, strict=True)
    )
    losses = _losses(solver, config.epochs).reshape(len(trials), -1, config.epochs)
    return best_rates(accuracy, loss), losses, solver.seconds


def best_rates(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Return each trial's rate with the highest accuracy ``[T, R]``, of equals the lowest loss."""
    accuracy = accuracy.nan_to_num(-1.0)  # a network that ran away is taken last
    best = accuracy == accuracy.max(1, keepdim=True).values
    place = torch.where(best, loss.nan_to_num(math.inf), math.inf).argmin(1)
    return torch.tensor(RATES, dtype=torch.float64)[place]


def _fit(
    config: HybridConfig,
    model: str,
    rows: Sequence[_Row],
    like: Samples,
    metrics: Any = None,
    at: Iterable[int] = (),
) -> Any:
    """Train all rows at once; ``like`` has their shapes."""
    trials = [row.trial for row in rows]
    shared = all(row.x is rows[0].x for row in rows)  # then one copy serves all
    x = rows[0].x if shared else torch.stack([row.x for row in rows])
    y = rows[0].y if shared else torch.stack([row.y for row in rows])
    start = _start(config, model, trials, like)
    return train.fit(
        train.TrialStack(start.model, start.values.to(x.device)),
        x,
        y,
        epochs=config.epochs,
        loss="cross-entropy",
        solver="adam",
        batch_size=SMALL_BATCH if len(like.y) < FEW else BATCH,
        seeds=[_seed(config, "order", trial) for trial in trials],
        own=not shared,
        metrics=metrics,
        at=at,
        lr=[row.rate for row in rows],
        betas=(0.9, 0.999),
        curve_points=10**6,
    )


def _start(config: HybridConfig, model: str, trials: Sequence[int], like: Samples) -> Any:
    """Return untrained networks; all models of one width start from the same weights in a trial."""
    units, mixture = config.units(model, like.image_shape is not None), MIXTURES[model]
    seeds = [_seed(config, "start", trial) for trial in trials]
    if mixture.share is None:

        def learned() -> Module:
            return torch.nn.Sequential(
                torch.nn.Linear(like.inputs, units),
                torch.nn.PReLU(units, HALF_WAY),
                torch.nn.Linear(units, like.classes),
            )

        return train.TrialStack.from_seeds(learned, seeds)
    text = f"Linear({units}), AbsReLU(absolute={mixture.absolute(units)}), Linear({like.classes})"
    return train.TrialStack.from_seeds(nn.Chain.parse(text, inputs=like.inputs), seeds)


def _seed(config: HybridConfig, purpose: str, trial: int) -> int:
    generator = data.stream(config.seed, purpose, trial)
    return int(torch.randint(2**31, (1,), generator=generator))


def _judge(module: Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return accuracy in percent and loss; NaN both if an output is not finite."""
    with torch.no_grad():
        output = module(x)
    if not bool(output.isfinite().all()):
        return x.new_tensor(math.nan), x.new_tensor(math.nan)
    loss = torch.nn.functional.cross_entropy(output, y)
    return 100 * (output.argmax(1) == y).float().mean(), loss


def _losses(solver: Any, epochs: int) -> Tensor:
    """Return the training loss of every epoch ``[T, E]``, NaN after the end of a trial."""
    losses = torch.full((len(solver.stack), epochs), math.nan)
    at, curve = solver.curve
    losses[:, at - 1] = curve.T.cpu()
    return losses


def area(at: Tensor, accuracy: Tensor) -> Tensor:
    """Return the mean of a curve ``[T, L]`` over all epochs ``[T]``, linear between its points."""
    return torch.trapezoid(accuracy.double(), at.double()) / float(at[-1] - at[0])


def epochs_until(losses: Tensor, goal: float) -> Tensor:
    """Return the first epoch ``[...]`` with a loss ``[..., E]`` of at most ``goal``, else E + 1."""
    met = losses <= goal
    first = met.double().argmax(-1) + 1
    return torch.where(met.any(-1), first, losses.shape[-1] + 1).double()


def read_layer(module: Module, x: Tensor) -> dict[str, float]:
    """Return numbers of a trained network ``Linear, activation, Linear`` on samples ``[N, D]``.

    - ``dead``: the share of all units that no sample activates, and ``dead_relu`` of the ReLU
      units;
    - ``flat_abs``: the share of the Abs units with all samples on one side of their hyperplane,
      where they do not fold and are linear;
    - ``abs_weight``: the share of Abs units in what moves the outputs. What unit k moves is
      ``sₖ Σ_c |V_ck - V̄_k|`` with s the spread of its activation and V̄ its mean weight over the
      classes, which softmax does not see;
    - ``learned_abs``: how much of an Abs a unit has learned to be on average, minus its slope for
      negative numbers: 0 is a ReLU, 1 an Abs, -1 a linear unit.

    All in percent but the last; NaN where there are no such units.
    """
    layers: list[Any] = list(module.children())
    first, activation, last = layers
    with torch.no_grad():
        z = first(x)
        active = activation(z)
    names = ("dead_relu", "flat_abs", "abs_weight", "learned_abs")
    numbers = dict.fromkeys(names, math.nan)
    dead = active.abs().amax(0) <= ACTIVE
    numbers["dead"] = _percent(dead)
    if isinstance(activation, torch.nn.PReLU):
        numbers["learned_abs"] = -float(activation.weight.detach().mean())
        return numbers
    absolute: Any = activation.absolute
    numbers["dead_relu"] = _percent(dead[~absolute])
    numbers["flat_abs"] = _percent(((z >= 0).all(0) | (z <= 0).all(0))[absolute])
    if 0 < int(absolute.sum()) < len(absolute):
        weight = last.weight.detach() - last.weight.detach().mean(0)
        moved = active.std(0, correction=0) * weight.abs().sum(0)
        numbers["abs_weight"] = 100 * float(moved[absolute].sum() / moved.sum())
    return numbers


def _percent(marked: Tensor) -> float:
    return 100 * float(marked.double().mean()) if len(marked) else math.nan


def finish(config: HybridConfig, results: Results) -> None:
    """Add gains over ReLU units; warn if networks were still learning when training ended."""
    results.measures |= _with_gains(results.measures)
    results.cautions += study.still_learning(results.mean("late_gain", lambda m: MODELS[m].label))


def _with_gains(measures: Mapping[tuple[str, str], Measures]) -> dict[tuple[str, str], Measures]:
    """Add ``gain``: points of test accuracy more than ReLU units alone have.

    A model has no gain without them, not even one that an earlier version stored with its trials.
    """
    own = {}
    for (variant, model), measured in measures.items():
        metrics = {name: values for name, values in measured.metrics.items() if name != "gain"}
        reference = measures.get((variant, REFERENCE[MIXTURES[model].family]))
        if reference is not None:
            metrics["gain"] = metrics[ACCURACY] - reference.metrics[ACCURACY]
        own[variant, model] = replace(measured, metrics=metrics)
    return own


def _share(model: str) -> float | None:
    mixture = MIXTURES[model]
    return None if mixture.share is None or mixture.times > 1 else 100 * mixture.share


STUDY = Study(
    name="hybrid",
    question="Do layers that mix Abs and ReLU units beat pure ones, where units are many and few?",
    source=THEORY,
    config=HybridConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    pairs=PAIRS,
    tested=(ACCURACY, "fastest_epochs"),
    primary=ACCURACY,
    shown=(ACCURACY, "gain", "train_loss", "fastest_epochs", "dead", "abs_weight", "rate"),
    remark="Trial i of all models has the same samples and order of batches, and all models of one "
    "width start from the same weights. Every trial chose its learning rate by held-out training "
    "samples.",
    plots=(
        Against(
            name="shares",
            title="What do Abs units gain over ReLU units?",
            caption="Points of test accuracy more than as many ReLU units have in the same trial: "
            "mean with 95 % interval. A mixture pays only where the line bulges upwards. If one "
            "Abs unit stands for two ReLU units, the narrow Abs layer (right) reaches the dashed "
            "line.",
            metrics=("gain",),
            at=_share,
            line=lambda model: MIXTURES[model].family,
            label="share of Abs units, %",
        ),
        Dots(
            title="How accurate is each layer?",
            metric=ACCURACY,
            family=lambda model: MIXTURES[model].family,
        ),
        Curves(name="progress", title="How fast does each layer learn?", column=ACCURACY),
    ),
)
