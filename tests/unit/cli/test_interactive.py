"""`det notebook`, `det shell` and `det tensorboard` against canned answers: starting, opening, and what ssh is given."""

from __future__ import annotations

import os
import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from cli import opening
from tests.unit.cli.conftest import Cluster, Det

ID = "7d3f2c5e-9f1b-4a53-8b8e-2f6a9d7e0b7c"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"


def answer(kind: str, **more: Any) -> dict[str, Any]:
    shown = {"id": ID, "description": "My task", "state": "STATE_RUNNING", "exitStatus": "", "username": "ada",
             "resourcePool": "default", "workspaceId": 1, "startTime": "2026-11-03T00:00:00Z"}  # fmt: skip
    if kind == "shell":
        shown |= {"privateKey": KEY, "publicKey": "ssh-ed25519 A", "agentUserGroup": {"user": ""},
                  "terminalAddress": f"/proxy/{ID}:terminal/?token=t"}  # fmt: skip
    else:
        shown |= {"serviceAddress": f"/proxy/{ID}/?token=t"}
    if kind == "tensorboard":
        shown |= {"experimentIds": [3, 4], "trialIds": []}
    return {kind: shown | more, "config": {"idle_timeout": "5m0s"}, "warnings": []}


def task(*, is_ready: bool = True, ended: str | None = None) -> dict[str, Any]:
    return {"task": {"taskId": ID, "endTime": ended, "allocations": [{"isReady": is_ready}]}}


@pytest.fixture(autouse=True)
def routes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_EVERY_S", 0.01)
    for kind in ("notebook", "shell", "tensorboard"):
        cluster.routes |= {
            f"POST /api/v1/{kind}s": answer(kind),
            f"GET /api/v1/{kind}s/{ID}": answer(kind),
            f"GET /api/v1/{kind}s": {f"{kind}s": [answer(kind)[kind]], "pagination": {"total": 1}},
        }
    cluster.routes[f"GET /api/v1/tasks/{ID}"] = task()
    cluster.routes["GET /api/v1/workspaces"] = {"workspaces": [{"id": 1, "name": "w"}], "pagination": {"total": 1}}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was given."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses


@pytest.mark.parametrize(("kind", "words"), [("notebook", ()), ("tensorboard", ("3", "4"))])
def test_one_is_opened_when_it_is_ready(
    cluster: Cluster, det: Det, opened: list[str], kind: str, words: tuple[str, ...]
) -> None:
    waits = [task(is_ready=False), task()]
    cluster.routes[f"GET /api/v1/tasks/{ID}"] = lambda query, body: waits.pop(0)
    result = det(kind, "start", *words, "--config", "idle_timeout=1h")
    address = f"{cluster.url}/proxy/{ID}/?token=t"
    assert (result.code, result.out) == (0, address + "\n"), result
    assert opened == [address]
    assert waits == []
    assert cluster.body_of(f"POST /api/v1/{kind}s")["config"] == {"idle_timeout": "1h"}
    result = det(kind, "open", ID, "--no-browser")
    assert (result.out, len(opened)) == (address + "\n", 1)
    assert det(kind, "start", *words, "-d").out == ID + "\n"


def test_what_ends_before_it_is_ready_says_why(cluster: Cluster, det: Det, opened: list[str]) -> None:
    cluster.routes[f"GET /api/v1/tasks/{ID}"] = task(is_ready=False, ended="2026-11-03T00:00:00Z")
    cluster.routes[f"GET /api/v1/notebooks/{ID}"] = answer(
        "notebook", state="STATE_TERMINATED", exitStatus="exited with code 1"
    )
    result = det("notebook", "start")
    assert (result.code, result.out) == (1, "")
    assert f"notebook {ID} has ended: exited with code 1; see `det notebook logs {ID}`" in result.err
    result = det("notebook", "open", ID)
    assert (result.code, "has ended" in result.err, opened) == (1, True, [])


def test_a_preview_is_its_configuration(cluster: Cluster, det: Det) -> None:
    assert det("notebook", "start", "--preview").out == "idle_timeout: 5m0s\n"
    assert cluster.body_of("POST /api/v1/notebooks")["preview"] is True


def test_a_tensorboard_has_something_to_show(cluster: Cluster, det: Det) -> None:
    assert det("tensorboard", "start", "3", "-t", "7", "-t", "8", "-d").code == 0
    body = cluster.body_of("POST /api/v1/tensorboards")
    assert (body["experimentIds"], body["trialIds"]) == ([3], [7, 8])
    result = det("tensorboard", "start")
    assert (result.code, "expected ids of experiments" in result.err) == (2, True)
    assert "3, 4" in det("tensorboard", "list").out


def test_a_shell_is_opened_in_a_browser(cluster: Cluster, det: Det, opened: list[str]) -> None:
    address = f"{cluster.url}/proxy/{ID}:terminal/?token=t"
    result = det("shell", "start", "--web")
    assert (result.code, result.out, opened) == (0, address + "\n", [address])
    assert det("shell", "open", ID, "--web").code == 0
    assert len(opened) == 2
    assert det("shell", "open", ID, "--web", "--no-browser").out == address + "\n"
    assert det("shell", "open", ID, "--no-browser").out == address + "\n"
    assert len(opened) == 2
    result = det("shell", "open", ID, "--web", "-L", "1:localhost:1")
    assert (result.code, "'-L' is for ssh" in result.err) == (1, True)
    cluster.routes[f"GET /api/v1/shells/{ID}"] = answer("shell", terminalAddress="")
    result = det("shell", "open", ID, "--web")
    assert (result.code, "is reached by ssh only" in result.err) == (1, True)
    cluster.routes[f"GET /api/v1/shells/{ID}"] = answer("shell", privateKey="")
    result = det("shell", "open", ID, "--web")
    assert (result.code, "belongs to ada" in result.err) == (1, True)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `ssh` that writes down its words, and what it finds as its key; it ends with 7."""
    out, program = tmp_path / "out", tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nkey = sys.argv[sys.argv.index('-i') + 1]\n"
        "told = {'words': sys.argv[1:], 'key': open(key).read(), 'mode': os.stat(key).st_mode & 0o777}\n"
        f"open({str(out)!r}, 'w').write(json.dumps(told))\nsys.exit(7)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return out


def test_a_shell_is_logged_in_to_and_ends_with_the_code_of_ssh(cluster: Cluster, det: Det, ssh: Path) -> None:
    import json

    result = det("shell", "start", "-L", "8000:localhost:8000", "uptime")
    assert (result.code, result.out) == (7, ""), result
    assert f"To reconnect, run: det shell open {ID}" in result.err
    told = json.loads(ssh.read_text())
    assert (told["key"], told["mode"]) == (KEY, 0o600)
    proxy = f"ProxyCommand={sys.executable} -m determined.cli.tunnel {cluster.url} %h --auth"
    assert proxy in told["words"]
    assert told["words"][-4:] == [f"root@{ID}", "-L", "8000:localhost:8000", "uptime"]
    key = told["words"][told["words"].index("-i") + 1]
    assert not os.path.exists(key), "it is gone with the login"
    cluster.routes[f"GET /api/v1/shells/{ID}"] = answer("shell", agentUserGroup={"user": "ada"})
    assert det("shell", "open", ID).code == 7
    assert f"ada@{ID}" in json.loads(ssh.read_text())["words"]


def test_a_shells_command_and_entry_name_a_key_that_stays(det: Det, tmp_path: Path, ssh: Path) -> None:
    words = shlex.split(det("shell", "show-ssh-command", ID).out)
    assert (words[0], words[-1]) == ("ssh", f"root@{ID}")
    key = Path(words[words.index("-i") + 1])
    assert key == tmp_path / "cache" / "determined" / "shell" / ID / "key"
    assert (key.read_text(), key.stat().st_mode & 0o777) == (KEY, 0o600)
    assert det("shell", "show_ssh_command", ID).out.split() == det("shell", "show-ssh-command", ID).out.split()
    entry = det("shell", "ssh-config", ID).out.splitlines()
    assert entry[0] == f"Host {ID}"
    assert f'  IdentityFile "{key}"' in entry


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"privateKey": ""}, "belongs to ada: only its owner and administrators log in"),
        ({"state": "STATE_TERMINATED", "exitStatus": "killed on request"}, "has ended: killed on request"),
        ({"agentUserGroup": {"user": "-oProxyCommand=x"}}, "no name of a user"),
    ],
)
def test_a_shell_that_can_not_be_opened_says_why(
    cluster: Cluster, det: Det, ssh: Path, more: dict[str, Any], told: str
) -> None:
    cluster.routes[f"GET /api/v1/shells/{ID}"] = answer("shell", **more)
    result = det("shell", "open", ID)
    assert (result.code, result.out) == (1, "")
    assert told in result.err
    assert not ssh.exists()


def test_a_machine_without_ssh_is_told_so(det: Det, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = det("shell", "open", ID)
    assert (result.code, "install OpenSSH's client" in result.err) == (1, True)


def test_a_key_is_not_described(det: Det) -> None:
    for form in ((), ("--json",), ("--yaml",)):
        assert "PRIVATE KEY" not in det("shell", "describe", ID, *form).out


def test_an_id_may_be_given_by_how_it_begins(cluster: Cluster, det: Det) -> None:
    cluster.routes[f"POST /api/v1/notebooks/{ID}/kill"] = {}
    assert det("notebook", "kill", ID[:4]).out == f"Killed notebook {ID}\n"
    assert det("notebook", "config", ID[:1]).out == "idle_timeout: 5m0s\n"
    assert "there is no /api/v1/notebooks/8888" in det("notebook", "kill", "8888").err
    two = [{"id": f"{ID[:-1]}{end}"} for end in "12"]
    cluster.routes["GET /api/v1/notebooks"] = {"notebooks": two, "pagination": {"total": 2}}
    result = det("notebook", "kill", "7d")
    assert (result.code, "begins the ids of 2 notebooks" in result.err) == (1, True)
