"""`pytorch.init()` and `Trainer`: what a script calls, and what runs a trial class for it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

import torch

import determined
from determined import core
from determined.pytorch import _horovod, _random, _user_code
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._goals import Master
from determined.pytorch._loop import Plan, TrainingLoop
from determined.pytorch._units import Batch, Epoch, TrainUnit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from determined._info import ClusterInfo
    from determined.pytorch._trial import PyTorchTrial

logger = logging.getLogger("determined.pytorch")

_POLICIES = ("best", "all", "none")
_NEVER = Batch(sys.maxsize)


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
) -> Generator[PyTorchTrialContext]:
    """The context of a `PyTorchTrial`, on a cluster and outside of one::

        with pytorch.init(hparams=hparams) as context:
            trainer = pytorch.Trainer(MyTrial(context), context)
            trainer.fit(max_length=pytorch.Epoch(2))

    Args:
        hparams: The hyperparameters; on a cluster pass `det.get_cluster_info().trial.hparams`.
        exp_conf: What `context.get_experiment_config()` returns outside of a cluster.
        distributed: Which rank this is, outside of a cluster.
        aggregation_frequency: After how many batches optimizers step.
        enable_tensorboard_logging: Whether metrics are written for TensorBoard.

    Raises:
        InvalidExperimentException: The batch size does not fit the slots.
        ValueError: The trial has several slots, and was not started by a launcher.
    """
    info = determined.get_cluster_info()
    if info is not None and info.task_type == "TRIAL":
        config, seed = info.trial._config, info.trial.trial_seed  # pyright: ignore[reportPrivateUsage]
        steps: int = info.trial._steps_completed  # pyright: ignore[reportPrivateUsage]
        slots = max(1, sum(info.container_slot_counts))
        gpus = len(info.gpu_uuids)
        backend = _backend(info)
        managed = False
    else:
        config, seed, steps, backend, managed = exp_conf, None, 0, "", True
        slots = distributed.size if distributed is not None else 1
        gpus = torch.cuda.device_count()
    with contextlib.ExitStack() as stack:
        if backend:
            distributed = stack.enter_context(_ranks(backend, gpus))
        elif not managed:
            distributed = None
        mode = core.TensorboardMode.AUTO if enable_tensorboard_logging else core.TensorboardMode.MANUAL
        context = stack.enter_context(core.init(distributed=distributed, tensorboard_mode=mode))
        if seed is not None:
            _random.seed_rank(seed)
        yield PyTorchTrialContext(
            context,
            trial_seed=seed,
            hparams=hparams,
            slots_per_trial=slots,
            num_gpus=gpus,
            exp_conf=config,
            aggregation_frequency=aggregation_frequency,
            steps_completed=steps,
            managed_training=managed,
            enable_tensorboard_logging=enable_tensorboard_logging,
        )


def _backend(info: ClusterInfo) -> str:
    """horovod, torch, or nothing for a single slot. Raises: ValueError."""
    if os.environ.get("USE_HOROVOD"):
        return "horovod"
    if os.environ.get("USE_TORCH_DISTRIBUTED"):
        return "torch"
    slots, containers = sum(info.container_slot_counts), len(info.container_addrs)
    if slots > 1 or containers > 1:
        raise ValueError(
            f"this trial has {slots} slots in {containers} containers: start it with a launcher, for example "
            "entrypoint: python3 -m determined.launch.torch_distributed python3 train.py"
        )
    return ""


@contextlib.contextmanager
def _ranks(backend: str, gpus: int) -> Generator[core.DistributedContext]:
    """The ranks of a job, as its launcher has started them."""
    if backend == "horovod":
        yield _horovod.ranks()
        return
    import torch.distributed as dist

    dist.init_process_group(backend="nccl" if gpus and torch.cuda.is_available() else "gloo")
    try:
        yield core.DistributedContext.from_torch_distributed()
    finally:
        dist.destroy_process_group()


class Trainer:
    """Trains a trial.

    Args:
        trial: Made with `context`.
        context: From `pytorch.init()`.
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self._trial = trial
        self._context = context
        self._is_trainer = True

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Does nothing any more: use `fit(profiling_enabled=True)`, or `profiling.enabled` in the configuration."""
        logger.warning("Trainer.configure_profiler does nothing: use Trainer.fit(profiling_enabled=True)")

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = Batch(100),
        checkpoint_policy: str = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
        reproducible: bool = False,
    ) -> None:
        """Train until `max_length`, or as the experiment's searcher says; validate and save at the end.

        Args:
            checkpoint_period: How often to save; None: at the end.
            validation_period: How often to validate; None: at the end.
            max_length: How far to train in all. With `searcher.max_length` in the configuration the searcher says so.
            reporting_period: After how much training its metrics are reported.
            checkpoint_policy: What else is saved: after a validation that is the `best` of the experiment, after `all`,
                or after `none`.
            latest_checkpoint: Where to resume: on a cluster `det.get_cluster_info().latest_checkpoint`.
            step_zero_validation: Validate before training, unless the trial was validated before.
            test_mode: One batch of training, one of validation, one checkpoint; outside of a cluster only.
            profiling_enabled: Measure the machine during training.
            reproducible: Refuse to train where a resumed run might differ from one that was not disturbed.

        Raises:
            TypeError: A period or length is no `Batch` or `Epoch`, or `max_length` is a schedule.
            ValueError: Nothing says how far to train, or a value is none of those that are possible.
            InvalidExperimentException: The trial is not as it must be; the message has file and line.
            InvalidCheckpointException: The checkpoint can't be read.
        """
        context = self._context
        master = Master(context, self._is_trainer)
        _check_units(checkpoint_period, validation_period, reporting_period, max_length)
        if checkpoint_policy not in _POLICIES:
            raise ValueError(f"checkpoint_policy is {checkpoint_policy!r}, but must be one of {', '.join(_POLICIES)}")
        if test_mode and master.is_cluster:
            raise ValueError("Trainer.fit: test_mode is for training outside of a cluster only")
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
        plan = Plan(
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
        _user_code.check_class(type(self._trial))
        TrainingLoop(self._trial, context, plan, master).run(master.goals(Batch(1) if test_mode else max_length))


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
