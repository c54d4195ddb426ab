"""Processes of the control plane say whether they are well, and leave in order."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.kit.patience import PATIENCE
from tests.kit.platform import Platform
from tests.kit.replicas import Replica
from tests.kit.servers import environment_of_a_part, free_port


def _environment(**settings: Any) -> dict[str, str]:
    return environment_of_a_part({f"UNDETERRED_{name.upper()}": str(value) for name, value in settings.items()})


def _process(name: str, environment: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / name).open("w") as log:
        return subprocess.Popen([sys.executable, "-m", f"workers.{name}"], env=environment, stdout=log, stderr=log)


async def _answered(url: str, status: int, told: str) -> None:
    deadline = time.monotonic() + 60 * PATIENCE
    found: object = None
    while time.monotonic() < deadline:
        try:
            response = await asyncio.to_thread(httpx.get, url)
            found = response.status_code, response.json()["status"]
        except httpx.TransportError as error:
            found = str(error)
        if found == (status, told):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{url}: {found}")


async def test_orchestrator_and_gateway_say_whether_they_are_well(
    temporal_address: str, tmp_path: Path, database_url: str
) -> None:
    """Without the API's records neither has started; with them both are ready; after SIGTERM the gateway drains."""
    common = {"database_url": database_url, "temporal_address": temporal_address}
    ports = {"orchestrator": free_port(), "gateway": free_port()}
    environments = {
        "orchestrator": _environment(**common, health_port=ports["orchestrator"]),
        "gateway": _environment(**common, health_port=ports["gateway"], port=free_port(), drain_s=1),
    }
    running: dict[str, subprocess.Popen[bytes]] = {}
    api = Replica(tmp_path, _environment(**common, agent_token="x", admin_password="x"))
    try:
        for name, environment in environments.items():
            running[name] = _process(name, environment, tmp_path)
        for port in ports.values():
            await _answered(f"http://127.0.0.1:{port}/health/live", 200, "up")
            await _answered(f"http://127.0.0.1:{port}/health/startup", 503, "starting")
            await _answered(f"http://127.0.0.1:{port}/health/ready", 503, "starting")
        await asyncio.to_thread(api.start)
        for port in ports.values():
            await _answered(f"http://127.0.0.1:{port}/health/ready", 200, "up")
        running["gateway"].send_signal(signal.SIGTERM)
        await _answered(f"http://127.0.0.1:{ports['gateway']}/health/ready", 503, "draining")
        running["orchestrator"].send_signal(signal.SIGTERM)
        for process in running.values():
            assert await asyncio.to_thread(process.wait, 30 * PATIENCE) == 0
    finally:
        api.kill()
        for process in running.values():
            process.kill()
            process.wait()


async def test_what_waits_and_what_is_followed_ends_with_its_process(
    temporal_address: str, tmp_path: Path, postgres_database: str
) -> None:
    """A followed log and a long poll end at once, with words that have clients ask another process."""
    settings = {"database_url": postgres_database, "temporal_address": temporal_address, "drain_s": 1}
    api = Replica(tmp_path, _environment(**settings, agent_token="x", admin_password="correct horse"))
    await asyncio.to_thread(api.start)
    try:
        async with httpx.AsyncClient(base_url=api.url, timeout=60) as http:
            http.headers["Authorization"] = f"Bearer {await _token(http)}"
            log = asyncio.create_task(http.get("/api/v1/master/logs", params={"follow": True}))
            await asyncio.sleep(0.5)
            stopping = asyncio.create_task(asyncio.to_thread(api.stop))
            await asyncio.sleep(0.3)
            ready = await http.get("/health/ready")
            assert (ready.status_code, ready.headers["connection"]) == (503, "close")
            assert (await http.get("/api/v1/me")).status_code == 200, "it serves while it drains"
            assert not log.done()
            last = (await log).text.splitlines()[-1]
            assert '"httpCode":503' in last
            assert "this process of the API ends: ask again" in last
            assert await stopping < 5 * PATIENCE
    finally:
        api.kill()


async def _token(http: httpx.AsyncClient) -> str:
    from api.auth.authentication import client_hash

    body = {"username": "admin", "password": client_hash("correct horse"), "isHashed": True}
    return (await http.post("/api/v1/auth/login", json=body)).json()["token"]


async def test_an_agent_says_whether_it_is_well(cluster: Platform) -> None:
    port = free_port()
    agent_id = await cluster.start_agent("watched", health_port=port)
    await _answered(f"http://127.0.0.1:{port}/health/ready", 200, "up")
    await cluster.stop_agent(agent_id)
