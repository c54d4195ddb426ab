"""The files of a checkpoint as one archive, streamed from wherever they are."""

from __future__ import annotations

import os
import stat
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from api.errors import NotFound
from determined import errors
from determined.common import storage
from determined.common.storage import MANIFEST_FILE

_PIECE_BYTES = 2**18


def archive(config: Mapping[str, Any], uuid: str, *, gzip: bool) -> Iterator[bytes]:
    """A tar (or tar.gz) of a checkpoint, piece by piece: a file may be larger than memory.

    What is wrong with the storage is found out now, not by the iterator.

    Args:
        config: The section `checkpoint_storage` of the experiment.
        uuid: The checkpoint.
        gzip: Whether to pack it.

    Raises:
        NotFound: The files are not where this server looks for them, or it can't reach that place.
    """
    pieces = _of_folder(config, uuid) if config["type"] in ("shared_fs", "directory") else _of_objects(config, uuid)
    return _packed(pieces) if gzip else pieces


def _packed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(1, wbits=31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _of_folder(config: Mapping[str, Any], uuid: str) -> Iterator[bytes]:
    try:
        folder = Path(storage.host_root(config)) / uuid
    except errors.InvalidConfigurationException as error:
        raise NotFound(f"the files of checkpoint {uuid} are not where this server looks for them: {error}") from None
    # Not by way of a link: who writes to the storage could have it point anywhere on this host.
    if not folder.is_dir() or folder.is_symlink():
        raise NotFound(f"the files of checkpoint {uuid} are not where this server looks for them")
    return _folder_pieces(folder)


def _folder_pieces(folder: Path) -> Iterator[bytes]:
    """Whoever writes to the storage may replace a file by a link at any time: none is followed, none is sent."""
    for path, folders, files, here in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        below = Path(path).relative_to(folder)
        for name in folders:
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield _head(below / name, status.st_mode, int(status.st_mtime))
        for name in sorted(files):
            if str(below / name) == MANIFEST_FILE:
                continue
            try:
                number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
            except OSError:  # a link, or gone in the meantime
                continue
            with open(number, "rb") as file:
                status = os.fstat(number)
                if stat.S_ISREG(status.st_mode):
                    yield _head(below / name, status.st_mode, int(status.st_mtime), status.st_size)
                    yield from _filled(_read(file), status.st_size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _of_objects(config: Mapping[str, Any], uuid: str) -> Iterator[bytes]:
    try:
        place = storage.build(config)
        with closing(place):
            files = place.list_files(uuid)
    except errors.DeterminedException as error:
        raise NotFound(f"the files of checkpoint {uuid} are not where this server looks for them: {error}") from None
    return _object_pieces(place, uuid, files)


def _object_pieces(place: storage.Storage, uuid: str, files: Mapping[str, int]) -> Iterator[bytes]:
    now = int(time.time())
    with closing(place):
        for path, size in files.items():
            if path.endswith("/"):
                yield _head(Path(path), 0o755, now)
            else:
                yield _head(Path(path), 0o644, now, size)
                yield from _filled(place.open_file(uuid, path), size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _head(path: Path, mode: int, modified_at: int, size: int | None = None) -> bytes:
    """A member's head; of a folder, if it has no size."""
    member = tarfile.TarInfo(str(path))
    member.type = tarfile.DIRTYPE if size is None else tarfile.REGTYPE
    member.mode, member.mtime, member.size = mode & 0o777, modified_at, size or 0
    return member.tobuf()


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def _filled(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Exactly `size` bytes, as the head says, whatever becomes of the file; filled up to a whole block."""
    left = size
    for piece in pieces:
        yield piece[:left]
        left -= min(left, len(piece))
        if not left:
            break
    for filler in range(left + -size % tarfile.BLOCKSIZE, 0, -_PIECE_BYTES):
        yield bytes(min(filler, _PIECE_BYTES))
