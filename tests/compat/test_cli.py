"""Every command of the published `det`, of both generations, against our cluster.

`docs/compatibility/commands.csv` lists them; `test_record.py` fails when one of them is neither run nor left out here.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import Finished
from tests.compat.published import GENERATIONS, MODEL, Published, created, experiment_config
from tests.compat.record import NOT_YET, rows

only_newer = pytest.mark.parametrize("client", GENERATIONS[:1], indirect=True)
"""What 0.21 has no commands for."""

UUID = r"[0-9a-f]{8}-[0-9a-f-]{27}"


# -- who and where ----------------------------------------------------------------------------------------------------


def test_version_and_master(client: Published) -> None:
    with client.commands() as det:
        det("version", expect=rf"version: {client.generation}.*cluster_id: {UUID}")
        told = client.run("det", "user", "whoami").stderr
        assert told == "" if client.is_new else "0.38.1" in told, "as with a master of 0.38.1"
        info = det.json("master info", "--json")
        assert info["clusterName"] == "undeterred"
        det("master info", expect="clusterId: ")
        det("master logs", "--tail", "5", expect=r"^([^\n]+ \[\w+\]: [^\n]*\n)*$")
        if client.is_new:
            assert isinstance(det.json("master config show", "--json"), dict)
            det("master config set", "--log.level", "INFO")
            det("master cluster-message set", "-m", "back at noon")
            det("master cluster-message get", expect="back at noon")
            det("master cluster-message clear", "-c")
        else:
            assert isinstance(det.json("master config", "--json"), dict)
        det("auth list-providers", expect="")


def test_users(client: Published) -> None:
    with client.commands() as det:
        det("user whoami", expect="You are logged in as user 'admin'")
        password = ("--password", "First-Pass-1") if client.is_new else ()
        det("user create", "dee", *password)
        det("user list", expect=r"dee +\|")
        det("user change-password", "dee", stdin="Other-Pass-2\nOther-Pass-2\n")
        det(
            "user link-with-agent-user",
            "dee",
            *["--agent-uid", "1000", "--agent-user", "d", "--agent-gid", "1000", "--agent-group", "d"],
        )
        det("user list", expect=r"dee .*1000 .* d +\|")
        as_dee = {"DET_DEBUG_CONFIG_PATH": str(client.folder / "dee")}
        det("user login", "dee", stdin="Other-Pass-2\n", environment=as_dee)
        det("user whoami", environment=as_dee, expect="'dee'")
        det("user logout", environment=as_dee)
        det("user rename", "dee", "deedee")
        det("user deactivate", "deedee")
        done = client.run("det", "user", "whoami", DET_USER="deedee", DET_PASS="Other-Pass-2")
        assert done.returncode != 0, "a user that is not active logged in"
        det("user activate", "deedee")
        if client.is_new:
            det("user edit", "deedee", "--display-name", "Dee D.", "--admin", "true")
            det("user list", "--all", expect=r"deedee +\| Dee D\. +\| True")


@only_newer
def test_tokens(client: Published) -> None:
    with client.commands() as det:
        made = det.json("token create", "--expiration-days", "3", "--description", "for CI", "--json")
        (token,) = [value for value in made.values() if isinstance(value, str) and len(value) > 20]
        listed = det.json("token list", "--json")
        number = str(next(entry["id"] for entry in listed if entry["description"] == "for CI"))
        det("token describe", number, expect="for CI")
        det("token edit", number, "--description", "for nightly")
        elsewhere = {"DET_DEBUG_CONFIG_PATH": str(client.folder / "token")}
        det("token login", token, environment=elsewhere)
        det("user whoami", environment=elsewhere, expect="'admin'")
        det("token revoke", number)
        det("token list", "--show-inactive", expect="for nightly")


def test_groups_and_roles(client: Published) -> None:
    with client.commands() as det:
        client.det("workspace", "create", "of the group")
        client.det("user", "create", "gil", *(("--password", "Group-Pass-1") if client.is_new else ()))
        det("user-group create", "readers")
        det("user-group add-user", "readers", "gil")
        det("user-group list", expect=r"readers +\| +1")
        assert "gil" in json.dumps(det.json("user-group describe", "readers", "--json"))
        det("user-group remove-user", "readers", "gil")
        det("user-group change-name", "readers", "writers")
        det("rbac my-permissions")
        det("rbac list-roles", expect="Viewer")
        det("rbac describe-role", "Viewer")
        det("rbac assign-role", "Viewer", "-w", "of the group", "-g", "writers")
        det("rbac assign-role", "Editor", "-w", "of the group", "-u", "gil")
        det("rbac list-users-roles", "gil", expect="Editor")
        det("rbac list-groups-roles", "writers", expect="Viewer")
        if client.is_new:
            det("workspace list-members", "of the group", expect="gil.*Editor")
        det("rbac unassign-role", "Viewer", "-w", "of the group", "-g", "writers")
        det("user-group delete", "writers", "--yes")


@only_newer
def test_config_policies(client: Published) -> None:
    policies = client.write("policies.yaml", {"constraints": {"resources": {"max_slots": 64}}})
    with client.commands() as det:
        client.det("workspace", "create", "with policies")
        for where in ((), ("-w", "with policies")):
            det("config-policies set", "experiment", policies, *where)
            det("config-policies describe", "experiment", *where, expect="max_slots: 64")
            det("config-policies delete", "experiment", *where)
            det("config-policies describe", "experiment", *where, expect=r"\{\}")


# -- the machine ------------------------------------------------------------------------------------------------------


def test_agents_and_slots(client: Published) -> None:
    with client.commands() as det:
        (agent,) = det.json("agent list", "--json")
        name = agent["id"]
        slots = det.json("slot list", "--json")
        assert len(slots) == 2
        det("slot disable", name, "1")
        det("slot list", expect=r"\| +1 \| False")
        det("slot enable", name, "1")
        det("agent disable", name)
        det("agent list", expect=rf"{name} .*\| False +\| False")
        det("agent enable", name)
        det("agent list", "--csv", expect=f"{name}.*True")


def test_jobs_and_tasks(client: Published) -> None:
    both_slots = _long() | {"name": "random", "max_trials": 2, "max_concurrent_trials": 2}
    first = client.create(hyperparameters={"sleep": 0.2}, searcher=both_slots)
    second = client.create(hyperparameters={"sleep": 0.2}, searcher=_long())
    _until_running(client, first)
    try:
        with client.commands() as det:
            jobs = det.json("job list", "--json")["jobs"]
            assert len(jobs) == 2, jobs
            ids = [job["jobId"] for job in jobs]
            det("job list", expect="(?s)compat.*compat")
            det("job update", ids[1], "--priority", "30")
            det("job update-batch", f"{ids[0]}.priority=20", f"{ids[1]}.priority=40")
            det("experiment set priority", second, "35")
            det("experiment set weight", second, "2")
            det("experiment set max-slots", second, "2")
            tasks = det.json("task list", "--json")
            found = list(tasks.values()) if isinstance(tasks, dict) else tasks
            det("task list", expect=r"compat|Exp")
            task = next(row.get("taskId") or row.get("task_id") for row in found)
            client.cluster.until(lambda: "step 1" in client.det("task", "logs", task), 30, "the first step is logged")
            det("task logs", task, expect="step 1")
            det("slot list", expect=UUID)
            if client.is_new:
                det("task cleanup-logs")
    finally:
        for experiment in (second, first):
            client.det("experiment", "kill", str(experiment))
    for experiment in (second, first):
        client.wait_for(experiment, "CANCELED")


def test_usage(client: Published, finished: Finished) -> None:
    with client.commands() as det:
        det("resources raw", "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", expect=r"(?i)experiment|kind|slots")
        det("resources aggregated", "2026-01-01", "2026-01-31", expect="(?i)aggregation|date")
        if client.is_new:
            det("resources allocations", "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", expect="(?i)allocation")
            client.det("workspace", "create", "bound")
            det("resource-pool bindings list-workspaces", "default", expect="default")
            det("workspace list-pools", "bound", expect="default")
            because = "cluster's default|not bound"  # the one pool of this cluster is for everybody
            det.refused("resource-pool bindings add", "default", "bound", because=because)
            det.refused("resource-pool bindings replace", "default", "bound", because=because)
            det.refused("resource-pool bindings remove", "default", "bound", because=because)


# -- things in workspaces ---------------------------------------------------------------------------------------------


def test_workspaces_and_projects(client: Published) -> None:
    with client.commands() as det:
        det("workspace create", "lab")
        det("workspace list", expect=r"\| lab +\|")
        assert "lab" in json.dumps(det.json("workspace describe", "lab", "--json"))
        det(
            "workspace edit",
            "lab",
            "--name",
            "laboratory",
            *["--agent-uid", "5", "--agent-user", "u", "--agent-gid", "5", "--agent-group", "g"],
        )
        det("project create", "laboratory", "vision", "--description", "pictures")
        det("project list", "laboratory", expect="vision .*pictures")
        det("workspace list-projects", "laboratory", expect="vision")
        det("project edit", "laboratory", "vision", "--new_name", "sight")
        det("project describe", "laboratory", "sight", expect="sight")
        det("project list-experiments", "laboratory", "sight", expect="ID")
        experiment = client.create("--paused")
        det("experiment move", experiment, "laboratory", "sight")
        det("project list-experiments", "laboratory", "sight", expect=rf"\b{experiment} +\|")
        det("experiment list", "--all", "--show_project", expect="laboratory +\\| sight")
        client.det("experiment", "kill", str(experiment))
        client.wait_for(experiment, "CANCELED")
        client.det("experiment", "delete", str(experiment), "--yes")
        _until_gone(client, experiment)
        det("project archive", "laboratory", "sight")
        det("project unarchive", "laboratory", "sight")
        det("project delete", "laboratory", "sight", "--yes")
        det("workspace archive", "laboratory")
        det("workspace unarchive", "laboratory")
        if client.is_new:
            det("workspace bindings list", "laboratory")
            det.not_yet("workspace bindings set", "laboratory", "--cluster-name", "k8s", "--namespace", "n")
            det.not_yet("workspace bindings delete", "laboratory", "--cluster-name", "k8s")
            det.not_yet("workspace resource-quota set", "laboratory", "4", "--cluster-name", "k8s")
        det("workspace delete", "laboratory", "--yes")
        client.cluster.until(lambda: "laboratory" not in client.det("workspace", "list"), 30, "the workspace is gone")


def test_models(client: Published, finished: Finished) -> None:
    with client.commands() as det:
        client.det("workspace", "create", "models")
        det("model create", "digits", "--description", "ten of them")
        det("model list", expect=r"digits +\|")
        det("model register-version", "digits", finished.checkpoints[1])
        det("model describe", "digits", expect=finished.checkpoints[1])
        det("model list-versions", "digits", expect=finished.checkpoints[1])
        det("model move", "digits", "-w", "models")
        det("model list", "-w", "models", expect=r"digits +\|")
        if client.is_new:
            det("model delete", "digits")


def test_templates(client: Published) -> None:
    template = client.write("template.yaml", {"description": "from a template", "max_restarts": 3})
    with client.commands() as det:
        det("template set", "short", template)
        det("template list", "-d", expect="short.*max_restarts: 3")
        det("template describe", "short", expect="max_restarts: 3")
        if client.is_new:
            det("template create", "second", template, "-w", "Uncategorized")
            det("template set-value config", "second", template)
            det("template remove", "second")
        path = client.write("small.yaml", experiment_config(client.generation))
        experiment = created(det("experiment create", path, MODEL, "--paused", "--template", "short"))
        config = det("experiment config", experiment, expect="description: from a template")
        assert "max_restarts: 0" in config, "the submitted configuration wins"
        client.det("experiment", "kill", str(experiment))
        det("template remove", "short")


# -- experiments ------------------------------------------------------------------------------------------------------


def test_life_of_an_experiment(client: Published) -> None:
    path = client.write(
        "long.yaml", experiment_config(client.generation, hyperparameters={"sleep": 0.2}, searcher=_long())
    )
    with client.commands() as det:
        experiment = created(det("experiment create", path, MODEL, "--paused", expect=r"Created experiment \d+\n"))
        det("experiment activate", experiment)
        _until_running(client, experiment)
        det("experiment pause", experiment)
        det("experiment set name", experiment, "renamed")
        det("experiment set description", experiment, "described")
        det("experiment label add", experiment, "blue")
        det("experiment label add", experiment, "green")
        det("experiment label remove", experiment, "blue")
        det("experiment list", expect=rf"\b{experiment} +\| admin +\| renamed +\|.*PAUSED")
        (shown,) = det.json("experiment describe", experiment, "--json")
        assert shown["experiment"]["description"] == "described"
        assert shown["experiment"]["labels"] == ["green"]
        det("experiment activate", experiment)
        _until_running(client, experiment)
        trial = client.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment}")[0][0]
        det("trial kill", trial)
        det("experiment cancel", experiment)
        client.cluster.until(
            lambda: client.rows(f"SELECT ended_at IS NOT NULL FROM experiments WHERE id = {experiment}") == [(1,)],
            30,
            "the experiment ended",
        )
        det("experiment archive", experiment)
        if client.is_new:  # 0.21 does not ask to leave them out
            assert not _is_listed(client, experiment)
        det("experiment unarchive", experiment)
        assert _is_listed(client, experiment)
        other = client.create("--paused")
        det("experiment kill", other)
        client.wait_for(other, "CANCELED")
        det("experiment delete", other, "--yes")
        _until_gone(client, other)
        assert client.create("--paused") > other, "the number of a deleted experiment is not given again"


def test_finished_experiment_is_read(client: Published, finished: Finished, tmp_path: Path) -> None:
    number, (early, late) = finished.experiment, finished.checkpoints
    with client.commands() as det:
        det("experiment wait", number, "--polling-interval", "1", expect="")
        det("experiment list-trials", number, expect=rf"{finished.trial} +\| COMPLETED .*\| +6\b")
        det("experiment list-checkpoints", number, expect=f"(?s){late}")
        det("experiment list-checkpoints", number, "--best", "1", expect=rf"0\.75 .*{late}")
        det("experiment describe", number, "--metrics", expect=r"compat.*COMPLETED.*0\.166667.*0\.75")
        (tmp_path / "csv").mkdir()
        det("experiment describe", number, "--outdir", tmp_path / "csv")
        assert len(list((tmp_path / "csv").glob("*.csv"))) == 3
        det("experiment config", number, expect="name: compat")
        det("experiment logs", number, expect="(?s)step 1\n.*step 6\n")
        det("experiment logs", number, "--tail", "4", expect="step 6")
        det("experiment download-model-def", number, "--output-dir", tmp_path)
        with tarfile.open(tmp_path / f"experiment_{number}_model_def.tgz") as packed:
            assert "train.py" in packed.getnames()
        if client.is_new:
            det("experiment download", number, "-o", tmp_path / "best", "--top-n", "2")
            assert {path.name for path in (tmp_path / "best").iterdir()} == {early, late}
            assert json.loads((tmp_path / "best" / late / "state.json").read_text()) == {"steps": 6}
        else:
            det.own_fault("experiment download", number, how="asks without credentials, and is refused")
        if client.is_new:
            det("experiment set log-retention", number, "--days", "5")
            det("trial set log-retention", finished.trial, "--forever")
            det("experiment delete-tb-files", number)


def test_trials_and_checkpoints(client: Published, finished: Finished, tmp_path: Path) -> None:
    trial, (early, late) = finished.trial, finished.checkpoints
    with client.commands() as det:
        det("trial describe", trial, "--metrics", expect=rf"(?s)COMPLETED.*{early}.*{late}")
        shown = det.json("trial describe", trial, "--json")
        assert shown["trial"]["totalBatchesProcessed"] == 6
        assert len(shown["workloads"]) >= 8
        det("trial logs", trial, expect="step 6")
        det("trial logs", trial, "--head", "2", expect=r"^\[\d{4}-\d\d-\d\dT[^\n]*\n[^\n]*\n")
        if client.is_new:  # 0.21 fails on any level before it asks
            det("trial logs", trial, "--level", "ERROR", expect="^[^|]*$")
        if client.is_new:
            for which in ("--best", "--latest"):
                how = "takes the last of the checkpoints that it asks for best, or latest, first"
                det.own_fault("trial download", trial, which, "-o", tmp_path / which, how=how, expect=early)
        else:
            det("trial download", trial, "--best", "-o", tmp_path / "best", expect=late)
            det("trial download", trial, "--latest", "-o", tmp_path / "latest", expect=late)
            det("trial download", trial, "--uuid", early, "-o", tmp_path / "early", "-q")
            assert json.loads((tmp_path / "early" / "state.json").read_text()) == {"steps": 4}
        det("trial support-bundle", trial, "-o", tmp_path)
        assert list(tmp_path.glob("*.tar.gz"))
        det("checkpoint describe", late, expect=rf"(?s){trial}.*{late}.*from train\.py")
        det("checkpoint download", late, "-o", tmp_path / "direct", "--mode", "direct", expect=str(tmp_path / "direct"))
        det("checkpoint download", late, "-o", tmp_path / "master", "--mode", "master")
        for folder in ("direct", "master"):
            assert json.loads((tmp_path / folder / "state.json").read_text()) == {"steps": 6}


def test_checkpoints_are_deleted(client: Published) -> None:
    experiment = client.create("--follow-first-trial", checkpoint_storage=_keep_all(client))
    client.wait_for(experiment)
    query = f"SELECT uuid FROM checkpoints WHERE trial_id IN (SELECT id FROM trials WHERE experiment_id = {experiment})"
    early, late = [uuid for (uuid,) in client.rows(query + " ORDER BY steps_completed")]
    with client.commands() as det:
        if client.is_new:
            det("checkpoint rm", early, "--glob", "state.json", "--yes")
            client.cluster.until(
                lambda: not (client.folder / "storage" / early / "state.json").exists(), 30, "the file is removed"
            )
        det("checkpoint delete", early, "--yes")
        client.cluster.until(lambda: not (client.folder / "storage" / early).exists(), 30, "the checkpoint is removed")
        options = ["--save-experiment-best", "0", "--save-trial-best", "0", "--save-trial-latest", "0", "--yes"]
        det("experiment set gc-policy", experiment, *options)
        client.cluster.until(lambda: not (client.folder / "storage" / late).exists(), 30, "the policy is followed")


@only_newer
def test_experiment_is_continued(client: Published) -> None:
    experiment = client.create("--follow-first-trial")
    client.wait_for(experiment)
    with client.commands() as det:
        det("experiment continue", experiment, "--config", "searcher.max_length=8", "-f", expect="resumed at 6.*step 8")
    client.wait_for(experiment)


def test_search_is_previewed(client: Published) -> None:
    searcher = {"name": "random", "metric": "accuracy", "max_length": {"batches": 100}, "max_trials": 7}
    config = experiment_config(client.generation, searcher=searcher)
    with client.commands() as det:
        det("preview-search", client.write("search.yaml", config), expect=r"(?m)^ *7 \|.*100")


def test_wrong_configuration_is_told(client: Published) -> None:
    bad = experiment_config(client.generation, searcher={"name": "adaptive_ahsa", "metric": "x"})
    with client.commands() as det:
        det.refused("experiment create", client.write("bad.yaml", bad), MODEL, because="adaptive_asha")


# -- tasks of one's own -----------------------------------------------------------------------------------------------


def test_commands(client: Published) -> None:
    none = ("--config", "resources.slots=0")
    with client.commands() as det:
        told = det("command run", *none, "echo", "from the command", expect="from the command")
        assert "Task log stream ended" in told or not client.is_new
        waiting = det("command run", "-d", *none, "sleep", "300").strip().splitlines()[-1]
        det("command list", expect=waiting)
        det("command list", "--all", "--json")
        if client.is_new:
            det("command describe", waiting, expect=waiting)
        det("command config", waiting, expect="sleep")
        det("command set priority", waiting, "30")
        det("command logs", waiting, expect="Scheduling Command")
        det("command kill", waiting, expect="(?i)killed")
        client.cluster.until(
            lambda: "TERMINATED" in client.det("command", "list", "--all"), 30, "the command has ended"
        )


@only_newer
def test_generic_tasks(client: Published) -> None:
    config = client.write("task.yaml", {"entrypoint": ["sleep", "300"], "resources": {"slots": 0}})
    with client.commands() as det:
        told = det("task create", config, expect=r"Created task [0-9a-f-]{36}")
        task = re.findall(UUID, told)[0]
        det("task config", task, expect="sleep")
        client.cluster.until(lambda: task in client.det("task", "list"), 30, "the task runs")
        det("task pause", task, expect="Paused task")
        client.cluster.until(lambda: task not in client.det("task", "list"), 30, "the task is paused")
        det("task unpause", task, expect="Unpaused task")
        fork = re.findall(UUID, det("task fork", task, expect="Created task"))[0]
        for each in (task, fork):
            det("task kill", each, expect="killed task")


def _until_ready(client: Published, task: str) -> None:
    query = f"SELECT count(*) FROM allocations WHERE task_id = '{task}' AND ready_at IS NOT NULL"
    client.cluster.until(lambda: client.rows(query) == [(1,)], 60, f"task {task} is ready")


def _starts(client: Published, finished: Finished) -> dict[str, tuple[Any, ...]]:
    none = ("--config", "resources.slots=0", "-d")
    return {
        "notebook": (*none, "--no-browser"),
        "shell": none,
        "tensorboard": (finished.experiment, "--no-browser", "-d"),
    }


@pytest.mark.parametrize("kind", ["notebook", "shell", "tensorboard"])
def test_interactive_tasks(client: Published, finished: Finished, kind: str) -> None:
    browser = {"BROWSER": "true"}  # the program `true`: there is none to open
    with client.commands() as det:
        task = det(f"{kind} start", *_starts(client, finished)[kind], expect=UUID).strip().splitlines()[-1]
        det(f"{kind} list", "--all", expect=task)
        det(f"{kind} config", task, expect="environment")
        _until_ready(client, task)
        det(f"{kind} set priority", task, "30")
        det(f"{kind} logs", task, expect="is available")
        if kind == "shell":
            name = "show-ssh-command" if client.is_new else "show_ssh_command"
            det(f"shell {name}", task, expect="ssh .*ProxyCommand")
            det("shell open", task, "echo in $DET_TASK_ID", expect=f"in {task}")
        else:
            det(f"{kind} open", task, environment=browser)
        det(f"{kind} kill", task, expect="(?i)killed")
        query = f"SELECT state FROM tasks WHERE id = '{task}'"
        client.cluster.until(lambda: client.rows(query) == [("CANCELED",)], 30, f"the {kind} has ended")


def test_starts_that_wait_until_the_task_is_ready(client: Published, finished: Finished) -> None:
    """The older one follows events, the newer one asks for the task."""
    none = ("--config", "resources.slots=0")
    with client.commands() as det:
        det("shell start", *none, "echo started $DET_TASK_TYPE", expect="started SHELL")
        det("tensorboard start", finished.experiment, environment={"BROWSER": "true"}, expect="(?i)tensorboard")
        if client.is_new:  # the older one follows a notebook until it ends
            det("notebook start", "--no-browser", *none, expect="(?i)notebook")
    for task, kind in client.rows("SELECT id, lower(kind) FROM tasks WHERE ended_at IS NULL AND trial_id IS NULL"):
        client.det(kind, "kill", task)


# -- what comes later -------------------------------------------------------------------------------------------------


def test_commands_that_no_test_runs_are_on_record(client: Published) -> None:
    for row in rows("commands.csv"):
        if row["command"] in LEFT_OUT and client.generation in row["clients"].split():
            client.record.command(client.generation, row["command"], f"{NOT_YET}: {LEFT_OUT[row['command']]}")


def test_what_only_the_enterprise_edition_has_is_refused(client: Published) -> None:
    with client.commands() as det:
        det.not_yet("oauth client list")
        det.not_yet("oauth client add", "name", "http://domain.invalid")
        det.not_yet("oauth client remove", "1")


LEFT_OUT = {"auth login": "opens a browser at a provider of logins"}
"""Commands that no test runs, and why."""


def _long() -> dict[str, Any]:
    return {"name": "single", "metric": "accuracy", "smaller_is_better": False, "max_length": 1000}


def _keep_all(client: Published) -> dict[str, Any]:
    return {"type": "shared_fs", "host_path": str(client.folder / "storage"), "save_trial_latest": 5}


def _until_running(client: Published, experiment: int) -> None:
    query = (
        "SELECT count(*) FROM metrics JOIN trials ON trials.id = metrics.trial_id"
        f" WHERE trials.experiment_id = {experiment}"
    )
    before = client.rows(query)[0][0]
    client.cluster.until(lambda: client.rows(query)[0][0] > before, 60, f"experiment {experiment} reports")


def _until_gone(client: Published, experiment: int) -> None:
    query = f"SELECT count(*) FROM experiments WHERE id = {experiment}"
    client.cluster.until(lambda: client.rows(query) == [(0,)], 30, f"experiment {experiment} is gone")


def _is_listed(client: Published, experiment: int) -> bool:
    listed = client.det("experiment", "list", "--csv").splitlines()[1:]
    return any(line.split(",")[0] == str(experiment) for line in listed)
