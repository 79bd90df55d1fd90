"""How trials ended, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mahalens.report.numbers import MISSING, number


def statuses_line(outcome: Mapping[str, Any]) -> str:
    """How many trials ended in which way.

    >>> statuses_line({"statuses": {"zero residual": 14, "local minimum": 6}})
    '14 zero residual, 6 local minimum'

    Where the trials were trained for a fixed time, also where they would have gone:

    >>> statuses_line({"statuses": {"done": 2}, "basins": {"zero residual": 2}})
    '2 done; converged from there: 2 zero residual'
    """
    ends = _counted(outcome["statuses"])
    basins = outcome.get("basins") or {}
    if basins and basins != outcome["statuses"] and "done" in outcome["statuses"]:
        ends += f"; converged from there: {_counted(basins)}"
    return ends or MISSING


def _counted(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{number(amount)} {name}" for name, amount in amounts.items())


def trials_line(trials: Sequence[int]) -> str:
    """Trials by number.

    >>> trials_line([7]), trials_line([3, 7])
    ('trial 7', 'trials 3, 7')
    """
    return f"trial{'' if len(trials) == 1 else 's'} {', '.join(str(t) for t in trials)}"
