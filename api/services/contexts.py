"""The packed context of an experiment or a task, as clients send it and containers get it: a tar.gz."""

from __future__ import annotations

import base64
import io
import tarfile
import unicodedata
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TypeVar

from api.errors import BadRequest, TooLarge
from api.schemas.contexts import File, Member

#: Spec experiment-lifecycle.md §2: 128 MiB / 8 * 6 - 1 MiB.
LIMIT_BYTES = 95 * 1024 * 1024
_DIRECTORY = ord("5")
#: Of a path within the context: what file systems take, so that it can be unpacked.
_MOST_FILES, _LONGEST_PATH, _LONGEST_NAME, _DEEPEST = 50_000, 4000, 255, 64
_MOST_MTIME = 2**33  # what a tar has room for
_ADVICE = "Leave files out with a .detignore file."
_FILE_TYPES = (ord("0"), 0, _DIRECTORY)

Sent = TypeVar("Sent", bound=Member)


def pack(files: Sequence[File], field: str = "model_definition") -> bytes:
    """The tar.gz of these files, which came in this field of a message.

    Raises:
        TooLarge: over 95 MiB, which names the largest files; too many files.
        BadRequest: a path that leaves the folder, is too long or too deep; a member that is neither file nor
            directory, bad base64; two paths that are one where case does not count, or a file that is a folder as well.
    """
    contents: list[tuple[File, str, bytes]] = []
    for file, path in checked(files, field):
        try:
            contents.append((file, path, base64.b64decode(file.content, validate=True)))
        except ValueError as error:  # binascii.Error, or a character that is not ASCII
            raise BadRequest(f"{field}: content of {file.path!r} is no base64: {error}") from None
    total = sum(len(content) for _, _, content in contents)
    if total > LIMIT_BYTES:
        largest = sorted(contents, key=lambda item: -len(item[2]))[:5]
        named = ", ".join(f"{file.path} ({len(content) / 2**20:.1f} MiB)" for file, _, content in largest)
        raise TooLarge(
            f"the context has {total / 2**20:.1f} MiB, the limit is 95 MiB; the largest files are {named}. {_ADVICE}"
        )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for file, path, content in contents:
            member = tarfile.TarInfo(path)
            member.type = tarfile.DIRTYPE if file.type == _DIRECTORY else tarfile.REGTYPE
            member.mode = file.mode & 0o777
            member.mtime = file.mtime
            member.size = 0 if file.type == _DIRECTORY else len(content)
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return buffer.getvalue()


def checked(files: Sequence[Sent], field: str) -> list[tuple[Sent, str]]:
    """The files with their paths as they are stored. `field`: of the message that they came in.

    Raises:
        TooLarge: Too many files.
        BadRequest: As `pack`, but for what is in the files.
    """
    if len(files) > _MOST_FILES:
        raise TooLarge(f"the context has {len(files)} files and folders, the limit is {_MOST_FILES}. {_ADVICE}")
    found: list[tuple[Sent, str]] = []
    known: dict[str, tuple[Member, str]] = {}
    for file in files:
        path = _checked_path(file, field)
        if file.type not in _FILE_TYPES:
            raise BadRequest(f"{field}: {file.path!r} is neither a file nor a directory (type {file.type})")
        _check_clash(known, file, path, field)
        if not 0 <= file.mtime < _MOST_MTIME:
            raise BadRequest(f"{field}: {file.path!r} has the mtime {file.mtime}: expected seconds since 1970")
        found.append((file, path))
    _check_folders(known, field)
    return found


def is_folder(file: Member) -> bool:
    """Whether a member is a folder."""
    return file.type == _DIRECTORY


def _checked_path(file: Member, field: str) -> str:
    """The path of a file in the form that is packed. Raises: BadRequest."""
    shown = file.path if len(file.path) <= 200 else f"{file.path[:200]}…"
    size = len(file.path.encode("utf-8", "surrogatepass"))
    if size > _LONGEST_PATH:  # before it is taken apart
        raise BadRequest(f"{field}: path {shown!r} has {size} bytes, the limit is {_LONGEST_PATH}")
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts or "\x00" in file.path or not path.parts:
        raise BadRequest(f"{field}: path {shown!r} leaves the context folder")
    if len(path.parts) > _DEEPEST:
        raise BadRequest(f"{field}: path {shown!r} is {len(path.parts)} folders deep, the limit is {_DEEPEST}")
    if any(len(part.encode("utf-8", "surrogatepass")) > _LONGEST_NAME for part in path.parts):
        raise BadRequest(f"{field}: a name in path {shown!r} has more than {_LONGEST_NAME} bytes")
    return str(path)


def _check_clash(known: dict[str, tuple[Member, str]], file: Member, path: str, field: str) -> None:
    """A folder may come twice, spelt alike. Anything else that comes twice would be lost, on some file systems."""
    key = unicodedata.normalize("NFC", path).casefold()
    earlier, its_path = known.setdefault(key, (file, path))
    if earlier is file or (earlier.type == file.type == _DIRECTORY and its_path == path):
        return
    raise BadRequest(f"{field}: {file.path!r} and {earlier.path!r} are the same where case does not count")


def _check_folders(known: dict[str, tuple[Member, str]], field: str) -> None:
    seen: set[str] = set()
    for key, (file, _) in known.items():
        parent = key.rpartition("/")[0]
        while parent and parent not in seen:  # what is above a folder was looked at with that folder
            above = known.get(parent)
            if above is not None and above[0].type != _DIRECTORY:
                raise BadRequest(f"{field}: {above[0].path!r} is a file, and {file.path!r} would be within it")
            seen.add(parent)
            parent = parent.rpartition("/")[0]
