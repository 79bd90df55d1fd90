"""What a worker of a cluster does with a group: train it, and write its result or send it back."""

from __future__ import annotations

import functools
import secrets
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch
from filelock import FileLock
from safetensors.torch import load, save
from torch import Tensor

from mahalens._version import __version__
from mahalens.data.sets import LabelledData
from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.files import write_file
from mahalens.studies.folder import LOCK, RunFolder, read_config, seal
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.problem import Group, Problem, result_file
from mahalens.studies.representation.training import train_group
from mahalens.train import SGD
from mahalens.train.compiled import library, why_not

TELL_EVERY = 2.0
"""Seconds between two words on how far a group is."""

_training: set[int] = set()  # threads of this process that train a group


class About(msgspec.Struct, frozen=True):
    """What labelled data are besides their tensors."""

    name: str
    image_shape: tuple[int, ...] | None
    largest: float
    source: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker has to know about a group, besides the samples."""

    config: RepresentationConfig
    about: About
    group: Group
    engine: str
    machine: dict[str, str]
    folder: str
    run: str
    """The digest of the run, for the seals of its results."""
    mark: str
    """A file in the folder with a name nobody else has: who sees it sees the same folder."""


def pack(data: LabelledData) -> bytes:
    """The samples as safetensors, whole numbers up to 255 in one byte each."""
    tensors = {"x": _small(data.x), "y": data.y, "test_x": _small(data.test_x)}
    tensors["test_y"] = data.test_y
    # Copies: training and test samples may be the same tensors.
    return save({n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()})


def _small(x: Tensor) -> Tensor:
    narrow = x.clamp(0, 255).to(torch.uint8)
    return narrow if x.dtype == torch.float32 and torch.equal(narrow.to(x.dtype), x) else x


@functools.lru_cache(maxsize=1)
def unpack(packed: bytes, about: About) -> LabelledData:
    """The samples as they were before :func:`pack`, kept for the next group of this worker."""
    fields: dict[str, Any] = msgspec.structs.asdict(about)
    for name, tensor in load(packed).items():
        fields[name] = tensor.float() if tensor.dtype == torch.uint8 else tensor
    return LabelledData(**fields)


def about(data: LabelledData) -> About:
    """What is sent of the data besides their tensors."""
    return About(data.name, data.image_shape, data.largest, data.source)


def machine() -> dict[str, str]:
    """What the numbers of a result depend on; ``engine`` names compiler, flags and processor."""
    compiled = library()
    named = f"none ({why_not()})"
    if compiled is not None:  # without length and checksum, which differ from build to build
        named = "-".join(Path(str(compiled._name)).stem.split("-")[:2])
    return {"mahalens": __version__, "torch": str(torch.__version__), "engine": named}


def differences(here: dict[str, str], there: dict[str, str], engine: str) -> list[str]:
    """Why a worker cannot give the same numbers, in a few words each.

    >>> here = {"mahalens": "1", "torch": "2", "engine": "a"}
    >>> differences(here, {"mahalens": "1", "torch": "3", "engine": "none (no compiler)"}, "torch")
    ['torch 3 instead of 2']
    """
    found = [
        f"{name} {there[name]} instead of {here[name]}"
        for name in ("mahalens", "torch")
        if there[name] != here[name]
    ]
    if engine == "compiled" and there["engine"].startswith("none"):
        found.append(f"compiled engine: {there['engine']}")
    return found


def train_on_worker(packed: bytes, job: bytes) -> bytes:
    """A task of Dask: :func:`train_job`, heard of and stopped through the worker it runs on."""
    worker: Any = import_module("distributed").get_worker()
    key = worker.get_current_task()
    told = msgspec.json.decode(job, type=Job)

    def tell(share: float) -> None:
        worker.log_event(told.mark, [told.group.name, share])

    def unwanted() -> bool:
        """Whether the run was stopped, or has vanished: then nobody holds the task's future."""
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    _training.add(threading.get_ident())
    try:
        return train_job(packed, told, tell, unwanted)
    finally:
        _training.discard(threading.get_ident())


def train_job(
    packed: bytes, job: Job, tell: Callable[[float], None], unwanted: Callable[[], bool]
) -> bytes:
    """Train a group and write its result into the run's folder, if it is seen from here.

    Returns nothing then, else the result as safetensors. A group whose result is there is not
    trained again, so that a task may run any number of times.
    """
    # For good: another group may be training in this process, in another thread.
    torch.set_num_threads(1)
    if wrong := differences(job.machine, machine(), job.engine):
        raise InputError(f"a worker has {', '.join(wrong)}; make them equal and resume the run")
    problem = Problem(job.config, unpack(packed, job.about))
    folder = _seen(job)
    path = None if folder is None else folder.path / result_file(job.group)
    if path is not None and path.exists():
        return b""
    trained = _train(problem, job, folder, tell, unwanted)
    result = seal(trained, result_file(job.group), job.run)
    if folder is not None and path is not None:
        try:
            _put(path, result)
        except RunFolderError:  # seen, but not ours to write to
            return result
        folder.checkpoint(job.group.name).unlink(missing_ok=True)
        return b""
    return result


def _train(
    problem: Problem,
    job: Job,
    folder: RunFolder | None,
    tell: Callable[[float], None],
    unwanted: Callable[[], bool],
) -> dict[str, Tensor]:
    told = time.monotonic()

    def on_progress(solver: SGD) -> None:
        nonlocal told
        if time.monotonic() - told >= TELL_EVERY:
            told = time.monotonic()
            tell(solver.epoch / solver.limit)

    if folder is None:
        return train_group(
            problem, job.group, engine=job.engine, on_progress=on_progress, should_stop=unwanted
        )
    checkpoint = folder.checkpoint(job.group.name)
    state = folder.read_tensors(checkpoint) if checkpoint.exists() else None

    def keep(now: dict[str, Tensor]) -> None:
        if not (folder.path / job.mark).exists():
            raise Interrupted("the run has ended without this worker")
        name = checkpoint.relative_to(folder.path).as_posix()
        _put(checkpoint, seal(now, name, job.run))

    try:
        return train_group(
            problem,
            job.group,
            engine=job.engine,
            state=state,
            save=keep,
            on_progress=on_progress,
            should_stop=unwanted,
        )
    except (KeyError, InputError) as error:
        if state is None or isinstance(error, RunFolderError):
            raise
        raise RunFolderError(
            f"{checkpoint}: does not fit this run ({error}); delete it to train this group from "
            "the start"
        ) from None


def _seen(job: Job) -> RunFolder | None:
    """The run's folder, if this worker sees the same one; whoever sent the job holds its lock."""
    path = Path(job.folder)
    try:
        if not (path / job.mark).exists():
            return None
        return RunFolder(path, read_config(path), FileLock(path / LOCK))
    except (OSError, RunFolderError):
        return None


def _put(path: Path, content: bytes) -> None:
    """Write a file whole, under a temporary name that no process of any machine shares."""
    temporary = path.with_name(f".{path.name}.{secrets.randbits(60)}.tmp")
    write_file(temporary, content)
    temporary.replace(path)


def training_now() -> int:
    """How many threads of this process are training a group."""
    return len(_training)


def dask_setup(worker: object) -> None:
    """Called by Dask as local workers start: Ctrl-C is for the run, which then stops them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
