"""The searcher's operations, preemption, and what `core.init` refuses."""

from __future__ import annotations

import json
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import determined as det
from determined import core, errors

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Call, Trial

ACK = "POST /api/v1/allocations/a.1/signals/ack_preemption"
POLL = "GET /api/v1/allocations/a.1/signals/preemption"


def test_all_operations_are_handed_out_and_acknowledged(trial: Trial) -> None:
    trial.lengths = [1, 4, 16]
    with trial.init() as ctx:
        done = 0
        for op in ctx.searcher.operations():
            while done < op.length:
                done += 1
                ctx.train.report_validation_metrics(done, {"accuracy": done / 16})
            op.report_progress(done)
            op.report_completed(done / 16)
    assert [c["op"]["length"] for c in trial.completed] == [1, 4, 16]
    assert [c["searcherMetric"] for c in trial.completed] == [1 / 16, 4 / 16, 1.0]
    assert len(trial.master.of(ACK)) == 1
    assert trial.master.of("POST /api/v1/trials/7/progress")[-1].body == 16.0
    paths = [c.path for c in trial.master.calls]
    first_done = paths.index("/api/v1/trials/7/searcher/completed_operation")
    assert "/api/v1/trials/7/metrics/batch" in paths[:first_done]


def test_auto_ack_can_be_left_out(trial: Trial) -> None:
    with trial.init() as ctx:
        for op in ctx.searcher.operations(core.SearcherMode.ChiefOnly, auto_ack=False):
            op.report_completed(1)
        assert trial.master.of(ACK) == []
        ctx.searcher.acknowledge_out_of_ops()
    assert len(trial.master.of(ACK)) == 1


def test_a_decision_that_takes_a_while_is_waited_for(trial: Trial) -> None:
    answers = [1, 1, 1, 4, 4]

    def operation(call: Call) -> Any:
        length = answers.pop(0) if answers else None
        if length is None:
            return {"completed": True}
        return {"op": {"validateAfter": {"length": str(length)}}, "completed": False}

    trial.master.answer("GET /api/v1/trials/7/searcher/operation", operation)
    trial.master.answer("POST /api/v1/trials/7/searcher/completed_operation", {})
    lengths = []
    with trial.init() as ctx:
        for op in ctx.searcher.operations():
            lengths.append(op.length)
            op.report_completed(0)
    assert lengths == [1, 4]


def test_the_next_operation_comes_with_the_answer(trial: Trial) -> None:
    trial.lengths = [1, 4, 16]
    trial.answers_next = True
    with trial.init() as ctx:
        lengths = []
        for op in ctx.searcher.operations():
            lengths.append(op.length)
            op.report_completed(0.5)
    assert lengths == [1, 4, 16]
    assert len(trial.master.of("GET /api/v1/trials/7/searcher/operation")) == 2, "the first, and that there is no more"


def test_an_operation_must_be_completed_once(trial: Trial) -> None:
    with trial.init() as ctx:
        ops = ctx.searcher.operations()
        op = next(ops)
        with pytest.raises(RuntimeError, match="operation of length 4 was not completed"):
            next(ops)
        op.report_completed(1.0)
        with pytest.raises(RuntimeError, match="twice"):
            op.report_completed(1.0)
        with pytest.raises(RuntimeError, match="completed already"):
            op.report_progress(1)


def test_a_completion_whose_answer_was_lost_counts(trial: Trial, quick_backoff: None) -> None:
    route = "POST /api/v1/trials/7/searcher/completed_operation"
    trial.lengths = [4, 8]
    trial.master.lose = lambda call: call.path.endswith("completed_operation") and len(trial.master.of(route)) == 1
    with trial.init() as ctx:
        for op in ctx.searcher.operations():
            op.report_completed(0.5)
    assert [c["op"]["length"] for c in trial.completed] == [4, 8]
    assert len(trial.master.of(route)) == 3


def test_a_wrong_length_is_an_error(trial: Trial) -> None:
    with trial.init() as ctx, pytest.raises(errors.InvalidRequestException, match="does not match"):
        for op in ctx.searcher.operations():
            trial.lengths[0] = 99
            op.report_completed(0.5)


def test_a_searcher_without_lengths_hands_out_no_operations(trial: Trial) -> None:
    trial.config["searcher"] = {"name": "adaptive_asha", "metric": "m", "time_metric": "epochs", "max_time": 16}
    with trial.init() as ctx:
        with pytest.raises(errors.InvalidConfigurationException, match=r"searcher\.max_length"):
            ctx.searcher.operations()
        assert ctx.searcher.get_configured_units() is None


@pytest.mark.parametrize(
    ("length", "unit"),
    [
        ({"epochs": 3}, core.Unit.EPOCHS),
        ({"batches": 3}, core.Unit.BATCHES),
        ({"records": 3}, core.Unit.RECORDS),
        (3, None),
    ],
)
def test_the_unit_is_the_configured_one(trial: Trial, length: Any, unit: core.Unit | None) -> None:
    trial.config["searcher"]["max_length"] = length
    with trial.init() as ctx:
        assert ctx.searcher.get_configured_units() == unit


def test_preemption_is_noticed_acknowledged_once_and_costs_nothing_to_ask(trial: Trial) -> None:
    with trial.init() as ctx:
        assert trial.master.of(POLL)[0].query == {"timeout_seconds": ["0"]}
        assert not ctx.preempt.should_preempt()
        costs = []
        for _ in range(1000):
            began = time.perf_counter()
            ctx.preempt.should_preempt()
            costs.append(time.perf_counter() - began)
        assert statistics.median(costs) < 10e-6
        trial.master.wait_for(lambda: len(trial.master.of(POLL)) == 2)
        assert trial.master.of(POLL)[1].query == {"timeout_seconds": ["60"]}
        trial.preempt.set()
        trial.master.wait_for(lambda: ctx.preempt.should_preempt(auto_ack=False))
        assert trial.master.of(ACK) == []
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        assert ctx.preempt.should_preempt()
        assert len(trial.master.of(ACK)) == 1
        paths = [c.path for c in trial.master.calls]
        assert paths.index("/api/v1/trials/7/metrics/batch") < paths.index(trial.master.of(ACK)[0].path)
        assert ctx.preempt.should_preempt()
        with ctx.checkpoint.store_path({"steps_completed": 1}):
            pass
    assert len(trial.master.of(ACK)) == 1
    assert len(trial.master.of("POST /api/v1/checkpoints")) == 1


def test_a_signal_that_is_there_from_the_start_is_seen_at_once(trial: Trial) -> None:
    trial.preempt.set()
    with trial.init(preempt_mode=core.PreemptMode.WorkersAskMaster) as ctx:
        assert ctx.preempt.should_preempt()


def test_leaving_the_context_ends_a_long_poll(trial: Trial) -> None:
    with trial.init():
        trial.master.wait_for(lambda: len(trial.master.of(POLL)) == 2)
        began = time.monotonic()
    assert time.monotonic() - began < 20


def test_the_poll_survives_an_outage(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    from determined.common.api._retry import Backoff

    monkeypatch.setattr("determined.core._preempt.Backoff", lambda **k: Backoff(0.01, 0.1))
    with trial.init() as ctx:
        trial.master.wait_for(lambda: len(trial.master.of(POLL)) == 2)
        trial.master.stop()
        threading.Event().wait(0.3)
        assert not ctx.preempt.should_preempt()
        trial.preempt.set()
        trial.master.start()
        trial.master.wait_for(ctx.preempt.should_preempt)


def test_an_allocation_that_has_ended_cannot_start(trial: Trial) -> None:
    trial.master.answer(POLL, (401, {"message": "allocation is over"}))
    with pytest.raises(errors.AllocationEnded, match="allocation is over"), trial.init():
        pytest.fail("the block must not run")


def test_an_ended_allocation_is_raised_by_should_preempt(trial: Trial) -> None:
    with pytest.raises(errors.AllocationEnded), trial.init() as ctx:
        trial.master.answer(POLL, (403, {"message": "over"}))
        trial.preempt.set()
        # The poll that is open answers True; the next one would be refused, but there is none.
        trial.master.wait_for(lambda: ctx.preempt.should_preempt(auto_ack=False))
        trial.master.answer(ACK, (403, {"message": "over"}))
        ctx.preempt.should_preempt()
        ctx.preempt.acknowledge_preemption_signal()


def test_several_slots_need_a_distributed_context(trial: Trial) -> None:
    trial.slot_ids = [0, 1]
    with pytest.raises(ValueError, match="2 slots.*distributed=DistributedContext"):
        trial.init()
    one = core.DistributedContext(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    with trial.init(distributed=one) as ctx:
        assert ctx.distributed is one


def test_a_distributed_context_says_what_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rank is 2 and size is 2"):
        core.DistributedContext(rank=2, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    with pytest.raises(ValueError, match="chief_ip"):
        core.DistributedContext(rank=0, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=2)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="RANK is not set.*torchrun"):
        core.DistributedContext.from_torch_distributed()
    for name in (*names, "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"):
        monkeypatch.setenv(name, "1" if name.endswith("SIZE") else "0")
    for dist in (core.DistributedContext.from_torch_distributed(), core.DistributedContext.from_deepspeed()):
        assert (dist.get_rank(), dist.get_local_rank(), dist.get_size(), dist.get_num_agents()) == (0, 0, 1, 1)
        assert dist.gather(1) == dist.gather_local(1) == dist.allgather(1) == dist.allgather_local(1) == [1]
        assert dist.broadcast(1) == dist.broadcast_local(1) == 1


def test_cluster_info_tells_what_the_launcher_wrote(trial: Trial) -> None:
    trial.latest_checkpoint = "abc"
    trial.config["data"] = {"path": "/data"}
    trial.write_info()
    info = det.get_cluster_info()
    assert info is not None
    assert info is det.get_cluster_info()
    assert (info.task_type, info.agent_id, info.slot_ids, info.allocation_id) == ("TRIAL", "agent", [0], "a.1")
    assert (info.trial.trial_id, info.trial.experiment_id, info.trial.trial_seed) == (7, 3, 42)
    assert info.trial.hparams == {"lr": 0.1}
    assert info.latest_checkpoint == "abc"
    assert info.user_data == {"path": "/data"}
    assert (info.container_addrs, info.container_rank, info.container_slot_counts) == (["127.0.0.1"], 0, [1])
    assert info.gpu_uuids == []
    assert "secret-token" not in repr(info)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("cluster.json", "task_id", None, "task_id is missing"),
        ("cluster.json", "slot_ids", ["x"], "slot_ids must be of type list of int, but is"),
        ("trial.json", "trial_id", True, "trial_id must be of type int, but is True"),
        ("rendezvous.json", "container_rank", 5, "container_rank is 5, but container_addrs has 1 entries"),
        (
            "rendezvous.json",
            "container_slot_counts",
            [1, 1],
            "container_slot_counts has 2 entries, but container_addrs has 1",
        ),
        (
            "rendezvous.json",
            "container_slot_counts",
            [2],
            r"says 2 slots for this container \(rank 0\), but slot_ids .* has 1: \[0\]",
        ),
        (
            "trial.json",
            "config",
            {"searcher": {}, "resources": 1},
            "lacks checkpoint_storage, resources, which must be objects",
        ),
        ("trial.json", "config", {"version": 3}, "is of version 3, but this package knows version 0"),
    ],
)
def test_a_broken_info_file_is_named(trial: Trial, file: str, key: str, value: Any, message: str) -> None:
    trial.write_info()
    path = trial.run_dir / "info" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(errors.InvalidConfigurationException, match=message):
        det.get_cluster_info()


def test_other_broken_info_files(trial: Trial) -> None:
    trial.write_info()
    info = trial.run_dir / "info"
    (info / "cluster.json").write_text("[]")
    with pytest.raises(errors.InvalidConfigurationException, match="must hold a JSON object"):
        det.get_cluster_info()
    (info / "cluster.json").write_text("{")
    with pytest.raises(errors.InvalidConfigurationException, match="not valid JSON"):
        det.get_cluster_info()
    trial.write_info()
    (info / "trial.json").unlink()
    with pytest.raises(errors.InvalidConfigurationException, match=r"trial\.json is missing"):
        det.get_cluster_info()


def test_modules_of_one_name_can_be_imported_from_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        package = tmp_path / name / "det_test_model"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"NAME = {name!r}\nfrom det_test_model import part\n")
        (package / "part.py").write_text(f"PART = {name!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    import det_test_model as first  # type: ignore[import-not-found]

    with det.import_from_path(tmp_path / "two"):
        import det_test_model as second  # type: ignore[import-not-found]
    import det_test_model as third  # type: ignore[import-not-found]

    assert (first.NAME, first.part.PART) == ("one", "one")
    assert (second.NAME, second.part.PART) == ("two", "two")
    assert third is first
    with pytest.raises(FileNotFoundError, match="not a directory"), det.import_from_path(tmp_path / "three"):
        pass
