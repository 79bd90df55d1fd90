"""Trials as rows of one matrix, and back to plain modules."""

import pytest
import torch
from torch import nn

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
