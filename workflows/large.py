"""The state of a search as it is handed on to the next run of its workflow: only what decisions still need, and short.

Temporal takes 2 MB there. A trial's number in the search has 36 characters that no compression shortens, and stands in
four places. So what is over is left out, but for its results, which others are compared with; and the others go by
their place in a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from workflows.attributes import STEP_LIMIT
from workflows.messages import ExperimentRun

#: More than other workflows may take for a step, for each trial: what is carried on is to be read, and a run replayed.
_OF_A_TRIAL = timedelta(microseconds=100)


def step_limit(run: ExperimentRun) -> timedelta:
    """After so long a step of this search is given to another worker: 14.5 s with 100,000 trials, most of them over.

    One that is slow, but not dead, could never end a step that takes longer.
    """
    return STEP_LIMIT + (len(run.trials) + run.retired) * _OF_A_TRIAL


def shorten(run: ExperimentRun) -> None:
    """Make the state of a run small, just before it begins or continues as new: nothing may be decided on it any more.

    Everything that was decided is recorded. Events in the inbox keep their ids. One that is short stays so.
    """
    if run.request_ids or not run.search.can_shorten or run.inheritance is not None or run.past is not None:
        return
    over = [key for key, entry in run.trials.items() if not (entry.is_open or entry.is_waiting or entry.is_heir)]
    gone, run.request_ids = run.search.shorten(over)
    for request_id in gone:
        del run.trials[request_id]
    run.retired += len(gone)
    _rename(run, {request_id: str(place) for place, request_id in enumerate(run.request_ids)})


def restore(run: ExperimentRun) -> None:
    """Undo the shortening of ids, if there was one."""
    if run.request_ids:
        run.search.restore(run.request_ids)
        _rename(run, {str(place): request_id for place, request_id in enumerate(run.request_ids)})
        run.request_ids = []


def _rename(run: ExperimentRun, names: Mapping[str, str]) -> None:
    run.trials = {names.get(key, key): entry for key, entry in run.trials.items()}
