"""The heads study: classify by distance or by softmax, and tell known from unknown.

*Interpreting Neural Networks through Mahalanobis Distance* proposes distances as outputs. Here
heads by distance stand beside linear + softmax and seven rivals: accuracy, calibration, and how
well each finds samples of no known class. All models of a trial share its samples, starting weights
and batches. Networks and detectors are in :mod:`.heads_networks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mahalens.errors import InputError
from mahalens.studies import claims, study, torch
from mahalens.studies.claims import Average, Both, Claim, Difference, Lower, Within
from mahalens.studies.plots import Dots, Scatter
from mahalens.studies.study import Config, Job, Measures, Metric, Model, Option, Results, Study

if TYPE_CHECKING:
    from mahalens.data import LabelledData
    from mahalens.studies.run import Context

# --- Models -----------------------------------------------------------------------------------

SOFTMAX, DISTANCE, DUQ, ENSEMBLE = "softmax", "distance", "duq", "ensemble"
MEMBERS = 5
_GREY, _RED = "#8a8a8a", "#d55e00"  # rivals on the softmax network share one colour

MODELS = {
    "softmax": Model(
        "Softmax", "linear layer and softmax; unknown is what no class is likely for", "#000000"
    ),
    "energy": Model(
        "Energy", "the same network; unknown is what has a small sum of exp(logits)", _GREY, "s"
    ),
    "knn": Model(
        "Nearest neighbours",
        "the same network; unknown is what is far from its 50th nearest training sample",
        _GREY,
        "^",
    ),
    "mahalanobis": Model(
        "Mahalanobis",
        "the same network; unknown is what is far from all class means, in one covariance",
        _GREY,
        "D",
    ),
    "relative-mahalanobis": Model(
        "Relative Mahalanobis", "the same, less the distance to the overall mean", _GREY, "v"
    ),
    "fitted": Model(
        "Distance head, fitted to softmax",
        "DistanceHead fitted to the softmax network: one ellipsoid for all classes, closed form",
        "#e69f00",
    ),
    "ensemble": Model(
        "5 networks", "five softmax networks; unknown is where their mean is unsure", "#56b4e9", "P"
    ),
    "duq": Model(
        "DUQ-like",
        "RBF kernels around running class centroids, gradient penalty (van Amersfoort et al.)",
        "#009e73",
        "X",
    ),
    "distance": Model(
        "Distance head, trained",
        "DistanceHead trained with the network: squared distances, compactness penalty",
        _RED,
    ),
    "refitted": Model(
        "Distance head, trained and refitted",
        "the same network; DistanceHead fitted to it again, one ellipsoid for all classes",
        _RED,
        "D",
    ),
    "layered": Model(
        "Distance heads, all layers",
        "the same network and classes; a second DistanceHead, fitted to all layers, rejects",
        "#cc79a7",
        "s",
    ),
}
READERS = {
    SOFTMAX: (
        "softmax",
        "energy",
        "knn",
        "mahalanobis",
        "relative-mahalanobis",
        "fitted",
        "ensemble",
    ),
    DISTANCE: ("distance", "refitted", "layered"),
    DUQ: ("duq",),
}
"""The networks that are trained, and the models that read each of them."""
DISTANCES = ("fitted", "distance", "refitted", "layered")
"""The models that are distance heads of this package."""

# --- Options ----------------------------------------------------------------------------------

OTHER = {"fashion-mnist": "mnist", "mnist": "fashion-mnist"}
"""Which set is the unknown one for networks trained on a set; others leave classes out."""
FULL_DATA = ("fashion-mnist", "mnist")


def _epochs(chosen: study.Chosen) -> int:
    """Return the default: small sets need more epochs for as many steps, and one decides."""
    return 4 if all(map(study.is_large, chosen["data"])) else 30


class HeadsConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run."""

    data: Annotated[tuple[str, ...], study.data_option(("digits",), FULL_DATA, show=" and ".join)]
    models: Annotated[tuple[str, ...], study.models_option(MODELS)]
    train_size: Annotated[int | None, study.train_size_option(10_000)]
    epochs: Annotated[
        int,
        Option(
            "Epochs of training.",
            _epochs,
            published=4,
            fixed=True,
            shown="30; 4 with large data sets",
            least=1,
        ),
    ]
    trials: Annotated[int, study.count_option("Trials of each model.", 10)]
    # Chosen on held-out training samples and classes of Fashion-MNIST.
    compactness: Annotated[
        float,
        Option(
            "Weight of the penalty that keeps samples near their prototypes.",
            0.05,
            published=0.05,
            label="weight of the compactness",
            least=0,
            most=1e6,
        ),
    ] = 0.05
    reject_rate: Annotated[
        float,
        Option(
            "Share of known samples that heads are set to reject.",
            0.05,
            published=0.05,
            least=0,
            most=1,
        ),
    ] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.reject_rate < 1:
            raise InputError(
                f"--reject-rate {self.reject_rate}: give a number between 0 and 1, such as 0.05"
            )


# --- Metrics ----------------------------------------------------------------------------------

METRICS: dict[str, Metric] = {
    "auroc": Metric(
        "AUROC",
        "Probability that an unknown sample looks more unknown than a known test sample: 1 if all "
        "do, 0.5 by guessing. Unknown are the test samples of the other set, or all samples of "
        "the classes that the trial left out.",
        better="high",
    ),
    "test_accuracy": study.NETWORK_METRICS["test_accuracy"],
    "missed_at_95": Metric(
        "Missed at 95 %", "Unknown samples that pass for known where 95 % of the known do.", "%"
    ),
    "rejected_unknown": Metric(
        "Unknown rejected",
        "Unknown samples beyond the threshold that is to reject 5 % of the known (or another "
        "reject rate), set on held-out training samples.",
        "%",
        "high",
    ),
    "rejected_known": Metric(
        "Known rejected", "Known test samples beyond the same threshold.", "%", None
    ),
    "auroc_shuffled": Metric(
        "AUROC, shuffled",
        "AUROC of test samples with their values in random order, for the unknown: an easy case.",
        better="high",
    ),
    "ece": Metric(
        "ECE",
        "Expected calibration error: by how much the probability of the chosen class differs from "
        "how often it is right, in 15 bins, on test samples.",
    ),
    "ece_calibrated": Metric(
        "ECE, calibrated", "The same with the best temperature for held-out training samples."
    ),
    "nll": Metric("NLL", "Mean of -log p(class) over test samples.", "nats", log=True),
    "nll_calibrated": Metric("NLL, calibrated", "The same with the temperature.", "nats", log=True),
    "seconds": Metric(
        "Time of training", "Of the network, on one core; of all five for the ensemble.", "s", None
    ),
}

# --- Claims -----------------------------------------------------------------------------------

THEORY, AMERSFOORT = "interpreting", "duq"
MAIN = "refitted"
"""The head that is put beside all rivals: one head for classes and for rejecting."""
RIVALS = {
    "energy": "the energy",
    "knn": "nearest neighbours",
    "mahalanobis": "the Mahalanobis distance on softmax features",
    "relative-mahalanobis": "the relative Mahalanobis distance on softmax features",
    "duq": "a DUQ-like head",
    "ensemble": "five networks",
}


def _label(model: str) -> str:
    return MODELS[model].label


def _finds_more(model: str, rival: str) -> Lower:
    return Lower("auroc", rival, model)


_GOAL = Claim(
    "goal",  # set on training samples, before the unknown set was looked at
    f"{_label('layered')}: AUROC above 0.96, in at least half of the trials no less accurate than "
    "softmax.",
    Both(
        Average("auroc", "layered", "above", 0.96),
        Lower("test_accuracy", "layered", "softmax"),
        negated=True,
    ),
    on=("fashion-mnist",),
)
_ACCURATE: claims.Rows = {
    f"{model}-as-accurate": (
        f"{_label(model)}: at most 0.5 points less accurate than softmax.",
        Difference("test_accuracy", model, "softmax", "above", -0.5),
    )
    for model in DISTANCES
}
_OUR_CLAIMS: claims.Rows = {
    **{
        f"{model}-finds-more-than-softmax": (
            f"{_label(model)}: finds more of the unknown than the largest softmax probability.",
            _finds_more(model, "softmax"),
        )
        for model in DISTANCES
    },
    **{
        f"{MAIN}-finds-more-than-{rival}": (
            f"{_label(MAIN)}: finds more of the unknown than {name}.",
            _finds_more(MAIN, rival),
        )
        for rival, name in RIVALS.items()
    },
    "fitted-is-mahalanobis": (
        f"{_label('fitted')}: the AUROC of scikit-learn's Mahalanobis distance, within 0.005.",
        Within("auroc", "fitted", "mahalanobis", 0.005),
    ),
    "distance-calibrated": (
        f"{_label('distance')}: better calibrated than softmax, both without a temperature.",
        Lower("ece", "distance", "softmax"),
    ),
    f"{MAIN}-calibrated": (
        f"{_label(MAIN)}: better calibrated than softmax, both with a temperature.",
        Lower("ece_calibrated", MAIN, "softmax"),
    ),
    "distance-more-likely": (
        f"{_label('distance')}: test labels are likelier than with softmax, without a temperature.",
        Lower("nll", "distance", "softmax"),
    ),
    "rate-is-kept": (
        "All distance heads reject 4 to 6 % of known samples where 5 % is asked for.",
        claims.every(
            part
            for model in DISTANCES
            for part in (
                Average("rejected_known", model, "above", 4.0),
                Average("rejected_known", model, "below", 6.0),
            )
        ),
    ),
    "refitting-helps": (
        f"{_label('refitted')}: finds more of the unknown than as trained.",
        _finds_more("refitted", "distance"),
    ),
    "layers-help": (
        f"{_label('layered')}: finds more of the unknown than the last features alone.",
        _finds_more("layered", "refitted"),
    ),
    "training-by-distance-helps": (
        "An ellipsoid finds more of the unknown in features trained by distance than by softmax.",
        _finds_more("refitted", "fitted"),
    ),
    **{
        f"softmax-{metric}-varies-more": (
            f"The {name} of softmax varies more between trials than that of the refitted head.",
            claims.MoreVariable(metric, "softmax", "refitted"),
        )
        for metric, name in (("test_accuracy", "accuracy"), ("auroc", "AUROC"))
    },
}
_PUBLISHED_CLAIMS: claims.Rows = {
    "duq-finds-more-than-softmax": (
        "A DUQ-like head finds more of the unknown than the largest softmax probability.",
        _finds_more("duq", "softmax"),
    ),
    "duq-finds-more-than-ensemble": (
        "A DUQ-like head finds more of the unknown than five networks.",
        _finds_more("duq", "ensemble"),
    ),
    "ensemble-finds-more-than-softmax": (
        "Five networks find more of the unknown than one.",
        _finds_more("ensemble", "softmax"),
    ),
}
CLAIMS = (
    _GOAL,
    *claims.from_rows(THEORY, _ACCURATE),
    *claims.from_rows(claims.OURS, _OUR_CLAIMS),
    *claims.from_rows(AMERSFOORT, _PUBLISHED_CLAIMS),
)
PAIRS = (
    *((model, "softmax") for model in MODELS if model != "softmax"),
    *((MAIN, rival) for rival in ("mahalanobis", "duq", "ensemble", "fitted", "distance")),
    ("layered", MAIN),
)
"""Every other model beside softmax, and the head that does both jobs beside its rivals."""

# Fashion-MNIST against MNIST; smallest and largest are those of the paper and of an independent
# rerun.
_PUBLISHED = {
    "duq": study.PublishedValue(0.955, min=0.943, max=0.955),
    "ensemble": study.PublishedValue(0.861, min=0.861, max=0.889),
    "softmax": study.PublishedValue(0.843, min=0.837, max=0.843),
}


# --- Measure ----------------------------------------------------------------------------------

KNOWN_SHARE = 0.7
"""How many of the classes are known where some are left out: 7 of 10."""
FEWEST_HELD = 40
"""The fewest held-out samples that set a temperature and a threshold."""
FEWEST_OF_CLASS = 5
"""The fewest training samples of a class: one to hold out, and a spread to see in the others."""


def known_of(classes: int) -> int:
    """Return how many of so many classes are known: at least 2, and one is left out.

    >>> [known_of(classes) for classes in (3, 4, 10)]
    [2, 3, 7]
    """
    return min(max(round(KNOWN_SHARE * classes), 2), classes - 1)


def held_share(samples: int) -> float:
    """Return the share to hold out: a fifth of few samples; 5,000 of many are enough."""
    return min(0.2, 5_000 / samples)


def check(config: HeadsConfig, folder: Path | None) -> dict[str, Any]:
    """Load the data sets; refuse those with too few classes or samples to hold out."""
    from mahalens.studies.samples import check_sets, is_split_anew, whole_set

    facts = check_sets(config.data, config.train_size)
    for name in config.data:
        whole, about = whole_set(name), facts[study.variant_name(name)]
        classes = len(whole.y.unique())
        known = classes
        if name in OTHER:
            _check_other(name)
            about["unknown"] = f"test samples of {OTHER[name]}"
        else:
            if classes < 3:
                raise InputError(
                    f"--data {name}: has {classes} classes, and one is left out for the unknown; "
                    "give data with at least 3"
                )
            known = known_of(classes)
            left_out = classes - known
            about["unknown"] = f"{left_out} of {classes} classes, left out by each trial"
            if len(whole.test_y.unique()) <= left_out and not is_split_anew(name):
                raise InputError(
                    f"--data {name}: its test samples are of {len(whole.test_y.unique())} classes, "
                    f"and {left_out} are left out; give test samples of every class"
                )
        _check_sizes(config, name, whole, known)
    return {"data": facts, "epochs": config.epochs}


def _check_other(name: str) -> None:
    from mahalens.studies.samples import whole_set

    try:
        whole_set(OTHER[name])
    except InputError as error:
        raise InputError(f"--data {name} takes {OTHER[name]} for the unknown: {error}") from None


def _check_sizes(config: HeadsConfig, name: str, whole: LabelledData, known: int) -> None:
    """Refuse a set of which too little is held out, whichever classes are known."""
    from mahalens.studies.samples import TEST_SHARE, is_split_anew, option_of

    option = option_of(name, config.train_size)
    sizes = torch.bincount(whole.y).double()
    if is_split_anew(name):
        sizes = (1 - TEST_SHARE) * (sizes + torch.bincount(whole.test_y, minlength=len(sizes)))
    total = float(sizes.sum())
    share = 1.0 if config.train_size is None else min(1.0, config.train_size / total)
    sizes = sizes * share
    rarest = int(sizes.argmin())
    if float(sizes[rarest]) < FEWEST_OF_CLASS:
        count = math.floor(sizes[rarest])
        raise InputError(
            f"{option}: class {rarest} has {count} training sample{'' if count == 1 else 's'}; "
            f"give at least {FEWEST_OF_CLASS} of each"
        )
    smallest = sizes.sort().values[:known]
    held = int((smallest * held_share(int(smallest.sum()))).floor().sum())
    fewest = max(FEWEST_HELD, math.ceil(1 / config.reject_rate))
    if held < fewest:
        enough = 5 * (fewest + known) * share * total / float(smallest.sum())
        why = "to set a temperature and a threshold"
        if fewest > FEWEST_HELD:
            why = f"for --reject-rate {config.reject_rate:g}"
        raise InputError(
            f"{option}: {math.floor(smallest.sum())} training samples of {known} known classes, of "
            f"which {held} would be held out, but {fewest} are needed {why}; give about "
            f"{math.ceil(enough):,} training samples in all"
        )


def jobs(config: HeadsConfig) -> list[Job]:
    """Cut the work: one network of one trial each, with all models that read it."""
    works = [work for work, readers in READERS.items() if set(readers) & set(config.models)]
    return study.jobs_of(config.data, works, config.trials, 1)


def measure(config: HeadsConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train the network that a job is about, and measure all models that read it."""
    from mahalens.studies.heads_networks import measure_network

    return measure_network(config, job, context)


def finish(config: HeadsConfig, results: Results) -> None:
    """Warn of trials in which nothing could be calibrated."""
    lines = []
    for (variant, model), measured in results.measures.items():
        missing = measured.metrics["auroc"].isfinite() & measured.metrics["ece_calibrated"].isnan()
        if count := int(missing.sum()):
            lines.append(f"{study.name_of(_label(model), variant)} in {count}")
    if lines:
        shown = "; ".join(lines[:3]) + ("; and others" if len(lines) > 3 else "")
        results.cautions.append(
            "where all held-out samples were right no temperature is best, and calibrated errors "
            f"leave such trials out ({shown})"
        )


def reads(config: HeadsConfig) -> list[str]:
    """Return the data sets, and those that are the unknown for them."""
    return [*config.data, *(OTHER[name] for name in config.data if name in OTHER)]


def advice(rows: Sequence[Any]) -> list[str]:
    """Return, for each data set, which model finds the unknown best and what to expect of it."""
    sentences = []
    for data in dict.fromkeys(str(row.group.get("data", "")) for row in rows):
        values = {(row.model, row.metric): row for row in rows if row.group.get("data", "") == data}
        usable = [
            row
            for (model, metric), row in values.items()
            if metric == "auroc" and row.mean and (model, "rejected_unknown") in values
        ]
        if not usable:
            continue
        best = max(usable, key=lambda row: row.mean)
        model = MODELS[best.model.partition(" (")[0]]
        known, unknown = (
            values[best.model, f"rejected_{kind}"].mean for kind in ("known", "unknown")
        )
        sentences.append(
            f"On {data}, use {model.label}: AUROC {best.mean:.3f}. With its threshold set on "
            f"held-out samples it rejected {known:.1f} % of known and {unknown:.1f} % of unknown "
            "samples. For your own network: mahalens detect MODEL --data KNOWN --out DIR."
        )
    return sentences


STUDY = Study(
    name="heads",
    question="Do distance heads classify as well as softmax, and know what they do not know?",
    source=THEORY,
    config=HeadsConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=jobs,
    measure=measure,
    finish=finish,
    published=lambda config, metric, model, data: (
        _PUBLISHED.get(model) if (metric, data) == ("auroc", "fashion-mnist") else None
    ),
    reads=reads,
    advice=advice,
    primary="auroc",
    pairs=PAIRS,
    tested=("auroc", "test_accuracy", "ece", "ece_calibrated", "nll_calibrated"),
    shown=(
        "auroc",
        "test_accuracy",
        "missed_at_95",
        "rejected_unknown",
        "ece",
        "ece_calibrated",
    ),
    remark="Known is what networks were trained on. On Fashion-MNIST the unknown is MNIST and the "
    "other way round; on other sets it is some of the classes, other ones in every trial. Energy, "
    "nearest neighbours and the two Mahalanobis detectors read the softmax network, so that its "
    "accuracy and calibration are theirs.",
    plots=(
        Dots(title="How well does each model find the unknown?", metric="auroc"),
        Scatter(
            name="known_unknown",
            title="Does finding the unknown cost accuracy on the known?",
            caption="Each mark is the mean of a model over the trials, lines are 95 % intervals. "
            "Up: more of the unknown is found. Right: more of the known is given its class. The "
            "dashed lines go through softmax.",
            x="test_accuracy",
            y="auroc",
            average=True,
            reference="softmax",
        ),
        Dots(
            name="compared-ece_calibrated",
            title="How well are probabilities calibrated?",
            metric="ece_calibrated",
        ),
    ),
)
