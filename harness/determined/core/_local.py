"""Where a run outside of a cluster keeps what it stores."""

from __future__ import annotations

import os


def local_dir(name: str) -> str:
    """Where what has no cluster is kept."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "determined", name)
