"""Log policies: a line is matched before it is acknowledged, once for each allocation and agent (experiment-config.md §13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, select

from api.ingest import log_policies
from api.ingest.log_policies import LogPolicies
from database.models import Allocation, LogPolicyMatch, Trial
from tests.integration.api.served import Run, Served
from workflows.lifecycle.allocation import ContainerResult
from workflows.messages import AllocationFacts, CloseAllocation

OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
POLICIES = [
    {"name": "bad data", "pattern": "shard .* is corrupt", "action": "cancel_retries"},
    {"name": "bad node", "pattern": r"^NCCL .* timeout", "action": "exclude_node"},
    {"pattern": "fatal: .*", "action": {"type": "cancel_retries"}},
]


def entry(run: Run, text: str, offset: int | None = 0, **more: Any) -> dict[str, Any]:
    """A line as our agents send it."""
    return {
        "allocationId": run.allocation_id, "agentId": "agent-a", "containerId": f"{run.allocation_id}-0",
        "lineOffset": offset, "timestamp": "2024-05-01T10:00:00+00:00", "source": "task", "stdtype": "stdout", "log": text,
    } | more  # fmt: skip


async def send(api: Served, *entries: dict[str, Any]) -> None:
    assert await api.agent.post("/api/v1/task/logs", {"logs": list(entries)}) == {}


def matches(api: Served, run: Run) -> list[tuple[str | None, str, str]]:
    """Label, agent and line of each, in the order of the configuration."""
    with api.database.read() as session:
        found = session.scalars(
            select(LogPolicyMatch)
            .where(LogPolicyMatch.allocation_id == run.allocation_id)
            .order_by(LogPolicyMatch.policy, LogPolicyMatch.agent_id)
        )
        return [(match.name, match.agent_id, match.line) for match in found]


async def close(api: Served, run: Run, code: int = 1) -> AllocationFacts:
    results = [ContainerResult(container_id=f"{run.allocation_id}-0", code=code)]
    order = CloseAllocation(allocation_id=run.allocation_id, results=results)
    return await asyncio.to_thread(api.records.close_allocation, order)


async def label(api: Served, run: Run) -> str | None:
    return (await api.user().get(f"/api/v1/trials/{run.trial_id}"))["trial"]["logPolicyMatched"]


# -- matching ----------------------------------------------------------------------------------------------------------


async def test_built_in_policies_label_trial_and_run(api: Served) -> None:
    run = await api.trial(api.user())
    assert await label(api, run) is None
    await send(api, entry(run, "step 1"), entry(run, OOM, 1), entry(run, "step 2", 2))
    assert await label(api, run) == "CUDA OOM"
    assert matches(api, run) == [("CUDA OOM", "agent-a", OOM)]
    task = await api.user().get(f"/api/v1/tasks/{run.task_id}")
    assert [allocation["logPolicyMatched"] for allocation in task["task"]["allocations"]] == ["CUDA OOM"]
    listed = await api.user().get(f"/api/v1/experiments/{run.experiment_id}/trials")
    assert [trial["logPolicyMatched"] for trial in listed["trials"]] == ["CUDA OOM"]
    facts = await close(api, run)
    assert (facts.retries_canceled, facts.excluded) == (None, {}), "a label has no further consequence"


async def test_label_is_that_of_the_latest_match(api: Served) -> None:
    run = await api.trial(api.user())
    await send(api, entry(run, "uncorrectable ECC error encountered"))
    await send(api, entry(run, OOM, 1))
    assert await label(api, run) == "CUDA OOM"


async def test_policy_is_off_when_the_configuration_only_names_it(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=[{"name": "CUDA OOM"}])
    await send(api, entry(run, OOM), entry(run, "uncorrectable ECC error encountered", 1))
    assert [name for name, _, _ in matches(api, run)] == ["ECC Error"]


async def test_first_line_counts_when_many_match_and_are_sent_again(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    first = [entry(run, f"shard {n} is corrupt", n) for n in range(3)]
    await send(api, *first)
    await send(api, *first, entry(run, "shard 9 is corrupt", 9))
    api.parts.logs.policies = LogPolicies(api.database)  # another process, which has seen nothing yet
    await send(api, *first[1:])
    assert matches(api, run) == [("bad data", "agent-a", "shard 0 is corrupt")]


async def test_each_allocation_and_agent_has_its_own_match(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "NCCL x timeout"), entry(run, "NCCL y timeout", 1, agentId="agent-b"))
    again = await api.next_run(run)
    await send(api, entry(again, "NCCL z timeout", 5))
    assert matches(api, run) == [("bad node", "agent-a", "NCCL x timeout"), ("bad node", "agent-b", "NCCL y timeout")]
    assert matches(api, again) == [("bad node", "agent-a", "NCCL z timeout")]


@pytest.mark.parametrize(
    "line",
    [
        '{"name": "x", "log_policies": [{"pattern": "shard .* is corrupt"}], "a": "shard 1 is corrupt"}',
        "config: {'log_policies': [{'name': 'shard 1 is corrupt'}]}",
        "  - pattern: shard .* is corrupt",
        '  "pattern": "shard .* is corrupt",',
        "log_policies: shard 1 is corrupt",
    ],
)
async def test_line_that_prints_the_configuration_does_not_match(api: Served, line: str) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, line))
    assert matches(api, run) == []


async def test_lines_of_a_container_count_for_its_own_allocation(api: Served) -> None:
    """What it says of allocation and agent has no consequences for others."""
    run, other = [await api.trial(api.user(), log_policies=POLICIES) for _ in range(2)]
    claimed = {"allocationId": other.allocation_id, "agentId": "agent-z", "log": "NCCL x timeout"}
    assert await run.container.post("/api/v1/task/logs", {"logs": [claimed]}) == {}
    assert matches(api, other) == []
    assert matches(api, run) == [("bad node", "", "NCCL x timeout")]
    assert list((await close(api, run)).excluded) == ["agent-a"], "the agents that it ran on"
    run = await api.next_run(run)
    older = [{"task_id": run.task_id, "log": "fatal: x"}]
    response = await run.container.ask("POST", "/task-logs", older)
    assert response.status_code == 200
    assert matches(api, run) == [(None, "", "fatal: x")]


async def test_lines_are_taken_when_their_allocation_is_unknown_or_was_deleted(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "fatal: x", allocationId="no.such.1"))
    await send(api, entry(run, "all is well", 1))
    with api.database.write() as session:
        session.execute(delete(Allocation).where(Allocation.id == run.allocation_id))
    await send(api, entry(run, "fatal: y", 2, taskId=run.task_id))
    assert matches(api, run) == []


async def test_matches_go_with_their_trial_when_it_is_deleted(api: Served) -> None:
    run = await api.trial(api.user())
    await send(api, entry(run, OOM))
    with api.database.write() as session:
        session.execute(delete(Trial).where(Trial.id == run.trial_id))
    assert matches(api, run) == []


async def test_pattern_is_given_up_with_a_word_in_the_log_when_it_is_too_slow(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_policies, "_BUDGET_S", 0.0)
    monkeypatch.setattr(log_policies, "_CHARS_BETWEEN_LOOKS", 100)
    user = api.user()
    run = await api.trial(user, log_policies=POLICIES)
    await send(api, *(entry(run, "x" * 90, n) for n in range(5)), entry(run, "fatal: x", 5))
    await send(api, entry(run, "fatal: y", 6))
    assert matches(api, run) == []
    lines = [line["log"] for line in await user.lines(f"/api/v1/trials/{run.trial_id}/logs")]
    assert len(lines) == 8, "every line is kept, and one says so"
    assert sum("take too long on this output" in line for line in lines) == 1


async def test_long_line_is_kept_with_a_match_shortened(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "fatal: " + "x" * 5000))
    [(_, _, line)] = matches(api, run)
    assert line == "fatal: " + "x" * 993


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        (
            [{"name": "x", "pattern": "a(?=b)"}],
            "<config>.log_policies[0].pattern: 'a(?=b)' is not a regular expression of RE2: invalid perl operator: (?=",
        ),
        ([{"name": "x", "pattern": "("}], "'(' is not a regular expression of RE2: missing ): ("),
        ([{"name": "x", "pattern": "a"}, {"name": "x", "pattern": "b"}], 'log_policies have duplicated names "x"'),
    ],
)
async def test_policies_are_refused_at_creation_when_they_can_not_work(
    api: Served, policies: list[dict[str, Any]], said: str
) -> None:
    import yaml

    body = {"config": yaml.safe_dump(api.config(log_policies=policies))}
    assert said in await api.user().refused(400, "POST", "/api/v1/experiments", body)


# -- what a trial learns of it -----------------------------------------------------------------------------------------


async def test_end_of_an_allocation_tells_which_policy_canceled_retries(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "shard 1 is corrupt"), entry(run, "fatal: y", 1))
    facts = await close(api, run)
    assert facts.retries_canceled == "the log policy `bad data` matched the line `shard 1 is corrupt`"
    assert facts.excluded == {}
    again = await api.next_run(run)
    assert (await close(api, again)).retries_canceled == facts.retries_canceled, "it holds for the trial"


async def test_line_is_quoted_without_what_moves_a_cursor(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "fatal: \x1b[2K\rall is well\x07"))
    told = (await close(api, run)).retries_canceled
    assert told == "the log policy with the pattern `fatal: .*` matched the line `fatal:   all is well`"


async def test_policy_without_a_name_is_told_by_its_pattern(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "fatal: y"))
    told = (await close(api, run)).retries_canceled
    assert told == "the log policy with the pattern `fatal: .*` matched the line `fatal: y`"
    assert await label(api, run) is None


async def test_end_of_an_allocation_tells_which_agents_are_excluded(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "NCCL x timeout"), entry(run, "NCCL y timeout", 1, agentId="agent-elsewhere"))
    reason = "the log policy `bad node` matched the line `NCCL x timeout`"
    assert (await close(api, run)).excluded == {"agent-a": reason}


async def test_earlier_matches_are_over_when_the_trial_was_continued(api: Served) -> None:
    run = await api.trial(api.user(), log_policies=POLICIES)
    await send(api, entry(run, "NCCL x timeout"), entry(run, "fatal: y", 1))
    again = await api.next_run(run)
    with api.database.write() as session:
        session.get_one(Trial, run.trial_id).continued_after = 1
    facts = await close(api, again)
    assert (facts.retries_canceled, facts.excluded) == (None, {})


async def test_end_of_an_allocation_tells_of_a_failed_import(api: Served) -> None:
    failed = "ModuleNotFoundError: No module named 'nets'"
    traceback = ["Traceback (most recent call last):", '  File "train.py", line 1, in <module>', failed]
    run = await api.trial(api.user())
    await send(api, *(entry(run, text, n, stdtype="stderr") for n, text in enumerate(traceback)))
    assert (await close(api, run)).import_failure == failed
    again = await api.next_run(run)
    lines = [*traceback, *(f"step {n}" for n in range(9))]
    await send(api, *(entry(again, text, 10 + n) for n, text in enumerate(lines)))
    assert (await close(api, again)).import_failure is None, "it was survived"
    last = await api.next_run(again)
    await send(api, entry(last, failed, 50))
    assert (await close(api, last, code=0)).import_failure is None


FRAMES = ["Traceback (most recent call last):", '  File "train.py", line 1, in <module>', "    main()"]
SURVIVED = [*FRAMES, "ValueError: survived"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*FRAMES, "MemoryError"], "MemoryError"),
        ([*SURVIVED, "", "During handling of the above exception, another exception occurred:", "", *FRAMES,
          "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 1 GiB"],
         "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 1 GiB"),
        ([*FRAMES, "RuntimeError: first line", "second line", "third"], "RuntimeError: first line"),
        (['  File "train.py", line 1', "    x =", "       ^", "SyntaxError: invalid syntax"], "SyntaxError: invalid syntax"),
        ([*SURVIVED, *(f"step {n}" for n in range(40))], None),
        (["ERROR: no matching distribution", "bye"], None),
        ([], None),
    ],
)  # fmt: skip
async def test_end_of_an_allocation_tells_the_last_line_of_its_exception(
    api: Served, lines: list[str], said: str | None
) -> None:
    run = await api.trial(api.user())
    if lines:
        await send(api, *(entry(run, text, n, stdtype="stderr") for n, text in enumerate(lines)))
    assert (await close(api, run)).last_error == said


async def test_failure_is_that_of_the_rank_that_failed_first(api: Served) -> None:
    run = await api.trial(api.user())
    said = [
        *((text, 3) for text in [*FRAMES, "ValueError: the cause"]),
        *((text, 0) for text in [*FRAMES, "ConnectionError: a peer is gone"]),
        *((text, None) for text in [*FRAMES, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "]),
    ]
    await send(api, *(entry(run, text, n, rankId=rank) for n, (text, rank) in enumerate(said)))
    words = "[7] determined.exec.launch: rank 3 ended with exit code 1; all workers were stopped"
    await send(api, entry(run, words, 99, level="ERROR"))
    assert (await close(api, run)).last_error == "ValueError: the cause"
    torch = await api.next_run(run)
    said = [
        *("[rank0]: " + text for text in [*FRAMES, "ValueError: the cause"]),
        *("[rank1]: " + text for text in [*FRAMES, "ConnectionError: a peer is gone"]),
        *FRAMES, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):", "[0]:", "  rank      : 0 (local_rank: 0)",
    ]  # fmt: skip
    await send(api, *(entry(torch, text, 200 + n) for n, text in enumerate(said)))
    assert (await close(api, torch)).last_error == "ValueError: the cause", "under torch's own launcher"
    again = await api.next_run(torch)
    words = "[7] determined.exec.launch: the entrypoint's command 'x' was not found (in /w, PATH=/bin)"
    await send(api, entry(again, words, 100, level="ERROR"))
    assert (await close(api, again)).last_error == "the entrypoint's command 'x' was not found (in /w, PATH=/bin)"


async def test_end_of_an_allocation_tells_whether_anything_was_ever_reported(api: Served) -> None:
    run = await api.trial(api.user())
    assert not (await close(api, run, code=0)).has_reported
    again = await api.next_run(run)
    await again.report("training", 1, {"loss": 1.0})
    assert (await close(api, again)).has_reported
    last = await api.next_run(again)
    assert (await close(api, last)).has_reported, "in an earlier run"
