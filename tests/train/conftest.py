from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from mahalens.geometry import Gaussian
from mahalens.init import kaiming_through_samples
from mahalens.train import Descent, MeanSquaredError, TrialStack
from mahalens.train.compiled import why_not


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The problems are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "compiled"])
def engine(request):
    """Both engines for chains, the compiled one where it can be had."""
    if request.param == "compiled" and why_not():
        pytest.skip(f"no compiled engine here: {why_not()}")
    return request.param


@pytest.fixture
def one_epoch_at_a_time(monkeypatch):
    """Every ``advance`` of SGD or Adam is one epoch."""
    monkeypatch.setattr(Descent, "most_epochs", 1)


@pytest.fixture
def hundred_epochs_at_a_time(monkeypatch):
    """Small runs of SGD or Adam are not over after one ``advance``."""
    monkeypatch.setattr(Descent, "most_epochs", 100)


@pytest.fixture
def plain_loop():
    """What anybody would write: yields the loss and the parameters after every step."""

    def train(module, x, y, steps, optimiser=torch.optim.Adam, **options):
        if optimiser is torch.optim.Adam:
            options = {"lr": 1e-3, "betas": (0.9, 0.99), **options}
        optimiser = optimiser(module.parameters(), **options)
        criterion = torch.nn.MSELoss()
        for _ in range(steps):
            optimiser.zero_grad()
            loss = criterion(module(x), y)
            loss.backward()
            optimiser.step()
            yield loss.detach(), {name: p.detach().clone() for name, p in module.named_parameters()}

    return train


@pytest.fixture
def draw_problem():
    """Samples and their distances under a random Gaussian of moderate condition number."""

    def draw(dim, samples, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(1000 * dim + seed)
        a = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        covariance = a @ a.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64)
        mean = 4 * torch.rand(dim, generator=generator, dtype=torch.float64) - 2
        gaussian = Gaussian.from_covariance(mean, covariance)
        x = gaussian.sample(samples, generator)
        y = gaussian.mahalanobis(x)
        return SimpleNamespace(gaussian=gaussian, x=x.to(dtype), y=y.to(dtype))

    return draw


@pytest.fixture
def draw_start():
    """Starting points of one-layer trials, every hyperplane through a sample."""

    def draw(chain, x, trials, seed=0):
        generator = torch.Generator().manual_seed(seed)
        units = chain.layers[0].units
        draws = [kaiming_through_samples(x, units, generator) for _ in range(trials)]
        weight, bias = (torch.stack(parts) for parts in zip(*draws, strict=True))
        return TrialStack.from_tensors(chain, {"0.weight": weight, "0.bias": bias})

    return draw


@pytest.fixture
def draw_setting(draw_problem, draw_start):
    """The objective of a drawn problem, and starting points for it."""

    def draw(chain, samples, trials, dtype=torch.float64, **options):
        problem = draw_problem(chain.inputs, samples, dtype)
        objective = MeanSquaredError(chain, problem.x, problem.y, **options)
        return objective, draw_start(chain, problem.x, trials)

    return draw


@pytest.fixture
def draw_stack():
    """Trials of any chain with standard normal parameters."""

    def draw(chain, trials, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)
        stack = TrialStack.from_modules(chain, [chain.build() for _ in range(trials)])
        values = torch.randn(stack.values.shape, generator=generator, dtype=torch.float64)
        return TrialStack(chain, values.to(dtype))

    return draw


@pytest.fixture
def plain_derivatives():
    """Loss, gradient and Hessian of one trial's plain module, by autograd alone."""

    def derive(chain, x, y, values):
        module = chain.build(dtype=values.dtype)

        def loss(point):
            tensors = TrialStack(chain, point[None]).tensors()
            parameters = {name: tensor[0] for name, tensor in tensors.items()}
            return (torch.func.functional_call(module, parameters, (x,)) - y).square().mean()

        gradient = torch.func.grad(loss)
        return loss(values), gradient(values), torch.func.jacrev(gradient)(values)

    return derive


@pytest.fixture
def run():
    """Advance a solver to its end."""

    def finish(solver):
        while not solver.finished:
            solver.advance()
        return solver

    return finish


@pytest.fixture
def through_file():
    """A solver's state as it comes back from a file."""
    return lambda state: safetensors.torch.load(safetensors.torch.save(state))


@pytest.fixture
def assert_same():
    """Two tensors are equal to the last bit, NaN where the other is NaN."""

    def check(a, b, name=None):
        torch.testing.assert_close(
            a, b, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{name}: {text}"
        )

    return check


@pytest.fixture
def assert_same_end(assert_same):
    """Two solvers ended alike to the last bit, their curves included."""

    def check(a, b):
        assert a.statuses == b.statuses
        assert torch.equal(a.steps, b.steps)
        assert_same(a.stack.values, b.stack.values, "values")
        assert_same(a.final_loss, b.final_loss, "final loss")
        assert_same(a.curve[0], b.curve[0], "epochs of the curve")
        assert_same(a.curve[1], b.curve[1], "losses of the curve")

    return check


@pytest.fixture
def assert_resumes(run, through_file, assert_same_end):
    """A solver restored from any of its states, through a file, ends as one never stopped."""

    def check(fresh, restarts=8):
        solver, states = fresh(), []
        while not solver.finished:
            states.append(through_file(solver.state()))
            solver.advance()
        states.append(through_file(solver.state()))
        for state in states[:: max(1, len(states) // restarts)] + states[-2:]:
            again = fresh()
            again.restore(state)
            assert_same_end(run(again), solver)
        assert len(states) > 5

    return check
