"""DistanceHead: closed forms, temperature, the reject option, and what it refuses."""

import copy
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import LOGITS, METRICS, draw, refuses
from modules import head as formula
from safetensors import SafetensorError
from safetensors.torch import save_file
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB
from torch import nn
from torch.nn import functional

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2, Prediction
from mahalens.nn.head import best_temperature, reject_threshold

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "heads.md"


def data(samples=90, inputs=4, classes=3, seed=0, dtype=torch.float64, apart=2.0):
    """Classes of unlike shapes, near enough to be taken for each other now and then."""
    y = torch.arange(samples) % classes
    mixing = draw((classes, inputs, inputs), seed + 1)
    x = torch.einsum("nd,nde->ne", draw((samples, inputs), seed), mixing[y])
    return (x + apart * draw((classes, inputs), seed + 2)[y]).to(dtype), y


def fitted(choice, samples=90, dtype=torch.float64, apart=2.0, **options):
    """A head fitted to data, and the data."""
    x, y = data(samples, dtype=dtype, apart=apart)
    kind = {"normalise": "none", **choice, **options}
    return DistanceHead(4, 3, dtype=dtype, **kind).fit_prototypes(x, y), x, y


def is_calibrated(head):
    return not (
        head.temperature == 1
        and bool(head.threshold.isnan().all())
        and bool(head.reject_rate.isnan())
    )


@pytest.fixture(params=METRICS, ids=lambda c: "-".join(map(str, c.values())))
def choice(request):
    return request.param


@pytest.fixture(params=LOGITS)
def logits(request):
    return request.param


class TestLogits:
    def test_are_those_of_the_formula(self, choice, logits):
        head, x, _ = fitted(choice, logits=logits)
        torch.testing.assert_close(head(x), formula(x, head.state_dict(), logits))
        before = head(x)
        head.temperature.fill_(4.0)
        torch.testing.assert_close(head(x), before / 4)
        if logits == "distance":
            torch.testing.assert_close(head.distances(x), -before)

    def test_the_layers_behind_it_and_what_they_learn(self, choice):
        head = DistanceHead(4, 3, **choice)
        metric, layer = choice["metric"], head.distance
        assert type(layer) is (Mahalanobis if "rank" in choice else OffsetL2)
        if "rank" in choice:
            assert (layer.rank, layer.shared) == (choice["rank"], metric == "shared")
        names = [n for n, p in head.named_parameters() if p.requires_grad]
        assert (names == ["distance.mu"]) == (metric == "euclidean")
        assert head.prototypes is layer.mu

    def test_a_scale_of_zero_gives_numbers(self):
        head = DistanceHead(4, 3, metric="diagonal", logits="density")
        with torch.no_grad():
            head.distance.alpha[0, 0] = 0
        out = head(torch.ones(2, 4))
        out.sum().backward()
        assert bool(out.isfinite().all())
        assert bool(head.distance.alpha.grad.isfinite().all())

    def test_gradient_at_a_prototype_is_finite(self, choice, logits, dtype):
        head, _, _ = fitted(choice, dtype=dtype, logits=logits)
        x = head.prototypes.detach().clone().requires_grad_()
        functional.cross_entropy(head(x), torch.arange(3)).backward()
        assert bool(x.grad.isfinite().all())
        assert all(p.grad.isfinite().all() for p in head.parameters() if p.requires_grad)


class TestFitPrototypes:
    def test_prototypes_are_class_means_in_units_of_spread(self, choice):
        """Squares to the own class sum to N - C per input, where spreads are those within."""
        x, y = data()
        head = DistanceHead(4, 3, dtype=torch.float64, normalise="none", **choice)
        assert head.fit_prototypes(x.requires_grad_(), y) is head
        means = torch.stack([x[y == k].mean(0) for k in range(3)])
        torch.testing.assert_close(head.prototypes.detach(), means.detach())
        own = head.distances(x).square().gather(1, y[:, None]).sum().item()
        assert own == pytest.approx((90 - 3) * 4)
        assert all(p.is_leaf for p in head.parameters()), "no gradient goes into the features"

    def test_euclidean_spread_is_pooled(self):
        head, x, y = fitted({})
        rest = torch.cat([x[y == k] - x[y == k].mean(0) for k in range(3)])
        spread = (rest.square().sum() / ((90 - 3) * 4)).sqrt()
        want = torch.cdist(x, head.prototypes) / spread
        torch.testing.assert_close(head.distances(x), want)

    def test_diagonal_is_naive_bayes(self, dtype):
        head, x, y = fitted({"metric": "diagonal"}, dtype=dtype, logits="density")
        known = GaussianNB(var_smoothing=0).fit(x.double(), y)
        known.var_ *= 30 / 29  # it divides by n
        want = torch.from_numpy(known.predict_log_proba(x.double()))
        got = head(x).log_softmax(1).detach().double()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("metric", ["low-rank", "shared"])
    def test_full_rank_is_discriminant_analysis(self, metric):
        """Quadratic with an ellipsoid for each class, linear with a single one for all."""
        head, x, y = fitted({"metric": metric, "rank": 4}, logits="density")
        covariances = [torch.cov(x[y == k].T) for k in range(3)]
        if metric == "shared":
            covariances = [sum(29 * c for c in covariances) / (90 - 3)] * 3
        densities = [
            multivariate_normal(x[y == k].mean(0), covariance).logpdf(x)
            for k, covariance in enumerate(covariances)
        ]
        want = torch.from_numpy(np.stack(densities, 1)).log_softmax(1)
        torch.testing.assert_close(head(x).log_softmax(1).detach(), want)

    def test_it_resets_what_was_set_for_other_distances(self, choice):
        head, x, y = fitted(choice, apart=0.7)
        for reset in (lambda: head.fit_prototypes(x, y), head.reset_calibration):
            head.calibrate(x, y)
            head.set_reject(x, 0.1)
            assert is_calibrated(head)
            reset()
            assert not is_calibrated(head)

    def test_the_old_name_of_the_reset_warns(self):
        head, x, _ = fitted({})
        head.set_reject(x, 0.1)
        with pytest.warns(DeprecationWarning, match="call reset_calibration"):
            head.forget()
        assert not is_calibrated(head)

    def test_ridge_reaches_the_spreads(self, choice):
        plain, x, y = fitted(choice)
        ridged = copy.deepcopy(plain).fit_prototypes(x, y, ridge=1.0)
        assert bool(ridged.distances(x).sum() < 0.9 * plain.distances(x).sum())


class TestTemperature:
    def slow(self, logits, y):
        """The likelihood itself, searched on a grid and then in between."""

        def loss(log_t):
            return functional.cross_entropy(logits / math.exp(log_t), y).item()

        grid = np.linspace(-6, 6, 241)
        middle = grid[np.argmin([loss(t) for t in grid])]
        found = minimize_scalar(
            loss, bounds=(middle - 0.1, middle + 0.1), method="bounded", options={"xatol": 1e-9}
        )
        return math.exp(found.x)

    @settings(deadline=None, max_examples=25)
    @given(st.integers(0, 1000), st.floats(0.01, 100), st.integers(2, 5))
    def test_is_the_likeliest(self, seed, scale, classes):
        logits = draw((40, classes), seed)
        y = (logits + 0.7 * draw((40, classes), seed + 1)).argmax(1)
        y[0] = (logits[0].argmax() + 1) % classes  # one is wrong, so that there is a best
        found = best_temperature(scale * logits, y)
        assert found / scale == pytest.approx(self.slow(logits, y), rel=1e-4)

    def test_a_common_shift_of_a_sample_changes_nothing(self):
        logits = draw((40, 3), 0)
        y = (logits + draw((40, 3), 1)).argmax(1)
        shifted = logits + 50 * draw((40, 1), 2)
        assert best_temperature(shifted, y) == pytest.approx(best_temperature(logits, y))

    def test_calibrate(self, choice, logits, dtype):
        head, x, y = fitted(choice, dtype=dtype, logits=logits, apart=0.7)
        before = head(x)
        loss = functional.cross_entropy(before, y)
        found = head.calibrate(x, y)
        assert float(head.temperature) == pytest.approx(found, rel=1e-6)
        torch.testing.assert_close(head(x), before / found)
        assert functional.cross_entropy(head(x), y) <= loss + 1e-6
        assert head.calibrate(x, y) == pytest.approx(found)  # not on top of the first


class TestReject:
    @settings(deadline=None, max_examples=50)
    @given(st.integers(1, 300), st.floats(0.01, 0.99))
    def test_quantile_keeps_the_rate(self, count, rate):
        scores = draw((count,), count).abs()
        if math.ceil(round((count + 1) * (1 - rate), 9)) > count:
            refuses("a reject rate of .* cannot be set from", reject_threshold, scores, rate)
            return
        above = int((scores > reject_threshold(scores, rate)).sum())
        # A new sample is above with probability (above + 1) / (n + 1) at most: no more than rate.
        assert (above + 1) / (count + 1) <= rate + 1e-8
        assert (above + 2) / (count + 1) > rate - 1e-8

    @pytest.mark.parametrize(
        ("count", "rate", "place"), [(19, 0.05, 19), (99, 0.05, 95), (999, 0.059, 941)]
    )
    def test_a_whole_number_of_samples_is_not_missed_by_rounding(self, count, rate, place):
        assert reject_threshold(torch.arange(1.0, count + 1), rate) == place

    def test_new_samples_are_rejected_at_the_rate(self):
        """2000 times: 99 samples set the threshold, then one more comes."""
        draws = draw((2000, 100), 3).abs()
        rejected = sum(bool(row[0] > reject_threshold(row[1:], 0.1)) for row in draws)
        assert abs(rejected / 2000 - 0.1) < 4 * (0.09 / 2000) ** 0.5

    @pytest.mark.parametrize("per_class", [False, True])
    def test_real_samples_are_rejected_at_the_rate_by_a_fitted_head(self, per_class):
        """Digits, 10 times: fitted to 500, set on 400 others, tried on the remaining 897."""
        digits = load_digits()
        x = torch.from_numpy(digits.data).float() / 16
        y = torch.from_numpy(digits.target).long()
        fresh, seen = [], []
        for trial in range(10):
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(trial))
            train, held_out, new = order[:500], order[500:900], order[900:]
            head = DistanceHead(64, 10, metric="low-rank", rank=4)
            head.fit_prototypes(x[train], y[train])
            for rates, part in ((fresh, held_out), (seen, train)):
                head.set_reject(x[part], 0.1, per_class=per_class)
                rates.append((head.predict(x[new]) == -1).double().mean().item())
        # No more than the rate on average; a little less, as few samples are rounded up.
        assert np.mean(fresh) < 0.1 + 3 * np.std(fresh) / 10**0.5
        assert np.mean(fresh) > (0.06 if per_class else 0.09)
        assert np.mean(seen) > 0.13, "samples it was fitted to are nearer: more are rejected"

    def test_assess_with_one_threshold(self, choice, logits, dtype):
        head, x, _ = fitted(choice, 300, dtype, logits=logits)
        threshold = head.set_reject(x, 0.1)
        assert threshold.shape == (3,)
        assert len(threshold.unique()) == 1
        assert float(head.reject_rate) == pytest.approx(0.1)
        found = head.assess(x)
        assert isinstance(found, Prediction)
        assert int(found.rejected.sum()) == 300 - math.ceil(301 * 0.9)
        assert torch.equal(found.nearest, head(x).argmax(1))
        assert torch.equal(found.score, head.distances(x).min(1).values)
        assert torch.equal(found.distances, head.distances(x))
        assert torch.equal(found.rejected, found.score > head.threshold[0])
        assert torch.equal(found.labels, torch.where(found.rejected, -1, found.nearest))
        assert torch.equal(found.labels, head.predict(x))
        assert not found.distances.requires_grad

    def test_per_class(self, choice):
        head, x, _ = fitted(choice, 300)
        threshold = head.set_reject(x, 0.2, per_class=True)
        nearest = head.distances(x).argmin(1)
        labels = head.predict(x)
        for k in range(3):
            own = int((nearest == k).sum())
            rejected = int((labels[nearest == k] == -1).sum())
            assert rejected == own - math.ceil(round((own + 1) * 0.8, 9))
        assert len(threshold.unique()) == 3

    def test_at_the_threshold_a_sample_is_kept(self):
        head = DistanceHead(1, 1)
        with torch.no_grad():
            head.prototypes.zero_()
        head.threshold.fill_(2.0)
        assert head.predict(torch.tensor([[2.0], [2.5], [-2.0]])).tolist() == [0, -1, 0]

    def test_no_class_is_nearest_to_what_cannot_be_measured(self):
        head, x, _ = fitted({})
        head.set_reject(x, 0.1)
        with torch.no_grad():
            head.prototypes.fill_(math.nan)
        assert head.predict(x).tolist() == head.assess(x).nearest.tolist() == [-1] * 90

    def test_score_is_the_smallest_distance_and_has_gradients(self, choice):
        head, x, _ = fitted(choice)
        score = head.ood_score(x.requires_grad_())
        torch.testing.assert_close(score, head.distances(x).min(1).values)
        score.sum().backward()
        assert bool((x.grad != 0).any())

    def test_normalised_responsibilities_cannot_reject(self, choice, logits):
        """Far from every class the softmax is as sure as among the samples; the distance is not."""
        head, x, _ = fitted(choice, 300, logits=logits)
        head.set_reject(x, 0.05)
        away = x.mean(0) + 1000 * functional.normalize(draw((50, 4), 7), dim=1)
        usual, far = (head(points).softmax(1).amax(1) for points in (x, away))
        assert far.max() > usual.median()
        assert logits == "distance" or far.median() > 0.999, "the farther, the surer"
        assert bool((head.ood_score(away) > head.ood_score(x).max()).all())
        assert head.predict(away).tolist() == [-1] * 50


class TestModule:
    def test_a_head_without_a_threshold_stays_one(self, choice):
        head, x, _ = fitted(choice)
        fresh = copy.deepcopy(head.state_dict())
        head.set_reject(x, 0.1)
        head.load_state_dict(fresh)
        refuses(r"this head has no reject threshold; call set_reject", head.predict, x)

    def test_repr(self):
        printed = DistanceHead(4, 3).extra_repr()
        assert printed == "inputs=4, classes=3, metric='euclidean', logits='distance'"
        head, x, y = fitted({"metric": "low-rank", "rank": 2}, apart=0.7)
        head.calibrate(x, y)
        head.set_reject(x, 0.1)
        printed = head.extra_repr()
        assert printed.startswith("inputs=4, classes=3, metric='low-rank', rank=2, logits='dist")
        assert f"temperature={float(head.temperature):.4g}, reject_rate=0.1" in printed

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision_predicts_the_same(self, choice, half):
        head, x, y = fitted(choice, 300, torch.float32, apart=0.7)
        head.calibrate(x, y)
        head.set_reject(x, 0.1, per_class=True)
        low = copy.deepcopy(head).to(half)
        assert (low.predict(x.to(half)) == head.predict(x)).float().mean() > 0.9

    @pytest.mark.parametrize(
        ("choice", "logits"),
        [*((c, "density") for c in METRICS), *((METRICS[0], k) for k in LOGITS)],
    )
    def test_it_trains_behind_a_backbone(self, choice, logits):
        x, y = data(samples=150, dtype=torch.float32, apart=1.0)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            head = DistanceHead(4, 3, logits=logits, **choice)
            model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4), head)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        first = functional.cross_entropy(model(x), y).item()
        for _ in range(60):
            optimiser.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
        assert loss.item() < 0.6 * first

    def test_distances_can_be_mapped_over_heads(self):
        head, x = DistanceHead(4, 3), draw((5, 2, 4), 0, torch.float32)
        mapped = torch.func.vmap(head.distances)(x)
        torch.testing.assert_close(mapped, head.distances(x))

    def test_no_samples_are_no_answers(self, choice):
        head, x, _ = fitted(choice)
        head.set_reject(x, 0.1)
        assert [len(part) for part in head.assess(x[:0])] == [0] * 4
        assert len(head.predict(x[:0])) == len(head.ood_score(x[:0])) == 0


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
class TestUnits:
    """Features in other units, whose squares float32 cannot hold."""

    def test_do_not_matter_to_a_head_that_is_fitted(self, choice, scale, logits):
        plain, x, y = fitted(choice, dtype=torch.float32, logits=logits)
        scaled = copy.deepcopy(plain).fit_prototypes(x * scale, y)
        wanted = plain.distances(x)
        torch.testing.assert_close(scaled.distances(x * scale), wanted, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(scaled.distance(x * scale), scaled.distances(x * scale))
        plain.set_reject(x, 0.1)
        scaled.set_reject(x * scale, 0.1)
        assert torch.equal(plain.assess(x).nearest, scaled.assess(x * scale).nearest)

    def test_of_samples_far_beyond_all_classes(self, choice, scale, logits):
        """Distances are numbers where their squares are none, and the nearest is the nearest."""
        head, x, _ = fitted(choice, dtype=torch.float32, logits=logits)
        head.set_reject(x, 0.1)
        far = max(scale, 1 / scale) * torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        found = head.assess(far)
        wide = copy.deepcopy(head).double().distances(far.double())
        torch.testing.assert_close(found.distances.double(), wide, rtol=1e-5, atol=0)
        assert found.labels.tolist() == [-1]
        assert bool(found.distances.isfinite().all())


class TestArrays:
    def test_are_taken_as_tensors_are(self, choice):
        x, y = data(60, dtype=torch.float32, apart=0.7)
        one, other = (DistanceHead(4, 3, **choice) for _ in range(2))
        one.fit_prototypes(x, y)
        other.fit_prototypes(x.numpy(), y.numpy())
        one.calibrate(x, y)
        other.calibrate(x.double().numpy(), y.numpy().astype(np.uint8))
        one.set_reject(x, 0.1)
        other.set_reject(x.double().numpy(), 0.1)
        torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
        for method in ("predict", "ood_score", "distances"):
            found, wanted = getattr(one, method)(x.double().numpy()), getattr(one, method)(x)
            torch.testing.assert_close(found, wanted)


X, Y = data(60, dtype=torch.float32, apart=0.3)
SAME_2 = torch.where((Y == 2)[:, None], 7.0, X)
NO_CLASS_1, ONE_OF_1 = (Y != 1), (Y != 1) | (torch.arange(60) == 1)
CLASS_1 = "class 1 of 3 has"
SHAPE = r"DistanceHead of 4 inputs was given features of shape \(60, 5\); give \[N, 4\]"
SETTING = {
    "fit_prototypes": lambda head, x: head.fit_prototypes(x, torch.arange(len(x)) % 3),
    "calibrate": lambda head, x: head.calibrate(x, torch.arange(len(x)) % 3),
    "set_reject": lambda head, x: head.set_reject(x, 0.1),
}
USING = {
    "predict": lambda head, x: head.predict(x),
    "assess": lambda head, x: head.assess(x),
    "ood_score": lambda head, x: head.ood_score(x),
}
WITH_LABELS = {
    "fit_prototypes": lambda head, y: head.fit_prototypes(X, y),
    "calibrate": lambda head, y: head.calibrate(X, y),
}


class TestRefusals:
    """One line that says what to do, and nothing changed by it."""

    @pytest.fixture
    def head(self, choice):
        """A head with everything set, so that whatever is touched by an error shows."""
        head = DistanceHead(4, 3, normalise="none", **choice).fit_prototypes(X, Y)
        head.calibrate(X, Y)
        head.set_reject(X, 0.1)
        return head

    def refuses(self, message, call, head, *arguments, error=InputError):
        before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
        refuses(message, call, head, *arguments, error=error)
        after = dict(head.state_dict())
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda h: h.fit_prototypes(X[NO_CLASS_1], Y[NO_CLASS_1]), f"{CLASS_1} no samples, "),
            (lambda h: h.fit_prototypes(X[ONE_OF_1], Y[ONE_OF_1]), f"{CLASS_1} 1 sample, wanted"),
            (lambda h: h.fit_prototypes(X[Y != 2], Y[Y != 2]), "class 2 of 3 has no samples"),
            (lambda h: h.fit_prototypes(X * 0, Y), "class 0 has 20 samples that are all the same"),
            (lambda h: h.fit_prototypes(SAME_2, Y, ridge=0.1), "class 2 has 20 samples that are"),
            (lambda h: h.calibrate(h.prototypes.detach(), torch.arange(3)), "all 3 samples are ri"),
            (lambda h: h.calibrate(X, h(X).argmin(1)), "the labels of 60 samples .* train first$"),
            (lambda h: h.set_reject(X, 0.01), "a reject rate of 0.01 .* 60 samples; .* least 99"),
            (lambda h: h.set_reject(X, 0.02, per_class=True), "a reject rate of 0.02 .* nearest"),
            (lambda h: h.set_reject(X[:0], 0.02), "DistanceHead of 4 inputs was given features"),
        ],
    )
    def test_of_any_head(self, head, call, message):
        self.refuses(message, call, head)

    @pytest.mark.parametrize("option", ["ridge", "shrinkage"])
    @pytest.mark.parametrize("value", [-0.1, math.nan, None, "oas"])
    def test_ridge_and_shrinkage(self, head, option, value):
        self.refuses(f".*{option} is", lambda h: h.fit_prototypes(X, Y, **{option: value}), head)

    @pytest.mark.parametrize("rate", [0, 1.0, -0.1, 5, math.nan, True, "0.1", None])
    def test_rates(self, head, rate):
        message = f"reject rate is {rate!r}, wanted a number between 0 and 1"
        self.refuses(message, lambda h: h.set_reject(X, rate), head)

    def test_a_class_that_nothing_is_nearest_to(self, head):
        x, _ = data(300, dtype=torch.float32)
        near = x[head.distances(x).argmin(1) != 1]
        message = "a reject rate of 0.5 cannot be set from 0 samples nearest to class"
        self.refuses(message, lambda h: h.set_reject(near, 0.5, per_class=True), head)

    @pytest.mark.parametrize("call", WITH_LABELS.values(), ids=WITH_LABELS)
    @pytest.mark.parametrize(
        ("y", "message"),
        [
            (Y + 1, "label 3 is not one of the classes; labels are from 0 to 2"),
            (Y - 1, "label -1 is not one of the classes"),
            (Y.float(), "labels are float32, wanted a tensor of whole"),
            (Y.tolist(), "labels are list, wanted a tensor of whole"),
            (Y[1:], r"labels have shape \(59,\) for 60 samples; give one label per sample"),
            (Y[:, None], r"labels have shape \(60, 1\) for 60 samples"),
            (Y.double().numpy(), "labels are an array of float64, wanted whole numbers"),
            (np.full(60, 2**63, dtype=np.uint64), "labels have 9223372036854775808, wanted"),
        ],
    )
    def test_labels(self, call, y, message):
        self.refuses(message, call, DistanceHead(4, 3), y)

    @pytest.mark.parametrize("call", (SETTING | USING).values(), ids=SETTING | USING)
    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (torch.zeros(60, 5), SHAPE),
            (torch.zeros(4), "DistanceHead of 4 inputs was given features of shape"),
            (torch.zeros(2, 3, 4), r"DistanceHead of .*, as by features.flatten\(0, -2\)$"),
            (torch.where(X[7, 2] == X, torch.nan, X), r"features has 1 value.* first at \[7, 2\]"),
            (torch.where(X[7, 2] == X, torch.inf, X), r"features has 1 value.* first at \[7, 2\]"),
            (X.long(), "features are a tensor of int64"),
            (X.tolist(), "features are a list"),
            (np.full((2, 4), np.nan), r"features has 8 value\(s\) of 8 that are NaN"),
            (np.zeros((2, 3)), r"DistanceHead of 4 inputs was given features of shape \(2, 3\)"),
            (np.zeros((2, 4), dtype=complex), "features is an array of complex128, wanted real"),
            (np.array([["a"] * 4]), "features is an array of <U1, wanted real"),
        ],
    )
    def test_features(self, call, x, message):
        head = DistanceHead(4, 3).fit_prototypes(X, Y)
        head.set_reject(X, 0.1)
        self.refuses(message, call, head, x)

    @pytest.mark.parametrize("call", USING.values(), ids=USING)
    def test_features_beyond_float32(self, call):
        head, x = fitted({}, dtype=torch.float32)[0], np.full((2, 4), 1e60)
        head.set_reject(X, 0.1)
        self.refuses("features has values too large for float32; scale them", call, head, x)

    @pytest.mark.parametrize("call", SETTING.values(), ids=SETTING)
    def test_of_no_samples_nothing_can_be_learned(self, call):
        head = DistanceHead(4, 3)
        self.refuses(r"DistanceHead .* give \[N, 4\] with N at least 1$", call, head, X[:0])

    def test_one_constant_input(self):
        x = X.clone()
        x[:, 1] = 5.0
        head = DistanceHead(4, 3, metric="diagonal")
        message = "the ellipsoids of the classes: .* has no spread along input 1; .* ridge=1e-6"
        self.refuses(message, lambda h: h.fit_prototypes(x, Y), head, error=SingularCovarianceError)
        head.fit_prototypes(x, Y, ridge=1e-3)
        for choice in ({}, METRICS[2], {"metric": "shared", "rank": 2}):
            DistanceHead(4, 3, **choice).fit_prototypes(x, Y)

    def test_more_axes_than_the_data_have(self):
        head = DistanceHead(4, 3, metric="low-rank", rank=3)
        message = "the ellipsoids of the classes: .* rank 3 is more than the 1 of 4"
        self.refuses(message, lambda h: h.fit_prototypes(X[:6], Y[:6]), head)

    # Spreads of 1e-7 are held by their logarithm where there are ellipsoids.
    @pytest.mark.parametrize(
        ("choice", "scale"), [*((c, 1e7) for c in METRICS), *((c, 1e-7) for c in METRICS[:2])]
    )
    def test_spreads_that_half_precision_cannot_hold(self, choice, scale):
        head = DistanceHead(4, 3, dtype=torch.float16, **choice)
        message = "the spreads or means of these features are too small or too large for float16"
        self.refuses(message, lambda h: h.fit_prototypes(scale * X, Y), head)

    def test_distances_that_overflow(self):
        head = DistanceHead(4, 3, metric="diagonal", dtype=torch.float64)
        far = torch.full((30, 4), 1e250, dtype=torch.float64)
        for method in ("set_reject", "calibrate"):
            self.refuses(r"distances has 90 value\(s\) of 90", SETTING[method], head, far)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"metric": "cosine"}, "unknown metric 'cosine' of DistanceHead; known: euclidean, di"),
            ({"logits": "softmax"}, "unknown logits 'softmax' of DistanceHead; known: distance, "),
            ({"metric": "low-rank"}, "metric 'low-rank' needs a rank; give one from 1 to 4$"),
            ({"metric": "shared"}, "metric 'shared' needs a rank; give one from 1 to 4$"),
            ({"metric": "low-rank", "rank": 5}, "Mahalanobis of rank 5 on 4 inputs; give a rank"),
            *(
                ({"normalise": n}, f"DistanceHead: normalise is {n!r}; give 'auto', 'none', 'unit'")
                for n in ("length", 1.5, True)
            ),
            ({"rank": 2}, "metric 'euclidean' takes no rank or remainder; leave them out, or take"),
        ],
    )
    def test_arguments(self, options, message):
        refuses(message, DistanceHead, 4, 3, **options)


def foreign(samples=300, inputs=24, classes=3, seed=0):
    """Features as backbones give them: the direction says the class, the length says little."""
    y = torch.arange(samples) % classes
    x = draw((samples, inputs), seed) * 0.5 + 3 * draw((classes, inputs), seed + 2)[y]
    return x * (1 + draw((samples, 1), seed + 3).abs()), y


class TestLengths:
    @pytest.mark.parametrize("beta", [0.3, 1.0, "unit"])
    def test_distances_are_those_of_scaled_features(self, choice, beta, dtype):
        head, x, y = fitted(choice, dtype=dtype, normalise=beta)
        power = 1.0 if beta == "unit" else beta
        scaled = x / x.norm(dim=1, keepdim=True) ** power
        plain = DistanceHead(4, 3, dtype=dtype, normalise="none", **choice)
        plain.fit_prototypes(scaled, y)
        close = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {}
        torch.testing.assert_close(head.distances(x), plain.distances(scaled), **close)
        torch.testing.assert_close(head(x), plain(scaled), **close)

    def test_length_does_not_matter_to_unit_length(self, choice):
        head, x, _ = fitted(choice, normalise="unit")
        for factor in (1e-30, 1e-3, 1e30):
            torch.testing.assert_close(head.distances(x * factor), head.distances(x))

    @pytest.mark.parametrize("beta", [0.5, 1.0])
    def test_gradients(self, choice, beta):
        head, x, _ = fitted(choice, samples=30, normalise=beta)
        torch.autograd.gradcheck(head, (x[:5].clone().requires_grad_(),))
        zero = torch.zeros(1, 4, dtype=x.dtype, requires_grad=True)
        head(zero).sum().backward()
        assert zero.grad.isfinite().all()

    def test_auto_drops_lengths_of_foreign_features(self, choice):
        x, y = foreign()
        head = DistanceHead(24, 3, dtype=torch.float64, **choice).fit_prototypes(x, y)
        assert float(head.beta) == 1
        assert "normalise='unit'" in repr(head)

    @pytest.mark.parametrize(("each", "rank"), [(40, 30), (60, 16), (7, 5)])
    def test_auto_drops_lengths_where_half_is_too_few_for_the_rank(self, monkeypatch, each, rank):
        """30 axes need more than 20 samples; 16 more than half of the 20 that are tried first."""
        monkeypatch.setattr("mahalens.nn.head._TRIED", 60)
        classes = 3
        draw = torch.Generator().manual_seed(0)
        y = torch.arange(classes * each) % classes
        x = (
            torch.randn(len(y), 64, generator=draw)
            + 8 * torch.randn(classes, 64, generator=draw)[y]
        )
        x = x * torch.rand(len(y), 1, generator=draw).add(0.5)
        head = DistanceHead(64, classes, metric="low-rank", rank=rank).fit_prototypes(x, y)
        assert float(head.beta) == 1

    def test_auto_keeps_lengths_that_tell_classes_apart(self):
        y = torch.arange(200) % 2
        x = draw((200, 5), 0) * 0.3 + torch.tensor([1.0, 4.0])[y][:, None]
        head = DistanceHead(5, 2, dtype=torch.float64).fit_prototypes(x, y)
        assert float(head.beta) == 0

    def test_auto_changes_nothing_where_the_head_is_trained(self, choice):
        auto, none = (DistanceHead(4, 3, normalise=n, **choice) for n in ("auto", "none"))
        auto.load_state_dict(none.state_dict())
        x = draw((7, 4), 1).float()
        assert torch.equal(auto(x), none(x))

    def test_a_state_from_before_is_measured_as_it_was(self, choice):
        head, x, _ = fitted(choice)
        state = head.state_dict()
        del state["beta"]
        other = DistanceHead(4, 3, dtype=x.dtype, normalise="unit", **choice)
        other.load_state_dict(state)
        assert torch.equal(other.distances(x), head.distances(x))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
    @pytest.mark.parametrize("assign", [False, True])
    def test_a_state_holds_the_exact_exponent(self, choice, dtype, assign):
        """0.3 is not a number of float16 or float32."""
        head, x = DistanceHead(4, 3, normalise=0.3, **choice).to(dtype), draw((7, 4), 1).to(dtype)
        other = DistanceHead(4, 3, normalise="unit", **choice).to(dtype)
        other.load_state_dict(head.state_dict(), assign=assign)
        assert float(other.state_dict()["beta"]) == 0.3
        assert torch.equal(other(x), head(x))
        assert other.beta.dtype == dtype

    def test_no_buffer_is_wider_than_the_head(self, choice):
        """Apple's GPUs refuse float64, and so would refuse the whole head."""
        head = DistanceHead(4, 3, **choice)
        other = DistanceHead(4, 3, **choice)
        other.load_state_dict(head.state_dict(), assign=True)
        for one in (head, other):
            tensors = (*one.parameters(), *one.buffers(), *one.state_dict().values())
            assert {t.dtype for t in tensors} == {torch.float32}

    def test_a_state_is_taken_to_the_device_of_its_tensors(self, choice):
        state = DistanceHead(4, 3, device="meta", **choice).state_dict()
        other = DistanceHead(4, 3, **choice)
        other.load_state_dict(state, assign=True)
        assert {t.device.type for t in (*other.parameters(), *other.buffers())} == {"meta"}

    def test_an_exponent_in_a_list_is_taken(self, choice):
        """PyTorch takes one number in a list for a number."""
        head = DistanceHead(4, 3, normalise=0.25, **choice)
        other = DistanceHead(4, 3, normalise="unit", **choice)
        other.load_state_dict(head.state_dict() | {"beta": torch.tensor([0.25])})
        x = draw((7, 4), 1).float()
        assert torch.equal(other(x), head(x))


class TestFiles:
    @pytest.mark.parametrize("normalise", ["auto", 0.25])
    def test_a_head_comes_back_with_its_calibration(self, choice, logits, normalise, tmp_path):
        x, y = foreign(inputs=4)
        head = DistanceHead(4, 3, normalise=normalise, logits=logits, **choice)
        head.fit_prototypes(x.float(), y).set_reject(x.float(), 0.1, per_class=True)
        head.save(tmp_path / "head.safetensors")
        loaded = DistanceHead.load(tmp_path / "head.safetensors")
        assert repr(loaded) == repr(head)
        for mine, theirs in zip(loaded.assess(x.float()), head.assess(x.float()), strict=True):
            assert torch.equal(mine, theirs)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_a_head_in_half_precision_measures_as_before(self, dtype, tmp_path):
        head, x = DistanceHead(4, 3, normalise=0.3).to(dtype), draw((7, 4), 1).to(dtype)
        head.save(tmp_path / "head.safetensors")
        loaded = DistanceHead.load(tmp_path / "head.safetensors")
        assert repr(loaded) == repr(head)
        assert torch.equal(loaded(x), head(x))

    def test_sizes_of_numpy(self, tmp_path):
        x, y = foreign(inputs=4)
        sizes = [np.int64(n) for n in (4, int(y.max()) + 1, 2)]
        head = DistanceHead(*sizes[:2], metric="low-rank", rank=sizes[2], normalise="none")
        head.fit_prototypes(x.float(), y).save(tmp_path / "head.safetensors")
        assert repr(DistanceHead.load(tmp_path / "head.safetensors")) == repr(head)

    def test_a_file_that_is_not_there_is_one_line(self, tmp_path):
        refuses(
            r".*cannot be read \(No such file or directory\)", DistanceHead.load, tmp_path / "x"
        )
        refuses(r".*cannot be read \(Is a directory\)", DistanceHead.load, tmp_path)

    @pytest.mark.parametrize("content", [b"", b"x" * 40, None], ids=["empty", "junk", "other"])
    def test_other_files_are_refused(self, content, tmp_path):
        path = tmp_path / "head.safetensors"
        if content is None:
            save_file({"threshold": torch.zeros(2)}, path)
        else:
            path.write_bytes(content)
        refuses(".*not a file of a DistanceHead", DistanceHead.load, path)

    def test_a_file_that_cannot_be_written_is_one_line(self, tmp_path, monkeypatch):
        def full(*_):
            raise SafetensorError("I/O error: no space left\nbacktrace")

        head, path = DistanceHead(4, 3), tmp_path / "head.safetensors"
        head.save(path)
        before = path.read_bytes()
        monkeypatch.setattr("safetensors.torch.save_file", full)
        refuses(r".*cannot be written \(I/O error: no space left\)$", head.save, path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


class TestExport:
    def made(self, choice, logits="squared"):
        x, y = foreign(inputs=4)
        head = DistanceHead(4, 3, logits=logits, **choice).fit_prototypes(x.float(), y)
        head.set_reject(x[::2].float(), 0.1, per_class=True)
        return head.eval(), x[1::2].float()  # none of them exactly at the threshold

    def test_frozen_gives_what_the_head_gives(self, choice, logits):
        head, x = self.made(choice, logits)
        labels, score, z = head.frozen()(x)
        answer = head.assess(x)
        assert torch.equal(labels, answer.labels)
        torch.testing.assert_close(score, answer.score, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(z, head(x), rtol=1e-3, atol=1e-3)

    def test_a_head_without_a_threshold_rejects_nothing(self, choice):
        head, x = self.made(choice)
        head.reset_calibration()
        assert torch.equal(head.frozen()(x * 50)[0], head(x * 50).argmax(-1))

    def test_a_head_is_exported_with_any_batch(self, choice):
        head, x = self.made(choice)
        program = torch.export.export(head, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
        for count in (2, 5, 150):
            torch.testing.assert_close(program.module()(x[:count]), head(x[:count]))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_onnx_runs_it_with_any_batch(self, choice, logits, tmp_path):
        import onnxruntime

        head, x = self.made(choice, logits)
        path = tmp_path / "head.onnx"
        shapes = {"features": {0: torch.export.Dim("n")}}
        torch.onnx.export(head.frozen(), (x,), path, dynamo=True, dynamic_shapes=shapes)
        session = onnxruntime.InferenceSession(path)
        for count in (1, 5, 150):
            outputs = session.run(None, {"features": x[:count].numpy()})
            for got, want in zip(outputs, head.frozen()(x[:count]), strict=True):
                torch.testing.assert_close(torch.tensor(got), want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's exporter
def test_the_page_prints_what_it_says(capsys, monkeypatch, tmp_path):
    page = PAGE.read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "heads.md", "exec"), {})
    said = "".join(re.findall(r"```text\n(.*?)```", page, re.S)).splitlines()
    printed = capsys.readouterr().out.splitlines()
    printed = [line for line in printed if not line.startswith("[torch.onnx]")]
    assert len(printed) == len(said) == 6
    for shown, wanted in zip(printed, said, strict=True):
        # The words to the letter; the figures as far as other processors round them.
        assert re.sub(r"[\d.]+", "#", shown) == re.sub(r"[\d.]+", "#", wanted)
        trained = wanted.startswith("compactness")
        for got, want in zip(*(re.findall(r"[\d.]+", t) for t in (shown, wanted)), strict=True):
            assert float(got) == pytest.approx(float(want), abs=8 if trained else 0.5)


@pytest.mark.parametrize("options", [{}, {"metric": "shared", "rank": 2}, {"normalise": 0.5}])
def test_a_head_without_values_shows_itself(options):
    assert "inputs=4, classes=3" in repr(DistanceHead(4, 3, device="meta", **options))
