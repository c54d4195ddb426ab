"""Tells the master that an unmanaged trial is alive: it gives up those that are silent for five minutes."""

from __future__ import annotations

import logging
import threading

from determined import errors
from determined.common.api._url import api_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.api._session import Session

EVERY_S = 60.0
_LAST_WORD_TRIES = 5

logger = logging.getLogger("determined.core")


class Heartbeat:
    """Beats once a minute, from a thread. Args: a session of its own, the trial."""

    def __init__(self, session: Session, trial_id: int) -> None:
        self._session = session
        self._path = api_path("trials", str(trial_id))
        self._trial_id = trial_id
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="determined-heartbeat", daemon=True)
        self._thread.start()

    def close(self, state: str) -> None:
        """The last beat says how the run ended; a master that does not get it learns it by the silence."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._beat({"state": state}, _LAST_WORD_TRIES)
        except errors.APIException as e:
            logger.warning(f"the master was not told that trial {self._trial_id} ended ({state}): {e}")
        finally:
            self._session.close()

    def _run(self) -> None:
        has_warned = False
        while not self._over.wait(EVERY_S):
            try:
                self._beat({}, 1)
            except errors.APIException as e:
                # The training matters more; reports say louder what is wrong.
                if not has_warned:
                    logger.warning(f"a sign of life of trial {self._trial_id} did not reach the master: {e}")
                has_warned = True
            else:
                has_warned = False

    def _beat(self, more: dict[str, Any], tries: int) -> None:
        self._session.patch(self._path, {"trialId": self._trial_id, **more}, max_tries=tries)
