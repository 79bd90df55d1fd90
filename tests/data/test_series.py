"""Files of labelled series: what is read, what is refused, and sets of them by name."""

import dataclasses
import hashlib

import pytest
import torch

from mahalens.data import catalogue, load_series, load_set, places, problems, read_ts, series
from mahalens.errors import InputError

HEAD = "@problemName Mine\n@timeStamps false\n@missing false\n@classLabel true up down\n"
PLAIN = f"# a comment\n% another\n\n{HEAD}@univariate true\n@data\n1,2,3:up\n4.5,-5,6e1:down\n"
CHANNELS = f"{HEAD}@dimensions 2\n@seriesLength 3\n@data\n1,2,3:7,8,9:up\n\n4,5,6:0,0,1: up\n"


def put(path, text):
    path.write_text(text)
    return path


def refused(path, *arguments, read=read_ts):
    with pytest.raises(InputError) as error:
        read(path, *arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestReading:
    def test_one_channel(self, tmp_path):
        found = read_ts(put(tmp_path / "a.ts", PLAIN))
        assert found.x.tolist() == [[[1, 2, 3]], [[4.5, -5, 60]]]
        assert (found.x.dtype, found.y.dtype) == (torch.float32, torch.int64)
        assert found.y.tolist() == [0, 1]
        assert (found.problem, found.classes) == ("Mine", ("up", "down"))
        assert repr(found) == "Series('Mine', 2 series, channels=1, steps=3, classes=2)"

    def test_channels(self, tmp_path):
        found = read_ts(put(tmp_path / "a.ts", CHANNELS))
        assert found.x.tolist() == [[[1, 2, 3], [7, 8, 9]], [[4, 5, 6], [0, 0, 1]]]
        assert found.y.tolist() == [0, 0]

    def test_keys_in_any_case_and_lines_that_end_as_elsewhere(self, tmp_path):
        text = PLAIN.replace("@classLabel", "@CLASSLABEL").replace("\n", "\r\n")
        path = tmp_path / "a.ts"
        path.write_bytes(text.encode())
        assert read_ts(path).y.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "has no @data; wanted a .ts file"),
            (HEAD, "has no @data"),
            ("1,2:up\n" + PLAIN, "line 1 is neither @key value nor a comment, before @data"),
            (HEAD + "@data\n", "has no series after @data"),
            (PLAIN.replace("true up down", "false"), "declares no classes"),
            (PLAIN.replace("true up down", "true up"), "declares no classes"),
            (PLAIN.replace("@classLabel true up down\n", ""), "declares no classes"),
            (PLAIN.replace("up down", "up up"), "declares a class twice"),
            (PLAIN.replace("timeStamps false", "timeStamps true"), "has @timestamps true; wanted"),
            (PLAIN.replace("missing false", "missing true"), "has @missing true; wanted"),
            (f"@equalLength false\n{PLAIN}", "has @equallength false; wanted"),
            (PLAIN + "1,2,3:left\n", "line 12 ends in 'left'; wanted a class of up, down"),
            (PLAIN + "1,2,3\n", "line 12 ends in '1,2,3'"),
            (PLAIN + "up\n", "line 12 has a class and no series"),
            (PLAIN + "1,?,3:up\n", "line 12 has a value that is no number"),
            (PLAIN + "1,,3:up\n", "line 12 has a value that is no number"),
            (PLAIN + "1,nan,3:up\n", "line 12 has NaN or infinite values"),
            (PLAIN + "1,inf,3:up\n", "line 12 has NaN or infinite values"),
            (PLAIN + "1,1e200,3:up\n", "has values too large for float32"),
            (PLAIN + "1,2:up\n", "line 12 has 1 channel(s) of 2 steps, the first series 1 chan"),
            (PLAIN + "1,2,3:1,2,3:up\n", "line 12 has 2 channel(s) of 3 steps, the first"),
            (PLAIN + "1,2,3:1,2:up\n", "line 12 has channels of unequal length"),
            (CHANNELS.replace("dimensions 2", "dimensions 3"), "but its @dimensions is 3"),
            (CHANNELS.replace("Length 3", "Length 4"), "but its @serieslength is 4"),
        ],
    )
    def test_faults(self, tmp_path, text, words):
        path = put(tmp_path / "a.ts", text)
        assert refused(path).startswith(f"{path}: ")
        assert words in refused(path)

    def test_no_file(self, tmp_path, monkeypatch):
        assert "there is no such file, wanted a .ts file" in refused(tmp_path / "a.ts")
        assert "this is a folder" in refused(tmp_path)
        (tmp_path / "b.ts").write_bytes(b"\xff\xfe\x00")
        assert "is no text; wanted a .ts file of labelled series" in refused(tmp_path / "b.ts")
        monkeypatch.setattr(series, "LIMIT", 5)
        assert "has more than 5 bytes" in refused(put(tmp_path / "c.ts", PLAIN))

    def test_checksum(self, tmp_path):
        path = put(tmp_path / "a.ts", PLAIN)
        assert len(read_ts(path, hashlib.sha256(PLAIN.encode()).hexdigest()).y) == 2
        assert "is not the published file (SHA-256 " in refused(path, "0" * 64)


class TestUsersFiles:
    def test_both(self, tmp_path):
        path = put(tmp_path / "My set_TRAIN.ts", CHANNELS)
        other = put(tmp_path / "My set_TEST.ts", CHANNELS.replace("1,2,3:7,8,9:", "0,0,2:3,0,0:"))
        found = load_set(path)
        assert found.test_x.tolist()[0] == [0, 0, 2, 3, 0, 0]
        assert repr(found).startswith("LabelledData('My set', 2 + 2 samples, inputs=6, classes=1")
        assert found.x.tolist() == [[1, 2, 3, 7, 8, 9], [4, 5, 6, 0, 0, 1]]
        put(other, CHANNELS.replace("9:up", "9:down"))
        assert f"{path}: test_y has the label 1" in refused(path, read=load_set)

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("Other_TEST.ts", CHANNELS, "X_TEST.ts: there is no such file"),
            ("X_TEST.ts", PLAIN, "X_TEST.ts: has series of shape [1, 3] and X_TRAIN.ts [2, 3]"),
            ("X_TEST.ts", CHANNELS.replace("up down", "down up"), "has the classes down, up and"),
        ],
    )
    def test_that_do_not_fit(self, tmp_path, name, text, words):
        path = put(tmp_path / "X_TRAIN.ts", CHANNELS)
        put(tmp_path / name, text)
        assert words in refused(path, read=load_series)

    def test_a_name_without_train(self, tmp_path):
        text = refused(put(tmp_path / "X.ts", CHANNELS), read=load_set)
        assert "wanted a file whose name ends in _TRAIN.ts" in text

    def test_nothing_but_zeros(self, tmp_path):
        zeros = f"{HEAD}@data\n0,0:up\n0,0:down\n"
        path = put(tmp_path / "X_TRAIN.ts", zeros)
        put(tmp_path / "X_TEST.ts", zeros)
        assert "has nothing but zeros" in refused(path, read=load_set)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without sequences, whose published ones of one problem are small."""
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    for file in problems.PROBLEMS["gunpoint"].files:
        monkeypatch.setitem(series.SHA256, file, hashlib.sha256(PLAIN.encode()).hexdigest())
    return tmp_path


class TestNames:
    def test_not_here(self, machine):
        text = refused("gunpoint", read=load_set)
        home = machine / "data" / "sequences"
        assert text == (
            f"gunpoint is not on this machine; looked at {home}: there is no such folder; the "
            f"Python package aeon. To get it, run `mahalens data fetch sequences`, or put its "
            f"files in {home}"
        )

    @pytest.mark.parametrize("below", ["", "GunPoint"])
    def test_either_layout(self, machine, below):
        folder = machine / "data" / "sequences" / below
        folder.mkdir(parents=True)
        for file in problems.PROBLEMS["gunpoint"].files:
            put(folder / file, PLAIN)
        found = load_set("gunpoint")
        assert (found.name, found.source) == ("gunpoint", "the published files of GunPoint")
        assert found.x.tolist() == [[1, 2, 3], [4.5, -5, 60]]
        assert found.image_shape is None
        assert "arrow-head is not on this machine" in refused("arrow-head", read=load_set)

    def test_another_file(self, machine):
        folder = machine / "data" / "sequences"
        folder.mkdir(parents=True)
        for file in problems.PROBLEMS["gunpoint"].files:
            put(folder / file, CHANNELS)
        assert "GunPoint_TRAIN.ts: is not the published file" in refused("gunpoint", read=load_set)

    def test_an_installed_package_is_used_and_not_imported(self, tmp_path, monkeypatch, machine):
        package = tmp_path / "site" / "made_up_series"
        folder = package / "files" / "GunPoint"
        folder.mkdir(parents=True)
        put(package / "__init__.py", "raise RuntimeError('imported')")
        for file in problems.PROBLEMS["gunpoint"].files:
            put(folder / file, PLAIN)
        monkeypatch.undo()
        monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
        monkeypatch.syspath_prepend(tmp_path / "site")
        source = catalogue.InstalledPackage("made_up_series", "files")
        changed = dataclasses.replace(catalogue.PUBLISHED["sequences"], sources=(source,))
        monkeypatch.setitem(catalogue.PUBLISHED, "sequences", changed)
        found = places.find_problem("gunpoint")
        assert set(found.values()) == {folder / f for f in problems.PROBLEMS["gunpoint"].files}

    def test_every_file_has_a_checksum(self):
        files = [file for problem in problems.PROBLEMS.values() for file in problem.files]
        assert files == list(problems.SHA256)
        assert len(set(problems.SHA256.values())) == len(files)
