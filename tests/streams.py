"""How `make test` shares the tests out among processes that run at the same time (pytest-xdist), and which come last."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Collection
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

#: What shares the Docker engine, the host's networks, or folders outside of the tests' own, as the published harnesses do:
#: one stream.
_SHARED = (
    "tests/compat/",
    "tests/docs/test_tutorials.py",
    "tests/e2e/test_core_api.py",
    "tests/e2e/test_docker.py",
    "tests/integration/test_images.py",
    "tests/kubernetes/",
)
#: What needs Helm or a cluster of Kubernetes, which take Go minutes: `tests.prepare` compiles them while other tests run.
COMPILED = ("tests/deploy/test_chart.py", "tests/kubernetes/")
#: What is one stream on both engines: its requests are made once for both.
_ON_BOTH = ("tests/integration/api/test_schemathesis.py",)

#: Which streams begin first. The longest do, so that no process idles while another is at a long one at the end; unit
#: tests, which are many and short, come last.
_ORDER = (
    *("shared", "tests/chaos/", "tests/e2e/", "tests/web/", "tests/docs/", "tests/integration/test_", "harness/"),
    "tests/integration/api/",
)

#: From here on in that order, streams are light: no cluster runs in them, and no time is measured.
_LIGHT = _ORDER.index("harness/")

#: What a process that gives way may run once light streams have run out, and what of it measures time.
_SPARE = "tests/integration/"
TIMED = (
    "tests/integration/test_heartbeats.py",
    "tests/integration/test_notices.py",
    "tests/integration/test_replica",
    "tests/integration/test_rolling_restart.py",
    "tests/integration/test_updates.py",
)
#: The third of three processes runs light streams first, then spare ones, and gives way to the others: it has what they
#: leave of the processors while they wait for servers and clocks.
_FILLER, _MANY = "gw2", 3
#: Seconds before the time for tests is over from which on light streams go first, as they are not left out.
_LIGHT_S = 25 * 60
#: When the time for tests is over, in seconds since 1970: those that come last are left out from then on. CI has such a
#: time, so that a slow machine still tells of all others; `make test` by hand has none.
UNTIL = float(os.environ.get("UNDETERRED_TESTS_UNTIL") or "inf")

ENGINES = ("sqlite", "postgres")

#: What comes last: each takes long, most as they drive a cluster from outside, or several hosts and servers. A slow machine
#: tells nothing of these: only of a search, a trial's life and its ends, a kill, a pause and both published clients.
LATE = (
    "harness/tests/test_accelerate.py",
    "harness/tests/test_deepspeed_resume.py",
    "harness/tests/test_notebook.py",
    "harness/tests/test_storage_unchanged.py",
    "harness/tests/test_tensorboard_task.py",
    "tests/chaos/test_campaign.py",
    "tests/chaos/test_commands.py",
    "tests/chaos/test_crowd.py",
    "tests/chaos/test_failover.py",
    "tests/chaos/test_faults.py",
    "tests/chaos/test_outage.py",
    "tests/chaos/test_release.py",
    "tests/chaos/test_sessions.py",
    "tests/chaos/test_soak.py",
    "tests/chaos/test_sweep.py",
    "tests/chaos/test_tasks.py",
    "tests/chaos/test_upgrade.py",
    "tests/docs/test_tutorials.py",
    "tests/e2e/test_docker.py",
    "tests/e2e/test_embedded_tls.py",
    "tests/e2e/test_interactive.py",
    "tests/e2e/test_light_install.py",
    "tests/e2e/test_mcp.py",
    "tests/e2e/test_pytorch",
    "tests/e2e/test_search.py",
    "tests/e2e/test_torch_distributed.py",
    "tests/e2e/test_trial_python.py",
    "tests/integration/api/test_schemathesis.py",
    "tests/integration/importing/",
    "tests/integration/test_autoscaler.py",
    "tests/integration/test_backup.py",
    "tests/integration/test_gang.py",
    "tests/integration/test_gateway.py",
    "tests/integration/test_health.py",
    "tests/integration/test_hostile_agent.py",
    "tests/integration/test_images.py",
    "tests/integration/test_large_search.py",
    "tests/integration/test_packed_reports.py",
    "tests/integration/test_pgbouncer.py",
    "tests/integration/test_replica",
    "tests/integration/test_rolling_restart.py",
    "tests/integration/test_tls.py",
    "tests/integration/trackers/",
    "tests/kubernetes/",
    "tests/web/test_changes.py",
    "tests/web/test_every_page.py",
    "tests/web/test_operators.py",
    "tests/web/test_pictures.py",
)
#: On one of the engines each, by their names half on each, as tests of a whole platform are. A soak runs them on both.
ON_ONE_ENGINE = ("tests/chaos/test_soak.py", "tests/integration/api/", "tests/integration/importing/")
#: Always on both: statements are written for each engine, or requests race, which each engine settles in its own way.
OF_EACH_ENGINE = (
    "tests/integration/api/test_budgets.py",
    "tests/integration/api/test_curves.py",
    "tests/integration/api/test_exactly_once.py",
    "tests/integration/api/test_experiment_lists.py",
    "tests/integration/api/test_fencing.py",
    "tests/integration/api/test_hyperparameters.py",
    "tests/integration/api/test_large_cluster.py",
    "tests/integration/api/test_log_blocks.py",
    "tests/integration/api/test_log_histograms.py",
    "tests/integration/api/test_log_windows.py",
    "tests/integration/api/test_logs.py",
    "tests/integration/api/test_metric_blocks.py",
    "tests/integration/api/test_metric_streams.py",
    "tests/integration/api/test_metrics.py",
    "tests/integration/api/test_once.py",
    "tests/integration/api/test_runs.py",
    "tests/integration/api/test_search_views.py",
    "tests/integration/api/test_slots_over_time.py",
    "tests/integration/api/test_system_metrics.py",
    "tests/integration/importing/test_importing.py::test_curves_are_in_blocks",
    "tests/integration/importing/test_importing.py::test_everything_is_here",
    "tests/integration/importing/test_importing.py::test_numbers_that_come_next",
    "tests/integration/test_database.py",
    "tests/integration/test_expand.py",
    "tests/integration/test_many_runs.py",
    "tests/integration/test_notices.py",
    "tests/integration/test_page_plans.py",
    "tests/integration/test_sorted_trials.py",
)


def engine_of(nodeid: str) -> str:
    """The engine that a test runs on, if it has one for each."""
    return next((name for name in ENGINES if f"[{name}" in nodeid or f"-{name}" in nodeid), "")


def engine_for(name: str) -> str:
    """The engine for what runs on one of them: half of the names have each."""
    return ENGINES[zlib.crc32(name.encode()) % 2]


def late_of(nodeids: Collection[str]) -> set[str]:
    """Those of a run's tests that come last, and are left out where the time for tests is over (`UNTIL`).

    They are of two kinds: what is named here, and a file's tests on its second engine. By files, as those of one share
    what is slow to start.
    """
    every = set(nodeids)

    def is_second(nodeid: str) -> bool:
        engine, first = engine_of(nodeid), engine_for(nodeid.partition("::")[0])
        return engine not in ("", first) and nodeid.replace(engine, first) in every

    return {
        nodeid
        for nodeid in every
        if nodeid.startswith(LATE) or (not nodeid.startswith(OF_EACH_ENGINE) and is_second(nodeid))
    }


def stream_of(nodeid: str) -> str:
    """Tests with the same answer run in one process and in their order: they share servers that are slow to start."""
    path = nodeid.partition("::")[0]
    if path.startswith(_SHARED) or "Docker" in nodeid:
        return "shared"
    if path in _ON_BOTH:
        return path
    # all of one engine comes before all of the other: each has an API that files share
    return f"{path} {engine_of(nodeid)}"


def turn_of(nodeid: str) -> int:
    """When a test's stream begins: the lower, the earlier."""
    stream = stream_of(nodeid)
    return next((turn for turn, begin in enumerate(_ORDER) if stream.startswith(begin)), len(_ORDER))


def is_filler(process: str, processes: int) -> bool:
    """Whether a process, by the name that xdist gives it, is the one for light streams. Of two, a third replaces one."""
    return processes >= _MANY and process == _FILLER


def is_light(nodeid: str) -> bool:
    """Whether a test is of those that the third process runs first, and that are not left out."""
    return turn_of(nodeid) >= _LIGHT and not nodeid.startswith(LATE)


def is_heavy(nodeid: str) -> bool:
    """Whether a test begins early, or last of all."""
    return not is_light(nodeid)


def is_spare(nodeid: str) -> bool:
    """Whether the third process may run a test when no light one is left."""
    return nodeid.startswith(_SPARE) and stream_of(nodeid) != "shared" and not nodeid.startswith(TIMED)


class Streams(LoadScopeScheduling):
    """Gives a process one stream after the other. What some of them need is compiled from when they are known."""

    _late: set[str] | None = None

    def schedule(self) -> None:
        """Hand out what is to be run: the first streams, when all processes have found the same tests."""
        is_first = self.collection is None
        super().schedule()
        if is_first and any(nodeid.startswith(COMPILED) for nodeid in self.collection or ()):
            line = [sys.executable, "-m", "tests.prepare", "beside"]
            silent = subprocess.DEVNULL  # the first test that needs what can't be compiled says why
            compiler = subprocess.Popen(
                line, cwd=self.config.rootpath, stdout=silent, stderr=silent, start_new_session=True
            )
            self.config.add_cleanup(lambda: _end(compiler))

    def _reschedule(self, node: WorkerController) -> None:
        if self._is_filler(node) and not node.shutting_down and self._next(is_light, is_spare) is None:
            node.shutdown()  # it ends what it has
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Hand out the first stream, but light ones, which the third process has, last."""
        if self._is_filler(node):
            name = self._next(is_light, is_spare)
        else:
            name = self._next(is_light if time.time() > UNTIL - _LIGHT_S else is_heavy)
        if name is not None:  # else all that is left is of the other kind
            self.workqueue.move_to_end(name, last=False)
        super()._assign_work_unit(node)

    def _is_filler(self, node: WorkerController) -> bool:
        return is_filler(node.gateway.id, self.numnodes)

    def _next(self, *kinds: Callable[[str], bool]) -> str | None:
        """The first stream of the first of these kinds that has any."""
        streams = self.workqueue.items()
        found = (name for is_so in kinds for name, tests in streams if all(map(is_so, tests)))
        return next(found, None)

    def remove_node(self, node: WorkerController) -> str | None:
        """Reassign the unfinished streams of a worker that crashed, and return the test that it crashed in.

        xdist would reassign its finished streams, too. A worker whose only streams are finished never reports a result,
        so it never gets more work, and the run hangs.
        """
        streams = self.assigned_work[node]
        for name in [name for name, tests in streams.items() if all(tests.values())]:
            del streams[name]
        return super().remove_node(node)

    def _split_scope(self, nodeid: str) -> str:
        if self._late is None:
            self._late = late_of(next(iter(self.registered_collections.values())))
        return stream_of(nodeid) + (" late" if nodeid in self._late else "")


def _end(compiler: subprocess.Popen[bytes]) -> None:
    """With what it has started. It has ended before, unless the tests that need it were left out."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(compiler.pid, signal.SIGKILL)
    compiler.wait()


def pytest_collection_finish() -> None:
    """Only now: all processes wait until each has found the tests."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if is_filler(os.environ.get("PYTEST_XDIST_WORKER", ""), processes):
        os.nice(5)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Any:
    """xdist asks for it when several processes are wanted."""
    return Streams(config, log)
