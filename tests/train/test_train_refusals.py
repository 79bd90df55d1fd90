"""Refusals of the room: one line that names the fault and what to do."""

import numpy as np
import pytest
import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Chain, Norm, md_abs
from mahalens.train import Adam, Batches, CrossEntropy, MeanSquaredError, TrialStack, fit, stack


def modules(*layers):
    def build():
        return nn.Sequential(*layers) if layers else nn.Sequential(nn.Linear(4, 3))

    return [build().double() for _ in range(3)]


X = torch.linspace(-1, 1, 80, dtype=torch.float64).reshape(20, 4)
Y = X[:, :3] ** 2
THRICE, TWICE = X.expand(3, -1, -1), Y.expand(2, -1, -1)
LABELS = torch.arange(20) % 3


def changed(tensor, number, *place):
    tensor = tensor.clone()
    tensor[place] = number
    return tensor


def refused(message, *args, **options):
    options = {"epochs": 3, **options}
    with pytest.raises(InputError, match=f"^{message}") as caught:
        fit(*args, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"loss 'l1'; known: mse, cross-entropy$", {"loss": "l1"}),
        (r"solver 'lbfgs'; known: sgd, adam, newton$", {"solver": "lbfgs"}),
        (r"an engine of 'gpu'; known: auto, compiled, torch$", {"engine": "gpu"}),
        (r"option 'learning_rate' of solver 'adam'; known: betas, eps, lr, ", {"learning_rate": 1}),
        (r"option 'betas' of solver 'sgd'; known: momentum, lr, ", {"solver": "sgd", "betas": 1}),
        (r"option 'lr' of solver 'newton'; known: few$", {"solver": "newton", "lr": 0.1}),
        (
            r"solver 'newton' is for the full batch; leave batch_size out$",
            {"solver": "newton", "batch_size": 5},
        ),
        (r"0 epochs; give at least 1", {"epochs": 0}),
        (r"-5 epochs; give at least 1", {"epochs": -5}),
        (r"trial 1: a learning rate of nan; give a positive", {"lr": [0.1, float("nan"), 0.1]}),
        (r"trial 2: a learning rate of -0.5; give a positive", {"lr": [0.1, 0.1, -0.5]}),
        (r"trial 0: a learning rate of 0.0; give a positive", {"lr": torch.tensor([0.0, 1, 1])}),
        (r"trial 0: a learning rate of inf; give a positive", {"lr": np.array([np.inf, 1, 1])}),
        (r"a learning rate of -1.0; give a positive number", {"lr": -1}),
        (r"learning rates of shape \[2\] for 3 trials; give one", {"lr": [0.1, 0.1]}),
        (r"learning rates of shape \[3, 1\] for 3 trials; give", {"lr": torch.ones(3, 1)}),
        (r"a momentum of 1.0; give a number in \[0, 1\)", {"solver": "sgd", "momentum": 1.0}),
        (r"a momentum of nan; give a number", {"solver": "sgd", "momentum": float("nan")}),
        (r"betas of \(0.9, 1\); give two numbers", {"betas": (0.9, 1)}),
        (r"betas of \(-0.1, 0.9\); give two numbers", {"betas": (-0.1, 0.9)}),
        (r"betas of \(nan, 0.9\); give two numbers", {"betas": (float("nan"), 0.9)}),
        (r"an eps of -1; give a small number", {"eps": -1}),
        (r"a batch size of 0; give at least 1", {"batch_size": 0}),
        (r"2 seeds for 3 trials; give one per trial", {"batch_size": 5, "seeds": [1, 2]}),
        (r"trial 1: a seed of -2; give at least 0", {"batch_size": 5, "seeds": [1, -2, 3]}),
        (r"a target of nan; give a loss to stop at", {"target": float("nan")}),
        (r"a patience of 0 epochs; give at least 1", {"patience": 0}),
        (r"a gain of 1.0; give a share from 0 to below 1", {"patience": 1, "gain": 1.0}),
        (r"0 points of the curve; give at least 1", {"curve_points": 0}),
        (r"metrics at epoch -1; give epochs of at least 0", {"metrics": lambda _: {}, "at": [-1]}),
    ],
)
def test_options(message, options):
    refused(message, modules(), X, Y, **options)


@pytest.mark.parametrize(
    ("message", "x", "y"),
    [
        (r"x of shape \[20, 3\] for the chain Linear\(3\); give \[N, 4\], or \[T, N, 4\]", Y, Y),
        (r"x of shape \[80\] for the chain", X.flatten(), Y),
        (r"x of shape \[\] for the chain", X.sum(), Y),
        (r"x of shape \[2, 3, 20, 4\] for the chain", X.expand(2, 3, -1, -1), Y),
        (r"no samples; give at least 1$", X[:0], Y[:0]),
        (r"x holds nan at \[7, 2\]; remove it$", changed(X, torch.nan, 7, 2), Y),
        (r"y holds nan at \[3, 1\]; remove it$", X, changed(Y, torch.nan, 3, 1)),
        (r"x holds inf at \[0, 0\]; remove it$", X + torch.inf, Y),
        (r"x in torch.int64; give float32 or float64$", X.long(), Y),
        (r"x in torch.float64, y in torch.float32; make them equal$", X, Y.float()),
        (r"trials of the chain .* in torch.float64 for .* torch.float32", X.float(), Y.float()),
        (r"targets of shape \[19, 3\] for x of shape \[20, 4\] and 3 outputs", X, Y[:19]),
        (r"targets of shape \[20, 2\] .*; give \[20, 3\] or \[T, 20, 3\]$", X, Y[:, :2]),
        (r"targets of shape \[20\] ", X, Y[:, 0]),
        (r"targets of shape \[2, 20, 3\] .*; give \[20, 3\] or \[3, 20, 3\]", THRICE, TWICE),
        (r"3 trials, but data for 2; give data for each, or share it", X.expand(2, -1, -1), Y),
        (r"3 trials, but data for 2; give data for each, or share it", X, TWICE),
    ],
)
def test_samples(message, x, y):
    refused(message, modules(), x, y)


@pytest.mark.parametrize(
    ("message", "y"),
    [
        (r"label 3 of sample 5, but there are 3 classes; give 0 to 2$", changed(LABELS, 3, 5)),
        (r"label -1 of sample 0, but there are 3 classes; give 0 to 2$", LABELS - 1),
        (r"labels in torch.float64; give whole numbers, torch.int64$", LABELS.double()),
        (r"labels in torch.bool; give whole numbers", LABELS > 0),
        (r"labels of shape \[19\] for x of shape \[20, 4\]; give one label per ", LABELS[:19]),
        (r"labels of shape \[20, 3\] for x", nn.functional.one_hot(LABELS)),
        (r"3 trials, but data for 2", LABELS.expand(2, -1)),
    ],
)
def test_labels(message, y):
    refused(message, modules(), X, y, loss="cross-entropy")


def test_cross_entropy_of_one_number():
    words = r"cross-entropy for one number per sample; end the chain in one unit per class"
    refused(words, modules(nn.Linear(4, 3), Norm()), X, LABELS, loss="cross-entropy")
    words = r"cross-entropy for 1 outputs per sample; end the chain"
    refused(words, modules(nn.Linear(4, 1)), X, LABELS * 0, loss="cross-entropy")


def test_no_trials():
    refused("no modules to stack; give at least one", [], X, Y)
    chain = Chain.from_module(modules()[0])
    refused("no trials; give at least 1", TrialStack(chain, X.new_empty(0, 15)), X, Y)


def test_whole_numbers_of_any_kind_are_labels():
    start = stack(modules())
    wanted = CrossEntropy(start.model, X, LABELS).loss(start)
    for dtype in (torch.uint8, torch.int8, torch.int32):
        assert torch.equal(CrossEntropy(start.model, X, LABELS.to(dtype)).loss(start), wanted)


CHAIN = Chain.parse("Linear(4), ReLU, Linear(3), Norm", inputs=2)
NO_BIAS = Chain.parse("Linear(4), ReLU, Linear(3, bias=False), Norm", inputs=2)
ABS = Chain.parse("Linear(4), Abs, Norm", inputs=4)


def objective(y=Y, chain="Linear(3)", kind=MeanSquaredError, **options):
    return kind(Chain.parse(chain, inputs=4), X, y, **options)


def stacked(chain, *others):
    """Stack a module of the chain with others, which may be other chains."""
    others = [other.build() if isinstance(other, Chain) else other for other in others]
    return TrialStack.from_modules(chain, [chain.build(), *others])


def from_tensors(weight):
    """Stack tensors with another first weight; a transposed one has the right number of values."""
    tensors = TrialStack(CHAIN, torch.zeros(5, 27)).tensors()
    del tensors["0.weight"]
    return TrialStack.from_tensors(CHAIN, tensors | weight)


def restored(trials=2, **changes):
    """A solver of two trials, restored from the state of some, with changes."""
    chain = md_abs(4)
    start = TrialStack(chain, torch.ones(2, 20, dtype=X.dtype))
    target = MeanSquaredError(chain, X, Y[:, 0])
    state = Adam(target, TrialStack(chain, start.values[:trials]), 300).state() | changes
    state = {name: tensor for name, tensor in state.items() if tensor is not None}
    Adam(target, start, 300).restore(state)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (r"a block of 0 samples; give at least 1", lambda: objective(block=0)),
        (
            r"a block of -3 samples; give at least 1",
            lambda: objective(LABELS, kind=CrossEntropy, block=-3),
        ),
        (r"the chain Abs has no parameters to train", lambda: objective(X, "Abs")),
        (
            r"targets of shape \[19\] .* and one number",
            lambda: objective(Y[:19, 0], "Linear(3), Norm"),
        ),
        (
            r"targets of shape \[20, 1\] .*; give \[20\] or \[T, ",
            lambda: objective(Y[:, :1], "Linear(3), Norm"),
        ),
        (r"targets of shape \[\] .*; give \[20\]", lambda: objective(Y.sum(), "Linear(3), Norm")),
        (r"targets of shape \[2, 20, 1\]", lambda: objective(TWICE[..., :1], "Linear(3), Norm")),
        (
            r"trials of the chain .*ReLU.* for an objective of the chain .*; make them equal",
            lambda: Adam(objective(), TrialStack(CHAIN, X.new_zeros(1, 27)), 1),
        ),
        (
            r"parameters of shape \(27,\) for the chain Linear\(4\), .*; give \[T, 27\]$",
            lambda: TrialStack(CHAIN, torch.zeros(27)),
        ),
        (r"parameters of shape \(3, 26\)", lambda: TrialStack(CHAIN, torch.zeros(3, 26))),
        (r"parameters of shape \(1, 3, 27\)", lambda: TrialStack(CHAIN, torch.zeros(1, 3, 27))),
        (r"no modules to stack; give at least", lambda: TrialStack.from_modules(CHAIN, [])),
        (
            r"trial 2: parameter '2\.weight' has shape \(5, 4\), but the chain .* wants \(3, 4\)$",
            lambda: stacked(
                CHAIN, CHAIN, Chain.parse("Linear(4), ReLU, Linear(5), Norm", inputs=2)
            ),
        ),
        (r"trial 1: parameter '2\.bias' has shape None", lambda: stacked(CHAIN, NO_BIAS)),
        (
            r"trial 1: parameter '2\.bias' has shape \(3,\), but .* wants None",
            lambda: stacked(NO_BIAS, CHAIN),
        ),
        (
            r"stacked parameter '0\.weight' has shape None, but .* Norm wants \(T, 4, 2\)",
            lambda: from_tensors({}),
        ),
        (
            r"stacked parameter '0\.weight' has shape \(5, 2, 4\)",
            lambda: from_tensors({"0.weight": torch.zeros(5, 2, 4)}),
        ),
        (
            r"stacked parameter '0\.weight' has shape \(4, 2\)",
            lambda: from_tensors({"0.weight": torch.zeros(4, 2)}),
        ),
        (
            r"trial 1: a module of Linear, ReLU for the chain",
            lambda: stacked(ABS, nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        ),
        (
            r"trial 1: a module of Linear\(4\), AbsReLU\(absolute=2",
            lambda: stacked(
                *(Chain.parse(f"Linear(4), AbsReLU(absolute={n})", inputs=4) for n in (1, 2))
            ),
        ),
        (
            r"trial 1: a module of Linear\(4\), LeakyReLU\(0.2\)",
            lambda: stacked(
                *(Chain.parse(f"Linear(4), LeakyReLU({slope})", inputs=4) for slope in (0.1, 0.2))
            ),
        ),
        (
            r"modules of torch\.float32 and torch\.float64; make them equal",
            lambda: stacked(ABS, ABS.build(dtype=torch.float64)),
        ),
        (r"a saved state of shape \(1, 20\) and torch\.float64", lambda: restored(trials=1)),
        (
            r"a saved state of epoch 301 of only 300",
            lambda: restored(epoch=torch.tensor(301)),
        ),
        (
            r"a saved state with .*, which is another solver's",
            lambda: restored(**{"rows.m": None}),
        ),
    ],
)
def test_refusals(message, call):
    with pytest.raises(InputError, match=f"^{message}"):
        call()


def test_batches_and_a_batch_size():
    """The option of the solver and its short form say the same."""
    start = modules()
    one = fit(start, X, Y, epochs=3, batch_size=6, seeds=2)
    other = fit(start, X, Y, epochs=3, batches=Batches(6, 2))
    assert torch.equal(one.stack.values, other.stack.values)


def test_metrics_of_another_number_of_trials():
    def metrics(solver):
        return {"a": torch.zeros(2 if solver.epoch else 3)}

    refused("metric 'a'", modules(), X, Y, metrics=metrics, at=[0])


def test_one_module_instead_of_a_list():
    words = "(?!trial 1: is not built of the same layers)"
    refused(words, nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double(), X, Y)


@pytest.mark.parametrize("seeds", [np.int64(2), torch.tensor([1, 2, 3])], ids=str)
def test_seeds_of_numpy_and_torch(seeds):
    done = fit(modules(), X, Y, epochs=2, batch_size=6, seeds=seeds)
    assert bool(done.final_loss.isfinite().all())
