"""Class distributions along hidden nodes (figure 1 of source 003)."""

from __future__ import annotations

import torch
from torch import Tensor

from mahalens.studies.representation.config import DEFAULT_NODES
from mahalens.studies.representation.reading import part_of
from mahalens.train import TrialStack

BINS = 48


def latent_distributions(
    stack: TrialStack, trial: int, x: Tensor, y: Tensor, classes: int, nodes: tuple[int, ...]
) -> dict[str, Tensor]:
    """Histograms of the hidden layer's pre-activations by class, for some nodes of one trial.

    Without ``nodes``, those whose class means differ most in units of the spread within classes
    (the largest F statistics). Moments are mean, variance and skewness.

    Returns ``nodes`` ``[K]``, ``edges`` ``[K, B+1]``, ``counts`` ``[K, C, B]``, ``moments``
    ``[K, C, 3]``.
    """
    first = part_of(stack, 1)
    alone = TrialStack(first.model, first.values[trial : trial + 1])
    values = alone(x)[0].double()  # [N, H]
    if not bool(values.isfinite().all()):  # a trial that ran away has no distributions
        return {}
    chosen = list(nodes) or _most_telling(values, y, classes)
    values = values[:, chosen]
    edges, counts, moments = [], [], []
    for column in values.T.contiguous():
        low, high = column.quantile(torch.tensor([0.001, 0.999], dtype=column.dtype)).tolist()
        room = 0.05 * (high - low) or 1.0
        low, high = low - room, high + room
        cut = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
        place = torch.bucketize(column, cut[1:-1])  # what lies outside counts to the ends
        table = torch.zeros(classes, BINS, dtype=torch.int64)
        table.index_put_((y, place), torch.ones_like(y), accumulate=True)
        edges.append(cut)
        counts.append(table)
        moments.append(_moments(column, y, classes))
    return {
        "nodes": torch.tensor(chosen),
        "edges": torch.stack(edges),
        "counts": torch.stack(counts),
        "moments": torch.stack(moments),
    }


def _most_telling(values: Tensor, y: Tensor, classes: int) -> list[int]:
    """The nodes whose classes lie furthest apart, by their F statistic, in order."""
    sizes = torch.bincount(y, minlength=classes).double()[:, None]
    sums = torch.zeros(classes, values.shape[1], dtype=values.dtype).index_add_(0, y, values)
    means = sums / sizes.clamp(min=1)
    within = (values - means[y]).square().sum(0)
    between = (sizes * (means - values.mean(0)).square()).sum(0)
    ratio = torch.where(within > 0, between / within, 0.0).nan_to_num(0.0)
    return sorted(ratio.topk(min(DEFAULT_NODES, len(ratio))).indices.tolist())


def _moments(values: Tensor, y: Tensor, classes: int) -> Tensor:
    """Mean, variance and skewness [C, 3]; NaN where a class has no samples or no spread."""
    sizes = torch.bincount(y, minlength=classes).to(values.dtype)

    def average(of: Tensor) -> Tensor:
        return torch.zeros_like(sizes).index_add_(0, y, of) / sizes

    mean = average(values)
    rest = values - mean[y]
    variance, third = average(rest.square()), average(rest.pow(3))
    return torch.stack([mean, variance, third / variance.pow(1.5)], dim=1)
