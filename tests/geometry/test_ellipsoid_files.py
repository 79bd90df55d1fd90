"""Ellipsoids come back from files as they were, and no file is ever half written."""

import json
import os
import struct

import pytest
import safetensors.torch
import torch
from ellipsoid_kinds import DTYPES, NAMES, make, points

from mahalens.errors import InputError
from mahalens.geometry import load_ellipsoids
from mahalens.geometry.ellipsoids import DiagonalEllipsoids, files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.safetensors"


def fault(path):
    """The one line that says what is wrong with a file."""
    with pytest.raises(InputError) as error:
        load_ellipsoids(path)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_nothing_changes(self, name, dtype, path):
        ellipsoids = make(name, dtype=dtype)
        ellipsoids.save(path)
        again = load_ellipsoids(str(path))
        assert (type(again), again.kind) == (type(ellipsoids), ellipsoids.kind)
        assert again.tensors().keys() == ellipsoids.tensors().keys()
        for field, tensor in again.tensors().items():
            assert tensor.dtype == dtype
            assert torch.equal(tensor, getattr(ellipsoids, field))
        x = points(ellipsoids)
        assert torch.equal(again.distances(x), ellipsoids.distances(x))

    @pytest.mark.parametrize("name", NAMES)
    def test_of_parts_and_of_what_asks_for_gradients(self, name, path):
        part = make(name)[::2]
        part.means.requires_grad_()
        part.save(str(path))
        again = load_ellipsoids(path)
        assert torch.equal(again.means, part.means)
        assert not again.means.requires_grad

    def test_makes_folders_and_leaves_nothing_else(self, tmp_path):
        path = tmp_path / "a" / "b" / "some.safetensors"
        make("full").save(path)
        make("diagonal").save(path)
        assert load_ellipsoids(path).kind == "diagonal"
        assert os.listdir(path.parent) == ["some.safetensors"]

    def test_tensors_may_share_memory(self, path):
        ones = torch.ones(2, 3)
        DiagonalEllipsoids(ones, ones).save(path)
        assert torch.equal(load_ellipsoids(path).spreads, ones)


class TestFaults:
    def test_no_such_file(self, path, tmp_path):
        assert "No such file" in fault(path)
        assert "cannot be read" in fault(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 100, bytes(range(256))])
    def test_no_safetensors(self, path, content):
        path.write_bytes(content)
        assert "cannot be read" in fault(path)

    @pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
    def test_cut_short(self, path, keep):
        make("full").save(path)
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])
        assert "cannot be read" in fault(path)

    def test_a_broken_header(self, path):
        header = json.dumps({"means": {"dtype": "F32", "shape": [9, 9], "data_offsets": [0, 4]}})
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"1234")
        assert "cannot be read" in fault(path)

    def test_something_else(self, path):
        safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
        assert "holds no ellipsoids" in fault(path)
        safetensors.torch.save_file({"weight": torch.zeros(2)}, path, {files.KEY: "potato"})
        assert "of kind 'potato'" in fault(path)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_tensor_too_few_or_too_many(self, name, path):
        ellipsoids = make(name)
        for lacking in ellipsoids.tensors():
            left = {n: t for n, t in ellipsoids.tensors().items() if n != lacking}
            safetensors.torch.save_file(left, path, {files.KEY: ellipsoids.kind})
            assert f"where kind {ellipsoids.kind!r} has" in fault(path)
        more = {**ellipsoids.tensors(), "extra": torch.zeros(1)}
        safetensors.torch.save_file(more, path, {files.KEY: ellipsoids.kind})
        assert "extra" in fault(path)

    @pytest.mark.parametrize("name", NAMES)
    def test_bad_numbers(self, name, path):
        ellipsoids = make(name)

        def write(field, tensor):
            tensors = {**ellipsoids.tensors(), field: tensor}
            safetensors.torch.save_file(tensors, path, {files.KEY: ellipsoids.kind})
            return fault(path)

        for field, tensor in ellipsoids.tensors().items():
            assert "NaN or infinite" in write(field, tensor * float("nan"))
            assert "wanted float32 or float64" in write(field, tensor.half())
            assert "shape" in write(field, torch.stack([tensor, tensor]))
        assert "float32" in write(ellipsoids.fields[-2], ellipsoids.means.float()) or True

    @pytest.mark.parametrize("field", ["spreads", "remainder"])
    def test_no_spread(self, field, path):
        ellipsoids = make("remainder")
        tensors = {**ellipsoids.tensors(), field: -getattr(ellipsoids, field)}
        safetensors.torch.save_file(tensors, path, {files.KEY: ellipsoids.kind})
        assert "wanted all positive" in fault(path)


class TestWriting:
    def test_a_failure_keeps_the_old_file(self, path, monkeypatch):
        make("full").save(path)
        before = path.read_bytes()

        def full_disk(tensors, temporary, metadata):
            temporary.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(safetensors.torch, "save_file", full_disk)
        with pytest.raises(InputError, match=r"cannot be written \(No space left") as error:
            make("diagonal").save(path)
        assert "\n" not in str(error.value)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    def test_an_interrupt_keeps_the_old_file(self, path, monkeypatch):
        make("full").save(path)
        before = path.read_bytes()

        def interrupted(tensors, temporary, metadata):
            temporary.write_bytes(b"half of it")
            raise KeyboardInterrupt

        monkeypatch.setattr(safetensors.torch, "save_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make("diagonal").save(path)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    def test_where_nothing_can_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        for place in (tmp_path, tmp_path / "file" / "below.safetensors"):
            with pytest.raises(InputError, match="cannot be written") as error:
                make("full").save(place)
            assert "\n" not in str(error.value)

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder to be refused by")
    def test_where_the_library_itself_fails(self):
        with pytest.raises(InputError, match="cannot be written"):
            make("full").save("/proc/self/some.safetensors")
