"""Choosing a method from known samples alone, and several layers at once."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mahalens
from mahalens.detection import METHODS, Detector, Layered, auroc
from mahalens.detection.choose import PARTS, SOUND, Trial, _best
from mahalens.errors import InputError


def digits(known=7):
    """Pixels of the digits 0 to 6, two thirds of them to fit, and of the others."""
    data = load_digits()
    x, y = torch.tensor(data.data).float(), torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    inside = y < known
    count = int(inside.sum()) * 2 // 3
    return x[inside][:count], y[inside][:count], x[inside][count:], x[~inside]


def test_auto_is_as_good_as_the_best_method_on_digits() -> None:
    x, y, test, new = digits()
    detector = mahalens.detect_features(x, y)
    best = max(
        auroc(other.score_features(test), other.score_features(new))
        for method, options in PARTS.values()
        for other in [METHODS[method](**options).fit_features(x, y)]
    )
    ours = auroc(detector.score_features(test), detector.score_features(new))
    assert ours > best - 0.01
    assert float(detector.reject_features(test).float().mean()) < 0.1
    assert "candidates" in detector.choice.reason
    assert {part for trial in detector.choice.trials for part in trial.parts} <= set(PARTS)


def test_the_choice_depends_on_known_samples_and_seed_only(tmp_path) -> None:
    x, y, test, _ = digits()
    one, two = (mahalens.detect_features(x, y, seed=3) for _ in range(2))
    assert one.choice == two.choice
    assert torch.equal(one.score_features(test), two.score_features(test))
    one.save(tmp_path / "one.safetensors")
    again = Detector.load(tmp_path / "one.safetensors")
    assert torch.equal(again.p_value_features(test), one.p_value_features(test))


@pytest.mark.parametrize("shift", [3.0, 6.0])
def test_far_points_are_unknown_where_lengths_say_nothing(shift: float) -> None:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    z = torch.randn(400, 6, generator=draw) + shift * y[:, None]  # one class lies around 0
    detector = mahalens.detect_features(z, y)
    assert detector.choice.kinds == ("shuffled", "far", "farther")
    signs = torch.randn(400, 6, generator=draw).sign()
    assert detector.reject_features(z + 50 * signs).all()
    assert detector.reject_features(z + 100).all()


def test_lengths_count_where_they_are_characteristic() -> None:
    draw = torch.Generator().manual_seed(0)
    z = (3 + torch.randn(400, 20, generator=draw)).relu()
    kinds = mahalens.detect_features(z, torch.arange(400) % 2).choice.kinds
    assert kinds == ("shuffled", "shorter", "longer")


def test_features_too_large_to_square_are_refused_in_one_line() -> None:
    draw = torch.Generator().manual_seed(0)
    z = 1e100 * torch.randn(200, 6, generator=draw, dtype=torch.float64)
    with pytest.raises(InputError, match="too large to square; divide the features by a constant"):
        mahalens.detect_features(z, torch.arange(200) % 4, method="mahalanobis")


def test_rules_of_the_choice() -> None:
    good = (0.99, 0.99, 0.99)
    blind = Trial(("energy",), 0.99, (0.99, 0.99, 0.3))  # to long features
    weak = Trial(("relative",), 0.95, (0.9, 0.9, 0.9))
    near, nearer = Trial(("neighbours",), 0.8, good), Trial(("mahalanobis",), 0.85, good)
    both = Trial(("relative", "energy"), 0.97, good)
    pair = Trial(("mahalanobis", "relative"), 0.9, good)
    assert _best((blind, weak, near, nearer, both))[0] is nearer
    assert _best((blind, weak, near, nearer, both, pair))[0] is pair
    # Odds of 0.85 and 0.99: 5.67 and 99. Odds of 0.8 and 0.995: 4 and 199, a larger product.
    far, less = near._replace(made=(1, 1, 0.995)), near._replace(made=(1, 1, 0.992))
    assert _best((nearer, far))[0] is far
    assert _best((nearer, less))[0] is nearer
    certain = [near._replace(made=(least,) * 3) for least in (0.9991, 1.0)]
    assert _best(certain)[0] is certain[0]
    assert _best((blind, weak))[0] is weak  # nothing is sound
    assert _best((blind,))[0] is blind  # better than nothing
    unsound = [weak._replace(classes=classes) for classes in (0.8, 0.9)]
    assert _best(unsound)[0] is unsound[1]  # nothing is sound: held-out classes decide
    first, second = near._replace(classes=None), nearer._replace(classes=None, made=(0.992,) * 3)
    assert _best((first, second))[0] is first  # equal to two digits


def test_every_average_is_a_candidate_and_the_chosen_one_comes_first() -> None:
    x, y, _, _ = digits()
    choice = mahalens.detect_features(x, y).choice
    tried = set(PARTS) - set(choice.notes)
    assert set(choice.notes) == {"marginal"}
    assert len({frozenset(trial.parts) for trial in choice.trials}) == 2 ** len(tried) - 1
    # Pixels of a digit lie near a plane of its own.
    chosen, *alone = choice.shown
    assert chosen is choice.trials[0]
    assert "low-rank" in chosen.parts
    assert choice.method == ("combined" if len(chosen.parts) > 1 else "low-rank")
    assert chosen.worth == max(trial.worth for trial in choice.trials if min(trial.made) >= SOUND)
    assert {trial.parts for trial in (chosen, *alone)} == {
        chosen.parts,
        *((part,) for part in tried),
    }


def test_lengths_are_left_alone_where_features_lie_around_0() -> None:
    """At length 1 the flowers of a third kind are more like the other two than these are."""
    z, y = (torch.tensor(part) for part in load_iris(return_X_y=True))
    known = y > 0
    z = (z - z[known].mean(0)) / z[known].std(0)
    detector = mahalens.detect_features(z[known], y[known], hold_out=0.4)
    options = detector.choice.options
    for _, own in options.get("parts", [("", options)]):
        assert own.get("normalise", "none") == "none"
    assert auroc(detector.score_features(z[known]), detector.score_features(z[~known])) > 0.95


@pytest.mark.parametrize("labels", ["none", "one class", "two classes"])
def test_few_classes_leave_a_choice(labels: str) -> None:
    x, y, test, new = digits(known=2)
    y = {"none": None, "one class": 0 * y, "two classes": y}[labels]
    detector = mahalens.detect_features(x, y)
    assert auroc(detector.score_features(test), detector.score_features(new)) > 0.95
    assert all(trial.classes is None for trial in detector.choice.trials)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 7)
    )


def test_detect_reads_a_model_as_features_and_logits() -> None:
    x, y, test, _ = digits()
    model = network()
    for method in ("mahalanobis", "energy"):
        detector = mahalens.detect(model, DataLoader(TensorDataset(x, y), 64), method, rate=0.2)
        with torch.no_grad():
            z, logits = model[:4](test), model(test)
        torch.testing.assert_close(detector.score(test), detector.score_features(z))
        assert float(detector.calibration.rate) == 0.2
        assert detector.layer == ("input of 4",)
    torch.testing.assert_close(detector.score(test), -logits.logsumexp(1))
    whole = mahalens.detect(model, (x, y), rate=0.1)
    assert whole.explain(test).label.shape == test.shape[:1]


def test_several_layers_are_weighed_by_known_samples(tmp_path) -> None:
    x, y, test, new = digits()
    model = network()
    detector = mahalens.detect(model, (x, y), layers=["0", "2"])
    assert float(detector.weights.sum()) == 1
    with torch.no_grad():
        z = [model[:1](test), model[:3](test)]
    torch.testing.assert_close(detector.score(test), detector.score_features(z))
    seen = detector.explain(new)
    assert set(seen.layer) <= {"0", "2"}
    first = int(detector.widths[0])
    for layer, direction in zip(seen.layer, seen.direction, strict=True):
        inside, outside = direction[:first], direction[first:]
        if layer == "2":
            inside, outside = outside, inside
        assert float(inside.norm()) == pytest.approx(1, abs=1e-5)
        assert not bool(outside.any())
    detector.save(tmp_path / "layers.safetensors")
    again = Detector.load(tmp_path / "layers.safetensors").attach(model)
    torch.testing.assert_close(again.score(test), detector.score(test))


@pytest.mark.parametrize("labels", ["one sample each", "no spread"])
def test_auto_leaves_out_methods_that_have_no_answer(labels: str) -> None:
    x, y, test, _ = digits()
    if labels == "no spread":
        x = torch.stack([x[y == k].mean(0) for k in range(10) if (y == k).any()])[y]
    else:
        y = torch.arange(len(x))
    detector = mahalens.detect_features(x, y)
    assert bool(detector.score_features(test).isfinite().all())


def test_a_layer_without_information_gets_no_weight() -> None:
    x, y, test, _ = digits()
    noise = torch.randn(len(x), 5, generator=torch.Generator().manual_seed(0))
    detector = Layered(["noise", "pixels"]).fit_features([noise, x], y)
    assert detector.weights.tolist() == [0, 1]
    alone = METHODS["mahalanobis"](normalise="unit", shrinkage=0.1).fit_features(x, y)
    scores = detector.score_features([torch.zeros(len(test), 5), test])
    expected = (alone.score_features(test) - detector.locations[1]) / detector.scales[1]
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    program = torch.export.export(
        detector.scorer(),
        (torch.zeros(3, 69),),
        dynamic_shapes={"z": {0: torch.export.Dim("rows", min=1, max=999)}},
    )
    both = torch.cat((torch.zeros(len(test), 5), test), 1)
    torch.testing.assert_close(program.module()(both)[0], scores)


X, Y, _, _ = digits()
BAD = [
    (lambda: mahalens.detect_features(X, Y, "best"), '"auto" or one of mahalanobis'),
    (lambda: mahalens.detect_features(X, Y, ["relative"]), '"auto" or one of mahalanobis'),
    (lambda: mahalens.detect_features(X, Y, rank=3), "chooses its options, but rank"),
    (
        lambda: mahalens.detect_features(X, Y, "mahalanobis", normalize="unit"),
        r"'normalize'; see help\(mahalens.detection.Mahalanobis\)",
    ),
    (lambda: mahalens.detect_features(X, Y, "combined"), "missing .* 'parts'; see help"),
    (lambda: METHODS["combined"](["energy"]), "give pairs of a method and its options"),
    (
        lambda: mahalens.detect(network(), (X[:, :9], Y)),
        r"shape \[\d+, 9\]: .* takes such inputs",
    ),
    (lambda: mahalens.detect_features(X, Y, rate=2), "between 0 and 1"),
    (lambda: mahalens.detect_features(X, None, "relative"), "needs labels"),
    (lambda: mahalens.detect_features(0 * X, Y), "no method can be fitted .* same features"),
    (lambda: mahalens.detect_features(X[:8], Y[:8]), "held out of 8 samples; 19 are needed"),
    (lambda: mahalens.detect_features(X, ["a"] * len(X)), "labels have type <U1; give numbers"),
    (lambda: mahalens.detect(network(), (X, Y), layers="body"), "no layer 'body'"),
    (lambda: Layered("all"), "give a list of different names"),
    (lambda: Layered(["a"], method="layered"), "give one of"),
    (lambda: Layered(["a"]).fit_features(X, Y), "list of 1 arrays"),
    (lambda: Layered(["0"]).fit(network(), (X, Y), layer="0"), "leave layer out"),
    (lambda: METHODS["combined"]([]), "no parts"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_refused_in_one_line(call, message) -> None:
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
