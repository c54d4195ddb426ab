"""Hosts with networks of their own: agents in network namespaces, which reach the platform and each other over a bridge."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.platform import AGENT_TOKEN, Platform
from tests.kit.servers import ip_program

_numbers = itertools.count(1)


@dataclass
class Hosts:
    """The hosts of a platform, by the ids of their agents."""

    platform: Platform
    switch: str  # the namespace of the bridge that joins them
    subnet: str  # the first three parts of their addresses
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])
    of: dict[str, str] = field(default_factory=dict[str, str])  # the namespace of each agent
    namespaces: list[str] = field(default_factory=list[str])

    @property
    def gateway(self) -> str:
        """Where they reach the platform."""
        return f"{self.subnet}.1"

    async def add(self, name: str, **settings: Any) -> str:
        """Start an agent on a host of its own; returns its id."""
        number = len(self.namespaces) + 2
        namespace = f"{self.switch}h{number}"
        _ip("netns", "add", namespace)
        self.namespaces.append(namespace)
        _ip(
            "-n",
            self.switch,
            "link",
            "add",
            f"port{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            namespace,
        )
        _ip("-n", self.switch, "link", "set", f"port{number}", "master", "bridge", "up")
        _ip("-n", namespace, "addr", "add", f"{self.subnet}.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", device, "up")
        agent_id = f"{self.platform.pool}-{name}"
        self.of[agent_id] = namespace
        await self.start(agent_id, namespace, **settings)
        return agent_id

    async def start(self, agent_id: str, namespace: str, **settings: Any) -> None:
        """Start the agent of a host that is there."""
        temporal_port = self.platform.temporal.service_client.config.target_host.rpartition(":")[2]
        wanted: dict[str, Any] = {
            "agent_id": agent_id,
            "pool": self.platform.pool,
            "slots": 1,
            "temporal_address": f"{self.gateway}:{temporal_port}",
            "api_url": f"http://{self.gateway}:{self.platform.port}",
            "agent_token": AGENT_TOKEN,
            "folder": str(self.platform.folder / agent_id),
            "heartbeat_s": 2.0,
            "reconnect_wait_s": 2.0,
            **settings,
        }
        environment = {f"UNDETERRED_{key.upper()}": str(value) for key, value in wanted.items()}
        with (self.platform.folder / f"{agent_id}.log").open("ab") as log:
            self.agents[agent_id] = subprocess.Popen(  # noqa: ASYNC220 - it lives longer than this call
                [ip_program(), "netns", "exec", namespace, sys.executable, "-m", "workers.agent"],
                env=os.environ | environment, cwd=Path(__file__).parents[2], stdout=log, stderr=log,
            )  # fmt: skip

        async def is_there() -> bool:
            assert self.agents[agent_id].poll() is None, (self.platform.folder / f"{agent_id}.log").read_text()
            agents = (await self.platform.get("/api/v1/agents"))["agents"]
            return any(agent["id"] == agent_id and agent["enabled"] for agent in agents)

        await self.platform.until(is_there, 60, what=f"agent {agent_id} is connected")

    def die(self, agent_id: str) -> None:
        """The host's power is gone: nothing that ran there runs any more.

        All stand still before the first is killed: ids of processes begin anew now and then, and a trial's killed before
        what watches it would be one that failed.
        """
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in _ip("netns", "pids", self.of[agent_id]).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), number)
        self.agents.pop(agent_id).wait(30)

    def cut(self, number: int) -> None:
        """A host's cable is pulled; hosts count from 0."""
        _ip("-n", self.switch, "link", "set", f"port{number + 2}", "down")

    def mend(self, number: int) -> None:
        """It is plugged in again."""
        _ip("-n", self.switch, "link", "set", f"port{number + 2}", "up")


@contextlib.asynccontextmanager
async def hosts_of(platform: Platform, *further_ports: int) -> AsyncIterator[Hosts]:
    """A network for hosts of a platform; all of it is gone at the end, with what runs there.

    They reach the ports of its API and of its Temporal, and further ones.
    """
    # In a namespace of its own, where no packet filter stands between the hosts: Docker's engine has this machine
    # forward nothing that is not its own, bridged or not.
    switch = f"un{os.getpid()}s{next(_numbers)}"
    # of this process alone: tests run side by side
    hosts = Hosts(platform, switch, f"10.{os.getpid() // 256 % 256}.{os.getpid() % 256}")
    ports = [platform.port, int(platform.temporal.service_client.config.target_host.rpartition(":")[2]), *further_ports]
    _ip("netns", "add", switch)
    try:
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        _ip("link", "add", switch, "type", "veth", "peer", "name", "uplink", "netns", switch)
        _ip("-n", switch, "link", "set", "uplink", "master", "bridge", "up")
        _ip("addr", "add", f"{hosts.gateway}/24", "dev", switch)
        _ip("link", "set", switch, "up")
        async with contextlib.AsyncExitStack() as stack:
            for port in ports:
                relay = await asyncio.start_server(lambda r, w, port=port: _relay(r, w, port), hosts.gateway, port)
                stack.callback(relay.close)
            yield hosts
            for agent in hosts.agents.values():
                agent.send_signal(signal.SIGTERM)
            for agent in hosts.agents.values():
                await asyncio.to_thread(agent.wait, 30)
    finally:
        for namespace in hosts.namespaces:
            for pid in _ip("netns", "pids", namespace).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", namespace)
        _ip("netns", "del", switch)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Servers of the tests listen on this machine only: hosts come to them through here."""
    try:
        there, back = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


def _ip(*words: str) -> str:
    done = subprocess.run([ip_program(), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
