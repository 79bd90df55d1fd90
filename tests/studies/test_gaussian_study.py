"""The Gaussian study: data from one seed, weights that say what the records say, and the truth."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from small_runs import config_of, go_on, make_run

from mahalens.data import draw_gaussian, load_gaussian, stream
from mahalens.errors import Interrupted, RunFolderError
from mahalens.nn import Chain
from mahalens.studies.gaussian import METRICS, PUBLISHED, STUDY, GaussianConfig, Problem
from mahalens.studies.run import start
from mahalens.train import Adam, Newton

TRAINED = ("abs", "relu", "sigmoid")
ALL = (*TRAINED, "ground-truth")
KNOWN = {"zero residual", "local minimum", "saddle point", "stalled", "not converged"}
make = GaussianConfig.with_defaults

# --- Options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "epochs", "samples", "dtype"),
    [
        ({}, 10_000, 1_000, "float32"),
        ({"dim": 3}, 50_000, 1_000, "float32"),
        ({"dim": 11}, 250_000, 10_000, "float32"),
        ({"dim": 2_000}, 250_000, 20_000, "float32"),
        ({"dim": 10, "solver": "newton"}, 2_000, 1_000, "float64"),  # converges in float64
        ({"solver": "newton", "dtype": "float32", "epochs": 7}, 7, 1_000, "float32"),
    ],
    ids=str,
)
def test_defaults_by_dimension(options, epochs, samples, dtype):
    config = make(**options)
    assert (config.epochs, config.samples, config.dtype) == (epochs, samples, dtype)
    assert (config.trials, config.models, config.test_samples) == (20, ALL, 1_000)
    assert (config.learning_rate, config.betas, config.gaussian) == (1e-3, (0.9, 0.99), None)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"dim": 100, "seed": 123, "device": "cuda", "models": ALL[::-1]}, []),
        ({"dim": 10, "epochs": 10_000}, ["epochs: 10,000 instead of 50,000"]),
        ({"dim": 100, "samples": 1_000}, ["samples: 1,000 instead of 10,000"]),
        ({"models": ("abs",)}, ["models: without relu, sigmoid, ground-truth"]),
        (
            {"dim": 7, "trials": 1, "epochs": 1},
            ["dim: 7 instead of 2, 10 or 100", "trials: 1 instead of 20"],
        ),
        (
            {"solver": "newton"},
            ["solver: newton instead of adam", "dtype: float64 instead of float32"],
        ),
        ({"learning_rate": 0.1}, ["learning rate: 0.1 instead of 0.001"]),
    ],
    ids=str,
)
def test_every_deviation_is_a_sentence(options, wanted):
    assert make(**options).deviations() == wanted


def test_threads_are_for_large_runs():
    assert STUDY.threads(make(trials=2, samples=100)) == 1
    assert STUDY.threads(make(dim=100)) == torch.get_num_threads()


# --- Data and starting points -----------------------------------------------------------------


def problem(**options):
    config = make(**{"trials": 3, "samples": 50, "epochs": 5, **options})
    gaussian = draw_gaussian(config.dim, stream(config.seed, "gaussian", config.dim))
    return Problem.draw(config, gaussian)


def starts(given, model):
    return given.start(model, range(given.config.trials))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_same_seed_same_data(dim):
    a, b, other = problem(dim=dim), problem(dim=dim), problem(dim=dim, seed=1)
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert not bool((a.x == other.x).any())
    for model in TRAINED:
        assert torch.equal(starts(a, model).values, starts(b, model).values)
        assert not bool((starts(a, model).values == starts(other, model).values).any())


def test_neither_options_of_training_nor_the_global_generator_change_the_data():
    plain = problem()
    torch.manual_seed(123)
    other = problem(trials=7, epochs=9, solver="newton", models=("relu",))
    assert torch.equal(plain.x, other.x.float())
    # Distances are computed before the samples are rounded.
    assert torch.equal(plain.y, other.y.float())
    assert plain.x.dtype == plain.y.dtype == starts(plain, "abs").values.dtype == torch.float32


def test_distances_are_those_of_the_samples():
    given = problem(dim=3, dtype="float64")
    centred = given.x - given.gaussian.mean
    square = (centred @ given.gaussian.precision * centred).sum(1)
    torch.testing.assert_close(given.y, square.sqrt())


@pytest.mark.parametrize("model", TRAINED)
def test_a_trial_starts_the_same_however_many_there_are(model):
    few, many = starts(problem(), model), starts(problem(trials=20), model)
    assert torch.equal(few.values, many.values[:3])
    assert len(torch.unique(many.values[:, 0])) == 20
    assert torch.equal(problem().start(model, range(1, 3)).values, few.values[1:])
    double = starts(problem(dtype="float64"), model)
    torch.testing.assert_close(few.values.double(), double.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_one_draw_is_shared_by_the_models(dim):
    tensors = {model: starts(problem(dim=dim), model).tensors() for model in TRAINED}
    for name in ("0.weight", "0.bias"):
        assert torch.equal(tensors["relu"][name], tensors["sigmoid"][name])
        assert torch.equal(tensors["abs"][name], tensors["relu"][name][:, :dim])
    assert tensors["relu"]["0.weight"].shape == (3, 2 * dim, dim)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float64", 1e-12)])
def test_every_hyperplane_passes_through_a_sample(dtype, close):
    given = problem(dim=3, dtype=dtype)
    tensors = starts(given, "relu").tensors()
    weight, bias = tensors["0.weight"].double(), tensors["0.bias"].double()
    reach = (weight @ given.x.double().T + bias[..., None]).abs() / weight.norm(dim=-1)[..., None]
    assert float(reach.amin(-1).max()) < close
    assert len(torch.unique(reach.argmin(-1))) > 9  # most go through samples of their own


def test_every_evaluation_has_a_test_set_of_its_own():
    given = problem()
    sets = {key: given.test_set(*key) for key in itertools.product(ALL, range(3))}
    for a, b in itertools.combinations(sets.values(), 2):
        assert not bool((a[0] == b[0]).all(1).any())
    for x, y in sets.values():
        assert (x.shape, x.dtype, y.dtype) == ((1000, 2), torch.float32, torch.float64)
        assert not bool((x[:50] == given.x).all(1).any())
    assert torch.equal(given.test_set("abs", 1)[0], sets["abs", 1][0])


def test_test_samples_come_from_the_same_gaussian():
    given = problem(dim=3, dtype="float64")
    x = torch.cat([given.test_set("abs", trial)[0] for trial in range(20)])
    white = given.gaussian.whiten(x)
    torch.testing.assert_close(torch.cov(white.T), torch.eye(3).double(), rtol=0, atol=0.05)
    assert float(white.mean(0).abs().max()) < 0.05


def test_solvers_start_from_the_same_points():
    adam = problem(epochs=5).solver("abs", range(3))
    assert isinstance(adam, Adam)
    assert (adam.betas, adam.limit) == ((0.9, 0.99), 5)
    assert adam.rows["lr"].tolist() == [1e-3] * 3  # one per trial
    assert torch.equal(adam.stack.values, starts(problem(), "abs").values)
    newton = problem(solver="newton").solver("abs", range(3))
    assert isinstance(newton, Newton)
    # Through the whitened coordinates and back.
    wanted = starts(problem(dtype="float64"), "abs").values
    torch.testing.assert_close(newton.stack.values, wanted, rtol=1e-9, atol=1e-9)


def test_the_way_on_from_adam_is_exact():
    """Trials are continued on samples before rounding, from where they are."""
    given, truth = problem(), problem(dtype="float64")
    solver = given.continued(starts(given, "abs"))
    assert isinstance(solver, Newton)
    wanted = starts(given, "abs").values.double()
    torch.testing.assert_close(solver.stack.values, wanted, rtol=1e-9, atol=1e-9)
    assert not torch.equal(given.x.double(), truth.x)
    loss = truth.objective(truth.chain("abs")).loss(solver.stack)
    torch.testing.assert_close(solver.final_loss, loss, rtol=1e-9, atol=0)


# --- Records ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def newton_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("newton") / "run"
    return make_run("gaussian", path, trials=6, solver="newton", seed=1, samples=100, epochs=None)


@pytest.fixture(params=["adam", "newton"])
def run(request, finished):
    return (
        finished("gaussian") if request.param == "adam" else request.getfixturevalue("newton_run")
    )


def problem_of(run):
    config = msgspec.convert(run.config["options"], GaussianConfig)
    return Problem.draw(config, load_gaussian(run.path / "gaussian.json"))


def truth_of(run):
    record = run.json("gaussian.json")
    return np.array(record["mean"]), np.array(record["covariance"])


def networks_of(run, model):
    """Return each trial as a plain module, by what the file says about itself."""
    with safe_open(run.path / "weights" / f"{model}.safetensors", "pt") as file:
        chain = file.metadata()["chain"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    dtype = tensors["0.weight"].dtype
    modules = []
    for trial in range(len(tensors["0.weight"])):
        modules.append(Chain.parse(chain, inputs=2).build(dtype=dtype))
        modules[-1].load_state_dict({name: tensor[trial] for name, tensor in tensors.items()})
    return modules


def test_the_gaussian_of_a_run_is_in_its_folder(run):
    mean, covariance = truth_of(run)
    assert mean.shape == (2,)
    assert np.linalg.eigvalsh(covariance)[-1] == pytest.approx(1)
    assert list(run.config["inputs"]) == ["gaussian.json"]


def test_statuses_basins_and_what_is_empty(run):
    adam = run.config["options"]["solver"] == "adam"
    for row in run.trials:
        truth = row["model"] == "ground-truth"
        empty = {name for name in METRICS if row[name] == ""}
        assert empty == (set() if adam and not truth else {"late_decrease"})
        if truth:
            assert (row["status"], row["basin"], row["steps"]) == ("analytic", "zero residual", "0")
        elif adam:
            assert (row["status"], row["steps"]) == ("done", "40")
            assert row["basin"] in ({""} if row["model"] == "sigmoid" else KNOWN)
        else:
            assert row["status"] in KNOWN
            assert row["basin"] == row["status"]  # it has arrived where it leads
            assert 1 <= int(row["steps"]) <= 2000
    for outcome in run.summary["outcomes"]:
        basins = [row["basin"] for row in run.of(outcome["model"]) if row["basin"]]
        assert outcome["basins"] == {basin: basins.count(basin) for basin in basins}


def curves_of(run):
    points = {}
    for row in run.csv("curves.csv"):
        key = row["model"], int(row["trial"])
        points.setdefault(key, []).append((int(row["epoch"]), float(row["train_mse"])))
    return points


def test_curves(run):
    adam = run.config["options"]["solver"] == "adam"
    for (model, trial), curve in curves_of(run).items():
        epochs, losses = zip(*curve, strict=True)
        assert list(epochs) == sorted(set(epochs))
        assert (epochs[0], epochs[-1]) == (1, int(run.of(model)[trial]["steps"]))
        assert len(epochs) <= 450
        if adam:
            assert losses[-1] == float(run.of(model)[trial]["train_mse"])
        else:
            assert (np.diff(losses) <= 0).all()  # the loss never rises


def test_late_decrease_is_that_of_the_curve(finished):
    run = finished("gaussian")
    floor = 1e-3 * run.summary["facts"]["target_variance"]
    for (model, trial), curve in curves_of(run).items():
        losses = dict(curve)
        before = losses[max(epoch for epoch in losses if epoch <= 36)]
        wanted = (before - losses[40]) / max(before, floor)
        value = float(run.of(model)[trial]["late_decrease"])
        assert value == pytest.approx(wanted, rel=1e-5, abs=1e-9)


def test_facts(run):
    facts, (_, covariance) = run.summary["facts"], truth_of(run)
    eigenvalues = np.linalg.eigvalsh(covariance)
    assert facts["largest_eigenvalue"] == pytest.approx(eigenvalues[-1])
    assert facts["smallest_eigenvalue"] == pytest.approx(eigenvalues[0])
    assert facts["condition_number"] == pytest.approx(eigenvalues[-1] / eigenvalues[0])
    assert facts["target_variance"] == pytest.approx(np.var(problem_of(run).y.double().numpy()))
    assert facts["method"] == {"adam": "adam", "newton": "levenberg-marquardt"}[facts["solver"]]
    low, high = facts["row_cosine_chance"]
    assert 0.5 < low < high <= 1
    group = {key: run.config["options"][key] for key in ("dim", "solver")}
    assert all(row["group"] == group for row in run.summary["rows"])


@pytest.mark.parametrize("model", ALL)
@torch.no_grad()
def test_weights_are_plain_modules_with_the_recorded_loss(run, model):
    modules, given = networks_of(run, model), problem_of(run)
    assert len(modules) == len(run.of(model))
    assert modules[0][0].out_features == (2 if model in ("abs", "ground-truth") else 4)
    for trial, module in enumerate(modules):
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
    mean, covariance = truth_of(run)
    precision = np.linalg.inv(covariance)
    for model in ("abs", "relu"):
        for row, module in zip(run.of(model), networks_of(run, model), strict=True):
            w, b = module[0].weight.double().numpy(), module[0].bias.double().numpy()
            gram = w.T @ w * (0.5 if model == "relu" else 1)
            error = np.linalg.norm(gram - precision) / np.linalg.norm(precision)
            assert float(row["gram_precision_error"]) == pytest.approx(error, rel=1e-6, abs=1e-12)
            miss = np.mean(abs(w @ mean + b) / np.linalg.norm(w, axis=1))
            assert float(row["mean_distance"]) == pytest.approx(miss, rel=1e-6, abs=1e-12)


def test_ground_truth_is_exact_but_for_rounding(run):
    small = 1e-4 if run.config["options"]["dtype"] == "float32" else 1e-10
    (row,) = run.of("ground-truth")
    zero = "train_mse test_mse mean_distance mean_distance_spread sphericity row_eigenvalue_error"
    for metric in (*zero.split(), "gram_precision_error", "gram_eigenvalue_error", "centre_error"):
        assert 0 <= float(row[metric]) < small, metric
    for metric in ("row_cosine", "gram_cosine"):
        assert float(row[metric]) == pytest.approx(1, abs=small)
    assert (row["mirrored_pairs"], row["unique_units"], row["dead_units"]) == ("0.0", "2.0", "0.0")


@torch.no_grad()
def test_arrays_say_what_the_models_say(run):
    arrays = load_file(run.path / "plots.safetensors")
    mean, covariance = truth_of(run)
    true = np.linalg.eigvalsh(covariance)[::-1]
    np.testing.assert_allclose(arrays["eigenvalues/true"], true, rtol=1e-9)
    np.testing.assert_allclose(arrays["eigenvalues/ground-truth/gram"][0], true, rtol=1e-4)
    np.testing.assert_allclose(arrays["eigenvalues/ground-truth/rows"][0], true, rtol=1e-4)
    for model in ALL:
        assert arrays[f"eigenvalues/{model}/rows"].shape == (len(run.of(model)), 2)
        best = networks_of(run, model)[run.outcome(model)["best_trial"]].double()
        np.testing.assert_array_equal(arrays[f"plane/{model}/weight"], best[0].weight)
        np.testing.assert_array_equal(arrays[f"plane/{model}/bias"], best[0].bias)
        # Rows of the grid are y: check points that are not on the diagonal.
        for i, j in ((3, 100), (140, 20)):
            point = np.array([arrays["plane/grid_x"][j], arrays["plane/grid_y"][i]])
            distance = math.sqrt((point - mean) @ np.linalg.inv(covariance) @ (point - mean))
            assert arrays["plane/true"][i, j] == pytest.approx(distance)
            learned = best(torch.from_numpy(point)).item()
            assert arrays[f"plane/{model}/distance"][i, j] == pytest.approx(learned)
    fit = (arrays["fit/ground-truth/learned"], arrays["fit/ground-truth/true"])
    np.testing.assert_allclose(*fit, atol=1e-4)


# --- Where the converging solver ends ---------------------------------------------------------


@pytest.fixture(scope="module")
def run_3d(tmp_path_factory):
    options = {"dim": 3, "trials": 5, "solver": "newton", "samples": 100, "epochs": None}
    path = tmp_path_factory.mktemp("newton3") / "run"
    return make_run("gaussian", path, models=("abs", "relu"), **options)


@pytest.mark.parametrize("run", ["newton_run", "run_3d"])
def test_a_perfect_fit_is_the_truth(run, request):
    run = request.getfixturevalue(run)
    variance = run.summary["facts"]["target_variance"]
    for model in ("abs", "relu"):
        perfect = [row for row in run.of(model) if row["status"] == "zero residual"]
        assert perfect, f"no trial of {model} fits: the test says nothing"
        for row in perfect:
            assert float(row["train_mse"]) < 1e-20
            assert float(row["test_mse"]) < 1e-15  # it holds beyond the samples
            metrics = "gram_precision_error gram_eigenvalue_error centre_error mean_distance_spread"
            assert all(float(row[metric]) < 1e-8 for metric in metrics.split())
            assert model != "abs" or float(row["sphericity"]) < 1e-8
    for row in run.trials:
        if row["status"] in ("local minimum", "saddle point"):  # not called a fit
            assert float(row["train_mse"]) > 1e-8 * variance


def test_claims_of_the_converged_run(newton_run):
    claims = {
        claim["id"].removeprefix("gaussian/"): claim for claim in newton_run.summary["claims"]
    }
    assert "zero residual" not in newton_run.outcome("sigmoid")["statuses"]  # it cannot fit
    assert claims["abs-recovers-precision-adam"]["verdict"] == "not measured"
    assert claims["adam-converged"]["verdict"] == "not measured"
    share = newton_run.outcome("abs")["statuses"].get("zero residual", 0) / 6
    claim = claims["abs-recovers-precision-newton"]
    assert claim["measured"] == pytest.approx(share)
    assert claim["verdict"] == ("holds" if share >= 0.9 else "fails")


def test_newton_in_single_precision(tmp_path):
    options = {"solver": "newton", "dtype": "float32", "models": ("abs",), "epochs": 300}
    for row in make_run("gaussian", tmp_path / "run", **options).of("abs"):
        assert row["status"] in KNOWN
        if row["status"] == "zero residual":
            assert float(row["gram_precision_error"]) < 1e-2


# --- Runs at the edge -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"dim": 1, "trials": 1, "epochs": 30, "samples": 20}, 4),
        ({"dim": 1, "trials": 1, "epochs": 30, "samples": 20, "solver": "newton"}, 4),
        ({"dim": 5, "trials": 2, "epochs": 20, "samples": 2, "models": ("abs", "relu")}, 4),
        ({"epochs": 1, "trials": 1, "models": ("abs",), "samples": 20}, 1),
        ({"dim": 3, "models": ("ground-truth",)}, 1),
    ],
    ids=str,
)
def test_the_smallest_runs(tmp_path, options, rows):
    run = make_run("gaussian", tmp_path / "run", **options)
    assert len(run.trials) == rows
    assert all(row["status"] != "non-finite" for row in run.trials)
    assert any("plane" in name for name in load_file(run.path / "plots.safetensors")) == (
        "dim" not in options
    )
    if options.get("epochs") == 1:  # a single epoch has no last tenth
        assert run.of("abs")[0]["late_decrease"] == ""
    if options.get("models") == ("ground-truth",):
        assert not (run.path / "curves.csv").exists()
        assert run.summary["facts"]["method"] == "none"


def test_a_model_trains_the_same_alone_and_with_others(finished, tmp_path):
    alone = make_run("gaussian", tmp_path / "run", models=("relu",))
    assert alone.trials == finished("gaussian").of("relu")
    assert [file.name for file in (alone.path / "weights").iterdir()] == ["relu.safetensors"]


def test_trials_that_run_away_have_no_numbers(tmp_path):
    options = {"models": ("abs", "ground-truth"), "learning_rate": 1e38}
    run = make_run("gaussian", tmp_path / "run", **options)
    assert run.outcome("abs")["statuses"] == {"non-finite": 3}
    assert run.outcome("abs")["best_trial"] is None
    assert any("abs: trials 0, 1, 2 turned non-finite" in note for note in run.watcher.notes)
    for row in run.summary["rows"]:
        if row["model"] == "abs":
            assert (row["n"], row["mean"], row["best"], row["ci95"]) == (0, None, None, None)
    arrays = load_file(run.path / "plots.safetensors")
    assert np.isnan(arrays["eigenvalues/abs/rows"]).all()
    assert "fit/abs/learned" not in arrays


# --- The Gaussian of a run that was stopped ---------------------------------------------------


@pytest.fixture
def stopped(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        make_run("gaussian", path, lambda: (path / "checkpoints").exists())
    return path


def test_killed_before_the_gaussian_was_saved(stopped, finished):
    (stopped / "gaussian.json").unlink()
    assert go_on(stopped).numbers() == finished("gaussian").numbers()


CHANGED = '{"mean": [9, 9], "covariance": [[1, 0], [0, 1]]}'


@pytest.mark.parametrize("text", [CHANGED[:15], CHANGED], ids=["cut", "another"])
def test_a_gaussian_that_changed_is_refused(stopped, text):
    (stopped / "gaussian.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"gaussian\.json: has changed since the run began"):
        go_on(stopped)


@pytest.mark.parametrize("saved", [True, False])
def test_the_users_gaussian_is_not_needed_again_unless_the_saved_one_is_lost(tmp_path, saved):
    file = tmp_path / "mine.json"
    file.write_text('{"mean": [100, -100], "covariance": [[2, 1], [1, 2]]}')
    config = config_of("gaussian", gaussian=file, dim=None, models=("ground-truth",))
    start(STUDY, config, tmp_path / "run").close()
    file.unlink()
    if saved:
        run = go_on(tmp_path / "run")
        assert run.json("gaussian.json")["mean"] == [100, -100]
        assert run.config["options"]["dim"] == 2
        return
    (tmp_path / "run" / "gaussian.json").unlink()
    with pytest.raises(RunFolderError, match="start the run again with --gaussian and --force"):
        go_on(tmp_path / "run")


# --- Published values -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "mean", "detail"),
    [
        (("train_mse", "relu", 2), 0.0284, {"variance": 1.94e-3, "min": 2e-6, "max": 0.2080}),
        (("train_mse", "abs", 10), 0.0339, {"variance": 1e-6, "min": 0.0334, "max": 0.0347}),
        (("train_mse", "sigmoid", 100), 0.1274, {"variance": 2.1e-5}),
        (("mirrored_pairs", "relu", 2), 0.40, {"std": 0.60}),
        (("mean_distance", "abs", 100), 0.04, {"std": 0.00}),
        (("sphericity", "relu", 100), 23.08, {"std": 0.58}),
        (("sphericity", "ground-truth", 2), 9.1e-7, {}),
    ],
)
def test_published_values_are_those_of_the_table(key, mean, detail):
    assert len(PUBLISHED) == 33
    assert (PUBLISHED[key].mean, PUBLISHED[key].detail()) == (mean, detail)
