"""The searcher's operations: train up to a length, validate, report, next."""

from __future__ import annotations

import enum
import time

from determined import errors
from determined.common.api._retry import Backoff
from determined.common.api._url import api_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from determined.core._backlog import Send
    from determined.core._distributed import DistributedContext
    from determined.core._reporter import Reporter


class Unit(enum.Enum):
    """What the searcher's lengths count."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Who may call `operations()` in a job of several workers.

    WorkersAskChief: all together; the chief asks the master and tells the others. ChiefOnly: the chief alone.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """One request of the searcher: train up to `length`, validate, and call `report_completed`."""

    def __init__(self, reporter: Reporter | None, trial_id: int, length: int, is_chief: bool) -> None:
        self._reporter = reporter
        self._trial_id = trial_id
        self._length = length
        self._is_chief = is_chief
        self._completed = False
        self._following: dict[str, Any] | None = None  # what the master answered as the next one, if it did

    @property
    def length(self) -> int:
        """How far to train in all, in the unit of `searcher.max_length`: absolute, not what is to be added."""
        return self._length

    def report_progress(self, length: float) -> None:
        """Report how far the trial has trained, in the unit of `length`."""
        if self._completed:
            raise RuntimeError("report_progress() was called on an operation that is completed already")
        if not self._is_chief:
            raise RuntimeError("report_progress() may be called by the chief (rank 0) only")
        value = float(length)
        if self._reporter is not None:
            self._reporter.post("progress", value)

    def report_completed(self, searcher_metric: Any) -> None:
        """Report that the trial was trained up to `length`, with its value of the searcher's metric.

        Returns when the master knows it, and all that was reported before.

        Raises:
            RuntimeError: It was reported before, or this worker is not the chief.
            InvalidDataTypeException: `searcher_metric` has no form in JSON.
            AllocationEnded, APIException: The master refused this, or an earlier report.
        """
        if self._completed:
            raise RuntimeError(f"report_completed() was called twice on the operation of length {self._length}")
        if not self._is_chief:
            raise RuntimeError("report_completed() may be called by the chief (rank 0) only")
        if self._reporter is not None:
            self._following = self._reporter.call(lambda send: self._complete(send, searcher_metric))
        self._completed = True

    def _complete(self, send: Send, searcher_metric: Any) -> dict[str, Any] | None:
        from determined.core._convert import to_json_value

        base = f"/api/v1/trials/{self._trial_id}/searcher"
        metric = to_json_value(searcher_metric, "searcher_metric")
        body = {"op": {"length": self._length}, "searcherMetric": metric, "wantsNext": True}
        try:
            answer: dict[str, Any] = send("POST", f"{base}/completed_operation", body) or {}
            return answer.get("next")  # older masters have none
        except (errors.InvalidRequestException, errors.ConflictException) as e:
            # The answer to an earlier attempt may have been lost; then the master has moved on from this length.
            if not e.maybe_applied:
                raise
            answer = send("GET", f"{base}/operation")
            if not answer.get("completed") and _length_of(answer) <= self._length:
                raise
            return None


class SearcherContext:
    """The searcher's operations. Get it as `core_context.searcher`.

    Example::

        epochs_trained = 0  # or from the checkpoint
        for op in core_context.searcher.operations():
            while epochs_trained < op.length:
                train_one_epoch()
                epochs_trained += 1
            op.report_completed(validate()["accuracy"])
    """

    def __init__(
        self,
        reporter: Reporter,
        dist: DistributedContext,
        trial_id: int,
        allocation_id: str,
        searcher_config: Mapping[str, Any],
    ) -> None:
        self._reporter = reporter
        self._dist = dist
        self._trial_id = trial_id
        self._allocation_id = allocation_id
        self._config = searcher_config

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """The operations, one after the other; each must be completed before the next.

        Args:
            searcher_mode: Who calls this in a job of several workers.
            auto_ack: Call `acknowledge_out_of_ops()` when there are no more.

        Raises:
            InvalidConfigurationException: The searcher has no `max_length`, so that it hands out no operations.
            RuntimeError: An operation was not completed, or a worker called this that is not the chief, with
                `SearcherMode.ChiefOnly`.
            AllocationEnded, APIException: The master refused something.
            DistributedError: The chief can't tell the next operation, or is gone.
        """
        _check_mode(searcher_mode, self._dist)
        if not hands_out_operations(self._config):
            raise errors.InvalidConfigurationException(
                "searcher.operations() needs searcher.max_length in the experiment's configuration, but it is not set: "
                "without it the searcher decides by the validation metrics that you report. Set "
                "searcher.max_length (for example `max_length: {epochs: 10}`), or train without operations()"
            )
        if searcher_mode is SearcherMode.WorkersAskChief and self._dist.size > 1:
            if self._dist.rank == 0:
                return self._tell_workers(self._operations(auto_ack))
            return self._ask_chief()
        return self._operations(auto_ack)

    def _operations(self, auto_ack: bool) -> Iterator[SearcherOperation]:
        done_length = -1
        following: dict[str, Any] | None = None
        while True:
            answer = following or self._next(done_length)
            if answer.get("completed"):
                if auto_ack:
                    self.acknowledge_out_of_ops()
                return
            op = SearcherOperation(self._reporter, self._trial_id, _length_of(answer), self._dist.rank == 0)
            yield op
            _check_completed(op)
            done_length, following = op.length, op._following  # pyright: ignore[reportPrivateUsage]

    def _tell_workers(self, operations: Iterator[SearcherOperation]) -> Iterator[SearcherOperation]:
        while True:
            try:
                op = next(operations, None)
            except Exception as e:
                # The others wait for an operation: without a word they would wait until this process ends.
                self._dist.broadcast({"error": f"{type(e).__name__}: {e}"})
                raise
            self._dist.broadcast({"length": None if op is None else op.length})
            if op is None:
                return
            yield op

    def _ask_chief(self) -> Iterator[SearcherOperation]:
        while True:
            told: dict[str, Any] = self._dist.broadcast(None)
            if "error" in told:
                raise errors.DistributedError(f"rank 0 can't tell the next operation: {told['error']}")
            if told["length"] is None:
                return
            yield SearcherOperation(None, self._trial_id, told["length"], is_chief=False)

    def acknowledge_out_of_ops(self) -> None:
        """Tell the master that this task exits because there are no more operations for now.

        Raises:
            AllocationEnded, APIException: The master refused this, or an earlier report.
        """
        path = api_path("allocations", self._allocation_id, "signals", "ack_preemption")
        self._reporter.call(lambda send: send("POST", path))

    def get_configured_units(self) -> Unit | None:
        """The unit of the searcher's lengths; None if they are plain numbers."""
        if self._config.get("unit") is not None:
            return Unit.__members__.get(str(self._config["unit"]).upper())
        length: Any = self._config.get("max_length") or self._config.get("length_per_round")
        if isinstance(length, dict) and len(length) == 1:  # pyright: ignore[reportUnknownArgumentType]
            return Unit.__members__.get(str(next(iter(length))).upper())  # pyright: ignore
        return None

    def _next(self, done_length: int) -> dict[str, Any]:
        path = f"/api/v1/trials/{self._trial_id}/searcher/operation"
        backoff, warned_at = Backoff(base_s=0.02, cap_s=1.0), time.monotonic()
        while True:
            answer: dict[str, Any] = self._reporter.call(lambda send: send("GET", path))
            # Lengths only grow: the same one again means that the search has not yet decided about the last report.
            if answer.get("completed") or _length_of(answer) > done_length:
                return answer
            if time.monotonic() - warned_at > 60:
                import logging

                warned_at = time.monotonic()
                logging.getLogger("determined.core").warning(
                    f"still waiting for the searcher's decision after length {done_length}"
                )
            time.sleep(backoff.next())


class DummySearcherContext(SearcherContext):
    """Stands in outside of a cluster: one operation of length 1."""

    def __init__(self, dist: DistributedContext) -> None:
        self._dist = dist

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """One operation of length 1."""
        _check_mode(searcher_mode, self._dist)
        op = SearcherOperation(None, 0, 1, self._dist.rank == 0)
        yield op
        if self._dist.rank == 0:
            _check_completed(op)

    def acknowledge_out_of_ops(self) -> None:
        """There is nobody to tell."""

    def get_configured_units(self) -> Unit | None:
        """Epochs."""
        return Unit.EPOCHS


def hands_out_operations(config: Mapping[str, Any]) -> bool:
    """Whether a searcher says how far to train, one length after the other; else it decides by what is reported."""
    if config.get("name") == "custom":
        return True
    return any(config.get(key) is not None for key in ("max_length", "length_per_round"))


def _check_mode(mode: SearcherMode, dist: DistributedContext) -> None:
    if mode is SearcherMode.ChiefOnly and dist.rank != 0:
        raise RuntimeError(
            "operations() may be called by the chief (rank 0) only, because searcher_mode is ChiefOnly, but this is "
            f"rank {dist.rank}"
        )


def _check_completed(op: SearcherOperation) -> None:
    if not op._completed:  # pyright: ignore[reportPrivateUsage]
        raise RuntimeError(
            f"the operation of length {op.length} was not completed; call op.report_completed(metric) "
            "before asking for the next one, or leave the loop"
        )


def _length_of(answer: dict[str, Any]) -> int:
    try:
        return int(answer["op"]["validateAfter"]["length"])
    except (KeyError, TypeError, ValueError) as e:
        raise errors.APIException(f"the searcher's operation has no valid length: {answer!r}") from e
