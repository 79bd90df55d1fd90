"""``mahalens audit`` and ``mahalens diff``: what is written, what is printed, what is refused."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import save_file
from torch import nn

import mahalens.auditing.api
import mahalens.report.audit.folder
from mahalens.auditing.load import quiet
from mahalens.auditing.record import load_audit
from mahalens.data import load_set

NETS = """
import torch
from torch import nn

def conv():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )

class eager(nn.Linear):
    def __init__(self):
        super().__init__(64, 3)

    def forward(self, x):
        if len(x) > 9:
            torch.empty(1 << 60)
        return super().forward(x)

def hollow():
    layer = nn.Linear(64, 3)
    layer.weight, layer.bias = nn.Parameter(torch.zeros(0, 64)), nn.Parameter(torch.zeros(0))
    return layer  # as nn.Linear(64, 0), which warns
"""
FILES = {"audit.json", "audit.safetensors", "layers.csv", "units.csv", "classes.csv", "report.html"}


def mlp():
    """A network with one dead unit, one duplicate and one mirrored pair in its first layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    with torch.no_grad():  # hyperplanes through the mean, so that no other unit is dead
        model[0].bias[:] = -model[0].weight @ load_set("digits").scaled().test_x.mean(0)
        model[0].bias[2] = -1000
        model[0].weight[5], model[0].bias[5] = model[0].weight[1], model[0].bias[1]
        model[0].weight[6], model[0].bias[6] = -model[0].weight[0], -model[0].bias[0]
    return model.eval()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with networks in every form and with data."""
    folder = tmp_path_factory.mktemp("models")
    x = load_set("digits").scaled().test_x
    dynamic = ({0: torch.export.Dim("batch")},)
    torch.manual_seed(0)
    with quiet():
        program = torch.export.export(mlp(), (x[:4],), dynamic_shapes=dynamic)
        torch.export.save(program, folder / "mlp.pt2")
        torch.export.save(torch.export.export(mlp(), (x[:50],)), folder / "fifty.pt2")
        wide = torch.export.export(nn.Linear(9, 2), (torch.rand(3, 9),), dynamic_shapes=dynamic)
        torch.export.save(wide, folder / "wide.pt2")
        space = {}
        exec(NETS, space)
        conv = space["conv"]().eval()
        torch.jit.script(conv).save(str(folder / "conv.pt"))
    (folder / "my_cli_nets.py").write_text(NETS)
    save_file(conv.state_dict(), folder / "conv.safetensors")
    unreal = {**conv.state_dict(), "4.bias": torch.zeros(10, dtype=torch.complex64)}
    save_file(unreal, folder / "complex.safetensors")
    os.mkfifo(folder / "pipe")
    np.savez(folder / "plain.npz", x=x[:60])
    np.savez(folder / "two.npz", x=x[:60], y=np.arange(60) % 2)
    return folder


@pytest.fixture
def here(place, monkeypatch):
    """Work in that folder, as a user would."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield place
    sys.modules.pop("my_cli_nets", None)


@pytest.fixture
def no_page(monkeypatch):
    """Drawing takes seconds; most tests are about what comes before."""

    def write(record, folder):
        (folder / "report.html").write_text("a page")
        return folder / "report.html"

    monkeypatch.setattr(mahalens.report.audit.folder, "write_audit_report", write)


class TestWhole:
    def test_a_program(self, cli, here, tmp_path):
        out = tmp_path / "out"
        words = ("mlp.pt2", "--trust", "--data", "digits", "--limit", 100, "--perturb")
        outcome = cli("audit", *words, "--out", out)
        assert outcome.code == 0, outcome.err
        names = {path.name for path in out.iterdir()}
        assert names == FILES | {"pairs.csv", "perturbation.csv"}
        content = json.loads((out / "audit.json").read_text())
        first, second = content["layers"]
        assert (first["name"], first["kind"], first["units"]) == ("0", "Linear", 8)
        assert (first["activation"], first["dead"]) == ("relu", [2])
        assert first["rare"].keys() == {"0.05", "0.01"}
        assert (first["mirrored_pairs"], first["duplicate_pairs"]) == ([[0, 6]], [[1, 5]])
        assert second["activation"] == "none"
        assert content["verdict"] in outcome.out
        assert outcome.out.endswith(f"report: {out}/report.html\n")
        for text in (
            "data: scikit-learn's digits, test samples, pixels from 0 to 1, 100 of",
            "reading: 100 of 100",
            "perturbing: ",
        ):
            assert text in outcome.err
        record = load_audit(out / "audit.safetensors")
        assert (record.model, record.data.image) == ("mlp", (8, 8))
        assert all(layer.perturbation is not None for layer in record.layers)
        page = (out / "report.html").read_bytes()
        (out / "report.html").unlink()
        assert cli("report", out).out == f"{out}/report.html\n"
        assert (out / "report.html").read_bytes() == page
        assert not (out / "figures").exists()
        assert cli("report", out, "--figures").code == 0
        figures = sorted(path.name for path in (out / "figures").iterdir())
        assert figures == ["layer-001-0.png", "layer-002-2.png", "overview.png"]

    @pytest.mark.slow
    def test_in_a_process_of_its_own(self, process, here, tmp_path):
        """Where warnings are errors, and nothing is imported yet."""
        words = ["audit", "my_cli_nets:conv", "--weights", "conv.safetensors", "--data", "digits"]
        outcome = process(*words, "--limit", 60, "--out", tmp_path / "o", cwd=here)
        assert outcome.code == 0, outcome.err
        assert "in the shape [1, 8, 8]" in outcome.err
        assert "Conv2d" in outcome.out


@pytest.mark.usefixtures("no_page")
class TestOptions:
    def audited(self, cli, out, words):
        outcome = cli("audit", *words.split(), "--out", out)
        assert outcome.code == 0, outcome.err
        return load_audit(out / "audit.safetensors"), outcome

    def test_two_forms_of_one_network(self, cli, here, tmp_path):
        weights = "my_cli_nets:conv --weights conv.safetensors --data digits --limit 50"
        factory, _ = self.audited(cli, tmp_path / "a", weights)
        words = "conv.pt --trust --data digits --limit 50"
        script, outcome = self.audited(cli, tmp_path / "b", words)
        assert "converted from TorchScript by torch" in script.notes
        assert "converted from TorchScript by torch" in outcome.err
        assert factory.data.shape == script.data.shape == (1, 8, 8)
        for one, other in zip(factory.layers, script.layers, strict=True):
            assert (one.name, one.kind) == (other.name, other.kind)
            assert (one.folded is None) == (other.folded is None)
            assert torch.allclose(one.units.mean, other.units.mean, atol=1e-5)
        assert str(factory.diff(script)).startswith("nothing changed")

    @pytest.mark.usefixtures("no_page")
    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ("dead", "--fail-on dead: 1 of 18 units are dead"),
            ("dead:0.05", "--fail-on dead: 1 of 18 units are dead, a share of more than 0.05"),
            ("dead:0.06,saturated", ""),
            ("rare:0.9", ""),
            ("saturated,mirrored", "--fail-on mirrored: 1 of 18 units are mirrored"),
            ("duplicate:0,dead", "--fail-on duplicate: 1 of 18 units are duplicates"),
        ],
    )
    def test_faults_that_fail_it(self, cli, here, tmp_path, limits, message):
        words = ("--trust", "--out", tmp_path / "a", "--fail-on", limits)
        outcome = cli("audit", "mlp.pt2", "--data", "digits", *words)
        assert outcome.code == bool(message)
        assert (tmp_path / "a" / "audit.json").is_file()
        assert outcome.err.rpartition("mahalens: ")[2] == (
            f"{message}\n" if message else outcome.err
        )

    def test_a_fixed_batch_size(self, cli, here, tmp_path):
        record, outcome = self.audited(cli, tmp_path / "o", "fifty.pt2 --trust --data digits")
        assert record.data.samples == 350
        for note in (
            "the program takes batches of exactly 50",
            "the last 10 samples fill no batch and are left out",
        ):
            assert note in record.notes
            assert note in outcome.err

    def test_settings(self, cli, here, tmp_path):
        words = (
            "mlp.pt2 --trust --data digits --split train --limit 70 --rare 0.3,0.1 --seed 4 "
            "--nodes 0,3 --layers 0 --pixels raw --batch-size 32 --quiet"
        )
        record, outcome = self.audited(cli, tmp_path / "o", words)
        assert (record.settings.rare, record.settings.seed) == ((0.3, 0.1), 4)
        assert [layer.name for layer in record.layers] == ["0"]
        assert record.layers[0].histograms.units == (0, 3)
        assert record.layers[0].perturbation is None
        assert "train samples, raw pixels, 70 of 1437" in record.data.source
        assert (outcome.out, outcome.err) == (f"report: {tmp_path}/o/report.html\n", "")

    @pytest.mark.parametrize(
        ("words", "labels", "classes"),
        [
            ("--data plain.npz", "none", 0),
            ("--data plain.npz --clusters 3", "clusters", 3),
            ("--data two.npz --no-labels", "none", 0),
            ("--data digits --limit 50 --clusters 3", "given", 10),
        ],
    )
    def test_labels(self, cli, here, tmp_path, words, labels, classes):
        record, _ = self.audited(cli, tmp_path / "o", f"mlp.pt2 --trust {words}")
        assert (record.data.labels, len(record.data.classes)) == (labels, classes)
        assert (record.accuracy is None) == (labels != "given")
        unused = "the data has labels, so no clusters were looked for" in record.notes
        assert unused == (labels == "given")

    @pytest.mark.parametrize(
        "kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16]
    )
    def test_small_floats_as_weights(self, cli, here, tmp_path, monkeypatch, kind):
        """They become the numbers of the network's type that they stand for."""
        path, model = tmp_path / "small.safetensors", mlp()
        state = {name: value.to(kind) for name, value in model.state_dict().items()}
        save_file(state, path)
        monkeypatch.setattr(torch.nn, "my_small", lambda: model, raising=False)
        words = f"torch.nn:my_small --weights {path} --data digits --limit 40"
        self.audited(cli, tmp_path / "o", words)
        assert all(value.equal(state[n].float()) for n, value in model.state_dict().items())


@pytest.mark.usefixtures("no_page")
class TestFolders:
    WORDS = ("audit", "mlp.pt2", "--trust", "--data", "plain.npz", "--quiet", "--out")

    def test_an_audit_is_kept(self, cli, fails, here, tmp_path):
        out = tmp_path / "deep" / "out"
        assert cli(*self.WORDS, out).code == 0
        assert f"{out}: already holds an audit; replace it with" in fails(*self.WORDS, out)

    def test_force_replaces_an_audit_and_nothing_else(self, cli, here, tmp_path, picture):
        out = tmp_path / "out"
        assert (
            cli(*self.WORDS[:3], "--data", "two.npz", "--perturb", "--quiet", "--out", out).code
            == 0
        )
        old = [out / "perturbation.csv", out / "figures" / "layer-001-0.png"]
        mine = [out / "mine.txt", out / "figures" / "mine.png"]
        (out / "figures").mkdir()
        for path in (*old[1:], *mine):
            path.write_text("mine")
        assert old[0].exists()
        assert cli(*self.WORDS, out, "--force").code == 0
        assert not any(path.exists() for path in old)
        assert [path.read_text() for path in mine] == ["mine", "mine"]
        assert not any(name.startswith(".") for name in picture(out))

    @pytest.mark.parametrize("force", [(), ("--force",)])
    def test_other_files_are_left_alone(self, fails, here, tmp_path, force):
        (tmp_path / "mine.txt").write_text("mine")
        for out, text in (
            (tmp_path, "already holds other files (mine.txt)"),
            (tmp_path / "mine.txt", "is a file; give --out a folder"),
            (tmp_path / "mine.txt" / "below", "lies below a file"),
        ):
            assert text in fails(*self.WORDS, out, *force)

    def test_a_locked_folder(self, cli, here, tmp_path):
        with FileLock(tmp_path / ".lock"):
            outcome = cli(*self.WORDS, tmp_path)
        assert "another process is working in it" in outcome.err

    def test_an_interruption_leaves_nothing(self, cli, here, tmp_path, monkeypatch):
        def stop(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(mahalens.auditing.api, "audit", stop)
        outcome = cli(*self.WORDS, tmp_path / "out")
        assert (outcome.code, outcome.err.strip()) == (130, "mahalens: stopped")
        assert not (tmp_path / "out").exists()


class TestRefused:
    """Options after the model; ``--data digits`` is given where the words name no data."""

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            ("no.pt2", "no.pt2: there is no such file; wanted package.module:"),
            ("my_cli_nets:dense", "there is no 'dense' in"),
            ("my_cli_nets.py", "is Python code; give my_cli_nets:NAME"),
            ("mlp.pt2 --data no.npz", "no.npz: there is no such set, file or folder"),
            ("wide.pt2", "wide.pt2: the model fails on the data ([64] or [1"),
            ("mlp.pt2 --shape 8,8", "the program takes [any, 64]"),
            ("mlp.pt2 --shape 9", "cannot take the shape [9]"),
            ("mlp.pt2 --shape a", "not a list of whole numbers"),
            ("fifty.pt2 --limit 9", "batches of exactly 50 and there"),
            ("mlp.pt2 --limit 0", "limit is 0"),
            ("mlp.pt2 --batch-size 0", "--batch-size is 0"),
            ("mlp.pt2 --rare 5", "not a list of shares between 0 and 1"),
            ("mlp.pt2 --rare x", "not a list of shares between 0 and 1"),
            ("mlp.pt2 --split valid", "'valid' is not one of"),
            ("mlp.pt2 --image-size 3", "--image-size is [3]"),
            ("mlp.pt2 --seed -1 --limit 5", "seed of -1"),
            ("mlp.pt2 --data plain.npz --perturb", "needs labels"),
            ("mlp.pt2 --layers=", "--layers is empty: give some"),
            ("mlp.pt2 --layers ,,,", "--layers is empty: give some"),
            ("mlp.pt2 --nodes ,", "--nodes is empty"),
            ("mlp.pt2 --shape=", "--shape is empty"),
            ("mlp.pt2 --rare=", "not a list of shares"),
            ("mlp.pt2 --fail-on wide", "is not a list such as dead,duplicate:0.05; it takes dead,"),
            ("mlp.pt2 --fail-on dead:", "each with a share from 0 to 1"),
            ("mlp.pt2 --fail-on dead:1.5", "each with a share from 0 to 1"),
            ("mlp.pt2 --no-perturb", "No such option"),
            ("my_cli_nets:eager", "you tried to allocate"),
            ("my_cli_nets:hollow", "(convolution) has no units"),
            ("my_cli_nets:conv --weights complex.safetensors", "4.bias holds complex numbers and"),
            ("my_cli_nets:conv --weights pipe", "pipe: is no file"),
        ],
    )
    def test_one_line(self, fails, here, words, text):
        self.refused(fails, f"{words} --trust", text)

    @pytest.mark.parametrize(
        ("name", "kind"), [("mlp.pt2", "torch.export program"), ("conv.pt", "TorchScript file")]
    )
    def test_programs_without_trust(self, fails, here, name, kind):
        self.refused(fails, name, f"{name}: is a {kind}, a program that can run any code")

    @pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory\nC++")])
    def test_the_end_of_the_memory(self, fails, here, monkeypatch, error):
        def fail(*args, **options):
            raise error

        monkeypatch.setattr(mahalens.auditing.api, "audit", fail)
        self.refused(fails, "mlp.pt2 --trust", "mlp.pt2: there is not enough memory (")

    def refused(self, fails, words, text):
        data = [] if "--data" in words else ["--data", "digits"]
        assert text in fails("audit", *data, "--out", "out", "--quiet", *words.split())
        assert not Path("out").exists()


@pytest.mark.usefixtures("no_page")
class TestDiff:
    def test_two_audits(self, cli, here, tmp_path):
        words = ("audit", "mlp.pt2", "--trust", "--data", "two.npz", "--quiet", "--out")
        assert cli(*words, tmp_path / "a").code == 0
        assert cli(*words, tmp_path / "b", "--layers", "0").code == 0
        a, b = tmp_path / "a", tmp_path / "b"
        assert cli("diff", a / "audit.safetensors", a).out == "nothing changed\n"
        assert "gone: 2" in cli("diff", a, b).out

    def test_bad_input(self, fails, tmp_path):
        (tmp_path / "x.txt").write_text("x")
        for path, text in (
            (tmp_path / "no", "there is no such folder; give the folder of an audit"),
            (tmp_path / "x.txt", "not a folder"),
            (tmp_path, "holds no audit; make one with 'mahalens audit MODEL"),
            (tmp_path / "no.safetensors", "no.safetensors"),
        ):
            assert text in fails("diff", path, path)


def test_help_names_every_option(cli):
    text = cli("audit", "--help").out
    options = ["--trust", "--weights", "--shape", "--pixels", "--perturb", "--clusters", "--rare"]
    assert all(option in text for option in options)


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "guides" / "audit.md").read_text()
    monkeypatch.setattr("webbrowser.open", lambda address: None)
    examples = re.findall(r"```python\n(.*?)```", page, re.S)
    code = "\n".join(text for text in examples if "SummaryWriter" not in text)  # needs loggers
    with quiet():
        exec(compile(code, "auditing.md", "exec"), {})
    assert "layer" in capsys.readouterr().out
    assert (tmp_path / "model.pt2").exists()
    assert load_audit(tmp_path / "audit.safetensors").data.samples == 360
