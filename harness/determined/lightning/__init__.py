"""Lightning 2 as a trial: `DeterminedCallback` reports, stores, and makes room.

Example::

    with core.init() as core_context:
        callback = DeterminedCallback(core_context)
        trainer = lightning.Trainer(callbacks=[callback], …)
        trainer.fit(model, data, ckpt_path=callback.checkpoint_path)

`determined.lightning.experimental.DetLogger` sends metrics of a training that the cluster did not start.
"""

from __future__ import annotations

try:
    import lightning as _  # noqa: F401 - whether it is there
except ImportError as e:
    if e.name != "lightning":
        raise
    from determined._extras import missing

    raise missing(__name__, "lightning", "lightning") from e

from determined.lightning._callback import DeterminedCallback

__all__ = ["DeterminedCallback"]
