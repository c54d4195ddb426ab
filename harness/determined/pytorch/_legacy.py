"""A trial class that a configuration names: trained as the configuration says."""

from __future__ import annotations

from typing import Any

from determined import errors
from determined.pytorch import _trainer, _user_code
from determined.pytorch._units import Batch, from_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined._info import ClusterInfo


def run(cls: Any, info: ClusterInfo) -> None:
    """Make the trial and train it; `det experiment create --local` trains one batch and validates one.

    Raises: InvalidExperimentException, if the class or the configuration is not as it must be.
    """
    _user_code.check_class(cls)
    config: dict[str, Any] = info.trial._config  # pyright: ignore[reportPrivateUsage]
    hparams = info.trial.hparams
    batch_size = hparams.get("global_batch_size")
    size = batch_size if isinstance(batch_size, int) else None
    optimizations: dict[str, Any] = config.get("optimizations") or {}
    profiling: dict[str, Any] = config.get("profiling") or {}
    try:
        checkpoint = from_config("min_checkpoint_period", config.get("min_checkpoint_period") or {"batches": 0}, size)
        validation = from_config("min_validation_period", config.get("min_validation_period") or {"batches": 0}, size)
    except ValueError as error:
        raise errors.InvalidExperimentException(str(error)) from None
    every = int(optimizations.get("aggregation_frequency") or 1)
    with _trainer.init(hparams=hparams, exp_conf=config, aggregation_frequency=every) as context:
        context._fp16_compression = bool(optimizations.get("gradient_compression"))  # pyright: ignore
        averages = optimizations.get("average_aggregated_gradients", True)
        context._average_aggregated_gradients = bool(averages)  # pyright: ignore[reportPrivateUsage]
        trainer = _trainer.Trainer(cls(context), context)
        trainer._is_trainer = False  # pyright: ignore[reportPrivateUsage]
        trainer.fit(
            checkpoint_period=checkpoint,
            validation_period=validation,
            reporting_period=Batch(int(config.get("scheduling_unit") or 100)),
            checkpoint_policy=str(config.get("checkpoint_policy") or "best"),
            latest_checkpoint=info.latest_checkpoint,
            test_mode=info.task_type == "LOCAL",
            step_zero_validation=bool(config.get("perform_initial_validation")),
            profiling_enabled=bool(profiling.get("enabled")),
        )
