"""The ResourcePool workflow: who gets which slots."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import VersioningBehavior

from workflows.messages import AgentSeen, AgentService, AllocationNotice, Assignment, JobCap, PoolRun
from workflows.options import tell
from workflows.scheduling.fifo import schedule
from workflows.scheduling.fit import take_hopeless
from workflows.scheduling.model import AgentSlots, Placement, Request

#: Lost agents that are remembered, because they may come back.
_MOST_LOST = 100
#: Jobs whose changed caps are remembered, the latest ones: a job asks for slots again and again while it lives.
_MOST_CAPS = 1000


@workflow.defn(name="ResourcePool", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ResourcePool:
    """Id `pool-<name>`. Never closes: it continues as new.

    Messages, all signals: `request` and `release` from holders (trials); `agent_joined`, `agent_away`, `agent_lost`
    from Agent workflows; `agent_service` and `job_cap` from the API. It answers by signals to the holder: `assigned`,
    `refused`, `preempted`, `agent_lost`.
    """

    @workflow.init
    def __init__(self, run: PoolRun) -> None:
        self._pool = run
        self._dirty = True
        self._lost: list[tuple[str, str]] = []  # holders to tell that an agent is gone, with their allocation
        self._preempted: list[tuple[str, str]] = []

    @workflow.run
    async def run(self, run: PoolRun) -> None:
        """Decide whenever something changed: any number of messages, one decision."""
        while True:
            self._say_who_waits()
            await workflow.wait_condition(lambda: self._dirty or self._is_old())
            self._dirty = False
            while self._lost:
                holder, allocation_id = self._lost.pop(0)
                await tell(holder, "agent_lost", AllocationNotice(allocation_id=allocation_id))
            while self._preempted:
                holder, allocation_id = self._preempted.pop(0)
                await tell(holder, "preempted", AllocationNotice(allocation_id=allocation_id))
            for request in take_hopeless(self._pool.snapshot, self._pool.lost.values()):
                slots = f"{request.slots} slot{'s' * (request.slots != 1)}"
                reason = f"log policies excluded every agent of pool `{self._pool.name}` that could hold {slots}"
                await tell(
                    request.holder, "refused", AllocationNotice(allocation_id=request.allocation_id, reason=reason)
                )
            for grant in schedule(self._pool.snapshot):
                request = grant.request
                assignment = Assignment(allocation_id=request.allocation_id, placements=grant.placements)
                if not await tell(request.holder, "assigned", assignment):
                    self._give_back(request.allocation_id)  # the holder closed while it queued
            if self._is_old() and not self._dirty:
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._pool)

    @workflow.signal
    def request(self, request: Request) -> None:
        """Queue a request. Keyed by its allocation: asking twice is asking once."""
        snapshot = self._pool.snapshot
        known = request.allocation_id in snapshot.grants or any(
            queued.allocation_id == request.allocation_id for queued in snapshot.queue
        )
        if not known:
            snapshot.queue.append(self._capped(request))
            self._dirty = True

    @workflow.signal
    def release(self, notice: AllocationNotice) -> None:
        """The allocation is over, or no longer wanted."""
        self._give_back(notice.allocation_id)

    @workflow.signal
    def agent_joined(self, seen: AgentSeen) -> None:
        """An agent offers its slots, for the first time or again."""
        agent = seen.slots.model_copy(update={"is_available": True})
        self._pool.snapshot.agents[seen.agent_id] = self._in_service(agent)
        self._pool.lost.pop(seen.agent_id, None)
        self._dirty = True

    @workflow.signal
    def agent_away(self, seen: AgentSeen) -> None:
        """An agent is out of reach: what runs there goes on, nothing new is sent there."""
        agent = self._pool.snapshot.agents.get(seen.agent_id)
        if agent is not None:
            agent.is_available = False
            self._dirty = True

    @workflow.signal
    def agent_lost(self, seen: AgentSeen) -> None:
        """An agent did not come back: its slots are gone, and those who held them are told."""
        snapshot = self._pool.snapshot
        lost = snapshot.agents.pop(seen.agent_id, None)
        if lost is not None:
            self._pool.lost[seen.agent_id] = lost
            if len(self._pool.lost) > _MOST_LOST:
                del self._pool.lost[next(iter(self._pool.lost))]
        for grant in list(snapshot.grants.values()):
            if any(place.agent_id == seen.agent_id for place in grant.placements):
                self._lost.append((grant.request.holder, grant.request.allocation_id))
                del snapshot.grants[grant.request.allocation_id]
        self._dirty = True

    @workflow.signal
    def agent_service(self, service: AgentService) -> None:
        """An operator takes an agent or slots of it out of service, or puts them back.

        Unless they are to be drained, who runs there is asked to leave at the next checkpoint.
        """
        self._pool.services.pop(service.agent_id, None)
        if not service.is_enabled or service.disabled_slots:
            self._pool.services[service.agent_id] = service
        agent = self._pool.snapshot.agents.get(service.agent_id)
        if agent is None:
            return
        self._pool.snapshot.agents[service.agent_id] = self._in_service(agent)
        self._dirty = True
        if service.is_draining:
            return
        for grant in self._pool.snapshot.grants.values():
            if not grant.is_preempting and any(_is_out(service, place) for place in grant.placements):
                grant.is_preempting = True
                self._preempted.append((grant.request.holder, grant.request.allocation_id))

    @workflow.signal
    def job_cap(self, cap: JobCap) -> None:
        """A user changes how many slots his job may hold. What it holds already stays."""
        caps = self._pool.caps
        caps.pop(cap.job_id, None)
        caps[cap.job_id] = cap.max_slots
        if len(caps) > _MOST_CAPS:
            del caps[next(iter(caps))]
        self._pool.snapshot.queue = [self._capped(request) for request in self._pool.snapshot.queue]
        self._dirty = True

    @workflow.query
    def snapshot(self) -> PoolRun:
        """Agents, queue and grants, for people and tests."""
        return self._pool

    def _in_service(self, agent: AgentSlots) -> AgentSlots:
        service = self._pool.services.get(agent.agent_id, AgentService(agent_id=agent.agent_id))
        return agent.model_copy(update={"is_enabled": service.is_enabled, "disabled_slots": service.disabled_slots})

    def _capped(self, request: Request) -> Request:
        caps = self._pool.caps
        return request.model_copy(update={"max_slots": caps[request.job_id]}) if request.job_id in caps else request

    def _give_back(self, allocation_id: str) -> None:
        snapshot = self._pool.snapshot
        held = snapshot.grants.pop(allocation_id, None)
        waiting = [queued for queued in snapshot.queue if queued.allocation_id != allocation_id]
        if held is not None or len(waiting) != len(snapshot.queue):
            snapshot.queue = waiting
            self._dirty = True

    def _is_old(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    def _say_who_waits(self) -> None:
        snapshot = self._pool.snapshot
        used = sum(grant.request.slots for grant in snapshot.grants.values())
        queue = "\n".join(f"- {request.name}: {request.slots} slots" for request in snapshot.queue[:20])
        workflow.set_current_details(
            f"**{used} of {snapshot.total_slots()} slots** of {len(snapshot.agents)} agents are in use, "
            f"{len(snapshot.queue)} requests wait.\n\n{queue}"
        )


def _is_out(service: AgentService, place: Placement) -> bool:
    """Whether what an operator took out of service is a place that is held."""
    if place.agent_id != service.agent_id:
        return False
    return not service.is_enabled or not set(service.disabled_slots).isdisjoint(place.slot_ids)
