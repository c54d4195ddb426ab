"""The entry: help, names, global options, errors and exit codes."""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from cli import auth
from cli.commands import ENTRIES, find
from tests.kit.servers import free_port
from tests.unit.cli.conftest import Cluster, Det


def test_help_lists_every_command_without_a_cluster(det: Det) -> None:
    page = det("--help")
    assert page.code == 0
    for entry in ENTRIES:
        assert entry.shown in page.out
        assert entry.help in page.out
    assert det().out == page.out
    assert det("-h").out == page.out
    assert "Exit codes" in page.out


def test_each_command_has_its_help_page(det: Det) -> None:
    for entry in ENTRIES:
        result = det(entry.name, "--help")
        assert result.code == 0, entry.name
        assert "Usage: det" in result.out
        module: Any = importlib.import_module(f"cli.{entry.module}")
        for info in module.app.registered_commands if not entry.word else ():
            page = det(entry.name, info.name, "-h")
            assert page.code == 0, (entry.name, info.name)
            assert f"det {entry.name} {info.name}" in page.out


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("e", "experiment"),
        ("exp", "experiment"),
        ("experimen", "experiment"),
        ("t", "trial"),
        ("tri", "trial"),
        ("c", "checkpoint"),
        ("check", "checkpoint"),
        ("u", "user"),
        ("us", "user"),
        ("up", "up"),
        ("a", "agent"),
        ("s", "slot"),
        ("status", "status"),
        ("d", "deploy"),
        ("down", "down"),
        ("rp", "resource-pool"),
        ("res", "resources"),
        ("resource", "resources"),
        ("m", "model"),
        ("w", "workspace"),
        ("work", "workspace"),
        ("p", "project"),
        ("j", "job"),
        ("tpl", "template"),
        ("tkn", "token"),
        ("cp", "config-policies"),
        ("cmd", "command"),
        ("user-group", "user-group"),
        ("master", "master"),
        ("version", "version"),
    ],
)
def test_names_and_their_prefixes(word: str, name: str) -> None:
    found = find(word)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("word", ["x", "ex-periment", "experiments", "r", "re", "stat", "use-r", "user-g", "cmdr"])
def test_words_that_mean_nothing(word: str) -> None:
    assert find(word) is None


def test_mistyped_words_get_a_suggestion(det: Det) -> None:
    result = det("experimnet", "ls")
    assert result.code == 2
    assert "did you mean `det experiment`?" in result.err
    result = det("e", "lits")
    assert result.code == 2
    assert "Did you mean 'list'?" in result.err
    result = det("e", "creaet", "x")
    assert "Did you mean 'create'?" in result.err


@pytest.mark.parametrize(
    "words", [["--frob", "e", "ls"], ["-m"], ["e", "ls", "--frob"], ["e", "pause", "x"], ["e", "pause"]]
)
def test_usage_errors(det: Det, words: list[str]) -> None:
    result = det(*words)
    assert result.code == 2
    assert result.out == ""
    assert "Traceback" not in result.err


@pytest.mark.parametrize(("status", "code"), [(400, 1), (401, 3), (403, 3), (404, 4), (409, 5), (500, 1), (501, 1)])
def test_exit_code_by_answer(cluster: Cluster, det: Det, status: int, code: int) -> None:
    cluster.routes["POST /api/v1/experiments/7/pause"] = status, {"message": "the reason"}
    result = det("e", "pause", "7")
    assert result.code == code
    assert "the reason" in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert "\x1b" not in result.err


def test_no_answer(cluster: Cluster, det: Det) -> None:
    result = det("-m", "http://127.0.0.1:1", "e", "ls")
    assert result.code == 1
    assert "can't reach the master at http://127.0.0.1:1" in result.err


def test_a_mistake_of_ours_has_no_traceback_unless_wanted(
    cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.routes["GET /api/v1/agents"] = {"agents": [{"no": "id"}], "pagination": {"total": 1}}
    result = det("agent", "list")
    assert result.code == 1
    assert "KeyError" in result.err
    assert "Traceback" not in result.err
    monkeypatch.setenv("DET_DEBUG", "1")
    assert "Traceback" in det("agent", "list").err


def test_version(cluster: Cluster, det: Det) -> None:
    assert det("--version").out.startswith("det ")
    result = det("version")
    assert result.code == 0
    assert "cluster_name: test" in result.out
    assert cluster.url in result.out
    result = det("-m", "127.0.0.1:1", "version")
    assert result.code == 1
    assert "client:" in result.out


def test_json_and_yaml_have_colours_for_a_person_who_wants_them(
    cluster: Cluster, det: Det, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.routes["GET /api/v1/master"] = {"clusterName": "c", "telemetryEnabled": False}
    monkeypatch.setenv("DET_CLI_COLORIZE", "1")
    plain = det("master", "info", "--json").out
    assert json.loads(plain)["clusterName"] == "c", "a program reads it"
    monkeypatch.setattr("cli.render.is_interactive", lambda: True)
    for form in ("--json", "--yaml"):
        assert "\x1b[" in det("master", "info", form).out
    monkeypatch.setenv("DET_CLI_COLORIZE", "0")
    assert det("master", "info", "--json").out == plain


def test_interrupt(cluster: Cluster, det: Det) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    import cli.session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.session, "fetch_all", interrupted)
        assert det("a", "ls").code == 130


#: As it is installed.
_DET = Path(sys.executable).with_name("det")


def test_reader_that_has_enough_ends_it_quietly(cluster: Cluster) -> None:
    cluster.routes["GET /api/v1/undeterred/config-schema"] = {"x": ["y" * 100] * 20_000}
    command = f"{_DET} e config-schema | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stdout == "{\n"
    assert done.stderr == ""
    closed = f"{_DET} --help | true; {sys.executable} -P -m workers.embedded status | true"
    environment = {**os.environ, "UNDETERRED_HOME": "/nonexistent"}
    done = subprocess.run(["sh", "-c", closed], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("is_at_work", [False, True])
def test_ends_at_once_unless_a_thread_is_at_work(is_at_work: bool) -> None:
    """What was loaded is not taken down object by object, which is a seventh of a short command."""
    code = "import atexit, sys, threading, time; from cli.main import run; atexit.register(print, 'taken down');"
    if is_at_work:
        code += "threading.Thread(target=lambda: (time.sleep(0.2), print('its work'))).start();"
    code += "sys.argv = ['det', 'no-such-command']; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
    assert done.stdout.split("\n") == (["its work", "taken down", ""] if is_at_work else [""])


def test_help_imports_next_to_nothing() -> None:
    """The budget of `det --help` is 0.15 s: typer, rich and the SDK together take more than that."""
    code = "import sys; before = set(sys.modules); from cli.main import main; main(['--help']); import json;"
    code += "print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1])) - {"json", "json.decoder", "json.scanner", "json.encoder"}
    assert loaded <= {"cli", "cli.main", "cli.commands", "_json"}, loaded


def test_a_command_imports_no_server_code_and_no_rich() -> None:
    code = (
        "import sys; from cli import experiment, trial, deploy, user, create, describe, follow, master, search, plan;"
    )
    code += "from cli import history, plot, model, workspace, project, template, task, job, agent, slot, resource_pool;"
    code += (
        "from cli import resources, user_group, rbac, token, config_policies, webhook, audit, dev, later, checkpoint;"
    )
    code += "from cli import check, completion, doctor, keys, local, log_output, progress; import json;"
    code += "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    forbidden = {"rich", "temporalio", "fastapi", "sqlalchemy", "pydantic", "workflows", "api", "workers", "database"}
    assert not loaded & (forbidden | {"activities", "httpx", "docker", "ruamel", "matplotlib", "optuna"})


def test_help_is_quick() -> None:
    """Far below what importing typer, rich or the SDK at the top would take, even on a busy machine."""
    times: list[float] = []
    for command in (["-m", "cli.main", "--help"], ["-c", "pass"]):
        best = 9.9
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
            best = min(best, time.perf_counter() - began)
        times.append(best)
    assert times[0] - times[1] < 0.1


def test_what_det_up_runs(det: Det, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, heard = tmp_path / "python", tmp_path / "heard"
    program.write_text(f'#!/bin/sh\necho "$*" > {heard}\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    for words in (["up"], ["deploy", "local", "cluster-up"], ["d", "up"]):
        assert det(*words, "--slots", "3", "--master-port", "1234", "--launcher", "process").code == 7
        expected = "-P -m workers.embedded up --master-port 1234 --slots 3 --launcher process\n"
        assert heard.read_text() == expected
    for words in (["down"], ["deploy", "local", "cluster-down"]):
        assert det(*words).code == 7
        assert heard.read_text() == "-P -m workers.embedded down\n"
    of_determined = ("--no-gpu", "--agents", "0", "--storage-host-path", "/data", "--det-version", "0.38.1")
    done = det("deploy", "local", "cluster-up", *of_determined)
    assert "--det-version is left aside: the version is that of the installed package" in done.err
    assert heard.read_text() == "-P -m workers.embedded up --slots 0 --slot-type cpu --storage-path /data\n"
    assert det("deploy", "local", "cluster-up", "--delete-db").code == 7
    assert heard.read_text() == "-P -m workers.embedded down --delete-records\n", "what fails first ends it"
    refused = det("deploy", "local", "cluster-up", "--agents", "2")
    assert "--agents: 2: expected 0 or 1" in refused.err
    assert det("status").code == 7
    assert heard.read_text() == "-P -m workers.embedded status\n"


def test_logs_of_a_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNDETERRED_HOME", str(tmp_path))
    done = main_in_subprocess("logs", "api")
    assert done.returncode == 1
    assert "there is no log at" in done.stderr
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "api.log").write_text("".join(f"line {i}\n" for i in range(200)))
    assert main_in_subprocess("logs", "api", "--tail", "2").stdout == "line 198\nline 199\n"
    assert "expected one of temporal" in main_in_subprocess("logs", "frob").stderr


def main_in_subprocess(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "cli.main", *words], capture_output=True, text=True, check=False)


def test_login_by_a_provider_takes_the_token_that_the_browser_brings(
    det: Det, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def browser(address: str) -> bool:
        opened.append(address)
        bring = functools.partial(urllib.request.urlopen, f"http://localhost:{auth.PORT}/?token=secret", timeout=10)
        threading.Thread(target=bring).start()
        return True

    monkeypatch.setattr(webbrowser, "open", browser)
    monkeypatch.setattr(auth, "PORT", free_port())  # that of releases may be taken here
    cluster.routes["GET /api/v1/master"] = {"ssoProviders": []}
    assert "this cluster has no identity provider" in det("auth", "login").err
    sso = "https://det.example.org/oidc/sso"
    cluster.routes["GET /api/v1/master"] = {"ssoProviders": [{"name": "okta", "type": "OIDC", "ssoUrl": sso}]}
    assert "okta" in det("auth", "list-providers").out
    assert "--provider: 'x': expected one of okta." in det("auth", "login", "-p", "x").err
    done = det("auth", "login")
    assert (done.code, opened) == (0, [f"{sso}?relayState=cli"])
    assert "Logged in as user 'ada'" in done.out
    assert "secret" not in done.out + done.err
