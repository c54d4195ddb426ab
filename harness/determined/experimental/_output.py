"""Ships what an unmanaged run prints to the master, where it is the log of its trial."""

from __future__ import annotations

import datetime
import io
import logging
import queue
import sys
import threading
import traceback

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from determined.common.api._session import Session

_BATCH = 500
_LINGER_S = 1.0
_LIMIT = 100_000
_LAST_WORDS_S = 30.0

logger = logging.getLogger("determined.core")


class Output:
    """Copies `sys.stdout` and `sys.stderr`. A master that is away costs lines, never the training: it warns once.

    Args:
        session: One of its own.
        task_id: Whose log it is.
        rank: Of this worker, in a job of several.
    """

    def __init__(self, session: Session, task_id: str, rank: int | None) -> None:
        self._session = session
        self._about: dict[str, Any] = {"task_id": task_id, "source": "task", "level": "INFO"}
        if rank is not None:
            self._about["rank_id"] = rank
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(_LIMIT)
        self._thread = threading.Thread(target=self._run, name="determined-output", daemon=True)
        self._originals: dict[str, TextIO] = {}
        self._lost = 0

    def start(self) -> None:
        """From now on."""
        for name in ("stdout", "stderr"):
            self._originals[name] = getattr(sys, name)
            setattr(sys, name, _Tee(self._originals[name], name, self))
        self._thread.start()

    def close(self, error: BaseException | None) -> None:
        """Until now; ships what is left. `error`: what ends the run, whose traceback nobody has printed yet."""
        if not self._originals:
            return
        if error is not None and not isinstance(error, SystemExit):
            for line in traceback.format_exception(type(error), error, error.__traceback__):
                for part in line.splitlines():
                    self.put(part, "stderr")
        for name, original in self._originals.items():
            tee = getattr(sys, name)
            if isinstance(tee, _Tee):
                tee.end()
                setattr(sys, name, original)
        self._lines.put(None)
        self._thread.join(_LAST_WORDS_S)
        if self._lost:
            logger.warning(f"{self._lost} lines of this run's output did not reach the master")
        self._session.close()

    def put(self, line: str, stdtype: str) -> None:
        """Queue a line, without its end."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        try:
            self._lines.put_nowait({**self._about, "log": line + "\n", "timestamp": now, "stdtype": stdtype})
        except queue.Full:
            self._lost += 1

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch: list[dict[str, Any]] = []
            item = self._lines.get()
            while item is not None:
                batch.append(item)
                if len(batch) == _BATCH:
                    break
                try:
                    item = self._lines.get(timeout=_LINGER_S)
                except queue.Empty:
                    break
            else:
                is_open = False
            if batch:
                self._ship(batch)

    def _ship(self, batch: list[dict[str, Any]]) -> None:
        try:
            self._session.post("/task-logs", batch)
        except errors.APIException as e:
            if not self._lost:
                # Not through sys.stderr of this run, which comes back here.
                self._originals["stderr"].write(f"determined: output of this run does not reach the master: {e}\n")
            self._lost += len(batch)


class _Tee(io.TextIOBase):
    """A stream that also hands its lines to an `Output`; everything else is the original's."""

    def __init__(self, original: TextIO, name: str, output: Output) -> None:
        super().__init__()
        self._original = original
        self._name = name
        self._output = output
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        count = self._original.write(text)
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._output.put(line.rsplit("\r", 1)[-1], self._name)  # of a progress bar, what it came to
        return count

    def end(self) -> None:
        """A last line without its end."""
        with self._lock:
            rest, self._rest = self._rest, ""
        if rest:
            self._output.put(rest, self._name)

    def flush(self) -> None:
        self._original.flush()

    def isatty(self) -> bool:
        return self._original.isatty()

    def fileno(self) -> int:
        return self._original.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
