"""Hugging Face's Trainer as a trial: `DetCallback` reports, stores, and makes room.

Example::

    with core.init(distributed=distributed) as core_context:
        callback = DetCallback(core_context, args)
        trainer = transformers.Trainer(model, args, callbacks=[callback], …)
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""

from __future__ import annotations

try:
    import transformers as _  # noqa: F401 - whether it is there
except ImportError as e:
    if e.name != "transformers":
        raise
    from determined._extras import missing

    raise missing(__name__, "transformers", "transformers") from e

from determined.transformers._callback import EVAL, TEST, TRAIN, DetCallback, get_metric_type
from determined.transformers._deepspeed import get_ds_config_path_from_args

__all__ = ["EVAL", "TEST", "TRAIN", "DetCallback", "get_ds_config_path_from_args", "get_metric_type"]
