"""Kaiming weights whose hyperplanes pass through samples."""

import math

import pytest
import torch

from mahalens.errors import InputError
from mahalens.init import kaiming_through_samples

DTYPES = [torch.float32, torch.float64]


def samples(n, dim, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (5 + 3 * torch.randn(n, dim, generator=generator, dtype=torch.float64)).to(dtype)


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "dim", "units"), [(1, 1, 1), (30, 2, 4), (20, 10, 20), (3, 50, 7)])
def test_each_hyperplane_passes_through_a_sample(n, dim, units, dtype):
    x = samples(n, dim, dtype)
    weight, bias = kaiming_through_samples(x, units, seeded())
    assert weight.shape == (units, dim)
    assert bias.shape == (units,)
    assert weight.dtype == bias.dtype == dtype
    nearest = (x @ weight.T + bias).abs().min(0).values  # [K]
    size = (x.abs() @ weight.T.abs()).max()
    assert nearest.max() <= 4 * torch.finfo(dtype).eps * size


@pytest.mark.parametrize("dim", [1, 2, 10, 100])
def test_weights_have_the_kaiming_spread(dim):
    units = 40_000 // dim
    weight, _ = kaiming_through_samples(samples(10, dim), units, seeded())
    spread = math.sqrt(2 / dim)
    assert abs(weight.mean()) < 5 * spread / math.sqrt(40_000)
    assert abs(weight.std() / spread - 1) < 5 / math.sqrt(2 * 40_000)


def test_samples_are_chosen_evenly():
    x = samples(4, 3)
    weight, bias = kaiming_through_samples(x, 4000, seeded())
    chosen = (x @ weight.T + bias).abs().argmin(0)
    counts = torch.bincount(chosen, minlength=4)
    assert bool((counts - 1000).abs().max() < 5 * math.sqrt(1000 * 0.75))


def test_a_seed_means_the_same_start_in_both_dtypes():
    x = samples(30, 3)
    double = kaiming_through_samples(x, 6, seeded())
    single = kaiming_through_samples(x.float(), 6, seeded())
    assert torch.equal(double[0].float(), single[0])
    torch.testing.assert_close(double[1].float(), single[1], rtol=1e-6, atol=1e-5)


def test_a_seed_means_the_same_start_again_and_another_another():
    x = samples(30, 3)
    first, again = (kaiming_through_samples(x, 6, seeded(7)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = kaiming_through_samples(x, 6, seeded(8))
    assert not bool((first[0] == other[0]).any())


def test_a_generator_of_its_own_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    kaiming_through_samples(samples(5, 2), 4, seeded())
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_the_global_one_decides():
    x = samples(5, 2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = kaiming_through_samples(x, 4)
        torch.manual_seed(0)
        again = kaiming_through_samples(x, 4)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_the_samples_are_not_changed():
    x = samples(5, 2)
    before = x.clone()
    kaiming_through_samples(x, 4, seeded())
    assert torch.equal(x, before)


class TestErrors:
    @pytest.mark.parametrize("shape", [(), (3,), (0, 2), (3, 0), (2, 3, 4)], ids=str)
    def test_shape(self, shape):
        with pytest.raises(InputError, match=r"samples of shape \(.*\); give a non-empty \[N, D\]"):
            kaiming_through_samples(torch.zeros(shape), 2)

    @pytest.mark.parametrize("units", [0, -2])
    def test_units(self, units):
        with pytest.raises(InputError, match=f"{units} units; give at least 1"):
            kaiming_through_samples(torch.zeros(3, 2), units)

    def test_whole_numbers(self):
        """Weights of the samples' dtype would all be rounded to 0 or 1."""
        with pytest.raises(InputError, match=r"samples of torch\.int64; give a float dtype"):
            kaiming_through_samples(torch.ones(3, 2, dtype=torch.int64), 2)
