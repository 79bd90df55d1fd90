"""Spreads groups over the workers of Dask's distributed engine, here or anywhere."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

from mahalens.errors import InputError, Interrupted, MahalensError
from mahalens.files import write_file
from mahalens.studies.folder import CHECKPOINTS, RunFolder
from mahalens.studies.representation import remote
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.connection import (
    check_workers,
    client_of,
    distributed,
    workers,
)
from mahalens.studies.representation.costs import Costs
from mahalens.studies.representation.local import Stop, Tally, Work, label
from mahalens.studies.representation.problem import Group, Problem, result_file
from mahalens.studies.running import Watcher
from mahalens.train.compiled import why_not

MOST_LOSSES = 10
"""How many workers a group may lose before it is given up."""
STOP_SECONDS = 10.0
"""How long workers may take to keep what they have when a run is stopped."""
SEEN_SECONDS = 90.0
"""How long a file that a worker wrote may take to appear here, as on network drives."""
LOOK_EVERY = 0.05
COUNT_EVERY = 2.0


def check_scheduler(config: RepresentationConfig) -> float:
    """Look whether workers can be had, before anything is written.

    Returns how many times as fast as this machine they are, by their threads.
    """
    if config.engine != "dask":
        return 1.0
    if config.scheduler is None:
        distributed()
        return 1.0
    engine = "torch" if why_not() else "compiled"
    with client_of(config.scheduler) as client:
        threads = check_workers(client, config.scheduler, remote.machine(), engine)
    if config.budget is not None and not threads:
        raise InputError(
            f"--budget with --scheduler {config.scheduler}: it has no workers yet, so nothing can "
            "be estimated; start them first, or leave --budget out"
        )
    return threads / torch.get_num_threads() if threads else 1.0


def run_on_cluster(
    folder: RunFolder,
    problem: Problem,
    groups: Sequence[Group],
    costs: Costs,
    watcher: Watcher,
    should_stop: Stop | None,
    *,
    engine: str,
    scheduler: str | None,
) -> None:
    """Have the groups that have no result yet trained by workers, and see a result for each.

    Without a scheduler's address one worker per core is started here, and ended with the run.
    """
    tally = _SpreadTally(problem, groups, costs)
    waiting = tally.waiting(folder, groups)
    report = watcher.stage("training")
    if not waiting:
        return
    here = remote.machine()
    with workers(scheduler, len(waiting)) as client, _mark(folder) as mark:
        check_workers(client, scheduler, here, engine, watcher)
        job = remote.Job(
            config=problem.config,
            about=remote.about(problem.data),
            group=waiting[0],
            engine=engine,
            machine=here,
            folder=str(folder.path.resolve()),
            run=folder.config.digest,
            mark=mark,
        )
        spread = _Spread(folder, client, remote.pack(problem.data), job, scheduler, should_stop)
        try:
            for done in spread.results(waiting, watcher):
                if isinstance(done, Group):
                    tally.finish(done)
                report(tally.now(spread.shares, spread.workers))
        except MahalensError:
            spread.stop()
            raise
    report(Work(100.0, "all groups done"))


class _SpreadTally(Tally):
    """A tally of groups that are under way at the same time."""

    def now(self, shares: dict[Group, float], workers: int) -> Work:
        part = sum(self._seconds(group) * share for group, share in shares.items())
        left = f"{workers} worker{'s' * (workers != 1)}, {len(shares)} groups to go"
        return Work(min(99.9, 100 * (self._done + part) / self._total), left)


class _Spread:
    """Groups on their way through a cluster."""

    def __init__(
        self,
        folder: RunFolder,
        client: Any,
        packed: bytes,
        job: remote.Job,
        scheduler: str | None,
        should_stop: Stop | None,
    ) -> None:
        self.workers = 0
        self.shares: dict[Group, float] = {}
        self._folder = folder
        self._client = client
        self._packed = packed
        self._data: Any = None
        self._job = job
        self._scheduler = scheduler
        self._should_stop = should_stop
        self._futures: dict[Any, Group] = {}
        self._losses: Counter[Group] = Counter()
        self._counted = 0.0

    def results(self, groups: Sequence[Group], watcher: Watcher) -> Iterator[Group | None]:
        """Each group as its result arrives, and now and then ``None``."""
        by_name = {group.name: group for group in groups}
        self.shares = dict.fromkeys(groups, 0.0)

        def heard(event: tuple[float, tuple[str, float]]) -> None:
            name, share = event[1]
            if by_name[name] in self.shares:
                self.shares[by_name[name]] = share

        self._client.subscribe_topic(self._job.mark, heard)
        self._look()
        if not self.workers:
            watcher.note("the scheduler has no workers yet; waiting for them")
        for group in groups:
            self._submit(group)
        while self._futures:
            self._look()
            for future, group in list(self._futures.items()):
                if future.done() and self._receive(future, group):
                    self.shares.pop(group)
                    yield group
            yield None
            time.sleep(LOOK_EVERY)

    def _look(self) -> None:
        """Whether to go on, and with how many workers."""
        if self._should_stop is not None and self._should_stop():
            raise Interrupted("stopped by the user")
        if time.monotonic() - self._counted > COUNT_EVERY:
            self._counted = time.monotonic()
            if self._client.status == "running":
                self.workers = len(self._client.nthreads())
            elif self._client.status == "closed":
                raise InputError(self._lost())

    def _submit(self, group: Group) -> None:
        if self._data is None or self._data.status in ("cancelled", "lost"):
            while not self.workers:
                time.sleep(LOOK_EVERY)
                self._look()
            # To every worker, so that the samples outlive any of them.
            self._data = self._client.scatter(self._packed, broadcast=True, hash=False)
        job = msgspec.structs.replace(self._job, group=group)
        future = self._client.submit(
            remote.train_on_worker,
            self._data,
            msgspec.json.encode(job),
            key=f"mahalens-{group.name}-{secrets.token_hex(8)}",
            pure=False,
        )
        self._futures[future] = group

    def _receive(self, future: Any, group: Group) -> bool:
        """Whether the result of a group is in the folder; a group that was lost goes out again."""
        status = future.status
        if status == "finished":
            try:
                result = future.result(timeout=5)
            except TimeoutError:  # its worker died with it: it is trained again
                return False
            except Exception as error:
                result = error
            if isinstance(result, bytes):
                self._keep(group, result)
                del self._futures[future]
                return True
        elif status == "error":
            result = future.exception()
            if not isinstance(result, distributed().KilledWorker):
                raise _told(group, result)
        del self._futures[future]
        if self._client.status != "running":
            raise InputError(self._lost())
        self._losses[group] += 1
        if self._losses[group] >= MOST_LOSSES:
            raise InputError(
                f"{label(group)}: lost its worker again and again; has each the memory and the "
                f"same mahalens? "
                f"{self._resume()}"
            )
        self._submit(group)
        return False

    def _keep(self, group: Group, result: bytes) -> None:
        path = self._folder.path / result_file(group)
        if result:
            write_file(path, result)
        until = time.monotonic() + SEEN_SECONDS
        while not path.exists():
            if time.monotonic() > until:
                raise InputError(
                    f"{path}: written by a worker and not to be seen here; is it the same drive? "
                    f"{self._resume()}"
                )
            time.sleep(LOOK_EVERY)
            self._look()
        self._folder.checkpoint(group.name).unlink(missing_ok=True)

    def stop(self) -> None:
        """Have the workers keep what they have, as long as it takes but not for ever."""
        with contextlib.suppress(Exception):  # there may be no scheduler any more
            self._client.cancel(list(self._futures), force=True)
            until = time.monotonic() + STOP_SECONDS
            while time.monotonic() < until:
                if not any(self._client.run(remote.training_now, on_error="ignore").values()):
                    return
                time.sleep(LOOK_EVERY)

    def _resume(self) -> str:
        where = shlex.quote(str(self._folder.path))
        return f"What is done is kept: go on with 'mahalens run --resume {where}'"

    def _lost(self) -> str:
        return f"--scheduler {self._scheduler}: does not answer any more. {self._resume()}"


@contextlib.contextmanager
def _mark(folder: RunFolder) -> Iterator[str]:
    """A file by which workers know the folder, for as long as the run goes on."""
    name = f"{CHECKPOINTS}/.cluster.{secrets.randbits(60)}.tmp"
    write_file(folder.path / name, b"")
    try:
        yield name
    finally:
        (folder.path / name).unlink(missing_ok=True)


def _told(group: Group, error: BaseException) -> MahalensError:
    """What went wrong on a worker, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MahalensError):
        return InputError(f"{label(group)}: {text}")
    return InputError(f"{label(group)}: failed on a worker ({type(error).__name__}: {text})")
