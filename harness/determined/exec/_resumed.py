"""A download that resumes where it broke off, as a file that is read once."""

from __future__ import annotations

import io
import time

from determined._fail import say
from determined.common.api._retry import Backoff
from determined.common.api._transport import TransportError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import WriteableBuffer

    from determined.common.api._http import HttpResponse


class Resumed(io.RawIOBase):
    """A file that is read from a server, however often the connection breaks.

    Args:
        open_at: Opens it at a byte. What it raises ends the reading.
        size: Its bytes.
    """

    def __init__(self, open_at: Callable[[int], HttpResponse], size: int) -> None:
        self._open_at = open_at
        self._size = size
        self._at = 0
        self._stream: HttpResponse | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._rest = memoryview(b"")
        self._backoff = Backoff()

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, into: WriteableBuffer, /) -> int:
        """The next bytes, as many as are there; 0 at the end."""
        target = memoryview(into).cast("B")
        while not self._rest and self._at < self._size:
            self._rest = memoryview(self._next())
        part = self._rest[: len(target)]
        target[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)

    def close(self) -> None:
        """Give up the rest of it."""
        if self._stream is not None:
            self._stream.close()
        super().close()

    def _next(self) -> bytes:
        if self._stream is None:
            self._stream = self._open_at(self._at)
            self._pieces = self._stream.chunks()
        try:
            piece = next(self._pieces, b"")
        except TransportError as e:
            say("WARNING", f"the download of the model directory goes on after {self._at:,} bytes: {e}")
            self._reopen()
            return b""
        if not piece:  # it ended early
            self._reopen()
            return b""
        self._backoff = Backoff()
        self._at += len(piece)
        return piece

    def _reopen(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        time.sleep(self._backoff.next())
