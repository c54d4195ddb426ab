"""Access tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.queries.paging import WindowDep, chosen, rows_of
from api.routes.users import changed
from api.schemas import access as wire
from api.schemas.base import answer
from api.schemas.body import body_as
from api.services import tokens
from database.models import UserToken

router = APIRouter(tags=["access tokens"])


@router.get("/api/v1/tokens")
def list_tokens(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    username: str = "",
    token_ids: Annotated[list[int] | None, Query(alias="tokenIds")] = None,
    show_inactive: Annotated[bool, Query(alias="showInactive")] = False,
    sort_by: Annotated[str, Query(alias="sortBy")] = "",
) -> Response:
    """My access tokens; for administrators those of all users. Without revoked and expired ones unless asked."""
    column = chosen("sortBy", sort_by, tokens.SORT)
    order = [column.desc(), UserToken.id.desc()] if window.is_descending else [column.asc(), UserToken.id.asc()]
    with parts.database.read() as session:
        found = tokens.found(session, user, username=username, ids=token_ids or (), with_inactive=show_inactive)
        rows, pagination = rows_of(session, found.order_by(*order), window)
    return answer({"tokenInfo": [tokens.token_info(row) for (row,) in rows], "pagination": pagination})


@router.post("/api/v1/tokens")
async def create_token(request: Request, parts: PartsDep, user: UserDep) -> Response:
    """A new access token; it is told this once."""
    wanted = await body_as(request, wire.PostAccessTokenRequest)
    token, token_id = await changed(parts, lambda session: tokens.create(session, wanted, user))
    return answer({"token": token, "tokenId": token_id})


@router.patch("/api/v1/tokens/{token_id}")
async def patch_token(token_id: int, request: Request, parts: PartsDep, user: UserDep) -> Response:
    """Describe or revoke an access token."""
    wanted = await body_as(request, wire.PatchAccessTokenRequest)
    return answer({"tokenInfo": await changed(parts, lambda session: tokens.patch(session, token_id, wanted, user))})
