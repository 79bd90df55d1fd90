"""Reads activations that the user already has: :func:`audit_features`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mahalens._version import __version__
from mahalens.auditing._inputs import as_bias, as_weight
from mahalens.auditing.assemble import layer_record
from mahalens.auditing.classes import Classes
from mahalens.auditing.gather.layer import LayerGatherer
from mahalens.auditing.record import AuditRecord, DataFacts
from mahalens.auditing.settings import settings_from
from mahalens.auditing.verdicts import summarise
from mahalens.auditing.watch.batches import Batches
from mahalens.auditing.watch.functions import ELEMENTWISE
from mahalens.auditing.watch.site import Activation, Site
from mahalens.errors import InputError


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
    """Read activations of one layer, as far as they say something without the model.

    Units, activity, histograms, prototypes and the sphericity of the outputs need the features
    alone. With the ``weight`` [K, D] of the layer hyperplanes and pairs are read too, and with
    its ``inputs`` [N, D] its whitening.

    Args:
        features: values of K units, [N, K] or [N, P, K] with P positions per sample; or a
            Dataset or DataLoader of such, or of pairs with labels.
        labels: classes [N], whole numbers.
        inputs: what the layer was fed [N, D].
        weight: the layer's rows [K, D].
        bias: its offsets [K]; 0 if left out.
        activation: the function that comes after the features, such as ``relu``: what is active
            is judged behind it. ``none`` for features that have been activated already.
        classes: names of the classes.
        name: what to call the layer.
        source: where the features are from, in words.
        batch_size: samples that are taken in at a time.
        **settings: see :class:`~mahalens.auditing.record.Settings`.

    Example:
        >>> record = audit_features(torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 4.0]]))
        >>> record.layers[0].units.dead
        (0,)
    """
    options = settings_from(settings)
    batches = Batches(features if labels is None else (features, labels), batch_size)
    known = Classes(classes, options)
    state = torch.random.get_rng_state()
    gatherer: LayerGatherer | None = None
    shape: tuple[int, ...] = ()
    samples = 0
    try:
        for batch in batches:
            z = _three(batch.first)
            if gatherer is None:
                site = _site(name, z.shape[2], weight, bias, activation, inputs is not None)
                gatherer = LayerGatherer(site, options, inputs_given=inputs is not None)
                shape = tuple(batch.first.shape[1:])
                known.prepare(batches, batch.labels is not None, lambda what, done: None)
            if z.shape[2] != gatherer.site.units:
                raise InputError(
                    f"features have {gatherer.site.units} units at first and {z.shape[2]} from "
                    f"sample {batch.start} on; wanted as many"
                )
            gatherer.samples = samples = batch.start + batch.size
            gatherer.take(z, known.labels_of(batch), batch.start)
            _feed(gatherer, z, inputs, batch.start, batch.size)
    finally:
        batches.restore()
        torch.random.set_rng_state(state)
    if gatherer is None:
        raise InputError("there are no features; wanted at least one sample")
    if inputs is not None and len(inputs) != samples:
        raise InputError(
            f"inputs has {len(inputs)} samples and features {samples}; wanted the inputs that "
            f"these features were made from"
        )
    if (order := known.settle()) is not None:
        gatherer.reorder(order)
    layer, _ = layer_record(gatherer, known.count(), placed=weight is not None)
    return AuditRecord(
        mahalens=__version__,
        torch=torch.__version__,
        model=name,
        settings=options,
        data=DataFacts(
            samples=samples,
            shape=shape,
            classes=known.names(),
            counts=known.counts(),
            labels=known.kind,
            source=source,
        ),
        layers=(layer,),
        verdict=summarise((layer,)),
    )


def _three(features: Tensor) -> Tensor:
    if features.ndim not in (2, 3) or 0 in features.shape or not features.is_floating_point():
        raise InputError(
            f"features are {features.dtype} of shape {list(features.shape)}, wanted real numbers "
            f"[N, K], or [N, P, K] with P positions per sample"
        )
    return features if features.ndim == 3 else features[:, None]


def _site(
    name: str,
    units: int,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str,
    inputs: bool,
) -> Site:
    if weight is None:
        if bias is not None or inputs:
            raise InputError("bias and inputs are read together with weight; give weight too")
        rows = torch.zeros(units, 0, dtype=torch.float64)
    else:
        rows = as_weight(weight)
        if len(rows) != units:
            raise InputError(
                f"weight has {len(rows)} rows and the features {units} units; give the weight of "
                f"the layer that made them"
            )
    offsets = torch.zeros(units, dtype=torch.float64) if bias is None else as_bias(bias, rows)
    site = Site(name, "features", rows, offsets, tuple(rows.shape), {})
    site.calls = 1
    site.followed[activation] = _function(activation)
    return site


def _function(name: str) -> Activation | None:
    if name == "none":
        return None
    function = getattr(functional, name, None) or getattr(torch, name, None)
    if name not in ELEMENTWISE or function is None:
        raise InputError(
            f"activation is {name!r}, wanted none or a function of torch that treats each unit by "
            f"itself, such as relu, abs, sigmoid or gelu"
        )
    return function  # type: ignore[no-any-return]


def _feed(
    gatherer: LayerGatherer, z: Tensor, inputs: Tensor | None, start: int, count: int
) -> None:
    if inputs is None or gatherer.inputs is None:
        return
    width = gatherer.site.weight.shape[1]
    if inputs.ndim != 2 or inputs.shape[1] != width or not bool(inputs.isfinite().all()):
        raise InputError(
            f"inputs have shape {list(inputs.shape)}, wanted finite numbers [N, {width}] as the "
            f"weight takes them"
        )
    fed = inputs[start : start + count].detach().to("cpu")
    if start == 0 and z.shape[1] == 1:
        some = fed[:8].double()
        made = some @ gatherer.site.weight.T + gatherer.site.bias
        given = z[:8, 0].detach().to("cpu").double()
        if (made[: len(given)] - given).abs().max() > 1e-2 * (1e-6 + made.abs().max()):
            raise InputError(
                "the features are not weight times inputs plus bias; give the values before the "
                "activation, of the same layer and samples"
            )
    gatherer.inputs.add(fed)
