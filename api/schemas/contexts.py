"""Files beside a configuration. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import I64, Wire, example

#: Of a chunk: its SHA-256, in hexadecimal.
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: Of a context that is uploaded in chunks. 4 GiB have 1024 chunks of 4 MiB; small files make some smaller.
MOST_CHUNKS = 50_000
#: Of the field `context` of what is created with files.
CONTEXT = "The id of a context that was uploaded in chunks, in place of files within the message."


class Member(Wire):
    """A file or folder of a context. `type` is the tar type byte, `mtime` in seconds since 1970."""

    path: str
    type: int = 48
    mtime: int = 0
    mode: int = 0o100644


class File(Member):
    """v1File: one member of a context, with its content in base64."""

    content: str = ""
    uid: int = 0
    gid: int = 0


class Span(Wire):
    """Bytes of a file: those of a chunk from `offset` on. `chunk` is its number in the list of the manifest."""

    chunk: int = Field(ge=0)
    offset: int = Field(default=0, ge=0)
    size: int = Field(ge=1)


class ChunkedFile(Member):
    """One member of a context whose content was uploaded in chunks: its spans, in order. A folder has none."""

    spans: list[Span] = Field(default_factory=list[Span], max_length=MOST_CHUNKS)


_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class ChunkDigests(Wire, json_schema_extra=example({"chunks": [_DIGEST]})):
    """Chunks by their SHA-256."""

    chunks: list[Digest] = Field(max_length=MOST_CHUNKS)


class MissingChunks(Wire):
    """Those that the caller has not uploaded, and how large a chunk and a whole context may be, in bytes."""

    missing: list[str]
    chunk_limit: I64
    context_limit: I64


class Manifest(
    Wire,
    json_schema_extra=example(
        {"chunks": [_DIGEST], "files": [{"path": "train.py", "mode": 33188, "spans": [{"chunk": 0, "size": 4}]}]}
    ),
):
    """The files of a context, and the chunks that have their content."""

    chunks: list[Digest] = Field(max_length=MOST_CHUNKS)
    files: list[ChunkedFile] = Field(max_length=100_000)


class UploadedContext(Wire):
    """A context whose chunks are all there. `id`: for the field `context` of what is created with it."""

    id: str
    size: I64


class FilePath(Wire, json_schema_extra=example({"path": "train.py"})):
    """Which file."""

    path: str = Field(min_length=1)


class ContextResponse(Wire):
    """A context as a tar.gz in base64."""

    b64_tgz: str = Field(alias="b64Tgz")


class TaskContextResponse(ContextResponse):
    """The same for a container. `streamBytes`: of the tar that it can stream instead; 0 if there is none."""

    stream_bytes: I64 = 0


class FileResponse(Wire):
    """A file in base64."""

    file: str
