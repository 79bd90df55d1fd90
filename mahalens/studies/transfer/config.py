"""What a run of the transfer study is told, and how it differs from the full protocol."""

from __future__ import annotations

from collections.abc import Sequence

from mahalens.data.catalogue import TABLES
from mahalens.data.problems import GROUP, SEQUENCES
from mahalens.errors import InputError
from mahalens.studies.options import check_count
from mahalens.studies.paired.config import (
    PairedConfig,
    choose,
    compare_protocol,
    refuse_with_published,
)
from mahalens.studies.transfer.models import ALL, DEFAULT, SEQUENCES_ONLY

TABLE_SETS = (*TABLES, "digits")
SMALL_SEQUENCES = ("gunpoint", "italy-power-demand", "arrow-head")
"""With these a run takes minutes; the others have more inputs and are left to the full protocol."""
FULL_DATA = (*TABLE_SETS, *SEQUENCES)
GROUPS = {"tables": TABLE_SETS, GROUP: tuple(SEQUENCES)}
"""What ``--data`` takes for several sets at once."""
NAMED = 5
"""As many missing ones are named, more are counted."""
DEFAULT_TRIALS, FULL_TRIALS = 10, 30
DEFAULT_EPOCHS = FULL_EPOCHS = 300


class TransferConfig(PairedConfig, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``rates`` are the learning rates that every head may choose from, ``kernels`` how many random
    convolutions there are; ``without`` says what was left out as it is not on this machine.
    """

    hidden: int = 128
    rates: tuple[float, ...] = (0.001, 0.004, 0.016)
    kernels: int = 256
    without: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("models", self.models, ALL)
        check_count("hidden", self.hidden, 1)
        check_count("kernels", self.kernels, 1)
        if not self.rates or not all(0 < rate < 10 for rate in self.rates):
            raise InputError(f"learning rates {list(self.rates)}; give some above 0")
        if set(self.models) <= set(SEQUENCES_ONLY) and not any(map(is_sequence, self.data)):
            raise InputError(
                f"--models {','.join(self.models)}: these are for sequences, and --data has none; "
                f"give one of {', '.join(SEQUENCES)}"
            )

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
    ) -> TransferConfig:
        """Fill in what is not given: the tables, and three sets of sequences if they are here.

        >>> made = TransferConfig.with_defaults(data=["tables"], trials=3)
        >>> made.data, made.trials, made.epochs
        (('iris', 'wine', 'breast-cancer', 'digits'), 3, 300)
        """
        if published:
            refuse_with_published(trials=trials, epochs=epochs, train_size=train_size)
            data, trials = FULL_DATA if data is None else data, FULL_TRIALS
            models = ALL if models is None else models
        without = None
        if data is None:
            here = _are_here(SMALL_SEQUENCES)
            data = (*TABLE_SETS, *(SMALL_SEQUENCES if here else ()))
            if not here:
                without = "sequences are not on this machine; get them with: mahalens data fetch "
                without += GROUP
        return cls(
            data=tuple(name for given in data for name in GROUPS.get(given, (given,))),
            models=choose("models", DEFAULT if models is None else models, ALL),
            trials=DEFAULT_TRIALS if trials is None else trials,
            epochs=DEFAULT_EPOCHS if epochs is None else epochs,
            train_size=train_size,
            seed=seed,
            without=without,
        )

    def deviations(self) -> list[str]:
        """What differs from the full protocol, one sentence each; none means the full one."""
        found = []
        for what, have, full in (("data sets", self.data, FULL_DATA), ("models", self.models, ALL)):
            missing = [name for name in full if name not in have]
            if missing:
                named = f" (without {', '.join(missing)})" if len(missing) <= NAMED else ""
                found.append(f"{len(full) - len(missing)} of {len(full)} {what}{named}")
            if added := [name for name in have if name not in full]:
                found.append(f"{what} besides: {', '.join(added)}")
        if self.without:
            found.append(self.without)
        found += compare_protocol(
            ("trials", self.trials, FULL_TRIALS),
            ("epochs", self.epochs, FULL_EPOCHS),
            ("training samples", self.train_size or "all", "all"),
        )
        return found


def is_sequence(data: str) -> bool:
    """Whether a set is made of sequences: by its name, or by that of the user's file.

    >>> is_sequence("gunpoint"), is_sequence("mine/X_TRAIN.ts"), is_sequence("wine")
    (True, True, False)
    """
    return data in SEQUENCES or data.lower().endswith(".ts")


def models_on(config: TransferConfig, data: str) -> tuple[str, ...]:
    """Those of the models that a set is for."""
    return tuple(m for m in config.models if is_sequence(data) or m not in SEQUENCES_ONLY)


def _are_here(names: Sequence[str]) -> bool:
    from mahalens.data.places import find_problem

    try:
        for name in names:
            find_problem(name)
    except InputError:
        return False
    return True
