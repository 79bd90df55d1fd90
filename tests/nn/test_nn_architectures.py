"""The named models, and the ground-truth model against the distance it stands for."""

import pytest
import scipy.spatial.distance
import torch

from mahalens.errors import InputError
from mahalens.geometry import Gaussian
from mahalens.nn import mahalanobis_model, md_abs, md_relu, md_sigmoid


def draw(dim, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    covariance = a @ a.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64)
    mean = 20 * torch.rand(dim, generator=generator, dtype=torch.float64) - 10
    gaussian = Gaussian.from_covariance(mean, covariance).to(dtype)
    return gaussian, gaussian.sample(50, generator)


@pytest.mark.parametrize("dim", [1, 2, 10])
@pytest.mark.parametrize(
    ("make", "factor", "activation"),
    [(md_abs, 1, "Abs"), (md_relu, 2, "ReLU"), (md_sigmoid, 2, "Sigmoid")],
)
def test_named_chains(make, factor, activation, dim):
    chain = make(dim)
    assert str(chain) == f"Linear({factor * dim}), {activation}, Norm"
    assert chain.inputs == dim
    assert chain.scalar
    assert chain.build()(torch.zeros(3, dim)).shape == (3,)


@pytest.mark.parametrize("make", [md_abs, md_relu, md_sigmoid])
def test_no_dimensions(make):
    with pytest.raises(InputError, match="a chain with 0 inputs; give at least 1"):
        make(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [1, 2, 10])
class TestMahalanobisModel:
    def test_is_the_distance(self, dim, dtype):
        gaussian, x = draw(dim, dtype)
        out = mahalanobis_model(gaussian)(x)
        tolerance = {torch.float32: 2e-4, torch.float64: 1e-12}[dtype]
        torch.testing.assert_close(out, gaussian.mahalanobis(x), rtol=tolerance, atol=tolerance)
        double = gaussian.to(torch.float64)
        mean, precision = double.mean.numpy(), double.precision.numpy()
        loop = [scipy.spatial.distance.mahalanobis(row, mean, precision) for row in x.tolist()]
        wanted = torch.tensor(loop, dtype=dtype)
        torch.testing.assert_close(out, wanted, rtol=tolerance, atol=tolerance)

    def test_is_md_abs_with_eigenvectors_as_rows(self, dim, dtype):
        gaussian, _ = draw(dim, dtype)
        model = mahalanobis_model(gaussian)
        assert repr(model) == repr(md_abs(dim).build(dtype=dtype))
        weight = model[0].weight.detach()
        assert weight.dtype == dtype
        rows = weight * gaussian.eigenvalues.sqrt()[:, None]
        torch.testing.assert_close(rows, gaussian.eigenvectors.T, rtol=1e-4, atol=1e-4)
        centre = weight @ gaussian.mean + model[0].bias.detach()
        assert centre.abs().max() < 1e-5 * (1 + weight.abs().max() * gaussian.mean.abs().max())


def test_the_model_can_be_trained_on():
    gaussian, x = draw(2, torch.float64)
    model = mahalanobis_model(gaussian)
    (model(x) - 2).square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_changing_the_model_does_not_change_the_gaussian():
    gaussian, x = draw(2, torch.float64)
    before = gaussian.mahalanobis(x)
    with torch.no_grad():
        for parameter in mahalanobis_model(gaussian).parameters():
            parameter.zero_()
    assert torch.equal(gaussian.mahalanobis(x), before)
