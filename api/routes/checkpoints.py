"""Checkpoints: reported by trials, described and downloaded by people."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import and_
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from api.auth.authentication import AgentPrincipal, AllocationPrincipal, UserPrincipal
from api.auth.authorization import changeable, readable_checkpoint
from api.auth.containers import fence, of_trial
from api.auth.reporters import Reporter, of_unmanaged_task
from api.deps import FencedDep, PartsDep, ReaderDep, UserDep
from api.errors import BadRequest, Conflict, Forbidden, NotFound, NotServed
from api.parts import Parts
from api.queries import checkpoints
from api.routing import Route
from api.schemas import checkpoints as wire
from api.schemas.base import answer, plain
from api.schemas.parameters import OFFSET, CheckpointUuid
from api.schemas.streaming import files
from api.services.checkpoint_contents import Stored, stored
from api.services.checkpoint_files import note_resources
from database.models import Checkpoint
from database.types import utc_now
from database.upsert import insert
from determined.common.storage._manifest import is_inside

router = APIRouter(route_class=Route, tags=["checkpoints"])

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


@router.post("/api/v1/checkpoints")
async def report(parts: PartsDep, caller: FencedDep, sent: wire.ReportCheckpoint) -> Response:
    """A checkpoint is complete in storage. Reported twice, it is kept once."""
    if isinstance(caller, AgentPrincipal):
        raise Forbidden("checkpoints are reported by trials only")
    if not _UUID.fullmatch(sent.uuid):
        raise BadRequest(f"uuid: {sent.uuid[:80]!r}: expected a UUID such as 0e4bd5f6-6b0a-4d3c-9a54-1f3f3c5ac0de")
    if any(size < 0 for size in sent.resources.values()) or sum(sent.resources.values()) >= 2**63:
        raise BadRequest("resources: expected sizes of files in bytes, of 0 or more, and below 2**63 together")
    unsafe = next((path for path in sent.resources if not is_inside(path)), None)
    if unsafe is not None:
        raise BadRequest(f"resources: {unsafe[:80]!r}: expected relative paths without '..'")
    steps = sent.metadata.get("steps_completed")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise BadRequest(f"metadata.steps_completed: {steps!r}: expected an integer of 0 or more")
    state = sent.state.removeprefix("STATE_")
    if state not in ("ACTIVE", "COMPLETED", "ERROR"):
        raise BadRequest(f"state: {sent.state!r}: expected STATE_ACTIVE, STATE_COMPLETED or STATE_ERROR")

    told = {
        "state": state,
        "resources": sent.resources,
        "metadata": plain(sent.metadata),
        "steps_completed": steps,
        "size_bytes": sum(sent.resources.values()),
        "reported_at": utc_now(),
    }

    def store() -> None:
        with parts.database.write() as session:
            if isinstance(caller, AllocationPrincipal):
                reporter = Reporter.of(of_trial(caller))
            else:
                reporter = of_unmanaged_task(session, caller, sent.task_id)
            reporter.fence(session)
            _refuse_taken(session, sent.uuid.lower(), reporter, parts.cluster_id)
            statement = insert(session, Checkpoint).values(
                uuid=sent.uuid.lower(),
                task_id=reporter.task_id,
                allocation_id=reporter.allocation.allocation_id if reporter.allocation else "",
                trial_id=reporter.trial_id,
                experiment_id=reporter.experiment_id,
                **told,
            )
            being_written = and_(Checkpoint.state == "ACTIVE", Checkpoint.trial_id == reporter.trial_id)
            session.execute(statement.on_conflict_do_update(index_elements=["uuid"], set_=told, where=being_written))

    await run_in_threadpool(store)
    return answer()


def _refuse_taken(session: Session, uuid: str, reporter: Reporter, cluster_id: str) -> None:
    """A name is taken once: by a checkpoint, or by the folder of the cluster's own files. Raises: Conflict."""
    known = session.get(Checkpoint, uuid)
    if (known is not None and known.trial_id != reporter.trial_id) or uuid == cluster_id:
        raise Conflict(f"uuid: {uuid}: it is taken, expected a new one")


@router.patch("/api/v1/checkpoints")
async def patch(parts: PartsDep, caller: ReaderDep, wanted: wire.PatchCheckpoints) -> Response:
    """Files of checkpoints are gone: a client removed them, and these are left. All changes are made, or none."""

    def change() -> None:
        with parts.database.write() as session:
            if isinstance(caller, AllocationPrincipal):
                fence(session, caller)
            for checkpoint in wanted.checkpoints:
                if checkpoint.resources is not None:
                    note_resources(session, checkpoint.uuid, checkpoint.resources.resources, caller)

    await run_in_threadpool(change)
    return answer()


@router.get("/api/v1/checkpoints/{uuid}", response_model=wire.CheckpointResponse)
def describe(uuid: CheckpointUuid, parts: PartsDep, caller: ReaderDep) -> Response:
    """One checkpoint with its training metadata."""
    return answer({"checkpoint": _find(parts, uuid, caller)})


def _find(parts: Parts, uuid: str, caller: UserPrincipal | AllocationPrincipal) -> dict[str, Any]:
    with parts.database.read() as session:
        readable_checkpoint(session, uuid.lower(), caller)
        found = checkpoints.shown(session, [uuid.lower()])
    return found[0]


@router.post("/api/v1/checkpoints/{uuid}/metadata", response_model=wire.CheckpointResponse)
async def set_metadata(
    uuid: CheckpointUuid, parts: PartsDep, user: UserDep, wanted: wire.CheckpointMetadata
) -> Response:
    """Replace the stored metadata (clients merge before sending). The files in storage stay as they are."""
    metadata = plain(wanted.checkpoint.metadata)

    def change() -> None:
        with parts.database.write() as session:
            row = readable_checkpoint(session, uuid.lower(), user)
            changeable(session, row.experiment_id, user)
            row.metadata_ = metadata

    await run_in_threadpool(change)
    return answer({"checkpoint": await run_in_threadpool(_find, parts, uuid, user)})


def _stored(parts: Parts, uuid: str, caller: UserPrincipal | AllocationPrincipal) -> Stored:
    with parts.database.read() as session:
        return stored(session, uuid, caller, parts.settings.roots)


@router.get("/api/v1/undeterred/checkpoints/{uuid}/files", response_model=wire.CheckpointFilesResponse)
def list_files(uuid: CheckpointUuid, parts: PartsDep, caller: ReaderDep) -> Response:
    """The files of a checkpoint with their sizes in bytes and XXH3 hashes ("" where none is known)."""
    checkpoint = _stored(parts, uuid, caller)
    known = checkpoint.hashes()
    listed = {path: {"size": size, "xxh3": known.get(path, "")} for path, size in checkpoint.sizes.items()}
    return answer({"files": listed})


@router.get(
    "/api/v1/undeterred/checkpoints/{uuid}/file", response_class=Response, responses=files("application/octet-stream")
)
def file(
    uuid: CheckpointUuid,
    path: str,
    parts: PartsDep,
    caller: ReaderDep,
    offset: Annotated[int, Query(ge=0, lt=2**63, description=OFFSET)] = 0,
) -> Response:
    """The content of one file of a checkpoint, from a byte on: a download that broke off goes on there."""
    checkpoint = _stored(parts, uuid, caller)
    if path not in checkpoint.sizes or path.endswith("/"):
        raise NotFound(f"path: checkpoint {uuid} has no file {path!r}")
    return StreamingResponse(checkpoint.content(path, offset), media_type="application/octet-stream")


@router.get("/checkpoints/{uuid}", response_class=Response, responses=files("application/x-tar", "application/gzip"))
async def download(uuid: CheckpointUuid, request: Request, parts: PartsDep, caller: ReaderDep) -> Response:
    """The files of a checkpoint as a tar (or tar.gz) stream, for clients that can't reach the storage."""
    accept = request.headers.get("accept", "*/*")
    gzip = "gzip" in accept
    if not gzip and not any(kind in accept for kind in ("application/x-tar", "application/*", "*/*")):
        raise NotServed(f"accept: {accept!r}: expected application/x-tar or application/gzip")
    checkpoint = await run_in_threadpool(_stored, parts, uuid, caller)
    pieces = await asyncio.to_thread(checkpoint.archive, gzip=gzip)
    return StreamingResponse(pieces, media_type="application/gzip" if gzip else "application/x-tar")
