"""What a run of the study of starting weights is told, and what of it is scaled down."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mahalens.errors import InputError
from mahalens.studies.init.models import MODELS
from mahalens.studies.options import check_count
from mahalens.studies.paired.config import (
    PairedConfig,
    choose,
    compare_protocol,
    missing_from,
    refuse_with_published,
)

SMALL_SETS = ("digits", "iris", "wine", "breast-cancer")
"""Data that need no download: what is run by default."""
ALL_SETS = (*SMALL_SETS, "mnist", "fashion-mnist")
LARGE_SIZE = 5_000
"""Training samples taken of a large set by default, so that a run takes minutes."""
EPOCHS, TRIALS, TUNINGS, START_ROWS = 20, 10, 3, 5_000
IMAGE_RATES, TABLE_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.1, 0.3)
"""Learning rates of Adam to choose from: higher ones where an epoch has few steps."""
IMAGE_UNITS, TABLE_UNITS = 128, 32
"""Hidden units on images, and on all other data."""


class InitConfig(PairedConfig, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``image_rates`` and ``table_rates`` are the learning rates that every trial chooses from,
    with a part of its training samples held out: once on images, ``tunings`` times on all other
    data, where that part may be small. A start is computed from ``start_rows`` samples at most.
    """

    image_rates: tuple[float, ...] = IMAGE_RATES
    table_rates: tuple[float, ...] = TABLE_RATES
    tunings: int = TUNINGS
    start_rows: int = START_ROWS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("tunings", self.tunings, 1)
        check_count("start-rows", self.start_rows, 2)
        for rates in (self.image_rates, self.table_rates):
            if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
                given = _listed(rates) or "none"
                raise InputError(f"learning rates of {given}; give positive numbers")

    @classmethod
    def with_defaults(
        cls,
        *,
        data: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        trials: int | None = None,
        epochs: int | None = None,
        train_size: int | None = None,
        seed: int = 0,
        published: bool = False,
    ) -> InitConfig:
        """Fill in what is not given: digits and the tables, and less of a large set."""
        if published:
            refuse_with_published(trials=trials, epochs=epochs, train_size=train_size)
        if data is None:
            data = ALL_SETS if published else SMALL_SETS
        large = set(ALL_SETS) - set(SMALL_SETS)
        if train_size is None and not published and large & set(data):
            train_size = LARGE_SIZE
        return cls(
            data=tuple(data),
            models=choose("models", MODELS if models is None else models, list(MODELS)),
            trials=TRIALS if trials is None else trials,
            epochs=EPOCHS if epochs is None else epochs,
            train_size=train_size,
            seed=seed,
        )

    def deviations(self) -> list[str]:
        """What differs from the full protocol, one sentence each; none means the full one."""
        found = compare_protocol(
            ("training samples", self.train_size or "all", "all"),
            ("epochs", self.epochs, EPOCHS),
            ("trials", self.trials, TRIALS),
            ("learning rates on images", _listed(self.image_rates), _listed(IMAGE_RATES)),
            ("learning rates on tables", _listed(self.table_rates), _listed(TABLE_RATES)),
            ("splits of a table to choose one", self.tunings, TUNINGS),
            ("samples to start from", self.start_rows, START_ROWS),
        )
        left_out = missing_from("data", self.data, ALL_SETS)
        return [*left_out, *missing_from("models", self.models, MODELS), *found]


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
