"""Runs any study in a folder: starts it, computes its jobs, resumes it.

:func:`start` checks everything and makes the folder; :func:`execute` computes the jobs that have no
result yet, wherever ``executor`` says, and writes the records. A job is computed by
:func:`compute`, in this process, in others on this machine, or on workers of Dask
(:mod:`.cluster`): the numbers are the same. :func:`within_budget` cuts a run to the time there is,
and :func:`pool` puts finished runs together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import torch
from filelock import FileLock
from torch import Tensor

from mahalens._version import __version__
from mahalens.data.files import input_files
from mahalens.errors import InputError, Interrupted, MahalensError, RunFolderError
from mahalens.files import Fingerprint, fingerprint, fingerprint_of, read_file, write_file
from mahalens.progress import HasProgress
from mahalens.studies.folder import (
    CHECKPOINTS,
    LOCK,
    MEASURES,
    WEIGHTS,
    Pooled,
    RunConfig,
    RunFolder,
    is_unchanged,
    now,
    read_config,
)
from mahalens.studies.records import (
    gather,
    join,
    non_finite,
    pack,
    pack_measures,
    select,
    unpack_measures,
    weights_file,
    write_records,
)
from mahalens.studies.registry import load_study
from mahalens.studies.study import (
    C,
    Config,
    Job,
    Measures,
    Results,
    Study,
    flag_of,
    forget_data,
    name_of,
    variant_name,
)
from mahalens.train import solve
from mahalens.train.compiled import why_not

Stop = Callable[[], bool]
Executor = Literal["processes", "dask"]
EXECUTORS = {
    "processes": "processes on this machine",
    "dask": "workers of Dask, started here or found at --scheduler",
}
_LOOK = 0.5  # seconds between looks at whether to stop


class Watcher(Protocol):
    """Hears what a run is doing."""

    def stage(self, name: str) -> Callable[[HasProgress], None]:
        """Begin a part of the run; call the result now and then with its progress."""

    def note(self, text: str) -> None:
        """Hear of something that is worth a line."""


# --- Start and execute ------------------------------------------------------------------------


def start(
    study: Study[C],
    config: C,
    out: Path,
    *,
    force: bool = False,
    command: str = "",
    executor: Executor = "processes",
    workers: int | None = None,
    scheduler: str | None = None,
) -> RunFolder:
    """Check everything a run needs and make its folder; nothing is written before that."""
    forget_data()
    check_executor(executor, workers, scheduler)
    check_device(config.device)
    _check_sources(config, out)
    if config.tensorboard and find_spec("tensorboard") is None:
        raise InputError(
            "--tensorboard needs a package that is not installed; pip install "
            "'mahalens[tensorboard]', or leave it out"
        )
    speed = 1.0
    if executor == "dask":
        from mahalens.studies.cluster import check_scheduler

        speed = check_scheduler(scheduler, budget=config.budget is not None)
    kept = dict(study.writes(config)) if study.writes is not None else {}
    facts = study.check(config, None)
    if config.budget is not None:
        if not study.stacked and executor == "processes":
            speed = min(workers or cores(), len(study.jobs(config)))
        with thread_count(_threads(study, config)):
            config = within_budget(study, config, facts, speed)
    inputs = fingerprints(input_files(study.data(config)))
    inputs |= {name: fingerprint_of(content) for name, content in kept.items()}
    deviations = config.deviations()
    record = RunConfig(
        study=study.name,
        torch=str(torch.__version__),
        created=now(),
        seed=config.seed,
        device=config.device,
        threads=_threads(study, config),
        engine=engine_here(config.device),
        protocol="scaled" if deviations else "published",
        scaled=deviations,
        command=command or " ".join(sys.argv),
        options=msgspec.to_builtins(config),
        inputs=inputs,
    )
    folder = RunFolder.create(out, record, force=force)
    try:
        for name, content in kept.items():
            write_file(folder.path / name, content)
    except BaseException:
        folder.close()
        raise
    return folder


def execute(
    study: Study[C],
    folder: RunFolder,
    watcher: Watcher,
    should_stop: Stop | None = None,
    *,
    executor: Executor = "processes",
    workers: int | None = None,
    scheduler: str | None = None,
) -> None:
    """Compute the jobs that have no result yet, and write the records.

    The numbers depend neither on the executor nor on the number of workers.
    """
    forget_data()
    config = folder.options(study.config)
    check_executor(executor, workers, scheduler)
    check_device(config.device)
    _compare_versions(folder, watcher)
    _restore_inputs(study, config, folder, watcher)
    facts = study.check(config, folder.path)
    for line in _about(facts):
        watcher.note(line)
    jobs = list(study.jobs(config))
    waiting = [job for job in jobs if not folder.has(folder.path / result_file(job))]
    tally = _Tally(jobs, waiting, watcher.stage("jobs"))
    count = min(workers or (1 if study.stacked else cores()), len(waiting))
    if executor == "dask":
        from mahalens.studies.cluster import on_cluster

        done = on_cluster(study, config, folder, waiting, tally, watcher, should_stop, scheduler)
    elif count <= 1:
        done = _in_this_process(study, config, folder, waiting, tally, should_stop)
    else:
        done = _in_processes(folder, waiting, count, tally, should_stop)
    for job in done:
        tally.finish(job)
    watcher.note("writing the records")
    loaded = [(job, folder.read_tensors(folder.path / result_file(job))) for job in jobs]
    results = gather(study, config, loaded)
    results.facts = facts
    for line in _conclude(study, config, folder, results):
        watcher.note(line)
    folder.drop_checkpoints()


def _conclude(study: Study[C], config: C, folder: RunFolder, results: Results) -> list[str]:
    """Write the records of a run; return what is worth a line."""
    results.folder = folder.path
    folder.write_tensors(MEASURES, pack_measures(results.measures))
    with thread_count(folder.config.threads):
        if study.finish is not None:
            study.finish(config, results)
    lines = [*non_finite(results), *results.cautions]
    write_records(study, config, folder, results)
    return lines


# --- Budgets ----------------------------------------------------------------------------------

FEWEST_TRIALS = 5
"""With fewer, no claim is decided."""
FEWEST_SAMPLES = 1_000
SHARE_OF_SAMPLES = 4
"""A budget cuts a training set to a quarter at most before it cuts epochs."""
OVERHEAD = 20.0
"""Seconds for starting, records, figures and the report."""
CAUTION = 1.15
TIMED_SECONDS = 0.3


@dataclass(frozen=True)
class Cost:
    """Seconds of one trial of one job: what it takes anyway, and what every epoch adds."""

    fixed: float
    epoch: float
    samples: int


def within_budget(study: Study[C], config: C, facts: Mapping[str, Any], speed: float = 1.0) -> C:
    """Return what a budget leaves: fewer trials, then fewer training samples, then fewer epochs.

    ``speed`` is how many times as fast as this process the run will go.
    """
    if config.budget is None:
        return config
    seconds = config.budget * speed
    costs = measure_costs(study, config, facts)
    samples = max(cost.samples for cost in costs)

    def fits(tried: C) -> bool:
        return estimate(study, tried, costs) <= seconds

    if fits(config):
        return config
    cut = config
    has_size = hasattr(config, "train_size")
    lengths = {"trials": min(FEWEST_TRIALS, config.trials)}
    if has_size and samples:
        lengths["train_size"] = min(samples, max(FEWEST_SAMPLES, samples // SHARE_OF_SAMPLES))
    lengths[study.length] = 1
    for name, least in lengths.items():
        most = getattr(config, name)
        cut = _largest(cut, name, least, samples if most is None else most, fits)
        if fits(cut):
            break
    else:
        needed = estimate(study, cut, costs) / speed
        raise InputError(
            f"--budget of {config.budget:.0f} s: the shortest run takes about {needed:.0f} s here; "
            "give a larger budget or fewer --models"
        )
    changes = []
    for name in lengths:
        before, after = getattr(config, name), getattr(cut, name)
        before = samples if before is None else before
        if after is not None and after != before:
            label = {"train_size": "training samples"}.get(name, name)
            changes.append(f"{label} cut from {before:,} to {after:,}")
    note = f"budget of {config.budget:.0f} s: {', '.join(changes)}"
    return msgspec.structs.replace(cut, shortened=(*config.shortened, note))


def _largest(config: C, name: str, least: int, most: int, fits: Callable[[C], bool]) -> C:
    """Return the configuration with the largest value that fits; the least if none does."""
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        tried = msgspec.structs.replace(config, **{name: middle})
        low, high = (middle, high) if fits(tried) else (low, middle - 1)
    if name == "train_size" and low == most:
        return config
    return msgspec.structs.replace(config, **{name: low})


def estimate(study: Study[C], config: C, costs: Sequence[Cost]) -> float:
    """Return the seconds of a whole run, one job after another in this process."""
    size = getattr(config, "train_size", None)
    epochs = getattr(config, study.length)
    trial = 0.0
    for cost in costs:
        share = 1.0 if size is None or not cost.samples else min(1.0, size / cost.samples)
        trial += cost.fixed + cost.epoch * epochs * share
    return OVERHEAD + CAUTION * trial * config.trials


def measure_costs(study: Study[C], config: C, facts: Mapping[str, Any]) -> list[Cost]:
    """Time every kind of job with one trial and few epochs, more of them until it takes a while."""
    data = facts.get("data")
    costs = []
    for variant, work in dict.fromkeys((job.variant, job.work) for job in study.jobs(config)):
        about = data.get(variant_name(variant), {}) if isinstance(data, dict) else facts
        job = Job(variant, work, 0, 1)

        def timed(epochs: int, job: Job = job) -> float:
            few = {"trials": 1, study.length: epochs, "budget": None}
            began = time.perf_counter()
            study.measure(msgspec.structs.replace(config, **few), job, Context())
            return time.perf_counter() - began

        most = getattr(config, study.length)
        timed(1)  # the first time, programs are loaded and samples prepared
        short, epochs = timed(1), 1
        longer = short
        while epochs < most and longer - short < TIMED_SECONDS:
            epochs = min(most, 4 * epochs)
            longer = timed(epochs)
        step = max(0.0, (longer - short) / max(1, epochs - 1))
        costs.append(Cost(max(0.0, short - step), step, int(about.get("training_samples", 0))))
    return costs


# --- Pooling ----------------------------------------------------------------------------------

_MAY_DIFFER = ("seed", "trials", "group", "budget", "tensorboard", "shortened")
_PARTS = ("models", "pixels")  # a run may have some of them, and another the rest
POOLED_OPTIONS = (*_MAY_DIFFER, *_PARTS)
"""Options in which runs of one setting may differ."""


def pool(
    folders: Sequence[Path],
    out: Path,
    *,
    models: Sequence[str] = (),
    seeds: Sequence[int] = (),
    force: bool = False,
    command: str = "",
) -> None:
    """Put the trials of finished runs of one study together, and judge its claims by all of them.

    So a long study can be run in pieces, on several machines or days: the same command with
    another ``--seed`` each time, or other models and pixels with the same seeds. Options that
    decide a trial must be equal; trial i of a model stays paired with trial i of the others. With
    a single folder the run is judged anew, by the claims of this version.

    Args:
        folders: finished runs, each with its ``measures.safetensors``.
        out: a new folder for the pooled run.
        models: models to take, all if empty; the others may then have other trials.
        seeds: seeds whose trials to take, all if empty; every run must have one of them, and some
            run each of them.
        force: replace a run that ``out`` holds.
        command: what the user typed, for the record.
    """
    records = [read_config(folder) for folder in folders]
    study = load_study(records[0].study)
    for folder, record in zip(folders, records, strict=True):
        if record.study != study.name:
            raise InputError(f"{folder}: a run of {record.study}, not of {study.name}")
    configs = [
        RunFolder(p, r, FileLock(p / LOCK)).options(study.config)
        for p, r in zip(folders, records, strict=True)
    ]
    _check_pool(study, folders, records, configs, out)
    runs = [_pieces(*own) for own in zip(records, configs, strict=True)]
    measured = [_read_measures(folder) for folder in folders]
    if models:
        measured = [
            _of_models(own, models, place) for own, place in zip(measured, folders, strict=True)
        ]
    if seeds:
        known = dict.fromkeys(piece.seed for run in runs for piece in run)
        some = [_of_seeds(*parts, seeds) for parts in zip(runs, measured, folders, strict=True)]
        if unknown := [seed for seed in seeds if seed not in known]:
            raise InputError(
                f"--seeds {unknown[0]}: no run has this seed; give some of "
                f"{', '.join(map(str, known))}"
            )
        runs, measured = [run for run, _ in some], [own for _, own in some]
    variants = [tuple(map(variant_name, study.variants(config))) for config in configs]
    own = _runs_by_model(runs, measured, variants)
    trials = sum(count for place in next(iter(own.values())) for _, count in _drawn(runs[place]))
    united = _united(configs)
    if models:
        united["models"] = tuple(name for name in united["models"] if name in models)
    seed = runs[0][0].seed
    new = {"trials": trials, "seed": seed, "budget": None, "shortened": (), **united}
    config = msgspec.structs.replace(configs[0], **new)
    deviations = config.deviations()
    record = msgspec.structs.replace(
        records[0],
        created=now(),
        seed=seed,
        protocol="scaled" if deviations else "published",
        scaled=deviations,
        command=command or " ".join(sys.argv),
        options=msgspec.to_builtins(config),
        pooled=list(dict.fromkeys(piece for run in runs for piece in run)),
    )
    joined = {key: _together([measured[p][key] for p in places]) for key, places in own.items()}
    results = Results(joined, {})
    results.facts = study.check(config, None)
    with RunFolder.create(out, record, force=force) as pooled:
        _conclude(study, config, pooled, results)


def _of_models(
    measured: Mapping[tuple[str, str], Measures], models: Sequence[str], folder: Path
) -> dict[tuple[str, str], Measures]:
    """Return the measures of these models, of which the run must have all."""
    names = [model for _, model in measured]
    if missing := [model for model in models if model not in names]:
        raise InputError(
            f"{folder}: has no model {missing[0]}; give some of {', '.join(dict.fromkeys(names))}"
        )
    return {key: own for key, own in measured.items() if key[1] in models}


def _of_seeds(
    run: Sequence[Pooled],
    measured: Mapping[tuple[str, str], Measures],
    folder: Path,
    seeds: Sequence[int],
) -> tuple[list[Pooled], dict[tuple[str, str], Measures]]:
    """Return the pieces of a run that have these seeds, and the measures of their trials."""
    drawn = _drawn(run)
    wanted = [seed in seeds for seed, count in drawn for _ in range(count)]
    if not any(wanted):
        raise InputError(f"{folder}: has none of these seeds, only {_seeds(drawn)}")
    rows = [row for row, take in enumerate(wanted) if take]
    pieces = [piece for piece in run if piece.seed in seeds]
    return pieces, {key: select(own, rows) for key, own in measured.items()}


def _drawn(run: Sequence[Pooled]) -> list[tuple[int, int]]:
    """Return seed and number of trials in the order of the trials.

    A pooled run can have several pieces with one seed: the same trials of other models.
    """
    return list(dict.fromkeys((piece.seed, piece.trials) for piece in run))


def _pieces(record: RunConfig, config: Config) -> list[Pooled]:
    """Return the runs that a run is made of: itself, unless it was pooled before."""
    if record.pooled is not msgspec.UNSET:
        return record.pooled
    own = {name: getattr(record, name) for name in ("seed", "command", "mahalens", "torch")}
    return [Pooled(trials=_trials_of(config), **own)]


def _runs_by_model(
    runs: Sequence[Sequence[Pooled]],
    measured: Sequence[Mapping[tuple[str, str], Measures]],
    variants: Sequence[Sequence[str]],
) -> dict[tuple[str, str], list[int]]:
    """Return which runs have trials of each variant and model; all must have the same ones.

    ``variants`` are those of each run. If a run has a model and a variant, but no trials of the
    model on it, the study does not train that model there, and no run needs such trials.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for place, measures in enumerate(measured):
        for key in measures:
            places.setdefault(key, []).append(place)
    if any(measures.keys() != places.keys() for measures in measured):
        models = dict.fromkeys(model for _, model in places)
        every = dict.fromkeys(variant for own in variants for variant in own)
        never = {
            (variant, model)
            for own, measures in zip(variants, measured, strict=True)
            for variant in own
            for _, model in measures
        } - places.keys()
        wanted = (key for key in product(every, models) if key not in never)
        places = {key: places.get(key, []) for key in wanted}
    trials = [_drawn(run) for run in runs]
    first: tuple[str, list[tuple[int, int]]] | None = None
    for (variant, model), own in places.items():
        name, drawn = name_of(model, variant), [pair for place in own for pair in trials[place]]
        seeds = [seed for seed, _ in drawn]
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            raise InputError(
                f"{name}: seed {twice[0]} appears twice, so its trials would be counted twice; "
                "pool runs with different --seed, or with other models"
            )
        first = first or (name, drawn)
        if drawn != first[1]:
            raise InputError(
                f"{first[0]} has {_seeds(first[1])}, but {name} {_seeds(drawn)}; pool runs that "
                "together have the same trials of every model, in the same order"
            )
    return places


def _seeds(drawn: Sequence[tuple[int, int]]) -> str:
    trials = ", ".join(f"{count} of seed {seed}" for seed, count in drawn)
    return f"trials {trials}" if trials else "no trials"


def _united(configs: Sequence[C]) -> dict[str, tuple[str, ...]]:
    """Return the models and pixels that some of the runs have."""
    lists = [msgspec.structs.asdict(config) for config in configs]
    return {
        name: tuple(dict.fromkeys(part for own in lists for part in own[name]))
        for name in _PARTS
        if isinstance(lists[0].get(name), tuple)
    }


def _together(pieces: Sequence[Measures]) -> Measures:
    """Join the trials of several runs; weights only if all of them have them."""
    if not all(piece.weights for piece in pieces):
        pieces = [replace(piece, weights={}) for piece in pieces]
    return join(pieces)


def _trials_of(config: Config) -> int:
    return int(getattr(config, "trials", 1))


def _check_pool(
    study: Study[C],
    folders: Sequence[Path],
    records: Sequence[RunConfig],
    configs: Sequence[C],
    out: Path,
) -> None:
    """Refuse runs that do not belong together."""
    if not study.pools:
        raise InputError(
            f"{study.name} draws its problem from the seed, so that runs with other seeds are "
            "other problems; give one run more --trials"
        )
    for folder, record, config in zip(folders, records, configs, strict=True):
        if folder.resolve() == out.resolve():
            raise InputError(f"{folder}: cannot be pooled into itself; give --out another folder")
        for name, value in msgspec.structs.asdict(config).items():
            first = getattr(configs[0], name)
            listed = name in _PARTS and isinstance(value, tuple)
            if name not in _MAY_DIFFER and not listed and value != first:
                raise InputError(
                    f"{folder}: --{_flag(config, name)} is {value}, but {first} in {folders[0]}; "
                    "pool runs that differ in --seed, --trials, --models and --pixels alone"
                )
        if record.inputs != records[0].inputs:
            raise InputError(f"{folder}: its data differ from those of {folders[0]}")


def _flag(config: Config, name: str) -> str:
    """Return the name of an option on the command line."""
    option = config.options().get(name)
    return option.named if option is not None and option.named else flag_of(name)


def _read_measures(folder: Path) -> dict[tuple[str, str], Measures]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        if not is_unchanged(folder, MEASURES):
            raise RunFolderError(f"{folder / MEASURES}: has changed since the run wrote it")
        measures = unpack_measures(load(read_file(folder / MEASURES)))
        for (variant, model), own in measures.items():
            weights = folder / WEIGHTS / weights_file(variant, model)
            if weights.exists():  # a copy of a run may come without
                measures[variant, model] = replace(own, weights=load(read_file(weights)))
        return measures
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder}: has no {MEASURES}; finish the run, or run it again if an earlier version "
            "made it"
        ) from None
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise RunFolderError(f"{folder / MEASURES}: cannot be read ({error})") from None


def check_executor(executor: str, workers: int | None, scheduler: str | None) -> None:
    """Refuse a way to compute that does not exist."""
    if executor not in EXECUTORS:
        raise InputError(f"--executor {executor}: unknown; give {' or '.join(EXECUTORS)}")
    if scheduler is not None and executor != "dask":
        raise InputError("--scheduler without --executor dask: add it, or leave both out")
    if workers is not None and executor == "dask":
        raise InputError("--workers with --executor dask: Dask has its own; leave one of them out")
    if workers is not None and not 1 <= workers <= 1_000:
        raise InputError(f"--workers {workers}: give a whole number from 1 to 1000")


def _check_sources(config: Config, out: Path) -> None:
    """Refuse to replace a folder that the run is to read."""
    for name, option in config.options().items():
        value = getattr(config, name)
        if option.file and value is not None and Path(value).resolve() == out.resolve():
            flag = _flag(config, name)
            raise InputError(f"--{flag} and --out are both {out}; give --out another folder")


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    if device == "cpu":
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch thinks of old device types
            torch.empty(1, device=device).sum().item()
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise InputError(
            f"--device {device}: cannot be used here ({reason}); try --device cpu"
        ) from None


def cores() -> int:
    """Return how many processes can compute at once on this machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def engine_here(device: str = "cpu") -> Literal["compiled", "torch"]:
    """Return which engine trains here: the compiled one on the CPU of a machine that has it."""
    return "torch" if device != "cpu" or why_not() else "compiled"


def _threads(study: Study[C], config: C) -> int:
    if not study.stacked:
        return 1
    return torch.get_num_threads() if study.threads is None else study.threads(config)


@contextlib.contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Compute with so many threads: with one, numbers are equal on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _about(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about each data set of a run."""
    data = facts.get("data")
    sets = data if isinstance(data, dict) else {data: facts} if data else {}
    for name, fact in sets.items():
        if "training_samples" in fact:
            yield (
                f"data: {name}, {fact['training_samples']:,} training and "
                f"{fact['test_samples']:,} test samples ({fact.get('source', 'read')})"
            )


# --- What a run reads -------------------------------------------------------------------------


def fingerprints(files: Mapping[str, Path]) -> dict[str, Fingerprint]:
    """Return the fingerprints of all files that a run reads."""
    prints = {}
    for name, path in files.items():
        try:
            prints[name] = fingerprint(path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); the run needs it as it was when it "
                "began"
            ) from None
    return prints


def check_inputs(record: RunConfig, files: Mapping[str, Path]) -> None:
    """Refuse files that have changed since the run began: its results would mix both.

    Runs of early versions, which have no fingerprints, take them as they are.
    """
    if record.inputs is None:
        return
    for name, here in fingerprints(files).items():
        if record.inputs.get(name) != here:
            raise RunFolderError(
                f"{files[name]}: has changed since the run began; bring the old file back, or "
                "start a new run, as this one would mix results of both"
            )


def _restore_inputs(study: Study[C], config: C, folder: RunFolder, watcher: Watcher) -> None:
    """Check that everything the run reads is as it was; write again what a killed start did not."""
    files = input_files(study.data(config))
    check_inputs(folder.config, files)
    if folder.config.inputs is None and files:
        watcher.note(
            "begun by an earlier version, which kept no fingerprints of its data: make sure that "
            "they have not changed"
        )
    kept = [name for name in folder.config.inputs or {} if name not in files]
    absent = [name for name in kept if not (folder.path / name).exists()]
    if absent and study.writes is not None:
        for name, content in study.writes(config).items():
            if name in absent:
                write_file(folder.path / name, content)
    check_inputs(folder.config, {name: folder.path / name for name in kept})


def _compare_versions(folder: RunFolder, watcher: Watcher) -> None:
    """Say so if a run is resumed with other versions: its last digits may then differ."""
    differ = "the last digits may differ from those of an uninterrupted run"
    begun = {"mahalens": folder.config.mahalens, "torch": folder.config.torch}
    here = {"mahalens": __version__, "torch": str(torch.__version__)}
    for name, version in begun.items():
        if version != here[name]:
            watcher.note(f"begun with {name} {version}, going on with {here[name]}: {differ}")
    if folder.config.engine == "compiled" and why_not():
        watcher.note(f"begun with the compiled engine, going on without ({why_not()}): {differ}")


# --- Computing a job --------------------------------------------------------------------------


def result_file(job: Job) -> str:
    """Return where the result of a job is kept until the run is complete, in its folder."""
    return f"{CHECKPOINTS}/{job.name}.safetensors"


S = TypeVar("S")


@dataclass
class Context:
    """The means that a job may use while it is computed, wherever that is.

    Attributes:
        engine: the engine for training, ``"compiled"`` or ``"torch"``.
        folder: the run folder, without which nothing can be saved on the way.
        inputs: where the files are that the study put into the run folder when it began.
    """

    engine: str = "torch"
    folder: RunFolder | None = None
    inputs: Path = field(default_factory=Path)
    job: Job | None = None
    on_report: Callable[[float, str], None] | None = None
    stop: Stop | None = None

    def input(self, name: str) -> Path:
        """Return the path of a file that the study put into the run folder when it began."""
        return self.inputs / name

    def report(self, share: float, text: str = "") -> None:
        """Say how much of the job is done, from 0 to 1, and where it stands."""
        if self.on_report is not None:
            self.on_report(share, text)

    def should_stop(self) -> bool:
        """Return whether the user wants the run to stop."""
        return self.stop is not None and self.stop()

    def look(self) -> None:
        """Raise :class:`~mahalens.errors.Interrupted` if the user wants the run to stop."""
        _look(self.stop)

    def drive(
        self, name: str, solver: Any, *, share: tuple[float, float] = (0, 1), **how: Any
    ) -> Any:
        """Train with ``solver`` to its end, from where an earlier process stopped; return it.

        ``name`` tells several solvers of a job apart, ``share`` is the part of the job that this
        one is; ``how`` goes to :func:`mahalens.train.solve`.
        """
        state = self.load(name)
        if state is not None:
            try:
                solver.restore(state)
            except (KeyError, InputError) as error:
                raise RunFolderError(
                    f"{self._path(name)}: does not fit this run ({error}); delete it to train "
                    "from the start"
                ) from None
        low, high = share

        def tell(running: Any) -> None:
            done, total, text = running.progress
            self.report(low + (high - low) * done / total, text)

        solve(
            solver,
            save=None if self.folder is None else lambda state: self.save(name, state),
            on_progress=tell,
            should_stop=self.should_stop,
            **how,
        )
        return solver

    def _path(self, name: str) -> Path:
        if self.folder is None or self.job is None:
            raise RuntimeError("a job without a folder keeps no states")
        return self.folder.path / CHECKPOINTS / f"{self.job.name}.{name}.state.safetensors"

    def load(self, name: str) -> dict[str, Tensor] | None:
        """Return the state that an earlier process saved under this name, if there is one."""
        if self.folder is None or not self._path(name).exists():
            return None
        return self.folder.read_tensors(self._path(name))

    def save(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Keep a state, from which the job can go on after it was stopped."""
        if self.folder is not None:
            path = self._path(name).relative_to(self.folder.path).as_posix()
            self.folder.write_tensors(path, state)

    def forget(self) -> None:
        """Remove all states of the job."""
        if self.folder is not None and self.job is not None:
            states = f"{CHECKPOINTS}/{self.job.name}.*.state.safetensors"
            for path in self.folder.path.glob(states):
                path.unlink(missing_ok=True)


def compute(
    study: Study[C], config: C, job: Job, record: RunConfig, context: Context
) -> dict[str, Tensor]:
    """Compute a job and return its result as tensors."""
    context.job = job
    context.engine = engine_here(config.device) if record.engine == "compiled" else "torch"
    try:
        with thread_count(record.threads):
            return pack(study.measure(config, job, context))
    except RunFolderError:
        raise
    except InputError as error:  # of data that looked well before: say where
        raise InputError(f"{job}: {error}") from None


def all_threads() -> contextlib.AbstractContextManager[None]:
    """Use all threads that this process may, where numbers do not depend on how many there are."""
    return thread_count(_most_threads)


_most_threads = torch.get_num_threads()


class _Tally:
    """Adds up the trials that are done, for the progress of a run, in percent."""

    percent = True

    def __init__(
        self, jobs: Sequence[Job], waiting: Sequence[Job], show: Callable[[HasProgress], None]
    ) -> None:
        self._show = show
        self._total = max(1, sum(job.count for job in jobs))
        self._finished = sum(job.count for job in jobs) - sum(job.count for job in waiting)
        self._restored = float(self._finished)
        self._shares: dict[str, float] = {}
        self._text = ""
        show(self)

    @property
    def progress(self) -> tuple[float, float, str]:
        """The share that is done, of 100, and where it stands."""
        done = 100 * (self._finished + sum(self._shares.values())) / self._total
        whole = self._finished >= self._total
        return done if whole else min(99.9, done), 100.0, self._text

    @property
    def restored(self) -> float:
        """The part of the progress that an earlier process made."""
        return 100 * self._restored / self._total

    def update(self, job: Job, share: float, text: str = "") -> None:
        """Count a share of a job that is under way."""
        if job.name not in self._shares:  # where a checkpoint left it
            self._restored += job.count * share
        self._shares[job.name] = job.count * share
        self._text = f"{job}, {text}" if text else str(job)
        self._show(self)

    def finish(self, job: Job) -> None:
        """Count a job that is done."""
        self._shares.pop(job.name, None)
        self._finished += job.count
        self._text = str(job)
        self._show(self)


# --- Executors --------------------------------------------------------------------------------


def _in_this_process(
    study: Study[C],
    config: C,
    folder: RunFolder,
    jobs: Sequence[Job],
    tally: _Tally,
    should_stop: Stop | None,
) -> Iterator[Job]:
    for job in jobs:
        context = Context(
            folder=folder,
            inputs=folder.path,
            on_report=lambda share, text, job=job: tally.update(job, share, text),  # type: ignore[misc]
            stop=should_stop,
        )
        context.look()
        _compute_into(folder, study, config, job, context)
        yield job


def _compute_into(
    folder: RunFolder, study: Study[C], config: C, job: Job, context: Context
) -> None:
    folder.write_tensors(result_file(job), compute(study, config, job, folder.config, context))
    context.forget()


def compute_here(folder: Path, job: Job) -> None:
    """Compute a job of the run in ``folder``, whose lock the process that sent it holds."""
    record = read_config(folder)
    study = load_study(record.study)
    attached = RunFolder(folder, record, FileLock(folder / LOCK))
    config = attached.options(study.config)
    if record.digest not in _checked:  # before this process reads its data, they are checked
        check_inputs(record, input_files(study.data(config)))
        _checked.add(record.digest)
    _compute_into(attached, study, config, job, Context(folder=attached, inputs=folder))


_checked: set[str] = set()  # runs whose data this process has in memory


def _in_processes(
    folder: RunFolder,
    jobs: Sequence[Job],
    count: int,
    tally: _Tally,
    should_stop: Stop | None,
) -> Iterator[Job]:
    # Its processes are new ones: a forked copy of one that has used OpenMP may hang.
    from joblib.externals.loky import ProcessPoolExecutor

    pool = ProcessPoolExecutor(
        max_workers=count,
        initializer=_begin,
        initargs=(os.getpid(),),
        # Its test of semaphores would have a process hear Ctrl-C again, before it can ignore it.
        env={"JOBLIB_MULTIPROCESSING": "0"},
    )
    left = iter(jobs)
    waiting: dict[Future[None], Job] = {}
    try:
        while True:
            # No more than can be computed: a pool that is shut down trips over what is queued.
            for job in islice(left, count - len(waiting)):
                with _deaf_to_ctrl_c():
                    waiting[pool.submit(compute_here, folder.path, job)] = job
                tally.update(job, 0.0)
            if not waiting:
                return
            _look(should_stop)
            done, _ = wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
            for future in done:
                job = waiting.pop(future)
                future.result()
                yield job
    except BrokenProcessPool:
        # A signal to all processes reaches this one as a wish, which comes first.
        time.sleep(_LOOK)
        _look(should_stop)
        raise MahalensError(
            "a worker process was killed, possibly because memory ran out; finished jobs are kept: "
            "go on with mahalens run --resume and fewer --workers"
        ) from None
    finally:
        # Also when somebody stops: what was under way goes on from its last state, if it has one.
        pool.shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Have processes that are started here never hear Ctrl-C; this one hears it a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # as it begins, it would undo what follows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int) -> None:
    """Prepare a worker: Ctrl-C is for the process that leads it, and it does not outlive that."""
    global _most_threads
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _most_threads = 1

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _look(should_stop: Stop | None) -> None:
    if should_stop is not None and should_stop():
        raise Interrupted("stopped by the user")
