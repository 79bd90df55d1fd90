"""Newton, Levenberg-Marquardt and L-BFGS: where they end, what they call it, and resuming."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from train_problems import (
    assert_resumes,
    draw_problem,
    draw_stack,
    draw_start,
    normal,
    plain_derivatives,
    plain_loss,
    run,
    truth_of,
)

from mahalens.errors import InputError
from mahalens.geometry import Gaussian
from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import (
    CONVERGED,
    LBFGS,
    LevenbergMarquardt,
    MeanSquaredError,
    Newton,
    Status,
    TrialStack,
    WhitenedInputs,
    fit,
    stack,
)
from mahalens.train.second_order import FEW_PARAMETERS, curvature_range, curves_down

SOLVERS = [LevenbergMarquardt, LBFGS]
METHODS = {"levenberg-marquardt": 10_000, "l-bfgs": 0}
ENDS = (Status.ZERO_RESIDUAL, Status.LOCAL_MINIMUM)
MODELS = [md_abs, md_relu, md_sigmoid]


@pytest.fixture(params=SOLVERS)
def solver_class(request):
    return request.param


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def whiten(chain, samples=300, trials=8, dtype=torch.float64, seed=0):
    """Problem, coordinates, objective and starting points in whitened coordinates."""
    problem = draw_problem(chain.inputs, samples, dtype, seed)
    coordinates = WhitenedInputs(problem.x)
    start = draw_start(chain, problem.x, trials, seed)
    objective = MeanSquaredError(chain, coordinates.inputs(problem.x), problem.y)
    return problem, coordinates, objective, coordinates.enter(start)


def newton(problem, start, steps, method=None):
    """Trains ``start`` for the distances of a drawn problem."""
    objective = MeanSquaredError(start.chain, problem.x, problem.y)
    return Newton(objective, start, steps, few=METHODS.get(method, FEW_PARAMETERS))


def with_status(solver, status):
    return [trial for trial, other in enumerate(solver.statuses) if other is status]


def plain_losses(trials, problem):
    return torch.stack([plain_loss(m, problem.x, problem.y).detach() for m in trials])


def precision_errors(stack, gaussian, trials):
    """How far ``WᵀW`` is from the precision, relative to it."""
    weight = stack.tensors()["0.weight"][trials]
    return (weight.mT @ weight - gaussian.precision).norm(dim=(1, 2)) / gaussian.precision.norm()


# Minima and saddles


def saddle(twins):
    """The best fit of one unit, seen as two units of which one is 0, or which are equal.

    Along the second unit the gradient vanishes by symmetry. Turning both units changes nothing, so
    (w, 0) and (w, w)/√2 are the same function. Near the hyperplane one unit is far too small, so a
    second one, crossing it, helps: the curvature along it is negative.
    """
    problem = draw_problem(2, 300)
    x = WhitenedInputs(problem.x).inputs(problem.x)
    one = Chain.parse("Linear(1), Abs, Norm", inputs=2)
    first = TrialStack(one, torch.tensor([[1.0, 0.5, 0.2]], dtype=torch.float64))
    best = run(LevenbergMarquardt(MeanSquaredError(one, x, problem.y), first, 200))
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


def test_starting_at_the_truth(solver_class):
    problem = draw_problem(3, 100)
    objective = MeanSquaredError(md_abs(3), problem.x, problem.y)
    solver = run(solver_class(objective, truth_of(problem, md_abs(3)), 100))
    assert solver.statuses == [Status.ZERO_RESIDUAL]
    assert int(solver.steps[0]) < 10
    assert float(solver.final_loss) < 1e-27


class TestKindsOfPoints:
    @pytest.mark.parametrize("make", [md_abs, md_relu])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_minima_and_saddles_are_what_they_are_called(self, solver_class, make, seed):
        chain = make(2)
        _, _, objective, start = whiten(chain, trials=20, seed=seed)
        solver = run(solver_class(objective, start, 2000))
        assert set(solver.statuses) <= {*ENDS, Status.SADDLE}
        assert make is md_relu or len(with_status(solver, Status.LOCAL_MINIMUM)) >= 3
        generator = torch.Generator().manual_seed(0)
        # Rounding, which differs between processors, decides if a trial ends at a saddle point.
        for trial, status in enumerate(solver.statuses):
            point = solver.stack.values[trial]
            loss, gradient, hessian = plain_derivatives(chain, objective.x, objective.y, point)
            values = torch.linalg.eigvalsh(hessian)
            if status is Status.SADDLE:
                assert values[0] < -1e-8 * values[-1]
            if status is Status.LOCAL_MINIMUM:
                torch.testing.assert_close(loss, solver.final_loss[trial])
                assert loss > 1e-4
                assert gradient.abs().max() <= 1e-7 * loss.sqrt()
                assert values[0] >= -1e-7 * values[-1]
                around = torch.randn(500, len(point), generator=generator, dtype=torch.float64)
                nearby = objective.loss(TrialStack(chain, point + 1e-2 * around))
                assert nearby.min() > solver.final_loss[trial] * (1 - 1e-12)

    @pytest.mark.parametrize("twins", [False, True])
    def test_levenberg_leaves_a_saddle_and_lbfgs_names_it(self, twins):
        objective, start, loss = saddle(twins)
        left = run(LevenbergMarquardt(objective, start, 500))
        assert left.statuses[0] in ENDS
        assert left.final_loss[0] < 0.9 * loss
        named = run(LBFGS(objective, start, 500))
        assert named.statuses == [Status.SADDLE]
        torch.testing.assert_close(named.final_loss[0], loss)

    def test_levenberg_names_the_saddle_of_a_deep_chain(self):
        """Weights 0 in both layers: only the bias of the last one can be improved on its own."""
        problem = draw_problem(2, 100)
        chain = Chain.parse("Linear(2), Linear(1), Norm, Sigmoid", inputs=2)
        start = TrialStack(chain, torch.zeros(1, 9, dtype=torch.float64))
        start.values[0, -1] = 1.0  # the bias of the last layer
        objective = MeanSquaredError(chain, problem.x, torch.sigmoid(problem.y))
        assert not objective.has_exact_curvature
        assert run(LevenbergMarquardt(objective, start, 300)).statuses == [Status.SADDLE]

    @pytest.mark.parametrize("make", [md_relu, md_sigmoid])
    def test_units_that_see_nothing(self, solver_class, make):
        """Parked far away from all samples they have no gradient: a flat place, not an error."""
        _, _, objective, start = whiten(make(2), trials=2)
        start.tensors()["0.bias"][0] = -1e4
        solver = run(solver_class(objective, start, 2000))
        assert solver.statuses[0] is Status.LOCAL_MINIMUM
        torch.testing.assert_close(solver.final_loss[0], objective.y.square().mean())


# Against each other


def test_losses_never_rise_and_steps_are_counted(solver_class):
    problem = draw_problem(2, 200)
    deep = Chain.parse("Linear(4), ReLU, Linear(3), Abs, Norm", inputs=2)
    settings = [(*whiten(make(2))[2:], 1.0) for make in MODELS]
    settings.append((MeanSquaredError(deep, problem.x, problem.y), draw_stack(deep, 4), 0.3))
    for objective, start, left in settings:
        solver = run(solver_class(objective, start, 300))
        assert bool((solver.final_loss < left * objective.loss(start)).all())
        torch.testing.assert_close(solver.final_loss, objective.loss(solver.stack))
        epochs, losses = solver.curve
        assert not bool((losses[1:] - losses[:-1] > 0).any())  # NaN, after the end, is no rise
        assert epochs.tolist() == list(range(1, int(solver.steps.max()) + 1))
        assert (~losses.isnan()).sum(0).tolist() == solver.steps.tolist()


# Limits and faults


def test_ends_at_the_limit(solver_class):
    _, _, objective, start = whiten(md_sigmoid(3), trials=4)
    solver = run(solver_class(objective, start, 3))
    assert solver.statuses == [Status.UNCONVERGED] * 4
    assert solver.steps.tolist() == [3] * 4
    torch.testing.assert_close(solver.final_loss, objective.loss(solver.stack))


def test_damping_can_always_grow_again():
    """Shrinking by 3 a step, it would be 0 in float32 after a hundred good steps."""
    x = draw_problem(2, 100).x
    chain = Chain.parse("Linear(1), Abs, Norm", inputs=2)
    truth = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    y = TrialStack(chain, truth)[0](x).detach()
    objective = MeanSquaredError(chain, x, y)
    solver = LevenbergMarquardt(objective, TrialStack(chain, truth + 0.05), 100)
    solver.rows["damping"].fill_(1e-20)
    solver.advance()
    assert int(solver.rows["rejected"]) == 0  # a good step
    assert float(solver.rows["damping"]) == 1e-20


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_a_broken_start_is_labelled_and_the_others_go_on(solver_class, bad):
    _, _, objective, start = whiten(md_abs(3), trials=5)
    healthy = run(solver_class(objective, start, 2000))
    start.values[3] = bad
    solver = run(solver_class(objective, start, 2000))
    assert (solver.statuses[3], int(solver.steps[3])) == (Status.NON_FINITE, 1)
    assert not bool(solver.final_loss[3].isfinite())
    rest = [0, 1, 2, 4]
    assert [solver.statuses[t] for t in rest] == [healthy.statuses[t] for t in rest]
    torch.testing.assert_close(solver.final_loss[rest], healthy.final_loss[rest])
    start.values.fill_(bad)
    assert run(solver_class(objective, start, 9)).statuses == [Status.NON_FINITE] * 5


def test_lbfgs_gives_up_a_line_that_leads_nowhere():
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
    assert (int(rows["updates"][0]), int(rows["tries"][0])) == (0, 0)
    assert int(rows["updates"][1]) > 0  # this one only shortens its step
    assert float(rows["high"][1]) == 1e6


def test_memory_of_lbfgs():
    _, _, objective, start = whiten(md_abs(2), trials=3)
    for memory in (1, 3, 50):
        assert set(run(LBFGS(objective, start, 3000, memory=memory)).statuses) <= set(ENDS)


def test_a_matrix_that_cannot_be_decomposed_does_not_end_the_run(monkeypatch):
    """With badly scaled float32 data the eigenvalues of a Hessian may not converge."""

    def fails(matrix):
        raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    _, _, objective, start = whiten(md_abs(2), trials=20)
    solver = run(LevenbergMarquardt(objective, start, 500))
    assert set(solver.statuses) <= set(ENDS)
    assert Status.ZERO_RESIDUAL in solver.statuses


def test_resumes_through_a_saddle():
    objective, start, _ = saddle(twins=True)
    assert_resumes(lambda: LevenbergMarquardt(objective, start, 100), restarts=100)


# Newton: whitened inside, the coordinates of x outside


class TestNewton:
    @pytest.mark.parametrize("make", MODELS)
    def test_weights_and_losses_are_in_the_coordinates_of_x(self, method, make):
        problem = draw_problem(2, 150)
        start = draw_start(make(2), problem.x, 4)
        solver = newton(problem, start, 300, method)
        assert solver.method == method
        for _ in range(3):  # on the way, too
            torch.testing.assert_close(solver.final_loss, plain_losses(solver.stack, problem))
            solver.advance()
        losses = plain_losses(run(solver).stack, problem)
        torch.testing.assert_close(solver.final_loss, losses, rtol=1e-9, atol=1e-25)
        assert bool((losses < plain_losses(start, problem)).all())

    @pytest.mark.parametrize(
        ("dtype", "loss", "error"), [(torch.float64, 1e-25, 1e-11), (torch.float32, 1e-8, 1e-3)]
    )
    def test_the_precision_and_the_mean_are_recovered(self, method, dtype, loss, error):
        problem = draw_problem(3, 300, dtype)
        solver = run(newton(problem, draw_start(md_abs(3), problem.x, 8), 2000, method))
        assert set(solver.statuses) <= set(ENDS)
        assert solver.stack.values.dtype == dtype
        zero = with_status(solver, Status.ZERO_RESIDUAL)
        assert len(zero) >= 3
        assert float(solver.final_loss[zero].max()) < loss
        final = TrialStack(md_abs(3), solver.stack.values.double())
        assert precision_errors(final, problem.gaussian, zero).max() < error
        weight, bias = (final.tensors()[f"0.{name}"][zero] for name in ("weight", "bias"))
        assert (weight @ problem.gaussian.mean + bias).abs().max() < error
        losses = plain_losses(solver.stack, problem)
        torch.testing.assert_close(solver.final_loss, losses, rtol=1e-3, atol=1e-9)

    def test_a_badly_scaled_gaussian(self, method):
        """Spreads from 1 to 1/300 and a mean far away, as the study draws them in 100-D."""
        spreads = torch.tensor([1.0, 0.05, 1 / 300], dtype=torch.float64)
        turn = torch.linalg.qr(torch.arange(9.0, dtype=torch.float64).view(3, 3).cos()).Q
        covariance = (turn * spreads.square()) @ turn.T
        mean = torch.tensor([8.0, -3.0, 5.0], dtype=torch.float64)
        gaussian = Gaussian.from_covariance(mean, (covariance + covariance.T) / 2)
        x = gaussian.sample(300, torch.Generator().manual_seed(0))
        problem = SimpleNamespace(x=x, y=gaussian.mahalanobis(x))
        solver = run(newton(problem, draw_start(md_abs(3), x, 8), 2000, method))
        zero = with_status(solver, Status.ZERO_RESIDUAL)
        assert zero
        assert float(solver.final_loss[zero].max()) < 1e-20
        # What is left is rounding on the way back, which the loss inside does not show.
        losses = plain_losses(solver.stack, problem)
        torch.testing.assert_close(solver.final_loss.log10(), losses.log10(), rtol=0, atol=1)
        assert float(precision_errors(solver.stack, gaussian, zero).max()) < 1e-8

    def test_the_method_follows_the_number_of_parameters(self):
        for dim, method in ((23, "levenberg-marquardt"), (25, "l-bfgs")):
            problem = draw_problem(dim, 30)
            assert newton(problem, draw_start(md_abs(dim), problem.x, 1), 1).method == method

    def test_perfect_fits_of_few_samples_and_without_bias(self, method):
        """No more samples than inputs, and a chain that has to be fitted as it was made."""
        fits = [
            (problem := draw_problem(4, samples), draw_start(md_abs(4), problem.x, 5), 1e-23)
            for samples in (2, 3, 4)
        ]
        problem = draw_problem(3, 50)
        truth = draw_stack(Chain.parse("Linear(3, bias=False), Abs, Norm", inputs=3), 1)
        problem.y = truth[0](problem.x).detach()
        away = 0.1 * draw_stack(truth.chain, 4, seed=1).values
        fits.append((problem, TrialStack(truth.chain, truth.values + away), 1e-20))
        for problem, start, bound in fits:
            solver = run(newton(problem, start, 500, method))
            assert set(solver.statuses) == {Status.ZERO_RESIDUAL}
            assert float(plain_losses(solver.stack, problem).max()) < bound
            assert float(solver.final_loss.max()) < bound

    def test_an_input_that_never_changes(self, method):
        problem = draw_problem(3, 100)
        problem.x[:, 1] = 7.0
        solver = run(newton(problem, draw_start(md_abs(3), problem.x, 3), 200, method))
        losses = plain_losses(solver.stack, problem)
        torch.testing.assert_close(solver.final_loss, losses, rtol=1e-8, atol=1e-25)
        assert bool(losses.isfinite().all())

    def test_one_sample_has_no_spread(self):
        problem = draw_problem(2, 1)
        with pytest.raises(InputError, match="1 sample"):
            newton(problem, draw_start(md_abs(2), problem.x, 1), 10)

    def test_resumes_and_tells_its_progress(self, method):
        problem = draw_problem(2, 80)
        start = draw_start(md_abs(2), problem.x, 4)
        broken = TrialStack(start.chain, start.values.clone())
        broken.values[1] = torch.nan
        assert_resumes(lambda: newton(problem, broken, 200, method))
        solver = newton(problem, start, 200, method)
        assert solver.progress == (0, 4, "step 0, MSE nan")
        solver.advance()
        loss = float(solver.curve[1][-1].median())
        assert solver.progress == (0, 4, f"step 1, MSE {loss:.3g}")
        solver.seconds += 1.5
        assert float(solver.state()["seconds"]) == 1.5
        assert run(solver).progress[:2] == (4, 4)


@pytest.mark.parametrize(
    "text",
    [
        "Linear(3), Abs, Norm",
        "Linear(4), ReLU, Linear(2, bias=False), Norm",
        "Linear(3, bias=False), Abs, Norm",  # not shifted: its second moment about 0 becomes 1
    ],
)
def test_whitened_inputs_are_white_and_the_function_is_the_same_there_and_back(text, dtype):
    problem = draw_problem(3, 50, dtype)
    trials = draw_stack(Chain.parse(text, inputs=3), 4, dtype)
    before, centred = trials.values.clone(), trials.chain.layers[0].bias
    coordinates = WhitenedInputs(problem.x, centred=centred)
    z, inside = coordinates.inputs(problem.x), coordinates.enter(trials)
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    bounds = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(
        torch.cov(z.T) if centred else z.T @ z / 50, torch.eye(3, dtype=dtype), **bounds
    )
    for trial in range(4):
        torch.testing.assert_close(inside[trial](z), trials[trial](problem.x), **bounds)
    torch.testing.assert_close(coordinates.leave(inside).values, trials.values, **bounds)
    assert torch.equal(trials.values, before)
    if not centred:
        for way in (WhitenedInputs(problem.x).enter, WhitenedInputs(problem.x).leave):
            with pytest.raises(InputError, match="has no bias in its first layer to shift"):
                way(trials)


# Newton on every kind of problem: together as alone, to a minimum, a low one

TRIALS = 3


class Wrapped(nn.Module):
    """Not a plain ``nn.Sequential``, so it is trained through ``torch.func``."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.inner(x) + self.gate * x.square().sum(-1, keepdim=True)


PROBLEMS = {  # loss, layers or module, whether each trial has its own samples
    "cross-entropy": ("cross-entropy", "Linear(4)", False),
    "cross-entropy without bias": ("cross-entropy", "Linear(4, bias=False)", False),
    "cross-entropy, own samples": ("cross-entropy", "Linear(4)", True),
    "cross-entropy of distances": ("cross-entropy", "OffsetL2(4), Neg", False),
    "several numbers without bias": ("mse", "Linear(4, bias=False)", False),
    "several numbers, own samples": ("mse", "Linear(4)", True),
    "hidden units": ("mse", "Linear(2), Tanh, Linear(4)", False),
    "distances": ("mse", "OffsetL2(4)", False),
    "distances by the published code": ("mse", "OffsetL2(4, variant=published-code)", False),
    "distances of hidden units": ("mse", "Linear(2), OffsetL2(4)", False),
    "points and slopes": ("mse", "PointSlope(4)", False),
    "a module": ("mse", Wrapped, False),
    "a module, cross-entropy, own samples": ("cross-entropy", Wrapped, True),
}


class Problem:
    """Noisy samples of another trial of the same architecture."""

    def __init__(self, loss, what, own):
        make = Chain.parse(what, inputs=3) if isinstance(what, str) else what
        trials = TrialStack.from_seeds(make, range(TRIALS + 1))
        generator = torch.Generator().manual_seed(0)
        teacher = TrialStack(trials.model, trials.values[:1].double())[0]
        self.own = own
        self.options = {"epochs": 3000, "solver": "newton", "loss": loss, "own": own}
        self.start = TrialStack(trials.model, trials.values[1:].double())
        self.x = torch.randn(*(TRIALS,) * own, 60, 3, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            output = teacher(self.x)
        noise = torch.rand(output.shape, generator=generator, dtype=torch.float64)
        self.y = output + 0.3 * (noise - 0.5)
        if loss == "cross-entropy":  # labels drawn from the teacher's shares: no line parts them
            self.y = (output - (-noise.log()).log()).argmax(-1)

    def of(self, trial):
        return (self.x[trial], self.y[trial]) if self.own else (self.x, self.y)

    def lowest_of_torch(self, trial):
        """What ``torch.optim.LBFGS`` reaches from the same start."""
        module = self.start[trial]
        bounds = {"max_iter": 1000, "tolerance_grad": 1e-10, "tolerance_change": 0}
        optimiser = torch.optim.LBFGS(module.parameters(), line_search_fn="strong_wolfe", **bounds)

        def closure():
            optimiser.zero_grad()
            loss = plain_loss(module, *self.of(trial))
            loss.backward()
            return loss

        optimiser.step(closure)
        with torch.no_grad():
            return float(plain_loss(module, *self.of(trial)))


SLOW = ("hidden units", "distances of hidden units", "cross-entropy of distances")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PROBLEMS],
)
def test_every_trial_ends_in_a_low_minimum_together_as_alone(name):
    problem = Problem(*PROBLEMS[name])
    done = fit(problem.start, problem.x, problem.y, **problem.options)
    assert done.method == "l-bfgs"
    assert all(status in CONVERGED for status in done.statuses), done.statuses
    for trial, status in enumerate(done.statuses):
        module = done.stack[trial]
        loss = plain_loss(module, *problem.of(trial))
        loss.backward()
        slopes = torch.cat([p.grad.flatten() for p in module.parameters()])
        torch.testing.assert_close(loss.detach(), done.final_loss[trial], rtol=1e-10, atol=1e-14)
        assert loss.item() <= problem.lowest_of_torch(trial) * (1 + 1e-9), trial
        assert status is not Status.LOCAL_MINIMUM or float(slopes.abs().max()) <= 1e-6
        one = TrialStack(problem.start.model, problem.start.values[trial : trial + 1])
        x, y = (t[None] if problem.own else t for t in problem.of(trial))
        alone = fit(one, x, y, **problem.options)
        assert alone.statuses[0] is status
        torch.testing.assert_close(alone.final_loss[0], done.final_loss[trial], rtol=1e-8, atol=0)


def test_a_perfect_fit_and_too_few_steps_are_called_so():
    modules = [nn.Sequential(nn.Linear(3, 2)).double() for _ in range(3)]
    x = normal(40, 3)
    y = modules[0](x).detach()
    done = fit(modules[1:], x, y, epochs=500, solver="newton")
    assert done.statuses == [Status.ZERO_RESIDUAL] * 2
    for module in done.stack:
        torch.testing.assert_close(module(x), y, rtol=0, atol=1e-7)
    deep = [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double() for _ in range(2)]
    done = fit(stack(deep), x, x[:, :2].sin(), epochs=4, solver="newton")
    assert done.statuses == [Status.UNCONVERGED] * 2
    assert done.steps.tolist() == [4, 4]


# The curvature at a stationary point, dense and by Lanczos, against the whole Hessian


def check_range(objective, values, hessian, trial=0):
    low, high = curvature_range(objective, values, trial)
    eigenvalues = torch.linalg.eigvalsh(hessian.double())
    reach = float(eigenvalues.abs().max())
    assert high == pytest.approx(float(eigenvalues[-1]), abs=1e-3 * reach)
    assert low == pytest.approx(float(eigenvalues[0]), abs=1e-3 * reach)
    assert low >= float(eigenvalues[0]) - 1e-6 * reach  # never too low
    assert (low, high) == curvature_range(objective, values, trial)  # whenever it is asked


class TestCurvatureRange:
    @pytest.mark.parametrize(
        "text",
        [
            "Linear(1, bias=False), Norm",
            "Linear(2), Abs, Norm",
            "Linear(4), ReLU, Norm",
            "Linear(4), ReLU, Neg, Linear(3), Neg, Norm",
        ],
    )
    def test_of_few_parameters(self, text, dtype):
        problem = draw_problem(2, 40, dtype)
        chain = Chain.parse(text, inputs=2)
        objective = MeanSquaredError(chain, problem.x, problem.y)
        trials = draw_stack(chain, 3, dtype)
        before = trials.values.clone()
        for values in trials.values:
            check_range(
                objective, values, plain_derivatives(chain, problem.x, problem.y, values)[2]
            )
        assert torch.equal(trials.values, before)
        assert not trials.values.requires_grad

    @pytest.mark.parametrize("make", MODELS)
    def test_of_many_parameters(self, make):
        problem = draw_problem(9, 60)
        start = draw_start(make(9), problem.x, 2)
        objective = MeanSquaredError(start.chain, problem.x, problem.y)
        # Not exactly through the samples, where autograd sees no bend in |x|.
        for values in start.values + 0.01:
            hessian = plain_derivatives(start.chain, problem.x, problem.y, values)[2]
            check_range(objective, values, hessian)

    def test_on_the_samples_of_the_trial(self):
        problem = Problem("mse", "Linear(2), Tanh, Linear(4)", True)
        objective = MeanSquaredError(problem.start.model, problem.x, problem.y)
        for trial, values in enumerate(problem.start.values):
            hessian = plain_derivatives(objective.model, *problem.of(trial), values)[2]
            check_range(objective, values, hessian, trial)

    def test_a_flat_floor_is_not_a_slope_down_but_a_unit_at_zero_is(self):
        """The truth may be turned freely: many eigenvalues are exactly 0, where Lanczos is slow.

        With one of nine units 0, waking it up helps, though autograd sees no bend in |x| at 0.
        """
        problem = draw_problem(9, 200)
        chain = md_abs(9)
        truth = truth_of(problem, chain)
        objective = MeanSquaredError(chain, problem.x, problem.y)
        low, high = curvature_range(objective, truth.values[0])
        assert abs(low) < 1e-6 * high
        asked = torch.tensor([True])
        assert not bool(curves_down(objective, truth, asked).any())
        truth.parts()[0][0, 4] = 0
        assert bool(curves_down(objective, truth, asked))

    def test_of_the_trials_asked_for(self):
        problem = draw_problem(2, 40)
        chain = md_relu(2)
        trials = draw_stack(chain, 12)
        objective = MeanSquaredError(chain, problem.x, problem.y)
        hessians = [plain_derivatives(chain, problem.x, problem.y, v)[2] for v in trials.values]
        eigenvalues = torch.linalg.eigvalsh(torch.stack(hessians))
        wanted = eigenvalues[:, 0] < -1e-6 * eigenvalues[:, -1]
        assert bool(wanted.any())
        asked = torch.arange(12) % 2 == 0
        assert torch.equal(curves_down(objective, trials, asked), wanted & asked)


def test_targets_of_one_trial_are_no_measure_for_another():
    """A trial of small targets ends as it would alone, beside one of large targets."""
    modules = [nn.Sequential(nn.Linear(2, 1)).double() for _ in range(2)]
    x, y = normal(30, 2), normal(30, 1)
    options = {"epochs": 100, "solver": "newton"}
    done = fit(modules, x, torch.stack([1e6 * y, 1e-3 * y]), **options)
    alone = fit(modules[1:], x, 1e-3 * y, **options)
    assert done.statuses[1] is alone.statuses[0] is Status.LOCAL_MINIMUM
