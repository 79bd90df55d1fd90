"""Starting weights that are drawn, placed or scaled: Kaiming, class means, whitening, LSUV."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.init.axes import mirrored, principal_axes
from mahalens.init.clusters import by_class, prototypes_of
from mahalens.init.random import kaiming_and_samples, kaiming_rows
from mahalens.init.rows import Rows
from mahalens.init.targets import Hyperplanes, Prototypes


def kaiming(units: int, width: int, generator: torch.Generator | None) -> Hyperplanes:
    """Kaiming-normal rows, hyperplanes through the origin."""
    weight = kaiming_rows(units, width, generator)
    return Hyperplanes(weight, torch.zeros_like(weight))


def drawn_prototypes(units: int, width: int, generator: torch.Generator | None) -> Prototypes:
    """Prototypes about the origin, as :class:`~mahalens.nn.OffsetL2` draws them itself."""
    point = 0.1 * torch.randn(units, width, generator=generator, dtype=torch.float64)
    return Prototypes(point, torch.ones(units, dtype=torch.float64))


def sample_point_bias(units: int, rows: Rows, generator: torch.Generator | None) -> Hyperplanes:
    """Kaiming-normal rows, each hyperplane through a random row."""
    return Hyperplanes(*kaiming_and_samples(rows.values, units, generator))


def sample_prototypes(units: int, rows: Rows, generator: torch.Generator | None) -> Prototypes:
    """Prototypes at random rows, with the spread of all rows."""
    spread = prototypes_of(rows, [torch.arange(rows.count)], units).spread
    chosen = torch.randint(rows.count, (units,), generator=generator)
    return Prototypes(rows.values[chosen], spread)


def class_mean(
    units: int, rows: Rows, generator: torch.Generator | None, *, first: int = 0
) -> Hyperplanes:
    """Kaiming-normal rows, unit k through the mean of class k; they begin again after the last.

    The first of these units has the number ``first``, where they are part of a layer.
    """
    groups = by_class(rows)
    means = torch.stack([rows.values[group].mean(0) for group in groups])
    weight = kaiming_rows(units, rows.width, generator)
    return Hyperplanes(weight, means[(first + torch.arange(units)) % len(means)])


def whiten(
    units: int,
    rows: Rows,
    generator: torch.Generator | None,
    *,
    kind: str = "pca",
    rank: int | None = None,
    mirror: bool = False,
) -> Hyperplanes:
    """Hyperplanes through the mean of all rows whose outputs are white.

    See :func:`mahalens.init.whiten_`.
    """
    if kind not in ("pca", "zca"):
        raise InputError(f"kind is {kind!r}, wanted 'pca' or 'zca'")
    needed = (units + 1) // 2 if mirror else units
    found = principal_axes(rows.values, rows.precision)
    if not found.rank:
        raise InputError(
            f"the {rows.count} rows are constant in all {rows.width} inputs, so that there is "
            f"nothing to whiten; give samples that differ"
        )
    asked = min(needed, rows.width) if rank is None else rank
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= rows.width:
        raise InputError(f"rank is {rank!r}, wanted a whole number from 1 to {rows.width}")
    # Inputs that are constant lower the rank rightly; too few rows lower it by accident.
    if found.rank < asked and (rank is not None or rows.count <= asked):
        raise InputError(
            f"a rank of {asked} is asked, but the {rows.count} rows of {rows.width} inputs vary "
            f"along {found.rank} axes only; give more samples, or rank={found.rank}"
        )
    kept = found.rank if rank is None else rank
    white = found.whitening()[:kept]
    if kind == "zca":
        if kept < rows.width or needed < rows.width:
            raise InputError(
                f"zca has an output for each of the {rows.width} inputs, but {needed} units are "
                f"wanted and the rows vary along {kept} axes; take kind='pca'"
            )
        white = found.directions.T @ white
    weight = _rotated_copies(white, needed, generator)
    weight = mirrored(weight, units) if mirror else weight
    return Hyperplanes(weight, found.mean.expand_as(weight))


def lsuv(units: int, rows: Rows, generator: torch.Generator | None) -> Hyperplanes:
    """Orthonormal rows (or columns) times the one number that gives all outputs variance 1."""
    weight = torch.empty(units, rows.width, dtype=torch.float64)
    nn.init.orthogonal_(weight, generator=generator)
    outputs = rows.values @ weight.T
    variance = float(outputs.var(correction=0))
    size = float(outputs.square().mean())
    if not variance > (4 * rows.precision) ** 2 * size:
        raise InputError(
            f"the outputs of {units} units on {rows.count} rows are constant, so that no scale "
            f"gives them variance 1; give samples that differ"
        )
    weight = weight / variance**0.5
    return Hyperplanes(weight, torch.zeros_like(weight))


def _rotated_copies(white: Tensor, units: int, generator: torch.Generator | None) -> Tensor:
    """The first ``units`` of: the R rows, and copies of them turned at random within their span.

    ``Q W`` of a whitening W is one for every orthogonal Q. Each copy has a Q of its own.
    """
    rank = len(white)
    copies = [white[:units]]
    for start in range(rank, units, rank):
        turn = torch.empty(rank, rank, dtype=torch.float64)
        nn.init.orthogonal_(turn, generator=generator)
        copies.append((turn @ white)[: units - start])
    return torch.cat(copies)
