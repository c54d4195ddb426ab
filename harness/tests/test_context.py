"""Packing a model directory, and unpacking one safely."""

from __future__ import annotations

import base64
import gzip
import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from determined.common import context
from determined.common.context import pack_context, unpack_context
from determined.errors import InvalidContextException


def _names(files: list[dict[str, Any]]) -> list[str]:
    return [f["path"] for f in files]


def _write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}")


def test_files_become_v1_files(tmp_path: Path) -> None:
    _write(tmp_path, "a/b.py")
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    os.utime(tmp_path / "run.sh", (1000, 1000.7))
    folder, file, script = pack_context(tmp_path)
    assert (folder["path"], folder["type"], folder["content"]) == ("a", 53, "")
    assert (file["path"], file["type"]) == ("a/b.py", 48)
    assert base64.b64decode(file["content"]) == b"content of a/b.py"
    assert script["mode"] == stat.S_IFREG | 0o755
    assert script["mtime"] == "1000"
    assert set(script) == {"path", "type", "content", "mtime", "mode", "uid", "gid"}


def test_the_ignore_list_is_gits(tmp_path: Path) -> None:
    _write(tmp_path, "keep.py", "x.pyc", "__pycache__/y.py", ".git/config", "terraform.tfstate.1", "shared_fs/z")
    _write(tmp_path, "sub/shared_fs/kept", "data/big.bin", "data/keep.txt", "sub/.detignore", "logs/a", "sub/a.tmp")
    (tmp_path / ".detignore").write_text("# comment\ndata/*\n!data/keep.txt\n/logs/\n*.tmp\n")
    assert _names(pack_context(tmp_path)) == [
        "data",
        "data/keep.txt",
        "keep.py",
        "sub",
        "sub/shared_fs",
        "sub/shared_fs/kept",
    ]


def test_includes_come_under_their_own_names(tmp_path: Path) -> None:
    model, other, third = tmp_path / "model", tmp_path / "lib", tmp_path / "third"
    _write(model, "train.py")
    _write(other, "lib.py", "skip.txt", "sub/x")
    (other / ".detignore").write_text("skip.txt\n")
    _write(third, "train.py", "note")
    assert _names(pack_context(model, [other, third / "note"])) == [
        "train.py",
        "lib",
        "lib/lib.py",
        "lib/sub",
        "lib/sub/x",
        "note",
    ]
    with pytest.raises(InvalidContextException, match=r"duplicate path detected: 'train\.py'"):
        pack_context(model, [third / "train.py"])
    with pytest.raises(InvalidContextException, match="it has no name"):
        pack_context(model, ["/"])
    with pytest.raises(InvalidContextException, match="it does not exist"):
        pack_context(model, [tmp_path / "nothing"])
    with pytest.raises(InvalidContextException, match="is not a directory"):
        pack_context(model / "train.py")


def test_links_are_sent_as_what_they_point_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    _write(outside, "file", "deep/x")
    model = tmp_path / "model"
    model.mkdir()
    (model / "link").symlink_to(outside / "file")
    (model / "folder").symlink_to(outside / "deep")
    files = pack_context(model)
    assert _names(files) == ["folder", "folder/x", "link"]
    assert base64.b64decode(files[2]["content"]) == b"content of file"
    (model / "loop").symlink_to(model)
    with pytest.raises(InvalidContextException, match="leads to a folder that contains it"):
        pack_context(model)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    _write(tmp_path, "ok")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidContextException, match=r"broken \(No such file or directory\).*\.detignore"):
        pack_context(tmp_path)


def test_a_context_that_is_too_large_names_its_largest_files(tmp_path: Path) -> None:
    assert context.MAX_CONTEXT_BYTES == 95 << 20
    _write(tmp_path, "train.py")
    for name, size in (("huge.bin", 90 << 20), ("large.bin", 6 << 20)):
        with open(tmp_path / name, "wb") as f:
            f.truncate(size)
    with pytest.raises(InvalidContextException, match=r"95\.0MB: it is 96\.0MB.*huge\.bin \(90\.0MB\), large\.bin"):
        pack_context(tmp_path)
    with open(tmp_path / "large.bin", "wb") as f:
        f.truncate((5 << 20) - len("content of train.py"))
    assert len(pack_context(tmp_path)) == 3


def _tgz(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _file(name: str, content: bytes = b"x", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = mode, 1000
    return info, content


def _special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info, b""


def test_an_archive_is_unpacked_with_modes_times_and_links(tmp_path: Path) -> None:
    data = _tgz(
        _special(".", tarfile.DIRTYPE),
        _special("./sub", tarfile.DIRTYPE),
        _file("./sub/run.sh", b"#!/bin/sh", 0o6755),
        _file("no/folder/entry", b"y"),
        _special("sub/soft", tarfile.SYMTYPE, "../no/folder/entry"),
        _special("hard", tarfile.LNKTYPE, "sub/run.sh"),
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "old").write_text("old")
    (tmp_path / "hard").write_text("replaced")
    unpack_context(data, tmp_path)
    assert stat.S_IMODE((tmp_path / "sub" / "run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "sub" / "run.sh").stat().st_mtime == 1000
    assert (tmp_path / "sub" / "soft").read_bytes() == b"y"
    assert (tmp_path / "hard").read_bytes() == b"#!/bin/sh"
    assert (tmp_path / "sub" / "old").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["hard", "no", "sub"]


def test_nothing_to_unpack_is_fine(tmp_path: Path) -> None:
    unpack_context(b"", tmp_path / "new")
    assert os.listdir(tmp_path / "new") == []


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([_file("/etc/evil")], "'/etc/evil' leads out"),
        ([_file("../evil")], r"'\.\./evil' leads out"),
        ([_file("a/../../evil")], r"'a/\.\./\.\./evil' leads out"),
        ([_special("dev", tarfile.CHRTYPE)], "'dev' is a device"),
        ([_special("dev", tarfile.BLKTYPE)], "'dev' is a device"),
        ([_special("pipe", tarfile.FIFOTYPE)], "'pipe' is a device"),
        ([_special("l", tarfile.SYMTYPE, "/etc")], "the link 'l' leads out of the folder, to '/etc'"),
        ([_special("a/l", tarfile.SYMTYPE, "../../x")], "the link 'a/l' leads out"),
        ([_special("l", tarfile.SYMTYPE, ".."), _file("l/x")], "leads out|is below"),
        ([_special("l", tarfile.SYMTYPE, "a"), _file("l/x")], "'l/x' is below 'l', which is no folder"),
        ([_file("f"), _file("f/x")], "'f/x' is below 'f', which is no folder"),
        ([_special("h", tarfile.LNKTYPE, "../x")], "the link 'h' leads out"),
        ([_special("h", tarfile.LNKTYPE, "nothing")], "the hard link 'h' has no file 'nothing'"),
        (
            [_special("d/e/l1", tarfile.SYMTYPE, "../.."), _special("l2", tarfile.SYMTYPE, "d/e/l1/..")],
            "the link 'l2' leads through the link 'd/e/l1'",
        ),
        ([_file("x"), _file("./x")], "'x' is in it twice"),
    ],
)
def test_an_unsafe_archive_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], message: str
) -> None:
    target = tmp_path / "target"
    with pytest.raises(InvalidContextException, match=message):
        unpack_context(_tgz(_file("good"), *members), target)
    assert os.listdir(target) == []
    assert os.listdir(tmp_path) == ["target"]


def test_a_damaged_or_exploding_archive_is_refused(tmp_path: Path) -> None:
    good = _tgz(_file("a", os.urandom(100_000)))
    for data, message in (
        (good[: len(good) // 2], "its end is missing"),
        (b"no gzip", "damaged"),
        (gzip.compress(b"no tar" * 1000), "damaged"),
        (_tgz(_file("big", bytes(3 << 20))), "'big' would have 3,145,728 bytes"),
        (_tgz(*(_file(f"f{i}", bytes(600_000)) for i in range(2))), "its files have 1,200,000 bytes"),
        (gzip.compress(bytes(100 << 20)), "unpacks to more than"),
    ):
        with pytest.raises(InvalidContextException, match=message):
            unpack_context(data, tmp_path / "t", max_bytes=1 << 20)
        assert os.listdir(tmp_path / "t") == []
    sparse = tarfile.TarInfo("sparse")
    sparse.size = 1 << 40
    with pytest.raises(InvalidContextException, match="sparse"):
        unpack_context(gzip.compress(sparse.tobuf()), tmp_path / "t")


def test_a_full_disk_leaves_nothing_unpacked(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], check=True)
    try:
        with pytest.raises(OSError, match="No space left"):
            unpack_context(_tgz(_file("a"), _file("b", os.urandom(1 << 20))), small)
        assert os.listdir(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_what_is_packed_can_be_unpacked(tmp_path: Path) -> None:
    _write(tmp_path / "in", "a/b", "c")
    members = []
    for f in pack_context(tmp_path / "in"):
        info = tarfile.TarInfo(f["path"])
        info.type, info.mode, info.mtime = bytes([f["type"]]), f["mode"] & 0o777, int(f["mtime"])
        members.append((info, base64.b64decode(f["content"])))
    unpack_context(_tgz(*members), tmp_path / "out")
    assert (tmp_path / "out" / "a" / "b").read_text() == "content of a/b"
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "c"]


@pytest.mark.timeout(60)
def test_a_folder_of_very_many_files_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_CONTEXT_BYTES", 1000)
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    entries = [(f"file-{number}", file) for number in range(150_000)]
    with pytest.raises(InvalidContextException, match=r"it is 14\.3MB"):
        context._read_all(entries)
