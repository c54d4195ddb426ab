#!/usr/bin/env python3
"""Launches and terminates nodes of a pool on Google Cloud: its provider (docs/scheduling.md, README.md here).

    gcp_node.py launch --project ml-prod --zones europe-west4-a,europe-west4-b --template undeterred-agent
    gcp_node.py terminate --project ml-prod --zones europe-west4-a,europe-west4-b

A node is an instance that is called after it. Run twice for a node, it finds what it did before.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

NODE, POOL, SLOTS = "undeterred-node", "undeterred-pool", "undeterred-slots"
_API = "https://compute.googleapis.com/compute/v1"
_SCOPE = "https://www.googleapis.com/auth/compute"
#: What Compute Engine calls an instance.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
#: A zone has no machine of this kind just now: another one may.
_NONE_LEFT = ("ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "STOCKOUT")
_ANSWER_S = 150  # of an operation that is waited for: at most two minutes each time


class CantDo(Exception):
    """What Google says, or what is wrong with the options. The pool shows it as the problem of its node."""


class Compute:
    """Instances of a project.

    Args:
        session: What sends requests, with credentials.
        root: Address of the API.
        project: Its id.
    """

    def __init__(self, session: Any, root: str, project: str) -> None:
        self._session, self._project = session, f"{root}/projects/{project}"

    def is_there(self, zone: str, name: str) -> bool:
        """Whether a zone has an instance of this name, in whatever state. Raises: CantDo."""
        return self._ask("GET", f"zones/{zone}/instances/{name}", absent=True) is not None

    def metadata_of(self, template: str) -> list[dict[str, str]]:
        """The metadata that instances of a template get. Raises: CantDo."""
        found = self._ask("GET", f"global/instanceTemplates/{template}")
        return list(found["properties"].get("metadata", {}).get("items", []))

    def insert(self, zone: str, template: str, body: Mapping[str, Any]) -> bool:
        """Start an instance. False: this zone has no machine for it now. Raises: CantDo."""
        # sent again, as its answer was lost, it is the same request; a later run is a new one, and may have better luck
        params = {"sourceInstanceTemplate": f"global/instanceTemplates/{template}", "requestId": str(uuid.uuid4())}
        operation = self._ask("POST", f"zones/{zone}/instances", params=params, json=body, conflict=True)
        while operation is not None and operation["status"] != "DONE":
            operation = self._ask("POST", f"zones/{zone}/operations/{operation['name']}/wait")
        problems = [] if operation is None else operation.get("error", {}).get("errors", [])
        if any(problem["code"] in _NONE_LEFT for problem in problems):
            return False
        if problems:
            raise CantDo("; ".join(f"{problem['code']}: {problem.get('message', '')}" for problem in problems))
        return True

    def delete(self, zone: str, name: str) -> None:
        """End an instance; none is as well. Raises: CantDo."""
        self._ask("DELETE", f"zones/{zone}/instances/{name}", absent=True)

    def _ask(self, method: str, path: str, *, absent: bool = False, conflict: bool = False, **more: Any) -> Any:
        """The answer; None if there is no such thing and `absent`, or it is there already and `conflict`."""
        try:
            response = self._session.request(method, f"{self._project}/{path}", timeout=_ANSWER_S, **more)
        except (RequestException, GoogleAuthError) as error:
            raise CantDo(f"Compute Engine could not be asked: {error}") from None
        if (absent and response.status_code == 404) or (conflict and response.status_code == 409):
            return None
        if response.status_code >= 300:
            raise CantDo(f"{method} {path}: {response.status_code}: {_message(response)}")
        return response.json()


def launch(compute: Compute, zones: Sequence[str], template: str, node: str, pool: str, slots: str) -> None:
    """Have the node's instance started, unless it is there: in the first zone that has a machine. Raises: CantDo."""
    name = name_of(node)
    if any(_where(compute, zones, name)):
        return
    told = {NODE: node, POOL: pool, SLOTS: slots}
    items = [each for each in compute.metadata_of(template) if each["key"] not in told]
    body = {
        "name": name,
        # in the place of the template's own, which it therefore repeats
        "metadata": {"items": [*items, *({"key": key, "value": value} for key, value in told.items())]},
    }
    if not any(compute.insert(zone, template, body) for zone in zones):
        raise CantDo(f"no machine for {template} is left in {', '.join(zones)}")


def terminate(compute: Compute, zones: Sequence[str], node: str) -> None:
    """Have the node's instances end; none is as well. Raises: CantDo."""
    name = name_of(node)
    for zone in _where(compute, zones, name):
        compute.delete(zone, name)


def name_of(node: str) -> str:
    """What the instance of a node is called: as the node, if Compute Engine takes that."""
    if _NAME.fullmatch(node):
        return node
    plain = re.sub(r"[^a-z0-9]+", "-", node.lower()).strip("-")
    return f"n-{plain[:50]}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def _where(compute: Compute, zones: Sequence[str], name: str) -> Iterator[str]:
    return (zone for zone in zones if compute.is_there(zone, name))


def _message(response: Any) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(response.text[:200])


def _session() -> AuthorizedSession:
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except GoogleAuthError as error:
        raise CantDo(f"there are no credentials of Google here: {error}") from None
    session = AuthorizedSession(credentials)
    again = Retry(total=5, backoff_factor=1, status_forcelist=[429, 500, 502, 503, 504], allowed_methods=None,
                  raise_on_status=False)  # fmt: skip
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=again))
    return session


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Launches and terminates nodes on Google Cloud.")
    parser.add_argument("action", choices=["launch", "terminate"])
    parser.add_argument("--project", required=True)
    parser.add_argument("--zones", required=True, help="with commas; the first one that has a machine is taken")
    parser.add_argument("--template", help="name of the instance template; for launch")
    parser.add_argument("--api", default=_API, help="address of Compute Engine")
    wanted = parser.parse_args(arguments)
    zones = [zone for zone in wanted.zones.split(",") if zone]
    if not zones:
        parser.error("--zones: expected the names of zones, with commas")
    if wanted.action == "launch" and not wanted.template:
        parser.error("--template: expected the name of an instance template")
    node = os.environ["UNDETERRED_NODE"]
    try:
        compute = Compute(_session(), wanted.api, wanted.project)
        if wanted.action == "terminate":
            terminate(compute, zones, node)
        else:
            launch(compute, zones, wanted.template, node, os.environ["UNDETERRED_POOL"], os.environ["UNDETERRED_SLOTS"])
    except CantDo as problem:
        print(problem, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
