"""How one model is started, chooses its rate and is measured: beside the obvious slow way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from mahalens.data import stream
from mahalens.data.tables import held_out
from mahalens.errors import InputError
from mahalens.init import initialise
from mahalens.studies.init import measuring
from mahalens.studies.init.config import InitConfig
from mahalens.studies.init.measuring import check, choose_rate, measure
from mahalens.studies.init.starting import leading_axes, look, start
from mahalens.studies.init.training import train
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.samples import samples_of

IRIS = samples_of("iris", seed=0, trial=0, train_size=None)


def options(**changes):
    rates = changes.pop("rates", (0.003, 0.03))
    made = InitConfig.with_defaults(**{"data": ["iris"], "trials": 2, "epochs": 3, **changes})
    return replace(made, table_rates=rates, image_rates=(0.01, 0.02))


def started(model, *who, samples=IRIS):
    return start(model, samples, samples.x, samples.y, 5_000, 0, *(who or ("trial", 0))).module


def test_starts_of_a_trial_share_what_they_can():
    kaiming, point = started("abs-kaiming"), started("abs-sample-point")
    mean, relu = started("abs-class-mean"), started("relu-kaiming")
    for other in (point, mean, relu):
        assert torch.equal(kaiming[0].weight, other[0].weight)
        assert torch.equal(kaiming[2].weight, other[2].weight)
    assert not torch.equal(kaiming[0].bias, point[0].bias)
    assert torch.equal(kaiming[0].bias, relu[0].bias)
    assert not torch.equal(kaiming[0].weight, started("abs-kaiming", "trial", 1)[0].weight)
    assert not torch.equal(kaiming[0].weight, started("abs-kaiming", "tuning", 0, 0)[0].weight)
    # Orthonormal rows of LSUV are turned alike; only their length follows from what comes in.
    outputs = [started(name)[2].weight.detach() for name in ("abs-lsuv", "abs-cluster-pca")]
    ways = [functional.normalize(rows, dim=1) for rows in outputs]
    assert torch.allclose(*ways, atol=1e-6)


@pytest.mark.parametrize("model", ["relu-cluster-pca", "abs-whiten", "relu-lsuv", "abs-kaiming"])
def test_a_start_is_what_initialise_gives(model):
    method = model.split("-", 1)[1].replace("-", "_")
    other = nn.Sequential(nn.Linear(4, 32), nn.ReLU() if "relu" in model else _abs(), _three())
    for layer, way in (("0", method), ("2", "kaiming" if method == "kaiming" else "lsuv")):
        own = stream(0, f"start of layer {layer}", "trial", 0)
        initialise(other, (IRIS.x, IRIS.y), way, layers=[layer], generator=own)
    found = started(model)
    assert torch.equal(found(IRIS.test_x), other(IRIS.test_x))


def _abs():
    from mahalens.nn import Abs

    return Abs()


def _three():
    return nn.Linear(32, 3)


def test_variants_are_what_they_are_called():
    few = started("abs-whiten-90")[0].weight
    axes = leading_axes(IRIS.x, 0.9)
    assert axes == 2
    assert int(torch.linalg.matrix_rank(few)) == axes
    mirrored = started("relu-cluster-pca-mirror")[0].weight
    assert torch.equal(mirrored[0::2], -mirrored[1::2])
    everywhere = started("abs-cluster-pca-all")
    assert torch.equal(everywhere[0].weight, started("abs-cluster-pca")[0].weight)
    assert not torch.equal(everywhere[2].weight, started("abs-cluster-pca")[2].weight)
    assert not torch.equal(started("abs-cluster-pca-3")[0].weight, everywhere[0].weight)


def test_abs_through_one_point_cannot_tell_opposite_inputs_apart():
    # |w·x| = |w·(-x)|: with all hyperplanes through the mean the network is an even function.
    x = IRIS.test_x
    for start_name in ("kaiming", "lsuv", "whiten"):
        network = started(f"abs-{start_name}")
        assert torch.allclose(network(x), network(-x), atol=1e-4)
    for start_name in ("sample-point", "class-mean", "cluster-pca"):
        network = started(f"abs-{start_name}")
        assert bool(((network(x) - network(-x)).abs() > 0.1).any())


def test_starting_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    started("abs-cluster-pca")
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_look_at_a_start_counts_what_is_idle():
    network = start("relu-kaiming", IRIS, IRIS.x, IRIS.y, 5_000, 0, "trial", 0)
    with torch.no_grad():
        network.module[0].weight[:3] = 0.01
        network.module[0].bias[:2] = -100.0  # dead
        network.module[0].bias[2] = 100.0  # all on one side
        network.module[0].weight[5] = torch.tensor([3.0, 4.0, 0.0, 0.0])
    found = look(network, IRIS.x, IRIS.y)
    assert found["idle_units"] == pytest.approx(100 * 3 / 32)
    assert found["longest_row"] == pytest.approx(5.0)
    loss = functional.cross_entropy(network.module(IRIS.x), IRIS.y)
    assert found["start_loss"] == pytest.approx(float(loss.detach()))


def test_a_rate_is_chosen_on_held_out_training_samples():
    rates = (0.0001, 0.01, 0.1)
    config = options(epochs=4, rates=(0.1, 0.0001, 0.01))
    job = Job("iris", "abs-kaiming", 1, 1)
    one = samples_of("iris", seed=0, trial=1, train_size=None)
    total = torch.zeros(3, dtype=torch.float64)
    for run in range(3):
        out = held_out(one.y, 0.25, stream(0, "validation", 1, run))
        x, y = one.x[~out], one.y[~out]
        network = start("abs-kaiming", one, x, y, 5_000, 0, "tuning", 1, run)
        seen = (one.x[out], one.y[out])
        total += train(network, (x, y), seen, rates, 4, 0, "tuning", 1, run).mean_accuracy
    assert choose_rate(config, job, 1) == rates[int(total.argmax())] != 0.0001


def test_test_samples_do_not_decide_the_rate(monkeypatch):
    job = Job("iris", "relu-cluster-pca", 0, 1)
    rate = choose_rate(options(), job, 0)
    plain = samples_of

    def without_test(*args, **more):
        own = plain(*args, **more)
        return type(own)(**{**vars(own), "test_x": own.test_x[:0], "test_y": own.test_y[:0]})

    measuring._kept_samples.cache_clear()
    monkeypatch.setattr(measuring, "samples_of", without_test)
    try:
        assert choose_rate(options(), job, 0) == rate
    finally:
        measuring._kept_samples.cache_clear()


def test_a_trial_trains_on_its_own_samples_and_chooses_by_a_part_of_them(monkeypatch):
    seen = {}
    plain = measuring.train

    def note(*args):
        seen[args[6:]] = [x.tolist() for x, _ in args[1:3]]
        return plain(*args)

    monkeypatch.setattr(measuring, "train", note)
    measure(replace(options(epochs=1), tunings=2), Job("iris", "abs-kaiming", 1, 2))
    assert len(seen) == 2 * 3
    for trial in (1, 2):
        own = samples_of("iris", seed=0, trial=trial, train_size=None)
        assert seen["trial", trial] == [own.x.tolist(), own.test_x.tolist()]
        for run in range(2):
            kept, out = seen["tuning", trial, run]
            assert sorted(kept + out) == sorted(own.x.tolist())
            assert len(out) == 3 * int(0.25 * 35)
        assert seen["tuning", trial, 0] != seen["tuning", trial, 1]
    assert seen["trial", 1] != seen["trial", 2]


def test_of_equal_rates_the_lowest_is_taken():
    config = options(epochs=1, rates=(2e-9, 1e-9))  # nothing changes by either
    assert choose_rate(config, Job("iris", "abs-kaiming", 0, 1), 0) == 1e-9


def test_images_choose_once_and_from_rates_of_their_own(monkeypatch):
    seen = []
    plain = measuring.train

    def note(*args):
        seen.append((args[3], args[6:]))
        return plain(*args)

    monkeypatch.setattr(measuring, "train", note)
    config = replace(options(data=["digits"], train_size=300), epochs=1, tunings=2)
    found = measure(config, Job("digits", "abs-kaiming", 1, 1))["abs-kaiming"]
    rate = float(found.metrics["learning_rate"])
    assert seen == [([0.01, 0.02], ("tuning", 1, 0)), ([rate], ("trial", 1))]
    assert found.metrics["rate_at_end"].tolist() == [100.0]
    seen.clear()
    measure(options(epochs=1, rates=(0.01, 0.02, 0.03)), Job("iris", "abs-kaiming", 0, 1))
    assert [who for _, who in seen] == [*(("tuning", 0, r) for r in range(3)), ("trial", 0)]
    config = options(epochs=1, rates=(1e-9, 0.01, 0.02))
    found = measure(config, Job("iris", "abs-kaiming", 0, 3))["abs-kaiming"].metrics
    assert found["rate_at_end"].tolist() == [
        100.0 * (rate != 0.01) for rate in found["learning_rate"].tolist()
    ]


def test_a_trial_depends_on_its_number_alone():
    config = options(models=["abs-cluster-pca"], trials=3, epochs=2)
    whole = measure(config, Job("iris", "abs-cluster-pca", 0, 3))["abs-cluster-pca"]
    alone = measure(config, Job("iris", "abs-cluster-pca", 2, 1))["abs-cluster-pca"]
    for name, values in whole.metrics.items():
        if name != "start_seconds":
            assert values[2:].tolist() == pytest.approx(alone.metrics[name].tolist(), 0, 0, True)
    assert torch.equal(whole.curves["test_accuracy"][2:], alone.curves["test_accuracy"])
    curve = whole.curves["test_accuracy"]
    assert curve.shape == (3, config.epochs + 1)
    assert torch.allclose(whole.metrics["mean_accuracy"], curve[:, 1:].mean(1))
    assert torch.equal(whole.metrics["test_accuracy"], curve[:, -1])
    assert torch.equal(whole.metrics["first_accuracy"], curve[:, 1])
    assert torch.equal(whole.metrics["start_loss"], whole.curves["train_loss"][:, 0])
    assert torch.equal(whole.metrics["train_loss"], whole.curves["train_loss"][:, -1])


def test_models_of_a_trial_see_the_same_samples():
    found = {
        model: measure(options(models=[model]), Job("iris", model, 0, 2))[model]
        for model in ("abs-kaiming", "relu-kaiming")
    }
    # The same weights behind another function: equal but for what Abs and ReLU make of them.
    a, b = (found[model].metrics["longest_row"] for model in found)
    assert torch.equal(a, b)
    assert float(a[0]) != float(a[1])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": ["digits"], "train_size": 100}, "100 training samples for a hidden layer of 128"),
        ({"data": ["digits"], "train_size": 3}, "--train-size 3"),
        ({"data": ["nowhere.npz"]}, "nowhere.npz"),
    ],
)
def test_data_that_do_not_fit_are_refused(changes, told):
    with pytest.raises(InputError, match=told) as refused:
        check(options(**changes))
    assert "\n" not in str(refused.value)


def test_a_class_with_one_sample_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 5)).astype("float32")
    y = np.arange(200) % 2
    y[-1] = 2
    path = tmp_path / "rare.npz"
    np.savez(path, x=x, y=y, test_x=x, test_y=y)
    with pytest.raises(InputError, match="at least 2 of each"):
        check(options(data=[str(path)]))
