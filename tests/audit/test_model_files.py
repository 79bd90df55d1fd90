"""Models from files: what is taken, and what is refused in one line."""

import io
import json
import os
import pickle
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mahalens.auditing.model_files import LoadedModel, load_model
from mahalens.auditing.model_files.loaded import quiet
from mahalens.errors import InputError

torch.manual_seed(0)


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(4 * 36, 3),
    )


def export(model, example, path, *, dynamic=True):
    shapes = ({0: torch.export.Dim("batch", min=2)},) if dynamic else None
    with quiet():
        program = torch.export.export(model, (example,), dynamic_shapes=shapes)
        torch.export.save(program, path)
    return path


def edited(path, copy, change):
    """A copy of an archive in which ``change(name, content)`` gives every part."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return copy


def refused(spec, *args, **options):
    """The message for a model that cannot be loaded, even if trusted: one line."""
    with pytest.raises(InputError) as error:
        load_model(str(spec), *args, trust=True, **options)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 700
    return text


class Touch:
    """A pickle of this makes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    model = convnet().eval()
    return export(model, torch.randn(4, 1, 8, 8), path), model


class TestPrograms:
    def test_free_batch_size(self, program):
        path, model = program
        loaded = load_model(str(path), trust=True)
        assert isinstance(loaded, LoadedModel)
        assert (loaded.name, loaded.kind, loaded.batch_size) == (
            "net",
            "torch.export program",
            None,
        )
        assert (loaded.input_shape, loaded.dtype) == ((None, 1, 8, 8), torch.float32)
        assert loaded.notes == ()
        x = torch.randn(7, 1, 8, 8)
        assert torch.equal(loaded.module(x), model(x))
        own, wanted = loaded.module.state_dict(), model.state_dict()
        assert own.keys() == wanted.keys()
        assert all(torch.equal(own[name], wanted[name]) for name in own)

    def test_it_can_be_switched_between_modes(self, program):
        module = load_model(str(program[0]), trust=True).module
        assert not module.training
        assert module.train().training
        assert not module.eval().training

    def test_fixed_batch_size(self, tmp_path):
        path = export(mlp().eval(), torch.randn(4, 6), tmp_path / "m.pt2", dynamic=False)
        loaded = load_model(str(path), trust=True)
        assert (loaded.batch_size, loaded.input_shape) == (4, (4, 6))
        assert loaded.notes == ("the program takes batches of exactly 4",)
        assert loaded.whole_batches(11) == 8
        with pytest.raises(InputError, match="batches of exactly 4 and there are 3 samples"):
            loaded.whole_batches(3)

    def test_exported_in_training_mode(self, tmp_path):
        model = convnet().train()
        x = torch.randn(6, 1, 8, 8)
        model(x)  # so that running statistics are not those of the start
        path = export(model, x, tmp_path / "m.pt2")
        loaded = load_model(str(path), trust=True)
        assert loaded.notes[0].startswith("the program was exported in training mode")
        before = {k: v.clone() for k, v in model.state_dict().items() if "running" in k}
        assert torch.allclose(loaded.module(x), model.eval()(x), atol=1e-6)
        assert all(torch.equal(loaded.module.state_dict()[k], v) for k, v in before.items())

    def test_attention_without_dropout(self, tmp_path):
        class Net(nn.Module):
            def forward(self, x):
                return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

        path = export(Net(), torch.randn(3, 4, 8), tmp_path / "m.pt2")
        module, x = load_model(str(path), trust=True).module, torch.randn(2, 4, 8)
        wanted = nn.functional.scaled_dot_product_attention(x, x, x)
        assert torch.allclose(module(x), wanted, atol=1e-6)

    def test_transformer_and_einsum(self, tmp_path):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(20, 8)
                self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

            def forward(self, x):
                h = self.layer(self.embed(x))
                with torch.no_grad():
                    scores = torch.einsum("bij,bkj->bik", h, h)
                return scores.mean(1)

        model = Net().eval()
        path = export(model, torch.randint(0, 20, (3, 5)), tmp_path / "m.pt2")
        loaded = load_model(str(path), trust=True)
        assert loaded.dtype == torch.int64
        x = torch.randint(0, 20, (4, 5))
        assert torch.allclose(loaded.module(x), model(x), atol=1e-5)
        with pytest.raises(InputError, match=r"takes whole numbers .int64. and x is float32"):
            loaded.cast(torch.randn(2, 5))

    def test_half_precision(self, tmp_path):
        path = export(mlp().half().eval(), torch.randn(4, 6).half(), tmp_path / "m.pt2")
        loaded = load_model(str(path), trust=True)
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

        old = tmp_path / "old.pt2"
        major = json.loads(described)["schema_version"]
        with zipfile.ZipFile(old, "w") as archive:
            archive.writestr("version", f"{major['major']}.{major['minor']}")
            archive.writestr("serialized_exported_program.json", described)
            archive.writestr(
                "serialized_state_dict.pt", saved(dict(model.state_dict(keep_vars=True)))
            )
            archive.writestr("serialized_constants.pt", saved({}))
            archive.writestr("serialized_example_inputs.pt", samples)
        x = torch.randn(3, 1, 8, 8)
        assert torch.equal(load_model(str(old), trust=True).module(x), model(x))

    def test_several_inputs(self, tmp_path):
        class Two(nn.Module):
            def forward(self, left, right):
                return left + right

        with quiet():
            made = torch.export.export(Two(), (torch.randn(3, 2), torch.randn(3, 2)))
            torch.export.save(made, tmp_path / "m.pt2")
        assert "takes 2 inputs (left, right), and an audit feeds one" in refused(tmp_path / "m.pt2")

    def test_the_environment_and_logging_are_as_before(self, program, monkeypatch, capfd):
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        before = dict(os.environ)
        load_model(str(program[0]), trust=True)
        assert dict(os.environ) == before
        assert capfd.readouterr() == ("", "")


class TestDamage:
    @pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
    def test_cut_short(self, program, tmp_path, share):
        content = program[0].read_bytes()
        path = tmp_path / "cut.pt2"
        path.write_bytes(content[: int(share * len(content))])
        assert "is damaged or cut short" in refused(path)

    @pytest.mark.parametrize("seed", range(15))
    def test_flipped_bytes(self, program, tmp_path, seed):
        """A damaged file loads or is refused in one line; nothing else comes out."""
        content = bytearray(program[0].read_bytes())
        generator = torch.Generator().manual_seed(seed)
        for place in torch.randint(len(content), (40,), generator=generator).tolist():
            content[place] ^= 1 << (place % 8)
        path = tmp_path / "flipped.pt2"
        path.write_bytes(content)
        said = ""
        try:
            load_model(str(path), trust=True)
        except InputError as error:
            said = str(error)
        assert "\n" not in said

    @pytest.mark.parametrize("name", ["models/model.json", "model_weights_config.json", "weight_0"])
    def test_parts_that_are_missing_or_empty(self, program, tmp_path, name):
        for left in (None, b""):
            path = edited(
                program[0],
                tmp_path / "bad.pt2",
                lambda part, content, left=left: left if part.endswith(name) else content,
            )
            if left == b"" and name == "weight_0":
                continue  # torch reads an empty tensor as zeros
            refused(path)


class TestFactories:
    @pytest.fixture
    def code(self, tmp_path, monkeypatch):
        """A module of the user's that makes networks."""
        (tmp_path / "my_nets.py").write_text(
            "from torch import nn\n"
            "import torch\n"
            "def build():\n"
            "    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))\n"
            "class Net(nn.Linear):\n"
            "    def __init__(self):\n"
            "        super().__init__(4, 2)\n"
            "made = build()\n"
            "number = 3\n"
            "def wrong():\n"
            "    return 3\n"
            "def broken():\n"
            "    raise RuntimeError('no\\nluck')\n"
            "def with_size(size):\n"
            "    return nn.Linear(size, 2)\n"
            "def leaves():\n"
            "    raise SystemExit(3)\n"
            "def half():\n"
            "    return build().half()\n"
            "def tokens():\n"
            "    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))\n"
        )
        (tmp_path / "my_bad.py").write_text("import no_such_module_here\n")
        (tmp_path / "my_typo.py").write_text("def f(:\n")
        monkeypatch.syspath_prepend(tmp_path)
        yield tmp_path
        for name in ("my_nets", "my_bad", "my_typo"):
            sys.modules.pop(name, None)

    def test_functions_classes_and_modules(self, code):
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
            ("my_nets:broken", "failed, RuntimeError: no (my_nets.py, line 13)"),
            ("my_nets:leaves", "failed, SystemExit: 3"),
            ("my_nets:with_size", "missing 1 required positional argument: 'size'"),
            ("my_absent:build", "there is no module 'my_absent' here; run it in the folder"),
            ("my_nets.deeper:build", "my_nets.deeper"),
            ("my_bad:build", "needs 'no_such_module_here', which is not installed"),
            ("my_typo:build", "importing my_typo failed, SyntaxError"),
        ],
    )
    def test_refused(self, code, spec, text):
        assert text in refused(spec)

    @pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model."])
    @pytest.mark.parametrize("kind", ["safetensors", "pt", "old", "state_dict", "model", "named"])
    def test_weights(self, code, tmp_path, prefix, kind):
        model = mlp()
        state = {prefix + name: value for name, value in model.state_dict().items()}
        path = tmp_path / f"w.{'safetensors' if kind == 'safetensors' else 'pt'}"
        if kind == "safetensors":
            save_file(state, path)
        elif kind == "pt":
            torch.save(state, path)
        elif kind == "old":
            torch.save(state, path, _use_new_zipfile_serialization=False)
        else:
            key = {"named": "network"}.get(kind, kind)
            torch.save({key: state, "epoch": 3, "optimizer": {"state": {}}}, path)
        loaded = load_model("my_nets:build", path)
        x = torch.randn(4, 6)
        assert torch.equal(loaded.module(x), model(x))
        assert loaded.notes == ()

    def test_weights_that_do_not_fit(self, code, tmp_path):
        path = tmp_path / "w.safetensors"
        save_file({"0.weight": torch.zeros(5, 6), "9.w": torch.zeros(1)}, path)
        text = refused("my_nets:build", path)
        assert "lacks 0.bias, 2.weight, 2.bias and has 9.w, which the network does not" in text
        state = mlp().state_dict() | {"2.weight": torch.zeros(3, 4)}
        save_file(state, path)
        assert "the shapes of 2.weight [3, 4] for [3, 5] differ" in refused("my_nets:build", path)
        many = {f"layer{i}": torch.zeros(1) for i in range(9)}
        save_file(mlp().state_dict() | many, path)
        assert "has layer0, layer1, layer2 and 6 more, which" in refused("my_nets:build", path)

    def test_weights_that_are_none(self, code, tmp_path):
        path = tmp_path / "w.pt"
        assert "there is no such file" in refused("my_nets:build", path)
        path.write_bytes(b"")
        assert "is empty" in refused("my_nets:build", path)
        path.write_text("weights? no")
        assert "is no file of weights, or damaged" in refused("my_nets:build", path)
        torch.save(torch.zeros(3), path)
        assert "holds a Tensor" in refused("my_nets:build", path)
        torch.save({"a": 1}, path)
        assert "wanted one state dict, and this checkpoint has a" in refused("my_nets:build", path)
        two = {"left": mlp().state_dict(), "right": mlp().state_dict()}
        torch.save(two, path)
        assert "has several (left, right); save it alone" in refused("my_nets:build", path)
        assert "cannot be read" in refused("my_nets:build", tmp_path)
        whole = tmp_path / "whole.safetensors"
        save_file(mlp().state_dict(), whole)
        path.write_bytes(whole.read_bytes()[:200])
        assert "is damaged or cut short" in refused("my_nets:build", path)

    def test_weights_are_not_unpickled(self, code, tmp_path):
        mark = tmp_path / "ran"
        for old in (False, True):
            torch.save(
                {"state_dict": Touch(mark)}, tmp_path / "w.pt", _use_new_zipfile_serialization=old
            )
            text = refused("my_nets:build", tmp_path / "w.pt")
            assert "is not opened: unpickling would run code" in text
        (tmp_path / "w.pt").write_bytes(pickle.dumps(Touch(mark)))
        refused("my_nets:build", tmp_path / "w.pt")
        assert not mark.exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestScripts:
    @pytest.fixture(params=["script", "trace"])
    def script(self, request, tmp_path):
        model = convnet().eval()
        x = torch.randn(4, 1, 8, 8)
        made = torch.jit.script(model) if request.param == "script" else torch.jit.trace(model, x)
        path = tmp_path / "net.pt"
        made.save(str(path))
        return path, model

    @pytest.mark.filterwarnings("error")
    def test_converted(self, script, capfd):
        path, model = script
        x = torch.randn(5, 1, 8, 8)
        loaded = load_model(str(path), example=x[:3], trust=True)
        assert loaded.kind == "TorchScript file"
        assert "converted from TorchScript by torch" in loaded.notes
        y = x if loaded.batch_size is None else x[:3]
        assert torch.allclose(loaded.module.eval()(y), model(y), atol=1e-6)
        names = {name for name, _ in loaded.module.named_parameters()}
        assert names == {name for name, _ in model.named_parameters()}
        assert capfd.readouterr() == ("", "")

    def test_without_an_example(self, script):
        assert "is converted with an example" in refused(script[0])

    def test_an_example_of_another_shape(self, script):
        text = refused(script[0], example=torch.randn(4, 9))
        assert "the TorchScript model fails on samples of shape [9]" in text

    def test_where_torch_cannot(self, script, monkeypatch):
        from torch._export.converter import TS2EPConverter

        def convert(self):
            raise ValueError("unsupported\nfor many reasons")

        monkeypatch.setattr(TS2EPConverter, "convert", convert)
        text = refused(script[0], example=torch.randn(4, 1, 8, 8))
        assert "torch cannot convert this TorchScript model (unsupported); export the model" in text
        assert "torch.export.save(program" in text
        monkeypatch.setitem(sys.modules, "torch._export.converter", None)
        text = refused(script[0], example=torch.randn(4, 1, 8, 8))
        assert "has no converter of TorchScript files" in text

    def test_where_it_converts_wrongly(self, script, monkeypatch):
        from torch._export.converter import TS2EPConverter

        before = TS2EPConverter.convert

        def convert(self):
            program = before(self)
            with torch.no_grad():
                for tensor in program.state_dict.values():
                    if tensor.is_floating_point():
                        tensor.add_(0.5)
            return program

        def same_start(path):
            return refused(path, example=torch.randn(4, 1, 8, 8))

        monkeypatch.setattr(TS2EPConverter, "convert", convert)
        assert "converts this TorchScript model wrongly" in same_start(script[0])

    def test_cut_short(self, script, tmp_path):
        (tmp_path / "cut.pt").write_bytes(script[0].read_bytes()[:-30])
        assert "is damaged or cut short" in refused(tmp_path / "cut.pt")


class TestQuantised:
    @pytest.fixture
    def model(self):
        engines = [e for e in torch.backends.quantized.supported_engines if e != "none"]
        if not engines:
            pytest.skip("this torch has no quantised operators")
        torch.backends.quantized.engine = engines[0]
        with quiet():
            return torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear})

    def test_from_a_factory(self, model, monkeypatch):
        monkeypatch.setattr(torch.nn, "my_quantised", lambda: model, raising=False)
        assert "holds a quantised network" in refused("torch.nn:my_quantised")

    def test_weights(self, model, tmp_path):
        with quiet():
            torch.save(model.state_dict(), tmp_path / "w.pt")
        assert "quantised network" in refused("torch.nn:Identity", tmp_path / "w.pt")

    def test_script(self, model, tmp_path):
        with quiet():
            torch.jit.script(model).save(str(tmp_path / "m.pt"))
        assert "quantised network" in refused(tmp_path / "m.pt", example=torch.randn(2, 6))


class TestNoModel:
    @pytest.mark.parametrize(
        ("name", "content", "text"),
        [
            ("a.pt2", b"", "is empty"),
            ("a.pt2", b"PK\x03\x04 and so on", "is damaged or cut short"),
            ("a.pt2", b"a text", "is no model that torch knows"),
            ("a.txt", b"a text", "is no model that torch knows"),
            ("a.onnx", b"\x08\x07", "is an ONNX model, and networks of PyTorch are audited"),
            ("a.h5", b"\x89HDF\r\n\x1a\n", "is a Keras model"),
            ("a.bin", b"\x89HDF\r\n\x1a\n", "is a Keras model"),
            ("nets.py", b"def build(): ...", "give nets:NAME"),
            ("a.pkl", pickle.dumps({"a": 1}), "wanted"),
        ],
    )
    def test_files(self, tmp_path, name, content, text):
        path = tmp_path / name
        path.write_bytes(content)
        if name == "a.pkl":
            refused(path)
        else:
            assert text in refused(path)

    def test_a_pickled_module(self, tmp_path):
        for old in (True, False):
            path = tmp_path / "m.pt"
            torch.save(mlp(), path, _use_new_zipfile_serialization=not old)
            text = refused(path)
            assert "is not opened: unpickling a model runs code" in text
            assert "if it holds a whole model, save model.state_dict() instead" in text

    def test_weights_as_the_model(self, tmp_path):
        save_file(mlp().state_dict(), tmp_path / "w.safetensors")
        torch.save(mlp().state_dict(), tmp_path / "w.pth")
        for name, what in (
            ("w.safetensors", "holds weights and no network;"),
            ("w.pth", "if it holds weights,"),
        ):
            text = refused(tmp_path / name)
            assert f"{what} give package.module:factory as the model and this file" in text

    def test_others(self, program, tmp_path):
        assert "there is no such file; wanted package.module:" in refused(tmp_path / "no.pt2")
        assert "is a folder" in refused(tmp_path)
        assert "there is no such file" in refused("a\0b")
        assert "there is no such file" in refused("no such: model")
        text = refused(program[0], tmp_path / "w.pt")
        assert "which has weights of its own; leave --weights out" in text
        import numpy as np

        np.savez(tmp_path / "x.npz", x=np.zeros(3))
        assert "holds arrays and no network" in refused(tmp_path / "x.npz")
