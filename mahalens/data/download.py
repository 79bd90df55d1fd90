"""Downloads over HTTP, by pooch, with a bar. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from mahalens.console import HasProgress
from mahalens.errors import InputError

CONNECT_SECONDS = 5.0  # without a network a source must fail quickly
READ_SECONDS = 30.0  # of silence, not of the whole download
CHUNK = 1 << 16


class SourceError(Exception):
    """A source cannot give what is wanted; the message says why in a few words."""


class CannotWriteError(InputError):
    """A file cannot be written here, so that no other source would do better."""


def cannot_write(path: Path, error: OSError) -> CannotWriteError:
    """The error for a file that could not be written."""
    return CannotWriteError(
        f"{path.parent}: cannot be written ({error.strerror or error}); free some space or check "
        f"the permissions, or set MAHALENS_DATA to another folder"
    )


def download(url: str, path: Path, limit: int, show: Callable[[HasProgress], None]) -> None:
    """Download to a file, at most ``limit`` bytes; ``show`` is told of every piece."""
    try:
        pooch = import_module("pooch")
    except ModuleNotFoundError as error:
        if error.name != "pooch":
            raise  # pooch is there and lacks something else
        raise SourceError("pooch is not installed (pip install pooch)") from None
    fetch = pooch.HTTPDownloader(
        progressbar=_Bar(show), chunk_size=CHUNK, timeout=(CONNECT_SECONDS, READ_SECONDS)
    )
    with _Landing(path, limit) as landing:
        try:
            fetch(url, landing, None)
        except (SourceError, CannotWriteError):
            raise
        except Exception as error:  # requests, urllib3 and ssl have no common base
            raise SourceError(_words(error)) from None


class _Landing:
    """A file to download to, which tells a full disk from a failing network."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._written = 0
        self._file: IO[bytes]

    def __enter__(self) -> _Landing:
        try:
            # unbuffered: what cannot be written is known at once
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            raise cannot_write(self._path, error) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, piece: bytes) -> int:
        self._written += len(piece)
        if self._written > self._limit:
            raise SourceError(f"sends more than {self._limit:,} bytes")
        view = memoryview(piece)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise cannot_write(self._path, error) from None
        return len(piece)

    def flush(self) -> None:
        """Nothing is held back."""


class _Bar:
    """What pooch asks of a progress bar, passed on to ``show``."""

    percent = True  # shares say more than bytes where there is no bar

    def __init__(self, show: Callable[[HasProgress], None]) -> None:
        self.total = 0  # which pooch sets; 0 when the server does not say
        self._done = 0
        self._ended = self._closed = False
        self._show = show

    @property
    def progress(self) -> tuple[int, int, str]:
        """Bytes done, of how many, in words."""
        done = _size(self._done)
        if self._closed:
            return self._done, self._done, done
        words = f"{done} of {_size(self.total)}" if self.total else done
        return self._done, self.total or self._done + 1, words

    def update(self, count: int) -> None:
        if not self._done and not self._ended:
            self._show(self)  # the beginning
        # pooch counts whole chunks, also for the last one
        self._done = min(self._done + count, self.total) if self.total else self._done + count
        self._show(self)

    def reset(self) -> None:
        """Called once at the end, before all is counted again."""
        self._ended = True
        if self.total:
            self._done = 0

    def close(self) -> None:
        self._closed = True
        self._show(self)


def _size(count: int) -> str:
    """A number of bytes in words.

    >>> _size(29_515), _size(9_912_422)
    ('30 kB', '9.9 MB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _words(error: Exception) -> str:
    """Why a download failed, in a few words."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    response: Any = getattr(error, "response", None)
    if "HTTPError" in kinds and response is not None:
        return f"HTTP {response.status_code} {response.reason}"
    if "ConnectTimeout" in kinds:
        return f"no answer within {CONNECT_SECONDS:g} s"
    if "Timeout" in kinds or "Read timed out" in text:
        return f"sent nothing for {READ_SECONDS:g} s"
    if "ProxyError" in kinds:
        return "the proxy gives no way there"
    if "SSLError" in kinds:
        return "no secure connection"
    if "ChunkedEncodingError" in kinds or "IncompleteRead" in text:
        return "the download broke off"
    if "NameResolutionError" in text or "getaddrinfo" in text:
        return "its address is not found (no network?)"
    if "ConnectionError" in kinds:
        return "no connection"
    return f"{type(error).__name__} {' '.join(text.split())[:100]}"
