"""Getting Temporal's dev server where there is none."""

from __future__ import annotations

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from workers import temporal_server
from workers.temporal_server import NoTemporal, find_or_get


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run on a machine with Go whose SDK gets nothing; `go install` takes a moment."""
    run: list[str] = []

    def fake(line: list[str], env: dict[str, str] | None = None, **_: Any) -> subprocess.CompletedProcess[str]:
        run.append(Path(line[0]).name)
        if env is not None:
            time.sleep(0.2)
            folder = Path(env["GOBIN"])
            folder.mkdir(exist_ok=True)
            (folder / "temporal").write_text("built")
        return subprocess.CompletedProcess(line, 0, "", "")

    monkeypatch.setenv("UNDETERRED_CACHE", str(tmp_path))
    monkeypatch.setattr(temporal_server.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "go" else None)
    monkeypatch.setattr(temporal_server.subprocess, "run", fake)
    return run


def test_it_is_built_once_when_two_want_it_at_the_same_time(commands: list[str], tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=20)

    def get(_: int) -> Path:
        together.wait()
        return find_or_get(lambda told: None)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(get, range(2)))
    assert found == [tmp_path / "bin" / "temporal"] * 2
    assert found[0].read_text() == "built"
    assert commands.count("go") == 1


def test_nothing_is_written_where_it_is_there_already(commands: list[str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "temporal-sdk-python-1").write_text("downloaded")
    assert find_or_get(lambda told: None) == tmp_path / "bin" / "temporal-sdk-python-1"
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["temporal-sdk-python-1"]
    assert commands == []


def test_what_is_missing_is_said_when_it_can_not_be_had(commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_server.shutil, "which", lambda name: None)
    with pytest.raises(NoTemporal, match="Install the Temporal CLI or Go, or set TEMPORAL_ADDRESS"):
        find_or_get(lambda told: None)
