"""Tar archives from elsewhere: every member is checked before one byte is written."""

from __future__ import annotations

import os
import posixpath

from determined.errors import InvalidContextException

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile

MAX_MEMBERS = 200_000


def checked_name(member: tarfile.TarInfo, max_bytes: int | None = None) -> str:
    """The member's path below the target folder; "" for the folder itself.

    Raises:
        InvalidContextException: The member would leave the folder, or is no file, folder or link. It names the member.
    """
    name = member.name
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise InvalidContextException(f"the archive is refused: {name!r} leads out of the folder that it belongs to")
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise InvalidContextException(
            f"the archive is refused: {name!r} is a device or another special file (type {member.type!r}); "
            "only files, folders and links are taken"
        )
    if member.size < 0 or (max_bytes is not None and member.size > max_bytes):
        raise InvalidContextException(
            f"the archive is refused: {name!r} would have {member.size:,} bytes, more than the {max_bytes:,} allowed"
        )
    normal = posixpath.normpath(name)
    return "" if normal == "." else normal


def check_members(archive: tarfile.TarFile, max_bytes: int) -> dict[str, tarfile.TarInfo]:
    """Path below the target folder -> member, in the archive's order, when all of them are harmless.

    Raises:
        InvalidContextException: One is not. It names the member.
    """
    found: dict[str, tarfile.TarInfo] = {}
    count = total = 0
    # One by one: reading past a member of a false size would fail before it could be named.
    while (member := archive.next()) is not None:
        name = checked_name(member, max_bytes)
        count += 1
        if count > MAX_MEMBERS:
            raise InvalidContextException(f"the archive is refused: it has more than {MAX_MEMBERS:,} entries")
        if not name:
            continue
        if name in found and not (member.isdir() and found[name].isdir()):
            raise InvalidContextException(f"the archive is refused: {name!r} is in it twice")
        found[name] = member
        total += member.size
        if total > max_bytes:
            raise InvalidContextException(
                f"the archive is refused: up to {name!r} its files have {total:,} bytes, more than the "
                f"{max_bytes:,} allowed"
            )
    links = {name for name, member in found.items() if member.issym()}
    for name, member in found.items():
        for parent in _parents(name):
            if parent in found and not found[parent].isdir():
                raise InvalidContextException(
                    f"the archive is refused: {name!r} is below {parent!r}, which is no folder"
                )
        if member.issym() or member.islnk():
            _check_link(name, member, links, found)
    return found


def _check_link(name: str, member: tarfile.TarInfo, links: set[str], found: dict[str, tarfile.TarInfo]) -> None:
    base = posixpath.dirname(name) if member.issym() else ""
    target = posixpath.normpath(posixpath.join(base, member.linkname))
    if member.linkname.startswith("/") or "\0" in member.linkname or target == ".." or target.startswith("../"):
        raise InvalidContextException(
            f"the archive is refused: the link {name!r} leads out of the folder, to {member.linkname!r}"
        )
    # With a link in the middle of its path, ".." would mean something else than what was just computed.
    walked = base
    for part in member.linkname.split("/")[:-1] + ([] if member.issym() else [""]):
        walked = posixpath.normpath(posixpath.join(walked, part))
        if walked in links and walked != target:
            raise InvalidContextException(
                f"the archive is refused: the link {name!r} leads through the link {walked!r}"
            )
    if member.islnk() and (target not in found or not found[target].isreg()):
        raise InvalidContextException(
            f"the archive is refused: the hard link {name!r} has no file {member.linkname!r} in the archive to refer to"
        )


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


def write_members(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], folder: str) -> None:
    """Write checked members below `folder`, which is empty: files, then links, then the folders' own modes."""
    links: list[tuple[str, tarfile.TarInfo]] = []
    folders: list[tuple[str, tarfile.TarInfo]] = []
    for name, member in members.items():
        path = os.path.join(folder, name)
        if member.isdir():
            os.makedirs(path, exist_ok=True)
            folders.append((path, member))
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if member.isreg():
            _write_file(archive, member, path)
        else:
            links.append((name, member))
    for name, member in links:
        path = os.path.join(folder, name)
        if member.issym():
            os.symlink(member.linkname, path)
        else:
            os.link(os.path.join(folder, posixpath.normpath(member.linkname)), path)
    _finish(folders)


def write_stream(archive: tarfile.TarFile, folder: str, max_bytes: int) -> None:
    """Write an archive of files and folders that can be read once only below `folder`, which is empty.

    Raises:
        InvalidContextException: A member is harmful, as `check_members` says, or a link; what came before it is there.
    """
    seen: set[str] = set()
    folders: list[tuple[str, tarfile.TarInfo]] = []
    total = 0
    while (member := archive.next()) is not None:
        name = checked_name(member, max_bytes)
        if not name:
            continue
        if not (member.isreg() or member.isdir()):
            raise InvalidContextException(f"the archive is refused: {name!r} is a link")
        total += member.size
        if total > max_bytes or len(seen) >= MAX_MEMBERS:
            raise InvalidContextException(
                f"the archive is refused: up to {name!r} it has {len(seen):,} entries and {total:,} bytes, more than "
                f"the {MAX_MEMBERS:,} and {max_bytes:,} allowed"
            )
        path = os.path.join(folder, name)
        try:
            if member.isdir():
                os.makedirs(path, exist_ok=True)
                folders.append((path, member))
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                _write_file(archive, member, path)
        except (FileExistsError, NotADirectoryError) as e:
            raise InvalidContextException(f"the archive is refused: {name!r} is in it twice, or below a file") from e
        seen.add(name)
    _finish(folders)


def _finish(folders: list[tuple[str, tarfile.TarInfo]]) -> None:
    """Give folders their own modes and times, once all is in them; the inner ones first."""
    for path, member in reversed(folders):
        os.chmod(path, (member.mode & 0o777) | 0o700)
        os.utime(path, (member.mtime, member.mtime))


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    source = archive.extractfile(member)
    assert source is not None
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with os.fdopen(fd, "wb") as f:
        while piece := source.read(1 << 20):
            f.write(piece)
    os.chmod(path, (member.mode & 0o777) | 0o400)
    os.utime(path, (member.mtime, member.mtime))
