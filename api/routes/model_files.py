"""The files of an experiment's context, one by one."""

from __future__ import annotations

import base64
import mimetypes
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.errors import NotFound
from api.routing import Route
from api.schemas.base import answer, rfc3339
from api.schemas.contexts import FilePath, FileResponse
from api.schemas.parameters import ExperimentId
from api.services.context_contents import readable_contents

router = APIRouter(route_class=Route, tags=["experiments"])


@router.get("/api/v1/experiments/{experiment_id}/file_tree")
def file_tree(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """Names, sizes and kinds of the files; v1GetModelDefTreeResponse."""
    entries = sorted(readable_contents(parts.database, experiment_id, user).entries(), key=lambda entry: entry.path)
    roots: list[dict[str, Any]] = []
    folders: dict[str, list[dict[str, Any]]] = {"": roots}
    for entry in entries:
        path = entry.path
        node: dict[str, Any] = {
            "path": path,
            "name": path.rpartition("/")[2],
            "isDir": entry.is_folder,
            "modifiedTime": rfc3339(datetime.fromtimestamp(entry.mtime, UTC)),
            "contentLength": entry.size,
            "contentType": "" if entry.is_folder else mimetypes.guess_type(path)[0] or "application/octet-stream",
            "files": [],
        }
        folders.get(path.rpartition("/")[0], roots).append(node)
        if entry.is_folder:
            folders[path] = node["files"]
    return answer({"files": roots})


@router.post("/api/v1/experiments/{experiment_id}/file", response_model=FileResponse)
async def one_file(experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: FilePath) -> Response:
    """The content of one file as base64; the body names its `path`."""
    path = wanted.path

    def read() -> bytes:
        content = readable_contents(parts.database, experiment_id, user).file(path)
        if content is None:
            raise NotFound(f"experiment {experiment_id} has no file {path[:200]!r}")
        return content

    return answer({"file": base64.b64encode(await run_in_threadpool(read)).decode()})
