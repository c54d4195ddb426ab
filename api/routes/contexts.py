"""Contexts in chunks: which are missing, the chunks, the manifest; and their tar for containers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from api.auth.authentication import AllocationPrincipal
from api.deps import PartsDep, PrincipalDep, UserDep
from api.errors import BadRequest, NotFound
from api.queries.contexts import of_task
from api.routing import Route
from api.schemas import contexts as wire
from api.schemas.base import answer
from api.schemas.parameters import OFFSET, TaskId
from api.schemas.streaming import files
from api.services import chunked_contexts as service
from api.services.context_contents import Contents, stored, tar_size

router = APIRouter(route_class=Route, tags=["tasks"])

_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}
Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="The SHA-256 of the bytes, in hexadecimal.")]


async def _bytes(request: Request, _: UserDep) -> bytes:
    return await request.body()


#: A body that is no JSON, read once it is known who sends it.
BytesDep = Annotated[bytes, Depends(_bytes)]


@router.post("/api/v1/undeterred/contexts/missing", response_model=wire.MissingChunks)
def missing_chunks(parts: PartsDep, user: UserDep, wanted: wire.ChunkDigests) -> Response:
    """The chunks among these that the caller has not uploaded."""
    with parts.database.write() as session:
        missing = service.missing(session, user, wanted.chunks)
    limit = parts.settings.context_limit_mib * 2**20
    return answer(wire.MissingChunks(missing=missing, chunk_limit=service.CHUNK_BYTES, context_limit=limit))


@router.put("/api/v1/undeterred/contexts/chunks/{digest}", openapi_extra=_BODY)
async def put_chunk(digest: Sha256, parts: PartsDep, user: UserDep, content: BytesDep) -> Response:
    """Store a chunk of the caller's files: at most 4 MiB, as they are. A second time is no error."""
    limit = 2 * parts.settings.context_limit_mib * 2**20
    await run_in_threadpool(service.put_chunk, parts.database, user, digest, content, limit)
    return answer()


@router.post("/api/v1/undeterred/contexts", response_model=wire.UploadedContext)
def make_context(parts: PartsDep, user: UserDep, manifest: wire.Manifest) -> Response:
    """Make files of chunks that the caller has uploaded. Its id goes into the field `context` of what is created."""
    with parts.database.write() as session:
        made = service.make(session, user, manifest, parts.settings.context_limit_mib * 2**20)
    return answer(made)


@router.get("/api/v1/undeterred/tasks/{task_id}/context", response_class=Response, responses=files("application/x-tar"))
def task_context(
    task_id: TaskId,
    parts: PartsDep,
    caller: PrincipalDep,
    offset: Annotated[int, Query(ge=0, lt=2**63, description=OFFSET)] = 0,
) -> Response:
    """The files of a task as a tar, for its own containers: from a byte on, where a download broke off."""
    if not isinstance(caller, AllocationPrincipal) or caller.task_id != task_id:
        raise NotFound(f"task {task_id} not found")
    with parts.database.read() as session:
        what = stored(session, of_task(task_id, caller.kind))
    contents = None if what is None else Contents(parts.database, what)
    if contents is None or not contents.is_chunked:
        raise NotFound(f"task {task_id} has no files in chunks: ask for its context_directory")
    entries = contents.entries()
    left = tar_size(entries) - offset
    if left < 0:
        raise BadRequest(f"offset: {offset}: expected at most {left + offset}")
    return StreamingResponse(
        contents.tar(entries, offset), media_type="application/x-tar", headers={"Content-Length": str(left)}
    )
