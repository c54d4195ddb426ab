"""Metric reports per second over HTTP, from client processes of their own, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from typing import Any

from sqlalchemy import update

from api.auth.authentication import hash_password, token_hash
from bench.data import PASSWORD
from bench.measure import Figure, processor_time
from bench.raw_http import post
from bench.served import serving
from bench.wire import log_in
from database.migrate import migrate, seed
from database.models import Allocation, AllocationContainer, Experiment, Trial, User
from database.session import Database
from database.tasks import create_trial_tasks
from tests.kit.servers import postgres_server

_SECONDS = 4.0
TRIALS = 64


def figures() -> Iterator[Figure]:
    """1, 8 and 64 connections on each engine."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _on(f"sqlite:///{folder}/bench.db", "SQLite")
    with postgres_server() as url:
        yield from _on(url, "PostgreSQL")


def _on(url: str, engine: str) -> Iterator[Figure]:
    database = Database(url)
    prepare(database)
    database.close()
    with serving(url) as api:
        step = 0
        log_in(api)
        for connections, goal in ((1, 2000 if engine == "SQLite" else 900), (8, 5000 if engine == "SQLite" else 2900)):
            rates: list[float] = []
            for run in range(4):
                rate, step = _rate(api.port, connections, step, api.headers["Authorization"])
                rates += [rate] if run else []
            yield Figure(
                f"metric reports per second by a user's token, {connections} connection{'s' * (connections > 1)}, {engine}",
                rates, "/s", goal, more_is_better=True,
            )  # fmt: skip
        for connections, goal, theirs in ((1, 700, "334/s"), (8, 1500, "404/s"), (64, None, "")):
            rates: list[float] = []
            costs: list[float] = []
            for run in range(6):
                before = processor_time(api.process)
                rate, step = _rate(api.port, connections, step)
                if run:  # the first warms up
                    rates.append(rate)
                    costs.append((processor_time(api.process) - before) / (rate * _SECONDS) * 1000)
            yield Figure(
                f"metric reports per second, {connections} connection{'s' * (connections > 1)}, {engine}",
                rates, "/s", goal, theirs, more_is_better=True,
            )  # fmt: skip
            if connections == 8:
                yield Figure(f"processor time of a report, API and database, {engine}", costs, "ms", 1)


def prepare(database: Database) -> None:
    """Trials 1 to `TRIALS` that run, whose containers have the tokens `token0` and so on."""
    migrate(database)
    with database.write() as session:
        seed(
            session,
            cluster_name="bench",
            admin_password_hash=hash_password(PASSWORD, is_hashed=False),
            pools=["default"],
        )
        admin = session.query(User).filter(User.is_admin).one()
        experiment = Experiment(
            job_id="bench", name="bench", state="ACTIVE", config={}, original_config="", searcher_name="single",
            searcher_metric="loss", resource_pool="default", owner_id=admin.id, project_id=1,
        )  # fmt: skip
        session.add(experiment)
        session.flush()
        for number in range(TRIALS):
            trial = Trial(
                experiment_id=experiment.id, request_id=f"r{number}", task_id=f"t{number}", seed=0, hparams={},
                state="ACTIVE", run_id=1,
            )  # fmt: skip
            session.add(trial)
            session.flush()
            create_trial_tasks(session, [trial.id])
            session.add(
                Allocation(
                    id=f"t{number}.1", task_id=f"t{number}", trial_id=trial.id, experiment_id=experiment.id,
                    run_id=1, state="RUNNING", pool="default", slots=1, placements=[],
                )
            )  # fmt: skip
            session.flush()
            session.add(
                AllocationContainer(allocation_id=f"t{number}.1", rank=0, token_hash=token_hash(f"token{number}"))
            )
        session.execute(update(Trial).values(summary={}))


def report_of(number: int, step: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a report of two metrics, of a trial of `prepare` by its number from 0."""
    metrics = {"avgMetrics": {"loss": 0.5, "accuracy": 0.9}}
    values = {"trialId": number + 1, "trialRunId": 1, "stepsCompleted": step, "metrics": metrics}
    return f"/api/v1/trials/{number + 1}/metrics", {"metrics": values, "group": "training"}


def container_header(number: int) -> str:
    """The header by which that trial's container is known."""
    return f"Grpc-Metadata-x-allocation-token: Bearer token{number}\r\n"


def _rate(port: int, connections: int, step: int, user: str = "") -> tuple[float, int]:
    """Reports per second of one client process with so many connections at once, by containers or by a user."""
    answers: Queue[tuple[int, float, int]] = multiprocessing.get_context("spawn").Queue()
    client = multiprocessing.get_context("spawn").Process(target=_client, args=(port, connections, step, user, answers))
    client.start()
    count, seconds, last = answers.get()
    client.join()
    return count / seconds, last + 1


def _client(port: int, connections: int, step: int, user: str, answers: Queue[tuple[int, float, int]]) -> None:
    asyncio.run(_drive(port, connections, step, user, answers))


async def _drive(port: int, connections: int, step: int, user: str, answers: Queue[tuple[int, float, int]]) -> None:
    """Raw sockets, so that the client costs as little as it can: it shares two cores with the server."""
    deadline = time.perf_counter() + _SECONDS

    async def one(number: int) -> tuple[int, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        header = f"Authorization: {user}\r\n" if user else container_header(number)
        count, current = 0, step
        while time.perf_counter() < deadline:
            current += 1
            path, report = report_of(number, current)
            status = await post(reader, writer, path, header, report)
            assert b" 200 " in status, status
            count += 1
        writer.close()
        return count, current

    began = time.perf_counter()
    results = await asyncio.gather(*(one(number) for number in range(connections)))
    seconds = time.perf_counter() - began
    answers.put((sum(count for count, _ in results), seconds, max(last for _, last in results)))
