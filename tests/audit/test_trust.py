"""Programs are not loaded without trust: every known attack, and what trust then allows."""

import contextlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mahalens.auditing.load import load_model, quiet
from mahalens.cli import main
from mahalens.errors import InputError

RAN = "open('ran', 'w').close()\n"
"""Python code that leaves a mark in the current folder."""


def convnet():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()


def dense():
    return nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


def save_program(model, example, path):
    batch = torch.export.Dim("batch", min=2)
    with quiet():
        program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, path)
    return path


def save_script(model, path):
    with quiet():
        torch.jit.script(model).save(str(path))
    return path


class Mark:
    """A pickle of this makes a file when it is opened."""

    def __reduce__(self):
        return (Path.touch, (Path("ran"),))


def pickled(content, **options):
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def edited(change, rename=lambda name: name, add=None, compression=zipfile.ZIP_STORED):
    """An attack: a copy of the program in which ``change(name, content)`` gives every part."""

    def make(source, path):
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", compression) as new:
            for name in old.namelist():
                new.writestr(rename(name), change(name, old.read(name)))
            for name, content in (add or {}).items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a part that is there twice
                    new.writestr(name, content)

    return make


def described(change):
    """An attack: a program whose description was changed."""

    def edit(name, content):
        if not name.endswith("models/model.json"):
            return content
        description = json.loads(content)
        change(description)
        return json.dumps(description)

    return edited(edit)


def sized(text):
    def change(description):
        values = description["graph_module"]["graph"]["tensor_values"]
        values["conv2d"]["sizes"][0]["as_expr"]["expr_str"] = text

    return described(change)


def calling(target):
    def change(description):
        node = description["graph_module"]["graph"]["nodes"][1]
        assert node["target"] == "torch.ops.aten.relu.default"
        node["target"] = target
        if "os" in target:
            node["inputs"] = [{"name": "", "arg": {"as_string": "touch ran"}, "kind": 1}]

    return described(change)


def signed(**texts):
    def change(description):
        signature = description["graph_module"]["module_call_graph"][0]["signature"]
        for name, value in texts.items():
            signature[name] = value if name == "forward_arg_names" else json.dumps(value)

    return described(change)


def containers(kind, context, leaves):
    leaf = {"type": None, "context": None, "children_spec": []}
    return {"type": kind, "context": context, "children_spec": [leaf] * leaves}


def arguments(*keywords):
    """The description of one positional argument and of keywords."""
    parts = [
        containers("builtins.tuple", "null", 1),
        containers("builtins.dict", json.dumps(keywords), 0),
    ]
    return [1, {**containers("builtins.tuple", "null", 0), "children_spec": parts}]


KEYWORD = 'z=""",y=open("ran","w").close()):\n    return 0 #'
"""The name of a keyword that closes the head of the function torch writes, and is run in it."""


def sample_inputs(name, content):
    return pickled(((Mark(),), {})) if name.endswith("sample_inputs/model.pt") else content


def pickled_tensor(part, file):
    def change(name, content):
        if not name.endswith(f"{part}/model_{part}_config.json"):
            return content
        entry = {"path_name": file, "is_param": True, "use_pickle": True, "tensor_meta": None}
        config = json.loads(content)
        config["config"] = {"extra": entry, **config["config"]}
        return json.dumps(config)

    return edited(change, add={f"net/data/{part}/{file}": pickled(Mark())})


def guards(description):
    description["guards_code"] = ["open('ran', 'w').close() or True"]
    for node in description["graph_module"]["graph"]["nodes"]:
        node["metadata"]["stack_trace"] = 'File "a", line 1\ropen("ran", "w").close()\r'


def with_part(name, content=b"x"):
    return edited(lambda _, content: content, add={name: content})


class Segments(nn.Module):
    def forward(self, x):
        lengths = torch.full((1,), 1 << 40, dtype=torch.int64)
        return torch.segment_reduce(x.flatten(), "sum", lengths=lengths, unsafe=True).expand(9)


class Strides(nn.Module):
    def forward(self, x):
        return x.as_strided((9, 3), (3, 1), 0)


class Endless(nn.Module):
    def forward(self, x):
        torch.save(x, "ran")
        while bool((x == x).any()):
            x = x + 0
        return x


class EndlessState(nn.Module):
    @torch.jit.export
    def __getstate__(self):
        return (torch.zeros(1), self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.training = state[1]
        torch.save(state[0], "ran")
        count = 0
        while count >= 0:
            count = count * 1

    def forward(self, x):
        return x


class Counting(nn.Module):
    """A program whose loop torch exports, and which does not end."""

    def forward(self, x):
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(lambda x: (x == x).any(), lambda x: (x + 0,), (x,))[0]


class Saving(nn.Module):
    def forward(self, x):
        torch.save(x, "stolen.pt")
        return x


class Planting(nn.Module):
    """Writes a module that torch looks for into the current folder."""

    def __init__(self):
        super().__init__()
        self.code, self.size = list(RAN.encode()), 0

    @torch.jit.export
    def __getstate__(self):
        return (self.code, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[list[int], bool]):
        self.code = state[0]
        self.training = state[1]
        file = torch.from_file("z3.py", True, len(self.code), dtype=torch.uint8)
        self.size = int(file.copy_(torch.tensor(self.code)).sum())

    def forward(self, x):
        return x


class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.planting, self.linear = Planting(), nn.Linear(64, 3)

    def forward(self, x):
        return self.linear(x)


def script(model, rename=lambda name: name, add=None):
    def make(source, path):
        plain = save_script(model(), path.with_suffix(".plain"))
        edited(lambda _, content: content, rename, add)(plain, path)
        plain.unlink()

    return make


def written(content):
    return lambda source, path: path.write_bytes(content)


SIZES = [
    "__import__('pathlib').Path('ran').touch()",
    "__import__('os').system('touch ran')",
    "().__class__.__bases__",
    "s0.args",
    "s0[0]",
    "'text'",
    "Symbol('a b')",
    "Symbol('__import__')",
    "Symbol(Symbol('s0'))",
    "Symbol('s0', positive=print())",
    "Symbol('s0', **{})",
    "Symbol(*[])",
    "Add(*[s0])",
    "Add(s0, evaluate=False)",
    "Integer('os')",
    "Float('exit()', precision=53)",
    "lambda: 0",
    "[s0 for s0 in s1]",
    "(s0 := 3)",
    "f'{s0}'",
    "sympify('1')",
    "eval('1')",
    "exit()",
    "open",
    "2**9999999",
    "Pow(Integer(9), Integer(99999))",
    "Pow(9, Pow(9, 9))",
    "Pow(9, s0)",
    "1 << 9999999",
    "1 if s0 else 2",
    "s0; s1",
    "(" * 3000 + "1" + ")" * 3000,
    "1" + "+1" * 4000,
]
TARGETS = [
    "torch.os.system",
    "torch.ops.aten.save.default",
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.as_strided.default",
    "torch.ops.aten._unsafe_index.Tensor",
    "torch.ops.aten._unsafe_view.default",
    "torch.ops.aten.__class__.mro",
    "torch.ops.aten.relu.op",
    "torch.hub.load.x",
    "_operator.methodcaller",
    "torchvision.ops.nms",
    "#my.op",
    "builtins.exec",
]
ENUM = '{"__enum__": true, "fqn": "os:x", "name": "y"}'
PROGRAMS = {
    "keyword": signed(in_spec=arguments(KEYWORD), forward_arg_names=[]),
    "argument": signed(forward_arg_names=["input", "z=open('ran', 'w').close()"]),
    "sample inputs": edited(sample_inputs),
    "pickled weight": pickled_tensor("weights", "weight_99"),
    "pickled constant": pickled_tensor("constants", "tensor_99"),
    "opaque object": with_part("net/data/constants/opaque_obj_0", pickle.dumps(Mark())),
    "guards": described(guards),
    **{f"size {text[:40]}": sized(text) for text in SIZES},
    **{f"target {target}": calling(target) for target in TARGETS},
    "name": described(lambda d: d["graph_module"]["graph"]["nodes"][0].update(name="x;import os")),
    "range": described(lambda d: d["range_constraints"].update({"().__class__": {}})),
    "input type": signed(in_spec=[1, containers("os.path", "null", 0)]),
    "output enum": signed(out_spec=[1, containers("builtins.dict", ENUM, 0)]),
    "custom object": described(
        lambda d: d["graph_module"]["signature"]["input_specs"][0].update(
            custom_obj={"arg": {"name": "a", "class_fqn": "b"}, "custom_obj_name": "c"}
        )
    ),
    "text": described(
        lambda d: d["graph_module"]["graph"]["nodes"][0]["inputs"][0].update(
            arg={"as_string": "a' + __import__('os')"}
        )
    ),
    "machine code": with_part("net/data/aotinductor/model/lib.so"),
    "custom part": with_part("net/data/constants/custom_obj_0"),
    "weights part": with_part("net/data/weights/model.pt"),
    "second program": with_part("elsewhere/models/model.json"),
    "part twice": with_part("net/models/model.json", b"{}"),
    "compressed": edited(lambda _, content: content, compression=zipfile.ZIP_DEFLATED),
    "odd case": edited(lambda _, content: content, rename=str.swapcase),
    "segments": lambda _, path: save_program(Segments(), torch.rand(9, 64), path),
    "strides": lambda _, path: save_program(Strides(), torch.rand(9, 64), path),
    "endless": lambda _, path: edited(sample_inputs)(
        save_program(Counting(), torch.rand(9, 64), path.with_name("net.pt2")), path
    ),
}
SCRIPTS = {
    "saving": script(Saving),
    "planted": script(Planted),
    "planted in Code": script(Planted, lambda name: name.replace("/code/", "/Code/")),
    "planted with a decoy": script(
        Planted, lambda name: name.replace("/code/", "/Code/"), {"bad/code/decoy": b""}
    ),
    "planted in CODE": script(Planted, str.upper),
    "endless call": script(Endless),
    "endless loading": script(EndlessState),
    "endless in Code": script(EndlessState, lambda name: name.replace("/code/", "/cOde/")),
    "without code": lambda _, path: edited(
        lambda _, content: content, add={"net/constants.pkl": pickle.dumps(Mark())}
    )(_weights(path), path),
}
PICKLES = {
    "state dict": written(pickled({"w": Mark()})),
    "old state dict": written(pickled({"w": Mark()}, _use_new_zipfile_serialization=False)),
    "pickle": written(pickle.dumps(Mark())),
    "module": written(pickled(dense())),
    "old module": written(pickled(dense(), _use_new_zipfile_serialization=False)),
}


def _weights(path):
    plain = path.with_suffix(".plain")
    torch.save(dense().state_dict(), plain)
    return plain


SLOW = pytest.mark.slow
"""Of each kind of attack one is tried in the fast group; the others follow the same path."""


def cases(attacks, fast):
    return [pytest.param(name, marks=() if name in fast else SLOW) for name in attacks]


FAST_PROGRAMS = {"keyword", "sample inputs", "pickled weight", "opaque object", "guards"}
FAST_PROGRAMS |= {f"size {SIZES[0][:40]}", f"target {TARGETS[0]}", "input type", "custom object"}
FAST_PROGRAMS |= {"machine code", "part twice", "compressed", "odd case", "strides"}
FAST_SCRIPTS = {"saving", "planted in CODE", "endless loading", "without code"}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    return save_program(convnet(), torch.randn(4, 1, 8, 8), path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder, with homes of everything that may be written below one path."""
    for name in ("work", "home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def picture(here):
    """Everything below the folder of a test."""
    paths = sorted(here.parent.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


def command(*words):
    """Run the command line in this process: exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mahalens", *map(str, words)])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            main()
        except SystemExit as end:
            return end.code or 0, out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def audit(model, *words):
    return ("audit", model, "--data", "digits", "--limit", 30, "--out", "out", *words)


def refused(model, here, *words):
    """The line of a refusal; nothing was written, and nothing imported."""
    before, modules = picture(here), set(sys.modules)
    code, out, err = command(*audit(model, *words))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert picture(here) == before
    fresh = {name.partition(".")[0] for name in set(sys.modules) - modules}
    assert fresh <= {"mahalens", "encodings"}
    assert "z3" not in sys.modules
    return err


@pytest.fixture(scope="module")
def imported():
    """Let the command import what it needs to refuse a file, which is no part of an attack."""
    command(*audit("missing.pt2"))


@pytest.mark.usefixtures("imported")
class TestWithoutTrust:
    @pytest.mark.parametrize("name", cases(PROGRAMS, FAST_PROGRAMS))
    def test_programs(self, program, here, name):
        PROGRAMS[name](program, here / "bad.pt2")
        line = refused("bad.pt2", here)
        assert "bad.pt2: is a torch.export program, a program that can run any code" in line
        assert "--trust (in Python trust=True) if you made the file or trust its source" in line
        with pytest.raises(InputError, match="trust=True"):
            load_model("bad.pt2")

    @pytest.mark.parametrize("name", cases(SCRIPTS, FAST_SCRIPTS))
    def test_scripts(self, program, here, name):
        SCRIPTS[name](program, here / "bad.pt")
        line = refused("bad.pt", here)
        assert "bad.pt: is a TorchScript file, a program that can run any code" in line
        with pytest.raises(InputError, match="trust=True"):
            load_model("bad.pt", example=torch.rand(2, 64))

    @pytest.mark.parametrize("trust", [(), ("--trust",)])
    @pytest.mark.parametrize("name", PICKLES)
    def test_pickles_are_never_opened(self, here, name, trust):
        PICKLES[name](None, here / "bad.pt")
        assert "is not opened: unpickling a model runs code" in refused("bad.pt", here, *trust)

    @pytest.mark.parametrize(
        ("kinds", "fast"),
        [
            (PICKLES, PICKLES),
            (SCRIPTS, FAST_SCRIPTS),
            (PROGRAMS, {"keyword", "pickled weight"}),
            pytest.param(SCRIPTS, SCRIPTS, marks=SLOW),
            pytest.param(PROGRAMS, PROGRAMS, marks=SLOW),
        ],
    )
    def test_no_attack_is_taken_as_weights(self, program, here, kinds, fast):
        """Where the factory is the user's, only its weights come from a stranger."""
        (here / "my_trust_nets.py").write_text(
            "from torch import nn\n\ndef build():\n    return nn.Linear(64, 3)\n"
        )
        command(*audit("my_trust_nets:build", "--layers", "no"))  # so that all is imported
        for name, make in kinds.items():
            if name in fast and not name.startswith(("size", "target")):
                make(program, here / "bad.pt")
                refused("my_trust_nets:build", here, "--weights", "bad.pt")
        sys.modules.pop("my_trust_nets", None)

    def test_other_parts_among_weights(self, here):
        torch.save(dense().state_dict(), "w.pt")
        with zipfile.ZipFile("w.pt", "a") as archive:
            archive.writestr("w/extra", b"")
        with pytest.raises(InputError, match=r"w\.pt: holds 'w/extra', and not only weights"):
            load_model("torch.nn:Identity", Path("w.pt"))

    @pytest.mark.parametrize(
        "words",
        [
            ("bad.pt2",),
            pytest.param(("bad.pt",), marks=SLOW),
            pytest.param(("missing.pt2",), marks=SLOW),
            pytest.param(("missing.pt2", "--trust"), marks=SLOW),
            pytest.param(("torch.nn:Identity", "--weights", "missing.safetensors"), marks=SLOW),
        ],
    )
    def test_torch_is_not_loaded(self, program, here, words):
        """Neither for a program, nor for a file that is missing."""
        PROGRAMS["keyword"](program, here / "bad.pt2")
        SCRIPTS["planted in Code"](program, here / "bad.pt")
        before = picture(here)
        script = (
            "import sys\nfrom mahalens.cli import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n"
            "    print(end.code, 'torch' in sys.modules)"
        )
        assert run(*audit(*words), script=script)[:2] == (0, "2 False\n")
        assert picture(here) == before


def launch(*words, script=None):
    start = ["-m", "mahalens"] if script is None else ["-P", "-c", script]
    return subprocess.Popen(
        [sys.executable, *start, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(*words, script=None):
    with launch(*words, script=script) as running:
        out, err = running.communicate(timeout=120)
    return running.returncode, out, err


@pytest.mark.filterwarnings("ignore")
class TestTorchItself:
    """The attacks are real: trusted, these files run code."""

    @pytest.mark.parametrize(
        "name",
        ["keyword", "argument", "sample inputs", "pickled weight", f"size {SIZES[0][:40]}"],
    )
    def test_programs(self, program, here, name):
        PROGRAMS[name](program, here / "bad.pt2")
        with contextlib.suppress(InputError):
            load_model("bad.pt2", trust=True)
        assert (here / "ran").exists()

    @pytest.mark.parametrize(
        "name", cases(["planted", "planted in Code", "planted with a decoy"], {"planted"})
    )
    def test_scripts(self, here, name):
        SCRIPTS[name](None, here / "bad.pt")
        load_model("bad.pt", example=torch.rand(2, 64), trust=True)
        assert (here / "z3.py").read_text() == RAN
        assert not (here / "ran").exists()


FACTORY = """
import my_trust_sibling
from torch import nn

def build():
    import torch.fx.experimental.validator  # which looks for z3
    return nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))
"""
LOADED = "the model uses no layer 'absent'"
SHADOWS = ("z3", "numpy", "sympy", "msgspec", "safetensors", "json", "functorch")
MAIN = "from mahalens.cli import main\nmain()"


class TestCurrentFolder:
    """A module beside a model runs only where the user's factory imports it."""

    # ``python -m mahalens`` (no script) has the current folder first on its path.
    @pytest.mark.parametrize(
        ("script", "words", "text"),
        [
            (MAIN, ["my_trust_nets:build", "--weights", "w.safetensors"], LOADED),
            *(
                pytest.param(*case, marks=SLOW)
                for case in [
                    (MAIN, ["my_trust_nets:build", "--weights", "w.pt"], LOADED),
                    (MAIN, ["my_trust_absent:build"], "there is no module 'my_trust_absent' here"),
                    (MAIN, ["w.pt"], "is a file of torch.save"),
                    (MAIN, ["net.pt2"], "is a torch.export program"),
                    (MAIN, ["net.pt2", "--trust"], LOADED),
                    (None, ["my_trust_nets:build"], LOADED),
                    (None, ["net.pt2", "--trust"], LOADED),
                ]
            ),
        ],
    )
    def test_nothing_is_shadowed(self, here, script, words, text):
        for name in SHADOWS:
            (here / f"{name}.py").write_text(RAN + "raise SystemExit(0)\n")
        (here / "my_trust_nets.py").write_text(FACTORY)
        (here / "my_trust_sibling.py").write_text("open('sibling', 'w').close()\n")
        model = dense()
        save_file(model.state_dict(), "w.safetensors")
        torch.save(model.state_dict(), "w.pt")
        if "net.pt2" in words:
            save_program(model, torch.rand(4, 64), here / "net.pt2")
        # A layer that is missing is missed after the model was loaded and run.
        code, _, err = run(*audit(*words, "--quiet", "--layers", "absent"), script=script)
        assert (code, err.count("\n")) == (2, 1), err
        assert text in err
        assert not (here / "ran").exists()
        assert (here / "sibling").exists() == (words[0] == "my_trust_nets:build")

    @SLOW
    def test_packages_and_imports_that_come_late(self, here):
        (here / "my_trust_room").mkdir()
        (here / "my_trust_room" / "deep.py").write_text(
            "from torch import nn\nfrom .beside import SIZE\n"
            "class Net(nn.Linear):\n"
            "    def __init__(self):\n        super().__init__(64, SIZE)\n"
            "    def forward(self, x):\n"
            "        import importlib\n"
            "        return super().forward(x) * importlib.import_module('my_trust_late').ONE\n"
        )
        (here / "my_trust_room" / "beside.py").write_text("SIZE = 3\n")
        (here / "my_trust_late.py").write_text("ONE = 1\n")
        code, _, err = run(*audit("my_trust_room.deep:Net", "--layers", "absent"))
        assert (code, LOADED in err) == (2, True), err


NET = "class build(nn.Linear):\n  __init__ = lambda self: super(build, self).__init__(64, 3)\n"
LATE = "sys.exit(0) if len(x) > 9 else nn.Linear.forward(self, x)"


class TestExits:
    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (f"{NET}  forward = lambda self, x: os._exit(0)", "os._exit(0)"),
            *(
                pytest.param(*case, marks=SLOW)
                for case in [
                    (
                        "os._exit(0)",
                        "importing my_exit failed, SystemExit: os._exit(0) (my_exit.py",
                    ),
                    ("build = lambda: os._exit(0)", "failed, SystemExit: os._exit(0)"),
                    ("build = lambda: os._exit(7)", "failed, SystemExit: os._exit(7)"),
                    ("build = lambda: sys.exit(0)", "failed, SystemExit: 0"),
                    (
                        f"{NET}  forward = lambda self, x: {LATE}",
                        "the model ends the process (0); let it return",
                    ),
                ]
            ),
        ],
    )
    def test_one_line(self, here, body, text):
        (here / "my_exit.py").write_text(f"import os, sys\nfrom torch import nn\n{body}\n")
        code, out, err = run(*audit("my_exit:build", "--quiet"))
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert text in err
        assert not (here / "out").exists()

    @SLOW
    def test_children_of_a_factory_end_as_they_should(self, here):
        (here / "my_exit.py").write_text(
            "import os\nfrom torch import nn\n"
            "def build():\n"
            "    child = os.fork()\n"
            "    if not child:\n        os._exit(5)\n"
            "    return nn.Linear(64, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        )
        code, _, err = run(*audit("my_exit:build", "--layers", "absent"))
        assert (code, LOADED in err) == (2, True), err
        assert os._exit.__module__ in ("posix", "nt")


@SLOW
class TestInterrupts:
    @pytest.mark.parametrize(
        ("name", "suffix"),
        [("endless call", "pt"), ("endless loading", "pt"), ("endless", "pt2")],
    )
    def test_a_trusted_program_that_does_not_end(self, program, here, name, suffix):
        model = here / f"bad.{suffix}"
        {**SCRIPTS, **PROGRAMS}[name](program, model)
        with launch(*audit(model, "--trust", "--quiet")) as running:
            while not (here / "ran").exists():
                assert running.poll() is None
                time.sleep(0.1)
            time.sleep(0.5)
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        assert (running.returncode, out, err.strip()) == (130, "", "mahalens: stopped")
        assert not (here / "out").exists()

    def test_a_trusted_program_that_crashes(self, here):
        PROGRAMS["segments"](None, here / "bad.pt2")
        code, out, err = run(*audit("bad.pt2", "--trust", "--quiet"))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "bad.pt2: the program crashed (SIG" in err
