"""Paired studies in several processes: stopping leaves none behind, and their number no trace."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

SMALL = ("--data", "iris,wine", "--models", "narrow-0,narrow-100", "--trials", "2")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")


def children(pid):
    """The processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(what, seconds=90.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_leaves_no_process_behind(start_process, tmp_path, how):
    endless = ("--epochs", "10000000", "--workers", "2", "--out", tmp_path / "run")
    running = start_process("run", "hybrid", *SMALL, *endless)
    try:
        workers = wait_for(lambda: len(own := children(running.pid)) >= 2 and own)
        time.sleep(2.0)  # time to begin with something
        os.kill(running.pid, how)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    if how is signal.SIGINT:
        assert running.returncode == 130
        assert "go on with: mahalens run --resume" in err
    wait_for(lambda: not any(alive(pid) for pid in workers))
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_worker_that_is_killed_is_told_in_one_line(start_process, tmp_path):
    """As by the system, for want of memory."""
    endless = ("--epochs", "10000000", "--workers", "2", "--out", tmp_path / "run")
    running = start_process("run", "hybrid", *SMALL, *endless)
    try:
        workers = wait_for(lambda: len(own := children(running.pid)) >= 2 and own)
        time.sleep(2.0)
        os.kill(workers[-1], signal.SIGKILL)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode not in (0, None)
    assert "a process that computed was ended from outside" in err
    assert "Traceback" not in err
    assert (tmp_path / "run" / "config.json").exists()


def test_their_number_does_not_change_the_numbers(cli, no_report, tmp_path):
    for count in ("1", "2"):
        out = ("--epochs", "3", "--quiet", "--workers", count, "--out", tmp_path / count)
        done = cli("run", "hybrid", *SMALL, *out)
        assert done.code == 0, done.err
    one, two = ((tmp_path / count / "curves.csv").read_bytes() for count in ("1", "2"))
    assert one == two


def test_workers_are_for_paired_studies(cli, finished):
    path, _ = finished
    done = cli("run", "--resume", path, "--workers", "2")
    assert done.code == 2
    assert done.err.startswith(f"mahalens: --workers: {path} holds a run of gaussian")
    assert len(done.err.strip().splitlines()) == 1
