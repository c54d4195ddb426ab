"""New trials of an experiment: what is recorded of them, and what is noted of them once they have their numbers.

The API makes those that a search begins with, in the transaction that records the experiment: a client that has the
experiment's number sees its trials. The Experiment workflow makes all later ones. The activity that writes its records
starts them, or who has the record as an answer, after it has asked their pool for slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workflows import names
from workflows.attributes import ORDINARY, search_attributes
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.trial import TrialState
from workflows.messages import ExperimentRun, NewTrial, TrialEntry, TrialPast, TrialRun, TrialStart, TrialStarts
from workflows.scheduling.model import Request
from workflows.searchers import Create


def new_trial(run: ExperimentRun, action: Create) -> NewTrial:
    """A trial that the search of `run` asks for, as it is to be recorded. What it inherits is taken, and its number."""
    view = run.search.trial(action.request_id)
    inherited = None if run.inheritance is None else run.inheritance.take(action)
    return NewTrial(
        request_id=action.request_id,
        seed=action.trial_seed,
        hparams=action.hparams,
        length=view.length,
        rung=view.rung,
        bracket=view.bracket,
        checkpoint=action.checkpoint or run.template.source_checkpoint,
        parent=action.parent,
        inherits=None if inherited is None else inherited.trial_id,
        is_paused=run.state is ExperimentState.PAUSED,
        number=run.numbers.pop(0) if run.numbers else None,
    )


def note_trials(
    run: ExperimentRun, new: Sequence[NewTrial], trial_ids: Sequence[int], pasts: Mapping[int, TrialPast] | None = None
) -> dict[str, TrialEntry]:
    """Enter recorded trials into the run's book: those that nobody's results stand for wait for their start.

    `trial_ids`, `pasts`: as in `CreatedTrials`, of these.

    Returns the new entries by request id, in the order of `new`.
    """
    entries: dict[str, TrialEntry] = {}
    for trial, trial_id in zip(new, trial_ids, strict=True):
        is_heir = run.inheritance is not None and trial.request_id in run.inheritance.heirs
        is_heir = is_heir or run.past is not None
        entry = TrialEntry(trial_id=trial_id, is_heir=is_heir, is_waiting=not is_heir)
        past = None if pasts is None else pasts.get(trial_id)
        if past is not None:
            entry.run_id, entry.revision, entry.last_step = past.run_id, past.revision, past.last_step
            entry.task_id = past.task_id
        run.trials[trial.request_id] = entries[trial.request_id] = entry
    return entries


def trial_run(starts: TrialStarts, start: TrialStart, *, by_records: bool) -> TrialRun:
    """What the workflow of a trial is started with."""
    orders = start.orders
    return TrialRun(
        experiment_id=starts.experiment_id,
        trial_id=start.trial_id,
        request_id=start.request_id,
        task_id=start.task_id,
        experiment_name=starts.name,
        owner=starts.owner,
        job_id=starts.job_id,
        template=starts.template,
        orders=orders,
        by_records=by_records,
        # one whose search stopped it before it was started again, on a restored cluster
        state=TrialState.STOPPING_COMPLETED if orders.is_stopped and not orders.state.is_stopping else orders.state,
        run_id=start.run_id,
        restarts=start.restarts,
        continued_after=start.run_id,
        revision=start.revision,
    )


def start_options(starts: TrialStarts, trial_id: int) -> dict[str, Any]:
    """How the workflow of a trial is started, by whichever way."""
    return {
        "id": names.trial_workflow(trial_id),
        "task_queue": names.ORCHESTRATOR_QUEUE,
        "static_summary": f"trial {trial_id} of experiment {starts.experiment_id} “{starts.name}”",
        "search_attributes": search_attributes(starts.experiment_id, starts.template.pool, starts.owner, trial_id),
        "priority": ORDINARY,
    }


def wants_slots(run: TrialRun) -> bool:
    """Whether a trial has work: one of the operations generation runs only while an operation is open."""
    if run.state is not TrialState.ACTIVE or run.orders.is_closed or run.orders.is_stopped:
        return False
    return not run.orders.needs_length or run.orders.length not in (None, run.done_length)


def slot_request(run: TrialRun, allocation_id: str) -> Request:
    """What a trial asks its pool for, in the name of its experiment's job."""
    template = run.template
    return Request(
        allocation_id=allocation_id,
        holder=names.trial_workflow(run.trial_id),
        slots=run.slots or template.slots,
        job_id=run.job_id,
        name=f"trial {run.trial_id} of experiment {run.experiment_id}",
        is_single_node=template.is_single_node,
        closeness=template.closeness,
        user=template.user,
        workspace=template.workspace,
        claim=template.claim,
        excluded_agents=tuple(sorted(run.excluded)),
    )
