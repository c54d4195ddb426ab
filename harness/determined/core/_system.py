"""Samples of this machine: processor, memory, disk, network (psutil), GPUs (NVML)."""

from __future__ import annotations

import contextlib
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class System:
    """Reads the machine's counters. What can't be read is left out of all samples, and said once.

    Raises:
        ImportError: psutil or nvidia-ml-py is not installed.
    """

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._lacks: set[str] = set()
        self._nvml = nvml()
        self._gpus = {} if self._nvml is None else _gpus(self._nvml)
        self._before: dict[str, tuple[float, ...]] = {}
        psutil.cpu_percent()  # the first call has nothing to compare with
        self.sample()

    def sample(self) -> dict[str, dict[str, Any]]:
        """Group -> name -> value. Rates are those since the sample before."""
        found: dict[str, dict[str, Any]] = {}
        for group, read in (
            ("cpu", self._cpu), ("memory", self._memory), ("disk", self._disk), ("network", self._network),
            ("gpu", self._gpu),
        ):  # fmt: skip
            if group in self._lacks:
                continue
            try:
                values = read()
            except Exception as e:  # noqa: BLE001 - a kernel, a driver or a container that withholds something
                self._lacks.add(group)
                _logger().warning(f"the profiler can't measure {group}: {type(e).__name__}: {e}; the rest goes on")
                continue
            if values:
                found[group] = values
        return found

    def close(self) -> None:
        """Release the driver."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def _cpu(self) -> dict[str, Any]:
        return {"cpu_util_simple": self._psutil.cpu_percent()}

    def _memory(self) -> dict[str, Any]:
        return {"memory_free": self._psutil.virtual_memory().available}

    def _disk(self) -> dict[str, Any]:
        found = self._psutil.disk_io_counters()
        values: dict[str, Any] = {}
        if found is not None:  # a machine without disks
            counters = (found.read_count + found.write_count, found.read_bytes, found.write_bytes)
            names = ("disk_iops", "disk_throughput_read", "disk_throughput_write")
            values = self._rates("disk", names, counters)
        return {**values, "/": {"disk_util": self._psutil.disk_usage("/").percent}}

    def _network(self) -> dict[str, Any]:
        found: Any = self._psutil.net_io_counters()
        if found is None:  # a machine without a network
            return {}
        return self._rates(
            "network", ("net_throughput_sent", "net_throughput_recv"), (found.bytes_sent, found.bytes_recv)
        )

    def _gpu(self) -> dict[str, Any]:
        return {uuid: read() for uuid, read in self._gpus.items()}

    def _rates(self, group: str, names: tuple[str, ...], counters: tuple[int, ...]) -> dict[str, Any]:
        now = time.monotonic()
        before, self._before[group] = self._before.get(group), (now, *counters)
        if before is None or now <= before[0]:
            return {}
        return {
            # a counter that wrapped around, or a device that went away, is no negative rate
            name: max(0.0, (value - old) / (now - before[0]))
            for name, value, old in zip(names, counters, before[1:])
        }


def nvml() -> Any:
    """NVIDIA's management library; None where it or its driver is missing."""
    import pynvml

    library: Any = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


def gpus_in_sight(nvml: Any) -> list[Any]:
    """NVML's handles of the GPUs that this process may use, in CUDA's order; others of the host are other trials'.

    Source: CUDA programming guide, "CUDA Environment Variables": a name that no GPU has ends the list.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    found: list[Any] = []
    for name in map(str.strip, names.split(",")):
        try:
            by_number = name.isascii() and name.isdigit()
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError:
            break
        found.append(handle)
    return found


def _gpus(nvml: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    """How to read each GPU, by UUID."""
    return {nvml.nvmlDeviceGetUUID(handle): _reader(nvml, handle) for handle in gpus_in_sight(nvml)}


def _reader(nvml: Any, handle: Any) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        values: dict[str, Any] = {"gpu_free_memory": nvml.nvmlDeviceGetMemoryInfo(handle).free}
        # A part of a GPU (MIG) has memory of its own, but no such counter.
        with contextlib.suppress(nvml.NVMLError_NotSupported):
            values["gpu_util"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        return values

    return read


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.core")
