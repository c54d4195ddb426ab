"""Workspaces and projects: create, change, move, archive and delete them, move experiments, and the permissions.

An archived workspace or project accepts nothing new. Deleting one deletes its content, by the workflows that delete
experiments; its row is deleted with the last experiment (`database.organization`).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, changeable, check_active, readable_workspaces, require_role, role_in
from api.errors import BadRequest, Conflict, FailedPrecondition, Forbidden, NotFound
from api.queries.workspaces import available_pools
from api.schemas import workspaces as wire
from api.schemas.validation import checked_name, checked_text
from api.services import cleanup, pools, tasks
from api.services.users import check_agent_user
from database.campaigns import live_run
from database.models import Experiment, Model, PoolBinding, Project, Task, User, Workspace
from database.organization import erase_contents
from workflows.config import CheckpointStorage
from workflows.config.rules import storage_findings

_KEY = re.compile(r"[A-Z0-9]{1,5}")
_STORAGE: TypeAdapter[Any] = TypeAdapter(CheckpointStorage)
#: The roles that a workspace can give to all users. Its administrators are set by assignments.
_EVERYONE = ("", "viewer", "contributor", "editor")

# -- workspaces ----------------------------------------------------------------------------------------------------


def new_workspace(session: Session, wanted: wire.PostWorkspace, user: UserPrincipal) -> int:
    """A workspace of the user's own. Raises: BadRequest, Conflict, Forbidden."""
    row = Workspace(name=_free_workspace_name(session, wanted.name or ""), owner_id=user.user_id)
    _apply(session, row, wanted, user)
    session.add(row)
    session.flush()
    return row.id


def change_workspace(session: Session, workspace_id: int, wanted: wire.PatchWorkspace, user: UserPrincipal) -> None:
    """Change what is given. Raises: NotFound, Forbidden, BadRequest, Conflict, FailedPrecondition."""
    row = require_role(session, user, workspace_id, Role.ADMIN)
    _check_alive(row)
    if row.is_archived:
        raise FailedPrecondition(f"workspace {row.name!r} is archived: unarchive it before it is changed")
    if wanted.name is not None and wanted.name.strip() != row.name:
        _check_mutable(row)
        row.name = _free_workspace_name(session, wanted.name, row.id)
    _apply(session, row, wanted, user)
    session.flush()


def _apply(session: Session, row: Workspace, wanted: wire.PatchWorkspace, user: UserPrincipal) -> None:
    if wanted.agent_user_group is not None:
        if not user.is_admin:  # or all users could have their containers run as root
            raise Forbidden("agentUserGroup: only administrators of the cluster say as whom containers run")
        check_agent_user(wanted.agent_user_group)
        row.agent_user_group = wanted.agent_user_group.model_dump(exclude_none=True) or None
    if wanted.checkpoint_storage_config is not None:
        row.checkpoint_storage = _checked_storage(wanted.checkpoint_storage_config) or None
    compute = _first(wanted.default_compute_pool, wanted.default_compute_resource_pool)
    if compute is not None:
        row.default_compute_pool = _checked_pool(session, "defaultComputePool", compute, row.id, user)
    aux = _first(wanted.default_aux_pool, wanted.default_aux_resource_pool)
    if aux is not None:
        row.default_aux_pool = _checked_pool(session, "defaultAuxPool", aux, row.id, user)
    if wanted.everyone is not None:
        if wanted.everyone not in _EVERYONE:
            raise BadRequest(f"everyone: {wanted.everyone[:40]!r}: expected viewer, contributor, editor or nothing")
        row.everyone = wanted.everyone or None


def _first(*values: str | None) -> str | None:
    return next((value for value in values if value is not None), None)


def _checked_storage(config: dict[str, Any]) -> dict[str, Any]:
    if not config:
        return config
    try:
        _STORAGE.validate_python(config)
    except ValidationError as error:
        told = "; ".join(
            f"{'.'.join(map(str, problem['loc'][1:])) or 'type'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        )
        raise BadRequest(f"checkpointStorageConfig: {told}") from None
    for problem in storage_findings(config):
        where = ".".join(map(str, ("checkpointStorageConfig", *problem.path[1:])))
        found = "" if problem.value is None else f"{str(problem.value)[:80]!r}: "
        raise BadRequest(f"{where}: {found}{problem.message}")
    return config


def _checked_pool(session: Session, field: str, name: str, workspace_id: int | None, user: UserPrincipal) -> str | None:
    if not name:
        return None
    if name not in set(session.scalars(available_pools(workspace_id or 0, user))):
        raise BadRequest(
            f"{field}: {name[:130]!r}: there is no such pool, or it is not available to this workspace or to you"
        )
    return name


def _free_workspace_name(session: Session, wanted: str, own_id: int = 0) -> str:
    """Names that differ in case only would be taken for each other: clients look for them in any case."""
    name = checked_name("name", wanted)
    taken = select(Workspace.id).where(func.lower(Workspace.name) == name.lower(), Workspace.id != own_id)
    if session.scalar(taken) is not None:
        raise Conflict(f"workspace {name!r} already exists")
    return name


def archive_workspace(session: Session, workspace_id: int, user: UserPrincipal, archived: bool) -> None:
    """Put a workspace away, or take it out again. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = require_role(session, user, workspace_id, Role.ADMIN)
    _check_mutable(row)
    _check_alive(row)
    row.is_archived = archived


def delete_workspace(session: Session, workspace_id: int, user: UserPrincipal) -> bool:
    """Delete a workspace with all projects, experiments and tasks. True: it is gone; False: in the background.

    Raises: NotFound, Forbidden, FailedPrecondition. Nothing was changed then.
    """
    row = require_role(session, user, workspace_id, Role.ADMIN)
    _check_mutable(row)
    session.refresh(row, with_for_update=True)
    models = session.scalars(
        select(Model.name).where(Model.workspace_id == workspace_id).order_by(Model.name).limit(10)
    ).all()
    if models:
        raise FailedPrecondition(
            f"workspace {row.name!r} has registered models ({', '.join(models)}): move or delete them first"
        )
    run = live_run(session, workspace_id)
    if run is not None:
        raise FailedPrecondition(
            f"run {run.number} of campaign {run.campaign_id} in workspace {row.name!r} has not ended:"
            f" `det campaign kill {run.campaign_id} --run {run.number}`"
        )
    projects = session.scalars(select(Project).where(Project.workspace_id == workspace_id).order_by(Project.id)).all()
    emptied = [_empty(session, project, user, role=Role.ADMIN) for project in projects]  # all of them, not up to one
    running = session.scalars(select(Task).where(Task.workspace_id == workspace_id, Task.ended_at.is_(None))).all()
    for task in running:
        tasks.kill(session, task, with_children=False)
    if all(emptied) and not running:
        session.flush()
        erase_contents(session, workspace_id)
        session.delete(row)
        return True
    row.state, row.error = "DELETING", ""
    return False


# -- projects ------------------------------------------------------------------------------------------------------


def readable_project(session: Session, project_id: int, user: UserPrincipal) -> Project:
    """A project that the user may see. Raises: NotFound."""
    row = session.scalar(
        select(Project).where(Project.id == project_id, Project.workspace_id.in_(readable_workspaces(user)))
    )
    if row is None:
        raise NotFound(f"project {project_id} not found")
    return row


def changeable_project(session: Session, project_id: int, user: UserPrincipal) -> Project:
    """A project that the user may change: who made it, and editors. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = readable_project(session, project_id, user)
    if row.owner_id != user.user_id:
        require_role(session, user, row.workspace_id, Role.EDITOR)
    _check_mutable(row)
    _check_alive(row)
    return row


class Target(NamedTuple):
    """Where something new goes, and who puts it there."""

    project: Project
    workspace: Workspace
    user: User


def target(session: Session, project_id: int, user: UserPrincipal, *, is_locked: bool = False) -> Target:
    """A project that the user may put an experiment into, by one statement.

    Who creates something holds the three: the session itself forgets rows that nobody refers to, and reads them again.

    Args:
        session: To read with.
        project_id: Of the project.
        user: Who asks.
        is_locked: It can't be deleted before this transaction ends.

    Raises: NotFound, Forbidden, FailedPrecondition.
    """
    together = (
        select(Project, Workspace, User)
        .join(Workspace, Workspace.id == Project.workspace_id)
        .join(User, User.id == user.user_id)
        .where(Project.id == project_id, Project.workspace_id.in_(readable_workspaces(user)))
    )
    if is_locked:
        together = together.with_for_update(read=True, of=Project).execution_options(populate_existing=True)
    row = session.execute(together).one_or_none()
    if row is None:
        raise NotFound(f"project {project_id} not found")
    found = Target(*row.tuple())
    check_active(session, user)
    require_role(session, user, found.workspace.id, Role.CONTRIBUTOR)
    _check_open(found.workspace)
    _check_open(found.project)
    return found


def target_project(session: Session, project_id: int, user: UserPrincipal, *, is_locked: bool = False) -> Project:
    """The project alone: see `target`."""
    return target(session, project_id, user, is_locked=is_locked).project


def project_of_names(session: Session, workspace: str, project: str, user: UserPrincipal) -> Project:
    """The project of these names that the user may see. Raises: NotFound."""
    row = session.scalar(
        select(Project)
        .join(Workspace, Workspace.id == Project.workspace_id)
        .where(Workspace.name == workspace, Project.name == project, Workspace.id.in_(readable_workspaces(user)))
    )
    if row is None:
        raise NotFound(f"project {project!r} in workspace {workspace!r} not found")
    return row


def new_project(session: Session, workspace_id: int, wanted: wire.PostProject, user: UserPrincipal) -> int:
    """A project in a workspace. Raises: NotFound, Forbidden, BadRequest, Conflict, FailedPrecondition."""
    workspace = require_role(session, user, workspace_id, Role.EDITOR)
    _check_mutable(workspace)
    _check_open(workspace)
    name = _free_project_name(session, wanted.name, workspace_id)
    row = Project(
        name=name,
        key=_free_key(session, wanted.key) if wanted.key else _new_key(session, name),
        description=checked_text("description", wanted.description or ""),
        workspace_id=workspace_id,
        owner_id=user.user_id,
    )
    session.add(row)
    session.flush()
    return row.id


def change_project(session: Session, project_id: int, wanted: wire.PatchProject, user: UserPrincipal) -> None:
    """Change what is given. Raises: NotFound, Forbidden, BadRequest, Conflict, FailedPrecondition."""
    row = changeable_project(session, project_id, user)
    if wanted.name is not None and wanted.name.strip() != row.name:
        row.name = _free_project_name(session, wanted.name, row.workspace_id, row.id)
    if wanted.description is not None:
        row.description = checked_text("description", wanted.description)
    if wanted.key is not None and wanted.key.upper() != row.key:
        row.key = _free_key(session, wanted.key)
    session.flush()


def set_notes(session: Session, project_id: int, notes: list[wire.Note], user: UserPrincipal) -> list[dict[str, Any]]:
    """Replace a project's notes. Raises: NotFound, Forbidden, BadRequest, FailedPrecondition."""
    row = readable_project(session, project_id, user)
    if row.owner_id != user.user_id:
        require_role(session, user, row.workspace_id, Role.EDITOR)
    _check_alive(row)
    row.notes = [
        {"name": checked_text("notes.name", note.name), "contents": checked_text("notes.contents", note.contents)}
        for note in notes
    ]
    return row.notes


def archive_project(session: Session, project_id: int, user: UserPrincipal, archived: bool) -> None:
    """Put a project away, or take it out again. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = changeable_project(session, project_id, user)
    workspace = session.get_one(Workspace, row.workspace_id)
    if workspace.is_archived and not archived:
        raise FailedPrecondition(f"workspace {workspace.name!r} is archived: unarchive that first")
    row.is_archived = archived


def move_project(session: Session, project_id: int, workspace_id: int, user: UserPrincipal) -> None:
    """Move a project to another workspace. Raises: NotFound, Forbidden, Conflict, FailedPrecondition."""
    row = changeable_project(session, project_id, user)
    source = session.get_one(Workspace, row.workspace_id)
    target = require_role(session, user, workspace_id, Role.EDITOR)
    _check_mutable(target)
    for place in (source, row, target):
        _check_open(place)
    _free_project_name(session, row.name, workspace_id, row.id)
    row.workspace_id = workspace_id
    session.flush()


def delete_project(session: Session, project_id: int, user: UserPrincipal) -> bool:
    """Delete a project with its experiments. True: it is gone; False: it goes in the background.

    Raises: NotFound, Forbidden, FailedPrecondition. Nothing was changed then.
    """
    row = readable_project(session, project_id, user)
    role = role_in(session, user, row.workspace_id) or Role.VIEWER
    if row.owner_id != user.user_id:
        require_role(session, user, row.workspace_id, Role.PROJECT_RESTRICTED)
    _check_mutable(row)
    return _empty(session, row, user, role=role)


def _empty(session: Session, row: Project, user: UserPrincipal, *, role: Role) -> bool:
    """Delete a project, now if it is empty; otherwise have its experiments deleted first."""
    session.refresh(row, with_for_update=True)
    experiments = session.execute(
        select(Experiment.id, Experiment.owner_id).where(Experiment.project_id == row.id).order_by(Experiment.id)
    ).all()
    if not experiments:
        session.delete(row)
        return True
    foreign = [str(number) for number, owner_id in experiments if owner_id != user.user_id]
    if foreign and role < Role.PROJECT_RESTRICTED:
        raise Forbidden(f"experiments {', '.join(foreign[:10])} in it belong to others, and this needs the role editor")
    numbers = {number for number, _ in experiments}
    for number in sorted(numbers):
        cleanup.delete_experiment(session, number, user, along_with=numbers)
    row.state, row.error = "DELETING", ""
    return False


def _free_project_name(session: Session, wanted: str, workspace_id: int, own_id: int = 0) -> str:
    name = checked_name("name", wanted)
    taken = select(Project.id).where(
        Project.workspace_id == workspace_id, func.lower(Project.name) == name.lower(), Project.id != own_id
    )
    if session.scalar(taken) is not None:
        raise Conflict(f"project {name!r} already exists in this workspace")
    return name


def _free_key(session: Session, wanted: str) -> str:
    key = wanted.strip().upper()
    if not _KEY.fullmatch(key):
        raise BadRequest(f"key: {wanted[:40]!r}: expected 1 to 5 letters and digits of ASCII")
    if session.scalar(select(Project.id).where(Project.key == key)) is not None:
        raise Conflict(f"key: {key!r} is that of another project")
    return key


def _new_key(session: Session, name: str) -> str | None:
    """The first letters of the name, with a number if others have them; None if all of those are taken."""
    letters = "".join(re.findall(r"[A-Z0-9]", name.upper()))[:3] or "P"
    taken = set(session.scalars(select(Project.key).where(Project.key.like(f"{letters}%"))))
    numbers = [""] + [str(number) for number in range(1, 10 ** (5 - len(letters)))]
    return next((letters + number for number in numbers if letters + number not in taken), None)


# -- experiments in projects ---------------------------------------------------------------------------------------


def move_experiment(session: Session, experiment_id: int, project_id: int, user: UserPrincipal) -> None:
    """Move an experiment to another project. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = changeable(session, experiment_id, user)
    source = session.get_one(Project, row.project_id)
    _check_open(session.get_one(Workspace, source.workspace_id))
    _check_open(source)
    target = target_project(session, project_id, user, is_locked=True)
    if row.state == "DELETING":
        raise FailedPrecondition(f"experiment {experiment_id} is being deleted")
    row.project_id = target.id


def _check_mutable(row: Workspace | Project) -> None:
    if row.is_immutable:
        raise FailedPrecondition(f"{_what(row)} is immutable: every cluster has it, as it is")


def _check_alive(row: Workspace | Project) -> None:
    if row.state == "DELETING":
        raise FailedPrecondition(f"{_what(row)} is being deleted")


def _check_open(row: Workspace | Project) -> None:
    _check_alive(row)
    if row.is_archived:
        raise FailedPrecondition(f"{_what(row)} is archived: it takes nothing new; unarchive it, or choose another one")


def _what(row: Workspace | Project) -> str:
    return f"{'workspace' if isinstance(row, Workspace) else 'project'} {row.name!r}"


# -- pools ---------------------------------------------------------------------------------------------------------


def bind_pool(session: Session, pool: str, wanted: wire.PoolBindings, user: UserPrincipal, *, replaces: bool) -> None:
    """Have a pool for these workspaces, and for those that it is for already unless it `replaces` them.

    Raises: NotFound, BadRequest, FailedPrecondition.
    """
    pools.find(session, pool, user, is_locked=True)
    ids = _named(session, wanted, user)
    if pool in pools.defaults_of(session) and ids:
        raise FailedPrecondition(f"pool {pool!r} is one of the cluster's defaults: it is there for all workspaces")
    bound = {row.workspace_id: row for row in session.scalars(select(PoolBinding).where(PoolBinding.pool == pool))}
    if replaces:
        for workspace_id in bound.keys() - ids:
            session.delete(bound[workspace_id])
    elif not ids:
        raise BadRequest("workspaceIds, workspaceNames: expected one or more")
    session.add_all(PoolBinding(pool=pool, workspace_id=workspace_id) for workspace_id in sorted(ids - bound.keys()))


def unbind_pool(session: Session, pool: str, wanted: wire.PoolBindings, user: UserPrincipal) -> None:
    """Have a pool no more for these workspaces; without any left it is there for all. Raises: NotFound, BadRequest."""
    pools.find(session, pool, user)
    ids = _named(session, wanted, user)
    rows = session.scalars(select(PoolBinding).where(PoolBinding.pool == pool, PoolBinding.workspace_id.in_(ids))).all()
    unbound = sorted(ids - {row.workspace_id for row in rows})
    if unbound:
        raise BadRequest(f"pool {pool!r} is not bound to workspaces {', '.join(map(str, unbound))}")
    for row in rows:
        session.delete(row)


def _named(session: Session, wanted: wire.PoolBindings, user: UserPrincipal) -> set[int]:
    """The ids of all workspaces that a request names. Raises: NotFound."""
    seen = readable_workspaces(user)
    named = select(Workspace.name, Workspace.id).where(
        Workspace.name.in_(wanted.workspace_names), Workspace.id.in_(seen)
    )
    by_name = {row[0]: row[1] for row in session.execute(named)}
    numbered = select(Workspace.id).where(Workspace.id.in_(wanted.workspace_ids), Workspace.id.in_(seen))
    by_id = set(session.scalars(numbered))
    unknown = [str(name) for name in {*wanted.workspace_names} - by_name.keys()]
    unknown += [str(number) for number in {*wanted.workspace_ids} - by_id]
    if unknown:
        raise NotFound(f"workspaces not found: {', '.join(sorted(unknown))}")
    return by_id | {*by_name.values()}
