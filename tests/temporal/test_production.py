"""A search on a Temporal of four services: PostgreSQL, mutual TLS, encrypted histories, and a service that is killed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.chaos.test_soak import EXPERIMENTS, SLOTS, TIMING, undergo
from tests.integration.test_encrypted_histories import check_histories
from tests.kit.certificates import Authority
from tests.kit.embedded import Embedded
from tests.kit.platform import Platform, platform
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import postgres_server
from tests.kit.temporal_cluster import SERVICES, TemporalCluster, temporal_cluster
from workers.connect import GivenUp, connect, connection_of
from workers.settings import GatewaySettings


@pytest.fixture
async def temporal(tmp_path: Path) -> AsyncIterator[TemporalCluster]:
    folder = tmp_path / "temporal"
    folder.mkdir()
    with postgres_server() as url:
        async with temporal_cluster(folder, url, "undeterred") as cluster:
            yield cluster


@pytest.fixture
async def running(temporal: TemporalCluster, tmp_path: Path, postgres_database: str) -> AsyncIterator[Platform]:
    keys = tmp_path / "keys"
    keys.write_text(f"first {base64.b64encode(os.urandom(32)).decode()}\n")
    further = {name: value for name, value in temporal.settings.items() if name != "temporal_address"}
    async with platform(
        temporal_address=temporal.settings["temporal_address"],
        database_url=postgres_database,
        folder=tmp_path,
        pool="default",
        connection={**further, "temporal_encryption_keys_file": str(keys)},
    ) as platform_:
        yield platform_


@pytest.mark.timeout(900)
async def test_the_short_form_of_the_chaos_passes_on_it(temporal: TemporalCluster, tmp_path: Path) -> None:
    """Experiments of all kinds, while API, orchestrator, agent, training and each of the four services are killed at random."""
    settings = {f"UNDETERRED_{name.upper()}": str(value) for name, value in temporal.settings.items()}
    address = settings.pop("UNDETERRED_TEMPORAL_ADDRESS")
    environment = {"UNDETERRED_TIMING": json.dumps(TIMING), "TEMPORAL_ADDRESS": address, **settings}
    embedded = Embedded(tmp_path, slots=SLOTS, environment=environment)
    try:
        kills = await undergo(embedded, None, EXPERIMENTS // 2, temporal)
    finally:
        embedded.run("down")
    assert set(SERVICES) <= set(kills), "each was killed, or this proves little"


@pytest.mark.timeout(600)
async def test_search_survives_the_history_service_being_killed(running: Platform, temporal: TemporalCluster) -> None:
    await running.start_agent()
    wanted = config(
        {"name": "random", "max_trials": 4, "max_length": 60}, hyperparameters={"sleep": 0.05}, max_restarts=0
    )
    experiment_id = await running.create(wanted, {"train.py": TRAIN})
    await running.until_reported(experiment_id)
    temporal.kill("history")
    await asyncio.sleep(2)
    temporal.start("history")
    ended = await running.finish(experiment_id, 240)
    assert ended["state"] == "STATE_COMPLETED"
    trials = await running.trials(experiment_id)
    assert [(trial["state"], trial["restarts"]) for trial in trials] == [("STATE_COMPLETED", 0)] * 4
    for trial in trials:
        steps = [line for line in await running.logs(trial["id"]) if line.startswith("step ")]
        assert steps == [f"step {number}" for number in range(1, 61)], "no step is lost or done twice"
    assert await check_histories(running) > 100


async def test_wrong_namespace_is_named(temporal: TemporalCluster) -> None:
    settings = GatewaySettings(database_url="sqlite://", **{**temporal.settings, "temporal_namespace": "nowhere"})
    with pytest.raises(GivenUp, match=r"temporal_namespace: 'nowhere': .*namespace create -n nowhere"):
        await asyncio.wait_for(connect(connection_of(settings), asyncio.Event()), 60)


async def test_what_is_wrong_with_the_connection_is_named(temporal: TemporalCluster, tmp_path: Path) -> None:
    async def said(**changed: object) -> str:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(3, stop.set)
        wanted = {"database_url": "sqlite://", **temporal.settings, **changed}
        settings = GatewaySettings(**{name: value for name, value in wanted.items() if value is not None})
        with capture_logs() as logs:
            assert await connect(connection_of(settings), stop) is None
        return str(logs)

    none = {"temporal_cert_file": None, "temporal_key_file": None}
    assert "temporal_cert_file: expected a certificate" in await said(**none)
    stranger = Authority(tmp_path, "stranger").file
    assert "temporal_ca_file: expected the authority" in await said(temporal_ca_file=str(stranger))
    assert "temporal_server_name: expected a name" in await said(temporal_server_name="elsewhere.test")
