"""Trials, as seen from outside of the training."""

from __future__ import annotations

from determined.common.api._url import api_path
from determined.common.experimental._async._wire import new_key, pages
from determined.common.experimental._async.checkpoint import AsyncCheckpoint
from determined.common.experimental._rows import Rows, Shown, moment
from determined.common.experimental._types import (
    CheckpointSortBy,
    CheckpointState,
    LogLevel,
    OrderBy,
    TrialOrderBy,
    TrialSortBy,
    TrialState,
    wire,
)
from determined.common.experimental.metrics import TrialMetrics, metrics_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from typing import Any

    from determined.common.api._async._session import AsyncSession
    from determined.common.experimental._async.experiment import AsyncExperiment

__all__ = ["AsyncTrial", "LogLevel", "TrialOrderBy", "TrialReference", "TrialSortBy", "TrialState"]


class AsyncTrial(Shown):
    """A trial. Get it from an experiment or `client.get_trial()`.

    Attributes below are None (or empty) until `reload()`; objects from `client` have been loaded.

    Attributes:
        trial_id, id: Its id.
        experiment_id: Its experiment.
        state: Its state.
        hparams: Its hyperparameters.
        summary_metrics: Per group, what is known of each metric.
        restarts: How often it was started again after a failure.
        total_batches_processed: How far it has trained.
        searcher_metric_value: Its best value of the searcher's metric.
        rung: The rung that an ASHA search has it in; None if the search has no rungs.
        task_id, start_time, end_time, warm_start_checkpoint_uuid: As they are called.
    """

    def __init__(self, trial_id: int, session: AsyncSession) -> None:
        self.trial_id = trial_id
        self._session = session
        self.experiment_id: int | None = None
        self.state: TrialState | None = None
        self.hparams: dict[str, Any] | None = None
        self.summary_metrics: dict[str, Any] | None = None
        self.restarts: int | None = None
        self.total_batches_processed: int | None = None
        self.searcher_metric_value: float | None = None
        self.rung: int | None = None
        self.task_id: str | None = None
        self.start_time: str | None = None
        self.end_time: str | None = None
        self.warm_start_checkpoint_uuid: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.trial_id}, state={self.state.name if self.state else None})"

    @property
    def id(self) -> int:
        """`trial_id`."""
        return self.trial_id

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncTrial:
        """From a trialv1Trial."""
        trial = cls(int(body["id"]), session)
        trial._take(body)
        return trial

    async def reload(self) -> None:
        """Fetch all attributes anew.

        Raises:
            NotFoundException: There is no such trial.
        """
        self._take((await self._session.get(api_path("trials", self.trial_id))).json()["trial"])

    async def kill(self) -> None:
        """End the trial at once, without a checkpoint."""
        await self._session.post(api_path("trials", self.trial_id, "kill"), idempotency_key=new_key())

    async def get_experiment(self) -> AsyncExperiment:
        """The trial's experiment, loaded."""
        from determined.common.experimental._async.experiment import AsyncExperiment

        if self.experiment_id is None:
            await self.reload()
        assert self.experiment_id is not None
        experiment = AsyncExperiment(self.experiment_id, self._session)
        await experiment.reload()
        return experiment

    def logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: list[str] | None = None,
        rank_ids: list[int] | None = None,
        stdtypes: list[str] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: str | int | None = None,
        timestamp_after: str | int | None = None,
        sources: list[str] | None = None,
        search_text: str | None = None,
    ) -> AsyncIterable[str]:
        """`iter_logs`, by its other name."""
        return self.iter_logs(
            follow,
            head=head,
            tail=tail,
            container_ids=container_ids,
            rank_ids=rank_ids,
            stdtypes=stdtypes,
            min_level=min_level,
            timestamp_before=timestamp_before,
            timestamp_after=timestamp_after,
            sources=sources,
            search_text=search_text,
        )

    def iter_logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: list[str] | None = None,
        rank_ids: list[int] | None = None,
        stdtypes: list[str] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: str | int | None = None,
        timestamp_after: str | int | None = None,
        sources: list[str] | None = None,
        search_text: str | None = None,
    ) -> AsyncIterator[str]:
        """The lines of the trial's log, formatted, each with its newline.

        Args:
            follow: Wait for more lines until the trial ends. A restart of the master does not end it.
            head: Only this many lines from the start.
            tail: Only this many lines from the end.
            container_ids: Only lines of these containers.
            rank_ids: Only lines of these ranks.
            stdtypes: Only "stdout" or "stderr".
            min_level: Only lines of this level or above.
            timestamp_before, timestamp_after: Only lines in between; RFC 3339, or seconds since 1970.
            sources: Only lines of these sources.
            search_text: Only lines that contain this.

        Raises:
            ValueError: More than one of `follow`, `head` and `tail`.
            NotFoundException: There is no such trial.
        """
        if sum((bool(follow), head is not None, tail is not None)) > 1:
            raise ValueError("logs: only one of follow, head and tail can be given")
        params: dict[str, Any] = {
            "containerIds": container_ids,
            "rankIds": rank_ids,
            "stdtypes": stdtypes,
            "sources": sources,
            "searchText": search_text,
            "levels": _levels_from(min_level),
            "timestampBefore": _rfc3339(timestamp_before),
            "timestampAfter": _rfc3339(timestamp_after),
            "follow": True if follow else None,
            "limit": head if head is not None else tail,
            "orderBy": OrderBy.DESC.value if tail is not None else None,
        }
        path = api_path("trials", self.trial_id, "logs")
        if follow:
            return self._follow(path, params)
        return self._lines(path, params, is_reversed=tail is not None)

    async def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> AsyncCheckpoint:
        """The checkpoint with the best value of a validation metric.

        Args:
            sort_by: The metric; by default the searcher's.
            smaller_is_better: Needed with `sort_by`; by default the searcher's.

        Raises:
            ArgumentsError: `sort_by` without `smaller_is_better`.
            NoCheckpointException: No checkpoint has the metric.
        """
        return await self.select_checkpoint(best=True, sort_by=sort_by, smaller_is_better=smaller_is_better)

    async def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> AsyncCheckpoint:
        """One checkpoint of this trial: the latest, the best by a metric, or the one with an id.

        Raises:
            ArgumentsError: Not exactly one of `latest`, `best` and `uuid`; `sort_by` or `smaller_is_better` without
                `best`, or one of the two without the other.
            NoCheckpointException: There is none yet, or none has the metric.
            NotFoundException: The trial has no checkpoint with that id.
        """
        from determined import errors

        if sum((bool(latest), bool(best), uuid is not None)) != 1:
            raise errors.ArgumentsError("select_checkpoint: exactly one of latest, best and uuid must be given")
        if not best and (sort_by is not None or smaller_is_better is not None):
            raise errors.ArgumentsError("select_checkpoint: sort_by and smaller_is_better go with best=True only")
        checkpoints = [c for c in await self.list_checkpoints() if c.state == CheckpointState.COMPLETED]
        if uuid is not None:
            checkpoints = [c for c in await self.list_checkpoints() if c.uuid == uuid]
            if not checkpoints:
                raise errors.NotFoundException(f"trial {self.trial_id} has no checkpoint {uuid}")
            return checkpoints[0]
        if not checkpoints:
            raise errors.NoCheckpointException(f"trial {self.trial_id} has no checkpoint yet")
        if latest:
            return max(checkpoints, key=lambda c: (int(c.metadata.get("steps_completed") or 0), c.report_time or ""))
        return ranked(checkpoints, sort_by, smaller_is_better, f"trial {self.trial_id}")[0]

    async def get_checkpoints(
        self, sort_by: str | CheckpointSortBy | None = None, order_by: OrderBy | None = None
    ) -> Rows[AsyncCheckpoint]:
        """`list_checkpoints`, under the name of the older releases."""
        return await self.list_checkpoints(sort_by, order_by)

    async def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> Rows[AsyncCheckpoint]:
        """The trial's checkpoints.

        Args:
            sort_by: A field, or a string: the name of a validation metric.
            order_by: The direction; given exactly when `sort_by` is.
            max_results: At most this many.

        Raises:
            ArgumentsError: Only one of `sort_by` and `order_by`.
            ValueError: `sort_by` is neither a field nor a string.
        """
        return await checkpoints_of(
            self._session, api_path("trials", self.trial_id, "checkpoints"), sort_by, order_by, max_results
        )

    async def list_metrics(self, group: str) -> Rows[TrialMetrics]:
        """All reports of a group, by steps; `to_dataframe()` makes a table of them.

        Args:
            group: "training", "validation", or a name of the user's; an empty string for all.
        """
        return Rows([report async for report in self.iter_metrics(group)])

    def iter_metrics(self, group: str) -> AsyncIterator[TrialMetrics]:
        """The reports of a group, by steps, as they arrive.

        Args:
            group: "training", "validation", or a name of the user's; an empty string for all.
        """
        return metrics_of_trials(self._session, [self.trial_id], group)

    def stream_metrics(self, group: str) -> AsyncIterator[TrialMetrics]:
        """`iter_metrics`, under the name of the older releases."""
        return self.iter_metrics(group)

    def stream_training_metrics(self) -> AsyncIterator[TrialMetrics]:
        """`iter_metrics("training")`, under the name of the older releases."""
        return self.iter_metrics("training")

    def stream_validation_metrics(self) -> AsyncIterator[TrialMetrics]:
        """`iter_metrics("validation")`, under the name of the older releases."""
        return self.iter_metrics("validation")

    def row(self) -> dict[str, Any]:
        """As a row of a table: a hyperparameter a column."""
        hparams = {f"hparams.{name}": value for name, value in (self.hparams or {}).items()}
        return {
            "trial_id": self.trial_id,
            "experiment_id": self.experiment_id,
            "state": self.state.name if self.state else None,
            "searcher_metric_value": self.searcher_metric_value,
            "total_batches_processed": self.total_batches_processed,
            "restarts": self.restarts,
            "start_time": moment(self.start_time),
            "end_time": moment(self.end_time),
            **hparams,
        }

    async def _lines(self, path: str, params: dict[str, Any], is_reversed: bool) -> AsyncIterator[str]:
        if is_reversed:
            last = [str(line["message"]) async for line in self._session.stream(path, params)]
            for text in reversed(last):
                yield text
            return
        async for line in self._session.stream(path, params):
            yield str(line["message"])

    async def _follow(self, path: str, params: dict[str, Any]) -> AsyncIterator[str]:
        from determined import errors

        last = ""
        failures = 0
        while True:
            try:
                async for line in self._session.stream(path, {**params, "afterId": last or None}):
                    failures = 0
                    last = str(line["id"])
                    yield str(line["message"])
                return
            except errors.MasterNotFoundException:
                # Each connection has its own tries; a stream that broke goes on behind its last line.
                failures += 1
                if failures > 5:
                    raise

    def _take(self, body: dict[str, Any]) -> None:
        self.experiment_id = int(body["experimentId"])
        self.state = TrialState.of(body.get("state"))
        self.hparams = body.get("hparams") or {}
        self.summary_metrics = body.get("summaryMetrics") or {}
        self.restarts = int(body.get("restarts") or 0)
        self.total_batches_processed = int(body.get("totalBatchesProcessed") or 0)
        value = body.get("searcherMetricValue")
        self.searcher_metric_value = None if value is None else float(value)
        self.rung = None if body.get("rung") is None else int(body["rung"])
        self.task_id = body.get("taskId")
        self.start_time = body.get("startTime")
        self.end_time = body.get("endTime")
        self.warm_start_checkpoint_uuid = body.get("warmStartCheckpointUuid") or None


async def metrics_of_trials(session: AsyncSession, trial_ids: list[int], group: str) -> AsyncIterator[TrialMetrics]:
    """The reports of trials, by trial, group and steps, as they arrive."""
    params = {"trialIds": trial_ids, "group": group}
    async for answer in session.stream(api_path("trials", "metrics", "trial_metrics"), params):
        for body in answer["metrics"]:
            yield metrics_of(body)


async def checkpoints_of(
    session: AsyncSession,
    path: str,
    sort_by: str | CheckpointSortBy | None,
    order_by: OrderBy | None,
    max_results: int | None,
    states: list[CheckpointState] | None = None,
) -> Rows[AsyncCheckpoint]:
    """The checkpoints of a trial's or an experiment's route."""
    from determined import errors

    if sort_by is not None and not isinstance(sort_by, (str, CheckpointSortBy)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"list_checkpoints: sort_by is {sort_by!r}, but must be a CheckpointSortBy or a metric's name")
    if (sort_by is None) != (order_by is None):
        raise errors.ArgumentsError("list_checkpoints: sort_by and order_by must be given together or not at all")
    params: dict[str, Any] = {"orderBy": wire(order_by), "states": [s.value for s in states or []] or None}
    if isinstance(sort_by, CheckpointSortBy):
        params["sortByAttr"] = sort_by.value
    elif sort_by is not None:
        params["sortByMetric"] = sort_by
    return Rows(
        [AsyncCheckpoint.from_wire(session, c) async for c in pages(session, path, params, "checkpoints", max_results)]
    )


def ranked(
    checkpoints: list[AsyncCheckpoint], sort_by: str | None, smaller_is_better: bool | None, what: str
) -> list[AsyncCheckpoint]:
    """`checkpoints` that have the metric, the best first; NaN is never best.

    Raises:
        ArgumentsError: `sort_by` without `smaller_is_better`.
        NoCheckpointException: No checkpoint has the metric.
    """
    import math

    from determined import errors

    if sort_by is not None and smaller_is_better is None:
        raise errors.ArgumentsError(
            f"smaller_is_better must be given with sort_by={sort_by!r}: whether small values are good"
        )
    searcher: dict[str, Any] = {}
    for checkpoint in checkpoints:
        if checkpoint.training is not None:
            searcher = checkpoint.training.experiment_config.get("searcher") or {}
            break
    metric = sort_by or searcher.get("metric")
    smaller = smaller_is_better if smaller_is_better is not None else bool(searcher.get("smaller_is_better", True))
    if not metric:
        raise errors.ArgumentsError(
            f"can't tell which metric {what} is searched by; give sort_by and smaller_is_better"
        )

    scored: list[tuple[float, AsyncCheckpoint]] = []
    for checkpoint in checkpoints:
        validation = checkpoint.training.validation_metrics if checkpoint.training else {}
        metrics: dict[str, Any] = validation.get("avgMetrics") or {}
        try:
            value = float(metrics[metric])
        except (KeyError, TypeError, ValueError):
            continue
        if not math.isnan(value):
            scored.append((value if smaller else -value, checkpoint))
    if not scored:
        raise errors.NoCheckpointException(f"{what} has no checkpoint with a validation of the metric {metric!r}")
    return [checkpoint for _, checkpoint in sorted(scored, key=lambda pair: pair[0])]


def _levels_from(min_level: LogLevel | None) -> list[str] | None:
    if min_level is None or min_level == LogLevel.UNSPECIFIED:
        return None
    levels = [level for level in LogLevel if level != LogLevel.UNSPECIFIED]
    return [str(level.value) for level in levels[levels.index(min_level) :]]


def _rfc3339(value: str | int | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    import datetime

    return datetime.datetime.fromtimestamp(value, datetime.timezone.utc).isoformat().replace("+00:00", "Z")


TrialReference = AsyncTrial
