"""The two threads that tell the master what happens in this task.

Everything goes through one queue, in order: metrics, progress, status, operations, checkpoints, acknowledgements.
Putting a report costs the training loop some microseconds; the conversion, the JSON, the network and the disk are the
threads'. The first of them sends. An answer that says "later" (429, 502-504), and none at all, is retried with growing,
jittered waiting times, for as long as it takes. Each request keeps its idempotency key while it is retried. A refusal
is raised once, from the next call or from `close`. 401 and 403 mean that the cluster has ended this allocation: nothing
more is sent.

The second thread sleeps until a request fails or is not answered for `SPOOL_AFTER_S`. Then it takes the queue over and
puts on disk what waits (`_backlog`, `_spool`), within milliseconds, until the first has delivered all of it: however
long the master is away, memory stays bounded, the training loop is not held up, and a process that is killed loses
nothing. One that ends leaves the rest behind, where the agent looks for it (`DET_SPOOL_DIR`).
"""

from __future__ import annotations

import os
import queue
import threading
import time

from determined import errors
from determined.common.api._retry import OUTAGE_CAP_S, OUTAGE_GROWTH, Backoff, is_transient
from determined.common.api._url import api_path
from determined.core._backlog import BATCH_BYTES, BATCH_LIMIT, Backlog, End, Flight, Job, Metrics, Post

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from determined.common.api._session import Session
    from determined.core._backlog import Item, Send

QUEUE_LIMIT = 10_000
# Between two sends of the same burst: keeps a loop of very short steps from sharing the interpreter with one request
# a step. The first report after a pause leaves at once, and so does everything when somebody waits.
LINGER_S = 0.05
SPOOL_AFTER_S = 0.5
# The same for the disk: what a process that is killed may lose of an outage.
_SPOOL_LINGER_S = 0.02
_DISK_RETRY_S = 30.0
# How long the end of a process waits for a master that does not answer, if what is left behind is delivered by the
# agent: long enough for a restart of the master, which then spares everybody the longer way.
LEAVE_AFTER_S = 10.0
# … and if nobody would deliver it.
EXIT_LIMIT_S = 3600.0
_SERVER_ERROR_TRIES = 6


class _Sender:
    """Sends one request, through outages. Handed to `Job.run`."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def __call__(self, method: str, path: str, json: Any = None, body: bytes | None = None, **kwargs: Any) -> Any:
        """Send a request until there is an answer; return its JSON.

        Raises:
            APIException: Refused. `maybe_applied` tells whether an earlier attempt may have worked.
            AllocationEnded: Refused with 401 or 403.
        """
        return self._reporter._send(method, path, json, body, kwargs)  # pyright: ignore[reportPrivateUsage]


class Reporter:
    """See the module's docstring.

    Args:
        session: With the rights of the allocation.
        allocation_id: Whose acknowledgements these are.
        trial_id, run_id: Whose metrics these are; None for tasks that are no trials.
        spool_folder: Where reports are kept while the master is away.
        is_collected: Whether an agent delivers what is left there after the end of this process.
    """

    def __init__(
        self,
        session: Session,
        allocation_id: str,
        trial_id: int | None = None,
        run_id: int | None = None,
        *,
        spool_folder: str,
        is_collected: bool = False,
    ) -> None:
        self._session = session
        self._allocation_id = allocation_id
        self._run_id = run_id
        trial = f"/api/v1/trials/{trial_id}"
        self._paths = {
            "metrics": f"{trial}/metrics/batch",
            "curves": f"{trial}/metrics/curves",
            "progress": f"{trial}/progress",
            "status": f"{trial}/runner/metadata",
            "ack": api_path("allocations", allocation_id, "signals", "ack_preemption"),
        }
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._spool_folder = spool_folder
        self._is_collected = is_collected
        self._errors: list[BaseException] = []
        self._backlog = Backlog(spool_folder, self._wire, self._errors.append)
        self._changed = self._backlog.changed
        # While it is set, the queue is the second thread's: else two would take from it, and mix up the order.
        self._is_keeping = False
        self._flight: Flight | None = None
        self._in_flight = threading.Event()
        self._trouble = threading.Event()
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self._closed = False
        self._give_up_at: float | None = None
        self._ended: errors.AllocationEnded | None = None
        self._abandoned: errors.APIException | None = None
        self._over = threading.Event()
        self._has_warned_of_disk = False
        self._sent_count = 0
        self._key_prefix = _random_key()
        self._last_send = 0.0
        self._thread: threading.Thread | None = None
        self._keeper: threading.Thread | None = None
        self._thread_lock = threading.Lock()

    # -- called by the training code

    def put_metrics(
        self, group: str, steps: int | None, metrics: dict[str, Any], batches: list[dict[str, Any]] | None = None
    ) -> None:
        """Queue a report. Blocks only when 10,000 things are waiting in memory.

        Raises:
            AllocationEnded, APIException, InvalidDataTypeException: Something queued before was refused.
        """
        if self._errors or self._ended or self._closed:
            self.check()
        if self._queue.qsize() >= QUEUE_LIMIT:
            self._wait_for_room()
        self._queue.put(Metrics(group, steps, time.time(), metrics, batches))
        if self._thread is None:
            self._start()

    def offer_metrics(self, group: str, metrics: dict[str, Any]) -> None:
        """Queue a report without a step, from a thread beside the training: never blocks, and raises nothing.

        What was refused is the training code's to learn. Left out while 10,000 things wait.
        """
        if self._ended is None and not self._closed and self._queue.qsize() < QUEUE_LIMIT:
            self._queue.put(Metrics(group, None, time.time(), metrics, None))
            self._start()

    def later(self, run: Callable[[Send], Any]) -> None:
        """Do something after all that is queued; nobody waits for it, so `run` has to deal with its errors.

        Raises:
            AllocationEnded, APIException, InvalidDataTypeException: Something queued before was refused.
        """
        self.check()
        self._queue.put(Job(run))
        self._start()

    def post(self, kind: str, body: Any = None, *, wait_s: float = 0.0) -> None:
        """Queue a message that nobody needs an answer to; what goes wrong with it is raised from a later call.

        Args:
            kind: "progress" or "status", of which only the last one that waits is sent, or "ack".
            body: What JSON can say.
            wait_s: How long to wait for it, so that it is normally sent on return.

        Raises:
            AllocationEnded, APIException, InvalidDataTypeException: Something queued before was refused.
        """
        self.check()
        if self._queue.qsize() >= QUEUE_LIMIT:
            self._wait_for_room()
        message = Post(kind, body)
        self._queue.put(message)
        self._start()
        if wait_s > 0:
            self._hurry.set()
            if message.done.wait(wait_s):
                self.check()

    def call(self, run: Callable[[Send], Any], *, despite_errors: bool = False) -> Any:
        """Do something after all that is queued, and return its result. Waits for the end of an outage.

        With `despite_errors` it is done even if something queued before was refused; that is raised later.

        Raises:
            Whatever `run` raises; AllocationEnded, APIException, InvalidDataTypeException: Something queued before
            was refused.
        """
        if not despite_errors:
            self.check()
        job = Job(run)
        self._queue.put(job)
        self._start()
        self._hurry.set()
        _wait(job.done)
        if job.error is not None:
            raise job.error
        if not despite_errors:
            self.check()
        return job.result

    def send_curves(self, body: dict[str, Any]) -> None:
        """Send curves of this run after all that is queued, and wait until they are stored.

        Raises: As `call`.
        """
        path = self._paths["curves"]
        self.call(lambda send: send("POST", path, body | {"trialRunId": self._run_id}))

    def flush(self) -> None:
        """Wait until all that is queued has been sent.

        Raises:
            AllocationEnded, APIException, InvalidDataTypeException: Something queued was refused.
        """
        self.call(lambda send: None)

    def check(self) -> None:
        """Raise what was refused since the last call, if anything."""
        if self._ended is not None:
            raise self._ended
        if self._errors:
            raise self._errors.pop(0)
        if self._closed:
            raise RuntimeError("the core context is closed: report inside of `with core.init()`")

    def end_allocation(self, e: errors.AllocationEnded) -> None:
        """Learn, from here or from elsewhere, that the cluster has ended this allocation."""
        if self._ended is None:
            self._ended = e
            _logger().error(str(e))
        with self._changed:
            self._changed.notify_all()

    def close(self, give_up_after_s: float | None = None) -> None:
        """Send what is queued, end the threads, and raise what was refused.

        If the master does not answer, what is on disk is left behind after `LEAVE_AFTER_S`: the agent delivers it.

        Args:
            give_up_after_s: The longest to wait if it can't be left behind; None for `EXIT_LIMIT_S`.

        Raises:
            AllocationEnded, APIException, InvalidDataTypeException: Something queued was refused.
        """
        began = time.monotonic()
        limit_s = EXIT_LIMIT_S if give_up_after_s is None else give_up_after_s
        self._give_up_at = began + (max(limit_s, 2 * LEAVE_AFTER_S) if self._is_collected else limit_s)
        self._closing.set()
        self._hurry.set()
        with self._thread_lock:
            thread = self._thread
            if thread is not None:
                self._queue.put(End())
        has_left = False
        while thread is not None and thread.is_alive() and not has_left:
            thread.join(min(0.5, LEAVE_AFTER_S))
            has_left = self._is_collected and time.monotonic() - began >= LEAVE_AFTER_S and self._leave_if_stuck()
        self._over.set()
        self._session.close()
        if thread is not None:
            thread.join(5.0)  # at once, but for what it can't be called back from, such as a question to the DNS
        self._end_keeper()
        has_left = self._close_backlog() and self._is_collected
        try:
            self.check()
            if self._abandoned is not None and not has_left:
                raise self._abandoned
        finally:
            self._closed = True

    def _leave_if_stuck(self) -> bool:
        """Leave everything on disk if the request that is under way gets no answer. False: wait on."""
        with self._changed:
            flight = self._flight
            if flight is None or time.monotonic() - flight.since < LEAVE_AFTER_S:
                return False
            if not self._leave(flight):
                return False
            count = self._backlog.waiting
        if count:
            _logger().warning(
                f"the master does not answer: {count} reports are left in {self._backlog.spool_path}, and the agent "
                "delivers them when it is back"
            )
        return True

    def _leave(self, flight: Flight | None) -> bool:
        """Put all of it on disk, and send nothing more. With the lock held. False: the disk does not take it."""
        self._backlog.drain(self._queue)
        try:
            if not self._backlog.store(flight, courtesies=True):
                return False
            self._backlog.sync()
        except OSError as e:
            self._warn_of_disk(e)
            return False
        self._abandoned = self._abandoned or errors.MasterNotFoundException("the master does not answer")
        self._changed.notify_all()
        return True

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            for event in (self._in_flight, self._trouble):
                event.set()
            self._queue.put(End())  # in case it waits there
            self._keeper.join(5.0)

    def _close_backlog(self) -> bool:
        """Close the file on disk and release callers that wait for a job. True if what was not sent is on disk."""
        with self._changed:
            is_safe = self._abandoned is None or self._leave(self._flight)
            if self._abandoned is not None:
                self._backlog.fail(self._abandoned)
                if is_safe and not self._is_collected and self._backlog.waiting:
                    _logger().error(
                        f"{self._backlog.waiting} reports were not sent; they are in {self._backlog.spool_path}"
                    )
            try:
                self._backlog.close()
            except OSError as e:
                self._warn_of_disk(e)
        return is_safe

    # -- the thread that sends

    def _start(self) -> None:
        if self._thread is None:
            with self._thread_lock:
                if self._thread is None:
                    self._keeper = threading.Thread(target=self._guard, name="determined-spool", daemon=True)
                    self._keeper.start()
                    thread = threading.Thread(target=self._run, name="determined-reporter", daemon=True)
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        self._deliver_leftovers()
        while True:
            try:
                flight = self._next()
            except OSError as e:  # the disk
                self._errors.append(e)
                continue
            if flight is None:
                return
            self._fly(flight)

    def _next(self) -> Flight | None:
        """What is to be sent next; waits for it. None at the end."""
        while True:
            with self._changed:
                while self._is_keeping and not self._backlog and self._abandoned is None:
                    self._changed.wait()
                if self._abandoned is not None:
                    return None
                if not self._is_keeping:
                    # Not more than a batch ahead: the limit of the queue is what bounds the memory.
                    self._backlog.drain(self._queue, BATCH_LIMIT)
                if self._backlog:
                    flight = self._backlog.take()
                    if flight is not None:
                        self._take_off(flight)
                    return flight
            item = self._queue.get()
            self._linger()
            with self._changed:
                self._backlog.add(item)

    def _take_off(self, flight: Flight) -> None:
        self._flight = flight
        self._in_flight.set()

    def _linger(self) -> None:
        if self._hurry.is_set():
            self._hurry.clear()
            return
        wait_s = self._last_send + LINGER_S - time.monotonic()
        if wait_s > 0 and not self._closing.is_set():
            self._hurry.wait(wait_s)
            self._hurry.clear()

    def _wait_for_room(self) -> None:
        with self._changed:
            while self._queue.qsize() >= QUEUE_LIMIT and self._ended is None:
                self._start()
                self._changed.wait(1.0)
        self.check()

    def _fly(self, flight: Flight) -> None:
        try:
            if flight.job is not None:
                self._do(flight.job)
            else:
                self._deliver(flight)
        except Exception as e:  # noqa: BLE001 - the thread must live on, whatever it was
            self._errors.append(e)
            self._skip(flight)
        finally:
            for item in flight.items:
                if isinstance(item, Post):
                    item.done.set()
            with self._changed:
                self._flight = None
                if not self._over.is_set():
                    self._in_flight.clear()
                self._changed.notify_all()

    def _skip(self, flight: Flight) -> None:
        """After an error that nobody foresaw: what would meet it again and again is left out."""
        try:
            with self._changed:
                if flight.bodies:
                    self._backlog.passed(flight, len(flight.bodies))
        except OSError as e:
            self._errors.append(e)

    def _do(self, job: Job) -> None:
        try:
            if self._ended is not None:
                raise self._ended
            job.result = job.run(_Sender(self))
        except Exception as e:  # noqa: BLE001 - it is raised in the thread that waits
            job.error = e
        finally:
            job.done.set()

    def _deliver(self, flight: Flight) -> None:
        if flight.bodies is None:
            flight.bodies = self._backlog.encode(flight.items)
        while flight.bodies and self._ended is None and self._abandoned is None:
            count, size = 1, len(flight.bodies[0])
            while count < len(flight.bodies) and size + len(flight.bodies[count]) <= BATCH_BYTES:
                size += len(flight.bodies[count])
                count += 1
            self._send_entries(flight, flight.bodies[: count if flight.kind == "metrics" else 1])
        if self._ended is not None:
            with self._changed:
                self._backlog.clear()

    def _send_entries(self, flight: Flight, bodies: list[bytes]) -> None:
        body: bytes | None = bodies[0]
        if flight.kind == "metrics":
            body = b'{"reports":[' + b",".join(bodies) + b"]}"
        elif body == b"null":
            body = None
        try:
            self._send("POST", self._paths[flight.kind], None, body, {})
        except errors.AllocationEnded:
            return  # end_allocation has kept it
        except errors.APIException as e:
            if self._abandoned is not None:
                return  # raised by `close`, if nobody else delivers it
            if len(bodies) > 1 and 400 <= e.status < 500:
                # One bad report must not take its neighbours with it.
                half = len(bodies) // 2
                self._send_entries(flight, bodies[:half])
                if self._abandoned is None:
                    self._send_entries(flight, bodies[half:])
                return
            self._errors.append(e)
        with self._changed:
            self._backlog.passed(flight, len(bodies))

    def _wire(self, item: Metrics | Post) -> Any:
        if isinstance(item, Post):
            return item.body
        from determined.core._convert import to_json_metrics

        what = f"{item.group} metric"
        metrics: dict[str, Any] = {"avgMetrics": to_json_metrics(item.metrics, what)}
        if item.batches is not None:
            metrics["batchMetrics"] = [to_json_metrics(b, what) for b in item.batches]
        return {
            "group": item.group,
            "trialRunId": self._run_id,
            "stepsCompleted": item.steps,
            "reportTime": timestamp(item.time_s),
            "metrics": metrics,
        }

    def _send(self, method: str, path: str, json: Any, body: bytes | None, kwargs: dict[str, Any]) -> Any:
        self._sent_count += 1
        key = f"{self._key_prefix}-{self._sent_count}" if method != "GET" else None
        backoff, down_since, warned_at, server_errors = Backoff(cap_s=OUTAGE_CAP_S, growth=OUTAGE_GROWTH), 0.0, 0.0, 0
        maybe_applied = False
        while True:
            if self._ended is not None:
                raise self._ended
            if self._abandoned is not None:
                raise self._abandoned
            try:
                answer = self._session.request(
                    method, path, json=json, body=body, idempotency_key=key, max_tries=1, **kwargs
                ).json()
                if down_since:
                    _logger().warning(f"the master answers again after {time.monotonic() - down_since:.0f} s")
                    self._trouble.clear()
                self._last_send = time.monotonic()
                return answer
            except (errors.UnauthenticatedException, errors.ForbiddenException) as e:
                ended = errors.AllocationEnded(self._allocation_id, e.message.partition(";")[0])
                self.end_allocation(ended)
                raise ended from e
            except errors.APIException as e:
                maybe_applied = e.maybe_applied = maybe_applied or e.maybe_applied
                now = time.monotonic()
                server_errors += 1 if e.status >= 500 and not is_transient(e) else 0
                if not is_transient(e) and not 0 < server_errors < _SERVER_ERROR_TRIES:
                    self._trouble.clear()
                    raise
                self._trouble.set()
                down_since = down_since or now
                if self._give_up_at is not None and now >= self._give_up_at:
                    self._abandoned = self._abandoned or e
                    raise
                if now - warned_at > 60 and backoff.count > 2:
                    warned_at = now
                    with self._changed:
                        waiting = self._queue.qsize() + self._backlog.waiting
                    _logger().warning(
                        f"the master does not take reports ({e.message}); training goes on, {waiting} reports wait"
                    )
                self._pause(backoff.next(e.retry_after_s))

    def _pause(self, delay_s: float) -> None:
        if self._give_up_at is not None:
            delay_s = min(delay_s, max(0.0, self._give_up_at - time.monotonic()))
        self._over.wait(delay_s)

    def _deliver_leftovers(self) -> None:
        """What an earlier process of this container left behind comes first."""
        from determined.core._spool import leftovers

        try:
            for spool in leftovers(self._spool_folder):
                while spool.waiting and self._ended is None and self._abandoned is None:
                    with self._changed:
                        kind, bodies = spool.read(BATCH_LIMIT, BATCH_BYTES)
                        flight = Flight(kind, bodies=bodies, spool=spool)
                        self._take_off(flight)
                    if kind not in self._paths:  # of another release
                        raise OSError(f"{spool.path} has entries of an unknown kind {kind!r}")
                    self._fly(flight)
                spool.close()
        except OSError as e:
            _logger().warning(f"what an earlier process left to report can't be read: {e}")

    # -- the thread that keeps reports on disk

    def _guard(self) -> None:
        while True:
            self._in_flight.wait()
            self._trouble.wait(SPOOL_AFTER_S)
            with self._changed:
                if self._has_stopped():
                    return
                flight = self._flight
                is_late = flight is not None and time.monotonic() - flight.since >= SPOOL_AFTER_S
                if flight is None or not (is_late or self._trouble.is_set()):
                    continue
                self._is_keeping = True
            pause_s = 0.0
            try:
                self._keep()
            except OSError as e:
                pause_s = _DISK_RETRY_S
                self._warn_of_disk(e)
            finally:
                with self._changed:
                    self._is_keeping = False
                    self._changed.notify_all()
            if pause_s:
                self._over.wait(pause_s)

    def _has_stopped(self) -> bool:
        return self._over.is_set() or self._ended is not None or self._abandoned is not None

    def _keep(self) -> None:
        """Put what comes on disk until all of it is delivered. Raises: OSError: the disk does not take it."""
        while True:
            with self._changed:
                # Piece by piece: a disk that takes no more must leave the rest in the queue, whose limit holds.
                while self._backlog.store(self._flight) and not self._queue.empty():
                    self._backlog.drain(self._queue, len(self._backlog) + BATCH_LIMIT)
                self._changed.notify_all()
                if (self._flight is None and not self._backlog) or self._has_stopped():
                    return
            time.sleep(_SPOOL_LINGER_S)
            try:
                item = self._queue.get(timeout=0.5)
            except queue.Empty:
                continue
            with self._changed:
                self._backlog.add(item)

    def _warn_of_disk(self, e: OSError) -> None:
        if not self._has_warned_of_disk:
            self._has_warned_of_disk = True
            _logger().warning(
                f"reports can't be kept on disk while the master is away ({e.strerror or e}; {self._spool_folder}): up "
                f"to {QUEUE_LIMIT} of them wait in memory, then the training waits too"
            )


def timestamp(time_s: float) -> str:
    """RFC 3339 in UTC with microseconds."""
    seconds = int(time_s)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int((time_s - seconds) * 1e6):06d}Z"


def _random_key() -> str:
    return os.urandom(12).hex()


def _wait(event: threading.Event) -> None:
    # In slices, so that a Ctrl-C is noticed on every platform.
    while not event.wait(1.0):
        pass


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.core")
