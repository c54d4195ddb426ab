"""A shell's container: OpenSSH's server, and its own client."""

from __future__ import annotations

import hashlib
import http.server
import os
import pwd
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from determined.exec import shell as module
from tests.kit.servers import free_port, ssh_server_program

from .service_runs import LAUNCH, READY, Service, seeing

if TYPE_CHECKING:
    from conftest import Master

ODD = {
    "ODD_NEWLINES": "first line\nsecond line\n",
    "ODD_QUOTES": 'it\'s "quoted" `here` $HOME \\',
    "ODD_TAIL": "ends with a backslash \\",
    "ODD_LETTERS": "größe 日本",
    "ODD_LARGE": "x" * 100_000,
    "odd-name": "left out",
    "odd.name%%": "left out",
    "BASH_FUNC_f%%": "() { :; }",
}


class Shell(Service):
    """The process of a shell's container, and the key that opens it."""

    def __init__(self, master: Master, root: Path) -> None:
        ssh_server_program()
        super().__init__(master, root, "SHELL")
        self.log_level = "ERROR"
        self.key = self.make_key("key")
        self.env["DET_SHELL_AUTHORIZED_KEY"] = (root / "key.pub").read_text().strip()

    def make_key(self, name: str) -> Path:
        path = self.root / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "of u", "-f", path], check=True)
        return path

    def options(self, key: Path | None = None) -> list[str]:
        given = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes", "BatchMode=yes"]
        words = [word for option in (*given, f"LogLevel={self.log_level}") for word in ("-o", option)]
        return [*words, "-F", "none", "-i", str(key or self.key)]

    def ssh(self, *command: str, key: Path | None = None, user: str = "", stdin: str = "") -> tuple[int, str, str]:
        where = f"{user}@127.0.0.1" if user else "127.0.0.1"
        line = ["ssh", *self.options(key), "-p", str(self.port), where, *command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, input=stdin)
        return done.returncode, done.stdout, done.stderr

    def read(self, name: str) -> str:
        """A variable, as a program in a session has it."""
        script = f"import os, sys; sys.stdout.write(os.environ.get({name!r}, 'absent'))"
        code, out, err = self.ssh(f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}")
        assert code == 0, err
        return out


@pytest.fixture
def shell(master: Master, tmp_path: Path) -> Shell:
    return Shell(master, tmp_path)


def test_commands_run_with_the_environment_of_the_container(shell: Shell) -> None:
    shell.env |= ODD | {"LANG": "C.UTF-8", "DET_HPARAMS": '{"lr": 0.1}', "TERM": "of the container"}
    shell.env["PATH"] = f"{shell.root}/bin:{os.environ['PATH']}"
    with shell.running() as process:
        assert shell.ssh("exit 7")[0] == 7
        assert shell.ssh("pwd; cat", stdin="typed")[1] == f"{shell.root}/work\ntyped"
        assert shell.ssh(stdin="echo $((6 * 7)); exit 3\n") == (3, "42\n", "")
        for name, value in ODD.items():
            assert shell.read(name) == (value if name.startswith("ODD_") else "absent"), name
        assert shell.read("DET_HPARAMS") == '{"lr": 0.1}'
        # the user's own .bashrc may have added to it
        assert {f"{shell.root}/bin", str(Path(sys.executable).parent)} <= set(shell.read("PATH").split(":"))
        assert shell.read("LANG") == "C.UTF-8"
        assert shell.read("TERM") != "of the container"
        folder = shell.root / "run" / "ssh"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not [path for path in folder.iterdir() if path.name != "host_key.pub" and path.stat().st_mode & 0o077]
        [ready] = shell.master.of(READY)
        assert ready.body == {"loginUser": pwd.getpwuid(os.getuid()).pw_name}
        process.terminate()
        assert process.wait(30) in (0, 143)


def test_terminal_starts_in_the_folder_of_the_task(shell: Shell) -> None:
    shell.env |= ODD | {"PATH": f"{shell.root}/bin:{os.environ['PATH']}"}
    with shell.running():
        line = ["ssh", "-tt", *shell.options(), "-p", str(shell.port), "127.0.0.1"]
        typed = 'echo "in [$PWD] [$DET_TASK_TYPE] [$ODD_TAIL]"; echo $PATH; exit 5\n'
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, input=typed)
        assert done.returncode == 5, done.stderr
        assert f"in [{shell.root}/work] [SHELL] [{ODD['ODD_TAIL']}]" in done.stdout
        assert f"{shell.root}/bin:" in done.stdout


def test_files_are_copied(shell: Shell, tmp_path: Path) -> None:
    content = os.urandom(10 << 20)
    (tmp_path / "large.bin").write_bytes(content)
    with shell.running():
        for option in ("-s", "-O"):  # by sftp, and by the protocol of old
            copy, back = tmp_path / f"copy{option}", tmp_path / f"back{option}"
            base = ["scp", option, *shell.options(), "-P", str(shell.port)]
            subprocess.run([*base, str(tmp_path / "large.bin"), f"127.0.0.1:{copy}"], check=True, timeout=60)
            subprocess.run([*base, f"127.0.0.1:{copy}", str(back)], check=True, timeout=60)
            digest = hashlib.sha256(content).digest()
            assert [hashlib.sha256(path.read_bytes()).digest() for path in (copy, back)] == [digest] * 2


def test_ports_are_forwarded(shell: Shell) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    local = free_port()
    with shell.running():
        forward = f"{local}:127.0.0.1:{server.server_address[1]}"
        line = ["ssh", "-N", "-L", forward, *shell.options(), "-p", str(shell.port), "127.0.0.1"]
        client = subprocess.Popen(line, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=10) as answer:
                        assert answer.status == 200
                        break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
        finally:
            client.terminate()
            client.wait()
            server.shutdown()
            server.server_close()


def test_only_the_key_of_the_shell_opens_it(shell: Shell) -> None:
    other = shell.make_key("other")
    with shell.running():
        code, out, err = shell.ssh("echo in", key=other)
        assert (code, out) == (255, "")
        assert "Permission denied (publickey)" in err
        assert shell.ssh("echo in")[:2] == (0, "in\n")


def _as_user(shell: Shell, entry: str) -> tuple[str, ...]:
    """A line that starts it as user 4321 of a namespace, whose /etc/passwd has this entry."""
    users = shell.root / "passwd"
    users.write_text(f"root:x:0:0::/root:/bin/sh\nsshd:x:102:65534::/run/sshd:/bin/false\n{entry}\n")
    return seeing(users, Path("/etc/passwd"), "unshare", "-U", "--map-user=4321", "--map-group=4321", *LAUNCH)


def test_plain_users_have_shells_too(shell: Shell) -> None:
    home = shell.root / "home"
    home.mkdir()
    with shell.running(*_as_user(shell, f"ada:x:4321:4321::{home}:/bin/sh")):
        assert shell.ssh("id -u; pwd; exit 4", user="ada")[:2] == (4, f"4321\n{shell.root}/work\n")
        shell.log_level = "INFO"
        code, out, err = shell.ssh("echo in", user="root")
        assert (code, out) == (255, "")
        assert "The container of this shell runs as ada, and lets in no other user.\n" in err
        assert "Permission denied" in err
        assert "lets in no other" not in shell.ssh("true", user="ada")[2]
        assert "this shell lets in ada" in shell.log.read_text()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("", "this image has no user of the number 4321, so that nobody can log in; add one to its /etc/passwd"),
        ("ada:x:4321:4321::/:/usr/sbin/nologin", "user ada of this image has /usr/sbin/nologin for a shell"),
        ("ada:x:4321:4321::/:/bin/nonsense", "user ada of this image has /bin/nonsense for a shell"),
    ],
)
def test_users_whom_ssh_would_refuse_are_named(shell: Shell, entry: str, message: str) -> None:
    line = _as_user(shell, entry)
    done = subprocess.run(line, env=shell.env, cwd=shell.root, capture_output=True, text=True, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"SHELL_PORT": "0"}, "SHELL_PORT is '0', but must be a port from 1 to 65535"),
        ({"DET_SHELL_AUTHORIZED_KEY": ""}, "DET_SHELL_AUTHORIZED_KEY is not set to one public key"),
        (
            {"DET_SHELL_AUTHORIZED_KEY": 'command="x" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA'},
            "DET_SHELL_AUTHORIZED_KEY is not set to one public key",
        ),
        (
            {"DET_SHELL_AUTHORIZED_KEY": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAB"},
            "DET_SHELL_AUTHORIZED_KEY is not set to one public key",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(shell: Shell, env: dict[str, str], message: str) -> None:
    shell.env |= env
    code, err = shell.run()
    assert (code, len(err.splitlines())) == (1, 1), err
    assert message in err


def test_a_taken_port_is_said(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", shell.port)):
        code, err = shell.run()
    assert (code, len(err.splitlines())) == (1, 1), err
    assert f"SHELL_PORT is {shell.port}, but this container can't listen there: Address already in use" in err


def test_an_image_without_ssh_says_what_to_install(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_SBIN", "")  # this machine has it
    for name, value in (shell.env | {"PATH": str(shell.root)}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "this image has no sshd: install OpenSSH's server into it, with `apt-get install openssh-server`" in line


def test_keys_are_checked_strictly_where_nobody_else_can_change_the_folder(tmp_path: Path) -> None:
    assert not module._is_safe(str(tmp_path)), "anyone may write to /tmp"
    assert module._is_safe("/usr")
