"""audit.json: the agreed keys, nothing that JSON lacks, and every key in the documentation."""

import json
import re
from pathlib import Path

import msgspec
import pytest
import torch
from records import example_record

from mahalens.auditing.records import plain as record_json
from mahalens.auditing.records.files import audit_json, audit_text
from mahalens.auditing.verdicts import RULE

DOCS = Path(__file__).parents[2] / "docs" / "audit-json.md"
AGREED = [
    "name",
    "kind",
    "units",
    "activation",
    "dead",
    "rare",
    "mirrored_pairs",
    "duplicate_pairs",
    "sphericity",
    "verdict",
]


@pytest.fixture(scope="module")
def record():
    return example_record()


@pytest.fixture(scope="module")
def plain(record):
    return audit_json(record)


def test_the_agreed_keys(plain):
    conv, first, second, broken = plain["layers"]
    for layer in plain["layers"]:
        assert [key for key in layer if key in AGREED] == AGREED
        assert type(layer["units"]) is int
    assert (first["name"], first["kind"], first["units"]) == ("fc1", "Linear", 32)
    assert first["activation"] == "relu"
    assert first["dead"] == [6]
    assert list(first["rare"]) == ["0.05", "0.01"]
    assert 6 in first["rare"]["0.01"]
    assert first["mirrored_pairs"] == [[2, 5]]
    assert first["duplicate_pairs"] == [[3, 7]]
    assert first["parallel_pairs"] == [[4, 8]]
    assert first["sphericity"] > 0
    assert first["verdict"] == "distance-like"
    assert broken["verdict"] == "broken"
    assert broken["mirrored_pairs"] == []
    assert second["sphericity"] is None
    assert conv["geometry"]["kernel"] == [5, 5]


def test_it_is_json_and_reads_back(record, plain):
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert json.loads(audit_text(record)) == plain


def test_readings_are_all_there(record, plain):
    layer, told = record.layers[1], plain["layers"][1]
    for part in ("hyperplanes", "prototypes", "histograms"):
        reading = getattr(layer, part)
        assert list(told[part]) == list(reading.__struct_fields__)
        for field in reading.__struct_fields__:
            value = getattr(reading, field)
            if isinstance(value, torch.Tensor):
                back = torch.tensor(told[part][field])
                torch.testing.assert_close(back, value, check_dtype=False)
    torch.testing.assert_close(torch.tensor(told["responses"]["mean"]), layer.units.mean)
    assert told["perturbation"]["scale"] == layer.perturbation.scale
    assert told["suggestions"][0]["exact"] is True


def test_what_is_not_finite_is_null(record, plain):
    broken = plain["layers"][-1]
    assert broken["responses"]["skewness"] == [None] * 4
    recovered = plain["layers"][1]["whitening"]["recovered"]
    assert recovered[0] is None
    assert recovered[-1] > 0
    lost = msgspec.structs.replace(record, accuracy=float("nan"))
    assert audit_json(lost)["accuracy"] is None


def test_large_arrays_stay_out_and_are_named(record, plain, monkeypatch):
    assert plain["left_out"] == [
        "examples",
        "layers.0.units.class_quantiles",
        "layers.1.units.class_quantiles",
    ]
    assert plain["layers"][1]["responses"]["class_quantiles"] is None
    monkeypatch.setattr(record_json, "MOST_NUMBERS", 400)
    small = audit_json(record)
    assert "layers.1.whitening.spectrum" in small["left_out"]
    assert small["layers"][1]["whitening"]["spectrum"] is None
    assert small["layers"][1]["responses"]["class_mean"] is not None


def test_where_all_arrays_together_are_too_many_the_largest_stay_out(record, monkeypatch):
    monkeypatch.setattr(record_json, "MOST_IN_ALL", 3000)
    small = audit_json(record)
    assert "layers.1.histograms.counts" in small["left_out"]
    assert small["layers"][1]["histograms"]["counts"] is None
    assert len(small["layers"][1]["responses"]["mean"]) == 32

    def numbers(value):
        if isinstance(value, dict):
            return sum(map(numbers, value.values()))
        return sum(map(numbers, value)) if isinstance(value, list) else isinstance(value, float)

    assert numbers(small) < 3000 + 200  # single numbers besides


def test_the_rule_is_stated(plain):
    assert plain["rule"] == RULE


def test_without_labels():
    plain = audit_json(example_record(classes=0, image=False))
    assert plain["accuracy"] is None
    assert plain["data"]["classes"] == []
    assert plain["layers"][0]["hyperplanes"]["class_spreads"] is None


def test_the_text_can_be_read(record):
    lines = audit_text(record).splitlines()
    assert '      "dead": [6],' in lines
    assert '      "mirrored_pairs": [[2, 5]],' in lines
    assert len(lines) < 3000


def test_the_text_is_the_same_each_time(record):
    assert audit_text(record) == audit_text(example_record())


def test_every_key_is_documented(plain):
    told = DOCS.read_text()
    rows = [line.split("|")[1] for line in told.splitlines() if line.startswith("| `")]
    known = {name.lstrip(".") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    known |= {name.rpartition(".")[2] for name in known}
    found = set(plain)
    for layer in plain["layers"]:
        found |= set(layer)
        for part in ("responses", "hyperplanes", "whitening", "prototypes", "histograms"):
            found |= set(layer[part] or {}) - {"class_quantiles"}
    assert found - known == set()
    within = ("data", "verdict_details", "geometry")
    for part in within:
        for key in {**plain, **plain["layers"][0]}[part]:
            assert f"`{key}`" in told
