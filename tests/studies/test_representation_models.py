"""The networks of source 003 as chains, and which of them the options choose."""

import pytest
import torch
from torch import nn

from mahalens.errors import InputError
from mahalens.nn import Abs, Neg, OffsetL2, PointSlope
from mahalens.studies.representation.models import (
    BIASED,
    FAMILIES,
    MODELS,
    OFFSET_L2,
    POINT_SLOPE,
    PRIMARY,
    PUBLISHED_CODE,
    chain_of,
    choose,
    text_of,
)

TABLE_1 = {
    "abs": [nn.Linear, Abs, nn.Linear],
    "relu": [nn.Linear, nn.ReLU, nn.Linear],
    "abs2": [nn.Linear, Abs, nn.Linear, Abs],
    "abs2-neg": [nn.Linear, Abs, nn.Linear, Abs, Neg],
    "relu2": [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU],
    "relu2-neg": [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, Neg],
}
WITH_L2 = {
    "relu-l2": [nn.Linear, nn.ReLU, OffsetL2],
    "relu-l2-neg": [nn.Linear, nn.ReLU, OffsetL2, Neg],
    "abs-l2": [nn.Linear, Abs, OffsetL2],
    "abs-l2-neg": [nn.Linear, Abs, OffsetL2, Neg],
    "linear-l2": [nn.Linear, OffsetL2],
    "linear-l2-neg": [nn.Linear, OffsetL2, Neg],
}


def kinds(model):
    return [type(part) for part in chain_of(model, 6, 3, hidden=4).build()]


@pytest.mark.parametrize("model", PRIMARY)
def test_the_six_are_those_of_table_1(model):
    assert kinds(model) == TABLE_1[model]
    first, output = (m for m in chain_of(model, 6, 3).build() if isinstance(m, nn.Linear))
    assert (first.in_features, first.out_features) == (6, 128)
    assert first.bias is not None
    assert output.out_features == 3
    assert output.bias is None


@pytest.mark.parametrize("model", BIASED)
def test_the_twins_differ_in_the_output_bias_alone(model):
    assert kinds(model) == TABLE_1[model.removesuffix("-bias")]
    built = chain_of(model, 6, 3).build()
    assert [m for m in built if isinstance(m, nn.Linear)][1].bias is not None


@pytest.mark.parametrize("model", OFFSET_L2)
def test_offset_l2_by_the_paper_and_by_the_code(model):
    for name, variant in ((model, "paper"), (f"{model}-code", "published-code")):
        assert kinds(name) == WITH_L2[model]
        layer = next(m for m in chain_of(name, 6, 3).build() if isinstance(m, OffsetL2))
        assert layer.variant == variant


@pytest.mark.parametrize("model", POINT_SLOPE)
def test_point_slope_takes_the_place_of_the_output_layer(model):
    wanted = TABLE_1[model.removesuffix("-point")]
    places = [i for i, kind in enumerate(wanted) if kind is nn.Linear]
    assert kinds(model) == [*wanted[: places[1]], PointSlope, *wanted[places[1] + 1 :]]


def test_every_model_has_one_name_and_outputs_of_the_right_sign():
    assert len(set(MODELS)) == len(MODELS) == 30
    assert {name for family in FAMILIES.values() for name in family} == set(MODELS)
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    for model in MODELS:
        out = chain_of(model, 6, 3).build()(x)
        assert out.shape == (20, 3)
        if "-neg" in model:
            assert (out <= 0).all()
        elif "2" in model:  # relu2, abs2 and all l2
            assert (out >= 0).all()
        else:
            assert (out < 0).any()


def test_unknown_models_are_named():
    with pytest.raises(InputError, match="unknown model 'relu3'; known: relu, abs"):
        text_of("relu3")
    with pytest.raises(InputError, match=r"--models relu3: unknown model; known: all, primary"):
        choose(("relu3",), None)
    with pytest.raises(InputError, match="--models is empty"):
        choose((), None)
    with pytest.raises(InputError, match="--bias maybe: give no, yes or both"):
        choose(("relu",), "maybe")


@pytest.mark.parametrize(
    ("names", "bias", "wanted"),
    [
        (("relu", "abs"), None, ("relu", "abs")),
        (("abs", "relu"), None, ("relu", "abs")),
        (("relu-bias",), None, ("relu-bias",)),
        (("relu",), "yes", ("relu-bias",)),
        (("relu-bias",), "no", ("relu",)),
        (("relu",), "both", ("relu", "relu-bias")),
        (("abs-l2",), "yes", ("abs-l2",)),
        (("relu", "relu"), None, ("relu",)),
        (("offset-l2",), None, OFFSET_L2),
        (("published-code",), "both", PUBLISHED_CODE),
    ],
)
def test_models_are_chosen_by_name_family_and_bias(names, bias, wanted):
    assert choose(names, bias) == wanted


def test_all_models_with_one_form_of_bias():
    assert set(choose(("all",), "both")) == set(MODELS)
    assert set(choose(("all",), "no")) == set(MODELS) - set(BIASED)
    assert set(choose(("all",), "yes")) == set(MODELS) - set(PRIMARY)
    assert choose(("primary",), "both")[:4] == ("relu", "relu-bias", "abs", "abs-bias")
