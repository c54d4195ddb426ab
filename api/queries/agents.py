"""Agents and their slots, as clients receive them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_tasks, visible_pools, with_trials
from api.errors import BadRequest, NotFound
from api.schemas.base import rfc3339
from database.models import Agent, Allocation, AllocationContainer, ResourcePool, Task
from workflows.scheduling.topology import Topology

_KINDS = {"cpu": "TYPE_CPU", "cuda": "TYPE_CUDA"}


@dataclass(frozen=True)
class Holder:
    """An allocation. If its reader may not see whose it is, all but its state is hidden behind an id of its own."""

    id: str
    task_id: str
    state: str
    is_hidden: bool


@dataclass(frozen=True)
class Holders:
    """Which allocation holds each slot, and which sit on an agent without one."""

    by_slot: dict[tuple[str, int], Holder]
    without_slots: dict[str, list[Holder]]


def find(session: Session, agent_id: str) -> Agent:
    """The row of an agent that operators may change. Raises: NotFound; BadRequest, for a node of a cluster."""
    row = session.get(Agent, agent_id)
    if row is not None:
        return row
    cluster = _cluster_of(session, agent_id)
    if cluster is not None:
        raise BadRequest(
            f"agent {agent_id!r} is a node of the cluster of agent {cluster.id!r}: it can be disabled and enabled as a"
            " whole only, and goes with its agent"
        )
    raise NotFound(f"agent {agent_id!r} not found")


def visible(user: UserPrincipal) -> ColumnElement[bool]:
    """Whether a user may see an agent, as a condition: who may not see its pool does not."""
    return Agent.pool.not_in(select(ResourcePool.name).where(~visible_pools(user)))


def shown(session: Session, agent_id: str, user: UserPrincipal) -> Agent:
    """An agent, or a node of a cluster, as lists have it. Raises: NotFound."""
    row = session.get(Agent, agent_id) or _cluster_of(session, agent_id)
    if row is not None and session.scalar(select(Agent.id).where(Agent.id == row.id, visible(user))) is None:
        row = None
    found = next((each for each in listed([row]) if each.id == agent_id), None) if row is not None else None
    if found is None:
        raise NotFound(f"agent {agent_id!r} not found")
    return found


def node_of(session: Session, agent_id: str) -> tuple[Agent, dict[str, Any]] | None:
    """The agent of the cluster that has a node of this name, and the node as it reported it; None: there is none."""
    row = None if session.get(Agent, agent_id) is not None else _cluster_of(session, agent_id)
    return None if row is None else (row, next(each for each in row.nodes if each["name"] == agent_id))


def listed(rows: Iterable[Agent]) -> list[Agent]:
    """Agents as they are listed: behind one that stands for a cluster come its nodes, which have its slots.

    What stands for a cluster or for a node is made for the list: changes of it are not stored.
    """
    return [each for row in rows for each in ([row] if row.slots_per_pod is None else _of_cluster(row))]


def _of_cluster(row: Agent) -> Iterator[Agent]:
    common: dict[str, Any] = {
        "pool": row.pool,
        "is_connected": row.is_connected,
        "disabled_slots": [],
        "broken_slots": {},
        "topology": {},
        "registered_at": row.registered_at,
        "version": row.version,
        "launcher": row.launcher,
    }
    yield Agent(
        id=row.id,
        address=row.address,
        slot_ids=[],
        is_enabled=row.is_enabled,
        is_draining=row.is_draining,
        labels=row.labels | {"nodes": str(len(row.nodes))},
        devices=row.devices,
        **common,
    )
    for node in row.nodes:
        yield Agent(
            id=node["name"],
            address=node["address"],
            slot_ids=list(range(node["slots"])),
            is_enabled=row.is_enabled and node["is_open"],
            is_draining=node["is_cordoned"] or node.get("service") == "drain",
            labels={"cluster": row.id},
            devices=row.devices * node["slots"],
            **common,
        )


def _cluster_of(session: Session, node: str) -> Agent | None:
    rows = session.scalars(select(Agent).where(Agent.slots_per_pod.is_not(None)).order_by(Agent.id))
    return next((row for row in rows if any(each["name"] == node for each in row.nodes)), None)


def slot_of(row: Agent, slot_id: str) -> int:
    """The number of a slot that the agent has. Raises: NotFound."""
    if slot_id not in {str(slot) for slot in row.slot_ids}:
        known = ", ".join(str(slot) for slot in row.slot_ids) or "none"
        raise NotFound(f"agent {row.id!r} has no slot {slot_id!r} (it has: {known})")
    return int(slot_id)


def holders(session: Session, user: UserPrincipal) -> Holders:
    """Who holds what at present, as far as the user may know."""
    hosts = set(session.scalars(select(Agent.id)))
    by_slot = _of_others(session, hosts)
    without_slots: dict[str, list[Holder]] = {}
    nodes, taken = _nodes(session, hosts), Counter[str]()
    # columns, not rows of the mapper: all that runs is read for a list of agents
    columns = Allocation.id, Allocation.task_id, Allocation.state, Allocation.placements
    statement = (
        with_trials(
            select(*columns, AllocationContainer.token_hash, readable_tasks(user)).join(
                Task, Task.id == Allocation.task_id
            )
        )
        .outerjoin(
            AllocationContainer, and_(AllocationContainer.allocation_id == Allocation.id, AllocationContainer.rank == 0)
        )
        .where(Allocation.ended_at.is_(None))
    )
    for allocation_id, task_id, state, placements, secret, is_readable in session.execute(statement).tuples():
        holder = Holder(allocation_id, task_id, state, is_hidden=False)
        if not is_readable:
            id_ = hashlib.sha256(f"{secret} {allocation_id}".encode()).hexdigest()[:32]
            holder = Holder(id_, "", state, is_hidden=True)
        for place in placements:
            node = nodes.get((allocation_id, place["rank"]), "")
            if not place["slot_ids"]:
                without_slots.setdefault(node or place["agent_id"], []).append(holder)
            first = taken[node]  # a cluster's slots are counted: which of them a pod has, nobody says
            slots = range(first, first + len(place["slot_ids"])) if node else place["slot_ids"]
            for slot_id in slots:
                by_slot[node or place["agent_id"], slot_id] = holder
            taken[node] += len(slots) if node else 0
    return Holders(by_slot, without_slots)


def _nodes(session: Session, hosts: Collection[str]) -> dict[tuple[str, int], str]:
    """The nodes of containers of open allocations, by allocation and rank; none that has the name of a host.

    An agent says itself which nodes it has: it must not show as used what another agent has.
    """
    container = AllocationContainer
    statement = (
        select(container.allocation_id, container.rank, container.node)
        .join(Allocation, Allocation.id == container.allocation_id)
        .where(Allocation.ended_at.is_(None), container.node != "")
    )
    rows = session.execute(statement).tuples()
    return {(allocation_id, rank): node for allocation_id, rank, node in rows if node not in hosts}


def _of_others(session: Session, hosts: Collection[str]) -> dict[tuple[str, int], Holder]:
    """Slots of nodes that pods of others use: the last ones of each. None of what has the name of a host."""
    holder = Holder("pods-of-others", "", "RUNNING", is_hidden=True)
    rows = session.scalars(select(Agent).where(Agent.slots_per_pod.is_not(None)))
    return {
        (node["name"], slot): holder
        for row in rows
        for node in row.nodes
        if node["name"] not in hosts
        for slot in range(node["slots"] - node["foreign"], node["slots"])
    }


def agent(
    row: Agent, held: Holders, version: str, *, with_slots: bool = True, with_containers: bool = True
) -> dict[str, Any]:
    """v1Agent."""
    slots = {str(slot_id): slot(row, slot_id, held) for slot_id in row.slot_ids}
    running = [held.by_slot[row.id, slot_id] for slot_id in row.slot_ids if (row.id, slot_id) in held.by_slot]
    allocations = {each.id: each for each in (*running, *held.without_slots.get(row.id, ()))}
    stats = {
        "total": len(slots),
        "disabled": sum(not each["enabled"] for each in slots.values()),
        "draining": sum(each["draining"] for each in slots.values()),
        "states": {"STATE_RUNNING": len(running)},
    }
    return {
        "id": row.id,
        "registeredTime": row.registered_at,
        "slots": slots if with_slots else {},
        "containers": {id_: _container(each) for id_, each in allocations.items()} if with_containers else {},
        "resourcePools": [row.pool],
        "addresses": [row.address] if row.address else [],
        "enabled": row.is_connected and row.is_enabled,
        "draining": row.is_draining,
        "version": row.version or version,
        "label": label(row),
        "labels": row.labels,
        "slotStats": {"typeStats": {_KINDS[_device_of(row, 0)["kind"]]: stats}, "brandStats": {}},
    }


def slot(row: Agent, slot_id: int, held: Holders) -> dict[str, Any]:
    """v1Slot."""
    holder = held.by_slot.get((row.id, slot_id))
    problem = row.broken_slots.get(str(slot_id), "")
    return {
        "id": str(slot_id),
        "enabled": row.is_connected and row.is_enabled and slot_id not in row.disabled_slots and not problem,
        "draining": row.is_draining and (not row.is_enabled or slot_id in row.disabled_slots),
        "device": device(row, slot_id),
        "container": None if holder is None else _container(holder),
        "problem": problem,
        "groups": Topology.model_validate(row.topology).of(slot_id),
    }


def device(row: Agent, slot_id: int) -> dict[str, Any]:
    """v1Device."""
    found = _device_of(row, slot_id)
    return {
        "id": slot_id,
        "brand": found["brand"],
        "uuid": found["uuid"] or f"{row.id}-{slot_id}",
        "type": _KINDS[found["kind"]],
    }


def label(row: Agent) -> str:
    """What it says of itself, in one line; first what is wrong."""
    broken = [f"slot {slot} is in error: {problem}" for slot, problem in sorted(row.broken_slots.items())]
    return ", ".join([*broken, *(f"{key}={value}" for key, value in sorted(row.labels.items()))])


def _device_of(row: Agent, slot_id: int) -> dict[str, str]:
    return row.devices[slot_id] if slot_id < len(row.devices) else {"kind": "cpu", "uuid": "", "brand": ""}


def _container(holder: Holder) -> dict[str, Any]:
    return {
        "id": holder.id,
        "parent": holder.task_id,
        "state": f"STATE_{holder.state}",
        "devices": [],
        "permissionDenied": holder.is_hidden,
    }


def agent_of_old(row: Agent, held: Holders, version: str) -> dict[str, Any]:
    """An agent as clients up to 0.21 read it from `/agents`."""
    shown = agent(row, held, version)
    slots = {
        slot_id: {
            "id": slot_id,
            "enabled": each["enabled"],
            "draining": each["draining"],
            "container": None if each["container"] is None else {"id": each["container"]["id"]},
            "device": each["device"] | {"type": _device_of(row, int(slot_id))["kind"]},
        }
        for slot_id, each in shown["slots"].items()
    }
    return {
        "id": row.id,
        "slots": slots,
        "resource_pool": row.pool,
        "registered_time": rfc3339(row.registered_at),
        "num_containers": len(shown["containers"]),
        "label": shown["label"],
        "addresses": row.address,
        "version": shown["version"],
        "enabled": shown["enabled"],
        "draining": shown["draining"],
    }
