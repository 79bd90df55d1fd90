import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.auditing import (
    ACTIVATIONS,
    LAYER_METRICS,
    deduplicate,
    distance_in_spreads,
    distance_to_hyperplanes,
    gram_scale,
    match_rows,
    mirrored_pairs,
    read_gram,
    read_layer,
    rows_to_read,
    sphericity,
    wnorm_precision_distance,
)
from mahalens.auditing.gaussian.rows import random_rotation
from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian
from mahalens.studies.gaussian.metrics import METRICS

# What must be 0, and what 1, for a layer that measures the distance exactly.
ZERO = (
    "mean_distance",
    "mean_distance_spread",
    "sphericity",
    "gram_precision_error",
    "gram_eigenvalue_error",
    "centre_error",
    "dead_units",
)


def samples_of(gaussian, count=200):
    generator = torch.Generator().manual_seed(4)
    size = gaussian.mean.shape[0]
    normal = torch.randn(count, size, generator=generator, dtype=torch.float64)
    return gaussian.mean + normal @ gaussian.factor.T


def test_metrics_are_the_columns_of_the_study(draw_gaussian, draw_layer):
    weight, bias = draw_layer(4, 2)
    metrics = read_layer(weight, bias, draw_gaussian(2), activation="abs")
    assert tuple(metrics) == LAYER_METRICS
    assert [*METRICS] == ["train_mse", "test_mse", "late_decrease", *LAYER_METRICS]
    assert all(type(value) is float for value in metrics.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_metrics_come_from_the_right_rows(activation, dtype, draw_gaussian, draw_layer):
    gaussian = draw_gaussian(3)
    weight, bias = draw_layer(6, 3, dtype=dtype)
    weight[4] = -2 * weight[1]
    inputs = samples_of(gaussian).to(dtype)
    metrics = read_layer(weight, bias, gaussian, activation=activation, inputs=inputs)

    pairs = mirrored_pairs(weight)
    assert pairs == [(1, 4)]
    rows = weight[[0, 1, 2, 3, 5]] if activation == "relu" else weight
    torch.testing.assert_close(rows_to_read(weight, activation), rows, rtol=0, atol=0)
    assert deduplicate(weight, pairs).tolist() == [0, 1, 2, 3, 5]
    match = match_rows(rows, gaussian)
    gram = read_gram(weight, bias, gaussian, scale=0.5 if activation == "relu" else 1.0)
    assert metrics == {
        "mirrored_pairs": 1.0,
        "unique_units": 5.0,
        "mean_distance": float(distance_to_hyperplanes(weight, bias, gaussian.mean).mean()),
        "mean_distance_spread": float(distance_in_spreads(weight, bias, gaussian).mean()),
        "sphericity": sphericity(rows, gaussian),
        "row_cosine": match.mean_cosine,
        "row_eigenvalue_error": match.mean_error,
        "wnorm_precision_distance": wnorm_precision_distance(rows, gaussian),
        "gram_precision_error": gram.precision_error,
        "gram_eigenvalue_error": gram.eigenvalue_error,
        "gram_cosine": gram.cosine,
        "centre_error": gram.centre_error,
        "dead_units": metrics["dead_units"],
    }


@pytest.mark.parametrize("dimensions", [2, 10])
@pytest.mark.parametrize("activation", ["abs", "relu"])
def test_a_perfect_layer_reads_as_perfect(activation, dimensions, draw_gaussian):
    gaussian = draw_gaussian(dimensions)
    whitening = gaussian.whitening(kind="pca")
    for turn in (None, random_rotation(dimensions, torch.Generator().manual_seed(1))):
        weight = whitening if turn is None else turn @ whitening
        if activation == "relu":
            weight = torch.cat([weight, -weight])
        metrics = read_layer(
            weight,
            -weight @ gaussian.mean,
            gaussian,
            activation=activation,
            inputs=samples_of(gaussian),
        )
        assert max(metrics[name] for name in ZERO) < 1e-8
        assert metrics["gram_cosine"] == pytest.approx(1, abs=1e-8)
        assert metrics["unique_units"] == dimensions
        assert metrics["mirrored_pairs"] == (dimensions if activation == "relu" else 0)
        if turn is None:
            assert metrics["row_cosine"] == pytest.approx(1, abs=1e-8)
            assert metrics["row_eigenvalue_error"] < 1e-6
        else:
            assert metrics["row_cosine"] < 0.95


def test_the_mirror_of_a_relu_is_not_matched_to_a_second_eigenvector(draw_gaussian):
    gaussian = draw_gaussian(3)
    v1, v2, v3 = gaussian.eigenvectors.T
    weight = torch.stack([v1 + v2, -v1 - v2, v3, v3 + 0.1 * v1])
    diagonal = math.sqrt(0.5)
    for activation, total in [
        ("relu", diagonal + 1 + 0.1 / math.sqrt(1.01)),
        ("abs", 2 * diagonal + 1),
    ]:
        metrics = read_layer(weight, torch.zeros(4), gaussian, activation=activation)
        assert metrics["row_cosine"] == pytest.approx(total / 3)


def test_dead_units_are_relus_that_never_fire(draw_gaussian):
    gaussian = draw_gaussian(2)
    inputs = samples_of(gaussian)
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    weight = weight.double()
    top = float(inputs[:, 0].max())
    bias = torch.tensor([-top, -top + 1e-6, 1e3, 0.0, 0.1], dtype=torch.float64)
    count = sum(
        all(float(weight[k] @ sample + bias[k]) <= 0 for sample in inputs) for k in range(5)
    )
    assert count == 2
    for activation, dead in [("relu", 2.0), ("abs", 0.0), ("sigmoid", 0.0)]:
        metrics = read_layer(weight, bias, gaussian, activation=activation, inputs=inputs)
        assert metrics["dead_units"] == dead
    assert math.isnan(read_layer(weight, bias, gaussian, activation="relu")["dead_units"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["weight", "bias"])
def test_a_layer_that_is_not_finite_reads_as_nan(bad, where, draw_gaussian, draw_layer):
    weight, bias = draw_layer(4, 2)
    if where == "weight":
        weight[3, 1] = bad
    else:
        bias[2] = bad
    metrics = read_layer(weight, bias, draw_gaussian(2), activation="relu")
    assert tuple(metrics) == LAYER_METRICS
    assert all(math.isnan(value) for value in metrics.values())


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.one_of(
                st.floats(-1e300, 1e300, allow_subnormal=False), st.sampled_from([0.0, 1.0, -1.0])
            ),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(ACTIVATIONS),
)
def test_any_finite_layer_can_be_read(rows, activation):
    layer = torch.tensor(rows, dtype=torch.float64)
    covariance = torch.tensor([[1.0, 0.3], [0.3, 0.2]], dtype=torch.float64)
    gaussian = Gaussian.from_covariance(torch.ones(2, dtype=torch.float64), covariance)
    weight, bias = layer[:, :2], layer[:, 2]
    metrics = read_layer(
        weight, bias, gaussian, activation=activation, inputs=samples_of(gaussian, 5)
    )
    undefined = {name for name, value in metrics.items() if math.isnan(value)}
    seen = bool(weight.any())
    without_directions = {
        "mean_distance",
        "mean_distance_spread",
        "sphericity",
        "row_cosine",
        "row_eigenvalue_error",
        "gram_cosine",
    }
    assert undefined == (set() if seen else without_directions)


def test_reading_leaves_the_layer_as_it_was(draw_gaussian, draw_layer):
    weight, bias = (tensor.requires_grad_() for tensor in draw_layer(4, 2))
    before = weight.detach().clone(), bias.detach().clone(), torch.get_rng_state()
    read_layer(weight, bias, draw_gaussian(2), activation="relu", inputs=torch.ones(3, 2))
    assert torch.equal(weight, before[0])
    assert torch.equal(bias, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert weight.requires_grad
    assert weight.grad is None


def test_permuting_units_changes_nothing(draw_gaussian, draw_layer):
    gaussian = draw_gaussian(4)
    weight, bias = draw_layer(8, 4)
    weight[5] = -weight[0]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(6))
    inputs = samples_of(gaussian)
    first = read_layer(weight, bias, gaussian, activation="relu", inputs=inputs)
    second = read_layer(weight[order], bias[order], gaussian, activation="relu", inputs=inputs)
    assert second == pytest.approx(first, rel=1e-9)


def test_bad_input_is_named(draw_gaussian):
    gaussian = draw_gaussian(2)
    weight, bias = torch.eye(2), torch.zeros(2)
    with pytest.raises(InputError, match="activation is 'tanh', but one of abs, relu, sigmoid"):
        read_layer(weight, bias, gaussian, activation="tanh")
    with pytest.raises(InputError, match="activation is 'tanh'"):
        gram_scale("tanh")
    with pytest.raises(InputError, match="activation is 'tanh'"):
        rows_to_read(weight, "tanh")
    with pytest.raises(InputError, match=r"inputs have shape \[5, 3\].*\[N, 2\]"):
        read_layer(weight, bias, gaussian, activation="relu", inputs=torch.ones(5, 3))
    inputs = torch.tensor([[math.nan, 0.0]])
    with pytest.raises(InputError, match="inputs has 1 entries that are NaN"):
        read_layer(weight, bias, gaussian, activation="relu", inputs=inputs)


def test_a_layer_without_bias_has_hyperplanes_through_the_origin():
    gaussian = Gaussian(torch.tensor([3.0, 4.0]), torch.eye(2))
    weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    bare = read_layer(weight, None, gaussian, activation="abs")
    assert bare == read_layer(weight, torch.zeros(2), gaussian, activation="abs")
    assert bare["mean_distance"] == 3.5
