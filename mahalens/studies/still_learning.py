"""A warning about networks that were still gaining when training ended. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

STILL_LEARNING = 1.0
"""Points of test accuracy in the last tenth of the epochs from which on a network is not done."""


def still_learning(gains: Mapping[str, float]) -> list[str]:
    """One sentence if networks were not done, by their mean late gain; none if all were.

    A network without a gain, as all its trials ran away, is not counted.

    >>> still_learning({"relu": 0.2, "abs": 3.0})[0][:62]
    '1 of 2 networks still gained more than 1 point in the last ten'
    """
    known = {name: gain for name, gain in gains.items() if math.isfinite(gain)}
    late = {name: gain for name, gain in known.items() if gain > STILL_LEARNING}
    if not late:
        return []
    most = max(late, key=lambda name: late[name])
    return [
        f"{len(late)} of {len(known)} networks still gained more than {STILL_LEARNING:g} point in "
        f"the last tenth of the epochs (at most {most}, {late[most]:.1f} points): verdicts on them "
        "may change with more epochs"
    ]
