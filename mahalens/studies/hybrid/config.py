"""What a run of the hybrid study is told, and how it differs from the full protocol. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from mahalens.data.catalogue import SETS, TABLES
from mahalens.studies.hybrid.mixtures import MIXTURES, NARROW, check_units
from mahalens.studies.options import check_count
from mahalens.studies.paired.config import (
    PairedConfig,
    choose,
    compare_protocol,
    missing_from,
    refuse_with_published,
)

DEFAULT_DATA = ("digits", "iris", "wine", "breast-cancer")
FULL_DATA = (*DEFAULT_DATA, "mnist", "fashion-mnist")
DEFAULT_MODELS = tuple(name for name, one in MIXTURES.items() if one.share is not None)
"""Without learned mixtures: no chain, they train as slowly as a single network each."""
TRIALS, EPOCHS = 20, 100
LARGE_TRIALS, LARGE_EPOCHS, LARGE_SIZE = 10, 20, 5_000
"""What is left of a large set by default, so that a run takes minutes."""

RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
"""The learning rates that every model of every trial chooses from."""
IMAGE_UNITS, TABLE_UNITS, NARROW_UNITS = 128, 32, 4
FEW = 1_000
"""Below so many training samples a set is small."""
BATCH, SMALL_BATCH = 64, 16
VALIDATION, SMALL_DRAWS = 0.2, 3
"""The share of the training samples that judges learning rates, and how often it is drawn anew
in a small set, of which a fifth is little to judge by."""


class HybridConfig(PairedConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``hidden`` are the units of wide layers, by default 128 on images and 32 on tables; ``narrow``
    those of narrow ones.
    """

    hidden: int | None = None
    narrow: int = NARROW_UNITS

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("models", self.models, tuple(MIXTURES))
        if self.hidden is not None:
            check_units("hidden", self.hidden, 8)
        check_units("narrow", self.narrow, 4)
        for option, units in (("hidden", self.hidden or 8), ("narrow", self.narrow)):
            check_count(option, units, 1, 100_000)

    @classmethod
    def with_defaults(
        cls,
        *,
        data: Iterable[str] | None = None,
        models: Iterable[str] | None = None,
        trials: int | None = None,
        epochs: int | None = None,
        train_size: int | None = None,
        hidden: int | None = None,
        narrow: int = NARROW_UNITS,
        seed: int = 0,
        published: bool = False,
    ) -> HybridConfig:
        """Fill in what is not given: sets that need no download, and less of large ones."""
        if published:
            refuse_with_published(trials=trials, epochs=epochs, train_size=train_size)
        sets = tuple(data) if data is not None else FULL_DATA if published else DEFAULT_DATA
        large = not published and any(is_large(name) for name in sets)
        usual = (LARGE_TRIALS, LARGE_EPOCHS, LARGE_SIZE) if large else (TRIALS, EPOCHS, None)
        usual_models = MIXTURES if published else DEFAULT_MODELS
        return cls(
            data=sets,
            models=choose("models", usual_models if models is None else models, tuple(MIXTURES)),
            trials=usual[0] if trials is None else trials,
            epochs=usual[1] if epochs is None else epochs,
            train_size=usual[2] if train_size is None else train_size,
            hidden=hidden,
            narrow=narrow,
            seed=seed,
        )

    def deviations(self) -> list[str]:
        """What differs from the full protocol, one sentence each; none means the full one."""
        size = "all" if self.train_size is None else f"at most {self.train_size:,}"
        found = compare_protocol(
            ("data", ", ".join(self.data), ", ".join(FULL_DATA)),
            ("training samples", size, "all"),
            ("epochs", self.epochs, EPOCHS),
            ("trials", self.trials, TRIALS),
            ("units of wide layers", self.hidden or "as usual", "as usual"),
            ("units of narrow layers", self.narrow, NARROW_UNITS),
        )
        return [*found, *missing_from("models", self.models, MIXTURES)]

    def units(self, model: str, image: bool) -> int:
        """How many units the hidden layer of a model has."""
        mixture = MIXTURES[model]
        wide = self.hidden or (IMAGE_UNITS if image else TABLE_UNITS)
        return mixture.times * (self.narrow if mixture.family == NARROW else wide)


def is_large(data: str) -> bool:
    """Whether a set by name is too large to be trained on whole in minutes."""
    return data in SETS and data != "digits"


def trials_at_once(data: str) -> int:
    """How many trials are one piece of work; one by one where samples may fill the memory."""
    return 4 if data in ("digits", *TABLES) else 1
