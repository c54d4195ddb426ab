"""Runs, as newer clients call trials: their metadata, and the start of their reports."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import AllocationPrincipal, UserPrincipal
from api.auth.authorization import changeable, readable_trial
from api.auth.containers import fence
from api.deps import PartsDep, ReaderDep
from api.errors import BadRequest, NotFound
from api.routing import Route
from api.schemas.base import answer, plain
from api.schemas.parameters import RunId
from api.schemas.runs import Metadata, MetadataResponse
from database.models import Trial

router = APIRouter(route_class=Route, tags=["trials"])

_MAX_KEYS, _MAX_DEPTH, _MAX_KEY, _MAX_TEXT = 1000, 10, 50, 5000


@router.get("/api/v1/runs/{run_id}/metadata", response_model=MetadataResponse)
def get_metadata(run_id: RunId, parts: PartsDep, caller: ReaderDep) -> Response:
    """What was noted of a run."""
    with parts.database.read() as session:
        return answer({"metadata": _run(session, run_id, caller).metadata_ or {}})


@router.post("/api/v1/runs/{run_id}/metadata", response_model=MetadataResponse)
async def set_metadata(run_id: RunId, parts: PartsDep, caller: ReaderDep, wanted: Metadata) -> Response:
    """Replace what was noted of a run; answers with what is noted now."""
    metadata = wanted.metadata
    _check(metadata, depth=1)

    def change() -> None:
        with parts.database.write() as session:
            row = _run(session, run_id, caller)
            if isinstance(caller, AllocationPrincipal):
                fence(session, caller)
            else:
                changeable(session, row.experiment_id, caller)
            row.metadata_ = plain(metadata)

    await run_in_threadpool(change)
    return answer({"metadata": metadata})


def _run(session: Session, run_id: int, caller: UserPrincipal | AllocationPrincipal) -> Trial:
    if isinstance(caller, AllocationPrincipal):
        if not caller.is_of_trial(run_id):
            raise NotFound(f"trial {run_id} not found")
        return session.scalars(select(Trial).where(Trial.id == run_id)).one()
    return readable_trial(session, run_id, caller)


def _check(metadata: dict[str, Any], *, depth: int) -> int:
    """How many keys there are, at any depth. Raises: BadRequest."""
    if depth > _MAX_DEPTH:
        raise BadRequest(f"metadata: nested more than {_MAX_DEPTH} levels deep")
    count = 0
    for key, value in metadata.items():
        count += 1
        if not key or len(key) > _MAX_KEY:
            raise BadRequest(f"metadata: key {key[:60]!r}: expected 1 to {_MAX_KEY} characters")
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise BadRequest(f"metadata.{key}: {len(value)} characters: expected at most {_MAX_TEXT}")
        for part in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                count += _check(cast("dict[str, Any]", part), depth=depth + 1)
    if count > _MAX_KEYS:
        raise BadRequest(f"metadata: more than {_MAX_KEYS} keys")
    return count
