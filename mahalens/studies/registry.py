"""The list of studies. To add one, write its module and name it here."""

from __future__ import annotations

from typing import Any

from mahalens.errors import InputError
from mahalens.studies.study import Study

STUDIES = (
    "gaussian",
    "ellipsoids",
    "representation",
    "pixels",
    "perturbation",
    "activations",
    "init",
    "hybrid",
    "heads",
    "detect",
    "transfer",
    "clusters",
    "penalties",
    "mechanisms",
)


def load_study(name: str) -> Study[Any]:
    """Return a study by name; its module is imported when it is asked for, without torch."""
    study: Study[Any]
    if name == "gaussian":
        from mahalens.studies.gaussian import STUDY as study
    elif name == "ellipsoids":
        from mahalens.studies.ellipsoids import STUDY as study
    elif name == "representation":
        from mahalens.studies.representation import STUDY as study
    elif name == "pixels":
        from mahalens.studies.pixels import STUDY as study
    elif name == "perturbation":
        from mahalens.studies.perturbation import STUDY as study
    elif name == "activations":
        from mahalens.studies.activations import STUDY as study
    elif name == "init":
        from mahalens.studies.init import STUDY as study
    elif name == "hybrid":
        from mahalens.studies.hybrid import STUDY as study
    elif name == "heads":
        from mahalens.studies.heads import STUDY as study
    elif name == "detect":
        from mahalens.studies.detect import STUDY as study
    elif name == "transfer":
        from mahalens.studies.transfer import STUDY as study
    elif name == "penalties":
        from mahalens.studies.penalties import STUDY as study
    elif name == "clusters":
        from mahalens.studies.clusters import STUDY as study
    elif name == "mechanisms":
        from mahalens.studies.mechanisms import STUDY as study
    else:
        raise InputError(f"study {name!r} is unknown; give {', '.join(STUDIES)}")
    return study
