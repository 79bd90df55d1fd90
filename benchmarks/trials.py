"""How long one epoch of Adam takes for 20 trials of the three Gaussian models.

    python benchmarks/trials.py [--quick] [--json FILE]

Ours against (a) the plain loop over trials with nn.Module, autograd and torch.optim.Adam, (b)
torch.func.vmap over stacked modules, and (c) the limit: the two matrix products of an epoch alone.
All sides do the same work in one process, in alternating rounds; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from mahalens import Adam, Chain, MeanSquaredError, TrialStack, md_abs, md_relu, md_sigmoid

TRIALS = 20
CASES = {"gaussian-2d": (2, 1_000), "gaussian-10d": (10, 1_000), "gaussian-100d": (100, 10_000)}
LR, BETAS = 1e-3, (0.9, 0.99)
Side = Callable[[int], None]


def ours(chain: Chain, modules: list[nn.Module], x: Tensor, y: Tensor) -> Side:
    stack = TrialStack.from_modules(chain, modules)
    solver = Adam(MeanSquaredError(chain, x, y), stack, 10**9, lr=LR, betas=BETAS)

    def epochs(count: int) -> None:
        for _ in range(count):
            solver._step()

    return epochs


def plain_loop(chain: Chain, modules: list[nn.Module], x: Tensor, y: Tensor) -> Side:
    loss = nn.MSELoss()
    pairs = [(m, torch.optim.Adam(m.parameters(), lr=LR, betas=BETAS)) for m in modules]

    def epochs(count: int) -> None:
        for module, optimizer in pairs:
            for _ in range(count):
                optimizer.zero_grad()
                loss(module(x), y).backward()
                optimizer.step()

    return epochs


def vmapped(chain: Chain, modules: list[nn.Module], x: Tensor, y: Tensor) -> Side:
    template = chain.build().to("meta")
    parameters, _ = torch.func.stack_module_state(modules)
    optimizer = torch.optim.Adam(parameters.values(), lr=LR, betas=BETAS)

    def loss(one: dict[str, Tensor]) -> Tensor:
        return (torch.func.functional_call(template, one, (x,)) - y).square().mean()

    gradient = torch.func.vmap(torch.func.grad(loss))

    def epochs(count: int) -> None:
        for _ in range(count):
            for name, grad in gradient(parameters).items():
                parameters[name].grad = grad
            optimizer.step()

    return epochs


def products(chain: Chain, modules: list[nn.Module], x: Tensor, y: Tensor) -> Side:
    weight = torch.cat([m[0].weight.detach() for m in modules])  # [T·K, D]
    columns, outputs = x.T.contiguous(), torch.empty(len(weight), len(x))
    grads = torch.empty_like(weight)

    def epochs(count: int) -> None:
        for _ in range(count):
            torch.mm(weight, columns, out=outputs)
            torch.mm(outputs, x, out=grads)

    return epochs


def measure(case: str, rounds: int, quick: bool) -> dict[str, object]:
    """Seconds per epoch of all three models together, for each side."""
    dim, samples = CASES[case]
    torch.manual_seed(0)
    x, y = torch.randn(samples, dim), torch.rand(samples)
    sides: dict[str, list[Side]] = {}
    for chain in (md_abs(dim), md_relu(dim), md_sigmoid(dim)):
        modules = [chain.build() for _ in range(TRIALS)]
        for make in (ours, plain_loop, vmapped, products):
            copies = [chain.build() for _ in modules]
            for copy, module in zip(copies, modules, strict=True):
                copy.load_state_dict(module.state_dict())
            sides.setdefault(make.__name__, []).append(make(chain, copies, x, y))
    count = 1 if quick or dim == 100 else 20
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, models in sides.items():
            began = time.perf_counter()
            for epochs in models:
                epochs(count)
            times[name].append((time.perf_counter() - began) / count)
    seconds = {
        name: statistics.median(taken[1:]) for name, taken in times.items()
    }  # first: warm-up
    return {
        "case": case,
        "ours_s": seconds["ours"],
        "baseline_s": seconds["plain_loop"],
        "ratio": seconds["plain_loop"] / seconds["ours"],
        "vmap_s": seconds["vmapped"],
        "vmap_ratio": seconds["vmapped"] / seconds["ours"],
        "limit_s": seconds["products"],
        "of_limit": seconds["ours"] / seconds["products"],
    }


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    names = list(CASES)[:2] if arguments.quick else list(CASES)
    cases = [measure(name, 1 if arguments.quick else 7, arguments.quick) for name in names]
    print(f"{TRIALS} trials x 3 models, seconds per epoch, {torch.get_num_threads()} threads")
    print(
        f"{'case':<14} {'ours':>9} {'loop':>9} {'ratio':>6} {'vmap':>9} {'ratio':>6} {'x limit':>8}"
    )
    for c in cases:
        print(
            f"{c['case']:<14} {c['ours_s']:9.2e} {c['baseline_s']:9.2e} {c['ratio']:6.1f} "
            f"{c['vmap_s']:9.2e} {c['vmap_ratio']:6.1f} {c['of_limit']:8.1f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"name": "trials", "cases": cases}, indent=2) + "\n")


if __name__ == "__main__":
    main()
