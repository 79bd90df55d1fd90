"""The converging solver: whitened inside, the coordinates of x outside."""

from types import SimpleNamespace

import pytest
import torch

from mahalens.errors import InputError
from mahalens.geometry import Gaussian
from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import MeanSquaredError, Newton, Status, TrialStack, WhitenedInputs
from mahalens.train.second_order import FEW_PARAMETERS

METHODS = {"levenberg-marquardt": 10_000, "l-bfgs": 0}


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def newton(problem, start, steps, method=None):
    """Trains ``start`` for the distances of a drawn problem."""
    objective = MeanSquaredError(start.chain, problem.x, problem.y)
    return Newton(objective, start, steps, few=METHODS.get(method, FEW_PARAMETERS))


def plain_losses(stack, x, y):
    return torch.stack([torch.nn.functional.mse_loss(m(x), y).detach() for m in stack])


class TestEnd:
    @pytest.mark.parametrize("make", [md_abs, md_relu, md_sigmoid])
    def test_weights_come_back_in_the_coordinates_of_x(
        self, method, make, draw_problem, draw_start, run
    ):
        problem = draw_problem(2, 150)
        chain = make(2)
        start = draw_start(chain, problem.x, 4)
        solver = run(newton(problem, start, 300, method))
        assert solver.method == method
        losses = plain_losses(solver.stack, problem.x, problem.y)
        torch.testing.assert_close(solver.final_loss, losses, rtol=1e-9, atol=1e-25)
        assert bool((losses < plain_losses(start, problem.x, problem.y)).all())

    def test_the_loss_is_there_on_the_way(self, method, draw_problem, draw_start):
        problem = draw_problem(2, 150)
        start = draw_start(md_abs(2), problem.x, 4)
        solver = newton(problem, start, 300, method)
        for _ in range(3):
            losses = plain_losses(solver.stack, problem.x, problem.y)
            torch.testing.assert_close(solver.final_loss, losses)
            solver.advance()

    def test_the_precision_is_recovered(self, method, draw_problem, draw_start, run):
        problem = draw_problem(3, 300)
        chain = md_abs(3)
        start = draw_start(chain, problem.x, 8)
        solver = run(newton(problem, start, 2000, method))
        zero = [t for t, s in enumerate(solver.statuses) if s is Status.ZERO_RESIDUAL]
        assert len(zero) >= 3
        assert float(solver.final_loss[zero].max()) < 1e-25
        weight = solver.stack.tensors()["0.weight"][zero]
        precision = problem.gaussian.precision
        errors = (weight.mT @ weight - precision).norm(dim=(1, 2)) / precision.norm()
        assert float(errors.max()) < 1e-11

    def test_a_badly_scaled_gaussian(self, method, draw_start, run):
        """Spreads from 1 to 1/300 and a mean far away, as the study draws them in 100-D."""
        spreads = torch.tensor([1.0, 0.05, 1 / 300], dtype=torch.float64)
        turn = torch.linalg.qr(torch.arange(9.0, dtype=torch.float64).view(3, 3).cos()).Q
        covariance = (turn * spreads.square()) @ turn.T
        mean = torch.tensor([8.0, -3.0, 5.0], dtype=torch.float64)
        gaussian = Gaussian.from_covariance(mean, (covariance + covariance.T) / 2)
        x = gaussian.sample(300, torch.Generator().manual_seed(0))
        y = gaussian.mahalanobis(x)
        chain = md_abs(3)
        solver = run(newton(SimpleNamespace(x=x, y=y), draw_start(chain, x, 8), 2000, method))
        zero = [t for t, s in enumerate(solver.statuses) if s is Status.ZERO_RESIDUAL]
        assert zero
        assert float(solver.final_loss[zero].max()) < 1e-20
        # What is left is rounding on the way back, which the loss inside does not show.
        losses = plain_losses(solver.stack, x, y)
        torch.testing.assert_close(solver.final_loss.log10(), losses.log10(), rtol=0, atol=1)
        weight = solver.stack.tensors()["0.weight"][zero]
        errors = (weight.mT @ weight - gaussian.precision).norm(dim=(1, 2))
        assert float(errors.max() / gaussian.precision.norm()) < 1e-8

    def test_single_precision(self, method, draw_problem, draw_start, run):
        problem = draw_problem(3, 300, torch.float32)
        chain = md_abs(3)
        solver = run(newton(problem, draw_start(chain, problem.x, 8), 2000, method))
        assert solver.stack.values.dtype == torch.float32
        zero = [t for t, s in enumerate(solver.statuses) if s is Status.ZERO_RESIDUAL]
        assert len(zero) >= 3
        assert float(solver.final_loss[zero].max()) < 1e-8
        losses = plain_losses(solver.stack, problem.x, problem.y)
        torch.testing.assert_close(solver.final_loss, losses, rtol=1e-3, atol=1e-9)

    def test_where_the_parameters_are_many(self, draw_problem, draw_start):
        for dim, method in ((23, "levenberg-marquardt"), (25, "l-bfgs")):
            problem = draw_problem(dim, 30)
            start = draw_start(md_abs(dim), problem.x, 1)
            assert newton(problem, start, 1).method == method


class TestFewSamples:
    @pytest.mark.parametrize("samples", [2, 3, 4])
    def test_no_more_than_inputs(self, method, samples, draw_problem, draw_start, run):
        problem = draw_problem(4, samples)
        chain = md_abs(4)
        start = draw_start(chain, problem.x, 5)
        solver = run(newton(problem, start, 500, method))
        assert all(s is Status.ZERO_RESIDUAL for s in solver.statuses)
        losses = plain_losses(solver.stack, problem.x, problem.y)
        assert float(losses.max()) < 1e-23
        assert float(solver.final_loss.max()) < 1e-23

    def test_an_input_that_never_changes(self, method, draw_problem, draw_start, run):
        problem = draw_problem(3, 100)
        problem.x[:, 1] = 7.0
        chain = md_abs(3)
        solver = run(newton(problem, draw_start(chain, problem.x, 3), 200, method))
        losses = plain_losses(solver.stack, problem.x, problem.y)
        torch.testing.assert_close(solver.final_loss, losses, rtol=1e-8, atol=1e-25)
        assert bool(losses.isfinite().all())

    def test_one_sample_has_no_spread(self, draw_problem, draw_start):
        problem = draw_problem(2, 1)
        with pytest.raises(InputError, match="1 sample of 2 inputs, wanted at least 2"):
            newton(problem, draw_start(md_abs(2), problem.x, 1), 10)


class TestBroken:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
    def test_a_non_finite_start_is_labelled(self, method, bad, draw_problem, draw_start, run):
        problem = draw_problem(2, 100)
        chain = md_abs(2)
        start = draw_start(chain, problem.x, 3)
        start.values[1] = bad
        solver = run(newton(problem, start, 500, method))
        assert solver.statuses[1] is Status.NON_FINITE
        assert int(solver.steps[1]) == 1
        assert not bool(solver.final_loss[1].isfinite())
        for trial in (0, 2):
            assert solver.statuses[trial] in (Status.ZERO_RESIDUAL, Status.LOCAL_MINIMUM)
            assert bool(solver.final_loss[trial].isfinite())


class TestResuming:
    def test_from_any_step_to_the_very_same_end(
        self, method, draw_problem, draw_start, run, through_file, assert_same_end
    ):
        problem = draw_problem(2, 80)
        chain = md_abs(2)
        start = draw_start(chain, problem.x, 4)

        def fresh():
            return newton(problem, start, 200, method)

        solver, states = fresh(), []
        while not solver.finished:
            states.append(solver.state())
            solver.advance()
        for state in states[::4]:
            again = fresh()
            again.restore(through_file(state))
            assert_same_end(run(again), solver)

    def test_progress_and_seconds(self, draw_problem, draw_start, run):
        problem = draw_problem(2, 80)
        start = draw_start(md_abs(2), problem.x, 4)
        solver = newton(problem, start, 200)
        assert solver.progress == (0, 4, "step 0, MSE nan")
        solver.advance()
        done, of, words = solver.progress
        assert (done, of) == (0, 4)
        assert words == f"step 1, MSE {float(solver.curve[1][-1].median()):.3g}"
        solver.seconds += 1.5
        assert float(solver.state()["seconds"]) == 1.5
        assert run(solver).progress[:2] == (4, 4)


class TestCoordinates:
    @pytest.mark.parametrize(
        "text", ["Linear(3), Abs, Norm", "Linear(4), ReLU, Linear(2, bias=False), Norm"]
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_the_same_function_there_and_back(self, text, dtype, draw_problem, draw_stack):
        problem = draw_problem(3, 50, dtype)
        chain = Chain.parse(text, inputs=3)
        stack = draw_stack(chain, 4, dtype)
        kept = stack.values.clone()
        coordinates = WhitenedInputs(problem.x)
        z = coordinates.inputs(problem.x)
        inside = coordinates.enter(stack)
        back = coordinates.leave(inside)
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
        close = {"rtol": tolerance, "atol": tolerance}
        for trial in range(4):
            torch.testing.assert_close(inside[trial](z), stack[trial](problem.x), **close)
        torch.testing.assert_close(back.values, stack.values, **close)
        assert torch.equal(stack.values, kept)

    def test_inputs_are_white(self, draw_problem):
        problem = draw_problem(3, 50)
        z = WhitenedInputs(problem.x).inputs(problem.x)
        torch.testing.assert_close(z.mean(0), torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(torch.cov(z.T), torch.eye(3, dtype=torch.float64))

    def test_no_bias_to_shift(self, draw_problem, draw_stack):
        problem = draw_problem(3, 50)
        chain = Chain.parse("Linear(3, bias=False), Abs, Norm", inputs=3)
        stack = draw_stack(chain, 1)
        coordinates = WhitenedInputs(problem.x)
        for way in (coordinates.enter, coordinates.leave):
            with pytest.raises(InputError, match="has no bias in its first layer to shift"):
                way(stack)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_a_layer_without_bias_is_not_shifted(self, dtype, draw_problem, draw_stack):
        """Its inputs are only turned and scaled: their second moment about 0 becomes 1."""
        problem = draw_problem(3, 50, dtype)
        chain = Chain.parse("Linear(3, bias=False), Abs, Norm", inputs=3)
        stack = draw_stack(chain, 4, dtype)
        coordinates = WhitenedInputs(problem.x, centred=False)
        z = coordinates.inputs(problem.x)
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(z.T @ z / 50, torch.eye(3, dtype=dtype), **close)
        inside = coordinates.enter(stack)
        for trial in range(4):
            torch.testing.assert_close(inside[trial](z), stack[trial](problem.x), **close)
        torch.testing.assert_close(coordinates.leave(inside).values, stack.values, **close)

    def test_a_chain_without_bias_is_trained(self, method, draw_problem, draw_stack, run):
        problem = draw_problem(3, 50)
        chain = Chain.parse("Linear(3, bias=False), Abs, Norm", inputs=3)
        truth = draw_stack(chain, 1)
        problem.y = truth[0](problem.x).detach()
        start = TrialStack(chain, truth.values + 0.1 * draw_stack(chain, 4, seed=1).values)
        solver = run(newton(problem, start, 500, method))
        assert solver.statuses == [Status.ZERO_RESIDUAL] * 4
        assert float(plain_losses(solver.stack, problem.x, problem.y).max()) < 1e-20


def test_the_objective_s_minimum_does_not_depend_on_the_coordinates(draw_problem, draw_start):
    problem = draw_problem(3, 50)
    start = draw_start(md_abs(3), problem.x, 4)
    coordinates = WhitenedInputs(problem.x)
    outside = MeanSquaredError(start.chain, problem.x, problem.y).loss(start)
    inside = MeanSquaredError(start.chain, coordinates.inputs(problem.x), problem.y)
    torch.testing.assert_close(inside.loss(coordinates.enter(start)), outside)
    assert isinstance(coordinates.enter(start), TrialStack)


def test_unlike_dtypes_are_refused(draw_problem, draw_start):
    chain = md_abs(2)
    problem = draw_problem(2, 50)
    start = draw_start(chain, problem.x, 2, 0)
    words = r"trials of the chain .* in torch\.float64 for .* in torch\.float32; make them equal$"
    with pytest.raises(InputError, match=words):
        Newton(MeanSquaredError(chain, problem.x.float(), problem.y.float()), start, 10)
