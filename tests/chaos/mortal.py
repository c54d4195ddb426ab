"""An orchestrator that kills itself at a given step of a given workflow: the real one, with a counter in its worker.

A step is a moment at which this process is about to do something for the workflow, or has just done it: it is about to
decide (`activation`), it has decided and told nobody yet (`decided`), it is about to write a record (`activity`), it has
written it and told nobody yet (`written`). Between two steps the workflow's history does not change by our doing, so that
a death at each step is a death after each event.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from workers import orchestrator
from workers.logs import configure_logging
from workers.settings import OrchestratorSettings

#: Steps at which the outside differs; at `decided` it is as at the activation before, so that it is for long runs only.
TELLING = ("activation", "activity", "written")


def write_order(path: Path, workflow_id: str = "", step: int = 0, kinds: tuple[str, ...] = TELLING) -> None:
    """Have the orchestrators that look at `path` die at this step, counted from 1, of this workflow; 0: never."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps({"workflow": workflow_id, "step": step, "kinds": kinds}))
    os.replace(partial, path)


class Steps:
    """Counts the steps of the workflow that the order names, writes them down, and dies at the one that is due."""

    def __init__(self, order: Path, log: Path) -> None:
        self._order = order
        self._log = log
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def note(self, workflow_id: str, kind: str, detail: str) -> None:
        """The process is at such a step of this workflow."""
        with self._lock:
            order = json.loads(self._order.read_text())
            if workflow_id != order["workflow"] or kind not in order["kinds"]:
                return
            count = self._counts[workflow_id] = self._counts.get(workflow_id, 0) + 1
            with self._log.open("a") as log:
                log.write(json.dumps({"workflow": workflow_id, "step": count, "kind": kind, "at": detail}) + "\n")
            if count == order["step"]:
                os.kill(os.getpid(), signal.SIGKILL)


class _CountedInstance(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance, workflow_id: str, steps: Steps) -> None:
        self._inner = inner
        self._id = workflow_id
        self._steps = steps

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if not act.is_replaying:
            self._steps.note(self._id, "activation", f"event {act.history_length}")
        completion = self._inner.activate(act)
        if not act.is_replaying:
            self._steps.note(self._id, "decided", f"event {act.history_length}")
        return completion

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Any:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


class _CountedRunner(WorkflowRunner):
    def __init__(self, inner: WorkflowRunner, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    def prepare_workflow(self, defn: Any) -> None:
        self._inner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        self._inner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _CountedInstance(self._inner.create_instance(det), det.info.workflow_id, self._steps)


class _CountedActivities(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, steps: Steps) -> None:
        super().__init__(inner)
        self._steps = steps

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        workflow_id = info.workflow_id or ""
        self._steps.note(workflow_id, "activity", info.activity_type)
        result = await super().execute_activity(input)
        self._steps.note(workflow_id, "written", info.activity_type)
        return result


class _Counted(Interceptor):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _CountedActivities(next, self._steps)


def _worker(steps: Steps, real: Callable[..., Worker], *arguments: Any, **options: Any) -> Worker:
    options["workflow_runner"] = _CountedRunner(options["workflow_runner"], steps)
    options["interceptors"] = [*options.get("interceptors", ()), _Counted(steps)]
    return real(*arguments, **options)


def run(settings: dict[str, Any], order: str, log: str, output: str) -> None:
    """The process's life: an orchestrator as `workers.orchestrator` makes it, until it is killed or kills itself."""
    with open(output, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    steps = Steps(Path(order), Path(log))
    orchestrator.Worker = functools.partial(_worker, steps, Worker)  # pyright: ignore[reportPrivateImportUsage]
    configure_logging()
    asyncio.run(orchestrator.main(OrchestratorSettings(**settings), asyncio.Event()))
