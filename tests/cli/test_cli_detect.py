"""``mahalens detect``: what is written and printed, and what is refused."""

import csv
import json

import numpy as np
import pytest
import torch
from torch import nn

from mahalens.data import backbones
from mahalens.detection import Detector

NET = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with features of three classes, others far from them, and a network."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    known = rng.standard_normal((600, 6)) + 6 * np.eye(6)[y]
    np.savez(tmp_path / "known.npz", x=known.astype("float32"), y=y)
    np.savez(tmp_path / "far.npz", x=(rng.standard_normal((200, 6)) - 8).astype("float32"))
    np.savez(tmp_path / "images.npz", x=rng.random((300, 1, 8, 8)).astype("float32"), y=y[:300])
    (tmp_path / "detect_nets.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_auto_says_what_it_chose_from(cli, here):
    outcome = cli("detect", "--data", "known.npz", "--unknown", "far.npz", "--out", "found")
    assert outcome.code == 0, outcome.err
    assert "AUROC" in outcome.out.splitlines()[-1]
    page = (here / "found" / "report.html").read_text()
    assert "Candidates" in page
    assert "plain mahalanobis" in page


@pytest.mark.parametrize("model", [[], ["detect_nets:net"]], ids=["features", "network"])
def test_a_detector_is_written_and_its_promise_said(cli, here, model):
    words = ("--data", "known.npz", "--unknown", "far.npz", "--method", "mahalanobis")
    outcome = cli("detect", *model, *words, "--out", "found")
    assert outcome.code == 0, outcome.err
    answer = outcome.out.strip().splitlines()[-1]
    assert answer.startswith("On your data, use mahalanobis")
    assert "set to reject 5 % of known samples" in answer
    record = json.loads((here / "found" / "detect.json").read_text())
    assert record["results"][0]["unknown_rejected"]["share"] > 0.9
    assert {result["method"] for result in record["results"]} >= {"neighbours", "energy"}
    assert answer.split(" at ")[0] in (here / "found" / "report.html").read_text()
    assert (here / "found" / "figures" / "scores.png").stat().st_size > 1_000
    with (here / "found" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows].count("unknown") == 200
    detector = Detector.load(here / "found" / "detector.safetensors")
    page = (here / "found" / "report.html").read_text()
    assert ("attach(model)" in page) == bool(model)
    assert "the choice saw" not in answer  # there was none
    if not model:
        far = torch.tensor(np.load("far.npz")["x"])
        scores = [float(row["score"]) for row in rows if row["kind"] == "unknown"]
        torch.testing.assert_close(detector.score_features(far), torch.tensor(scores))


def test_images_are_shown(cli, here):
    outcome = cli(
        "detect", "--data", "images.npz", "--method", "marginal", "--out", "found", "--quiet"
    )
    assert outcome.code == 0, outcome.err
    assert (here / "found" / "figures" / "samples.png").exists()
    assert outcome.out.count("\n") == 2
    page = (here / "found" / "report.html").read_text()
    assert "What is unlike the known samples" in page
    assert "detector.reject_features(features)" in page
    assert "FPR" not in page  # there are no unknown samples to compare methods on


def test_a_pretrained_network_takes_images_of_any_size(cli, here, monkeypatch):
    sizes = []

    def load(name, size):
        sizes.append((name, size))
        torch.manual_seed(0)
        layers = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 4), nn.ReLU())
        return nn.Sequential(Grey(), *layers, nn.Linear(4, 3)).eval()

    monkeypatch.setattr(backbones, "load_backbone", load)
    bright = 5 + np.random.default_rng(1).random((90, 3, 12, 10)).astype("float32")
    np.savez(here / "bright.npz", x=bright)
    words = ("--data", "images.npz", "--unknown", "bright.npz", "--method", "marginal", "--quiet")
    outcome = cli("detect", "mobilenet-v2", *words, "--out", "found")
    assert outcome.code == 0, outcome.err
    assert "Of your 90 unknown samples it rejected 100.0 %" in outcome.out
    outcome = cli("detect", "mobilenet-v2", *words, "--image-size", "64,64", "--out", "other")
    assert outcome.code == 0, outcome.err
    assert sizes == [("mobilenet-v2", 96), ("mobilenet-v2", 64)]


def test_few_samples_keep_a_low_rate_if_more_are_held_out(cli, here):
    words = ("detect", "--data", "known.npz", "--method", "marginal", "--rate", "0.005", "--quiet")
    few = cli(*words, "--out", "found")
    assert few.code == 2
    assert "a larger hold_out" in few.err
    assert cli(*words, "--hold-out", "0.6", "--out", "found").code == 0
    record = json.loads((here / "found" / "detect.json").read_text())
    assert record["held_out"] == pytest.approx(0.6 * 480, abs=40)
    assert record["held_out"] + record["fitted"] == 480


class Grey(nn.Module):
    """The mean of the channels."""

    def forward(self, x):
        return x.mean(1, keepdim=True)


def test_a_folder_is_replaced_only_if_asked(cli, here):
    words = ("detect", "--data", "known.npz", "--method", "marginal", "--out", "found", "--quiet")
    assert cli("detect", "--data", "images.npz", *words[3:]).code == 0
    again = cli(*words)
    assert again.code == 2
    assert "already holds a detector; replace it with --force" in again.err
    assert cli(*words, "--force").code == 0
    assert [file.name for file in (here / "found" / "figures").iterdir()] == ["scores.png"]
    (here / "other").mkdir()
    (here / "other" / "mine.txt").write_text("mine")
    assert cli(*words[:-2], "other", "--force").code == 2
    assert (here / "other" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "none.npz"), "none.npz"),
        (("--data", "known.npz", "--method", "magic"), "method is 'magic'; give"),
        (("--data", "known.npz", "--rate", "2"), "reject rate is 2.0; give a number"),
        (("--data", "known.npz", "--hold-out", "1"), "hold_out is 1.0; give the share"),
        (("--data", "known.npz", "--hold-out", "0"), "a larger hold_out or a higher rate"),
        (("--data", "known.npz", "--layer", "a"), "belong to a MODEL; name one first"),
        (("detect_nets:net", "--data", "known.npz", "--layer", "a"), "no layer 'a'"),
        (("mobilenet-v2", "--data", "known.npz"), "pretrained networks take images; give [H, W]"),
        (("mobilenet-v2", "--data", "images.npz", "--trust"), "weights of its own; leave"),
        (("--data", "known.npz", "--unknown", "images.npz"), "columns"),
        (
            ("detect_nets:net", "--data", "known.npz", "--unknown", "images.npz", "--quiet"),
            "shape [1, 8, 8], but the model takes [6]; give samples of that shape (--image-size",
        ),
        (("--data", "known.npz", "--method", "combined"), "missing 1 required"),
        (("--data", "known.npz", "--seed", "-1"), "seed is -1"),
        (
            ("--data", "known.npz", "--seed", str(2**64)),
            f"give a whole number of at most {2**63 - 1}",
        ),
        (("--data", "far.npz", "--method", "energy"), "needs logits or labels"),
        (("--data", "known.npz", "--limit", "20"), "cannot be set from"),
    ],
)
def test_refusals(cli, here, words, message):
    outcome = cli("detect", *words, "--out", "found")
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") <= 2
    assert not (here / "found").exists()


def test_a_network_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)).train()
    from mahalens.detection import Mahalanobis

    Mahalanobis().fit(model, (torch.randn(80, 4), torch.arange(80) % 2))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
