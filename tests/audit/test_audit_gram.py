import math

import numpy as np
import pytest
import torch

from mahalens.auditing import match_rows, read_gram
from mahalens.auditing.gaussian.rows import random_rotation
from mahalens.errors import InputError


def rotation(size, seed=0):
    return random_rotation(size, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("units", "dimensions"), [(1, 1), (2, 2), (8, 4), (10, 10)])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_reading_agrees_with_the_eigendecomposition_of_the_gram_matrix(
    units, dimensions, scale, dtype, draw_gaussian, draw_layer
):
    gaussian = draw_gaussian(dimensions, dtype=dtype)
    weight, bias = draw_layer(units, dimensions, dtype=dtype)
    reading = read_gram(weight, bias, gaussian, scale=scale)

    w, b = weight.double().numpy(), bias.double().numpy()
    factor, mean = gaussian.factor.double().numpy(), gaussian.mean.double().numpy()
    sigma = factor @ factor.T
    precision = scale * sum(np.outer(row, row) for row in w)
    true_precision = np.linalg.inv(sigma)
    np.testing.assert_allclose(reading.precision.numpy(), precision, rtol=1e-10, atol=1e-12)
    error = np.linalg.norm(precision - true_precision) / np.linalg.norm(true_precision)
    assert reading.precision_error == pytest.approx(error, rel=1e-6)

    # Ascending eigenvalues of the precision are descending eigenvalues of the covariance.
    values, vectors = np.linalg.eigh(precision)
    truth = np.linalg.eigvalsh(sigma)[::-1]
    np.testing.assert_allclose(reading.eigenvalues.numpy(), 1 / values, rtol=1e-8)
    assert reading.eigenvalue_error == pytest.approx(
        np.mean(np.abs(1 / values - truth) / truth), rel=1e-6
    )
    alignment = np.abs(np.sum(reading.eigenvectors.numpy() * vectors, axis=0))
    np.testing.assert_allclose(alignment, 1, atol=1e-8)

    centre = np.linalg.lstsq(w, -b, rcond=None)[0]
    np.testing.assert_allclose(reading.centre.numpy(), centre, rtol=1e-8, atol=1e-10)
    offset = centre - mean
    distance = math.sqrt(offset @ true_precision @ offset)
    assert reading.centre_error == pytest.approx(distance, rel=1e-6)
    assert reading.rank == dimensions


@pytest.mark.parametrize("dimensions", [2, 10, 40])
def test_any_rotated_whitening_reads_true_while_its_rows_do_not(dimensions, draw_gaussian):
    gaussian = draw_gaussian(dimensions)
    weight = rotation(dimensions) @ gaussian.whitening(kind="pca")
    reading = read_gram(weight, -weight @ gaussian.mean, gaussian)
    assert reading.precision_error < 1e-9
    assert reading.eigenvalue_error < 1e-9
    assert reading.cosine == pytest.approx(1, abs=1e-9)
    assert reading.centre_error < 1e-9
    assert match_rows(weight, gaussian).mean_cosine < 0.95
    assert match_rows(weight, gaussian).mean_error > 0.1


def test_reading_is_unchanged_by_rotating_and_permuting_units(draw_gaussian, draw_layer):
    gaussian = draw_gaussian(4)
    weight, bias = draw_layer(6, 4)
    first = read_gram(weight, bias, gaussian)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(2))
    for turn in (rotation(6), torch.eye(6, dtype=torch.float64)[order]):
        second = read_gram(turn @ weight, turn @ bias, gaussian)
        for name in ("precision_error", "eigenvalue_error", "cosine", "centre_error"):
            assert getattr(second, name) == pytest.approx(getattr(first, name), rel=1e-8)
        torch.testing.assert_close(second.precision, first.precision)
        torch.testing.assert_close(second.eigenvalues, first.eigenvalues)
        torch.testing.assert_close(second.centre, first.centre)


def test_mirrored_relu_units_read_true_at_half_scale(draw_gaussian):
    gaussian = draw_gaussian(5)
    whitening = rotation(5) @ gaussian.whitening(kind="pca")
    weight = torch.cat([whitening, -whitening])
    reading = read_gram(weight, -weight @ gaussian.mean, gaussian, scale=0.5)
    assert max(reading.precision_error, reading.eigenvalue_error, reading.centre_error) < 1e-9
    whole = read_gram(weight, -weight @ gaussian.mean, gaussian)
    assert whole.precision_error == pytest.approx(1)  # twice the precision
    assert whole.eigenvalue_error == pytest.approx(0.5)


def test_errors_grow_with_the_size_of_a_perturbation(draw_gaussian):
    gaussian = draw_gaussian(3)
    whitening = gaussian.whitening(kind="pca")
    # (1 + ε)² = 1 + 2ε + ε² times the precision, one unit's offset moved by one spread.
    bias = -whitening @ gaussian.mean
    bias[1] += 1.0
    reading = read_gram(1.1 * whitening, 1.1 * bias, gaussian)
    assert reading.precision_error == pytest.approx(0.21, rel=1e-8)
    assert reading.eigenvalue_error == pytest.approx(1 - 1 / 1.21, rel=1e-8)
    assert reading.centre_error == pytest.approx(1.0, rel=1e-8)


def test_directions_that_the_layer_does_not_see_have_infinite_spread(draw_gaussian):
    gaussian = draw_gaussian(4)
    whitening = gaussian.whitening(kind="pca")[1:3]
    bias = -whitening @ gaussian.mean
    twice = torch.cat([whitening, whitening.flip(0)])  # square, yet of rank two
    for weight, offsets in [(whitening, bias), (twice, torch.cat([bias, bias.flip(0)]))]:
        reading = read_gram(weight, offsets, gaussian)
        assert reading.rank == 2
        assert reading.eigenvalues.isinf().tolist() == [True, True, False, False]
        assert reading.eigenvalue_error == math.inf
        assert reading.cosine == pytest.approx(1, abs=1e-9)
        assert math.isfinite(reading.precision_error)
        # The shortest centre: right along what is seen, at the origin along what is not.
        torch.testing.assert_close(weight @ reading.centre, -offsets)
        unseen = gaussian.eigenvectors[:, [0, 3]]
        torch.testing.assert_close(
            unseen.T @ reading.centre, torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0
        )
        assert math.isfinite(reading.centre_error)


def test_a_layer_of_zeros_sees_nothing(draw_gaussian):
    gaussian = draw_gaussian(3)
    reading = read_gram(torch.zeros(5, 3), torch.ones(5), gaussian)
    assert reading.rank == 0
    assert reading.precision_error == 1.0
    assert reading.eigenvalue_error == math.inf
    assert math.isnan(reading.cosine)
    assert reading.centre.tolist() == [0.0, 0.0, 0.0]
    expected = float(gaussian.mahalanobis(torch.zeros(1, 3, dtype=torch.float64)))
    assert reading.centre_error == pytest.approx(expected)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_scale_must_be_positive(scale, draw_gaussian):
    with pytest.raises(InputError, match=f"scale is {scale}"):
        read_gram(torch.eye(2), torch.zeros(2), draw_gaussian(2), scale=scale)


@pytest.mark.parametrize("size", [1e-300, 1e200])
def test_errors_beyond_the_range_of_floats_are_infinite(size, draw_gaussian):
    weight = size * torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    reading = read_gram(weight, torch.full((2,), 1e100, dtype=torch.float64), draw_gaussian(2))
    for error in (reading.precision_error, reading.eigenvalue_error, reading.centre_error):
        assert not math.isnan(error)
    assert (reading.centre_error if size < 1 else reading.precision_error) == math.inf
