"""`det shell`: shells on slots of the cluster, by ssh through the cluster's API, or in a browser."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import kinds, launching, opening, render, session
from cli.bundles import bundled
from cli.group import command_of
from cli.launching import LaunchOptions

app = kinds.app_of("shell", "Shells: a terminal on slots of the cluster, by ssh or in a browser.")
#: Options that det does not know are ssh's.
_SSH = {"ignore_unknown_options": True}
SshOptions = Annotated[
    list[str] | None, typer.Argument(metavar="SSH_OPTIONS", help="Passed on to ssh.", show_default=False)
]
ShowCommand = Annotated[bool, typer.Option("--show-ssh-command", help="Print the command too, with a key that stays.")]
Web = Annotated[bool, typer.Option("--web", help="In your browser, where the same terminal is there again later.")]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("start", context_settings=_SSH)
@bundled
def start(
    options: LaunchOptions,
    ssh_options: SshOptions = None,
    detach: kinds.Detach = False,
    show_ssh_command: ShowCommand = False,
    web: Web = False,
    no_browser: opening.NoBrowser = False,
) -> None:
    """Start a shell, log in when it is ready, and end with ssh's exit code."""
    _check_options(ssh_options, web=web, no_browser=no_browser)
    launched = launching.launch("shells", options.body())["shell"]
    if detach:
        render.say(launched["id"])
        return
    render.note(f"Launched shell (id: {launched['id']}, name: {launched['description']})")
    if web or no_browser:
        _show(launched, no_browser=no_browser)
    else:
        _log_in(launched, ssh_options or [], show_ssh_command)


@app.command("open", context_settings=_SSH)
def open_one(
    task_id: kinds.TaskId,
    ssh_options: SshOptions = None,
    show_ssh_command: ShowCommand = False,
    web: Web = False,
    no_browser: opening.NoBrowser = False,
) -> None:
    """Log in to a shell, and end with ssh's exit code; or open its terminal in your browser."""
    _check_options(ssh_options, web=web, no_browser=no_browser)
    if web or no_browser:
        _show(_usable(task_id), no_browser=no_browser)
    else:
        _log_in(_usable(task_id), ssh_options or [], show_ssh_command)


def _check_options(ssh_options: Sequence[str] | None, *, web: bool, no_browser: bool) -> None:
    """A browser takes no options of ssh. Raises: ValueError."""
    if ssh_options and (web or no_browser):
        raise ValueError(f"{ssh_options[0]!r} is for ssh, but a browser opens the shell: leave it out, or --web.")


def _show(shell: dict[str, Any], *, no_browser: bool) -> None:
    if not shell.get("terminalAddress"):
        raise ValueError(
            f"shell {shell['id']} is reached by ssh only: its key has a passphrase, or its cluster is older."
        )
    opening.await_ready("shell", "shell", shell["id"])
    opening.show(shell["terminalAddress"], no_browser=no_browser)


@app.command("show-ssh-command", context_settings=_SSH)
def show_ssh_command(task_id: kinds.TaskId, ssh_options: SshOptions = None) -> None:
    """Print the ssh command that logs in to a shell. Its key stays in your cache folder."""
    shell = _usable(task_id)
    render.say(shlex.join(_ssh(shell, _kept_key(shell), ssh_options or [])))


@app.command("show_ssh_command", context_settings=_SSH, hidden=True)
def show_ssh_command_of_old(task_id: kinds.TaskId, ssh_options: SshOptions = None) -> None:
    """Print the ssh command that logs in to a shell."""
    show_ssh_command(task_id, ssh_options)


@app.command("ssh-config")
def ssh_config(task_id: kinds.TaskId) -> None:
    """Print an entry for ~/.ssh/config, by which ssh, scp and editors reach a shell by its id."""
    shell = _usable(task_id)
    render.say(f"Host {shell['id']}")
    for name, value in (
        ("User", _user(shell)),
        ("ProxyCommand", _proxy_command()),
        ("IdentityFile", f'"{_kept_key(shell)}"'),
        ("IdentitiesOnly", "yes"),
        ("StrictHostKeyChecking", "no"),
        ("UserKnownHostsFile", os.devnull),
        ("LogLevel", "ERROR"),
    ):
        render.say(f"  {name} {value}")


def _usable(task_id: str) -> dict[str, Any]:
    """A shell that has not ended, and whose key I may have. Raises: ValueError."""
    shell: dict[str, Any] = kinds.fetched("shell", task_id)["shell"]
    uuid.UUID(shell["id"])  # it is a word of a command, and part of a path
    opening.refuse_ended("shell", shell)
    if not shell["privateKey"]:
        raise ValueError(f"shell {task_id} belongs to {shell['username']}: only its owner and administrators log in.")
    return shell


def _log_in(shell: dict[str, Any], ssh_options: Sequence[str], is_shown: bool) -> None:
    opening.await_ready("shell", "shell", shell["id"])
    shell = _usable(shell["id"])  # it knows as whom it runs now
    if is_shown:
        key = _kept_key(shell)
        render.note(shlex.join(_ssh(shell, key, ssh_options)))
        code = _run(_ssh(shell, key, ssh_options))
    else:
        with tempfile.TemporaryDirectory() as folder:
            key = Path(folder) / "key"
            _write_key(key, shell["privateKey"])
            code = _run(_ssh(shell, key, ssh_options))
    render.note(f"To reconnect, run: det shell open {shell['id']}")
    raise typer.Exit(code)


def _run(words: Sequence[str]) -> int:
    try:
        return subprocess.run(words, check=False).returncode
    except FileNotFoundError:
        raise ValueError("there is no program `ssh` on this machine: install OpenSSH's client.") from None


def _ssh(shell: dict[str, Any], key: Path, more: Sequence[str]) -> list[str]:
    """The command that logs in. Its host's key is made when the shell starts: what secures the way is the API's TLS."""
    words = ["ssh", "-o", f"ProxyCommand={_proxy_command()}", "-o", "StrictHostKeyChecking=no"]
    words += ["-o", f"UserKnownHostsFile={os.devnull}", "-o", "LogLevel=ERROR"]
    words += ["-tt"] if sys.stdin.isatty() else []
    return [*words, "-o", "IdentitiesOnly=yes", "-i", str(key), f"{_user(shell)}@{shell['id']}", *more]


def _user(shell: dict[str, Any]) -> str:
    name = str(render.part(shell, "agentUserGroup").get("user") or "root")
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*[$]?", name) is None:  # it is a word of a command
        raise ValueError(f"shell {shell['id']} runs as {name!r}, which ssh takes for no name of a user.")
    return name


def _proxy_command() -> str:
    """For ssh, which has a shell read it and puts the shell's id in the place of %h."""
    words = [sys.executable, "-m", "determined.cli.tunnel", session.master_url(), "%h", "--auth"]
    user = session.wanted_user()
    words += ["-u", user] if user else []
    certificate = os.environ.get("DET_MASTER_CERT_FILE")
    if certificate:
        words += ["--cert-file", certificate if certificate == "noverify" else os.path.abspath(certificate)]
    if name := os.environ.get("DET_MASTER_CERT_NAME"):
        words += ["--cert-name", name]
    return " ".join(word if word == "%h" else shlex.quote(word).replace("%", "%%") for word in words)


def _kept_key(shell: dict[str, Any]) -> Path:
    """The key in a file that stays, readable by its user only."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "determined" / "shell" / shell["id"] / "key"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write_key(path, shell["privateKey"])
    return path


def _write_key(path: Path, text: str) -> None:
    fresh = path.with_name("key.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii", newline="\n") as file:
        file.write(text if text.endswith("\n") else text + "\n")
    os.replace(fresh, path)
