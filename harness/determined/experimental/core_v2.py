"""The Core API for code that the cluster did not start: from a laptop, a notebook or another scheduler.

Example::

    from determined.experimental import core_v2

    core_v2.init(config=core_v2.Config(name="my-run", hparams={"lr": 0.1}))
    for step in range(100):
        core_v2.train.report_training_metrics(steps_completed=step, metrics={"loss": 1 / (step + 1)})
    core_v2.close()

The experiment and its trial appear on the master as *unmanaged*: it neither schedules nor restarts them. Given both
external ids, a run that is started again goes on with the same trial, from its latest checkpoint. Where the cluster did
start this code, `init` is `core.init`.
"""

from __future__ import annotations

import atexit
import contextlib
import sys

from determined import core
from determined.core import DistributedContext, PreemptMode, TensorboardMode
from determined.experimental._unmanaged import Config, DefaultConfig, UnmanagedConfig, merged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from determined._info import ClusterInfo
    from determined.experimental import Determined

    train: core.TrainContext
    checkpoint: core.CheckpointContext
    distributed: core.DistributedContext
    preempt: core.PreemptContext
    searcher: core.SearcherContext
    info: ClusterInfo | None
    profiler: core.ProfilerContext
    experimental: core.ExperimentalCoreContext

__all__ = [
    "Config",
    "DefaultConfig",
    "DistributedContext",
    "PreemptMode",
    "TensorboardMode",
    "UnmanagedConfig",
    "close",
    "init",
    "init_context",
    "is_initialized",
    "url_reverse_webui_exp_view",
]

_PARTS = ("train", "checkpoint", "distributed", "preempt", "searcher", "info", "profiler", "experimental")
_current: core.Context | None = None


def init(
    *,
    config: Config | None = None,
    defaults: DefaultConfig | None = None,
    unmanaged: UnmanagedConfig | None = None,
    client: Determined | None = None,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> None:
    """Begin a run. Afterwards `core_v2.train`, `.checkpoint` and so on are the parts of the Core API.

    It ends with `close()`, or with the interpreter: then an exception that nobody caught leaves the trial in error.

    Args:
        config: What the run is called and so on. None, outside of a cluster: nothing is sent anywhere.
        defaults, unmanaged: The same in the older form, in two parts; what `unmanaged` says goes first.
        client: Who talks to the master; by default who logged in with `det user login`.
        distributed: Needed for several workers.
        checkpoint_storage: Where checkpoints go, instead of what the configuration or the master says.
        preempt_mode, tensorboard_mode: As for `core.init`.

    Raises:
        RuntimeError: There is a run already.
        ValueError: The configuration has no name, or it is given in both forms.
        UnauthenticatedException, MasterNotFoundException, APIException: The master can't be talked to, or refuses.
    """
    global _current
    if _current is not None:
        raise RuntimeError(
            "core_v2.init() was called before; call core_v2.close() first, or use core_v2.init_context()"
        )
    _current = _context(
        merged(config, defaults, unmanaged), client, distributed, checkpoint_storage, preempt_mode, tensorboard_mode
    )
    _current.start()
    atexit.register(close)


def is_initialized() -> bool:
    """Whether there is a run, begun by `init()` and not yet ended."""
    return _current is not None


def close() -> None:
    """End the run: what is queued is sent, and the trial is completed, or in error while an exception is handled."""
    global _current
    context, _current = _current, None
    atexit.unregister(close)
    if context is not None:
        context.close(*_exception())


@contextlib.contextmanager
def init_context(
    *,
    config: Config | None = None,
    defaults: DefaultConfig | None = None,
    unmanaged: UnmanagedConfig | None = None,
    client: Determined | None = None,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Generator[core.Context, None, None]:
    """The same for a `with` statement, which gets the context; arguments and errors as `init`.

    A block that raises leaves the trial in error.
    """
    with _context(
        merged(config, defaults, unmanaged), client, distributed, checkpoint_storage, preempt_mode, tensorboard_mode
    ) as context:
        yield context


def url_reverse_webui_exp_view() -> str:
    """The address of this run's experiment in the web interface.

    Raises:
        RuntimeError: There is no run, or it is on no master.
    """
    if _current is None or _current.info is None:
        raise RuntimeError("there is no run on a master: call core_v2.init(config=core_v2.Config(name=…)) first")
    return f"{_current.info.master_url}/det/experiments/{_current.info.trial.experiment_id}"


def _context(
    config: Config | None,
    client: Determined | None,
    dist: core.DistributedContext | None,
    storage: str | dict[str, Any] | None,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
) -> core.Context:
    from determined._info import get_cluster_info

    if config is None or get_cluster_info() is not None:
        return core.init(
            distributed=dist,
            checkpoint_storage=storage,
            preempt_mode=preempt_mode,
            tensorboard_mode=tensorboard_mode,
        )
    from determined.experimental._unmanaged import unmanaged_context

    return unmanaged_context(config, client, dist, storage, tensorboard_mode)


def _exception() -> tuple[type[BaseException] | None, BaseException | None, Any]:
    value: BaseException | None = sys.exc_info()[1]
    if value is None:
        # At the end of the interpreter: what ended it was noted by its own hook, unless it was sys.exit().
        value = getattr(sys, "last_value", None)
    return (None, None, None) if value is None else (type(value), value, value.__traceback__)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        if _current is None:
            raise RuntimeError(f"core_v2.{name} is there between core_v2.init() and core_v2.close() only")
        return getattr(_current, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
