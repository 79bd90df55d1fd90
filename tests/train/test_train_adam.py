"""Stacked Adam against the plain loop over nn.Module and torch.optim.Adam, step for step."""

import pytest
import torch

from mahalens.errors import InputError
from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import Adam, MeanSquaredError, Status, TrialStack

MODELS = [md_abs, md_relu, md_sigmoid]
DTYPES = [torch.float32, torch.float64]
DIM, SAMPLES, TRIALS, STEPS = 3, 60, 3, 250


def plain_loop(module, x, y, steps, lr=1e-3, betas=(0.9, 0.99)):
    """What anybody would write: yields the loss and the parameters after every step."""
    optimiser = torch.optim.Adam(module.parameters(), lr=lr, betas=betas)
    criterion = torch.nn.MSELoss()
    for _ in range(steps):
        optimiser.zero_grad()
        loss = criterion(module(x), y)
        loss.backward()
        optimiser.step()
        yield loss.detach(), {name: p.detach().clone() for name, p in module.named_parameters()}


@pytest.fixture
def one_epoch_at_a_time(monkeypatch):
    monkeypatch.setattr("mahalens.train.adam._CHUNK_FLOPS", 1)


@pytest.mark.usefixtures("one_epoch_at_a_time")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestStepForStep:
    def check(self, chain, start, x, y, dtype, steps=STEPS, **options):
        solver = Adam(
            MeanSquaredError(chain, x, y), start, steps, curve_points=9 * steps, **options
        )
        values = []
        for epoch in range(1, steps + 1):
            solver.advance()
            assert solver.epoch == epoch
            values.append(solver.stack.values)
        assert solver.curve[0].tolist() == list(range(1, steps + 1))

        tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
        close = {"rtol": tolerance, "atol": tolerance}
        for trial in range(len(start)):
            losses, parameters = zip(*plain_loop(start[trial], x, y, steps, **options), strict=True)
            tensors = {name: torch.stack([p[name] for p in parameters]) for name in parameters[0]}
            wanted = TrialStack.from_tensors(chain, tensors).values  # [steps, P]
            torch.testing.assert_close(torch.stack(values)[:, trial], wanted, **close)
            torch.testing.assert_close(solver.curve[1][:, trial], torch.stack(losses), **close)
        assert solver.finished
        assert solver.statuses == [Status.DONE] * len(start)
        assert solver.steps.tolist() == [steps] * len(start)
        assert torch.equal(solver.final_loss, solver.curve[1][-1])

    @pytest.mark.parametrize("make", MODELS)
    def test_the_three_models(self, make, dtype, draw_problem, draw_start):
        problem = draw_problem(DIM, SAMPLES, dtype)
        chain = make(DIM)
        self.check(chain, draw_start(chain, problem.x, TRIALS), problem.x, problem.y, dtype)

    @pytest.mark.parametrize(
        "text",
        [
            "Linear(4, bias=False), Abs, Norm",
            "Linear(4), ReLU, Linear(3), Abs, Norm",
            "Linear(4), Sigmoid, Linear(2, bias=False), Neg, Norm",
        ],
    )
    def test_other_chains(self, text, dtype, draw_problem, draw_stack):
        problem = draw_problem(DIM, SAMPLES, dtype)
        chain = Chain.parse(text, inputs=DIM)
        self.check(chain, draw_stack(chain, 2, dtype), problem.x, problem.y, dtype, steps=60)

    @pytest.mark.parametrize("options", [{"lr": 0.05}, {"betas": (0.5, 0.999)}], ids=str)
    def test_other_rates(self, options, dtype, draw_problem, draw_start):
        problem = draw_problem(DIM, SAMPLES, dtype)
        chain = md_abs(DIM)
        start = draw_start(chain, problem.x, 2)
        self.check(chain, start, problem.x, problem.y, dtype, steps=60, **options)

    def test_a_sample_with_every_unit_off(self, dtype, draw_problem, draw_start):
        problem = draw_problem(DIM, SAMPLES, dtype)
        chain = md_relu(DIM)
        start = draw_start(chain, problem.x, 2)
        scores = problem.x @ start.tensors()["0.weight"][0].T
        start.tensors()["0.bias"][0] = -scores[0] - 0.05  # off at the first sample
        start.tensors()["0.bias"][1] = -1e3  # off everywhere
        self.check(chain, start, problem.x, problem.y, dtype)


def test_chunks_change_nothing(draw_problem, draw_start, run, monkeypatch):
    problem = draw_problem(DIM, SAMPLES)
    chain = md_relu(DIM)
    start = draw_start(chain, problem.x, TRIALS)
    objective = MeanSquaredError(chain, problem.x, problem.y)
    long = run(Adam(objective, start, 230))
    monkeypatch.setattr("mahalens.train.adam._CHUNK_FLOPS", 1)
    short = run(Adam(objective, start, 230))
    assert torch.equal(long.stack.values, short.stack.values)
    assert torch.equal(long.curve[1], short.curve[1])


def test_the_start_is_not_changed(draw_problem, draw_start, run):
    problem = draw_problem(DIM, SAMPLES)
    start = draw_start(md_abs(DIM), problem.x, 2)
    before = start.values.clone()
    run(Adam(MeanSquaredError(start.chain, problem.x, problem.y), start, 10))
    assert torch.equal(start.values, before)


class Poisoned(MeanSquaredError):
    """Makes trial ``trial`` non-finite from call ``epoch`` on, as an overflow would."""

    def __init__(self, *args, trial, epoch, bad=torch.nan):
        super().__init__(*args)
        self.trial, self.countdown, self.bad = trial, epoch, bad

    def loss_and_gradient(self, stack):
        loss, gradient = super().loss_and_gradient(stack)
        self.countdown -= 1
        if self.countdown == 0:
            loss[self.trial] = self.bad
            gradient[self.trial] = self.bad
        return loss, gradient


class TestNonFiniteTrials:
    epochs = 250

    @pytest.fixture
    def setting(self, draw_problem, draw_start):
        problem = draw_problem(DIM, SAMPLES, torch.float32)
        chain = md_abs(DIM)
        return chain, problem, draw_start(chain, problem.x, 4)

    def check_others(self, solver, setting, broken, run):
        """They end as they would without the broken ones."""
        chain, problem, start = setting
        rest = [trial for trial in range(len(start)) if trial not in broken]
        alone = run(
            Adam(
                MeanSquaredError(chain, problem.x, problem.y),
                TrialStack(chain, start.values[rest]),
                self.epochs,
            )
        )
        assert [solver.statuses[trial] for trial in rest] == alone.statuses
        assert solver.steps[rest].tolist() == [self.epochs] * len(rest)
        tolerance = {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(solver.stack.values[rest], alone.stack.values, **tolerance)
        torch.testing.assert_close(solver.final_loss[rest], alone.final_loss, **tolerance)
        assert torch.equal(solver.curve[0], alone.curve[0])
        torch.testing.assert_close(solver.curve[1][:, rest], alone.curve[1], **tolerance)

    @pytest.mark.parametrize("size", [1e25, 3e38, float("inf"), float("nan")])
    def test_huge_starting_weights(self, setting, size, run):
        chain, problem, start = setting
        start.values[2] *= size
        solver = run(Adam(MeanSquaredError(chain, problem.x, problem.y), start, self.epochs))
        assert solver.statuses[2] is Status.NON_FINITE
        assert int(solver.steps[2]) == 1
        assert not bool(solver.final_loss[2].isfinite())
        self.check_others(solver, setting, [2], run)

    @pytest.mark.parametrize("epoch", [1, 2, 37, 99, 100, 101, 249, 250])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_the_epoch_is_named(self, setting, epoch, bad, run):
        chain, problem, start = setting
        objective = Poisoned(chain, problem.x, problem.y, trial=1, epoch=epoch, bad=bad)
        solver = run(Adam(objective, start, self.epochs))
        assert solver.statuses[1] is Status.NON_FINITE
        assert int(solver.steps[1]) == epoch
        self.check_others(solver, setting, [1], run)

    def test_the_epoch_is_that_of_the_plain_loop(self, setting, run):
        """A learning rate that throws every trial out, at the epoch where the loop sees it."""
        chain, problem, start = setting
        for lr in (1e18, 1e19, 1e30):
            objective = MeanSquaredError(chain, problem.x, problem.y)
            solver = run(Adam(objective, start, 20, lr=lr))
            for trial in range(len(start)):
                losses = [
                    loss for loss, _ in plain_loop(start[trial], problem.x, problem.y, 20, lr)
                ]
                finite = torch.stack(losses).isfinite().tolist()
                if all(finite):
                    assert solver.statuses[trial] is Status.DONE
                else:
                    assert solver.statuses[trial] is Status.NON_FINITE
                    assert int(solver.steps[trial]) == finite.index(False) + 1
        assert solver.statuses == [Status.NON_FINITE] * len(start)  # at the highest rate

    def test_the_curve_stops_where_the_trial_does(self, setting, run):
        chain, problem, start = setting
        objective = Poisoned(chain, problem.x, problem.y, trial=3, epoch=37)
        solver = run(Adam(objective, start, self.epochs, curve_points=5000))
        epochs, losses = solver.curve
        assert bool(losses[epochs < 37, 3].isfinite().all())
        assert not bool(losses[epochs >= 37, 3].isfinite().any())
        assert bool(losses[:, :3].isfinite().all())

    def test_everybody(self, setting, run):
        chain, problem, start = setting
        start.values.fill_(torch.nan)
        solver = run(Adam(MeanSquaredError(chain, problem.x, problem.y), start, self.epochs))
        assert solver.statuses == [Status.NON_FINITE] * 4
        assert solver.steps.tolist() == [1] * 4
        assert solver.progress[0] <= self.epochs


class TestResuming:
    @pytest.mark.parametrize("make", MODELS)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_from_any_state_to_the_very_same_end(
        self, make, dtype, draw_problem, draw_start, run, through_file, assert_same_end, monkeypatch
    ):
        monkeypatch.setattr("mahalens.train.adam._CHUNK_FLOPS", 7 * 4 * SAMPLES * TRIALS * 12)
        problem = draw_problem(DIM, SAMPLES, dtype)
        chain = make(DIM)
        start = draw_start(chain, problem.x, TRIALS)
        start.values[1] = torch.inf  # drops out on the way

        def fresh():
            return Adam(MeanSquaredError(chain, problem.x, problem.y), start, 45)

        solver, states = fresh(), []
        while not solver.finished:
            states.append(solver.state())
            solver.advance()
        states.append(solver.state())
        assert len(states) > 5
        for state in states:
            again = fresh()
            again.restore(through_file(state))
            assert_same_end(run(again), solver)

    def test_a_state_is_a_snapshot(self, draw_problem, draw_start, assert_same):
        problem = draw_problem(DIM, SAMPLES)
        start = draw_start(md_abs(DIM), problem.x, 2)
        solver = Adam(MeanSquaredError(start.chain, problem.x, problem.y), start, 300)
        solver.advance()
        state = solver.state()
        before = {name: tensor.clone() for name, tensor in state.items()}
        solver.advance()
        for name, tensor in before.items():
            assert_same(state[name], tensor, name)
        solver.restore(state)
        solver.advance()
        for name, tensor in before.items():
            assert_same(state[name], tensor, name)

    def test_seconds_and_curve_come_back(self, draw_problem, draw_start, through_file):
        problem = draw_problem(DIM, SAMPLES)
        start = draw_start(md_abs(DIM), problem.x, 2)
        objective = MeanSquaredError(start.chain, problem.x, problem.y)
        solver, again = Adam(objective, start, 300), Adam(objective, start, 300)
        solver.advance()
        solver.seconds = 12.25
        again.restore(through_file(solver.state()))
        assert again.seconds == 12.25
        assert again.progress == solver.progress
        assert torch.equal(again.curve[0], solver.curve[0])
        assert torch.equal(again.curve[1], solver.curve[1])

    def test_another_run_s_state(self, draw_problem, draw_start):
        problem = draw_problem(DIM, SAMPLES)
        start = draw_start(md_abs(DIM), problem.x, 2)
        objective = MeanSquaredError(start.chain, problem.x, problem.y)
        solver = Adam(objective, start, 300)
        fewer = Adam(objective, TrialStack(start.chain, start.values[:1]), 300)
        with pytest.raises(
            InputError, match=r"a saved state of shape \(1, 12\) and torch\.float64"
        ):
            solver.restore(fewer.state())
        state = solver.state() | {"epoch": torch.tensor(301)}
        with pytest.raises(InputError, match="a saved state of epoch 301 of only 300"):
            solver.restore(state)
        state = solver.state()
        del state["rows.m"]
        with pytest.raises(InputError, match="which is another solver's"):
            solver.restore(state)


class TestCurve:
    def solver(self, draw_problem, draw_start, epochs, **options):
        problem = draw_problem(DIM, SAMPLES)
        start = draw_start(md_abs(DIM), problem.x, 2)
        return Adam(MeanSquaredError(start.chain, problem.x, problem.y), start, epochs, **options)

    @pytest.mark.parametrize("epochs", [1, 2, 10, 400])
    def test_from_the_first_to_the_last_epoch(self, epochs, draw_problem, draw_start, run):
        solver = run(self.solver(draw_problem, draw_start, epochs, curve_points=20))
        recorded, losses = solver.curve
        assert recorded[0] == 1
        assert recorded[-1] == epochs
        assert bool((recorded.diff() > 0).all())
        assert len(recorded) <= 20
        assert losses.shape == (len(recorded), 2)
        assert torch.equal(losses[-1], solver.final_loss)

    def test_evenly_on_a_log_scale(self, draw_problem, draw_start, run):
        recorded = run(self.solver(draw_problem, draw_start, 400, curve_points=20)).curve[0]
        ratios = recorded[1:].double() / recorded[:-1].double()
        assert bool((ratios[recorded[:-1] >= 10] < 400 ** (1 / 19) * 1.06).all())

    def test_every_epoch_of_a_short_run(self, draw_problem, draw_start, run):
        solver = run(self.solver(draw_problem, draw_start, 30))
        assert solver.curve[0].tolist() == list(range(1, 31))

    def test_before_the_first_step_it_is_empty(self, draw_problem, draw_start):
        solver = self.solver(draw_problem, draw_start, 30)
        assert solver.curve[0].shape == (0,)
        assert solver.curve[1].shape == (0, 2)
        assert solver.progress == (0, 30, "MSE nan")

    def test_progress(self, draw_problem, draw_start):
        solver = self.solver(draw_problem, draw_start, 250)
        solver.advance()
        done, of, words = solver.progress
        assert 0 < done < of == 250
        assert words == f"MSE {float(solver.curve[1][-1].median()):.3g}"


class TestErrors:
    @pytest.fixture
    def arguments(self, draw_problem, draw_start):
        problem = draw_problem(DIM, SAMPLES)
        start = draw_start(md_abs(DIM), problem.x, 2)
        return MeanSquaredError(start.chain, problem.x, problem.y), start

    @pytest.mark.parametrize("lr", [float("nan"), float("inf"), 0.0, -1e-3])
    def test_learning_rate(self, arguments, lr):
        with pytest.raises(InputError, match=f"a learning rate of {lr}; give a positive number"):
            Adam(*arguments, 10, lr=lr)

    @pytest.mark.parametrize("betas", [(0.9, 1.0), (-0.1, 0.9), (float("nan"), 0.9)])
    def test_betas(self, arguments, betas):
        with pytest.raises(InputError, match=r"betas of \(.*\); give two numbers in \[0, 1\)"):
            Adam(*arguments, 10, betas=betas)

    @pytest.mark.parametrize("epochs", [0, -5])
    def test_epochs(self, arguments, epochs):
        with pytest.raises(InputError, match=f"{epochs} epochs; give at least 1"):
            Adam(*arguments, epochs)

    def test_no_trials(self, arguments):
        objective, start = arguments
        with pytest.raises(InputError, match="no trials; give at least 1"):
            Adam(objective, TrialStack(start.chain, start.values[:0]), 10)

    def test_trials_that_do_not_fit_the_objective(self, arguments):
        objective, start = arguments
        others = [
            TrialStack(start.chain, start.values.float()),
            TrialStack(Chain.parse("Linear(3), ReLU, Norm", inputs=DIM), start.values),
        ]
        for other in others:
            with pytest.raises(InputError, match=r"trials of the chain .*; make them equal"):
                Adam(objective, other, 10)
