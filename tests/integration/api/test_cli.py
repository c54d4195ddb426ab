"""`det`, group by group, as users call it: in this process, against the running API."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import tarfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from api.services import chunked_contexts
from cli.main import main
from database.models import Agent, CampaignRun, Experiment, ResourcePool, Trial, UserToken
from database.types import utc_now
from tests.integration.api.served import PASSWORD, Caller, Run, Served
from tests.integration.api.test_cluster import an_agent
from tests.integration.api.test_models import checkpoint
from tests.integration.api.test_workspaces import give_role, pool, unique


@dataclass(frozen=True)
class Result:
    """What a call of `det` did."""

    code: int
    out: str
    err: str

    @property
    def cells(self) -> list[dict[str, str]]:
        """The rows of a table, by header."""
        header, _, *rows = self.out.splitlines()
        names = [cell.strip() for cell in header.split("|")]
        return [dict(zip(names, (cell.strip() for cell in row.split("|")), strict=True)) for row in rows]


Det = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture
def det(
    api: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Coroutine[Any, Any, Result]]:
    """`await det(user, "e", "ls")`. The exit code must be `code`; what is wrong is said in one line, never a trace."""
    for name in ("DET_USER", "DET_PASS", "DET_MASTER_ADDR", "DET_DEBUG", "DET_SESSION_TOKEN", "DET_ALLOCATION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_MASTER", str(api.http.base_url))
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))

    async def run(user: Caller, *words: Any, code: int = 0, stdin: str = "") -> Result:
        monkeypatch.setenv("DET_USER_TOKEN", user.headers["Authorization"].removeprefix("Bearer "))
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        got = await asyncio.to_thread(main, [str(word) for word in words])
        result = Result(got, *capsys.readouterr())
        assert result.code == code, (words, result)
        assert "Traceback" not in result.err
        assert "This is a bug" not in result.err, result.err
        if code in (3, 4, 5):
            assert len(result.err.strip().splitlines()) == 1, result.err
        return result

    return run


async def json_of(det: Det, user: Caller, *words: Any) -> Any:
    return json.loads((await det(user, *words, "--json")).out)


@pytest.fixture
def admin(api: Served) -> Caller:
    return api.user(is_admin=True)


@pytest.fixture
def user(api: Served) -> Caller:
    return api.user()


# -- every list, in every form -------------------------------------------------------------------------------------


@pytest.fixture
async def things(api: Served, admin: Caller) -> AsyncIterator[dict[str, Any]]:
    """One of each, and what to call it in a command."""
    run = await api.trial(admin)
    name = f"thing-{uuid.uuid4().hex[:8]}"
    await admin.post("/api/v1/workspaces", {"name": name})
    uuid_ = await checkpoint(run)
    await admin.post("/api/v1/models", {"name": name})
    await admin.post(f"/api/v1/models/{name}/versions", {"checkpointUuid": uuid_})
    await admin.post(f"/api/v1/templates/{name}", {"config": {"max_restarts": 3}})
    await admin.post("/api/v1/groups", {"name": name, "addUsers": [admin.user_id]})
    await admin.post("/api/v1/tokens", {"userId": admin.user_id})
    trigger = {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}}
    hook = await admin.post("/api/v1/webhooks", {"url": "https://example.com/x", "triggers": [trigger]})
    with api.database.write() as session:
        session.merge(Agent(id="agent-of-lists", pool="default", slot_ids=[0, 1], is_connected=True))
    yield {"name": name, "experiment": run.experiment_id, "trial": run.trial_id}
    await admin.ask("DELETE", f"/api/v1/webhooks/{hook['webhook']['id']}")  # or it is told of all other tests
    with api.database.write() as session:
        session.delete(session.get_one(Agent, "agent-of-lists"))


LISTS = (
    ("experiment list", "ID"),
    ("experiment list-trials {experiment}", "Trial ID"),
    ("experiment list-checkpoints {experiment}", "UUID"),
    ("model list", "Name"),
    ("model list-versions {name}", "Version #"),
    ("workspace list", "Name"),
    ("workspace list-projects Uncategorized", "Name"),
    ("workspace list-pools Uncategorized", "Name"),
    ("project list Uncategorized", "ID"),
    ("project list-experiments Uncategorized Uncategorized", "ID"),
    ("template list", "Name"),
    ("task list", "Task ID"),
    ("job list", "ID"),
    ("agent list", "Agent ID"),
    ("slot list", "Slot ID"),
    ("resource-pool list", "Name"),
    ("user list", "Username"),
    ("user-group list", "Name"),
    ("rbac list-roles", "Role Name"),
    ("rbac my-permissions", "Permission"),
    ("rbac list-users-roles {admin}", "Role Name"),
    ("token list", "ID"),
    ("webhook list", "ID"),
    ("audit list", "#"),
)


async def test_every_list_has_every_form(api: Served, admin: Caller, det: Det, things: dict[str, Any]) -> None:
    for text, column in LISTS:
        words = text.format(admin=admin.username, **things).split()
        table = await det(admin, *words)
        assert table.cells, (words, table.out)
        header, *rows = csv.reader(io.StringIO((await det(admin, *words, "--csv")).out))
        assert header == list(table.cells[0]), words
        assert rows
        as_json = await json_of(det, admin, *words)
        as_yaml = yaml.safe_load((await det(admin, *words, "--yaml")).out)
        assert as_json
        assert type(as_yaml) is type(as_json), words
        chosen = await det(admin, *words, "--columns", column.lower(), "--limit", "1")
        assert chosen.out.splitlines()[0].strip() == column
        assert len(chosen.cells) == 1, words


async def test_columns_are_picked_in_order_and_mistakes_are_explained(admin: Caller, det: Det) -> None:
    picked = await det(admin, "user", "list", "--columns", "admin, USER ID", "--csv", "--limit", "1")
    assert picked.out.splitlines()[0] == "Admin,User Id"
    refused = await det(admin, "user", "list", "--columns", "Usrname", code=2)
    assert "no column 'Usrname'; did you mean 'Username'? There are: User Id, Username" in " ".join(refused.err.split())
    assert "--columns" in (await det(admin, "user", "list", "--columns", "Admin", "--json", code=2)).err
    assert "only one of" in (await det(admin, "user", "list", "--csv", "--json", code=2)).err
    assert (await det(admin, "user", "list", "--limit", "0", code=2)).out == ""


async def test_limit_offset_and_pages(api: Served, det: Det) -> None:
    user = api.user()
    ids = [await api.experiment(user) for _ in range(5)]

    async def listed(*words: Any) -> list[int]:
        return [each["id"] for each in await json_of(det, user, "e", "ls", *words)]

    assert await listed() == ids
    assert await listed("--limit", 2) == ids[-2:]
    assert await listed("--limit", 2, "--offset", 1) == ids[2:4]
    assert await listed("--limit", 2, "--pages", "all") == ids
    assert await listed("--limit", 2, "--pages", "1") == ids[-2:]
    assert [row["ID"] for row in (await det(user, "e", "--limit", 1, "--columns", "ID")).cells] == [str(ids[-1])], (
        "bare"
    )
    assert "1, all" in (await det(user, "e", "ls", "--pages", "2", code=2)).err.replace("'", "")


# -- workspaces and projects ---------------------------------------------------------------------------------------


async def test_workspace_lives(api: Served, det: Det, user: Caller) -> None:
    name, other = unique(), api.user()
    made = await json_of(det, user, "workspace", "create", name, "--everyone", "viewer")
    assert (made["name"], made["everyone"]) == (name, "viewer")
    storage = "{type: shared_fs, host_path: /tmp}"
    edited = await json_of(det, user, "w", "edit", name, "--name", f"{name}x", "--checkpoint-storage-config", storage)
    assert edited["checkpointStorageConfig"]["host_path"] == "/tmp"
    name += "x"
    assert name in (await det(user, "w", "describe", name.upper())).out, "in any case"
    assert (await json_of(det, user, "w", "describe", name))["id"] == made["id"]
    give_role(api, other, made["id"], "editor")
    members = (await det(user, "w", "list-members", name)).cells
    assert {"User/Group Name": other.username, "User/Group": "User", "Role Name": "Editor"} in members
    assert "default" in (await det(user, "w", "list-pools", name)).out
    await det(user, "w", "archive", name)
    await det(user, "w", "unarchive", name)
    assert "needs the role admin" in (await det(other, "w", "edit", name, "--agent-uid", 1, code=3)).err
    assert "aborted" in (await det(user, "w", "delete", name, stdin="n\n", code=1)).err
    await det(user, "w", "delete", name, "--yes")
    await det(user, "w", "describe", name, code=4)


async def test_project_lives(det: Det, user: Caller) -> None:
    where, name = unique(), unique("project")
    await det(user, "w", "create", where)
    made = await json_of(det, user, "project", "create", where, name, "--description", "pictures", "--key", "ABC")
    assert (made["description"], made["key"]) == ("pictures", "ABC")
    assert [row["Name"] for row in (await det(user, "p", "list", where)).cells] == [name]
    assert (await json_of(det, user, "w", "list-projects", where))[0]["id"] == made["id"]
    await det(user, "p", "edit", where, name, "--new_name", f"{name}y")
    name += "y"
    shown = await json_of(det, user, "p", "describe", where, name)
    assert (shown["name"], shown["experiments"]) == (name, [])
    assert "Experiments:" in (await det(user, "p", "describe", where, name)).out
    await det(user, "p", "archive", where, name)
    await det(user, "p", "unarchive", where, name)
    assert "nothing to change" in (await det(user, "p", "edit", where, name, code=2)).err
    await det(user, "p", "delete", where, name, "--yes")
    assert (await det(user, "p", "list", where, "--csv")).out.count("\n") == 1


async def test_kubernetes_is_refused_by_the_cluster_itself(det: Det, user: Caller) -> None:
    name = unique()
    await det(user, "w", "create", name)
    for words in (
        ("w", "create", unique(), "-n", "space"),
        ("w", "create", unique(), "--resource-quota", 3),
        ("w", "bindings", "set", name, "--namespace", "n"),
        ("w", "bindings", "delete", name, "--cluster-name", "k8s"),
        ("w", "resource-quota", "set", name, 4, "--cluster-name", "k8s"),
    ):
        assert "Kubernetes" in (await det(user, *words, code=1)).err
    assert await json_of(det, user, "w", "bindings", "ls", name) == {}
    assert (
        "only one of"
        in (await det(user, "w", "bindings", "set", name, "-n", "n", "--auto-create-namespace", code=2)).err
    )


# -- what is called nearly so --------------------------------------------------------------------------------------


async def test_names_that_are_not_found_get_the_nearest(api: Served, det: Det, admin: Caller) -> None:
    name = f"walnut{uuid.uuid4().hex[:12]}"
    await admin.post("/api/v1/workspaces", {"name": name})
    await det(admin, "p", "create", name, name)
    await admin.post("/api/v1/models", {"name": name})
    await admin.post(f"/api/v1/templates/{name}", {"config": {"max_restarts": 1}})
    await admin.post("/api/v1/groups", {"name": name})
    api.user(name)
    await an_agent(api, name)
    with api.database.write() as session:
        session.add(ResourcePool(name=f"pool-of-{name}"))
    wrong = f"{name[:8]}{name[9:]}"
    for words in (
        ("workspace", "describe", wrong),
        ("workspace", "archive", wrong),
        ("project", "describe", name, wrong),
        ("project", "list", wrong),
        ("model", "describe", wrong),
        ("model", "list-versions", wrong),
        ("model", "delete", wrong),
        ("model", "list", "-w", wrong),
        ("template", "describe", wrong),
        ("template", "rm", wrong),
        ("user", "edit", wrong, "--display-name", "x"),
        ("user", "deactivate", wrong),
        ("token", "list", wrong),
        ("token", "create", wrong),
        ("user-group", "describe", wrong),
        ("agent", "disable", wrong),
        ("slot", "enable", wrong, "0"),
        ("job", "list", "-p", f"pool-of-{wrong}"),
        ("resource-pool", "bindings", "list-workspaces", f"pool-of-{wrong}"),
        ("config-policies", "experiment", "-w", wrong),
    ):
        if words[0] == "config-policies":
            words = ("config-policies", "describe", *words[1:])
        near = f"pool-of-{name}" if "pool-of-" in str(words) else name
        result = await det(admin, *words, code=4)
        assert f"did you mean '{near}'?" in result.err, words
    assert "did you mean 'Editor'" in (await det(admin, "rbac", "describe-role", "Editr", code=4)).err
    assert "did you mean" not in (await det(admin, "model", "describe", "qqqqqqqqqqqqqq", code=4)).err


async def test_no_name_is_suggested_when_something_else_is_missing(det: Det, admin: Caller) -> None:
    name = unique("model")
    await det(admin, "m", "create", name)
    told = (await det(admin, "m", "register-version", name, uuid.uuid4(), code=4)).err
    assert "did you mean" not in told
    assert "it has none yet" in (await det(admin, "m", "describe", name, "--version", 7, code=4)).err


def copy_of(session: Session, table: Any, id_: int, **changes: Any) -> None:
    columns = [column for column in table.__table__.columns if column.computed is None]
    row = session.execute(select(*columns).where(table.id == id_)).mappings().one()
    session.execute(insert(table.__table__).values({**row, **changes}))


async def test_numbers_that_are_mixed_up_or_mistyped_are_told(api: Served, det: Det, user: Caller) -> None:
    run = await api.trial(user)
    with api.database.write() as session:  # copies with numbers that nothing else has
        copy_of(session, Experiment, run.experiment_id, id=1_234_567, job_id=str(uuid.uuid4()), state="COMPLETED")
        copy_of(
            session,
            Trial,
            run.trial_id,
            id=7_654_321,
            task_id=unique(),
            request_id=str(uuid.uuid4()),
            state="COMPLETED",
        )
    told = (await det(user, "e", "describe", 7_654_321, code=4)).err
    assert f"did you mean trial 7654321, of experiment {run.experiment_id}?" in told
    assert "did you mean experiment 1234567?" in (await det(user, "t", "describe", 1_234_567, code=4)).err
    assert "did you mean 1234567?" in (await det(user, "e", "describe", 1_234_576, code=4)).err
    assert "did you mean" not in (await det(api.user(), "t", "describe", 99_999_999, code=4)).err


# -- models and templates ------------------------------------------------------------------------------------------


async def test_model_lives(api: Served, det: Det, user: Caller) -> None:
    name, where = unique("model"), unique()
    uuid_ = await checkpoint(await api.trial(user))
    made = await json_of(det, user, "m", "create", name, "--description", "ten digits")
    assert made["description"] == "ten digits"
    assert (await json_of(det, user, "m", "register-version", name, uuid_))["version"] == 1
    assert uuid_ in (await det(user, "m", "describe", name)).out
    shown = await json_of(det, user, "m", "describe", name, "--version", 1)
    assert shown["modelVersion"]["checkpoint"]["uuid"] == uuid_
    [row] = (await det(user, "m", "list-versions", name)).cells
    assert (row["Version #"], row["Checkpoint UUID"]) == ("1", uuid_)
    await det(user, "w", "create", where)
    await det(user, "m", "move", name, "-w", where)
    assert [row["Name"] for row in (await det(user, "m", "ls", "-w", where)).cells] == [name]
    assert (await det(user, "m", "ls", "--sort-by", "name", "--order-by", "desc")).cells
    await det(user, "m", "create", name, code=5)
    await det(user, "m", "delete", name)
    await det(user, "m", "describe", name, code=4)


async def test_template_lives(det: Det, user: Caller, tmp_path: Path) -> None:
    name, where = unique("template"), unique()
    file = tmp_path / "template.yaml"
    file.write_text("max_restarts: 3\n")
    await det(user, "w", "create", where)
    await det(user, "template", "create", name, file, "-w", where)
    [row] = [row for row in (await det(user, "tpl", "-d")).cells if row["Name"] == name]
    assert row == {"Name": name, "Workspace": where, "Config": '{"max_restarts": 3}'}
    file.write_text("max_restarts: 4\n")
    await det(user, "tpl", "set-value", "config", name, file)
    assert (await det(user, "tpl", "describe", name)).out == "max_restarts: 4\n"
    file.write_text("max_restarts: 5\n")
    await det(user, "tpl", "set", name, file)
    assert await json_of(det, user, "tpl", "describe", name) == {"max_restarts": 5}
    await det(user, "tpl", "create", name, file, code=5)
    await det(user, "tpl", "rm", name)
    await det(user, "tpl", "describe", name, code=4)
    for text, told in (("- 1\n", "expected names with values"), ("a: [", "is no YAML")):
        file.write_text(text)
        assert told in (await det(user, "tpl", "set", name, file, code=1)).err
    assert "can't be read" in (await det(user, "tpl", "set", name, tmp_path / "none", code=1)).err


# -- users and access ----------------------------------------------------------------------------------------------


async def test_user_is_changed(api: Served, det: Det, admin: Caller) -> None:
    name = unique("u")
    await det(admin, "user", "create", name, "--password", "a long secret")
    await det(admin, "user", "edit", name, "--display-name", f"Ada {name}", "--admin", "true", "--active", "false")
    words = ["--agent-uid", 5, "--agent-user", "ada", "--agent-gid", 6, "--agent-group", "people"]
    await det(admin, "u", "link-with-agent-user", name, *words)
    [found] = [each for each in await json_of(det, admin, "user", "list", "-a") if each["username"] == name]
    assert (found["displayName"], found["admin"], found["active"]) == (f"Ada {name}", True, False)
    assert found["agentUserGroup"] == {"agentUid": 5, "agentUser": "ada", "agentGid": 6, "agentGroup": "people"}
    assert all(each["username"] != name for each in await json_of(det, admin, "user", "list")), "it is not active"
    await det(admin, "user", "activate", name)
    await det(admin, "user", "rename", name, f"{name}x")
    assert "expected all of" in (await det(admin, "u", "link-with-agent-user", name, "--agent-uid", 5, code=2)).err
    assert "nothing to change" in (await det(admin, "u", "edit", name, code=2)).err
    await det(admin, "u", "edit", f"{name}x", "--admin", "maybe", code=2)
    await det(api.user(), "u", "edit", f"{name}x", "--admin", "true", code=3)


async def test_groups_and_roles(api: Served, det: Det, admin: Caller, user: Caller) -> None:
    group, where, other = unique("group"), unique(), api.user()
    await det(admin, "w", "create", where)
    await det(admin, "user-group", "create", group, "--add-user", user.username)
    await det(admin, "user-group", "add-user", group, f"{other.username},{admin.username}")
    await det(admin, "user-group", "remove-user", group, admin.username)
    assert [u["username"] for u in (await json_of(det, user, "user-group", "describe", group))["users"]] == [
        user.username,
        other.username,
    ]
    mine = (await det(user, "user-group", "ls", "--groups-user-belongs-to", user.username)).cells
    assert [(row["Name"], row["Num Members"]) for row in mine] == [(group, "2")]
    await det(admin, "rbac", "assign-role", "viewer", "-w", where, "-g", group)
    await det(admin, "rbac", "assign-role", "Editor", "-w", where, "-u", user.username)
    told = (await det(admin, "rbac", "list-users-roles", user.username)).cells
    assert {(row["Role Name"], row["By"]) for row in told} == {("Editor", "the user"), ("Viewer", f"group {group}")}
    assert {row["Where"] for row in told} == {where}
    assert [row["Role Name"] for row in (await det(admin, "rbac", "list-groups-roles", group)).cells] == ["Viewer"]
    assert "Editor" in {row["Role Name"] for row in (await det(user, "rbac", "my-permissions")).cells}
    assert user.username in (await det(admin, "rbac", "describe-role", "Editor")).out
    assert "ClusterAdmin" not in (await det(user, "rbac", "list-roles", "--exclude-global-roles")).out
    await det(admin, "rbac", "unassign-role", "Viewer", "-w", where, "-g", group)
    await det(admin, "rbac", "unassign-role", "Viewer", "-w", where, "-g", group, code=4)
    assert "expected --username" in (await det(admin, "rbac", "assign-role", "Viewer", code=2)).err
    await det(user, "rbac", "assign-role", "Viewer", "-u", other.username, code=3)
    await det(admin, "user-group", "change-name", group, f"{group}x")
    await det(admin, "user-group", "delete", f"{group}x", "--yes")
    await det(user, "user-group", "create", unique(), code=3)


async def test_access_token_lives(det: Det, user: Caller, admin: Caller) -> None:
    made = await json_of(det, user, "token", "create", "-e", 2, "-d", "for a robot")
    number = made["tokenId"]
    [row] = (await det(user, "tkn", "describe", number)).cells
    assert (row["Description"], row["Revoked"], row["Scope"]) == ("for a robot", "False", "full")
    await det(user, "token", "edit", number, "-d", "for another")
    assert [row["Description"] for row in (await det(admin, "token", "ls", user.username)).cells] == ["for another"]
    assert user.username in (await det(user, "token", "login", made["token"])).out
    assert "takes no such" in (await det(user, "token", "login", "nonsense", code=3)).err
    await det(user, "token", "revoke", number)
    assert (await json_of(det, admin, "token", "ls", user.username)) == []
    assert len(await json_of(det, admin, "token", "ls", user.username, "--show-inactive")) == 1
    await det(user, "token", "describe", 10**8, code=4)
    never = (await det(admin, "token", "create", "-e", "-1")).out.splitlines()
    assert re.fullmatch(r"Created access token \d+", never[0])
    await det(user, "token", "create", admin.username, code=3)


# -- the machine ---------------------------------------------------------------------------------------------------


async def test_agents_and_slots_leave_and_return(api: Served, det: Det, admin: Caller, user: Caller) -> None:
    name = await an_agent(api, unique("agent"))

    async def enabled() -> dict[str, bool]:
        slots = await json_of(det, user, "s", "ls")
        return {slot["slot_id"]: slot["enabled"] for slot in slots if slot["agent_id"] == name}

    await det(admin, "slot", "disable", name, 1)
    assert await enabled() == {"0": True, "1": False}
    await det(admin, "slot", "enable", name, 1)
    assert "Disabled" in (await det(admin, "agent", "disable", name, "--drain")).err
    [agent] = [each for each in await json_of(det, user, "a", "ls") if each["id"] == name]
    assert (agent["enabled"], agent["draining"], agent["num_slots"]) == (False, True, 2)
    await det(admin, "agent", "enable", name)
    assert await enabled() == {"0": True, "1": True}
    assert "(it has: 0, 1)" in (await det(admin, "slot", "disable", name, 9, code=4)).err
    assert "either an agent's id or --all" in (await det(admin, "agent", "disable", code=2)).err
    await det(admin, "agent", "enable", name, "--all", code=2)
    await det(user, "agent", "disable", name, code=3)


async def test_tasks_and_jobs(api: Served, det: Det, user: Caller) -> None:
    run = await api.trial(user)
    tasks = await json_of(det, user, "task", "list")
    assert tasks[run.allocation_id]["taskId"] == run.task_id
    jobs = (await json_of(det, user, "job", "ls"))["jobs"]
    [job] = [each for each in jobs if each.get("entityId") == str(run.experiment_id)]
    await det(user, "j", "u", job["jobId"], "-p", 30)
    await det(user, "j", "update-batch", f"{job['jobId']}.priority=20", f"{job['jobId']}.weight=2.5")
    after = [
        each for each in (await json_of(det, user, "j", "ls", "--reverse"))["jobs"] if each["jobId"] == job["jobId"]
    ]
    assert (after[0]["priority"], after[0]["weight"]) == (20, 2.5)
    for words, told in (
        ((job["jobId"],), "exactly one of"),
        ((job["jobId"], "-p", 1, "-w", 2), "exactly one of"),
    ):
        assert told in (await det(user, "job", "update", *words, code=2)).err
    for operation in ("x", f"{job['jobId']}.colour=1", f"{job['jobId']}.priority=high", ".priority=1"):
        assert "expected" in (await det(user, "job", "update-batch", operation, code=2)).err
    moved = ("job", "update", job["jobId"], "--resource-pool")
    assert "does not exist" in (await det(user, *moved, "x", code=1)).err
    assert "is unchanged" in (await det(user, *moved, job["resourcePool"], code=1)).err
    await det(api.user(), "job", "update", job["jobId"], "-p", 1, code=3)


async def test_settings_of_a_pool(det: Det, user: Caller, admin: Caller) -> None:
    shown = (await det(user, "resource-pool", "settings", "default")).out
    assert "scheduler: priority\n" in shown
    words = ("preemption=true", "quotas.users.*=4", "quotas.users={ann.b: 2}")
    try:
        changed = await json_of(det, admin, "resource-pool", "settings", "default", *words[:2])
        assert (changed["preemption"], changed["quotas"]["users"]) == (True, {"*": 4})
        changed = await json_of(det, admin, "resource-pool", "settings", "default", words[2])
        assert changed["quotas"]["users"] == {"*": 4, "ann.b": 2}
        assert "scheduler: " in (await det(admin, "resource-pool", "settings", "default", "scheduler=x", code=1)).err
        for wrong in ("preemption", "=true", "quotas.users={"):
            assert "expected KEY=VALUE" in (
                await det(admin, "resource-pool", "settings", "default", wrong, code=2)
            ).err  # fmt: skip
        await det(user, "resource-pool", "settings", "default", "preemption=false", code=3)
        assert "ocean" in (await det(user, "resource-pool", "settings", "ocean", code=4)).err
    finally:
        back = await json_of(det, admin, "resource-pool", "settings", "default", "preemption=", "quotas=")
    assert (back["preemption"], back["quotas"]["users"]) == (False, {})


async def test_pools_are_made_and_removed(det: Det, user: Caller, admin: Caller) -> None:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    words = ("resource-pool", "create", name, "preemption=true", "--description", "new", "--scheduler", "fair_share")
    await det(user, *words, code=3)
    assert name in (await det(admin, *words)).out
    assert "already exists" in (await det(admin, *words, code=5)).err
    await det(admin, "rp", "set-description", name, "newer")
    shown = await json_of(det, user, "resource-pool", "describe", name)
    settings = shown["settings"]
    assert (shown["description"], settings["scheduler"], settings["preemption"]) == ("newer", "fair_share", True)
    assert "expected --compute" in (await det(admin, "resource-pool", "set-default", name, code=2)).err
    try:
        await det(admin, "resource-pool", "set-default", name, "--aux")
        assert "as a default" in (await det(admin, "resource-pool", "remove", name, code=1)).err
    finally:
        await det(admin, "resource-pool", "set-default", "default", "--aux", "--compute")
    await det(user, "resource-pool", "remove", name, code=3)
    await det(admin, "resource-pool", "remove", name)
    assert name in (await det(user, "resource-pool", "describe", name, code=4)).err


async def test_access_to_pools_is_granted_and_revoked(det: Det, user: Caller, admin: Caller) -> None:
    name, access = f"pool-{uuid.uuid4().hex[:8]}", ("resource-pool", "access")
    await det(admin, "resource-pool", "create", name, "--restricted")
    assert name not in (await det(user, "resource-pool", "list")).out
    assert "administrators only" in (await det(user, *access, code=3)).err
    assert "expected one --user" in (await det(admin, *access, "grant", name, code=2)).err
    assert f"'{name}x'" in (await det(admin, *access, "restrict", f"{name}x", code=4)).err
    granted = await det(admin, *access, "grant", name, "--user", user.username)
    assert granted.out == f"Granted resource pool '{name}' to: {user.username}\n"
    shown = await json_of(det, admin, *access, "list")
    [mine] = [each for each in shown if each["pool_name"] == name]
    assert (mine["mode"], [each["username"] for each in mine["users"]]) == ("restricted", [user.username])
    assert name in (await det(user, "resource-pool", "list")).out
    assert (await json_of(det, user, "resource-pool", "describe", name))["access"] == "restricted"
    await det(admin, *access, "revoke", name, "-u", user.username)
    await det(user, "resource-pool", "describe", name, code=4)
    await det(admin, *access, "open", name)
    assert "Warning: pool" in (await det(admin, *access, "grant", name, "-w", "Uncategorized")).err
    await det(user, "resource-pool", "describe", name)


async def test_log_of_a_task(api: Served, det: Det, user: Caller, admin: Caller) -> None:
    run = await api.trial(user)
    lines = [{"taskId": run.task_id, "log": f"line {n}\n", "level": "LOG_LEVEL_INFO" if n else "LOG_LEVEL_ERROR",
              "rankId": n, "agentId": "agent-a"} for n in range(3)]  # fmt: skip
    await run.container.post("/api/v1/task/logs", {"logs": lines})

    async def read(*words: Any) -> list[str]:
        return re.findall(r"line \d", (await det(user, "task", "logs", run.task_id, *words)).out)

    assert await read() == ["line 0", "line 1", "line 2"]
    assert await read("--tail", 2) == ["line 1", "line 2"]
    assert await read("--head", 1) == ["line 0"]
    assert await read("--level", "error") == ["line 0"]
    assert await read("--rank-id", 1, "--rank-id", 2) == ["line 1", "line 2"]
    shown = (await det(user, "task", "logs", run.task_id, "--json")).out
    assert [json.loads(line)["rankId"] for line in shown.splitlines()] == [0, 1, 2]
    await api.end(run)
    assert await read("-f") == ["line 0", "line 1", "line 2"]
    assert "expected one of TRACE" in (await det(user, "task", "logs", run.task_id, "--level", "loud", code=1)).err
    await det(user, "task", "logs", "1.nothing", code=4)
    assert "Removed" in (await det(admin, "task", "cleanup-logs")).out
    await det(user, "task", "cleanup-logs", code=3)


async def test_master(api: Served, det: Det, user: Caller, admin: Caller) -> None:
    assert (await json_of(det, user, "master", "info"))["product"] == "PRODUCT_COMMUNITY"
    assert yaml.safe_load((await det(user, "master", "info")).out)["rbacEnabled"] is True
    shown = await json_of(det, admin, "master", "config")
    assert shown == yaml.safe_load((await det(admin, "master", "config", "show")).out)
    await det(admin, "master", "config", "set", "--log.level", "INFO")
    assert "no colours" in (await det(admin, "master", "config", "set", "--log.color", "on", code=1)).err
    assert "nothing to change" in (await det(admin, "master", "config", "set", code=2)).err
    await det(user, "master", "config", code=3)
    await det(user, "master", "logs", code=3)
    assert len((await det(admin, "master", "logs", "--tail", 1)).out.splitlines()) <= 1
    await det(admin, "master", "cluster-message", "set", "-m", "a break at noon", "-d", "1h")
    assert (await json_of(det, user, "master", "cluster-message", "get"))["message"] == "a break at noon"
    await det(admin, "master", "cluster-message", "clear", "-c")
    assert (await json_of(det, user, "master", "cluster-message", "get")) is None
    assert (
        "only one of"
        in (await det(admin, "master", "cluster-message", "set", "-m", "x", "-d", "1h", "-e", "x", code=2)).err
    )
    await det(user, "master", "cluster-message", "set", "-m", "x", code=3)
    assert "cluster_name" in (await det(user, "version")).out


async def test_pools_are_bound(api: Served, det: Det, admin: Caller, user: Caller) -> None:
    name, first, second = pool(api), unique(), unique()
    for each in (first, second):
        await det(admin, "w", "create", each)

    async def bound() -> list[str]:
        return [each["name"] for each in await json_of(det, admin, "rp", "bindings", "list-workspaces", name)]

    assert await bound() == []
    await det(admin, "rp", "bindings", "add", name, first, second)
    assert await bound() == [first, second]
    await det(admin, "rp", "bindings", "remove", name, first)
    assert await bound() == [second]
    await det(admin, "rp", "bindings", "replace", name, first)
    assert await bound() == [first]
    await det(user, "rp", "bindings", "add", name, "Uncategorized", code=3)


async def test_use_of_slots(api: Served, det: Det, user: Caller) -> None:
    run = await api.trial(user)
    await api.end(run)
    span = ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z")
    for report in ("raw", "allocations", "alloc"):
        rows = list(csv.DictReader(io.StringIO((await det(user, "res", report, *span)).out)))
        assert str(run.experiment_id) in {row["experiment_id"] for row in rows}
    assert run.experiment_id in {each["experimentId"] for each in await json_of(det, user, "res", "raw", *span)}
    assert (await det(user, "res", "agg", "2026-01-01", "2026-01-02")).out.startswith("aggregation_type,")
    months = await json_of(det, user, "resources", "aggregated", "2026-01", "2026-03", "--monthly")
    assert [each["periodStart"] for each in months] == ["2026-01", "2026-02", "2026-03"]
    picked = await det(user, "res", "raw", *span, "--columns", "slots", "--limit", "1")
    assert picked.out.splitlines()[0] == "slots"
    assert "expected a date" in (await det(user, "res", "agg", "soon", "later", code=1)).err


async def test_config_policies(det: Det, user: Caller, admin: Caller, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("constraints: {resources: {max_slots: 4}}\n")
    assert (await det(user, "cp", "describe", "experiment")).out == "{}\n"
    for where in ((), ("-w", "Uncategorized")):
        await det(admin, "cp", "set", "tasks", file, *where)
        assert "max_slots: 4" in (await det(user, "cp", "describe", "tasks", *where)).out
        await det(admin, "config-policies", "delete", "tasks", *where)
        assert (await det(user, "cp", "describe", "tasks", *where)).out == "{}\n"
    file.write_text("constraints: {slots: 4}\n")
    assert "constraints.slots: there is no such key" in (await det(admin, "cp", "set", "tasks", file, code=1)).err
    await det(user, "cp", "describe", "models", code=2)


# -- ours ----------------------------------------------------------------------------------------------------------


async def test_webhook_lives(api: Served, det: Det, user: Caller) -> None:
    where = unique()
    await det(user, "w", "create", where)
    words = [
        "--state",
        "completed",
        "--log-pattern",
        "out of memory",
        "--metric",
        "accuracy >= 0.9",
        "--custom",
        "--name",
        "robot",
        "-w",
        where,
        "--mode",
        "specific",
    ]
    made = await json_of(det, user, "webhook", "create", "https://example.com/x", *words)
    number = made["id"]
    assert [each["triggerType"] for each in made["triggers"]] == [
        "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE",
        "TRIGGER_TYPE_TASK_LOG",
        "TRIGGER_TYPE_METRIC_THRESHOLD_EXCEEDED",
        "TRIGGER_TYPE_CUSTOM",
    ]
    await det(user, "webhook", "edit", number, "--name", "machine")
    [row] = [row for row in (await det(user, "webhook")).cells if row["ID"] == str(number)]
    assert row["Name"] == "machine"
    assert row["Triggers"] == (
        "EXPERIMENT_STATE_CHANGE COMPLETED, TASK_LOG out of memory, METRIC_THRESHOLD_EXCEEDED accuracy >= 0.9, CUSTOM"
    )
    for wrong in ("accuracy", "accuracy>=high", ">=1", "accuracy>nan"):
        assert wrong in (await det(user, "webhook", "create", "https://x.example", "--metric", wrong, code=2)).err
    assert "still on its way" in (await det(user, "webhook", "test", number, code=1)).err
    [delivery] = await json_of(det, user, "webhook", "deliveries", number)
    assert delivery["webhookId"] == number
    assert "one or more" in (await det(user, "webhook", "create", "https://example.com/x", code=2)).err
    assert "expected" in (await det(user, "webhook", "create", "ftp://x", "--custom", "-w", where, code=1)).err
    await det(api.user(), "webhook", "delete", number, "--yes", code=4)
    await det(user, "webhook", "delete", number, "--yes")


async def test_audit_log(det: Det, admin: Caller, user: Caller) -> None:
    await det(user, "w", "create", unique())
    [row] = (await det(admin, "audit", "--actor", user.username)).cells
    assert (row["Method"], row["Target"]) == ("POST", "/api/v1/workspaces")
    assert (await det(admin, "audit", "verify")).out.startswith("The audit log is whole")
    await det(user, "audit", "list", code=3)
    await det(admin, "audit", "list", "--since", "yesterday", code=1)


async def test_dev(det: Det, user: Caller, tmp_path: Path) -> None:
    assert (await det(user, "dev", "auth-token")).out.strip() in user.headers["Authorization"]
    shown = await det(user, "dev", "curl", "-x", "/api/v1/me", "-s", "-o", tmp_path / "answer")
    assert "curl" in shown.err
    assert user.headers["Authorization"].removeprefix("Bearer ") not in shown.err
    assert json.loads((tmp_path / "answer").read_text())["user"]["username"] == user.username
    await det(user, "dev", "c", "/api/v1/none", "-s", "--fail", "-o", tmp_path / "answer", code=22)


# -- experiments ---------------------------------------------------------------------------------------------------


async def test_experiment_is_moved_and_its_claims_are_changed(api: Served, det: Det, user: Caller) -> None:
    number = await api.experiment(user)
    where, name = unique(), unique("project")
    await det(user, "w", "create", where)
    await det(user, "p", "create", where, name)
    await det(user, "e", "move", number, where, name)
    assert [row["ID"] for row in (await det(user, "p", "list-experiments", where, name)).cells] == [str(number)]
    [row] = (await det(user, "e", "ls", "--show_project")).cells
    assert (row["Workspace"], row["Project"]) == (where, name)
    await det(user, "e", "set", "max-slots", number, 3)
    await det(user, "e", "set", "weight", number, 2.5)
    await det(user, "e", "set", "priority", number, 7)
    await det(user, "e", "set", "log-retention", number, "--days", 5)
    resources = yaml.safe_load((await det(user, "e", "config", number)).out)["resources"]
    assert (resources["max_slots"], resources["weight"], resources["priority"]) == (3, 2.5, 7)
    assert "either --days or --forever" in (await det(user, "e", "set", "log-retention", number, code=2)).err
    await det(user, "e", "set", "priority", number, "high", code=2)
    assert "priority" in (await det(user, "e", "set", "priority", number, 1000, code=1)).err
    await det(api.user(), "e", "set", "priority", number, 8, code=4)
    assert "TensorBoard" in (await det(user, "e", "delete-tb-files", number, code=1)).err, "it has not ended"


async def test_many_experiments_at_once(api: Served, det: Det, user: Caller) -> None:
    where, name = unique(), unique("project")
    await det(user, "w", "create", where)
    await det(user, "p", "create", where, name)
    numbers = [await api.experiment(user) for _ in range(2)]
    api.commands.knows_nothing = True
    result = await det(user, "e", "bulk", "archive", *numbers, 10**8, code=1)
    assert [row["ID"] for row in result.cells] == [*map(str, numbers), str(10**8)]
    assert "not found" in result.cells[-1]["Result"]
    for number in numbers:
        await det(user, "e", "move", number, where, name)
    named = await det(user, "e", "bulk", "archive", "-w", where, "-p", name, "--state", "active", "--json", code=1)
    assert {each["id"] for each in json.loads(named.out)} == set(numbers)
    assert "aborted" in (await det(user, "e", "bulk", "kill", *numbers, stdin="n\n", code=1)).err
    for words in (("archive",), ("archive", 1, "-p", name), ("dance", 1)):
        assert "xpected" in (await det(user, "e", "bulk", *words, code=2)).err or words[0] == "dance"


async def test_trial_and_checkpoint(api: Served, det: Det, user: Caller, tmp_path: Path) -> None:
    run: Run = await api.trial(user)
    await run.report("validation", 4, {"loss": 0.5})
    uuid_ = await checkpoint(run, 4)
    await run.container.post("/api/v1/task/logs", {"logs": [{"taskId": run.task_id, "log": "hello\n"}]})
    shown = await json_of(det, user, "t", "describe", run.trial_id)
    assert shown["trial"]["id"] == run.trial_id
    assert len(shown["workloads"]) == 2
    assert len((await json_of(det, user, "t", "describe", run.trial_id, "--limit", 1))["workloads"]) == 1
    picked = await det(user, "t", "describe", run.trial_id, "--columns", "# of Batches,Checkpoint UUID")
    assert picked.cells == [{"# of Batches": "4", "Checkpoint UUID": uuid_}]
    [row] = (await det(user, "e", "lc", run.experiment_id)).cells
    assert row["UUID"] == uuid_
    described = (await json_of(det, user, "e", "describe", run.experiment_id))[0]
    assert described["experiment"]["id"] == run.experiment_id
    chosen = await det(user, "e", "describe", run.experiment_id, "--columns", "Experiment ID,State")
    assert chosen.cells[0]["Experiment ID"] == str(run.experiment_id)
    await det(user, "t", "set", "log-retention", run.trial_id, "--forever")
    written = Path((await det(user, "t", "support-bundle", run.trial_id, "-o", tmp_path)).out.strip())
    with tarfile.open(written) as bundle:
        names = {Path(name).name: name for name in bundle.getnames()}
        log = bundle.extractfile(names["trial_logs.txt"])
        assert log is not None
        assert b"hello" in log.read()
        assert {"config.json", "trial_metadata.json", "experiment_metadata.json", "why.json"} <= names.keys()
    assert "aborted" in (await det(user, "c", "rm", uuid_, "--glob", "*.pt", stdin="n\n", code=1)).err
    await det(user, "c", "rm", uuid_, "--glob", "*.pt", "--yes")
    await det(user, "c", "rm", ",", code=2)
    await det(api.user(), "t", "support-bundle", 10**8, "-o", tmp_path, code=4)


@pytest.mark.parametrize(
    "words",
    [
        ("experiment", "describe", 10**8),
        ("experiment", "config", 10**8),
        ("experiment", "list-trials", 10**8),
        ("experiment", "move", 10**8, "Uncategorized", "Uncategorized"),
        ("experiment", "set", "weight", 10**8, 1),
        ("trial", "describe", 10**8),
        ("trial", "set", "log-retention", 10**8, "--forever"),
        ("checkpoint", "describe", "no-such-id"),
        ("webhook", "deliveries", 10**8),
        ("job", "update", "no-such-id", "-p", 1),
        ("token", "revoke", 10**8),
        ("project", "describe", "Uncategorized", "no such project"),
        ("user-group", "describe", "no such group"),
    ],
)
async def test_what_is_not_there_has_its_own_exit_code(det: Det, admin: Caller, words: tuple[Any, ...]) -> None:
    result = await det(admin, *words, code=4)
    assert "not found" in result.err
    assert result.out == ""


async def test_current_password_is_asked_for_when_the_login_is_an_old_one(api: Served, det: Det) -> None:
    user = api.user()
    with api.database.write() as session:
        old = utc_now() - timedelta(hours=1)
        session.execute(update(UserToken).where(UserToken.user_id == user.user_id).values(created_at=old))
    wrong = await det(user, "user", "change-password", stdin="new one\nno idea\n", code=3)
    assert "invalid credentials" in wrong.err
    done = await det(user, "user", "change-password", stdin=f"new one\n{PASSWORD}\n")
    assert done.out.strip() == f"Changed the password of user '{user.username}'"
    await user.refused(401, "GET", "/api/v1/me")


async def test_edit_of_a_search_is_shown_before_it_is_made(api: Served, det: Det) -> None:
    user = api.user()
    searcher = {"name": "random", "metric": "loss", "max_trials": 6, "max_length": {"batches": 10}}
    number = await api.created(user, searcher=searcher)
    shown = (await det(user, "e", "edit", number, "--max-trials", 10, "--dry-run")).out
    assert re.search(r"trials in the end +\| 6 +\| 10", shown), shown
    assert re.search(r"batches still to train +\| 60 +\| 100", shown), shown
    found = await json_of(det, user, "e", "edit", number, "--max-trials", 10, "--dry-run", "--json")
    assert found["changed"]["newTrials"] - found["without"]["newTrials"] == 4
    assert (
        "max_trials must be at least 6"
        in (await det(user, "e", "edit", number, "--max-trials", 2, "--dry-run", code=1)).err
    )


async def test_campaign_lives(api: Served, det: Det, user: Caller, tmp_path: Path) -> None:
    name = unique("campaign")
    file, folder = tmp_path / "campaign.yaml", tmp_path / "code"
    folder.mkdir()
    (folder / "one.yaml").write_text("entrypoint: 'true'\n")
    text = (
        f"name: {name}\nparams: {{epochs: 3}}\nschedule: {{cron: '@hourly'}}\n"
        "steps:\n  one: {task: one.yaml}\n  two: {task: {entrypoint: ls}, after: [one]}\n"
    )
    file.write_text(text)
    assert "valid: 2 step(s)" in (await det(user, "campaign", "create", file, folder, "--validate")).out
    made = await det(user, "campaign", "create", file, folder, "--run")
    number = re.findall(r"Created campaign (\d+)", made.out)[0]
    assert f"Started run 1 of campaign {number}" in made.out
    [row] = (await det(user, "campaign", "--name", name)).cells
    assert (row["Owner"], row["Schedule"], row["Last Run"]) == (user.username, "@hourly UTC", "1 ACTIVE")
    assert (await det(user, "campaign", "config", number)).out == text
    told = (await det(user, "campaign", "describe", number)).out
    assert "next: " in told
    assert "run 1: ACTIVE" in told
    assert (await json_of(det, user, "campaign", "describe", number))["run"]["steps"][1]["state"] == "WAITING"
    assert "expected a number" in (await det(user, "campaign", "run", number, "-p", "epochs=x", code=1)).err
    await det(user, "campaign", "run", number, "-p", "epochs=5", "--fresh")
    assert [row["Run"] for row in (await det(user, "campaign", "runs", number)).cells] == ["2", "1"]
    for word, done in (("pause", "Paused"), ("activate", "Activated")):
        assert (await det(user, "campaign", word, number)).out == f"{done} campaign {number}\n"
        assert f"{done} run 1 of" in (await det(user, "campaign", word, number, "--run", 1)).out
    assert "Canceled run 2" in (await det(user, "campaign", "cancel", number)).out
    assert "Killed run 1" in (await det(user, "campaign", "kill", number, "--run", 1)).out
    past = ("--from", "2026-01-01", "--to", "2026-01-01T03:00:00")
    times = (await det(user, "campaign", "backfill", number, *past, "--dry-run")).out.splitlines()
    assert times == [f"2026-01-01T0{hour}:00:00Z" for hour in range(4)]
    file.write_text(text.replace("epochs: 3", "epochs: 4"))
    assert "has version 2" in (await det(user, "campaign", "edit", number, file)).out
    assert "has not ended" in (await det(user, "campaign", "delete", number, "--yes", code=1)).err
    with api.database.write() as session:
        mine = CampaignRun.campaign_id == int(number)
        session.execute(
            update(CampaignRun).where(mine).values(state="ERROR", message="step one: x", ended_at=utc_now())
        )
    waited = await det(user, "campaign", "wait", number, code=1)
    assert "run 2: ERROR" in waited.out
    await det(user, "campaign", "delete", number, "--yes")
    await det(user, "campaign", "describe", number, code=4)


async def test_a_large_folder_is_sent_in_chunks_once(
    api: Served, det: Det, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from determined.common import context

    monkeypatch.setattr(context, "LARGE_BYTES", 1000)
    sent: list[str] = []
    put = chunked_contexts.put_chunk
    monkeypatch.setattr(chunked_contexts, "put_chunk", lambda *args: (sent.append(args[2]), put(*args)))
    user, folder = api.user(), tmp_path / "model"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print()\n" * 500)
    (folder / "pkg" / "weights.bin").write_bytes(bytes(range(256)) * 20_000)
    (folder / "left.tmp").write_text("no")
    (folder / ".detignore").write_text("*.tmp\n")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(api.config()))
    number = int((await det(user, "e", "create", config, folder)).out.split()[-1])
    assert len(sent) == 3, "two chunks of the large file, and one of the small ones"
    assert (
        "2 file(s), 5.1 MB: pkg/weights.bin (5.1 MB), train.py" in (await det(user, "e", "create", config, folder)).err
    )
    (folder / "train.py").write_text("print(1)\n" * 500)
    await det(user, "task", "create", command_file(tmp_path), "--context", folder)
    assert len(sent) == 4, "only what changed"
    await det(user, "e", "download-model-def", number, "--output-dir", tmp_path)
    with tarfile.open(tmp_path / f"experiment_{number}_model_def.tgz") as packed:
        assert sorted(packed.getnames()) == ["pkg", "pkg/weights.bin", "train.py"]
        file = packed.extractfile("pkg/weights.bin")
        assert file is not None
        assert file.read() == bytes(range(256)) * 20_000
    monkeypatch.setattr(api.parts.settings, "context_limit_mib", 1)
    told = (await det(user, "e", "create", config, folder, code=1)).err
    assert "this cluster takes 1 MiB (context_limit_mib). The largest files: pkg/weights.bin (4.9 MiB)" in told


def command_file(folder: Path) -> Path:
    """The configuration of a generic task."""
    path = folder / "task.yaml"
    path.write_text("entrypoint: [python3, train.py]\nresources: {slots: 0}\n")
    return path
