"""A dump as a source: restored into a PostgreSQL that is gone afterwards, whatever is in it."""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import dumps
from database.session import Database
from determined.errors import DeterminedException
from tests.integration.importing.conftest import DUMP
from tests.kit.old_cluster import imported
from tests.kit.records import seeded
from tests.kit.servers import postgres_program
from workflows.lifecycle.imports import ImportMode

HEAD = "-- PostgreSQL database dump\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders of this test are; open to the user that PostgreSQL runs as, unlike those of pytest.

    `tmp_path` is there before.
    """
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def test_dump_of_each_format_is_imported_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    custom = tmp_path / "old.pgdump"
    with seeded(f"sqlite:///{tmp_path / 'db'}") as target:
        _both(target, custom)
    assert list(folder.iterdir()) == []


def _both(target: Database, custom: Path) -> None:
    with dumps.served(DUMP) as url:  # SQL, with gzip
        done = imported(target, url)
        subprocess.run([postgres_program("pg_dump"), "-Fc", "-f", custom, url], check=True)
    assert (done["experiments"].written, done["metrics"].written) == (123, 7955)
    with dumps.served(custom) as url:
        again = imported(target, url, ImportMode.VERIFY)
    assert sum(row.differing for row in again.values()) == 0
    assert again["metrics"].unchanged == 7955


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("\\! touch {folder}/gotcha\n", "restricted"),
        ("SELECT 1 \\! touch {folder}/gotcha\n", "restricted"),
        ("COPY (SELECT 1) TO PROGRAM 'touch {folder}/gotcha';\n", "must be superuser"),
        ("SELECT pg_read_file('/etc/passwd');\n", "permission denied"),
        ("CREATE TABLE a (b text);\nCREATE TABLE a (b text);\n", "already exists"),
        ("CREATE TABLE a AS SELECT repeat(md5(n::text), 100) AS b FROM generate_series(1, 400000) AS n;\n", "--max-gib"),
    ],
)  # fmt: skip
def test_dump_that_would_do_more_is_refused_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, said: str
) -> None:
    monkeypatch.setattr(dumps, "_GIB", 2**26)
    dump = tmp_path / "old.sql"
    dump.write_text(HEAD + sql.format(folder=tmp_path))
    with pytest.raises(DeterminedException, match=said), dumps.served(dump, most_gib=1):
        pass
    assert [path.name for path in (*tmp_path.iterdir(), *folder.iterdir())] == ["old.sql"]


def test_dump_that_is_cut_off_is_refused(folder: Path, tmp_path: Path) -> None:
    dump = tmp_path / "old.sql.gz"
    dump.write_bytes(gzip.compress((HEAD + "SELECT 1;\n" * 1000).encode())[:-20])
    with pytest.raises(DeterminedException, match="can't be read to its end"), dumps.served(dump):
        pass
    assert [*tmp_path.iterdir(), *folder.iterdir()] == [dump]


def test_missing_program_is_named_with_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "_PROGRAMS", folder)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(DeterminedException, match=r"needs the program 'initdb'.*or restore the dump elsewhere"):
        dumps.served(DUMP).__enter__()
