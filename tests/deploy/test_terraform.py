"""The Terraform modules: as OpenTofu reads them, and what hosts get at their start, held against settings and units.

Providers' plugins are not here: types and arguments of their resources are not looked at.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.programs import REPOSITORY, tofu
from workers.configuration import SECTIONS, settings_of

#: OpenTofu is compiled with all that it knows of.
pytestmark = pytest.mark.long

FOLDER = REPOSITORY / "deploy" / "terraform"
CLOUDS = ("aws", "gcp")
#: What the modules of the clouds give to that of their hosts, with values in the places of what is not known before.
GIVEN: dict[str, dict[str, Any]] = {
    "aws": {"place": "eu-central-1", "bucket": "s3://checkpoints", "secrets": {"database-url": "arn:1", "agent-token": "arn:2",
            "admin-password": "arn:3", "temporal-api-key": "arn:4"}},
    "gcp": {"place": "ml-prod", "bucket": "gs://checkpoints", "secrets": {"database-url": "det-database-url",
            "agent-token": "det-agent-token", "admin-password": "det-admin-password"}},
}  # fmt: skip


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
    line = [tofu(), f"-chdir={folder}", *words]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=110, check=False)


def text_of(module: str) -> str:
    return "\n".join(path.read_text() for path in sorted((FOLDER / module).glob("*.tf")))


def test_all_files_are_formatted_and_can_be_read() -> None:
    done = ran(FOLDER, "fmt", "-check", "-recursive", "-diff")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.fixture(scope="module", params=CLOUDS)
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What OpenTofu makes of the module of hosts: it has no provider, and so is validated and applied whole."""
    cloud: str = request.param
    folder = tmp_path_factory.mktemp(cloud)
    common = {
        "cloud": cloud, "name": "det", "domain": "det.example.org", "gateway": "det.example.org:443",
        "package": "undeterred[server] @ https://packages.example.org/undeterred-0.1.0-py3-none-any.whl",
        "temporal_address": "det.a1b2c.tmprl.cloud:7233", "temporal_namespace": "det.a1b2c",
        "join_token_secret": "undeterred-join-token",
    }  # fmt: skip
    module = {"module": {"host": {"source": os.path.relpath(FOLDER / "host", folder), **common, **GIVEN[cloud]}}}
    outputs = {"output": {name: {"value": f"${{module.host.{name}}}"} for name in ("control_plane", "agent")}}
    (folder / "main.tf.json").write_text(json.dumps(module | outputs))
    for words in (["init"], ["validate"], ["apply", "-auto-approve"]):
        done = ran(folder, *words, "-no-color")
        assert done.returncode == 0, done.stdout + done.stderr
    return {"cloud": cloud} | {name: ran(folder, "output", "-raw", name).stdout for name in ("control_plane", "agent")}


def test_a_host_gets_settings_that_its_processes_take(rendered: dict[str, str], tmp_path: Path) -> None:
    first, _, rest = rendered["control_plane"].partition("\n")
    assert first == "#cloud-config"
    files = {each["path"]: each for each in yaml.safe_load(rest)["write_files"]}
    assert len(files) == 11
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    words = dict(line.split("=", 1) for line in files["/etc/undeterred/secrets.env"]["content"].splitlines())
    place, *named = words["SECRETS"].split()
    assert place == GIVEN[rendered["cloud"]]["place"]
    for name in (word.partition("=")[0] for word in named):
        text = "postgresql+psycopg://det:x@db/undeterred" if name == "database-url" else "a-long-random-secret"
        (secrets / name).write_text(text)
    path = tmp_path / "undeterred.yaml"
    path.write_text(files["/etc/undeterred/undeterred.yaml"]["content"].replace(words["FOLDER"], str(secrets)))
    found = {name: settings_of(SECTIONS[name], str(path), {}) for name in ("api", "orchestrator", "gateway")}
    assert found["api"].agent_token.get_secret_value() == "a-long-random-secret"
    assert (found["api"].gateway, found["api"].gateway_tls) == ("det.example.org:443", True)
    assert found["orchestrator"].provider_folder == "/opt/undeterred-providers"
    assert found["orchestrator"].has_tls is (rendered["cloud"] == "aws"), "by its API key"
    assert {each.own_buckets for each in (found["api"], found["orchestrator"])} == {GIVEN[rendered["cloud"]]["bucket"]}


def test_a_host_gets_the_units_that_it_starts_and_the_program_of_its_cloud(rendered: dict[str, str]) -> None:
    cloud = yaml.safe_load(rendered["control_plane"])
    files = {each["path"]: each for each in cloud["write_files"]}
    for line in cloud["runcmd"]:
        if line[0] == "systemctl" and len(line) > 2:
            assert {f"/etc/systemd/system/{unit}" for unit in line[3:]} <= files.keys()
    [program] = [each for path, each in files.items() if path.startswith("/opt/undeterred-providers/")]
    assert program["permissions"] == "0755"
    assert program["content"].startswith("#!/opt/undeterred/bin/python\n")
    for path, each in files.items():
        if path.endswith(".py"):
            compile(each["content"], path, "exec")
    if rendered["cloud"] == "aws":
        assert _gzipped(rendered["control_plane"]) <= 16 << 10, "more than EC2 takes"


def _gzipped(text: str) -> int:
    import gzip

    return len(gzip.compress(text.encode()))


def test_an_agent_joins_under_the_name_of_its_node(rendered: dict[str, str], tmp_path: Path) -> None:
    """The script is run whole, with programs in the places of those that reach out or change the machine."""
    calls = tmp_path / "bin"
    calls.mkdir()
    answers = {
        "undeterred-node": "a100-7f", "undeterred-slots": "8",
        "versions/latest": '{"payload": {"data": "am9pbi10b2tlbg=="}}', "token": '{"access_token": "of-metadata"}',
    }  # fmt: skip
    curl = "\n".join(f"case \"$*\" in *{name}*) echo '{text}'; exit;; esac" for name, text in answers.items())
    python = 'case "$*" in *boto3*) echo join-token;; -m*) ;; *) exec %s "$@";; esac' % sys.executable  # noqa: UP031
    for name in ("apt-get", "systemctl", "systemd-sysusers"):
        (calls / name).write_text("#!/bin/sh\n")
    (calls / "curl").write_text(f"#!/bin/sh\n{curl}\n")
    (calls / "python3").write_text(f"#!/bin/sh\n{python}\n")
    for each in calls.iterdir():
        each.chmod(0o755)
    script = re.sub(
        r"/(etc/undeterred|etc/systemd|usr/lib/sysusers.d|opt/undeterred)", rf"{tmp_path}/\1", rendered["agent"]
    )
    for made in ("etc/systemd/system", "usr/lib/sysusers.d", "opt/undeterred/bin"):
        (tmp_path / made).mkdir(parents=True)
    (tmp_path / "opt/undeterred/bin/pip").symlink_to("/bin/true")
    (tmp_path / "agent.sh").write_text(script)
    environment = {"PATH": f"{calls}:{os.environ['PATH']}"}
    line = ["sh", str(tmp_path / "agent.sh")]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = (tmp_path / "etc/undeterred/agent.env").read_text().splitlines()
    assert written == [
        "DET_MASTER=https://det.example.org", "UNDETERRED_JOIN_TOKEN=join-token",
        "AGENT_OPTIONS=--launcher docker --name a100-7f --slots 8",
    ]  # fmt: skip
    unit = (tmp_path / "etc/systemd/system/undeterred-agent.service").read_text()
    assert unit == (REPOSITORY / "deploy/systemd/undeterred-agent.service").read_text()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_module_names_what_it_has(cloud: str) -> None:
    """Variables, locals, resources and data: each that is named is there, and each variable is used."""
    text = re.sub(r"#.*|\w+_node\.py", "", text_of(cloud))
    declared = set(re.findall(r'^variable "(\w+)"', text, re.MULTILINE))
    assert set(re.findall(r"\bvar\.(\w+)", text)) == declared
    blocks = re.findall(r"^locals \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    of_locals = {name for block in blocks for name in re.findall(r"^  (\w+) *=", block, re.MULTILINE)}
    assert set(re.findall(r"\blocal\.(\w+)", text)) == of_locals
    there = {f"{kind}.{name}" for kind, name in re.findall(r'^resource "(\w+)" "(\w+)"', text, re.MULTILINE)}
    there |= {f"data.{kind}.{name}" for kind, name in re.findall(r'^data "(\w+)" "(\w+)"', text, re.MULTILINE)}
    named = set(re.findall(r"(?<![\w.])((?:data\.)?(?:aws|google|random)_\w+\.\w+)", text))
    assert named - there == set()
    host = text_of("host")
    (given,) = re.findall(r'^module "host" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL)
    passed = set(re.findall(r"^  (\w+) *=", given, re.MULTILINE)) - {"source"}
    with_default = {"secrets_folder"}
    assert passed == set(re.findall(r'^variable "(\w+)"', host, re.MULTILINE)) - with_default
    assert set(re.findall(r"module\.host\.(\w+)", text)) == set(re.findall(r'^output "(\w+)"', host, re.MULTILINE))
