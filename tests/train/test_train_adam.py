"""Stacked Adam against the plain loop over nn.Module and torch.optim.Adam, step for step."""

import pytest
import torch

from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.train import Adam, Descent, MeanSquaredError, Status, TrialStack

MODELS = [md_abs, md_relu, md_sigmoid]
DTYPES = [torch.float32, torch.float64]
DIM, SAMPLES, TRIALS, STEPS = 3, 60, 3, 250


@pytest.mark.usefixtures("one_epoch_at_a_time")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestStepForStep:
    @pytest.fixture
    def check(self, engine, dtype, plain_loop):
        def against_the_loop(start, x, y, steps=STEPS, **options):
            objective = MeanSquaredError(start.chain, x, y, engine=engine)
            assert objective.engine == engine
            solver = Adam(objective, start, steps, curve_points=9 * steps, **options)
            values = []
            for epoch in range(1, steps + 1):
                solver.advance()
                assert solver.epoch == epoch
                values.append(solver.stack.values)
            assert solver.curve[0].tolist() == list(range(1, steps + 1))

            tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
            close = {"rtol": tolerance, "atol": tolerance}
            for trial in range(len(start)):
                loop = plain_loop(start[trial], x, y, steps, **options)
                losses, parameters = zip(*loop, strict=True)
                tensors = {n: torch.stack([p[n] for p in parameters]) for n in parameters[0]}
                wanted = TrialStack.from_tensors(start.chain, tensors).values  # [steps, P]
                torch.testing.assert_close(torch.stack(values)[:, trial], wanted, **close)
                torch.testing.assert_close(solver.curve[1][:, trial], torch.stack(losses), **close)
            assert solver.finished
            assert solver.statuses == [Status.DONE] * len(start)
            assert solver.steps.tolist() == [steps] * len(start)
            assert torch.equal(solver.final_loss, solver.curve[1][-1])

        return against_the_loop

    @pytest.mark.parametrize("make", MODELS)
    def test_the_three_models(self, engine, make, dtype, draw_problem, draw_start, check):
        problem = draw_problem(DIM, SAMPLES, dtype)
        start = draw_start(make(DIM), problem.x, TRIALS)
        if engine == "compiled":
            # Rounding decides whether a unit whose hyperplane meets a sample is on there.
            start.tensors()["0.bias"].add_(0.01)
        check(start, problem.x, problem.y)

    @pytest.mark.parametrize(
        "text",
        [
            "Linear(4, bias=False), Abs, Norm",
            "Linear(4), ReLU, Linear(3), Abs, Norm",
            "Linear(4), Sigmoid, Linear(2, bias=False), Neg, Norm",
        ],
    )
    def test_other_chains(self, text, dtype, draw_problem, draw_stack, check):
        problem = draw_problem(DIM, SAMPLES, dtype)
        chain = Chain.parse(text, inputs=DIM)
        check(draw_stack(chain, 2, dtype), problem.x, problem.y, steps=60)

    @pytest.mark.parametrize("options", [{"lr": 0.05}, {"betas": (0.5, 0.999)}], ids=str)
    def test_other_rates(self, options, dtype, draw_problem, draw_start, check):
        problem = draw_problem(DIM, SAMPLES, dtype)
        start = draw_start(md_abs(DIM), problem.x, 2)
        check(start, problem.x, problem.y, steps=60, **options)

    def test_a_sample_with_every_unit_off(self, dtype, draw_problem, draw_start, check):
        problem = draw_problem(DIM, SAMPLES, dtype)
        start = draw_start(md_relu(DIM), problem.x, 2)
        scores = problem.x @ start.tensors()["0.weight"][0].T
        start.tensors()["0.bias"][0] = -scores[0] - 0.05  # off at the first sample
        start.tensors()["0.bias"][1] = -1e3  # off everywhere
        check(start, problem.x, problem.y)

    def test_epochs_too_long_to_be_taken_together(
        self, dtype, draw_problem, draw_start, check, monkeypatch
    ):
        """Of them the compiled engine gives the gradients only."""
        monkeypatch.setattr(Descent, "small_flops", 0)
        problem = draw_problem(DIM, SAMPLES, dtype)
        check(draw_start(md_abs(DIM), problem.x, 2), problem.x, problem.y, steps=60)


@pytest.mark.parametrize("lost", [0, 1, TRIALS])
def test_chunks_change_nothing(engine, lost, draw_setting, run, assert_same_end):
    """Nor where some trials end on the way, or all of them."""
    objective, start = draw_setting(md_relu(DIM), SAMPLES, TRIALS, engine=engine)
    start.values[:lost] = torch.inf
    solver, short = Adam(objective, start, 230), Adam(objective, start, 230)
    solver.advance()
    assert solver.finished  # one chunk
    short.chunk_flops = 1
    short.advance()
    assert short.epoch == 1
    assert_same_end(run(short), solver)
    assert short.epoch == solver.epoch


def test_the_start_is_not_changed(engine, draw_setting, run):
    objective, start = draw_setting(md_abs(DIM), SAMPLES, 2, engine=engine)
    before = start.values.clone()
    run(Adam(objective, start, 10))
    assert torch.equal(start.values, before)


class TestResuming:
    @pytest.mark.parametrize("make", MODELS)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_from_any_state_to_the_very_same_end(
        self, engine, make, dtype, draw_setting, assert_resumes, monkeypatch
    ):
        monkeypatch.setattr(Descent, "most_epochs", 7)
        _, start = draw_setting(make(DIM), SAMPLES, TRIALS, dtype)
        start.values[1] = torch.inf  # drops out on the way

        def fresh():
            objective, _ = draw_setting(make(DIM), SAMPLES, TRIALS, dtype, engine=engine)
            return Adam(objective, start, 45)

        assert_resumes(fresh)

    @pytest.mark.usefixtures("hundred_epochs_at_a_time")
    def test_a_state_is_a_snapshot(self, engine, draw_setting, assert_same):
        solver = Adam(*draw_setting(md_abs(DIM), SAMPLES, 2, engine=engine), 300)
        solver.advance()
        state = solver.state()
        before = {name: tensor.clone() for name, tensor in state.items()}
        for _ in range(2):
            solver.advance()
            for name, tensor in before.items():
                assert_same(state[name], tensor, name)
            solver.restore(state)

    @pytest.mark.usefixtures("hundred_epochs_at_a_time")
    def test_seconds_and_curve_come_back(self, draw_setting, through_file):
        setting = draw_setting(md_abs(DIM), SAMPLES, 2)
        solver, again = Adam(*setting, 300), Adam(*setting, 300)
        solver.advance()
        solver.seconds = 12.25
        again.restore(through_file(solver.state()))
        assert again.seconds == 12.25
        assert again.progress == solver.progress
        assert torch.equal(again.curve[0], solver.curve[0])
        assert torch.equal(again.curve[1], solver.curve[1])


class TestCurve:
    @pytest.fixture
    def make(self, engine, draw_setting):
        setting = draw_setting(md_abs(DIM), SAMPLES, 2, engine=engine)
        return lambda epochs, **options: Adam(*setting, epochs, **options)

    @pytest.mark.parametrize("epochs", [1, 2, 10, 400])
    def test_from_the_first_to_the_last_epoch(self, epochs, make, run):
        solver = run(make(epochs, curve_points=20))
        recorded, losses = solver.curve
        assert recorded[0] == 1
        assert recorded[-1] == epochs
        assert bool((recorded.diff() > 0).all())
        assert len(recorded) <= 20
        assert losses.shape == (len(recorded), 2)
        assert torch.equal(losses[-1], solver.final_loss)

    def test_evenly_on_a_log_scale(self, make, run):
        recorded = run(make(400, curve_points=20)).curve[0]
        ratios = recorded[1:].double() / recorded[:-1].double()
        assert bool((ratios[recorded[:-1] >= 10] < 400 ** (1 / 19) * 1.06).all())

    def test_every_epoch_of_a_short_run(self, make, run):
        solver = run(make(30))
        assert solver.curve[0].tolist() == list(range(1, 31))

    def test_before_the_first_step_it_is_empty(self, make):
        solver = make(30)
        assert solver.curve[0].shape == (0,)
        assert solver.curve[1].shape == (0, 2)
        assert solver.progress == (0, 30, "MSE nan")

    @pytest.mark.usefixtures("hundred_epochs_at_a_time")
    def test_progress(self, make):
        solver = make(250)
        solver.advance()
        done, of, words = solver.progress
        assert 0 < done < of == 250
        assert words == f"MSE {float(solver.curve[1][-1].median()):.3g}"
