"""Whatever is sent is refused or stored, and keeps nobody else from work.

Elsewhere: tokens that end in the middle of work, and those of another allocation (test_tokens, test_fencing); things of
others (test_permissions); numbers out of range, NUL, and bodies larger than any context (test_wire_rules); metrics that
are no numbers (test_metrics); a line of a megabyte (test_logs); members of a context that are links, devices or outside
of it, and bad base64 (tests/unit/api/test_context).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import io
import json
import os
import re
import tarfile
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from sqlalchemy import func, select

from api.middleware.bodies import DOCUMENT
from database.models import Experiment
from tests.integration.api.served import Caller, Run, Served, a_file, until

#: How long others may have to wait for an answer, whatever one does.
_SOON_S = 5.0


@contextlib.asynccontextmanager
async def no_bug(api: Served) -> AsyncIterator[None]:
    """Nothing is logged as a fault of ours in the meantime."""
    lines = api.parts.log_ring.lines()
    last = lines[-1].id if lines else 0
    yield
    told = [line.message for line in api.parts.log_ring.lines(after=last)]
    assert not [line for line in told if "bug" in line or "Traceback" in line], told


class Raw:
    """A connection on which anything can be sent."""

    def __init__(self, api: Served, caller: Caller) -> None:
        self._port: int = api.http.base_url.port or 0
        self._headers = caller.headers

    async def __aenter__(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def begin(self, method: str, path: str, *headers: str) -> None:
        """Send the head of a request."""
        told = ["Host: x", *(f"{name}: {value}" for name, value in self._headers.items()), *headers]
        self.writer.write(f"{method} {path} HTTP/1.1\r\n".encode("utf-8", "surrogateescape"))
        self.writer.write("".join(f"{line}\r\n" for line in told).encode("utf-8", "surrogateescape") + b"\r\n")
        await self.writer.drain()

    async def status(self) -> int:
        """The status of the answer."""
        return int((await asyncio.wait_for(self.reader.readline(), 10)).split()[1])


async def page(api: Served) -> dict[str, Any]:
    return (await api.nobody.get("/api/v1/openapi.json"))["paths"]


def filled(path: str, run: Run) -> str:
    """A path with things that there are."""
    known = {
        "experiment_id": run.experiment_id, "trial_id": run.trial_id, "run_id": run.trial_id, "task_id": run.task_id,
        "allocation_id": run.allocation_id, "pool": "default", "kind": "validation_metrics",
    }  # fmt: skip
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: str(known.get(found[1], 1)), path)


# -- lists ---------------------------------------------------------------------------------------------------------

_CHOICES = {"sortBy", "orderBy", "sortByAttr", "states", "levels", "metricType", "filter", "period"}
#: What else these need to be answered.
_NEEDED = {
    "startDate": "2026-01-01",
    "endDate": "2026-01-02",
    "start_date": "2026-01-01",
    "end_date": "2026-01-02",
    "metricName": "loss",
    "group": "validation",
    "batchesProcessed": "1",
}
_SPAN = {
    "timestampAfter": "2026-01-01T00:00:00Z",
    "timestampBefore": "2026-01-02T00:00:00Z",
    "timestamp_after": "2026-01-01T00:00:00Z",
    "timestamp_before": "2026-01-02T00:00:00Z",
}


async def test_value_is_refused_with_those_that_there_are_when_it_is_none_of_them(api: Served) -> None:
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    tried = 0
    for path, methods in (await page(api)).items():
        for parameter in methods.get("get", {}).get("parameters", ()):
            if parameter["name"] in _CHOICES and not path.startswith("/api/v1/models/{name}"):
                wanted = _NEEDED | {parameter["name"]: "NO_SUCH_THING"}
                told = await admin.refused(400, "GET", filled(path, run), params=wanted)
                assert "expected one of" in told, f"{path} {parameter['name']}: {told}"
                tried += 1
    assert tried > 40


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_time_is_refused_when_it_is_of_no_year_in_utc(api: Served, time: str) -> None:
    """Stored, it could not be read again, and with it neither could the list that it is in."""
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    refused = "expected a time of the years 1 to 9999 in UTC"
    tried = 0
    async with no_bug(api):
        for path, methods in (await page(api)).items():
            parameters = {each["name"]: each for each in methods.get("get", {}).get("parameters", ())}
            for name, parameter in parameters.items():
                if "date-time" in json.dumps(parameter):
                    others = {key: value for key, value in (_NEEDED | _SPAN).items() if key in parameters}
                    wanted = others | {name: time}
                    assert refused in await admin.refused(400, "GET", filled(path, run), params=wanted)
                    tried += 1
        assert tried > 10
        line = {"taskId": run.task_id, "timestamp": time, "log": "x"}
        assert refused in await run.container.refused(400, "POST", "/api/v1/task/logs", {"logs": [line]})
        report = {"trialRunId": 1, "stepsCompleted": 1, "reportTime": time, "metrics": {"avgMetrics": {"loss": 1.0}}}
        path = f"/api/v1/trials/{run.trial_id}/metrics"
        assert refused in await run.container.refused(400, "POST", path, {"group": "training", "metrics": report})
        assert refused in await admin.refused(400, "PATCH", f"/api/v1/trials/{run.trial_id}", {"startTime": time})
        token = base64.urlsafe_b64encode(f"{time} 7".encode()).decode()
        assert "pageToken" in await admin.refused(400, "GET", "/api/v1/submissions", params={"pageToken": token})


@pytest.mark.parametrize("offset", [0, -(10**9), 10**9, 2**31, -(2**63), 10**30])
@pytest.mark.parametrize("limit", [10**9, -(10**9), -3, 10**30])
async def test_list_is_answered_or_refused_when_the_page_is_absurd(api: Served, offset: int, limit: int) -> None:
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    for path, methods in (await page(api)).items():
        names = {parameter["name"] for parameter in methods.get("get", {}).get("parameters", ())}
        if names & {"offset", "limit"}:
            asked = _NEEDED | {"offset": str(offset), "limit": str(limit)}
            response = await admin.ask("GET", filled(path, run), params=asked)
            assert response.status_code in (200, 400, 404), f"{path}: {response.text}"


async def test_answer_tells_to_ask_for_less_when_there_are_thousands_of_values(api: Served) -> None:
    """What a database can't run at all is no reason to try again."""
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    many = list(range(1, 100_000))
    for method, path, body in (
        ("PATCH", "/api/v1/users", {"userIds": [10**9 + n for n in many], "activate": True}),
        ("POST", "/api/v1/roles/search/by-ids", {"roleIds": many}),
        ("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [str(n) for n in many]}),
        ("POST", "/api/v1/projects/1/experiments/pause", {"filters": {"excludedExperimentIds": many}}),
        ("POST", "/api/v1/projects/1/experiments/pause", {"filters": {"name": "x" * 200_000}}),
        ("POST", "/api/v1/projects/1/experiments/pause", {"filters": {"states": ["STATE_ACTIVE"] * 20_000}}),
        ("POST", "/api/v1/projects/1/experiments/pause", {"filters": {"labels": [f"l{n}" for n in many]}}),
        ("POST", "/api/v1/resource-pools/default/workspace-bindings", {"workspaceIds": many}),
    ):  # fmt: skip
        response = await admin.ask(method, path, body)
        is_away = response.status_code == 503 and "Temporal" in response.text
        assert is_away or response.status_code in (200, 400, 404), f"{path}: {response.text[:300]}"
    for path, name, value in (
        ("/api/v1/experiments", "states", ["STATE_ACTIVE"] * 2000), ("/api/v1/experiments", "labels", ["x"] * 5000),
        ("/api/v1/experiments", "name", "x" * 60_000), ("/api/v1/users", "roleIdAssignedDirectlyToUser", [5] * 2000),
        (f"/api/v1/trials/{run.trial_id}/logs", "searchText", "x" * 60_000),
        (f"/api/v1/trials/{run.trial_id}/logs", "levels", ["LOG_LEVEL_INFO"] * 2000),
        (f"/api/v1/experiments/{run.experiment_id}/trials", "states", ["STATE_ACTIVE"] * 2000),
    ):  # fmt: skip
        response = await admin.ask("GET", path, params={name: value})
        assert response.status_code in (200, 400), f"{path} {name}: {response.text[:300]}"


# -- texts ---------------------------------------------------------------------------------------------------------

TEXTS = ["\x00", "a\x00b", "\x1b[31mred\x07", "\r\n\t", "<script>alert(1)</script>", "\u202eevil", "\ud800", "💥" * 50]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
async def test_text_is_stored_as_it_is_or_refused_when_it_is_odd(api: Served, text: str) -> None:
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    name = f"n{uuid.uuid4().hex}"
    workspace = (await admin.post("/api/v1/workspaces", {"name": name}))["workspace"]["id"]
    await admin.post("/api/v1/models", {"name": name})
    experiment, model = f"/api/v1/experiments/{run.experiment_id}", f"/api/v1/models/{name}"
    for path, field, body in (
        (experiment, "name", text), (experiment, "description", text), (experiment, "notes", text),
        (experiment, "labels", [text]), (model, "description", text), (model, "notes", text), (model, "labels", [text]),
        (model, "metadata", {"a": text}), (model, "metadata", {text: 1}), (f"/api/v1/workspaces/{workspace}", "name", text),
        (f"/api/v1/users/{admin.user_id}", "displayName", text), (f"/api/v1/users/{admin.user_id}", "username", text),
    ):  # fmt: skip
        response = await admin.ask("PATCH", path, {field: body})
        assert response.status_code in (200, 400), f"{path} {field}: {response.text}"
        assert response.headers["content-type"] == "application/json"
        if response.status_code == 200:
            [shown] = [value for value in response.json().values() if isinstance(value, dict) and field in value]
            stripped = [text.strip()] if field == "labels" else text.strip() or None
            assert shown[field] in (body, stripped), f"{path} {field}"
    await admin.get(experiment)
    await admin.get(model)
    for method, path, body in (
        ("POST", "/api/v1/groups", {"name": text}), ("POST", "/api/v1/users", {"user": {"username": text}}),
        ("POST", f"/api/v1/workspaces/{workspace}/projects", {"name": text, "description": text}),
        ("POST", "/api/v1/tokens", {"description": text}), ("POST", "/api/v1/templates/odd", {"config": {"name": text}}),
        ("POST", "/api/v1/projects/1/notes", {"name": text, "contents": text}),
        ("POST", "/api/v1/users/setting", {"settings": [{"key": text, "storagePath": text, "value": text}]}),
        ("POST", "/api/v1/experiments", {"config": yaml.safe_dump(api.config(name=text, labels=[text]))}),
        ("POST", "/api/v1/experiments", {"config": json.dumps(api.config(data={text: text}))}),
        ("POST", f"/api/v1/experiments/{run.experiment_id}/file", {"path": text}),
        ("POST", f"/api/v1/runs/{run.trial_id}/metadata", {"metadata": {"a": text}}),
        ("POST", "/api/v1/webhooks/custom", {"experimentId": run.experiment_id, "data": {"title": text}}),
        ("PUT", "/api/v1/master/cluster_message", {"message": text, "startTime": "2026-01-01T00:00:00Z"}),
    ):  # fmt: skip
        response = await admin.ask(method, path, body)
        assert response.status_code in (200, 400, 404, 409), f"{path}: {response.text}"
    report = run.message("validation", 1, {text: 1.0, "x": text})
    response = await run.container.ask("POST", f"/api/v1/trials/{run.trial_id}/metrics", report)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 200:
        trial = (await admin.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
        assert trial["bestValidation"] is None or text in trial["bestValidation"]["metrics"]["avgMetrics"]
    log = {"logs": [{"log": text, "source": text, "level": text, "agentId": text}]}
    response = await run.container.ask("POST", "/api/v1/task/logs", log)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 200:
        [line] = await admin.lines(f"/api/v1/trials/{run.trial_id}/logs")
        assert line["log"] == text.rstrip("\n").replace("\x00", "")
    await admin.ask("DELETE", "/api/v1/master/cluster_message")


# -- bodies --------------------------------------------------------------------------------------------------------

BODIES = {
    "no end": b'{"a": ', "no JSON": b"<xml/>", "invalid UTF-8": b'{"name": "\xff\xfe"}', "a mark of order": b"\xef\xbb\xbf{}",
    "deep list": b"[" * 100_000, "deep object": b'{"a":' * 5000 + b"1" + b"}" * 5000, "NaN": b'{"id": NaN}',
    "half a pair": b'{"name": "\\ud800"}', "a huge number": b'{"id": ' + b"9" * 5000 + b"}", "gzip": gzip.compress(b"{}"),
    "infinity": b'{"id": 1e999, "limit": 1e999, "userId": 1e999}', "list": b"[{}]", "keys twice": b'{"id": 1, "id": []}',
    "wrong types": b'{"id": {}, "name": 1, "config": [], "labels": 5, "userIds": "x", "metadata": [], "filters": []}',
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
async def test_body_is_no_fault_of_ours_when_it_is_sent_anywhere(api: Served, body: bytes) -> None:
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    async with no_bug(api):
        for path, methods in (await page(api)).items():
            for method, operation in methods.items():
                if "requestBody" not in operation or path.endswith("/master/config"):
                    continue
                for caller in (admin, run.container):
                    response = await caller.ask(method.upper(), filled(path, run), body)
                    assert response.status_code < 500 or response.status_code in (501, 503), f"{path}: {response.text}"
                    if response.status_code != 200:
                        error = response.json()
                        assert error["message"] == error["error"]["error"] != ""
                    if response.status_code == 503:
                        assert "Temporal" in error["message"], f"{path}: {response.text}"


@pytest.mark.parametrize("depth", [60, 150, 190, 230, 1000, 100_000])
async def test_object_can_be_read_or_was_refused_when_it_is_nested_deeply(api: Served, depth: int) -> None:
    user = api.user()
    run = await api.trial(user)
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    uuid_ = str(uuid.uuid4())
    await run.container.post("/api/v1/checkpoints", {"uuid": uuid_, "metadata": {"steps_completed": 1}})
    unmanaged = await user.post("/api/v1/experiments", {"config": "name: x", "unmanaged": True})
    asked: list[tuple[Caller, str, bytes]] = [
        (user, f"/api/v1/checkpoints/{uuid_}/metadata", b'{"checkpoint": {"metadata": %s}}' % nested),
        (user, f"/api/v1/runs/{run.trial_id}/metadata", b'{"metadata": %s}' % nested),
        (user, "/api/v1/trials", b'{"unmanaged": true, "experimentId": %d, "hparams": %s}'
         % (unmanaged["experiment"]["id"], nested)),
        (user, "/api/v1/preview-hp-search", b'{"config": %s}' % nested),
        (user, f"/api/v1/templates/t{uuid_[:8]}x", b'{"config": %s}' % nested),
        (run.container, f"/api/v1/allocations/{run.allocation_id}/acceleratorData", b'{"acceleratorData": %s}' % nested),
        (run.container, f"/api/v1/trials/{run.trial_id}/metrics",
         b'{"group": "validation", "metrics": {"trialRunId": 1, "stepsCompleted": 1, "metrics": {"avgMetrics": %s}}}' % nested),
        (run.container, "/api/v1/checkpoints", b'{"uuid": "%s", "metadata": {"steps_completed": 1, "a": %s}}'
         % (str(uuid.uuid4()).encode(), nested)),
    ]  # fmt: skip
    for caller, path, body in asked:
        response = await caller.ask("POST", path, body)
        assert response.status_code in (200, 400), f"{path}: {response.text}"
        assert response.status_code == 400 or depth < 200
    for path in (
        f"/api/v1/checkpoints/{uuid_}", f"/api/v1/runs/{run.trial_id}/metadata", f"/api/v1/trials/{run.trial_id}",
        f"/api/v1/trials/{run.trial_id}/workloads", f"/api/v1/experiments/{run.experiment_id}/checkpoints",
        f"/api/v1/experiments/{unmanaged['experiment']['id']}/trials", f"/api/v1/tasks/{run.task_id}/acceleratorData",
    ):  # fmt: skip
        await user.get(path)


async def test_body_is_cut_off_when_it_never_ends(api: Served) -> None:
    """Without a length, the server finds out by reading: no more than the limit of this message."""
    user = api.user()
    piece = b"x" * 2**20
    async with Raw(api, user) as raw:
        await raw.begin("PATCH", f"/api/v1/users/{user.user_id}", "Transfer-Encoding: chunked")
        sent = 0
        answered = asyncio.ensure_future(raw.status())
        with contextlib.suppress(ConnectionError):
            while not answered.done() and sent < 2 * DOCUMENT.size:
                raw.writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await raw.writer.drain()
                await asyncio.sleep(0)
                sent += len(piece)
        assert await answered == 413
        assert sent < DOCUMENT.size


# -- configurations ------------------------------------------------------------------------------------------------

_BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)
CONFIGS = {
    "10 MB": "name: " + "x" * 10_000_001, "a bomb": _BOMB, "a bomb of merges": "a: &a {x: 1}\n<<: [" + "*a," * 300_000 + "]",
    "keys twice": "name: a\nname: b\n", "deep": "a: " + "[" * 10_000, "a tag": "name: !!python/object:os.system x",
    "two documents": "name: a\n---\nname: b\n", "a list": "- 1", "an alias of nothing": "name: *x",
    "itself": "a: &a [*a]", "10 MB of lists": "[" * 2_000_000, "many keys": "".join(f"k{n}: 1\n" for n in range(200_000)),
    "a grid of 10^18 points": None,
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
async def test_config_is_refused_within_a_second_when_it_is_hostile(api: Served, name: str) -> None:
    user = api.user()
    config = CONFIGS[name]
    if config is None:
        space = {f"h{n}": {"type": "int", "minval": 0, "maxval": 10**6, "count": 10**6} for n in range(3)}
        searcher = {"name": "grid", "metric": "loss", "max_length": 1}
        config = yaml.safe_dump(api.config(searcher=searcher, hyperparameters=space))
    began = time.monotonic()
    status = 413 if name == "10 MB of lists" else 400
    told = await user.refused(status, "POST", "/api/v1/experiments", {"config": config})
    assert time.monotonic() - began < _SOON_S, "a second, and room for a busy machine"
    assert len(told) < 5000
    with api.database.read() as session:
        assert not session.scalar(select(func.count()).where(Experiment.owner_id == user.user_id))


@pytest.mark.parametrize(
    "names", [("a.py", "A.PY"), ("a.py", "a.py"), ("straße", "STRASSE"), ("a", "a/b"), ("caf\u00e9", "cafe\u0301")]
)
async def test_context_is_refused_by_name_when_files_clash(api: Served, names: tuple[str, str]) -> None:
    files = [a_file(name) for name in names]
    body = {"config": yaml.safe_dump(api.config()), "modelDefinition": files}
    told = await api.user().refused(400, "POST", "/api/v1/experiments", body)
    assert all(repr(name) in told for name in names)


async def test_context_is_refused_soon_when_it_has_a_million_files(api: Served) -> None:
    user, other = api.user(), api.user()
    files = ",".join(f'{{"path":"f{n}"}}' for n in range(1_000_000))
    body = b'{"config": "", "modelDefinition": [' + files.encode() + b"]}"
    asked = asyncio.create_task(user.refused(413, "POST", "/api/v1/experiments", body))
    assert "1000000 values" in await asked
    assert await _waited(other) < _SOON_S


@pytest.mark.parametrize("mtime", [-1, 2**33, 2**62, 10**30])
async def test_context_is_refused_by_name_when_a_file_is_of_no_time(api: Served, mtime: int) -> None:
    body = {"config": yaml.safe_dump(api.config()), "modelDefinition": [a_file("a.py") | {"mtime": str(mtime)}]}
    assert "a.py" in await api.user().refused(400, "POST", "/api/v1/experiments", body)


# -- checkpoints ---------------------------------------------------------------------------------------------------


async def _checkpoint(api: Served, run: Run, *files: str) -> str:
    uuid_ = str(uuid.uuid4())
    body = {"uuid": uuid_, "metadata": {"steps_completed": 1}, "resources": dict.fromkeys(files, 1)}
    await run.container.post("/api/v1/checkpoints", body)
    return uuid_


async def test_nothing_outside_is_sent_when_the_files_of_a_checkpoint_are_links(api: Served, tmp_path: Any) -> None:
    """Who trains writes to the storage, and the server reads from it with rights of its own."""
    user = api.user()
    run = await api.trial(user)
    (tmp_path / "secret").write_text("secret of the host")
    uuid_ = await _checkpoint(api, run)
    os.symlink(tmp_path, api.folder / uuid_)
    await user.refused(404, "GET", f"/checkpoints/{uuid_}")
    names = ("empty", "folder/secret", "inner/weights", "link", "metadata.json", "pipe")
    uuid_ = await _checkpoint(api, run, *names)
    folder = api.folder / uuid_
    (folder / "inner").mkdir(parents=True)
    (folder / "metadata.json").write_text("{}")  # as Determined's harness leaves it
    (folder / "inner" / "weights").write_bytes(b"w" * 700_001)
    (folder / "empty").write_bytes(b"")
    os.symlink(tmp_path / "secret", folder / "link")
    os.symlink(tmp_path, folder / "folder")
    os.mkfifo(folder / "pipe")
    for accept in ("application/x-tar", "application/gzip"):
        response = await user.ask("GET", f"/checkpoints/{uuid_}", headers={"Accept": accept})
        with tarfile.open(fileobj=io.BytesIO(response.content)) as archive:
            assert sorted(archive.getnames()) == ["empty", "inner/weights", "metadata.json"]
            file = archive.extractfile("inner/weights")
            assert file is not None
            assert file.read() == b"w" * 700_001


async def test_checkpoint_is_refused_when_its_id_is_a_path(api: Served) -> None:
    run = await api.trial(api.user())
    for name in ("../../../etc", "..", "/etc/passwd", "0" * 37, "0" * 36 + "\n", "00000000\n", ""):
        await run.container.refused(
            400, "POST", "/api/v1/checkpoints", {"uuid": name, "metadata": {"steps_completed": 1}}
        )


# -- reports -------------------------------------------------------------------------------------------------------


async def test_report_is_refused_soon_when_it_has_a_hundred_thousand_names(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    metrics = {"avgMetrics": {f"m{n}": n for n in range(100_000)}}
    report = {"trialRunId": run.run_id, "stepsCompleted": 1, "metrics": metrics}
    path = f"/api/v1/trials/{run.trial_id}/metrics"
    asked = asyncio.create_task(run.container.refused(400, "POST", path, {"group": "training", "metrics": report}))
    waits = [await _waited(user) for _ in range(10)]
    assert "the limits are 10000 names" in await asked
    assert max(waits) < _SOON_S, "one that reports too much holds up the others"


# -- clients that are slow, or go away -----------------------------------------------------------------------------


async def _waited(caller: Caller) -> float:
    began = time.monotonic()
    await caller.get("/api/v1/experiments", limit=1)
    return time.monotonic() - began


async def test_others_are_served_when_bodies_trickle_in(api: Served) -> None:
    """More of them than the server has threads and connections to the database."""
    user = api.user()
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(Raw(api, user)) for _ in range(100)]
        for number, raw in enumerate(slow):
            path = ("/api/v1/experiments", "/api/v1/task/logs", "/api/v1/auth/login", "/api/v1/trials/1/metrics")[
                number % 4
            ]
            await raw.begin("POST", path, "Content-Length: 1000000")
            raw.writer.write(b'{"config":')
        for _ in range(5):
            for raw in slow:
                raw.writer.write(b" ")
            assert await _waited(user) < _SOON_S


async def test_others_are_served_when_many_wait_for_news(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    polls = [f"/api/v1/allocations/{run.allocation_id}/signals/preemption?timeoutSeconds=60"] * 60
    streams = [f"/api/v1/trials/{run.trial_id}/logs?follow=true"] * 60
    async with contextlib.AsyncExitStack() as stack:
        for path in (*polls, *streams):
            caller = run.container if path in polls else user
            raw = await stack.enter_async_context(Raw(api, caller))
            await raw.begin("GET", path)
        await asyncio.sleep(0.3)
        assert max([await _waited(user) for _ in range(5)]) < _SOON_S
    async with no_bug(api):  # all of them went away at once
        assert await _waited(user) < _SOON_S


async def test_nothing_is_left_half_done_when_the_client_goes_away_in_the_middle_of_its_body(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    async with no_bug(api):
        for caller, path in (
            (user, "/api/v1/experiments"), (user, "/api/v1/models"), (run.container, "/api/v1/task/logs"),
            (run.container, f"/api/v1/trials/{run.trial_id}/metrics"), (user, "/api/v1/auth/login"),
        ):  # fmt: skip
            async with Raw(api, caller) as raw:
                await raw.begin("POST", path, "Content-Length: 1000")
                raw.writer.write(b'{"config": "name: x", "name": "half"}')
                await raw.writer.drain()
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        assert len((await user.get("/api/v1/experiments", userIds=user.user_id))["experiments"]) == 1, "the trial's"
        assert not (await user.get("/api/v1/models", name="half"))["models"]


async def test_stream_ends_when_its_reader_goes_away(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.container.post("/api/v1/task/logs", {"logs": [{"log": "hello"}]})

    def streams() -> int:
        return sum(
            1
            for task in asyncio.all_tasks()
            if "StreamingResponse" in repr(task) or "listen_for_disconnect" in repr(task)
        )

    before = streams()
    async with no_bug(api):
        for _ in range(10):
            async with Raw(api, user) as raw:
                await raw.begin("GET", f"/api/v1/trials/{run.trial_id}/logs?follow=true")
                assert await raw.status() == 200
        await until(lambda: streams() <= before, 5)


# -- addresses -----------------------------------------------------------------------------------------------------


def _is_told(response: Any, status: int) -> None:
    assert response.status_code == status, response.text
    error = response.json()
    assert error["message"] == error["error"]["error"] != ""


async def test_method_or_path_is_refused_in_our_words_when_there_is_none(api: Served) -> None:
    user = api.user()
    for method in ("PUT", "TRACE", "PROPFIND"):
        _is_told(await user.ask(method, "/api/v1/experiments"), 405)
    _is_told(await user.ask("OPTIONS", "/api/v1/experiments"), 405)
    response = await user.ask("HEAD", "/api/v1/experiments")
    assert (response.status_code, response.content) == (405, b"")
    for path in ("/api", "/api/v1", "/api/v1/", "/api/v2/experiments", "/api/v1/experiments/1/2/3/4", "/..;/info",
                 "/api/v1/%2e%2e/info", "/api/v1//experiments", "/api/v1/ experiments"):  # fmt: skip
        _is_told(await user.ask("GET", path), 404)


async def test_address_is_read_or_refused_when_its_bytes_are_no_text(api: Served) -> None:
    user = api.user()
    for path in (
        "/api/v1/users/%ff%fe/by-username", "/api/v1/models/%ff", "/api/v1/tasks/%ed%a0%80", "/api/v1/checkpoints/%c0%ae",
        "/api/v1/experiments?name=%ff&states=%ff", "/api/v1/experiments?%ff=1&%00=2", "/api/v1/experiments?limit=%ff",
        "/api/v1/experiments?limit=1&limit=2&offset=0&offset=0&sortBy=&sortBy=SORT_BY_ID", "/api/v1/experiments?&&==&",
        "/api/v1/experiments?limit", "/api/v1/experiments?" + "a=1&" * 5000,
    ):  # fmt: skip
        response = await user.ask("GET", path)
        assert response.status_code in (200, 400, 404), f"{path}: {response.text}"
        assert response.headers["content-type"] == "application/json"
    for head in (b"FLY /info HTTP/1.1", b"GET", b"\x16\x03\x01\x02"):  # not even a request
        async with Raw(api, user) as raw:
            raw.writer.write(head + b"\r\n\r\n")
            assert await raw.status() == 400
    async with Raw(api, user) as raw:
        await raw.begin("GET", "/api/v1/\udcff\udcfe")
        assert await raw.status() == 400


@pytest.mark.parametrize(
    "value", ["Bearer \udcff", "Bearer", "Bearer ", "\udcff", "Basic eDp5", "Bearer " + "x" * 50_000]
)
async def test_caller_is_refused_when_the_header_is_no_token(api: Served, value: str) -> None:
    for header in ("Authorization", "Grpc-Metadata-x-allocation-token", "Cookie"):
        text = f"auth={value}" if header == "Cookie" else value
        async with Raw(api, api.nobody) as raw:
            await raw.begin("GET", "/api/v1/me", f"{header}: {text}")
            assert await raw.status() in (400, 401, 431)
    user = api.user()
    async with Raw(api, user) as raw:
        await raw.begin("POST", "/api/v1/experiments", "Idempotency-Key: \udcff\udcfe", "Content-Length: 2")
        raw.writer.write(b"{}")
        assert await raw.status() == 400


async def test_first_value_or_a_refusal_when_a_field_is_given_twice(api: Served) -> None:
    """One place decides what it means, whichever spelling is used."""
    user = api.user()
    for query in ("limit=1&limit=x", "limit=x&limit=1", "sort_by=NO&sortBy=SORT_BY_ID", "sortBy=SORT_BY_ID&sort_by=NO"):
        response = await user.ask("GET", f"/api/v1/experiments?{query}")
        assert response.status_code in (200, 400), response.text


async def test_context_is_kept_packed_when_a_file_of_it_is_a_bomb(api: Served) -> None:
    """The server unpacks nothing that is within a context."""
    user = api.user()
    bomb = gzip.compress(bytes(200 * 2**20))
    body = {"config": yaml.safe_dump(api.config()), "modelDefinition": [a_file("bomb.tar.gz", bomb)]}
    experiment = (await user.post("/api/v1/experiments", body))["experiment"]["id"]
    [file] = (await user.get(f"/api/v1/experiments/{experiment}/file_tree"))["files"]
    assert file["contentLength"] == len(bomb)
