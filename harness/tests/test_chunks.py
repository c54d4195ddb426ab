"""Large model directories: how they are cut into chunks, and how a container gets their tar."""

from __future__ import annotations

import hashlib
import io
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.common import _chunks
from determined.common._chunks import CHUNK_BYTES, content, plan_of
from determined.common.api._transport import TransportError
from determined.common.context import Folder, unpack_stream
from determined.errors import InvalidContextException
from determined.exec import _resumed
from determined.exec._resumed import Resumed


def a_folder(root: Path) -> Path:
    """A large file, 300 small ones of 6 MiB together, and an empty one."""
    generator = random.Random(1)
    (root / "pkg").mkdir(parents=True)
    (root / "large.bin").write_bytes(generator.randbytes(2 * CHUNK_BYTES + 100))
    for number in range(300):
        (root / "pkg" / f"{number:03}.py").write_bytes(generator.randbytes(20_000))
    (root / "empty").touch()
    return root


def rebuilt(plan: _chunks.Plan) -> dict[str, bytes]:
    """The files that the manifest makes of the chunks."""
    manifest = plan.manifest()
    chunks = [content(digest, plan.chunks[digest]) for digest in manifest["chunks"]]
    return {
        file["path"]: b"".join(chunks[s["chunk"]][s["offset"] : s["offset"] + s["size"]] for s in file["spans"])
        for file in manifest["files"]
        if file["type"] == 48
    }


def test_the_chunks_make_the_files_again(tmp_path: Path) -> None:
    root = a_folder(tmp_path)
    reported: list[int] = []
    plan = plan_of(Folder(root).entries, reported.append)
    names = [f"pkg/{number:03}.py" for number in range(300)] + ["large.bin", "empty"]
    assert rebuilt(plan) == {name: (root / name).read_bytes() for name in names}
    assert all(sum(piece.size for piece in pieces) <= CHUNK_BYTES for pieces in plan.chunks.values())
    assert len(plan.chunks) <= 12, "small files share chunks"
    assert reported[-1] == plan.total == sum((root / name).stat().st_size for name in names)


def test_a_change_of_one_file_changes_its_own_chunk(tmp_path: Path) -> None:
    root = a_folder(tmp_path)
    before = set(plan_of(Folder(root).entries).chunks)
    (root / "pkg" / "007.py").write_bytes(b"changed")
    with open(root / "large.bin", "r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"changed")
    assert len(set(plan_of(Folder(root).entries).chunks) - before) == 2


def test_a_file_that_changes_while_it_is_sent_is_refused(tmp_path: Path) -> None:
    root = a_folder(tmp_path)
    plan = plan_of(Folder(root).entries)
    [first, *_] = [digest for digest, pieces in plan.chunks.items() if pieces[0].path.name == "large.bin"]
    with open(root / "large.bin", "r+b") as file:
        file.write(b"other")
    with pytest.raises(InvalidContextException, match="changed while it was sent"):
        content(first, plan.chunks[first])
    os.truncate(root / "large.bin", 3)
    with pytest.raises(InvalidContextException, match="changed while it was sent"):
        content(first, plan.chunks[first])
    assert hashlib.sha256(b"").hexdigest() not in plan.chunks


def a_tar(*members: tuple[str, bytes | None]) -> bytes:
    """Members with their content; folders have none. A name with an arrow is a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name.partition("->")[0])
            member.type = tarfile.DIRTYPE if data is None else tarfile.SYMTYPE if "->" in name else tarfile.REGTYPE
            member.linkname = name.partition("->")[2]
            member.size, member.mode, member.mtime = len(data or b""), 0o750, 1000
            archive.addfile(member, io.BytesIO(data or b""))
    return buffer.getvalue()


def test_a_stream_is_unpacked_with_modes_and_times(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    unpack_stream(io.BytesIO(a_tar(("a", None), ("a/b.py", b"print()"), ("c/d", b"x" * 3_000_000))), tmp_path, 2**30)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["a", "a/b.py", "c", "c/d", "kept"]
    status = (tmp_path / "a" / "b.py").stat()
    assert (status.st_mode & 0o777, status.st_mtime, (tmp_path / "c" / "d").stat().st_size) == (0o750, 1000, 3_000_000)


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (a_tar(("../up", b"")), "leads out of the folder"),
        (a_tar(("/abs", b"")), "leads out of the folder"),
        (a_tar(("link->/etc", b"")), "is a link"),
        (a_tar(("a", b"1"), ("a", b"2")), "is in it twice"),
        (a_tar(("a", b"1"), ("a/b", b"2")), "or below a file"),
        (a_tar(("a", b"1" * 600), ("b", b"2" * 600)), "more than the 200,000 and 1,000 allowed"),
        (a_tar(("a", b"1" * 2000)), "more than the 1,000 allowed"),
        (a_tar(("a", b"1" * 900))[:700], "damaged"),
        (b"no archive" * 100, "damaged"),
    ],
)
def test_a_harmful_stream_is_refused_and_leaves_nothing(tmp_path: Path, archive: bytes, said: str) -> None:
    with pytest.raises(InvalidContextException, match=said):
        unpack_stream(io.BytesIO(archive), tmp_path / "into", 1000)
    assert not list((tmp_path / "into").iterdir())


class Breaking:
    """A body that breaks off after some bytes, or ends early."""

    def __init__(self, data: bytes, breaks: bool) -> None:
        self.data = data
        self.breaks = breaks

    def chunks(self) -> Iterator[bytes]:
        yield from (self.data[at : at + 7] for at in range(0, len(self.data), 7))
        if self.breaks:
            raise TransportError("the answer broke off", maybe_sent=True)

    def close(self) -> None:
        pass


def test_a_download_goes_on_where_it_broke_off(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    data = random.Random(2).randbytes(1000)
    opened: list[int] = []

    def open_at(offset: int) -> Breaking:
        opened.append(offset)
        return Breaking(data[offset : offset + 300], breaks=len(opened) % 2 == 0)

    monkeypatch.setattr(_resumed.time, "sleep", lambda _: None)
    with io.BufferedReader(Resumed(open_at, len(data)), 64) as file:
        assert file.read() == data
    assert opened == [0, 300, 600, 900]
