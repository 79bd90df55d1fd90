"""What looking costs: progress bar, metrics and checkpoints against training alone.

    python benchmarks/overheads.py [--quick] [--json FILE]

20 trials of MD_Abs in 2 dimensions, where an epoch is shortest and a callback hurts most. "ours" is
with the extra, "baseline" without it; a ratio of 1 means that it costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from measure import Work, alternate, arguments, case, finish
from rich.console import Console

from mahalens import Adam, MeanSquaredError, TrialStack, md_abs, solve
from mahalens.progress import Display

TRIALS, SAMPLES, DIM = 20, 1_000, 2


def trained(epochs: int, **options: Any) -> Work:
    """Train from the start, with these options of :func:`mahalens.solve`."""
    chain = md_abs(DIM)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, DIM, generator=generator)
    y = torch.rand(SAMPLES, generator=generator)
    start = TrialStack.from_seeds(chain, range(TRIALS))
    objective = MeanSquaredError(chain, x, y)

    def work() -> None:
        solve(Adam(objective, start, epochs), **options)

    return work


def with_bar(epochs: int) -> Work:
    """With the bar that a terminal shows, drawn into nothing."""

    def work() -> None:
        with (
            open(os.devnull, "w") as nowhere,
            Display(console=Console(file=nowhere, force_terminal=True)) as display,
        ):
            trained(epochs, on_progress=display.stage("adam"))()

    return work


def main() -> None:
    """Measure each extra against training alone."""
    options = arguments(__doc__)
    epochs = 500 if options.quick else 60_000
    points = sorted({round(epochs ** (k / 50)) for k in range(51)})
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(BrokenPipeError):
        file = Path(folder) / "state.safetensors"

        def save(state: dict[str, torch.Tensor]) -> None:
            file.write_bytes(safetensors.torch.save(state))

        def metrics(solver: Adam) -> dict[str, torch.Tensor]:
            return {"norm": solver.stack.values.norm(dim=1)}

        sides = {
            "alone": trained(epochs),
            "progress bar": with_bar(epochs),
            f"metrics at {len(points)} epochs": trained(epochs, metrics=metrics, at=points),
            "a checkpoint every second": trained(epochs, save=save, every=1.0),
        }
        seconds = alternate(sides, 1 if options.quick else 7)
    alone = seconds.pop("alone")
    # The ratio is how much longer the training takes, the other way round than elsewhere.
    cases = [case(name, taken, alone) | {"ratio": taken / alone} for name, taken in seconds.items()]
    finish("overheads", cases, options)


if __name__ == "__main__":
    main()
