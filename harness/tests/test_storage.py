"""The contract of checkpoint storages, on folders and on servers that speak S3, GCS and Azure."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from determined import errors
from determined.common import storage
from determined.common.storage._manifest import decode, manifest_name
from determined.common.storage._storage import new_storage_id
from determined.common.storage._tree import list_tree
from tests.kit import storages

KINDS = ("posix", "s3", "gcs", "azure")
OBJECTS = KINDS[1:]
LARGE = 20 << 20
METADATA = b'{"steps_completed": 3}'
NAMES = itertools.count()

Config = dict[str, Any]


class Place:
    """A storage under test, and the means to damage what is in it behind its back."""

    def __init__(self, kind: str, config: Config) -> None:
        self.kind = kind
        self.config = config
        self.storage = storage.build(config)

    def keys(self, storage_id: str) -> dict[str, int]:
        """All that is there, hidden files too."""
        if isinstance(self.storage, storage.PosixStorage):
            root = Path(self.storage.root)
            folders = [root / storage_id, root / f".{storage_id}.tmp", root / f".{storage_id}.deleted"]
            return {str(p.relative_to(f)): p.stat().st_size for f in folders for p in f.rglob("*") if p.is_file()}
        return self.raw._listed(storage_id)

    @property
    def raw(self) -> Any:
        return self.storage

    def manifest(self, storage_id: str) -> bytes:
        """The manifest of a checkpoint, as it is stored."""
        if self.kind == "posix":
            return Path(self.raw.root, manifest_name(storage_id)).read_bytes()
        return self.raw._call(self.raw.fetch_piece, self.raw._manifest_key(storage_id), 0, 1 << 20)

    def write_manifest(self, storage_id: str, content: bytes) -> None:
        """Put another one in its place."""
        if self.kind == "posix":
            Path(self.raw.root, manifest_name(storage_id)).write_bytes(content)
        else:
            self.raw._send(self.raw._manifest_key(storage_id), content)

    def write(self, storage_id: str, path: str, content: bytes) -> None:
        if isinstance(self.storage, storage.PosixStorage):
            file = Path(self.storage.root, storage_id, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        else:
            self.raw._send(self.raw._key(storage_id, path), content)

    def remove(self, storage_id: str, path: str) -> None:
        if isinstance(self.storage, storage.PosixStorage):
            Path(self.storage.root, storage_id, path).unlink()
        else:
            self.raw._delete_object(self.raw._key(storage_id, path))

    def store(self, source: Path) -> str:
        """A checkpoint of a folder, committed."""
        storage_id = new_storage_id()
        self.storage.begin(storage_id)
        files = self.storage.put(storage_id, str(source), list_tree(str(source)))
        self.storage.commit(storage_id, files, {"metadata.json": METADATA})
        return storage_id


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, str]]:
    """URL of a server of each kind; they start at the same time."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
        starts = {"s3": storages.s3_server, "gcs": storages.gcs_server, "azure": storages.azure_server}
        running = {kind: threads.submit(stack.enter_context, start()) for kind, start in starts.items()}
        yield {kind: future.result() for kind, future in running.items()}


def make_place(kind: str, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, exists: bool = True) -> Place:
    """A storage of its own on the server at `url`."""
    name = f"bucket-{os.getpid()}-{next(NAMES)}"
    if kind == "posix":
        return Place(kind, {"type": "directory", "container_path": str(folder / "storage")})
    if kind == "s3":
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        keys = {"access_key": "testing-key", "secret_key": "testing-secret"}
        place = Place(kind, {"type": "s3", "bucket": name, "prefix": "a/deep prefix", "endpoint_url": url, **keys})
        if exists:
            place.raw._client().create_bucket(Bucket=name)
        return place
    if kind == "gcs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        place = Place(kind, {"type": "gcs", "bucket": name, "prefix": "a/deep prefix"})
        if exists:
            place.raw._client().create_bucket(name)
        return place
    place = Place(kind, {"type": "azure", "container": name, "connection_string": storages.azure_connection(url)})
    if exists:
        place.raw._client().create_container()
    return place


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, servers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    kind = request.param
    place = make_place(kind, servers.get(kind, ""), tmp_path, monkeypatch)
    yield place
    place.storage.close()


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that may be in a checkpoint."""
    root = tmp_path_factory.mktemp("source")
    (root / "weights" / "deep er").mkdir(parents=True)
    (root / "none").mkdir()
    (root / "weights" / "large.bin").write_bytes(os.urandom(LARGE))
    (root / "weights" / "deep er" / "größe-日本 %2F+&=?#.bin").write_bytes(b"unicode")
    (root / "empty").write_bytes(b"")
    (root / "model.json").write_bytes(b"{}" * 50)
    return root


def content(folder: Path | str) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)) + "/" * p.is_dir(): b"" if p.is_dir() else p.read_bytes()
        for p in Path(folder).rglob("*")
    }


class TestContract:
    """What every storage does."""

    def test_comes_back_as_it_was_when_stored(self, place: Place, source: Path, tmp_path: Path) -> None:
        storage_id = place.store(source)
        sizes = list_tree(str(source)) | {"metadata.json": len(METADATA)}
        assert place.storage.list_files(storage_id) == dict(sorted(sizes.items()))
        place.storage.verify(storage_id, hashes=True)
        place.storage.download(storage_id, str(tmp_path / "target"))
        assert content(tmp_path / "target") == content(source) | {"metadata.json": METADATA}
        with place.storage.restore_path(storage_id) as restored:
            assert content(restored) == content(source) | {"metadata.json": METADATA}
        assert os.path.exists(restored) == (place.kind == "posix")

    def test_manifest_tells_sizes_and_hashes_when_committed(self, place: Place, source: Path) -> None:
        import xxhash

        storage_id = place.store(source)
        raw = place.manifest(storage_id)
        entries = decode(raw, "it").files
        large = (source / "weights" / "large.bin").read_bytes()
        assert entries["weights/large.bin"] == storage.FileEntry(LARGE, xxhash.xxh3_128(large).hexdigest())
        assert entries["metadata.json"].xxh3 == xxhash.xxh3_128(METADATA).hexdigest()
        assert entries["none/"] == storage.FileEntry(0)

    def test_only_what_is_wanted_comes_when_there_is_a_selector(
        self, place: Place, source: Path, tmp_path: Path
    ) -> None:
        storage_id = place.store(source)
        place.storage.download(storage_id, str(tmp_path / "t"), lambda path: path.endswith(("json", "%2F+&=?#.bin")))
        assert sorted(content(tmp_path / "t")) == [
            "metadata.json", "model.json", "weights/", "weights/deep er/", "weights/deep er/größe-日本 %2F+&=?#.bin",
        ]  # fmt: skip
        with place.storage.restore_path(storage_id, lambda path: path == "model.json") as restored:
            assert Path(restored, "model.json").read_bytes() == b"{}" * 50

    def test_nobody_sees_it_when_it_is_not_committed(self, place: Place, source: Path, tmp_path: Path) -> None:
        storage_id = new_storage_id()
        place.storage.begin(storage_id)
        place.storage.begin(storage_id)  # by a second worker
        place.storage.put(storage_id, str(source), ["model.json", "none/"])
        assert place.keys(storage_id)["model.json"] == 100
        attempts: list[Callable[[], object]] = [
            lambda: place.storage.list_files(storage_id),
            lambda: place.storage.download(storage_id, str(tmp_path / "t")),
            lambda: place.storage.verify(storage_id, hashes=False),
            lambda: place.storage.restore_path(storage_id).__enter__(),
        ]
        for attempt in attempts:
            with pytest.raises(errors.CheckpointNotFound, match=storage_id):
                attempt()
        place.storage.abort(storage_id)
        place.storage.abort(storage_id)
        assert place.keys(storage_id) == {}

    def test_parts_of_several_workers_are_one_when_committed(self, place: Place, source: Path) -> None:
        storage_id = new_storage_id()
        files: dict[str, storage.FileEntry] = {}
        for rank in range(2):
            place.storage.begin(storage_id)
            with place.storage.staging(storage_id) as folder:
                name = f"shard-{rank}/part"
                os.makedirs(os.path.join(folder, f"shard-{rank}"))
                Path(folder, name).write_text(str(rank))
                Path(folder, f"left-out-{rank}").write_text("x")
                files |= place.storage.put(storage_id, folder, [name])
        assert os.path.exists(folder) == (place.kind == "posix")
        place.storage.commit(storage_id, files, {"metadata.json": METADATA})
        assert list(place.storage.list_files(storage_id)) == ["metadata.json", "shard-0/part", "shard-1/part"]
        assert sorted(place.keys(storage_id)) == ["metadata.json", "shard-0/part", "shard-1/part"]
        assert b"".join(place.storage.open_file(storage_id, "shard-1/part")) == b"1"

    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            (lambda old: bytes([old[0] ^ 1]) + old[1:], "expected XXH3 [0-9a-f]{32}, found [0-9a-f]{32}"),
            (lambda old: old[:-1], "expected 100 bytes, found 99"),
            (lambda old: old + b"x", "expected 100 bytes, found 101"),
            (None, "model.json is missing"),
        ],
        ids=["byte", "truncated", "grown", "missing"],
    )
    def test_damage_is_named_when_it_is_read(
        self, place: Place, source: Path, tmp_path: Path, damage: Callable[[bytes], bytes] | None, told: str
    ) -> None:
        storage_id = new_storage_id()
        files = place.storage.put(storage_id, str(source), ["model.json"])
        place.storage.commit(storage_id, files, {"metadata.json": METADATA})
        if damage is None:
            place.remove(storage_id, "model.json")
        else:
            place.write(storage_id, "model.json", damage(b"{}" * 50))
        if "XXH3" in told:
            place.storage.verify(storage_id, hashes=False)
        else:
            with pytest.raises(errors.CheckpointCorruptError, match=told):
                place.storage.verify(storage_id, hashes=False)
        with pytest.raises(errors.CheckpointCorruptError, match=told):
            place.storage.verify(storage_id, hashes=True)
        with pytest.raises(errors.CheckpointCorruptError, match=f"{storage_id}/model.json") as caught:
            place.storage.download(storage_id, str(tmp_path / "t"))
        assert caught.match(told)
        assert sorted(os.listdir(tmp_path / "t")) in ([], ["metadata.json"]), "nothing half stays"
        with pytest.raises(errors.CheckpointCorruptError, match=told), place.storage.restore_path(storage_id):
            pytest.fail("it was handed out")
        with place.storage.restore_path(storage_id, lambda path: path == "metadata.json") as restored:
            assert Path(restored, "metadata.json").read_bytes() == METADATA

    def test_damaged_manifest_is_named_when_it_is_read(self, place: Place, source: Path) -> None:
        storage_id = new_storage_id()
        place.storage.commit(storage_id, place.storage.put(storage_id, str(source), ["empty"]), {})
        for wrong, told in (
            (b"", "it is no manifest"),
            (b'{"version": 2, "files": {}}', "version 2, but this release reads version 1"),
            (b'{"version": 1, "files": {"../x": {"size": 1, "xxh3": ""}}}', "'../x' leads out"),
        ):
            place.write_manifest(storage_id, wrong)
            with pytest.raises(errors.CheckpointCorruptError, match=told):
                place.storage.list_files(storage_id)

    def test_checkpoint_of_determined_is_read_when_it_has_no_manifest(self, place: Place, tmp_path: Path) -> None:
        storage_id = new_storage_id()
        for path, text in (("sub/model", b"m"), ("metadata.json", METADATA)):
            place.write(storage_id, path, text)
        files = {path: size for path, size in place.storage.list_files(storage_id).items() if path != "sub/"}
        assert files == {"metadata.json": len(METADATA), "sub/model": 1}
        place.storage.verify(storage_id, hashes=True)
        place.storage.download(storage_id, str(tmp_path / "t"))
        assert content(tmp_path / "t") == {"sub/": b"", "sub/model": b"m", "metadata.json": METADATA}
        place.storage.delete_files(storage_id, ["metadata.json", "sub/none"])
        assert "sub/model" in place.storage.list_files(storage_id)
        place.storage.delete(storage_id)
        assert place.keys(storage_id) == {}

    def test_nothing_is_left_when_deleted_twice(self, place: Place, source: Path) -> None:
        storage_id, other = place.store(source), new_storage_id()
        place.storage.commit(other, place.storage.put(other, str(source), ["empty"]), {})
        for _ in range(2):
            place.storage.delete(storage_id)
            assert place.keys(storage_id) == {}
        with pytest.raises(errors.CheckpointNotFound):
            place.storage.list_files(storage_id)
        assert place.storage.list_files(other) == {"empty": 0}

    def test_the_others_stay_whole_when_files_are_deleted(self, place: Place, source: Path, tmp_path: Path) -> None:
        storage_id = place.store(source)
        for _ in range(2):
            place.storage.delete_files(storage_id, ["weights/large.bin", "none/", "nowhere"])
        assert "weights/large.bin" not in place.storage.list_files(storage_id) | place.keys(storage_id)
        place.storage.verify(storage_id, hashes=True)
        place.storage.download(storage_id, str(tmp_path / "t"))
        assert not (tmp_path / "t" / "none").exists()
        place.storage.delete_files(new_storage_id(), ["x"])

    def test_a_file_is_streamed_from_where_it_is_asked(self, place: Place, source: Path) -> None:
        storage_id = place.store(source)
        large = (source / "weights" / "large.bin").read_bytes()
        for offset in (0, 5, 8 << 20, LARGE - 1, LARGE, LARGE + 7):
            assert b"".join(place.storage.open_file(storage_id, "weights/large.bin", offset)) == large[offset:]
        assert b"".join(place.storage.open_file(storage_id, "empty")) == b""
        assert max(map(len, place.storage.open_file(storage_id, "weights/large.bin"))) <= 8 << 20
        for path in ("nowhere", "weights"):
            with pytest.raises(errors.CheckpointNotFound, match=path):
                list(place.storage.open_file(storage_id, path))

    def test_whatever_leads_out_is_refused(self, place: Place, source: Path) -> None:
        for name in ("", "..", "a/b", ".x", "a\0b"):
            with pytest.raises(ValueError, match="plain name"):
                place.storage.list_files(name)
            with pytest.raises(ValueError, match="plain name"):
                place.storage.delete(name)
        storage_id = new_storage_id()
        place_, some = place.storage, str(source / "empty")
        attempts: list[Callable[[str], object]] = [
            lambda path: place_.put(storage_id, str(source), [path]),
            lambda path: place_.commit(storage_id, {}, {path: b""}),
            lambda path: place_.delete_files(storage_id, [path]),
            lambda path: place_.put_tensorboard(some, path),
            place_.remove_tree,
        ]
        for attempt, path in itertools.product(attempts, ("../x", "/x", "a//b", "a/../b")):
            with pytest.raises(ValueError, match="relative"):
                attempt(path)

    def test_a_file_of_ones_own_that_is_missing_is_no_fault_of_the_storage(self, place: Place, source: Path) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            place.storage.put(new_storage_id(), str(source), ["nowhere"])
        assert not isinstance(caught.value, errors.CheckpointException)

    def test_tensorboard_files_come_and_go(self, place: Place, source: Path) -> None:
        storage_id = place.store(source)
        for name in ("trial/1/events", "trial/2/events"):
            place.storage.put_tensorboard(str(source / "model.json"), f"cluster/tensorboard/experiment/4/{name}")
        place.storage.put_tensorboard(str(source / "model.json"), "cluster/tensorboard/experiment/44/events")
        assert place.storage.list_tensorboard("cluster/tensorboard/experiment/4") == {
            "trial/1/events": 100,
            "trial/2/events": 100,
        }
        assert place.storage.list_tensorboard("cluster/tensorboard/experiment/5") == {}
        path = "cluster/tensorboard/experiment/4/trial/1/events"
        assert b"".join(place.storage.read_tensorboard(path)) == b"{}" * 50
        assert b"".join(place.storage.read_tensorboard(path, 90)) == b"{}" * 5
        with pytest.raises(errors.CheckpointNotFound, match="there is no file"):
            list(place.storage.read_tensorboard(f"{path}.none"))
        for _ in range(2):
            place.storage.remove_tree("cluster/tensorboard/experiment/4")
        place.storage.verify(storage_id, hashes=False)
        if place.kind == "posix":
            assert os.listdir(Path(place.raw.root, "cluster/tensorboard/experiment")) == ["44"]
        else:
            found = place.raw._of_bucket(place.raw.list_objects, place.raw._prefix + "cluster/")
            assert [key.split("/")[-2:] for key in found] == [["44", "events"]]

    def test_probe_leaves_nothing(self, place: Place) -> None:
        place.storage.probe()
        if place.kind == "posix":
            assert os.listdir(place.raw.root) == []
        else:
            assert place.raw._of_bucket(place.raw.list_objects, place.raw._prefix) == {}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
class TestObjects:
    """What object stores do when they are missing, busy or want other credentials.

    Google's SDK leaves the connection of an answer that it refuses to the garbage collector.
    """

    @pytest.fixture(params=OBJECTS)
    def kind(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture
    def proxy(self, kind: str, servers: dict[str, str]) -> Iterator[storages.Faults]:
        with storages.faulty(servers[kind]) as proxy:
            yield proxy

    @pytest.fixture
    def behind(
        self, kind: str, proxy: storages.Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Place]:
        place = make_place(kind, proxy.url, tmp_path, monkeypatch)
        yield place
        place.storage.close()
        gc.collect()

    def test_wrong_bucket_is_named_when_probed(
        self, kind: str, servers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = make_place(kind, servers[kind], tmp_path, monkeypatch, exists=False)
        for attempt in (place.storage.probe, lambda: place.storage.list_files(new_storage_id())):
            with pytest.raises(errors.CheckpointStorageError, match=f"{place.storage.root} can't be used: ") as caught:
                attempt()
            assert any(said in str(caught.value) for said in ("does not exist", "NoSuchBucket", "404", "Not Found"))
            assert "of checkpoint_storage in the experiment's configuration" in str(caught.value)
        place.storage.abort(new_storage_id())  # says so in the log
        place.storage.close()

    def test_secrets_are_never_told(self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place = make_place(kind, "http://127.0.0.1:1", tmp_path, monkeypatch, exists=False)
        monkeypatch.setattr(type(place.storage), "connect", lambda self: 1 / 0 if kind == "gcs" else self.broken())
        told = [storages.AZURE_KEY, place.config.get("secret_key") or "", place.config.get("access_key") or ""]

        def broken(self: Any) -> Any:
            raise ValueError(" ".join(told))

        monkeypatch.setattr(type(place.storage), "broken", broken, raising=False)
        with pytest.raises(errors.CheckpointStorageError) as caught:
            place.storage.probe()
        for secret in filter(None, told):
            assert secret not in f"{caught.value} {place.storage!r}" or (kind, secret) in [
                ("s3", storages.AZURE_KEY),
                ("gcs", storages.AZURE_KEY),
            ]

    def test_saving_and_loading_go_on_when_credentials_expire(
        self, behind: Place, proxy: storages.Faults, source: Path, tmp_path: Path
    ) -> None:
        answers = {
            "s3": (400, b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>", {}),
            "gcs": (401, b'{"error": {"code": 401, "message": "Invalid Credentials"}}', {}),
            "azure": (
                401, b"<Error><Code>InvalidAuthenticationInfo</Code><Message>expired</Message></Error>",
                {"x-ms-error-code": "InvalidAuthenticationInfo"},
            ),
        }  # fmt: skip
        expired: set[int] = set()
        connected: list[int] = []
        connect = behind.raw.connect

        def note() -> Any:
            connected.append(1)
            return connect()

        behind.raw.connect = note
        refused = threading.Event()

        def fault(method: str, path: str) -> Any:
            if len(connected) in expired:
                refused.set()
                return answers[behind.kind]
            return None

        proxy.fault = fault
        expired.add(0)  # the client that is there
        storage_id = behind.store(source)
        assert refused.is_set()
        assert connected == [1], "several threads renew it once"
        expired.add(1)
        behind.storage.download(storage_id, str(tmp_path / "t"))
        assert content(tmp_path / "t") == content(source) | {"metadata.json": METADATA}
        assert connected == [1, 1]
        expired.update(range(100))
        with pytest.raises(errors.CheckpointStorageError, match="can't be used"):
            behind.storage.list_files(storage_id)

    def test_busy_store_is_asked_again(
        self, behind: Place, proxy: storages.Faults, source: Path, tmp_path: Path
    ) -> None:
        answers = {
            "s3": (503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>", {}),
            "gcs": (503, b'{"error": {"code": 503, "message": "busy"}}', {}),
            "azure": (
                503,
                b"<Error><Code>ServerBusy</Code></Error>",
                {"x-ms-error-code": "ServerBusy", "Retry-After": "0"},
            ),
        }
        seen: set[str] = set()
        lock = threading.Lock()

        def fault(method: str, path: str) -> Any:
            """The first request of each method is refused."""
            with lock:
                if method in seen:
                    return None
                seen.add(method)
            return answers[behind.kind]

        proxy.fault = fault
        began = time.monotonic()
        storage_id = behind.store(source)
        behind.storage.download(storage_id, str(tmp_path / "t"))
        behind.storage.verify(storage_id, hashes=False)
        assert content(tmp_path / "t") == content(source) | {"metadata.json": METADATA}
        behind.storage.delete(storage_id)
        assert seen >= {"GET", "DELETE"}
        assert time.monotonic() - began > 0.05, "after a pause"

    def test_answer_that_breaks_off_is_asked_for_again(
        self, behind: Place, proxy: storages.Faults, source: Path, tmp_path: Path
    ) -> None:
        storage_id = behind.store(source)
        broken: list[str] = []

        def fault(method: str, path: str) -> Any:
            if method == "GET" and "model.json" in path and not broken:
                broken.append(path)
                return 206, b"{}", {"Content-Range": "bytes 0-99/100", "Content-Length": "100"}
            return None

        proxy.fault = fault
        behind.storage.download(storage_id, str(tmp_path / "t"), lambda path: path == "model.json")
        assert (tmp_path / "t" / "model.json").read_bytes() == b"{}" * 50
        assert broken

    def test_a_store_that_is_away_is_told_from_a_checkpoint_that_is_missing(
        self, behind: Place, proxy: storages.Faults, caplog: pytest.LogCaptureFixture
    ) -> None:
        proxy.fault = lambda method, path: (403, b"", {})
        storage_id = new_storage_id()
        for attempt in (
            lambda: behind.storage.list_files(storage_id),
            lambda: behind.storage.delete(storage_id),
            behind.storage.probe,
        ):
            with pytest.raises(errors.CheckpointStorageError):
                attempt()
        behind.storage.abort(storage_id)
        assert f"the unfinished checkpoint {behind.storage.location(storage_id)} stays behind" in caplog.text


def test_deleting_begins_with_what_makes_it_a_checkpoint(
    servers: dict[str, str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place("s3", servers["s3"], tmp_path, monkeypatch)
    storage_id = place.store(source)
    gone: list[str] = []
    delete = place.raw.delete_object

    def dies(client: Any, key: str) -> None:
        gone.append(key.rpartition("/")[2])
        if len(gone) > 2:
            raise KeyboardInterrupt
        delete(client, key)

    monkeypatch.setattr(place.raw, "delete_object", dies)
    with pytest.raises(KeyboardInterrupt):
        place.storage.delete(storage_id)
    assert gone[:2] == [manifest_name(storage_id), "metadata.json"]
    with pytest.raises(errors.CheckpointNotFound):
        place.storage.list_files(storage_id)
    place.storage.close()


def test_links_are_neither_followed_nor_removed_behind(tmp_path: Path) -> None:
    place = Place("posix", {"type": "directory", "container_path": str(tmp_path / "storage")})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("p")
    storage_id = new_storage_id()
    with place.storage.staging(storage_id) as folder:
        os.symlink(tmp_path / "outside", Path(folder, "link"))
        Path(folder, "model").write_text("m")
        files = place.storage.put(storage_id, folder, ["model"])
    place.storage.commit(storage_id, files, {})
    assert sorted(os.listdir(Path(place.raw.root, storage_id))) == ["model"], "the manifest is beside it"
    os.symlink(tmp_path / "outside", Path(place.raw.root, storage_id, "link"))
    for attempt in (
        lambda: place.storage.delete_files(storage_id, ["link/precious"]),
        lambda: list(place.storage.open_file(storage_id, "link/precious")),
    ):
        with pytest.raises(ValueError, match="leads out of"):
            attempt()
    assert (tmp_path / "outside" / "precious").read_text() == "p"


def test_commit_refuses_what_was_never_put(tmp_path: Path) -> None:
    place = Place("posix", {"type": "directory", "container_path": str(tmp_path)})
    storage_id = new_storage_id()
    place.storage.begin(storage_id)
    with pytest.raises(errors.CheckpointStorageError, match="'?x'? was to be part of a checkpoint, but was never put"):
        place.storage.commit(storage_id, {"x": storage.FileEntry(1)}, {})
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []


@pytest.mark.parametrize(
    ("config", "root"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket", "gs://bucket"),
        ("ms://account.blob.core.windows.net/container", "ms://container"),
        ({"type": "s3", "bucket": "b", "prefix": "/x//y/", "save_trial_best": 1, "access_key": None}, "s3://b/x/y"),
        ("/some/where", "/some/where"),
        ("file:///some/where", "/some/where"),
    ],
)
def test_a_storage_is_built_from_section_or_url(config: Any, root: str) -> None:
    assert storage.build(config).root == root


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"type": "s3", "bucket": "b", "prefix": "a/../b"}, r"prefix is 'a/\.\./b', but must be a path without '\.\.'"),
        ({"type": "gcs", "bucket": ""}, "bucket is '', but must be a name"),
        ({"type": "s3"}, "bucket is None, but must be a name"),
        ({"type": "s3", "bucket": "b", "secret_key": 7}, "secret_key is of type int, but must be a string"),
        ({"type": "azure", "container": "c"}, "exactly one of connection_string and account_url"),
        ("ms://container/path", "must be ms://container or"),
        ("ftp://host/path", "'ftp', but must be one of 'shared_fs', 'directory', 's3', 'gcs', 'azure'"),
    ],
)
def test_a_wrong_section_is_explained(config: Any, told: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException, match=told):
        storage.build(config)


@pytest.mark.parametrize(
    ("config", "package"),
    [("s3://b", "boto3"), ("gs://b", "google-cloud-storage"), ("ms://a.b/c", "azure-storage-blob")],
)
def test_a_missing_sdk_is_named_with_what_installs_it(
    config: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.NotAvailableException, match=rf"needs the package {package}.*undeterred-harness\["):
        storage.build(config)


def test_no_sdk_is_loaded_by_building_a_storage() -> None:
    script = """
import sys
from determined import core
assert "determined.common.storage._objects" not in sys.modules
from determined.common import storage
storage.build("s3://bucket"), storage.build("gs://bucket"), storage.build("ms://a.b/c")
print([name for name in ("boto3", "google.cloud.storage", "azure.storage.blob") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_models_of_services_are_parsed_once_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.loaders import JSONFileLoader

    parsed, parse = list[str](), JSONFileLoader._load_file

    def note(loader: JSONFileLoader, path: str, open_method: Any) -> Any:
        parsed.append(path)
        return parse(loader, path, open_method)

    def connect() -> None:
        place: Any = storage.build({"type": "s3", "bucket": "b", "access_key": "k", "secret_key": "s"})
        place._client()
        place.close()

    connect()
    monkeypatch.setattr(JSONFileLoader, "_load_file", note)
    connect()
    assert parsed == []


@pytest.mark.parametrize(("scheme", "is_signed"), [("https", False), ("http", True)])
def test_bodies_are_hashed_for_the_signature_only_where_no_tls_protects_them(scheme: str, is_signed: bool) -> None:
    from botocore.awsrequest import AWSResponse

    place: Any = storage.build(
        {
            "type": "s3",
            "bucket": "b",
            "endpoint_url": f"{scheme}://s3.example.org",
            "access_key": "k",
            "secret_key": "s",
        }
    )
    client, signed = place._client(), list[bytes]()

    def answer(request: Any, **_: Any) -> Any:
        signed.append(request.headers["x-amz-content-sha256"])
        found: Any = AWSResponse(request.url, 200, {"ETag": "e"}, None)
        found._content = b""
        return found

    client.meta.events.register("before-send.s3", answer)
    place.send_bytes(client, "key", b"content")
    expected = hashlib.sha256(b"content").hexdigest() if is_signed else "UNSIGNED-PAYLOAD"
    assert signed == [expected.encode()]
    place.close()
