"""What processes load at their start, each of which costs every start of a cluster, and memory; and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("process", "without"),
    [
        ("agent", "sqlalchemy database kubernetes docker fastapi aiohttp"),
        ("orchestrator", "kubernetes fastapi numpy"),
        ("api", "kubernetes docker authlib httpx2 aiohttp"),
    ],
)
def test_process_loads_nothing_that_only_others_need(process: str, without: str) -> None:
    script = f"import sys, workers.{process}; print([name for name in {without.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_new_database_is_made_without_what_migrates_others(tmp_path: Path) -> None:
    script = (
        "import sys; from database.migrate import migrate; from database.session import Database;"
        f"migrate(Database('sqlite:///{tmp_path}/new')); print('sqlite3' in sys.modules, 'alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True False"


def test_command_of_the_embedded_cluster_ends_at_once_when_it_is_done(tmp_path: Path) -> None:
    """What it has loaded is not taken down object by object, which takes longer than `status` itself."""
    script = "import atexit, runpy; atexit.register(print, 'taken down'); runpy.run_module('workers.embedded', None, '__main__')"
    done = subprocess.run(
        [sys.executable, "-c", script, "status"],
        env={**os.environ, "UNDETERRED_HOME": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"there is no cluster in {tmp_path}/none: start one with `det up`\n"
