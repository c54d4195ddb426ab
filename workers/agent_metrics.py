"""What Prometheus reads from an agent: what its containers use, and how its GPUs are. docs/monitoring.md lists it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from activities.launchers.base import SLOTS, Launcher, Usage
from activities.launchers.devices import Device
from activities.launchers.gpu_health import GpuHealth
from workflows.scheduling.topology import Topology

log = structlog.get_logger()

#: Seconds for which one look serves all who ask: scrapes can't load the host.
_FRESH_S = 5.0
_LONGEST_S = 5.0
_CONTAINER, _GPU = ["agent", "pool", "allocation_id", "rank"], ["agent", "pool", "slot", "uuid"]


class HostMetrics(Collector):
    """The metrics of one agent.

    Args:
        launcher: Of its containers.
        nvml: NVIDIA's library; None: this host has no GPU.
        devices: Of its slots.
        gpus: Their errors.
        topology: How they are joined.
        where: The agent's id and its pool.
    """

    def __init__(
        self,
        launcher: Launcher,
        nvml: Any,
        devices: Sequence[Device],
        gpus: GpuHealth,
        topology: Topology,
        where: tuple[str, str],
    ) -> None:
        self._launcher, self._nvml, self._gpus, self._topology, self._where = launcher, nvml, gpus, topology, where
        is_there = nvml is not None
        self._devices = {n: each for n, each in enumerate(devices) if is_there and each.kind == "cuda" and each.uuid}
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._cpu: dict[str, float] = {}  # by container: a counter never goes back, also when a process of it ends
        self._found: list[Metric] = []
        self._looked_at = -_FRESH_S
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """None: what there is depends on the host."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """What was seen at most `_FRESH_S` ago. Called in the thread that serves it."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _FRESH_S:
                self._found = [*self._containers(), *self._slots()]
                self._looked_at = time.monotonic()
            return self._found

    def _containers(self) -> Iterable[Metric]:
        looking = asyncio.run_coroutine_threadsafe(self._usage(), self._loop)
        try:
            held, used = looking.result(_LONGEST_S)
        except Exception as error:  # noqa: BLE001 -- whatever the engine of a launcher says: GPUs are measured all the same
            looking.cancel()
            log.warning("metrics of containers are left out", reason=str(error) or type(error).__name__)
            return
        cpu = CounterMetricFamily(
            "undeterred_container_cpu_seconds", "Seconds of processors since a container's start", labels=_CONTAINER
        )
        memory = GaugeMetricFamily("undeterred_container_memory_bytes", "Memory of a container", labels=_CONTAINER)
        slots = GaugeMetricFamily("undeterred_container_slots", "Slots that a container has", labels=_CONTAINER)
        for container_id, count in held.items():
            slots.add_metric(self._container(container_id), count)
        self._cpu = {name: max(each.cpu_s, self._cpu.get(name, 0.0)) for name, each in used.items()}
        for container_id, each in used.items():
            cpu.add_metric(self._container(container_id), self._cpu[container_id])
            memory.add_metric(self._container(container_id), each.memory_bytes)
        yield from (slots, cpu, memory)

    async def _usage(self) -> tuple[Mapping[str, int], Mapping[str, Usage]]:
        running = [each for each in await self._launcher.list() if each.running]
        held = {
            each.container_id: len([slot for slot in each.labels.get(SLOTS, "").split(",") if slot]) for each in running
        }
        used = await asyncio.gather(*(self._launcher.usage(each.container_id) for each in running))
        return held, {each.container_id: usage for each, usage in zip(running, used, strict=True) if usage is not None}

    def _container(self, container_id: str) -> list[str]:
        allocation_id, _, rank = container_id.rpartition("-")
        return [*self._where, allocation_id, rank]

    def _slots(self) -> Iterable[Metric]:
        broken = self._gpus.broken()
        errors = GaugeMetricFamily(
            "undeterred_gpu_in_error", "1 if a GPU is in error and not offered, else 0", labels=_GPU
        )
        for slot, device in self._devices.items():
            errors.add_metric(self._slot(slot, device.uuid), float(slot in broken))
        xids = CounterMetricFamily(
            "undeterred_gpu_xids", "Xid errors that the driver has reported", labels=[*_GPU, "xid"]
        )
        numbers = {device.uuid: slot for slot, device in self._devices.items()}
        for (uuid, xid), count in self._gpus.xids.items():
            if uuid in numbers:
                xids.add_metric([*self._slot(numbers[uuid], uuid), str(xid)], count)
        joined = GaugeMetricFamily(
            "undeterred_gpu_group",
            "1: the GPU is of this group, whose members are so joined",
            labels=[*_GPU, "by", "group"],
        )
        for by, groups in self._topology.model_dump().items():
            for number, group in enumerate(groups):
                for slot in group:
                    if slot in self._devices:
                        joined.add_metric([*self._slot(slot, self._devices[slot].uuid), by, str(number)], 1)
        yield from (errors, xids, joined)
        for name, told, read in _READINGS:
            family = GaugeMetricFamily(f"undeterred_gpu_{name}", told, labels=_GPU)
            for slot, device in self._devices.items():
                with contextlib.suppress(self._nvml.NVMLError):  # lost, or a part of a GPU, which has no such counter
                    handle = self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
                    family.add_metric(self._slot(slot, device.uuid), read(self._nvml, handle))
            yield family

    def _slot(self, slot: int, uuid: str) -> list[str]:
        return [*self._where, str(slot), uuid]


def _power(nvml: Any, handle: Any) -> float:
    return nvml.nvmlDeviceGetPowerUsage(handle) / 1000


def _ecc(nvml: Any, handle: Any) -> float:
    return nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)


_READINGS: Sequence[tuple[str, str, Callable[[Any, Any], float]]] = (
    ("utilization_ratio", "Share of the time in which a GPU worked",
     lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
    ("memory_used_bytes", "Memory of a GPU that is used",
     lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used),
    ("memory_bytes", "Memory of a GPU", lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).total),
    ("temperature_celsius", "Temperature of a GPU",
     lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    ("power_watts", "Power that a GPU draws", _power),
    ("ecc_errors_uncorrected", "Memory errors since the driver's start that were not corrected", _ecc),
)  # fmt: skip
