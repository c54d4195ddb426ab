"""The whole control plane is down under four running trials; they train on, and nothing that they say is lost.

Two of them train through the outage. One ends its script in it, one is killed in it. `UNDETERRED_OUTAGE_S` says how long
API, orchestrator and Temporal are away: short in `make test`, long in a soak. The figures are printed (`pytest -s`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.scale import chosen
from tests.kit.embedded import Embedded

OUTAGE_S = float(os.environ.get("UNDETERRED_OUTAGE_S") or chosen(25, 600))
DOWN = ("api", "orchestrator", "temporal")

CONFIG = """
name: outage
entrypoint: python3 train.py
hyperparameters:
  role: {{type: categorical, vals: [a, b, ends, killed]}}
  folder: {folder}
searcher: {{name: grid, metric: accuracy, smaller_is_better: false, max_concurrent_trials: 4}}
max_restarts: {max_restarts}
"""

TRAIN = '''
"""Reports every step until told to end, and notes beside it how far it came. No operations, no checkpoints."""
import pathlib, sys, time
import determined as det
from determined import core

info = det.get_cluster_info()
role, folder = info.trial.hparams["role"], pathlib.Path(info.trial.hparams["folder"])
run = info.trial._trial_run_id
steps = 0
with core.init() as context:
    while True:
        steps += 1
        context.train.report_training_metrics(steps, {"loss": 1 / steps})
        context.train.report_validation_metrics(steps, {"accuracy": steps / 1000})
        context.train.report_progress(min(1.0, steps / 10_000))
        print(f"step {steps}", flush=True)
        note = folder / f"{role}-{run}"
        note.with_suffix(".new").write_text(str(steps))
        note.with_suffix(".new").rename(note)  # a half-written one would be read as none
        if (folder / f"end-{role}").exists() or run > 1:
            print(f"the script of {role} ends", flush=True)
            break
        time.sleep(0.75 if role == "killed" else 0.25)  # so that it is known in which step it is killed
'''


class Trials:
    """What the training processes noted themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def steps(self, role: str, run: int = 1) -> int:
        """How many steps a trial has reported."""
        try:
            return int((self.folder / f"{role}-{run}").read_text())
        except FileNotFoundError:
            return 0

    def end(self, role: str) -> None:
        """Have its script end after the next step."""
        (self.folder / f"end-{role}").touch()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path, slots=4).stopped() as cluster:
        yield cluster


def hold(seconds: float, embedded: Embedded) -> None:
    """The outage goes on: nothing of what was killed comes back by itself."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(1.0, left))
    for part in DOWN:
        assert not Path(f"/proc/{embedded.pid(part)}").exists()


@pytest.mark.timeout(300 + 2 * OUTAGE_S)
@pytest.mark.parametrize("agent", ["agent lives", "agent dies too"])
def test_nothing_is_lost_when_the_control_plane_is_down(embedded: Embedded, tmp_path: Path, agent: str) -> None:
    outage_s = OUTAGE_S if agent == "agent lives" else min(OUTAGE_S, 16.0)
    trials = Trials(tmp_path / "trials")
    embedded.up()
    embedded.create(CONFIG.format(folder=trials.folder, max_restarts=1), TRAIN)
    roles = ("a", "b", "ends", "killed")
    embedded.until(lambda: all(trials.steps(role) >= 5 for role in roles), 60, "four trials train")
    before = embedded.training()
    ids = {role: trial_id for trial_id, role in embedded.rows("SELECT id, json_extract(hparams, '$.role') FROM trials")}
    pids = {
        role: before[f"{task}.1"]
        for role, task in embedded.rows("SELECT json_extract(hparams, '$.role'), task_id FROM trials")
    }

    for part in (*DOWN, "agent") if agent == "agent dies too" else DOWN:
        os.kill(embedded.pid(part), signal.SIGKILL)
    began = time.monotonic()
    at_outage = {role: trials.steps(role) for role in roles}
    hold(outage_s / 5, embedded)
    trials.end("ends")
    seen = trials.steps("killed")
    embedded.until(lambda: trials.steps("killed") > seen, 10, "the trial to be killed has made a step")
    time.sleep(0.5)  # within which its reports are on disk, and before its next step
    os.kill(pids["killed"], signal.SIGKILL)
    hold(max(0.0, began + outage_s - time.monotonic()), embedded)
    lived = {role: trials.steps(role) for role in roles}
    alive = set(embedded.training().values())
    assert {pids["a"], pids["b"]} <= alive
    assert pids["killed"] not in alive
    if outage_s > 20:
        assert pids["ends"] not in alive, "it did not wait for the end of the outage"
    took = embedded.up()
    back = time.monotonic()

    counted = "SELECT count(*) FROM metrics WHERE run_id = 1 AND group_name = 'training' AND trial_id = "
    embedded.until(
        lambda: all(embedded.rows(f"{counted}{ids[role]}")[0][0] >= lived[role] for role in roles),
        60,
        "all is reported",
    )
    caught_up = time.monotonic() - back
    after = embedded.training()
    for role in ("a", "b"):
        assert pids[role] in after.values(), "the same process trains on"
        trials.end(role)
    embedded.until(lambda: embedded.rows("SELECT id FROM experiments WHERE ended_at IS NOT NULL"), 60, "it is over")
    final = {role: trials.steps(role) for role in roles}
    print(
        f"\noutage of {back - took - began:.0f} s ({agent}): up again after {took:.1f} s, all reports of it there after "
        f"{caught_up:.1f} s; " + ", ".join(f"{role}: steps {at_outage[role]} to {lived[role]}" for role in roles)
    )

    assert embedded.rows("SELECT state FROM experiments") == [("COMPLETED",)]
    found = {
        role: row
        for role, *row in embedded.rows("SELECT json_extract(hparams, '$.role'), state, restarts, run_id FROM trials")
    }
    assert found == {"a": ["COMPLETED", 0, 1], "b": ["COMPLETED", 0, 1], "ends": ["COMPLETED", 0, 1],
                     "killed": ["COMPLETED", 1, 2]}  # fmt: skip
    causes = dict(embedded.rows("SELECT id, end_cause FROM allocations"))
    tasks = dict(embedded.rows("SELECT json_extract(hparams, '$.role'), task_id FROM trials"))
    assert causes == {f"{tasks['killed']}.1": "signal"} | {
        f"{tasks[role]}.{2 if role == 'killed' else 1}": "exit_zero" for role in roles
    }
    for role in roles:
        for group in ("training", "validation"):
            reports = embedded.rows(
                f"SELECT total_batches FROM metrics WHERE trial_id = {ids[role]} AND run_id = 1 "
                f"AND group_name = '{group}' ORDER BY id"
            )
            steps = [step for (step,) in reports]
            assert steps == list(range(1, len(steps) + 1)), "each is there, in order, once"
            assert len(steps) - final[role] in ((0, 1) if role == "killed" else (0,))
        lines = embedded.rows(
            f"SELECT log FROM task_logs WHERE allocation_id = '{tasks[role]}.1' AND log LIKE 'step %' ORDER BY id"
        )
        assert [line for (line,) in lines] == [f"step {step}" for step in range(1, len(steps) + 1)], "so is its output"
    assert lived["a"] - at_outage["a"] > outage_s * 2, "it trained on all the time"
