"""The heads study: what is known, networks and detectors beside the obvious slow way."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import config_of, make_run
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from mahalens.data import load_set
from mahalens.errors import InputError
from mahalens.nn import DistanceHead, compactness_penalty
from mahalens.studies import heads as study
from mahalens.studies import heads_networks as of
from mahalens.studies.claims import Evidence, judge
from mahalens.studies.run import Context, start
from mahalens.studies.samples import standardise
from mahalens.studies.study import SOURCES, Job, Measures, Results

make = study.HeadsConfig.with_defaults
SMALL = make(trials=2, epochs=1, train_size=300)
DIGITS = make(trials=2)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def task():
    return of.task_of(SMALL, "digits", 0)


# --- What is known ----------------------------------------------------------------------------


def rows(x):
    """Return samples as a set that can be compared, whatever they are scaled by."""
    low, high = x.min(1, keepdim=True).values, x.max(1, keepdim=True).values
    return {tuple(row) for row in ((x - low) / (high - low)).mul(1009).round().int().tolist()}


@pytest.mark.parametrize("trial", [0, 1])
def test_left_out_classes_and_held_out_samples_are_never_seen(trial):
    whole = load_set("digits")
    x, y = torch.cat((whole.x, whole.test_x)), torch.cat((whole.y, whole.test_y))
    task = of.task_of(DIGITS, "digits", trial)
    assert task.classes == 7
    assert task.y.unique().tolist() == task.held_y.unique().tolist() == list(range(7))
    left_out = [label for label in range(10) if rows(x[y == label]) <= rows(task.unknown)]
    assert len(left_out) == 3
    assert len(task.unknown) == sum(int((y == label).sum()) for label in left_out)
    known = torch.cat((task.x, task.held_x, task.test_x))
    assert not rows(known) & rows(task.unknown)
    assert len(known) + len(task.unknown) == 1797
    assert not rows(task.held_x) & (rows(task.x) | rows(task.test_x))
    assert len(task.held_y) == pytest.approx(0.2 * (len(task.y) + len(task.held_y)), abs=7)
    # What is trained with alone says what mean and spread are.
    together = torch.cat((task.x, task.held_x)).double()
    assert abs(float(together.mean())) < 1e-6
    assert float(together.std(correction=0)) == pytest.approx(1, abs=1e-6)
    again, other = (of.task_of(DIGITS, "digits", t) for t in (trial, trial + 1))
    assert torch.equal(task.x, again.x)
    assert torch.equal(task.unknown, again.unknown)
    assert task.x.shape != other.x.shape or not torch.equal(task.x, other.x)


def test_the_other_set_is_standardised_like_the_known_one(monkeypatch):
    digits = load_set("digits")
    x = torch.rand(30, 64, generator=torch.Generator().manual_seed(0)) * 16
    other = type(digits)("mnist", x, digits.y[:30], x, digits.y[:30], (8, 8), 16.0, "made up")
    sets = {"fashion-mnist": digits, "mnist": other}
    monkeypatch.setattr(of, "whole_set", sets.__getitem__)
    task = of.task_of(make(data=["fashion-mnist"], published=True), "fashion-mnist", 0)
    assert torch.equal(task.unknown, standardise(digits.x, other.test_x, pixels=True)[1])
    assert task.classes == 10
    assert len(task.y) + len(task.held_y) == len(digits.y)
    task = of.task_of(make(data=["fashion-mnist"], train_size=300), "fashion-mnist", 0)
    assert len(task.y) + len(task.held_y) == 300


def test_classes_that_are_known_where_numbers_have_gaps():
    labels = of.draw_known(torch.tensor([0, 2, 4, 2]), torch.Generator().manual_seed(0))
    assert sorted(labels[[0, 2, 4]].tolist()) == [-1, 0, 1]
    assert labels[[1, 3]].tolist() == [-1, -1]


def test_shuffling_keeps_the_values_of_each_sample():
    x = drawn(5, 30)
    mixed = of.shuffle(x, torch.Generator().manual_seed(1))
    assert torch.equal(mixed.sort(1).values, x.sort(1).values)
    assert not torch.equal(mixed.argsort(1)[0], x.argsort(1)[0])


FOUR = np.arange(400) % 4


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("breast-cancer", {}, "has 2 classes, and one is left out"),
        ((np.arange(60) % 4,), {}, r"3 known classes, of which 6 would be held out, but 40 are"),
        (
            (FOUR,),
            {"reject_rate": 0.001},
            r"1000 are needed for --reject-rate 0.001; give about 6,772 training",
        ),
        ((FOUR,), {"train_size": 40}, r"training samples of 3 known classes"),
        (([0] * 300 + [1] * 300 + [2] * 4, [0, 1, 2]), {}, r"class 2 has 4 training samples; give"),
        ((FOUR, [2, 2]), {}, r"are of 1 classes, and 1 are left out"),
        ("fashion-mnist", {}, "data fetch fashion-mnist"),
    ],
)
def test_data_that_are_refused(tmp_path, monkeypatch, data, options, message):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # without Debian's packages of data sets
    if not isinstance(data, str):
        arrays = {"x": np.random.default_rng(0).random((len(data[0]), 4)), "y": np.array(data[0])}
        if len(data) > 1:
            arrays |= {"test_x": arrays["x"][: len(data[1])], "test_y": np.array(data[1])}
        np.savez(tmp_path / "mine.npz", **arrays)
        data = str(tmp_path / "mine.npz")
    with pytest.raises(InputError, match=message):
        start(study.STUDY, make(data=[data], **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_as_many_samples_as_are_asked_for_will_do(tmp_path):
    y = np.arange(-(-5 * (40 + 3) * 4 // 3 // 4) * 4) % 4
    x = np.random.default_rng(0).random((len(y), 4))
    np.savez(tmp_path / "mine.npz", x=x, y=y, test_x=x[:4], test_y=[0, 1, 2, 3])
    config = make(data=[str(tmp_path / "mine.npz")])
    facts = study.STUDY.check(config, None)["data"]["mine"]
    assert facts["unknown"] == "1 of 4 classes, left out by each trial"
    held = [len(of.task_of(config, config.data[0], trial).held_y) for trial in range(5)]
    assert min(held) >= 40


# --- Training ---------------------------------------------------------------------------------


def same(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_all_heads_of_a_trial_begin_with_the_same_backbone(task):
    before = torch.get_rng_state()

    def begin(trial, make_head, member=0):
        return of.begin(SMALL, task, trial, make_head, member)[0]

    linear = begin(0, lambda: nn.Linear(of.FEATURES, 7))
    assert same(linear, begin(0, lambda: DistanceHead(of.FEATURES, 7)))
    assert not same(linear, begin(0, lambda: nn.Linear(of.FEATURES, 7), member=1))
    assert not same(linear, begin(1, lambda: nn.Linear(of.FEATURES, 7)))
    assert torch.equal(torch.get_rng_state(), before)  # the random numbers of others


NETWORKS = (of.softmax_network, of.distance_network, of.kernel_network)


def test_all_heads_of_a_trial_see_the_same_batches(task, monkeypatch):
    train, orders = of.train, []

    def watch(config, task, trial, parts, loss, member=0, after=None):
        orders.append([])

        def heard(x, y):
            orders[-1].append(y)
            return loss(x, y)

        return train(config, task, trial, parts, heard, member, after)

    monkeypatch.setattr(of, "train", watch)
    for network in NETWORKS:
        network(SMALL, task, 0)
    first, *others = (torch.cat(order) for order in orders)
    assert len(first) >= 0.8 * len(task.y)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_training_is_repeatable_and_learns(network):
    config = make(trials=1, epochs=5, train_size=600)
    task = of.task_of(config, "digits", 0)
    (one, head, _), (two, _, _) = network(config, task, 0), network(config, task, 0)
    assert same(one, two)
    features = of.look(one, task.test_x).features
    with torch.no_grad():
        scores = head.log_kernels(features) if network is of.kernel_network else head(features)
    assert (scores.argmax(1) == task.test_y).double().mean() > 0.6


def test_the_loss_is_cross_entropy_with_the_penalty_of_the_package(task, monkeypatch):
    losses = {}

    def keep(config, task, trial, parts, loss, member=0, after=None):
        backbone, head = parts
        x, y = task.x[:50], task.y[:50]
        features = backbone(x)
        penalty = config.compactness * compactness_penalty(head, features, y)
        losses["wanted"] = (cross_entropy(head(features), y) + penalty).item()
        losses["own"] = loss(x, y).item()
        return 0.0

    monkeypatch.setattr(of, "train", keep)
    of.distance_network(make(compactness=0.7), task, 0)
    assert losses["own"] == pytest.approx(losses["wanted"], rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "inputs", "sides"),
    [
        ((28, 28), 784, [14, 7, 4]),
        ((8, 8), 64, [4, 2]),
        ((3, 9, 5), 135, [5, 3]),
        (None, 13, None),
    ],
)
@torch.no_grad()
def test_images_are_halved(shape, inputs, sides):
    backbone, x = of.Backbone(shape, inputs).eval(), drawn(7, inputs)
    whole, parts = of.look(backbone, x), of.look(backbone, x, at_once=3)
    for a, b in zip(whole, parts, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert whole.features.shape == (7, 64)
    assert torch.allclose(nn.functional.elu(whole.layers[:, -64:]), whole.features)
    if sides is None:  # no images
        assert whole.layers.shape == (7, 192)
        return
    layer = x.view(-1, *(shape if len(shape) == 3 else (1, *shape)))
    for place, side in enumerate(sides):
        layer = backbone.parts[place](layer)
        assert layer.shape[2] == side
        if place == 0:
            assert torch.allclose(whole.layers[:, :16], layer.mean((2, 3)), atol=1e-5)
            spread = layer.std((2, 3), correction=0)
            assert torch.allclose(whole.layers[:, 16:32], spread, atol=1e-5)


# --- The RBF head -----------------------------------------------------------------------------


@torch.no_grad()
def test_kernels_and_centroids_one_by_one():
    head, f, y = of.KernelHead(6, 2), drawn(40, 6), torch.arange(40) % 4 // 3  # 30 and 10
    for n in range(4):
        for c in range(2):
            away = head.weight[c] @ f[n] - head.sums[c] / head.counts[c]
            slow = -away.square().sum() / 6 / (2 * of.LENGTH**2)
            assert head.log_kernels(f)[n, c].item() == pytest.approx(slow.item(), rel=1e-4)
    sums, counts = head.sums.clone(), head.counts.clone()
    head.follow(f, y)
    for c, size in enumerate((30, 10)):
        own = sum(head.weight[c] @ f[n] for n in range(40) if y[n] == c)
        assert head.counts[c].item() == pytest.approx(0.999 * counts[c].item() + 0.001 * size)
        assert torch.allclose(head.sums[c], 0.999 * sums[c] + 0.001 * own, atol=1e-6)


def test_the_penalty_asks_for_slopes_of_length_one():
    torch.manual_seed(0)
    head, linear = of.KernelHead(4, 2), nn.Linear(3, 4)
    nn.init.normal_(head.weight, std=0.05)
    x, y = drawn(8, 3), torch.arange(8) % 2
    kernels = head.log_kernels(linear(x)).exp()
    plain = nn.functional.binary_cross_entropy(kernels, one_hot(y, 2).float())
    assert head.loss(linear(x), y).item() == pytest.approx(plain.item(), rel=1e-5)
    total = 0.0
    for n in range(2):  # one sample of four
        point = x[n].clone().requires_grad_()
        head.log_kernels(linear(point[None])).exp().sum().backward()
        total += (point.grad.square().sum() - 1).square().item() / 2
    penalty = head.slope_penalty(linear, x)
    assert penalty.item() == pytest.approx(total, rel=1e-4)
    penalty.backward()
    assert head.weight.grad.isfinite().all()


# --- Detectors and scores ---------------------------------------------------------------------


@pytest.mark.parametrize("relative", [False, True])
def test_mahalanobis_by_hand(relative):
    x, y, points = drawn(60, 4) @ drawn(4, 4, seed=1), torch.arange(60) % 3, drawn(5, 4, seed=2)
    scores = of.class_distance(x, y, relative=relative)(points)
    data = x.double().numpy()
    means = np.stack([data[y == c].mean(0) for c in range(3)])
    within = np.linalg.inv(sum(np.cov(data[y == c].T, bias=True) for c in range(3)) / 3)
    around = np.linalg.inv(np.cov(data.T, bias=True))
    for n, point in enumerate(points.double().numpy()):
        slow = min((point - mean) @ within @ (point - mean) for mean in means)
        if relative:
            slow -= (point - data.mean(0)) @ around @ (point - data.mean(0))
        assert float(scores[n]) == pytest.approx(slow, rel=1e-6)


def test_neighbours_by_hand():
    x, points = nn.functional.normalize(drawn(100, 4)), drawn(3, 4, seed=1)
    scores = of.neighbours(3 * x, 0, 0)(points)
    for n in range(3):
        slow = (x - points[n] / points[n].norm()).norm(dim=1).sort().values[4]  # the fifth of 100
        assert float(scores[n]) == pytest.approx(float(slow), rel=1e-5)


def logits_of(seed, count=400, classes=5):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=generator)
    return logits, torch.randint(classes, (count,), generator=generator)


def test_calibration_error_bin_by_bin():
    logits, y = logits_of(0)
    sure, chosen = logits.double().softmax(1).max(1)
    y = torch.where(sure < 0.6, chosen, y)  # too unsure here, too sure there
    total = 0.0
    for place in range(of.BINS):
        low, high = place / of.BINS, (place + 1) / of.BINS
        own = (sure >= low) & ((sure < high) | (place == of.BINS - 1))
        if own.any():
            right = (chosen[own] == y[own]).double().mean()
            total += own.double().mean().item() * abs(float(right - sure[own].mean()))
    assert of.calibration_error(logits, y) == pytest.approx(total, abs=1e-12)
    certain = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    assert of.calibration_error(certain, torch.tensor([0, 1])) == 0.0
    assert of.calibration_error(certain, torch.tensor([1, 0])) == 1.0


def test_a_head_rejects_as_its_threshold_says():
    y = torch.arange(400) % 2
    fit, held = (drawn(400, 3, seed=seed) + 4 * y[:, None] for seed in (0, 1))
    seen = {"fit": fit, "held": held, "test": held, "shuffled": held, "unknown": held + 50}
    answers = of.answers_of(None, y, seen, SMALL)
    again = of.answers_of(of.fitted_head(fit, y), y, seen, SMALL)
    assert torch.equal(answers.scores["test"], again.scores["test"])
    assert answers.rejected == (pytest.approx(5, abs=0.5), 100.0)
    limit = answers.scores["held"].sort().values[380]
    assert float((answers.scores["test"] > limit).double().mean()) == pytest.approx(0.05, abs=0.01)
    equal = dict.fromkeys(seen, torch.ones(400, 3))
    assert of.answers_of(None, y, equal, SMALL) is None  # which fits no head


def test_heads_see_every_class_also_in_samples_that_are_sorted():
    mixed, ordered = torch.arange(30_000) % 3, torch.arange(30_000) // 10_000
    assert of.to_fit(mixed) == of.FITTED_TO
    assert of.to_fit(ordered) == 30_000
    assert of.to_fit(mixed[:500]) == 500


def test_models_without_answers_have_no_numbers(task):
    draws = torch.Generator().manual_seed(0)
    logits = {
        name: one_hot(getattr(task, f"{name}_y"), 7)
        + torch.randn(len(getattr(task, f"{name}_y")), 7, generator=draws)
        for name in ("held", "test")
    }
    scores = {n: torch.rand(99) for n in ("held", "test", "unknown", "shuffled")}
    good = of.numbers_of(of.Answers(logits, scores), task, 0.05)
    assert set(good) == set(study.METRICS) - {"seconds"}
    assert all(map(math.isfinite, good.values()))
    lost = of.Answers(logits, scores | {"test": torch.full((99,), math.nan)})
    for answers in (None, lost):
        numbers = of.numbers_of(answers, task, 0.05)
        assert set(numbers) == set(good)
        assert all(map(math.isnan, numbers.values()))
    # All held-out samples right: no temperature is best, and 1 would be made up.
    right = {**logits, "held": one_hot(task.held_y, 7).float()}
    sure = of.numbers_of(of.Answers(right, scores), task, 0.05)
    assert {n for n, v in sure.items() if math.isnan(v)} == {"ece_calibrated", "nll_calibrated"}


def test_trials_without_a_temperature_are_told_of():
    for calibrated, count in ((math.nan, 1), (0.1, 0)):
        metrics = {"auroc": torch.tensor([0.9]), "ece_calibrated": torch.tensor([calibrated])}
        results = Results({("digits", "softmax"): Measures(metrics, 1.0)}, {})
        study.finish(SMALL, results)
        assert len(results.cautions) == count
        if count:
            assert results.cautions[0].endswith("such trials out (Softmax (digits) in 1)")


# --- A run ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_the_networks_that_are_asked_for_are_trained(monkeypatch):
    some = make(models=["softmax", "knn"], trials=1, epochs=1, train_size=300)
    assert {job.work for job in study.STUDY.jobs(some)} == {"softmax"}
    trained, network = [], of.softmax_network

    def count(*given):
        trained.append(given[3:])
        return network(*given)

    monkeypatch.setattr(of, "softmax_network", count)
    (job,) = study.STUDY.jobs(some)
    assert set(study.STUDY.measure(some, job, Context())) == {"softmax", "knn"}
    assert trained == [()]
    more = make(models=["softmax", "ensemble"], trials=1, epochs=1, train_size=300)
    both = study.STUDY.measure(more, job, Context())
    assert trained[1:] == [(), (1,), (2,), (3,), (4,)]
    assert not torch.equal(both["softmax"].metrics["nll"], both["ensemble"].metrics["nll"])


@pytest.mark.slow
def test_every_model_has_every_number_whatever_the_number_of_trials():
    config = config_of("heads", models=None, trials=9)
    for work, readers in study.READERS.items():
        own = study.STUDY.measure(config, Job("digits", work, 1, 1), Context())
        assert set(own) == set(readers)
        for measures in own.values():
            assert set(measures.metrics) == set(study.METRICS)
            assert all(bool(values.isfinite().all()) for values in measures.metrics.values())


def test_kept_weights_give_the_numbers_of_the_record(finished):
    run = finished("heads")
    task = of.task_of(config_of("heads"), "digits", 1)
    parts = SimpleNamespace(backbone={}, head={})
    for name, tensor in load_file(run.path / "weights" / "digits-distance.safetensors").items():
        part, _, key = name.partition(".")
        getattr(parts, part)[key] = tensor[1]
    backbone = of.Backbone(task.image_shape, 64)
    backbone.load_state_dict(parts.backbone)
    away = torch.cdist(of.look(backbone, task.test_x).features, parts.head["distance.mu"])
    right = 100 * (away.argmin(1) == task.test_y).double().mean().item()
    assert float(run.of("distance")[1]["test_accuracy"]) == pytest.approx(right)


def test_a_user_file_without_images(tmp_path):
    y = np.arange(600) % 3
    x = np.random.default_rng(0).normal(size=(600, 6)) + 5 * np.eye(6)[y]
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    options = {"data": [str(tmp_path / "mine.npz")], "models": ["softmax", "refitted"]}
    run = make_run("heads", tmp_path / "run", trials=1, train_size=None, **options)
    assert {row["data"] for row in run.trials} == {"mine"}


# --- Options and claims -----------------------------------------------------------------------


def test_models_are_read_and_tested():
    assert set(study.MODELS) == {reader for readers in study.READERS.values() for reader in readers}
    assert {a for a, b in study.PAIRS if b == "softmax"} == set(study.MODELS) - {"softmax"}
    assert len({frozenset(pair) for pair in study.PAIRS}) == len(study.PAIRS)
    config = make()
    assert study.STUDY.published(config, "auroc", "duq", "fashion-mnist").mean == 0.955
    assert study.STUDY.published(config, "auroc", "duq", "mnist") is None
    assert study.STUDY.published(config, "ece", "duq", "fashion-mnist") is None


def verdicts(variant="fashion-mnist", **changed):
    """Return verdicts of ten trials; every model has the same numbers but for ``changed``."""
    usual, steps = {"auroc": 0.9, "test_accuracy": 91.0, "rejected_known": 5.0}, np.arange(10)
    trials = {
        (variant, model, metric): changed.get(model, {}).get(metric, value) + 1e-4 * steps
        for model in study.MODELS
        for metric, value in usual.items()
    }
    given = Evidence(trials, {}, lambda *_: None)
    lines = judge(study.CLAIMS, given, study="heads", variants=(variant,), sources=SOURCES)
    return {line.id.split("/")[1]: line.verdict for line in lines}


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"layered": {"auroc": 0.97, "test_accuracy": 91.2}}, {"goal": "holds"}),
        ({"layered": {"auroc": 0.95, "test_accuracy": 91.2}}, {"goal": "fails"}),
        ({"layered": {"auroc": 0.97, "test_accuracy": 90.9}}, {"goal": "fails"}),
        (
            {"refitted": {"auroc": 0.95}, "duq": {"auroc": 0.93}},
            {
                "refitted-finds-more-than-duq": "holds",
                "duq-finds-more-than-softmax": "holds",
                "distance-finds-more-than-softmax": "fails",
                "fitted-is-mahalanobis": "holds",
                "refitting-helps": "holds",
                "layers-help": "fails",
                "refitted-as-accurate": "holds",
                "rate-is-kept": "holds",
                "distance-calibrated": "not measured",
            },
        ),
        (
            {"refitted": {"test_accuracy": 90.0, "rejected_known": 9.0}},
            {"refitted-as-accurate": "fails", "rate-is-kept": "fails"},
        ),
    ],
)
def test_claims_go_the_right_way(changed, wanted):
    assert wanted.items() <= verdicts(**changed).items()
    assert "goal" not in verdicts("digits")
