"""The loop between an experiment's events and a search method."""

from __future__ import annotations

import abc
import time

from determined import errors
from determined.common.api._retry import Backoff, is_transient
from determined.common.api._url import api_path
from determined.searcher._event import SearcherEvent
from determined.searcher._operations import Operation, Progress, Shutdown
from determined.searcher._search_method import ExitedReason, SearcherState, SearchMethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable, TypeVar

    from determined.common.api._session import Session

    T = TypeVar("T")

# The longest silence of a poll. The cluster answers earlier, if only that nothing has happened.
POLL_TIMEOUT_S = 90.0
# Between two polls that brought nothing new, and while the experiment is paused.
_IDLE_S = 0.5
_PAUSED_S = 2.0
_RETRY_BASE_S, _RETRY_CAP_S = 0.2, 15.0
# How often a request that the master fails at (500) is tried; an absent master is waited for without end.
_MAX_FAILURES = 5

# The list of events may lag behind what was acknowledged: one refusal of a pending event proves nothing.
_MAX_REFUSALS = 2

_ENDED = ("STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR", "STATE_DELETED")
# Answers that are not about the operations but about who posts them.
_ABOUT_THE_CALLER = (errors.UnauthenticatedException, errors.ForbiddenException)


class SearchRunner(abc.ABC):
    """Runs a search method against an experiment; use one of its subclasses.

    For each event: the method is asked, the answer is saved, then posted. An event is done once its operations were
    posted; before, the cluster sends it again, and the saved answer is posted again. So each decision is made once,
    whenever the runner dies.

    Attributes:
        search_method: The method.
        state: What is known about the experiment.
    """

    def __init__(self, search_method: SearchMethod) -> None:
        self.search_method = search_method
        self.state = SearcherState()
        self._inactive = ""

    def run_experiment(
        self, experiment_id: int, session: Session, prior_operations: list[Operation] | None = None
    ) -> None:
        """Answer the experiment's events until it has ended.

        Args:
            experiment_id: The experiment.
            session: A session that may act for it.
            prior_operations: The answer to `state.last_event_id`, of which is unknown whether it was posted.

        Raises:
            APIException: The master refused the operations, or the session has ended.
            Exception: What the method raised. The experiment was ordered to end as ERROR.
        """
        self.state.experiment_id = experiment_id
        prior = prior_operations
        refused: errors.APIException | None = None
        refusals = 0
        was_found = False
        while True:
            self._may_leave()
            try:
                events = self._retrying(lambda: self.get_events(session, experiment_id))
            except errors.NotFoundException:
                if not was_found:
                    raise
                _logger().warning(f"experiment {experiment_id} was deleted; its search ends")
                return
            was_found = True
            handled = 0
            # Whether the experiment takes operations at all comes before what a refusal meant.
            for event in sorted(events or (), key=lambda e: refused is None or e.kind != "experimentInactive"):
                if event.kind == "experimentInactive":
                    if self._ends(experiment_id, str(event.body.get("experimentState"))):
                        return
                    # Operations are refused while it is so; they are posted when it goes on.
                    refused = None
                    break
                if event.id < self.state.last_event_id or (event.id == self.state.last_event_id and prior is None):
                    continue
                if event.id > self.state.last_event_id:
                    self._may_leave()
                    # Had the one before not been acknowledged, it would have come again, and first.
                    prior = self._decide(session, experiment_id, event)
                    self.state.last_event_id = event.id
                    self.save_state(experiment_id, prior)
                    refusals = 0
                elif refused is not None and refusals >= _MAX_REFUSALS:
                    # It is still pending, so the refusals meant the operations and not that they came twice.
                    self._give_up(session, experiment_id, event, f"its operations were refused: {refused}")
                    raise refused
                else:
                    _logger().info(f"posting the operations for {event} again")
                self._inactive = ""
                refused = self._post(session, experiment_id, event, prior or [])
                if refused is not None:
                    refusals += 1
                    break
                handled += 1
                prior = None
            if not handled:
                self._sleep(_PAUSED_S if self._inactive == "STATE_PAUSED" else _IDLE_S)

    def post_operations(
        self, session: Session, experiment_id: int, event: SearcherEvent, operations: list[Operation]
    ) -> None:
        """Post the answer to an event, which acknowledges it and all before it.

        Raises:
            APIException: The master refused, for example because the event was acknowledged before.
        """
        body = {
            "experimentId": experiment_id,
            "searcherOperations": [operation.to_wire() for operation in operations],
            "triggeredByEvent": event.to_wire(),
        }
        session.post(api_path("experiments", experiment_id, "searcher_operations"), body)

    def get_events(self, session: Session, experiment_id: int) -> Sequence[SearcherEvent] | None:
        """All events that are not acknowledged, in order; waits for one if there is none.

        Returns:
            The events; None or nothing when none came for a while.

        Raises:
            APIException: The master could not be asked.
        """
        began = time.monotonic()
        try:
            path = api_path("experiments", experiment_id, "searcher_events")
            answer = session.get(path, timeout_s=POLL_TIMEOUT_S, max_tries=1).json()
        except errors.MasterNotFoundException:
            if time.monotonic() - began >= POLL_TIMEOUT_S:
                return None
            raise
        events: list[dict[str, Any]] = answer.get("searcherEvents") or []
        return [SearcherEvent.from_wire(event) for event in events]

    @abc.abstractmethod
    def save_state(self, experiment_id: int, operations: list[Operation]) -> None:
        """Save `state`, the method's state, and the operations that answer `state.last_event_id`, all or nothing."""

    def _decide(self, session: Session, experiment_id: int, event: SearcherEvent) -> list[Operation]:
        try:
            return self._operations_for(event)
        except Exception as e:
            _logger().exception(f"{type(self.search_method).__name__} failed at {event}")
            self._give_up(session, experiment_id, event, f"its search method raised {type(e).__name__}: {e}")
            raise

    def _operations_for(self, event: SearcherEvent) -> list[Operation]:
        method, state = self.search_method, self.state
        _logger().debug(str(event))
        if event.kind == "initialOperations":
            return _checked(method.initial_operations(state), "initial_operations")
        if event.kind == "trialCreated":
            state.trials_created.add(event.request_id)
            state.trial_progress[event.request_id] = 0.0
            return _checked(method.on_trial_created(state, event.request_id), "on_trial_created")
        if event.kind == "trialProgress":
            state.trial_progress[event.request_id] = float(event.body.get("partialUnits") or 0)
            operations: list[Operation] = []
        elif event.kind == "validationCompleted":
            length = int(event.body["validateAfterLength"])
            answer = method.on_validation_completed(state, event.request_id, event.metric, length)
            operations = _checked(answer, "on_validation_completed")
        elif event.kind == "trialExitedEarly":
            reason = ExitedReason.of(event.body.get("exitedReason"))
            if reason is ExitedReason.INVALID_HP:
                state.trial_progress.pop(event.request_id, None)
            elif reason is ExitedReason.ERRORED:
                state.failures.add(event.request_id)
            operations = _checked(
                method.on_trial_exited_early(state, event.request_id, reason), "on_trial_exited_early"
            )
        elif event.kind == "trialClosed":
            state.trials_closed.add(event.request_id)
            operations = _checked(method.on_trial_closed(state, event.request_id), "on_trial_closed")
        else:
            _logger().warning(f"this release does not know what to do at {event}")
            return []
        return [*operations, Progress(min(1.0, max(0.0, float(method.progress(state)))))]

    def _post(
        self, session: Session, experiment_id: int, event: SearcherEvent, operations: list[Operation]
    ) -> errors.APIException | None:
        """The refusal, if there was one: it may only mean that the operations were taken before."""
        try:
            self._retrying(lambda: self.post_operations(session, experiment_id, event, operations))
        except errors.APIException as e:
            if not 400 <= e.status < 500 or isinstance(e, _ABOUT_THE_CALLER):
                raise
            _logger().info(f"the operations for {event} were not taken: {e}")
            return e
        return None

    def _give_up(self, session: Session, experiment_id: int, event: SearcherEvent, why: str) -> None:
        _logger().error(f"experiment {experiment_id} is ordered to end: {why}")
        try:
            self.post_operations(session, experiment_id, event, [Shutdown(failure=True)])
        except errors.APIException as e:
            # What led here is the error to raise.
            _logger().warning(f"experiment {experiment_id} could not be ordered to end; kill it if you wish: {e}")

    def _ends(self, experiment_id: int, state: str) -> bool:
        name = state.replace("STATE_", "", 1)
        if state in _ENDED:
            _logger().info(f"experiment {experiment_id} is {name}")
            self.state.experiment_completed = state == "STATE_COMPLETED"
            self.state.experiment_failed = state == "STATE_ERROR"
            return True
        if state == self._inactive:
            return False
        self._inactive = state
        if state == "STATE_PAUSED":
            _logger().warning(
                f"experiment {experiment_id} is paused: the search goes on when it is activated, "
                "in this process or, if you end it, in the next one that you start"
            )
        else:
            _logger().info(f"experiment {experiment_id} is {name}")
        return False

    def _retrying(self, send: Callable[[], T]) -> T:
        backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
        failures = 0
        while True:
            try:
                return send()
            except errors.APIException as e:
                failures += e.status >= 500 and not is_transient(e)
                if not (is_transient(e) or e.status >= 500) or failures >= _MAX_FAILURES:
                    raise
                delay_s = backoff.next(e.retry_after_s)
                _logger().warning(f"{e}; trying again in {delay_s:.1f} s")
                self._sleep(delay_s)

    def _sleep(self, seconds: float) -> None:
        self._may_leave()
        time.sleep(seconds)

    def _may_leave(self) -> None:  # noqa: B027 - most need not
        """Called where everything is saved: subclasses raise what ends the process when it has to go."""


def _checked(operations: Any, handler: str) -> list[Operation]:
    if not isinstance(operations, (list, tuple)):
        raise TypeError(f"{handler} must return a list of operations, but returned {operations!r}")
    for operation in operations:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(operation, Operation):
            raise TypeError(f"{handler} must return operations only, but returned {operation!r} among them")
    return list(operations)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.searcher")
