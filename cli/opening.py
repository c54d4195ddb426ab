"""Waiting until a notebook, shell or TensorBoard answers, and opening its address in a browser."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli import kinds, launching, render, session
from cli.progress import progress
from determined.common.api._url import api_path

NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address and open no browser.")]
_LONGEST_S, _EVERY_S = 1800.0, 1.0


def start(kind: str, name: str, body: Mapping[str, Any], *, detach: bool, no_browser: bool) -> None:
    """Launch what a browser opens, wait until it is ready, and open it; `detach`: print its id only."""
    launched = launching.launch(f"{kind}s", body)[kind]
    if detach:
        render.say(launched["id"])
        return
    render.note(f"Launched {name} (id: {launched['id']}, name: {launched['description']})")
    await_ready(kind, name, launched["id"])
    show(launched["serviceAddress"], no_browser=no_browser)


def reopen(kind: str, name: str, task_id: str, *, no_browser: bool) -> None:
    """Open one that runs. Raises: ValueError, if it has ended."""
    found = kinds.fetched(kind, task_id)[kind]
    refuse_ended(name, found)
    show(found["serviceAddress"], no_browser=no_browser)


def refuse_ended(name: str, found: Mapping[str, Any]) -> None:
    """Raises: ValueError."""
    if found["state"] == "STATE_TERMINATED":
        raise ValueError(f"{name} {found['id']} has ended: {found['exitStatus']}.")


def show(path: str, *, no_browser: bool) -> None:
    """Print the address of a service of the API's, and open it in a browser."""
    address = session.master_url().rstrip("/") + path
    render.say(address)
    if not no_browser:
        import webbrowser

        webbrowser.open(address)


def await_ready(kind: str, name: str, task_id: str) -> None:
    """Wait until it answers. Raises: ValueError, if it has ended, or takes half an hour."""
    deadline = time.monotonic() + _LONGEST_S
    with progress(f"waiting for {name} {task_id}"):
        while time.monotonic() < deadline:
            task: dict[str, Any] = session.get().get(api_path("tasks", task_id)).json()["task"]
            if task["endTime"] is not None:
                why = kinds.fetched(kind, task_id)[kind]["exitStatus"]
                raise ValueError(f"{name} {task_id} has ended: {why}; see `det {kind} logs {task_id}`.")
            runs: list[dict[str, Any]] = task["allocations"]
            if runs and runs[0]["isReady"]:
                return
            time.sleep(_EVERY_S)
    raise ValueError(
        f"{name} {task_id} is not ready after {_LONGEST_S / 60:.0f} minutes; it goes on: see `det task why {task_id}`."
    )
