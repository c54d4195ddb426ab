"""Experiments that are created by the submission protocol."""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import may_see, readable
from api.errors import BadRequest
from api.schemas.experiments import CreateExperimentRequest
from api.schemas.submissions import Submit, Submitted
from api.services import submissions
from api.services.experiments import Created, Creator
from api.services.templates import usable_template
from database.models import Experiment, Project, Submission
from workflows.config import ConfigError, read_config


def submit(
    creator: Creator, request: CreateExperimentRequest, how: Submit, user: UserPrincipal
) -> tuple[Created, Submitted]:
    """The experiment, once for its key, and what the answer says of it.

    Raises: BadRequest, NotFound, Forbidden, Conflict, FailedPrecondition. Nothing is left behind.
    """
    if request.unmanaged:
        raise BadRequest("submit: unmanaged experiments are not launched: create them without it")
    if request.validate_only:
        how = how.model_copy(update={"dry_run": True})
    plan, replayed = _looked_up(creator, request, how, user)
    if replayed is not None:
        return replayed
    if how.dry_run:
        tried = creator.create(request.model_copy(update={"validate_only": True}), user, None)
        with creator.database.read() as session:
            return tried, plan.tried(session, tried.config, tried.pool)

    def note(session: Session, row: Experiment) -> None:
        workspace_id = session.get_one(Project, row.project_id).workspace_id
        plan.record(
            session, row.job_id, str(row.id), name=row.name, workspace_id=workspace_id, project_id=row.project_id
        )
        made.append(row.job_id)

    made: list[str] = []
    try:
        created = creator.create(request, user, None, note=note)
    except submissions.Taken:
        _, replayed = _looked_up(creator, request, how, user)
        if replayed is None:  # it can't be: what took the key is recorded
            raise
        return replayed
    return created, plan.submitted(made[0])


def _looked_up(
    creator: Creator, request: CreateExperimentRequest, how: Submit, user: UserPrincipal
) -> tuple[submissions.Plan, tuple[Created, Submitted] | None]:
    with creator.database.read() as session:
        facts = _facts(session, request, user)
        plan = submissions.plan("EXPERIMENT", how, user, facts, request.model_definition or [], request.context)
        earlier = plan.earlier(session)
        if earlier is None:
            return plan, None
        return plan, (_created(session, earlier, user), plan.replayed(earlier))


def _created(session: Session, earlier: Submission, user: UserPrincipal) -> Created:
    """The experiment of a submission; without a number if it was deleted meanwhile."""
    experiment_id = int(earlier.entity_id)
    nothing = Created(0, {"name": earlier.name}, [])
    return (
        dataclasses.replace(nothing, experiment_id=experiment_id)
        if may_see(readable, session, experiment_id, user)
        else nothing
    )


def _facts(session: Session, request: CreateExperimentRequest, user: UserPrincipal) -> dict[str, Any]:
    try:
        config = read_config(request.config).value if request.config.strip() else None
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    template = usable_template(session, request.template, user) if request.template else None
    return {
        "project": request.project_id or 1,
        "template": {"name": request.template or "", "content": template},
        "config": config,
        "parent": request.parent_id or None,
        "activate": request.activate,
    }
