"""What a worker's Python imports when it starts, so that its launcher can ask for its stacks (see `_stacks`).

The interpreter may be another one than the launcher's, without this package: nothing of it is imported.
"""

import importlib
import os
import sys


def _answer_the_launcher() -> None:
    path, number = os.environ.get("DET_STACKS_FILE"), os.environ.get("DET_STACKS_SIGNAL")
    if not path or not number:
        return
    import faulthandler
    import fcntl

    try:
        low = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return  # the launcher has ended: nobody will ask
    try:
        # Far from the numbers that programs see and count on.
        file = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 200)
        faulthandler.register(int(number), file=file, all_threads=True)
    finally:
        os.close(low)


def _import_the_next() -> None:
    """The module of this name that Python would have found without this folder."""
    here = os.path.dirname(__file__)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as e:
        if e.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


if __name__ == "sitecustomize":
    try:
        _answer_the_launcher()
    finally:
        _import_the_next()
