"""Notebooks, shells and TensorBoards by their routes: what they get at their launch, and who may know what of them."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from sqlalchemy import select, update

from database.models import (
    AnsweredRequest,
    Experiment,
    Outbox,
    Project,
    RoleAssignment,
    Task,
    TaskSecret,
    User,
    Workspace,
)
from tests.integration.api.served import Caller, Run, Served, a_file
from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.task import TaskState
from workflows.messages import CloseAllocation, OpenAllocation, RecordTask
from workflows.scheduling.model import Placement

EXPERIMENT = (
    "entrypoint: [python3, notebook.py]\nsearcher: {name: single, metric: loss}\nresources: {slots_per_trial: 0}\n"
)
KINDS = ("notebook", "shell", "tensorboard")


async def launched(api: Served, user: Caller, kind: str, **body: Any) -> dict[str, Any]:
    """A new task of a kind: the whole answer."""
    if kind == "tensorboard" and "experimentIds" not in body:
        body["experimentIds"] = [await api.experiment(user)]
    return await user.post(f"/api/v1/{kind}s", body)


async def order_of(api: Served, task_id: str) -> dict[str, Any]:
    """The launch order of its container, as an agent gets it."""
    order = OpenAllocation(
        allocation_id=f"{task_id}.1", task_id=task_id, run_id=1, pool="default", slots=0,
        placements=(Placement(agent_id="agent-a", rank=0),),
    )  # fmt: skip
    await asyncio.to_thread(api.records.open_allocation, order)
    return await api.agent.post(f"/api/v1/undeterred/allocations/{task_id}.1/containers/0/launch")


def container_of(api: Served, order: dict[str, Any]) -> Caller:
    token = order["env"]["DET_SESSION_TOKEN"]
    return Caller(api.http, {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"})


async def end(api: Served, task_id: str) -> None:
    """Its end, as its workflow records it."""
    ended = AllocationEnd(kind=ExitKind.CLEAN, cause=EndCause.EXIT_ZERO, message="exited with 0")
    record = RecordTask(task_id=task_id, revision=9, state=TaskState.COMPLETED, restarts=0, message="exited with 0",
                        allocation_id="", end=ended)  # fmt: skip
    await asyncio.to_thread(api.records.record_task, record)


def secrets_of(api: Served, task_id: str) -> dict[str, str]:
    with api.database.read() as session:
        rows = session.execute(select(TaskSecret.name, TaskSecret.value).where(TaskSecret.task_id == task_id))
        return dict(rows.tuples().all())


@pytest.mark.parametrize("kind", KINDS)
async def test_one_is_launched_listed_described_moved_and_killed(api: Served, kind: str) -> None:
    user = api.user()
    made = await launched(api, user, kind, config={"description": f"my {kind}", "resources": {"slots": 0}})
    task = made[kind]
    assert (task["description"], task["state"], task["exitStatus"]) == (f"my {kind}", "STATE_QUEUED", "")
    path = f"/api/v1/{kind}s/{task['id']}"
    described = await user.get(path)
    assert described["config"] == made["config"]
    [listed] = (await user.get(f"/api/v1/{kind}s", users=user.username))[f"{kind}s"]
    assert listed["id"] == task["id"]
    moved = await user.post(f"{path}/set_priority", {"priority": 7})
    assert moved[kind]["id"] == task["id"]
    assert (await user.get(path))["config"]["resources"]["priority"] == 7
    assert "priority" in await user.refused(400, "POST", f"{path}/set_priority", {"priority": 1000})
    await user.post(f"{path}/kill")
    assert api.posted(f"task-{task['id']}", "want")[-1]["state"] == "STOPPING_CANCELED"
    for other in {"notebook", "shell", "tensorboard", "command"} - {kind}:
        assert "not found" in await user.refused(404, "GET", f"/api/v1/{other}s/{task['id']}")


async def test_a_notebook_gets_its_token_and_its_idle_timeout(api: Served) -> None:
    user = api.user()
    config = {"idle_timeout": "20m", "notebook_idle_type": "activity", "work_dir": "/tmp", "resources": {"slots": 0}}
    task_id = (await launched(api, user, "notebook", config=config))["notebook"]["id"]
    [run] = api.posted(f"task-{task_id}", "start_task")
    assert (run["kind"], run["idle_timeout_s"]) == ("NOTEBOOK", 1200)
    env = (await order_of(api, task_id))["env"]
    assert env["DET_TASK_TYPE"] == "NOTEBOOK"
    assert env["DET_NOTEBOOK_TOKEN"] == secrets_of(api, task_id)["notebook_token"]
    assert (env["NOTEBOOK_IDLE_TYPE"], env["DET_IDLE_TIMEOUT_S"], env["DET_TASK_WORK_DIR"]) == (
        "activity",
        "1200",
        "/tmp",
    )
    assert "DET_TASK_ENTRYPOINT" not in env
    [service] = json.loads(env["DET_PROXY_SERVICES"])
    assert (service["name"], service["variable"], service["protocol"]) == (task_id, "NOTEBOOK_PORT", "http")
    usual = (await launched(api, user, "notebook", files=[a_file("a.py", b"1")]))["notebook"]["id"]
    env = (await order_of(api, usual))["env"]
    assert (env["NOTEBOOK_IDLE_TYPE"], env["DET_TASK_HAS_FILES"]) == ("kernels_or_terminals", "1")
    assert "DET_IDLE_TIMEOUT_S" not in env, "unless it is asked for, a notebook never ends by itself"
    assert api.posted(f"task-{usual}", "start_task")[0]["idle_timeout_s"] is None


async def test_a_shell_has_a_key_pair_of_its_own(api: Served) -> None:
    user = api.user()
    shell = (await launched(api, user, "shell"))["shell"]
    key = load_ssh_private_key(shell["privateKey"].encode(), None)
    assert key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() == shell["publicKey"]
    env = (await order_of(api, shell["id"]))["env"]
    assert env["DET_SHELL_AUTHORIZED_KEY"] == shell["publicKey"]
    assert "PRIVATE" not in json.dumps(env)
    other = (await launched(api, user, "shell"))["shell"]
    assert other["publicKey"] != shell["publicKey"]
    assert (await user.get(f"/api/v1/shells/{shell['id']}"))["shell"]["privateKey"] == shell["privateKey"]
    assert isinstance(shell["agentUserGroup"], dict)


async def test_a_shells_terminals_have_a_token_and_a_port_of_their_own(api: Served) -> None:
    user = api.user()
    shell = (await launched(api, user, "shell"))["shell"]
    base, _, token = shell["terminalAddress"].partition("?token=")
    assert base == f"/proxy/{shell['id']}:terminal/"
    said = api.parts.service_tokens.read(token)
    assert (said.task_id, said.user_id) == (shell["id"], user.user_id)
    env = (await order_of(api, shell["id"]))["env"]
    hidden = secrets_of(api, shell["id"])["terminal_token"]
    assert env["DET_TERMINAL_TOKEN"] == hidden
    assert hidden not in json.dumps(await user.get(f"/api/v1/shells/{shell['id']}"))
    served = {each["name"]: each["variable"] for each in json.loads(env["DET_PROXY_SERVICES"])}
    assert served == {shell["id"]: "SHELL_PORT", f"{shell['id']}:terminal": "TERMINAL_PORT"}


async def test_a_shell_is_logged_in_to_by_the_name_that_its_container_says(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    given = {"agentUid": 1000, "agentUser": "ada", "agentGid": 100, "agentGroup": "users"}
    await admin.patch(f"/api/v1/users/{user.user_id}", {"agentUserGroup": given})
    shell = (await launched(api, user, "shell"))["shell"]
    assert shell["agentUserGroup"] == {"user": "ada", "agentUid": 1000, "agentGid": 100}
    container, path = container_of(api, await order_of(api, shell["id"])), f"/api/v1/allocations/{shell['id']}.1/ready"
    for wrong in ("-oProxyCommand=x", "a b", "x" * 41, "a\n"):
        assert "loginUser" in await container.refused(400, "POST", path, {"loginUser": wrong})
    await container.post(path, {"loginUser": "grace"})
    found = (await user.get(f"/api/v1/shells/{shell['id']}"))["shell"]
    assert found["agentUserGroup"]["user"] == "grace"


async def test_a_shells_key_is_locked_by_the_passphrase_that_comes_with_it(api: Served) -> None:
    user = api.user()
    data = base64.b64encode(b'{"passphrase": "open sesame"}').decode()
    shell = (await launched(api, user, "shell", data=data))["shell"]
    with pytest.raises((TypeError, ValueError)):
        load_ssh_private_key(shell["privateKey"].encode(), None)
    key = load_ssh_private_key(shell["privateKey"].encode(), b"open sesame")
    assert key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() == shell["publicKey"]
    with api.database.read() as session:
        assert "sesame" not in json.dumps([session.get_one(Task, shell["id"]).config, secrets_of(api, shell["id"])])
    assert shell["terminalAddress"] == "", "nobody gets in without the passphrase"
    assert "DET_TERMINAL_TOKEN" not in (await order_of(api, shell["id"]))["env"]
    await launched(api, user, "shell", data=base64.b64encode(b"{}").decode())


async def test_a_read_only_token_opens_nothing(api: Served) -> None:
    user = api.user()
    reader = api.session_of(user.user_id, user.username, scope="read-only")
    for kind in KINDS:
        task_id = (await launched(api, user, kind))[kind]["id"]
        text = json.dumps(await reader.get(f"/api/v1/{kind}s/{task_id}"))
        assert "PRIVATE KEY" not in text
        assert "?token=" not in text


async def test_secrets_are_in_answers_about_one_task_only_and_end_with_it(api: Served) -> None:
    user, key = api.user(), {"Idempotency-Key": uuid.uuid4().hex}
    for kind in ("notebook", "shell"):
        made = [await user.post(f"/api/v1/{kind}s", {}, headers=key | {"Idempotency-Key": key["Idempotency-Key"] + kind})
                for _ in range(2)]  # fmt: skip
        assert made[0][kind]["id"] == made[1][kind]["id"], "a repeat launches nothing"
        task_id = made[0][kind]["id"]
        hidden = secrets_of(api, task_id)
        secret = hidden.get("notebook_token") or hidden["private_key"]
        said = [made[0].get("config"), await user.get(f"/api/v1/{kind}s", users=user.username),
                await user.get(f"/api/v1/tasks/{task_id}"), await user.post(f"/api/v1/{kind}s/{task_id}/kill")]  # fmt: skip
        with api.database.read() as session:
            said += [session.get_one(Task, task_id).config, list(session.scalars(select(Outbox.payload))),
                     list(session.scalars(select(AnsweredRequest.answer)))]  # fmt: skip
        text = json.dumps(said)
        assert json.dumps(secret)[1:-1] not in text
        assert "?token=" not in text
        assert "PRIVATE KEY" not in text
        address = made[1][kind].get("serviceAddress")
        if kind == "notebook":
            assert address.startswith(f"/proxy/{task_id}/?token=")
            said_token = api.parts.service_tokens.read(address.partition("token=")[2])
            assert (said_token.task_id, said_token.user_id) == (task_id, user.user_id)
        await end(api, task_id)
        assert secrets_of(api, task_id) == {}
        ended = (await user.get(f"/api/v1/{kind}s/{task_id}"))[kind]
        assert ended.get("privateKey", "") == ""
        assert "token" not in ended.get("serviceAddress", "")
        assert ended.get("terminalAddress", "") == ""


async def test_a_notebook_creates_experiments_as_its_owner_and_only_while_that_one_may(api: Served) -> None:
    """What `%det run` sends, from the container and with its token."""
    owner, admin = api.user(), api.user(is_admin=True)
    workspace_id = await workspace_of(api, contributor=owner)
    foreign_id = await workspace_of(api)
    project, elsewhere = [
        (await admin.post(f"/api/v1/workspaces/{each}/projects", {"name": "p"}))["project"]["id"]
        for each in (workspace_id, foreign_id)
    ]
    notebook = (await launched(api, owner, "notebook", workspaceId=workspace_id))["notebook"]["id"]
    env = (await order_of(api, notebook))["env"]
    container = Caller(api.http, {"Authorization": f"Bearer {env['DET_USER_TOKEN']}"})
    assert (await container.get(f"/api/v1/notebooks/{notebook}"))["notebook"]["workspaceId"] == workspace_id
    body = {"config": EXPERIMENT, "modelDefinition": [a_file("notebook.py", b"1")], "projectId": project}
    made = (await container.post("/api/v1/experiments", body))["experiment"]
    assert (made["username"], made["projectId"], made["userId"]) == (owner.username, project, owner.user_id)
    await container.refused(404, "POST", "/api/v1/experiments", body | {"projectId": elsewhere})
    of_admin = (await launched(api, admin, "notebook", workspaceId=workspace_id))["notebook"]["id"]
    env = (await order_of(api, of_admin))["env"]
    no_admin = Caller(api.http, {"Authorization": f"Bearer {env['DET_USER_TOKEN']}"})
    await no_admin.refused(404, "POST", "/api/v1/experiments", body | {"projectId": elsewhere})
    with api.database.write() as session:
        session.execute(update(RoleAssignment).where(RoleAssignment.user_id == owner.user_id).values(role="viewer"))
    assert "needs the role" in await container.refused(403, "POST", "/api/v1/experiments", body)
    with api.database.write() as session:
        session.execute(update(RoleAssignment).where(RoleAssignment.user_id == owner.user_id).values(role="editor"))
        session.execute(update(User).where(User.id == owner.user_id).values(is_active=False))
    assert "is not active" in await container.refused(403, "POST", "/api/v1/experiments", body)
    launch = {"workspaceId": workspace_id}
    assert "is not active" in await container.refused(403, "POST", "/api/v1/shells", launch)
    with api.database.write() as session:
        session.execute(update(User).where(User.id == owner.user_id).values(is_active=True))
    await container.post("/api/v1/experiments", body)
    await asyncio.to_thread(api.records.close_allocation, CloseAllocation(allocation_id=f"{notebook}.1"))
    api.parts.auth.forget()
    await container.refused(401, "POST", "/api/v1/experiments", body)


async def workspace_of(api: Served, **roles: Caller) -> int:
    """A private workspace, and who has which role in it."""
    creator = api.user(is_admin=True)
    with api.database.write() as session:
        workspace = Workspace(name=f"w {uuid.uuid4()}", owner_id=creator.user_id, everyone=None)
        session.add(workspace)
        session.flush()
        for role, user in roles.items():
            session.add(RoleAssignment(role=role, user_id=user.user_id, workspace_id=workspace.id))
        return workspace.id


@pytest.mark.parametrize("kind", KINDS)
async def test_others_see_it_without_its_secrets_and_editors_end_it(api: Served, kind: str) -> None:
    owner, editor, viewer, foreign, admin = api.user(), api.user(), api.user(), api.user(), api.user(is_admin=True)
    workspace_id = await workspace_of(api, contributor=owner, editor=editor, viewer=viewer)
    task_id = (await launched(api, owner, kind, workspaceId=workspace_id))[kind]["id"]
    path = f"/api/v1/{kind}s/{task_id}"
    for reader in (editor, viewer):
        text = json.dumps(await reader.get(path))
        assert "PRIVATE KEY" not in text
        assert "ssh-ed25519" not in text
        assert "?token=" not in text
    for reader in (owner, admin):
        assert ("PRIVATE KEY" if kind == "shell" else "?token=") in json.dumps(await reader.get(path))
    await foreign.refused(404, "GET", path)
    assert task_id not in json.dumps(await foreign.get(f"/api/v1/{kind}s"))
    await viewer.refused(403, "POST", f"{path}/kill")
    await viewer.refused(403, "POST", f"{path}/set_priority", {"priority": 5})
    await viewer.refused(403, "POST", f"/api/v1/{kind}s", {"workspaceId": workspace_id, "experimentIds": [1]})
    await editor.post(f"{path}/kill")


async def test_a_restricted_editor_launches_tensorboards_only(api: Served) -> None:
    user = api.user()
    workspace_id = await workspace_of(api, editor_restricted=user)
    for kind, more in (("notebook", {}), ("shell", {}), ("command", {"config": {"entrypoint": ["true"]}})):
        told = await user.refused(403, "POST", f"/api/v1/{kind}s", {"workspaceId": workspace_id, **more})
        assert "EditorRestricted" in told
    await launched(api, user, "tensorboard", workspaceId=workspace_id)
    with api.database.write() as session:
        session.add(RoleAssignment(role="contributor", user_id=user.user_id, workspace_id=workspace_id))
    await launched(api, user, "shell", workspaceId=workspace_id)


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("notebook", {"config": {"idle_timeout": 600}}, "invalid duration: 600"),
        ("notebook", {"config": {"notebook_idle_type": "x"}}, "invalid notebook idle type: x not in"),
        ("notebook", {"preview": True, "config": {"resorces": 1}}, "did you mean resources?"),
        ("shell", {"config": {"resources": {"is_single_node": True}}}, "is_single_node"),
        ("shell", {"config": {"work_dir": "/x"}, "files": [a_file("a")]}, "cannot set work_dir and context directory"),
        ("shell", {"config": {"resources": {"resource_pool": "nope"}}}, "nope"),
        ("shell", {"config": []}, "config"),
        ("shell", {"data": "?"}, "data: expected base64 of JSON"),
        ("shell", {"data": base64.b64encode(b"[1]").decode()}, "data: passphrase: expected text"),
        ("shell", {"data": base64.b64encode(b'{"passphrase": 4}').decode()}, "data: passphrase: expected text"),
        ("tensorboard", {}, "must set experiment, trial ids, or filters"),
        ("tensorboard", {"filters": {"name": "no such name"}}, "no experiments found"),
        ("tensorboard", {"experimentIds": list(range(1, 102))}, "at most 100"),
        ("tensorboard", {"experimentIds": ["x"]}, "experimentIds"),
    ],
)
async def test_a_mistake_is_told_and_nothing_is_made(api: Served, kind: str, body: dict[str, Any], told: str) -> None:
    user = api.user()
    assert told in await user.refused(400, "POST", f"/api/v1/{kind}s", body)
    assert (await user.get(f"/api/v1/{kind}s", users=user.username))[f"{kind}s"] == []


async def test_what_is_not_there_is_not_shown(api: Served) -> None:
    user = api.user()
    for body in ({"experimentIds": [10**9]}, {"trialIds": [10**9]}, {"experimentIds": [1], "templateName": "none"}):
        assert "not found" in await user.refused(404, "POST", "/api/v1/tensorboards", body)
    owner = api.user()
    private = await workspace_of(api, contributor=owner)
    with api.database.write() as session:
        project = Project(workspace_id=private, name=f"p {uuid.uuid4()}", owner_id=owner.user_id)
        session.add(project)
        session.flush()
        project_id = project.id
    run = await api.trial(owner)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(project_id=project_id))
    for body in ({"experimentIds": [run.experiment_id]}, {"trialIds": [run.trial_id]}):
        board = (await owner.post("/api/v1/tensorboards", body))["tensorboard"]["id"]
        assert "not found" in await user.refused(404, "POST", "/api/v1/tensorboards", body)
        # its workspace is open to both, what it shows is not
        assert (await user.get(f"/api/v1/tensorboards/{board}"))["tensorboard"]["id"] == board
        assert "that you may not see" in await user.refused(403, "GET", f"/proxy/{board}/")
        assert "waits for its slots" in await owner.refused(400, "GET", f"/proxy/{board}/")
    project_only = {"filters": {"projectId": project_id}}
    assert "no experiments found" in await user.refused(400, "POST", "/api/v1/tensorboards", project_only)
    shown = (await owner.post("/api/v1/tensorboards", project_only))["tensorboard"]
    assert shown["experimentIds"] == [run.experiment_id]


async def test_a_preview_makes_nothing(api: Served) -> None:
    user = api.user()
    shown = await user.post("/api/v1/notebooks", {"preview": True, "config": {"idle_timeout": "1h"}})
    assert shown["notebook"]["id"] == ""
    assert (shown["config"]["idle_timeout"], shown["config"]["resources"]["slots"]) == ("1h", 1)
    assert (await user.get("/api/v1/notebooks", users=user.username))["notebooks"] == []


async def test_a_tensorboard_takes_no_slots_and_reads_where_the_files_are(api: Served) -> None:
    user = api.user()
    image = {"environment": {"image": "of/the:first"}}
    first = await api.trial(user, **image)
    newest: Run = await api.trial(user, environment={"image": "of/the:newest"})
    body = {"experimentIds": [newest.experiment_id], "trialIds": [first.trial_id],
            "config": {"resources": {"slots": 4}, "tensorboard_args": ["--samples_per_plugin", "images=9"]}}  # fmt: skip
    made = await user.post("/api/v1/tensorboards", body)
    board = made["tensorboard"]
    assert (board["experimentIds"], board["trialIds"]) == ([newest.experiment_id], [first.trial_id])
    assert (made["config"]["resources"]["slots"], made["config"]["idle_timeout"]) == (0, "5m0s")
    order = await order_of(api, board["id"])
    assert order["image"] == "of/the:newest"
    assert json.loads(order["env"]["DET_TENSORBOARD_ARGS"]) == ["--samples_per_plugin", "images=9"]
    sources = json.loads(order["env"]["DET_TENSORBOARD_SOURCES"])
    folder = str(api.folder)
    assert [(each["experiment_id"], each["trial_id"], each["storage"]) for each in sources] == [
        (newest.experiment_id, None, {"type": "directory", "container_path": folder}),
        (first.experiment_id, first.trial_id, {"type": "directory", "container_path": folder}),
    ]
    assert {each["cluster_id"] for each in sources} == {api.parts.cluster_id}
    [mount] = order["mounts"]
    assert (mount["source"], mount["target"], mount["readOnly"], mount["isTrusted"]) == (folder, folder, True, True)
    own = {"experimentIds": [newest.experiment_id], "config": {"environment": {"image": "my/own:1"}}}
    board = (await user.post("/api/v1/tensorboards", own))["tensorboard"]
    assert (await order_of(api, board["id"]))["image"] == "my/own:1"


async def test_a_login_goes_with_its_image_only(api: Served) -> None:
    user = api.user()
    login = {"username": "robot", "password": "hush", "serveraddress": "registry.example"}
    experiment_id = await api.experiment(user, environment={"image": "registry.example/a:1", "registry_auth": login})
    board = await launched(api, user, "tensorboard", experimentIds=[experiment_id])
    assert "hush" not in json.dumps(board)
    assert (await order_of(api, board["tensorboard"]["id"]))["registryAuth"]["password"] == "hush"
    elsewhere = {"environment": {"image": "evil.example/a:1"}}
    board = await launched(api, user, "tensorboard", experimentIds=[experiment_id], config=elsewhere)
    assert (await order_of(api, board["tensorboard"]["id"]))["registryAuth"] == {}


async def test_credentials_of_a_storage_go_to_those_only_who_may_change_the_experiment(api: Served) -> None:
    owner, viewer = api.user(), api.user()
    storage = {"type": "s3", "bucket": "b", "access_key": "known", "secret_key": "hush", "save_trial_best": 3}
    experiment_id = await api.experiment(owner, checkpoint_storage=storage)
    body = {"experimentIds": [experiment_id]}
    assert "credentials" in await viewer.refused(403, "POST", "/api/v1/tensorboards", body)
    made = await owner.post("/api/v1/tensorboards", body)
    assert "hush" not in json.dumps(made)
    with api.database.read() as session:
        row = session.get_one(Task, made["tensorboard"]["id"])
        assert "hush" not in json.dumps([row.config, row.sources])
    order = await order_of(api, made["tensorboard"]["id"])
    [source] = json.loads(order["env"]["DET_TENSORBOARD_SOURCES"])
    assert source["storage"] == {"type": "s3", "bucket": "b", "access_key": "known", "secret_key": "hush"}
    assert order["mounts"] == []


async def test_it_tells_when_it_is_ready_and_whether_it_is_idle(api: Served) -> None:
    user = api.user()
    made = (await launched(api, user, "notebook", config={"description": "mine"}))["notebook"]
    path, report = f"/api/v1/allocations/{made['id']}.1", f"/api/v1/notebooks/{made['id']}/report_idle"
    container = container_of(api, await order_of(api, made["id"]))
    await container.get(f"{path}/signals/preemption", timeoutSeconds=0)
    assert not (await user.get(f"/api/v1/tasks/{made['id']}"))["task"]["allocations"][0]["isReady"]
    for _ in range(2):
        await container.post(f"{path}/ready")
    assert (await user.get(f"/api/v1/tasks/{made['id']}"))["task"]["allocations"][0]["isReady"]
    lines = [each["log"] for each in await user.lines(f"/api/v1/tasks/{made['id']}/logs")]
    assert lines.count("Service of mine is available") == 1

    def used() -> Any:
        with api.database.read() as session:
            return session.get_one(Task, made["id"]).last_used_at

    assert (await container.ask("PUT", report, {"notebookId": made["id"], "idle": True})).status_code == 200
    assert used() is None
    assert (await container.ask("PUT", report, {"notebookId": made["id"], "idle": False})).status_code == 200
    assert used() is not None
    other = container_of(api, await order_of(api, (await launched(api, user, "notebook"))["notebook"]["id"]))
    await other.refused(404, "PUT", report, {"idle": False})
    await api.user().refused(403, "PUT", report, {"idle": False})
    assert (await user.get("/api/v1/tasks/count"))["notebooks"] >= 2
