"""Agents and their slots, as clients receive them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_tasks, with_trials
from api.errors import NotFound
from api.schemas.base import rfc3339
from database.models import Agent, Allocation, AllocationContainer, Task

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
    """The row. Raises: NotFound."""
    row = session.get(Agent, agent_id)
    if row is None:
        raise NotFound(f"agent {agent_id!r} not found")
    return row


def slot_of(row: Agent, slot_id: str) -> int:
    """The number of a slot that the agent has. Raises: NotFound."""
    if slot_id not in {str(slot) for slot in row.slot_ids}:
        known = ", ".join(str(slot) for slot in row.slot_ids) or "none"
        raise NotFound(f"agent {row.id!r} has no slot {slot_id!r} (it has: {known})")
    return int(slot_id)


def holders(session: Session, user: UserPrincipal) -> Holders:
    """Who holds what at present, as far as the user may know."""
    by_slot: dict[tuple[str, int], Holder] = {}
    without_slots: dict[str, list[Holder]] = {}
    statement = (
        with_trials(
            select(Allocation, AllocationContainer.token_hash, readable_tasks(user)).join(
                Task, Task.id == Allocation.task_id
            )
        )
        .outerjoin(
            AllocationContainer, and_(AllocationContainer.allocation_id == Allocation.id, AllocationContainer.rank == 0)
        )
        .where(Allocation.ended_at.is_(None))
    )
    for allocation, secret, is_readable in session.execute(statement).tuples():
        holder = Holder(allocation.id, allocation.task_id, allocation.state, is_hidden=False)
        if not is_readable:
            id_ = hashlib.sha256(f"{secret} {allocation.id}".encode()).hexdigest()[:32]
            holder = Holder(id_, "", allocation.state, is_hidden=True)
        for place in allocation.placements:
            if not place["slot_ids"]:
                without_slots.setdefault(place["agent_id"], []).append(holder)
            for slot_id in place["slot_ids"]:
                by_slot[place["agent_id"], slot_id] = holder
    return Holders(by_slot, without_slots)


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
    return {
        "id": str(slot_id),
        "enabled": row.is_connected and row.is_enabled and slot_id not in row.disabled_slots,
        "draining": row.is_draining and (not row.is_enabled or slot_id in row.disabled_slots),
        "device": device(row, slot_id),
        "container": None if holder is None else _container(holder),
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
    """What it says of itself, in one line."""
    return ", ".join(f"{key}={value}" for key, value in sorted(row.labels.items()))


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
