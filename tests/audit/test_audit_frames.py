"""Tables of an audit: the numbers of the record, cell by cell."""

import csv
import math
import sys

import pandas as pd
import pytest
import torch
from records import example_record

from mahalens.auditing.records import frames
from mahalens.auditing.records.frames import frame_of, rows_of, shortened, write_tables
from mahalens.errors import InputError

WHAT = ["units", "layers", "classes", "pairs", "suggestions", "perturbation"]


@pytest.fixture(scope="module")
def record():
    return example_record()


def same(a, b):
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


class TestRows:
    def test_units(self, record):
        rows = rows_of(record, "units")
        assert len(rows) == sum(layer.units_count for layer in record.layers)
        for layer in record.layers:
            mine = [row for row in rows if row["layer"] == layer.name]
            assert [row["unit"] for row in mine] == list(range(layer.units_count))
            for unit, row in enumerate(mine):
                assert row["dead"] == (unit in layer.units.dead)
                assert row["rare_0.05"] == (unit in layer.units.rare["0.05"])
                assert row["rare_0.01"] == (unit in layer.units.rare["0.01"])
                assert row["always"] == (unit in layer.units.always)
                for name in ("active", "flat", "mean", "std", "skewness", "least", "greatest"):
                    assert same(row[name], float(getattr(layer.units, name)[unit]))
                assert same(row["quantile_0.5"], float(layer.units.quantiles[unit, 3]))
                for name in ("length", "mean_distance", "mean_spreads", "chance", "positive"):
                    assert same(row[name], float(getattr(layer.hyperplanes, name)[unit]))
                assert row["through"] is bool(layer.hyperplanes.through[unit])
                if layer.hyperplanes.nearest is None:
                    assert row["nearest"] is None
                else:
                    assert row["nearest"] == str(int(layer.hyperplanes.nearest[unit]))

    def test_partners(self, record):
        rows = [row for row in rows_of(record) if row["layer"] == "fc1"]
        assert {row["unit"]: row["mirrors"] for row in rows if row["mirrors"] is not None} == {
            2: 5,
            5: 2,
        }
        assert {row["unit"]: row["repeats"] for row in rows if row["repeats"] is not None} == {7: 3}
        assert [row["unit"] for row in rows if not row["kept"]] == [5, 7]

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
        layer = record.layers[1]
        row = next(
            row for row in rows if (row["layer"], row["unit"], row["class"]) == ("fc1", 4, "7")
        )
        assert row["mean"] == float(layer.units.class_mean[7, 4])
        assert row["active"] == float(layer.units.class_active[7, 4])
        assert row["std"] == float(layer.units.class_std[7, 4])
        assert row["skewness"] == float(layer.units.class_skewness[7, 4])
        assert row["distance"] == float(layer.hyperplanes.class_distance[7, 4])
        assert row["spreads"] == float(layer.hyperplanes.class_spreads[7, 4])
        mine = [row for row in rows if row["layer"] == "fc1" and row["nearest"]]
        assert [int(row["class"]) for row in sorted(mine, key=lambda row: row["unit"])] == (
            layer.hyperplanes.nearest.tolist()
        )

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
        assert {
            (row["kind"], row["level"]): row["accuracy"] for row in rows if row["kind"] == "offset"
        } == {
            ("offset", float(level)): accuracy
            for level, accuracy in record.layers[1].perturbation.offset.items()
        }

    @pytest.mark.parametrize("what", WHAT)
    @pytest.mark.parametrize("classes", [0, 3])
    def test_rows_have_the_same_keys(self, what, classes):
        keys = {tuple(row) for row in rows_of(example_record(classes, image=False), what)}
        assert len(keys) <= 1

    def test_another_table(self, record):
        with pytest.raises(InputError, match="no table 'nodes' of an audit; there are units, lay"):
            rows_of(record, "nodes")


class TestFrames:
    @pytest.mark.parametrize("what", WHAT)
    def test_they_have_the_rows(self, record, what):
        frame, rows = frame_of(record, what), rows_of(record, what)
        assert list(frame.columns) == list(rows[0])
        assert len(frame) == len(rows)
        assert record.to_frame(what).equals(frame)

    def test_numbers_are_numbers(self, record):
        frame = record.to_frame()
        assert frame["dead"].dtype == bool
        assert frame["unit"].dtype.kind == "i"
        assert frame["mean"].dtype.kind == "f"
        wanted = torch.cat([layer.units.mean for layer in record.layers])
        assert torch.equal(torch.tensor(frame["mean"].to_numpy(), dtype=torch.float32), wanted)

    @pytest.mark.parametrize("what", ["classes", "perturbation"])
    def test_without_rows_there_are_columns(self, what, record):
        frame = frame_of(example_record(classes=0), what)
        assert len(frame) == 0
        assert list(frame.columns) == list(rows_of(record, what)[0])

    def test_without_pandas(self, record, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(InputError, match=r"pip install pandas, or use .*rows_of") as caught:
            record.to_frame()
        assert "\n" not in str(caught.value)
        assert rows_of(record)


class TestTables:
    def test_files(self, record, tmp_path):
        paths = write_tables(record, tmp_path / "tables")
        names = ["layers.csv", "units.csv", "classes.csv", "pairs.csv", "perturbation.csv"]
        assert [path.name for path in paths] == names
        assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(names)

    def test_only_those_with_rows(self, tmp_path):
        write_tables(example_record(classes=0, image=False), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "layers.csv",
            "pairs.csv",
            "units.csv",
        ]

    @pytest.mark.parametrize("what", ["layers", "units", "classes", "pairs", "perturbation"])
    def test_cells(self, record, tmp_path, what):
        write_tables(record, tmp_path)
        with (tmp_path / f"{what}.csv").open(newline="") as stream:
            read = list(csv.DictReader(stream))
        rows = rows_of(record, what)
        assert len(read) == len(rows)
        for cells, row in zip(read, rows, strict=True):
            assert list(cells) == list(row)
            for name, value in row.items():
                if value is None or (isinstance(value, float) and math.isnan(value)):
                    assert cells[name] == ""
                elif isinstance(value, float):
                    assert float(cells[name]) == pytest.approx(value, rel=1e-8)
                else:
                    assert cells[name] == str(value)

    def test_pandas_reads_them(self, record, tmp_path):
        write_tables(record, tmp_path)
        read = pd.read_csv(tmp_path / "units.csv")
        assert read["dead"].dtype == bool
        assert read["mean"].dtype.kind == "f"

    def test_a_folder_that_cannot_be_written(self, record, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot be written"):
            write_tables(record, tmp_path / "file")


class TestBounds:
    """Large tables have the rows that tell most, and say so; data frames have all."""

    def read(self, folder, what):
        with (folder / f"{what}.csv").open(newline="") as stream:
            return list(csv.DictReader(stream))

    def test_small_tables_are_whole(self, record):
        assert shortened(record) == []

    def test_classes_nearest_each_hyperplane(self, record, tmp_path, monkeypatch):
        units = sum(layer.units_count for layer in record.layers)
        monkeypatch.setattr(frames, "MOST_CLASS_ROWS", 3 * units + 1)
        write_tables(record, tmp_path)
        read = self.read(tmp_path, "classes")
        (told,) = shortened(record)
        assert told.startswith("classes.csv has for each unit the 3 of 10 classes nearest")
        rows = {(r["layer"], r["unit"], r["class"]): r for r in rows_of(record, "classes")}
        for cells in read:  # each row is one of the whole table
            row = rows[cells["layer"], int(cells["unit"]), cells["class"]]
            assert [str(row["nearest"]), row["mean"]] == [
                cells["nearest"],
                pytest.approx(float(cells["mean"]), rel=1e-8),
            ]
        layer = record.layers[1]
        for unit in range(layer.units_count):
            mine = [c["class"] for c in read if (c["layer"], c["unit"]) == ("fc1", str(unit))]
            away = layer.hyperplanes.class_spreads[:, unit].abs().nan_to_num(nan=math.inf)
            nearest = sorted(away.argsort(stable=True)[:3].tolist())
            assert mine == [record.data.classes[label] for label in nearest]
        assert len(frame_of(record, "classes")) > len(read)

    def test_units_with_faults_first(self, record, tmp_path, monkeypatch):
        units = sum(layer.units_count for layer in record.layers)
        monkeypatch.setattr(frames, "MOST_UNITS", units // 2)
        write_tables(record, tmp_path)
        read = [row for row in self.read(tmp_path, "units") if row["layer"] == "fc1"]
        assert {2, 3, 5, 6, 7} <= {int(row["unit"]) for row in read}  # pairs and a dead one
        assert len(read) == 16
        assert shortened(record)[0].startswith(f"units.csv has 50% of the {units} units")
        classes = self.read(tmp_path, "classes")
        assert {row["unit"] for row in classes if row["layer"] == "fc1"} == {
            row["unit"] for row in read
        }
        assert len(frame_of(record, "units")) == units

    def test_pairs(self, record, tmp_path, monkeypatch):
        assert len(rows_of(record, "pairs")) == 3  # all in one layer
        monkeypatch.setattr(frames, "MOST_PAIRS", 2)
        write_tables(record, tmp_path)
        assert shortened(record)[-1].startswith("pairs.csv has about 2 of 3 pairs")
        assert len(self.read(tmp_path, "pairs")) == 2
