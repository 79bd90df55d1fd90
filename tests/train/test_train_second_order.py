"""Levenberg-Marquardt and L-BFGS: where they end, what they call it, and that they can resume."""

import numpy as np
import pytest
import scipy.optimize
import torch

from mahalens.errors import InputError
from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import (
    LBFGS,
    LevenbergMarquardt,
    MeanSquaredError,
    Status,
    TrialStack,
    WhitenedInputs,
)

SOLVERS = [LevenbergMarquardt, LBFGS]
ENDS = (Status.ZERO_RESIDUAL, Status.LOCAL_MINIMUM)


@pytest.fixture(params=SOLVERS)
def solver_class(request):
    return request.param


@pytest.fixture
def whiten(draw_problem, draw_start):
    """Problem, objective and starting points in whitened coordinates."""

    def make(chain, samples=300, trials=8, dtype=torch.float64, seed=0):
        problem = draw_problem(chain.inputs, samples, dtype, seed)
        coordinates = WhitenedInputs(problem.x)
        start = draw_start(chain, problem.x, trials, seed)
        objective = MeanSquaredError(chain, coordinates.inputs(problem.x), problem.y)
        return problem, coordinates, objective, coordinates.enter(start)

    return make


class TestZeroResidual:
    def test_the_precision_is_recovered(self, solver_class, whiten, run):
        chain = md_abs(3)
        problem, coordinates, objective, start = whiten(chain)
        solver = run(solver_class(objective, start, 2000))
        assert set(solver.statuses) <= set(ENDS)
        zero = [t for t, s in enumerate(solver.statuses) if s is Status.ZERO_RESIDUAL]
        assert len(zero) >= 3
        assert float(solver.final_loss[zero].max()) < 1e-26
        final = coordinates.leave(solver.stack)
        precision = problem.gaussian.precision
        for trial in zero:
            module = final[trial]
            weight, bias = module[0].weight.detach(), module[0].bias.detach()
            error = (weight.T @ weight - precision).norm() / precision.norm()
            assert error < 1e-12
            assert (weight @ problem.gaussian.mean + bias).abs().max() < 1e-11
            assert (module(problem.x) - problem.y).square().mean() < 1e-26

    def test_relu_too(self, solver_class, whiten, run):
        _, _, objective, start = whiten(md_relu(2))
        solver = run(solver_class(objective, start, 2000))
        zero = [t for t, s in enumerate(solver.statuses) if s is Status.ZERO_RESIDUAL]
        assert len(zero) >= 3
        assert float(solver.final_loss[zero].max()) < 1e-26

    def test_single_precision(self, solver_class, whiten, run):
        _, _, objective, start = whiten(md_abs(3), dtype=torch.float32)
        solver = run(solver_class(objective, start, 2000))
        assert solver.final_loss.dtype == torch.float32
        zero = [t for t, s in enumerate(solver.statuses) if s is Status.ZERO_RESIDUAL]
        assert len(zero) >= 3
        assert float(solver.final_loss[zero].max()) < 1e-9

    def test_starting_at_the_truth(self, solver_class, draw_problem, run):
        problem = draw_problem(3, 100)
        chain = md_abs(3)
        weight = problem.gaussian.whitening("pca")
        bias = -(weight @ problem.gaussian.mean)
        start = TrialStack.from_tensors(chain, {"0.weight": weight[None], "0.bias": bias[None]})
        objective = MeanSquaredError(chain, problem.x, problem.y)
        solver = run(solver_class(objective, start, 100))
        assert solver.statuses == [Status.ZERO_RESIDUAL]
        assert int(solver.steps[0]) < 10
        assert float(solver.final_loss) < 1e-27


class TestKindsOfPoints:
    @pytest.mark.parametrize("make", [md_abs, md_relu])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_what_is_called_a_local_minimum_is_one(
        self, solver_class, make, seed, whiten, run, plain_derivatives
    ):
        chain = make(2)
        _, _, objective, start = whiten(chain, trials=20, seed=seed)
        solver = run(solver_class(objective, start, 2000))
        assert set(solver.statuses) <= {*ENDS, Status.SADDLE}
        minima = [t for t, s in enumerate(solver.statuses) if s is Status.LOCAL_MINIMUM]
        if make is md_abs:
            assert len(minima) >= 3
        # Rounding, which differs between processors, decides if a trial ends at a saddle point.
        for trial, status in enumerate(solver.statuses):
            if status is Status.SADDLE:
                hessian = plain_derivatives(
                    chain, objective.x, objective.y, solver.stack.values[trial]
                )[2]
                values = torch.linalg.eigvalsh(hessian)
                assert values[0] < -1e-8 * values[-1]
        for trial in minima:
            loss, gradient, hessian = plain_derivatives(
                chain, objective.x, objective.y, solver.stack.values[trial]
            )
            torch.testing.assert_close(loss, solver.final_loss[trial])
            assert loss > 1e-4
            assert gradient.abs().max() <= 1e-7 * loss.sqrt()
            values = torch.linalg.eigvalsh(hessian)
            assert values[0] >= -1e-7 * values[-1]

    def test_nothing_nearby_is_lower_than_a_local_minimum(self, solver_class, whiten, run):
        chain = md_abs(2)
        _, _, objective, start = whiten(chain)
        solver = run(solver_class(objective, start, 2000))
        generator = torch.Generator().manual_seed(0)
        minima = [t for t, s in enumerate(solver.statuses) if s is Status.LOCAL_MINIMUM]
        assert minima
        for trial in minima:
            around = torch.randn(500, 6, generator=generator, dtype=torch.float64)
            values = solver.stack.values[trial] + 1e-2 * around
            nearby = objective.loss(TrialStack(chain, values))
            assert nearby.min() > solver.final_loss[trial] * (1 - 1e-12)

    def saddle(self, draw_problem, run, plain_derivatives, twins):
        """The best fit of one unit, seen as two units of which one is 0, or which are equal.

        Along the second unit the gradient vanishes by symmetry. Turning both units changes
        nothing, so (w, 0) and (w, w)/√2 are the same function. Near the hyperplane one unit is
        far too small, so a second one, crossing it, helps: the curvature along it is negative.
        """
        problem = draw_problem(2, 300)
        x = WhitenedInputs(problem.x).inputs(problem.x)
        one = Chain.parse("Linear(1), Abs, Norm", inputs=2)
        best = run(
            LevenbergMarquardt(
                MeanSquaredError(one, x, problem.y),
                TrialStack(one, torch.tensor([[1.0, 0.5, 0.2]], dtype=torch.float64)),
                200,
            )
        )
        assert best.statuses == [Status.LOCAL_MINIMUM]
        unit = best.stack.values[0]
        rows = [unit, unit] if twins else [unit * 2**0.5, 0 * unit]
        start = TrialStack(md_abs(2), torch.cat(rows)[None] / 2**0.5)
        # Without Abs, which changes nothing before Norm: autograd does not see its bend at 0.
        smooth = Chain.parse("Linear(2), Norm", inputs=2)
        loss, gradient, hessian = plain_derivatives(smooth, x, problem.y, start.values[0])
        torch.testing.assert_close(loss, best.final_loss[0])
        assert gradient.abs().max() < 1e-8
        assert torch.linalg.eigvalsh(hessian)[0] < -1e-2
        return MeanSquaredError(start.chain, x, problem.y), start, loss

    @pytest.mark.parametrize("twins", [False, True])
    def test_levenberg_leaves_a_saddle(self, draw_problem, run, plain_derivatives, twins):
        objective, start, loss = self.saddle(draw_problem, run, plain_derivatives, twins)
        solver = run(LevenbergMarquardt(objective, start, 500))
        assert solver.statuses[0] in ENDS
        assert solver.final_loss[0] < 0.9 * loss

    @pytest.mark.parametrize("twins", [False, True])
    def test_lbfgs_calls_a_saddle_a_saddle(self, draw_problem, run, plain_derivatives, twins):
        objective, start, loss = self.saddle(draw_problem, run, plain_derivatives, twins)
        solver = run(LBFGS(objective, start, 500))
        assert solver.statuses == [Status.SADDLE]
        torch.testing.assert_close(solver.final_loss[0], loss)

    def test_levenberg_calls_the_saddle_of_a_deep_chain_a_saddle(self, draw_problem, run):
        """Weights 0 in both layers: only the bias of the last one can be improved on its own."""
        problem = draw_problem(2, 100)
        chain = Chain.parse("Linear(2), Linear(1), Norm, Sigmoid", inputs=2)
        start = TrialStack(chain, torch.zeros(1, 9, dtype=torch.float64))
        start.values[0, -1] = 1.0  # the bias of the last layer
        objective = MeanSquaredError(chain, problem.x, torch.sigmoid(problem.y))
        assert not objective.has_exact_curvature
        constant = run(LevenbergMarquardt(objective, start, 300))
        assert constant.statuses == [Status.SADDLE]

    @pytest.mark.parametrize("make", [md_relu, md_sigmoid])
    def test_units_that_see_nothing(self, solver_class, make, whiten, run):
        """Parked far away from all samples they have no gradient: a flat place, not an error."""
        _, _, objective, start = whiten(make(2), trials=2)
        start.tensors()["0.bias"][0] = -1e4
        solver = run(solver_class(objective, start, 2000))
        assert solver.statuses[0] is Status.LOCAL_MINIMUM
        torch.testing.assert_close(solver.final_loss[0], objective.y.square().mean())


@pytest.mark.parametrize("make", [md_abs, md_relu, md_sigmoid])
def test_lbfgs_ends_where_that_of_scipy_does(make, draw_problem, run):
    """From starts near the truth, on noisy targets: the minimum has a residual to agree on."""
    problem = draw_problem(2, 200)
    generator = torch.Generator().manual_seed(0)
    chain = make(2)
    x = WhitenedInputs(problem.x).inputs(problem.x)
    base = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]], dtype=torch.float64)
    base = base[: chain.layers[0].units].flatten()
    noise = torch.randn(200, generator=generator, dtype=torch.float64)
    y = torch.linalg.vector_norm(x, dim=1) + 0.1 * noise
    if make is md_sigmoid:  # targets this model can come near to
        base = 2 * base
        y = TrialStack(chain, base[None])[0](x).detach() + 0.05 * noise
    start = base + 0.1 * torch.randn(4, len(base), generator=generator, dtype=torch.float64)
    objective = MeanSquaredError(chain, x, y)
    solver = run(LBFGS(objective, TrialStack(chain, start), 5000))

    def value(point):
        loss, gradient = objective.loss_and_gradient(
            TrialStack(chain, torch.from_numpy(point)[None])
        )
        return loss.item(), gradient[0].numpy()

    for trial in range(4):
        assert solver.statuses[trial] is Status.LOCAL_MINIMUM
        peer = scipy.optimize.minimize(
            value,
            start[trial].numpy(),
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000},
        )
        ours = float(solver.final_loss[trial])
        assert ours > 1e-4
        assert ours == pytest.approx(peer.fun, rel=1e-8)
        learned = [
            TrialStack(chain, v[None])[0](x)
            for v in (solver.stack.values[trial], torch.from_numpy(np.array(peer.x)))
        ]
        torch.testing.assert_close(*learned, rtol=0, atol=1e-3)


class TestBothAgree:
    def test_from_the_same_start_near_a_minimum(self, whiten, run):
        _, _, objective, start = whiten(md_abs(3), trials=12)
        rough = run(LBFGS(objective, start, 2000))
        fine = run(LevenbergMarquardt(objective, rough.stack, 200))
        for trial in range(12):
            assert fine.statuses[trial] is rough.statuses[trial]
            assert fine.final_loss[trial] <= rough.final_loss[trial] * (1 + 1e-12)
            if fine.statuses[trial] is Status.LOCAL_MINIMUM:
                torch.testing.assert_close(fine.final_loss[trial], rough.final_loss[trial])

    def test_losses_never_rise(self, solver_class, whiten, run):
        for make in (md_abs, md_relu, md_sigmoid):
            _, _, objective, start = whiten(make(2))
            losses = run(solver_class(objective, start, 300)).curve[1]
            rises = losses[1:] - losses[:-1]
            assert not bool((rises > 0).any())  # NaN, where a trial has ended, is no rise

    def test_deep_chains(self, solver_class, draw_problem, draw_stack, run):
        problem = draw_problem(2, 200)
        chain = Chain.parse("Linear(4), ReLU, Linear(3), Abs, Norm", inputs=2)
        start = draw_stack(chain, 4)
        objective = MeanSquaredError(chain, problem.x, problem.y)
        solver = run(solver_class(objective, start, 200))
        assert bool((solver.final_loss < 0.3 * objective.loss(start)).all())
        torch.testing.assert_close(solver.final_loss, objective.loss(solver.stack))


class TestLimit:
    def test_ends_at_the_limit(self, solver_class, whiten, run):
        _, _, objective, start = whiten(md_sigmoid(3), trials=4)
        solver = run(solver_class(objective, start, 3))
        assert solver.statuses == [Status.UNCONVERGED] * 4
        assert solver.steps.tolist() == [3] * 4
        assert solver.epoch == 3
        torch.testing.assert_close(solver.final_loss, objective.loss(solver.stack))

    def test_steps_are_counted_per_trial(self, solver_class, whiten, run):
        _, _, objective, start = whiten(md_abs(3))
        solver = run(solver_class(objective, start, 2000))
        epochs, losses = solver.curve
        assert epochs.tolist() == list(range(1, int(solver.steps.max()) + 1))
        for trial, steps in enumerate(solver.steps.tolist()):
            running = ~losses[:, trial].isnan()
            assert int(running.sum()) == steps

    def test_damping_can_always_grow_again(self, draw_problem):
        """Shrinking by 3 a step, it would be 0 in float32 after a hundred good steps."""
        x = draw_problem(2, 100).x
        chain = Chain.parse("Linear(1), Abs, Norm", inputs=2)
        truth = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
        y = TrialStack(chain, truth)[0](x).detach()
        start = TrialStack(chain, truth + 0.05)
        solver = LevenbergMarquardt(MeanSquaredError(chain, x, y), start, 100)
        solver.rows["damping"].fill_(1e-20)
        solver.advance()
        assert int(solver.rows["rejected"]) == 0  # a good step
        assert float(solver.rows["damping"]) == 1e-20


class TestNonFinite:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
    def test_a_broken_start_is_labelled_and_the_others_go_on(self, solver_class, whiten, run, bad):
        _, _, objective, start = whiten(md_abs(3), trials=5)
        healthy = run(solver_class(objective, start, 2000))
        start.values[3] = bad
        solver = run(solver_class(objective, start, 2000))
        assert solver.statuses[3] is Status.NON_FINITE
        assert int(solver.steps[3]) == 1
        assert not bool(solver.final_loss[3].isfinite())
        rest = [0, 1, 2, 4]
        assert [solver.statuses[t] for t in rest] == [healthy.statuses[t] for t in rest]
        torch.testing.assert_close(solver.final_loss[rest], healthy.final_loss[rest])

    def test_everybody(self, solver_class, whiten, run):
        _, _, objective, start = whiten(md_abs(2), trials=2)
        start.values.fill_(torch.nan)
        assert run(solver_class(objective, start, 9)).statuses == [Status.NON_FINITE] * 2


class TestResuming:
    @pytest.mark.parametrize("make", [md_abs, md_relu])
    def test_from_any_step_to_the_very_same_end(self, solver_class, make, whiten, assert_resumes):
        _, _, objective, start = whiten(make(2), samples=60, trials=5)
        start.values[1] = torch.nan
        assert_resumes(
            lambda: solver_class(MeanSquaredError(start.chain, objective.x, objective.y), start, 60)
        )

    def test_through_a_saddle(self, draw_problem, run, plain_derivatives, assert_resumes):
        objective, start, _ = TestKindsOfPoints().saddle(draw_problem, run, plain_derivatives, True)
        assert_resumes(lambda: LevenbergMarquardt(objective, start, 100), restarts=100)

    def test_another_solver_s_state(self, whiten):
        _, _, objective, start = whiten(md_abs(2), trials=2)
        with pytest.raises(InputError, match="which is another solver's"):
            LBFGS(objective, start, 9).restore(LevenbergMarquardt(objective, start, 9).state())


def test_lbfgs_gives_up_a_line_that_leads_nowhere(whiten):
    """It forgets what it has learned about the curvature and goes down the gradient instead."""
    _, _, objective, start = whiten(md_abs(3), trials=3)
    solver = LBFGS(objective, start, 100)
    for _ in range(8):
        solver.advance()
    rows = solver.rows
    assert bool((rows["updates"] > 0).all())
    values = rows["values"].clone()
    rows["step"][:2] = 1e6  # far too long for the loss to fall
    rows["tries"][0] = 29
    solver.advance()
    assert torch.equal(rows["values"][:2], values[:2])
    assert torch.equal(rows["direction"][0], -rows["gradient"][0])
    assert int(rows["updates"][0]) == 0
    assert int(rows["tries"][0]) == 0
    assert int(rows["updates"][1]) > 0  # this one only shortens its step
    assert float(rows["high"][1]) == 1e6


def test_memory_of_lbfgs(whiten, run):
    _, _, objective, start = whiten(md_abs(2), trials=3)
    for memory in (1, 3, 50):
        assert set(run(LBFGS(objective, start, 3000, memory=memory)).statuses) <= set(ENDS)
    with pytest.raises(InputError, match="a memory of 0 steps; give at least 1"):
        LBFGS(objective, start, 10, memory=0)


def test_a_matrix_that_cannot_be_decomposed_does_not_end_the_run(whiten, run, monkeypatch):
    """With badly scaled float32 data the eigenvalues of a Hessian may not converge."""

    def fails(matrix):
        raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    _, _, objective, start = whiten(md_abs(2), trials=20)
    solver = run(LevenbergMarquardt(objective, start, 500))
    assert set(solver.statuses) <= set(ENDS)
    assert Status.ZERO_RESIDUAL in solver.statuses
