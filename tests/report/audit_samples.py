"""Records of audits to draw: those of tests/audit/records.py, and some that are hard to show."""

import importlib.util
import math
from pathlib import Path

import msgspec
import torch

from mahalens.auditing.record import DataFacts
from mahalens.auditing.verdict import Verdict


def _load_records():
    path = Path(__file__).parent.parent / "audit" / "records.py"
    spec = importlib.util.spec_from_file_location("audit_example_records", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


records = _load_records()
example_record = records.example_record
replaced = msgspec.structs.replace

PARTS = ("attention.output", "linear1", "linear2")
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken=2'>\"'"


def hostile_record():
    """Names that would run as code in a careless page."""
    record = example_record(classes=3)
    long = "encoder." * 40 + "last"
    names = (HOSTILE, long, "${window.broken=3}{{ 7 * 7 }}", "")
    layers = tuple(
        replaced(
            layer,
            name=name,
            activation=HOSTILE,
            notes=(HOSTILE,),
            verdict=replaced(layer.verdict, word=HOSTILE, reason=HOSTILE),
            suggestions=tuple(replaced(s, effect=HOSTILE) for s in layer.suggestions),
        )
        for layer, name in zip(record.layers, names, strict=True)
    )
    return replaced(
        record,
        model=HOSTILE,
        verdict=HOSTILE,
        notes=(HOSTILE,),
        layers=layers,
        data=replaced(record.data, classes=(HOSTILE, "x" * 300, "$a_b$"), source=HOSTILE),
        skipped=tuple(replaced(part, name=HOSTILE, reason=HOSTILE) for part in record.skipped),
    )


def bare_record():
    """Nothing known but that there is a layer: no labels, planes, pairs, pictures; all NaN."""
    record = example_record(classes=0, image=False)
    layer = record.layers[-1]
    unknown = torch.full((layer.units_count,), math.nan)
    units = replaced(
        layer.units,
        dead=(),
        rare={},
        active=unknown,
        mean=unknown,
        std=unknown,
        quantiles=torch.full((layer.units_count, 7), math.nan),
        least=unknown,
        greatest=unknown,
        silent_share=0.0,
        silent_samples=(),
    )
    verdict = Verdict(word="mixed", score=math.nan, share=None, chance=math.inf, reason="unknown")
    only = replaced(layer, kind="features", hyperplanes=None, units=units, verdict=verdict)
    return replaced(
        record, layers=(only,), skipped=(), notes=(), examples=None, example_samples=None
    )


def empty_record():
    """A network without a layer that could be read."""
    record = example_record(classes=0, image=False)
    return replaced(record, layers=(), verdict="There is no layer to read.", examples=None)


def large_record(layers=30, units=1000, classes=10, samples=200, inputs=48):
    """A network of many layers like a transformer's."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % classes
    centres = 2 * torch.randn(classes, inputs, generator=draw)
    plain = example_record(classes=0, image=False).layers[1]
    by_class = [labels == c for c in range(classes)]
    made = []
    for place in range(layers):
        rows = centres[labels] + torch.randn(samples, inputs, generator=draw)
        weight = torch.randn(units, inputs, generator=draw) / math.sqrt(inputs)
        bias = 0.3 * torch.randn(units, generator=draw) * place / layers
        z = rows @ weight.T + bias
        word = ("distance-like", "mixed", "intensity-like", "broken")[place % 4]
        made.append(
            replaced(
                plain,
                name=f"encoder.layers.{place // 3}.{PARTS[place % 3]}",
                units_count=units,
                inputs=inputs,
                rows=samples,
                units=records.units_of(z, torch.relu(z), by_class, 1),
                hyperplanes=records.hyperplanes_of(z, weight, by_class),
                pairs=None,
                prototypes=records.prototypes_of(z, torch.relu(z), weight, 1),
                histograms=records.histograms_of(z, by_class, chosen=8),
                verdict=Verdict(
                    word=word,
                    score=round(math.sin(place), 3),
                    share=0.5 + 0.4 * math.sin(place),
                    chance=0.4,
                    reason="made up for a picture",
                ),
            )
        )
    record = example_record(classes=0, image=False)
    data = DataFacts(
        samples=samples,
        shape=(inputs,),
        classes=tuple(f"class {c}" for c in range(classes)),
        counts=(samples // classes,) * classes,
        labels="given",
        source="drawn",
    )
    examples = centres[labels]
    return replaced(
        record,
        layers=tuple(made),
        data=data,
        examples=examples,
        example_samples=torch.arange(samples),
        example_labels=labels,
    )
