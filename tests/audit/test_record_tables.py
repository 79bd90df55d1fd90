"""audit.json has the agreed keys, and tables the numbers of the record, cell by cell."""

import csv
import json
import math
import re
import sys
from pathlib import Path

import msgspec
import pandas as pd
import pytest
import torch
from records import example_record

from mahalens.auditing.record import FIELDS
from mahalens.auditing.record_tables import (
    Limits,
    audit_json,
    audit_text,
    frame_of,
    rows_of,
    shortened,
    write_tables,
)
from mahalens.auditing.verdict import RULE
from mahalens.errors import InputError

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "audit-json.md"
AGREED = ["name", "kind", "units", "activation", "dead", "rare"]
AGREED += ["mirrored_pairs", "duplicate_pairs", "sphericity", "verdict"]
TABLES = ["units", "layers", "classes", "pairs", "suggestions", "perturbation"]


@pytest.fixture(scope="module")
def plain(record):
    return audit_json(record)


def same(a, b):
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def test_the_table_of_fields_names_every_tensor(record):
    for part, fields in FIELDS.items():
        reading = getattr(record.layers[1], part)
        tensors = {
            name
            for name in reading.__struct_fields__
            if isinstance(getattr(reading, name), torch.Tensor)
        }
        assert tensors <= set(fields) <= set(reading.__struct_fields__)


class TestJson:
    def test_the_agreed_keys(self, plain):
        conv, first, second, broken = plain["layers"]
        for layer in plain["layers"]:
            assert [key for key in layer if key in AGREED] == AGREED
            assert type(layer["units"]) is int
        assert [first[key] for key in AGREED[:5]] == ["fc1", "Linear", 32, "relu", [6]]
        assert list(first["rare"]) == ["0.05", "0.01"]
        assert 6 in first["rare"]["0.01"]
        assert first["mirrored_pairs"] == [[2, 5]]
        assert first["duplicate_pairs"] == [[3, 7]]
        assert first["parallel_pairs"] == [[4, 8]]
        assert first["sphericity"] > 0
        assert (first["verdict"], broken["verdict"]) == ("distance-like", "broken")
        assert broken["mirrored_pairs"] == []
        assert second["sphericity"] is None
        assert conv["geometry"]["kernel"] == [5, 5]
        assert plain["rule"] == RULE

    def test_it_is_json_that_can_be_read_and_is_the_same_each_time(self, record, plain):
        text = audit_text(record)
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert json.loads(text) == plain
        assert audit_text(example_record()) == text
        assert '      "dead": [6],' in text.splitlines()
        assert '      "mirrored_pairs": [[2, 5]],' in text.splitlines()
        assert len(text.splitlines()) < 3000

    def test_readings_are_all_there(self, record, plain):
        layer, shown = record.layers[1], plain["layers"][1]
        for part in ("hyperplanes", "prototypes", "histograms"):
            reading = getattr(layer, part)
            assert list(shown[part]) == list(reading.__struct_fields__)
            for field in reading.__struct_fields__:
                value = getattr(reading, field)
                if isinstance(value, torch.Tensor):
                    back = torch.tensor(shown[part][field])
                    torch.testing.assert_close(back, value, check_dtype=False)
        torch.testing.assert_close(torch.tensor(shown["responses"]["mean"]), layer.units.mean)
        assert shown["perturbation"]["scale"] == layer.perturbation.scale
        assert shown["suggestions"][0]["exact"] is True

    def test_what_is_not_finite_or_not_known_is_null(self, record, plain):
        assert plain["layers"][-1]["responses"]["skewness"] == [None] * 4
        recovered = plain["layers"][1]["whitening"]["recovered"]
        assert recovered[0] is None
        assert recovered[-1] > 0
        assert audit_json(msgspec.structs.replace(record, accuracy=math.nan))["accuracy"] is None
        bare = audit_json(example_record(classes=0, image=False))
        assert bare["accuracy"] is None
        assert bare["data"]["classes"] == []
        assert bare["layers"][0]["hyperplanes"]["class_spreads"] is None

    def test_large_arrays_stay_out_and_are_named(self, record, plain):
        quantiles = [f"layers.{i}.units.class_quantiles" for i in (0, 1)]
        assert plain["left_out"] == ["examples", *quantiles]
        assert plain["layers"][1]["responses"]["class_quantiles"] is None
        small = audit_json(record, most_numbers=400)
        assert "layers.1.whitening.spectrum" in small["left_out"]
        assert small["layers"][1]["whitening"]["spectrum"] is None
        assert small["layers"][1]["responses"]["class_mean"] is not None

    def test_where_all_arrays_together_are_too_many_the_largest_stay_out(self, record):
        small = audit_json(record, most_in_all=3000)
        assert "layers.1.histograms.counts" in small["left_out"]
        assert small["layers"][1]["histograms"]["counts"] is None
        assert len(small["layers"][1]["responses"]["mean"]) == 32

        def numbers(value):
            if isinstance(value, dict):
                return sum(map(numbers, value.values()))
            return sum(map(numbers, value)) if isinstance(value, list) else isinstance(value, float)

        assert numbers(small) < 3000 + 200  # single numbers besides

    def test_every_key_is_documented(self, plain):
        text = DOCS.read_text()
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        known = {name.lstrip(".") for row in rows for name in re.findall(r"`([^`]+)`", row)}
        known |= {name.rpartition(".")[2] for name in known}
        keys = set(plain)
        for layer in plain["layers"]:
            keys |= set(layer)
            for part in ("responses", "hyperplanes", "whitening", "prototypes", "histograms"):
                keys |= set(layer[part] or {}) - {"class_quantiles"}
        assert keys - known == set()
        for part in ("data", "verdict_details", "geometry"):
            for key in {**plain, **plain["layers"][0]}[part]:
                assert f"`{key}`" in text


class TestRows:
    def test_units(self, record):
        rows = rows_of(record, "units")
        assert len(rows) == sum(layer.units_count for layer in record.layers)
        for layer in record.layers:
            mine = [row for row in rows if row["layer"] == layer.name]
            assert [row["unit"] for row in mine] == list(range(layer.units_count))
            for unit, row in enumerate(mine):
                for name in ("dead", "always", "saturated"):
                    assert row[name] == (unit in getattr(layer.units, name))
                for level in ("0.05", "0.01"):
                    assert row[f"rare_{level}"] == (unit in layer.units.rare[level])
                for name in ("active", "flat", "mean", "std", "skewness", "least", "greatest"):
                    assert same(row[name], float(getattr(layer.units, name)[unit]))
                assert same(row["quantile_0.5"], float(layer.units.quantiles[unit, 3]))
                for name in ("length", "mean_distance", "mean_spreads", "chance", "positive"):
                    assert same(row[name], float(getattr(layer.hyperplanes, name)[unit]))
                assert row["through"] is bool(layer.hyperplanes.through[unit])
                nearest = layer.hyperplanes.nearest
                assert row["nearest"] == (None if nearest is None else str(int(nearest[unit])))
        first = [row for row in rows if row["layer"] == "fc1"]
        mirrors = {row["unit"]: row["mirrors"] for row in first if row["mirrors"] is not None}
        repeats = {row["unit"]: row["repeats"] for row in first if row["repeats"] is not None}
        assert (mirrors, repeats) == ({2: 5, 5: 2}, {7: 3})
        assert [row["unit"] for row in first if not row["kept"]] == [5, 7]

    def test_layers(self, record):
        rows = rows_of(record, "layers")
        assert [row["layer"] for row in rows] == ["conv", "fc1", "fc2", "broken"]
        first = rows[1]
        assert (first["units"], first["inputs"], first["activation"]) == (32, 784, "relu")
        assert (first["dead"], first["mirrored_pairs"], first["duplicate_pairs"]) == (1, 1, 1)
        assert first["sphericity"] == record.layers[1].whitening.sphericity
        assert first["perturbation_index"] == 0.8
        assert (rows[3]["dead"], rows[3]["verdict"], rows[3]["sphericity"]) == (4, "broken", None)

    def test_classes(self, record):
        rows = rows_of(record, "classes")
        assert len(rows) == 10 * (6 + 32)  # fc2 and broken know no classes
        units, planes = record.layers[1].units, record.layers[1].hyperplanes
        mine = {(row["unit"], row["class"]): row for row in rows if row["layer"] == "fc1"}
        for name in ("mean", "active", "std", "skewness"):
            assert mine[4, "7"][name] == float(getattr(units, f"class_{name}")[7, 4])
        for name in ("distance", "spreads"):
            assert mine[4, "7"][name] == float(getattr(planes, f"class_{name}")[7, 4])
        nearest = {unit: int(label) for (unit, label), row in mine.items() if row["nearest"]}
        assert [nearest[unit] for unit in range(32)] == planes.nearest.tolist()

    def test_pairs_suggestions_and_perturbation(self, record):
        assert rows_of(record, "pairs") == [
            {"layer": "fc1", "kind": "mirrored", "first": 2, "second": 5},
            {"layer": "fc1", "kind": "duplicate", "first": 3, "second": 7},
            {"layer": "fc1", "kind": "parallel", "first": 4, "second": 8},
        ]
        (suggestion,) = rows_of(record, "suggestions")
        assert suggestion["units"] == "6"
        rows = rows_of(record, "perturbation")
        assert len(rows) == 15
        offsets = {row["level"]: row["accuracy"] for row in rows if row["kind"] == "offset"}
        wanted = record.layers[1].perturbation.offset
        assert offsets == {float(level): accuracy for level, accuracy in wanted.items()}

    @pytest.mark.parametrize("what", TABLES)
    def test_frames_have_the_rows_which_have_the_same_keys(self, record, what):
        frame, rows = record.to_frame(what), rows_of(record, what)
        assert list(frame.columns) == list(rows[0])
        assert len(frame) == len(rows)
        for other in (record, example_record(3, image=False), example_record(0, image=False)):
            assert len({tuple(row) for row in rows_of(other, what)}) <= 1

    def test_numbers_are_numbers(self, record):
        frame = record.to_frame()
        kinds = [frame[name].dtype.kind for name in ("dead", "unit", "mean")]
        assert kinds == ["b", "i", "f"]
        wanted = torch.cat([layer.units.mean for layer in record.layers])
        assert torch.equal(torch.tensor(frame["mean"].to_numpy(), dtype=torch.float32), wanted)

    @pytest.mark.parametrize("what", ["classes", "perturbation"])
    def test_without_rows_there_are_columns(self, what, record):
        frame = frame_of(example_record(classes=0), what)
        assert len(frame) == 0
        assert list(frame.columns) == list(rows_of(record, what)[0])

    def test_refused(self, record, monkeypatch):
        with pytest.raises(InputError, match="no table 'nodes' of an audit; there are units, lay"):
            rows_of(record, "nodes")
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(
            InputError, match=r"pip install 'mahalens\[frames\]', or use .*rows_of"
        ) as caught:
            record.to_frame()
        assert "\n" not in str(caught.value)


def read(folder, what):
    with (folder / f"{what}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


class TestFiles:
    def test_cells(self, record, tmp_path):
        paths = write_tables(record, tmp_path / "tables")
        assert [path.stem for path in paths] == [*TABLES[1::-1], *TABLES[2:4], "perturbation"]
        for path in paths:
            cells, rows = read(tmp_path / "tables", path.stem), rows_of(record, path.stem)
            assert [list(line) for line in cells] == [list(row) for row in rows]
            for line, row in zip(cells, rows, strict=True):
                for name, value in row.items():
                    if value is None or (isinstance(value, float) and math.isnan(value)):
                        assert line[name] == ""
                    elif isinstance(value, float):
                        assert float(line[name]) == pytest.approx(value, rel=1e-8)
                    else:
                        assert line[name] == str(value)
        units = pd.read_csv(tmp_path / "tables" / "units.csv")
        assert (units["dead"].dtype, units["mean"].dtype.kind) == (bool, "f")

    def test_only_those_with_rows(self, tmp_path):
        paths = write_tables(example_record(classes=0, image=False), tmp_path)
        assert [path.stem for path in paths] == ["layers", "units", "pairs"]
        assert len(list(tmp_path.iterdir())) == 3


class TestLimits:
    """Large tables have the rows that tell most, and say so; data frames have all."""

    def test_small_tables_are_whole(self, record):
        assert shortened(record) == []

    def test_classes_nearest_each_hyperplane(self, record, tmp_path):
        units = sum(layer.units_count for layer in record.layers)
        limits = Limits(class_rows=3 * units + 1)
        write_tables(record, tmp_path, limits)
        lines = read(tmp_path, "classes")
        (note,) = shortened(record, limits)
        assert note.startswith("classes.csv has for each unit the 3 of 10 classes nearest")
        rows = {(r["layer"], r["unit"], r["class"]): r for r in rows_of(record, "classes")}
        for line in lines:  # each row is one of the whole table
            row = rows[line["layer"], int(line["unit"]), line["class"]]
            assert str(row["nearest"]) == line["nearest"]
            assert row["mean"] == pytest.approx(float(line["mean"]), rel=1e-8)
        layer = record.layers[1]
        for unit in range(layer.units_count):
            mine = [c["class"] for c in lines if (c["layer"], c["unit"]) == ("fc1", str(unit))]
            away = layer.hyperplanes.class_spreads[:, unit].abs().nan_to_num(nan=math.inf)
            nearest = sorted(away.argsort(stable=True)[:3].tolist())
            assert mine == [record.data.classes[label] for label in nearest]
        assert len(rows) > len(lines)

    def test_units_with_faults_first(self, record, tmp_path):
        units = sum(layer.units_count for layer in record.layers)
        limits = Limits(units=units // 2)
        write_tables(record, tmp_path, limits)
        mine = {row["unit"] for row in read(tmp_path, "units") if row["layer"] == "fc1"}
        assert {"2", "3", "5", "6", "7"} <= mine  # pairs and a dead one
        assert len(mine) == 16
        assert shortened(record, limits)[0].startswith(f"units.csv has 50% of the {units} units")
        classes = read(tmp_path, "classes")
        assert {row["unit"] for row in classes if row["layer"] == "fc1"} == mine

    def test_pairs(self, record, tmp_path):
        limits = Limits(pairs=2)  # there are 3, all in one layer
        write_tables(record, tmp_path, limits)
        assert shortened(record, limits)[-1].startswith("pairs.csv has about 2 of 3 pairs")
        assert len(read(tmp_path, "pairs")) == 2
