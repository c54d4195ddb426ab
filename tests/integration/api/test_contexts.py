"""Contexts that are uploaded in chunks: what is sent, who gets at it, what is refused, and what becomes of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from datetime import timedelta
from typing import Any

import pytest
import yaml
from sqlalchemy import delete, func, select, update

from api.services import chunked_contexts
from database.models import Context, ContextChunk, ContextChunkData, ModelDefinition, TaskContext
from database.types import utc_now
from tests.integration.api.served import Caller, Served, a_file

CONTEXTS = "/api/v1/undeterred/contexts"
#: Chunks of a file, and one that two files share.
LARGE = [b"a" * 700_000, b"b" * 300_000]
SHARED = b"print(1)\nprint(2)\n"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def a_manifest(salt: bytes = b"") -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of three files, and its chunks."""
    contents = [*LARGE, SHARED + salt]
    spans = [{"chunk": 0, "size": 700_000}, {"chunk": 1, "size": 300_000}]
    files = [
        {"path": "data", "type": 53, "mode": 0o40755, "mtime": 7},
        {"path": "data/large.bin", "mode": 0o100644, "mtime": 5, "spans": spans},
        {"path": "one.py", "mode": 0o100755, "mtime": 6, "spans": [{"chunk": 2, "size": 9}]},
        {"path": "two.py", "mode": 0o100644, "mtime": 6, "spans": [{"chunk": 2, "offset": 9, "size": 9 + len(salt)}]},
        {"path": "empty", "mode": 0o100644},
    ]
    chunks = {digest_of(each): each for each in contents}
    return {"chunks": list(chunks), "files": files}, chunks


async def upload(user: Caller, manifest: dict[str, Any], chunks: dict[str, bytes]) -> tuple[str, list[str]]:
    """The id of a context, and the chunks that were sent for it."""
    missing = (await user.post(f"{CONTEXTS}/missing", {"chunks": list(chunks)}))["missing"]
    for digest in missing:
        sent = await user.ask("PUT", f"{CONTEXTS}/chunks/{digest}", chunks[digest])
        assert sent.status_code == 200, sent.text
    return (await user.post(CONTEXTS, manifest))["id"], missing


async def created(api: Served, user: Caller, context: str, **more: Any) -> int:
    """An experiment with this context."""
    request = {"config": yaml.safe_dump(api.config()), "context": context} | more
    return (await user.post("/api/v1/experiments", request))["experiment"]["id"]


async def test_what_is_there_is_not_sent_again_and_another_user_sends_all(api: Served) -> None:
    user, other = api.user(), api.user()
    manifest, chunks = a_manifest()
    context, sent = await upload(user, manifest, chunks)
    assert sorted(sent) == sorted(chunks)
    manifest["files"][1]["mtime"] = 99  # a fresh checkout
    assert await upload(user, manifest, chunks) == (context, [])

    assert (await other.post(f"{CONTEXTS}/missing", {"chunks": list(chunks)}))["missing"] == list(chunks)
    assert "was not uploaded" in await other.refused(400, "POST", CONTEXTS, manifest)
    request = {"config": yaml.safe_dump(api.config()), "context": context}
    assert "context: " in await other.refused(404, "POST", "/api/v1/experiments", request)
    theirs, sent = await upload(other, manifest, chunks)
    assert (theirs, sorted(sent)) == (context, sorted(chunks)), "the same files have the same id; each has their own"
    with api.database.read() as session:
        owners = select(func.count()).select_from(Context).where(Context.digest == context)
        assert session.scalar(owners) == 2


async def test_its_files_are_read_as_those_of_any_context(api: Served) -> None:
    user = api.user()
    manifest, chunks = a_manifest()
    context, _ = await upload(user, manifest, chunks)
    number = await created(api, user, context)
    path = f"/api/v1/experiments/{number}"
    tree = (await user.get(f"{path}/file_tree"))["files"]
    assert [(each["path"], each["contentLength"]) for each in tree] == [
        ("data", 0), ("empty", 0), ("one.py", 9), ("two.py", 9),
    ]  # fmt: skip
    assert tree[0]["files"][0]["contentLength"] == 1_000_000
    for name, content in {"one.py": b"print(1)\n", "two.py": b"print(2)\n", "data/large.bin": b"".join(LARGE)}.items():
        assert base64.b64decode((await user.post(f"{path}/file", {"path": name}))["file"]) == content
    await user.refused(404, "POST", f"{path}/file", {"path": "data"})

    packed = base64.b64decode((await user.get(f"{path}/model_def"))["b64Tgz"])
    assert (await user.ask("GET", f"/experiments/{number}/model_def")).content == packed
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert members["data"].isdir()
        assert (members["one.py"].mode, members["one.py"].mtime) == (0o755, 6)
        large = archive.extractfile("data/large.bin")
        assert large is not None
        assert large.read() == b"".join(LARGE)

    forked = await user.post("/api/v1/experiments", {"config": yaml.safe_dump(api.config()), "parentId": number})
    again = await user.get(f"/api/v1/experiments/{forked['experiment']['id']}/model_def")
    assert base64.b64decode(again["b64Tgz"]) == packed
    many = {"experiments": [{"config": yaml.safe_dump(api.config())} for _ in range(3)], "context": context}
    for made in (await user.post("/api/v1/undeterred/experiments", many))["experiments"]:
        assert (await user.get(f"/api/v1/experiments/{made['id']}/file_tree"))["files"] == tree


async def test_a_container_gets_a_tar_from_any_byte_on(api: Served) -> None:
    user = api.user()
    manifest, chunks = a_manifest()
    context, _ = await upload(user, manifest, chunks)
    run = await api.another_trial(await created(api, user, context))
    path = f"/api/v1/tasks/{run.task_id}/context_directory"
    asked = await run.container.get(path, byStream="true")
    assert asked["b64Tgz"] == ""
    size = int(asked["streamBytes"])
    stream = f"/api/v1/undeterred/tasks/{run.task_id}/context"
    whole = (await run.container.ask("GET", stream)).content
    assert len(whole) == size
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        assert archive.getnames() == ["data", "data/large.bin", "empty", "one.py", "two.py"]
    for offset in (1, 511, 512, 513, 1024, 1500, 700_000, 701_024, 1_001_200, size - 1024, size - 5, size):
        part = (await run.container.ask("GET", stream, params={"offset": offset})).content
        assert part == whole[offset:], offset
    assert "offset" in await run.container.refused(400, "GET", stream, params={"offset": size + 1})
    # a published client knows of no stream
    old = gzip.decompress(base64.b64decode((await run.container.get(path))["b64Tgz"]))
    assert old == whole
    plain = await api.trial(user)
    assert (await plain.container.get(f"/api/v1/tasks/{plain.task_id}/context_directory", byStream="true"))["b64Tgz"]
    await plain.container.refused(404, "GET", stream)


async def test_tasks_have_them_too(api: Served) -> None:
    user = api.user()
    manifest, chunks = a_manifest(b"#task")
    context, _ = await upload(user, manifest, chunks)
    config = {"entrypoint": ["true"], "resources": {"slots": 0}}
    both = {"config": config, "context": context, "files": [a_file("x")]}
    assert "context: expected either" in await user.refused(400, "POST", "/api/v1/commands", both)
    command = await user.post("/api/v1/commands", {"config": config, "context": context})
    generic = {"config": yaml.safe_dump(config), "context": context}
    task = (await user.post("/api/v1/generic-tasks", generic))["taskId"]
    forked = (await user.post("/api/v1/generic-tasks", {"config": "", "forkedFrom": task}))["taskId"]
    with api.database.read() as session:
        ids = {session.get_one(TaskContext, each).context_id for each in (command["command"]["id"], task, forked)}
    assert len(ids) == 1
    assert None not in ids


async def test_a_submission_that_is_sent_again_has_the_same_digest(api: Served) -> None:
    user = api.user()
    manifest, chunks = a_manifest(b"#submitted")
    context, _ = await upload(user, manifest, chunks)
    request = {"config": yaml.safe_dump(api.config()), "context": context, "submit": {"idempotency_key": "k1"}}
    first, second = [await user.post("/api/v1/experiments", request) for _ in range(2)]
    assert (first["submission"]["replayed"], second["submission"]["replayed"]) == (False, True)
    other, _ = await upload(user, *a_manifest(b"#another"))
    assert "already used" in await user.refused(409, "POST", "/api/v1/experiments", request | {"context": other})


def changed(place: int, **fields: Any) -> Any:
    """A change of one file of a manifest."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][place] |= fields

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changed(2, path="../up.py"), "leaves the context folder"),
        (changed(2, path="/etc/passwd"), "leaves the context folder"),
        (changed(2, path="TWO.py"), "are the same where case does not count"),
        (changed(2, path="two.py/below"), "would be within it"),
        (changed(2, type=50), "neither a file nor a directory"),
        (changed(2, mtime=-1), "mtime"),
        (changed(2, spans=[{"chunk": 3, "size": 1}]), "chunk 3: expected one of the 3 chunks"),
        (changed(2, spans=[{"chunk": 2, "offset": 10, "size": 9}]), "bytes 10 to 19 of chunk 2: it has 18"),
        (changed(2, spans=[{"chunk": 2, "offset": -1, "size": 9}]), "offset"),
        (changed(2, spans=[{"chunk": 2, "size": 0}]), "size"),
        (changed(0, spans=[{"chunk": 2, "size": 1}]), "is a directory: expected no spans"),
        (changed(1, spans=[]), "no file has bytes of it"),
        (lambda manifest: manifest["chunks"].append(manifest["chunks"][0]), "are there twice"),
        (lambda manifest: manifest["chunks"].append("0" * 64), "was not uploaded"),
        (lambda manifest: manifest["chunks"].append("no hash"), "chunks"),
    ],
)  # fmt: skip
async def test_hostile_manifests_are_refused(api: Served, change: Any, told: str) -> None:
    user = api.user()
    manifest, chunks = a_manifest()
    await upload(user, manifest, chunks)
    change(manifest)
    assert told in await user.refused(400, "POST", CONTEXTS, manifest)


async def test_one_chunk_can_not_be_said_until_it_fills_a_disk(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    manifest, chunks = a_manifest()
    await upload(user, manifest, chunks)
    monkeypatch.setattr(api.parts.settings, "context_limit_mib", 2)
    changed(1, spans=[{"chunk": 0, "size": 700_000}, {"chunk": 1, "size": 300_000}] * 3)(manifest)
    told = await user.refused(413, "POST", CONTEXTS, manifest)
    assert "2.9 MiB, the limit of this cluster (context_limit_mib) is 2 MiB" in told


async def test_a_chunk_is_what_its_name_says(api: Served) -> None:
    user = api.user()
    path = f"{CONTEXTS}/chunks"
    assert "have the SHA-256" in await user.refused(400, "PUT", f"{path}/{'0' * 64}", b"other")
    assert "has 0 bytes" in await user.refused(413, "PUT", f"{path}/{digest_of(b'')}", b"")
    large = bytes(chunked_contexts.CHUNK_BYTES + 1)
    await user.refused(413, "PUT", f"{path}/{digest_of(large)}", large)
    await user.refused(400, "PUT", f"{path}/short", b"x")
    assert (await user.post(f"{CONTEXTS}/missing", {"chunks": ["0" * 64]}))["missing"] == ["0" * 64]


async def test_what_nothing_refers_to_is_bounded_and_expires(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user, other = api.user(), api.user()
    monkeypatch.setattr(api.parts.settings, "context_limit_mib", 1)  # and 2 MiB that nothing was created with
    manifest, chunks = a_manifest()
    context, _ = await upload(user, manifest, chunks)
    more = [bytes([n]) * 700_000 for n in range(2)]
    await user.ask("PUT", f"{CONTEXTS}/chunks/{digest_of(more[0])}", more[0])
    told = await user.refused(400, "PUT", f"{CONTEXTS}/chunks/{digest_of(more[1])}", more[1])
    assert "the limit is 2 MiB: create something with it" in told
    assert (await other.ask("PUT", f"{CONTEXTS}/chunks/{digest_of(more[1])}", more[1])).status_code == 200

    number = await created(api, user, context)  # what is used does not count
    assert (await user.ask("PUT", f"{CONTEXTS}/chunks/{digest_of(more[1])}", more[1])).status_code == 200
    third = b"c" * 900_000
    await user.refused(400, "PUT", f"{CONTEXTS}/chunks/{digest_of(third)}", third)
    grow_old(api, user, timedelta(hours=2))
    assert (await user.ask("PUT", f"{CONTEXTS}/chunks/{digest_of(third)}", third)).status_code == 200
    with api.database.read() as session:
        left = set(session.scalars(select(ContextChunk.digest).where(ContextChunk.owner_id == user.user_id)))
    assert left == {*chunks, digest_of(third)}, "what is stale makes room, and what is used stays"

    grow_old(api, user, timedelta(hours=25))
    chunked_contexts.sweep(api.database)
    assert base64.b64decode((await user.get(f"/api/v1/experiments/{number}/model_def"))["b64Tgz"])
    with api.database.write() as session:
        session.execute(delete(ModelDefinition).where(ModelDefinition.experiment_id == number))
    grow_old(api, user, timedelta(hours=25))
    chunked_contexts.sweep(api.database)
    with api.database.read() as session:
        for table in (Context, ContextChunk):
            assert not session.scalars(select(table.id).where(table.owner_id == user.user_id)).all()
        known = select(ContextChunkData.chunk_id).where(ContextChunkData.chunk_id.not_in(select(ContextChunk.id)))
        assert not session.scalars(known).all()


def grow_old(api: Served, user: Caller, age: timedelta) -> None:
    """All that a user has uploaded was used this long ago."""
    with api.database.write() as session:
        for table in (Context, ContextChunk):
            session.execute(update(table).where(table.owner_id == user.user_id).values(used_at=utc_now() - age))


def tar_of(kind: bytes, link: str = "") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("train.py")
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("packed", "is_listed"),
    [(b"\0", False), (tar_of(tarfile.REGTYPE)[:40], False), (tar_of(tarfile.SYMTYPE, "/etc/passwd"), True)],
    ids=["none", "half", "link"],
)
async def test_imported_archive_that_cannot_be_read_is_said_to_be_none(
    api: Served, packed: bytes, is_listed: bool
) -> None:
    """What another master has packed may be anything."""
    user = api.user()
    experiment_id = await api.experiment(user)
    with api.database.write() as session:
        whole = update(ModelDefinition).where(ModelDefinition.experiment_id == experiment_id)
        session.execute(whole.values(content=packed, context_id=None))
    path = f"/api/v1/experiments/{experiment_id}"
    if is_listed:
        assert [file["path"] for file in (await user.get(f"{path}/file_tree"))["files"]] == ["train.py"]
    else:
        assert "no archive that can be read" in await user.refused(400, "GET", f"{path}/file_tree")
    assert "no archive that can be read" in await user.refused(400, "POST", f"{path}/file", {"path": "train.py"})
