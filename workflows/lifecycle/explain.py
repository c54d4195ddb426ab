"""Explains the state of a trial or an experiment in sentences: what it waits for, how it ended, what comes next.

Facts in, sentences out; `workflows/searchers/explain.py` explains the decisions of the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from workflows.lifecycle import budget as words
from workflows.lifecycle.allocation import EndCause, ExitKind
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.facts import (
    BudgetFacts,
    Commanded,
    ExperimentFacts,
    GateFacts,
    QueueFacts,
    RunFacts,
    TaskFacts,
    TrialFacts,
)
from workflows.lifecycle.trial import TrialState

_MOST_RUNS = 10
_MOST_TRIALS = 10
_MOST_HOLDERS = 3
#: What reports and prints nothing for so long may hang. Harnesses show stacks after this time too.
_SILENT_S = 300.0
_PAST = {"pause": "paused", "activate": "activated", "cancel": "canceled", "kill": "killed"}


class Phase(StrEnum):
    """What a trial does at present, in a word or two."""

    TRAINS = "running"
    STARTS = "starting"
    LEAVES = "leaving"
    WAITS_FOR_SLOTS = "waiting for slots"
    BACKS_OFF = "in a back-off"
    WAITS_FOR_SEARCH = "waiting for the search"
    PAUSED = "paused"
    ENDS = "ending"
    ENDED = "ended"


def phase(facts: TrialFacts, now: datetime) -> Phase:
    """What the trial does at present."""
    run = open_run(facts)
    if facts.state.is_terminal:
        return Phase.ENDED
    if facts.state.is_stopping:
        return Phase.ENDS
    if run is not None:
        if run.asked_to_leave_at is not None:
            return Phase.LEAVES
        return Phase.TRAINS if run.state == "RUNNING" and run.ready_at is not None else Phase.STARTS
    if facts.state is TrialState.PAUSED:
        return Phase.PAUSED
    if facts.is_closed:
        return Phase.ENDS
    if facts.needs_search:
        return Phase.WAITS_FOR_SEARCH
    if facts.next_run_at is not None and facts.next_run_at > now:
        return Phase.BACKS_OFF
    return Phase.WAITS_FOR_SLOTS


def explain_trial(facts: TrialFacts, now: datetime) -> list[str]:
    """How a trial stands and why, what comes next, its runs and what is left of its budget. Times are UTC."""
    sentences = [f"trial {facts.trial_id} {_headline(facts, now)}"]
    sentences += _next(facts, now)
    sentences += how_runs_ended(facts.runs, now, f"det trial logs {facts.trial_id}")
    sentences.append(budget(facts))
    sentences += [f"never runs on {agent} again: {reason}" for agent, reason in sorted(facts.excluded.items())]
    return sentences


def explain_experiment(facts: ExperimentFacts, now: datetime) -> list[str]:
    """How an experiment stands and why, and what those of its trials wait for that do not run."""
    sentences = [f"experiment {facts.experiment_id} {_experiment(facts, now)}"]
    sentences += [_gate(each, now) for each in facts.gates]
    if not facts.state.is_terminal:
        sentences += [_budget(facts.experiment_id, each) for each in facts.budgets if each.limits.known()]
    phases = {trial.trial_id: phase(trial, now) for trial in facts.open}
    counts: Counter[str] = Counter(phases.values())
    known = sum(counts.values())
    if facts.open_count > known:
        counts["not looked at"] = facts.open_count - known
    counts.update({state.lower().replace("error", "in error"): count for state, count in facts.ended.items()})
    if counts:
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        sentences.append(f"{_many(facts.open_count + sum(facts.ended.values()), 'trial')}: {told}")
    held_up = [trial for trial in facts.open if phases[trial.trial_id] not in (Phase.TRAINS, Phase.PAUSED)]
    sentences += [f"trial {trial.trial_id} {_headline(trial, now)}" for trial in held_up[:_MOST_TRIALS]]
    if len(held_up) > _MOST_TRIALS:
        sentences.append(f"and {len(held_up) - _MOST_TRIALS} more like these: see `det trial why`")
    return sentences


# -- where it is -------------------------------------------------------------------------------------------------------


def _headline(facts: TrialFacts, now: datetime) -> str:
    where = phase(facts, now)
    run = open_run(facts)
    if where is Phase.ENDED:
        return _end(facts, now)
    if where is Phase.ENDS:
        waits = "its containers" if run is not None else "its workflow"
        return f"is {facts.state}: its end is decided, it waits for {waits}{_leaving(run, now)}"
    if run is not None:
        return _open(run, now, has_reached_core=facts.has_stored or _reported_in(run, facts))
    if where is Phase.PAUSED and facts.gate is not None:
        return f"waits at gate {facts.gate} for approval, and holds no slots meanwhile"
    if where is Phase.PAUSED:
        return f"is paused{_by(facts.commanded, now, 'pause')}"
    if where is Phase.WAITS_FOR_SEARCH:
        return "waits for the search: it has no open operation, and holds no slots meanwhile"
    if where is Phase.BACKS_OFF and facts.next_run_at is not None:
        left_s = (facts.next_run_at - now).total_seconds()
        why = f": {facts.message}" if facts.message else ""
        return f"waits until {clock(facts.next_run_at, now)} ({left_s:.0f} s) before it runs again{why}"
    if facts.queue is None:
        return f"has no slots; whether it waits for some is not known: {facts.queue_error or 'its pool was not asked'}"
    return why_queued(facts.queue)


def _end(facts: TrialFacts, now: datetime) -> str:
    text = f"ended as {facts.state}{since(facts.ended_at, now)}"
    last = facts.runs[-1] if facts.runs else None
    if facts.message:
        return f"{text}: {facts.message}"
    if facts.state is TrialState.CANCELED:
        by = _by(facts.commanded, now, "cancel", "kill")
        return f"{text}{': its experiment was' + by if by else ''}"
    if facts.early_exit:
        return f"{text}: its code reported {facts.early_exit}"
    if facts.is_closed:
        return f"{text}: the search wants nothing more of it"
    if last is not None and last.cause in (EndCause.EXIT_ZERO, EndCause.NOTHING_REPORTED):
        return f"{text}: its code ended by itself ({last.message})"
    return text


def _reported_in(run: RunFacts, facts: TrialFacts) -> bool:
    return facts.last_report_at is not None and facts.last_report_at >= run.started_at


def _open(run: RunFacts, now: datetime, *, has_reached_core: bool) -> str:
    where = _where(run)
    since = clock(run.started_at, now)
    if run.asked_to_leave_at is not None or run.state != "RUNNING":
        text = before_its_code(run, now)
    elif run.ready_at is None and has_reached_core:
        text = (
            f"runs on {where} since {since} (run {run.run_id}), without `with` around its `core.init()`: nobody tells "
            "it to leave, and a pause ends it at once, without a checkpoint of that moment"
        )
    elif run.ready_at is None:
        text = f"has its container on {where} since {since}, but its code did not come to `determined.core` yet"
    else:
        text = f"runs on {where} since {since} (run {run.run_id})"
    if run.asked_to_leave_at is not None:
        return text
    if run.missing:
        text += f"; its other containers wait for {', '.join(run.missing)}"
    return text + out_of_reach(run)


def before_its_code(run: RunFacts, now: datetime) -> str:
    """How an open run stands that does not run yet, or was asked to leave; to be read behind a name."""
    where, since = _where(run), clock(run.started_at, now)
    if run.asked_to_leave_at is not None:
        because = f", since {run.asked_to_leave_because}" if run.asked_to_leave_because else ""
        return f"was asked to leave {where} at {clock(run.asked_to_leave_at, now)}{because}{_leaving(run, now)}"
    if run.state == "PULLING":
        return f"waits for its image on {where}, since {since}"
    text = f"got {_many(run.slots, 'slot')} of {where} at {since}, and its container is being started there"
    return f"{text}: {run.waits_for}" if run.waits_for else text


def _where(run: RunFacts) -> str:
    agents = ", ".join(dict.fromkeys(run.agents)) or "no agent"
    joined = [f"{_many(run.slots, 'GPU')} joined by {run.joined_by}"] if run.joined_by else []
    told = [*run.nodes, *joined]
    return f"{agents} ({', '.join(told)})" if told else agents


def out_of_reach(run: RunFacts) -> str:
    """What is to be known of agents that are silent; empty if none is."""
    if not run.away:
        return ""
    return f"; {', '.join(run.away)} is out of reach: what runs there goes on, and is taken up again"


def _leaving(run: RunFacts | None, now: datetime) -> str:
    if run is None or run.asked_to_leave_at is None:
        return ""
    if run.acknowledged_at is not None:
        said = f"; it answered at {clock(run.acknowledged_at, now)}"
    else:
        said = "; it did not answer yet"
    killed = f", and is killed at {clock(run.killed_at, now)} if it is still there" if run.killed_at else ""
    return said + killed


def why_queued(queue: QueueFacts, job: str = "experiment") -> str:
    """Why a request waits, to be read behind the name of who made it; `job` is whose slots are counted together."""
    if queue.is_granted:
        return f"was given {_many(queue.slots, 'slot')} of pool `{queue.pool}` this moment"
    if not queue.is_queued:
        return f"has not asked pool `{queue.pool}` for slots yet: this takes a moment, unless no orchestrator runs"
    if queue.slots == 0:
        return _why_without_slots(queue)
    provided = f"its provider launches nodes for it, see `det resource-pool describe {queue.pool}`"
    text = (
        f"waits for {_many(queue.slots, 'slot')} of pool `{queue.pool}`: place {queue.place} of {queue.waiting} in the "
        f"queue, {queue.free} of {_many(queue.total, 'slot')} free"
    )
    if queue.agents == 0:
        return f"{text}; the pool has no agents: {provided}" if queue.is_provided else f"{text}; the pool has no agents"
    if queue.is_capped:
        return f"{text}; its {job} holds all that `max_slots` lets it"
    if not queue.fits_ever and queue.is_provided:
        return f"{text}; the pool's agents could not hold it: {provided}"
    if not queue.fits_ever and queue.fits_lost:
        return f"{text}; only agents that are lost could hold it: it waits for them to come back"
    if not queue.fits_ever:
        return f"{text}; it never fits: the pool's agents are too small or too few"
    if queue.is_borrowing:
        text += f"; {queue.quota} of this pool's, and they are in use: "
        return text + (
            "it may borrow what nobody else claims" if queue.lends else "this pool lends nothing beyond them"
        )
    if queue.is_apart:
        text += (
            "; as many are free on one host, but apart: by `prefer_gpu_topology: strong` it waits for GPUs that "
            "NVLink, a PCIe bridge or a NUMA node joins"
        )
    if queue.leaving:
        text += f"; the holders of {_many(queue.leaving, 'slot')} were asked to leave"
    if queue.policy == "fair_share":
        text += f"; slots are shared by weight, and its {job} holds {queue.job_slots}"
    elif queue.behind and queue.free >= queue.slots:
        first = f"its priority is {queue.behind_priority}" if queue.behind_priority != queue.priority else "it is older"
        return f"{text}; {queue.behind} comes first, since {first}, and needs {_many(queue.behind_slots, 'slot')}"
    holders = [f"{name} ({count})" for name, count in list(queue.holders.items())[:_MOST_HOLDERS]]
    more = len(queue.holders) - len(holders)
    if holders:
        text += f"; slots are held by {', '.join(holders)}" + (f" and {more} more" if more > 0 else "")
    return text


def _why_without_slots(queue: QueueFacts) -> str:
    text = (
        f"waits for a place without slots in pool `{queue.pool}`: place {queue.place} of {queue.waiting} in the queue"
    )
    if queue.agents == 0:
        return f"{text}; the pool has no agents"
    if queue.free_aux == 0:
        return (
            f"{text}; each of the pool's agents in reach has as many as it takes: `max_aux_containers_per_agent` is "
            f"{queue.most_aux}"
        )
    if queue.behind:
        return f"{text}; {queue.behind} comes first"
    return f"{text}; there is room for {queue.free_aux} more"


def _experiment(facts: ExperimentFacts, now: datetime) -> str:
    state = facts.state
    if state is ExperimentState.PAUSED:
        return f"is paused{_by(facts.commanded, now, 'pause')}; `det experiment activate` has it go on"
    if not state.is_terminal:
        by = _by(facts.commanded, now, "cancel", "kill") if state.is_stopping else ""
        return f"is {state}" + (f":{by}" if by else "")
    text = f"ended as {state}{since(facts.ended_at, now)}"
    if facts.error:
        return f"{text}: {facts.error}"
    by = _by(facts.commanded, now, "cancel", "kill") if state is ExperimentState.CANCELED else ""
    return text + (f":{by}" if by else "")


def _gate(facts: GateFacts, now: datetime) -> str:
    how = f"`det gate approve {facts.id}` or `det gate deny {facts.id}` decides (the role {facts.by})"
    due = f"; at {clock(facts.due_at, now)} the default is to {facts.default}" if facts.due_at is not None else ""
    return f"{facts.text}: {how}{due}"


def _budget(experiment_id: int, facts: BudgetFacts) -> str:
    limits = facts.limits
    if facts.spent is None:
        return f"{facts.whose} {words.outlook(limits, facts.used, facts.lasts_until)}"
    how = words.how_to_raise(limits, facts.spent, facts.command)
    return f"{facts.whose} {words.is_spent(limits, facts.spent)}: {how}, then `det experiment activate {experiment_id}`"


# -- what comes next, and what was -------------------------------------------------------------------------------------


def _next(facts: TrialFacts, now: datetime) -> Iterator[str]:
    where = phase(facts, now)
    if where is Phase.ENDED or where is Phase.ENDS:
        return
    if where is Phase.PAUSED and facts.gate is not None:
        yield f"goes on from its newest checkpoint after `det gate approve {facts.gate}`"
        return
    if where is Phase.PAUSED:
        yield f"goes on from its newest checkpoint after `det experiment activate {facts.experiment_id}`"
        return
    if where is Phase.LEAVES and facts.state is TrialState.PAUSED:
        yield f"then it is paused{_by(facts.commanded, now, 'pause')}"
        return
    if where is Phase.LEAVES:
        yield "then it goes on from its newest checkpoint, as soon as it may and there are slots"
        return
    if where is Phase.WAITS_FOR_SEARCH:
        return
    heard = [("report", facts.last_report_at), ("line of output", facts.last_line_at)]
    news = " and ".join(
        f"its latest {what} came at {clock(moment, now)}" for what, moment in heard if moment is not None
    )
    if news and where in (Phase.TRAINS, Phase.STARTS):
        yield news
    heard_at = [moment for _, moment in heard if moment is not None]
    run = open_run(facts)
    since = max([*heard_at, run.started_at]) if run is not None and run.state == "RUNNING" else None
    if where in (Phase.TRAINS, Phase.STARTS) and since is not None and (now - since).total_seconds() > _SILENT_S:
        yield (
            f"it has been silent for {_span(now - since)}: `det trial logs {facts.trial_id} --tail 50` shows what its "
            "threads are doing, once it has come to `determined.core`; `py-spy dump --pid` on its host always does. "
            f"If it hangs: `det trial kill {facts.trial_id}` ends it, `det experiment pause {facts.experiment_id}`"
            " and `activate` start it again from its newest checkpoint"
        )
    if facts.silent_for and where in (Phase.TRAINS, Phase.STARTS):
        yield f"if it is silent for {facts.silent_for}, a failure policy has it killed and started again"
    if where is Phase.BACKS_OFF and facts.runs:
        yield "next: it asks for slots, and goes on from its newest checkpoint"
    yield _if_it_fails(facts)


def _if_it_fails(facts: TrialFacts) -> str:
    if facts.retries_canceled is not None:
        return f"if it fails, it ends in ERROR without a restart: {facts.retries_canceled}"
    if facts.restarts >= facts.max_restarts:
        return "if it fails, it ends in ERROR: no restart is left"
    pause = f" after {facts.backoff_s:g} s" if facts.backoff_s else ""
    return f"if it fails, it starts again{pause}: restart {facts.restarts + 1} of {facts.max_restarts}"


def how_runs_ended(runs: Sequence[RunFacts], now: datetime, log: str) -> Iterator[str]:
    """A sentence of each of the last runs that has ended; `log` is the command that shows the others."""
    hidden = len(runs) - _MOST_RUNS
    if hidden > 0:
        yield f"{_many(hidden, 'earlier run')}: see `{log}`"
    for run in runs[-_MOST_RUNS:]:
        if run.ended_at is not None:
            code = "" if run.code is None or f"{run.code}" in run.message else f", code {run.code}"
            how = f"{run.message} ({run.cause}{code})" if run.cause else "its end is being judged"
            span = f"{clock(run.started_at, now)} to {clock(run.ended_at, now)}"
            yield f"run {run.run_id} on {', '.join(run.agents)}, {span}: {how}"
        for match in run.matches:
            yield f"in run {run.run_id}, {match}"


def budget(facts: TrialFacts | TaskFacts) -> str:
    """What is left of the restarts."""
    text = f"{facts.restarts} of {_many(facts.max_restarts, 'restart')} spent"
    free = sum(run.kind == ExitKind.SYSTEM for run in facts.runs)
    return f"{text}; {_many(free, 'failure')} of the cluster cost nothing" if free else text


# -- words -------------------------------------------------------------------------------------------------------------


def open_run(facts: TrialFacts | TaskFacts) -> RunFacts | None:
    """The run that has not ended."""
    return facts.runs[-1] if facts.runs and facts.runs[-1].ended_at is None else None


def _by(commanded: Commanded | None, now: datetime, *commands: str) -> str:
    """` paused by admin at 10:00:00`, without the first word where it is the state's own; empty if nobody did."""
    if commanded is None or commanded.command not in commands:
        return " since it was created" if commands == ("pause",) and commanded is None else ""
    done = "" if commands == ("pause",) else f" {_PAST[commanded.command]}"
    return f"{done} by {commanded.by} at {clock(commanded.at, now)}"


def since(moment: datetime | None, now: datetime) -> str:
    """` at 10:00:00`; empty without a time."""
    return "" if moment is None else f" at {clock(moment, now)}"


def clock(moment: datetime, now: datetime) -> str:
    """A time of today, or with its date."""
    return f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M:%S}"


def _span(time: timedelta) -> str:
    """A length of time in its largest unit."""
    minutes = int(time.total_seconds() // 60)
    return f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} hours"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
