"""Settings of users in the web pages."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.parts import Parts
from api.routing import Route
from api.schemas import settings as wire
from api.schemas.base import answer
from database.models import UserSetting
from database.upsert import insert

router = APIRouter(route_class=Route, tags=["users"])

_LONGEST_KEY = 250
_LONGEST_VALUE = 100_000
_MOST = 1000


@router.get("/api/v1/users/setting", response_model=wire.UserSettingsResponse)
def get_settings(parts: PartsDep, user: UserDep) -> Response:
    """My settings."""
    with parts.database.read() as session:
        rows = session.scalars(
            select(UserSetting)
            .where(UserSetting.user_id == user.user_id)
            .order_by(UserSetting.storage_path, UserSetting.key)
        ).all()
    found = [wire.UserWebSetting(key=row.key, storage_path=row.storage_path, value=row.value) for row in rows]
    return answer({"settings": found})


@router.post("/api/v1/users/setting")
async def post_settings(parts: PartsDep, user: UserDep, sent: wire.PostUserSettingRequest) -> Response:
    """Keep settings; an empty value forgets one."""
    wanted = list(sent.settings)
    if sent.setting is not None:
        wanted.append(sent.setting.model_copy(update={"storage_path": sent.setting.storage_path or sent.storage_path}))
    for setting in wanted:
        _check(setting)
    await run_in_threadpool(_keep, parts, user, wanted)
    return answer()


def _check(setting: wire.UserWebSetting) -> None:
    for field, text, least, most in (
        ("key", setting.key, 1, _LONGEST_KEY),
        ("storagePath", setting.storage_path, 0, _LONGEST_KEY),
        ("value", setting.value, 0, _LONGEST_VALUE),
    ):
        if not least <= len(text) <= most or "\x00" in text:
            raise BadRequest(f"{field}: {text[:40]!r}: expected {least} to {most} characters, none of them NUL")


def _keep(parts: Parts, user: UserPrincipal, wanted: list[wire.UserWebSetting]) -> None:
    with parts.database.write() as session:
        for setting in wanted:
            if setting.value == "":
                session.execute(
                    delete(UserSetting).where(
                        UserSetting.user_id == user.user_id,
                        UserSetting.storage_path == setting.storage_path,
                        UserSetting.key == setting.key,
                    )
                )
                continue
            row = insert(session, UserSetting).values(
                user_id=user.user_id, storage_path=setting.storage_path, key=setting.key, value=setting.value
            )
            session.execute(
                row.on_conflict_do_update(
                    index_elements=[UserSetting.user_id, UserSetting.storage_path, UserSetting.key],
                    set_={"value": setting.value},
                )
            )
        _check_count(session, user)


def _check_count(session: Session, user: UserPrincipal) -> None:
    kept = select(func.count()).select_from(UserSetting).where(UserSetting.user_id == user.user_id)
    if (session.scalar(kept) or 0) > _MOST:
        raise BadRequest(f"settings: expected at most {_MOST} of them: reset them, or forget some")


@router.post("/api/v1/users/setting/reset")
async def reset_settings(parts: PartsDep, user: UserDep) -> Response:
    """Forget all my settings."""

    def reset() -> None:
        with parts.database.write() as session:
            session.execute(delete(UserSetting).where(UserSetting.user_id == user.user_id))

    await run_in_threadpool(reset)
    return answer()
