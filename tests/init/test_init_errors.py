"""Bad input is one clear line, and leaves every weight as it was."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starts import (
    LAYERS,
    STARTS,
    fits,
    linear,
    planted,
    same_state,
    seeded,
    start,
    state_of,
)
from torch import nn
from torch.nn.utils import parametrizations

from mahalens.errors import InputError
from mahalens.init import (
    METHODS,
    class_mean_,
    cluster_pca_,
    initialise,
    kaiming_,
    lsuv_,
    sample_point_bias_,
    whiten_,
)
from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2

X, Y = planted(3, 4)
FROM_DATA = [name for name, method in METHODS.items() if method.data]


def refuses(layer, match, start):
    """The start fails with one line that says so, and the layer is as it was."""
    before = state_of(layer)
    with pytest.raises(InputError, match=match) as caught:
        start(layer)
    assert "\n" not in str(caught.value)
    assert same_state(before, state_of(layer), equal_nan=True)


class TestData:
    @pytest.mark.parametrize("name", FROM_DATA)
    @pytest.mark.parametrize("kind", LAYERS)
    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_nan(self, name, kind, bad):
        if not fits(name, kind):
            return
        x = X.clone()
        x[5, 2] = bad
        refuses(
            LAYERS[kind](4, 3, torch.float64),
            "NaN or infinite",
            lambda layer: start(name, layer, x, Y),
        )

    @pytest.mark.parametrize("name", FROM_DATA)
    @pytest.mark.parametrize("kind", LAYERS)
    def test_all_inputs_constant(self, name, kind):
        if not fits(name, kind):
            return
        x = torch.full_like(X, 3.7)
        refuses(
            LAYERS[kind](4, 3, torch.float64),
            r"the \d+ rows are constant in all 4 inputs, so that nothing can be told from them",
            lambda layer: start(name, layer, x, Y),
        )

    @pytest.mark.parametrize("name", FROM_DATA)
    @pytest.mark.parametrize("kind", LAYERS)
    def test_one_constant_input(self, name, kind):
        if not fits(name, kind):
            return
        x = X.clone()
        x[:, 1] = 5.0
        layer = start(name, LAYERS[kind](4, 3, torch.float64), x, Y, generator=seeded())
        assert bool(layer(x).isfinite().all())
        x[:, 1:] = 5.0  # one axis is left, and prototypes with two of them cannot be started
        if "rank" in str(LAYERS[kind](4, 3, torch.float64)) and name in ("cluster_pca", "whiten"):
            refuses(
                LAYERS[kind](4, 3, torch.float64),
                r"2 axes are wanted, but the \d+ rows of 4 inputs vary along fewer within 3",
                lambda layer: start(name, layer, x, Y),
            )

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

    def test_classes_without_spread(self):
        x = Y[:, None].double().expand(-1, 4).contiguous()
        y = Y.clone()
        for layer in (OffsetL2(4, 3).double(), DistanceHead(4, 3).double()):
            refuses(layer, "no spread within 3 clusters", lambda la: class_mean_(la, x, y))

    def test_images_of_another_kind(self):
        layer = nn.Conv2d(3, 4, 3)
        for x in (torch.zeros(5, 1, 8, 8), torch.zeros(3, 8, 8), torch.zeros(2, 3, 8)):
            refuses(
                layer, r"Conv2d of 3 channels wants \[N, 3, H, W\]", lambda la, x=x: whiten_(la, x)
            )
        refuses(
            layer,
            r"smaller than the kernel \[3, 3\]",
            lambda la: whiten_(la, torch.zeros(5, 3, 8, 2)),
        )


class TestCounts:
    def test_more_clusters_than_samples(self):
        refuses(
            linear(4, 8),
            "8 clusters are wanted of 5 samples",
            lambda layer: cluster_pca_(layer, X[:5], clusters=8),
        )
        refuses(
            OffsetL2(4, 9).double(),
            "9 clusters are wanted of 5 samples",
            lambda layer: cluster_pca_(layer, X[:5]),
        )
        refuses(
            Mahalanobis(4, 9, 1).double(),
            "9 clusters are wanted of 5 samples",
            lambda layer: cluster_pca_(layer, X[:5]),
        )

    def test_more_clusters_than_samples_that_differ(self):
        x = X[:3].repeat(10, 1)
        refuses(
            linear(4, 8),
            "5 clusters are wanted of 3 samples that differ",
            lambda layer: cluster_pca_(layer, x, clusters=5),
        )

    def test_too_few_samples_for_the_axes(self):
        refuses(
            linear(4, 8),
            "8 axes are wanted, but the 9 rows of 4 inputs in 4 clusters have only",
            lambda layer: cluster_pca_(layer, X[:9], clusters=4),
        )

    def test_clusters_and_axes_that_are_too_few(self):
        refuses(
            linear(4, 8),
            "2 clusters with 3 axes each give 6 hyperplanes, wanted 8",
            lambda layer: cluster_pca_(layer, X, clusters=2, axes=3),
        )

    @pytest.mark.parametrize("option", ["clusters", "axes"])
    @pytest.mark.parametrize("value", [0, -1, 2.5, "3", True])
    def test_counts_that_are_none(self, option, value):
        refuses(
            linear(4, 8),
            f"{option} is .*, wanted a whole number of at least 1",
            lambda layer: cluster_pca_(layer, X, **{option: value}),
        )

    def test_clusters_beside_classes(self):
        refuses(
            linear(4, 8),
            "clusters is 2, but y has 3 classes",
            lambda layer: cluster_pca_(layer, X, Y, clusters=2),
        )

    def test_too_few_samples_for_the_rank(self):
        refuses(
            linear(4, 4),
            "a rank of 4 is asked, but the 3 rows of 4 inputs vary along 2 axes only; .*rank=2",
            lambda layer: whiten_(layer, X[:3]),
        )
        refuses(
            linear(4, 2),
            "a rank of 3 is asked",
            lambda layer: whiten_(layer, X * torch.tensor([1.0, 1.0, 0.0, 0.0]), rank=3),
        )

    @pytest.mark.parametrize("rank", [0, 5, -2, 1.5, True])
    def test_no_rank(self, rank):
        refuses(
            linear(4, 4),
            "rank is .*, wanted a whole number from 1 to 4",
            lambda layer: whiten_(layer, X, rank=rank),
        )

    def test_zca_needs_a_unit_and_a_spread_for_each_input(self):
        refuses(linear(4, 3), "zca has an output for each", lambda la: whiten_(la, X, kind="zca"))
        x = X * torch.tensor([1.0, 1.0, 1.0, 0.0])
        refuses(linear(4, 4), "vary along 3 axes", lambda la: whiten_(la, x, kind="zca"))
        refuses(linear(4, 4), "kind is 'ica', wanted", lambda la: whiten_(la, X, kind="ica"))


class TestClasses:
    @pytest.mark.parametrize("start", [class_mean_, cluster_pca_])
    def test_a_class_with_one_sample(self, start):
        y = Y.clone()
        y[7] = 9
        refuses(
            linear(4, 3),
            "class 9 has 1 row among the 183 used, wanted at least 2 .* give more",
            lambda la: start(la, X, y),
        )
        for layer in (OffsetL2(4, 3), Mahalanobis(4, 3, 1), DistanceHead(4, 3)):
            refuses(layer, "class 9 has 1 row", lambda la: start(la, X.float(), y))

    def test_a_class_that_the_rows_drawn_have_lost(self):
        y = Y.clone()
        y[7:10] = 9
        refuses(
            linear(4, 3),
            r"class \d has [01] row among the 5 used, .* it has \d+ in all, so take more rows",
            lambda la: class_mean_(la, X, y, rows=5),
        )
        class_mean_(linear(4, 3), X, y, rows=None)

    @pytest.mark.parametrize(
        ("y", "match"),
        [
            (Y[:-1], r"x has \d+ samples and y \d+ classes"),
            (Y.double(), r"y is torch\.float64 .* wanted whole numbers \[N\]"),
            (Y[:, None], r"y is torch\.int64 \[\d+, 1\], wanted whole numbers"),
            (Y.tolist(), "y is list, wanted whole numbers"),
        ],
        ids=["fewer", "float", "column", "list"],
    )
    def test_no_classes_of_the_samples(self, y, match):
        refuses(linear(4, 3), match, lambda layer: class_mean_(layer, X, y))

    def test_none(self):
        refuses(linear(4, 3), "class_mean wants the classes", lambda la: class_mean_(la, X, None))


class TestLayers:
    @pytest.mark.parametrize("name", METHODS)
    @pytest.mark.parametrize(
        "layer",
        [nn.ReLU(), nn.Embedding(4, 4), nn.ConvTranspose2d(4, 4, 2), nn.Bilinear(4, 4, 2)],
        ids=lambda layer: type(layer).__name__,
    )
    def test_other_layers(self, name, layer):
        match = f"{type(layer).__name__} cannot be started; wanted nn.Linear"
        refuses(layer, match, lambda la: STARTS[name](la, X, Y))

    @pytest.mark.parametrize("name", METHODS)
    def test_without_a_bias(self, name):
        layer = linear(4, 3, bias=False)
        if METHODS[name].places:
            match = f"Linear has no bias, which {name} places its hyperplanes with; .*kaiming, lsuv"
            refuses(layer, match, lambda la: STARTS[name](la, X, Y))
        else:
            STARTS[name](layer, X, Y)

    @pytest.mark.parametrize("start", [whiten_, lsuv_])
    def test_prototypes_have_no_rows(self, start):
        refuses(OffsetL2(4, 3), "OffsetL2 has prototypes and no rows", lambda la: start(la, X))
        refuses(DistanceHead(4, 3), "DistanceHead has prototypes", lambda la: start(la, X))

    def test_options_that_prototypes_do_not_have(self):
        for given_ in ({"axes": 2}, {"mirror": True}):
            refuses(
                OffsetL2(4, 3),
                f"cluster_pca for OffsetL2 has no option '{next(iter(given_))}'",
                lambda la, given_=given_: cluster_pca_(la, X, **given_),
            )
        refuses(OffsetL2(4, 3), "has 3 prototypes", lambda la: cluster_pca_(la, X, clusters=2))

    def test_groups(self):
        x = torch.randn(5, 4, 6, 6)
        x[:, 2:] = 1.0
        refuses(
            nn.Conv2d(4, 4, 3, groups=2),
            "group 1 of 2: the 80 rows are constant in all 18 inputs",
            lambda la: whiten_(la, x),
        )

    @pytest.mark.parametrize("given_", [{"rows": 10.5}, {"rows": "all"}, {"rows": True}])
    def test_no_number_of_rows(self, given_):
        refuses(linear(4, 3), "rows is .*, wanted a whole", lambda la: whiten_(la, X, **given_))

    def test_no_generator(self):
        refuses(
            linear(4, 3),
            "the generator is 3, wanted a torch.Generator, or None",
            lambda la: whiten_(la, X, generator=3),
        )

    def test_weights_that_are_computed(self):
        layer = parametrizations.weight_norm(nn.Linear(4, 3))
        refuses(layer, "has parametrizations", lambda la: whiten_(la, X.float()))

    def test_weights_that_are_not_there_yet(self):
        for layer in (nn.LazyLinear(3), nn.Linear(4, 3, device="meta")):
            with pytest.raises(InputError, match="has no values yet"):
                whiten_(layer, X)

    def test_weights_too_large_for_their_dtype(self):
        refuses(
            nn.Linear(4, 3, dtype=torch.float16),
            "too large for float16; scale the inputs",
            lambda layer: whiten_(layer, 1e-9 * X),
        )


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
    labels = torch.randint(2, (samples,), generator=seeded(seed))
    layer = linear(dim, units)
    before = state_of(layer)
    refused = False
    try:
        STARTS[name](layer, x, labels, generator=seeded(seed))
    except InputError as error:
        refused = len(str(error).splitlines()) == 1
    if refused:
        assert same_state(before, state_of(layer))
    else:
        assert all(bool(p.isfinite().all()) for p in layer.parameters())
        assert float(layer(x).abs().max().detach()) < 1e6


class TestWholeModels:
    def test_unknown_method(self):
        model = nn.Sequential(linear(4, 3))
        refuses(
            model,
            "there is no start 'glorot'; known: kaiming",
            lambda m: initialise(m, X, "glorot"),
        )

    @pytest.mark.parametrize("method", [None, 3, ["whiten"]])
    def test_no_method(self, method):
        refuses(nn.Sequential(linear(4, 3)), "no start", lambda m: initialise(m, X, method))

    def test_no_methods(self):
        refuses(
            nn.Sequential(linear(4, 3)),
            "name at least one layer",
            lambda m: initialise(m, X, {}, mirror=True),
        )

    def test_unknown_option(self):
        model = nn.Sequential(linear(4, 3))
        refuses(
            model,
            "whiten has no option 'clusters'; it has kind, rank, mirror",
            lambda m: initialise(m, X, "whiten", clusters=3),
        )

    def test_options_of_several_methods(self):
        model = nn.Sequential(linear(4, 8), nn.ReLU(), linear(8, 3))
        ways = {"0": "cluster_pca", "2": "lsuv"}
        assert initialise(model, X, ways, mirror=True).started == ways
        refuses(model, "has no option 'rank'", lambda m: initialise(m, X, ways, rank=2))

    def test_unknown_layer(self):
        model = nn.Sequential(linear(4, 3), nn.ReLU())
        refuses(
            model,
            "no layer 'head'; those with weights: 0",
            lambda m: initialise(m, X, "whiten", layers=["head"]),
        )
        refuses(
            model,
            "layer '1': ReLU cannot be started",
            lambda m: initialise(m, X, "whiten", layers=["1"]),
        )

    def test_no_data(self):
        refuses(
            nn.Sequential(linear(4, 3)),
            "whiten looks at the data",
            lambda m: initialise(m, None, "whiten"),
        )

    def test_no_classes(self):
        refuses(
            nn.Sequential(linear(4, 3)),
            "layer '0': class_mean wants the classes of the samples",
            lambda m: initialise(m, X, "class_mean"),
        )

    def test_nothing_to_start(self):
        refuses(
            nn.Sequential(nn.ReLU()),
            "no layer that can be started",
            lambda m: initialise(m, X, "whiten"),
        )
        refuses(
            nn.Sequential(linear(4, 3, bias=False)),
            "no layer that can be started: Linear has no bias",
            lambda m: initialise(m, X, "whiten"),
        )

    def test_layers_twice(self):
        refuses(
            nn.Sequential(linear(4, 3)),
            "both given",
            lambda m: initialise(m, X, {"0": "whiten"}, layers=["0"]),
        )

    def test_an_error_in_a_late_layer_puts_the_first_ones_back(self):
        model = nn.Sequential(linear(4, 8), nn.ReLU(), linear(8, 600), nn.ReLU(), linear(600, 3))
        refuses(
            model,
            r"layer '2': .* \(no weights were changed\)",
            lambda m: initialise(m, X[:40], "cluster_pca"),
        )

    def test_a_model_that_fails_on_the_data(self):
        refuses(
            nn.Sequential(linear(5, 3)),
            "the model fails on the data",
            lambda m: initialise(m, X, "whiten"),
        )


def test_generators_are_of_the_cpu():
    class Elsewhere:
        device = torch.device("cuda")

    for way in (kaiming_, lambda la, generator: sample_point_bias_(la, X, generator=generator)):
        refuses(
            linear(4, 3),
            "the generator is on cuda, wanted one on the CPU",
            lambda la, way=way: way(la, generator=Elsewhere()),
        )
