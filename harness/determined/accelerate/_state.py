"""What `accelerator.save_state` writes, as checkpoints of the trial."""

from __future__ import annotations

import json
from typing import Any

import accelerate

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib

    from determined import core

_FILE = "determined_state.json"


def save_state(core_context: core.Context, accelerator: accelerate.Accelerator, steps_completed: int) -> str:
    """Store models, optimizers, schedulers, random numbers and registered objects as a checkpoint of the trial.

    All workers call it; each writes its own part.

    Args:
        core_context: What `core.init()` gave.
        accelerator: Its `prepare` was called.
        steps_completed: How many steps are trained.

    Returns:
        The checkpoint's uuid.
    """
    metadata = {"steps_completed": steps_completed, "framework": f"accelerate-{accelerate.__version__}"}
    with core_context.checkpoint.store_path(metadata, shard=True) as (folder, uuid):
        accelerator.save_state(str(folder))  # pyright: ignore[reportUnknownMemberType]
        if core_context.distributed.rank == 0:
            about = {"steps_completed": steps_completed, "trial_id": _trial_id(core_context)}
            (folder / _FILE).write_text(json.dumps(about))
    return uuid


def load_state(core_context: core.Context, accelerator: accelerate.Accelerator, uuid: str | None = None) -> int:
    """Resume from a checkpoint that `save_state` has stored. All workers call it, after `accelerator.prepare`.

    Args:
        core_context: What `core.init()` gave.
        accelerator: Its `prepare` was called with the same objects as when it was stored.
        uuid: Of the checkpoint; None: the trial's latest one, if there is any.

    Returns:
        How many steps are trained; 0 without a checkpoint, and of one that another trial has stored: then the weights
        and all else are taken, and the training begins.

    Raises:
        InvalidCheckpointException: `save_state` has not stored it.
    """
    info = core_context.info
    uuid = uuid or (info.latest_checkpoint if info is not None else None)
    if uuid is None:
        return 0
    with core_context.checkpoint.restore_path(uuid) as folder:
        about = _about(folder, uuid)
        accelerator.load_state(str(folder))  # pyright: ignore[reportUnknownMemberType]
    return int(about["steps_completed"]) if about["trial_id"] == _trial_id(core_context) else 0


def _about(folder: pathlib.Path, uuid: str) -> dict[str, Any]:
    path = folder / _FILE
    if not path.is_file():
        raise errors.InvalidCheckpointException(
            f"checkpoint {uuid} has no {_FILE}: determined.accelerate.save_state has not stored it"
        )
    return json.loads(path.read_text())


def _trial_id(core_context: core.Context) -> int:
    info = core_context.info
    return info.trial.trial_id if info is not None and info.task_type == "TRIAL" else 0
