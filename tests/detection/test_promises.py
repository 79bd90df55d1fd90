"""Promises of detectors: the stated rate, files that run anywhere, memory for any number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from mahalens.detection import METHODS, Mahalanobis

PLAIN = [("mahalanobis", {"normalise": "unit"}), ("relative", {"normalise": "unit"})]
EXPORTED = {name: {} for name in METHODS if name != "layered"} | {"combined": {"parts": PLAIN}}


def digits():
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)


@pytest.mark.slow
@pytest.mark.parametrize("calibrated", [50, 100, 400])
@pytest.mark.parametrize("balanced", [True, False], ids=["balanced", "unbalanced"])
def test_the_stated_rate_is_kept_on_real_samples(calibrated, balanced):
    """200 resamples of who is fitted to, who calibrates and who is tested."""
    x, y = digits()
    rng = np.random.default_rng(0)
    if not balanced:  # class k is left with a share of 1 / (k + 1)
        some = torch.tensor(rng.random(len(y))) < 1 / (1 + y)
        x, y = x[some], y[some]
    count = len(x) * 2 // 3
    rates = []
    for seed in range(200):
        order = torch.tensor(rng.permutation(len(x)))
        fit, new = order[:count], order[count:]
        detector = Mahalanobis(normalise="unit").fit_features(
            x[fit], y[fit], hold_out=min(0.7, calibrated / count), seed=seed
        )
        rates.append(float(detector.reject_features(x[new]).float().mean()))
    assert np.mean(rates) == pytest.approx(0.05, abs=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's exporter
@pytest.mark.parametrize("method", EXPORTED)
def test_onnx_runs_a_detector_with_any_batch(method, tmp_path):
    import onnxruntime

    x, y = digits()
    detector = METHODS[method](**EXPORTED[method]).fit_features(x[:1200], y[:1200])
    scorer = detector.scorer().eval()
    path = tmp_path / "detector.onnx"
    rows = {"z": {0: torch.export.Dim("rows")}}
    torch.onnx.export(scorer, (x[:4],), path, dynamo=True, dynamic_shapes=rows)
    session = onnxruntime.InferenceSession(path)
    for count in (1, 7, 300):
        batch = x[1200 : 1200 + count]
        score, p, reject = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        expected = detector.score_features(batch).numpy()
        np.testing.assert_allclose(score, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
        np.testing.assert_allclose(p, detector.p_value_features(batch).numpy(), atol=0.02)
        assert (reject == detector.reject_features(batch).numpy()).mean() > 0.98


STREAMED = """
import sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from mahalens import detect

class Batches(IterableDataset):
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        draw = torch.Generator().manual_seed(0)
        y = torch.arange(1000) % 5
        for _ in range(self.count):
            yield torch.randn(1000, 256, generator=draw) + 3 * torch.eye(256)[y], y

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

method = sys.argv[1]
for count in (3, 160, 480):
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    detect(nn.Identity(), DataLoader(Batches(count), batch_size=None), method)
    print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak")
@pytest.mark.parametrize("method", ["marginal", "auto"])
def test_memory_does_not_grow_with_samples(method):
    """320,000 more samples of 256 features would be 328 MB; at most 50,000 are remembered."""
    command = [sys.executable, "-c", STREAMED, method]
    # Large blocks go back to the system at once; otherwise the peak differs by one from run to run.
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    _, few, many = map(float, done.stdout.split())
    assert many < few + 60
    assert many < 400
