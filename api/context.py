"""The packed context of an experiment, as clients send it and containers get it: a tar.gz."""

from __future__ import annotations

import base64
import io
import tarfile
import unicodedata
from collections.abc import Sequence
from pathlib import PurePosixPath

from api.errors import BadRequest, TooLarge
from api.wire.messages import File

#: Spec experiment-lifecycle.md §2: 128 MiB / 8 * 6 - 1 MiB.
LIMIT_BYTES = 95 * 1024 * 1024
_DIRECTORY = ord("5")
_MOST_MTIME = 2**33  # what a tar has room for
_FILE_TYPES = (ord("0"), 0, _DIRECTORY)


def pack(files: Sequence[File]) -> bytes:
    """The tar.gz of these files.

    Raises:
        TooLarge: over 95 MiB; names the largest files.
        BadRequest: a path that leaves the folder, a member that is neither file nor directory, bad base64; two paths
            that are one where case does not count, or a file that is a folder as well.
    """
    contents: list[tuple[File, bytes]] = []
    known: dict[str, File] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or "\x00" in file.path or not path.parts:
            raise BadRequest(f"model_definition: path {file.path!r} leaves the context folder")
        if file.type not in _FILE_TYPES:
            raise BadRequest(f"model_definition: {file.path!r} is neither a file nor a directory (type {file.type})")
        _check_clash(known, file, path)
        if not 0 <= file.mtime < _MOST_MTIME:
            raise BadRequest(f"model_definition: {file.path!r} has the mtime {file.mtime}: expected seconds since 1970")
        try:
            contents.append((file, base64.b64decode(file.content, validate=True)))
        except ValueError as error:  # binascii.Error, or a character that is not ASCII
            raise BadRequest(f"model_definition: content of {file.path!r} is no base64: {error}") from None
    total = sum(len(content) for _, content in contents)
    if total > LIMIT_BYTES:
        largest = sorted(contents, key=lambda item: -len(item[1]))[:5]
        named = ", ".join(f"{file.path} ({len(content) / 2**20:.1f} MiB)" for file, content in largest)
        raise TooLarge(
            f"the context has {total / 2**20:.1f} MiB, the limit is 95 MiB; the largest files are {named}. "
            "Leave files out with a .detignore file."
        )
    _check_folders(known)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for file, content in contents:
            member = tarfile.TarInfo(str(PurePosixPath(file.path)))
            member.type = tarfile.DIRTYPE if file.type == _DIRECTORY else tarfile.REGTYPE
            member.mode = file.mode & 0o777
            member.mtime = file.mtime
            member.size = 0 if file.type == _DIRECTORY else len(content)
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return buffer.getvalue()


def _key(path: PurePosixPath) -> str:
    return unicodedata.normalize("NFC", str(path)).casefold()


def _check_clash(known: dict[str, File], file: File, path: PurePosixPath) -> None:
    """A folder may come twice, spelt alike. Anything else that comes twice would be lost, on some file systems."""
    earlier = known.setdefault(_key(path), file)
    if earlier is file or (
        earlier.type == file.type == _DIRECTORY and PurePosixPath(earlier.path) == PurePosixPath(file.path)
    ):
        return
    raise BadRequest(f"model_definition: {file.path!r} and {earlier.path!r} are the same where case does not count")


def _check_folders(known: dict[str, File]) -> None:
    for key, file in known.items():
        for parent in PurePosixPath(key).parents:
            above = known.get(str(parent))
            if above is not None and above.type != _DIRECTORY:
                raise BadRequest(f"model_definition: {above.path!r} is a file, and {file.path!r} would be within it")
