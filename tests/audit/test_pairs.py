"""Redundant units against their definitions, one pair of rows at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import draw_layer

from mahalens.auditing.pairs import PARALLEL_LISTED, deduplicate, mirrored_pairs, read_pairs
from mahalens.errors import InputError


def naive_pairs(weight, threshold):
    """The pairs again, one cosine at a time, picking the most opposite pair that is left."""
    rows = [[float(value) for value in row] for row in weight]

    def cosine(i, j):
        dot = math.fsum(x * y for x, y in zip(rows[i], rows[j], strict=True))
        return dot / (math.hypot(*rows[i]) * math.hypot(*rows[j]))

    free = [i for i, row in enumerate(rows) if any(row)]
    pairs = []
    while True:
        candidates = [
            (round(cosine(i, j), 12), i, j)
            for i in free
            for j in free
            if i < j and round(cosine(i, j), 12) < threshold
        ]
        if not candidates:
            return pairs
        _, i, j = min(candidates)
        pairs.append((i, j))
        free = [unit for unit in free if unit not in (i, j)]


small_rows = st.integers(1, 3).flatmap(
    lambda columns: st.lists(
        st.lists(st.integers(-2, 2), min_size=columns, max_size=columns), min_size=1, max_size=7
    )
)


@settings(deadline=None)
@given(small_rows, st.sampled_from([-1.0, -0.999, -0.7, 0.3, 1.0]))
def test_pairs_agree_with_the_loop_and_use_each_unit_once(rows, threshold):
    weight = torch.tensor(rows, dtype=torch.float64)
    pairs = mirrored_pairs(weight, threshold)
    used = [unit for pair in pairs for unit in pair]
    assert len(used) == len(set(used))
    assert all(i < j for i, j in pairs)
    assert all(weight[unit].any() for unit in used)
    assert pairs == naive_pairs(weight, threshold)
    kept = deduplicate(weight, pairs).tolist()
    assert kept == sorted(set(range(len(rows))) - {j for _, j in pairs})


def test_pairs_are_mirrored_beyond_a_cosine_of_minus_0_999():
    angle = math.acos(-0.999)
    for turn, found in [(1e-4, [(0, 1)]), (-1e-4, [])]:
        near = [[1.0, 0.0], [math.cos(angle + turn), math.sin(angle + turn)]]
        assert mirrored_pairs(torch.tensor(near)) == found


def naive_reading(weight, bias, cosine):
    """Duplicate and parallel pairs by their definitions, one pair of rows at a time."""
    rows = [[float(value) for value in row] for row in weight]
    usable = [any(row) and all(map(math.isfinite, row)) for row in rows]
    lengths = [math.hypot(*row) for row in rows]

    def cosine_of(i, j):
        dot = math.fsum(x * y for x, y in zip(rows[i], rows[j], strict=True))
        return round(dot / (lengths[i] * lengths[j]), 12)

    def same(i, j):
        away = [x / lengths[i] - y / lengths[j] for x, y in zip(rows[i], rows[j], strict=True)]
        a, b = float(bias[i]) / lengths[i], float(bias[j]) / lengths[j]
        return math.hypot(*away) <= 1e-6 and abs(a - b) <= 1e-6 * max(abs(a), abs(b))

    units = [k for k in range(len(rows)) if usable[k]]
    leader = {}
    for j in units:
        leader[j] = next((i for i in units if i < j and leader[i] == i and same(i, j)), j)
    duplicate = [(i, j) for j, i in leader.items() if i != j]
    leads = [k for k in units if leader[k] == k]
    mirrored = mirrored_pairs(weight, -cosine)
    parallel = [
        (-abs(cosine_of(i, j)), i, j)
        for i in leads
        for j in leads
        if i < j and abs(cosine_of(i, j)) > cosine and (i, j) not in mirrored
    ]
    return sorted(duplicate), [(i, j) for _, i, j in sorted(parallel)]


@st.composite
def layers(draw):
    """Small whole numbers, so that many rows share a direction, and some are a little off."""
    columns = draw(st.integers(1, 3))
    row = st.lists(st.integers(-2, 2), min_size=columns, max_size=columns)
    rows = draw(st.lists(row, min_size=1, max_size=9))
    bias = draw(st.lists(st.integers(-1, 2), min_size=len(rows), max_size=len(rows)))
    weight = torch.tensor(rows, dtype=torch.float64)
    if draw(st.booleans()):
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(rows)))
        weight = weight + draw(st.sampled_from([1e-2, 1e-4])) * noise
    return weight, torch.tensor(bias, dtype=torch.float64)


@settings(deadline=None)
@given(layers(), st.sampled_from([0.0, 0.3, 0.999, 1.0]), st.integers(1, 9), st.integers(1, 5))
def test_blocks_agree_with_the_definitions(layer, cosine, block, held):
    weight, bias = layer
    reading = read_pairs(weight, bias, cosine, block=block, held=held)
    duplicate, parallel = naive_reading(weight, bias, cosine)
    assert list(reading.mirrored) == mirrored_pairs(weight, -cosine)
    assert list(reading.duplicate) == duplicate
    assert list(reading.parallel) == parallel
    assert reading.parallel_left_out == 0
    kept = deduplicate(weight, [*reading.mirrored, *reading.duplicate])
    assert list(reading.kept) == kept.tolist()


@settings(deadline=None, max_examples=40)
@given(layers(), st.sampled_from([0.0, 0.999]), st.integers(1, 4))
def test_the_best_parallel_pairs_are_listed_and_the_rest_counted(layer, cosine, listed):
    weight, bias = layer
    reading = read_pairs(weight, bias, cosine, block=2, listed=listed)
    _, parallel = naive_reading(weight, bias, cosine)
    assert list(reading.parallel) == parallel[:listed]
    assert reading.parallel_left_out == max(0, len(parallel) - listed)


def test_planted_pairs_are_found_among_random_rows():
    weight, bias = draw_layer(300, 40, dtype=torch.float32)
    weight[250], bias[250] = -3 * weight[7], bias[7]  # mirrored
    weight[251], bias[251] = weight[8], bias[8]  # a copy
    weight[252], bias[252] = 0.7 * weight[8], 0.7 * bias[8]  # and a multiple
    weight[253], bias[253] = 1.3 * weight[9], bias[9]  # parallel
    reading = read_pairs(weight, bias, block=64)
    assert reading.mirrored == ((7, 250),)
    assert reading.duplicate == ((8, 251), (8, 252))
    assert reading.parallel == ((9, 253),)
    assert set(range(300)) - set(reading.kept) == {250, 251, 252}


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 400), st.floats(1e-3, 1e3), st.integers(0, 100), st.floats(-5, 5))
def test_rounding_does_not_lose_scaled_copies(columns, factor, seed, log_bias):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(1, columns, generator=generator)
    bias = torch.randn(1, generator=generator) * 10**log_bias
    both = torch.cat([weight, weight * factor]), torch.cat([bias, bias * factor])
    assert read_pairs(*both).duplicate == ((0, 1),)
    assert read_pairs(-both[0], both[1]).duplicate == ((0, 1),)


def test_a_hyperplane_a_little_further_is_no_duplicate():
    weight = torch.tensor([[3.0, 4.0]] * 2, dtype=torch.float64)
    for away, found in [(1e-7, 1), (1.5e-6, 0), (1e-5, 0)]:
        bias = torch.tensor([2.0, 2 * (1 + away)], dtype=torch.float64)
        assert len(read_pairs(weight, bias).duplicate) == found
        turned = weight + torch.tensor([[0.0, 0.0], [-4 * away, 3 * away]])
        assert len(read_pairs(turned, bias[[0, 0]]).duplicate) == found
    # An offset of 0 has no size to be relative to.
    assert read_pairs(weight, torch.tensor([0.0, 1e-12])).duplicate == ()
    assert read_pairs(weight, torch.zeros(2)).duplicate == ((0, 1),)
    assert read_pairs(weight, torch.tensor([1.0, -1.0])).duplicate == ()


def test_every_duplicate_is_one_of_its_leader_not_of_a_chain():
    weight = torch.ones(4, 2, dtype=torch.float64)
    bias = 1 + torch.tensor([0.0, 0.8e-6, 1.6e-6, 2.4e-6], dtype=torch.float64)
    assert read_pairs(weight, bias).duplicate == ((0, 1), (2, 3))


def test_a_layer_of_one_row_many_times_stays_small():
    units = 300
    weight = torch.ones(units, 5)
    reading = read_pairs(weight, torch.ones(units), block=128)
    assert reading.duplicate == tuple((0, j) for j in range(1, units))
    assert (reading.mirrored, reading.parallel, reading.kept) == ((), (), (0,))
    # Half of them turned round: 22,500 opposite pairs, all equal, taken in several rounds.
    weight[1::2] *= -1
    reading = read_pairs(weight, torch.arange(units).float(), block=128, held=5_000)
    assert list(reading.mirrored) == mirrored_pairs(weight)
    assert len(reading.mirrored) == units // 2
    total = units * (units - 1) // 2 - units // 2
    assert len(reading.parallel) == PARALLEL_LISTED
    assert reading.parallel_left_out == total - PARALLEL_LISTED


def test_a_layer_collapsed_to_one_direction_agrees_with_the_plain_way():
    generator = torch.Generator().manual_seed(0)
    for noise in (1e-3, 1e-6, 1e-8):
        weight = torch.ones(120, 30, dtype=torch.float64)
        weight[::3] *= -1
        weight += noise * torch.randn(120, 30, generator=generator, dtype=torch.float64)
        bias = torch.zeros(120)
        reading = read_pairs(weight, bias, block=32, held=1000)
        assert list(reading.mirrored) == mirrored_pairs(weight)
        duplicate, parallel = naive_reading(weight, bias, 0.999)
        assert list(reading.duplicate) == duplicate
        assert list(reading.parallel) == parallel


def test_close_to_the_threshold_float64_decides():
    angle = torch.arccos(torch.tensor(0.999, dtype=torch.float64))
    turns = torch.stack([angle - 1e-9, angle + 1e-9])
    rows = torch.stack([torch.cos(turns), torch.sin(turns)], dim=1)
    weight = torch.cat([torch.tensor([[-1.0, 0.0]], dtype=torch.float64), rows])
    reading = read_pairs(weight, torch.arange(3.0), cosine=0.999)
    assert reading.mirrored == ((0, 1),)
    assert reading.parallel == ((1, 2),)


def test_rows_without_direction_never_pair():
    nan, inf = math.nan, math.inf
    weight = torch.tensor([[0.0, 0], [0, 0], [nan, 1], [nan, 1], [inf, 0], [1, 0], [1, 0], [-1, 0]])
    bias = torch.tensor([0.0, 0, 0, 0, 0, nan, 0, inf])
    reading = read_pairs(weight, bias, cosine=0.0)
    assert (reading.mirrored, reading.duplicate, reading.parallel) == ((), (), ())
    assert reading.kept == tuple(range(8))
    assert mirrored_pairs(weight[:6], threshold=1.0) == []


def test_tiny_and_huge_rows_have_directions():
    rows = [[1e-300, 1e-300], [-1e300, -1e300], [1e-310, 0], [1, 0]]
    weight = torch.tensor(rows, dtype=torch.float64)
    reading = read_pairs(weight, torch.ones(4, dtype=torch.float64))
    assert list(reading.mirrored) == mirrored_pairs(weight) == [(0, 1)]
    assert reading.parallel == ((2, 3),)


def test_it_leaves_the_weight_and_the_random_state_alone():
    weight, bias = draw_layer(20, 3)
    weight.requires_grad_()
    before, state = weight.detach().clone(), torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = read_pairs(weight, bias, cosine=0.9)
    assert torch.equal(weight, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert inside == read_pairs(before, bias, cosine=0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mirrored_pairs(torch.ones(3)), r"weight has shape \[3\].*\[K, D\]"),
        (lambda: mirrored_pairs(torch.ones(0, 3)), "at least one row"),
        (lambda: mirrored_pairs(torch.ones(2, 2).long()), r"dtype torch.int64.*\.float\(\)"),
        (lambda: mirrored_pairs(torch.eye(2), threshold=-1.5), r"threshold is -1\.5"),
        *[
            (lambda pair=pair: deduplicate(torch.eye(2), [pair]), "not name two units of a layer")
            for pair in [(0, 2), (-1, 0), (1, 1)]
        ],
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
