"""Chains: text that can be pasted back, modules of the right shape, errors that help."""

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU, Chain, Layer, Neg, Norm, OffsetL2, PointSlope
from mahalens.nn.chain import ELEMENTWISE
from mahalens.nn.layers import WITHOUT_PARAMETERS

KINDS = {
    "Abs": Abs,
    "ReLU": nn.ReLU,
    "Sigmoid": nn.Sigmoid,
    "Neg": Neg,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "Softplus": nn.Softplus,
    "LeakyReLU": nn.LeakyReLU,
    "Norm": Norm,
}

linear = st.builds(Layer, st.just("Linear"), st.integers(1, 9), st.booleans())
variants = st.sampled_from(["paper", "published-code"])
offset_l2 = st.builds(Layer, st.just("OffsetL2"), st.integers(1, 9), variant=variants)
point_slope = st.builds(Layer, st.just("PointSlope"), st.integers(1, 9))
plain = st.sampled_from([kind for kind in KINDS if kind != "Norm"]).map(Layer)
slopes = st.floats(allow_nan=False, allow_infinity=False)
elementwise = plain | st.builds(Layer, st.just("LeakyReLU"), slope=slopes)


@st.composite
def chains(draw):
    layers = draw(st.lists(linear | offset_l2 | point_slope | elementwise, min_size=1, max_size=6))
    if draw(st.booleans()):
        layers += [Layer("Norm"), *draw(st.lists(elementwise, max_size=2))]
    return with_mixed(draw, Chain(draw(st.integers(1, 5)), tuple(layers)))


def with_mixed(draw, chain):
    """The chain with one layer more, if it wants one: an AbsReLU as wide as its place."""
    if not draw(st.booleans()) or chain.layers[0].kind == "Norm":
        return chain
    place = draw(st.integers(0, next(_ends(chain))))
    width = (*chain.widths, chain.outputs)[place]
    added = Layer("AbsReLU", absolute=draw(st.integers(0, width)))
    return Chain(chain.inputs, (*chain.layers[:place], added, *chain.layers[place:]))


def _ends(chain):
    """Up to where there are units."""
    yield from (place for place, layer in enumerate(chain.layers) if layer.kind == "Norm")
    yield len(chain.layers)


class TestText:
    @settings(deadline=None)
    @given(chains())
    def test_text_can_be_pasted_back(self, chain):
        assert Chain.parse(str(chain), inputs=chain.inputs) == chain

    @settings(deadline=None)
    @given(chains(), st.sampled_from(["", " ", "  ", "\n  ", "\t"]))
    def test_spaces_do_not_matter(self, chain, space):
        text = str(chain).replace(", ", f"{space},{space}").replace("(", f"({space}")
        text = text.replace("=", f"{space}={space}").replace(")", f"{space})")
        assert Chain.parse(f"{space}{text}{space}", inputs=chain.inputs) == chain

    @settings(deadline=None)
    @given(chains())
    def test_json_goes_there_and_back(self, chain):
        assert msgspec.json.decode(msgspec.json.encode(chain), type=Chain) == chain

    def test_what_is_read(self):
        chain = Chain.parse("Linear(128), ReLU, Linear(10, bias=False), ReLU, Neg", inputs=784)
        assert chain.inputs == 784
        assert chain.layers == (
            Layer("Linear", 128, True),
            Layer("ReLU"),
            Layer("Linear", 10, False),
            Layer("ReLU"),
            Layer("Neg"),
        )
        assert Chain.parse("Linear(10, bias=True)", inputs=1) == Chain.parse("Linear(10)", inputs=1)

    def test_what_is_read_of_offset_l2(self):
        text = "OffsetL2(8), GELU, OffsetL2(4, variant=published-code), SiLU, Tanh"
        chain = Chain.parse(text, inputs=3)
        assert str(chain) == text
        assert chain.layers == (
            Layer("OffsetL2", 8, variant="paper"),
            Layer("GELU"),
            Layer("OffsetL2", 4, variant="published-code"),
            Layer("SiLU"),
            Layer("Tanh"),
        )
        assert Chain.parse("OffsetL2(8, variant=paper)", inputs=1).layers == chain.layers[:1]

    def test_what_is_read_of_abs_relu(self):
        chain = Chain.parse("Linear(8), AbsReLU(absolute=3)", inputs=3)
        assert chain.layers[1] == Layer("AbsReLU", absolute=3)
        assert chain.build()[1].absolute.tolist() == [True] * 3 + [False] * 5

    @pytest.mark.parametrize(
        ("text", "slope", "shown"),
        [
            ("LeakyReLU", 0.01, "LeakyReLU"),
            ("LeakyReLU(0.01)", 0.01, "LeakyReLU"),
            ("LeakyReLU( 1e-5 )", 1e-5, "LeakyReLU(1e-05)"),
            ("LeakyReLU(-1)", -1.0, "LeakyReLU(-1.0)"),
        ],
    )
    def test_what_is_read_of_leaky_relu(self, text, slope, shown):
        chain = Chain.parse(f"Linear(8), {text}, Linear(2)", inputs=3)
        assert chain.layers[1] == Layer("LeakyReLU", slope=slope)
        assert str(chain.layers[1]) == shown
        assert chain.build()[1].negative_slope == slope

    def test_json_of_before_there_were_variants(self):
        old = b'{"inputs":2,"layers":[{"kind":"Linear","units":4,"bias":false},{"kind":"Abs"}]}'
        wanted = Chain.parse("Linear(4, bias=False), Abs", inputs=2)
        assert msgspec.json.decode(old, type=Chain) == wanted

    def test_the_order_of_the_fields_of_a_layer(self):
        assert Layer.__struct_fields__ == ("kind", "units", "bias", "variant", "absolute", "slope")

    @settings(deadline=None)
    @given(chains())
    def test_scalar_means_there_is_a_norm(self, chain):
        assert chain.scalar == ("Norm" in str(chain))

    def test_chains_are_values(self):
        a, b = (Chain.parse("Linear(4), Abs", inputs=2) for _ in range(2))
        assert a == b
        assert hash(a) == hash(b)
        assert a != Chain.parse("Linear(4), Abs", inputs=3)
        with pytest.raises(AttributeError):
            a.inputs = 3


class TestWidths:
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
    def test_examples(self, text, widths, outputs):
        chain = Chain.parse(text, inputs=3)
        assert chain.widths == widths
        assert chain.outputs == outputs

    @settings(deadline=None)
    @given(chains())
    def test_they_are_those_of_the_module(self, chain):
        x = torch.ones(7, chain.inputs, dtype=torch.float64)
        for module, width in zip(chain.build(dtype=torch.float64), chain.widths, strict=True):
            assert x.numel() == 7 * width
            x = module(x)
        assert x.shape == ((7,) if chain.outputs is None else (7, chain.outputs))


class TestBuild:
    def test_every_name_has_a_class(self):
        assert tuple(WITHOUT_PARAMETERS) == (*ELEMENTWISE, "Norm")
        assert WITHOUT_PARAMETERS == KINDS

    def test_gelu_is_the_exact_one(self):
        x = torch.linspace(-3, 3, 13, dtype=torch.float64)
        wanted = x * torch.distributions.Normal(0.0, 1.0).cdf(x)
        torch.testing.assert_close(Chain.parse("GELU", inputs=13).build()(x), wanted)

    @settings(deadline=None)
    @given(chains())
    def test_modules_and_shapes(self, chain):
        module = chain.build(dtype=torch.float64)
        assert isinstance(module, nn.Sequential)
        assert len(module) == len(chain.layers)
        width = chain.inputs
        for made, layer in zip(module, chain.layers, strict=True):
            if layer.kind == "Linear":
                assert isinstance(made, nn.Linear)
                assert (made.in_features, made.out_features) == (width, layer.units)
                assert (made.bias is not None) == layer.bias
                assert made.weight.dtype == torch.float64
                width = layer.units
            elif layer.kind == "OffsetL2":
                assert isinstance(made, OffsetL2)
                assert (made.inputs, made.units) == (width, layer.units)
                assert made.variant == layer.variant
                assert made.mu.dtype == made.alpha.dtype == torch.float64
                width = layer.units
            elif layer.kind == "PointSlope":
                assert isinstance(made, PointSlope)
                assert (made.inputs, made.units) == (width, layer.units)
                assert made.weight.dtype == made.point.dtype == torch.float64
                width = layer.units
            elif layer.kind == "AbsReLU":
                assert isinstance(made, AbsReLU)
                marked = layer.absolute
                assert made.absolute.tolist() == [True] * marked + [False] * (width - marked)
            else:
                assert type(made) is KINDS[layer.kind]
                assert getattr(made, "negative_slope", 0.01) == layer.slope
        for batch in ((), (7,), (2, 3)):
            out = module(torch.ones(*batch, chain.inputs, dtype=torch.float64))
            assert out.shape == (batch if chain.scalar else (*batch, width))

    def test_the_layers_are_applied_in_order(self):
        chain = Chain.parse("Linear(4), ReLU, Linear(3, bias=False), Abs, Norm, Neg", inputs=2)
        module = chain.build(dtype=torch.float64)
        x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        hidden = (x @ module[0].weight.T + module[0].bias).clamp(min=0)
        wanted = -torch.linalg.vector_norm((hidden @ module[2].weight.T).abs(), dim=-1)
        torch.testing.assert_close(module(x), wanted)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_dtype(self, dtype):
        module = Chain.parse("Linear(4), Abs, Norm", inputs=2).build(dtype=dtype)
        assert module(torch.zeros(1, 2, dtype=dtype)).dtype == dtype
        assert {p.dtype for p in module.parameters()} == {dtype}

    def test_device(self):
        chain = Chain.parse("Linear(4), Abs, OffsetL2(2), PointSlope(3), Norm", inputs=2)
        module = chain.build(device="meta")
        assert module(torch.zeros(5, 2, device="meta")).device.type == "meta"

    def test_starting_weights_are_those_of_pytorch(self):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            built = Chain.parse("Linear(4), Abs, Linear(2)", inputs=3).build()
            torch.manual_seed(3)
            plain = nn.Sequential(nn.Linear(3, 4), Abs(), nn.Linear(4, 2))
        assert built.state_dict().keys() == plain.state_dict().keys()
        for name, value in plain.state_dict().items():
            assert torch.equal(built.state_dict()[name], value)

    def test_mixes_with_other_modules(self):
        inner = Chain.parse("Linear(4), Abs, Norm", inputs=3).build(dtype=torch.float64)
        outer = nn.Sequential(nn.Linear(2, 3, dtype=torch.float64), nn.Tanh(), inner)
        x = torch.ones(5, 2, dtype=torch.float64)
        torch.testing.assert_close(outer(x), inner(outer[1](outer[0](x))))
        outer(x).sum().backward()
        assert all(p.grad is not None for p in outer.parameters())


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Linear(4), Abs, Norm, Linear(2)", "layer 3: Linear after Norm, which leaves no"),
            ("Linear(4), Norm, Abs, Norm", "layer 3: a second Norm; the first left no units"),
            ("Linear(0), Abs", "layer 0: Linear needs at least 1 unit"),
            ("Linear", "cannot read 'Linear'; write Linear"),
            ("Linear(-4)", r"cannot read 'Linear\(-4\)'; write Linear\(4\) or Linear\(4, bias="),
            ("Abs, Linear(4, bias=No)", r"cannot read 'Linear\(4, bias=No\)'"),
            ("Linear(4, False)", r"cannot read 'Linear\(4, False\)'"),
            ("Linear(2.5)", r"cannot read 'Linear\(2.5\)'"),
            (
                "Linear(4), Softmax",
                r"layer 1: unknown layer 'Softmax'; known: Linear\(units\), OffsetL2\(units\), "
                r"PointSlope\(units\), Abs, ReLU, Sigmoid, Neg, GELU, SiLU, Tanh, "
                r"Softplus, LeakyReLU, AbsReLU\(absolute=units\), Norm",
            ),
            ("Linear(4), relu", "layer 1: unknown layer 'relu'"),
            ("Linear(4), Abs(3)", r"layer 1: unknown layer 'Abs\(3\)'"),
            ("Norm, OffsetL2(4)", "layer 1: OffsetL2 after Norm, which leaves no units"),
            ("OffsetL2(0)", "layer 0: OffsetL2 needs at least 1 unit"),
            ("Norm, PointSlope(4)", "layer 1: PointSlope after Norm, which leaves no units"),
            ("PointSlope(0)", "layer 0: PointSlope needs at least 1 unit"),
            ("PointSlope", r"cannot read 'PointSlope'; write PointSlope\(4\)$"),
            (
                "Abs, PointSlope(4, bias=False)",
                r"cannot read 'PointSlope\(4, bias=False\)'; write PointSlope\(4\)$",
            ),
            (
                "Abs, OffsetL2(4, bias=False)",
                r"cannot read 'OffsetL2\(4, bias=False\)'; write OffsetL2\(4\) or OffsetL2\(4, "
                r"variant=published-code\)",
            ),
            ("OffsetL2", "cannot read 'OffsetL2'; write OffsetL2"),
            ("Linear(4, variant=paper)", r"cannot read 'Linear\(4, variant=paper\)'; write Linear"),
            (
                "OffsetL2(4, variant=code)",
                "layer 0: unknown variant 'code' of OffsetL2; known: paper, published-code",
            ),
            ("Norm, AbsReLU(absolute=1)", "layer 1: AbsReLU after Norm, which leaves no units"),
            ("Linear(4), AbsReLU", r"cannot read 'AbsReLU'; write AbsReLU\(absolute=4\) for 4 Abs"),
            ("Linear(4), AbsReLU(2)", r"cannot read 'AbsReLU\(2\)'; write AbsReLU\(absolute=4\)"),
            (
                "Linear(4), AbsReLU(absolute=5)",
                r"layer 1: AbsReLU\(absolute=5\) on 4 units; give at most 4 absolute ones",
            ),
            (
                "Abs, LeakyReLU()",
                r"cannot read 'LeakyReLU\(\)'; write LeakyReLU or LeakyReLU\(0.2\)",
            ),
            ("LeakyReLU(a)", r"cannot read 'LeakyReLU\(a\)'; write LeakyReLU or LeakyReLU\(0.2\)"),
            ("LeakyReLU(1, 2)", r"cannot read 'LeakyReLU\(1, 2\)'; write LeakyReLU or"),
            ("LeakyReLU(nan)", "layer 0: LeakyReLU with slope nan; give a finite number"),
            ("Abs, LeakyReLU(inf)", "layer 1: LeakyReLU with slope inf; give a finite number"),
            ("Softplus(2)", r"layer 0: unknown layer 'Softplus\(2\)'"),
            ("", "the text of a chain is empty; write one such as 'Linear"),
            (" \n", "the text of a chain is empty; write one such as 'Linear"),
            ("Linear(4),", "layer 1: unknown layer ''"),
        ],
    )
    def test_unreadable_text(self, text, message):
        with pytest.raises(InputError, match=message):
            Chain.parse(text, inputs=2)

    @pytest.mark.parametrize("inputs", [0, -1])
    def test_inputs(self, inputs):
        with pytest.raises(InputError, match=f"a chain with {inputs} inputs; give at least 1"):
            Chain.parse("Linear(4)", inputs=inputs)

    def test_no_layers(self):
        with pytest.raises(InputError, match="a chain without layers; give at least one"):
            Chain(2, ())

    @pytest.mark.parametrize("kind", ["Linear", "OffsetL2", "PointSlope"])
    @pytest.mark.parametrize("units", [None, 0, -3])
    def test_no_units(self, kind, units):
        with pytest.raises(InputError, match=f"layer 1: {kind} needs at least 1 unit"):
            Chain(2, (Layer("Abs"), Layer(kind, units)))

    @pytest.mark.parametrize(
        "layer",
        [
            Layer("Abs", 3),
            Layer("Norm", 1),
            Layer("Neg", bias=False),
            Layer("GELU", variant="published-code"),
        ],
    )
    def test_options_where_there_are_none(self, layer):
        """They would be lost when the chain is printed or built."""
        message = f"layer 0: {layer.kind} takes no units, bias or variant of its own"
        with pytest.raises(InputError, match=message):
            Chain(2, (layer,))

    @pytest.mark.parametrize(
        ("layer", "message"),
        [
            (
                Layer("Linear", 4, variant="published-code"),
                "layer 1: Linear takes no variant, but 'published-code' was given; only OffsetL2",
            ),
            (Layer("OffsetL2", 4, bias=False), "layer 1: OffsetL2 takes no bias option; leave it"),
            (
                Layer("PointSlope", 4, variant="published-code"),
                "layer 1: PointSlope takes no variant, but 'published-code' was given; only Offset",
            ),
            (Layer("PointSlope", 4, bias=False), "layer 1: PointSlope takes no bias option; leave"),
            (Layer("OffsetL2", 4, variant=""), "layer 1: unknown variant '' of OffsetL2; known: "),
        ],
    )
    def test_options_of_the_other_layer(self, layer, message):
        with pytest.raises(InputError, match=message):
            Chain(2, (Layer("Abs"), layer))

    @pytest.mark.parametrize(
        "layer", [Layer("ReLU", slope=0.2), Layer("Linear", 4, slope=0.2), Layer("Norm", slope=1)]
    )
    def test_slopes_are_for_leaky_relu(self, layer):
        message = f"layer 0: {layer.kind} takes no slope, but {layer.slope} was given; only Leaky"
        with pytest.raises(InputError, match=message):
            Chain(2, (layer,))

    @pytest.mark.parametrize(
        ("layer", "message"),
        [
            (
                Layer("LeakyReLU", 3),
                "layer 0: LeakyReLU takes no units, bias or variant of its own",
            ),
            (Layer("AbsReLU"), "layer 0: AbsReLU needs absolute, the number of its Abs units"),
            (Layer("AbsReLU", absolute=-1), "layer 0: AbsReLU needs absolute, the number of its"),
            (Layer("AbsReLU", 2, absolute=1), "layer 0: AbsReLU takes no units, bias or variant"),
            (Layer("ReLU", absolute=1), "layer 0: ReLU takes no absolute units; only AbsReLU does"),
            (Layer("Linear", 4, absolute=1), "layer 0: Linear takes no absolute units; only AbsR"),
        ],
    )
    def test_absolute_units(self, layer, message):
        with pytest.raises(InputError, match=message):
            Chain(2, (layer,))

    def test_errors_name_one_line(self):
        with pytest.raises(InputError) as caught:
            Chain.parse("Linear(4), Softmax", inputs=2)
        assert len(str(caught.value).splitlines()) == 1
