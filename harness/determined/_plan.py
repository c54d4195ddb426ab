"""What a training was asked for, checked: by a script's `Trainer.fit`, or by the experiment's configuration."""

from __future__ import annotations

import logging
import sys
from typing import Any

from determined import errors
from determined._sequencer import Plan
from determined._units import Batch, Epoch, TrainUnit, from_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined._goals import Master
    from determined._info import ClusterInfo
    from determined._trial_context import TrialContext

logger = logging.getLogger("determined")

_POLICIES = ("best", "all", "none")
_NEVER = Batch(sys.maxsize)


def planned(
    context: TrialContext,
    master: Master,
    *,
    checkpoint_period: TrainUnit | None,
    validation_period: TrainUnit | None,
    reporting_period: TrainUnit,
    checkpoint_policy: str,
    latest_checkpoint: str | None,
    step_zero_validation: bool,
    test_mode: bool,
    profiling_enabled: bool,
    max_length: TrainUnit | None = None,
    reproducible: bool = False,
) -> Plan:
    """The arguments of `determined.pytorch.Trainer.fit` as a plan. Raises: as that."""
    _check_units(checkpoint_period, validation_period, reporting_period, max_length)
    if checkpoint_policy not in _POLICIES:
        raise ValueError(f"checkpoint_policy is {checkpoint_policy!r}, but must be one of {', '.join(_POLICIES)}")
    if test_mode and master.is_cluster:
        raise ValueError("test_mode is for training outside of a cluster only")
    if checkpoint_policy == "best" and not master.is_cluster:
        checkpoint_policy = "all"
        if not test_mode:
            logger.warning("checkpoint_policy 'best' needs a cluster, which knows the best validation: using 'all'")
    if master.is_cluster:
        latest: str | None = context._core.info.latest_checkpoint if context._core.info else None  # pyright: ignore
        if latest is not None and latest_checkpoint is None:
            logger.warning(
                f"this trial has the checkpoint {latest}, from which it does not resume: pass "
                "latest_checkpoint=det.get_cluster_info().latest_checkpoint to Trainer.fit"
            )
    if profiling_enabled and master.is_cluster:
        context._core.profiler.on()  # pyright: ignore[reportPrivateUsage]
    elif profiling_enabled:
        logger.warning("Trainer.fit: profiling_enabled is for clusters: nothing is measured")
    return Plan(
        checkpoint_period=checkpoint_period or _NEVER,
        validation_period=validation_period or _NEVER,
        reporting_period=reporting_period,
        policy=checkpoint_policy,
        latest_checkpoint=latest_checkpoint,
        step_zero_validation=step_zero_validation,
        test_mode=test_mode,
        metric=master.searcher.get("metric"),
        needs_metric=checkpoint_policy == "best" or master.follows_operations(),
        smaller_is_better=bool(master.searcher.get("smaller_is_better", True)),
        is_reproducible=reproducible,
    )


def configured(info: ClusterInfo) -> dict[str, Any]:
    """The arguments of `planned` that an experiment's configuration says.

    Raises: InvalidExperimentException, if one of its periods can't be.
    """
    config: dict[str, Any] = info.trial._config  # pyright: ignore[reportPrivateUsage]
    profiling: dict[str, Any] = config.get("profiling") or {}
    return {
        "checkpoint_period": _period(info, "min_checkpoint_period"),
        "validation_period": _period(info, "min_validation_period"),
        "reporting_period": Batch(int(config.get("scheduling_unit") or 100)),
        "checkpoint_policy": str(config.get("checkpoint_policy") or "best"),
        "latest_checkpoint": info.latest_checkpoint,
        "test_mode": info.task_type == "LOCAL",
        "step_zero_validation": bool(config.get("perform_initial_validation")),
        "profiling_enabled": bool(profiling.get("enabled")),
    }


def _period(info: ClusterInfo, name: str) -> TrainUnit:
    size = info.trial.hparams.get("global_batch_size")
    given = info.trial._config.get(name) or {"batches": 0}  # pyright: ignore[reportPrivateUsage]
    try:
        return from_config(name, given, size if isinstance(size, int) else None)
    except ValueError as error:
        raise errors.InvalidExperimentException(str(error)) from None


def _check_units(
    checkpoint: TrainUnit | None, validation: TrainUnit | None, report: TrainUnit, length: TrainUnit | None
) -> None:
    named = (("checkpoint_period", checkpoint), ("validation_period", validation), ("reporting_period", report))
    for name, unit in (*named, ("max_length", length)):
        if unit is not None and not isinstance(unit, (Batch, Epoch)):
            raise TypeError(f"Trainer.fit: {name} is {unit!r}, but must be a Batch or an Epoch, for example Epoch(1)")
    if report is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError("Trainer.fit: reporting_period is None, but must be a Batch or an Epoch")
    if length is not None and (not isinstance(length.value, int) or length.value < 1):
        raise TypeError(f"Trainer.fit: max_length is {length!r}, but must be one number of 1 or more")
