"""Makes the tables of the benchmarks for the pages of docs/develop, when the site is built.

    python docs/benchmarks.py     # prints them

Reads docs/benchmarks/*.json, which `make bench` writes. A table stands where a page has
`<!-- benchmark NAME -->` and `<!-- end of benchmark -->`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGES = tuple(
    DOCS / "develop" / f"{name}.md"
    for name in ("benchmarks", "performance", "performance-distances")
)
GOALS = {
    "gaussian-2d": (100.0, None),
    "gaussian-10d": (40.0, None),
    "gaussian-100d": (4.0, 1.4),
    "mnist-mlp": (1.3, 1.25),
    "time to solution": (500.0, None),
}


def number(value: float | None, digits: int = 2) -> str:
    """Short, without exponents where people read times."""
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{places}f}"


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return "–"
    if value < 1:
        return f"{number(value * 1e3)} ms"
    return f"{number(value)} s" if value < 3600 else f"{number(value / 3600)} h"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def trials(record: dict[str, Any]) -> str:
    """The cases beside their goals."""
    rows = []
    for case in record["cases"]:
        goal, of_limit = GOALS[case["case"]]
        rows.append(
            [
                case["case"],
                seconds(case["ours_s"]),
                seconds(case["baseline_s"]),
                f"**{number(case['ratio'])} x**",
                f"{goal:g} x",
                f"{number(case['vmap_ratio'])} x" if "vmap_ratio" in case else "–",
                f"{number(case['jax_ratio'])} x" if case.get("jax_ratio") else "–",
                "–" if case["of_limit"] is None else f"{case['of_limit']:.2f}",
                f"≤ {of_limit:g}" if of_limit else "–",
            ]
        )
    head = ["case", "ours", "plain loop", "faster", "goal", "than vmap", "than JAX"]
    return table([*head, "of the limit", "goal"], rows)


def details(record: dict[str, Any]) -> str:
    """All sides of every case, and the memory."""
    rows = [
        [
            case["case"],
            *[
                seconds(case.get(f"{side}_s"))
                for side in ("ours", "torch", "vmap", "jax", "baseline", "limit")
            ],
            f"{number(case['peak_mb'])} MB" if case["peak_mb"] is not None else "–",
            f"{number(case['dense_mb'])} MB",
        ]
        for case in record["cases"]
        if "vmap_s" in case
    ]
    head = [
        "case",
        "compiled",
        "torch engine",
        "vmap",
        "JAX",
        "plain loop",
        "limit",
        "peak growth",
        "N·T·K",
    ]
    return table(head, rows)


def overheads(record: dict[str, Any]) -> str:
    """What each extra costs."""
    rows = [
        [case["case"], seconds(case["baseline_s"]), seconds(case["ours_s"]), f"{case['ratio']:.3f}"]
        for case in record["cases"]
    ]
    return table(["with", "training alone", "with it", "ratio"], rows)


def scaling(record: dict[str, Any]) -> str:
    """The fitted exponents and the ends of each range."""
    sys.path.insert(0, str(DOCS.parent / "benchmarks"))
    from scaling import LABELS, exponent

    rows = []
    for name, label in LABELS.items():
        mine = [case for case in record["cases"] if case["case"].startswith(f"{name}=")]
        sizes = [int(case["case"].split("=")[1]) for case in mine]
        ours, loop = ([case[key] for case in mine] for key in ("ours_s", "baseline_s"))
        rows.append(
            [
                f"{label}: {sizes[0]:,} to {sizes[-1]:,}",
                f"{seconds(ours[0])} to {seconds(ours[-1])}",
                f"{exponent(sizes, ours):.2f}",
                f"{seconds(loop[0])} to {seconds(loop[-1])}",
                f"{exponent(sizes, loop):.2f}",
                f"{number(mine[0]['ratio'])} to {number(mine[-1]['ratio'])} x",
            ]
        )
    return table(["", "stacked", "exponent", "plain loop", "exponent", "faster"], rows)


ELLIPSOID_GOALS = {
    "full, 100-D: GaussianMixture": 1.2,
    "full, 100-D: loop of cdist": 6.0,
    "full, 100-D: _batch_mahalanobis": 4.0,
    "rank 16 + rest, 784-D: full GaussianMixture": 40.0,
    "reconstruction": 300.0,
}


def ellipsoids(record: dict[str, Any]) -> str:
    """The cases with a goal."""
    rows = []
    for case in record["cases"]:
        if case["case"] not in ELLIPSOID_GOALS:
            continue
        of_limit = case["of_limit"]
        rows.append(
            [
                case["case"],
                seconds(case["ours_s"]),
                seconds(case["baseline_s"]),
                f"**{number(case['ratio'])} x**",
                f"{ELLIPSOID_GOALS[case['case']]:g} x",
                "–" if of_limit is None else f"{of_limit:.2f}",
                "–" if of_limit is None else "≤ 1.5",
            ]
        )
    head = ["case: against", "ours", "theirs", "faster", "goal", "of the product", "goal"]
    return table(head, rows)


def kinds(record: dict[str, Any]) -> str:
    """What each way to hold ellipsoids saves and costs."""
    rows = [
        [
            case["case"].removeprefix("kind: "),
            seconds(case["ours_s"]),
            f"{number(case['baseline_s'] / case['ours_s'])} x",
            seconds(case["build_s"]),
            f"{number(case['mb'])} MB",
            f"{number(100 * case['error'])} %",
        ]
        for case in record["cases"]
        if case["case"].startswith("kind: ")
    ]
    return table(["kind", "distances", "faster than full", "to build", "size", "error"], rows)


def axes(record: dict[str, Any]) -> str:
    """The longest axes against all of them."""
    rows = [
        [
            case["case"].removeprefix("axes: "),
            seconds(case["ours_s"]),
            seconds(case["baseline_s"]),
            f"{number(case['ratio'])} x",
        ]
        for case in record["cases"]
        if case["case"].startswith("axes: ")
    ]
    return table(["axes", "ours", "all of them", "faster"], rows)


def representation(record: dict[str, Any]) -> str:
    """An epoch of the networks of the representation study."""
    rows = [
        [
            case["case"],
            seconds(case["ours_s"]),
            seconds(case["baseline_s"]),
            f"**{number(case['ratio'])} x**",
            seconds(case["limit_s"]),
            f"{case['of_limit']:.2f}",
            "≤ 1.25",
            f"{100 * case['left']:.0f} %",
            seconds(case["prepare_s"]),
        ]
        for case in record["cases"]
    ]
    head = ["model", "ours", "plain loop", "faster", "products alone", "of them", "goal"]
    return table([*head, "pairs multiplied", "to prepare, once"], rows)


def audit(record: dict[str, Any]) -> str:
    """What an audit costs beside the least it needs."""
    rows = [
        [
            f"{case['case']}, {case['samples']:,} samples",
            seconds(case["ours_s"]),
            seconds(case["forward_s"]),
            seconds(case["products_s"]),
            f"**{case['ratio']:.2f}**",
            "≤ 2",
            seconds(case["decompose_s"]),
            f"{case['of_all']:.2f}",
            "–" if case["peak_mb"] is None else f"{number(case['peak_mb'])} MB",
            "–" if case["peak_4x_mb"] is None else f"{number(case['peak_4x_mb'])} MB",
        ]
        for case in record["cases"]
    ]
    head = ["network", "audit", "forward", "products", "of both", "goal", "eigenvalues"]
    return table([*head, "of all three", "memory", "with 4 x samples"], rows)


def building(record: dict[str, Any]) -> str:
    """Layers, heads and starts beside what one would use instead."""
    rows = []
    for case in record["cases"]:
        name, rival = case["case"].rsplit(": ", 1)
        rows.append(
            [
                name,
                seconds(case["ours_s"]),
                f"{rival}, {seconds(case['baseline_s'])}",
                f"{number(case['ratio'])} x",
            ]
        )
    return table(["case", "ours", "instead", "faster"], rows)


def detect(record: dict[str, Any]) -> str:
    """Fitting and scoring beside other code for the same scores."""
    rows = []
    for case in record["cases"]:
        rival, work = case["case"].split(": ") if ": " in case["case"] else ("", "")
        if work in ("fit", "score", "both"):
            difference = case.get("difference")
            rows.append(
                [
                    f"{work}: {rival}",
                    seconds(case["ours_s"]),
                    seconds(case["baseline_s"]),
                    f"**{number(case['ratio'])} x**",
                    "3 x" if work == "both" else "–",
                    "–" if difference is None else f"{difference:.0e}",
                    "–" if difference is None else "≤ 1e-4",
                ]
            )
    return table(["work: against", "ours", "theirs", "faster", "goal", "difference", "goal"], rows)


def detect_memory(record: dict[str, Any]) -> str:
    """By how much a process grows while it fits."""
    sizes = {False: (10_000, 40_000), True: (250_000, 1_000_000)}
    rows = []
    for case in record["cases"]:
        if case.get("peak_mb") is None or case.get("peak_4x_mb") is None:
            continue
        streamed = case["case"].startswith("stream: ")
        few, many = sizes[streamed]
        name = case["case"].removeprefix("stream: ").removesuffix(": fit")
        rows.append(
            [
                f"detect, {name}, batches" if streamed else f"{name}, one array",
                *(
                    f"{count:,}: {number(case[key])} MB"
                    for count, key in ((few, "peak_mb"), (many, "peak_4x_mb"))
                ),
            ]
        )
    return table(["fitting to", "samples: memory", "4 x samples: memory"], rows)


MAKERS = {
    "detect": ("detect", detect),
    "detect_memory": ("detect", detect_memory),
    "building": ("building", building),
    "audit": ("audit", audit),
    "representation": ("representation", representation),
    "ellipsoids": ("ellipsoids", ellipsoids),
    "kinds": ("ellipsoids", kinds),
    "axes": ("ellipsoids", axes),
    "trials": ("trials", trials),
    "details": ("trials", details),
    "scaling": ("scaling", scaling),
    "overheads": ("overheads", overheads),
}


def machine(record: dict[str, Any]) -> str:
    """The machine that the figures come from."""
    return f"{record['processor']}, {record['threads']} threads, torch {record['torch']}."


def filled(text: str) -> str:
    """The page with its tables made anew."""

    def made(match: re.Match[str]) -> str:
        file, make = MAKERS[match[1]]
        record = json.loads((DOCS / "benchmarks" / f"{file}.json").read_text())
        table = f"{make(record)}\n\n*{machine(record)}*"
        return f"<!-- benchmark {match[1]} -->\n{table}\n<!-- end of benchmark -->"

    pattern = r"<!-- benchmark (\w+) -->\n.*?<!-- end of benchmark -->"
    return re.sub(pattern, made, text, flags=re.S)


def main() -> None:
    """Print the tables."""
    for page in PAGES:
        for name in re.findall(r"<!-- benchmark (\w+) -->", page.read_text(encoding="utf-8")):
            print(filled(f"<!-- benchmark {name} -->\n<!-- end of benchmark -->"), end="\n\n")


if __name__ == "__main__":
    main()
