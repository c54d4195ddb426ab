"""Downloads of checkpoints: parallel, taken up again, checked, and seen to proceed."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import xxhash

from determined import errors
from determined.common import storage
from determined.common.api import Session
from determined.common.api._async._session import AsyncSession
from determined.common.experimental._async.checkpoint import AsyncCheckpoint
from determined.common.storage._files import Landing
from determined.experimental import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Call, Master

UUID = "11111111-2222-4333-8444-555555555555"
FILES = {f"layer{n}.bin": bytes([n]) * 200_000 for n in range(8)}


def body(files: dict[str, bytes], **changes: Any) -> dict[str, Any]:
    return {
        "uuid": UUID,
        "resources": {name: str(len(content)) for name, content in files.items()},
        "metadata": {"steps_completed": 4},
        "state": "STATE_COMPLETED",
        "training": {"trialId": 7, "experimentId": 3, "experimentConfig": {}, **changes},
    }


LISTING = f"GET /api/v1/undeterred/checkpoints/{UUID}/files"
CONTENT = f"GET /api/v1/undeterred/checkpoints/{UUID}/file"


def listing(files: dict[str, bytes]) -> dict[str, Any]:
    return {
        "files": {name: {"size": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)} for name, data in files.items()}
    }


def wanted(call: Call) -> tuple[str, int]:
    return call.query["path"][0], int(call.query["offset"][0])


def serve(master: Master, files: dict[str, bytes] = FILES) -> None:
    def content(call: Call) -> tuple[int, bytes]:
        name, offset = wanted(call)
        return 200, files[name][offset:]

    master.answer(LISTING, listing(files))
    master.answer(CONTENT, content)


def break_off(master: Master, name: str, after: int) -> None:
    """One file breaks off, each time after so many bytes more."""

    def content(call: Call) -> Any:
        asked, offset = wanted(call)
        data = FILES[asked][offset:]
        if asked != name:
            return 200, data
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        return master.Raw(head + data[:after])

    master.answer(CONTENT, content)


@pytest.fixture
def checkpoint(master: Master) -> Iterator[client.Checkpoint]:
    """A checkpoint of `FILES` that is there by way of the master only."""
    serve(master)
    session = Session(master.url, token="tok")
    yield client.Checkpoint.from_wire(session, body(FILES))
    session.close()


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*.bin")}


def test_a_file_that_breaks_off_goes_on_where_it_did(
    checkpoint: client.Checkpoint, master: Master, tmp_path: Path
) -> None:
    break_off(master, "layer3.bin", 70_000)
    told: list[tuple[int, int]] = []
    checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER, progress=lambda *now: told.append(now))
    assert {name: (tmp_path / "c" / name).read_bytes() for name in FILES} == FILES
    asked = [wanted(call) for call in master.of(CONTENT)]
    assert [offset for name, offset in asked if name == "layer3.bin"] == [0, 70_000, 140_000]
    assert len(asked) == 10
    assert told[-1] == (1_600_000, 1_600_000)
    assert os.listdir(tmp_path) == ["c"]


def test_a_download_that_failed_goes_on_with_the_next_one(
    checkpoint: client.Checkpoint, master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("determined.common.api._io.sleep", lambda seconds: None)
    kept = FILES["layer5.bin"][:70_000]

    def fault(call: Call) -> Any:
        if call.path.endswith("/file") and wanted(call)[0] == "layer5.bin":
            rest = kept[wanted(call)[1] :]
            return master.Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + rest)
        return None

    master.fault = fault
    with pytest.raises(errors.ProxiedDownloadFailed, match="layer5.bin broke off at byte 70,000: .*closed|broke off"):
        checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert not (tmp_path / "c").exists()
    there = inodes(tmp_path / ".c.part")
    assert "layer0.bin" in there
    assert "layer5.bin" not in there
    master.fault = lambda call: None
    before = len(master.calls)
    told: list[tuple[int, int]] = []
    checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER, progress=lambda *now: told.append(now))
    assert {name: (tmp_path / "c" / name).read_bytes() for name in FILES} == FILES
    assert there.items() <= inodes(tmp_path / "c").items(), "complete files were written again"
    asked = dict(wanted(call) for call in master.calls[before:] if call.path.endswith("/file"))
    assert asked.keys() == FILES.keys() - there.keys(), "what is complete was fetched again"
    assert asked["layer5.bin"] == 70_000, "what had arrived was fetched again"
    assert told[-1] == (1_600_000, 1_600_000)
    assert os.listdir(tmp_path) == ["c"]


def test_files_come_from_the_master_several_at_a_time(
    checkpoint: client.Checkpoint, master: Master, tmp_path: Path
) -> None:
    together = threading.Barrier(4, timeout=20)  # one alone never passes it

    def content(call: Call) -> tuple[int, bytes]:
        together.wait()
        return 200, FILES[wanted(call)[0]]

    master.answer(CONTENT, content)
    checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert {name: (tmp_path / "c" / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: bytes([data[0] ^ 1]) + data[1:], r"layer2.bin is damaged: expected XXH3 [0-9a-f]{32}, found"),
        (lambda data: data[:-1], "layer2.bin is damaged: expected 200,000 bytes, found 199,999"),
        (lambda data: data + b"x", "layer2.bin is damaged: expected 200,000 bytes, found 200,001"),
    ],
    ids=["byte", "shorter", "longer"],
)
def test_a_file_that_is_not_what_was_saved_is_refused(
    checkpoint: client.Checkpoint, master: Master, tmp_path: Path, change: Callable[[bytes], bytes], told: str
) -> None:
    serve(master, {**FILES, "layer2.bin": change(FILES["layer2.bin"])})
    master.answer(LISTING, listing(FILES))
    with pytest.raises(errors.ProxiedDownloadFailed, match=told):
        checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert not (tmp_path / "c").exists()
    serve(master)
    checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert (tmp_path / "c" / "layer2.bin").read_bytes() == FILES["layer2.bin"], "the damaged file was taken over"


def test_a_path_that_leads_out_is_refused(checkpoint: client.Checkpoint, master: Master, tmp_path: Path) -> None:
    serve(master, {**FILES, "../evil": b"x"})
    with pytest.raises(errors.ProxiedDownloadFailed, match=r"'\.\./evil' is refused: it leads out"):
        checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert os.listdir(tmp_path) == []


def test_what_another_checkpoint_left_is_not_taken_over(checkpoint: client.Checkpoint, tmp_path: Path) -> None:
    part = tmp_path / ".c.part"
    part.mkdir()
    (part / ".undeterred-download").write_text("another")
    (part / "layer0.bin").write_bytes(b"x" * 200_000)
    checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert (tmp_path / "c" / "layer0.bin").read_bytes() == FILES["layer0.bin"]


def test_two_downloads_to_one_place_do_not_mix(checkpoint: client.Checkpoint, tmp_path: Path) -> None:
    with open(tmp_path / ".c.part.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (tmp_path / ".c.part").mkdir()
        checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert (tmp_path / "c" / "layer7.bin").read_bytes() == FILES["layer7.bin"]
    assert os.listdir(tmp_path / ".c.part") == [], "the other's folder was touched"


@pytest.fixture
def stored(master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[client.Checkpoint]:
    """The files below `sub` of a checkpoint that is in a folder, saved by us."""
    monkeypatch.delenv("DET_SHARED_FS_PATH", raising=False)
    (tmp_path / "source" / "sub").mkdir(parents=True)
    for name, content in FILES.items():
        (tmp_path / "source" / "sub" / name).write_bytes(content)
    config = {"checkpoint_storage": {"type": "directory", "container_path": str(tmp_path / "storage")}}
    place = storage.build(config["checkpoint_storage"])
    paths = ["sub/", *(f"sub/{name}" for name in FILES)]
    place.begin(UUID)
    place.commit(UUID, place.put(UUID, str(tmp_path / "source"), paths), {})
    session = Session(master.url, token="tok")
    files = {path: FILES.get(path.removeprefix("sub/"), b"") for path in paths}
    yield client.Checkpoint.from_wire(session, body(files, experimentConfig=config))
    session.close()


def test_files_come_from_the_storage_several_at_a_time(
    stored: client.Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4, timeout=20)  # one thread alone never passes it
    copy = Landing.copy

    def meet(*args: Any) -> None:
        together.wait()
        copy(*args)

    monkeypatch.setattr(Landing, "copy", meet)
    told: list[tuple[int, int]] = []
    stored.download(tmp_path / "c", client.DownloadMode.DIRECT, progress=lambda *now: told.append(now))
    assert {name: (tmp_path / "c" / "sub" / name).read_bytes() for name in FILES} == FILES
    assert told[-1] == (1_600_000, 1_600_000)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_download_from_the_storage_takes_over_what_is_there_and_right(
    stored: client.Checkpoint, tmp_path: Path
) -> None:
    part = tmp_path / ".d.part" / "sub"
    part.mkdir(parents=True)
    (part.parent / ".undeterred-download").write_text(UUID)
    (part / "layer0.bin").write_bytes(FILES["layer0.bin"])
    (part / "layer1.bin").write_bytes(b"y" * 200_000)
    (part / "layer2.bin").write_bytes(b"short")
    right = (part / "layer0.bin").stat().st_ino
    stored.download(tmp_path / "d", client.DownloadMode.DIRECT)
    assert {name: (tmp_path / "d" / "sub" / name).read_bytes() for name in FILES} == FILES
    assert (tmp_path / "d" / "sub" / "layer0.bin").stat().st_ino == right


def test_a_file_that_was_damaged_in_the_storage_is_refused(
    stored: client.Checkpoint, master: Master, tmp_path: Path
) -> None:
    (tmp_path / "storage" / UUID / "sub" / "layer4.bin").write_bytes(b"y" * 200_000)
    with pytest.raises(errors.NoDirectStorageAccess, match=r"layer4\.bin is damaged: expected XXH3"):
        stored.download(tmp_path / "c", client.DownloadMode.DIRECT)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS])
def test_files_are_copied_and_checked_where_the_kernel_cannot(
    stored: client.Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls: list[int] = []

    def refuse(*args: Any) -> int:
        calls.append(number)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    stored.download(tmp_path / "c", client.DownloadMode.DIRECT)
    assert {name: (tmp_path / "c" / "sub" / name).read_bytes() for name in FILES} == FILES
    assert len(calls) == len(FILES)
    (tmp_path / "storage" / UUID / "sub" / "layer4.bin").write_bytes(b"y" * 200_000)
    with pytest.raises(errors.NoDirectStorageAccess, match=r"layer4\.bin is damaged: expected XXH3"):
        stored.download(tmp_path / "d", client.DownloadMode.DIRECT)


def test_a_full_disk_is_told_and_leaves_no_half_of_a_file(
    stored: client.Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    with pytest.raises(errors.NoDirectStorageAccess, match="directly: .*No space left on device"):
        stored.download(tmp_path / "to", client.DownloadMode.DIRECT)
    assert sorted(os.listdir(tmp_path)) == ["source", "storage"]


def test_a_terminal_sees_the_download_proceed_and_a_pipe_does_not(
    checkpoint: client.Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", quiet := io.StringIO())
    checkpoint.download(tmp_path / "a", client.DownloadMode.MASTER)
    assert quiet.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    checkpoint.download(tmp_path / "b", client.DownloadMode.MASTER)
    assert terminal.getvalue().endswith(f"\rcheckpoint {UUID}: 1.6 of 1.6 MB (100 %)\n")


async def test_asynchronous_downloads_are_the_same(master: Master, tmp_path: Path) -> None:
    serve(master)
    break_off(master, "layer3.bin", 70_000)
    session = AsyncSession(master.url, token="tok")
    checkpoint = AsyncCheckpoint.from_wire(session, body(FILES))
    told: list[tuple[int, int]] = []
    await checkpoint.download(tmp_path / "a", client.DownloadMode.MASTER, progress=lambda *now: told.append(now))
    assert {name: (tmp_path / "a" / name).read_bytes() for name in FILES} == FILES
    assert told[-1] == (1_600_000, 1_600_000)
    serve(master, {**FILES, "layer2.bin": b"x" * 200_000})
    master.answer(LISTING, listing(FILES))
    with pytest.raises(errors.ProxiedDownloadFailed, match="layer2.bin is damaged"):
        await checkpoint.download(tmp_path / "b", client.DownloadMode.MASTER)
    assert not (tmp_path / "b").exists()
    await session.close()
