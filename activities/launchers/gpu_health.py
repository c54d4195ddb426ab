"""Which GPUs of this host are in error, by NVML: one that is lost, or about which the driver reports a critical error.

Source: NVML API reference, "Event Handling Methods"; NVIDIA, "Xid Errors".
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from activities.launchers.devices import Device

#: Xid errors that a program brings upon itself: its own fault or end, and no word about the GPU.
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
_LONGEST = 200


class GpuHealth:
    """Looks at the GPUs that this agent offers.

    Args:
        nvml: NVIDIA's library; None: this host has no GPU.
        devices: Of the slots, by their number.
    """

    def __init__(self, nvml: Any, devices: Sequence[Device]) -> None:
        self._nvml = nvml
        self._slots = {
            slot: device.uuid for slot, device in enumerate(devices) if device.kind == "cuda" and device.uuid
        }
        self._lock = threading.Lock()
        #: How often the driver has reported each Xid since this process began, by the GPU's UUID and the Xid.
        self.xids: Counter[tuple[str, int]] = Counter()
        self._reported: dict[str, str] = {}  # critical errors: they stay until this process starts anew
        self._events: Any = None
        if nvml is not None and self._slots:
            self._events = nvml.nvmlEventSetCreate()
            for uuid in self._slots.values():
                # a part of a GPU has no events; one that is lost is seen below
                with contextlib.suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)

    @property
    def is_needed(self) -> bool:
        """Whether there is a GPU to look at."""
        return self._events is not None

    def broken(self) -> Mapping[int, str]:
        """The slots that can't be used, and why. Blocks for milliseconds."""
        if self._events is None:
            return {}
        with self._lock:
            self._take_events()
        found = {slot: self._reported.get(uuid) or self._problem_of(uuid) for slot, uuid in self._slots.items()}
        return {slot: problem[:_LONGEST] for slot, problem in found.items() if problem}

    def _take_events(self) -> None:
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                return  # there is no more, or no answer: each GPU is asked below what is wrong with it
            if event.eventType != nvml.nvmlEventTypeXidCriticalError:
                continue
            uuid = nvml.nvmlDeviceGetUUID(event.device)
            uuid = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            self.xids[uuid, int(event.eventData)] += 1
            if event.eventData not in _OF_PROGRAMS:
                self._reported[uuid] = f"Xid {event.eventData}: the driver reports a critical error"

    def _problem_of(self, uuid: str) -> str:
        nvml = self._nvml
        try:
            nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
        except nvml.NVMLError as error:
            return f"NVML: {error}"
        return ""
