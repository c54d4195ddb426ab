"""The metrics of a cluster that runs an experiment: what the alert rules and the dashboard ask for is exported."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx

from tests.kit.platform import platform
from tests.kit.servers import free_port
from workers.orchestrator import main as orchestrator_main
from workers.settings import OrchestratorSettings

SCRIPT = """
import determined as det
with det.core.init() as core:
    core.train.report_validation_metrics(steps_completed=1, metrics={"loss": 1.0})
"""
CONFIG = {
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    "max_restarts": 0,
}


_FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
_ASKED = re.compile(r"\b(?:undeterred|temporal|process)_[a-z0-9_]+")


def names(text: str) -> set[str]:
    """Of all families in Prometheus' text format."""
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


async def scrape(address: str) -> str:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"http://{address}/metrics")).text


async def test_orchestrator_serves_the_metrics_of_its_worker_when_it_has_a_port(
    temporal_address: str, tmp_path: Path, database_url: str
) -> None:
    async with platform(
        temporal_address=temporal_address,
        database_url=database_url,
        folder=tmp_path,
        pool="monitored",
        has_orchestrator=False,
    ) as cluster:
        settings = OrchestratorSettings(
            database_url=database_url,
            temporal_address=temporal_address,
            metrics_port=free_port(),
            allowed_networks="127.0.0.0/8",
            storage_roots=str(tmp_path),
        )
        stop = asyncio.Event()
        orchestrator = asyncio.create_task(orchestrator_main(settings, stop))
        of_agent = free_port()
        agent_id = await cluster.start_agent(metrics_port=of_agent)
        assert (await cluster.finish(await cluster.create(CONFIG, {"train.py": SCRIPT})))["state"] == "STATE_COMPLETED"
        found = await scrape(settings.metrics_address)
        assert "temporal_workflow_task_execution_latency_seconds_bucket{" in found
        assert 'task_queue="orchestrator"' in found
        # it has no container any more, but says what it would say of one
        of_host = await scrape(f"127.0.0.1:{of_agent}")
        assert "# TYPE undeterred_container_memory_bytes gauge" in of_host
        assert "undeterred_gpu_in_error{" not in of_host, "this machine has no GPU"
        await cluster.stop_agent(agent_id)
        exported = names(found) | names(of_host) | names((await cluster.http.get("/debug/prom/metrics")).text)
        for file in ("alerts.yaml", "dashboard.json"):
            used = _ASKED.findall((_FOLDER / file).read_text())
            assert len(set(used)) > 10, "or it proves little"
            assert {name for name in used if name.removesuffix("_bucket") not in exported} == set(), file
        stop.set()
        await orchestrator
