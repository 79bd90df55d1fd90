"""Architectures are data: reading and writing them must not load torch."""

import json
import subprocess
import sys

import pytest

import mahalens.nn


def modules_after(code):
    """The modules loaded once ``code`` has run in an interpreter of its own."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_architectures_need_no_torch():
    loaded = modules_after(
        "import mahalens.nn.chain, mahalens.nn.architectures\n"
        "from mahalens.nn import Chain, Layer, md_abs, md_relu, md_sigmoid\n"
        "assert str(md_relu(3)) == 'Linear(6), ReLU, Norm'\n"
        "assert Chain.parse(str(md_abs(2)), inputs=2) == md_abs(2)\n"
        "assert Chain.parse('OffsetL2(4, variant=published-code), GELU', inputs=2).outputs == 4\n"
        "assert str(Chain.parse('PointSlope( 4 )', inputs=2)) == 'PointSlope(4)'"
    )
    assert "mahalens.nn.architectures" in loaded
    assert not {"torch", "numpy", "scipy"} & loaded


class TestLazyNames:
    def test_every_public_name_is_there(self):
        for name in mahalens.nn.__all__:
            assert getattr(mahalens.nn, name).__name__ == name

    def test_they_are_listed(self):
        assert set(mahalens.nn.__all__) <= set(dir(mahalens.nn))

    def test_other_names_are_not(self):
        with pytest.raises(AttributeError, match=r"'mahalens\.nn' has no attribute 'Softmax'"):
            _ = mahalens.nn.Softmax
        with pytest.raises(ImportError):
            from mahalens.nn import Softmax  # noqa: F401
