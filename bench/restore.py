"""A backup of a cluster of some size, and its restore, with searches that are in the middle of their work."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from sqlalchemy import create_engine, select, text

from api.auth.authentication import UserPrincipal
from api.schemas.experiments import CreateExperimentRequest
from api.services.experiments import Creator
from api.settings import ApiSettings
from bench.data import fill
from bench.measure import Figure
from database.models import User
from database.session import Database
from tests.kit.servers import postgres_server
from workers.backup import BackupSettings, write
from workers.restore import RestoreSettings, bring_back

SCALE, LIVE, TRIALS = 0.02, 200, 50
_CONFIG = {
    "name": "live",
    "entrypoint": "true",
    "searcher": {"name": "random", "metric": "x", "max_trials": TRIALS, "max_concurrent_trials": TRIALS,
                 "max_length": 10},
    "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
}  # fmt: skip


def figures() -> Iterator[Figure]:
    """PostgreSQL on this machine; the folder is on its disk."""
    with postgres_server() as url, tempfile.TemporaryDirectory() as name:
        filled = fill(url, SCALE)
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("UPDATE experiments SET state = 'COMPLETED' WHERE state != 'ERROR'"))
            _search(url)
            connection.execute(text("UPDATE outbox SET sent_at = now()"))  # their workflows have started
            size = connection.scalar(text("SELECT pg_database_size(current_database())")) or 0
            connection.execute(text("CREATE DATABASE restored"))
        engine.dispose()
        note = (
            f"{filled.experiments + LIVE:,} experiments, {filled.trials + LIVE * TRIALS:,} trials, {filled.reports:,}"
            f" reports, {filled.log_lines:,} lines; {size / 2**20:,.0f} MiB in PostgreSQL"
        )
        folder = Path(name) / "backup"
        began = time.monotonic()
        write(BackupSettings(database_url=url), folder, looks=False)
        yield Figure("backup", [time.monotonic() - began], "s", note=note)
        stored = sum(path.stat().st_size for path in folder.iterdir())
        yield Figure("size of the backup", [stored / 2**20], "MiB")
        began = time.monotonic()
        target = url.rpartition("/")[0] + "/restored"
        revived = bring_back(RestoreSettings(database_url=target), folder, looks=False)
        assert revived.trials >= LIVE * TRIALS
        yield Figure(
            "restore, until the processes may start",
            [time.monotonic() - began],
            "s",
            note=f"the starts of {len(revived.experiments):,} experiments with {revived.trials:,} trials among it",
        )


def _search(url: str) -> None:
    """Experiments with their first decisions, as the API makes them."""
    database = Database(url)
    settings = ApiSettings(database_url=url, agent_token="bench", storage_path="/tmp")  # pyright: ignore[reportArgumentType]
    with database.read() as session:
        user = session.scalars(select(User).where(User.username == "admin")).one()
    admin = UserPrincipal(user_id=user.id, username=user.username, is_admin=True)
    creator = Creator(database, settings)
    for _ in range(LIVE):
        creator.create(CreateExperimentRequest(config=yaml.safe_dump(_CONFIG), activate=True), admin, None)
    database.close()
