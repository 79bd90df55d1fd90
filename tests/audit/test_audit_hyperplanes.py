import math

import numpy as np
import pytest
import torch

from mahalens.auditing import distance_in_spreads, distance_to_hyperplanes, sphericity
from mahalens.auditing.gaussian.rows import random_rotation
from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian

SHAPES = [(1, 1), (2, 2), (4, 2), (3, 5), (20, 10)]


def rotation(size, seed=0):
    return random_rotation(size, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("units", "dimensions"), SHAPES)
def test_distances_agree_with_loops(units, dimensions, dtype, draw_gaussian, draw_layer):
    gaussian = draw_gaussian(dimensions, dtype=dtype)
    weight, bias = draw_layer(units, dimensions, dtype=dtype)
    plain = distance_to_hyperplanes(weight, bias, gaussian.mean)
    spreads = distance_in_spreads(weight, bias, gaussian)
    assert plain.dtype == spreads.dtype == torch.float64
    factor = gaussian.factor.double()
    sigma = (factor @ factor.T).numpy()
    mean = gaussian.mean.double().numpy()
    for i in range(units):
        w, b = weight[i].double().numpy(), float(bias[i])
        # The nearest point of the hyperplane, by walking from the mean along the normal.
        foot = mean - (w @ mean + b) / (w @ w) * w
        assert w @ foot + b == pytest.approx(0, abs=1e-10)
        assert float(plain[i]) == pytest.approx(np.linalg.norm(mean - foot), rel=1e-10)
        expected = abs(w @ mean + b) / math.sqrt(w @ sigma @ w)
        assert float(spreads[i]) == pytest.approx(expected, rel=1e-10)


def test_distance_in_spreads_is_the_least_mahalanobis_distance_on_the_hyperplane(
    draw_gaussian, draw_layer
):
    gaussian = draw_gaussian(4)
    weight, bias = draw_layer(3, 4)
    sigma = gaussian.covariance
    spreads = distance_in_spreads(weight, bias, gaussian)
    for w, b, spread in zip(weight, bias, spreads, strict=True):
        nearest = gaussian.mean - sigma @ w * (w @ gaussian.mean + b) / (w @ sigma @ w)
        assert float(gaussian.mahalanobis(nearest[None])) == pytest.approx(float(spread), rel=1e-8)


def test_positive_rescaling_of_a_unit_moves_nothing(draw_gaussian, draw_layer):
    gaussian = draw_gaussian(5)
    weight, bias = draw_layer(7, 5)
    scale = torch.logspace(-120, 120, 7, dtype=torch.float64)
    for distance in (
        lambda w, b: distance_to_hyperplanes(w, b, gaussian.mean),
        lambda w, b: distance_in_spreads(w, b, gaussian),
    ):
        moved = distance(scale[:, None] * weight, scale * bias)
        torch.testing.assert_close(moved, distance(weight, bias), rtol=1e-10, atol=0)


def test_distance_in_spreads_does_not_depend_on_coordinates(draw_gaussian, draw_layer):
    gaussian = draw_gaussian(4)
    weight, bias = draw_layer(6, 4)
    change, shift = draw_layer(4, 4, seed=5)
    moved = Gaussian.from_covariance(
        change @ gaussian.mean + shift, change @ gaussian.covariance @ change.T
    )
    inverse = torch.linalg.inv(change)
    moved_bias = bias - weight @ inverse @ shift
    torch.testing.assert_close(
        distance_in_spreads(weight @ inverse, moved_bias, moved),
        distance_in_spreads(weight, bias, gaussian),
        rtol=1e-8,
        atol=1e-10,
    )


def test_hyperplanes_through_the_mean_are_at_distance_zero(draw_gaussian, draw_layer):
    gaussian = draw_gaussian(5)
    weight, _ = draw_layer(7, 5)
    bias = -weight @ gaussian.mean
    assert distance_to_hyperplanes(weight, bias, gaussian.mean).max() < 1e-13
    assert distance_in_spreads(weight, bias, gaussian).max() < 1e-12


def test_a_unit_without_weights_has_no_hyperplane(draw_gaussian):
    gaussian = draw_gaussian(2)
    weight = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    bias = torch.tensor([0.0, 1.0, 2.0])
    for distance in (
        distance_to_hyperplanes(weight, bias, gaussian.mean),
        distance_in_spreads(weight, bias, gaussian),
    ):
        assert distance.isnan().tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("units", "dimensions"), SHAPES)
def test_sphericity_agrees_with_loops(units, dimensions, dtype, draw_gaussian, draw_layer):
    gaussian = draw_gaussian(dimensions, dtype=dtype)
    weight, _ = draw_layer(units, dimensions, dtype=dtype)
    factor = gaussian.factor.double()
    sigma = (factor @ factor.T).numpy()
    w = weight.double().numpy()
    m = [[w[i] @ sigma @ w[j] for j in range(units)] for i in range(units)]
    mean = sum(m[i][i] for i in range(units)) / units
    squares = [(m[i][j] / mean - (i == j)) ** 2 for i in range(units) for j in range(units)]
    assert sphericity(weight, gaussian) == pytest.approx(math.sqrt(sum(squares)), abs=1e-10)


@pytest.mark.parametrize("dimensions", [2, 10, 40])
def test_every_rotated_and_scaled_whitening_is_spherical(dimensions, draw_gaussian):
    gaussian = draw_gaussian(dimensions)
    whitening = gaussian.whitening(kind="pca")
    assert sphericity(whitening, gaussian) < 1e-9
    assert sphericity(1e-200 * rotation(dimensions) @ whitening, gaussian) < 1e-9


def test_sphericity_is_invariant_and_not_constant(draw_gaussian, draw_layer):
    gaussian = draw_gaussian(5)
    weight, _ = draw_layer(5, 5)
    value = sphericity(weight, gaussian)
    assert value > 0.1
    order = torch.randperm(5, generator=torch.Generator().manual_seed(2))
    for same in (rotation(5) @ weight, 7 * weight, weight[order]):
        assert sphericity(same, gaussian) == pytest.approx(value, rel=1e-10)
    one_longer = torch.cat([2 * weight[:1], weight[1:]])
    assert abs(sphericity(one_longer, gaussian) - value) > 1e-3


def test_more_rows_than_inputs_cannot_be_spherical(draw_gaussian):
    gaussian = draw_gaussian(3)
    whitening = gaussian.whitening(kind="pca")
    both = torch.cat([whitening, -whitening])
    # M = [[I, -I], [-I, I]]: six off-diagonal entries of size 1 are left.
    assert sphericity(both, gaussian) == pytest.approx(math.sqrt(6))


def test_sphericity_of_nothing_is_nan(draw_gaussian):
    assert math.isnan(sphericity(torch.zeros(3, 2), draw_gaussian(2)))


def test_float32_layers_are_read_in_float64(draw_gaussian):
    gaussian = draw_gaussian(3)
    weight = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    bias = torch.zeros(1)
    value = distance_in_spreads(weight, bias, gaussian)
    torch.testing.assert_close(
        value, distance_in_spreads(weight.double(), bias.double(), gaussian), rtol=0, atol=0
    )
    assert not value.requires_grad


def test_bad_shapes_are_named(draw_gaussian):
    gaussian = draw_gaussian(2)
    weight = torch.ones(3, 2)
    with pytest.raises(InputError, match=r"bias has shape \[2\].*wants \[3\]"):
        distance_to_hyperplanes(weight, torch.ones(2), gaussian.mean)
    with pytest.raises(InputError, match=r"point has shape \[3\].*wants \[2\]"):
        distance_to_hyperplanes(weight, torch.ones(3), torch.ones(3))
    with pytest.raises(InputError, match="2 dimensions and the weight 3 columns"):
        sphericity(torch.ones(3, 3), gaussian)
    batch = Gaussian(gaussian.mean.expand(4, 2), gaussian.factor.expand(4, 2, 2))
    with pytest.raises(InputError, match=r"batch \[4\].*one at a time"):
        sphericity(weight, batch)


def test_what_is_not_finite_is_refused(draw_gaussian):
    gaussian = draw_gaussian(2)
    bad = torch.tensor([[1.0, math.nan], [math.inf, 0.0]])
    with pytest.raises(InputError, match=r"weight has 2 entries that are NaN or infinite"):
        sphericity(bad, gaussian)
    with pytest.raises(InputError, match=r"bias has 1 entries that are NaN"):
        distance_in_spreads(torch.eye(2), torch.tensor([math.nan, 0.0]), gaussian)
    with pytest.raises(InputError, match=r"point has 1 entries"):
        distance_to_hyperplanes(torch.eye(2), torch.zeros(2), torch.tensor([math.inf, 0.0]))
