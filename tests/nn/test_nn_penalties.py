"""Penalties: their formulas in loops, where they are 0, and what they do to a layer in training."""

import itertools
import math
import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import HALVES, METRICS, draw, refuses
from torch import nn

from mahalens.geometry import Gaussian
from mahalens.nn import DistanceHead, compactness_penalty, orthogonality_penalty, volume_penalty

EXAMPLE = Path(__file__).parents[2] / "examples" / "orthogonality.py"


def covariance_of(dim, seed=5):
    root = draw((dim, dim), seed)
    return root @ root.T + 0.1 * torch.eye(dim, dtype=torch.float64)


def rotation(dim, seed=6):
    return torch.linalg.qr(draw((dim, dim), seed)).Q


class TestOrthogonality:
    @pytest.mark.parametrize("metric", [False, True])
    @pytest.mark.parametrize("units", [1, 2, 3, 7])
    def test_is_the_mean_squared_cosine_of_pairs(self, units, metric, dtype):
        weight = draw((units, 4), 0, dtype)
        inner = covariance_of(4).to(dtype) if metric else torch.eye(4, dtype=dtype)
        pairs = list(itertools.combinations(range(units), 2))
        total = 0.0
        for i, j in pairs:
            a, b = weight[i].double(), weight[j].double()
            m = inner.double()
            total += float((a @ m @ b) ** 2 / ((a @ m @ a) * (b @ m @ b)))
        found = orthogonality_penalty(weight, inner if metric else None)
        assert found.dtype == dtype
        assert float(found) == pytest.approx(total / max(1, len(pairs)), rel=1e-5, abs=1e-7)

    def test_lengths_do_not_count(self):
        weight = draw((4, 5), 0)
        scaled = weight * torch.tensor([[1e-6], [-3.0], [1e6], [2.0]], dtype=torch.float64)
        torch.testing.assert_close(orthogonality_penalty(scaled), orthogonality_penalty(weight))

    @settings(deadline=None, max_examples=25)
    @given(st.integers(1, 6), st.integers(1, 14), st.integers(0, 100))
    def test_it_is_between_its_bounds(self, inputs, units, seed):
        found = float(orthogonality_penalty(draw((units, inputs), seed)))
        least = max(0.0, (units - inputs) / (inputs * (units - 1))) if units > 1 else 0.0
        assert least - 1e-12 <= found <= 1 + 1e-12

    def test_mirrored_pairs_of_orthogonal_rows_are_at_the_bound(self):
        rows = rotation(4)
        found = float(orthogonality_penalty(torch.cat([rows, -rows])))
        assert found == pytest.approx((8 - 4) / (4 * 7))

    def test_which_whitenings_have_none(self):
        """All are uncorrelated; only the one by principal axes has rows at right angles."""
        gaussian = Gaussian.from_covariance(torch.zeros(4).double(), covariance_of(4))
        axes = gaussian.whitening("pca")
        turned = rotation(4) @ axes
        sigma = gaussian.covariance
        assert float(orthogonality_penalty(axes)) < 1e-24
        assert float(orthogonality_penalty(turned)) > 0.05
        for weight in (axes, turned, gaussian.whitening("zca"), gaussian.whitening("cholesky")):
            assert float(orthogonality_penalty(weight, sigma)) < 1e-24

    def test_filters_of_a_convolution(self):
        weight = draw((6, 2, 3, 3), 0)
        flat = orthogonality_penalty(weight.reshape(6, 18))
        torch.testing.assert_close(orthogonality_penalty(weight), flat)

    @pytest.mark.parametrize("metric", [False, True])
    def test_gradcheck(self, metric):
        weight = draw((4, 3), 0).requires_grad_()
        inner = covariance_of(3).requires_grad_() if metric else None
        arguments = (weight, inner) if metric else (weight,)
        assert torch.autograd.gradcheck(orthogonality_penalty, arguments)
        assert torch.autograd.gradgradcheck(orthogonality_penalty, arguments)

    def test_a_row_of_zeros(self, dtype):
        weight = draw((3, 4), 0, dtype)
        weight[1] = 0
        weight.requires_grad_()
        found = orthogonality_penalty(weight)
        found.backward()
        pair = orthogonality_penalty(weight.detach()[[0, 2]])
        torch.testing.assert_close(found.detach(), pair / 3)
        assert bool(weight.grad.isfinite().all())


class TestEigenvectorsAreReadOffTheRows:
    """The Gaussian study's problem, trained from the same starts."""

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 1, 4])
    def test_with_the_penalty_and_only_with_it(self, seed):
        train = runpy.run_path(str(EXAMPLE), run_name="example")["train"]
        without, with_it = train(4, seed, 0.0, 500), train(4, seed, 1.0, 500)
        for run in (without, with_it):
            assert run["mse"] < 1e-10
            assert run["gram_precision_error"] < 1e-4  # W^T W is the precision in both
        assert with_it["least_cosine"] > 0.999
        assert with_it["row_eigenvalue_error"] < 1e-3
        assert without["row_cosine"] < 0.95
        assert without["row_eigenvalue_error"] > 0.05


def naive_volume(z, spread=1.0, reach=None, ridge=1e-3):
    units = z.shape[1]
    correlation = torch.corrcoef(z.T).reshape(units, units)
    total = -torch.logdet((1 - ridge) * correlation + ridge * torch.eye(units).to(z)) / units
    for k in range(units):
        deviation = z[:, k].std(correction=0)
        total = total + max(0.0, 1 - deviation / spread) ** 2 / units
        if reach is not None:
            total = total + max(0.0, z[:, k].mean().abs() / deviation - reach) ** 2 / units
    return total


class TestVolume:
    @pytest.mark.parametrize("options", [{}, {"spread": 3.0}, {"reach": 0.1, "ridge": 0.1}])
    @pytest.mark.parametrize("units", [1, 3, 5])
    def test_is_the_formula(self, units, options, dtype):
        z = draw((20, units), 0, dtype) * 0.8 + 0.3
        found = volume_penalty(z, **options)
        assert found.dtype == dtype
        torch.testing.assert_close(found, naive_volume(z, **options), rtol=1e-4, atol=1e-6)

    def test_is_zero_for_a_whitened_layer(self):
        x = draw((200, 4), 0) @ covariance_of(4) + 3
        centred = x - x.mean(0)
        whitening = Gaussian.from_covariance(
            torch.zeros(4).double(), centred.T @ centred / 200
        ).whitening("pca")
        z = centred @ (rotation(4) @ whitening).T
        assert abs(float(volume_penalty(z, reach=0.0))) < 1e-12
        assert float(volume_penalty(z * 10, reach=0.0)) == pytest.approx(0, abs=1e-12)
        assert float(volume_penalty(z / 2)) == pytest.approx(0.25)

    def test_leading_axes_are_samples(self):
        z = draw((4, 5, 3), 0)
        torch.testing.assert_close(volume_penalty(z), volume_penalty(z.reshape(20, 3)))

    def test_units_that_repeat_cost_most(self):
        z = draw((50, 2), 0)
        first, other = z[:, :1], z[:, 1:]
        costs = [
            float(volume_penalty(torch.cat([first, first + e * other], 1)))
            for e in (1.0, 0.3, 0.1, 0.0)
        ]
        assert costs == sorted(costs)
        assert math.isfinite(costs[-1])

    @pytest.mark.parametrize("reach", [None, 0.1])
    def test_gradcheck(self, reach):
        z = (draw((8, 3), 0) * 0.7 + 0.4).requires_grad_()
        function = lambda z: volume_penalty(z, reach=reach)  # noqa: E731
        assert torch.autograd.gradcheck(function, (z,))
        assert torch.autograd.gradgradcheck(function, (z,))

    @pytest.mark.parametrize("reach", [None, 0.1])
    def test_a_constant_unit(self, reach, dtype):
        z = draw((8, 3), 0, dtype)
        z[:, 1] = 2.0
        z.requires_grad_()
        found = volume_penalty(z, reach=reach)
        found.backward()
        assert bool(found.isfinite())
        assert bool(z.grad.isfinite().all())
        assert float(found.detach()) >= 1 / 3  # it has no spread at all
        elsewhere = z.detach().clone()
        elsewhere[:, 1] = -50.0  # nor any distance in spreads
        torch.testing.assert_close(volume_penalty(elsewhere, reach=reach), found.detach())

    def trained(self, weight, bias, penalty, steps=300):
        layer = nn.Linear(3, len(weight), dtype=torch.float64)
        layer.load_state_dict({"weight": weight, "bias": bias})
        x = draw((200, 3), 3)
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(steps):
            optimiser.zero_grad()
            penalty(layer(x)).backward()
            optimiser.step()
        return layer(x).detach()

    def test_it_parts_units_that_are_nearly_the_same(self):
        weight = draw((1, 3), 0) + 1e-3 * draw((3, 3), 1)
        bias = torch.zeros(3, dtype=torch.float64)
        before = torch.corrcoef(self.trained(weight, bias, volume_penalty, 1).T)
        after = torch.corrcoef(self.trained(weight, bias, volume_penalty).T)
        off = ~torch.eye(3, dtype=torch.bool)
        assert before[off].abs().min() > 0.9
        assert after[off].abs().max() < 0.1

    def test_reach_brings_back_a_dead_unit_and_nothing_else_does(self):
        """Its hyperplane is 10 spreads from the data: a ReLU there is off for all samples."""
        weight = torch.eye(3, dtype=torch.float64)
        bias = torch.tensor([0.0, 0.0, -10.0], dtype=torch.float64)
        dead = self.trained(weight, bias, lambda z: volume_penalty(z.relu()))
        assert not bool((dead[:, 2] > 0).any())
        alive = self.trained(weight, bias, lambda z: volume_penalty(z, reach=1.0))
        assert 0.05 < (alive[:, 2] > 0).double().mean() < 0.95


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("penalty", [orthogonality_penalty, volume_penalty])
def test_half_precision_is_computed_in_float32(half, penalty):
    """Products of 64 numbers of the size of 100 are beyond float16."""
    given = 100 * draw((30, 8), 0, torch.float32) + 30
    weight = given.to(half).requires_grad_()
    found = penalty(weight)
    assert found.dtype == half
    torch.testing.assert_close(found.float(), penalty(weight.float()), rtol=0.01, atol=0.01)
    found.backward()
    assert bool(weight.grad.isfinite().all())
    exact = given[:8].clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = penalty(exact)
    assert torch.equal(inside, penalty(exact))


class TestCompactness:
    @pytest.mark.parametrize("choice", METRICS, ids=lambda c: c["metric"])
    def test_is_the_likelihood_of_the_own_class(self, choice, dtype):
        x, y = draw((30, 4), 0, dtype), torch.arange(30) % 3
        head = DistanceHead(4, 3, dtype=dtype, logits="density", **choice).fit_prototypes(x, y)
        want = -head(x)[torch.arange(30), y].mean()
        torch.testing.assert_close(compactness_penalty(head, x, y), want)

    @pytest.mark.parametrize("choice", METRICS, ids=lambda c: c["metric"])
    def test_gradcheck(self, choice):
        head = DistanceHead(4, 3, dtype=torch.float64, **choice)
        y = torch.arange(6) % 3
        x = draw((6, 4), 0).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: compactness_penalty(head, x, y), (x,))
        compactness_penalty(head, x, y).backward()
        assert all(bool((p.grad != 0).any()) for p in head.parameters() if p.requires_grad)

    def test_no_ellipsoid_is_better_than_that_of_the_data(self):
        """The closed form is where it has no slope, but for N - 1 in the place of N."""
        x, y = draw((3000, 4), 0) * torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.arange(3000) % 3
        head = DistanceHead(4, 3, dtype=torch.float64, metric="low-rank", rank=4)
        head.fit_prototypes(x, y)
        compactness_penalty(head, x, y).backward()
        assert all(p.grad.abs().max() < 2e-3 for p in head.parameters())


Z, X, HEAD = draw((8, 3)), torch.zeros(6, 4), DistanceHead(4, 3)
LABELS = torch.zeros(6, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: orthogonality_penalty(Z[0]), r".* shape \(3,\); give the weight of a layer"),
        (lambda: orthogonality_penalty(Z, torch.eye(2)), r"cov.* shape \(2, 2\) for rows of 3 in"),
        (lambda: volume_penalty(Z, spread=0.0), "spread is 0.0, wanted a number above 0$"),
        (lambda: volume_penalty(Z, spread=math.nan), "spread is nan, wanted a number above 0$"),
        (lambda: volume_penalty(Z, reach=-1.0), "reach is -1.0, wanted a number of at least 0, or"),
        (lambda: volume_penalty(Z, ridge=0.0), "ridge is 0.0, wanted a number between 0 and 1$"),
        (lambda: volume_penalty(Z, ridge=1.0), "ridge is 1.0, wanted a number between 0 and 1$"),
        *(
            (lambda s=shape: volume_penalty(torch.zeros(s)), "volume_penalty was given .* of shape")
            for shape in ((3,), (1, 3), (0, 3), (4, 0))
        ),
        *(
            (lambda p=penalty, v=value: p(v), "\\w+_penalty was given .*; give a tensor of floats")
            for penalty in (volume_penalty, orthogonality_penalty)
            for value in ([[1.0, 2.0]], torch.ones(3, 2).long())
        ),
        *(
            (lambda y=y: compactness_penalty(HEAD, X, y), "labels have shape .*; give one whole")
            for y in (LABELS[:5], LABELS.float(), LABELS[:, None])
        ),
        (lambda: compactness_penalty(HEAD, X, [0] * 6), "labels have type list for features of"),
        (lambda: compactness_penalty(HEAD, X, LABELS + 3), "a label is not one of .* from 0 to 2$"),
        (lambda: compactness_penalty(HEAD, X, LABELS - 1), "a label is not one of .* from 0 to 2$"),
        (lambda: compactness_penalty(HEAD, X[:0], LABELS[:0]), "compactness_.* was given no s"),
        (lambda: compactness_penalty(nn.Linear(4, 3), X, LABELS), ".* a Linear; give a Distance"),
    ],
)
def test_refusals(call, message):
    refuses(message, call)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [orthogonality_penalty, volume_penalty])
def test_compiled_by_torch(penalty):
    compiled = torch.compile(penalty, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(Z), penalty(Z))


def test_arrays_are_accepted():
    covariance = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    wanted = orthogonality_penalty(Z, covariance)
    assert torch.equal(orthogonality_penalty(Z, covariance.double().numpy()), wanted)
    arrays = X.numpy(), LABELS.numpy()
    assert torch.equal(compactness_penalty(HEAD, *arrays), compactness_penalty(HEAD, X, LABELS))


def test_compactness_is_measured_where_the_head_measures():
    x = draw((40, 4), 0, torch.float64)
    y = torch.arange(40) % 2
    head = DistanceHead(4, 2, normalise="unit", dtype=torch.float64).fit_prototypes(x, y)
    penalty = compactness_penalty(head, x, y)
    torch.testing.assert_close(penalty, compactness_penalty(head, 7 * x, y))
    own = head.distances(x).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(penalty, ((own.square() + head.log_determinants[y]) / 2).mean())
