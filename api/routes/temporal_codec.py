"""The codec server of Temporal's Web UI and CLI: it decodes what the cluster's histories hold, for administrators."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.deps import AdminDep, PartsDep
from api.middleware.temporal_ui import CODEC
from api.routing import Route
from api.schemas import master as wire
from api.schemas.base import answer

router = APIRouter(route_class=Route, tags=["master"])


@router.post(CODEC + "/decode")
async def decode(parts: PartsDep, admin: AdminDep, sent: wire.TemporalPayloads) -> Response:
    """Payloads of Temporal's histories, decompressed and decrypted. It is Temporal's protocol of codec servers."""
    return answer({"payloads": await parts.commands.decoded(sent.payloads)})
