"""Chains: text that can be pasted back, modules built and read back, errors that help."""

import subprocess
import sys
from collections import OrderedDict

import msgspec
import pytest
import scipy.spatial.distance
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import draw, refuses
from torch import nn
from torch.nn.utils import parametrizations

import mahalens.nn
from mahalens.geometry import Gaussian
from mahalens.nn import (
    Abs,
    AbsReLU,
    Chain,
    Layer,
    Neg,
    Norm,
    OffsetL2,
    PointSlope,
    mahalanobis_model,
    md_abs,
    md_relu,
    md_sigmoid,
)
from mahalens.nn.chain import ELEMENTWISE, LAYERS, MIXED, PARAMETRISED, VARIANTS

CLASSES = {
    "Linear": nn.Linear,
    "OffsetL2": OffsetL2,
    "PointSlope": PointSlope,
    "Abs": Abs,
    "ReLU": nn.ReLU,
    "Sigmoid": nn.Sigmoid,
    "Neg": Neg,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "Softplus": nn.Softplus,
    "LeakyReLU": nn.LeakyReLU,
    "AbsReLU": AbsReLU,
    "Norm": Norm,
}
units = st.integers(1, 9)
linear = st.builds(Layer, st.just("Linear"), units, st.booleans())
offset_l2 = st.builds(Layer, st.just("OffsetL2"), units, variant=st.sampled_from(VARIANTS))
with_units = linear | offset_l2 | st.builds(Layer, st.just("PointSlope"), units)
slopes = st.floats(allow_nan=False, allow_infinity=False)
leaky = st.builds(Layer, st.just("LeakyReLU"), slope=slopes)
elementwise = st.sampled_from(ELEMENTWISE).map(Layer) | leaky


@st.composite
def chains(draw):
    """Chains with at least one layer that says how many inputs there are, and all options."""
    layers = [*draw(st.lists(elementwise, max_size=2)), draw(with_units)]
    layers += draw(st.lists(with_units | elementwise, max_size=4))
    inputs = draw(st.integers(1, 5))
    chain = Chain(inputs, tuple(layers))
    if draw(st.booleans()):  # an AbsReLU as wide as its place
        place = draw(st.integers(0, len(layers)))
        width = (*chain.widths, chain.outputs)[place]
        layers.insert(place, Layer("AbsReLU", absolute=draw(st.integers(0, width))))
    if draw(st.booleans()):
        layers += [Layer("Norm"), *draw(st.lists(elementwise, max_size=2))]
    return Chain(inputs, tuple(layers))


def test_every_name_has_its_class():
    assert list(CLASSES) == list(LAYERS) == [*PARAMETRISED, *ELEMENTWISE, MIXED, "Norm"]
    options = {"units": 3, "absolute": 1}
    for kind, entry in LAYERS.items():
        given_ = {name: value for name, value in options.items() if name in entry.options}
        assert type(Chain(2, (Layer(kind, **given_),)).build()[0]) is CLASSES[kind]


class TestText:
    @settings(deadline=None)
    @given(chains(), st.sampled_from(["", " ", "\n  ", "\t"]))
    def test_text_and_json_go_there_and_back(self, chain, space):
        text = str(chain).replace(", ", f"{space},{space}").replace("(", f"({space}")
        text = text.replace("=", f"{space}={space}").replace(")", f"{space})")
        for written in (str(chain), f"{space}{text}{space}"):
            assert Chain.parse(written, inputs=chain.inputs) == chain
        assert msgspec.json.decode(msgspec.json.encode(chain), type=Chain) == chain
        assert chain.scalar == ("Norm" in str(chain))

    @pytest.mark.parametrize(
        ("text", "layer", "shown"),
        [
            ("Linear(10, bias=True)", Layer("Linear", 10, True), "Linear(10)"),
            ("OffsetL2(8, variant=paper)", Layer("OffsetL2", 8), "OffsetL2(8)"),
            ("LeakyReLU(0.01)", Layer("LeakyReLU"), "LeakyReLU"),
            ("Swish", Layer("SiLU"), "SiLU"),
            ("LeakyReLU( 1e-5 )", Layer("LeakyReLU", slope=1e-5), "LeakyReLU(1e-05)"),
        ],
    )
    def test_what_is_read(self, text, layer, shown):
        chain = Chain.parse(f"{text}, Abs", inputs=3)
        assert chain.layers == (layer, Layer("Abs"))
        assert str(chain) == f"{shown}, Abs"

    def test_json_of_before_there_were_variants(self):
        old = b'{"inputs":2,"layers":[{"kind":"Linear","units":4,"bias":false},{"kind":"Abs"}]}'
        wanted = Chain.parse("Linear(4, bias=False), Abs", inputs=2)
        assert msgspec.json.decode(old, type=Chain) == wanted
        assert Layer.__struct_fields__ == ("kind", "units", "bias", "variant", "absolute", "slope")

    @pytest.mark.parametrize(
        ("text", "widths", "outputs"),
        [
            ("Linear(4)", (3,), 4),
            ("Abs, Neg", (3, 3), 3),
            ("Tanh, OffsetL2(5), Neg, Linear(2), SiLU", (3, 3, 5, 5, 2), 2),
            ("PointSlope(6), Abs, PointSlope(2)", (3, 6, 6), 2),
            ("Linear(4), ReLU, Norm", (3, 4, 4), None),
            ("Linear(4), Norm, Neg, Abs", (3, 4, 1, 1), None),
            ("Norm", (3,), None),
        ],
    )
    def test_widths(self, text, widths, outputs):
        chain = Chain.parse(text, inputs=3)
        assert chain.widths == widths
        assert chain.outputs == outputs


class TestBuild:
    @settings(deadline=None)
    @given(chains())
    def test_modules_are_read_back_with_their_shapes(self, chain):
        module = chain.build(dtype=torch.float64)
        assert Chain.from_module(module) == chain
        assert {p.dtype for p in module.parameters()} == {torch.float64}
        x = torch.ones(7, chain.inputs, dtype=torch.float64)
        for part, width in zip(module, chain.widths, strict=True):
            assert x.numel() == 7 * width
            x = part(x)
        assert x.shape == ((7,) if chain.outputs is None else (7, chain.outputs))

    def test_options_reach_the_modules(self):
        text = "Linear(4), LeakyReLU(0.2), AbsReLU(absolute=1), Linear(3, bias=False)"
        chain = Chain.parse(f"{text}, OffsetL2(2, variant=published-code)", inputs=2)
        module = chain.build()
        assert (module[0].bias is None, module[3].bias is None) == (False, True)
        assert module[1].negative_slope == 0.2
        assert module[2].absolute.tolist() == [True, False, False, False]
        assert module[4].variant == "published-code"

    def test_device(self):
        chain = Chain.parse("Linear(4), Abs, OffsetL2(2), PointSlope(3), Norm", inputs=2)
        module = chain.build(device="meta", dtype=torch.float64)
        assert module(torch.zeros(5, 2, device="meta").double()).device.type == "meta"
        assert Chain.from_module(module) == chain

    def test_starting_weights_are_those_of_pytorch(self):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            built = Chain.parse("Linear(4), Abs, Linear(2)", inputs=3).build()
            torch.manual_seed(3)
            plain = nn.Sequential(nn.Linear(3, 4), Abs(), nn.Linear(4, 2))
        assert built.state_dict().keys() == plain.state_dict().keys()
        for name, value in plain.state_dict().items():
            assert torch.equal(built.state_dict()[name], value)


TEXTS = [
    ("Linear(4), Abs, Norm, Linear(2)", "layer 3: Linear after Norm, which leaves no units"),
    ("Norm, OffsetL2(4)", "layer 1: OffsetL2 after Norm, which leaves no units"),
    ("Norm, AbsReLU(absolute=1)", "layer 1: AbsReLU after Norm, which leaves no units"),
    ("Linear(4), Norm, Abs, Norm", "layer 3: a second Norm; the first left no units"),
    ("Linear(0), Abs", "layer 0: Linear with units 0; give at least 1"),
    ("Linear", r"cannot read 'Linear'; write Linear\(4\) or Linear\(4, bias=False\)$"),
    ("Linear(-4)", r"cannot read 'Linear\(-4\)'"),
    ("Abs, Linear(4, bias=No)", r"cannot read 'Linear\(4, bias=No\)'"),
    ("Linear(4, False)", r"cannot read 'Linear\(4, False\)'"),
    ("Linear(2.5)", r"cannot read 'Linear\(2.5\)'"),
    ("Linear(4, variant=paper)", r"cannot read 'Linear\(4, variant=paper\)'; write Linear"),
    ("PointSlope(4, bias=False)", r"cannot read '.*'; write PointSlope\(4\)$"),
    ("OffsetL2(4, bias=False)", r"cannot read .* or OffsetL2\(4, variant=published-code\)$"),
    ("OffsetL2(4, variant=code)", "layer 0: OffsetL2 with variant 'code'; give paper or publ"),
    ("Linear(4), AbsReLU", r"cannot read 'AbsReLU'; write AbsReLU\(absolute=4\) for 4 Abs"),
    ("Linear(4), AbsReLU(2)", r"cannot read 'AbsReLU\(2\)'; write AbsReLU\(absolute=4\)"),
    ("Linear(4), AbsReLU(absolute=5)", r"layer 1: .* on 4 units; give at most 4 absolute ones$"),
    ("LeakyReLU()", r"cannot read 'LeakyReLU\(\)'; write LeakyReLU or LeakyReLU\(0.2\)$"),
    ("LeakyReLU(a)", r"cannot read 'LeakyReLU\(a\)'; write LeakyReLU or LeakyReLU\(0.2\)$"),
    ("LeakyReLU(1, 2)", r"cannot read 'LeakyReLU\(1, 2\)'"),
    ("LeakyReLU(nan)", "layer 0: LeakyReLU with slope nan; give a finite number"),
    ("Abs, LeakyReLU(inf)", "layer 1: LeakyReLU with slope inf; give a finite number"),
    ("Softplus(2)", r"cannot read 'Softplus\(2\)'; write Softplus$"),
    ("Linear(4), Softmax", "layer 1: unknown layer 'Softmax'; known: Linear, .*, Norm$"),
    ("Linear(4), relu", "layer 1: unknown layer 'relu'"),
    ("", "the text of a chain is empty; write one such as 'Linear"),
    (" \n", "the text of a chain is empty; write one such as 'Linear"),
    ("Linear(4),", "layer 1: unknown layer ''"),
]
LINKS = [
    (Layer("Linear"), "Linear with units None; give at least 1"),
    (Layer("OffsetL2", -3), "OffsetL2 with units -3; give at least 1"),
    (Layer("Linear", 4, variant="published-code"), "Linear takes no variant, .* only OffsetL2"),
    (Layer("OffsetL2", 4, bias=False), "OffsetL2 takes no bias, but False was given; only Linear"),
    (Layer("OffsetL2", 4, variant=""), "OffsetL2 with variant ''; give paper or published-code"),
    (Layer("Abs", 3), "Abs takes no units, but 3 was given; only Linear, OffsetL2, PointSlope"),
    (Layer("Norm", 1), "Norm takes no units"),
    (Layer("GELU", variant="published-code"), "GELU takes no variant"),
    (Layer("Linear", 4, slope=0.2), "Linear takes no slope, but 0.2 was given; only LeakyReLU"),
    (Layer("AbsReLU"), "AbsReLU with absolute None; give the number of Abs units"),
    (Layer("AbsReLU", absolute=-1), "AbsReLU with absolute -1; give the number of Abs units"),
    (Layer("AbsReLU", 2, absolute=1), "AbsReLU takes no units"),
    (Layer("ReLU", absolute=1), "ReLU takes no absolute, but 1 was given; only AbsReLU does"),
]


class TestRefusals:
    @pytest.mark.parametrize(("text", "message"), TEXTS)
    def test_text(self, text, message):
        refuses(message, Chain.parse, text, inputs=2)

    @pytest.mark.parametrize(("layer", "message"), LINKS)
    def test_layers(self, layer, message):
        refuses(f"layer 1: {message}", Chain, 2, (Layer("Abs"), layer))

    def test_inputs_and_layers(self):
        refuses("a chain with 0 inputs; give at least 1", Chain.parse, "Linear(4)", inputs=0)
        refuses("a chain without layers; give at least one", Chain, 2, ())

    def test_more_parameters_than_memory(self):
        chain = Chain.parse("Linear(4), Linear(99999999999)", inputs=2)
        refuses(r"Linear\(99999999999\): would take 1,600 GB of memory and", chain.build)


class TestFromModule:
    def test_a_module_written_by_hand(self):
        first, second = nn.Linear(7, 5), nn.Linear(5, 6, bias=False)
        offset = OffsetL2(6, 4, variant="published-code")
        relu, silu, leaky = nn.ReLU(True), nn.SiLU(True), nn.LeakyReLU(0.2, True)  # in place
        layers = first, relu, second, offset, silu, PointSlope(4, 5), leaky, Norm(), Neg()
        module = nn.Sequential(OrderedDict((f"part{n}", part) for n, part in enumerate(layers)))
        module.eval()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        chain = Chain.from_module(module)
        assert chain.inputs == 7
        assert str(chain) == (
            "Linear(5), ReLU, Linear(6, bias=False), OffsetL2(4, variant=published-code), SiLU, "
            "PointSlope(5), LeakyReLU(0.2), Norm, Neg"
        )
        assert not module.training
        assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())

    def test_a_layer_without_parameters_may_stand_twice(self):
        relu = nn.ReLU()
        module = nn.Sequential(nn.Linear(2, 3), relu, nn.Linear(3, 2), relu)
        assert str(Chain.from_module(module)) == "Linear(3), ReLU, Linear(2), ReLU"

    def test_a_mask_says_the_width(self):
        assert Chain.from_module(nn.Sequential(AbsReLU([True, False, False]))).inputs == 3


class Linear(nn.Linear):
    """A subclass could compute anything."""


class Sequential(nn.Sequential):
    """A subclass could apply its layers in any way."""


def behind(*layers):
    return nn.Sequential(nn.Linear(2, 4), *layers)


UNKNOWN = "cannot be part of a chain; known: Linear, OffsetL2, PointSlope, Abs, ReLU, Sigmoid, Neg"
NOT_READ = "is not read as a chain; give a plain nn.Sequential of Linear, Off"
MODULES = [
    (behind(nn.Dropout()), f"layer 1: Dropout {UNKNOWN}"),
    (behind(Linear(4, 4)), f"layer 1: Linear {UNKNOWN}"),
    (behind(nn.Sequential(nn.ReLU())), f"layer 1: Sequential {UNKNOWN}"),
    (behind(nn.Softplus(2.0)), r"layer 1: Softplus\(beta=2.0, threshold=20.*\) cannot be part"),
    (behind(nn.Softplus(1, 10)), r"layer 1: Softplus\(.* cannot be .*; make it with beta=1, thr"),
    (behind(nn.LeakyReLU(float("nan"))), "layer 1: LeakyReLU with slope nan; give a finite number"),
    (behind(nn.GELU(approximate="tanh")), r"layer 1: GELU\(approximate='tanh'\) cannot be part"),
    (behind(AbsReLU([False, True, True, False])), "layer 1: AbsReLU cannot .* the first units are"),
    (behind(AbsReLU([True] * 4, dim=-2)), r"layer 1: AbsReLU\(dim=-2\) cannot .* with dim=-1$"),
    (
        Chain.parse("Linear(4), AbsReLU(absolute=1)", inputs=2).build(device="meta"),
        "layer 1: AbsReLU is on the device meta, without a mask; build it",
    ),
    (behind(nn.ReLU(), nn.Linear(5, 3)), "layer 2: Linear takes 5 inputs, but is given 4; make th"),
    (nn.Sequential(Abs(), *[OffsetL2(2, 4)] * 2), "layer 2: OffsetL2 takes 2 inputs, but is giv"),
    (behind(Norm(), nn.Linear(1, 3)), "layer 2: Linear after Norm, which leaves no units$"),
    (nn.Sequential(Norm(), OffsetL2(4, 3)), "layer 1: OffsetL2 after Norm"),
    (nn.Sequential(nn.ReLU(), Norm()), "no layer of nn.Sequential says how many inputs it takes"),
    (nn.Sequential(), "nn.Sequential without layers; give at least one of Linear, OffsetL2, Point"),
    (nn.Linear(2, 3), f"Linear {NOT_READ}"),
    (Sequential(nn.Linear(2, 3)), f"Sequential {NOT_READ}"),
    (nn.ModuleList([nn.Linear(2, 3)]), f"ModuleList {NOT_READ}"),
    ("Linear(4)", f"str {NOT_READ}"),
    (behind(*[PointSlope(4, 4)] * 2), "layer 2: PointSlope shares its weight with layer 1; give "),
]
HOOKS = [f"register_{way}_hook" for way in ("forward", "forward_pre", "full_backward")]
HOOKS += ["register_full_backward_pre_hook"]


def fresh():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), OffsetL2(3, 3), PointSlope(3, 3))


def give_another_forward(module):
    module[1].forward = lambda x: x + 1


def untrack_weight(module):
    weight = module[0].weight.detach()
    del module[0].weight
    module[0].weight = weight


def tie(module):
    module[2].alpha = module[2].mu


ONE = nn.Parameter(torch.ones(1))

CHANGES = [
    (lambda m: parametrizations.orthogonal(m[0]), "layer 0: ParametrizedLinear has parametrizat"),
    (give_another_forward, "layer 1: ReLU has been given another forward, which a chain cannot"),
    (untrack_weight, "layer 0: Linear has the parameters bias; a chain wants bias, weight$"),
    (tie, "layer 2: OffsetL2 shares its alpha with layer 2; give each layer"),
    (lambda m: m[2].alpha.register_hook(lambda g: g), "layer 2: OffsetL2 has hooks"),
    (lambda m: m[2].mu.register_post_accumulate_grad_hook(print), "layer 2: OffsetL2 has hooks"),
    (lambda m: m.register_parameter("scale", ONE), "nn.Sequential has .* scale; a .* none$"),
    (lambda m: m[1].register_parameter("slope", ONE), "layer 1: ReLU has .* slope; a .* none$"),
]


class TestModulesThatAreRefused:
    @pytest.mark.parametrize(("module", "message"), MODULES)
    def test_no_chain(self, module, message):
        refuses(message, Chain.from_module, module)

    @pytest.mark.parametrize(("change", "message"), CHANGES)
    def test_changes_that_would_be_lost(self, change, message):
        module = fresh()
        change(module)
        refuses(message, Chain.from_module, module)

    @pytest.mark.parametrize("place", [None, 0, 1, 2, 3])
    @pytest.mark.parametrize("register", HOOKS)
    def test_hooks(self, register, place):
        module = fresh()
        part = module if place is None else module[place]
        handle = getattr(part, register)(lambda *_: None)
        name = "nn.Sequential" if place is None else f"layer {place}: {type(part).__name__}"
        message = f"{name} has hooks, which a chain cannot hold; remove them$"
        refuses(message, Chain.from_module, module)
        handle.remove()
        assert Chain.from_module(module).inputs == 2

    @pytest.mark.parametrize(
        ("place", "name"),
        [(0, "weight"), (0, "bias"), (2, "mu"), (2, "alpha"), (3, "weight"), (3, "point")],
    )
    def test_frozen_parameters(self, place, name):
        module = fresh()
        getattr(module[place], name).requires_grad_(False)
        message = f"layer {place}: {type(module[place]).__name__} has a {name} with requires_grad="
        refuses(message, Chain.from_module, module)


def gaussian_and_samples(dim, dtype, seed=0):
    a, mean = draw((dim, dim), seed), 6 * draw((dim,), seed + 1)
    covariance = a @ a.T / dim + 0.1 * torch.eye(dim)
    gaussian = Gaussian.from_covariance(mean, covariance).to(dtype)
    return gaussian, gaussian.sample(50, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [1, 2, 10])
class TestNamedModels:
    @pytest.mark.parametrize(
        ("make", "factor", "activation"),
        [(md_abs, 1, "Abs"), (md_relu, 2, "ReLU"), (md_sigmoid, 2, "Sigmoid")],
    )
    def test_named_chains(self, make, factor, activation, dim):
        chain = make(dim)
        assert str(chain) == f"Linear({factor * dim}), {activation}, Norm"
        assert (chain.inputs, chain.scalar) == (dim, True)
        refuses("a chain with 0 inputs|layer 0: Linear with units 0", make, 0)

    def test_the_mahalanobis_model_is_the_distance(self, dim, dtype):
        gaussian, x = gaussian_and_samples(dim, dtype)
        model = mahalanobis_model(gaussian)
        assert repr(model) == repr(md_abs(dim).build(dtype=dtype))
        before = gaussian.mahalanobis(x)
        tolerance = {torch.float32: 2e-4, torch.float64: 1e-12}[dtype]
        torch.testing.assert_close(model(x), before, rtol=tolerance, atol=tolerance)
        double = gaussian.to(torch.float64)
        mean, precision = double.mean.numpy(), double.precision.numpy()
        loop = [scipy.spatial.distance.mahalanobis(row, mean, precision) for row in x.tolist()]
        wanted = torch.tensor(loop, dtype=dtype)
        torch.testing.assert_close(model(x), wanted, rtol=tolerance, atol=tolerance)
        rows = model[0].weight.detach() * gaussian.eigenvalues.sqrt()[:, None]
        torch.testing.assert_close(rows, gaussian.eigenvectors.T, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert torch.equal(gaussian.mahalanobis(x), before), "the model shares no memory with it"


def test_architectures_need_no_torch():
    code = (
        "import sys\n"
        "from mahalens.nn import Chain, Layer, md_abs, md_relu, md_sigmoid\n"
        "assert str(md_relu(3)) == 'Linear(6), ReLU, Norm'\n"
        "assert Chain.parse(str(md_abs(2)), inputs=2) == md_abs(2)\n"
        "assert Chain.parse('OffsetL2(4, variant=published-code), GELU', inputs=2).outputs == 4\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    loaded = set(subprocess.check_output(command, text=True).split())
    assert "mahalens.nn.chain" in loaded
    assert not {"torch", "numpy", "scipy"} & loaded


def test_public_names():
    for name in mahalens.nn.__all__:
        assert getattr(mahalens.nn, name).__name__ == name
    assert set(mahalens.nn.__all__) <= set(dir(mahalens.nn))
    with pytest.raises(AttributeError, match=r"Softmax"):
        _ = mahalens.nn.Softmax
    with pytest.raises(ImportError):
        from mahalens.nn import Softmax  # noqa: F401
