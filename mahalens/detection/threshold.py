"""Conformal thresholds: reject a stated share of known samples, whatever their distribution."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.errors import InputError

_PAIRS = 2**24  # comparisons of a score with a calibration score that are held at once


class Calibration(nn.Module):
    """p-values of scores, and a threshold that rejects a stated share of known samples.

    Let s₁ ... sₙ be the scores of known samples that took no part in fitting the detector. The
    conformal p-value of a new score s is the share of them that are as unusual, with one number u
    from [0, 1]. It is drawn when the calibration is made, by the order in which the scores came,
    which says nothing about their values::

        p(s) = (#{sᵢ > s} + u (1 + #{sᵢ = s})) / (n + 1)        reject where p(s) ≤ rate

    If the new sample is exchangeable with the calibration samples, p is uniform on [0, 1]. So a
    known sample is rejected with probability ``rate``: exactly, for any n and any distribution of
    scores, on average over draws of the calibration samples. One draw of n samples misses the rate
    by about √(rate (1 − rate) / n). With ``exact=False`` u is 1, and the probability is at most
    ``rate``: lower by up to 1 / (n + 1).

    ``groups`` (say, the nearest class of each sample) make the same promise within each group. A
    group with fewer than ``least`` scores has no threshold of its own: all such groups share one.

    Args:
        scores: [n], larger = less like anything known.
        groups: [n], whole numbers from 0 to ``group_count`` − 1, or None.
        group_count: G; the largest group + 1 if not given.
        rate: share of known samples to reject, between 0 and 1.
        least: fewest scores that make a threshold of their own.
        exact: see above.
        seed: of u; by default the order of the scores.

    Shapes: scores ``[N]`` to p-values ``[N]``.

    >>> calibration = Calibration(torch.arange(99.0), rate=0.05, exact=False)
    >>> calibration.p_value(torch.tensor([-1.0, 49.0, 98.5]))
    tensor([1.0000, 0.5100, 0.0100])
    >>> calibration.reject(torch.tensor([93.5, 94.5]))
    tensor([False,  True])
    """

    scores: Tensor
    cells: Tensor
    cell_of: Tensor
    u: Tensor
    threshold: Tensor
    rate: Tensor

    def __init__(
        self,
        scores: Tensor,
        groups: Tensor | None = None,
        *,
        group_count: int | None = None,
        rate: float = 0.05,
        least: int = 100,
        exact: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        share = check_rate(rate)
        scores = torch.as_tensor(scores).detach()
        if scores.ndim != 1 or not scores.is_floating_point():
            raise InputError(f"scores have shape {tuple(scores.shape)}; give floats [n]")
        if not bool(scores.isfinite().all()):
            bad = int((~scores.isfinite()).sum())
            raise InputError(
                f"{bad} of {len(scores)} calibration scores are not finite numbers; leave out such "
                "samples, or choose another method"
            )
        require_enough(len(scores), share)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if groups is None:
            groups, group_count = torch.zeros(len(scores), dtype=torch.long), 1
        cell_of = _cells(groups.cpu().long(), group_count, max(least, _fewest(share)))
        cells = cell_of[groups.cpu().long()]
        if seed is None:  # another draw of samples has another order, and so another u
            seed = zlib.crc32(scores.argsort(stable=True).cpu().numpy().tobytes())
        generator = torch.Generator().manual_seed(seed)
        count = int(cell_of.max()) + 1
        u = torch.rand(count, generator=generator, dtype=torch.float64) if exact else torch.ones(1)
        self.register_buffer("scores", scores)
        self.register_buffer("cells", cells.to(scores.device))
        self.register_buffer("cell_of", cell_of.to(scores.device))
        self.register_buffer("u", u.double().expand(count).contiguous().to(scores.device))
        self.register_buffer("threshold", scores.new_zeros(count))
        self.register_buffer("rate", torch.tensor(share, dtype=torch.float64, device=scores.device))
        self.set_rate(share)

    @torch.no_grad()
    def set_rate(self, rate: float) -> Calibration:
        """Set the share of known samples to reject."""
        share = check_rate(rate)
        sizes = torch.bincount(self.cells, minlength=len(self.u))
        require_enough(int(sizes.min()), share)
        self.rate.fill_(share)
        for cell, size in enumerate(sizes.tolist()):
            falling = self.scores[self.cells == cell].sort(descending=True).values
            self.threshold[cell] = _threshold(falling, float(self.u[cell]), share * (size + 1))
        return self

    def p_value(self, scores: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the p-value of each score [N]; ``groups`` [N] if there are groups."""
        cells = self._cells_of(scores, groups)
        if torch.compiler.is_compiling():
            return self._p_values(scores, cells)
        rows = max(1, _PAIRS // len(self.scores))
        parts = [
            self._p_values(some, cell)
            for some, cell in zip(scores.split(rows), cells.split(rows), strict=True)
        ]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def reject(self, scores: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return True [N] where the p-value is at most the rate. NaN is rejected."""
        cells = self._cells_of(scores, groups)
        # Not "above the threshold": that would accept NaN.
        return ~(scores.to(self.threshold.dtype) <= self.threshold[cells])

    def thresholds(self) -> Tensor:
        """Return the score [G] of each group above which a sample is rejected."""
        return self.threshold[self.cell_of]

    def _cells_of(self, scores: Tensor, groups: Tensor | None) -> Tensor:
        if groups is None:
            if len(self.cell_of) > 1:
                raise InputError("this calibration has groups; give the group of each score")
            return torch.zeros_like(scores, dtype=torch.long)
        return self.cell_of[groups]

    def _p_values(self, scores: Tensor, cells: Tensor) -> Tensor:
        scores = scores.to(self.scores.dtype)[:, None]
        same = cells[:, None] == self.cells
        above = ((self.scores > scores) & same).sum(1)
        level = ((self.scores == scores) & same).sum(1)
        # A score that is NaN is above nothing and level with nothing: its p-value is the smallest.
        share = (above + self.u[cells] * (1 + level)) / (1 + same.sum(1))
        return share.to(self.scores.dtype)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        # The number of scores and groups is that of the file.
        for name, buffer in list(self.named_buffers()):
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor) and value.shape != buffer.shape:
                setattr(self, name, buffer.new_empty(value.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Return the rate and how it was set."""
        groups = f", groups={len(self.cell_of)}" if len(self.cell_of) > 1 else ""
        return f"rate={float(self.rate):g}, samples={len(self.scores)}{groups}"


def check_rate(rate: object) -> float:
    """Return a share strictly between 0 and 1, or raise."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < float(rate) < 1:
        raise InputError(
            f"reject rate is {rate!r}; give a number between 0 and 1, such as 0.05 to reject "
            "5 % of known samples"
        )
    return float(rate)


def _fewest(rate: float) -> int:
    """Return the fewest scores that can keep a rate: the largest has p-value 1 / (n + 1)."""
    return max(1, math.ceil(round(1 / rate, 9)) - 1)


def require_enough(count: int, rate: float, seen: int | None = None) -> None:
    """Raise where so few scores cannot keep a rate; ``seen`` are all samples, held out or not."""
    if count >= (least := _fewest(rate)):
        return
    if seen is None:
        few, remedy = f"{count} samples", f"give at least {least}, or a higher rate"
    else:
        few = f"the {count} held out of {seen} samples"
        remedy = f"{least} are needed: give more samples, a larger hold_out or a higher rate"
    raise InputError(f"a reject rate of {rate:g} cannot be set from {few}; {remedy}")


def _cells(groups: Tensor, group_count: int | None, least: int) -> Tensor:
    """Return the cell of each group [G]: its own if it has enough scores, else one they share.

    Where the small groups together have too few, the smallest of the large ones joins them.
    """
    if groups.numel() and int(groups.min()) < 0:
        raise InputError(f"group {int(groups.min())} is negative; groups count from 0")
    count = max(int(groups.max()) + 1, group_count or 1)
    sizes = torch.bincount(groups, minlength=count)
    small = sizes < least
    while bool(small.any()) and not bool(small.all()) and int(sizes[small].sum()) < least:
        large = torch.where(small, sizes.max() + 1, sizes)
        small[large.argmin()] = True
    cells = torch.zeros(count, dtype=torch.long)
    first = 1 if bool(small.any()) else 0
    cells[~small] = torch.arange(first, first + int((~small).sum()))
    return cells


def _threshold(falling: Tensor, u: float, allowed: float) -> Tensor:
    """Return the t for which s > t exactly where ``#{sᵢ > s} + u (1 + #{sᵢ = s}) ≤ allowed``."""
    most = math.floor(round(allowed - u, 9))  # scores that may be above a rejected one
    if most < 0:
        return falling.new_tensor(math.inf)
    if most >= len(falling):
        return falling.new_tensor(-math.inf)
    value = falling[most]
    above, level = int((falling > value).sum()), int((falling == value).sum())
    if above + u * (1 + level) <= allowed:  # a score equal to it is rejected too
        return torch.nextafter(value, value.new_tensor(-math.inf))
    return value
