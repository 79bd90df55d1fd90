"""Features of series from random convolution kernels: a backbone that need not be trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv1d

from mahalens.studies.paired.samples import standardise

LENGTHS = (7, 9, 11)


def kernel_features(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Two features of every series for each of ``count`` random kernels.

    Kernels are drawn as in ROCKET (Dempster, Petitjean and Webb 2020, arXiv 1910.13051): 7, 9 or
    11 weights, normal and centred, a bias from [-1, 1], a dilation up to the length of the series,
    with or without padding, on a random few of the channels. Of what a kernel gives along a
    series, the features are its largest value and the share of steps above 0.

    Shapes: x ``[N, C, L]`` to ``[N, 2 count]``.

    >>> made = kernel_features(torch.randn(5, 1, 24), 8, torch.Generator().manual_seed(0))
    >>> made.shape
    torch.Size([5, 16])
    """
    _, channels, steps = x.shape
    columns = []
    for _ in range(count):
        length = min(LENGTHS[_drawn(len(LENGTHS), generator)], steps)
        few = int(2 ** _uniform(0, math.log2(min(channels, length) + 1), generator))
        chosen = torch.randperm(channels, generator=generator)[: max(1, few)]
        weights = torch.randn(1, len(chosen), length, generator=generator)
        weights -= weights.mean(-1, keepdim=True)
        bias = _uniform(-1, 1, generator)
        widest = math.log2((steps - 1) / (length - 1)) if 1 < length < steps else 0.0
        dilation = int(2 ** _uniform(0, widest, generator))
        padding = _drawn(2, generator) * ((length - 1) * dilation // 2)
        seen = conv1d(x[:, chosen], weights, dilation=dilation, padding=padding)[:, 0] + bias
        columns += [seen.amax(1), (seen > 0).to(x.dtype).mean(1)]
    return torch.stack(columns, 1)


def features_of(
    x: Tensor, test_x: Tensor, shape: tuple[int, ...], count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Features of flattened series, standardised by those of the first; the same kernels for both.

    Shapes: x ``[N, C L]`` to ``[N, 2 count]``.
    """
    together = torch.cat((x, test_x)).reshape(-1, *shape)
    features = kernel_features(together, count, generator)
    return standardise(features[: len(x)], features[len(x) :])


def _drawn(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (1,), generator=generator))


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand(1, generator=generator))
