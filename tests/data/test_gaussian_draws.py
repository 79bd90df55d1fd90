"""Gaussians drawn as in source 000."""

import numpy as np
import pytest
import scipy.stats
import torch

from mahalens.data import draw_gaussian
from mahalens.errors import InputError


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dim", [1, 2, 10, 100])
def test_follows_the_recipe(dim):
    drawn = draw_gaussian(dim, seeded(7))
    generator = seeded(7)
    mean = torch.rand(dim, generator=generator, dtype=torch.float64).numpy() * 20 - 10
    a = torch.randn(dim, dim, generator=generator, dtype=torch.float64).numpy()
    raw = a @ a.T + 1e-3 * np.eye(dim)
    wanted = raw / np.linalg.eigh(raw).eigenvalues.max()
    np.testing.assert_allclose(drawn.mean.numpy(), mean, rtol=1e-14)
    np.testing.assert_allclose(drawn.covariance.numpy(), wanted, rtol=1e-12, atol=1e-14)
    assert (drawn.dim, drawn.dtype, drawn.batch_shape) == (dim, torch.float64, ())


@pytest.mark.parametrize("dim", [1, 2, 10, 100])
def test_largest_eigenvalue_is_one(dim):
    for seed in range(5):
        values = draw_gaussian(dim, seeded(seed)).eigenvalues
        assert values[0].item() == pytest.approx(1, abs=1e-12)
        assert values[-1].item() > 0


def test_means_are_uniform_in_their_range():
    generator = seeded(0)
    means = torch.cat([draw_gaussian(50, generator).mean for _ in range(20)]).numpy()
    assert scipy.stats.kstest(means, scipy.stats.uniform(-10, 20).cdf).pvalue > 1e-3


def test_one_seed_one_gaussian():
    first, again, other = (draw_gaussian(4, seeded(seed)) for seed in (3, 3, 4))
    assert first.mean.equal(again.mean)
    assert first.factor.equal(again.factor)
    assert not first.mean.equal(other.mean)


@pytest.mark.parametrize("dim", [0, -1, 2.0, True])
def test_asks_for_a_dimension(dim):
    with pytest.raises(InputError, match=f"dim is {dim!r}, wanted a whole number of at least 1"):
        draw_gaussian(dim, seeded(0))
