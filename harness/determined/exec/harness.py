"""What an `entrypoint` that names a trial class comes to: `python3 -m determined.exec.harness model_def:MyTrial`.

Source: spec training-apis.md §1.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

from determined import errors
from determined._fail import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined._info import ClusterInfo

_STACKS_EVERY_S = 30


def main() -> None:
    """Train the trial class of the command line, as the experiment's configuration says."""
    import determined

    if len(sys.argv) != 2:
        fail("use: python3 -m determined.exec.harness module:Class")
    info = determined.get_cluster_info()
    if info is None or info.task_type not in ("TRIAL", "LOCAL"):  # LOCAL: `det experiment create --local`
        fail(
            "determined.exec.harness runs in a trial of a cluster only; elsewhere call pytorch.Trainer.fit in a script"
        )
    debug = bool(info.trial._debug)  # pyright: ignore[reportPrivateUsage]
    _log(debug)
    try:
        cls = trial_class(sys.argv[1])
        _run(cls, info)
    except (errors.InvalidExperimentException, errors.InvalidDataTypeException) as error:
        fail(str(error))
    except ImportError as error:
        # What this package leaves out, or needs an extra for; the user's own module is missing with its place.
        if not (error.name or "").startswith("determined") and "undeterred-harness[" not in str(error):
            raise
        fail(str(error))


def trial_class(entrypoint: str) -> Any:
    """The class of `module:Class`, its module loaded afresh from the current folder.

    Raises: InvalidExperimentException, if there is none.
    """
    module_name, _, path = entrypoint.partition(":")
    if not module_name or not path:
        raise errors.InvalidExperimentException(
            f"entrypoint {entrypoint!r} must be module:Class, for example model_def:MyTrial"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    # A package of the environment may have the name of the user's module.
    sys.modules.pop(module_name, None)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise errors.InvalidExperimentException(
            f"entrypoint {entrypoint!r}: there is no module {module_name} in {os.getcwd()}"
        ) from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise errors.InvalidExperimentException(
                f"entrypoint {entrypoint!r}: {found.__name__} has no {name} ({getattr(found, '__file__', module_name)})"
            )
        found = getattr(found, name)
    return found


def _run(cls: Any, info: ClusterInfo) -> None:
    # After the user's module, whose imports may say better what is missing.
    keras = sys.modules.get("determined.keras")
    if keras is not None and isinstance(cls, type) and issubclass(cls, keras.TFKerasTrial):
        from determined.keras import _legacy
    else:
        from determined.pytorch import _legacy
    _legacy.run(cls, info)


def _log(debug: bool) -> None:
    """Only the chief speaks, but for warnings; in debugging all do, and show their stacks from time to time."""
    from determined import LOG_FORMAT

    rank = os.environ.get("RANK") or os.environ.get("HOROVOD_RANK") or "0"
    level = logging.DEBUG if debug else logging.INFO if rank == "0" else logging.WARNING
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    logging.getLogger("determined").setLevel(level)
    if debug:
        import faulthandler

        faulthandler.dump_traceback_later(_STACKS_EVERY_S, repeat=True)


if __name__ == "__main__":
    main()
