"""What the benchmarks share: alternating rounds, medians, peak memory, JSON, tables."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], None]


def alternate(sides: Mapping[str, Work], rounds: int) -> dict[str, float]:
    """Median seconds of each side over rounds in which they take turns; one round to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    gc.freeze()  # what is there already need not be looked through before every turn
    for _ in range(rounds + 1):
        for name, work in sides.items():
            gc.collect()
            began = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - began)
    gc.unfreeze()
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def peak_growth(
    make: Callable[..., Work], small: Sequence[Any], large: Sequence[Any]
) -> float | None:
    """By how many MB a fresh process grows at most while it does the large work.

    The data are there before; the small work is done first, so that what is only loaded once does
    not count. ``None`` where the system does not tell.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_grow, (make, small, large))


def _grow(make: Callable[..., Work], small: Sequence[Any], large: Sequence[Any]) -> float | None:
    make(*small)()
    work = make(*large)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _peak()
        work()
        return _peak() - before
    except OSError:
        return None


def _peak() -> float:
    """The largest resident size so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(li.split(":", 1)[1].strip() for li in lines if li.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": model, "threads": torch.get_num_threads(), "torch": torch.__version__}


def case(
    name: str, ours: float, baseline: float, limit: float | None = None, **more: Any
) -> dict[str, Any]:
    """One row of a table: seconds of our side, of what it is compared with, and of the limit."""
    return {
        "case": name,
        "ours_s": ours,
        "baseline_s": baseline,
        "ratio": baseline / ours,
        "limit_s": limit,
        "of_limit": None if limit is None else ours / limit,
        **more,
    }


def arguments(description: str, groups: Sequence[str] = (), *files: str) -> argparse.Namespace:
    """The options every benchmark has; with groups of cases, one of them can be measured alone.

    ``files`` are the names of further options that take a file to write.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small and once, to see that it runs")
    for name in ("json", *files):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write the {name} there")
    if groups:
        text = "measure these cases only; others in FILE stay as they are"
        parser.add_argument("--only", choices=groups, help=text)
    return parser.parse_args()


def finish(name: str, cases: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the cases as a table, and write them where the user wants them."""
    columns = list(dict.fromkeys(key for case in cases for key in case))
    rows = [[written(case.get(key)) for key in columns] for case in cases]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))
    if options.json:
        if getattr(options, "only", None) and options.json.exists():
            measured = {case["case"]: case for case in cases}
            before = json.loads(options.json.read_text())["cases"]
            cases = [measured.pop(case["case"], case) for case in before] + [*measured.values()]
        content = {"name": name, "quick": options.quick, **machine(), "cases": cases}
        temporary = options.json.with_name(f".{options.json.name}.tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(options.json)
        print(f"written to {options.json}", file=sys.stderr)


def written(value: Any) -> str:
    """A number short enough to read."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
