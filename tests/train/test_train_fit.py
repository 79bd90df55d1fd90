"""Training in one call: solvers, metrics, checkpoints, progress."""

import os

import numpy as np
import pytest
import torch
from torch import nn
from train_problems import assert_same_end, normal

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
OPTIONS = {"sgd": {"lr": 0.05, "momentum": 0.5}, "adam": {"lr": 0.02}, "newton": {}}
SOLVERS = {"sgd": SGD, "adam": Adam, "newton": Newton}
OBJECTIVES = {"mse": MeanSquaredError, "cross-entropy": CrossEntropy}


def modules(task="numbers"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [nn.Sequential(*LAYERS[task][1]()).double() for _ in range(TRIALS)]


def data(task="numbers", *lead):
    x = normal(*lead, SAMPLES, 4, seed=1)
    if task == "classes":
        generator = torch.Generator().manual_seed(2)
        return x, torch.randint(3, (*lead, SAMPLES), generator=generator)
    return x, x.norm(dim=-1) if task == "distance" else x[..., :2].sin()


def stacked(task="numbers"):
    start = modules(task)
    return TrialStack.from_modules(Chain.from_module(start[0]), start)


def by_hand(task, solver, *args, engine="auto", **options):
    """The solver that ``fit`` should make, driven to its end."""
    start = stacked(task)
    objective = OBJECTIVES[LAYERS[task][0]](start.chain, *data(task), engine=engine)
    made = SOLVERS[solver](objective, start, *args, **options)
    solve(made)
    return made


def values(solver):
    """A metric that tells everything about the weights."""
    return {"norm": solver.stack.values.norm(dim=1), "first": solver.stack.values[:, 0]}


@pytest.mark.parametrize("task", LAYERS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_same_as_the_solver_by_hand(task, solver, engine):
    start = modules(task)
    before = [[p.detach().clone() for p in module.parameters()] for module in start]
    options = {"epochs": 60, "loss": LAYERS[task][0], "solver": solver, **OPTIONS[solver]}
    done = fit(start, *data(task), engine=engine, **options)
    assert done.objective.engine == engine
    assert_same_end(done, by_hand(task, solver, 60, engine=engine, **OPTIONS[solver]))
    assert bool((done.final_loss < done.objective.loss(stacked(task))).all())
    for module, parameters in zip(start, before, strict=True):
        for now, then in zip(module.parameters(), parameters, strict=True):
            assert torch.equal(now, then)
    x = data(task)[0]
    assert done.stack[1](x).shape == start[1](x).shape


@pytest.mark.parametrize("task", LAYERS)
def test_modules_or_a_stack_tensors_or_arrays(task):
    x, y = data(task)
    options = {"epochs": 3, "loss": LAYERS[task][0], "lr": [0.1, 0.01, 0.02]}
    wanted = fit(modules(task), x, y, **options)
    assert_same_end(fit(stacked(task), x.numpy(), y.numpy(), **options), wanted)


@pytest.mark.parametrize("seeds", [4, [9, 2, 2], np.int64(2), torch.tensor([1, 2, 3])], ids=str)
def test_batches(seeds):
    done = fit(modules(), *data(), epochs=20, batch_size=10, seeds=seeds)
    batches = Batches(10, seeds)
    assert_same_end(done, by_hand("numbers", "adam", 20, batches=batches))
    assert_same_end(done, fit(modules(), *data(), epochs=20, batches=batches))
    assert not torch.equal(fit(modules(), *data(), epochs=20).stack.values, done.stack.values)


class TestMetrics:
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_are_taken_at_the_epochs_asked_for(self, solver, engine):
        def fit_for(epochs, **options):
            options |= {"solver": solver, "engine": engine}
            return fit(modules(), *data(), epochs=epochs, **options)

        done = fit_for(12, metrics=values, at=[5, 0, 3, 3, 99])
        assert done.history.epochs.tolist() == [0, 3, 5, 12]
        assert done.history.names == ["norm", "first"]
        assert torch.equal(done.stack.values, fit_for(12).stack.values)
        last = values(done)
        for name in ("norm", "first"):
            assert torch.equal(done.history[name][-1], last[name])
        if solver != "newton":  # its start has been whitened and back
            assert torch.equal(done.history["first"][0], stacked().values[:, 0])
        for place, epoch in [(1, 3), (2, 5)]:
            assert torch.equal(done.history["norm"][place], values(fit_for(epoch))["norm"])

    def test_only_at_the_end_unless_asked(self):
        seen = []
        done = fit(modules(), *data(), epochs=9, metrics=lambda solver: seen.append(solver.epoch))
        assert seen == done.history.epochs.tolist() == [9]
        assert done.history.names == []
        assert len(fit(modules(), *data(), epochs=9, at=[3]).history.epochs) == 0

    def test_after_everybody_stopped_early(self, engine):
        options = {"solver": "sgd", "lr": [0.5, 0.05, 1e200], "target": 0.2, "engine": engine}
        done = fit(modules(), *data(), epochs=500, metrics=values, at=range(0, 500, 20), **options)
        assert done.statuses == [Status.REACHED, Status.REACHED, Status.NON_FINITE]
        first, last = int(done.steps[0]), int(done.steps.max())
        assert first < last < 500
        epochs = done.history.epochs.tolist()
        assert epochs == sorted({*range(0, last, 20), last})
        ended = [place for place, epoch in enumerate(epochs) if epoch >= first]
        assert len(ended) > 2
        for place in ended:  # a trial that has ended is shown as it ended
            assert torch.equal(done.history["norm"][place, 0], values(done)["norm"][0])


class TestCheckpoint:
    @pytest.fixture
    def file(self, tmp_path):
        return tmp_path / "new folder" / "state"

    def fit(self, file, start=None, x=None, y=None, **options):
        """Short pieces of work, and a checkpoint after each."""
        start = modules() if start is None else start
        x, y = (data()[place] if part is None else part for place, part in enumerate((x, y)))
        pace = {} if options.get("solver") == "newton" else {"most_epochs": 7}
        return fit(start, x, y, checkpoint=file, save_every=0, **{"epochs": 20, **pace, **options})

    @pytest.mark.parametrize(
        ("solver", "batch_size"),
        [("sgd", None), ("sgd", 10), ("adam", None), ("adam", 10), ("newton", None)],
    )
    def test_goes_on_after_an_error_as_if_nothing_had_been(self, solver, batch_size, file, engine):
        seen = []

        def failing(solver):
            seen.append(solver.epoch)
            if seen.count(22) == 1 and solver.epoch == 22:
                raise ZeroDivisionError
            return values(solver)

        def fit_with(metrics, checkpoint):
            options = OPTIONS[solver] | ({} if batch_size is None else {"batch_size": batch_size})
            return self.fit(
                checkpoint, modules("distance"), *data("distance"), epochs=30, solver=solver,
                engine=engine, metrics=metrics, at=[0, 5, 14, 22], **options,
            )  # fmt: skip

        whole = fit_with(values, None)
        with pytest.raises(ZeroDivisionError):
            fit_with(failing, file)
        done = fit_with(failing, str(file))
        assert_same_end(done, whole)
        assert torch.equal(done.history.epochs, whole.history.epochs)
        for name in ("norm", "first"):
            assert torch.equal(done.history[name], whole.history[name])
        assert sorted({*seen}) == whole.history.epochs.tolist()
        assert seen.count(0) == seen.count(14) == 1  # what was saved is not measured again
        assert [path.name for path in file.parent.iterdir()] == ["state"]

    def test_of_a_finished_fit_is_its_result(self, file):
        options = {"metrics": values, "at": [4]}
        done = self.fit(file, **options)
        seen = []
        again = self.fit(file, metrics=lambda solver: seen.append(solver.epoch), at=[4])
        assert_same_end(again, done)
        assert torch.equal(again.history["norm"], done.history["norm"])
        assert seen == []  # nothing is trained or measured again

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda: {"lr": 0.1}, "options was"),
            (lambda: {"lr": [1e-3, 1e-3, 1e-2]}, "options was"),
            (lambda: {"solver": "sgd"}, "solver was adam, not sgd"),
            (lambda: {"solver": "newton"}, "solver was adam, not newton"),
            (lambda: {"batch_size": 8}, "options was"),
            (lambda: {"target": 0.1}, "options was"),
            (lambda: {"engine": "torch"}, "engine was .*, not torch"),
            (lambda: {"epochs": 40}, "epochs was 20, not 40"),
            (lambda: {"x": 2 * data()[0]}, "data was"),
            (lambda: {"y": 2 * data()[1]}, "data was"),
            (lambda: {"start": modules()[::-1]}, "start was"),
            (lambda: {"start": modules()[:2]}, "start was"),
            (
                lambda: {"start": modules("distance"), "y": data("distance")[1]},
                r"model was Linear\(5\), Tanh, Linear\(2\), not Linear\(5\), ReLU, Norm",
            ),
        ],
    )
    def test_of_another_fit(self, change, words, file):
        first = self.fit(file)
        options = change()
        if "engine" in options and first.objective.engine == "torch":
            pytest.skip("no compiled engine here")
        before = file.read_bytes()
        with pytest.raises(InputError, match=rf"{words}.*; give another file") as caught:
            self.fit(file, **options)
        assert str(caught.value).startswith(f"{file}: ")
        assert "\n" not in str(caught.value)
        assert file.read_bytes() == before

    @pytest.mark.parametrize(
        ("harm", "words"),
        [
            *[
                (lambda content, size=size: content[:size], r"cannot be read .*; give another")
                for size in (0, 7, 100, 1000, -1)
            ],
            (lambda _: b"Dear diary", "cannot be read as a checkpoint"),
            (
                lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
                "state: is damaged .*; delete it to train from the",
            ),
        ],
    )
    def test_that_is_damaged(self, harm, words, file):
        self.fit(file)
        file.write_bytes(harm(file.read_bytes()))
        with pytest.raises(InputError, match=words):
            self.fit(file)

    def test_in_a_pipe_or_a_folder(self, tmp_path):
        os.mkfifo(tmp_path / "state")
        with pytest.raises(InputError, match="is a pipe, not a file"):
            self.fit(tmp_path / "state")
        with pytest.raises(InputError, match="cannot be read as a checkpoint"):
            self.fit(tmp_path)


@pytest.mark.parametrize("solver", SOLVERS)
def test_progress_goes_to_stderr_and_is_off_by_default(solver, capsys):
    fit(modules(), *data(), epochs=20, solver=solver)
    assert capsys.readouterr() == ("", "")
    fit(modules(), *data(), epochs=20, solver=solver, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert solver in err
