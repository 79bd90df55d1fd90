"""What the tests of starting weights share: planted clusters, layers, and every method on them."""

import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.init import (
    METHODS,
    class_mean_,
    cluster_pca_,
    initialise,
    kaiming_,
    lsuv_,
    sample_point_bias_,
    whiten_,
)
from mahalens.init.starts import check_fit
from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2, PointSlope

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


def of(kind, **options):
    """A head has a unit for each of the 3 classes of ``planted``, however many are asked for."""

    def make(width, units, dtype):
        return kind(width, 3 if kind is DistanceHead else units, dtype=dtype, **options)

    return make


LAYERS = {
    "Linear": linear,
    "PointSlope": of(PointSlope),
    "OffsetL2": of(OffsetL2),
    "Mahalanobis": of(Mahalanobis, rank=2),
    "shared Mahalanobis": of(Mahalanobis, rank=2, shared=True, remainder="diagonal"),
    "euclidean head": of(DistanceHead),
    "diagonal head": of(DistanceHead, metric="diagonal"),
    "low-rank head": of(DistanceHead, metric="low-rank", rank=2),
    "shared head": of(DistanceHead, metric="shared", rank=2),
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


def start(name, layer, x, labels, **given):
    """Start a layer of any kind; a head, whose prototypes are classes, always with these."""
    if isinstance(layer, DistanceHead):
        initialise(layer, (x, labels), name, **given)
        return layer
    return STARTS[name](layer, x, labels, **given)


def fits(name, kind):
    """Whether the start is one for such layers at all."""
    try:
        check_fit(METHODS[name], LAYERS[kind](4, 3, torch.float64))
    except InputError:
        return False
    return True


PAIRS = [(name, kind) for name in METHODS for kind in LAYERS if fits(name, kind)]
"""Every start with every kind of layer that it is for."""


def state_of(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same_state(one, two, equal_nan=False):
    """Bit for bit; the threshold of a head that has none is NaN."""

    def same(a, b):
        return torch.equal(
            *(torch.nan_to_num(t, nan=-7.0) for t in (a, b)) if equal_nan else (a, b)
        )

    return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
