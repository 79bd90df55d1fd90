import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from mahalens.auditing import chance_cosine, match_rows, wnorm_precision_distance
from mahalens.auditing.gaussian.rows import match_directions, random_rotation
from mahalens.errors import InputError
from mahalens.geometry.gaussian import Gaussian


def rotation(size, seed=0):
    return random_rotation(size, torch.Generator().manual_seed(seed))


def best_matching(cosine):
    """The largest sum of |cosine| over all one-to-one matchings, by trying them all."""
    size = np.abs(cosine)
    if size.shape[0] > size.shape[1]:
        size = size.T
    return max(
        sum(size[i, j] for i, j in enumerate(columns))
        for columns in itertools.permutations(range(size.shape[1]), size.shape[0])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("units", "dimensions"), [(1, 1), (4, 4), (7, 3), (3, 6)])
def test_matching_is_optimal_and_one_to_one(units, dimensions, dtype, draw_gaussian, draw_layer):
    gaussian = draw_gaussian(dimensions, dtype=dtype)
    weight, _ = draw_layer(units, dimensions, dtype=dtype)
    match = match_rows(weight, gaussian)
    exact = Gaussian(gaussian.mean.double(), gaussian.factor.double())
    w, v = weight.double().numpy(), exact.eigenvectors.numpy()
    cosine = w @ v / np.linalg.norm(w, axis=1, keepdims=True)

    matched = [j for j in range(dimensions) if match.rows[j] >= 0]
    used = match.rows[matched].tolist()
    assert len(used) == len(set(used)) == min(units, dimensions)
    for j in range(dimensions):
        i = int(match.rows[j])
        if i < 0:
            assert match.cosines[j].isnan()
            assert match.eigenvalues[j].isnan()
            assert match.errors[j].isnan()
            continue
        truth = float(exact.eigenvalues[j])
        estimate = 1 / (w[i] @ w[i])
        assert float(match.cosines[j]) == pytest.approx(abs(cosine[i, j]), rel=1e-10)
        assert float(match.eigenvalues[j]) == pytest.approx(estimate, rel=1e-10)
        assert float(match.errors[j]) == pytest.approx(abs(estimate - truth) / truth, rel=1e-8)
    total = float(match.cosines.nansum())
    assert total == pytest.approx(best_matching(cosine), rel=1e-10)
    assert match.mean_cosine == pytest.approx(total / min(units, dimensions))
    assert match.mean_error == pytest.approx(float(match.errors[matched].mean()))


@pytest.mark.parametrize("dimensions", [1, 2, 10, 30])
def test_rows_of_the_pca_whitening_are_the_eigenvectors(dimensions, draw_gaussian):
    gaussian = draw_gaussian(dimensions)
    whitening = gaussian.whitening(kind="pca")
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(dimensions, generator=generator)
    signs = 2.0 * torch.randint(2, (dimensions, 1), generator=generator) - 1
    match = match_rows(signs * whitening[order], gaussian)
    assert match.mean_cosine == pytest.approx(1, abs=1e-9)
    assert match.mean_error < 1e-7
    assert order[match.rows].tolist() == list(range(dimensions))
    torch.testing.assert_close(match.eigenvalues, gaussian.eigenvalues, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dimensions", [2, 10])
def test_rows_of_a_rotated_whitening_are_not(dimensions, draw_gaussian):
    gaussian = draw_gaussian(dimensions)
    match = match_rows(rotation(dimensions) @ gaussian.whitening(kind="pca"), gaussian)
    assert match.mean_cosine < 0.95
    assert match.mean_error > 0.1


def test_rows_without_direction_stay_out(draw_gaussian):
    gaussian = draw_gaussian(3)
    weight = torch.zeros(4, 3, dtype=torch.float64)
    weight[2] = 5 * gaussian.eigenvectors[:, 1]
    match = match_rows(weight, gaussian)
    assert match.rows.tolist() == [-1, 2, -1]
    assert match.mean_cosine == pytest.approx(1)
    nothing = match_rows(torch.zeros(4, 3), gaussian)
    assert nothing.rows.tolist() == [-1, -1, -1]
    assert math.isnan(nothing.mean_cosine)
    assert math.isnan(nothing.mean_error)


def test_matched_cosines_do_not_exceed_one():
    direction = torch.full((1, 3), 1 / math.sqrt(3), dtype=torch.float64)
    _, _, cosine = match_directions(direction @ direction.T * (1 + 1e-15))
    assert float(cosine) == 1.0


def test_chance_is_what_match_rows_gives_for_rotated_whitenings(draw_gaussian):
    gaussian = draw_gaussian(4)
    whitening = gaussian.whitening(kind="pca")
    generator = torch.Generator().manual_seed(11)
    means = [
        match_rows(random_rotation(4, generator) @ whitening, gaussian).mean_cosine
        for _ in range(40)
    ]
    chance = chance_cosine(gaussian, draws=40, generator=torch.Generator().manual_seed(11))
    assert chance.mean == pytest.approx(np.mean(means), rel=1e-7)
    assert (chance.low, chance.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), rel=1e-7)


def test_chance_in_the_round_plane_is_known():
    # A rotation by θ has max(|cos θ|, |sin θ|) for both rows; its mean is 2√2/π.
    gaussian = Gaussian.from_covariance(torch.zeros(2), torch.eye(2))
    chance = chance_cosine(gaussian, draws=2000)
    assert chance.mean == pytest.approx(2 * math.sqrt(2) / math.pi, abs=0.006)
    assert chance.low == pytest.approx(math.cos(0.975 * math.pi / 4), abs=0.006)
    assert chance.high == pytest.approx(math.cos(0.025 * math.pi / 4), abs=0.006)


def test_chance_falls_with_the_dimension(draw_gaussian):
    values = [chance_cosine(draw_gaussian(size), draws=30).mean for size in (2, 10, 40)]
    assert values == sorted(values, reverse=True)


def test_chance_is_repeatable_and_leaves_the_random_state_alone(draw_gaussian):
    gaussian = draw_gaussian(3)
    before = torch.get_rng_state()
    assert chance_cosine(gaussian, draws=5) == chance_cosine(gaussian, draws=5)
    assert torch.equal(before, torch.get_rng_state())
    generator = torch.Generator().manual_seed(1)
    first = chance_cosine(gaussian, draws=5, generator=generator)
    assert first != chance_cosine(gaussian, draws=5, generator=generator)


def test_random_rotations_are_orthogonal_and_uniform():
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("units", "dimensions"), [(1, 1), (4, 2), (3, 5)])
def test_wnorm_agrees_with_loops(units, dimensions, dtype, draw_gaussian, draw_layer):
    gaussian = draw_gaussian(dimensions, dtype=dtype)
    weight, _ = draw_layer(units, dimensions, dtype=dtype)
    factor = gaussian.factor.double().numpy()
    precision = np.linalg.inv(factor @ factor.T)
    gram = np.zeros((dimensions, dimensions))
    for w in weight.double().numpy():
        gram += np.outer(w, w) / (w @ w)
    expected = np.linalg.norm(gram - precision)
    assert wnorm_precision_distance(weight, gaussian) == pytest.approx(expected, rel=1e-6)


def test_wnorm_of_the_true_whitening_is_not_zero(draw_gaussian):
    gaussian = draw_gaussian(4)
    value = wnorm_precision_distance(gaussian.whitening(kind="pca"), gaussian)
    expected = float(torch.linalg.matrix_norm(torch.eye(4) - gaussian.precision))
    assert value == pytest.approx(expected, rel=1e-8)
    assert value > 1


def test_wnorm_ignores_lengths_order_and_zero_rows(draw_gaussian, draw_layer):
    gaussian = draw_gaussian(4)
    weight, _ = draw_layer(4, 4)
    value = wnorm_precision_distance(weight, gaussian)
    lengths = torch.tensor([[0.1], [1.0], [-30.0], [5.0]])
    changed = torch.cat([(lengths * weight).flip(0), torch.zeros(2, 4, dtype=torch.float64)])
    assert wnorm_precision_distance(changed, gaussian) == pytest.approx(value, rel=1e-12)


def test_draws_must_be_positive(draw_gaussian):
    with pytest.raises(InputError, match="draws is 0"):
        chance_cosine(draw_gaussian(2), draws=0)
