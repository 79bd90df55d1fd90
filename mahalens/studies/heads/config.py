"""What a run of the heads study is told, and how it differs from the full protocol. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from mahalens.errors import InputError
from mahalens.studies.heads.models import MODELS
from mahalens.studies.paired.config import PairedConfig, choose

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
            given = {"--train-size": train_size, "--epochs": epochs, "--trials": trials}
            for option, value in given.items():
                if value is not None:
                    raise InputError(
                        f"--published with {option} {value}: the full protocol has its own; leave "
                        "one of them out"
                    )
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
        found = []

        def compare(name: str, value: object, full: object) -> None:
            if value != full:
                found.append(f"{name}: {value} instead of {full}")

        compare("data", " and ".join(self.data), " and ".join(FULL_DATA))
        compare("training samples", f"{self.train_size:,}" if self.train_size else "all", "all")
        compare("epochs", self.epochs, FULL_EPOCHS)
        compare("trials", self.trials, FULL_TRIALS)
        compare("weight of the compactness", self.compactness, COMPACTNESS)
        compare("reject rate", self.reject_rate, REJECT_RATE)
        if missing := [name for name in MODELS if name not in self.models]:
            found.append(f"models: without {', '.join(missing)}")
        return found
