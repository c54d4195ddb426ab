"""What Prometheus reads from the API."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete, event, select, update
from sqlalchemy.exc import OperationalError

from api.queries import monitoring as queries
from api.services import monitoring
from database.models import Allocation, Outbox, ResourcePool, Trial
from database.types import utc_now
from tests.integration.api.served import Run, Served
from workflows.messages import RecordAgent
from workflows.scheduling.model import AgentSlots


def value(api: Served, name: str, **labels: str) -> float:
    """Of one series as it is now; 0 if there is none."""
    return api.app.state.monitoring.registry.get_sample_value(name, labels) or 0.0


def requests(api: Served, method: str, route: str, status: str) -> float:
    return value(api, "undeterred_http_requests_total", method=method, route=route, status=status)


def routes(api: Served) -> set[str]:
    """Those with a series."""
    found = api.app.state.monitoring.registry.collect()
    return {
        sample.labels["route"] for metric in found for sample in metric.samples if "http_requests_total" in sample.name
    }


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/api/v1/experiments/{}/", "/api/v1/experiments/{experiment_id}", "2xx"),
        ("GET", "/api/v1/experiments/999999", "/api/v1/experiments/{experiment_id}", "4xx"),
        ("GET", "/info", "/info", "2xx"),
        ("GET", "/there/is/no/such/path", "unknown", "4xx"),
        ("GET", "/api/v1/there-is-no-such-path", "unknown", "4xx"),
        ("PURGE", "/there/is/no/such/path", "unknown", "4xx"),
        ("DELETE", "/info", "/info", "4xx"),
        ("POST", "/api/v1/users", "/api/v1/users", "4xx"),
    ],
)
async def test_request_counts_by_the_declared_path_when_it_is_over(
    api: Served, method: str, path: str, route: str, status: str
) -> None:
    user = api.user()
    path = path.format(await api.created(user))
    shown = "other" if method == "PURGE" else method
    before, known = requests(api, shown, route, status), routes(api)
    timed = value(api, "undeterred_http_request_duration_seconds_count", method=shown, route=route)
    assert (await user.ask(method, path)).status_code // 100 == int(status[0])
    assert requests(api, shown, route, status) == before + 1
    assert value(api, "undeterred_http_request_duration_seconds_count", method=shown, route=route) == timed + 1
    assert routes(api) - known <= {route}, "what a client writes is no label"


async def test_report_counts_by_the_path_of_its_route_when_it_takes_the_fast_lane(api: Served) -> None:
    run = await api.trial(api.user())
    route = "/api/v1/trials/{trial_id}/metrics"
    before = requests(api, "POST", route, "2xx")
    await run.report("training", 1, {"loss": 1.0})
    assert requests(api, "POST", route, "2xx") == before + 1
    assert {each.path for each in api.app.hot.all} <= set(api.app.openapi()["paths"])


async def test_bug_counts_as_an_error_when_a_route_raises(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    before = requests(api, "GET", "/info", "5xx")
    monkeypatch.setattr("api.routes.cluster.answer", None)
    assert (await api.nobody.ask("GET", "/info")).status_code == 500
    assert requests(api, "GET", "/info", "5xx") == before + 1


async def test_administrator_reads_the_metrics_at_the_port_of_the_api(api: Served) -> None:
    admin = api.user(is_admin=True)
    answer = await admin.ask("GET", "/debug/prom/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert [sample.value for sample in families["undeterred_database_up"].samples] == [1.0]
    assert any(sample.labels.get("route") == "/info" for sample in families["undeterred_http_requests"].samples)
    answer = await admin.ask("GET", "/debug/prom/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.fixture
def registry(api: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[CollectorRegistry]:
    """The metrics of the records, as a process exports them that starts now, read at each look."""
    monkeypatch.setattr(monitoring, "FRESH_S", 0.0)
    records = monitoring.Records(api.database)
    registry = CollectorRegistry()
    registry.register(records)
    yield registry
    records.close()


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"undeterred_{name}", labels) or 0.0


async def test_trial_is_shown_in_each_metric_from_its_queue_to_its_end(
    api: Served, registry: CollectorRegistry
) -> None:
    pool = f"pool-{uuid.uuid4().hex[:8]}"
    with api.database.write() as session:
        session.add(ResourcePool(name=pool))
    api.an_agent(RecordAgent(agent_id=f"{pool}-a", pool=pool, slots=AgentSlots(agent_id=f"{pool}-a", slot_ids=(0, 1, 2)),
                             is_connected=True, revision=1))  # fmt: skip
    api.an_agent(RecordAgent(agent_id=f"{pool}-b", pool=pool, slots=AgentSlots(agent_id=f"{pool}-b", slot_ids=(0,)),
                             is_connected=False, revision=1))  # fmt: skip
    assert sample(registry, "queue_waiting", pool=pool) == 0
    assert registry.get_sample_value("undeterred_queue_waiting", {"pool": pool}) == 0, "an idle pool has its series"
    active = sample(registry, "experiments", state="ACTIVE")
    open_trials = sample(registry, "trials", state="ACTIVE")
    user = api.user()
    experiment_id = await api.created(user, resources={"resource_pool": pool, "slots_per_trial": 2})
    assert sample(registry, "experiments", state="ACTIVE") == active + 1
    assert sample(registry, "trials", state="ACTIVE") == open_trials + 1
    assert sample(registry, "queue_waiting", pool=pool) == 1
    assert sample(registry, "queue_slots_wanted", pool=pool) == 2
    assert 0 < sample(registry, "queue_oldest_wait_seconds", pool=pool) < 60
    assert sample(registry, "slots", pool=pool) == 3, "of the agent that is connected"
    assert sample(registry, "agents", pool=pool, state="connected") == 1
    assert sample(registry, "agents", pool=pool, state="disconnected") == 1

    with api.database.read() as session:
        trial = session.scalars(select(Trial).where(Trial.experiment_id == experiment_id)).one()
    run = Run(experiment_id, trial.id, trial.task_id, trial.request_id, "", api.nobody, 0)
    run = await api.next_run(run, slots=2)
    with api.database.write() as session:
        mine = update(Allocation).where(Allocation.id == run.allocation_id)
        session.execute(mine.values(pool=pool, started_at=utc_now() - timedelta(seconds=7)))
    assert sample(registry, "queue_waiting", pool=pool) == 0
    assert sample(registry, "slots_used", pool=pool) == 2
    assert sample(registry, "allocations", pool=pool, kind="TRIAL", state="ASSIGNED") == 1

    before = sample(registry, "allocation_start_seconds_count", kind="TRIAL")
    seconds = sample(registry, "allocation_start_seconds_sum", kind="TRIAL")
    await run.container.get(f"/api/v1/allocations/{run.allocation_id}/signals/preemption", timeout_seconds=0)
    for _ in range(2):  # each start counts once
        assert sample(registry, "allocation_start_seconds_count", kind="TRIAL") == before + 1
    assert 7 <= sample(registry, "allocation_start_seconds_sum", kind="TRIAL") - seconds < 30

    before = sample(registry, "allocations_ended_total", kind="TRIAL", cause="user_code")
    await api.end(run)
    assert sample(registry, "slots_used", pool=pool) == 0
    assert sample(registry, "allocations_ended_total", kind="TRIAL", cause="user_code") == before
    with api.database.write() as session:  # the cause follows, in a transaction of its own
        session.execute(mine.values(end_cause="user_code"))
    for _ in range(2):
        assert sample(registry, "allocations_ended_total", kind="TRIAL", cause="user_code") == before + 1
    assert sample(registry, "tasks_ended_total", kind="TRIAL", state="COMPLETED") >= 1
    assert sample(registry, "trials", state="ACTIVE") == open_trials


async def test_end_counts_as_unknown_when_no_cause_follows(
    api: Served, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await api.trial(api.user())
    await api.end(run)
    before = sample(registry, "allocations_ended_total", kind="TRIAL", cause="unknown")
    monkeypatch.setattr(monitoring, "_SETTLED", timedelta(0))
    assert sample(registry, "allocations_ended_total", kind="TRIAL", cause="unknown") == before + 1


async def test_what_ended_before_the_process_began_is_not_counted(api: Served) -> None:
    run = await api.trial(api.user())
    with api.database.write() as session:
        ended = {"ended_at": utc_now(), "end_cause": "exit_zero"}
        session.execute(update(Allocation).where(Allocation.id == run.allocation_id).values(ended))
    records, registry = monitoring.Records(api.database), CollectorRegistry()
    registry.register(records)
    assert sample(registry, "allocations_ended_total", kind="TRIAL", cause="exit_zero") == 0
    records.close()


async def test_messages_are_shown_when_they_wait_for_temporal(api: Served, registry: CollectorRegistry) -> None:
    before = sample(registry, "outbox_waiting")
    with api.database.write() as session:
        session.add(Outbox(workflow_id="task-x", kind="k", payload={}, created_at=utc_now() - timedelta(seconds=90)))
        sent = Outbox(workflow_id="task-x", kind="k", payload={}, sent_at=utc_now())
        session.add(sent)
    assert sample(registry, "outbox_waiting") == before + 1
    if not before:
        assert 90 <= sample(registry, "outbox_oldest_seconds") < 120
    with api.database.write() as session:
        session.execute(delete(Outbox).where(Outbox.workflow_id == "task-x"))


async def test_database_is_asked_once_when_many_scrape_within_five_seconds(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, registry, looks = monitoring.Records(api.database), CollectorRegistry(), 0
    registry.register(records)
    read = records._read

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return read()

    monkeypatch.setattr(records, "_read", counted)
    await asyncio.gather(*(asyncio.to_thread(sample, registry, "outbox_waiting") for _ in range(20)))
    assert looks == 1
    monkeypatch.setattr(monitoring, "FRESH_S", 0.0)
    assert sample(registry, "database_up") == 1
    assert looks == 2
    records.close()


async def test_scrape_says_that_the_database_is_away_when_it_does_not_answer(
    api: Served, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sample(registry, "database_up") == 1

    def away(_: Any) -> Any:
        raise OperationalError("SELECT", {}, Exception("no connection"))

    with monkeypatch.context() as gone:
        gone.setattr(queries, "outbox", away)
        assert sample(registry, "database_up") == 0
        assert registry.get_sample_value("undeterred_outbox_waiting") is None, "not what it was before"
    release = threading.Event()
    with monkeypatch.context() as slow:
        slow.setattr(monitoring, "_LONGEST_WAIT_S", 0.1)
        slow.setattr(queries, "outbox", lambda _: (release.wait(30), 0.0))
        assert sample(registry, "database_up") == 0
        release.set()
    assert sample(registry, "database_up") == 1


async def test_no_table_is_read_from_end_to_end_that_grows_with_the_years(basic_api: Served) -> None:
    """As SQLite plans it, which always takes an index that helps; PostgreSQL reads a small table as a whole."""
    records, registry = monitoring.Records(basic_api.database), CollectorRegistry()
    registry.register(records)
    asked: list[tuple[str, Any]] = []
    with basic_api.database.read() as session:
        engine = session.get_bind()
        records._began = -monitoring.FRESH_S  # registering has looked already

        def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            asked.append((statement, parameters))

        event.listen(engine, "before_cursor_execute", note)
        assert sample(registry, "database_up") == 1
        event.remove(engine, "before_cursor_execute", note)
        plans = [
            str(step[3])
            for statement, parameters in asked
            if statement.lstrip().startswith("SELECT")
            for step in session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    assert any("ix_tasks_ended_at" in step for step in plans)
    full = [step for step in plans if step.startswith("SCAN") and "INDEX" not in step]
    assert [step for step in full if step.split()[1] in ("tasks", "trials", "allocations", "outbox")] == []
    records.close()
