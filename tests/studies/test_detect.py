"""The detect study: draws of its cases, features that are computed once, metrics and ranks."""

import math

import numpy as np
import pytest
import torch
from small_runs import make_run
from torch import nn

from mahalens import detection
from mahalens.errors import InputError
from mahalens.studies import detect, detect_cases
from mahalens.studies.detect_cases import CASES, Pool, draw
from mahalens.studies.study import Measures, Results, forget_data


@pytest.fixture
def pools(monkeypatch):
    """Pools of made-up features: the first number of a row is its label, the second its source."""
    sources = [*detect_cases.IMAGES, "questions"]

    def features(pool):
        classes = {"questions": 40, "elpv": 8, "textiles": 3, "letters": 1, "noise": 1}
        y = torch.arange(classes.get(pool.source, 10)).repeat(20)
        z = torch.stack([y, torch.full_like(y, sources.index(pool.source))], 1).float()
        tested = pool.source in ("cifar10", "mnist", "fashion-mnist", "digits")
        return z, y, (torch.arange(len(y)) < len(y) // 4) & tested

    monkeypatch.setattr(detect_cases, "features", features)
    return sources


class TestDraws:
    @pytest.mark.parametrize("name", CASES)
    def test_known_and_unknown_do_not_meet(self, pools, name):
        case, one = CASES[name], draw(name, 0, 0)
        train, test, unknown = (
            set(map(tuple, part.tolist())) for part in (one.z, one.test_z, one.unknown)
        )
        assert train == test
        assert not train & unknown
        assert len(unknown) > 0
        assert one.z[:, 0].equal(one.y.float())
        assert len(train) == (case.classes or len(case.labels) or 10)
        source = case.unknown or case.known
        assert {row[1] for row in unknown} == {pools.index(source.source)}
        if case.unknown_labels:
            assert {row[0] for row in unknown} == set(case.unknown_labels)

    @pytest.mark.parametrize("name", ["cifar10-classes", "questions"])
    def test_trials_leave_other_classes_out(self, pools, name):
        draws = [set(draw(name, 0, trial).y.tolist()) for trial in range(3)]
        assert draws[0] != draws[1] != draws[2]
        assert draws[0] == set(draw(name, 0, 0).y.tolist())
        assert draws[0] != set(draw(name, 1, 0).y.tolist())

    def test_cases_of_one_pool_share_their_known_samples(self, pools):
        one, other = draw("cifar10-classes", 0, 1), draw("cifar10-noise", 0, 1)
        assert one.z.equal(other.z)
        assert one.test_z.equal(other.test_z)

    def test_sets_without_a_case_are_standardised(self):
        one = draw("wine", 0, 0)
        assert (len(one.y.unique()), one.z.shape[1]) == (2, 13)
        assert one.z.mean(0).abs().max() < 1e-5
        assert len(one.z) + len(one.test_z) + len(one.unknown) == 178


class Doubled(nn.Module):
    def forward(self, images):
        return 2 * images.mean((2, 3))


class TestFeatures:
    @pytest.fixture
    def made_up(self, tmp_path, monkeypatch):
        """Three images, and a network that counts how often it is loaded."""
        monkeypatch.setenv("MAHALENS_DATA", str(tmp_path))
        weights = tmp_path / "weights"
        weights.write_bytes(b"1")
        images = torch.arange(3.0)[:, None, None, None].expand(3, 1, 4, 4)
        y, test = torch.tensor([1, 0, 1]), torch.tensor([False, True, False])
        loads = []

        def load(name, size):
            loads.append((name, size))
            return nn.Sequential(Doubled(), nn.Identity())

        monkeypatch.setitem(detect_cases.IMAGES, "mnist", lambda name: (images, y, test))
        monkeypatch.setattr(detect_cases, "load_backbone", load)
        monkeypatch.setattr(detect_cases, "input_files", lambda names: {"weights": weights})
        monkeypatch.setitem(CASES, "made-up", detect_cases.Case(Pool("mnist")))
        forget_data()
        return loads, weights

    def test_computed_once_for_the_same_weights(self, made_up):
        loads, weights = made_up
        shares = []
        for _ in range(2):
            detect_cases.prepare("made-up", lambda share, text: shares.append((share, text)))
        assert (loads, shares) == ([("efficientnet-lite0", 96)], [(0.0, "features of mnist")])
        z, y, test = detect_cases.features(Pool("mnist"))
        assert z.tolist() == [[0.0], [2.0], [4.0]]
        assert (y.tolist(), test.tolist()) == ([1, 0, 1], [False, True, False])
        weights.write_bytes(b"12")
        detect_cases.prepare("made-up", lambda share, text: None)
        assert len(loads) == 2

    @pytest.mark.parametrize("source", ["letters", "noise"])
    def test_images_that_are_drawn(self, source):
        images, y, _ = detect_cases.IMAGES[source](source)
        assert images.shape == (1000, 3, 32, 32)
        assert (float(images.min()) >= 0, float(images.max()) <= 1) == (True, True)
        assert images.equal(detect_cases.IMAGES[source](source)[0])
        assert images.flatten(1).unique(dim=0).shape[0] > 990
        assert not y.any()


class TestMissingData:
    @pytest.fixture(autouse=True)
    def empty(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
        monkeypatch.setenv("PATH", "")
        forget_data()

    def test_the_rest_runs_and_it_is_said(self, tmp_path):
        run = make_run("detect", tmp_path / "run", data=("wine", "elpv"), models=("marginal",))
        assert {row["data"] for row in run.trials} == {"wine"}
        (caution,) = run.summary["cautions"]
        way = "mahalens data fetch elpv and efficientnet-lite0"
        assert caution == f"elpv was left out, its data are not here: {way}"
        verdicts = {c["verdict"] for c in run.summary["claims"] if c["data"] == "elpv"}
        assert verdicts == {"not measured"}

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (("questions",), "not on this machine; run mahalens data fetch questions"),
            (("breast-cancer",), "has 2 classes; give at least 3, of which some are unknown"),
        ],
    )
    def test_nothing_to_run(self, data, words):
        config = detect.DetectConfig.with_defaults(data=data)
        with pytest.raises(InputError, match=words):
            detect.check(config, None)


class TestMetrics:
    def test_of_a_detector_that_is_always_right(self):
        generator = torch.Generator().manual_seed(0)
        z, test = torch.randn(2, 400, 3, generator=generator)
        one = detect_cases.Draw(z, torch.zeros(400, dtype=torch.long), test, test + 50)
        config = detect.DetectConfig.with_defaults()
        detector = detection.Marginal(normalise="none").fit_features(z).set_reject(0.05)
        values = detect.measured(detector, one, config, trial=0)
        for name in ("auroc", "aupr_known", "aupr_unknown", "rejected_unknown"):
            assert values[name] == pytest.approx(100)
        assert values["fpr95"] == 0
        assert values["rejected_known"] == pytest.approx(5, abs=4)
        for count in (50, 100):
            assert values[f"rejected_known_{count}"] == pytest.approx(5, abs=1.5)

    def test_ranks_and_the_best_of_six(self):
        aurocs = {"auto": (90, 80), "knn": (91, 70), "energy": (89, 75), "gen": (99, 60)}
        measures = {
            (case, model): Measures(
                {"auroc": torch.tensor([values[place], values[place] + 2.0])}, 1
            )
            for place, case in enumerate(("digits", "wine"))
            for model, values in aurocs.items()
        }
        results = Results(measures, {})
        config = detect.DetectConfig.with_defaults(models=tuple(aurocs))
        detect.finish(config, results)
        assert results.facts["best_of_six"] == {"digits": "knn", "wine": "energy"}
        assert results.evidence["wine", "best of six", "auroc"].tolist() == [75, 77]
        assert results.facts["mean_rank"] == {"auto": 2, "knn": 2.5, "energy": 3, "gen": 2.5}
        assert results.evidence["", "best other", "rank"].tolist() == [2, 3]
        assert results.tables["ranks.csv"][0] == ("model", "mean", "digits", "wine")

    def test_a_detector_that_was_not_measured_has_no_rank(self):
        measures = {("wine", "knn"): Measures({"auroc": torch.tensor([1.0])}, 1)}
        results = Results(measures, {})
        detect.finish(detect.DetectConfig.with_defaults(models=("auto", "knn")), results)
        assert results.facts["mean_rank"] == {"knn": 1}
        assert math.isnan(results.evidence["", "auto", "rank"][0])
        assert np.isfinite(results.evidence["", "best other", "rank"]).all()


def test_every_detector_is_fitted_as_it_is_called():
    z = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(300) % 3
    z[:, 0] += 20 * y
    for model in detect.MODELS:
        detector = detect.fit(model, z, y, 0.1)
        assert float(detector.reject_features(z).double().mean()) < 0.3, model
        if model.endswith("++"):  # of length 1
            scores = detector.score_features(z)
            assert torch.allclose(detector.score_features(3 * z), scores, rtol=1e-3, atol=1e-3)


def test_formulas_of_pytorch_ood():
    """Scores are in the order of pytorch-ood 0.4.0, whose formulas are written out here."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 3
    z = torch.randn(600, 6, generator=generator, dtype=torch.float64)
    z = z @ torch.randn(6, 6, generator=generator, dtype=torch.float64) + y[:, None]
    new = 3 * torch.randn(200, 6, generator=generator, dtype=torch.float64)
    means = torch.stack([z[y == label].mean(0) for label in range(3)])
    within = (z - means[y]).T @ (z - means[y])
    around = (z - z.mean(0)).T @ (z - z.mean(0))
    ridge = 1e-6 * torch.eye(6, dtype=torch.float64)

    def distances(centre, scatter):
        away = new - centre
        return ((away @ torch.linalg.inv(scatter + ridge)) * away).sum(1)

    nearest = torch.stack([distances(mean, within) for mean in means]).amin(0)
    unit, unit_new = (nn.functional.normalize(part) for part in (z, new))
    theirs = {
        detection.Mahalanobis(normalise="none", shrinkage=0.0): nearest,
        detection.Relative(normalise="none", shrinkage=0.0): nearest - distances(z.mean(0), around),
        detection.Neighbours(k=50): torch.cdist(unit_new, unit).sort(1).values[:, 49],
    }
    energy = detection.Energy().fit_features(z, y, hold_out=0.0)
    logits = new @ energy.weight.double() + energy.bias.double()
    shares = logits.softmax(1)
    theirs |= {
        detection.Energy(): -logits.logsumexp(1),
        detection.MaxLogit(): -logits.amax(1),
        detection.MaxSoftmax(): -shares.amax(1),
        detection.GEN(): (shares * (1 - shares)).pow(0.1).mean(1),
    }
    for detector, scores in theirs.items():
        ours = detector.fit_features(z, y, hold_out=0.0).score_features(new).double()
        assert np.corrcoef(ours.argsort().argsort(), scores.argsort().argsort())[0, 1] > 0.99999
