"""What a container says that has no harness for its kind of task."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from activities.launchers import entry

KINDS = {"NOTEBOOK": "undeterred-harness[notebook]", "SHELL": "undeterred-harness", "TENSORBOARD": "[tensorboard]"}


def start(kind: str, packages: Path) -> tuple[int, str]:
    """Status and errors, in an environment that has these packages only."""
    line = [sys.executable, "-S", "-c", Path(entry.__file__).read_text(), ""]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), "DET_TASK_TYPE": kind}
    done = subprocess.run(line, env=env, cwd=packages, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_published", [False, True])
def test_servers_need_our_harness(kind: str, has_published: bool, tmp_path: Path) -> None:
    if has_published:
        (tmp_path / "determined" / "exec").mkdir(parents=True)
        (tmp_path / "determined" / "__init__.py").touch()
        (tmp_path / "determined" / "exec" / "prep_container.py").write_text("--download_context_directory")
    code, err = start(kind, tmp_path)
    assert (code, len(err.splitlines())) == (1, 1), err
    has = "Determined's harness" if has_published else "no harness"
    assert f"has {has}, but a {kind.lower()} needs ours: install it into the image with `pip install" in err
    assert KINDS[kind] in err


def test_our_harness_is_run(tmp_path: Path) -> None:
    (tmp_path / "determined" / "exec").mkdir(parents=True)
    for name, text in {"__init__.py": "", "exec/__init__.py": "", "exec/launch.py": "raise SystemExit(7)"}.items():
        (tmp_path / "determined" / name).write_text(text)
    assert start("NOTEBOOK", tmp_path) == (7, "")
