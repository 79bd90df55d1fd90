"""What an audit costs beside the forward passes and matrix products that it needs.

    python benchmarks/audit.py [--quick] [--only NETWORK] [--json FILE]

Every case audits a network on random samples, without perturbation. Against it stands what the
audit cannot do without: the plain forward passes over the same batches, and its matrix products
("limit"): XᵀX of the rows that each layer is fed (of a convolution: of the patches that the audit
draws; of a layer too wide for that: of its outputs), and the rows of each layer with each other, by
which pairs are found, in the precision that the audit has them in. "ratio" is the audit's time
divided by the limit's; the goal is 2. "decompose_s" are the eigenvalues of the layers' covariances
alone, which are no matrix products and do not depend on the number of samples; "of_all" is the
ratio with these among what is needed. All sides work in one process, taking turns; the figures are
medians. "peak_mb" is by how much a fresh process grows at most while it audits the samples in
batches of 64, and "peak_4x_mb" while it audits four times as many; their data do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measure import Work, alternate, arguments, finish, peak_growth
from torch import Tensor, nn

import mahalens
from mahalens.auditing.batches import DataBatches
from mahalens.auditing.gather import Covariance, rows_fed
from mahalens.auditing.pairs import read_pairs
from mahalens.auditing.record import Settings
from mahalens.auditing.runner import Runner, untouched
from mahalens.auditing.trace import Use

BATCH = 512


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    """The network of Neural Networks Learn Distance Metrics, twice as deep."""
    layers = [nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), (784,)


def wide(width: int = 1024) -> tuple[nn.Module, tuple[int, ...]]:
    """Wide layers: products are most of the work."""
    layers = [nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 100)), (width,)


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
    "mlp": (mlp, 60_000),
    "wide": (wide, 8_000),
    "convnet": (convnet, 5_000),
    "transformer": (transformer, 2_000),
}


def case(name: str, quick: bool) -> dict[str, Any]:
    """Times of the audit and of its limit, and the memory it takes."""
    build, samples = NETWORKS[name]
    samples = 100 if quick else samples
    torch.manual_seed(0)
    model, shape = wide(64) if quick and name == "wide" else build()
    model.eval()
    x, y = torch.randn(samples, *shape), torch.randint(0, 10, (samples,))

    sides = {
        "ours": auditing(model, x, y),
        "forward": forward(model, x),
        **products(model, x),
    }
    taken = alternate(sides, 1 if quick else 5)
    limit = taken["forward"] + taken["products"]
    return {
        "case": name,
        "samples": samples,
        "ours_s": taken["ours"],
        "forward_s": taken["forward"],
        "products_s": taken["products"],
        "limit_s": limit,
        "ratio": taken["ours"] / limit,
        "decompose_s": taken["decompose"],
        "of_all": taken["ours"] / (limit + taken["decompose"]),
        "peak_mb": None if quick else peak_growth(growing, (name, 64), (name, samples)),
        "peak_4x_mb": None if quick else peak_growth(growing, (name, 64), (name, 4 * samples)),
    }


def auditing(model: nn.Module, x: Tensor, y: Tensor, batch: int = BATCH) -> Work:
    """The audit."""

    def work() -> None:
        mahalens.audit(model, (x, y), batch_size=batch)

    return work


def growing(name: str, samples: int) -> Work:
    """The audit of some samples, in a process of its own."""
    torch.manual_seed(0)
    model, shape = NETWORKS[name][0]()
    return auditing(model, torch.randn(samples, *shape), torch.arange(samples) % 10, batch=64)


def forward(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """The forward passes alone."""

    def work() -> None:
        with torch.no_grad():
            for start in range(0, len(x), BATCH):
                model(x[start : start + BATCH])

    return work


def products(model: nn.Module, x: Tensor) -> dict[str, Work]:
    """The products alone, of rows gathered beforehand, and the eigenvalues that follow."""
    settings = Settings()
    rows: dict[str, list[Tensor]] = {}
    weights: dict[str, Tensor] = {}
    draw = torch.Generator().manual_seed(0)
    runner = Runner(model)

    def see(use: Use) -> None:
        weight = weights[use.name] = use.weight.detach().flatten(1).double()
        if weight.shape[1] <= settings.widest:
            fed = rows_fed(use, settings.patches, draw)
        else:  # too wide: the covariance of the outputs takes the place of the inputs'
            fed = use.output.reshape(-1, len(weight))
        rows.setdefault(use.name, []).append(fed.clone())

    with untouched(model):
        for batch in DataBatches(x, BATCH):
            runner.run(batch, see)
    found: dict[str, Tensor] = {}

    def multiply() -> None:
        for name, weight in weights.items():
            covariance = Covariance(rows[name][0].shape[1])
            for part in rows[name]:
                covariance.add(part)
            found[name] = covariance.result()[1]
            read_pairs(weight, torch.zeros(len(weight)).double())

    def decompose() -> None:
        for name, covariance in found.items():
            torch.linalg.eigh(covariance)
            small = min(weights[name].shape)
            torch.linalg.eigvalsh(covariance[:small, :small])

    return {"products": multiply, "decompose": decompose}


def main() -> None:
    """Measure all cases and print a table."""
    options = arguments(__doc__, tuple(NETWORKS))
    chosen = [options.only] if options.only else list(NETWORKS)
    finish("audit", [case(name, options.quick) for name in chosen], options)


if __name__ == "__main__":
    main()
