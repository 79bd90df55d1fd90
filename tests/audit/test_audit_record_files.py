"""Records survive a file exactly, and a file that is no record is told so in one line."""

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

from mahalens.auditing.records.files import KEY, audit_text, load_audit, save_record
from mahalens.auditing.records.frames import write_tables
from mahalens.errors import InputError


def same(a, b):
    """Equal to the bit, with NaN equal to itself."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
            if a.ndim
            else torch.equal(a, b)
        )
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(
            same(getattr(a, f), getattr(b, f)) for f in a.__struct_fields__
        )
    if isinstance(a, tuple):
        return type(b) is tuple and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return isinstance(b, float) and repr(a) == repr(b)
    return type(a) is type(b) and a == b


@pytest.fixture(scope="module")
def record():
    return example_record()


@pytest.fixture
def saved(record, tmp_path):
    path = tmp_path / "audit.safetensors"
    record.save(path)
    return path


def rewrite(path, edit=None, drop=None, tensors=None):
    """Write a saved record again with its JSON edited or tensors changed."""
    held = load_file(path)
    with safe_open(path, "pt") as file:
        plain = json.loads(file.metadata()[KEY])
    if edit is not None:
        edit(plain)
    held.update(tensors or {})
    if drop is not None:
        del held[drop]
    save_file(held, path, {KEY: json.dumps(plain)})


class TestRoundTrip:
    @pytest.mark.parametrize("classes", [0, 3, 10])
    @pytest.mark.parametrize("image", [True, False])
    def test_everything_comes_back(self, classes, image, tmp_path):
        record = example_record(classes=classes, image=image)
        save_record(record, tmp_path / "new" / "audit.safetensors")
        assert same(load_audit(tmp_path / "new" / "audit.safetensors"), record)

    def test_records_from_before_baselines_can_be_read(self, saved):
        def earlier(plain):
            del plain["baseline"]
            for layer in plain["layers"]:
                for name in ("interval", "p_chance", "p_baseline", "baseline_score"):
                    del layer["verdict"][name]

        rewrite(saved, earlier)
        record = load_audit(saved)
        assert record.baseline == "none"
        assert record.layers[0].verdict.interval is None

    def test_the_comparison_sees_differences(self, record):
        mean = record.layers[0].units.mean.clone()
        mean[1] = torch.nextafter(mean[1], torch.tensor(9.0))
        assert same(changed(record, units__mean=record.layers[0].units.mean.clone()), record)
        assert not same(changed(record, units__mean=mean), record)
        assert not same(changed(record, rows=1), record)

    @settings(
        deadline=None,
        max_examples=60,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
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
        given = msgspec.structs.replace(layer, model=text, accuracy=number)
        given.save(tmp_path / "a.safetensors")
        assert same(load_audit(tmp_path / "a.safetensors"), given)

    def test_tensors_that_share_memory_or_have_gradients(self, record, tmp_path):
        line = torch.arange(12.0, requires_grad=True)
        odd = changed(record, units__mean=line[:6], units__std=line[::2], units__least=line[6:])
        odd.save(tmp_path / "a.safetensors")
        units = load_audit(tmp_path / "a.safetensors").layers[0].units
        assert units.mean.tolist() == [0, 1, 2, 3, 4, 5]
        assert units.std.tolist() == [0, 2, 4, 6, 8, 10]
        assert units.least.tolist() == [6, 7, 8, 9, 10, 11]

    def test_names_of_tensors_can_be_read_without_the_package(self, saved, record):
        held = load_file(saved)
        assert torch.equal(held["layers.1.units.mean"], record.layers[1].units.mean)
        assert torch.equal(held["examples"], record.examples)
        with safe_open(saved, "pt") as file:
            plain = json.loads(file.metadata()[KEY])
        assert plain["layers"][1]["units"]["mean"] == {"tensor": "layers.1.units.mean"}

    def test_names_that_are_no_utf8(self, record, tmp_path):
        name = b"caf\xe9".decode("utf-8", "surrogateescape")  # as the names of files come
        data = msgspec.structs.replace(record.data, classes=(name, *record.data.classes[1:]))
        odd = msgspec.structs.replace(record, data=data)
        odd.save(tmp_path / "a.safetensors")
        assert load_audit(tmp_path / "a.safetensors").data.classes[0] == name
        assert json.loads(audit_text(odd).encode())["data"]["classes"][0] == name
        write_tables(odd, tmp_path)
        assert "caf\\udce9" in (tmp_path / "classes.csv").read_text()

    def test_an_old_file_is_replaced_whole(self, saved, record):
        msgspec.structs.replace(record, model="Other").save(saved)
        assert load_audit(saved).model == "Other"
        assert [path.name for path in saved.parent.iterdir()] == [saved.name]


class TestBadFiles:
    def refused(self, path, *words):
        with pytest.raises(InputError) as caught:
            load_audit(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        for word in words:
            assert word in message

    def test_missing_or_a_folder(self, tmp_path):
        self.refused(tmp_path / "none.safetensors", "No such file")
        self.refused(tmp_path, "Is a directory")

    @pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 100, b"\xff" * 50])
    def test_no_safetensors_file(self, tmp_path, content):
        path = tmp_path / "audit.safetensors"
        path.write_bytes(content)
        self.refused(path, "not a safetensors file")

    def test_a_pickle_is_not_loaded(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return pytest.fail, ("unpickled",)

        path = tmp_path / "audit.safetensors"
        path.write_bytes(pickle.dumps(Trap()))
        self.refused(path, "not a safetensors file")

    def test_other_tensors(self, tmp_path):
        path = tmp_path / "weights.safetensors"
        save_file({"x": torch.zeros(2)}, path)
        self.refused(path, "holds no audit")

    def test_a_file_cut_short(self, saved):
        saved.write_bytes(saved.read_bytes()[:-10])
        self.refused(saved, "damaged")

    def test_another_format(self, saved):
        rewrite(saved, lambda plain: plain.update(format=2, mahalens="9.9"))
        self.refused(saved, "format 2 of mahalens 9.9", "audit again")

    @pytest.mark.parametrize("text", ["", "[]", "{", "null", "3", '{"mahalens": "1"}', "[" * 99999])
    def test_metadata_that_is_no_record(self, tmp_path, text):
        path = tmp_path / "audit.safetensors"
        save_file({}, path, {KEY: text})
        self.refused(path, "damaged")

    def test_a_missing_tensor(self, saved):
        rewrite(saved, drop="layers.1.units.mean")
        self.refused(saved, "tensor layers.1.units.mean is missing")

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("units", {"mean": 3}, "units"),
            ("units_count", "six", "units_count"),
            ("kind", None, "kind"),
            ("rows", {"float": "nan"}, "rows"),
            ("rows", {"float": "much"}, "much"),
            ("rows", {"tensor": "examples"}, "rows"),
            ("hyperplanes", [], "hyperplanes"),
            ("notes", [1], "notes"),
        ],
    )
    def test_wrong_types(self, saved, name, value, words):
        rewrite(saved, lambda plain: plain["layers"][0].update({name: value}))
        self.refused(saved, words)

    def test_a_missing_field(self, saved):
        rewrite(saved, lambda plain: plain["layers"][0].pop("verdict"))
        self.refused(saved, "verdict")

    @pytest.mark.parametrize(
        ("name", "tensor"),
        [
            ("layers.0.units.mean", torch.zeros(5)),
            ("layers.0.units.mean", torch.zeros(6, dtype=torch.int64)),
            ("layers.0.units.mean", torch.zeros(6, 1)),
            ("layers.0.units.class_mean", torch.zeros(9, 6)),
            ("layers.0.units.quantiles", torch.zeros(6, 2)),
            ("layers.0.hyperplanes.nearest", torch.zeros(6)),
            ("layers.0.hyperplanes.through", torch.zeros(6)),
            ("layers.0.prototypes.near_position", torch.zeros(6, 3, dtype=torch.int64)),
            ("layers.0.whitening.spectrum", torch.zeros(2, 2)),
            ("layers.0.histograms.edges", torch.zeros(4, 40)),
            ("layers.0.histograms.counts", torch.zeros(4, 9, 40)),
            ("example_samples", torch.zeros(3, dtype=torch.int64)),
            ("example_samples", torch.zeros(120)),
            ("example_labels", torch.zeros(3, dtype=torch.int64)),
            ("example_labels", torch.zeros(120)),
        ],
    )
    def test_tensors_that_do_not_fit(self, saved, name, tensor):
        rewrite(saved, tensors={name: tensor})
        self.refused(saved, name.rsplit(".")[-1] if "histo" not in name else "histograms")

    @pytest.mark.parametrize(
        ("part", "field", "value"),
        [
            ("units", "dead", [6]),
            ("units", "dead", [-1]),
            ("units", "rare", {"0.01": [99]}),
            ("pairs", "mirrored", [[0, 6]]),
            ("pairs", "kept", [7]),
            ("histograms", "units", [0, 1, 2, 6]),
        ],
    )
    def test_units_that_are_not_there(self, saved, part, field, value):
        rewrite(saved, lambda plain: plain["layers"][0][part].update({field: value}))
        self.refused(saved, "names a unit that is not among 6")

    def test_two_layers_of_one_name(self, saved):
        rewrite(saved, lambda plain: plain["layers"][0].update(name="fc1"))
        self.refused(saved, "same name")

    def test_a_folder_that_cannot_be_written(self, record, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot be written"):
            record.save(tmp_path / "file" / "audit.safetensors")

    def test_nan_in_a_float_is_no_text(self, saved):
        rewrite(saved, lambda plain: plain.update(accuracy="nan"))
        self.refused(saved, "accuracy")
        rewrite(saved, lambda plain: plain.update(accuracy={"float": "nan"}))
        assert math.isnan(load_audit(saved).accuracy)
