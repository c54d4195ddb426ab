"""The files of an experiment's context, one by one."""

from __future__ import annotations

import base64
import io
import mimetypes
import tarfile
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable
from api.deps import PartsDep, UserDep
from api.errors import NotFound
from api.parts import Parts
from api.routing import Route
from api.schemas.base import answer, rfc3339
from api.schemas.contexts import FilePath, FileResponse
from api.schemas.parameters import ExperimentId
from database.models import ModelDefinition

router = APIRouter(route_class=Route, tags=["experiments"])


@router.get("/api/v1/experiments/{experiment_id}/file_tree")
def file_tree(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """Names, sizes and kinds of the files; v1GetModelDefTreeResponse."""
    with _opened(parts, experiment_id, user) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
    roots: list[dict[str, Any]] = []
    folders: dict[str, list[dict[str, Any]]] = {"": roots}
    for member in members:
        path = member.name.strip("/")
        node: dict[str, Any] = {
            "path": path,
            "name": path.rpartition("/")[2],
            "isDir": member.isdir(),
            "modifiedTime": rfc3339(datetime.fromtimestamp(member.mtime, UTC)),
            "contentLength": member.size,
            "contentType": "" if member.isdir() else mimetypes.guess_type(path)[0] or "application/octet-stream",
            "files": [],
        }
        folders.get(path.rpartition("/")[0], roots).append(node)
        if member.isdir():
            folders[path] = node["files"]
    return answer({"files": roots})


@router.post("/api/v1/experiments/{experiment_id}/file", response_model=FileResponse)
async def one_file(experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: FilePath) -> Response:
    """The content of one file as base64; the body names its `path`."""
    path = wanted.path

    def read() -> bytes:
        with _opened(parts, experiment_id, user) as archive:
            for member in archive.getmembers():
                if member.name.strip("/") == path and (file := archive.extractfile(member)) is not None:
                    return file.read()
        raise NotFound(f"experiment {experiment_id} has no file {path[:200]!r}")

    return answer({"file": base64.b64encode(await run_in_threadpool(read)).decode()})


def _opened(parts: Parts, experiment_id: int, user: UserPrincipal) -> tarfile.TarFile:
    with parts.database.read() as session:
        readable(session, experiment_id, user)
        content = session.scalar(select(ModelDefinition.content).where(ModelDefinition.experiment_id == experiment_id))
    if content is None:
        raise NotFound(f"experiment {experiment_id} has no model definition")
    return tarfile.open(fileobj=io.BytesIO(content))  # packed by us: its members are plain files and folders
