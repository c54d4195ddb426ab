"""Which trials count as hanging: what breaks a silence, what does not, and when there is nobody to hear."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from api.services.silence import Silence
from database.log_blocks import Line
from database.log_lines import HANGS, insert_lines, is_noted
from database.models import Agent, Allocation, Checkpoint, Experiment, Outbox, Project, Task, Trial, User
from database.session import Database
from database.types import utc_now
from tests.kit.records import seeded

_POLICIES = [{"failure": "hang", "silent_for": "60s"}, {"failure": "out_of_memory", "silent_for": None}]
_STACK = [
    "determined.exec.launch: no worker of this container has gone on for 300 s (DET_STALL_STACKS_S). Nothing is ended",
    "what process 830 is doing:",
    "Current thread 0x00007fd75361bb80 (most recent call first):",
    '  File "/opt/torch/distributed_c10d.py", line 4181 in all_reduce',
    "  <no Python frame>",
]


class Watch:
    """A trial that runs, and a clock that stands until it is moved."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 1000.0
        self.silence = Silence(database, lambda: self.now)
        self.lines = 0

    def after(self, seconds: float) -> list[str]:
        """Look as often as it is due for some time; who hangs by then."""
        found: list[str] = []
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.silence.pause_s)
            found += self.silence.look()
        return found

    def change(self, kind: Any, **values: Any) -> None:
        with self.database.write() as session:
            session.execute(update(kind).values(**values))

    def write(self, *texts: str, source: str = "task") -> None:
        with self.database.write() as session:
            for text in texts:
                self.lines += 1
                insert_lines(session, [Line(
                    task_id="t", allocation_id="t.1", agent_id="a", container_id="c", line_offset=self.lines,
                    rank_id=None, timestamp=utc_now(), level=None, source=source, stdtype="stdout", log=text)])  # fmt: skip


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with seeded(f"sqlite:///{tmp_path}/records.db") as database:
        with database.write() as session:
            owner_id = session.scalars(select(User.id)).first() or 0
            project_id = session.scalars(select(Project.id)).first() or 0
            session.add(Agent(id="a", pool="default", slot_ids=[0], is_connected=True))
            session.add(Experiment(
                id=1, job_id="j", name="e", state="ACTIVE", config={"failure_policies": _POLICIES}, original_config="",
                searcher_name="single", searcher_metric="loss", resource_pool="default", owner_id=owner_id,
                project_id=project_id))  # fmt: skip
            session.flush()
            session.add(Trial(id=1, experiment_id=1, request_id="r", task_id="t", seed=1, hparams={}, state="ACTIVE"))
            session.flush()
            session.add(Task(id="t", kind="TRIAL", owner_id=owner_id, trial_id=1, job_id="j", state="ACTIVE"))
            session.flush()
            session.add(Allocation(id="t.1", task_id="t", trial_id=1, experiment_id=1, run_id=1, state="RUNNING", pool="default",
                                   slots=1, placements=[{"agent_id": "a", "rank": 0}]))  # fmt: skip
        yield Watch(database)


def test_trial_that_says_nothing_hangs_once_its_time_is_over(watch: Watch) -> None:
    assert watch.after(15) == [], "first seen"
    assert watch.after(54) == []
    assert watch.after(6) == ["t.1"]
    with watch.database.read() as session:
        sent = session.scalars(select(Outbox)).one()
        assert (sent.workflow_id, sent.kind) == ("trial-1", "fell_silent")
        assert (sent.payload["allocation_id"], sent.payload["reason"]) == ("t.1", "60s")
        assert is_noted(session, "t.1", HANGS)
    assert watch.after(54) == []
    assert watch.after(12) == ["t.1"], "a workflow that did not end it is notified again"


@pytest.mark.parametrize(
    ("kind", "values"),
    [(Trial, {"progress": 0.5}), (Trial, {"total_batches": 7}), (Trial, {"summary": {"training": {"loss": 1}}}),
     (Trial, {"runner_state": "validating"})],
)  # fmt: skip
def test_report_breaks_a_silence(watch: Watch, kind: Any, values: dict[str, Any]) -> None:
    assert watch.after(70) == []
    watch.change(kind, **values)
    assert watch.after(60) == []
    assert watch.after(12) == ["t.1"]


def test_checkpoint_breaks_a_silence(watch: Watch) -> None:
    assert watch.after(70) == []
    with watch.database.write() as session:
        session.add(Checkpoint(uuid="u", task_id="t", allocation_id="t.1", trial_id=1, experiment_id=1, size_bytes=1,
                               state="COMPLETED", resources={}, metadata_={}, steps_completed=1,
                               reported_at=utc_now()))  # fmt: skip
    assert watch.after(60) == []


def test_output_breaks_a_silence_and_stacks_do_not(watch: Watch) -> None:
    assert watch.after(70) == []
    watch.write(*_STACK, "epoch 3")
    assert watch.after(60) == []
    watch.write(*_STACK)
    watch.write("the cluster's own words", source="master")
    assert watch.after(12) == ["t.1"]


def test_time_in_which_nobody_could_hear_it_does_not_count(watch: Watch) -> None:
    assert watch.after(70) == []
    watch.now += 3600  # this process, or its database, stood still
    assert watch.silence.look() == []
    watch.change(Agent, is_connected=False)
    assert watch.after(200) == []
    watch.change(Agent, is_connected=True)
    assert watch.after(54) == []
    assert watch.after(12) == ["t.1"]


def test_gang_whose_containers_still_come_does_not_hang(watch: Watch) -> None:
    watch.change(Allocation, placements=[{"agent_id": "a", "rank": 0}, {"agent_id": "a", "rank": 1}])
    assert watch.after(200) == []


@pytest.mark.parametrize(
    "values",
    [{"preempt_requested_at": utc_now()}, {"ended_at": utc_now()}, {"state": "PULLING"}],
    ids=["leaves", "ended", "pulls"],
)
def test_run_that_leaves_has_ended_or_pulls_its_image_does_not_hang(watch: Watch, values: dict[str, Any]) -> None:
    watch.change(Allocation, **values)
    assert watch.after(200) == []


def test_trial_without_such_a_policy_may_be_silent(watch: Watch) -> None:
    watch.change(Experiment, config={"failure_policies": [{"failure": "crash", "silent_for": None}]})
    assert watch.after(200) == []
    assert watch.silence.pause_s == 15
