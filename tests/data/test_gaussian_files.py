"""Gaussians in files: exact round trips, and one line for everything that can be wrong."""

import contextlib
import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.data import draw_gaussian, load_gaussian, save_gaussian
from mahalens.errors import InputError, SingularCovarianceError
from mahalens.geometry import Gaussian

MEAN = [1.0, -2.0]
COVARIANCE = [[2.0, 0.6], [0.6, 1.0]]


def write_json(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture(params=["json", "npz"])
def write(request, tmp_path):
    """Writes entries to a file of either kind."""

    def writer(**entries):
        path = tmp_path / f"given.{request.param}"
        if request.param == "json":
            return write_json(path, entries)
        np.savez(path, **{name: np.asarray(value) for name, value in entries.items()})
        return path

    return writer


def refused(path):
    """The message for a file that cannot be used: one line that begins with its name."""
    with pytest.raises(InputError) as error:
        load_gaussian(path)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


class TestLoad:
    def test_mean_and_covariance(self, write):
        gaussian = load_gaussian(write(mean=MEAN, covariance=COVARIANCE))
        assert gaussian.dtype == torch.float64
        assert gaussian.mean.tolist() == MEAN
        np.testing.assert_allclose(gaussian.covariance.numpy(), COVARIANCE, rtol=1e-15)

    @pytest.mark.parametrize("mean", [3.0, [3.0]])
    @pytest.mark.parametrize("covariance", [4.0, [4.0], [[4.0]]])
    def test_one_input(self, write, mean, covariance):
        gaussian = load_gaussian(write(mean=mean, covariance=covariance))
        assert (gaussian.mean.tolist(), gaussian.factor.tolist()) == ([3.0], [[2.0]])

    def test_whole_numbers(self, write):
        assert load_gaussian(write(mean=[1, 2], covariance=[[4, 0], [0, 9]])).mean.sum() == 3

    def test_other_entries_do_not_matter(self, write):
        path = write(mean=MEAN, covariance=COVARIANCE, note="measured on a Monday")
        assert load_gaussian(path).dim == 2

    def test_capitals_and_strings_as_paths(self, tmp_path):
        path = write_json(tmp_path / "G.JSON", {"mean": MEAN, "covariance": COVARIANCE})
        assert load_gaussian(str(path)).dim == 2

    def test_byte_order_mark(self, tmp_path):
        path = tmp_path / "g.json"
        text = json.dumps({"mean": MEAN, "covariance": COVARIANCE})
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert load_gaussian(path).dim == 2

    @pytest.mark.parametrize("dtype", [">f8", "<f4", "f2", "i4"])
    def test_array_dtypes(self, tmp_path, dtype):
        path = tmp_path / "g.npz"
        np.savez(path, mean=np.array([1, 2], dtype), covariance=np.array([[4, 1], [1, 4]], dtype))
        assert load_gaussian(path).covariance.numpy() == pytest.approx(
            np.array([[4, 1], [1, 4]]), rel=1e-15
        )

    def test_is_the_same_each_time(self, tmp_path):
        drawn = draw_gaussian(30, torch.Generator().manual_seed(1))
        entries = {"mean": drawn.mean.tolist(), "covariance": drawn.covariance.tolist()}
        path = write_json(tmp_path / "g.json", entries)
        first, again = load_gaussian(path), load_gaussian(path)
        assert first.mean.equal(again.mean)
        assert first.factor.equal(again.factor)


class TestRefused:
    def test_missing_file(self, tmp_path):
        assert "there is no such file" in refused(tmp_path / "nowhere.json")

    def test_file_in_the_way_of_a_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        assert "Not a directory" in refused(tmp_path / "file" / "g.json")

    def test_folder(self, tmp_path):
        folder = tmp_path / "folder.json"
        folder.mkdir()
        assert "this is a folder" in refused(folder)

    @pytest.mark.parametrize(("name", "end"), [("g.csv", "'.csv'"), ("g", "'nothing'")])
    def test_unknown_extension(self, tmp_path, name, end):
        (tmp_path / name).write_text("1")
        text = refused(tmp_path / name)
        assert f"the name ends in {end}" in text
        assert ".json" in text
        assert ".npz" in text

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"mean: 1", b"\xff\xfe\x00", b"[" * 100_000, b'{"mean": [1], "covariance"'],
        ids=["empty", "cut", "yaml", "not utf-8", "deep", "cut later"],
    )
    def test_not_json(self, tmp_path, content):
        (tmp_path / "g.json").write_bytes(content)
        assert refused(tmp_path / "g.json").startswith("not readable as .json, ")

    def test_not_npz(self, tmp_path):
        path = tmp_path / "g.npz"
        np.savez(path, mean=MEAN, covariance=COVARIANCE)
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[150] ^= 0xFF  # inside the first array, under the checksum of the zip
        for content in (b"", b"hello", whole[:200], whole[:-40], bytes(damaged)):
            path.write_bytes(content)
            assert refused(path).startswith("not readable as .npz, ")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("mean.npy", b"no array")
            archive.writestr("covariance.npy", b"no array")
        refused(path)

    def test_single_array_as_npz(self, tmp_path):
        with (tmp_path / "g.npz").open("wb") as stream:
            np.save(stream, np.eye(2))
        assert "holds a single array" in refused(tmp_path / "g.npz")

    def test_pickles_are_not_opened(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (os.mkdir, (str(tmp_path / "sprung"),))

        path = tmp_path / "g.npz"
        path.write_bytes(pickle.dumps(Trap()))
        refused(path)
        np.savez(path, mean=np.array([Trap()], dtype=object), covariance=[[1.0]])
        refused(path)
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize("content", ["[1, 2]", "3", '"mean"', "null"])
    def test_json_of_another_shape(self, tmp_path, content):
        text = refused(write_json(tmp_path / "g.json", content))
        assert text.startswith("holds a ")
        assert '"covariance"' in text

    def test_missing_entries(self, write):
        assert "has no covariance, only mean, sigma;" in refused(write(mean=MEAN, sigma=COVARIANCE))
        assert "has no mean and no covariance, only mu;" in refused(write(mu=MEAN))
        assert "only nothing" in refused(write())

    def test_lengths(self, write):
        text = refused(write(mean=[1.0, 2.0, 3.0], covariance=COVARIANCE))
        assert "mean has length 3 and covariance has shape [2, 2], wanted [3, 3]" in text
        text = refused(write(mean=MEAN, covariance=[2.0, 1.0]))
        assert "mean has length 2 and covariance has shape [2], wanted [2, 2]" in text
        assert "mean has shape [1, 2]" in refused(write(mean=[MEAN], covariance=COVARIANCE))
        assert "mean has shape [0]" in refused(write(mean=[], covariance=[]))

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_not_finite(self, write, value):
        text = refused(write(mean=[1.0, value], covariance=COVARIANCE))
        assert "mean has 1 value(s) of 2 that are NaN or infinite, the first at [1]" in text
        text = refused(write(mean=MEAN, covariance=[[1.0, value], [value, 1.0]]))
        assert "covariance has 2 value(s) of 4 that are NaN or infinite" in text

    def test_numbers_too_large_for_float64(self, tmp_path):
        path = tmp_path / "g.json"
        for number in ("1e400", "1" + 400 * "0"):
            write_json(path, f'{{"mean": [{number}], "covariance": [[1]]}}')
            assert "mean has 1 value(s) of 1" in refused(path)

    @pytest.mark.parametrize("mean", [["1", "2"], [1.0, "x"], [None, 1], [True, False], {"a": 1}])
    def test_not_numbers(self, tmp_path, mean):
        path = write_json(tmp_path / "g.json", {"mean": mean, "covariance": COVARIANCE})
        assert refused(path) == "mean has entries that are not real numbers"

    def test_complex_numbers(self, tmp_path):
        np.savez(tmp_path / "g.npz", mean=MEAN, covariance=np.eye(2) * 1j)
        assert "covariance is complex128, wanted real" in refused(tmp_path / "g.npz")

    def test_unequal_rows(self, tmp_path):
        path = write_json(tmp_path / "g.json", {"mean": MEAN, "covariance": [[1.0, 0.0], [1.0]]})
        assert refused(path) == "covariance has rows of unequal length"

    def test_not_a_covariance(self, write):
        text = refused(write(mean=MEAN, covariance=[[1.0, 0.5], [0.4, 1.0]]))
        assert "not symmetric: entry [0, 1] is 0.5 but [1, 0] is 0.4" in text
        text = refused(write(mean=MEAN, covariance=[[1.0, 2.0], [2.0, 1.0]]))
        assert "not positive definite: smallest eigenvalue -1" in text
        singular = write(mean=MEAN, covariance=[[1.0, 1.0], [1.0, 1.0]])
        with pytest.raises(SingularCovarianceError):
            load_gaussian(singular)
        assert "1 of 2 directions have spread" in refused(singular)

    def test_not_allowed_to_read(self, write, monkeypatch):
        path = write(mean=MEAN, covariance=COVARIANCE)

        def forbidden(*arguments, **options):  # a mode of 000 does not stop every user
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(io, "open", forbidden)
        assert "Permission denied" in refused(path)

    @settings(deadline=None, max_examples=60)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=9,
        )
    )
    def test_no_content_escapes_as_another_error(self, tmp_path_factory, value):
        path = tmp_path_factory.getbasetemp() / "anything.json"
        for content in (value, {"mean": value, "covariance": value}, {"mean": 0, "covariance": 1}):
            write_json(path, content)
            with contextlib.suppress(InputError):
                load_gaussian(path)


class TestRoundTrip:
    @pytest.mark.parametrize("dim", [1, 2, 10, 100])
    def test_is_exact(self, tmp_path, dim):
        drawn = draw_gaussian(dim, torch.Generator().manual_seed(dim))
        save_gaussian(tmp_path / "g.json", drawn)
        loaded = load_gaussian(tmp_path / "g.json")
        assert loaded.mean.equal(drawn.mean)
        assert loaded.covariance.equal(drawn.covariance)
        assert loaded.factor.equal(drawn.factor)
        save_gaussian(tmp_path / "again.json", loaded)
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "g.json").read_bytes()

    def test_of_a_gaussian_whose_covariance_has_no_cholesky_factor(self, tmp_path):
        factor = torch.tensor([[1.0, 0.0], [1.0, 1e-12]], dtype=torch.float64)
        narrow = Gaussian(torch.zeros(2, dtype=torch.float64), factor)
        save_gaussian(tmp_path / "g.json", narrow)
        assert load_gaussian(tmp_path / "g.json").factor.equal(factor)

    def test_of_float32(self, tmp_path):
        single = draw_gaussian(5, torch.Generator().manual_seed(0)).to(dtype=torch.float32)
        save_gaussian(tmp_path / "g.json", single)
        loaded = load_gaussian(tmp_path / "g.json")
        assert loaded.dtype == torch.float64
        assert loaded.mean.equal(single.mean.double())
        assert loaded.factor.equal(single.factor.double())

    def test_can_be_read_without_this_package(self, tmp_path):
        drawn = draw_gaussian(3, torch.Generator().manual_seed(0))
        save_gaussian(tmp_path / "g.json", drawn)
        content = json.loads((tmp_path / "g.json").read_text())
        assert content["mean"] == drawn.mean.tolist()
        assert content["covariance"] == drawn.covariance.tolist()
        assert content["factor"] == drawn.factor.tolist()

    def test_a_changed_covariance_is_noticed(self, tmp_path):
        path = tmp_path / "g.json"
        save_gaussian(path, draw_gaussian(3, torch.Generator().manual_seed(0)))
        content = json.loads(path.read_text())
        content["covariance"][1][1] *= 1 + 1e-6
        write_json(path, content)
        assert "covariance and factor disagree by up to" in refused(path)
        del content["factor"]
        assert load_gaussian(write_json(path, content)).dim == 3

    def test_a_changed_factor_is_noticed(self, tmp_path):
        path = tmp_path / "g.json"
        entries = {"mean": MEAN, "covariance": COVARIANCE}
        write_json(path, {**entries, "factor": [[1.0, 2.0], [2.0, 1.0]]})
        assert "factor has entries above its diagonal" in refused(path)
        write_json(path, {**entries, "factor": [1.0]})
        assert "mean has length 2 and factor has shape [1]" in refused(path)
        nan = {"mean": [0.0], "covariance": [[float("nan")]], "factor": [[1.0]]}
        assert "covariance has 1 value(s)" in refused(write_json(path, nan))


class TestSave:
    def test_leaves_nothing_but_the_file(self, tmp_path):
        path = tmp_path / "g.json"
        for _ in range(2):  # the second time over the first
            save_gaussian(path, draw_gaussian(3, torch.Generator().manual_seed(0)))
            assert [file.name for file in tmp_path.iterdir()] == ["g.json"]

    def test_a_fault_while_writing_keeps_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "g.json"
        save_gaussian(path, draw_gaussian(2, torch.Generator().manual_seed(0)))
        before = path.read_bytes()

        def full(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"g\.json: cannot be written \(No space left"):
            save_gaussian(path, draw_gaussian(2, torch.Generator().manual_seed(1)))
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["g.json"]

    def test_refusals(self, tmp_path):
        drawn = draw_gaussian(2, torch.Generator().manual_seed(0))
        with pytest.raises(InputError, match=r"g\.npz: .*ends in \.json"):
            save_gaussian(tmp_path / "g.npz", drawn)
        with pytest.raises(InputError, match=r"given a batch \[2\]; save them one by one"):
            save_gaussian(tmp_path / "g.json", Gaussian.stack([drawn, drawn]))
        (tmp_path / "folder.json").mkdir()
        with pytest.raises(InputError, match=r"cannot be written \(Is a directory"):
            save_gaussian(tmp_path / "folder.json", drawn)
        assert [file.name for file in tmp_path.iterdir()] == ["folder.json"]
