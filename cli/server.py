"""Commands that run a part of the cluster on this machine: they need the libraries of `undeterred[server]`.

`pip install undeterred` brings what `det` and the SDK need, and leaves those out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

#: The command that adds them.
INSTALL = "pip install 'undeterred[server]'"

_LIBRARIES = ("temporalio", "fastapi", "sqlalchemy", "alembic", "uvicorn", "structlog", "httptools", "uvloop")


def missing() -> str:
    """The first of the server's libraries that is not installed here; "" if all of them are."""
    return next((name for name in _LIBRARIES if find_spec(name) is None), "")


def require(command: str) -> None:
    """Check that this Python can run a part of the cluster.

    Raises: ValueError says what to install, or that this system runs no cluster.
    """
    if sys.platform == "win32":
        raise ValueError(
            f"`{command}` runs on Linux only: run it in WSL, or set DET_MASTER to a cluster on another machine"
        )
    if absent := missing():
        raise ValueError(f"`{command}` needs the server's libraries, and {absent} is not installed: {INSTALL}")


def python(module: str, words: Sequence[str]) -> list[str]:
    """The command line that runs a module of the server with this Python, and with nothing of the working folder."""
    return [sys.executable, "-P", "-m", module, *words]


def run(module: str, words: Sequence[str] = (), *, timeout_s: float) -> str:
    """What a module of the server prints. Raises: subprocess.TimeoutExpired."""
    done = subprocess.run(python(module, words), capture_output=True, text=True, timeout=timeout_s, check=False)
    return done.stdout
