"""The packed context: what goes in comes out, and what must not go in is refused by name."""

from __future__ import annotations

import base64
import io
import tarfile
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from api.errors import BadRequest, TooLarge
from api.schemas.contexts import File
from api.services import contexts
from api.services.contexts import LIMIT_BYTES, pack


def file(path: str, content: bytes = b"", **more: Any) -> File:
    return File(path=path, content=base64.b64encode(content).decode(), **more)


def members(packed: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {member.name: member for member in archive}


def contents(packed: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # pyright: ignore


def test_files_and_folders_come_out_as_they_went_in_when_packed() -> None:
    packed = pack(
        [
            file("src", type=53, mode=0o40755, mtime=1_700_000_000),
            file("src/train.py", b"print(1)\n", mode=0o100755, mtime=1_700_000_001),
            file("empty", type=0),
        ]
    )
    found = members(packed)
    assert list(found) == ["src", "src/train.py", "empty"]
    assert found["src"].isdir()
    assert (found["src/train.py"].mode, found["src/train.py"].mtime) == (0o755, 1_700_000_001)
    assert contents(packed) == {"src/train.py": b"print(1)\n", "empty": b""}


def test_special_mode_bits_are_dropped_when_packed() -> None:
    assert members(pack([file("a", mode=0o106755)]))["a"].mode == 0o755


def test_archive_is_empty_when_there_are_no_files() -> None:
    assert members(pack([])) == {}


@pytest.mark.parametrize("path", ["../x", "a/../../x", "..", "/etc/passwd", "//x", "", ".", "/", "a\x00b", "a/.."])
def test_path_is_refused_by_name_when_it_leaves_the_folder(path: str) -> None:
    with pytest.raises(BadRequest, match="leaves the context folder") as caught:
        pack([file("good.py"), file(path)])
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("path", ["...", "a..b", "..a/b", ".detignore", "a b/ü.py", "x" * 255])
def test_path_is_kept_when_it_only_looks_odd(path: str) -> None:
    assert list(members(pack([file(path)]))) == [path]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/".join(["a"] * 20_000), "has 39999 bytes, the limit is 4000"),
        ("a" * 1_000_000, "has 1000000 bytes"),
        ("/".join(["a"] * 65), "is 65 folders deep, the limit is 64"),
        ("a/" + "ü" * 128, "more than 255 bytes"),
    ],
    ids=["components", "a name", "folders", "bytes"],
)
def test_path_is_refused_when_no_file_system_has_room_for_it(path: str, told: str) -> None:
    with pytest.raises(BadRequest, match=told) as caught:
        pack([file(path)])
    assert len(str(caught.value)) < 400


def test_context_is_refused_when_it_has_too_many_files() -> None:
    with pytest.raises(TooLarge, match=r"50001 files and folders, the limit is 50000\. Leave files out"):
        pack([file(f"f{number}") for number in range(50_001)])


def test_time_grows_with_the_number_of_files_when_their_folders_are_deep() -> None:
    """Once it grew with the square of a path's length."""

    def took(count: int) -> float:
        files = [file(f"d{number}/" + "/".join("abcdefghij" * 6) + f"/{number}") for number in range(count)]
        times: list[float] = []
        for _ in range(3):
            started = time.process_time()
            pack(files)
            times.append(time.process_time() - started)
        return min(times)

    assert took(2000) < 10 * took(500) + 0.2
    assert took(500) < 2.0


@pytest.mark.parametrize(
    "kind", [ord(c) for c in "1234678gx"], ids=["hard-link", "symlink", "char", "block", "fifo", "7", "8", "pax", "PAX"]
)
def test_member_is_refused_when_it_is_a_link_or_a_device(kind: int) -> None:
    with pytest.raises(BadRequest, match=f"'evil' is neither a file nor a directory \\(type {kind}\\)"):
        pack([file("evil", type=kind)])


@pytest.mark.parametrize("content", ["%%%", "YQ", "YQ==!", "é"])
def test_content_is_refused_by_name_when_it_is_no_base64(content: str) -> None:
    with pytest.raises(BadRequest, match="content of 'odd' is no base64"):
        pack([File(path="odd", content=content)])


def test_context_is_taken_when_it_has_95_mib_to_the_byte() -> None:
    assert LIMIT_BYTES == 99_614_720
    half = b"\x00" * (LIMIT_BYTES // 2)
    assert len(pack([file("a", half), file("b", half)])) < LIMIT_BYTES
    with pytest.raises(TooLarge, match=r"the context has 95\.0 MiB, the limit is 95 MiB"):
        pack([file("a", half), file("b", half), file("c", b"1")])


def test_largest_files_are_named_when_the_context_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "LIMIT_BYTES", 2**20)
    sizes = {f"f{n}": n * 2**19 for n in range(8)}
    with pytest.raises(TooLarge) as caught:
        pack([file(name, b"\x00" * size) for name, size in sizes.items()])
    told = str(caught.value)
    assert "f7 (3.5 MiB), f6 (3.0 MiB), f5 (2.5 MiB), f4 (2.0 MiB), f3 (1.5 MiB)." in told
    assert "f2" not in told
    assert ".detignore" in told
    assert caught.value.status == 413


PART = st.text(st.characters(exclude_characters="/\x00", exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda part: part not in (".", "..")
)


@given(st.dictionaries(st.lists(PART, min_size=1, max_size=4).map("/".join), st.binary(max_size=50), max_size=6))
def test_contents_survive_when_names_and_bytes_are_anything(files: dict[str, bytes]) -> None:
    names = [unicodedata.normalize("NFC", path).casefold() for path in files]  # what clashes is refused, see above
    assume(len(set(names)) == len(names))
    assume(not any(one.startswith(f"{other}/") for one in names for other in names))
    assert contents(pack([file(path, content) for path, content in files.items()])) == files


@given(st.text(max_size=20), st.integers(0, 255), st.integers(-(2**63), 2**63))
def test_pack_answers_or_refuses_when_a_member_is_anything(path: str, kind: int, mtime: int) -> None:
    try:
        found = members(pack([file(path, b"x", type=kind, mtime=mtime)]))
    except BadRequest:
        return
    for name in found:
        assert not name.startswith("/")
        assert ".." not in name.split("/")
