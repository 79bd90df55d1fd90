"""SGD and Adam: step for step like plain loops, when trials end, resuming, curves."""

import math

import pytest
import torch
from torch import nn
from train_problems import (
    assert_resumes,
    assert_same,
    assert_same_end,
    draw_problem,
    draw_setting,
    draw_stack,
    draw_start,
    normal,
    plain_training,
    run,
    through_file,
)

from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import SGD, Adam, Batches, MeanSquaredError, Status, TrialStack, fit
from mahalens.train.compiled import why_not

MODELS = [md_abs, md_relu, md_sigmoid]
DIM, SAMPLES, TRIALS = 3, 60, 3


def rows_of(chain, states):
    """Parameters after every epoch, in the layout of a stack's rows ``[E, P]``."""
    tensors = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    return TrialStack.from_tensors(chain, tensors).values


class TestAdamStepForStep:
    def check(self, engine, start, problem, steps, small_flops=1e8, **options):
        objective = MeanSquaredError(start.chain, problem.x, problem.y, engine=engine)
        solver = Adam(
            objective, start, steps, curve_points=9 * steps, most_epochs=1,
            small_flops=small_flops, **options,
        )  # fmt: skip
        values = []
        for epoch in range(1, steps + 1):
            solver.advance()
            assert solver.epoch == epoch
            values.append(solver.stack.values)
        tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[problem.x.dtype]
        bounds = {"rtol": tolerance, "atol": tolerance}
        for trial, module in enumerate(start):
            losses, states = plain_training(module, problem.x, problem.y, steps, **options)
            wanted = rows_of(start.chain, states)
            torch.testing.assert_close(torch.stack(values)[:, trial], wanted, **bounds)
            curve = solver.curve[1][:, trial]
            torch.testing.assert_close(curve, losses.to(curve.dtype), **bounds)
        assert solver.curve[0].tolist() == list(range(1, steps + 1))
        assert solver.statuses == [Status.DONE] * len(start)
        assert solver.steps.tolist() == [steps] * len(start)
        assert torch.equal(solver.final_loss, solver.curve[1][-1])

    @pytest.mark.parametrize("make", MODELS)
    def test_the_three_models(self, engine, make, dtype):
        problem = draw_problem(DIM, SAMPLES, dtype)
        start = draw_start(make(DIM), problem.x, TRIALS)
        if engine == "compiled":
            # Rounding decides whether a unit whose hyperplane meets a sample is on there.
            start.tensors()["0.bias"].add_(0.01)
        self.check(engine, start, problem, steps=100)

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("Linear(4, bias=False), Abs, Norm", {}),
            ("Linear(4), ReLU, Linear(3), Abs, Norm", {"lr": 0.05}),
            ("Linear(4), Sigmoid, Linear(2, bias=False), Neg, Norm", {"betas": (0.5, 0.999)}),
            # An epoch too long to be taken with others in one call.
            ("Linear(3), Abs, Norm", {"small_flops": 0}),
        ],
        ids=str,
    )
    def test_other_chains_and_options(self, engine, text, options, dtype):
        problem = draw_problem(DIM, SAMPLES, dtype)
        start = draw_stack(Chain.parse(text, inputs=DIM), 2, dtype)
        self.check(engine, start, problem, steps=60, **options)

    def test_a_sample_with_every_unit_off(self, engine, dtype):
        problem = draw_problem(DIM, SAMPLES, dtype)
        start = draw_start(md_relu(DIM), problem.x, 2)
        scores = problem.x @ start.tensors()["0.weight"][0].T
        start.tensors()["0.bias"][0] = -scores[0] - 0.05  # off at the first sample
        start.tensors()["0.bias"][1] = -1e3  # off everywhere
        self.check(engine, start, problem, steps=100)


@pytest.mark.parametrize("lost", [0, 1, TRIALS])
def test_chunks_change_nothing_and_neither_is_the_start_changed(engine, lost):
    """Also where some trials end on the way, or all of them."""
    objective, start = draw_setting(md_relu(DIM), SAMPLES, TRIALS, engine=engine)
    start.values[:lost] = torch.inf
    before = start.values.clone()
    solver, short = Adam(objective, start, 230), Adam(objective, start, 230, chunk_flops=1)
    solver.advance()
    assert solver.finished  # one chunk
    short.advance()
    assert short.epoch == 1
    assert_same_end(run(short), solver)
    assert short.epoch == solver.epoch
    assert_same(start.values, before)


class TestResuming:
    @pytest.mark.parametrize("make", MODELS)
    def test_from_any_state_to_the_very_same_end(self, engine, make, dtype):
        _, start = draw_setting(make(DIM), SAMPLES, TRIALS, dtype)
        start.values[1] = torch.inf  # drops out on the way

        def fresh():
            objective, _ = draw_setting(make(DIM), SAMPLES, TRIALS, dtype, engine=engine)
            return Adam(objective, start, 45, most_epochs=7)

        assert_resumes(fresh)

    def test_a_state_is_a_snapshot_of_everything(self, engine):
        setting = draw_setting(md_abs(DIM), SAMPLES, 2, engine=engine)
        solver, again = (Adam(*setting, 300, most_epochs=100) for _ in range(2))
        solver.advance()
        solver.seconds = 12.25
        state = solver.state()
        before = {name: tensor.clone() for name, tensor in state.items()}
        again.restore(through_file(state))
        assert (again.seconds, again.progress) == (12.25, solver.progress)
        for part, other in zip(again.curve, solver.curve, strict=True):
            assert torch.equal(part, other)
        for _ in range(2):
            solver.advance()
            for name, tensor in before.items():
                assert_same(state[name], tensor, name)
            solver.restore(state)


class TestCurve:
    @pytest.mark.parametrize("epochs", [1, 2, 10, 400])
    def test_from_the_first_to_the_last_epoch_evenly_on_a_log_scale(self, epochs, engine):
        setting = draw_setting(md_abs(DIM), SAMPLES, 2, engine=engine)
        solver = run(Adam(*setting, epochs, curve_points=20))
        recorded, losses = solver.curve
        assert (recorded[0], recorded[-1]) == (1, epochs)
        assert bool((recorded.diff() > 0).all())
        assert losses.shape == (len(recorded), 2)
        assert len(recorded) <= 20
        assert torch.equal(losses[-1], solver.final_loss)
        ratios = recorded[1:].double() / recorded[:-1].double()
        assert bool((ratios[recorded[:-1] >= 10] < epochs ** (1 / 19) * 1.06).all())

    def test_progress(self, engine):
        setting = draw_setting(md_abs(DIM), SAMPLES, 2, engine=engine)
        solver = Adam(*setting, 250, most_epochs=100)
        assert [part.shape for part in solver.curve] == [(0,), (0, 2)]
        assert solver.progress == (0, 250, "MSE nan")
        solver.advance()
        done, of, words = solver.progress
        assert 0 < done < of == 250
        assert words == f"MSE {float(solver.curve[1][-1].median()):.3g}"


# Trials that end early: by the definition, and alike on every engine

RATES = (0.3, 0.02, 0.1, 1e200, 0.05)
STOPPING = {
    "target": {"target": 0.2},
    "patience": {"patience": 3, "gain": 0.02},
    "both": {"target": 0.06, "patience": 3, "gain": 0.03},
    "patience without gain": {"patience": 2},
}
SOME = Batches(20, seeds=1)
WAYS = {  # mini-batches are always trained in the library if there is one
    "torch": {"engine": "torch"},
    "torch, mini-batches": {"engine": "torch", "batches": SOME},
    "compiled": {"engine": "compiled"},
    "compiled, mini-batches": {"engine": "compiled", "batches": SOME},
    "compiled, torch steps": {"engine": "compiled", "small_flops": 0},
}


@pytest.fixture(params=WAYS)
def way(request):
    if "compiled" in request.param and why_not():
        pytest.skip(f"no compiled engine here: {why_not()}")
    return WAYS[request.param]


def five(engine, **options):
    """The solver of five trials that learn at different speeds; one blows up."""
    generator = torch.Generator().manual_seed(0)
    chain = Chain.parse("Linear(6), Tanh, Linear(2)", inputs=3)
    x = torch.randn(77, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(6, 38, generator=generator, dtype=torch.float64)
    teacher, start = TrialStack(chain, values[5:])[0], TrialStack(chain, values[:5])
    objective = MeanSquaredError(chain, x, 0.3 * teacher(x).detach(), engine=engine)
    return SGD(objective, start, 80, **{"lr": RATES, "curve_points": 10**4, **options})


def wanted_end(losses, target=None, patience=None, gain=0.0):
    """Epoch and status by the definition, from the losses of a trial that was let run."""
    best, since = math.inf, 0
    for epoch, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            return epoch, Status.NON_FINITE
        if target is not None and loss <= target:
            return epoch, Status.REACHED
        if loss < (best * (1 - gain) if best < math.inf else best):
            best, since = loss, 0
        else:
            since += 1
        if patience is not None and since >= patience:
            return epoch, Status.PLATEAU
    return len(losses), Status.DONE


@pytest.mark.parametrize("rule", STOPPING)
def test_trials_end_where_they_should(way, rule):
    free, solver = run(five(**way)), run(five(**way, **STOPPING[rule]))
    histories = [free.curve[1][:steps, t].tolist() for t, steps in enumerate(free.steps)]
    ends = [wanted_end(losses, **STOPPING[rule]) for losses in histories]
    assert list(zip(solver.steps.tolist(), solver.statuses, strict=True)) == ends
    assert len(set(ends)) > 1
    assert solver.epoch == max(steps for steps, _ in ends) == len(solver.curve[0])
    stored = solver.objective.loss(solver.stack)
    for trial, (steps, status) in enumerate(ends):
        column = solver.curve[1][:, trial]
        wanted = free.curve[1][: len(column), trial].clone()
        wanted[steps:] = torch.nan
        # In torch, rounding depends on how many trials are left.
        rounding = 1e-9 if way["engine"] == "torch" else 0
        torch.testing.assert_close(column, wanted, rtol=rounding, atol=0, equal_nan=True)
        last = solver.final_loss[trial]
        assert_same(last, column[steps - 1])
        if "batches" not in way and status in (Status.REACHED, Status.PLATEAU):
            torch.testing.assert_close(stored[trial], last, rtol=1e-12, atol=0)
    # Where the work is cut changes nothing.
    assert_same_end(run(five(**way, most_epochs=1, **STOPPING[rule])), solver)


@pytest.mark.parametrize("rule", STOPPING)
def test_engines_agree_and_a_batch_of_all_samples_is_the_full_batch(way, rule):
    full = way if "batches" in way else {**way, "batches": Batches(100, shuffle=False)}
    plain = {"engine": "torch", "batches": way.get("batches")}
    wanted = run(five(**plain, **STOPPING[rule]))
    rest = [trial for trial, rate in enumerate(RATES) if rate < 1]
    for options in (way, full):
        solver = run(five(**options, **STOPPING[rule]))
        assert solver.statuses == wanted.statuses
        assert torch.equal(solver.steps, wanted.steps)
        values, other = solver.stack.values[rest], wanted.stack.values[rest]
        torch.testing.assert_close(values, other, rtol=1e-10, atol=1e-10)


def test_a_restored_run_ends_at_the_same_epochs(way):
    """The best loss so far and the epochs since go through the file too."""
    assert_resumes(lambda: five(**way, most_epochs=1, **STOPPING["both"]))


@pytest.mark.parametrize("batched", [False, True], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("is_chain", [True, False], ids=["chain", "module"])
def test_those_who_go_on_keep_their_own_samples(engine, batched, is_chain):
    """Also where they are not the first of the trials any more."""
    x = normal(3, 30, 2)
    y = x.sum(-1, keepdim=True).sin()
    rates = torch.tensor([0.5, 0.1, 0.05])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)) for _ in range(3)]
    # What is wrapped once more is no chain, and has but one engine.
    nets = [net.double() if is_chain else nn.Sequential(net).double() for net in nets]

    def fit_some(*which):
        options = {"engine": engine} if is_chain else {}
        options |= {"batches": Batches(20, which)} if batched else {}
        return fit(
            [nets[t] for t in which], x[[*which]], y[[*which]], epochs=30, lr=rates[[*which]],
            solver="sgd", own=True, target=0.1, **options,
        )  # fmt: skip

    together = fit_some(0, 1, 2)
    assert together.steps[2] > together.steps[:2].max()
    for trial in range(3):
        alone = fit_some(trial)
        assert alone.statuses == [together.statuses[trial]]
        assert alone.steps[0] == together.steps[trial]
        row = together.stack.values[trial]
        torch.testing.assert_close(row, alone.stack.values[0], rtol=1e-10, atol=1e-12)


# Trials that turn non-finite: when they end, and that the others go on

EPOCHS, FOUR = 250, 4


class Poisoned(MeanSquaredError):
    """Makes trial 1 non-finite at call ``epoch``, as an overflow would.

    With the torch engine, which comes here every epoch.
    """

    def __init__(self, *args, epoch, bad):
        super().__init__(*args, engine="torch")
        self.countdown, self.bad = epoch, bad

    def loss_and_gradient(self, stack):
        loss, gradient = super().loss_and_gradient(stack)
        self.countdown -= 1
        if self.countdown == 0:
            loss[1] = gradient[1] = self.bad
        return loss, gradient


@pytest.fixture
def setting():
    problem = draw_problem(DIM, SAMPLES, torch.float32)
    return problem.x, problem.y, draw_start(md_abs(DIM), problem.x, FOUR)


def check_others(solver, setting, broken, make=Adam, **options):
    """They end as they would without the broken ones."""
    x, y, start = setting
    rest = [trial for trial in range(FOUR) if trial not in broken]
    engine = solver.objective.engine
    few = TrialStack(start.chain, start.values[rest])
    objective = MeanSquaredError(start.chain, x, y, engine=engine)
    alone = run(make(objective, few, EPOCHS, **options))
    assert [solver.statuses[trial] for trial in rest] == alone.statuses
    assert solver.steps[rest].tolist() == [EPOCHS] * len(rest)
    # By the torch engine, trials share matrix products, which round with the number of rows.
    bounds = {"rtol": 1e-5, "atol": 1e-6} if engine == "torch" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(solver.stack.values[rest], alone.stack.values, **bounds)
    torch.testing.assert_close(solver.final_loss[rest], alone.final_loss, **bounds)
    assert torch.equal(solver.curve[0], alone.curve[0])
    torch.testing.assert_close(solver.curve[1][:, rest], alone.curve[1], **bounds)


@pytest.mark.parametrize("size", [1e25, 3e38, float("inf"), float("nan")])
def test_huge_starting_weights(setting, engine, size):
    x, y, start = setting
    start.values[2] *= size
    objective = MeanSquaredError(start.chain, x, y, engine=engine)
    solver = run(Adam(objective, start, EPOCHS))
    assert (solver.statuses[2], int(solver.steps[2])) == (Status.NON_FINITE, 1)
    assert not bool(solver.final_loss[2].isfinite())
    check_others(solver, setting, [2])
    start.values.fill_(torch.nan)
    solver = run(Adam(objective, start, EPOCHS))
    assert solver.statuses == [Status.NON_FINITE] * FOUR
    assert solver.steps.tolist() == [1] * FOUR
    assert solver.curve[0].tolist() == [1]  # nothing is said of epochs that were not


@pytest.mark.parametrize("epoch", [1, 2, 37, 100, 249, 250])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_epoch_is_named_and_the_curve_stops_there(setting, epoch, bad):
    x, y, start = setting
    objective = Poisoned(start.chain, x, y, epoch=epoch, bad=bad)
    solver = run(Adam(objective, start, EPOCHS))
    assert (solver.statuses[1], int(solver.steps[1])) == (Status.NON_FINITE, epoch)
    check_others(solver, setting, [1])
    epochs, losses = solver.curve
    assert bool(losses[epochs < epoch, 1].isfinite().all())
    assert not bool(losses[epochs >= epoch, 1].isfinite().any())


def check_like_the_loop(solver, setting, optimiser, rates):
    """Trials end where the loop sees a loss that is not finite, with the weights that had it."""
    x, y, start = setting
    for trial, lr in enumerate(rates):
        losses, states = plain_training(start[trial], x, y, solver.limit, optimiser, lr)
        finite = losses.isfinite().tolist()
        epoch = solver.limit if all(finite) else finite.index(False) + 1
        assert solver.statuses[trial] is (Status.DONE if all(finite) else Status.NON_FINITE)
        assert int(solver.steps[trial]) == epoch
        assert bool(solver.final_loss[trial].isfinite()) == all(finite)
        wanted = rows_of(start.chain, states)[epoch - 1 if all(finite) else epoch - 2]
        error = (solver.stack.values[trial] - wanted).abs().max() / wanted.abs().max()
        assert float(error) < 1e-3


def test_the_epoch_is_that_of_the_plain_loop(setting, engine):
    """A learning rate that throws every trial out, at the epoch where the loop sees it."""
    x, y, start = setting
    objective = MeanSquaredError(start.chain, x, y, engine=engine)
    # At 1e18 the squares are finite, and their sum is only where it is not taken in one go.
    for lr in (1e17, *([1e18] if engine == "torch" else []), 1e19, 1e30):
        solver = run(Adam(objective, start, 20, lr=lr))
        check_like_the_loop(solver, setting, "adam", [lr] * FOUR)
    assert solver.statuses == [Status.NON_FINITE] * FOUR  # at the highest rate


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_rates_that_throw_some_trials_out(setting, engine, chunk):
    """Steps too long by far make SGD leap further every time, until a square is too large."""
    x, y, start = setting
    rates = [1e-3, 3.0, 1e-3, 1e3]
    objective = MeanSquaredError(start.chain, x, y, engine=engine)
    solver = run(SGD(objective, start, EPOCHS, lr=rates, most_epochs=chunk))
    check_like_the_loop(solver, setting, "sgd", rates)
    done, lost = Status.DONE, Status.NON_FINITE
    assert solver.statuses == [done, lost, done, lost]
    assert 2 < int(solver.steps[3]) < int(solver.steps[1]) < EPOCHS  # each in its own time
    check_others(solver, setting, [1, 3], SGD, lr=1e-3)
