"""Convolutional networks as others write them, read against hooks on one sample at a time."""

import pytest
import torch
from foreign_twin import assert_read, folded, one_by_one, rows_of_samples
from torch import nn
from torch.nn import functional

from mahalens.auditing.gather.input_rows import rows_fed
from mahalens.auditing.network import audit
from mahalens.auditing.watch.batches import Batch
from mahalens.auditing.watch.forward import Runner

LABELS = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0, 1, 2, 0])


def positive(rows):
    return rows > 1e-6


def images(channels=3, size=9, count=11, dims=2):
    generator = torch.Generator().manual_seed(channels + size)
    return torch.randn(count, channels, *[size] * dims, generator=generator)


def stirred(model, seed=0):
    """A model whose batch norms have seen data."""
    torch.manual_seed(seed)
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(0.5, 2)
            part.bias.data.normal_()
    return model


class BasicBlock(nn.Module):
    """A residual block as in a ResNet: the sum is made in place, as is the ReLU."""

    def __init__(self, channels, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = BasicBlock(6, 6)
        self.layer2 = BasicBlock(6, 8, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def test_residual_network():
    model, x = stirred(ResNet()), images()
    record = audit(model, (x, LABELS), batch_size=4)
    found = {layer.name: (layer.kind, layer.activation, layer.folded) for layer in record.layers}
    normed = "BatchNorm"
    assert found == {
        "conv1": ("Conv2d", "relu", normed),
        "layer1.conv1": ("Conv2d", "relu", normed),
        "layer1.conv2": ("Conv2d", "none", normed),  # its ReLU comes after a sum
        "layer2.downsample.0": ("Conv2d", "none", normed),
        "layer2.conv1": ("Conv2d", "relu", normed),
        "layer2.conv2": ("Conv2d", "none", normed),
        "fc": ("Linear", "none", None),
    }
    assert record.skipped == ()
    norms = {"conv1": "bn1", "layer1.conv2": "layer1.bn2", "layer2.conv1": "layer2.bn1"}
    norms["layer2.downsample.0"] = "layer2.downsample.1"
    parts = dict(model.named_modules())
    for name, norm in norms.items():
        rows = folded(rows_of_samples(model, one_by_one(x), name), parts[norm])
        layer = record.layer(name)
        active = positive if layer.activation == "relu" else None
        scale = parts[norm].weight / (parts[norm].running_var + parts[norm].eps).sqrt()
        length = parts[name].weight.flatten(1).double().norm(dim=1) * scale.abs()
        # The scale is worked out in float32 here.
        torch.testing.assert_close(layer.hyperplanes.length, length.detach(), rtol=1e-6, atol=0)
        assert_read(layer, rows, LABELS, active)
    assert_read(record.layer("fc"), rows_of_samples(model, one_by_one(x), "fc"), LABELS)
    scores = model.eval()(x)
    assert record.accuracy == pytest.approx(float((scores.argmax(1) == LABELS).double().mean()))


def test_depthwise_separable_network():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 12, 1, groups=4), nn.Hardtanh(-2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(12, 3),
    )  # fmt: skip
    x = images()
    record = audit(stirred(model), (x, LABELS), batch_size=5)
    kinds = [layer.activation for layer in record.layers]
    assert kinds == ["relu6", "hardswish", "hardtanh(-2, 2)", "none"]
    assert [layer.geometry.get("groups") for layer in record.layers] == [(1,), (8,), (4,), None]
    assert [layer.inputs for layer in record.layers] == [27, 9, 2, 12]
    for name, norm in (("0", model[1]), ("3", model[4])):
        rows = folded(rows_of_samples(model, one_by_one(x), name), norm)
        assert_read(record.layer(name), rows, LABELS)
    rows = torch.cat(folded(rows_of_samples(model, one_by_one(x), "0"), model[1]))
    torch.testing.assert_close(record.layer("0").units.flat, (rows > 6).double().mean(0))


def test_units_of_different_groups_are_no_pairs():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2))
    with torch.no_grad():
        model[0].weight.copy_(torch.ones(4, 1, 3, 3))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, 2], [-1, -2], [1, 2], [5, -1]])[..., None, None])
        model[2].bias.zero_()
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
        (nn.Conv2d(2, 4, (2, 3), padding=(1, 0), dilation=(1, 2), stride=(2, 1)), 2),
        (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), 2),
        (nn.Conv2d(2, 4, 4, padding="same", padding_mode="reflect"), 2),
        (nn.Conv3d(2, 4, 2, stride=2), 3),
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_every_kind_of_convolution(layer, dims):
    model = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    x = images(2, 8, dims=dims)
    model(x)
    record = audit(model, (x, LABELS), batch_size=4, patches=10_000)
    found = record.layer("0")
    assert (found.kind, found.activation) == (f"Conv{dims}d", "relu")
    rows = rows_of_samples(model, one_by_one(x), "0")
    assert_read(found, rows, LABELS, positive)
    # The patches are those that the weights are for: z = Wx + b holds row by row.
    uses = []
    with torch.no_grad():
        Runner(model).run(Batch((x,), {}, None, 0), uses.append)
    fed = rows_fed(uses[0], 10**6, torch.Generator()).double()
    z = fed @ layer.weight.detach().double().flatten(1).T + layer.bias.detach().double()
    wanted = uses[0].output.flatten(2).permute(2, 0, 1).flatten(0, 1).double()
    torch.testing.assert_close(z, wanted, rtol=1e-4, atol=1e-5)


class Gated(nn.Module):
    """Squeeze and excitation: channels are scaled by what a small network says of them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.squeeze = nn.Conv2d(8, 2, 1)
        self.excite = nn.Conv2d(2, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = functional.silu(self.conv(x), inplace=True)
        gate = functional.adaptive_avg_pool2d(x, 1)
        gate = self.excite(functional.relu(self.squeeze(gate), inplace=True))
        return {"out": self.head((x * functional.hardsigmoid(gate)).mean((2, 3)))}


def test_squeeze_and_excitation():
    model, x = Gated(), images()
    record = audit(model, (x, LABELS), batch_size=4)
    found = {layer.name: (layer.activation, layer.positions) for layer in record.layers}
    assert found == {
        "conv": ("silu", 81),
        "squeeze": ("relu", 1),
        "excite": ("hardsigmoid", 1),
        "head": ("none", 1),
    }
    for name in found:
        assert_read(record.layer(name), rows_of_samples(model, one_by_one(x), name), LABELS)


class PoolFirst(nn.Module):
    """Takes the maximum before the activation, as the well-known example for MNIST does."""

    def __init__(self, activation):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 2), nn.Linear(4 * 16, 3)
        self.activation = activation

    def forward(self, x):
        x = self.activation(functional.max_pool2d(self.conv(x), 2))
        return functional.log_softmax(self.head(x.flatten(1)), dim=1)


def test_pooling_before_the_activation():
    x = images()
    record = audit(PoolFirst(torch.relu), (x, LABELS))
    assert [layer.activation for layer in record.layers] == ["relu", "log_softmax"]
    assert record.layers[0].feeds is None  # nothing can be folded through the pooling
    assert audit(PoolFirst(torch.abs), x).layer("conv").activation == "none"


class TwoNorms(nn.Module):
    """One convolution for two inputs, each with a batch norm of its own."""

    def __init__(self, same):
        super().__init__()
        self.conv, self.one = nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3)
        self.two = self.one if same else nn.BatchNorm1d(3)

    def forward(self, x):
        first = torch.relu(self.one(self.conv(x)))
        return first + torch.relu(self.two(self.conv(x.flip(2))))


@pytest.mark.parametrize("same", [True, False])
def test_norms_that_differ_by_use_are_not_folded(same):
    model, x = stirred(TwoNorms(same)), images(2, 6, dims=1)
    layer = audit(model, x).layer("conv")
    rows = rows_of_samples(model, one_by_one(x), "conv")
    assert (layer.calls, layer.activation) == (2, "relu" if same else "none")
    assert (layer.folded is not None) == same
    assert_read(layer, folded(rows, model.one) if same else rows)
    assert any("batch norm" in note for note in layer.notes) != same


def test_transposed_convolutions_are_skipped_with_a_reason():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 3, 2, 2), nn.Sigmoid()
    )
    record = audit(model, images(size=8))
    assert [layer.name for layer in record.layers] == ["0"]
    (left,) = record.skipped
    assert (left.name, left.kind) == ("2", "ConvTranspose2d")
    assert "no patches" in left.reason
