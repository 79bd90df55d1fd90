"""What source 004 asks of OffsetL2 beyond images, as claims that a run decides."""

from __future__ import annotations

from mahalens.studies.claims import Claim, Difference, Every, Predicate
from mahalens.studies.paired.config import name_of, part_of
from mahalens.studies.transfer.config import TransferConfig, is_sequence, models_on
from mahalens.studies.transfer.models import YARDSTICKS, label_of, split

ACCURACY = "test_accuracy"
KEEPS_UP = -2.0
"""Points that a head may lie below another and still keep up with it."""
COLLAPSE = -20.0
"""Points below its linear twin from which on a network counts as collapsed."""


def claims_for(config: TransferConfig) -> tuple[Claim, ...]:
    """What a run is to decide: over all sets of a kind, then set by set."""
    tables = [data for data in config.data if not is_sequence(data)]
    sequences = [data for data in config.data if is_sequence(data)]
    together = [
        *_over("tables", "every table", tables),
        *_over("sequences", "every set of sequences", sequences),
        _no_collapse(config),
    ]
    each = [claim for data in config.data for claim in _on(part_of(data), is_sequence(data))]
    return tuple(claim for claim in (*together, *each) if claim is not None)


def _over(kind: str, where: str, sets: list[str]) -> list[Claim]:
    """What is said of all sets of a kind at once."""
    if not sets:
        return []
    parts = [part_of(data) for data in sets]

    def every(key: str, statement: str, predicates: list[Predicate], source: str) -> Claim:
        return Claim(f"transfer/{key}-{kind}", source, statement, Every(tuple(predicates)))

    return [
        every(
            "keeps-up",
            f"OffsetL2 carries over: on {where}, ReLU with minus its distances loses less than "
            "2 points against a linear head.",
            [_above("relu-l2-neg", "relu-linear", part, KEEPS_UP) for part in parts],
            "004",
        ),
        every(
            "better",
            f"OffsetL2 is better, as on MNIST: on {where}, ReLU with minus its distances beats a "
            "linear head.",
            [_above("relu-l2-neg", "relu-linear", part, 0.0) for part in parts],
            "004",
        ),
        every(
            "knn",
            f"Networks with OffsetL2 are worth their training: on {where}, ReLU with minus its "
            "distances beats nearest neighbours.",
            [_above("relu-l2-neg", "knn", part, 0.0) for part in parts],
            "here",
        ),
    ]


def _no_collapse(config: TransferConfig) -> Claim | None:
    """No network with OffsetL2 falls far behind its linear twin, on any set."""
    falls: list[Predicate] = []
    for data in config.data:
        for model in models_on(config, data):
            if model in YARDSTICKS or split(model)[1] == "linear":
                continue
            twin = f"{split(model)[0]}-linear"
            falls.append(_above(model, twin, part_of(data), COLLAPSE))
    if not falls:
        return None
    statement = (
        "No OffsetL2 head collapses: on every set each stays less than 20 points below the linear "
        "head on the same backbone."
    )
    return Claim("transfer/no-collapse", "004", statement, Every(tuple(falls)))


def _on(part: str, sequence: bool) -> list[Claim]:
    def claim(key: str, statement: str, predicate: Predicate, source: str) -> Claim:
        return Claim(f"transfer/{key}/{part}", source, f"{statement}.", predicate, part)

    def keeps_up(model: str, than: str, source: str) -> Claim:
        return claim(
            f"{model}-keeps-up-with-{than}",
            f"{label_of(model)} loses less than 2 points against {label_of(than)}",
            _above(model, than, part, KEEPS_UP),
            source,
        )

    found = [
        keeps_up("relu-l2-neg", "relu-linear", "004"),
        keeps_up("abs-l2-neg", "abs-linear", "004"),
        claim(
            "l2-neg-beats-linear",
            "With ReLU, the distances of OffsetL2, negated, beat a linear head",
            _above("relu-l2-neg", "relu-linear", part, 0.0),
            "004",
        ),
        claim(
            "nearest-beats-furthest",
            "With ReLU, OffsetL2 is better where the nearest class wins than where the furthest "
            "does",
            _above("relu-l2-neg", "relu-l2", part, 0.0),
            "here",
        ),
        keeps_up("relu-l2-neg", "boosting", "here"),
    ]
    if sequence:
        found += [
            keeps_up("kernels-l2-neg", "kernels-linear", "004"),
            keeps_up("kernels-l2-neg", "dtw", "here"),
        ]
    return found


def _above(model: str, than: str, part: str, points: float) -> Difference:
    return Difference(ACCURACY, name_of(model, part), name_of(than, part), "above", points)


def pairs_of(config: TransferConfig) -> list[tuple[str, str]]:
    """Which models are tested against each other: heads on one backbone, and with yardsticks.

    >>> made = TransferConfig.with_defaults(
    ...     data=["wine"], models=["relu-linear", "relu-l2-neg", "knn"]
    ... )
    >>> pairs_of(made)
    [('relu-l2-neg', 'relu-linear'), ('relu-l2-neg', 'knn')]
    """
    found = []
    for backbone in ("relu", "abs", "none", "kernels"):
        linear, plain, negated = (f"{backbone}-{head}" for head in ("linear", "l2", "l2-neg"))
        found += [(plain, linear), (negated, linear), (negated, plain)]
        found += [(f"{plain}-code", plain), (f"{negated}-code", negated)]
    found += [("relu-l2-neg", "boosting"), ("relu-l2-neg", "knn")]
    found += [("relu-linear", "boosting"), ("kernels-l2-neg", "dtw")]
    return [(a, b) for a, b in found if a in config.models and b in config.models]
