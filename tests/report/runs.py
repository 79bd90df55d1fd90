"""Made-up runs: a study that needs no training, and folders that the real recorder wrote."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Console
from torch import Tensor

from mahalens.report.records import RunRecords, load_run
from mahalens.report.tables import Table
from mahalens.studies.claims import Claim, Difference, Lower
from mahalens.studies.folder import RunConfig, RunFolder
from mahalens.studies.plots import AllMetrics, Dots, Grid, Ridges
from mahalens.studies.records import write_records
from mahalens.studies.study import (
    Config,
    Measures,
    Metric,
    Model,
    Option,
    PublishedValue,
    Results,
    Study,
    count_option,
    data_option,
    models_option,
)

MODELS = {
    "plain": Model("Plain", "a plain one", "#0072B2"),
    "bent": Model("Bent, twice", "a bent one", "#D55E00", "s"),
    "round": Model("Round", "a round one", "#009E73"),
}
METRICS = {
    "accuracy": Metric("Test accuracy", "Share of samples.", "%", better="high"),
    "loss": Metric("Loss", "Cross-entropy.", log=True),
    "turns": Metric("Turns", "Whatever happened.", "turns", better=None),
    "void": Metric("Void", "Never measured."),
}


class PretendConfig(Config, frozen=True, kw_only=True):
    """The options of the made-up study."""

    data: Annotated[tuple[str, ...], data_option(("iris", "wine"), ("iris", "wine"))]
    models: Annotated[tuple[str, ...], models_option(MODELS)]
    trials: Annotated[int, count_option("Trials of each model.", 10)]
    rate: Annotated[float, Option("How fast.", 0.05, label="learning rate")] = 0.05
    units: Annotated[
        int | None, Option("Units.", show=lambda n: "as many as fit" if n is None else str(n))
    ] = None

    @property
    def pixels(self) -> tuple[str, ...]:
        """The variants, where a study goes through kinds of pixels."""
        return self.data


CLAIMS = (
    Claim(
        "bent-beats-plain",
        "Bent is more accurate than Plain.",
        Difference("accuracy", "bent", "plain", "above", 0.0),
        "interpreting",
    ),
    Claim("plain-loses-less", "Plain has the lower loss.", Lower("loss", "plain", "bent")),
    Claim("square", "Square is best.", Difference("accuracy", "square", "bent", "above", 0.0)),
    Claim(
        "everywhere",
        "Round is never worse by a point.",
        Difference("accuracy", "round (wine)", "bent (wine)", "above", -1.0),
        each=False,
    ),
)


def published(config: Any, metric: str, model: str, variant: str) -> PublishedValue | None:
    """Return published accuracies of two models."""
    means = {"bent": 91.5, "plain": 89.0}
    known = metric == "accuracy" and model in means
    return PublishedValue(means[model], std=0.25, max=93) if known else None


def nothing(*_: object) -> Any:
    """Stand for functions that the report never calls."""
    raise AssertionError


STUDY = Study(
    name="pretend",
    question="Is bent better than plain?",
    source="interpreting",
    config=PretendConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=nothing,
    jobs=nothing,
    measure=nothing,
    primary="accuracy",
    published=published,
    pairs=(("bent", "plain"), ("round", "plain")),
    tested=("accuracy", "loss"),
    shown=("accuracy", "loss", "void"),
    remark="All models share their trials.",
    plots=(
        Dots(name="compared", title="Who wins?", caption="Dots are trials.", metric="accuracy"),
        Grid(name="grid", title="Which are active?", caption="Shares.", array="grid", label="%"),
        Ridges(name="latent", title="Where are the classes?", caption="Ridges are classes."),
    ),
)
WITHOUT_VARIANTS = replace(
    STUDY,
    variant="",
    claims=CLAIMS[:3],
    thing="network",
    protocol="published",
    group=lambda config, variant: {"dim": 2, "solver": "adam"},
    plots=(AllMetrics(name="metrics", title="All", caption="Dots."),),
)


def measures(place: int, seed: int, trials: int, lost: Sequence[int] = ()) -> Measures:
    """Return numbers of one model: more accurate, and with more loss, the later its place."""
    shared = torch.randn(trials, generator=torch.Generator().manual_seed(seed)).double()
    noise = torch.randn(trials, generator=torch.Generator().manual_seed(100 + place)).double()
    metrics: dict[str, Tensor] = {
        "accuracy": 90 + 2 * place + shared / 2 + noise / 10,
        "loss": (0.5 + place / 4 + noise / 100).abs(),
        "turns": torch.full((trials,), float(place)).double(),
        "void": torch.full((trials,), math.nan).double(),
    }
    for name in metrics:
        metrics[name][list(lost)] = math.nan
    steps = torch.arange(3)
    return Measures(
        metrics,
        1.5,
        curves={"accuracy": (steps, metrics["accuracy"][:, None] - 2.0 + steps)},
        plots={
            "grid": torch.arange(6.0).reshape(3, 2),
            "latent.nodes": torch.tensor([4, 7]),
            "latent.moments": torch.arange(12.0).reshape(2, 2, 3),
        },
    )


def write_run(
    path: Path,
    study: Study[Any] = STUDY,
    *,
    variants: Sequence[str] = ("iris", "wine"),
    models: Sequence[str] = tuple(MODELS),
    trials: int = 10,
    lost: Sequence[int] = (),
    scaled: Sequence[str] = ("trials: 10 instead of 20",),
    cautions: Sequence[str] = (),
) -> Path:
    """Write a run folder with the real recorder; ``lost`` trials of the last model ran away."""
    config = PretendConfig(data=tuple(variants), models=tuple(models), trials=trials)
    record = RunConfig(
        study=study.name,
        torch="2.13.0",
        python="3.11",
        mahalens="0.1.0",
        created="2026-11-15T19:40:00+00:00",
        seed=0,
        device="cpu",
        threads=2,
        engine="compiled",
        protocol="scaled" if scaled else "published",
        scaled=list(scaled),
        command="mahalens run pretend --out runs/demo",
        options=json.loads(json.dumps({**config_options(config), "new_option": 0.25})),
    )
    of = {
        (variant if study.variant else "", model): measures(
            place, seed, trials, lost if model == models[-1] else ()
        )
        for seed, variant in enumerate(variants if study.variant else ("",))
        for place, model in enumerate(models)
    }
    sizes = {"training_samples": 105, "test_samples": 45, "classes": 3, "source": "a shelf"}
    facts: dict[str, Any] = {"data": dict.fromkeys(variants, sizes)} if study.variant else sizes
    facts = {**facts, "chance": [0.25, 0.75], "drawing_seconds": 2.0}
    results = Results(of, facts, cautions=list(cautions))
    with RunFolder.create(path, record) as folder:
        write_records(study, config, folder, results)
    return path


def config_options(config: Config) -> dict[str, Any]:
    """Return the options of a configuration by name."""
    return {name: getattr(config, name) for name in config.__struct_fields__}


def make_records(path: Path, study: Study[Any] = STUDY, **options: Any) -> RunRecords:
    """Write a run folder and read it."""
    return load_run(write_run(path, study, **options), study)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON record in place."""
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def printed(table: Table, width: int = 160) -> str:
    """Return what a terminal shows of a table, without colours."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table.rich())
    return out.getvalue()


def words(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())
