"""Digits of scores in float32, against the same detector in float64 or a formula written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detectors import classes_of, squares, within
from torch import Tensor

from mahalens.detection import METHODS, Detector
from mahalens.detection.distances import choose_beta
from mahalens.detection.known import Gatherer, Rows, Wanted, precision_for
from mahalens.detection.metrics import auroc
from mahalens.errors import InputError

PLAIN = {"normalise": "none"}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tight_classes(spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Six classes with means 1.4 apart, so 14,000 spreads at 1e-4."""
    y = torch.arange(600) % 6
    return torch.eye(8)[y] + spread * draw(600, 8, seed=seed), y


# --- Distances --------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_neighbours_at_any_offset_have_the_distances_of_differences(offset: float) -> None:
    known, new = draw(400, 8) + offset, draw(100, 8, seed=1) + offset
    detector = METHODS["neighbours"](k=5, **PLAIN).fit_features(known, hold_out=0)
    away = new.double()[:, None] - known.double()
    expected = away.square().sum(2).sort(1).values[:, 4].sqrt()
    scores = detector.score_features(new)
    assert scores.dtype == detector.rows.dtype == torch.float32
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=0)
    assert float(detector.score_features(known)[0]) > 0


def test_a_remembered_sample_is_at_distance_0() -> None:
    known = draw(400, 8) + 5
    scores = METHODS["neighbours"](k=1, **PLAIN).fit_features(known, hold_out=0)
    assert scores.score_features(known).tolist() == [0.0] * 400


@pytest.mark.parametrize("normalise", ["none", "unit"])
def test_neighbours_in_tight_classes_are_told_apart(normalise: str) -> None:
    (known, y), (new, _) = tight_classes(1e-5), tight_classes(3e-5, seed=1)
    one, two = (
        METHODS["neighbours"](k=5, normalise=normalise).fit_features(z, y, hold_out=0)
        for z in (known, known.double())
    )
    scores = one.score_features(new)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), two.score_features(new.double()), rtol=1e-4, atol=0)


def test_neighbours_of_an_earlier_version_still_score() -> None:
    z = draw(200, 4)
    detector = METHODS["neighbours"](k=3, **PLAIN).fit_features(z)
    state = detector.state_dict()
    rows = state["rows"] + state.pop("centre")
    old = METHODS["neighbours"](k=3, **PLAIN)
    old.load_state_dict({**state, "rows": rows.float()})
    torch.testing.assert_close(old.score_features(z), detector.score_features(z))


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-5])
@pytest.mark.parametrize("method", ["mahalanobis", "mahavar", "relative", "low-rank"])
def test_tight_classes_have_the_scores_of_float64(method: str, spread: float) -> None:
    (z, y), (new, _) = tight_classes(spread), tight_classes(5 * spread, seed=1)
    options = {**PLAIN, "rank": 3} if method == "low-rank" else PLAIN
    one, two = (METHODS[method](**options).fit_features(known, y) for known in (z, z.double()))
    scores, expected = one.score_features(new), two.score_features(new.double())
    assert scores.dtype == torch.float32
    # Distances of Relative and MahaVar differ by their own size; the moments are sums in float32.
    size = float(expected.std())
    torch.testing.assert_close(scores.double(), expected, rtol=1e-3, atol=1e-3 * size)
    near, far = one.explain_features(z), one.explain_features(new)
    assert auroc(near.score, far.score) == pytest.approx(
        auroc(two.score_features(z.double()), expected), abs=1e-3
    )
    assert torch.equal(near.label, y)
    assert near.distance.dtype == torch.float32


def test_mahalanobis_of_tight_classes_is_the_formula() -> None:
    z, y = tight_classes(1e-4)
    detector = METHODS["mahalanobis"](shrinkage=0.0, **PLAIN).fit_features(z, y, hold_out=0)
    known, labels = z.double().numpy(), y.numpy()
    covariance = within(known, labels)
    distances = [
        squares(known[:20], part.mean(0), covariance) for part in classes_of(known, labels)
    ]
    expected = np.sqrt(np.min(distances, 0))
    np.testing.assert_allclose(detector.score_features(z[:20]), expected, rtol=1e-4)


def test_ordinary_features_stay_in_their_precision() -> None:
    y = torch.arange(400) % 4
    z = draw(400, 8) + 6 * torch.eye(8)[y]
    for method in ("mahalanobis", "mahavar", "relative", "low-rank", "neighbours"):
        detector = METHODS[method](**PLAIN).fit_features(z, y)
        buffer = detector.rows if method == "neighbours" else detector.means
        assert buffer.dtype == torch.float32
    assert precision_for(torch.float32, 1e4, 1e4) == torch.float32


def test_files_keep_the_precision_of_tight_classes(tmp_path) -> None:
    z, y = tight_classes(1e-5)
    detector = METHODS["mahalanobis"](**PLAIN).fit_features(z, y)
    assert detector.means.dtype == torch.float64
    detector.save(tmp_path / "one.safetensors")
    again = Detector.load(tmp_path / "one.safetensors")
    assert torch.equal(again.score_features(z), detector.score_features(z))


def test_tight_classes_export_in_both_precisions() -> None:
    z, y = tight_classes(1e-5)
    scorer = METHODS["mahalanobis"](**PLAIN).fit_features(z, y).scorer()
    rows = {"z": {0: torch.export.Dim("rows")}}
    program = torch.export.export(scorer, (z[:4],), dynamic_shapes=rows).module()
    torch.testing.assert_close(program(z)[0], scorer(z)[0])


# --- Logits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [1.0, 10.0, 17.0, 30.0, 60.0])
def test_gen_keeps_its_digits_where_the_softmax_is_sure(gap: float) -> None:
    detector = METHODS["gen"]().fit_features(draw(200, 2), logits=draw(200, 3))
    logits = torch.tensor([[gap, 0.0, -1.0]])
    p = np.exp(logits[0].double().numpy())
    rests = np.array([p[1] + p[2], p[0] + p[2], p[0] + p[1]]) / p.sum()
    score = float(detector.score_features(torch.zeros(1, 2), logits=logits))
    assert score == pytest.approx(((p / p.sum() * rests) ** 0.1).sum(), rel=1e-6)


def test_max_softmax_keeps_the_order_of_the_surest_samples() -> None:
    logits = torch.tensor([[30.0, 16, 0], [30, 15, 0], [30, 14, 0], [0, 0, 0], [-5, 99, -700]])
    scores = METHODS["max-softmax"]().fit_features(draw(200, 2), logits=draw(200, 3))
    exact = -logits.double().log_softmax(1).amax(1)
    scores = scores.score_features(torch.zeros(5, 2), logits=logits)
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=0)
    assert bool((scores[:2] > scores[1:3]).all())


def test_vim_refuses_logarithms_of_probabilities() -> None:
    z, y, logits = draw(300, 6), torch.arange(300) % 3, 3 * draw(300, 3, seed=1)
    detector = METHODS["vim"]().fit_features(z, y, logits=logits)
    assert float(detector.alpha) > 0
    message = r"largest logit is -.* ViM needs an average above 0; give logits, not logarithms"
    with pytest.raises(InputError, match=message) as error:
        METHODS["vim"]().fit_features(z, y, logits=logits.log_softmax(1))
    assert "\n" not in str(error.value)


def test_vim_and_the_choice_of_a_length_draw_their_samples(monkeypatch) -> None:
    """Not the first ones: data often come class by class."""
    monkeypatch.setattr("mahalens.detection.logits.PROBE_ROWS", 200)
    z = draw(2000, 6)
    logits = torch.cat((torch.zeros(1000, 3) + 1, torch.zeros(1000, 3) + 9))
    alpha = METHODS["vim"]().fit_features(z, logits=logits, hold_out=0).alpha
    everything = METHODS["vim"]()
    monkeypatch.setattr("mahalens.detection.logits.PROBE_ROWS", 2000)
    assert float(alpha / everything.fit_features(z, logits=logits, hold_out=0).alpha) == (
        pytest.approx(1, abs=0.15)
    )


def test_drawn_rows_are_the_same_in_any_order_and_all_if_few() -> None:
    numbers = torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = Rows(torch.arange(100.0)[:, None], torch.zeros(100).long(), None, numbers)
    some = rows.drawn(10)
    turned = rows[torch.arange(99, -1, -1)].drawn(10)
    assert set(some.z[:, 0].tolist()) == set(turned.z[:, 0].tolist())
    assert max(some.z[:, 0].tolist()) > 30
    assert rows.drawn(100) is rows


def test_the_length_is_chosen_by_drawn_samples() -> None:
    """5,000 samples of unit length first, then more whose lengths vary a hundredfold."""
    y = torch.arange(20_000) % 2
    z = draw(20_000, 4) + torch.tensor([20.0, 0, 0, 0]) + 40 * torch.eye(4)[2 + y]
    lengths = torch.ones(20_000, 1)
    lengths[5_000:] = 10 ** (2 * torch.rand(15_000, 1, generator=torch.Generator().manual_seed(0)))
    gatherer = Gatherer(Wanted((0.0, 1.0), sample=True), hold_out=0.0, seed=0, labelled=True)
    gatherer.add(z * lengths, y)
    assert choose_beta(gatherer.finish(), (0.0, 1.0)) == 1.0
