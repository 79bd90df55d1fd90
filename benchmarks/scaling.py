"""How the time of an epoch grows with trials, dimensions and samples.

    python benchmarks/scaling.py [--quick] [--json FILE] [--figure FILE]

MD_Abs with Adam, one epoch, ours against the plain loop over trials, medians of alternating rounds.
The exponents are least-squares slopes on logarithmic axes over the upper half of each range, where
fixed costs no longer count.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Work, alternate, arguments, case, finish
from sides import modules_of, ours, plain_loop

from mahalens import md_abs

FIXED = {"trials": 20, "dim": 10, "samples": 1_000}
SMALL = {"trials": 2, "dim": 2, "samples": 100}
RANGES = {
    "trials": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "dim": [2, 4, 8, 16, 32, 64, 128, 256, 512],
    "samples": [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000],
}
LABELS = {"trials": "trials T", "dim": "dimensions D", "samples": "samples N"}


def point(name: str, value: int, quick: bool) -> dict[str, Any]:
    """Seconds per epoch with one size changed."""
    size = {**(SMALL if quick else FIXED), name: value}
    chain = md_abs(size["dim"])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size["samples"], size["dim"], generator=generator)
    y = torch.rand(size["samples"], generator=generator)
    torch.manual_seed(0)
    modules = modules_of(chain, size["trials"])
    flops = 4 * size["samples"] * size["trials"] * size["dim"] ** 2
    # As many epochs in a row as the solver itself takes between two looks at the clock.
    many, few = (
        (1, 1)
        if quick
        else (int(min(500, max(1, 1e10 // flops))), int(min(20, max(1, 2e9 // flops))))
    )
    fast, slow = ours(modules, x, y), plain_loop(modules, x, y)
    sides: dict[str, Work] = {"ours": lambda: fast(many), "loop": lambda: slow(few)}
    seconds = alternate(sides, 1 if quick else 5)
    return case(f"{name}={value}", seconds["ours"] / many, seconds["loop"] / few)


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope on logarithmic axes over the upper half of the sizes."""
    half = len(sizes) // 2
    slope, _ = np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)
    return float(slope)


def draw(cases: list[dict[str, Any]], path: Path) -> None:
    """Three panels, one per size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    for axis, name in zip(axes, RANGES, strict=True):
        mine = [case for case in cases if case["case"].startswith(f"{name}=")]
        sizes = [int(case["case"].split("=")[1]) for case in mine]
        for key, colour, marker, label in (
            ("baseline_s", "#D55E00", "s", "plain loop"),
            ("ours_s", "#0072B2", "o", "stacked"),
        ):
            seconds = [case[key] for case in mine]
            power = exponent(sizes, seconds)
            text = f"{label}, ~ {LABELS[name][-1]}$^{{{power:.2f}}}$"
            axis.plot(sizes, seconds, f"{marker}-", color=colour, markersize=4, lw=1.5, label=text)
        axis.set(xscale="log", yscale="log", xlabel=LABELS[name])
        fixed = ", ".join(f"{LABELS[n][-1]} = {v:,}" for n, v in FIXED.items() if n != name)
        axis.set_title(fixed, fontsize=9, loc="left")
        axis.legend(loc="upper left", frameon=False, fontsize=9)
        axis.grid(alpha=0.25, which="major")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds per epoch of all trials")
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high * 8)  # room for the legends
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, fit, draw."""
    options = arguments(__doc__, (), "figure")
    ranges = {name: v[:3] if options.quick else v for name, v in RANGES.items()}
    cases = [point(name, value, options.quick) for name, sizes in ranges.items() for value in sizes]
    finish("scaling", cases, options)
    for name, sizes in ranges.items():
        mine = [case for case in cases if case["case"].startswith(f"{name}=")]
        for key, side in (("ours_s", "stacked"), ("baseline_s", "plain loop")):
            power = exponent(sizes, [case[key] for case in mine])
            if math.isfinite(power):
                print(f"{side}: seconds ~ {LABELS[name][-1]}^{power:.2f}")
    if options.figure:
        draw(cases, options.figure)


if __name__ == "__main__":
    main()
