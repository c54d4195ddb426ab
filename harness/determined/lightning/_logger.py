"""A logger of Lightning's over `determined.experimental.core_v2`."""

from __future__ import annotations

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from determined.experimental import core_v2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.experimental import Determined


class DetLogger(Logger):
    """Sends what a Trainer logs to an unmanaged trial, as metrics of training; from the worker of rank 0.

    The run begins with the first metrics, and ends with the Trainer. Within a run that `core_v2.init()` began, this
    logger reports to that, and leaves it open. Hyperparameters that the Trainer logs are ignored: `config` has them.

    Args:
        defaults, unmanaged, config, client: As for `core_v2.init`.
    """

    def __init__(
        self,
        *,
        defaults: core_v2.DefaultConfig | None = None,
        unmanaged: core_v2.UnmanagedConfig | None = None,
        config: core_v2.Config | None = None,
        client: Determined | None = None,
    ) -> None:
        super().__init__()
        self._arguments: dict[str, Any] = {
            "defaults": defaults,
            "unmanaged": unmanaged,
            "config": config,
            "client": client,
        }
        self._is_mine = False
        self._step = 0

    @property
    def name(self) -> str:
        """Of the run."""
        given = self._arguments["config"] or self._arguments["unmanaged"] or self._arguments["defaults"]
        return str(getattr(given, "name", None) or "determined")

    @property
    def version(self) -> str:
        """The run's trial once there is one."""
        info = core_v2.info if core_v2.is_initialized() else None
        return "" if info is None else str(info.trial.trial_id)

    @property
    def experiment(self) -> Any:
        """The module `core_v2`, with its run begun."""
        self._begin()
        return core_v2

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Ignored: the run's configuration has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Report `metrics` as those of training at `step`, or at the step of the last report."""
        self._begin()
        self._step = self._step if step is None else step
        core_v2.train.report_training_metrics(self._step, metrics)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run that this logger began."""
        if self._is_mine:
            self._is_mine = False
            core_v2.close()

    def _begin(self) -> None:
        if not core_v2.is_initialized():
            core_v2.init(**self._arguments)
            self._is_mine = True
