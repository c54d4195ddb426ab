"""A bar for what takes longer than a second: on stderr, one line, only in a terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_AFTER_S = 1.0
_EVERY_S = 0.2

#: What is done and what there is to do, in bytes or as a ratio; None as long as it is unknown.
Measure = Callable[[], tuple[float, float] | None]


@contextmanager
def progress(label: str, measure: Measure | None = None, *, in_bytes: bool = True) -> Generator[None]:
    """Show how far the block is once it has taken a second, and for how long it runs. Gone when it ends."""
    if not is_shown():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_draw, args=(label, measure, in_bytes, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Meter:
    """A measure that the block itself reports to: `meter(done, total)`."""

    def __init__(self) -> None:
        self._at: tuple[float, float] | None = None

    def __call__(self, done: float, total: float) -> None:
        self._at = done, total

    def at(self) -> tuple[float, float] | None:
        """The last report."""
        return self._at


def is_shown() -> bool:
    """Whether stderr is a terminal where things may move."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ


def _draw(label: str, measure: Measure | None, in_bytes: bool, done: threading.Event) -> None:
    if done.wait(_AFTER_S):
        return
    with _bar(has_amount=measure is not None and in_bytes) as bar:
        task = bar.add_task(label, total=None)
        while True:
            if measure is not None and (at := measure()) is not None and at[1] > 0:
                bar.update(task, completed=min(at[0], at[1]), total=at[1])
            bar.refresh()
            if done.wait(_EVERY_S):
                return


def _bar(*, has_amount: bool) -> Progress:
    """A bar that goes when its block ends. rich is loaded here only: it takes longer than most commands."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TaskProgressColumn()]
    amount = [DownloadColumn()] if has_amount else []
    console = Console(stderr=True)
    return Progress(*columns, *amount, TimeElapsedColumn(), console=console, transient=True, auto_refresh=False)
