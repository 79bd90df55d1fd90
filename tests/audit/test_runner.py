"""An audit leaves everything as it found it, and says in one line what it cannot read."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from twin import LABELS, assert_read, left_alone, one_by_one, rows_of_samples, small, vectors

from mahalens.auditing.api import audit
from mahalens.errors import InputError


class Restless(nn.Module):
    """Changes all it can in its forward pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(4)
        self.embedding = nn.Embedding(5, 4, max_norm=0.1)  # scales its weight when it is used
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4))
        self.steps = 0
        self.state = None
        self.fail_at = None

    def forward(self, x):
        self.steps += 1
        self.seen += len(x)
        self.mean = x.mean(0)  # another tensor
        self.state = x
        self.extra = "new"
        torch.rand(3), np.random.rand(), random.random()  # noqa: NPY002
        x = self.norm(x) + self.embedding(torch.zeros(len(x), dtype=torch.long))
        if self.fail_at is not None and self.steps >= self.fail_at:
            raise ValueError("it is enough")
        return self.head(self.drop(torch.relu(self.layer(x))))


def prepared():
    model = Restless().train()
    model.norm.eval()
    model.layer.weight.requires_grad_(False)
    model.layer.register_forward_hook(lambda *_: None)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    return model


@pytest.mark.parametrize("fail_at", [None, 1, 6])
def test_nothing_of_the_users_changes(fail_at):
    model = prepared()
    model.fail_at = fail_at
    own = torch.Generator().manual_seed(7)
    loader = DataLoader(TensorDataset(vectors(), LABELS), 3, shuffle=True, generator=own)
    drawn = own.get_state()
    with left_alone(model):
        if fail_at is None:
            record = audit(model, loader)
            assert [layer.name for layer in record.layers] == ["layer", "head"]
            assert record.accuracy is not None
        else:
            with pytest.raises(InputError, match="it is enough") as caught:
                audit(model, loader)
            assert "\n" not in str(caught.value)
    assert torch.equal(own.get_state(), drawn)


def test_dropout_is_off_and_shuffling_changes_nothing():
    model, x = prepared(), vectors()
    own = torch.Generator().manual_seed(7)
    loader = DataLoader(TensorDataset(x, LABELS), 3, shuffle=True, generator=own)
    one, other = audit(model, (x, LABELS)), audit(model, loader)
    torch.testing.assert_close(one.layer("head").units.mean, other.layer("head").units.mean)
    assert one.accuracy == other.accuracy
    rows = rows_of_samples(model, one_by_one(x), "head")
    assert_read(one.layer("head"), rows, LABELS)
    assert "in the order in which the loader gave them" in other.notes[0]
    # The samples shown are those that the numbers of a shuffled loader mean.
    near = other.layer("layer").prototypes.near_sample
    assert set(near.unique().tolist()) <= set(other.example_samples.tolist())
    for sample, label in zip(other.examples, other.example_labels, strict=True):
        assert LABELS[(x == sample).all(1)].tolist() == [int(label)]


class Noisy(Dataset):
    """Draws noise from numpy and Python whenever it is read, as augmentations do."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        noise = np.random.rand(4) + random.random()  # noqa: NPY002
        return torch.as_tensor(noise, dtype=torch.float32), number % 3


def test_every_pass_sees_the_same_noise():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    record = audit(small(), Noisy(), batch_size=5)
    layer = record.layer("0")
    weight = small()[0].weight.detach().double()
    bias = small()[0].bias.detach().double()
    z = record.examples.double() @ weight.T + bias
    place = {int(number): row for row, number in enumerate(record.example_samples)}
    for unit in range(6):
        sample = int(layer.prototypes.near_sample[unit, 0])
        got = abs(z[place[sample], unit]) / weight[unit].norm()
        assert float(got) == pytest.approx(float(layer.prototypes.near_distance[unit, 0]), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions(dtype):
    model = nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 3)).to(dtype)
    x = vectors()
    record = audit(model, (x, LABELS))
    assert record.layers[0].activation == "prelu"
    assert any(str(dtype) in note for note in record.notes)
    rows = rows_of_samples(model, one_by_one(x.to(dtype)), "0")
    rough = dtype != torch.float64
    assert_read(record.layer("0"), rows, LABELS, rtol=0.03 if rough else 1e-6, atol=0.03 * rough)
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.slow
def test_compiled_models_are_read_as_they_were_written():
    def compiler(graph, inputs):
        raise AssertionError("an audit waits for no compiler")

    model, x = small(), vectors()
    wrapped, inside = torch.compile(model, backend=compiler), small()
    inside[0] = torch.compile(inside[0], backend=compiler)
    in_place = small()
    in_place.compile(backend=compiler)
    plain = audit(model, (x, LABELS))
    for other in (wrapped, inside, in_place):
        record = audit(other, (x, LABELS))
        assert [layer.name for layer in record.layers] == ["0", "2"]
        assert [layer.activation for layer in record.layers] == ["relu", "none"]
        for one, two in zip(plain.layers, record.layers, strict=True):
            assert torch.equal(one.units.mean, two.units.mean)


def test_wrapped_in_data_parallel():
    record = audit(nn.DataParallel(small()), (vectors(), LABELS))
    assert [layer.name for layer in record.layers] == ["module.0", "module.2"]


class Watchful(torch.Tensor):
    """A tensor of a user's own kind."""


def test_tensors_of_another_kind():
    x = vectors()
    record = audit(small(), [(x.as_subclass(Watchful), LABELS)])
    plain = audit(small(), (x, LABELS))
    assert torch.equal(record.layers[0].units.mean, plain.layers[0].units.mean)
    assert type(record.layers[0].units.mean) is torch.Tensor
    assert type(record.examples) is torch.Tensor


class Broken(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, number):
        if number == 7:
            raise OSError("a file is gone")
        return vectors()[number], 0


def quantised():
    return torch.ao.quantization.quantize_dynamic(small(), {nn.Linear})


def later_nan():
    x = vectors()
    x[9, 1] = torch.inf
    return x


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        (small, lambda: vectors(5), r"fails on the data, a batch of shape .*5\].*check"),
        (small, lambda: (vectors(), LABELS[:7]), "11 samples but y has 7 labels"),
        (small, lambda: [(vectors(), LABELS[:7])], "11 samples but 7 labels"),
        (small, lambda: (vectors(), LABELS - 1), "label -1"),
        (small, list, "no samples"),
        (small, lambda: DataLoader(TensorDataset(vectors()[:0])), "no samples"),
        (small, lambda: vectors()[:0], "no samples"),
        (small, later_nan, "NaN or infinite values, first in sample 9"),
        (small, lambda: (batch for batch in [vectors()]), "iterator is used up"),
        (small, lambda: "digits", "the data is a str"),
        (small, lambda: [("a", "b")], "a batch of the data is"),
        (lambda: nn.Linear(4, 3, device="meta"), vectors, "meta device"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), vectors, "lazy"),
        (small, lambda: vectors().to_sparse(), "the data is sparse"),
        (small, lambda: (vectors(), ["a"] * 11), "list of str; give whole numbers"),
        (small, lambda: [torch.tensor(3.0)], "has no samples, only one number"),
        (small, lambda: [(vectors(), LABELS), vectors()], "from sample 11 on has no labels"),
        (nn.ReLU, vectors, "no Linear and no convolution"),
        (lambda: nn.Embedding(4, 2), lambda: LABELS[:, None], "looks up rows"),
        (lambda: nn.LSTM(4, 3), vectors, "fused"),
        (lambda: torch.relu, vectors, "function_or_method; give an nn.Module"),
        (lambda: torch.jit.script(small()), vectors, "TorchScript"),
        (quantised, vectors, r"quantised.*give the model it was made from"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize")  # torch's own
def test_what_cannot_be_read_is_said_in_one_line(model, data, said):
    made = model()
    with left_alone(), pytest.raises(InputError, match=said) as caught:
        audit(made, data(), batch_size=4)
    assert "\n" not in str(caught.value)


def test_a_users_own_error_while_reading_data_is_theirs():
    model = prepared()
    with left_alone(model), pytest.raises(OSError, match="a file is gone"):
        audit(model, Broken(), batch_size=4)


class Hoarder(nn.Module):
    """Fills what it holds whenever it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.losses, self.cache, self.seen, self.last = [1.0], {"a": 1}, {2}, deque([3], maxlen=2)
        self.runs = 0

    def forward(self, x):
        z = self.layer(x)
        self.losses.append(z.mean())
        self.cache["a"] = self.cache["z"] = z
        self.seen.add(len(x))
        self.last.append(z)
        self.runs += 1
        return z


def test_lists_and_caches_of_a_model_are_left_as_they_were():
    model = Hoarder()
    held = model.losses, model.cache, model.seen, model.last
    audit(model, torch.randn(9, 5))
    assert held == ([1.0], {"a": 1}, {2}, deque([3]))
    assert model.runs == 0
    now = model.losses, model.cache, model.seen, model.last
    assert all(a is b for a, b in zip(held, now, strict=True))
