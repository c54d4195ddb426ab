"""Watches the budget of an experiment: warns at its soft limits, and has it paused when one is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from temporalio import workflow

from workflows.lifecycle import budget
from workflows.lifecycle.budget import Clock, Meter, What
from workflows.lifecycle.experiment import Command, CommandRefused, ExperimentState
from workflows.messages import ExperimentRun

#: A timer comes so long after its moment, so that the limit is reached by any rounding.
_LATE_S = 0.01


class BudgetWatch:
    """The budget of one run of an experiment, if it has one. It may change meanwhile; the timers are Temporal's.

    Args:
        run: The experiment's state, which has the budget and what was used of it.
        waiting: Trials to be started, in order. The experiment's own list, which changes.
    """

    def __init__(self, run: ExperimentRun, waiting: Sequence[str]) -> None:
        self._run = run
        self._waiting = waiting
        entries = run.trials.values()
        ran = sum(not each.is_heir and bool(each.run_id or not each.is_waiting) for each in entries)
        run.clock.trials = run.retired + ran
        self._notices: list[str] = []
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at: datetime | None = None

    def take(self, meter: Meter) -> None:
        """What the records counted, or other limits."""
        run = self._run
        if run.budget is not None and meter.number <= run.budget.number:
            return
        run.budget = meter
        run.clock.warned = budget.still_warned_of(meter, run.clock, workflow.now())

    def run_on(self) -> Clock | None:
        """Count for how long the experiment is active; what is to be recorded of that."""
        run = self._run
        run.clock.run_on(workflow.now(), is_active=run.state is ExperimentState.ACTIVE)
        return run.clock.model_copy(deep=True) if run.budget is not None else None

    def affordable(self, most: int) -> int:
        """How many of those that wait may start, `most` at most: the first ones. A trial that has run costs nothing."""
        left = self._trials_left()
        if left is None:
            return most
        for place, request_id in enumerate(self._waiting[:most]):
            left -= not self._run.trials[request_id].run_id
            if left < 0:
                return place
        return most

    def has_news(self) -> bool:
        """Whether there is something to say of it, or to do."""
        run = self._run
        if run.budget is None or run.state is not ExperimentState.ACTIVE:
            return False
        return self.spent() is not None or bool(budget.to_warn_of(run.budget, run.clock, workflow.now()))

    def heed(self) -> bool:
        """Note what is to be said of it; whether the experiment has to pause."""
        run, now = self._run, workflow.now()
        if run.budget is None or not self.has_news():
            return False
        limits, so_far = run.budget.limits, budget.used(run.budget, run.clock, now)
        run.clock.paused_by = self.spent()
        for what in budget.to_warn_of(run.budget, run.clock, now):
            run.clock.warned.append(what)
            if what is not run.clock.paused_by:
                self._notices.append(budget.warning(limits, what, so_far[what]))
        if run.clock.paused_by is None:
            return False
        self._notices.append(f"its {budget.is_spent(limits, run.clock.paused_by)}: it is paused")
        return True

    def take_notices(self) -> list[str]:
        """What is to be said and was not said before."""
        notices, self._notices = self._notices, []
        return notices

    def check(self, command: Command) -> None:
        """Refuse a command that the budget forbids. Raises: CommandRefused."""
        run, what = self._run, self.spent()
        if run.budget is None or what is None or command is not Command.ACTIVATE:
            return
        if run.state is ExperimentState.PAUSED:
            limits, of = run.budget.limits, f"experiment budget set {run.experiment_id}"
            raise CommandRefused(f"its {budget.is_spent(limits, what)}: {budget.how_to_raise(limits, what, of)}")

    def spent(self) -> What | None:
        """The limit that is reached."""
        run = self._run
        if run.budget is None:
            return None
        lacks_trials = bool(self._waiting) and self.affordable(1) == 0
        return budget.spent(run.budget, run.clock, workflow.now()) or (What.TRIALS if lacks_trials else None)

    def _trials_left(self) -> int | None:
        budget_ = self._run.budget
        if budget_ is None or budget_.limits.trials is None:
            return None
        return max(0, budget_.limits.trials - self._run.clock.trials)

    # -- the timer ---------------------------------------------------------------------------------------------------

    def _next_look(self) -> datetime | None:
        run = self._run
        if run.budget is None or run.state is not ExperimentState.ACTIVE:
            return None
        return budget.next_look(run.budget, run.clock)

    def needs_alarm(self) -> bool:
        """Whether the timer is for another moment than it should be."""
        return self._next_look() != self._alarm_at

    def set_alarm(self) -> None:
        """Have the workflow wake when time has used the budget up, or as much of it as is to be warned of."""
        if not self.needs_alarm():
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, self._next_look()
        if self._alarm_at is not None:
            wait = max(timedelta(0), self._alarm_at - workflow.now()) + timedelta(seconds=_LATE_S)
            self._alarm = asyncio.create_task(workflow.sleep(wait, summary="budget"))
