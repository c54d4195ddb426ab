"""Single keys from the terminal, without Enter."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

#: Waits up to this many seconds for a key; "" if there was none.
NextKey = Callable[[float], str]

_LOOK_S = 0.05


@contextmanager
def single_keys() -> Generator[NextKey]:
    """Keys as they are pressed, not echoed; the terminal is as before when the block ends.

    Ctrl-C stays an interrupt. Where stdin is no terminal there are no keys, and waiting is all it does.
    """
    if not sys.stdin.isatty():
        yield _no_key
        return
    if sys.platform == "win32":
        yield _console_key
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def next_key(timeout_s: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        if not ready:
            return ""
        pressed = os.read(descriptor, 64).decode(errors="replace")
        if not pressed:  # the terminal is gone: don't spin
            time.sleep(timeout_s)
        return pressed[:1]

    try:
        tty.setcbreak(descriptor)
        yield next_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _console_key(timeout_s: float) -> str:
    """A key of the console of Windows, whose input can't be waited for: looked at 20 times a second."""
    import msvcrt

    console: Any = msvcrt  # this module is typed for Windows only
    until = time.monotonic() + timeout_s
    while not console.kbhit():
        if time.monotonic() >= until:
            return ""
        time.sleep(_LOOK_S)
    return console.getwch()


def _no_key(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""
