"""Servers and platforms that tests share. Everything is real; a missing part fails, it does not skip."""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from hypothesis import settings
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from api.auth import authentication
from tests.kit.embedded import starting_as_copies
from tests.kit.platform import Platform, platform
from tests.kit.servers import folder_in_memory, restartable_postgres, temporal_server
from tests.streams import OF_EACH_ENGINE, ON_ONE_ENGINE, UNTIL, engine_for, engine_of, late_of, turn_of
from tests.streams import pytest_collection_finish as pytest_collection_finish
from tests.streams import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler

_numbers = itertools.count(1)

# Ten thousand tests, and what they import, stay until the end: garbage is looked for among what comes after them, and
# not after each 700 objects.
gc.disable()
gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Also in the process that finds no tests but hands them out."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Libraries count at the end what they made and nobody collected."""
    if not hasattr(config, "workerinput"):
        gc.unfreeze()


def _leave() -> None:
    """End a process that xdist started without taking down what it loaded, which takes 7 s of processor time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nobody looks at its exit code


# A slow machine is no failure. CI runs the same examples each time; runs by hand look for new ones.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


_late = pytest.StashKey[set[str]]()


@pytest.hookimpl(trylast=True)  # behind those that leave out what is marked `long`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on the other engine (`streams.ON_ONE_ENGINE`), unless this is a soak.

    What takes long begins first; see also `streams.late_of`.
    """
    if not os.environ.get("UNDETERRED_SOAK"):
        left_out = [item for item in items if _is_left_out(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_left_out(item)]
    least: float = config.getoption("timeout", None) or 0.0
    for item in items:  # a mark gives a test more time than others have, and never less than the command line does
        mark = item.get_closest_marker("timeout")
        if mark is not None and mark.args and mark.args[0] < least:
            item.add_marker(pytest.mark.timeout(least), append=False)
    late = config.stash[_late] = late_of([item.nodeid for item in items])
    items.sort(key=lambda item: (item.nodeid in late, turn_of(item.nodeid)))


def _is_left_out(item: pytest.Item) -> bool:
    engine = engine_of(item.nodeid)
    is_of_platform = "temporal_address" in getattr(item, "fixturenames", ())
    is_on_one = is_of_platform or item.nodeid.startswith(ON_ONE_ENGINE)
    if not engine or item.nodeid.startswith(OF_EACH_ENGINE) or not is_on_one:
        return False
    return engine != engine_for(item.nodeid.replace(engine, ""))


class LeavesOut:
    """Leaves out what comes last when the time for tests is over: a plugin, as the harness' tests are elsewhere."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before anything is started for it."""
        if time.time() > UNTIL and item.nodeid in item.config.stash[_late]:
            pytest.skip("not reached in time: it is long, or has run on the other engine. `make test` runs it")


@pytest.hookimpl(trylast=True)  # behind pytest-rerunfailures, which makes its socket there
def pytest_configure(config: pytest.Config) -> None:
    """Also of processes that xdist starts."""
    config.pluginmanager.register(LeavesOut())
    if hasattr(config, "workerinput"):
        atexit.register(_leave)  # so early that it is the last one that is called
    # pytest-rerunfailures sends the first process two small messages about each test. Without TCP_NODELAY the second is
    # held back until the first is acknowledged, which takes up to 40 ms.
    counts = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(counts, socket.socket):
        counts.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """Hashes of passwords that cost little: each platform makes one, and verifies one. See `costly_passwords`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authentication, "_hasher", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> Iterator[None]:
    """Clusters start without loading their code. See tests/e2e/test_embedded.py for how `det up` does it."""
    with starting_as_copies():
        yield


@pytest.fixture
def costly_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes as the product makes them, for tests of what they cost."""
    monkeypatch.setattr(authentication, "_hasher", PasswordHasher())


@pytest.fixture
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Temporal dev server of the test's own, as ids repeat from one database to the next; up in under a second."""
    with temporal_server(tmp_path_factory.mktemp("temporal")) as address:
        yield address


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server of the tests' own, which need not survive a power cut: its writes wait for no disk.

    Its files are in memory: to make a database takes 12 ms instead of 60 to 200, and today's schema in it 170 instead of 450.
    """
    settings = ("fsync=off", "full_page_writes=off", "max_wal_size=256MB")
    with restartable_postgres(*settings, place=folder_in_memory()) as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database, on each engine in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'undeterred.db'}"
        return
    with empty_postgres(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """An empty database on PostgreSQL."""
    with empty_postgres(postgres_url) as url:
        yield url


@contextlib.contextmanager
def empty_postgres(server: str) -> Iterator[str]:
    """An empty database on a server of PostgreSQL."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
async def cluster(temporal_address: str, database_url: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform with one agent of two slots."""
    pool = f"pool{os.getpid()}x{next(_numbers)}"
    async with platform(
        temporal_address=temporal_address, database_url=database_url, folder=tmp_path, pool=pool
    ) as running:
        await running.start_agent()
        yield running


@pytest.fixture
async def unattended(temporal_address: str, database_url: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform with the pool `a`, and neither agent nor orchestrator: see `Platform.orchestrator`."""
    async with platform(
        temporal_address=temporal_address, database_url=database_url, folder=tmp_path, pool="a", has_orchestrator=False
    ) as running:
        yield running
