"""What the image of the server is made of: all that it needs, as the tests have it, and each file by its hash."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.deploy.programs import REPOSITORY, kept

FOLDER = REPOSITORY / "deploy" / "images"
EXTRAS = {"server", "optuna", "tracing"}


def pinned(file: str) -> dict[str, str]:
    """Versions by name; each has a hash."""
    text = (FOLDER / file).read_text()
    parts = re.split(r"\n(?=\S)", text.strip())
    found: dict[str, str] = {}
    for part in parts:
        name, version = re.match(r"([a-z0-9-]+)==([^ ;]+)", part).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", part), name
        found[name] = version
    return found


def needed(name: str, extras: set[str], seen: set[tuple[str, str]]) -> set[str]:
    """The distributions that one needs, by what is installed here, itself included."""
    names = {re.sub(r"[-_.]+", "-", name).lower()}
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        marker = wanted.marker
        is_for_us = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})
        key = (wanted.name, ",".join(sorted(wanted.extras)))
        if is_for_us and key not in seen:
            seen.add(key)
            names |= needed(wanted.name, set(wanted.extras), seen)
    return names


def test_all_that_it_needs_is_there_as_the_tests_have_it() -> None:
    found = pinned("server.requirements.txt")
    own = {"undeterred", "undeterred-harness"}
    assert needed("undeterred", EXTRAS, set()) - own - found.keys() == set()
    constraints = dict(line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().split())
    differing = {name: version for name, version in found.items() if constraints.get(name, version) != version}
    assert differing == {}
    assert "setuptools" in found, "it is built without asking any server"


def test_what_it_has_is_listed_for_scanners(tmp_path: Path) -> None:
    """By the command of the Dockerfile, of the environment of the tests."""

    def install(folder: Path) -> None:
        uv = REPOSITORY / ".venv" / "bin" / "uv"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
        line = [uv, "pip", "install", "--quiet", "--python", folder / "venv" / "bin" / "python", "--require-hashes"]
        subprocess.run([*line, "-r", FOLDER / "sbom.requirements.txt"], check=True)

    program = kept(f"sbom-{pinned('sbom.requirements.txt')['cyclonedx-bom']}", install) / "venv/bin/cyclonedx-py"
    text = (FOLDER / "server.Dockerfile").read_text().replace("\\\n", " ")
    (words,) = re.findall(r"cyclonedx-py (environment .*?) -o (?:\S+)\s+--pyproject", text)
    out = tmp_path / "sbom.json"
    line = [program, *words.split(), "-o", out, "--pyproject", REPOSITORY / "pyproject.toml", sys.executable]
    subprocess.run(line, check=True, capture_output=True, timeout=100)
    listed = json.loads(out.read_text())
    assert listed["bomFormat"] == "CycloneDX"
    versions = {each["name"].lower(): each.get("version") for each in listed["components"]}
    assert versions["temporalio"] == pinned("server.requirements.txt")["temporalio"]
    assert listed["metadata"]["component"]["name"] == "undeterred"
