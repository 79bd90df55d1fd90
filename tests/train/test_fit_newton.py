"""The converging solver on every kind of problem: together as alone, to a minimum, a low one."""

import pytest
import torch
from torch import nn

from mahalens.nn import Chain
from mahalens.train import CONVERGED, MeanSquaredError, Status, TrialStack, fit, stack
from mahalens.train.stationary import curvature_range

TRIALS, SAMPLES = 3, 60


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
    "several numbers": ("mse", "Linear(4)", False),
    "several numbers without bias": ("mse", "Linear(4, bias=False)", False),
    "several numbers, own samples": ("mse", "Linear(4)", True),
    "hidden units": ("mse", "Linear(2), Tanh, Linear(4)", False),
    "distances": ("mse", "OffsetL2(4)", False),
    "distances by the published code": ("mse", "OffsetL2(4, variant=published-code)", False),
    "distances of hidden units": ("mse", "Linear(2), OffsetL2(4)", False),
    "points and slopes": ("mse", "PointSlope(4)", False),
    "cross-entropy of points and slopes": ("cross-entropy", "PointSlope(4)", False),
    "a module": ("mse", Wrapped, False),
    "a module, cross-entropy, own samples": ("cross-entropy", Wrapped, True),
}


@pytest.fixture(params=PROBLEMS, scope="module")
def problem(request):
    return Problem(*PROBLEMS[request.param])


@pytest.fixture(scope="module")
def done(problem):
    return problem.fit()


class Problem:
    """Noisy samples of another trial of the same architecture."""

    def __init__(self, loss, what, own):
        make = Chain.parse(what, inputs=3) if isinstance(what, str) else what
        trials = TrialStack.from_seeds(make, range(TRIALS + 1))
        generator = torch.Generator().manual_seed(0)
        teacher = TrialStack(trials.model, trials.values[:1].double())[0]
        lead = (TRIALS,) * own
        self.loss, self.own = loss, own
        self.options = {"epochs": 3000, "solver": "newton", "loss": loss, "own": own}
        self.start = TrialStack(trials.model, trials.values[1:].double())
        self.x = torch.randn(*lead, SAMPLES, 3, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            output = teacher(self.x)
        noise = torch.rand(output.shape, generator=generator, dtype=torch.float64)
        self.y = output + 0.3 * (noise - 0.5)
        if loss == "cross-entropy":  # labels drawn from the teacher's shares: no line parts them
            self.y = (output - (-noise.log()).log()).argmax(-1)

    def of(self, trial):
        return (self.x[trial], self.y[trial]) if self.own else (self.x, self.y)

    def fit(self):
        return fit(self.start, self.x, self.y, **self.options)

    def plain_loss(self, module, trial):
        x, y = self.of(trial)
        kind = nn.functional.mse_loss if self.loss == "mse" else nn.functional.cross_entropy
        return kind(module(x), y)


def lowest_of_torch(problem, trial):
    """What ``torch.optim.LBFGS`` reaches from the same start."""
    module = problem.start[trial]
    optimiser = torch.optim.LBFGS(
        module.parameters(),
        max_iter=1000,
        tolerance_grad=1e-10,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        loss = problem.plain_loss(module, trial)
        loss.backward()
        return loss

    optimiser.step(closure)
    with torch.no_grad():
        return float(problem.plain_loss(module, trial))


def test_every_trial_ends_in_a_minimum_that_is_low(problem, done):
    assert done.method == "l-bfgs"
    assert all(status in CONVERGED for status in done.statuses), done.statuses
    for trial, status in enumerate(done.statuses):
        module = done.stack[trial]
        loss = problem.plain_loss(module, trial)
        loss.backward()
        slopes = torch.cat([p.grad.flatten() for p in module.parameters()])
        torch.testing.assert_close(loss.detach(), done.final_loss[trial], rtol=1e-10, atol=1e-14)
        assert loss.item() <= lowest_of_torch(problem, trial) * (1 + 1e-9), trial
        if status is Status.LOCAL_MINIMUM:
            assert float(slopes.abs().max()) <= 1e-6


def test_trials_at_once_end_like_each_alone(problem, done):
    for trial in range(TRIALS):
        one = TrialStack(problem.start.model, problem.start.values[trial : trial + 1])
        x, y = (t[None] if problem.own else t for t in problem.of(trial))
        alone = fit(one, x, y, **problem.options)
        assert alone.statuses[0] is done.statuses[trial]
        torch.testing.assert_close(alone.final_loss[0], done.final_loss[trial], rtol=1e-8, atol=0)


def test_a_perfect_fit_is_called_one():
    """Samples without noise, as many as suffice to tell the weights."""
    modules = [nn.Sequential(nn.Linear(3, 2)).double() for _ in range(3)]
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = modules[0](x).detach()
    done = fit(modules[1:], x, y, epochs=500, solver="newton")
    assert done.statuses == [Status.ZERO_RESIDUAL] * 2
    for trial in range(2):
        torch.testing.assert_close(done.stack[trial](x), y, rtol=0, atol=1e-7)


def test_too_few_steps_are_called_so():
    modules = [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(2)]
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    done = fit(stack(modules), x, x[:, :2].sin(), epochs=4, solver="newton")
    assert done.statuses == [Status.UNCONVERGED] * 2
    assert done.steps.tolist() == [4, 4]


def test_the_curvature_of_a_trial_is_that_on_its_own_samples():
    """By which a minimum is told from a saddle."""
    problem = Problem("mse", "Linear(2), Tanh, Linear(4)", True)
    objective = MeanSquaredError(problem.start.model, problem.x, problem.y)
    for trial, values in enumerate(problem.start.values):
        ends = curvature_range(objective, values, trial)

        def loss(point, trial=trial):
            x, y = problem.of(trial)
            tensors = TrialStack(objective.model, point[None]).tensors()
            named = {name: tensor[0] for name, tensor in tensors.items()}
            output = torch.func.functional_call(problem.start[trial], named, (x,))
            return nn.functional.mse_loss(output, y)

        wanted = torch.linalg.eigvalsh(torch.func.jacrev(torch.func.grad(loss))(values))[[0, -1]]
        torch.testing.assert_close(torch.tensor(ends).double(), wanted, rtol=1e-6, atol=1e-6)
