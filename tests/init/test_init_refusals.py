"""Bad input is one clear line, and leaves every weight as it was."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starts import LAYERS, PAIRS, STARTS, linear, planted, same_state, seeded, start, state_of
from torch import nn
from torch.nn.utils import parametrizations

from mahalens.errors import InputError
from mahalens.init import (
    METHODS,
    class_mean_,
    cluster_pca_,
    initialise,
    kaiming_,
    kaiming_through_samples,
    lsuv_,
    sample_point_bias_,
    whiten_,
)
from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2

X, Y = planted(3, 4)
FROM_DATA = [name for name, method in METHODS.items() if method.data]
DATA_PAIRS = [(name, kind) for name, kind in PAIRS if METHODS[name].data]
RANKED = [kind for kind in LAYERS if "rank" in str(LAYERS[kind](4, 3, torch.float64))]


def refuses(layer, match, start):
    """The start fails with one line that says so, and the layer is as it was."""
    before = state_of(layer)
    with pytest.raises(InputError, match=match) as caught:
        start(layer)
    assert "\n" not in str(caught.value)
    assert same_state(before, state_of(layer), equal_nan=True)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in layer.modules())


class TestEveryStart:
    @pytest.mark.parametrize(("name", "kind"), DATA_PAIRS)
    def test_numbers_that_are_none(self, name, kind):
        for bad in (torch.nan, torch.inf):
            x = torch.where(X[5, 2] == X, bad, X)
            layer = LAYERS[kind](4, 3, torch.float64)
            refuses(layer, "NaN or infinite", lambda la, x=x: start(name, la, x, Y))

    @pytest.mark.parametrize(("name", "kind"), DATA_PAIRS)
    def test_all_inputs_constant(self, name, kind):
        message = r"the \d+ rows are constant in all 4 inputs, so they say nothing about"
        layer = LAYERS[kind](4, 3, torch.float64)
        refuses(layer, message, lambda la: start(name, la, torch.full_like(X, 3.7), Y))

    @pytest.mark.parametrize(("name", "kind"), DATA_PAIRS)
    def test_one_constant_input_is_taken(self, name, kind):
        x = X.clone()
        x[:, 1] = 5.0
        layer = start(name, LAYERS[kind](4, 3, torch.float64), x, Y, generator=seeded())
        assert bool(layer(x).isfinite().all())

    @pytest.mark.parametrize(
        ("name", "kind"),
        [(n, k) for n, k in DATA_PAIRS if k in RANKED and n in ("cluster_pca", "whiten")],
    )
    def test_one_axis_for_two(self, name, kind):
        x = X.clone()
        x[:, 1:] = 5.0
        message = r"2 axes are wanted, but the \d+ rows of 4 inputs vary along fewer within 3"
        refuses(LAYERS[kind](4, 3, X.dtype), message, lambda la: start(name, la, x, Y))

    @pytest.mark.parametrize("name", FROM_DATA)
    @pytest.mark.parametrize(
        ("x", "match"),
        [
            (X[:, :3], r"shape \[\d+, 3\], but Linear of 4 inputs wants \[N, 4\]"),
            (X[0], r"shape \[4\], but Linear of 4 inputs"),
            (X[:0], r"shape \[0, 4\], but Linear of 4 inputs"),
            (X.long(), r"x is torch\.int64, wanted real floating point"),
            (X.tolist(), "x is a list, wanted a torch tensor"),
        ],
        ids=["width", "one sample", "none", "whole numbers", "list"],
    )
    def test_shape_and_kind(self, name, x, match):
        refuses(linear(4, 3), match, lambda layer: STARTS[name](layer, x, Y[: len(x)]))

    @pytest.mark.parametrize("name", METHODS)
    @pytest.mark.parametrize(
        "layer",
        [nn.ReLU(), nn.Embedding(4, 4), nn.ConvTranspose2d(4, 4, 2), nn.Bilinear(4, 4, 2)],
        ids=lambda layer: type(layer).__name__,
    )
    def test_other_layers(self, name, layer):
        match = f"{type(layer).__name__} cannot be started; wanted nn.Linear"
        refuses(layer, match, lambda la: STARTS[name](la, X, Y))

    @pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].places])
    def test_without_a_bias(self, name):
        match = f"Linear has no bias, which {name} places its hyperplanes with; .*kaiming, lsuv"
        refuses(linear(4, 3, bias=False), match, lambda la: STARTS[name](la, X, Y))

    @pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].places])
    def test_those_that_need_no_bias(self, name):
        layer = STARTS[name](linear(4, 3, bias=False), X, Y)
        assert bool(layer.weight.isfinite().all())


def with_classes(*places):
    """The labels, with another class at some places."""
    return torch.where(torch.isin(torch.arange(len(Y)), torch.tensor(places)), 9, Y)


def low_rank(classes=3):
    return Mahalanobis(4, classes, 2).double()


def shared_head():
    return DistanceHead(4, 3, metric="shared", rank=2).double()


COUNT = "wanted a whole number of at least 1"
SAME = Y[:, None].double().expand(-1, 4).contiguous()
IMAGES = torch.zeros(5, 3, 8, 8)
HALF_CONSTANT = torch.randn(5, 4, 6, 6, generator=seeded())
HALF_CONSTANT[:, 2:] = 1.0
ELSEWHERE = type("Elsewhere", (), {"device": torch.device("cuda")})()
CLUSTER_PCA = [
    (linear(4, 8), (X[:5],), {"clusters": 8}, "8 clusters are wanted of 5 samples"),
    (OffsetL2(4, 9).double(), (X[:5],), {}, "9 clusters are wanted of 5 samples"),
    (low_rank(9), (X[:5],), {}, "9 clusters are wanted of 5 samples"),
    (linear(4, 8), (X[:3].repeat(10, 1),), {"clusters": 5}, "5 clusters .* 3 samples that differ"),
    (linear(4, 8), (X[:9],), {"clusters": 4}, "8 axes are wanted, but the 9 rows .* have only"),
    (linear(4, 8), (X,), {"clusters": 2, "axes": 3}, "2 clusters with 3 axes each give 6 hyperpl"),
    *((linear(4, 8), (X,), {"clusters": n}, f"clusters is .*, {COUNT}") for n in (0, 2.5, True)),
    *((linear(4, 8), (X,), {"axes": n}, f"axes is .*, {COUNT}") for n in (0, -1, 2.5, "3", True)),
    (linear(4, 8), (X, Y), {"clusters": 2}, "clusters is 2, but y has 3 classes"),
    (OffsetL2(4, 3), (X,), {"clusters": 2}, "clusters is 2, but the layer has 3 prototypes"),
    (low_rank(), (X,), {"clusters": 2}, "clusters is 2, but the layer has 3 prototypes"),
    (OffsetL2(4, 3), (X,), {"axes": 2}, "cluster_pca for OffsetL2 has no option 'axes'"),
    (OffsetL2(4, 3), (X,), {"mirror": True}, "cluster_pca for OffsetL2 has no option 'mirror'"),
    (shared_head(), (X,), {}, "cluster_pca wants the classes y"),
    (shared_head(), (X, Y + 1), {}, "y has class 3, but the head has .* of the classes 0 to 2"),
    (shared_head(), (X, Y.clamp(max=1)), {}, "y has no class 2, but the head"),
    (linear(4, 3), (X, with_classes(7)), {}, "class 9 has 1 row .* to see any spread; give more"),
]
CLASS_MEAN = [
    *(
        (layer.double(), (X, with_classes(7)), {}, "class 9 has 1 row among the 183 used")
        for layer in (linear(4, 3), OffsetL2(4, 3), low_rank(), DistanceHead(4, 3))
    ),
    (linear(4, 3), (X, with_classes(7, 8, 9)), {"rows": 5}, r"class \d has .* so take more rows"),
    (OffsetL2(4, 3).double(), (SAME, Y), {}, "no spread within 3 clusters"),
    (DistanceHead(4, 3).double(), (SAME, Y), {}, "no spread within 3 clusters"),
    (linear(4, 3), (X, Y[:-1]), {}, r"labels have shape .* for \d+ samples; give one label per"),
    (linear(4, 3), (X, Y.double()), {}, "labels are float64, wanted a tensor of whole numbers"),
    (linear(4, 3), (X, Y[:, None]), {}, r"labels have shape \(\d+, 1\) for"),
    (linear(4, 3), (X, Y.tolist()), {}, "labels are list, wanted a tensor of whole numbers"),
    (linear(4, 3), (X, None), {}, "class_mean wants the classes"),
]
WHITEN = [
    (nn.Conv2d(3, 4, 3), (IMAGES[:, :1],), {}, r"Conv2d of 3 channels wants \[N, 3, H, W\]"),
    (nn.Conv2d(3, 4, 3), (IMAGES[0],), {}, "Conv2d of 3 channels wants"),
    (nn.Conv2d(3, 4, 3), (IMAGES[..., :2],), {}, r"smaller than the kernel \[3, 3\]"),
    (nn.Conv2d(4, 4, 3, groups=2), (HALF_CONSTANT,), {}, "group 1 of 2: the 80 rows are constant"),
    (linear(4, 4), (X[:3],), {}, "a rank of 4 is asked, but the 3 rows .* 2 axes only; .*rank=2"),
    (linear(4, 2), (X * torch.tensor([1.0, 1, 0, 0]),), {"rank": 3}, "a rank of 3 is asked"),
    *(
        (linear(4, 4), (X,), {"rank": n}, r"rank is .*, wanted .* (least 1|most 4)")
        for n in (0, 5, -2, 1.5, True)
    ),
    (linear(4, 3), (X,), {"kind": "zca"}, "zca has an output for each"),
    (linear(4, 4), (X * torch.tensor([1.0, 1, 1, 0]),), {"kind": "zca"}, "vary along 3 axes"),
    (linear(4, 4), (X,), {"kind": "ica"}, "kind is 'ica', wanted"),
    (OffsetL2(4, 3), (X,), {}, "OffsetL2 has prototypes and no rows for whiten; take"),
    (DistanceHead(4, 3), (X,), {}, "DistanceHead has prototypes and no rows for whiten; take"),
    (shared_head(), (X,), {}, r"take initialise\(layer, \(x, y\), 'whiten'\)"),
    *((linear(4, 3), (X,), {"rows": n}, "rows is .*, wanted a whole") for n in (10.5, "all", 0)),
    (linear(4, 3), (X,), {"generator": 3}, "the generator is 3, wanted a torch.Generator, or None"),
    (linear(4, 3), (X,), {"generator": ELSEWHERE}, "the generator is on cuda, wanted one on the"),
    (parametrizations.weight_norm(linear(4, 3)), (X,), {}, "has parametrizations"),
    (nn.Linear(4, 3).half(), (1e-9 * X,), {}, "too large for float16; scale the inputs"),
]
OTHERS = [
    (lsuv_, OffsetL2(4, 3), (X,), {}, "OffsetL2 has prototypes and no rows for lsuv"),
    (kaiming_, linear(4, 3), (), {"generator": ELSEWHERE}, "the generator is on cuda"),
    (sample_point_bias_, linear(4, 3), (X,), {"generator": ELSEWHERE}, "the generator is on cuda"),
]
CASES = [
    *((cluster_pca_, *case) for case in CLUSTER_PCA),
    *((class_mean_, *case) for case in CLASS_MEAN),
    *((whiten_, *case) for case in WHITEN),
    *OTHERS,
]


@pytest.mark.parametrize(("way", "layer", "data", "options", "match"), CASES)
def test_one_layer(way, layer, data, options, match):
    refuses(layer, match, lambda layer: way(layer, *data, **options))


def model(*layers):
    return nn.Sequential(*layers or (linear(4, 3),))


DEEP = linear(4, 8), nn.ReLU(), linear(8, 600), nn.ReLU(), linear(600, 3)
BY_LAYER = {"0": "cluster_pca", "2": "lsuv"}
MODELS = [
    (model(), X, "glorot", {}, "there is no start 'glorot'; known: kaiming"),
    *((model(), X, method, {}, "there is no start") for method in (None, 3, ["whiten"])),
    (model(), X, {}, {"mirror": True}, "name at least one layer"),
    (model(), X, "whiten", {"clusters": 3}, "whiten has no option 'clusters'; it has kind, rank"),
    (model(*DEEP), X, BY_LAYER, {"rank": 2}, "has no option 'rank'"),
    (model(), X, "whiten", {"layers": ["head"]}, "no layer 'head'; those with weights: 0"),
    (model(nn.ReLU()), X, "whiten", {"layers": ["0"]}, "layer '0': ReLU cannot be started"),
    (model(shared_head()), X, "whiten", {"layers": ["0.distance"]}, "is part of the DistanceHead"),
    (model(), None, "whiten", {}, "whiten looks at the data"),
    (model(), X, "class_mean", {}, "layer '0': class_mean wants the classes of the samples"),
    (model(shared_head()), X, "cluster_pca", {}, "DistanceHead wants the classes of the samples"),
    (model(nn.Unflatten(0, (1, -1)), linear(4, 3)), (X, Y), "class_mean", {}, "along the first ax"),
    (model(nn.ReLU()), X, "whiten", {}, "no layer that can be started"),
    (model(linear(4, 3, bias=False)), X, "whiten", {}, "can be started: Linear has no bias"),
    (model(), X, {"0": "whiten"}, {"layers": ["0"]}, "both given"),
    (model(*DEEP), X[:40], "cluster_pca", {}, r"layer '2': .* \(no weights were changed\)"),
    (model(linear(5, 3), nn.BatchNorm1d(3)), X, "whiten", {}, "the model fails on the data"),
]


@pytest.mark.parametrize(("model", "data", "method", "options", "match"), MODELS)
def test_whole_models(model, data, method, options, match):
    refuses(model, match, lambda model: initialise(model, data, method, **options))


@pytest.mark.parametrize(
    ("x", "units", "match"),
    [
        *((torch.zeros(shape), 2, "samples of shape") for shape in ((), (3,), (0, 2), (2, 3, 4))),
        (X, 0, "0 units; give at least 1"),
        (X.long(), 2, r"samples of torch\.int64; give a float dtype"),
    ],
)
def test_kaiming_through_samples(x, units, match):
    with pytest.raises(InputError, match=match):
        kaiming_through_samples(x, units)


@pytest.mark.parametrize("layer", [nn.LazyLinear(3), nn.Linear(4, 3, device="meta")], ids=repr)
def test_weights_that_are_not_there_yet(layer):
    with pytest.raises(InputError, match="has no values yet"):
        whiten_(layer, X)


@settings(deadline=None, max_examples=60)
@given(
    samples=st.integers(1, 12),
    dim=st.integers(1, 4),
    units=st.integers(1, 9),
    distinct=st.integers(1, 4),
    name=st.sampled_from(sorted(METHODS)),
    seed=st.integers(0, 100),
)
def test_any_small_data_either_starts_finite_or_is_refused(
    samples, dim, units, distinct, name, seed
):
    values = torch.randn(distinct, dim, generator=seeded(seed), dtype=torch.float64)
    x = values[torch.randint(distinct, (samples,), generator=seeded(seed))]
    classes = torch.randint(2, (samples,), generator=seeded(seed))
    layer = linear(dim, units)
    before = state_of(layer)
    try:
        STARTS[name](layer, x, classes, generator=seeded(seed))
    except InputError:
        assert same_state(before, state_of(layer))
    else:
        assert all(bool(p.isfinite().all()) for p in layer.parameters())
        assert float(layer(x).abs().max().detach()) < 1e6
