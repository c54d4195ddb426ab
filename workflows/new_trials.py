"""New trials of an experiment: what is recorded of them, and what is noted of them once they have their numbers.

The API makes those that a search begins with, in the transaction that records the experiment: a client that has the
experiment's number sees its trials. The Experiment workflow makes all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import CreatedTrials, ExperimentRun, NewTrial, TrialEntry
from workflows.searchers import Create


def new_trial(run: ExperimentRun, action: Create) -> NewTrial:
    """A trial that the search of `run` asks for, as it is to be recorded. What it inherits is taken."""
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
    )


def note_trials(run: ExperimentRun, new: Sequence[NewTrial], recorded: CreatedTrials) -> dict[str, TrialEntry]:
    """Enter recorded trials into the run's book: those that nobody's results stand for wait for their start.

    Returns the new entries by request id, in the order of `new`.
    """
    entries: dict[str, TrialEntry] = {}
    for trial, trial_id in zip(new, recorded.trial_ids, strict=True):
        is_heir = run.inheritance is not None and trial.request_id in run.inheritance.heirs
        is_heir = is_heir or run.past is not None
        entry = TrialEntry(trial_id=trial_id, is_heir=is_heir, is_waiting=not is_heir)
        past = recorded.pasts.get(trial_id)
        if past is not None:
            entry.run_id, entry.revision, entry.last_step = past.run_id, past.revision, past.last_step
            entry.task_id = past.task_id
        run.trials[trial.request_id] = entries[trial.request_id] = entry
    return entries
