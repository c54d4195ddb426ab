"""What waits to be sent, in its order: in memory as long as the master answers, then on disk.

The order holds across both: on the line, what is on disk is a mark, "the next n entries of the spool". Whatever is put
on disk was at the end of the line, so that the spool's own order is the line's.
"""

from __future__ import annotations

import collections
import queue
import threading
import time

from determined.core._spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable, Protocol, Union

    class Send(Protocol):
        """Sends one request, through outages: see `_reporter`."""

        def __call__(
            self, method: str, path: str, json: Any = None, body: bytes | None = None, **kwargs: Any
        ) -> Any: ...

    Item = Union["Metrics", "Post", "Job", "End"]

# What waits after an outage goes in requests as large as the master's longest blocks of reports (3,840): it packs a
# request of 960 or more on its way in, at a fraction of what single rows cost it.
BATCH_LIMIT = 3840
BATCH_BYTES = 4 << 20
# Written at once: the lock is not held for long, and a disk that is full part-way keeps what fits.
_WRITE_LIMIT = 1000


class Metrics:
    """One report of metrics, as the training loop handed it over."""

    def __init__(
        self,
        group: str,
        steps: int | None,
        time_s: float,
        metrics: dict[str, Any],
        batches: list[dict[str, Any]] | None,
    ) -> None:
        self.group = group
        self.steps = steps
        self.time_s = time_s
        self.metrics = metrics
        self.batches = batches


class Post:
    """A message that nobody waits for.

    Attributes:
        kind: "ack", "progress" or "status", see `_spool`.
        done: Set once it is sent, refused, or safe on disk.
    """

    def __init__(self, kind: str, body: Any) -> None:
        self.kind = kind
        self.body = body
        self.done = threading.Event()

    @property
    def is_courtesy(self) -> bool:
        """Whether only the last one of its kind matters, and nothing is decided by it."""
        return self.kind != "ack"


class Job:
    """Something to do in the line's order, with a function that sends requests; a caller waits for its result."""

    def __init__(self, run: Callable[[Send], Any]) -> None:
        self.run = run
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class End:
    """Nothing follows."""


class Stored:
    """The next `count` entries of the spool."""

    def __init__(self, count: int) -> None:
        self.count = count


class Flight:
    """What is being sent: entries of one kind, or a job.

    Attributes:
        kind, items: Of the entries; `items` as they were handed over, if they were in memory.
        bodies: The entries as JSON, without those that arrived. None: they are being encoded.
        spool: Where they are on disk; None if they are not.
        job: The job instead.
        since: When it began, monotonic, in seconds.
    """

    def __init__(
        self,
        kind: str = "",
        items: list[Metrics | Post] | None = None,
        bodies: list[bytes] | None = None,
        spool: Spool | None = None,
        job: Job | None = None,
    ) -> None:
        self.kind = kind
        self.items = items or []
        self.bodies = bodies
        self.spool = spool
        self.job = job
        self.since = time.monotonic()


class Backlog:
    """The line. Every method but `encode` is called with the lock `changed` held.

    Args:
        folder: Where the spool is to be; it is made when something has to wait.
        to_wire: An item as what JSON can say.
        on_error: Told of an item that has no form in JSON; it is left out.
    """

    def __init__(
        self, folder: str, to_wire: Callable[[Metrics | Post], Any], on_error: Callable[[Exception], None]
    ) -> None:
        self.changed = threading.Condition()
        self._to_wire = to_wire
        self._on_error = on_error
        self._line: collections.deque[Item | Stored] = collections.deque()
        self._folder = folder
        self._spool = Spool(folder)

    def __len__(self) -> int:
        return len(self._line)

    @property
    def waiting(self) -> int:
        """How many reports wait."""
        return sum(item.count if isinstance(item, Stored) else isinstance(item, (Metrics, Post)) for item in self._line)

    @property
    def spool_path(self) -> str:
        """The file of this process; empty if there was never a need for one."""
        return self._spool.path

    def add(self, item: Item) -> None:
        """Put something at the end."""
        self._line.append(item)

    def drain(self, source: queue.SimpleQueue[Item], limit: int | None = None) -> None:
        """Move what is in a queue to the end, as long as the line is shorter than `limit`."""
        moved = False
        while limit is None or len(self._line) < limit:
            try:
                self._line.append(source.get_nowait())
            except queue.Empty:
                break
            moved = True
        if moved:
            self._drop_superseded()
            self.changed.notify_all()

    def take(self) -> Flight | None:
        """The first of what waits, to be sent. What is on disk stays on the line until it has `passed`.

        Returns None at the end. Raises: OSError, if the disk can't be read any more: then what was on it is lost.
        """
        head = self._line[0]
        if isinstance(head, Stored):
            try:
                # not what follows on disk: before it may come what stays in memory, such as progress
                kind, bodies = self._spool.read(min(BATCH_LIMIT, head.count), BATCH_BYTES)
                if not bodies:
                    raise OSError(f"{self._spool.path} ends too early: another process has changed it")
            except OSError:
                self._give_spool_up()
                raise
            return Flight(kind, bodies=bodies, spool=self._spool)
        self._line.popleft()
        if isinstance(head, End):
            return None
        if isinstance(head, Job):
            return Flight(job=head)
        items: list[Metrics | Post] = [head]
        if isinstance(head, Post):
            return Flight(head.kind, items)
        while self._line and len(items) < BATCH_LIMIT and isinstance(self._line[0], Metrics):
            items.append(self._line.popleft())  # type: ignore[arg-type]
        return Flight("metrics", items)

    def passed(self, flight: Flight, count: int) -> None:
        """The first `count` entries of a flight arrived, or were refused for good. Raises: OSError."""
        assert flight.bodies is not None
        del flight.bodies[:count]
        if flight.spool is None:
            return
        if flight.spool is self._spool:
            head = self._line[0]
            assert isinstance(head, Stored)
            head.count -= count
            if not head.count:
                self._line.popleft()
        try:
            flight.spool.advance(count)
        except OSError:
            if flight.spool is self._spool:
                self._give_spool_up()
            raise

    def store(self, flight: Flight | None, *, courtesies: bool = False) -> bool:
        """Put on disk what can be: the flight that is in the air, and all that waits.

        Args:
            flight: What is being sent.
            courtesies: Progress and status too, of which else only the last one is kept, in memory.

        Returns whether nothing is left in memory but jobs (and courtesies). Raises: OSError: the disk does not take
        it; what it took is on disk, the rest is still on the line.
        """
        in_memory = flight if flight is not None and flight.job is None and flight.spool is None else None
        if in_memory is not None and in_memory.bodies is None:
            return False  # what follows must not come before it
        is_courtesy = in_memory is not None and in_memory.kind in ("progress", "status")
        if in_memory is not None and in_memory.bodies and not is_courtesy:
            assert not self._spool.waiting, "what is on disk came before it"
            self._spool.append(in_memory.kind, in_memory.bodies)
            in_memory.spool = self._spool
            self._line.appendleft(Stored(len(in_memory.bodies)))
            _settle(in_memory.items)
        kept: collections.deque[Item | Stored] = collections.deque()
        try:
            while self._line:
                kind = _kind_of(self._line[0], courtesies)
                if not kind:
                    _append(kept, self._line.popleft())
                    continue
                items: list[Any] = []
                for item in self._line:
                    if len(items) == _WRITE_LIMIT or _kind_of(item, courtesies) != kind:
                        break
                    items.append(item)
                bodies = self.encode(items)
                if bodies:
                    self._spool.append(kind, bodies)
                    _append(kept, Stored(len(bodies)))
                for _ in items:
                    self._line.popleft()
                _settle(items)
        finally:
            for item in self._line:
                _append(kept, item)
            self._line = kept
        if in_memory is not None and in_memory.bodies and is_courtesy and courtesies:
            # a copy, at the end: what is in the air must not stand for the entries before it
            self._spool.append(in_memory.kind, in_memory.bodies)
            _append(self._line, Stored(len(in_memory.bodies)))
        return True

    def sync(self) -> None:
        """Wait for the disk. Raises: OSError."""
        self._spool.sync()

    def clear(self) -> None:
        """Forget everything but the jobs, for which callers wait. Raises: OSError."""
        _settle(self._line)
        self._line = collections.deque(item for item in self._line if isinstance(item, (Job, End)))
        self._spool.clear()

    def fail(self, error: BaseException) -> None:
        """Nothing more is done: who waits for a job gets this error."""
        for item in self._line:
            if isinstance(item, Job):
                item.error = error
                item.done.set()
        self._line = collections.deque(item for item in self._line if not isinstance(item, (Job, End)))

    def close(self) -> None:
        """Close the file on disk; its content stays. Raises: OSError."""
        self._spool.close()

    def encode(self, items: Iterable[Metrics | Post]) -> list[bytes]:
        """Items as JSON, but for those that have no form in it."""
        import json

        bodies: list[bytes] = []
        for item in items:
            try:
                bodies.append(json.dumps(self._to_wire(item), separators=(",", ":")).encode())
            except Exception as e:  # noqa: BLE001 - a value of the user's own type may raise anything
                self._on_error(e)
        return bodies

    def _give_spool_up(self) -> None:
        """It can't be read: this process goes on without what is in it. The file stays."""
        self._line = collections.deque(item for item in self._line if not isinstance(item, Stored))
        self._spool.close()
        self._spool = Spool(self._folder)

    def _drop_superseded(self) -> None:
        newest: dict[str, Post] = {item.kind: item for item in self._line if isinstance(item, Post)}
        if not newest:
            return
        line: collections.deque[Item | Stored] = collections.deque()
        for item in self._line:
            if isinstance(item, Post) and item.is_courtesy and newest[item.kind] is not item:
                item.done.set()
            else:
                _append(line, item)
        self._line = line


def _kind_of(item: Item | Stored, courtesies: bool) -> str:
    """The kind of entry that an item is to be on disk; empty if it stays in memory."""
    if isinstance(item, Metrics):
        return "metrics"
    return item.kind if isinstance(item, Post) and (courtesies or not item.is_courtesy) else ""


def _append(line: collections.deque[Item | Stored], item: Item | Stored) -> None:
    """To the end, where two marks become one: an outage of hours must not grow the line."""
    last = line[-1] if line else None
    if isinstance(item, Stored) and isinstance(last, Stored):
        last.count += item.count
    else:
        line.append(item)


def _settle(items: Iterable[Any]) -> None:
    for item in items:
        if isinstance(item, Post):
            item.done.set()
