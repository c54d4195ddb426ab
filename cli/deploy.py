"""`det up`, `down`, `status`, `logs` and `det deploy local …`: a cluster on this machine.

They run `python -m workers.embedded` as a process of its own: this package knows nothing of the server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import render, server
from cli.group import command_of, new_app

app = new_app("A cluster on this machine.")

PARTS = ("temporal", "api", "orchestrator", "gateway", "agent")

Port = Annotated[int | None, typer.Option("--master-port", min=1, max=65535, help="Port of the API (8080).")]
Slots = Annotated[int | None, typer.Option("--slots", min=0, help="Slots of this machine (its GPUs, else its cores).")]
LauncherOption = Annotated[
    str | None, typer.Option("--launcher", help="How trials run: process (the default) or docker.")
]
Host = Annotated[str | None, typer.Option("--host", help="Listen there for other hosts as well (0.0.0.0).")]
Tls = Annotated[
    bool | None, typer.Option("--tls/--no-tls", help="Serve by TLS, with a certificate of the cluster's own.")
]
TlsName = Annotated[
    list[str] | None, typer.Option("--tls-name", help="A further name of this machine, for that certificate.")
]
TlsCertFile = Annotated[str | None, typer.Option("--tls-cert-file", help="Serve by TLS, with this certificate (PEM).")]
TlsKeyFile = Annotated[str | None, typer.Option("--tls-key-file", help="That certificate's private key (PEM).")]
TlsCaFile = Annotated[
    str | None, typer.Option("--tls-ca-file", help="The authority behind it (the last one in its file).")
]
ClusterName = Annotated[str | None, typer.Option("--cluster-name", help="A name for people.")]
Password = Annotated[str | None, typer.Option("--initial-user-password", help="Of admin, at the first start.")]
Part = Annotated[
    str, typer.Argument(metavar="PART", help="temporal, api, orchestrator, gateway or agent.", show_default=False)
]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("up")
def up(
    master_port: Port = None,
    slots: Slots = None,
    launcher: LauncherOption = None,
    host: Host = None,
    tls: Tls = None,
    tls_name: TlsName = None,
    tls_cert_file: TlsCertFile = None,
    tls_key_file: TlsKeyFile = None,
    tls_ca_file: TlsCaFile = None,
    cluster_name: ClusterName = None,
    initial_user_password: Password = None,
) -> None:
    """Start the cluster on this machine, or those of its processes that are down."""
    words = {
        "--master-port": master_port,
        "--slots": slots,
        "--launcher": launcher,
        "--host": host,
        **tls_words(tls),
        "--tls-name": tls_name,
        "--tls-cert-file": tls_cert_file,
        "--tls-key-file": tls_key_file,
        "--tls-ca-file": tls_ca_file,
        "--cluster-name": cluster_name,
        "--initial-user-password": initial_user_password,
    }
    run_embedded("up", words, is_last=True)


def tls_words(tls: bool | None) -> dict[str, object]:
    """The option by which a cluster is to serve by TLS, or no more; none if nothing was said of it."""
    return {} if tls is None else {"--tls" if tls else "--no-tls": True}


@app.command("down")
def down() -> None:
    """Stop the cluster on this machine; trials resume from their checkpoints at the next start."""
    run_embedded("down", {}, is_last=True)


@app.command("status")
def status() -> None:
    """Show which processes of the cluster on this machine run."""
    run_embedded("status", {}, is_last=True)


@app.command("logs")
def logs(
    part: Part,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more lines.")] = False,
    tail: Annotated[int, typer.Option("--tail", min=1, help="Print only this many lines from the end.")] = 100,
) -> None:
    """Show the log of one of the cluster's processes on this machine."""
    if part not in PARTS:
        raise ValueError(f"part {part!r}: expected one of {', '.join(PARTS)}")
    path = home() / "logs" / f"{part}.log"
    if not path.is_file():
        raise ValueError(f"there is no log at {path}; start the cluster with `det up`, or set UNDETERRED_HOME.")
    with path.open("rb") as file:
        sys.stdout.buffer.write(_last_lines(file.read(), tail))
        sys.stdout.flush()
        while follow:
            data = file.read(1 << 16)
            if not data:
                time.sleep(0.2)
            sys.stdout.buffer.write(data)
            sys.stdout.flush()


@app.command("reset-password")
def reset_password(
    username: Annotated[str, typer.Argument(metavar="[USERNAME]", help="Whose.", show_default=True)] = "admin",
) -> None:
    """Give a user of the cluster on this machine a new password, which is shown once; all sessions of this user end."""
    raise typer.Exit(_module("det deploy reset-password", "workers.password", [username]))


def home() -> Path:
    """The cluster's data folder, as `workers.embedded` has it."""
    configured = os.environ.get("UNDETERRED_HOME")
    if configured:
        return Path(configured).expanduser().resolve()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "undeterred"


def run_embedded(verb: str, options: Mapping[str, object], *, is_last: bool = False) -> None:
    """Run it in our terminal; Ctrl-C reaches it too, so that it can clean up.

    Args:
        verb: `up`, `down` or `status`.
        options: Those that are None or False are left out; True is an option without a value, a list a repeated one.
        is_last: Its exit code is ours; otherwise only one that says that it failed.
    """
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, list):
            words += [word for each in value for word in (name, str(each))]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif value is not None and value is not False:
            words += [name] if value is True else [name, str(value)]
    code = _module(f"det {verb}", "workers.embedded", [verb, *words])
    if is_last or code:
        raise typer.Exit(code)


def _module(command: str, name: str, words: Sequence[str]) -> int:
    server.require(command)
    process = subprocess.Popen(
        server.python(name, words),
        preexec_fn=_end_with_us if sys.platform == "linux" else None,
    )

    def note(*_: object) -> None:
        render.note("interrupted; waiting for it to end")

    # no KeyboardInterrupt: one that comes when the wait is just over would take the exit code with it
    before = signal.signal(signal.SIGINT, note)
    try:
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code  # ended by a signal: as a shell says it


def _end_with_us() -> None:
    """A kill of this process ends the one that it runs too, which would keep the lock of the data folder."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _last_lines(data: bytes, count: int) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[-count:])
