"""The perturbation study: which of intensities and distances trained networks rely on.

The experiment of *Neural Networks Use Distance Metrics*: the hidden layer of two-layer networks is
scaled and clipped, which changes intensities, or offset, which moves hyperplanes and so changes
distances. Claims speak of ``lost``, the points of training accuracy that a perturbation costs a
trial, because unperturbed accuracies here need not be the paper's.
"""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import numpy as np

from mahalens import nn, stats, train
from mahalens.errors import InputError, RunFolderError
from mahalens.files import read_file
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Average, Both, Every, Lower
from mahalens.studies.folder import (
    LEVELS,
    SUMMARY,
    TRIALS,
    WEIGHTS,
    is_unchanged,
    read_config,
    upgrade_options,
)
from mahalens.studies.plots import Levels
from mahalens.studies.representation import (
    MODELS,
    PIXELS,
    PUBLISHED_EPOCHS,
    PUBLISHED_TRIALS,
    RepresentationConfig,
    both_pixels,
    choose_models,
    networks_option,
    one_set_option,
    pixels_option,
    text_of,
)
from mahalens.studies.study import Config, Job, Measures, Metric, Option, Results, Study

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.data import LabelledData
    from mahalens.studies.run import Context
    from mahalens.train import TrialStack

# --- Levels -----------------------------------------------------------------------------------

KINDS = {"scale": "Intensity scale", "clip": "Intensity clip", "offset": "Distance offset"}
TABLE: dict[str, tuple[float, ...]] = {
    "scale": (0.01, 0.1),
    "clip": (0.1, 0.5),
    "offset": (-0.1, -0.01, 0.01, 0.1, 0.25),
}
"""The levels that a run has a column for: those of the paper's table."""


def column(kind: str, level: float) -> str:
    """Return the name of a level in ``trials.csv``.

    >>> column("offset", -0.1), column("scale", 0.01)
    ('offset_-0.1', 'scale_0.01')
    """
    return f"{kind}_{level:g}"


def percent(kind: str, level: float) -> str:
    """Return a level for people; of an offset with its sign.

    >>> percent("scale", 0.01), percent("offset", 0.1), percent("offset", -0.01)
    ('1 %', '+10 %', '-1 %')
    """
    return f"{100 * level:+g} %" if kind == "offset" and level else f"{100 * level:g} %"


def perturbed(model: str, kind: str, level: float, place: str = "before") -> str:
    """Return what claims call a network under a perturbation.

    >>> perturbed("abs-bias", "offset", 0.1), perturbed("abs-bias", "clip", 0.5, "after")
    ('abs-bias, offset +10 %', 'abs-bias, clip 50 % after the activation')
    """
    where = "" if place == "before" else " after the activation"
    return f"{model}, {kind} {percent(kind, level)}{where}"


def after(model: str) -> str:
    """Return what claims call a network that was perturbed after its activation function."""
    return f"{model}, after the activation"


# --- Options ----------------------------------------------------------------------------------

PUBLISHED_MODELS = ("relu-bias", "abs-bias")
"""The two networks of the paper; it calls them ReLU and Abs."""


class PerturbationConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``networks`` is the folder of a finished representation run whose networks are perturbed;
    ``instead`` explains why these data were taken, where others would have been.
    """

    networks: Annotated[
        str | None,
        Option(
            "Take the trained networks of a finished representation run.",
            metavar="DIR",
            file=True,
            named="from",
        ),
    ] = None
    data: Annotated[str, one_set_option(shown="mnist if it is here, else digits")]
    models: Annotated[
        tuple[str, ...],
        networks_option(
            "Networks of the representation study, by name or family.",
            PUBLISHED_MODELS,
            PUBLISHED_MODELS,
            "",
        ),
    ]
    pixels: Annotated[tuple[str, ...], pixels_option(("raw",), "raw; with --from: all")]
    train_size: Annotated[int | None, study.train_size_option(5_000)]
    epochs: Annotated[
        int, study.count_option("Epochs of training.", 2_000, large=1_000, full=PUBLISHED_EPOCHS)
    ]
    trials: Annotated[
        int, study.count_option("Trials of each network.", 10, large=5, full=PUBLISHED_TRIALS)
    ]
    hidden: Annotated[int, study.hidden_option()] = 128
    learning_rate: Annotated[float, study.learning_rate_option()] = 1e-3
    instead: str | None = None

    @classmethod
    def with_defaults(cls, *, published: bool = False, **values: Any) -> Self:
        """Fill in the options that are not given; of networks from a folder those of their run."""
        if values.get("models") is not None:
            values["models"] = choose_models(values["models"], None)
        values["pixels"] = both_pixels(values.get("pixels"))
        if values.get("networks") is not None:
            source = Path(values.pop("networks"))
            return cls._from_run(source, {**values, "published": published or None})
        if not published and values.get("data") is None:
            values["data"] = "mnist" if study.are_here("mnist") else "digits"
            if values["data"] == "digits":
                values["instead"] = (
                    "MNIST is not on this machine; get it with: mahalens data fetch mnist"
                )
        return super().with_defaults(published=published, **values)

    @classmethod
    def _from_run(cls, source: Path, values: dict[str, Any]) -> Self:
        free = ("models", "pixels", "executor", "device", "tensorboard")
        for name, value in values.items():
            if value is not None and name not in free:
                raise InputError(
                    f"--from with --{study.flag_of(name)}: its networks are trained already; leave "
                    "one of them out"
                )
        options = _source_options(source)
        if options.depth > 1:
            raise InputError(
                f"--from {source}: its networks have {options.depth} hidden layers; give a run "
                "of networks with one"
            )
        chosen = values.get("models") or PUBLISHED_MODELS
        if missing := [model for model in chosen if model not in options.models]:
            raise InputError(
                f"--from {source}: has no {', '.join(missing)}; it has "
                f"{', '.join(options.models)}: give some of them as --models"
            )
        pixels = values["pixels"] or options.pixels
        if absent := [way for way in pixels if way not in options.pixels]:
            raise InputError(
                f"--from {source}: has no networks for {absent[0]} pixels; leave --pixels out"
            )
        names = ("data", "epochs", "trials", "train_size", "seed", "hidden", "learning_rate")
        same = {name: getattr(options, name) for name in (*names, "shortened")}
        same["device"] = values.get("device") or "cpu"
        same["tensorboard"] = bool(values.get("tensorboard"))
        return cls(networks=str(source), models=chosen, pixels=pixels, **same)

    def _deviations(self) -> dict[str, str]:
        sentences = super()._deviations()
        if self.instead:
            sentences["data"] += f" ({self.instead})"
        return sentences


def _source_options(source: Path) -> RepresentationConfig:
    config = read_config(source)
    if config.study != "representation":
        raise InputError(
            f"--from {source}: holds a run of {config.study}; give the folder of a representation "
            "run"
        )
    if not (source / SUMMARY).exists():
        raise InputError(
            f"--from {source}: is not finished; finish it with "
            f"`mahalens run --resume {shlex.quote(str(source))}`"
        )
    try:
        return msgspec.convert(upgrade_options(config.options), RepresentationConfig)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(
            f"--from {source}: its options cannot be used ({error}); train the networks again"
        ) from None


# --- Metrics ----------------------------------------------------------------------------------

_MEANING = {
    "scale": "with all values of the hidden layer multiplied by {level}",
    "clip": "with no value of a hidden unit above its lowest activation plus {level} of its range",
    "offset": "with each hidden unit's lowest activation moved by {level} of its range, its "
    "highest kept, and all values between in proportion",
}


def _levels(start: str, place: str, where: str, kinds: tuple[str, ...]) -> dict[str, Metric]:
    """Return the metrics of one place: accuracy at each level of the table, index and misfit."""
    metrics = {
        f"{start}{column(kind, level)}": Metric(
            f"{KINDS[kind]} {percent(kind, level)}{place}",
            f"Accuracy {_MEANING[kind].format(level=percent(kind, level))}; on {where}.",
            "%",
            None,
        )
        for kind in kinds
        for level in TABLE[kind]
    }
    ending = f"_{start}".rstrip("_")
    metrics[f"reliance{ending}"] = Metric(
        f"Reliance on distance{place}",
        "(D - I) / (D + I), with D the mean accuracy lost under the table's offsets, I under its "
        f"scales and clips: 1 if only distances count, -1 if only intensities do; on {where}.",
        "index",
        None,
    )
    metrics[f"misfit{ending}"] = Metric(
        f"Distance from the published table{place}",
        f"Mean distance from the nine published accuracies; on {where}.",
        "points",
    )
    return metrics


_TRAIN = _levels("", "", "training samples", tuple(KINDS))
_TEST = _levels("test_", ", test data", "test samples", tuple(KINDS))
_AFTER = _levels(
    "after_",
    ", after the activation",
    "training samples, perturbed after the activation function",
    ("clip", "offset"),
)
METRICS: dict[str, Metric] = {
    "train_accuracy": study.NETWORK_METRICS["train_accuracy"],
    "test_accuracy": study.NETWORK_METRICS["test_accuracy"],
    **_TRAIN,
    **{name: metric for name, metric in _TEST.items() if name != "misfit_test"},
    **_AFTER,
    "late_gain": study.NETWORK_METRICS["late_gain"],
}

# --- Claims -----------------------------------------------------------------------------------

PAPER = "use-metrics"
LOST = "lost"
_BOTH = ("abs", "relu")


def _under(model: str, kind: str, level: float, place: str = "before") -> str:
    return perturbed(f"{model}-bias", kind, level, place)


def _loses(model: str, kind: str, level: float, side: claims.Side, points: float) -> Average:
    return Average(LOST, _under(model, kind, level), side, points)


def _both_lose_less(kind: str, levels: tuple[float, ...], points: float) -> Every:
    return claims.every(_loses(model, kind, p, "below", points) for model in _BOTH for p in levels)


def _cheaper(first: str, second: str) -> Lower:
    return Lower(LOST, first, second)


def _offsets_cost_more(model: str) -> Every:
    scaled = _under(model, "scale", 0.1)
    return claims.every(_cheaper(scaled, _under(model, "offset", p)) for p in (-0.1, 0.1))


_PAPER_CLAIMS: claims.Rows = {
    "abs-fits-better-and-generalises-worse": (
        "Abs fits the training set better than ReLU and the test set worse.",
        Both(
            Lower("train_accuracy", "relu-bias", "abs-bias"),
            Lower("test_accuracy", "abs-bias", "relu-bias"),
        ),
    ),
    "scale-10-costs-nothing": (
        "Scaling to 10 % costs neither network half a point.",
        _both_lose_less("scale", (0.1,), 0.5),
    ),
    "scale-10-is-not-significant": (
        "Scaling to 10 % changes neither network's accuracy significantly.",
        claims.every(
            claims.Indistinguishable("train_accuracy", _under(m, "scale", 0.1), f"{m}-bias", 0.5)
            for m in _BOTH
        ),
    ),
    "scale-1-spares-abs": (
        "Scaled to 1 %, Abs loses fewer than 6 points.",
        _loses("abs", "scale", 0.01, "below", 6.0),
    ),
    "scale-1-costs-relu": (
        "Scaled to 1 %, ReLU loses more than 20 points.",
        _loses("relu", "scale", 0.01, "above", 20.0),
    ),
    "clip-50-costs-nothing": (
        "Clipping at 50 % of the range costs neither network a point.",
        _both_lose_less("clip", (0.5,), 1.0),
    ),
    "clip-10-costs-both": (
        "Clipping at 10 % of the range costs Abs more than 25 points and ReLU more than 10.",
        claims.every(
            _loses(m, "clip", 0.1, "above", points) for m, points in (("abs", 25.0), ("relu", 10.0))
        ),
    ),
    "clip-10-costs-abs-more": (
        "Clipping at 10 % of the range costs Abs more than ReLU.",
        _cheaper(_under("relu", "clip", 0.1), _under("abs", "clip", 0.1)),
    ),
    "offset-1-costs-nothing": (
        "Offsets of -1 % and +1 % cost neither network half a point.",
        _both_lose_less("offset", (-0.01, 0.01), 0.5),
    ),
    "offset-2-costs-abs": (
        "Abs is sensitive beyond 1 %: offsets of -2 % and +2 % cost it more than a point.",
        claims.every(_loses("abs", "offset", p, "above", 1.0) for p in (-0.02, 0.02)),
    ),
    "offset-10-costs-abs": (
        "Offsets of -10 % and +10 % cost Abs more than 10 points.",
        claims.every(_loses("abs", "offset", p, "above", 10.0) for p in (-0.1, 0.1)),
    ),
    "offset-25-ruins-abs-only": (
        "An offset of +25 % ruins Abs (more than 60 points) and not ReLU (fewer than 30).",
        Every(
            (
                _loses("abs", "offset", 0.25, "above", 60.0),
                _loses("relu", "offset", 0.25, "below", 30.0),
            )
        ),
    ),
    "relu-is-robuster-to-offsets": (
        "Offsets of -10 %, +10 % and +25 % cost ReLU less than Abs.",
        claims.every(
            _cheaper(_under("relu", "offset", p), _under("abs", "offset", p))
            for p in (-0.1, 0.1, 0.25)
        ),
    ),
    "positive-offsets-cost-more": (
        "An offset of +10 % costs both networks more than one of -10 %.",
        claims.every(_cheaper(_under(m, "offset", -0.1), _under(m, "offset", 0.1)) for m in _BOTH),
    ),
    **{
        f"{m}-offset-beats-scale": (
            f"{label} loses more to offsets of -10 % and +10 % than to scaling to 10 %.",
            _offsets_cost_more(m),
        )
        for m, label in (("abs", "Abs"), ("relu", "ReLU"))
    },
    **{
        f"{m}-relies-on-distance": (
            f"{label} relies on distances: it loses more to the offsets of the table than to its "
            "scales and clips (index above 0).",
            Average("reliance", f"{m}-bias", "above", 0.0),
        )
        for m, label in (("abs", "Abs"), ("relu", "ReLU"))
    },
}
_OUR_CLAIMS: claims.Rows = {
    "the-table-is-of-pre-activations": (
        "The published table is that of values perturbed before the activation function: they "
        "come nearer to it than values perturbed after it.",
        claims.every(Lower("misfit", f"{m}-bias", after(f"{m}-bias")) for m in _BOTH),
    ),
    "after-the-activation-offsets-spare-abs": (
        "After the activation function, where an offset only adds a constant to every output, "
        "offsets of -10 %, +10 % and +25 % cost Abs less than before it.",
        claims.every(
            _cheaper(_under("abs", "offset", p, "after"), _under("abs", "offset", p))
            for p in (-0.1, 0.1, 0.25)
        ),
    ),
    "after-the-activation-abs-relies-on-intensity": (
        "After the activation function, Abs relies on intensities (index below 0).",
        Average("reliance", after("abs-bias"), "below", 0.0),
    ),
}
_WHOLE_RUN: claims.Rows = {
    "the-table-is-of-raw-pixels": (
        "The published table is that of raw pixels: they come nearer to it than normalised ones.",
        claims.every(
            Lower(
                "misfit",
                study.name_of(f"{m}-bias", "raw"),
                study.name_of(f"{m}-bias", "normalised"),
            )
            for m in _BOTH
        ),
    ),
}
CLAIMS = (
    *claims.from_rows(PAPER, _PAPER_CLAIMS),
    *claims.from_rows(claims.OURS, _OUR_CLAIMS),
    *claims.from_rows(claims.OURS, _WHOLE_RUN, each=False),
)

# --- Published values -------------------------------------------------------------------------

BASELINE: dict[tuple[str, str], study.PublishedValue] = {
    ("train_accuracy", "abs-bias"): study.PublishedValue(99.99, std=0.00),
    ("train_accuracy", "relu-bias"): study.PublishedValue(98.33, std=0.15),
    ("test_accuracy", "abs-bias"): study.PublishedValue(95.29, std=0.20),
    ("test_accuracy", "relu-bias"): study.PublishedValue(95.61, std=0.14),
}

# The tables of its appendix, means of 20 runs: by level, Abs and ReLU.
_ROWS = {
    "scale": (
        *((0.01, 94.76, 75.33), (0.05, 99.86, 97.33), (0.1, 99.98, 98.10), (0.25, 99.98, 98.31)),
        *((0.5, 99.99, 98.33), (10.0, 99.99, 98.33)),
    ),
    "clip": (
        *((0.01, 52.90, 75.93), (0.05, 60.13, 82.57), (0.1, 71.05, 87.56), (0.2, 88.55, 93.84)),
        *((0.3, 96.11, 96.67), (0.4, 98.70, 97.74), (0.5, 99.60, 98.14), (0.75, 99.98, 98.33)),
    ),
    "offset": (
        *((-2.0, 11.04, 18.77), (-1.0, 12.60, 41.68), (-0.75, 14.79, 55.16), (-0.5, 21.78, 72.90)),
        *((-0.25, 49.03, 90.24), (-0.1, 86.25, 96.55), (-0.05, 95.49, 97.78)),
        *((-0.03, 97.86, 98.13), (-0.02, 98.95, 98.24), (-0.01, 99.82, 98.31)),
        *((0.01, 99.81, 98.26), (0.02, 98.85, 98.14), (0.03, 97.70, 97.99), (0.05, 95.00, 97.62)),
        *((0.1, 81.40, 96.31), (0.25, 23.43, 81.60), (0.5, 11.14, 32.54), (0.75, 9.81, 13.94)),
        (1.0, 9.78, 9.41),
    ),
}
_TABLES = {kind: {level: accuracies for level, *accuracies in rows} for kind, rows in _ROWS.items()}
_MODELS = ("abs-bias", "relu-bias")


def published_level(model: str, kind: str, level: float) -> float | None:
    """Return the published accuracy of a network under a perturbation, in per cent.

    >>> published_level("abs-bias", "offset", 0.25), published_level("abs", "offset", 0.25)
    (23.43, None)
    """
    if model not in _MODELS or level not in _TABLES[kind]:
        return None
    return _TABLES[kind][level][_MODELS.index(model)]


def published_reliance(model: str) -> float:
    """Return the index that the published table comes to; the paper itself has none.

    >>> published_reliance("abs-bias"), published_reliance("relu-bias")
    (0.433, -0.349)
    """
    baseline = BASELINE["train_accuracy", model].mean
    lost = {
        kind: [baseline - _TABLES[kind][level][_MODELS.index(model)] for level in TABLE[kind]]
        for kind in KINDS
    }
    distance, intensity = lost["offset"], [*lost["scale"], *lost["clip"]]
    d, i = (sum(part) / len(part) for part in (distance, intensity))
    return round((d - i) / (d + i), 3)


def _published_of(model: str) -> dict[tuple[str, str], study.PublishedValue]:
    """Return the published values of a network, by metric and what claims call it."""
    table = {("reliance", model): study.PublishedValue(published_reliance(model))}
    baseline = BASELINE["train_accuracy", model].mean
    for kind, levels in _TABLES.items():
        for level, values in levels.items():
            value, name = values[_MODELS.index(model)], perturbed(model, kind, level)
            table["train_accuracy", name] = study.PublishedValue(value)
            table[LOST, name] = study.PublishedValue(round(baseline - value, 2))
            if level in TABLE[kind]:
                table[column(kind, level), model] = study.PublishedValue(value)
    return table


_PUBLISHED = BASELINE | _published_of("abs-bias") | _published_of("relu-bias")


def published(
    config: PerturbationConfig, metric: str, model: str, variant: str
) -> study.PublishedValue | None:
    """Return the published value for MNIST."""
    return _PUBLISHED.get((metric, model)) if config.data == "mnist" else None


# --- Networks of another run ------------------------------------------------------------------


def _kept(pixels: str, model: str) -> str:
    """Return where a run keeps the networks that it took from another."""
    return f"networks/{pixels}-{model}.safetensors"


def writes(config: PerturbationConfig) -> dict[str, bytes]:
    """Return the networks that a run takes from another, for its own folder."""
    from safetensors.torch import save

    from mahalens.studies.networks import training_data

    if config.networks is None:
        return {}
    source = Path(config.networks)
    facts = _facts(source)
    data = training_data(config.data, config.train_size, config.seed)
    here = {"training_samples": len(data.y), "inputs": data.inputs, "classes": data.classes}
    for name, value in here.items():
        if facts.get(name) != value:
            raise InputError(
                f"--from {source}: was trained on data with {facts.get(name)} "
                f"{name.replace('_', ' ')}, but {config.data} has {value} here; bring the same "
                "data back, or train again"
            )
    return {
        _kept(pixels, model): save(_network(config, source, data, pixels, model))
        for pixels in config.pixels
        for model in config.models
    }


_UNREADABLE = (OSError, KeyError, TypeError, ValueError, csv.Error, msgspec.MsgspecError)


@contextmanager
def _record(source: Path, name: str) -> Iterator[bytes]:
    """Give a record of another run as that run wrote it; name it if it cannot be used."""
    from safetensors import SafetensorError

    path = source / name
    try:
        content = read_file(path)
        if not is_unchanged(source, name):
            raise RunFolderError(
                f"{path}: has changed since its run was finished (its checksum does not fit); "
                "bring the old file back, or train again"
            )
        yield content
    except RunFolderError:
        raise
    except InputError as error:
        raise RunFolderError(f"{path}: does not fit its run ({error}); train again") from None
    except (*_UNREADABLE, SafetensorError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); train again") from None


def _facts(source: Path) -> dict[str, object]:
    with _record(source, SUMMARY) as content:
        return dict(msgspec.json.decode(content)["facts"])


def _network(
    config: PerturbationConfig, source: Path, data: LabelledData, pixels: str, model: str
) -> dict[str, Tensor]:
    """Return weights and endings of the trials of one network, of this or an earlier version."""
    from safetensors.torch import load

    spellings = (pixels, "normalized") if pixels == "normalised" else (pixels,)
    files = [f"{WEIGHTS}/{spelled}-{model}.safetensors" for spelled in spellings]
    file = next((file for file in files if (source / file).exists()), files[0])
    chain = nn.Chain.parse(text_of(model, data.classes, config.hidden), inputs=data.inputs)
    with _record(source, file) as content:
        stack = train.TrialStack.from_tensors(chain, load(content))
    with _record(source, TRIALS) as content:
        table = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
        rows = [row for row in table if row["model"] == model and row["pixels"] in spellings]
        rows.sort(key=lambda row: int(row["trial"]))
        codes = [train.Status(row["status"]).code for row in rows]
        steps = [int(row["steps"]) for row in rows]
        gains = [float(row.get("late_gain") or "nan") for row in rows]
    for name, count in ((file, len(stack)), (TRIALS, len(rows))):
        if count != config.trials:
            raise RunFolderError(
                f"{source / name}: has {count} trials of {model} with {pixels} pixels instead of "
                f"{config.trials}; train again"
            )
    return {
        "values": stack.values,
        "codes": torch.tensor(codes),
        "steps": torch.tensor(steps),
        "late_gain": torch.tensor(gains, dtype=torch.float64),
    }


# --- Measure ----------------------------------------------------------------------------------

BLOCK = 1 << 18
"""So many hidden values are computed at once: few enough to stay in the cache."""


def check(config: PerturbationConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data; refuse data that nothing can be learned from."""
    from mahalens.studies.networks import pixel_facts

    return {**pixel_facts(config), "networks": config.networks or "trained here"}


def measure(config: PerturbationConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train the trials of a job, or take them from another run, and perturb them."""
    from mahalens.studies import networks as of

    data = of.training_data(config.data, config.train_size, config.seed)
    inputs = of.pixel_inputs(data, job.variant, config.device)
    chain = nn.Chain.parse(text_of(job.work, data.classes, config.hidden), inputs=data.inputs)
    if config.networks is None:
        trained = of.train_networks(
            config, chain, job.trials, data, inputs, context, share=(0.0, 0.7)
        )
        solver = trained.solver
        stack, codes, steps, seconds = solver.stack, trained.codes, solver.steps, solver.seconds
        gain = trained.unless_lost(of.curve_metrics(*trained.curve))["late_gain"]
    else:
        from safetensors.torch import load_file

        kept = load_file(context.input(_kept(job.variant, job.work)))
        stack = train.TrialStack(chain, kept["values"].to(config.device))
        codes, steps, gain, seconds = kept["codes"], kept["steps"], kept["late_gain"], 0.0
    accuracies = perturb_networks(stack, data, inputs, context)
    for values in accuracies.values():
        values[codes == train.Status.NON_FINITE.code] = math.nan
    measures = Measures(
        metrics=_metrics(accuracies, gain, job.work, data.name),
        seconds=seconds,
        trial_plots=accuracies,
        weights=stack.tensors(),
        chain=str(chain),
        columns={"steps": steps.tolist()},
        statuses=of.statuses(codes),
    )
    return {job.work: measures}


@dataclass(frozen=True)
class Halves:
    """T trials cut at their hidden layer: what is below it, its activation, what is above."""

    below: TrialStack
    activation: Callable[[Tensor], Tensor]
    above: TrialStack

    @classmethod
    def of(cls, stack: TrialStack) -> Halves:
        """Cut trained trials; a hidden layer without an activation function keeps its values."""
        from mahalens.studies.networks import part_of, unit_layers

        chain = stack.chain
        depth = unit_layers(chain)[-1]
        activations = {"ReLU": torch.relu, "Abs": torch.abs}
        activation = activations.get(chain.layers[depth - 1].kind)
        return cls(
            part_of(stack, depth - (activation is not None)),
            activation or torch.nn.Identity(),
            part_of(stack, len(chain.layers), depth),
        )

    def rows(self) -> int:
        """Return how many samples to look at together."""
        return max(16, BLOCK // (len(self.below) * self.above.chain.inputs))

    def ranges(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least and greatest activation of every hidden unit over samples [T, 1, K]."""
        ends = []
        for xs in x.split(self.rows()):
            hidden = self.activation(self.below(xs))
            ends.append((hidden.amin(1), hidden.amax(1)))
        low, high = (torch.stack(side) for side in zip(*ends, strict=True))
        return low.amin(0).unsqueeze(1), high.amax(0).unsqueeze(1)

    def hits(self, hidden: Tensor, y: Tensor) -> Tensor:
        """Return how many samples each trial puts into their class [T]."""
        return (self.above(hidden).argmax(-1) == y).sum(1).cpu()


def perturb_networks(
    stack: TrialStack, data: LabelledData, inputs: tuple[Tensor, Tensor], context: Context
) -> dict[str, Tensor]:
    """Return accuracies of the trials in per cent, unperturbed [T] and by level [T, L].

    Ranges are those over the training samples, also where test samples are perturbed. Under
    ``train/KIND`` and ``test/KIND`` the perturbation stands before the activation function, under
    ``after/KIND`` after it, on the training samples. Equal on any number of threads.
    """
    from mahalens.studies.run import thread_count

    x, test_x = inputs
    y, test_y = data.y.to(x.device), data.test_y.to(x.device)
    with thread_count(1):
        halves = Halves.of(stack)
        ends = halves.ranges(x)
        result = _accuracies(halves, ends, x, y, ("train", "after"), context)
        return result | _accuracies(halves, ends, test_x, test_y, ("test",), context)


def _accuracies(
    halves: Halves,
    ends: tuple[Tensor, Tensor],
    x: Tensor,
    y: Tensor,
    wanted: tuple[str, ...],
    context: Context,
) -> dict[str, Tensor]:
    from mahalens.auditing.perturb import GRID_LEVELS, perturb

    trials = len(halves.below)
    hits = {f"{wanted[0]}/unperturbed": torch.zeros(trials, dtype=torch.int64)}
    for name in wanted:
        for kind, levels in GRID_LEVELS.items():
            hits[f"{name}/{kind}"] = torch.zeros(trials, len(levels), dtype=torch.int64)
    rows = halves.rows()
    for xs, ys in zip(x.split(rows), y.split(rows), strict=True):
        context.look()
        before = halves.below(xs)
        active = halves.activation(before)
        hits[f"{wanted[0]}/unperturbed"] += halves.hits(active, ys)
        for kind, levels in GRID_LEVELS.items():
            for place, level in enumerate(levels):
                for name in wanted:
                    if name == "after":
                        values = perturb(active, *ends, kind, level)
                    else:
                        values = halves.activation(perturb(before, *ends, kind, level))
                    hits[f"{name}/{kind}"][:, place] += halves.hits(values, ys)
    return {name: 100 * counted.double() / len(y) for name, counted in hits.items()}


def _at(accuracies: Mapping[str, Tensor], what: str, kind: str, level: float) -> Tensor:
    """Return accuracies at one level [T]; a scale is the same before and after the activation."""
    from mahalens.auditing.perturb import GRID_LEVELS

    where = "train" if (what, kind) == ("after", "scale") else what
    place = dict(GRID_LEVELS)[kind].index(level)  # type: ignore[index]
    return accuracies[f"{where}/{kind}"][:, place]


def _metrics(
    accuracies: Mapping[str, Tensor], gain: Tensor, model: str, data: str
) -> dict[str, Tensor]:
    metrics = {
        "train_accuracy": accuracies["train/unperturbed"],
        "test_accuracy": accuracies["test/unperturbed"],
        "late_gain": gain,
    }
    for start, what in (("", "train"), ("test_", "test"), ("after_", "after")):
        for kind, levels in TABLE.items():
            for level in levels:
                metrics[f"{start}{column(kind, level)}"] = _at(accuracies, what, kind, level)
    for what, ending in (("train", ""), ("test", "_test"), ("after", "_after")):
        metrics[f"reliance{ending}"] = _reliance(accuracies, what)
    metrics["misfit"] = _misfit(accuracies, "train", model, data)
    metrics["misfit_after"] = _misfit(accuracies, "after", model, data)
    return {name: metrics[name] for name in METRICS}


def _reliance(accuracies: Mapping[str, Tensor], what: str) -> Tensor:
    from mahalens.auditing.perturb import level_key, reliance_index

    unperturbed = accuracies[f"{'test' if what == 'test' else 'train'}/unperturbed"].tolist()
    indices = [math.nan] * len(unperturbed)
    for trial, baseline in enumerate(unperturbed):
        if not math.isfinite(baseline):
            continue
        parts = {
            kind: {level_key(p): float(_at(accuracies, what, kind, p)[trial]) / 100 for p in levels}
            for kind, levels in TABLE.items()
        }
        index = reliance_index(baseline / 100, parts["scale"], parts["clip"], parts["offset"])
        indices[trial] = math.nan if index is None else index
    return torch.tensor(indices, dtype=torch.float64)


def _misfit(accuracies: Mapping[str, Tensor], what: str, model: str, data: str) -> Tensor:
    """Return the mean distance from the published table [T]; NaN for other data or networks."""
    gaps = [
        np.abs(_at(accuracies, what, kind, level).numpy() - value)
        for kind, levels in TABLE.items()
        for level in levels
        if (value := published_level(model, kind, level)) is not None
    ]
    if not gaps or data != "mnist":
        return torch.full_like(accuracies["train/unperturbed"], math.nan)
    return torch.from_numpy(np.asarray(np.mean(gaps, axis=0)))


def finish(config: PerturbationConfig, results: Results) -> None:
    """Add the table of levels, the evidence for claims about them, and their arrays."""
    from mahalens.auditing.perturb import GRID_LEVELS

    grid = [(str(kind), level) for kind, levels in GRID_LEVELS.items() for level in levels]
    rows: list[list[Any]] = []
    for (pixels, model), measured in results.measures.items():
        baseline = measured.values("train_accuracy")
        for metric in ("reliance", "misfit"):
            values = measured.values(f"{metric}_after")
            results.evidence[pixels, after(model), metric] = values
        cells = {}
        for kind, level in grid:
            for what in ("train", "test", "after"):
                cells[kind, level, what] = _at(measured.trial_plots, what, kind, level).numpy()
            for place, what in (("before", "train"), ("after", "after")):
                name, values = perturbed(model, kind, level, place), cells[kind, level, what]
                results.evidence[pixels, name, "train_accuracy"] = values
                results.evidence[pixels, name, LOST] = baseline - values
        for trial in range(measured.trials):
            for kind, level in grid:
                three = (float(cells[kind, level, w][trial]) for w in ("train", "test", "after"))
                rows.append([model, pixels, trial, kind, level, *three])
        plots = _bands(measured.trial_plots, model, config.data)
        results.measures[pixels, model] = replace(measured, trial_plots={}, plots=plots)
    header = ("model", "pixels", "trial", "kind", "level", "train", "test", "after")
    results.tables[LEVELS] = (header, rows)
    results.cautions += study.still_learning(results.mean("late_gain"))


def _bands(accuracies: Mapping[str, Tensor], model: str, data: str) -> dict[str, Tensor]:
    """Return mean and 95 % interval [3, L] by level, the levels, and the published means."""
    from mahalens.auditing.perturb import GRID_LEVELS

    arrays = {}
    for name, values in accuracies.items():
        what, kind = name.split("/")
        if kind != "unperturbed":
            bands = []
            for place in range(values.shape[1]):
                summary = stats.summarise(values[:, place].numpy())
                bands.append([summary.mean, *(summary.ci95 or (math.nan, math.nan))])
            arrays[f"{kind}.{what}"] = torch.tensor(bands, dtype=torch.float64).T
    for kind, levels in GRID_LEVELS.items():
        known = [published_level(model, kind, p) if data == "mnist" else None for p in levels]
        means = [math.nan if value is None else value for value in known]
        arrays[f"{kind}.levels"] = torch.tensor(levels, dtype=torch.float64)
        arrays[f"{kind}.published"] = torch.tensor(means, dtype=torch.float64)
    return arrays


_PERCENT: Any = {"label": "training accuracy (%)", "percent": True, "limits": (0.0, 100.0)}

STUDY = Study(
    name="perturbation",
    question="Do trained networks rely on intensities or on distances?",
    source=PAPER,
    config=PerturbationConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=lambda config: study.jobs_of(config.pixels, config.models, config.trials),
    measure=measure,
    writes=writes,
    finish=finish,
    published=published,
    primary="train_accuracy",
    variant="pixels",
    asked=tuple(PIXELS),
    columns=("steps",),
    stacked=True,
    protocol="published",
    thing="network",
    shown=(
        "train_accuracy",
        *(column(kind, level) for kind, levels in TABLE.items() for level in levels),
        "reliance",
    ),
    remark="The published figures are those of all of MNIST. The paper perturbs the hidden layer "
    "before its activation function; what the same does after it is measured beside it.",
    plots=(
        Levels(
            name="levels",
            title="What do intensities and distances cost, level by level?",
            caption="A network that relies on intensities falls in the first two columns, one that "
            "relies on distances in the third, near 0. A scale or clip of 100 % and an offset of 0 "
            "change nothing. Lines are means over the trials.",
            kinds=tuple(KINDS),
            what=(("train", "training samples"),),
            axes=tuple(f"{label.lower()} (%)" for label in KINDS.values()),
            **_PERCENT,
        ),
        Levels(
            name="places",
            title="Does it matter where the network is perturbed?",
            caption="Before the activation function an offset moves the hyperplane of a unit; "
            "after it, it adds a constant to what the outputs sum up. A clip before Abs leaves "
            "large negative values alone. Published means show which of the two the paper did.",
            kinds=("clip", "offset"),
            what=(("train", "before the activation"), ("after", "after the activation")),
            row="model",
            axes=("intensity clip (%)", "distance offset (%)"),
            **_PERCENT,
        ),
    ),
)
