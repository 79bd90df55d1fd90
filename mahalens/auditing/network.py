"""Reads any trained network as a set of distances: :func:`audit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from mahalens._version import __version__
from mahalens.auditing.assemble import layer_record, skipped_parts
from mahalens.auditing.baseline import COPIES, baseline_evidence, untrained_copy
from mahalens.auditing.choosing import Nodes, check_image, check_nodes, chosen_layers
from mahalens.auditing.classes import Classes
from mahalens.auditing.examples import collect_examples
from mahalens.auditing.gather.layer import LayerGatherer
from mahalens.auditing.perturb_layers import perturb_layers
from mahalens.auditing.readings import Verdict
from mahalens.auditing.record import AuditRecord, DataFacts, LayerRecord, Settings
from mahalens.auditing.settings import settings_from
from mahalens.auditing.verdicts import Evidence, judge_layers, summarise
from mahalens.auditing.watch.batches import USUAL_MASK, Batch, Batches
from mahalens.auditing.watch.forward import Forward, Runner, predicted, scores_of
from mahalens.auditing.watch.site import Site
from mahalens.auditing.watch.trace import Use
from mahalens.auditing.watch.untouched import untouched
from mahalens.errors import InputError

_COMPARED = ("distance-like", "intensity-like", "mixed")
"""Words that a layer must differ from an untrained one for."""
Progress = Callable[[str, int], None]
Predict = Callable[[Any], Tensor]


def audit(
    model: nn.Module,
    data: Any,
    *,
    classes: Sequence[str] | None = None,
    labelled: bool = True,
    batch_size: int = 512,
    drop_last: bool = False,
    perturb: bool = False,
    nodes: Nodes = None,
    layers: Sequence[str] | None = None,
    examples: bool = True,
    image: tuple[int, ...] | None = None,
    mask: str | None = USUAL_MASK,
    source: str = "",
    name: str | None = None,
    forward: Forward | None = None,
    predict: Predict | None = None,
    baseline: Literal["auto"] | nn.Module | None = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> AuditRecord:
    """Read every Linear and every convolution of a model as a set of distances.

    The model is run on the data once (once more for each perturbation, if asked for), in batches,
    and nothing of it is changed: modes, gradients, buffers, hooks and the random state are as
    before, also after an error. Memory does not depend on the number of samples.

    Args:
        model: any ``nn.Module``.
        data: a tensor x [N, ...], a pair (x, y) with whole numbers y [N], a Dataset, or a
            DataLoader or other collection of batches: x, (x, y), or a dict of arguments with
            ``labels``, also one that holds all samples, as a tokenizer returns it.
        classes: names of the classes, in the order of the labels.
        labelled: False leaves labels in the data alone.
        batch_size: samples per batch, where the data does not come in batches.
        drop_last: leave out a last batch that is smaller, for models of a fixed batch size.
        perturb: also measure accuracy with each layer's activations perturbed; needs labels.
        nodes: units whose histograms are kept, for all layers or by layer; default all, where
            there is room.
        layers: names of the layers to read; default all.
        examples: keep the samples that prototypes refer to, for pictures.
        image: shape [H, W] or [C, H, W] to draw a sample as; found for samples that look like
            images.
        mask: the key under which dicts say which tokens count [B, T]; rows of the others, such as
            padding, are left out. None counts all.
        source: where the data is from, in words.
        name: what to call the model; default its class.
        forward: how to call the model: ``forward(model, *inputs)``.
        predict: how to get classes [B] from the model's output; default the largest score.
        baseline: the same network untrained, from which a layer must differ to get a verdict.
            ``auto`` makes copies with new starting weights and runs them on up to 512 samples;
            None leaves the comparison out.
        progress: called with what is being done and how many samples are done.
        **settings: see :class:`~mahalens.auditing.record.Settings`.

    Returns:
        What was found; see :class:`~mahalens.auditing.record.AuditRecord`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> record = audit(model, (torch.randn(50, 2), torch.arange(50) % 2))
        >>> [(layer.name, layer.activation) for layer in record.layers]
        [('0', 'relu'), ('2', 'none')]
    """
    request = _Request(
        Runner(model, forward),
        Batches(data, batch_size, labelled, drop_last, mask),
        settings_from(settings),
        predict,
        progress or (lambda what, done: None),
        forward,
        _checked(baseline),
    )
    known = Classes(classes, request.settings)
    try:
        with untouched(model):
            return _read(request, known, perturb, nodes, layers, examples, image, source, name)
    finally:
        request.batches.restore()


@dataclass
class _Request:
    """What is to be read, and how."""

    runner: Runner
    batches: Batches
    settings: Settings
    predict: Predict | None
    progress: Progress
    forward: Forward | None
    baseline: Literal["auto"] | nn.Module | None


def _read(
    request: _Request,
    classes: Classes,
    perturb: bool,
    nodes: Nodes,
    layers: Sequence[str] | None,
    examples: bool,
    image: tuple[int, ...] | None,
    source: str,
    name: str | None,
) -> AuditRecord:
    runner, batches = request.runner, request.batches
    first = next(iter(batches), None)
    if first is None:
        raise InputError("the data has no samples; wanted at least one batch")
    check_image(image, tuple(first.first.shape[1:]))
    sites, unread = runner.survey(first)
    sites = _with_units(sites, unread)
    sites = chosen_layers(sites, layers, skipped_parts(runner, unread))
    check_nodes(nodes, sites)
    classes.prepare(batches, first.labels is not None, request.progress)
    gatherers = {
        key: LayerGatherer(site, request.settings, number)
        for number, (key, site) in enumerate(sites.items())
    }
    left_out = set(unread) if layers is None else None
    samples, accuracy, scores = _stream(request, classes, gatherers, left_out)
    notes = []
    if (order := classes.settle()) is not None:
        for gatherer in gatherers.values():
            gatherer.reorder(order)
    if accuracy is not None and request.predict is None:
        if not classes.fit(scores):
            accuracy = None
            notes.append(
                f"accuracy is not measured: the model has {scores} outputs, but the labels "
                f"go up to {classes.names()[-1]}"
            )
        elif scores == math.prod(first.first.shape[1:]) and scores > classes.count():
            accuracy = None
            notes.append("the outputs are as many as the inputs: they were not taken for scores")
    if classes.given and request.settings.clusters is not None:
        notes.append("the data has labels, so no clusters were looked for")
    skipped = skipped_parts(runner, unread)
    gatherers = {key: gatherer for key, gatherer in gatherers.items() if gatherer.kept.seen}
    perturbed = {}
    if perturb:
        if accuracy is None:
            raise InputError(
                "perturbations are judged by accuracy, which needs labels and class scores [B, C]; "
                "give a pair (x, y), or predict=, or leave out perturb"
            )

        def guess(output: Any, batch: Batch) -> Tensor | None:
            guessed = _guess(output, batch.size, request.predict)
            return None if guessed is None else guessed[0]

        perturbed = perturb_layers(runner, batches, gatherers, guess, accuracy, request.progress)
    records: list[LayerRecord] = []
    evidence: list[Evidence] = []
    for key, gatherer in gatherers.items():
        chosen = nodes.get(key) if isinstance(nodes, Mapping) else nodes
        reader = gatherers.get(gatherer.site.feeds or "")
        record, weighed = layer_record(
            gatherer, classes.count(), chosen, perturbed.get(key), reader=reader
        )
        records.append(record)
        evidence.append(weighed)
        request.progress("judging", len(records))
    verdicts, baseline = _judged(request, classes, samples, gatherers, evidence, notes)
    records = [
        msgspec.structs.replace(record, verdict=verdict)
        for record, verdict in zip(records, verdicts, strict=True)
    ]
    shown = collect_examples(batches, records, classes, image) if examples else None
    facts = DataFacts(
        samples=samples,
        shape=tuple(first.first.shape[1:]),
        classes=classes.names(),
        counts=classes.counts(),
        labels=classes.kind,
        source=source,
        image=image if shown is None else shown.image,
    )
    return AuditRecord(
        mahalens=__version__,
        torch=torch.__version__,
        model=name or type(runner.model).__name__,
        settings=request.settings,
        data=facts,
        layers=tuple(records),
        skipped=tuple(skipped),
        accuracy=accuracy,
        verdict=summarise(tuple(records)),
        baseline=baseline,
        examples=None if shown is None else shown.samples,
        example_samples=None if shown is None else shown.numbers,
        example_labels=None if shown is None else shown.labels,
        notes=(*runner.notes, *batches.notes, *notes, *(() if shown is None else shown.notes)),
    )


def _stream(
    request: _Request,
    classes: Classes,
    gatherers: dict[str, LayerGatherer],
    left_out: set[str] | None,
) -> tuple[int, float | None, int]:
    """Go through the data once: the number of samples, the accuracy if any, the number of scores.

    Layers that only some samples use, as experts that inputs are sent to, are read from where
    they first appear, except those ``left_out`` (None: all that are not chosen).
    """
    samples = right = judged = scores = 0
    late: set[str] = set()
    for batch in request.batches:
        labels = classes.labels_of(batch)

        def see(use: Use, batch: Batch = batch, labels: Tensor | None = labels) -> None:
            if (gatherer := gatherers.get(use.name)) is not None:
                gatherer.see(use, labels, batch.start, batch.size, batch.mask)
            else:
                late.add(use.name)

        output, _ = request.runner.run(batch, see)
        if left_out is not None and late - left_out:
            _add_late(request, gatherers, late - left_out, batch, labels)
            left_out.update(late - gatherers.keys())
            late.clear()
        samples += batch.size
        guess = _guess(output, batch.size, request.predict)
        if guess is not None and batch.labels is not None and classes.given:
            right += int((guess[0].to("cpu") == batch.labels).sum())
            judged += batch.size
            scores = guess[1]
        request.progress("reading", samples)
    return samples, right / judged if judged else None, scores


def _add_late(
    request: _Request,
    gatherers: dict[str, LayerGatherer],
    late: set[str],
    batch: Batch,
    labels: Tensor | None,
) -> None:
    """Begin to read layers that this batch is the first to use."""
    found = request.runner.survey_whole(batch)
    new = {
        name: LayerGatherer(site, request.settings, len(gatherers) + number)
        for number, (name, site) in enumerate(_with_units(found, {}).items())
        if name in late
    }

    def see(use: Use) -> None:
        if (gatherer := new.get(use.name)) is not None:
            gatherer.see(use, labels, batch.start, batch.size, batch.mask)

    request.runner.run(batch, see)
    gatherers.update(new)


def _guess(output: Any, samples: int, predict: Predict | None) -> tuple[Tensor, int] | None:
    """The label that the model says [B], and of how many scores it is the largest."""
    if predict is not None:
        return predicted(output, samples, predict), 0
    scores = scores_of(output, samples)
    return None if scores is None else (scores.argmax(1), scores.shape[1])


def _with_units(sites: dict[str, Site], unread: dict[str, str]) -> dict[str, Site]:
    """The layers that have units and inputs; the others are noted as not read."""
    for name, site in sites.items():
        if 0 in site.weight.shape:
            unread[name] = f"has no {'units' if not site.units else 'inputs'}"
    return {name: site for name, site in sites.items() if name not in unread}


def _checked(baseline: Any) -> Literal["auto"] | nn.Module | None:
    if baseline is None or baseline == "auto" or isinstance(baseline, nn.Module):
        return baseline  # type: ignore[no-any-return]
    raise InputError(
        f"baseline is {baseline!r}, wanted 'auto', None, or the same nn.Module untrained"
    )


def _judged(
    request: _Request,
    classes: Classes,
    samples: int,
    gatherers: Mapping[str, LayerGatherer],
    evidence: Sequence[Evidence],
    notes: list[str],
) -> tuple[list[Verdict], str]:
    """The verdicts, and the kind of untrained network that layers were compared with.

    Only layers that differ from chance are compared, and with a further copy only those that
    differ from all copies before.
    """
    copies: list[list[Evidence]] = [[] for _ in gatherers]
    verdicts, kind = judge_layers(evidence), "none"

    def open_layers() -> dict[str, LayerGatherer]:
        told = zip(gatherers.items(), evidence, verdicts, strict=True)
        return {
            name: gatherer
            for (name, gatherer), one, verdict in told
            if one.tested and verdict.word in _COMPARED
        }

    def compare(model: nn.Module) -> list[Verdict]:
        with untouched(model):
            found = baseline_evidence(
                model,
                request.forward,
                request.batches,
                classes,
                samples,
                open_layers(),
                request.settings,
                request.progress,
            )
        for name, others in zip(gatherers, copies, strict=True):
            if name in found:
                others.append(found[name])
        return judge_layers(evidence, copies)

    if request.baseline is None or not open_layers():
        return verdicts, kind
    if isinstance(request.baseline, nn.Module):
        return compare(request.baseline), "given"
    shuffled: list[str] = []
    try:
        for number in range(COPIES):
            if open_layers():
                model, shuffled = untrained_copy(
                    request.runner.model, request.settings.seed + number
                )
                verdicts = compare(model)
    except Exception as error:  # a model that cannot be copied or started anew is no fault of it
        reason = " ".join(str(error).split())[:200]
        notes.append(
            "no untrained copy could be run, so that chance alone decides "
            f"({type(error).__name__}: {reason})"
        )
        return judge_layers(evidence), "none"
    if shuffled:
        more = f" and {len(shuffled) - 1} more" if len(shuffled) > 1 else ""
        notes.append(
            f"the model cannot draw new starting values for {shuffled[0]}{more}: the untrained "
            "copies have the same values in random order"
        )
    return verdicts, "shuffled" if shuffled else "fresh"
