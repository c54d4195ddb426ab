"""The API over real HTTP on a database of its own. Temporal is away: what would reach it waits in the outbox.

Trials get their records as in a running platform: by the orchestrator's activities, and by an agent that asks for the
launch order. Each test makes its own users, experiments and trials.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml
from argon2 import PasswordHasher
from sqlalchemy import delete, select, update

from activities.records import Records
from api.auth import authentication
from api.auth.authentication import hash_password, new_token, token_hash
from api.errors import Unavailable
from api.parts import Parts
from api.temporal.commands import Commands
from database.models import Agent, Experiment, Outbox, Trial, User, UserToken
from database.session import Database
from database.trials import forget_decisions
from database.types import utc_now
from tests.kit.patience import PATIENCE
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.trial import TrialState
from workflows.messages import CloseAllocation, NewTrial, OpenAllocation, RecordAgent, RecordExperiment, RecordTrial
from workflows.scheduling.model import Placement

AGENT_TOKEN = "agent-token-of-the-tests"
ADMIN_PASSWORD = "correct horse"
PASSWORD = "hunter2 hunter2"
_numbers = itertools.count(1)

SINGLE = {"name": "single", "metric": "loss", "max_length": 100}
ASHA = {"name": "async_halving", "metric": "loss", "max_trials": 4, "num_rungs": 2, "divisor": 2, "max_time": 10,
        "time_metric": "batches"}  # fmt: skip


class TemporalAway(Commands):
    """A Temporal that does not answer, but says so at once; or that knows no workflow of the experiment asked for."""

    knows_nothing = False

    async def client(self) -> Any:
        """Never."""
        raise Unavailable("Temporal does not answer")

    async def command(self, experiment_id: int, command: Any) -> Any:
        """Nobody there."""
        return None if self.knows_nothing else await super().command(experiment_id, command)


class Caller:
    """Somebody with a token, or nobody."""

    def __init__(self, http: httpx.AsyncClient, headers: dict[str, str], user_id: int = 0, username: str = "") -> None:
        self._http = http
        self.headers = headers
        self.user_id = user_id
        self.username = username

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Send as clients do: JSON without a content type, no body for nothing."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = self.headers | options.pop("headers", {})
        return await self._http.request(method, path, content=content, headers=headers, **options)

    async def refused(self, status: int, method: str, path: str, body: Any = None, **options: Any) -> str:
        """Ask for what must be refused; returns the message."""
        response = await self.ask(method, path, body, **options)
        assert response.status_code == status, f"{response.status_code}: {response.text}"
        error = response.json()
        assert error["message"] == error["error"]["error"]
        return error["message"]

    async def get(self, path: str, **parameters: Any) -> Any:
        """GET that must succeed."""
        return self._ok(await self.ask("GET", path, params=parameters))

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """POST that must succeed."""
        return self._ok(await self.ask("POST", path, body, **options))

    async def patch(self, path: str, body: Any) -> Any:
        """PATCH that must succeed."""
        return self._ok(await self.ask("PATCH", path, body))

    async def lines(self, path: str, **parameters: Any) -> list[Any]:
        """The results of a stream that must succeed. Clients crash on a blank line."""
        response = await self.ask("GET", path, params=parameters)
        assert response.status_code == 200, response.text
        assert not response.text or response.text.endswith("\n")
        return [orjson.loads(line)["result"] for line in response.text.splitlines()]

    def _ok(self, response: httpx.Response) -> Any:
        assert response.status_code == 200, f"{response.status_code}: {response.text}"
        assert response.headers["content-type"] == "application/json"
        return response.json()


@dataclass
class Run:
    """A trial with an open allocation, and its container."""

    experiment_id: int
    trial_id: int
    task_id: str
    request_id: str
    allocation_id: str
    container: Caller
    run_id: int = 1

    async def report(self, group: str, steps: int | None, metrics: dict[str, Any], **more: Any) -> None:
        """Report metrics, which must succeed."""
        await self.container.post(
            f"/api/v1/trials/{self.trial_id}/metrics", self.message(group, steps, metrics, **more)
        )

    async def report_refused(self, group: str, steps: int | None, metrics: dict[str, Any], **more: Any) -> str:
        """Report metrics, which must be refused with a 400; returns the message."""
        body = self.message(group, steps, metrics, **more)
        return await self.container.refused(400, "POST", f"/api/v1/trials/{self.trial_id}/metrics", body)

    def message(self, group: str, steps: int | None, metrics: dict[str, Any], **more: Any) -> dict[str, Any]:
        """v1ReportTrialMetricsRequest."""
        run_id, batches = more.pop("run_id", self.run_id), more.pop("batches", None)
        told = {"trialId": self.trial_id, "trialRunId": run_id, "stepsCompleted": steps, **more}
        return {"group": group, "metrics": told | {"metrics": {"avgMetrics": metrics, "batchMetrics": batches}}}


@dataclass
class Served:
    """The running API and what tests need around it."""

    http: httpx.AsyncClient
    parts: Parts
    database: Database
    folder: Path
    commands: TemporalAway
    app: Any
    records: Records = field(init=False)

    def __post_init__(self) -> None:
        self.records = Records(self.database)
        self.nobody = Caller(self.http, {})
        self.agent = Caller(self.http, {"Authorization": f"Bearer {AGENT_TOKEN}"})

    def user(self, name: str = "", *, is_admin: bool = False) -> Caller:
        """A new user with a session. The password is PASSWORD."""
        name = name or f"user{next(_numbers)}"
        with self.database.write() as session:
            user = User(username=name, is_admin=is_admin, password_hash=_password_hash(authentication._hasher))
            session.add(user)
            session.flush()
        return self.session_of(user.id, name)

    def session_of(self, user_id: int, name: str = "", *, expires_at: Any = None, scope: str = "full") -> Caller:
        """A further session of a user; of another scope than "full": an access token."""
        token = new_token()
        with self.database.write() as session:
            kind = "USER_SESSION" if scope == "full" else "ACCESS_TOKEN"
            expires_at = expires_at or utc_now().replace(year=utc_now().year + 1)
            session.add(
                UserToken(token_hash=token_hash(token), user_id=user_id, kind=kind, expires_at=expires_at, scope=scope)
            )
        return Caller(self.http, {"Authorization": f"Bearer {token}"}, user_id, name)

    def config(self, **changes: Any) -> dict[str, Any]:
        """A configuration that is accepted."""
        return {
            "name": f"test {next(_numbers)}",
            "entrypoint": "python3 train.py",
            "searcher": SINGLE,
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(self.folder)},
        } | changes

    def an_agent(self, record: RecordAgent) -> None:
        """An agent that said what it offers, and is as its workflow records it."""
        with self.database.write() as session:
            if session.get(Agent, record.agent_id) is None:
                session.add(Agent(id=record.agent_id, pool=record.pool, slot_ids=[]))
        self.records.record_agent(record)

    async def experiment(self, owner: Caller, **changes: Any) -> int:
        """A recorded experiment, without the trials that it begins with: tests make their own."""
        experiment_id = await self.created(owner, **changes)
        with self.database.write() as session:
            session.execute(delete(Trial).where(Trial.experiment_id == experiment_id))
            forget_decisions(session, experiment_id)
            session.execute(update(Experiment).where(Experiment.id == experiment_id).values(trial_count=0))
        return experiment_id

    async def created(self, owner: Caller, *, activate: bool = True, **changes: Any) -> int:
        """An experiment as a user creates it."""
        request = {"config": yaml.safe_dump(self.config(**changes)), "modelDefinition": [a_file("train.py", b"1\n")],
                   "activate": activate}  # fmt: skip
        return (await owner.post("/api/v1/experiments", request))["experiment"]["id"]

    async def trial(self, owner: Caller, **changes: Any) -> Run:
        """A new experiment with a trial that runs."""
        return await self.another_trial(await self.experiment(owner, **changes))

    async def another_trial(self, experiment_id: int, *, length: int | None = 100, slots: int = 1) -> Run:
        """A further trial of an experiment, running."""
        request_id = str(uuid.uuid4())
        new = NewTrial(request_id=request_id, seed=1, hparams={"lr": 0.1}, length=length)
        order = RecordExperiment(
            experiment_id=experiment_id, revision=0, state=ExperimentState.ACTIVE, progress=0, trials=[new]
        )
        [trial_id] = (await asyncio.to_thread(self.records.record_experiment, order)).trial_ids
        task_id = f"{experiment_id}.{request_id}"
        run = Run(experiment_id, trial_id, task_id, request_id, f"{task_id}.0", self.nobody, 0)
        return await self.next_run(run, slots=slots)

    async def next_run(self, old: Run, *, slots: int = 1, hosts: tuple[str, ...] = ("agent-a",)) -> Run:
        """The next allocation of a trial; the one before has ended. So many slots on each of the hosts."""
        if old.run_id:
            await asyncio.to_thread(self.records.close_allocation, CloseAllocation(allocation_id=old.allocation_id))
        run_id = old.run_id + 1
        allocation_id = f"{old.task_id}.{run_id}"
        order = OpenAllocation(
            allocation_id=allocation_id, trial_id=old.trial_id, task_id=old.task_id, run_id=run_id, pool="default",
            slots=slots * len(hosts),
            placements=tuple(
                Placement(agent_id=host, slot_ids=tuple(range(slots)), rank=rank) for rank, host in enumerate(hosts)
            ),
        )  # fmt: skip
        await asyncio.to_thread(self.records.open_allocation, order)
        container = await self.launch(allocation_id)
        return Run(old.experiment_id, old.trial_id, old.task_id, old.request_id, allocation_id, container, run_id)

    async def launch(self, allocation_id: str, rank: int = 0) -> Caller:
        """A container of an allocation, with the token of its launch order."""
        launch = await self.agent.post(f"/api/v1/undeterred/allocations/{allocation_id}/containers/{rank}/launch")
        token = launch["env"]["DET_SESSION_TOKEN"]
        return Caller(self.http, {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"})

    async def end(self, run: Run, state: TrialState = TrialState.COMPLETED) -> None:
        """The trial's end, as its workflow records it."""
        await asyncio.to_thread(self.records.close_allocation, CloseAllocation(allocation_id=run.allocation_id))
        record = RecordTrial(trial_id=run.trial_id, revision=9, state=state, restarts=0, is_terminal=True)
        await asyncio.to_thread(self.records.record_trial, record)

    def posted(self, workflow_id: str, kind: str) -> list[dict[str, Any]]:
        """What waits for a workflow."""
        with self.database.read() as session:
            statement = select(Outbox.payload).where(Outbox.workflow_id == workflow_id, Outbox.kind == kind)
            return list(session.scalars(statement.order_by(Outbox.id)))

    def row(self, trial_id: int) -> Trial:
        """The record of a trial."""
        with self.database.read() as session:
            return session.get_one(Trial, trial_id)


@functools.cache
def _password_hash(hasher: PasswordHasher) -> str:
    """That of PASSWORD, once for all users whose passwords are hashed so."""
    return hash_password(PASSWORD, is_hashed=False)


def a_file(path: str, content: bytes = b"", kind: int = 48) -> dict[str, Any]:
    """v1File."""
    return {"path": path, "type": kind, "content": base64.b64encode(content).decode(), "mode": 0o100644, "mtime": "0",
            "uid": 0, "gid": 0}  # fmt: skip


async def until(condition: Callable[[], Any], limit_s: float = 10) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + limit_s * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s"
        await asyncio.sleep(0.01)
