"""Config policies: kept by workspace and kind of work, and what follows of them for a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.errors import BadRequest
from database.models import Cluster, Experiment, Project, ResourcePool, Task, Workspace
from database.models import ConfigPolicy as Row
from workflows.config.config_policies import ConfigPolicy, Workload, combined, parse_policy
from workflows.scheduling.settings import PoolSettings

_REFUSED = "failed constraint check: "


def find(session: Session, workspace_id: int | None, workload: Workload) -> dict[str, Any]:
    """A policy as it was written; empty if there is none.

    Args:
        session: To read with.
        workspace_id: None: the cluster's.
        workload: What it is for.
    """
    return session.scalar(_content(workspace_id, workload)) or {}


def put(
    session: Session, workspace_id: int | None, workload: Workload, text: str, user: UserPrincipal
) -> dict[str, Any]:
    """Replace a policy; what is there already stays as it is. Raises: BadRequest."""
    try:
        policy = parse_policy(text, workload)
    except ValueError as error:
        raise BadRequest(f"configPolicies: {error}") from None
    remove(session, workspace_id, workload)
    content = policy.written()
    row = Row(workspace_id=workspace_id, workload=workload.value, content=content, changed_by=user.user_id)
    session.add(row)
    session.flush()
    return content


def remove(session: Session, workspace_id: int | None, workload: Workload) -> None:
    """Remove a policy, if there is one. Nobody else changes it before this transaction ends."""
    if workspace_id is None:
        session.get_one(Cluster, 1, with_for_update=True)
    else:
        session.get_one(Workspace, workspace_id, with_for_update=True)
    session.execute(delete(Row).where(_scope(workspace_id), Row.workload == workload.value))


def governing(session: Session, workspace_id: int, workload: Workload) -> ConfigPolicy:
    """What holds for a configuration in a workspace: the cluster's policy goes before the workspace's."""
    written = select(Row.workspace_id, Row.content).where(
        or_(_scope(None), _scope(workspace_id)), Row.workload == workload.value
    )
    contents: dict[int | None, dict[str, Any]] = dict(session.execute(written).tuples().all())
    scopes = (None, workspace_id)
    return combined([ConfigPolicy.model_validate(contents.get(scope) or {}) for scope in scopes])


def check(policy: ConfigPolicy, resources: dict[str, Any], workload: Workload) -> None:
    """Refuse a complete configuration that goes beyond a policy. Raises: BadRequest."""
    problem = policy.constraints.problem(resources, workload)
    if problem is not None:
        raise BadRequest(_REFUSED + problem)


def fitted(session: Session, policy: ConfigPolicy, resources: dict[str, Any], pool: str) -> dict[str, Any]:
    """`resources` with what the policy allows where their user has said nothing.

    That is the slots of all trials together, and the priority if the usual one of the pool is not allowed.
    """
    limits, filled = policy.constraints, dict(resources)
    if limits.max_slots is not None and resources.get("max_slots") is None:
        filled["max_slots"] = limits.max_slots
    is_limited = limits.priority_limit is not None and resources.get("priority") is None
    if is_limited and limits.priority_problem(_usual_priority(session, pool)) is not None:
        filled["priority"] = limits.priority_limit
    return filled


def check_change(session: Session, row: Experiment | Task, changes: dict[str, Any]) -> None:
    """Refuse to change resources of what exists to what a policy forbids, or sets itself. Raises: BadRequest."""
    policy, workload = _of(session, row)
    check_wanted(policy, changes, workload)


def check_wanted(policy: ConfigPolicy, wanted: dict[str, Any], workload: Workload, prefix: str = "") -> None:
    """Refuse resources that a policy forbids, or sets itself; what is absent is no problem. Raises: BadRequest."""
    fixed: dict[str, Any] = policy.invariant_config.get("resources") or {}
    for name, value in wanted.items():
        if name in fixed and fixed[name] != value:
            raise BadRequest(f"{prefix}resources.{name}: {value}: a config policy sets it to {fixed[name]}")
    problem = policy.constraints.problem(wanted, workload)
    if problem is not None:
        raise BadRequest(f"{prefix}{_REFUSED}{problem}")


def check_limits(session: Session, row: Task, changes: Mapping[str, str]) -> None:
    """Refuse to change limits of a task's time that a policy sets itself. Raises: BadRequest."""
    policy, _ = _of(session, row)
    for name, value in changes.items():
        fixed = policy.invariant_config.get(name)
        if fixed is not None and fixed != value:
            raise BadRequest(f"{name}: {value}: a config policy sets it to {fixed}")


def check_move(session: Session, row: Experiment | Task, anchor: Experiment | Task, pool: str) -> None:
    """Refuse a place in the queue beside a job whose priority this one may not have. Raises: BadRequest."""
    priority = (anchor.config or {})["resources"].get("priority") or _usual_priority(session, pool)
    check_change(session, row, {"priority": priority})


def _of(session: Session, row: Experiment | Task) -> tuple[ConfigPolicy, Workload]:
    if isinstance(row, Experiment):
        workspace_id = session.get_one(Project, row.project_id).workspace_id
        return governing(session, workspace_id, Workload.EXPERIMENT), Workload.EXPERIMENT
    return governing(session, row.workspace_id or 1, Workload.NTSC), Workload.NTSC


def _usual_priority(session: Session, pool: str) -> int:
    settings = session.scalar(select(ResourcePool.settings).where(ResourcePool.name == pool))
    return PoolSettings.model_validate(settings or {}).default_priority


def _content(workspace_id: int | None, workload: Workload) -> Any:
    return select(Row.content).where(_scope(workspace_id), Row.workload == workload.value)


def _scope(workspace_id: int | None) -> Any:
    return Row.workspace_id.is_(None) if workspace_id is None else Row.workspace_id == workspace_id
