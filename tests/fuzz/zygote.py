"""Runs many command lines of mahalens, each in a process forked from one that has loaded torch.

Reads jobs from standard input, one JSON object a line: ``{"argv": [...], "cwd": ..., "limit": s}``;
answers each with ``{"code": ..., "out": ..., "err": ..., "seconds": ..., "hung": ...}``. A job that
takes longer than its limit gets Ctrl-C (SIGINT); if it has not ended 30 seconds later, it hangs
and is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GRACE = 30.0


def run(job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _command(job, out, err)
        code = _wait(child, job["limit"])
        if code is None:
            os.kill(child, signal.SIGINT)
            code = _wait(child, GRACE)
        hung = code is None
        if hung:
            _end_group(child)
            os.waitpid(child, 0)
        _end_group(child)  # workers that outlived it
        return {
            "code": code,
            "hung": hung,
            "seconds": time.monotonic() - started,
            "out": out.read_text(errors="replace")[-4000:],
            "err": err.read_text(errors="replace")[-4000:],
        }


def _command(job: dict[str, Any], out: Path, err: Path) -> None:
    """Be the command line ``mahalens ARGV``; never returns."""
    code = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, path in ((1, out), (2, err)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.dup2(opened, number)
        os.dup2(null, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(job["cwd"])
        sys.argv = ["mahalens", *job["argv"]]
        from mahalens.cli import main

        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(child: int, limit: float) -> int | None:
    """The exit code of a child (negative for a signal), or None if it runs on."""
    end = time.monotonic() + limit
    pause = 0.002
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    return None


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import mahalens.cli
    import mahalens.data.files
    import mahalens.report  # noqa: F401 (loaded once for all)

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
