"""The recorded facts that explain the state of a trial, an experiment or a task. `workflows.lifecycle` words them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.queries import experiments, trials
from api.queries.allocations import arrived, containers_of, missing_ones
from api.queries.ids import among
from database import budgets, gates, log_reads
from database.engines import in_parts
from database.log_facts import actions_of_log_policies, describe_match
from database.models import (
    Agent,
    Allocation,
    Budget,
    Checkpoint,
    Experiment,
    Gate,
    LogPolicyMatch,
    Project,
    Task,
    TaskDependency,
    Trial,
)
from database.reports import newest_time
from database.types import utc_now
from workflows.config.durations import seconds_of
from workflows.config.failures import next_pools
from workflows.lifecycle.allocation import backoff_s
from workflows.lifecycle.budget import Clock, lasts_until, used
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.facts import (
    BudgetFacts,
    Commanded,
    ExperimentFacts,
    GateFacts,
    NeedFacts,
    RunFacts,
    TaskFacts,
    TrialFacts,
)
from workflows.lifecycle.task import ENDS_IDLE, TaskKind, TaskState
from workflows.lifecycle.trial import FINAL_STATE, TrialState
from workflows.messages import Timing
from workflows.scheduling.topology import Topology

#: Open trials of an experiment that are looked at one by one.
MOST_OPEN = 200
_TERMINAL = [state.value for state in TrialState if state.is_terminal]
#: What is looked at of an allocation.
_RUN = (
    Allocation.id, Allocation.trial_id, Allocation.run_id, Allocation.state, Allocation.slots, Allocation.placements,
    Allocation.started_at, Allocation.ready_at, Allocation.preempt_requested_at, Allocation.preempt_reason,
    Allocation.preempt_acked_at, Allocation.ended_at, Allocation.end_kind, Allocation.end_cause, Allocation.end_message,
    Allocation.exit_code,
)  # fmt: skip
#: What is looked at of each trial: its hyperparameters, and what it reported, are most of a trial.
_SEEN = (
    Trial.id, Trial.state, Trial.message, Trial.restarts, Trial.next_run_at, Trial.operation_length, Trial.is_closed,
    Trial.early_exit, Trial.ended_at,
)  # fmt: skip
_OPEN = [TrialState.ACTIVE.value, TrialState.PAUSED.value, *(state.value for state in FINAL_STATE)]


def of_trial(session: Session, trial_id: int, timing: Timing) -> tuple[TrialFacts, list[str]]:
    """All facts of one trial but its place in the queue, and the pools that may have it. Raises: NotFound."""
    trial = trials.find(session, trial_id)
    experiment = session.get_one(Experiment, trial.experiment_id)
    commanded, waiting = _commanded(session, experiment), gates.waiting(session, experiment.id)
    [facts] = _facts(session, experiment, [trial], timing, commanded, waiting)
    if facts.runs and facts.runs[-1].ended_at is None:  # one that hangs has been silent for long
        facts.last_report_at = newest_time(session, trial_id)
        stored = select(Checkpoint.uuid).where(
            Checkpoint.trial_id == trial_id, Checkpoint.allocation_id == facts.runs[-1].allocation_id
        )
        facts.has_stored = session.scalar(stored.limit(1)) is not None
        written = log_reads.LogFilter(allocation_ids=[facts.runs[-1].allocation_id])
        newest = log_reads.lines(session, [trial.task_id], written, most=1, descending=True)
        facts.last_line_at = newest[0].timestamp if newest else None
    return facts, _pools(experiment)


def of_experiment(session: Session, experiment_id: int, timing: Timing) -> tuple[ExperimentFacts, list[str]]:
    """All facts of an experiment but its trials' places in the queue, and their pools. Raises: NotFound."""
    experiment = experiments.find(session, experiment_id)
    is_ours = Trial.experiment_id == experiment_id
    counts = _counts(session, experiment)
    # by their states, whatever the order: all trials of a long search, read by their ids, would be looked at for few
    statement = select(*_SEEN).where(is_ours, Trial.state.in_(_OPEN)).order_by(Trial.id + 0).limit(MOST_OPEN)
    commanded, waiting = _commanded(session, experiment), gates.waiting(session, experiment_id)
    facts = ExperimentFacts(
        experiment_id=experiment_id,
        state=ExperimentState(experiment.state),
        error=experiment.error,
        ended_at=experiment.ended_at,
        commanded=commanded,
        budgets=_budgets(session, experiment),
        gates=[
            GateFacts(
                id=row.id,
                text=f"gate {row.id}: {gates.text_of(row)}",
                by=row.rule["by"],
                due_at=row.due_at,
                default=row.rule["default"],
            )
            for row in waiting
        ],
        ended={state: counts[state] for state in _TERMINAL if state in counts},
        open_count=sum(count for state, count in counts.items() if state not in _TERMINAL),
        open=_facts(session, experiment, session.execute(statement).all(), timing, commanded, waiting),
    )
    return facts, _pools(experiment)


def _counts(session: Session, experiment: Experiment) -> dict[str, int]:
    """How many trials of an experiment are in each state that one is in.

    Those that completed, which are most of a long search's, are what the others leave of all: nobody counts them.
    """
    others = [state.value for state in TrialState if state is not TrialState.COMPLETED]
    # one by one: for all at once, PostgreSQL may look at every trial of the experiment
    count = select(func.count()).where(Trial.experiment_id == experiment.id)
    found = session.execute(select(*(count.where(Trial.state == state).scalar_subquery() for state in others))).one()
    counts = {state: n for state, n in zip(others, found, strict=True) if n}
    if (left := experiment.trial_count - sum(counts.values())) > 0:
        counts[TrialState.COMPLETED.value] = left
    return counts


def _pools(experiment: Experiment) -> list[str]:
    """Pools whose queues may have its trials: those of failure policies, and last its own."""
    return [*next_pools(experiment.config), experiment.resource_pool]


def of_task(session: Session, task: Task) -> TaskFacts:
    """All facts of a task that is no trial, but its place in the queue."""
    config = task.config or {}
    away = set(session.scalars(select(Agent.id).where(Agent.is_connected.is_(False))))
    grace = timedelta(seconds=config.get("preemption_timeout") or 0)
    rows = session.execute(select(*_RUN).where(Allocation.task_id == task.id).order_by(Allocation.run_id))
    runs = [(row, _run(row, [], away, grace)) for row in rows]
    _note_places(session, runs)
    return TaskFacts(
        task_id=task.id,
        kind=task.kind,
        state=TaskState(task.state),
        message=task.message or "",
        restarts=task.restarts,
        max_restarts=config.get("max_restarts") or 0,
        goes_on=bool(task.is_pausable),
        idle_timeout=_limit(config, "idle_timeout") if TaskKind(task.kind) in ENDS_IDLE else "",
        max_lifetime=_limit(config, "max_lifetime"),
        ended_at=task.ended_at,
        needs=_needs(session, task),
        runs=[facts for _, facts in runs],
    )


def _needs(session: Session, task: Task) -> list[NeedFacts]:
    statement = (
        select(Task.id, Task.state, TaskDependency.any_end)
        .join(TaskDependency, TaskDependency.needs_id == Task.id)
        .where(TaskDependency.task_id == task.id, Task.ended_at.is_(None))
        .order_by(Task.started_at, Task.id)
    )
    return [
        NeedFacts(task_id=task_id, state=TaskState(state), any_end=any_end)
        for task_id, state, any_end in session.execute(statement).tuples()
    ]


def _limit(config: dict[str, Any], name: str) -> str:
    limit = config.get(name) or ""
    return limit if seconds_of(limit) else ""


def _facts(
    session: Session,
    experiment: Experiment,
    found: Sequence[Any],
    timing: Timing,
    commanded: Commanded | None,
    waiting: Sequence[Gate],
) -> list[TrialFacts]:
    ids = [trial.id for trial in found]
    runs: dict[int, list[RunFacts]] = {trial_id: [] for trial_id in ids}
    matches = _matches(session, ids)
    away = set(session.scalars(select(Agent.id).where(Agent.is_connected.is_(False))))
    grace = timedelta(seconds=experiment.config.get("preemption_timeout") or timing.preemption_timeout_s)
    statement = select(*_RUN).where(among(session, Allocation.trial_id, ids)).order_by(Allocation.run_id)
    all_runs = [(row, _run(row, matches.get(row.id, []), away, grace)) for row in session.execute(statement)]
    _note_places(session, all_runs)
    for row, facts in all_runs:
        runs[row.trial_id or 0].append(facts)
    # of an experiment that is active, trials are only paused at a gate
    is_active = experiment.state == ExperimentState.ACTIVE.value
    gate = next((row.id for row in waiting if is_active and row.what == "promotion"), None)
    told = [_trial(session, experiment, trial, runs[trial.id], timing, bool(matches), commanded) for trial in found]
    for each in told:
        each.gate = gate if each.state is TrialState.PAUSED else None
    return told


def _trial(
    session: Session,
    experiment: Experiment,
    trial: Any,
    runs: list[RunFacts],
    timing: Timing,
    has_matches: bool,
    commanded: Commanded | None,
) -> TrialFacts:
    actions = actions_of_log_policies(session, trial.id) if has_matches else None
    has_operation = not experiment.has_operations or trial.operation_length is not None
    return TrialFacts(
        trial_id=trial.id,
        experiment_id=experiment.id,
        state=TrialState(trial.state),
        message=trial.message,
        restarts=trial.restarts,
        max_restarts=experiment.config["max_restarts"],
        backoff_s=backoff_s(trial.restarts + 1, timing.restart_backoff_s, timing.restart_backoff_cap_s),
        next_run_at=trial.next_run_at,
        needs_search=not has_operation and not trial.is_closed,
        is_closed=trial.is_closed and (not experiment.has_operations or not has_operation),
        early_exit=trial.early_exit,
        retries_canceled=actions["retries_canceled"] if actions else None,
        excluded=actions["excluded"] if actions else {},
        ended_at=trial.ended_at,
        silent_for=_silent_for(experiment.config),
        runs=runs,
        commanded=commanded,
    )


def _silent_for(config: dict[str, Any]) -> str:
    policies: list[dict[str, Any]] = config.get("failure_policies") or []
    return next((str(each["silent_for"]) for each in policies if each.get("silent_for")), "")


def _run(row: Any, matches: list[str], away: set[str], grace: timedelta) -> RunFacts:
    agents: list[str] = [place["agent_id"] for place in row.placements]
    asked = row.preempt_requested_at
    return RunFacts(
        run_id=row.run_id,
        allocation_id=row.id,
        state=row.state,
        slots=row.slots,
        agents=agents,
        away=[agent for agent in agents if agent in away],
        started_at=row.started_at,
        ready_at=row.ready_at,
        asked_to_leave_at=asked,
        asked_to_leave_because=row.preempt_reason,
        acknowledged_at=row.preempt_acked_at,
        # one that was not ready has nothing to save, and is killed at once
        killed_at=asked + grace if asked is not None and row.ready_at is not None and row.ended_at is None else None,
        ended_at=row.ended_at,
        kind=row.end_kind,
        cause=row.end_cause,
        message=row.end_message,
        code=row.exit_code,
        matches=matches,
    )


def _note_places(session: Session, runs: Sequence[tuple[Any, RunFacts]]) -> None:
    """Of open allocations: where their containers run, which of them have not come, and what they wait for."""
    held = [(row, facts) for row, facts in runs if row.ended_at is None]
    containers = containers_of(session, [row.id for row, _ in held])
    hosts = {row.placements[0]["agent_id"] for row, _ in held if len(row.placements) == 1}
    topologies: dict[str, dict[str, Any]] = {}
    for some in in_parts(hosts):
        topologies |= session.execute(select(Agent.id, Agent.topology).where(Agent.id.in_(some))).tuples().all()
    for row, facts in held:
        launched = containers[row.id]
        facts.nodes = list(dict.fromkeys(each.node for each in launched.values() if each.node))
        facts.waits_for = next((each.waits_for for each in launched.values() if each.waits_for), "")
        if len(row.placements) > 1 and (ranks := arrived(launched)):
            facts.missing = missing_ones(row.placements, ranks)
        only: dict[str, Any] = row.placements[0] if len(row.placements) == 1 else {}
        if topology := topologies.get(only.get("agent_id", "")):  # what joins its GPUs, if their host says so
            facts.joined_by = Topology.model_validate(topology).joined_by(only["slot_ids"])


def _matches(session: Session, trial_ids: Sequence[int]) -> dict[str, list[str]]:
    """What log policies found, in words, by allocation."""
    statement = select(LogPolicyMatch).where(among(session, LogPolicyMatch.trial_id, trial_ids))
    found: dict[str, list[str]] = {}
    for match in session.scalars(statement.order_by(LogPolicyMatch.matched_at, LogPolicyMatch.policy)):
        found.setdefault(match.allocation_id, []).append(describe_match(match))
    return found


def _budgets(session: Session, experiment: Experiment) -> list[BudgetFacts]:
    found: list[BudgetFacts] = []
    workspace_id = session.get_one(Project, experiment.project_id).workspace_id
    for row in budgets.of(session, experiment.id, workspace_id, experiment.token_id):
        meter, clock, now = budgets.meter_of(row), budgets.clock_of(row), utc_now()
        whose, command = budgets.named(session, row)
        found.append(
            BudgetFacts(
                whose=whose,
                command=command,
                limits=meter.limits,
                used=used(meter, clock, now),
                spent=budgets.is_over(row, now) or clock.paused_by,
                lasts_until=lasts_until(meter, clock) if experiment.state == ExperimentState.ACTIVE.value else None,
            )
        )
    return found


def _commanded(session: Session, experiment: Experiment) -> Commanded | None:
    row = session.scalar(select(Budget).where(Budget.experiment_id == experiment.id))
    if row is not None and row.notices and Clock.model_validate(row.clock).paused_by is not None:
        return Commanded(command="pause", by="its budget", at=row.notices[-1]["at"])
    if experiment.commanded_at is None:
        return None
    return Commanded(command=experiment.commanded, by=experiment.commanded_by, at=experiment.commanded_at)
