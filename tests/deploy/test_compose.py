"""The Compose file: as Compose reads it, with commands and settings that exist."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from api.settings import ApiSettings, ClusterSettings, from_environment
from tests.deploy.programs import REPOSITORY, compose_reader
from tests.kit.servers import haproxy_program
from workers.settings import GatewaySettings, OrchestratorSettings

FOLDER = REPOSITORY / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"
PROCESSES = {
    "migrate": ClusterSettings,
    "api": ApiSettings,
    "orchestrator": OrchestratorSettings,
    "gateway": GatewaySettings,
}
_VARIABLE = re.compile(r"\$\{([A-Z_]+):([-?])([^}]*)\}")


def variables() -> dict[str, str]:
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", (FOLDER / ".env.example").read_text(), re.MULTILINE))


def filled(text: str) -> str:
    """With what .env.example says, else with the file's own defaults: the reader takes no variables."""
    found = variables()
    return _VARIABLE.sub(lambda it: found[it[1]] if it[2] == "?" else found.get(it[1], it[3]), text)


def read(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "compose.yaml").write_text(text)
    line = [compose_reader(), "-format", "json", "-no-interpolation", "compose.yaml"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def services(tmp_path: Path) -> dict[str, Any]:
    ended = read(filled(FILE.read_text()), tmp_path)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["services"]


def test_a_field_that_compose_does_not_know_is_refused(tmp_path: Path) -> None:
    """That the others pass means something."""
    ended = read(filled(FILE.read_text()).replace("healthcheck:", "healthczech:", 1), tmp_path)
    assert ended.returncode != 0
    assert "healthczech" in ended.stderr


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_takes_what_the_file_sets(services: dict[str, Any], name: str) -> None:
    model, found = PROCESSES[name], services[name]["environment"]
    from_environment(model, found)
    of_others = {"HOME", "FORWARDED_ALLOW_IPS"}
    assert {key for key in found if key not in of_others} <= {
        f"UNDETERRED_{field.upper()}" for field in model.model_fields
    }


def test_commands_are_those_of_the_distribution(services: dict[str, Any]) -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    for name in PROCESSES:
        (command,) = services[name]["command"]
        assert command in scripts


def test_processes_gain_nothing_and_only_the_servers_listen(services: dict[str, Any]) -> None:
    for name in PROCESSES:
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    published = {name: [str(port["published"]) for port in each.get("ports", [])] for name, each in services.items()}
    assert {name: ports for name, ports in published.items() if ports} == {"balancer": ["8080", "8081", "8090"]}


def test_each_process_is_there_twice_and_the_balancer_finds_it(services: dict[str, Any]) -> None:
    assert {name: services[name]["scale"] for name in PROCESSES if name != "migrate"} == {
        "api": 2, "orchestrator": 2, "gateway": 2,
    }  # fmt: skip
    text = (FOLDER / "haproxy.cfg").read_text()
    ports = set(re.findall(r"server-template \w+ \d+ (\w+:\d+)(?: port (\d+))?", text))
    api, gateway = (from_environment(PROCESSES[name], services[name]["environment"]) for name in ("api", "gateway"))
    assert ports == {
        (f"api:{api.port}", ""), (f"api:{api.proxy_port}", str(api.port)),
        (f"gateway:{gateway.port}", str(gateway.health_port)),
    }  # fmt: skip
    for each in (api, gateway):  # two looks, the second's answer, and a second to spare
        assert each.drain_s >= 2 * 1 + 1
        assert each.drain_s + 10 < 20, "it is killed while it finishes"


@pytest.mark.parametrize("path", ["compose/haproxy.cfg", "systemd/haproxy.cfg.example"])
def test_haproxy_takes_its_configuration(tmp_path: Path, path: str) -> None:
    def said(text: str) -> tuple[int, str]:
        (tmp_path / "haproxy.cfg").write_text(text)
        line = [haproxy_program(), "-c", "-f", str(tmp_path / "haproxy.cfg")]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    text = (FOLDER.parent / path).read_text()
    code, told = said(text)
    assert (code, "ALERT" in told, "WARNING" in told) == (0, False, False), told
    assert said(text.replace("default_backend api", "default_backend apy"))[0] != 0


def test_all_that_has_no_default_is_in_the_example() -> None:
    asked = {name for name, kind, _ in _VARIABLE.findall(FILE.read_text()) if kind == "?"}
    assert asked <= variables().keys()
