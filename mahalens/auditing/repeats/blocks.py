"""Pairs of rows with (nearly) the same or the opposite direction, found block by block.

All cosines of K rows are a K x K matrix, too large to keep for many rows. Blocks of it are
computed in float32 to find candidates, and the candidates again in float64. Of the pairs found
only the best are kept, so that memory stays bounded when most rows point in one direction.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mahalens.auditing._inputs import as_bias, as_weight, unit_rows

# Cosines closer than this count as equal, so that rounding does not decide between exact mirrors.
COSINE_DECIMALS = 12

# Rows that are converted to float64 at once.
_ROWS = 256


class Directions:
    """The directions of a layer's rows, in float32; exact ones are computed where asked for.

    Attributes:
        usable: which rows have a direction: not zero, weight and bias finite [K].
        offset: ``b / ‖w‖``, where the hyperplane lies along the normal [K], float64.
        shadows: the direction along some fixed random ones [K, S], float64.
    """

    def __init__(self, weight: Tensor, bias: Tensor, shadows: int) -> None:
        if weight.dim() != 2 or 0 in weight.shape:
            as_weight(weight)  # raises
        offsets = as_bias(bias, weight, finite=False)
        units, columns = weight.shape
        self._weight = weight
        self.usable = torch.zeros(units, dtype=torch.bool)
        self.offset = torch.zeros(units, dtype=torch.float64)
        self.shadows = torch.zeros(units, shadows, dtype=torch.float64)
        self._unit = torch.zeros(units, columns, dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        axes = torch.randn(columns, shadows, generator=generator, dtype=torch.float64)
        axes = axes / torch.linalg.vector_norm(axes, dim=0)
        for start in range(0, units, _ROWS):
            part = slice(start, start + _ROWS)
            unit, length = unit_rows(as_weight(weight[part], finite=False))
            usable = (length > 0) & unit.isfinite().all(dim=1) & offsets[part].isfinite()
            unit[~usable] = 0
            self.usable[part] = usable
            self.offset[part] = torch.where(usable, offsets[part] / length, 0.0)
            self.shadows[part] = unit @ axes
            self._unit[part] = unit

    def __len__(self) -> int:
        return len(self._unit)

    def exact(self, rows: Tensor) -> Tensor:
        """These rows at unit length [n, D], float64."""
        return unit_rows(as_weight(self._weight[rows.to(self._weight.device)], finite=False))[0]

    def near_pairs(
        self, members: Tensor, cosine: float, block: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Pairs i < j of the members with ``|cos(wᵢ, wⱼ)| > cosine``, a block at a time.

        Args:
            members: usable rows, ascending [n].
            cosine: the threshold, 0 to 1.
            block: rows and columns of a block.

        Yields:
            i, j, and the cosine in float64, rounded to :data:`COSINE_DECIMALS` decimals.
        """
        # A float32 product of unit vectors of length D is off by at most D roundings of 2⁻²⁴, in
        # whatever order it is summed, and by two more for the rounding of the vectors.
        bound = cosine - 1.01 * (self._unit.shape[1] + 4) * 2.0**-24
        for top in range(0, len(members), block):
            rows = members[top : top + block]
            left = self._unit[rows].numpy()
            for side in range(top, len(members), block):
                columns = members[side : side + block]
                # numpy, since torch may be told to multiply float32 in fewer digits.
                cosines = left @ self._unit[columns].numpy().T
                if side == top:
                    np.fill_diagonal(cosines, 0.0)
                if cosines.max() <= bound and cosines.min() >= -bound:
                    continue  # nearly always, and much quicker than looking for places
                near = np.abs(cosines) > bound
                if side == top:
                    near = np.triu(near, 1)
                first, second = (torch.from_numpy(axis) for axis in np.nonzero(near))
                if len(first):
                    exact = self._cosines(rows, columns, first, second)
                    sure = exact.abs() > cosine
                    yield rows[first[sure]], columns[second[sure]], exact[sure]

    def _cosines(self, rows: Tensor, columns: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Cosines of ``rows[first]`` and ``columns[second]`` in float64 [n]."""
        used_rows, first = first.unique(return_inverse=True)
        used_columns, second = second.unique(return_inverse=True)
        left, right = self.exact(rows[used_rows]), self.exact(columns[used_columns])
        # One product of matrices costs as much per entry as some hundredth of a lone product.
        if 128 * len(first) > len(left) * len(right):
            cosines = (left @ right.T)[first, second]
        else:
            cosines = torch.cat(
                [
                    (left[i] * right[j]).sum(dim=1)
                    for i, j in zip(first.split(_ROWS), second.split(_ROWS), strict=True)
                ]
            )
        return torch.round(cosines, decimals=COSINE_DECIMALS)


class BestPairs:
    """The pairs of least value among all that are added, lower indices first among equals.

    At most twice ``capacity`` pairs are held at any time, and ``capacity`` at the end.
    """

    def __init__(self, units: int, capacity: int) -> None:
        self.seen = 0
        self._units, self._capacity = units, capacity
        self._values = torch.zeros(0, dtype=torch.float64)
        self._codes = torch.zeros(0, dtype=torch.int64)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._held = 0
        self._last: tuple[float, int] | None = None

    @property
    def dropped(self) -> bool:
        """Whether pairs had to be let go."""
        return self.seen > self._capacity

    def add(self, values: Tensor, first: Tensor, second: Tensor) -> None:
        """Offer pairs (first, second) with their values [n]."""
        self.seen += len(values)
        codes = first * self._units + second
        if self._last is not None:  # what is worse than the worst of a full house need not wait
            value, code = self._last
            better = (values < value) | ((values == value) & (codes < code))
            values, codes = values[better], codes[better]
        self._waiting.append((values, codes))
        self._held += len(values)
        if self._held > self._capacity:
            self._sort()

    def sorted(self) -> tuple[Tensor, Tensor]:
        """The pairs (first [n], second [n]), best first."""
        self._sort()
        first = torch.div(self._codes, self._units, rounding_mode="floor")
        return first, self._codes % self._units

    def _sort(self) -> None:
        values = torch.cat([self._values, *(value for value, _ in self._waiting)])
        codes = torch.cat([self._codes, *(code for _, code in self._waiting)])
        codes, order = codes.sort()
        values, by_value = values[order].sort(stable=True)
        self._values = values[: self._capacity]
        self._codes = codes[by_value][: self._capacity]
        if len(self._codes) == self._capacity:
            self._last = (float(self._values[-1]), int(self._codes[-1]))
        self._waiting, self._held = [], 0
