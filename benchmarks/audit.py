"""What an audit costs beside the forward passes and matrix products that it needs.

    python benchmarks/audit.py [--quick] [--only NETWORK] [--json FILE]

Every case audits a network on random samples, without perturbation. Against it stands what no
audit can do without: the plain forward passes over the same batches, the products XᵀX of the rows
that each layer is fed (of a convolution: of the patches that the audit draws), and the products of
the rows of each layer with each other, by which pairs are found, each alone and in float32 or
float64 as the audit has them ("limit"). "ratio" is the audit's time divided by the limit's; the
goal is 2. Both work in one process, taking turns; the figures are medians. "grown" is how much
more memory an audit of ten times as many samples takes at its peak than one of the first tenth,
in bytes allocated by the process beyond the data themselves.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import torch
from measure import alternate, arguments, finish
from torch import Tensor, nn

import mahalens
from mahalens.audit.gather.input_rows import Covariance, rows_fed
from mahalens.audit.pairs import read_pairs
from mahalens.audit.record import Settings
from mahalens.audit.watch.batches import Batches
from mahalens.audit.watch.forward import Runner
from mahalens.audit.watch.trace import Use
from mahalens.audit.watch.untouched import untouched

BATCH = 512


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    """The network of source 003, twice as deep."""
    layers = [nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), (784,)


def wide() -> tuple[nn.Module, tuple[int, ...]]:
    """Wide layers: products are most of the work."""
    layers = [nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 100)), (1024,)


def convnet() -> tuple[nn.Module, tuple[int, ...]]:
    """Three convolutions with batch norm and pooling."""

    def block(given: int, made: int) -> list[nn.Module]:
        return [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU()]

    layers = [*block(1, 16), nn.MaxPool2d(2), *block(16, 32), nn.MaxPool2d(2), *block(32, 64)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers, *head), (1, 28, 28)


class Encoder(nn.Module):
    """Two layers of a transformer's encoder and a head."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores from the mean over positions."""
        return self.head(self.encoder(x).mean(1))


def transformer() -> tuple[nn.Module, tuple[int, ...]]:
    """Sequences of 32 positions."""
    return Encoder(), (32, 128)


NETWORKS: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[int, ...]]], int]] = {
    "mlp": (mlp, 20_000),
    "wide": (wide, 8_000),
    "convnet": (convnet, 4_000),
    "transformer": (transformer, 2_000),
}


def case(name: str, quick: bool) -> dict[str, Any]:
    """Times of the audit and of its limit, and the memory it takes."""
    build, samples = NETWORKS[name]
    samples = 600 if quick else samples
    torch.manual_seed(0)
    model, shape = build()
    model.eval()
    x, y = torch.randn(samples, *shape), torch.randint(0, 10, (samples,))

    def ours() -> None:
        mahalens.audit(model, (x, y), batch_size=BATCH)

    sides = {"ours": ours, "forward": forward(model, x), "products": products(model, x)}
    taken = alternate(sides, 1 if quick else 7)
    limit = taken["forward"] + taken["products"]
    few, many = (peak(model, x[:count], y[:count]) for count in (samples // 10, samples))
    return {
        "case": name,
        "samples": samples,
        "ours_s": taken["ours"],
        "forward_s": taken["forward"],
        "products_s": taken["products"],
        "limit_s": limit,
        "ratio": taken["ours"] / limit,
        "grown": many - few,
    }


def forward(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """The forward passes alone."""

    def work() -> None:
        with torch.no_grad():
            for start in range(0, len(x), BATCH):
                model(x[start : start + BATCH])

    return work


def products(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """The products alone, of rows gathered beforehand."""
    settings = Settings()
    rows: dict[str, list[Tensor]] = {}
    weights: dict[str, Tensor] = {}
    draw = torch.Generator().manual_seed(0)
    batches = Batches(x, BATCH)
    runner = Runner(model)

    def see(use: Use) -> None:
        weights[use.name] = use.weight.detach().flatten(1).double()
        if weights[use.name].shape[1] <= settings.widest:
            rows.setdefault(use.name, []).append(rows_fed(use, settings.patches, draw).clone())

    with untouched(model):
        for batch in batches:
            runner.run(batch, see)

    def work() -> None:
        for name, weight in weights.items():
            if name in rows:
                covariance = Covariance(weight.shape[1])
                for part in rows[name]:
                    covariance.add(part)
                covariance.result()
            read_pairs(weight, torch.zeros(len(weight)).double())

    return work


def peak(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Peak memory of the process so far, after an audit, in bytes."""
    mahalens.audit(model, (x, y), batch_size=BATCH, examples=False)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure all cases and print a table."""
    options = arguments(__doc__, tuple(NETWORKS))
    chosen = [options.only] if options.only else list(NETWORKS)
    finish("audit", [case(name, options.quick) for name in chosen], options)


if __name__ == "__main__":
    main()
