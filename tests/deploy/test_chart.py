"""The chart, as Helm renders it: valid objects, settings that the processes take, and values that are refused by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from api.settings import ApiSettings, ClusterSettings, from_environment
from tests.deploy.programs import CHART, KUBERNETES, REPOSITORY, helm, render, schemas
from workers.settings import AgentSettings, GatewaySettings, OrchestratorSettings

Json = dict[str, Any]

PROCESSES = {
    "api": ApiSettings,
    "orchestrator": OrchestratorSettings,
    "gateway": GatewaySettings,
    "agent": AgentSettings,
}
#: What Secrets have in these tests.
SECRETS = {
    "UNDETERRED_DATABASE_URL": "postgresql+psycopg://user:password@host/name",
    "UNDETERRED_PEER_ADDRESS": "10.1.2.3",  # of the pod
    "": "secret",
}


def objects(*arguments: str, values: str = "smallest", namespace: str = "undeterred") -> list[Json]:
    ended = render(*arguments, values=values, namespace=namespace)
    assert ended.returncode == 0, ended.stderr
    return [found for found in yaml.safe_load_all(ended.stdout) if found]


def named(found: list[Json], kind: str, name: str = "") -> Json:
    (only,) = (each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"]))
    return only


def refusal(*arguments: str, values: str = "smallest", namespace: str = "undeterred") -> str:
    ended = render(*arguments, values=values, namespace=namespace)
    assert ended.returncode != 0, "it was rendered"
    return ended.stderr


def templates(found: list[Json]) -> Iterator[tuple[str, Json]]:
    """Component and spec of each pod."""
    for each in found:
        if each["kind"] in ("Deployment", "Job"):
            template = each["spec"]["template"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def environment(found: list[Json], component: str) -> dict[str, str]:
    """As the process sees it: of a name that is there twice, the last one counts."""
    (container,) = dict(templates(found))[component]["containers"]
    return {
        each["name"]: each["value"] if "value" in each else SECRETS.get(each["name"], SECRETS[""])
        for each in container["env"]
    }


# -- valid objects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["smallest", "full"])
def test_lint_finds_nothing_when_strict(values: str) -> None:
    file = CHART / "ci" / f"{values}-values.yaml"
    ended = subprocess.run([helm(), "lint", "--strict", CHART, "--values", file], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", ["smallest", "full"])
def test_objects_fit_the_schemas_of_kubernetes(values: str, version: str) -> None:
    ended = validated(render(values=values).stdout, version)
    assert ended.returncode == 0, ended.stdout
    passed = ended.stdout.count(" passed for resource ")
    assert passed == len(objects(values=values)), ended.stdout


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    """The test above means something."""
    wrong = render().stdout.replace("enableServiceLinks:", "enableServiceLink:", 1)
    ended = validated(wrong, KUBERNETES[-1])
    assert ended.returncode == 1
    assert "enableServiceLink" in ended.stdout


def validated(text: str, version: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version, "-"]
    env = {**os.environ, "PYTHONPATH": str(schemas())}
    return subprocess.run(line, input=text, env=env, capture_output=True, text=True, check=False)


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", PROCESSES)
@pytest.mark.parametrize("values", ["smallest", "full"])
def test_a_process_takes_what_its_pod_sets(values: str, component: str) -> None:
    model = PROCESSES[component]
    found = environment(objects(values=values), component)
    from_environment(model, found)
    known = {f"UNDETERRED_{name.upper()}" for name in model.model_fields}
    assert {name for name in found if name.startswith("UNDETERRED_")} <= known


def test_migrations_take_what_their_pod_sets() -> None:
    assert from_environment(ClusterSettings, environment(objects(), "migrations")).database_url


@pytest.mark.parametrize("component", PROCESSES)
def test_probes_ask_for_what_they_mean(component: str) -> None:
    """The port that a probe names is one of the container's, and one that its process answers probes at."""
    found = objects()
    (container,) = dict(templates(found))[component]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    settings = from_environment(PROCESSES[component], environment(found, component))
    answers = settings.port if component == "api" else settings.health_port
    for kind, probe in (("readinessProbe", "ready"), ("livenessProbe", "live")):
        asked = container[kind]["httpGet"]
        assert (asked["path"], ports[asked["port"]]) == (f"/health/{probe}", answers)
    if component in ("api", "gateway"):
        spec = dict(templates(found))[component]
        assert settings.drain_s + 10 < spec["terminationGracePeriodSeconds"], "it is killed while it finishes"


def test_values_reach_the_process() -> None:
    api = from_environment(ApiSettings, environment(objects(values="full"), "api"))
    assert api.storage_path == "/checkpoints"
    assert api.own_buckets == "s3://checkpoints"
    assert api.gateway == "gateway.example.org:8090"
    assert api.metrics_address == "0.0.0.0:9464"
    assert api.session_days == 3, "a value of api.env"
    assert api.temporal_key_file == "/etc/undeterred/temporal/tls.key"
    agent = from_environment(AgentSettings, environment(objects(values="full"), "agent"))
    assert agent.slots == 64
    assert agent.has_tls
    assert agent.pod_volumes.keys() == {"/datasets", "/checkpoints"}
    assert agent.pod_secrets == "wandb"
    assert agent.pod_grace_s == 600


def test_commands_are_those_of_the_distribution() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    commands = {}
    for component, spec in templates(objects()):
        commands[component] = " ".join(spec["containers"][0]["command"]).split()[-1]
    assert len(commands) == 5
    assert set(commands.values()) <= set(scripts)


def test_every_container_has_requests_limits_and_nothing_to_gain() -> None:
    found = objects(values="full")
    for component, spec in templates(found):
        assert spec["enableServiceLinks"] is False, "a Service's variables would be read as settings"
        assert spec["automountServiceAccountToken"] is (component == "agent")
        for container in spec["containers"]:
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_processes_that_have_replicas_have_a_budget_and_those_that_have_not_have_none() -> None:
    budgets = [each["metadata"]["name"] for each in objects("--set=api.replicas=1") if "Budget" in each["kind"]]
    assert budgets == ["det-undeterred-orchestrator", "det-undeterred-gateway"]


# -- secrets and what pods of users may --------------------------------------------------------------------------------


def test_secrets_are_made_when_none_is_named_and_stay() -> None:
    secret = named(objects(), "Secret")
    assert secret["data"].keys() == {"agent-token", "admin-password"}
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not [each for each in objects(values="full") if each["kind"] == "Secret"]


def test_the_agent_reads_no_secret_and_watches_what_nodes_offer() -> None:
    found = objects()
    role, wide = named(found, "Role"), named(found, "ClusterRole")
    assert role["metadata"]["namespace"] == "undeterred-pods"
    granted = _granted(role)
    assert not granted & {("secrets", "get"), ("secrets", "list"), ("secrets", "watch")}
    assert {("jobs", "create"), ("jobs", "patch"), ("pods", "delete"), ("pods/log", "get")} <= granted
    assert _granted(wide) == {
        ("nodes", "list"), ("nodes", "watch"), ("nodes", "patch"), ("pods", "list"), ("pods", "watch"),
        ("pods/eviction", "create"), ("queues", "get"),
    }  # fmt: skip


def test_namespaces_of_workspaces_are_the_agents_only_where_they_are_named() -> None:
    named_ones = "--set=agent.pods.workspaceNamespaces={research,team-*}"
    found = objects(named_ones)
    granted = _granted(named(found, "ClusterRole"))
    assert {("namespaces", "create"), ("resourcequotas", "update"), ("networkpolicies", "create")} <= granted
    assert not granted & {("secrets", "get"), ("secrets", "list"), ("secrets", "watch"), ("namespaces", "patch")}
    [agent] = [spec for component, spec in templates(found) if component == "agent"]
    environment = {each["name"]: each.get("value") for each in agent["containers"][0]["env"]}
    assert environment["UNDETERRED_WORKSPACE_NAMESPACES"] == "research,team-*"
    assert "/agent/pods/workspaceNamespaces/0" in refusal("--set=agent.pods.workspaceNamespaces={Kube_System}")


def test_api_and_gateway_serve_with_the_certificate_of_a_secret_and_the_agent_has_no_key() -> None:
    pods = dict(templates(objects("--set=tls.existingSecret=own")))
    for component in ("api", "gateway"):
        (container,) = pods[component]["containers"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "tls")
        assert env["UNDETERRED_TLS_KEY_FILE"] == f"{mount['mountPath']}/tls.key"
        assert {"name": "tls", "secret": {"secretName": "own", "defaultMode": 0o440}} in pods[component]["volumes"]
    probes = [
        pods["api"]["containers"][0][f"{kind}Probe"]["httpGet"]["scheme"]
        for kind in ("startup", "readiness", "liveness")
    ]
    assert probes == ["HTTPS"] * 3
    (agent,) = pods["agent"]["containers"]
    env = {each["name"]: each.get("value") for each in agent["env"]}
    assert env["UNDETERRED_API_URL"].startswith("https://")
    assert env["UNDETERRED_API_CA_FILE"] == "/etc/undeterred/api-ca/ca.crt"
    (volume,) = (each for each in pods["agent"]["volumes"] if each["name"] == "api-ca")
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "and not the private key"
    public = dict(templates(objects("--set=tls.existingSecret=own", "--set=tls.caKey=")))
    assert "api-ca" not in str(public["agent"])
    assert "/tls/caKey" in refusal("--set=tls.existingSecret=own", "--set=tls.caKey=../x")


def _granted(role: Json) -> set[tuple[str, str]]:
    return {(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}


def test_namespace_of_users_pods_enforces_the_profile_and_stays() -> None:
    metadata = named(objects(), "Namespace")["metadata"]
    assert metadata["name"] == "undeterred-pods"
    assert metadata["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_users_pods_beside_the_databases_password_are_refused() -> None:
    own = "--set=agent.pods.namespace=undeterred"
    assert 'agent.pods.secrets: ["*"] with agent.pods.namespace: "undeterred"' in refusal(own)
    found = objects(own, "--set=agent.pods.secrets={wandb}")
    assert not [each for each in found if each["kind"] == "Namespace"]


def test_users_pods_do_not_reach_blocked_networks() -> None:
    blocked = "--set=networkPolicy.blockedForPods={169.254.0.0/16,fd00:ec2::/32}"
    policy = named(objects(blocked), "NetworkPolicy", "det-undeterred-pods")
    assert policy["metadata"]["namespace"] == "undeterred-pods"
    excepted = {to["ipBlock"]["cidr"]: to["ipBlock"]["except"] for to in policy["spec"]["egress"][1]["to"]}
    assert excepted == {"0.0.0.0/0": ["169.254.0.0/16"], "::/0": ["fd00:ec2::/32"]}


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("temporal.address=temporal", "/temporal/address"),
        ("database.existingSecret=", "/database/existingSecret"),
        ("api.replicas=0", "/api/replicas"),
        ("api.service.port=70000", "/api/service/port"),
        ("api.tasksUrl=tasks.example.org", "/api/tasksUrl"),
        ("api.resources.limits.memory=much", "/api/resources/limits/memory"),
        ("api.env.lower=x", "/api/env"),
        ("api.env.UNDETERRED_DATABASE_URL=x", "/api/env"),
        ("orchestrator.replica=3", "/orchestrator"),
        ("gateway.address=gateway", "/gateway/address"),
        ("agent.slots=many", "/agent/slots"),
        ("agent.pods.podSecurity=none", "/agent/pods/podSecurity"),
        ("agent.pods.slotCpu=0", "/agent/pods/slotCpu"),
        ("agent.pods.graceSeconds=5", "/agent/pods/graceSeconds"),
        ("agent.pods.user=root", "/agent/pods/user"),
        ("checkpoints.path=checkpoints", "/checkpoints/path"),
        ("outgoing.ownBuckets={checkpoints}", "/outgoing/ownBuckets/0"),
        ("podSecurityContext.runAsUser=0", "/podSecurityContext/runAsUser"),
        ("ingress.enabled=true", "/ingress/host"),
        ("networkPolicy.blockedForPods={169.254.169.254}", "/networkPolicy/blockedForPods/0"),
        ("temporal.files.ca=ca.crt", "temporal.files.ca"),
        ("metrics.port=80", "/metrics/port"),
        ("surprise=1", "additional properties 'surprise'"),
        ("api.minAvailable=2", "api.minAvailable: 2 of 2 replicas"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(argument: str, field: str) -> None:
    assert field in refusal("--set", argument)


def test_readme_has_each_value_with_its_default() -> None:
    table = dict(re.findall(r"^\| `([A-Za-z.]+)` \| (.*?) \| ", (CHART / "README.md").read_text(), re.MULTILINE))
    values = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    assert list(table) == list(values)
    for name, default in values.items():
        if not name.endswith("resources") and table[name] != "required":
            shown = default if isinstance(default, str) and default else json.dumps(default)
            assert table[name] == f"`{shown}`", name


def test_schema_has_each_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    without_default = {"global", "nameOverride", "fullnameOverride"}
    assert set(properties(schema)) - without_default == {
        name for name, _ in leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    }


def leaves(values: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value and name != "resources":
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def properties(schema: Json, prefix: str = "") -> Iterator[str]:
    for name, each in schema["properties"].items():
        if "properties" in each:
            yield from properties(each, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
