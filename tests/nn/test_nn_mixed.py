"""AbsReLU: an absolute value for marked units and a ReLU for the others, and nothing between."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU

MASK = [True, False, True]


def points(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def slow(x, mask, dim):
    """Unit by unit."""
    parts = [
        part.abs() if mark else part.clamp(min=0)
        for part, mark in zip(x.unbind(dim), mask, strict=True)
    ]
    return torch.stack(parts, dim)


class TestLaws:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(
        ("shape", "dim"),
        [
            ((3,), -1),
            ((5, 3), -1),
            ((2, 5, 3), -1),
            ((0, 3), -1),
            ((4, 3, 6), -2),
            ((3, 6), -2),
            ((2, 3, 4, 3), -3),
            ((3, 4, 3), -3),
            ((2, 3, 2, 3, 4), -4),
        ],
        ids=str,
    )
    def test_unit_by_unit(self, shape, dim, dtype):
        x = points(*shape, dtype=dtype)
        out = AbsReLU(MASK, dim=dim)(x)
        assert torch.equal(out, slow(x, MASK, dim))
        assert out.dtype == dtype

    def test_all_or_none(self):
        x = points(7, 3)
        assert torch.equal(AbsReLU([True] * 3)(x), Abs()(x))
        assert torch.equal(AbsReLU([False] * 3)(x), nn.ReLU()(x))

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.booleans(), st.floats(-1e6, 1e6)), min_size=1, max_size=6))
    def test_it_stands_for_a_pair_of_mirrored_units(self, units):
        mask, values = zip(*units, strict=True)
        z = torch.tensor(values, dtype=torch.float64)
        with_mirrors = z.relu() + torch.tensor(mask) * (-z).relu()
        assert torch.equal(AbsReLU(mask)(z), with_mirrors)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
    def test_what_is_not_finite_is_not_hidden(self, bad):
        x = torch.tensor([bad, bad, 1.0])
        torch.testing.assert_close(AbsReLU(MASK)(x), slow(x, MASK, -1), equal_nan=True)


class TestDerivatives:
    def test_gradcheck(self):
        x = points(4, 3)
        x = (x + x.sign()).requires_grad_()
        assert torch.autograd.gradcheck(AbsReLU(MASK), (x,))
        assert torch.autograd.gradgradcheck(AbsReLU(MASK), (x,))

    def test_slopes(self):
        x = torch.tensor([[-2.0, -2.0, 0.0], [2.0, 2.0, 3.0], [0.0, 0.0, -1.0]], requires_grad=True)
        AbsReLU(MASK)(x).sum().backward()
        assert x.grad.tolist() == [[-1, 0, 0], [1, 1, 1], [0, 0, -1]]


class TestOrdinaryModule:
    def test_state(self):
        layer = AbsReLU(MASK, dim=-3)
        assert list(layer.state_dict()) == ["absolute"]
        other = AbsReLU([False] * 3, dim=-3)
        other.load_state_dict(layer.state_dict())
        assert other.absolute.tolist() == MASK
        assert list(layer.parameters()) == []
        assert copy.deepcopy(layer).absolute.tolist() == MASK

    def test_it_keeps_a_mask_of_its_own(self):
        mask = torch.tensor(MASK)
        layer = AbsReLU(mask)
        mask[:] = False
        assert layer.absolute.tolist() == MASK

    def test_repr(self):
        assert repr(AbsReLU(MASK, dim=-3)) == "AbsReLU(absolute=2, relu=1, dim=-3)"

    def test_converting_a_network_leaves_the_mask(self):
        net = nn.Sequential(nn.Linear(2, 3), AbsReLU(MASK)).to(torch.float64)
        assert net[1].absolute.dtype == torch.bool
        assert net(points(4, 2)).dtype == torch.float64

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    def test_compiled_by_torch(self):
        layer, x = AbsReLU(MASK), points(5, 3).requires_grad_()
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), layer(x))
        (got,) = torch.autograd.grad(compiled(x).sum(), x)
        (wanted,) = torch.autograd.grad(layer(x).sum(), x)
        assert torch.equal(got, wanted)


class TestErrors:
    @pytest.mark.parametrize("mask", [[], [1, 0], [[True]], True, torch.zeros(3)])
    def test_masks(self, mask):
        with pytest.raises(InputError, match="give true or false for each unit") as caught:
            AbsReLU(mask)
        assert "\n" not in str(caught.value)

    def test_axis(self):
        with pytest.raises(InputError, match="dim 1; count it from the end"):
            AbsReLU(MASK, dim=1)

    @pytest.mark.parametrize(("shape", "dim"), [((4,), -1), ((), -1), ((3,), -2), ((3, 4), -1)])
    def test_shapes(self, shape, dim):
        with pytest.raises(InputError, match="AbsReLU of 3 units along axis"):
            AbsReLU(MASK, dim=dim)(torch.zeros(shape))
