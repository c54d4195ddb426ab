"""The files of a checkpoint one by one: what there is, with its hashes, and the content of each from any byte on."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from api.errors import NotFound
from determined import errors
from determined.common import storage
from determined.common.storage import MANIFEST_FILE, FileEntry, decode

_PIECE_BYTES = 2**18
_FOLDERS = ("shared_fs", "directory")


def hashes(config: Mapping[str, Any], uuid: str) -> dict[str, str]:
    """Path -> XXH3 of the files that the checkpoint's manifest lists; none, if it has no manifest.

    Args:
        config: The section `checkpoint_storage` of the experiment.
        uuid: The checkpoint.

    Raises:
        NotFound: It is not where this server looks for it, or the manifest is damaged.
    """
    with _told_as_absent(uuid):
        if config["type"] in _FOLDERS:
            entries = _manifest_of(_folder(config, uuid), uuid)
        else:
            with closing(storage.build(config)) as place:
                entries = place.entries(uuid)
    return {path: entry.xxh3 for path, entry in entries.items() if entry.xxh3}


def content(config: Mapping[str, Any], uuid: str, path: str, offset: int) -> Iterator[bytes]:
    """A file's content from a byte on, piece by piece. What is wrong is found out now, not by the iterator.

    Args:
        config: The section `checkpoint_storage` of the experiment.
        uuid: The checkpoint.
        path: Of the file within it.
        offset: How many bytes to leave out.

    Raises:
        NotFound: The file is not where this server looks for it, or it can't reach that place.
    """
    with _told_as_absent(uuid):
        if config["type"] in _FOLDERS:
            return _read(_open_below(_folder(config, uuid), path), offset)
        place = storage.build(config)
        pieces = place.open_file(uuid, path, offset)
        try:
            first = next(pieces, b"")
        except BaseException:
            place.close()
            raise
        return _closed_after(place, itertools.chain([first], pieces))


@contextmanager
def _told_as_absent(uuid: str) -> Generator[None]:
    try:
        yield
    except (errors.DeterminedException, OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise NotFound(f"the files of checkpoint {uuid} are not where this server looks for them: {why}") from None


def _folder(config: Mapping[str, Any], uuid: str) -> Path:
    return Path(storage.host_root(config)) / uuid


def _manifest_of(folder: Path, uuid: str) -> dict[str, FileEntry]:
    try:
        raw = b"".join(_read(_open_below(folder, MANIFEST_FILE), 0))
    except FileNotFoundError:
        if not folder.is_dir() or folder.is_symlink():
            raise
        return {}
    return decode(raw, f"the manifest of {uuid}")


def _open_below(folder: Path, path: str) -> int:
    """Whoever writes to the storage may replace a file or a folder by a link at any time: none is followed."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    *folders, name = path.split("/")
    try:
        for each in folders:
            below = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise FileNotFoundError(f"{path} is no file")
    return number


def _read(number: int, offset: int) -> Iterator[bytes]:
    file = open(number, "rb", buffering=0)  # noqa: SIM115 (closed when it is read, or when nobody will)
    file.seek(offset)
    return _pieces(file)


def _pieces(file: FileIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _closed_after(place: storage.Storage, pieces: Iterator[bytes]) -> Iterator[bytes]:
    with closing(place):
        yield from pieces
