"""A workflow of no trial that holds one allocation: the least that a workload is."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from temporalio import workflow

from workflows import names
from workflows.allocation import AllocationHolder, AllocationRun, Wish
from workflows.lifecycle.allocation import AllocationEnd
from workflows.messages import OpenAllocation, Timing
from workflows.scheduling.model import Placement, Request


class ErrandRun(BaseModel):
    """Input of the workflow."""

    task_id: str
    pool: str
    slots: int = 1
    timing: Timing


@workflow.defn(name="Errand")
class Errand(AllocationHolder):
    """Id `task-<task id>`. Runs once; `want` (signal) says otherwise. Its workload is itself."""

    @workflow.init
    def __init__(self, run: ErrandRun) -> None:
        super().__init__()
        self._run = run
        self._wish = Wish.RUN
        self.timing = run.timing
        self.excluded: Mapping[str, str] = {}
        self.heeds_output = False

    @workflow.run
    async def run(self, run: ErrandRun) -> AllocationEnd:
        """Returns what became of it."""
        self._allocation = AllocationRun(names.allocation_id(run.task_id, 1), run.pool, self)
        end = await self._allocation.run()
        if self._allocation.release is not None:
            await self._allocation.release
        return end

    @workflow.signal
    def want(self, wish: Wish) -> None:
        """What is wanted of it now."""
        self._wish = wish
        if self._allocation is not None:
            self._allocation.steer_again()

    def request(self, allocation_id: str) -> Request:
        """Its slots."""
        return Request(allocation_id=allocation_id, holder=workflow.info().workflow_id, slots=self._run.slots)

    def opened(self, allocation_id: str, pool: str, placements: tuple[Placement, ...]) -> OpenAllocation:
        """Its only run."""
        return OpenAllocation(
            allocation_id=allocation_id,
            task_id=self._run.task_id,
            run_id=1,
            pool=pool,
            slots=self._run.slots,
            placements=placements,
        )

    def needs_slots(self) -> bool:
        """Unless somebody wants something else by now."""
        return self._wish is Wish.RUN

    def wish(self) -> Wish:
        """As it was told."""
        return self._wish

    def is_ending(self) -> bool:
        """It runs once only."""
        return True

    def say(self, text: str) -> None:
        """Show it in Temporal's Web UI."""
        workflow.set_current_details(text)
