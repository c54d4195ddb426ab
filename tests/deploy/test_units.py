"""The units of systemd: as systemd reads them, with commands and settings that exist."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from api.settings import ApiSettings, from_environment
from tests.deploy.programs import REPOSITORY
from tests.kit.servers import systemd_analyze_program
from workers.settings import GatewaySettings, OrchestratorSettings

UNITS = REPOSITORY / "deploy" / "systemd"
FOLDER = "/opt/undeterred/bin"
CONTROL_PLANE = {"api": ApiSettings, "orchestrator": OrchestratorSettings, "gateway": GatewaySettings}
#: The most that `systemd-analyze security` may say of a unit, in tenths. The agent starts containers, and has devices.
EXPOSURE = {"api": 20, "orchestrator": 20, "gateway": 20, "agent": 40}


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies whose commands are there to be found."""
    for script in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]:
        stub = tmp_path / script
        stub.write_text("#!/bin/sh\n")
        stub.chmod(0o755)
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.target")):
        (tmp_path / unit.name).write_text(unit.read_text().replace(FOLDER, str(tmp_path)))
    return tmp_path


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [systemd_analyze_program(), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def settings(*names: str) -> dict[str, str]:
    """What the examples of environment files say, the later ones over the earlier ones."""
    found: dict[str, str] = {}
    for name in names:
        file = UNITS / f"{name}.env.example"
        found |= dict(re.findall(r"^([A-Z_]+)=(.*)$", file.read_text() if file.exists() else "", re.MULTILINE))
    return found


def test_systemd_takes_the_units(units: Path) -> None:
    ended = analyze("verify", *units.glob("*.service"), *units.glob("*.target"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_command_that_does_not_exist_is_found(units: Path) -> None:
    """The test above means something: it also finds a directive that systemd does not know."""
    unit = units / "undeterred-api.service"
    unit.write_text(unit.read_text().replace("undeterred-api\n", "undeterred-apy\n").replace("UMask=", "Umasque="))
    ended = analyze("verify", unit)
    assert "undeterred-apy is not executable" in ended.stderr
    assert "Umasque" in ended.stderr


@pytest.mark.parametrize("name", EXPOSURE)
def test_a_unit_is_exposed_no_more_than_it_needs(units: Path, name: str) -> None:
    unit = units / f"undeterred-{name}.service"
    ended = analyze("security", "--offline=true", f"--threshold={EXPOSURE[name]}", "--json=short", unit)
    reasons = [each["description"] for each in json.loads(ended.stdout) if not each["set"]]
    assert ended.returncode == 0, reasons


@pytest.mark.parametrize("name", CONTROL_PLANE)
def test_a_process_takes_what_the_examples_set(name: str) -> None:
    model, found = CONTROL_PLANE[name], settings("cluster", name)
    from_environment(model, found)
    assert found.keys() <= {f"UNDETERRED_{field.upper()}" for field in model.model_fields}


def test_every_file_of_the_readme_is_there() -> None:
    readme = (UNITS / "README.md").read_text()
    named = set(re.findall(r"`([a-z.-]+\.(?:example|conf|target|service))`", readme))
    assert {"cluster.env.example", "agent.env.example"} <= named
    assert all((UNITS / name).exists() for name in named), named
