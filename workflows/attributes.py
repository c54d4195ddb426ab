"""What workflows carry besides their input: priorities, and search attributes that operators filter by.

`names.SEARCH_ATTRIBUTES` registers them.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import (
    Priority,
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)

#: After so long, a step that a worker had begun when it died is given to another one. A run of an experiment is
#: kept short enough to be replayed in a fraction of that.
STEP_LIMIT = timedelta(seconds=4.5)
#: Who decides for many goes first when many tasks wait, as after an orchestrator's death: experiments and pools.
FIRST, ORDINARY = Priority(priority_key=1), Priority(priority_key=3)

_STATE_KEY = SearchAttributeKey.for_keyword("UndeterredState")
_EXPERIMENT_KEY = SearchAttributeKey.for_int("ExperimentId")
_TRIAL_KEY = SearchAttributeKey.for_int("TrialId")
_POOL_KEY = SearchAttributeKey.for_keyword("Pool")
_USER_KEY = SearchAttributeKey.for_keyword("User")


def search_attributes(
    experiment_id: int, pool: str, owner: str, trial_id: int | None = None, state: str | None = None
) -> TypedSearchAttributes:
    """The attributes of an experiment's workflow, or of one of its trials'."""
    pairs = [
        SearchAttributePair(_EXPERIMENT_KEY, experiment_id),
        SearchAttributePair(_POOL_KEY, pool),
        SearchAttributePair(_USER_KEY, owner),
    ]
    if trial_id is not None:
        pairs.append(SearchAttributePair(_TRIAL_KEY, trial_id))
    if state is not None:
        pairs.append(SearchAttributePair(_STATE_KEY, state))
    return TypedSearchAttributes(pairs)


def task_attributes(pool: str, owner: str, state: str) -> TypedSearchAttributes:
    """The attributes of the workflow of a task that is no trial."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(_POOL_KEY, pool),
            SearchAttributePair(_USER_KEY, owner),
            SearchAttributePair(_STATE_KEY, state),
        ]
    )


def note_pool(pool: str) -> None:
    """Keep the searchable pool of the calling workflow true."""
    update: SearchAttributeUpdate[str] = _POOL_KEY.value_set(pool)
    workflow.upsert_search_attributes([update])  # pyright: ignore[reportUnknownMemberType]


def note_state(state: str) -> None:
    """Keep the searchable state of the calling workflow true."""
    update: SearchAttributeUpdate[str] = _STATE_KEY.value_set(state)
    workflow.upsert_search_attributes([update])  # pyright: ignore[reportUnknownMemberType]
