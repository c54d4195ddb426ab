"""A shell as its users have it: real ssh and scp, and terminals for browsers, through `det` and the server."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from api.auth.authentication import client_hash
from tests.kit.embedded import Embedded
from tests.kit.servers import free_port, ssh_program, ssh_server_program
from tests.kit.windows import Window


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    ssh_server_program()
    ssh_program()
    with Embedded(tmp_path_factory.mktemp("interactive"), slots=1).started() as cluster:
        yield cluster


class Shell:
    """A started shell, and the configuration that `det` wrote for ssh."""

    def __init__(self, embedded: Embedded, folder: Path) -> None:
        self.environment = {**embedded.environment, "XDG_CACHE_HOME": str(folder)}
        run = embedded.det("shell", "start", "-d", "--config", "resources.slots=0")
        assert run.returncode == 0, run.stderr
        self.id = run.stdout.strip()
        ready = f"SELECT 1 FROM allocations WHERE task_id = '{self.id}' AND ready_at IS NOT NULL"
        embedded.until(lambda: embedded.rows(ready), 60, "sshd answers")
        written = embedded.det("shell", "ssh-config", self.id)
        assert written.returncode == 0, written.stderr
        self.config = folder / "ssh_config"
        self.config.write_text(written.stdout)

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """ssh or scp with det's configuration."""
        command = [program, "-F", str(self.config), *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def shell(embedded: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(embedded, tmp_path_factory.mktemp("ssh"))


def test_a_command_has_the_tasks_environment_and_its_exit_code(shell: Shell) -> None:
    done = shell.run("ssh", shell.id, "echo $DET_TASK_ID $DET_TASK_TYPE; exit 7")
    assert (done.stdout.split(), done.returncode) == ([shell.id, "SHELL"], 7), done.stderr


def test_login_is_by_the_name_that_the_container_runs_as(shell: Shell, embedded: Embedded) -> None:
    import pwd

    name = pwd.getpwuid(os.getuid()).pw_name
    assert f"  User {name}" in shell.config.read_text().splitlines()
    assert shell.run("ssh", shell.id, "id -un").stdout.strip() == name
    assert embedded.det("shell", "show-ssh-command", shell.id).stdout.split()[-1] == f"{name}@{shell.id}"


def test_a_hundred_megabytes_arrive_as_they_were_sent(shell: Shell, tmp_path: Path) -> None:
    data = os.urandom(100_000_000)
    (tmp_path / "sent").write_bytes(data)
    there = f"{shell.id}:{tmp_path}/there"
    assert shell.run("scp", str(tmp_path / "sent"), there).returncode == 0
    assert shell.run("scp", there, str(tmp_path / "back")).returncode == 0
    assert hashlib.sha256((tmp_path / "back").read_bytes()).digest() == hashlib.sha256(data).digest()


def test_a_port_is_forwarded(shell: Shell, embedded: Embedded) -> None:
    port, local = free_port(), free_port()
    server = f"python3 -c \"import http.server as h; h.HTTPServer(('127.0.0.1', {port}), h.SimpleHTTPRequestHandler).handle_request()\""
    forward = ["-L", f"{local}:127.0.0.1:{port}", "-o", "ExitOnForwardFailure=yes", shell.id, server]
    with subprocess.Popen(["ssh", "-F", str(shell.config), *forward], env=shell.environment) as process:
        embedded.until(lambda: _status(local) == 200, 30, "the forwarded port answers")
        assert process.wait(30) == 0


def _status(port: int) -> int:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").status_code
    except httpx.TransportError:
        return 0


def test_det_ends_with_the_exit_code_of_its_session(shell: Shell, embedded: Embedded) -> None:
    done = embedded.det("shell", "open", shell.id, "exit 5")
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr


def test_a_browser_opens_a_terminal_by_the_address_that_det_prints(shell: Shell, embedded: Embedded) -> None:
    printed = embedded.det("shell", "open", shell.id, "--web", "--no-browser")
    assert printed.returncode == 0, printed.stderr
    with httpx.Client(follow_redirects=True, headers={"accept": "text/html"}) as browser:
        page = browser.get(printed.stdout.strip())
        assert (page.status_code, "page.mjs" in page.text) == (200, True)
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert (page.url.port, page.url.query) == (int(embedded.environment["UNDETERRED_PROXY_PORT"]), b"")
        address = f"ws://localhost:{page.url.port}{page.url.path}attach?name=browser"
        cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
    origin = f"http://localhost:{page.url.port}"
    window = Window(connect(address, additional_headers=cookies | {"Origin": origin}))
    window.type("echo [$DET_TASK_ID]\n")
    window.read(rf"\[{shell.id}\]")
    window.close()
    for headers, status in ((cookies | {"Origin": embedded.environment["DET_MASTER"]}, 403), ({"Origin": origin}, 401)):
        with pytest.raises(InvalidStatus) as refused:
            connect(address, additional_headers=headers)
        assert refused.value.response.status_code == status


def test_another_user_opens_no_terminal(shell: Shell, embedded: Embedded) -> None:
    master = embedded.environment["DET_MASTER"]

    def login(name: str, password: str) -> dict[str, str]:
        body = {"username": name, "password": client_hash(password), "isHashed": True}
        token = httpx.post(f"{master}/api/v1/auth/login", json=body).raise_for_status().json()["token"]
        return {"Authorization": f"Bearer {token}"}

    admin = login("admin", "correct horse")
    user = {"user": {"username": "mallory", "active": True}, "password": client_hash("a password"), "isHashed": True}
    httpx.post(f"{master}/api/v1/users", json=user, headers=admin).raise_for_status()
    mallory = login("mallory", "a password")
    path = f"{master}/proxy/{shell.id}:terminal/"
    assert httpx.get(f"{path}terminals", headers=admin).status_code == 200
    for name in ("", "terminals", "page.mjs"):
        refused = httpx.get(path + name, headers=mallory)
        assert (refused.status_code, "only its owner and administrators" in refused.text) == (403, True)
    seen = httpx.get(f"{master}/api/v1/shells/{shell.id}", headers=mallory).json()["shell"]
    assert (seen["id"], seen["terminalAddress"]) == (shell.id, "")
    with pytest.raises(InvalidStatus) as no:
        connect(f"ws{path[4:]}attach", additional_headers=mallory)
    assert no.value.response.status_code == 403
