"""Templates of configurations: use and change them, with the permissions for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, or_, select, true
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, open_workspace, readable_workspaces, require_role
from api.errors import BadRequest, Conflict, NotFound
from api.schemas.validation import checked_object, checked_path_name
from database.models import Template
from workflows.config.check import check_written
from workflows.config.errors import render_path


def readable_templates(user: UserPrincipal) -> ColumnElement[bool]:
    """Whether a user may see a template, as a condition."""
    if user.is_admin:
        return true()
    return or_(Template.workspace_id.in_(readable_workspaces(user)), Template.owner_id == user.user_id)


def readable_template(session: Session, name: str, user: UserPrincipal) -> Template:
    """A template that the user may see. Raises: NotFound."""
    row = session.scalar(select(Template).where(Template.name == name, readable_templates(user)))
    if row is None:
        raise NotFound(f"template {name!r} not found")
    return row


def changeable_template(session: Session, name: str, user: UserPrincipal) -> Template:
    """A template that the user may change: who made it, and editors of its workspace. Raises: NotFound, Forbidden."""
    row = readable_template(session, name, user)
    if row.owner_id != user.user_id:
        require_role(session, user, row.workspace_id, Role.PROJECT_RESTRICTED)
    return row


def usable_template(session: Session, name: str, user: UserPrincipal) -> dict[str, Any]:
    """A template's configuration, for an experiment. Raises: NotFound, BadRequest if it is none of an experiment.

    That is checked here only: templates of notebooks and commands hold other fields.
    """
    config = readable_template(session, name, user).config
    findings = check_written(config)
    if findings:
        told = "\n".join(f"{render_path(finding.path)}: {finding.message}" for finding in findings)
        raise BadRequest(f"template {name!r} does not fit an experiment: {told}")
    return config


def new_template(
    session: Session, name: str, config: Mapping[str, Any], workspace_id: int, user: UserPrincipal
) -> Template:
    """A template in a workspace. Raises: BadRequest, Conflict, NotFound, Forbidden, FailedPrecondition."""
    workspace = open_workspace(session, user, workspace_id or 1)
    name = _free_name(session, name)
    row = Template(name=name, config=_checked(config), workspace_id=workspace.id, owner_id=user.user_id)
    session.add(row)
    session.flush()
    return row


def put_template(
    session: Session, name: str, config: Mapping[str, Any], workspace_id: int | None, user: UserPrincipal
) -> Template:
    """Make a template, or replace its configuration. Raises: as the others here."""
    if session.scalar(select(Template.id).where(Template.name == name, readable_templates(user))) is None:
        return new_template(session, name, config, workspace_id or 1, user)
    row = changeable_template(session, name, user)
    if workspace_id is not None and workspace_id != row.workspace_id:
        open_workspace(session, user, workspace_id)
        row.workspace_id = workspace_id
    row.config = _checked(config)
    session.flush()
    return row


def change_template(session: Session, name: str, config: Mapping[str, Any], user: UserPrincipal) -> Template:
    """Replace a template's configuration. Raises: NotFound, Forbidden, BadRequest."""
    row = changeable_template(session, name, user)
    row.config = _checked(config)
    session.flush()
    return row


def rename_template(session: Session, old: str, new: str, user: UserPrincipal) -> Template:
    """Give a template another name. Raises: NotFound, Forbidden, BadRequest, Conflict."""
    row = changeable_template(session, old, user)
    if new.strip() != row.name:
        row.name = _free_name(session, new)
    session.flush()
    return row


def _free_name(session: Session, wanted: str) -> str:
    name = checked_path_name("name", wanted)
    if session.scalar(select(Template.id).where(Template.name == name)) is not None:
        raise Conflict(f"template {name!r} already exists")
    return name


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    if not config:
        raise BadRequest("config: expected an object that is not empty")
    if "template" in config:
        raise BadRequest("config.template: a template can't use another one")
    return checked_object("config", config)
