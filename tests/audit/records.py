"""A rich record of an audit, made from drawn data the slow and obvious way, for the tests."""

import math

import msgspec
import torch
from torch.nn import functional

from mahalens.auditing.pairs import read_pairs
from mahalens.auditing.perturb import PerturbationReading
from mahalens.auditing.readings import (
    HistogramReading,
    HyperplaneReading,
    PrototypeReading,
    UnitReading,
    _overlaps,
)
from mahalens.auditing.record import AuditRecord, DataFacts, LayerRecord, Settings, Skipped
from mahalens.auditing.verdict import Suggestion, Verdict
from mahalens.auditing.whitening import read_whitening

SIDE = 28
LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def example_record(classes=10, image=True, samples=120, units=32, seed=0):
    """A record of several layers.

    ``conv`` (Conv2d, 6 units on patches of 5 x 5; only with ``image``), ``fc1`` (Linear to
    ``units``, relu, every reading, with planted dead, duplicate and mirrored units), ``fc2``
    (Linear without classes, whitening or pictures) and ``broken`` (all units dead, numbers that
    are not finite). Without ``classes`` there are no labels anywhere; without ``image`` a sample
    is a vector of 20.
    """
    draw = torch.Generator().manual_seed(seed)
    x, labels = pictures(classes, samples, draw) if image else points(classes, samples, draw)
    flat = x.flatten(1)
    layers = []
    if image:
        weight = torch.randn(6, 25, generator=draw) / 5
        patches = functional.unfold(x[:, None], 5, stride=3).transpose(1, 2)  # [N, 64, 25]
        layers.append(
            layer_of(
                "conv",
                "Conv2d",
                patches,
                weight,
                torch.zeros(6),
                labels,
                classes,
                geometry={
                    "kernel": (5, 5),
                    "stride": (3, 3),
                    "padding": (0, 0),
                    "dilation": (1, 1),
                    "groups": (1,),
                },
                folded="bn",
                notes=("the covariance of the patches is of 16 of 64 positions per sample",),
            )
        )
    weight = torch.randn(units, flat.shape[1], generator=draw) / math.sqrt(flat.shape[1])
    bias = -(weight @ flat[torch.randint(samples, (units,), generator=draw)].T).diagonal()
    weight[5], bias[5] = -weight[2], -bias[2]  # mirrored
    weight[7], bias[7] = 2 * weight[3], 2 * bias[3]  # duplicate
    weight[8], bias[8] = weight[4], bias[4] + 1  # parallel
    bias[6] = -100.0  # dead
    first = layer_of(
        "fc1", "Linear", flat[:, None], weight, bias, labels, classes, feeds="fc2", every=True
    )
    hidden = functional.relu(flat @ weight.T + bias)
    second = layer_of(
        "fc2",
        "Linear",
        hidden[:, None],
        torch.randn(10, units, generator=draw) / 4,
        torch.zeros(10),
        labels=None,
        classes=0,
        activation="none",
    )
    return AuditRecord(
        mahalens="0.0.0",
        torch="2.0.0",
        model="Net",
        settings=Settings(),
        data=DataFacts(
            samples=samples,
            shape=(1, SIDE, SIDE) if image else (20,),
            classes=tuple(str(c) for c in range(classes)),
            counts=tuple(int((labels == c).sum()) for c in range(classes)),
            labels="given" if classes else "none",
            source="drawn for the tests",
            image=(SIDE, SIDE) if image else None,
        ),
        layers=(*layers, first, second, broken_layer(classes)),
        skipped=(Skipped(name="rnn", kind="LSTM", reason="gates mix four maps"),),
        accuracy=0.925 if classes else None,
        verdict="1 of 3 layers is distance-like; 1 is broken.",
        examples=x[:, None] if image else x,
        example_samples=torch.arange(samples),
        example_labels=labels if classes else None,
        notes=("an example, made by hand",),
    )


def pictures(classes, samples, draw):
    """Blobs [N, 28, 28], one place per class, and labels [N]."""
    labels = torch.arange(samples) % max(classes, 1)
    angle = 2 * math.pi * labels / max(classes, 1)
    line = torch.arange(SIDE)
    at = torch.stack([13.5 + 8 * angle.sin(), 13.5 + 8 * angle.cos()], 1)
    at = at + torch.randn(samples, 2, generator=draw)
    rise = torch.exp(-((line - at[:, :1]) ** 2) / 12)[:, :, None]
    run = torch.exp(-((line - at[:, 1:]) ** 2) / 12)[:, None, :]
    noise = 0.05 * torch.rand(samples, SIDE, SIDE, generator=draw)
    return (rise * run + noise).clamp(0, 1), labels


def points(classes, samples, draw):
    labels = torch.arange(samples) % max(classes, 1)
    centres = 3 * torch.randn(max(classes, 1), 20, generator=draw)
    return centres[labels] + torch.randn(samples, 20, generator=draw), labels


def layer_of(
    name, kind, rows, weight, bias, labels, classes, activation="relu", every=False, **more
):
    """What there is to say of a layer fed with ``rows`` [N, positions, D]."""
    _, positions, inputs = rows.shape
    flat = rows.flatten(0, 1)
    z = flat @ weight.T + bias  # [R, K]
    units = len(bias)
    active = functional.relu(z) if activation == "relu" else z
    by_class = []
    if classes:
        owner = labels.repeat_interleave(positions)
        by_class = [owner == c for c in range(classes)]
    whitening = read_whitening(weight.double(), torch.cov(flat.T).double(), len(flat))
    return LayerRecord(
        name=name,
        kind=kind,
        units_count=units,
        inputs=inputs,
        activation=activation,
        calls=1,
        positions=positions,
        rows=len(z),
        units=units_of(z, active, by_class, positions),
        hyperplanes=hyperplanes_of(z, weight, by_class),
        pairs=read_pairs(weight, bias),
        whitening=whitening if every or kind == "Conv2d" else None,
        prototypes=prototypes_of(z, active, weight, positions) if labels is not None else None,
        histograms=histograms_of(z, by_class) if labels is not None else None,
        perturbation=perturbation() if every and classes else None,
        verdict=Verdict(
            word="distance-like" if every else "mixed",
            score=0.4 if classes else None,
            share=0.75 if classes else None,
            chance=0.35 if classes else None,
            reason="75 % of the live units pass through a class, 35 % would by chance",
        ),
        suggestions=(
            Suggestion(
                action="remove dead",
                units=(6,),
                effect=f"1 of {units} units fewer, the same outputs",
                exact=True,
            ),
        )
        if every
        else (),
        **more,
    )


def units_of(z, active, by_class, positions):
    share = (active.abs() > 1e-6).float().mean(0)
    quiet = (active.abs() <= 1e-6).all(1)
    levels = torch.tensor(LEVELS)
    return UnitReading(
        dead=where(share == 0),
        rare={"0.05": where(share < 0.05), "0.01": where(share < 0.01)},
        always=where(share == 1),
        saturated=(),
        active=share,
        flat=torch.zeros_like(share),
        mean=z.mean(0),
        std=z.std(0, correction=0),
        skewness=skewness(z),
        least=z.amin(0),
        greatest=z.amax(0),
        quantiles=torch.quantile(z, levels, 0).T.contiguous(),
        class_active=per(by_class, active, lambda a: (a.abs() > 1e-6).float().mean(0)),
        class_mean=per(by_class, z, lambda a: a.mean(0)),
        class_std=per(by_class, z, lambda a: a.std(0, correction=0)),
        class_skewness=per(by_class, z, skewness),
        class_quantiles=per(by_class, z, lambda a: torch.quantile(a, levels, 0).T),
        silent_share=float(quiet.float().mean()),
        silent_samples=tuple(sorted({r // positions for r in where(quiet)}))[:8],
        silent_by_class=per(by_class, quiet.float(), lambda a: a.mean(0)),
    )


def unit_reading(count, dead=(), saturated=(), silent=0.0, **changed):
    """Units that all respond alike, but for what is given."""
    names = ("active", "flat", "mean", "std", "skewness", "least", "greatest")
    alike = {name: torch.ones(count) for name in names}
    alike |= {"rare": {}, "always": (), "quantiles": torch.ones(count, 1), "silent_share": silent}
    return UnitReading(dead=tuple(dead), saturated=tuple(saturated), **{**alike, **changed})


def hyperplanes_of(z, weight, by_class):
    length = weight.norm(dim=1)
    spreads = per(by_class, z, lambda a: a.mean(0) / a.std(0, correction=0))
    overall = z.mean(0) / z.std(0, correction=0)
    least = overall.abs() if spreads is None else spreads.abs().amin(0)
    distance = per(by_class, z, lambda a: a.mean(0))
    return HyperplaneReading(
        length=length,
        mean_distance=z.mean(0) / length,
        mean_spreads=overall,
        class_distance=None if distance is None else distance / length,
        class_spreads=spreads,
        nearest=None if spreads is None else spreads.abs().argmin(0),
        through=least <= 0.5,
        chance=torch.full_like(length, 0.35),
        positive=(z > 0).float().mean(0),
    )


def prototypes_of(z, active, weight, positions, count=8):
    distance, near = (z.abs() / weight.norm(dim=1)).T.topk(count, largest=False)
    value, strong = active.T.topk(count)
    strong = torch.where(value > 0, strong, -positions)  # -1 as a sample
    return PrototypeReading(
        near_sample=near // positions,
        near_position=near % positions,
        near_distance=distance,
        active_sample=strong // positions,
        active_position=torch.where(value > 0, strong % positions, -1),
        active_value=value,
    )


def histograms_of(z, by_class, chosen=4, bins=40):
    rows = by_class or [torch.ones(len(z), dtype=torch.bool)]
    steps = torch.linspace(0, 1, bins + 1)
    some = z[:, :chosen]
    edges = torch.lerp(some.amin(0)[:, None], some.amax(0)[:, None], steps)
    counts = torch.stack(
        [
            torch.stack([torch.histogram(z[mine, unit], edges[unit]).hist for mine in rows])
            for unit in range(chosen)
        ]
    )
    units = tuple(range(chosen))
    return HistogramReading(units=units, edges=edges, counts=counts, overlap=_overlaps(counts))


def perturbation():
    levels = (0.01, 0.1, 0.5, 1.0, 2.0)
    return PerturbationReading(
        baseline=0.925,
        scale={f"{s:g}": 0.925 - 0.01 * abs(1 - s) for s in levels},
        clip={f"{s:g}": 0.925 - 0.02 * (s < 1) for s in levels},
        offset={f"{s:g}": 0.925 - 0.6 * abs(s) for s in (-0.5, -0.1, 0.0, 0.1, 0.5)},
        index=0.8,
    )


def bare_layer(name, units, **more):
    """A Linear of which nothing is known but its units, and what is given."""
    given = {"units_count": len(units.mean), "inputs": 10, "hyperplanes": None, "pairs": None}
    given |= {"kind": "Linear", "activation": "relu", "calls": 1, "positions": 1, "rows": 5}
    verdict = Verdict(word="mixed", score=None, share=None, chance=None, reason="")
    return LayerRecord(name=name, units=units, **{"verdict": verdict, **given, **more})


def broken_layer(classes, units=4):
    """All units dead; what is undefined is NaN."""
    nothing = torch.zeros(units)
    unknown = torch.full((units,), math.nan)
    every = tuple(range(units))
    return bare_layer(
        "broken",
        unit_reading(
            units,
            dead=every,
            silent=1.0,
            rare={"0.05": every, "0.01": every},
            active=nothing,
            mean=-torch.ones(units),
            std=nothing,
            skewness=unknown,
            least=-torch.ones(units),
            greatest=-torch.ones(units),
            quantiles=-torch.ones(units, len(LEVELS)),
            silent_samples=tuple(range(8)),
            silent_by_class=torch.ones(classes) if classes else None,
        ),
        calls=2,
        positions=2,
        rows=240,
        hyperplanes=HyperplaneReading(
            length=nothing,
            mean_distance=unknown,
            mean_spreads=unknown,
            through=torch.zeros(units, dtype=torch.bool),
            chance=unknown,
            positive=nothing,
        ),
        verdict=Verdict(
            word="broken", score=None, share=None, chance=None, reason="all 4 units are dead"
        ),
        notes=("used twice in a forward pass: rows of both uses together",),
    )


def changed(record, layer=0, **fields):
    """The record with fields such as ``units__mean`` of one layer replaced."""
    layers = list(record.layers)
    for name, value in fields.items():
        part, _, field = name.partition("__")
        if field:
            reading = msgspec.structs.replace(getattr(layers[layer], part), **{field: value})
            layers[layer] = msgspec.structs.replace(layers[layer], **{part: reading})
        else:
            layers[layer] = msgspec.structs.replace(layers[layer], **{part: value})
    return msgspec.structs.replace(record, layers=tuple(layers))


def per(by_class, values, of):
    """A statistic of the rows of each class, stacked; None without classes."""
    return torch.stack([of(values[mine]) for mine in by_class]) if by_class else None


def where(mask):
    return tuple(torch.nonzero(mask).flatten().tolist())


def skewness(z):
    spread = z.std(0, correction=0)
    return ((z - z.mean(0)) ** 3).mean(0) / spread**3
