"""Whether a notebook is in use: the master, which ends idle ones, learns it regularly. Source: spec tasks.md §3."""

from __future__ import annotations

import os
import threading
import time

from determined import errors
from determined._fail import fail, say
from determined.common.api._url import api_path
from determined.exec._ready import get_json, session_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from determined.exec._environment import TaskEnvironment

_LONGEST_PAUSE_S = 30.0
_KINDS = ("kernels", "terminals", "sessions")


class Activity:
    """What Jupyter says that happens in it, judged by one of the rules.

    Args:
        kind: The rule, `notebook_idle_type` of the configuration.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._newest: str | None = None

    def is_idle(self, kernels: list[Any], terminals: list[Any], sessions: list[Any]) -> bool:
        """Whether nobody uses it now; unknown rules are the first one, as with Determined."""
        if self._kind == "kernel_connections":
            return not any(int(kernel.get("connections") or 0) for kernel in kernels)
        if self._kind == "activity":
            return self._is_quiet(kernels, [*kernels, *terminals])
        return not (kernels or terminals or sessions)

    def _is_quiet(self, kernels: list[Any], active: list[Any]) -> bool:
        newest = max((str(each.get("last_activity") or "") for each in active), default="")
        before, self._newest = self._newest, newest
        is_busy = any(kernel.get("execution_state") == "busy" for kernel in kernels)
        # The first look has nothing to compare with: one that has just started is in use.
        return not is_busy and newest == before


class _Watcher:
    """Tells the master."""

    def __init__(self, env: TaskEnvironment, pause_s: float, is_idle: Callable[[], bool]) -> None:
        self._env = env
        self._pause_s = pause_s
        self._is_idle = is_idle
        self._session = session_of(env)
        self._told: set[str] = set()

    def run(self) -> None:
        while True:
            time.sleep(self._pause_s)
            try:
                self._once()
            except (errors.APIException, OSError) as e:
                self._tell(f"the master can't learn whether this notebook is idle: {e}")

    def _once(self) -> None:
        is_idle = self._is_idle()
        body = {"notebookId": self._env.task_id, "idle": is_idle}
        self._session.put(api_path("notebooks", self._env.task_id, "report_idle"), json=body)
        if os.environ.get("DET_DEBUG") == "true":
            say("DEBUG", f"this notebook is {'idle' if is_idle else 'in use'}")

    def _tell(self, message: str) -> None:
        if message not in self._told and len(self._told) < 10:
            self._told.add(message)
            say("WARNING", message)


def watcher(env: TaskEnvironment, port: int, base: str, token: str) -> Callable[[], None]:
    """What tells the master from its call on, in a thread, whether the notebook is in use.

    One without an idle timeout may be given one while it runs. Ends the process with one sentence if it is no number.

    Args:
        env: Of this container.
        port: Of JupyterLab.
        base: Its base URL.
        token: For its API.
    """
    text = os.environ.get("DET_IDLE_TIMEOUT_S") or ""
    try:
        timeout_s = float(text or 4 * _LONGEST_PAUSE_S)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < 1e9:
        fail(f"the environment variable DET_IDLE_TIMEOUT_S is {text!r}, but must be a number of seconds")
    activity = Activity(os.environ.get("NOTEBOOK_IDLE_TYPE") or "")

    def is_idle() -> bool:
        return activity.is_idle(*(_listed(port, base, token, kind) for kind in _KINDS))

    def start() -> None:
        watch = _Watcher(env, min(_LONGEST_PAUSE_S, timeout_s / 4), is_idle)
        threading.Thread(target=watch.run, name="determined-idle", daemon=True).start()

    return start


def _listed(port: int, base: str, token: str, name: str) -> list[Any]:
    # Our looks are no use of the notebook.
    answer = get_json(port, f"{base}api/{name}?no_track_activity=1", {"Authorization": f"token {token}"})
    if not isinstance(answer, list):
        raise OSError(f"api/{name} of JupyterLab answers {type(answer).__name__}, not a list")
    return [each for each in answer if isinstance(each, dict)]  # pyright: ignore[reportUnknownVariableType]
