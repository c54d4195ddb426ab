"""What an agent asks its engine for, and what it gives to experiments of its host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.launchers.base import ContainerSpec, HostDevice, LaunchError, Mount
from activities.launchers.docker_request import HostSide, create_request
from activities.launchers.host_policy import USUAL_CAPABILITIES, HostPolicy

GPUS = {0: "GPU-aaaa", 1: "GPU-bbbb", 3: "GPU-dddd"}


def spec(**more: Any) -> ContainerSpec:
    return ContainerSpec("c", ["python3", "-c", "1"], {"A": "{container_dir}/a"}, image="i", **more)


def asked(wanted: ContainerSpec, **host: Any) -> dict[str, Any]:
    return create_request(wanted, HostSide("agent", "net", **host), host_address="172.18.0.1", uses_init=True)


def test_gpus_of_the_slots_are_asked_for_by_their_uuids() -> None:
    body = asked(spec(slot_ids=[1, 3]), gpus=GPUS)
    assert body["HostConfig"]["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": ["GPU-bbbb", "GPU-dddd"], "Capabilities": [["gpu"]]}
    ]
    assert body["Env"] == ["A=/run/determined/a"]


def test_container_without_slots_sees_no_gpu_though_its_image_names_all() -> None:
    body = asked(spec(), gpus=GPUS)
    assert "DeviceRequests" not in body["HostConfig"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in body["Env"]
    assert asked(spec(slot_ids=[0]))["HostConfig"].get("DeviceRequests") is None, "slots of this host are no GPUs"


def test_slot_without_its_gpu_is_refused() -> None:
    with pytest.raises(LaunchError, match="slot 2 has no GPU") as caught:
        asked(spec(slot_ids=[0, 2]), gpus=GPUS)
    assert caught.value.reason == "start_failed"


def test_ports_are_exposed_and_none_is_published() -> None:
    body = asked(spec(ports={"C10D_PORT": 12403, "DTRAIN_SSH_PORT": 12400}))
    assert body["ExposedPorts"] == {"12403/tcp": {}, "12400/tcp": {}}
    assert "PortBindings" not in body["HostConfig"]


def test_limits_are_asked_for() -> None:
    config = asked(spec(memory_bytes=1 << 30), pids_limit=99, disk_bytes=5 << 30)["HostConfig"]
    limits = ("Memory", "MemorySwap", "PidsLimit", "ShmSize", "StorageOpt", "CapDrop", "SecurityOpt")
    assert [config[name] for name in limits] == [
        1 << 30, 1 << 30, 99, 4 << 30, {"size": str(5 << 30)}, ["ALL"], ["no-new-privileges"]
    ]  # fmt: skip
    assert "StorageOpt" not in asked(spec())["HostConfig"]
    assert asked(spec(shm_bytes=7))["HostConfig"]["ShmSize"] == 7


@pytest.mark.parametrize(
    ("add", "drop", "expected"),
    [
        ((), (), list(USUAL_CAPABILITIES)),
        (("SYS_PTRACE",), ("KILL",), ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID", "SYS_PTRACE"]),
        (("KILL",), (), list(USUAL_CAPABILITIES)),
        (("IPC_LOCK",), ("ALL",), ["IPC_LOCK"]),
    ],
)
def test_capabilities(add: tuple[str, ...], drop: tuple[str, ...], expected: list[str]) -> None:
    wanted = HostPolicy(capabilities=frozenset({"ALL"})).applied(spec(add_capabilities=add, drop_capabilities=drop))
    assert asked(wanted)["HostConfig"]["CapAdd"] == expected


def test_devices_and_propagation_are_passed_on() -> None:
    mount = Mount(Path("/data"), "d", read_only=True, propagation="rslave")
    config = asked(spec(devices=[HostDevice(Path("/dev/fuse"), "/dev/f", "rw")], mounts=[mount]))["HostConfig"]
    assert config["Devices"] == [{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/f", "CgroupPermissions": "rw"}]
    assert config["Mounts"][0]["Target"] == "/run/determined/workdir/d"
    assert (config["Mounts"][0]["ReadOnly"], config["Mounts"][0]["BindOptions"]) == (True, {"Propagation": "rslave"})


# -- what a host gives -------------------------------------------------------------------------------------------------


def test_everything_may_be_mounted_unless_the_operator_says_what(tmp_path: Path) -> None:
    wanted = spec(mounts=[Mount(Path("/etc"), "/x")], devices=[HostDevice(Path("/dev/null"), "/dev/x")])
    assert HostPolicy.of(None, None, "").applied(wanted) == wanted
    for policy, words in (
        (HostPolicy.of("", None, ""), r"bind mount /etc: is not among .* \(none\).*UNDETERRED_BIND_MOUNTS"),
        (HostPolicy.of(None, "/dev/infiniband", ""), r"device /dev/null: .*\(/dev/infiniband\).*UNDETERRED_HOST_DEV"),
    ):
        with pytest.raises(LaunchError, match=words) as caught:
            policy.applied(wanted)
        assert caught.value.reason == "bad_spec"


def test_mounts_below_an_allowed_folder_are_followed_to_where_they_lead(tmp_path: Path) -> None:
    (tmp_path / "data" / "sets").mkdir(parents=True)
    (tmp_path / "database").mkdir()
    (tmp_path / "data" / "out").symlink_to(tmp_path / "database")
    (tmp_path / "data" / "in").symlink_to(tmp_path / "data" / "sets")
    (tmp_path / "short").symlink_to(tmp_path / "data")
    policy = HostPolicy.of(f"{tmp_path}/short:/srv", None, "")
    for path in ("data", "data/sets", "data/in", "short/sets", "data/../data/sets"):
        [mount] = policy.applied(spec(mounts=[Mount(tmp_path / path, "/x")])).mounts
        assert mount.source in (tmp_path / "data", tmp_path / "data" / "sets"), "what was looked at is mounted"
    for path in ("database", "data/out", "data/../database", "."):
        with pytest.raises(LaunchError, match="is not among"):
            policy.applied(spec(mounts=[Mount(tmp_path / path, "/x")]))
    with pytest.raises(LaunchError, match=f"leads to {tmp_path}/database, which"):
        policy.applied(spec(mounts=[Mount(tmp_path / "data" / "out", "/x")]))


def test_storage_of_the_cluster_is_mounted_whatever_the_list_says() -> None:
    trusted = Mount(Path("/srv/checkpoints"), "/determined_shared_fs", is_trusted=True)
    assert HostPolicy.of("", None, "").applied(spec(mounts=[trusted])).mounts == [trusted]


@pytest.mark.parametrize(("given", "wanted"), [("", "KILL"), ("sys_ptrace, IPC_LOCK", "CAP_SYS_PTRACE"), ("ALL", "x")])
def test_capability_that_may_be_added(given: str, wanted: str) -> None:
    found = HostPolicy.of(None, None, given).applied(spec(add_capabilities=[wanted]))
    assert found.add_capabilities == (wanted.upper().removeprefix("CAP_"),)


def test_capability_that_may_not_be_added() -> None:
    with pytest.raises(LaunchError, match=r"add_capabilities: SYS_ADMIN.*\(it gives IPC_LOCK\).*UNDETERRED_CAPAB"):
        HostPolicy.of(None, None, "IPC_LOCK").applied(spec(add_capabilities=["CAP_SYS_ADMIN"]))
