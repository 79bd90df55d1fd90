"""Chains read from modules: what a chain says completely is read, anything else refused."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from mahalens.errors import InputError
from mahalens.nn import Abs, AbsReLU, Chain, Layer, Neg, Norm, OffsetL2, PointSlope
from mahalens.nn.chain import ELEMENTWISE

linear = st.builds(Layer, st.just("Linear"), st.integers(1, 9), st.booleans())
variants = st.sampled_from(["paper", "published-code"])
offset_l2 = st.builds(Layer, st.just("OffsetL2"), st.integers(1, 9), variant=variants)
point_slope = st.builds(Layer, st.just("PointSlope"), st.integers(1, 9))
elementwise = st.sampled_from(ELEMENTWISE).map(Layer)


@st.composite
def chains(draw):
    """Chains with at least one layer that says how many inputs there are."""
    before = draw(st.lists(elementwise, max_size=2))
    layers = [*before, draw(linear | offset_l2 | point_slope)]
    layers += draw(st.lists(linear | offset_l2 | point_slope | elementwise, max_size=4))
    if draw(st.booleans()):
        layers += [Layer("Norm"), *draw(st.lists(elementwise, max_size=2))]
    return Chain(draw(st.integers(1, 5)), tuple(layers))


def refused(module, message):
    """That reading raises ``message`` in one line."""
    with pytest.raises(InputError, match=message) as caught:
        Chain.from_module(module)
    assert len(str(caught.value).splitlines()) == 1


class TestWhatIsRead:
    @settings(deadline=None)
    @given(chains())
    def test_building_and_reading_give_the_chain_back(self, chain):
        assert Chain.from_module(chain.build()) == chain

    def test_a_module_written_by_hand(self):
        module = nn.Sequential(
            nn.Linear(7, 5),
            nn.ReLU(inplace=True),
            nn.Linear(5, 6, bias=False),
            nn.Sigmoid(),
            OffsetL2(6, 4),
            nn.GELU(),
            OffsetL2(4, 3, variant="published-code"),
            nn.SiLU(inplace=True),
            nn.Tanh(),
            PointSlope(3, 5),
            nn.Softplus(),
            nn.LeakyReLU(0.2, inplace=True),
            Abs(),
            Norm(),
            Neg(),
        )
        chain = Chain.from_module(module)
        assert chain.inputs == 7
        assert str(chain) == (
            "Linear(5), ReLU, Linear(6, bias=False), Sigmoid, OffsetL2(4), GELU, "
            "OffsetL2(3, variant=published-code), SiLU, Tanh, PointSlope(5), Softplus, "
            "LeakyReLU(0.2), Abs, Norm, Neg"
        )

    def test_what_is_built_computes_the_same(self):
        module = nn.Sequential(nn.Tanh(), nn.Linear(3, 4), nn.GELU(), OffsetL2(4, 2), Neg())
        other = Chain.from_module(module).build()
        other.load_state_dict(module.state_dict())
        x = torch.ones(5, 3)
        assert torch.equal(module(x), other(x))

    def test_the_inputs_are_those_of_the_first_layer_that_has_a_width(self):
        assert Chain.from_module(nn.Sequential(nn.ReLU(), Neg(), nn.Linear(3, 2))).inputs == 3
        assert Chain.from_module(nn.Sequential(Abs(), OffsetL2(4, 2))).inputs == 4
        assert Chain.from_module(nn.Sequential(Abs(), PointSlope(5, 2))).inputs == 5

    def test_names_of_layers_do_not_matter(self):
        module = nn.Sequential(OrderedDict(first=nn.Linear(2, 3), second=nn.ReLU()))
        assert str(Chain.from_module(module)) == "Linear(3), ReLU"

    def test_a_layer_without_parameters_may_stand_twice(self):
        relu = nn.ReLU()
        module = nn.Sequential(nn.Linear(2, 3), relu, nn.Linear(3, 2), relu)
        assert str(Chain.from_module(module)) == "Linear(3), ReLU, Linear(2), ReLU"

    @pytest.mark.parametrize("marked", [0, 1, 4])
    def test_the_absolute_units_of_a_layer_that_mixes(self, marked):
        chain = Chain.parse(f"Linear(4), AbsReLU(absolute={marked}), Linear(2)", inputs=3)
        assert Chain.from_module(chain.build()) == chain
        alone = nn.Sequential(AbsReLU([True] * marked + [False] * 2))
        assert Chain.from_module(alone).inputs == marked + 2

    def test_other_devices_and_dtypes(self):
        chain = Chain.parse("Linear(4), Abs, OffsetL2(2)", inputs=3)
        assert Chain.from_module(chain.build(device="meta", dtype=torch.float64)) == chain

    def test_the_module_is_left_as_it_was(self):
        module = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).eval()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        Chain.from_module(module)
        assert not module.training
        assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
        assert all(p.grad is None for p in module.parameters())


class Linear(nn.Linear):
    """A subclass could compute anything."""


class TestLayersThatAreNoPartOfAChain:
    @pytest.mark.parametrize(
        "layer",
        [nn.Dropout(), nn.BatchNorm1d(4), nn.Softmax(-1), nn.Identity(), Linear(4, 4)],
        ids=lambda layer: type(layer).__name__,
    )
    def test_other_classes(self, layer):
        name = type(layer).__name__
        message = (
            f"^layer 2: {name} cannot be part of a chain; known: Linear, OffsetL2, PointSlope, "
            "Abs, ReLU, Sigmoid, Neg, GELU, SiLU, Tanh, Softplus, LeakyReLU, Norm, AbsReLU$"
        )
        refused(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), layer), message)

    def test_nested(self):
        module = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.ReLU()))
        refused(module, "^layer 1: Sequential cannot be part of a chain; known: ")

    @pytest.mark.parametrize("layer", [nn.Softplus(2.0), nn.Softplus(1, 10)], ids=str)
    def test_other_softplus(self, layer):
        module = nn.Sequential(nn.Linear(2, 4), layer)
        refused(module, r"^layer 1: Softplus\(beta=.*\) cannot be part .*; use nn.Softplus\(\)$")

    def test_a_slope_that_is_no_number(self):
        module = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(float("nan")))
        refused(module, "^layer 1: LeakyReLU with slope nan; give a finite number$")

    def test_the_approximate_gelu(self):
        module = nn.Sequential(nn.Linear(2, 4), nn.GELU(approximate="tanh"))
        refused(module, r"^layer 1: GELU\(approximate='tanh'\) cannot be part .*; use nn.GELU\(\)$")

    @pytest.mark.parametrize(
        "layer", [AbsReLU([False, True, True, False]), AbsReLU([True] * 4, dim=-2)], ids=str
    )
    def test_other_absolute_units_than_the_first(self, layer):
        refused(nn.Sequential(nn.Linear(2, 4), layer), "^layer 1: AbsReLU cannot .* the last axis$")

    def test_absolute_units_without_numbers(self):
        module = Chain.parse("Linear(4), AbsReLU(absolute=1)", inputs=2).build(device="meta")
        refused(module, "^layer 1: AbsReLU is on the device meta, without a mask; build it")

    def test_widths_that_do_not_fit(self):
        module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(5, 3))
        refused(module, "^layer 2: Linear takes 5 inputs, but is given 4; make them equal$")
        module = nn.Sequential(Abs(), OffsetL2(2, 4), OffsetL2(2, 4))
        refused(module, "^layer 2: OffsetL2 takes 2 inputs, but is given 4; make them equal$")

    @pytest.mark.parametrize("width", [1, 4])
    def test_units_after_norm(self, width):
        module = nn.Sequential(nn.Linear(2, 4), Norm(), nn.Linear(width, 3))
        refused(module, "^layer 2: Linear after Norm, which leaves no units$")
        refused(nn.Sequential(Norm(), OffsetL2(width, 3)), "^layer 1: OffsetL2 after Norm")

    def test_nothing_that_says_the_width(self):
        message = "^no layer of nn.Sequential says how many inputs it takes; give at least one "
        refused(nn.Sequential(nn.ReLU(), Norm()), message)

    def test_no_layers(self):
        message = (
            "^nn.Sequential without layers; give at least one of Linear, OffsetL2, PointSlope$"
        )
        refused(nn.Sequential(), message)


class Sequential(nn.Sequential):
    """A subclass could apply its layers in any way."""


@pytest.mark.parametrize(
    "module",
    [nn.Linear(2, 3), Sequential(nn.Linear(2, 3)), nn.ModuleList([nn.Linear(2, 3)]), "Linear(4)"],
    ids=lambda module: type(module).__name__,
)
def test_not_a_plain_sequential(module):
    name = type(module).__name__
    refused(module, f"^{name} is not read as a chain; give a plain nn.Sequential of Linear, Off")


REGISTER = [
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
]


def fresh():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), OffsetL2(3, 3), PointSlope(3, 3))


class TestChangesThatWouldBeLost:
    @pytest.mark.parametrize("place", [0, 1, 2, 3])
    @pytest.mark.parametrize("register", REGISTER)
    def test_hooks(self, register, place):
        module = fresh()
        handle = getattr(module[place], register)(lambda *_: None)
        name = type(module[place]).__name__
        refused(
            module, f"^layer {place}: {name} has hooks, which a chain cannot hold; remove them$"
        )
        handle.remove()
        assert Chain.from_module(module).inputs == 2

    @pytest.mark.parametrize("register", REGISTER)
    def test_hooks_of_the_whole(self, register):
        module = fresh()
        getattr(module, register)(lambda *_: None)
        refused(module, "^nn.Sequential has hooks, which a chain cannot hold; remove them$")

    @pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
    def test_hooks_of_a_parameter(self, register):
        module = fresh()
        getattr(module[2].alpha, register)(lambda *_: None)
        refused(module, "^layer 2: OffsetL2 has hooks")

    def test_parametrizations(self):
        module = fresh()
        parametrizations.orthogonal(module[0])
        refused(module, "^layer 0: ParametrizedLinear has parametrizations, which a chain cannot ")

    def test_another_forward(self):
        module = fresh()
        module[1].forward = lambda x: x + 1
        refused(module, "^layer 1: ReLU has been given another forward, which a chain cannot hold$")

    @pytest.mark.parametrize(
        ("place", "name"),
        [(0, "weight"), (0, "bias"), (2, "mu"), (2, "alpha"), (3, "weight"), (3, "point")],
    )
    def test_frozen_parameters(self, place, name):
        module = fresh()
        getattr(module[place], name).requires_grad_(False)
        message = f"^layer {place}: {type(module[place]).__name__} has a {name} with requires_grad="
        refused(module, message)

    @pytest.mark.parametrize("layer", [nn.Linear(3, 3), OffsetL2(3, 3), PointSlope(3, 3)], ids=str)
    def test_the_same_layer_twice(self, layer):
        refused(
            nn.Sequential(layer, nn.ReLU(), layer),
            f"^layer 2: {type(layer).__name__} shares its (weight|mu) with layer 0; give each ",
        )

    def test_tied_parameters(self):
        module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        module[2].bias = module[0].bias
        refused(module, "^layer 2: Linear shares its bias with layer 0; give each layer")
        module = nn.Sequential(OffsetL2(3, 3))
        module[0].alpha = module[0].mu
        refused(module, "^layer 0: OffsetL2 shares its alpha with layer 0; give each layer")

    def test_parameters_of_no_layer(self):
        module = fresh()
        module.register_parameter("scale", nn.Parameter(torch.ones(1)))
        refused(module, "^nn.Sequential has the parameters scale; a chain wants none$")
        module = fresh()
        module[1].register_parameter("slope", nn.Parameter(torch.ones(1)))
        refused(module, "^layer 1: ReLU has the parameters slope; a chain wants none$")

    def test_a_weight_that_is_no_parameter(self):
        module = fresh()
        weight = module[0].weight.detach()
        del module[0].weight
        module[0].weight = weight
        refused(module, "^layer 0: Linear has the parameters bias; a chain wants bias, weight$")
