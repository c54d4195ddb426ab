"""The master itself: its configuration, its log, and the message of administrators to all users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.deps import AdminDep, PartsDep, UserDep, asked_again, require_admin
from api.errors import BadRequest, Unsupported
from api.middleware.temporal_ui import CODEC
from api.parts import Parts
from api.routing import Route
from api.schemas import master as wire
from api.schemas.base import WIRE_VERSION, answer, encode, rfc3339
from api.schemas.durations import parse_duration
from api.schemas.parameters import Follow
from api.schemas.streaming import LINES, stream
from api.services.master_log import LEVELS, LogLine
from api.services.submissions import PROTOCOL
from database.models import Cluster, ClusterMessage, ResourcePool
from database.types import utc_now
from workflows.scheduling.settings import PoolSettings

router = APIRouter(route_class=Route, tags=["master"])

_TICK_S = 0.25
_LONGEST_MESSAGE = 1000
_PATHS = ("log.level", "log.color")


@router.get("/api/v1/master")
def master(parts: PartsDep) -> Response:
    """v1GetMasterResponse; no login needed.

    `rbacEnabled`: whether roles are in force. The clients' commands for groups and roles refuse to work otherwise.
    """
    with parts.database.read() as session:
        message = newest_message(session)
    is_on = message is not None and message.starts_at <= utc_now()
    return answer(
        {
            "version": WIRE_VERSION,
            "undeterredVersion": parts.version,
            "masterId": parts.cluster_id,
            "clusterId": parts.cluster_id,
            "clusterName": parts.settings.cluster_name,
            "telemetryEnabled": False,
            "ssoProviders": [_camel(each) for each in parts.sign_on.providers],
            "externalLoginUri": "",
            "externalLogoutUri": "",
            "branding": "undeterred",
            "rbacEnabled": parts.settings.access == "rbac",
            "undeterredAccess": parts.settings.access,
            "temporalUi": parts.settings.temporal_ui,
            "temporalCodec": CODEC,
            "product": "PRODUCT_COMMUNITY",
            "featureSwitches": [],
            "userManagementEnabled": True,
            "strictJobQueueControl": False,
            "hasCustomLogo": False,
            "submissionProtocol": PROTOCOL,
            "clusterMessage": _message(message) if message is not None and is_on else None,
        }
    )


def _camel(provider: dict[str, Any]) -> dict[str, Any]:
    """v1SSOProvider."""
    kept = {"name": provider["name"], "type": provider["type"], "ssoUrl": provider["sso_url"]}
    return kept | {"alwaysRedirect": provider["always_redirect"]}


@router.get("/api/v1/master/telemetry")
def telemetry(parts: PartsDep, user: UserDep) -> Response:
    """v1GetTelemetryResponse: nothing is ever sent anywhere."""
    return answer({"enabled": False, "segmentKey": ""})


# -- configuration -------------------------------------------------------------------------------------------------


@router.get("/api/v1/master/config")
def master_config(parts: PartsDep, admin: AdminDep) -> Response:
    """The settings of the cluster under the names that clients know, without secrets (administrators only)."""
    return answer({"config": _config(parts)})


@router.get("/config")
def old_master_config(parts: PartsDep, admin: AdminDep) -> Response:
    """The same for clients up to 0.21."""
    return answer(_config(parts))


def _config(parts: Parts) -> dict[str, Any]:
    settings = parts.settings
    with parts.database.read() as session:
        cluster = session.get_one(Cluster, 1)
        pools = session.scalars(select(ResourcePool).order_by(ResourcePool.name)).all()
    of_pools = {pool.name: PoolSettings.model_validate(pool.settings) for pool in pools}
    storage = {"type": "shared_fs", "host_path": settings.storage_path} if settings.storage_path else None
    known = {
        "log": {"level": cluster.log_level, "color": False},
        "security": {"authz": {"type": settings.access}},
        "telemetry": {"enabled": False},
        "feature_switches": [],
        "checkpoint_storage": storage,
        "retention_policy": {"log_retention_days": settings.log_retention_days},
        "task_container_defaults": {"image": {"cpu": settings.trial_image, "cuda": settings.trial_image}},
        "resource_manager": {
            "type": "agent",
            "default_compute_resource_pool": cluster.compute_pool,
            "default_aux_resource_pool": cluster.aux_pool,
            "scheduler": _scheduler(of_pools.get(cluster.compute_pool, PoolSettings())),
        },
        "resource_pools": [
            {
                "pool_name": pool.name,
                "description": pool.description,
                "max_aux_containers_per_agent": of_pools[pool.name].max_aux_containers_per_agent,
                "scheduler": _scheduler(of_pools[pool.name]),
            }
            for pool in pools
        ],
    }
    return parts.redactor.named("", settings.model_dump(mode="json") | known)


def _scheduler(settings: PoolSettings) -> dict[str, Any]:
    return {
        "type": settings.scheduler.value,
        "preemption": settings.preemption,
        "default_priority": settings.default_priority,
        "fitting_policy": settings.fitting_policy.value,
        "allow_heterogeneous_fits": settings.allow_heterogeneous_fits,
    }


@router.patch("/api/v1/master/config")
async def patch_master_config(parts: PartsDep, admin: AdminDep, sent: wire.PatchMasterConfigRequest) -> Response:
    """Change the log level of every process of the API, within seconds; kept over restarts (administrators only)."""
    paths = _mask(sent.field_mask)
    log = sent.config.log if sent.config and sent.config.log else wire.LogConfig()
    if log.color and (paths is None or "log.color" in paths):
        raise Unsupported("log.color: the log has no colours")
    level = log.level if paths is None or "log.level" in paths else None
    if level is not None and level != "LOG_LEVEL_UNSPECIFIED":
        name = level.removeprefix("LOG_LEVEL_")
        if name not in LEVELS:
            raise BadRequest(f"config.log.level: {level[:40]!r}: expected one of {', '.join(LEVELS)}")
        await run_in_threadpool(_set_level, parts, name)
    return answer()


def _mask(sent: wire.FieldMask | str | None) -> list[str] | None:
    """The paths that are to be changed; None: all that are given. Raises: BadRequest."""
    named = sent.split(",") if isinstance(sent, str) else sent.paths if sent is not None else None
    if named is None:
        return None
    for path in named:
        if path not in (*_PATHS, "log"):
            raise BadRequest(f"fieldMask: {path[:40]!r}: expected one of {', '.join(_PATHS)}")
    return [*named, *_PATHS] if "log" in named else named


def _set_level(parts: Parts, level: str) -> None:
    with parts.database.write() as session:
        session.execute(update(Cluster).values(log_level=level))
    parts.log_ring.set_level(level)


# -- log -----------------------------------------------------------------------------------------------------------


@router.get("/api/v1/master/logs", response_class=Response, responses=LINES)
async def master_logs(
    request: Request,
    parts: PartsDep,
    admin: AdminDep,
    offset: int = 0,
    limit: int = 0,
    follow: Follow = False,
) -> Response:
    """The latest log lines of this process of the API (administrators only). A negative offset counts from the end."""
    lines = parts.log_ring.lines()
    shown = lines[offset:] if offset >= 0 or -offset <= len(lines) else lines
    if limit > 0:
        shown = shown[:limit]
    last = lines[-1].id if lines else 0
    is_followed = follow and limit <= 0
    entries = _entries(parts, shown, last, is_followed, asked_again(request, require_admin))
    return stream(entries, parts.followers.one_more(admin.user_id) if is_followed else None)


async def _entries(
    parts: Parts, shown: list[LogLine], last: int, follow: bool, still: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    while True:
        await still()
        for line in shown:
            entry = wire.LogEntry(id=line.id, message=line.message, timestamp=line.at, level=f"LOG_LEVEL_{line.level}")
            yield encode({"result": {"logEntry": entry}}) + b"\n"
        if not follow:
            return
        await asyncio.sleep(_TICK_S)
        shown = parts.log_ring.lines(after=last)
        last = shown[-1].id if shown else last


@router.get("/logs")
def old_master_logs(parts: PartsDep, admin: AdminDep, tail: int = 0, greater_than_id: int = 0) -> Response:
    """The same for clients up to 0.21, which ask again and again."""
    lines = parts.log_ring.lines(after=greater_than_id)
    shown = lines[-tail:] if tail > 0 else lines
    return answer(
        [{"id": line.id, "time": rfc3339(line.at), "level": line.level, "message": line.message} for line in shown]
    )


# -- message -------------------------------------------------------------------------------------------------------


def newest_message(session: Session) -> ClusterMessage | None:
    """The message that counts, also if its time is yet to come; None if there is none, or it is over."""
    row = session.scalar(select(ClusterMessage).order_by(ClusterMessage.id.desc()).limit(1))
    return None if row is None or (row.ends_at is not None and row.ends_at <= utc_now()) else row


def _message(row: ClusterMessage) -> wire.ClusterMessage:
    return wire.ClusterMessage(
        message=row.message, start_time=row.starts_at, end_time=row.ends_at, created_time=row.created_at
    )


@router.get("/api/v1/master/cluster_message", response_model=wire.ClusterMessageResponse)
def get_cluster_message(parts: PartsDep, user: UserDep) -> Response:
    """The message, also if its time is yet to come."""
    with parts.database.read() as session:
        row = newest_message(session)
    return answer({"clusterMessage": _message(row) if row is not None else None})


@router.put("/api/v1/master/cluster_message")
async def set_cluster_message(parts: PartsDep, admin: AdminDep, sent: wire.SetClusterMessageRequest) -> Response:
    """Set a message to all users, with a start time and an optional end time (administrators only)."""
    text = sent.message.strip()
    if not 1 <= len(text) <= _LONGEST_MESSAGE or not text.replace("\n", "").isprintable():
        raise BadRequest(f"message: {text[:40]!r}: expected 1 to {_LONGEST_MESSAGE} printable characters")
    ends_at = sent.end_time
    if sent.duration:
        if ends_at is not None:
            raise BadRequest("duration: expected either endTime or duration")
        try:
            ends_at = sent.start_time + max(timedelta(0), parse_duration("duration", sent.duration))
        except OverflowError:
            raise BadRequest("duration: the end is past the year 9999") from None
    if ends_at is not None and (ends_at <= sent.start_time or ends_at <= utc_now()):
        raise BadRequest(f"endTime: {rfc3339(ends_at)}: expected a time after startTime, and yet to come")
    await run_in_threadpool(_set_message, parts, admin, text, sent, ends_at)
    return answer()


def _set_message(
    parts: Parts, admin: UserPrincipal, text: str, sent: wire.SetClusterMessageRequest, ends_at: Any
) -> None:
    with parts.database.write() as session:
        session.execute(delete(ClusterMessage))
        session.add(ClusterMessage(message=text, starts_at=sent.start_time, ends_at=ends_at, created_by=admin.user_id))


@router.delete("/api/v1/master/cluster_message")
async def delete_cluster_message(parts: PartsDep, admin: AdminDep) -> Response:
    """Say nothing any more (administrators only)."""

    def forget() -> None:
        with parts.database.write() as session:
            session.execute(delete(ClusterMessage))

    await run_in_threadpool(forget)
    return answer()
