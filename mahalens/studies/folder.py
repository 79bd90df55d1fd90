"""A run as a folder that explains itself. Needs no torch."""

from __future__ import annotations

import contextlib
import csv
import datetime
import hashlib
import io
import platform
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from filelock import FileLock, Timeout

from mahalens._version import __version__
from mahalens.errors import InputError, RunFolderError
from mahalens.files import LEFT_OVER, Fingerprint, contents, read_file, write_file

CONFIG, SUMMARY, TRIALS, CURVES = "config.json", "summary.json", "trials.csv", "curves.csv"
GAUSSIAN, PLOTS, REPORT, LOCK = "gaussian.json", "plots.safetensors", "report.html", ".lock"
COMPARISONS, LEVELS, CHECKSUMS = "comparisons.csv", "levels.csv", "checksums.json"
MEASURES = "measures.safetensors"
WEIGHTS, FIGURES, CHECKPOINTS = "weights", "figures", "checkpoints"
TENSORBOARD = "tensorboard"
_TABLES = (TRIALS, CURVES, COMPARISONS, LEVELS)
_RECORDS = (SUMMARY, CHECKSUMS, GAUSSIAN, MEASURES, PLOTS, REPORT, *_TABLES)
_FOLDERS = {WEIGHTS: ".safetensors", FIGURES: ".png", CHECKPOINTS: ".safetensors"}
Options = TypeVar("Options", bound=msgspec.Struct)


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """One of several runs whose trials were put together: enough to make it again."""

    seed: int
    trials: int
    command: str
    mahalens: str
    torch: str


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``config.json``: everything needed to run it again.

    ``inputs`` are the fingerprints of the files that the run reads, ``checksum`` is that of all
    that decides its numbers. Runs of earlier versions have neither. ``pooled`` lists the runs
    whose trials were put together, if this is not a run of its own.
    """

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
    inputs: dict[str, Fingerprint] | None = None
    checksum: str | None = None
    pooled: list[Pooled] | msgspec.UnsetType = msgspec.UNSET

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides the numbers of the run."""
        machine = (self.device, self.threads, self.engine)
        deciding = (self.study, self.seed, self.protocol, self.scaled, self.options, self.inputs)
        content = msgspec.json.encode((*machine, *deciding), order="deterministic")
        return hashlib.sha256(content).hexdigest()


def now() -> str:
    """Return the time, for the record."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class RunFolder:
    """A run folder, locked for as long as it is open so that two processes cannot share it."""

    def __init__(self, path: Path, config: RunConfig, lock: FileLock) -> None:
        self.path = path
        self.config = config
        self._lock = lock
        self._written: dict[str, str] = {}

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, force: bool = False) -> RunFolder:
        """Start a run in a new or empty folder; with ``force`` also in place of an older run."""
        config = msgspec.structs.replace(config, checksum=config.digest)
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
        if config.checksum not in (None, config.digest):
            raise RunFolderError(
                f"{path / CONFIG}: has changed since the run began (its checksum does not fit); "
                "bring the old file back, or start a new run"
            )
        folder = cls(path, config, _lock(path))
        if config.pooled is not msgspec.UNSET and not folder.finished:
            folder.close()
            raise RunFolderError(
                f"{path}: pools other runs and was stopped; pool them again with --force: "
                f"{config.command}"
            )
        return folder

    def close(self) -> None:
        """Let others use the folder."""
        (self.path / LOCK).unlink(missing_ok=True)
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def options(self, kind: type[Options]) -> Options:
        """Return the options the run was started with, as its study reads them."""
        try:
            return msgspec.convert(upgrade_options(self.config.options), kind)
        except (msgspec.ValidationError, InputError) as error:
            raise RunFolderError(
                f"{self.path / CONFIG}: options cannot be used ({error}); start a new run"
            ) from None

    @property
    def finished(self) -> bool:
        """Whether all results are there."""
        return (self.path / SUMMARY).exists()

    def has(self, path: Path) -> bool:
        """Return whether a checkpoint is there; raise if it is damaged or belongs elsewhere."""
        if not path.exists():
            return False
        self._sealed(path)
        return True

    def write_json(self, name: str, record: object) -> None:
        """Write a record as JSON; numbers that are not finite become null.

        The summary marks a run as finished. Before it the checksums of all records are written.
        """
        content = encode_json(record)
        if name == SUMMARY:
            sums = {**self._written, SUMMARY: hashlib.sha256(content).hexdigest()}
            write_file(self.path / CHECKSUMS, encode_json(sums))
        self._write(name, content)

    def write_csv(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a table; ``None`` and NaN become empty cells."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow("" if cell is None or cell != cell else cell for cell in row)
        self._write(name, text.getvalue().encode())

    def write_tensors(
        self, name: str, tensors: Mapping[str, Any], *, chain: str | None = None
    ) -> None:
        """Write torch tensors as safetensors, with the chain they are the parameters of.

        A checkpoint is sealed (:func:`seal`).
        """
        if name.startswith(f"{CHECKPOINTS}/"):
            write_file(self.path / name, seal(tensors, name, self.config.digest))
            return
        self._write(name, _safetensors(tensors, None if chain is None else {"chain": chain}))

    def _write(self, name: str, content: bytes) -> None:
        write_file(self.path / name, content)
        self._written[name] = hashlib.sha256(content).hexdigest()

    def read_tensors(self, path: Path) -> dict[str, Any]:
        """Read the torch tensors of a checkpoint back."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        content = self._sealed(path)
        try:
            return load(content)
        except SafetensorError as error:
            raise _unusable(path, f"cannot be read ({error})") from None

    def _sealed(self, path: Path) -> bytes:
        """Return the content of a checkpoint of this run that is whole and in its place."""
        try:
            content = read_file(path)
        except OSError as error:
            raise _unusable(path, f"cannot be read ({error.strerror})") from None
        sealed = _seal_of(content)
        if sealed is None:
            if self.config.checksum is None:  # made by an earlier version
                return content
            raise _unusable(path, "is damaged")
        checksum, run, name = sealed
        if _checksum(content, checksum) != checksum:
            raise _unusable(path, "is damaged (its checksum does not fit)")
        if name != path.relative_to(self.path).as_posix():
            raise _unusable(path, f"is {name} under another name")
        if run != self.config.digest:
            raise _unusable(path, "belongs to another run")
        return content

    def changed(self) -> list[str]:
        """Return the records of a finished run that are not as the run wrote them."""
        return [name for name in checksums(self.path) if not is_unchanged(self.path, name)]

    def drop_checkpoints(self) -> None:
        """Remove what only an unfinished run needs."""
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)


def upgrade_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of an earlier version in today's form.

    >>> upgrade_options({"pixels": ["normalized", "raw"], "engine": "local", "trials": 3})
    {'pixels': ['normalised', 'raw'], 'trials': 3}
    """
    new = {name: value for name, value in options.items() if name not in ("engine", "scheduler")}
    pixels = new.get("pixels")
    if isinstance(pixels, str):
        new["pixels"] = pixels.replace("normalized", "normalised")
    elif pixels is not None:
        new["pixels"] = [name.replace("normalized", "normalised") for name in pixels]
    return new


def seal(tensors: Mapping[str, Any], name: str, run: str) -> bytes:
    """Torch tensors as safetensors that can be told from damaged ones and from those of others.

    The metadata has one entry: the SHA-256 of the file, with zeros in this place, the digest of
    the run and the ``name`` of the file in its folder.
    """
    content = _safetensors(tensors, {"seal": f"{_BLANK} {run} {name}"})
    return content.replace(_BLANK.encode(), _checksum(content, _BLANK).encode(), 1)


def _safetensors(tensors: Mapping[str, Any], metadata: dict[str, str] | None) -> bytes:
    # One entry of metadata at most: the library writes several in an order that changes.
    from safetensors.torch import save

    return save({key: t.detach().cpu().contiguous() for key, t in tensors.items()}, metadata)


_BLANK = "0" * 64


def _checksum(content: bytes, checksum: str) -> str:
    """Return the SHA-256 of a sealed file, without the ``checksum`` that it holds."""
    return hashlib.sha256(content.replace(checksum.encode(), _BLANK.encode(), 1)).hexdigest()


def _seal_of(content: bytes) -> tuple[str, str, str] | None:
    """Checksum, run and name in the metadata of a safetensors file; ``None`` if it has no seal."""
    length = int.from_bytes(content[:8], "little")
    try:
        head = msgspec.json.decode(content[8 : 8 + length])
        checksum, run, name = head["__metadata__"]["seal"].split(" ", 2)
    except (msgspec.MsgspecError, LookupError, ValueError, TypeError, AttributeError):
        return None
    return checksum, run, name


def _unusable(path: Path, why: str) -> RunFolderError:
    return RunFolderError(
        f"{path}: {why}; delete it to compute this part again when the run is resumed"
    )


def checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each record of a finished run; none if an earlier version made it."""
    try:
        return msgspec.json.decode(read_file(path / CHECKSUMS), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{path / CHECKSUMS}: cannot be read ({error}); bring it back from a copy, or delete "
            "it to do without checksums"
        ) from None


def is_unchanged(path: Path, name: str) -> bool:
    """Return whether a record of a finished run is as the run wrote it, as far as is known."""
    wanted = checksums(path).get(name)
    try:
        return wanted in (None, hashlib.sha256(read_file(path / name)).hexdigest())
    except OSError:
        return wanted is None


def encode_json(record: object) -> bytes:
    """Return a record as JSON for people to read; numbers that are not finite become null."""
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"


def read_config(path: Path) -> RunConfig:
    """Read ``config.json`` of a run folder, or say why it is none."""
    try:
        return msgspec.json.decode(read_file(path / CONFIG), type=RunConfig)
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
            f"{path}: already holds a run; go on with "
            f"`mahalens run --resume {shlex.quote(str(path))}`, replace it with --force, or give "
            "--out another folder"
        )


def _clear(path: Path) -> None:
    """Remove the records of an older run, and nothing else.

    Its configuration stays until the new one is moved into its place, so that the folder is one
    of a run at every moment.
    """
    files = [path / name for name in _RECORDS]
    files += [file for file in path.glob(".*.tmp") if LEFT_OVER.fullmatch(file.name)]
    for name, suffix in _FOLDERS.items():
        for file in (path / name).glob("*"):
            if file.suffix == suffix or LEFT_OVER.fullmatch(file.name):
                files.append(file)
    files += (path / TENSORBOARD).glob("*/events.out.tfevents.*")
    for file in files:
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
