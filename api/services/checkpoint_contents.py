"""The files of a checkpoint as the API serves them: their list, the content of each, and an archive."""

from __future__ import annotations

import tarfile
import time
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from api.auth.authentication import AllocationPrincipal, UserPrincipal
from api.auth.authorization import readable_checkpoint
from api.errors import BadRequest, NotFound
from database.models import Checkpoint, Experiment
from determined import errors
from determined.common.storage import FileEntry
from determined.common.storage.hosted import Claim, Hosted, hosted

_PIECE_BYTES = 2**18


@dataclass(frozen=True)
class Stored:
    """A checkpoint that has files, and where they are, with the keys that are shown to nobody.

    Its methods raise NotFound if the files are not where this server looks for them, or are not the checkpoint's.
    """

    claim: Claim
    sizes: Mapping[str, int]
    section: Mapping[str, Any]
    roots: Sequence[str]

    def hashes(self) -> dict[str, str]:
        """Path -> XXH3 of the files that the checkpoint's manifest lists; none, if it has no manifest."""
        with self._opened() as place:
            return {path: entry.xxh3 for path, entry in place.files(self.claim).items() if entry.xxh3}

    def content(self, path: str, offset: int) -> Iterator[bytes]:
        """A file's content from a byte on, piece by piece. What is wrong is found out now, not by the iterator."""
        with self._opened(stays_open=True) as place:
            if path not in place.files(self.claim):
                raise errors.CheckpointNotFound(f"it has no file {path!r}")
            return _closed_after(place, place.open_file(self.claim.uuid, path, offset))

    def archive(self, *, gzip: bool) -> Iterator[bytes]:
        """A tar (or tar.gz) of it, piece by piece: a file may be larger than memory."""
        with self._opened(stays_open=True) as place:
            pieces = _closed_after(place, _archived(place, self.claim.uuid, place.files(self.claim)))
        return _packed(pieces) if gzip else pieces

    @contextmanager
    def _opened(self, *, stays_open: bool = False) -> Generator[Hosted]:
        place: Hosted | None = None
        try:
            place = hosted(self.section, self.roots)
            if place is None:
                raise errors.CheckpointNotFound("it lived and died with its container")
            yield place
        except BaseException as error:
            stays_open = False
            if not isinstance(error, (errors.DeterminedException, OSError, ValueError)):
                raise
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise NotFound(
                f"the files of checkpoint {self.claim.uuid} are not where this server looks for them: {why}"
            ) from None
        finally:
            if place is not None and not stays_open:
                place.close()


def stored(session: Session, uuid: str, caller: UserPrincipal | AllocationPrincipal, roots: Sequence[str]) -> Stored:
    """A checkpoint that has files. Raises: NotFound, BadRequest."""
    row = readable_checkpoint(session, uuid.lower(), caller)
    if row.state not in ("COMPLETED", "PARTIALLY_DELETED"):
        shown = "DELETED" if row.state == "DELETING" else row.state
        raise BadRequest(f"checkpoint {uuid} is {shown}: it can't be downloaded")
    section: dict[str, Any] = session.get_one(Experiment, row.experiment_id).config["checkpoint_storage"]
    return Stored(claim_on(row), row.resources, section, roots)


def claim_on(row: Checkpoint) -> Claim:
    """What is recorded of a checkpoint, to be held against its files."""
    return Claim(row.uuid, row.task_id, row.resources, is_of_container=bool(row.allocation_id))


def _closed_after(place: Hosted, pieces: Iterator[bytes]) -> Iterator[bytes]:
    with closing(place):
        yield from pieces


def _packed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(1, wbits=31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _archived(place: Hosted, uuid: str, files: Mapping[str, FileEntry]) -> Iterator[bytes]:
    now = int(time.time())
    for path, entry in files.items():
        try:
            pieces = iter(()) if path.endswith("/") else place.open_file(uuid, path)
            mode = place.mode(uuid, path)
        except OSError:  # gone in the meantime, or replaced by a link
            continue
        yield _head(Path(path), mode, now, None if path.endswith("/") else entry.size)
        if not path.endswith("/"):
            yield from _filled(pieces, entry.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _head(path: Path, mode: int, modified_at: int, size: int | None) -> bytes:
    """A member's head; of a folder, if it has no size."""
    member = tarfile.TarInfo(str(path))
    member.type = tarfile.DIRTYPE if size is None else tarfile.REGTYPE
    member.mode, member.mtime, member.size = mode & 0o777, modified_at, size or 0
    return member.tobuf()


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
