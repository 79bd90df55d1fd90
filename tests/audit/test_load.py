"""Models from files and factories: what is loaded, and what is refused in one line."""

import io
import json
import os
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mahalens.auditing.load import (
    TRIED,
    LoadedModel,
    load_fitting,
    load_model,
    quiet,
    shapes_to_try,
)
from mahalens.errors import InputError

torch.manual_seed(0)


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def convnet():
    parts = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
    return nn.Sequential(*parts, nn.Linear(4 * 36, 3))


def export(model, example, path, *, dynamic=True):
    shapes = ({0: torch.export.Dim("batch", min=2)},) if dynamic else None
    with quiet():
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=shapes), path)
    return str(path)


def refused(spec, *args, load=load_model, **options):
    """The message for a model that cannot be loaded, even if trusted: one line."""
    with pytest.raises(InputError) as error:
        load(str(spec), *args, trust=True, **options)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 700
    return text


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    model = convnet().eval()
    export(model, torch.randn(4, 1, 8, 8), path)
    return path, model


@pytest.fixture
def factory(monkeypatch):
    """Makes a network known as a factory."""

    def known(make):
        monkeypatch.setattr(torch.nn, "my_network", make, raising=False)
        return "torch.nn:my_network"

    return known


class Attention(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        h = self.layer(self.embed(x))
        with torch.no_grad():
            return torch.einsum("bij,bkj->bik", h, h).mean(1)


class TwoInputs(nn.Module):
    def forward(self, left, right):
        return left + right


class TestPrograms:
    def test_free_batch_size(self, program, monkeypatch, capfd):
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        environment = dict(os.environ)
        path, model = program
        loaded = load_model(str(path), trust=True)
        assert isinstance(loaded, LoadedModel)
        assert (loaded.name, loaded.kind) == ("net", "torch.export program")
        assert (loaded.batch_size, loaded.notes) == (None, ())
        assert (loaded.input_shape, loaded.dtype) == ((None, 1, 8, 8), torch.float32)
        x = torch.randn(7, 1, 8, 8)
        assert torch.equal(loaded.module(x), model(x))
        state, wanted = loaded.module.state_dict(), model.state_dict()
        assert state.keys() == wanted.keys()
        assert all(torch.equal(state[name], wanted[name]) for name in state)
        assert not loaded.module.training
        assert loaded.module.train().training
        assert not loaded.module.eval().training
        assert dict(os.environ) == environment
        assert capfd.readouterr() == ("", "")

    def test_fixed_batch_size(self, tmp_path):
        path = export(mlp().eval(), torch.randn(4, 6), tmp_path / "m.pt2", dynamic=False)
        loaded = load_model(path, trust=True)
        assert (loaded.batch_size, loaded.input_shape) == (4, (4, 6))
        assert loaded.notes == ("the program takes batches of exactly 4",)
        assert loaded.whole_batches(11) == 8
        with pytest.raises(InputError, match="batches of exactly 4 and there are 3 samples"):
            loaded.whole_batches(3)

    def test_exported_in_training_mode(self, tmp_path):
        model, x = convnet().train(), torch.randn(6, 1, 8, 8)
        model(x)  # so that running statistics are not those of the start
        loaded = load_model(export(model, x, tmp_path / "m.pt2"), trust=True)
        assert loaded.notes[0].startswith("the program was exported in training mode")
        before = {k: v.clone() for k, v in model.state_dict().items() if "running" in k}
        assert torch.allclose(loaded.module(x), model.eval()(x), atol=1e-6)
        assert all(torch.equal(loaded.module.state_dict()[k], v) for k, v in before.items())

    def test_attention_without_dropout(self, tmp_path):
        path = export(Attention(), torch.randn(3, 4, 8), tmp_path / "m.pt2")
        module, x = load_model(path, trust=True).module, torch.randn(2, 4, 8)
        wanted = nn.functional.scaled_dot_product_attention(x, x, x)
        assert torch.allclose(module(x), wanted, atol=1e-6)

    @pytest.mark.slow
    def test_transformer_and_einsum(self, tmp_path):
        model = Tokens().eval()
        path = export(model, torch.randint(0, 20, (3, 5)), tmp_path / "m.pt2")
        loaded = load_model(path, trust=True)
        x = torch.randint(0, 20, (4, 5))
        assert torch.allclose(loaded.module(x), model(x), atol=1e-5)

    def test_types_of_numbers(self, tmp_path):
        whole = export(nn.Embedding(20, 8), torch.randint(0, 20, (3, 5)), tmp_path / "e.pt2")
        loaded = load_model(whole, trust=True)
        assert loaded.dtype == torch.int64
        with pytest.raises(InputError, match=r"takes whole numbers .int64. and x is float32"):
            loaded.cast(torch.randn(2, 5))
        half = export(mlp().half().eval(), torch.randn(4, 6).half(), tmp_path / "m.pt2")
        loaded = load_model(half, trust=True)
        assert loaded.dtype == torch.float16
        assert loaded.module(loaded.cast(torch.randn(3, 6))).dtype == torch.float16

    def test_the_layout_of_older_torch(self, program, tmp_path):
        path, model = program
        with zipfile.ZipFile(path) as archive:
            described = archive.read("net/models/model.json")
            samples = archive.read("net/data/sample_inputs/model.pt")

        def saved(content):
            buffer = io.BytesIO()
            torch.save(content, buffer)
            return buffer.getvalue()

        old, version = tmp_path / "old.pt2", json.loads(described)["schema_version"]
        with zipfile.ZipFile(old, "w") as archive:
            archive.writestr("version", f"{version['major']}.{version['minor']}")
            archive.writestr("serialized_exported_program.json", described)
            state = dict(model.state_dict(keep_vars=True))
            archive.writestr("serialized_state_dict.pt", saved(state))
            archive.writestr("serialized_constants.pt", saved({}))
            archive.writestr("serialized_example_inputs.pt", samples)
        x = torch.randn(3, 1, 8, 8)
        assert torch.equal(load_model(str(old), trust=True).module(x), model(x))

    def test_several_inputs(self, tmp_path):
        with quiet():
            made = torch.export.export(TwoInputs(), (torch.randn(3, 2), torch.randn(3, 2)))
            torch.export.save(made, tmp_path / "m.pt2")
        assert "takes 2 inputs (left, right), and an audit feeds one" in refused(tmp_path / "m.pt2")

    @pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
    def test_cut_short(self, program, tmp_path, share):
        content = program[0].read_bytes()
        (tmp_path / "cut.pt2").write_bytes(content[: int(share * len(content))])
        assert "is damaged or cut short" in refused(tmp_path / "cut.pt2")

    @pytest.mark.parametrize("seed", range(15))
    def test_flipped_bytes(self, program, tmp_path, seed):
        """A damaged file loads or is refused in one line; nothing else comes out."""
        content = bytearray(program[0].read_bytes())
        generator = torch.Generator().manual_seed(seed)
        for place in torch.randint(len(content), (40,), generator=generator).tolist():
            content[place] ^= 1 << (place % 8)
        (tmp_path / "flipped.pt2").write_bytes(content)
        message = ""
        try:
            load_model(str(tmp_path / "flipped.pt2"), trust=True)
        except InputError as error:
            message = str(error)
        assert "\n" not in message

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            *((name, None) for name in ("models/model.json", "weights_config.json", "weight_0")),
            *((name, b"") for name in ("models/model.json", "weights_config.json")),
        ],
    )
    def test_parts_that_are_missing_or_empty(self, program, tmp_path, name, content):
        path = tmp_path / "bad.pt2"
        with zipfile.ZipFile(program[0]) as old, zipfile.ZipFile(path, "w") as new:
            for part in old.namelist():
                if not part.endswith(name):
                    new.writestr(part, old.read(part))
                elif content is not None:
                    new.writestr(part, content)
        refused(path)


CODE = """
from torch import nn
import torch
def build():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
made = build()
number = 3
def wrong():
    return 3
def broken():
    raise RuntimeError('no\\nluck')
def with_size(size):
    return nn.Linear(size, 2)
def leaves():
    raise SystemExit(3)
def half():
    return build().half()
def tokens():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
class Picky(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
    def load_state_dict(self, state):
        raise ValueError('no more\\nthan that')
"""


class Touch:
    """A pickle of this makes a file when it is opened."""

    def __reduce__(self):
        return (open, ("ran", "w"))


def save_old(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


def save_nested(key):
    return lambda state, path: torch.save({key: state, "epoch": 3, "optimizer": {"a": {}}}, path)


SAVERS = {
    "safetensors": save_file,
    "pt": torch.save,
    "old": save_old,
    **{key: save_nested(key) for key in ("state_dict", "model", "network")},
}
STATE = mlp().state_dict()
MANY = {f"layer{i}": torch.zeros(1) for i in range(9)}
UNFIT_WEIGHTS = {
    "lacks 0.bias, 2.weight, 2.bias and has 9.w, which the network does not": (
        lambda path: save_file({"0.weight": torch.zeros(5, 6), "9.w": torch.zeros(1)}, path)
    ),
    "the shapes of 2.weight [3, 4] for [3, 5] differ": (
        lambda path: save_file(STATE | {"2.weight": torch.zeros(3, 4)}, path)
    ),
    "has layer0, layer1, layer2 and 6 more, which": lambda path: save_file(STATE | MANY, path),
    "there is no such file": lambda path: None,
    "is empty": lambda path: path.write_bytes(b""),
    "is no file of weights, or damaged": lambda path: path.write_text("weights? no"),
    "holds a Tensor": lambda path: torch.save(torch.zeros(3), path),
    "wanted one state dict, and this checkpoint has a": lambda path: torch.save({"a": 1}, path),
    "has several (left, right); save it alone": (
        lambda path: torch.save({"left": STATE, "right": STATE}, path)
    ),
    "cannot be read": lambda path: path.mkdir(),
    "is damaged or cut short": lambda path: (
        save_file(STATE, path),
        path.write_bytes(path.read_bytes()[:200]),
    ),
    "a pickled io.open, and is not opened: unpickling would run code": (
        lambda path: torch.save({"state_dict": Touch()}, path)
    ),
    "is not opened: unpickling would run code": lambda path: save_old({"a": Touch()}, path),
    "wanted a .safetensors file": lambda path: path.write_bytes(pickle.dumps(Touch())),
}


class TestFactories:
    @pytest.fixture(autouse=True)
    def code(self, tmp_path, monkeypatch):
        """A module of the user's that makes networks."""
        (tmp_path / "my_nets.py").write_text(CODE)
        (tmp_path / "my_bad.py").write_text("import no_such_module_here\n")
        (tmp_path / "my_typo.py").write_text("def f(:\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)
        yield
        for name in ("my_nets", "my_bad", "my_typo"):
            sys.modules.pop(name, None)

    def test_functions_classes_and_modules(self):
        built = load_model("my_nets:build")
        assert (built.kind, built.name, built.batch_size) == ("factory", "my_nets:build", None)
        assert built.notes == ("no --weights: the weights are as my_nets:build makes them",)
        assert not built.module.training
        assert type(load_model("my_nets:Net").module).__name__ == "Net"
        assert isinstance(load_model("my_nets:made").module, nn.Sequential)
        assert load_model("my_nets:half").dtype == torch.float16
        assert load_model("my_nets:tokens").dtype is None

    @pytest.mark.parametrize(
        ("spec", "text"),
        [
            ("my_nets:absent", "there is no 'absent' in "),
            ("my_nets:number", "is a int; wanted a function or a class"),
            ("my_nets:wrong", "made a int; wanted a torch.nn.Module"),
            ("my_nets:broken", "failed, RuntimeError: no (my_nets.py, line 14)"),
            ("my_nets:leaves", "failed, SystemExit: 3"),
            ("my_nets:with_size", "missing 1 required positional argument: 'size'"),
            ("my_absent:build", "there is no module 'my_absent' here; run it in the folder"),
            ("my_nets.deeper:build", "my_nets.deeper"),
            ("my_bad:build", "needs 'no_such_module_here', which is not installed"),
            ("my_typo:build", "importing my_typo failed, SyntaxError"),
        ],
    )
    def test_refused(self, spec, text):
        assert text in refused(spec)

    @pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model."])
    @pytest.mark.parametrize("kind", SAVERS)
    def test_weights(self, tmp_path, prefix, kind):
        model, path = mlp(), tmp_path / "weights"
        SAVERS[kind]({prefix + name: value for name, value in model.state_dict().items()}, path)
        loaded = load_model("my_nets:build", path)
        x = torch.randn(4, 6)
        assert torch.equal(loaded.module(x), model(x))
        assert loaded.notes == ()

    @pytest.mark.parametrize("text", UNFIT_WEIGHTS)
    def test_weights_that_do_not_fit(self, tmp_path, text):
        UNFIT_WEIGHTS[text](tmp_path / "w")
        assert text in refused("my_nets:build", tmp_path / "w")
        assert not Path("ran").exists()

    def test_a_network_that_takes_no_weights(self, tmp_path):
        save_file(nn.Linear(4, 2).state_dict(), tmp_path / "w")
        assert "does not fit the network, no more" in refused("my_nets:Picky", tmp_path / "w")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestScripts:
    X = torch.randn(4, 1, 8, 8)

    @pytest.fixture(params=["script", "trace"])
    def script(self, request, tmp_path):
        model = convnet().eval()
        traced = request.param == "trace"
        made = torch.jit.trace(model, self.X) if traced else torch.jit.script(model)
        made.save(str(tmp_path / "net.pt"))
        return tmp_path / "net.pt", model

    @pytest.mark.slow
    @pytest.mark.filterwarnings("error")
    def test_converted(self, script, capfd):
        path, model = script
        loaded = load_model(str(path), example=self.X, trust=True)
        assert loaded.kind == "TorchScript file"
        assert "converted from TorchScript by torch" in loaded.notes
        assert torch.allclose(loaded.module.eval()(self.X), model(self.X), atol=1e-6)
        names = {name for name, _ in loaded.module.named_parameters()}
        assert names == {name for name, _ in model.named_parameters()}
        assert capfd.readouterr() == ("", "")

    def test_refused(self, script, tmp_path, monkeypatch):
        from torch._export.converter import TS2EPConverter

        def convert(self):
            raise ValueError("unsupported\nfor many reasons")

        assert "is converted with an example" in refused(script[0])
        text = refused(script[0], example=torch.randn(4, 9))
        assert "the TorchScript model fails on samples of shape [9]" in text
        monkeypatch.setattr(TS2EPConverter, "convert", convert)
        text = refused(script[0], example=self.X)
        assert "torch cannot convert this TorchScript model (unsupported); export the model" in text
        assert "torch.export.save(program" in text
        monkeypatch.setitem(sys.modules, "torch._export.converter", None)
        assert "has no converter of TorchScript files" in refused(script[0], example=self.X)
        (tmp_path / "cut.pt").write_bytes(script[0].read_bytes()[:-30])
        assert "is damaged or cut short" in refused(tmp_path / "cut.pt")

    @pytest.mark.slow
    def test_where_torch_converts_wrongly(self, script, monkeypatch):
        from torch._export.converter import TS2EPConverter

        before = TS2EPConverter.convert

        def convert(self):
            program = before(self)
            with torch.no_grad():
                for tensor in program.state_dict.values():
                    if tensor.is_floating_point():
                        tensor.add_(0.5)
            return program

        monkeypatch.setattr(TS2EPConverter, "convert", convert)
        text = refused(script[0], example=self.X)
        assert "converts this TorchScript model wrongly" in text


def test_quantised_networks(factory, tmp_path):
    engines = [e for e in torch.backends.quantized.supported_engines if e != "none"]
    if not engines:
        pytest.skip("this torch has no quantised operators")
    torch.backends.quantized.engine = engines[0]
    with quiet():
        model = torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear})
        torch.save(model.state_dict(), tmp_path / "w.pt")
        torch.jit.script(model).save(str(tmp_path / "m.pt"))
    assert "holds a quantised network" in refused(factory(lambda: model))
    assert "quantised network" in refused("torch.nn:Identity", tmp_path / "w.pt")
    assert "quantised network" in refused(tmp_path / "m.pt", example=torch.randn(2, 6))


def as_bytes(save, content):
    buffer = io.BytesIO()
    save(content, buffer)
    return buffer.getvalue()


def zipped(name, file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"a")


PICKLED = "is not opened: unpickling a model runs code"
USE_FACTORY = "give package.module:factory as the model and this file"


class TestNoModel:
    @pytest.mark.parametrize(
        ("name", "content", "text"),
        [
            ("a.pt2", b"", "is empty"),
            ("a.pt2", b"PK\x03\x04 and so on", "is damaged or cut short"),
            ("a.txt", b"a text", "is no model that torch knows"),
            ("a.onnx", b"\x08\x07", "is an ONNX model, and networks of PyTorch are audited"),
            ("a.h5", b"\x89HDF\r\n\x1a\n", "is a Keras model"),
            ("a.bin", b"\x89HDF\r\n\x1a\n", "is a Keras model"),
            ("a.keras", as_bytes(zipped, "model.weights.h5"), "is a Keras model"),
            ("a.zip", as_bytes(zipped, "a.txt"), "is an archive without a network"),
            ("nets.py", b"def build(): ...", "give nets:NAME"),
            ("a.pkl", pickle.dumps({"a": 1}), PICKLED),
            ("m.pt", as_bytes(torch.save, mlp()), PICKLED),
            ("m.pt", as_bytes(save_old, mlp()), "it holds a whole model, save model.state_dict()"),
            ("w.pth", as_bytes(torch.save, STATE), f"if it holds weights, {USE_FACTORY}"),
            ("x.npz", as_bytes(lambda x, f: np.savez(f, x=x), [0]), "holds arrays and no network"),
        ],
    )
    def test_files(self, tmp_path, name, content, text):
        (tmp_path / name).write_bytes(content)
        assert text in refused(tmp_path / name)

    def test_others(self, program, tmp_path):
        save_file(STATE, tmp_path / "w.safetensors")
        text = refused(tmp_path / "w.safetensors")
        assert f"holds weights and no network; {USE_FACTORY}" in text
        assert "there is no such file; wanted package.module:" in refused(tmp_path / "no.pt2")
        assert "is a folder" in refused(tmp_path)
        for name in ("a\0b", "no such: model"):
            assert "there is no such file" in refused(name)
        text = refused(program[0], tmp_path / "w.pt")
        assert "which has weights of its own; leave --weights out" in text


# --- In which shape a network takes its samples, found by trying --------------------------------

X = torch.rand(20, 64)
SHAPES = shapes_to_try((64,), (8, 8))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.RNN(8, 5, batch_first=True)

    def forward(self, x):
        assert x.ndim == 3, "wanted rows"
        return {"last": (self.recurrent(x)[0][:, -1],)}


MODELS = {
    "flat": (lambda: nn.Linear(64, 3), (64,)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (1, 8, 8)),
    "rows": (Rows, (8, 8)),
}


class TestFitting:
    def test_shapes_to_try(self):
        assert shapes_to_try((1, 8, 8), (8, 8)) == [(1, 8, 8), (8, 8), (64,)]
        assert shapes_to_try((8, 8), (8, 8)) == [(8, 8), (1, 8, 8), (64,)]
        assert shapes_to_try((3072,), (3, 32, 32)) == [(3072,), (3, 32, 32)]
        assert shapes_to_try((12,), None) == [(12,)]
        assert shapes_to_try((16, 4), None) == [(16, 4)]
        assert shapes_to_try((1, 12), None) == [(1, 12), (12,)]

    @pytest.mark.parametrize("kind", MODELS)
    def test_factories(self, kind, factory):
        make, shape = MODELS[kind]
        loaded, taken = load_fitting(factory(make), None, X, SHAPES)
        assert (taken, loaded.batch_size) == (shape, None)

    @pytest.mark.parametrize(
        ("kind", "batch"),
        [
            ("flat", None),
            ("conv", None),
            ("flat", 2),
            ("conv", 7),
            # torch exports a recurrent layer for one batch size
            pytest.param("rows", 2, marks=pytest.mark.slow),
            pytest.param("rows", 7, marks=pytest.mark.slow),
        ],
    )
    def test_programs(self, kind, tmp_path, batch):
        make, shape = MODELS[kind]
        example = torch.rand(batch or 3, *shape)
        path = export(make().eval(), example, tmp_path / "m.pt2", dynamic=batch is None)
        loaded, taken = load_fitting(path, None, X[:5], SHAPES, trust=True)
        assert (taken, loaded.batch_size) == (shape, batch)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.parametrize("kind", ["flat", "conv"])
    def test_scripts(self, tmp_path, kind):
        make, shape = MODELS[kind]
        torch.jit.trace(make().eval(), torch.rand(3, *shape)).save(str(tmp_path / "m.pt"))
        loaded, taken = load_fitting(str(tmp_path / "m.pt"), None, X, SHAPES, trust=True)
        assert (taken, loaded.kind) == (shape, "TorchScript file")

    def refused(self, spec):
        return refused(spec, None, X, SHAPES, load=load_fitting)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_no_shape_fits(self, factory, tmp_path):
        spec = factory(lambda: nn.Linear(10, 2))
        text = self.refused(spec)
        assert text.startswith(f"{spec}: the model fails on the data ([64]: ")
        assert "; [1, 8, 8] or [8, 8]: " in text
        assert text.endswith("with --shape, or other data")
        path = export(nn.Linear(10, 2), torch.rand(3, 10), tmp_path / "m.pt2")
        assert "or [8, 8]: the program takes [any, 10], the batch" in self.refused(path)
        path = export(nn.Linear(64, 2), torch.rand(64), tmp_path / "one.pt2", dynamic=False)
        assert "one sample at a time; export it with a batch axis" in self.refused(path)
        torch.jit.trace(nn.Linear(10, 2), torch.rand(3, 10)).save(str(tmp_path / "m.pt"))
        assert "the model fails on the data ([64]: " in self.refused(tmp_path / "m.pt")

    def test_samples_are_no_channels(self, factory):
        """A convolution would take [C, H, W] for one sample; the number tried is no number of C."""
        spec = factory(lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()))
        assert "the model fails on the data" in self.refused(spec)
        mixed = factory(lambda: nn.Sequential(nn.Flatten(0), nn.Linear(64 * TRIED, 2)))
        assert "5 samples give outputs of length 2" in self.refused(mixed)

    def test_nothing_is_changed(self, factory):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state = torch.get_rng_state()
        load_fitting(factory(lambda: model), None, X, SHAPES)
        assert torch.get_rng_state().equal(state)
        assert all(before[name].equal(value) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())
