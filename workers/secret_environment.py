"""Removes secrets from the environment once they are read.

Everything that runs as the same user may read `/proc/<pid>/environ`, a trial in a plain process among it; and what is
started later would inherit it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys


def take(name: str) -> str | None:
    """The value of a variable, which is gone then: from here, from what is started later, and from /proc."""
    value = os.environ.get(name)
    if value is None:
        return None
    if sys.platform == "linux":
        # removing it would leave the block that the kernel shows, which was laid out when this process began
        with contextlib.suppress(OSError, AttributeError):
            getenv = ctypes.CDLL(None).getenv
            getenv.restype = ctypes.c_void_p
            place = getenv(name.encode())
            if place:
                ctypes.memset(place, ord("x"), len(os.fsencode(value)))
    os.environ.pop(name)
    return value
