"""A cluster on a host with a GPU of NVIDIA's. `make test-gpu` runs these, `make test` and CI do not.

They take the Python that runs them for the trials as well: it needs PyTorch with CUDA.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from prometheus_client import generate_latest

from activities.launchers.base import Launcher
from activities.launchers.devices import devices_of_host
from activities.launchers.gpu_health import GpuHealth
from activities.launchers.gpu_topology import topology_of
from determined.core._system import nvml
from determined.experimental import Determined
from determined.pytorch._host import on_host
from tests.kit.embedded import Embedded
from tests.unit.workers.test_agent_metrics import Containers
from workers.agent_metrics import HostMetrics

MODEL = Path(__file__).with_name("model")
CONFIG = """
name: gpu
entrypoint: model_def:Trial
hyperparameters: {{global_batch_size: {batch}, rows: {rows}}}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{batches: {batches}}}}}
min_validation_period: {{batches: 100}}
min_checkpoint_period: {{batches: 50}}
scheduling_unit: 10
max_restarts: {restarts}
reproducibility: {{experiment_seed: 7}}
"""
SCRIPT = """
name: script
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
resources: {slots_per_trial: 1}
max_restarts: 0
"""


class Cluster(Embedded):
    """Of one slot, which is a GPU."""

    def of_model(self, folder: Path, config: str) -> int:
        """Create an experiment of the model beside this file; returns its id."""
        path = folder / "config.yaml"
        path.write_text(config)
        return self.submit(path, MODEL)

    def client(self) -> Determined:
        return Determined(self.environment["DET_MASTER"], "admin", "correct horse")

    def ended(self, experiment: int) -> str:
        """How it ended."""
        self.until(lambda: self.state(experiment) in ("COMPLETED", "ERROR", "CANCELED"), 240, "it ended")
        return self.state(experiment)

    def state(self, experiment: int) -> str:
        return str(self.rows(f"SELECT state FROM experiments WHERE id = {experiment}")[0][0])

    def trial(self, experiment: int) -> int:
        return int(self.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment}")[0][0])

    def weights(self, experiment: int) -> str:
        """SHA-256 of the weights in its last checkpoint."""
        query = f"SELECT uuid FROM checkpoints WHERE experiment_id = {experiment} ORDER BY steps_completed DESC LIMIT 1"
        file = self.folder / "checkpoints" / str(self.rows(query)[0][0]) / "state_dict.pth"
        state = torch.load(file, weights_only=False)  # with no map_location: what is saved is on the host
        (model,) = state["models_state_dict"]
        assert {value.device.type for value in model.values()} == {"cpu"}
        assert state["scaler_state_dict"]["scale"] > 0
        return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.values())).hexdigest()


def uuid_of_gpu() -> str:
    """As NVML and CUDA_VISIBLE_DEVICES name it."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assert torch.cuda.is_available(), "these tests need a GPU, and PyTorch with CUDA"
    # on a host with more of them, the first
    found = Cluster(tmp_path_factory.mktemp("gpu"), slots=1)
    with found.started():
        yield found


def test_slot_is_the_gpu_that_pytorch_sees(cluster: Cluster) -> None:
    (slot,) = json.loads(cluster.det("slot", "list", "--json").stdout)
    assert (slot["type"], slot["device"]) == ("cuda", torch.cuda.get_device_name(0))
    assert uuid_of_gpu() in json.dumps(cluster.client()._session.get("/api/v1/agents").json())


def test_killed_and_paused_trial_ends_with_the_weights_of_an_undisturbed_one(cluster: Cluster, tmp_path: Path) -> None:
    config = CONFIG.format(batch=64, rows=0, batches=4000, restarts=2)
    undisturbed = cluster.of_model(tmp_path, config)
    assert cluster.ended(undisturbed) == "COMPLETED", cluster.log(undisturbed)
    disturbed = cluster.of_model(tmp_path, config)
    cluster.until_trained(disturbed, 120)
    os.kill(cluster.trainers(disturbed)[-1], signal.SIGKILL)
    cluster.until_trained(disturbed, 600)
    assert cluster.det("experiment", "pause", str(disturbed)).returncode == 0
    cluster.until_state(disturbed, "PAUSED")
    assert cluster.det("experiment", "activate", str(disturbed)).returncode == 0
    assert cluster.ended(disturbed) == "COMPLETED", cluster.log(disturbed)
    assert cluster.log(disturbed).count("resuming after") == 2
    assert cluster.weights(disturbed) == cluster.weights(undisturbed)


def test_copy_for_a_checkpoint_is_what_the_gpu_had_when_it_was_asked_for() -> None:
    # work that the GPU has not done yet, and work that comes after the copy
    weights = torch.zeros(64 * 2**20, device="cuda")
    image = torch.rand(64, 512, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    for _ in range(200):
        weights += 1
    copy = on_host({"weights": weights, "tied": weights, "image": image, "bias": weights[:5]})
    weights.zero_()
    assert torch.equal(copy["weights"], torch.full((64 * 2**20,), 200.0))
    assert copy["tied"] is copy["weights"]
    assert torch.equal(copy["image"], image.cpu())
    assert copy["image"].stride() == image.stride()
    assert copy["bias"].tolist() == [200.0] * 5


def test_profile_of_a_trial_has_its_gpu(cluster: Cluster) -> None:
    script = """
import time, torch
from determined import core
with core.init() as context:
    context.profiler.on(sampling_interval=1)
    x, began = torch.randn(8192, 8192, device="cuda"), time.time()
    while time.time() - began < 12:
        x @ x
        torch.cuda.synchronize()
    context.profiler.off()
    context.train.report_validation_metrics(1, {"loss": 0.0})
"""
    experiment = cluster.create(SCRIPT, script)
    assert cluster.ended(experiment) == "COMPLETED", cluster.log(experiment)
    reports = [report.metrics for report in cluster.client().get_trial(cluster.trial(experiment)).iter_metrics("gpu")]
    samples = [gpus[uuid_of_gpu()] for report in reports for gpus in report.values()]
    assert samples
    assert max(each["gpu_util"] for each in samples) > 50, samples
    whole = torch.cuda.get_device_properties(0).total_memory
    assert all(0 < each["gpu_free_memory"] < whole for each in samples)


async def test_metrics_of_an_agent_have_the_gpu() -> None:
    x = torch.randn(8192, 8192, device="cuda")
    library = nvml()
    devices = devices_of_host("auto", 1)
    assert [each.uuid for each in devices] == [uuid_of_gpu()]
    health = GpuHealth(library, devices)
    topology = topology_of(library, devices)
    metrics = HostMetrics(cast("Launcher", Containers()), library, devices, health, topology, ("host", "pool"))
    began = time.monotonic()
    while time.monotonic() - began < 3:
        x @ x
        torch.cuda.synchronize()
    text = (await asyncio.to_thread(generate_latest, metrics.registry)).decode()
    found = {named[1]: float(named[2]) for named in re.finditer(r"^(undeterred_gpu_\w+)\{.*\} (\S+)$", text, re.M)}
    assert found["undeterred_gpu_utilization_ratio"] > 0.5
    assert found["undeterred_gpu_memory_used_bytes"] > 2**28
    assert found["undeterred_gpu_power_watts"] > 50
    assert 10 < found["undeterred_gpu_temperature_celsius"] < 100
    assert found["undeterred_gpu_ecc_errors_uncorrected"] == found["undeterred_gpu_in_error"] == 0
    assert health.is_needed
    assert health.broken() == {}


def test_trial_that_wants_more_memory_than_there_is_goes_on_with_a_smaller_batch(
    cluster: Cluster, tmp_path: Path
) -> None:
    whole = torch.cuda.get_device_properties(0).total_memory // 2**20
    policy = "failure_policies: [{failure: out_of_memory, multiply: {global_batch_size: 0.5}}]\n"
    config = CONFIG.format(batch=64, rows=whole // 48, batches=50, restarts=0) + policy
    experiment = cluster.of_model(tmp_path, config)
    assert cluster.ended(experiment) == "COMPLETED", cluster.log(experiment)
    log = cluster.log(experiment)
    assert re.search(r"out of memory with 64 records a slot; 32 fit", log), log
    assert cluster.rows(f"SELECT restarts FROM trials WHERE experiment_id = {experiment}") == [(0,)]


def test_memory_of_a_killed_trial_is_there_for_the_next_one(cluster: Cluster, tmp_path: Path) -> None:
    script = """
import sys, time, torch
from determined import core
with core.init() as context:
    room = torch.ones(int(0.6 * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda")
    context.train.report_validation_metrics(1, {"loss": float(room[-1])})
    print("has its memory", flush=True)
    time.sleep({seconds})
"""
    first = cluster.create(SCRIPT, script.replace("{seconds}", "600"))
    cluster.until(lambda: "has its memory" in cluster.log(first), 60, "the first has its memory", every_s=0.5)
    second = cluster.create(SCRIPT, script.replace("{seconds}", "0"))
    assert cluster.det("experiment", "kill", str(first)).returncode == 0
    assert cluster.ended(second) == "COMPLETED", cluster.log(second)


def test_fault_of_a_program_takes_no_gpu_out_of_service(cluster: Cluster) -> None:
    script = """
import torch
torch.zeros(4, device="cuda")[torch.tensor([10], device="cuda")].sum().item()
"""
    experiment = cluster.create(SCRIPT, script)
    assert cluster.ended(experiment) == "ERROR"
    log = cluster.log(experiment)
    assert "device-side assert" in log
    query = f"SELECT end_cause FROM allocations WHERE trial_id = {cluster.trial(experiment)}"
    assert cluster.rows(query) != [("bad_gpu",)], log
    (slot,) = json.loads(cluster.det("slot", "list", "--json").stdout)
    assert slot.get("enabled", True), slot
    again = cluster.create(SCRIPT, "import torch\nassert torch.ones(8, device='cuda').sum().item() == 8\n")
    assert cluster.ended(again) == "COMPLETED", cluster.log(again)


def test_command_without_slots_sees_no_gpu_and_one_with_a_slot_does(cluster: Cluster) -> None:
    code = "import torch; from determined import gpu; print('sees', torch.cuda.device_count(), len(gpu.get_gpus()[0]))"
    for slots, expected in (("0", "sees 0 0"), ("1", "sees 1 1")):
        done = cluster.det("command", "run", "--config", f"resources.slots={slots}", sys.executable, "-c", code)
        assert expected in done.stdout, done.stdout + done.stderr


def test_processes_of_a_trial_talk_by_nccl(cluster: Cluster) -> None:
    script = """
import torch, torch.distributed as dist
from determined import core
dist.init_process_group("nccl")
torch.cuda.set_device(0)
with core.init(distributed=core.DistributedContext.from_torch_distributed()) as context:
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total)
    context.train.report_validation_metrics(1, {"loss": total.item()})
    with context.checkpoint.store_path({"steps_completed": 1}, shard=True) as (folder, uuid):
        torch.save(total, folder / f"{context.distributed.rank}.pt")
dist.destroy_process_group()
"""
    config = SCRIPT.replace("python3 train.py", "python3 -m determined.launch.torch_distributed python3 train.py")
    experiment = cluster.create(config, script)
    assert cluster.ended(experiment) == "COMPLETED", cluster.log(experiment)
