"""A bar for what takes longer than a second: on stderr, one line, only where a person looks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from cli import render

_AFTER_S = 1.0
_EVERY_S = 0.2
_WIDTH = 24

#: What is done and what there is to do, in bytes or as a ratio; None as long as that can't be told.
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
    """What is told from inside of a block, for the bar: `meter(done, total)`."""

    def __init__(self) -> None:
        self._at: tuple[float, float] | None = None

    def __call__(self, done: float, total: float) -> None:
        self._at = done, total

    def at(self) -> tuple[float, float] | None:
        """What was told last."""
        return self._at


def is_shown() -> bool:
    """Whether a person looks at stderr and may be shown things that move."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ


def line(label: str, at: tuple[float, float] | None, seconds: float, in_bytes: bool = True) -> str:
    """The bar as text; without a measure a mark that goes to and fro."""
    if at is None or at[1] <= 0:
        place = int(seconds / _EVERY_S) % (2 * (_WIDTH - 3))
        place = min(place, 2 * (_WIDTH - 3) - place)
        return f"{label} [{' ' * place}###{' ' * (_WIDTH - 3 - place)}] {seconds:.0f} s"
    ratio = min(1.0, max(0.0, at[0] / at[1]))
    full = int(ratio * _WIDTH)
    amount = f" {render.size(at[0])} of {render.size(at[1])}" if in_bytes else ""
    return f"{label} [{'#' * full}{' ' * (_WIDTH - full)}] {ratio:.0%}{amount}, {seconds:.0f} s"


def _draw(label: str, measure: Measure | None, in_bytes: bool, done: threading.Event) -> None:
    began = time.monotonic()
    if done.wait(_AFTER_S):
        return
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        columns = 80
    while True:
        at = measure() if measure is not None else None
        text = line(label, at, time.monotonic() - began, in_bytes)[: columns - 1]
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
        if done.wait(_EVERY_S):
            break
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
