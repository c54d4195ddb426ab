"""Enrollment of this host: with a join token it registers a credential of its own, which its folder keeps."""

from __future__ import annotations

import os
import secrets
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

#: A master that does not answer for so long, in seconds, is most likely a wrong address.
_PATIENCE_S = 30.0


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


def membership(folder: Path, master: str, agent_id: str) -> Membership:
    """What the folder remembers of this agent, or a new one with a credential of its own. Raises: CantJoin."""
    path = folder / "agent.json"
    try:
        known = Membership.model_validate_json(path.read_text())
    except FileNotFoundError:
        fresh = Membership(master=master, agent_id=agent_id, credential=f"agent-{secrets.token_hex(32)}")
        save(folder, fresh)  # before it is sent: a join whose answer is lost is asked for again, with the same
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


def enroll(folder: Path, mine: Membership, token: str, trusted: ssl.SSLContext | None = None) -> None:
    """Make this host an agent, unless it is one. `trusted`: what checks the API's certificate. Raises: CantJoin."""
    if not mine.is_joined:
        _register(mine, token, trusted)
        save(folder, mine)


def _register(mine: Membership, token: str, trusted: ssl.SSLContext | None) -> None:
    if not token:
        raise CantJoin(
            "this host has not joined yet: an administrator makes a token by `det agent join-token create`, and it is"
            " given as --join-token or in UNDETERRED_JOIN_TOKEN"
        )
    body = {"token": token, "agentId": mine.agent_id, "credential": mine.credential}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            response = httpx.post(
                f"{mine.master}/api/v1/undeterred/agents/join", json=body, timeout=10, verify=trusted or True
            )
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
    note(mine, response.json())
    mine.is_joined = True


def note(mine: Membership, welcome: Mapping[str, str]) -> None:
    """Remember what the API says of pool and gateway."""
    address = welcome["temporalAddress"]
    if address.startswith(":"):
        address = f"{urlsplit(mine.master).hostname}{address}"
    mine.pool, mine.temporal_address, mine.temporal_namespace = welcome["pool"], address, welcome["temporalNamespace"]


def save(folder: Path, mine: Membership) -> None:
    """Write it, whole or not at all. Raises: CantJoin."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = folder / "agent.json.tmp"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(mine.model_dump_json(indent=2))
        os.replace(partial, folder / "agent.json")
    except OSError as error:
        raise CantJoin(f"folder: {folder} can't be written: {error.strerror}: name another --folder") from None


def message_of(response: httpx.Response) -> str:
    """What the API says is wrong."""
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):  # something else answered in its place
        return f"{response.status_code} {response.reason_phrase}: {response.text[:200]}"
