"""Networks as others write them, read against hooks on one sample at a time."""

import collections
import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from twin import (
    LABELS,
    Net,
    assert_read,
    folded,
    linear,
    one_by_one,
    positive,
    rows_of_samples,
    vectors,
)

from mahalens.auditing.api import audit
from mahalens.auditing.batches import Batch
from mahalens.auditing.gather import rows_fed
from mahalens.auditing.runner import Runner
from mahalens.errors import InputError


def images(channels=3, size=9, dims=2):
    generator = torch.Generator().manual_seed(channels + size)
    return torch.randn(11, channels, *[size] * dims, generator=generator)


def sequences(steps=5, width=8):
    """Sequences that differ by sample, so that rows given to the wrong one are noticed."""
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(11, steps, width, generator=generator)
    return x + 3 * torch.randn(11, 1, 1, generator=generator) + LABELS[:, None, None]


def stirred(model):
    """A model whose batch norms have seen data."""
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(0.5, 2)
            part.bias.data.normal_()
    return model


def read(model, x, **options):
    return audit(model, (x, LABELS), batch_size=4, **options)


def summary(record, *names):
    return {layer.name: tuple(getattr(layer, name) for name in names) for layer in record.layers}


def assert_layers(record, model, x, names, forward=None):
    """What the audit says of some layers is what hooks see, one sample at a time."""
    for name in names:
        layer = record.layer(name)
        rows = rows_of_samples(model, one_by_one(x), name, forward)
        assert_read(layer, rows, LABELS, positive if layer.activation == "relu" else None)


def assert_network(model, x, layers, norms=None, skipped=()):
    """A network has these layers (kind, activation, positions), and all are as hooks see them."""
    record = read(model, x)
    assert summary(record, "kind", "activation", "positions") == layers
    assert tuple(part.name for part in record.skipped) == skipped
    parts = dict(model.named_modules())
    for name, layer in zip(layers, record.layers, strict=True):
        rows, scale = rows_of_samples(model, one_by_one(x), name), torch.ones(())
        assert layer.folded == ("BatchNorm" if name in (norms or ()) else None)
        if layer.folded:
            norm = parts[norms[name]]
            rows, scale = folded(rows, norm), norm.weight / (norm.running_var + norm.eps).sqrt()
        assert_read(layer, rows, LABELS, positive if layer.activation == "relu" else None)
        length = parts[name].weight.detach().flatten(1).double().norm(dim=1) * scale.abs().detach()
        # The scale is worked out in float32 here.
        torch.testing.assert_close(layer.hyperplanes.length, length, rtol=1e-6, atol=0)
    return record


class BasicBlock(nn.Module):
    """A residual block as in a ResNet: the sum is made in place, as is the ReLU."""

    def __init__(self, channels, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.relu, self.downsample = nn.ReLU(inplace=True), nn.Identity()
        if stride != 1:
            short = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(short, nn.BatchNorm2d(out))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


def resnet():
    parts = {
        "conv1": nn.Conv2d(3, 6, 3, 1, 1, bias=False), "bn1": nn.BatchNorm2d(6),
        "relu": nn.ReLU(inplace=True), "maxpool": nn.MaxPool2d(3, 2, 1),
        "layer1": BasicBlock(6, 6), "layer2": BasicBlock(6, 8, 2),
        "avgpool": nn.AdaptiveAvgPool2d((1, 1)), "flat": nn.Flatten(), "fc": nn.Linear(8, 3),
    }  # fmt: skip
    return nn.Sequential(collections.OrderedDict(parts))


class TestConvolutions:
    def test_residual_network(self):
        model, x = stirred(resnet()), images()
        layers = {
            "conv1": ("Conv2d", "relu", 81),
            "layer1.conv1": ("Conv2d", "relu", 25),
            "layer1.conv2": ("Conv2d", "none", 25),  # its ReLU comes after a sum
            "layer2.conv1": ("Conv2d", "relu", 9),
            "layer2.conv2": ("Conv2d", "none", 9),
            "layer2.downsample.0": ("Conv2d", "none", 9),
            "fc": ("Linear", "none", 1),
        }
        norms = {name: name.replace("conv", "bn") for name in layers if "conv" in name}
        norms["layer2.downsample.0"] = "layer2.downsample.1"
        record = assert_network(model, x, layers, norms)
        accuracy = float((model.eval()(x).argmax(1) == LABELS).double().mean())
        assert record.accuracy == pytest.approx(accuracy)

    def test_depthwise_separable_network(self):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
            nn.Conv2d(8, 12, 1, groups=4), nn.Hardtanh(-2, 2), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(12, 3),
        )  # fmt: skip
        layers = {
            "0": ("Conv2d", "relu6", 25),
            "3": ("Conv2d", "hardswish", 25),
            "6": ("Conv2d", "hardtanh(-2, 2)", 25),
            "10": ("Linear", "none", 1),
        }
        record = assert_network(stirred(model), images(), layers, {"0": "1", "3": "4"})
        assert [layer.inputs for layer in record.layers] == [27, 9, 2, 12]
        assert [layer.geometry.get("groups") for layer in record.layers] == [(1,), (8,), (4,), None]
        rows = torch.cat(folded(rows_of_samples(model, one_by_one(images()), "0"), model[1]))
        torch.testing.assert_close(record.layer("0").units.flat, (rows > 6).double().mean(0))

    def test_units_of_different_groups_are_no_pairs(self):
        model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2))
        rows = torch.tensor([[1.0, 2], [-1, -2], [1, 2], [5, -1]])
        model[0].weight.data, model[0].bias.data = torch.ones(4, 1, 3, 3), torch.zeros(4)
        model[2].weight.data, model[2].bias.data = rows[..., None, None], torch.zeros(4)
        record = audit(model, images(4, 5))
        assert record.layer("0").pairs.duplicate == ()
        assert record.layer("0").pairs.kept == (0, 1, 2, 3)
        assert record.layer("2").pairs.mirrored == ((0, 1),)
        assert record.layer("2").pairs.kept == (0, 2, 3)

    @pytest.mark.parametrize(
        ("layer", "dims"),
        [
            (nn.Conv1d(2, 4, 3, padding="same", dilation=2), 1),
            (nn.Conv1d(2, 4, 4, padding="same"), 1),
            (nn.Conv1d(2, 4, 4, stride=2, padding=3), 1),
            (nn.Conv1d(2, 4, 3, padding="valid"), 1),
            (nn.Conv2d(2, 4, (2, 3), padding=(1, 0), dilation=(1, 2), stride=(2, 1)), 2),
            (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), 2),
            (nn.Conv2d(2, 4, 4, padding="same", padding_mode="reflect"), 2),
            (nn.Conv3d(2, 4, 2, stride=2), 3),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
    def test_every_kind_of_convolution(self, layer, dims):
        model = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
        x = images(2, 8, dims=dims)
        model(x)
        record = read(model, x, patches=10_000)
        found = record.layer("0")
        assert (found.kind, found.activation) == (f"Conv{dims}d", "relu")
        assert_layers(record, model, x, ["0"])
        # The patches are those that the weights are for: z = Wx + b holds row by row.
        uses = []
        with torch.no_grad():
            Runner(model).run(Batch((x,), {}, None, 0), uses.append)
        fed = rows_fed(uses[0], 10**6, torch.Generator()).double()
        z = fed @ layer.weight.detach().double().flatten(1).T + layer.bias.detach().double()
        wanted = uses[0].output.flatten(2).permute(2, 0, 1).flatten(0, 1).double()
        torch.testing.assert_close(z, wanted, rtol=1e-4, atol=1e-5)
        if not found.whitening.shrinkage:
            # Outputs have the covariance W Σ Wᵀ with Σ that of the patches.
            spectrum = torch.linalg.eigvalsh(torch.cov(wanted.T, correction=0)).flip(0)
            torch.testing.assert_close(found.whitening.output_spectrum, spectrum, rtol=0.05, atol=0)

    def test_squeeze_and_excitation(self):
        """Channels are scaled by what a small network says of them."""

        def follow(net, x):
            x = functional.silu(net.conv(x), inplace=True)
            gate = functional.adaptive_avg_pool2d(x, 1)
            gate = net.excite(functional.relu(net.squeeze(gate), inplace=True))
            return {"out": net.head((x * functional.hardsigmoid(gate)).mean((2, 3)))}

        sizes = {"conv": (3, 8, 3, 1, 1), "squeeze": (8, 2, 1), "excite": (2, 8, 1)}
        parts = {name: functools.partial(nn.Conv2d, *size) for name, size in sizes.items()}
        layers = {
            "conv": ("Conv2d", "silu", 81),
            "squeeze": ("Conv2d", "relu", 1),
            "excite": ("Conv2d", "hardsigmoid", 1),
            "head": ("Linear", "none", 1),
        }
        assert_network(Net(follow, **parts, head=linear(8, 3)), images(), layers)

    @pytest.mark.parametrize(("activation", "name"), [(torch.relu, "relu"), (torch.abs, "none")])
    def test_pooling_before_the_activation(self, activation, name):
        """Takes the maximum first, as the well-known example for MNIST does."""

        def follow(net, x):
            x = activation(functional.max_pool2d(net.conv(x), 2))
            return functional.log_softmax(net.head(x.flatten(1)), dim=1)

        model = Net(follow, conv=lambda: nn.Conv2d(3, 4, 2), head=linear(64, 3))
        # Nothing can be folded through the pooling, so that no layer reads the activations.
        found = summary(read(model, images()), "activation", "feeds")
        assert found == {"conv": (name, None), "head": ("log_softmax", None)}

    @pytest.mark.parametrize("same", [True, False])
    def test_norms_that_differ_by_use_are_not_folded(self, same):
        def follow(net, x):
            first = torch.relu(net.one(net.conv(x)))
            return first + torch.relu((net.one if same else net.two)(net.conv(x.flip(2))))

        norm = functools.partial(nn.BatchNorm1d, 3)
        model = stirred(Net(follow, conv=lambda: nn.Conv1d(2, 3, 2), one=norm, two=norm))
        x = images(2, 6, dims=1)
        layer = audit(model, x).layer("conv")
        rows = rows_of_samples(model, one_by_one(x), "conv")
        assert (layer.calls, layer.activation) == (2, "relu" if same else "none")
        assert (layer.folded is not None) == same
        assert_read(layer, folded(rows, model.one) if same else rows)
        assert any("batch norm" in note for note in layer.notes) != same

    def test_transposed_convolutions_are_skipped_with_a_reason(self):
        def follow(net, x):
            hidden = net.conv(x[:, None]).relu()
            return functional.conv_transpose1d(hidden, net.conv.weight)[:, 0]

        model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 3, 2, 2))
        record = audit(model, images(size=8))
        (left,) = record.skipped
        assert (left.name, left.kind) == ("2", "ConvTranspose2d")
        assert "no patches" in left.reason
        assert [layer.name for layer in record.layers] == ["0"]
        tied = audit(Net(follow, conv=lambda: nn.Conv1d(1, 3, 2)), vectors())
        assert summary(tied, "activation") == {"conv": ("relu",)}
        assert [part.name for part in tied.skipped] == ["conv (transposed)"]


class Attention(nn.Module):
    """Attention from torch.nn beside the same one written out with a Linear for each matrix."""

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
    def __init__(self, model):
        super().__init__()
        attention, self.cross = model.attention, model.cross
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        for part, layer in enumerate((self.q, self.k, self.v)):
            layer.weight.data = attention.in_proj_weight.data[8 * part : 8 * part + 8]
            layer.bias.data = attention.in_proj_bias.data[8 * part : 8 * part + 8]
        self.out.load_state_dict(attention.out_proj.state_dict())

    def forward(self, x):
        other = x.flip(2)[:, :3] if self.cross else x
        parts = (self.q(x), self.k(other), self.v(other))
        q, k, v = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2)).mean(1)


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
        answer = type("Answer", (), {})()
        answer.logits, answer.hidden = self.head(torch.tanh(self.pooler(hidden[:, 0]))), hidden
        return answer


class Vision(nn.Module):
    """Patches of an image as tokens, with a learnt token before them."""

    def __init__(self):
        super().__init__()
        self.patch_embed, self.qkv = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 24)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.norm, self.mlp = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.positions
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.head(self.mlp(x)[:, 0]), x


class TestTransformers:
    # 11 samples in batches of 4: also with as many steps as samples, and multiples of them.
    @pytest.mark.parametrize("steps", [3, 4, 8])
    @pytest.mark.parametrize("batch_first", [True, False])
    @pytest.mark.parametrize(("norm_first", "activation"), [(True, "gelu"), (False, "relu")])
    def test_encoder(self, steps, batch_first, norm_first, activation):
        torch.manual_seed(0)
        block = nn.TransformerEncoderLayer(
            8, 2, 12, batch_first=batch_first, norm_first=norm_first, activation=activation
        )
        model, x = nn.TransformerEncoder(block, 2, enable_nested_tensor=False), sequences(steps)
        forward = None if batch_first else lambda model, x: model(x.transpose(0, 1))
        record = read(model, x, forward=forward)
        parts = ["self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"]
        assert [layer.name for layer in record.layers] == [
            f"layers.{number}.{part}" for number in range(2) for part in parts
        ]
        assert (record.skipped, record.accuracy) == ((), None)
        names = ("layers.0.linear1", "layers.1.linear1", "layers.1.linear2")
        assert_layers(record, model, x, names, forward)
        layer = record.layer("layers.1.linear1")
        assert (layer.positions, layer.activation) == (steps, activation)
        assert layer.feeds == "layers.1.linear2"

    @pytest.mark.parametrize("cross", [False, True])
    def test_projections_inside_attention(self, cross):
        model, x = Attention(cross), sequences(5)
        twin = WrittenOut(model)
        torch.testing.assert_close(model.eval()(x), twin(x))
        record = read(model, x)
        q, k, v, out = (rows_of_samples(twin, one_by_one(x), name) for name in [*"qkv", "out"])

        def beside(*parts):
            return [torch.cat(rows, dim=1) for rows in zip(*parts, strict=True)]

        if cross:
            wanted = {"attention.in_proj[0:8]": q, "attention.in_proj[8:24]": beside(k, v)}
        else:
            wanted = {"attention.in_proj": beside(q, k, v)}
        wanted["attention.out_proj"] = out
        assert [layer.name for layer in record.layers] == list(wanted)
        assert record.skipped == ()
        for name, rows in wanted.items():
            assert_read(record.layer(name), rows, LABELS)

    @pytest.mark.parametrize("causal", [False, True])
    def test_tokens_with_masks_in_dicts(self, causal):
        torch.manual_seed(2)
        model, tokens = Classifier(), torch.randint(0, 20, (11, 7))
        mask = (torch.arange(7) < torch.randint(3, 8, (11, 1))).long()
        more = {"causal": nn.Transformer.generate_square_subsequent_mask(7)} if causal else {}

        def batches(size):
            return [
                {"input_ids": tokens[i : i + size], "attention_mask": mask[i : i + size], **more}
                for i in range(0, 11, size)
            ]

        labelled = [
            batch | {"labels": LABELS[4 * i : 4 * i + 4]} for i, batch in enumerate(batches(4))
        ]
        noted = pytest.warns(UserWarning, match="mask") if causal else contextlib.nullcontext()
        with noted:
            record = audit(model, labelled)
            for name in ("encoder.layers.0.linear1", "pooler", "head"):
                rows = rows_of_samples(model, batches(1), name)
                if len(rows[0]) == 7:  # padding does not count
                    rows = [row[real.bool()] for row, real in zip(rows, mask, strict=True)]
                assert_read(record.layer(name), rows, LABELS)
        assert record.layer("pooler").activation == "tanh"
        assert record.layer("encoder.layers.0.linear1").activation == "relu"
        assert record.data.shape == (7,)
        assert record.accuracy is not None
        assert [part.name for part in record.skipped] == ["embedding"]

    def test_vision_transformer(self):
        torch.manual_seed(3)
        model, x = Vision(), torch.randn(11, 3, 8, 8)
        layers = {
            "patch_embed": ("Conv2d", "none", 4),
            "qkv": ("Linear", "none", 5),
            "mlp.0": ("Linear", "gelu", 5),
            "head": ("Linear", "none", 1),
        }
        (left,) = assert_network(model, x, layers, skipped=("the model itself",)).skipped
        assert left.kind == "Vision"
        assert "another way" in left.reason


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


class Encoding(collections.UserDict):
    """A mapping that is no dict, as tokenizers return it."""


def padded(key="attention_mask"):
    """100 samples of 32 tokens, of which the first 8 count."""
    tokens = torch.randint(0, 20, (100, 32), generator=torch.Generator().manual_seed(5))
    mask = (torch.arange(32) < 8).long().repeat(100, 1)
    return {"input_ids": tokens, key: mask, "labels": torch.arange(100) % 3}


class TestPadding:
    def test_padding_is_no_data(self):
        model, data = Bag(), padded()
        record = audit(model, data, batch_size=30)
        assert summary(record, "rows", "positions") == {"layer": (800, 8), "head": (100, 1)}
        fed = model.embedding(data["input_ids"][:, :8]).detach()
        layer = record.layer("layer")
        assert_read(layer, list(model.layer(fed).detach().double()), data["labels"], positive)
        assert int(layer.prototypes.near_position.max()) < 8
        covariance = torch.cov(fed.double().flatten(0, 1).T, correction=0)
        spectrum = torch.linalg.eigvalsh(covariance).flip(0)
        torch.testing.assert_close(layer.whitening.spectrum, spectrum, rtol=1e-4, atol=1e-6)
        assert int(layer.histograms.counts[0].sum()) == 800

    def test_masks_of_any_shape_and_none(self):
        data, model = padded(), Bag()
        lengths = torch.randint(0, 33, (100, 1), generator=torch.Generator().manual_seed(1))
        lengths[0] = 0  # nothing but padding
        data["attention_mask"] = torch.arange(32) >= 32 - lengths  # padding comes first

        def forward(model, **arguments):
            return model(arguments["input_ids"], arguments["attention_mask"].float() + 1e-9)

        layer = audit(model, data, batch_size=30, forward=forward).layer("layer")
        hidden = model.layer(model.embedding(data["input_ids"])).detach().double()
        rows = hidden[data["attention_mask"]]
        assert layer.rows == int(lengths.sum())
        torch.testing.assert_close(layer.units.mean, rows.mean(0), rtol=1e-4, atol=1e-5)
        assert 0 not in layer.prototypes.near_sample
        assert audit(model, padded(), mask=None).layer("layer").rows == 3200

    def test_another_key_of_the_mask(self):
        model, data = Bag(), padded("tokens")
        assert audit(model, data).layer("layer").rows == 3200
        assert audit(model, data, mask="tokens").layer("layer").rows == 800

    @pytest.mark.parametrize(
        ("data", "options", "message"),
        [
            (padded("tokens"), {"mask": "real"}, "mask names 'real', not among input_ids, tokens"),
            (padded("tokens"), {"mask": torch.ones(3)}, "mask is a Tensor; give the key"),
            ({}, {}, "without tensors; give arguments of the model"),
            ({"input_ids": "words"}, {}, "without tensors; give arguments of the model"),
            (Encoding({"input_ids": [[1, 2], [3]]}), {}, "without tensors; give arguments"),
        ],
    )
    def test_mappings_that_are_refused(self, data, options, message):
        with pytest.raises(InputError, match=message):
            audit(Bag(), data, **options)

    def test_padding_may_be_no_numbers(self):
        model, data = Bag(), padded()
        model.embedding.weight.data[0] = torch.nan
        data["input_ids"][:, :8] = data["input_ids"][:, :8].clamp(min=1)
        data["input_ids"][:, 8:] = 0
        layer = audit(model, data, predict=lambda output: output[:, 0].long() * 0).layer("layer")
        assert not any("NaN" in note for note in layer.notes)
        assert bool(layer.units.mean.isfinite().all())

    def test_mappings_are_batches(self):
        data, model = padded(), Bag()
        wanted = audit(model, data, batch_size=30).layer("layer")
        lists = Encoding({key: value.tolist() for key, value in data.items()})
        parts = [
            Encoding({key: value[start : start + 30] for key, value in data.items()})
            for start in range(0, 100, 30)
        ]
        for samples in (Encoding(data), lists, parts):
            record = audit(model, samples, batch_size=30)
            assert record.layer("layer").rows == 800
            assert record.accuracy is not None
            assert torch.equal(record.layer("layer").units.class_mean, wanted.units.class_mean)


def fused(net, tokens):
    states, _ = net.rnn(net.embedding(tokens).transpose(0, 1))  # steps come first
    return net.head(states).mean(0)


def loop(net, x):
    """A recurrent cell in a loop; the steps are as many as the batch says."""
    state = x.new_zeros(len(x), 5)
    for step in range(x.shape[1]):
        state = torch.tanh(net.outer(state) + net.inner(x[:, step]))
    return net.head(state)


def hand_written():
    parts = {"inner": linear(4, 5), "outer": linear(5, 5, bias=False), "head": linear(5, 3)}
    return Net(loop, 1, **parts)


class Experts(nn.Module):
    """Sends each sample to one of three layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        out = x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            here = self.of(x) == number
            if here.any():
                out[here] = functional.relu(expert(x[here]))
        return out

    @staticmethod
    def of(x):
        return (x[:, 0] > 0).long() + (x[:, 0] > 5).long()


class TestSeveralUses:
    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_the_linear_part_of_a_recurrent_network(self, kind):
        parts = {"embedding": lambda: nn.Embedding(9, 6), "rnn": lambda: kind(6, 5)}
        model, tokens = Net(fused, **parts, head=linear(5, 3)), torch.randint(0, 9, (11, 6))
        skipped = ("embedding", "rnn")
        record = assert_network(model, tokens, {"head": ("Linear", "none", 6)}, skipped=skipped)
        assert "fused" in record.skipped[1].reason

    def test_a_cell_in_a_loop(self):
        model, x = hand_written(), sequences(6, 4)
        record = read(model, x)
        assert summary(record, "calls") == {"outer": (6,), "inner": (6,), "head": (1,)}
        layer, rows = record.layer("inner"), rows_of_samples(model, one_by_one(x), "inner")
        assert_read(layer, rows, LABELS)
        near = layer.prototypes
        for unit in range(5):
            for rank in range(near.near_sample.shape[1]):
                sample, position = near.near_sample[unit, rank], near.near_position[unit, rank]
                z = abs(rows[int(sample)][int(position), unit]) / layer.hyperplanes.length[unit]
                assert float(near.near_distance[unit, rank]) == pytest.approx(float(z), rel=1e-4)

    def test_loops_of_other_lengths_in_later_batches(self):
        model, labels = hand_written(), torch.tensor([0, 1, 1, 0])
        parts = [torch.randn(4, steps, 4) for steps in (3, 7, 2)]
        record = audit(model, [(part, labels) for part in parts])
        rows = [row for part in parts for row in rows_of_samples(model, one_by_one(part), "inner")]
        assert_read(record.layer("inner"), rows, labels.repeat(3))

    def test_one_layer_in_two_layouts(self):
        def follow(net, x):
            by_step = net.layer(x.transpose(0, 1))  # [T, B, K]
            return net.layer(by_step.mean(0)).relu()  # [B, K]

        model, x = Net(follow, 2, layer=linear(4, 4)), sequences(6, 4)
        layer = read(model, x).layer("layer")
        assert (layer.calls, layer.positions, layer.activation) == (2, 7, "mixed")
        assert_read(layer, rows_of_samples(model, one_by_one(x), "layer"), LABELS)

    def test_experts_that_only_later_samples_are_sent_to(self):
        model, x = Experts(), vectors()
        x[:4, 0] = -1.0
        x[4:, 0] = torch.tensor([-1.0, -2.0, 1.0, 9.0, 2.0, 3.0, 9.0])
        record = read(model, x)
        assert record.skipped == ()
        for number, expert in enumerate(model.experts):
            rows = expert(x[Experts.of(x) == number]).detach().double()
            layer = record.layer(f"experts.{number}")
            assert (layer.rows, layer.activation) == (len(rows), "relu")
            torch.testing.assert_close(layer.units.mean, rows.mean(0), rtol=1e-4, atol=1e-5)
            if number:
                assert layer.units.class_mean is None
                assert int(layer.prototypes.near_sample.max()) == -1
                assert any("do not belong" in note for note in layer.notes)
        assert [layer.name for layer in read(model, x, layers=["experts.0"]).layers] == [
            "experts.0"
        ]

    def test_rows_that_belong_to_no_sample(self):
        """A layer that is fed the same whatever the samples are."""

        def follow(net, x):
            return x @ torch.relu(net.maker(net.query)).T

        query = functools.partial(torch.nn.Parameter, torch.randn(3, 4))
        model = Net(follow, 4, query=query, maker=linear(4, 4))
        layer = read(model, vectors()).layer("maker")
        assert (layer.rows, layer.units.class_mean) == (3, None)
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


class LowRank(nn.Linear):
    """A Linear with a trained addition of low rank beside its frozen weight."""

    def __init__(self, inputs, outputs, rank):
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs))
        self.up = nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias) + x @ self.down.T @ self.up.T


class Functional(nn.Module):
    """The same product written in five ways."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5, 5))
        self.c, self.d = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5, 5))
        self.bias, self.e = nn.Parameter(torch.randn(5)), nn.Linear(5, 5)

    def forward(self, x):
        x = functional.linear(x, self.a, self.bias).relu()
        x = torch.sigmoid(x @ self.b + self.bias)
        x = torch.addmm(self.bias, x, self.c.t()).tanh()
        x = torch.einsum("nd,dk->nk", x, self.d).clamp(min=0)
        return self.e(x), x


class TestWeights:
    @pytest.mark.parametrize("decode", TIED)
    @pytest.mark.parametrize("units", [6, 4])  # K = D must not make one layer of two
    def test_a_decoder_that_shares_its_encoders_weight(self, decode, units):
        model, x = Tied(units, TIED[decode]), vectors()
        record = read(model, x)
        assert summary(record, "units_count", "inputs", "feeds") == {
            "e": (units, 4, "e (transposed)"),
            "e (transposed)": (4, units, None),
        }
        assert record.skipped == ()
        weight = model.e.weight.detach().double()
        z = x.double() @ weight.T + model.e.bias.detach().double()
        assert_read(record.layer("e"), list(z[:, None]), LABELS, positive)
        out = z.relu() @ weight + model.b.detach().double()
        assert_read(record.layer("e (transposed)"), list(out[:, None]), LABELS)
        lengths = record.layer("e (transposed)").hyperplanes.length
        torch.testing.assert_close(lengths, weight.norm(dim=0))

    def test_a_tied_weight_keeps_the_name_of_its_module(self):
        record = read(Tied(6, TIED["@"], first=True), vectors())
        found = summary(record, "units_count", "calls")
        assert found == {"e (transposed)": (4, 2), "e": (6, 1)}
        torch.manual_seed(0)
        embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        head.weight = embedding.weight
        record = read(nn.Sequential(embedding, nn.Tanh(), head), torch.randint(0, 9, (11, 3)))
        assert summary(record, "kind", "rows") == {"2": ("Linear", 33)}
        again = nn.Linear(4, 4)
        record = audit(nn.Sequential(again, nn.ReLU(), again), vectors())
        assert summary(record, "calls") == {"0": (2,)}
        assert record.skipped == ()

    def test_low_rank_additions(self):
        model, x = nn.Sequential(LowRank(4, 6, 2), nn.ReLU(), nn.Linear(6, 3)), vectors()
        record = read(model, x)
        found = summary(record, "units_count", "activation")
        units = {"0": 6, "0.down": 2, "0.up": 6, "2": 3}
        assert found == {name: (count, "none") for name, count in units.items()}
        rows = x.double() @ model[0].down.detach().double().T
        assert_read(record.layer("0.down"), list(rows[:, None]), LABELS)

    def test_products_however_they_are_written(self):
        model, x = Functional(), vectors()
        record = read(model, x)
        assert summary(record, "activation", "folded") == {
            "a": ("relu", None),
            "b": ("sigmoid", "bias"),
            "c": ("tanh", None),
            "d": ("relu", None),
            "e": ("none", None),
        }
        weights = {name: value.detach().double() for name, value in model.named_parameters()}
        z = x.double() @ weights["a"].T + weights["bias"]
        for name, following in (
            ("a", lambda z: z.relu() @ weights["b"] + weights["bias"]),
            ("b", lambda z: z.sigmoid() @ weights["c"].T + weights["bias"]),
            ("c", lambda z: z.tanh() @ weights["d"]),
            ("d", lambda z: z),
        ):
            active = positive if name in "ad" else None
            assert_read(record.layer(name), list(z[:, None]), LABELS, active)
            z = following(z)

    @pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
    def test_weights_that_are_computed(self, norm):
        torch.manual_seed(6)
        model = nn.Sequential(norm(nn.Linear(4, 6)), nn.ReLU(), norm(nn.Linear(6, 3))).eval()
        assert_network(model, vectors(), {"0": ("Linear", "relu", 1), "2": ("Linear", "none", 1)})

    def test_layers_whose_values_cannot_be_read_are_named(self):
        def follow(net, x):
            return net.outer(torch.func.vmap(lambda row: net.inner(row).relu())(x))

        record = read(Net(follow, inner=linear(4, 5), outer=linear(5, 3)), vectors())
        assert [layer.name for layer in record.layers] == ["outer"]
        (left,) = record.skipped
        assert left.name == "inner"
        assert "torch.func" in left.reason
        model = nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64))
        with pytest.raises(InputError, match="complex"):
            audit(model, vectors().to(torch.complex64))
