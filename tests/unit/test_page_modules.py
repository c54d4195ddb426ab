"""What the modules of the pages compute, in Node: no page is needed for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_TESTS = sorted((Path(__file__).parent / "web").glob("*.test.mjs"))


@pytest.mark.parametrize("path", _TESTS, ids=lambda path: path.name)
def test_module(path: Path) -> None:
    node = Path(sys.executable).with_name("node")
    done = subprocess.run(
        [node, "--test", "--test-reporter=tap", path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout
    assert "# pass 0\n" not in done.stdout
