"""Deletion of a project or workspace, whose experiments are deleted one by one, and whose tasks end."""

from __future__ import annotations

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from database.campaigns import post_schedules
from database.models import (
    Campaign,
    Experiment,
    LogBlock,
    Model,
    NamespaceBinding,
    Outbox,
    Project,
    Task,
    TaskLog,
    Workspace,
)
from workflows import names
from workflows.messages import NamespaceRemovalOrder

#: The kind of the message that has a deleted workspace's namespace removed.
REMOVE_NAMESPACE = "remove_namespace"


def hold_project(session: Session, experiment_id: int) -> int | None:
    """Lock an experiment's project, so that of several that go at once one is the last; None: it is gone already."""
    return session.scalar(
        select(Project.id)
        .join(Experiment, Experiment.project_id == Project.id)
        .where(Experiment.id == experiment_id)
        .with_for_update(of=Project)
    )


def drop_if_empty(session: Session, project_id: int) -> None:
    """Delete a project that is to be deleted and has nothing left, and its workspace likewise."""
    workspace_id = session.scalar(select(Project.workspace_id).where(Project.id == project_id))
    is_used = select(Experiment.id).where(Experiment.project_id == project_id).exists()
    session.execute(delete(Project).where(Project.id == project_id, Project.state != "", ~is_used))
    if workspace_id is not None:
        drop_workspace_if_empty(session, workspace_id)


def drop_workspace_if_empty(session: Session, workspace_id: int) -> None:
    """Delete a workspace that is to be deleted, once nothing of it is left but tasks that have ended."""
    statement = select(Workspace.id).where(Workspace.id == workspace_id, Workspace.state != "").with_for_update()
    if session.scalar(statement) is None:
        return
    has_projects = select(Project.id).where(Project.workspace_id == workspace_id).exists()
    has_models = select(Model.id).where(Model.workspace_id == workspace_id).exists()
    has_tasks = select(Task.id).where(Task.workspace_id == workspace_id, Task.ended_at.is_(None)).exists()
    if session.scalar(select(or_(has_projects, has_models, has_tasks))):
        return
    erase_contents(session, workspace_id)
    session.execute(delete(Workspace).where(Workspace.id == workspace_id))


def erase_contents(session: Session, workspace_id: int) -> None:
    """Delete the tasks of a workspace, which have all ended, its campaigns, and its own namespaces in clusters."""
    owned = select(NamespaceBinding).where(NamespaceBinding.workspace_id == workspace_id, NamespaceBinding.own != "")
    for row in session.scalars(owned):
        order = NamespaceRemovalOrder(agent_id=row.cluster, workspace_id=workspace_id, namespace=row.own)
        workflow_id = names.namespace_removal_workflow(row.cluster, row.own)
        session.add(Outbox(workflow_id=workflow_id, kind=REMOVE_NAMESPACE, payload=order.model_dump(mode="json")))
    campaigns = session.scalars(select(Campaign.id).where(Campaign.workspace_id == workspace_id)).all()
    post_schedules(session, campaigns)
    session.execute(delete(Campaign).where(Campaign.id.in_(campaigns)))
    tasks = select(Task.id).where(Task.workspace_id == workspace_id)
    for model in (TaskLog, LogBlock):
        session.execute(delete(model).where(model.task_id.in_(tasks)))
    session.execute(delete(Task).where(Task.workspace_id == workspace_id))


def note_failure(session: Session, experiment_id: int, reason: str) -> None:
    """An experiment could not be deleted, and so neither could what it is in. It may be tried again."""
    told = {"state": "DELETE_FAILED", "error": f"experiment {experiment_id}: {reason}"}
    project = select(Experiment.project_id).where(Experiment.id == experiment_id).scalar_subquery()
    workspace = select(Project.workspace_id).where(Project.id == project).scalar_subquery()
    session.execute(update(Project).where(Project.id == project, Project.state == "DELETING").values(told))
    session.execute(update(Workspace).where(Workspace.id == workspace, Workspace.state == "DELETING").values(told))
