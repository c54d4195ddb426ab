"""The environments that a host runs trials in: which one if no setting says it, and what it lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: Beside an installation: what trials train with.
TRIAL_ENVIRONMENT = ".venv-trial"
_SOURCES = Path(__file__).resolve().parents[2]
# Python 3.7 has no importlib.metadata: its harness has no version here.
_LOOK = """
import importlib.util as u, json, sys
found = u.find_spec("determined")
name = version = ""
try:
    from importlib.metadata import PackageNotFoundError, version as ask
    for name in ("undeterred-harness", "determined"):
        try:
            version = ask(name)
            break
        except PackageNotFoundError:
            pass
except ImportError:
    pass
print(json.dumps([".".join(map(str, sys.version_info[:3])), bool(found), name, version, bool(u.find_spec("pip"))]))
"""


class NoSuchPython(Exception):
    """The interpreter that was set for trials can't be used. The message says why."""


@dataclass(frozen=True)
class TrialPython:
    """What an interpreter for trials is. `harness` is empty if it has none."""

    path: str
    version: str
    harness: str
    has_pip: bool

    def __str__(self) -> str:
        harness = f"with {self.harness}" if self.harness else "without a harness"
        return f"{self.path} (Python {self.version}, {harness})"

    def problem(self) -> tuple[str, str]:
        """What it lacks for trials, and what to do; empty if it lacks nothing."""
        if not self.harness:
            what = f"{self.path} has no package `determined`, so trials can't start with it"
            return what, f"`{self.path} -m pip install {_SOURCES / 'harness'}`"
        if not self.has_pip:
            what = f"{self.path} has no pip: trials whose startup-hook.sh installs something will fail"
            return what, f"`{self.path} -m ensurepip`, or `uv pip install --python {self.path} pip`"
        return "", ""


def choose_trial_python(wanted: str | None, remembered: str = "") -> str:
    """The interpreter of process trials: as asked for, as before, of the environment beside us, or our own.

    Raises: NoSuchPython, if the one that is asked for can't be executed.
    """
    if wanted:
        found = shutil.which(os.path.expanduser(wanted))
        if found is None:
            raise NoSuchPython(
                f"UNDETERRED_TRIAL_PYTHON: {wanted!r}: expected a Python that can be executed, such as "
                f"{_SOURCES / TRIAL_ENVIRONMENT / 'bin' / 'python'}"
            )
        return os.path.abspath(found)
    beside = [folder / TRIAL_ENVIRONMENT / "bin" / "python" for folder in (Path(sys.prefix).parent, _SOURCES)]
    return next((path for path in (remembered, *map(str, beside)) if os.access(path, os.X_OK)), sys.executable)


def look_at(path: str) -> TrialPython:
    """Ask an interpreter what it is and has; takes some 50 ms. Raises: NoSuchPython."""
    try:
        done = subprocess.run(
            [path, "-c", _LOOK], capture_output=True, text=True, timeout=30, check=True, cwd="/", env={"HOME": "/"}
        )
        version, has_harness, name, release, has_pip = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoSuchPython(f"{path} can't be run as a Python for trials: {error}") from None
    return TrialPython(path, version, f"{name} {release}".strip() if has_harness else "", bool(has_pip))


def has_image(name: str) -> bool | None:
    """Whether this host's Docker engine has an image; None if no engine answers."""
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        docker.from_env(timeout=3).images.get(name)
    except ImageNotFound:
        return False
    except (DockerException, OSError):
        return None
    return True


def how_to_build(name: str) -> str:
    """The command that makes the default image of this host, with what the examples import."""
    script = _SOURCES / "deploy" / "images" / "build-local.sh"
    environment = _SOURCES / TRIAL_ENVIRONMENT
    return f"`{script} -t {name}{f' -e {environment}' if environment.exists() else ''}`"
