"""Files that are either whole or not there."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mahalens.errors import RunFolderError
from mahalens.files import write_file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", [b"", b"text\n", bytes(range(256)) * 4096])
def test_content_is_whole_in_place_of_an_old_one(tmp_path, content):
    path = tmp_path / "a" / "b" / "file"  # missing folders are made
    for each in (b"a longer old content", content):
        write_file(path, each)
        assert path.read_bytes() == each
        assert names(path.parent) == ["file"]


def test_a_reader_of_the_old_file_keeps_it_whole(tmp_path):
    """The new content never goes into the old file, where a reader would see half of each."""
    path = tmp_path / "file"
    write_file(path, b"old")
    with path.open("rb") as stream:
        write_file(path, b"newer")
        assert stream.read() == b"old"


class TestFailure:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RunFolderError),
            (KeyboardInterrupt(), KeyboardInterrupt),
            (ValueError("other"), ValueError),
        ],
    )
    def test_an_error_leaves_the_old_file_and_nothing_else(
        self, tmp_path, monkeypatch, error, kind
    ):
        def fail(*_):
            raise error

        path = tmp_path / "file"
        write_file(path, b"old")
        monkeypatch.setattr("mahalens.files.os.fsync", fail)
        with pytest.raises(kind) as caught:
            write_file(path, b"new")
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["file"]
        if kind is RunFolderError:
            assert str(caught.value) == (
                f"{path}: cannot be written (No space left on device); check the folder's "
                "permissions and the space left on the disk"
            )

    def test_a_folder_is_in_the_way(self, tmp_path):
        path = tmp_path / "file"
        path.mkdir()
        (path / "inside").write_bytes(b"x")
        with pytest.raises(RunFolderError, match="cannot be written"):
            write_file(path, b"new")
        assert (names(tmp_path), names(path)) == (["file"], ["inside"])

    def test_a_file_is_where_the_folder_should_be(self, tmp_path):
        (tmp_path / "taken").write_bytes(b"x")
        with pytest.raises(RunFolderError, match="taken/file: cannot be written"):
            write_file(tmp_path / "taken" / "file", b"new")
        assert (tmp_path / "taken").read_bytes() == b"x"

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere"
    )
    def test_a_folder_without_permission(self, tmp_path):
        folder = tmp_path / "closed"
        folder.mkdir()
        folder.chmod(0o500)
        try:
            with pytest.raises(RunFolderError, match=r"cannot be written \(Permission denied\)"):
                write_file(folder / "file", b"new")
            assert names(folder) == []
        finally:
            folder.chmod(0o700)

    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system for reading")
    def test_a_folder_nobody_may_write_to(self):
        with pytest.raises(RunFolderError, match="/proc/mahalens/file: cannot be written"):
            write_file(Path("/proc/mahalens/file"), b"new")

    def test_a_process_killed_in_the_middle_leaves_the_old_file_whole(self, tmp_path):
        path = tmp_path / "file"
        write_file(path, b"old")
        script = (
            "import os, pathlib, signal, sys\n"
            "from mahalens.files import write_file\n"
            "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
            "write_file(pathlib.Path(sys.argv[1]), b'new')\n"
        )
        done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
        assert done.returncode != 0
        assert path.read_bytes() == b"old"
        write_file(path, b"newer")  # what the killed process left behind is not in the way
        assert path.read_bytes() == b"newer"
