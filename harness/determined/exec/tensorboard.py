"""What the container of a TensorBoard runs: TensorBoard, behind `/proxy/<task id>/`, on files of checkpoint storages.

Source: spec tasks.md §3.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import threading
import time

from determined._fail import fail
from determined.exec._environment import TaskEnvironment
from determined.exec._events import Events, sources_of
from determined.exec._ready import HOST, answers, port_of, private_folder, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ARGUMENT = re.compile(r"--([a-z][a-z0-9_]*)(=.*)?", re.DOTALL)
_MOST_ARGUMENTS, _LONGEST_ARGUMENT = 64, 1024
#: Arguments that are ours to give; TensorBoard takes their beginnings for the whole as well.
_OURS = (
    "port",
    "host",
    "bind_all",
    "reuse_port",
    "logdir",
    "logdir_spec",
    "path_prefix",
    "db",
    "db_import",
    "flagfile",
)
# So long an empty board is held back: it may be about to fill.
_EMPTY_S = 7.0


def main() -> None:
    """Run TensorBoard to its end, with its status."""
    env = TaskEnvironment(os.environ)
    if importlib.util.find_spec("tensorboard") is None:
        fail(
            "TensorBoard is not installed: `pip install undeterred-harness[tensorboard]` into this task's image,"
            " or into the Python that trials run in"
        )
    arguments = _arguments(_json("DET_TENSORBOARD_ARGS", "[]"))
    sources = sources_of(_json("DET_TENSORBOARD_SOURCES", "null"))
    port, prefix = port_of("TENSORBOARD_PORT"), f"/proxy/{env.task_id}"
    folder = private_folder(env, "tensorboard")
    try:
        events = Events(folder, sources)
    except OSError as e:
        fail(f"can't prepare the folder {folder} for TensorBoard: {e.strerror} ({e.filename})")
    threading.Thread(target=events.follow, name="determined-events", daemon=True).start()
    # It needs nothing of the storages: their credentials stay here.
    environ = {name: value for name, value in os.environ.items() if name != "DET_TENSORBOARD_SOURCES"}
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    argv = [
        *(sys.executable, "-m", "determined.exec._board", f"--host={HOST}", f"--port={port}"),
        *(f"--path_prefix={prefix}", f"--logdir={folder}", "--reload_interval=3", "--reload_multifile=true"),
        # The fast loader keeps files open, and sees nothing of one that was put in its place.
        *("--load_fast=false", *arguments),
    ]
    raise SystemExit(serve(env, argv, _Readiness(events, port, prefix).look, environ))


class _Readiness:
    """Ready is a TensorBoard that answers, and has a first file or has waited a while for one."""

    def __init__(self, events: Events, port: int, prefix: str) -> None:
        self._events, self._port, self._prefix = events, port, prefix
        self._answered_at: float | None = None

    def look(self) -> bool:
        if self._answered_at is None:
            if not answers(self._port, f"{self._prefix}/data/environment"):
                return False
            self._answered_at = time.monotonic()
        return self._events.has_files() or time.monotonic() - self._answered_at > _EMPTY_S


def _arguments(given: Any) -> list[str]:
    """The user's arguments. Ends the process with one sentence if there is one that must not be."""
    if not isinstance(given, list) or len(given) > _MOST_ARGUMENTS:  # pyright: ignore[reportUnknownArgumentType]
        fail(f"tensorboard_args in the task's configuration must be a list of at most {_MOST_ARGUMENTS} texts")
    found: list[str] = []
    for each in given:  # pyright: ignore[reportUnknownVariableType]
        text = str(each)  # pyright: ignore[reportUnknownArgumentType]
        matched = _ARGUMENT.fullmatch(text)
        if not isinstance(each, str) or matched is None or len(text) > _LONGEST_ARGUMENT:
            fail(
                f"tensorboard_args in the task's configuration has {text[:80]!r}, but must have --name or --name=value"
            )
        if any(ours.startswith(matched[1]) for ours in _OURS):
            fail(f"tensorboard_args in the task's configuration has {text[:80]!r}, which is the cluster's to choose")
        found.append(text)
    return found


def _json(name: str, default: str) -> Any:
    try:
        return json.loads(os.environ.get(name) or default)
    except ValueError:
        fail(f"the environment variable {name} is not valid JSON")  # not how: there are secrets in it


if __name__ == "__main__":
    main()
