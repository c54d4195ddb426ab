"""The gateway process: a gRPC server around `api.temporal.gateway`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NoReturn

import structlog
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, NoResultFound

from api.auth.authentication import Authenticator
from api.health import Health, of_database
from api.pem import CantUse, ServedCertificate, served_by
from api.temporal.gateway import OPTIONS, CantListen, Gateway, of_upstream, serve
from database.models import Cluster
from database.session import Database
from workers.connect import GivenUp, connection_of, mark_ready
from workers.connect import run as run_process
from workers.health import answering
from workers.settings import GatewaySettings

log = structlog.get_logger()

#: How long calls that have begun may take once the process ends, in seconds. Polls that wait for tasks end at once.
_FINISH_S = 5.0


async def main(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop. Raises: GivenUp."""
    connection = connection_of(settings)
    try:
        served = served_by(settings)
    except CantUse as error:
        raise GivenUp(str(error)) from None
    database = Database(settings.database_url)
    async with connection.channel(OPTIONS) as upstream:
        health = Health({"database": of_database(database), "temporal": of_upstream(upstream, connection)})
        async with answering(settings, health):
            secret = await _secret(database, stop)
            if secret is not None:
                gateway = Gateway(upstream, connection, Authenticator(database, agent_token="", session_days=1), secret)
                await _serve(settings, gateway, served, health, stop)
    database.close()


async def _serve(
    settings: GatewaySettings,
    gateway: Gateway,
    served: ServedCertificate | None,
    health: Health,
    stop: asyncio.Event,
) -> None:
    addresses = [f"{host.strip()}:{settings.port}" for host in settings.host.split(",")]
    try:
        server = await serve(gateway, addresses, served)
    except CantListen as error:
        raise GivenUp(str(error)) from None
    health.is_started = True
    mark_ready()
    log.info("gateway is ready", host=settings.host, port=settings.port)
    following = asyncio.create_task(served.follow()) if served is not None else None
    await stop.wait()
    await health.drain(settings.drain_s)
    gateway.leave()
    await server.stop(_FINISH_S)
    if following is not None:
        following.cancel()


async def _secret(database: Database, stop: asyncio.Event) -> str | None:
    """What task tokens are sealed with, once the API has made this cluster's records; None if asked to stop before."""
    while not stop.is_set():
        try:
            with database.read() as session:
                return session.scalars(select(Cluster.secret)).one()
        except (DBAPIError, NoResultFound) as error:
            log.info("the cluster's records are not there yet", error=str(error).splitlines()[0])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await stop.wait()
    return None


def run() -> NoReturn:
    """Entry point of `undeterred-gateway`."""
    run_process(GatewaySettings, main)


if __name__ == "__main__":
    run()
