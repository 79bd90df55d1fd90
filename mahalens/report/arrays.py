"""Whether the arrays of ``plots.safetensors`` that are drawn against each other fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mahalens.report.files import damaged


def check_plots(path: Path, plots: Mapping[str, NDArray[Any]]) -> None:
    """Arrays that are drawn against each other must fit each other."""

    def agree(name: str, shape: tuple[int | None, ...]) -> None:
        if name not in plots:
            raise damaged(path, f"{name} is not in it")
        got = plots[name].shape
        fits = len(got) == len(shape) and all(
            w is None or w == g for w, g in zip(shape, got, strict=True)
        )
        if not fits:
            want = " x ".join("any" if w is None else str(w) for w in shape)
            raise damaged(path, f"{name} has shape {list(got)} where {want} is wanted")

    def length(name: str) -> int | None:
        return plots[name].shape[0] if name in plots and plots[name].ndim == 1 else None

    for name in plots:
        kind, _, rest = name.partition("/")
        model, _, part = rest.rpartition("/")
        if kind == "eigenvalues" and part in ("rows", "gram"):
            agree(name, (None, length("eigenvalues/true")))
        elif kind == "fit" and part == "learned":
            agree(name, (length(f"fit/{model}/true"),))
        elif kind == "plane" and (part == "distance" or rest == "true"):
            agree(name, (length("plane/grid_y"), length("plane/grid_x")))
        elif kind == "plane" and part == "weight":
            agree(name, (length(f"plane/{model}/bias"), 2))
        elif kind == "plane" and rest == "samples":
            agree(name, (None, 2))
        elif kind == "ranks" and rest != "grid":
            agree(name, (3, length("ranks/grid")))
    for name in plots:
        start, _, kind = name.rpartition("/")
        nodes = length(f"{start}/latent.nodes")
        of, _, what = kind.partition(".")
        if of in ("scale", "clip", "offset") and what in ("train", "test", "after"):
            agree(name, (3, length(f"{start}/{of}.levels")))
            agree(f"{start}/{of}.published", (length(f"{start}/{of}.levels"),))
        elif kind == "output_activity":
            agree(name, (None, None))
        elif kind == "latent.counts":
            agree(name, (nodes, None, None))
            agree(f"{start}/latent.edges", (nodes, plots[name].shape[2] + 1))
            agree(f"{start}/latent.moments", (nodes, plots[name].shape[1], 3))
