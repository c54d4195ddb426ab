"""Access tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.queries.paging import WindowDep, chosen, rows_of
from api.routes.users import changed
from api.routing import Route
from api.schemas import access as wire
from api.schemas.base import answer
from api.schemas.parameters import SORT_BY
from api.services import tokens
from database.models import UserToken

router = APIRouter(route_class=Route, tags=["access tokens"])


@router.get("/api/v1/tokens", response_model=wire.AccessTokensResponse)
def list_tokens(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    username: str = "",
    token_ids: Annotated[list[int] | None, Query(alias="tokenIds")] = None,
    show_inactive: Annotated[bool, Query(alias="showInactive")] = False,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """My access tokens; for administrators those of all users. Without revoked and expired ones unless asked."""
    column = chosen("sortBy", sort_by, tokens.SORT)
    order = [column.desc(), UserToken.id.desc()] if window.is_descending else [column.asc(), UserToken.id.asc()]
    with parts.database.read() as session:
        found = tokens.found(session, user, username=username, ids=token_ids or (), with_inactive=show_inactive)
        rows, pagination = rows_of(session, found.order_by(*order), window)
    return answer({"tokenInfo": [tokens.token_info(row, username) for row, username in rows], "pagination": pagination})


@router.post("/api/v1/tokens", response_model=wire.NewTokenResponse)
async def create_token(parts: PartsDep, user: UserDep, wanted: wire.PostAccessTokenRequest) -> Response:
    """Create an access token. The response is the only place that shows it."""
    token, token_id = await changed(parts, lambda session: tokens.create(session, wanted, user))
    return answer({"token": token, "tokenId": token_id})


@router.patch("/api/v1/tokens/{token_id}", response_model=wire.TokenInfoResponse)
async def patch_token(token_id: int, parts: PartsDep, user: UserDep, wanted: wire.PatchAccessTokenRequest) -> Response:
    """Describe or revoke an access token."""
    return answer({"tokenInfo": await changed(parts, lambda session: tokens.patch(session, token_id, wanted, user))})
