"""Trials of SGD and Adam that turn non-finite: when they end, and that the others go on."""

import pytest
import torch

from mahalens.nn import md_abs
from mahalens.train import SGD, Adam, MeanSquaredError, Status, TrialStack

DIM, SAMPLES, TRIALS, EPOCHS = 3, 60, 4, 250


class Poisoned(MeanSquaredError):
    """Makes trial ``trial`` non-finite from call ``epoch`` on, as an overflow would.

    With the torch engine, which comes here every epoch.
    """

    def __init__(self, *args, trial, epoch, bad=torch.nan):
        super().__init__(*args, engine="torch")
        self.trial, self.countdown, self.bad = trial, epoch, bad

    def loss_and_gradient(self, stack):
        loss, gradient = super().loss_and_gradient(stack)
        self.countdown -= 1
        if self.countdown == 0:
            loss[self.trial] = self.bad
            gradient[self.trial] = self.bad
        return loss, gradient


@pytest.fixture
def setting(draw_problem, draw_start):
    problem = draw_problem(DIM, SAMPLES, torch.float32)
    return problem, draw_start(md_abs(DIM), problem.x, TRIALS)


@pytest.fixture
def check_others(setting, run):
    """They end as they would without the broken ones."""
    problem, start = setting

    def check(solver, broken, make=Adam, **options):
        rest = [trial for trial in range(TRIALS) if trial not in broken]
        engine = solver.objective.engine
        objective = MeanSquaredError(start.chain, problem.x, problem.y, engine=engine)
        few = TrialStack(start.chain, start.values[rest])
        alone = run(make(objective, few, EPOCHS, **options))
        assert [solver.statuses[trial] for trial in rest] == alone.statuses
        assert solver.steps[rest].tolist() == [EPOCHS] * len(rest)
        # By the torch engine, trials share matrix products, which round with the number of rows.
        close = {"rtol": 1e-5, "atol": 1e-6} if engine == "torch" else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(solver.stack.values[rest], alone.stack.values, **close)
        torch.testing.assert_close(solver.final_loss[rest], alone.final_loss, **close)
        assert torch.equal(solver.curve[0], alone.curve[0])
        torch.testing.assert_close(solver.curve[1][:, rest], alone.curve[1], **close)

    return check


@pytest.fixture
def objective(setting, engine):
    problem, start = setting
    return MeanSquaredError(start.chain, problem.x, problem.y, engine=engine)


@pytest.mark.parametrize("size", [1e25, 3e38, float("inf"), float("nan")])
def test_huge_starting_weights(setting, objective, size, run, check_others):
    _, start = setting
    start.values[2] *= size
    solver = run(Adam(objective, start, EPOCHS))
    assert solver.statuses[2] is Status.NON_FINITE
    assert int(solver.steps[2]) == 1
    assert not bool(solver.final_loss[2].isfinite())
    check_others(solver, [2])


@pytest.mark.parametrize("epoch", [1, 2, 37, 99, 100, 101, 249, 250])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_epoch_is_named(setting, epoch, bad, run, check_others):
    problem, start = setting
    objective = Poisoned(start.chain, problem.x, problem.y, trial=1, epoch=epoch, bad=bad)
    solver = run(Adam(objective, start, EPOCHS))
    assert solver.statuses[1] is Status.NON_FINITE
    assert int(solver.steps[1]) == epoch
    check_others(solver, [1])


def check_like_the_loop(solver, start, x, y, plain_loop, optimiser, rates):
    """Trials end where the loop sees a loss that is not finite, with the weights that had it."""
    for trial, lr in enumerate(rates):
        loop = list(plain_loop(start[trial], x, y, solver.limit, optimiser, lr=lr))
        finite = [bool(loss.isfinite()) for loss, _ in loop]
        epoch = solver.limit if all(finite) else finite.index(False) + 1
        assert solver.statuses[trial] is (Status.DONE if all(finite) else Status.NON_FINITE)
        assert int(solver.steps[trial]) == epoch
        assert bool(solver.final_loss[trial].isfinite()) == all(finite)
        tensors = loop[epoch - 1 if all(finite) else epoch - 2][1]
        stacked = {name: tensor[None] for name, tensor in tensors.items()}
        wanted = TrialStack.from_tensors(start.chain, stacked).values[0]
        error = (solver.stack.values[trial] - wanted).abs().max() / wanted.abs().max()
        assert float(error) < 1e-3


def test_the_epoch_is_that_of_the_plain_loop(setting, objective, engine, run, plain_loop):
    """A learning rate that throws every trial out, at the epoch where the loop sees it."""
    problem, start = setting
    # At 1e18 the squares are finite, and their sum is only where it is not taken in one go.
    for lr in (1e17, *([1e18] if engine == "torch" else []), 1e19, 1e30):
        solver = run(Adam(objective, start, 20, lr=lr))
        check_like_the_loop(
            solver, start, problem.x, problem.y, plain_loop, torch.optim.Adam, [lr] * TRIALS
        )
    assert solver.statuses == [Status.NON_FINITE] * TRIALS  # at the highest rate


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_rates_that_throw_some_trials_out(setting, objective, chunk, run, plain_loop, check_others):
    """Steps too long by far make SGD leap further every time, until a square is too large."""
    problem, start = setting
    rates = [1e-3, 3.0, 1e-3, 1e3]
    solver = SGD(objective, start, EPOCHS, lr=rates)
    solver.most_epochs = chunk
    run(solver)
    check_like_the_loop(solver, start, problem.x, problem.y, plain_loop, torch.optim.SGD, rates)
    done, lost = Status.DONE, Status.NON_FINITE
    assert solver.statuses == [done, lost, done, lost]
    assert 2 < int(solver.steps[3]) < int(solver.steps[1]) < EPOCHS  # each in its own time
    check_others(solver, [1, 3], SGD, lr=1e-3)
    epochs, losses = solver.curve
    for trial in (1, 3):
        here = epochs < solver.steps[trial]
        assert bool(losses[here, trial].isfinite().all())
        assert not bool(losses[~here, trial].isfinite().any())


def test_both_engines_lose_the_same_trials(setting, run):
    problem, start = setting
    start.values[0] = torch.inf
    ends = []
    for engine in ("torch", "auto"):
        objective = MeanSquaredError(start.chain, problem.x, problem.y, engine=engine)
        solver = run(SGD(objective, start, EPOCHS, lr=[1e-3, 3.0, 1e-3, 1e3]))
        ends.append((solver.statuses, solver.steps.tolist(), solver.curve[0].tolist()))
    assert ends[0] == ends[1]


def test_the_curve_stops_where_the_trial_does(setting, run):
    problem, start = setting
    objective = Poisoned(start.chain, problem.x, problem.y, trial=3, epoch=37)
    solver = run(Adam(objective, start, EPOCHS, curve_points=5000))
    epochs, losses = solver.curve
    assert bool(losses[epochs < 37, 3].isfinite().all())
    assert not bool(losses[epochs >= 37, 3].isfinite().any())
    assert bool(losses[:, :3].isfinite().all())


def test_everybody(setting, objective, run):
    _, start = setting
    start.values.fill_(torch.nan)
    solver = run(Adam(objective, start, EPOCHS))
    assert solver.statuses == [Status.NON_FINITE] * TRIALS
    assert solver.steps.tolist() == [1] * TRIALS
    assert solver.progress[0] <= EPOCHS
    assert solver.curve[0].tolist() == [1]  # nothing is said of epochs that were not
