"""What a checkpoint's folder says of its run: the code and the configuration, and how far it was. Of every age.

Source: spec training-apis.md §5.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import pathlib
import pickle
import re
from typing import Any, cast

from determined import errors
from determined._import import import_from_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

logger = logging.getLogger("determined")

_SPEC = re.compile(r"([\w.]+):([\w.]+)")
#: What a stored configuration says of the cluster that it was for.
_OF_CLUSTER = ("checkpoint_storage", "environment", "resources", "optimizations")
PASS_CLASS = "pass the class as trial_class"


class Stored:
    """What a checkpoint's folder says about the code that it was trained with.

    Args:
        folder: Of the checkpoint.
        kind: Of the trials that it is loaded as; another one is warned of.

    Attributes:
        is_metadata_only: It has metadata only, as before 0.17.7.
        config: The experiment's.
        hparams: The trial's.
        spec: Names its class, "module:Class".
        is_trainer: A script trained it, which configured itself.

    Raises:
        NoCheckpointException: It does not say.
    """

    def __init__(self, folder: pathlib.Path, kind: str) -> None:
        load_data, metadata = (_json_of(folder / name) for name in ("load_data.json", "metadata.json"))
        self.is_metadata_only = load_data is None
        self.config: dict[str, Any] | None
        self.hparams: dict[str, Any] | None
        self.spec: Any
        if load_data is not None:
            stored_by = load_data.get("trial_type")
            if stored_by != kind:
                logger.warning(f"{folder} was stored by a {stored_by}, and is loaded as one of a {kind}")
            self.spec = load_data.get("trial_cls_spec")
            self.config, self.hparams = load_data.get("experiment_config"), load_data.get("hparams")
            self.is_trainer = bool(load_data.get("is_trainer"))
        elif metadata is not None and "experiment_config" in metadata and "hparams" in metadata:
            self.config, self.hparams = metadata["experiment_config"], metadata["hparams"]
            self.spec = (self.config or {}).get("entrypoint")
            self.is_trainer = False
        else:
            raise errors.NoCheckpointException(
                f"{folder} has no load_data.json, and no metadata.json with experiment_config and hparams; get the "
                "folder by Checkpoint.download(), or write that file by Checkpoint.write_metadata_file()"
            )
        if not self.is_trainer and self.config is not None:
            self.config = {name: value for name, value in self.config.items() if name not in _OF_CLUSTER}


def _json_of(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise errors.InvalidCheckpointException(f"{path} can't be read: {e}") from e
    if not isinstance(value, dict):
        raise errors.InvalidCheckpointException(f"{path} has a {type(value).__name__}, but must have an object")
    return cast("dict[str, Any]", value)


@contextlib.contextmanager
def imported(folder: pathlib.Path, about: Stored) -> Generator[Any]:
    """The trial class of a checkpoint's code, which can import its own modules within the block.

    Raises: ValueError, if there is none, or it can't be imported.
    """
    found = _SPEC.fullmatch(about.spec) if isinstance(about.spec, str) else None
    if found is None:
        raise ValueError(f"{folder} was stored by the entrypoint {about.spec!r}, which names no class; {PASS_CLASS}")
    module_name, path = found.groups()
    if module_name == "__main__":
        raise ValueError(f"the trial class {path} was defined in a script, which can't be imported; {PASS_CLASS}")
    code = folder / "code"
    if not code.is_dir():
        raise ValueError(f"{folder} has no code to import {about.spec} from; {PASS_CLASS}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(import_from_path(code))
        if not about.is_trainer:
            stack.enter_context(_in_folder(code))
        try:
            cls: Any = importlib.import_module(module_name)
            for name in path.split("."):
                cls = getattr(cls, name)
        except (Exception, SystemExit) as e:
            raise ValueError(
                f"{about.spec} can't be imported from {code}: {type(e).__name__}: {e}; {PASS_CLASS}"
            ) from e
        yield cls


@contextlib.contextmanager
def _in_folder(folder: pathlib.Path) -> Generator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def read_loop_state(folder: pathlib.Path, epoch_length: int | None) -> dict[str, Any] | None:
    """How far the run of a checkpoint was, in the names of today; None if the checkpoint does not say.

    Args:
        folder: Of the checkpoint.
        epoch_length: Batches of an epoch; None if unknown: then old checkpoints have no `epochs_trained`.

    Returns:
        `trial_id`, `last_ckpt`, `step_id`, `last_val`, `batches_trained`, `epochs_trained`.

    Raises:
        InvalidCheckpointException: The file can't be read.
    """
    for name in ("trial_state.pkl", "workload_sequencer.pkl"):
        if (folder / name).is_file():
            break
    else:
        return None
    try:
        saved: Any = pickle.loads((folder / name).read_bytes())
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError, OSError) as e:
        raise errors.InvalidCheckpointException(f"{name} of the checkpoint can't be read: {e}") from e
    if not isinstance(saved, dict):
        raise errors.InvalidCheckpointException(f"{name} of the checkpoint has a {type(saved).__name__}, and no dict")
    stored = cast("dict[str, Any]", saved)
    if "batches_trained" in stored:
        return stored
    batches = stored.get("steps_completed", stored.get("latest_batch"))
    if not isinstance(batches, int):
        raise errors.InvalidCheckpointException(f"{name} of the checkpoint does not say how many batches were trained")
    return {
        "trial_id": stored.get("trial_id"),
        "last_ckpt": stored.get("last_ckpt", batches),
        "step_id": stored.get("step_id", 0),
        "last_val": stored.get("last_val", 0),
        "batches_trained": batches,
        "epochs_trained": batches // epoch_length if epoch_length else None,
    }
