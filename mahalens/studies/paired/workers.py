"""Computes jobs in several processes, one thread each, and keeps the result of each in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from mahalens.errors import InputError, Interrupted, MahalensError
from mahalens.files import write_file
from mahalens.studies.folder import CHECKPOINTS, read_config, seal
from mahalens.studies.paired.config import Job

Stop = Callable[[], bool]
_LOOK = 0.5  # seconds between looks at whether to stop


def result_file(job: Job) -> str:
    """Where the result of a job is kept until the run is complete, in its folder."""
    return f"{CHECKPOINTS}/{job.name}.safetensors"


def cores() -> int:
    """How many processes can compute at once on this machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def compute(study: str, options: dict[str, Any], job: Job, folder: Path) -> None:
    """Compute a job and write its result, all at once: a job that is stopped leaves nothing."""
    import torch

    from mahalens.studies.paired.measures import pack
    from mahalens.studies.running import one_thread

    known = import_module(f"mahalens.studies.{study}.run").STUDY
    config = msgspec.convert(options, known.config)
    run = _run_of(folder, known.reads(config))
    try:
        with one_thread():
            found = known.measure(config, job)
    except InputError as error:  # of data that looked well before: say where
        raise InputError(f"{job.work} on {job.part}, trial {job.first}: {error}") from None
    # Copies, as measures may be views of one another.
    form = {"memory_format": torch.contiguous_format}
    ready = {name: tensor.detach().cpu().clone(**form) for name, tensor in pack(found).items()}
    write_file(folder / result_file(job), seal(ready, result_file(job), run))


_checked: set[str] = set()  # runs whose data this process has in memory


def _run_of(folder: Path, data: Iterable[str]) -> str:
    """The digest of the run; before this process reads its data, they are checked."""
    from mahalens.studies.running import check_inputs, input_files

    config = read_config(folder)
    if config.digest not in _checked:
        check_inputs(config, input_files(data))
        _checked.add(config.digest)
    return config.digest


def compute_all(
    study: str,
    options: dict[str, Any],
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    should_stop: Stop | None,
) -> Iterator[Job]:
    """Compute jobs and give each when it is done; with one worker, in this process.

    The numbers do not depend on how many workers there are.
    """
    if workers == 1 or len(jobs) <= 1:  # none: all were done when the run was stopped
        for job in jobs:
            _look(should_stop)
            compute(study, options, job, folder)
            yield job
        return
    yield from _in_processes(study, options, jobs, folder, workers, should_stop)


def _in_processes(
    study: str,
    options: dict[str, Any],
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    should_stop: Stop | None,
) -> Iterator[Job]:
    # Its processes are new ones: a forked copy of one that has used OpenMP may hang.
    from joblib.externals.loky import ProcessPoolExecutor

    count = min(workers, len(jobs))
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
                    waiting[pool.submit(compute, study, options, job, folder)] = job
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
            "a process that computed was ended from outside, perhaps for want of memory; what is "
            "done is kept: go on with mahalens run --resume and fewer --workers"
        ) from None
    finally:
        # Also when somebody stops: what was under way is computed again when the run goes on.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _look(should_stop: Stop | None) -> None:
    if should_stop is not None and should_stop():
        raise Interrupted("stopped by the user")


def check_workers(workers: int | None) -> int:
    """The number of processes that an option asks for; one for each core if it does not say."""
    if workers is None:
        return cores()
    if not 1 <= workers <= 1_000:
        raise InputError(f"--workers {workers}: give a whole number from 1 to 1000")
    return workers
