"""The samples of a trial: paired over models, fair to every set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mahalens.data import load_set
from mahalens.errors import InputError
from mahalens.studies.activations import STUDY
from mahalens.studies.networks import scale_of
from mahalens.studies.samples import check_sets, samples_of, standardise
from mahalens.studies.study import variant_name


def take(data, trial=0, seed=0, size=None):
    return samples_of(data, seed=seed, trial=trial, train_size=size)


class TestTables:
    def test_every_trial_is_split_anew_and_can_be_had_again(self):
        first, again, other = take("wine"), take("wine"), take("wine", trial=1)
        assert torch.equal(first.x, again.x)
        assert not torch.equal(first.x, other.x)

    @pytest.mark.parametrize("name", ["iris", "wine", "breast-cancer"])
    def test_classes_keep_their_shares(self, name):
        one = take(name)
        whole = load_set(name)
        sizes = torch.bincount(torch.cat((whole.y, whole.test_y)))
        assert torch.bincount(one.test_y).tolist() == [int(0.3 * n) for n in sizes.tolist()]
        assert len(one.y) + len(one.test_y) == int(sizes.sum())

    def test_features_are_standardised_by_the_training_samples_alone(self):
        one = take("breast-cancer")
        torch.testing.assert_close(one.x.mean(0), torch.zeros(30), atol=1e-5, rtol=0)
        torch.testing.assert_close(one.x.std(0, correction=0), torch.ones(30), atol=1e-5, rtol=0)
        assert float(one.test_x.mean(0).abs().max()) > 0.01  # near 0, and not there

    def test_no_sample_is_both_trained_and_tested_on(self):
        whole = load_set("breast-cancer")
        rows = {tuple(row) for row in torch.cat((whole.x, whole.test_x)).tolist()}
        assert len(rows) == 569
        one = take("breast-cancer")
        both = {tuple(r) for r in one.x.tolist()} & {tuple(r) for r in one.test_x.tolist()}
        assert not both


class TestImages:
    def test_keep_their_test_samples_and_one_scale_for_all_pixels(self):
        one, whole = take("digits"), load_set("digits")
        assert torch.equal(one.test_y, whole.test_y)
        x = whole.x.double()
        twin = (x - x.mean()) / x.std(correction=0)
        torch.testing.assert_close(one.x, twin.float())
        assert one.image_shape == (8, 8)

    def test_draw_as_many_as_asked_by_trial(self):
        first, other = take("digits", size=100), take("digits", trial=1, size=100)
        assert len(first.y) == 100
        assert not torch.equal(first.x, other.x)
        assert torch.equal(first.y.unique(), torch.arange(10))

    def test_of_a_small_set_all(self):
        assert len(take("digits", size=10**6).y) == 1437


def test_units_do_not_matter():
    x = torch.rand(20, 3, dtype=torch.float64)
    units = torch.tensor([1e-12, 1.0, 1e12], dtype=torch.float64)
    torch.testing.assert_close(standardise(x * units, x)[0], standardise(x, x)[0])


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        ("one-class.npz", None, "--data one-class.npz: has one class"),
        ("digits", 5, "--train-size 5: digits has 10 classes; give at least one sample for each"),
        ("mnist", None, "mahalens data fetch mnist"),
        ("iris iris", None, "--data: two sets are called 'iris'; rename a file"),
    ],
)
def test_sets_that_are_refused(tmp_path, monkeypatch, data, size, message):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    np.savez("one-class.npz", x=np.random.default_rng(0).random((9, 2)), y=np.zeros(9, int))
    with pytest.raises(InputError, match=message) as error:
        check_sets(data.split(), size)
    assert "\n" not in str(error.value)


def test_facts_of_a_set():
    (facts,) = check_sets(("iris",), 30).values()
    assert (facts["training_samples"], facts["inputs"], facts["classes"]) == (30, 4, 3)


def test_a_file_that_is_called_like_a_set_is_not_taken_for_it(tmp_path):
    file = str(tmp_path / "mnist.npz")
    np.savez(file, x=np.random.default_rng(0).random((20, 2)) + 5, y=np.arange(20) % 2)
    assert list(check_sets((file, "iris"), None)) == ["mnist-npz", "iris"]
    own = load_set(file)
    assert scale_of(own)[0] == pytest.approx(float((own.x / own.largest).mean()))
    assert STUDY.published(None, "test_accuracy", "relu", variant_name("mnist")) is not None
    assert STUDY.published(None, "test_accuracy", "relu", variant_name(file)) is None


def test_samples_on_a_device():
    one = take("iris")
    assert one.to("cpu") is one
    moved = one.to("meta")
    assert {t.device.type for t in (moved.x, moved.y, moved.test_x, moved.test_y)} == {"meta"}
    assert (moved.inputs, moved.classes) == (4, 3)
