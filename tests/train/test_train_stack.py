"""Trials as rows of one matrix, and back to plain modules."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Chain
from mahalens.train import TrialStack
from mahalens.train.layers import parameter_count, parameter_shapes

CHAINS = [
    "Linear(1), Norm",
    "Linear(3, bias=False), Abs, Norm",
    "Linear(4), ReLU, Norm",
    "Linear(4), ReLU, Linear(3, bias=False), Abs, Linear(2), Norm, Neg",
    "Abs, Linear(3), Sigmoid, Linear(1)",
    "Linear(4), Abs, PointSlope(3)",
    "PointSlope(3), OffsetL2(2), PointSlope(1)",
    "AbsReLU(absolute=1), Linear(4), AbsReLU(absolute=0), Linear(3), AbsReLU(absolute=3)",
    "Linear(4), Softplus, Linear(3), LeakyReLU(0.3), Norm",
]


@pytest.fixture(params=CHAINS)
def chain(request):
    return Chain.parse(request.param, inputs=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
class TestRoundTrip:
    def test_modules_come_back(self, chain, dtype):
        modules = [chain.build(dtype=dtype) for _ in range(3)]
        stack = TrialStack.from_modules(chain, modules)
        assert len(stack) == 3
        assert stack.values.dtype == dtype
        x = torch.ones(5, 2, dtype=dtype)
        for trial, module in enumerate(modules):
            back = stack[trial]
            assert type(back) is nn.Sequential
            assert back.state_dict().keys() == module.state_dict().keys()
            for name, value in module.state_dict().items():
                assert torch.equal(back.state_dict()[name], value)
            assert torch.equal(back(x), module(x))

    def test_tensors_come_back(self, chain, dtype):
        stack = TrialStack.from_modules(chain, [chain.build(dtype=dtype) for _ in range(3)])
        again = TrialStack.from_tensors(chain, stack.tensors())
        assert torch.equal(again.values, stack.values)
        assert {name: tuple(t.shape[1:]) for name, t in stack.tensors().items()} == (
            parameter_shapes(chain)
        )

    def test_columns_are_the_parameters(self, chain, dtype):
        module = chain.build(dtype=dtype)
        stack = TrialStack.from_modules(chain, [module])
        assert stack.values.shape == (1, sum(p.numel() for p in module.parameters()))
        assert parameter_count(chain) == stack.values.shape[1]
        pieces = torch.cat([view.flatten() for view in stack.parts()])
        assert torch.equal(pieces, stack.values[0])  # every column once, in order


def test_parts_have_weight_and_bias_side_by_side():
    chain = Chain.parse("Linear(3), ReLU, Linear(2, bias=False), Norm", inputs=4)
    modules = [chain.build() for _ in range(2)]
    first, second = TrialStack.from_modules(chain, modules).parts()
    assert first.shape == (2, 3, 5)
    assert second.shape == (2, 2, 3)
    for trial, module in enumerate(modules):
        assert torch.equal(first[trial, :, :4], module[0].weight)
        assert torch.equal(first[trial, :, 4], module[0].bias)
        assert torch.equal(second[trial], module[2].weight)


class TestOwnership:
    chain = Chain.parse("Linear(2), Abs, Norm", inputs=2)

    def test_modules_are_copied_in(self):
        module = self.chain.build()
        stack = TrialStack.from_modules(self.chain, [module])
        before = stack.values.clone()
        with torch.no_grad():
            module[0].weight.zero_()
        assert torch.equal(stack.values, before)

    def test_modules_are_copied_out(self):
        stack = TrialStack(self.chain, torch.ones(2, 6))
        with torch.no_grad():
            stack[0][0].weight.zero_()
        assert torch.equal(stack.values, torch.ones(2, 6))

    def test_views_are_not_copies(self):
        stack = TrialStack(self.chain, torch.ones(2, 6))
        stack.parts()[0].zero_()
        stack.tensors()["0.bias"].fill_(7)
        assert torch.equal(stack.values, torch.tensor([[0.0, 0, 7, 0, 0, 7]] * 2))

    def test_gradients_do_not_come_along(self):
        stack = TrialStack.from_modules(self.chain, [self.chain.build()])
        assert not stack.values.requires_grad
        assert stack[0][0].weight.requires_grad

    def test_indices(self):
        stack = TrialStack(self.chain, torch.arange(12.0).view(2, 6))
        assert torch.equal(stack[-1][0].weight, stack[1][0].weight)
        assert len(list(stack)) == 2
        with pytest.raises(IndexError):
            stack[2]


class TestErrors:
    chain = Chain.parse("Linear(4), ReLU, Linear(3), Norm", inputs=2)

    @pytest.mark.parametrize("shape", [(27,), (3, 26), (1, 3, 27)], ids=str)
    def test_matrix_of_another_shape(self, shape):
        with pytest.raises(
            InputError,
            match=r"parameters of shape \(.*\) for the chain Linear\(4\)"
            r", ReLU, Linear\(3\), Norm; give \[T, 27\]",
        ):
            TrialStack(self.chain, torch.zeros(shape))

    def test_nothing_to_stack(self):
        with pytest.raises(InputError, match="no modules to stack; give at least one"):
            TrialStack.from_modules(self.chain, [])

    @settings(deadline=None, max_examples=20)
    @given(st.integers(0, 3))
    def test_a_module_of_another_shape_is_named(self, place):
        modules = [self.chain.build() for _ in range(4)]
        modules[place] = Chain.parse("Linear(4), ReLU, Linear(5), Norm", inputs=2).build()
        message = (
            rf"trial {place}: parameter '2\.weight' has shape \(5, 4\), but the chain Linear\(4\), "
            r"ReLU, Linear\(3\), Norm wants \(3, 4\)"
        )
        with pytest.raises(InputError, match=message):
            TrialStack.from_modules(self.chain, modules)

    def test_a_missing_parameter_is_named(self):
        other = Chain.parse("Linear(4), ReLU, Linear(3, bias=False), Norm", inputs=2).build()
        with pytest.raises(InputError, match=r"trial 1: parameter '2\.bias' has shape None"):
            TrialStack.from_modules(self.chain, [self.chain.build(), other])

    def test_a_parameter_too_many_is_named(self):
        """Dropping a bias would make another function of the module."""
        chain = Chain.parse("Linear(4), ReLU, Linear(3, bias=False), Norm", inputs=2)
        message = r"trial 0: parameter '2\.bias' has shape \(3,\), but .* wants None"
        with pytest.raises(InputError, match=message):
            TrialStack.from_modules(chain, [self.chain.build()])

    @pytest.mark.parametrize("shape", [(5, 2, 4), (4, 2), (5, 4, 2, 1), None], ids=str)
    def test_stacked_tensors_of_another_shape(self, shape):
        """A transposed weight has the right number of values."""
        tensors = TrialStack(self.chain, torch.zeros(5, 27)).tensors()
        del tensors["0.weight"]
        if shape is not None:
            tensors["0.weight"] = torch.zeros(shape)
        message = r"stacked parameter '0\.weight' has shape .* Norm wants \(T, 4, 2\)"
        with pytest.raises(InputError, match=message):
            TrialStack.from_tensors(self.chain, tensors)


class TestForeignModules:
    def test_other_layers_of_the_same_shapes(self):
        chain = Chain.parse("Linear(4), Abs, Norm", inputs=4)
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        with pytest.raises(InputError, match="trial 1: a module of Linear, ReLU for the chain"):
            TrialStack.from_modules(chain, [chain.build(), module])

    def test_other_absolute_units(self):
        chain, other = (
            Chain.parse(f"Linear(4), AbsReLU(absolute={marked})", inputs=4) for marked in (1, 2)
        )
        with pytest.raises(InputError, match=r"trial 1: a module of Linear\(4\), AbsReLU\(abs.*=2"):
            TrialStack.from_modules(chain, [chain.build(), other.build()])

    def test_other_slopes(self):
        chain, other = (Chain.parse(f"Linear(4), LeakyReLU({s})", inputs=4) for s in (0.1, 0.2))
        with pytest.raises(InputError, match=r"trial 1: a module of Linear\(4\), LeakyReLU\(0.2\)"):
            TrialStack.from_modules(chain, [chain.build(), other.build()])

    def test_mixed_dtypes(self):
        chain = Chain.parse("Linear(4), Abs, Norm", inputs=4)
        modules = [chain.build(dtype=torch.float32), chain.build(dtype=torch.float64)]
        with pytest.raises(InputError, match=r"modules of torch\.float32 and torch\.float64"):
            TrialStack.from_modules(chain, modules)
