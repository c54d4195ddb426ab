"""Launch specifications: everything that an agent needs to launch a container, except what only its host knows.

Source: spec container-contract.md §2. The token is made here and goes to the agent only: no history holds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import orjson
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.auth import config_secrets, task_secrets
from api.auth.authentication import new_token, token_hash
from api.errors import Conflict, FailedPrecondition, NotFound
from api.schemas.base import plain
from api.services import rendezvous, tensorboards
from database.checkpoints import newest_checkpoint
from database.log_facts import actions_of_log_policies
from database.models import (
    Agent,
    Allocation,
    AllocationContainer,
    Checkpoint,
    Cluster,
    Experiment,
    NamespaceBinding,
    Project,
    Task,
    TaskContext,
    Trial,
    User,
    Workspace,
)
from database.types import utc_now
from database.upsert import insert
from workflows import names
from workflows.config.tasks import TaskConfig
from workflows.lifecycle.ports import ports_of
from workflows.lifecycle.remedies import multiplied
from workflows.lifecycle.services import services_of
from workflows.lifecycle.task import TaskKind
from workflows.scheduling.model import Placement


def launch_order(
    session: Session,
    allocation_id: str,
    rank: int,
    *,
    default_image: str,
    roots: Sequence[str],
    attempted_at: datetime | None = None,
) -> dict[str, Any]:
    """The order for one container of an allocation, with a new token and the login of its image's registry.

    Args:
        session: Of a transaction that writes.
        allocation_id: Of an allocation that has not ended.
        rank: Of the container in it.
        default_image: What a configuration without an image gets.
        roots: The folders that the operator named for checkpoints.
        attempted_at: Of the attempt to start it that asks; None: now.

    Raises: NotFound, FailedPrecondition; Conflict, if a later attempt has asked.
    """
    allocation = session.get(Allocation, allocation_id)
    if allocation is None:
        raise NotFound(f"allocation {allocation_id} not found")
    if allocation.ended_at is not None:
        raise FailedPrecondition(f"allocation {allocation_id} has ended: nothing is launched for it")
    cluster = session.get_one(Cluster, 1)
    task = session.get_one(Task, allocation.task_id)
    owner = session.get_one(User, task.owner_id)
    token = _new_token(session, allocation, rank, attempted_at or utc_now())
    of_kind = WORK.get(TaskKind(task.kind))
    if of_kind is None:
        raise FailedPrecondition(f"task {task.id} is a {task.kind}: this release launches none of these")
    work = of_kind(session, task, allocation, rank)
    config = work.config
    kind = _device_kind(session, allocation, rank)
    environment: dict[str, Any] = _section(config, "environment")
    resources: dict[str, Any] = config["resources"]
    return {
        "env": {
            **_user_environment(config, kind),
            **_environment(cluster, task, allocation, owner, token),
            **work.env,
            **_services(task, work),
            "DET_TASK_LOGGING_METADATA": orjson.dumps(
                {"task_id": task.id, "allocation_id": allocation_id, **work.log_fields}
            ).decode(),
        },
        "image": _image(config, kind) or default_image,
        "forcePull": bool(environment.get("force_pull_image")),
        "registryAuth": {key: value for key, value in _section(environment, "registry_auth").items() if value},
        "user": _run_as(session.get_one(Workspace, work.workspace_id), owner),
        "mounts": [*_mounts(config, roots), *_read_mounts(config, work.reads, roots)],
        "devices": [
            {"source": device["host_path"], "target": device["container_path"], "mode": device.get("mode") or "mrw"}
            for device in cast("list[dict[str, Any]]", resources.get("devices") or [])
        ],
        "addCapabilities": environment.get("add_capabilities") or [],
        "dropCapabilities": environment.get("drop_capabilities") or [],
        "slotIds": _slot_ids(allocation, rank),
        "ports": ports_of(cluster.cluster_id, allocation_id, _slot_ids(allocation, 0)),
        "gangSize": len(allocation.placements),
        "podSpec": environment.get("pod_spec") or {},
        "excludedNodes": _excluded_nodes(session, task, allocation, rank),
        "namespace": _namespace(session, work, allocation, rank),
        "isOfGang": len({place["agent_id"] for place in allocation.placements}) > 1,
        "shmBytes": resources.get("shm_size") if isinstance(resources.get("shm_size"), int) else None,
        "labels": {**work.labels, "ai.undeterred.allocation": allocation_id},
    }


@dataclass(frozen=True)
class Work:
    """What the kind of a task adds to the order for its containers.

    Attributes:
        config: With the keys of an experiment's.
        workspace_id: Where it is.
        env: Variables of its own.
        log_fields: What each of its lines says.
        labels: Of its containers.
        reads: Folders of the host that it sees and does not change, as `bind_mounts` has them.
    """

    config: dict[str, Any]
    workspace_id: int
    env: dict[str, str]
    log_fields: dict[str, Any]
    labels: dict[str, str]
    reads: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def _trial_work(session: Session, task: Task, allocation: Allocation, rank: int) -> Work:
    trial = session.get_one(Trial, task.trial_id)
    experiment = session.get_one(Experiment, trial.experiment_id)
    latest = newest_checkpoint(session, trial.id)
    start = latest.uuid if latest is not None else trial.warm_start_checkpoint
    shown = plain(config_secrets.without_registry_auth(experiment.config))
    if any(policy.get("resources") for policy in shown.get("failure_policies") or ()):  # it may run elsewhere
        here = {"slots_per_trial": allocation.slots, "resource_pool": allocation.pool}
        shown["resources"] = {**shown["resources"], **here}
    env = {
        "DET_TRIAL_ID": str(trial.id),
        "DET_EXPERIMENT_ID": str(experiment.id),
        "DET_TRIAL_RUN_ID": str(allocation.run_id),
        "DET_TRIAL_SEED": str(trial.seed),
        "DET_STEPS_COMPLETED": str(_steps_completed(session, trial, latest)),
        "DET_EXPERIMENT_CONFIG": orjson.dumps(shown).decode(),
        "DET_HPARAMS": orjson.dumps(plain(multiplied(trial.hparams, trial.factors))).decode(),
        "DET_UNIQUE_PORT_OFFSET": str(min(_slot_ids(allocation, rank), default=0)),
    }
    if (alone := rendezvous.of_one(allocation.placements)) is not None:
        env["UNDETERRED_RENDEZVOUS"] = orjson.dumps(alone).decode()
    return Work(
        config=experiment.config,
        workspace_id=session.get_one(Project, experiment.project_id).workspace_id,
        env=env if start is None else env | {"DET_LATEST_CHECKPOINT": start},
        log_fields={"trial_id": trial.id},
        labels={"ai.undeterred.experiment": str(experiment.id), names.TRIAL_LABEL: str(trial.id)},
    )


def _task_work(session: Session, task: Task, allocation: Allocation, rank: int) -> Work:
    """What a command or a generic task adds: the words to execute, and where."""
    entrypoint = orjson.dumps((task.config or {})["entrypoint"]).decode()
    return _work(session, task, {"DET_TASK_ENTRYPOINT": entrypoint})


def _notebook_work(session: Session, task: Task, allocation: Allocation, rank: int) -> Work:
    config = task.config or {}
    env = {
        "DET_NOTEBOOK_TOKEN": task_secrets.of(session, task.id)[task_secrets.NOTEBOOK_TOKEN],
        "NOTEBOOK_IDLE_TYPE": config["notebook_idle_type"],
    }
    timeout = TaskConfig.model_validate(config).idle_timeout_s
    return _work(session, task, env if timeout is None else env | {"DET_IDLE_TIMEOUT_S": f"{timeout:g}"})


def _shell_work(session: Session, task: Task, allocation: Allocation, rank: int) -> Work:
    known = task_secrets.of(session, task.id)
    env = {"DET_SHELL_AUTHORIZED_KEY": known[task_secrets.PUBLIC_KEY]}
    token = known.get(task_secrets.TERMINAL_TOKEN)
    return _work(session, task, env if token is None else env | {"DET_TERMINAL_TOKEN": token})


def _tensorboard_work(session: Session, task: Task, allocation: Allocation, rank: int) -> Work:
    found = tensorboards.sources(session, task)
    env = {
        "DET_TENSORBOARD_ARGS": orjson.dumps((task.config or {})["tensorboard_args"]).decode(),
        "DET_TENSORBOARD_SOURCES": tensorboards.as_text(found),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return _work(session, task, env, [source.mount for source in found if source.mount is not None])


def _work(session: Session, task: Task, env: dict[str, str], reads: Sequence[dict[str, Any]] = ()) -> Work:
    """What all tasks have that are no trials, besides what their kind needs."""
    config, found = task.config or {}, dict(env)
    goes_on = {names.GOES_ON_LABEL: "yes"} if task.is_pausable else {}
    if config.get("work_dir"):
        found["DET_TASK_WORK_DIR"] = config["work_dir"]
    if config.get("debug"):
        found["DET_DEBUG"] = "true"
    if session.scalar(select(TaskContext.task_id).where(TaskContext.task_id == task.id)) is not None:
        found["DET_TASK_HAS_FILES"] = "1"
    return Work(
        config=config,
        workspace_id=task.workspace_id or 0,
        env=found,
        log_fields={},
        labels={"ai.undeterred.task": task.id, names.KIND_LABEL: task.kind} | goes_on,
        reads=list(reads),
    )


#: By the kind of a task. A kind that is to run in containers has a row here, and a `Workload` in its workflow.
WORK: dict[TaskKind, Callable[[Session, Task, Allocation, int], Work]] = {
    TaskKind.TRIAL: _trial_work,
    TaskKind.COMMAND: _task_work,
    TaskKind.GENERIC: _task_work,
    TaskKind.NOTEBOOK: _notebook_work,
    TaskKind.SHELL: _shell_work,
    TaskKind.TENSORBOARD: _tensorboard_work,
}


def _new_token(session: Session, allocation: Allocation, rank: int, attempted_at: datetime) -> str:
    """A token for a container, and for all of them the secret by which they know each other."""
    token = new_token()
    launched = insert(session, AllocationContainer).values(
        allocation_id=allocation.id, rank=rank, token_hash=token_hash(token), attempted_at=attempted_at
    )
    container = session.scalar(
        launched.on_conflict_do_update(
            index_elements=["allocation_id", "rank"],
            set_={
                "token_hash": token_hash(token),
                "attempted_at": attempted_at,
                "arrived_at": None,
                "node": "",
                "address": "",
                "waits_for": "",
                "killed_at": None,
            },
            where=AllocationContainer.attempted_at <= attempted_at,
        ).returning(AllocationContainer.rank)
    )
    if container is None:  # its request was long on its way: what runs has the token of a later one
        raise Conflict(f"a later attempt has asked how to start container {rank} of allocation {allocation.id}")
    has_none = Allocation.id == allocation.id, Allocation.shared_secret == ""
    session.execute(update(Allocation).where(*has_none).values(shared_secret=new_token()))
    session.refresh(allocation)
    return token


def _environment(cluster: Cluster, task: Task, allocation: Allocation, owner: User, token: str) -> dict[str, str]:
    """The environment variables of containers of every kind."""
    return {
        "DET_CLUSTER_ID": cluster.cluster_id,
        "DET_MASTER_ID": cluster.cluster_id,
        "DET_TASK_ID": task.id,
        "DET_ALLOCATION_ID": allocation.id,
        "DET_SESSION_TOKEN": token,
        "DET_DISTRIBUTED_TOKEN": allocation.shared_secret,
        "DET_USER_TOKEN": token,
        "DET_USER": owner.username,
        "DET_TASK_TYPE": task.kind,
        "DET_SEGMENT_ENABLED": "false",
        "DET_SEGMENT_API_KEY": "",
        "DET_USE_TLS": "false",
    }


def _services(task: Task, work: Work) -> dict[str, str]:
    """What the container's tunnel may connect to, and the ports that the task is to listen on."""
    services = services_of(TaskKind(task.kind), task.id, work.config)
    if not services:
        return {}
    return {"DET_PROXY_SERVICES": orjson.dumps([service.on_the_wire() for service in services]).decode()}


def _mounts(config: dict[str, Any], roots: Sequence[str]) -> list[dict[str, Any]]:
    """The host folders that the container sees.

    A user may name any folder as storage, also for their workspace. Only the folders that the operator named are
    trusted. Folders below them are not: containers may have made links there.
    """
    mounts: list[dict[str, Any]] = []
    storage = config.get("checkpoint_storage")
    if storage is not None and storage["type"] == "shared_fs":
        mounts.append(
            {
                "source": storage["host_path"],
                "target": "/determined_shared_fs",
                "readOnly": False,
                "isStorage": True,
                "isTrusted": os.path.normpath(storage["host_path"]) in map(os.path.normpath, roots),
                "propagation": storage.get("propagation") or "rprivate",
            }
        )
    mounts += [
        {
            "source": m["host_path"],
            "target": m["container_path"],
            "readOnly": m.get("read_only", False),
            "isStorage": False,
            "isTrusted": False,
            "propagation": m.get("propagation") or "rprivate",
        }
        for m in cast("list[dict[str, Any]]", config.get("bind_mounts") or [])
    ]
    return mounts


def _read_mounts(config: dict[str, Any], reads: Sequence[dict[str, Any]], roots: Sequence[str]) -> list[dict[str, Any]]:
    """Folders that are only read, each place once; where the configuration mounts something itself, that stays."""
    own = cast("list[dict[str, Any]]", config.get("bind_mounts") or [])
    taken = {os.path.normpath(mount["container_path"]) for mount in own}
    mounts: list[dict[str, Any]] = []
    for each in reads:
        if each["container_path"] in taken:
            continue
        taken.add(each["container_path"])
        mounts.append(
            {
                "source": each["host_path"],
                "target": each["container_path"],
                "readOnly": True,
                "isStorage": False,
                "isTrusted": os.path.normpath(each["host_path"]) in map(os.path.normpath, roots),
                "propagation": "rprivate",
            }
        )
    return mounts


def _run_as(workspace: Workspace, owner: User) -> str:
    """As whom the container runs, `uid:gid`: what the workspace says, else what its owner is; empty for the image's."""
    group = workspace.agent_user_group or {}
    uid, gid = group.get("agent_uid"), group.get("agent_gid")
    if uid is None:
        uid, gid = owner.agent_uid, owner.agent_gid
    if uid is None:
        return ""
    return str(uid) if gid is None else f"{uid}:{gid}"


def _steps_completed(session: Session, trial: Trial, latest: Checkpoint | None) -> int:
    """A warm start begins at 0; what goes on in another trial's place goes on counting."""
    if latest is None and trial.is_continuation and trial.warm_start_checkpoint is not None:
        latest = session.get(Checkpoint, trial.warm_start_checkpoint)
    return 0 if latest is None else latest.steps_completed


def _slot_ids(allocation: Allocation, rank: int) -> list[int]:
    """Of a container; counted from 0 where slots have no ids."""
    place = _place(allocation, rank)
    return [] if place is None else list(place.slot_ids or range(place.slots))


def _place(allocation: Allocation, rank: int) -> Placement | None:
    places = map(Placement.model_validate, allocation.placements)
    return next((place for place in places if place.rank == rank), None)


def _device_kind(session: Session, allocation: Allocation, rank: int) -> str:
    """`cuda` if the container's slots are GPUs, else `cpu`: configurations may have an image and variables for each."""
    place = _place(allocation, rank)
    agent = session.get(Agent, place.agent_id) if place is not None and place.count else None
    return "cpu" if agent is None else next((device["kind"] for device in agent.devices), "cpu")


def _excluded_nodes(session: Session, task: Task, allocation: Allocation, rank: int) -> list[str]:
    """Nodes of a cluster on which the log policies of a trial want it no more; of a host there is nothing to ask."""
    place = _place(allocation, rank)
    if task.trial_id is None or place is None:
        return []
    agent = session.get(Agent, place.agent_id)  # that of `_device_kind`, at hand
    if agent is None or agent.slots_per_pod is None:
        return []
    return list(actions_of_log_policies(session, task.trial_id)["excluded"])


def _namespace(session: Session, work: Work, allocation: Allocation, rank: int) -> str:
    """The namespace of the agent's cluster that the workspace is bound to; empty: the cluster's usual one."""
    place = _place(allocation, rank)
    if place is None:
        return ""
    bound = session.get(NamespaceBinding, (work.workspace_id, place.agent_id))
    return "" if bound is None else bound.namespace


def _image(config: dict[str, Any], kind: str) -> str:
    image: Any = _section(config, "environment").get("image")
    if isinstance(image, dict):
        return str(cast("dict[str, Any]", image).get(kind) or "")
    return str(image or "")


def _user_environment(config: dict[str, Any], kind: str) -> dict[str, str]:
    variables: Any = _section(config, "environment").get("environment_variables") or {}
    listed: list[str] = _section(variables, kind, []) if isinstance(variables, dict) else variables
    pairs = [entry.partition("=") for entry in listed]
    return {name: value for name, _, value in pairs if name}


def _section(config: Any, name: str, default: Any = None) -> Any:
    return config.get(name) or ({} if default is None else default)
