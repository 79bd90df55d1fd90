"""Data sets as values: what is refused, how they are drawn, split and scaled."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
import torch
from data_helpers import RNG, refusal, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from mahalens.data import LabelledData
from mahalens.data.dataset import Samples, held_out, standardise
from mahalens.errors import InputError


def small(labels, test_labels=(0,), **changed):
    """Data whose single pixel is the number of the sample."""
    values = {
        "name": "small",
        "x": torch.arange(len(labels), dtype=torch.float32)[:, None],
        "y": torch.tensor(labels),
        "test_x": torch.zeros(len(test_labels), 1),
        "test_y": torch.tensor(test_labels),
        "image_shape": None,
        "largest": 255.0,
        "source": "typed",
    }
    return LabelledData(**(values | changed))


class TestSubset:
    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.integers(0, 6), min_size=1, max_size=90), st.data())
    def test_draws_samples_of_the_data_in_the_shares_of_the_classes(self, labels, choice):
        data = small(labels, [labels[0]])
        n = choice.draw(st.integers(len(set(labels)), len(labels)))
        drawn = data.subset(n, seeded(choice.draw(st.integers(0, 9))))
        numbers = drawn.x[:, 0].long().tolist()
        assert numbers == sorted(set(numbers))  # each at most once, in order
        assert drawn.y.tolist() == [labels[number] for number in numbers]
        assert len(drawn.y) == n
        assert set(drawn.y.tolist()) == set(labels)
        assert drawn.test_x is data.test_x
        assert drawn.test_y is data.test_y
        assert drawn.classes == data.classes
        # a class may exceed its share only by rounding, or because every class keeps one sample
        sizes, counts = Counter(labels), Counter(drawn.y.tolist())
        exact = {label: n * size / len(labels) for label, size in sizes.items()}
        for label, share in exact.items():
            assert 1 <= counts[label] < share + 1
            assert counts[label] > share - 1 or min(exact.values()) < 1
        # no sample moved from one class to another brings the shares closer
        for giver in exact:
            for taker in exact:
                if giver != taker and counts[giver] > 1 and counts[taker] < sizes[taker]:
                    surplus = counts[giver] - exact[giver] - (counts[taker] - exact[taker])
                    assert surplus <= 1 + 1e-9

    @pytest.mark.parametrize(
        ("sizes", "n", "counts"),
        [
            ([60, 30, 10], 50, [30, 15, 5]),
            ([60, 30, 10], 3, [1, 1, 1]),
            # exact shares 2.7, 2.5 and three of 0.3, which are raised to 1
            ([10, 9, 1, 1, 1], 6, [2, 1, 1, 1, 1]),
            ([0, 3, 0, 2], 2, [0, 1, 0, 1]),  # labels without samples
        ],
    )
    def test_shares(self, sizes, n, counts):
        labels = [label for label, size in enumerate(sizes) for _ in range(size)]
        drawn = small(labels, [labels[0]]).subset(n, seeded(0))
        assert torch.bincount(drawn.y).tolist() == counts
        assert drawn.source == f"typed, {n} of {sum(sizes)} training samples drawn at random"
        assert (drawn.name, drawn.largest, drawn.classes) == ("small", 255, len(sizes))

    def test_all_is_the_same_and_one_seed_is_one_subset(self):
        data = small([2, 0, 1, 1, 0] * 10)
        assert data.subset(50, seeded(0)).x.equal(data.x)
        first, again, other = (data.subset(20, seeded(seed)).x for seed in (1, 1, 2))
        assert first.equal(again)
        assert not first.equal(other)

    @pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16])
    def test_numbers_of_numpy_do_not_overflow(self, kind):
        data = small([0, 1, 1] * 100)
        assert data.subset(kind(100), seeded(0)).x.equal(data.subset(100, seeded(0)).x)

    def test_every_sample_is_as_likely(self):
        data, generator = small([0] * 8 + [1] * 4), seeded(0)
        times = Counter()
        for _ in range(600):
            times.update(data.subset(6, generator).x[:, 0].long().tolist())
        # binomial with a half: standard deviation 12
        assert all(abs(times[number] - 300) < 62 for number in range(12))

    @pytest.mark.parametrize("n", [1, 2, 7, 100])
    def test_too_few_or_too_many(self, n):
        text = refusal(small([0, 1, 2, 0, 1, 2]).subset, n, seeded(0))
        assert text.startswith(f"n is {n}, wanted at least 3, ")
        assert "and at most 6" in text

    @pytest.mark.parametrize("n", [0, -1, 2.0, True])
    def test_asks_for_a_number(self, n):
        assert f"n is {n!r}, wanted a whole number" in refusal(small([0]).subset, n, seeded(0))


class TestSplit:
    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.sampled_from([0.1, 0.3, 0.5]))
    def test_held_out_takes_a_share_of_each_class(self, labels, share):
        y = torch.tensor(labels)
        test = held_out(y, share, seeded(0))
        for label, size in Counter(labels).items():
            wanted = min(int(share * size), size - 1)
            assert int(test[y == label].sum()) == wanted

    def test_resplit_keeps_all_samples_and_draws_anew(self):
        data = small([0] * 10 + [1] * 6, [1, 0, 1, 0], test_x=torch.arange(16.0, 20)[:, None])
        first, again, other = (data.resplit(0.3, seeded(seed)) for seed in (0, 0, 1))
        assert first.test_x.equal(again.test_x)
        assert not first.test_x.equal(other.test_x)
        both = torch.cat((first.x, first.test_x))[:, 0]
        assert sorted(both.tolist()) == list(range(20))
        labels = torch.cat((data.y, data.test_y))
        assert torch.cat((first.y, first.test_y)).equal(labels[both.long()])
        assert torch.bincount(first.test_y).tolist() == [3, 2]

    def test_standardise_is_scikit_learns(self):
        x, other = RNG.normal(3, 5, (50, 4)), RNG.normal(size=(7, 4))
        x[:, 2] = 0.1  # constant: becomes 0, not noise
        scaler = StandardScaler().fit(x)
        scaled, scaled_other = standardise(torch.from_numpy(x), torch.from_numpy(other))
        np.testing.assert_allclose(scaled, scaler.transform(x), rtol=1e-5, atol=1e-6)
        wanted = scaler.transform(other)
        wanted[:, 2] = 0
        np.testing.assert_allclose(scaled_other, wanted, rtol=1e-5, atol=1e-6)

    def test_pixels_are_standardised_as_one(self):
        pixels = torch.from_numpy(RNG.normal(2, 3, (20, 4)))
        plain = small([0, 1] * 10, x=pixels, test_x=pixels[:1] * 2)
        image = dataclasses.replace(plain, image_shape=(2, 2)).standardised()
        wanted = (pixels - pixels.mean()) / pixels.std(correction=0)
        torch.testing.assert_close(image.x, wanted.float())
        assert (image.x.dtype, image.largest) == (torch.float32, float(image.x.abs().max()))
        features = plain.standardised()
        assert features.x.equal(standardise(pixels, pixels)[0])
        assert features.test_x.equal(standardise(pixels, pixels[:1] * 2)[1])

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (small([0, 0]), "has one class; there is nothing to tell apart"),
            (small([0, 2]), "no training sample has the label 1, and there are labels up to 2;"),
            (small([0, 2], [1]), "the label 1, and there are labels up to 2; test samples have it"),
            (small([0, 1], x=torch.ones(2, 1)), "all values are equal; nothing can be learned"),
        ],
    )
    def test_nothing_to_learn(self, data, text):
        assert text in refusal(data.require_learnable, "--data mine", start="--data mine: ")
        assert small([0, 1]).require_learnable("--data mine") is None


class TestLabelledData:
    def test_scaled(self):
        data = small([0] * 256)
        scaled = data.scaled()
        assert (scaled.x.max(), scaled.largest, scaled.x.dtype) == (1, 1, torch.float32)
        assert scaled.x.equal(data.x / 255)
        assert scaled.test_x.equal(data.test_x / 255)
        assert scaled.y is data.y
        assert scaled.scaled().x.equal(scaled.x)
        assert data.x.max() == 255  # the given data stay

    def test_is_shown_in_one_line_and_cannot_be_changed(self):
        data = small([0, 1, 1])
        assert repr(data) == (
            "LabelledData('small', 3 + 1 samples, inputs=1, classes=2, largest=255)"
        )
        with pytest.raises(dataclasses.FrozenInstanceError):
            data.name = "other"

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"x": [[1.0]]}, "x is a list, wanted a torch tensor"),
            ({"x": torch.ones(2, 1, dtype=torch.uint8)}, "x is uint8, wanted float32"),
            ({"x": torch.ones(2, 1, 1)}, "x has shape [2, 1, 1], wanted [N, D]"),
            ({"x": torch.ones(3, 1)}, "x has 3 samples but y has 2 labels; give one label per"),
            ({"x": torch.tensor([[1.0], [math.nan]])}, "x has 1 value"),
            ({"x": torch.ones(0, 1)}, "x has shape [0, 1]"),
            ({"y": [0, 1]}, "y is a list, wanted a torch tensor"),
            ({"y": torch.tensor([0.0, 1.0])}, "y is float32 of shape [2], wanted int64 [N]"),
            ({"y": torch.tensor([[0], [1]])}, "y is int64 of shape [2, 1]"),
            ({"y": torch.tensor([0, -1])}, "y has the label -1, wanted labels from 0 on"),
            ({"test_x": torch.ones(1, 2)}, "test_x has 2 inputs but x has 1; give both"),
            ({"test_x": torch.ones(1, 1).double()}, "test_x is float64 and x float32"),
            ({"test_x": torch.ones(2, 1)}, "test_x has 2 samples but test_y has 1 labels"),
            ({"test_y": torch.tensor([2])}, "test_y has the label 2, wanted 0 to 1"),
            ({"test_y": torch.tensor([-1])}, "test_y has the label -1"),
            ({"image_shape": (2, 2)}, "image_shape is (2, 2), wanted a shape of 1 pixels"),
            ({"largest": 0.0}, "largest is 0.0, wanted a positive number"),
            ({"largest": math.nan}, "largest is nan, wanted a positive number"),
            ({"largest": math.inf}, "largest is inf, wanted a positive number"),
        ],
    )
    def test_refused(self, changed, words):
        assert refusal(small, [0, 1], **changed).startswith(words)


class TestSamples:
    def test_of_a_data_set(self):
        data = small([0, 1, 1], [1, 0], image_shape=(1, 1))
        for split, x, y in (
            ("train", data.x, data.y),
            ("test", data.test_x, data.test_y),
            ("all", torch.cat((data.x, data.test_x)), torch.cat((data.y, data.test_y))),
        ):
            samples = data.samples(split, "raw")
            assert samples.x.equal(x)
            assert samples.y.equal(y)
            assert samples.source == f"typed, {split} samples, raw pixels"
            assert (samples.classes, samples.image) == (("0", "1"), (1, 1))

    def test_shapes(self):
        samples = Samples(torch.rand(4, 64), torch.arange(4), tuple("0123"), (8, 8), "typed")
        assert repr(samples) == "Samples(4 of shape [64], 4 classes, image (8, 8))"
        image = samples.reshaped((1, 8, 8))
        assert image.shape == (1, 8, 8)
        assert image.x.flatten(1).equal(samples.x)
        assert image.first(2).x.equal(image.x[:2])
        assert image.first(2).y.tolist() == [0, 1]
        assert "[64] cannot take the shape [1, 28, 28]: 64 val" in refusal(
            samples.reshaped, (1, 28, 28)
        )
        assert "cannot take the shape" in refusal(samples.reshaped, (-8, -8))

    def test_drawn(self):
        samples = Samples(torch.arange(50.0)[:, None], torch.arange(50), ("a",), None, "typed")
        some, again, other = (samples.drawn(20, seed) for seed in (0, 0, 1))
        numbers = some.x[:, 0].long().tolist()
        assert numbers == sorted(set(numbers)) == some.y.tolist()
        assert some.x.equal(again.x)
        assert not some.x.equal(other.x)
        assert some.source == "typed, 20 of 50 drawn at random"
        for limit in (None, 50, 80):
            assert samples.drawn(limit, 0) is samples

    def test_refused(self):
        assert "no samples" in refusal(Samples, torch.zeros(0, 2), None, (), None, "")
        with pytest.raises(InputError, match="x has 2 samples but y has 1 labels"):
            Samples(torch.zeros(2, 2), torch.zeros(1), (), None, "")
