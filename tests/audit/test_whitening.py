import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import OAS

from mahalens.auditing.whitening import (
    effective_rank,
    oas_shrinkage,
    output_whitening,
    read_whitening,
)

MANY = 10**6


def random_covariance(dimensions, seed=0):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(dimensions, dimensions + 2, generator=generator, dtype=torch.float64)
    return a @ a.T


def whitening_of(covariance):
    """A rotated whitening, from an inverse: another way than the reading's eigenvectors."""
    whitening = torch.linalg.inv(torch.linalg.cholesky(covariance))
    rotation, _ = torch.linalg.qr(random_covariance(len(covariance), seed=9))
    return rotation @ whitening


def naive_reading(weight, covariance):
    """The definitions with matrices written out, for a covariance of full rank."""
    output = weight @ covariance @ weight.T
    gram, precision = weight.T @ weight, torch.linalg.inv(covariance)
    scale = (gram * precision).sum() / (gram * gram).sum()
    units = len(weight)
    shaped = output / output.diagonal().mean() - torch.eye(units, dtype=torch.float64)
    shares = torch.linalg.eigvalsh(output).clamp(min=0) / output.trace()
    return {
        "sphericity": float(shaped.norm()),
        "isotropy": float(output.trace() ** 2 / (units * (output @ output).trace())),
        "precision_scale": float(scale),
        "precision_error": float((scale * gram - precision).norm() / precision.norm()),
        "precision_cosine": float((gram * precision).sum() / (gram.norm() * precision.norm())),
        "output_rank": math.exp(-sum(float(p) * math.log(p) for p in shares if p > 1e-15)),
    }


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 50))
def test_readings_agree_with_the_definitions(dimensions, units, seed):
    covariance = random_covariance(dimensions, seed)
    weight = torch.randn(units, dimensions, dtype=torch.float64, generator=torch.Generator())
    reading = read_whitening(weight, covariance, MANY)
    for name, value in naive_reading(weight, covariance).items():
        assert getattr(reading, name) == pytest.approx(value, rel=1e-6, abs=1e-6), name
    assert reading.shrinkage == 0
    assert reading.spectrum.tolist() == pytest.approx(
        torch.linalg.eigvalsh(covariance).flip(0).tolist()
    )
    assert reading.output_spectrum.tolist() == pytest.approx(
        torch.linalg.eigvalsh(weight @ covariance @ weight.T).flip(0).tolist(), abs=1e-9
    )
    # The covariance that WᵀW stands for has the inverse eigenvalues; unseen ones come first.
    gram = torch.linalg.eigvalsh(weight.T @ weight)
    unseen = max(0, dimensions - units)
    assert reading.recovered[:unseen].isinf().all()
    assert reading.recovered[unseen:].tolist() == pytest.approx(
        (1 / gram[unseen:]).tolist(), rel=1e-6
    )


@pytest.mark.parametrize("scale", [1.0, 3.0, 1e150, 1e-150])
def test_an_exact_whitening_has_no_error(scale):
    covariance = random_covariance(7)
    reading = read_whitening(scale * whitening_of(covariance), covariance, MANY)
    assert reading.sphericity < 1e-10
    assert reading.precision_error < 1e-10
    assert reading.isotropy == pytest.approx(1)
    assert reading.precision_cosine == pytest.approx(1)
    if 1 <= scale <= 3:
        assert reading.precision_scale == pytest.approx(scale**-2)
        assert reading.recovered.tolist() == pytest.approx((reading.spectrum / scale**2).tolist())
        assert reading.output_spectrum.tolist() == pytest.approx([scale**2] * 7)
    assert reading.output_rank == pytest.approx(7)


def test_spreads_far_apart_keep_their_digits():
    variances = torch.tensor([1e6, 1.0, 1e-4], dtype=torch.float64)
    reading = read_whitening(torch.diag(variances**-0.5), torch.diag(variances), MANY)
    assert reading.spectrum.tolist() == variances.tolist()
    assert reading.recovered.tolist() == pytest.approx(variances.tolist())
    assert reading.precision_error < 1e-12
    assert reading.sphericity < 1e-12


def test_shrinkage_is_that_of_sklearn():
    generator = np.random.default_rng(0)
    for rows, dimensions in [(5, 8), (20, 8), (200, 30), (40, 1)]:
        data = generator.normal(size=(rows, dimensions)) * np.arange(1, dimensions + 1)
        twin = OAS().fit(data)
        sample = torch.tensor(np.cov(data.T, bias=True)).reshape(dimensions, dimensions)
        assert oas_shrinkage(sample, rows) == pytest.approx(twin.shrinkage_)
        assert oas_shrinkage(1e-200 * sample, rows) == pytest.approx(twin.shrinkage_)
        reading = read_whitening(torch.eye(dimensions).double(), sample, rows)
        few = rows < 10 * dimensions
        assert reading.shrinkage == (pytest.approx(twin.shrinkage_) if few else 0)
        if few:
            values = np.linalg.eigvalsh(twin.covariance_)[::-1]
            assert reading.spectrum.tolist() == pytest.approx(values.tolist())
            shrunk = naive_reading(torch.eye(dimensions).double(), torch.tensor(twin.covariance_))
            assert reading.precision_error == pytest.approx(shrunk["precision_error"])
            assert reading.sphericity == pytest.approx(shrunk["sphericity"])


def test_shrinkage_is_used_below_ten_rows_per_varying_input():
    covariance = torch.diag(torch.tensor([5.0, 1.0, 0.0])).double()
    weight = torch.eye(3).double()
    assert read_whitening(weight, covariance, 19).shrinkage == pytest.approx(
        oas_shrinkage(covariance[:2, :2], 19)
    )
    assert read_whitening(weight, covariance, 20).shrinkage == 0


@pytest.mark.parametrize("rows", [5, MANY])
def test_constant_inputs_are_left_out(rows):
    """With columns for them, whatever these are, all is as without."""
    covariance = random_covariance(4)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = read_whitening(weight, covariance, rows)
    padded = torch.zeros(6, 6, dtype=torch.float64)
    padded[1:5, 1:5] = covariance
    columns = torch.full((3, 6), 100.0, dtype=torch.float64)
    columns[:, 1:5] = weight
    reading = read_whitening(columns, padded, rows)
    for name in plain.__struct_fields__:
        value = getattr(plain, name)
        if isinstance(value, torch.Tensor):
            assert torch.allclose(getattr(reading, name), value), name
        else:
            assert getattr(reading, name) == pytest.approx(value), name


def test_directions_without_variance_are_left_out():
    """Three inputs that sum to a constant, as shares do: a whitening of the plane they span."""
    plane, _ = torch.linalg.qr(torch.tensor([[1.0, 0], [0, 1], [-1, -1]], dtype=torch.float64))
    within = random_covariance(2)
    covariance = plane @ within @ plane.T
    off_plane = torch.full((2, 3), 50.0, dtype=torch.float64)
    weight = whitening_of(within) @ plane.T + off_plane
    reading = read_whitening(weight, covariance, MANY)
    assert reading.precision_error < 1e-9
    assert reading.sphericity < 1e-9
    assert len(reading.spectrum) == len(reading.recovered) == 2
    assert reading.recovered.tolist() == pytest.approx(reading.spectrum.tolist())


def test_a_layer_that_sees_nothing_of_the_data():
    covariance = torch.diag(torch.tensor([1.0, 0.0])).double()
    blind = read_whitening(torch.tensor([[0.0, 1.0]]).double(), covariance, MANY)
    assert (blind.precision_scale, blind.precision_error, blind.precision_cosine) == (0, 1, 0)
    assert math.isnan(blind.sphericity)
    assert math.isnan(blind.isotropy)
    assert (blind.output_rank, blind.output_spectrum.tolist()) == (0, [0])
    assert blind.recovered.tolist() == [math.inf]
    constant = read_whitening(torch.eye(2).double(), torch.zeros(2, 2).double(), 3)
    assert constant.precision_error is None
    assert constant.precision_scale is None
    assert constant.precision_cosine is None
    assert (constant.input_rank, constant.output_rank, constant.shrinkage) == (0, 0, 0)
    assert len(constant.spectrum) == len(constant.recovered) == 0
    assert constant.output_spectrum.tolist() == [0, 0]


def test_outputs_alone_say_the_same_about_themselves():
    covariance = random_covariance(5)
    weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    alone = output_whitening(weight @ covariance @ weight.T, 7)
    unshrunk = read_whitening(weight, covariance, MANY)
    for name in ("sphericity", "isotropy", "output_rank"):
        assert getattr(alone, name) == pytest.approx(getattr(unshrunk, name)), name
    assert torch.allclose(alone.output_spectrum, unshrunk.output_spectrum)
    assert (alone.rows, alone.shrinkage) == (7, 0)
    assert alone.precision_error is alone.precision_scale is alone.precision_cosine is None
    assert len(alone.spectrum) == len(alone.recovered) == 0
    assert math.isnan(alone.input_rank)
    assert math.isnan(output_whitening(torch.zeros(2, 2).double(), 5).sphericity)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_the_effective_rank_counts_directions(values):
    eigenvalues = torch.tensor(values, dtype=torch.float64)
    rank = effective_rank(eigenvalues)
    above = int((eigenvalues > 0).sum())
    assert 0 <= rank <= above + 1e-9
    assert rank >= 1 - 1e-9 or above == 0
    assert effective_rank(3 * eigenvalues) == pytest.approx(rank)
    equal = (eigenvalues > 0).double()
    assert effective_rank(equal) == pytest.approx(above)
