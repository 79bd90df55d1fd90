"""DistanceHead: logits against their formulas, closed forms, temperature, and the reject option."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB
from torch import nn
from torch.nn import functional

from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2, Prediction
from mahalens.nn.calibration import best_temperature, reject_threshold

METRICS = [
    {"metric": "euclidean"},
    {"metric": "diagonal"},
    {"metric": "low-rank", "rank": 2},
    {"metric": "low-rank", "rank": 2, "remainder": "diagonal"},
    {"metric": "shared", "rank": 3},
]
DTYPES = [torch.float32, torch.float64]
LOGITS = ["distance", "squared", "density"]


def draw(shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def data(samples=90, inputs=4, classes=3, seed=0, dtype=torch.float64, apart=2.0):
    """Classes of unlike shapes, near enough to be taken for each other now and then."""
    y = torch.arange(samples) % classes
    mixing = draw((classes, inputs, inputs), seed + 1)
    x = torch.einsum("nd,nde->ne", draw((samples, inputs), seed), mixing[y])
    return (x + apart * draw((classes, inputs), seed + 2)[y]).to(dtype), y


def made(choice, dtype=torch.float64, **more):
    """A head with parameters away from their starting values."""
    head = DistanceHead(4, 3, dtype=dtype, **choice, **more)
    with torch.no_grad():
        for i, (name, parameter) in enumerate(head.distance.named_parameters()):
            parameter.copy_(0.3 * draw(parameter.shape, i, dtype) + (name == "alpha"))
    return head


@pytest.fixture(params=METRICS, ids=lambda c: "-".join(map(str, c.values())))
def choice(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


class TestLogits:
    def covariances(self, head):
        if isinstance(head.distance, Mahalanobis):
            return head.distance.covariances
        return torch.diag_embed(head.distance.alpha.square().reciprocal())

    def test_are_those_of_the_formula(self, choice):
        x = draw((6, 4), 9)
        heads = {kind: made(choice, logits=kind) for kind in LOGITS}
        sigma = self.covariances(heads["distance"])
        delta = x[:, None] - heads["distance"].prototypes
        squares = torch.einsum("ncd,cde,nce->nc", delta, torch.linalg.inv(sigma), delta)
        torch.testing.assert_close(heads["distance"](x), -squares.sqrt())
        torch.testing.assert_close(heads["squared"](x), -squares / 2)
        wanted = -(squares + torch.logdet(sigma)) / 2
        torch.testing.assert_close(heads["density"](x), wanted)

    def test_temperature_divides_them(self, choice):
        head, x = made(choice), draw((6, 4), 9)
        before = head(x)
        head.temperature.fill_(4.0)
        torch.testing.assert_close(head(x), before / 4)
        torch.testing.assert_close(head.distances(x), -before)

    def test_the_layers_behind_it(self):
        assert isinstance(DistanceHead(4, 3).distance, OffsetL2)
        assert isinstance(DistanceHead(4, 3, metric="diagonal").distance, OffsetL2)
        low = DistanceHead(4, 3, metric="low-rank", rank=2).distance
        assert isinstance(low, Mahalanobis)
        assert (low.rank, low.shared) == (2, False)
        assert DistanceHead(4, 3, metric="shared", rank=2).distance.shared

    def test_euclidean_learns_prototypes_only(self):
        head = DistanceHead(4, 3)
        assert [n for n, p in head.named_parameters() if p.requires_grad] == ["distance.mu"]
        assert head.prototypes is head.distance.mu

    def test_a_scale_of_zero_gives_numbers(self):
        head = DistanceHead(4, 3, metric="diagonal", logits="density")
        with torch.no_grad():
            head.distance.alpha[0, 0] = 0
        out = head(torch.ones(2, 4))
        out.sum().backward()
        assert bool(out.isfinite().all())
        assert bool(head.distance.alpha.grad.isfinite().all())

    @pytest.mark.parametrize("logits", LOGITS)
    def test_gradcheck(self, choice, logits):
        head = made(choice, logits=logits)
        names = [name for name, p in head.named_parameters() if p.requires_grad]
        tensors = [dict(head.named_parameters())[n].detach().requires_grad_() for n in names]

        def function(x, *parameters):
            state = dict(zip(names, parameters, strict=True))
            return torch.func.functional_call(head, state, (x,))

        x = draw((3, 4), 9).requires_grad_()
        assert torch.autograd.gradcheck(function, (x, *tensors))

    @pytest.mark.parametrize("logits", LOGITS)
    def test_gradient_at_a_prototype_is_finite(self, choice, logits, dtype):
        head = made(choice, dtype, logits=logits)
        x = head.prototypes.detach().clone().requires_grad_()
        functional.cross_entropy(head(x), torch.arange(3)).backward()
        assert bool(x.grad.isfinite().all())
        assert all(p.grad.isfinite().all() for p in head.parameters() if p.requires_grad)


class TestFitPrototypes:
    def test_prototypes_are_class_means(self, choice, dtype):
        x, y = data(dtype=dtype)
        head = DistanceHead(4, 3, dtype=dtype, **choice)
        assert head.fit_prototypes(x, y) is head
        means = torch.stack([x[y == k].mean(0) for k in range(3)])
        torch.testing.assert_close(head.prototypes.detach(), means)

    def test_distances_are_in_units_of_spread(self, choice):
        """Squares to the own class sum to N - C per input, where spreads are those within."""
        x, y = data()
        head = DistanceHead(4, 3, dtype=torch.float64, **choice).fit_prototypes(x, y)
        own = head.distances(x).square().gather(1, y[:, None]).sum().item()
        assert own == pytest.approx((90 - 3) * 4)

    def test_euclidean_spread_is_pooled(self):
        x, y = data()
        head = DistanceHead(4, 3, dtype=torch.float64).fit_prototypes(x, y)
        rest = torch.cat([x[y == k] - x[y == k].mean(0) for k in range(3)])
        spread = (rest.square().sum() / ((90 - 3) * 4)).sqrt()
        want = torch.cdist(x, head.prototypes) / spread
        torch.testing.assert_close(head.distances(x), want)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_diagonal_is_naive_bayes(self, dtype):
        x, y = data(dtype=dtype)
        head = DistanceHead(4, 3, metric="diagonal", logits="density", dtype=dtype)
        head.fit_prototypes(x, y)
        known = GaussianNB(var_smoothing=0).fit(x.double(), y)
        known.var_ *= 30 / 29  # it divides by n
        want = known.predict_log_proba(x.double())
        torch.testing.assert_close(
            head(x).log_softmax(1).detach().double(), torch.from_numpy(want), rtol=1e-4, atol=1e-4
        )

    def log_shares(self, x, y, covariances):
        densities = [
            multivariate_normal(x[y == k].mean(0), covariance).logpdf(x)
            for k, covariance in enumerate(covariances)
        ]
        return torch.from_numpy(np.stack(densities, 1)).log_softmax(1)

    def test_full_rank_is_quadratic_discriminant_analysis(self):
        x, y = data()
        head = DistanceHead(4, 3, metric="low-rank", rank=4, logits="density", dtype=x.dtype)
        head.fit_prototypes(x, y)
        want = self.log_shares(x, y, [torch.cov(x[y == k].T) for k in range(3)])
        torch.testing.assert_close(head(x).log_softmax(1).detach(), want)

    def test_shared_full_rank_is_linear_discriminant_analysis(self):
        x, y = data()
        head = DistanceHead(4, 3, metric="shared", rank=4, logits="squared", dtype=x.dtype)
        head.fit_prototypes(x, y)
        within = sum(29 * torch.cov(x[y == k].T) for k in range(3)) / (90 - 3)
        want = self.log_shares(x, y, [within] * 3)
        torch.testing.assert_close(head(x).log_softmax(1).detach(), want)

    def test_it_takes_back_what_was_set_for_other_distances(self, choice):
        x, y = data()
        head = DistanceHead(4, 3, dtype=torch.float64, **choice).fit_prototypes(x, y)
        head.calibrate(x, y)
        head.set_reject(x, 0.1)
        head.fit_prototypes(x, y)
        assert head.temperature == 1
        assert bool(head.threshold.isnan().all())
        assert bool(head.reject_rate.isnan())

    def test_ridge_reaches_the_spreads(self, choice):
        x, y = data()
        plain, ridged = (
            DistanceHead(4, 3, dtype=torch.float64, **choice).fit_prototypes(x, y, ridge=ridge)
            for ridge in (0.0, 1.0)
        )
        assert bool(ridged.distances(x).sum() < 0.9 * plain.distances(x).sum())

    def test_features_of_a_network_in_training_carry_no_gradient_into_it(self, choice):
        x, y = data()
        head = DistanceHead(4, 3, dtype=torch.float64, **choice)
        head.fit_prototypes(x.requires_grad_(), y)
        assert all(p.is_leaf for p in head.parameters())


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
        logits, y = draw((40, 3), 0), torch.arange(40) % 3
        y = (logits + draw((40, 3), 1)).argmax(1)
        shifted = logits + 50 * draw((40, 1), 2)
        assert best_temperature(shifted, y) == pytest.approx(best_temperature(logits, y))

    @pytest.mark.parametrize("logits", LOGITS)
    def test_calibrate(self, choice, logits, dtype):
        x, y = data(dtype=dtype, apart=0.7)
        head = DistanceHead(4, 3, dtype=dtype, logits=logits, **choice).fit_prototypes(x, y)
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
        place = math.ceil(round((count + 1) * (1 - rate), 9))
        if place > count:
            with pytest.raises(ValueError, match="cannot be told"):
                reject_threshold(scores, rate)
            return
        threshold = reject_threshold(scores, rate)
        above = int((scores > threshold).sum())
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
        """Digits, 20 times: fitted to 500, set on 400 others, tried on the remaining 897."""
        digits = load_digits()
        x = torch.from_numpy(digits.data).float() / 16
        y = torch.from_numpy(digits.target).long()
        fresh, fitted = [], []
        for trial in range(20):
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(trial))
            train, held_out, new = order[:500], order[500:900], order[900:]
            head = DistanceHead(64, 10, metric="low-rank", rank=4).fit_prototypes(
                x[train], y[train]
            )
            for rates, part in ((fresh, held_out), (fitted, train)):
                head.set_reject(x[part], 0.1, per_class=per_class)
                rates.append((head.predict(x[new]) == -1).double().mean().item())
        # No more than the rate on average; a little less, as few samples are rounded up.
        assert np.mean(fresh) < 0.1 + 3 * np.std(fresh) / 20**0.5
        assert np.mean(fresh) > (0.06 if per_class else 0.09)
        assert np.mean(fitted) > 0.13, "samples it was fitted to are nearer: more are rejected"

    def test_overall(self, choice, dtype):
        x, y = data(samples=300, dtype=dtype)
        head = DistanceHead(4, 3, dtype=dtype, **choice).fit_prototypes(x, y)
        threshold = head.set_reject(x, 0.1)
        assert threshold.shape == (3,)
        assert len(threshold.unique()) == 1
        found = head.predict(x)
        assert int((found == -1).sum()) == 300 - math.ceil(301 * 0.9)
        kept = found != -1
        assert torch.equal(found[kept], head(x).argmax(1)[kept])
        assert float(head.reject_rate) == pytest.approx(0.1)

    def test_per_class(self, choice):
        x, y = data(samples=300)
        head = DistanceHead(4, 3, dtype=torch.float64, **choice).fit_prototypes(x, y)
        threshold = head.set_reject(x, 0.2, per_class=True)
        nearest = head.distances(x).argmin(1)
        labels = head.predict(x)
        for k in range(3):
            own = int((nearest == k).sum())
            rejected = int((labels[nearest == k] == -1).sum())
            assert rejected == own - math.ceil(round((own + 1) * 0.8, 9))
        assert len(threshold.unique()) == 3

    @pytest.mark.parametrize("logits", LOGITS)
    def test_assess(self, choice, logits):
        x, y = data(samples=300)
        head = DistanceHead(4, 3, dtype=torch.float64, logits=logits, **choice)
        head.fit_prototypes(x, y).set_reject(x, 0.1)
        found = head.assess(x)
        assert isinstance(found, Prediction)
        assert torch.equal(found.labels, head.predict(x))
        assert torch.equal(found.nearest, head(x).argmax(1))
        assert torch.equal(found.score, head.ood_score(x))
        assert torch.equal(found.distances, head.distances(x))
        assert torch.equal(found.rejected, found.score > head.threshold[0])
        assert torch.equal(found.labels, torch.where(found.rejected, -1, found.nearest))
        assert not found.distances.requires_grad

    def test_at_the_threshold_a_sample_is_kept(self):
        head = DistanceHead(1, 1)
        head.load_state_dict(
            {
                "distance.mu": torch.zeros(1, 1),
                "distance.alpha": torch.ones(1, 1),
                "temperature": torch.tensor(1.0),
                "threshold": torch.tensor([2.0]),
                "reject_rate": torch.tensor(0.1),
            }
        )
        assert head.predict(torch.tensor([[2.0], [2.5], [-2.0]])).tolist() == [0, -1, 0]

    def test_parameters_that_became_nan_reject_everything(self):
        x, y = data()
        head = DistanceHead(4, 3, dtype=torch.float64).fit_prototypes(x, y)
        head.set_reject(x, 0.1)
        with torch.no_grad():
            head.prototypes.fill_(math.nan)
        assert head.predict(x).tolist() == [-1] * 90

    def test_score_is_the_smallest_distance_and_has_gradients(self, choice):
        head, x = made(choice), draw((6, 4), 9).requires_grad_()
        score = head.ood_score(x)
        torch.testing.assert_close(score, head.distances(x).min(1).values)
        score.sum().backward()
        assert bool((x.grad != 0).any())

    @pytest.mark.parametrize("logits", LOGITS)
    def test_normalised_responsibilities_cannot_reject(self, choice, logits):
        """Far from every class the softmax is as sure as among the samples; the distance is not."""
        x, y = data(samples=300)
        head = DistanceHead(4, 3, dtype=torch.float64, logits=logits, **choice)
        head.fit_prototypes(x, y)
        head.set_reject(x, 0.05)
        away = x.mean(0) + 1000 * functional.normalize(draw((50, 4), 7), dim=1)
        usual, far = (head(points).softmax(1).amax(1) for points in (x, away))
        assert far.max() > usual.median()
        if logits != "distance":  # the farther, the surer
            assert far.median() > 0.999
        assert bool((head.ood_score(away) > head.ood_score(x).max()).all())
        assert head.predict(away).tolist() == [-1] * 50


class TestModule:
    def fitted(self, choice, dtype=torch.float64):
        x, y = data(samples=300, dtype=dtype, apart=0.7)
        head = DistanceHead(4, 3, dtype=dtype, **choice).fit_prototypes(x, y)
        head.calibrate(x, y)
        head.set_reject(x, 0.1, per_class=True)
        return head, x

    def test_state_comes_back_whole(self, choice, dtype):
        head, x = self.fitted(choice, dtype)
        file = io.BytesIO()
        torch.save(head.state_dict(), file)
        file.seek(0)
        other = DistanceHead(4, 3, dtype=dtype, **choice)
        other.load_state_dict(torch.load(file, weights_only=True))
        for one in (other, copy.deepcopy(head)):
            assert torch.equal(one(x), head(x))
            assert torch.equal(one.predict(x), head.predict(x))
            assert repr(one) == repr(head)
        assert {"temperature", "threshold", "reject_rate"} <= head.state_dict().keys()

    def test_a_head_without_a_threshold_stays_one(self, choice):
        head, other = made(choice), made(choice)
        head.set_reject(draw((50, 4), 0), 0.1)
        head.load_state_dict(other.state_dict())
        with pytest.raises(ValueError, match="set_reject"):
            head.predict(draw((5, 4), 0))

    def test_repr(self):
        assert "(inputs=4, classes=3, metric='euclidean', logits='distance'" in repr(
            DistanceHead(4, 3)
        ).replace("\n  ", "")
        head, _ = self.fitted({"metric": "low-rank", "rank": 2})
        said = head.extra_repr()
        assert said.startswith("inputs=4, classes=3, metric='low-rank', rank=2, logits='distance'")
        assert f"temperature={float(head.temperature):.4g}, reject_rate=0.1" in said
        DistanceHead(4, 3, device="meta").extra_repr()

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision(self, choice, half):
        head, x = self.fitted(choice, torch.float32)
        out, wanted = copy.deepcopy(head).to(half)(x.to(half)), head(x)
        assert out.dtype == half
        torch.testing.assert_close(out.float(), wanted, rtol=0.1, atol=0.1)
        low = copy.deepcopy(head).to(half)
        assert (low.predict(x.to(half)) == head.predict(x)).float().mean() > 0.9
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(head(x), wanted, rtol=1e-5, atol=1e-5)

    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
    @pytest.mark.parametrize("logits", LOGITS)
    def test_compiled_by_torch(self, choice, logits):
        torch.compiler.reset()  # there is a limit to how many heads are compiled in one process
        head, x = made(choice, logits=logits), draw((5, 4), 0)
        compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), head(x))
        wanted = [p for p in head.parameters() if p.requires_grad]
        weights = draw((5, 3), 7)
        torch.testing.assert_close(
            torch.autograd.grad((weights * compiled(x)).sum(), wanted),
            torch.autograd.grad((weights * head(x)).sum(), wanted),
        )

    def test_more_axes_than_one(self, choice):
        head, x = made(choice), draw((2, 5, 4), 0)
        torch.testing.assert_close(head(x)[1], head(x[1]))

    def test_forward_changes_no_buffer(self, choice):
        """So that replicas of it on several devices stay the same."""
        head, x = self.fitted(choice)
        before = {name: b.clone() for name, b in head.named_buffers()}
        head(x)
        head.predict(x)
        assert all(torch.equal(before[name], b) for name, b in head.named_buffers())

    @pytest.mark.parametrize("logits", LOGITS)
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


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("logits", ["distance", "squared", "density"])
@pytest.mark.parametrize("choice", METRICS, ids=lambda c: c["metric"])
class TestUnits:
    """Features in other units, whose squares float32 cannot hold."""

    def test_do_not_matter_to_a_head_that_is_fitted(self, choice, scale, logits):
        x, y = data()
        x = x.float()
        plain = DistanceHead(4, 3, logits=logits, **choice).fit_prototypes(x, y)
        scaled = DistanceHead(4, 3, logits=logits, **choice).fit_prototypes(x * scale, y)
        torch.testing.assert_close(
            scaled.distances(x * scale), plain.distances(x), rtol=1e-3, atol=1e-4
        )
        torch.testing.assert_close(scaled._measure(x * scale), scaled.distances(x * scale))
        plain.set_reject(x, 0.1)
        scaled.set_reject(x * scale, 0.1)
        assert torch.equal(plain.assess(x).nearest, scaled.assess(x * scale).nearest)

    def test_of_samples_far_beyond_all_classes(self, choice, scale, logits):
        """Distances are numbers where their squares are none, and the nearest is the nearest."""
        x, y = data()
        x = x.float()
        head = DistanceHead(4, 3, logits=logits, **choice).fit_prototypes(x, y)
        head.set_reject(x, 0.1)
        far = max(scale, 1 / scale) * torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        found = head.assess(far)
        wide = copy.deepcopy(head).double().distances(far.double())
        torch.testing.assert_close(found.distances.double(), wide, rtol=1e-5, atol=0)
        assert found.labels.tolist() == [-1]
        assert bool(found.distances.isfinite().all())


def test_distances_can_be_mapped_over_heads():
    head = DistanceHead(4, 3)
    x = draw((5, 2, 4), 0, torch.float32)
    mapped = torch.func.vmap(head.distances)(x)
    torch.testing.assert_close(mapped, head.distances(x))


def test_no_class_is_nearest_to_what_cannot_be_measured():
    head = DistanceHead(4, 3).fit_prototypes(*data())
    head.set_reject(data()[0].float(), 0.1)
    with torch.no_grad():
        head.prototypes.fill_(math.nan)
    assert head.assess(torch.zeros(2, 4)).nearest.tolist() == [-1, -1]
