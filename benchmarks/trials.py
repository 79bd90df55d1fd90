"""How long many trials take: ours against the plain loop, torch.func.vmap, JAX and the limit.

    python benchmarks/trials.py [--quick] [--json FILE]

Every case is one epoch of all its trials. Ours against (a) the plain loop over trials with
nn.Module, autograd and torch.optim ("baseline"), (b) torch.func.vmap over stacked modules, and (c)
the limit: the two matrix products of an epoch alone, in blocks that fit in the cache or all at
once, whichever is faster; where JAX is installed (``pip install -c constraints.txt jax``) also
against (d) JAX, jit of a scan over epochs with vmap over trials, compiled before the clock starts.
All sides do the same work in one process, taking turns; the figures are
medians. "torch" is our engine where there is no compiler. "peak_mb" is by how much a fresh process
grows while it trains, "dense_mb" what one array of N x T x K activations would take.

The last case is the time in which the converging solver brings 20 trials of MD_Abs in 100
dimensions to an MSE of 1e-10, against the published 250,000 epochs of Adam: 50 of them measured,
then scaled.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import torch
from measure import Work, alternate, arguments, case, finish, peak_growth
from sides import LIMITS, by_jax, by_torch, limit_of, modules_of, ours, plain_loop, vmapped
from torch import Tensor

from mahalens import Chain, MeanSquaredError, Newton, TrialStack, md_abs, md_relu, md_sigmoid
from mahalens.data import draw_gaussian, stream
from mahalens.init import kaiming_through_samples

TRIALS = 20
PUBLISHED_EPOCHS = 250_000
TARGET = 1e-10
SIDES = {"ours": ours, "plain_loop": plain_loop, "vmapped": vmapped, "by_torch": by_torch, **LIMITS}
if find_spec("jax"):
    SIDES["by_jax"] = by_jax
SLOW = ("plain_loop", "vmapped", "by_torch")


def data(samples: int, inputs: int, classes: int | None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if classes is None:
        return (
            torch.randn(samples, inputs, generator=generator),
            torch.rand(samples, generator=generator),
        )
    pixels = torch.rand(samples, inputs, generator=generator)
    pixels = torch.where(torch.rand(samples, inputs, generator=generator) < 0.19, pixels, 0)
    labels = torch.randint(0, classes, (samples,), generator=generator)
    return (pixels - 0.1307) / 0.3081, labels


def training(texts: list[str], inputs: int, samples: int, trials: int, classes: int | None) -> Work:
    """An epoch of ours, for a process of its own."""
    x, y = data(samples, inputs, classes)
    chains = [Chain.parse(text, inputs=inputs) for text in texts]
    everything = [ours(modules_of(chain, trials), x, y) for chain in chains]

    def work() -> None:
        for epochs in everything:
            epochs(2)

    return work


def epoch_case(
    name: str, chains: list[Chain], samples: int, trials: int, classes: int | None, quick: bool
) -> dict[str, Any]:
    """Seconds per epoch of all chains together, for each side."""
    inputs = chains[0].inputs
    x, y = data(samples, inputs, classes)
    torch.manual_seed(0)
    started = [modules_of(chain, trials) for chain in chains]
    sides = {side: [make(modules, x, y) for modules in started] for side, make in SIDES.items()}
    flops = 4 * samples * trials * sum(len(m[0][0].weight) for m in started) * inputs
    # Each side trains for some tenths of a second between two looks at the clock.
    fast, slow = (
        (1, 1) if quick else (max(1, min(500, int(1e10 // flops))), max(1, int(2e9 // flops)))
    )
    counts = {name: min(slow, 20) if name in SLOW else fast for name in sides}

    def several(name: str) -> Work:
        def work() -> None:
            for epochs in sides[name]:
                epochs(counts[name])

        return work

    taken = alternate({name: several(name) for name in sides}, 1 if quick else 7)
    seconds = {name: total / counts[name] for name, total in taken.items()}
    texts = [str(chain) for chain in chains]
    widest = max(layer.units or 0 for chain in chains for layer in chain.layers)
    small, large = ((texts, inputs, n, trials, classes) for n in (64, samples))
    # In the quick form one case shows that it works.
    peak = None if quick and name != "gaussian-2d" else peak_growth(training, small, large)
    return case(
        name,
        seconds["ours"],
        seconds["plain_loop"],
        limit_of(seconds),
        vmap_s=seconds["vmapped"],
        vmap_ratio=seconds["vmapped"] / seconds["ours"],
        torch_s=seconds["by_torch"],
        jax_s=seconds.get("by_jax"),
        jax_ratio=seconds["by_jax"] / seconds["ours"] if "by_jax" in seconds else None,
        peak_mb=peak,
        dense_mb=samples * trials * widest * 4 / 2**20,
    )


def gaussian_problem(dim: int, samples: int, trials: int) -> tuple[Tensor, Tensor, TrialStack]:
    """Samples, their distances and starting points, as the Gaussian study draws them."""
    gaussian = draw_gaussian(dim, stream(0, "gaussian", dim))
    x = gaussian.sample(samples, stream(0, "train"))
    draws = [kaiming_through_samples(x, 2 * dim, stream(0, "start", t)) for t in range(trials)]
    weight, bias = (torch.stack(parts)[:, :dim] for parts in zip(*draws, strict=True))
    start = TrialStack.from_tensors(md_abs(dim), {"0.weight": weight, "0.bias": bias})
    return x, gaussian.mahalanobis(x), start


def solution_case(quick: bool) -> dict[str, Any]:
    """Time until every trial is at the target, against the published epochs of the plain loop."""
    dim, samples, trials = (5, 500, 3) if quick else (100, 10_000, TRIALS)
    x, y, start = gaussian_problem(dim, samples, trials)
    began = time.perf_counter()
    solver = Newton(MeanSquaredError(start.chain, x, y), start, 2000)
    while not solver.finished:
        solver.advance()
        newest = solver.curve[1][-1]  # NaN where a trial has ended
        if bool((newest.isnan() | (newest <= TARGET)).all()):
            break
    taken = time.perf_counter() - began
    errors = [(module(x) - y).square().mean().item() for module in solver.stack]
    if not max(errors) <= TARGET:
        raise SystemExit(f"time to solution: a trial ended at an MSE of {max(errors):.2g}")
    epochs = 1 if quick else 50
    loop = plain_loop([module.float() for module in start], x.float(), y.float())
    loop(1)
    began = time.perf_counter()
    loop(epochs)
    epoch = (time.perf_counter() - began) / epochs
    return case("time to solution", taken, epoch * PUBLISHED_EPOCHS)


def main() -> None:
    """Measure all cases and print a table."""
    options = arguments(__doc__)
    quick = options.quick
    cases = []
    sizes = ((2, 100),) if quick else ((2, 1_000), (10, 1_000), (100, 10_000))
    for dim, samples in sizes:
        chains = [md_abs(dim), md_relu(dim), md_sigmoid(dim)]
        trials = 3 if quick else TRIALS
        cases.append(epoch_case(f"gaussian-{dim}d", chains, samples, trials, None, quick))
    network = Chain.parse("Linear(128), ReLU, Linear(10)", inputs=784)
    rows = 300 if quick else 60_000
    cases.append(epoch_case("mnist-mlp", [network], rows, 5, 10, quick))
    cases.append(solution_case(quick))
    finish("trials", cases, options)


if __name__ == "__main__":
    main()
