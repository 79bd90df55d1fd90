"""Which models the study tests against each other. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from mahalens.studies.representation.claims import name_of
from mahalens.studies.representation.models import OFFSET_L2, POINT_SLOPE, PRIMARY

# The comparisons of the source's sections 5.1 to 5.3.
_SOURCE = (
    ("relu", "abs"),
    ("relu2", "relu"),
    ("abs2", "abs"),
    ("relu2-neg", "relu2"),
    ("relu2-neg", "relu"),
    ("abs2-neg", "abs"),
    ("abs2-neg", "abs2"),
)
_L2 = (
    ("relu-l2", "relu"),
    ("abs-l2", "abs"),
    ("relu-l2-neg", "relu-l2"),
    ("abs-l2-neg", "abs-l2"),
    ("linear-l2-neg", "linear-l2"),
    ("relu-l2", "abs-l2"),
    ("linear-l2", "relu-l2"),
)
PAIRS = (
    *_SOURCE,
    *((f"{model}-bias", model) for model in PRIMARY),
    *_L2,
    *((f"{model}-code", model) for model in OFFSET_L2),
    *((model, model.removesuffix("-point")) for model in POINT_SLOPE),
)


def families(models: Sequence[str], pixels: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Pairs to test, by family: one for each kind of pixels, and each model against itself.

    A correction for many tests is made within a family.

    >>> families(["relu", "abs"], ["raw"])
    {'raw': [('relu (raw)', 'abs (raw)')]}
    """
    found = {
        way: [(name_of(a, way), name_of(b, way)) for a, b in PAIRS if a in models and b in models]
        for way in pixels
    }
    if len(pixels) > 1:
        found["across"] = [(name_of(m, "raw"), name_of(m, "normalized")) for m in models]
    return {name: pairs for name, pairs in found.items() if pairs}
