"""The transfer study: how a trial is split, trained and measured, beside the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_runs import Run, make_run
from torch import nn
from torch.nn import functional

from mahalens.data import load_set, stream
from mahalens.data.named import SEQUENCES
from mahalens.errors import InputError
from mahalens.nn import Abs, OffsetL2
from mahalens.studies import transfer as study
from mahalens.studies.claims import Every
from mahalens.studies.run import Context, pool
from mahalens.studies.run import start as start_run
from mahalens.studies.samples import whole_set
from mahalens.studies.study import Job

make = study.TransferConfig.with_defaults


def small(**options):
    usual = {"data": ["wine"], "trials": 2, "epochs": 20, "rates": (0.003, 0.03)}
    return make(**{**usual, "kernels": 6, "hidden": 8, **options})


def measures_of(config, model, first=0, count=1, data="wine"):
    return study.measure(config, Job(data, model, first, count), Context())[model]


@pytest.fixture
def series(tmp_path):
    """A set of the user: two channels of 12 steps, two classes that differ in where they peak."""
    rng = np.random.default_rng(0)
    for end, count in (("TRAIN", 16), ("TEST", 10)):
        lines = ["@classLabel true early late", "@data"]
        for number in range(count):
            noise = rng.normal(size=(2, 12))
            noise[0, 2 + 6 * (number % 2)] += 5
            channels = (",".join(f"{value:.4f}" for value in row) for row in noise)
            lines.append(":".join((*channels, ("early", "late")[number % 2])))
        (tmp_path / f"mine_{end}.ts").write_text("\n".join(lines))
    return str(tmp_path / "mine_TRAIN.ts")


# --- Options, models and claims ---------------------------------------------------------------


def test_defaults_take_sequences_if_they_are_here(tmp_path, monkeypatch):
    monkeypatch.setattr("mahalens.data.named.find_spec", lambda name: None)
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path))
    config = make()
    assert (config.data, config.models) == (study.TABLE_SETS, study.DEFAULT)
    wanted = "sequences are not on this machine; get them with: mahalens data fetch sequences"
    assert config.without == wanted
    assert wanted in config.deviations()
    monkeypatch.setattr("mahalens.data.named.find_set", lambda name: {})
    config = make()
    assert (config.data, config.without) == ((*study.TABLE_SETS, *study.SMALL_SEQUENCES), None)
    assert config.deviations() == [
        "7 of 12 data sets (without basic-motions, japanese-vowels, osuleaf, pickup-gesture, "
        "acsf1)",
        "14 of 21 models",
        "trials: 10 instead of 30",
    ]


def test_the_full_protocol_groups_and_files():
    full = make(published=True)
    assert (full.data, full.models, full.trials) == (study.FULL_DATA, tuple(study.MODELS), 30)
    assert make(published=True, models=["knn"]).models == ("knn",)
    some = make(published=True, data=["tables"])
    assert (some.data, some.deviations()) == (study.TABLE_SETS, ["4 of 12 data sets"])
    assert make(data=["sequences", "wine"]).data == (*SEQUENCES, "wine")
    texts = make(data=["mine.npz"], train_size=20).deviations()
    assert {
        "0 of 12 data sets",
        "data sets besides: mine.npz",
        "training samples: at most 20 instead of all",
    } <= set(texts)


@pytest.mark.parametrize("name", study.NETWORKS)
def test_names_say_what_networks_are(name):
    layers = list(study.chain_of(name, 5, 3, 4).build())
    assert isinstance(layers[-2 if "neg" in name else -1], OffsetL2) == ("l2" in name)
    variants = [layer.variant for layer in layers if isinstance(layer, OffsetL2)]
    wanted = "published-code" if "code" in name else "paper"
    assert variants == ([wanted] if "l2" in name else [])
    assert (type(layers[-1]).__name__ == "Neg") == ("neg" in name)
    hidden = type(layers[1]).__name__ if len(layers) > 1 else ""
    assert {"relu": "ReLU", "abs": "Abs"}.get(name.split("-")[0], hidden) == hidden


def test_claims_are_about_each_set_and_about_all_of_a_kind():
    rows = {claim.key: claim for claim in study.claims_of(make(data=["wine", "iris", "gunpoint"]))}
    one = rows["relu-l2-neg-keeps-up-with-relu-linear"]
    assert one.statement == "ReLU-L2-Neg loses less than 2 points against ReLU-Linear."
    assert (one.predicate.side, one.predicate.bound, one.on) == ("above", -2, ())
    assert rows["kernels-l2-neg-keeps-up-with-dtw"].on == ("gunpoint",)
    tables = rows["keeps-up-tables"].predicate
    assert isinstance(tables, Every)
    assert [part.model for part in tables.parts] == ["relu-l2-neg (wine)", "relu-l2-neg (iris)"]
    assert len(rows["keeps-up-sequences"].predicate.parts) == 1
    falls = {(part.model, part.than) for part in rows["no-collapse"].predicate.parts}
    assert ("kernels-l2 (gunpoint)", "kernels-linear (gunpoint)") in falls
    assert not any("kernels" in model and "wine" in model for model, _ in falls)
    keys = {
        claim.key for claim in study.claims_of(make(data=["wine"], models=["relu-linear", "knn"]))
    }
    assert "no-collapse" not in keys
    assert not [key for key in keys if "sequences" in key or "kernels" in key]


# --- Samples ----------------------------------------------------------------------------------


def test_a_trial_is_a_split_of_its_own_with_classes_as_they_were():
    whole = load_set("wine")
    one, two, again = (study.trial_samples(small(), "wine", trial) for trial in (0, 1, 0))
    assert torch.bincount(one.y).equal(torch.bincount(whole.y))
    assert torch.bincount(two.test_y).equal(torch.bincount(whole.test_y))
    assert not one.test_x.equal(two.test_x)
    assert again.x.equal(one.x)
    assert one.x.mean(0).abs().max() < 1e-6
    assert (one.x.std(0, correction=0) - 1).abs().max() < 1e-5
    few = study.trial_samples(small(train_size=30), "wine", 0)
    assert len(few.y) == 30
    assert (torch.bincount(few.y) / 30 - torch.bincount(whole.y) / len(whole.y)).abs().max() < 0.05
    # All samples are used once: some affine map takes them to the whole set.
    mine, every = (torch.cat((s.x, s.test_x)).double() for s in (one, whole))
    mine, every = (x[x[:, 12].argsort()] for x in (mine, every))
    for column in range(13):
        assert np.corrcoef(mine[:, column].sort().values, every[:, column].sort().values)[0, 1] > (
            1 - 1e-9
        )


def test_a_set_of_the_user_keeps_its_split_and_channels_their_scales(series):
    whole_set.cache_clear()
    own, whole = study.trial_samples(small(data=[series]), series, 1), load_set(series)
    assert own.y.equal(whole.y)
    assert own.image_shape == (2, 12)
    cube, other = (x.reshape(-1, 2, 12).double() for x in (whole.x, whole.test_x))
    mean = cube.mean((0, 2), keepdim=True)
    spread = (cube - mean).square().mean((0, 2), keepdim=True).sqrt()
    assert torch.allclose(own.x.double(), ((cube - mean) / spread).flatten(1), atol=1e-5)
    scaled = study.by_channel(whole.x, whole.test_x, (2, 12))[1].double()
    assert torch.allclose(scaled, ((other - mean) / spread).flatten(1), atol=1e-5)
    facts = study.STUDY.check(small(data=["wine", series]), None)["data"]
    assert facts["wine"]["source"].endswith("load_wine, split anew by every trial")
    assert (facts["mine_TRAIN"]["channels"], facts["mine_TRAIN"]["steps"]) == (2, 12)
    assert facts["mine_TRAIN"]["source"] == series


@pytest.mark.parametrize("count", [4, 37, 199, 200, 301])
def test_folds(count):
    y = torch.arange(count) % 3
    folds = study.folds_of(y, torch.Generator().manual_seed(1))
    assert len(folds) == (4 if count < 200 else 1)
    for fold in folds:
        assert len(fold.held) == count // 4
        assert torch.cat((fold.fit, fold.held)).sort().values.equal(torch.arange(count))
        assert (torch.bincount(y[fold.held], minlength=3) - count / 12).abs().max() < 2
    held = torch.cat([fold.held for fold in folds])
    assert len(held.unique()) == len(held)


def test_too_few_samples(series, tmp_path):
    with pytest.raises(InputError, match=r"^3 training samples; give at least 4$"):
        study.folds_of(torch.tensor([0, 1, 1]), torch.Generator())
    with pytest.raises(InputError, match="3 training samples; give at least 4, some to be held"):
        start_run(study.STUDY, small(data=[series], train_size=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- Training ---------------------------------------------------------------------------------

BUILD = {
    "relu-linear": lambda: [nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 3)],
    "abs-l2-neg": lambda: [nn.Linear(13, 8), Abs(), OffsetL2(8, 3)],
}


def slow_train(config, model, trial):
    """Choose, then train on all samples: one trial as a plain module by torch's own optimiser."""
    own = study.trial_samples(config, "wine", trial)
    seed = int(torch.randint(2**62, (1,), generator=stream(config.seed, "start", trial)))
    sign, marks = (-1 if model.endswith("neg") else 1), study.milestones(config.epochs)

    def course(x, y, rate, epochs, look):
        torch.manual_seed(seed)
        module = nn.Sequential(*BUILD[model]())
        adam = torch.optim.Adam(module.parameters(), lr=rate, betas=(0.9, 0.99))
        seen = []
        for epoch in range(1, epochs + 1):
            adam.zero_grad()
            functional.cross_entropy(sign * module(x), y).backward()
            adam.step()
            if epoch in marks:
                with torch.no_grad():
                    seen.append(look(sign * module(own.x)))
        return seen, module

    losses = {}
    for rate in config.rates:
        per_fold = []
        for fold in study.folds_of(own.y, stream(config.seed, "folds", trial)):

            def look(outputs, held=fold.held):
                return float(functional.cross_entropy(outputs[held], own.y[held]))

            fit = (own.x[fold.fit], own.y[fold.fit])
            per_fold.append(course(*fit, rate, config.epochs, look)[0])
        for place, mark in enumerate(marks):
            losses[rate, mark] = np.mean([seen[place] for seen in per_fold])
    rate, mark = min(losses, key=lambda key: losses[key])
    return rate, mark, course(own.x, own.y, rate, mark, id)[1]


@pytest.mark.parametrize("model", BUILD)
def test_training_is_what_plain_torch_does(model):
    config = small()
    own = measures_of(config, model, 0, 2)
    with torch.random.fork_rng(devices=[]):
        slow = [slow_train(config, model, trial) for trial in (0, 1)]
    for trial, (rate, mark, module) in enumerate(slow):
        assert float(own.metrics["chosen_rate"][trial]) == pytest.approx(rate)
        assert int(own.metrics["chosen_epochs"][trial]) == mark
        for name, tensor in module.state_dict().items():
            assert torch.allclose(own.weights[name][trial], tensor, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_metrics_are_those_of_the_kept_weights():
    config = small()
    measures = measures_of(config, "relu-l2", 0, 2)
    for trial in (0, 1):
        own = study.trial_samples(config, "wine", trial)
        module = study.chain_of("relu-l2", 13, 3, 8).build()
        module.load_state_dict({name: w[trial] for name, w in measures.weights.items()})
        outputs = module(own.test_x)
        chosen = outputs.argmax(1)
        metrics = {name: float(values[trial]) for name, values in measures.metrics.items()}
        right = 100 * float((chosen == own.test_y).double().mean())
        assert metrics["test_accuracy"] == pytest.approx(right)
        classes = [float((chosen[own.test_y == c] == c).double().mean()) for c in range(3)]
        assert metrics["balanced_accuracy"] == pytest.approx(100 * np.mean(classes))
        loss = float(functional.cross_entropy(outputs, own.test_y))
        assert metrics["log_loss"] == pytest.approx(loss, rel=1e-4)
        epochs, curve = measures.curves["test_accuracy"]
        end = epochs.tolist().index(int(metrics["chosen_epochs"]))
        assert float(curve[trial, end]) == pytest.approx(right)
        assert curve[trial, end + 1 :].isnan().all()
        assert metrics["at_limit"] == (metrics["chosen_epochs"] == 20)


def test_a_rate_that_runs_away_is_not_chosen():
    metrics = measures_of(small(rates=(0.01, 9.0)), "relu-linear", 0, 2).metrics
    assert metrics["chosen_rate"].tolist() == pytest.approx([0.01, 0.01])
    assert metrics["test_accuracy"].min() > 80


def test_all_heads_learn():
    config = small(epochs=60, models=["relu-l2", "none-l2-neg-code", "boosting"])
    for job in study.jobs(config):
        metrics = study.measure(config, job, Context())[job.work].metrics
        assert float(metrics["test_accuracy"].mean()) > 80


# --- Yardsticks -------------------------------------------------------------------------------


def test_neighbours_by_hand():
    own, metrics = study.trial_samples(small(), "wine", 0), measures_of(small(), "knn").metrics
    distances = torch.cdist(own.test_x.double(), own.x.double())
    votes = own.y[distances.topk(int(metrics["neighbours"]), largest=False).indices]
    slow = torch.stack([torch.bincount(row, minlength=3).argmax() for row in votes])
    right = 100 * float((slow == own.test_y).double().mean())
    assert float(metrics["test_accuracy"]) == pytest.approx(right)


def test_neighbours_where_one_is_best_and_where_one_sample_is_held_out(tmp_path):
    # Pairs of samples, far from all others: every other sample has another class.
    x = np.arange(20.0).repeat(2)[:, None] * 10 + np.tile([0, 0.1], 20)[:, None]
    y = (np.arange(20) % 2).repeat(2)
    file = str(tmp_path / "pairs.npz")
    np.savez(file, x=x, y=y, test_x=x, test_y=y)
    assert measures_of(small(data=[file]), "knn", data=file).metrics["neighbours"].tolist() == [1]
    few = str(tmp_path / "few.npz")
    np.savez(few, x=x[:4] + np.arange(4)[:, None], y=[0, 1, 1, 0], test_x=x, test_y=y)
    assert measures_of(small(data=[few]), "knn", data=few).metrics["test_accuracy"].isfinite().all()


def test_boosting_gives_probabilities():
    metrics = measures_of(small(), "boosting").metrics
    assert 0 < float(metrics["log_loss"][0]) < 1
    assert float(metrics["train_accuracy"][0]) == 100


def warped(a, b, band):
    """Return the distance by dynamic time warping, cell by cell."""
    steps = a.shape[1]
    table = np.full((steps + 1, steps + 1), np.inf)
    table[0, 0] = 0
    for i in range(steps):
        for j in range(max(0, i - band), min(steps, i + band + 1)):
            cost = float((a[:, i] - b[:, j]).square().sum())
            table[i + 1, j + 1] = cost + min(table[i, j], table[i, j + 1], table[i + 1, j])
    return table[steps, steps]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 1.0])
def test_warping_beside_the_plain_recursion(share):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(count, 2, 13, generator=generator) for count in (3, 4))
    slow = [[warped(one, two, math.ceil(share * 13)) for two in b] for one in a]
    distances = study.warped_distances(a, b, share)
    assert torch.allclose(distances, torch.tensor(slow).float(), rtol=1e-5)
    assert distances.equal(study.warped_distances(a, b, share, at_once=5))
    if share == 0:
        assert torch.allclose(distances, (a[:, None] - b).square().sum((2, 3)), rtol=1e-5)


# --- Kernels and sequences --------------------------------------------------------------------


def features(x, count=9):
    return study.kernel_features(x, count, torch.Generator().manual_seed(0))


def test_features_of_kernels():
    x = torch.randn(7, 3, 30, generator=torch.Generator().manual_seed(2))
    made = features(x, 20)
    assert made.shape == (7, 40)
    assert ((made[:, 1::2] >= 0) & (made[:, 1::2] <= 1)).all()
    assert torch.allclose(made[3:4], features(x[3:4], 20), atol=1e-5)  # a series alone
    # Weights are centred: a constant adds nothing, but at edges that are padded.
    inside = (features(x, 60) - features(x + 5, 60)).abs().amax(0) < 1e-3
    assert 20 < int(inside.sum()) < 120
    for steps in (1, 2, 5, 7, 8):
        assert features(torch.ones(2, 1, steps)).isfinite().all()
    x, test_x = torch.randn(20, 24), torch.randn(5, 24) + 3
    own, other = study.features_of(x, test_x, (2, 12), 4, torch.Generator().manual_seed(0))
    assert own.mean(0).abs().max() < 1e-5
    assert other.shape == (5, 8)


def test_models_of_sequences_need_no_trials_on_tables_to_be_pooled(series, tmp_path):
    def part(name, *models):
        options = {"data": ("iris", series), "models": models, "epochs": 1, "trials": 1}
        return make_run("transfer", tmp_path / name, **options)

    whole = part("whole", "knn", "dtw")
    for order in (("knn", "dtw"), ("dtw", "knn")):
        runs = [part("-".join((*order, name)), name).path for name in order]
        pool(runs, tmp_path / order[0])
        united = Run(tmp_path / order[0])
        rows = [(row["model"], row["data"], row["test_accuracy"]) for row in united.trials]
        assert sorted(rows) == sorted(
            (row["model"], row["data"], row["test_accuracy"]) for row in whole.trials
        )
        assert [row["data"] for row in united.trials] == [row["data"] for row in whole.trials]


def test_every_model_of_sequences(series):
    models = ("relu-l2-neg", "kernels-linear", "kernels-l2", "knn", "dtw")
    config = small(data=["wine", series], models=models, epochs=40, trials=6)
    works = [(job.variant, job.work) for job in study.jobs(config)]
    assert works.count(("wine", "relu-l2-neg")) == 2
    assert {work for data, work in works if data == "wine"} == {"relu-l2-neg", "knn"}
    for model in models:
        assert (series, model) in works
        metrics = measures_of(config, model, data=series).metrics
        assert metrics["test_accuracy"].isfinite().all()
