"""What stands between a layer and its reader is read by its values, however it is spelt.

Every network here has a twin written plainly. Bit-equal functions must get equal audits.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

import mahalens
from mahalens.nn import AbsReLU

UNITS = 8
LABELS = torch.arange(240) % 3


def inputs():
    draw = torch.Generator().manual_seed(1)
    return torch.randn(240, 6, generator=draw) + LABELS[:, None]


class Net(nn.Module):
    """A layer of 8 units, of which one is dead, something that follows it, and a reader."""

    def __init__(self, follow):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.reader = nn.Linear(6, UNITS), nn.Linear(UNITS, 3)
        self.layer.bias.data.sub_(0.5 * self.layer.weight.data.sum(1))
        self.layer.bias.data[5] = -50
        self.follow = follow
        self.scale = nn.Parameter(torch.linspace(0.5, 2, UNITS))
        self.shift = nn.Parameter(torch.linspace(-0.2, 0.3, UNITS))
        self.register_buffer("fixed", torch.linspace(0.1, 0.4, UNITS))

    def forward(self, x):
        return self.reader(self.follow(self, self.layer(x)))


def folded_twin(scale, shift, activation):
    """The same network with a scale and a shift in the weights of its layer."""
    twin = Net(lambda net, z: activation(z))
    with torch.no_grad():
        twin.layer.weight.mul_(scale[:, None])
        twin.layer.bias.mul_(scale).add_(shift)
    return twin


def assert_same_audit(layer, twin, rtol=1e-4, atol=2e-5):
    assert layer.activation == twin.activation
    assert layer.units.dead == twin.units.dead
    assert layer.units.saturated == twin.units.saturated
    assert layer.verdict.word == twin.verdict.word
    assert layer.verdict.score == pytest.approx(twin.verdict.score, abs=1e-6)
    for part in ("mean", "std", "least", "greatest", "active", "class_mean", "class_active"):
        got, wanted = getattr(layer.units, part), getattr(twin.units, part)
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)
    for part in ("length", "mean_distance", "class_spreads", "chance"):
        got, wanted = getattr(layer.hyperplanes, part), getattr(twin.hyperplanes, part)
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=1e-3, equal_nan=True)
    torch.testing.assert_close(
        layer.prototypes.active_value, twin.prototypes.active_value, rtol=rtol, atol=atol
    )


def in_place(net, z):
    z[z < 0] = 0
    return z


SPELLINGS = {
    "relu": {
        "where": lambda net, z: torch.where(z > 0, z, 0.0),
        "where zeros": lambda net, z: torch.where(z > 0, z, torch.zeros_like(z)),
        "maximum": lambda net, z: torch.maximum(z, torch.zeros_like(z)),
        "max of a number": lambda net, z: torch.max(z, torch.tensor(0.0)),
        "max of zeros": lambda net, z: torch.max(torch.zeros(z.shape), z),
        "mask": lambda net, z: z * (z > 0),
        "mask of numbers": lambda net, z: z * (z > 0).float(),
        "half": lambda net, z: (z + z.abs()) / 2,
        "threshold": lambda net, z: functional.threshold(z, 0, 0),
        "clamp": lambda net, z: z.clamp(0),
        "clamp_min": lambda net, z: torch.clamp_min(z, 0),
        "clamp to infinity": lambda net, z: torch.clamp(z, 0, float("inf")),
        "clamp by a tensor": lambda net, z: torch.clamp(z, min=torch.zeros(UNITS)),
        "masked_fill": lambda net, z: z.masked_fill(z < 0, 0),
        "in place": in_place,
        "negated minimum": lambda net, z: -torch.minimum(-z, torch.zeros(())),
        "twice": lambda net, z: z.relu().relu(),
        "reshaped": lambda net, z: z.view(-1, 2, 4).clamp(min=0).flatten(1),
    },
    "abs": {
        "where": lambda net, z: torch.where(z < 0, -z, z),
        "max": lambda net, z: torch.max(z, -z),
        "root": lambda net, z: (z * z).sqrt(),
        "sign": lambda net, z: z * z.sign(),
        "two relus": lambda net, z: z.relu() + (-z).relu(),
    },
    "leaky_relu": {
        "max": lambda net, z: torch.max(z, 0.01 * z),
        "where": lambda net, z: torch.where(z >= 0, z, z * 0.01),
    },
    "gelu": {"erf": lambda net, z: 0.5 * z * (1 + torch.erf(z / 2**0.5))},
    "silu": {"sigmoid": lambda net, z: z * torch.sigmoid(z)},
    "sigmoid": {
        "exp": lambda net, z: 1 / (1 + torch.exp(-z)),
        "tanh": lambda net, z: (torch.tanh(z / 2) + 1) / 2,
    },
    "softplus": {"log": lambda net, z: torch.log(1 + torch.exp(z))},
    "relu6": {"clamped relu": lambda net, z: z.relu().clamp(max=6)},
}


@pytest.mark.parametrize(
    ("activation", "spelling"),
    [(name, key) for name, spellings in SPELLINGS.items() for key in spellings],
)
def test_activations_by_any_spelling(activation, spelling):
    known = getattr(functional, activation, None) or getattr(torch, activation)
    x = inputs()
    written, plain = Net(SPELLINGS[activation][spelling]), Net(lambda net, z: known(z))
    torch.testing.assert_close(written(x), plain(x))
    layer = mahalens.audit(written, (x, LABELS)).layers[0]
    twin = mahalens.audit(plain, (x, LABELS)).layers[0]
    if (activation, spelling) == ("sigmoid", "tanh"):
        # As it is spelt, it is the tanh of half of z.
        assert (layer.activation, layer.folded, layer.feeds) == ("tanh", "scale", None)
        return
    assert (layer.activation, layer.folded, layer.feeds) == (activation, None, "reader")
    assert_same_audit(layer, twin)


def assign(net, z):
    z[:, 2] = 0
    return z


def assign_in_part(net, z):
    z[:, 2] *= 0.5
    return z


ONE = torch.ones(UNITS)
AT_TWO = (torch.arange(UNITS) == 2).float()
SCALE, SHIFT, FIXED = (getattr(Net(None), name).detach() for name in ("scale", "shift", "fixed"))
AFFINE = {
    "2 z": (lambda net, z: 2 * z, 2 * ONE, 0 * ONE),
    "z + 1": (lambda net, z: z + 1.0, ONE, ONE),
    "1 - z": (lambda net, z: 1 - z, -ONE, ONE),
    "z param": (lambda net, z: z * net.scale, SCALE, 0 * ONE),
    "param z": (lambda net, z: net.scale * z, SCALE, 0 * ONE),
    "param + z": (lambda net, z: net.shift + z, ONE, SHIFT),
    "z + param": (lambda net, z: z + net.shift, ONE, SHIFT),
    "z - param": (lambda net, z: z - net.shift, ONE, -SHIFT),
    "z + buffer": (lambda net, z: z + net.fixed, ONE, FIXED),
    "z / param": (lambda net, z: z / net.scale, 1 / SCALE, 0 * ONE),
    "addcmul": (lambda net, z: torch.addcmul(net.shift, z, net.scale), SCALE, SHIFT),
    "in place": (lambda net, z: z.mul_(net.scale).add_(net.shift), SCALE, SHIFT),
    "-(z + z)": (lambda net, z: -(z + z), -2 * ONE, 0 * ONE),
    "steps": (lambda net, z: (z * 3 + net.shift) / net.scale - 1, 3 / SCALE, SHIFT / SCALE - 1),
    "lerp": (lambda net, z: torch.lerp(z, net.shift, 0.25), 0.75 * ONE, 0.25 * SHIFT),
    "assigned": (assign, ONE - AT_TWO, 0 * ONE),
    "assigned in part": (assign_in_part, ONE - 0.5 * AT_TWO, 0 * ONE),
    "zeroed in part": (lambda net, z: (z[:, 2].zero_(), z)[1], ONE - AT_TWO, 0 * ONE),
    "a constant": (
        lambda net, z: z.index_fill(1, torch.tensor([2]), 1.5),
        ONE - AT_TWO,
        1.5 * AT_TWO,
    ),
    "nothing": (lambda net, z: z * 1.0 + 0.0, ONE, 0 * ONE),
    "perturbed": (
        lambda net, z: torch.minimum(net.scale * z + net.shift, torch.full((UNITS,), torch.inf)),
        SCALE,
        SHIFT,
    ),
    "half as dtype": (lambda net, z: (z.double() * 2).float(), 2 * ONE, 0 * ONE),
}


@pytest.mark.parametrize("activation", [torch.relu, torch.abs], ids=["relu", "abs"])
@pytest.mark.parametrize("name", AFFINE)
def test_affine_steps_are_folded_in(name, activation):
    step, scale, shift = AFFINE[name]
    written = Net(lambda net, z: activation(step(net, z)))
    twin, x = folded_twin(scale, shift, activation), inputs()
    torch.testing.assert_close(written(x), twin(x), rtol=1e-4, atol=1e-5)
    layer = mahalens.audit(written, (x, LABELS)).layers[0]
    assert (layer.folded is None) == (name == "nothing")
    assert_same_audit(layer, mahalens.audit(twin, (x, LABELS)).layers[0])
    assert layer.feeds == (None if "in part" in name else "reader")


def test_what_is_done_to_activations_is_read_by_no_layer():
    x = inputs()
    for follow in (lambda net, z: torch.relu(z + 1) - 1, lambda net, z: 2 * z.relu()):
        layer = mahalens.audit(Net(follow), (x, LABELS)).layers[0]
        assert (layer.activation, layer.units.dead, layer.feeds) == ("relu", (5,), None)
    same = mahalens.audit(Net(lambda net, z: 2 * z.relu() / 2), (x, LABELS)).layers[0]
    assert same.feeds == "reader"
    squared = mahalens.audit(Net(lambda net, z: z.relu() ** 2), (x, LABELS)).layers[0]
    assert (squared.activation, squared.units.dead, squared.feeds) == ("relu", (5,), None)


@pytest.mark.parametrize("batched", [False, True])
def test_functions_without_a_name_are_read_by_value(batched):
    """A unit is dead where what follows is 0 on every row, whatever it is."""

    def follow(net, z):
        limit = torch.ones(z.shape) if batched else 1.0
        return torch.relu(z - limit) * torch.tanh(z)

    x = inputs()
    net = Net(follow)
    layer = mahalens.audit(net, (x, LABELS), batch_size=100).layers[0]
    assert layer.activation == "elementwise"
    values = follow(net, net.layer(x)).detach()
    active = (values.abs() > 1e-6).double().mean(0)
    torch.testing.assert_close(layer.units.active, active)
    assert layer.units.dead == tuple((active == 0).nonzero()[:, 0].tolist())
    assert 5 in layer.units.dead


def test_units_with_different_activations():
    mixed = AbsReLU([True] * 5 + [False] * 3)
    net = Net(lambda net, z: mixed(z))
    net.layer.bias.data[1] = -60
    layer = mahalens.audit(net, (inputs(), LABELS)).layers[0]
    assert layer.activation == "elementwise"
    assert layer.units.dead == (5,)  # unit 1 is as far below 0, but an absolute value


NORMS = {
    "LayerNorm": lambda net, z: functional.layer_norm(z, (UNITS,), net.scale, net.shift),
    "RMSNorm": lambda net, z: functional.rms_norm(z, (UNITS,), net.scale),
    "GroupNorm": lambda net, z: functional.group_norm(z, 2, net.scale, net.shift),
    "mean": lambda net, z: (z - z.mean(-1, keepdim=True)) / z.std(-1, keepdim=True),
}


@pytest.mark.parametrize("name", NORMS)
def test_dead_units_behind_norms_across_units(name):
    x, net = inputs(), Net(lambda net, z: NORMS[name](net, z).relu())
    layer = mahalens.audit(net, (x, LABELS), batch_size=50).layers[0]
    u = NORMS[name](net, net.layer(x)).detach().double()
    assert (layer.activation, layer.folded, layer.feeds) == ("relu", name, None)
    assert layer.units.dead == tuple((u.amax(0) <= 0).nonzero()[:, 0].tolist())
    assert 5 in layer.units.dead
    torch.testing.assert_close(layer.units.mean, u.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.units.least, u.amin(0), rtol=1e-4, atol=1e-5)
    assert layer.hyperplanes is None
    assert layer.pairs is None
    assert f"{name} stands between the layer and its activation" in layer.notes[0]


def test_norms_of_convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.LazyLinear(3)
    )
    x = torch.randn(30, 1, 8, 8)
    model(x)
    layer = mahalens.audit(model, x, batch_size=7).layers[0]
    u = model[:2](x).detach().double().movedim(1, -1).flatten(0, 2)
    assert (layer.activation, layer.folded, layer.rows) == ("silu", "GroupNorm", len(u))
    torch.testing.assert_close(layer.units.mean, u.mean(0), rtol=1e-4, atol=1e-5)


class Tokens(nn.Module):
    """Adds to each position something of its own."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.reader = nn.Linear(6, 4), nn.Linear(4, 3)
        self.places, self.what = nn.Parameter(torch.randn(5, 4)), what
        self.slopes = nn.Parameter(torch.rand(5))

    def forward(self, x):
        return self.reader(self.what(self, self.layer(x), x)).mean(1)


@pytest.mark.parametrize(
    ("what", "note"),
    [
        (lambda net, z, x: (z + net.places).relu(), "as far as add"),
        (lambda net, z, x: (z + x[..., :4]).relu(), "as far as add"),
        (lambda net, z, x: (z + x.mean()).relu(), "depends on the samples of a batch"),
        (lambda net, z, x: torch.relu(z - z.mean((0, 1))), "mixes samples"),
        (lambda net, z, x: functional.dropout(z, 0.5, True).relu(), "as far as dropout"),
        (lambda net, z, x: torch.from_numpy(z.numpy() * 2).relu(), ""),
        (lambda net, z, x: functional.prelu(z, net.slopes), ""),  # slopes of positions, not units
    ],
)
def test_what_cannot_be_followed_is_said(what, note):
    torch.manual_seed(0)
    layer = mahalens.audit(Tokens(what), torch.randn(20, 5, 6)).layers[0]
    assert (layer.activation, layer.folded, layer.feeds) == ("none", None, None)
    assert note in " ".join(layer.notes)


def test_slopes_of_units_along_another_axis():
    turned = Tokens(
        lambda net, z, x: functional.prelu(z.transpose(1, 2), net.slopes[:4]).transpose(1, 2)
    )
    assert mahalens.audit(turned, torch.randn(20, 5, 6)).layers[0].activation == "prelu"


def change_data(module, args, output):
    output.data[:, 2] = 0


def zero_unit(module, args, output):
    output[:, 2] = 0


def with_hook(hook):
    net = Net(lambda net, z: z.relu())
    net.layer.register_forward_hook(hook)
    return mahalens.audit(net, (inputs(), LABELS)).layers[0]


def test_changes_that_no_function_shows_are_noticed():
    layer = with_hook(change_data)
    assert (layer.activation, layer.feeds) == ("none", None)
    assert "changed in a way that could not be seen" in " ".join(layer.notes)


def test_hooks_that_work_in_place_are_followed():
    layer = with_hook(zero_unit)
    assert (layer.activation, layer.folded) == ("relu", "assignment")
    assert layer.units.dead == (2, 5)
    assert layer.hyperplanes.length[2] == 0


class Reading(nn.Module):
    """A convolution whose activations are read in a way of the user's choice."""

    def __init__(self, read, width):
        super().__init__()
        self.conv, self.reader, self.read = nn.Conv1d(2, 4, 3), nn.Linear(width, 3), read

    def forward(self, x):
        return self.reader(self.read(self.conv(x).relu())).flatten(1)


@pytest.mark.parametrize(
    ("read", "width", "feeds"),
    [
        (lambda a: a, 8, None),  # a Linear over positions
        (lambda a: a.transpose(1, 2), 4, "reader"),
        (lambda a: a.flatten(1), 32, "reader"),
        (lambda a: a.transpose(1, 2).flatten(1), 32, None),  # units are not in blocks
        (lambda a: functional.max_pool1d(a, 2).flatten(1), 16, "reader"),
        (lambda a: functional.max_pool1d(a.transpose(1, 2), 2).flatten(1), 16, None),
        (lambda a: functional.avg_pool2d(a, (3, 1), 1, (1, 0)).flatten(1), 32, None),
        (lambda a: functional.max_pool2d(a, (2, 1), 1, (1, 0))[:, :4].flatten(1), 32, None),
        (lambda a: functional.adaptive_avg_pool1d(a, 1)[..., 0], 4, "reader"),
    ],
)
def test_readers_of_units_in_their_order(read, width, feeds):
    torch.manual_seed(0)
    layer = mahalens.audit(Reading(read, width), torch.randn(20, 2, 10)).layers[0]
    assert (layer.activation, layer.feeds) == ("relu", feeds)


def test_other_precisions_and_single_samples():
    x = inputs()
    for dtype in (torch.float64, torch.bfloat16):
        net = Net(lambda net, z: (z * net.scale + z.abs() * net.scale) / 2).to(dtype)
        layer = mahalens.audit(net, (x, LABELS)).layers[0]
        assert layer.activation == "relu"
        assert layer.units.dead == (5,)
    net = Net(lambda net, z: torch.where(2 * z > 0, 2 * z, 0.0))
    layer = mahalens.audit(net, (x[:1], LABELS[:1])).layers[0]
    assert (layer.activation, layer.folded) == ("relu", "scale")
