"""What an operator says of an agent's host reaches it, however it is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from activities.launchers.base import RUNS_IN, LaunchError
from activities.launchers.devices import Device
from activities.launchers.docker import DockerLauncher
from activities.launchers.specification import spec_builder
from workers.agent import host_of
from workers.settings import HOST_LIMITS, AgentSettings, host_limits
from workflows.messages import RunContainer

ORDER = RunContainer(container_id="1.a.1-0", allocation_id="1.a.1", agent_id="a")


def settings(**more: Any) -> AgentSettings:
    given = {"slots": 1} | more
    return AgentSettings(
        agent_id="a", api_url="http://m:1", agent_token=SecretStr("t"), folder="/x", launcher="docker", **given
    )


def launch(**more: Any) -> dict[str, Any]:
    return {
        "env": {}, "image": "i", "forcePull": True, "registryAuth": {"username": "ada"}, "user": "", "mounts": [],
        "devices": [], "addCapabilities": [], "dropCapabilities": ["KILL"], "slotIds": [0], "isOfGang": False, "gangSize": 1, "podSpec": {}, "excludedNodes": [],
        "shmBytes": None, "labels": {}, "ports": {},
    } | more  # fmt: skip


def mount(source: Path, *, is_storage: bool = False, is_trusted: bool = False) -> dict[str, Any]:
    return {
        "source": str(source), "target": "/t", "readOnly": True, "isStorage": is_storage, "isTrusted": is_trusted,
        "propagation": "rslave",
    }  # fmt: skip


def test_environment_is_handed_on_an_empty_list_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOST_LIMITS:
        monkeypatch.delenv(f"UNDETERRED_{name.upper()}", raising=False)
    assert host_limits() == {}
    monkeypatch.setenv("UNDETERRED_BIND_MOUNTS", "")
    monkeypatch.setenv("UNDETERRED_DISK_MIB", "100")
    assert host_limits() == {"bind_mounts": "", "disk_mib": "100"}
    assert (settings(**host_limits()).bind_mounts, settings(**host_limits()).disk_mib) == ("", 100)


@pytest.mark.parametrize("name", ["bind_mounts", "host_devices"])
def test_relative_paths_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="'data': expected absolute paths"):
        settings(**{name: "/srv:data"})


def test_trials_get_what_their_operator_names_and_nothing_else() -> None:
    mine = {
        "PIP_INDEX_URL": "https://i/simple", "PIP_CERT": "/c", "PIPX_HOME": "/p", "https_proxy": "http://p:1",
        "AWS_SECRET_ACCESS_KEY": "k", "UNDETERRED_AGENT_TOKEN": "t", "DET_USER_TOKEN": "t", "PATH": "/x",
        "PYTHONPATH": "/y", "LD_PRELOAD": "/z", "VIRTUAL_ENV": "/v",
    }  # fmt: skip
    assert settings().handed_on(mine) == {}
    wanted = {name: mine[name] for name in ("PIP_INDEX_URL", "PIP_CERT", "https_proxy")}
    assert settings(trial_environment="PIP_*, https_proxy ,").handed_on(mine) == wanted
    assert settings(trial_environment="P*,U*,D*,L*,V*").handed_on(mine).keys() == {
        "PIP_INDEX_URL", "PIP_CERT", "PIPX_HOME"
    }  # fmt: skip


@pytest.mark.parametrize("names", ["PATH", "UNDETERRED_*", "DET_MASTER", "LD_PRELOAD", "*", "A=B", "A B", "PYTHONPATH"])
def test_what_trials_have_of_their_own_is_not_handed_on(names: str) -> None:
    with pytest.raises(ValidationError, match="trial_environment"):
        settings(trial_environment=names)


def test_experiment_comes_before_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://site/simple")
    monkeypatch.setenv("PIP_CERT", "/site.pem")
    monkeypatch.setenv("UNDETERRED_TRIAL_ENVIRONMENT", "PIP_*")
    build = spec_builder(host_of(settings(**host_limits())), DockerLauncher("a"))
    env = build(ORDER, launch(env={"PIP_INDEX_URL": "https://mine/simple"})).env
    assert (env["PIP_INDEX_URL"], env["PIP_CERT"]) == ("https://mine/simple", "/site.pem")
    assert "UNDETERRED_TRIAL_ENVIRONMENT" not in env


@pytest.mark.parametrize(
    ("slots", "devices", "threads"),
    [
        (1, [], "8"),
        (2, [Device()] * 2, "4"),
        (3, [], "2"),
        (20, [], "1"),
        (1, [Device(kind="cuda", uuid="GPU-0")], None),
    ],
)
def test_process_computes_with_the_share_of_the_cores_that_its_slot_is(
    monkeypatch: pytest.MonkeyPatch, slots: int, devices: list[Device], threads: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    build = spec_builder(host_of(settings(**host_limits(), slots=slots, devices=devices)), DockerLauncher("a"))
    assert build(ORDER, launch()).env.get("OMP_NUM_THREADS") == threads
    assert build(ORDER, launch(env={"OMP_NUM_THREADS": "6"})).env["OMP_NUM_THREADS"] == "6"
    assert "OMP_NUM_THREADS" not in build(ORDER, launch(slotIds=[])).env


def test_launch_is_held_to_what_the_host_gives(tmp_path: Path) -> None:
    launcher = DockerLauncher("a")
    storage, data = tmp_path / "storage", tmp_path / "data"
    build = spec_builder(host_of(settings(bind_mounts=str(data))), launcher)
    trusted = mount(storage, is_storage=True, is_trusted=True)
    spec = build(ORDER, launch(mounts=[trusted, mount(data / "sets")]))
    assert [(each.source, each.propagation) for each in spec.mounts] == [(storage, "rslave"), (data / "sets", "rslave")]
    assert (spec.pulls_always, spec.registry_login, spec.drop_capabilities) == (True, {"username": "ada"}, ("KILL",))
    assert storage.is_dir(), "a missing one is made"
    with pytest.raises(LaunchError, match="UNDETERRED_BIND_MOUNTS"):
        build(ORDER, launch(mounts=[mount(tmp_path / "other", is_storage=True)]))
    assert not (tmp_path / "other").exists(), "nor is anything made where nothing may be mounted"
    assert spec_builder(host_of(settings()), launcher)(ORDER, launch(mounts=[mount(Path("/"))])).mounts[
        0
    ].source == Path("/")


class Elsewhere(DockerLauncher):
    """A launcher of images whose containers run on hosts that are not the agent's, as those of a cluster do."""

    name = "elsewhere"
    makes_storage = False
    runs_here = False
    resources_type = "k8s-job"


def test_launcher_of_any_name_is_asked_by_its_properties(tmp_path: Path) -> None:
    storage = mount(tmp_path / "storage", is_storage=True, is_trusted=True)
    spec = spec_builder(host_of(settings()), Elsewhere("a"))(
        ORDER, launch(mounts=[storage], ports={"C10D_PORT": 12403})
    )
    assert not (tmp_path / "storage").exists(), "it would be on the wrong host"
    assert (spec.env["DET_RESOURCES_TYPE"], spec.env["DET_SHARED_FS_PATH"]) == ("k8s-job", "/t")
    assert (spec.env["C10D_PORT"], spec.ports) == ("12403", {"C10D_PORT": 12403})
    assert spec.labels[RUNS_IN] == "image i"
