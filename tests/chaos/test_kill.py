"""kill -9 of every part of an embedded cluster while a search runs, one after the other and all at once, then `det up`.

The search ends with the same number of trials, each validation is counted once, and a training process that was alive
is not restarted. The figures are printed (`pytest -s`, and always in the summary of a failure).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.embedded import PARTS, Embedded
from tests.kit.scripts import TRAIN

CONFIG = """
name: chaos
entrypoint: python3 train.py
hyperparameters:
  quality: {type: double, minval: 0, maxval: 1}
  sleep: 0.25
searcher: {name: adaptive_asha, metric: accuracy, smaller_is_better: false, max_length: 16, max_trials: 8,
           max_concurrent_trials: 2, divisor: 2}
max_restarts: 0
reproducibility: {experiment_seed: 7}
"""


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path).stopped() as cluster:
        yield cluster


@pytest.mark.timeout(420)
def test_search_loses_nothing_when_its_control_plane_is_killed(embedded: Embedded) -> None:
    embedded.up()
    embedded.create(CONFIG, TRAIN)
    figures: list[str] = []
    for killed in [*((part,) for part in PARTS), PARTS]:
        # kill while both slots train, so that there is something to lose
        embedded.until(lambda: len(embedded.training()) == 2 or _is_over(embedded), 60, "two trials train")
        assert not _is_over(embedded), "the search ended before everything was killed: make it longer"
        before = embedded.training()
        for part in killed:
            os.kill(embedded.pid(part), signal.SIGKILL)
        took = embedded.up()
        after = embedded.training()
        restarted = [key for key, pid in before.items() if key in after and after[key] != pid]
        figures.append(f"kill -9 {'+'.join(killed)}: up again after {took:.1f} s, {len(before)} trained, "
                       f"{sum(after.get(key) == pid for key, pid in before.items())} of them go on, "
                       f"{len(restarted)} restarted")  # fmt: skip
        assert not restarted
    embedded.until(lambda: _is_over(embedded), 180, "the search is over")
    print("\n" + "\n".join(figures))

    assert embedded.rows("SELECT state, progress FROM experiments") == [("COMPLETED", 1.0)]
    trials = embedded.rows("SELECT id, state, restarts, total_batches FROM trials")
    assert len(trials) == 8
    assert {(state, restarts) for _, state, restarts, _ in trials} == {("COMPLETED", 0)}
    for trial_id, _, _, total in trials:
        reports = embedded.rows(
            f"SELECT total_batches FROM metrics WHERE trial_id = {trial_id} AND group_name = 'validation' "
            "AND archived = 0 ORDER BY total_batches"
        )
        assert [step for (step,) in reports] == list(range(1, total + 1)), "each validation is counted once"
    causes = {cause for (cause,) in embedded.rows("SELECT DISTINCT end_cause FROM allocations")}
    assert causes <= {"out_of_operations", "exit_zero"}, "no allocation ended for a fault of ours"
    steps = [line for (line,) in embedded.rows("SELECT log FROM task_logs WHERE log LIKE 'step %'")]
    assert len(steps) == sum(total for *_, total in trials), "each step was trained once, and each line is kept once"


def _is_over(embedded: Embedded) -> bool:
    return embedded.rows("SELECT state FROM experiments WHERE ended_at IS NOT NULL") != []
