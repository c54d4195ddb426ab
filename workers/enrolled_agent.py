"""An agent on this host, of a cluster that runs elsewhere: `det agent run` calls `python -m workers.enrolled_agent`.

At its first start it enrolls with a join token. The credential that it gets is kept in its folder, and later starts
need no token.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr, ValidationError

from activities.enrollment import CantJoin, Membership, authority, enroll, membership, note, save
from activities.launchers.devices import NoSuchDevices, devices_of_host
from activities.launchers.environments import NoSuchPython, choose_trial_python
from api.pem import CantUse, trusting
from workers import agent
from workers.agent_api import ApiClient, Refused
from workers.configuration import VARIABLE, BadConfiguration, values_of
from workers.connect import run_until_signal
from workers.embedded import home
from workers.settings import AgentSettings, host_limits

_SHORT_S = 5.0


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
    mine = membership(folder, master, agent_id)
    try:
        configured = values_of(AgentSettings, os.environ.get(VARIABLE), os.environ).found
    except BadConfiguration as error:
        raise CantJoin("; ".join(error.problems)) from None
    own = authority(folder, master, options.trust or "")
    ca = configured.get("api_ca_file") or (str(own) if own else None)
    name = configured.get("api_server_name")
    try:
        trusted = trusting("api_ca_file", ca, name) if ca or name else None
    except CantUse as error:
        raise CantJoin(str(error)) from None
    enroll(folder, mine, options.join_token or os.environ.get("UNDETERRED_JOIN_TOKEN", ""), trusted)
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
        "api_ca_file": ca,
        **host_limits(),
    }
    given = {name: value for name, value in values.items() if value is not None}
    try:
        settings = AgentSettings(**(_of_gateway(mine, own, configured) | configured | given))
    except ValidationError as error:
        raise CantJoin("; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())) from None
    asyncio.run(_refresh(folder, mine, settings))
    return settings.model_copy(update={"temporal_address": mine.temporal_address})


def _of_gateway(mine: Membership, own: Path | None, configured: Mapping[str, Any]) -> dict[str, Any]:
    """How the gateway is reached, where nothing is configured about that: by TLS if the cluster says so."""
    if not mine.temporal_tls or any(name in configured for name in ("temporal_tls", "temporal_ca_file")):
        return {}
    return {"temporal_tls": True, **({"temporal_ca_file": str(own)} if own else {})}


async def _refresh(folder: Path, mine: Membership, settings: AgentSettings) -> None:
    """Ask where the gateway is today; an API that is away now knows no better than we do. Raises: CantJoin."""
    api = ApiClient(settings)
    try:
        async with asyncio.timeout(_SHORT_S):
            note(mine, await api.hello())
    except (httpx.HTTPError, TimeoutError):
        return
    except Refused as error:
        raise CantJoin(f"{error}. To join anew, remove {folder / 'agent.json'}") from None
    finally:
        await api.close()
    save(folder, mine)


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
    parser.add_argument("--trust")
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
