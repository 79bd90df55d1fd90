"""A run folder: who may make it, who may open it, and that nothing else is ever harmed."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from mahalens.errors import RunFolderError
from mahalens.studies.folder import Pooled, RunConfig, RunFolder, now, read_config


@pytest.fixture
def config():
    return RunConfig(
        study="gaussian",
        torch="2",
        created=now(),
        seed=0,
        device="cpu",
        threads=1,
        protocol="scaled",
        scaled=["trials: 3 instead of 20"],
        command="mahalens run gaussian",
        options={"dim": 2},
    )


def summed(config):
    """A configuration as its folder keeps it."""
    return msgspec.structs.replace(config, checksum=config.digest)


@pytest.fixture
def old_run(tmp_path, config):
    """A folder with a run in it and files of the user beside and among its records."""
    path = tmp_path / "old"
    with RunFolder.create(path, config) as folder:
        folder.write_csv("trials.csv", ["a"], [[1]])
        folder.write_csv("curves.csv", ["a"], [[1]])
        folder.write_json("summary.json", {"study": "gaussian"})
        folder.write_tensors("weights/abs.safetensors", {"w": torch.ones(1)})
        folder.write_tensors("checkpoints/abs.safetensors", {"w": torch.ones(1)})
    for name in ("gaussian.json", "report.html", "figures/loss.png", "figures/.a.png.12.tmp"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("old")
    for name in ("notes.txt", "weights/README", "mine/data.csv"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("of the user")
    return path


def picture(path):
    """Everything below a path, to compare before and after."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in path.rglob("*")
    }


def refused(path, act):
    """The message with which a folder is refused, and that it is left as it was."""
    top = path.parent if path.parent.is_dir() else path.parent.parent
    before = picture(top)
    with pytest.raises(RunFolderError) as caught:
        act(path)
    assert picture(top) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def creating(config, force=False):
    return lambda path: RunFolder.create(path, config, force=force)


# Making one


LEFT = {"locked": [".lock"], "killed": [".lock", ".config.json.4242.tmp"]}


@pytest.mark.parametrize("kind", ["new", "empty", "nested", *LEFT])
@pytest.mark.parametrize("force", [False, True])
def test_made_where_nothing_is(tmp_path, config, kind, force):
    path = tmp_path / ("a/b/c" if kind == "nested" else "run")
    if kind not in ("new", "nested"):
        path.mkdir()
    for name in LEFT.get(kind, ()):
        (path / name).touch()
    with RunFolder.create(path, config, force=force) as folder:
        assert folder.config == summed(config)
        assert not folder.finished
        assert read_config(path) == summed(config)
    assert sorted(os.listdir(path)) == ["config.json"]


def test_a_run_is_not_replaced_unless_forced(old_run, config):
    text = refused(old_run, creating(config))
    assert f"{old_run}: already holds a run; go on with `mahalens run --resume {old_run}`" in text


def test_force_replaces_the_records_and_nothing_else(old_run, config):
    new = msgspec.structs.replace(config, seed=7)
    with RunFolder.create(old_run, new, force=True) as folder:
        assert not folder.finished
    left = {name for name, content in picture(old_run).items() if content is not None}
    assert left == {"config.json", "notes.txt", "weights/README", "mine/data.csv"}
    assert read_config(old_run).seed == 7
    assert (old_run / "weights/README").read_text() == "of the user"
    assert not (old_run / "figures").exists()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("path", "files", "message"),
    [
        (
            "photos",
            {"photos/cat.jpg": b"cat", "photos/summary.json": b"{}"},
            "photos: already holds other files (cat.jpg); give --out a new or empty folder",
        ),
        *(
            ("model", {"model/config.json": content, "model/summary.json": b"{}"}, "config.json: ")
            for content in (b"", b"{", b"[]", b"\xff\xfe", b'{"study": "\xff"}', b"null")
        ),
        ("model", {"model/config.json": b'{"model_type": "bert"}'}, "config.json: is damaged"),
        ("file", {"file": b"x"}, "file: is a file; give --out a folder"),
        ("file/below", {"file": b"x"}, "file/below: lies below a file; give --out a folder"),
    ],
)
def test_what_is_not_a_run_is_left_alone(tmp_path, config, path, files, message, force):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    text = refused(tmp_path / path, creating(config, force))
    assert text.startswith(str(tmp_path / path))
    assert message in text


def test_a_link_that_leads_nowhere(tmp_path, config):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "cannot be made" in refused(tmp_path / "link", creating(config))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_that_cannot_be_written(tmp_path, config, below):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert "a folder you may write to" in refused(closed / below, creating(config))


def test_a_disk_that_refuses_the_first_record_leaves_no_lock(tmp_path, config, monkeypatch):
    def refuse(path, content):
        raise RunFolderError(f"{path}: cannot be written (No space left on device)")

    with monkeypatch.context() as patch:
        patch.setattr("mahalens.studies.folder.write_file", refuse)
        with pytest.raises(RunFolderError, match="No space left"):
            RunFolder.create(tmp_path / "run", config)
    RunFolder.create(tmp_path / "run", config).close()  # free again


def test_a_configuration_that_cannot_be_written_harms_no_older_run(old_run, config):
    before = picture(old_run)
    broken = msgspec.structs.replace(config, options={"x": object()})
    with pytest.raises(TypeError):
        RunFolder.create(old_run, broken, force=True)
    assert picture(old_run) == before


def test_a_run_made_meanwhile_by_another_process_is_safe(tmp_path, config):
    """The other process begins between the look at the folder and the lock on it."""

    class Contested(type(tmp_path)):
        def mkdir(self, **how):
            RunFolder.create(Path(self), config).close()

    path = Contested(tmp_path / "run")
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunFolder.create(path, msgspec.structs.replace(config, seed=7))
    assert read_config(path).seed == 0
    RunFolder.open(path).close()  # its lock is free


# Two processes

HOLD = """
import sys
from pathlib import Path
from mahalens.studies.folder import RunFolder
with RunFolder.open(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(old_run):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(old_run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_one_process_at_a_time(old_run, config, other_process):
    busy = f"{old_run}: another process is working in it; wait for it or stop it first"
    for act in (RunFolder.open, creating(config, force=True)):
        assert refused(old_run, act) == busy
    # A killed process does not keep the folder.
    other_process.kill()
    other_process.wait()
    with RunFolder.open(old_run) as folder:
        assert folder.finished
    assert not (old_run / ".lock").exists()


# Opening one


def test_opened_again(old_run, config):
    with RunFolder.open(old_run) as folder:
        assert folder.config == summed(config)
        folder.drop_checkpoints()
        assert not (old_run / "checkpoints").exists()
        folder.drop_checkpoints()  # nothing to drop is no fault


def test_opening_what_is_not_there(tmp_path):
    path, file = tmp_path / "gone", tmp_path / "file"
    assert refused(path, RunFolder.open).startswith(f"{path}: there is no such folder; start one")
    path.mkdir()
    assert refused(path, RunFolder.open).startswith(f"{path}: holds no run; start one with")
    file.write_text("")
    assert "cannot be read (Not a directory)" in refused(file, RunFolder.open)
    (path / "config.json").mkdir()
    assert "cannot be read (Is a directory)" in refused(path, RunFolder.open)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace('"gaussian"', "3"),
        lambda text: text.replace('"scaled"', '"polished"', 1),
        lambda text: text.replace('"threads": 1', '"threads": 0'),
        lambda text: text.replace('"options"', '"opinions"'),
    ],
    ids=["cut", "empty", "number for a name", "another protocol", "no threads", "field missing"],
)
def test_a_damaged_config_is_named(old_run, damage):
    file = old_run / "config.json"
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    assert refused(old_run, RunFolder.open).startswith(f"{file}: is damaged (")


def test_fields_of_a_later_version_do_not_disturb(old_run, config):
    file = old_run / "config.json"
    file.write_text(file.read_text().replace('"study"', '"mood": "good", "study"', 1))
    assert read_config(old_run) == summed(config)
    RunFolder.open(old_run).close()


# Writing into one


def test_json_has_null_for_what_is_not_finite(tmp_path, config):
    with RunFolder.create(tmp_path / "run", config) as folder:
        folder.write_json("x.json", {"a": math.nan, "b": [math.inf, -math.inf, 0.1], "c": "Σ⁻¹"})
    text = (tmp_path / "run" / "x.json").read_text("utf-8")
    wanted = {"a": None, "b": [None, None, 0.1], "c": "Σ⁻¹"}
    assert json.loads(text, parse_constant=pytest.fail) == wanted


def test_tables_have_empty_cells_for_what_is_not_defined(tmp_path, config):
    rows = [["a,b", 1, 0.1], ["x", None, math.nan], ["", 0, 1e-300], [True, 2**60, 1 / 3]]
    with RunFolder.create(tmp_path / "run", config) as folder:
        folder.write_csv("x.csv", ["name", "n", "value"], rows)
    assert (tmp_path / "run" / "x.csv").read_bytes() == (
        b'name,n,value\n"a,b",1,0.1\nx,,\n,0,1e-300\nTrue,1152921504606846976,0.3333333333333333\n'
    )


def test_tensors_there_and_back(tmp_path, config):
    tensors = {
        "plain": torch.arange(3),
        "view": torch.arange(12.0).reshape(3, 4).T[::2],
        "needs a gradient": torch.ones(2, requires_grad=True),
        "not finite": torch.tensor([math.nan, math.inf], dtype=torch.float64),
        "empty": torch.empty(0, 3),
    }
    with RunFolder.create(tmp_path / "run", config) as folder:
        folder.write_tensors("checkpoints/x.safetensors", tensors)
        back = folder.read_tensors(tmp_path / "run" / "checkpoints" / "x.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(back[name], tensor.detach(), rtol=0, atol=0, equal_nan=True)


def test_equal_tensors_make_equal_files(tmp_path, config):
    from safetensors import safe_open

    chain = "Linear(2), Abs, Norm"
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, dtype=torch.float64)}
    with RunFolder.create(tmp_path / "run", config) as folder:
        for copy in range(4):
            folder.write_tensors(f"{copy}.safetensors", tensors, chain=chain)
    files = [tmp_path / "run" / f"{copy}.safetensors" for copy in range(4)]
    assert len({file.read_bytes() for file in files}) == 1
    with safe_open(files[0], "pt") as file:
        assert file.metadata() == {"chain": chain}
        assert torch.equal(file.get_tensor("a"), tensors["a"])
        assert torch.equal(file.get_tensor("b"), tensors["b"])


@pytest.mark.parametrize("content", [None, b"", b"12345678", b"\x08\0\0\0\0\0\0\0{}      x"])
def test_tensors_that_cannot_be_read(old_run, content):
    file = old_run / "checkpoints" / "abs.safetensors"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    message = "delete it to compute this part again when the run is resumed"
    with RunFolder.open(old_run) as folder, pytest.raises(RunFolderError, match=message) as caught:
        folder.read_tensors(file)
    reason = "cannot be read (No such file" if content is None else "is damaged;"
    assert str(caught.value).startswith(f"{file}: {reason}")


def test_every_flipped_byte_of_a_checkpoint_is_noticed(old_run):
    file = old_run / "checkpoints" / "abs.safetensors"
    content = file.read_bytes()
    with RunFolder.open(old_run) as folder:
        assert folder.has(file)
        for place in range(len(content)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(RunFolderError, match=r"is damaged.*delete it to compute"):
                folder.has(file)


def test_a_checkpoint_under_another_name_or_of_another_run(old_run, tmp_path, config):
    file = old_run / "checkpoints" / "abs.safetensors"
    with RunFolder.open(old_run) as folder:
        other = file.with_name("relu.safetensors")
        assert not folder.has(other)
        other.write_bytes(file.read_bytes())
        with pytest.raises(RunFolderError, match=r"is checkpoints/abs\.safetensors under another"):
            folder.read_tensors(other)
    second = msgspec.structs.replace(config, seed=1)
    with RunFolder.create(tmp_path / "second", second) as folder:
        other = tmp_path / "second" / "checkpoints" / "abs.safetensors"
        other.parent.mkdir()
        other.write_bytes(file.read_bytes())
        with pytest.raises(RunFolderError, match="belongs to another run"):
            folder.has(other)


def test_checkpoints_of_an_earlier_version_have_no_seal(old_run):
    record = json.loads((old_run / "config.json").read_text())
    del record["inputs"], record["checksum"]
    (old_run / "config.json").write_text(json.dumps(record))
    file = old_run / "checkpoints" / "abs.safetensors"
    save_file(load_file(file), file)
    with RunFolder.open(old_run) as folder:
        assert folder.has(file)
        assert folder.read_tensors(file)["w"].tolist() == [1.0]


def test_a_changed_configuration_is_not_resumed(old_run):
    """One that decides numbers; other keys may be put right by hand."""
    file = old_run / "config.json"
    text = file.read_text()
    file.write_text(text.replace('"seed": 0', '"seed": 1'))
    assert "has changed since the run began (its checksum does not fit)" in refused(
        old_run, RunFolder.open
    )
    file.write_text(text.replace("mahalens run gaussian", "mahalens run"))
    RunFolder.open(old_run).close()


def test_records_that_were_changed_are_known(old_run):
    with RunFolder.open(old_run) as folder:
        assert folder.changed() == []
        (old_run / "trials.csv").write_text("a\n2\n")
        (old_run / "curves.csv").unlink()
        assert folder.changed() == ["trials.csv", "curves.csv"]
        (old_run / "checksums.json").unlink()  # as in folders of earlier versions
        assert folder.changed() == []


def test_a_pool_that_was_stopped_is_not_computed_as_a_run(tmp_path, config):
    piece = Pooled(seed=0, trials=3, command="mahalens run gaussian", mahalens="1", torch="2")
    pooled = msgspec.structs.replace(config, pooled=[piece], command="mahalens pool a b --out c")
    RunFolder.create(tmp_path / "c", pooled).close()
    for _ in range(2):  # it leaves no lock
        with pytest.raises(RunFolderError, match=r"again with --force: mahalens pool a b --out c$"):
            RunFolder.open(tmp_path / "c")
    with RunFolder.create(tmp_path / "c", pooled, force=True) as folder:
        folder.write_json("summary.json", {})
    with RunFolder.open(tmp_path / "c") as folder:
        assert folder.finished
