"""What a run of the activations study is told, and how it differs from the full protocol."""

from __future__ import annotations

from collections.abc import Sequence

from mahalens.data.catalogue import SETS
from mahalens.errors import InputError
from mahalens.studies.activations.models import MODELS
from mahalens.studies.options import check_count
from mahalens.studies.paired.config import (
    PairedConfig,
    choose,
    compare_protocol,
    missing_from,
    refuse_with_published,
)
from mahalens.studies.representation.config import PIXELS, PUBLISHED_EPOCHS, PUBLISHED_TRIALS

SOLVERS = {
    "sgd": "full-batch gradient descent, as source 003 trains",
    "adam": "full-batch Adam, which has converged after as many epochs",
}
DEFAULT_EPOCHS, DEFAULT_TRIALS = 2_000, 10
LARGE_SIZE, LARGE_EPOCHS = 5_000, 1_000
"""What is left of the full protocol by default, and on large sets, so that a run takes minutes."""


class ActivationsConfig(PairedConfig, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    ``pixels`` says what the networks are given, one kind in a run; ``solver`` how they learn.
    """

    pixels: str = "normalized"
    solver: str = "sgd"
    hidden: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("models", self.models, tuple(MODELS))
        check_count("hidden", self.hidden, 1)
        for option, given, known in (
            ("pixels", self.pixels, PIXELS),
            ("solver", self.solver, SOLVERS),
        ):
            if given not in known:
                raise InputError(f"--{option} {given}: unknown; give one of {', '.join(known)}")
        if not self.learning_rate > 0:
            raise InputError(f"a learning rate of {self.learning_rate}; give one above 0")

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
        pixels: str = "normalized",
        solver: str = "sgd",
        published: bool = False,
    ) -> ActivationsConfig:
        """Fill in what is not given: digits, and less of a large set than 003 took.

        >>> made = ActivationsConfig.with_defaults(data=["mnist"])
        >>> made.train_size, made.epochs, made.trials, len(made.models)
        (5000, 1000, 10, 21)
        """
        if published:
            _refuse_with_published(data, trials, epochs, train_size, solver)
            data, trials, epochs = ("mnist",), PUBLISHED_TRIALS, PUBLISHED_EPOCHS
        data = ("digits",) if data is None else tuple(data)
        large = not published and any(name in SETS and name != "digits" for name in data)
        if train_size is None and large:
            train_size = LARGE_SIZE
        if epochs is None:
            epochs = LARGE_EPOCHS if large else DEFAULT_EPOCHS
        return cls(
            data=data,
            models=choose("models", MODELS if models is None else models, tuple(MODELS)),
            trials=DEFAULT_TRIALS if trials is None else trials,
            epochs=epochs,
            train_size=train_size,
            seed=seed,
            pixels=pixels,
            solver=solver,
        )

    def deviations(self) -> list[str]:
        """What differs from the protocol of source 003, one sentence each."""
        found = compare_protocol(
            ("data", ", ".join(self.data), "mnist"),
            ("training samples", self.train_size or "all", "all"),
            ("epochs", self.epochs, PUBLISHED_EPOCHS),
            ("trials", self.trials, PUBLISHED_TRIALS),
            ("solver", self.solver, "sgd"),
            ("hidden units", self.hidden, 128),
            ("learning rate", self.learning_rate, 1e-3),
        )
        return [*found, *missing_from("models", self.models, MODELS)]


def _refuse_with_published(
    data: Sequence[str] | None,
    trials: int | None,
    epochs: int | None,
    train_size: int | None,
    solver: str,
) -> None:
    """The full protocol has its own of these."""
    refuse_with_published(trials=trials, epochs=epochs, train_size=train_size)
    if data is not None and tuple(data) != ("mnist",):
        raise InputError(
            f"--published with --data {','.join(data)}: source 003 is about MNIST; leave one out"
        )
    if solver != "sgd":
        raise InputError(
            f"--published with --solver {solver}: source 003 trains by sgd; leave one of them out"
        )
