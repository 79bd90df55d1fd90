"""Distances take memory for N x K, not for N x K x D; what does not fit is refused beforehand."""

import os
import subprocess
import sys

import pytest
import torch
from geometry_cases import refused

from mahalens.errors import InputError
from mahalens.geometry import _checks
from mahalens.geometry._checks import (
    UNASKED,
    available_memory,
    is_out_of_memory,
    refusing_memory,
    require_memory,
)
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
    distances = ellipsoids.distances(x, norm=norm)
    forward = peak()
    distances.sum().backward()
    print(forward - start, peak() - start, flush=True)

for case in sys.argv[1:]:
    kind, size = case.split(":")
    if child := os.fork():  # each has its own peak
        assert os.waitpid(child, 0)[1] == 0
    else:
        measure(kind, int(size))
        os._exit(0)
"""
SIZES = {"lowrank": 2000, "remainder": 1200, "diagonal": 1200, "l1": 300, "far": 500}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak from Linux")
def test_memory_is_far_below_one_number_for_every_product():
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *(f"{kind}:{size}" for kind, size in SIZES.items())],
        capture_output=True,
        text=True,
        check=True,
        # Large blocks go back to the system at once: only what is in use is measured.
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    for (kind, size), line in zip(SIZES.items(), done.stdout.splitlines(), strict=True):
        products = size**2 * (64 if kind in ("l1", "far") else 32) * 4
        assert max(map(int, line.split())) < products / 2, kind


@pytest.fixture
def free(monkeypatch):
    """Set the number of bytes that are free."""
    return lambda size: monkeypatch.setattr(_checks, "available_memory", lambda: size)


class TestRequireMemory:
    def test_compares_with_what_is_free(self, free):
        free(0)
        require_memory(UNASKED - 1, "this", "less of it")  # granted without a look
        message = r"this: would take 0\.27 GB of memory and 0 GB are free; less of it$"
        refused(lambda: require_memory(UNASKED, "this", "less of it"), message)
        free(10**9)
        require_memory(10**9, "this", "less of it")
        refused(lambda: require_memory(10**9 + 1, "this", "less of it"), "and 1 GB are free")
        free(None)
        assert require_memory(10**18, "this", "less of it") is None  # an unknown size is trusted

    def test_full_ellipsoids_that_do_not_fit(self, free):
        class Many:
            def __len__(self):
                return 400

            def __getitem__(self, k):
                raise AssertionError("asked for before the memory was")

        free(10**9)
        message = (
            r"^400 full ellipsoids in 1000 dimensions: would take 2\.8 GB of memory and 1 GB are "
            r'free; take kind="low-rank\+remainder" with a rank, or fewer ellipsoids$'
        )
        refused(lambda: from_covariance(torch.zeros(400, 1000), Many()), message)
        x = torch.zeros(800, 1000) + torch.arange(800)[:, None]
        refused(lambda: from_data(x, torch.arange(800) // 2), message)

    def test_distances_that_do_not_fit(self, free):
        free(10**9)
        ellipsoids = SphericalEllipsoids(torch.zeros(20_000, 1), torch.ones(20_000))
        x = torch.zeros(10_000, 1)
        message = (
            r"^distances of 10000 points to 20000 ellipsoids: would take 2\.4 GB .* 1 GB are free; "
            r"measure fewer points at a time, or ask for nearest\(x, k\)$"
        )
        refused(lambda: ellipsoids.distances(x), message)
        wide = ellipsoids.to(torch.float64)
        refused(lambda: wide.distances(x.double()), r"would take 4\.8 GB")


class TestRefusedAllocations:
    @pytest.mark.parametrize(
        "error",
        [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 4 bytes")],
        ids=repr,
    )
    def test_are_one_line(self, free, error):
        assert is_out_of_memory(error)
        for size, text in ((None, ""), (10**9, "; 1 GB are free")):
            free(size)
            with (
                pytest.raises(
                    InputError, match=f"^x: takes more memory than there is{text}; less$"
                ),
                refusing_memory("x", "less"),
            ):
                raise error

    def test_leave_other_errors_alone(self):
        error = RuntimeError("shapes do not match")
        assert not is_out_of_memory(error)
        with pytest.raises(RuntimeError, match="shapes"), refusing_memory("x", "less"):
            raise error


class TestAvailableMemory:
    def test_is_a_number_of_bytes(self, tmp_path):
        for size in (available_memory(), available_memory(tmp_path / "none")):
            assert size is None or 2**20 < size < 2**50

    @pytest.mark.parametrize(
        ("files", "free"),
        [
            ({"max": 5_000_000, "current": 3_000_000}, 3_000_000),
            ({"max": 5_000_000, "current": 9_000_000}, 0),
            ({"memory/memory.limit_in_bytes": 500, "memory/memory.usage_in_bytes": 200}, 300),
        ],
    )
    def test_the_limit_of_a_container_counts(self, tmp_path, files, free):
        (tmp_path / "memory").mkdir()
        (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 1000000\n")
        for name, size in files.items():
            (tmp_path / (name if "/" in name else f"memory.{name}")).write_text(str(size))
        assert available_memory(tmp_path) == free

    def test_a_container_without_a_limit_has_that_of_the_machine(self, tmp_path):
        (tmp_path / "memory.max").write_text("max")
        size = available_memory(tmp_path)
        assert size is None or size > 2**20

    @pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads it from Linux")
    def test_the_limit_of_the_process_counts(self):
        script = """
import resource
from mahalens.geometry._checks import available_memory
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
print(available_memory() < 2**33)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("True\n", "")
