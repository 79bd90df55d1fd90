"""``mahalens audit`` and ``mahalens diff``: what is written, what is printed, what is refused."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import mahalens.report.audit.page
from mahalens.auditing.model_files.loaded import quiet
from mahalens.auditing.records.files import load_audit
from mahalens.data import load_set

NETS = """
import torch
from torch import nn

def conv():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )

def huge():
    return nn.Linear(1 << 30, 1 << 30)

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
    np.savez(folder / "nan.npz", x=np.full((3, 64), np.nan), y=[0, 1, 2])
    np.savez(folder / "short.npz", x=x[:9], y=[0, 1, 2])
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

    monkeypatch.setattr(mahalens.report.audit.page, "write_audit_report", write)


class TestWhole:
    def test_a_program(self, cli, here, tmp_path):
        out = tmp_path / "out"
        outcome = cli(
            *("audit", "mlp.pt2", "--trust", "--data", "digits", "--limit", 100, "--perturb"),
            *("--out", out),
        )
        assert outcome.code == 0, outcome.err
        names = {path.name for path in out.iterdir()}
        assert names == FILES | {"pairs.csv", "perturbation.csv"}
        said = json.loads((out / "audit.json").read_text())
        first, second = said["layers"]
        assert (first["name"], first["kind"], first["units"]) == ("0", "Linear", 8)
        assert (first["activation"], first["dead"]) == ("relu", [2])
        assert first["rare"].keys() == {"0.05", "0.01"}
        assert first["mirrored_pairs"] == [[0, 6]]
        assert first["duplicate_pairs"] == [[1, 5]]
        assert second["activation"] == "none"
        assert said["verdict"] in outcome.out
        assert outcome.out.endswith(f"report: {out}/report.html\n")
        assert (
            "data: scikit-learn's digits, test samples, pixels from 0 to 1, 100 of" in outcome.err
        )
        assert "reading: 100 of 100" in outcome.err
        record = load_audit(out / "audit.safetensors")
        assert record.model == "mlp"
        assert record.data.image == (8, 8)
        assert all(layer.perturbation is not None for layer in record.layers)
        page = (out / "report.html").read_bytes()
        (out / "report.html").unlink()
        assert cli("report", out).out == f"{out}/report.html\n"
        assert (out / "report.html").read_bytes() == page
        assert not (out / "figures").exists()
        assert cli("report", out, "--figures").code == 0
        assert sorted(path.name for path in (out / "figures").iterdir()) == [
            "layer-001-0.png",
            "layer-002-2.png",
            "overview.png",
        ]

    def test_in_a_process_of_its_own(self, process, here, tmp_path):
        """Where warnings are errors, and nothing is imported yet."""
        words = ["audit", "my_cli_nets:conv", "--weights", "conv.safetensors", "--data", "digits"]
        outcome = process(*words, "--limit", 60, "--out", tmp_path / "o", cwd=here)
        assert outcome.code == 0, outcome.err
        assert "in the shape [1, 8, 8]" in outcome.err
        assert "Conv2d" in outcome.out


@pytest.mark.usefixtures("no_page")
class TestOptions:
    def audited(self, cli, tmp_path, *words):
        out = tmp_path / "out"
        outcome = cli("audit", *words, "--out", out)
        assert outcome.code == 0, outcome.err
        return load_audit(out / "audit.safetensors"), outcome

    def test_three_forms_of_one_network(self, cli, here, tmp_path):
        words = ["--data", "digits", "--limit", 50]
        factory, _ = self.audited(
            cli, tmp_path / "a", "my_cli_nets:conv", "--weights", "conv.safetensors", *words
        )
        script, outcome = self.audited(cli, tmp_path / "b", "conv.pt", "--trust", *words)
        assert "converted from TorchScript by torch" in script.notes
        assert "converted from TorchScript by torch" in outcome.err
        assert factory.data.shape == script.data.shape == (1, 8, 8)
        for one, other in zip(factory.layers, script.layers, strict=True):
            assert (one.name, one.kind, one.folded is None) == (
                other.name,
                other.kind,
                other.folded is None,
            )
            assert torch.allclose(one.units.mean, other.units.mean, atol=1e-5)
        assert str(factory.diff(script)).startswith("nothing changed")

    def test_a_fixed_batch_size(self, cli, here, tmp_path):
        record, outcome = self.audited(cli, tmp_path, "fifty.pt2", "--trust", "--data", "digits")
        assert record.data.samples == 350
        for note in (
            "the program takes batches of exactly 50",
            "the last 10 samples fill no batch and are left out",
        ):
            assert note in record.notes
            assert note in outcome.err

    def test_settings(self, cli, here, tmp_path):
        record, outcome = self.audited(
            cli,
            tmp_path,
            *("mlp.pt2", "--trust", "--data", "digits", "--split", "train", "--limit", 70),
            *("--rare", "0.3,0.1", "--seed", 4, "--nodes", "0,3"),
            *("--layers", "0", "--pixels", "raw", "--batch-size", 32, "--quiet"),
        )
        assert (record.settings.rare, record.settings.seed) == ((0.3, 0.1), 4)
        assert [layer.name for layer in record.layers] == ["0"]
        assert record.layers[0].histograms.units == (0, 3)
        assert record.layers[0].perturbation is None
        assert "train samples, raw pixels, 70 of 1437" in record.data.source
        assert (outcome.out, outcome.err) == (f"report: {tmp_path}/out/report.html\n", "")

    def test_without_labels(self, cli, here, tmp_path):
        words = ("mlp.pt2", "--trust", "--data", "plain.npz")
        record, _ = self.audited(cli, tmp_path / "a", *words)
        assert (record.data.labels, record.accuracy) == ("none", None)
        record, _ = self.audited(cli, tmp_path / "b", *words, "--clusters", 3)
        assert (record.data.labels, len(record.data.classes)) == ("clusters", 3)
        record, _ = self.audited(
            cli, tmp_path / "c", "mlp.pt2", "--trust", "--data", "digits", "--clusters", 3
        )
        assert record.data.labels == "given"
        assert "the data has labels, so no clusters were looked for" in record.notes

    def test_perturbations_are_measured_when_asked_for(self, cli, here, tmp_path):
        words = ("mlp.pt2", "--trust", "--data", "digits", "--limit", 40)
        record, outcome = self.audited(cli, tmp_path / "a", *words)
        assert record.layers[0].perturbation is None
        assert "perturb" not in outcome.err
        record, outcome = self.audited(cli, tmp_path / "b", *words, "--perturb")
        assert record.layers[0].perturbation is not None
        assert "perturbing: " in outcome.err

    @pytest.mark.parametrize(
        "kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16]
    )
    def test_small_floats_as_weights(self, cli, here, tmp_path, monkeypatch, kind):
        """They become the numbers of the network's type that they stand for."""
        path = tmp_path / "small.safetensors"
        state = {name: value.to(kind) for name, value in mlp().state_dict().items()}
        save_file(state, path)
        made = []
        monkeypatch.setattr(
            torch.nn, "my_small", lambda: made.append(mlp()) or made[-1], raising=False
        )
        words = ("torch.nn:my_small", "--weights", path, "--data", "digits", "--limit", 40)
        self.audited(cli, tmp_path, *words)
        for name, value in made[-1].state_dict().items():
            assert value.equal(state[name].float())


@pytest.mark.usefixtures("no_page")
class TestFolders:
    WORDS = ("audit", "mlp.pt2", "--trust", "--data", "plain.npz", "--quiet", "--out")

    def test_an_audit_is_kept(self, cli, here, tmp_path, picture):
        out = tmp_path / "deep" / "out"
        assert cli(*self.WORDS, out).code == 0
        before = picture(out)
        outcome = cli(*self.WORDS, out)
        assert outcome.code == 2
        assert f"{out}: already holds an audit; replace it with --force" in outcome.err
        assert picture(out) == before

    def test_force_replaces_an_audit_and_nothing_else(self, cli, here, tmp_path, picture):
        out = tmp_path / "out"
        words = ("audit", "mlp.pt2", "--trust", "--data", "two.npz", "--perturb", "--quiet")
        words += ("--out", out)
        assert cli(*words).code == 0
        assert (out / "perturbation.csv").exists()
        (out / "mine.txt").write_text("mine")
        (out / "figures").mkdir(exist_ok=True)
        (out / "figures" / "mine.png").write_text("mine")
        (out / "figures" / "layer-001-0.png").write_text("old")
        assert cli(*self.WORDS, out, "--force").code == 0
        assert not (out / "perturbation.csv").exists()
        assert not (out / "figures" / "layer-001-0.png").exists()
        assert (out / "mine.txt").read_text() == "mine"
        assert (out / "figures" / "mine.png").exists()
        left = {name for name in picture(out) if name.startswith(".")}
        assert left == set()

    @pytest.mark.parametrize("force", [(), ("--force",)])
    def test_other_files_are_left_alone(self, cli, here, tmp_path, picture, force):
        (tmp_path / "mine.txt").write_text("mine")
        before = picture(tmp_path)
        outcome = cli(*self.WORDS, tmp_path, *force)
        assert (outcome.code, outcome.out) == (2, "")
        assert "already holds other files (mine.txt)" in outcome.err
        outcome = cli(*self.WORDS, tmp_path / "mine.txt", *force)
        assert "is a file; give --out a folder" in outcome.err
        outcome = cli(*self.WORDS, tmp_path / "mine.txt" / "below", *force)
        assert "lies below a file" in outcome.err
        assert picture(tmp_path) == before

    def test_a_locked_folder(self, cli, here, tmp_path):
        from filelock import FileLock

        out = tmp_path / "out"
        out.mkdir()
        with FileLock(out / ".lock"):
            outcome = cli(*self.WORDS, out)
        assert "another process is working in it" in outcome.err

    def test_an_interruption_leaves_nothing(self, cli, here, tmp_path, monkeypatch):
        import mahalens.auditing.network

        def stop(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(mahalens.auditing.network, "audit", stop)
        outcome = cli(*self.WORDS, tmp_path / "out")
        assert (outcome.code, outcome.err.strip()) == (130, "mahalens: stopped")
        assert not (tmp_path / "out").exists()


class TestRefused:
    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (
                ["no.pt2", "--data", "digits"],
                "no.pt2: there is no such file; wanted package.module:",
            ),
            (["conv.safetensors", "--data", "digits"], "holds weights and no network"),
            (["my_cli_nets:dense", "--data", "digits"], "there is no 'dense' in"),
            (["my_cli_nets.py", "--data", "digits"], "is Python code; give my_cli_nets:NAME"),
            (["mlp.pt2", "--data", "no.npz"], "no.npz: there is no such set, file or folder"),
            (["mlp.pt2", "--data", "nan.npz"], "x has NaN in 3 of 3 samples"),
            (["mlp.pt2", "--data", "short.npz"], "x has 9 samples and y 3 labels"),
            (["wide.pt2", "--data", "digits"], "wide.pt2: the model fails on the data ([64] or [1"),
            (["mlp.pt2", "--data", "digits", "--shape", "8,8"], "the program takes [any, 64]"),
            (["mlp.pt2", "--data", "digits", "--shape", "9"], "cannot take the shape [9]"),
            (["mlp.pt2", "--data", "digits", "--shape", "a"], "no list of whole numbers"),
            (["mlp.pt2", "--data", "digits", "--weights", "w.pt"], "has weights of its own"),
            (["fifty.pt2", "--data", "digits", "--limit", "9"], "batches of exactly 50 and there"),
            (["mlp.pt2", "--data", "digits", "--limit", "0"], "limit is 0"),
            (["mlp.pt2", "--data", "digits", "--batch-size", "0"], "--batch-size is 0"),
            (["mlp.pt2", "--data", "digits", "--rare", "5"], "no list of shares between 0 and 1"),
            (["mlp.pt2", "--data", "digits", "--rare", "x"], "no list of shares between 0 and 1"),
            (["mlp.pt2", "--data", "digits", "--split", "valid"], "'valid' is not one of"),
            (["mlp.pt2", "--data", "digits", "--layers", "9"], "the model uses no layer '9'"),
            (
                ["mlp.pt2", "--data", "digits", "--nodes", "0,99"],
                "the unit 99, but no layer has one",
            ),
            (["mlp.pt2", "--data", "digits", "--image-size", "3"], "--image-size is [3]"),
            (["mlp.pt2", "--data", "digits", "--seed", "-1", "--limit", "5"], "seed of -1"),
            (["mlp.pt2", "--data", "plain.npz", "--perturb"], "needs labels"),
            (["mlp.pt2", "--data", "digits", "--layers", ""], "--layers is empty: give some"),
            (["mlp.pt2", "--data", "digits", "--layers", ",,,"], "--layers is empty: give some"),
            (["mlp.pt2", "--data", "digits", "--nodes", " , "], "--nodes is empty"),
            (["mlp.pt2", "--data", "digits", "--shape", ""], "--shape is empty"),
            (["mlp.pt2", "--data", "digits", "--rare", ""], "no list of shares"),
            (["mlp.pt2", "--data", "digits", "--no-perturb"], "No such option"),
            (["my_cli_nets:huge", "--data", "digits"], "my_cli_nets:huge: failed, RuntimeError"),
            (["my_cli_nets:eager", "--data", "digits"], "you tried to allocate"),
            (["my_cli_nets:hollow", "--data", "digits"], "(convolution) has no units"),
            (
                ["my_cli_nets:conv", "--weights", "complex.safetensors", "--data", "digits"],
                "4.bias holds complex numbers and the network's are real",
            ),
            (["my_cli_nets:conv", "--weights", "conv.pt", "--data", "digits"], "not only weights"),
            (["my_cli_nets:conv", "--weights", "pipe", "--data", "digits"], "pipe: is no file"),
            (["pipe", "--data", "digits"], "pipe: is no file"),
            (["mlp.pt2"], "Missing option '--data'"),
        ],
    )
    def test_one_line(self, cli, here, tmp_path, words, text):
        self.refused(cli, tmp_path, [*words, "--trust"], text)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("mlp.pt2", "mlp.pt2: is a torch.export program, a program that can run any code"),
            ("conv.pt", "conv.pt: is a TorchScript file, a program that can run any code"),
        ],
    )
    def test_programs_without_trust(self, cli, here, tmp_path, name, text):
        self.refused(cli, tmp_path, [name, "--data", "digits"], text)

    @pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory\nC++")])
    def test_the_end_of_the_memory(self, cli, here, tmp_path, monkeypatch, error):
        import mahalens.auditing.network

        def fail(*args, **options):
            raise error

        monkeypatch.setattr(mahalens.auditing.network, "audit", fail)
        words = ["mlp.pt2", "--trust", "--data", "digits"]
        self.refused(cli, tmp_path, words, "mlp.pt2: there is not enough memory (")

    def refused(self, cli, tmp_path, words, text):
        outcome = cli("audit", *words, "--out", tmp_path / "out", "--quiet")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert outcome.err.startswith("mahalens: ")
        assert text in outcome.err
        assert not (tmp_path / "out").exists()

    def test_options_are_judged_before_torch_is_loaded(self, process, tmp_path):
        script = (
            "import sys\nfrom mahalens.cli import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n"
            "    print(end.code, 'torch' in sys.modules)"
        )
        (tmp_path / "mine.txt").write_text("mine")
        words = ["audit", "m.pt2", "--data", "digits", "--out", tmp_path]
        assert process(*words, script=script).out == "2 False\n"


@pytest.mark.usefixtures("no_page")
class TestDiff:
    def test_two_audits(self, cli, here, tmp_path):
        words = ("audit", "mlp.pt2", "--trust", "--data", "two.npz", "--quiet", "--out")
        for name in ("a", "b"):
            assert cli(*words, tmp_path / name).code == 0
        outcome = cli("diff", tmp_path / "a", tmp_path / "b")
        assert (outcome.code, outcome.out) == (0, "nothing changed\n")
        outcome = cli("diff", tmp_path / "a" / "audit.safetensors", tmp_path / "b")
        assert (outcome.code, outcome.out) == (0, "nothing changed\n")
        changed = (*words[:-1], "--layers", "0", "--out", tmp_path / "c")
        assert cli(*changed).code == 0
        assert "gone: 2" in cli("diff", tmp_path / "a", tmp_path / "c").out

    def test_bad_input(self, cli, tmp_path):
        (tmp_path / "x.txt").write_text("x")
        for path, text in (
            (tmp_path / "no", "there is no such folder; give the folder of an audit"),
            (tmp_path / "x.txt", "not a folder"),
            (tmp_path, "holds no audit; make one with 'mahalens audit MODEL"),
            (tmp_path / "no.safetensors", "no.safetensors"),
        ):
            outcome = cli("diff", path, path)
            assert (outcome.code, outcome.err.count("\n")) == (2, 1)
            assert text in outcome.err


def test_help_names_every_option(cli):
    outcome = cli("audit", "--help")
    for option in (
        "--trust",
        "--weights",
        "--shape",
        "--pixels",
        "--perturb",
        "--clusters",
        "--rare",
    ):
        assert option in outcome.out


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "auditing.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    with quiet():
        exec(compile(code, "auditing.md", "exec"), {})
    assert "layer" in capsys.readouterr().out
    assert (tmp_path / "model.pt2").exists()
    assert load_audit(tmp_path / "audit.safetensors").data.samples == 360
