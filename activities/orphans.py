"""Orphans on an agent's host, which are containers of allocations that are over: killed if they run, then removed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import httpx
import structlog

from activities.launchers.base import Launcher, LaunchError
from activities.log_shipper import LogShipper
from activities.spool import SpoolDelivery

log = structlog.get_logger()

_EVERY_S = 10.0


class _Over(NamedTuple):
    """Containers whose allocation is over and that run no more, by what is left of them."""

    ended: list[str]
    unstarted: list[str]
    gone: list[str]  # only their log's position


class Unwanted(Exception):
    """The cluster wants nothing of this agent any more."""


class Reconciler(Protocol):
    """Where an agent learns what is over, and says that it is present: the API."""

    async def ended(self, allocations: Sequence[str]) -> set[str]:
        """Which of these allocations are over. Raises: httpx.HTTPError; Unwanted, if this agent was removed."""
        ...

    async def present(self) -> bool:
        """Report this agent as present. False: the API could not be notified."""
        ...


class Orphans:
    """Kills and removes orphaned containers: those of which the API says that their allocations are over."""

    def __init__(self, launcher: Launcher, api: Reconciler, shipper: LogShipper, spools: SpoolDelivery) -> None:
        self._launcher = launcher
        self._api = api
        self._shipper = shipper
        self._spools = spools

    async def present(self) -> bool:
        """Report this agent as present, once no orphan runs here: its slots are assigned again then.

        See `activities.containers.PresenceReport`.
        """
        try:
            await self._end_orphans()
        except (httpx.HTTPError, LaunchError) as error:
            log.info("this agent can't say yet that it is there", error=str(error))
            return False
        return await self._api.present()

    async def run(self) -> None:
        """Look for orphans at intervals. Runs until cancelled.

        Raises: Unwanted, when an operator removed this agent: all that it ran is orphaned, and is killed.
        """
        while True:
            try:
                await self._once()
            except Unwanted:
                for status in await self._launcher.list():
                    await self._launcher.kill(status.container_id, 2.0)
                raise
            except (httpx.HTTPError, LaunchError) as error:
                log.info("reconciliation waits", error=str(error))
            await asyncio.sleep(_EVERY_S)

    async def _once(self) -> None:
        over = await self._end_orphans()
        for container_id in over.unstarted:
            log.info("removes a container that was never started", container_id=container_id)
            await self._launcher.remove(container_id)
        for container_id in over.gone:  # removed from outside: there is nothing to ship any more
            self._forget(container_id)
        for container_id in over.ended:
            if await self._shipper.drained(container_id, 0.5):
                self._forget(container_id)
                await self._launcher.remove(container_id)

    async def _end_orphans(self) -> _Over:
        """Kill what runs for allocations that are over; returns all that is left of them."""
        followed = dict(self._shipper.followed())  # first: what is started meanwhile must not seem to be gone
        started = {each.container_id: each for each in await self._launcher.list()}
        unstarted = {each.container_id: each for each in await self._launcher.unstarted()}
        allocations = followed | {
            id_: each.labels.get("ai.undeterred.allocation", "") for id_, each in (started | unstarted).items()
        }
        ended = await self._api.ended(sorted({allocation for allocation in allocations.values() if allocation}))
        over = _Over([], [], [])
        for container_id, allocation in allocations.items():
            if allocation not in ended:
                continue
            if container_id not in started:
                (over.unstarted if container_id in unstarted else over.gone).append(container_id)
                continue
            if started[container_id].running:
                log.warning("ends an orphaned container", container_id=container_id)
                await self._launcher.kill(container_id, 2.0)
            over.ended.append(container_id)
        return over

    def _forget(self, container_id: str) -> None:
        self._shipper.forget(container_id)
        self._spools.forget(container_id)
