"""What is unchanged since an earlier checkpoint: a store copies it by itself, and it is not sent again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.common.storage import _objects
from determined.common.storage._manifest import decode
from determined.common.storage._storage import new_storage_id
from determined.core._checkpoint import CheckpointContext
from determined.core._distributed import DummyDistributedContext
from harness.tests.test_storage import METADATA, OBJECTS, Place, content, make_place
from harness.tests.test_storage import servers as servers
from tests.kit import storages

PART = 8 << 20
LARGE = 5 * PART + 12345
SMALL = 2 << 20


@pytest.fixture(params=OBJECTS)
def place(
    request: pytest.FixtureRequest,
    servers: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    place = make_place(request.param, servers[request.param], tmp_path, monkeypatch)
    yield place
    place.storage.close()


@pytest.fixture
def s3(servers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = make_place("s3", servers["s3"], tmp_path, monkeypatch)
    yield place
    place.storage.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "large.bin").write_bytes(os.urandom(LARGE))
    (folder / "small.bin").write_bytes(os.urandom(SMALL))
    (folder / "tiny.bin").write_bytes(b"tiny")
    return folder


def store(place: Place, source: Path, base: str = "") -> str:
    storage_id = new_storage_id()
    place.storage.begin(storage_id)
    files = place.storage.put(storage_id, str(source), sorted(os.listdir(source)), base)
    place.storage.commit(storage_id, files, {"metadata.json": METADATA})
    return storage_id


def change(file: Path, at: int, many: int = 1) -> None:
    data = bytearray(file.read_bytes())
    data[at : at + many] = bytes(byte ^ 1 for byte in data[at : at + many])
    file.write_bytes(data)


def check(place: Place, storage_id: str, source: Path, target: Path) -> None:
    """It is there as it was stored, by itself: whatever becomes of the earlier ones."""
    place.storage.verify(storage_id, hashes=True)
    place.storage.download(storage_id, str(target))
    assert content(target) == content(source) | {"metadata.json": METADATA}


def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of what is copied as a whole from now on."""
    found: list[str] = []
    for kind in _objects.ObjectStorage.__subclasses__():

        def copy(self: Any, client: Any, key: str, before: Any, copy: Any = kind.copy) -> None:
            copy(self, client, key, before)
            found.append(key.rpartition("/")[2])

        monkeypatch.setattr(kind, "copy", copy)
    return found


def sent(place: Place) -> list[int]:
    """Bytes of each request to S3 that writes, from now on."""
    found: list[int] = []

    def note(request: Any, **_: Any) -> None:
        size = int(request.headers.get("Content-Length") or 0)
        if request.method == "PUT" and not request.url.endswith("manifest.json"):
            found.append(size)

    place.raw._client().meta.events.register("before-send.s3", note)
    return found


def test_whole_files_are_copied_when_they_are_unchanged(
    place: Place, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = copies(monkeypatch)
    first = store(place, source)
    assert copied == []
    second = store(place, source, first)
    assert sorted(copied) == ["large.bin", "small.bin"], "the tiny one is sent"
    change(source / "small.bin", 3)
    third = store(place, source, second)
    assert copied[2:] == ["large.bin"]
    place.storage.delete(first)
    place.storage.delete(second)
    check(place, third, source, tmp_path / "target")


def test_a_restore_fetches_what_is_selected_and_nothing_else(
    place: Place, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage_id = store(place, source)
    fetched: list[str] = []
    kind = type(place.storage)
    fetch = kind.fetch_piece

    def noted(self: Any, client: Any, key: str, start: int, length: int) -> bytes:
        fetched.append(key.rpartition("/")[2])
        return fetch(self, client, key, start, length)

    monkeypatch.setattr(kind, "fetch_piece", noted)
    with place.storage.restore_path(storage_id, lambda path: path == "small.bin") as folder:
        assert os.listdir(folder) == ["small.bin"]
    assert {name for name in fetched if not name.endswith("manifest.json")} == {"small.bin"}


def test_a_file_of_another_size_is_not_asked_for(
    place: Place, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store(place, source)
    asked: list[str] = []
    modified = type(place.storage).modified
    monkeypatch.setattr(
        type(place.storage), "modified", lambda self, client, key: (asked.append(key), modified(self, client, key))[1]
    )
    with (source / "small.bin").open("ab") as file:
        file.write(b"longer")
    check(place, store(place, source, first), source, tmp_path / "target")
    assert [key.rpartition("/")[2] for key in asked if not key.endswith("json")] == ["large.bin"]


def test_a_base_is_an_aid_only(place: Place, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = copies(monkeypatch)
    first = store(place, source)
    place.remove(first, "small.bin")
    check(place, store(place, source, first), source, tmp_path / "one")
    assert copied == ["large.bin"], "of what is gone nothing is copied"
    place.write_manifest(first, b"{")
    check(place, store(place, source, first), source, tmp_path / "two")
    check(place, store(place, source, new_storage_id()), source, tmp_path / "three")
    assert copied == ["large.bin"]


def test_what_was_written_later_is_not_copied(place: Place, source: Path, tmp_path: Path) -> None:
    """The manifest does not speak of it."""
    first = store(place, source)
    time.sleep(1.1)  # stores tell seconds
    place.write(first, "small.bin", b"x" * SMALL)
    check(place, store(place, source, first), source, tmp_path / "one")


@pytest.mark.parametrize(
    ("at", "many", "parts"),
    [(0, 1, 1), (PART + 5, 1, 1), (LARGE - 1, 1, 0), (PART - 1, 2, 2)],
    ids=["first", "second", "last", "two"],
)
def test_unchanged_parts_of_a_file_are_not_sent(
    s3: Place, source: Path, tmp_path: Path, at: int, many: int, parts: int
) -> None:
    first = store(s3, source)
    change(source / "large.bin", at, many)
    requests = sent(s3)
    second = store(s3, source, first)
    assert sum(requests) < parts * PART + 13_000
    check(s3, second, source, tmp_path / "target")
    found = decode(s3.manifest(second), "it").files["large.bin"]
    assert (found.part_size, len(found.parts)) == (PART, 6)


def test_little_is_sent_of_a_file_that_grew_or_shrank(s3: Place, source: Path, tmp_path: Path) -> None:
    first = store(s3, source)
    data = (source / "large.bin").read_bytes()
    requests = sent(s3)
    for number, changed in enumerate((data + b"more", data[: 3 * PART], data[: 3 * PART + 9])):
        (source / "large.bin").write_bytes(changed)
        requests.clear()
        second = store(s3, source, first)
        assert sum(requests) < 20_000
        check(s3, second, source, tmp_path / f"target{number}")


def test_a_server_that_copies_nothing_gets_all(
    servers: dict[str, str],
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with storages.faulty(servers["s3"]) as proxy:
        place = make_place("s3", proxy.url, tmp_path, monkeypatch)
        first = store(place, source)
        change(source / "large.bin", 5)
        refused = b"<Error><Code>NotImplemented</Code></Error>"

        def fault(method: str, path: str) -> tuple[int, bytes, dict[str, str]] | None:
            # the first part is sent, and the second would be copied
            return (501, refused, {}) if method == "PUT" and "partNumber=2" in path and not asked else None

        asked: list[str] = []
        copied = place.raw.copied

        def once(*args: Any) -> Any:
            try:
                return copied(*args)
            except _objects.NotCopied:
                asked.append("refused")
                raise

        monkeypatch.setattr(place.raw, "copied", once)
        proxy.fault = fault
        second = store(place, source, first)
        assert asked
        check(place, second, source, tmp_path / "target")
        assert place.raw._client().list_multipart_uploads(Bucket=place.raw._bucket).get("Uploads", []) == []
        place.storage.close()


def test_each_checkpoint_of_a_program_is_based_on_the_one_before(
    s3: Place, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = copies(monkeypatch)
    context = CheckpointContext(DummyDistributedContext(), s3.storage, None, "", "")
    first = context.upload(source, {"steps_completed": 3})
    with context.store_path({"steps_completed": 4}) as (folder, second):
        for name in ("large.bin", "small.bin"):
            (folder / name).write_bytes((source / name).read_bytes())
    assert sorted(copied) == ["large.bin", "small.bin"]
    context.delete(first)
    with context.restore_path(second) as restored:
        assert (restored / "large.bin").read_bytes() == (source / "large.bin").read_bytes()
