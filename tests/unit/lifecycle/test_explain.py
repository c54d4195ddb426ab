"""What is said of a trial or an experiment: where it is, what it waits for, how its runs ended, what comes next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.lifecycle.allocation import EndCause, ExitKind
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.explain import Phase, explain_experiment, explain_trial, phase
from workflows.lifecycle.facts import Commanded, ExperimentFacts, QueueFacts, RunFacts, TrialFacts
from workflows.lifecycle.trial import TrialState

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
PAUSED = Commanded(command="pause", by="ada", at=NOW - timedelta(hours=1))
KILLED = Commanded(command="kill", by="ada", at=NOW - timedelta(hours=1))
POLICY = "the log policy `ECC` matched the line `ECC error`"


def at(minutes: float) -> datetime:
    """So many minutes ago."""
    return NOW - timedelta(minutes=minutes)


def run(run_id: int = 1, **more: Any) -> RunFacts:
    """An open run, ready since nine minutes."""
    usual: dict[str, Any] = {
        "run_id": run_id, "allocation_id": f"1.a.{run_id}", "state": "RUNNING", "slots": 2, "agents": ["agent-a"],
        "started_at": at(10), "ready_at": at(9),
    }  # fmt: skip
    return RunFacts(**usual | more)


def ended(
    run_id: int = 1, kind: ExitKind = ExitKind.FAILED, cause: EndCause = EndCause.USER_CODE, **more: Any
) -> RunFacts:
    usual: dict[str, Any] = {"state": "TERMINATED", "ended_at": at(5), "message": "exited with code 3", "code": 3}
    return run(run_id, **usual | {"kind": kind.value, "cause": cause.value} | more)


def trial(**more: Any) -> TrialFacts:
    usual: dict[str, Any] = {
        "trial_id": 7, "experiment_id": 3, "state": TrialState.ACTIVE, "max_restarts": 5, "backoff_s": 1.0
    }  # fmt: skip
    return TrialFacts(**usual | more)


def queue(**more: Any) -> QueueFacts:
    usual: dict[str, Any] = {
        "pool": "default", "place": 2, "waiting": 3, "slots": 4, "free": 1, "total": 8, "agents": 2
    }  # fmt: skip
    return QueueFacts(**usual | more)


def told(**facts: Any) -> list[str]:
    return explain_trial(trial(**facts), NOW)


# -- where it is, and what comes next ----------------------------------------------------------------------------------


def test_queued_trial_names_its_place_and_the_slots() -> None:
    assert told(queue=queue()) == [
        "trial 7 waits for 4 slots of pool `default`: place 2 of 3 in the queue, 1 of 8 slots free",
        "if it fails, it starts again after 1 s: restart 1 of 5",
        "0 of 5 restarts spent",
    ]


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (
            {"slots": 0, "most_aux": 4, "free": 0},
            "; each of the pool's agents in reach has as many as it takes: `max_aux_containers_per_agent` is 4",
        ),
        ({"slots": 0, "free_aux": 2, "behind": "trial 2"}, "; trial 2 comes first"),
        ({"slots": 0, "free_aux": 2}, "place 2 of 3 in the queue; there is room for 2 more"),
        (
            {"agents": 0, "total": 0, "fits_ever": False, "is_provided": True},
            "; the pool has no agents: its provider launches nodes for it, see `det resource-pool describe default`",
        ),
        ({"fits_ever": False, "is_provided": True}, "; the pool's agents could not hold it: its provider launches"),
        ({"fits_ever": False}, "; it never fits: the pool's agents are too small or too few"),
        ({"fits_ever": False, "fits_lost": True}, "; only agents that are lost could hold it: it waits for them"),
        ({"agents": 0, "total": 0, "fits_ever": False}, "; the pool has no agents"),
        (
            {"behind": "trial 2 of experiment 1", "behind_slots": 8, "free": 4},
            "; trial 2 of experiment 1 comes first, since it is older, and needs 8 slots",
        ),
        (
            {"behind": "trial 2", "behind_slots": 8, "free": 4, "priority": 42, "behind_priority": 7},
            "; trial 2 comes first, since its priority is 7, and needs 8 slots",
        ),
        (
            {"leaving": 3, "holders": {"trial 2": 4}},
            "; the holders of 3 slots were asked to leave; slots are held by trial 2",
        ),
        ({"policy": "fair_share", "job_slots": 2}, "; slots are shared by weight, and its experiment holds 2"),
        (
            {"is_borrowing": True, "quota": "user ann has 4 slots"},
            "; user ann has 4 slots of this pool's, and they are in use: it may borrow what nobody else claims",
        ),
        (
            {"is_borrowing": True, "quota": "user ann has 4 slots", "lends": False},
            "and they are in use: this pool lends nothing beyond them",
        ),
        (
            {"behind": "trial 2", "holders": {f"trial {n}": 9 - n for n in range(1, 6)}},
            "; slots are held by trial 1 (8), trial 2 (7), trial 3 (6) and 2 more",
        ),
        ({"is_capped": True}, "; its experiment holds all that `max_slots` lets it"),
        ({"is_queued": False}, "trial 7 has not asked pool `default` for slots yet"),
        ({"is_queued": False, "is_granted": True}, "trial 7 was given 4 slots of pool `default` this moment"),
    ],
)
def test_queued_trial_says_what_is_special(standing: dict[str, Any], said: str) -> None:
    assert said in told(queue=queue(**standing))[0]


def test_queue_is_not_known_when_temporal_is_away_and_the_rest_is_told() -> None:
    first, *rest = told(queue_error="Temporal does not answer", runs=[ended()])
    assert first == "trial 7 has no slots; whether it waits for some is not known: Temporal does not answer"
    assert len(rest) == 3


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "trial 7 runs on agent-a since 11:50:00 (run 1)"),
        ({"ready_at": None}, "trial 7 has its container on agent-a since 11:50:00, but its code did not come to"),
        ({"state": "PULLING"}, "trial 7 waits for its image on agent-a, since 11:50:00"),
        ({"state": "ASSIGNED"}, "trial 7 got 2 slots of agent-a at 11:50:00, and its container is being started there"),
        ({"away": ["agent-a"]}, "agent-a is out of reach: what runs there goes on, and is taken up again"),
        ({"started_at": at(3 * 24 * 60)}, "trial 7 runs on agent-a since 2026-04-28 12:00:00 (run 1)"),
    ],
)
def test_open_run_says_how_far_it_is(facts: dict[str, Any], said: str) -> None:
    assert said in told(runs=[run(**facts)])[0]


def test_code_that_uses_core_without_with_is_not_said_to_have_come_nowhere() -> None:
    for facts in ({"has_stored": True}, {"last_report_at": at(8)}):
        first = told(runs=[run(ready_at=None)], **facts)[0]
        assert "trial 7 runs on agent-a since 11:50:00 (run 1), without `with` around its `core.init()`" in first
    before = told(runs=[run(ready_at=None, started_at=at(7))], last_report_at=at(8))[0]
    assert "did not come to `determined.core` yet" in before, "the report is of an earlier run"


def test_trial_that_is_watched_for_a_hang_says_so_while_it_runs() -> None:
    sentence = "if it is silent for 30m, a failure policy has it killed and started again"
    assert sentence in told(runs=[run()], silent_for="30m")
    assert sentence not in told(runs=[ended(1)], silent_for="30m")


def test_silent_trial_says_what_to_do() -> None:
    facts = {"last_report_at": at(18), "last_line_at": at(17)}
    [said] = [each for each in told(runs=[run(started_at=at(60))], **facts) if "silent" in each]
    assert said.startswith("it has been silent for 17 minutes: `det trial logs 7 --tail 50` shows what its threads")
    assert not any("silent" in each for each in told(runs=[run(started_at=at(60))], last_line_at=at(4)))


def test_running_trial_says_when_it_was_last_heard_of() -> None:
    """One that hangs is seen by that."""
    sentences = told(runs=[run()], last_report_at=at(8), last_line_at=at(7))
    assert sentences[1] == "its latest report came at 11:52:00 and its latest line of output came at 11:53:00"
    assert told(runs=[run()], last_line_at=at(7))[1] == "its latest line of output came at 11:53:00"


def test_leaving_trial_says_since_when_and_when_it_is_killed() -> None:
    asked = run(asked_to_leave_at=at(2), killed_at=NOW + timedelta(minutes=58))
    sentences = told(runs=[asked], state=TrialState.PAUSED, commanded=PAUSED)
    assert sentences[:2] == [
        "trial 7 was asked to leave agent-a at 11:58:00; it did not answer yet, and is killed at 12:58:00 if it is still "
        "there",
        "then it is paused by ada at 11:00:00",
    ]
    preempted = asked.model_copy(update={"asked_to_leave_because": "trial 9 comes first"})
    assert "at 11:58:00, since trial 9 comes first; it did not" in told(runs=[preempted])[0]
    answered = run(asked_to_leave_at=at(2), acknowledged_at=at(1), killed_at=NOW + timedelta(minutes=58))
    first, second, *_ = told(runs=[answered])
    assert "; it answered at 11:59:00, and is killed at 12:58:00" in first
    assert second.startswith("then it goes on from its newest checkpoint")


def test_paused_trial_says_by_whom_and_how_it_goes_on() -> None:
    sentences = told(state=TrialState.PAUSED, commanded=PAUSED)
    assert sentences[:2] == [
        "trial 7 is paused by ada at 11:00:00",
        "goes on from its newest checkpoint after `det experiment activate 3`",
    ]
    assert told(state=TrialState.PAUSED)[0] == "trial 7 is paused since it was created"


def test_trial_at_a_gate_says_which_and_how_it_goes_on() -> None:
    assert told(state=TrialState.PAUSED, gate=3)[:2] == [
        "trial 7 waits at gate 3 for approval, and holds no slots meanwhile",
        "goes on from its newest checkpoint after `det gate approve 3`",
    ]


def test_trial_in_a_back_off_says_until_when_and_why() -> None:
    facts: dict[str, Any] = {"next_run_at": NOW + timedelta(seconds=8), "restarts": 3, "message": "exited with code 3"}
    sentences = told(runs=[ended(1), ended(2), ended(3)], backoff_s=16.0, **facts)
    assert sentences == [
        "trial 7 waits until 12:00:08 (8 s) before it runs again: exited with code 3",
        "next: it asks for slots, and goes on from its newest checkpoint",
        "if it fails, it starts again after 16 s: restart 4 of 5",
        *[f"run {n} on agent-a, 11:50:00 to 11:55:00: exited with code 3 (user_code)" for n in (1, 2, 3)],
        "3 of 5 restarts spent",
    ]
    late = trial(next_run_at=at(0.01), runs=[ended()])
    assert phase(late, NOW) is Phase.WAITS_FOR_SLOTS, "a back-off that is over is none"


def test_trial_without_an_operation_waits_for_the_search() -> None:
    assert told(needs_search=True)[0].startswith("trial 7 waits for the search: it has no open operation")


# -- budget, runs and log policies -------------------------------------------------------------------------------------


def test_next_failure_is_the_end_when_no_restart_is_left() -> None:
    assert "if it fails, it ends in ERROR: no restart is left" in told(runs=[run()], restarts=5)
    assert "if it fails, it ends in ERROR: no restart is left" in told(runs=[run()], max_restarts=0)


def test_next_failure_is_the_end_when_a_log_policy_says_so() -> None:
    sentences = told(runs=[run(matches=[POLICY])], retries_canceled=POLICY)
    assert f"if it fails, it ends in ERROR without a restart: {POLICY}" in sentences
    assert f"in run 1, {POLICY}" in sentences


def test_failures_of_the_cluster_cost_nothing() -> None:
    lost = ended(1, ExitKind.SYSTEM, EndCause.NODE_LOST, message="its agent or its container was lost", code=None)
    sentences = told(runs=[lost, run(2)])
    assert "run 1 on agent-a, 11:50:00 to 11:55:00: its agent or its container was lost (node_lost)" in sentences
    assert sentences[-1] == "0 of 5 restarts spent; 1 failure of the cluster cost nothing"


def test_excluded_agents_are_named_with_their_reason() -> None:
    assert told(queue=queue(), excluded={"agent-a": POLICY})[-1] == f"never runs on agent-a again: {POLICY}"


def test_old_runs_are_counted_when_there_are_many() -> None:
    sentences = told(runs=[ended(n) for n in range(1, 15)])
    assert "4 earlier runs: see `det trial logs 7`" in sentences
    assert sum(sentence.startswith("run ") for sentence in sentences) == 10


def test_code_is_told_where_the_message_does_not_have_it() -> None:
    killed = ended(1, ExitKind.CLEAN, EndCause.PREEMPTED, message="it left when asked to", code=143)
    assert "it left when asked to (preempted, code 143)" in told(runs=[killed])[2]


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"state": TrialState.ERROR, "message": "exited with code 3"}, "ended as ERROR at 11:55:00: exited with code 3"),
        ({"state": TrialState.CANCELED, "commanded": KILLED}, "ended as CANCELED at 11:55:00: its experiment was killed by ada at 11:00:00"),
        ({"state": TrialState.CANCELED}, "ended as CANCELED at 11:55:00"),
        ({"state": TrialState.COMPLETED, "early_exit": "invalid_hp"}, "ended as COMPLETED at 11:55:00: its code reported invalid_hp"),
        ({"state": TrialState.COMPLETED, "is_closed": True}, "ended as COMPLETED at 11:55:00: the search wants nothing more of it"),
        (
            {"state": TrialState.COMPLETED, "runs": [ended(1, ExitKind.FINISHED, EndCause.EXIT_ZERO, message="exited with 0", code=0)]},
            "ended as COMPLETED at 11:55:00: its code ended by itself (exited with 0)",
        ),
    ],
)  # fmt: skip
def test_end_is_told_with_its_reason(facts: dict[str, Any], said: str) -> None:
    sentences = told(ended_at=at(5), **facts)
    assert sentences[0] == f"trial 7 {said}"
    assert not any(sentence.startswith(("if it fails", "next")) for sentence in sentences)


def test_stopping_trial_waits_for_its_containers() -> None:
    sentences = told(state=TrialState.STOPPING_CANCELED, runs=[run(asked_to_leave_at=at(1))])
    assert sentences[0].startswith(
        "trial 7 is STOPPING_CANCELED: its end is decided, it waits for its containers; it did"
    )


# -- experiments -------------------------------------------------------------------------------------------------------


def test_experiment_counts_its_trials_and_names_those_that_wait() -> None:
    facts = ExperimentFacts(
        experiment_id=3,
        state=ExperimentState.ACTIVE,
        ended={"COMPLETED": 4, "ERROR": 1},
        open_count=3,
        open=[
            trial(trial_id=1, runs=[run()]),
            trial(trial_id=2, queue=queue()),
            trial(trial_id=4, next_run_at=NOW + timedelta(seconds=8), message="exited with code 3"),
        ],
    )
    assert explain_experiment(facts, NOW) == [
        "experiment 3 is ACTIVE",
        "8 trials: 1 running, 1 waiting for slots, 1 in a back-off, 4 completed, 1 in error",
        "trial 2 waits for 4 slots of pool `default`: place 2 of 3 in the queue, 1 of 8 slots free",
        "trial 4 waits until 12:00:08 (8 s) before it runs again: exited with code 3",
    ]


def test_experiment_with_many_waiting_trials_names_the_first() -> None:
    waiting = [trial(trial_id=n, queue=queue()) for n in range(1, 31)]
    facts = ExperimentFacts(experiment_id=3, state=ExperimentState.ACTIVE, open_count=200, open=waiting)
    sentences = explain_experiment(facts, NOW)
    assert sentences[1] == "200 trials: 30 waiting for slots, 170 not looked at"
    assert len(sentences) == 13
    assert sentences[-1] == "and 20 more like these: see `det trial why`"


@pytest.mark.parametrize(
    ("state", "facts", "said"),
    [
        ("PAUSED", {"commanded": PAUSED}, "is paused by ada at 11:00:00; `det experiment activate` has it go on"),
        ("PAUSED", {}, "is paused since it was created; `det experiment activate` has it go on"),
        ("STOPPING_KILLED", {"commanded": KILLED}, "is STOPPING_KILLED: killed by ada at 11:00:00"),
        ("CANCELED", {"commanded": KILLED, "ended_at": at(5)}, "ended as CANCELED at 11:55:00: killed by ada at 11:00:00"),
        ("CANCELED", {"ended_at": at(5)}, "ended as CANCELED at 11:55:00"),
        ("ERROR", {"ended_at": at(5), "error": "every trial ended in error"}, "ended as ERROR at 11:55:00: every trial ended in error"),
        ("COMPLETED", {"ended_at": at(5), "commanded": PAUSED}, "ended as COMPLETED at 11:55:00"),
    ],
)  # fmt: skip
def test_state_of_an_experiment_is_told_with_who_brought_it_about(state: str, facts: dict[str, Any], said: str) -> None:
    told = explain_experiment(ExperimentFacts(experiment_id=3, state=ExperimentState(state), **facts), NOW)
    assert told == [f"experiment 3 {said}"]


# -- always ------------------------------------------------------------------------------------------------------------

_moments = st.one_of(st.none(), st.integers(-100, 100).map(at))
_runs = st.builds(
    run,
    st.integers(1, 5),
    state=st.sampled_from(["ASSIGNED", "PULLING", "STARTING", "RUNNING"]),
    ready_at=_moments,
    asked_to_leave_at=_moments,
    acknowledged_at=_moments,
    killed_at=_moments,
    ended_at=_moments,
    kind=st.sampled_from([None, *ExitKind]),
    cause=st.sampled_from([None, *EndCause]),
    message=st.just("it ended"),
    agents=st.lists(st.sampled_from(["agent-a", "agent-b"]), min_size=1, max_size=2),
)
_queues = st.builds(
    queue, is_queued=st.booleans(), is_granted=st.booleans(), fits_ever=st.booleans(), fits_lost=st.booleans(),
    is_capped=st.booleans(), agents=st.integers(0, 2),
)  # fmt: skip
_trials = st.builds(
    trial,
    state=st.sampled_from(TrialState),
    restarts=st.integers(0, 6),
    next_run_at=_moments,
    needs_search=st.booleans(),
    is_closed=st.booleans(),
    early_exit=st.sampled_from([None, "invalid_hp"]),
    retries_canceled=st.sampled_from([None, POLICY]),
    ended_at=_moments,
    runs=st.lists(_runs, max_size=3),
    queue=st.one_of(st.none(), _queues),
    commanded=st.sampled_from([None, PAUSED, KILLED]),
)


@given(_trials)
def test_sentences_are_whole_whatever_is_known(facts: TrialFacts) -> None:
    sentences = explain_trial(facts, NOW)
    assert sentences[0].startswith("trial 7 ")
    for sentence in sentences:
        assert sentence == sentence.strip()
        assert "None" not in sentence
        assert "  " not in sentence
    assert sentences[0].startswith("trial 7 ended as") == facts.state.is_terminal
    whole = ExperimentFacts(experiment_id=3, state=ExperimentState.ACTIVE, open_count=1, open=[facts])
    assert explain_experiment(whole, NOW)[0] == "experiment 3 is ACTIVE"
