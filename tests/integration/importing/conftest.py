"""A database that the old master made, and clusters of ours to bring it into."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from database.models import ImportTable
from database.session import Database
from tests.kit.old_cluster import Old, imported
from tests.kit.records import seeded
from tests.kit.servers import postgres_program

DUMP = Path(__file__).parent / "data" / "database.sql.gz"


@pytest.fixture(scope="session")
def old_template(postgres_url: str) -> str:
    """The name of a database with the dump, which nobody connects to: others are copies of it."""
    admin = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text("CREATE DATABASE old_template"))
    admin.dispose()
    url = make_url(postgres_url).set(database="old_template", drivername="postgresql")
    subprocess.run(
        [postgres_program("psql"), "-q", "-v", "ON_ERROR_STOP=1", url.render_as_string(hide_password=False)],
        input=gzip.decompress(DUMP.read_bytes()), check=True, stdout=subprocess.DEVNULL, env=os.environ,
    )  # fmt: skip
    return "old_template"


@contextlib.contextmanager
def copied(server: str, template: str, driver: str = "postgresql") -> Iterator[str]:
    """A copy of a database that nobody is connected to."""
    name = f"copy_{uuid.uuid4().hex[:12]}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield make_url(server).set(database=name, drivername=driver).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def old(postgres_url: str, old_template: str) -> Iterator[Old]:
    """The old cluster's database, for this test alone."""
    with copied(postgres_url, old_template) as url:
        yield Old(url)


@pytest.fixture
def target(database_url: str) -> Iterator[Database]:
    """A new cluster of ours, on each engine in turn."""
    with seeded(database_url) as database:
        yield database


@dataclass(frozen=True)
class Came:
    """A cluster of ours that the dump was imported into, and how that went by kind."""

    url: str
    done: dict[str, ImportTable]


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def came_template(
    request: pytest.FixtureRequest, postgres_url: str, old_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Came:
    """One on each engine, which is only copied."""
    name = "came_template"
    url = f"sqlite:///{tmp_path_factory.mktemp(name) / 'undeterred.db'}"
    if request.param == "postgres":
        admin = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        admin.dispose()
        url = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    with copied(postgres_url, old_template) as old, seeded(url) as database:
        done = imported(database, old)
    return Came(url, done)


@pytest.fixture
def came(came_template: Came, postgres_url: str, tmp_path: Path) -> Iterator[Database]:
    """A cluster of ours that has all of the dump, for this test alone."""
    if came_template.url.startswith("sqlite"):
        shutil.copy(str(make_url(came_template.url).database), tmp_path / "undeterred.db")
        database = Database(f"sqlite:///{tmp_path / 'undeterred.db'}")
        yield database
        database.close()
        return
    with copied(postgres_url, "came_template", "postgresql+psycopg") as url:
        database = Database(url)
        yield database
        database.close()
