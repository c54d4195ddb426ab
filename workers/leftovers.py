"""What an agent finds on its host that nobody wants any more: copies that were given up, and what has ended."""

from __future__ import annotations

import asyncio

import httpx
import structlog

from activities.launchers.base import Launcher, LaunchError
from activities.log_shipper import LogShipper
from activities.spool import SpoolDelivery
from workers.agent_api import ApiClient, Refused

log = structlog.get_logger()

_EVERY_S = 10.0


class Leftovers:
    """Ends and removes them, as far as the API says that their allocations are over."""

    def __init__(self, launcher: Launcher, api: ApiClient, shipper: LogShipper, spools: SpoolDelivery) -> None:
        self._launcher = launcher
        self._api = api
        self._shipper = shipper
        self._spools = spools

    async def present(self) -> bool:
        """Say that this agent is there, once nothing that was given up runs here: its slots are given anew then.

        See `activities.containers.PresenceReport`.
        """
        try:
            await self._end_given_up()
        except (httpx.HTTPError, LaunchError) as error:
            log.info("this agent can't say yet that it is there", error=str(error))
            return False
        return await self._api.present()

    async def run(self) -> None:
        """Look again and again. Runs until cancelled.

        Raises: Refused, when an operator removed this agent: all that it ran was given up, and is ended.
        """
        while True:
            try:
                await self._once()
            except Refused:
                for status in await self._launcher.list():
                    await self._launcher.kill(status.container_id, 2.0)
                raise
            except (httpx.HTTPError, LaunchError) as error:
                log.info("reconciliation waits", error=str(error))
            await asyncio.sleep(_EVERY_S)

    async def _once(self) -> None:
        unstarted = {each.container_id for each in await self._launcher.unstarted()}
        over = await self._end_given_up()
        there = {each.container_id for each in await self._launcher.list()}
        for container_id in over:
            if container_id in unstarted and container_id not in there:
                log.info("removes a container that was never started", container_id=container_id)
                await self._launcher.remove(container_id)
            elif container_id not in there:  # somebody else removed it: there is nothing to ship any more
                self._forget(container_id)
            elif await self._shipper.drained(container_id, 0.5):
                self._forget(container_id)
                await self._launcher.remove(container_id)

    async def _end_given_up(self) -> list[str]:
        """End what runs for allocations that are over; returns all that is left of such, and runs no more."""
        found = await self._launcher.list()
        allocations = dict(self._shipper.followed())
        for each in (*found, *await self._launcher.unstarted()):
            allocations[each.container_id] = each.labels.get("ai.undeterred.allocation", "")
        ended = await self._api.ended(sorted({allocation for allocation in allocations.values() if allocation}))
        over = [id_ for id_, allocation in allocations.items() if allocation in ended]
        running = {each.container_id for each in found if each.running}
        for container_id in running.intersection(over):
            log.warning("ends a container that was given up", container_id=container_id)
            await self._launcher.kill(container_id, 2.0)
        return over

    def _forget(self, container_id: str) -> None:
        self._shipper.forget(container_id)
        self._spools.forget(container_id)
