"""What this host has to offer: its GPUs, each by its UUID, or its cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from determined.core._system import nvml as _nvml


class NoSuchDevices(ValueError):
    """The host does not have the devices that it was set to offer."""


class Device(BaseModel):
    """What a slot is: a core, a GPU, or a part of a GPU that NVIDIA's MIG made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["cpu", "cuda"] = "cpu"
    uuid: str = ""  # as CUDA_VISIBLE_DEVICES and Docker's device requests take it
    brand: str = ""


def devices_of_host(kind: str, count: int | None) -> list[Device]:
    """The devices to offer.

    Args:
        kind: `cuda`: the GPUs; `cpu`: cores; `auto`: the GPUs, if there are any.
        count: How many of them; None: all. Cores may be more than there are.

    Raises: NoSuchDevices.
    """
    found: Sequence[Device] = [] if kind == "cpu" else gpus(_nvml())
    if kind == "cuda" or found:
        if not found:
            raise NoSuchDevices("slot type cuda: NVML finds no GPU on this host: is NVIDIA's driver installed?")
        if count is not None and count > len(found):
            raise NoSuchDevices(f"slots: {count}: this host has {len(found)} GPUs; expected at most as many")
        return list(found[:count])
    return [Device()] * (_cores() if count is None else count)


def threads_of_a_slot(slots: int) -> int:
    """How many threads a process computes with, that has one of this host's slots, where slots are cores.

    Source: OpenMP 5.2, section 21.1.2, "OMP_NUM_THREADS", which PyTorch, MKL and OpenBLAS read.
    """
    return max(1, _cores() // max(1, slots))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus(nvml: Any) -> Sequence[Device]:
    """Every GPU, in NVML's order; of one that is parted by MIG, its parts in its place. None: no GPUs.

    Source: NVML API reference, "Device Queries" and "Multi Instance GPU Management".
    """
    if nvml is None:
        return []
    found: list[Device] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        whole = Device(
            kind="cuda", uuid=_text(nvml.nvmlDeviceGetUUID(handle)), brand=_text(nvml.nvmlDeviceGetName(handle))
        )
        found += _parts(nvml, handle) if _is_parted(nvml, handle) else [whole]
    return found


def _is_parted(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return current == nvml.NVML_DEVICE_MIG_ENABLE


def _parts(nvml: Any, handle: Any) -> list[Device]:
    parts: list[Device] = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:  # places that no part was made for
            continue
        parts.append(
            Device(kind="cuda", uuid=_text(nvml.nvmlDeviceGetUUID(part)), brand=_text(nvml.nvmlDeviceGetName(part)))
        )
    return parts


def _text(value: Any) -> str:
    """Older releases of the bindings answer bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
