"""One linear layer against a known Gaussian: every metric against loops, laws and numpy."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from twin import draw_gaussian, draw_layer

from mahalens.auditing import (
    ACTIVATIONS,
    LAYER_METRICS,
    chance_cosine,
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
from mahalens.auditing.gaussian import random_rotation
from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian

GRAM_ERRORS = ("precision_error", "eigenvalue_error", "centre_error")
in_both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def rotation(size, seed=0):
    return random_rotation(size, torch.Generator().manual_seed(seed))


def moments(gaussian):
    """Mean and covariance as float64 arrays, from the factor."""
    factor = gaussian.factor.double().numpy()
    return gaussian.mean.double().numpy(), factor @ factor.T


def samples_of(gaussian, count=200):
    generator = torch.Generator().manual_seed(4)
    normal = torch.randn(count, gaussian.dim, generator=generator, dtype=torch.float64)
    return gaussian.mean + normal @ gaussian.factor.T


class TestHyperplanes:
    @in_both_precisions
    @pytest.mark.parametrize(("units", "dimensions"), [(1, 1), (4, 2), (3, 5), (20, 10)])
    def test_distances_sphericity_and_wnorm_agree_with_loops(self, units, dimensions, dtype):
        gaussian = draw_gaussian(dimensions, dtype=dtype)
        weight, bias = draw_layer(units, dimensions, dtype=dtype)
        plain = distance_to_hyperplanes(weight, bias, gaussian.mean)
        spreads = distance_in_spreads(weight, bias, gaussian)
        assert plain.dtype == spreads.dtype == torch.float64
        (mean, sigma), rows = moments(gaussian), weight.double().numpy()
        for i, w in enumerate(rows):
            # The nearest point of the hyperplane, by walking from the mean along the normal.
            b = float(bias[i])
            foot = mean - (w @ mean + b) / (w @ w) * w
            assert w @ foot + b == pytest.approx(0, abs=1e-10)
            assert float(plain[i]) == pytest.approx(np.linalg.norm(mean - foot), rel=1e-10)
            expected = abs(w @ mean + b) / math.sqrt(w @ sigma @ w)
            assert float(spreads[i]) == pytest.approx(expected, rel=1e-10)
        m = [[v @ sigma @ w for w in rows] for v in rows]
        size = sum(m[i][i] for i in range(units)) / units
        squares = [(m[i][j] / size - (i == j)) ** 2 for i in range(units) for j in range(units)]
        assert sphericity(weight, gaussian) == pytest.approx(math.sqrt(sum(squares)), abs=1e-10)
        gram = sum(np.outer(w, w) / (w @ w) for w in rows)
        expected = np.linalg.norm(gram - np.linalg.inv(sigma))
        value = wnorm_precision_distance(weight, gaussian)
        assert value == pytest.approx(expected, rel=1e-6)
        lengths = torch.linspace(-3, 2, units, dtype=dtype)[:, None]
        changed = torch.cat([(lengths * weight).flip(0), torch.zeros(2, dimensions, dtype=dtype)])
        assert wnorm_precision_distance(changed, gaussian) == pytest.approx(value, rel=1e-5)

    def test_rescaling_a_unit_moves_nothing(self):
        gaussian = draw_gaussian(5)
        weight, bias = draw_layer(7, 5)
        scale = torch.logspace(-120, 120, 7, dtype=torch.float64)
        for distance, at in (
            (distance_to_hyperplanes, gaussian.mean),
            (distance_in_spreads, gaussian),
        ):
            moved = distance(scale[:, None] * weight, scale * bias, at)
            torch.testing.assert_close(moved, distance(weight, bias, at), rtol=1e-10, atol=0)

    def test_a_unit_without_weights_has_no_hyperplane(self):
        gaussian = draw_gaussian(2)
        weight = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        bias = torch.tensor([0.0, 1.0, 2.0])
        for distance in (
            distance_to_hyperplanes(weight, bias, gaussian.mean),
            distance_in_spreads(weight, bias, gaussian),
        ):
            assert distance.isnan().tolist() == [True, False, True]

    def test_sphericity_of_whitenings_and_of_nothing(self):
        gaussian = draw_gaussian(3)
        whitening = gaussian.whitening(kind="pca")
        assert sphericity(1e-200 * rotation(3) @ whitening, gaussian) < 1e-9
        # More rows than inputs: M = [[I, -I], [-I, I]] has six off-diagonal entries of size 1.
        both = torch.cat([whitening, -whitening])
        assert sphericity(both, gaussian) == pytest.approx(math.sqrt(6))
        assert math.isnan(sphericity(torch.zeros(3, 3), gaussian))


class TestRows:
    @in_both_precisions
    @pytest.mark.parametrize(("units", "dimensions"), [(1, 1), (4, 4), (7, 3), (3, 6)])
    def test_matching_is_optimal_and_one_to_one(self, units, dimensions, dtype):
        gaussian = draw_gaussian(dimensions, dtype=dtype)
        weight, _ = draw_layer(units, dimensions, dtype=dtype)
        match = match_rows(weight, gaussian)
        exact = Gaussian(gaussian.mean.double(), gaussian.factor.double())
        w, v = weight.double().numpy(), exact.eigenvectors.numpy()
        cosine = np.abs(w @ v / np.linalg.norm(w, axis=1, keepdims=True))

        matched = [j for j in range(dimensions) if match.rows[j] >= 0]
        used = match.rows[matched].tolist()
        assert len(used) == len(set(used)) == min(units, dimensions)
        for j in set(range(dimensions)) - set(matched):
            assert all(part[j].isnan() for part in (match.cosines, match.eigenvalues, match.errors))
        for j, i in zip(matched, used, strict=True):
            truth, estimate = float(exact.eigenvalues[j]), 1 / (w[i] @ w[i])
            assert float(match.cosines[j]) == pytest.approx(cosine[i, j], rel=1e-10)
            assert float(match.eigenvalues[j]) == pytest.approx(estimate, rel=1e-10)
            assert float(match.errors[j]) == pytest.approx(abs(estimate - truth) / truth, rel=1e-8)
        size = cosine if units <= dimensions else cosine.T
        best = max(
            sum(size[i, j] for i, j in enumerate(columns))
            for columns in itertools.permutations(range(size.shape[1]), size.shape[0])
        )
        assert float(match.cosines.nansum()) == pytest.approx(best, rel=1e-10)
        assert match.mean_cosine == pytest.approx(best / min(units, dimensions))
        assert match.mean_error == pytest.approx(float(match.errors[matched].mean()))

    @pytest.mark.parametrize("dimensions", [1, 2, 10, 30])
    def test_rows_of_the_pca_whitening_are_the_eigenvectors(self, dimensions):
        gaussian = draw_gaussian(dimensions)
        generator = torch.Generator().manual_seed(3)
        order = torch.randperm(dimensions, generator=generator)
        signs = 2.0 * torch.randint(2, (dimensions, 1), generator=generator) - 1
        match = match_rows(signs * gaussian.whitening(kind="pca")[order], gaussian)
        assert match.mean_cosine == pytest.approx(1, abs=1e-9)
        assert float(match.cosines.max()) <= 1
        assert match.mean_error < 1e-7
        assert order[match.rows].tolist() == list(range(dimensions))
        torch.testing.assert_close(match.eigenvalues, gaussian.eigenvalues, rtol=1e-6, atol=0)

    def test_rows_without_direction_stay_out(self):
        gaussian = draw_gaussian(3)
        weight = torch.zeros(4, 3, dtype=torch.float64)
        nothing = match_rows(weight, gaussian)
        assert nothing.rows.tolist() == [-1, -1, -1]
        assert math.isnan(nothing.mean_cosine)
        assert math.isnan(nothing.mean_error)
        weight[2] = 5 * gaussian.eigenvectors[:, 1]
        match = match_rows(weight, gaussian)
        assert match.rows.tolist() == [-1, 2, -1]
        assert match.mean_cosine == pytest.approx(1)

    def test_chance_is_what_match_rows_gives_for_rotated_whitenings(self):
        gaussian = draw_gaussian(4)
        whitening = gaussian.whitening(kind="pca")
        generator = torch.Generator().manual_seed(11)
        means = [
            match_rows(random_rotation(4, generator) @ whitening, gaussian).mean_cosine
            for _ in range(40)
        ]
        chance = chance_cosine(gaussian, draws=40, generator=torch.Generator().manual_seed(11))
        ends = np.quantile(means, [0.025, 0.975])
        assert chance.mean == pytest.approx(np.mean(means), rel=1e-7)
        assert (chance.low, chance.high) == pytest.approx(ends, rel=1e-7)

    def test_chance_in_the_round_plane_is_known_and_falls_with_the_dimension(self):
        # A rotation by θ has max(|cos θ|, |sin θ|) for both rows; its mean is 2√2/π.
        chance = chance_cosine(Gaussian.from_covariance(torch.zeros(2), torch.eye(2)), draws=2000)
        assert chance.mean == pytest.approx(2 * math.sqrt(2) / math.pi, abs=0.006)
        assert chance.low == pytest.approx(math.cos(0.975 * math.pi / 4), abs=0.006)
        assert chance.high == pytest.approx(math.cos(0.025 * math.pi / 4), abs=0.006)
        values = [chance_cosine(draw_gaussian(size), draws=30).mean for size in (2, 10, 40)]
        assert values == sorted(values, reverse=True)

    def test_chance_is_repeatable_and_leaves_the_random_state_alone(self):
        gaussian = draw_gaussian(3)
        before = torch.get_rng_state()
        assert chance_cosine(gaussian, draws=5) == chance_cosine(gaussian, draws=5)
        assert torch.equal(before, torch.get_rng_state())
        generator = torch.Generator().manual_seed(1)
        first = chance_cosine(gaussian, draws=5, generator=generator)
        assert first != chance_cosine(gaussian, draws=5, generator=generator)

    def test_random_rotations_are_orthogonal_and_uniform(self):
        generator = torch.Generator().manual_seed(0)
        draws = torch.stack([random_rotation(3, generator) for _ in range(1500)])
        identity = torch.eye(3, dtype=torch.float64).expand_as(draws)
        torch.testing.assert_close(draws @ draws.mT, identity, rtol=0, atol=1e-13)
        # Each entry of a Haar matrix in three dimensions is uniform on [-1, 1] (Archimedes).
        for i, j in itertools.product(range(3), repeat=2):
            uniform = scipy_stats.uniform(-1, 2)
            assert scipy_stats.kstest(draws[:, i, j].numpy(), uniform.cdf).pvalue > 1e-3
        # Both kinds, with and without reflection, occur equally often.
        assert abs(float(torch.linalg.det(draws).sign().mean())) < 0.1


class TestGram:
    @in_both_precisions
    @pytest.mark.parametrize(("units", "dimensions"), [(1, 1), (2, 2), (8, 4), (10, 10)])
    @pytest.mark.parametrize("scale", [1.0, 0.5])
    def test_reading_agrees_with_the_eigendecomposition(self, units, dimensions, scale, dtype):
        gaussian = draw_gaussian(dimensions, dtype=dtype)
        weight, bias = draw_layer(units, dimensions, dtype=dtype)
        reading = read_gram(weight, bias, gaussian, scale=scale)

        w, b = weight.double().numpy(), bias.double().numpy()
        mean, sigma = moments(gaussian)
        precision = scale * sum(np.outer(row, row) for row in w)
        true_precision = np.linalg.inv(sigma)
        np.testing.assert_allclose(reading.precision.numpy(), precision, rtol=1e-10, atol=1e-12)
        error = np.linalg.norm(precision - true_precision) / np.linalg.norm(true_precision)
        assert reading.precision_error == pytest.approx(error, rel=1e-6)

        # Ascending eigenvalues of the precision are descending eigenvalues of the covariance.
        values, vectors = np.linalg.eigh(precision)
        truth = np.linalg.eigvalsh(sigma)[::-1]
        np.testing.assert_allclose(reading.eigenvalues.numpy(), 1 / values, rtol=1e-8)
        error = np.mean(np.abs(1 / values - truth) / truth)
        assert reading.eigenvalue_error == pytest.approx(error, rel=1e-6)
        alignment = np.abs(np.sum(reading.eigenvectors.numpy() * vectors, axis=0))
        np.testing.assert_allclose(alignment, 1, atol=1e-8)

        centre = np.linalg.lstsq(w, -b, rcond=None)[0]
        np.testing.assert_allclose(reading.centre.numpy(), centre, rtol=1e-8, atol=1e-10)
        distance = math.sqrt((centre - mean) @ true_precision @ (centre - mean))
        assert reading.centre_error == pytest.approx(distance, rel=1e-6)
        assert reading.rank == dimensions

    def test_directions_that_the_layer_does_not_see_have_infinite_spread(self):
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
            assert math.isfinite(reading.precision_error + reading.centre_error)
            # The shortest centre: right along what is seen, at the origin along what is not.
            torch.testing.assert_close(weight @ reading.centre, -offsets)
            unseen = gaussian.eigenvectors[:, [0, 3]].T @ reading.centre
            assert float(unseen.abs().max()) < 1e-9

    def test_a_layer_of_zeros_sees_nothing(self):
        gaussian = draw_gaussian(3)
        reading = read_gram(torch.zeros(5, 3), torch.ones(5), gaussian)
        assert (reading.rank, reading.precision_error) == (0, 1.0)
        assert reading.eigenvalue_error == math.inf
        assert math.isnan(reading.cosine)
        assert reading.centre.tolist() == [0.0, 0.0, 0.0]
        expected = float(gaussian.mahalanobis(torch.zeros(1, 3, dtype=torch.float64)))
        assert reading.centre_error == pytest.approx(expected)

    @pytest.mark.parametrize("size", [1e-300, 1e200])
    def test_errors_beyond_the_range_of_floats_are_infinite(self, size):
        weight = size * torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
        reading = read_gram(weight, torch.full((2,), 1e100, dtype=torch.float64), draw_gaussian(2))
        assert not any(math.isnan(getattr(reading, name)) for name in GRAM_ERRORS)
        assert (reading.centre_error if size < 1 else reading.precision_error) == math.inf


class TestLayer:
    @in_both_precisions
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_metrics_come_from_the_right_rows(self, activation, dtype):
        gaussian = draw_gaussian(3)
        weight, bias = draw_layer(6, 3, dtype=dtype)
        weight[4] = -2 * weight[1]
        inputs = samples_of(gaussian).to(dtype)
        metrics = read_layer(weight, bias, gaussian, activation=activation, inputs=inputs)
        pairs = mirrored_pairs(weight)
        assert pairs == [(1, 4)]
        assert deduplicate(weight, pairs).tolist() == [0, 1, 2, 3, 5]
        rows = weight[[0, 1, 2, 3, 5]] if activation == "relu" else weight
        assert torch.equal(rows_to_read(weight, activation), rows)
        match = match_rows(rows, gaussian)
        gram = read_gram(weight, bias, gaussian, scale=0.5 if activation == "relu" else 1.0)
        assert tuple(metrics) == LAYER_METRICS
        assert all(type(value) is float for value in metrics.values())
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

    @pytest.mark.parametrize("dimensions", [2, 10, 40])
    @pytest.mark.parametrize("activation", ["abs", "relu"])
    def test_a_perfect_layer_reads_as_perfect(self, activation, dimensions):
        gaussian = draw_gaussian(dimensions)
        whitening = gaussian.whitening(kind="pca")
        for turned in (False, True):
            weight = rotation(dimensions, 1) @ whitening if turned else whitening
            weight = torch.cat([weight, -weight]) if activation == "relu" else weight
            metrics = read_layer(
                weight,
                -weight @ gaussian.mean,
                gaussian,
                activation=activation,
                inputs=samples_of(gaussian),
            )
            for name in (
                *("mean_distance", "mean_distance_spread", "sphericity", "gram_precision_error"),
                *("gram_eigenvalue_error", "centre_error", "dead_units"),
            ):
                assert metrics[name] < 1e-8, name
            assert metrics["gram_cosine"] == pytest.approx(1, abs=1e-8)
            assert metrics["unique_units"] == dimensions
            assert metrics["mirrored_pairs"] == (dimensions if activation == "relu" else 0)
            assert (metrics["row_cosine"] < 0.95) == turned
            assert (metrics["row_eigenvalue_error"] > 1e-6) == turned

    def test_dead_units_are_relus_that_never_fire(self):
        gaussian = draw_gaussian(2)
        inputs = samples_of(gaussian)
        weight = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 0], [0, 0]]).double()
        top = float(inputs[:, 0].max())
        bias = torch.tensor([-top, -top + 1e-6, 1e3, 0.0, 0.1], dtype=torch.float64)
        for activation, dead in [("relu", 2.0), ("abs", 0.0), ("sigmoid", 0.0)]:
            metrics = read_layer(weight, bias, gaussian, activation=activation, inputs=inputs)
            assert metrics["dead_units"] == dead
        assert math.isnan(read_layer(weight, bias, gaussian, activation="relu")["dead_units"])

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("where", ["weight", "bias"])
    def test_a_layer_that_is_not_finite_reads_as_nan(self, bad, where):
        weight, bias = draw_layer(4, 2)
        (weight[3] if where == "weight" else bias)[1] = bad
        metrics = read_layer(weight, bias, draw_gaussian(2), activation="relu")
        assert tuple(metrics) == LAYER_METRICS
        assert all(math.isnan(value) for value in metrics.values())

    @settings(deadline=None, max_examples=50)
    @given(
        st.lists(
            st.lists(
                st.floats(-1e300, 1e300, allow_subnormal=False) | st.sampled_from([0.0, 1.0, -1.0]),
                min_size=3,
                max_size=3,
            ),
            min_size=1,
            max_size=5,
        ),
        st.sampled_from(ACTIVATIONS),
    )
    def test_any_finite_layer_can_be_read(self, rows, activation):
        layer = torch.tensor(rows, dtype=torch.float64)
        covariance = torch.tensor([[1.0, 0.3], [0.3, 0.2]], dtype=torch.float64)
        gaussian = Gaussian.from_covariance(torch.ones(2, dtype=torch.float64), covariance)
        weight, bias = layer[:, :2], layer[:, 2]
        inputs = samples_of(gaussian, 5)
        metrics = read_layer(weight, bias, gaussian, activation=activation, inputs=inputs)
        undefined = {name for name, value in metrics.items() if math.isnan(value)}
        without_directions = {
            *("mean_distance", "mean_distance_spread", "sphericity"),
            *("row_cosine", "row_eigenvalue_error", "gram_cosine"),
        }
        assert undefined == (set() if bool(weight.any()) else without_directions)

    def test_reading_leaves_the_layer_as_it_was(self):
        weight, bias = (tensor.requires_grad_() for tensor in draw_layer(4, 2))
        before = weight.detach().clone(), bias.detach().clone(), torch.get_rng_state()
        read_layer(weight, bias, draw_gaussian(2), activation="relu", inputs=torch.ones(3, 2))
        assert torch.equal(weight, before[0])
        assert torch.equal(bias, before[1])
        assert torch.equal(torch.get_rng_state(), before[2])
        assert weight.requires_grad
        assert weight.grad is None

    def test_a_layer_without_bias_has_hyperplanes_through_the_origin(self):
        gaussian = Gaussian(torch.tensor([3.0, 4.0]), torch.eye(2))
        weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        bare = read_layer(weight, None, gaussian, activation="abs")
        assert bare == read_layer(weight, torch.zeros(2), gaussian, activation="abs")
        assert bare["mean_distance"] == 3.5


PLANE = Gaussian.from_covariance(torch.ones(2).double(), torch.eye(2).double())
BATCH = Gaussian(torch.zeros(4, 2), torch.eye(2).expand(4, 2, 2))
EYE, ZERO, NAN = torch.eye(2), torch.zeros(2), torch.tensor([math.nan, 0.0])
RELU = functools.partial(read_layer, EYE, ZERO, PLANE, activation="relu")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: distance_to_hyperplanes(EYE, torch.ones(3), ZERO), r"bias has shape \[3\].*\[2\]"),
        (lambda: distance_to_hyperplanes(EYE, ZERO, torch.ones(3)), r"point has shape \[3\].*2\]"),
        (lambda: distance_to_hyperplanes(EYE, ZERO, NAN), "point has 1 entries"),
        (lambda: distance_in_spreads(EYE, NAN, PLANE), "bias has 1 entries that are NaN"),
        (lambda: sphericity(torch.ones(3, 3), PLANE), "2 dimensions and the weight 3 columns"),
        (lambda: sphericity(EYE, BATCH), r"batch \[4\].*one at a time"),
        (lambda: sphericity(EYE / 0, PLANE), "weight has 4 entries that are NaN or infinite"),
        (lambda: chance_cosine(PLANE, draws=0), "draws is 0"),
        *[
            (lambda scale=scale: read_gram(EYE, ZERO, PLANE, scale=scale), f"scale is {scale}")
            for scale in (0.0, -1.0, math.nan, math.inf)
        ],
        (lambda: read_layer(EYE, ZERO, PLANE, activation="tanh"), "'tanh'; give one of abs, relu"),
        (lambda: gram_scale("tanh"), "activation is 'tanh'"),
        (lambda: rows_to_read(EYE, "tanh"), "activation is 'tanh'"),
        (lambda: RELU(inputs=torch.ones(5, 3)), r"inputs have shape \[5, 3\].*\[N, 2\]"),
        (lambda: RELU(inputs=NAN[None]), "inputs has 1 entries that are NaN"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
