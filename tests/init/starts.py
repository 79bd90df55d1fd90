"""What the tests of starting weights share: planted clusters, layers, and every method on them."""

import torch
from torch import nn

from mahalens.init import (
    METHODS,
    class_mean_,
    cluster_pca_,
    kaiming_,
    lsuv_,
    sample_point_bias_,
    whiten_,
)
from mahalens.nn import OffsetL2, PointSlope

DTYPES = [torch.float32, torch.float64]


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def planted(clusters=3, dim=4, per=60, dtype=torch.float64, seed=0, apart=60.0):
    """Samples [clusters · per, dim] of clusters far apart, each of its own shape, and labels."""
    generator = seeded(seed)
    parts = []
    for number in range(clusters):
        shape = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        noise = torch.randn(per + number, dim, generator=generator, dtype=torch.float64)
        centre = torch.zeros(dim, dtype=torch.float64)
        centre[number % dim] = apart * (1 + number // dim)
        parts.append(centre + noise @ shape)
    labels = torch.cat([torch.full((len(part),), c) for c, part in enumerate(parts)])
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat(parts)[order].to(dtype), labels[order]


def linear(width, units, dtype=torch.float64, bias=True):
    return nn.Linear(width, units, bias=bias, dtype=dtype)


LAYERS = {
    "Linear": linear,
    "PointSlope": lambda width, units, dtype: PointSlope(width, units, dtype=dtype),
    "OffsetL2": lambda width, units, dtype: OffsetL2(width, units, dtype=dtype),
}

STARTS = {
    "kaiming": lambda layer, x, y, **given: kaiming_(layer, **given),
    "sample_point_bias": lambda layer, x, y, **given: sample_point_bias_(layer, x, **given),
    "whiten": lambda layer, x, y, **given: whiten_(layer, x, **given),
    "cluster_pca": lambda layer, x, y, **given: cluster_pca_(layer, x, **given),
    "class_mean": lambda layer, x, y, **given: class_mean_(layer, x, y, **given),
    "lsuv": lambda layer, x, y, **given: lsuv_(layer, x, **given),
}
assert STARTS.keys() == METHODS.keys()


def state_of(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same_state(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
