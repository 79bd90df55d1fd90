"""Named streams of random numbers: repeatable, independent, out of each other's way."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from mahalens.data import stream
from mahalens.errors import InputError

PURPOSES = [
    (),
    ("start",),
    ("test",),
    ("start", 0),
    ("start", 1),
    (0, "start"),
    (0,),
    (1,),
    (0, 1),
    (1, 0),
    ("ab", "c"),
    ("a", "bc"),
    ("test", "abs", 3),
    ("test", "relu", 3),
]


def first(seed, *purpose, count=4):
    return torch.rand(count, generator=stream(seed, *purpose), dtype=torch.float64)


@pytest.mark.parametrize("purpose", PURPOSES, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**70])
def test_same_purpose_same_numbers(seed, purpose):
    assert torch.equal(first(seed, *purpose), first(seed, *purpose))


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_different_purposes_different_numbers(seed):
    for a, b in itertools.combinations(PURPOSES, 2):
        assert not bool((first(seed, *a) == first(seed, *b)).any()), (a, b)


def test_different_seeds_different_numbers():
    drawn = {first(seed, "start", 0, count=1).item() for seed in range(200)}
    assert len(drawn) == 200


def test_trials_look_independent():
    drawn = torch.stack([first(0, "start", trial, count=50) for trial in range(400)]).numpy()
    assert scipy.stats.kstest(drawn[:, 0], "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    neighbours = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(drawn.size)


def test_a_stream_does_not_depend_on_others_having_been_made():
    alone = first(3, "start", 7)
    for trial in range(7):
        first(3, "start", trial, count=100)
    assert torch.equal(first(3, "start", 7), alone)


def test_the_global_streams_are_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    stream(0, "start")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_the_numbers_of_a_seed_stay_what_they_are():
    """Results published with a seed can be had again only as long as this holds."""
    wanted = [0.23248155718803964, 0.551554394268086, 0.05871807659533501, 0.022138388281853327]
    assert first(0, "start", 3).tolist() == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("seed", [-1, -(2**40)])
def test_negative_seed(seed):
    with pytest.raises(InputError, match=f"a seed of {seed}; give a whole number of at least 0"):
        stream(seed, "start")
