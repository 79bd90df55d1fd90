"""Refusals of the room: one line that names the fault and what to do."""

import numpy as np
import pytest
import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Chain, Norm, md_abs
from mahalens.train import (
    LBFGS,
    Adam,
    CrossEntropy,
    LevenbergMarquardt,
    MeanSquaredError,
    TrialStack,
    fit,
    stack,
)

X = torch.linspace(-1, 1, 80, dtype=torch.float64).reshape(20, 4)
Y = X[:, :3] ** 2
THRICE, TWICE = X.expand(3, -1, -1), Y.expand(2, -1, -1)
LABELS = torch.arange(20) % 3
NAN = float("nan")


def modules(*layers):
    return [nn.Sequential(*(layers or [nn.Linear(4, 3)])).double() for _ in range(3)]


def changed(tensor, number, *place):
    tensor = tensor.clone()
    tensor[place] = number
    return tensor


def refused(message, call):
    with pytest.raises(InputError, match=f"^{message}") as caught:
        call()
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
        (r"solver 'newton' is for the full batch; ", {"solver": "newton", "batch_size": 5}),
        (r"0 epochs; give at least 1", {"epochs": 0}),
        (r"-5 epochs; give at least 1", {"epochs": -5}),
        (r"trial 1: a learning rate of nan; give a positive", {"lr": [0.1, NAN, 0.1]}),
        (r"trial 2: a learning rate of -0.5; give a positive", {"lr": [0.1, 0.1, -0.5]}),
        (r"trial 0: a learning rate of 0.0; give a positive", {"lr": torch.tensor([0.0, 1, 1])}),
        (r"trial 0: a learning rate of inf; give a positive", {"lr": np.array([np.inf, 1, 1])}),
        (r"a learning rate of -1.0; give a positive number", {"lr": -1}),
        (r"learning rates of shape \[2\] for 3 trials; give one", {"lr": [0.1, 0.1]}),
        (r"learning rates of shape \[3, 1\] for 3 trials; give", {"lr": torch.ones(3, 1)}),
        (r"a momentum of 1.0; give a number in \[0, 1\)", {"solver": "sgd", "momentum": 1.0}),
        (r"a momentum of nan; give a number", {"solver": "sgd", "momentum": NAN}),
        (r"betas of \(0.9, 1\); give two numbers", {"betas": (0.9, 1)}),
        (r"betas of \(-0.1, 0.9\); give two numbers", {"betas": (-0.1, 0.9)}),
        (r"betas of \(nan, 0.9\); give two numbers", {"betas": (NAN, 0.9)}),
        (r"an eps of -1; give a small number", {"eps": -1}),
        (r"a batch size of 0; give at least 1", {"batch_size": 0}),
        (r"2 seeds for 3 trials; give one per trial", {"batch_size": 5, "seeds": [1, 2]}),
        (r"trial 1: a seed of -2; give at least 0", {"batch_size": 5, "seeds": [1, -2, 3]}),
        (r"seeds of 0.5; give a whole number", {"batch_size": 5, "seeds": 0.5}),
        (r"a target of nan; give a loss to stop at", {"target": NAN}),
        (r"a patience of 0 epochs; give at least 1", {"patience": 0}),
        (r"a gain of 1.0; give a share from 0 to below 1", {"patience": 1, "gain": 1.0}),
        (r"0 points of the curve; give at least 1", {"curve_points": 0}),
        (r"epochs: 1000.0 is not a whole number; give one", {"epochs": 1e3}),
        (r"epochs: '3' is not a whole number; give one", {"solver": "newton", "epochs": "3"}),
        (r"batch size: 2.5 is not a whole number; give one", {"batch_size": 2.5}),
        (r"patience: 1.5 is not a whole number; give one", {"patience": 1.5}),
        (r"gain: 'a' is not a number; give one", {"gain": "a"}),
        (r"target: '0.1' is not a number; give one", {"target": "0.1"}),
        (r"momentum: None is not a number; give one", {"solver": "sgd", "momentum": None}),
        (r"eps: 'a' is not a number; give one", {"eps": "a"}),
        (r"betas: 'a' is not a number; give one", {"betas": (0.9, "a")}),
        (r"betas of 0.9; give two numbers in \[0, 1\)", {"betas": 0.9}),
        (r"betas of \(0.9,\); give two numbers in \[0, 1\)", {"betas": (0.9,)}),
        (r"a learning rate of None; give one number", {"lr": None}),
        (r"a learning rate of \['a', 1, 1\]; give one number", {"lr": ["a", 1, 1]}),
        (r"metrics at epoch -1; give epochs of at least 0", {"metrics": lambda _: {}, "at": [-1]}),
        (
            r"metrics \['b'\] at epoch 2, but \['a'\] before",
            {"metrics": lambda s: {"b" if s.epoch else "a": torch.zeros(3)}, "at": [0, 2]},
        ),
        *[
            (
                "metric 'a': give a tensor with one number per trial",
                {"metrics": lambda _, metric=metric: {"a": metric}},
            )
            for metric in (0.5, torch.tensor(0.5), torch.zeros(3, 1), torch.zeros(2))
        ],
    ],
)
def test_options(message, options):
    refused(message, lambda: fit(modules(), X, Y, **{"epochs": 3, **options}))


@pytest.mark.parametrize(
    ("message", "x", "y"),
    [
        (r"x of shape \[20, 3\] for the chain Linear\(3\); give \[N, 4\], or \[T, N, 4\]", Y, Y),
        (r"x of shape \[80\] for the chain", X.flatten(), Y),
        (r"x is a list; give a tensor or a NumPy array$", X.tolist(), Y),
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
        (r"label 3 of sample 5, but there are 3 classes; give 0 to 2$", X, changed(LABELS, 3, 5)),
        (r"label -1 of sample 0, but there are 3 classes; give 0 to 2$", X, LABELS - 1),
        (r"labels in torch.float64; give whole numbers, torch.int64$", X, LABELS.double()),
        (r"labels in torch.bool; give whole numbers", X, LABELS > 0),
        (r"labels of shape \[19\] for x of shape \[20, 4\]; give one label per ", X, LABELS[:19]),
        (r"labels of shape \[20, 3\] for x", X, nn.functional.one_hot(LABELS)),
        (r"3 trials, but data for 2", X, LABELS.expand(2, -1)),
    ],
)
def test_samples_and_targets(message, x, y):
    loss = "mse" if y.dtype.is_floating_point and "label" not in message else "cross-entropy"
    refused(message, lambda: fit(modules(), x, y, epochs=3, loss=loss))


def chain(text, inputs=4):
    return Chain.parse(text, inputs=inputs)


def objective(y=Y, text="Linear(3)", **options):
    return MeanSquaredError(chain(text), X, y, **options)


CHAIN = chain("Linear(4), ReLU, Linear(3), Norm", 2)
WIDER = chain("Linear(4), ReLU, Linear(5), Norm", 2)
NO_BIAS = chain("Linear(4), ReLU, Linear(3, bias=False), Norm", 2)
ABS = chain("Linear(4), Abs, Norm")
MIXED = [chain(f"Linear(4), AbsReLU(absolute={number})") for number in (1, 2)]
LEAKY = [chain(f"Linear(4), LeakyReLU({slope})") for slope in (0.1, 0.2)]


@pytest.mark.parametrize(
    ("message", "y"),
    [
        (r"targets of shape \[19\] .* and one number", Y[:19, 0]),
        (r"targets of shape \[20, 1\] .*; give \[20\] or \[T, ", Y[:, :1]),
        (r"targets of shape \[\] .*; give \[20\]", Y.sum()),
        (r"targets of shape \[2, 20, 1\]", TWICE[..., :1]),
    ],
)
def test_targets_of_one_number_a_sample(message, y):
    refused(message, lambda: objective(y, "Linear(3), Norm"))


@pytest.mark.parametrize(
    ("message", "trials"),
    [
        (r"no modules to stack; give at least one", []),
        (r"no trials; give at least 1", TrialStack(chain("Linear(3)"), X.new_empty(0, 15))),
        (
            r"cross-entropy for one number per sample; end the chain in one unit per class",
            modules(nn.Linear(4, 3), Norm()),
        ),
        (r"cross-entropy for 1 outputs per sample; end the chain", modules(nn.Linear(4, 1))),
    ],
)
def test_trials(message, trials):
    refused(message, lambda: fit(trials, X, LABELS * 0, epochs=3, loss="cross-entropy"))


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (r"parameters of shape \(27,\) for the chain Linear\(4\), .*; give \[T, 27\]$", (27,)),
        (r"parameters of shape \(3, 26\)", (3, 26)),
        (r"parameters of shape \(1, 3, 27\)", (1, 3, 27)),
    ],
)
def test_values_of_a_stack(message, values):
    refused(message, lambda: TrialStack(CHAIN, torch.zeros(values)))


@pytest.mark.parametrize(
    ("message", "weight"),
    [
        (r"stacked parameter '0\.weight' has shape None, but .* wants \(T, 4, 2\)", None),
        # A transposed one has the right number of values.
        (r"stacked parameter '0\.weight' has shape \(5, 2, 4\)", (5, 2, 4)),
        (r"stacked parameter '0\.weight' has shape \(4, 2\)", (4, 2)),
    ],
)
def test_tensors_of_a_stack(message, weight):
    tensors = TrialStack(CHAIN, torch.zeros(5, 27)).tensors()
    del tensors["0.weight"]
    tensors |= {} if weight is None else {"0.weight": torch.zeros(weight)}
    refused(message, lambda: TrialStack.from_tensors(CHAIN, tensors))


SHAPE = r"has shape \(5, 4\), but the chain .* wants \(3, 4\)$"


@pytest.mark.parametrize(
    ("message", "trials"),
    [
        (rf"trial 2: parameter '2\.weight' {SHAPE}", [CHAIN, CHAIN, WIDER]),
        (r"trial 1: parameter '2\.bias' has shape None", [CHAIN, NO_BIAS]),
        (r"trial 1: parameter '2\.bias' has shape \(3,\), but .* wants None", [NO_BIAS, CHAIN]),
        (r"trial 1: a module of Linear, ReLU for the chain", [ABS, chain("Linear(4), ReLU")]),
        (r"trial 1: a module of Linear\(4\), AbsReLU\(", MIXED),
        (r"trial 1: a module of Linear\(4\), LeakyReLU\(0.2\)", LEAKY),
        (r"modules of torch\.float32 and torch\.float64; make them equal", [ABS, ABS]),
    ],
)
def test_modules_of_a_chain(message, trials):
    built = [trial.build() for trial in trials]
    if "float64" in message:
        built[1].double()
    refused(message, lambda: TrialStack.from_modules(trials[0], built))


def setting():
    return MeanSquaredError(md_abs(4), X, Y[:, 0]), TrialStack(md_abs(4), X.new_ones(2, 20))


def restored(trials=2, kind=Adam, **changes):
    """A solver of two trials, restored from the state of some, with changes."""
    target, start = setting()
    state = Adam(target, TrialStack(start.chain, start.values[:trials]), 300).state() | changes
    state = {name: tensor for name, tensor in state.items() if tensor is not None}
    kind(target, start, 300).restore(state)


ANOTHER = r"a saved state with .*, which is another solver's"


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (r"a block of 0 samples; give at least 1", lambda: objective(block=0)),
        (r"the chain Abs has no parameters to train", lambda: objective(X, "Abs")),
        (r"the chain Abs has no param.* stack", lambda: TrialStack.from_tensors(chain("Abs"), {})),
        (
            r"trials of the chain .*ReLU.* for an objective of the chain .*; make them equal",
            lambda: Adam(objective(), TrialStack(CHAIN, X.new_zeros(1, 27)), 1),
        ),
        (
            r"trials of the chain .* in torch\.float32 for .* in torch\.float64; make them equal",
            lambda: objective().loss(stack([nn.Sequential(nn.Linear(4, 3))])),
        ),
        (r"x of shape \[4\] for the chain", lambda: TrialStack(CHAIN, torch.zeros(3, 27))(X[0])),
        (r"data is given, but no init", lambda: TrialStack.from_seeds(CHAIN, [0], data=X)),
        (r"Conv2d is not a chain of layers", lambda: stack([nn.Conv2d(1, 1, 1)]).chain),
        (r"no modules to stack; give at least", lambda: TrialStack.from_modules(CHAIN, [])),
        (r"a memory of 0 steps; give at least 1", lambda: LBFGS(*setting(), 9, memory=0)),
        (r"a saved state of shape \(1, 20\) and torch\.float64", lambda: restored(trials=1)),
        (r"a saved state of epoch 301 of only 300", lambda: restored(epoch=torch.tensor(301))),
        (ANOTHER, lambda: restored(**{"rows.m": None})),
        (ANOTHER, lambda: restored(kind=LevenbergMarquardt)),
    ],
)
def test_others(message, call):
    refused(message, call)


def test_whole_numbers_of_any_kind_are_labels():
    start = stack(modules())
    wanted = CrossEntropy(start.model, X, LABELS).loss(start)
    for dtype in (torch.uint8, torch.int8, torch.int32):
        assert torch.equal(CrossEntropy(start.model, X, LABELS.to(dtype)).loss(start), wanted)
