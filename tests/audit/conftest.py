import pytest
import torch
from records import example_record

from mahalens.geometry.gaussian import Gaussian


@pytest.fixture
def draw_gaussian():
    """A random Gaussian as the study draws them: largest eigenvalue 1, mean off the origin."""

    def draw(dimensions, seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(1000 * dimensions + seed)
        mean = 20 * torch.rand(dimensions, generator=generator, dtype=torch.float64) - 10
        a = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
        covariance = a @ a.T + 1e-3 * torch.eye(dimensions, dtype=torch.float64)
        covariance = covariance / torch.linalg.eigvalsh(covariance)[-1]
        return Gaussian.from_covariance(mean, covariance).to(dtype)

    return draw


@pytest.fixture
def draw_layer():
    """A random layer (weight [K, D], bias [K])."""

    def draw(units, dimensions, seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(units, dimensions, generator=generator, dtype=dtype)
        return weight, torch.randn(units, generator=generator, dtype=dtype)

    return draw


@pytest.fixture(scope="session")
def record():
    """A rich record; tests leave it as it is."""
    return example_record()
