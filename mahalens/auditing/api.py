"""The audit itself: :func:`audit` reads a model on data, :func:`audit_features` given activations.

The path of an audit: :class:`~mahalens.auditing.runner.Runner` finds the layers of the model on a
few samples (``survey``); a :class:`~mahalens.auditing.gather.LayerGatherer` per layer sums up what
the whole data gives (``gather``); the sums become readings (``readings``, ``pairs``,
``whitening``), the readings a verdict (``verdict``, ``baseline``) and suggestions
(``suggestions``), and all of it one :class:`~mahalens.auditing.record.AuditRecord`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens._version import __version__
from mahalens.auditing.baseline import COPIES, baseline_evidence, untrained_copy
from mahalens.auditing.batches import USUAL_MASK, Batch, Classes, DataBatches
from mahalens.auditing.gather import LayerGatherer, gather_batch
from mahalens.auditing.pairs import read_grouped_pairs
from mahalens.auditing.perturb import PerturbationReading, perturb_layers
from mahalens.auditing.readings import read_histograms, read_prototypes, read_where
from mahalens.auditing.record import AuditRecord, DataFacts, LayerRecord, Settings, Skipped
from mahalens.auditing.runner import Forward, Runner, predicted, scores_of, untouched
from mahalens.auditing.site import Site
from mahalens.auditing.trace import ELEMENTWISE
from mahalens.auditing.verdict import (
    Evidence,
    Verdict,
    judge_layers,
    layer_evidence,
    suggest,
    summarise,
)
from mahalens.auditing.whitening import WhiteningReading, output_whitening, read_whitening
from mahalens.errors import InputError
from mahalens.geometry._checks import as_bias, as_weight

_COMPARED = ("distance-like", "intensity-like", "mixed")
"""Words that a layer gets only if it differs from an untrained one."""
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_EXAMPLE_BYTES = 2**25
"""Samples are kept as examples up to 32 MB."""
_LEAST = {"bins": 1, "rows_kept": 2, "patches": 1, "widest": 1, "prototypes": 1, "clusters": 2}
_LEAST["seed"] = 0
"""Settings that are whole numbers, with the least value of each."""
_MOST = 10**9
_HIGHEST = {"tolerance": 1e9, "through": 1e9, "cosine": 1}
"""Settings that are numbers from 0 on, with the greatest value of each."""

Nodes = Sequence[int] | Mapping[str, Sequence[int]] | None
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

    A unit ``w·x + b`` is read as a ruler: it measures how far an input lies from its hyperplane.
    The record says for every layer how its units respond, where their hyperplanes lie in the data,
    which units are dead or repeat one another, whether the layer whitens its input, and whether it
    works by distances or by intensities; docs/reference/readings.md has the formulas.

    The model is run on the data once (once more for each perturbation, if asked for), in batches.
    Memory does not depend on the number of samples. The model is left as it was, even after an
    error: modes, gradients, buffers, hooks and the random state.

    Args:
        model: any ``nn.Module``.
        data: a tensor x [N, ...], a pair (x, y) with whole numbers y [N], a Dataset, or a
            DataLoader or other collection of batches: x, (x, y), or a dict of arguments with
            ``labels``. A dict may also hold all samples at once, as a tokenizer returns them.
        classes: names of the classes, in the order of the labels.
        labelled: False ignores labels in the data.
        batch_size: samples per batch, where the data does not come in batches.
        drop_last: drop a smaller last batch, for models of a fixed batch size.
        perturb: also measure accuracy with each layer's activations perturbed; needs labels.
        nodes: units to keep histograms of, for all layers or by layer; by default all units, where
            there is room.
        layers: names of the layers to read; by default all.
        examples: keep the samples that prototypes refer to, for pictures.
        image: shape [H, W] or [C, H, W] to draw a sample as; by default detected.
        mask: key of the mask in dicts [B, T] that is 0 for tokens to leave out, such as padding.
            None counts all tokens.
        source: where the data comes from, in words.
        name: name of the model; by default its class.
        forward: how to call the model: ``forward(model, *inputs)``.
        predict: how to get classes [B] from the model's output; by default the largest score.
        baseline: the same network untrained, from which a layer must differ to get a verdict.
            ``auto`` makes copies with new starting weights and runs them on up to 512 samples;
            None skips the comparison.
        progress: called with the current stage and the number of samples done.
        **settings: see :class:`~mahalens.auditing.record.Settings`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> record = audit(model, (torch.randn(50, 2), torch.arange(50) % 2))
        >>> [(layer.name, layer.activation) for layer in record.layers]
        [('0', 'relu'), ('2', 'none')]
    """
    work = _Audit(
        runner=Runner(model, forward),
        batches=DataBatches(data, batch_size, labelled, drop_last, mask),
        settings=_settings_from(settings),
        names=classes,
        layers=layers,
        nodes=nodes,
        predict=predict,
        progress=progress or _silent,
    )
    if not (baseline is None or baseline == "auto" or isinstance(baseline, nn.Module)):
        raise InputError(
            f"baseline is {baseline!r}; give 'auto', None, or the same nn.Module untrained"
        )
    try:
        with untouched(model):
            record = work.read(perturb, baseline, examples, image, source)
            return msgspec.structs.replace(record, model=name or record.model)
    finally:
        work.batches.restore()


def _silent(stage: str, done: int) -> None:
    pass


def audit_features(
    features: Any,
    labels: Any = None,
    *,
    inputs: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str = "none",
    classes: Sequence[str] | None = None,
    name: str = "features",
    source: str = "",
    batch_size: int = 4096,
    **settings: Any,
) -> AuditRecord:
    """Read the activations of one layer, without the model.

    Units, activity, histograms, prototypes and the sphericity of the outputs need the features
    alone. With the ``weight`` [K, D] of the layer hyperplanes and pairs are read too, and with
    its ``inputs`` [N, D] its whitening.

    Args:
        features: values of K units, [N, K] or [N, P, K] with P positions per sample; or a
            Dataset or DataLoader of such, or of pairs with labels.
        labels: classes [N], whole numbers.
        inputs: inputs of the layer [N, D].
        weight: rows of the layer [K, D].
        bias: offsets of the layer [K]; by default 0.
        activation: the function that follows the features, such as ``relu``, by which units count
            as active; ``none`` for features that are activations already.
        classes: names of the classes.
        name: name of the layer.
        source: where the features come from, in words.
        batch_size: samples that are read at a time.
        **settings: see :class:`~mahalens.auditing.record.Settings`.

    Example:
        >>> record = audit_features(torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 4.0]]))
        >>> record.layers[0].units.dead
        (0,)
    """
    settings_used = _settings_from(settings)
    batches = DataBatches(features if labels is None else (features, labels), batch_size)
    groups = Classes(classes, settings_used)
    state = torch.random.get_rng_state()
    gatherer: LayerGatherer | None = None
    shape: tuple[int, ...] = ()
    try:
        for batch in batches:
            z = _with_positions(batch.first)
            if gatherer is None:
                site = _site(name, z.shape[2], weight, bias, activation, inputs is not None)
                gatherer = LayerGatherer(site, settings_used, inputs_given=inputs is not None)
                shape = tuple(batch.first.shape[1:])
                groups.prepare(batches, batch.labels is not None, _silent)
            if z.shape[2] != gatherer.site.units:
                raise InputError(
                    f"features have {gatherer.site.units} units at first but {z.shape[2]} from "
                    f"sample {batch.start} on; give the same units for all samples"
                )
            gatherer.samples = batch.start + batch.size
            gatherer.take(z, groups.labels_of(batch), batch.start)
            _add_inputs(gatherer, z, inputs, batch)
    finally:
        batches.restore()
        torch.random.set_rng_state(state)
    if gatherer is None:
        raise InputError("there are no features; give at least one sample")
    if inputs is not None and len(inputs) != gatherer.samples:
        raise InputError(
            f"inputs has {len(inputs)} samples but features has {gatherer.samples}; give the "
            f"inputs that these features were made from"
        )
    if (order := groups.settle()) is not None:
        gatherer.reorder(order)
    layer, _ = _layer_record(gatherer, groups.count())
    return AuditRecord(
        mahalens=__version__,
        torch=torch.__version__,
        model=name,
        settings=settings_used,
        data=DataFacts(samples=gatherer.samples, shape=shape, source=source, **groups.facts()),
        layers=(layer,),
        verdict=summarise((layer,)),
    )


def _settings_from(values: Mapping[str, Any]) -> Settings:
    """Return the settings of an audit, those in ``values`` checked and the others by default.

    >>> _settings_from({"rare": [0.1], "seed": 3}).rare
    (0.1,)
    """
    names = Settings.__struct_fields__
    checked = dict(values)
    for name, value in values.items():
        if name not in names:
            raise InputError(f"audit has no option {name!r}; its settings are {', '.join(names)}")
        if isinstance(value, np.number):
            value = checked[name] = value.item()
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = whole or isinstance(value, float)
        if name in _LEAST:
            fits = (whole and _LEAST[name] <= value <= _MOST) or (name, value) == ("clusters", None)
            wanted = f"a whole number of at least {_LEAST[name]}"
        elif name in _HIGHEST:
            fits = number and 0 <= value <= _HIGHEST[name]
            wanted = f"a number from 0 to {_HIGHEST[name]:g}"
        else:
            shares = (value,) if number else tuple(value)
            fits = bool(shares) and all(isinstance(v, int | float) and 0 < v < 1 for v in shares)
            wanted = "shares between 0 and 1, such as 0.05"
            checked[name] = tuple(map(float, shares)) if fits else ()
        if not fits:
            raise InputError(f"{name} is {value!r}; give {wanted}")
    return Settings(**checked)


def _check_image(image: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
    if image is None:
        return
    if len(image) not in (2, 3) or math.prod(image) != math.prod(shape):
        raise InputError(
            f"image is {list(image)}; give [H, W] or [C, H, W] of the {math.prod(shape)} numbers "
            f"of a sample"
        )


def _checked_nodes(nodes: Nodes, sites: Mapping[str, Site]) -> Nodes:
    """Return the same units as numbers of Python; refuse those that no layer has."""
    if nodes is None:
        return None
    if isinstance(nodes, Integral):
        raise InputError(f"nodes is {nodes}; give a list of units, such as [{nodes}]")
    widest = max(site.units for site in sites.values())
    by_layer: Mapping[Any, Sequence[Any]]
    by_layer = nodes if isinstance(nodes, Mapping) else {None: nodes}
    for name, units in by_layer.items():
        if name is not None and name not in sites:
            raise InputError(f"nodes names the layer {name!r}; give some of {', '.join(sites)}")
        most = widest if name is None else sites[name].units
        for unit in units:
            if not isinstance(unit, Integral) or not 0 <= int(unit) < most:
                raise InputError(
                    f"nodes has the unit {unit!r}, but no layer has one; the widest has {most}"
                )
    whole = {name: list(map(int, units)) for name, units in by_layer.items()}
    return whole if isinstance(nodes, Mapping) else whole[None]


@dataclass
class _Audit:
    """One call of :func:`audit`: its arguments, and what it has gathered so far."""

    runner: Runner
    batches: DataBatches
    settings: Settings
    names: Sequence[str] | None
    layers: Sequence[str] | None
    nodes: Nodes
    predict: Predict | None
    progress: Progress
    gatherers: dict[str, LayerGatherer] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    samples: int = 0

    def __post_init__(self) -> None:
        self.classes = Classes(self.names, self.settings)

    def read(
        self,
        perturb: bool,
        baseline: Literal["auto"] | nn.Module | None,
        examples: bool,
        image: tuple[int, ...] | None,
        source: str,
    ) -> AuditRecord:
        first = next(iter(self.batches), None)
        if first is None:
            raise InputError("the data has no samples; give at least one batch")
        shape = tuple(first.first.shape[1:])
        _check_image(image, shape)
        sites, unread = self._find_layers(first)
        self.classes.prepare(self.batches, first.labels is not None, self.progress)
        self.gatherers = self._gatherers(sites)
        accuracy = self._gather(unread, shape)
        if self.classes.labelled and self.settings.clusters is not None:
            self.notes.append("the data has labels, so no clusters were looked for")
        skipped = _skipped_parts(self.runner, unread)
        self.gatherers = {key: g for key, g in self.gatherers.items() if g.kept.seen}
        perturbed = self._perturb(accuracy) if perturb else {}
        records, kind = self._judge(perturbed, baseline)
        shown = self._examples(records) if examples else {}
        if image is None and "examples" in shown:
            image = _image_shape(shown["examples"])
        return AuditRecord(
            mahalens=__version__,
            torch=torch.__version__,
            model=type(self.runner.model).__name__,
            settings=self.settings,
            data=DataFacts(
                samples=self.samples,
                shape=shape,
                source=source,
                image=image,
                **self.classes.facts(),
            ),
            layers=tuple(records),
            skipped=tuple(skipped),
            accuracy=accuracy,
            verdict=summarise(tuple(records)),
            baseline=kind,
            notes=(*self.runner.notes, *self.batches.notes, *self.notes),
            **shown,
        )

    def _find_layers(self, first: Batch) -> tuple[dict[str, Site], dict[str, str]]:
        """Return the layers to read, and those that cannot be read, with reasons."""
        sites, unread = self.runner.survey(first)
        sites = _with_units(sites, unread)
        if not sites:
            part = next(iter(_skipped_parts(self.runner, unread)), None)
            why = "" if part is None else f"; {part.name} ({part.kind}) {part.reason}"
            raise InputError(f"the model uses no Linear and no convolution that can be read{why}")
        if self.layers is not None:
            if missing := [name for name in self.layers if name not in sites]:
                raise InputError(
                    f"the model uses no layer {missing[0]!r}; those it uses are {', '.join(sites)}"
                )
            sites = {name: site for name, site in sites.items() if name in set(self.layers)}
        self.nodes = _checked_nodes(self.nodes, sites)
        return sites, unread

    def _gatherers(self, sites: Mapping[str, Site]) -> dict[str, LayerGatherer]:
        """Return a gatherer for each layer, numbered on, so that each draws other rows."""
        return {
            name: LayerGatherer(site, self.settings, number)
            for number, (name, site) in enumerate(sites.items(), len(self.gatherers))
        }

    def _gather(self, unread: Mapping[str, str], shape: tuple[int, ...]) -> float | None:
        """Go through the data once; return the accuracy, None where it makes no sense.

        Layers that only some samples use, such as experts that inputs are routed to, are read from
        where they first appear, unless the user chose the layers.
        """
        right = judged = scores = 0
        ignored = set(unread)
        for batch in self.batches:
            labels = self.classes.labels_of(batch)
            output, others = gather_batch(self.runner, batch, labels, self.gatherers)
            if self.layers is None and others - ignored:
                self._add_late(others - ignored, batch, labels)
                ignored |= others - self.gatherers.keys()
            self.samples += batch.size
            guess = self._guess(output, batch)
            if guess is not None and batch.labels is not None and self.classes.labelled:
                right += int((guess[0].to("cpu") == batch.labels).sum())
                judged += batch.size
                scores = guess[1]
            self.progress("reading", self.samples)
        if (order := self.classes.settle()) is not None:
            for gatherer in self.gatherers.values():
                gatherer.reorder(order)
        return right / judged if judged and self._are_scores(scores, shape) else None

    def _add_late(self, late: set[str], batch: Batch, labels: Tensor | None) -> None:
        """Begin to read layers that this batch is the first to use."""
        sites, unread = self.runner.survey(batch, whole=True)
        gatherers = self._gatherers(_with_units(sites, unread))
        new = {name: gatherer for name, gatherer in gatherers.items() if name in late}
        gather_batch(self.runner, batch, labels, new)
        self.gatherers.update(new)

    def _guess(self, output: Any, batch: Batch) -> tuple[Tensor, int] | None:
        """Return the predicted labels [B], and the number of scores they are the largest of."""
        if self.predict is not None:
            return predicted(output, batch.size, self.predict), 0
        scores = scores_of(output, batch.size)
        return None if scores is None else (scores.argmax(1), scores.shape[1])

    def _are_scores(self, scores: int, shape: tuple[int, ...]) -> bool:
        """Return whether so many outputs can be scores of the classes; note it if not."""
        if self.predict is not None:
            return True
        if not self.classes.fit(scores):
            self.notes.append(
                f"accuracy is not measured: the model has {scores} outputs, but the labels "
                f"go up to {self.classes.names()[-1]}"
            )
            return False
        if scores == math.prod(shape) and scores > self.classes.count():
            self.notes.append(
                "the outputs are as many as the inputs: they were not taken for scores"
            )
            return False
        return True

    def _perturb(self, accuracy: float | None) -> dict[str, PerturbationReading]:
        if accuracy is None:
            raise InputError(
                "perturbations are judged by accuracy, which needs labels and class scores [B, C]; "
                "give a pair (x, y), or predict=, or leave out perturb"
            )

        def guess(output: Any, batch: Batch) -> Tensor | None:
            guessed = self._guess(output, batch)
            return None if guessed is None else guessed[0]

        return perturb_layers(
            self.runner, self.batches, self.gatherers, guess, accuracy, self.progress
        )

    def _judge(
        self,
        perturbed: Mapping[str, PerturbationReading],
        baseline: Literal["auto"] | nn.Module | None,
    ) -> tuple[list[LayerRecord], str]:
        """Return the records of all layers, and what kind of untrained network they differ from."""
        records: list[LayerRecord] = []
        evidence: dict[str, Evidence] = {}
        for name, gatherer in self.gatherers.items():
            nodes = self.nodes.get(name) if isinstance(self.nodes, Mapping) else self.nodes
            reader = self.gatherers.get(gatherer.site.feeds or "")
            record, evidence[name] = _layer_record(
                gatherer, self.classes.count(), nodes, perturbed.get(name), reader
            )
            records.append(record)
            self.progress("judging", len(records))
        verdicts, kind = self._compare(evidence, baseline)
        return list(map(_with_verdict, records, verdicts)), kind

    def _compare(
        self, evidence: Mapping[str, Evidence], baseline: Literal["auto"] | nn.Module | None
    ) -> tuple[list[Verdict], str]:
        """Judge the layers against untrained copies of the model.

        Only layers that differ from chance are compared, and with a further copy only those that
        differ from all copies before.
        """
        copies: dict[str, list[Evidence]] = {name: [] for name in evidence}
        layers = list(evidence.values())
        verdicts = judge_layers(layers)

        def open_layers() -> dict[str, LayerGatherer]:
            return {
                name: self.gatherers[name]
                for (name, layer), verdict in zip(evidence.items(), verdicts, strict=True)
                if layer.tested and verdict.word in _COMPARED
            }

        def compare(model: nn.Module) -> list[Verdict]:
            with untouched(model):
                untrained = baseline_evidence(
                    Runner(model, self.runner.forward),
                    self.batches,
                    self.classes,
                    self.samples,
                    open_layers(),
                    self.settings,
                    self.progress,
                )
            for name, layer in untrained.items():
                copies[name].append(layer)
            return judge_layers(layers, list(copies.values()))

        if baseline is None or not open_layers():
            return verdicts, "none"
        if isinstance(baseline, nn.Module):
            return compare(baseline), "given"
        shuffled: list[str] = []
        try:
            for number in range(COPIES):
                if open_layers():
                    model, shuffled = untrained_copy(self.runner.model, self.settings.seed + number)
                    verdicts = compare(model)
        except Exception as error:  # a model that cannot be copied or restarted is still audited
            reason = " ".join(str(error).split())[:200]
            self.notes.append(
                "no untrained copy could be run, so that chance alone decides "
                f"({type(error).__name__}: {reason})"
            )
            return judge_layers(layers), "none"
        if shuffled:
            more = f" and {len(shuffled) - 1} more" if len(shuffled) > 1 else ""
            self.notes.append(
                f"the model cannot draw new starting values for {shuffled[0]}{more}: the untrained "
                "copies have the same values in random order"
            )
        return verdicts, "shuffled" if shuffled else "fresh"

    def _examples(self, layers: Sequence[LayerRecord]) -> dict[str, Any]:
        """Fetch the samples that are prototypes of units, in a further pass over the data.

        Where they are too many to keep, the first prototypes of all units come first, then the
        second ones, and so on.
        """
        wanted = _by_rank(layers)
        chosen = torch.tensor(wanted)
        parts: dict[str, list[Tensor]] = {}
        limit = 0
        for batch in self.batches if wanted else ():
            x = batch.first
            if not limit:
                limit = max(1, _EXAMPLE_BYTES // max(1, x[0].numel() * x.element_size()))
                chosen = chosen[:limit].sort().values
            ends = torch.tensor([batch.start, batch.start + len(x)])
            first, last = torch.searchsorted(chosen, ends)
            if first == last:
                continue
            here = chosen[first:last] - batch.start
            rows = x[here.to(x.device)].detach().to("cpu").as_subclass(Tensor)
            parts.setdefault("example_samples", []).append(here + batch.start)
            parts.setdefault("examples", []).append(rows)
            if (of_class := self.classes.peek(batch)) is not None:
                parts.setdefault("example_labels", []).append(of_class[here])
        if len({tuple(part.shape[1:]) for part in parts.get("examples", ())}) != 1:
            return {}
        if len(wanted) > limit:
            self.notes.append(
                f"{limit} of the {len(wanted)} samples that prototypes refer to are kept"
            )
        return {name: torch.cat(tensors) for name, tensors in parts.items()}


def _with_verdict(record: LayerRecord, verdict: Verdict) -> LayerRecord:
    return msgspec.structs.replace(record, verdict=verdict)


def _with_units(sites: dict[str, Site], unread: dict[str, str]) -> dict[str, Site]:
    """Return the layers that have units and inputs; note the others as not read."""
    for name, site in sites.items():
        if 0 in site.weight.shape:
            unread[name] = f"has no {'units' if not site.units else 'inputs'}"
    return {name: site for name, site in sites.items() if name not in unread}


def _layer_record(
    gathered: LayerGatherer,
    classes: int,
    nodes: Sequence[int] | None = None,
    perturbation: PerturbationReading | None = None,
    reader: LayerGatherer | None = None,
) -> tuple[LayerRecord, Evidence]:
    """Return the record of a layer, with a verdict against chance alone, and the evidence for it.

    ``reader`` is the one layer that reads its activations; ``nodes`` are the units whose
    histograms are wanted.
    """
    site, settings = gathered.site, gathered.settings
    units, hyperplanes = read_where(gathered, classes, reader)
    evidence = layer_evidence(gathered, units, hyperplanes, perturbation, resampled=True)
    rows, length = site.rows(), torch.ones(site.units)
    pairs = None
    if site.placed:
        length = torch.linalg.vector_norm(rows, dim=1)
        (groups,) = site.geometry.get("groups", (1,))
        pairs = read_grouped_pairs(rows, site.offsets(), groups, cosine=settings.cosine)
    whitening, mean, std = _whitening(gathered, None if pairs is None else pairs.kept)
    if bool(gathered.faulty.any()):
        count = int(gathered.faulty.sum())
        gathered.notes.append(f"{count} units gave NaN or infinite values, which count as 0")
    if gathered.kept.seen > len(gathered.kept.rows):
        gathered.notes.append(
            f"quantiles and histograms are of {len(gathered.kept.rows):,} rows drawn at random "
            f"from {gathered.kept.seen:,}"
        )
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


def _whitening(
    gathered: LayerGatherer, kept: Sequence[int] | None
) -> tuple[WhiteningReading | None, Tensor | None, Tensor | None]:
    """Return the reading over the deduplicated units, and the input's mean and spread."""
    if gathered.inputs is not None and gathered.inputs.rows > 1:
        mean, covariance = gathered.inputs.result()
        rows = gathered.site.rows()
        rows = rows if kept is None else rows[list(kept)]
        if not bool(rows.isfinite().all()) or not bool(covariance.isfinite().all()):
            return None, None, None
        std = covariance.diagonal().clamp_min(0).sqrt()
        return read_whitening(rows, covariance, gathered.inputs.rows), mean, std
    if gathered.outputs is not None and gathered.outputs.rows > 1:
        covariance = gathered.outputs.result()[1]
        if kept is not None:
            covariance = covariance[list(kept)][:, list(kept)]
        return output_whitening(covariance, gathered.outputs.rows), None, None
    return None, None, None


def _skipped_parts(runner: Runner, unread: Mapping[str, str]) -> list[Skipped]:
    """Return the parts of the model that have weights but no hyperplanes to read."""
    modules = dict(runner.model.named_modules())
    kinds = {name: type(module).__name__ for name, module in modules.items()}
    skipped = [
        Skipped(name=name, kind=kinds.get(name, "convolution"), reason=reason)
        for name, reason in unread.items()
    ]
    for name, module in modules.items():
        if name in unread:
            continue
        if "quantized" in type(module).__module__ and not list(module.children()):
            reason = "is quantised: its weights are packed; give the model it was made from"
        else:
            weights = [part for part in module.parameters(recurse=False) if part.ndim >= 2]
            if all(runner.names.was_used(weight) for weight in weights):
                continue
            reason = _reason(module)
        skipped.append(Skipped(name=name or "the model itself", kind=kinds[name], reason=reason))
    return skipped


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


def _by_rank(layers: Sequence[LayerRecord]) -> list[int]:
    """Return the numbers of all prototypes, the best of every unit first."""
    numbers: dict[int, None] = {}
    readings = [layer.prototypes for layer in layers if layer.prototypes is not None]
    most = max((reading.near_sample.shape[1] for reading in readings), default=0)
    for rank in range(most):
        for reading in readings:
            for samples in (reading.near_sample, reading.active_sample):
                numbers.update(dict.fromkeys(samples[:, rank].tolist()))
    numbers.pop(-1, None)
    return list(numbers)


def _image_shape(samples: Tensor) -> tuple[int, ...] | None:
    """Return the shape of an image, for samples [M, H, W] or [M, C, H, W] of a fitting size."""
    shape = tuple(samples.shape[1:])
    if not samples.is_floating_point() and samples.dtype != torch.uint8:
        return None
    if len(shape) == 2 and min(shape) >= 5 and max(shape) <= 4 * min(shape):
        return shape
    if len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 5:
        return shape
    return None


def _with_positions(features: Tensor) -> Tensor:
    if features.ndim not in (2, 3) or 0 in features.shape or not features.is_floating_point():
        raise InputError(
            f"features are {features.dtype} of shape {list(features.shape)}; give real numbers "
            f"[N, K], or [N, P, K] with P positions per sample"
        )
    return features if features.ndim == 3 else features[:, None]


def _site(
    name: str,
    units: int,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str,
    inputs_given: bool,
) -> Site:
    """Return the layer that features come from; without a weight it has no inputs."""
    if weight is None and (bias is not None or inputs_given):
        raise InputError("bias and inputs are read together with weight; give weight too")
    rows = torch.zeros(units, 0, dtype=torch.float64) if weight is None else as_weight(weight)
    if len(rows) != units:
        raise InputError(
            f"weight has {len(rows)} rows but the features have {units} units; give the weight of "
            f"the layer that made them"
        )
    function = getattr(functional, activation, None) or getattr(torch, activation, None)
    if activation == "none":
        function = None
    elif activation not in ELEMENTWISE or function is None:
        raise InputError(
            f"activation is {activation!r}; give none or a function of torch that treats each unit "
            f"by itself, such as relu, abs, sigmoid or gelu"
        )
    offsets = torch.zeros(units, dtype=torch.float64) if bias is None else as_bias(bias, rows)
    site = Site(name, "features", rows, offsets, {}, calls=1)
    site.followed[activation] = function
    return site


def _add_inputs(gatherer: LayerGatherer, z: Tensor, inputs: Tensor | None, batch: Batch) -> None:
    """Add the inputs of a batch of features to the covariance of the layer's input."""
    if inputs is None or gatherer.inputs is None:
        return
    site = gatherer.site
    width = site.weight.shape[1]
    if inputs.ndim != 2 or inputs.shape[1] != width or not bool(inputs.isfinite().all()):
        raise InputError(
            f"inputs have shape {list(inputs.shape)}; give finite numbers [N, {width}] as the "
            f"weight takes them"
        )
    rows = inputs[batch.start : batch.start + batch.size].detach().to("cpu")
    if batch.start == 0 and z.shape[1] == 1:
        computed = rows[:8].double() @ site.weight.T + site.bias
        features = z[:8, 0].detach().to("cpu").double()
        difference = (computed[: len(features)] - features).abs().max()
        if difference > 1e-2 * (1e-6 + computed.abs().max()):
            raise InputError(
                "the features are not weight times inputs plus bias; give the values before the "
                "activation, of the same layer and samples"
            )
    gatherer.inputs.add(rows)
