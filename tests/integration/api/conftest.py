"""One API for each engine, for all tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Literal

import httpx
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from api.app import create_app
from api.auth.authentication import hash_password
from api.routes import tasks, trials, webhooks
from api.services import log_sealing
from api.settings import ApiSettings
from database.migrate import migrate, seed
from database.session import Database
from tests.integration.api.served import ADMIN_PASSWORD, AGENT_TOKEN, Served, TemporalAway
from tests.kit.servers import free_port
from workers.api import server_of
from workers.logs import configure_logging


def a_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, name: str) -> str:
    """The address of a new database on the engine that `request.param` names. `name`: what it is for."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp(name) / 'undeterred.db'}"
    server = request.getfixturevalue("postgres_url")
    name = f"{name}_{uuid.uuid4().hex[:12]}"  # a fixture may be made twice, for the tests that come last
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def a_seeded_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, name: str) -> Database:
    """As `a_database`, with today's schema and the rows of a first start. Close it."""
    database = Database(a_database(request, tmp_path_factory, name))
    migrate(database)
    with database.write() as session:
        password_hash = hash_password("x" * 12, is_hashed=False)
        seed(session, cluster_name="test", admin_password_hash=password_hash, pools=["default"])
    return database


@pytest.fixture(scope="package", params=["sqlite", "postgres"])
def api_database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database for the API of these tests, on each engine in turn."""
    return a_database(request, tmp_path_factory, "api")


@pytest.fixture(scope="package")
async def api(api_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """The running API, with the user admin."""
    async with serving(api_database_url, tmp_path_factory.mktemp("checkpoints")) as served:
        yield served


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
async def api_of_its_own(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """A running API for one module that leaves nothing as it was."""
    name = request.module.__name__.rpartition(".")[2]
    async with serving(a_database(request, tmp_path_factory, name), tmp_path_factory.mktemp("checkpoints")) as served:
        yield served


@pytest.fixture(scope="module")
async def basic_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A running API in the access mode `basic`. On SQLite: the other engine is told the same conditions."""
    folder = tmp_path_factory.mktemp("basic")
    async with serving(f"sqlite:///{folder / 'undeterred.db'}", folder / "checkpoints", access="basic") as served:
        yield served


@functools.cache
def _configure_logging() -> None:
    """Once: it would take the lines from an API of another fixture, which is open beside this one."""
    configure_logging()


@contextlib.asynccontextmanager
async def serving(
    database_url: str, folder: Path, *, access: Literal["basic", "rbac"] = "rbac"
) -> AsyncIterator[Served]:
    """The API on a free port. Checkpoints are in `folder`."""
    folder.mkdir(exist_ok=True)
    _configure_logging()
    settings = ApiSettings(
        database_url=database_url,
        temporal_address="127.0.0.1:1",
        port=free_port(),
        admin_password=ADMIN_PASSWORD,  # pyright: ignore[reportArgumentType]
        agent_token=AGENT_TOKEN,  # pyright: ignore[reportArgumentType]
        storage_path=str(folder),
        storage_roots=str(folder.parent),  # where pytest's folders are
        gateway=":8090",
        access=access,
        allowed_networks="127.0.0.0/8",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "_PROGRESS_EVERY_S", 0.0)
        patch.setattr(tasks, "_GRACE_S", 0.1)
        patch.setattr(webhooks, "_TEST_S", 0.05)
        patch.setattr(tasks, "_TICK_S", 0.05)
        patch.setattr(log_sealing, "_EVERY", timedelta(days=1))  # tests say when
        app = create_app(settings)
        server = server_of(app, settings.port)
        with pytest.MonkeyPatch.context() as start:  # for the start of this one only: other tests have a Temporal
            start.setattr("api.app.Commands", TemporalAway)
            serving = asyncio.create_task(server.serve())
            while not server.started:
                assert not serving.done(), "the API ended at its start"
                await asyncio.sleep(0.01)
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{settings.port}", timeout=30, limits=limits) as http:
            # one client for all callers: the session of one must not go with what another asks
            http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
            parts = app.state.parts
            assert isinstance(parts.commands, TemporalAway)
            yield Served(http, parts, parts.database, folder, parts.commands, app)
        server.should_exit = True
        await serving


@pytest.fixture(autouse=True)
def temporal_is_away(request: pytest.FixtureRequest) -> Iterator[None]:
    """As it was at the start."""
    yield
    if "api" in request.fixturenames:
        request.getfixturevalue("api").commands.knows_nothing = False
