"""The pixels study: against the representation study, plain PyTorch, and planted effects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import config_of, make_run
from torch import nn

from mahalens.nn import Chain
from mahalens.report import build_report
from mahalens.studies import networks as of
from mahalens.studies.claims import Evidence, judge
from mahalens.studies.pixels import (
    CLAIMS,
    CONDITIONS,
    FACTORS,
    METRICS,
    NETWORKS,
    PixelsConfig,
    finish,
    measure,
    options_of,
    pairs_of,
)
from mahalens.studies.representation import text_of
from mahalens.studies.run import Context
from mahalens.studies.study import SOURCES, Job, Measures, Results

SMALL = {"epochs": 6, "trials": 2, "train_size": 100, "hidden": 12}
CONFIG = PixelsConfig.with_defaults(**SMALL)


def test_pairs_differ_in_one_part_alone():
    pairs = [(factor, *pair) for factor in FACTORS for pair in pairs_of(factor)]
    assert len(CONDITIONS) == 8
    assert len(set(pairs)) == 12
    for factor, more, fewer in pairs:
        assert CONDITIONS[more] - CONDITIONS[fewer] == {factor}
        assert CONDITIONS[fewer] < CONDITIONS[more]


def test_both_ends_are_those_of_the_representation_study(tmp_path):
    ours = make_run("pixels", tmp_path / "ours", **SMALL, models=tuple(CONDITIONS))
    options = {**SMALL, "models": ("relu", "relu2"), "group": 2}
    theirs = make_run("representation", tmp_path / "theirs", **options)
    rows = {(row["network"], row["model"], row["trial"]): row for row in ours.trials}
    assert len(theirs.trials) == 8
    for row in theirs.trials:
        own = rows[row["model"], row["pixels"], row["trial"]]
        for metric in set(METRICS) & set(row):
            assert float(own[metric]) == pytest.approx(float(row[metric]), rel=1e-5), metric


def train_by_hand(network, condition, config, trial):
    """Train on raw pixels with a step for each tensor; return the last loss and idle units."""
    data = of.training_data(config.data, config.train_size, config.seed)
    mean, spread = of.scale_of(data)
    s = 1 / (data.largest * spread)
    taken = CONDITIONS[condition]
    chain = Chain.parse(text_of(network, data.classes, config.hidden), inputs=data.inputs)
    model = of.start_of(chain, config.seed, [trial])[0].double()
    first = model[0]
    rest = [p for p in model.parameters() if p is not first.weight]
    rate = config.learning_rate
    with torch.no_grad():
        first.weight *= s if "start" in taken else 1
    solver = torch.optim.SGD(
        [
            {"params": [first.weight], "lr": rate * (s**2 if "step" in taken else 1)},
            {"params": rest, "lr": rate},
        ]
    )
    x = data.x.double() - (mean * data.largest if "shift" in taken else 0)
    rare = ((first(x) > 1e-6).double().mean(0) < 0.05).double().mean()
    losses = []
    for _ in range(config.epochs):
        loss = nn.functional.cross_entropy(model(x), data.y)
        losses.append(loss.item())
        solver.zero_grad()
        loss.backward()
        solver.step()
    return losses[-1], 100 * float(rare)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_is_raw_pixels_with_a_start_a_step_and_a_shift(condition):
    job = Job("relu2", condition, 0, 2)
    ours = measure(CONFIG, job, Context())[condition]
    for trial in job.trials:
        loss, rare = train_by_hand("relu2", condition, CONFIG, trial)
        assert float(ours.metrics["train_loss"][trial]) == pytest.approx(loss, rel=1e-4)
        assert float(ours.metrics["rare5_hidden_start"][trial]) == pytest.approx(rare)


def test_the_options_of_a_condition_are_ratios_of_scales():
    data = of.training_data("digits", None, 0)
    ratio = data.largest * of.scale_of(data)[1]
    assert options_of("shift", data)["init_scale"] == pytest.approx(ratio)
    assert options_of("shift", data)["rate_scale"] == pytest.approx(ratio**2)
    for end in ("raw", "normalised"):
        options = {"pixels": end, "init_scale": 1.0, "rate_scale": 1.0}
        assert options_of(end, data) == options


# --- Effects and verdicts ---------------------------------------------------------------------


def planted(effects, trials=6):
    """Return results in which each part adds to every metric, with a little noise."""
    generator = torch.Generator().manual_seed(0)
    measures = {}
    for network in NETWORKS:
        for name, taken in CONDITIONS.items():
            level = 50.0 + sum(effects[part] for part in taken)
            metrics = {
                metric: level + torch.randn(trials, generator=generator).double() / 10
                for metric in METRICS
            }
            measures[network, name] = Measures(metrics, 1.0)
    return Results(measures=measures, facts={})


def verdicts(results):
    trials = {
        (*key, metric): measures.values(metric)
        for key, measures in results.measures.items()
        for metric in measures.metrics
    }
    evidence = Evidence({**trials, **results.evidence}, {}, lambda *_: None)
    lines = judge(CLAIMS, evidence, study="pixels", variants=NETWORKS, sources=SOURCES)
    return {line.id.removeprefix("pixels/"): line.verdict for line in lines}


def test_effects_are_those_planted():
    effects = {"start": -10.0, "step": 30.0, "shift": 2.0}
    results = planted(effects)
    finish(CONFIG, results)
    for factor, effect in effects.items():
        values = results.evidence["relu2", f"effect of the {factor}", "test_accuracy"]
        assert values.shape == (6,)
        np.testing.assert_allclose(values, effect, atol=0.3)
    found = verdicts(results)
    assert found["relu2-collapses"] == "holds"
    assert [found[f"relu2-collapses-by-{f}"] for f in FACTORS] == ["fails", "holds", "fails"]
    assert [found[f"relu2-neg-fails-by-{f}"] for f in FACTORS] == ["holds", "fails", "fails"]
    assert [found[f"hidden-rarely-active-by-{f}"] for f in FACTORS] == ["holds", "fails", "fails"]


def test_a_condition_is_as_published_only_with_both():
    results = planted(dict.fromkeys(FACTORS, 0.0))
    for condition, collapse, rare in (
        ("raw", 25.0, 20.0),
        ("step", 25.0, 0.3),
        ("normalised", 5.0, 0.3),
    ):
        for network, lost in (("relu", 0.0), ("relu2", collapse)):
            own = results.measures[network, condition].metrics
            own["test_accuracy"] -= lost
            own["rare5_hidden"] += rare - 50.0
    finish(CONFIG, results)
    found = verdicts(results)
    assert found["training-idles-hidden-units"] == "fails"  # 20 % after it, 50 % before
    conditions = ("raw", "step", "normalised")
    assert [found[f"as-published-{c}"] for c in conditions] == ["fails", "holds", "fails"]


def test_effects_need_all_conditions():
    config = config_of("pixels")
    results = planted(dict.fromkeys(FACTORS, 1.0))
    for key in list(results.measures):
        if key[1] not in config.models:
            del results.measures[key]
    finish(config, results)
    assert not any("effect" in name for _, name, _ in results.evidence)
    assert verdicts(results)["relu2-collapses-by-step"] == "not measured"


def test_records_and_page_name_networks_as_people_do(tmp_path):
    run = make_run("pixels", tmp_path / "run")
    assert {row["network"] for row in run.trials} == {"relu", "relu2"}
    page = build_report(run.path).read_text(encoding="utf-8")
    assert "Pixels study, digits, ReLU, ReLU2" in page
    assert "reLU" not in page
