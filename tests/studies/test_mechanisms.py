"""The mechanisms study: readings by hand, the loss of one against the rest, and the heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import config_of
from torch.nn import functional as F

from mahalens import data as sets
from mahalens.errors import InputError
from mahalens.nn import Chain
from mahalens.studies import mechanisms as study
from mahalens.studies import networks as of
from mahalens.studies.mechanisms import NETWORKS, STUDY
from mahalens.studies.run import Context
from mahalens.studies.study import Job, Results
from mahalens.train import TrialStack


def small(**options):
    return config_of("mechanisms", **options)


def measures_of(config, model, first=0, count=1):
    return study.measure(config, Job("raw", model, first, count), Context())[model]


def samples(n=40, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return score, torch.arange(n) % classes


# --- Models and claims ------------------------------------------------------------------------


def test_claims_are_about_models_and_metrics_that_there_are():
    known = {*study.MODELS, *(f"untrained {name}" for name in study.MODELS)}

    def check(predicate):
        for part in getattr(predicate, "parts", ()):
            check(part)
        for field in ("model", "than", "base", "than_base"):
            assert getattr(predicate, field, "relu") in known
        assert getattr(predicate, "metric", "lost") in study.METRICS

    for claim in study.CLAIMS:
        check(claim.predicate)
    assert all(a in study.MODELS and b in study.MODELS for a, b in study.PAIRS)
    assert len({model.label for model in study.MODELS.values()}) == len(study.MODELS)


def test_networks_for_as_many_classes_as_there_are_are_refused():
    config = small(data="iris", train_size=None, models=("relu2", "relu2-of-3"))
    with pytest.raises(InputError, match="relu2-of-3: iris has 3 classes, which leaves none out"):
        study.check(config, None)


# --- Readings ---------------------------------------------------------------------------------


def test_cross_entropy_pushes_down_as_much_as_it_pulls_up():
    score, y = samples()
    assert study.push(NETWORKS["relu"], 7 * score, y) == pytest.approx(1, rel=1e-12)
    # Through a ReLU only active outputs are pushed.
    probability = score.relu().softmax(1)
    slope = (probability - F.one_hot(y, 4)) * (score > 0)
    own = F.one_hot(y, 4).bool()
    wanted = -slope[~own].sum() / slope[own].sum()
    assert study.push(NETWORKS["relu2"], score, y) == pytest.approx(float(wanted), rel=1e-9)
    assert np.isnan(study.push(NETWORKS["relu2-neg"], score, y))


def test_one_against_the_rest_pushes_down_by_as_many_as_there_are_other_classes():
    y = torch.arange(40) % 4
    score = torch.full((40, 4), 1e-9, dtype=torch.float64)  # active, at probabilities of a half
    assert study.push(NETWORKS["relu2-one-vs-rest"], score, y) == pytest.approx(3, rel=1e-6)
    assert study.push(NETWORKS["relu2-balanced"], score, y) == pytest.approx(1, rel=1e-6)


def test_the_mean_correlation_is_numpys():
    rows = samples()[0].T
    wanted = np.abs(np.corrcoef(rows.numpy()))[np.triu_indices(4, 1)].mean()
    assert study.mean_correlation(rows) == pytest.approx(wanted, rel=1e-12)
    constant = torch.cat([rows, torch.ones(1, 40, dtype=torch.float64)])
    assert study.mean_correlation(constant) == pytest.approx(wanted, rel=1e-12)
    assert np.isnan(study.mean_correlation(torch.ones(3, 5)))


def test_intruders_are_none_if_classes_are_apart_and_all_if_outputs_are_equal():
    y = torch.arange(12) % 3
    assert study.intruders(F.one_hot(y, 3).double(), y) == 0
    assert study.intruders(torch.zeros(12, 3), y) == 100
    assert study.intruders(-F.one_hot(y, 3).double(), y) == 100


def test_centres_are_ranked():
    # Two trials, two outputs, distances to the centres of two classes.
    positions = torch.tensor([[[0.1, 2.0], [0.5, 1.0]], [[3.0, 1.0], [4.0, 5.0]]])
    ranks = study.centre_ranks(positions)
    assert ranks["furthest_centre"].tolist() == [1.5, 4.0]
    assert ranks["own_nearest"].tolist() == [50, 0]
    assert ranks["own_furthest"].tolist() == [50, 100]


def test_nodes_are_read_by_hand():
    y = torch.arange(96) % 2
    step = torch.linspace(-1, 1, 48, dtype=torch.float64).repeat_interleave(2)
    # The first node tells both classes apart, the second does not, but one is twice as wide.
    hidden = torch.stack([10.0 * y + step, (1 + y) * step], 1)
    read = study.read_nodes(hidden, y, 2)
    assert read["node_accuracy"] == 100
    assert read["node_spreads"] == pytest.approx(1)  # the lower of two medians
    assert study.read_nodes(hidden[:, 1:], y, 2)["node_spreads"] == pytest.approx(2)
    assert study.read_nodes(hidden[:, 1:], y, 2)["node_accuracy"] < 80


def test_a_job_reads_what_plain_modules_give():
    config = small(models=("relu2",))
    own = measures_of(config, "relu2", count=2)
    data = of.training_data("digits", 100, 0)
    chain = Chain.parse(study.text_of("relu2", 10), inputs=64)
    start = of.start_of(chain, 0, range(2))
    for trial in range(2):
        score = start[trial][:3](data.x).detach().double()
        wanted = study.mean_correlation(score.T)
        assert float(own.metrics["output_correlation_start"][trial]) == pytest.approx(wanted, 1e-4)
    assert own.metrics["dead_outputs"].shape == (2,)


# --- Fewer classes, other losses, heads -------------------------------------------------------


def test_samples_of_some_classes_keep_their_pixels():
    data = of.training_data("digits", 100, 0)
    inputs = of.pixel_inputs(data, "normalised")
    draws = [
        study.with_classes(data, inputs, 3, sets.stream(0, "classes", trial)) for trial in (0, 0, 1)
    ]
    (fewer, (x, test_x)), again, other = draws
    assert fewer.classes == 3
    assert (len(x), len(test_x)) == (len(fewer.y), len(fewer.test_y))
    assert torch.equal(fewer.x, again[0].x)
    assert not torch.equal(fewer.x[:20], other[0].x[:20])
    for label in range(3):
        rows = fewer.x[fewer.y == label]
        (place,) = (data.x == rows[0]).all(1).nonzero()[0].tolist()
        assert torch.equal(rows, data.x[data.y == data.y[place]])
        assert torch.equal(x[fewer.y == label], inputs[0][data.y == data.y[place]])


@pytest.mark.parametrize("balanced", [False, True])
def test_one_against_the_rest_is_the_logistic_loss_of_torch(balanced):
    chain = Chain.parse("Linear(5), ReLU, Linear(4, bias=False)", inputs=3)
    stack = TrialStack.from_seeds(chain, range(3))
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    y = torch.arange(50) % 4
    kind = of.OneVsRest(4, balanced=balanced)
    objective = of.OtherLoss(chain, x, y, engine="compiled", kind=kind)
    assert objective.engine == "torch"
    losses, gradient = objective.loss_and_gradient(stack)
    assert torch.allclose(losses, objective.loss(stack))
    on, off = (2, 2 / 3) if balanced else (1, 1)

    def loss(output):
        hot = F.one_hot(y, 4).float()
        every = F.binary_cross_entropy_with_logits(output, hot, reduction="none")
        return (every * torch.where(hot > 0, on, off)).sum() / 50

    check_by_autograd(stack, x, losses, gradient, loss)


def check_by_autograd(stack, x, losses, gradient, loss):
    for trial in range(len(stack)):
        module = stack[trial]
        wanted = loss(module(x))
        wanted.backward()
        grads = {name: part.grad[None] for name, part in module.named_parameters()}
        assert torch.allclose(losses[trial], wanted.detach(), rtol=1e-5)
        plain = TrialStack.from_tensors(stack.model, grads).values[0]
        assert torch.allclose(gradient[trial], plain, rtol=1e-4, atol=1e-5)


def test_the_rbf_is_cross_entropy_of_squared_distances():
    chain = Chain.parse("Linear(5), OffsetL2(4), Neg", inputs=3)
    stack = TrialStack.from_seeds(chain, range(2))
    x, y = torch.randn(50, 3, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 4
    objective = of.OtherLoss(chain, x, y, kind=of.SquaredDistances())
    losses, gradient = objective.loss_and_gradient(stack)
    check_by_autograd(stack, x, losses, gradient, lambda out: F.cross_entropy(-out.square() / 2, y))


def test_both_kinds_of_targets_have_the_same_weight_if_balanced():
    loss = of.OneVsRest(10, balanced=True)
    assert (loss.on * 1, loss.off * 9) == pytest.approx((5, 5))


def test_the_mahalanobis_head_starts_from_the_first_layer_of_all_networks(monkeypatch):
    seen = {}
    plain = study.train.SGD

    def spy(objective, start, *args, **options):
        seen["start"] = start
        return plain(objective, start, *args, **options)

    monkeypatch.setattr(study.train, "SGD", spy)
    config = small(models=(study.MAHALANOBIS,), epochs=3)
    own = measures_of(config, study.MAHALANOBIS, count=2)
    assert own.metrics["test_accuracy"].isfinite().all()
    twin = of.start_of(Chain.parse(study.text_of("relu", 10), inputs=64), 0, range(2))
    x = torch.ones(1, 64)
    for trial in range(2):
        module = seen["start"][trial]
        assert torch.equal(module[0].weight, twin[trial][0].weight)
        rows = module[1](module[0](x)).reshape(10, study.RANK)
        assert torch.allclose(module(x)[0], -rows.norm(dim=1))


def test_what_is_lost_is_a_share_of_what_relu_has_above_guessing():
    config = small()
    names = ("relu", "relu2", "relu2-of-3")
    measures = {("raw", n): measures_of(config, n) for n in names}
    for name, accuracy in zip(names, (90.0, 50.0, 50.0), strict=True):
        measures["raw", name].metrics["test_accuracy"][:] = accuracy
    results = Results(measures, {})
    study.finish(config, results)
    assert float(results.measures["raw", "relu2"].metrics["lost"][0]) == pytest.approx(50)
    assert results.measures["raw", "relu2-of-3"].metrics["lost"].isnan().all()  # without its ReLU
    assert ("raw", "untrained relu2", "output_correlation") in results.evidence
    assert STUDY.shown[0] == "test_accuracy"
