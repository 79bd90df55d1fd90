"""What a run of the perturbation study is told, and how it differs from the published one."""

from __future__ import annotations

import msgspec

from mahalens.data.catalogue import SETS
from mahalens.errors import InputError
from mahalens.studies.representation.config import (
    PIXELS,
    PUBLISHED_EPOCHS,
    PUBLISHED_TRIALS,
    RepresentationConfig,
    read_time,
)
from mahalens.studies.representation.models import choose

PUBLISHED_MODELS = ("relu-bias", "abs-bias")
"""The two networks of the paper; it calls them ReLU and Abs."""
DEFAULT_EPOCHS, DEFAULT_TRIALS = 2_000, 10
LARGE_SIZE, LARGE_EPOCHS, LARGE_TRIALS = 5_000, 1_000, 5
"""What is left of the published protocol by default, and on large sets, so that a run takes
minutes."""
PLACES = {
    "before": "between the hidden layer and its activation function, as the paper has it",
    "after": "after the activation function",
}


class PerturbationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the numbers of a run.

    The fields are those of the training of :class:`RepresentationConfig`. ``networks`` is the
    folder of a finished representation run that the trained networks were taken from; ``instead``
    says that these data are not those that would have been taken if they had been here.
    """

    data: str
    models: tuple[str, ...]
    pixels: tuple[str, ...]
    epochs: int
    trials: int
    train_size: int | None
    seed: int
    networks: str | None = None
    instead: str | None = None
    budget: float | None = None
    shortened: tuple[str, ...] = ()
    hidden: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        self.training()  # which checks what it is given

    def training(self) -> RepresentationConfig:
        """How the networks are trained: as the representation study does, all trials together."""
        return RepresentationConfig(
            data=self.data,
            models=self.models,
            pixels=self.pixels,
            epochs=self.epochs,
            trials=self.trials,
            train_size=self.train_size,
            seed=self.seed,
            group=max(1, self.trials),
            budget=self.budget,
            shortened=self.shortened,
            hidden=self.hidden,
            learning_rate=self.learning_rate,
        )

    @classmethod
    def with_defaults(
        cls,
        *,
        data: str | None = None,
        models: tuple[str, ...] = PUBLISHED_MODELS,
        pixels: str = "raw",
        epochs: int | None = None,
        trials: int | None = None,
        train_size: int | None = None,
        seed: int = 0,
        budget: str | None = None,
        published: bool = False,
    ) -> PerturbationConfig:
        """Fill in what is not given: MNIST if it is here, else digits, and less of a large set."""
        if published:
            given = {"--train-size": train_size, "--epochs": epochs, "--trials": trials}
            for name, value in given.items():
                if value is not None:
                    raise InputError(
                        f"--published with {name} {value}: the published protocol has its own; "
                        "leave one of them out"
                    )
            if data not in (None, "mnist"):
                raise InputError(
                    f"--published with --data {data}: the paper is about MNIST; leave one out"
                )
            data = "mnist"
        instead = None
        if data is None:
            data = "mnist" if _is_here("mnist") else "digits"
            if data == "digits":
                instead = "MNIST is not on this machine; get it with: mahalens data fetch mnist"
        large = not published and data in SETS and data != "digits"
        if train_size is None and large:
            train_size = LARGE_SIZE
        usual = (LARGE_EPOCHS, LARGE_TRIALS) if large else (DEFAULT_EPOCHS, DEFAULT_TRIALS)
        if published:
            usual = (PUBLISHED_EPOCHS, PUBLISHED_TRIALS)
        return cls(
            data=data,
            models=choose(models, None),
            pixels=ways(pixels),
            epochs=usual[0] if epochs is None else epochs,
            trials=usual[1] if trials is None else trials,
            train_size=train_size,
            seed=seed,
            instead=instead,
            budget=None if budget is None else read_time(budget),
        )

    def deviations(self) -> list[str]:
        """What differs from the published protocol, one sentence each; none means published."""
        found = []

        def compare(name: str, value: object, published: object) -> None:
            if value != published:
                found.append(f"{name}: {value} instead of {published}")

        compare("data", self.data, "mnist")
        if self.instead:
            found[-1] += f" ({self.instead})"
        compare("training samples", f"{self.train_size:,}" if self.train_size else "all", "all")
        compare("epochs", f"{self.epochs:,}", f"{PUBLISHED_EPOCHS:,}")
        compare("trials", self.trials, PUBLISHED_TRIALS)
        compare("hidden units", self.hidden, 128)
        compare("learning rate", self.learning_rate, 1e-3)
        if missing := [name for name in PUBLISHED_MODELS if name not in self.models]:
            found.append(f"models: without {', '.join(missing)}")
        return [*found, *self.shortened]


def ways(pixels: str) -> tuple[str, ...]:
    """The kinds of pixels that an option asks for.

    >>> ways("both")
    ('normalized', 'raw')
    """
    if pixels != "both" and pixels not in PIXELS:
        raise InputError(f"--pixels {pixels}: give {', '.join(PIXELS)} or both")
    return tuple(PIXELS) if pixels == "both" else (pixels,)


def _is_here(name: str) -> bool:
    from mahalens.data.places import find_set

    try:
        find_set(name)
    except InputError:
        return False
    return True
