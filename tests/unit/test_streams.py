"""Which tests come last, and are left out where their time is over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.servers import REPOSITORY
from tests.streams import (
    COMPILED,
    ENGINES,
    LATE,
    OF_EACH_ENGINE,
    ON_ONE_ENGINE,
    TIMED,
    engine_of,
    is_light,
    is_spare,
    late_of,
)

_FILES = [f"tests/integration/api/test_{number}.py" for number in range(200)]


def test_each_file_runs_on_one_engine_before_any_runs_twice() -> None:
    tests = ["test_a", "test_b"]
    late = late_of([f"{file}::{test}[{engine}]" for file in _FILES for test in tests for engine in ENGINES])
    first = [
        {engine for engine in ENGINES for test in tests if f"{file}::{test}[{engine}]" not in late} for file in _FILES
    ]
    assert all(len(engines) == 1 for engines in first)
    assert 50 < sum("sqlite" in engines for engines in first) < 150, "about half on each"


def test_what_is_tested_on_one_engine_alone_is_not_put_off() -> None:
    names = [f"{file}::test[postgres-1]" for file in _FILES]
    assert not late_of(names)
    assert engine_of(names[0]) == "postgres"


def test_statements_that_are_written_for_each_engine_run_on_both_first() -> None:
    assert not late_of([f"tests/integration/test_database.py::test_upsert[{engine}]" for engine in ENGINES])


def test_what_is_compiled_beside_the_tests_is_known_by_who_needs_it() -> None:
    needs = re.compile(
        r"^from tests\.(deploy\.programs import .*\b(helm|render)\b|kubernetes\.machine import)", re.MULTILINE
    )
    files = [
        str(file.relative_to(REPOSITORY))
        for file in REPOSITORY.glob("tests/**/test_*.py")
        if needs.search(file.read_text())
    ]
    assert len(files) > 5
    assert all(file.startswith(COMPILED) for file in files), "one of them would wait for Go before all others"


@pytest.mark.parametrize("name", [*LATE, *ON_ONE_ENGINE, *OF_EACH_ENGINE, *COMPILED, *TIMED])
def test_what_is_named_is_there(name: str) -> None:
    path, _, test = name.partition("::")
    files = [file for file in REPOSITORY.glob(f"{path}*") if not test or f"def {test}" in file.read_text()]
    assert files, "a name that nothing has puts nothing off"


_LIVES = """
import pytest

@pytest.mark.parametrize("number", range(9))
def test_it(number):
    pass
"""
_DIES_ONCE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(9))
def test_it(number):
    before = pathlib.Path(__file__).with_name("before")
    if number == 5 and not before.exists():
        before.touch()
        os.abort()
"""


def test_run_ends_when_a_process_dies(tmp_path: Path) -> None:
    for name, text in {"a": _LIVES, "b": _DIES_ONCE, "c": _LIVES, "d": _LIVES}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    words = ["-q", "-n2", "--no-loadscope-reorder", "-p", "tests.streams", "-c", os.devnull, f"--rootdir={tmp_path}"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, tmp_path], capture_output=True, text=True, cwd=REPOSITORY, env=own,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^1 failed, 36 passed", done.stdout, re.MULTILINE), "what was left is run by another, and once"


_SAYS_WHERE = """
import os, pathlib, time, pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    time.sleep(0.05)
    with open("ran", "a") as file:
        file.write(f"{pathlib.Path(__file__).parent.name} {os.environ['PYTEST_XDIST_WORKER']} {os.nice(0)}\\n")
"""


@pytest.mark.parametrize("is_late", [False, True])
def test_third_process_runs_what_is_light_then_what_is_spare_and_gives_way(tmp_path: Path, is_late: bool) -> None:
    for kind, files in {"e2e": 12, "integration": 12, "unit": 6}.items():
        (tmp_path / "tests" / kind).mkdir(parents=True)
        for n in range(files):
            (tmp_path / "tests" / kind / f"test_{kind}_{n}.py").write_text(_SAYS_WHERE)
    words = ["-q", "-n3", "--no-loadscope-reorder", "-p", "tests.streams", "-c", os.devnull, f"--rootdir={tmp_path}"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    until = {"UNDETERRED_TESTS_UNTIL": str(time.time() + 600)} if is_late else {}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, tmp_path], capture_output=True, text=True, cwd=tmp_path,
        env={**own, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'harness'}", **until}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(ran) == 90
    by = {process: [(kind, nice) for kind, of, nice in ran if of == process] for process in ("gw0", "gw1", "gw2")}
    its = [kind for kind, nice in by["gw2"] if nice == str(os.nice(0) + 5)]
    assert len(its) == len(by["gw2"])
    assert its[0] == "unit", "a spare stream is one that others would have begun with"
    assert set(its) == {"unit", "integration"}
    assert {nice for process in ("gw0", "gw1") for _, nice in by[process]} == {str(os.nice(0))}
    assert by["gw0"][0][0] == ("unit" if is_late else "e2e"), "while there is time, what takes long begins first"


def test_what_measures_time_or_shares_a_docker_engine_is_nothing_to_fill_in() -> None:
    files = [str(file.relative_to(REPOSITORY)) for file in REPOSITORY.glob("tests/**/test_*.py")]
    spare = {file for file in files if is_spare(f"{file}::test")}
    assert {file for file in files if file.startswith("tests/integration/test_") and file not in spare} == {
        "tests/integration/test_heartbeats.py",
        "tests/integration/test_images.py",
        "tests/integration/test_notices.py",
        "tests/integration/test_replica.py",
        "tests/integration/test_replicas.py",
        "tests/integration/test_rolling_restart.py",
        "tests/integration/test_updates.py",
    }
    assert not any(is_light(f"{file}::test") for file in files if file.startswith(("tests/chaos/", "tests/e2e/")))


_HARNESS = "harness/tests/test_notebook.py"


def test_late_tests_are_told_of_and_the_others_run_when_the_time_is_over() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "UNDETERRED_TESTS_UNTIL": "1"}
    words = ["-q", "-rs", "-p", "no:cacheprovider", "tests/docs/test_tutorials.py", _HARNESS, f"{__file__}::{_FIRST}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, cwd=REPOSITORY, env=environment
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^1 passed, \d+ skipped", done.stdout, re.MULTILINE), "before anything is started for them"
    assert len(re.findall("SKIPPED.*not reached in time", done.stdout)) == 1, "told together"


_FIRST = test_what_is_tested_on_one_engine_alone_is_not_put_off.__name__
