"""Shell completion: commands and options without a cluster, ids and names from it, once in ten seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cli import completion, session
from cli.commands import ENTRIES
from tests.unit.cli.conftest import Cluster, Det
from tests.unit.cli.test_experiment import experiment, page


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("UNDETERRED_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    session.configure(None, None)
    return tmp_path / "cache" / "undeterred" / "completion"


def values(*words: str) -> list[str]:
    return [value for value, _ in completion.candidates(words)]


def test_commands(cluster: Cluster) -> None:
    assert values("") == [name for entry in ENTRIES for name in (entry.name, *entry.synonyms)]
    assert values("exp") == ["experiment", "export"]
    assert {"list", "create", "label"} <= set(values("e", ""))
    assert values("e", "list-t") == ["list-trials"]
    assert values("experiment", "label", "") == ["add", "remove"]
    assert values("frob", "") == values("e", "frob", "") == []
    assert "--master" in values("-")
    assert cluster.requests == []


def test_options_and_their_values(cluster: Cluster) -> None:
    assert values("e", "create", "--te") == ["--template", "--test-mode", "--test"]
    assert values("completion", "") == ["bash", "zsh", "fish"]
    assert values("e", "create", "") == [":files"]
    assert values("e", "create", "--config", "") == []
    assert values("e", "create", "c.yaml", "--paused", "") == [":files"], "a flag takes no value"
    assert values("e", "create", "c.yaml", "m", "") == []
    assert values("up", "--lau") == ["--launcher"]
    assert cluster.requests == []


def test_ids_and_names_by_one_request(cluster: Cluster) -> None:
    cluster.routes["GET /api/v1/experiments"] = page(
        "experiments",
        {**experiment("RUNNING"), "id": 12, "trialIds": [5, 6]},
        {**experiment(), "id": 7, "trialIds": [4]},
    )
    assert completion.candidates(["e", "describe", ""]) == [("12", "RUNNING mnist"), ("7", "COMPLETED mnist")]
    assert values("e", "describe", "1") == ["12"]
    assert len(cluster.requests) == 1, "the second came from the cache"
    assert values("t", "logs", "-f", "") == ["5", "6", "4"]
    assert values("t", "logs", "--head", "5", "") == ["5", "6", "4"]
    assert len(cluster.requests) == 2


@pytest.mark.parametrize(
    ("words", "route", "body"),
    [
        (["e", "create", "--template", ""], "templates", page("templates", {"name": "found"})),
        (["-u", ""], "users", page("users", {"username": "found"})),
        (["w", "describe", ""], "workspaces", page("workspaces", {"name": "found"})),
        (["model", "describe", ""], "models", page("models", {"name": "found"})),
        (["template", "describe", ""], "templates", page("templates", {"name": "found"})),
        (["agent", "disable", ""], "agents", page("agents", {"id": "found"})),
        (["job", "list", "--resource-pool", ""], "resource-pools", page("resourcePools", {"name": "found"})),
    ],
)
def test_where_names_come_from(cluster: Cluster, words: list[str], route: str, body: Any) -> None:
    cluster.routes[f"GET /api/v1/{route}"] = body
    assert values(*words) == ["found"]
    assert values(*words[:-1], "x") == []
    assert len(cluster.requests) == 1


def test_checkpoints_of_the_latest_experiment_that_has_any(cluster: Cluster) -> None:
    body = page("experiments", {**experiment(), "id": 9}, {**experiment(), "id": 8, "checkpointCount": 1})
    cluster.routes["GET /api/v1/experiments"] = body
    cluster.routes["GET /api/v1/experiments/8/checkpoints"] = page(
        "checkpoints", {"uuid": "0a1b", "training": {"trialId": 3}}
    )
    assert completion.candidates(["c", "describe", ""]) == [("0a1b", "of trial 3")]


def test_each_cluster_and_user_has_a_cache_of_its_own(cluster: Cluster, cache: Path) -> None:
    cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment())
    assert values("e", "describe", "") == ["7"]
    assert values("-m", "http://127.0.0.1:1", "e", "describe", "") == []
    assert values("-u", "bob", "e", "describe", "") == [], "bob never logged in here"
    assert values("e", "describe", "") == ["7"]
    assert len(list(cache.iterdir())) == 3
    assert cache.stat().st_mode & 0o077 == 0


def test_the_cache_grows_old(cluster: Cluster, cache: Path) -> None:
    cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment())
    assert values("e", "describe", "") == ["7"]
    cluster.routes["GET /api/v1/experiments"] = page("experiments", {**experiment(), "id": 8})
    assert values("e", "describe", "") == ["7"]
    [path] = cache.iterdir()
    os.utime(path, (0, time.time() - 11))
    assert values("e", "describe", "") == ["8"]


@pytest.mark.parametrize("state", ["away", "refuses", "damaged cache", "no cache"])
def test_silent_when_there_is_nothing_to_be_had(
    cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch, cache: Path, state: str
) -> None:
    if state == "away":
        monkeypatch.setenv("DET_MASTER", "http://127.0.0.1:1")
    elif state == "refuses":
        cluster.routes["GET /api/v1/experiments"] = 403, {"message": "no"}
    else:
        cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment())
    if state == "damaged cache":
        det("__complete", "zsh", "e", "describe", "")
        [path] = cache.iterdir()
        path.write_text('[["7"')
    if state == "no cache":
        cache.parent.parent.mkdir()
        cache.parent.write_text("a file where the folder should be")
    result = det("__complete", "zsh", "e", "describe", "")
    expected = "" if state in ("away", "refuses") else "7\tCOMPLETED mnist\n"
    assert (result.code, result.out, result.err) == (0, expected, "")


def test_a_cluster_that_is_away_is_asked_once_in_ten_seconds(cluster: Cluster) -> None:
    cluster.routes["GET /api/v1/experiments"] = 503, {"message": "away"}
    assert values("e", "describe", "") == values("e", "describe", "") == []
    assert len(cluster.requests) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("det e lo", ["logs"]),
        ("det  e   lo", ["logs"]),
        ("det e logs --json --fo", ["--follow"]),
        ("det e create 'my config.yaml' --test-", ["--test-mode"]),
        ("det e create --config 'a=b", []),
        ("det e create --config a=b --test-", ["--test-mode"]),
    ],
)
def test_a_line_of_bash(det: Det, line: str, expected: list[str]) -> None:
    out = det("__complete", "bash", line).out
    assert [shown.partition("\t")[0] for shown in out.splitlines()] == expected


def test_a_value_behind_an_equals_sign(cluster: Cluster, det: Det) -> None:
    cluster.routes["GET /api/v1/templates"] = page("templates", {"name": "base"})
    assert det("__complete", "zsh", "e", "create", "--template=b").out == "--template=base\t\n"
    assert det("__complete", "bash", "det e create --template=b").out == "base\t\n", "bash's word begins behind it"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_say_where_to_put_them(det: Det, shell: str) -> None:
    result = det("completion", shell)
    assert result.code == 0
    assert f"det completion {shell}" in "".join(result.out.splitlines()[:2])
    assert f"det __complete {shell}" in result.out


def test_in_bash(cluster: Cluster, det: Det, tmp_path: Path) -> None:
    """The script as it is, in a real bash."""
    cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment(), {**experiment(), "id": 8})
    program = tmp_path / "bin" / "det"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(
        det("completion", "bash").out
        + 'for COMP_LINE in "det e downl" "det e describe "; do\n'
        + 'COMP_POINT=${#COMP_LINE}; _det; echo "${COMPREPLY[@]}"; done\n'
    )
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "download download-model-def\n7 8\n"


def test_it_loads_only_what_it_needs() -> None:
    """A Tab must answer in 0.15 s: no HTTP, no server code, nothing to draw with."""
    code = (
        "import sys; from cli.main import main; main(['__complete', 'bash', 'det e list-']); print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("list-")
    forbidden = ("rich", "pydantic", "httpx", "http.client", "ssl", "asyncio", "workflows", "ruamel", "yaml")
    assert [name for name in forbidden if f"'{name}'" in done.stdout] == []
