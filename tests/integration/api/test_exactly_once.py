"""A create is cut off at every byte, and its API killed at every step: there is one job, and the repeat says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from database.models import Experiment, Outbox, Submission, Task
from database.session import Database
from tests.conftest import empty_postgres
from tests.integration.api import mortal_api
from tests.integration.api.served import ADMIN_PASSWORD, AGENT_TOKEN, Caller, Served
from tests.integration.api.test_submissions import jobs, key, request_of
from tests.kit.patience import PATIENCE
from tests.kit.servers import free_port

#: Connections that are cut at the same time.
_AT_ONCE = 32
#: Closing such a socket sends a reset, as a host does that died; others end with all that was sent.
_RESET = struct.pack("ii", 1, 0)

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["pytest", "tests.integration.api.mortal_api"])


# -- connections that are cut ------------------------------------------------------------------------------------------


def raw(user: Caller, path: str, body: dict[str, Any]) -> bytes:
    """The bytes of a request."""
    content = json.dumps(body, separators=(",", ":")).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: a", *(f"{name}: {value}" for name, value in user.headers.items()),
             f"Content-Length: {len(content)}", "", ""]  # fmt: skip
    return "\r\n".join(lines).encode() + content


async def cut(api: Served, request: bytes, sent: int, answered: int = 0, *, is_reset: bool) -> None:
    """Send the first bytes of a request, read the first of its answer, and be gone."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.http.base_url.port)
    writer.write(request[:sent])
    await writer.drain()
    if answered:
        await reader.readexactly(answered)
    if is_reset:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def answer_of(api: Served, request: bytes) -> bytes:
    """The bytes of the answer to a whole request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.http.base_url.port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
    body = await reader.readexactly(int(length.split()[1]))
    writer.close()
    return head + body


async def in_turn(cuts: list[Any]) -> None:
    """Make cuts, some at a time."""
    for begin in range(0, len(cuts), _AT_ONCE):
        await asyncio.gather(*cuts[begin : begin + _AT_ONCE])


@pytest.mark.parametrize("kind", ["commands", "experiments"])
async def test_create_that_is_cut_at_any_byte_makes_one_job(api: Served, kind: str) -> None:
    user = api.user()
    path, body = request_of(api, kind, idempotency_key=key())
    request = raw(user, path, body)
    await in_turn([cut(api, request, sent, is_reset=sent % 2 == 0) for sent in range(len(request))])
    assert jobs(api, user) == 0, "a request that has not arrived does nothing"
    await in_turn([cut(api, request, len(request), is_reset=number % 2 == 0) for number in range(_AT_ONCE)])
    answer = await answer_of(api, request)
    job = json.loads(answer.partition(b"\r\n\r\n")[2])["submission"]["jobId"]
    await in_turn([
        cut(api, request, len(request), answered, is_reset=answered % 2 == 0)
        for answered in range(1, len(answer), max(1, len(answer) // 150))
    ])  # fmt: skip
    repeated = (await user.post(path, body))["submission"]
    assert (repeated["jobId"], repeated["replayed"]) == (job, True)
    assert jobs(api, user) == 1


@pytest.mark.parametrize("kind", ["commands", "shells", "generic-tasks", "experiments"])
async def test_repeat_says_what_became_of_a_request_whose_sender_left(api: Served, kind: str) -> None:
    user = api.user()

    async def leave_and_repeat(number: int) -> bool:
        path, body = request_of(api, kind, idempotency_key=key())
        request = raw(user, path, body)
        await cut(api, request, len(request), is_reset=number % 2 == 0)
        first = (await user.post(path, body))["submission"]
        again = (await user.post(path, body))["submission"]
        assert again == first | {"replayed": True}
        return first["replayed"]

    said = await asyncio.gather(*map(leave_and_repeat, range(24)))
    assert jobs(api, user) == len(said)
    print(f"\n{kind}: {sum(said)} of {len(said)} were made by the request whose sender left")


# -- processes that are killed -----------------------------------------------------------------------------------------


class Mortal:
    """An API that is killed and started again, on one database."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self.database_url = database_url
        self._folder = folder
        self._port = free_port()
        self._process: Any = None

    def start(self) -> None:
        """Start it; it serves when this returns."""
        settings = {
            "database_url": self.database_url, "temporal_address": "127.0.0.1:1", "port": self._port,
            "admin_password": ADMIN_PASSWORD, "agent_token": AGENT_TOKEN, "storage_path": str(self._folder),
        }  # fmt: skip
        arguments = (settings, str(self.steps))
        self._process = _processes.Process(target=mortal_api.run, args=arguments, daemon=True)
        self._process.start()
        deadline = time.monotonic() + 30 * PATIENCE
        while True:
            assert self._process.is_alive(), f"the API ended with {self._process.exitcode}"
            assert time.monotonic() < deadline, "the API does not serve"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=5):
                return
            time.sleep(0.01)

    @property
    def steps(self) -> Path:
        """Of the request, one a line."""
        return self._folder / "steps"

    def http(self) -> httpx.Client:
        """A client of this life."""
        return httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30 * PATIENCE)

    def died(self) -> None:
        """Wait until it has killed itself."""
        self._process.join(30 * PATIENCE)
        assert self._process.exitcode == -signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


@pytest.fixture
def mortal(api: Served, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mortal]:
    """An API of its own on the engine of the other one; it is not started yet."""
    with contextlib.ExitStack() as opened:
        url = f"sqlite:///{tmp_path / 'undeterred.db'}"
        if not api.database.is_sqlite:
            url = opened.enter_context(empty_postgres(request.getfixturevalue("postgres_url")))
        started = Mortal(url, tmp_path)
        opened.callback(started.kill)
        yield started


@pytest.mark.timeout(240)
def test_create_whose_api_is_killed_at_any_step_makes_one_job(api: Served, mortal: Mortal) -> None:
    mortal.start()
    with mortal.http() as http:
        login = {"username": "admin", "password": ADMIN_PASSWORD}
        headers = {"Authorization": f"Bearer {http.post('/api/v1/auth/login', json=login).json()['token']}"}
    database = Database(mortal.database_url)
    made = 0
    for kind in ("experiments", "commands") if database.is_sqlite else ("generic-tasks", "experiments"):
        path, body = request_of(api, kind, idempotency_key=key())
        names = steps_of(mortal, path, body, headers)
        made += 1
        for due in chosen(names):
            path, body = request_of(api, kind, idempotency_key=key())
            with mortal.http() as http, contextlib.suppress(httpx.TransportError):
                http.post(path, json=body, headers=headers | {"Die-At": str(due)})
            mortal.died()
            mortal.start()
            with mortal.http() as http:
                first = http.post(path, json=body, headers=headers).json()["submission"]
                again = http.post(path, json=body, headers=headers).json()["submission"]
            made += 1
            assert first["replayed"] is (due > names.index("commit") + 1), f"{kind}: killed before {names[due - 1]}"
            assert again == first | {"replayed": True}
            assert count(database) == made, f"{kind}: killed before {names[due - 1]}"
    database.close()


def chosen(names: list[str]) -> list[int]:
    """The steps to die at: all; but where that is for each push, of those before the commit the first and the last."""
    steps = list(range(1, len(names) + 1))
    commit = names.index("commit") + 1
    return steps if os.environ.get("UNDETERRED_SOAK") else [1, *steps[commit - 2 :]]


def steps_of(mortal: Mortal, path: str, body: dict[str, Any], headers: dict[str, str]) -> list[str]:
    """The steps of a create that is not killed."""
    mortal.steps.unlink(missing_ok=True)
    with mortal.http() as http:
        assert http.post(path, json=body, headers=headers | {"Die-At": "0"}).status_code == 200
    deadline = time.monotonic() + 10 * PATIENCE
    while "answered" not in (names := mortal.steps.read_text().splitlines()):
        assert time.monotonic() < deadline, names
        time.sleep(0.01)
    return names


def count(database: Database) -> int:
    """Jobs, of which each has its workflow's start noted once."""
    with database.read() as session:
        found = [
            session.scalar(select(func.count()).select_from(table)) or 0
            for table in (Submission, Experiment, Task)
        ]  # fmt: skip
        starts = session.scalar(select(func.count()).where(Outbox.kind.like("start%"))) or 0
        trials = session.scalar(select(func.count()).where(Task.trial_id.is_not(None))) or 0
    assert found[0] == found[1] + found[2] - trials == starts
    return found[0]
