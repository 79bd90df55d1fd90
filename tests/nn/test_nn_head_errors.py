"""What a head refuses: one line that says what to do, and nothing changed by it."""

import math

import numpy as np
import pytest
import torch

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.nn import Chain, DistanceHead, Mahalanobis, PointSlope

METRICS = [
    {"metric": "euclidean"},
    {"metric": "diagonal"},
    {"metric": "low-rank", "rank": 2},
    {"metric": "shared", "rank": 2},
]


def data(samples=60):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % 3
    x = torch.randn(samples, 4, generator=generator)
    return x + 0.7 * y[:, None], y


@pytest.fixture(params=METRICS, ids=lambda c: c["metric"])
def head(request):
    """A head with everything set, so that whatever is touched by an error shows."""
    x, y = data()
    head = DistanceHead(4, 3, **request.param).fit_prototypes(x, y)
    head.calibrate(x, y)
    head.set_reject(x, 0.1)
    return head


def refused(head, message, method, *arguments, error=InputError, **options):
    """The method raises one line that starts with the message and leaves the head alone."""
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    with pytest.raises(error) as caught:
        getattr(head, method)(*arguments, **options)
    said = str(caught.value)
    assert said.startswith(message), said
    assert len(said.splitlines()) == 1
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    return said


class TestFitting:
    @pytest.mark.parametrize("count", [0, 1])
    def test_a_class_with_too_few_samples(self, head, count):
        x, y = data()
        keep = (y != 1) | (torch.cumsum(y == 1, 0) <= count)
        number = ["no samples", "1 sample"][count]
        message = f"class 1 of 3 has {number}, wanted at least 2 of each to see its spread; give"
        refused(head, message, "fit_prototypes", x[keep], y[keep])

    def test_the_last_class_missing(self, head):
        x, y = data()
        keep = y != 2
        refused(head, "class 2 of 3 has no samples", "fit_prototypes", x[keep], y[keep])

    @pytest.mark.parametrize("ridge", [0.0, 0.1])
    def test_constant_features(self, head, ridge):
        x, y = data()
        refused(
            head,
            "class 0 has 20 samples that are all the same, so it has no spread",
            "fit_prototypes",
            torch.ones_like(x),
            y,
            ridge=ridge,
            error=SingularCovarianceError,
        )
        x[y == 2] = 7.0  # one class only
        refused(head, "class 2 has 20 samples that are all", "fit_prototypes", x, y, ridge=ridge)

    def test_one_constant_input(self):
        x, y = data()
        x[:, 1] = 5.0
        diagonal = DistanceHead(4, 3, metric="diagonal")
        said = refused(diagonal, "class 0 has no spread along input 1", "fit_prototypes", x, y)
        assert said.endswith("drop that input, or pass ridge=1e-6 or more")
        diagonal.fit_prototypes(x, y, ridge=1e-3)
        for choice in METRICS[::2]:
            DistanceHead(4, 3, **choice).fit_prototypes(x, y)

    def test_more_axes_than_the_data_have(self):
        x, y = data(6)
        low = DistanceHead(4, 3, metric="low-rank", rank=3)
        refused(low, "class 0: rank 3 is more than the 1 of 4", "fit_prototypes", x, y)

    @pytest.mark.parametrize("ridge", [-0.1, math.nan, math.inf, None, "0.1"])
    def test_ridge(self, head, ridge):
        refused(head, "ridge is", "fit_prototypes", *data(), ridge=ridge)

    @pytest.mark.parametrize("shrinkage", [-0.1, 1.5, "oas", None])
    def test_shrinkage(self, head, shrinkage):
        refused(head, "shrinkage is", "fit_prototypes", *data(), shrinkage=shrinkage)


class TestLabels:
    @pytest.mark.parametrize("method", ["fit_prototypes", "calibrate"])
    def test_labels(self, head, method):
        x, y = data()
        refused(head, "label 3 is not one of the classes; labels are from 0 to 2", method, x, y + 1)
        refused(head, "label -1 is not one of the classes", method, x, y - 1)
        refused(head, "labels are float32, wanted a tensor of whole", method, x, y.float())
        refused(head, "labels are list, wanted a tensor of whole", method, x, y.tolist())
        refused(head, "labels have shape (59,) for 60 samples", method, x, y[1:])
        refused(head, "labels have shape (60, 1) for 60 samples", method, x, y[:, None])

    def test_all_right(self, head):
        x = head.prototypes.detach()
        said = refused(head, "all 3 samples are right, so that no", "calibrate", x, torch.arange(3))
        assert "which training has not seen" in said

    def test_all_wrong(self, head):
        x, _ = data()
        worst = head(x).argmin(1)
        said = refused(head, "the labels of 60 samples have no better", "calibrate", x, worst)
        assert said.endswith("check the labels, or train first")


FEATURES = {
    "fit_prototypes": lambda x: (x, torch.arange(len(x)) % 3),
    "calibrate": lambda x: (x, torch.arange(len(x)) % 3),
    "set_reject": lambda x: (x, 0.1),
    "predict": lambda x: (x,),
    "assess": lambda x: (x,),
    "ood_score": lambda x: (x,),
}


SETTING = ("fit_prototypes", "calibrate", "set_reject")  # of no samples nothing can be learned


@pytest.mark.parametrize("method", FEATURES)
class TestFeatures:
    def test_another_width(self, head, method):
        said = refused(
            head,
            "DistanceHead of 4 inputs was given features of shape (60, 5)",
            method,
            *FEATURES[method](torch.zeros(60, 5)),
        )
        assert said.endswith("give [N, 4]" + " with N at least 1" * (method in SETTING))

    @pytest.mark.parametrize("shape", [(4,), (0, 4), (2, 3, 4)], ids=str)
    def test_shape(self, head, method, shape):
        if shape == (0, 4) and method not in SETTING:
            found = getattr(head, method)(torch.zeros(shape))
            assert len(found.labels if method == "assess" else found) == 0
            return
        refused(
            head,
            "DistanceHead of 4 inputs was given features of shape",
            method,
            *FEATURES[method](torch.zeros(shape)),
        )

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_not_finite(self, head, method, bad):
        x, _ = data()
        x[7, 2] = bad
        refused(
            head,
            "features has 1 value(s) of 240 that are NaN or infinite, the first at [7, 2]",
            method,
            *FEATURES[method](x),
        )

    def test_kind(self, head, method):
        x, _ = data()
        refused(head, "features are a tensor of int64", method, *FEATURES[method](x.round().long()))
        refused(head, "features are a list", method, *FEATURES[method](x.tolist()))


class TestHalfPrecision:
    @pytest.mark.parametrize("choice", METRICS, ids=lambda c: c["metric"])
    @pytest.mark.parametrize("scale", [1e-7, 1e7])
    def test_spreads_that_its_dtype_cannot_hold(self, choice, scale):
        x, y = data()
        narrow = DistanceHead(4, 3, dtype=torch.float16, **choice)
        message = "the spreads or means of these features are too small or too large for float16"
        if scale > 1 or "rank" not in choice:  # spreads of 1e-7 are held by their logarithm
            refused(narrow, message, "fit_prototypes", scale * x, y)


class TestReject:
    @pytest.mark.parametrize("rate", [0, 1, 0.0, 1.0, -0.1, 5, math.nan, True, "0.1", None])
    def test_rate(self, head, rate):
        refused(head, f"reject rate is {rate!r}, wanted a number between 0 and 1", "set_reject",
                data()[0], rate)  # fmt: skip

    def test_too_few_samples_for_the_rate(self, head):
        message = "a reject rate of 0.01 cannot be told from 60 samples; give at least 99, or a"
        refused(head, message, "set_reject", data()[0], 0.01)
        message = "a reject rate of 0.02 cannot be told from "
        said = refused(head, message, "set_reject", data()[0], 0.02, per_class=True)
        assert "samples nearest to class" in said

    def test_a_class_that_nothing_is_nearest_to(self, head):
        x, _ = data()
        near = x[head.distances(x).argmin(1) != 1]
        message = "a reject rate of 0.5 cannot be told from 0 samples nearest to class 1"
        refused(head, message, "set_reject", near, 0.5, per_class=True)

    @pytest.mark.parametrize("choice", METRICS, ids=lambda c: c["metric"])
    @pytest.mark.parametrize("method", ["predict", "assess"])
    def test_predict_before_set_reject(self, choice, method):
        fresh = DistanceHead(4, 3, **choice)
        said = refused(fresh, "this head has no reject threshold; call set_reject(features, rate)",
                       method, data()[0])  # fmt: skip
        assert "argmax" in said

    def test_distances_that_overflow(self):
        head = DistanceHead(4, 3, metric="diagonal", dtype=torch.float64)
        far = torch.full((30, 4), 1e250, dtype=torch.float64)
        refused(head, "distances has 90 value(s) of 90", "set_reject", far, 0.1)
        refused(head, "distances has 90 value(s)", "calibrate", far, torch.arange(30) % 3)


class TestArrays:
    @pytest.mark.parametrize("choice", METRICS, ids=lambda c: c["metric"])
    def test_are_taken_as_tensors_are(self, choice):
        x, y = data()
        heads = [DistanceHead(4, 3, **choice) for _ in range(2)]
        for head, given in zip(heads, (x, x.double().numpy()), strict=True):
            head.fit_prototypes(x if head is heads[0] else x.numpy(), y.numpy())
            head.calibrate(given, y.numpy().astype(np.uint8))
            head.set_reject(given, 0.1)
        one, other = (dict(head.state_dict()) for head in heads)
        for name in one:
            torch.testing.assert_close(one[name], other[name])
        for method in ("predict", "ood_score", "distances"):
            array, tensor = x.double().numpy(), x.float()
            found, wanted = getattr(heads[0], method)(array), getattr(heads[0], method)(tensor)
            torch.testing.assert_close(found, wanted)
            assert found.dtype == wanted.dtype

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            (np.full((2, 4), np.nan), "features has 8 value(s) of 8 that are NaN"),
            (np.full((2, 4), 1e60), "features has values too large for float32; scale them"),
            (np.zeros((2, 3)), "DistanceHead of 4 inputs was given features of shape (2, 3)"),
            (np.zeros((2, 4), dtype=complex), "features is an array of complex128, wanted real"),
            (np.array([["a"] * 4]), "features is an array of <U1, wanted real"),
        ],
    )
    def test_that_are_none_of_numbers(self, features, message):
        refused(DistanceHead(4, 3), message, "ood_score", features)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (np.zeros(60), "labels are an array of float64, wanted whole numbers"),
            (np.full(60, 2**63, dtype=np.uint64), "labels have 9223372036854775808, wanted"),
            (np.zeros(59, dtype=int), "labels have shape (59,) for 60 samples"),
            (np.full(60, 3), "label 3 is not one of the classes"),
        ],
    )
    def test_that_are_no_labels(self, labels, message):
        refused(DistanceHead(4, 3), message, "fit_prototypes", data()[0].numpy(), labels)


class TestMaking:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: DistanceHead(10**6, 10**7), "OffsetL2(1000000, 10000000): would take 80,000"),
            (lambda: Mahalanobis(10**5, 10**4, 10**3), "Mahalanobis(100000, 10000, 1000): would"),
            (lambda: PointSlope(10**6, 10**7), "PointSlope(1000000, 10000000): would take"),
            (
                lambda: Chain.parse("Linear(4), Linear(99999999999)", inputs=2).build(),
                "Linear(99999999999): would take 1,600 GB of memory and",
            ),
        ],
    )
    def test_more_parameters_than_memory(self, make, message):
        with pytest.raises(InputError) as error:
            make()
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)

    def test_of_any_size_where_none_is_taken(self):
        assert DistanceHead(10**6, 10**7, device="meta").prototypes.is_meta

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"inputs": 0}, "DistanceHead with 0 inputs; give at least 1"),
            ({"classes": 0}, "DistanceHead with 0 classes; give at least 1"),
            (
                {"metric": "cosine"},
                "unknown metric 'cosine' of DistanceHead; known: euclidean, diagonal, low-rank, "
                "shared",
            ),
            (
                {"logits": "softmax"},
                "unknown logits 'softmax' of DistanceHead; known: distance, squared, density",
            ),
            ({"metric": "low-rank"}, "metric 'low-rank' needs a rank; give one from 1 to 4"),
            ({"metric": "shared"}, "metric 'shared' needs a rank; give one from 1 to 4"),
            (
                {"metric": "low-rank", "rank": 5},
                "Mahalanobis of rank 5 on 4 inputs; give a rank from 1 to 4",
            ),
            (
                {"rank": 2},
                "metric 'euclidean' takes no rank or remainder; leave them out, or take "
                'metric="low-rank"',
            ),
        ],
    )
    def test_arguments(self, options, message):
        with pytest.raises(InputError) as caught:
            DistanceHead(**{"inputs": 4, "classes": 3, **options})
        assert str(caught.value) == message

    def test_forward(self, head):
        for shape in ((), (5,), (6, 5), (2, 3, 5)):
            refused(head, "DistanceHead of 4 inputs was given features of", "forward",
                    torch.zeros(shape))  # fmt: skip
