"""Submissions: work that was submitted once for its key, how it stands, and how to cancel it."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable_task
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.parts import Parts
from api.queries import submissions
from api.queries.paging import chosen
from api.routes.experiments import command_one
from api.routing import Route
from api.schemas import submissions as wire
from api.schemas.base import Instant, answer, as_utc
from api.services import tasks
from database.models import Experiment, Submission, Task
from workflows.lifecycle.experiment import TERMINAL, ExperimentState

router = APIRouter(route_class=Route, tags=["tasks"])

_PAGE = 100
_KIND, _STATE = "SUBMISSION_KIND_", "SUBMISSION_STATE_"
_KINDS = {"": "", f"{_KIND}UNSPECIFIED": ""} | {
    f"{_KIND}{kind}": kind for kind in ("COMMAND", "SHELL", "GENERIC", "EXPERIMENT")
}
_STATES = {"": "", f"{_STATE}UNSPECIFIED": ""} | {
    f"{_STATE}{state}": f"{_STATE}{state}"
    for state in ("QUEUED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELED", "DELETED")
}


@router.get("/api/v1/submissions", response_model=wire.SubmissionsResponse)
def list_submissions(
    parts: PartsDep,
    user: UserDep,
    kind: str = "",
    state: str = "",
    submitted_after: Annotated[Instant | None, Query(alias="submittedAfter")] = None,
    limit: Annotated[int, Query(ge=0, le=1000, description="0: 100.")] = 0,
    page_token: Annotated[str, Query(alias="pageToken", max_length=200)] = "",
) -> Response:
    """The caller's own, the newest first. A page that was looked through for a state may have fewer than its limit."""
    wanted, most = chosen("state", state, _STATES), limit or _PAGE
    of_kind, before = chosen("kind", kind, _KINDS), _place(page_token) if page_token else None
    with parts.database.read() as session:
        rows = submissions.mine(session, user, of_kind, submitted_after, before, most=most)
        found = [submissions.shown(session, row, user) for row in rows]
    token = _token(rows[-1]) if len(rows) == most else ""
    shown = [each for each in found if wanted in ("", each.state)]
    return answer(wire.SubmissionsResponse(submissions=shown, next_page_token=token))


def _token(row: Submission) -> str:
    return base64.urlsafe_b64encode(f"{row.submitted_at.isoformat()} {row.job_id}".encode()).decode()


def _place(token: str) -> tuple[datetime, str]:
    try:
        at, _, job_id = base64.urlsafe_b64decode(token.encode()).decode().partition(" ")
        return as_utc(datetime.fromisoformat(at)), job_id
    except ValueError:
        raise BadRequest(f"pageToken: {token[:40]!r}: expected the nextPageToken of a page") from None


@router.get("/api/v1/submissions/{job_id}", response_model=wire.SubmissionResponse)
def get_submission(job_id: str, parts: PartsDep, user: UserDep) -> Response:
    """One submission, with its tasks and their allocations."""
    return answer({"submission": _shown(parts, job_id, user)})


@router.post("/api/v1/submissions/{job_id}/cancel", response_model=wire.SubmissionResponse)
async def cancel_submission(job_id: str, parts: PartsDep, user: UserDep) -> Response:
    """Cancel the work. What has ended stays as it is."""
    experiment_id = await run_in_threadpool(_canceled_task, parts, job_id, user)
    parts.dispatcher.poke()
    if experiment_id is not None:
        await command_one(parts, experiment_id, "cancel", user)
    return answer({"submission": await run_in_threadpool(_shown, parts, job_id, user)})


def _canceled_task(parts: Parts, job_id: str, user: UserPrincipal) -> int | None:
    """Cancel a task; an experiment that goes on is returned, as it takes commands by another way."""
    with parts.database.write() as session:
        row = submissions.find(session, job_id, user)
        if row.kind == "EXPERIMENT":
            experiment = session.get(Experiment, int(row.entity_id))
            return None if experiment is None or ExperimentState(experiment.state) in TERMINAL else experiment.id
        if session.get(Task, row.entity_id) is not None:
            tasks.kill(session, changeable_task(session, row.entity_id, user))
        return None


def _shown(parts: Parts, job_id: str, user: UserPrincipal) -> wire.Submission:
    with parts.database.read() as session:
        return submissions.shown(session, submissions.find(session, job_id, user), user)
