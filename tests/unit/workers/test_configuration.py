"""One file for all processes: sections over what is shared, the environment over both, and mistakes by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from api.settings import ApiSettings, ClusterSettings
from workers.configuration import SECTIONS, BadConfiguration, problems_in, schema, secrets_of, settings_of
from workers.settings import AgentSettings, GatewaySettings, OrchestratorSettings

FILE = """
database_url_file: {folder}/database-url
temporal_address: temporal.example.org:7233
storage_roots: /checkpoints
api:
  host: 0.0.0.0
  agent_token_file: {folder}/agent-token
  timing: {{restart_backoff_s: 0.5}}
  storage_roots: /checkpoints:/more
orchestrator:
  max_cached_workflows: 50
gateway:
agent:
  agent_id: gpu-7
  slots: 2
  api_url: https://api.example.org
  folder: /var/lib/undeterred
  labels: {{rack: b}}
  agent_token: of-this-agent
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "database-url").write_text("postgresql+psycopg://u:hidden@host/name\n")
    (tmp_path / "agent-token").write_text("a-long-secret\n")
    path = tmp_path / "undeterred.yaml"
    path.write_text(FILE.format(folder=tmp_path))
    return path


def refused(model: type[Any], path: Path, text: str | None = None, **environment: str) -> str:
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadConfiguration) as caught:
        settings_of(model, str(path), {f"UNDETERRED_{name}": value for name, value in environment.items()})
    return str(caught.value).replace(str(path), "FILE")


def test_each_process_reads_what_is_shared_and_its_own(file: Path) -> None:
    api = settings_of(ApiSettings, str(file), {})
    assert (api.database_url, api.host) == ("postgresql+psycopg://u:hidden@host/name", "0.0.0.0")
    assert api.agent_token.get_secret_value() == "a-long-secret"
    assert (api.timing.restart_backoff_s, api.storage_roots) == (0.5, "/checkpoints:/more")
    orchestrator = settings_of(OrchestratorSettings, str(file), {})
    assert (orchestrator.max_cached_workflows, orchestrator.storage_roots) == (50, "/checkpoints")
    assert settings_of(GatewaySettings, str(file), {}).temporal_address == "temporal.example.org:7233"
    agent = settings_of(AgentSettings, str(file), {})
    assert (agent.agent_id, agent.labels, agent.agent_token.get_secret_value()) == (
        "gpu-7",
        {"rack": "b"},
        "of-this-agent",
    )
    assert settings_of(ClusterSettings, str(file), {}).database_url.endswith("/name")
    assert problems_in(str(file)) == []


def test_the_environment_goes_over_the_file_and_may_name_it(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("another-secret")
    variables = {
        "UNDETERRED_CONFIG": str(file), "UNDETERRED_HOST": "10.0.0.1", "UNDETERRED_TIMING": "{}",
        "UNDETERRED_AGENT_TOKEN_FILE": str(tmp_path / "other"), "UNDETERRED_DATABASE_URL": "sqlite:///x",
    }  # fmt: skip
    api = settings_of(ApiSettings, None, variables)
    assert (api.host, api.database_url, api.timing.restart_backoff_s) == ("10.0.0.1", "sqlite:///x", 1.0)
    assert api.agent_token.get_secret_value() == "another-secret"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prot: 1", "FILE: prot: there is no such setting of all processes"),
        ("port: 1", "FILE: port: there is no such setting of all processes: it is one of the section api or gateway"),
        ("api: {prot: 1}", "FILE: api.prot: there is no such setting"),
        ("api: 7", "FILE: api: 7: expected keys and values"),
        ("- 1", "FILE: expected keys and values"),
        ("api: {port: 99999}", "FILE: api.port: 99999: Input should be less than or equal to 65535"),
        ("api: {access: all}", "FILE: api.access: 'all': Input should be 'basic' or 'rbac'"),
        (
            "api: {timing: {kill_repeat_s: soon}}",
            "FILE: api.timing.kill_repeat_s: 'soon': Input should be a valid number",
        ),
        ("api: {port: 1, port: 2}", "port"),
        ("api: [", "FILE: "),
        ("storage_roots: relative", "FILE: storage_roots: 'relative': expected absolute paths of folders"),
        ("database_url: x\ndatabase_url_file: y", "FILE: database_url_file: expected either this or database_url"),
        (
            "database_url_file: /nowhere",
            "FILE: database_url_file: '/nowhere': expected a file that can be read: No such",
        ),
        ("database_url_file: [1]", "FILE: database_url_file: [1]: expected the path of a file"),
        ("api: {metrics_port: 8080}", "metrics_port: 8080: expected another port than that of port"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_what_was_expected(tmp_path: Path, text: str, expected: str) -> None:
    environment = {} if "database_url" in text else {"DATABASE_URL": "sqlite://"}
    told = refused(ApiSettings, tmp_path / "x.yaml", text, AGENT_TOKEN="x", **environment)
    assert expected in told
    assert "Traceback" not in told


def test_a_mistake_of_a_variable_is_named_as_one(file: Path) -> None:
    assert refused(ApiSettings, file, PORT="http") == (
        "UNDETERRED_PORT: 'http': Input should be a valid integer, unable to parse string as an integer"
    )
    assert "UNDETERRED_TIMING" in refused(ApiSettings, file, TIMING="fast")
    missing = refused(ApiSettings, file, "api: {}")
    assert missing.splitlines() == ["UNDETERRED_DATABASE_URL: Field required", "UNDETERRED_AGENT_TOKEN: Field required"]
    assert "/nowhere" in refused(ApiSettings, file, CONFIG="", AGENT_TOKEN_FILE="/nowhere")


def test_no_secret_is_shown_when_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    told = refused(ApiSettings, path, "api: {agent_token: [hush]}\ndatabase_url: [hush]\ntemporal_api_key: [hush]")
    assert "agent_token" in told
    assert "hush" not in told


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(ApiSettings, tmp_path / "nowhere.yaml")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    assert "FILE: expected a file in YAML that can be read: it is no text" in refused(ApiSettings, tmp_path / "x.yaml")
    assert "expected at most" in refused(ApiSettings, tmp_path / "x.yaml", "#" * (1 << 21))


def test_the_schema_says_what_the_reader_takes(file: Path) -> None:
    found = schema()
    jsonschema.Draft202012Validator.check_schema(found)
    validator = jsonschema.Draft202012Validator(found)
    assert not list(validator.iter_errors(yaml.safe_load(file.read_text())))
    for wrong in (
        {"prot": 1},
        {"port": 1},
        {"api": {"prot": 1}},
        {"api": {"port": 99999}},
        {"agent": {"slots": "many"}},
    ):
        assert list(validator.iter_errors(wrong)), wrong
    for name, model in SECTIONS.items():
        keys = {*model.model_fields, *(f"{each}_file" for each in secrets_of(model))}
        assert found["properties"][name]["properties"].keys() == keys


def test_det_checks_a_file(file: Path) -> None:
    line = [sys.executable, "-m", "cli", "master", "config", "check", str(file)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"{file}: nothing is wrong\n"), ended.stderr
    file.write_text("api: {port: 0}\nagent: {slots: -1}\n")
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        f"{file}: api.port: 0: Input should be greater than or equal to 1",
        f"{file}: agent.slots: -1: Input should be greater than or equal to 0",
    ]


@pytest.mark.parametrize("module", ["api", "migrate"])
def test_a_process_reads_the_file_and_ends_with_the_mistake(tmp_path: Path, module: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps({"temporal_address": "no port"}))
    ended = subprocess.run([sys.executable, "-m", f"workers.{module}", "--config", str(path)], env={"PATH": ""},
                           capture_output=True, text=True, check=False)  # fmt: skip
    assert ended.returncode == 2
    assert f"{path}: temporal_address: 'no port': String should match pattern" in ended.stderr
    assert "Traceback" not in ended.stderr
