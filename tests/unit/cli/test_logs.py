"""Following a log: each line once, whatever breaks; Ctrl-C stops the watching and nothing else."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.unit.cli.conftest import BrokenOff, Cluster, Det

LOGS = "GET /api/v1/trials/3/logs"
AWAY = "the cluster does not answer; trying again, nothing will be missing"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.log_output._PAUSE_S", 0.01)


def lines(*numbers: int) -> bytes:
    return b"".join(
        json.dumps(
            {"result": {"id": str(n), "message": f"line {n}\n", "timestamp": f"2026-01-01T00:00:{60 - n}Z"}}
        ).encode()
        + b"\n"
        for n in numbers
    )


def test_goes_on_behind_the_last_line_after_a_disconnect(cluster: Cluster, det: Det) -> None:
    """The clocks of the hosts disagree (each line here is older than the one before): only ids tell what is new."""
    left = iter([[1, 2], [3, 4], [5]])

    def answer(query: dict[str, list[str]], _: Any) -> Any:
        numbers = next(left)
        return lines(*numbers) if numbers[-1] == 5 else BrokenOff(lines(*numbers))

    cluster.routes[LOGS] = answer
    result = det("t", "logs", "-f", "3", "--rank-id", "0")
    assert (result.code, result.out) == (0, "".join(f"line {n}\n" for n in range(1, 6)))
    queries = [query for name, query, _ in cluster.requests if name == LOGS]
    assert [query.get("afterId") for query in queries] == [None, ["2"], ["4"]]
    assert all(query["rankIds"] == ["0"] and query["follow"] == ["true"] for query in queries)
    assert result.err == "", "it was away for less than a moment: nobody needs to know"


def test_says_once_that_the_cluster_is_away(cluster: Cluster, det: Det) -> None:
    answers: list[Any] = [BrokenOff(lines(1)), *[(503, {"message": "away"})] * 5, lines(2)]
    left, health = iter(answers), iter([BrokenOff(), BrokenOff(), BrokenOff()])
    cluster.routes[LOGS] = lambda query, body: next(left)
    cluster.routes["GET /info"] = lambda query, body: next(health, {"version": "1"})
    result = det("t", "logs", "-f", "3")
    assert (result.code, result.out) == (0, "line 1\nline 2\n")
    assert result.err.count(AWAY) == 1
    assert result.err.count("the cluster answers again") == 1


def test_a_connection_that_died_without_a_word_is_noticed(
    cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.log_output._SILENCE_S", 0.2)
    done = threading.Event()
    queries: list[Any] = []

    def answer(query: dict[str, list[str]], _: Any) -> Any:
        queries.append(query)
        if len(queries) == 1:
            return BrokenOff(lines(1))
        if len(queries) == 2:
            done.wait(20)  # says nothing: the other end is gone
            return BrokenOff()
        return lines(2)

    cluster.routes[LOGS] = answer
    result = det("t", "logs", "-f", "3")
    done.set()
    assert (result.code, result.out) == (0, "line 1\nline 2\n")


@pytest.mark.parametrize(("status", "code"), [(403, 3), (404, 4), (500, 1)])
def test_a_refusal_ends_it(cluster: Cluster, det: Det, status: int, code: int) -> None:
    left = iter([BrokenOff(lines(1)), (status, {"message": "the reason"})])
    cluster.routes[LOGS] = lambda query, body: next(left)
    result = det("t", "logs", "-f", "3")
    assert (result.code, result.out) == (code, "line 1\n")
    assert "the reason" in result.err


def test_head_and_tail_of_what_is_followed(cluster: Cluster, det: Det) -> None:
    def answer(query: dict[str, list[str]], _: Any) -> bytes:
        return lines(5, 4) if "orderBy" in query else lines(6, 7) if "afterId" in query else lines(1, 2, 3)

    cluster.routes[LOGS] = answer
    assert det("t", "logs", "-f", "3", "--tail", "2").out == "line 4\nline 5\nline 6\nline 7\n"
    assert det("t", "logs", "-f", "3", "--head", "2").out == "line 1\nline 2\n"


def test_followed_lines_as_json(cluster: Cluster, det: Det) -> None:
    cluster.routes[LOGS] = lines(1, 2)
    assert [json.loads(line)["id"] for line in det("t", "logs", "-f", "3", "--json").out.splitlines()] == ["1", "2"]


@pytest.mark.parametrize("words", [["trial", "logs", "-f", "3"], ["task", "logs", "-f", "7.x"]])
def test_interrupt_detaches(cluster: Cluster, words: list[str]) -> None:
    kind, number = words[0], words[-1]
    cluster.routes[f"GET /api/v1/{kind}s/{number}/logs"] = BrokenOff(lines(1))  # goes on for ever: nothing new comes
    command = [sys.executable, "-m", "cli", *words]
    # A background job of a shell ignores SIGINT; a person's does not.
    code = f"import signal, os; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv({command[0]!r}, {command!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "line 1\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"stopped watching, {kind} {number} goes on; read it again with `det {kind} logs -f {number}`" in err
    assert "Traceback" not in err
    assert all(name.startswith("GET") for name, _, _ in cluster.requests)
