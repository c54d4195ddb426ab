"""The Agent workflow: notices when a host goes and when it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError

from workflows import calls, names
from workflows.messages import (
    AgentRun,
    AgentSeen,
    ErrorType,
    NamespaceOrder,
    NamespaceServed,
    NodeService,
    Presence,
    RecordAgent,
)
from workflows.options import on_agent, record, tell

#: More than this late, and it was the server that was away, not the agent.
_LATE = timedelta(seconds=5)
#: For an agent and its cluster to answer: less than a client waits.
_ANSWER = timedelta(seconds=8)


In = TypeVar("In")
Out = TypeVar("Out")


def _refuse(what: str, problem: str) -> None:
    """Raises: ApplicationError, if there is a problem."""
    if problem:
        raise ApplicationError(f"{what}: {problem}", type=ErrorType.COMMAND_REFUSED)


@workflow.defn(name="Agent", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Agent:
    """Id `agent-<id>`. Closes when an operator removes the agent.

    Messages, signals from the API: `present` whenever the agent takes up the presence activity; `retire`.
    Updates from the API: `serve_node`, `serve_namespace`.
    """

    @workflow.init
    def __init__(self, run: AgentRun) -> None:
        self._agent = run
        self._seen: AgentSeen | None = None
        self._is_retired = False

    @workflow.run
    async def run(self, run: AgentRun) -> None:
        """Watch the agent: present, away, lost, present again."""
        agent = self._agent
        while True:
            since = workflow.now()
            watch = asyncio.create_task(self._watch())
            while not watch.done():
                await workflow.wait_condition(
                    lambda watch=watch: self._is_retired or self._seen is not None or watch.done() or self._is_old()
                )
                if self._is_retired:
                    watch.cancel()
                    await tell(names.pool_workflow(agent.pool), "agent_lost", self._as_seen(is_gone=True))
                    self._say("removed by an operator")
                    return
                if self._seen is not None:
                    await self._join()
                elif self._is_old() and not watch.done():
                    watch.cancel()  # the attempt notices by its heartbeat; the next run schedules another
                    workflow.continue_as_new(agent)
            if agent.is_connected:
                await self._mark(connected=False)
                await tell(names.pool_workflow(agent.pool), "agent_away", self._as_seen())
                self._say(f"out of reach; given up if it is not back within {agent.reconnect_wait_s:g} s")
            elif workflow.now() - since > timedelta(seconds=agent.reconnect_wait_s) + _LATE:
                continue  # the wait overran: the server slept through it, and the agent gets a whole new wait
            elif not agent.is_lost:
                agent.is_lost = True
                await tell(names.pool_workflow(agent.pool), "agent_lost", self._as_seen())
                self._say("lost: what can run elsewhere was queued again; waits for its return")

    @workflow.signal
    def present(self, seen: AgentSeen) -> None:
        """The agent is there, with these slots."""
        self._seen = seen

    @workflow.signal
    def retire(self, agent: Presence) -> None:
        """An operator removed the agent: what it held goes elsewhere, and it is not waited for any more."""
        self._is_retired = True

    @workflow.update
    async def serve_node(self, order: NodeService) -> None:
        """Have a node of the agent's cluster put in or out of service.

        Raises: ApplicationError, which says why it could not be done.
        """
        cluster = f"the cluster of node {order.node!r}"
        served = await self._asked(calls.serve_node, order, f"node {order.node}: {order.state}", cluster)
        _refuse(f"node {order.node!r}", served.problem)

    @workflow.update
    async def serve_namespace(self, order: NamespaceOrder) -> NamespaceServed:
        """Have a namespace of the agent's cluster for a workspace.

        Raises: ApplicationError, which says why it could not be done.
        """
        served = await self._asked(
            calls.serve_namespace, order, f"namespace of workspace {order.workspace_id}", "that cluster"
        )
        _refuse(f"cluster {self._agent.agent_id!r}", served.problem)
        return served

    async def _asked(self, call: Callable[[In], Awaitable[Out]], order: In, summary: str, cluster: str) -> Out:
        """What the agent answers, which is asked once. Raises: ApplicationError, if it does not."""
        agent = self._agent
        try:
            return await on_agent(
                call,
                order,
                task_queue=names.agent_queue(agent.agent_id),
                schedule_to_close_timeout=_ANSWER,
                retry_policy=RetryPolicy(maximum_attempts=1),
                summary=summary,
            )
        except ActivityError as error:
            raise ApplicationError(
                f"agent {agent.agent_id!r}, which stands for {cluster}, does not answer: {error.cause}",
                type=ErrorType.COMMAND_REFUSED,
            ) from error

    async def _join(self) -> None:
        agent = self._agent
        assert self._seen is not None
        seen, self._seen = self._seen, None
        if seen.pool != agent.pool:
            await tell(names.pool_workflow(agent.pool), "agent_lost", self._as_seen(is_gone=True))
        agent.pool, agent.slots, agent.address, agent.is_lost = seen.pool, seen.slots, seen.address, False
        await self._mark(connected=True)
        pause = 0.2
        while not await tell(names.pool_workflow(agent.pool), "agent_joined", seen) and not self._is_retired:
            self._say(f"waits for `pool-{agent.pool}`, which does not run yet")
            await workflow.sleep(pause, summary="until the pool runs")
            pause = min(60.0, pause * 2)
        self._say(f"present in `pool-{agent.pool}` with slots {list(agent.slots.slot_ids)}")

    async def _watch(self) -> None:
        """Returns when the agent stopped heartbeating, or did not take the activity up in time."""
        agent = self._agent
        try:
            await on_agent(
                calls.presence,
                Presence(agent_id=agent.agent_id),
                task_queue=names.agent_queue(agent.agent_id),
                start_to_close_timeout=timedelta(days=365),
                schedule_to_start_timeout=None if agent.is_lost else timedelta(seconds=agent.reconnect_wait_s),
                heartbeat_timeout=timedelta(seconds=agent.heartbeat_s),
                retry_policy=RetryPolicy(maximum_attempts=1),
                cancellation_type=workflow.ActivityCancellationType.ABANDON,
                summary=f"presence of {agent.agent_id}",
            )
        except ActivityError as error:
            workflow.logger.info("agent %s is out of reach: %s", agent.agent_id, error.cause)

    async def _mark(self, *, connected: bool) -> None:
        agent = self._agent
        agent.is_connected = connected
        # from the clock, not counted: it must also rise when an operator ended this workflow and another began
        agent.revision = max(agent.revision + 1, int(workflow.now().timestamp() * 1000))
        entry = RecordAgent(
            agent_id=agent.agent_id,
            revision=agent.revision,
            pool=agent.pool,
            slots=agent.slots,
            address=agent.address,
            is_connected=connected,
        )
        await record(calls.record_agent, entry)

    def _as_seen(self, *, is_gone: bool = False) -> AgentSeen:
        agent = self._agent
        return AgentSeen(
            agent_id=agent.agent_id, pool=agent.pool, slots=agent.slots, address=agent.address, is_gone=is_gone
        )

    def _is_old(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    def _say(self, text: str) -> None:
        workflow.set_current_details(f"Agent `{self._agent.agent_id}`: {text}")
