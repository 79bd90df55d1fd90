"""Runs of the activations study: readings by hand, the protocol of 003, resuming, runaways."""

from __future__ import annotations

import csv
import json
import math

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from mahalens.errors import InputError, Interrupted
from mahalens.studies.activations import measuring
from mahalens.studies.activations.config import ActivationsConfig
from mahalens.studies.activations.measuring import inputs_of, jobs, measure, training_set
from mahalens.studies.activations.metrics import METRICS
from mahalens.studies.activations.models import MODELS, chain_of
from mahalens.studies.activations.reading import Spread, UseReading
from mahalens.studies.activations.run import STUDY, carry_on, cautions, start
from mahalens.studies.folder import RunFolder
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.measures import Measures
from mahalens.studies.representation import reading
from mahalens.studies.representation.config import RepresentationConfig
from mahalens.studies.representation.problem import Group, Problem
from mahalens.studies.representation.training import train_group
from mahalens.train import TrialStack

FEW = ("relu", "relu2", "gelu2", "softplus2-neg", "leakyrelu2")
RECORDS = ("trials.csv", "curves.csv", "comparisons.csv")


def options(**changes):
    small = {"trials": 6, "epochs": 12, "train_size": 90, "models": FEW}
    return ActivationsConfig.with_defaults(**{**small, **changes})


class TestReading:
    """Against plain loops over samples and units."""

    @pytest.fixture(params=MODELS)
    def read(self, request, monkeypatch):
        monkeypatch.setattr(reading, "_BLOCK_BYTES", 1)  # several blocks of 16 samples
        chain = chain_of(request.param, 6, 4, 5)
        stack = TrialStack.from_seeds(chain, [3, 4])
        stack.tensors()["2.weight"][0, 1] = -abs(stack.tensors()["2.weight"][0, 1]) * 50
        stack.tensors()["2.weight"][1, 2] = 0
        stack.tensors()["0.weight"][1, 3] = 0
        x = torch.randn(61, 6, generator=torch.Generator().manual_seed(1))
        y = torch.arange(61) % 4
        return stack, x, y, UseReading(stack, x, y, 4)

    def test_outputs(self, read):
        stack, x, y, found = read
        for trial in range(2):
            with torch.no_grad():
                outputs = stack[trial](x)
            winners = [int(row.argmax()) for row in outputs]
            counts = [winners.count(unit) for unit in range(4)]
            sizes = [int((y == unit).sum()) for unit in range(4)]
            spreads = outputs.double().std(0, correction=0)
            wanted = {
                "unused_outputs": sum(n == 0 for n in counts),
                "rare_outputs": sum(n < 0.1 * s for n, s in zip(counts, sizes, strict=True)),
                "flat_outputs": sum(float(s) <= 0.01 * float(spreads.max()) for s in spreads),
                "dead_outputs": sum(bool((column.abs() <= 1e-6).all()) for column in outputs.T),
            }
            got = {name: float(values[trial]) for name, values in found.outputs().items()}
            assert got == {name: 25.0 * count for name, count in wanted.items()}
        assert found.outputs()["flat_outputs"][1] >= 25

    def test_hidden(self, read):
        stack, x, _, found = read
        for trial in range(2):
            with torch.no_grad():
                hidden = stack[trial][:2](x)
            spreads = hidden.double().std(0, correction=0)
            flat = sum(float(s) <= 0.01 * float(spreads.max()) for s in spreads)
            assert float(found.hidden()["flat_hidden"][trial]) == 20.0 * flat
        assert found.hidden()["flat_hidden"][1] >= 20

    def test_spreads_of_samples_that_come_in_blocks(self):
        """Also far from 0, where sums of squares would have lost them."""
        drifting = torch.arange(60.0)[:, None] * torch.tensor([1.0, -2.0, 0.0])
        x = 1e6 + torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0)) + drifting
        spread = Spread()
        for block in x.split(7, 1):
            spread.add(block)
        torch.testing.assert_close(spread.spread(), x.double().std(1, correction=0))

    def test_a_network_whose_outputs_never_change_has_flat_ones_only(self):
        stack = TrialStack.from_seeds(chain_of("softplus2", 6, 4, 5), [3])
        stack.tensors()["2.weight"][:] = 0
        found = UseReading(stack, torch.randn(20, 6), torch.arange(20) % 4, 4).outputs()
        assert float(found["flat_outputs"]) == 100
        assert float(found["dead_outputs"]) == 0
        assert float(found["unused_outputs"]) == 75  # of equal outputs the first is chosen

    def test_rare_is_fewer_than_a_tenth_of_the_class(self):
        """Class 1 has 20 samples; its output is the largest for 2 of all, then for 1."""
        stack = TrialStack.from_seeds(chain_of("relu", 1, 2, 1), [0])
        for name, value in (("0.weight", 1.0), ("0.bias", 0.0)):
            stack.tensors()[name][:] = value
        stack.tensors()["2.weight"][0] = torch.tensor([[0.0], [1.0]])
        y = torch.arange(40) % 2
        for chosen, share in ((2, 0.0), (1, 50.0)):
            x = torch.where(torch.arange(40) < chosen, 1.0, -1.0)[:, None]
            found = UseReading(stack, x, y, 2).outputs()
            assert float(found["rare_outputs"]) == share


class TestTraining:
    @pytest.mark.parametrize("pixels", ["normalized", "raw"])
    @pytest.mark.parametrize("model", ["relu2", "abs2-neg"])
    def test_it_is_that_of_003(self, model, pixels):
        """The six references come out as in the representation study, bit by bit."""
        config = options(models=[model], pixels=pixels)
        own = measure(config, Job("digits", model, 0, 3))[model]
        other = RepresentationConfig.with_defaults(
            data="digits", models=(model,), pixels=pixels, epochs=12, trials=3, train_size=90
        )
        wanted = train_group(Problem.from_config(other), Group(pixels, model, 0, 3))
        same = ("test_accuracy", "train_accuracy", "train_loss", "dead_outputs", "dead_hidden")
        for name in (*same, "dead_outputs_start", "epochs_to_converge", "late_gain"):
            assert torch.equal(own.metrics[name], wanted[f"metric.{name}"])
        assert torch.equal(own.curves["test_accuracy"], wanted["accuracies"].double())

    def test_a_plain_loop_ends_there_too(self):
        config = options(models=["softplus2"], epochs=5)
        own = measure(config, Job("digits", "softplus2", 4, 2))["softplus2"]
        data = training_set("digits", 90, 0)
        x, test_x = inputs_of(data, "normalized")
        for row, trial in enumerate((4, 5)):
            seed = measuring.seed_of_trial(0, trial)
            module = TrialStack.from_seeds(chain_of("softplus2", 64, 10), [seed])[0]
            optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
            for _ in range(5):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(x), data.y).backward()
                optimiser.step()
            hits = (module(test_x).argmax(1) == data.test_y).double().mean()
            assert float(own.metrics["test_accuracy"][row]) == pytest.approx(100 * float(hits))
            torch.testing.assert_close(own.weights["2.weight"][row], module[2].weight.detach())

    def test_adam_learns_more(self):
        accuracy = {
            solver: measure(
                options(models=["gelu"], epochs=60, solver=solver), Job("digits", "gelu", 0, 2)
            )["gelu"].metrics["train_accuracy"]
            for solver in ("sgd", "adam")
        }
        assert bool((accuracy["adam"] > accuracy["sgd"] + 30).all())

    def test_a_trial_does_not_depend_on_how_many_there_are(self):
        both = measure(options(), Job("digits", "gelu2", 0, 5))["gelu2"]
        alone = measure(options(trials=1), Job("digits", "gelu2", 0, 1))["gelu2"]
        for name, values in alone.metrics.items():
            torch.testing.assert_close(values, both.metrics[name][:1])

    def test_networks_of_a_trial_share_their_first_layer(self):
        config = options(epochs=1)
        first = {
            model: measure(config, Job("digits", model, 2, 1))[model].weights["0.weight"]
            for model in ("relu", "gelu")
        }
        torch.testing.assert_close(first["relu"], first["gelu"], rtol=0, atol=1e-2)

    @pytest.mark.parametrize("solver", ["sgd", "adam"])
    def test_runaways_have_no_numbers(self, solver):
        config = replace(options(models=["softplus"], solver=solver), learning_rate=1e38)
        own = measure(config, Job("digits", "softplus", 0, 2))["softplus"]
        assert own.statuses == ["non-finite"] * 2
        assert all(values.isnan().all() for values in own.metrics.values())
        assert own.curves["test_accuracy"].shape == (2, len(own.epochs))
        assert cautions(config, {("digits", "softplus"): own}) == []

    def test_features_of_a_table_are_standardised_one_by_one(self):
        data = training_set("wine", None, 0)
        x, _ = inputs_of(data, "normalized")
        torch.testing.assert_close(x.mean(0), torch.zeros(13), rtol=0, atol=1e-5)
        torch.testing.assert_close(x.std(0, correction=0), torch.ones(13))
        assert torch.equal(inputs_of(data, "raw")[0], data.x)


@pytest.fixture(scope="module")
def run(tmp_path_factory, watcher):
    path = tmp_path_factory.mktemp("activations") / "run"
    with start(options(), path, command="mahalens run activations") as folder:
        carry_on(folder, watcher(), workers=1)
    return path


class TestRecords:
    def test_every_trial_has_every_metric(self, run):
        with (run / "trials.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert [(r["model"], int(r["trial"])) for r in rows] == [
            (m, t) for m in FEW for t in range(6)
        ]
        for row in rows:
            assert row["status"] == "done"
            assert all(math.isfinite(float(row[name])) for name in METRICS)
            lost = float(row["flat_outputs"]) - float(row["flat_outputs_start"])
            assert float(row["outputs_lost"]) == pytest.approx(lost)
        weights = load_file(run / "weights" / "digits-gelu2.safetensors")
        assert weights["0.weight"].shape == (6, 128, 64)

    def test_claims_about_networks_that_are_not_there_are_open(self, run):
        claims = {c["id"]: c for c in json.loads((run / "summary.json").read_text())["claims"]}
        known = claims["activations/relu-intensities-cost/digits"]
        assert "relu2 (digits) averages" in known["why"]
        assert claims["activations/tanh-intensities-cost/digits"]["verdict"] == "not measured"

    def test_a_resumed_run_ends_with_the_same_numbers(self, run, tmp_path, watcher):
        path, seen = tmp_path / "run", []

        def stop():
            seen.append(1)
            return len(seen) > 4

        with start(options(), path) as folder, pytest.raises(Interrupted):
            carry_on(folder, watcher(), stop, workers=1)
        assert not (path / "summary.json").exists()
        with RunFolder.open(path) as folder:
            carry_on(folder, watcher(), workers=2)
        for name in RECORDS:
            assert (path / name).read_bytes() == (run / name).read_bytes()

    def test_jobs(self):
        every = jobs(options(data=["digits", "wine"]))
        assert {(job.first, job.count) for job in every} == {(0, 5), (5, 1)}
        assert len({job.name for job in every}) == len(every) == 2 * 2 * len(FEW)


def test_networks_that_are_still_learning_are_told():
    gains = torch.tensor([2.0, math.nan, 4.0])
    found = {
        ("digits", "gelu2"): Measures({"late_gain": gains}, seconds=1.0),
        ("digits", "relu"): Measures({"late_gain": gains * 0}, seconds=1.0),
    }
    (told,) = cautions(options(), found)
    assert told.startswith("1 of 2 networks still gained more than 1 point")
    assert "GELU2 (digits), 3.0 points" in told


def test_a_set_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        STUDY.check(options(data=["nowhere"]))
    with pytest.raises(InputError, match="--train-size 5: digits has 10 classes"):
        start(options(train_size=5), tmp_path / "run")
    assert not (tmp_path / "run").exists()
