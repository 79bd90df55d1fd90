"""The same network untrained: what its layers would be taken for before they learnt anything."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mahalens.auditing.batches import Batch, Classes, DataBatches, join
from mahalens.auditing.gather import LayerGatherer, gather_batch
from mahalens.auditing.readings import read_where
from mahalens.auditing.record import Settings
from mahalens.auditing.runner import Runner
from mahalens.auditing.verdict import Evidence, layer_evidence

COPIES = 3
"""Untrained copies that are run: one alone may by chance be unlike all others."""

_MOST_SAMPLES = 512
"""Samples that a baseline is run on, unless there are many classes."""

_APART = 0x5EED_5EED
"""Added to the seed: a model that was started with the same one is not to come out again."""

_PER_CLASS = 32
"""Samples per class that it is run on in any case, where there are as many."""

_NORM_SAMPLES = 32
"""Samples that a batch norm sees together at least, where batches can be joined."""


def untrained_copy(model: nn.Module, seed: int) -> tuple[nn.Module, list[str]]:
    """Return a copy of a model with new starting weights, and which weights were only shuffled.

    Every module draws its parameters anew (``reset_parameters``). Then the model starts them as
    it does itself (``_init_weights`` of each module, as in Hugging Face's and many others'
    models). Without that the start may have been another one: weights are brought to the size
    that they have in the model, biases with them, and vectors that are constant in the model,
    such as biases of 0, stay. A weight of two or more dimensions that comes out as it was has no
    initialiser: its entries are put in random order, as ``randomize`` of WeightWatcher does.

    The random state of torch is changed; the caller puts it back.
    """
    fresh = copy.deepcopy(model)
    torch.manual_seed(seed + _APART)
    before = {id(part): part.detach().clone() for part in fresh.parameters()}
    start = getattr(fresh, "_init_weights", None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of initialisers, about a model that is only compared with
        for module in fresh.modules():
            for reset in ("reset_parameters", "_reset_parameters"):
                _call(getattr(module, reset, None))
        for module in fresh.modules():
            if callable(start):
                _call(start, module)
            else:
                _resize(module, before)
        shuffled = []
        for name, part in fresh.named_parameters():
            if _is_matrix(part) and torch.equal(part, old := before[id(part)]):
                order = torch.randperm(part.numel(), device=part.device)
                part.copy_(old.flatten()[order].view(part.shape))
                shuffled.append(name)
    return fresh, shuffled


def _resize(module: nn.Module, before: Mapping[int, Tensor]) -> None:
    """Bring new weights of a module to their size in the model, and its biases with them."""
    parameters = [part for part in module.parameters(recurse=False) if part.is_floating_point()]
    matrices = [part for part in parameters if _is_matrix(part)]
    was, now = (
        sum(float(torch.linalg.vector_norm(part.double())) ** 2 for part in parts) ** 0.5
        for parts in ([before[id(part)] for part in matrices], matrices)
    )
    for part in parameters:
        old = before[id(part)]
        if part.ndim < 2 and part.numel() and bool((old == old.flatten()[0]).all()):
            part.copy_(old)
        elif was and now and was != now:
            part.mul_(was / now)


def _is_matrix(part: Tensor) -> bool:
    return part.ndim >= 2 and part.is_floating_point() and part.numel() > 0


def baseline_evidence(
    runner: Runner,
    batches: DataBatches,
    classes: Classes,
    samples: int,
    wanted: Mapping[str, LayerGatherer],
    settings: Settings,
    progress: Callable[[str, int], None],
) -> dict[str, Evidence]:
    """Return the evidence for verdicts on the layers of an untrained model, by name.

    The model is run on samples drawn at random from the ``samples`` of the data, and only what
    hyperplanes need is gathered, for the layers in ``wanted``.
    """
    model = runner.model
    some = _some(batches, samples, max(_MOST_SAMPLES, _PER_CLASS * classes.count()), settings.seed)
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    for norm in norms:  # as an untrained network in training has them: of the data
        norm.momentum, norm.training = None, norm.track_running_stats
    if norms:
        for batch in _joined(some()):
            runner.run(batch, lambda use: None)
        for norm in norms:
            norm.training = False
    first = next(some())
    sites, _ = runner.survey(first)
    light = Settings(
        **{name: getattr(settings, name) for name in ("tolerance", "through", "seed")},
        quantiles=(),
        rows_kept=min(settings.rows_kept, 1024),
        widest=1,
        prototypes=1,
    )
    gatherers = {
        name: _Light(site, light, inputs_given=False)
        for name, site in sites.items()
        if name in wanted and site.units == wanted[name].site.units
    }
    done = 0
    for batch in some():
        gather_batch(runner, batch, classes.peek(batch), gatherers)
        done += batch.size
        progress("reading the untrained copy", done)
    evidence = {}
    for name, gatherer in gatherers.items():
        if gatherer.kept.seen:
            units, hyperplanes = read_where(gatherer, classes.count())
            evidence[name] = layer_evidence(gatherer, units, hyperplanes)
    return evidence


class _Light(LayerGatherer):
    """Gathers what hyperplanes need, and no prototypes."""

    def _prototypes(self, *_: Any) -> None:
        pass


def _call(function: Any, *args: Any) -> None:
    """Call an initialiser, if it is one: something that takes these arguments and no others."""
    if not callable(function):
        return
    try:
        inspect.signature(function).bind(*args)
    except (TypeError, ValueError):
        return
    function(*args)


def _some(
    batches: DataBatches, samples: int, most: int, seed: int
) -> Callable[[], Iterator[Batch]]:
    """Passes over batches of some samples, each drawn with the same probability."""
    share = min(1.0, most / max(1, samples))

    def pass_over() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        start = 0
        for batch in batches:
            chosen = torch.rand(batch.size, generator=generator) < share
            if not bool(chosen.any()):
                continue
            part = batch if bool(chosen.all()) else batch.pick(chosen.nonzero()[:, 0])
            part.start = start
            start += part.size
            yield part

    return pass_over


def _joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Join small batches, because a batch norm in training takes no batch of one sample.

    A single sample that cannot be joined is left out, unless there is nothing else.
    """
    waiting: Batch | None = None
    passed = False
    for batch in batches:
        whole = batch if waiting is None else join(waiting, batch)
        if whole is None:
            if waiting is not None and waiting.size > 1:
                yield waiting
                passed = True
            whole = batch
        waiting = whole
        if whole.size >= _NORM_SAMPLES:
            yield whole
            waiting, passed = None, True
    if waiting is not None and (waiting.size > 1 or not passed):
        yield waiting
