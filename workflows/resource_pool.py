"""The ResourcePool workflow: who gets which slots."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice, takewhile
from typing import Any, Concatenate, ParamSpec

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ApplicationError

from workflows import calls, names
from workflows.messages import (
    MOST_CLAIMS,
    AgentSeen,
    AgentService,
    AllocationNotice,
    AllocationNotices,
    Assignment,
    ErrorType,
    JobClaim,
    JobMove,
    JobsAsked,
    JobsEnded,
    LateMessage,
    PoolRun,
    SlotGrants,
    SlotRequests,
)
from workflows.options import is_old, record, short_task, tell
from workflows.scheduling.autoscaler import Demand, demand_of
from workflows.scheduling.decide import decide
from workflows.scheduling.model import AgentSlots, Claim, Grant, Placement, Request
from workflows.scheduling.moves import moved
from workflows.scheduling.pool import Pool
from workflows.scheduling.provider import Provider
from workflows.scheduling.settings import Policy, PoolSettings

#: Lost agents that are remembered, because they may come back.
_MOST_LOST = 100
#: For so long a holder that was asked for by `ask` may be about to be started, and is sent again what did not reach it.
_EARLY = timedelta(seconds=60)
_AGAIN = timedelta(seconds=1)
#: Messages that are on their way at a time. Temporal lets a workflow have 2,000.
_AT_ONCE = 500
#: The patch by which a gang that lost an agent keeps its slots on the others until its containers there have ended.
_ENDS_FIRST = "a-gang-ends-before-its-slots-are-free"
#: A signal, the holder that gets it, and what it says.
_Message = tuple[str, str, AllocationNotice | Assignment]

Said = ParamSpec("Said")


def _counted(
    handler: Callable[Concatenate[ResourcePool, Said], None],
) -> Callable[Concatenate[ResourcePool, Said], None]:
    """A handler of a signal: how many came decides when the pool may continue as new."""

    @functools.wraps(handler)
    def counted(pool: ResourcePool, *said: Said.args, **named: Said.kwargs) -> None:
        pool.signals += 1
        handler(pool, *said, **named)

    return counted


@workflow.defn(name="ResourcePool", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ResourcePool:
    """Id `pool-<name>`. Never closes: it continues as new.

    Messages, signals: `request` and `release` from holders (trials); `agent_joined`, `agent_away`, `agent_lost` from
    Agent workflows; `agent_service`, `job_claim` and `configure` from the API; `agent_service` and `demand_wanted` from
    the Autoscaler workflow. Updates: `move_job` from the API; `ask` from the activity that starts trials, `take_back`
    from those that record their ends. It answers by signals to the holder: `assigned`, `refused`, `preempted`,
    `agent_silent`, `agent_back`, `agent_lost`; and to the Autoscaler workflow, if it has a provider: `demand`.
    """

    @workflow.init
    def __init__(self, run: PoolRun) -> None:
        self._run = run
        self._pool = Pool(run.snapshot, run.settings)
        for agent_id in run.silent:
            self._pool.lose(agent_id)
        self._dirty = True
        self._of_hosts: list[_Message] = []  # what became of an agent
        self._refused: list[_Message] = []
        self._preempted: list[_Message] = []
        self._claimed: dict[str, Claim] = {}  # changed since the last decision, by job
        self._demand: Demand | None = None  # as last sent to the Autoscaler workflow
        self._asking: set[str] = set()  # allocations that an `ask` is being answered about
        self._again: list[str] = []  # allocations whose holder asks for what it was granted
        self._round = 0  # counts decisions
        self.signals = 0  # counts those that came

    @workflow.run
    async def run(self, run: PoolRun) -> None:
        """Decide whenever something changed: any number of messages, one decision."""
        calm = -1  # signals that had come before the short task in which this is
        while True:
            self._say_who_waits()
            try:
                await workflow.wait_condition(lambda: self._dirty or is_old(), timeout=self._next_look())
            except TimeoutError:
                self._end_graces()
            self._dirty = False
            await self._send_late()
            await self._send_all(self._of_hosts)
            if len(self._run.claims) > self._run.most_claims:
                await self._forget_ended_jobs()
            for request in self._pool.take_hopeless(self._run.lost.values()):
                slots = f"{request.slots} slot{'s' * (request.slots != 1)}"
                reason = f"log policies excluded every agent of pool `{self._run.name}` that could hold {slots}"
                self._refused.append(("refused", request.holder, _notice(request, reason)))
            await self._send_all(self._refused)
            self.take_up_claims()
            decision = decide(self._pool)
            self._round += 1
            # an `ask` answers by itself, as soon as this waits for anything
            starts = [grant for grant in decision.starts if grant.request.allocation_id not in self._asking]
            starts += [self._pool.snapshot.grants[id_] for id_ in self._again if id_ in self._pool.snapshot.grants]
            self._again.clear()
            # nothing starts behind who asks slots back: the next decision starts what may pass meanwhile
            self._dirty = self._dirty or bool(decision.leaves)
            for leave in decision.leaves:
                request = self._pool.snapshot.grants[leave.allocation_id].request
                self._preempted.append(("preempted", request.holder, _notice(request, leave.reason)))
            await self._send_all(self._preempted)
            await self._send_all([("assigned", grant.request.holder, self._assignment(grant)) for grant in starts])
            provider = self._run.settings.provider or self._run.former_provider
            if provider is not None:
                await self._tell_demand(provider)
            if is_old() and self.signals != calm:
                calm = self.signals
                await short_task()
                self._dirty = True  # who asked meanwhile is decided about in that task
            elif is_old():
                # A busy pool is never without something that waits. Who asks is answered as soon as this waits; or has
                # come just now, and is to be decided about first.
                calm = -1
                await workflow.wait_condition(lambda: workflow.all_handlers_finished() or self._dirty)
                if self._is_all_told() and workflow.all_handlers_finished():
                    self.take_up_claims()
                    workflow.continue_as_new(self._run)  # which begins with a decision about what came meanwhile

    # -- from holders --------------------------------------------------------------------------------------------------

    @workflow.signal
    @_counted
    def request(self, request: Request) -> None:
        """Queue a request. Keyed by its allocation: asking twice is asking once."""
        self._asking.discard(request.allocation_id)  # a holder that asks itself has missed the answer of `ask`
        if self._queue(request):
            self._dirty = True
        elif request.allocation_id in self._pool.snapshot.grants:  # it was asked for by `ask`, whose answer got lost
            self._again.append(request.allocation_id)
            self._dirty = True

    @workflow.update
    async def ask(self, asked: SlotRequests) -> SlotGrants:
        """Queue requests for holders that are about to be started, and answer which got their slots at once.

        Asking twice is asking once: what was granted meanwhile is answered as well.
        """
        ids = [request.allocation_id for request in asked.requests]
        # a holder whose own request came first, as this one was so late that nobody waits for its answer, gets a signal
        asking = {request.allocation_id for request in asked.requests if self._queue(request)}
        for id_ in ids:  # the latest stand last
            self._run.early.pop(id_, None)
            self._run.early[id_] = workflow.now()
        self._asking |= asking
        self._dirty, seen = True, self._round
        await workflow.wait_condition(lambda: self._round > seen)
        self._asking -= asking
        grants = self._pool.snapshot.grants
        return SlotGrants(granted=[self._assignment(grants[id_]) for id_ in ids if id_ in grants])

    def _queue(self, request: Request) -> bool:
        claim = self._run.claims.get(request.job_id, request.claim)
        return self._pool.ask(request.model_copy(update={"claim": claim}))

    @workflow.signal
    @_counted
    def release(self, notice: AllocationNotice) -> None:
        """The allocation is over, or no longer wanted."""
        self._give_back(notice.allocation_id)

    @workflow.update
    def take_back(self, notices: AllocationNotices) -> None:
        """The same of several, for a pool that is not quiet: see `Bursts`."""
        for notice in notices.notices:
            self._give_back(notice.allocation_id)

    # -- from agents ---------------------------------------------------------------------------------------------------

    @workflow.signal
    @_counted
    def agent_joined(self, seen: AgentSeen) -> None:
        """An agent offers its slots, for the first time or again."""
        agent = seen.slots.model_copy(update={"is_available": True})
        self._pool.put_agent(self._in_service(agent))
        self._run.lost.pop(seen.agent_id, None)
        if seen.agent_id in self._run.silent:
            self._run.silent.remove(seen.agent_id)
            self._pool.find(seen.agent_id)
            self._notify_held(seen.agent_id, "agent_back")
            for grant in self._pool.grants_on(seen.agent_id):
                grant.lost -= {seen.agent_id}
        for silent in list(self._run.silent):
            self._give_up(silent)
        self._dirty = True

    @workflow.signal
    @_counted
    def agent_away(self, seen: AgentSeen) -> None:
        """An agent is out of reach: what runs there goes on, nothing new is sent there."""
        agent = self._pool.snapshot.agents.get(seen.agent_id)
        if agent is not None:
            self._pool.put_agent(agent.model_copy(update={"is_available": False}))
            self._dirty = True

    @workflow.signal
    @_counted
    def agent_lost(self, seen: AgentSeen) -> None:
        """An agent did not come back. A holder there that could run elsewhere is notified, and asks again.

        A holder that could not keeps its slots: to give it up would gain nothing, and the agent may be a machine that
        only stood still. It is notified that its host is silent, in case its end is requested.
        """
        if seen.agent_id not in self._run.silent and seen.agent_id in self._pool.snapshot.agents:
            self._run.silent.append(seen.agent_id)
            self._pool.lose(seen.agent_id)
            self._notify_held(seen.agent_id, "agent_silent")
        self._give_up(seen.agent_id, all_of_them=seen.is_gone)
        self._dirty = True

    # -- from operators and users --------------------------------------------------------------------------------------

    @workflow.signal
    @_counted
    def agent_service(self, service: AgentService) -> None:
        """An operator takes an agent or slots of it out of service, or puts them back; or a device of it is in error.

        Unless they are to be drained, who runs there is asked to leave at the next checkpoint.
        """
        self._run.services.pop(service.agent_id, None)
        if not service.is_enabled or service.disabled_slots or service.broken_slots:
            self._run.services[service.agent_id] = service
        agent = self._pool.snapshot.agents.get(service.agent_id)
        if agent is None:
            return
        self._pool.put_agent(self._in_service(agent))
        self._dirty = True
        if not service.is_draining:
            self._ask_to_leave(service, f"an operator took agent {service.agent_id}, or slots of it, out of service")
        if service.broken_slots:
            broken = AgentService(agent_id=service.agent_id, disabled_slots=service.broken_slots)
            slots = ", ".join(map(str, service.broken_slots))
            self._ask_to_leave(broken, f"slot {slots} of agent {service.agent_id} is in error")

    @workflow.signal
    @_counted
    def job_claim(self, change: JobClaim) -> None:
        """A job's claim has changed. What it holds already it keeps, unless the policy says otherwise."""
        self._claim(change.job_id, change.claim)

    @workflow.signal
    @_counted
    def configure(self, settings: PoolSettings) -> None:
        """An operator changes how this pool shares its slots."""
        self._run.former_provider = self._run.settings.provider or self._run.former_provider
        self._run.settings = settings
        self._pool.configure(settings)
        self._dirty = True

    @workflow.signal
    @_counted
    def demand_wanted(self) -> None:
        """The Autoscaler workflow of this pool has just begun, and knows nothing of the pool."""
        self._demand = None
        self._dirty = True

    @workflow.update
    def move_job(self, move: JobMove) -> Claim:
        """Place a job just before or behind another one, whose priority it takes. Returns its new claim."""
        known, job, anchor = self._run.claims, move.job, move.anchor
        claim = moved(
            self._pool,
            job.job_id,
            known.get(job.job_id, job.claim),
            anchor.job_id,
            known.get(anchor.job_id, anchor.claim),
            is_ahead=move.is_ahead,
            now=workflow.time_ns(),
            changed=self._claimed,
        )
        self._claim(job.job_id, claim)
        return claim

    @move_job.validator
    def _check_move(self, move: JobMove) -> None:
        if self._run.settings.scheduler is not Policy.PRIORITY:
            policy = self._run.settings.scheduler.value
            raise ApplicationError(
                f"pool {self._run.name} shares by {policy}: only pools that go by priority have places to move to",
                type=ErrorType.COMMAND_REFUSED,
            )

    @workflow.query
    def snapshot(self) -> PoolRun:
        """Agents, queue and grants, for people and tests."""
        return self._run

    # -- agents that fell silent -----------------------------------------------------------------------------------

    def _notify_held(self, agent_id: str, signal: str) -> None:
        held = self._pool.grants_on(agent_id)
        self._of_hosts += [(signal, grant.request.holder, _notice(grant.request, agent_id=agent_id)) for grant in held]

    def _give_up(self, agent_id: str, *, all_of_them: bool = False) -> None:
        """What was held on a silent agent and can be held elsewhere is no more; with the last of it the agent goes.

        What is held on other agents as well is held until its holder has ended what runs on those.
        """
        for grant in self._pool.grants_on(agent_id):
            if agent_id in grant.lost or not (all_of_them or self._pool.could_go_on(grant.request)):
                continue
            self._of_hosts.append(("agent_lost", grant.request.holder, _notice(grant.request, agent_id=agent_id)))
            is_gang = any(place.agent_id != agent_id for place in grant.placements)
            if is_gang and workflow.patched(_ENDS_FIRST):
                grant.lost |= {agent_id}
                self._pool.note_leaving(grant.request.allocation_id)
            else:
                self._pool.release(grant.request.allocation_id)
        lost = self._pool.snapshot.agents.get(agent_id)
        if self._pool.grants_on(agent_id):
            if lost is not None and lost.is_available:  # it was there until it was removed
                self._pool.put_agent(lost.model_copy(update={"is_available": False}))
            return
        if lost is not None:
            _remember(self._run.lost, agent_id, lost, _MOST_LOST)
        self._pool.remove_agent(agent_id)
        if agent_id in self._run.silent:
            self._run.silent.remove(agent_id)

    # -- in common -----------------------------------------------------------------------------------------------------

    def _ask_to_leave(self, service: AgentService, reason: str) -> None:
        """Ask the holders of what is out of service to leave at the next checkpoint."""
        for grant in self._pool.snapshot.grants.values():
            if not grant.is_preempting and any(_is_out(service, place) for place in grant.placements):
                self._pool.note_leaving(grant.request.allocation_id)
                self._preempted.append(("preempted", grant.request.holder, _notice(grant.request, reason)))

    def _next_look(self) -> timedelta | None:
        """Until the next drained agent is to be left, or a message is sent again; None if there is neither."""
        ends = [service.leave_at for service in self._run.services.values() if service.leave_at is not None]
        ends += [workflow.now() + _AGAIN] if self._run.late else []
        return max(min(ends) - workflow.now(), timedelta(0)) if ends else None

    # -- holders that are about to be started --------------------------------------------------------------------------

    def _assignment(self, grant: Grant) -> Assignment:
        id_ = grant.request.allocation_id
        return Assignment(allocation_id=id_, placements=grant.placements, pool=self._run.name)

    async def _send_all(self, messages: list[_Message]) -> None:
        """Tell holders about their allocations, and empty the list. One that closed meanwhile needs to know nothing.

        All at once, so that what has many starts waits for Temporal once. To one holder in turn: what a workflow sends
        in one task may arrive in any order.
        """
        while messages:
            of_holder: dict[str, list[_Message]] = {}
            for message in messages[:_AT_ONCE]:
                of_holder.setdefault(message[1], []).append(message)
            del messages[:_AT_ONCE]
            await asyncio.gather(*map(self._send_in_turn, of_holder.values()))

    async def _send_in_turn(self, messages: Sequence[_Message]) -> None:
        for signal, holder, message in messages:
            if not await tell(holder, signal, message):
                self._not_reached(signal, holder, message)

    def _not_reached(self, signal: str, holder: str, message: AllocationNotice | Assignment) -> None:
        """There is no such holder: it has closed, or is about to be started."""
        id_ = message.allocation_id
        if id_ in self._run.early:
            told = message if isinstance(message, AllocationNotice) else AllocationNotice(allocation_id=id_)
            late = LateMessage(
                signal=signal, holder=holder, allocation_id=id_, agent_id=told.agent_id, reason=told.reason
            )
            self._run.late.append(late)
        elif signal in ("assigned", "agent_lost"):  # nobody else gives back what it holds
            self._give_back(id_)

    async def _send_late(self) -> None:
        run = self._run
        oldest = workflow.now() - _EARLY
        for id_ in list(takewhile(lambda each: run.early[each] <= oldest, run.early)):
            del run.early[id_]
        late, run.late = run.late, []
        messages: list[_Message] = []
        for each in late:
            id_, grant = each.allocation_id, self._pool.snapshot.grants.get(each.allocation_id)
            if each.signal != "assigned":
                notice = AllocationNotice(allocation_id=id_, agent_id=each.agent_id, reason=each.reason)
                messages.append((each.signal, each.holder, notice))
            elif grant is not None:
                messages.append(("assigned", each.holder, self._assignment(grant)))
        await self._send_all(messages)

    def _end_graces(self) -> None:
        for agent_id, service in self._run.services.items():
            if service.leave_at is not None and service.leave_at <= workflow.now():
                self._run.services[agent_id] = service.model_copy(update={"is_draining": False, "leave_at": None})
                self._ask_to_leave(service, f"agent {agent_id} is drained, and its grace is over")

    async def _tell_demand(self, provider: Provider) -> None:
        demand = demand_of(self._pool, provider)
        if demand != self._demand:
            self._demand = demand
            if not await tell(names.autoscaler_workflow(self._run.name), "demand", demand):
                self._run.former_provider = None  # the last of its nodes is gone

    async def _forget_ended_jobs(self) -> None:
        """A job asks for slots again and again while it lives, perhaps after a long pause: which ended, records know.

        So it is asked seldom, and a pool whose jobs all live asks when there are twice as many.
        """
        asked = JobsAsked(job_ids=list(self._run.claims))
        ended: JobsEnded = await record(calls.ended_jobs, asked)
        for job_id in ended.job_ids:
            self._run.claims.pop(job_id, None)
        self._run.most_claims = max(MOST_CLAIMS, 2 * len(self._run.claims))

    def _claim(self, job_id: str, claim: Claim) -> None:
        self._run.claims[job_id] = self._claimed[job_id] = claim
        self._dirty = True

    def take_up_claims(self) -> None:
        """Together: each time all who wait are ranked anew, and a user may change hundreds of jobs at once."""
        if self._claimed:
            self._pool.claim(self._claimed)
            self._claimed.clear()

    def _in_service(self, agent: AgentSlots) -> AgentSlots:
        service = self._run.services.get(agent.agent_id, AgentService(agent_id=agent.agent_id))
        closed = tuple(sorted({*service.disabled_slots, *service.broken_slots}))
        return agent.model_copy(update={"is_enabled": service.is_enabled, "disabled_slots": closed})

    def _give_back(self, allocation_id: str) -> None:
        grant = self._pool.snapshot.grants.get(allocation_id)
        if self._pool.release(allocation_id):
            self._dirty = True
            for agent_id in dict.fromkeys(place.agent_id for place in grant.placements) if grant else ():
                if agent_id in self._run.silent:
                    self._give_up(agent_id)  # it may have been the last one there

    def _is_all_told(self) -> bool:
        """Whether nothing waits to be sent that the next run would not know."""
        return not (self._of_hosts or self._refused or self._preempted or self._again)

    def _say_who_waits(self) -> None:
        snapshot = self._pool.snapshot
        first = islice(snapshot.queue.values(), 20)
        queue = "\n".join(f"- {request.name}: {request.slots} slots" for request in first)
        held = self._pool.held_slots
        workflow.set_current_details(
            f"**{held} of {snapshot.total_slots()} slots** of {len(snapshot.agents)} agents are in use, "
            f"{len(snapshot.queue)} requests wait.\n\n{queue}"
        )


def _notice(request: Request, reason: str = "", agent_id: str = "") -> AllocationNotice:
    return AllocationNotice(allocation_id=request.allocation_id, agent_id=agent_id, reason=reason)


def _remember(known: dict[str, Any], key: str, value: Any, most: int) -> None:
    """Note it as the latest, and forget the oldest ones beyond the most."""
    known.pop(key, None)
    known[key] = value
    while len(known) > most:
        del known[next(iter(known))]


def _is_out(service: AgentService, place: Placement) -> bool:
    """Whether what an operator took out of service is a place that is held."""
    if place.agent_id != service.agent_id:
        return False
    return not service.is_enabled or not set(service.disabled_slots).isdisjoint(place.slot_ids)
