"""What each documented method does, checked from inside of a trial on each of its workers.

A check is named after its method. It fails by an exception; what it returns is compared by the test with what the
cluster shows to others. The checks of a phase run in the order of `MODULES`, and in these from top to bottom.
"""

from __future__ import annotations

import importlib

from .worker import CHECKS

MODULES = ("task", "workers", "context", "checkpoints", "training", "searching", "leaving")

for _module in MODULES:
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["CHECKS", "MODULES"]
