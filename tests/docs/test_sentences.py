"""Numbers in sentences are those of the runs in ``docs/runs``.

Tables are made from the runs when the site is built; sentences are typed. The most important ones
are formed here from their runs and looked for on the page: when a run gets more trials, the test
names the sentences that have to follow.
"""

from __future__ import annotations

import csv
import json
import math
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

TOP = Path(__file__).parents[2]
RUNS = TOP / "docs" / "runs"
WORDS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty",
]  # fmt: skip


class Run:
    """The summary of a committed run."""

    def __init__(self, name: str, group: str = "") -> None:
        self.name, self.group = name, group

    @cached_property
    def summary(self) -> dict[str, Any]:
        return json.loads((RUNS / self.name / "summary.json").read_text(encoding="utf-8"))

    def row(self, model: str, metric: str) -> dict[str, Any]:
        (row,) = [
            row
            for row in self.summary["rows"]
            if (row["model"], row["metric"]) == (model, metric)
            and (not self.group or self.group in row["group"].values())
        ]
        return row

    def mean(self, model: str, metric: str) -> float:
        return self.row(model, metric)["mean"]

    def interval(self, model: str, metric: str, form: str = ".0f") -> str:
        low, high = self.row(model, metric)["ci95"]
        return f"{low:{form}} to {high:{form}}".replace("-", "−")

    def trials(self, model: str, metric: str = "test_accuracy") -> int:
        return self.row(model, metric)["n"]

    def difference(self, a: str, b: str, metric: str = "test_accuracy") -> dict[str, Any]:
        in_group = f" ({self.group})" if self.group else ""
        (line,) = [
            line
            for line in self.summary["comparisons"]
            if (line["a"], line["b"], line["metric"]) == (a + in_group, b + in_group, metric)
        ]
        return line

    def changes(self, a: str, b: str, metric: str) -> list[float]:
        """Return how far apart two models are in each trial."""
        with (RUNS / self.name / "trials.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        first, second = ([float(row[metric]) for row in lines if row["model"] == m] for m in (a, b))
        return [abs(one - two) for one, two in zip(first, second, strict=True)]

    def largest_change(self, a: str, b: str, metric: str) -> float:
        """Return how far apart two models are in the trial where they differ most, rounded up."""
        return math.ceil(10 * round(max(self.changes(a, b, metric)), 6)) / 10

    def agrees(self, model: str, metric: str = "test_accuracy") -> bool:
        """Return whether the published mean lies in the 95 % interval."""
        row = self.row(model, metric)
        return bool(row["ci95"][0] <= row["published"] <= row["ci95"][1])

    @property
    def verdicts(self) -> str:
        """The verdicts on claims of the sources."""
        claims = [claim for claim in self.summary["claims"] if claim["source"] != "this project"]
        holds, fails, undecided = (
            sum(claim["verdict"] == verdict for claim in claims)
            for verdict in ("holds", "fails", "undecided")
        )
        decided = WORDS[holds + fails + undecided]
        verb = "is" if undecided == 1 else "are"
        return f"{decided} claims {holds} hold, {fails} fail and {undecided} {verb} undecided"


def points(line: dict[str, Any], form: str = ".2f", sign: int = 1) -> str:
    """Return a difference with its interval."""
    ends = sorted(sign * line[f"difference_ci95_{end}"] for end in ("low", "high"))
    return f"{sign * line['mean_difference']:{form}} points ({ends[0]:{form}} to {ends[1]:{form}})"


def readme() -> list[str]:
    table1, perturbed = Run("table1-raw", "raw"), Run("perturbation-full", "raw")
    gaussian, ellipsoids = Run("gaussian-10d"), Run("ellipsoids-full")
    table5 = Run("offset-raw-50000")
    large = Run("gaussian-100d")
    mse = f"{gaussian.mean('abs', 'train_mse'):.1e}".replace("e-0", "e-")
    return [
        f"Abs: MSE ({gaussian.trials('abs', 'train_mse')} trials) | 0.0339 | {mse} |",
        f"in 100-D ({large.trials('abs', 'train_mse')} trials) | 0.0165 | "
        f"{large.mean('abs', 'train_mse'):.4f} |",
        f"raw MNIST, ReLU: accuracy ({table1.trials('relu')} trials) | 95.64 (notes) | "
        f"{table1.mean('relu', 'test_accuracy'):.2f} |",
        f"ReLU2, held to intensities | 47.20 | {table1.mean('relu2', 'test_accuracy'):.2f} |",
        f"ReLU2-Neg, to distances | 94.93 | {table1.mean('relu2-neg', 'test_accuracy'):.2f} |",
        f"Abs-L2, 50,000 epochs ({table5.trials('abs-l2')} trial) | 97.61 | "
        f"{table5.mean('abs-l2', 'test_accuracy'):.2f} |",
        f"training accuracy ({perturbed.trials('abs-bias')} trials) | 23.43 | "
        f"{perturbed.mean('abs-bias', 'offset_0.25'):.2f} |",
        f"error ({ellipsoids.trials('elliptical', 'final_error')} trials) | 0.161 | "
        f"{ellipsoids.mean('elliptical', 'final_error'):.3f} |",
    ]


def rescued_digits() -> list[str]:
    """Return the mean accuracies of ReLU2-Neg on digits, with and without a dead output."""
    path = RUNS / "digits-primary" / "trials.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "relu2-neg"]
    return [
        f"{fmean(float(row['test_accuracy']) for row in own):.0f}"
        for dead in (True, False)
        for pixels in ("normalised", "raw")
        if (
            own := [
                row
                for row in rows
                if row["pixels"] == pixels and (float(row["dead_outputs"]) > 0) == dead
            ]
        )
    ]


def representation() -> list[str]:
    raw, normalised = Run("table1-raw", "raw"), Run("table1-normalised", "normalised")
    code = Run("representation-code", "normalised")
    offset, heads = Run("offset-raw", "raw"), ("relu-l2-neg", "abs-l2-neg", "linear-l2-neg")
    digits = [Run("digits-primary", pixels) for pixels in ("normalised", "raw")]
    heads_on_digits = Run("representation-digits", "raw")
    long, deviations = Run("offset-raw-50000", "raw"), {"relu-l2": 0.13, "relu-l2-neg": 0.14}
    deviations |= {"abs-l2": 0.07, "abs-l2-neg": 0.09}
    table5 = {model: long.row(model, "test_accuracy") for model in deviations}
    ends = [row["mean"] for row in table5.values()]
    for model, row in table5.items():
        assert abs(row["mean"] - row["published"]) <= deviations[model] + 1e-9
        assert long.mean(model, "prototype_shift") < 2e-5
        assert long.mean(model, "prototypes_own") == 10
    behind = {
        f"{run.mean('relu', 'test_accuracy') - run.mean('relu2', 'test_accuracy'):.0f}"
        for run in digits
    }
    rescued = [run.mean("relu2-neg", "test_accuracy") for run in digits]
    of_alpha = [heads_on_digits.mean(model, "lost_without_alpha") for model in heads]
    of_mu = max(heads_on_digits.mean(model, "lost_without_mu") for model in heads)
    without_mu, without_alpha, reached = (
        [offset.mean(model, metric) for model in heads]
        for metric in ("lost_without_mu", "lost_without_alpha", "test_accuracy")
    )
    assert max(offset.mean(model, "prototype_shift") for model in heads) < 1e-5
    assert {offset.mean(model, "prototypes_own") for model in heads} == {10.0}
    accuracy = {
        row["model"]: row for row in raw.summary["rows"] if row["metric"] == "test_accuracy"
    }
    relu2, relu = accuracy["relu2"], accuracy["relu"]
    dead, rare = (raw.row("relu2", metric) for metric in ("dead_outputs", "rare5_outputs"))
    unequal, paired = raw.difference("relu", "abs"), raw.difference("relu2-neg", "relu")
    nearer = [round(1 / raw.mean(model, "centre_ratio")) for model in ("relu2-neg", "abs2-neg")]
    share = raw.row("relu2", "gap_from_dead")
    inside = all(map(raw.agrees, accuracy))
    tests = [line for line in raw.summary["comparisons"] if line["metric"] == "test_accuracy"]
    alike = all((line["holm_paired"] < 0.05) == (line["holm_welch"] < 0.05) for line in tests)
    others = [
        normalised.mean(model, "test_accuracy") for model in ("relu", "abs", "abs2", "abs2-neg")
    ]
    second, rescue = (normalised.row(model, "test_accuracy") for model in ("relu2", "relu2-neg"))
    (fails,) = [
        claim
        for claim in normalised.summary["claims"]
        if claim["verdict"] != "not measured" and "ReLU2 fails: more than 20" in claim["statement"]
    ]
    twins, biased = Run("table3-raw", "raw"), [f"{model}-bias" for model in accuracy]
    moved = {m: twins.largest_change(f"{m}-bias", m, "test_accuracy") for m in accuracy}
    dead_moved = twins.changes("relu2-bias", "relu2", "dead_outputs")
    most = max(change for model, change in moved.items() if model != "abs2-neg")
    return [
        f"own size, raw pixels, {WORDS[twins.trials('relu-bias')]} trials",
        f"all trials but those of Abs2-Neg end within {most} points of their twins, "
        f"{WORDS[dead_moved.count(0)]} of ReLU2's with the same dead outputs; Abs2-Neg differs by "
        f"up to {moved['abs2-neg']} points",
        f"{'All six' * all(map(twins.agrees, biased))} published means with a bias lie in",
        f"its trials spread over {relu2['max'] - relu2['min']:.0f} points",
        f"every published mean lies {'in the 95 % interval' * inside} of our "
        f"{WORDS[relu['n']]} trials",
        raw.verdicts,
        f"ReLU2 falls {relu['mean'] - relu2['mean']:.0f} points behind ReLU",
        f"Abs2-Neg loses {WORDS[round(accuracy['abs2']['mean'] - accuracy['abs2-neg']['mean'])]}.",
        f"({WORDS[second['n']]} trials): four networks reach {min(others):.0f} to "
        f"{max(others):.0f} %",
        f"{second['mean']:.0f} % ({second['min']:.0f} to {second['max']:.0f} %), where 47.2 % is "
        "published",
        f"{rescue['max']:.0f} % in four trials and {rescue['min']:.0f} % in the fifth",
        f"about {fails['trials_to_decide']} trials would be needed to say whether it fails",
        f"ReLU ends {95.64 - normalised.mean('relu', 'test_accuracy'):.0f} points too low and "
        f"ReLU2 {second['mean'] - 47.2:.0f} too high",
        f"Trials of ReLU2 reach {relu2['min']:.0f} to {relu2['max']:.0f} %, with "
        f"{WORDS[round(dead['min'] / 10)]} to {WORDS[round(dead['max'] / 10)]} dead outputs",
        f"{rare['mean']:.0f} % of its outputs are active on fewer than 5 %",
        f"Abs2-Neg varies "
        f"{WORDS[round(accuracy['abs2-neg']['std'] / accuracy['abs2']['std'])]} times as much",
        f"{normalised.mean('relu', 'test_accuracy'):.1f} and "
        f"{normalised.mean('abs', 'test_accuracy'):.1f} %, so its figures",
        f"{raw.mean('relu', 'rare5_hidden'):.0f} % ({raw.interval('relu', 'rare5_hidden')} %) of "
        "them",
        f"with raw pixels, {normalised.mean('relu', 'rare5_hidden'):.1f} % with normalised",
        f"ReLU is better by {points(unequal)}",
        f"it is worse by {points(paired, sign=-1)}",
        f"real (p = {paired['holm_paired']:.1g} after correction)",
        f"with {WORDS[relu['n']]} trials: all {WORDS[len(tests)]} comparisons "
        f"{'are decided alike' * alike}",
        f"{dead['mean']:.0f} % ({raw.interval('relu2', 'dead_outputs')} %). Trials differ",
        f"{raw.mean('relu2', 'rare1_outputs'):.0f} % at both thresholds",
        f"changes accuracy by at most {max(map(abs, without_mu)):.2f} points",
        f"costs {min(without_alpha):.0f} to {max(without_alpha):.0f} points",
        "reach {} % (normalised) and {} % (raw) on average, the others {} and {} %".format(
            *rescued_digits()
        ),
        f"With both, ReLU2 falls {' and '.join(behind)} points behind ReLU",
        f"{rescued[0]:.1f} % (normalised) and {rescued[1]:.1f} % (raw) on average",
        "dead ones rise from {:.1f} to {:.1f} % (raw) and from {:.1f} to {:.1f} % (norm".format(
            *(
                run.mean("relu2", f"dead_outputs{when}")
                for run in reversed(digits)
                for when in ("_start", "")
            )
        ),
        f"μ at 0 costs at most {of_mu:.1f} points, α at 1 costs {min(of_alpha):.0f} to "
        f"{max(of_alpha):.0f}",
        f"All four end at {min(ends):.2f} to {max(ends):.2f} %",
        f"at 0 it costs at most {max(long.mean(m, 'lost_without_mu') for m in table5):.2f} points",
        f"at a cosine of {offset.mean('linear-l2-neg', 'axis_cosine'):.2f}, before training "
        f"{offset.mean('linear-l2-neg', 'axis_cosine_start'):.2f}",
        f"good, {min(reached):.1f} to {max(reached):.1f} %",
        f"{points(code.difference('abs-l2-code', 'abs-l2'), '.1f', -1)} behind",
        f"{WORDS[nearer[0]]} (ReLU2-Neg) and {WORDS[nearer[1]]} times (Abs2-Neg) nearer",
        f"{100 * share['mean']:.0f} % ({100 * share['ci95'][0]:.0f} to "
        f"{100 * share['ci95'][1]:.0f} %) of what ReLU2 lacks",
        f"{raw.mean('relu2', 'silent_inputs'):.0f} % of the test images no output is active",
    ]


def perturbation() -> list[str]:
    run = Run("perturbation-full", "raw")
    published = [row for row in run.summary["rows"] if row["published"] is not None]
    table = [row for row in published if row["metric"] != "reliance"]
    inside = [row for row in table if row["ci95"][0] <= row["published"] <= row["ci95"][1]]
    index = f"{run.mean('relu-bias', 'reliance'):.2f}".replace("-", "−")
    return [
        f"{len(inside)} of {len(table)} published means",
        run.verdicts,
        f"index {index} ({run.interval('relu-bias', 'reliance', '.2f')})",
        f"It leaves {run.mean('relu-bias', 'offset_0.25'):.1f} % "
        f"({run.interval('relu-bias', 'offset_0.25', '.1f')})",
        f"({run.mean('abs-bias', 'after_offset_-0.1'):.1f} and "
        f"{run.mean('abs-bias', 'after_offset_0.1'):.1f} left at ±10 %)",
        f"({run.mean('abs-bias', 'after_clip_0.1'):.1f} left at 10 %)",
    ]


def ellipsoids() -> list[str]:
    run, converged = Run("ellipsoids-full"), Run("ellipsoids-full-newton")
    full, few, round_ = (
        f"{converged.mean(model, 'final_error'):.1e}".replace("e-0", "e-")
        for model in ("elliptical", "pca-l2-4", "spherical")
    )
    return [
        f"The full distance ends {run.mean('elliptical', 'final_error'):.2f} from the point",
        f"{100 * run.mean('pca-l2-64', 'distance_error'):.0f} % too short",
        f"to {full} with full distances, {few} along 4 axes, {round_} with Euclidean ones",
    ]


def gaussian() -> list[str]:
    relu, adam = Run("gaussian-100d-newton-relu"), Run("gaussian-100d")
    sigmoid = Run("gaussian-100d-newton-sigmoid")
    lost = sigmoid.mean("sigmoid", "test_mse") / sigmoid.summary["facts"]["target_variance"]
    assert set(sigmoid.summary["outcomes"][0]["statuses"]) == {"saddle point"}
    missed = relu.mean("relu", "test_mse") / relu.summary["facts"]["target_variance"]
    mse, anew = adam.mean("abs", "train_mse"), adam.mean("abs", "test_mse")
    for metric in ("train_mse", "mean_distance", "sphericity"):
        row = adam.row("abs", metric)
        assert row["ci95"][0] <= row["published"] <= row["ci95"][1]
    return [
        f"on new data it misses {100 * missed:.0f} % of the variance",
        f"on new data it misses {100 * lost:.0f} % of the variance, where half would be bad",
        f"250,000 epochs of Adam leave Abs an MSE of {mse:.3f}",
        f"networks miss {100 * anew / adam.summary['facts']['target_variance']:.0f} % of the "
        f"variance, {anew / mse:.1f} times as much as on the training samples",
        f"still falling, by {100 * adam.mean('abs', 'late_decrease'):.0f} % in the last tenth",
    ]


def next_checks() -> list[str]:
    raw, normalised = Run("fashion-raw"), Run("fashion-normalised")
    relu2, relu = normalised.row("relu2", "test_accuracy"), normalised.row("relu", "test_accuracy")
    path = RUNS / "fashion-normalised" / "trials.csv"
    with path.open(encoding="utf-8", newline="") as file:
        trials = {
            (row["model"], row["trial"]): row["test_accuracy"] for row in csv.DictReader(file)
        }
    behind = [float(trials["relu", t]) - float(trials["relu2", t]) for t in "012"]
    rescued = sorted(float(trials["relu2-neg", t]) for t in "012")
    outcomes = {o["model"]: o["statuses"] for o in raw.summary["outcomes"]}
    assert {m for m, ends in outcomes.items() if ends == {"non-finite": 6}} == {"abs", "abs2"}
    at_chance, short = Run("cifar-raw"), Run("cifar-normalised")
    rows = [row for row in short.summary["rows"] if row["metric"] == "test_accuracy"]
    means = {row["model"]: row["mean"] for row in rows}
    assert set(sorted(means, key=means.__getitem__)[:2]) == {"relu2-neg", "abs2-neg"}
    assert not any(short.row(model, "dead_outputs")["max"] for model in means)
    ends = [o["statuses"] for o in at_chance.summary["outcomes"] if o["model"].startswith("abs")]
    diverged = sum(statuses.get("non-finite", 0) for statuses in ends)
    others = [r for r in at_chance.summary["rows"] if r["metric"] == "test_accuracy"]
    assert all(r["max"] < 14 for r in others if r["model"].startswith("relu"))
    spoiled, rescue = raw.row("relu2", "test_accuracy"), raw.row("relu2-neg", "test_accuracy")
    return [
        f"{raw.mean('relu', 'rare5_hidden'):.0f} % of ReLU's hidden units are rarely active, "
        f"though it still reaches {raw.mean('relu', 'test_accuracy'):.0f} %",
        f"ReLU2 lies {relu['mean'] - relu2['mean']:.0f} points behind ReLU ({min(behind):.0f} to "
        f"{max(behind):.0f} in single trials)",
        f"not rescue ReLU2 ({spoiled['min']:.0f} to {spoiled['max']:.0f} %): ReLU2-Neg ends at "
        f"{rescue['min']:.0f} to {rescue['max']:.0f} %",
        f"in {diverged} trials of {sum(sum(statuses.values()) for statuses in ends)}",
        f"150 epochs fitted, which bring the networks to {min(means.values()):.0f} to "
        f"{max(means.values()):.0f} %",
        "ends at {:.0f} %, the others at {:.0f} and {:.0f} %".format(*rescued),
    ]


def heads() -> list[str]:
    run = Run("heads-full", "fashion-mnist")
    return [
        f"has an AUROC of {run.mean('refitted', 'auroc'):.3f}, where the largest softmax "
        f"probability has {run.mean('softmax', 'auroc'):.2f}, five networks "
        f"{run.mean('ensemble', 'auroc'):.2f} and nearest neighbours "
        f"{run.mean('knn', 'auroc'):.2f}",
        f"accuracy is {points(run.difference('layered', 'softmax'), sign=-1)} below",
    ]


SENTENCES = {
    "README.md": readme,
    "docs/studies/representation.md": representation,
    "docs/studies/perturbation.md": perturbation,
    "docs/studies/ellipsoids.md": ellipsoids,
    "docs/studies/gaussian.md": gaussian,
    "docs/studies/heads.md": heads,
    "docs/studies/next-checks.md": next_checks,
}


@pytest.mark.parametrize("page", SENTENCES)
def test_sentences_say_what_the_runs_measured(page: str) -> None:
    text = " ".join((TOP / page).read_text(encoding="utf-8").split())
    assert [sentence for sentence in SENTENCES[page]() if sentence not in text] == []
