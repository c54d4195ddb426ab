"""How long tests wait. What is there in time makes no test wait; a machine that others share stands still at times."""

from __future__ import annotations

import os

#: Every limit on a wait is so many times as long in CI. Promises about time are measured by `bench/`, on a quiet machine.
PATIENCE = 4 if os.environ.get("CI") else 1


def pause(waited_s: float) -> float:
    """Seconds until a condition is looked at again that was waited for so long: looking costs the tests beside it."""
    return min(0.15, max(0.03, waited_s / 20))
