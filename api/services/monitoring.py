"""What Prometheus reads from an API process. docs/monitoring.md lists the metrics."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from importlib.metadata import version

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from api.errors import DATABASE_ERRORS
from api.middleware.measured import Requests
from api.queries import monitoring as queries
from database.session import Database
from database.types import utc_now

log = structlog.get_logger()

#: Seconds for which one look at the database serves all who ask: scrapes can't load it.
FRESH_S = 5.0
#: Seconds that an answer waits for the database; then it says that the database is away, and has all the rest.
_LONGEST_WAIT_S = 3.0
_LONGEST_STATEMENT_S = 5
#: What is committed later than it says, by so much, is still found.
_OVERLAP = timedelta(seconds=120)
#: The cause of an end is recorded after the end. One that has none after so long has none.
_SETTLED = timedelta(seconds=60)
_START_BUCKETS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class Monitoring:
    """The metrics of one API process.

    Attributes:
        registry: All of them.
        requests: What measures each request.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Requests(self.registry)
        self._records: Records | None = None
        ProcessCollector(registry=self.registry)
        Info("undeterred_build", "The release that this process is of", registry=self.registry).info(
            {"version": version("undeterred")}
        )

    def follow(self, database: Database) -> None:
        """Export what the records say as well, until `close`."""
        self._records = Records(database)
        self.registry.register(self._records)

    def close(self) -> None:
        """Leave the database alone from now on."""
        if self._records is not None:
            self.registry.unregister(self._records)
            self._records.close()
            self._records = None

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics as they are now, in the format that a header `Accept` asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class Records(Collector):
    """Metrics of the records, read when Prometheus asks for them.

    Counters begin at 0 with the process, as Prometheus expects it of them: they have what was recorded since then, by
    all processes of the cluster. Of several API processes each counts the same.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1, "monitoring")
        self._lock = threading.Lock()
        self._reading: Future[list[Metric]] | None = None
        self._began = 0.0
        self._ends, self._starts, self._task_ends = _News(), _News(), _News()
        self._ended = Counter(
            "undeterred_allocations_ended", "Allocations that ended, by cause", ["kind", "cause"], registry=None
        )
        self._start_seconds = Histogram(
            "undeterred_allocation_start_seconds",
            "Seconds from the slots of an allocation until its harness first asked for something",
            ["kind"],
            buckets=_START_BUCKETS,
            registry=None,
        )
        self._tasks_ended = Counter(
            "undeterred_tasks_ended", "Tasks that ended, trials among them, by state", ["kind", "state"], registry=None
        )

    def close(self) -> None:
        """Wait for the look at the database that is under way, if any."""
        self._thread.shutdown(cancel_futures=True)

    def collect(self) -> Iterable[Metric]:
        """What the records say, at most `FRESH_S` old; without an answer of the database that it is away."""
        with self._lock:
            if self._reading is None or (self._reading.done() and time.monotonic() - self._began >= FRESH_S):
                self._began = time.monotonic()
                self._reading = self._thread.submit(self._read)
            reading = self._reading
        found: list[Metric] = []
        try:
            found = reading.result(_LONGEST_WAIT_S)
        except TimeoutError:
            log.warning("metrics of the records are left out: the database is slow", waited_s=_LONGEST_WAIT_S)
        except DATABASE_ERRORS as error:
            log.warning("metrics of the records are left out: the database does not answer", error=str(error))
        yield GaugeMetricFamily(
            "undeterred_database_up", "1 if the database answered, else 0", value=1.0 if found else 0.0
        )
        yield from found

    def _read(self) -> list[Metric]:
        began = time.monotonic()
        with self._database.read() as session:
            queries.limit_time(session, _LONGEST_STATEMENT_S)
            found = [*_of_pools(session), *_of_states(session), *_of_outbox(session)]
            self._note_news(session)
        for counted in (self._ended, self._start_seconds, self._tasks_ended):
            found += counted.collect()
        took = time.monotonic() - began
        found.append(_gauge("undeterred_database_read_seconds", "Seconds that this look at the database took", took))
        return found

    def _note_news(self, session: Session) -> None:
        settled_by = utc_now() - _SETTLED
        for end in self._ends.read(session, queries.ends, lambda end: end.what is not None or end.at < settled_by):
            self._ended.labels(end.kind, end.what or "unknown").inc()
        for start in self._starts.read(session, queries.starts):
            self._start_seconds.labels(start.kind).observe(start.seconds)
        for end in self._task_ends.read(session, queries.task_ends):
            self._tasks_ended.labels(end.kind, end.what).inc()


class _News:
    """What is new since the last look, each once. What is known of the past is bounded by `_OVERLAP`."""

    def __init__(self) -> None:
        self._since = utc_now()
        self._seen: set[tuple[str, datetime]] = set()

    def read(
        self,
        session: Session,
        query: Callable[..., Sequence[queries.New]],
        is_complete: Callable[[queries.New], bool] = lambda _: True,
    ) -> list[queries.New]:
        now = utc_now()
        rows = query(session, self._since)
        new = [row for row in rows if (row.id, row.at) not in self._seen and is_complete(row)]
        until = rows[-1].at if len(rows) >= queries.MOST else now
        self._since = max(self._since, until - _OVERLAP)
        known = self._seen | {(row.id, row.at) for row in new}
        self._seen = {(id_, at) for id_, at in known if at > self._since}
        return new


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=value)


def _labelled(name: str, told: str, labels: list[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, told, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _of_pools(session: Session) -> list[Metric]:
    queued, hosts, rows = queries.queues(session), queries.hosts(session), queries.open_allocations(session)
    used: Tally[str] = Tally()
    open_: Tally[tuple[str, str, str]] = Tally()
    for pool, kind, state, count, slots in rows:
        used[pool] += slots
        open_[pool, kind, state] += count
    pools = sorted({*queries.pools(session), *queued, *hosts, *used})

    def each(name: str, told: str, of: Callable[[str], float]) -> Metric:
        return _labelled(name, told, ["pool"], [([pool], of(pool)) for pool in pools])

    nothing, nowhere = queries.Queue(), queries.Hosts()
    agents = [
        ([pool, state], float(getattr(hosts.get(pool, nowhere), state)))
        for pool in pools
        for state in ("connected", "disconnected")
    ]
    return [
        each("undeterred_queue_waiting", "Requests that wait for slots", lambda at: queued.get(at, nothing).waiting),
        each("undeterred_queue_slots_wanted", "Slots that they want", lambda at: queued.get(at, nothing).slots),
        each(
            "undeterred_queue_oldest_wait_seconds",
            "Seconds that the oldest of them has waited",
            lambda at: queued.get(at, nothing).oldest_s,
        ),
        each("undeterred_slots", "Slots that can be given out or are", lambda at: hosts.get(at, nowhere).slots),
        each("undeterred_slots_used", "Slots that allocations have", lambda at: used[at]),
        _labelled("undeterred_agents", "Agents, by whether they are connected", ["pool", "state"], agents),
        _labelled(
            "undeterred_allocations",
            "Allocations that have not ended",
            ["pool", "kind", "state"],
            [(key, count) for key, count in open_.items()],
        ),
    ]


def _of_states(session: Session) -> list[Metric]:
    experiments, trials = queries.experiments(session), queries.trials(session)
    return [
        _labelled("undeterred_experiments", "Experiments", ["state"], [([key], n) for key, n in experiments.items()]),
        _labelled(
            "undeterred_trials", "Trials that have not ended", ["state"], [([key], n) for key, n in trials.items()]
        ),
    ]


def _of_outbox(session: Session) -> list[Metric]:
    waiting, oldest_s = queries.outbox(session)
    return [
        _gauge("undeterred_outbox_waiting", "Messages that wait for Temporal, 50,000 at most", waiting),
        _gauge("undeterred_outbox_oldest_seconds", "Seconds since the oldest of them was written", oldest_s),
    ]
