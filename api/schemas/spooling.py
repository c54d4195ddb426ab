"""Answers that may be long. They are written to a file first, and sent from there.

So neither memory nor a connection to the database is held for as long as a client takes to read one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO

from starlette.responses import Response, StreamingResponse

#: What is kept in memory of an answer, and what is read of the file at a time.
_IN_MEMORY, _PIECE = 2**20, 2**18


def spooled(pieces: Iterable[bytes], media_type: str) -> Response:
    """A 200 with all of these pieces, which are asked for before it begins: an exception is still an answer.

    A short one is an answer as any other: it is compressed, and has an ETag.
    """
    file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
    try:
        for piece in pieces:
            file.write(piece)
    except BaseException:
        file.close()
        raise
    length = file.tell()
    file.seek(0)
    if length <= _IN_MEMORY:
        with file:
            return Response(file.read(), media_type=media_type)
    return StreamingResponse(_read(file), media_type=media_type, headers={"content-length": str(length)})


def joined(begin: bytes, parts: Iterable[bytes], end: bytes) -> Iterator[bytes]:
    """A list of JSON, of parts each of which is what is between the brackets of one."""
    yield begin
    comma = b""
    for part in parts:
        yield comma
        yield part
        comma = b","
    yield end


def _read(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece
