"""Where trials end early: by the definition, and alike on every engine."""

import math

import pytest
import torch
from torch import nn

from mahalens.nn import Chain
from mahalens.train import SGD, Batches, MeanSquaredError, Status, TrialStack, fit, solve
from mahalens.train.compiled import CompiledEngine, why_not

RATES = (0.3, 0.02, 0.1, 1e200, 0.05)
STOPPING = {
    "target": {"target": 0.2},
    "patience": {"patience": 3, "gain": 0.02},
    "both": {"target": 0.06, "patience": 3, "gain": 0.03},
    "patience without gain": {"patience": 2},
}
SOME = Batches(20, seeds=1)
WAYS = {  # mini-batches are always trained in the library if there is one
    "torch": ("torch", None),
    "torch, mini-batches": ("torch", SOME),
    "compiled": ("compiled", None),
    "compiled, mini-batches": ("compiled", SOME),
    "compiled, torch steps": ("compiled", None),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Engine and batches; large problems take gradients from the library and step in torch."""
    if request.param != "torch" and why_not():
        pytest.skip(f"no compiled engine here: {why_not()}")
    if request.param == "compiled, torch steps":

        def refuse(*_):
            raise AssertionError("trained in the library")

        monkeypatch.setattr(SGD, "small_flops", 0)
        monkeypatch.setattr(CompiledEngine, "train", refuse)
    return WAYS[request.param]


@pytest.fixture
def make():
    """Makes the solver of five trials that learn at different speeds; one blows up."""
    generator = torch.Generator().manual_seed(0)
    chain = Chain.parse("Linear(6), Tanh, Linear(2)", inputs=3)
    x = torch.randn(77, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(6, 38, generator=generator, dtype=torch.float64)
    teacher, start = TrialStack(chain, values[5:])[0], TrialStack(chain, values[:5])
    y = 0.3 * teacher(x).detach()

    def solver(engine, batches=None, **options):
        objective = MeanSquaredError(chain, x, y, engine=engine)
        options = {"lr": RATES, "batches": batches, "curve_points": 10**4, **options}
        return SGD(objective, start, 80, **options)

    return solver


def solved(solver):
    solve(solver)
    return solver


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
def test_trials_end_where_they_should(make, way, rule):
    engine, batches = way
    free = solved(make(*way))
    solver = solved(make(*way, **STOPPING[rule]))
    histories = [free.curve[1][:steps, t].tolist() for t, steps in enumerate(free.steps)]
    ends = [wanted_end(losses, **STOPPING[rule]) for losses in histories]
    assert list(zip(solver.steps.tolist(), solver.statuses, strict=True)) == ends
    assert len(set(ends)) > 1
    assert solver.epoch == max(steps for steps, _ in ends) == len(solver.curve[0])
    kept = solver.objective.loss(solver.stack)
    for trial, (steps, status) in enumerate(ends):
        column = solver.curve[1][:, trial]
        wanted = free.curve[1][: len(column), trial].clone()
        wanted[steps:] = torch.nan
        # In torch, rounding depends on how many trials are left.
        rounding = 1e-9 if engine == "torch" else 0
        torch.testing.assert_close(column, wanted, rtol=rounding, atol=0, equal_nan=True)
        last = solver.final_loss[trial]
        torch.testing.assert_close(last, column[steps - 1], rtol=0, atol=0, equal_nan=True)
        if batches is None and status in (Status.REACHED, Status.PLATEAU):
            torch.testing.assert_close(kept[trial], last, rtol=1e-12, atol=0)


def assert_engines_agree(one, other):
    assert one.statuses == other.statuses
    assert torch.equal(one.steps, other.steps)
    rest = [trial for trial, rate in enumerate(RATES) if rate < 1]
    values = other.stack.values[rest]
    torch.testing.assert_close(values, one.stack.values[rest], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("way", [way for way in WAYS if "compiled" in way], indirect=True)
@pytest.mark.parametrize("rule", STOPPING)
def test_the_engines_agree(make, way, rule):
    one = make("torch", way[1], **STOPPING[rule])
    assert_engines_agree(solved(one), solved(make(*way, **STOPPING[rule])))


@pytest.mark.parametrize("batches", [Batches(77), Batches(100, shuffle=False)], ids=str)
@pytest.mark.parametrize("rule", STOPPING)
def test_a_batch_of_all_samples_is_the_full_batch(make, engine, batches, rule):
    full = make(engine, **STOPPING[rule])
    assert_engines_agree(solved(full), solved(make(engine, batches, **STOPPING[rule])))


@pytest.mark.parametrize("batched", [False, True], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("chain", [True, False], ids=["chain", "module"])
def test_those_who_go_on_keep_their_own_samples(engine, batched, chain):
    """Also where they are not the first of the trials any more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 30, 2, generator=generator, dtype=torch.float64)
    y = x.sum(-1, keepdim=True).sin()
    rates = torch.tensor([0.5, 0.1, 0.05])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)) for _ in range(3)]
    # What is wrapped once more is no chain, and has but one engine.
    nets = [net.double() if chain else nn.Sequential(net).double() for net in nets]

    def run(*which):
        options = {"engine": engine} if chain else {}
        options |= {"batches": Batches(20, which)} if batched else {}
        return fit(
            [nets[t] for t in which], x[[*which]], y[[*which]], epochs=30, lr=rates[[*which]],
            solver="sgd", own=True, target=0.1, **options,
        )  # fmt: skip

    together = run(0, 1, 2)
    assert together.steps[2] > together.steps[:2].max()
    for trial in range(3):
        alone = run(trial)
        assert alone.statuses == [together.statuses[trial]]
        assert alone.steps[0] == together.steps[trial]
        row = together.stack.values[trial]
        torch.testing.assert_close(row, alone.stack.values[0], rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("one_epoch_at_a_time")
def test_a_restored_run_ends_at_the_same_epochs(make, way, assert_resumes):
    """The best loss so far and the epochs since go through the file too."""
    assert_resumes(lambda: make(*way, **STOPPING["both"]))


@pytest.mark.parametrize("rule", STOPPING)
def test_where_the_work_is_cut_changes_nothing(make, way, rule, assert_same_end):
    whole, short = make(*way, **STOPPING[rule]), make(*way, **STOPPING[rule])
    short.most_epochs = 1
    assert_same_end(solved(short), solved(whole))
