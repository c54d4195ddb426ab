"""`DeterminedTracker`: what a script logs by accelerate is what the cluster sees."""

from __future__ import annotations

from accelerate.tracking import GeneralTracker

from determined._operations import searcher_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from determined import core

_OF_VALIDATIONS = tuple(f"{word}{mark}" for word in ("val", "eval", "validation") for mark in "_/")


class DeterminedTracker(GeneralTracker):
    """Reports what `accelerator.log` is given; outside of a cluster reports go to the log.

    - Names that begin with `val_`, `eval_` or `validation_` (or `val/` …), and the searcher's metric, are reported as
      validation metrics, all others as training metrics.
    - `accelerator.log(values, step=n, log_kwargs={"determined": {"group": "validation"}})` says the group itself.
    - `step` is the number of steps that are trained: it must be given.

    Args:
        core_context: What `core.init()` gave.
        validation_prefixes: With what the names of validation metrics begin.
    """

    name = "determined"
    requires_logging_directory = False
    #: This class looks at the rank by itself.
    main_process_only = False

    def __init__(self, core_context: core.Context, validation_prefixes: Sequence[str] = _OF_VALIDATIONS) -> None:
        super().__init__()
        self._core = core_context
        self._prefixes = tuple(validation_prefixes)
        self._metric = searcher_config(core_context).get("metric")

    @property
    def tracker(self) -> core.Context:
        """The context that reports."""
        return self._core

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """What `init_trackers(config=…)` is given: the cluster has the trial's hyperparameters already."""

    def log(self, values: dict[str, Any], step: int | None = None, group: str | None = None, **kwargs: Any) -> None:
        """What `accelerator.log` was given.

        Args:
            values: Metrics by name.
            step: How many steps are trained.
            group: training, validation, or a name of your own; None: by the metrics' names.
            kwargs: Of other trackers.

        Raises:
            ValueError: There is no `step`.
        """
        if step is None:
            raise ValueError(
                f"accelerator.log({{{', '.join(map(repr, values))}}}) was given no step: pass the number of steps that "
                "are trained, step=n"
            )
        if self._core.distributed.rank:
            return
        groups: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            groups.setdefault(group or self._group_of(name), {})[name] = value
        for each, metrics in groups.items():
            self._core.train.report_metrics(each, step, metrics)

    def _group_of(self, name: str) -> str:
        return "validation" if name == self._metric or name.startswith(self._prefixes) else "training"
