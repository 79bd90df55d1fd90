"""The representation study and the networks it shares: against plain PyTorch, and by hand."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from scipy import stats
from small_runs import config_of, make_run
from torch import nn

from mahalens.data import LabelledData
from mahalens.init.targets import principal_axes
from mahalens.nn import Chain, OffsetL2
from mahalens.studies import networks as of
from mahalens.studies.representation import (
    FAMILIES,
    LONG_EPOCHS,
    MODELS,
    MOST_LAYERS,
    OFFSET_L2,
    PRIMARY,
    STUDY,
    RepresentationConfig,
    axis_cosine,
    choose_models,
    finish,
    measure,
    prototype_metrics,
    published_value,
    text_of,
)
from mahalens.studies.run import Context
from mahalens.studies.study import Job, Measures, Results
from mahalens.train import TrialStack, stack
from mahalens.train.compiled import why_not

HIDDEN = 12
make = RepresentationConfig.with_defaults

# --- Models and options -----------------------------------------------------------------------

TABLES = {
    "abs": "Linear Abs Linear",
    "relu": "Linear ReLU Linear",
    "abs2": "Linear Abs Linear Abs",
    "abs2-neg": "Linear Abs Linear Abs Neg",
    "relu2": "Linear ReLU Linear ReLU",
    "relu2-neg": "Linear ReLU Linear ReLU Neg",
    "relu-l2": "Linear ReLU OffsetL2",
    "relu-l2-neg": "Linear ReLU OffsetL2 Neg",
    "abs-l2": "Linear Abs OffsetL2",
    "abs-l2-neg": "Linear Abs OffsetL2 Neg",
    "linear-l2": "Linear OffsetL2",
    "linear-l2-neg": "Linear OffsetL2 Neg",
}
"""The layers that a model should have, by the tables of the paper."""


def parts_of(model):
    bare, _, added = model.rpartition("-")
    parts = TABLES[bare if added in ("bias", "code", "point") else model].split()
    return [*parts[:2], "PointSlope", *parts[3:]] if added == "point" else parts


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_that_of_the_tables(model):
    network = Chain.parse(text_of(model, 3, 4), inputs=6).build()
    assert [type(part).__name__ for part in network] == parts_of(model)
    assert (network[0].in_features, network[0].out_features) == (6, 4)
    (output,) = [part for part in network[1:] if list(part.parameters())]
    if isinstance(output, nn.Linear):
        assert (output.bias is not None) == model.endswith("-bias")
    if isinstance(output, OffsetL2):
        assert output.variant == ("published-code" if "code" in model else "paper")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    out = network(x)
    assert out.shape == (20, 3)
    if "-neg" in model:
        assert (out <= 0).all()
    elif "2" in model:  # relu2, abs2 and all l2
        assert (out >= 0).all()
    else:
        assert (out < 0).any()


@pytest.mark.parametrize("model", MODELS)
def test_a_deeper_model_repeats_the_hidden_layer(model):
    shallow, deep = (
        [str(part) for part in Chain.parse(text_of(model, 3, 4, depth), inputs=4).build()]
        for depth in (1, 3)
    )
    layer = shallow[: 1 if model.startswith("linear") else 2]
    assert deep == layer + layer + shallow


BIASED = FAMILIES["biased"]


@pytest.mark.parametrize(
    ("names", "bias", "wanted"),
    [
        (("relu", "abs"), None, ("relu", "abs")),
        (("abs", "relu"), None, ("relu", "abs")),
        (("relu-bias",), None, ("relu-bias",)),
        (("relu",), "yes", ("relu-bias",)),
        (("relu-bias",), "no", ("relu",)),
        (("relu",), "both", ("relu", "relu-bias")),
        (("abs-l2",), "yes", ("abs-l2",)),
        (("relu", "relu"), None, ("relu",)),
        (("offset-l2",), None, OFFSET_L2),
        (("published-code",), "both", FAMILIES["published-code"]),
        (("all",), "both", set(MODELS)),
        (("all",), "no", set(MODELS) - set(BIASED)),
        (("all",), "yes", set(MODELS) - set(PRIMARY)),
    ],
)
def test_models_are_chosen_by_name_family_and_bias(names, bias, wanted):
    chosen = choose_models(names, bias)
    assert (set(chosen) if isinstance(wanted, set) else chosen) == wanted


def test_deviations_and_groups():
    assert make(pixels="both").pixels == ("normalised", "raw")
    assert STUDY.plots[0].family("relu-point") == "Point-slope outputs"
    assert make().deviations() == ["data: digits instead of mnist"]
    assert make(published=True, epochs=LONG_EPOCHS).deviations() == []
    assert make(published=True).models == PRIMARY  # Table 1
    assert make(published=True, bias="yes").models == BIASED  # Table 3
    assert make(published=True, models=("offset-l2",)).models == OFFSET_L2
    assert set(make().models) == set(MODELS)
    assert make(executor="dask").group == 5  # groups of a cluster are small
    assert make(executor="dask", trials=3).group == 3
    fewer = make(data="mnist", trials=5, epochs=1500, train_size=5000, models=("relu", "abs"))
    assert set(fewer.deviations()) == {
        "training samples: at most 5,000 instead of all",
        "epochs: 1,500 instead of 5,000",
        "trials: 5 instead of 20",
        "models: without relu2, abs2, relu2-neg, abs2-neg",
    }


def test_depth_is_a_deviation_without_published_values():
    assert make(published=True).depth == make().depth == 1
    deep = make(published=True, depth=3)
    assert deep.deviations() == ["hidden layers: 3 instead of 1"]
    wanted = ("test_accuracy", "relu2", "raw")
    assert STUDY.published(make(published=True), *wanted).mean == 47.20
    assert STUDY.published(deep, *wanted) is None


def test_runs_from_before_depth_have_one_hidden_layer():
    options = msgspec.to_builtins(small())
    del options["depth"]
    assert msgspec.convert(options, RepresentationConfig) == small()


def test_published_values_are_those_of_the_right_table():
    def mean(model, epochs=5000, data="mnist"):
        value = published_value("test_accuracy", model, data, epochs)
        return None if value is None else value.mean

    assert mean("relu2") == mean("relu2", 1500) == 47.20
    assert mean("relu2-bias") == 39.94
    assert mean("relu2-bias", LONG_EPOCHS) == 56.31
    assert mean("relu2-neg", LONG_EPOCHS) == 96.46
    assert mean("abs-l2", LONG_EPOCHS) == mean("abs-l2-code", LONG_EPOCHS) == 97.61
    assert mean("abs-l2") is None  # the baselines beside it would be those of 5,000 epochs
    assert mean("linear-l2") is mean("relu-point") is mean("relu", data="digits") is None
    assert published_value("dead_outputs", "relu2", "mnist", 5000).mean == 33.0


# --- Training ---------------------------------------------------------------------------------


def blobs(name="blobs", largest=4.0, samples=60):
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(samples) % 3
    x = torch.randn(samples, 6, generator=generator) + 2 * torch.eye(3, 6)[y]
    return LabelledData(name, x, y, x[:21] + 0.1, y[:21], None, largest, "drawn")


def small(**options):
    wanted = {"epochs": 15, "train_size": 90, "hidden": HIDDEN, "learning_rate": 1e-3, **options}
    return config_of("representation", **wanted)


def chain_of(model, data, depth=1):
    return Chain.parse(text_of(model, data.classes, HIDDEN, depth), inputs=data.inputs)


def starts(model, data, trials=2, depth=1):
    return of.start_of(chain_of(model, data, depth), 0, range(trials))


@pytest.mark.parametrize(
    ("model", "depth"),
    [
        *(("relu", 1), ("abs2-neg-bias", 1), ("relu-l2", 1), ("abs-l2-neg-code", 1)),
        *(("relu2-point", 1), ("relu2", 2), ("abs2-neg", 3), ("linear-l2-neg", 3)),
    ],
)
@pytest.mark.parametrize("pixels", ["normalised", "raw"])
def test_trials_are_trained_as_plain_networks_one_by_one(model, depth, pixels):
    config = small(models=(model,), depth=depth)
    measures = measure(config, Job(pixels, model, 1, 2), Context())[model]
    data = of.training_data("digits", 90, 0)
    x, test_x = of.pixel_inputs(data, pixels)
    for place, trial in enumerate((1, 2)):
        torch.manual_seed(of.seed_of_trial(0, trial))
        network = chain_of(model, data, depth).build()
        descent = torch.optim.SGD(network.parameters(), lr=1e-3)
        for _ in range(15):
            descent.zero_grad()
            loss = nn.functional.cross_entropy(network(x), data.y)
            loss.backward()
            descent.step()
        for name, plain in network.state_dict().items():
            torch.testing.assert_close(measures.weights[name][place], plain, rtol=2e-4, atol=2e-5)
        assert measures.values("train_loss")[place] == pytest.approx(loss.item(), rel=1e-4)
        with torch.no_grad():
            right = (network(test_x).argmax(1) == data.test_y).double().mean()
        assert abs(measures.values("test_accuracy")[place] - 100 * float(right)) <= 1.0


def test_the_first_layer_can_start_and_step_by_other_lengths():
    config = small(models=("relu",), init_scale=0.5, rate_scale=4.0)
    measures = measure(config, Job("normalised", "relu", 0, 1), Context())["relu"]
    data = of.training_data("digits", 90, 0)
    x, test_x = of.pixel_inputs(data, "normalised")
    torch.manual_seed(of.seed_of_trial(0, 0))
    network = chain_of("relu", data).build()
    first = network[0].weight
    with torch.no_grad():
        first *= 0.5
    others = [p for p in network.parameters() if p is not first]
    descent = torch.optim.SGD([{"params": [first], "lr": 4e-3}, {"params": others}], lr=1e-3)
    for _ in range(15):
        descent.zero_grad()
        nn.functional.cross_entropy(network(x), data.y).backward()
        descent.step()
    for name, plain in network.state_dict().items():
        torch.testing.assert_close(measures.weights[name][0], plain, rtol=2e-4, atol=2e-5)
    with torch.no_grad():
        right = (network(test_x).argmax(1) == data.test_y).double().mean()
    assert abs(measures.values("test_accuracy")[0] - 100 * float(right)) <= 1.0


@pytest.mark.skipif(bool(why_not()), reason="no compiled engine here")
def test_the_compiled_engine_trains_as_many_layers_as_are_allowed():
    config, job = small(depth=MOST_LAYERS, epochs=2), Job("normalised", "abs2-neg", 0, 2)
    runs = [measure(config, job, Context(engine=name)) for name in ("compiled", "torch")]
    compiled, plain = (run["abs2-neg"].values("train_loss") for run in runs)
    assert np.isfinite(plain).all()
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)


@pytest.mark.parametrize("depth", [1, 2])
@torch.no_grad()
def test_prototypes_are_read_by_hand(depth):
    data, mu = blobs(), f"{2 * depth}.mu"
    start = starts("relu-l2-neg", data, depth=depth)
    training = of.Reading(start, data.x, data.y, 3)
    means = (training.sums / training.class_sizes[:, None]).float()
    tensors = {**start.tensors(), mu: means.clone()}
    tensors[mu][1] = means[1].roll(1, 0)  # the prototypes of another class
    stack_ = TrialStack.from_tensors(start.model, tensors)
    read = prototype_metrics(start, stack_, training, (data.x, data.test_x), data)
    assert read["prototypes_own"].tolist() == [100.0, 0.0]
    way = (tensors[mu] - start.tensors()[mu]).norm(dim=-1) / means.norm(dim=-1)
    torch.testing.assert_close(read["prototype_shift"], way.mean(1).double())
    network = stack_[0]
    whole = (network(data.test_x).argmax(1) == data.test_y).double().mean()
    network[2 * depth].mu.zero_()
    bare = (network(data.test_x).argmax(1) == data.test_y).double().mean()
    assert float(read["lost_without_mu"][0]) == pytest.approx(100 * float(whole - bare))
    assert read["lost_without_alpha"].tolist() == [0.0, 0.0]  # it is 1 already
    assert read["scale_shift"].tolist() == [0.0, 0.0]
    assert "axis_cosine" not in read  # its hidden layer is not linear


def test_scales_are_compared_with_the_spreads_of_their_class():
    data = blobs()
    start = starts("linear-l2", data)
    training = of.Reading(start, data.x, data.y, 3)
    hidden = start.tensors()
    spreads = []
    for c in range(3):
        at = [data.x[data.y == c] @ w.T for w in hidden["0.weight"]]
        spreads.append(torch.stack([values.std(0) for values in at]))
    inverse = 1 / torch.stack(spreads, 1)
    scales = inverse * torch.tensor([1.0, -1.0])[:, None, None]  # only the size counts
    scales[1] = scales[1].flip(-1)
    stack_ = TrialStack.from_tensors(start.model, {**hidden, "1.alpha": scales})
    read = prototype_metrics(start, stack_, training, (data.x, data.test_x), data)
    expected = [
        [stats.spearmanr(scales[t, c].abs(), inverse[t, c]).statistic for c in range(3)]
        for t in range(2)
    ]
    assert read["scales_as_spreads"].tolist() == pytest.approx(np.mean(expected, 1))
    assert read["scales_as_spreads"][0] == pytest.approx(1)
    way = (scales - 1).norm(dim=-1).mean(1) / inverse.shape[-1] ** 0.5
    torch.testing.assert_close(read["scale_shift"], way.double())


@pytest.mark.parametrize("depth", [1, 2])
def test_principal_axes_are_found_in_a_linear_layer(depth):
    data = blobs()
    axes = principal_axes(data.x.double(), 1e-7).directions.T
    start = starts("linear-l2", data, depth=depth)
    below = of.part_of(start, depth)
    chance = axis_cosine(below, axes)
    by_hand = []
    for trial in range(2):
        rows = torch.eye(data.x.shape[1])
        for layer in range(depth):
            rows = start.tensors()[f"{layer}.weight"][trial] @ rows
        cosines = rows.double() @ axes / rows.norm(dim=1, keepdim=True)
        by_hand.append(float(cosines.abs().amax(1).mean()))
    assert chance.tolist() == pytest.approx(by_hand, rel=1e-5)
    tensors = start.tensors()
    units = tensors["0.weight"].shape[1]
    tensors["0.weight"] = -3 * axes.T[torch.arange(units) % axes.shape[1]].float().expand(2, -1, -1)
    if depth == 2:
        tensors["1.weight"] = torch.eye(units).expand(2, -1, -1)
    learned = of.part_of(TrialStack.from_tensors(start.model, tensors), depth)
    assert axis_cosine(learned, axes).tolist() == pytest.approx([1, 1])


def test_directions_without_an_axis_do_not_count():
    rows = torch.tensor([[[3.0, 0.0, 4.0], [1.0, 1.0, 0.0]], [[0.0, 0.0, 1.0], [0.0, -2.0, 0.0]]])
    axes = torch.eye(3)[:, :2]
    assert of.nearest_cosines(rows, axes).tolist() == pytest.approx([(1 + 0.5**0.5) / 2, 0.5])


def test_trial_i_of_every_model_starts_from_the_same_first_layer():
    tensors = [starts(model, blobs(), 3, depth).tensors() for model in MODELS for depth in (1, 3)]
    for start_ in tensors[1:]:
        assert torch.equal(start_["0.weight"], tensors[0]["0.weight"])
        assert torch.equal(start_["0.bias"], tensors[0]["0.bias"])
    assert not torch.equal(tensors[0]["0.weight"][0], tensors[0]["0.weight"][1])


def test_measured_epochs_have_the_ends_and_the_last_tenth():
    for epochs in (1, 2, 7, 100, 5000, 50_000):
        chosen = of.measured_epochs(epochs)
        assert (chosen[0], chosen[-1]) == (0, epochs)
        assert chosen == sorted(set(chosen))
        assert epochs - max(1, epochs // 10) in chosen
    assert len(of.measured_epochs(50_000)) < 40


def test_pixels_are_normalised_over_the_data_set():
    data = of.training_data("digits", 90, 0)
    x, test_x = of.pixel_inputs(data, "normalised")
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    raw, _ = of.pixel_inputs(data, "raw")
    assert torch.equal(raw, data.x)
    slope = (x.max() - x.min()) / (raw.max() - raw.min())
    torch.testing.assert_close(test_x - x.min(), (data.test_x - raw.min()) * slope)
    mnist = blobs("mnist", 255.0)  # by the published numbers
    x, _ = of.pixel_inputs(mnist, "normalised")
    torch.testing.assert_close(x, (mnist.x / 255 - 0.1307) / 0.3081)


# --- Reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("model", ["relu2", "abs2-neg", "relu-l2-neg", "linear-l2", "abs-point"])
@torch.no_grad()
def test_readings_equal_plain_loops(model, depth):
    data = blobs()
    trials = starts(model, data, depth=depth)
    reading = of.Reading(trials, data.x, data.y, 3)
    positions = reading.positions(trials)
    for trial in range(2):
        network = trials[trial]
        *ends, place = [i for i, part in enumerate(network) if list(part.parameters())][1:]
        hidden, output = network[:place](data.x), network(data.x)
        every = torch.cat([*(network[:end](data.x) for end in ends), hidden], 1)
        assert every.shape[1] == reading.active_hidden.shape[1] == depth * HIDDEN
        score = network[: place + 1](data.x)
        right = 100 * float((output.argmax(1) == data.y).double().mean())
        assert float(reading.accuracy[trial]) == pytest.approx(right)
        for unit in range(3):
            active = int((output[:, unit].abs() > 1e-6).sum())
            assert int(reading.active_outputs[trial, unit]) == active
        for unit, values in enumerate(every.T):
            active = int((values.abs() > 1e-6).sum())
            assert int(reading.active_hidden[trial, unit]) == active
        assert int(reading.silent[trial]) == int((output.abs() <= 1e-6).all(1).sum())
        top = network[place].double()
        for c in range(3):
            spread = float(score[:, c].double().std(correction=0))
            for j in range(3):
                centre = hidden[data.y == j].double().mean(0)
                wanted = abs(float(top(centre[None])[0, c])) / spread
                assert float(positions[trial, c, j]) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_dead_and_rare_units_are_counted_at_each_threshold():
    """100 samples; units active on 0, 1, 4, 5 and all of them."""
    x = torch.zeros(100, 5)
    for unit, count in enumerate([0, 1, 4, 5, 100]):
        x[:count, unit] = 1.0
    network = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5, bias=False), nn.ReLU())
    with torch.no_grad():
        for part in (network[0], network[2]):
            part.weight.copy_(torch.eye(5))
        network[0].bias.zero_()
    reading = of.Reading(stack([network]), x, torch.arange(100) % 5, 5)
    wanted = {"dead": 20.0, "rare1": 20.0, "rare5": 60.0}
    assert {name: float(share) for name, share in reading.activity().items()} == {
        f"{kind}_{place}": share
        for place in ("outputs", "hidden")
        for kind, share in wanted.items()
    }


def test_dead_hidden_units_are_those_of_all_hidden_layers_and_centres_of_the_last():
    """By hand: -x dies, a bias brings it back; output 0 is 0 at the centre of class 0."""
    network = nn.Sequential(
        *(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2, bias=False))
    )
    weights = {
        "0.weight": [[1.0], [-1.0]],  # x, and nothing for x > 0
        "0.bias": [0.0, 0.0],
        "2.weight": [[2.0, 0.0], [0.0, 1.0]],  # 2 x, and 4
        "2.bias": [0.0, 4.0],
        "4.weight": [[1.0, -1.0], [1.0, 0.0]],  # 2 x - 4, and 2 x
    }
    network.load_state_dict({name: torch.tensor(values) for name, values in weights.items()})
    trials = stack([network])
    x, y = torch.tensor([[1.0], [3.0], [4.0], [6.0]]), torch.tensor([0, 0, 1, 1])
    reading = of.Reading(trials, x, y, 2)
    assert reading.active_hidden.tolist() == [[4, 0, 4, 4]]
    assert float(reading.activity()["dead_hidden"]) == 25.0
    spread = float((2 * x).std(correction=0))
    wanted = torch.tensor([[[0.0, 6.0], [4.0, 10.0]]]).double() / spread
    torch.testing.assert_close(reading.positions(trials), wanted)
    latent = of.latent_distributions(trials, x, y, 2, (0, 1))
    assert latent["moments"][:, :, 0].tolist() == [[4.0, 10.0], [4.0, 4.0]]


def test_dead_outputs_before_training_are_those_of_the_starting_weights():
    config = small(models=("relu2",), trials=12, train_size=20)
    dead_start = measure(config, Job("raw", "relu2", 0, 12), Context())["relu2"].metrics
    data = of.training_data("digits", 20, 0)
    trials = starts("relu2", data, 12)
    with torch.no_grad():
        dead = [100 * float((trials[t](data.x) <= 1e-6).all(0).double().mean()) for t in range(12)]
    assert dead_start["dead_outputs_start"].tolist() == pytest.approx(dead)
    assert 0 < sum(dead) < 1200


def test_centres_of_a_distance_and_of_an_intensity_output():
    """Own centres at the hyperplane, others away from it: ratio 0; the other way round: large."""
    distance = torch.tensor([[[0.0, 2.0], [2.0, 0.0]]])
    metrics = of.centre_metrics(torch.cat([distance, 2 - distance]))
    assert metrics["own_centre"].tolist() == [0.0, 2.0]
    assert metrics["other_centre"].tolist() == [2.0, 0.0]
    assert metrics["centre_ratio"].tolist() == [0.0, math.inf]


def test_latent_distributions_equal_counting():
    data = blobs()
    trials = starts("relu", data)
    latent = of.latent_distributions(trials, data.x, data.y, 3, (4, 7))
    with torch.no_grad():
        values = trials[0][0](data.x).double()
    assert latent["nodes"].tolist() == [4, 7]
    assert int(latent["counts"].sum()) == 2 * 60
    for place, node in enumerate((4, 7)):
        for c in range(3):
            own, edges = values[data.y == c, node], latent["edges"][place]
            inside = torch.histogram(own.clamp(edges[0], edges[-1]), edges).hist
            assert (inside - latent["counts"][place, c]).abs().sum() <= 2  # ties at edges
            wanted = (own.mean(), own.var(correction=0), stats.skew(own.numpy()))
            moments = latent["moments"][place, c].tolist()
            assert moments == pytest.approx([float(w) for w in wanted], rel=1e-4, abs=1e-6)


def test_the_most_telling_nodes_are_chosen_when_none_are():
    data = blobs()
    network = chain_of("relu", data).build()
    with torch.no_grad():
        network[0].weight.mul_(0.01)
        network[0].weight[3, :3] = torch.tensor([5.0, 0.0, -5.0])
    latent = of.latent_distributions(stack([network]), data.x, data.y, 3, ())
    assert 3 in latent["nodes"].tolist()
    assert len(latent["nodes"]) == 4
    with torch.no_grad():
        network[0].weight[0] = math.nan  # of a trial that ran away
    assert of.latent_distributions(stack([network]), data.x, data.y, 3, ()) == {}


def test_accuracy_in_blocks_is_accuracy():
    data = blobs(samples=50_000)  # more than one block of three trials
    trials = starts("abs", data, 3)
    with torch.no_grad():
        plain = [(trials[t](data.x).argmax(1) == data.y).double().mean() for t in range(3)]
    shares = of.accuracies(trials, data.x, data.y)
    assert shares.tolist() == pytest.approx([100 * float(share) for share in plain], abs=0.01)


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason="no compiled engine here")
def test_numbers_do_not_depend_on_the_threads():
    results, job = [], Job("raw", "relu", 0, 3)
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(measure(small(), job, Context(engine="compiled"))["relu"].metrics)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    for name, values in results[0].items():
        torch.testing.assert_close(values, results[1][name], rtol=0, atol=0, equal_nan=True)


# --- A run ------------------------------------------------------------------------------------


@pytest.fixture
def run(finished):
    return finished("representation")


def column(run, model, pixels, metric):
    rows = [row for row in run.of(model) if row["pixels"] == pixels]
    return np.array([float(row[metric]) if row[metric] else math.nan for row in rows])


def test_accuracy_is_that_of_the_saved_weights(run):
    data = of.training_data("digits", 100, 0)
    for pixels in ("normalised", "raw"):
        _, test_x = of.pixel_inputs(data, pixels)
        for model in ("relu", "relu2", "abs-l2"):
            path = run.path / "weights" / f"{pixels}-{model}.safetensors"
            with safe_open(path, framework="pt") as file:
                chain = Chain.parse(file.metadata()["chain"], inputs=64)
            trials = TrialStack.from_tensors(chain, load_file(path))
            shares = of.accuracies(trials, test_x, data.test_y).tolist()
            # A tie may be broken by rounding.
            assert column(run, model, pixels, "test_accuracy") == pytest.approx(shares, abs=1.0)


def test_comparisons_are_scipys(run):
    lines = run.csv("comparisons.csv")
    pair = next(c for c in lines if (c["a"], c["b"]) == ("relu2 (raw)", "relu (raw)"))
    a, b = (column(run, model, "raw", "test_accuracy") for model in ("relu2", "relu"))
    assert float(pair["paired_p"]) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert float(pair["welch_p"]) == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert float(pair["holm_paired"]) >= float(pair["paired_p"])
    assert {c["family"] for c in lines} == {"normalised", "raw", "across"}
    assert run.summary["comparisons"][0]["a"] == lines[0]["a"]


def test_the_gap_from_dead_outputs_is_computed_from_the_records(run):
    """By hand: what the baseline gets right in classes whose output is dead, over what lacks."""
    plots = load_file(run.path / "plots.safetensors")
    sizes = torch.bincount(of.training_data("digits", 100, 0).test_y, minlength=10).double()
    for pixels in ("normalised", "raw"):
        dead = plots[f"{pixels}/relu2/output_activity"] == 0
        right = plots[f"{pixels}/relu/class_accuracies"] / 100 * sizes
        lost = (100 * (right * dead).sum(1) / sizes.sum()).numpy()
        a, b = (column(run, model, pixels, "test_accuracy") for model in ("relu", "relu2"))
        wanted = np.where(a > b, lost / np.where(a > b, a - b, 1), np.nan)
        gap = column(run, "relu2", pixels, "gap_from_dead")
        np.testing.assert_allclose(gap, wanted, rtol=1e-6, atol=1e-9)
    assert np.isnan(column(run, "abs-l2", "raw", "gap_from_dead")).all()


def test_a_run_says_when_networks_are_still_learning(tmp_path):
    options = {"models": ("relu",), "pixels": "normalised", "epochs": 2, "learning_rate": 0.1}
    run = make_run("representation", tmp_path / "run", **options)
    gain = column(run, "relu", "normalised", "late_gain").mean()
    assert gain > 1
    (caution,) = run.summary["cautions"]
    assert caution.startswith("1 of 1 networks still gained")
    assert f"{gain:.1f} points" in caution


def test_trials_that_run_away_are_counted_and_left_out(tmp_path):
    options = {"models": ("relu",), "pixels": "raw", "learning_rate": 1e12}
    run = make_run("representation", tmp_path / "run", **options)
    assert {row["status"] for row in run.trials} == {"non-finite"}
    assert run.row("relu", "test_accuracy")["n"] == 0
    assert run.summary["comparisons"] == []
    assert not (run.path / "comparisons.csv").exists()
    arrays = load_file(run.path / "plots.safetensors")
    assert all(array.isfinite().all() for name, array in arrays.items() if "latent" in name)


def test_trials_without_arrays_keep_the_share_that_dead_outputs_have():
    numbers = {
        name: torch.tensor([1.0, 2.0])
        for name in ("test_accuracy", "late_gain", "dead_outputs_start", "gap_from_dead")
    }
    measures = {("raw", model): Measures(numbers, 1.0) for model in ("relu", "relu2")}
    results = Results(measures, {})
    finish(make(models=("relu", "relu2"), pixels=("raw",), trials=2), results)
    assert results.measures["raw", "relu2"].values("gap_from_dead").tolist() == [1, 2]
    assert results.evidence["raw", "untrained relu2", "dead_outputs"].tolist() == [1, 2]
