"""What processes load at their start: each module that is not needed costs every start of a cluster, and memory."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("process", "without"),
    [
        ("agent", "sqlalchemy database kubernetes docker fastapi"),
        ("orchestrator", "kubernetes fastapi numpy"),
        ("api", "kubernetes docker authlib httpx2"),
    ],
)
def test_process_loads_nothing_that_only_others_need(process: str, without: str) -> None:
    script = f"import sys, workers.{process}; print([name for name in {without.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
