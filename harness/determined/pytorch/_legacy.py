"""A trial class that a configuration names: trained as the configuration says."""

from __future__ import annotations

from typing import Any

from determined._plan import configured
from determined.pytorch import _trainer, _user_code
from determined.pytorch._trial import PyTorchTrial
from determined.pytorch.deepspeed._trial import DeepSpeedTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined._info import ClusterInfo


def run(cls: Any, info: ClusterInfo) -> None:
    """Make the trial and train it; `det experiment create --local` trains one batch and validates one.

    Raises: InvalidExperimentException, if the class or the configuration is not as it must be.
    """
    is_deepspeed = isinstance(cls, type) and issubclass(cls, DeepSpeedTrial)
    _user_code.check_class(cls, DeepSpeedTrial if is_deepspeed else PyTorchTrial)
    arguments = configured(info)
    (_run_deepspeed if is_deepspeed else _run_pytorch)(cls, info, arguments)


def _run_pytorch(cls: Any, info: ClusterInfo, arguments: dict[str, Any]) -> None:
    config = _config(info)
    optimizations: dict[str, Any] = config.get("optimizations") or {}
    every = int(optimizations.get("aggregation_frequency") or 1)
    with _trainer.init(hparams=info.trial.hparams, exp_conf=config, aggregation_frequency=every) as context:
        context._fp16_compression = bool(optimizations.get("gradient_compression"))  # pyright: ignore
        averages = optimizations.get("average_aggregated_gradients", True)
        context._average_aggregated_gradients = bool(averages)  # pyright: ignore[reportPrivateUsage]
        _fit(_trainer.Trainer(cls(context), context), arguments)


def _run_deepspeed(cls: Any, info: ClusterInfo, arguments: dict[str, Any]) -> None:
    from determined.pytorch import deepspeed

    with deepspeed.init(hparams=info.trial.hparams, exp_conf=_config(info)) as context:
        _fit(deepspeed.Trainer(cls(context), context), arguments)


def _fit(trainer: _trainer.AnyTrainer, arguments: dict[str, Any]) -> None:
    trainer._is_trainer = False  # pyright: ignore[reportPrivateUsage]
    trainer.fit(**arguments)


def _config(info: ClusterInfo) -> dict[str, Any]:
    return info.trial._config  # pyright: ignore[reportPrivateUsage]
