"""Jobs on real workers of Dask give the bits of a run in one process, whatever happens to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load
from small_runs import Watcher, config_of, go_on, make_run

from mahalens.errors import InputError, Interrupted
from mahalens.files import read_file
from mahalens.studies.cluster import (
    Errand,
    check_scheduler,
    compute_on_worker,
    computing_now,
    machine,
)
from mahalens.studies.folder import RunFolder, read_config
from mahalens.studies.registry import load_study
from mahalens.studies.run import Context, compute, execute, result_file, start
from mahalens.studies.study import Job

distributed = pytest.importorskip("distributed", reason="needs pip install 'mahalens[cluster]'")
pytest.importorskip("cryptography", reason="needs pip install 'mahalens[cluster]'")
psutil = pytest.importorskip("psutil", reason="comes with distributed")

TINY = {"models": ("relu", "abs2-neg"), "pixels": "raw", "train_size": 60, "hidden": 8}
LONG = {**TINY, "models": ("relu",), "epochs": 100_000, "trials": 3, "group": 1}  # seconds a job


@contextlib.contextmanager
def cluster_of(workers):
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        memory_limit=0,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        silence_logs=100,
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def address():
    """The scheduler of two worker processes."""
    with cluster_of(2) as where:
        yield where


@contextlib.contextmanager
def client_of(address):
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)  # one may have been killed by the test before
        yield client


def dask(address, **how):
    return {"workers": None, "executor": "dask", "scheduler": address, **how}


def states(path):
    """Return the files of jobs under way whose state is kept."""
    return list((path / "checkpoints").glob("[!.]*.state.safetensors"))


def files(path):
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(path)): p.read_bytes() for p in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The long run, never stopped, in one process."""
    return make_run("representation", tmp_path_factory.mktemp("whole") / "run", **LONG).numbers()


def save_often():
    """Keep the state of a job all the time, not every 20 seconds; for a worker."""
    import mahalens.train.solver

    mahalens.train.solver.SAVE_EVERY = 0.2


# --- Numbers ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_do_not_depend_on_where_they_come_from(tmp_path, address):
    assert check_scheduler(address) == 2
    one = make_run("representation", tmp_path / "one", **TINY)
    run = make_run("representation", tmp_path / "run", how=dask(address), **TINY)
    assert run.numbers() == one.numbers()
    assert run.watcher.shares == sorted(run.watcher.shares)
    assert not (run.path / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victims", [1, 2], ids=["one worker", "all that have the data"])
def test_killed_workers_cost_only_time(tmp_path, whole, victims):
    """SIGKILL in the middle of a job, once its state is kept."""
    path, killed = tmp_path / "run", []
    with cluster_of(2) as address, client_of(address) as client:
        client.run(save_often)
        pids = client.run(os.getpid)

        def kill_once():
            if not killed and states(path):
                busy = [where for where, keys in client.processing().items() if keys]
                killed.extend(pids[where] for where in (busy[:1] if victims == 1 else pids))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
            return False

        run = make_run("representation", path, kill_once, how=dask(address), **LONG)
    assert len(killed) == victims, "the job was too short"
    assert run.numbers() == whole


@pytest.mark.slow
def test_a_stopped_run_goes_on_in_one_process_and_then_on_workers(tmp_path, address, whole):
    path = tmp_path / "run"
    with client_of(address) as client:
        client.run(save_often)
        with pytest.raises(Interrupted):
            make_run("representation", path, lambda: bool(states(path)), dask(address), **LONG)
        assert not any(client.run(computing_now).values())
        assert states(path)
        assert list((path / "checkpoints").glob(".*")) == []
        before = files(path)
        time.sleep(0.5)
        assert files(path) == before  # nobody is working in it any more
    first = path / result_file(Job("raw", "relu", 0, 1))
    with pytest.raises(Interrupted):
        go_on(path, first.exists, workers=1)
    assert go_on(path, **dask(address)).numbers() == whole


@pytest.fixture
def own_data(tmp_path):
    rng = np.random.default_rng(0)
    file = tmp_path / "own" / "mine.npz"
    file.parent.mkdir()
    np.savez(file, x=rng.normal(size=(90, 4)), y=np.arange(90) % 3)
    return file


def errand_of(path, job, **changes):
    record = read_config(path)
    return Errand(
        **{"record": record, "job": job, "machine": machine(), "folder": str(path)}
        | {"mark": "checkpoints/.nobody.tmp", **changes}
    )


def ask(client, errand, content=None):
    packed = msgspec.msgpack.encode(content or {})
    task = client.submit(compute_on_worker, packed, msgspec.json.encode(errand), pure=False)
    return task.result(timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "study", ["hybrid", "transfer", "ellipsoids", "gaussian", "representation"]
)
def test_a_worker_without_folder_and_data_sends_the_same_result(tmp_path, address, own_data, study):
    several = (str(own_data),)
    data = {"hybrid": several, "transfer": several, "representation": str(own_data)}.get(study)
    options = {"ellipsoids": {"data": str(own_data), "dim": None, "ranks": (2,)}}.get(study, {})
    options |= {"data": data} if data else {}
    options |= {"train_size": 60, "group": 1} if study == "representation" else {}
    value, config = load_study(study), config_of(study, **options)
    start(value, config, tmp_path / "run").close()
    record = read_config(tmp_path / "run")
    job = value.jobs(config)[0]
    wanted = compute(value, config, job, record, Context(inputs=tmp_path / "run"))
    names = record.inputs or {}
    places = {n: own_data if n == str(own_data) else tmp_path / "run" / n for n in names}
    content = {name: read_file(path) for name, path in places.items()}
    errand = errand_of(tmp_path / "run", job, folder="/nowhere/run")
    shutil.rmtree(tmp_path / "run")
    own_data.unlink()
    with client_of(address) as client:
        result = load(ask(client, errand, content))
    assert result.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if "about" not in name and "seconds" not in name:
            assert torch.equal(result[name].nan_to_num(7), tensor.nan_to_num(7)), name


@pytest.mark.slow
def test_data_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path, address, own_data):
    """Workers live longer than runs: the same file may have other contents by then."""
    options = {"data": (str(own_data),), "trials": 1}
    first = make_run("hybrid", tmp_path / "first", how=dask(address), **options)
    with np.load(own_data) as arrays:
        np.savez(own_data, x=-(arrays["x"] ** 3), y=arrays["y"][::-1])
    second = make_run("hybrid", tmp_path / "second", how=dask(address), **options)
    program = (
        "import sys; from small_runs import make_run; from pathlib import Path\n"
        "make_run('hybrid', Path(sys.argv[1]), data=(sys.argv[2],), trials=1)"
    )
    here = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{here}"}
    arguments = [sys.executable, "-c", program, str(tmp_path / "third"), str(own_data)]
    subprocess.run(arguments, check=True, env=environment, timeout=300)
    third = (tmp_path / "third" / "curves.csv").read_bytes()
    assert (second.path / "curves.csv").read_bytes() == third
    assert (first.path / "curves.csv").read_bytes() != third


# --- Failures ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_worker_raises_reaches_the_user_in_one_line(tmp_path, address):
    study, config = load_study("representation"), config_of("representation", **TINY)
    with start(study, config, tmp_path / "run") as folder:
        damaged = folder.path / "checkpoints" / "raw-relu-0002.training.state.safetensors"
        damaged.parent.mkdir()
        damaged.write_bytes(b"nonsense")
        with pytest.raises(InputError, match="is damaged; delete it to compute this") as caught:
            execute(study, folder, Watcher(), executor="dask", scheduler=address)
        assert "\n" not in str(caught.value)
        damaged.unlink()
        execute(study, folder, Watcher(), executor="dask", scheduler=address)
        assert folder.finished


def break_compute():
    import mahalens.studies.run as module

    def fail(*given):
        raise ZeroDivisionError("one line\nand another")

    module.kept, module.compute = module.compute, fail


def mend_compute():
    import mahalens.studies.run as module

    module.compute = module.kept


@pytest.mark.slow
def test_an_unexpected_failure_is_told_once_and_not_tried_again(tmp_path, address):
    message = r"relu on raw, trials 0 to 1: failed on a worker \(ZeroDivisionError: one line and"
    with client_of(address) as client:
        client.run(break_compute)
        try:
            with pytest.raises(InputError, match=message):
                make_run("representation", tmp_path / "run", how=dask(address), **TINY)
        finally:
            client.run(mend_compute)
    assert go_on(tmp_path / "run", **dask(address)).trials


@pytest.mark.slow
def test_workers_of_other_versions_are_refused(tmp_path, address):
    start(load_study("gaussian"), config_of("gaussian"), tmp_path / "run").close()
    job = Job("", "abs", 0, 3)
    with client_of(address) as client:
        for name in ("mahalens", "torch"):
            errand = errand_of(tmp_path / "run", job, machine={**machine(), name: "0.1"})
            with pytest.raises(InputError, match=rf"a worker has {name} .* instead of 0\.1; make"):
                ask(client, errand)


# --- Schedulers -------------------------------------------------------------------------------


@contextlib.contextmanager
def port(listens):
    """Give a port that takes connections and never says a word, or one nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if listens:
            bound.listen()
        yield bound.getsockname()[1]


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "closed"])
def test_a_scheduler_that_does_not_answer(tmp_path, monkeypatch, listens):
    monkeypatch.setattr("mahalens.studies.cluster.ANSWER_SECONDS", 1)
    study, config = load_study("gaussian"), config_of("gaussian")
    with port(listens) as number:
        where = f"tcp://127.0.0.1:{number}"
        message = f"^--scheduler {where}: does not answer within 1 s; start it with"
        with pytest.raises(InputError, match=message):
            start(study, config, tmp_path / "new", executor="dask", scheduler=where)
        assert not (tmp_path / "new").exists()
        start(study, config, tmp_path / "old").close()
        before = files(tmp_path / "old")
        with pytest.raises(InputError, match=message):
            go_on(tmp_path / "old", **dask(where))
        assert files(tmp_path / "old") == before


@pytest.mark.parametrize("where", ["", "nowhere", "http://127.0.0.1:1", "tls://127.0.0.1:1"])
def test_an_address_that_is_none(where):
    with pytest.raises(InputError, match=f"^--scheduler {where}: cannot be used .*tcp://host:8786"):
        check_scheduler(where)


@pytest.mark.slow
def test_a_budget_needs_workers():
    with cluster_of(0) as where:
        assert check_scheduler(where) == 1
        with pytest.raises(InputError, match="it has no workers yet, so nothing can be estimated"):
            check_scheduler(where, budget=True)


def test_without_dask_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"not installed; pip install 'mahalens\[cluster\]'"):
        start(load_study("gaussian"), config_of("gaussian"), tmp_path / "new", executor="dask")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_dask_is_imported_only_when_asked_for():
    code = (
        "import sys, mahalens.cli, mahalens.studies.run, mahalens.studies.cluster\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'dask', 'distributed', 'tornado'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- Ctrl-C -----------------------------------------------------------------------------------


def left_of_session(session):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(str(process))
    return found


def wait_until(done, seconds):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_stops_everything_and_keeps_what_is_done(tmp_path):
    """Ctrl-C reaches every process of a terminal; so does this signal."""
    out, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    options = "--models relu --pixels raw --epochs 400000 --trials 4 --executor dask --out"
    command = [sys.executable, "-m", "mahalens", "run", "representation", *options.split()]
    running = subprocess.Popen(
        [*command, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    )
    wait_until(lambda: list(out.glob("checkpoints/.cluster.*")) or running.poll() is not None, 300)
    time.sleep(8)  # to be in the middle of a job, also on a busy machine
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 130, errors
    lines = errors.splitlines()
    assert lines[-1] == f"mahalens: stopped; go on with: mahalens run --resume {out}"
    assert "Traceback" not in errors
    assert len(lines) < 8
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not left_of_session(running.pid), 30)
    assert not list(out.glob("checkpoints/.*"))
    assert states(out)
    with RunFolder.open(out) as folder:
        assert not folder.finished
