"""Tests the training libraries at the lower ends of their ranges, and Keras on TensorFlow: `make soak-versions`.

`make test` has the newest version of each. Here each extra of harness/pyproject.toml is installed with the lowest
version that it takes, into an environment of its own, and the tests of what is built upon it run there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
#: What the tests need beside what they test.
_TOOLS = ("pytest", "pytest-timeout", "pytest-asyncio", "pytest-rerunfailures", "hypothesis", "scikit-learn", "pandas")


@dataclass(frozen=True)
class Case:
    """One environment and its tests.

    Attributes:
        name: Of the environment, `.venv-NAME`.
        extras: Of the harness.
        tests: Files below harness/tests.
        lowest: Whether what the extras name is installed in its lowest version.
        others: What is installed besides, in its newest version.
        variables: Of the environment.
    """

    name: str
    extras: tuple[str, ...]
    tests: tuple[str, ...]
    lowest: bool = True
    others: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict[str, str])


CASES = (
    Case(
        "lowest",
        ("tensorboard", "pytorch", "transformers", "lightning", "keras", "accelerate"),
        ("test_transformers", "test_lightning", "test_keras*", "test_accelerate", "test_pytorch_*"),
    ),
    Case(
        "tensorflow",
        ("keras",),
        ("test_keras_trial", "tensorflow_cases"),
        lowest=False,
        others=("tensorflow-cpu",),
        variables={"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
    ),
)


def main(names: Sequence[str]) -> int:
    """Run the named cases, or all of them; the number of those that failed."""
    failed = 0
    for case in CASES:
        if not names or case.name in names:
            python = _installed(case)
            failed += _tested(case, python)
    return failed


def _installed(case: Case) -> Path:
    """The interpreter of the case's environment, which is made unless it is there."""
    folder = REPOSITORY / f".venv-{case.name}"
    python = folder / "bin" / "python"
    if not python.exists():
        _uv("venv", "--python", sys.executable, folder)
    pins = folder / "pins.txt"
    extras = [word for extra in case.extras for word in ("--extra", extra)]
    resolution = ["--resolution", "lowest-direct" if case.lowest else "highest"]
    project = REPOSITORY / "harness" / "pyproject.toml"
    _uv("pip", "compile", "--python", python, *resolution, *extras, "--output-file", pins, project)
    _uv("pip", "install", "--python", python, "-r", pins)
    _uv("pip", "install", "--python", python, "--no-deps", "-e", REPOSITORY / "harness")
    tools = [_pinned(tool) for tool in _TOOLS] if not case.lowest else _at_least(_TOOLS)
    _uv("pip", "install", "--python", python, "-c", pins, *tools, *case.others)
    return python


def _tested(case: Case, python: Path) -> bool:
    """Whether a test of the case fails; prints which versions were tested."""
    shown = subprocess.run([UV, "pip", "freeze", "--python", python], capture_output=True, text=True, check=True).stdout
    print(
        f"{case.name}: {', '.join(re.findall('^(?:torch|transformers|lightning|keras|tensorflow-cpu|accelerate)==.*', shown, re.M))}"
    )
    tests = REPOSITORY / "harness" / "tests"
    files = [str(file) for name in case.tests for file in sorted(tests.glob(f"{name}.py"))]
    environment = {**os.environ, **case.variables, "PYTHONPATH": str(REPOSITORY / "harness")}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode != 0


def _at_least(tools: Sequence[str]) -> list[str]:
    """As pyproject.toml wants them."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    return [next(iter(re.findall(rf'"({tool}>=[\d.]+)', text))) for tool in tools]


def _pinned(tool: str) -> str:
    """As constraints.txt pins it."""
    return next(
        line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if line.startswith(f"{tool}==")
    )


def _uv(*words: str | Path) -> None:
    subprocess.run([UV, "--quiet", *words], check=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
