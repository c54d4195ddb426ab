"""Deletion of a project or workspace, whose experiments are deleted one by one."""

from __future__ import annotations

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from database.models import Experiment, Model, Project, Workspace


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
    statement = select(Workspace.id).where(Workspace.id == workspace_id, Workspace.state != "").with_for_update()
    if session.scalar(statement) is None:
        return
    has_projects = select(Project.id).where(Project.workspace_id == workspace_id).exists()
    has_models = select(Model.id).where(Model.workspace_id == workspace_id).exists()
    session.execute(delete(Workspace).where(Workspace.id == workspace_id, ~has_projects, ~has_models))


def note_failure(session: Session, experiment_id: int, reason: str) -> None:
    """An experiment could not be deleted, and so neither could what it is in. It may be tried again."""
    told = {"state": "DELETE_FAILED", "error": f"experiment {experiment_id}: {reason}"}
    project = select(Experiment.project_id).where(Experiment.id == experiment_id).scalar_subquery()
    workspace = select(Project.workspace_id).where(Project.id == project).scalar_subquery()
    session.execute(update(Project).where(Project.id == project, Project.state == "DELETING").values(told))
    session.execute(update(Workspace).where(Workspace.id == workspace, Workspace.state == "DELETING").values(told))
