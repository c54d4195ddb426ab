"""The GPUs that this process sees. Without any, or without a driver, there are none: nothing here raises."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["GPU", "GPUProcess", "get_gpu_processes", "get_gpu_uuids", "get_gpus"]


class GPU(NamedTuple):
    """One GPU; `load` and `memoryUtil` from 0 to 1."""

    id: int
    uuid: str
    load: float
    memoryUtil: float


class GPUProcess(NamedTuple):
    """A process that uses a GPU; `used_memory` in MiB, as text."""

    pid: int
    process_name: str
    gpu_uuid: str
    used_memory: str


def get_gpus() -> tuple[list[GPU], str]:
    """The GPUs by their index, and their kind: "cuda", or "" if there are none."""

    def look(nvml: Any, index: int, handle: Any) -> list[GPU]:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        load = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return [GPU(index, _text(nvml.nvmlDeviceGetUUID(handle)), load, memory.used / memory.total)]

    found = _each(look)
    return found, "cuda" if found else ""


def get_gpu_uuids() -> list[str]:
    """Their names for life, by their index."""
    return _each(lambda nvml, index, handle: [_text(nvml.nvmlDeviceGetUUID(handle))])


def get_gpu_processes() -> list[GPUProcess]:
    """What runs on them, as far as the driver shows it to this process."""

    def look(nvml: Any, index: int, handle: Any) -> list[GPUProcess]:
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        return [
            GPUProcess(each.pid, _name_of(nvml, each.pid), uuid, f"{(each.usedGpuMemory or 0) // 2**20} MiB")
            for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ]

    return _each(look)


def _each(look: Callable[[Any, int, Any], list[Any]]) -> list[Any]:
    from determined.core import _system

    try:
        nvml = _system.nvml()
    except Exception:  # noqa: BLE001 - no library, or a driver that does not answer
        return []
    if nvml is None:
        return []
    try:
        found: list[Any] = []
        for index, handle in enumerate(_system.gpus_in_sight(nvml)):
            found += look(nvml, index, handle)
        return found
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _name_of(nvml: Any, pid: int) -> str:
    try:
        return _text(nvml.nvmlSystemGetProcessName(pid))
    except nvml.NVMLError:
        return ""  # it has ended, or is another user's


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
