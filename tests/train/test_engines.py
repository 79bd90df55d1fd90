"""Engines: stacked loss, gradient and curvature against plain modules; batched equals looped."""

import itertools
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from train_problems import (
    DTYPES,
    close,
    draw_data,
    draw_stack,
    normal,
    plain_derivatives,
    plain_gradients,
    plain_training,
    row_of,
)

from mahalens.errors import InputError
from mahalens.nn import Chain, Layer, md_abs, md_relu, md_sigmoid
from mahalens.nn.chain import ELEMENTWISE, MIXED, PARAMETRISED, VARIANTS
from mahalens.train import SGD, Adam, Batches, CrossEntropy, MeanSquaredError, TrialStack, solve
from mahalens.train.compiled import why_not

KINDS = {"mse": MeanSquaredError, "cross-entropy": CrossEntropy}

# Batched equals looped: T trials at once against T plain PyTorch loops, for every layer.

TRIALS, STEPS = 3, 50
RATES = (1e-2, 3e-3, 2e-2)

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

    @property
    def momentum(self):
        return {} if self.optimiser == "adam" else {"momentum": 0.9 * (self.optimiser[0] == "m")}

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
                # Away from a common start, and from the clamp.
                if name.endswith(("mu", "alpha", "point")):
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

    def looped(self, case):
        """Losses ``[E, T]`` and trained modules, one trial after the other."""
        options = {"optimiser": case.optimiser, "batches": self.batches, **case.momentum}
        modules = [self.start[trial] for trial in range(TRIALS)]
        losses = [
            plain_training(module, *of, self.epochs, lr=rate, trial=trial, **options)[0]
            for trial, (module, of, rate) in enumerate(zip(modules, self.of, RATES, strict=True))
        ]
        return torch.stack(losses, 1), TrialStack.from_modules(case.chain, modules).values

    def at_once(self, case, engine):
        kind, block = KINDS[case.loss], case.sizes[2]
        objective = kind(case.chain, self.x, self.y, engine=engine, block=block)
        assert objective.engine == engine
        options = {"lr": RATES, "batches": self.batches, "curve_points": 10**4, **case.momentum}
        options["most_epochs"] = 13  # several calls of the engine
        solver = (Adam if case.optimiser == "adam" else SGD)(
            objective, self.start, self.epochs, **options
        )
        solve(solver)
        return solver


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trials_at_once_equal_plain_loops(case):
    problem = Problem(case)
    losses, values = problem.looped(case)
    assert not torch.equal(values, problem.start.values)
    for engine in ["torch", *(() if why_not() else ("compiled",))]:
        solver = problem.at_once(case, engine)
        assert solver.curve[0].tolist() == list(range(1, problem.epochs + 1))
        close(solver.curve[1], losses, roundings=1000)
        close(solver.stack.values, values, roundings=1000)


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


# Single gradients, where slopes jump: over many steps the jumps would amplify rounding.


def check_gradient(engine, layers, x, values, tolerance=0.0):
    chain = Chain.parse(layers, inputs=x.shape[-1])
    stack = TrialStack(chain, values)
    y = torch.ones(len(x), *(() if chain.outputs is None else (chain.outputs,))).to(x)
    loss, gradient = MeanSquaredError(chain, x, y, engine=engine).loss_and_gradient(stack)
    wanted, slopes = plain_gradients(stack, x, y)
    torch.testing.assert_close(loss, wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradient, slopes, rtol=1e-12, atol=tolerance)
    assert bool(gradient.isfinite().all())
    return gradient


@pytest.mark.parametrize("kind", [*ELEMENTWISE, "AbsReLU(absolute=1)", "LeakyReLU(-1.5)"])
@pytest.mark.parametrize("layers", ["Linear(3), {}, Norm", "Linear(2), {}, Linear(2)"])
def test_slopes_at_0(engine, layers, kind):
    x = torch.arange(-10, 11, dtype=torch.float64)[:, None] / 10
    values = torch.zeros(2, 6 if "Norm" in layers else 10, dtype=torch.float64)
    values[1, ::2] = 0.5
    check_gradient(engine, layers.format(kind), x, values, tolerance=1e-15)


def test_a_sample_on_its_prototype(engine):
    x = torch.arange(40, dtype=torch.float64).reshape(20, 2)
    mu, alpha = x[[3, 7]], torch.ones(2, 2).double()
    gradient = check_gradient(engine, "OffsetL2(2)", x, torch.stack([mu, alpha]).reshape(1, -1))
    alone = torch.stack([mu[[0, 0]], alpha]).reshape(1, -1)
    assert bool((gradient != 0).all())
    assert bool((check_gradient(engine, "OffsetL2(2)", x[[3]], alone) == 0).all())


def test_the_clamp_of_the_published_code(engine):
    """Above, below and near 1e-12, and with sums that negative scales make negative."""
    x = 1.1 * torch.logspace(-8, 1, 37, dtype=torch.float64)[:, None]
    mu = torch.zeros(3, 4, dtype=torch.float64)
    factors = torch.tensor([[1.0], [2.5], [-1.0]])
    alpha = torch.tensor([1.0, 1e-3, -1.0, 0.0]).double().expand(3, 4) * factors
    values = torch.stack([mu, alpha], 1).reshape(3, -1)
    layers = "OffsetL2(4, variant=published-code)"
    gradient = check_gradient(engine, layers, x, values).reshape(3, 2, 4)
    assert bool((gradient[:2, 1, 0] != 0).all())
    assert bool((gradient[:2, :, 2:] == 0).all())


# Gradients of any chain against autograd

WIDTHS = st.sampled_from([1, 2, 3, 4, 5, 8, 9, 17])


@st.composite
def chains(draw):
    """Any chain; some of its ReLUs are layers that mix, as wide as they are there."""
    affine = st.builds(Layer, st.just("Linear"), WIDTHS, st.booleans())
    distance = st.builds(Layer, st.just("OffsetL2"), WIDTHS, variant=st.sampled_from(VARIANTS))
    activation = st.sampled_from([Layer(kind) for kind in ELEMENTWISE])
    slope = st.builds(Layer, st.just("PointSlope"), WIDTHS)
    layers = draw(st.lists(affine | activation | distance | slope, max_size=3))
    layers += [draw(affine | distance | slope), *draw(st.lists(activation, max_size=1))]
    if draw(st.booleans()):
        layers += [Layer("Norm"), *draw(st.lists(activation, max_size=1))]
    chain = Chain(draw(WIDTHS), tuple(layers))
    normed = [layer.kind for layer in layers].index("Norm") if chain.scalar else 99
    mixed = [
        Layer(MIXED, absolute=draw(st.integers(0, width)))
        if layer.kind in ("ReLU", "Abs") and place < normed and draw(st.booleans())
        else layer
        for place, (layer, width) in enumerate(zip(layers, chain.widths, strict=True))
    ]
    return Chain(chain.inputs, tuple(mixed))


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    chain=chains(),
    samples=st.integers(1, 70),
    own=st.booleans(),
    labelled=st.booleans(),
    block=st.sampled_from([None, 1, 16, 24]),
    seed=st.integers(0, 99),
)
def test_gradients_of_any_chain_equal_autograd(engine, chain, samples, own, labelled, block, seed):
    loss = "cross-entropy" if labelled and (chain.outputs or 0) > 1 else "mse"
    x, y, stack = draw_data(chain, samples, 2, own=own, loss=loss, seed=seed)
    objective = KINDS[loss](chain, x, y, engine=engine, block=block)
    losses, gradients = objective.loss_and_gradient(stack)
    close(objective.loss(stack), losses, roundings=0 if engine == "compiled" else 10)
    wanted, slopes = plain_gradients(stack, x, list(y) if own else y)
    torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=1e-15)
    for gradient, slope in zip(gradients, slopes, strict=True):
        # 1 - y² of a Tanh far out is a small difference, and all gradients below it with it.
        bound = 1e-12 * float(slope.abs().max()) + 1e-14
        torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=bound)


# Distances: loss, gradient and curvature against loops over modules and samples.

SAMPLES, INPUTS = 23, 3
X, Y = normal(SAMPLES, INPUTS), 3 * normal(SAMPLES, seed=1).abs()
DISTANCES = [
    "Linear(1), Abs, Norm",
    "Linear(6), ReLU, Norm",
    "Linear(6), Sigmoid, Norm",
    "Linear(3), Norm",
    "Linear(3), Neg, Norm",
    "Linear(3, bias=False), Abs, Norm",
    "Linear(3), Abs, Norm, Neg",
    "Linear(3), Norm, Sigmoid",
    "Linear(3), ReLU, Neg, Norm",
    "Linear(3), ReLU, Sigmoid, Norm, ReLU",
    "Linear(4), ReLU, Linear(3), Abs, Norm",
    "Linear(4), Linear(3), Norm",
    "Linear(4), Abs, Linear(3, bias=False), Sigmoid, Norm, Neg",
    "Linear(2), Sigmoid, Sigmoid, Linear(3, bias=False), Neg, Abs, Linear(2), ReLU, Norm",
    "Abs, Linear(3), Norm",
    "Neg, Abs, Linear(4), ReLU, Norm",
]
EXACT = [md_abs, md_relu, md_sigmoid, lambda dim: Chain.parse("Linear(4), Norm", inputs=dim)]
ALL = torch.ones(TRIALS, dtype=torch.bool)


@pytest.fixture(params=DISTANCES)
def chain(request):
    return Chain.parse(request.param, inputs=INPUTS)


def gauss_newton(stack, x, y):
    """Jᵀr/N and JᵀJ/N of every trial: modules, samples and backward in loops."""
    slopes, matrices = [], []
    for module in stack:
        rows = [row_of(stack.chain, module, module(point)) for point in x]
        jacobian = torch.stack(rows)  # [N, P]
        slopes.append(jacobian.T @ (module(x).detach() - y) / len(x))
        matrices.append(jacobian.T @ jacobian / len(x))
    return torch.stack(slopes), torch.stack(matrices)


def test_loss_gradient_and_curvature_are_those_of_loops(engine, chain, dtype):
    x, y, stack = X.to(dtype), Y.to(dtype), draw_stack(chain, TRIALS, dtype)
    before = stack.values.clone()
    loss, gradient = plain_gradients(stack, x, y)
    slope, matrix = gauss_newton(stack, x, y)
    for block in (None, 1, 7, SAMPLES, 1000):
        objective = MeanSquaredError(chain, x, y, engine=engine, block=block)
        assert objective.engine == engine
        got = objective.loss_and_gradient(stack)
        curved = objective.curvature(stack)
        close(objective.loss(stack), loss)
        for actual, wanted in zip(
            (*got, *curved, 2 * curved[1]),
            (loss, gradient, loss, slope, matrix, gradient),
            strict=True,
        ):
            assert actual.dtype == dtype
            close(actual, wanted)
        assert torch.equal(stack.values, before)
        # A call leaves nothing behind for the next.
        objective.curvature(draw_stack(chain, 2, dtype, seed=5))
        for actual, wanted in zip(objective.loss_and_gradient(stack), got, strict=True):
            assert torch.equal(actual, wanted)


class TestExactCurvature:
    @pytest.mark.parametrize("make", EXACT)
    def test_is_half_the_hessian_where_it_is_asked_for(self, make, dtype):
        chain = make(INPUTS)
        x, y, stack = X.to(dtype), Y.to(dtype), draw_stack(chain, TRIALS, dtype)
        wanted = [plain_derivatives(chain, x, y, values) for values in stack.values]
        for block in (None, 1, 7):
            objective = MeanSquaredError(chain, x, y, block=block)
            assert objective.has_exact_curvature
            loss, slope, matrix = objective.curvature(stack, ALL)
            for trial, (value, gradient, hessian) in enumerate(wanted):
                close(loss[trial], value)
                close(2 * slope[trial], gradient)
                close(2 * matrix[trial], hessian)
            some = objective.curvature(stack, torch.tensor([True, False, True]))[2]
            rough = objective.curvature(stack)[2]
            for trial, row in enumerate((matrix[0], rough[1], matrix[2])):
                close(some[trial], row)
            assert (matrix[1] - rough[1]).abs().max() > 1e-3

    def test_samples_with_every_unit_off_give_zeros_and_no_nan(self, engine):
        chain = md_relu(INPUTS)
        for dtype, off in itertools.product(DTYPES, (1, SAMPLES)):
            x, y, stack = X.to(dtype), Y.to(dtype), draw_stack(chain, TRIALS, dtype)
            scores = x @ stack.tensors()["0.weight"][0].T
            # Of trial 0, all units are off at the first sample, or at all of them.
            stack.tensors()["0.bias"][0] = -0.1 - (scores[0] if off == 1 else scores.amax(0))
            assert int((stack[0](x) == 0).sum()) >= off
            objective = MeanSquaredError(chain, x, y, engine=engine)
            loss, gradient = objective.loss_and_gradient(stack)
            _, slope, matrix = objective.curvature(stack, ALL)
            for trial, values in enumerate(stack.values):
                wanted = plain_derivatives(chain, x, y, values)
                close(loss[trial], wanted[0])
                close(gradient[trial], wanted[1])
                close(2 * slope[trial], wanted[1])
                close(2 * matrix[trial], wanted[2])
            if off == SAMPLES:
                assert not bool(gradient[0].any() | matrix[0].any())

    @pytest.mark.parametrize("make", [md_abs, md_relu])
    def test_all_parameters_zero(self, engine, make):
        stack = draw_stack(make(INPUTS), TRIALS)
        stack.values.zero_()
        objective = MeanSquaredError(stack.chain, X, Y, engine=engine)
        loss, gradient = objective.loss_and_gradient(stack)
        close(loss, Y.square().mean().expand(TRIALS))
        assert not bool(gradient.any())
        for exact in (None, ALL):
            assert not bool(objective.curvature(stack, exact)[2].any())


@pytest.mark.parametrize(
    ("layers", "y", "exact", "message"),
    [
        ("Linear(4), Linear(3), Norm", Y, ALL, r"no exact curvature for the chain Linear.*; leave"),
        ("Linear(3), Abs", Y[:, None].expand(-1, 3), None, r"no curvature .*; it needs a Norm"),
        ("OffsetL2(3), Norm", Y, None, r"no curvature for the chain .*a Norm and no "),
        ("Linear(2), PointSlope(3), Abs, Norm", Y, None, r"no curvature for the chain .*a Norm"),
    ],
)
def test_chains_without_curvature(layers, y, exact, message):
    chain = Chain.parse(layers, inputs=INPUTS)
    objective = MeanSquaredError(chain, X, y.contiguous())
    assert not objective.has_exact_curvature
    assert objective.has_curvature == (exact is not None)
    with pytest.raises(InputError, match=message):
        objective.curvature(draw_stack(chain, TRIALS), exact)


def test_trials_do_not_meet(engine, chain):
    """One that is broken does not touch the others, and each alone gives the same."""
    stack = draw_stack(chain, TRIALS)
    objective = MeanSquaredError(chain, X, Y, engine=engine)
    together = objective.loss_and_gradient(stack)
    broken = stack.values.clone()
    broken[1] = torch.nan
    others = objective.loss_and_gradient(TrialStack(chain, broken))
    assert bool(others[0][1].isnan())
    for part, whole in zip(others, together, strict=True):
        assert torch.equal(part[[0, 2]], whole[[0, 2]])
    for trial in range(TRIALS):
        alone = objective.loss_and_gradient(TrialStack(chain, stack.values[trial : trial + 1]))
        for part, whole in zip(alone, together, strict=True):
            close(part[0], whole[trial])
            assert engine == "torch" or torch.equal(part[0], whole[trial])
