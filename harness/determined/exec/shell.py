"""What the container of a shell runs: OpenSSH's server, which only the key of this shell opens, and its terminals.

Source: spec tasks.md §3.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading

from determined._fail import fail, say
from determined.exec._environment import TaskEnvironment
from determined.exec._ready import HOST, port_of, private_folder, serve, write_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pwd
    from collections.abc import Mapping

#: What the terminals for browsers ask for; no session needs it.
TERMINAL_TOKEN = "DET_TERMINAL_TOKEN"
_SBIN = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/sbin"))
_SFTP = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
_KEY = re.compile(
    r"(?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{16,16384}={0,3}(?: [^\r\n]*)?"
)
_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
_NO_LOGIN = ("", "nologin", "false")
# What the SSH server and the client's terminal say; the container's values would be wrong there.
_THEIRS = {"_", "HOME", "TERM", "PWD", "OLDPWD", "SHLVL", "USER", "LOGNAME", "SHELL", "MAIL", "DISPLAY", "XAUTHORITY"}
_AGAIN_S = 1.0
# What the client may say; else it is as in the container.
_IF_UNSET = re.compile(r"LANG|LANGUAGE|LC_\w+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Becomes every session: a login shell's profile would set a PATH of its own, and the server's configuration can't hold
# every value. A folder that is gone is no reason to keep its user out.
_SESSION = """. {variables}
cd {folder} 2> /dev/null || cd
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then
    exec "$SHELL" -c "$SSH_ORIGINAL_COMMAND"
fi
[ ! -t 0 ] || exec "$SHELL" -i
exec "$SHELL"
"""
_CONFIG = """ListenAddress {host}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes {strict}
PidFile none
UsePAM no
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
{interactive} no
PermitRootLogin prohibit-password
LoginGraceTime 60
MaxStartups 100
MaxSessions 100
ClientAliveInterval 30
ClientAliveCountMax 10
UseDNS no
AcceptEnv *
AllowTcpForwarding yes
AllowAgentForwarding yes
X11Forwarding yes
PrintMotd no
PrintLastLog no
ForceCommand /bin/sh {folder}/session
"""
# Who comes as another user reads why that fails.
_OTHERS = """AllowUsers {name}
Match User *,!{name}
    Banner {folder}/others
"""


def main() -> None:
    """Run the SSH server to its end, with its status."""
    env = TaskEnvironment(os.environ)
    sshd, keygen = _program("sshd"), _program("ssh-keygen")
    key = os.environ.get("DET_SHELL_AUTHORIZED_KEY", "").strip()
    if not _KEY.fullmatch(key):
        fail("the environment variable DET_SHELL_AUTHORIZED_KEY is not set to one public key, as `ssh-ed25519 AAAA…`")
    user = _user()
    port, folder = port_of("SHELL_PORT"), private_folder(env, "ssh")
    try:
        _prepare(sshd, keygen, folder, port, key, user.pw_name)
    except (OSError, subprocess.SubprocessError) as e:
        fail(f"can't prepare the SSH server in {folder}: {e}")
    say("INFO", f"this shell lets in {user.pw_name}")
    terminals = _Terminals(f"{folder}/session")
    argv = [sshd, "-D", "-e", "-f", f"{folder}/sshd_config"]
    try:
        raise SystemExit(
            serve(
                env, argv, lambda: _greets(port) and terminals.answer(), _without_secrets(), facts=_login(user.pw_name)
            )
        )
    finally:
        terminals.end()


class _Terminals:
    """The process that has the terminals for browsers. It is started again if it ends: sshd goes on."""

    def __init__(self, session: str) -> None:
        self._port = port_of("TERMINAL_PORT") if os.environ.get(TERMINAL_TOKEN) else 0
        self._argv = [sys.executable, "-m", "determined.exec.terminal", session]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = threading.Event()
        if self._port:
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL)
            code = self._process.wait()
            if not self._is_over.wait(_AGAIN_S):
                say("WARNING", f"the terminals for browsers have ended with status {code}, and start anew")

    def answer(self) -> bool:
        """Whether they do; a shell without a token for them has none."""
        if not self._port:
            return True
        try:
            socket.create_connection((HOST, self._port), timeout=10).close()
        except OSError:
            return False
        return True

    def end(self) -> None:
        """End them, and so what runs in them."""
        self._is_over.set()
        if self._process is not None:
            self._process.terminate()


def _without_secrets() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != TERMINAL_TOKEN}


def _login(name: str) -> dict[str, str]:
    """By which name clients log in, if it is one that the master passes on."""
    return {"loginUser": name} if _LOGIN.fullmatch(name) else {}


def _program(name: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", os.defpath) + os.pathsep + _SBIN)
    if found is None:
        fail(
            f"this image has no {name}: install OpenSSH's server into it, with `apt-get install openssh-server`"
            " or `dnf install openssh-server`"
        )
    return os.path.abspath(found)  # it starts itself again, for each connection


def _user() -> pwd.struct_passwd:
    """Whom the server lets in: the user of this process. Ends the process if the image does not let that one in."""
    import pwd

    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        fail(
            f"this image has no user of the number {os.getuid()}, so that nobody can log in; add one to its /etc/passwd"
        )
    shell = user.pw_shell or "/bin/sh"
    if os.path.basename(shell) in _NO_LOGIN or not os.access(shell, os.X_OK):
        fail(f"user {user.pw_name} of this image has {shell} for a shell, so that nobody can log in; set another one")
    return user


def _prepare(sshd: str, keygen: str, folder: str, port: int, key: str, name: str) -> None:
    for path in (f"{folder}/host_key", f"{folder}/host_key.pub"):
        if os.path.exists(path):
            os.unlink(path)
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/host_key"], check=True, timeout=60)
    write_private(f"{folder}/authorized_keys", key + "\n")
    write_private(f"{folder}/variables", _exports(os.environ))
    session = _SESSION.format(variables=shlex.quote(f"{folder}/variables"), folder=shlex.quote(os.getcwd()))
    write_private(f"{folder}/session", session)
    write_private(f"{folder}/others", f"The container of this shell runs as {name}, and lets in no other user.\n")
    # In patterns some letters have a meaning; a user of such a name has no such help.
    others = _OTHERS.format(name=name, folder=folder) if re.fullmatch(r"[\w.-]+", name) else ""
    write_private(f"{folder}/sshd_config", _config(sshd, folder, port) + others)
    if os.getuid() == 0:
        # Where the server's unprivileged half lives, empty. Packages leave it to the system's start.
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)


def _config(sshd: str, folder: str, port: int) -> str:
    if re.search(r'[\s"%\\]', folder):
        fail(f"DET_RUN_DIR is {os.path.dirname(folder)!r}, but for a shell it must be without spaces, quotes and '%'")
    strict = "yes" if _is_safe(folder) else "no"
    text = _CONFIG.format(host=HOST, port=port, folder=folder, strict=strict, interactive=_interactive(sshd))
    sftp = next((path for path in _SFTP if os.access(path, os.X_OK)), None)
    if sftp is None:
        say("WARNING", "this image has no sftp-server, so that scp needs its option -O; openssh-sftp-server has it")
        return text
    return f"{text}Subsystem sftp {sftp}\n"


def _interactive(sshd: str) -> str:
    """How this server spells what asks for passwords in another way; it was renamed with OpenSSH 8.7."""
    asked = subprocess.run([sshd, "-?"], capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", asked.stderr + asked.stdout)
    is_old = found is not None and (int(found[1]), int(found[2])) < (8, 7)
    return "ChallengeResponseAuthentication" if is_old else "KbdInteractiveAuthentication"


def _is_safe(folder: str) -> bool:
    """Whether nobody else may rename what is on the way to a folder, which StrictModes demands of keys."""
    path = os.path.realpath(folder)
    while True:
        found = os.stat(path)
        if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022:
            return False
        if path == os.path.dirname(path):
            return True
        path = os.path.dirname(path)


def _exports(environ: Mapping[str, str]) -> str:
    """The environment of this container, for a shell to read. Names that no shell can have are left out."""
    lines: list[str] = []
    for name, value in sorted(environ.items()):
        if name in _THEIRS or name == TERMINAL_TOKEN or name.startswith("SSH_") or not _NAME.fullmatch(name):
            continue
        line = f"export {name}={shlex.quote(value)}\n"
        lines.append(f'[ -n "${{{name}+x}}" ] || {line}' if _IF_UNSET.fullmatch(name) else line)
    return "".join(lines)


def _greets(port: int) -> bool:
    """Whether it answers as SSH servers do."""
    try:
        with socket.create_connection((HOST, port), timeout=10) as connection:
            # Answered and left in order, as the server's log would wonder otherwise.
            connection.sendall(b"SSH-2.0-ready\r\n")
            connection.shutdown(socket.SHUT_WR)
            greeting = connection.recv(4)
            while connection.recv(4096):
                pass
            return greeting == b"SSH-"
    except OSError:
        return False  # it still starts; if it has ended, its exit status says so


if __name__ == "__main__":
    main()
