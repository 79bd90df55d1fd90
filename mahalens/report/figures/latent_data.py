"""Class distributions along hidden nodes, as a run's arrays have them. Draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mahalens.report.catalogue import models_in_order
from mahalens.report.records import RunRecords

CHOSEN = ("relu", "abs")
"""The networks that are shown where a run has them: the two baselines, as in figure 1 of 003."""


@dataclass(frozen=True)
class Latent:
    """``nodes`` [K], ``edges`` [K, B+1], ``counts`` [K, C, B] and ``moments`` [K, C, 3]."""

    nodes: list[int]
    edges: NDArray[np.float64]
    counts: NDArray[np.float64]
    moments: NDArray[np.float64]


def latent_nodes(part: RunRecords) -> dict[str, Latent]:
    """The distributions of the chosen networks, else of the first; none without arrays."""
    given = (name.partition("/") for name in part.plots)
    names = [model for model, _, kind in given if kind == "latent.counts"]
    models = models_in_order(names, part.study)
    chosen = [model for model in CHOSEN if model in models] or models[:1]
    return {model: latent for model in chosen if (latent := _latent(part, model)).counts.any()}


def _latent(part: RunRecords, model: str) -> Latent:
    def array(kind: str) -> NDArray[Any]:
        return part.plots[f"{model}/latent.{kind}"]

    return Latent(
        [int(node) for node in array("nodes")],
        array("edges").astype(np.float64),
        array("counts").astype(np.float64),
        array("moments").astype(np.float64),
    )
