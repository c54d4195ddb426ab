"""How a model directory is cut into chunks, so that what did not change is not sent again.

A large file is cut every 4 MiB. Small ones share chunks, in order. Names decide where a chunk begins: so a file that
changed changes its own chunk only.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

from determined.common.context import FILE_TYPE, FOLDER_TYPE, IGNORE_FILE
from determined.errors import InvalidContextException

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

CHUNK_BYTES = 4 << 20
_SMALL_BYTES = 1 << 20
#: Small files that share a chunk, on average.
_SHARING = 64
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Bytes of a file: from `offset` on."""

    path: pathlib.Path
    offset: int
    size: int


class Plan:
    """The chunks of a directory, and the files that they make.

    Attributes:
        chunks: The pieces of each chunk, by its SHA-256.
        files: As the manifest says them.
        total: Bytes of all files.
    """

    def __init__(self) -> None:
        self.chunks: dict[str, list[Piece]] = {}
        self.files: list[dict[str, Any]] = []
        self.total = 0
        self._numbers: dict[str, int] = {}
        self._shared: list[tuple[Piece, list[dict[str, int]]]] = []
        self._shared_size = 0
        self._hash = hashlib.sha256()

    def manifest(self) -> dict[str, Any]:
        """The message that makes files of the chunks."""
        return {"chunks": list(self.chunks), "files": self.files}

    def add(self, name: str, path: pathlib.Path, report: Callable[[int], None]) -> None:
        """Add a file or folder. `report` gets the bytes that were read so far, of all. Raises: OSError."""
        status = path.stat()
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder and not stat.S_ISREG(status.st_mode):
            return  # sockets and pipes have no content to send
        spans: list[dict[str, int]] = []
        entry = {
            "path": name,
            "type": FOLDER_TYPE if is_folder else FILE_TYPE,
            "mode": status.st_mode,
            "mtime": int(status.st_mtime),
            "spans": spans,
        }
        self.files.append(entry)
        if is_folder:
            return
        size = status.st_size
        if size < _SMALL_BYTES:
            self._share(name, Piece(path, 0, size), spans, report)
            return
        for offset in range(0, size, CHUNK_BYTES):
            piece = Piece(path, offset, min(CHUNK_BYTES, size - offset))
            found = hashlib.sha256()
            self._read(piece, found, report)
            spans.append(self._span(found.hexdigest(), [piece], 0, piece.size))

    def close(self) -> None:
        """All was added."""
        if not self._shared:
            return
        digest, offset = self._hash.hexdigest(), 0
        pieces = [piece for piece, _ in self._shared]
        for piece, spans in self._shared:
            spans.append(self._span(digest, pieces, offset, piece.size))
            offset += piece.size
        self._shared, self._shared_size, self._hash = [], 0, hashlib.sha256()

    def _share(self, name: str, piece: Piece, spans: list[dict[str, int]], report: Callable[[int], None]) -> None:
        if not piece.size:
            return
        is_first = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[0] < 256 // _SHARING
        if is_first or self._shared_size + piece.size > CHUNK_BYTES:
            self.close()
        self._read(piece, self._hash, report)
        self._shared.append((piece, spans))
        self._shared_size += piece.size

    def _read(self, piece: Piece, into: Any, report: Callable[[int], None]) -> None:
        for part in read(piece):
            into.update(part)
            self.total += len(part)
            report(self.total)

    def _span(self, digest: str, pieces: list[Piece], offset: int, size: int) -> dict[str, int]:
        self.chunks.setdefault(digest, pieces)
        number = self._numbers.setdefault(digest, len(self._numbers))
        return {"chunk": number, "offset": offset, "size": size}


def plan_of(entries: Iterable[tuple[str, pathlib.Path]], report: Callable[[int], None] = lambda _: None) -> Plan:
    """Read and hash all files. `report` gets the bytes that were read so far.

    Raises:
        InvalidContextException: A file can't be read, or changes meanwhile.
    """
    plan = Plan()
    for name, path in entries:
        try:
            plan.add(name, path, report)
        except OSError as e:
            raise InvalidContextException(
                f"{name} can't be read ({e.strerror}); make it readable or add it to {IGNORE_FILE}"
            ) from e
    plan.close()
    return plan


def read(piece: Piece) -> Iterable[bytes]:
    """The bytes of a piece. Raises: OSError; InvalidContextException if the file has become shorter."""
    left = piece.size
    with open(piece.path, "rb") as file:
        file.seek(piece.offset)
        while left:
            part = file.read(min(left, _READ_BYTES))
            if not part:
                raise _changed(piece)
            left -= len(part)
            yield part


def content(digest: str, pieces: Sequence[Piece]) -> bytes:
    """A chunk, to be sent. Raises: InvalidContextException if a file has changed since the chunk was hashed."""
    try:
        found = b"".join(part for piece in pieces for part in read(piece))
    except OSError as e:
        raise InvalidContextException(f"{os.fspath(pieces[0].path)} can't be read ({e.strerror})") from e
    if hashlib.sha256(found).hexdigest() != digest:
        raise _changed(pieces[0])
    return found


def _changed(piece: Piece) -> InvalidContextException:
    return InvalidContextException(f"{os.fspath(piece.path)} or a file beside it changed while it was sent; try again")
