import stat

import numpy as np
import platformdirs
import pytest
import torch
from safetensors.torch import save_file

from mahalens.data import named


@pytest.fixture(params=["npz", "safetensors"])
def write(request, tmp_path):
    """Writes arrays to a file of either kind."""

    def writer(**arrays):
        path = tmp_path / f"mine.{request.param}"
        if request.param == "npz":
            np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
        else:
            save_file({name: torch.from_numpy(np.array(v)) for name, v in arrays.items()}, path)
        return path

    return writer


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without data, proxies, npm, Debian or aeon; its programs are in ``bin``."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.fixture
def program(machine):
    """Writes a program of this machine."""

    def writer(text, name="npm"):
        file = machine / "bin" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return writer
