"""Creates and commands tasks that are no trials: commands, generic tasks and what else a workload is for."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth import task_secrets
from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable_task, check_active, check_may_launch, open_workspace, readable_task
from api.errors import BadRequest, FailedPrecondition, NotFound
from api.schemas.contexts import File
from api.schemas.jobs import PatchResources
from api.schemas.validation import checked_object
from api.services import budgets, chunked_contexts, config_policies, dependencies, tensorboards
from api.services.context_contents import Stored
from api.services.contexts import pack
from api.services.jobs import change, claim_of
from api.services.pools import check_available, defaults_of, offered
from api.services.templates import readable_template
from api.settings import ApiSettings
from api.temporal import outbox
from database.log_lines import AWAITS, note_line
from database.models import Task, TaskContext, Workspace
from workflows import names
from workflows.config.config_policies import Workload
from workflows.config.defaults import default_name
from workflows.config.durations import shown as shown_duration
from workflows.config.tasks import TaskConfig, TaskConfigError, parse_task_config
from workflows.lifecycle.needs import is_waiting
from workflows.lifecycle.task import ENDS_IDLE, KILLED, PAUSED, UNPAUSED, TaskKind, TaskState
from workflows.messages import TaskRun, TaskWish, Timing

#: A tree of tasks is walked by its parents: so deep, it is a mistake.
_DEEPEST = 50


@dataclass(frozen=True)
class Wanted:
    """What a user asks for.

    Attributes:
        kind: Of the task.
        config: As the user wrote it.
        files: Beside it.
        template: The name of what fills the configuration up.
        workspace_id: 0: the first one.
        written: The text of the configuration, where that is shown again.
        parent: The task that this one belongs to.
        content: Files that are taken over from another task, if none come along.
        context: The id of a context that was uploaded, in place of `files`.
        forked_from: Whose configuration it was made of.
        is_pausable: It can be paused, and asked by its pool to make room; it does its work again from the start then.
        shown: What a TensorBoard shows.
        passphrase: What locks a shell's key.
    """

    kind: TaskKind
    config: Mapping[str, Any]
    files: Sequence[File] = ()
    template: str = ""
    workspace_id: int = 0
    written: str | None = None
    parent: Task | None = None
    content: Stored | None = None
    context: str = ""
    forked_from: str | None = None
    is_pausable: bool = False
    shown: tensorboards.Shown | None = None
    passphrase: str = ""


@dataclass(frozen=True)
class Launched:
    """A recorded task, whose workflow is about to be started."""

    task: Task
    warnings: list[str] = field(default_factory=list[str])


def launch(session: Session, wanted: Wanted, user: UserPrincipal, settings: ApiSettings) -> Launched:
    """Check and record a task, and have its workflow started.

    Raises: BadRequest, NotFound, Forbidden, FailedPrecondition, TooLarge. Nothing is left behind.
    """
    workspace, config = _checked(session, wanted, user, settings)
    token_id = budgets.token_of(session, user)
    if config.resources.slots:
        budgets.check_open(session, workspace.id, token_id)
    needs = dependencies.checked(session, config, user)
    content = _files(session, wanted, user)
    pool = config.resources.resource_pool
    task_id = str(uuid.uuid4())
    row = Task(
        id=task_id,
        kind=wanted.kind.value,
        owner_id=user.user_id,
        token_id=token_id,
        workspace_id=workspace.id,
        job_id=str(uuid.uuid4()),
        config=config.model_dump(mode="json", exclude_none=True),
        state=TaskState.ACTIVE.value,
        name=config.description or _name(wanted.kind, task_id),
        pool=pool,
        slots=config.resources.slots,
        written=wanted.written,
        parent_id=wanted.parent.id if wanted.parent is not None else None,
        forked_from=wanted.forked_from,
        is_pausable=wanted.is_pausable,
        sources=_ids(wanted.shown),
    )
    session.add(row)
    session.flush()
    task_secrets.make(session, row, wanted.passphrase)
    if wanted.shown is not None:
        tensorboards.as_text(tensorboards.sources(session, row))
    if content is not None:
        chunked_contexts.hold(session, [content])
        session.add(TaskContext(task_id=task_id, **content.columns()))
    note_line(session, task_id, f"Scheduling {row.name} (id: {names.allocation_id(task_id, 1)})")
    dependencies.record(session, row, needs)
    if is_waiting(needs):
        awaited = ", ".join(need.task_id for need in needs if need.state is None)
        note_line(session, task_id, f"{row.name} waits for the end of {awaited}", place=AWAITS)
    run = run_of(row, config, user.username, workspace, settings.timing).model_copy(update={"needs": needs})
    outbox.post(session, names.task_workflow(task_id), outbox.START_TASK, run.model_dump(mode="json"))
    return Launched(row, offered(session, pool, config.resources.slots)[1])


def _files(session: Session, wanted: Wanted, user: UserPrincipal) -> Stored | None:
    """Raises: BadRequest, NotFound, TooLarge."""
    if wanted.context:
        return chunked_contexts.named(session, user, wanted.context)
    return Stored.of(pack(wanted.files, "files")) if wanted.files else wanted.content


def preview(session: Session, wanted: Wanted, user: UserPrincipal, settings: ApiSettings) -> dict[str, Any]:
    """The configuration that a task would have, with every default. Raises: as `launch`. Nothing is made."""
    _, config = _checked(session, wanted, user, settings)
    return config.model_dump(mode="json", exclude_none=True)


def _checked(
    session: Session, wanted: Wanted, user: UserPrincipal, settings: ApiSettings
) -> tuple[Workspace, TaskConfig]:
    """Where it is, and its configuration. Raises: BadRequest, NotFound, Forbidden, FailedPrecondition."""
    check_active(session, user)
    workspace = open_workspace(session, user, wanted.workspace_id or 1)
    if wanted.kind in (TaskKind.NOTEBOOK, TaskKind.SHELL, TaskKind.COMMAND):
        check_may_launch(session, user, workspace)
    config = _config(session, wanted, user, workspace, settings)
    if wanted.files and wanted.context:
        raise BadRequest("context: expected either it or files")
    if (wanted.files or wanted.context) and config.work_dir is not None:
        raise BadRequest("cannot set work_dir and context directory at the same time")
    check_available(session, config.resources.resource_pool, workspace.id, user, "config.resources.resource_pool")
    return workspace, config


def _ids(shown: tensorboards.Shown | None) -> dict[str, Any] | None:
    return None if shown is None else {"experiment_ids": shown.experiment_ids, "trial_ids": shown.trial_ids}


def _config(
    session: Session, wanted: Wanted, user: UserPrincipal, workspace: Workspace, settings: ApiSettings
) -> TaskConfig:
    """With every default filled in. Raises: BadRequest, NotFound."""
    policy = config_policies.governing(session, workspace.id, Workload.NTSC)
    layers = [policy.invariant_config, checked_object("config", wanted.config)]
    if wanted.template:
        layers.append(readable_template(session, wanted.template, user).config)
    if wanted.shown is not None:
        layers.append(wanted.shown.layer(layers))
    image = {"environment": {"image": settings.trial_image}}
    try:
        config = parse_task_config(wanted.kind, *layers, image)
    except TaskConfigError as error:
        raise BadRequest(str(error)) from None
    slots = 0 if wanted.kind is TaskKind.TENSORBOARD else config.resources.slots
    pool = config.resources.resource_pool or (
        (workspace.default_compute_pool if slots else workspace.default_aux_pool) or defaults_of(session).of(slots)
    )
    resources = config.resources.model_dump(exclude_none=True) | {"slots": slots}
    config_policies.check(policy, resources, Workload.NTSC)
    resources = config_policies.fitted(session, policy, resources, pool)
    update = {"resource_pool": pool, "priority": resources.get("priority"), "slots": slots}
    idle_timeout = config.idle_timeout or _usual_idle_timeout(wanted.kind, settings)
    return config.model_copy(
        update={"resources": config.resources.model_copy(update=update), "idle_timeout": idle_timeout}
    )


def _usual_idle_timeout(kind: TaskKind, settings: ApiSettings) -> str | None:
    """The cluster's, for what acts on one."""
    usual = {TaskKind.NOTEBOOK: settings.notebook_timeout, TaskKind.TENSORBOARD: settings.tensorboard_timeout}
    seconds = usual.get(kind)
    return None if seconds is None else shown_duration(seconds)


def _name(kind: TaskKind, task_id: str) -> str:
    if kind is TaskKind.GENERIC:
        return f"Generic Task {task_id}"
    return default_name(uuid.UUID(task_id).int, _SHOWN[kind])


#: How people read the kinds.
_SHOWN = {
    TaskKind.COMMAND: "Command",
    TaskKind.NOTEBOOK: "JupyterLab",
    TaskKind.SHELL: "Shell",
    TaskKind.TENSORBOARD: "TensorBoard",
}


def run_of(row: Task, config: TaskConfig, owner: str, workspace: Workspace, timing: Timing) -> TaskRun:
    """What the workflow of a task starts with."""
    timing = timing.model_copy(update={"preemption_timeout_s": float(config.preemption_timeout)})
    return TaskRun(
        task_id=row.id,
        kind=TaskKind(row.kind),
        name=row.name or row.id,
        owner=owner,
        workspace=workspace.name,
        job_id=row.job_id,
        pool=config.resources.resource_pool,
        slots=config.resources.slots,
        by_records=True,
        claim=claim_of(row).claim,
        goes_on=bool(row.is_pausable),
        max_restarts=config.max_restarts,
        idle_timeout_s=config.idle_timeout_s if TaskKind(row.kind) in ENDS_IDLE else None,
        max_lifetime_s=config.max_lifetime_s,
        timing=timing,
    )


# -- commands ------------------------------------------------------------------------------------------------------


def find(session: Session, task_id: str, user: UserPrincipal, kind: TaskKind) -> Task:
    """A task of this kind that the user may see. Raises: NotFound."""
    row = readable_task(session, task_id, user)
    if row.kind != kind.value:
        raise NotFound(f"{kind.value.lower()} {task_id!r} not found")
    return row


def find_changeable(session: Session, task_id: str, user: UserPrincipal, kind: TaskKind) -> Task:
    """A task of this kind that the user may change. Raises: NotFound, Forbidden."""
    find(session, task_id, user, kind)
    return changeable_task(session, task_id, user)


def kill(session: Session, row: Task, *, with_children: bool = True) -> None:
    """Have a task end, and those below it. Nothing happens to those that have ended."""
    for each in [row, *(_descendants(session, row) if with_children else ())]:
        _want(session, each, KILLED)


def pause(session: Session, row: Task) -> None:
    """Have a task give its slots back, and those below it that may be paused. Raises: FailedPrecondition."""
    if not row.is_pausable:
        raise FailedPrecondition(f"task {row.id} can't be paused: it was created so")
    if not _want(session, row, PAUSED):
        raise FailedPrecondition(f"cannot pause task {row.id} as it is in state '{row.state}'")
    for each in _descendants(session, row):
        if each.is_pausable:
            _want(session, each, PAUSED)


def unpause(session: Session, row: Task) -> None:
    """Have a paused task go on, and those below it. Raises: FailedPrecondition."""
    if row.slots:
        budgets.check_open(session, row.workspace_id, row.token_id)
    if not _want(session, row, UNPAUSED):
        raise FailedPrecondition(f"cannot unpause task {row.id} as it is in state '{row.state}'")
    for each in _descendants(session, row):
        _want(session, each, UNPAUSED)


def root_of(session: Session, row: Task) -> Task:
    """The task on top of the tree that a task belongs to."""
    for _ in range(_DEEPEST):
        if row.parent_id is None:
            break
        row = session.get_one(Task, row.parent_id)
    return row


def check_depth(session: Session, parent: Task) -> None:
    """Refuse a child of what is as deep as a tree may be. Raises: BadRequest."""
    depth, above = 1, parent
    while above.parent_id is not None:
        depth, above = depth + 1, session.get_one(Task, above.parent_id)
    if depth >= _DEEPEST:
        raise BadRequest(f"parentId: {parent.id} is {depth} tasks below the first one, the limit is {_DEEPEST}")


def _descendants(session: Session, row: Task) -> Iterator[Task]:
    level = [row.id]
    while level:
        children = session.scalars(select(Task).where(Task.parent_id.in_(level)).order_by(Task.started_at)).all()
        yield from children
        level = [child.id for child in children]


def _want(session: Session, row: Task, states: Mapping[TaskState, TaskState]) -> bool:
    """Have a task become what its state leads to. False: nothing follows from that state."""
    session.refresh(row, with_for_update=True)
    state = states.get(TaskState(row.state))
    if state is None:
        return False
    row.state = state.value
    row.wishes += 1
    wish = TaskWish(number=row.wishes, state=state)
    outbox.post(session, names.task_workflow(row.id), "want", wish.model_dump(mode="json"))
    return True


def set_priority(session: Session, row: Task, priority: int) -> None:
    """Change its place in the queue of its pool. Raises: BadRequest, FailedPrecondition."""
    if TaskState(row.state).is_terminal:
        raise FailedPrecondition(f"task {row.id} has ended: it asks its pool for nothing")
    change(session, row, PatchResources(priority=priority))
