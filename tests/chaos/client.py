"""A user of an embedded cluster over HTTP, who tries again while the API is away."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import httpx
import yaml

from api.auth.authentication import client_hash
from tests.kit.embedded import Embedded
from tests.kit.patience import PATIENCE

#: What a client sees instead of ACTIVE.
SHOWN = {"QUEUED", "PULLING", "STARTING", "RUNNING"}
TERMINAL = {"COMPLETED", "CANCELED", "ERROR"}


class Client:
    """Logged in as admin within an `async with`."""

    def __init__(self, cluster: Embedded) -> None:
        self._cluster = cluster
        limits = httpx.Limits(max_connections=100)
        self.http = httpx.AsyncClient(base_url=cluster.environment["DET_MASTER"], timeout=60, limits=limits)

    async def __aenter__(self) -> Self:
        """Log in."""
        password = client_hash(self._cluster.environment["UNDETERRED_ADMIN_PASSWORD"])
        body = {"username": "admin", "password": password, "isHashed": True}
        token = (await self.ask("POST", "/api/v1/auth/login", body))["token"]
        self.http.headers["Authorization"] = f"Bearer {token}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close connections."""
        await self.http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        limit_s: float = 120,
    ) -> Any:
        """An answer that must be 200; a request that found nobody, or was told to try again, is repeated."""
        deadline = time.monotonic() + limit_s * PATIENCE
        while True:
            told: str
            try:
                response = await self.http.request(method, path, json=body, headers=headers)
                if response.status_code == 200:
                    return response.json()
                told = f"{response.status_code} {response.text}"
                assert response.status_code == 503, f"{method} {path}: {told}"
                assert response.headers["retry-after"], f"{method} {path}: when to try again?"
            except httpx.TransportError as error:
                told = repr(error)
            assert time.monotonic() < deadline, f"{method} {path}: {limit_s:g} s of {told}"
            await asyncio.sleep(0.2)

    async def create(self, config: Mapping[str, Any], script: str) -> int:
        """Create an experiment, once, however often the request has to be sent; returns its id."""
        complete = {"name": "chaos", "reproducibility": {"experiment_seed": 42}, **config}
        content = base64.b64encode(script.encode()).decode()
        file = {"path": "train.py", "type": 48, "content": content, "mode": 0o644, "mtime": "0", "uid": 0, "gid": 0}
        body = {"config": yaml.safe_dump(complete), "modelDefinition": [file], "activate": True}
        key = {"Idempotency-Key": str(uuid.uuid4())}
        return int((await self.ask("POST", "/api/v1/experiments", body, headers=key))["experiment"]["id"])

    async def state(self, experiment_id: int) -> str:
        """The stored state of an experiment."""
        shown = (await self.ask("GET", f"/api/v1/experiments/{experiment_id}"))["experiment"]["state"]
        return stored_state(shown)

    async def trials(self, experiment_id: int) -> list[dict[str, Any]]:
        """The trials of an experiment."""
        return (await self.ask("GET", f"/api/v1/experiments/{experiment_id}/trials"))["trials"]

    async def steps(self, experiment_id: int) -> int:
        """How many steps its trials have reported."""
        return sum(trial["totalBatchesProcessed"] for trial in await self.trials(experiment_id))

    async def until_over(self, experiment_id: int, limit_s: float) -> str:
        """Wait for the end; returns the state."""

        async def is_over() -> bool:
            return await self.state(experiment_id) in TERMINAL

        await until(is_over, limit_s, f"experiment {experiment_id} is over")
        return await self.state(experiment_id)

    async def until_steps(self, experiment_id: int, count: int, limit_s: float = 60) -> None:
        """Wait until so many steps are reported."""

        async def are_there() -> bool:
            return await self.steps(experiment_id) >= count

        await until(are_there, limit_s, f"{count} steps of experiment {experiment_id} are reported")


async def until(condition: Callable[[], Awaitable[Any]], limit_s: float, what: str) -> None:
    """Wait for a condition, with a limit."""
    deadline = time.monotonic() + limit_s * PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s until {what}"
        await asyncio.sleep(0.2)


def stored_state(shown: str) -> str:
    """The state that stands behind the one that clients are shown."""
    state = shown.removeprefix("STATE_")
    return "ACTIVE" if state in SHOWN else state
