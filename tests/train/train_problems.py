"""Problems, plain PyTorch twins and comparisons that the tests of several solvers share."""

from types import SimpleNamespace

import safetensors.torch
import torch
from torch import nn

from mahalens.geometry import Gaussian
from mahalens.init import kaiming_through_samples
from mahalens.train import MeanSquaredError, TrialStack
from mahalens.train.layers import parameter_count

DTYPES = [torch.float32, torch.float64]


def normal(*shape, seed=0, dtype=torch.float64):
    """Standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def draw_problem(dim, samples, dtype=torch.float64, seed=0):
    """Samples and their distances under a random Gaussian of moderate condition number."""
    generator = torch.Generator().manual_seed(1000 * dim + seed)
    a = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    covariance = a @ a.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64)
    mean = 4 * torch.rand(dim, generator=generator, dtype=torch.float64) - 2
    gaussian = Gaussian.from_covariance(mean, covariance)
    x = gaussian.sample(samples, generator)
    y = gaussian.mahalanobis(x)
    return SimpleNamespace(gaussian=gaussian, x=x.to(dtype), y=y.to(dtype))


def draw_start(chain, x, trials, seed=0):
    """Starting points of one-layer trials, every hyperplane through a sample."""
    generator = torch.Generator().manual_seed(seed)
    units = chain.layers[0].units
    draws = [kaiming_through_samples(x, units, generator) for _ in range(trials)]
    weight, bias = (torch.stack(parts) for parts in zip(*draws, strict=True))
    return TrialStack.from_tensors(chain, {"0.weight": weight, "0.bias": bias})


def draw_setting(chain, samples, trials, dtype=torch.float64, **options):
    """The objective of a drawn problem, and starting points for it."""
    problem = draw_problem(chain.inputs, samples, dtype)
    objective = MeanSquaredError(chain, problem.x, problem.y, **options)
    return objective, draw_start(chain, problem.x, trials)


def draw_stack(chain, trials, dtype=torch.float64, seed=0):
    """Trials of any chain with standard normal parameters."""
    return TrialStack(chain, normal(trials, parameter_count(chain), seed=seed, dtype=dtype))


def labels(classes, *shape, seed=0):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def targets(chain, *shape, loss="mse", dtype=torch.float64, seed=0):
    """Labels or numbers ``[..., N]`` as the chain gives them."""
    if loss == "cross-entropy":
        return labels(chain.outputs, *shape, seed=seed)
    outputs = () if chain.outputs is None else (chain.outputs,)
    return normal(*shape, *outputs, seed=seed + 1, dtype=dtype)


def draw_data(chain, samples, trials=3, dtype=torch.float64, loss="mse", own=False, seed=0):
    """An objective's data and starting points."""
    shape = (*(trials,) * own, samples)
    x = normal(*shape, chain.inputs, seed=seed, dtype=dtype)
    y = targets(chain, *shape, loss=loss, dtype=dtype, seed=seed)
    return x, y, draw_stack(chain, trials, dtype, seed + 2)


def truth_of(problem, chain):
    """The trial that computes the distances exactly."""
    weight = problem.gaussian.whitening("pca")
    bias = -(weight @ problem.gaussian.mean)
    return TrialStack.from_tensors(chain, {"0.weight": weight[None], "0.bias": bias[None]})


# Plain twins


def plain_loss(module, x, y):
    kind = nn.functional.mse_loss if y.dtype.is_floating_point else nn.functional.cross_entropy
    return kind(module(x), y)


def row_of(chain, module, output):
    """The gradient of a number in the module's parameters, in the layout of a stack's row."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    slopes = torch.autograd.grad(output, parameters)
    tensors = {name: slope[None] for name, slope in zip(names, slopes, strict=True)}
    return TrialStack.from_tensors(chain, tensors).values[0]


def plain_gradients(stack, x, y):
    """Loss and gradient of every trial by autograd; x and y of each trial, or shared."""
    losses, rows = [], []
    for trial, module in enumerate(stack):
        own_x = x[trial] if x.ndim == 3 else x
        own_y = y[trial] if isinstance(y, list) else y
        loss = plain_loss(module, own_x, own_y)
        losses.append(loss.detach())
        rows.append(row_of(stack.chain, module, loss))
    return torch.stack(losses), torch.stack(rows)


def plain_derivatives(chain, x, y, values):
    """Loss, gradient and Hessian of one trial's plain module, by autograd alone."""
    module = chain.build(dtype=values.dtype)

    def loss(point):
        tensors = TrialStack(chain, point[None]).tensors()
        parameters = {name: tensor[0] for name, tensor in tensors.items()}
        return (torch.func.functional_call(module, parameters, (x,)) - y).square().mean()

    gradient = torch.func.grad(loss)
    return loss(values), gradient(values), torch.func.jacrev(gradient)(values)


def plain_training(
    module, x, y, epochs, optimiser="adam", lr=1e-3, *, momentum=0.0, betas=(0.9, 0.99),
    batches=None, trial=0,
):  # fmt: skip
    """What anybody would write: the loss of every epoch, and the parameters after each."""
    trained = [p for p in module.parameters() if p.requires_grad]
    steps = torch.optim.SGD(trained, lr=lr, momentum=momentum)
    if optimiser == "adam":
        steps = torch.optim.Adam(trained, lr=lr, betas=betas)
    losses, states = [], []
    for epoch in range(1, epochs + 1):
        total = 0.0
        split = batches.split(trial, epoch, len(x)) if batches else [torch.arange(len(x))]
        for rows in split:
            steps.zero_grad()
            loss = plain_loss(module, x[rows], y[rows])
            loss.backward()
            steps.step()
            total += loss.item() * len(rows) / len(x)
        losses.append(total)
        states.append({name: p.detach().clone() for name, p in module.named_parameters()})
    return torch.tensor(losses, dtype=torch.float64), states


# Comparisons


def close(actual, wanted, roundings=None):
    """Within so many roundings of the largest number, which is at least 1 by default."""
    largest = float(wanted.abs().max())
    if roundings is None:
        bound = {torch.float32: 2e-5, torch.float64: 1e-12}[actual.dtype] * max(1.0, largest)
    else:
        bound = roundings * torch.finfo(actual.dtype).eps * max(1e-30, largest)
    torch.testing.assert_close(actual, wanted.to(actual.dtype), rtol=0, atol=bound)


def assert_same(a, b, name=None):
    """Two tensors are equal to the last bit, NaN where the other is NaN."""
    torch.testing.assert_close(
        a, b, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


def assert_same_end(a, b):
    """Two solvers ended alike to the last bit, their curves included."""
    assert a.statuses == b.statuses
    for name in ("steps", "final_loss"):
        assert_same(getattr(a, name), getattr(b, name), name)
    for part, other, name in zip(a.curve, b.curve, ("epochs", "losses"), strict=True):
        assert_same(part, other, f"{name} of the curve")
    assert_same(a.stack.values, b.stack.values, "values")


def run(solver):
    """Advance a solver to its end."""
    while not solver.finished:
        solver.advance()
    return solver


def through_file(state):
    """A solver's state as it comes back from a file."""
    return safetensors.torch.load(safetensors.torch.save(state))


def assert_resumes(fresh, restarts=8):
    """A solver restored from any of its states, through a file, ends as one never stopped."""
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
