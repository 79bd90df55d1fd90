"""Recomputes the tests that *Neural Networks Learn Distance Metrics* prints.

    python docs/printed_tests.py          # prints the table
    python docs/printed_tests.py --write  # writes it into docs/studies/printed-tests.md

A test compares the page with what this prints.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

from mahalens.stats import SummaryComparison, compare_summaries
from mahalens.studies.representation import MODELS, published_value

PAGE = Path(__file__).parent / "studies" / "printed-tests.md"
BEGIN, END = "<!-- table: python docs/printed_tests.py -->", "<!-- end of table -->"
TRIALS = 20
ROUNDING = 0.005
BY_N = math.sqrt((TRIALS - 1) / TRIALS)
"""Turns a t that takes deviations for those of n - 1 into one that takes them for those of n."""
TEXT, SHRUNK, TABLE = "text", "text by n", "Table 2"


class Printed(NamedTuple):
    """A test as the paper prints it, by the names of both models."""

    a: str
    b: str
    t: str
    d: str


PRINTED = (
    Printed("relu", "abs", "1.14", "0.37"),
    Printed("relu2", "relu", "-17.33", "5.56"),
    Printed("abs2", "abs", "1.4967", "0.47"),
    Printed("relu2-neg", "relu2", "-17.33", "5.48"),
    Printed("relu2-neg", "relu", "-12.78", "4.04"),
    Printed("abs2-neg", "abs", "-8.81", "2.79"),
    Printed("abs2-neg", "abs2", "8.97", "2.84"),
)
"""Sections 5.1 to 5.3, in the order of the text."""


def recompute(printed: Printed, epochs: int) -> SummaryComparison:
    """Return the test from the figures after 5,000 epochs (the text) or 50,000 (Table 2)."""
    figures = []
    for model in (printed.a, printed.b):
        value = published_value("test_accuracy", model, "mnist", epochs)
        if value is None or value.std is None:
            raise LookupError(f"the paper prints no accuracy of {model}")
        figures.append((value.mean, value.std))
    return compare_summaries(figures[0], figures[1], TRIALS, ROUNDING)


def fits(printed: str, low: float, high: float) -> bool:
    """Return whether a printed number can come from this range, whatever its sign.

    >>> fits("-1.50", 1.36, 1.52), fits("1.14", 5.9, 6.7)
    (True, False)
    """
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    ends = sorted((abs(low), abs(high))) if low * high > 0 else [0.0, max(-low, high)]
    return ends[0] - half <= abs(float(printed)) <= ends[1] + half


def sources(printed: Printed) -> tuple[list[str], list[str]]:
    """Return the figures that the printed t can come from, and those that the printed d can."""
    text, table = recompute(printed, 5_000), recompute(printed, 50_000)
    found: tuple[list[str], list[str]] = ([], [])
    for name, test, factor in ((TEXT, text, 1.0), (SHRUNK, text, BY_N), (TABLE, table, 1.0)):
        ranges = (test.t_range, test.d_range)
        for names, value, (low, high) in zip(found, (printed.t, printed.d), ranges, strict=True):
            if fits(value, factor * low, factor * high):
                names.append(name)
    return found


def table() -> str:
    """Return the table as Markdown."""
    lines = [
        "| pair | printed t, d | from the text | text by n | from Table 2 | t fits | d fits |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for printed in PRINTED:
        text, other = recompute(printed, 5_000), recompute(printed, 50_000)
        cells = [
            f"{MODELS[printed.a].label}, {MODELS[printed.b].label}",
            f"{printed.t}, {printed.d}",
            *(
                f"{factor * test.t:.2f}, {factor * abs(test.cohens_d):.2f}"
                for test, factor in ((text, 1.0), (text, BY_N), (other, 1.0))
            ),
            *(", ".join(names) or "none" for names in sources(printed)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write it into the page")
    if not parser.parse_args().write:
        sys.stdout.write(table() + "\n")
        return
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
