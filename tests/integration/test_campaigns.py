"""Campaigns on a real platform: they run to the end, reuse what was done, and begin by schedules."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from database.models import CampaignLaunch, Experiment
from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN

_PATH = "/api/v1/undeterred/campaigns"
_ENDED = ("COMPLETED", "CANCELED", "ERROR")
CAMPAIGN = """
name: nightly
params: {quality: 0.5, model: NAME}
steps:
  pretrain:
    experiment: pretrain.yaml
  search:
    experiment:
      entrypoint: python3 train.py
      max_restarts: 0
      hyperparameters: {quality: {type: double, minval: 0.1, maxval: 1}}
      searcher:
        {name: random, max_trials: 2, max_concurrent_trials: 2, metric: accuracy, smaller_is_better: false, max_length: 4,
         source_checkpoint_uuid: "${steps.pretrain.best_checkpoint}"}
  tune:
    experiment:
      entrypoint: python3 train.py
      max_restarts: 0
      hyperparameters: {quality: "${steps.search.hparams.quality}"}
      searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: 6,
                 source_trial_id: "${steps.search.best_trial}"}
  evaluate:
    task:
      entrypoint: ["python3", "-c", "import sys; sys.exit(0 if '${steps.tune.best_checkpoint}' else 3)"]
      resources: {slots: 0}
  publish:
    register: {checkpoint: "${steps.tune.best_checkpoint}", model: "${params.model}", comment: "run ${run.number}"}
    when: ${steps.tune.metric} > ${params.quality} and ${steps.evaluate.exit_code} == 0
"""
PRETRAIN = """
name: pretrain
entrypoint: python3 train.py
max_restarts: 0
hyperparameters: {quality: "${params.quality}"}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: 2}
"""


async def create(cluster: Platform, text: str, files: dict[str, str] | None = None) -> int:
    packed = [
        {"path": path, "content": base64.b64encode(content.encode()).decode()}
        for path, content in (files or {}).items()
    ]
    return (await cluster.post(_PATH, {"definition": text, "files": packed}))["campaign"]["id"]


async def run_of(cluster: Platform, campaign_id: int, number: int) -> dict[str, Any]:
    return (await cluster.get(f"{_PATH}/{campaign_id}/runs/{number}"))["run"]


async def start(cluster: Platform, campaign_id: int, **body: Any) -> int:
    return (await cluster.post(f"{_PATH}/{campaign_id}/runs", body))["run"]["number"]


async def end(cluster: Platform, campaign_id: int, number: int, timeout_s: float = 90) -> dict[str, Any]:
    async def is_over() -> bool:
        return (await run_of(cluster, campaign_id, number))["state"] in _ENDED

    try:
        await cluster.until(is_over, timeout_s, what=f"run {number} is over")
    except AssertionError as error:
        raise AssertionError(f"{error}: {await run_of(cluster, campaign_id, number)}") from None
    return await run_of(cluster, campaign_id, number)


def states(run: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["state"] for step in run["steps"]}


async def until_states(cluster: Platform, campaign_id: int, number: int, **wanted: str) -> dict[str, Any]:
    async def is_so() -> bool:
        found = states(await run_of(cluster, campaign_id, number))
        return all(found[name] == state for name, state in wanted.items())

    await cluster.until(is_so, 60, what=f"{wanted}")
    return await run_of(cluster, campaign_id, number)


FILES = {"train.py": TRAIN, "pretrain.yaml": PRETRAIN}
ALL = ["pretrain", "search", "tune", "evaluate", "publish"]


async def test_steps_take_what_those_before_them_left_and_the_next_run_reuses_it(cluster: Platform) -> None:
    campaign_id = await create(cluster, CAMPAIGN.replace("NAME", "nightly"), FILES)
    first = await end(cluster, campaign_id, await start(cluster, campaign_id))
    assert (first["state"], states(first)) == ("COMPLETED", dict.fromkeys(ALL, "COMPLETED")), first
    with cluster.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Experiment)) == 3, "each was made once"
        assert list(session.scalars(select(CampaignLaunch.attempt))) == [1] * 5
    outputs = {step["name"]: step["outputs"] for step in first["steps"]}
    assert outputs["tune"]["hparams"] == outputs["search"]["hparams"]
    assert outputs["evaluate"]["exit_code"] == 0
    version = (await cluster.get("/api/v1/models/nightly/versions/1"))["modelVersion"]
    assert version["checkpoint"]["uuid"] == outputs["tune"]["best_checkpoint"]
    assert version["comment"] == "run 1"

    second = await end(cluster, campaign_id, await start(cluster, campaign_id))
    expected = dict.fromkeys(ALL[:-1], "REUSED") | {"publish": "COMPLETED"}  # its comment is another one
    assert (second["state"], states(second)) == ("COMPLETED", expected)
    assert {step["reusedFrom"] for step in second["steps"]} == {1, None}
    assert second["steps"][-1]["outputs"]["version"] == 2


_SLOW = """
name: slow
steps:
  train:
    experiment:
      entrypoint: python3 train.py
      max_restarts: 0
      hyperparameters: {sleep: 0.1}
      searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: 300}
  after:
    task: {entrypoint: ["true"], resources: {slots: 0}}
    after: [train]
"""


async def test_pause_activate_and_cancel_reach_what_its_steps_run(cluster: Platform) -> None:
    campaign_id = await create(cluster, _SLOW, {"train.py": TRAIN})
    number = await start(cluster, campaign_id)
    run = await until_states(cluster, campaign_id, number, train="RUNNING")
    experiment_id = run["steps"][0]["experimentId"]
    path = f"{_PATH}/{campaign_id}/runs/{number}"
    await cluster.until_reported(experiment_id)
    await cluster.post(f"{path}/pause")
    await cluster.until_state(experiment_id, "PAUSED")
    await cluster.post(f"{path}/activate")
    await cluster.until_state(experiment_id, "RUNNING")
    await cluster.post(f"{path}/cancel")
    ended = await end(cluster, campaign_id, number)
    assert (ended["state"], states(ended)) == ("CANCELED", {"train": "CANCELED", "after": "CANCELED"})
    assert (await cluster.experiment(experiment_id))["state"] == "STATE_CANCELED"
    assert "CANCELED: expected one that is" in await cluster.refused(f"{path}/pause", None)


_FAILS = """
name: fails
steps:
  flaky:
    task: {entrypoint: ["python3", "-c", "import sys; sys.exit(3)"], resources: {slots: 0}, max_restarts: 0}
    retries: 1
    if_failed: continue
  cleanup:
    task: {entrypoint: ["true"], resources: {slots: 0}}
    when: ${steps.flaky.state} == "ERROR"
  refused:
    experiment:
      entrypoint: "true"
      searcher: {name: single, metric: x, max_length: 1, source_checkpoint_uuid: "none of ${run.date}"}
    after: [cleanup]
  never:
    task: {entrypoint: ["true"], resources: {slots: 0}}
    after: [refused]
"""


async def test_failed_step_is_tried_again_and_what_is_refused_ends_the_run(cluster: Platform) -> None:
    campaign_id = await create(cluster, _FAILS)
    ended = await end(cluster, campaign_id, await start(cluster, campaign_id))
    assert ended["state"] == "ERROR"
    assert states(ended) == {"flaky": "ERROR", "cleanup": "COMPLETED", "refused": "ERROR", "never": "SKIPPED"}
    by_name = {step["name"]: step for step in ended["steps"]}
    assert by_name["flaky"]["attempt"] == 2
    assert by_name["flaky"]["outputs"]["exit_code"] == 3
    assert "there is no such checkpoint" in by_name["refused"]["message"]
    assert by_name["never"]["message"] == "step refused failed"
    assert ended["message"].startswith("step refused: ")


async def test_schedule_begins_runs_and_past_times_are_done_once(cluster: Platform) -> None:
    text = 'name: often\nschedule: {cron: "* * * * *"}\nsteps:\n  one: {task: {entrypoint: ["true"], resources: {slots: 0}}}\n'
    campaign_id = await create(cluster, text)
    [described] = [each for each in (await cluster.get(_PATH))["campaigns"] if each["id"] == campaign_id]
    assert len(described["schedule"]["next"]) == 5
    await cluster.post(f"{_PATH}/{campaign_id}/pause")
    until = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    wanted = {"start": (until - timedelta(minutes=2)).isoformat(), "end": until.isoformat()}
    times = [until - timedelta(minutes=2), until - timedelta(minutes=1), until]
    for _ in range(2):  # what has had its run gets no other one
        found = (await cluster.post(f"{_PATH}/{campaign_id}/backfill", wanted))["times"]
        assert [datetime.fromisoformat(each) for each in found] == times

        async def all_ended() -> bool:
            runs = (await cluster.get(f"{_PATH}/{campaign_id}/runs"))["runs"]
            return len(runs) >= 3 and all(run["state"] == "COMPLETED" for run in runs)

        await cluster.until(all_ended, 60, what="the past times have had their runs")
    runs = (await cluster.get(f"{_PATH}/{campaign_id}/runs"))["runs"]
    assert [datetime.fromisoformat(run["scheduledAt"]) for run in reversed(runs)] == times
    assert {run["startedBy"] for run in runs} == {""}
    await cluster.delete(f"{_PATH}/{campaign_id}")
