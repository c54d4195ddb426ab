"""What lines of output do to a trial: no restart, no more on that host, a label. With real processes and Temporal."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from api.errors import Unavailable
from api.ingest.log_writer import LogWriter
from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config

CANCEL = {"name": "bad data", "pattern": "shard .* is corrupt", "action": "cancel_retries"}
EXCLUDE = {"name": "bad node", "pattern": "^NCCL fault", "action": "exclude_node"}

#: The line that matters is the last one before the end.
CORRUPT = "import sys\nprint('reading')\nprint('shard 7 is corrupt')\nsys.exit(3)\n"

#: Says that its host is bad in its first run, and trains in the others.
BAD_NODE = (
    "import sys\n"
    "import determined as det\n"
    "if det.get_cluster_info().trial._trial_run_id == 1:\n"
    "    print('NCCL fault')\n"
    "    sys.exit(1)\n"
) + TRAIN


async def only_trial(cluster: Platform, experiment_id: int) -> dict[str, Any]:
    [trial] = await cluster.trials(experiment_id)
    return trial


async def agents_of(cluster: Platform, trial_id: int) -> list[list[str]]:
    """Where each run was."""
    told = await cluster.get(f"/api/v1/undeterred/trials/{trial_id}/why")
    return [run["agents"] for run in told["facts"]["runs"]]


async def test_trial_is_not_restarted_when_its_last_line_cancels_retries(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(max_restarts=3, log_policies=[CANCEL]), {"train.py": CORRUPT})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    trial = await only_trial(cluster, experiment_id)
    assert (trial["state"], trial["restarts"], trial["runId"]) == ("STATE_ERROR", 0, 1)
    said = "not restarted, as the log policy `bad data` matched the line `shard 7 is corrupt`: exited with code 3"
    assert trial["message"] == said
    assert trial["logPolicyMatched"] == "bad data"
    told = (await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why"))["sentences"]
    assert told[0].endswith(said)
    lines = await cluster.logs(trial["id"])
    assert any("trial failed and matched logs to a don't retry policy" in line for line in lines)


async def test_trial_is_restarted_when_no_line_matches(cluster: Platform) -> None:
    script = CORRUPT.replace("shard 7", "block 7")
    experiment_id = await cluster.create(config(max_restarts=1, log_policies=[CANCEL]), {"train.py": script})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    trial = await only_trial(cluster, experiment_id)
    assert (trial["restarts"], trial["runId"], trial["logPolicyMatched"]) == (1, 2, None)


async def test_trial_completes_when_a_line_matched_and_it_did_not_fail(cluster: Platform) -> None:
    script = "print('shard 7 is corrupt, and left out')\n" + TRAIN
    experiment_id = await cluster.create(config(log_policies=[CANCEL]), {"train.py": script})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert (await only_trial(cluster, experiment_id))["logPolicyMatched"] == "bad data"


async def test_earlier_match_is_over_when_the_experiment_is_continued(cluster: Platform) -> None:
    runs = (
        "import sys\n"
        "import determined as det\n"
        "run = det.get_cluster_info().trial._trial_run_id\n"
        "if run == 1:\n"
        "    print('shard 7 is corrupt')\n"
        "if run < 3:\n"
        "    sys.exit(3)\n"
    )
    experiment_id = await cluster.create(config(max_restarts=3, log_policies=[CANCEL]), {"train.py": runs + TRAIN})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    await cluster.post("/api/v1/experiments/continue", {"id": experiment_id})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trial = await only_trial(cluster, experiment_id)
    assert (trial["restarts"], trial["runId"]) == (1, 3), "run 2 failed, and was started again"


async def test_trial_goes_to_another_host_when_a_line_excludes_its_own(cluster: Platform) -> None:
    await cluster.start_agent("agent-b")
    experiment_id = await cluster.create(config(max_restarts=1, log_policies=[EXCLUDE]), {"train.py": BAD_NODE})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trial = await only_trial(cluster, experiment_id)
    assert (trial["restarts"], trial["runId"]) == (1, 2)
    first, second = await agents_of(cluster, trial["id"])
    assert first != second
    told = (await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why"))["sentences"]
    assert f"never runs on {first[0]} again: the log policy `bad node` matched the line `NCCL fault`" in told


async def test_trial_ends_with_a_sentence_when_no_host_is_left(cluster: Platform) -> None:
    [agent_id] = cluster.agents
    experiment_id = await cluster.create(config(max_restarts=3, log_policies=[EXCLUDE]), {"train.py": BAD_NODE})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    trial = await only_trial(cluster, experiment_id)
    assert (trial["state"], trial["restarts"]) == ("STATE_ERROR", 1)
    assert trial["message"] == (
        f"log policies excluded every agent of pool `{cluster.pool}` that could hold 1 slot ({agent_id}: the log policy "
        "`bad node` matched the line `NCCL fault`)"
    )
    other = await cluster.create(config(), {"train.py": TRAIN})
    assert (await cluster.finish(other))["state"] == "STATE_COMPLETED", "the host is excluded for that trial only"


async def test_end_is_judged_after_the_last_line_when_the_api_does_not_take_lines(
    cluster: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A match may be in what was not delivered: the verdict waits for it, and the slots do not."""
    real, refusals = LogWriter.store, 0

    def away(*arguments: Any) -> None:
        nonlocal refusals
        refusals += 1
        raise Unavailable("the database is away")

    monkeypatch.setattr(LogWriter, "store", away)
    wanted = config(max_restarts=3, log_policies=[CANCEL], resources={"slots_per_trial": 2})
    experiment_id = await cluster.create(wanted, {"train.py": CORRUPT})
    await cluster.until(lambda: refusals >= 3, what="lines were refused")
    trial = await only_trial(cluster, experiment_id)

    async def waits_for_output() -> bool:
        handle = cluster.temporal.get_workflow_handle(f"trial-{trial['id']}")
        history = await handle.fetch_history()
        names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
        return "drain_container" in names

    await cluster.until(waits_for_output, what="the trial waits for the output of its container")
    trial = await only_trial(cluster, experiment_id)
    assert (trial["message"], trial["restarts"]) == ("", 0), "it is not judged yet"
    other = await cluster.create(config(resources={"slots_per_trial": 2}), {"train.py": "print('here')"})
    assert (await cluster.finish(other))["state"] == "STATE_COMPLETED", "its slots are free"
    monkeypatch.setattr(LogWriter, "store", real)
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    trial = await only_trial(cluster, experiment_id)
    assert (trial["restarts"], trial["runId"]) == (0, 1)
    assert "`shard 7 is corrupt`" in trial["message"]


async def test_killed_trial_does_not_wait_for_its_output(cluster: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: Any) -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(LogWriter, "store", away)
    script = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
    experiment_id = await cluster.create(config(log_policies=[CANCEL]), {"train.py": script})
    await cluster.until_state(experiment_id, "RUNNING")
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id, 30))["state"] == "STATE_CANCELED"


async def test_trial_ends_when_an_import_fails_again(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(max_restarts=5), {"train.py": "import no_such_module"})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    trial = await only_trial(cluster, experiment_id)
    assert (trial["restarts"], trial["runId"]) == (1, 2)
    assert trial["message"].startswith(
        "not restarted, as it failed in this way 2 times in a row: exited with code 1: ModuleNotFoundError: No module "
        f"named 'no_such_module'; its Python is {sys.executable}: `{sys.executable} -m pip install no_such_module`"
    )


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("import sys; sys.exit(3)", "user_code"),
        ("import no_such_module", "import"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "terminated"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal"),
        ("print('done')", "nothing_reported"),
        (TRAIN, "out_of_operations"),
    ],
)
async def test_cause_of_the_end_is_recorded(cluster: Platform, script: str, cause: str) -> None:
    experiment_id = await cluster.create(config(), {"train.py": script})
    await cluster.finish(experiment_id)
    trial = await only_trial(cluster, experiment_id)
    told = await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why")
    assert [run["cause"] for run in told["facts"]["runs"]] == [cause]


async def test_cause_says_that_it_did_not_leave_in_time_when_killed_for_that(cluster: Platform) -> None:
    script = TRAIN.replace("if context.preempt.should_preempt():", "if context.preempt.should_preempt() and False:")
    wanted = config({"max_length": 10_000}, hyperparameters={"sleep": 0.05}, preemption_timeout=1)
    experiment_id = await cluster.create(wanted, {"train.py": script})
    await cluster.until_state(experiment_id, "RUNNING")
    trial = await only_trial(cluster, experiment_id)

    async def trains() -> bool:
        return len(await cluster.metrics(trial["id"])) > 0

    await cluster.until(trains, what="a step is reported")
    await cluster.command(experiment_id, "pause")

    async def ended() -> str | None:
        told = await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why")
        return told["facts"]["runs"][0]["cause"]

    await cluster.until(ended, what="the run was judged")
    assert await ended() == "unresponsive"
    await cluster.command(experiment_id, "kill")
    await cluster.finish(experiment_id)
