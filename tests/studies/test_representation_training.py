"""Groups of trials against one plain network after another, and readings against loops."""

import math

import pytest
import torch
from torch import nn

from mahalens.data import LabelledData
from mahalens.errors import InputError, Interrupted
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.latent import latent_distributions
from mahalens.studies.representation.models import MODELS
from mahalens.studies.representation.problem import Group, Problem, seed_of_trial
from mahalens.studies.representation.reading import Reading, centre_metrics
from mahalens.studies.representation.training import (
    accuracies,
    measured_epochs,
    read_group,
    train_group,
)
from mahalens.train import TrialStack

HIDDEN = 12


def problem(data=None, **options):
    """A small problem on some digits, or on given data."""
    from msgspec.structs import replace

    options = {"trials": 3, "epochs": 15, "train_size": 90, **options}
    if data is not None:
        options["train_size"] = None
    config = replace(RepresentationConfig.with_defaults(**options), hidden=HIDDEN)
    return Problem.from_config(config) if data is None else Problem(config, data)


def blobs(classes=3, inputs=6, samples=60):
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(samples) % classes
    x = torch.randn(samples, inputs, generator=generator) + 2 * torch.eye(classes, inputs)[y]
    return LabelledData("blobs", x, y, x[:21] + 0.1, y[:21], None, 4.0, "drawn")


@pytest.mark.parametrize(
    "model", ["relu", "abs2-neg-bias", "relu-l2", "abs-l2-neg-code", "relu2-point"]
)
@pytest.mark.parametrize("pixels", ["normalized", "raw"])
def test_a_group_is_trained_as_plain_networks_one_by_one(model, pixels):
    study = problem(models=(model,))
    result = train_group(study, Group(pixels, model, 1, 2))
    x, test_x = study.inputs(pixels)
    for place, trial in enumerate((1, 2)):
        torch.manual_seed(seed_of_trial(0, trial))
        network = study.chain(model).build()
        descent = torch.optim.SGD(network.parameters(), lr=1e-3)
        for _ in range(15):
            descent.zero_grad()
            loss = nn.functional.cross_entropy(network(x), study.data.y)
            loss.backward()
            descent.step()
        trained = TrialStack(study.chain(model), result["values"])[place]
        for ours, plain in zip(trained.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, plain, rtol=2e-4, atol=2e-5)
        assert float(result["metric.train_loss"][place]) == pytest.approx(loss.item(), rel=1e-4)
        with torch.no_grad():
            right = (network(test_x).argmax(1) == study.data.test_y).double().mean()
        assert abs(float(result["metric.test_accuracy"][place]) - 100 * float(right)) <= 1.0


def test_trial_i_of_every_model_starts_from_the_same_first_layer():
    study = problem()
    starts = [study.start(Group("raw", model, 0, 3)).tensors() for model in MODELS]
    for start in starts[1:]:
        assert torch.equal(start["0.weight"], starts[0]["0.weight"])
        assert torch.equal(start["0.bias"], starts[0]["0.bias"])
    assert not torch.equal(starts[0]["0.weight"][0], starts[0]["0.weight"][1])


def test_a_trial_does_not_depend_on_its_group():
    study = problem(models=("relu2",), trials=5)
    whole = train_group(study, Group("raw", "relu2", 0, 5))
    part = train_group(study, Group("raw", "relu2", 3, 2))
    for name in ("values", "losses", "accuracies", "metric.test_accuracy", "positions"):
        assert torch.equal(whole[name][3:], part[name]), name


def test_an_interrupted_group_goes_on_to_the_same_bits():
    study = problem(models=("relu",))
    group = Group("normalized", "relu", 0, 3)
    whole = train_group(study, group)
    kept = {}

    def stop_early():
        return True

    with pytest.raises(Interrupted):
        train_group(study, group, save=kept.update, should_stop=stop_early)
    assert 0 < int(kept["epoch"]) < 15
    again = train_group(study, group, state=kept)
    assert again.keys() == whole.keys()
    for name, tensor in whole.items():
        if name != "seconds":
            torch.testing.assert_close(again[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_a_trial_that_runs_away_has_no_reading():
    study = problem(data=blobs(), models=("relu",))
    from msgspec.structs import replace

    wild = Problem(replace(study.config, learning_rate=1e30), study.data)
    result = train_group(wild, Group("raw", "relu", 0, 2))
    assert result["metric.test_accuracy"].isnan().all()
    assert result["metric.dead_outputs"].isnan().all()


def test_measured_epochs_have_the_ends_and_the_last_tenth():
    for epochs in (1, 2, 7, 100, 5000, 50_000):
        chosen = measured_epochs(epochs)
        assert chosen[0] == 0
        assert chosen[-1] == epochs
        assert chosen == sorted(set(chosen))
        assert epochs - max(1, epochs // 10) in chosen
    assert len(measured_epochs(50_000)) < 40


def plain_reading(network, x, y, classes):
    """The same numbers with a loop over samples and units."""
    places = [i for i, part in enumerate(network) if list(part.parameters())]
    hidden = network[: places[-1]](x)
    score = network[: places[-1] + 1](x)
    output = network(x)
    return hidden, score, output


@pytest.mark.parametrize("model", ["relu2", "abs2-neg", "relu-l2-neg", "linear-l2", "abs-point"])
def test_readings_equal_plain_loops(model):
    data = blobs()
    study = problem(data=data, models=(model,))
    stack = study.start(Group("raw", model, 0, 2))
    reading = Reading(stack, data.x, data.y, 3)
    positions = reading.positions(stack)
    for trial in range(2):
        network = stack[trial]
        with torch.no_grad():
            hidden, score, output = plain_reading(network, data.x, data.y, 3)
        assert float(reading.accuracy[trial]) == pytest.approx(
            100 * float((output.argmax(1) == data.y).double().mean())
        )
        for unit in range(3):
            active = (output[:, unit].abs() > 1e-6).sum()
            assert int(reading.active_outputs[trial, unit]) == int(active)
        for unit in range(HIDDEN):
            assert int(reading.active_hidden[trial, unit]) == int(
                (hidden[:, unit].abs() > 1e-6).sum()
            )
        assert int(reading.silent[trial]) == int((output.abs() <= 1e-6).all(1).sum())
        top = [part for part in network if list(part.parameters())][-1].double()
        for c in range(3):
            spread = float(score[:, c].double().std(correction=0))
            for j in range(3):
                centre = hidden[data.y == j].double().mean(0)
                with torch.no_grad():
                    wanted = abs(float(top(centre[None])[0, c])) / spread
                assert float(positions[trial, c, j]) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_dead_and_rare_units_are_counted_at_each_threshold():
    """100 samples; units active on 0, 1, 4, 5 and all of them."""
    counts = [0, 1, 4, 5, 100]
    x = torch.zeros(100, 5)
    for unit, count in enumerate(counts):
        x[:count, unit] = 1.0
    network = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5, bias=False), nn.ReLU())
    with torch.no_grad():
        for part in (network[0], network[2]):
            part.weight.copy_(torch.eye(5))
        network[0].bias.zero_()
    from mahalens.train import stack

    reading = Reading(stack([network]), x, torch.arange(100) % 5, 5)
    found = {name: float(share) for name, share in reading.activity().items()}
    assert found == {
        "dead_outputs": 20.0,
        "rare1_outputs": 20.0,
        "rare5_outputs": 60.0,
        "dead_hidden": 20.0,
        "rare1_hidden": 20.0,
        "rare5_hidden": 60.0,
    }


def test_dead_outputs_before_training_are_those_of_the_starting_weights():
    study = problem(models=("relu2",), trials=12, train_size=20)
    group = Group("raw", "relu2", 0, 12)
    result = train_group(study, group)
    x, _ = study.inputs("raw")
    start = study.start(group)
    with torch.no_grad():
        dead = [100 * float((start[t](x) <= 1e-6).all(0).double().mean()) for t in range(12)]
    assert result["metric.dead_outputs_start"].tolist() == pytest.approx(dead)
    assert 0 < sum(dead) < 1200


def test_centres_of_a_distance_and_of_an_intensity_output():
    """Own centres at the hyperplane, others away from it: ratio 0; the other way round: large."""
    distance = torch.tensor([[[0.0, 2.0], [2.0, 0.0]]])
    found = centre_metrics(torch.cat([distance, 2 - distance]))
    assert found["own_centre"].tolist() == [0.0, 2.0]
    assert found["other_centre"].tolist() == [2.0, 0.0]
    assert found["centre_ratio"].tolist() == [0.0, math.inf]


def test_latent_distributions_equal_counting():
    data = blobs()
    study = problem(data=data, models=("relu",))
    stack = study.start(Group("raw", "relu", 0, 2))
    found = latent_distributions(stack, 1, data.x, data.y, 3, (4, 7))
    with torch.no_grad():
        values = stack[1][0](data.x).double()
    assert found["nodes"].tolist() == [4, 7]
    assert int(found["counts"].sum()) == 2 * 60
    for place, node in enumerate((4, 7)):
        for c in range(3):
            own = values[data.y == c, node]
            edges = found["edges"][place]
            inside = torch.histogram(own.clamp(edges[0], edges[-1]), edges).hist
            assert (inside - found["counts"][place, c]).abs().sum() <= 2  # ties at edges
            mean, variance, skewness = found["moments"][place, c].tolist()
            assert mean == pytest.approx(float(own.mean()), rel=1e-5, abs=1e-6)
            assert variance == pytest.approx(float(own.var(correction=0)), rel=1e-5)
            z = (own - own.mean()) / own.std(correction=0)
            assert skewness == pytest.approx(float(z.pow(3).mean()), rel=1e-4, abs=1e-6)


def test_the_most_telling_nodes_are_chosen_when_none_are():
    data = blobs()
    chain = problem(data=data, models=("relu",)).chain("relu")
    network = chain.build()
    with torch.no_grad():
        network[0].weight.mul_(0.01)
        network[0].weight[3, :3] = torch.tensor([5.0, 0.0, -5.0])
    from mahalens.train import stack

    found = latent_distributions(stack([network]), 0, data.x, data.y, 3, ())
    assert 3 in found["nodes"].tolist()
    assert len(found["nodes"]) == 4


def test_accuracy_in_blocks_is_accuracy(monkeypatch):
    data = blobs()
    stack = problem(data=data).start(Group("raw", "abs", 0, 3))
    whole = accuracies(stack, data.x, data.y)
    monkeypatch.setattr("mahalens.studies.representation.training._BLOCK", 1)
    assert torch.equal(accuracies(stack, data.x, data.y), whole)
    plain = [100 * float((stack[t](data.x).argmax(1) == data.y).double().mean()) for t in range(3)]
    assert whole.tolist() == pytest.approx(plain)


def test_pixels_are_normalised_over_the_data_set():
    study = problem()
    x, test_x = study.inputs("normalized")
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    raw, _ = study.inputs("raw")
    assert torch.equal(raw, study.data.x)
    slope = (x.max() - x.min()) / (raw.max() - raw.min())
    torch.testing.assert_close(test_x - x.min(), (study.data.test_x - raw.min()) * slope)


def test_mnist_is_normalised_by_the_published_numbers():
    from dataclasses import replace

    data = replace(blobs(), name="mnist", largest=255.0)
    x, _ = Problem(problem(data=data).config, data).inputs("normalized")
    torch.testing.assert_close(x, (data.x / 255 - 0.1307) / 0.3081)


def test_reading_is_the_same_on_any_number_of_threads():
    study = problem(models=("relu",))
    stack = study.start(Group("raw", "relu", 0, 3))
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(read_group(study, Group("raw", "relu", 0, 3), stack))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train_size": 2000}, "--train-size 2000: digits has 1,437 training samples"),
        ({"train_size": 5}, "--train-size 5: digits has 1,437 training samples of 10 classes"),
        ({"data": "nosuch"}, "nosuch"),
    ],
)
def test_data_that_cannot_be_had(options, said):
    with pytest.raises(InputError) as caught:
        Problem.from_config(RepresentationConfig.with_defaults(**options))
    assert said in str(caught.value)


def test_groups_cover_every_trial_once():
    study = problem(models=("relu", "abs"), trials=7, group=3)
    seen = [(g.pixels, g.model, t) for g in study.groups() for t in g.trials]
    assert len(seen) == len(set(seen)) == 2 * 2 * 7
    assert len({g.name for g in study.groups()}) == len(study.groups()) == 12
