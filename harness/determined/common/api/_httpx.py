"""httpx without its command line client, which loads rich where that is installed.

That takes a quarter of a second, and draws from `random`, whose numbers are the training code's: a script that seeds
it before `core.init()` would compute something else than without us.

Its loggers are silent below WARNING, unless the program sets their level: a script that logs at DEBUG means its own
lines, and ours would be most of its log.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

_CLIENT = "httpx._main"
_modules: dict[str, Any] = sys.modules
_is_ours = "httpx" not in _modules and _CLIENT not in _modules
if _is_ours:
    _modules[_CLIENT] = None  # as if it could not be imported, which httpx allows for
try:
    import httpx
finally:
    if _is_ours:
        del _modules[_CLIENT]

for _name in ("httpx", "httpcore"):
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)

__all__ = ["httpx"]
