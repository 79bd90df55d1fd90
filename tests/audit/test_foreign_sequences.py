"""Transformers and recurrent networks: rows of a sample must be found in whatever layout.

The twin runs one sample at a time, so that it cannot mix them up.
"""

import collections

import pytest
import torch
from foreign_twin import assert_read, one_by_one, rows_of_samples
from torch import nn
from torch.nn import functional

from mahalens.auditing.network import audit
from mahalens.errors import InputError

LABELS = torch.tensor([0, 1, 2, 1, 0, 2, 2, 0, 1, 1, 0])


def sequences(steps=5, width=8, count=11):
    """Sequences that differ by sample, so that rows given to the wrong one are noticed."""
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(count, steps, width, generator=generator)
    return x + 3 * torch.randn(count, 1, 1, generator=generator) + LABELS[:count, None, None]


def positive(rows):
    return rows > 1e-6


def transposed(model, x):
    return model(x.transpose(0, 1))


# 11 samples in batches of 4: also with as many steps as samples, and multiples of them.
@pytest.mark.parametrize("steps", [3, 4, 5, 8])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("norm_first", "activation"), [(True, "gelu"), (False, "relu")])
def test_transformer_encoder(steps, batch_first, norm_first, activation):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(
        8, 2, 12, batch_first=batch_first, norm_first=norm_first, activation=activation
    )
    model = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    x = sequences(steps)
    forward = None if batch_first else transposed
    record = audit(model, (x, LABELS), batch_size=4, forward=forward)
    parts = ["self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"]
    assert [layer.name for layer in record.layers] == [
        f"layers.{number}.{part}" for number in range(2) for part in parts
    ]
    assert record.skipped == ()
    assert record.accuracy is None
    for name in ("layers.0.linear1", "layers.1.linear1", "layers.1.linear2"):
        rows = rows_of_samples(model, one_by_one(x), name, forward)
        layer = record.layer(name)
        assert layer.positions == steps
        assert_read(layer, rows, LABELS, positive if layer.activation == "relu" else None)
    assert record.layer("layers.1.linear1").activation == activation
    assert record.layer("layers.1.linear1").feeds == "layers.1.linear2"


class Attention(nn.Module):
    """Attention from torch.nn beside the same one written out with modules of its own."""

    def __init__(self, cross):
        super().__init__()
        torch.manual_seed(1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        self.cross = cross

    def forward(self, x):
        other = x.flip(2)[:, :3] if self.cross else x
        return self.attention(x, other, other, need_weights=False)[0].mean(1)


class WrittenOut(nn.Module):
    """What :class:`Attention` computes, with a Linear for each of its matrices."""

    def __init__(self, model):
        super().__init__()
        attention = model.attention
        self.cross = model.cross
        for name, part in zip("qkv", range(3), strict=True):
            linear = nn.Linear(8, 8)
            linear.weight.data = attention.in_proj_weight.data[8 * part : 8 * part + 8]
            linear.bias.data = attention.in_proj_bias.data[8 * part : 8 * part + 8]
            setattr(self, name, linear)
        self.out = nn.Linear(8, 8)
        self.out.load_state_dict(attention.out_proj.state_dict())

    def forward(self, x):
        other = x.flip(2)[:, :3] if self.cross else x
        q, k, v = (
            part.unflatten(2, (2, 4)).transpose(1, 2)
            for part in (self.q(x), self.k(other), self.v(other))
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2)).mean(1)


@pytest.mark.parametrize("cross", [False, True])
def test_projections_inside_attention(cross):
    model, x = Attention(cross), sequences(5)
    twin = WrittenOut(model)
    torch.testing.assert_close(model.eval()(x), twin(x))
    record = audit(model, (x, LABELS), batch_size=4)
    rows = {name: rows_of_samples(twin, one_by_one(x), name) for name in ("q", "k", "v", "out")}
    if cross:
        names = ["attention.in_proj[0:8]", "attention.in_proj[8:24]", "attention.out_proj"]
        wanted = [rows["q"], _beside(rows["k"], rows["v"]), rows["out"]]
    else:
        names = ["attention.in_proj", "attention.out_proj"]
        wanted = [_beside(rows["q"], rows["k"], rows["v"]), rows["out"]]
    assert [layer.name for layer in record.layers] == names
    assert record.skipped == ()
    for layer, expected in zip(record.layers, wanted, strict=True):
        assert_read(layer, expected, LABELS)


def _beside(*parts):
    return [torch.cat(rows, dim=1) for rows in zip(*parts, strict=True)]


class Classifier(nn.Module):
    """Takes tokens and masks by name, and returns an object, as models of a well-known hub do."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        block = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 1, enable_nested_tensor=False)
        self.pooler, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, causal=None):
        hidden = self.embedding(input_ids)
        hidden = self.encoder(hidden, causal, src_key_padding_mask=attention_mask == 0)
        pooled = torch.tanh(self.pooler(hidden[:, 0]))
        return Answer(self.head(pooled), hidden)


class Answer:
    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden


@pytest.mark.parametrize("causal", [False, True])
def test_tokens_with_masks_in_dicts(causal):
    torch.manual_seed(2)
    model = Classifier()
    tokens = torch.randint(0, 20, (11, 7))
    mask = (torch.arange(7) < torch.randint(3, 8, (11, 1))).long()
    more = {"causal": nn.Transformer.generate_square_subsequent_mask(7)} if causal else {}
    batches = [
        {"input_ids": tokens[i : i + 4], "attention_mask": mask[i : i + 4], **more}
        | {"labels": LABELS[i : i + 4]}
        for i in range(0, 11, 4)
    ]
    with pytest.warns(UserWarning, match="mask") if causal else _nothing():
        record = audit(model, batches)
    singles = [
        {"input_ids": tokens[i : i + 1], "attention_mask": mask[i : i + 1], **more}
        for i in range(11)
    ]
    activations = {layer.name: layer.activation for layer in record.layers}
    assert activations["pooler"] == "tanh"
    assert activations["encoder.layers.0.linear1"] == "relu"
    with pytest.warns(UserWarning, match="mask") if causal else _nothing():
        for name in ("encoder.layers.0.linear1", "pooler", "head"):
            rows = rows_of_samples(model, singles, name)
            if len(rows[0]) == 7:  # padding does not count
                rows = [row[own.bool()] for row, own in zip(rows, mask, strict=True)]
            assert_read(record.layer(name), rows, LABELS)
    assert record.data.shape == (7,)
    assert record.accuracy is not None
    assert [part.name for part in record.skipped] == ["embedding"]


def _nothing():
    import contextlib

    return contextlib.nullcontext()


class Bag(nn.Module):
    """Reads every token by itself, and sums up those that count."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embedding = nn.Embedding(20, 8)
        self.layer, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask=None, tokens=None):
        real = attention_mask if attention_mask is not None else tokens
        hidden = torch.relu(self.layer(self.embedding(input_ids)))
        return self.head((hidden * real[..., None]).sum(1) / real.sum(1)[:, None])


def padded(key="attention_mask", count=100, real=8):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 20, (count, 32), generator=generator)
    mask = torch.zeros(count, 32, dtype=torch.long)
    mask[:, :real] = 1
    return {"input_ids": tokens, key: mask, "labels": torch.arange(count) % 3}


def test_padding_is_no_data():
    model, data = Bag(), padded()
    record = audit(model, data, batch_size=30)
    assert [(layer.name, layer.rows, layer.positions) for layer in record.layers] == [
        ("layer", 800, 8),
        ("head", 100, 1),
    ]
    hidden = model.layer(model.embedding(data["input_ids"][:, :8])).detach().double()
    layer = record.layer("layer")
    assert_read(layer, list(hidden), data["labels"], positive)
    assert int(layer.prototypes.near_position.max()) < 8
    fed = model.embedding(data["input_ids"][:, :8]).detach().double().flatten(0, 1)
    spectrum = torch.linalg.eigvalsh(torch.cov(fed.T, correction=0)).flip(0)
    torch.testing.assert_close(layer.whitening.spectrum, spectrum, rtol=1e-4, atol=1e-6)
    assert int(layer.histograms.counts[0].sum()) == 800


def test_masks_of_any_shape_and_none():
    data = padded()
    lengths = torch.randint(0, 33, (100, 1), generator=torch.Generator().manual_seed(1))
    lengths[0] = 0  # nothing but padding
    data["attention_mask"] = torch.arange(32) >= 32 - lengths  # padding comes first
    model = Bag()

    def forward(model, **arguments):
        real = arguments["attention_mask"].float()
        return model(arguments["input_ids"], real + 1e-9)

    layer = audit(model, data, batch_size=30, forward=forward).layer("layer")
    hidden = model.layer(model.embedding(data["input_ids"])).detach().double()
    rows = [row[own] for row, own in zip(hidden, data["attention_mask"], strict=True)]
    assert layer.rows == int(lengths.sum())
    torch.testing.assert_close(layer.units.mean, torch.cat(rows).mean(0), rtol=1e-4, atol=1e-5)
    assert 0 not in layer.prototypes.near_sample
    assert audit(model, padded(), mask=None).layer("layer").rows == 3200


def test_another_key_of_the_mask():
    model, data = Bag(), padded("tokens")
    assert audit(model, data).layer("layer").rows == 3200
    assert audit(model, data, mask="tokens").layer("layer").rows == 800
    with pytest.raises(InputError, match="mask names 'real', not among input_ids, tokens"):
        audit(model, data, mask="real")
    with pytest.raises(InputError, match="mask is a Tensor; give the key"):
        audit(model, data, mask=torch.ones(3))


def test_padding_may_be_no_numbers():
    model, data = Bag(), padded()
    model.embedding.weight.data[0] = torch.nan
    data["input_ids"][:, :8] = data["input_ids"][:, :8].clamp(min=1)
    data["input_ids"][:, 8:] = 0
    layer = audit(model, data, predict=lambda output: output[:, 0].long() * 0).layer("layer")
    assert not any("NaN" in note for note in layer.notes)
    assert bool(layer.units.mean.isfinite().all())


class Encoding(collections.UserDict):
    """A mapping that is no dict, as tokenizers return it."""


@pytest.mark.parametrize("lists", [False, True])
def test_mappings_are_batches(lists):
    data, model = padded(), Bag()
    wanted = audit(model, data, batch_size=30).layer("layer")
    whole = {key: value.tolist() if lists else value for key, value in data.items()}
    parts = [
        Encoding({key: value[start : start + 30] for key, value in data.items()})
        for start in range(0, 100, 30)
    ]
    for given in (Encoding(whole), parts):
        record = audit(model, given, batch_size=30)
        layer = record.layer("layer")
        assert layer.rows == 800
        assert record.accuracy is not None
        assert torch.equal(layer.units.class_mean, wanted.units.class_mean)


@pytest.mark.parametrize(
    "data", [{}, {"input_ids": "words"}, Encoding({"input_ids": [[1, 2], [3]]})]
)
def test_mappings_without_tensors_are_refused_in_one_line(data):
    with pytest.raises(InputError, match="without tensors; give arguments of the model by name"):
        audit(Bag(), data)


class Vision(nn.Module):
    """Patches of an image as tokens, with a learnt token before them."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 8, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.norm, self.mlp = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(16, 3)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.positions
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.head(self.mlp(x)[:, 0]), x


def test_vision_transformer():
    torch.manual_seed(3)
    model, x = Vision(), torch.randn(11, 3, 8, 8)
    record = audit(model, (x, LABELS), batch_size=4)
    found = {layer.name: (layer.kind, layer.activation, layer.positions) for layer in record.layers}
    assert found == {
        "patch_embed": ("Conv2d", "none", 4),
        "qkv": ("Linear", "none", 5),
        "mlp.0": ("Linear", "gelu", 5),
        "head": ("Linear", "none", 1),
    }
    for name in found:
        assert_read(record.layer(name), rows_of_samples(model, one_by_one(x), name), LABELS)
    (left,) = record.skipped
    assert left.kind == "Vision"
    assert "another way" in left.reason
