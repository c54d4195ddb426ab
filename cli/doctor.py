"""`det doctor`: checks this client, the cluster and this machine; one line each, with what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import typer

from cli import render, server, session
from cli.deploy import PARTS, home
from cli.group import command_of, new_app
from cli.options import Json
from cli.progress import progress
from determined import errors

app = new_app("Checks of this client, the cluster and this machine.")

Status = Literal["ok", "note", "warning", "problem"]

_LITTLE_DISK, _NO_DISK = 5_000_000_000, 500_000_000
_SKEW_WARNING_S, _SKEW_PROBLEM_S = 3.0, 60.0
#: What the access modes of a cluster mean to its users.
_ACCESS = {
    "basic": "all users see and use all workspaces; owners and administrators may change them",
    "rbac": "users without a role in a workspace don't see it",
}
_COLORS: Mapping[Status, str] = {"ok": "32", "note": "2", "warning": "33", "problem": "31"}


@dataclass(frozen=True)
class Finding:
    """What one check came to; `fix` says what to do if it is not well."""

    name: str
    status: Status
    message: str
    fix: str = ""


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("doctor")
def doctor(as_json: Json = False) -> None:
    """Check client, cluster and machine, and say what to do. Exit code 1 if there is a problem; warnings are none."""
    with progress("checking"):
        found = list(findings())
    if as_json:
        render.json_out([asdict(finding) for finding in found])
    else:
        _show(found)
    raise typer.Exit(1 if any(finding.status == "problem" for finding in found) else 0)


def findings() -> Iterator[Finding]:
    """All checks, one after the other. Each tells what it found and raises nothing of its own."""
    yield _client()
    cluster = _read_json(home() / "cluster.json")
    if cluster is not None:
        yield from _machine(home(), cluster)
    elif _is_local(session.master_url()):
        what = f"there is none in {home()}"
        yield Finding("embedded", "note", what, "`det up` starts a cluster on this machine, if you want one")
    yield from _api()
    yield _docker(is_needed=cluster is not None and cluster.get("launcher") == "docker")


# -- this machine --------------------------------------------------------------------------------------------------


def _client() -> Finding:
    from determined import __version__

    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("client", "ok", f"det {__version__}, Python {version}, talks to {session.master_url()}")


def _machine(folder: Path, cluster: Mapping[str, Any]) -> Iterator[Finding]:
    """The cluster of this machine, as far as its folder and its processes tell."""
    own = {"temporal": cluster.get("temporal_port"), "gateway": cluster.get("gateway_port")}
    pids = {part: _pid(folder, part) for part in PARTS if own.get(part, True)}
    gone = [part for part, pid in pids.items() if pid is None]
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("embedded", "problem", f"{folder} can't be written", "make it writable for you")
    if not gone:
        yield Finding("embedded", "ok", f"{folder}: {', '.join(pids)} run")
    elif len(gone) == len(pids):
        yield Finding("embedded", "problem", f"nothing of the cluster in {folder} runs", "start it with `det up`")
    else:
        fix = f"start it again with `det up`; `det logs {gone[0]}` may tell why it ended"
        yield Finding("embedded", "problem", f"{', '.join(gone)} of the cluster in {folder} does not run", fix)
    for part, key in (("api", "port"), ("temporal", "temporal_port"), ("gateway", "gateway_port")):
        if part in pids and cluster.get(key):
            yield _port(part, int(cluster[key]), is_running=pids[part] is not None)
    yield _disk(folder)
    yield from _inside(is_running=not gone)


def _pid(folder: Path, part: str) -> int | None:
    """Of a process of the cluster, if it runs; a zombie or a later process with its number does not count."""
    saved = _read_json(folder / "run" / f"{part}.pid") or {}
    pid = int(saved.get("pid") or 0)
    if not pid or sys.platform == "win32":  # no cluster runs there, and os.kill() would be more than a question
        return None
    try:
        if not Path("/proc/self/stat").exists():  # no Linux: that there is such a process must do
            os.kill(pid, 0)
            return pid
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return pid if fields[0] != "Z" and fields[19] == saved.get("started") else None


def _port(part: str, port: int, *, is_running: bool) -> Finding:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        is_taken = probe.connect_ex(("127.0.0.1", port)) == 0
    variable = "UNDETERRED_PORT" if part == "api" else f"UNDETERRED_{part.upper()}_PORT"
    if is_taken and not is_running:
        what = f"{port}, which {part} needs, is in use by something else"
        return Finding("port", "problem", what, f"end that, or choose another with {variable} for `det up`")
    if is_running and not is_taken:
        return Finding("port", "problem", f"{part} runs, but nothing listens on {port}", f"see `det logs {part}`")
    return Finding("port", "ok", f"{port} {'is served by' if is_taken else 'is free for'} {part}")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    shown = f"{render.size(free)} are free where {folder} is"
    fix = "make room: `det experiment gc` shows which checkpoints can go"
    if free < _NO_DISK:
        return Finding("disk", "problem", f"only {shown}", fix)
    return Finding("disk", "warning", f"only {shown}", fix) if free < _LITTLE_DISK else Finding("disk", "ok", shown)


def _inside(*, is_running: bool) -> Iterator[Finding]:
    """What a process with the server's code finds: Temporal, database, storage."""
    if absent := server.missing():
        what = f"the cluster can't be looked into from this Python: {absent} is not installed"
        yield Finding("inside", "warning", what, f"run `det doctor` with the cluster's Python, or {server.INSTALL}")
        return
    try:
        found: list[dict[str, Any]] = json.loads(server.run("workers.check", timeout_s=30))
    except (subprocess.TimeoutExpired, ValueError) as error:
        last = "it took over 30 s" if isinstance(error, subprocess.TimeoutExpired) else "it failed"
        fix = "run `python -m workers.check` with this Python to see why"
        yield Finding("inside", "problem", f"the cluster could not be looked into: {last}", fix)
        return
    for one in found:
        finding = Finding(**one)
        if is_running or finding.name != "temporal":  # that it does not run was said already
            yield finding


# -- the cluster ---------------------------------------------------------------------------------------------------


def _api() -> Iterator[Finding]:
    """What the API tells, wherever it is."""
    import time

    from determined.common.api import Cert, Session

    probe = Session(session.master_url(), cert=Cert.of(session.master_url()), max_tries=1)
    try:
        began = time.time()
        answer = probe.get("/api/v1/master", timeout_s=10.0)
        middle = (began + time.time()) / 2
        info = answer.json()
        yield Finding("api", "ok", f"answers at {session.master_url()} in {1000 * 2 * (middle - began):.0f} ms")
    except errors.MasterNotFoundException as error:
        fix = "start the cluster (`det up` on this machine), or set its address: DET_MASTER or `det -m`"
        yield Finding("api", "problem", error.message.partition(";")[0], fix)
        return
    except errors.APIException as error:
        yield Finding("api", "problem", f"{session.master_url()} is no cluster: {error.message}", "check DET_MASTER")
        return
    finally:
        probe.close()
    yield _versions(session.release_of(info))
    if access := info.get("undeterredAccess"):
        yield Finding("access", "ok", f"{access}: {_ACCESS.get(access, 'of another release')}")
    if date := answer.headers.get("date"):
        yield _clock(date, middle)
    yield from _as_user()


def _versions(cluster: str) -> Finding:
    from determined import __version__

    if cluster == __version__:
        return Finding("versions", "ok", f"client and cluster are both {cluster}")
    what = f"the client is {__version__} and the cluster {cluster}"
    return Finding("versions", "warning", what, "install the client of the cluster's version")


def _clock(date: str, local: float) -> Finding:
    """By the second in which the answer was made; so a difference of less than a second can't be seen."""
    from email.utils import parsedate_to_datetime

    off = local - (parsedate_to_datetime(date).timestamp() + 0.5)
    if abs(off) <= _SKEW_WARNING_S:
        return Finding("clock", "ok", "this machine's and the cluster's agree")
    what = f"this machine's is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the cluster's"
    status: Status = "problem" if abs(off) > _SKEW_PROBLEM_S else "warning"
    return Finding("clock", status, what, "set both by NTP: `timedatectl set-ntp true`")


def _as_user() -> Iterator[Finding]:
    try:
        user = session.fetch("me")["user"]
    except (errors.UnauthenticatedException, errors.ForbiddenException) as error:
        yield Finding("login", "problem", error.message.partition(";")[0], "log in with `det user login`")
        return
    yield Finding("login", "ok", f"as {user['username']}{', an administrator' if user.get('admin') else ''}")
    try:
        health = session.get().get("/health", max_tries=1).json()
        yield Finding("records", "ok", f"the API reaches its database ({health.get('database')})")
        agents = session.fetch_all("agents", "agents")
    except errors.APIException as error:
        yield Finding("records", "problem", f"the API can't work: {error.message}", "look into the database's own log")
        return
    yield from _agents(agents)


def _agents(agents: list[dict[str, Any]]) -> Iterator[Finding]:
    from determined import __version__

    if not agents:
        fix = "start one: `det up` does on this machine"
        yield Finding("agents", "problem", "none is connected, so no trial can run", fix)
        return
    usable = 0
    for agent in agents:
        name = agent["id"]
        by_number: dict[str, dict[str, Any]] = agent.get("slots") or {}
        slots = list(by_number.values())
        disabled = [slot["id"] for slot in slots if not slot.get("enabled", True)]
        if not agent.get("enabled", True):
            yield Finding("agents", "warning", f"{name} is disabled", f"`det agent enable {name}`")
            continue
        if disabled:
            fix = f"`det slot enable {name} {disabled[0]}`"
            yield Finding("agents", "warning", f"{name}: {len(disabled)} of {len(slots)} slots are disabled", fix)
        if agent.get("version") not in (None, "", __version__):
            what = f"{name} has version {agent['version']}, this client {__version__}"
            yield Finding("agents", "warning", what, "install the same version everywhere")
        usable += len(slots) - len(disabled)
    if usable:
        yield Finding("agents", "ok", f"{len(agents)} connected, {usable} slots can be used")
    else:
        fix = "enable an agent or a slot: `det agent list` shows them"
        yield Finding("agents", "problem", "no slot is enabled, so no trial can run", fix)


# -- Docker --------------------------------------------------------------------------------------------------------


def _docker(*, is_needed: bool) -> Finding:
    reason = _docker_silence()
    if reason is None:
        return Finding("docker", "ok", "the engine answers")
    if not is_needed:
        return Finding("docker", "note", f"{reason}; trials run as plain processes, so it is not needed")
    return Finding("docker", "problem", reason, "start the engine, or use `det up --launcher process`")


def _docker_silence() -> str | None:
    """Why no Docker engine answers on this machine; None if one does."""
    address = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    if address.scheme not in ("unix", "tcp", "http") or (address.scheme == "unix" and not hasattr(socket, "AF_UNIX")):
        return f"{address.geturl()} can't be asked from this system"
    try:
        if address.scheme == "unix":
            probe = socket.socket(socket.AF_UNIX)
            target: Any = address.path
        else:
            probe, target = socket.socket(), (address.hostname or "", address.port or 2375)
        with probe:
            probe.settimeout(3.0)
            probe.connect(target)
            probe.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            answer = probe.recv(64)
    except OSError as error:
        return f"no Docker engine at {address.geturl()}: {error.strerror or error}"
    return None if b" 200 " in answer else f"what is at {address.geturl()} is no Docker engine"


# -- output --------------------------------------------------------------------------------------------------------


def _show(found: list[Finding]) -> None:
    width = max(len(finding.name) for finding in found)
    for finding in found:
        status = f"{finding.status:7}"
        if render.is_interactive():
            status = f"\x1b[{_COLORS[finding.status]}m{status}\x1b[0m"
        fix = f"; to do: {finding.fix}" if finding.fix else ""
        render.say(f"{status}  {finding.name:{width}}  {finding.message}{fix}")
    problems = sum(finding.status == "problem" for finding in found)
    warnings = sum(finding.status == "warning" for finding in found)
    render.say(f"{problems} problem(s), {warnings} warning(s)")


def _is_local(url: str) -> bool:
    return (urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None  # pyright: ignore[reportUnknownVariableType]
