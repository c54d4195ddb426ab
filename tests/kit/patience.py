"""How long tests wait. What is there in time makes no test wait; a machine that others share stands still at times."""

from __future__ import annotations

import os

#: Every limit on a wait is so many times as long in CI. Promises about time are measured by `bench/`, on a quiet machine.
PATIENCE = 4 if os.environ.get("CI") else 1
