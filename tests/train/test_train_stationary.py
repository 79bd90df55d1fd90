"""Smallest and largest curvature, dense and by Lanczos, against the whole Hessian."""

import pytest
import torch

from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import MeanSquaredError, TrialStack
from mahalens.train.stationary import curvature_range, curves_down

CHAINS = [
    "Linear(1, bias=False), Norm",
    "Linear(2), Abs, Norm",
    "Linear(4), ReLU, Norm",
    "Linear(4), ReLU, Neg, Linear(3), Neg, Norm",
]


def check_range(found, hessian):
    values = torch.linalg.eigvalsh(hessian.double())
    reach = float(values.abs().max())
    assert found[1] == pytest.approx(float(values[-1]), abs=1e-3 * reach)
    assert found[0] == pytest.approx(float(values[0]), abs=1e-3 * reach)
    assert found[0] >= float(values[0]) - 1e-6 * reach  # never too low


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_few_parameters(text, dtype, draw_problem, draw_stack, plain_derivatives):
    problem = draw_problem(2, 40, dtype)
    chain = Chain.parse(text, inputs=2)
    objective = MeanSquaredError(chain, problem.x, problem.y)
    for values in draw_stack(chain, 3, dtype).values:
        hessian = plain_derivatives(chain, problem.x, problem.y, values)[2]
        check_range(curvature_range(objective, values), hessian)


@pytest.mark.parametrize("make", [md_abs, md_relu, md_sigmoid])
def test_many_parameters(make, draw_problem, draw_start, plain_derivatives):
    problem = draw_problem(9, 60)
    start = draw_start(make(9), problem.x, 2)
    objective = MeanSquaredError(start.chain, problem.x, problem.y)
    # Not exactly through the samples, where autograd sees no bend in |x|.
    for values in start.values + 0.01:
        hessian = plain_derivatives(start.chain, problem.x, problem.y, values)[2]
        found = curvature_range(objective, values)
        check_range(found, hessian)
        assert found == curvature_range(objective, values)  # and the same whenever it is asked


def test_a_flat_floor_is_not_a_slope_down(draw_problem):
    """The truth may be turned freely: many eigenvalues are exactly 0, where Lanczos is slow."""
    problem = draw_problem(9, 200)
    chain = md_abs(9)
    weight = problem.gaussian.whitening("pca")
    bias = -(weight @ problem.gaussian.mean)
    truth = TrialStack.from_tensors(chain, {"0.weight": weight[None], "0.bias": bias[None]})
    objective = MeanSquaredError(chain, problem.x, problem.y)
    low, high = curvature_range(objective, truth.values[0])
    assert abs(low) < 1e-6 * high
    assert not bool(curves_down(objective, truth, torch.tensor([True])).any())


def test_a_unit_that_is_zero_is_seen(draw_problem, draw_start):
    """One of nine units is 0: waking it up helps, though autograd sees no bend in |x| at 0."""
    problem = draw_problem(9, 200)
    chain = md_abs(9)
    start = draw_start(chain, problem.x, 1)
    weight = problem.gaussian.whitening("pca")
    start.tensors()["0.weight"][0] = weight
    start.tensors()["0.bias"][0] = -(weight @ problem.gaussian.mean)
    start.parts()[0][0, 4] = 0
    objective = MeanSquaredError(chain, problem.x, problem.y)
    assert bool(curves_down(objective, start, torch.tensor([True])))


def test_only_those_asked_for(draw_problem, draw_stack, plain_derivatives):
    problem = draw_problem(2, 40)
    chain = md_relu(2)
    stack = draw_stack(chain, 12)
    objective = MeanSquaredError(chain, problem.x, problem.y)
    wanted = []
    for values in stack.values:
        eigenvalues = torch.linalg.eigvalsh(
            plain_derivatives(chain, problem.x, problem.y, values)[2]
        )
        wanted.append(bool(eigenvalues[0] < -1e-6 * eigenvalues[-1]))
    assert any(wanted)
    asked = torch.arange(12) % 2 == 0
    found = curves_down(objective, stack, asked)
    assert found.tolist() == [w and a for w, a in zip(wanted, asked.tolist(), strict=True)]


def test_nothing_is_left_behind(draw_problem, draw_stack):
    problem = draw_problem(2, 40)
    stack = draw_stack(md_abs(2), 1)
    before = stack.values.clone()
    curvature_range(MeanSquaredError(stack.chain, problem.x, problem.y), stack.values[0])
    assert torch.equal(stack.values, before)
    assert not stack.values.requires_grad
