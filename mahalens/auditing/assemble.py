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
from mahalens.auditing.readings import PerturbationReading, WhiteningReading
from mahalens.auditing.record import LayerRecord, Skipped
from mahalens.auditing.repeats.groups import read_grouped_pairs
from mahalens.auditing.suggestions import suggest
from mahalens.auditing.verdicts import judge
from mahalens.auditing.watch.forward import Runner
from mahalens.auditing.whitening import output_whitening, read_whitening

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def layer_record(
    gathered: LayerGatherer,
    classes: int,
    nodes: Sequence[int] | None = None,
    perturbation: PerturbationReading | None = None,
    placed: bool = True,
) -> LayerRecord:
    """The record of a layer; ``placed`` says whether its weights are known."""
    site, settings = gathered.site, gathered.settings
    placed = placed and site.placed
    ascending = ascending_rows(gathered.kept.rows)
    units = read_units(gathered, classes, ascending)
    rows, offsets = site.rows(), site.offsets()
    hyperplanes = read_places(gathered, units, ascending) if placed else None
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
    return LayerRecord(
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
        verdict=judge(units, hyperplanes, perturbation, site.units, site.output),
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
