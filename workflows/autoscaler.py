"""The Autoscaler workflow of a pool: has nodes launched for what waits, and those terminated that stay idle."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

from workflows import calls, names
from workflows.lifecycle.allocation import backoff_s
from workflows.messages import AgentService, AutoscalerRun, Presence, ProviderCall, ProviderChange, ProviderOutcome
from workflows.options import is_old, record_once, short_task, tell
from workflows.scheduling.autoscaler import Demand, Node, NodeState, desired_agents, is_busy_again, next_look, seen

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
_COMMAND_LIMIT = timedelta(minutes=10)
_NOTICED_WITHIN = timedelta(seconds=20)


@workflow.defn(name="Nodes", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Autoscaler:
    """Id `nodes-<pool>`, type `Nodes`, as histories name it.

    Closes when its pool has no provider any more and the last of its nodes is gone.

    Messages, signals: `demand` from the pool, `configure` from the API. It tells the pool `demand_wanted` when it
    begins, and by `agent_service` that nothing new is to be placed on a node that is to go.
    """

    @workflow.init
    def __init__(self, run: AutoscalerRun) -> None:
        self._run = run
        self._is_dirty = True
        self._given_up: list[str] = []  # whose agents may still come
        self._calls: dict[str, asyncio.Task[None]] = {}  # commands that run, by node

    @workflow.run
    async def run(self, run: AutoscalerRun) -> None:
        """Compare what there is with what is wanted whenever something changed, or enough time has passed."""
        while True:
            if not self._run.is_told:
                self._run.is_told = await tell(names.pool_workflow(run.pool), "demand_wanted", None)
            self._is_dirty = False
            self._look()
            await self._drain()
            self._call()
            await self._forget()
            if self._run.is_retiring and not self._run.nodes and not self._is_dirty:
                await workflow.wait_condition(workflow.all_handlers_finished)
                return
            if is_old() and not self._calls:
                await short_task()
                if not self._calls and not self._is_dirty:
                    workflow.continue_as_new(self._run)
            self._say()
            await self._wait()

    @workflow.signal
    def demand(self, demand: Demand) -> None:
        """What the pool needs and has now."""
        self._run.demand = demand
        self._is_dirty = True

    @workflow.signal
    def configure(self, change: ProviderChange) -> None:
        """An operator changes where nodes come from."""
        self._run.is_retiring = change.provider is None
        if change.provider is not None:
            self._run.provider = change.provider
        for node in self._run.nodes.values():
            node.try_at = 0.0  # what failed may be put right by this
        self._run.is_told = False
        self._is_dirty = True

    @workflow.query
    def snapshot(self) -> AutoscalerRun:
        """The nodes and their problems, for people and tests."""
        return self._run

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        run, now = self._run, self._now()
        if not run.is_told:
            return  # agents would seem to be lost
        for node_id, node in run.nodes.items():
            run.nodes[node_id] = seen(node, run.demand, now)
        desired = desired_agents(run.nodes.values(), run.demand, run.provider, now, is_retiring=run.is_retiring)
        for node_id in desired.give_up:
            self._enter(node_id, NodeState.LEAVING)
            self._given_up.append(node_id)
        for node_id in desired.drain:
            self._enter(node_id, NodeState.DRAINING)
        for _ in range(desired.launch):
            node_id = f"{run.pool}-{workflow.uuid4().hex[:12]}"
            run.nodes[node_id] = Node(node_id=node_id, since=now)

    def _enter(self, node_id: str, state: NodeState) -> None:
        node = self._run.nodes[node_id]
        update = {"state": state, "since": self._now(), "tries": 0, "try_at": 0.0, "problem": ""}
        self._run.nodes[node_id] = node.model_copy(update=update)

    # -- carrying it out -----------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """The pool places nothing new on nodes that are to go. Only when it says so, and they are idle, they do go."""
        run = self._run
        while self._given_up:
            await self._serve(self._given_up.pop(0), is_enabled=False)
        for node_id, node in list(run.nodes.items()):
            if node.state is not NodeState.DRAINING:
                continue
            use = run.demand.agents.get(node_id)
            if is_busy_again(node, run.demand):
                await self._serve(node_id, is_enabled=True)
                self._enter(node_id, NodeState.UP)
            elif use is not None and use.is_enabled:
                await self._serve(node_id, is_enabled=False)

    async def _serve(self, node_id: str, *, is_enabled: bool) -> None:
        service = AgentService(agent_id=node_id, is_enabled=is_enabled, is_draining=not is_enabled)
        await tell(names.pool_workflow(self._run.pool), "agent_service", service)

    def _call(self) -> None:
        for node_id, node in self._run.nodes.items():
            is_due = (node.state is NodeState.STARTING and not node.is_launched) or node.state is NodeState.LEAVING
            if is_due and node.try_at <= self._now() and node_id not in self._calls:
                self._calls[node_id] = asyncio.create_task(self._run_command(node_id, node.state))

    async def _run_command(self, node_id: str, state: NodeState) -> None:
        run = self._run
        is_launch = state is NodeState.STARTING
        command = run.provider.launch if is_launch else run.provider.terminate
        call = ProviderCall(pool=run.pool, node_id=node_id, command=command, slots=run.provider.slots_per_node)
        try:
            outcome: ProviderOutcome = await workflow.execute_activity(
                calls.run_provider,
                call,
                task_queue=names.ORCHESTRATOR_QUEUE,
                start_to_close_timeout=_COMMAND_LIMIT,
                heartbeat_timeout=_NOTICED_WITHIN,
                retry_policy=RetryPolicy(maximum_attempts=1),  # tried again from here, so that people see why
                summary=f"{'launch' if is_launch else 'terminate'} {node_id}",
            )
        except ActivityError as error:
            outcome = ProviderOutcome(problem=f"{command!r} did not end well: {error.cause or error}")
        del self._calls[node_id]
        self._is_dirty = True
        node = run.nodes[node_id]
        if node.state is not state:
            return  # it came, or was given up, meanwhile
        if outcome.problem:
            workflow.logger.warning("node %s: %s", node_id, outcome.problem)
            node.tries += 1
            node.try_at = self._now() + backoff_s(node.tries, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            node.problem = outcome.problem
        elif is_launch:
            node.is_launched, node.problem = True, ""
        else:
            self._enter(node_id, NodeState.TERMINATED)

    async def _forget(self) -> None:
        """A terminated node is forgotten when the pool has missed its agent: then nobody waits for its return."""
        run = self._run
        for node_id, node in list(run.nodes.items()):
            if node.state is not NodeState.TERMINATED or node_id in run.demand.agents:
                continue
            await self._serve(node_id, is_enabled=True)  # or the pool would remember indefinitely that it is not
            await tell(names.agent_workflow(node_id), "retire", Presence(agent_id=node_id))
            await record_once(calls.forget_agent, node_id)
            del run.nodes[node_id]

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        run, now = self._run, self._now()
        moments = [node.try_at for node_id, node in run.nodes.items() if node.problem and node_id not in self._calls]
        look = next_look(run.nodes.values(), run.provider, now)
        if look is not None:
            moments.append(look)
        ahead = [moment - now for moment in moments if moment > now]
        if not run.is_told:
            ahead.append(5.0)  # the pool's workflow does not run yet
        timeout = timedelta(seconds=min(ahead)) if ahead else None
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._is_dirty or (is_old() and not self._calls), timeout=timeout)

    def _now(self) -> float:
        return workflow.now().timestamp()

    def _say(self) -> None:
        run = self._run
        listed = "\n".join(
            f"- `{node.node_id}`: {node.state}{f': {node.problem}' if node.problem else ''}"
            for node in list(run.nodes.values())[:20]
        )
        workflow.set_current_details(
            f"{len(run.nodes)} nodes, of {run.provider.min_nodes} to {run.provider.max_nodes}; what waits needs "
            f"{run.demand.nodes} more or idle ones.\n\n{listed}"
        )
