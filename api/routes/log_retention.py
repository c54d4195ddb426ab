"""Retention of logs, and their removal."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import changeable, readable_trial
from api.deps import AdminDep, PartsDep, UserDep
from api.routing import Route
from api.schemas.base import answer
from api.schemas.logs import LogRetention, RemainingDaysResponse
from api.schemas.parameters import ExperimentId, TrialId
from api.services.log_retention import retain_of_experiment, valid_days

router = APIRouter(route_class=Route, tags=["logs"])


@router.put("/api/v1/experiments/{experiment_id}/retain_logs")
async def retain_experiment_logs(
    experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: LogRetention
) -> Response:
    """Keep the logs of an experiment's trials for `numDays` after their end; -1: indefinitely."""
    days = valid_days(wanted.num_days)

    def change() -> None:
        with parts.database.write() as session:
            retain_of_experiment(session, experiment_id, days, user)

    await run_in_threadpool(change)
    return answer()


@router.put("/api/v1/trials/{trial_id}/retain_logs")
async def retain_trial_logs(trial_id: TrialId, parts: PartsDep, user: UserDep, wanted: LogRetention) -> Response:
    """Keep the logs of a trial for `numDays` after its end; -1: indefinitely."""
    days = valid_days(wanted.num_days)

    def change() -> None:
        with parts.database.write() as session:
            row = readable_trial(session, trial_id, user)
            changeable(session, row.experiment_id, user)
            row.log_retention_days = days

    await run_in_threadpool(change)
    return answer()


@router.get("/api/v1/trials/{trial_id}/remaining_log_retention_days", response_model=RemainingDaysResponse)
def remaining_days(trial_id: TrialId, parts: PartsDep, user: UserDep) -> Response:
    """Full days until the logs of a trial are removed; -1: never."""
    with parts.database.read() as session:
        days = parts.log_retention.remaining_days(session, readable_trial(session, trial_id, user))
    return answer({"remainingDays": days})


@router.post("/api/v1/cleanup_logs")
def clean_up(parts: PartsDep, admin: AdminDep) -> Response:
    """Remove the logs whose time is over now, instead of within the hour (administrators only)."""
    return answer({"removedCount": str(parts.log_retention.remove_expired())})
