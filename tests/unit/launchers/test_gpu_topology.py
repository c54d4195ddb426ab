"""How GPUs are joined, by an NVML that is made up: the real one finds several GPUs only where there are some."""

from __future__ import annotations

from activities.launchers.devices import Device
from activities.launchers.gpu_topology import topology_of
from workflows.scheduling.topology import Topology


class Nvml:
    """As the bindings: GPUs 0 to 3, each pair on a processor; NVLink joins 0-1 and 1-2; 3 is in two parts by MIG."""

    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_TOPOLOGY_HOSTBRIDGE = 30
    NVML_TOPOLOGY_NODE = 40

    class NVMLError(Exception):
        """The base of all."""

    def __init__(self) -> None:
        self.links = {("GPU-0", "GPU-1"), ("GPU-1", "GPU-2")}
        self.lost = ""

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> str:
        text = uuid.decode() if isinstance(uuid, bytes) else uuid
        if text == self.lost:
            raise self.NVMLError("GPU is lost")
        return text

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return "GPU-3"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetP2PStatus(self, one: str, other: str, kind: int) -> int:
        assert kind == 2
        return 0 if (one, other) in self.links else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one: str, other: str) -> int:
        if "GPU-2" in (one, other):
            raise self.NVMLError("not supported")
        return 30 if {one, other} == {"GPU-0", "GPU-1"} else 50


def slots(*uuids: str) -> list[Device]:
    return [Device(kind="cuda", uuid=uuid) for uuid in uuids]


def test_gpus_are_in_groups_by_what_joins_them_and_parts_of_one_by_their_gpu() -> None:
    found = topology_of(Nvml(), slots("GPU-0", "GPU-1", "GPU-2", "MIG-a", "MIG-b"))
    assert found == Topology(nvlink=((0, 1, 2),), pcie=((0, 1), (3, 4)), numa=((0, 1), (3, 4)))


def test_host_says_nothing_of_its_topology_when_it_has_none_or_nvml_does_not_answer() -> None:
    nvml = Nvml()
    nvml.lost = "GPU-1"
    assert topology_of(nvml, slots("GPU-0", "GPU-1")) == Topology()
    assert topology_of(None, slots("GPU-0", "GPU-1")) == topology_of(nvml, [Device(), Device()]) == Topology()
