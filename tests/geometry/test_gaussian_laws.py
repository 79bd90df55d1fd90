"""The laws that define a Gaussian, against numpy, scipy and plain loops."""

import copy
import dataclasses

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch

from mahalens.errors import InputError
from mahalens.geometry import Gaussian

DTYPES = [torch.float32, torch.float64]
KINDS = ["pca", "zca", "cholesky"]
SHAPES = [((), 1), ((), 2), ((), 10), ((3,), 4), ((2, 3), 3)]


def make(batch, dim, dtype=torch.float64, seed=0):
    """A Gaussian of moderate condition number with a mean away from 0."""
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(*batch, dim, dim, generator=g, dtype=torch.float64)
    covariance = a @ a.mT / dim + 0.3 * torch.eye(dim, dtype=torch.float64)
    mean = 3 * torch.randn(*batch, dim, generator=g, dtype=torch.float64)
    return Gaussian.from_covariance(mean, covariance).to(dtype=dtype)


def points(gaussian, n=7, seed=1):
    g = torch.Generator().manual_seed(seed)
    shape = (*gaussian.batch_shape, n, gaussian.dim)
    return (4 * torch.randn(shape, generator=g, dtype=torch.float64)).to(gaussian.dtype)


def close(actual, wanted, scale=1.0):
    """Equal up to the rounding of the dtype."""
    wanted = torch.as_tensor(wanted, dtype=actual.dtype)
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[actual.dtype] * scale
    torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=SHAPES, ids=str)
def shape(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def gaussian(request, shape):
    return make(*shape, dtype=request.param)


def identity_like(gaussian):
    return torch.eye(gaussian.dim, dtype=gaussian.dtype).expand(gaussian.factor.shape)


class TestMatrices:
    def test_covariance_is_the_product_of_the_factor(self, gaussian):
        close(gaussian.covariance, gaussian.factor @ gaussian.factor.mT)
        assert torch.equal(gaussian.covariance, gaussian.covariance.mT)

    def test_precision_inverts_the_covariance(self, gaussian):
        close(gaussian.precision @ gaussian.covariance, identity_like(gaussian), scale=10)
        close(gaussian.precision, np.linalg.inv(gaussian.covariance.double().numpy()), scale=10)
        assert torch.equal(gaussian.precision, gaussian.precision.mT)

    def test_eigenstructure(self, gaussian):
        values, vectors = gaussian.eigenvalues, gaussian.eigenvectors
        close(values, np.linalg.eigvalsh(gaussian.covariance.double().numpy())[..., ::-1].copy(), 5)
        close(vectors.mT @ vectors, identity_like(gaussian))
        close(vectors * values.unsqueeze(-2) @ vectors.mT, gaussian.covariance, 5)
        close(gaussian.covariance @ vectors, vectors * values.unsqueeze(-2), 5)
        assert torch.equal(values, gaussian.spectrum.values)
        assert torch.equal(vectors, gaussian.spectrum.vectors)

    def test_eigenvectors_have_a_positive_largest_entry(self, gaussian):
        size = gaussian.eigenvectors.abs()
        largest = gaussian.eigenvectors.gather(-2, size.argmax(dim=-2, keepdim=True))
        assert bool((largest > 0).all())

    def test_of_equal_entries_the_first_is_positive(self):
        for dtype in DTYPES:
            tilted = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=dtype)
            vectors = Gaussian.from_covariance(torch.zeros(2, dtype=dtype), tilted).eigenvectors
            root = 0.5**0.5
            close(vectors, [[root, root], [-root, root]])

    def test_condition_number(self, gaussian):
        wanted = np.linalg.cond(gaussian.covariance.double().numpy())
        close(gaussian.condition_number, wanted, 20)
        assert gaussian.condition_number.shape == gaussian.batch_shape

    def test_small_eigenvalues_keep_their_digits(self):
        # Sigma has condition number 1e20, beyond float64: only the factor can tell these.
        factor = torch.diag(torch.tensor([1.0, 1e-5, 1e-10], dtype=torch.float64))
        gaussian = Gaussian(torch.zeros(3, dtype=torch.float64), factor)
        wanted = torch.tensor([1.0, 1e-10, 1e-20], dtype=torch.float64)
        torch.testing.assert_close(gaussian.eigenvalues, wanted, rtol=1e-12, atol=0)
        torch.testing.assert_close(gaussian.condition_number.item(), 1e20, rtol=1e-12, atol=0)
        at_one_deviation = gaussian.mahalanobis(factor)
        torch.testing.assert_close(at_one_deviation, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
class TestWhitening:
    def test_makes_the_covariance_the_identity(self, gaussian, kind):
        w = gaussian.whitening(kind)
        close(w @ gaussian.covariance @ w.mT, identity_like(gaussian), 10)
        close(w.mT @ w, gaussian.precision, 10)

    def test_is_a_rotation_of_any_other(self, gaussian, kind):
        rotation = gaussian.whitening(kind) @ gaussian.factor
        close(rotation @ rotation.mT, identity_like(gaussian), 10)

    def test_of_points_is_the_matrix_applied_to_the_centred_points(self, gaussian, kind):
        x = points(gaussian)
        centred = x - gaussian.mean.unsqueeze(-2)
        wanted = torch.einsum("...ij,...nj->...ni", gaussian.whitening(kind), centred)
        close(gaussian.whiten(x, kind), wanted, 10)

    def test_is_undone(self, gaussian, kind):
        x = points(gaussian)
        close(gaussian.unwhiten(gaussian.whiten(x, kind), kind), x, 10)
        close(gaussian.whiten(gaussian.unwhiten(x, kind), kind), x, 20)

    def test_length_of_a_whitened_point_is_its_distance(self, gaussian, kind):
        x = points(gaussian)
        close(gaussian.whiten(x, kind).square().sum(-1).sqrt(), gaussian.mahalanobis(x), 10)


class TestKindsOfWhitening:
    def test_pca_is_the_ground_truth_of_source_000(self, gaussian):
        values, vectors = gaussian.eigenvalues, gaussian.eigenvectors
        close(gaussian.whitening("pca"), torch.diag_embed(values.rsqrt()) @ vectors.mT, 5)
        assert torch.equal(gaussian.whitening(), gaussian.whitening("pca"))
        x = points(gaussian)
        assert torch.equal(gaussian.whiten(x), gaussian.whiten(x, "pca"))

    def test_zca_is_symmetric_and_positive_definite(self, gaussian):
        w = gaussian.whitening("zca")
        assert torch.equal(w, w.mT)
        assert bool((torch.linalg.eigvalsh(w) > 0).all())

    def test_cholesky_is_the_inverse_of_the_factor(self, gaussian):
        w = gaussian.whitening("cholesky")
        assert not bool(w.triu(1).any())
        close(w @ gaussian.factor, identity_like(gaussian), 5)

    def test_unknown_kind(self):
        gaussian = make((), 2)
        for call in (
            lambda: gaussian.whitening("qr"),
            lambda: gaussian.whiten(points(gaussian), "qr"),
            lambda: gaussian.unwhiten(points(gaussian), "qr"),
        ):
            with pytest.raises(InputError, match="'qr', wanted one of pca, zca, cholesky"):
                call()


class TestDistance:
    def test_agrees_with_scipy_point_by_point(self, gaussian):
        x = points(gaussian)
        actual = gaussian.mahalanobis(x)
        assert actual.shape == x.shape[:-1]
        for index in np.ndindex(*gaussian.batch_shape):
            inverse = np.linalg.inv(gaussian.covariance[index].double().numpy())
            for n in range(x.shape[-2]):
                wanted = scipy.spatial.distance.mahalanobis(
                    x[(*index, n)].double().numpy(), gaussian.mean[index].double().numpy(), inverse
                )
                close(actual[(*index, n)], wanted, 10)

    def test_squared(self, gaussian):
        x = points(gaussian)
        close(gaussian.mahalanobis(x, squared=True), gaussian.mahalanobis(x) ** 2, 10)

    def test_is_zero_at_the_mean_and_positive_elsewhere(self, gaussian):
        assert not bool(gaussian.mahalanobis(gaussian.mean.unsqueeze(-2)).any())
        assert bool((gaussian.mahalanobis(points(gaussian)) > 0).all())

    def test_is_one_a_deviation_along_every_axis(self, gaussian):
        axes = (gaussian.eigenvectors * gaussian.eigenvalues.sqrt().unsqueeze(-2)).mT
        x = gaussian.mean.unsqueeze(-2) + axes
        close(gaussian.mahalanobis(x), torch.ones(x.shape[:-1]), 10)

    def test_does_not_change_under_an_affine_map(self, gaussian):
        g = torch.Generator().manual_seed(5)
        dim = gaussian.dim
        a = torch.randn(dim, dim, generator=g, dtype=torch.float64) + 2 * torch.eye(dim)
        a = a.to(gaussian.dtype)
        shift = torch.arange(dim, dtype=gaussian.dtype)
        covariance = a @ gaussian.covariance @ a.mT
        moved = Gaussian.from_covariance(gaussian.mean @ a.mT + shift, covariance)
        x = points(gaussian)
        condition = float(torch.linalg.cond(a)) ** 2
        close(moved.mahalanobis(x @ a.mT + shift), gaussian.mahalanobis(x), 5 * condition)

    def test_log_density_agrees_with_scipy(self, gaussian):
        x = points(gaussian)
        actual = gaussian.log_density(x)
        for index in np.ndindex(*gaussian.batch_shape):
            wanted = scipy.stats.multivariate_normal(
                gaussian.mean[index].double().numpy(), gaussian.covariance[index].double().numpy()
            ).logpdf(x[index].double().numpy())
            close(actual[index], wanted, 20)

    def test_finite_far_away(self):
        gaussian = make((), 3)
        far = 1e100 * torch.eye(3, dtype=torch.float64)
        assert bool(torch.isfinite(gaussian.mahalanobis(far)).all())
        assert bool(torch.isfinite(gaussian.log_density(far)).all())

    def test_nan_stays_in_its_row(self):
        gaussian = make((), 2)
        x = points(gaussian)
        x[3, 1] = float("nan")
        assert torch.isnan(gaussian.mahalanobis(x)).tolist() == [n == 3 for n in range(7)]


class TestBatch:
    METHODS = (
        "mahalanobis",
        "log_density",
        "whiten",
        "unwhiten",
    )

    @pytest.mark.parametrize("method", METHODS)
    def test_batched_equals_looped(self, method):
        batch = make((2, 3), 4)
        x = points(batch)
        together = getattr(batch, method)(x)
        for index in np.ndindex(2, 3):
            close(together[index], getattr(batch[index], method)(x[index]))

    def test_shared_points_meet_every_gaussian(self):
        batch = make((3,), 4)
        x = points(batch[0])
        distances = batch.mahalanobis(x)
        assert distances.shape == (3, 7)
        for i in range(3):
            close(distances[i], batch[i].mahalanobis(x))

    def test_one_gaussian_meets_many_sets_of_points(self):
        single, x = make((), 4), points(make((5,), 4))
        distances = single.mahalanobis(x)
        assert distances.shape == (5, 7)
        for i in range(5):
            close(distances[i], single.mahalanobis(x[i]))

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

    def test_a_single_gaussian_is_no_sequence(self):
        single = make((), 2)
        with pytest.raises(IndexError, match="no batch to index"):
            single[0]
        with pytest.raises(TypeError, match="no length"):
            len(single)
        with pytest.raises(TypeError, match="no length"):
            list(single)
        with pytest.raises(IndexError):
            make((3,), 2)[3]
        with pytest.raises(IndexError):
            make((3,), 2)[0, 0]

    def test_stack_refuses_unlike_ones(self):
        with pytest.raises(InputError, match=r"dim=2.* and .*dim=3"):
            Gaussian.stack([make((), 2), make((), 3)])
        with pytest.raises(InputError, match=r"float32.* and .*float64"):
            Gaussian.stack([make((), 2), make((), 2, dtype=torch.float32)])
        with pytest.raises(InputError, match="at least 1"):
            Gaussian.stack([])


class TestSamples:
    def test_have_the_gaussians_moments(self):
        batch = make((2,), 3)
        n = 20_000
        x = batch.sample(n, torch.Generator().manual_seed(3))
        assert x.shape == (2, n, 3)
        white = batch.whiten(x)
        # Means of n standard normals scatter by n^-1/2, their covariance by about the same.
        assert white.mean(dim=-2).abs().max() < 5 * n**-0.5
        covariance = white.mT @ white / n
        assert (covariance - torch.eye(3)).abs().max() < 8 * n**-0.5
        uniform = scipy.stats.chi2(3).cdf(batch.mahalanobis(x, squared=True)[0].numpy())
        assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3

    def test_one_seed_gives_the_same_points_in_any_dtype(self):
        double = make((2,), 3)
        single = double.to(dtype=torch.float32)
        of_double = double.sample(5, torch.Generator().manual_seed(4))
        of_single = single.sample(5, torch.Generator().manual_seed(4))
        assert of_single.dtype == torch.float32
        torch.testing.assert_close(of_single.double(), of_double, rtol=1e-5, atol=1e-5)

    def test_are_mean_plus_factor_times_normal_draws(self):
        gaussian = make((), 3)
        z = torch.randn(5, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        x = gaussian.sample(5, torch.Generator().manual_seed(4))
        for n in range(5):
            close(x[n], gaussian.mean + gaussian.factor @ z[n])

    def test_follow_the_generator(self):
        gaussian, generator = make((), 3), torch.Generator().manual_seed(4)
        first, second = gaussian.sample(5, generator), gaussian.sample(5, generator)
        assert not torch.equal(first, second)
        assert torch.equal(first, gaussian.sample(5, torch.Generator().manual_seed(4)))
        state = torch.random.get_rng_state()
        gaussian.sample(5, generator)
        assert torch.equal(state, torch.random.get_rng_state())

    @pytest.mark.parametrize("n", [0, -3, 2.0, True])
    def test_ask_for_a_count(self, n):
        with pytest.raises(InputError, match=f"is {n!r}, wanted a whole number of at least 1"):
            make((), 2).sample(n)


class TestGradients:
    def test_of_everything_smooth(self):
        gaussian = make((2,), 3)
        x = points(gaussian, n=4).requires_grad_()
        mean = gaussian.mean.clone().requires_grad_()
        free = gaussian.factor.clone().requires_grad_()

        def through(name, *arguments):
            def function(x, mean, free):
                return getattr(Gaussian(mean, free.tril()), name)(x, *arguments)

            return function

        for name, *arguments in [
            ("mahalanobis",),
            ("mahalanobis", True),
            ("log_density",),
            ("whiten", "pca"),
            ("whiten", "zca"),
            ("whiten", "cholesky"),
            ("unwhiten", "zca"),
        ]:
            assert torch.autograd.gradcheck(through(name, *arguments), (x, mean, free))
        for name in ("covariance", "precision", "eigenvalues", "condition_number"):
            assert torch.autograd.gradcheck(
                lambda mean, free, name=name: getattr(Gaussian(mean, free.tril()), name),
                (mean, free),
            )

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_is_zero_at_distance_zero(self, dtype):
        mean = torch.tensor([1.0, 2.0], dtype=dtype, requires_grad=True)
        factor = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=dtype, requires_grad=True)
        x = torch.tensor([[1.0, 2.0]], dtype=dtype, requires_grad=True)
        Gaussian(mean, factor).mahalanobis(x).sum().backward()
        for leaf in (mean, factor, x):
            assert leaf.grad is not None
            assert not bool(leaf.grad.any())

    def test_one_point_at_the_mean_leaves_the_others_alone(self):
        gaussian = make((), 3)
        x = torch.cat([gaussian.mean[None], points(gaussian)]).requires_grad_()
        alone = x.detach()[1:].requires_grad_()
        gaussian.mahalanobis(x).sum().backward()
        gaussian.mahalanobis(alone).sum().backward()
        assert not bool(x.grad[0].any())
        close(x.grad[1:], alone.grad)


class TestValueObject:
    def test_repr_says_what_it_is(self):
        text = "Gaussian(dim=4, batch_shape=[3], dtype=float32, device=cpu)"
        assert repr(make((3,), 4, dtype=torch.float32)) == text

    def test_never_changes(self):
        mean, factor = torch.zeros(2), torch.eye(2)
        gaussian = Gaussian(mean, factor)
        mean += 1
        factor += 1
        assert gaussian.mean.equal(torch.zeros(2))
        assert gaussian.factor.equal(torch.eye(2))
        with pytest.raises(dataclasses.FrozenInstanceError):
            gaussian.mean = mean
        with pytest.raises(dataclasses.FrozenInstanceError):
            gaussian.factor = factor

    def test_results_do_not_depend_on_memory_layout(self):
        gaussian = make((), 10)
        by_columns = gaussian.factor.mT.contiguous().mT
        assert not by_columns.is_contiguous()
        other = Gaussian(gaussian.mean, by_columns)
        assert other.factor.is_contiguous()
        x = points(gaussian)
        assert other.covariance.equal(gaussian.covariance)
        assert other.mahalanobis(x).equal(gaussian.mahalanobis(x))

    def test_can_be_copied(self):
        gaussian = make((3,), 2)
        twin = copy.deepcopy(gaussian)
        assert twin.mean.equal(gaussian.mean)
        assert twin.factor.equal(gaussian.factor)

    def test_changes_dtype(self):
        gaussian = make((3,), 2)
        single = gaussian.to(dtype=torch.float32)
        assert (single.dtype, gaussian.dtype) == (torch.float32, torch.float64)
        assert single.factor.dtype == torch.float32
        assert gaussian.to().dtype == torch.float64
        assert gaussian.to(device="cpu").device == torch.device("cpu")
        assert single.to(dtype=torch.float64).mean.equal(gaussian.mean.float().double())

    @pytest.mark.parametrize(
        ("mean", "factor", "message"),
        [
            (torch.zeros(3), torch.eye(2), "mean has length 3 and factor is 2 x 2, wanted 3 x 3"),
            (torch.zeros(2), torch.zeros(2, 3), "factor is 2 x 3, wanted 2 x 2"),
            (torch.zeros(2), torch.ones(2), r"factor has shape \[2\], wanted \[..., D, D\]"),
            (torch.tensor(1.0), torch.eye(1), r"mean has shape \[\], wanted \[..., D\]"),
            (torch.zeros(0), torch.zeros(0, 0), "D at least 1"),
            (torch.zeros(2), torch.ones(2, 2), "above its diagonal"),
            (torch.zeros(2), torch.diag(torch.tensor([1.0, -2.0])), "-2 on its diagonal"),
            (torch.zeros(2), torch.diag(torch.tensor([1.0, 0.0])), "0 on its diagonal"),
            (torch.tensor([0.0, float("nan")]), torch.eye(2), r"mean has 1 value.*first at \[1\]"),
            (torch.zeros(2), torch.eye(2) * float("inf"), "factor has 4 value.*NaN or infinite"),
            (torch.zeros(2).double(), torch.eye(2), "mean is float64 and factor float32"),
            (torch.zeros(2).int(), torch.eye(2), "mean is int32, wanted float32 or float64"),
            (torch.zeros(2), torch.eye(2).half(), "factor is float16, wanted float32 or float64"),
            ([0.0, 0.0], torch.eye(2), "mean is a list, wanted a torch tensor"),
            (torch.zeros(3, 2), torch.eye(2).expand(4, 2, 2), r"\[3\] and factor \[4\]"),
        ],
    )
    def test_says_what_is_wrong_with_its_parts(self, mean, factor, message):
        with pytest.raises(InputError, match=message) as error:
            Gaussian(mean, factor)
        assert "\n" not in str(error.value)

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
    def test_says_what_is_wrong_with_points(self, method, x, message):
        with pytest.raises(InputError, match=message):
            getattr(make((3,), 2), method)(x)
