"""The records of a run: the contract other tools rely on, read with plain json, csv and numpy."""

import json
import math

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from scipy import stats

from mahalens.data import load_gaussian
from mahalens.nn import Chain
from mahalens.studies.gaussian.config import GaussianConfig
from mahalens.studies.gaussian.problem import Problem
from mahalens.train.compiled import why_not

MODELS = ["abs", "relu", "sigmoid", "ground-truth"]
METRICS = [
    "train_mse",
    "test_mse",
    "late_decrease",
    "mirrored_pairs",
    "unique_units",
    "mean_distance",
    "mean_distance_spread",
    "sphericity",
    "row_cosine",
    "row_eigenvalue_error",
    "wnorm_precision_distance",
    "gram_precision_error",
    "gram_eigenvalue_error",
    "gram_cosine",
    "centre_error",
    "dead_units",
]
ROW = [
    "group",
    "model",
    "metric",
    "mean",
    "std",
    "variance",
    "median",
    "min",
    "max",
    "n",
    "ci95",
    "best",
    "published",
    "published_detail",
]
FACTS = [
    "dim",
    "solver",
    "method",
    "condition_number",
    "largest_eigenvalue",
    "smallest_eigenvalue",
    "target_variance",
    "row_cosine_chance",
    "seconds",
]


@pytest.fixture(scope="session", params=["adam", "newton"])
def run(request):
    return request.getfixturevalue(f"{request.param}_run")


def problem_of(run):
    config = msgspec.convert(run.config["options"], GaussianConfig)
    return Problem.from_config(config, load_gaussian(run.path / "gaussian.json"))


def count(run, model):
    return 1 if model == "ground-truth" else run.config["options"]["trials"]


def column(run, model, metric):
    cells = [row[metric] for row in run.of(model)]
    return np.array([float(cell) if cell else math.nan for cell in cells])


# The contract, word by word


def test_files(run):
    assert sorted(p.relative_to(run.path).as_posix() for p in run.path.rglob("*")) == [
        "checksums.json",
        "config.json",
        "curves.csv",
        "gaussian.json",
        "plots.safetensors",
        "summary.json",
        "trials.csv",
        "weights",
        "weights/abs.safetensors",
        "weights/ground-truth.safetensors",
        "weights/relu.safetensors",
        "weights/sigmoid.safetensors",
    ]


def test_config(adam_run):
    import platform

    import mahalens

    config = dict(adam_run.config)
    assert config.pop("created")[10] == "T"
    assert len(config.pop("checksum")) == 64
    assert list(config.pop("inputs")) == ["gaussian.json"]
    assert config == {
        "study": "gaussian",
        "mahalens": mahalens.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seed": 0,
        "device": "cpu",
        "threads": 1,
        "engine": "torch" if why_not() else "compiled",
        "protocol": "scaled",
        "scaled": [
            "trials: 3 instead of 20",
            "epochs: 300 instead of 10000",
            "samples: 100 instead of 1000",
        ],
        "command": "mahalens run gaussian",
        "options": {
            "dim": 2,
            "trials": 3,
            "epochs": 300,
            "samples": 100,
            "solver": "adam",
            "models": MODELS,
            "dtype": "float32",
            "device": "cpu",
            "seed": 0,
            "gaussian": None,
            "test_samples": 1000,
            "learning_rate": 0.001,
            "betas": [0.9, 0.99],
        },
    }


def test_gaussian(run):
    record = run.json("gaussian.json")
    assert list(record)[:2] == ["mean", "covariance"]
    assert np.shape(record["mean"]) == (2,)
    assert np.linalg.eigvalsh(record["covariance"])[-1] == pytest.approx(1)


def test_trials_columns_and_rows(run):
    assert list(run.trials[0]) == ["model", "trial", "status", "basin", "steps", *METRICS]
    wanted = [(model, str(t)) for model in MODELS for t in range(count(run, model))]
    assert [(row["model"], row["trial"]) for row in run.trials] == wanted
    for row in run.of("ground-truth"):
        assert (row["status"], row["basin"], row["steps"]) == ("analytic", "zero residual", "0")


def test_statuses_and_basins_of_adam(adam_run):
    known = {"zero residual", "local minimum", "saddle point", "stalled", "not converged"}
    for row in adam_run.trials:
        if row["model"] == "ground-truth":
            continue
        assert (row["status"], row["steps"]) == ("done", "300")
        assert row["basin"] in ({""} if row["model"] == "sigmoid" else known)


def test_only_what_is_not_defined_is_empty(run):
    adam = run.config["options"]["solver"] == "adam"
    for row in run.trials:
        empty = {name for name in METRICS if row[name] == ""}
        defined = adam and row["model"] != "ground-truth"
        assert empty == (set() if defined else {"late_decrease"})


def test_curves(run):
    assert list(run.curves[0]) == ["model", "trial", "epoch", "train_mse"]
    points = {}
    for row in run.curves:
        key = row["model"], int(row["trial"])
        points.setdefault(key, []).append((int(row["epoch"]), float(row["train_mse"])))
    assert set(points) == {(m, t) for m in MODELS[:3] for t in range(count(run, m))}
    for (model, trial), curve in points.items():
        epochs, losses = zip(*curve, strict=True)
        assert list(epochs) == sorted(set(epochs))
        assert epochs[0] == 1
        assert len(epochs) <= 450
        assert np.isfinite(losses).all()
        row = run.of(model)[trial]
        assert epochs[-1] == int(row["steps"])
        if run.config["options"]["solver"] == "adam":
            assert losses[-1] == float(row["train_mse"])  # the loss of the last epoch


def test_summary_keys(run):
    summary = run.summary
    assert list(summary) == ["study", "protocol", "facts", "outcomes", "rows", "claims"]
    assert (summary["study"], summary["protocol"]) == ("gaussian", "scaled")
    assert list(summary["facts"]) == FACTS
    assert [list(row) for row in summary["rows"]] == [ROW] * 4 * len(METRICS)
    assert [(r["model"], r["metric"]) for r in summary["rows"]] == [
        (model, metric) for model in MODELS for metric in METRICS
    ]
    assert [o["model"] for o in summary["outcomes"]] == MODELS
    for outcome in summary["outcomes"]:
        assert list(outcome) == [
            "model",
            "trials",
            "statuses",
            "basins",
            "non_finite",
            "best_trial",
            "seconds",
        ]
    for claim in summary["claims"]:
        assert list(claim) == [
            "id",
            "source",
            "statement",
            "data",
            "published",
            "measured",
            "verdict",
            "why",
        ]
        assert claim["verdict"] in ("holds", "fails", "undecided", "not measured")
        assert (claim["measured"] is None) == (claim["verdict"] in ("undecided", "not measured"))
        assert claim["why"].endswith(".")
        assert "nan" not in claim["why"].lower()


@pytest.mark.parametrize("name", ["config.json", "gaussian.json", "summary.json"])
def test_json_is_strict(run, name):
    text = (run.path / name).read_text("utf-8")
    assert json.loads(text, parse_constant=pytest.fail)
    assert "NaN" not in text
    assert "Infinity" not in text


# The numbers, a second time


def test_summary_rows_are_those_of_the_trials(run):
    for row in run.summary["rows"]:
        values = column(run, row["model"], row["metric"])
        best = np.argmin(column(run, row["model"], "train_mse"))
        assert row["best"] == (None if np.isnan(values[best]) else values[best])
        values = values[np.isfinite(values)]
        n = len(values)
        assert row["n"] == n
        assert row["group"] == {k: run.config["options"][k] for k in ("dim", "solver")}
        if n == 0:
            assert {row[k] for k in ("mean", "std", "variance", "median", "min", "max")} == {None}
            assert row["ci95"] is None
            continue
        close = {"rel": 1e-9, "abs": 1e-14 * abs(values).max()}
        assert row["mean"] == pytest.approx(np.mean(values), **close)
        assert row["median"] == pytest.approx(np.median(values), **close)
        assert (row["min"], row["max"]) == (values.min(), values.max())
        if n == 1:
            assert (row["std"], row["variance"], row["ci95"]) == (None, None, None)
            continue
        std = np.std(values, ddof=1)
        assert row["std"] == pytest.approx(std, rel=1e-6, abs=close["abs"])
        assert row["variance"] == pytest.approx(row["std"] ** 2)
        half = stats.t.ppf(0.975, n - 1) * std / math.sqrt(n)
        ends = [np.mean(values) - half, np.mean(values) + half]
        assert row["ci95"] == pytest.approx(ends, rel=1e-6, abs=1e-12 * abs(values).max())


def test_published_figures_stand_beside_the_measured_ones(run):
    assert run.row("abs", "train_mse")["published"] == 0.122
    assert run.row("abs", "train_mse")["published_detail"] == {
        "variance": 0.00994,
        "min": 0.0,
        "max": 0.2069,
    }
    assert run.row("abs", "test_mse")["published"] is None
    assert run.row("abs", "test_mse")["published_detail"] is None


def test_outcomes_are_those_of_the_trials(run):
    for outcome in run.summary["outcomes"]:
        rows = run.of(outcome["model"])
        assert outcome["trials"] == len(rows) == sum(outcome["statuses"].values())
        for field, name in (("status", "statuses"), ("basin", "basins")):
            found = [row[field] for row in rows if row[field]]
            assert outcome[name] == {word: found.count(word) for word in found}
        assert outcome["non_finite"] == []
        losses = [float(row["train_mse"]) for row in rows]
        assert outcome["best_trial"] == losses.index(min(losses))
        assert outcome["seconds"] >= 0


def test_facts(run):
    facts, record = run.summary["facts"], run.json("gaussian.json")
    eigenvalues = np.linalg.eigvalsh(record["covariance"])
    assert facts["largest_eigenvalue"] == pytest.approx(eigenvalues[-1])
    assert facts["smallest_eigenvalue"] == pytest.approx(eigenvalues[0])
    assert facts["condition_number"] == pytest.approx(eigenvalues[-1] / eigenvalues[0])
    assert facts["target_variance"] == pytest.approx(np.var(problem_of(run).y.double().numpy()))
    assert facts["method"] == {"adam": "adam", "newton": "levenberg-marquardt"}[facts["solver"]]
    assert facts["seconds"] == pytest.approx(sum(o["seconds"] for o in run.summary["outcomes"]))
    low, high = facts["row_cosine_chance"]
    assert 0.5 < low < high <= 1


def test_late_decrease_is_that_of_the_curve(adam_run):
    floor = 1e-3 * adam_run.summary["facts"]["target_variance"]
    for model in MODELS[:3]:
        for trial, row in enumerate(adam_run.of(model)):
            curve = {
                int(p["epoch"]): float(p["train_mse"])
                for p in adam_run.curves
                if (p["model"], p["trial"]) == (model, str(trial))
            }
            before = curve[max(epoch for epoch in curve if epoch <= 270)]
            wanted = (before - curve[300]) / max(before, floor)
            assert float(row["late_decrease"]) == pytest.approx(wanted, rel=1e-5, abs=1e-9)


def test_a_single_epoch_has_no_late_decrease(runner, tmp_path):
    run = runner(tmp_path / "run", epochs=1, trials=1, models=("abs",), samples=20)
    assert run.of("abs")[0]["late_decrease"] == ""
    (claim,) = (c for c in run.summary["claims"] if c["id"] == "000/adam-converged")
    assert claim["verdict"] == "not measured"


# The weights and the arrays


def weights_of(run, model):
    """Each trial as a plain module, by what the file says about itself."""
    with safe_open(run.path / "weights" / f"{model}.safetensors", "pt") as file:
        told = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    inputs = tensors["0.weight"].shape[-1]
    modules = []
    for trial in range(len(tensors["0.weight"])):
        module = Chain.parse(told["chain"], inputs=inputs).build(dtype=tensors["0.weight"].dtype)
        module.load_state_dict({name: tensor[trial] for name, tensor in tensors.items()})
        modules.append(module)
    return modules


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_weights_are_plain_modules_with_the_recorded_loss(run, model):
    modules, given = weights_of(run, model), problem_of(run)
    assert len(modules) == count(run, model)
    assert modules[0][0].out_features == (2 if model in ("abs", "ground-truth") else 4)
    for trial, module in enumerate(modules):
        assert module[0].weight.dtype == given.x.dtype
        row = run.of(model)[trial]
        loss = (module(given.x) - given.y).double().square().mean().item()
        # The loss of Adam's last epoch is the one before its update.
        late = 0.05 if row["status"] == "done" else 1e-4
        assert float(row["train_mse"]) == pytest.approx(loss, rel=late, abs=1e-12)
        x, y = given.test_set(model, trial)
        loss = (module(x).double() - y).square().mean().item()
        assert float(row["test_mse"]) == pytest.approx(loss, rel=1e-6, abs=1e-20)


@torch.no_grad()
def test_weights_give_the_recorded_readings(run):
    """Two metrics by their formula, from the files alone."""
    record = run.json("gaussian.json")
    mean = np.array(record["mean"])
    covariance = np.array(record["covariance"])
    precision = np.linalg.inv(covariance)
    for model in ("abs", "relu"):
        for trial, module in enumerate(weights_of(run, model)):
            row = run.of(model)[trial]
            w = module[0].weight.double().numpy()
            b = module[0].bias.double().numpy()
            gram = w.T @ w * (0.5 if model == "relu" else 1)
            error = np.linalg.norm(gram - precision) / np.linalg.norm(precision)
            assert float(row["gram_precision_error"]) == pytest.approx(error, rel=1e-6, abs=1e-12)
            miss = np.mean(abs(w @ mean + b) / np.linalg.norm(w, axis=1))
            assert float(row["mean_distance"]) == pytest.approx(miss, rel=1e-6, abs=1e-12)


def test_ground_truth_is_exact_but_for_rounding(run):
    small = 1e-4 if run.config["options"]["dtype"] == "float32" else 1e-10
    (row,) = run.of("ground-truth")
    for metric in (
        "train_mse",
        "test_mse",
        "mean_distance",
        "mean_distance_spread",
        "sphericity",
        "row_eigenvalue_error",
        "gram_precision_error",
        "gram_eigenvalue_error",
        "centre_error",
    ):
        assert 0 <= float(row[metric]) < small, metric
    assert float(row["row_cosine"]) == pytest.approx(1, abs=small)
    assert float(row["gram_cosine"]) == pytest.approx(1, abs=small)
    assert (row["mirrored_pairs"], row["unique_units"], row["dead_units"]) == ("0.0", "2.0", "0.0")


def test_arrays_of_the_figures(run):
    arrays = load_file(run.path / "plots.safetensors")
    shapes = {
        "eigenvalues/true": (2,),
        "plane/mean": (2,),
        "plane/samples": (100, 2),
        "plane/grid_x": (161,),
        "plane/grid_y": (161,),
        "plane/true": (161, 161),
    }
    for model in MODELS:
        units = 2 if model in ("abs", "ground-truth") else 4
        shapes |= {
            f"eigenvalues/{model}/rows": (count(run, model), 2),
            f"eigenvalues/{model}/gram": (count(run, model), 2),
            f"fit/{model}/true": (1000,),
            f"fit/{model}/learned": (1000,),
            f"plane/{model}/distance": (161, 161),
            f"plane/{model}/weight": (units, 2),
            f"plane/{model}/bias": (units,),
        }
    assert {name: array.shape for name, array in arrays.items()} == shapes


@torch.no_grad()
def test_arrays_say_what_the_models_say(run):
    arrays = load_file(run.path / "plots.safetensors")
    record = run.json("gaussian.json")
    mean, covariance = np.array(record["mean"]), np.array(record["covariance"])
    true = np.linalg.eigvalsh(covariance)[::-1]
    np.testing.assert_allclose(arrays["eigenvalues/true"], true, rtol=1e-9)
    gram = arrays["eigenvalues/ground-truth/gram"][0]
    np.testing.assert_allclose(gram, true, rtol=1e-4)
    np.testing.assert_allclose(arrays["eigenvalues/ground-truth/rows"][0], true, rtol=1e-4)
    # Rows of the grid are y: check a point that is not on the diagonal.
    x, y = arrays["plane/grid_x"], arrays["plane/grid_y"]
    for i, j in ((3, 100), (140, 20)):
        point = np.array([x[j], y[i]])
        distance = math.sqrt((point - mean) @ np.linalg.inv(covariance) @ (point - mean))
        assert arrays["plane/true"][i, j] == pytest.approx(distance)
        for model in MODELS:
            best = weights_of(run, model)[run.outcome(model)["best_trial"]].double()
            learned = best(torch.from_numpy(point)).item()
            assert arrays[f"plane/{model}/distance"][i, j] == pytest.approx(learned)
            np.testing.assert_array_equal(arrays[f"plane/{model}/weight"], best[0].weight)
            np.testing.assert_array_equal(arrays[f"plane/{model}/bias"], best[0].bias)
    np.testing.assert_allclose(
        arrays["fit/ground-truth/learned"], arrays["fit/ground-truth/true"], atol=1e-4
    )


# Other runs


def test_same_seed_same_numbers(runner, adam_run, tmp_path):
    again = runner(tmp_path / "again", epochs=300)
    for name in ("trials.csv", "curves.csv", "gaussian.json", "plots.safetensors"):
        assert (again.path / name).read_bytes() == (adam_run.path / name).read_bytes()
    for file in (adam_run.path / "weights").iterdir():
        assert (again.path / "weights" / file.name).read_bytes() == file.read_bytes()


def test_a_model_trains_the_same_alone_and_with_others(runner, adam_run, tmp_path):
    alone = runner(tmp_path / "alone", epochs=300, models=("relu",))
    assert alone.trials == adam_run.of("relu")
    assert sorted(p.name for p in (alone.path / "weights").iterdir()) == ["relu.safetensors"]
    whys = {c["id"]: c["why"] for c in alone.summary["claims"]}
    for name, why in whys.items():
        if name.startswith("000/abs"):
            assert why.startswith(("This run has no numbers", "Needs a run with"))
    assert whys["000/relu-units-pair-up"].startswith("Too few trials to tell. Mean ")


def test_only_the_analytic_model(runner, tmp_path):
    run = runner(tmp_path / "run", models=("ground-truth",), dim=3)
    assert [row["model"] for row in run.trials] == ["ground-truth"]
    assert run.curves == []
    assert run.summary["facts"]["method"] == "none"
    assert not any("plane" in name for name in load_file(run.path / "plots.safetensors"))
    assert {c["id"] for c in run.summary["claims"] if c["verdict"] != "not measured"} == {
        "000/ground-truth-whitens"
    }


@pytest.mark.parametrize("solver", ["adam", "newton"])
def test_one_dimension_and_one_trial(runner, tmp_path, solver):
    run = runner(tmp_path / "run", dim=1, trials=1, epochs=30, samples=20, solver=solver)
    assert len(run.trials) == 4
    assert float(run.of("ground-truth")[0]["gram_precision_error"]) < 1e-6
    assert run.row("abs", "train_mse")["ci95"] is None


def test_fewer_samples_than_dimensions(runner, tmp_path):
    run = runner(tmp_path / "run", dim=5, trials=2, epochs=20, samples=2, models=("abs", "relu"))
    assert [row["status"] for row in run.trials] == ["done"] * 4
