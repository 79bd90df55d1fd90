"""The data and starting points of a run: all from one seed, and from nothing else."""

import itertools

import msgspec
import pytest
import torch

from mahalens.geometry import Gaussian
from mahalens.studies.gaussian.config import GaussianConfig
from mahalens.studies.gaussian.problem import Problem
from mahalens.train import Adam, Newton

TRAINED = ("abs", "relu", "sigmoid")


def problem(**options):
    config = GaussianConfig.with_defaults(**{"trials": 3, "samples": 50, "epochs": 5, **options})
    return Problem.from_config(config)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_same_seed_same_data(dim):
    a, b, other = problem(dim=dim), problem(dim=dim), problem(dim=dim, seed=1)
    assert torch.equal(a.gaussian.mean, b.gaussian.mean)
    assert torch.equal(a.gaussian.factor, b.gaussian.factor)
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert not torch.equal(a.gaussian.mean, other.gaussian.mean)
    assert not bool((a.x == other.x).any())
    for model in TRAINED:
        assert torch.equal(a.start(model).values, b.start(model).values)
        assert not bool((a.start(model).values == other.start(model).values).any())


def test_the_gaussian_is_that_of_the_source():
    gaussian = problem(dim=10).gaussian
    assert gaussian.dtype == torch.float64
    assert float(gaussian.eigenvalues[0]) == pytest.approx(1, abs=1e-12)
    assert float(gaussian.mean.abs().max()) <= 10


def test_neither_options_of_training_nor_the_global_generator_change_the_data():
    plain = problem()
    torch.manual_seed(123)
    other = problem(trials=7, epochs=9, solver="newton", models=("relu",))
    assert torch.equal(plain.gaussian.factor, other.gaussian.factor)
    assert torch.equal(plain.x, other.x.float())
    assert torch.equal(plain.y, other.y.float())


def test_distances_are_those_of_the_samples():
    given = problem(dim=3, dtype="float64")
    centred = given.x - given.gaussian.mean
    square = (centred @ given.gaussian.precision * centred).sum(1)
    torch.testing.assert_close(given.y, square.sqrt())
    assert given.x.shape == (50, 3)
    assert given.y.shape == (50,)


def test_dtype_of_the_run():
    assert problem().x.dtype == problem().y.dtype == torch.float32
    assert problem(dtype="float64").x.dtype == torch.float64
    assert problem().start("abs").values.dtype == torch.float32
    # Distances are computed before the samples are rounded.
    assert torch.equal(problem().y, problem(dtype="float64").y.float())


@pytest.mark.parametrize("model", TRAINED)
def test_a_trial_starts_the_same_however_many_there_are(model):
    few, many = problem(trials=3).start(model), problem(trials=20).start(model)
    assert torch.equal(few.values, many.values[:3])
    assert len(torch.unique(many.values[:, 0])) == 20


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_one_draw_is_shared_by_the_models(dim):
    starts = {model: problem(dim=dim).start(model).tensors() for model in TRAINED}
    for name in ("0.weight", "0.bias"):
        assert torch.equal(starts["relu"][name], starts["sigmoid"][name])
        assert torch.equal(starts["abs"][name], starts["relu"][name][:, :dim])
    assert starts["relu"]["0.weight"].shape == (3, 2 * dim, dim)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_hyperplane_passes_through_a_sample(dtype):
    given = problem(dim=3, dtype=dtype)
    tensors = given.start("relu").tensors()
    weight, bias = tensors["0.weight"].double(), tensors["0.bias"].double()
    reach = (weight @ given.x.double().T + bias[..., None]).abs() / weight.norm(dim=-1)[..., None]
    assert float(reach.amin(-1).max()) < (1e-12 if dtype == "float64" else 1e-5)
    # Most hyperplanes go through samples of their own.
    assert len(torch.unique(reach.argmin(-1))) > 9


def test_weights_are_kaiming_normal():
    weight = problem(dim=10, trials=100).start("relu").tensors()["0.weight"]
    assert float(weight.std()) == pytest.approx((2 / 10) ** 0.5, rel=0.02)
    assert abs(float(weight.mean())) < 0.01


@pytest.mark.parametrize("model", TRAINED)
def test_starts_of_both_precisions_agree(model):
    single, double = problem().start(model), problem(dtype="float64").start(model)
    assert torch.equal(single.tensors()["0.weight"], double.tensors()["0.weight"].float())
    torch.testing.assert_close(single.values.double(), double.values, rtol=1e-5, atol=1e-5)


def test_every_evaluation_has_a_test_set_of_its_own():
    given = problem()
    evaluations = list(itertools.product((*TRAINED, "ground-truth"), range(3)))
    sets = {key: given.test_set(*key) for key in evaluations}
    for a, b in itertools.combinations(sets.values(), 2):
        assert not bool((a[0] == b[0]).all(1).any())
    for x, y in sets.values():
        assert x.shape == (1000, 2)
        assert x.dtype == torch.float32
        assert y.dtype == torch.float64
        assert not bool((x[:50] == given.x).all(1).any())
    again = given.test_set("abs", 1)
    assert torch.equal(again[0], sets["abs", 1][0])
    assert torch.equal(again[1], sets["abs", 1][1])


def test_test_samples_come_from_the_same_gaussian():
    given = problem(dim=3, dtype="float64")
    x = torch.cat([given.test_set("abs", trial)[0] for trial in range(20)])
    spread = given.gaussian.whiten(x)
    torch.testing.assert_close(torch.cov(spread.T), torch.eye(3).double(), rtol=0, atol=0.05)
    assert float(spread.mean(0).abs().max()) < 0.05


def test_a_gaussian_of_the_user_replaces_the_draw():
    mine = Gaussian.from_covariance(torch.tensor([100.0, -100.0]).double(), torch.eye(2).double())
    config = GaussianConfig.with_defaults(trials=2, samples=50)
    given = Problem.from_config(config, mine)
    assert given.gaussian is mine
    assert float((given.x.mean(0) - mine.mean).abs().max()) < 1


def test_solvers():
    assert isinstance(problem().solver("abs"), Adam)
    adam = problem(epochs=5).solver("relu")
    assert (adam.betas, adam.limit) == ((0.9, 0.99), 5)
    assert adam.rows["lr"].tolist() == [1e-3] * 3  # one per trial
    newton = problem(solver="newton").solver("abs")
    assert isinstance(newton, Newton)
    # Through the whitened coordinates and back.
    torch.testing.assert_close(
        newton.stack.values, problem(dtype="float64").start("abs").values, rtol=1e-9, atol=1e-9
    )


def test_the_way_on_from_adam_is_exact():
    """Trials are continued on samples before rounding, from where they are."""
    given = problem()
    solver = given.continued(given.start("abs"))
    assert isinstance(solver, Newton)
    torch.testing.assert_close(
        solver.stack.values, given.start("abs").values.double(), rtol=1e-9, atol=1e-9
    )
    truth = Problem.from_config(msgspec.structs.replace(given.config, dtype="float64"))
    assert not torch.equal(given.x.double(), truth.x)
    torch.testing.assert_close(
        solver.final_loss,
        truth.solver("abs").objective.loss(solver.stack),
        rtol=1e-9,
        atol=0,
    )
