"""Records survive a file exactly, a file that is no record is refused, and two are compared."""

import json
import math
import pickle

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import changed, example_record
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mahalens.auditing.record import KEY, Change, difference, load_audit
from mahalens.auditing.record_tables import audit_text, write_tables
from mahalens.errors import InputError

replace = msgspec.structs.replace


def same(a, b):
    """Equal to the bit, with NaN equal to itself."""
    if isinstance(a, torch.Tensor):
        fits = isinstance(b, torch.Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return fits and a.numpy(force=True).tobytes() == b.numpy(force=True).tobytes()
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(
            same(getattr(a, f), getattr(b, f)) for f in a.__struct_fields__
        )
    if isinstance(a, tuple):
        return type(b) is tuple and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.fixture
def saved(record, tmp_path):
    path = tmp_path / "audit.safetensors"
    record.save(path)
    return path


def rewrite(path, edit=None, drop=None, tensors=None):
    """Write a saved record again with its JSON edited or tensors changed."""
    content = {**load_file(path), **(tensors or {})}
    content.pop(drop, None)
    with safe_open(path, "pt") as file:
        plain = json.loads(file.metadata()[KEY])
    if edit is not None:
        edit(plain)
    save_file(content, path, {KEY: json.dumps(plain)})


class TestRoundTrip:
    @pytest.mark.parametrize("classes", [0, 3, 10])
    @pytest.mark.parametrize("image", [True, False])
    def test_everything_comes_back(self, classes, image, tmp_path):
        record = example_record(classes=classes, image=image)
        record.save(tmp_path / "new" / "audit.safetensors")
        assert same(load_audit(tmp_path / "new" / "audit.safetensors"), record)

    def test_records_from_before_baselines_can_be_read(self, saved):
        def earlier(plain):
            del plain["baseline"]
            for layer in plain["layers"]:
                for name in ("interval", "p_chance", "p_baseline", "baseline_score"):
                    del layer["verdict"][name]

        rewrite(saved, earlier)
        record = load_audit(saved)
        assert (record.baseline, record.layers[0].verdict.interval) == ("none", None)

    @settings(
        deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        number=st.floats(allow_nan=True, allow_infinity=True),
        text=st.text(),
        names=st.dictionaries(st.sampled_from(["0.1", "float", "tensor", ""]), st.floats()),
        whole=st.lists(st.integers(0, 5), max_size=4),
        values=st.lists(st.floats(width=32), min_size=6, max_size=6),
    )
    def test_any_numbers_and_texts(self, record, tmp_path, number, text, names, whole, values):
        layer = changed(
            record,
            units__silent_share=number,
            units__dead=tuple(whole),
            units__mean=torch.tensor(values, dtype=torch.float32),
            whitening__precision_error=number,
            notes=(text,),
        )
        layer = changed(layer, layer=1, perturbation__scale=names)
        odd = replace(layer, model=text, accuracy=number)
        odd.save(tmp_path / "a.safetensors")
        assert same(load_audit(tmp_path / "a.safetensors"), odd)

    def test_tensors_that_share_memory_or_have_gradients(self, record, tmp_path):
        line = torch.arange(12.0, requires_grad=True)
        odd = changed(record, units__mean=line[:6], units__std=line[::2], units__least=line[6:])
        odd.save(tmp_path / "a.safetensors")
        units = load_audit(tmp_path / "a.safetensors").layers[0].units
        assert units.mean.tolist() == [0, 1, 2, 3, 4, 5]
        assert units.std.tolist() == [0, 2, 4, 6, 8, 10]
        assert units.least.tolist() == [6, 7, 8, 9, 10, 11]

    def test_names_of_tensors_can_be_read_without_the_package(self, saved, record):
        content = load_file(saved)
        assert torch.equal(content["layers.1.units.mean"], record.layers[1].units.mean)
        assert torch.equal(content["examples"], record.examples)
        with safe_open(saved, "pt") as file:
            plain = json.loads(file.metadata()[KEY])
        assert plain["layers"][1]["units"]["mean"] == {"tensor": "layers.1.units.mean"}

    def test_names_that_are_no_utf8(self, record, tmp_path):
        name = b"caf\xe9".decode("utf-8", "surrogateescape")  # as the names of files come
        odd = replace(record, data=replace(record.data, classes=(name, *record.data.classes[1:])))
        odd.save(tmp_path / "a.safetensors")
        assert load_audit(tmp_path / "a.safetensors").data.classes[0] == name
        assert json.loads(audit_text(odd).encode())["data"]["classes"][0] == name
        write_tables(odd, tmp_path)
        assert "caf\\udce9" in (tmp_path / "classes.csv").read_text()

    def test_an_old_file_is_replaced_whole(self, saved, record):
        replace(record, model="Other").save(saved)
        assert load_audit(saved).model == "Other"
        assert [path.name for path in saved.parent.iterdir()] == [saved.name]


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def layer_edit(name, value):
    return lambda plain: plain["layers"][0].update({name: value})


def part_edit(part, field, value):
    return lambda plain: plain["layers"][0][part].update({field: value})


class TestBadFiles:
    def refused(self, path, *words):
        with pytest.raises(InputError) as caught:
            load_audit(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        assert all(word in message for word in words), message

    def test_missing_or_a_folder(self, tmp_path):
        self.refused(tmp_path / "none.safetensors", "No such file")
        self.refused(tmp_path, "Is a directory")

    @pytest.mark.parametrize(
        "content",
        [b"", b"{}", b"\x00" * 100, b"\xff" * 50, pickle.dumps(Trap())],
        ids=["empty", "json", "zeros", "ones", "pickle"],
    )
    def test_no_safetensors_file(self, tmp_path, content):
        path = tmp_path / "audit.safetensors"
        path.write_bytes(content)
        self.refused(path, "not a safetensors file")

    @pytest.mark.parametrize("text", ["", "[]", "{", "null", "3", '{"mahalens": "1"}', "[" * 99999])
    def test_metadata_that_is_no_record(self, tmp_path, text):
        path = tmp_path / "audit.safetensors"
        save_file({}, path, {KEY: text})
        self.refused(path, "damaged")
        save_file({"x": torch.zeros(2)}, path)
        self.refused(path, "holds no audit")

    def test_a_file_cut_short(self, saved):
        saved.write_bytes(saved.read_bytes()[:-10])
        self.refused(saved, "damaged")

    @pytest.mark.parametrize(
        ("edit", "words"),
        [
            (lambda plain: plain.update(format=2, mahalens="9.9"), "format 2 of mahalens 9.9"),
            (layer_edit("units", {"mean": 3}), "units"),
            (layer_edit("units_count", "six"), "units_count"),
            (layer_edit("kind", None), "kind"),
            (layer_edit("rows", {"float": "nan"}), "rows"),
            (layer_edit("rows", {"float": "much"}), "much"),
            (layer_edit("rows", {"tensor": "examples"}), "rows"),
            (layer_edit("hyperplanes", []), "hyperplanes"),
            (layer_edit("notes", [1]), "notes"),
            (lambda plain: plain["layers"][0].pop("verdict"), "verdict"),
            (layer_edit("name", "fc1"), "same name"),
            (lambda plain: plain.update(accuracy="nan"), "accuracy"),
            (lambda plain: plain["data"].update(counts=[1]), "data.counts"),
            (lambda plain: plain["data"].update(image=[0, 3]), "without pixels"),
            (lambda plain: plain.update(examples=None), "examples and example_samples"),
            (part_edit("units", "dead", [6]), "units.dead names a unit that is not among 6"),
            (part_edit("units", "dead", [-1]), "names a unit that is not among 6"),
            (part_edit("units", "rare", {"0.01": [99]}), "units.rare names a unit"),
            (part_edit("pairs", "mirrored", [[0, 6]]), "pairs.mirrored names a unit"),
            (part_edit("pairs", "kept", [7]), "names a unit that is not among 6"),
            (part_edit("histograms", "units", [0, 1, 2, 6]), "names a unit that is not among 6"),
        ],
    )
    def test_content_that_does_not_fit(self, saved, edit, words):
        rewrite(saved, edit)
        self.refused(saved, words)

    @pytest.mark.parametrize(
        ("name", "tensor"),
        [
            ("layers.0.units.mean", torch.zeros(5)),
            ("layers.0.units.mean", torch.zeros(6, dtype=torch.int64)),
            ("layers.0.units.mean", torch.zeros(6, 1)),
            ("layers.0.units.class_mean", torch.zeros(9, 6)),
            ("layers.0.units.quantiles", torch.zeros(6, 2)),
            ("layers.0.hyperplanes.nearest", torch.zeros(6)),
            ("layers.0.hyperplanes.nearest", torch.full((6,), 10)),
            ("layers.0.hyperplanes.through", torch.zeros(6)),
            ("layers.0.prototypes.near_position", torch.zeros(6, 3, dtype=torch.int64)),
            ("layers.0.whitening.spectrum", torch.zeros(2, 2)),
            ("layers.0.histograms.edges", torch.zeros(4, 40)),
            ("layers.0.histograms.counts", torch.zeros(4, 9, 40)),
            ("layers.0.histograms.counts", torch.full((4, 10, 40), -1.0)),
            ("example_samples", torch.zeros(3, dtype=torch.int64)),
            ("example_samples", torch.zeros(120)),
            ("example_labels", torch.zeros(3, dtype=torch.int64)),
            ("example_labels", torch.zeros(120)),
        ],
    )
    def test_tensors_that_do_not_fit(self, saved, name, tensor):
        rewrite(saved, tensors={name: tensor})
        self.refused(saved, "histograms" if "histograms" in name else name.rpartition(".")[2])

    def test_a_missing_tensor(self, saved):
        rewrite(saved, drop="layers.1.units.mean")
        self.refused(saved, "tensor layers.1.units.mean is missing")

    def test_a_folder_that_cannot_be_written(self, record, tmp_path):
        (tmp_path / "file").write_text("")
        for write in (
            lambda: record.save(tmp_path / "file" / "a.safetensors"),
            lambda: write_tables(record, tmp_path / "file"),
        ):
            with pytest.raises(InputError, match="cannot be written"):
                write()


def test_layers_by_name(record):
    assert record.layer("fc1") is record.layers[1]
    assert repr(record).startswith("AuditRecord('Net', 4 layers, 120 samples: 1 of 3 layers")
    with pytest.raises(InputError, match=r"no layer 1 in this record; .* a text, such as '1'"):
        record.layer(1)


# --- What changed between two audits: planted changes are shown, and nothing else -----------------

FC1 = 1  # where it stands in the example


def compared(comparison, name="fc1"):
    return next(part for part in comparison.layers if part.name == name)


def test_equal_records_do_not_differ(record):
    first = record.layers[FC1]
    rounded = changed(
        record,
        FC1,
        whitening__sphericity=first.whitening.sphericity * (1 + 1e-9),
        hyperplanes__mean_spreads=first.hyperplanes.mean_spreads + 1e-7,
    )
    bare = example_record(classes=0, image=False)
    for before, after in ((record, example_record()), (record, rounded), (bare, bare)):
        comparison = before.diff(after)
        assert not comparison.changed
        assert str(comparison) == "nothing changed"
        assert not any(row["changed"] for row in comparison.to_rows())
    assert bare.diff(example_record(classes=3, image=False)).changed


def test_units_that_died_revived_and_became_rare(record):
    rare = record.layers[FC1].units.rare
    assert 6 in rare["0.01"]
    after = changed(
        record,
        FC1,
        units__dead=(0, 9),
        units__rare={"0.05": (*rare["0.05"], 0, 9, 30), "0.01": (0, 9)},
    )
    part = compared(difference(record, after))
    assert (part.died, part.revived) == ((0, 9), (6,))
    assert part.became_rare == {"0.05": (0, 9, 30), "0.01": (0, 9)}
    assert str(difference(record, after)) == (
        "1 of 4 layers changed\n"
        "  fc1: 2 died (0, 9); 1 came back to life (6); 1 now active on less than 0.05 (30)"
    )
    back = compared(difference(after, record))
    assert (back.died, back.revived) == ((6,), (0, 9))
    many = difference(record, changed(record, FC1, units__dead=tuple(range(20))))
    assert "19 died (0, 1, 2, 3, 4, 5, 7, 8, and 11 more)" in str(many)


def test_pairs_gained_and_lost(record):
    after = changed(record, FC1, pairs__mirrored=((2, 5), (10, 11)), pairs__duplicate=())
    part = compared(difference(record, after))
    assert (part.mirrored_gained, part.mirrored_lost) == (((10, 11),), ())
    assert (part.duplicate_gained, part.duplicate_lost) == ((), ((3, 7),))
    assert "1 mirrored new (10-11); 1 duplicate lost (3-7)" in str(difference(record, after))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *((f"whitening__{name}", name) for name in ("sphericity", "precision_error")),
        *((f"whitening__{name}", name) for name in ("input_rank", "output_rank")),
        ("verdict__score", "score"),
        ("units__silent_share", "silent_share"),
        ("perturbation__index", "perturbation_index"),
    ],
)
def test_numbers_that_changed(record, field, name):
    comparison = difference(record, changed(record, FC1, **{field: 0.125}))
    numbers = compared(comparison).numbers
    assert [n for n, change in numbers.items() if change.changed] == [name]
    assert numbers[name].after == 0.125
    assert f"{name.replace('_', ' ')} " in str(comparison)
    assert "-> 0.125" in str(comparison)
    (row,) = [row for row in comparison.to_rows() if row["changed"]]
    assert (row["layer"], row["what"], row["after"]) == ("fc1", name, 0.125)


def test_a_changed_verdict_comes_first(record):
    after = changed(record, FC1, verdict__word="broken", verdict__score=None)
    assert str(difference(record, after)) == (
        "1 of 4 layers changed\n  fc1: distance-like -> broken; score 0.4 -> unknown"
    )


def test_hyperplanes_that_moved(record):
    spreads = record.layers[FC1].hyperplanes.mean_spreads.clone()
    spreads[3] += 1.5
    comparison = difference(record, changed(record, FC1, hyperplanes__mean_spreads=spreads))
    wanted = torch.zeros(32)
    wanted[3] = 1.5
    torch.testing.assert_close(compared(comparison).shift, wanted)
    assert "moved by 0 spreads (median), at most 1.5 (3)" in str(comparison)


def test_accuracy_and_layers_in_one_only(record):
    comparison = difference(record, replace(record, accuracy=0.5))
    assert str(comparison) == "accuracy 0.925 -> 0.5"
    row = {"layer": "", "what": "accuracy", "before": 0.925, "after": 0.5, "changed": True}
    assert comparison.to_rows()[0] == row
    fewer = replace(record, layers=record.layers[1:])
    assert str(difference(record, fewer)) == "gone: conv"
    assert str(difference(fewer, record)) == "new: conv"


def test_another_number_of_units_is_compared_by_numbers_of_the_layer(record):
    comparison = difference(record, example_record(units=16))
    first = compared(comparison)
    assert (first.units, first.shift, first.died) == (Change(32, 16), None, ())
    assert any("another number of units" in note for note in first.notes)
    assert "fc1: units 32 -> 16" in str(comparison)
    assert "inputs 32 -> 16" in str(comparison)  # of fc2


def test_other_data_and_settings_are_noted(record):
    data = replace(record.data, samples=7, source="elsewhere")
    options = replace(record.settings, rows_kept=9)
    names = {"model": "Old", "mahalens": "0.1"}
    after = replace(record, data=data, settings=options, **names)
    assert str(difference(record, after)).splitlines() == [
        "nothing changed",
        "note: the two audits differ in data (samples, source), not only in the network",
        "note: the two audits differ in settings (rows kept), not only in the network",
        "note: the models are called Net and Old",
        "note: made by mahalens 0.0.0 and 0.1",
    ]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (None, None, False),
        (None, 1.0, True),
        (1.0, None, True),
        (math.nan, math.nan, False),
        (math.nan, 1.0, True),
        (math.inf, math.inf, False),
        (math.inf, 1.0, True),
        (0.0, 1e-12, False),
        (1.0, 1.0 + 1e-5, True),
        (0, 1, True),
    ],
)
def test_which_numbers_count_as_changed(before, after, wanted):
    assert Change(before, after).changed is wanted
