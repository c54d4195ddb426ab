"""Faults around the cluster: clocks that jump, a full disk, no connection left, half a migration, two orchestrators.

What must happen: guide to faults, points 4, 15 and 25. A checkpoint store that is full has its test beside the code that
writes there: `harness/tests/test_core_checkpoint.py`, `test_a_full_disk_is_named_and_nothing_stays`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

from database.migrate import is_current, migrate, schema_differences
from database.session import Database
from tests.chaos import mortal_migration
from tests.chaos.client import Client, until
from tests.chaos.leftovers import held_slots, temporal
from tests.chaos.scale import chosen
from tests.kit.embedded import Embedded
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import faketime_library, restartable_postgres

Enter = Callable[[Embedded], Awaitable[Client]]
FAILS = 'raise ValueError("not today")'


@contextmanager
def _cluster(folder: Path, slots: int = 2, **environment: str) -> Iterator[Embedded]:
    embedded = Embedded(folder, slots=slots, environment=environment)
    try:
        embedded.up()
        yield embedded
    finally:
        embedded.run("down")


@pytest.fixture
async def enter() -> AsyncIterator[Enter]:
    """Gives a user of a cluster, who leaves at the test's end."""
    async with AsyncExitStack() as stack:
        yield lambda embedded: stack.enter_async_context(Client(embedded))


# -- the clock ---------------------------------------------------------------------------------------------------------


async def test_nothing_expires_and_nothing_starts_when_the_clock_jumps_by_an_hour(tmp_path: Path, enter: Enter) -> None:
    offset = tmp_path / "offset"

    def jump(hours: int) -> None:
        partial = offset.with_suffix(".tmp")
        partial.write_text(f"{hours * 3600:+d}")
        os.replace(partial, offset)

    jump(0)
    timing = json.dumps({"restart_backoff_s": 1800.0, "restart_backoff_cap_s": 1800.0})
    with (
        _cluster(tmp_path, UNDETERRED_TIMING=timing) as embedded,
        _under_a_clock(embedded, offset, UNDETERRED_TIMING=timing),
    ):
        client = await enter(embedded)
        waits = await client.create(config(max_restarts=1), FAILS)
        await until(lambda: _restarts(client, waits, 1), 60, "a trial waits half an hour for its next try")
        enough = tmp_path / "enough"
        endless = config({"max_length": 1_000_000}, hyperparameters={"sleep": 0.2, "until": str(enough)})
        trains = await client.create(endless, TRAIN)
        await client.until_steps(trains, 3)
        figures: list[str] = []
        for hours in (1, -1, 0):
            jump(hours)
            await until(lambda hours=hours: _is_clock(client, hours), 30, f"the API's clock is {hours:+d} h off")
            before = await client.steps(trains)
            await client.until_steps(trains, before + 5)  # by the token that it has had since its start
            figures.append(f"{hours:+d} h: {before} steps before, {await client.steps(trains)} soon after")
        enough.touch()
        assert await client.until_over(trains, 120) == "COMPLETED"
        (trial,) = await client.trials(trains)
        assert (trial["restarts"], trial["runId"]) == (0, 1)
        assert trial["totalBatchesProcessed"] > before + 4
        (trial,) = await client.trials(waits)
        assert (trial["restarts"], trial["runId"]) == (1, 1), "its half hour is not over"
        await client.ask("POST", f"/api/v1/experiments/{waits}/kill")
        assert await client.until_over(waits, 30) == "CANCELED"
        assert await held_slots(await temporal(embedded)) == []
        print("\n" + "\n".join(figures))


@contextmanager
def _under_a_clock(embedded: Embedded, offset: Path, **environment: str) -> Iterator[None]:
    """API and orchestrator start again, with a time of day that is as far off as the file says, in seconds."""
    for part in ("api", "orchestrator"):
        os.kill(embedded.pid(part), signal.SIGKILL)
    state = json.loads((embedded.folder / "cluster.json").read_text())
    clock = {
        "LD_PRELOAD": faketime_library(),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",  # seconds until it looks again
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # as a step of the clock is
        "UNDETERRED_PORT": str(state["port"]),
        "UNDETERRED_AGENT_TOKEN": state["agent_token"],
        "UNDETERRED_STORAGE_PATH": str(embedded.folder / "checkpoints"),
    }
    started = [embedded.another("orchestrator", **clock, **environment)]
    # A program that libfaketime is loaded into hangs at its start now and then, before anything of ours runs.
    for _ in range(3):
        started.append(embedded.another("api", **clock, **environment))
        if _answers(embedded.environment["DET_MASTER"], 30):
            break
        started[-1].kill()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _answers(master: str, within_s: float) -> bool:
    """Whether the API does, soon enough."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            return httpx.get(f"{master}/health", timeout=5).status_code == 200
        time.sleep(0.2)
    return False


async def _restarts(client: Client, experiment_id: int, count: int) -> bool:
    return [trial["restarts"] for trial in await client.trials(experiment_id)] == [count]


async def _is_clock(client: Client, hours: int) -> bool:
    """Whether the API says it is so late, by the time of what is created now."""
    body = {
        "config": "name: now\nentrypoint: a\nsearcher: {name: single, metric: x, max_length: 1}",
        "validateOnly": True,
    }
    shown = (await client.ask("POST", "/api/v1/experiments", body))["experiment"]["startTime"]
    stamp = time.mktime(time.strptime(shown[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    return abs(stamp - time.time() - hours * 3600) < 600


# -- a full disk -------------------------------------------------------------------------------------------------------


@contextmanager
def _small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


async def test_writes_are_put_off_and_reads_go_on_when_the_databases_disk_is_full(tmp_path: Path, enter: Enter) -> None:
    with (
        _small_disk(tmp_path / "disk", "24m") as disk,
        _cluster(tmp_path, UNDETERRED_DATABASE_URL=f"sqlite:///{disk / 'undeterred.db'}") as embedded,
    ):
        client = await enter(embedded)
        length = 40
        trains = await client.create(config({"max_length": length}, hyperparameters={"sleep": 0.1}), TRAIN)
        await client.until_steps(trains, 3)
        ballast = disk / "ballast"
        _fill(ballast)
        told = await _until_refused(client, trains)
        assert told["status"] == 503
        assert told["retry-after"]
        assert "disk" in told["message"]
        assert "full" in told["message"]
        logged = (embedded.folder / "logs" / "api.log").read_text()
        assert "full" in logged, "an operator is told"
        for _ in range(20):
            assert await client.state(trains) == "ACTIVE", "reads go on"
        (pid,) = embedded.training().values()
        before = await client.steps(trains)
        ballast.unlink()
        began = time.monotonic()
        await client.until_steps(trains, before + 1)
        back = time.monotonic() - began
        assert await client.until_over(trains, 120) == "COMPLETED"
        assert pid not in embedded.training().values()
        (trial,) = await client.trials(trains)
        assert (trial["restarts"], trial["runId"], trial["totalBatchesProcessed"]) == (0, 1, length)
        again = await client.create(config({"max_length": 1}), TRAIN)
        assert await client.until_over(again, 60) == "COMPLETED"
        rows = _rows(
            embedded.environment["UNDETERRED_DATABASE_URL"],
            f"SELECT total_batches FROM metrics WHERE trial_id = {trial['id']} AND group_name = 'validation'",
        )
        assert sorted(step for (step,) in rows) == list(range(1, length + 1)), "each is there, once"
        print(f"\nfull at step {before} of {length}: {told}; reports went on {back:.1f} s after there was room")


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    with pytest.raises(OSError) as caught, path.open("ab", buffering=0) as file:
        file.write(b"\0" * 2**12)
    assert caught.value.errno == errno.ENOSPC


async def _until_refused(client: Client, experiment_id: int) -> dict[str, Any]:
    """Write until it is refused: what SQLite has allocated already it may still use."""
    for number in range(200):
        body = {"notes": f"{number} " * 20_000}
        response = await client.http.patch(f"/api/v1/experiments/{experiment_id}", json=body)
        if response.status_code != 200:
            return {
                "status": response.status_code,
                "retry-after": response.headers.get("retry-after"),
                "message": response.json()["message"],
            }
    raise AssertionError("the disk is full, and all of this was written")


def _rows(url: str, query: str) -> list[Any]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return list(connection.execute(text(query)))


# -- no connection left ------------------------------------------------------------------------------------------------


async def test_nothing_is_lost_when_the_database_takes_no_more_connections(tmp_path: Path, enter: Enter) -> None:
    with (
        restartable_postgres("max_connections=24", "superuser_reserved_connections=0")
        as server,
        _cluster(tmp_path, UNDETERRED_DATABASE_URL=server.url) as embedded,
    ):  # fmt: skip
        client = await enter(embedded)
        length = 30
        trains = await client.create(config({"max_length": length}, hyperparameters={"sleep": 0.1}), TRAIN)
        await client.until_steps(trains, 2)
        # those that the API has wait for the lock, so that it needs more for 60 requests, however slow they come
        with _locked(server.url, "experiments") as release, _all_connections(server.url) as held:
            asking = asyncio.create_task(_ask_at_once(client, 60, on_503=release.set))
            refused = await asyncio.to_thread(release.wait, 45)
        answers = await asking
        print(f"\n{held} connections held: {dict(answers)}")
        assert set(answers) <= {200, 503}
        assert refused, "there was none for some"
        assert await client.until_over(trains, 120) == "COMPLETED"
        (trial,) = await client.trials(trains)
        assert (trial["restarts"], trial["runId"], trial["totalBatchesProcessed"]) == (0, 1, length)
        assert set(await _ask_at_once(client, 60)) == {200}


async def test_requests_are_put_off_when_all_connections_of_the_api_wait(tmp_path: Path, enter: Enter) -> None:
    with (
        restartable_postgres() as server,
        _cluster(tmp_path, UNDETERRED_DATABASE_URL=server.url) as embedded,
    ):
        client = await enter(embedded)
        length = 30
        trains = await client.create(config({"max_length": length}, hyperparameters={"sleep": 0.1}), TRAIN)
        await client.until_steps(trains, 2)
        began = time.monotonic()
        with _locked(server.url, "experiments") as release:
            asking = asyncio.create_task(_ask_at_once(client, 60, on_503=release.set))
            await asyncio.wait_for(asyncio.to_thread(release.wait, 45), 50)
            refused_after = time.monotonic() - began
        answers = await asking
        print(f"\na table locked: the first is put off after {refused_after:.1f} s; {dict(answers)}")
        assert set(answers) == {200, 503}
        assert await client.until_over(trains, 120) == "COMPLETED"
        (trial,) = await client.trials(trains)
        assert (trial["restarts"], trial["runId"], trial["totalBatchesProcessed"]) == (0, 1, length)


@contextmanager
def _all_connections(url: str) -> Iterator[int]:
    """Hold every connection that the server still gives."""
    engine = create_engine(url, poolclass=NullPool)
    held: list[Any] = []
    try:
        with suppress(Exception):
            while True:
                held.append(engine.connect())
        yield len(held)
    finally:
        for connection in held:
            connection.close()


@contextmanager
def _locked(url: str, table: str) -> Iterator[threading.Event]:
    """Lock a table, until the event at the latest."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection, connection.begin():
        connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield threading.Event()


async def _ask_at_once(client: Client, count: int, on_503: Any = None) -> Counter[int]:
    """How so many requests at the same time are answered."""

    async def ask() -> int:
        response = await client.http.get("/api/v1/experiments")
        if response.status_code == 503:
            assert response.headers["retry-after"]
            assert len(response.json()["message"].split()) >= 4
            if on_503 is not None:
                on_503()
        return response.status_code

    return Counter(await asyncio.gather(*(ask() for _ in range(count))))


# -- half a migration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_new", [True, False])
def test_next_start_completes_the_schema_when_a_migration_was_killed_at_any_statement(
    database_url: str, is_new: bool
) -> None:
    """`is_new`: the database gets today's schema at once; else by all migrations, as one that is there already."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["pytest", "tests.chaos.mortal_migration", "alembic.command"])
    database = Database(database_url)
    if not is_new:
        with database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    before = inspect(database.engine).get_table_names()
    killed = 0
    for statement in itertools.count(1, chosen(9, 1)):
        process = processes.Process(target=mortal_migration.run, args=(database_url, statement))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        assert inspect(database.engine).get_table_names() == before, f"killed before statement {statement}"
        assert not is_current(database)
    migrate(database)
    assert schema_differences(database) == []
    database.close()
    print(f"\nkilled before {killed} of about {killed * chosen(9, 1)} statements; nothing was left each time")
    assert killed >= chosen(15, 150)


# -- two orchestrators -------------------------------------------------------------------------------------------------


async def test_two_orchestrators_share_the_work_and_one_death_loses_nothing(tmp_path: Path, enter: Enter) -> None:
    with _cluster(tmp_path, slots=4) as embedded:
        client = await enter(embedded)
        ready = tmp_path / "ready"
        second = embedded.another("orchestrator", UNDETERRED_READY_FILE=str(ready))
        try:
            await asyncio.to_thread(embedded.until, ready.exists, 60, "the second one is ready")
            searcher = {"name": "random", "max_trials": 8, "max_concurrent_trials": 4, "max_length": 6}
            wanted = config(
                searcher, hyperparameters={"sleep": 0.2, "quality": {"type": "double", "minval": 0, "maxval": 1}}
            )
            experiments = [await client.create(wanted, TRAIN) for _ in range(2)]
            await client.until_steps(experiments[0], 15)
            second.send_signal(signal.SIGKILL)
            for experiment_id in experiments:
                assert await client.until_over(experiment_id, 120) == "COMPLETED"
        finally:
            second.kill()
            second.wait()
        shares = await _shares(embedded, experiments, client)
        print(f"\nworkflow tasks done by each orchestrator: {shares}")
        assert len(shares) == 2, "both worked"
        trials = [trial for experiment_id in experiments for trial in await client.trials(experiment_id)]
        assert [(trial["state"], trial["restarts"], trial["runId"]) for trial in trials] == [
            ("STATE_COMPLETED", 0, 1)
        ] * 16
        assert [trial["totalBatchesProcessed"] for trial in trials] == [6] * 16
        assert await held_slots(await temporal(embedded)) == []


async def _shares(embedded: Embedded, experiments: list[int], client: Client) -> dict[str, int]:
    """Workflow tasks by the worker that did them, as the histories name it."""
    server = await temporal(embedded)
    trials = [trial["id"] for experiment_id in experiments for trial in await client.trials(experiment_id)]
    ids = [*(f"experiment-{number}" for number in experiments), *(f"trial-{number}" for number in trials)]
    shares: Counter[str] = Counter()
    for workflow_id in ids:
        async for event in server.get_workflow_handle(workflow_id).fetch_history_events():
            if event.HasField("workflow_task_completed_event_attributes"):
                shares[event.workflow_task_completed_event_attributes.identity] += 1
    return dict(shares)
