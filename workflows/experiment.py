"""The Experiment workflow: runs the search, and the trials that it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError

from workflows import calls, names
from workflows.answers import GivenRecords
from workflows.attributes import note_pool, note_state
from workflows.cleanup import start_gc
from workflows.experiment_budget import BudgetWatch
from workflows.large import restore, shorten, step_limit
from workflows.lifecycle.budget import Meter
from workflows.lifecycle.experiment import (
    FINAL_STATE,
    TRANSITIONS,
    Command,
    CommandRefused,
    ExperimentState,
    next_state,
)
from workflows.lifecycle.gates import GateState, gate_of
from workflows.lifecycle.trial import FINAL_STATE as FINAL_TRIAL_STATE
from workflows.lifecycle.trial import TrialState
from workflows.messages import (
    CommandResult,
    CreatedTrials,
    ErrorType,
    ExperimentRun,
    GateDecided,
    Hold,
    NewTrial,
    OperationAnswers,
    OperationReports,
    PoolMove,
    ProgressReport,
    RecordExperiment,
    ReportAnswer,
    TrialEnded,
    TrialEntry,
    TrialOrder,
    TrialOrders,
    TrialReportBatch,
    TrialStanding,
    TrialStart,
    TrialStarts,
    ValidationReport,
)
from workflows.new_trials import new_trial, note_trials, start_options, trial_run
from workflows.options import is_old, record_once, suggest, tell
from workflows.searchers import (
    Amended,
    Ask,
    Create,
    Decision,
    Event,
    ExitReason,
    OperationCompleted,
    OperationsPosted,
    ProgressReported,
    SearchError,
    Shutdown,
    Started,
    Steered,
    Suggested,
    TrialClosed,
    TrialExitedEarly,
    TrialView,
    ValidationReported,
)

_TRIAL_STATE = {
    ExperimentState.ACTIVE: TrialState.ACTIVE,
    ExperimentState.PAUSED: TrialState.PAUSED,
    ExperimentState.STOPPING_COMPLETED: TrialState.STOPPING_COMPLETED,
    ExperimentState.STOPPING_CANCELED: TrialState.STOPPING_CANCELED,
    ExperimentState.STOPPING_KILLED: TrialState.STOPPING_KILLED,
    ExperimentState.STOPPING_ERROR: TrialState.STOPPING_ERROR,
}

#: Events that are decided before they are recorded together: bounds the size of a record and of a workflow task.
_BATCH = 100
#: Orders that are sent with one record, within the time that it may take.
_ORDERS = 200
#: Trials that Temporal's Web UI shows as waited for.
_SHOWN = 10
#: Trials that one run of the workflow starts: Temporal allows 2,000 open children to a run.
_STARTS_PER_RUN = 1000

_OVER = "the search is over: `det experiment fork` goes on from here"


def _is_news(told: TrialOrders | None, orders: TrialOrders) -> bool:
    """Whether a trial has to hear of its orders now.

    A longer length in place of another is between harness and API. That nothing follows on the length that a trial
    has just trained to is in the record, which the trial reads when its container has left.
    """
    if told is None or told.length is None:
        return told != orders
    if orders.length is None:
        return not orders.is_closed or orders.is_stopped or orders.state is not told.state
    return told.model_copy(update={"length": orders.length}) != orders


class _Request:
    """An event whose sender waits until it is decided, or until that is recorded as well."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.is_decided = self.is_done = False
        self.refusal: str | None = None


@workflow.defn(name="Experiment")
class Experiment:
    """Id `experiment-<id>`. Closes when its terminal state is recorded.

    Messages: `command`, `complete_operations`, `amend`, `steer` and `post_operations` (updates) from the API;
    `move`, `budget`, `hold` and `gate_decided` (signals) from the API. What trials say comes as the update
    `take_reports`, and that of several together; where no update is taken, as signals: `validation_reported`,
    `progress_reported`, `trial_ended`.
    """

    @workflow.init
    def __init__(self, run: ExperimentRun) -> None:
        restore(run)
        self._run = run
        self._lock = asyncio.Lock()  # decisions are serialized, whatever caused them
        self._open = {request_id: entry for request_id, entry in run.trials.items() if entry.is_open}
        # what was decided and is not carried out yet
        self._decided: list[Decision] = []
        self._created: list[Create] = []
        self._touched: set[str] = set()
        self._to_start: list[str] = [request_id for request_id, entry in self._open.items() if entry.is_waiting]
        self._budget = BudgetWatch(run, self._to_start)
        self._has_passed = False  # a gate was decided
        self._is_ahead = False  # of the records: something was decided that none has yet
        self._is_awake = False  # its main loop runs
        self._given = GivenRecords()  # see `_record_of_answer`
        self._may_overrun = False  # the budget's
        self._fault = ""
        self._may_inherit = run.inheritance is not None  # until there is nothing more that the search waits for
        self._requests: list[_Request] = []
        # what the records and the trials received last, so that only changes are sent
        self._recorded: dict[int, TrialStanding] = {}
        self._recorded_head: tuple[ExperimentState, float] | None = None
        self._recorded_queue: list[int] = []
        if run.is_recorded:
            self._recorded_head = (run.state, self._progress())
            self._recorded_queue = [event.id for event in run.search.queue()]
            run.is_recorded = False
        self._ordered: dict[str, TrialOrders] = {}
        if run.is_ordered:
            running = [key for key, entry in self._open.items() if not (entry.is_heir or entry.is_waiting)]
            self._ordered = {request_id: self._orders(request_id) for request_id in running}
            run.is_ordered = False
        self._ordered_state = run.state
        self._outgoing: set[asyncio.Task[None]] = set()
        self._unsent: dict[str, None] = {}  # trials that may have to hear of their orders by the next record, in order
        self._asking: asyncio.Task[None] | None = None
        self._started = 0
        self._being_recorded: set[str] = set()  # trials that are started as soon as they have their numbers
        self._held: list[Callable[[], None]] = []  # their messages
        # a trial that runs once more has the id of one that ran: an activity that is done twice could start it twice
        self._is_by_records = run.by_records and not run.continuation

    @workflow.run
    async def run(self, run: ExperimentRun) -> ExperimentState:
        """Decide until the experiment is over. Returns the terminal state."""
        state = self._run
        if not state.is_started:
            state.is_started = True
            if not state.state.is_stopping:
                state.inbox.insert(0, Started())
        self._ask_what_is_open()
        self._is_awake = True
        while True:
            if self._can_continue_as_new():
                state.is_ordered = True
                shorten(state)
                workflow.continue_as_new(state, task_timeout=step_limit(state))
            await self._work_off()
            if self._can_end():
                break
            self._say_what_it_waits_for()
            self._budget.set_alarm()
            await workflow.wait_condition(
                lambda: self._has_news() or self._can_end() or self._can_continue_as_new() or self._budget.needs_alarm()
            )
        async with self._lock:
            state.state = FINAL_STATE[state.state]
            recorded = await self._record()
        if recorded.has_checkpoints:
            await start_gc(state.experiment_id, state.template.timing)
        await self._turn_away()
        return state.state

    # -- messages --------------------------------------------------------------------------------------------------

    @workflow.update
    async def command(self, command: Command) -> CommandResult:
        """Pause, activate, cancel or kill. Answers when the new state is recorded; trials follow in their own time."""
        async with self._lock:
            try:  # the state may have moved while this command waited its turn
                target = self._target(command)
            except CommandRefused as error:
                raise ApplicationError(str(error), type=ErrorType.COMMAND_REFUSED, non_retryable=True) from None
            if target is not self._run.state:
                self._run.state = target
                await self._record()
                self._order(self._open)
        return CommandResult(state=self._run.state)

    @command.validator
    def _command_applies(self, command: Command) -> None:
        try:
            self._target(command)
        except CommandRefused as error:
            raise ApplicationError(str(error), type=ErrorType.COMMAND_REFUSED, non_retryable=True) from None

    def _target(self, command: Command) -> ExperimentState:
        target = next_state(self._run.state, command)
        self._budget.check(command)
        return target

    @workflow.update
    async def complete_operations(self, batch: OperationReports) -> OperationAnswers:
        """Take results of searcher operations. Answers when the decisions that follow are recorded.

        `once_decided`: answers without that wait. The decisions are in this workflow's history then, from which no
        crash takes them; their record is on its way, or goes with the answer to a sender that `writes` it.
        """
        events = [
            OperationCompleted(request_id=report.request_id, length=report.length, metric=report.metric)
            for report in batch.reports
        ]
        if not batch.once_decided:
            return OperationAnswers(refusals=await self._decide_when_free(events))
        self._given.note_written(batch.recorded)
        is_ahead, is_free = self._may_decide_ahead(), batch.writes and self._is_free()
        requests, record = self._put(events), None
        if is_free:
            record = self._decide_now()
        elif is_ahead:
            self._decide_requests()
            self._is_ahead = True
        await workflow.wait_condition(lambda: all(request.is_decided for request in requests))
        lengths = [
            self._next_length(report.request_id, report.length) if request.refusal is None else None
            for report, request in zip(batch.reports, requests, strict=True)
        ]
        refusals = [request.refusal for request in requests]
        return OperationAnswers(refusals=refusals, lengths=lengths, record=record)

    @workflow.update
    async def amend(self, amendment: Amended) -> None:
        """Change the search while it runs. Answers when what follows is recorded."""
        await self._decide_or_refuse(amendment, ErrorType.AMENDMENT_REFUSED)

    @amend.validator
    def _amendment_applies(self, amendment: Amended) -> None:
        run = self._run
        try:
            if run.state.is_stopping or run.state.is_terminal or run.search.shutdown is not None:
                raise SearchError(_OVER)
            run.search.model_copy(deep=True).decide(amendment)
        except SearchError as error:
            raise ApplicationError(str(error), type=ErrorType.AMENDMENT_REFUSED, non_retryable=True) from None

    @workflow.update
    async def steer(self, steered: Steered) -> None:
        """Take what a user does to one trial by hand. Answers when what follows is recorded; a repeat does nothing."""
        await self._decide_or_refuse(steered, ErrorType.AMENDMENT_REFUSED)

    @workflow.update
    async def post_operations(self, posted: OperationsPosted) -> None:
        """Take what the program of a custom search decided. Answers when it is recorded."""
        await self._decide_or_refuse(posted, ErrorType.OPERATION_REFUSED)

    @workflow.signal
    async def move(self, move: PoolMove) -> None:
        """Go on in another pool: trials leave at their next checkpoint, and ask there. A repeat changes nothing."""
        async with self._lock:
            run = self._run
            if move.number <= run.moves:
                return
            run.moves, run.moved_because = move.number, move.reason
            run.template.pool = move.pool
            note_pool(move.pool)
            self._order(self._open)

    @workflow.signal
    async def hold(self, hold: Hold) -> None:
        """Pause, as a budget of its workspace or its token is spent."""
        async with self._lock:
            run, since = self._run, self._run.clock.active_since
            if run.state is ExperimentState.ACTIVE and (since is None or since < hold.at):
                run.state = ExperimentState.PAUSED
                await self._record()
                self._order(self._open)

    @workflow.signal
    def gate_decided(self, decided: GateDecided) -> None:
        """Trials that wait to train for a rung go on, or end; or a spent budget was raised. Repeats change nothing."""
        run, rung = self._run, decided.rung
        if rung is None and decided.state is GateState.APPROVED:
            self._may_overrun = self._has_passed = True
        elif rung is not None and rung in run.gates and run.gates[rung] is not decided.state:
            run.gates[rung] = decided.state
            self._touched |= {each for each in self._open if (run.search.trial(each).rung or 0) >= rung}
            self._has_passed = True

    @workflow.signal
    def budget(self, meter: Meter) -> None:
        """What its trials have used of its budget, or other limits. An earlier one changes nothing."""
        self._budget.take(meter)

    @workflow.signal
    def validation_reported(self, report: ValidationReport) -> None:
        """A validation that the searcher decides on. A repeat changes nothing."""
        if self._is_too_soon(report.request_id, lambda: self.validation_reported(report)):
            return
        entry = self._run.trials.get(report.request_id)
        if entry is not None and report.steps_completed > entry.last_step:
            entry.last_step = report.steps_completed
            if report.reached is not None:
                entry.reached = report.reached
                entry.metric = next(iter(report.metrics.values()), None)
                self._complete_what_was_reached(report.request_id)
                return
            self._run.inbox.append(ValidationReported(request_id=report.request_id, metrics=report.metrics))

    @workflow.signal
    def progress_reported(self, report: ProgressReport) -> None:
        """How far a trial came."""
        if self._is_too_soon(report.request_id, lambda: self.progress_reported(report)):
            return
        if report.request_id in self._run.trials:
            self._run.inbox.append(ProgressReported(request_id=report.request_id, progress=report.progress))

    @workflow.signal
    def trial_ended(self, ended: TrialEnded) -> None:
        """A trial is over. A repeat changes nothing."""
        self._given.note_started(ended.request_id)
        self._given.note_written(ended.recorded)
        if self._is_too_soon(ended.request_id, lambda: self.trial_ended(ended)):
            return
        if ended.request_id not in self._open:
            # who says so again may have failed to do what it was given, and has no answer now if this is a signal
            self._is_ahead = self._is_ahead or bool(self._given)
            return
        if ended.exit_reason is not None:
            reason = ExitReason(ended.exit_reason)
            self._run.inbox.append(TrialExitedEarly(request_id=ended.request_id, reason=reason))
        self._close(ended.request_id)

    @workflow.update
    def take_reports(self, batch: TrialReportBatch) -> ReportAnswer:
        """Take what several trials report, as the signals of these names do: in the history when it answers."""
        self._given.note_written(batch.recorded, starts=batch.starts)
        is_free, starts = batch.writes and self._is_free(), batch.starts and not batch.is_busy
        for report in batch.reports:
            if report.validation_reported is not None:
                self.validation_reported(report.validation_reported)
            if report.progress_reported is not None:
                self.progress_reported(report.progress_reported)
            if report.trial_ended is not None:
                self.trial_ended(report.trial_ended)
        return ReportAnswer(record=self._decide_now(starts=starts) if is_free else None)

    def _is_too_soon(self, request_id: str, take: Callable[[], None]) -> bool:
        """Hold a message of a trial until its number is known here: the activity that writes its record starts it."""
        if request_id in self._being_recorded:
            self._held.append(take)
        return request_id in self._being_recorded

    # -- decisions -------------------------------------------------------------------------------------------------

    def _has_news(self) -> bool:
        # an old run takes no more from the inbox, which is part of the state, so that what is on its way gets there
        if self._requests or self._fault or self._has_passed or self._is_ahead or self._unsent:
            return True
        if self._is_old():
            return bool(self._given)
        if self._run.past is not None or self._run.inbox or self._next_starts() or self._may_inherit:
            return True
        return self._budget.has_news()

    def _come_to_gates(self, touched: Iterable[str]) -> list[int]:
        """Rungs that need approval and that trials have just come to: people are to be asked."""
        run = self._run
        if not run.gates:
            return []
        own = [each for each in touched if each in run.trials and not run.trials[each].is_heir]
        found = {gate_of(run.search.trial(each), run.gates) for each in own}
        asked = sorted(rung for rung in found if rung is not None and run.gates[rung] is None)
        run.gates |= dict.fromkeys(asked, GateState.WAITING)
        return asked

    async def _work_off(self) -> None:
        async with self._lock:
            while self._has_news():
                self._has_passed = self._is_ahead = False
                taken = self._take_in()
                await self._carry_out()
                for request in taken:
                    request.is_done = True

    async def _turn_away(self) -> None:
        """Refuse what comes while the workflow closes: nothing decides it, and a sender would wait indefinitely."""
        while not workflow.all_handlers_finished():
            for request in self._requests:
                request.refusal, request.is_decided, request.is_done = _OVER, True, True
            self._requests.clear()
            await workflow.wait_condition(lambda: bool(self._requests) or workflow.all_handlers_finished())

    async def _decide_or_refuse(self, event: Event, error_type: ErrorType) -> None:
        (refusal,) = await self._decide_when_free([event])
        if refusal is not None:
            raise ApplicationError(refusal, type=error_type, non_retryable=True)

    async def _decide_when_free(self, events: Sequence[Event]) -> list[str | None]:
        """Have events decided together with whatever else has come; returns refusals when all that is recorded."""
        requests = self._put(events)
        await workflow.wait_condition(lambda: all(request.is_done for request in requests))
        return [request.refusal for request in requests]

    def _put(self, events: Sequence[Event]) -> list[_Request]:
        requests = [_Request(event) for event in events]
        self._requests.extend(requests)
        return requests

    def _next_length(self, request_id: str, completed: int) -> int | None:
        """The length of a trial's open operation, if it is beyond what it has completed."""
        entry = self._run.trials.get(request_id)
        length = None if entry is None else self._standing(request_id, entry).length
        return length if length is not None and length > completed else None

    def _may_decide_ahead(self) -> bool:
        """Whether what comes now can be decided while a record is being written: nothing waits to go before it."""
        run = self._run
        is_at_rest = not (run.inbox or self._requests or self._fault or self._may_overrun)
        return self._lock.locked() and is_at_rest and self._is_deciding()

    def _is_free(self) -> bool:
        """Whether what comes now can be decided at once: nothing waits, and no record is being written."""
        is_busy = self._lock.locked() or self._has_news() or self._is_old()
        return self._is_awake and not is_busy and self._is_deciding()

    def _decide_now(self, *, starts: bool = False) -> RecordExperiment | None:
        """Decide on what has come to a workflow that is free; returns the record, if the sender can write it.

        `starts`: the sender starts new trials, too.
        """
        self._take_in()
        self._is_ahead = self._needs_activity(starts=starts)
        record = None if self._is_ahead else self._record_of_answer(starts=starts)
        self._say_what_it_waits_for()
        return record

    def _is_deciding(self) -> bool:
        return self._run.state in (ExperimentState.ACTIVE, ExperimentState.PAUSED) and self._run.past is None

    def _take_in(self) -> list[_Request]:
        """Decide on what is there, up to a limit; returns the requests that were decided."""
        run = self._run
        if self._fault:
            self._fail(self._fault)
            self._fault = ""
        if self._may_overrun and run.clock.paused_by is not None and self._budget.spent() is None:
            run.state = ExperimentState.ACTIVE if run.state is ExperimentState.PAUSED else run.state
        self._may_overrun = False
        # before the requests, as it came: a trial's validations go before its completed operation
        if not self._is_old():
            self._decide_inbox()
            if self._budget.heed():
                self._stop(ExperimentState.PAUSED)
        if run.past is not None and not self._is_old():
            return []  # the search is not yet where it was
        return self._decide_requests()

    def _decide_requests(self) -> list[_Request]:
        run = self._run
        requests, self._requests = self._requests[:_BATCH], self._requests[_BATCH:]
        for request in requests:
            request.is_decided = True
            if run.search.is_repeat(request.event):
                continue  # or how often an answer was lost would be in the record of the search
            if run.search.shutdown is not None and isinstance(request.event, Amended | OperationsPosted | Steered):
                request.refusal = _OVER
                continue
            try:
                self._note(run.search.decide(request.event))
            except SearchError as error:
                request.refusal = str(error)
        return requests

    def _decide_inbox(self) -> None:
        run = self._run
        if run.state.is_stopping:
            self._drop_unstarted()
        for _ in range(_BATCH):
            if run.past is not None:
                if not self._tell_again():
                    break
                continue
            event = run.inbox.pop(0) if run.inbox else self._inherited_event()
            if event is None:
                break
            try:
                decision = run.search.decide(event)
            except SearchError as error:
                decision = run.search.fail(event, str(error))
                self._fail(decision.error)
            self._note(decision)

    def _tell_again(self) -> bool:
        """Tell the search one thing of its past; then have the open trials started. False: records come first."""
        run = self._run
        if self._created:  # their numbers are needed to keep the book
            return False
        if not run.past:
            run.past = None
            heirs = () if run.inheritance is None else run.inheritance.heirs
            for request_id, entry in self._open.items():
                if entry.is_heir and request_id not in heirs:
                    self._wait_for_start(request_id)
            self._ask_what_is_open()
            return True
        event = run.past.pop(0)
        request_id = getattr(event, "request_id", None)
        is_new = isinstance(event, Steered) and event.action == "add"
        if request_id is not None and request_id not in self._open and not is_new:
            return True  # a trial that only the ends which were taken back had led to
        try:
            decision = run.search.decide(event)
        except SearchError:
            return True  # it was so under another configuration
        if run.inheritance is not None:
            run.inheritance.note(event)
        if isinstance(event, TrialClosed):
            self._open.pop(event.request_id).is_open = False
        self._note(decision)
        return True

    def _drop_unstarted(self) -> None:
        """The experiment ends: trials without a workflow end here."""
        self._run.past = None
        for request_id, entry in list(self._open.items()):
            if entry.is_heir or entry.is_waiting:
                self._run.inbox.append(TrialExitedEarly(request_id=request_id, reason=ExitReason.USER_CANCELED))
                self._close(request_id)
        self._to_start.clear()

    def _note(self, decision: Decision) -> None:
        run = self._run
        self._may_inherit = run.inheritance is not None
        if run.search.is_decision(decision.event):
            self._decided.append(decision)
        self._touched |= decision.trials
        for request_id in decision.trials & self._open.keys():  # one report may pass several rungs
            if self._open[request_id].reached is not None:
                self._complete_what_was_reached(request_id)
        for action in decision.actions:
            if isinstance(action, Create) and not run.state.is_stopping:
                self._created.append(action)
            elif isinstance(action, Ask) and not run.state.is_stopping and run.past is None:
                self._spawn_ask(action.number)
            elif isinstance(action, Shutdown):
                self._shut_down(action)

    def _inherited_event(self) -> Event | None:
        """What a fork knows already; once there is no more of it, the heirs that must train on are to be started."""
        inheritance = self._run.inheritance
        if inheritance is None or self._run.state.is_stopping:
            self._may_inherit = False
            return None
        if self._created:  # they are recorded first: a standing needs the trial's number
            return None
        event = inheritance.next_event(self._run.search)
        if isinstance(event, TrialClosed):
            self._open.pop(event.request_id).is_open = False
        if event is None:
            self._may_inherit = False
            for heir in inheritance.take_runners(self._run.search):
                self._wait_for_start(heir)
        return event

    def _complete_what_was_reached(self, request_id: str) -> None:
        """A validation at the length of an operation, or beyond, completes it for code that knows no operations."""
        entry, view = self._run.trials[request_id], self._run.search.trial(request_id)
        if entry.reached is None or view.length is None or view.completed or entry.reached < view.length:
            return
        if not any(isinstance(e, OperationCompleted) and e.request_id == request_id for e in self._run.inbox):
            event = OperationCompleted(request_id=request_id, length=view.length, metric=entry.metric)
            self._run.inbox.append(event)

    def _close(self, request_id: str) -> None:
        self._open.pop(request_id).is_open = False
        self._run.inbox.append(TrialClosed(request_id=request_id))

    def _ask_what_is_open(self) -> None:
        question = self._run.search.open_question()
        if question is not None and self._run.past is None:
            self._spawn_ask(question)

    def _spawn_ask(self, number: int) -> None:
        # not among what is on its way: the next run of this workflow asks again
        self._asking = asyncio.create_task(self._ask(number))

    async def _ask(self, number: int) -> None:
        try:
            order = self._run.search.suggest_order(number)
            suggestion = None if order is None else await suggest(order)
            if suggestion is not None and suggestion.needs_history:  # another worker has it, or one that died
                order = self._run.search.suggest_order(number, whole=True)
                suggestion = None if order is None else await suggest(order)
        except ActivityError as error:
            self._fault = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
        else:
            if suggestion is not None:
                self._run.inbox.append(Suggested(number=number, hparams=suggestion.hparams))

    def _shut_down(self, end: Shutdown) -> None:
        target = ExperimentState.STOPPING_COMPLETED
        if end.failure:
            target = ExperimentState.STOPPING_ERROR
            self._run.error = self._run.error or "every trial ended in error"
        elif end.cancel:
            target = ExperimentState.STOPPING_CANCELED
        self._stop(target)

    def _fail(self, message: str) -> None:
        workflow.logger.error("the search can't go on: %s", message)
        self._run.error = message
        self._stop(ExperimentState.STOPPING_ERROR)

    def _stop(self, target: ExperimentState) -> None:
        if not self._run.state.is_stopping and target in TRANSITIONS[self._run.state]:
            self._run.state = target

    # -- effects ---------------------------------------------------------------------------------------------------

    async def _carry_out(self) -> None:
        """Record what was decided, then have it done. Signals that come meanwhile wait in the inbox."""
        created, self._created = self._created, []
        touched, self._touched = self._touched, set()
        concerned = self._open if self._run.state is not self._ordered_state else touched & self._open.keys()
        if self._run.orders_by_records:
            self._order(concerned)
        await self._record(created, touched, starts=self._is_by_records, orders=True)
        if not self._is_by_records:
            starts = self._next_starts()
            del self._to_start[: len(starts)]
            await asyncio.gather(*map(self._start, starts))
        if not self._run.orders_by_records:
            self._order(self._open if self._run.state is not self._ordered_state else touched & self._open.keys())

    async def _record(
        self,
        created: list[Create] | None = None,
        touched: Iterable[str] = (),
        *,
        starts: bool = False,
        orders: bool = False,
    ) -> CreatedTrials:
        """Write what is new, and take the numbers of new trials in.

        `starts`: then start those that are next; `orders`: and tell others what is wanted of them now.
        """
        run = self._run
        new = [new_trial(run, action) for action in created or ()]
        touched = set(touched)
        fresh = {trial.request_id for trial in new}
        given = self._given.take()
        decided, standings = self._take_decided(touched - fresh)
        clock, notices = self._budget.run_on(), self._budget.take_notices()
        head = (run.state, self._progress())
        asked = self._come_to_gates(touched)
        queue = run.search.queue()
        has_queue_news = [event.id for event in queue] != self._recorded_queue
        to_start = given.starts + (self._take_starts(new) if starts else [])
        ordered = self._take_orders() if orders else []
        has_news = decided or new or standings or has_queue_news or notices or asked or to_start or ordered or given
        if not has_news and head == self._recorded_head:
            return CreatedTrials(trial_ids=[])
        if self._recorded_head is None or self._recorded_head[0] is not run.state:
            note_state(run.state.value)
        self._recorded_head = head
        self._recorded_queue = [event.id for event in queue]
        run.revision += 1
        self._being_recorded = fresh if to_start else set()
        answer = await record_once(
            calls.record_experiment,
            RecordExperiment(
                experiment_id=run.experiment_id,
                revision=run.revision,
                state=run.state,
                progress=head[1],
                is_terminal=run.state.is_terminal,
                error=run.error,
                decisions=given.decisions + decided,
                trials=given.trials + new,
                standings=given.standings + standings,
                queued=queue if has_queue_news else None,
                clock=clock,
                notices=notices,
                asked=asked,
                starts=self._starts_of(to_start) if to_start else None,
                orders=ordered,
                reserves=self._reserves(),
            ),
        )
        run.numbers += answer.numbers
        running = [each.request_id for each in to_start]
        for request_id, entry in note_trials(run, new, answer.trial_ids[len(given.trials) :], answer.pasts).items():
            self._open[request_id] = entry
            if entry.trial_id in answer.pasts:
                self._touched.add(request_id)  # its row still says where it stood when it ended
            if entry.is_waiting and request_id not in running:
                self._to_start.append(request_id)
        for request_id in running:
            run.trials[request_id].is_waiting = False
        self._being_recorded = set()
        held, self._held = self._held, []
        for take in held:
            take()
        return answer

    def _record_of_answer(self, *, starts: bool) -> RecordExperiment | None:
        """The record of what was just decided, for the sender of the reports to write, and to start its trials.

        That costs no activity, and no workflow task after it. Whether it was done need not be known here: the next
        record has all of it again, unless a later message says that it was. A sender that failed to do it sends its
        reports again, and gets it again.

        None: there is nothing to do.
        """
        run, given = self._run, self._given
        created, self._created = self._created, []
        touched, self._touched = self._touched, set()
        decided, standings = self._take_decided(touched)
        new = [new_trial(run, action) for action in created]
        entries = note_trials(run, new, [trial.number for trial in new if trial.number is not None])
        self._open |= entries
        for entry in entries.values():
            entry.is_waiting = False
        head = (run.state, self._progress())
        if decided or standings or new or head != self._recorded_head:
            self._recorded_head = head
            run.revision += 1
            given.add(run.revision, decided, new, standings, [self._new_start(each) for each in entries])
        to_start = given.give_starts() if starts else []
        if not (given.is_unwritten or to_start):
            return None
        return RecordExperiment(
            experiment_id=run.experiment_id, revision=run.revision, state=run.state, progress=head[1], error=run.error,
            decisions=given.decisions, trials=given.trials, standings=given.standings,
            starts=self._starts_of(to_start) if to_start else None,
        )  # fmt: skip

    def _needs_activity(self, *, starts: bool) -> bool:
        """Whether an activity has to do it, as an answer can't have all of it; `starts`: as of `_decide_now`."""
        run, given = self._run, self._given
        if not (self._is_as_recorded() and self._is_by_records and run.orders_by_records):
            return True
        if self._has_news() or run.budget is not None or run.gates:
            return True
        if self._created and not (starts and self._can_start_at_once() and len(self._created) <= len(run.numbers)):
            return True
        if len(self._decided) + len(given.decisions) > _BATCH or len(self._created) + len(given.starts) > _BATCH:
            return True
        return any(self._news_for(request_id) is not None for request_id in self._touched & self._open.keys())

    def _can_start_at_once(self) -> bool:
        """Whether new trials need nothing but their record to be started."""
        run = self._run
        return run.inheritance is None and run.past is None and run.budget is None and not run.state.is_stopping

    def _reserves(self) -> int:
        """How many numbers are to be reserved, so that answers can have new trials; none, while there are any."""
        run = self._run
        takes = self._is_by_records and self._can_start_at_once() and not (run.gates or run.numbers)
        return min(run.search.to_come, _BATCH) if takes else 0

    def _is_as_recorded(self) -> bool:
        """Whether the state is the one that was recorded and ordered last, and the program's queue, too."""
        state, head = self._run.state, self._recorded_head
        is_queue_known = self._recorded_queue == [event.id for event in self._run.search.queue()]
        return is_queue_known and state is self._ordered_state and head is not None and head[0] is state

    def _take_decided(self, touched: Iterable[str]) -> tuple[list[Decision], list[TrialStanding]]:
        """What was decided, and where trials stand that this has changed."""
        decided, self._decided = self._decided, []
        standings: list[TrialStanding] = []
        for request_id in sorted(touched):
            entry = self._run.trials.get(request_id)
            standing = None if entry is None else self._standing(request_id, entry)
            if standing is not None and self._recorded.get(standing.trial_id) != standing:
                self._recorded[standing.trial_id] = standing
                standings.append(standing)
        return decided, standings

    def _take_starts(self, new: Sequence[NewTrial]) -> list[TrialStart]:
        """Trials that are to be started once the record is written: those that wait for it, and new ones.

        New ones of a search with a past, or with a budget of trials, are looked at when their numbers are known.
        """
        waiting = self._next_starts()
        del self._to_start[: len(waiting)]
        if self._can_start_at_once():
            waiting += [trial.request_id for trial in new][: max(0, _BATCH - len(waiting))]
        return [self._new_start(request_id) for request_id in waiting]

    def _progress(self) -> float:
        """How far the search is; of one that was ended before it was over, how far it came."""
        run = self._run
        if run.state is ExperimentState.COMPLETED:
            run.progress = 1.0
        elif run.state in (ExperimentState.ACTIVE, ExperimentState.PAUSED, ExperimentState.STOPPING_COMPLETED):
            run.progress = run.search.progress()
        return run.progress

    def _standing(self, request_id: str, entry: TrialEntry) -> TrialStanding:
        view = self._run.search.trial(request_id)
        is_open = view.length is not None and not view.completed
        is_held = gate_of(view, self._run.gates) is not None
        return TrialStanding(
            trial_id=entry.trial_id,
            ended_as=self._end_of_unstarted(entry, view),
            length=view.length if is_open and not is_held else None,
            is_closed=(view.closed or view.stopped) and not is_held,
            rung=view.rung,
            bracket=view.bracket,
        )

    def _end_of_unstarted(self, entry: TrialEntry, view: TrialView) -> TrialState | None:
        if entry.is_open or not (entry.is_heir or entry.is_waiting):
            return None  # its own workflow says how it ended
        if view.exit_reason is ExitReason.USER_CANCELED:
            return FINAL_TRIAL_STATE[_TRIAL_STATE[self._run.state]]
        return TrialState.ERROR if view.exit_reason is ExitReason.ERRORED else TrialState.COMPLETED

    def _wait_for_start(self, request_id: str) -> None:
        entry = self._run.trials[request_id]
        entry.is_heir, entry.is_waiting = False, True
        self._to_start.append(request_id)
        if self._run.gates:  # what it took over may have led it to one
            self._touched.add(request_id)

    def _next_starts(self) -> list[str]:
        most = _BATCH if self._is_by_records else min(_BATCH, _STARTS_PER_RUN - self._started)
        return self._to_start[: self._budget.affordable(most)]

    def _new_start(self, request_id: str) -> TrialStart:
        run = self._run
        self._started += 1
        entry = run.trials.get(request_id, TrialEntry(trial_id=0))  # 0: its record creates it
        run.clock.trials += not entry.run_id
        orders = self._ordered[request_id] = self._orders(request_id)
        return TrialStart(
            trial_id=entry.trial_id,
            request_id=request_id,
            task_id=entry.task_id or names.trial_task(run.experiment_id, request_id),
            orders=orders,
            run_id=entry.run_id,
            restarts=entry.restarts,
            revision=entry.revision,
        )

    def _starts_of(self, trials: list[TrialStart]) -> TrialStarts:
        run = self._run
        return TrialStarts(
            experiment_id=run.experiment_id, name=run.name, owner=run.owner, job_id=run.job_id, template=run.template,
            trials=trials,
        )  # fmt: skip

    async def _start(self, request_id: str) -> None:
        """Start a trial as a child: so did experiments that began before `by_records`, and do those that went on."""
        entry = self._run.trials[request_id]
        starts = self._starts_of([self._new_start(request_id)])
        try:
            await workflow.start_child_workflow(
                "Trial",
                trial_run(starts, starts.trials[0], by_records=False),
                # an experiment that continues as new would end its trials under any other policy
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                id_reuse_policy=self._reuse_policy(),
                **start_options(starts, entry.trial_id),
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("trial %s runs already", entry.trial_id)
        entry.is_waiting = False

    def _reuse_policy(self) -> WorkflowIDReusePolicy:
        """A trial runs once, unless its experiment went on after its end."""
        policies = WorkflowIDReusePolicy
        return policies.ALLOW_DUPLICATE if self._run.continuation else policies.REJECT_DUPLICATE

    def _orders(self, request_id: str) -> TrialOrders:
        view = self._run.search.trial(request_id)
        is_open = view.length is not None and not view.completed
        gate = gate_of(view, self._run.gates)
        state = _TRIAL_STATE[self._run.state]
        if gate is not None and not self._run.state.is_stopping:
            is_denied = self._run.gates[gate] is GateState.DENIED
            state = TrialState.STOPPING_CANCELED if is_denied else TrialState.PAUSED
        return TrialOrders(
            state=state,
            length=view.length if is_open and gate is None else None,
            needs_length=self._run.search.generation == "ops",
            is_closed=view.closed and not is_open,
            is_stopped=view.stopped,
            pool=self._run.template.pool if self._run.moves else "",
            pool_reason=self._run.moved_because,
        )

    def _order(self, request_ids: Iterable[str]) -> None:
        """Tell open trials what changed for them. The latest orders count, so that a repeat does no harm.

        With the next record; experiments that began before `orders_by_records` do it at once.
        """
        self._ordered_state = self._run.state
        if self._run.orders_by_records:
            self._unsent |= dict.fromkeys(sorted(request_ids))
            return
        for request_id in sorted(request_ids):
            if order := self._next_order(request_id):
                self._spawn(self._send(order))

    def _take_orders(self) -> list[TrialOrder]:
        """What open trials have to hear now: a part of it, if there is much."""
        taken: list[TrialOrder] = []
        while self._unsent and len(taken) < _ORDERS:
            request_id = next(iter(self._unsent))
            del self._unsent[request_id]
            if request_id in self._open and (order := self._next_order(request_id)):
                taken.append(order)
        return taken

    def _next_order(self, request_id: str) -> TrialOrder | None:
        """What a trial has to hear, if it runs and has not heard it yet."""
        orders = self._news_for(request_id)
        if orders is None:
            return None
        self._ordered[request_id] = orders
        self._run.order_count += 1
        numbered = orders.model_copy(update={"sequence": self._run.order_count})
        return TrialOrder(trial_id=self._open[request_id].trial_id, orders=numbered)

    def _news_for(self, request_id: str) -> TrialOrders | None:
        """What is wanted of a trial, if it runs and has not heard it yet."""
        entry = self._open[request_id]
        if entry.is_heir or entry.is_waiting:
            return None
        orders = self._orders(request_id)
        return orders if _is_news(self._ordered.get(request_id), orders) else None

    async def _send(self, order: TrialOrder) -> None:
        await tell(names.trial_workflow(order.trial_id), "orders", order.orders)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._outgoing.add(task)
        task.add_done_callback(self._outgoing.discard)

    def _can_end(self) -> bool:
        run = self._run
        return run.state.is_stopping and not (run.inbox or self._requests or self._is_ahead or self._open)

    def _can_continue_as_new(self) -> bool:
        return (
            self._is_old()
            and not self._fault
            and not self._has_passed
            and not self._is_ahead
            and not self._given
            and not self._outgoing
            and not self._unsent
            and workflow.all_handlers_finished()
        )

    def _is_old(self) -> bool:
        if is_old():
            return True
        return self._started >= _STARTS_PER_RUN and bool(self._to_start) and not self._is_by_records

    def _say_what_it_waits_for(self) -> None:
        run = self._run
        shown = ", ".join(f"`trial-{entry.trial_id}`" for entry in islice(self._open.values(), _SHOWN))
        more = f" and {len(self._open) - _SHOWN} more" if len(self._open) > _SHOWN else ""
        error = f"\n\nError: {run.error}" if run.error else ""
        workflow.set_current_details(
            f"**{run.state}**, {run.search.progress():.0%} of the search, "
            f"{len(run.trials) + run.retired} trials so far.\n\n"
            f"Waits for {shown or 'nothing'}{more}.{error}"
        )
