"""``report``, ``diff`` and ``claims`` of odd folders, and text in them that a terminal obeys."""

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mahalens.report.audit.folder import write_audit

EVIL = "[/b][red]x\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.\u2066exe\x9b31m"
SHOWN = r"[/b][red]x\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.\u2066exe\x9b31m"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
replaced = msgspec.structs.replace


def example_record():
    path = Path(__file__).parent.parent / "audit" / "records.py"
    spec = importlib.util.spec_from_file_location("audit_records_of_folders", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.example_record()


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """The folder of an audit."""
    folder = tmp_path_factory.mktemp("audits") / "audit"
    write_audit(example_record(), folder)
    return folder


def texts_of(folder):
    with safe_open(folder / "audit.safetensors", "pt") as file:
        return file.metadata()


@pytest.fixture
def refused(process, tmp_path):
    """Run a command that must end with one line, soon."""

    def run(*words):
        outcome = process(*words, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, ""), outcome
        assert outcome.err.count("\n") == 1
        assert outcome.err.startswith("mahalens: ")
        assert "Traceback" not in outcome.err
        return outcome.err

    return run


@pytest.mark.slow
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_pipes_and_devices_are_not_read(refused, audited, finished, tmp_path, make):
    shutil.copytree(audited, tmp_path / "audit")
    (tmp_path / "audit" / "audit.safetensors").unlink()
    make(tmp_path / "audit" / "audit.safetensors")
    kind = "pipe" if make is os.mkfifo else "device"
    wanted = f"audit/audit.safetensors: is a {kind}, not a file"
    assert wanted in refused("report", "audit")
    assert wanted in refused("diff", "audit", "audit")
    assert wanted in refused("diff", "audit/audit.safetensors", "audit")
    for name in ("config.json", "summary.json", "trials.csv"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(finished[0], tmp_path / "run")
        (tmp_path / "run" / name).unlink()
        make(tmp_path / "run" / name)
        assert f"run/{name}: is a {kind}, not a file" in refused("report", "run")
        assert f"run/{name}: is a {kind}, not a file" in refused("claims", "run")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("layers",), None, "layers"),
        (("layers", 1, "verdict"), "x", "verdict"),
        (("layers", 1, "units_count"), -1, "in place of"),
        (("layers", 1, "units", "dead"), [99], "dead names a unit that is not among 32"),
        (("data", "image"), [0, 0], "data.image has a side without pixels"),
        (("settings", "quantiles"), ["a"], "settings.quantiles"),
    ],
)
def test_an_edited_audit(fails, audited, tmp_path, path, value, text):
    part = plain = json.loads(texts_of(audited)["mahalens.audit"])
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    texts = {"mahalens.audit": json.dumps(plain)}
    save_file(load_file(audited / "audit.safetensors"), tmp_path / "audit.safetensors", texts)
    for words in (("report", tmp_path), ("diff", tmp_path, tmp_path)):
        line = fails(*words)
        assert "is a damaged audit" in line
        assert text in line


def test_a_class_that_does_not_exist(fails, audited, tmp_path):
    tensors = load_file(audited / "audit.safetensors")
    tensors["layers.1.hyperplanes.nearest"] += 100
    save_file(tensors, tmp_path / "audit.safetensors", texts_of(audited))
    assert "nearest names a class that is not among 10" in fails("report", tmp_path)


def evil_record():
    record = example_record()
    layers = tuple(replaced(layer, name=f"{EVIL}{n}") for n, layer in enumerate(record.layers))
    data = replaced(record.data, classes=tuple(f"{EVIL}{n}" for n in range(10)), source=EVIL)
    return replaced(record, model=EVIL, verdict=EVIL, notes=(EVIL,), layers=layers, data=data)


def test_text_of_an_audit_reaches_neither_the_terminal_nor_the_page(cli, tmp_path, capsys):
    from mahalens.cli.audit import _print

    _print(evil_record())
    table = capsys.readouterr().out
    assert f"{SHOWN}: 120 samples" in table
    assert table.count("[/b][red]x") == 6  # the title, four layers, the verdict
    assert not OBEYED.search(table)
    page = write_audit(evil_record(), tmp_path / "a").read_text()
    assert f"{SHOWN}0" in page
    assert not OBEYED.search(page)
    write_audit(replaced(evil_record(), model="other"), tmp_path / "b")
    told = cli("diff", tmp_path / "a", tmp_path / "b").out
    assert f"called {SHOWN} and other" in told
    assert not OBEYED.search(told)


def test_text_of_a_run_reaches_no_terminal(cli, finished, tmp_path):
    folder = tmp_path / EVIL.replace("/", "")
    shutil.copytree(finished[0], folder)
    summary = json.loads((folder / "summary.json").read_text())
    for claim in summary["claims"]:
        claim["statement"] = claim["source"] = EVIL
    (folder / "summary.json").write_text(json.dumps(summary))
    outcome = cli("claims", folder)
    assert outcome.code == 0
    assert not OBEYED.search(outcome.out)
    assert r"\x1b[2J" in outcome.out


def test_text_of_the_command_line_reaches_no_terminal(fails, tmp_path):
    for words in (("report", f"{tmp_path}/{EVIL}"), (EVIL,), ("report", f"--{EVIL}")):
        line = fails(*words)
        assert r"\x1b[2J" in line
        assert not OBEYED.search(line)
