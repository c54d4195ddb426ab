"""What is free on the agents of a pool, kept so that a place is found without looking at each of them.

Fitting rules: spec scheduling.md §2 (shared, dedicated, heterogeneous; scores; distance by hash).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from copy import copy
from functools import lru_cache
from itertools import islice

from workflows.scheduling.model import AgentSlots, Grant, Placement, Request
from workflows.scheduling.settings import DEFAULT_MAX_AUX, Fitting
from workflows.scheduling.topology import Topology

#: An agent's free slots, and its slots in service: all that a score knows of it.
_Size = tuple[int, int]


class Room:
    """Free slots, and free places for allocations without slots, on the agents that take anything new.

    Args:
        agents: of the pool. Those that are away or out of service offer nothing.
        grants: that hold slots of them.
        fitting: which of the agents with room enough is taken.
        mixed: whether an allocation may take agents of different sizes.
        max_aux: allocations without slots that an agent takes, unless it says so itself.
    """

    def __init__(
        self,
        agents: Iterable[AgentSlots],
        grants: Iterable[Grant] = (),
        *,
        fitting: Fitting,
        mixed: bool = False,
        max_aux: int = DEFAULT_MAX_AUX,
    ) -> None:
        self._fitting = fitting
        self._mixed = mixed
        self._usual_aux = max_aux
        self._serving: dict[str, list[int]] = {}
        self._free: dict[str, list[int]] = {}
        self._max_aux: dict[str, int] = {}
        self._aux: dict[str, int] = {}
        self._clusters: dict[str, int] = {}
        self._topologies: dict[str, Topology] = {}
        for agent in agents:
            if agent.is_open:
                self._note(agent)
        for grant in grants:
            for place in grant.placements:
                if place.agent_id in self._free:
                    self._take_of(place)
        # agents of a size by their hash, ascending: who is next to a request is found by bisection
        self._rings: dict[_Size, list[tuple[int, str]]] = defaultdict(list)
        for agent_id in self._free.keys() - self._clusters.keys():
            self._rings[self._size(agent_id)].append(_entry(agent_id))
        for ring in self._rings.values():
            ring.sort()
        self._sizes = sorted((self._cost(size), size) for size in self._rings)  # those that are preferred come first

    def _note(self, agent: AgentSlots) -> None:
        name = agent.agent_id
        self._serving[name] = agent.serving_slots
        self._free[name] = list(self._serving[name])
        self._max_aux[name] = self._usual_aux if agent.max_zero_slot is None else agent.max_zero_slot
        self._aux[name] = self._max_aux[name]
        if agent.slots_per_pod is not None:
            self._clusters[name] = agent.slots_per_pod
        if agent.topology.levels:
            self._topologies[name] = agent.topology

    def put(self, agent: AgentSlots, grants: Iterable[Grant] = ()) -> None:
        """An agent joins, or offers something else than before; with what is held on it. Not for copies."""
        name = agent.agent_id
        self.drop(name)
        if not agent.is_open:
            return
        self._note(agent)
        for place in (place for grant in grants for place in grant.placements if place.agent_id == name):
            self._take_of(place)
        if name not in self._clusters:
            self._enter(name)

    def drop(self, agent_id: str) -> None:
        """An agent is gone; nothing happens if it was not there. Not for copies."""
        if agent_id not in self._free:
            return
        if agent_id not in self._clusters:
            self._leave(agent_id, self._size(agent_id))
        known = self._serving, self._free, self._max_aux, self._aux, self._clusters, self._topologies
        for each in known:
            each.pop(agent_id, None)

    def copy(self) -> Room:
        """The same room, to be tried out: what is taken and given there changes nothing here."""
        twin = copy(self)
        twin._free, twin._aux = dict(self._free), dict(self._aux)
        twin._rings = defaultdict(list, {size: list(ring) for size, ring in self._rings.items()})
        twin._sizes = list(self._sizes)
        return twin

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        of_hosts = sum(size[0] * len(ring) for size, ring in self._rings.items())
        return of_hosts + sum(len(self._free[agent_id]) for agent_id in self._clusters)

    def free_aux(self, request: Request) -> int:
        """Allocations without slots for which there is still room on agents that a request may have."""
        return sum(max(0, count) for agent_id, count in self._aux.items() if agent_id not in request.excluded_agents)

    def free_of(self, agent_id: str) -> int:
        """Slots of the agent that nobody holds."""
        return len(self._free.get(agent_id, ()))

    def fit(self, request: Request) -> tuple[Placement, ...] | None:
        """Where the request fits now, its chief (rank 0) on the largest part; None if it does not. Takes nothing."""
        if request.slots == 0:
            return self._fit_without_slots(request)
        shared = self._shared(request)
        if shared is not None:
            return (Placement(agent_id=shared, slot_ids=self._chosen(shared, request.slots)),)
        if (pods := self._fit_into_cluster(request)) is not None:
            return pods
        if request.slots < 2 or request.is_single_node:
            return None
        chosen = self._dedicated(request)
        if chosen is None:
            return None
        return tuple(
            Placement(agent_id=agent_id, slot_ids=tuple(self._free[agent_id]), rank=rank)
            for rank, agent_id in enumerate(chosen)
        )

    def take(self, placements: Iterable[Placement]) -> None:
        """The slots are held from now on. Of those that are held already, nothing changes."""
        for place in placements:
            if place.agent_id in self._free:
                before = self._size(place.agent_id)
                self._take_of(place)
                self._file(place.agent_id, before)

    def take_free(self, placements: Iterable[Placement]) -> list[Placement]:
        """Take what is free of these slots, and tell what that was."""
        taken = [
            place.model_copy(update={"slot_ids": slots})
            for place in placements
            if (slots := tuple(set(place.slot_ids) & set(self._free.get(place.agent_id, ()))))
        ]
        self.take(taken)
        return taken

    def give(self, placements: Iterable[Placement]) -> None:
        """The slots are free again, where they are in service."""
        for place in placements:
            if place.agent_id in self._free:
                before = self._size(place.agent_id)
                self._give_of(place)
                self._file(place.agent_id, before)

    # -- keeping count -------------------------------------------------------------------------------------------------

    def _size(self, agent_id: str) -> _Size:
        return len(self._free[agent_id]), len(self._serving[agent_id])

    def _cost(self, size: _Size) -> float:
        """The less, the rather is an agent of this size taken."""
        return -_score(self._fitting, *size)

    def _file(self, agent_id: str, before: _Size) -> None:
        if self._size(agent_id) != before and agent_id not in self._clusters:
            self._leave(agent_id, before)
            self._enter(agent_id)

    def _leave(self, agent_id: str, size: _Size) -> None:
        ring = self._rings[size]
        del ring[bisect_left(ring, _entry(agent_id))]
        if not ring:
            del self._rings[size]
            self._sizes.remove((self._cost(size), size))

    def _enter(self, agent_id: str) -> None:
        size = self._size(agent_id)
        if size not in self._rings:
            insort(self._sizes, (self._cost(size), size))
        insort(self._rings[size], _entry(agent_id))

    def _take_of(self, place: Placement) -> None:
        if place.slot_ids:
            held = set(place.slot_ids)
            self._free[place.agent_id] = [slot for slot in self._free[place.agent_id] if slot not in held]
        else:
            self._aux[place.agent_id] -= 1

    def _give_of(self, place: Placement) -> None:
        if place.slot_ids:
            back = set(place.slot_ids) | set(self._free[place.agent_id])
            self._free[place.agent_id] = [slot for slot in self._serving[place.agent_id] if slot in back]
        else:
            self._aux[place.agent_id] += 1

    # -- the rules of fitting ------------------------------------------------------------------------------------------

    def _fit_without_slots(self, request: Request) -> tuple[Placement, ...] | None:
        excluded = request.excluded_agents
        open_ids = [agent_id for agent_id, count in self._aux.items() if count > 0 and agent_id not in excluded]
        if not open_ids:
            return None
        own = _hash(request.allocation_id)
        chosen = min(open_ids, key=lambda a: (-self._aux_score(a), (own - _hash(a)) % 2**64, a))
        return (Placement(agent_id=chosen, slot_ids=()),)

    def _fit_into_cluster(self, request: Request) -> tuple[Placement, ...] | None:
        """A container of each pod, where that many slots are free; which node has them, the cluster decides.

        Pods are equal: a request that is larger than a pod must be a multiple of one. Source: spec kubernetes.md §3.
        """
        for agent_id in sorted(self._clusters, key=lambda each: (-len(self._free[each]), each)):
            size = min(request.slots, self._clusters[agent_id])
            free = self._free[agent_id]
            if agent_id in request.excluded_agents or len(free) < request.slots or size == 0:
                continue
            if request.slots % size == 0 and (request.slots == size or not request.is_single_node):
                return tuple(
                    Placement(agent_id=agent_id, slot_ids=tuple(free[size * rank : size * (rank + 1)]), rank=rank)
                    for rank in range(request.slots // size)
                )
        return None

    def _aux_score(self, agent_id: str) -> float:
        free, most = self._aux[agent_id], self._max_aux[agent_id]
        slots, serving = len(self._free[agent_id]), len(self._serving[agent_id])
        is_idle = slots == serving and free == most
        if not is_idle:
            return _score(self._fitting, slots, serving)
        return 1 / (1 + free) if self._fitting is Fitting.BEST else free / most

    def _shared(self, request: Request) -> str | None:
        if request.closeness is not None and self._topologies:
            agent_id = self._nearest_with_room(request, is_close=True)
            if agent_id is not None or request.closeness == "strong":
                return agent_id
        return self._nearest_with_room(request)

    def _nearest_with_room(self, request: Request, *, is_close: bool = False) -> str | None:
        best: tuple[float, int, str] | None = None
        for cost, size in self._sizes:
            if best is not None and cost > best[0]:
                break
            nearest = None
            if size[0] >= request.slots:
                near = self._near(size, request)
                nearest = next((each for each in near if not is_close or self._is_close(each[1], request.slots)), None)
            if nearest is not None:
                best = min(best or (cost, *nearest), (cost, *nearest))
        return best[2] if best else None

    def _chosen(self, agent_id: str, count: int) -> tuple[int, ...]:
        return self._topologies.get(agent_id, Topology()).chosen(self._free[agent_id], count)

    def _is_close(self, agent_id: str, count: int) -> bool:
        topology = self._topologies.get(agent_id)
        return topology is None or topology.is_closest(self._free[agent_id], self._serving[agent_id], count)

    def _dedicated(self, request: Request) -> list[str] | None:
        idle = sorted(((size[0], self._count(size, request)) for size in self._rings if _is_idle(size)), reverse=True)
        for size, count in idle:
            wanted, rest = divmod(request.slots, size)
            if rest == 0 and count >= wanted:
                return self._nearest(size, request, wanted)
        if not self._mixed:
            return None
        chosen: list[str] = []
        left = request.slots
        for size, count in idle:
            part = min(left // size, count)
            chosen += self._nearest(size, request, part)
            left -= part * size
        return chosen if left == 0 else None

    def _nearest(self, size: int, request: Request, count: int) -> list[str]:
        """At most `count` idle agents of a size, the nearest first."""
        return [agent_id for _, agent_id in islice(self._near((size, size), request), count)]

    def _count(self, size: _Size, request: Request) -> int:
        """How many agents of a size the request may have."""
        excluded = sum(
            agent_id in self._free and agent_id not in self._clusters and self._size(agent_id) == size
            for agent_id in set(request.excluded_agents)
        )
        return len(self._rings[size]) - excluded

    def _near(self, size: _Size, request: Request) -> Iterator[tuple[int, str]]:
        """The agents of a size that the request does not exclude, the nearest first, with their distance."""
        ring = self._rings.get(size, [])
        own = _hash(request.allocation_id)
        start = bisect_right(ring, (own, "\U0010ffff"))
        for index in range(start - 1, start - 1 - len(ring), -1):
            agent_hash, agent_id = ring[index]
            if agent_id not in request.excluded_agents:
                yield (own - agent_hash) % 2**64, agent_id


def _is_idle(size: _Size) -> bool:
    return size[0] == size[1] > 0


def _score(fitting: Fitting, free: int, serving: int) -> float:
    if fitting is Fitting.BEST:
        return 1 / (1 + free)
    return free / serving if serving else 0.0


def _entry(agent_id: str) -> tuple[int, str]:
    return _hash(agent_id), agent_id


@lru_cache(100_000)
def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little")
