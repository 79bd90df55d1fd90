"""The laws that define a Gaussian, against numpy, scipy and plain loops."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
from geometry_cases import DTYPES, NAN, normal, refused

from mahalens.geometry import Gaussian, ledoit_wolf_shrinkage

SHAPES = [((), 1), ((), 10), ((3,), 4), ((2, 3), 3)]


def make(batch, dim, dtype=torch.float64, seed=0):
    """A Gaussian of moderate condition number with a mean away from 0."""
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(*batch, dim, dim, generator=g, dtype=torch.float64)
    covariance = a @ a.mT / dim + 0.3 * torch.eye(dim, dtype=torch.float64)
    mean = 3 * torch.randn(*batch, dim, generator=g, dtype=torch.float64)
    return Gaussian.from_covariance(mean, covariance).to(dtype=dtype)


def points(gaussian, n=7, seed=1):
    return (4 * normal(*gaussian.batch_shape, n, gaussian.dim, seed=seed)).to(gaussian.dtype)


def close(actual, wanted, scale=1.0):
    wanted = torch.as_tensor(wanted, dtype=actual.dtype)
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[actual.dtype] * scale
    torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


def identity_like(gaussian):
    return torch.eye(gaussian.dim, dtype=gaussian.dtype).expand(gaussian.factor.shape)


@pytest.fixture(params=itertools.product(SHAPES, DTYPES), ids=str)
def gaussian(request):
    shape, dtype = request.param
    return make(*shape, dtype)


class TestMatrices:
    def test_covariance_and_precision(self, gaussian):
        close(gaussian.covariance, gaussian.factor @ gaussian.factor.mT)
        close(gaussian.precision @ gaussian.covariance, identity_like(gaussian), scale=10)
        close(gaussian.precision, np.linalg.inv(gaussian.covariance.double().numpy()), scale=10)
        assert torch.equal(gaussian.covariance, gaussian.covariance.mT)
        assert torch.equal(gaussian.precision, gaussian.precision.mT)

    def test_eigenstructure(self, gaussian):
        values, vectors = gaussian.eigenvalues, gaussian.eigenvectors
        close(values, np.linalg.eigvalsh(gaussian.covariance.double().numpy())[..., ::-1].copy(), 5)
        close(vectors.mT @ vectors, identity_like(gaussian))
        close(gaussian.covariance @ vectors, vectors * values.unsqueeze(-2), 5)
        largest = vectors.gather(-2, vectors.abs().argmax(dim=-2, keepdim=True))
        assert bool((largest > 0).all())
        close(gaussian.condition_number, np.linalg.cond(gaussian.covariance.double().numpy()), 20)

    def test_of_equal_entries_the_first_is_positive(self, dtype):
        tilted = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=dtype)
        vectors = Gaussian.from_covariance(torch.zeros(2, dtype=dtype), tilted).eigenvectors
        close(vectors, [[0.5**0.5, 0.5**0.5], [-(0.5**0.5), 0.5**0.5]])

    def test_small_eigenvalues_keep_their_digits(self):
        # Σ has condition number 1e20, beyond float64: only the factor can tell these.
        factor = torch.diag(torch.tensor([1.0, 1e-5, 1e-10], dtype=torch.float64))
        gaussian = Gaussian(torch.zeros(3, dtype=torch.float64), factor)
        wanted = torch.tensor([1.0, 1e-10, 1e-20], dtype=torch.float64)
        torch.testing.assert_close(gaussian.eigenvalues, wanted, rtol=1e-12, atol=0)
        torch.testing.assert_close(gaussian.condition_number.item(), 1e20, rtol=1e-12, atol=0)
        close(gaussian.mahalanobis(factor), torch.ones(3))


class TestWhitening:
    @pytest.mark.parametrize("kind", ["pca", "zca", "cholesky"])
    def test_laws(self, gaussian, kind):
        w, x = gaussian.whitening(kind), points(gaussian)
        close(w @ gaussian.covariance @ w.mT, identity_like(gaussian), 10)
        close(w.mT @ w, gaussian.precision, 10)
        white = gaussian.whiten(x, kind)
        centred = x - gaussian.mean.unsqueeze(-2)
        close(white, torch.einsum("...ij,...nj->...ni", w, centred), 10)
        close(white.square().sum(-1).sqrt(), gaussian.mahalanobis(x), 10)
        close(gaussian.unwhiten(white, kind), x, 10)
        close(gaussian.whiten(gaussian.unwhiten(x, kind), kind), x, 20)

    def test_kinds(self, gaussian):
        values, vectors = gaussian.eigenvalues, gaussian.eigenvectors
        close(gaussian.whitening("pca"), torch.diag_embed(values.rsqrt()) @ vectors.mT, 5)
        assert torch.equal(gaussian.whitening(), gaussian.whitening("pca"))
        x = points(gaussian)
        assert torch.equal(gaussian.whiten(x), gaussian.whiten(x, "pca"))
        symmetric = gaussian.whitening("zca")
        assert torch.equal(symmetric, symmetric.mT)
        assert bool((torch.linalg.eigvalsh(symmetric) > 0).all())
        lower = gaussian.whitening("cholesky")
        assert not bool(lower.triu(1).any())
        close(lower @ gaussian.factor, identity_like(gaussian), 5)


class TestDistance:
    def test_agrees_with_scipy(self, gaussian):
        x = points(gaussian)
        distances, densities = gaussian.mahalanobis(x), gaussian.log_density(x)
        assert distances.shape == x.shape[:-1]
        close(gaussian.mahalanobis(x, squared=True), distances**2, 10)
        for index in np.ndindex(*gaussian.batch_shape):
            mean = gaussian.mean[index].double().numpy()
            covariance = gaussian.covariance[index].double().numpy()
            rows = x[index].double().numpy()
            inverse = np.linalg.inv(covariance)
            wanted = [scipy.spatial.distance.mahalanobis(row, mean, inverse) for row in rows]
            close(distances[index], wanted, 10)
            density = scipy.stats.multivariate_normal(mean, covariance).logpdf(rows)
            close(densities[index], density, 20)

    def test_is_zero_at_the_mean_and_one_a_deviation_along_every_axis(self, gaussian):
        assert not bool(gaussian.mahalanobis(gaussian.mean.unsqueeze(-2)).any())
        assert bool((gaussian.mahalanobis(points(gaussian)) > 0).all())
        axes = (gaussian.eigenvectors * gaussian.eigenvalues.sqrt().unsqueeze(-2)).mT
        x = gaussian.mean.unsqueeze(-2) + axes
        close(gaussian.mahalanobis(x), torch.ones(x.shape[:-1]), 10)

    def test_does_not_change_under_an_affine_map(self, gaussian):
        dim = gaussian.dim
        a = (normal(dim, dim, seed=5) + 2 * torch.eye(dim)).to(gaussian.dtype)
        shift = torch.arange(dim, dtype=gaussian.dtype)
        covariance = a @ gaussian.covariance @ a.mT
        moved = Gaussian.from_covariance(gaussian.mean @ a.mT + shift, covariance)
        x = points(gaussian)
        condition = float(torch.linalg.cond(a)) ** 2
        close(moved.mahalanobis(x @ a.mT + shift), gaussian.mahalanobis(x), 5 * condition)

    def test_finite_far_away_and_nan_stays_in_its_row(self):
        gaussian = make((), 3)
        far = 1e100 * torch.eye(3, dtype=torch.float64)
        assert bool(torch.isfinite(gaussian.mahalanobis(far)).all())
        assert bool(torch.isfinite(gaussian.log_density(far)).all())
        x = points(gaussian)
        x[3, 1] = NAN
        assert torch.isnan(gaussian.mahalanobis(x)).tolist() == [n == 3 for n in range(7)]


class TestBatch:
    @pytest.mark.parametrize("method", ["mahalanobis", "log_density", "whiten", "unwhiten"])
    def test_batched_equals_looped(self, method):
        batch = make((2, 3), 4)
        x = points(batch)
        together, shared = getattr(batch, method)(x), getattr(batch, method)(x[0, 0])
        alone = getattr(batch[0, 0], method)(x)
        for index in np.ndindex(2, 3):
            one = getattr(batch[index], method)
            close(together[index], one(x[index]))
            close(shared[index], one(x[0, 0]))  # the same points for all
            close(alone[index], getattr(batch[0, 0], method)(x[index]))  # one for many sets

    def test_mean_and_factor_broadcast(self):
        single = make((), 3)
        means = torch.zeros(4, 3, dtype=torch.float64)
        assert Gaussian(means, single.factor).batch_shape == (4,)
        assert Gaussian(means, single.factor)[2].factor.equal(single.factor)
        assert Gaussian(single.mean, single.factor.expand(4, 3, 3)).mean.shape == (4, 3)

    @pytest.mark.parametrize(
        "index",
        [0, -1, slice(1), (1, 2), (slice(None), 1), (..., 0), None, [1, 0], torch.tensor([1])],
        ids=str,
    )
    def test_indexing_is_that_of_the_batch(self, index):
        batch = make((2, 3), 4)
        positions = torch.arange(6).reshape(2, 3)[index]
        part = batch[index]
        assert part.batch_shape == positions.shape
        assert part.mean.equal(batch.mean.reshape(6, 4)[positions])
        assert part.factor.equal(batch.factor.reshape(6, 4, 4)[positions])

    def test_iterates_and_stacks_back(self):
        batch = make((3,), 4)
        parts = list(batch)
        assert len(batch) == len(parts) == 3
        again = Gaussian.stack(parts)
        assert again.mean.equal(batch.mean)
        assert again.factor.equal(batch.factor)

    @pytest.mark.parametrize(
        ("call", "kind", "message"),
        [
            (lambda: make((), 2)[0], IndexError, "no batch to index"),
            (lambda: len(make((), 2)), TypeError, "no length"),
            (lambda: list(make((), 2)), TypeError, "no length"),
            (lambda: make((3,), 2)[3], IndexError, "out of bounds"),
            (lambda: make((3,), 2)[0, 0], IndexError, "too many indices"),
            (lambda: Gaussian.stack([make((), 2), make((), 3)]), ValueError, "dim=2.* and .*dim=3"),
            (
                lambda: Gaussian.stack([make((), 2), make((), 2, dtype=torch.float32)]),
                ValueError,
                "float32.* and .*float64",
            ),
            (lambda: Gaussian.stack([]), ValueError, "at least 1"),
        ],
    )
    def test_refuses_what_is_no_batch(self, call, kind, message):
        with pytest.raises(kind, match=message):
            call()


class TestSamples:
    def test_have_the_gaussians_moments(self):
        batch = make((2,), 3)
        n = 20_000
        x = batch.sample(n, torch.Generator().manual_seed(3))
        assert x.shape == (2, n, 3)
        white = batch.whiten(x)
        # Means of n standard normals scatter by n^-1/2, their covariance by about the same.
        assert white.mean(dim=-2).abs().max() < 5 * n**-0.5
        assert (white.mT @ white / n - torch.eye(3)).abs().max() < 8 * n**-0.5
        uniform = scipy.stats.chi2(3).cdf(batch.mahalanobis(x, squared=True)[0].numpy())
        assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3

    def test_are_mean_plus_factor_times_draws_of_the_generator(self):
        gaussian, generator = make((), 3), torch.Generator().manual_seed(4)
        state = torch.random.get_rng_state()
        first, second = gaussian.sample(5, generator), gaussian.sample(5, generator)
        assert not torch.equal(first, second)
        close(first, gaussian.mean + normal(5, 3, seed=4) @ gaussian.factor.mT)
        single = gaussian.to(torch.float32).sample(5, torch.Generator().manual_seed(4))
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), first, rtol=1e-5, atol=1e-5)
        assert torch.equal(state, torch.random.get_rng_state())


class TestGradients:
    def test_of_everything_smooth(self):
        gaussian = make((2,), 2)
        x = points(gaussian, n=2).requires_grad_()
        mean = gaussian.mean.clone().requires_grad_()
        free = gaussian.factor.clone().requires_grad_()

        def through(name, *arguments):
            def function(x, mean, free):
                return getattr(Gaussian(mean, free.tril()), name)(x, *arguments)

            return function

        distances = [("mahalanobis",), ("mahalanobis", True), ("log_density",)]
        whitenings = [("whiten", kind) for kind in ("pca", "zca", "cholesky")]
        for name, *arguments in [*distances, *whitenings, ("unwhiten", "zca")]:
            assert torch.autograd.gradcheck(through(name, *arguments), (x, mean, free))
        for name in ("covariance", "precision", "eigenvalues", "condition_number"):
            assert torch.autograd.gradcheck(
                lambda mean, free, name=name: getattr(Gaussian(mean, free.tril()), name),
                (mean, free),
            )

    def test_at_the_mean_are_zero_and_leave_other_points_alone(self, dtype):
        gaussian = make((), 3, dtype)
        mean, factor = (t.clone().requires_grad_() for t in (gaussian.mean, gaussian.factor))
        x = gaussian.mean[None].clone().requires_grad_()
        Gaussian(mean, factor).mahalanobis(x).sum().backward()
        assert not any(bool(leaf.grad.any()) for leaf in (mean, factor, x))
        (slope,) = torch.autograd.grad(gaussian.mahalanobis(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum() + slope.square().sum(), x, allow_unused=True)
        assert second is None or not bool(second.any())
        alone = points(gaussian).requires_grad_()
        both = torch.cat([gaussian.mean[None], alone.detach()]).requires_grad_()
        gaussian.mahalanobis(both).sum().backward()
        gaussian.mahalanobis(alone).sum().backward()
        assert not bool(both.grad[0].any())
        close(both.grad[1:], alone.grad)


class TestValueObject:
    def test_never_changes(self):
        mean, factor = torch.zeros(2), torch.eye(2)
        gaussian = Gaussian(mean, factor)
        twin = copy.deepcopy(gaussian)
        mean += 1
        factor += 1
        for value in (gaussian, twin):
            assert value.mean.equal(torch.zeros(2))
            assert value.factor.equal(torch.eye(2))
        for name in ("mean", "factor"):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(gaussian, name, mean)

    def test_results_do_not_depend_on_memory_layout(self):
        gaussian = make((), 10)
        by_columns = gaussian.factor.mT.contiguous().mT
        assert not by_columns.is_contiguous()
        other = Gaussian(gaussian.mean, by_columns)
        x = points(gaussian)
        assert other.covariance.equal(gaussian.covariance)
        assert other.mahalanobis(x).equal(gaussian.mahalanobis(x))

    def test_arrays_are_accepted(self):
        x = np.random.default_rng(0).normal(size=(20, 3))
        gaussian = Gaussian.from_data(x)
        assert torch.equal(gaussian.factor, Gaussian.from_data(torch.from_numpy(x)).factor)
        assert torch.equal(gaussian.mahalanobis(x), gaussian.mahalanobis(torch.from_numpy(x)))
        assert Gaussian.from_covariance(x[0], np.eye(3)).dim == 3

    def test_counts_may_be_whole_numbers_of_numpy(self, gaussian):
        draws = [gaussian.sample(n, torch.Generator().manual_seed(0)) for n in (3, np.int32(3))]
        assert torch.equal(*draws)
        refused(lambda: gaussian.sample(np.bool_(True)), "number of samples is ")

    def test_autocast_does_not_touch_them(self):
        gaussian, x = make((), 10, torch.float32), normal(40, 10, dtype=torch.float32)
        calls = [
            lambda: gaussian.covariance,
            lambda: gaussian.precision,
            lambda: gaussian.whitening("zca"),
            lambda: gaussian.whiten(x),
            lambda: gaussian.unwhiten(x),
            lambda: gaussian.sample(5, torch.Generator().manual_seed(0)),
            lambda: ledoit_wolf_shrinkage(x),
        ]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = [call() for call in calls]
        assert all(torch.equal(value, call()) for value, call in zip(inside, calls, strict=True))

    def test_distances_are_numbers_where_their_squares_are_not(self):
        gaussian = Gaussian(torch.zeros(2), torch.eye(2))
        x = torch.tensor([[3e25, 4e25], [3e-25, 4e-25], [0.0, 0.0]])
        distances = torch.tensor([5e25, 5e-25, 0.0])
        torch.testing.assert_close(gaussian.mahalanobis(x), distances, rtol=1e-6, atol=0)
        assert gaussian.mahalanobis(x, squared=True)[0] == float("inf")

    @pytest.mark.parametrize(("scale", "name"), [(1e25, "covariance"), (1e-25, "precision")])
    def test_matrices_out_of_range_are_refused(self, scale, name):
        factor = scale * torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        gaussian = Gaussian(torch.zeros(2), factor)
        refused(lambda: getattr(gaussian, name), f"^the {name} of this Gaussian .* float32; take")
        assert bool(getattr(gaussian.to(torch.float64), name).isfinite().all())


EYE = torch.eye(2)


@pytest.mark.parametrize(
    ("mean", "factor", "message"),
    [
        (torch.zeros(3), EYE, "mean has length 3 and factor is 2 x 2, wanted 3 x 3"),
        (torch.zeros(2), torch.zeros(2, 3), "factor is 2 x 3, wanted 2 x 2"),
        (torch.zeros(2), torch.ones(2), r"factor has shape \[2\], wanted \[..., D, D\]"),
        (torch.tensor(1.0), torch.eye(1), r"mean has shape \[\], wanted \[..., D\]"),
        (torch.zeros(0), torch.zeros(0, 0), "D at least 1"),
        (torch.zeros(2), torch.ones(2, 2), "above its diagonal"),
        (torch.zeros(2), torch.diag(torch.tensor([1.0, -2.0])), "-2 on its diagonal"),
        (torch.zeros(2), torch.diag(torch.tensor([1.0, 0.0])), "0 on its diagonal"),
        (torch.tensor([0.0, NAN]), EYE, r"mean has 1 value.*first at \[1\]"),
        (torch.zeros(2), EYE * float("inf"), "factor has 4 value.*NaN or infinite"),
        (torch.zeros(2).double(), EYE, "mean is float64 and factor float32"),
        (torch.zeros(2, device="meta"), EYE, "mean is on meta and factor on cpu"),
        (torch.zeros(2).int(), EYE, "mean is int32, wanted float32 or float64"),
        (torch.zeros(2), EYE.half(), "factor is float16, wanted float32 or float64"),
        ([0.0, 0.0], EYE, "mean is a list, wanted a torch tensor"),
        (torch.zeros(3, 2), EYE.expand(4, 2, 2), r"\[3\] and factor \[4\]"),
    ],
)
def test_refuses_parts(mean, factor, message):
    refused(lambda: Gaussian(mean, factor), message)


@pytest.mark.parametrize("method", ["mahalanobis", "log_density", "whiten", "unwhiten"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(5, 3).double(), r"\[5, 3\], so 3 inputs; this Gaussian has 2"),
        (torch.zeros(2).double(), r"wanted \[..., N, D\].*a single point x of length D"),
        (torch.zeros(5, 2), "is float32 and this Gaussian float64"),
        (torch.zeros(4, 5, 2).double(), r"batch shape \[4\] and this Gaussian \[3\]"),
        ([[0.0, 0.0]], "is a list, wanted a torch tensor or a NumPy array"),
    ],
    ids=["width", "axes", "dtype", "batch", "type"],
)
def test_refuses_points(method, x, message):
    refused(lambda: getattr(make((3,), 2), method)(x), message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.whitening("qr"), "'qr', wanted one of pca, zca, cholesky"),
        (lambda g: g.whiten(points(g), "qr"), "'qr', wanted one of pca, zca, cholesky"),
        (lambda g: g.unwhiten(points(g), "qr"), "'qr', wanted one of pca, zca, cholesky"),
        *((lambda g, n=n: g.sample(n), f"is {n!r}, wanted a whole") for n in (0, -3, 2.0, True)),
    ],
)
def test_refuses_options(call, message):
    refused(lambda: call(make((), 2)), message)
