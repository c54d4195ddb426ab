"""The searcher's operations for a trainer that has a loop of its own, and reports of its progress."""

from __future__ import annotations

from typing import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from determined import core


def searcher_config(context: core.Context) -> dict[str, Any]:
    """The section `searcher` of the trial's configuration; empty where there is no trial."""
    info = context.info
    if info is None or info.task_type != "TRIAL":
        return {}
    return info.trial._config.get("searcher") or {}  # pyright: ignore[reportPrivateUsage]


def configured_length(config: dict[str, Any]) -> tuple[str, int] | None:
    """Unit and number of `searcher.max_length` (or `length_per_round`); None if there is none.

    Raises:
        ValueError: It is a plain number, which says no unit.
    """
    for name in ("max_length", "length_per_round"):
        length: Any = config.get(name)
        if length is None:
            continue
        if isinstance(length, dict):
            ((unit, value),) = cast("dict[str, int]", length).items()  # the server takes one with one key only
            return unit, value
        if config.get("unit") is not None:
            return str(config["unit"]), int(length)
        raise ValueError(f"searcher.{name} is {length!r}, but must have a unit, for example {{epochs: {length}}}")
    return None


def length_by_time(config: dict[str, Any]) -> tuple[str, int] | None:
    """Unit and number of `max_time`, of a searcher that counts its time in epochs or batches; else None."""
    unit, most = config.get("time_metric"), config.get("max_time")
    return (str(unit), int(most)) if unit in ("epochs", "batches") and most is not None else None


def check_counted(length: tuple[str, int] | None, library: str) -> None:
    """Raises: ValueError, if a `searcher.max_length` is in records, which the library does not count."""
    if length is not None and length[0] not in ("epochs", "batches"):
        raise ValueError(
            f"searcher.max_length is {{{length[0]}: {length[1]}}}, but {library} counts epochs and batches: "
            "give one of these"
        )


def required_metrics(config: dict[str, Any]) -> tuple[str, ...]:
    """The metrics without which the searcher can't compare trials: its own and, if it has one, that of time."""
    return tuple(str(config[name]) for name in ("metric", "time_metric") if config.get(name))


def check_metrics(required: Iterable[str], metrics: Iterable[str], of: str, instead: str = "") -> None:
    """Raises: ValueError, if a metric that the searcher needs is not there.

    Args:
        required: What it needs.
        metrics: The names that there are.
        of: Where they come from.
        instead: What can be done before its configuration is changed.
    """
    found = sorted(metrics)
    lacking = [name for name in required if name not in found]
    if lacking:
        raise ValueError(
            f"the searcher needs the metric {lacking[0]!r}, which is not among those {of}: {', '.join(found)}; "
            f"{instead}set searcher.metric to one of them"
        )


class Operations:
    """Follows the searcher of a trial with `max_length`. Without one, and outside of a cluster, it asks for nothing.

    All workers of a job call its methods at the same points.

    Attributes:
        unit: What its lengths count: epochs, batches, records. None: there is nothing to follow.
    """

    def __init__(self, context: core.Context) -> None:
        from determined.core._searcher import DummySearcherContext

        self._context = context
        config = searcher_config(context)
        self.unit: str | None = None
        if not isinstance(context.searcher, DummySearcherContext) and context.info is not None:
            length = configured_length(config)
            self.unit = None if length is None else length[0]
        self._operations: Iterator[core.SearcherOperation] | None = None
        self._current: core.SearcherOperation | None = None

    def begin(self) -> bool:
        """Ask for the first operation. False: there is none, so that nothing is to be trained."""
        if self.unit is None:
            return True
        if self._operations is None:
            self._operations = self._context.searcher.operations()
            self._current = next(self._operations, None)
        return self._current is not None

    @property
    def length(self) -> int | None:
        """How far to train in all before the next validation that the searcher waits for."""
        return None if self._current is None else self._current.length

    def reached(self, trained: float) -> bool:
        """Whether the trial is as far as the searcher wants to know about."""
        return self._current is not None and trained >= self._current.length

    def complete(self, metric: Any) -> bool:
        """Report the searcher's metric at the length of this operation. False: there is no further one.

        Call it when the checkpoint of this length is stored: a trial that is resumed later begins from it.
        """
        if self._current is None or self._operations is None:
            return True
        if self._context.distributed.rank == 0:
            self._current.report_completed(metric)
        self._current = next(self._operations, None)
        return self._current is not None


class PercentProgress:
    """Reports how much of a training is done, from the chief, and once for each whole percent."""

    def __init__(self, context: core.Context) -> None:
        self._context = context
        self._reported = -1

    def report(self, fraction: float) -> None:
        """`fraction` from 0 to 1; beyond that it counts as 1."""
        percent = int(min(max(fraction, 0.0), 1.0) * 100 + 1e-9)
        if percent != self._reported and self._context.distributed.rank == 0:
            self._reported = percent
            self._context.train.report_progress(percent / 100)
