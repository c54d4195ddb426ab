"""An agent whose containers do at once, by the API, what a training script would do in minutes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
from sqlalchemy import func, select
from temporalio import activity

from database.models import Allocation, SearchDecision, Trial
from database.types import utc_now
from tests.kit.platform import AGENT_TOKEN, Platform
from workflows.lifecycle.allocation import ContainerResult
from workflows.messages import ContainerEnd, KillContainer, RunContainer


class InstantContainers:
    """`run_container` and `kill_container` of an agent: trains to each length that the search gives, reports, leaves.

    One trial of an experiment works at a time, and begins when all is recorded that happened before: so there is only
    one order in which the search can learn of results, and each run of it has the same decisions.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._http = httpx.AsyncClient(base_url=platform.url, timeout=30)
        self._steps: Counter[str] = Counter()  # by task: what a checkpoint would hold
        #: How often each container was started.
        self.starts: Counter[str] = Counter()

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    @activity.defn
    async def run_container(self, order: RunContainer) -> ContainerEnd:
        """Live a container's life."""
        self.starts[order.container_id] += 1
        beating = asyncio.create_task(_beat())
        try:
            await self._until(self._is_alone, order.allocation_id)
            await self._train(order)
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        return ContainerEnd(result=ContainerResult(container_id=order.container_id, code=0), ended_at=utc_now())

    @activity.defn
    async def kill_container(self, order: KillContainer) -> None:
        """There is no need for it here."""
        raise AssertionError(f"{order.container_id} was to be killed, though nobody asked for that")

    async def _train(self, order: RunContainer) -> None:
        agent = {"Authorization": f"Bearer {AGENT_TOKEN}"}
        base = f"/api/v1/undeterred/allocations/{order.allocation_id}"
        launch = await self._ask("POST", f"{base}/containers/{order.rank}/launch", agent)
        await self._ask("POST", f"{base}/running", agent)
        env = launch["env"]
        me = {"Grpc-Metadata-x-allocation-token": f"Bearer {env['DET_SESSION_TOKEN']}"}
        task, trial = env["DET_TASK_ID"], f"/api/v1/trials/{env['DET_TRIAL_ID']}"
        quality = self._quality(int(env["DET_TRIAL_ID"]))
        signals = f"/api/v1/allocations/{order.allocation_id}/signals"
        await self._ask("GET", f"{signals}/preemption?timeout_seconds=0", me)
        following: dict[str, Any] | None = None
        done = 0
        while True:
            answer: dict[str, Any] = following or await self._ask("GET", f"{trial}/searcher/operation", me)
            if answer["completed"]:
                break
            length = int(answer["op"]["validateAfter"]["length"])
            assert length > done, f"{trial} was to train to {length}, which it has done"
            while self._steps[task] < length:
                self._steps[task] += 1
                report = {
                    "trialRunId": int(env["DET_TRIAL_RUN_ID"]),
                    "stepsCompleted": self._steps[task],
                    "metrics": {"avgMetrics": {"accuracy": quality * self._steps[task]}},
                }
                await self._ask("POST", f"{trial}/validation_metrics", me, report)
            await self._until(self._are_ends_known, order.allocation_id)
            body = {"op": {"length": str(length)}, "searcherMetric": quality * length, "wantsNext": True}
            following = (await self._ask("POST", f"{trial}/searcher/completed_operation", me, body)).get("next")
            done = length
            if following is not None:  # answered as it was decided: the record says the same, whatever died meanwhile
                await self._is_recorded(f"{trial}/searcher/operation", me, following)
        await self._until(self._are_ends_known, order.allocation_id)
        await self._ask("POST", f"{signals}/ack_preemption", me)

    async def _is_recorded(self, path: str, headers: dict[str, str], expected: dict[str, Any]) -> None:
        async def is_there() -> bool:
            return await self._ask("GET", path, headers) == expected

        await self._platform.until(is_there, 170, what=f"the record of {expected}")

    async def _ask(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> Any:
        """As the harness does: again, until the cluster takes it."""
        while True:
            response = await self._http.request(method, path, headers=headers, json=body)
            if response.status_code != 503:
                assert response.status_code == 200, f"{method} {path}: {response.text}"
                return response.json()
            await asyncio.sleep(0.2)

    def _quality(self, trial_id: int) -> float:
        with self._platform.database.read() as session:
            return float(session.get_one(Trial, trial_id).hparams["quality"])

    async def _until(self, condition: Callable[[str], bool], allocation_id: str) -> None:
        what = f"{getattr(condition, '__name__', condition)} for {allocation_id}"
        await self._platform.until(lambda: asyncio.to_thread(condition, allocation_id), 170, what=what)

    def _is_alone(self, allocation_id: str) -> bool:
        """Whether every other allocation of the experiment is over, and the search knows of every end."""
        with self._platform.database.read() as session:
            others = session.scalar(
                select(func.count())
                .select_from(Allocation)
                .join(Trial, Trial.id == Allocation.trial_id)
                .where(
                    Trial.experiment_id == _experiment(allocation_id),
                    Allocation.id != allocation_id,
                    Allocation.ended_at.is_(None),
                )
            )
        return not others and self._are_ends_known(allocation_id)

    def _are_ends_known(self, allocation_id: str) -> bool:
        """Whether the search knows of the end of every other trial that it has closed."""
        experiment_id = _experiment(allocation_id)
        with self._platform.database.read() as session:
            mine = select(Allocation.trial_id).where(Allocation.id == allocation_id).scalar_subquery()
            closed = session.scalars(
                select(Trial.request_id).where(Trial.experiment_id == experiment_id, Trial.is_closed, Trial.id != mine)
            ).all()
            decisions = session.scalars(
                select(SearchDecision.decision).where(SearchDecision.experiment_id == experiment_id)
            ).all()
        ended = [decision for decision in decisions if '"trial_closed"' in decision]
        return all(any(request_id in decision for decision in ended) for request_id in closed)


def _experiment(allocation_id: str) -> int:
    return int(allocation_id.partition(".")[0])


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(1)
