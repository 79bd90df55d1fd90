"""What a run of the representation study is told, and how it differs from the published one."""

from __future__ import annotations

import math
import re
from importlib.util import find_spec
from typing import Literal

import msgspec

from mahalens.errors import InputError
from mahalens.studies.options import check_count
from mahalens.studies.representation.models import MODELS, PRIMARY, choose

PIXELS = {
    "normalized": "zero mean and unit spread over the data set, as source 003 says",
    "raw": "as the files have them (0 to 255), as its published code ran",
}
ENGINES = {
    "local": "in this process, all trials of a model stacked",
    "dask": "groups of trials over Dask's workers, here or on a cluster",
}
PUBLISHED_EPOCHS, LONG_EPOCHS, PUBLISHED_TRIALS = 5_000, 50_000, 20
DEFAULT_NODES = 4
_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0}


class RepresentationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the numbers of a run, and where it is computed.

    ``group`` is how many trials of a model are trained together; ``nodes`` are the hidden nodes
    whose class distributions are drawn (empty: those that differ most between classes);
    ``budget`` is in seconds, and ``shortened`` says what it has cost.
    """

    data: str
    models: tuple[str, ...]
    pixels: tuple[str, ...]
    epochs: int
    trials: int
    train_size: int | None
    seed: int
    engine: Literal["local", "dask"] = "local"
    group: int
    scheduler: str | None = None
    nodes: tuple[int, ...] = ()
    tensorboard: bool = False
    budget: float | None = None
    shortened: tuple[str, ...] = ()
    hidden: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("epochs", "trials", "group", "hidden"):
            check_count(name, getattr(self, name), 1)
        check_count("seed", self.seed, 0, 2**63 - 1)
        if self.train_size is not None:
            check_count("train-size", self.train_size, 2)
        for model in self.models:
            if model not in MODELS:
                raise InputError(f"--models {model}: unknown model; known: {', '.join(MODELS)}")
        if not self.models or not self.pixels:
            raise InputError("a run without models or pixels; give at least one of each")
        for way in self.pixels:
            if way not in PIXELS:
                raise InputError(f"--pixels {way}: give {', '.join(PIXELS)} or both")
        for node in self.nodes:
            check_count("nodes", node, 0, self.hidden - 1)
        if self.scheduler is not None and self.engine != "dask":
            raise InputError("--scheduler without --engine dask: add it, or leave both out")

    @classmethod
    def with_defaults(
        cls,
        *,
        data: str | None = None,
        models: tuple[str, ...] = ("all",),
        bias: str | None = None,
        pixels: str = "both",
        epochs: int | None = None,
        trials: int | None = None,
        train_size: int | None = None,
        seed: int = 0,
        engine: str = "local",
        group: int | None = None,
        scheduler: str | None = None,
        nodes: tuple[int, ...] = (),
        tensorboard: bool = False,
        budget: str | None = None,
        published: bool = False,
    ) -> RepresentationConfig:
        """Fill in what is not given: the published protocol but for the data.

        With ``published`` the data too: MNIST, all of it.
        """
        if engine not in ENGINES:
            raise InputError(f"--engine {engine}: unknown; known: {', '.join(ENGINES)}")
        if pixels != "both" and pixels not in PIXELS:
            raise InputError(f"--pixels {pixels}: give {', '.join(PIXELS)} or both")
        if published:
            given = {"--train-size": train_size, "--epochs": epochs, "--trials": trials}
            for name, value in given.items():
                if value is not None and not (name == "--epochs" and value == LONG_EPOCHS):
                    raise InputError(
                        f"--published with {name} {value}: the published protocol has its own; "
                        "leave one of them out"
                    )
            if data not in (None, "mnist"):
                raise InputError(
                    f"--published with --data {data}: source 003 is about MNIST; leave one out"
                )
            data = "mnist"
        data = "digits" if data is None else data
        if tensorboard and find_spec("tensorboard") is None:
            raise InputError(
                "--tensorboard needs a package that is not installed; "
                "pip install 'mahalens[tensorboard]', or leave it out"
            )
        count = PUBLISHED_TRIALS if trials is None else trials
        if group is None:
            group = max(1, count if engine == "local" else min(5, count))
        return cls(
            data=data,
            models=choose(models, "both" if bias is None and models == ("all",) else bias),
            pixels=tuple(PIXELS) if pixels == "both" else (pixels,),
            epochs=PUBLISHED_EPOCHS if epochs is None else epochs,
            trials=count,
            train_size=train_size,
            seed=seed,
            engine="dask" if engine == "dask" else "local",
            group=group,
            scheduler=scheduler,
            nodes=nodes,
            tensorboard=tensorboard,
            budget=None if budget is None else read_time(budget),
        )

    def deviations(self) -> list[str]:
        """What differs from the published protocol, one sentence each; none means published."""
        found = []

        def compare(name: str, value: object, published: object) -> None:
            if value != published:
                found.append(f"{name}: {value} instead of {published}")

        compare("data", self.data, "mnist")
        compare("training samples", f"{self.train_size:,}" if self.train_size else "all", "all")
        if self.epochs != LONG_EPOCHS:
            compare("epochs", f"{self.epochs:,}", f"{PUBLISHED_EPOCHS:,}")
        compare("trials", self.trials, PUBLISHED_TRIALS)
        compare("hidden units", self.hidden, 128)
        compare("learning rate", self.learning_rate, 1e-3)
        if missing := [name for name in PRIMARY if name not in self.models]:
            found.append(f"models: without {', '.join(missing)}")
        return [*found, *self.shortened]


def read_time(text: str) -> float:
    """Seconds from text such as ``90``, ``20m``, ``1.5h`` or ``1h30m``.

    >>> read_time("20m"), read_time("1h30m"), read_time("45")
    (1200.0, 5400.0, 45.0)
    """
    wanted = f"--budget {text}: give a time such as 90s, 20m, 1.5h or 1h30m"
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        plain += "s"
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+", plain):
        raise InputError(wanted)
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", plain)
    seconds = sum(float(amount) * _TIMES[unit] for amount, unit in parts)
    if not 0 < seconds < math.inf:
        raise InputError(wanted)
    return seconds
