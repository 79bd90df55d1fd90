"""Batched equals looped: T trials at once against T plain PyTorch loops, for every layer."""

import itertools
from typing import NamedTuple

import pytest
import torch
from torch import nn

from mahalens.nn import Chain
from mahalens.nn.chain import ELEMENTWISE, MIXED, PARAMETRISED, VARIANTS
from mahalens.train import SGD, Adam, Batches, CrossEntropy, MeanSquaredError, TrialStack, solve
from mahalens.train.compiled import why_not

TRIALS, STEPS = 3, 100
RATES = (1e-2, 3e-3, 2e-2)
ROUNDINGS = 1000

# What a chain is tried with depends on its place, so that later ones stand at the end: with other
# samples and rates some of these come to a point where rounding is amplified.
EARLY, LATE = ELEMENTWISE[:7], ELEMENTWISE[7:]


def around(kinds):
    """Each activation before a norm, between layers, and after a wide one."""
    return [
        *[(3, f"Linear(5), {kind}, Norm") for kind in kinds],
        *[(17, f"{kind}, Linear(4), {kind}, Linear(3), {kind}") for kind in kinds],
        *[(1, f"Linear(40), {kind}, Linear(2, bias=False)") for kind in kinds],
    ]


CHAINS = [  # inputs, layers
    *around(EARLY),
    (4, "Linear(1)"),
    (40, "Linear(3, bias=False)"),
    (2, "Linear(4, bias=False), Linear(17), Linear(3, bias=False), Linear(2)"),
    (3, "Linear(3), Norm"),
    (17, "Linear(2, bias=False), Norm, Neg"),
    (4, "Linear(7), ReLU, Norm, Sigmoid"),
    *[
        (inputs, layers.format(variant=variant))
        for variant in VARIANTS
        for inputs, layers in [
            (3, "OffsetL2(4, variant={variant})"),
            (17, "OffsetL2(3, variant={variant}), Norm"),
            (1, "OffsetL2(5, variant={variant}), Linear(3)"),
            (4, "Linear(40), Tanh, OffsetL2(2, variant={variant}), Neg"),
            (2, "Linear(3), OffsetL2(17, variant={variant}), OffsetL2(3, variant={variant})"),
        ]
    ],
    (3, "PointSlope(4)"),
    (17, "PointSlope(3), Abs, Norm"),
    (1, "PointSlope(5), ReLU, Linear(3)"),
    (4, "Linear(40), Abs, PointSlope(2)"),
    (40, "PointSlope(3), Tanh, PointSlope(2)"),
    (5, "Linear(9, bias=False), GELU, PointSlope(4), Sigmoid"),
    (2, "Linear(3), PointSlope(17), Abs, PointSlope(3), Abs, Neg"),
    (3, "Linear(5), AbsReLU(absolute=2), Norm"),
    (17, "AbsReLU(absolute=9), Linear(4), AbsReLU(absolute=1), Linear(3), AbsReLU(absolute=2)"),
    (1, "Linear(40), AbsReLU(absolute=13), Linear(2, bias=False)"),
    (4, "Linear(7), AbsReLU(absolute=0), PointSlope(5), AbsReLU(absolute=5)"),
    (5, "Linear(9), AbsReLU(absolute=8), OffsetL2(3), AbsReLU(absolute=2), Norm, Neg"),
    (2, "PointSlope(19), AbsReLU(absolute=17), Linear(3)"),
    (40, "Linear(6, bias=False), AbsReLU(absolute=3), Linear(2)"),
    *around(LATE),
    (17, "LeakyReLU(0.0), Linear(5), Softplus, OffsetL2(3), LeakyReLU(1e-05)"),
    (3, "Linear(7), LeakyReLU(0.3), PointSlope(3), Softplus"),
    (2, "Linear(5), LeakyReLU(2.0), Norm, Softplus"),
    (5, "Linear(9), LeakyReLU(-0.5), Linear(3), Softplus"),
]
# Samples, batch size, and samples in a block. A panel is 8 samples in float64, 16 in float32.
SIZES = [(77, 32, None), (5, 2, None), (64, 64, 64), (1, 3, None), (90, 40, 16)]
SHARES = ["x and y shared", "own x and y", "own y", "own x"]
OPTIMISERS = ["sgd", "momentum", "adam"]


class Case(NamedTuple):
    inputs: int
    layers: str
    loss: str
    optimiser: str
    dtype: torch.dtype
    data: str
    batched: bool
    sizes: tuple[int, int, int | None]

    @property
    def chain(self):
        return Chain.parse(self.layers, inputs=self.inputs)

    def __str__(self):
        batch = f"batches of {self.sizes[1]}" if self.batched else "full batch"
        return (
            f"{self.layers}: {self.loss}, {self.optimiser}, {str(self.dtype)[6:]}, {self.data}, "
            f"{self.sizes[0]} samples in blocks of {self.sizes[2]}, {batch}"
        )


def cases():
    """Every chain with two optimisers; the rest in turn, so that all pairs of values occur."""
    for number, (inputs, layers) in enumerate(CHAINS):
        classifies = (Chain.parse(layers, inputs=inputs).outputs or 0) > 1
        for place in range(2):
            yield Case(
                inputs,
                layers,
                "cross-entropy" if classifies and (number // 6 + place) % 2 else "mse",
                OPTIMISERS[(number // 7 + place) % 3],
                (torch.float64, torch.float32)[(number // 2 + place) % 2],
                SHARES[(number + number // 2 + 2 * place) % 4],
                (number // 3 + place) % 2 == 0,
                SIZES[(3 * number + 2 * place) % 5],
            )


CASES = list(cases())


class Problem:
    """The samples of a case, its starting points, and what trial t sees of them."""

    def __init__(self, case):
        generator = torch.Generator().manual_seed(len(case.layers))

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)

        def draw(seeds):
            trials = TrialStack.from_seeds(chain, seeds)
            for name, tensor in trials.tensors().items():
                if name.endswith(
                    ("mu", "alpha", "point")
                ):  # away from a common start, and from the clamp
                    tensor += 0.3 * torch.rand(tensor.shape, generator=generator)
            return TrialStack(chain, trials.values.to(case.dtype))

        chain, samples = case.chain, case.sizes[0]
        own_x, own_y = case.data in SHARES[1::2], case.data in SHARES[1:3]
        self.x = normal(*(TRIALS,) * own_x, samples, case.inputs)
        self.start = draw(range(TRIALS))
        shape = (*(TRIALS,) * own_y, samples)
        if case.loss == "mse":
            # Near what such a chain can give: a distance pulled to 0 amplifies every rounding.
            with torch.no_grad():
                goal = draw([TRIALS])[0](self.x[0] if own_x else self.x)
            self.y = goal + 0.2 * normal(*shape, *goal.shape[1:])
        else:
            self.y = torch.randint(chain.outputs, shape, generator=generator)
        self.of = [
            (self.x[t] if own_x else self.x, self.y[t] if own_y else self.y) for t in range(TRIALS)
        ]
        self.batches = Batches(case.sizes[1], seeds=7) if case.batched else None
        steps_an_epoch = -(-samples // case.sizes[1]) if case.batched else 1
        self.epochs = -(-STEPS // steps_an_epoch)


def plain_loop(case, problem, trial):
    """What anybody would write: the loss of every epoch, and the trained module."""
    module, (x, y) = problem.start[trial], problem.of[trial]
    criterion = nn.MSELoss() if case.loss == "mse" else nn.CrossEntropyLoss()
    if case.optimiser == "adam":
        optimiser = torch.optim.Adam(module.parameters(), lr=RATES[trial], betas=(0.9, 0.99))
    else:
        momentum = 0.9 if case.optimiser == "momentum" else 0
        optimiser = torch.optim.SGD(module.parameters(), lr=RATES[trial], momentum=momentum)
    losses = []
    for epoch in range(1, problem.epochs + 1):
        total = 0.0
        every = torch.arange(len(x))
        batches = problem.batches.split(trial, epoch, len(x)) if case.batched else [every]
        for rows in batches:
            optimiser.zero_grad()
            loss = criterion(module(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            total += loss.item() * len(rows) / len(x)
        losses.append(total)
    return losses, module


def at_once(case, problem, engine):
    kind = {"mse": MeanSquaredError, "cross-entropy": CrossEntropy}[case.loss]
    objective = kind(case.chain, problem.x, problem.y, engine=engine, block=case.sizes[2])
    assert objective.engine == engine
    options = {"lr": RATES, "batches": problem.batches, "curve_points": 10**4}
    if case.optimiser == "adam":
        solver = Adam(objective, problem.start, problem.epochs, **options)
    else:
        options["momentum"] = 0.9 if case.optimiser == "momentum" else 0.0
        solver = SGD(objective, problem.start, problem.epochs, **options)
    solve(solver)
    return solver


def assert_close(got, wanted, case, what):
    """Within rounding of the largest number: small ones are differences of such."""
    error = float((got.double() - wanted.double()).abs().max() / wanted.double().abs().max())
    assert error <= ROUNDINGS * torch.finfo(case.dtype).eps, f"{what}: off by {error:.1e}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trials_at_once_equal_plain_loops(case, monkeypatch):
    monkeypatch.setattr("mahalens.train.Descent.most_epochs", 13)  # several calls of the engine
    problem = Problem(case)
    losses, modules = zip(*[plain_loop(case, problem, t) for t in range(TRIALS)], strict=True)
    wanted_losses = torch.tensor(losses, dtype=torch.float64).T
    wanted = TrialStack.from_modules(case.chain, modules).values
    assert not torch.equal(wanted, problem.start.values)
    for engine in ["torch", *(() if why_not() else ("compiled",))]:
        solver = at_once(case, problem, engine)
        assert solver.curve[0].tolist() == list(range(1, problem.epochs + 1))
        assert_close(solver.curve[1], wanted_losses, case, f"{engine}: losses")
        assert_close(solver.stack.values, wanted, case, f"{engine}: parameters")


def test_the_laws_cover_every_layer_and_every_pair_of_choices():
    """A layer that is added later fails here until there is a law for it."""
    kinds = {layer.kind for case in CASES for layer in case.chain.layers}
    assert kinds == {*ELEMENTWISE, *PARAMETRISED, MIXED, "Norm"}

    def choices(case):
        return (case.loss, case.optimiser, case.dtype, case.data, case.batched, case.sizes)

    met = {
        (layer.kind, layer.bias, layer.variant, choice)
        for case in CASES
        for layer in case.chain.layers
        for choice in choices(case)
    }
    columns = list(zip(*map(choices, CASES), strict=True))
    wanted = {(*key, choice) for *key, _ in met for choice in {c for col in columns for c in col}}
    assert wanted - met == {("Norm", True, "paper", "cross-entropy")}  # it leaves one number
    for one, other in itertools.combinations(columns, 2):
        assert set(zip(one, other, strict=True)) == set(itertools.product(one, other))


class TestWhereSlopesJump:
    """Single gradients against autograd: over many steps the jumps would amplify rounding."""

    @pytest.fixture
    def check(self, engine):
        def compare(layers, x, values, tolerance=0.0):
            chain = Chain.parse(layers, inputs=x.shape[-1])
            stack = TrialStack(chain, values)
            y = torch.ones(len(x), *(() if chain.outputs is None else (chain.outputs,))).to(x)
            loss, gradient = MeanSquaredError(chain, x, y, engine=engine).loss_and_gradient(stack)
            assert bool(gradient.isfinite().all())
            for trial in range(len(stack)):
                module = stack[trial]
                wanted = nn.functional.mse_loss(module(x), y)
                wanted.backward()
                slopes = {name: p.grad[None] for name, p in module.named_parameters()}
                row = TrialStack.from_tensors(chain, slopes).values[0]
                close = {"rtol": 1e-12, "atol": tolerance}
                torch.testing.assert_close(loss[trial], wanted.detach(), rtol=1e-13, atol=0)
                torch.testing.assert_close(gradient[trial], row, **close)
            return gradient

        return compare

    @pytest.mark.parametrize("kind", [*ELEMENTWISE, "AbsReLU(absolute=1)", "LeakyReLU(-1.5)"])
    @pytest.mark.parametrize("layers", ["Linear(3), {}, Norm", "Linear(2), {}, Linear(2)"])
    def test_at_0(self, check, layers, kind):
        x = torch.arange(-10, 11, dtype=torch.float64)[:, None] / 10
        width = 6 if "Norm" in layers else 10
        values = torch.zeros(2, width, dtype=torch.float64)
        values[1, ::2] = 0.5
        check(layers.format(kind), x, values, tolerance=1e-15)

    def test_a_sample_on_its_prototype(self, check):
        x = torch.arange(40, dtype=torch.float64).reshape(20, 2)
        mu, alpha = x[[3, 7]], torch.ones(2, 2).double()
        gradient = check("OffsetL2(2)", x, torch.stack([mu, alpha]).reshape(1, -1))
        alone = check("OffsetL2(2)", x[[3]], torch.stack([mu[[0, 0]], alpha]).reshape(1, -1))
        assert bool((gradient != 0).all())
        assert bool((alone == 0).all())

    def test_the_clamp_of_the_published_code(self, check):
        """Above, below and near 1e-12, and with sums that negative scales make negative."""
        x = 1.1 * torch.logspace(-8, 1, 37, dtype=torch.float64)[:, None]
        mu = torch.zeros(3, 4, dtype=torch.float64)
        alpha = torch.tensor([1.0, 1e-3, -1.0, 0.0]).double().expand(3, 4) * torch.tensor(
            [[1.0], [2.5], [-1.0]]
        )
        values = torch.stack([mu, alpha], 1).reshape(3, -1)
        gradient = check("OffsetL2(4, variant=published-code)", x, values).reshape(3, 2, 4)
        assert bool((gradient[:2, 1, 0] != 0).all())
        assert bool((gradient[:2, :, 2:] == 0).all())
