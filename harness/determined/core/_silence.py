"""Notices that a training process has fallen silent, and shows once what its threads are doing.

For a process by itself; workers under a launch module are watched by that, with all others of their container.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time

from determined._fail import say
from determined.launch._folder import Progress
from determined.launch._stall import STALL_STACKS_S

_TICK_S = 5.0


class SilenceWatch:
    """Shows the stacks of all threads when this one has not gone on for a while. Nothing is ended for it.

    It goes on when it writes anything, reports metrics, or asks whether it is to leave. A silence is shown once; the
    next one is what follows when it has gone on. If something holds the interpreter so that no other thread comes to
    run, faulthandler's own watchdog, which needs none, shows the stacks a little later.

    Args:
        limit_s: How long nothing may happen; 0: no limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._tick_s = min(_TICK_S, limit_s / 10)
        self._watchdog_s = limit_s + 3 * self._tick_s
        self._io = f"/proc/self/task/{threading.get_native_id()}/io"
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the calling thread."""
        try:
            sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):
            return  # stderr is no file, so that nothing could be shown
        if self._limit_s:
            self._set_watchdog()  # here: the thread might not come to run before something holds the interpreter
            self._thread = threading.Thread(target=self._watch, name="determined-silence", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Watch no longer. A second time is no error."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        seen, since, is_shown = self._progress(), time.monotonic(), False
        try:
            while not self._is_closed.wait(self._tick_s):
                now = self._progress()
                if now != seen:
                    seen, since, is_shown = now, time.monotonic(), False
                    self._set_watchdog()
                elif not is_shown and time.monotonic() - since >= self._limit_s:
                    is_shown = True
                    if time.monotonic() - since >= self._watchdog_s:
                        continue  # the watchdog has shown it: this thread did not come to run meanwhile
                    faulthandler.cancel_dump_traceback_later()
                    say(
                        "WARNING",
                        f"this process has written and reported nothing for {self._limit_s:.0f} s ({STALL_STACKS_S}). "
                        "Nothing is ended for it; this is what its threads are doing",
                    )
                    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _set_watchdog(self) -> None:
        faulthandler.dump_traceback_later(self._watchdog_s, file=sys.stderr)

    def _progress(self) -> tuple[int, bytes]:
        """What changes when the watched thread goes on."""
        try:
            with open(self._io, "rb") as file:
                written = next((line for line in file if line.startswith(b"syscw")), b"")
        except OSError:
            written = b""  # this system does not count it, or the thread has ended
        return Progress.count, written
