"""What clients read and write over the wire, on a PostgreSQL as large as years leave it (see `bench.data`).

`UNDETERRED_BENCH_SCALE` is the size: 1 (the default) for 100,000 experiments, 1,000,000 trials, 100,000,000 points.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from sqlalchemy import insert

from api.auth.authentication import client_hash, token_hash
from bench.data import PASSWORD, Filled, fill, until_sealed
from bench.measure import Figure, p95
from bench.served import Api, serving
from database.models import Allocation, AllocationContainer, Trial
from database.session import Database
from database.tasks import create_trial_tasks
from determined.core._backlog import BATCH_LIMIT
from tests.kit.servers import postgres_server

_SCALE = float(os.environ.get("UNDETERRED_BENCH_SCALE", "1"))
_POLLS = 1000


def figures() -> Iterator[Figure]:
    """Reads of a small and of a large cluster, a thousand polls, then floods of points and lines."""
    with postgres_server() as url:
        fill(url, 0.001, experiments=207)
        with serving(url) as api:
            log_in(api)
            yield _timed("list of 100 among 207 experiments, p50", _list(api, 100), 200, 50, 12, "36 ms")
    with postgres_server() as url:
        filled = fill(url, _SCALE)
        yield Figure(
            f"filling a database with {filled.experiments:,} experiments, {filled.trials:,} trials and "
            f"{filled.reports:,} reports",
            [filled.seconds], "s",
        )  # fmt: skip
        with serving(url) as api:
            log_in(api)
            yield from _reads(api, url, filled)
            yield from _polls(api, url)
    with postgres_server() as url:
        fill(url, 0.01)
        with serving(url) as api:
            log_in(api)
            _until_idle(api)  # what `fill` wrote in a minute would have come over weeks, and become blocks meanwhile
            yield from _writes(api, url)


def log_in(api: Api) -> None:
    """As the administrator of the filled database."""
    body = {"username": "admin", "password": client_hash(PASSWORD), "isHashed": True}
    token = json.loads(api.ask("POST", "/api/v1/auth/login", body))["token"]
    api.headers = {"Authorization": f"Bearer {token}"}


def _list(api: Api, limit: int, more: str = "") -> Callable[[int], object]:
    return lambda run: api.ask("GET", f"/api/v1/experiments?limit={limit}{more}")


def _timed(
    what: str, call: Callable[[int], object], runs: int, percentile: int, goal: float | None, theirs: str = ""
) -> Figure:
    """The time of a call in ms, at a percentile of `runs` calls, after a tenth as many that are not counted."""
    for run in range(max(3, runs // 10)):
        call(run)
    times: list[float] = []
    for run in range(runs):
        began = time.perf_counter()
        call(run)
        times.append((time.perf_counter() - began) * 1000)
    value = statistics.quantiles(times, n=100)[percentile - 1]
    return Figure(what, [value], "ms", goal, theirs, note=f"{runs} calls, {min(times):.1f}-{max(times):.1f} ms")


def _reads(api: Api, url: str, filled: Filled) -> Iterator[Figure]:
    of = f"of {filled.experiments:,} experiments"
    middle = filled.experiments // 2

    def pick(run: int, most: int) -> int:
        return run * 7919 % most + 1

    yield _timed(f"list of 50 {of}, p95", _list(api, 50), 100, 95, 150)
    newest = "&sortBy=SORT_BY_START_TIME&orderBy=ORDER_BY_DESC"
    yield _timed(f"list of 50 {of}, newest first, p95", _list(api, 50, newest), 100, 95, 150)
    deep = f"&offset={middle}"
    yield _timed(f"list of 50 {of}, from the middle on, p95", _list(api, 50, deep), 100, 95, 150)
    narrowed = "&users=user7&states=STATE_COMPLETED&archived=false&labels=vision&orderBy=ORDER_BY_DESC"
    yield _timed(f"list of 50 {of}, by user, state, archive and label, p95", _list(api, 50, narrowed), 100, 95, 150)
    by_name = "&name=experiment%20999"
    yield _timed(f"list of 50 {of}, by part of the name, p95", _list(api, 50, by_name), 50, 95, 150)
    yield _timed(
        "experiment, p95", lambda run: api.ask("GET", f"/api/v1/experiments/{pick(run, filled.experiments)}"),
        200, 95, 50,
    )  # fmt: skip
    yield _timed(
        "trials of an experiment, p95",
        lambda run: api.ask("GET", f"/api/v1/experiments/{pick(run, filled.experiments)}/trials"), 200, 95, 50,
    )  # fmt: skip
    yield _timed(
        "checkpoints of an experiment, p95",
        lambda run: api.ask("GET", f"/api/v1/experiments/{pick(run, filled.experiments)}/checkpoints"), 200, 95, 50,
    )  # fmt: skip
    yield _timed(
        "workloads of a trial, p95",
        lambda run: api.ask("GET", f"/api/v1/trials/{pick(run, filled.trials - 2)}/workloads?limit=1000"), 200, 95, 50,
    )  # fmt: skip
    yield _timed(
        "validation metrics of 10 trials, p95",
        lambda run: api.ask(
            "GET",
            "/api/v1/trials/metrics/validation_metrics?"
            + "&".join(f"trialIds={pick(run * 10 + k, filled.trials - 2)}" for k in range(10)),
        ),
        100, 95, 100,
    )  # fmt: skip
    curve = f"/api/v1/trials/time-series?trialIds={filled.curve_trial}&metricIds=curve.loss&maxDatapoints=1000"
    [found] = json.loads(api.ask("GET", curve))["trials"][0]["metrics"]
    if len(found["data"]) != 1000:
        raise RuntimeError(f"the curve came with {len(found['data'])} points")
    until_sealed(url, filled)
    yield _timed(
        f"curve of {filled.curve_points:,} points, thinned out to 1,000, p95", lambda run: api.ask("GET", curve),
        30, 95, 60,
    )  # fmt: skip
    logs = f"/api/v1/trials/{filled.log_trial}/logs"
    yield _timed(
        f"last 100 of {filled.log_lines:,} lines, p95",
        lambda run: api.ask("GET", f"{logs}?limit=100&orderBy=ORDER_BY_DESC"), 100, 95, 50,
    )  # fmt: skip
    yield _timed(
        f"last 100 errors of {filled.log_lines:,} lines, p95",
        lambda run: api.ask("GET", f"{logs}?limit=100&orderBy=ORDER_BY_DESC&levels=LOG_LEVEL_ERROR"), 20, 95, 150,
    )  # fmt: skip


def _running(url: str, count: int) -> list[tuple[int, str, str]]:
    """New running trials of experiment 1: id, task and allocation; the token of each is `wire<n>`."""
    database = Database(url)
    found: list[tuple[int, str, str]] = []
    with database.write() as session:
        for n in range(count):
            task = f"wire.{n}"
            trial = Trial(
                experiment_id=1, request_id=f"wire{n}", task_id=task, seed=0, hparams={}, state="ACTIVE", run_id=1
            )
            session.add(trial)
            session.flush()
            create_trial_tasks(session, [trial.id])
            session.add(
                Allocation(
                    id=f"{task}.1", task_id=task, trial_id=trial.id, experiment_id=1, run_id=1, state="RUNNING",
                    pool="default", slots=1, placements=[],
                )
            )  # fmt: skip
            session.flush()
            session.add(AllocationContainer(allocation_id=f"{task}.1", rank=0, token_hash=token_hash(f"wire{n}")))
            found.append((trial.id, task, f"{task}.1"))
    database.close()
    return found


def _until_idle(api: Api) -> None:
    used = [sum(api.process.cpu_times()[:2])]
    while len(used) < 3 or used[-1] - used[-3] > 0.2:
        time.sleep(2)
        used.append(sum(api.process.cpu_times()[:2]))


def _writes(api: Api, url: str) -> Iterator[Figure]:
    running = _running(url, 8)
    metrics, steps = 10, iter(range(1, 10**9))
    names = [f"metric{k}" for k in range(metrics)]

    def batch(place: int, reports: int) -> None:
        body = {"reports": [
            {"group": "training", "trialRunId": 1, "stepsCompleted": next(steps),
             "metrics": {"avgMetrics": dict.fromkeys(names, 0.5 + step * 0.001)}} for step in range(reports)
        ]}  # fmt: skip
        api.ask("POST", f"/api/v1/trials/{running[place][0]}/metrics/batch", body, container=f"wire{place}")

    yield _rate(
        f"metric points per second, of a loop of 1,000 reports of {metrics} a second: in batches of 50",
        lambda run: batch(2, 50), 50 * metrics, None,
    )  # fmt: skip
    _until_idle(api)  # what came before becomes blocks meanwhile
    yield _rate(
        f"metric points per second, of what waited: in batches of {BATCH_LIMIT:,} reports of {metrics}",
        lambda run: batch(3, BATCH_LIMIT), BATCH_LIMIT * metrics, 500_000,
    )  # fmt: skip
    at_once = 25_000
    values = {name: np.random.default_rng(place).normal(size=at_once).cumsum() for place, name in enumerate(names)}
    columns = {name: numbers.tolist() for name, numbers in values.items()}

    def curves(run: int) -> None:
        first = next(steps) * at_once
        body = {"group": "curves", "trialRunId": 1, "stepsCompleted": list(range(first, first + at_once)),
                "metrics": columns}  # fmt: skip
        api.ask("POST", f"/api/v1/trials/{running[0][0]}/metrics/curves", body, container="wire0")

    yield _rate(
        f"metric points per second in curves of {at_once:,} steps of {metrics}", curves, at_once * metrics, 500_000
    )
    offsets = iter(range(10**9))

    def lines(run: int) -> None:
        _, task, allocation = running[0]
        body = {"logs": [
            {"taskId": task, "allocationId": allocation, "containerId": "c", "lineOffset": next(offsets),
             "level": "LOG_LEVEL_INFO", "log": "step 123: loss 0.456, 7.8 batches a second", "stdtype": "stdout"}
            for _ in range(1000)]}  # fmt: skip
        api.ask("POST", "/api/v1/task/logs", body, container="wire0")

    yield _rate("log lines per second, in batches of 1,000", lines, 1000, 200_000)
    yield Figure("a line until `logs -f` shows it, p95", [_lag(api, running[1])], "s", 1)
    yield from _beside_pages(api, running[4])


def _rate(what: str, call: Callable[[int], object], each: int, goal: float | None) -> Figure:
    for run in range(5):
        call(run)
    rates: list[float] = []
    for _ in range(5):
        began, count = time.perf_counter(), 0
        while (seconds := time.perf_counter() - began) < 2:
            call(count)
            count += 1
        rates.append(count * each / seconds)
    return Figure(what, rates, "/s", goal, more_is_better=True, note="one connection; the client shares the cores")


def _lag(api: Api, running: tuple[int, str, str]) -> float:
    """Seconds from the answer to a line until a follower has it, at the 95th percentile of 40."""
    trial_id, task, _ = running
    seen: dict[str, float] = {}
    ready = threading.Event()

    def follow() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
        connection.request("GET", f"/api/v1/trials/{trial_id}/logs?follow=true", headers=api.headers)
        answer = connection.getresponse()
        while line := answer.readline():
            text = json.loads(line)["result"]["log"]
            seen[text] = time.perf_counter()
            ready.set()
            if text == "last":
                break
        connection.close()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    sent: dict[str, float] = {}
    for n in range(42):
        text = "last" if n == 41 else f"line {n}"
        body = {"logs": [{"taskId": task, "log": text}]}
        api.ask("POST", "/api/v1/task/logs", body, container="wire1")
        sent[text] = time.perf_counter()
        if n == 0:
            ready.wait(10)
        time.sleep(0.11)
    follower.join(10)
    lags = [max(0.0, seen[text] - at) for text, at in sent.items() if text != "line 0"]
    return statistics.quantiles(lags, n=100)[94]


def _beside_pages(api: Api, running: tuple[int, str, str], readers: int = 16) -> Iterator[Figure]:
    """A report of metrics while others read pages without a pause."""
    paths = "experiments?limit=100", "experiments/1/trials", "experiments/2", "workspaces"
    is_over = threading.Event()
    read: list[float] = []

    def look(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
        while not is_over.is_set():
            began = time.perf_counter()
            connection.request("GET", f"/api/v1/{paths[number % len(paths)]}", headers=api.headers)
            connection.getresponse().read()
            read.append((time.perf_counter() - began) * 1000)
        connection.close()

    threads = [threading.Thread(target=look, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    told: list[float] = []
    until = time.monotonic() + 13
    while time.monotonic() < until:
        body = {
            "group": "training",
            "trialRunId": 1,
            "stepsCompleted": len(told),
            "metrics": {"avgMetrics": {"a": 0.5}},
        }
        began = time.perf_counter()
        api.ask("POST", f"/api/v1/trials/{running[0]}/metrics/batch", {"reports": [body]}, container="wire4")
        told.append((time.perf_counter() - began) * 1000)
        time.sleep(0.02)
    is_over.set()
    for thread in threads:
        thread.join()
    beside = f"a report of metrics beside {readers} readers of pages"
    settled = told[len(told) // 5 :]
    yield Figure(f"{beside}, p95", [p95(settled)], "ms", note=f"{len(settled)} reports")
    yield Figure(f"{beside}: pages, p95", [p95(read)], "ms", note=f"{len(read)} pages")


def _polls(api: Api, url: str) -> Iterator[Figure]:
    """Open long polls on one API process: what they take while nothing happens, and how the others are served."""
    running = _running_polls(url)
    before = api.process.memory_full_info().uss

    async def hold(number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        path = f"/api/v1/allocations/{running[number]}/signals/preemption?timeout_seconds=60"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nGrpc-Metadata-x-allocation-token: Bearer poll{number}\r\n\r\n".encode()
        )
        await writer.drain()
        return reader, writer

    async def measure() -> tuple[float, float, float]:
        held = [await hold(number) for number in range(_POLLS)]
        await asyncio.sleep(3)
        memory = api.process.memory_full_info().uss - before
        cpu, began = sum(api.process.cpu_times()[:2]), time.perf_counter()
        await asyncio.sleep(10)
        share = (sum(api.process.cpu_times()[:2]) - cpu) / (time.perf_counter() - began) * 100
        api.close()  # the server has closed it by now
        figure = await asyncio.to_thread(_timed, "", _list(api, 10), 50, 95, None)
        for _, writer in held:
            writer.close()
        return memory / 2**20, share, figure.median

    memory, share, latency = asyncio.run(measure())
    yield Figure(f"memory of {_POLLS:,} open long polls on one API process", [memory], "MiB")
    yield Figure(f"processor time of {_POLLS:,} open long polls, of one core", [share], "%")
    yield Figure(f"list of 10 with {_POLLS:,} long polls open, p95", [latency], "ms")


def _running_polls(url: str) -> list[str]:
    [(trial_id, task_id, _)] = _running(url, 1)
    database = Database(url)
    ids = [f"poll.{n}" for n in range(_POLLS)]
    with database.write() as session:
        of_trial = {"task_id": task_id, "trial_id": trial_id, "experiment_id": 1, "run_id": 1, "state": "RUNNING",
                    "pool": "default", "slots": 1, "placements": []}  # fmt: skip
        session.execute(insert(Allocation), [{"id": id_} | of_trial for id_ in ids])
        containers = [
            {"allocation_id": id_, "rank": 0, "token_hash": token_hash(f"poll{n}")} for n, id_ in enumerate(ids)
        ]
        session.execute(insert(AllocationContainer), containers)
    database.close()
    return ids
