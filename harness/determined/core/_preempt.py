"""Whether the cluster asks this task to make room."""

from __future__ import annotations

import contextlib
import enum
import threading

from determined import errors
from determined.common.api._retry import OUTAGE_CAP_S, OUTAGE_GROWTH, Backoff
from determined.common.api._url import api_path
from determined.launch._folder import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.common.api._session import Session
    from determined.core._distributed import DistributedContext
    from determined.core._reporter import Reporter

POLL_S = 60
# The acknowledgement is queued behind what is still to be sent; so long the caller waits before it saves its
# checkpoint anyhow. It is sent at the end of the context at the latest, or left to the agent.
_ACK_WAIT_S = 5.0


class PreemptMode(enum.Enum):
    """Who may call `should_preempt()` in a job of several workers.

    WorkersAskChief: all together; the chief asks the master and tells the others. ChiefOnly: the chief alone.
    WorkersAskMaster: each for itself.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Tells when to save a checkpoint and exit. Get it as `core_context.preempt`.

    A thread asks the master; `should_preempt()` only looks at what it knows, and may be called after every step.
    """

    def __init__(
        self,
        session: Session,
        allocation_id: str,
        dist: DistributedContext,
        reporter: Reporter,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    ) -> None:
        # Own connections: closing them ends a long poll that is under way.
        self._session = session.clone()
        self._path = api_path("allocations", allocation_id, "signals")
        self._allocation_id = allocation_id
        self._dist = dist
        self._mode = preempt_mode
        self._reporter = reporter
        self._preempt = False
        self._acked = False
        self._ended: errors.AllocationEnded | None = None
        self._end_detail = ""
        self._goes_on = Progress.of_this_process()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> PreemptContext:
        """Ask once, and then start the thread that goes on asking; on the chief only, unless all ask the master.

        Raises:
            AllocationEnded: The cluster has ended this allocation already.
        """
        if self._dist.rank != 0 and self._mode is not PreemptMode.WorkersAskMaster:
            return self
        with contextlib.suppress(errors.APIException):  # the thread goes on until the master is back
            self._ask(0)
        if self._ended is not None:
            raise self._ended
        self._thread = threading.Thread(target=self._watch, name="determined-preempt", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._session.close()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """True once the cluster wants this task to save a checkpoint and exit with status 0.

        In a job of several workers all of them call this at the same point of their work, and get the same answer,
        unless `core.init(preempt_mode=…)` says otherwise.

        Args:
            auto_ack: Acknowledge the first True at once, which makes exiting mean "start me again later".

        Raises:
            AllocationEnded: The cluster has ended this allocation; there is nobody to save a checkpoint for.
            RuntimeError: This worker is not the chief, and `preempt_mode` is `ChiefOnly`.
            DistributedError: Another worker is gone, or has not called this.
        """
        self._goes_on.note()
        if self._mode is PreemptMode.ChiefOnly and self._dist.rank != 0:
            raise RuntimeError(
                "should_preempt() may be called by the chief (rank 0) only, because preempt_mode is ChiefOnly, but "
                f"this is rank {self._dist.rank}"
            )
        if self._mode is PreemptMode.WorkersAskChief and self._dist.size > 1:
            return self._ask_chief(auto_ack)
        if self._ended is not None:
            raise self._ended
        if self._preempt and auto_ack and not self._acked:
            self.acknowledge_preemption_signal()
        return self._preempt

    def _ask_chief(self, auto_ack: bool) -> bool:
        is_chief = self._dist.rank == 0
        known = (self._preempt, self._ended is not None, self._end_detail) if is_chief else None
        # Not into `_preempt`: the thread may have set it meanwhile.
        preempt, has_ended, detail = self._dist.broadcast(known)
        if has_ended:
            raise self._ended or errors.AllocationEnded(self._allocation_id, detail)
        # One acknowledgement speaks for the whole task.
        if preempt and auto_ack and is_chief and not self._acked:
            self.acknowledge_preemption_signal()
        return preempt

    def acknowledge_preemption_signal(self) -> None:
        """Tell the master that this task exits before its work is done, and is to be started again later.

        Raises:
            AllocationEnded, APIException: The master refused this, or an earlier report.
        """
        self._acked = True
        self._reporter.post("ack", wait_s=_ACK_WAIT_S)

    def _ask(self, timeout_s: int) -> None:
        try:
            answer = self._session.get(
                self._path + "/preemption", {"timeout_seconds": timeout_s}, timeout_s=timeout_s + 10.0, max_tries=1
            ).json()
        except (errors.UnauthenticatedException, errors.ForbiddenException) as e:
            self._end_detail = e.message.partition(";")[0]
            self._ended = errors.AllocationEnded(self._allocation_id, self._end_detail)
            self._reporter.end_allocation(self._ended)
            return
        if answer.get("preempt"):
            self._preempt = True

    def _watch(self) -> None:
        backoff = Backoff(base_s=0.2, cap_s=OUTAGE_CAP_S, growth=OUTAGE_GROWTH)
        while not (self._closed.is_set() or self._preempt or self._ended):
            try:
                self._ask(POLL_S)
                backoff = Backoff(base_s=0.2, cap_s=OUTAGE_CAP_S, growth=OUTAGE_GROWTH)
            except errors.APIException as e:
                self._closed.wait(backoff.next(e.retry_after_s))


class DummyPreemptContext(PreemptContext):
    """Stands in where nobody preempts."""

    def __init__(self) -> None:
        self._acked = False

    def start(self) -> PreemptContext:
        """Nothing to start."""
        return self

    def close(self) -> None:
        """Nothing to end."""

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """False."""
        return False

    def acknowledge_preemption_signal(self) -> None:
        """There was no signal."""
