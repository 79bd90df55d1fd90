"""Laws of the scikit-learn estimators: its own checks, slow twins, units, stated rates, errors."""

from __future__ import annotations

import math
import pickle
import warnings

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import log_softmax
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils import shuffle
from sklearn.utils.estimator_checks import estimator_checks_generator

from mahalens import InputError
from mahalens.estimators import (
    MahalanobisClassifier,
    MahalanobisMetric,
    MahalanobisMixture,
    MahalanobisOutliers,
)

ESTIMATORS = {
    "classifier": MahalanobisClassifier(),
    "shared": MahalanobisClassifier("diagonal", shared=True),
    "metric": MahalanobisMetric(),
    "mixture": MahalanobisMixture(),
    "low-rank": MahalanobisMixture(2, "low-rank+remainder", rank=1),
    "outliers": MahalanobisOutliers("marginal"),
}
KINDS = [("full", None), ("low-rank+remainder", 2), ("diagonal", None), ("spherical", None)]
WINE = load_wine(return_X_y=True)
IRIS = load_iris(return_X_y=True)
DIGITS = shuffle(*load_digits(return_X_y=True), random_state=0)  # they are sorted by writers


def checks():
    for name, estimator in ESTIMATORS.items():
        for tried, check in estimator_checks_generator(estimator):
            function = getattr(check, "func", check)
            yield pytest.param(tried, check, id=f"{name}-{function.__name__}")


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_accepts_them(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few samples, and of casts in scikit-learn itself
        check(estimator)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_units_do_not_matter(name):
    X, y = WINE
    units = 10.0 ** np.linspace(-4, 4, X.shape[1])
    plain, other = (clone(ESTIMATORS[name]).fit(x, y) for x in (X, X * units))
    if name == "metric":
        # Directions that do not tell classes apart are free to turn: distances are compared.
        first, second = cdist(*[plain.transform(X)] * 2), cdist(*[other.transform(X * units)] * 2)
    elif name == "outliers":
        first, second = plain.p_values(X), other.p_values(X * units)
    else:
        first, second = plain.distances(X), other.distances(X * units)
    np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-9)
    if hasattr(plain, "predict"):
        np.testing.assert_array_equal(plain.predict(X), other.predict(X * units))


@pytest.mark.parametrize("unit", [1e-200, 1e200])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_units_may_be_extreme(name, unit):
    X, y = IRIS
    plain, other = (clone(ESTIMATORS[name]).fit(x, y) for x in (X, X * unit))
    if name == "metric":
        first, second = cdist(*[plain.transform(X)] * 2), cdist(*[other.transform(X * unit)] * 2)
        np.testing.assert_allclose(first, second, atol=1e-6)
    else:
        np.testing.assert_array_equal(plain.predict(X), other.predict(X * unit))
    with pytest.raises(InputError, match="divide X by a constant"):
        clone(ESTIMATORS[name]).fit(X * 1e300, y)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_constant_input_does_not_count(name):
    random = np.random.default_rng(0)
    y = np.arange(117) % 2
    X = random.normal(size=(117, 3)) + y[:, None]
    with_constant = np.c_[X, np.full(117, 37.7)]  # its mean is not exactly 37.7
    fitted = clone(ESTIMATORS[name])
    if isinstance(fitted, MahalanobisMixture):
        fitted.set_params(ridge=1e-3)
    fitted.fit(with_constant, y)
    nearly = with_constant.astype(np.float32)
    use = fitted.transform if name == "metric" else fitted.predict
    np.testing.assert_allclose(use(with_constant), use(nearly), atol=1e-3)


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if n != "metric"])
def test_a_sample_may_be_very_far_away(name):
    X, y = IRIS
    fitted = clone(ESTIMATORS[name]).fit(X, y)
    far = np.full((1, 4), 1e200)
    if name == "outliers":
        assert fitted.predict(far) == -1
        return
    chances = fitted.predict_proba(far)
    assert chances.sum() == pytest.approx(1)
    if len(chances[0]) > 1:
        assert fitted.predict(far) == fitted.distances(far).argmin()


def test_numbers_may_be_those_of_numpy():
    X, y = WINE
    near = make_pipeline(MahalanobisMetric(), KNeighborsClassifier())
    grid = {"mahalanobismetric__n_components": np.arange(1, 4)}
    assert GridSearchCV(near, grid, cv=3, error_score="raise").fit(X, y).best_score_ > 0.9
    MahalanobisMixture(
        np.int64(2), "low-rank+remainder", rank=np.int64(2), ridge=np.float32(1e-3)
    ).fit(X)
    MahalanobisOutliers("marginal", folds=np.int64(3)).fit(X)
    for estimator in (MahalanobisMetric(True), MahalanobisMixture(True)):
        with pytest.raises(InputError, match="n_components is True"):
            estimator.fit(X)


def test_an_estimator_whose_fit_failed_is_not_fitted():
    X, y = IRIS
    uses = {
        MahalanobisClassifier(ridge=-1): "predict",
        MahalanobisMetric(n_components=9): "transform",
        MahalanobisMixture(n_components=999): "predict",
        MahalanobisOutliers(rate=7): "p_values",
    }
    for estimator, use in uses.items():
        for _ in range(2):
            with pytest.raises(NotFittedError):
                getattr(estimator, use)(X)
            with pytest.raises(InputError):
                estimator.fit(X, y)
    with pytest.raises(NotFittedError):
        _ = MahalanobisMetric().precision_


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_pickled_estimator_is_the_same(name):
    X, y = IRIS
    fitted = clone(ESTIMATORS[name]).fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    use = "transform" if name == "metric" else "predict"
    np.testing.assert_array_equal(getattr(fitted, use)(X), getattr(again, use)(X))


class TestClassifier:
    @pytest.mark.parametrize("shared", [True, False])
    def test_probabilities_are_those_of_gaussians(self, shared):
        X, y = IRIS
        classifier = MahalanobisClassifier(shared=shared, shrinkage=0.0).fit(X, y)
        means = np.stack([X[y == c].mean(0) for c in range(3)])
        pooled = (X - means[y]).T @ (X - means[y]) / (len(X) - 3)
        covariances = [pooled if shared else np.cov(X[y == c].T) for c in range(3)]
        joint = np.stack(
            [multivariate_normal(m, c).logpdf(X) for m, c in zip(means, covariances, strict=True)],
            axis=1,
        )
        slow = log_softmax(joint, axis=1)
        np.testing.assert_allclose(classifier.predict_log_proba(X), slow, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(classifier.predict_proba(X), np.exp(slow), atol=1e-9)
        two = MahalanobisClassifier(shared=shared, shrinkage=0.0).fit(X[:100], y[:100])
        chances = np.log(two.predict_proba(X[:100]))
        np.testing.assert_allclose(
            two.decision_function(X[:100]), chances[:, 1] - chances[:, 0], rtol=1e-6
        )

    @pytest.mark.parametrize("standardise", [True, False])
    def test_distances_are_those_of_scipy(self, standardise):
        X, y = WINE
        ours = MahalanobisClassifier(standardise=standardise).fit(X, y)
        for place, label in enumerate(ours.classes_):
            x = X[y == label] / ours.scale_
            sample = np.cov(x.T)
            weight = ledoit_wolf(x)[1]
            sphere = np.trace(sample) / len(sample) * np.eye(len(sample))
            precision = np.linalg.inv((1 - weight) * sample + weight * sphere)
            mean = x.mean(0, keepdims=True)
            slow = cdist(X / ours.scale_, mean, "mahalanobis", VI=precision)[:, 0]
            np.testing.assert_allclose(ours.distances(X)[:, place], slow, rtol=1e-6)

    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize(("kind", "rank"), [*KINDS, ("shared-basis", 2)])
    def test_every_kind_tells_wines_apart(self, kind, rank, shared):
        X, y = WINE
        classifier = MahalanobisClassifier(kind, rank=rank, shared=shared).fit(X[::2], y[::2])
        assert classifier.score(X[1::2], y[1::2]) > 0.9

    def test_fewer_samples_than_inputs(self):
        X, y = DIGITS
        for shared, least in ((False, 0.8), (True, 0.88)):  # 30 of a class, 64 inputs
            classifier = MahalanobisClassifier(shared=shared).fit(X[:300], y[:300])
            assert classifier.score(X[300:], y[300:]) > least

    def test_labels_may_be_texts_and_priors_shares(self):
        X, y = IRIS
        names = np.array(["setosa", "versicolor", "virginica"])[y]
        equal = MahalanobisClassifier(priors="equal").fit(X, names)
        given = MahalanobisClassifier(priors=[1 / 3] * 3).fit(X, names)
        assert set(equal.predict(X)) == set(names)
        np.testing.assert_allclose(equal.predict_proba(X), given.predict_proba(X))
        likely = MahalanobisClassifier(priors=[0.01, 0.01, 0.98]).fit(X, names)
        assert (likely.predict(X) == "virginica").sum() > (equal.predict(X) == "virginica").sum()

    def test_is_searched_in_a_grid(self):
        X, y = WINE
        grid = {"shared": [True, False], "shrinkage": [0.1, "ledoit-wolf"]}
        search = GridSearchCV(MahalanobisClassifier(), grid, cv=3).fit(X, y)
        assert search.best_score_ > 0.95

    @pytest.mark.parametrize(
        ("options", "y", "message"),
        [
            ({}, [0] * 6, "one class"),
            ({}, [0, 0, 0, 0, 0, 1], "has one sample.*shared=True"),
            ({"shared": True}, [0, 1, 2, 3, 4, 5], "no spread within classes"),
            ({"kind": "low-rank", "rank": 1}, [0, 0, 0, 1, 1, 1], "low-rank.remainder"),
            ({"kind": "round"}, [0, 0, 0, 1, 1, 1], "kind is 'round'"),
            ({"priors": [0.5, 0.6]}, [0, 0, 0, 1, 1, 1], "2 positive shares that sum to 1"),
            ({"priors": "even"}, [0, 0, 0, 1, 1, 1], "2 positive shares"),
            ({"priors": ["a", "b"]}, [0, 0, 0, 1, 1, 1], "2 positive shares"),
            ({"shrinkage": None}, [0, 0, 0, 1, 1, 1], "shrinkage is None"),
            ({"ridge": "a"}, [0, 0, 0, 1, 1, 1], "ridge is 'a'"),
            ({"kind": "low-rank+remainder", "rank": 3}, [0, 0, 0, 1, 1, 1], "rank is 3.* 1 to 2"),
            ({}, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], "continuous values.* taken for classes"),
        ],
    )
    def test_refuses(self, options, y, message):
        X = np.random.default_rng(0).normal(size=(6, 2))
        with pytest.raises(ValueError, match=message):
            MahalanobisClassifier(**options).fit(X, y)


class TestMetric:
    @pytest.mark.parametrize("labelled", [True, False])
    @pytest.mark.parametrize("shrinkage", [0.0, "ledoit-wolf"])
    def test_distances_are_those_of_the_covariance(self, labelled, shrinkage):
        X, y = WINE
        metric = MahalanobisMetric(shrinkage=shrinkage).fit(X, y if labelled else None)
        precision = np.linalg.inv(metric.covariance_)
        slow = cdist(X, X, "mahalanobis", VI=precision)
        moved = metric.transform(X)
        np.testing.assert_allclose(cdist(moved, moved), slow, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(metric.precision_, precision, rtol=1e-5, atol=1e-9)

    def test_without_shrinkage_the_covariance_is_that_of_the_samples(self):
        X, y = WINE
        np.testing.assert_allclose(
            MahalanobisMetric(shrinkage=0.0).fit(X).covariance_, np.cov(X.T), rtol=1e-9
        )
        means = np.stack([X[y == c].mean(0) for c in range(3)])
        pooled = (X - means[y]).T @ (X - means[y]) / (len(X) - 3)
        np.testing.assert_allclose(
            MahalanobisMetric(shrinkage=0.0).fit(X, y).covariance_, pooled, rtol=1e-9, atol=1e-9
        )

    def test_first_directions_are_those_of_linear_discriminant_analysis(self):
        X, y = WINE
        metric = MahalanobisMetric(2, shrinkage=0.0).fit(X, y)
        theirs = LinearDiscriminantAnalysis(solver="svd").fit(X, y).transform(X)
        ours = metric.transform(X)
        assert ours.shape == (len(X), 2)
        for place in range(2):
            assert abs(np.corrcoef(ours[:, place], theirs[:, place])[0, 1]) > 1 - 1e-9

    def test_without_labels_long_axes_come_first(self):
        X = np.random.default_rng(0).normal(size=(500, 3)) * [1, 5, 2]
        metric = MahalanobisMetric(1, standardise=False, shrinkage=0.0).fit(X)
        assert np.abs(metric.components_[0]).argmax() == 1
        assert metric.get_feature_names_out().tolist() == ["mahalanobismetric0"]

    def test_neighbours_are_found_by_what_tells_classes_apart(self):
        random = np.random.default_rng(0)
        y = np.arange(400) % 2
        X = np.c_[y + 0.1 * random.normal(size=400), 200 * random.normal(size=400)]
        near = make_pipeline(MahalanobisMetric(), KNeighborsClassifier(1)).fit(X[:200], y[:200])
        plain = KNeighborsClassifier(1).fit(X[:200], y[:200])
        assert near.score(X[200:], y[200:]) > 0.98
        assert plain.score(X[200:], y[200:]) < 0.9

    @pytest.mark.parametrize("count", [0, 14, 1.5, "all"])
    def test_refuses(self, count):
        with pytest.raises(InputError, match="give a whole number from 1 to 13"):
            MahalanobisMetric(count).fit(*WINE)


class TestMixture:
    @pytest.mark.parametrize(
        ("kind", "theirs"), [("full", "full"), ("diagonal", "diag"), ("spherical", "spherical")]
    )
    def test_that_of_scikit_learn_stays_where_ours_ends(self, kind, theirs):
        X = IRIS[0]
        options = {"tol": 1e-9, "max_iter": 1000}
        ours = MahalanobisMixture(3, kind, standardise=False, ridge=0.0, **options).fit(X)
        precisions = np.linalg.inv(ours.covariances_)
        if kind != "full":
            precisions = np.diagonal(precisions, axis1=1, axis2=2)
        peer = GaussianMixture(
            3,
            covariance_type=theirs,
            reg_covar=0.0,
            weights_init=ours.weights_,
            means_init=ours.means_,
            precisions_init=precisions if kind != "spherical" else precisions[:, 0],
            **options,
        ).fit(X)
        assert ours.lower_bound_ == pytest.approx(peer.lower_bound_, abs=1e-6)
        assert ours.lower_bound_ == pytest.approx(ours.score(X), abs=1e-9)
        np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=1e-3)
        assert ours.aic(X) == pytest.approx(peer.aic(X), rel=1e-6)
        assert ours.bic(X) == pytest.approx(peer.bic(X), rel=1e-6)

    @pytest.mark.parametrize("standardise", [True, False])
    @pytest.mark.parametrize(("kind", "rank"), KINDS)
    def test_densities_are_those_of_scipy(self, kind, rank, standardise):
        X = IRIS[0]
        mixture = MahalanobisMixture(
            3, kind, rank=rank, ridge=1e-3, standardise=standardise, tol=1e-2
        ).fit(X)
        parts = zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True)
        slow = sum(w * multivariate_normal(m, c).pdf(X) for w, m, c in parts)
        np.testing.assert_allclose(mixture.score_samples(X), np.log(slow), rtol=1e-6)
        assert mixture.predict_proba(X).sum(1) == pytest.approx(1)

    @pytest.mark.parametrize(("kind", "rank"), KINDS)
    def test_the_likelihood_never_falls(self, kind, rank):
        bounds = []
        for steps in range(1, 8):
            mixture = MahalanobisMixture(3, kind, rank=rank, ridge=0.0, tol=0.0, max_iter=steps)
            with pytest.warns(ConvergenceWarning, match=f"after {steps} steps"):
                bounds.append(mixture.fit(WINE[0]).lower_bound_)
        assert (np.diff(bounds) > -1e-6 * np.abs(bounds[1:])).all()

    def test_one_gaussian_of_low_rank_is_that_of_principal_components(self):
        X = IRIS[0]
        mixture = MahalanobisMixture(
            1, "low-rank+remainder", rank=2, ridge=0.0, standardise=False
        ).fit(X)
        values, axes = np.linalg.eigh(np.cov(X.T, bias=True))
        values[:2] = values[:2].mean()  # the remainder
        np.testing.assert_allclose(mixture.covariances_[0], axes * values @ axes.T, atol=1e-9)

    def test_low_rank_of_all_axes_counts_as_full(self):
        X = IRIS[0]
        full, low = (
            MahalanobisMixture(2, kind, rank=rank).fit(X)
            for kind, rank in (("full", None), ("low-rank+remainder", 4))
        )
        assert low.bic(X) == pytest.approx(full.bic(X), rel=1e-6)

    def test_the_ridge_is_a_share_of_the_variance(self):
        X = IRIS[0]
        small, large = (
            MahalanobisMixture(2, ridge=0.1, standardise=False).fit(X * unit) for unit in (1e-3, 1)
        )
        np.testing.assert_allclose(small.covariances_ * 1e6, large.covariances_, rtol=1e-6)

    def test_a_collapsed_gaussian_is_refused(self):
        X = np.repeat(np.random.default_rng(0).normal(size=(3, 2)), 5, axis=0)
        for kind in ("full", "diagonal"):
            with pytest.raises(InputError, match="fewer n_components or a ridge"):
                MahalanobisMixture(3, kind, ridge=0.0).fit(X)
            MahalanobisMixture(3, kind, ridge=1e-3).fit(X)
        twice = np.repeat(IRIS[0][:, :1], 2, axis=1)
        with pytest.raises(InputError, match="directions without spread; give fewer"):
            MahalanobisMixture(ridge=0.0).fit(twice)

    def test_samples_have_the_moments_of_the_mixture(self):
        X = WINE[0]
        mixture = MahalanobisMixture(2).fit(X)
        drawn, numbers = mixture.sample(20_000)
        share = np.bincount(numbers) / len(numbers)
        np.testing.assert_allclose(share, mixture.weights_, atol=0.02)
        np.testing.assert_allclose(drawn.mean(0) / X.std(0), X.mean(0) / X.std(0), atol=0.05)

    def test_more_starts_are_not_worse(self):
        X = WINE[0]
        one, five = (MahalanobisMixture(5, "diagonal", n_init=n).fit(X) for n in (1, 5))
        assert five.lower_bound_ >= one.lower_bound_

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_components": 200}, "from 1 to 150, the number of samples"),
            ({"n_components": 1.5}, "whole number"),
            ({"kind": "tied"}, "kind is 'tied'"),
            ({"kind": "low-rank+remainder"}, "give a rank with"),
            ({"rank": 2}, "and with no other kind"),
            ({"ridge": -1}, "ridge is -1"),
            ({"tol": math.nan}, "tol is nan"),
            ({"max_iter": 0}, "max_iter is 0; give a whole number from 1 up"),
        ],
    )
    def test_refuses(self, options, message):
        with pytest.raises(InputError, match=message):
            MahalanobisMixture(**options).fit(IRIS[0])

    def test_draws_only_when_fitted_and_at_least_one(self):
        with pytest.raises(NotFittedError):
            MahalanobisMixture().sample()
        with pytest.raises(InputError, match="n_samples is 0"):
            MahalanobisMixture().fit(IRIS[0]).sample(0)


class TestOutliers:
    @pytest.mark.parametrize("method", ["marginal", "neighbours", "auto"])
    @pytest.mark.parametrize("samples", [60, 300])
    def test_the_rate_holds_for_new_samples(self, method, samples):
        random = np.random.default_rng(0)
        factor = random.normal(size=(10, 10))
        rates = []
        draws = 10 if method == "auto" else 40
        for _ in range(draws):
            known, new = (random.normal(size=(n, 10)) @ factor for n in (samples, 500))
            detector = MahalanobisOutliers(method, rate=0.1).fit(known)
            rates.append((detector.predict(new) == -1).mean())
        assert 0.07 < np.mean(rates) < 0.12

    @pytest.mark.parametrize("method", ["marginal", "neighbours"])
    def test_the_rate_holds_with_fewer_samples_than_inputs(self, method):
        random = np.random.default_rng(0)
        rates = []
        for _ in range(30):
            known, new = (random.normal(size=(n, 60)) for n in (40, 300))
            detector = MahalanobisOutliers(method, rate=0.1).fit(known)
            rates.append((detector.predict(new) == -1).mean())
        assert 0.06 < np.mean(rates) < 0.125

    @pytest.mark.parametrize("labelled", [False, True])
    def test_known_samples_decide_whether_to_standardise(self, labelled):
        X, y = DIGITS
        X, y = X[y < 8], y[y < 8]
        known, new = X[y < 5], X[y >= 5]
        labels = y[y < 5] if labelled else None
        chosen, forced = (
            MahalanobisOutliers(standardise=standardise).fit(known, labels)
            for standardise in ("auto", True)
        )
        assert (chosen.standardise_, forced.standardise_) == (False, True)
        found = [(detector.predict(new) == -1).mean() for detector in (chosen, forced)]
        assert found[0] > found[1] + 0.02
        # A named method, and inputs of several units, are standardised.
        assert MahalanobisOutliers("marginal").fit(known).standardise_
        X, y = WINE
        units = 10.0 ** np.linspace(-100, 100, X.shape[1])
        plain, other = (MahalanobisOutliers().fit(x, y) for x in (X, X * units))
        assert plain.standardise_
        np.testing.assert_allclose(plain.p_values(X), other.p_values(X * units))

    def test_marks_of_outliers_are_no_classes(self):
        X, y = IRIS
        with pytest.raises(InputError, match="labels -1 and 1, which mark outliers"):
            MahalanobisOutliers().fit(X, np.where(y > 0, 1, -1))

    def test_what_lies_between_small_clusters_is_far_from_neighbours(self):
        random = np.random.default_rng(0)
        X = np.r_[random.normal(size=(20, 2)) - 10, random.normal(size=(20, 2)) + 10]
        assert MahalanobisOutliers("neighbours").fit(X).predict([[0.0, 0.0]]) == -1

    def test_classes_are_asked_for(self):
        X, y = IRIS
        with pytest.raises(InputError, match=r"needs classes; give fit\(X, y\), or"):
            MahalanobisOutliers("low-rank").fit(X)
        with pytest.raises(InputError, match="class 2 has one sample"):
            MahalanobisOutliers("low-rank").fit(X[:101], y[:101])
        MahalanobisOutliers("marginal").fit(X[:101], y[:101])
        with pytest.raises(InputError, match="all samples of X are the same"):
            MahalanobisOutliers().fit(np.ones((30, 2)))

    def test_parts_agree(self):
        X, y = WINE
        detector = MahalanobisOutliers("marginal").fit(X[y == 0])
        scores = detector.score_samples(X)
        np.testing.assert_array_equal(detector.decision_function(X), scores - detector.offset_)
        rejected = detector.predict(X) == -1
        np.testing.assert_array_equal(rejected, detector.p_values(X) <= detector.rate_)
        assert rejected[y == 0].mean() < 0.1 < 0.9 < rejected[y != 0].mean()

    def test_classes_make_it_sharper(self):
        X, y = DIGITS
        known = y < 6
        new, unknown = X[known][900:], X[y >= 6]
        rejected = []
        for labels in (None, y[known][:900]):
            detector = MahalanobisOutliers("marginal" if labels is None else "class-gaussians")
            detector.fit(X[known][:900], labels)
            assert (detector.predict(new) == -1).mean() < 0.12
            rejected.append((detector.predict(unknown) == -1).mean())
        assert rejected[1] > rejected[0] + 0.2

    def test_fewer_samples_than_inputs(self):
        random = np.random.default_rng(0)
        detector = MahalanobisOutliers("marginal", rate=0.1).fit(random.normal(size=(40, 100)))
        assert (detector.predict(random.normal(size=(200, 100))) == -1).mean() < 0.3
        assert (detector.predict(10 + random.normal(size=(20, 100))) == -1).all()

    def test_too_few_samples_for_the_rate_are_said(self):
        X = np.random.default_rng(0).normal(size=(12, 2))
        with pytest.warns(UserWarning, match="cannot be set from 12 samples; 0.077 is used.*19"):
            detector = MahalanobisOutliers("marginal").fit(X)
        assert detector.rate_ == pytest.approx(1 / 13)
        assert detector.predict([[100.0, 100.0]]) == -1

    def test_its_choice_says_why(self):
        X, y = WINE
        detector = MahalanobisOutliers().fit(X, y)
        assert "chosen from" in detector.choice_.reason
        assert MahalanobisOutliers("marginal").fit(X).choice_.method == "marginal"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "magic"}, "method is 'magic'"),
            ({"method": "low-rank", "options": {"ranks": 3}}, "ranks"),
            ({"options": {"rank": 3}}, '"auto" chooses its options'),
            ({"rate": 1.5}, "reject rate is 1.5"),
            ({"options": [1]}, "give a dict"),
            ({"options": {"seed": 1}}, "'seed', which is no option"),
            ({"folds": 179}, "from 1 to 178"),
            ({"folds": 1}, "folds is 1; give 2 or more"),
            ({"standardise": "no"}, 'standardise is .no.; give True, False or "auto"'),
        ],
    )
    def test_refuses(self, options, message):
        with pytest.raises(InputError, match=message):
            MahalanobisOutliers(**options).fit(*WINE)


@pytest.mark.parametrize(
    "estimator",
    [
        MahalanobisClassifier(standardise="auto"),
        MahalanobisClassifier(shared="no"),
        MahalanobisMetric(standardise="no"),
        MahalanobisMixture(standardise="no"),
    ],
    ids=repr,
)
def test_words_are_no_switches(estimator):
    with pytest.raises(InputError, match=r"(standardise|shared) is .*; give True or False"):
        estimator.fit(*IRIS)


def test_a_label_for_each_sample():
    X, y = IRIS
    for estimator in (MahalanobisClassifier(), MahalanobisMetric(), MahalanobisOutliers()):
        with pytest.raises(InputError, match="150 samples but y has 149 labels"):
            estimator.fit(X, y[:-1])
