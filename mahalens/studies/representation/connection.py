"""Finds or starts the workers of Dask's distributed engine, and looks whether they will do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from mahalens.errors import InputError
from mahalens.studies.representation import remote
from mahalens.studies.running import Watcher

ANSWER_SECONDS = 10
"""How long a scheduler may take to answer."""
ALLOWED_DEATHS = 10
"""How many local workers may die on one group before Dask gives it up."""


def distributed() -> Any:
    """Dask's distributed engine, imported only here."""
    try:
        import_module("cryptography")  # for workers on this machine that nobody else can use
        return import_module("distributed")
    except ImportError as error:
        raise InputError(
            f"--engine dask: {error.name} is not installed; pip install 'mahalens[cluster]', or "
            "take --engine local"
        ) from None


@contextlib.contextmanager
def workers(scheduler: str | None, most: int) -> Iterator[Any]:
    """A client of the scheduler at this address, or of workers started here."""
    with _quiet():
        if scheduler is not None:
            with client_of(scheduler) as client:
                yield client
            return
        with _local_workers(most) as cluster, distributed().Client(cluster) as client:
            yield client


@contextlib.contextmanager
def client_of(scheduler: str) -> Iterator[Any]:
    """A client of a scheduler that answers."""
    with _quiet():
        _knock(scheduler)
        with warnings.catch_warnings():
            # Versions that matter are compared below; Dask has a table to say it with.
            warnings.filterwarnings("ignore", message="Mismatched versions")
            client = distributed().Client(scheduler, timeout=ANSWER_SECONDS, set_as_default=False)
        with client:
            yield client


def _knock(scheduler: str) -> None:
    """See that a scheduler answers, without a client, which would be long in giving up."""
    connect = import_module("distributed.comm").connect
    keys = distributed().Security().get_connection_args("client")

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
    """One process per core, in a folder that is removed, with keys that nobody else has."""
    dask, config = distributed(), import_module("dask").config
    cores = int(import_module("dask.system").CPU_COUNT)
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
            n_workers=max(1, min(cores, most)),
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # none: a group needs what it needs
            dashboard_address=None,
            # Even without a dashboard a port is opened; not the usual one, where another may be.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            security=dask.Security.temporary(),
            silence_logs=logging.CRITICAL,
            local_directory=folder,
            preload=[remote.__name__],
        ) as cluster,
    ):
        yield cluster


def check_workers(
    client: Any,
    scheduler: str | None,
    here: dict[str, str],
    engine: str,
    watcher: Watcher | None = None,
) -> int:
    """Refuse workers that would give other numbers; returns how many threads there are."""
    where = "--engine dask" if scheduler is None else f"--scheduler {scheduler}"
    same = "install the same on all machines"
    found = client.get_versions(packages=["mahalens"])
    mine = found["client"]["packages"]["distributed"]
    for name, answer in {"the scheduler": found["scheduler"], **found["workers"]}.items():
        who = name if name == "the scheduler" else f"worker {name}"
        packages = answer["packages"] if isinstance(answer, dict) else {}
        if packages.get("mahalens") is None:
            raise InputError(f"{where}: {who} has no mahalens; {same}")
        if packages["distributed"] != mine:
            raise InputError(
                f"{where}: {who} has distributed {packages['distributed']} instead of {mine}; "
                f"{same}"
            )
    other = 0
    for name, there in client.run(remote.machine, on_error="return").items():
        if isinstance(there, OSError):  # it has gone meanwhile
            continue
        if isinstance(there, BaseException):
            raise InputError(f"{where}: worker {name} has no mahalens ({there}); {same}")
        if wrong := remote.differences(here, there, engine):
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
    """Dask's own log is for its developers; what matters is said in our own words."""
    distributed()  # which sets levels of its own as it is imported
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
