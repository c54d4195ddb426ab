"""Downloads of checkpoints: parallel, taken up again, checked, and seen to proceed."""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import os
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from determined import errors
from determined.common.api import Session
from determined.common.api._async._session import AsyncSession
from determined.common.experimental import _download
from determined.common.experimental._async.checkpoint import AsyncCheckpoint
from determined.experimental import client

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), 0)


@pytest.fixture
def checkpoint(master: Master) -> Iterator[client.Checkpoint]:
    """A checkpoint of `FILES` that is there by way of the master only."""
    master.answer(f"GET /checkpoints/{UUID}", lambda call: (200, tar(FILES)))
    session = Session(master.url, "tok")
    yield client.Checkpoint.from_wire(session, body(FILES))
    session.close()


def broken_off(master: Master, data: bytes, at: int) -> Any:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    return lambda call: master.Raw(head + data[:at])


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*.bin")}


def test_a_download_that_broke_off_takes_up_what_is_complete(
    checkpoint: client.Checkpoint, master: Master, tmp_path: Path
) -> None:
    master.answer(f"GET /checkpoints/{UUID}", broken_off(master, tar(FILES), 900_000))
    with pytest.raises(errors.ProxiedDownloadFailed, match="broke off"):
        checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert not (tmp_path / "c").exists()
    there = inodes(tmp_path / ".c.part")
    assert sorted(there) == ["layer0.bin", "layer1.bin", "layer2.bin", "layer3.bin"]
    master.answer(f"GET /checkpoints/{UUID}", lambda call: (200, tar(FILES)))
    checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert {name: (tmp_path / "c" / name).read_bytes() for name in FILES} == FILES
    assert there.items() <= inodes(tmp_path / "c").items(), "complete files were written again"
    assert os.listdir(tmp_path) == ["c"]


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


def test_an_archive_with_a_wrong_checksum_is_refused(
    checkpoint: client.Checkpoint, master: Master, tmp_path: Path
) -> None:
    data = bytearray(tar(FILES))
    data[-8] ^= 1
    master.answer(f"GET /checkpoints/{UUID}", lambda call: (200, bytes(data)))
    with pytest.raises(errors.ProxiedDownloadFailed, match="the archive is damaged: .*incorrect data check"):
        checkpoint.download(tmp_path / "c", client.DownloadMode.MASTER)
    assert not (tmp_path / "c").exists()


def test_files_come_from_the_storage_several_at_a_time(
    master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    monkeypatch.delenv("DET_SHARED_FS_PATH", raising=False)
    storage = tmp_path / "storage" / UUID
    (storage / "sub").mkdir(parents=True)
    for name, content in FILES.items():
        (storage / "sub" / name).write_bytes(content)
    files = {f"sub/{name}": content for name, content in FILES.items()}
    config = {"checkpoint_storage": {"type": "directory", "container_path": str(tmp_path / "storage")}}
    session = Session(master.url, "tok")
    checkpoint = client.Checkpoint.from_wire(session, body({**files, "sub/": b""}, experimentConfig=config))
    together = threading.Barrier(4, timeout=20)  # one thread alone never passes it
    copy_file = _download._copy_file

    def meet(*args: Any) -> None:
        together.wait()
        copy_file(*args)

    monkeypatch.setattr(_download, "_copy_file", meet)
    told: list[tuple[int, int]] = []
    checkpoint.download(tmp_path / "c", client.DownloadMode.DIRECT, progress=lambda *now: told.append(now))
    assert {name: (tmp_path / "c" / name).read_bytes() for name in files} == files
    assert told[-1] == (1_600_000, 1_600_000)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    monkeypatch.setattr(_download, "_copy_file", copy_file)
    # Taken up again: what has the right size is left alone, what has not is copied.
    part = tmp_path / ".d.part" / "sub"
    part.mkdir(parents=True)
    (part.parent / ".undeterred-download").write_text(UUID)
    (part / "layer1.bin").write_bytes(b"y" * 200_000)
    (part / "layer2.bin").write_bytes(b"short")
    checkpoint.download(tmp_path / "d", client.DownloadMode.DIRECT)
    assert (tmp_path / "d" / "sub" / "layer1.bin").read_bytes() == b"y" * 200_000
    assert (tmp_path / "d" / "sub" / "layer2.bin").read_bytes() == FILES["layer2.bin"]
    session.close()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS])
def test_files_are_copied_where_the_kernel_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    calls: list[int] = []

    def refuse(*args: Any) -> int:
        calls.append(number)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    content = os.urandom(3_000_001)
    (tmp_path / "from" / "x").write_bytes(content)
    (tmp_path / "from" / "empty").write_bytes(b"")
    _download.copy(str(tmp_path / "from"), str(tmp_path / "to"), None)
    assert (tmp_path / "to" / "x").read_bytes() == content
    assert (tmp_path / "to" / "empty").read_bytes() == b""
    assert calls


def test_a_full_disk_is_told_and_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "x").write_bytes(b"x")
    with pytest.raises(OSError, match="No space left"):
        _download.copy(str(tmp_path / "from"), str(tmp_path / "to"), None)
    assert os.listdir(tmp_path / "to") == []


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
    master.answer(f"GET /checkpoints/{UUID}", lambda call: (200, tar(FILES)))
    session = AsyncSession(master.url, "tok")
    checkpoint = AsyncCheckpoint.from_wire(session, body(FILES))
    told: list[tuple[int, int]] = []
    await checkpoint.download(tmp_path / "a", client.DownloadMode.MASTER, progress=lambda *now: told.append(now))
    assert {name: (tmp_path / "a" / name).read_bytes() for name in FILES} == FILES
    assert told[-1] == (1_600_000, 1_600_000)
    master.answer(f"GET /checkpoints/{UUID}", broken_off(master, tar(FILES), 900_000))
    with pytest.raises(errors.ProxiedDownloadFailed, match="broke off"):
        await checkpoint.download(tmp_path / "b", client.DownloadMode.MASTER)
    assert sorted(inodes(tmp_path / ".b.part")) == ["layer0.bin", "layer1.bin", "layer2.bin", "layer3.bin"]

    def refuse(call: Call) -> Any:
        return 200, tar({"../evil": b"x", **FILES})

    master.answer(f"GET /checkpoints/{UUID}", refuse)
    with pytest.raises(errors.ProxiedDownloadFailed, match="leads out"):
        await checkpoint.download(tmp_path / "d", client.DownloadMode.MASTER)
    await session.close()
