"""Parts of the Core API that may still change."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.experimental.checkpoint import Checkpoint
    from determined.common.experimental.model import ModelVersion
    from determined.core._reporter import Reporter


class ExperimentalCoreContext:
    """Says what this trial works with. Get it as `core_context.experimental`.

    The metrics that the trial reports are then found at that checkpoint (`Checkpoint.get_metrics`) or model version
    (`ModelVersion.get_metrics`), as those of an inference with it.
    """

    def __init__(self, reporter: Reporter, trial_id: int) -> None:
        self._reporter = reporter
        self._trial_id = trial_id

    def report_task_using_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Tell the master that this trial works with a checkpoint. Blocks until it knows.

        Raises:
            NotFoundException: There is no such checkpoint, or this trial may not read it.
            AllocationEnded, APIException: The master refused it, or an earlier report.
        """
        self._report({"checkpointUuid": checkpoint.uuid})

    def report_task_using_model_version(self, model_version: ModelVersion) -> None:
        """Tell the master that this trial works with a version of a registered model. Blocks until it knows.

        Raises:
            ValueError: The version has no checkpoint.
            NotFoundException, AllocationEnded, APIException: As `report_task_using_checkpoint`.
        """
        if model_version.checkpoint is None:
            raise ValueError(f"{model_version!r} has no checkpoint to work with")
        self._report(
            {
                "checkpointUuid": model_version.checkpoint.uuid,
                "modelId": model_version.model_id,
                "modelVersion": model_version.model_version,
            }
        )

    def _report(self, source: dict[str, Any]) -> None:
        told = {"trialId": self._trial_id, "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE", **source}
        self._reporter.call(lambda send: send("POST", "/api/v1/trial-source-info", {"trialSourceInfo": told}))


class DummyExperimentalCoreContext(ExperimentalCoreContext):
    """Stands in where the cluster has not started this process: what it works with goes to the log."""

    def __init__(self) -> None:
        pass

    def _report(self, source: dict[str, Any]) -> None:
        import logging

        logging.getLogger("determined.core").info(f"this run works with {source}")
