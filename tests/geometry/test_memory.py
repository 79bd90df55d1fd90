"""Distances take memory for N x K, not for N x K x D; what does not fit is said beforehand."""

import os
import subprocess
import sys

import pytest
import torch
from ellipsoid_kinds import make, some_covariances, some_means

from mahalens.errors import InputError
from mahalens.geometry import memory
from mahalens.geometry.ellipsoids import SphericalEllipsoids, from_covariance, from_data

GROWTH = """
import os, sys, torch
from mahalens.geometry import FullEllipsoids, LowRankEllipsoids, DiagonalEllipsoids

def peak():
    with open("/proc/self/status") as lines:
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

def make(kind, count, dim, rank):
    g = torch.Generator().manual_seed(0)
    means = torch.randn(count, dim, generator=g)
    if kind == "far":  # one mean far away casts doubt on all the others
        means[0] += 1e4 * count
    axes = torch.linalg.qr(torch.randn(dim, rank, generator=g))[0].T.expand(count, rank, dim)
    if kind in ("diagonal", "l1"):
        return DiagonalEllipsoids(means, torch.ones(count, dim))
    remainder = torch.ones(count) if kind == "remainder" else None
    return LowRankEllipsoids(means, axes.contiguous(), 2 * torch.ones(count, rank), remainder)

def measure(kind, size):
    ellipsoids = make(kind, size, 64, 32)
    ellipsoids.means.requires_grad_()
    x = torch.randn(size, 64).requires_grad_()
    norm = "l1" if kind == "l1" else "l2"
    ellipsoids.distances(x[:8], norm=norm).sum().backward()
    start = peak()
    found = ellipsoids.distances(x, norm=norm)
    forward = peak()
    found.sum().backward()
    print(forward - start, peak() - start, flush=True)

for case in sys.argv[1:]:
    kind, size = case.split(":")
    if child := os.fork():  # a peak of its own for each
        assert os.waitpid(child, 0)[1] == 0
    else:
        measure(kind, int(size))
        os._exit(0)
"""


def growth(**cases):
    """By how many bytes the peak grows, forward and with the way back, for each kind."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *(f"{kind}:{size}" for kind, size in cases.items())],
        capture_output=True,
        text=True,
        check=True,
        # Large blocks go back to the system at once: what is held is measured, not what is torn.
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    lines = done.stdout.splitlines()
    return {kind: [*map(int, line.split())] for kind, line in zip(cases, lines, strict=True)}


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak from Linux")
class TestGrowth:
    def test_is_far_below_one_number_for_every_product(self):
        sizes = {"lowrank": 2000, "remainder": 1200, "diagonal": 1200, "l1": 300}
        for kind, grown in growth(**sizes).items():
            products = sizes[kind] ** 2 * (64 if kind == "l1" else 32) * 4
            assert max(grown) < products / 2, kind

    def test_of_doubtful_pairs_is_no_larger(self):
        assert max(growth(far=500)["far"]) < 500 * 500 * 64 * 4 / 2


class TestAsking:
    @pytest.fixture
    def little(self, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 10**9)

    def test_small_wishes_are_granted_unseen(self, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 0)
        memory.require_memory(memory.UNASKED - 1, "this", "less of it")
        with pytest.raises(InputError, match=r"this: would take 0\.27 GB .* 0 GB are free; less"):
            memory.require_memory(memory.UNASKED, "this", "less of it")

    def test_a_system_that_does_not_tell_is_trusted(self, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: None)
        memory.require_memory(10**18, "this", "less of it")

    @pytest.mark.usefixtures("little")
    def test_what_fits_exactly_fits(self):
        memory.require_memory(10**9, "this", "less of it")
        with pytest.raises(InputError):
            memory.require_memory(10**9 + 1, "this", "less of it")

    @pytest.mark.usefixtures("little")
    def test_full_ellipsoids_that_do_not_fit(self):
        class Many:
            def __len__(self):
                return 400

            def __getitem__(self, k):
                raise AssertionError("asked for before the memory was")

        means = torch.zeros(400, 1000)
        message = (
            r"^400 full ellipsoids in 1000 dimensions: would take 2\.8 GB of memory and 1 GB are "
            r'free; take kind="low-rank\+remainder" with a rank, or fewer ellipsoids$'
        )
        with pytest.raises(InputError, match=message):
            from_covariance(means, Many())
        x = torch.zeros(800, 1000) + torch.arange(800)[:, None]
        with pytest.raises(InputError, match=r"400 full ellipsoids in 1000 dim.*low-rank"):
            from_data(x, torch.arange(800) // 2)

    @pytest.mark.usefixtures("little")
    def test_distances_that_do_not_fit(self):
        ellipsoids = SphericalEllipsoids(torch.zeros(20_000, 1), torch.ones(20_000))
        x = torch.zeros(10_000, 1)
        message = (
            r"^distances of 10000 points to 20000 ellipsoids: would take 2\.4 GB .* 1 GB are free; "
            r"measure fewer points at a time, or ask for nearest\(x, k\)$"
        )
        with pytest.raises(InputError, match=message):
            ellipsoids.distances(x)
        with pytest.raises(InputError, match=r"would take 4\.8 GB"):
            ellipsoids.to(torch.float64).distances(x.double())

    def test_what_fits_is_made(self):
        made = from_covariance(some_means(2, 3), some_covariances(2, 3))
        assert len(made.nearest(torch.zeros(3, 3).double()).indices) == 3
        assert make("full").dim == 5


class TestAvailableMemory:
    def test_is_a_number_of_bytes(self):
        found = memory.available_memory()
        assert found is None or 2**20 < found < 2**50

    def test_the_limit_of_a_container_counts(self, monkeypatch, tmp_path):
        before = memory.available_memory()
        monkeypatch.setattr(memory, "_GROUP", tmp_path)
        for name, text in [
            ("max", "5000000"),
            ("current", "3000000"),
            ("stat", "anon 7\ninactive_file 1000000\n"),
        ]:
            (tmp_path / f"memory.{name}").write_text(text)
        assert memory.available_memory() == 3_000_000
        (tmp_path / "memory.current").write_text("9000000")
        assert memory.available_memory() == 0
        (tmp_path / "memory.max").write_text("max")
        assert before is None or memory.available_memory() > 2**20

    def test_an_unreadable_container_is_passed_over(self, monkeypatch, tmp_path):
        monkeypatch.setattr(memory, "_GROUP", tmp_path / "none")
        assert memory.available_memory() is None or memory.available_memory() > 2**20

    def test_sizes_are_for_people(self):
        sizes = [270_000_000, 2_500_000_000, 40_000_000_000, 12_345_000_000_000]
        assert [memory.in_gigabytes(s) for s in sizes] == [
            "0.27 GB",
            "2.5 GB",
            "40 GB",
            "12,345 GB",
        ]
