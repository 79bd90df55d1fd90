import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mahalens.auditing import deduplicate, mirrored_pairs
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_and_its_mirror_pair_up_completely(dtype, draw_layer):
    weight, _ = draw_layer(6, 5, dtype=dtype)
    lengths = torch.linspace(0.1, 30, 6, dtype=dtype)[:, None]
    both = torch.cat([weight, -lengths * weight])
    assert sorted(mirrored_pairs(both)) == [(i, i + 6) for i in range(6)]
    assert deduplicate(both, mirrored_pairs(both)).tolist() == list(range(6))


def test_most_opposite_pair_comes_first_and_takes_the_unit():
    def row(degrees):
        angle = math.radians(degrees)
        return [math.cos(angle), math.sin(angle)]

    # Unit 2 mirrors unit 1 better than unit 0, so unit 0 is left alone.
    weight = torch.tensor([row(0), row(1.5), row(181), row(90), row(270)])
    assert mirrored_pairs(weight) == [(3, 4), (1, 2)]


def test_threshold_is_strict():
    weight = torch.tensor([[1.0, 0.0], [-3.0, 4.0]])  # cosine -0.6
    assert mirrored_pairs(weight, threshold=-0.6) == []
    assert mirrored_pairs(weight, threshold=-0.599) == [(0, 1)]
    angle = math.acos(-0.999)
    for turn, found in [(1e-4, [(0, 1)]), (-1e-4, [])]:
        near = [[1.0, 0.0], [math.cos(angle + turn), math.sin(angle + turn)]]
        assert mirrored_pairs(torch.tensor(near)) == found


def test_rows_without_direction_never_pair():
    weight = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [math.nan, 0.0], [-math.inf, 0.0]])
    assert mirrored_pairs(weight, threshold=1.0) == []


def test_tiny_and_huge_rows_have_directions():
    weight = torch.tensor([[1e-300, 1e-300], [-1e300, -1e300]], dtype=torch.float64)
    assert mirrored_pairs(weight) == [(0, 1)]


def test_permuting_rows_permutes_pairs(draw_layer):
    weight, _ = draw_layer(5, 4)
    both = torch.cat([weight, -weight])
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    found = {frozenset(order[list(pair)].tolist()) for pair in mirrored_pairs(both[order])}
    assert found == {frozenset((i, i + 5)) for i in range(5)}


def test_bad_input_is_named():
    with pytest.raises(InputError, match=r"weight has shape \[3\].*\[K, D\]"):
        mirrored_pairs(torch.ones(3))
    with pytest.raises(InputError, match="at least one row"):
        mirrored_pairs(torch.ones(0, 3))
    with pytest.raises(InputError, match=r"dtype torch.int64.*\.float\(\)"):
        mirrored_pairs(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(InputError, match=r"threshold is -1\.5"):
        mirrored_pairs(torch.eye(2), threshold=-1.5)
    for pair in [(0, 2), (-1, 0), (1, 1)]:
        with pytest.raises(InputError, match="does not name two units of a layer with 2"):
            deduplicate(torch.eye(2), [pair])
