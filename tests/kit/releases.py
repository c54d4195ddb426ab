"""Releases of the platform as users install them: wheels, unpacked side by side."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.servers import REPOSITORY

UV = REPOSITORY / ".venv" / "bin" / "uv"
_PARTS = ("workflows", "activities", "database", "api", "cli", "workers", "web", "harness")
_FILES = ("pyproject.toml", "README.md", "LICENSE")


def uv(*words: str | Path) -> None:
    """Run uv; it must succeed."""
    done = subprocess.run([UV, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sources(folder: Path) -> Path:
    """A copy of the sources: an earlier build leaves files behind that would come along."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "tests", "node_modules")
    for name in _PARTS:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    for name in _FILES:
        shutil.copy(REPOSITORY / name, folder / name)
    return folder


def wheels(source: Path, folder: Path) -> Sequence[Path]:
    """Of both distributions."""
    with ThreadPoolExecutor() as threads:
        built = [
            threads.submit(uv, "build", "--quiet", "--wheel", "--out-dir", folder, project)
            for project in (source, source / "harness")
        ]
    for each in built:
        each.result()
    return sorted(folder.glob("*.whl"))


def unpacked(source: Path, folder: Path) -> Path:
    """The packages of a release's wheels, for PYTHONPATH; what they need is that of this environment."""
    uv("pip", "install", "--quiet", "--no-deps", "--target", folder / "code", *wheels(source, folder / "wheels"))
    return folder / "code"


def release_before(folder: Path) -> Path:
    """The packages of the last release, from its tag; before there is one, of today's code under an earlier version."""
    source = folder / "source"
    tags = _git("tag", "--list", "v[0-9]*", "--sort=-version:refname").decode().split()
    if tags:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", tags[0]))) as archive:
            archive.extractall(source, filter="data")
    else:
        change(sources(source), {"pyproject.toml": (r'^version = "[^"]+"', 'version = "0.0.9"')})
    return unpacked(source, folder)


def release_after(folder: Path, changes: Mapping[str, tuple[str, str]]) -> Path:
    """The packages of today's code with changes; see `change`."""
    return unpacked(change(sources(folder / "source"), changes), folder)


def change(source: Path, changes: Mapping[str, tuple[str, str]]) -> Path:
    """Replace in files: a pattern that is there once, by a text; of a new file the pattern is empty."""
    for name, (pattern, text) in changes.items():
        path = source / name
        if not pattern:
            path.write_text(text)
            continue
        changed, count = re.subn(pattern, text.replace("\\", r"\\"), path.read_text(), flags=re.MULTILINE)
        assert count == 1, f"{name}: {pattern!r} is there {count} times"
        path.write_text(changed)
    return source


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, check=True).stdout
