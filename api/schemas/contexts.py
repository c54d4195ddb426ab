"""Files beside a configuration. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Wire, example


class File(Wire):
    """v1File: one member of a context. `type` is the tar type byte."""

    path: str
    type: int = 48
    content: str = ""
    mtime: int = 0
    mode: int = 0o100644
    uid: int = 0
    gid: int = 0


class FilePath(Wire, json_schema_extra=example({"path": "train.py"})):
    """Which file."""

    path: str = Field(min_length=1)


class ContextResponse(Wire):
    """A context as a tar.gz in base64."""

    b64_tgz: str = Field(alias="b64Tgz")


class FileResponse(Wire):
    """A file in base64."""

    file: str
