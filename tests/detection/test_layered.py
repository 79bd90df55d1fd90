"""Several detectors as one: whose classes they name, and how known samples judge them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mahalens
from mahalens.detection import Combined, Detector, Layered, Mahalanobis
from mahalens.detection.choose import choose
from mahalens.detection.known import Gatherer, Known, Wanted
from mahalens.detection.layered import Judge

PARTS = [("energy", {}), ("mahalanobis", {})]


def samples(classes: int = 6, each: int = 40):
    y = torch.arange(classes * each) % classes
    z = torch.randn(len(y), 8, generator=torch.Generator().manual_seed(0)).abs()
    return z + 6 * torch.eye(8)[y], y


def head(labels: list[int], count: int) -> nn.Sequential:
    """A network with a logit for each label; the others are low."""
    model = nn.Sequential(nn.Identity(), nn.Linear(8, count))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.fill_(-20.0)
        for k, label in enumerate(labels):
            model[1].weight[label, k] = 3.0
            model[1].bias[label] = 0.0
    return model


def known_of(z, y, logits=None, linear=None) -> Known:
    gatherer = Gatherer(
        Wanted((0.0, 1.0), sample=True), hold_out=0.0, seed=0, labelled=y is not None
    )
    gatherer.add(z, y, logits)
    return gatherer.finish(linear)


def test_a_combination_names_known_classes_where_the_model_has_others(tmp_path) -> None:
    z, y = samples()
    detector = Combined(PARTS).fit(head([0, 2, 4, 6, 8, 10], 12), (z, 2 * y))
    assert torch.equal(detector.explain(z).label, 2 * y)
    assert detector.classes.tolist() == [0, 2, 4, 6, 8, 10]
    detector.save(tmp_path / "one.safetensors")
    again = Detector.load(tmp_path / "one.safetensors")
    assert torch.equal(again.explain_features(z).label, 2 * y)


def test_an_unknown_sample_may_have_a_logit_beyond_the_known_classes() -> None:
    z, y = samples()
    model = head([0, 1, 2, 3, 4, 5], 12)
    with torch.no_grad():
        model[1].weight[11, 7] = 1.0
    unknown = torch.zeros(1, 8)
    unknown[0, 7] = 300.0
    assert model(unknown).argmax() == 11
    detector = Combined(PARTS).fit(model, (z, y))
    assert detector.reject(unknown).shape == (1,)
    assert int(detector.explain(unknown).label) < 6


@pytest.mark.parametrize("labelled", [True, False])
def test_logits_alone_name_the_class_of_the_model(labelled: bool, tmp_path) -> None:
    z, y = samples()
    model = head([0, 2, 4, 6, 8, 10], 12)
    parts = [("energy", {}), ("max-softmax", {})]
    detector = Combined(parts).fit(model, (z, 2 * y) if labelled else z)
    assert torch.equal(detector.explain(z).label, model(z).argmax(1))
    detector.save(tmp_path / "one.safetensors")
    again = Detector.load(tmp_path / "one.safetensors")
    assert torch.equal(again.explain_features(z).label, model(z).argmax(1))


def test_layers_name_the_class_of_the_model_if_they_read_logits() -> None:
    z, y = samples()
    model = head([0, 2, 4, 6, 8, 10], 12)
    detector = Layered(["0", "1"], method="energy").fit(model, (z, 2 * y))
    assert torch.equal(detector.explain(z).label, 2 * y)


@pytest.mark.parametrize("first", [0, 3])
def test_held_out_classes_lose_the_logits_of_their_labels(first: int) -> None:
    z, y = samples()
    model = head([first + k for k in range(6)], 10)
    choice = mahalens.detect(model, (z, y + first)).choice
    energy = next(trial for trial in choice.trials if trial.parts == ("energy",))
    assert energy.classes > 0.99


@pytest.mark.parametrize("labels", [[0, 10, 20], [-1, 0, 1]])
def test_logits_are_numbered_by_place_if_labels_are_not_their_numbers(labels: list[int]) -> None:
    z, y = samples(classes=3)
    logits = 3 * z[:, :3]
    judge = Judge(known_of(z, torch.tensor(labels)[y], logits))
    for rows in (judge._fit, judge._rest):
        some = judge._columns(rows, torch.tensor([0, 2]))
        assert torch.equal(some.logits, rows.logits[:, [0, 2]])


def test_a_combination_takes_more_logits_than_there_are_classes() -> None:
    z, y = samples()
    logits = torch.cat((3 * z[:, :6], torch.full((len(z), 44), -20.0)), 1)
    detector = Combined(PARTS).fit_features(z, y, logits=logits)
    assert torch.equal(detector.explain_features(z, logits=logits).label, y)
    unlabelled = Combined([("energy", {}), ("marginal", {})]).fit(head(list(range(6)), 50), z)
    assert bool(unlabelled.score(z).isfinite().all())


@pytest.mark.parametrize("count", [6, 50])
def test_the_choice_says_why_logits_without_a_layer_are_not_tried(count: int) -> None:
    z, y = samples()
    logits = head(list(range(6)), count)(z).detach()
    choice = choose(known_of(z, y, logits))
    assert "made-up unknowns are not known without a linear layer" in choice.notes["energy"]
    assert not any("energy" in trial.parts for trial in choice.trials)


def test_the_choice_tries_no_logits_without_known_classes() -> None:
    z, _ = samples()
    choice = mahalens.detect(head(list(range(6)), 50), z).choice
    assert choice.notes["energy"] == "logits compare classes, and there is 1 known class"


# --- Tiny classes -----------------------------------------------------------------------------


def lonely(count: int = 12):
    """Far from 0, with classes of one sample."""
    z, y = samples()
    far = torch.randn(count, 8, generator=torch.Generator().manual_seed(1)) + 40
    return torch.cat((z + 5, far)), torch.cat((y, torch.arange(100, 100 + count)))


def test_the_only_sample_of_a_class_is_fitted_to() -> None:
    z, y = lonely()
    judge = Judge(known_of(z, y))
    assert bool(torch.isin(judge._rest.y, judge._fit.y).all())
    classes = torch.arange(18)
    detector = judge._fitted(Mahalanobis(normalise="none"), classes)
    assert len(detector.classes) == 18
    assert not (detector.means + detector.centre == 0).all(1).any()
    assert float(detector(torch.zeros(1, 8))[0]) > 3


def test_no_class_has_its_mean_at_0_if_nearly_all_have_one_sample() -> None:
    z, y = lonely(count=900)
    judge = Judge(known_of(z, y))
    assert len(judge._rest) == len(z) // 4
    detector = judge._fitted(Mahalanobis(normalise="none"), torch.arange(906))
    assert len(detector.classes) == len(judge._fit.y.unique()) < 906
    assert float(detector(torch.zeros(1, 8))[0]) > 3


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_one_and_two_samples_can_be_combined(seed: int) -> None:
    z, y = lonely(count=8)
    y[-2] = y[-1]
    parts = [("low-rank", {}), ("mahalanobis", {})]
    detector = Combined(parts).fit_features(z, y, seed=seed)
    assert bool(detector.score_features(z).isfinite().all())


def test_classes_without_judging_samples_are_not_held_out() -> None:
    z, y = lonely(count=3)
    for seed in range(3):
        judge = Judge(known_of(z, y), seed=seed)
        assert sorted(torch.cat(judge._folds).tolist()) == list(range(6))
