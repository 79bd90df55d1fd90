"""The vocabulary of studies. A study is one value in one file, and reads top-down:

question, options, models, metrics, claims, measure. Claims are in :mod:`.claims`, plots in
:mod:`.plots`. From the fields of a configuration (:class:`Config`, :class:`Option`) come the flags
of the command line with their help and defaults, ``--published``, the checks and the list of what
deviates from the published protocol. Modules of studies import without torch.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

import msgspec

from mahalens.data.named import CATALOGUE, own_name
from mahalens.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from mahalens.studies.claims import Claim
    from mahalens.studies.plots import Plot
    from mahalens.studies.run import Context

DONE, NON_FINITE = "done", "non-finite"
LARGEST_COUNT = 10**12
"""More than any machine can hold; beyond it, libraries underneath fail in their own words."""

SOURCES = {
    "gaussian-results": "Results: Learning Mahalanobis Distance with Neural Networks",
    "interpreting": "Interpreting Neural Networks through Mahalanobis Distance (arXiv 2410.19352)",
    "experiment-12": "Experiment 12: PCA Mahalanobis Approximation",
    "learn-metrics": "Neural Networks Learn Distance Metrics (arXiv 2502.02103)",
    "use-metrics": "Neural Networks Use Distance Metrics (arXiv 2411.17932)",
    "next-checks": "Next checks of Neural Networks Learn Distance Metrics",
    "duq": "van Amersfoort et al. 2020",
    "here": "this project",
}
"""The titles of the sources by the names that claims and studies call them."""


class PublishedValue(msgspec.Struct, frozen=True):
    """A published mean, with the other figures that were published about it."""

    mean: float
    variance: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    extra: dict[str, float] = {}

    def detail(self) -> dict[str, float]:
        """Return all figures besides the mean."""
        rest = {name: getattr(self, name) for name in ("variance", "std", "min", "max")}
        return {name: value for name, value in rest.items() if value is not None} | self.extra


class Metric(msgspec.Struct, frozen=True):
    """One number of a trial: its label, meaning and unit, and which way is good.

    ``log`` says that it is drawn on a logarithmic axis.
    """

    label: str
    explanation: str
    unit: str = ""
    better: Literal["low", "high"] | None = "low"
    log: bool = False


@dataclass(frozen=True)
class Model:
    """One of the things that a study compares.

    Args:
        label: its name in tables and figures.
        text: one line that explains it, for ``mahalens list``.
        colour: of Okabe and Ito's palette, or told apart by ``marker`` or ``line``.
        marker: how matplotlib draws one of its trials.
        line: how matplotlib draws its curves.
    """

    label: str
    text: str = ""
    colour: str = "#555555"
    marker: str = "o"
    line: str = "-"


# --- Options ----------------------------------------------------------------------------------

_NOTHING = object()
Chosen = Mapping[str, Any]
"""The options that have their value already; later defaults may depend on them."""


@dataclass(frozen=True)
class Option:
    """One option of a study: ``trials: Annotated[int, Option("Trials of each model.", 20)]``.

    Args:
        help: one sentence for ``--help``.
        default: the value if none is given, or a function of the options before it.
        published: the value of the published protocol, or a function of the options before it.
            A run with another value says that it deviates.
        fixed: whether ``--published`` refuses another value; or a function that says for which.
        shown: the default in words, where it is a function.
        label: what the list of deviations calls it.
        show: how that list writes a value.
        least: the smallest number that is allowed.
        most: the largest.
        or_all: whether ``"all"`` may take the place of a number; it becomes None.
        choices: all names that are allowed, each with a line that explains it.
        metavar: what ``--help`` writes in place of the value.
        file: whether the value is the path of a file or folder.
        subset: whether the list of deviations names what a run leaves out, rather than both values.
        ordered: whether names are put into the order of ``choices``.
        named: its name on the command line, where the field has another.
        flag: whether the command line has it; others are for Python.
    """

    help: str
    default: Any = None
    published: Any = _NOTHING
    fixed: bool | Callable[[Any], bool] = False
    shown: str = ""
    label: str = ""
    show: Callable[[Any], str] | None = None
    least: float | None = None
    most: float = LARGEST_COUNT
    or_all: bool = False
    choices: Mapping[str, str] = field(default_factory=dict)
    metavar: str = ""
    file: bool = False
    subset: bool = False
    ordered: bool = False
    named: str = ""
    flag: bool = True

    @property
    def is_published(self) -> bool:
        """Whether the published protocol has a value for it."""
        return self.published is not _NOTHING

    def usual(self, chosen: Chosen) -> Any:
        """Return the default."""
        return self.default(chosen) if callable(self.default) else self.default

    def full(self, chosen: Chosen) -> Any:
        """Return the published value."""
        return self.published(chosen) if callable(self.published) else self.published

    def refuses(self, value: Any) -> bool:
        """Return whether ``--published`` allows no such value."""
        return self.fixed(value) if callable(self.fixed) else self.fixed

    def write(self, value: Any) -> str:
        """Write a value for the list of deviations."""
        if self.show is not None:
            return self.show(value)
        if isinstance(value, (tuple, list)):
            return ", ".join(map(str, value))
        return f"{value:,}" if isinstance(value, int) and value >= 1_000 else str(value)

    def sort(self, names: Sequence[str]) -> Sequence[str]:
        """Return names in the order of the choices, if all are known and none is given twice."""
        if len(set(names)) < len(names) or not set(names) <= set(self.choices):
            return names
        return tuple(name for name in self.choices if name in names)

    def check(self, name: str, value: Any) -> None:
        """Raise :class:`~mahalens.errors.InputError` for a value that is not allowed."""
        several = value if isinstance(value, (tuple, list)) else (value,)
        if not several and self.choices:
            raise InputError(f"--{name} is empty: give some of {', '.join(self.choices)}")
        for item in several:
            if several.count(item) > 1:
                raise InputError(f"--{name}: {item!r} is given twice; give it once")
            if item is None:
                continue
            if self.choices and item not in self.choices:
                raise InputError(f"--{name} {item}: unknown; give {', '.join(self.choices)}")
            if self.least is not None:
                whole = "a whole number" if isinstance(item, int) else "a number"
                if not (isinstance(item, (int, float)) and item >= self.least):
                    raise InputError(f"--{name} {item}: give {whole} of at least {self.least}")
                if item > self.most:
                    raise InputError(f"--{name} {item}: give {whole} of at most {self.most}")


def flag_of(name: str) -> str:
    """Return the name of an option on the command line: ``train_size`` is ``--train-size``."""
    return name.replace("_", "-")


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the numbers of a run. A study adds fields in a subclass.

    Every field that the command line has is annotated with its :class:`Option`. Values are checked
    when a configuration is made, whether by :meth:`with_defaults` or from a file.
    """

    trials: Annotated[int, Option("Trials of each model.", least=1)]
    seed: Annotated[int, Option("Seed of all random numbers.", 0, least=0, most=2**63 - 1)] = 0
    device: Annotated[str, Option("Any device torch knows.", "cpu")] = "cpu"
    budget: Annotated[
        float | None,
        Option("Scale the run down to about so long: 90s, 20m, 1h30m.", metavar="TIME"),
    ] = None
    tensorboard: Annotated[
        bool, Option("Also write TensorBoard event files of the curves.", False)
    ] = False
    shortened: tuple[str, ...] = ()
    """What the budget took away, one sentence each."""

    def __post_init__(self) -> None:
        for name, option in self.options().items():
            option.check(flag_of(name), getattr(self, name))

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return the options by field, in their order."""
        return _options_of(cls)

    @classmethod
    def with_defaults(cls, *, published: bool = False, **values: Any) -> Self:
        """Fill in the options that are not given (or None): the usual ones, or the published.

        >>> class Small(Config, frozen=True, kw_only=True):
        ...     trials: Annotated[int, Option("Trials.", 5, published=20, fixed=True)]
        >>> Small.with_defaults().trials, Small.with_defaults(published=True).trials
        (5, 20)
        """
        options = cls.options()
        for name in values:
            if name not in options and name not in cls.__struct_fields__ and name != "executor":
                raise TypeError(f"{cls.__name__} has no option {name!r}")
        chosen: dict[str, Any] = {n: v for n, v in values.items() if n not in options}
        for name, option in options.items():
            value = values.get(name)
            if option.or_all and value == "all":
                chosen[name] = None
                continue
            if value is not None and published and option.is_published and option.refuses(value):
                raise InputError(
                    f"--published with --{flag_of(name)} {option.write(value)}: the protocol has "
                    "its own; leave one of them out"
                )
            if value is None:
                full = published and option.is_published
                value = option.full(chosen) if full else option.usual(chosen)
            chosen[name] = option.sort(value) if option.ordered else value
        chosen.pop("executor", None)
        return cls(**chosen)

    def deviations(self) -> list[str]:
        """Return what differs from the published protocol, one sentence each."""
        return [*self._deviations().values(), *self.shortened]

    def _deviations(self) -> dict[str, str]:
        """Return a sentence for each option that differs from the protocol, by field."""
        values = msgspec.structs.asdict(self)
        sentences = {}
        for name, option in self.options().items():
            if not option.is_published:
                continue
            value, full = values[name], option.full(values)
            label = option.label or name.replace("_", " ")
            if option.subset:
                if missing := [item for item in full if item not in value]:
                    sentences[name] = f"{label}: without {', '.join(map(str, missing))}"
            elif value != full:
                sentences[name] = f"{label}: {option.write(value)} instead of {option.write(full)}"
        return sentences


@functools.cache
def _hints_of(kind: type[Config]) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for base in kind.__mro__:
        if issubclass(base, Config):
            hints = {**inspect.get_annotations(base, eval_str=True), **hints}
    # Those of the study first, in their order; the common ones follow.
    return {name: hints[name] for name in inspect.get_annotations(kind)} | hints


@functools.cache
def _options_of(kind: type[Config]) -> dict[str, Option]:
    hints = _hints_of(kind).items()
    extras = ((name, extra) for name, hint in hints for extra in getattr(hint, "__metadata__", ()))
    return {name: extra for name, extra in extras if isinstance(extra, Option)}


def type_of(kind: type[Config], name: str) -> Any:
    """Return the type of an option, without its annotations."""
    hint = _hints_of(kind)[name]
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


C = TypeVar("C", bound=Config)


# --- Data in memory ---------------------------------------------------------------------------

_remembered: list[Any] = []
F = TypeVar("F", bound=Callable[..., Any])


def remember(most: int) -> Callable[[F], F]:
    """Return :func:`functools.lru_cache` for a function that reads data of a run."""

    def decorate(function: F) -> F:
        _remembered.append(functools.lru_cache(maxsize=most)(function))
        return cast(F, _remembered[-1])

    return decorate


def forget_data() -> None:
    """Forget data in memory: files may have changed since another run of this process read them."""
    for cached in _remembered:
        cached.cache_clear()


# --- Jobs and what they give ------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True):
    """Some trials of one piece of work on one variant: what is computed in one go.

    ``variant`` is an entry of the option that the study varies: a data set (its name, or a file of
    the user), or a kind of pixels; empty if there is none. ``work`` is a model, or something that
    several models share, such as a trained network that many detectors read.
    """

    variant: str
    work: str
    first: int
    count: int

    @property
    def name(self) -> str:
        """A file name for it."""
        return "-".join(filter(None, (variant_name(self.variant), self.work, f"{self.first:04d}")))

    @property
    def trials(self) -> range:
        """The numbers of its trials."""
        return range(self.first, self.first + self.count)

    def __str__(self) -> str:
        last = self.first + self.count - 1
        trials = f"trial {last}" if self.count == 1 else f"trials {self.first} to {last}"
        on = f" on {variant_name(self.variant)}" if self.variant else ""
        return f"{self.work}{on}, {trials}"


def variant_name(variant: str) -> str:
    """Return what records call a variant: its name, or that of the user's file without path.

    >>> variant_name("fashion-mnist"), variant_name("data/My set.npz"), variant_name("mnist.npz")
    ('fashion-mnist', 'My-set', 'mnist-npz')
    """
    if not variant or variant in CATALOGUE:
        return variant
    return re.sub(r"[^\w-]+", "-", own_name(Path(variant)) or variant).strip("-") or "data"


def name_of(model: str, variant: str) -> str:
    """Return what claims and comparisons call a model on a variant.

    >>> name_of("abs", "digits"), name_of("abs", "")
    ('abs (digits)', 'abs')
    """
    return f"{model} ({variant})" if variant else model


def jobs_of(
    variants: Iterable[str], works: Iterable[str], trials: int, at_once: int | None = None
) -> list[Job]:
    """Cut all work of a run into jobs of ``at_once`` trials (all of them by default).

    Trials come before works, so that a run that is stopped has as many whole trials as it can.
    """
    step, works = at_once or trials, list(works)
    return [
        Job(variant, work, first, min(step, trials - first))
        for variant in variants
        for first in range(0, trials, step)
        for work in works
    ]


@dataclass(frozen=True)
class Measures:
    """The numbers of T trials of one model on one variant.

    Args:
        metrics: one number per trial ``[T]`` under the name of its metric; NaN where there is
            none. A trial without a single finite number but its ``seconds`` counts as non-finite.
        seconds: how long the trials took together.
        curves: epochs ``[L]`` and values ``[T, L]`` by column of ``curves.csv``.
        plots: arrays behind the figures, of any shape; of several jobs those of the first.
        trial_plots: arrays behind the figures, trials first.
        weights: trained weights, trials first, to be kept in the run folder.
        chain: the architecture that the weights belong to, if it is a chain.
        columns: further columns of ``trials.csv``, one entry per trial.
        statuses: how each trial ended; by default by whether its metrics are finite.
    """

    metrics: Mapping[str, Tensor]
    seconds: float
    curves: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    plots: Mapping[str, Tensor] = field(default_factory=dict)
    trial_plots: Mapping[str, Tensor] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    chain: str = ""
    columns: Mapping[str, Sequence[str | float]] = field(default_factory=dict)
    statuses: Sequence[str] = ()

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return len(next(iter(self.metrics.values())))

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return one number per trial ``[T]``; NaN throughout for a metric that it lacks."""
        import numpy as np

        column = self.metrics.get(metric)
        return np.full(self.trials, np.nan) if column is None else column.double().cpu().numpy()


@dataclass
class Results:
    """The results of all jobs of a run, by variant and model, and what follows from them together.

    ``finish`` of a study may add to it: metrics that compare models, ``facts`` for the summary,
    arrays for ``plots.safetensors``, further tables (a file name, columns and rows), ``evidence``
    for claims (by variant, name and metric), ``cautions``, sentences without a full stop, and
    further files of ``weights``.
    """

    measures: dict[tuple[str, str], Measures]
    facts: dict[str, Any]
    plots: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]] = field(default_factory=dict)
    evidence: dict[tuple[str, str, str], NDArray[np.float64]] = field(default_factory=dict)
    cautions: list[str] = field(default_factory=list)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    folder: Path = Path()

    def mean(self, metric: str, label: Callable[[str], str] = str) -> dict[str, float]:
        """Return the mean of a metric for each model on each variant, NaN where it has none."""
        import numpy as np

        means = {}
        for (variant, model), measures in self.measures.items():
            values = measures.values(metric)
            known = values[np.isfinite(values)]
            means[name_of(label(model), variant)] = float(known.mean()) if len(known) else math.nan
        return means


# --- The study --------------------------------------------------------------------------------


def _nothing_published(config: Any, metric: str, model: str, variant: str) -> None:
    return None


@dataclass(frozen=True)
class Study(Generic[C]):
    """A study as a value. One runner, one recorder and one report serve all of them.

    Args:
        name: as in ``mahalens run NAME``.
        question: one sentence, the first of its help and its page.
        source: the key in :data:`SOURCES` of what it is about.
        config: the type of its options.
        models: what is compared, by name, in the order of tables and figures.
        metrics: the columns of ``trials.csv``, by name.
        claims: what a run is to decide; each row is put to every variant unless it says otherwise.
            A function of the configuration where rows are about the data sets of a run.
        check: loads everything that a run needs and raises
            :class:`~mahalens.errors.InputError` for what is missing or does not fit, before
            anything is written. Returns facts for the summary.
        jobs: all work of a run, in pieces of a minute or so.
        measure: computes one piece, in any process, from the options and the job alone: trial i
            must not depend on the number of trials, nor on what was computed before. Returns the
            measures of each model that the work is about.
        primary: the metric that decides which trial is best, and that is shown first; of several
            the first that a run has.
        variant: the option whose entries a run goes through: ``"data"``, ``"pixels"``,
            ``"network"`` or none.
        reads: the data sets that a run reads, by name or file; by default those of ``data``.
        writes: the content of files that a run keeps in its folder from the start, by name.
        finish: adds to the results what needs all jobs.
        published: the published value for a metric of a model on a variant.
        pairs: models that are tested against each other on every variant.
        across: further pairs, of full names such as ``"relu (raw)"``, as a family of their own.
        tested: the metrics in which they are tested.
        asked: the variants that claims are put to; by default those of the run.
        group: the ``group`` of rows in the summary; by default the variant.
        columns: further columns of ``trials.csv``.
        model: makes the :class:`Model` of a name that ``models`` does not have, such as
            ``"rank-8"``.
        stacked: whether one job uses all cores, so that jobs go one after another by default.
        threads: the number of threads that numbers depend on, for stacked jobs.
        length: the option that says how long training lasts, which a budget may cut.
        shown: metrics of the table that a reader sees first.
        plots: the figures of its page.
        remark: what a reader must know before comparing figures.
        along: the column of ``curves.csv`` that counts: epochs or steps.
        thing: what one of the models is, for tables.
        protocol: what ``--published`` means: ``"published"``, or ``"full"`` where nothing was.
        titles: what people call variants that are not known everywhere.
        pools: whether trials of runs with other seeds are trials of the same problem.
        advice: sentences for a user's own data, from the rows of the summary; the answer of a run
            begins with them.
    """

    name: str
    question: str
    source: str
    config: type[C]
    models: Mapping[str, Model]
    metrics: Mapping[str, Metric]
    claims: Sequence[Claim] | Callable[[C], Sequence[Claim]]
    check: Callable[[C, Path | None], dict[str, Any]]
    jobs: Callable[[C], Sequence[Job]]
    measure: Callable[[C, Job, Context], Mapping[str, Measures]]
    primary: str | tuple[str, ...]
    variant: Literal["data", "pixels", "network", ""] = "data"
    reads: Callable[[C], Iterable[str]] | None = None
    writes: Callable[[C], Mapping[str, bytes]] | None = None
    finish: Callable[[C, Results], None] | None = None
    published: Callable[[C, str, str, str], PublishedValue | None] = _nothing_published
    pairs: Sequence[tuple[str, str]] = ()
    across: Callable[[C], Sequence[tuple[str, str]]] | None = None
    tested: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    group: Callable[[C, str], dict[str, Any]] | None = None
    columns: tuple[str, ...] = ()
    model: Callable[[str], Model | None] | None = None
    stacked: bool = False
    threads: Callable[[C], int] | None = None
    length: str = "epochs"
    shown: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    remark: str = ""
    along: str = "epoch"
    thing: str = "model"
    protocol: Literal["published", "full"] = "full"
    titles: Mapping[str, str] = field(default_factory=dict)
    pools: bool = True
    advice: Callable[[Sequence[Any]], Sequence[str]] | None = None

    def look(self, model: str) -> Model:
        """Return how a model is shown; one that nobody knows goes by its name."""
        if model in self.models:
            return self.models[model]
        made = self.model(model) if self.model is not None else None
        return made or Model(model)

    def primary_of(self, metrics: Iterable[str]) -> str:
        """Return the metric that decides which trial is best, of those that a run has."""
        wanted = (self.primary,) if isinstance(self.primary, str) else self.primary
        known = set(metrics)
        return next((name for name in wanted if name in known), wanted[0])

    def claims_of(self, config: C) -> Sequence[Claim]:
        """Return what a run is to decide."""
        return self.claims(config) if callable(self.claims) else self.claims

    def variants(self, config: C) -> tuple[str, ...]:
        """Return the entries of the option that a run goes through; one empty name if none is."""
        if not self.variant:
            return ("",)
        value = getattr(config, self.variant)
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def data(self, config: C) -> tuple[str, ...]:
        """Return the data sets that a run reads."""
        if self.reads is not None:
            return tuple(self.reads(config))
        value = getattr(config, "data", None)
        return () if value is None else (value,) if isinstance(value, str) else tuple(value)

    def variant_title(self, variant: str) -> str:
        """Return what people call a variant: MNIST, Raw pixels, the name of a user's file."""
        if self.variant == "pixels":
            return f"{variant.capitalize()} pixels"
        return self.titles.get(variant) or _TITLES.get(variant, variant)


_TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "iris": "Iris",
    "wine": "Wine",
    "breast-cancer": "Breast cancer",
}


# --- Metrics and options that many studies have -----------------------------------------------

NETWORK_METRICS = {
    "test_accuracy": Metric(
        "Test accuracy", "Share of test samples given their class, after training.", "%", "high"
    ),
    "train_accuracy": Metric("Training accuracy", "The same on the training samples.", "%", "high"),
    "train_loss": Metric("Training loss", "Cross-entropy in the last epoch.", log=True),
    "late_gain": Metric(
        "Still gaining",
        "Test accuracy gained over the last tenth of the epochs: near 0 once converged.",
        "points",
        None,
    ),
}
"""Numbers of trained classifiers, for every study of them."""


def is_large(data: str) -> bool:
    """Return whether a named data set is too large to be trained on whole in minutes."""
    return data in ("mnist", "fashion-mnist", "cifar10")


def unless_large(usual: Any, large: Any) -> Callable[[Chosen], Any]:
    """Return a default that differs where one of the chosen data sets is large."""

    def choose(chosen: Chosen) -> Any:
        data = chosen.get("data") or ()
        names = (data,) if isinstance(data, str) else data
        return large if any(is_large(name) for name in names) else usual

    return choose


def are_here(*names: str) -> bool:
    """Return whether named data sets are on this machine."""
    from mahalens.data.named import find_set

    try:
        for name in names:
            find_set(name)
    except InputError:
        return False
    return True


def data_option(usual: Sequence[str], full: Sequence[str], **more: Any) -> Option:
    """Return the option ``--data`` of a study that goes through several data sets."""
    return Option(
        "Data sets: names of `mahalens data list`, or files.",
        tuple(usual),
        published=tuple(full),
        metavar="NAME|FILE,...",
        **more,
    )


def models_option(models: Mapping[str, Model], usual: Sequence[str] | None = None) -> Option:
    """Return the option ``--models``; by default all of them."""
    every = tuple(models)
    left_out = [name for name in every if usual is not None and name not in usual]
    return Option(
        "Models, see `mahalens list STUDY`.",
        tuple(usual) if usual is not None else every,
        published=every,
        shown=f"all but {', '.join(left_out)}" if left_out else "all",
        choices={name: model.text for name, model in models.items()},
        subset=True,
        ordered=True,
    )


def count_option(
    help: str, usual: int, large: int | None = None, full: int | None = None, **more: Any
) -> Option:
    """Return an option such as ``--trials`` or ``--epochs``, smaller on large data sets."""
    return Option(
        help,
        usual if large is None else unless_large(usual, large),
        published=usual if full is None else full,
        fixed=True,
        shown=f"{usual}" if large is None else f"{usual}; {large} with large data sets",
        least=1,
        **more,
    )


def train_size_option(large: int | None = None) -> Option:
    """Return the option ``--train-size``: all samples, or fewer of large data sets."""
    return Option(
        "Most training samples of a data set.",
        None if large is None else unless_large(None, large),
        published=None,
        fixed=True,
        shown="all" if large is None else f"all; {large} of large data sets",
        label="training samples",
        show=lambda size: "all" if size is None else f"at most {size:,}",
        least=2,
        or_all=True,
        metavar="INTEGER|all",
    )


def hidden_option() -> Option:
    """Return the option ``--hidden`` of networks with one hidden layer of 128 units."""
    return Option("Hidden units.", 128, published=128, label="hidden units", least=1)


def learning_rate_option() -> Option:
    """Return the option ``--learning-rate`` of networks that descend by 0.001."""
    return Option("Step of the solver.", 1e-3, published=1e-3, least=1e-12)


def still_learning(gains: Mapping[str, float]) -> list[str]:
    """Return a caution if networks were still improving when training stopped.

    ``gains`` are points of test accuracy gained in the last tenth of the epochs, by network.
    Networks without a gain, because all trials ran away, are not counted.

    >>> still_learning({"relu": 0.2, "abs": 3.0})[0][:62]
    '1 of 2 networks still gained more than 1 point in the last ten'
    """
    known = {name: gain for name, gain in gains.items() if math.isfinite(gain)}
    late = {name: gain for name, gain in known.items() if gain > 1}
    if not late:
        return []
    most = max(late, key=lambda name: late[name])
    return [
        f"{len(late)} of {len(known)} networks still gained more than 1 point in "
        f"the last tenth of the epochs (at most {most}, {late[most]:.1f} points): verdicts on them "
        "may change with more epochs"
    ]
