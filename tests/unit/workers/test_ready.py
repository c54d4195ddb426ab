"""What a process does once it is up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_what_was_loaded_is_no_longer_looked_at_by_the_collector(tmp_path: Path) -> None:
    """A full collection of all that an API has loaded stops its threads for 200 ms."""
    code = (
        "import gc, api.app\n"
        "from workers.connect import mark_ready\n"
        "mark_ready()\n"
        "print(gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 1_000)"
    )
    ready = tmp_path / "ready"
    environment = {"UNDETERRED_READY_FILE": str(ready), "PYTHONPATH": ":".join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "True True\n"
    assert ready.exists()
