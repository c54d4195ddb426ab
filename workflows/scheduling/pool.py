"""The state of a pool as policies use it: requests, grants and what is free, kept up to date change by change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from workflows.scheduling.model import (
    AgentSlots,
    Claim,
    Decision,
    Grant,
    Kind,
    Leave,
    Placement,
    PoolSnapshot,
    Request,
    Shape,
)
from workflows.scheduling.rank import Alike, Line
from workflows.scheduling.room import Room
from workflows.scheduling.settings import PoolSettings


class _AtBest:
    """What would fit if all agents were in service and nothing were held.

    It is asked about hundreds of allocations when a switch fails: the room is kept as agents come and go, and what fits
    is found once for each shape.

    Args:
        make: Makes the room of the agents that there are.
    """

    def __init__(self, make: Callable[[], Room]) -> None:
        self._make = make
        self._room: Room | None = None
        self._fits: dict[Shape, bool] = {}

    def fits(self, request: Request) -> bool:
        """Whether some of the agents could hold the request."""
        fits = self._fits.get(request.shape)
        if fits is None:
            if self._room is None:
                self._room = self._make()
            fits = self._fits[request.shape] = self._room.fit(request) is not None
        return fits

    def put(self, agent: AgentSlots) -> None:
        """An agent joins, or offers something else than before."""
        self._fits.clear()
        if self._room is not None:
            self._room.put(agent.at_best())

    def drop(self, agent_id: str) -> None:
        """An agent is gone; nothing happens if it was not there."""
        self._fits.clear()
        if self._room is not None:
            self._room.drop(agent_id)


class Pool:
    """A pool's agents, queue and grants. Changes go through its methods; `snapshot` is its stored data.

    Args:
        snapshot: the state to resume from; it is changed in place.
        settings: how it shares its slots.

    Attributes:
        waiting: The queue, in the order of its ranks.
        holders: The grants, likewise.
    """

    def __init__(self, snapshot: PoolSnapshot, settings: PoolSettings | None = None) -> None:
        self.snapshot = snapshot
        self.settings = settings or PoolSettings()
        self._line_up()
        self._held = Counter[str]()
        self._held_on: dict[str, dict[str, None]] = {}  # allocations by agent, in the order in which they were granted
        for grant in snapshot.grants.values():
            self._note_grant(grant)
        self._out_of_reach: set[str] = set()
        self._make_rooms()

    # -- what changes it -----------------------------------------------------------------------------------------------

    def configure(self, settings: PoolSettings) -> None:
        """Share the slots in another way from now on. What is held stays, until the policy wants it back."""
        self.settings = settings
        self._line_up()
        self._make_rooms()

    def ask(self, request: Request) -> bool:
        """Queue a request. False if it is known already."""
        if request.allocation_id in self.snapshot.grants or request.allocation_id in self.waiting:
            return False
        self.snapshot.queue[request.allocation_id] = request
        self.waiting.add(request, request)
        return True

    def release(self, allocation_id: str) -> bool:
        """The request is over, or no longer wanted. False if it is not known."""
        grant = self.snapshot.grants.pop(allocation_id, None)
        if grant is not None:
            self.holders.remove(allocation_id)
            self._held[grant.request.job_id] -= grant.request.slots
            for agent_id in {place.agent_id for place in grant.placements}:
                del self._held_on[agent_id][allocation_id]
                if not self._held_on[agent_id]:
                    del self._held_on[agent_id]
            if self._room is not None:
                self._room.give(grant.placements)
            return True
        if allocation_id not in self.waiting:
            return False
        self._leave_queue(allocation_id)
        return True

    def _leave_queue(self, allocation_id: str) -> None:
        self.waiting.remove(allocation_id)
        del self.snapshot.queue[allocation_id]

    def claim(self, claims: Mapping[str, Claim]) -> None:
        """What jobs may ask for has changed, by their ids, also for what they ask and hold already."""
        snapshot = self.snapshot
        for request in snapshot.queue.values():
            if request.job_id in claims:
                claim = claims[request.job_id]
                snapshot.queue[request.allocation_id] = request.model_copy(update={"claim": claim})
        for grant in snapshot.grants.values():
            if grant.request.job_id in claims:
                grant.request = grant.request.model_copy(update={"claim": claims[grant.request.job_id]})
        self._line_up()

    def put_agent(self, agent: AgentSlots) -> None:
        """An agent joins, or offers something else than before."""
        if agent.slots_per_pod is not None:
            agent = agent.model_copy(update={"slot_ids": self._counted(agent)})
        self.snapshot.agents[agent.agent_id] = agent
        if self._room is not None:
            self._room.put(agent, self.grants_on(agent.agent_id))
        self._all.put(agent)
        if agent.agent_id not in self._out_of_reach:
            self._in_reach.put(agent)

    def _counted(self, agent: AgentSlots) -> tuple[int, ...]:
        """Ids for the slots of a cluster: those that are held come first, as ids only count there.

        A cluster that shrank may have ids left that nobody holds, while it is full.
        """
        held = {
            slot
            for grant in self.grants_on(agent.agent_id)
            for place in grant.placements
            if place.agent_id == agent.agent_id
            for slot in place.slot_ids
        }
        count = len(agent.slot_ids)
        rest = (slot for slot in range(count + len(held)) if slot not in held)
        return tuple(sorted([*sorted(held)[:count], *islice(rest, max(0, count - len(held)))]))

    def remove_agent(self, agent_id: str) -> list[Grant]:
        """An agent is gone, and with it what ran there: these grants are no more."""
        self.snapshot.agents.pop(agent_id, None)
        gone = self.grants_on(agent_id)
        for grant in gone:
            self.release(grant.request.allocation_id)
        if self._room is not None:
            self._room.drop(agent_id)
        self._all.drop(agent_id)
        self._in_reach.drop(agent_id)
        self._out_of_reach.discard(agent_id)
        return gone

    def lose(self, agent_id: str) -> None:
        """An agent is out of reach for so long that what it holds is to go on elsewhere, if it can."""
        self._out_of_reach.add(agent_id)
        self._in_reach.drop(agent_id)

    def find(self, agent_id: str) -> None:
        """It is in reach again."""
        self._out_of_reach.discard(agent_id)
        agent = self.snapshot.agents.get(agent_id)
        if agent is not None:
            self._in_reach.put(agent)

    def _note_grant(self, grant: Grant) -> None:
        self._held[grant.request.job_id] += grant.request.slots
        for place in grant.placements:
            self._held_on.setdefault(place.agent_id, {})[grant.request.allocation_id] = None

    def take_hopeless(self, lost: Collection[AgentSlots] = ()) -> list[Request]:
        """Take the requests from the queue that only agents which they exclude could hold, whichever agents come back.

        A request that would not fit without its exclusions either stays: agents of that size may still join.
        """
        numbered = [
            entry
            for shape, of_shape in self.waiting.shapes.items()
            if shape.excluded_agents and self._is_hopeless(next(iter(of_shape)).sample, lost)
            for alike in of_shape
            for entry in alike.entries.values()
        ]
        hopeless = [request for _, request in sorted(numbered, key=lambda entry: entry[0])]
        for request in hopeless:
            self.release(request.allocation_id)
        return hopeless

    def _is_hopeless(self, request: Request, lost: Collection[AgentSlots]) -> bool:
        return (
            not self.could_hold(request, lost)
            and self.could_hold(request.model_copy(update={"excluded_agents": ()}), lost)
            and not self.could_provide(request)
        )

    def apply(self, decision: Decision) -> None:
        """Note what was decided. The room has it already, see `Draft`."""
        for grant in decision.starts:
            self._leave_queue(grant.request.allocation_id)
            self.snapshot.grants[grant.request.allocation_id] = grant
            self.holders.add(grant.request, grant)
            self._note_grant(grant)
        for leave in decision.leaves:
            self.note_leaving(leave.allocation_id)

    def note_leaving(self, allocation_id: str) -> None:
        """A holder was asked to give its slots back."""
        self.snapshot.grants[allocation_id].is_preempting = True
        self.holders.alike_of(allocation_id).leaving.add(allocation_id)

    # -- what it tells -------------------------------------------------------------------------------------------------

    @property
    def room(self) -> Room:
        """What is free now."""
        if self._room is None:
            self._room = self.new_room(self.snapshot.agents.values(), self.snapshot.grants.values())
        return self._room

    def new_room(self, agents: Iterable[AgentSlots], grants: Iterable[Grant] = ()) -> Room:
        """Room on agents, as this pool's settings fit requests into it."""
        settings = self.settings
        return Room(
            agents,
            grants,
            fitting=settings.fitting_policy,
            mixed=settings.allow_heterogeneous_fits,
            max_aux=settings.max_aux_containers_per_agent,
        )

    @property
    def held_slots(self) -> int:
        """Slots that are held now."""
        return sum(self._held.values())

    def slots_of_job(self, job_id: str) -> int:
        """Slots that the job holds now."""
        return self._held.get(job_id, 0)

    def grants_on(self, agent_id: str) -> list[Grant]:
        """What is held on an agent, also if on others too."""
        return [self.snapshot.grants[each] for each in self._held_on.get(agent_id, ())]

    def is_capped(self, request: Request, more: int = 0) -> bool:
        """Whether `max_slots` keeps the request waiting, if its job held `more` slots beyond those of now."""
        cap = request.claim.max_slots
        return cap is not None and request.slots > 0 and self.slots_of_job(request.job_id) + more + request.slots > cap

    def fits_ever(self, request: Request) -> bool:
        """Whether the pool's agents could hold the request, all idle, in reach and in service."""
        return self._all.fits(request)

    def fitting(self, *, has_slots: bool | None = None) -> list[Alike[Request]]:
        """Those of the queue that the pool's agents could hold; all, or with slots, or without. Always in one order."""
        return [
            alike
            for shape, of_shape in self.waiting.shapes.items()
            if has_slots in (None, shape.slots > 0) and self.fits_ever(next(iter(of_shape)).sample)
            for alike in of_shape
        ]

    def could_hold(self, request: Request, lost: Iterable[AgentSlots] = ()) -> bool:
        """The same with the agents that were lost, if they came back."""
        if self.fits_ever(request):
            return True
        agents = {agent.agent_id: agent for agent in (*lost, *self.snapshot.agents.values())}
        return self.new_room([agent.at_best() for agent in agents.values()]).fit(request) is not None

    def could_go_on(self, request: Request) -> bool:
        """Whether the pool could hold the request without the agents out of reach, or have nodes launched that do."""
        return self._in_reach.fits(request) or self.could_provide(request)

    def _make_rooms(self) -> None:
        """When they are needed: most of who makes a pool asks for one of them at most."""
        agents, lost = self.snapshot.agents, self._out_of_reach
        self._room: Room | None = None
        self._all = _AtBest(lambda: self.new_room([each.at_best() for each in agents.values()]))
        self._in_reach = _AtBest(
            lambda: self.new_room([each.at_best() for each in agents.values() if each.agent_id not in lost])
        )

    def _line_up(self) -> None:
        """Rank all of them anew."""
        snapshot = self.snapshot
        self.waiting = Line(self.settings, ((request, request) for request in snapshot.queue.values()))
        self.holders = Line(self.settings, ((grant.request, grant) for grant in snapshot.grants.values()))
        for allocation_id, grant in snapshot.grants.items():
            if grant.is_preempting:
                self.note_leaving(allocation_id)

    def could_provide(self, request: Request) -> bool:
        """Whether nodes may be launched that hold the request."""
        provider = self.settings.provider
        return provider is not None and provider.could_hold(request.slots, is_single_node=request.is_single_node)


class Draft:
    """A decision in the making: what starts takes its slots at once, so that the next request sees what is left."""

    def __init__(self, pool: Pool) -> None:
        self.room = pool.room
        self.decision = Decision()
        self._pool = pool
        self._started = Counter[str]()
        self._unfit: set[Shape] = set()
        self._reserved: list[Placement] = []

    def fit(self, request: Request) -> tuple[Placement, ...] | None:
        """Where the request fits now; None if it does not."""
        # Until the decision is done there is ever less room: what did not fit once is not tried again.
        if request.shape in self._unfit:
            return None
        placements = self.room.fit(request)
        if placements is None:
            self._unfit.add(request.shape)
        return placements

    def is_in_vain(self, kind: Kind) -> bool:
        """Whether none of a kind fits any more, of a job that may have as many slots as it likes."""
        return kind.max_slots is None and kind.shape in self._unfit

    def is_capped(self, request: Request) -> bool:
        """Whether its own job's `max_slots` keeps the request waiting, which is no reason for others to wait."""
        if request.claim.max_slots is None:
            return False
        return self._pool.is_capped(request, self._started[request.job_id])

    def slots_of_job(self, job_id: str) -> int:
        """Slots that the job holds, with those that this decision gives it."""
        return self._pool.slots_of_job(job_id) + self._started[job_id]

    def start(self, request: Request, placements: tuple[Placement, ...], *, is_backfilled: bool = False) -> None:
        """Give the request these slots."""
        self.room.take(placements)
        self._started[request.job_id] += request.slots
        self.decision.starts.append(Grant(request=request, placements=placements, is_backfilled=is_backfilled))

    def reserve(self, placements: Iterable[Placement]) -> None:
        """Keep what is free of these slots from those that come later in this decision."""
        self._reserved += self.room.take_free(placements)

    def leave(self, grant: Grant, reason: str) -> None:
        """Ask a holder to give its slots back."""
        self.decision.leaves.append(Leave(allocation_id=grant.request.allocation_id, reason=reason))

    def done(self) -> Decision:
        """The decision. What was reserved is free again: the next decision begins anew."""
        self.room.give(self._reserved)
        self._reserved = []
        return self.decision
