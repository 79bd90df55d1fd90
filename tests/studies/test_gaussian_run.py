"""Starting a run and carrying it on: everything is checked first, and every stop can be undone."""

import json

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from mahalens.data import draw_gaussian, save_gaussian
from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.files import write_file
from mahalens.studies import running
from mahalens.studies.folder import RunFolder, read_config
from mahalens.studies.gaussian import run as module
from mahalens.studies.gaussian.config import GaussianConfig
from mahalens.studies.gaussian.run import carry_on, start
from mahalens.train import Adam
from mahalens.train.compiled import why_not

OPTIONS = {"trials": 2, "samples": 20, "epochs": 300, "models": ("abs",)}


@pytest.fixture
def config():
    return GaussianConfig.with_defaults(**OPTIONS)


@pytest.fixture
def hundred_epochs_at_a_time(monkeypatch):
    """So small a run would otherwise be over before it can be stopped."""
    monkeypatch.setattr("mahalens.train.descent.Descent.most_epochs", 100)


@pytest.fixture
def stopped(tmp_path, config, watcher, hundred_epochs_at_a_time):
    """A run that was stopped after its first 100 epochs."""
    asked = []

    def soon():
        asked.append(1)
        return True

    path = tmp_path / "stopped"
    with start(config, path) as folder, pytest.raises(Interrupted):
        carry_on(folder, watcher(), soon)
    assert len(asked) == 1
    return path


def finish(path, watcher):
    told = watcher()
    with RunFolder.open(path) as folder:
        assert not folder.finished
        carry_on(folder, told)
        assert folder.finished
    return told


def change(path, name, **changes):
    """Edit a JSON record."""
    record = json.loads((path / name).read_text())
    for key, value in changes.items():
        record[key] = value(record[key]) if callable(value) else value
    (path / name).write_text(json.dumps(record))


def as_by_an_earlier_version(path):
    """Without fingerprints, checksums and seals."""
    record = json.loads((path / "config.json").read_text())
    del record["inputs"], record["checksum"]
    (path / "config.json").write_text(json.dumps(record))
    for file in (path / "checkpoints").glob("*.safetensors"):
        save_file(load_file(file), file)


def same_results(a, b):
    names = {p.relative_to(a) for p in a.rglob("*") if p.suffix in (".csv", ".safetensors")}
    assert names == {p.relative_to(b) for p in b.rglob("*") if p.suffix in (".csv", ".safetensors")}
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.fixture(scope="session")
def whole(runner, tmp_path_factory):
    """The same run, never stopped."""
    return runner(tmp_path_factory.mktemp("whole") / "run", **OPTIONS).path


# Starting


def test_start_writes_what_it_needs_to_go_on(tmp_path, config):
    with start(config, tmp_path / "run", command="mahalens run gaussian --out x") as folder:
        assert folder.options(type(config)) == config
        assert folder.config.command == "mahalens run gaussian --out x"
        assert folder.config.protocol == "scaled"
        assert folder.config.scaled == config.deviations()
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == ["config.json", "gaussian.json"]


def test_the_published_protocol_says_so(tmp_path):
    with start(GaussianConfig.with_defaults(), tmp_path / "run") as folder:
        assert (folder.config.protocol, folder.config.scaled) == ("published", [])


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta", "hpu", "mps", ""])
def test_devices_that_are_not_here(tmp_path, config, device):
    if device == "cuda:99" and torch.cuda.device_count() > 99:
        pytest.skip("this machine has the device that should be missing")
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has the device that should be missing")
    config = msgspec.structs.replace(config, device=device)
    with pytest.raises(InputError) as caught:
        start(config, tmp_path / "run")
    text = str(caught.value)
    assert text.startswith(f"--device {device}: cannot be used here (")
    assert text.endswith("; try --device cpu")
    assert len(text) < 400
    assert "\n" not in text
    assert not (tmp_path / "run").exists()


def test_the_file_and_the_dimension_must_agree(tmp_path, config):
    file = tmp_path / "g.json"
    file.write_text('{"mean": [0, 0, 0], "covariance": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}')
    with pytest.raises(InputError, match="has 3 dimensions, but --dim is 2"):
        start(config, tmp_path / "run", gaussian_file=file)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("scale", ["1e200", "1e-200"])
def test_a_gaussian_beyond_the_dtype(tmp_path, config, scale):
    file = tmp_path / "g.json"
    file.write_text(f'{{"mean": [0, 0], "covariance": [[{scale}, 0], [0, {scale}]]}}')
    with pytest.raises(InputError, match="--dtype float32: cannot hold the samples"):
        start(config, tmp_path / "run", gaussian_file=file)
    assert not (tmp_path / "run").exists()
    config = msgspec.structs.replace(config, dtype="float64")
    start(config, tmp_path / "run", gaussian_file=file).close()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 10 GiB"),
    ],
    ids=lambda error: str(error)[:12],
)
def test_more_than_the_machine_can_hold(tmp_path, config, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(module.Problem, "from_config", refuse)
    with pytest.raises(InputError, match="--dim 2 with --samples 20: does not fit in the memory"):
        start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_faults_of_torch_are_not_hidden(tmp_path, config, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(module.Problem, "from_config", refuse)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        start(config, tmp_path / "run")


def test_a_gaussian_that_cannot_be_saved_frees_the_folder(tmp_path, config, monkeypatch):
    def refuse(*_):
        raise RunFolderError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_gaussian", refuse)
        with pytest.raises(RunFolderError, match="no space"):
            start(config, tmp_path / "run")
    RunFolder.open(tmp_path / "run").close()


# Stopping and going on


def test_stopped_and_continued_is_as_never_stopped(stopped, whole, watcher):
    state = load_file(stopped / "checkpoints" / "abs.safetensors")
    assert int(state["epoch"]) == 100
    finish(stopped, watcher)
    same_results(stopped, whole)
    assert not (stopped / "checkpoints").exists()


def test_stages_are_told(stopped, watcher):
    assert finish(stopped, watcher).stages == ["abs", "abs-basin"]


@pytest.mark.usefixtures("hundred_epochs_at_a_time")
def test_models_that_are_done_are_not_trained_again(tmp_path, watcher, monkeypatch):
    """Stopped in the second model: the first one's result is kept."""
    config = GaussianConfig.with_defaults(**{**OPTIONS, "models": ("abs", "sigmoid")})
    told, path = watcher(), tmp_path / "run"
    with start(config, path) as folder, pytest.raises(Interrupted):
        carry_on(folder, told, lambda: told.stages[-1] == "sigmoid")
    advanced = []
    advance = Adam.advance

    def counted(self):
        advanced.append(len(self.values[0]))
        advance(self)

    monkeypatch.setattr(Adam, "advance", counted)
    finish(path, watcher)
    assert advanced == [12, 12]  # two chunks of the 12 parameters of sigmoid, none of abs


def test_killed_before_the_gaussian_was_saved(stopped, whole, watcher):
    (stopped / "gaussian.json").unlink()
    finish(stopped, watcher)
    same_results(stopped, whole)
    assert (stopped / "gaussian.json").read_bytes() == (whole / "gaussian.json").read_bytes()


def test_the_users_gaussian_cannot_be_drawn_again(tmp_path, config, watcher):
    file = tmp_path / "mine.json"
    file.write_text('{"mean": [5, 5], "covariance": [[2, 1], [1, 2]]}')
    config = msgspec.structs.replace(config, gaussian="mine.json")
    start(config, tmp_path / "run", gaussian_file=file).close()
    (tmp_path / "run" / "gaussian.json").unlink()
    with (
        RunFolder.open(tmp_path / "run") as folder,
        pytest.raises(RunFolderError, match="is missing; start the run again with --gaussian"),
    ):
        carry_on(folder, watcher())


@pytest.mark.parametrize("name", ["torch", "mahalens"])
def test_another_version_is_named(stopped, watcher, name):
    change(stopped, "config.json", **{name: "0.0.1"})
    told = watcher()
    with RunFolder.open(stopped) as folder:
        carry_on(folder, told)
    assert any(f"begun with {name} 0.0.1, going on with" in note for note in told.notes)


def no_compiler(monkeypatch):
    monkeypatch.setattr(running, "why_not", lambda: "no C++ compiler")


def engines_used(monkeypatch):
    """The engines by which Adam is trained from here on."""
    seen = set()
    advance = Adam.advance

    def watched(self):
        seen.add(self.objective.engine)
        advance(self)

    monkeypatch.setattr(Adam, "advance", watched)
    return seen


@pytest.mark.skipif(bool(why_not()), reason=f"no compiled engine here: {why_not()}")
class TestEngines:
    def test_a_run_is_trained_by_the_compiled_one(self, stopped, watcher, monkeypatch):
        assert read_config(stopped).engine == "compiled"
        seen = engines_used(monkeypatch)
        told = finish(stopped, watcher)
        assert seen == {"compiled"}
        assert not [note for note in told.notes if "engine" in note]

    def test_a_run_begun_by_torch_goes_on_by_torch(self, stopped, watcher, monkeypatch):
        """So does one of a time when there was no other: its file does not say."""
        as_by_an_earlier_version(stopped)
        record = json.loads((stopped / "config.json").read_text())
        del record["engine"]
        (stopped / "config.json").write_text(json.dumps(record))
        assert read_config(stopped).engine == "torch"
        seen = engines_used(monkeypatch)
        finish(stopped, watcher)
        assert seen == {"torch"}

    def test_without_its_compiler_a_run_goes_on_by_torch_and_says_so(
        self, stopped, watcher, monkeypatch
    ):
        no_compiler(monkeypatch)
        seen = engines_used(monkeypatch)
        told = finish(stopped, watcher)
        assert seen == {"torch"}
        (note,) = (note for note in told.notes if "engine" in note)
        assert note.startswith(
            "begun with the compiled engine, going on without (no C++ compiler): the last digits"
        )


def test_a_run_without_a_compiler(tmp_path, config, watcher, monkeypatch):
    no_compiler(monkeypatch)
    seen = engines_used(monkeypatch)
    told = watcher()
    with start(config, tmp_path / "run") as folder:
        assert folder.config.engine == "torch"
        carry_on(folder, told)
    assert seen == {"torch"}
    assert not [note for note in told.notes if "engine" in note]


def test_a_wish_to_stop_is_heard_while_reading(stopped, whole, watcher):
    told = watcher()
    with RunFolder.open(stopped) as folder, pytest.raises(Interrupted):
        carry_on(folder, told, lambda: "reading the trained models" in told.notes)
    assert not (stopped / "summary.json").exists()
    finish(stopped, watcher)
    same_results(stopped, whole)


def test_data_are_drawn_with_the_threads_of_the_first_part(stopped, watcher, monkeypatch):
    as_by_an_earlier_version(stopped)
    change(stopped, "config.json", threads=2)

    class Seen(Exception):
        pass

    def spy(*_, **__):
        raise Seen(torch.get_num_threads())

    monkeypatch.setattr(module.Problem, "from_config", spy)
    try:
        with RunFolder.open(stopped) as folder, pytest.raises(Seen, match="2"):
            carry_on(folder, watcher())
    finally:
        torch.set_num_threads(1)


def fails_to_go_on(path, watcher):
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with RunFolder.open(path) as folder, pytest.raises(InputError) as caught:
        carry_on(folder, watcher())
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_device_that_is_gone(stopped, watcher):
    as_by_an_earlier_version(stopped)
    change(stopped, "config.json", options=lambda options: {**options, "device": "meta"})
    assert "--device meta: cannot be used here" in fails_to_go_on(stopped, watcher)


@pytest.mark.parametrize(
    "changes", [{"dim": 0}, {"dim": "two"}, {"mood": 1}, {"models": ["tanh"]}, {"solver": "sgd"}]
)
def test_options_that_were_tampered_with(stopped, watcher, changes):
    change(stopped, "config.json", options=lambda options: {**options, **changes})
    with pytest.raises(RunFolderError, match=r"config\.json: has changed since the run began"):
        RunFolder.open(stopped)
    as_by_an_earlier_version(stopped)  # which has no checksum to tell it by
    text = fails_to_go_on(stopped, watcher)
    assert text.startswith(f"{stopped / 'config.json'}: options cannot be used (")


def test_a_damaged_gaussian(stopped, watcher):
    (stopped / "gaussian.json").write_text('{"mean": [0, 0]')
    assert str(stopped / "gaussian.json") in fails_to_go_on(stopped, watcher)


@pytest.mark.parametrize("version", ["this", "earlier"])
@pytest.mark.parametrize("damage", ["cut", "of another run", "of another solver", "incomplete"])
def test_a_checkpoint_that_does_not_fit(stopped, watcher, damage, whole, version):
    if version == "earlier":
        as_by_an_earlier_version(stopped)
    file = stopped / "checkpoints" / "abs.safetensors"
    state = load_file(file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "of another run":
        save_file({**state, "values": state["values"][:1].clone()}, file)
    elif damage == "of another solver":
        save_file({k: v for k, v in state.items() if k != "rows.v"}, file)
    else:
        save_file({k: v for k, v in state.items() if k != "epoch"}, file)
    text = fails_to_go_on(stopped, watcher)
    assert text.startswith(f"{file}: ")
    told = "compute this part again" if version == "this" or damage == "cut" else "train abs"
    assert f"delete it to {told}" in text
    # The advice is good.
    file.unlink()
    finish(stopped, watcher)
    same_results(stopped, whole)


def test_a_run_of_an_earlier_version_goes_on(stopped, watcher, whole):
    as_by_an_earlier_version(stopped)
    finish(stopped, watcher)
    same_results(stopped, whole)


def test_every_flipped_byte_of_a_checkpoint_is_noticed(stopped):
    file = stopped / "checkpoints" / "abs.safetensors"
    content = file.read_bytes()
    with RunFolder.open(stopped) as folder:
        assert folder.has(file)
        for place in range(len(content)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(RunFolderError, match=r"is damaged.*delete it to compute"):
                folder.has(file)


def test_a_checkpoint_under_another_name_or_of_another_run(stopped, tmp_path, watcher):
    file = stopped / "checkpoints" / "abs.safetensors"
    with RunFolder.open(stopped) as folder:
        other = folder.checkpoint("relu")
        other.write_bytes(file.read_bytes())
        with pytest.raises(RunFolderError, match=r"is checkpoints/abs\.safetensors under another"):
            folder.read_tensors(other)
    second = GaussianConfig.with_defaults(**OPTIONS, seed=1)
    with start(second, tmp_path / "second") as folder:
        folder.checkpoint("abs").parent.mkdir()
        folder.checkpoint("abs").write_bytes(file.read_bytes())
        with pytest.raises(RunFolderError, match="belongs to another run"):
            carry_on(folder, watcher())


def test_a_changed_gaussian_is_refused(stopped, watcher, whole):
    file = stopped / "gaussian.json"
    before = file.read_text()
    save_gaussian(file, draw_gaussian(2, torch.Generator().manual_seed(5)))
    assert fails_to_go_on(stopped, watcher).startswith(f"{file}: has changed since the run began")
    file.write_text(before)
    finish(stopped, watcher)
    same_results(stopped, whole)


# Killed at any moment: before and after each file that a run writes


class Killed(BaseException):
    pass


@pytest.fixture
def kill_at(monkeypatch):
    """Let the process die around its n-th write: before it, or right after."""

    def arm(n, when):
        written = []

        def write(path, content):
            written.append(path.name)
            if len(written) == n and when == "before":
                raise Killed
            write_file(path, content)
            if len(written) == n:
                raise Killed

        monkeypatch.setattr("mahalens.studies.folder.write_file", write)
        monkeypatch.setattr("mahalens.data.gaussians.write_file", write)
        return written

    return arm


WRITES = [
    "config.json",
    "gaussian.json",
    "abs.safetensors",  # the last state of its training
    "abs-basin.safetensors",
    "abs.safetensors",
    "trials.csv",
    "curves.csv",
    "plots.safetensors",
    "checksums.json",
    "summary.json",
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("n", range(1, len(WRITES) + 1))
def test_killed_around_every_file(tmp_path, config, watcher, whole, kill_at, n, when):
    path = tmp_path / "run"
    written = kill_at(n, when)
    try:
        with start(config, path) as folder:
            carry_on(folder, watcher())
    except Killed:
        pass
    assert written == WRITES[:n]
    kill_at(0, "never")
    if (n, when) == (1, "before"):  # nothing is there: the same command works again
        start(config, path).close()
    with RunFolder.open(path) as folder:
        assert folder.finished == ((n, when) == (len(WRITES), "after"))
        if not folder.finished:
            carry_on(folder, watcher())
        folder.drop_checkpoints()
    same_results(path, whole)
    assert (path / "gaussian.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"mean": [1e12, 1e12], "covariance": [[1, 0], [0, 1]]}',
        '{"mean": [5, 5], "covariance": [[1e-30, 0], [0, 1e-30]]}',
    ],
    ids=["far away", "tiny"],
)
def test_a_dtype_too_coarse_for_the_gaussian_is_refused(tmp_path, config, text):
    """Rounding alone would hide the distances; float64 still has digits for them, if it does."""
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"--dtype float32: (too coarse|cannot hold)"):
        start(config, tmp_path / "run", gaussian_file=file)
    assert not (tmp_path / "run").exists()
