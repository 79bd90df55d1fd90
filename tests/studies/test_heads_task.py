"""What is known and what is not in a trial of the heads study."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mahalens.data import load_set
from mahalens.errors import InputError
from mahalens.studies.heads import checking
from mahalens.studies.heads import task as tasks
from mahalens.studies.heads.checking import check
from mahalens.studies.heads.config import HeadsConfig
from mahalens.studies.heads.task import draw_known, shuffle, task_of
from mahalens.studies.paired.samples import standardise

DIGITS = HeadsConfig.with_defaults(trials=2)


def rows(x):
    """Samples as a set that can be compared, whatever they are scaled by."""
    low, high = x.min(1, keepdim=True).values, x.max(1, keepdim=True).values
    return {tuple(row) for row in ((x - low) / (high - low)).mul(1009).round().int().tolist()}


def test_left_out_classes_are_never_seen():
    whole = load_set("digits")
    every = torch.cat((whole.x, whole.test_x)), torch.cat((whole.y, whole.test_y))
    for trial in (0, 1):
        task = task_of(DIGITS, "digits", trial)
        assert task.classes == 7
        assert task.y.unique().tolist() == list(range(7))
        left_out = [
            label for label in range(10) if rows(every[0][every[1] == label]) <= rows(task.unknown)
        ]
        assert len(left_out) == 3
        assert len(task.unknown) == sum(int((every[1] == label).sum()) for label in left_out)
        known = torch.cat((task.x, task.held_x, task.test_x))
        assert not rows(known) & rows(task.unknown)
        assert len(known) + len(task.unknown) == 1797


def test_trials_leave_out_other_classes_and_models_share_them():
    first, again, other = (task_of(DIGITS, "digits", trial) for trial in (0, 0, 1))
    assert torch.equal(first.unknown, again.unknown)
    assert torch.equal(first.x, again.x)
    assert first.unknown.shape != other.unknown.shape or not torch.equal(
        first.unknown, other.unknown
    )


def test_held_out_samples_are_not_trained_with():
    task = task_of(DIGITS, "digits", 0)
    assert not rows(task.held_x) & (rows(task.x) | rows(task.test_x))
    assert len(task.held_y) == pytest.approx(0.2 * (len(task.y) + len(task.held_y)), abs=7)
    assert task.held_y.unique().tolist() == list(range(7))


def test_only_what_is_trained_with_says_what_mean_and_spread_are():
    task = task_of(DIGITS, "digits", 0)
    together = torch.cat((task.x, task.held_x)).double()
    assert abs(float(together.mean())) < 1e-6
    assert float(together.std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_the_other_set_is_standardised_like_the_known_one(monkeypatch):
    make = torch.Generator().manual_seed(0)

    def pretend(name):
        digits = load_set("digits")
        if name == "fashion-mnist":
            return digits
        x = torch.rand(30, 64, generator=make) * 16
        return type(digits)(name, x, digits.y[:30], x, digits.y[:30], (8, 8), 16.0, "made up")

    found = {name: pretend(name) for name in ("mnist", "fashion-mnist")}
    monkeypatch.setattr(tasks, "whole_set", found.__getitem__)
    config = HeadsConfig.with_defaults(data=["fashion-mnist"], train_size=None, published=True)
    task = task_of(config, "fashion-mnist", 0)
    digits = found["fashion-mnist"]
    wanted = standardise(digits.x, found["mnist"].test_x, pixels=True)[1]
    assert torch.equal(task.unknown, wanted)
    assert task.classes == 10
    assert len(task.y) + len(task.held_y) == len(digits.y)
    small = HeadsConfig.with_defaults(data=["fashion-mnist"], train_size=300)
    task = task_of(small, "fashion-mnist", 0)
    assert len(task.y) + len(task.held_y) == 300


def test_classes_that_are_known():
    y = torch.tensor([0, 2, 4, 2])  # three classes, numbered with gaps
    labels = draw_known(y, torch.Generator().manual_seed(0))
    assert sorted(labels[[0, 2, 4]].tolist()) == [-1, 0, 1]
    assert labels[[1, 3]].tolist() == [-1, -1]


def test_shuffling_keeps_the_values_of_each_sample():
    x = torch.rand(5, 30, generator=torch.Generator().manual_seed(0))
    mixed = shuffle(x, torch.Generator().manual_seed(1))
    assert torch.equal(mixed.sort(1).values, x.sort(1).values)
    assert not torch.equal(mixed, x)
    orders = [
        [row.tolist().index(v) for v in new.tolist()] for row, new in zip(x, mixed, strict=True)
    ]
    assert orders[0] != orders[1]


def test_two_classes_are_too_few():
    config = HeadsConfig.with_defaults(data=["breast-cancer"])
    with pytest.raises(InputError, match="has 2 classes, and one is left out"):
        check(config)


def written(folder, y, test_y=None, **more):
    file = folder / "mine.npz"
    make = np.random.default_rng(0)
    arrays = {"x": make.random((len(y), 4)), "y": np.asarray(y)}
    if test_y is not None:
        arrays |= {"test_x": make.random((len(test_y), 4)), "test_y": np.asarray(test_y)}
    np.savez(file, **arrays)
    return HeadsConfig.with_defaults(data=[str(file)], **more)


@pytest.mark.parametrize(
    ("labels", "test", "more", "said"),
    [
        (np.arange(60) % 4, None, {}, r"3 known classes, of which 6 would be held out, and 40 are"),
        (
            np.arange(400) % 4,
            None,
            {"reject_rate": 0.001},
            r"1000 are wanted for --reject-rate 0.001; give about 6,772 training",
        ),
        (np.arange(400) % 4, None, {"train_size": 40}, r"training samples of 3 known classes"),
        ([0] * 300 + [1] * 300 + [2] * 4, [0, 1, 2], {}, r"class 2 has 4 training samples; give"),
        (np.arange(400) % 4, [2, 2], {}, r"are of 1 classes, and 1 are left out"),
    ],
)
def test_too_few_samples(tmp_path, labels, test, more, said):
    with pytest.raises(InputError, match=said):
        check(written(tmp_path, labels, test, **more))


def test_as_many_samples_as_are_asked_for_will_do(tmp_path):
    fewest = 5 * (40 + 3)
    config = written(tmp_path, np.arange(-(-fewest * 4 // 3 // 4) * 4) % 4, [0, 1, 2, 3])
    check(config)
    assert min(len(task_of(config, config.data[0], trial).held_y) for trial in range(5)) >= 40


def test_the_other_set_must_be_here(monkeypatch):
    def only_fashion(name):
        if name == "mnist":
            raise InputError("mnist is not on this machine; run `mahalens data fetch mnist`")
        return load_set("digits")

    monkeypatch.setattr(checking, "whole_set", only_fashion)
    monkeypatch.setattr(checking, "check_sets", lambda *_: {"fashion-mnist": {}})
    with pytest.raises(InputError, match=r"takes mnist for the unknown.*data fetch mnist"):
        check(HeadsConfig.with_defaults(data=["fashion-mnist"]))


def test_facts_say_what_is_unknown():
    assert check(DIGITS)["digits"]["unknown"] == "3 of 10 classes, left out by each trial"
