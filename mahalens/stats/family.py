"""Many comparisons at once: p-values adjusted so that the whole family errs in 5 % of cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from numpy.typing import ArrayLike

from mahalens.errors import InputError
from mahalens.stats.two_models import Comparison, compare


class FamilyComparison(msgspec.Struct, frozen=True):
    """Two models of a family with the p-values of each test, Holm-adjusted over the family.

    ``result`` holds the p-values as they are. An adjusted one is ``None`` where that is; such a
    comparison does not count towards the size of the family.
    """

    a: str
    b: str
    result: Comparison
    holm_paired: float | None
    holm_welch: float | None
    holm_wilcoxon: float | None
    holm_preferred: float | None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values, in the order of the given ones.

    With the m values in ascending order, the k-th (from 0) becomes the largest of
    ``min(1, (m - j) pⱼ)``, j <= k. ``None`` and NaN stay ``None`` and do not count.

    Reference:
        S. Holm, A simple sequentially rejective multiple test procedure, 1979.

    Example:
        >>> holm([0.01, 0.04, None, 0.03])
        [0.03, 0.06, None, 0.06]
    """
    known = [(p, i) for i, p in enumerate(p_values) if p is not None and not math.isnan(p)]
    for p, i in known:
        if not 0 <= p <= 1:
            raise InputError(
                f"p-value {p!r} at place {i} is outside 0 to 1; pass p-values, None where a test "
                "was not defined"
            )
    adjusted: list[float | None] = [None] * len(p_values)
    reached = 0.0
    for k, (p, i) in enumerate(sorted(known)):
        reached = max(reached, min(1.0, (len(known) - k) * float(p)))
        adjusted[i] = reached
    return adjusted


def compare_family(
    trials: Mapping[str, ArrayLike], pairs: Sequence[tuple[str, str]]
) -> list[FamilyComparison]:
    """Compare the named pairs of models, with p-values adjusted over all of them.

    Each test is adjusted by itself, over its own p-values of the whole family; ``preferred`` over
    those of the test that each pair prefers.

    Args:
        trials: one metric over the same trials [T] for each model.
        pairs: which models to compare, each two of them once and in either order.

    Example:
        >>> trials = {"x": [1, 2, 3, 4], "y": [2, 3, 5, 7], "z": [1, 3, 2, 5]}
        >>> for c in compare_family(trials, [("x", "y"), ("x", "z")]):
        ...     print(c.a, c.b, round(c.result.paired_p, 3), round(c.holm_paired, 3))
        x y 0.035 0.071
        x z 0.638 0.638
    """
    _check(trials, pairs)
    results = [compare(trials[a], trials[b]) for a, b in pairs]
    paired = holm([result.paired_p for result in results])
    welch = holm([result.welch_p for result in results])
    wilcoxon = holm([result.wilcoxon_p for result in results])
    preferred = holm([result.preferred_p for result in results])
    return [
        FamilyComparison(
            a=a,
            b=b,
            result=results[i],
            holm_paired=paired[i],
            holm_welch=welch[i],
            holm_wilcoxon=wilcoxon[i],
            holm_preferred=preferred[i],
        )
        for i, (a, b) in enumerate(pairs)
    ]


def _check(trials: Mapping[str, ArrayLike], pairs: Sequence[tuple[str, str]]) -> None:
    """Refuse pairs that cannot be compared, and those that would count twice in the family."""
    seen: set[frozenset[str]] = set()
    for a, b in pairs:
        for name in (a, b):
            if name not in trials:
                raise InputError(
                    f"model {name!r} has no trials; pass pairs of {', '.join(map(repr, trials))}"
                )
        pair = frozenset((a, b))
        if len(pair) == 1 or pair in seen:
            raise InputError(
                f"pair ({a!r}, {b!r}) "
                + ("is one model twice" if len(pair) == 1 else "was given before")
                + "; pass each two models once, as every pair costs the others power"
            )
        seen.add(pair)
