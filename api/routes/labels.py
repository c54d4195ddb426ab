"""Labels of experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select
from starlette.responses import Response

from api.auth.authorization import changeable, readable_experiments
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.parts import Parts
from api.queries.labels import most_used
from api.routing import Route
from api.schemas.base import answer
from api.schemas.labels import LabelsResponse
from api.schemas.parameters import ExperimentId
from database.models import Experiment, Project

router = APIRouter(route_class=Route, tags=["experiments"])

MAX_LABEL = 200


@router.get("/api/v1/experiment/labels", response_model=LabelsResponse)
def all_labels(parts: PartsDep, user: UserDep, project_id: Annotated[int, Query(alias="projectId")] = 0) -> Response:
    """The labels in use, the most frequent first; v1GetExperimentLabelsResponse."""
    statement = select(Experiment).join(Project, Project.id == Experiment.project_id).where(readable_experiments(user))
    if project_id:
        statement = statement.where(Experiment.project_id == project_id)
    with parts.database.read() as session:
        return answer({"labels": most_used(session, statement, Experiment.labels)})


@router.put("/api/v1/experiments/{experiment_id}/labels/{label:path}")
def add_label(experiment_id: ExperimentId, label: str, parts: PartsDep, user: UserDep) -> Response:
    """Give an experiment a label; one that it has already stays where it is."""
    if not label.strip() or len(label) > MAX_LABEL or not label.isprintable():
        raise BadRequest(f"label: {label[:80]!r}: expected 1 to {MAX_LABEL} printable characters")
    return _changed(parts, experiment_id, user, lambda labels: [*labels, *([] if label in labels else [label])])


@router.delete("/api/v1/experiments/{experiment_id}/labels/{label:path}")
def remove_label(experiment_id: ExperimentId, label: str, parts: PartsDep, user: UserDep) -> Response:
    """Take a label from an experiment, if it has it."""
    return _changed(parts, experiment_id, user, lambda labels: [other for other in labels if other != label])


def _changed(parts: Parts, experiment_id: int, user: UserDep, change: Callable[[list[str]], list[str]]) -> Response:
    with parts.database.write() as session:
        row = changeable(session, experiment_id, user)
        session.refresh(row, with_for_update=True)
        row.labels = change(row.labels)
        return answer({"labels": row.labels})
