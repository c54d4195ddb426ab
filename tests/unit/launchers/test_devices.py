"""What a host offers, told by an NVML that is made up: the real one finds GPUs only where there are some."""

from __future__ import annotations

import os
from typing import Any

import pytest

from activities.launchers import devices
from activities.launchers.devices import Device, NoSuchDevices, devices_of_host, gpus


class Nvml:
    """As the bindings: two GPUs, of which the second is parted in two, and has room for seven."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        """The base of all."""

    class NVMLError_NotSupported(NVMLError):
        """GPUs before Ampere know no MIG."""

    class NVMLError_NotFound(NVMLError):
        """No part was made there."""

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu {index}"

    def nvmlDeviceGetUUID(self, handle: str) -> Any:
        return f"GPU-{handle[-1]}".encode() if handle.startswith("gpu") else f"MIG-{handle[-1]}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA T4" if handle == "gpu 0" else "NVIDIA A100" if handle == "gpu 1" else "NVIDIA A100 MIG 3g.20gb"

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:
        if handle == "gpu 0":
            raise self.NVMLError_NotSupported
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index not in (0, 3):
            raise self.NVMLError_NotFound
        return f"part {index}"


def test_gpus_are_told_by_their_uuids_and_a_parted_one_by_its_parts() -> None:
    assert gpus(Nvml()) == [
        Device(kind="cuda", uuid="GPU-0", brand="NVIDIA T4"),
        Device(kind="cuda", uuid="MIG-0", brand="NVIDIA A100 MIG 3g.20gb"),
        Device(kind="cuda", uuid="MIG-3", brand="NVIDIA A100 MIG 3g.20gb"),
    ]


def test_host_offers_its_gpus_or_as_many_of_them_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_nvml", Nvml)
    assert [each.uuid for each in devices_of_host("auto", None)] == ["GPU-0", "MIG-0", "MIG-3"]
    assert [each.uuid for each in devices_of_host("cuda", 2)] == ["GPU-0", "MIG-0"]
    assert devices_of_host("cpu", 3) == [Device()] * 3
    with pytest.raises(NoSuchDevices, match="slots: 4: this host has 3 GPUs"):
        devices_of_host("auto", 4)


def test_host_without_gpus_offers_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_nvml", lambda: None)
    assert devices_of_host("auto", None) == [Device()] * len(os.sched_getaffinity(0))
    assert len(devices_of_host("auto", 16)) == 16
    with pytest.raises(NoSuchDevices, match="NVML finds no GPU"):
        devices_of_host("cuda", None)
