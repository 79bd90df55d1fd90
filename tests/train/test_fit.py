"""Training in one call: solvers, metrics, checkpoints, what is refused."""

import os

import pytest
import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Chain, Norm
from mahalens.train import (
    SGD,
    Adam,
    Batches,
    CrossEntropy,
    MeanSquaredError,
    Newton,
    Status,
    TrialStack,
    fit,
    solve,
)

TRIALS, SAMPLES = 3, 45
LAYERS = {
    "distance": ("mse", lambda: [nn.Linear(4, 5), nn.ReLU(), Norm()]),
    "numbers": ("mse", lambda: [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)]),
    "classes": ("cross-entropy", lambda: [nn.Linear(4, 3, bias=False)]),
}
SOLVERS = {"sgd": {"lr": 0.05, "momentum": 0.5}, "adam": {"lr": 0.02}, "newton": {}}


def modules(task="numbers"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [nn.Sequential(*LAYERS[task][1]()).double() for _ in range(TRIALS)]


def data(task="numbers", *lead):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*lead, SAMPLES, 4, generator=generator, dtype=torch.float64)
    if task == "classes":
        return x, torch.randint(3, (*lead, SAMPLES), generator=generator)
    return x, x.norm(dim=-1) if task == "distance" else x[..., :2].sin()


def values(solver):
    """A metric that tells everything about the weights."""
    return {"norm": solver.stack.values.norm(dim=1), "first": solver.stack.values[:, 0]}


@pytest.fixture
def seven_epochs_at_a_time(monkeypatch):
    """Short pieces of work, and a checkpoint after each."""
    monkeypatch.setattr("mahalens.train.Descent.most_epochs", 7)
    monkeypatch.setattr("mahalens.train.solver.SAVE_EVERY", 0)


class TestEndToEnd:
    @pytest.mark.parametrize("task", LAYERS)
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_the_same_as_the_solver_by_hand(self, task, solver, engine, assert_same_end):
        x, y = data(task)
        loss, start = LAYERS[task][0], modules(task)
        before = [[p.detach().clone() for p in module.parameters()] for module in start]
        done = fit(
            start, x, y, epochs=60, loss=loss, solver=solver, engine=engine, **SOLVERS[solver]
        )
        chain = Chain.from_module(start[0])
        stacked = TrialStack.from_modules(chain, start)
        kind = {"mse": MeanSquaredError, "cross-entropy": CrossEntropy}[loss]
        make = {"sgd": SGD, "adam": Adam, "newton": Newton}[solver]
        wanted = make(kind(chain, x, y, engine=engine), stacked, 60, **SOLVERS[solver])
        began = wanted.objective.loss(stacked)
        solve(wanted)
        assert done.objective.engine == engine
        assert_same_end(done, wanted)
        assert bool((done.final_loss < began).all())
        for module, parameters in zip(start, before, strict=True):
            for now, then in zip(module.parameters(), parameters, strict=True):
                assert torch.equal(now, then)
        outputs = done.stack[1](x)
        assert bool(outputs.isfinite().all())
        assert done.stack[1](x).shape == start[1](x).shape

    def test_modules_or_a_stack(self, assert_same_end):
        x, y = data()
        start = modules()
        stacked = TrialStack.from_modules(Chain.from_module(start[0]), start)
        options = {"epochs": 30, "batch_size": 10, "seeds": [5, 6, 7], "lr": [0.1, 0.01, 0.02]}
        assert_same_end(fit(start, x, y, **options), fit(stacked, x, y, **options))

    @pytest.mark.parametrize("seeds", [4, [9, 2, 2]])
    def test_batches(self, seeds, assert_same_end):
        x, y = data()
        done = fit(modules(), x, y, epochs=20, batch_size=10, seeds=seeds)
        stacked = TrialStack.from_modules(Chain.from_module(modules()[0]), modules())
        objective = MeanSquaredError(stacked.chain, x, y)
        wanted = Adam(objective, stacked, 20, batches=Batches(10, seeds))
        solve(wanted)
        assert_same_end(done, wanted)
        assert not torch.equal(fit(modules(), x, y, epochs=20).stack.values, done.stack.values)

    @pytest.mark.parametrize("solver", ["sgd", "adam"])
    def test_trials_with_samples_of_their_own(self, solver):
        x, y = data("numbers", TRIALS)
        together = fit(modules(), x, y, epochs=30, solver=solver)
        for trial in range(TRIALS):
            alone = fit([modules()[trial]], x[trial], y[trial], epochs=30, solver=solver)
            row = together.stack.values[trial]
            torch.testing.assert_close(row, alone.stack.values[0], rtol=1e-12, atol=1e-12)


class TestMetrics:
    @pytest.mark.parametrize("solver", ["sgd", "adam"])
    def test_are_taken_at_the_epochs_asked_for(self, solver, engine):
        x, y = data()

        def run(epochs, **options):
            return fit(modules(), x, y, epochs=epochs, solver=solver, engine=engine, **options)

        done = run(25, metrics=values, at=[10, 0, 3, 3, 99])
        assert done.history.epochs.tolist() == [0, 3, 10, 25]
        assert done.history.names == ["norm", "first"]
        start = TrialStack.from_modules(Chain.from_module(modules()[0]), modules())
        assert torch.equal(done.history["first"][0], start.values[:, 0])
        for place, epoch in [(1, 3), (2, 10), (3, 25)]:
            assert torch.equal(done.history["norm"][place], values(run(epoch))["norm"])
        assert torch.equal(done.stack.values, run(25).stack.values)

    def test_with_newton(self):
        done = fit(
            modules(), *data(), epochs=12, solver="newton", metrics=values, at=[0, 1, 5, 100]
        )
        assert done.history.epochs.tolist() == [0, 1, 5, 12]
        assert torch.equal(done.history["norm"][-1], done.stack.values.norm(dim=1))

    def test_only_at_the_end_unless_asked(self):
        seen = []
        done = fit(modules(), *data(), epochs=9, metrics=lambda solver: seen.append(solver.epoch))
        assert seen == [9]
        assert done.history.epochs.tolist() == [9]
        assert done.history.names == []
        assert len(fit(modules(), *data(), epochs=9, at=[3]).history.epochs) == 0

    def test_after_everybody_stopped_early(self, engine):
        x, y = data()
        rates = [0.5, 0.05, 1e200]
        options = {"solver": "sgd", "lr": rates, "target": 0.2, "engine": engine}
        done = fit(modules(), x, y, epochs=500, metrics=values, at=range(0, 500, 20), **options)
        assert done.statuses == [Status.REACHED, Status.REACHED, Status.NON_FINITE]
        first, last = int(done.steps[0]), int(done.steps.max())
        assert first < last < 500
        epochs = done.history.epochs.tolist()
        assert epochs == sorted({*range(0, last, 20), last})
        ended = [place for place, epoch in enumerate(epochs) if epoch >= first]
        assert len(ended) > 2
        for place in ended:  # a trial that has ended is shown as it ended
            assert torch.equal(done.history["norm"][place, 0], values(done)["norm"][0])

    def test_that_change(self):
        with pytest.raises(InputError, match=r"metrics \['b'\] at epoch 5, but \['a'\] before"):
            fit(
                modules(),
                *data(),
                epochs=9,
                metrics=lambda solver: {"b" if solver.epoch else "a": torch.zeros(3)},
                at=[0, 5],
            )

    @pytest.mark.parametrize("wrong", [0.5, torch.tensor(0.5), torch.zeros(3, 1)])
    def test_that_are_not_a_number_per_trial(self, wrong):
        with pytest.raises(InputError, match="metric 'a': give a tensor with one number per trial"):
            fit(modules(), *data(), epochs=9, metrics=lambda _: {"a": wrong})


@pytest.mark.usefixtures("seven_epochs_at_a_time")
class TestCheckpoint:
    @pytest.mark.parametrize("batch_size", [None, 10])
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_goes_on_after_an_error_as_if_nothing_had_been(
        self, solver, batch_size, tmp_path, engine, assert_same_end
    ):
        if solver == "newton" and batch_size:
            pytest.skip("full batch only")
        kept = tmp_path / "new folder" / "state"
        seen = []

        def metrics(solver):
            seen.append(solver.epoch)
            if seen.count(22) == 1 and solver.epoch == 22:
                raise ZeroDivisionError
            return values(solver)

        def run(metrics, **options):
            x, y = data("distance")
            options |= SOLVERS[solver]
            return fit(
                modules("distance"), x, y, epochs=30, solver=solver, batch_size=batch_size,
                engine=engine, metrics=metrics, at=[0, 5, 14, 22], **options,
            )  # fmt: skip

        whole = run(values)
        with pytest.raises(ZeroDivisionError):
            run(metrics, checkpoint=kept)
        done = run(metrics, checkpoint=str(kept))
        assert_same_end(done, whole)
        assert torch.equal(done.history.epochs, whole.history.epochs)
        for name in ("norm", "first"):
            assert torch.equal(done.history[name], whole.history[name])
        assert sorted({*seen}) == whole.history.epochs.tolist()
        assert seen.count(0) == seen.count(14) == 1  # what was saved is not measured again
        assert [path.name for path in kept.parent.iterdir()] == ["state"]

    def test_of_a_finished_fit_is_its_result(self, tmp_path, monkeypatch, assert_same_end):
        options = {"epochs": 20, "checkpoint": tmp_path / "state", "metrics": values, "at": [4]}
        done = fit(modules(), *data(), **options)

        def refuse(_):
            raise AssertionError("trained again")

        monkeypatch.setattr(Adam, "advance", refuse)
        again = fit(modules(), *data(), **options)
        assert_same_end(again, done)
        assert torch.equal(again.history["norm"], done.history["norm"])

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"lr": 0.1}, "options was"),
            ({"lr": [1e-3, 1e-3, 1e-2]}, "options was"),
            ({"solver": "sgd"}, "solver was adam, not sgd"),
            ({"solver": "newton"}, "solver was adam, not newton"),
            ({"batch_size": 8}, "options was"),
            ({"target": 0.1}, "options was"),
            ({"engine": "torch"}, "engine was compiled, not torch"),
        ],
        ids=str,
    )
    def test_of_another_fit(self, change, words, tmp_path):
        kept = tmp_path / "state"
        done = fit(modules(), *data(), epochs=20, checkpoint=kept)
        if "engine" in change and done.objective.engine == "torch":
            pytest.skip("no compiled engine here")
        before = kept.read_bytes()
        with pytest.raises(InputError, match=rf"{words}.*; give another file") as caught:
            fit(modules(), *data(), epochs=20, checkpoint=kept, **change)
        assert str(caught.value).startswith(f"{kept}: ")
        assert "\n" not in str(caught.value)
        assert kept.read_bytes() == before

    def test_of_another_model_or_other_trials(self, tmp_path):
        kept = tmp_path / "state"
        fit(modules(), *data(), epochs=20, checkpoint=kept)
        for start, task in [(modules("distance"), "distance"), (modules()[:2], "numbers")]:
            with pytest.raises(InputError) as caught:
                fit(start, *data(task), epochs=20, checkpoint=kept)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("what", ["x", "y", "start", "epochs"])
    def test_of_other_samples_or_another_start(self, what, tmp_path):
        x, y = data()
        fit(modules(), x, y, epochs=20, checkpoint=tmp_path / "state")
        other = {
            "x": lambda: fit(modules(), 2 * x, y, epochs=20, checkpoint=tmp_path / "state"),
            "y": lambda: fit(modules(), x, 2 * y, epochs=20, checkpoint=tmp_path / "state"),
            "start": lambda: fit(modules()[::-1], x, y, epochs=20, checkpoint=tmp_path / "state"),
            "epochs": lambda: fit(modules(), x, y, epochs=40, checkpoint=tmp_path / "state"),
        }
        with pytest.raises(InputError, match="give another file"):
            other[what]()

    @pytest.mark.parametrize("size", [0, 7, 100, 0.5, -1])
    def test_that_is_damaged(self, size, tmp_path):
        kept = tmp_path / "state"
        fit(modules(), *data(), epochs=20, checkpoint=kept)
        content = kept.read_bytes()
        cut = int(size * len(content)) if isinstance(size, float) else size
        kept.write_bytes(content[:cut])
        with pytest.raises(InputError, match=r"cannot be read as a checkpoint .*; give another"):
            fit(modules(), *data(), epochs=20, checkpoint=kept)

    def test_with_a_flipped_byte(self, tmp_path):
        kept = tmp_path / "state"
        fit(modules(), *data(), epochs=20, checkpoint=kept)
        content = bytearray(kept.read_bytes())
        content[-3] ^= 1
        kept.write_bytes(content)
        with pytest.raises(InputError, match=r"state: is damaged .*; delete it to train from the"):
            fit(modules(), *data(), epochs=20, checkpoint=kept)

    def test_in_a_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "state")
        with pytest.raises(InputError, match="is a pipe, not a file"):
            fit(modules(), *data(), epochs=20, checkpoint=tmp_path / "state")

    def test_in_a_file_that_is_something_else(self, tmp_path):
        for kept in (tmp_path, tmp_path / "text"):
            (tmp_path / "text").write_text("Dear diary")
            with pytest.raises(InputError, match="cannot be read as a checkpoint"):
                fit(modules(), *data(), epochs=20, checkpoint=kept)


class TestProgress:
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_goes_to_stderr_alone(self, solver, capsys):
        fit(modules(), *data(), epochs=20, solver=solver, progress=True)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert solver in shown.err

    def test_is_off_by_default(self, capsys):
        fit(modules(), *data(), epochs=20)
        assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("task", list(LAYERS))
def test_arrays_are_taken_as_tensors_are(task):
    x, y = data(task)
    options = {"loss": LAYERS[task][0], "epochs": 3}
    wanted = fit(modules(task), x, y, **options)
    found = fit(modules(task), x.numpy(), y.numpy(), **options)
    assert torch.equal(found.stack.values, wanted.stack.values)
