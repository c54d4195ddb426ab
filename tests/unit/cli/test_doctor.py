"""`det doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import doctor
from determined import __version__
from tests.unit.cli.conftest import Cluster, Det
from tests.unit.cli.test_experiment import page

Findings = dict[str, list[dict[str, Any]]]


def agent(**more: Any) -> dict[str, Any]:
    slots = {str(n): {"id": str(n), "enabled": True} for n in range(2)}
    return {"id": "vm-1", "enabled": True, "version": __version__, "slots": slots, **more}


@pytest.fixture(autouse=True)
def healthy(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cluster elsewhere that is well; nothing on this machine."""
    monkeypatch.setenv("UNDETERRED_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    cluster.routes |= {
        "GET /api/v1/master": {"version": "0.38.1", "undeterredVersion": __version__},
        "GET /health": {"status": "up", "database": "up"},
        "GET /api/v1/agents": page("agents", agent()),
    }


def found(det: Det, code: int = 0) -> Findings:
    result = det("doctor", "--json")
    assert result.code == code, result.out
    by_name: Findings = {}
    for finding in json.loads(result.out):
        assert finding["status"] in ("ok", "note", "warning", "problem")
        assert bool(finding["fix"]) or finding["status"] in ("ok", "note")
        by_name.setdefault(finding["name"], []).append(finding)
    return by_name


def test_all_is_well(det: Det) -> None:
    by_name = found(det)
    assert {name: [one["status"] for one in ones] for name, ones in by_name.items()} == {
        "client": ["ok"],
        "embedded": ["note"],
        "api": ["ok"],
        "versions": ["ok"],
        "clock": ["ok"],
        "login": ["ok"],
        "records": ["ok"],
        "agents": ["ok"],
        "docker": ["note"],
    }
    lines = det("doctor").out.splitlines()
    assert f"ok       versions  client and cluster are both {__version__}" in lines
    assert lines[-1] == "0 problem(s), 0 warning(s)"
    assert "\x1b" not in "".join(lines)


def test_no_cluster_answers(det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_MASTER", "http://127.0.0.1:1")
    by_name = found(det, code=1)
    assert by_name["api"][0]["status"] == "problem"
    assert "det up" in by_name["api"][0]["fix"]
    assert "login" not in by_name, "what can't be asked is not judged"
    shown = det("doctor")
    assert shown.code == 1
    assert "problem  api       can't reach the master at http://127.0.0.1:1" in shown.out
    assert "; to do: start the cluster" in shown.out


@pytest.mark.parametrize(
    ("route", "answer", "name", "status", "words"),
    [
        ("GET /api/v1/master", {"version": "0.38.1"}, "versions", "warning", "the cluster 0.38.1"),
        ("GET /api/v1/me", (401, {"message": "no"}), "login", "problem", "det user login"),
        ("GET /health", (503, {"message": "down"}), "records", "problem", "down"),
        ("GET /api/v1/agents", page("agents"), "agents", "problem", "none is connected"),
        ("GET /api/v1/agents", page("agents", agent(enabled=False)), "agents", "warning", "det agent enable vm-1"),
        ("GET /api/v1/agents", page("agents", agent(version="0.0.1")), "agents", "warning", "vm-1 has version 0.0.1"),
        (
            "GET /api/v1/agents",
            page("agents", agent(slots={"0": {"id": "0", "enabled": False}, "1": {"id": "1", "enabled": True}})),
            "agents",
            "warning",
            "det slot enable vm-1 0",
        ),
    ],
)
def test_what_the_cluster_lacks(
    cluster: Cluster, det: Det, route: str, answer: Any, name: str, status: str, words: str
) -> None:
    cluster.routes[route] = answer
    is_alone = answer in (page("agents"), page("agents", agent(enabled=False)))
    finding = found(det, code=1 if status == "problem" or is_alone else 0)[name][0]
    assert finding["status"] == status
    assert words in f"{finding['message']} {finding['fix']}"


@pytest.mark.parametrize(
    ("off_s", "status"), [(0, "ok"), (2, "ok"), (-20, "warning"), (20, "warning"), (90, "problem")]
)
def test_clock(off_s: float, status: str) -> None:
    at = 1_767_323_045.5
    finding = doctor._clock("Fri, 02 Jan 2026 03:04:05 GMT", at + off_s)
    assert finding.status == status
    assert ("behind" in finding.message) == (off_s < -3)


@pytest.mark.parametrize(("free", "status"), [(10**6, "problem"), (10**9, "warning"), (10**12, "ok")])
def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert doctor._disk(tmp_path).status == status


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n\r\nOK", b"HTTP/1.0 404 Not Found\r\n\r\n", None])
def test_docker(tmp_path: Path, answer: bytes | None) -> None:
    import threading

    with socket.socket(socket.AF_UNIX) as listener:
        if answer is not None:
            listener.bind(str(tmp_path / "docker.sock"))
            listener.listen()

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
        finding = doctor._docker(is_needed=True)
    assert finding.status == ("ok" if answer and b"200" in answer else "problem")


class TestEmbedded:
    """A cluster of this machine, as its folder shows it."""

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """A folder in which all four parts are one process that sleeps, and listens on both ports."""
        monkeypatch.setattr(doctor, "_inside", lambda is_running: iter(()))
        folder = tmp_path / "home"
        (folder / "run").mkdir(parents=True)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port = listener.getsockname()[1]
            state = {"port": port, "temporal_port": port, "launcher": "process"}
            (folder / "cluster.json").write_text(json.dumps(state))
            fields = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
            for part in ("temporal", "api", "orchestrator", "agent"):
                pid = {"pid": os.getpid(), "started": fields[19]}
                (folder / "run" / f"{part}.pid").write_text(json.dumps(pid))
            yield folder

    def test_runs(self, det: Det, home: Path) -> None:
        by_name = found(det)
        assert by_name["embedded"][0]["message"] == f"{home}: temporal, api, orchestrator, agent run"
        assert [one["status"] for one in by_name["port"]] == ["ok", "ok"]
        assert [one["status"] for one in by_name["disk"]] != []

    def test_a_part_is_gone(self, det: Det, home: Path) -> None:
        (home / "run" / "orchestrator.pid").write_text(json.dumps({"pid": os.getpid(), "started": "1"}))
        [finding] = found(det, code=1)["embedded"]
        assert finding["message"] == f"orchestrator of the cluster in {home} does not run"
        assert "det logs orchestrator" in finding["fix"]

    def test_something_else_has_the_port(self, det: Det, home: Path) -> None:
        for path in (home / "run").iterdir():
            path.unlink()
        by_name = found(det, code=1)
        assert by_name["embedded"][0]["fix"] == "start it with `det up`"
        assert {one["status"] for one in by_name["port"]} == {"problem"}
        assert "UNDETERRED_PORT" in by_name["port"][0]["fix"]


def test_a_damaged_cluster_can_not_be_looked_into(tmp_path: Path) -> None:
    """The real process of the server's side, with a folder that it can't use."""
    [finding] = doctor._inside(is_running=False)
    assert finding.status == "problem"
    assert "python -m workers.check" in finding.fix


def test_the_servers_side_looks_at_temporal_database_and_storage(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    state = {"port": 1, "slots": 1, "agent_id": "a", "temporal_address": "127.0.0.1:1", "temporal_port": 1}
    (folder / "cluster.json").write_text(json.dumps(state))
    (folder / "undeterred.db").write_bytes(b"this is no database" * 100)
    (folder / "checkpoints").write_text("a file where the folder should be")
    statuses = {finding.name: finding for finding in doctor._inside(is_running=True)}
    assert {name: finding.status for name, finding in statuses.items()} == {
        "temporal": "problem",
        "database": "problem",
        "storage": "problem",
        "trials": "ok",
    }
    assert "det up" in statuses["temporal"].fix
    (folder / "undeterred.db").unlink()
    (folder / "checkpoints").unlink()
    again = {finding.name: finding for finding in doctor._inside(is_running=True)}
    assert "does not exist" in again["database"].message
    assert not (folder / "undeterred.db").exists(), "looking changes nothing"
    assert again["storage"].status == "ok"


def test_a_current_database_is_well(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from database.migrate import migrate; from database.session import Database;"
        "from workers.check import check_database; folder = pathlib.Path(sys.argv[1]);"
        "database = Database(f'sqlite:///{folder}/undeterred.db');"
        "print(*[f['status'] for f in check_database(folder)]) if migrate(database) is None else None"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "ok\n"
