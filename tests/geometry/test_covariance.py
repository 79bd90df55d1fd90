"""Factors from data and from covariance matrices: values, remedies and refusals."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import sklearn.covariance
import torch
from geometry_cases import NAN, normal, refused
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mahalens.errors import IllConditionedWarning, InputError, SingularCovarianceError
from mahalens.geometry import Gaussian, ellipsoids, ledoit_wolf_shrinkage
from mahalens.geometry.covariance import lower_factor

RTOL = {torch.float32: 2e-5, torch.float64: 1e-12}
OPTIONS = [{}, {"ridge": 0.1}, {"shrinkage": 0.3}, {"shrinkage": "ledoit-wolf"}]
ILL_CONDITIONED_TOO = pytest.mark.filterwarnings("ignore::mahalens.errors.IllConditionedWarning")


def mixed(*shape, seed=0, dtype=torch.float64):
    """Correlated samples with unequal variances, away from 0."""
    a = normal(shape[-1], shape[-1], seed=seed + 100) + torch.eye(shape[-1])
    return (normal(*shape, seed=seed) @ a + torch.arange(shape[-1])).to(dtype)


def close(actual, wanted, scale=1.0):
    wanted = torch.as_tensor(wanted, dtype=actual.dtype)
    tolerance = RTOL[actual.dtype] * scale
    atol = tolerance * float(wanted.abs().max())
    torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=atol)


def nearly_singular(noise, dtype):
    x = mixed(200, 3, dtype=dtype)
    x[:, 2] = x[:, 1] + noise * normal(200, seed=9, dtype=dtype)
    return x - x.mean(dim=0)


class TestFromData:
    @pytest.mark.parametrize(("n", "dim"), [(2, 1), (4, 3), (50, 6), (1000, 10)])
    def test_agrees_with_numpy(self, dtype, n, dim):
        x = mixed(n, dim, dtype=dtype)
        gaussian = Gaussian.from_data(x)
        assert gaussian.dtype == dtype
        close(gaussian.mean, x.double().numpy().mean(axis=0), 10)
        close(gaussian.covariance, np.cov(x.double().numpy(), rowvar=False).reshape(dim, dim), 10)

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_batched_equals_looped(self, dtype, options):
        x = mixed(2, 3, 20, 4, dtype=dtype)
        batch = Gaussian.from_data(x, **options)
        assert batch.batch_shape == (2, 3)
        for index in np.ndindex(2, 3):
            one = Gaussian.from_data(x[index], **options)
            close(batch[index].mean, one.mean)
            close(batch[index].factor, one.factor, 10)

    @pytest.mark.parametrize(("n", "dim"), [(40, 5), (5, 5), (4, 7)])
    @pytest.mark.parametrize(("ridge", "shrinkage"), [(1e-2, 0.0), (0.0, 0.3), (0.5, 0.25), (0, 1)])
    def test_ridge_and_shrinkage_are_relative_to_the_mean_variance(
        self, dtype, n, dim, ridge, shrinkage
    ):
        x = mixed(n, dim, dtype=dtype)
        s = np.cov(x.double().numpy(), rowvar=False)
        m = np.trace(s) / dim
        wanted = (1 - shrinkage) * s + (shrinkage + ridge) * m * np.eye(dim)
        close(Gaussian.from_data(x, ridge=ridge, shrinkage=shrinkage).covariance, wanted, 20)

    @pytest.mark.parametrize(("n", "dim"), [(3, 3), (10, 10), (15, 40), (200, 5), (30, 1)])
    def test_ledoit_wolf_agrees_with_scikit_learn(self, dtype, n, dim):
        x = mixed(n, dim, seed=n, dtype=dtype)
        covariance, weight = sklearn.covariance.ledoit_wolf(x.double().numpy())
        close(ledoit_wolf_shrinkage(x), weight, 20)
        close(ledoit_wolf_shrinkage(x.expand(2, n, dim)), [weight] * 2, 20)
        fitted = Gaussian.from_data(x, shrinkage="ledoit-wolf").covariance
        close(fitted, covariance * n / (n - 1), 40)  # scikit-learn divides by N, not N - 1

    @pytest.mark.parametrize("units", [(1e-9, 1e-3, 1e3, 1e9), (1e-30, 1.0, 1.0, 1e30)])
    def test_does_not_depend_on_units_or_on_where_zero_is(self, dtype, units):
        x, units = mixed(50, 4, dtype=dtype), torch.tensor(units, dtype=dtype)
        plain = Gaussian.from_data(x)
        close(Gaussian.from_data(x * units).mahalanobis(x * units), plain.mahalanobis(x), 10)
        # Adding the shift already costs the data shift / deviation in digits.
        close(Gaussian.from_data(x + 1000).covariance, plain.covariance, 1000)


SINGULAR = {  # and how many directions are left
    "3 samples": (lambda x: x[:3], 2),
    "as many samples as inputs": (lambda x: x[:5], 4),
    "2 samples": (lambda x: x[:2], 1),
    "repeated inputs": (lambda x: torch.cat([x, x[:, :2]], dim=1), 5),
    "a sum of inputs": (lambda x: torch.cat([x, x.sum(dim=1, keepdim=True)], dim=1), 5),
    "a rounded sum": (lambda x: torch.cat([x + 100, 300 + x[:, :1] + x[:, 1:2]], dim=1), 5),
    "constants": (lambda x: torch.cat([x, torch.full_like(x[:, :2], 0.1)], dim=1), 5),
    "a large constant": (lambda x: torch.cat([x, torch.full_like(x[:, :1], 1e7 / 3)], dim=1), 5),
}


class TestSingularData:
    @ILL_CONDITIONED_TOO
    @pytest.mark.parametrize("case", SINGULAR)
    def test_names_sizes_and_remedy(self, dtype, case):
        make, rank = SINGULAR[case]
        x = make(mixed(60, 5, dtype=dtype))
        n, dim = x.shape
        remedy = "pass ridge=1e-6$" if n == 2 else 'pass ridge=1e-6 or shrinkage="ledoit-wolf"$'
        refused(
            lambda: Gaussian.from_data(x),
            f"N={n} samples with D={dim} inputs .*: {rank} of {dim} directions .*; {remedy}",
            SingularCovarianceError,
        )
        for options in ({"ridge": 1e-6}, {"shrinkage": "ledoit-wolf"})[: 1 if n == 2 else 2]:
            distances = Gaussian.from_data(x, **options).mahalanobis(x)
            assert bool(torch.isfinite(distances).all())

    @pytest.mark.parametrize(
        ("x", "options", "message"),
        [
            (torch.full((60, 5), 0.1), {}, "0 of 5 .* give samples that differ"),
            (torch.full((60, 5), 0.1), {"ridge": 1e-6}, "0 of 5 .* give samples that differ"),
            (mixed(3, 5), {"ridge": 1e-40}, r"ridge=1e-40 .*pass ridge=1e-06 or more"),
            (mixed(2, 5), {"shrinkage": "ledoit-wolf"}, "'ledoit-wolf' adds too little"),
        ],
    )
    def test_where_nothing_or_too_little_was_added(self, x, options, message):
        refused(lambda: Gaussian.from_data(x, **options), message, SingularCovarianceError)

    def test_one_constant_input_does_not_hide_the_spread_of_others(self):
        # Column 0 is nothing but rounding noise; the narrow but real column 1 must still count.
        x = mixed(60, 3, dtype=torch.float32)
        x[:, 0] = 1e6
        x[::2, 0] = torch.nextafter(torch.tensor(1e6), torch.tensor(2e6))
        x[:, 2] = x[:, 1] + 0.01 * normal(60, seed=3, dtype=torch.float32)
        refused(lambda: Gaussian.from_data(x), "2 of 3 directions", SingularCovarianceError)

    def test_names_the_entry_of_the_batch(self):
        x = mixed(2, 3, 20, 4)
        x[1, 2, :, 3] = x[1, 2, :, 0]
        message = r"batch entry \[1, 2\].*3 of 4"
        refused(lambda: Gaussian.from_data(x), message, SingularCovarianceError)

    def test_the_condition_number_is_not_squared(self):
        # Deviations 1 and 1e-9: forming the covariance would lose the small one altogether.
        rotation = torch.linalg.qr(normal(2, 2)).Q
        white = normal(500, 2, seed=1)
        white = Gaussian.from_data(white).whiten(white)
        x = white * torch.tensor([1.0, 1e-9], dtype=torch.float64) @ rotation.mT
        fitted = Gaussian.from_data(x)
        wanted = torch.tensor([1.0, 1e-18], dtype=torch.float64)
        torch.testing.assert_close(fitted.eigenvalues, wanted, rtol=1e-5, atol=0)
        torch.testing.assert_close(fitted.mahalanobis(x), white.norm(dim=-1), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("shift", [0.0, 30.0])
    def test_the_quick_check_never_hides_a_verdict(self, dtype, shift):
        """Good is what loses less than 3 digits of the smallest spread, by the slow formulas."""
        eps, verdicts = torch.finfo(dtype).eps, []
        for exponent in range(17):
            x = mixed(40, 3, dtype=dtype) + shift
            x[:, 2] = x[:, 1] + 10.0**-exponent * normal(40, seed=9, dtype=dtype)
            mean, deviations = x.mean(dim=0), x.std(dim=0)
            unit = (x - mean) / deviations / 39**0.5
            _, spread, directions = torch.linalg.svd(unit.double(), full_matrices=False)
            offset = torch.hypot(mean / deviations, torch.ones(3)).double()
            noise = (directions * offset).norm(dim=1).clamp(min=float(spread[0]))
            covariance = (x - mean).T.cov()
            values = torch.linalg.eigvalsh(covariance / deviations / deviations[:, None])
            for fit, loss in (
                (lambda x=x: Gaussian.from_data(x), eps * float((noise / spread).max())),
                (
                    lambda x=x, c=covariance: Gaussian.from_covariance(x[0], c),
                    eps * float(values[-1] / values[0].clamp(min=eps)),
                ),
            ):
                try:
                    fit()
                    verdicts.append("good")
                except (IllConditionedWarning, SingularCovarianceError) as error:
                    verdicts.append(type(error).__name__)
                assert (verdicts[-1] == "good") == (loss <= 1e-3), (exponent, loss)
        assert set(verdicts) == {"good", "IllConditionedWarning", "SingularCovarianceError"}

    @ILL_CONDITIONED_TOO
    @settings(deadline=None, max_examples=60)
    @given(
        arrays.arrays(
            np.float64,
            st.tuples(st.integers(2, 8), st.integers(1, 4)),
            elements=st.floats(-1e3, 1e3, allow_subnormal=False),
        )
    )
    def test_any_samples_give_a_gaussian_or_a_reason(self, x):
        try:
            fitted = Gaussian.from_data(torch.from_numpy(x))
        except SingularCovarianceError:
            return
        assert len(x) > x.shape[1]
        wanted = np.cov(x, rowvar=False).reshape(fitted.covariance.shape)
        np.testing.assert_allclose(
            fitted.covariance.numpy(), wanted, rtol=1e-8, atol=1e-12 * np.abs(wanted).max()
        )
        # The squared distances of the samples themselves add up to (N - 1) D.
        total = fitted.mahalanobis(torch.from_numpy(x), squared=True).sum().item()
        assert total == pytest.approx((len(x) - 1) * x.shape[1], rel=0.01)


class TestWarnings:
    @pytest.mark.parametrize(
        ("dtype", "noise", "fit"),
        [
            (torch.float32, 3e-5, Gaussian.from_data),
            (torch.float64, 1e-13, Gaussian.from_data),
            # which calls it from some frames deeper
            (torch.float64, 1e-13, lambda x: ellipsoids.from_data(x, torch.zeros(200).int())),
        ],
        ids=["float32", "float64", "ellipsoids"],
    )
    def test_name_the_line_of_the_user(self, dtype, noise, fit):
        x = nearly_singular(noise, dtype)
        with pytest.warns(IllConditionedWarning, match=r"keep about [0-2]\.\d digits") as caught:
            fitted = fit(x)
        assert [warning.filename for warning in caught] == [__file__]
        distances = fitted.mahalanobis(x) if isinstance(fitted, Gaussian) else fitted.distances(x)
        assert bool(torch.isfinite(distances).all())

    def test_of_a_covariance_name_the_dtype(self):
        covariance = torch.tensor([[1.0, 1.0 - 1e-4], [1.0 - 1e-4, 1.0]])
        with pytest.warns(IllConditionedWarning, match=r"about 2\.\d digits.*float64") as caught:
            Gaussian.from_covariance(torch.zeros(2), covariance)
        assert caught[0].filename == __file__
        Gaussian.from_covariance(torch.zeros(2).double(), covariance.double())  # without a warning

    def test_are_not_given_for_unlike_variances(self):
        covariance = torch.diag(torch.tensor([1e-12, 1.0, 1e12]))
        gaussian = Gaussian.from_covariance(torch.zeros(3), covariance)
        deviations = torch.diag(torch.tensor([1e-6, 1.0, 1e6]))
        torch.testing.assert_close(gaussian.mahalanobis(deviations), torch.ones(3))


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.zeros(1, 3), {}, "x has 1 sample of 3 inputs, wanted at least 2"),
        (torch.zeros(3), {}, r"x has shape \[3\], wanted \[..., N, D\]"),
        (torch.zeros(3, 0), {}, "N and D at least 1"),
        (torch.zeros(4, 2).long(), {}, "x is int64, wanted float32 or float64"),
        ([[0.0, 1.0], [1.0, 0.0]], {}, "x is a list, wanted a torch tensor or a NumPy array"),
        (torch.eye(4) / 0, {}, r"x has 16 value\(s\) of 16 that are NaN or infinite"),
        (torch.eye(4), {"ridge": -1.0}, "ridge is -1.0, wanted a finite number of at least 0"),
        (torch.eye(4), {"ridge": NAN}, "ridge is nan"),
        (torch.eye(4), {"shrinkage": 1.5}, "shrinkage is 1.5, wanted 0 to 1"),
        (torch.eye(4), {"shrinkage": NAN}, "shrinkage is nan, wanted 0 to 1"),
        (torch.eye(4), {"shrinkage": "oas"}, "shrinkage is 'oas', wanted \"ledoit-wolf\""),
    ],
)
def test_refuses_data(x, options, message):
    refused(lambda: Gaussian.from_data(x, **options), message)


@pytest.mark.parametrize("options", OPTIONS[:2] + OPTIONS[3:], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_squares_that_the_dtype_cannot_hold(options, scale):
    x = normal(30, 4, dtype=torch.float32)
    plain, scaled = Gaussian.from_data(x, **options), Gaussian.from_data(x * scale, **options)
    close(scaled.factor.double() / scale, plain.factor.double(), 1e6)
    close(scaled.mahalanobis(x * scale), plain.mahalanobis(x), 10)


class TestFromCovariance:
    @pytest.mark.parametrize("shape", [(1, 1), (6, 6), (3, 4, 4), (2, 3, 2, 2)], ids=str)
    def test_gives_the_covariance_back(self, dtype, shape):
        a = normal(*shape, dtype=dtype)
        covariance = a @ a.mT + 0.1 * torch.eye(shape[-1], dtype=dtype)
        gaussian = Gaussian.from_covariance(torch.zeros(shape[:-1], dtype=dtype), covariance)
        close(gaussian.covariance, covariance)
        close(gaussian.factor, np.linalg.cholesky(covariance.double().numpy()), 50)

    def test_averages_rounding_away(self):
        covariance = torch.tensor([[1.0, 0.5 + 1e-12], [0.5 - 1e-12, 1.0]], dtype=torch.float64)
        gaussian = Gaussian.from_covariance(torch.zeros(2, dtype=torch.float64), covariance)
        assert gaussian.covariance[0, 1].item() == pytest.approx(0.5, abs=1e-15)

    @pytest.mark.parametrize(
        ("covariance", "message"),
        [
            ([[1.0, 0.5], [0.4, 1.0]], r"\[2, 2\] is not symmetric: entry \[0, 1\] is 0.5 but"),
            ([[1.0, 2.0], [2.0, 1.0]], "not positive definite: smallest eigenvalue -1, largest 3"),
            ([[-1.0, 0.0], [0.0, 1.0]], "not positive definite: smallest eigenvalue -1"),
            ([[0.0, 1.0], [1.0, 1.0]], "not positive definite: smallest eigenvalue -0.618"),
            ([[1.0, 0.0], [0.0, -1e-30]], "not positive definite: smallest eigenvalue -1e-30"),
            ([[1.0, NAN], [0.0, 1.0]], r"covariance has 1 value.*first at \[0, 1\]"),
            ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], "mean has length 2 and covariance is 2 x 3"),
            ([[1.0]], "mean has length 2 and covariance is 1 x 1, wanted 2 x 2"),
            # 1e-9 is far off between two deviations of 1e-4, and nothing beside a variance of 1.
            ([[1e-8, 1e-9], [0.0, 1e-8]], r"\[0, 1\] is 1e-09 but \[1, 0\] is 0"),
        ],
        ids=str,
    )
    def test_says_why_not(self, covariance, message):
        covariance = torch.tensor(covariance, dtype=torch.float64)
        mean = torch.zeros(2, dtype=torch.float64)
        error = refused(lambda: Gaussian.from_covariance(mean, covariance), message)
        assert not isinstance(error, SingularCovarianceError)

    @pytest.mark.parametrize("dim", [2, 5, 40])
    def test_singular(self, dtype, dim):
        a = normal(dim, dim - 1, dtype=dtype)
        mean = torch.zeros(dim, dtype=dtype)
        for matrix, count in ((a @ a.mT, dim - 1), (torch.zeros_like(a @ a.mT), 0)):
            refused(
                lambda matrix=matrix: Gaussian.from_covariance(mean, matrix),
                f"{count} of {dim} directions .*smallest eigenvalue",
                SingularCovarianceError,
            )

    def test_names_the_entry_of_the_batch(self):
        def fit(entry):
            covariance = torch.eye(2).repeat(3, 1, 1)
            covariance[1] = torch.tensor(entry)
            return lambda: Gaussian.from_covariance(torch.zeros(2), covariance)

        flat, skew = [[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.5], [0.25, 1.0]]
        refused(fit(flat), r"batch entry \[1\].*1 of 2", SingularCovarianceError)
        refused(fit(skew), r"not symmetric \(batch entry \[1\]\)")

    @ILL_CONDITIONED_TOO
    @settings(deadline=None, max_examples=60)
    @given(arrays.arrays(np.float64, (3, 3), elements=st.floats(-10, 10, allow_subnormal=False)))
    @example(np.array([[2.3e-308, 8, 0], [0, 2.3e-308, 0], [0, 0, 2.3e-308]]))
    def test_any_symmetric_matrix_gives_a_gaussian_or_a_reason(self, a):
        symmetric = (a + a.T) / 2
        try:
            gaussian = Gaussian.from_covariance(torch.zeros(3).double(), torch.tensor(symmetric))
        except InputError:
            # Refused: indeed no better than the rounding of its own eigenvalues.
            scale = np.sqrt(np.abs(np.diag(symmetric)))
            scale[scale == 0] = 1
            with np.errstate(over="ignore"):
                correlations = symmetric / scale / scale[:, None]
            if np.isinf(correlations).any():
                return  # far above 1, which no covariance has
            values = np.linalg.eigvalsh(correlations)
            assert values[0] < 1e-13 * max(1.0, values[-1])
            return
        np.testing.assert_allclose(
            gaussian.covariance.numpy(), symmetric, rtol=1e-12, atol=1e-13 * np.abs(a).max()
        )


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *(((2, 5, 2), options) for options in [*OPTIONS, {"shrinkage": 1.0}]),
        ((3, 4), {"shrinkage": 0.2}),
        ((5, 1), {"shrinkage": "ledoit-wolf"}),
    ],
    ids=str,
)
def test_gradients_of_the_estimates(shape, options):
    def fit(x):
        fitted = Gaussian.from_data(x, **options)
        return fitted.mean, fitted.factor

    assert torch.autograd.gradcheck(fit, (mixed(*shape).requires_grad_(),))


def test_gradients_of_the_cholesky_factor():
    def factor(a):
        return Gaussian.from_covariance(torch.zeros(3).double(), a @ a.mT + torch.eye(3)).factor

    assert torch.autograd.gradcheck(factor, (normal(3, 3).requires_grad_(),))


@pytest.mark.parametrize("shape", [(3, 3), (8, 3), (2, 5, 4)], ids=str)
def test_lower_factor(dtype, shape):
    rows = normal(*shape, dtype=dtype)
    factor = lower_factor(rows)
    assert not bool(torch.signbit(factor.triu(1)).any())
    assert not bool(factor.triu(1).any())
    assert bool((factor.diagonal(dim1=-2, dim2=-1) > 0).all())
    close(factor @ factor.mT, rows.mT @ rows)
