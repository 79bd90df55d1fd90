"""Layers that a forward pass uses several times, for some samples only, or under other names."""

import pytest
import torch
from foreign_twin import assert_read, one_by_one, rows_of_samples
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from mahalens.auditing.network import audit
from mahalens.errors import InputError

LABELS = torch.tensor([0, 1, 2, 1, 0, 2, 2, 0, 1, 1, 0])


def positive(rows):
    return rows > 1e-6


def vectors(width=4, count=11):
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(width))
    return x + LABELS[:count, None]


class Fused(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.rnn = kind(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens):
        states, _ = self.rnn(self.embedding(tokens).transpose(0, 1))  # steps come first
        return self.head(states).mean(0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_linear_part_of_a_recurrent_network(kind):
    torch.manual_seed(0)
    model, tokens = Fused(kind), torch.randint(0, 9, (11, 6))
    record = audit(model, (tokens, LABELS), batch_size=3)
    (layer,) = record.layers
    assert (layer.name, layer.positions, layer.rows) == ("head", 6, 66)
    assert_read(layer, rows_of_samples(model, one_by_one(tokens), "head"), LABELS)
    reasons = {part.name: part.reason for part in record.skipped}
    assert set(reasons) == {"embedding", "rnn"}
    assert "fused" in reasons["rnn"]


class HandWritten(nn.Module):
    """A recurrent cell in a loop; the steps are as many as the batch says."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 5, bias=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        state = x.new_zeros(len(x), 5)
        for step in range(x.shape[1]):
            state = torch.tanh(self.outer(state) + self.inner(x[:, step]))
        return self.head(state)


def test_a_cell_in_a_loop():
    torch.manual_seed(1)
    model = HandWritten()
    x = torch.randn(11, 6, 4) + LABELS[:, None, None]
    record = audit(model, (x, LABELS), batch_size=4)
    assert [(layer.name, layer.calls) for layer in record.layers] == [
        ("outer", 6),
        ("inner", 6),
        ("head", 1),
    ]
    rows = rows_of_samples(model, one_by_one(x), "inner")
    assert_read(record.layer("inner"), rows, LABELS)
    near = record.layer("inner").prototypes
    for unit in range(5):
        for sample, position, distance in zip(
            near.near_sample[unit].tolist(),
            near.near_position[unit].tolist(),
            near.near_distance[unit].tolist(),
            strict=True,
        ):
            length = record.layer("inner").hyperplanes.length[unit]
            assert abs(rows[sample][position, unit]) / length == pytest.approx(distance, rel=1e-4)


def test_loops_of_other_lengths_in_later_batches():
    torch.manual_seed(1)
    model = HandWritten()
    parts = [torch.randn(4, steps, 4) for steps in (3, 7, 2)]
    labels = [torch.tensor([0, 1, 1, 0])] * 3
    record = audit(model, list(zip(parts, labels, strict=True)))
    rows = [
        row
        for part in parts
        for row in rows_of_samples(model, one_by_one(part), "inner")
    ]  # fmt: skip
    assert_read(record.layer("inner"), rows, torch.cat(labels))


class Shared(nn.Module):
    """One layer in two places that lay their rows out differently."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        by_step = self.layer(x.transpose(0, 1))  # [T, B, K]
        return self.layer(by_step.mean(0)).relu()  # [B, K]


def test_one_layer_in_two_layouts():
    torch.manual_seed(2)
    model, x = Shared(), torch.randn(11, 6, 4) + LABELS[:, None, None]
    layer = audit(model, (x, LABELS), batch_size=4).layer("layer")
    assert (layer.calls, layer.positions, layer.activation) == (2, 7, "mixed")
    assert_read(layer, rows_of_samples(model, one_by_one(x), "layer"), LABELS)


class Experts(nn.Module):
    """Sends each sample to one of three layers."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        out = x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            own = self.of(x) == number
            if own.any():
                out[own] = functional.relu(expert(x[own]))
        return out

    @staticmethod
    def of(x):
        return (x[:, 0] > 0).long() + (x[:, 0] > 5).long()


def test_experts_that_only_later_samples_are_sent_to():
    torch.manual_seed(3)
    model, x = Experts(), vectors()
    x[:4, 0] = -1.0
    x[4:, 0] = torch.tensor([-1.0, -2.0, 1.0, 9.0, 2.0, 3.0, 9.0])
    record = audit(model, (x, LABELS), batch_size=4)
    assert record.skipped == ()
    for number in range(3):
        own = x[Experts.of(x) == number].double()
        expert = model.experts[number]
        rows = own @ expert.weight.detach().double().T + expert.bias.detach().double()
        layer = record.layer(f"experts.{number}")
        assert (layer.rows, layer.activation) == (len(own), "relu")
        torch.testing.assert_close(layer.units.mean, rows.mean(0), rtol=1e-4, atol=1e-5)
        if number:
            assert layer.units.class_mean is None
            assert int(layer.prototypes.near_sample.max()) == -1
            assert any("do not belong" in note for note in layer.notes)


class Constant(nn.Module):
    """A layer that is fed the same whatever the samples are."""

    def __init__(self):
        super().__init__()
        self.query, self.maker = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 4)

    def forward(self, x):
        return x @ torch.relu(self.maker(self.query)).T


def test_rows_that_belong_to_no_sample():
    torch.manual_seed(4)
    model = Constant()
    record = audit(model, (vectors(), LABELS), batch_size=4)
    layer = record.layer("maker")
    assert layer.rows == 3
    assert layer.units.class_mean is None
    wanted = model.maker(model.query).detach().double()
    torch.testing.assert_close(layer.units.mean, wanted.mean(0), rtol=1e-4, atol=1e-5)
    assert int(layer.prototypes.near_sample.max()) == -1


TIED = {
    "F.linear of t()": lambda h, w, b: functional.linear(h, w.t(), b),
    "F.linear of transpose": lambda h, w, b: functional.linear(h, w.transpose(0, 1), b),
    "F.linear of a copy": lambda h, w, b: functional.linear(h, w.T.contiguous(), b),
    "@": lambda h, w, b: h @ w + b,
    "addmm": lambda h, w, b: torch.addmm(b, h, w),
    "einsum": lambda h, w, b: torch.einsum("nk,kd->nd", h, w) + b,
}


class Tied(nn.Module):
    """An autoencoder whose decoder uses the encoder's weight the other way round."""

    def __init__(self, units, decode, first=False):
        super().__init__()
        torch.manual_seed(7)
        self.e, self.b = nn.Linear(4, units), nn.Parameter(torch.randn(4))
        self.decode, self.first = decode, first

    def forward(self, x):
        if self.first:  # the decoder is used before the encoder
            x = self.decode(x.new_ones(len(x), self.e.out_features), self.e.weight, self.b) + x
        return self.decode(torch.relu(self.e(x)), self.e.weight, self.b)


@pytest.mark.parametrize("decode", TIED)
@pytest.mark.parametrize("units", [6, 4])  # K = D must not make one layer of two
def test_a_decoder_that_shares_its_encoders_weight(decode, units):
    model, x = Tied(units, TIED[decode]), vectors()
    record = audit(model, (x, LABELS), batch_size=4)
    assert [(layer.name, layer.units_count, layer.inputs) for layer in record.layers] == [
        ("e", units, 4),
        ("e (transposed)", 4, units),
    ]
    assert record.layer("e").feeds == "e (transposed)"
    assert record.skipped == ()
    with torch.no_grad():
        weight = model.e.weight.double()
        z = x.double() @ weight.T + model.e.bias.double()
        assert_read(record.layer("e"), list(z[:, None]), LABELS, positive)
        out = z.relu() @ weight + model.b.double()
        assert_read(record.layer("e (transposed)"), list(out[:, None]), LABELS)
        lengths = record.layer("e (transposed)").hyperplanes.length
        torch.testing.assert_close(lengths, weight.norm(dim=0))


def test_a_tied_weight_keeps_the_name_of_its_module():
    record = audit(Tied(6, TIED["@"], first=True), (vectors(), LABELS), batch_size=4)
    found = {layer.name: (layer.units_count, layer.calls) for layer in record.layers}
    assert found == {"e (transposed)": (4, 2), "e": (6, 1)}


class TiedConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 2)

    def forward(self, x):
        return functional.conv_transpose1d(self.conv(x[:, None]).relu(), self.conv.weight)[:, 0]


def test_a_transposed_convolution_takes_nothing_from_the_one_it_shares_weights_with():
    record = audit(TiedConvolution(), (vectors(), LABELS))
    assert [(layer.name, layer.activation) for layer in record.layers] == [("conv", "relu")]
    assert [part.name for part in record.skipped] == ["conv (transposed)"]


class LowRank(nn.Linear):
    """A Linear with a trained addition of low rank beside its frozen weight."""

    def __init__(self, inputs, outputs, rank):
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs))
        self.up = nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias) + x @ self.down.T @ self.up.T


def test_low_rank_additions():
    model, x = nn.Sequential(LowRank(4, 6, 2), nn.ReLU(), nn.Linear(6, 3)), vectors()
    record = audit(model, (x, LABELS))
    names = {layer.name: (layer.units_count, layer.activation) for layer in record.layers}
    assert names == {
        "0": (6, "none"),
        "0.down": (2, "none"),
        "0.up": (6, "none"),
        "2": (3, "none"),
    }
    rows = x.double() @ model[0].down.detach().double().T
    assert_read(record.layer("0.down"), list(rows[:, None]), LABELS)


class Functional(nn.Module):
    """The same product written in five ways."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5, 5))
        self.c, self.d = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5, 5))
        self.bias = nn.Parameter(torch.randn(5))
        self.e = nn.Linear(5, 5)

    def forward(self, x):
        x = functional.linear(x, self.a, self.bias).relu()
        x = torch.sigmoid(x @ self.b + self.bias)
        x = torch.addmm(self.bias, x, self.c.t()).tanh()
        x = torch.einsum("nd,dk->nk", x, self.d).clamp(min=0)
        return self.e(x), x


def test_products_however_they_are_written():
    model, x = Functional(), vectors()
    record = audit(model, (x, LABELS), batch_size=4)
    found = [(layer.name, layer.activation, layer.folded) for layer in record.layers]
    assert found == [
        ("a", "relu", None),
        ("b", "sigmoid", "bias"),
        ("c", "tanh", None),
        ("d", "relu", None),
        ("e", "none", None),
    ]
    with torch.no_grad():
        z = x.double() @ model.a.double().T + model.bias.double()
        assert_read(record.layer("a"), list(z[:, None]), LABELS, positive)
        z = z.relu() @ model.b.double() + model.bias.double()
        assert_read(record.layer("b"), list(z[:, None]), LABELS)
        z = z.sigmoid() @ model.c.double().T + model.bias.double()
        assert_read(record.layer("c"), list(z[:, None]), LABELS)
        z = z.tanh() @ model.d.double()
        assert_read(record.layer("d"), list(z[:, None]), LABELS, positive)


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_weights_that_are_computed(norm):
    torch.manual_seed(6)
    model = nn.Sequential(norm(nn.Linear(4, 6)), nn.ReLU(), norm(nn.Linear(6, 3))).eval()
    x = vectors()
    record = audit(model, (x, LABELS))
    assert [layer.name for layer in record.layers] == ["0", "2"]
    assert record.skipped == ()
    wanted = model[0].weight.detach().double().norm(dim=1)
    torch.testing.assert_close(record.layers[0].hyperplanes.length, wanted)
    assert_read(record.layers[0], rows_of_samples(model, one_by_one(x), "0"), LABELS, positive)


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.outer(torch.func.vmap(lambda row: self.inner(row).relu())(x))


def test_layers_whose_values_cannot_be_read_are_named():
    record = audit(Mapped(), (vectors(), LABELS))
    assert [layer.name for layer in record.layers] == ["outer"]
    (left,) = record.skipped
    assert left.name == "inner"
    assert "torch.func" in left.reason
    model = nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64))
    with pytest.raises(InputError, match="complex"):
        audit(model, vectors().to(torch.complex64))
