"""How important hyperparameters are: computed when asked for, one at a time for the process, and remembered."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from api.errors import Unavailable
from api.services.importance_model import Explained

#: Seconds that one computation may grow forests for, and that a request waits for its turn and its result.
LIMIT_S, _WAIT_S = 10.0, 30.0
#: Results that are kept, computations that wait, and seconds for which a result of a running experiment stays.
_MOST_KEPT, _MOST_WAITING, _FRESH_S = 256, 8, 30.0

Key = tuple[int, str]
_Kept = tuple[str, float, Explained]


class Importances:
    """Results by experiment and metric. A result stays while the version of its experiment does."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._running: dict[Key, asyncio.Future[Explained]] = {}
        self._worker: ThreadPoolExecutor | None = None

    async def of(self, key: Key, version: str, compute: Callable[[], Explained]) -> Explained:
        """The result, computed in a thread of its own if none is kept.

        Args:
            key: The number of the experiment, and the metric.
            version: Of the experiment now.
            compute: What reads and computes; it ends within a bound of its own.

        Raises: Unavailable, if too many wait or it takes too long; the result of the latter is kept for the next one.
        """
        kept = self._kept.get(key)
        if kept is not None and (kept[0] == version or time.monotonic() - kept[1] < _FRESH_S):
            self._kept.move_to_end(key)
            return kept[2]
        running = self._running.get(key) or self._start(key, version, compute)
        try:
            return await asyncio.wait_for(asyncio.shield(running), _WAIT_S)
        except TimeoutError:
            raise Unavailable("importance: it takes longer than usual: ask again for the result") from None

    def _start(self, key: Key, version: str, compute: Callable[[], Explained]) -> asyncio.Future[Explained]:
        if len(self._running) > _MOST_WAITING:
            raise Unavailable(f"importance: {len(self._running)} experiments are being looked at: ask again")
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "importance")
        future = asyncio.get_running_loop().run_in_executor(self._worker, compute)
        self._running[key] = future
        future.add_done_callback(functools.partial(self._keep, key, version))
        return future

    def _keep(self, key: Key, version: str, future: asyncio.Future[Explained]) -> None:
        del self._running[key]
        if not future.cancelled() and future.exception() is None:
            self._kept[key] = version, time.monotonic(), future.result()
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    def close(self) -> None:
        """Start nothing more."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
