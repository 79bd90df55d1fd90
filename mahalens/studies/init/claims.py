"""The proposal of source 001, a start from clusters and their principal axes, as claims.

``Faster`` is a higher mean accuracy on the way, trial by trial.
"""

from __future__ import annotations

from mahalens.studies.claims import (
    Average,
    Claim,
    Difference,
    Every,
    GainsMore,
    Lower,
    Predicate,
)
from mahalens.studies.init.config import InitConfig
from mahalens.studies.init.models import ACTIVATIONS, FROM_DATA, RIVALS, STARTS
from mahalens.studies.paired.config import name_of, part_of

MARGIN = 1.0
"""Points of test accuracy by which a start may end lower and still be called no worse."""
_CALLED = {
    "kaiming": "Kaiming",
    "lsuv": "LSUV",
    "sample-point": "Hyperplanes through samples",
    "class-mean": "Hyperplanes through class means",
    "whiten": "A whitening",
    "cluster-pca": "Cluster PCA",
}


def claims_for(config: InitConfig) -> tuple[Claim, ...]:
    """All claims, put to each data set of a run."""
    return tuple(claim for data in config.data for claim in _claims_on(part_of(data)))


def _claims_on(part: str) -> list[Claim]:
    found = []

    def claim(key: str, statement: str, predicate: Predicate, source: str = "here") -> None:
        found.append(Claim(f"init/{key}/{part}", source, f"{statement}.", predicate, part))

    def of(activation: str, start: str) -> str:
        return name_of(f"{activation}-{start}", part)

    def faster(activation: str, start: str, than: str) -> Predicate:
        return Lower("mean_accuracy", of(activation, than), of(activation, start))

    def no_worse(activation: str, start: str, than: str) -> Predicate:
        a, b = of(activation, start), of(activation, than)
        return Difference("test_accuracy", a, b, "above", -MARGIN)

    def better(activation: str, start: str, than: str) -> Predicate:
        return Lower("test_accuracy", of(activation, than), of(activation, start))

    new = "cluster-pca"
    for activation, shown in ACTIVATIONS.items():
        for rival in RIVALS:
            key, names = f"{rival}-{activation}", f"{_CALLED[rival]} with {shown}"
            claim(
                f"{new}-faster-than-{key}",
                f"Cluster PCA trains faster than {names}",
                faster(activation, new, rival),
                "001",
            )
            claim(
                f"{new}-better-than-{key}",
                f"Cluster PCA ends more accurate than {names}",
                better(activation, new, rival),
                "001",
            )
            claim(
                f"{new}-no-worse-than-{key}",
                f"Cluster PCA ends at most {MARGIN:g} point less accurate than {names}",
                no_worse(activation, new, rival),
            )
        claim(
            f"{new}-ahead-after-one-epoch-{activation}",
            f"After one epoch cluster PCA is ahead of Kaiming with {shown}",
            Lower("first_accuracy", of(activation, "kaiming"), of(activation, new)),
            "001",
        )
        claim(
            f"{new}-sooner-at-a-tenth-{activation}",
            f"Cluster PCA takes the training loss to a tenth of guessing in fewer epochs than "
            f"Kaiming with {shown}",
            Lower("epochs_to_tenth", of(activation, new), of(activation, "kaiming")),
            "001",
        )
        claim(
            f"{new}-faster-than-sample-point-{activation}",
            f"It takes the axes: cluster PCA trains faster than Kaiming rows through random "
            f"samples with {shown}",
            faster(activation, new, "sample-point"),
        )
        for start in FROM_DATA[1:]:
            claim(
                f"{start}-faster-than-kaiming-{activation}",
                f"{_CALLED[start]}: faster than Kaiming with {shown}",
                faster(activation, start, "kaiming"),
            )
        for variant, base, what in (
            ("whiten-90", "whiten", "A whitening is faster with few axes"),
            ("cluster-pca-3", new, "Cluster PCA is faster with 3 axes of more clusters"),
            ("cluster-pca-all", new, "Cluster PCA is faster with the output layer started so too"),
            ("cluster-pca-mirror", new, "Cluster PCA is faster with units in pairs w, -w"),
        ):
            if activation in STARTS[variant].activations:
                claim(
                    f"{variant}-faster-{activation}",
                    f"{what}, with {shown}",
                    faster(activation, variant, base),
                )
    for start in FROM_DATA[1:]:
        claim(
            f"{start}-no-worse-than-kaiming",
            f"{_CALLED[start]}: at most {MARGIN:g} point less accurate in the end than Kaiming, "
            "with Abs and with ReLU",
            Every(tuple(no_worse(activation, start, "kaiming") for activation in ACTIVATIONS)),
        )
    for rival in RIVALS:
        both = [of(activation, start) for activation in ACTIVATIONS for start in (new, rival)]
        claim(
            f"abs-gains-more-on-{rival}",
            f"Abs gains more speed from cluster PCA on {_CALLED[rival]} than ReLU does",
            GainsMore("mean_accuracy", *both),
            "001",
        )
    claim(
        "abs-wants-hyperplanes-apart",
        "Abs trains faster with hyperplanes through samples than with all of them through one "
        "point, as Kaiming, LSUV and a whitening have them",
        Every(tuple(faster("abs", "sample-point", one) for one in ("kaiming", "lsuv", "whiten"))),
    )
    claim(
        "no-idle-units",
        "Whitening and cluster PCA start without a unit that is idle",
        Every(
            tuple(
                Average("idle_units", of(activation, start), "below", _NONE)
                for activation in ACTIVATIONS
                for start in ("whiten", new)
            )
        ),
    )
    claim(
        "kaiming-has-idle-units",
        "Kaiming with ReLU starts with more than 1 % of the units idle",
        Average("idle_units", of("relu", "kaiming"), "above", 1.0),
    )
    return found


_NONE = 1e-9
