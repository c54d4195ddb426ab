"""`det deploy local …`: the commands by which Determined's users start a cluster, with what their options mean here.

A cluster of ours runs as processes of this machine, so that options about containers mean nothing: they are named, and
left aside. What would change the meaning of what runs is refused.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import deploy, render, server, session
from cli.group import command_of, new_app
from cli.later import not_there

app = deploy.app
local_app = new_app("A cluster on this machine, and agents of others.")
app.add_typer(local_app, name="local")

_TERRAFORM = "`terraform apply` of deploy/terraform/{} makes a cluster there (docs/installation.md)"
not_there(app, _TERRAFORM.format("aws"), "aws")
not_there(app, _TERRAFORM.format("gcp"), "gcp")
not_there(app, "the chart deploy/helm/undeterred installs a cluster on GKE (docs/installation.md)", "gke-experimental")


def command() -> Any:
    """`det deploy`, as a command."""
    return command_of(app)


_READY_WITHIN_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

MasterPort = Annotated[int | None, typer.Option("--master-port", min=1, max=65535, help="Port of the master (8080).")]
ClusterName = Annotated[str | None, typer.Option("--cluster-name", help="A name for people.")]
Password = Annotated[str | None, typer.Option("--initial-user-password", help="Of admin, at the first start.")]
Storage = Annotated[Path | None, typer.Option("--storage-host-path", help="Folder for checkpoints.")]
Gpu = Annotated[bool | None, typer.Option("--gpu/--no-gpu", help="Slots are GPUs, or cores.")]
DeleteDb = Annotated[bool, typer.Option("--delete-db", help="Delete all records; checkpoints stay.")]
Host = Annotated[str | None, typer.Option("--host", help="Listen there for other hosts as well (0.0.0.0).")]
Config = Annotated[Path | None, typer.Option("--master-config-path", help="Has no meaning here.")]
Version = Annotated[str | None, typer.Option("--det-version", help="Has no meaning here.")]
DbPassword = Annotated[str | None, typer.Option("--db-password", help="Has no meaning here.")]
NoAutorestart = Annotated[bool, typer.Option("--no-autorestart", help="Has no meaning here.")]
Enterprise = Annotated[bool, typer.Option("--enterprise-edition", help="Has no meaning here.")]
Prefix = Annotated[str | None, typer.Option("--image-repo-prefix", help="Has no meaning here.")]
MasterName = Annotated[str | None, typer.Option("--master-name", help="Has no meaning here.")]

#: Why an option has no meaning.
_ASIDE = {
    "--master-config-path": "settings are variables UNDETERRED_…, or a file: see the reference of settings",
    "--det-version": "the version is that of the installed package",
    "--db-password": "the records are files of this user",
    "--no-autorestart": "processes are started by this command only",
    "--enterprise-edition": "there is one edition",
    "--image-repo-prefix": "the master is no container",
    "--master-name": "a data folder has one master: UNDETERRED_HOME names another",
}


@local_app.command("cluster-up")
def cluster_up(
    agents: Annotated[int, typer.Option("--agents", min=0, help="0 or 1: this machine is one agent.")] = 1,
    master_port: MasterPort = None,
    slots: deploy.Slots = None,
    launcher: deploy.LauncherOption = None,
    host: Host = None,
    tls: deploy.Tls = None,
    cluster_name: ClusterName = None,
    initial_user_password: Password = None,
    storage_host_path: Storage = None,
    gpu: Gpu = None,
    delete_db: DeleteDb = False,
    master_config_path: Config = None,
    det_version: Version = None,
    db_password: DbPassword = None,
    no_autorestart: NoAutorestart = False,
    enterprise_edition: Enterprise = False,
) -> None:
    """Start the cluster on this machine, or those of its processes that are down."""
    if agents > 1:
        raise ValueError(
            f"--agents: {agents}: expected 0 or 1: this machine is one agent; --slots says how many slots it has."
        )
    _note({
        "--master-config-path": master_config_path, "--det-version": det_version, "--db-password": db_password,
        "--no-autorestart": no_autorestart, "--enterprise-edition": enterprise_edition,
    })  # fmt: skip
    _start(
        {
            "--master-port": master_port,
            "--slots": slots if agents else 0,
            "--slot-type": _slot_type(gpu),
            "--launcher": launcher,
            "--host": host,
            **deploy.tls_words(tls),
            "--cluster-name": cluster_name,
            "--initial-user-password": initial_user_password,
            "--storage-path": storage_host_path,
        },
        delete_db=delete_db,
    )


@local_app.command("cluster-down")
def cluster_down(cluster_name: ClusterName = None, delete_db: DeleteDb = False) -> None:
    """Stop the cluster on this machine; trials resume from their checkpoints at the next start."""
    deploy.run_embedded("down", {"--delete-records": delete_db}, is_last=True)


@local_app.command("master-up")
def master_up(
    master_port: MasterPort = None,
    host: Annotated[str, typer.Option("--host", help="Where agents of other hosts reach it.")] = "0.0.0.0",
    tls: deploy.Tls = None,
    cluster_name: ClusterName = None,
    initial_user_password: Password = None,
    storage_host_path: Storage = None,
    delete_db: DeleteDb = False,
    master_config_path: Config = None,
    master_name: MasterName = None,
    det_version: Version = None,
    db_password: DbPassword = None,
    no_autorestart: NoAutorestart = False,
    enterprise_edition: Enterprise = False,
    image_repo_prefix: Prefix = None,
    gpu: Gpu = None,
) -> None:
    """Start the cluster without slots of this machine: agents join it by `agent-up`."""
    _note({
        "--master-name": master_name, "--image-repo-prefix": image_repo_prefix,
        "--master-config-path": master_config_path, "--det-version": det_version, "--db-password": db_password,
        "--no-autorestart": no_autorestart, "--enterprise-edition": enterprise_edition,
    })  # fmt: skip
    _start(
        {
            "--master-port": master_port,
            "--slots": 0,
            "--host": host,
            **deploy.tls_words(tls),
            "--cluster-name": cluster_name,
            "--initial-user-password": initial_user_password,
            "--storage-path": storage_host_path,
        },
        delete_db=delete_db,
    )


@local_app.command("master-down")
def master_down(master_name: MasterName = None, cluster_name: ClusterName = None, delete_db: DeleteDb = False) -> None:
    """Stop the cluster on this machine."""
    cluster_down(cluster_name, delete_db)


@local_app.command("agent-up")
def agent_up(
    master_host: Annotated[str, typer.Argument(metavar="MASTER_HOST", help="Of the cluster.", show_default=False)],
    master_port: Annotated[int, typer.Option("--master-port", min=1, max=65535, help="Of the master.")] = 8080,
    agent_name: Annotated[str | None, typer.Option("--agent-name", help="Its id (det-agent-<host>).")] = None,
    agent_resource_pool: Annotated[str, typer.Option("--agent-resource-pool", help="The default one if empty.")] = "",
    join_token: Annotated[
        str | None, typer.Option("--join-token", help="Needed unless an admin is logged in. Or UNDETERRED_JOIN_TOKEN.")
    ] = None,
    gpu: Gpu = None,
    agent_config_path: Annotated[Path | None, typer.Option("--agent-config-path", help="Has no meaning here.")] = None,
    det_version: Version = None,
    no_autorestart: NoAutorestart = False,
    cluster_name: ClusterName = None,
    image_repo_prefix: Prefix = None,
    enterprise_edition: Enterprise = False,
) -> None:
    """Make this host an agent of a cluster, in the background; its containers outlive it.

    A token to join is made in the name of the admin who is logged in there, unless one is given.
    """
    server.require("det deploy local agent-up")
    _note({
        "--agent-config-path": agent_config_path, "--det-version": det_version, "--no-autorestart": no_autorestart,
        "--image-repo-prefix": image_repo_prefix, "--enterprise-edition": enterprise_edition,
    })  # fmt: skip
    name = _name(agent_name or f"det-agent-{socket.gethostname()}")
    if pid := _pid_of(name):
        raise ValueError(
            f"agent '{name}' runs already (pid {pid}); `det deploy local agent-down --agent-name {name}` stops it."
        )
    master = f"http://{master_host}:{master_port}" if "://" not in master_host else master_host
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = dict(os.environ)
    if token := join_token or os.environ.get("UNDETERRED_JOIN_TOKEN") or _join_token(master, agent_resource_pool, name):
        environment["UNDETERRED_JOIN_TOKEN"] = token  # not in the command's line, which all users of the host see
    words = ["--master", master, "--name", name, "--slot-type", _slot_type(gpu) or "auto", "--folder", str(folder)]
    log = folder / "agent.log"
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            server.python("workers.enrolled_agent", words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    (folder / "pid").write_text(str(process.pid))
    _until_ready(process, log, start)
    render.say(f"Agent '{name}' of {master} runs; its log: {log}")


@local_app.command("agent-down")
def agent_down(
    agent_name: Annotated[str | None, typer.Option("--agent-name", help="Its id (det-agent-<host>).")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that `agent-up` started on this host.")] = False,
    cluster_name: ClusterName = None,
) -> None:
    """Stop an agent of this host. What it runs goes on, and is taken up by the next `agent-up`."""
    if all_ and agent_name is not None:
        raise typer.BadParameter("expected either --agent-name or --all.")
    names = _running() if all_ else [_name(agent_name or f"det-agent-{socket.gethostname()}")]
    for name in names:
        pid = _pid_of(name)
        if pid is None:
            raise ValueError(f"agent '{name}' does not run here; these do: {', '.join(_running()) or 'none'}.")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20.0
        while _pid_of(name) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        render.say(f"Stopped agent '{name}'")


@local_app.command("logs")
def logs(
    part: Annotated[
        str, typer.Argument(metavar="[PART]", help="temporal, api, orchestrator, gateway or agent.", show_default=True)
    ] = "api",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for more lines.")] = True,
    tail: Annotated[int, typer.Option("--tail", min=1, help="Print only this many lines from the end.")] = 100,
    cluster_name: ClusterName = None,
) -> None:
    """Show the log of one of the cluster's processes on this machine: the master's, if none is named."""
    deploy.logs(part, follow, tail)


local_app.command("status")(deploy.status)
local_app.command("reset-password")(deploy.reset_password)


def _start(options: Mapping[str, object], *, delete_db: bool) -> None:
    if delete_db:
        deploy.run_embedded("down", {"--delete-records": True})
    deploy.run_embedded("up", options, is_last=True)


def _slot_type(gpu: bool | None) -> str | None:
    return None if gpu is None else ("cuda" if gpu else "cpu")


def _note(options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value not in (None, False):
            render.note(f"{option} is left aside: {_ASIDE.get(option, 'its settings are variables UNDETERRED_…')}")


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"--agent-name: {name!r}: expected letters, digits, '_', '.' and '-', 100 at most.")
    return name


def _folder(name: str) -> Path:
    return deploy.home() / "agents" / name


def _running() -> list[str]:
    folder = deploy.home() / "agents"
    return sorted(each.name for each in folder.iterdir() if _pid_of(each.name)) if folder.is_dir() else []


def _pid_of(name: str) -> int | None:
    """Of the agent that `agent-up` started; None if it runs no more, or another process has its number."""
    try:
        pid = int((_folder(name) / "pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if b"workers.enrolled_agent" in words and name.encode() in words else None


def _join_token(master: str, pool: str, name: str) -> str:
    """A token for one host, which an hour later is void; empty, if this host has joined before."""
    try:
        if json.loads((_folder(name) / "agent.json").read_text())["is_joined"]:
            return ""
    except FileNotFoundError:
        pass
    body = {"pool": pool, "description": f"for agent {name}", "lifespan": "1h", "uses": 1}
    session.configure(master, session.wanted_user())
    return session.get().post("/api/v1/undeterred/agent-join-tokens", body).json()["token"]


def _until_ready(process: subprocess.Popen[bytes], log: Path, start: int) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline:
        text = log.read_bytes()[start:].decode("utf-8", "replace")
        if "agent is ready" in text:
            return
        if process.poll() is not None:
            raise ValueError(f"the agent ended right after its start; the end of {log}: {text.strip()[-1000:]}")
        time.sleep(0.1)
    render.note(f"the agent is not ready after {_READY_WITHIN_S:g} s, and goes on trying: see {log}")
