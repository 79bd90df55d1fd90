"""Groups spread over real worker processes give the bits of a run in one process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from mahalens.data.labelled import LabelledData
from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.studies.folder import CHECKPOINTS, RunFolder, read_config
from mahalens.studies.representation import cluster as spreading
from mahalens.studies.representation import connection, remote
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.costs import Cost
from mahalens.studies.representation.local import run_locally
from mahalens.studies.representation.problem import Problem, result_file
from mahalens.studies.representation.run import carry_on, start
from mahalens.train.compiled import why_not

distributed = pytest.importorskip("distributed", reason="needs pip install 'mahalens[cluster]'")
pytest.importorskip("cryptography", reason="needs pip install 'mahalens[cluster]'")
psutil = pytest.importorskip("psutil", reason="comes with distributed")

ENGINE = "torch" if why_not() else "compiled"
TINY: dict[str, Any] = {
    "data": "digits",
    "models": ("relu", "abs2-neg"),
    "pixels": ("raw",),
    "epochs": 40,
    "trials": 3,
    "train_size": 60,
    "seed": 3,
    "group": 2,
    "hidden": 8,
}
LONG = {"epochs": 30_000, "trials": 3, "group": 1, "models": ("relu",)}  # seconds a group


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[tuple[float, float, str]] = []

    def stage(self, name: str) -> Callable[[Any], None]:
        return lambda work: self.shown.append(work.progress)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The scheduler of two worker processes."""
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        memory_limit=0,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        silence_logs=100,
    ) as cluster:
        yield cluster.scheduler_address


def begin(path: Path, **options: Any) -> tuple[RunFolder, Problem]:
    config = RepresentationConfig(**{**TINY, **options})
    return start(config, path), Problem.from_config(config)


def spread(
    folder: RunFolder,
    problem: Problem,
    address: str | None,
    should_stop: Callable[[], bool] | None = None,
    watcher: Notes | None = None,
) -> None:
    spreading.run_on_cluster(
        folder,
        problem,
        problem.groups(),
        dict.fromkeys(problem.config.models, Cost(1e-9, 1e-6, 1e-6)),
        watcher or Notes(),
        should_stop,
        engine=ENGINE,
        scheduler=address,
    )


def locally(
    folder: RunFolder, problem: Problem, should_stop: Callable[[], bool] | None = None
) -> None:
    costs = dict.fromkeys(problem.config.models, Cost(1e-9, 1e-6, 1e-6))
    run_locally(folder, problem, problem.groups(), costs, Notes(), should_stop, engine=ENGINE)


def results(folder: RunFolder, problem: Problem) -> dict[str, bytes]:
    """Every number of every group, bit for bit, but for the time it took."""
    found = {}
    for group in problem.groups():
        for name, tensor in folder.read_tensors(folder.path / result_file(group)).items():
            if name != "seconds":
                found[f"{group.name}/{name}"] = (
                    f"{tensor.dtype}{list(tensor.shape)}".encode() + tensor.numpy().tobytes()
                )
    return found


def undisturbed(path: Path, **options: Any) -> dict[str, bytes]:
    folder, problem = begin(path, **options)
    with folder:
        locally(folder, problem)
        return results(folder, problem)


@pytest.fixture(scope="module")
def long_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return undisturbed(tmp_path_factory.mktemp("long") / "local", **LONG)


def files(path: Path) -> dict[str, bytes]:
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(path)): p.read_bytes() for p in found}


def checkpoints(folder: RunFolder) -> list[str]:
    """Names of groups under way whose state is kept."""
    kept = (folder.path / CHECKPOINTS).glob("[!.]*.safetensors")
    return [p.name for p in kept if ".result." not in p.name]


@contextlib.contextmanager
def client_of(address: str) -> Iterator[Any]:
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2)  # one may have been killed by the test before
        yield client


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_is_the_same_wherever_it_ran(tmp_path, address, size):
    watcher = Notes()
    folder, problem = begin(tmp_path / "spread", group=size)
    with folder:
        spread(folder, problem, address, watcher=watcher)
        assert results(folder, problem) == undisturbed(tmp_path / "local", group=size)
        assert checkpoints(folder) == []
        assert list((folder.path / CHECKPOINTS).glob(".*")) == []
    done = [share for share, _, _ in watcher.shown]
    assert done == sorted(done)
    assert done[-1] == 100
    assert any("2 workers" in state for _, _, state in watcher.shown)


def test_workers_started_here(tmp_path):
    folder, problem = begin(tmp_path / "dask", engine="dask", pixels=("normalized",))
    with folder:
        spread(folder, problem, None)
        expected = undisturbed(tmp_path / "local", pixels=("normalized",))
        assert results(folder, problem) == expected
        carry_on(folder, Notes())  # all groups have their results: no worker is started again
        assert folder.finished


def test_a_killed_worker_costs_only_time(tmp_path, address, long_results):
    """SIGKILL to a worker in the middle of a group, once its state is kept."""
    folder, problem = begin(tmp_path / "spread", **LONG)
    killed: list[int] = []
    with folder, client_of(address) as client:
        client.run(save_often)
        pids = client.run(os.getpid)

        def kill_once() -> bool:
            if not killed and checkpoints(folder):
                busy = [where for where, keys in client.processing().items() if keys]
                killed.append(pids[busy[0]])
                os.kill(killed[0], signal.SIGKILL)
            return False

        spread(folder, problem, address, kill_once)
        assert killed, "nothing was killed; the group was too short"
        assert results(folder, problem) == long_results
        assert checkpoints(folder) == []


def test_the_samples_are_sent_again_when_no_worker_has_them(tmp_path, address, long_results):
    folder, problem = begin(tmp_path / "spread", **LONG)
    killed: list[int] = []
    with folder, client_of(address) as client:
        client.run(save_often)
        pids = client.run(os.getpid)

        def kill_all() -> bool:
            if not killed and checkpoints(folder):
                killed.extend(pids.values())
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
            return False

        spread(folder, problem, address, kill_all)
        assert len(killed) == 2
        assert results(folder, problem) == long_results


def save_often(every: float = 0.2) -> None:
    """In a worker: keep the state of a group not every 20 seconds, but all the time."""
    import mahalens.train.solver

    mahalens.train.solver.SAVE_EVERY = every


def test_a_stopped_run_goes_on_in_one_process(tmp_path, address, long_results):
    folder, problem = begin(tmp_path / "spread", **LONG)
    with folder, client_of(address) as client:
        client.run(save_often)
        with pytest.raises(Interrupted):
            spread(folder, problem, address, lambda: bool(checkpoints(folder)))
        assert not any(client.run(remote.training_now).values())
        assert checkpoints(folder)
        assert list((folder.path / CHECKPOINTS).glob(".*")) == []
        before = files(folder.path)
        time.sleep(0.5)
        assert files(folder.path) == before  # nobody is working in it any more
        locally(folder, problem)
        assert results(folder, problem) == long_results


def test_a_run_stopped_in_one_process_goes_on_on_workers(tmp_path, address):
    folder, problem = begin(tmp_path / "spread")
    with folder:
        first = folder.path / result_file(problem.groups()[0])
        with pytest.raises(Interrupted):
            locally(folder, problem, first.exists)
        written = first.stat().st_mtime_ns
        spread(folder, problem, address)
        assert first.stat().st_mtime_ns == written
        assert results(folder, problem) == undisturbed(tmp_path / "local")


def test_a_worker_that_does_not_see_the_folder_sends_its_result(tmp_path, address, monkeypatch):
    folder, problem = begin(tmp_path / "spread")
    written: list[Path] = []

    def write(path: Path, content: bytes) -> None:
        written.append(path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    monkeypatch.setattr(
        spreading, "_mark", lambda folder: contextlib.nullcontext("checkpoints/.elsewhere.1.tmp")
    )
    monkeypatch.setattr(spreading, "write_file", write)
    with folder:
        spread(folder, problem, address)
        assert len(written) == len(problem.groups())
        assert results(folder, problem) == undisturbed(tmp_path / "local")


def test_what_a_worker_raises_reaches_the_user_in_one_line(tmp_path, address):
    folder, problem = begin(tmp_path / "spread")
    with folder:
        damaged = folder.checkpoint(problem.groups()[1].name)
        damaged.parent.mkdir()
        damaged.write_bytes(b"nonsense")
        with pytest.raises(InputError, match=r"^relu raw, trial 2: .*is damaged") as caught:
            spread(folder, problem, address)
        assert "\n" not in str(caught.value)
        damaged.unlink()
        spread(folder, problem, address)
        assert results(folder, problem) == undisturbed(tmp_path / "local")


def test_an_unexpected_failure_is_told_once_and_not_tried_again(tmp_path, address):
    folder, problem = begin(tmp_path / "spread", trials=1, group=1, models=("relu",))
    broken = "raise ZeroDivisionError('one line\\nand another')"
    with folder, client_of(address) as client:
        client.run(lambda: setattr(remote, "train_group", lambda *a, **k: exec(broken)))
        try:
            with pytest.raises(InputError, match=r"ZeroDivisionError: one line and another\)$"):
                spread(folder, problem, address)
        finally:
            client.run(restore_train_group)
        spread(folder, problem, address)


def restore_train_group() -> None:
    from mahalens.studies.representation import remote, training

    remote.train_group = training.train_group


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("port", [silent_port, closed_port])
def test_a_scheduler_that_does_not_answer(tmp_path, monkeypatch, port):
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 1)
    with port() as number:
        where = f"tcp://127.0.0.1:{number}"
        told = f"^--scheduler {where}: does not answer within 1 s; start it with"
        with pytest.raises(InputError, match=told):
            begin(tmp_path / "new", engine="dask", scheduler=where)
        assert not (tmp_path / "new").exists()
        folder, problem = begin(tmp_path / "old")
        with folder:
            with pytest.raises(Interrupted):
                locally(folder, problem, (folder.path / result_file(problem.groups()[0])).exists)
            before = files(folder.path)
            with pytest.raises(InputError, match=told):
                carry_on(folder, Notes(), engine="dask", scheduler=where)
            assert files(folder.path) == before


@pytest.mark.parametrize("where", ["", "nowhere", "http://127.0.0.1:1", "tls://127.0.0.1:1"])
def test_an_address_that_is_none(tmp_path, where):
    with pytest.raises(InputError, match=f"^--scheduler {where}: cannot be used .*tcp://host:8786"):
        begin(tmp_path / "new", engine="dask", scheduler=where)
    assert not (tmp_path / "new").exists()


def test_without_dask_nothing_is_begun(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name=name)

    monkeypatch.setattr(connection, "import_module", missing)
    with pytest.raises(InputError, match=r"not installed; pip install 'mahalens\[cluster\]'"):
        begin(tmp_path / "new", engine="dask")
    assert not (tmp_path / "new").exists()


def test_dask_is_imported_only_when_asked_for():
    code = (
        "import sys, mahalens.cli, mahalens.studies.representation.run\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'dask', 'distributed', 'tornado'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_workers_of_other_versions_are_refused(address):
    here = remote.machine()
    with client_of(address) as client:
        assert connection.check_workers(client, address, here, ENGINE) == 2
        other = {**here, "torch": "1.0"}
        with pytest.raises(InputError, match=r"worker tcp.* has torch .* instead of 1\.0; install"):
            connection.check_workers(client, address, other, ENGINE)
        watcher = Notes()
        connection.check_workers(client, address, {**here, "engine": "x"}, ENGINE, watcher)
        assert watcher.notes == [
            "2 workers have another processor or compiler: the last digits of their results may "
            "differ from those made here"
        ]


NONE = ModuleNotFoundError("No module named 'mahalens'")


@pytest.mark.parametrize(
    ("packages", "answer", "told"),
    [
        ({"mahalens": None, "distributed": "1"}, {}, "worker w has no mahalens;"),
        ({"mahalens": "1", "distributed": "2"}, {}, "worker w has distributed 2 instead of 1;"),
        # Installed, but it cannot be imported.
        ({"mahalens": "1", "distributed": "1"}, NONE, r"worker w has no mahalens \(No module"),
    ],
)
def test_workers_without_mahalens_are_refused(packages, answer, told):
    class Client:
        def get_versions(self, packages: list[str]) -> dict[str, Any]:
            fine = {"packages": {"mahalens": "1", "distributed": "1"}}
            return {"client": fine, "scheduler": fine, "workers": {"w": worker}}

        def run(self, function: Callable[..., Any], on_error: str) -> dict[str, Any]:
            return {"w": answer}

    worker = {"packages": packages}
    with pytest.raises(InputError, match=f"^--scheduler a:1: {told}.*same on all machines$"):
        connection.check_workers(Client(), "a:1", remote.machine(), ENGINE)


def test_a_worker_without_a_compiler_is_no_match():
    here = {"mahalens": "1", "torch": "2", "engine": "engine-1"}
    there = {**here, "engine": "none (no C++ compiler)"}
    assert remote.differences(here, there, "torch") == []
    assert remote.differences(here, there, "compiled") == [
        "compiled engine: none (no C++ compiler)"
    ]
    job = job_of(Problem.from_config(RepresentationConfig(**TINY)), Path("nowhere"))
    job = msgspec.structs.replace(job, machine={**here, "mahalens": "9"})
    with pytest.raises(InputError, match=r"a worker has mahalens .* instead of 9"):
        remote.train_job(b"", job, lambda share: None, lambda: False)


def job_of(problem: Problem, folder: Path, mark: str = "nothing") -> remote.Job:
    return remote.Job(
        config=problem.config,
        about=remote.about(problem.data),
        group=problem.groups()[0],
        engine=ENGINE,
        machine=remote.machine(),
        folder=str(folder),
        run=read_config(folder).digest if (folder / "config.json").exists() else "a run",
        mark=mark,
    )


@pytest.fixture
def threads() -> Iterator[None]:
    """Jobs that run in this process change how many threads torch uses."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_job_goes_on_from_what_another_worker_kept(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(remote, "TELL_EVERY", 0.0)
    folder, problem = begin(tmp_path / "run", epochs=400)
    packed = remote.pack(problem.data)
    shares: list[float] = []
    with folder:
        (folder.path / "mark").touch()
        job = job_of(problem, folder.path, "mark")
        with pytest.raises(Interrupted):
            remote.train_job(packed, job, shares.append, lambda: len(shares) == 20)
        kept = shares[-1]
        shares.clear()
        assert remote.train_job(packed, job, shares.append, lambda: False) == b""
        assert shares[0] >= kept > 0
        assert checkpoints(folder) == []
        shares.clear()
        assert remote.train_job(packed, job, shares.append, lambda: False) == b""
        assert shares == []  # its result is there


def test_a_worker_stops_when_the_run_has_ended_without_it(tmp_path, monkeypatch, threads):
    monkeypatch.setattr("mahalens.train.solver.SAVE_EVERY", 0.0)
    folder, problem = begin(tmp_path / "run")
    with folder:
        (folder.path / "mark").touch()
        told: list[float] = []
        monkeypatch.setattr(remote, "TELL_EVERY", 0.0)

        def tell(share: float) -> None:
            told.append(share)
            (folder.path / "mark").unlink(missing_ok=True)

        with pytest.raises(Interrupted):
            remote.train_job(
                remote.pack(problem.data), job_of(problem, folder.path, "mark"), tell, lambda: False
            )
        assert checkpoints(folder) == []
        assert max(told) < 1


def test_a_checkpoint_of_another_run_is_refused(tmp_path, threads):
    folder, problem = begin(tmp_path / "run")
    with folder:
        (folder.path / "mark").touch()
        name = f"{CHECKPOINTS}/{problem.groups()[0].name}.safetensors"
        folder.write_tensors(name, {"values": torch.zeros(1, 1)})
        with pytest.raises(RunFolderError, match="does not fit this run"):
            remote.train_job(
                remote.pack(problem.data),
                job_of(problem, folder.path, "mark"),
                lambda share: None,
                lambda: False,
            )


def test_samples_arrive_as_they_were_sent():
    y = torch.tensor([0, 1, 1])
    for x, size in (
        (torch.tensor([[0.0], [255.0], [7.0]]), 1),
        (torch.tensor([[0.0], [256.0], [7.0]]), 4),
        (torch.tensor([[0.5], [255.0], [7.0]]), 4),
        (torch.tensor([[-1.0], [255.0], [7.0]]), 4),
        (torch.tensor([[0.0], [255.0], [7.0]], dtype=torch.float64), 8),
    ):
        data = LabelledData("mine", x, y, x.flip(0), y, (1, 1), 255.0, "typed")
        packed = remote.pack(data)
        found = remote.unpack(packed, remote.about(data))
        for name in ("x", "y", "test_x", "test_y"):
            assert torch.equal(getattr(found, name), getattr(data, name))
            assert getattr(found, name).dtype == getattr(data, name).dtype
        assert remote.about(found) == remote.about(data)
        assert remote.load(packed)["x"].element_size() == size


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from mahalens.cli import main; main()", *words]


def left_of_session(session: int) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(str(process))
    return found


def test_ctrl_c_stops_everything_and_keeps_what_is_done(tmp_path):
    """Ctrl-C reaches every process of a terminal; so does this signal."""
    out, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    options = ["--models", "relu", "--pixels", "raw", "--epochs", "400000", "--trials", "4"]
    running = subprocess.Popen(
        command("run", "representation", *options, "--engine", "dask", "--out", str(out)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + 300
    while not list(out.glob("checkpoints/.cluster.*")) and running.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(8)  # to be in the middle of a group, also on a busy machine
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 130, errors
    lines = errors.splitlines()
    assert lines[-1] == f"mahalens: stopped; go on with: mahalens run --resume {out}"
    assert "Traceback" not in errors
    assert len(lines) < 8
    assert list(temporary.iterdir()) == []
    until = time.monotonic() + 30
    while left_of_session(running.pid):
        assert time.monotonic() < until, left_of_session(running.pid)
        time.sleep(0.1)
    assert not list(out.glob("checkpoints/.*"))
    assert list(out.glob("checkpoints/*.safetensors"))


def test_where_the_rest_is_computed_can_be_said_anew(tmp_path):
    folder, problem = begin(tmp_path / "run", engine="dask")
    with folder:
        carry_on(folder, Notes(), engine="local")
        assert folder.finished
    folder, _ = begin(tmp_path / "other")
    with folder:
        with pytest.raises(InputError, match="--scheduler without --engine dask"):
            carry_on(folder, Notes(), scheduler="tcp://127.0.0.1:1")
        with pytest.raises(InputError, match="--engine cloud: unknown; known: local, dask"):
            carry_on(folder, Notes(), engine="cloud")
    assert problem.config.engine == "dask"


def test_engines_on_the_command_line(tmp_path):
    from click.testing import CliRunner

    from mahalens.cli import cli

    def told(*words: str) -> str:
        return str(CliRunner().invoke(cli, ["run", *words]).exception)

    assert "--engine before a study goes with --resume" in told("--engine", "dask", "gaussian")
    other = tmp_path / "gaussian"
    record = msgspec.structs.replace(begin(tmp_path / "run")[0].config, study="gaussian")
    RunFolder.create(other, record).close()
    refused = told("--resume", str(other), "--scheduler", "tcp://127.0.0.1:1")
    said = "holds a run of gaussian, which has no such choice (only representation); leave it out"
    assert refused.endswith(said)
