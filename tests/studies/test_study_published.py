"""The published figures against the author's table, typed a second time and by rows."""

import pytest

from mahalens.studies.gaussian.config import MODELS
from mahalens.studies.gaussian.metrics import METRICS
from mahalens.studies.gaussian.published import PUBLISHED, published_mean

DIMS = (2, 10, 100)

MSE = {  # mean (variance), minimum / maximum
    "relu": [
        (0.0284, 1.94e-3, 2e-6, 0.2080),
        (0.0279, 1.70e-5, 0.0210, 0.0373),
        (0.0077, 3.6e-5, 0.0020, 0.0293),
    ],
    "abs": [
        (0.1220, 9.94e-3, 0, 0.2069),
        (0.0339, 1e-6, 0.0334, 0.0347),
        (0.0165, 2e-6, 0.0150, 0.0201),
    ],
    "sigmoid": [
        (0.2675, 7e-6, None, None),
        (0.2743, 1.6e-5, None, None),
        (0.1274, 2.1e-5, None, None),
    ],
}
MEAN_AND_SD = {
    ("mean_distance", "relu"): [(0.37, 0.46), (0.18, 0.09), (0.57, 0.09)],
    ("mean_distance", "abs"): [(1.01, 1.28), (0.07, 0.01), (0.04, 0.00)],
    ("mean_distance", "sigmoid"): [(3.57, 1.79), (5.12, 0.55), (5.28, 0.14)],
    ("sphericity", "relu"): [(1.90, 0.56), (5.74, 2.08), (23.08, 0.58)],
    ("sphericity", "abs"): [(0.85, 0.71), (1.06, 0.00), (3.64, 0.18)],
    ("sphericity", "sigmoid"): [(3.41, 0.03), (7.85, 0.25), (36.86, 0.30)],
    ("sphericity", "ground-truth"): [(9.1e-7, None), (5.8e-6, None), (2.4e-3, None)],
    ("mirrored_pairs", "relu"): [(0.40, 0.60), (0, None), (0, None)],
}


@pytest.mark.parametrize("model", MSE)
def test_training_loss(model):
    for dim, (mean, variance, low, high) in zip(DIMS, MSE[model], strict=True):
        figure = PUBLISHED["train_mse", model, dim]
        assert (figure.mean, figure.variance, figure.min, figure.max) == (mean, variance, low, high)
        assert figure.std is None


@pytest.mark.parametrize(("metric", "model"), MEAN_AND_SD)
def test_means_and_deviations(metric, model):
    for dim, (mean, std) in zip(DIMS, MEAN_AND_SD[metric, model], strict=True):
        figure = PUBLISHED[metric, model, dim]
        assert (figure.mean, figure.std) == (mean, std)
        assert (figure.variance, figure.min, figure.max) == (None, None, None)


def test_nothing_else_is_said_to_be_published():
    typed = {("train_mse", model, dim) for model in MSE for dim in DIMS}
    typed |= {(metric, model, dim) for metric, model in MEAN_AND_SD for dim in DIMS}
    assert set(PUBLISHED) == typed
    assert all(metric in METRICS and model in MODELS for metric, model, _ in PUBLISHED)


def test_detail_leaves_out_what_was_not_published():
    assert PUBLISHED["train_mse", "abs", 2].detail() == {
        "variance": 9.94e-3,
        "min": 0.0,
        "max": 0.2069,
    }
    assert PUBLISHED["sphericity", "abs", 10].detail() == {"std": 0.0}
    assert PUBLISHED["sphericity", "ground-truth", 2].detail() == {}


def test_published_mean():
    assert published_mean("train_mse", "abs", 2) == 0.1220
    assert published_mean("mirrored_pairs", "relu", 10) == 0.0
    assert published_mean("train_mse", "abs", 3) is None
    assert published_mean("test_mse", "abs", 2) is None
    assert published_mean("train_mse", "ground-truth", 2) is None
