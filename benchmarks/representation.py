"""How long an epoch of the representation study takes: ours, the plain loop, and the limit.

    python benchmarks/representation.py [--quick] [--only MODEL] [--json FILE]

Every case is one full-batch epoch of 5 trials of a network with 128 hidden units on 5,000 images of
MNIST; without MNIST on the machine, on random pixels of the same density ("data" says which).
Ours against (a) the plain loop over trials with nn.Sequential and torch.optim.SGD ("baseline"), and
(b) the limit of what does not look at the data: the two products of the first layers with all
pixels, [640 x 784] x [784 x 5000] and back, alone, in blocks that fit in the cache or all at once,
whichever is faster. Ours multiplies only pixels that are no background, so it can be below 1;
"left" is the share that it multiplies, "prepare_s" how long ordering and packing the images takes,
once per run. All sides work in one process, taking turns; the figures are medians.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from measure import Work, alternate, arguments, case, finish
from sides import LIMITS, limit_of, modules_of, ours, plain_loop
from torch import Tensor

from mahalens import Chain, CrossEntropy
from mahalens.data import load_set
from mahalens.errors import InputError

MODELS = {
    "relu": "Linear(128), ReLU, Linear(10, bias=False)",
    "abs2-neg": "Linear(128), Abs, Linear(10, bias=False), Abs, Neg",
    "abs-l2": "Linear(128), Abs, OffsetL2(10)",
}
SIDES = {"ours": ours, "plain_loop": plain_loop, **LIMITS}
TRIALS = 5
DENSITY = 0.19


def images(quick: bool) -> tuple[Tensor, Tensor, str]:
    """Normalised pixels, labels, and where they come from."""
    samples = 200 if quick else 5_000
    generator = torch.Generator().manual_seed(0)
    inked = torch.rand(samples, 784, generator=generator) < DENSITY
    x = torch.where(inked, torch.rand(samples, 784, generator=generator), 0)
    y, name = torch.randint(0, 10, (samples,), generator=generator), "random"
    with contextlib.suppress(InputError):
        if not quick:
            mnist = load_set("mnist")
            x, y, name = mnist.x[:samples] / mnist.largest, mnist.y[:samples], "MNIST"
    return (x - 0.1307) / 0.3081, y, name


def model_case(model: str, quick: bool) -> dict[str, Any]:
    """Seconds per epoch of all trials of a model, for each side."""
    x, y, name = images(quick)
    chain = Chain.parse(MODELS[model], inputs=x.shape[1])
    torch.manual_seed(0)
    modules = modules_of(chain, TRIALS)
    sides = {side: make(modules, x, y) for side, make in SIDES.items()}
    epochs = 1 if quick else 5

    def several(name: str) -> Work:
        return lambda: sides[name](epochs)

    taken = alternate({name: several(name) for name in sides}, 1 if quick else 7)
    seconds = {name: total / epochs for name, total in taken.items()}
    prepare, left = preparing(CrossEntropy(chain, x, y))
    row = case(model, seconds["ours"], seconds["plain_loop"], limit_of(seconds))
    return row | {"data": name, "left": left, "prepare_s": prepare}


def preparing(objective: CrossEntropy) -> tuple[float | None, float | None]:
    """How long the samples take to be packed, and which share of them is multiplied."""
    if objective.compiled is None:
        return None, None
    began = time.perf_counter()
    packed = objective.compiled.packed
    return time.perf_counter() - began, packed.left


def main() -> None:
    """Measure all cases and print a table."""
    options = arguments(__doc__, list(MODELS))
    chosen = [options.only] if options.only else MODELS
    cases = [model_case(model, options.quick) for model in chosen]
    finish("representation", cases, options)


if __name__ == "__main__":
    main()
