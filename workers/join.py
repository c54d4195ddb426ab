"""An agent on this host, of a cluster that runs elsewhere: `python -m workers.join`; `det agent run` calls it.

At its first start it enrolls with a join token. The credential that it gets is kept in its folder, and later starts
need no token.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from activities.launchers.devices import NoSuchDevices, devices_of_host
from activities.launchers.environments import NoSuchPython, choose_trial_python
from api.settings import values_in
from workers import agent
from workers.agent_api import ApiClient, Refused, message_of
from workers.connect import run_until_signal
from workers.embedded import home
from workers.settings import AgentSettings, host_limits

#: A master that does not answer for so long, in seconds, is most likely a wrong address.
_PATIENCE_S = 30.0
_SHORT_S = 5.0


class CantJoin(Exception):
    """This host can't become an agent. The message says why and what to do."""


class Membership(BaseModel):
    """What the agent's folder remembers, in `agent.json` (0600: it holds the credential)."""

    model_config = ConfigDict(extra="forbid")

    format: int = 1
    master: str
    agent_id: str
    credential: str
    is_joined: bool = False
    pool: str = ""
    temporal_address: str = ""
    temporal_namespace: str = "default"


def settings_of(options: argparse.Namespace) -> AgentSettings:
    """Join, or find that this host did before; returns what the agent needs. Raises: CantJoin.

    What has no option is taken from the environment, `UNDETERRED_<NAME>`.
    """
    master = _url(options.master)
    agent_id = options.name or _name_of_host()
    folder = Path(options.folder) if options.folder else home() / "agents" / agent_id
    try:
        devices = devices_of_host(options.slot_type, options.slots)
    except NoSuchDevices as error:
        raise CantJoin(str(error)) from None
    try:
        trial_python = choose_trial_python(options.trial_python or os.environ.get("UNDETERRED_TRIAL_PYTHON"))
    except NoSuchPython as error:
        raise CantJoin(str(error)) from None
    labels = dict(_label(text) for text in options.label)
    mine = _membership(folder, master, agent_id)
    if not mine.is_joined:
        _join(mine, options.join_token or os.environ.get("UNDETERRED_JOIN_TOKEN", ""))
        _save(folder, mine)
    values: dict[str, Any] = {
        "agent_id": agent_id,
        "pool": mine.pool,
        "address": options.address or "",
        "slots": len(devices),
        "devices": devices,
        "temporal_address": mine.temporal_address,
        "temporal_namespace": mine.temporal_namespace,
        "is_behind_gateway": True,
        "api_url": master,
        "agent_token": SecretStr(mine.credential),
        "labels": labels,
        "folder": str(folder),
        "launcher": options.launcher,
        "memory_mib": options.memory_mib,
        "trial_python": trial_python,
        **host_limits(),
    }
    given = {name: value for name, value in values.items() if value is not None}
    try:
        settings = AgentSettings(**(values_in(os.environ, AgentSettings) | given))
    except ValidationError as error:
        raise CantJoin("; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())) from None
    asyncio.run(_refresh(folder, mine, settings))
    return settings.model_copy(update={"temporal_address": mine.temporal_address})


def _membership(folder: Path, master: str, agent_id: str) -> Membership:
    path = folder / "agent.json"
    try:
        known = Membership.model_validate_json(path.read_text())
    except FileNotFoundError:
        fresh = Membership(master=master, agent_id=agent_id, credential=f"agent-{secrets.token_hex(32)}")
        _save(folder, fresh)  # before it is sent: a join whose answer is lost is asked for again, with the same
        return fresh
    except (ValidationError, OSError) as error:
        raise CantJoin(f"{path} can't be read ({error}): name another --folder, or remove it to join anew") from None
    if (known.agent_id, known.master) == (agent_id, master):
        return known
    if not known.is_joined:  # nobody knows of it
        return known.model_copy(update={"agent_id": agent_id, "master": master})
    if known.agent_id != agent_id:
        raise CantJoin(f"{folder} is of agent {known.agent_id!r}: name another --folder for {agent_id!r}")
    return known.model_copy(update={"master": master})  # it moved; if it is another, it will not know us


def _join(mine: Membership, token: str) -> None:
    if not token:
        raise CantJoin(
            "this host has not joined yet: an administrator makes a token by `det agent join-token create`, and it is"
            " given as --join-token or in UNDETERRED_JOIN_TOKEN"
        )
    body = {"token": token, "agentId": mine.agent_id, "credential": mine.credential}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            response = httpx.post(f"{mine.master}/api/v1/undeterred/agents/join", json=body, timeout=10)
            if response.status_code < 500:
                break
            problem = message_of(response)
        except httpx.HTTPError as error:
            problem = str(error) or type(error).__name__
        if time.monotonic() > deadline:
            raise CantJoin(f"the API at {mine.master} does not answer: {problem}")
        time.sleep(0.5)
    if response.status_code != 200:
        raise CantJoin(message_of(response))
    _note(mine, response.json())
    mine.is_joined = True


async def _refresh(folder: Path, mine: Membership, settings: AgentSettings) -> None:
    """Ask where the gateway is today; an API that is away now knows no better than we do. Raises: CantJoin."""
    api = ApiClient(settings)
    try:
        async with asyncio.timeout(_SHORT_S):
            _note(mine, await api.hello())
    except (httpx.HTTPError, TimeoutError):
        return
    except Refused as error:
        raise CantJoin(f"{error}. To join anew, remove {folder / 'agent.json'}") from None
    finally:
        await api.close()
    _save(folder, mine)


def _note(mine: Membership, welcome: Mapping[str, str]) -> None:
    address = welcome["temporalAddress"]
    if address.startswith(":"):
        address = f"{urlsplit(mine.master).hostname}{address}"
    mine.pool, mine.temporal_address, mine.temporal_namespace = welcome["pool"], address, welcome["temporalNamespace"]


def _save(folder: Path, mine: Membership) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = folder / "agent.json.tmp"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(mine.model_dump_json(indent=2))
        os.replace(partial, folder / "agent.json")
    except OSError as error:
        raise CantJoin(f"folder: {folder} can't be written: {error.strerror}: name another --folder") from None


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right:
        raise CantJoin(f"master: {text!r}: expected an address such as http://host:8080")
    return url.rstrip("/")


def _name_of_host() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).strip("-._") or "host"


def _label(text: str) -> tuple[str, str]:
    key, is_there, value = text.partition("=")
    if not key or not is_there:
        raise CantJoin(f"label: {text!r}: expected key=value")
    return key, value


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the agent until it is stopped."""
    parser = argparse.ArgumentParser(prog="det agent run", description="An agent on this host.")
    parser.add_argument("--master", default=os.environ.get("DET_MASTER") or "http://localhost:8080")
    parser.add_argument("--join-token")
    parser.add_argument("--name")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--slot-type", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--launcher", choices=["process", "docker"], default="process")
    parser.add_argument("--address")
    parser.add_argument("--folder")
    parser.add_argument("--memory-mib", type=int)
    parser.add_argument("--trial-python")
    try:
        settings = settings_of(parser.parse_args(arguments))
    except CantJoin as error:
        print(str(error), file=sys.stderr, flush=True)  # noqa: T201
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    run_until_signal(agent.main, settings)


if __name__ == "__main__":
    main()
