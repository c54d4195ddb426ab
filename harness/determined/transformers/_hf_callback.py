"""The names at the place where Determined has them."""

from __future__ import annotations

from determined.transformers._callback import EVAL, TEST, TRAIN, DetCallback, get_metric_type
from determined.transformers._deepspeed import get_ds_config_path_from_args

__all__ = ["EVAL", "TEST", "TRAIN", "DetCallback", "get_ds_config_path_from_args", "get_metric_type"]
