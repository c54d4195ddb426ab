"""Enumerations and plain values of the SDK: what both the synchronous and the asynchronous objects speak of."""

from __future__ import annotations

import enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    E = TypeVar("E", bound="WireEnum")


class WireEnum(enum.Enum):
    """An enum whose values are the names on the wire."""

    @classmethod
    def of(cls: type[E], value: Any) -> E:
        """The member for a name on the wire; UNSPECIFIED for one that this release does not know."""
        try:
            return cls(value)
        except ValueError:
            return cls.__members__["UNSPECIFIED"]


class OrderBy(WireEnum):
    """The direction of a sorted list."""

    ASCENDING = "ORDER_BY_ASC"
    ASC = "ORDER_BY_ASC"
    DESCENDING = "ORDER_BY_DESC"
    DESC = "ORDER_BY_DESC"


class DownloadMode(enum.Enum):
    """How a checkpoint is downloaded.

    DIRECT: from the checkpoint storage, which this machine must reach itself. MASTER: through the master.
    AUTO: DIRECT, and if that fails MASTER.
    """

    DIRECT = "direct"
    MASTER = "master"
    AUTO = "auto"


class CheckpointState(WireEnum):
    """The state of a checkpoint."""

    UNSPECIFIED = "STATE_UNSPECIFIED"
    ACTIVE = "STATE_ACTIVE"
    COMPLETED = "STATE_COMPLETED"
    ERROR = "STATE_ERROR"
    DELETED = "STATE_DELETED"
    PARTIALLY_DELETED = "STATE_PARTIALLY_DELETED"


class CheckpointSortBy(WireEnum):
    """What to sort checkpoints by."""

    UNSPECIFIED = "SORT_BY_UNSPECIFIED"
    UUID = "SORT_BY_UUID"
    TRIAL_ID = "SORT_BY_TRIAL_ID"
    BATCH_NUMBER = "SORT_BY_BATCH_NUMBER"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    SEARCHER_METRIC = "SORT_BY_SEARCHER_METRIC"


class CheckpointTrainingMetadata:
    """Where a checkpoint comes from."""

    def __init__(
        self,
        experiment_config: dict[str, Any],
        experiment_id: int,
        trial_id: int,
        hparams: dict[str, Any],
        validation_metrics: dict[str, Any],
        training_metrics: dict[str, Any] | None = None,
        searcher_metric: float | None = None,
    ) -> None:
        self.experiment_config = experiment_config
        self.experiment_id = experiment_id
        self.trial_id = trial_id
        self.hparams = hparams
        self.validation_metrics = validation_metrics
        self.training_metrics = training_metrics or {}
        self.searcher_metric = searcher_metric

    @classmethod
    def from_wire(cls, body: dict[str, Any] | None) -> CheckpointTrainingMetadata | None:
        """From a v1CheckpointTrainingMetadata; None if the checkpoint is not of a trial."""
        if not body or not body.get("trialId"):
            return None
        return cls(
            body.get("experimentConfig") or {},
            int(body.get("experimentId") or 0),
            int(body["trialId"]),
            body.get("hparams") or {},
            body.get("validationMetrics") or {},
            body.get("trainingMetrics") or {},
            None if body.get("searcherMetric") is None else float(body["searcherMetric"]),
        )


class ExperimentState(WireEnum):
    """The state of an experiment."""

    UNSPECIFIED = "STATE_UNSPECIFIED"
    ACTIVE = "STATE_ACTIVE"
    PAUSED = "STATE_PAUSED"
    STOPPING_COMPLETED = "STATE_STOPPING_COMPLETED"
    STOPPING_CANCELED = "STATE_STOPPING_CANCELED"
    STOPPING_ERROR = "STATE_STOPPING_ERROR"
    COMPLETED = "STATE_COMPLETED"
    CANCELED = "STATE_CANCELED"
    ERROR = "STATE_ERROR"
    DELETED = "STATE_DELETED"
    DELETING = "STATE_DELETING"
    DELETE_FAILED = "STATE_DELETE_FAILED"
    STOPPING_KILLED = "STATE_STOPPING_KILLED"
    QUEUED = "STATE_QUEUED"
    PULLING = "STATE_PULLING"
    STARTING = "STATE_STARTING"
    RUNNING = "STATE_RUNNING"


class ExperimentSortBy(WireEnum):
    """What to sort experiments by."""

    UNSPECIFIED = "SORT_BY_UNSPECIFIED"
    ID = "SORT_BY_ID"
    DESCRIPTION = "SORT_BY_DESCRIPTION"
    START_TIME = "SORT_BY_START_TIME"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    NUM_TRIALS = "SORT_BY_NUM_TRIALS"
    PROGRESS = "SORT_BY_PROGRESS"
    USER = "SORT_BY_USER"
    NAME = "SORT_BY_NAME"
    FORKED_FROM = "SORT_BY_FORKED_FROM"
    RESOURCE_POOL = "SORT_BY_RESOURCE_POOL"
    PROJECT_ID = "SORT_BY_PROJECT_ID"
    CHECKPOINT_SIZE = "SORT_BY_CHECKPOINT_SIZE"
    CHECKPOINT_COUNT = "SORT_BY_CHECKPOINT_COUNT"
    SEARCHER_METRIC_VAL = "SORT_BY_SEARCHER_METRIC_VAL"


class LogLevel(WireEnum):
    """How important a line of the log is."""

    UNSPECIFIED = "LOG_LEVEL_UNSPECIFIED"
    TRACE = "LOG_LEVEL_TRACE"
    DEBUG = "LOG_LEVEL_DEBUG"
    INFO = "LOG_LEVEL_INFO"
    WARNING = "LOG_LEVEL_WARNING"
    ERROR = "LOG_LEVEL_ERROR"
    CRITICAL = "LOG_LEVEL_CRITICAL"


class TrialState(WireEnum):
    """The state of a trial."""

    UNSPECIFIED = "STATE_UNSPECIFIED"
    ACTIVE = "STATE_ACTIVE"
    PAUSED = "STATE_PAUSED"
    STOPPING_CANCELED = "STATE_STOPPING_CANCELED"
    STOPPING_KILLED = "STATE_STOPPING_KILLED"
    STOPPING_COMPLETED = "STATE_STOPPING_COMPLETED"
    STOPPING_ERROR = "STATE_STOPPING_ERROR"
    CANCELED = "STATE_CANCELED"
    COMPLETED = "STATE_COMPLETED"
    ERROR = "STATE_ERROR"
    QUEUED = "STATE_QUEUED"
    PULLING = "STATE_PULLING"
    STARTING = "STATE_STARTING"
    RUNNING = "STATE_RUNNING"


class TrialSortBy(WireEnum):
    """What to sort trials by."""

    UNSPECIFIED = "SORT_BY_UNSPECIFIED"
    ID = "SORT_BY_ID"
    START_TIME = "SORT_BY_START_TIME"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    BEST_VALIDATION_METRIC = "SORT_BY_BEST_VALIDATION_METRIC"
    LATEST_VALIDATION_METRIC = "SORT_BY_LATEST_VALIDATION_METRIC"
    BATCHES_PROCESSED = "SORT_BY_BATCHES_PROCESSED"
    DURATION = "SORT_BY_DURATION"
    RESTARTS = "SORT_BY_RESTARTS"
    CHECKPOINT_SIZE = "SORT_BY_CHECKPOINT_SIZE"
    LOG_RETENTION_DAYS = "SORT_BY_LOG_RETENTION_DAYS"


class ModelSortBy(WireEnum):
    """What to sort models by."""

    UNSPECIFIED = "SORT_BY_UNSPECIFIED"
    NAME = "SORT_BY_NAME"
    DESCRIPTION = "SORT_BY_DESCRIPTION"
    CREATION_TIME = "SORT_BY_CREATION_TIME"
    LAST_UPDATED_TIME = "SORT_BY_LAST_UPDATED_TIME"
    NUM_VERSIONS = "SORT_BY_NUM_VERSIONS"
    WORKSPACE = "SORT_BY_WORKSPACE"


# One direction for every list; the older releases had one for each kind.
CheckpointOrderBy = ExperimentOrderBy = TrialOrderBy = ModelOrderBy = OrderBy


def wire(value: enum.Enum | None) -> str | None:
    """The wire's name of a member, or None."""
    return None if value is None else str(value.value)
