"""Networks that a finished representation run has trained, for this study to perturb."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from mahalens.errors import InputError, RunFolderError
from mahalens.files import read_file
from mahalens.studies.folder import (
    SUMMARY,
    TRIALS,
    WEIGHTS,
    RunConfig,
    is_unchanged,
    read_config,
)
from mahalens.studies.perturbation.config import PUBLISHED_MODELS, PerturbationConfig, ways
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.models import choose
from mahalens.studies.representation.problem import Group, Problem, result_file
from mahalens.train import Status, TrialStack


def config_of(
    source: Path, models: tuple[str, ...] = PUBLISHED_MODELS, pixels: str | None = None
) -> PerturbationConfig:
    """The configuration of a run on the networks in ``source``; an error if they are not there."""
    options = _options(source, read_config(source))
    chosen = choose(models, None)
    if missing := [model for model in chosen if model not in options.models]:
        raise InputError(
            f"--from {source}: has no {', '.join(missing)}; it has {', '.join(options.models)}: "
            "give some of them as --models"
        )
    kept = options.pixels if pixels is None else ways(pixels)
    if absent := [way for way in kept if way not in options.pixels]:
        raise InputError(
            f"--from {source}: has no networks for {absent[0]} pixels; leave --pixels out"
        )
    return PerturbationConfig(
        data=options.data,
        models=chosen,
        pixels=kept,
        epochs=options.epochs,
        trials=options.trials,
        train_size=options.train_size,
        seed=options.seed,
        networks=str(source),
        shortened=options.shortened,
        hidden=options.hidden,
        learning_rate=options.learning_rate,
    )


def _options(source: Path, config: RunConfig) -> RepresentationConfig:
    if config.study != "representation":
        raise InputError(
            f"--from {source}: holds a run of {config.study}; give the folder of a representation "
            "run"
        )
    if not (source / SUMMARY).exists():
        raise InputError(
            f"--from {source}: is not finished; finish it with 'mahalens run --resume {source}'"
        )
    try:
        return msgspec.convert(config.options, RepresentationConfig)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(
            f"--from {source}: its options cannot be used ({error}); train the networks again"
        ) from None


def read_networks(source: Path, problem: Problem) -> dict[str, dict[str, Tensor]]:
    """The networks as results of groups, by file name: as if they had been trained here."""
    facts = _facts(source)
    data = problem.data
    here = {"training_samples": len(data.y), "inputs": data.inputs, "classes": data.classes}
    for name, value in here.items():
        if facts.get(name) != value:
            raise InputError(
                f"--from {source}: was trained on data with {facts.get(name)} "
                f"{name.replace('_', ' ')}, but {problem.config.data} has {value} here; bring the "
                "same data back, or train again"
            )
    return {result_file(group): _network(source, problem, group) for group in problem.groups()}


def network_files(source: Path, groups: Sequence[Group]) -> dict[str, Path]:
    """The files that :func:`read_networks` reads."""
    names = [SUMMARY, TRIALS, *map(_weights, groups)]
    return {str(source / name): source / name for name in names}


def _weights(group: Group) -> str:
    return f"{WEIGHTS}/{group.pixels}-{group.model}.safetensors"


def _read(source: Path, name: str) -> bytes:
    """A record of the run that the networks are taken from, if it is as that run wrote it."""
    content = read_file(source / name)
    if not is_unchanged(source, name):
        raise RunFolderError(
            f"{source / name}: has changed since its run was finished (its checksum does not fit); "
            "bring the old file back, or train again"
        )
    return content


def _facts(source: Path) -> dict[str, object]:
    try:
        summary = msgspec.json.decode(_read(source, SUMMARY))
        return dict(summary["facts"])
    except InputError:
        raise
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{source / SUMMARY}: cannot be read ({error})") from None


def _network(source: Path, problem: Problem, group: Group) -> dict[str, Tensor]:
    path = source / _weights(group)
    try:
        content = _read(source, _weights(group))
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); train again") from None
    try:
        stack = TrialStack.from_tensors(problem.chain(group.model), load(content))
    except SafetensorError as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); train again") from None
    except InputError as error:
        raise RunFolderError(f"{path}: does not fit its run ({error}); train again") from None
    if len(stack) != group.count:
        raise RunFolderError(
            f"{path}: has {len(stack)} trials, but its run has {group.count}; train again"
        )
    rows = _trials(source, group)
    codes = [_code(row["status"], source) for row in rows]
    gains = [float(row.get("late_gain") or "nan") for row in rows]
    steps = [int(row["steps"]) for row in rows]
    return {
        "values": stack.values,
        "codes": torch.tensor(codes),
        "steps": torch.tensor(steps),
        "seconds": torch.tensor(0.0, dtype=torch.float64),
        "metric.late_gain": torch.tensor(gains, dtype=torch.float64),
    }


def _trials(source: Path, group: Group) -> list[dict[str, str]]:
    path = source / TRIALS
    try:
        text = _read(source, TRIALS).decode("utf-8")
        own = [
            row
            for row in csv.DictReader(io.StringIO(text, newline=""))
            if (row["model"], row["pixels"]) == (group.model, group.pixels)
        ]
        own.sort(key=lambda row: int(row["trial"]))
    except InputError:
        raise
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); train again") from None
    if len(own) != group.count:
        raise RunFolderError(
            f"{path}: has {len(own)} trials of {group.model} with {group.pixels} pixels where "
            f"{group.count} are wanted; train again"
        )
    return own


def _code(status: str, source: Path) -> int:
    try:
        return Status(status).code
    except ValueError:
        raise RunFolderError(f"{source / TRIALS}: unknown status {status!r}") from None
