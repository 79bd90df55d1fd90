"""Computes the jobs of a run on workers of Dask, started here or found at a scheduler's address.

Workers that see the run folder write results and checkpoints into it; others get the files that the
run reads sent along, and send results back. Job for job the numbers are those of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import signal
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from filelock import FileLock

from mahalens._version import __version__
from mahalens.data.files import input_files
from mahalens.errors import InputError, Interrupted, MahalensError, RunFolderError
from mahalens.files import read_file, write_file
from mahalens.studies.folder import CHECKPOINTS, LOCK, RunConfig, RunFolder, read_config, seal
from mahalens.studies.registry import load_study
from mahalens.studies.study import C, Job, Study, forget_data
from mahalens.train.compiled import library, why_not

if TYPE_CHECKING:
    from mahalens.studies.run import Stop, Watcher, _Tally

ANSWER_SECONDS = 10
"""How long a scheduler may take to answer."""
ALLOWED_DEATHS = 10
"""How many workers a job may lose before it is given up."""
STOP_SECONDS = 10.0
"""How long workers may take to keep what they have when a run is stopped."""
SEEN_SECONDS = 90.0
"""How long a file that a worker wrote may take to appear here, as on network drives."""
TELL_EVERY = 2.0
LOOK_EVERY = 0.05
COUNT_EVERY = 2.0


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a worker has to know about a job, besides the files that the run reads."""

    record: RunConfig
    job: Job
    machine: dict[str, str]
    folder: str
    mark: str
    """A file in the folder with a name nobody else has: who sees it sees the same folder."""


# --- On the side of the run -------------------------------------------------------------------


def check_scheduler(scheduler: str | None, *, budget: bool = False) -> float:
    """Refuse a scheduler that does not answer; return how many jobs it computes at once."""
    if scheduler is None:
        _distributed()
        return float(_cores())
    with _client_of(scheduler) as client:
        threads = _check_workers(client, scheduler)
    if budget and not threads:
        raise InputError(
            f"--budget with --scheduler {scheduler}: it has no workers yet, so nothing can be "
            "estimated; start them first, or leave --budget out"
        )
    return float(threads or 1)


def on_cluster(
    study: Study[C],
    config: C,
    folder: RunFolder,
    jobs: Sequence[Job],
    tally: _Tally,
    watcher: Watcher,
    should_stop: Stop | None,
    scheduler: str | None,
) -> Iterator[Job]:
    """Have jobs computed by workers; yield each when its result is in the folder.

    Without a scheduler's address one worker per core is started here, and ended with the run.
    """
    if not jobs:
        return
    kept = {name: folder.path / name for name in folder.config.inputs or {}}
    files = input_files(study.data(config)) | {
        n: path for n, path in kept.items() if path.is_file()
    }
    # One value: Dask would send the entries of a mapping one by one.
    content = msgspec.msgpack.encode({name: read_file(path) for name, path in files.items()})
    with _workers(scheduler, len(jobs)) as client, _mark(folder) as mark:
        _check_workers(client, scheduler, watcher)
        errand = Errand(
            record=folder.config,
            job=jobs[0],
            machine=machine(),
            folder=str(folder.path.resolve()),
            mark=mark,
        )
        spread = _Spread(folder, client, content, errand, tally, scheduler, should_stop)
        try:
            yield from spread.results(jobs, watcher)
        except MahalensError:
            spread.stop()
            raise


@dataclass(eq=False)
class _Spread:
    """Jobs on their way through a cluster."""

    _folder: RunFolder
    _client: Any
    _files: bytes
    _errand: Errand
    _tally: _Tally
    _scheduler: str | None
    _should_stop: Stop | None
    _data: Any = None
    _futures: dict[Any, Job] = field(default_factory=dict)
    _losses: Counter[str] = field(default_factory=Counter)
    _workers: int = 0
    _counted: float = 0.0

    def results(self, jobs: Sequence[Job], watcher: Watcher) -> Iterator[Job]:
        """Yield each job as its result arrives."""
        by_name = {job.name: job for job in jobs}
        left = set(by_name)

        def heard(event: tuple[float, tuple[str, float, str]]) -> None:
            name, share, text = event[1]
            if name in left:
                self._tally.update(by_name[name], share, f"{text}, {self._workers} workers")

        self._client.subscribe_topic(self._errand.mark, heard)
        self._look()
        if not self._workers:
            watcher.note("the scheduler has no workers yet; waiting for them")
        for job in jobs:
            self._submit(job)
        while self._futures:
            self._look()
            for future, job in list(self._futures.items()):
                if future.done() and self._receive(future, job):
                    left.discard(job.name)
                    yield job
            time.sleep(LOOK_EVERY)

    def _look(self) -> None:
        """Stop if the user wants to; count the workers now and then."""
        if self._should_stop is not None and self._should_stop():
            raise Interrupted("stopped by the user")
        if time.monotonic() - self._counted > COUNT_EVERY:
            self._counted = time.monotonic()
            if self._client.status == "running":
                self._workers = len(self._client.nthreads())
            elif self._client.status == "closed":
                raise InputError(self._lost())

    def _submit(self, job: Job) -> None:
        if self._data is None or self._data.status in ("cancelled", "lost"):
            while not self._workers:
                time.sleep(LOOK_EVERY)
                self._look()
            # To every worker, so that the files outlive any of them.
            self._data = self._client.scatter(self._files, broadcast=True, hash=False)
        errand = msgspec.structs.replace(self._errand, job=job)
        future = self._client.submit(
            compute_on_worker,
            self._data,
            msgspec.json.encode(errand),
            key=f"mahalens-{job.name}-{secrets.token_hex(8)}",
            pure=False,
        )
        self._futures[future] = job

    def _receive(self, future: Any, job: Job) -> bool:
        """Return whether the result of a job is in the folder; send a lost job out again."""
        status = future.status
        if status == "finished":
            try:
                result = future.result(timeout=5)
            except TimeoutError:  # its worker died with it: it is computed again
                return False
            except Exception as error:
                result = error
            if isinstance(result, bytes):
                self._keep(job, result)
                del self._futures[future]
                return True
        elif status == "error":
            result = future.exception()
            if not isinstance(result, _distributed().KilledWorker):
                raise _failure(job, result)
        del self._futures[future]
        if self._client.status != "running":
            raise InputError(self._lost())
        self._losses[job.name] += 1
        if self._losses[job.name] >= ALLOWED_DEATHS:
            raise InputError(
                f"{job}: lost its worker again and again; has each enough memory, and the same "
                f"mahalens? {self._resume()}"
            )
        self._submit(job)
        return False

    def _keep(self, job: Job, result: bytes) -> None:
        from mahalens.studies.run import result_file

        path = self._folder.path / result_file(job)
        if result:
            write_file(path, result)
        until = time.monotonic() + SEEN_SECONDS
        while not path.exists():
            if time.monotonic() > until:
                raise InputError(
                    f"{path}: a worker wrote it, but it cannot be seen here; is it the same drive? "
                    f"{self._resume()}"
                )
            time.sleep(LOOK_EVERY)
            self._look()

    def stop(self) -> None:
        """Let the workers keep what they have, for a while."""
        with contextlib.suppress(Exception):  # there may be no scheduler any more
            self._client.cancel(list(self._futures), force=True)
            until = time.monotonic() + STOP_SECONDS
            while time.monotonic() < until:
                if not any(self._client.run(computing_now, on_error="ignore").values()):
                    return
                time.sleep(LOOK_EVERY)

    def _resume(self) -> str:
        where = shlex.quote(str(self._folder.path))
        return f"Finished jobs are kept: go on with 'mahalens run --resume {where}'"

    def _lost(self) -> str:
        return f"--scheduler {self._scheduler}: does not answer any more. {self._resume()}"


def _failure(job: Job, error: BaseException) -> MahalensError:
    """Return what went wrong on a worker, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MahalensError):
        return InputError(text)
    return InputError(f"{job}: failed on a worker ({type(error).__name__}: {text})")


@contextlib.contextmanager
def _mark(folder: RunFolder) -> Iterator[str]:
    """Keep a file by which workers know the folder, for as long as the run goes on."""
    name = f"{CHECKPOINTS}/.cluster.{secrets.randbits(60)}.tmp"
    write_file(folder.path / name, b"")
    try:
        yield name
    finally:
        (folder.path / name).unlink(missing_ok=True)


# --- Finding or starting workers --------------------------------------------------------------


def _distributed() -> Any:
    """Return Dask's distributed package, imported only here."""
    try:
        import cryptography  # noqa: F401 (for workers on this machine that nobody else can use)
        import distributed
    except ImportError as error:
        raise InputError(
            f"--executor dask: {error.name} is not installed; pip install 'mahalens[cluster]', or "
            "take --executor processes"
        ) from None
    return distributed


def _cores() -> int:
    return int(import_module("dask.system").CPU_COUNT)


@contextlib.contextmanager
def _workers(scheduler: str | None, most: int) -> Iterator[Any]:
    """Yield a client of the scheduler at this address, or of workers started here."""
    with _quiet():
        if scheduler is not None:
            with _client_of(scheduler) as client:
                yield client
            return
        with _local_workers(most) as cluster, _distributed().Client(cluster) as client:
            yield client


@contextlib.contextmanager
def _client_of(scheduler: str) -> Iterator[Any]:
    """Yield a client of a scheduler that answers."""
    with _quiet():
        _knock(scheduler)
        with warnings.catch_warnings():
            # Versions that matter are compared below; Dask prints a table.
            warnings.filterwarnings("ignore", message="Mismatched versions")
            client = _distributed().Client(scheduler, timeout=ANSWER_SECONDS, set_as_default=False)
        with client:
            yield client


def _knock(scheduler: str) -> None:
    """Refuse a scheduler that does not answer, without a client, which would be long about it."""
    connect = import_module("distributed.comm").connect
    keys = _distributed().Security().get_connection_args("client")

    async def knock() -> None:
        comm = await asyncio.wait_for(connect(scheduler, **keys), ANSWER_SECONDS)
        await comm.close()

    try:
        # In a thread: the caller may have an event loop of its own.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, knock()).result()
    except OSError:
        raise InputError(
            f"--scheduler {scheduler}: does not answer within {ANSWER_SECONDS} s; start it with "
            "'dask scheduler', or leave --scheduler out for workers on this machine"
        ) from None
    except (ValueError, TypeError, ImportError, OverflowError) as error:
        raise InputError(
            f"--scheduler {scheduler}: cannot be used ({' '.join(str(error).split())}); give an "
            "address such as tcp://host:8786"
        ) from None


@contextlib.contextmanager
def _local_workers(most: int) -> Iterator[Any]:
    """Start one process per core, in a folder that is removed, with keys that nobody else has."""
    dask, config = _distributed(), import_module("dask").config
    with (
        tempfile.TemporaryDirectory(prefix="mahalens-", ignore_cleanup_errors=True) as folder,
        config.set(
            {
                "temporary-directory": folder,
                "distributed.scheduler.allowed-failures": ALLOWED_DEATHS,
                "distributed.scheduler.http.routes": [],  # no pages for anybody
                "distributed.worker.http.routes": [],
            }
        ),
        dask.LocalCluster(
            n_workers=max(1, min(_cores(), most)),
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # none: a job needs what it needs
            dashboard_address=None,
            # Even without a dashboard a port is opened; not the usual one, where another may be.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            security=dask.Security.temporary(),
            silence_logs=logging.CRITICAL,
            local_directory=folder,
            preload=[__name__],
        ) as cluster,
    ):
        yield cluster


def _check_workers(client: Any, scheduler: str | None, watcher: Watcher | None = None) -> int:
    """Refuse workers that would give other numbers; return how many threads there are."""
    where = "--executor dask" if scheduler is None else f"--scheduler {scheduler}"
    same = "install the same on all machines"
    versions = client.get_versions(packages=["mahalens"])
    mine = versions["client"]["packages"]["distributed"]
    for name, answer in {"the scheduler": versions["scheduler"], **versions["workers"]}.items():
        who = name if name == "the scheduler" else f"worker {name}"
        packages = answer["packages"] if isinstance(answer, dict) else {}
        if packages.get("mahalens") is None:
            raise InputError(f"{where}: {who} has no mahalens; {same}")
        if packages["distributed"] != mine:
            raise InputError(
                f"{where}: {who} has distributed {packages['distributed']} instead of {mine}; "
                f"{same}"
            )
    here, other = machine(), 0
    for name, there in client.run(machine, on_error="return").items():
        if isinstance(there, OSError):  # it has gone meanwhile
            continue
        if isinstance(there, BaseException):
            raise InputError(f"{where}: worker {name} has no mahalens ({there}); {same}")
        if wrong := differences(here, there):
            raise InputError(f"{where}: worker {name} has {', '.join(wrong)}; {same}")
        other += there["engine"] != here["engine"]
    if other and watcher is not None:
        watcher.note(
            f"{other} workers have another processor or compiler: the last digits of their results "
            "may differ from those made here"
        )
    return sum(client.nthreads().values())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's own log, which is for its developers."""
    _distributed()  # which sets levels of its own as it is imported
    roots = ("distributed", "tornado", "asyncio")
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in roots]
    loud = [logging.getLogger(name) for name in sorted({*roots, *names})]
    before = [logger.level for logger in loud]
    for logger in loud:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loud, before, strict=True):
            logger.setLevel(level)


# --- On the side of a worker ------------------------------------------------------------------

_computing: set[int] = set()  # threads of this process that compute a job


def machine() -> dict[str, str]:
    """Return what the numbers of a result depend on; ``engine`` names compiler and processor."""
    compiled = library()
    engine = f"none ({why_not()})"
    if compiled is not None:  # without length and checksum, which differ from build to build
        engine = "-".join(Path(str(compiled._name)).stem.split("-")[:2])
    return {"mahalens": __version__, "torch": str(torch.__version__), "engine": engine}


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return why a worker cannot give the same numbers, in a few words each.

    >>> here = {"mahalens": "1", "torch": "2", "engine": "a"}
    >>> differences(here, {"mahalens": "1", "torch": "3", "engine": "none (no compiler)"})
    ['torch 3 instead of 2', 'compiled engine: none (no compiler)']
    """
    wrong = [
        f"{name} {there[name]} instead of {here[name]}"
        for name in ("mahalens", "torch")
        if there[name] != here[name]
    ]
    if there["engine"].startswith("none") and not here["engine"].startswith("none"):
        wrong.append(f"compiled engine: {there['engine']}")
    return wrong


def computing_now() -> int:
    """Return how many threads of this process compute a job."""
    return len(_computing)


def dask_setup(worker: object) -> None:
    """Prepare a local worker, called by Dask: Ctrl-C is for the run, which then stops it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def compute_on_worker(files: bytes, errand: bytes) -> bytes:
    """Compute a job as a task of Dask.

    Its result is written into the run folder, if the folder is seen from here, and nothing is
    returned; else the result as safetensors. A job with a result is not computed again, so that a
    task may run any number of times.
    """
    worker: Any = _distributed().get_worker()
    key = worker.get_current_task()
    order = msgspec.json.decode(errand, type=Errand)
    spoken = 0.0

    def report(share: float, text: str) -> None:
        nonlocal spoken
        if time.monotonic() - spoken >= TELL_EVERY:
            spoken = time.monotonic()
            worker.log_event(order.mark, [order.job.name, share, text])

    def unwanted() -> bool:
        """Return whether the run was stopped, or has vanished: nobody holds the future then."""
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    _computing.add(threading.get_ident())
    try:
        return _compute(files, order, report, unwanted)
    finally:
        _computing.discard(threading.get_ident())


def _compute(files: bytes, errand: Errand, report: Any, unwanted: Stop) -> bytes:
    from mahalens.studies.run import Context, compute, result_file

    # For good: another job may be computed in this process, in another thread.
    torch.set_num_threads(1)
    if wrong := differences(errand.machine, machine()):
        raise InputError(f"a worker has {', '.join(wrong)}; make them equal and resume the run")
    record, job = errand.record, errand.job
    folder = _seen(errand)
    if folder is not None and (folder.path / result_file(job)).exists():
        return b""
    study = load_study(record.study)
    with _inputs(study, errand, files, folder) as (options, here, inputs):
        config = msgspec.convert(options, study.config)
        context = Context(folder=folder, inputs=inputs, on_report=report, stop=unwanted)
        result = compute(study, config, here, record, context)
    sealed = seal(result, result_file(job), record.digest)
    if folder is None:
        return sealed
    try:
        _put(folder.path / result_file(job), sealed)
    except RunFolderError:  # seen, but not ours to write to
        return sealed
    context.forget()
    return b""


def _seen(errand: Errand) -> RunFolder | None:
    """Return the run folder, if this worker sees the same one; the sender holds its lock."""
    path = Path(errand.folder)
    try:
        if not (path / errand.mark).exists():
            return None
        return RunFolder(path, read_config(path), FileLock(path / LOCK))
    except (OSError, RunFolderError):
        return None


def _put(path: Path, content: bytes) -> None:
    """Write a file whole, under a temporary name that no process of any machine shares."""
    temporary = path.with_name(f".{path.name}.{secrets.randbits(60)}.tmp")
    write_file(temporary, content)
    temporary.replace(path)


_served = ""  # the run whose data this process has in memory
_unpacked: dict[str, tempfile.TemporaryDirectory[str]] = {}  # files sent along, by run


@contextlib.contextmanager
def _inputs(
    study: Study[Any], errand: Errand, files: bytes, folder: RunFolder | None
) -> Iterator[tuple[dict[str, Any], Job, Path]]:
    """Give a job the files that its run reads: those of this machine if they are the same.

    Otherwise the files that came along are written to a folder of this process; data sets by name
    are found there, and paths of the user's files are replaced in the options and in the job.
    """
    from mahalens.studies.run import check_inputs

    global _served
    record, job = errand.record, errand.job
    if record.digest != _served:  # files of another run may have had the same names
        forget_data()
        _served = record.digest
    options = dict(record.options)
    data = study.data(msgspec.convert(options, study.config))
    same = True
    try:
        check_inputs(record, input_files(data))
    except InputError:
        same = False
    if same and folder is not None:
        yield options, job, folder.path
        return
    place = _unpack(record.digest, files)
    if same:
        yield options, job, Path(place)
        return
    chosen: Any = options["data"]
    moved = [_moved(name, place) for name in ([chosen] if isinstance(chosen, str) else chosen)]
    options["data"] = moved[0] if isinstance(chosen, str) else moved
    if study.variant == "data":
        job = msgspec.structs.replace(job, variant=_moved(job.variant, place))
    before = os.environ.get(DATA_VARIABLE)
    os.environ[DATA_VARIABLE] = place
    try:
        yield options, job, Path(place)
    finally:
        os.environ.pop(DATA_VARIABLE, None)
        if before is not None:
            os.environ[DATA_VARIABLE] = before


def _unpack(run: str, files: bytes) -> str:
    """Write the files of a run, once for all of its jobs in this process."""
    if run not in _unpacked:
        folder = tempfile.TemporaryDirectory(prefix="mahalens-data-")
        for name, content in msgspec.msgpack.decode(files, type=dict[str, bytes]).items():
            path = Path(folder.name) / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        _unpacked[run] = folder
    return _unpacked[run].name


def _moved(data: str, place: str) -> str:
    moved = Path(place) / data.lstrip("/")
    return str(moved) if moved.exists() and ("/" in data or "." in data) else data


DATA_VARIABLE = "MAHALENS_DATA"
"""Where data sets by name are looked for."""
