"""From what was gathered to the record of a layer, and the parts that were not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from mahalens.auditing.gather.layer import LayerGatherer
from mahalens.auditing.gather.readings import (
    ascending_rows,
    read_histograms,
    read_places,
    read_prototypes,
    read_units,
)
from mahalens.auditing.placing import resampled_shares
from mahalens.auditing.readings import (
    HyperplaneReading,
    PerturbationReading,
    UnitReading,
    WhiteningReading,
)
from mahalens.auditing.record import LayerRecord, Skipped
from mahalens.auditing.repeats.groups import read_grouped_pairs
from mahalens.auditing.suggestions import suggest
from mahalens.auditing.verdicts import Evidence, judge_layers, placed_units, weigh
from mahalens.auditing.watch.forward import Runner
from mahalens.auditing.whitening import output_whitening, read_whitening

_UNMARKED = ("none", "softmax", "log_softmax")
"""Functions after an output layer that treat z = 0 like any other value."""
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def layer_record(
    gathered: LayerGatherer,
    classes: int,
    nodes: Sequence[int] | None = None,
    perturbation: PerturbationReading | None = None,
    placed: bool = True,
    reader: LayerGatherer | None = None,
) -> tuple[LayerRecord, Evidence]:
    """Return the record of a layer and what its verdict follows from.

    The verdict in the record is of this layer alone, against chance.

    Args:
        gathered: what was gathered about the layer.
        classes: number of classes of the data.
        nodes: units whose histograms are wanted.
        perturbation: None if it was not measured.
        placed: whether the layer's weights are known.
        reader: the one layer that reads its activations.
    """
    site, settings = gathered.site, gathered.settings
    placed = placed and site.placed
    units, hyperplanes = read_where(gathered, classes, placed, reader)
    evidence = layer_evidence(gathered, units, hyperplanes, perturbation, resampled=True)
    rows, offsets = site.rows(), site.offsets()
    (groups,) = site.geometry.get("groups", (1,))
    pairs = read_grouped_pairs(rows, offsets, groups, cosine=settings.cosine) if placed else None
    whitening, mean, std = _whitening(gathered, pairs.kept if pairs is not None else None)
    if bool(gathered.faulty.any()):
        count = int(gathered.faulty.sum())
        gathered.notes.append(f"{count} units gave NaN or infinite values, which count as 0")
    if gathered.kept.seen > len(gathered.kept.rows):
        gathered.notes.append(
            f"quantiles and histograms are of {len(gathered.kept.rows):,} rows drawn at random "
            f"from {gathered.kept.seen:,}"
        )
    length = torch.linalg.vector_norm(rows, dim=1) if placed else torch.ones(site.units)
    record = LayerRecord(
        name=site.name,
        kind=site.kind,
        units_count=site.units,
        inputs=site.weight.shape[1],
        activation=site.activation,
        folded=site.folded,
        calls=site.calls,
        positions=max(1, round(gathered.kept.seen / max(1, gathered.samples))),
        rows=gathered.kept.seen,
        feeds=site.feeds if site.calls == 1 else None,
        geometry=site.geometry,
        units=units,
        hyperplanes=hyperplanes,
        pairs=pairs,
        whitening=whitening,
        prototypes=read_prototypes(gathered, length.double()),
        histograms=read_histograms(gathered, classes, nodes),
        perturbation=perturbation,
        verdict=judge_layers([evidence])[0],
        suggestions=suggest(
            activation=site.activation,
            feeds=site.feeds,
            inputs=site.weight.shape[1],
            units=units,
            pairs=pairs,
            whitening=whitening,
            input_mean=mean,
            input_std=std,
        ),
        notes=tuple(gathered.notes),
    )
    return record, evidence


def read_where(
    gathered: LayerGatherer, classes: int, placed: bool = True, reader: LayerGatherer | None = None
) -> tuple[UnitReading, HyperplaneReading | None]:
    """Return how the units respond and where their hyperplanes lie."""
    ascending = ascending_rows(gathered.kept.rows)
    units = read_units(gathered, classes, ascending, reader)
    known = placed and gathered.site.placed
    return units, read_places(gathered, units, ascending) if known else None


def layer_evidence(
    gathered: LayerGatherer,
    units: UnitReading,
    hyperplanes: HyperplaneReading | None,
    perturbation: PerturbationReading | None = None,
    resampled: bool = False,
) -> Evidence:
    """Return what the verdict on a layer follows from; ``resampled`` with the score's interval."""
    site, settings = gathered.site, gathered.settings
    shares = None
    chosen = placed_units(units, hyperplanes, site.output)
    if resampled and hyperplanes is not None and bool(chosen.any()):
        labels, moments = gathered.kept.labels, gathered.moments
        mean, std = units.mean[None], units.std[None]
        counts = moments.overall().rows[None]
        if units.class_mean is not None and units.class_std is not None:
            mean, std = units.class_mean, units.class_std
            counts = moments.by_class(len(mean)).rows
        else:
            labels = torch.zeros_like(labels)
        # Rows of one sample are taken to say the same: fewer samples, a wider interval.
        samples = counts * (gathered.samples / max(1, gathered.kept.seen))
        shares = resampled_shares(
            gathered.kept.rows,
            labels,
            mean,
            std,
            samples,
            chosen,
            settings.through,
            settings.seed,
        )
    return weigh(
        units,
        hyperplanes,
        perturbation,
        site.units,
        site.output,
        unmarked=site.output and site.activation in _UNMARKED,
        by_construction=site.distance,
        shares=shares,
        seed=settings.seed,
    )


def _whitening(
    gathered: LayerGatherer, kept: Sequence[int] | None
) -> tuple[WhiteningReading | None, torch.Tensor | None, torch.Tensor | None]:
    """The reading over the deduplicated units, and the input's mean and spread."""
    if gathered.inputs is not None and gathered.inputs.rows > 1:
        mean, covariance = gathered.inputs.result()
        rows = gathered.site.rows()
        rows = rows if kept is None else rows[list(kept)]
        std = covariance.diagonal().clamp_min(0).sqrt()
        if not bool(rows.isfinite().all()) or not bool(covariance.isfinite().all()):
            return None, None, None
        return read_whitening(rows, covariance, gathered.inputs.rows), mean, std
    if gathered.outputs is not None and gathered.outputs.rows > 1:
        covariance = gathered.outputs.result()[1]
        if kept is not None:
            covariance = covariance[list(kept)][:, list(kept)]
        return output_whitening(covariance, gathered.outputs.rows), None, None
    return None, None, None


def skipped_parts(runner: Runner, unread: Mapping[str, str]) -> list[Skipped]:
    """The parts of the model with weights of their own that are read as no hyperplanes."""
    kinds = {name: type(module).__name__ for name, module in runner.model.named_modules()}
    found = [
        Skipped(name=name, kind=kinds.get(name, "convolution"), reason=reason)
        for name, reason in unread.items()
    ]
    known = set(unread)
    for path, module in runner.model.named_modules():
        if path in known:
            continue
        if "quantized" in type(module).__module__ and not list(module.children()):
            reason = "is quantised: its weights are packed; give the model it was made from"
        else:
            own = [part for part in module.parameters(recurse=False) if part.ndim >= 2]
            if all(runner.names.was_used(part) for part in own):
                continue
            reason = _reason(module)
        found.append(
            Skipped(name=path or "the model itself", kind=type(module).__name__, reason=reason)
        )
    return found


def _reason(module: nn.Module) -> str:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "looks up rows of its weight, so that it has no hyperplanes"
    if isinstance(module, _RECURRENT):
        return "works as one fused operation whose inside cannot be watched"
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return "was not used in the forward pass"
    if isinstance(module, torch.jit.ScriptModule):
        return "is TorchScript, whose inside cannot be watched"
    return "has weights that are used in another way than as F.linear(x, w), x @ w or a convolution"
