"""Networks with one hidden layer as a model starts them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.data import stream
from mahalens.init import check_init, initialise
from mahalens.nn import Chain
from mahalens.studies.init.config import IMAGE_UNITS, TABLE_UNITS
from mahalens.studies.init.models import read_model
from mahalens.studies.paired.samples import Samples

HIDDEN, OUTPUT = "0", "2"


@dataclass(frozen=True)
class Network:
    """A network before training, and how long its start took."""

    chain: Chain
    module: nn.Module
    seconds: float


def hidden_units(samples: Samples) -> int:
    """How many hidden units a network on these samples has."""
    return TABLE_UNITS if samples.image_shape is None else IMAGE_UNITS


def leading_axes(x: Tensor, share: float) -> int:
    """How many principal axes of rows ``[N, D]`` hold a share of their variance.

    >>> leading_axes(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 0.85)
    1
    """
    variances = torch.linalg.eigvalsh(torch.cov(x.double().T)).flip(0).clamp_min(0)
    held = variances.cumsum(0) / variances.sum()
    return int((held < share).sum()) + 1


def start(
    model: str, samples: Samples, x: Tensor, y: Tensor, rows: int, seed: int, *who: str | int
) -> Network:
    """A network started on x ``[N, D]`` and y ``[N]``, from at most so many of these rows.

    Both layers draw from streams of their own named by ``who``, such as ``"trial", 3``: models
    that draw the same numbers get the same ones, so that a Kaiming output layer is the same
    whatever the hidden layer is.
    """
    activation, way = read_model(model)
    text = f"Linear({hidden_units(samples)}), {activation}, Linear({samples.classes})"
    chain = Chain.parse(text, inputs=samples.inputs)
    with torch.random.fork_rng(devices=[]):  # building a module draws weights that are not used
        module = chain.build()
    began = time.perf_counter()
    options = dict(way.options)
    if way.variance is not None:
        options["rank"] = leading_axes(x[:rows], way.variance)
    for layer, method, own in ((HIDDEN, way.hidden, options), (OUTPUT, way.output, {})):
        initialise(
            module,
            (x, y),
            method,
            layers=[layer],
            rows=rows,
            generator=stream(seed, f"start of layer {layer}", *who),
            **own,
        )
    return Network(chain, module, time.perf_counter() - began)


def look(network: Network, x: Tensor, y: Tensor) -> dict[str, float]:
    """What can be said of a network before training: loss, idle units, the longest row."""
    checked = check_init(network.module, x).layer(HIDDEN)
    weight = network.module.get_submodule(HIDDEN).weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        loss = functional.cross_entropy(network.module(x), y)
        longest = weight.norm(dim=1).max()
    return {
        "start_loss": float(loss),
        "idle_units": 100 * (len(checked.dead) + len(checked.outside)) / checked.units,
        "longest_row": float(longest),
    }
