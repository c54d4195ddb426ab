"""What the cluster shows of what the checks did: to the SDK, over REST, in its records and in the checkpoint storage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from determined.common.experimental.metrics import TrialMetrics
from determined.experimental import client
from tests.e2e.core_api.inside.worker import STATUS
from tests.e2e.core_api.launched import Launched

Shown = Callable[[Launched, dict[str, list[Any]]], None]
SHOWN: dict[str, Shown] = {}
"""Name -> compares what the checks of that name returned with what the cluster shows of it."""


def shown(*names: str) -> Callable[[Shown], Shown]:
    """Register what is to be compared."""

    def register(function: Shown) -> Shown:
        SHOWN.update(dict.fromkeys(names, function))
        return function

    return register


# -- what a task knows about itself -------------------------------------------------------------------------------


def _all(facts: dict[str, list[Any]], phase: str = "first") -> Any:
    """What all workers returned alike."""
    first, *others = facts[phase]
    assert others == [first] * len(others)
    return first


@shown("ClusterInfo.cluster_id", "ClusterInfo.master_url")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == launched.get("/api/v1/master")["clusterId"]


@shown("ClusterInfo.agent_id")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) in [agent["id"] for agent in launched.get("/api/v1/agents")["agents"]]


@shown("ClusterInfo.task_id")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == launched.trial(launched.main).task_id


@shown("ClusterInfo.allocation_id")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == launched.runs(launched.trial(launched.main))[0]["id"]


@shown("ClusterInfo.task_type")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == "TRIAL"


@shown("ClusterInfo.master_cert_name", "ClusterInfo.master_cert_file")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) is None, "without TLS"


@shown("ClusterInfo.user_data")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == {"phase": "main"}


@shown("ClusterInfo.container_rank")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == 0


@shown("ClusterInfo.container_slot_counts")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == [launched.workers]


@shown("ClusterInfo.container_addrs", "RendezvousInfo")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == ["127.0.0.1"]


@shown("ClusterInfo.slot_ids")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    (placement,) = json.loads(launched.runs(launched.trial(launched.main))[0]["placements"])
    assert len(_all(facts)) == launched.workers
    assert _all(facts) == placement["slot_ids"]


@shown("ClusterInfo.gpu_uuids", "ResourcesInfo.gpu_uuids")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == []


@shown("ClusterInfo.latest_checkpoint")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) is None
    assert _all(facts, "resumed") == _all(launched.facts("CheckpointContext.store_path(shard=True)"))


@shown("TrialInfo.trial_id")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == launched.trial(launched.main).id


@shown("TrialInfo.experiment_id")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == launched.main.id


@shown("TrialInfo.trial_seed")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    trial = launched.trial(launched.main)
    assert launched.cluster.rows(f"SELECT seed FROM trials WHERE id = {trial.id}") == [(_all(facts),)]


@shown("TrialInfo.hparams")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == {"phase": "main", "width": 8}


# -- the workers ---------------------------------------------------------------------------------------------------


@shown("DistributedContext.get_rank", "DistributedContext.get_local_rank")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert facts["first"] == list(range(launched.workers))


@shown("DistributedContext.get_size")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == launched.workers


@shown("DistributedContext.get_num_agents")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == 1


@shown(*(f"DistributedContext.from_{launcher}" for launcher in ("horovod", "deepspeed", "torch_distributed")))
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    size = launched.workers
    assert facts["first"] == [[rank, size, rank, size, 0, 1] for rank in range(size)]


@shown("Context.close")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    (report,) = launched.trial(launched.main).iter_metrics("closed")
    assert (report.steps_completed, report.metrics) == (1, {"reports": 1})


# -- checkpoints ---------------------------------------------------------------------------------------------------


def _checkpoint(launched: Launched, uuid: str, folder: Path, metadata: dict[str, Any], files: dict[str, str]) -> None:
    """The SDK shows and downloads exactly these files, and the metadata beside them."""
    checkpoint = launched.master.get_checkpoint(uuid)
    assert checkpoint.state is client.CheckpointState.COMPLETED
    assert checkpoint.metadata == metadata
    assert checkpoint.training is not None
    assert checkpoint.training.trial_id == launched.trial(launched.main).id
    shown = {path: int(size) for path, size in checkpoint.resources.items() if not path.endswith("/")}
    assert shown.pop("metadata.json") > 0
    assert shown == {path: len(text) for path, text in files.items()}
    for mode in (client.DownloadMode.DIRECT, client.DownloadMode.MASTER):
        got = Path(checkpoint.download(str(folder / mode.value), mode))
        found = {str(path.relative_to(got)): path.read_text() for path in got.rglob("*") if path.is_file()}
        assert json.loads(found.pop("metadata.json")) == metadata
        assert found == files


def _parts(name: str, ranks: int) -> dict[str, str]:
    return {f"parts/rank{rank}.txt": f"{name} of rank {rank}" for rank in range(ranks)}


@shown("CheckpointContext.upload")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    metadata = {"steps_completed": 1, "note": "plain"}
    _checkpoint(launched, _all(facts), launched.folder(), metadata, {**_parts("plain", 1), "left-out-0.tmp": ""})


@shown("CheckpointContext.upload(shard=True, selector)")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    metadata = {"steps_completed": 2, **{f"rank{rank}": rank for rank in range(launched.workers)}}
    _checkpoint(launched, _all(facts), launched.folder(), metadata, _parts("sharded", launched.workers))


@shown("CheckpointContext.store_path")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    _checkpoint(launched, _all(facts), launched.folder(), {"steps_completed": 3}, {"model.txt": "stored"})


@shown("CheckpointContext.store_path(shard=True)")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    files = {f"model-{rank}.txt": f"stored by rank {rank}" for rank in range(launched.workers)}
    _checkpoint(launched, _all(facts), launched.folder(), {"steps_completed": 4}, files)


@shown("CheckpointContext.delete")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    uuid = _all(facts)
    assert launched.master.get_checkpoint(uuid).state is client.CheckpointState.DELETED
    assert not (launched.storage / uuid).exists()
    assert (launched.storage / _all(launched.facts("CheckpointContext.upload"))).exists(), "it is looked for there"


# -- training ------------------------------------------------------------------------------------------------------


@shown("TrainContext.report_training_metrics")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    first, second = launched.trial(launched.main).iter_metrics("training")
    assert (first.steps_completed, first.metrics) == (1, {"loss": 0.5, "text": "words"})
    assert first.batch_metrics == [{"loss": 0.75}, {"loss": 0.25}]
    assert (second.steps_completed, second.metrics) == (2, {"loss": 0.125})


@shown("TrainContext.report_validation_metrics")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    trial = launched.trial(launched.main)
    reports = list(trial.iter_metrics("validation"))
    assert [(r.steps_completed, r.metrics.get("accuracy")) for r in reports] == [
        (1, 0.5),
        (2, 0.75),
        (3, 0.625),
        (4, 0.875),
    ]
    assert reports[1].metrics["nested"] == {"deep": [2]}
    assert trial.searcher_metric_value == 0.875


@shown("TrainContext.report_metrics")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    (report,) = launched.trial(launched.main).iter_metrics("inference")
    assert (report.steps_completed, report.metrics) == (3, {"latency_ms": 12.5})


@shown("TrainContext.report_curves")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    reports = launched.trial(launched.main).iter_metrics("curves")
    assert [(r.steps_completed, r.metrics) for r in reports] == [
        (1, {"loss": 0.5, "rate": 0.1}),
        (2, {"loss": 0.25}),
        (4, {"loss": 0.125, "rate": 0.2}),
    ]


@shown("TrainContext.get_experiment_best_validation")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == 0.75


@shown("TrainContext.report_progress")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert launched.waiting[launched.trial(launched.main).id]["progress"] == 0.25


@shown("TrainContext.set_status")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert launched.waiting[launched.trial(launched.main).id]["runnerState"] == STATUS


@shown("TrainContext.upload_tensorboard_files")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    names = [name for name in launched.tensorboard() if name.startswith("default")]
    assert names == [f"default-{rank}.txt" for rank in range(launched.workers)]
    assert "left-out.txt" not in launched.tensorboard()


@shown("TrainContext.upload_tensorboard_files(selector, mangler)")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    found = {name: text for name, text in launched.tensorboard().items() if name.startswith("plugins")}
    assert found == {f"plugins/events#{rank}.txt": f"events of rank {rank}" for rank in range(launched.workers)}


@shown("TrainContext.report_early_exit")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    trial = launched.trial(launched.leaving)
    assert launched.cluster.rows(f"SELECT early_exit, run_id FROM trials WHERE id = {trial.id}") == [("invalid_hp", 1)]


# -- the searcher --------------------------------------------------------------------------------------------------


@shown("SearcherContext.get_configured_units")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts) == "BATCHES"


@shown("SearcherContext.operations(searcher_mode=ChiefOnly)")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert facts["first"] == [4] + [None] * (launched.workers - 1)


@shown("SearcherOperation.length")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert _all(facts, "resumed") == 4


@shown("SearcherOperation.report_progress")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert launched.waiting[launched.trial(launched.leaving).id]["progress"] == 0.75


@shown("SearcherOperation.report_completed")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    trial = launched.trial(launched.main)
    assert launched.cluster.rows(f"SELECT is_closed, searcher_metric FROM trials WHERE id = {trial.id}") == [(1, 0.875)]
    assert launched.main.progress == 1.0


# -- preemption ----------------------------------------------------------------------------------------------------


def _acknowledged(run: dict[str, Any], not_before: float) -> None:
    """The cluster heard of it, and not before the check told it."""
    assert run["preempt_acked_at"] is not None
    at = datetime.fromisoformat(run["preempt_acked_at"]).replace(tzinfo=UTC).timestamp()
    assert at >= not_before


@shown("PreemptContext.acknowledge_preemption_signal")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    run = launched.runs(launched.trial(launched.main))[0]
    assert run["end_cause"] == "preempted"
    _acknowledged(run, facts["first"][0])


@shown("PreemptContext.should_preempt")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    (run,) = launched.runs(launched.trial(launched.leaving))
    _acknowledged(run, facts["leaving"][0])


@shown("SearcherContext.acknowledge_out_of_ops")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    run = launched.runs(launched.trial(launched.main))[1]
    assert run["end_cause"] == "out_of_operations"
    _acknowledged(run, facts["resumed"][0])


# -- what else a trial tells ---------------------------------------------------------------------------------------


@shown("Context.alert")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    trial = launched.trial(launched.main)
    events = [event["event_data"] for event in launched.alerts() if event["event_type"] == "CUSTOM"]
    (custom,) = [event["custom"] for event in events if event["experiment"]["id"] == launched.main.id]
    assert custom == {"title": "half way", "description": "loss 0.1", "level": "WARNING", "trial_id": trial.id}


@shown("ProfilerContext.on", "ProfilerContext.off")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    trial = launched.trial(launched.main)
    (agent,) = [agent["id"] for agent in launched.get("/api/v1/agents")["agents"]]
    for group, name in (("cpu", "cpu_util_simple"), ("memory", "memory_free"), ("disk", "disk_iops")):
        reports = list(trial.iter_metrics(group))
        assert reports, group
        assert all(report.metrics[agent][name] >= 0 for report in reports)
    assert list(trial.iter_metrics("network"))


@shown("TrainContext.set_metadata", "TrainContext.get_metadata")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    trial = launched.get(f"/api/v1/trials/{launched.trial(launched.main).id}")["trial"]
    assert _all(facts) == trial["metadata"]


@shown("TensorboardMode.AUTO")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    assert [name for name in launched.tensorboard() if name.startswith("auto")] == ["auto-0.txt"]
    events = b"".join(path.read_bytes() for path in launched.tensorboard_folder().rglob("*tfevents*"))
    assert b"Determined/automatic/speed" in events
    assert b"Determined/val_accuracy" in events, "of the run that was resumed in this mode"
    assert b"latency_ms" not in events, "reported in the other mode"


@shown("ExperimentalCoreContext.report_task_using_checkpoint")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    uuid = _all(launched.facts("CheckpointContext.upload"))
    _works_with(launched, launched.master.get_checkpoint(uuid).get_metrics("inference"))


@shown("ExperimentalCoreContext.report_task_using_model_version")
def _(launched: Launched, facts: dict[str, list[Any]]) -> None:
    version = launched.master.get_model(_all(facts)).get_version(1)
    assert version is not None
    _works_with(launched, version.get_metrics("inference"))


def _works_with(launched: Launched, reports: Iterable[TrialMetrics]) -> None:
    (report,) = reports
    assert (report.trial_id, report.metrics) == (launched.trial(launched.main).id, {"latency_ms": 12.5})
