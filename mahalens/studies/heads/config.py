"""What a run of the heads study is told, and how it differs from the full protocol. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from mahalens.errors import InputError
from mahalens.studies.heads.models import MODELS
from mahalens.studies.paired.config import (
    PairedConfig,
    choose,
    compare_protocol,
    missing_from,
    refuse_with_published,
)

OTHER = {"fashion-mnist": "mnist", "mnist": "fashion-mnist"}
"""Which set is the unknown one for networks trained on a set; others leave classes out."""
FULL_DATA = ("fashion-mnist", "mnist")
FULL_TRIALS, FULL_EPOCHS = 10, 4
DEFAULT_DATA, DEFAULT_TRIALS, DEFAULT_EPOCHS = ("digits",), 10, 30
LARGE_SIZE = 10_000
"""What is taken of a large set unless told otherwise, so that a run takes minutes."""
_LARGE = (*OTHER, "cifar10")
REJECT_RATE = 0.05
COMPACTNESS = 0.05
"""Chosen on held-out training samples and classes of Fashion-MNIST, see docs/heads_study.md."""


class HeadsConfig(PairedConfig, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``compactness`` is the weight of the penalty that keeps samples near their prototypes,
    ``reject_rate`` the share of known samples that heads are set to reject.
    """

    compactness: float = COMPACTNESS
    reject_rate: float = REJECT_RATE

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("models", self.models, tuple(MODELS))
        if not 0 <= self.compactness < 1e6:
            raise InputError(f"--compactness {self.compactness}: give a number of at least 0")
        if not 0 < self.reject_rate < 1:
            raise InputError(
                f"--reject-rate {self.reject_rate}: give a number between 0 and 1, such as 0.05"
            )

    @classmethod
    def with_defaults(
        cls,
        *,
        data: Iterable[str] | None = None,
        models: Iterable[str] | None = None,
        trials: int | None = None,
        epochs: int | None = None,
        train_size: int | None = None,
        seed: int = 0,
        published: bool = False,
        compactness: float = COMPACTNESS,
        reject_rate: float = REJECT_RATE,
    ) -> HeadsConfig:
        """Fill in what is not given: digits, and less of a large set; all of it if published."""
        if published:
            refuse_with_published(trials=trials, epochs=epochs, train_size=train_size)
        taken = tuple(data) if data is not None else FULL_DATA if published else DEFAULT_DATA
        large = [name in _LARGE for name in taken]
        if train_size is None and any(large) and not published:
            train_size = LARGE_SIZE
        # Small sets need more epochs for as many steps, so one small set among them decides.
        usual = FULL_EPOCHS if all(large) else DEFAULT_EPOCHS
        return cls(
            data=taken,
            models=choose("models", tuple(MODELS) if models is None else models, tuple(MODELS)),
            trials=DEFAULT_TRIALS if trials is None else trials,
            epochs=usual if epochs is None else epochs,
            train_size=train_size,
            seed=seed,
            compactness=compactness,
            reject_rate=reject_rate,
        )

    def deviations(self) -> list[str]:
        """What differs from the full protocol, one sentence each; none means the full one."""
        found = compare_protocol(
            ("data", " and ".join(self.data), " and ".join(FULL_DATA)),
            ("training samples", self.train_size or "all", "all"),
            ("epochs", self.epochs, FULL_EPOCHS),
            ("trials", self.trials, FULL_TRIALS),
            ("weight of the compactness", self.compactness, COMPACTNESS),
            ("reject rate", self.reject_rate, REJECT_RATE),
        )
        return [*found, *missing_from("models", self.models, MODELS)]
