"""kill -9 of every part of an embedded cluster while commands run, wait and are paused: none of them notices.

What runs goes on in the same process, and no line of its output is lost or comes twice; what waits has its place; what is
paused stays so; and what is followed by `det command run` ends with its exit code.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.embedded import PARTS, Embedded

#: Prints a count every 0.1 s until the file `end` exists.
COUNTS = "i=0; while [ ! -e {end} ]; do i=$((i+1)); echo line $i of $$; sleep 0.1; done; exit 5"


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path, slots=1).stopped() as cluster:
        yield cluster


def command(embedded: Embedded, *words: str) -> str:
    """Run a command in the background; its id."""
    done = embedded.det("command", "run", "-d", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(embedded: Embedded, task_id: str) -> tuple[str, int]:
    """The recorded state of a task, and how often it has run."""
    (found,) = embedded.rows(
        f"SELECT state, (SELECT count(*) FROM allocations WHERE task_id = t.id) FROM tasks t WHERE id = '{task_id}'"
    )
    return found


@pytest.mark.timeout(300)
def test_tasks_outlive_every_part_of_the_cluster(embedded: Embedded, tmp_path: Path) -> None:
    embedded.up()
    end = tmp_path / "end"
    follower = subprocess.Popen(
        [sys.executable, "-m", "cli", "command", "run", COUNTS.format(end=end)],
        env=embedded.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    lines = "SELECT count(*) FROM task_logs WHERE log LIKE 'line %'"
    embedded.until(lambda: embedded.rows(lines) > [(3,)], 60, "the first command counts")
    waiting = command(embedded, "echo at last")
    (tmp_path / "task.yaml").write_text("entrypoint: [exec sleep 300]\nresources: {slots: 0}\n")
    created = embedded.det("task", "create", str(tmp_path / "task.yaml")).stdout
    paused = re.findall(r"Created task (\S+)", created)[0]
    embedded.until(lambda: state(embedded, paused) == ("ACTIVE", 1), 60, "the task runs")
    assert embedded.det("task", "pause", paused).returncode == 0
    embedded.until(lambda: state(embedded, paused)[0] == "PAUSED", 60, "the task is paused")

    for killed in [*((part,) for part in PARTS), PARTS]:
        before = embedded.rows(lines)
        for part in killed:
            os.kill(embedded.pid(part), signal.SIGKILL)
        embedded.up()
        embedded.until(lambda before=before: embedded.rows(lines) > before, 60, f"it counts on after {killed}")
        assert state(embedded, waiting) == ("ACTIVE", 0), "it waits for the slot"
        assert state(embedded, paused) == ("PAUSED", 1)

    end.touch()
    printed, _ = follower.communicate(timeout=60)
    assert follower.returncode == 5
    counted = [re.search(r"line (\d+) of (\d+)$", line) for line in printed.splitlines()]
    assert [int(each[1]) for each in counted if each] == list(range(1, len(counted) + 1)), "each line once, in order"
    assert len({each[2] for each in counted if each}) == 1, "in one process"
    embedded.until(lambda: state(embedded, waiting) == ("COMPLETED", 1), 60, "the second command ran")
    assert embedded.det("task", "unpause", paused).returncode == 0
    embedded.until(lambda: state(embedded, paused) == ("ACTIVE", 2), 60, "the task runs again")
    shown = json.loads(embedded.det("command", "list", "--json").stdout)
    assert {each["exitStatus"] for each in shown} == {"exited with code 5", "exited with 0"}


@pytest.mark.timeout(180)
def test_a_lifetime_that_ends_while_the_cluster_is_down_ends_the_task_when_it_is_back(embedded: Embedded) -> None:
    embedded.up()
    task_id = command(embedded, "--config", "resources.slots=0", "--config", "max_lifetime=1h", "sleep 300")
    embedded.until(lambda: state(embedded, task_id) == ("ACTIVE", 1), 60, "the task runs")
    assert embedded.det("command", "set", "lifetime", task_id, "10s").returncode == 0
    warned = "SELECT count(*) FROM task_logs WHERE log LIKE '%will end in %'"
    embedded.until(lambda: embedded.rows(warned) == [(1,)], 10, "its log warns")
    for part in PARTS:
        os.kill(embedded.pid(part), signal.SIGKILL)
    time.sleep(12)
    assert state(embedded, task_id)[0] == "ACTIVE"
    embedded.up()
    embedded.until(lambda: state(embedded, task_id)[0] == "CANCELED", 30, "its end is made up for")
    [(message,)] = embedded.rows(f"SELECT message FROM tasks WHERE id = '{task_id}'")
    assert message == "it has run for 10s, its max_lifetime"
    assert embedded.rows(warned) == [(1,)], "once"


@pytest.mark.timeout(180)
def test_the_end_of_a_task_reaches_what_comes_after_it_whatever_is_killed(embedded: Embedded, tmp_path: Path) -> None:
    embedded.up()
    end = tmp_path / "end"
    aside = ("--config", "resources.slots=0")
    first = command(embedded, *aside, f"while [ ! -e {end} ]; do sleep 0.1; done")
    (tmp_path / "task.yaml").write_text("entrypoint: ['true']\nresources: {slots: 0}\n")
    later: list[str] = []
    for _ in range(3):
        created = embedded.det("task", "create", str(tmp_path / "task.yaml"), "--after", later[-1] if later else first)
        later += re.findall(r"Created task (\S+)", created.stdout)
    embedded.until(lambda: state(embedded, first) == ("ACTIVE", 1), 60, "the first one runs")
    for part in ("api", "orchestrator", "temporal"):
        os.kill(embedded.pid(part), signal.SIGKILL)
    end.touch()
    embedded.up()
    for _ in range(3):
        os.kill(embedded.pid("orchestrator"), signal.SIGKILL)
        os.kill(embedded.pid("api"), signal.SIGKILL)
        embedded.up()
    for each in later:
        embedded.until(lambda each=each: state(embedded, each) == ("COMPLETED", 1), 60, "it runs in its turn")


@pytest.mark.timeout(180)
def test_down_says_what_becomes_of_tasks_and_so_it_is(embedded: Embedded, tmp_path: Path) -> None:
    embedded.up()
    lost = command(embedded, "--config", "resources.slots=0", "sleep 300")
    (tmp_path / "task.yaml").write_text("entrypoint: [exec sleep 300]\nresources: {slots: 0}\n")
    created = embedded.det("task", "create", str(tmp_path / "task.yaml")).stdout
    again = re.findall(r"Created task (\S+)", created)[0]
    running = "SELECT count(*) FROM allocations WHERE state = 'RUNNING'"
    embedded.until(lambda: embedded.rows(running) == [(2,)], 60, "both run")
    said = embedded.run("down").stdout
    assert "1 command ended for good" in said
    assert "1 generic task starts again from the beginning" in said
    embedded.up()
    embedded.until(lambda: state(embedded, again) == ("ACTIVE", 2), 60, "it starts again")
    embedded.until(lambda: state(embedded, lost) == ("ERROR", 1), 60, "it does not")
