"""How the GPUs of this host are joined, by NVML: NVLink, PCIe, NUMA.

Source: NVML API reference, "Device Queries": nvmlDeviceGetP2PStatus, nvmlDeviceGetTopologyCommonAncestor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import structlog

from activities.launchers.devices import Device
from workflows.scheduling.topology import Topology

log = structlog.get_logger()


def topology_of(nvml: Any, devices: Sequence[Device]) -> Topology:
    """Which slots are close to each other. `nvml`: NVIDIA's library; None: this host has no GPU.

    What a driver does not tell of two GPUs, they do not have: nothing here raises.
    """
    slots = {slot: device.uuid for slot, device in enumerate(devices) if device.kind == "cuda" and device.uuid}
    if nvml is None or len(slots) < 2:
        return Topology()
    try:
        whole = {slot: _whole(nvml, uuid) for slot, uuid in slots.items()}
    except nvml.NVMLError as error:
        log.info("the topology of the GPUs is not known", error=str(error))
        return Topology()

    def has_link(one: int, other: int) -> bool:
        if slots[one].startswith("MIG-") or slots[other].startswith("MIG-"):
            return False  # parts of GPUs can't reach each other, also where the GPUs can
        status = nvml.nvmlDeviceGetP2PStatus(whole[one], whole[other], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        return status == nvml.NVML_P2P_STATUS_OK

    def within(level: int) -> Callable[[int, int], bool]:
        return lambda one, other: (
            whole[one] == whole[other]
            or nvml.nvmlDeviceGetTopologyCommonAncestor(whole[one], whole[other]) <= level
        )  # fmt: skip

    return Topology(
        nvlink=_groups(nvml, list(slots), has_link),
        pcie=_groups(nvml, list(slots), within(nvml.NVML_TOPOLOGY_HOSTBRIDGE)),
        numa=_groups(nvml, list(slots), within(nvml.NVML_TOPOLOGY_NODE)),
    )


def _whole(nvml: Any, uuid: str) -> Any:
    """The GPU by its UUID, or the one that this is a part of. Raises: NVMLError."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    if not uuid.startswith("MIG-"):
        return handle
    whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(whole))


def _groups(nvml: Any, slots: Sequence[int], is_close: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
    """Groups of two and more, each slot close to another one of its group: joined over a third is joined."""
    group_of = {slot: {slot} for slot in slots}
    for one, other in combinations(slots, 2):
        if group_of[one] is group_of[other]:
            continue
        try:
            if not is_close(one, other):
                continue
        except nvml.NVMLError:
            continue
        group_of[one] |= group_of[other]
        for slot in group_of[other]:
            group_of[slot] = group_of[one]
    found = {tuple(sorted(group)) for group in group_of.values() if len(group) > 1}
    return tuple(sorted(found))
