"""A run as a folder that explains itself. Needs no torch."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from filelock import FileLock, Timeout

from mahalens._version import __version__
from mahalens.errors import InputError, RunFolderError
from mahalens.files import LEFT_OVER, contents, write_file

CONFIG, SUMMARY, TRIALS, CURVES = "config.json", "summary.json", "trials.csv", "curves.csv"
GAUSSIAN, PLOTS, REPORT, LOCK = "gaussian.json", "plots.safetensors", "report.html", ".lock"
COMPARISONS, LEVELS = "comparisons.csv", "levels.csv"
WEIGHTS, FIGURES, CHECKPOINTS = "weights", "figures", "checkpoints"
TENSORBOARD = "tensorboard"
_RECORDS = (CONFIG, SUMMARY, TRIALS, CURVES, COMPARISONS, LEVELS, GAUSSIAN, PLOTS, REPORT, LOCK)
_FOLDERS = {WEIGHTS: ".safetensors", FIGURES: ".png", CHECKPOINTS: ".safetensors"}
Options = TypeVar("Options", bound=msgspec.Struct)


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What ``config.json`` holds: everything needed to run it again."""

    study: str
    mahalens: str = __version__
    torch: str
    python: str = platform.python_version()
    created: str
    seed: int
    device: str
    threads: Annotated[int, msgspec.Meta(ge=1)]
    engine: Literal["compiled", "torch"] = "torch"
    protocol: Literal["published", "scaled"]
    scaled: list[str]
    command: str
    options: dict[str, Any]


def now() -> str:
    """This moment, for the record."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class RunFolder:
    """A run folder, locked for as long as it is open so that two processes cannot share it."""

    def __init__(self, path: Path, config: RunConfig, lock: FileLock) -> None:
        self.path = path
        self.config = config
        self._lock = lock

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, force: bool = False) -> RunFolder:
        """Start a run in a new or empty folder; with ``force`` also in place of an older run."""
        record = encode_json(config)
        _check_free(path, force=force)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot be made ({error.strerror}); give --out a folder you may write to"
            ) from None
        folder = cls(path, config, _lock(path))
        try:
            _check_free(path, force=force)  # again: another process may have been here meanwhile
            _clear(path)
            write_file(path / CONFIG, record)
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run that was begun earlier."""
        config = read_config(path)
        return cls(path, config, _lock(path))

    def close(self) -> None:
        """Let others use the folder."""
        (self.path / LOCK).unlink(missing_ok=True)
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def options(self, kind: type[Options]) -> Options:
        """The options the run was started with, as its study reads them."""
        try:
            return msgspec.convert(self.config.options, kind)
        except (msgspec.ValidationError, InputError) as error:
            raise RunFolderError(
                f"{self.path / CONFIG}: options cannot be used ({error}); start a new run"
            ) from None

    @property
    def finished(self) -> bool:
        """Whether all results are there."""
        return (self.path / SUMMARY).exists()

    def checkpoint(self, model: str) -> Path:
        """Where the state of a model in training is kept."""
        return self.path / CHECKPOINTS / f"{model}.safetensors"

    def write_json(self, name: str, record: object) -> None:
        """Write a record as JSON; numbers that are not finite become null."""
        write_file(self.path / name, encode_json(record))

    def write_csv(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a table; ``None`` and NaN become empty cells."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow("" if cell is None or cell != cell else cell for cell in row)
        write_file(self.path / name, text.getvalue().encode())

    def write_tensors(
        self, name: str, tensors: Mapping[str, Any], *, chain: str | None = None
    ) -> None:
        """Write torch tensors as safetensors, with the chain they are the parameters of."""
        from safetensors.torch import save

        ready = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        # One entry at most: the library writes several in an order that changes from run to run.
        metadata = None if chain is None else {"chain": chain}
        write_file(self.path / name, save(ready, metadata))

    def read_tensors(self, path: Path) -> dict[str, Any]:
        """Read torch tensors back."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            return load(path.read_bytes())
        except (OSError, SafetensorError) as error:
            raise RunFolderError(
                f"{path}: cannot be read ({error}); delete it to train this model from the start"
            ) from None

    def drop_checkpoints(self) -> None:
        """Remove what only an unfinished run needs."""
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)


def encode_json(record: object) -> bytes:
    """A record as JSON for people to read; numbers that are not finite become null."""
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"


def read_config(path: Path) -> RunConfig:
    """Read ``config.json`` of a run folder, or say why it is none."""
    try:
        return msgspec.json.decode((path / CONFIG).read_bytes(), type=RunConfig)
    except FileNotFoundError:
        there = "holds no run" if path.is_dir() else "there is no such folder"
        raise RunFolderError(
            f"{path}: {there}; start one with 'mahalens run STUDY --out {path}'"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path / CONFIG}: cannot be read ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path / CONFIG}: is damaged ({error}); start a new run") from None


def _check_free(path: Path, *, force: bool) -> None:
    content = contents(path, apart_from=LOCK)
    if not content:
        return
    if CONFIG not in content:
        raise RunFolderError(
            f"{path}: already holds other files ({content[0]}); give --out a new or empty folder"
        )
    read_config(path)  # not ours to replace unless it is a run
    if not force:
        raise RunFolderError(
            f"{path}: already holds a run; go on with 'mahalens run --resume {path}', "
            "replace it with --force, or give --out another folder"
        )


def _clear(path: Path) -> None:
    """Remove the records of an older run, and nothing else.

    Its configuration stays until the new one is moved into its place, so that the folder is one
    of a run at every moment.
    """
    own = [path / name for name in _RECORDS if name not in (CONFIG, LOCK)]
    own += [file for file in path.glob(".*.tmp") if LEFT_OVER.fullmatch(file.name)]
    for name, suffix in _FOLDERS.items():
        for file in (path / name).glob("*"):
            if file.suffix == suffix or LEFT_OVER.fullmatch(file.name):
                own.append(file)
    own += (path / TENSORBOARD).glob("*/events.out.tfevents.*")
    for file in own:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{file}: cannot be removed ({error.strerror}); give --out another folder"
            ) from None
    below = [folder for folder in (path / TENSORBOARD).glob("*") if folder.is_dir()]
    for folder in (*below, *(path / name for name in (*_FOLDERS, TENSORBOARD))):
        with contextlib.suppress(OSError):  # it is not there, or holds files of the user
            folder.rmdir()


def _lock(path: Path) -> FileLock:
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunFolderError(
            f"{path}: another process is working in it; wait for it or stop it first"
        ) from None
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}); give --out a folder you may write to"
        ) from None
    return lock
