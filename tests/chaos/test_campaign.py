"""kill -9 at each step of a campaign: of each part of an embedded cluster in turn, and of all at once, then `det up`.

Each step is launched once, its experiment is made once, and the run ends with a registered model.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.embedded import PARTS, Embedded
from tests.kit.scripts import TRAIN

_SEARCHER = "metric: accuracy, smaller_is_better: false"
CAMPAIGN = f"""
name: chaos
steps:
  pretrain:
    experiment:
      entrypoint: python3 train.py
      max_restarts: 0
      hyperparameters: {{sleep: 0.1}}
      searcher: {{name: single, {_SEARCHER}, max_length: 10}}
  search:
    experiment:
      entrypoint: python3 train.py
      max_restarts: 0
      hyperparameters: {{sleep: 0.1, quality: {{type: double, minval: 0.1, maxval: 1}}}}
      searcher:
        {{name: random, {_SEARCHER}, max_trials: 2, max_concurrent_trials: 2, max_length: 20,
         source_checkpoint_uuid: "${{steps.pretrain.best_checkpoint}}"}}
  tune:
    experiment:
      entrypoint: python3 train.py
      max_restarts: 0
      hyperparameters: {{sleep: 0.1, quality: "${{steps.search.hparams.quality}}"}}
      searcher: {{name: single, {_SEARCHER}, max_length: 30, source_trial_id: "${{steps.search.best_trial}}"}}
  evaluate:
    task: {{entrypoint: ["sleep", "3"], resources: {{slots: 0}}}}
    after: [tune]
  publish:
    register: {{checkpoint: "${{steps.tune.best_checkpoint}}", model: chaos}}
    after: [evaluate]
"""
STEPS = ("pretrain", "search", "tune", "evaluate", "publish")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path).stopped() as cluster:
        yield cluster


@pytest.mark.timeout(420)
def test_campaign_comes_to_its_end_when_the_cluster_is_killed_at_each_step(embedded: Embedded) -> None:
    embedded.up()
    code = embedded.folder / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    (code / "campaign.yaml").write_text(CAMPAIGN)
    done = embedded.det("campaign", "create", str(code / "campaign.yaml"), str(code), "--run")
    assert done.returncode == 0, done.stdout + done.stderr
    for step, killed in zip(STEPS, [*((part,) for part in PARTS), PARTS], strict=True):

        def has_begun(step: str = step) -> bool:
            return embedded.rows(f"SELECT 1 FROM campaign_steps WHERE name = '{step}' AND state != 'WAITING'") != []

        embedded.until(has_begun, 90, f"{step} has begun", every_s=0.02)
        for part in killed:
            os.kill(embedded.pid(part), signal.SIGKILL)
        took = embedded.up()
        print(f"kill -9 {'+'.join(killed)} at {step}: up again after {took:.1f} s")
    embedded.until(
        lambda: embedded.rows("SELECT 1 FROM campaign_runs WHERE ended_at IS NOT NULL"), 120, "the run is over"
    )
    steps = embedded.rows("SELECT name, state, attempt, message FROM campaign_steps ORDER BY place")
    assert steps == [(step, "COMPLETED", 1, "") for step in STEPS]
    assert embedded.rows("SELECT state FROM campaign_runs") == [("COMPLETED",)]
    assert embedded.rows("SELECT state FROM experiments") == [("COMPLETED",)] * 3, "each was made once"
    assert embedded.rows("SELECT count(*) FROM tasks WHERE trial_id IS NULL") == [(1,)]
    assert embedded.rows("SELECT version FROM model_versions") == [(1,)]
