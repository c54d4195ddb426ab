"""`det import` against canned answers."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cli import dumps
from tests.unit.cli.conftest import Cluster, Det

_IMPORTS = "/api/v1/undeterred/imports"


def answer(mode: str, state: str, **further: Any) -> dict[str, Any]:
    table = {"kind": "metrics", "isDone": True, "total": "20", "read": "20", "written": "20", "unchanged": "0",
             "differing": "0", "checksum": "", "ourChecksum": "",
             "skipped": [{"reason": "their trials did not come", "count": 7, "keys": ["1", "2"]}]}  # fmt: skip
    found = {"id": 3, "mode": mode, "state": state, "source": "old:5432/det", "shifts": {"trials": 1000, "users": 0},
             "warnings": ["a pool is missing"], "error": "", "tables": [table | further.pop("table", {})]}  # fmt: skip
    return {"import": found | further}


def test_a_run_waits_for_its_end_and_reports(cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_IMPORT_FROM", "postgresql://me:hunter2@old/det")
    monkeypatch.setattr("cli.importing._EVERY_S", 0.0)
    answers = iter([answer("RUN", "RUNNING"), answer("RUN", "COMPLETED")])
    cluster.routes |= {f"POST {_IMPORTS}": answer("RUN", "WAITING"), f"GET {_IMPORTS}/3": lambda *_: next(answers)}
    result = det("import", "run", "--shift")
    assert result.code == 0, result.err
    assert cluster.body_of(f"POST {_IMPORTS}") == {
        "mode": "RUN", "source": "postgresql://me:hunter2@old/det", "shift": True
    }  # fmt: skip
    assert result.err.count("metrics: 20 of 20, 20 written, 0 as they were") == 1
    assert "metrics: 7 skipped: their trials did not come (1, 2, …)" in result.out
    assert "Numbers move: trials by 1000\n" in result.out
    assert "Note: a pool is missing" in result.out
    assert "hunter2" not in result.out + result.err


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (answer("RUN", "ERROR", error="its schema is too old"), "import 3: its schema is too old"),
        (answer("VERIFY", "COMPLETED", table={"differing": "4"}), "4 records differ"),
    ],
)
def test_what_failed_or_differs_is_an_error(cluster: Cluster, det: Det, found: Any, said: str) -> None:
    cluster.routes |= {f"GET {_IMPORTS}/3": found}
    result = det("import", "status", "3")
    assert (result.code, said in result.err) == (1, True)


def test_a_source_is_needed_that_is_a_database_or_a_dump(cluster: Cluster, det: Det, tmp_path: Path) -> None:
    assert "DET_IMPORT_FROM" in det("import", "plan").err
    assert "No such file" in det("import", "plan", "--from", str(tmp_path / "old.sql")).err
    text = tmp_path / "notes.txt"
    text.write_text("buy milk")
    assert "it is no dump: expected what `pg_dump`" in det("import", "run", "--from", str(text)).err
    assert "--detach: a dump is served by this command" in det("import", "run", "-d", "--from", str(text)).err
    assert cluster.requests == []


def test_an_import_from_a_dump_ends_with_its_command(
    cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def served(path: Path, **options: Any) -> Generator[str]:
        assert (path, options) == (Path("old.sql"), {"reachable_at": "here.example.org", "most_gib": 5})
        yield "postgresql://importer:s@here.example.org:1/old"

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.dumps.served", served)
    monkeypatch.setattr("cli.importing._watched", interrupted)
    ended = f"POST {_IMPORTS}/3/cancel"
    cluster.routes |= {f"POST {_IMPORTS}": answer("RUN", "WAITING"), ended: {}}
    result = det("import", "run", "--from", "old.sql", "--reachable-at", "here.example.org", "--max-gib", "5")
    assert result.code != 0
    assert "Import 3 ends here" in result.err
    assert cluster.body_of(ended) == {}


def test_of_a_dump_comes_what_is_of_the_database() -> None:
    dump = b"""--
\\restrict abc
SET transaction_timeout = 0;
CREATE TABLE public.a (b text);
ALTER TABLE public.a OWNER TO somebody;
GRANT ALL ON TABLE public.a TO them;
COPY public.a (b) FROM stdin;
GRANT ALL ON TABLE public.a TO them;
\\restrict abc
\\.
\\! touch gotcha
\\unrestrict abc
"""
    found = b"".join(dumps.kept(dump.splitlines(keepends=True)))
    assert (
        found
        == b"""--
CREATE TABLE public.a (b text);
COPY public.a (b) FROM stdin;
GRANT ALL ON TABLE public.a TO them;
\\restrict abc
\\.
\\! touch gotcha
"""
    )
    cut = [b"COPY public.a (b) FROM stdin;\n", b"a piece of ", b"\\.\n", b"\\.\n", b"\\restrict abc\n"]
    assert list(dumps.kept(cut)) == cut[:-1]
