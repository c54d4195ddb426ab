"""Metrics of an agent: its containers, and GPUs by an NVML that is made up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import generate_latest

from activities.launchers.base import SLOTS, ContainerStatus, Launcher, LaunchError, Usage
from activities.launchers.devices import Device
from activities.launchers.gpu_health import GpuHealth
from tests.unit.launchers.test_gpu_health import Nvml
from workers.agent_metrics import HostMetrics
from workflows.scheduling.topology import Topology

DEVICES = [Device(kind="cuda", uuid=f"GPU-{number}") for number in range(2)]


class Measured(Nvml):
    """With the readings of its GPUs; the second one has no ECC."""

    NVML_TEMPERATURE_GPU = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> object:
        return SimpleNamespace(used=2 << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> object:
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_500

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        if handle == "GPU-1":
            raise self.NVMLError("not supported")
        return 3


class Containers:
    """As a launcher that has one container which runs, and one that has ended."""

    def __init__(self) -> None:
        self.used: Usage | None = Usage(12.5, 1 << 30)
        self.is_broken = False

    async def list(self) -> list[ContainerStatus]:
        if self.is_broken:
            raise LaunchError("engine_unavailable", "the engine does not answer")
        return [ContainerStatus("7.abc.1-0", running=True, labels={SLOTS: "0,1"}),
                ContainerStatus("6.abc.1-0", running=False, labels={})]  # fmt: skip

    async def usage(self, container_id: str) -> Usage | None:
        assert container_id == "7.abc.1-0"
        return self.used


async def scraped(metrics: HostMetrics) -> dict[str, float]:
    metrics._looked_at = float("-inf")  # pyright: ignore[reportPrivateUsage]
    text = (await asyncio.to_thread(generate_latest, metrics.registry)).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def metrics_of(containers: Containers, nvml: Any, devices: list[Device] = DEVICES) -> HostMetrics:
    health = GpuHealth(nvml, devices)
    topology = Topology(nvlink=((0, 1),)) if devices else Topology()
    return HostMetrics(cast(Launcher, containers), nvml, devices, health, topology, ("host", "a100"))


async def test_containers_and_gpus_are_measured() -> None:
    containers, nvml = Containers(), Measured()
    metrics = metrics_of(containers, nvml)
    nvml.events = [("GPU-1", 79), ("GPU-0", 31), ("GPU-0", 31)]
    found = await scraped(metrics)
    run = '{agent="host",allocation_id="7.abc.1",pool="a100",rank="0"}'
    assert found[f"undeterred_container_slots{run}"] == 2
    assert found[f"undeterred_container_cpu_seconds_total{run}"] == 12.5
    assert found[f"undeterred_container_memory_bytes{run}"] == 1 << 30
    first, second = ('{agent="host",pool="a100",slot="%d",uuid="GPU-%d"}' % (n, n) for n in range(2))  # noqa: UP031
    assert (found[f"undeterred_gpu_in_error{first}"], found[f"undeterred_gpu_in_error{second}"]) == (0, 1)
    assert found[f"undeterred_gpu_utilization_ratio{first}"] == 0.75
    assert found[f"undeterred_gpu_power_watts{second}"] == 250.5
    assert found[f"undeterred_gpu_ecc_errors_uncorrected{first}"] == 3
    assert f"undeterred_gpu_ecc_errors_uncorrected{second}" not in found
    assert found['undeterred_gpu_xids_total{agent="host",pool="a100",slot="0",uuid="GPU-0",xid="31"}'] == 2
    assert found['undeterred_gpu_group{agent="host",by="nvlink",group="0",pool="a100",slot="1",uuid="GPU-1"}'] == 1


async def test_a_counter_goes_on_when_a_process_of_the_container_has_ended() -> None:
    containers = Containers()
    metrics = metrics_of(containers, None, [])
    name = 'undeterred_container_cpu_seconds_total{agent="host",allocation_id="7.abc.1",pool="a100",rank="0"}'
    assert (await scraped(metrics))[name] == 12.5
    containers.used = Usage(3.0, 1)
    assert (await scraped(metrics))[name] == 12.5
    containers.used = None  # it is about to end
    assert name not in await scraped(metrics)


async def test_gpus_are_there_when_the_engine_is_not_and_a_lost_gpu_has_no_readings() -> None:
    containers, nvml = Containers(), Measured()
    metrics = metrics_of(containers, nvml)
    containers.is_broken, nvml.lost = True, {"GPU-1"}
    found = await scraped(metrics)
    assert not [name for name in found if "container" in name]
    lost = '{agent="host",pool="a100",slot="1",uuid="GPU-1"}'
    assert found[f"undeterred_gpu_in_error{lost}"] == 1
    assert f"undeterred_gpu_power_watts{lost}" not in found


async def test_scrapes_that_follow_each_other_look_once() -> None:
    containers = Containers()
    metrics = metrics_of(containers, None, [])
    await scraped(metrics)
    containers.used = Usage(99.0, 1)
    text = (await asyncio.to_thread(generate_latest, metrics.registry)).decode()
    assert "12.5" in text
