"""What every start keeps to, whatever its method, layer and precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starts import (
    DTYPES,
    LAYERS,
    PAIRS,
    STARTS,
    linear,
    planted,
    same_state,
    seeded,
    start,
    state_of,
)
from torch import nn

from mahalens.init import METHODS, check_init, initialise


def fresh(name, kind, dtype=torch.float64):
    """Seven units, but three prototypes where each has a cluster of its own."""
    clustered = kind not in ("Linear", "PointSlope") and name in ("cluster_pca", "whiten")
    return LAYERS[kind](4, 3 if clustered else 7, dtype)


def started(name, kind, dtype=torch.float64, data=None):
    x, labels = planted(3, 4, dtype=dtype) if data is None else data
    return start(name, fresh(name, kind, dtype), x, labels, generator=seeded(3))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
class TestEveryStart:
    def test_is_reproducible_by_seed_and_changes_nothing_but_the_layer(self, name, kind):
        x, labels = planted(3, 4)
        copies = x.clone(), labels.clone()
        first = state_of(started(name, kind))
        with torch.random.fork_rng():
            torch.manual_seed(5)
            again = started(name, kind, data=(x.requires_grad_(), labels))
            moved = torch.get_rng_state()
            torch.manual_seed(5)
            fresh(name, kind)  # which draws its own starting weights
            assert torch.equal(torch.get_rng_state(), moved)
        assert same_state(first, state_of(again), equal_nan=True)
        again(x.detach()).sum().backward()
        assert x.grad is None
        assert torch.equal(x.detach(), copies[0])
        assert torch.equal(labels, copies[1])

    def test_without_a_generator_the_global_one_decides(self, name, kind):
        x, labels = planted(3, 4)
        states = []
        with torch.random.fork_rng():
            for _ in range(2):
                layer = LAYERS[kind](4, 3, torch.float64)
                torch.manual_seed(11)
                states.append(state_of(start(name, layer, x, labels)))
        assert same_state(*states, equal_nan=True)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("trainable", [True, False])
    def test_keeps_dtype_and_requires_grad_and_the_parameters_themselves(
        self, name, kind, dtype, trainable
    ):
        x, labels = planted(3, 4, dtype=dtype)
        layer = LAYERS[kind](4, 3, dtype).requires_grad_(trainable)
        held = list(layer.parameters())
        assert start(name, layer, x, labels, generator=seeded()) is layer
        for old, new in zip(held, layer.parameters(), strict=True):
            assert old is new
            assert (new.dtype, new.requires_grad) == (dtype, trainable)
            assert (new.grad, new.is_leaf) == (None, True)
            assert bool(new.isfinite().all())

    def test_both_precisions_agree(self, name, kind):
        double = state_of(started(name, kind, torch.float64))
        single = state_of(started(name, kind, torch.float32))
        bounds = {"rtol": 1e-3, "atol": 1e-3, "equal_nan": True}
        for key, value in single.items():
            torch.testing.assert_close(value.double(), double[key].double(), **bounds)

    def test_half_precision(self, name, kind):
        layer = started(name, kind, torch.bfloat16)
        assert all(bool(p.isfinite().all()) for p in layer.parameters())


@pytest.mark.parametrize("name", ["whiten", "cluster_pca"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(deadline=None, max_examples=25)
@given(
    units=st.integers(1, 12),
    dim=st.integers(1, 5),
    offset=st.sampled_from([0.0, 1.0, -300.0]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_where_it_is_promised_no_unit_is_dead(name, dtype, units, dim, offset, scale, seed):
    """Rows on both sides of every hyperplane, far from the origin too."""
    x = (scale * (torch.randn(80, dim, generator=seeded(seed)).double() + offset)).to(dtype)
    layer = STARTS[name](linear(dim, units, dtype), x, None, generator=seeded(seed))
    z = layer(x).detach()
    assert bool((z.amax(0) > 0.1).all())
    assert bool((z.amin(0) < -0.1).all())
    assert not check_init(nn.Sequential(layer, nn.ReLU()), x).layers[0].dead


@pytest.mark.parametrize("name", METHODS)
def test_a_model_of_one_layer_is_started_as_the_layer_alone(name):
    x, labels = planted(3, 4)
    alone, inside = linear(4, 6), linear(4, 6)
    STARTS[name](alone, x, labels, generator=seeded())
    done = initialise(nn.Sequential(inside), (x, labels), name, generator=seeded())
    assert done.started == {"0": name}
    assert same_state(state_of(alone), state_of(inside))
