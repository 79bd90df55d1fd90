"""Type checkers see the public functions with their real signatures."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import mahalens

USE = """
import torch
from torch import nn

import mahalens

record: mahalens.AuditRecord = mahalens.audit(nn.Linear(2, 2), torch.zeros(3, 2), batch_size=2)
mahalens.audit(nn.Linear(2, 2))  # data is missing
"""


def test_audit_is_an_ordinary_function() -> None:
    importlib.import_module("mahalens.auditing.record")  # must not replace the function

    assert inspect.isfunction(mahalens.audit)
    assert list(inspect.signature(mahalens.audit).parameters)[:2] == ["model", "data"]


@pytest.mark.slow
def test_a_type_checker_knows_its_arguments(tmp_path: Path) -> None:
    use = tmp_path / "use.py"
    use.write_text(USE)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(use)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    errors = [line for line in result.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, result.stdout + result.stderr
    assert 'Missing positional argument "data"' in errors[0]
