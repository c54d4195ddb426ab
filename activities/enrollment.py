"""Enrollment of this host: with a join token it registers a credential of its own, which its folder keeps."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

#: A master that does not answer for so long, in seconds, is most likely a wrong address.
_PATIENCE_S = 30.0
_AUTHORITY = "/api/v1/undeterred/authority"
_FINGERPRINT = re.compile(r"sha256:[0-9a-fA-F]{64}")


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
    temporal_tls: bool = False


def authority(folder: Path, master: str, known_by: str) -> Path | None:
    """The file with the authority of the API's certificate, as the folder keeps it; None: the system's count.

    Args:
        folder: Of the agent.
        master: The API's address.
        known_by: The fingerprint of the authority, for a folder that lacks it: it is asked for once, and compared.

    Raises:
        CantJoin: It is not what `known_by` says, or the API does not answer.
    """
    path = folder / "authority.pem"
    if not known_by:
        return path if path.exists() else None
    if _FINGERPRINT.fullmatch(known_by) is None:
        raise CantJoin(
            f"--trust: {known_by!r}: expected sha256: and 64 hexadecimal digits, as `det agent join-token create` "
            "prints it"
        )
    if not master.startswith("https://"):
        raise CantJoin(f"--trust: expected with a master that is reached by https://, not with {master}")
    if path.exists() and _fingerprint(path.read_text()) == known_by.lower():
        return path
    # not verified, as there is nothing yet to verify it by: it counts by its fingerprint alone
    shown = str(
        _answer(master, lambda: httpx.get(f"{master}{_AUTHORITY}", timeout=10, verify=False)).json()["certificate"]
    )
    found = _fingerprint(shown)
    if found != known_by.lower():
        raise CantJoin(
            f"--trust: the API at {master} shows {'an authority ' + found if found else 'no authority of its own'}, "
            f"not {known_by}: the address is another cluster's, another machine answers in its place, or its authority "
            "is new: `det agent join-token create` prints today's"
        )
    _write(path, shown)
    return path


def _fingerprint(certificate: str) -> str:
    """Of a certificate in PEM; empty if it is none."""
    try:
        return "sha256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    except ValueError:
        return ""


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
    path = f"{mine.master}/api/v1/undeterred/agents/join"
    welcome = _answer(mine.master, lambda: httpx.post(path, json=body, timeout=10, verify=trusted or True))
    note(mine, welcome.json())
    mine.is_joined = True


def _answer(master: str, ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The API's answer, for which it may take some time to come up. Raises: CantJoin."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            response = ask()
            if response.status_code < 500:
                break
            problem = message_of(response)
        except httpx.HTTPError as error:
            problem = str(error) or type(error).__name__
            if "CERTIFICATE_VERIFY_FAILED" in problem:  # time does not change it
                raise CantJoin(
                    f"the certificate of the API at {master} is not one that this host trusts: {problem}. `det agent "
                    "join-token create` prints the option --trust, by which it does; or name the file of its authority "
                    "in UNDETERRED_API_CA_FILE"
                ) from None
        if time.monotonic() > deadline:
            raise CantJoin(f"the API at {master} does not answer: {problem}")
        time.sleep(0.5)
    if response.status_code != 200:
        raise CantJoin(message_of(response))
    return response


def note(mine: Membership, welcome: Mapping[str, Any]) -> None:
    """Remember what the API says of pool and gateway."""
    address: str = welcome["temporalAddress"]
    if address.startswith(":"):
        address = f"{urlsplit(mine.master).hostname}{address}"
    mine.pool, mine.temporal_address, mine.temporal_namespace = welcome["pool"], address, welcome["temporalNamespace"]
    mine.temporal_tls = bool(welcome.get("temporalTls"))


def save(folder: Path, mine: Membership) -> None:
    """Write it, whole or not at all. Raises: CantJoin."""
    _write(folder / "agent.json", mine.model_dump_json(indent=2))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_name(f"{path.name}.tmp")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError as error:
        raise CantJoin(f"folder: {path.parent} can't be written: {error.strerror}: name another --folder") from None


def message_of(response: httpx.Response) -> str:
    """What the API says is wrong."""
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):  # something else answered in its place
        return f"{response.status_code} {response.reason_phrase}: {response.text[:200]}"
