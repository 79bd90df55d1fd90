"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mahalens.errors import RunFolderError


def write_file(path: Path, content: bytes) -> None:
    """Write ``content`` under a temporary name beside ``path``, then move it into place.

    The folder is made if it is missing. After a crash at any moment the old file or the new one
    is there, whole.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


LEFT_OVER = re.compile(r"\..+\.\d+\.tmp")
"""Names of files that a process left when it was killed while it wrote."""


def contents(folder: Path, *, apart_from: str = "") -> list[str]:
    """What a folder for results holds, in order: nothing if it is not there yet."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        what = "is a file" if folder.exists() else "lies below a file"
        raise RunFolderError(f"{folder}: {what}; give --out a folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"{folder}: cannot be read ({reason})") from None
    return [name for name in names if name != apart_from and not LEFT_OVER.fullmatch(name)]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; what is there at the end is moved to ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode
            yield temporary
            # Some writers, safetensors among them, put a file that only its owner may read there.
            temporary.chmod(mode)
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}); check the folder's permissions and "
            "the space left on the disk"
        ) from None
