"""Series in ``.ts`` files: what is read, what is refused, and sets of them by name."""

import hashlib

import pytest
import torch
from data_helpers import put, refusal

from mahalens.data import formats, load_series, load_set, read_ts
from mahalens.data.named import SEQUENCE_SETS, SequenceSet

HEAD = "@problemName Mine\n@timeStamps false\n@missing false\n@classLabel true up down\n"
PLAIN = f"# a comment\n% another\n\n{HEAD}@univariate true\n@data\n1,2,3:up\n4.5,-5,6e1:down\n"
CHANNELS = f"{HEAD}@dimensions 2\n@seriesLength 3\n@data\n1,2,3:7,8,9:up\n\n4,5,6:0,0,1: up\n"


def save(path, text):
    path.write_bytes(text.encode())
    return path


class TestReading:
    def test_one_channel(self, tmp_path):
        for text in (PLAIN, PLAIN.replace("@class", "@CLASS").replace("\n", "\r\n")):
            series = read_ts(
                save(tmp_path / "a.ts", text), hashlib.sha256(text.encode()).hexdigest()
            )
            assert series.x.tolist() == [[[1, 2, 3]], [[4.5, -5, 60]]]
            assert (series.x.dtype, series.y.dtype) == (torch.float32, torch.int64)
            assert series.y.tolist() == [0, 1]
            assert (series.problem, series.classes) == ("Mine", ("up", "down"))
            assert repr(series) == "Series('Mine', 2 series, channels=1, steps=3, classes=2)"

    @pytest.mark.parametrize(
        "text",
        [
            f"\ufeff{PLAIN}",  # as Windows saves text
            PLAIN.replace("@classLabel ", "@classLabel\t"),
            PLAIN.replace("@data\n", "@data\n# a comment\n % another\n"),
        ],
        ids=["byte order mark", "tab", "comments among series"],
    )
    def test_text_as_people_have_it(self, tmp_path, text):
        series = read_ts(save(tmp_path / "a.ts", text))
        assert series.x.tolist() == [[[1, 2, 3]], [[4.5, -5, 60]]]
        assert series.classes == ("up", "down")

    def test_channels(self, tmp_path):
        series = read_ts(save(tmp_path / "a.ts", CHANNELS))
        assert series.x.tolist() == [[[1, 2, 3], [7, 8, 9]], [[4, 5, 6], [0, 0, 1]]]
        assert series.y.tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "has no @data; wanted a .ts file"),
            (HEAD, "has no @data"),
            ("1,2:up\n" + PLAIN, "line 1 is neither @key value nor a comment, before @data"),
            (HEAD + "@data\n", "has no series after @data"),
            (PLAIN.replace("true up down", "false"), "declares no classes"),
            (PLAIN.replace("true up down", "true up"), "declares no classes"),
            (PLAIN.replace(" true up down", ""), "declares no classes"),
            (PLAIN.replace("@classLabel true up down\n", ""), "declares no classes"),
            (PLAIN.replace("up down", "up up"), "declares a class twice"),
            (PLAIN.replace("timeStamps false", "timeStamps true"), "has @timestamps true; wanted"),
            (PLAIN.replace("missing false", "missing true"), "has @missing true; wanted"),
            (f"@equalLength false\n{PLAIN}", "has @equallength false; wanted"),
            (PLAIN + "1,2,3:left\n", "line 12 ends in 'left'; wanted a class of up, down"),
            (PLAIN + "1,2,3\n", "line 12 ends in '1,2,3'"),
            (PLAIN + "up\n", "line 12 has a class and no series"),
            (PLAIN + "1,?,3:up\n", "line 12 has a value that is not a number"),
            (PLAIN + "1,,3:up\n", "line 12 has a value that is not a number"),
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
        path = save(tmp_path / "a.ts", text)
        assert words in refusal(read_ts, path, start=f"{path}: ")

    def test_no_file(self, tmp_path, monkeypatch):
        path = tmp_path / "a.ts"
        assert "there is no such file, wanted a .ts file" in refusal(read_ts, path)
        assert "this is a folder" in refusal(read_ts, tmp_path)
        path.write_bytes(b"\xff\xfe\x00")
        assert "is not text; wanted a .ts file of labelled series" in refusal(read_ts, path)
        assert "is not the published file (SHA-256 " in refusal(read_ts, path, "0" * 64)
        monkeypatch.setattr(formats, "SERIES_LIMIT", 5)
        assert "has more than 5 bytes" in refusal(read_ts, save(path, PLAIN))


class TestUsersFiles:
    def test_both(self, tmp_path):
        path = save(tmp_path / "My set_TRAIN.ts", CHANNELS)
        other = save(tmp_path / "My set_TEST.ts", CHANNELS.replace("1,2,3:7,8,9:", "0,0,2:3,0,0:"))
        data = load_set(path)
        assert data.test_x.tolist()[0] == [0, 0, 2, 3, 0, 0]
        assert repr(data).startswith("LabelledData('My set', 2 + 2 samples, inputs=6, classes=1")
        assert data.x.tolist() == [[1, 2, 3, 7, 8, 9], [4, 5, 6, 0, 0, 1]]
        save(other, CHANNELS.replace("9:up", "9:down"))
        assert f"{path}: test_y has the label 1" in refusal(load_set, path)

    @pytest.mark.parametrize(
        ("train", "test", "words"),
        [
            (CHANNELS, None, "X_TEST.ts: there is no such file"),
            (CHANNELS, PLAIN, "has series of shape [1, 3] but X_TRAIN.ts has [2, 3]; give one"),
            (CHANNELS, CHANNELS.replace("up down", "down up"), "has the classes down, up but X_TR"),
            (f"{HEAD}@data\n0,0:up\n", f"{HEAD}@data\n0,0:up\n", "has nothing but zeros"),
        ],
    )
    def test_that_do_not_fit(self, tmp_path, train, test, words):
        path = save(tmp_path / "X_TRAIN.ts", train)
        if test is not None:
            save(tmp_path / "X_TEST.ts", test)
        assert words in refusal(load_set, path)

    def test_a_name_without_train(self, tmp_path):
        text = refusal(load_series, save(tmp_path / "X.ts", CHANNELS))
        assert "wanted a file whose name ends in _TRAIN.ts" in text


class TestNames:
    @pytest.fixture
    def home(self, machine, monkeypatch):
        """The folder for sequences; the small files are the published ones of one set."""
        digest = hashlib.sha256(PLAIN.encode()).hexdigest()
        small = SequenceSet("GunPoint", "small", digest, digest)
        monkeypatch.setitem(SEQUENCE_SETS, "gunpoint", small)
        return machine / "data" / "sequences"

    def test_not_here(self, home):
        assert refusal(load_set, "gunpoint") == (
            f"gunpoint is not on this machine; looked at {home}: there is no such folder; the "
            f"Python package aeon. To get it, run `mahalens data fetch sequences`, or put its "
            f"files in {home}"
        )

    @pytest.mark.parametrize("below", ["", "GunPoint"])
    def test_either_layout(self, home, below):
        put(home / below, dict.fromkeys(SEQUENCE_SETS["gunpoint"].files, PLAIN.encode()))
        data = load_set("gunpoint")
        assert (data.name, data.source) == ("gunpoint", "the published files of GunPoint")
        assert data.x.tolist() == [[1, 2, 3], [4.5, -5, 60]]
        assert data.image_shape is None
        assert "arrow-head is not on this machine" in refusal(load_set, "arrow-head")

    def test_another_file(self, home):
        put(home, dict.fromkeys(SEQUENCE_SETS["gunpoint"].files, CHANNELS.encode()))
        assert "GunPoint_TRAIN.ts: is not the published file" in refusal(load_set, "gunpoint")
