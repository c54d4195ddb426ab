"""Which GPUs are in error, by an NVML that is made up: there is no GPU to break."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from activities.launchers.devices import Device
from activities.launchers.gpu_health import GpuHealth

SLOTS = [Device(kind="cuda", uuid=f"GPU-{number}") for number in range(3)]


class Nvml:
    """As the bindings: GPUs that may be lost, and events that wait."""

    nvmlEventTypeXidCriticalError = 8

    class NVMLError(Exception):
        """The base of all."""

    class NVMLError_Timeout(NVMLError):
        """No event waits."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.events: list[tuple[str, int]] = []
        self.watched: list[str] = []

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid in self.lost:
            raise self.NVMLError("GPU is lost")
        return uuid

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: str) -> None:
        assert (kinds, events) == (8, "set")
        self.watched.append(handle)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> object:
        return object()

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        if not self.events:
            raise self.NVMLError_Timeout
        handle, xid = self.events.pop(0)
        return SimpleNamespace(device=handle, eventType=8, eventData=xid)


def test_gpu_that_is_lost_is_broken_until_it_is_back() -> None:
    nvml = Nvml()
    health = GpuHealth(nvml, SLOTS)
    assert nvml.watched == ["GPU-0", "GPU-1", "GPU-2"]
    assert health.broken() == {}
    nvml.lost = {"GPU-1"}
    assert health.broken() == {1: "NVML: GPU is lost"}
    nvml.lost = set()
    assert health.broken() == {}


def test_critical_error_of_the_driver_stays_and_one_of_a_program_is_none() -> None:
    nvml = Nvml()
    health = GpuHealth(nvml, SLOTS)
    nvml.events = [("GPU-0", 31), ("GPU-2", 79)]
    assert health.broken() == {2: "Xid 79: the driver reports a critical error"}
    assert health.broken() == {2: "Xid 79: the driver reports a critical error"}, "it is not asked twice, and stays"
    assert health.xids == {("GPU-0", 31): 1, ("GPU-2", 79): 1}


def test_gpu_that_is_lost_from_the_start_is_broken_and_cores_never_are() -> None:
    nvml = Nvml()
    nvml.lost = {"GPU-0"}
    health = GpuHealth(nvml, [SLOTS[0], Device(), SLOTS[1]])
    assert nvml.watched == ["GPU-1"]
    assert health.broken() == {0: "NVML: GPU is lost"}
    assert not GpuHealth(None, SLOTS).is_needed
    assert not GpuHealth(nvml, [Device()]).is_needed
    assert GpuHealth(None, SLOTS).broken() == {}
