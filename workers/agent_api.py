"""The agent's client of the API."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import structlog

from activities.enrollment import message_of
from activities.launchers.base import LaunchError, Offer, Place
from activities.launchers.devices import Device
from activities.orphans import Unwanted
from activities.spool import Answer
from api import tracing
from api.pem import CantUse, trusting
from workers.connect import GivenUp
from workers.lean_http import transport_to
from workers.settings import AgentSettings
from workflows.lifecycle.allocation import AllocationState
from workflows.messages import RunContainer
from workflows.scheduling.topology import Topology

log = structlog.get_logger()


class Refused(GivenUp, Unwanted):
    """The API wants nothing of this agent, and says why: it was removed, or its settings are wrong."""


#: Of what a container waits for: a scheduler's words grow with its cluster.
_LONGEST_REASON = 1000
#: The variable by which a container knows the trace that it is launched for.
_TRACE = "TRACEPARENT"
_JSON = {"Content-Type": "application/json"}
#: The longest that a kill waits for the API.
_KILL_S = 2.0


def _devices(settings: AgentSettings) -> Sequence[Device]:
    """One for each slot; of a cluster one for all, as its slots are alike."""
    if settings.launcher == "kubernetes":
        is_cpu = settings.slot_resource == "cpu"
        return [Device(kind="cpu") if is_cpu else Device(kind="cuda", brand=settings.slot_resource)]
    return settings.devices or [Device()] * (settings.slots or 0)


async def _name_trace(request: httpx.Request) -> None:
    if trace := tracing.current():
        request.headers[tracing.HEADER] = trace


class ApiClient:
    """The API as an agent sees it."""

    def __init__(self, settings: AgentSettings) -> None:
        token = settings.agent_token.get_secret_value()
        self._mine = f"/api/v1/undeterred/agents/{settings.agent_id}"
        self._report: dict[str, Any] = {
            "pool": settings.pool,
            "devices": [device.model_dump() for device in _devices(settings)],
            "address": settings.address or address_towards(settings.api_url),
            "labels": settings.labels,
            "version": version("undeterred"),
            "launcher": settings.launcher,
            "heartbeatS": settings.heartbeat_s,
            "reconnectWaitS": settings.reconnect_wait_s,
        }
        try:
            is_own = settings.api_ca_file or settings.api_server_name
            verify = trusting("api_ca_file", settings.api_ca_file, settings.api_server_name) if is_own else True
        except CantUse as error:
            raise GivenUp(str(error)) from None
        self._http = httpx.AsyncClient(
            verify=verify,
            transport=transport_to(settings.api_url, verify),
            base_url=settings.api_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(15.0, connect=3.0),
            event_hooks={"request": [_name_trace]},
        )
        # without the agent's token: for what is sent in the name of a container
        self._anonymous = httpx.AsyncClient(
            verify=verify,
            transport=transport_to(settings.api_url, verify),
            base_url=settings.api_url,
            timeout=httpx.Timeout(60.0, connect=3.0),
        )

    def offer(self, offer: Offer) -> None:
        """What a cluster offers from now on; `hello` and `present` report it."""
        nodes = [
            {
                "name": node.name,
                "slots": node.slots,
                "foreign": node.foreign,
                "address": node.address,
                "isCordoned": node.is_cordoned,
                "service": node.service,
                "isOpen": node.is_open,
            }
            for node in offer.nodes
        ]
        self._report |= {"slots": offer.slots, "slotsPerPod": offer.slots_per_pod, "nodes": nodes}

    def broken(self, slots: Mapping[int, str]) -> None:
        """The slots whose devices are in error from now on, and what is wrong; `hello` reports them."""
        self._report["brokenSlots"] = [{"slot": slot, "problem": problem} for slot, problem in slots.items()]

    def topology(self, topology: Topology) -> None:
        """Which slots are close to each other; `hello` and `present` report it."""
        self._report["topology"] = topology.model_dump()

    async def hello(self) -> Mapping[str, Any]:
        """Say that this agent starts, and what it offers; returns what it must know of its cluster.

        Raises: httpx.HTTPError, Refused.
        """
        return (await self._tell("hello")).json()

    async def present(self) -> bool:
        """Report this agent as present, for the workflow that watches it. False: the API could not be notified."""
        try:
            await self._tell("present")
        except httpx.HTTPError as error:
            log.info("could not say that this agent is there", error=str(error))
            return False
        return True

    async def _tell(self, what: str) -> httpx.Response:
        response = await self._http.post(f"{self._mine}/{what}", json=self._report)
        if 400 <= response.status_code < 500 and response.status_code not in (408, 429):
            raise Refused(message_of(response))
        return response.raise_for_status()

    async def launch_order(self, order: RunContainer, attempted_at: datetime) -> Mapping[str, Any]:
        """Everything about a container but what only this host knows."""
        path = f"/api/v1/undeterred/allocations/{order.allocation_id}/containers/{order.rank}/launch"
        response = await self._http.post(path, params={"attemptedAt": attempted_at.isoformat()})
        if response.status_code in (400, 404):  # the allocation ended meanwhile: trying again is pointless
            raise LaunchError("start_failed", message_of(response))
        response.raise_for_status()
        launch = response.json()
        if trace := tracing.current():
            launch["env"][_TRACE] = trace
        return launch

    async def report(
        self, order: RunContainer, state: AllocationState, *, place: Place | None = None, waits_for: str = ""
    ) -> bool:
        """How far the container is. A courtesy for people: an API that is away does not hold the trial up."""
        body: dict[str, Any] = {"rank": order.rank, "waitsFor": waits_for[:_LONGEST_REASON]}
        if place is not None:
            body |= {"node": place.node, "address": place.address}
        path = f"/api/v1/undeterred/allocations/{order.allocation_id}/{state.lower()}"
        try:
            response = await self._http.post(path, json=body)
        except httpx.HTTPError as error:
            log.info("could not report on a container", container_id=order.container_id, state=state, error=str(error))
            return False
        return response.status_code < 500

    async def killed(self, container_id: str) -> bool:
        """A container of a cluster is about to be ended. An API that is away holds no kill up."""
        allocation_id, _, rank = container_id.rpartition("-")
        path = f"/api/v1/undeterred/allocations/{allocation_id}/containers/{rank}/killed"
        try:
            return (await self._http.post(path, timeout=_KILL_S)).status_code == 200
        except httpx.HTTPError as error:
            log.info("could not say that a container is ended", container_id=container_id, error=str(error))
            return False

    async def send_logs(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Deliver lines; raises if the API did not take them. What it can't take at once it gets in halves."""
        body = orjson.dumps({"logs": list(lines)})  # a tenth of what the standard library takes
        while True:
            response = await self._http.post("/api/v1/task/logs", content=body, headers=_JSON)
            if response.status_code not in _LATER:
                break
            await asyncio.sleep(retry_after_s(response))
        if response.status_code in (400, 413) and len(lines) > 1:  # one bad line must not take its neighbours with it
            half = len(lines) // 2
            await self.send_logs(lines[:half])
            await self.send_logs(lines[half:])
            return
        if response.status_code in (400, 413):  # for good: to repeat it would hold up every later line
            log.error("a line was refused and is left out", answer=response.text[:500])
            return
        response.raise_for_status()

    async def post_as_container(self, path: str, token: str, body: bytes) -> Answer:
        """Send a container's own report. Raises: httpx.HTTPError if there is no answer."""
        headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"}
        response = await self._anonymous.post(path, content=body, headers=headers)
        wait_s = retry_after_s(response) if response.status_code in _LATER else 0.0
        return Answer(response.status_code, response.text, wait_s)

    async def ended(self, allocations: Sequence[str]) -> set[str]:
        """Which of these allocations are over. Raises: httpx.HTTPError; Refused, if this agent was removed."""
        body = {"allocations": list(allocations), "pool": self._report["pool"]}
        response = await self._http.post(f"{self._mine}/reconcile", json=body)
        if response.status_code == 401:
            raise Refused(message_of(response))
        response.raise_for_status()
        return set(response.json()["ended"])

    async def removal(self, removal_id: str) -> Mapping[str, Any] | None:
        """What is to be removed from a storage, with its keys; None: it is done. Raises: httpx.HTTPError."""
        response = await self._http.post(f"{self._mine}/removals/{removal_id}")
        if response.status_code == 404:
            return None
        return response.raise_for_status().json()

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()
        await self._anonymous.aclose()


#: The API is there, and has too much to do: it says when to come again.
_LATER = frozenset({429, 503})


def retry_after_s(response: httpx.Response) -> float:
    """How long the API asks to wait, in seconds: 0.2 to 30."""
    asked = response.headers.get("retry-after", "")
    return min(30.0, max(0.2, float(asked))) if asked.isdigit() else 1.0


def address_towards(url: str) -> str:
    """This host's address on its way to a server: what hosts that reach the same server most likely reach as well."""
    parts = urlsplit(url)
    try:
        target = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(target[0], socket.SOCK_DGRAM) as probe:
            probe.connect(target[4])  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
