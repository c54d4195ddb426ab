"""Training with DeepSpeed: write a `DeepSpeedTrial`, and a `Trainer` trains, validates, saves and resumes it.

Engines are DeepSpeed's own, with any of its ZeRO stages or as a pipeline. Names are those of Determined 0.21 and 0.38.

Source: spec training-apis.md §6.
"""

from __future__ import annotations

from determined.pytorch import _lazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.pytorch.deepspeed._config import overwrite_deepspeed_config
    from determined.pytorch.deepspeed._context import DeepSpeedTrialContext
    from determined.pytorch.deepspeed._mpu import ModelParallelUnit, make_data_parallel_mpu, make_deepspeed_mpu
    from determined.pytorch.deepspeed._trainer import Trainer, init
    from determined.pytorch.deepspeed._trial import DeepSpeedTrial

__all__ = [
    "DeepSpeedTrial",
    "DeepSpeedTrialContext",
    "ModelParallelUnit",
    "Trainer",
    "init",
    "make_data_parallel_mpu",
    "make_deepspeed_mpu",
    "overwrite_deepspeed_config",
]

_HOME = {
    "DeepSpeedTrial": "_trial",
    "DeepSpeedTrialContext": "_context",
    **dict.fromkeys(("ModelParallelUnit", "make_data_parallel_mpu", "make_deepspeed_mpu"), "_mpu"),
    **dict.fromkeys(("Trainer", "init"), "_trainer"),
    "overwrite_deepspeed_config": "_config",
}


def __getattr__(name: str) -> object:
    value = _lazy.attribute("determined.pytorch.deepspeed", name, _HOME)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
