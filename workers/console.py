"""The console scripts of a cluster's processes: `undeterred-api` and its like.

They are installed with `pip install undeterred` as well, which leaves out the libraries that they need: each then
says in one sentence what to install.
"""

from __future__ import annotations

import gc
import importlib
import sys

from cli.server import INSTALL
from workers.processes import loading

_OWN = ("activities", "api", "cli", "database", "determined", "workers", "workflows")


def api() -> None:
    """Run `undeterred-api`."""
    _run("api")


def orchestrator() -> None:
    """Run `undeterred-orchestrator`."""
    _run("orchestrator")


def agent() -> None:
    """Run `undeterred-agent`."""
    _run("agent")


def gateway() -> None:
    """Run `undeterred-gateway`."""
    _run("gateway")


def migrate() -> None:
    """Run `undeterred-migrate`."""
    _run("migrate")


def backup() -> None:
    """Run `undeterred-backup`."""
    _run("backup")


def restore() -> None:
    """Run `undeterred-restore`."""
    _run("restore")


def _run(name: str) -> None:
    try:
        with loading():
            module = importlib.import_module(f"workers.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OWN:
            raise
        sys.exit(f"undeterred-{name} needs the server's libraries, and {error.name} is not installed: {INSTALL}")
    gc.freeze()  # what was loaded stays, and is no garbage
    module.run()
