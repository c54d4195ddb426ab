"""Notices that the workers of a container have stopped going on, and shows once what each of them is doing."""

from __future__ import annotations

import os
import time

from determined._fail import fail, say
from determined.launch._stacks import Stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from determined.launch._folder import GangFolder

STALL_STACKS_S = "DET_STALL_STACKS_S"
# Well before NCCL gives up a collective and ends its process, after 10 minutes: then it would be too late to look.
_DEFAULT_S = 300.0


def limit_s() -> float:
    """After how long without progress stacks are shown; 0: never. Ends the process if the setting is wrong."""
    text = os.environ.get(STALL_STACKS_S)
    if not text:
        return _DEFAULT_S
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        fail(
            f"the environment variable {STALL_STACKS_S} is {text!r}, but must be a number of seconds, or 0 to show no "
            "stacks"
        )
    return value


class StallWatch:
    """Shows the stacks of the workers when none of them has gone on for a while.

    A worker goes on when it writes anything, except that it still waits for another, when it reports metrics, and when
    it makes a call of its `DistributedContext`. To be wrong costs some lines in the log: workers are never ended for
    it. A stall is shown once; the next one is what follows when a worker has made progress.

    Args:
        folder: Of the gang.
        limit_s: See the function of that name.
    """

    def __init__(self, folder: GangFolder, limit_s: float) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._stacks = Stacks(folder)
        self._progress: dict[str, int] = {}
        self._since = time.monotonic()
        self._is_shown = False
        self._is_broken = False

    def look(self) -> None:
        """Look once. To be called again and again."""
        self._harmlessly(self._look)

    def ask(self, workers: dict[int, str]) -> None:
        """Show the stacks of some workers now; see `Stacks.ask`."""
        self._harmlessly(lambda: self._stacks.ask(workers))

    def close(self) -> None:
        """Show what is left."""
        self._harmlessly(self._stacks.close)

    def _look(self) -> None:
        progress = self._folder.progress()
        quiet_s = time.monotonic() - self._since
        if progress != self._progress:
            self._progress, self._since, self._is_shown = progress, time.monotonic(), False
        elif self._limit_s and not self._is_shown and quiet_s >= self._limit_s:
            workers = self._folder.running()
            if workers:
                self._is_shown = True
                say(
                    "WARNING",
                    "no worker of this container has written or reported anything, or made a call of its "
                    f"DistributedContext, for {quiet_s:.0f} s ({STALL_STACKS_S}). Nothing is ended for it; this is "
                    "what each of them is doing",
                )
                self._stacks.ask(workers)
        self._stacks.show()

    def _harmlessly(self, act: Callable[[], None]) -> None:
        if self._is_broken:
            return
        try:
            act()
        except OSError as e:
            # For example because somebody has cleaned up /tmp: no reason to end the training.
            self._is_broken = True
            say("WARNING", f"the stacks of the workers can't be shown any more: {e}")
