"""What the tests of ``mahalens.nn`` share: every module beside its formula written out."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU, DistanceHead, Mahalanobis, Neg, Norm, OffsetL2, PointSlope

DTYPES = [torch.float32, torch.float64]
HALVES = [torch.float16, torch.bfloat16]
METRICS = [
    {"metric": "euclidean"},
    {"metric": "diagonal"},
    {"metric": "low-rank", "rank": 2},
    {"metric": "low-rank", "rank": 2, "remainder": "diagonal"},
    {"metric": "shared", "rank": 3},
]
LOGITS = ["distance", "squared", "density"]


def draw(shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def refuses(message, call, *arguments, error=InputError, **options):
    """The call raises one line that matches the message from its start; returns that line."""
    with pytest.raises(error, match=f"^{message}") as caught:
        call(*arguments, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line


def offset_l2(x, mu, alpha, variant="paper"):
    """The formulas as they are printed, with every difference at once."""
    difference = x[..., None, :] - mu  # [..., K, D]
    if variant == "paper":
        return torch.linalg.vector_norm(alpha * difference, dim=-1)
    return (alpha * difference**2).sum(-1).clamp(min=1e-12).sqrt()


def point_slope(x, weight, point):
    return (weight * (x[..., None, :] - point)).sum(-1)


def covariances(axes, log_spread):
    """Σ [C, D, D], or [1, D, D] if shared."""
    variances = (2 * log_spread).exp().expand(-1, axes.shape[-1])
    return torch.diag_embed(variances) + axes.mT @ axes


def squares(x, mu, covariance):
    """d² with Σ inverted."""
    delta = x[..., None, :] - mu
    return ((delta[..., None, :] @ torch.linalg.inv(covariance))[..., 0, :] * delta).sum(-1)


def mahalanobis(x, mu, axes, log_spread):
    return squares(x, mu, covariances(axes, log_spread)).sqrt()


def head(x, state, logits):
    """Logits with Σ put together and inverted."""
    if "distance.axes" in state:
        covariance = covariances(state["distance.axes"], state["distance.log_spread"])
    else:
        covariance = torch.diag_embed(state["distance.alpha"].square().reciprocal())
    square = squares(x, state["distance.mu"], covariance)
    if logits == "distance":
        return -square.sqrt() / state["temperature"]
    volume = torch.logdet(covariance) if logits == "density" else 0
    return -(square + volume) / 2 / state["temperature"]


def abs_relu(x, state):
    pairs = zip(x.unbind(-1), state["absolute"].tolist(), strict=True)
    return torch.stack([z.abs() if marked else z.clamp(min=0) for z, marked in pairs], -1)


class Case(NamedTuple):
    make: Callable
    """From inputs D and units K, with dtype and device."""
    formula: Callable
    """From samples and the state of the module, by name."""


def _mahalanobis(**options):
    def make(inputs, units, rank=2, **more):
        return Mahalanobis(inputs, units, min(rank, inputs), **options, **more)

    def formula(x, state):
        found = mahalanobis(x, **state)
        return found.square() if options.get("squared") else found

    return Case(make, formula)


def _head(choice, logits):
    def make(inputs, units, **more):
        ranks = {"rank": min(choice["rank"], inputs)} if "rank" in choice else {}
        return DistanceHead(inputs, units, logits=logits, **{**choice, **ranks}, **more)

    return Case(make, lambda x, state: head(x, state, logits))


CASES = {
    "Abs": Case(lambda inputs, units, **k: Abs(), lambda x, state: torch.maximum(x, -x)),
    "Neg": Case(lambda inputs, units, **k: Neg(), lambda x, state: 0 - x),
    "Norm": Case(
        lambda inputs, units, **k: Norm(), lambda x, state: torch.linalg.vector_norm(x, dim=-1)
    ),
    "AbsReLU": Case(lambda inputs, units, **k: AbsReLU(torch.arange(inputs) % 2 == 0), abs_relu),
    "OffsetL2": Case(OffsetL2, lambda x, state: offset_l2(x, **state)),
    "OffsetL2, published code": Case(
        lambda *sizes, **k: OffsetL2(*sizes, variant="published-code", **k),
        lambda x, state: offset_l2(x, **state, variant="published-code"),
    ),
    "PointSlope": Case(PointSlope, lambda x, state: point_slope(x, **state)),
    "Mahalanobis": _mahalanobis(),
    "Mahalanobis, squared": _mahalanobis(squared=True),
    "Mahalanobis, diagonal": _mahalanobis(remainder="diagonal"),
    "Mahalanobis, shared": _mahalanobis(shared=True),
    "Mahalanobis, shared, diagonal": _mahalanobis(shared=True, remainder="diagonal"),
    "DistanceHead": _head(METRICS[0], "distance"),
    "DistanceHead, diagonal": _head(METRICS[1], "density"),
    "DistanceHead, low-rank": _head(METRICS[2], "density"),
    "DistanceHead, low-rank, diagonal": _head(METRICS[3], "squared"),
    "DistanceHead, shared": _head(METRICS[4], "squared"),
}


def made(name, dtype=torch.float64, inputs=4, units=3, seed=1):
    """A module with parameters away from their starting values, and everything set."""
    module = CASES[name].make(inputs, units, dtype=dtype)
    with torch.no_grad():
        for i, (key, parameter) in enumerate(module.named_parameters()):
            parameter.copy_(0.3 * draw(parameter.shape, seed + i) + key.endswith("alpha"))
    if isinstance(module, DistanceHead):
        module.temperature.fill_(2.0)
        module.set_reject(draw((50, inputs), 9, dtype), 0.1)
    return module


def trained(module):
    return [p for p in module.parameters() if p.requires_grad]
