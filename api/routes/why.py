"""Explains the state of a trial, an experiment or a task, by the records, and by its pool if Temporal answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import readable, readable_task, readable_trial
from api.deps import PartsDep, UserDep
from api.errors import Unavailable
from api.parts import Parts
from api.queries import why
from api.routing import Route
from api.schemas.base import answer
from api.schemas.parameters import ExperimentId, TaskId, TrialId
from database.types import utc_now
from workflows import names
from workflows.lifecycle.explain import Phase, explain_experiment, explain_trial, phase
from workflows.lifecycle.explain_task import explain_task, waits_for_slots
from workflows.lifecycle.facts import ExperimentFacts, Facts, QueueFacts, TaskFacts, TrialFacts
from workflows.scheduling.explain import stand
from workflows.scheduling.pool import Pool

router = APIRouter(route_class=Route, tags=["why"])


@router.get("/api/v1/undeterred/trials/{trial_id}/why")
async def why_trial(trial_id: TrialId, parts: PartsDep, user: UserDep) -> Response:
    """What a trial waits for, how its runs ended, what is left of its budget and what comes next."""

    def gather() -> tuple[TrialFacts, list[str]]:
        with parts.database.read() as session:
            readable_trial(session, trial_id, user)
            return why.of_trial(session, trial_id, parts.settings.timing)

    facts, pools = await run_in_threadpool(gather)
    await _ask_pools(parts, pools, [facts])
    return _told(explain_trial(facts, utc_now()), facts)


@router.get("/api/v1/undeterred/experiments/{experiment_id}/why")
async def why_experiment(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """How an experiment stands, and what those of its trials wait for that do not run."""

    def gather() -> tuple[ExperimentFacts, list[str]]:
        with parts.database.read() as session:
            readable(session, experiment_id, user)
            return why.of_experiment(session, experiment_id, parts.settings.timing)

    facts, pools = await run_in_threadpool(gather)
    await _ask_pools(parts, pools, facts.open)
    return _told(explain_experiment(facts, utc_now()), facts)


@router.get("/api/v1/undeterred/tasks/{task_id}/why")
async def why_task(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
    """What a task waits for, how its runs ended, what is left of its budget and what comes next."""

    def gather() -> tuple[TaskFacts | int, str]:
        with parts.database.read() as session:
            task = readable_task(session, task_id, user)
            if task.trial_id is not None:
                return task.trial_id, ""
            return why.of_task(session, task), task.pool or ""

    facts, pool = await run_in_threadpool(gather)
    if isinstance(facts, int):
        return await why_trial(facts, parts, user)
    if waits_for_slots(facts):
        await _ask(parts, pool, {names.task_workflow(task_id): facts})
    return _told(explain_task(facts, utc_now()), facts)


def _told(sentences: list[str], facts: Facts) -> Response:
    return answer({"sentences": sentences, "facts": orjson.Fragment(facts.model_dump_json(by_alias=True))})


async def _ask_pools(parts: Parts, pools: Sequence[str], trials: Sequence[TrialFacts]) -> None:
    """Where those stand in the queue that wait for slots. While Temporal is away, the facts say that instead."""
    now = utc_now()
    waiting = [trial for trial in trials if phase(trial, now) is Phase.WAITS_FOR_SLOTS]
    for pool in pools:  # the last one says it of those that none has
        if waiting:
            await _ask(parts, pool, {names.trial_workflow(trial.trial_id): trial for trial in waiting})
        waiting = [
            each for each in waiting if each.queue is None or not (each.queue.is_queued or each.queue.is_granted)
        ]


async def _ask(parts: Parts, pool: str, waiting: Mapping[str, TrialFacts | TaskFacts]) -> None:
    """Where the holders of these workflows stand in the queue of a pool."""
    try:
        known = await parts.commands.pool(pool)
    except Unavailable as error:
        for each in waiting.values():
            each.queue_error = error.message
        return

    def look() -> dict[str, QueueFacts]:
        return stand(pool, Pool(known.snapshot, known.settings), known.lost.values(), waiting)

    for holder, facts in (await run_in_threadpool(look)).items():
        waiting[holder].queue = facts
