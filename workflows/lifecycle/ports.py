"""Ports by which the processes of an allocation meet. Source: spec container-contract.md §2 and §7.

Slots of a host are held by one allocation at a time, so the smallest slot id of its chief parts the ports of
allocations without any bookkeeping, and releases them with the slots. Only the host itself knows what else listens
there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

#: Read by horovod's and deepspeed's sshd, for the two sockets of DistributedContext's chief, by torch's rendezvous.
NAMES = ("DTRAIN_SSH_PORT", "INTER_TRAIN_PROCESS_COMM_PORT_1", "INTER_TRAIN_PROCESS_COMM_PORT_2", "C10D_PORT")
#: Below what systems give to outgoing connections (from 32768 on), above what services like to listen on.
_FIRST = 12400
_BLOCKS = 2048
_TRIES = 64


def ports_of(cluster_id: str, allocation_id: str, slot_ids: Sequence[int]) -> dict[str, int]:
    """Environment variable to port. The same for all containers of an allocation.

    Args:
        cluster_id: Where its first slot's ports begin: a host that two clusters share has the same slots in both, and
            a job listens only seconds after the host found its ports free.
        allocation_id: Whose ports.
        slot_ids: The slots of its chief on the chief's host. Without any, the id decides, beyond the ports of slots.
    """
    if not slot_ids:
        return other_ports(f"{cluster_id} {allocation_id}", 0)
    return _block((zlib.crc32(cluster_id.encode()) + min(slot_ids)) % _BLOCKS)


def other_ports(allocation_id: str, attempt: int) -> dict[str, int]:
    """Ports that no allocation has by its slots, for one whose own ports another process on the host has taken."""
    return _block(_BLOCKS + zlib.crc32(f"{allocation_id} {attempt}".encode()) % _BLOCKS)


def free_ports(allocation_id: str, wanted: dict[str, int], is_free: Callable[[int], bool]) -> dict[str, int]:
    """The wanted ones if nobody else listens on one of them, else others; in the end the wanted ones all the same."""
    if all(map(is_free, wanted.values())):
        return wanted
    for attempt in range(_TRIES):
        others = other_ports(allocation_id, attempt)
        if all(map(is_free, others.values())):
            return others
    return wanted


def _block(number: int) -> dict[str, int]:
    return {name: _FIRST + number * len(NAMES) + place for place, name in enumerate(NAMES)}
