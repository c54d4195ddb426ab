"""A whole platform within the test process: real Temporal, real database, real HTTP, real processes for trials."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client
from temporalio.worker import WorkflowRunner

from api.app import create_app
from api.auth.authentication import client_hash
from api.settings import ApiSettings
from api.temporal.connection import Connection
from database.session import Database
from determined.common.outgoing import Outgoing
from tests.kit.patience import PATIENCE, pause
from tests.kit.servers import free_port
from tests.kit.trial_reports import ReportActivities
from workers.agent import main as agent_main
from workers.api import listeners, server_of
from workers.connect import ensure_search_attributes
from workers.logs import configure_logging
from workers.orchestrator import WORKFLOWS, new_worker
from workers.settings import AgentSettings
from workers.versioning import build_id, take_over
from workflows.converter import RUNNER
from workflows.messages import Timing

AGENT_TOKEN = "agent-token-of-the-tests"
ADMIN_PASSWORD = "correct horse"
TERMINAL = {"STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR"}

#: Short, so that a test does not wait; the order of magnitude between them is that of the defaults.
QUICK = Timing(restart_backoff_s=0.05, restart_backoff_cap_s=0.2, kill_repeat_s=2.0, container_heartbeat_s=3.0,
               invalid_hp_grace_s=2.0, removal_pauses_s=(0.05, 0.1), delivery_pauses_s=(0.05, 0.1))  # fmt: skip


@dataclass
class Platform:
    """A running platform, and what tests do with it as the user `admin`."""

    folder: Path
    temporal: Client
    database: Database
    port: int
    pool: str
    http: httpx.AsyncClient
    agents: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = field(default_factory=dict[str, Any])
    launcher: str = "process"
    gateway_port: int = 0
    proxy_port: int = 0
    connection: Mapping[str, Any] = field(default_factory=dict[str, Any])  # further settings towards Temporal

    @property
    def pages(self) -> str:
        """Where the pages of tasks are."""
        return f"http://127.0.0.1:{self.proxy_port}"

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://127.0.0.1:{self.port}"

    async def start_agent(self, name: str = "agent-a", slots: int = 2, **settings: Any) -> str:
        """Start an agent; returns its id, unique in this run of the tests."""
        agent_id = f"{self.pool}-{name}"
        stop = asyncio.Event()
        wanted: dict[str, Any] = {
            "agent_id": agent_id,
            "pool": self.pool,
            "slots": slots,
            "temporal_address": self.temporal.service_client.config.target_host,
            "api_url": self.url,
            "agent_token": AGENT_TOKEN,
            "folder": str(self.folder / agent_id),
            "heartbeat_s": 2.0,
            "reconnect_wait_s": 2.0,
            "launcher": self.launcher,
            "allowed_networks": "127.0.0.0/8",  # where the stores of tests are
            **self.connection,
        }
        task = asyncio.create_task(agent_main(AgentSettings(**(wanted | settings)), stop))
        self.agents[agent_id] = (task, stop)
        await self.until(lambda: self._is_connected(agent_id), what=f"agent {agent_id} is connected")
        return agent_id

    async def stop_agent(self, agent_id: str) -> None:
        """The agent's process goes; its containers stay."""
        task, stop = self.agents.pop(agent_id)
        stop.set()
        await task

    @contextlib.asynccontextmanager
    async def orchestrator(self, build: str = "") -> AsyncIterator[None]:
        """One that decides during the block, where the platform was started without. `build`: another version's."""
        with ThreadPoolExecutor(8) as threads:
            async with new_worker(self.temporal, self.database, threads, build=build):
                await take_over(self.temporal, build or build_id(), asyncio.Event())
                yield

    async def _is_connected(self, agent_id: str) -> bool:
        agents = await self.get("/api/v1/agents")
        return any(agent["id"] == agent_id and agent["enabled"] for agent in agents["agents"])

    async def get(self, path: str, **parameters: Any) -> Any:
        """GET that must succeed."""
        response = await self.http.get(path, params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None) -> Any:
        """POST that must succeed."""
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def delete(self, path: str) -> None:
        """DELETE that must succeed."""
        response = await self.http.delete(path)
        assert response.status_code == 200, response.text

    async def refused(self, path: str, body: Any) -> str:
        """POST that must be refused; returns the message."""
        response = await self.http.post(path, json=body)
        assert response.status_code in (400, 403, 404), response.text
        return response.json()["message"]

    async def create(
        self,
        config: Mapping[str, Any],
        files: Mapping[str, str],
        *,
        activate: bool = True,
        project_id: int | None = None,
    ) -> int:
        """Create an experiment in this platform's pool; returns its id."""
        import base64

        import yaml

        complete = {
            "name": "test",
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(self.folder / "checkpoints")},
            "reproducibility": {"experiment_seed": 42},
            **config,
        }
        complete["resources"] = {"resource_pool": self.pool, **complete.get("resources", {})}
        body = {
            "config": yaml.safe_dump(complete),
            "modelDefinition": [
                {"path": path, "type": 48, "content": base64.b64encode(text.encode()).decode(), "mode": 0o100644,
                 "mtime": "0", "uid": 0, "gid": 0}
                for path, text in files.items()
            ],
            "activate": activate,
            "projectId": project_id,
        }  # fmt: skip
        return (await self.post("/api/v1/experiments", body))["experiment"]["id"]

    async def experiment(self, experiment_id: int) -> dict[str, Any]:
        """An experiment as clients see it."""
        return (await self.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]

    async def trials(self, experiment_id: int) -> list[dict[str, Any]]:
        """Its trials."""
        return (await self.get(f"/api/v1/experiments/{experiment_id}/trials"))["trials"]

    async def command(self, experiment_id: int, command: str) -> None:
        """pause, activate, cancel, kill, archive, unarchive."""
        await self.post(f"/api/v1/experiments/{experiment_id}/{command}")

    async def finish(self, experiment_id: int, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for the end."""

        async def is_over() -> bool:
            return (await self.experiment(experiment_id))["state"] in TERMINAL

        await self.until(is_over, timeout_s, what=f"experiment {experiment_id} is over")
        return await self.experiment(experiment_id)

    async def until_state(self, experiment_id: int, *states: str, timeout_s: float = 30) -> None:
        """Wait until the experiment is shown in one of these states."""

        async def is_there() -> bool:
            return (await self.experiment(experiment_id))["state"].removeprefix("STATE_") in states

        await self.until(is_there, timeout_s, what=f"experiment {experiment_id} is {' or '.join(states)}")

    async def until_reported(self, experiment_id: int) -> int:
        """Wait until the first trial of an experiment trains; returns its id."""
        await self.until_state(experiment_id, "RUNNING")
        trial_id: int = (await self.trials(experiment_id))[0]["id"]

        async def has_reported() -> bool:
            return bool(await self.metrics(trial_id))

        await self.until(has_reported, what="the trial has reported")
        return trial_id

    async def until(self, condition: Callable[[], Any], timeout_s: float = 30, *, what: str = "it is so") -> None:
        """Wait for a condition, with a limit."""
        began = time.monotonic()
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            waited = time.monotonic() - began
            assert waited < timeout_s * PATIENCE, f"waited {timeout_s:g} s until {what}"
            await asyncio.sleep(pause(waited))

    async def logs(self, trial_id: int) -> list[str]:
        """The lines of a trial, without time and container."""
        response = await self.http.get(f"/api/v1/trials/{trial_id}/logs")
        import orjson

        return [orjson.loads(line)["result"]["log"] for line in response.text.splitlines()]

    async def metrics(self, trial_id: int, kind: str = "validation_metrics") -> list[dict[str, Any]]:
        """Metric reports of a trial."""
        response = await self.http.get(f"/api/v1/trials/metrics/{kind}", params={"trialIds": trial_id})
        import orjson

        return [report for line in response.text.splitlines() for report in orjson.loads(line)["result"]["metrics"]]


@contextlib.asynccontextmanager
async def platform(
    *,
    temporal_address: str,
    database_url: str,
    folder: Path,
    pool: str,
    timing: Timing = QUICK,
    cached: int = 1000,
    workflows: Sequence[type] = WORKFLOWS,
    has_orchestrator: bool = True,
    provider_folder: Path | None = None,
    host: str = "127.0.0.1",
    connection: Mapping[str, Any] | None = None,
    runner: WorkflowRunner = RUNNER,
) -> AsyncIterator[Platform]:
    """Start API and orchestrator; agents are started by the tests. All ends with the block.

    `connection` has further settings of all processes towards Temporal. Without an orchestrator the test runs its own: `Platform.orchestrator`, or
    processes that can be killed.
    """
    configure_logging()
    port, gateway_port, proxy_port = free_port(), free_port(), free_port()
    settings = ApiSettings(
        gateway=f":{gateway_port}",
        allowed_networks="127.0.0.0/8",
        database_url=database_url,
        temporal_address=temporal_address,
        host=host,
        port=port,
        proxy_port=proxy_port,
        admin_password=ADMIN_PASSWORD,  # pyright: ignore[reportArgumentType]
        agent_token=AGENT_TOKEN,  # pyright: ignore[reportArgumentType]
        default_pool=pool,
        storage_path=str(folder / "checkpoints"),
        storage_roots=str(folder),
        timing=timing,
        **(connection or {}),
    )
    server = server_of(create_app(settings), port)
    serving = asyncio.create_task(server.serve(listeners(settings)))
    while not server.started:
        assert not serving.done(), "the API ended at its start"
        await asyncio.sleep(0.01)
    client = await Connection(settings).client()
    database = Database(database_url)
    async with contextlib.AsyncExitStack() as stack:
        if has_orchestrator:
            await ensure_search_attributes(client)
            threads = stack.enter_context(ThreadPoolExecutor(8))
            worker = new_worker(
                client,
                database,
                threads,
                workflows=workflows,
                max_cached_workflows=cached,
                roots=settings.roots,
                outgoing=Outgoing.of("127.0.0.0/8"),
                provider_folder=provider_folder,
                runner=runner,
                further=lambda messenger: ReportActivities(messenger).all(),
            )
            await stack.enter_async_context(worker)
            await take_over(client, build_id(), asyncio.Event())
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30))
        login = {"username": "admin", "password": client_hash(ADMIN_PASSWORD), "isHashed": True}
        token = (await http.post("/api/v1/auth/login", json=login)).json()["token"]
        http.headers["Authorization"] = f"Bearer {token}"
        running = Platform(
            folder,
            client,
            database,
            port,
            pool,
            http,
            gateway_port=gateway_port,
            proxy_port=proxy_port,
            connection=connection or {},
        )
        try:
            yield running
        finally:
            for task, stop in running.agents.values():
                stop.set()
                await task
            server.should_exit = True
            await serving
    database.close()
