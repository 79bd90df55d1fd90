"""The converging solver inside a run: how trials end, and that perfect fits hold the truth."""

import numpy as np
import pytest

KNOWN = {"zero residual", "local minimum", "saddle point", "stalled", "not converged"}


@pytest.fixture(scope="session")
def run_3d(runner, tmp_path_factory):
    path = tmp_path_factory.mktemp("newton3") / "run"
    return runner(path, dim=3, trials=5, solver="newton", models=("abs", "relu"))


@pytest.fixture(params=["2-D", "3-D"])
def run(request):
    return request.getfixturevalue("newton_run" if request.param == "2-D" else "run_3d")


def test_every_trial_says_how_it_ended(run):
    for row in run.trials:
        if row["model"] == "ground-truth":
            continue
        assert row["status"] in KNOWN
        assert row["basin"] == row["status"]  # it has arrived where it leads
        assert 1 <= int(row["steps"]) <= 2000


def test_a_perfect_fit_is_the_truth(run):
    for model in ("abs", "relu"):
        perfect = [row for row in run.of(model) if row["status"] == "zero residual"]
        assert perfect, f"no trial of {model} fits: the test says nothing"
        for row in perfect:
            assert float(row["train_mse"]) < 1e-20
            assert float(row["gram_precision_error"]) < 1e-8
            assert float(row["gram_eigenvalue_error"]) < 1e-8
            assert float(row["centre_error"]) < 1e-8
            assert float(row["mean_distance_spread"]) < 1e-8
            assert float(row["test_mse"]) < 1e-15  # it holds beyond the samples


def test_abs_whitens_where_it_fits(run):
    for row in run.of("abs"):
        if row["status"] == "zero residual":
            assert float(row["sphericity"]) < 1e-8


def test_a_minimum_above_zero_is_not_called_a_fit(run):
    variance = run.summary["facts"]["target_variance"]
    for row in run.trials:
        if row["status"] in ("local minimum", "saddle point"):
            assert float(row["train_mse"]) > 1e-8 * variance


def test_sigmoid_cannot_fit(newton_run):
    assert "zero residual" not in newton_run.outcome("sigmoid")["statuses"]


def test_the_loss_never_rises(run):
    points = {}
    for row in run.curves:
        points.setdefault((row["model"], row["trial"]), []).append(float(row["train_mse"]))
    for losses in points.values():
        assert (np.diff(losses) <= 0).all()


def test_claims_of_the_converged_run(newton_run):
    verdicts = {c["id"]: c["verdict"] for c in newton_run.summary["claims"]}
    assert verdicts["000/abs-recovers-precision-adam"] == "not measured"
    assert verdicts["000/adam-converged"] == "not measured"
    assert verdicts["000/abs-recovers-precision-newton"] in ("holds", "fails")
    share = newton_run.outcome("abs")["statuses"].get("zero residual", 0) / 6
    (claim,) = (
        c for c in newton_run.summary["claims"] if c["id"] == "000/abs-recovers-precision-newton"
    )
    assert claim["measured"] == pytest.approx(share)
    assert claim["verdict"] == ("holds" if share >= 0.9 else "fails")


def test_adam_and_newton_start_from_the_same_points(runner, tmp_path):
    """The first point of the curve is the loss of the start."""
    runs = [
        runner(tmp_path / solver, epochs=2, solver=solver, models=("abs", "relu"), dtype="float64")
        for solver in ("adam", "newton")
    ]
    first = [
        {(r["model"], r["trial"]): float(r["train_mse"]) for r in run.curves if r["epoch"] == "1"}
        for run in runs
    ]
    assert first[0].keys() == first[1].keys()
    for key, loss in first[0].items():
        assert first[1][key] == pytest.approx(loss, rel=1e-9)


def test_newton_in_single_precision(runner, tmp_path):
    run = runner(tmp_path / "run", solver="newton", dtype="float32", models=("abs",), epochs=300)
    for row in run.of("abs"):
        assert row["status"] in KNOWN
        if row["status"] == "zero residual":
            assert float(row["gram_precision_error"]) < 1e-2
