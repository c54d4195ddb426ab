"""On a running cluster: an import is asked for over REST, and what came is continued, forked, started from, deleted."""

from __future__ import annotations

import io
import json
import tarfile

from sqlalchemy import select

from database.models import Import
from tests.integration.test_continue import verified
from tests.kit.old_cluster import Old
from tests.kit.platform import Platform
from tests.kit.scripts import config as cluster_config

#: Goes on from the checkpoint that it is given, for one more step.
ONE_MORE = """
import json
import determined as det
from determined import core

info = det.get_cluster_info()
with core.init() as context:
    steps = 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            print("restored", sorted(each.name for each in path.iterdir()), flush=True)
        steps = context.checkpoint.get_metadata(info.latest_checkpoint)["steps_completed"]
    context.train.report_validation_metrics(steps + 1, {"val_loss": 0.005})
"""


def prepared(cluster: Platform, old: Old) -> None:
    """What the old cluster had where this machine has something else: its pool, its storage, code that runs here."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("more.py")
        entry.size = len(ONE_MORE)
        archive.addfile(entry, io.BytesIO(ONE_MORE.encode()))
    storage = cluster.folder / "checkpoints"
    changes = {
        "{resources,resource_pool}": cluster.pool,
        "{checkpoint_storage,host_path}": str(storage),
        "{entrypoint}": "python3 more.py",
    }
    for path, value in changes.items():
        old.run(f"UPDATE experiments SET config = jsonb_set(config, '{path}', '{json.dumps(value)}')")
    old.run(f"UPDATE experiments SET model_definition = '\\x{packed.getvalue().hex()}' WHERE NOT unmanaged")
    folder = storage / "20e0fd1f-2d04-4fa5-af6e-fa028aca056b"  # of trial 1
    folder.mkdir(parents=True)
    (folder / "state.txt").write_text("8 bytes.")
    (folder / "metadata.json").write_text('{"steps_completed": 100}    ')


async def done(cluster: Platform, old: Old, mode: str) -> dict[str, dict[str, object]]:
    """Have it imported: by kind how far that came."""
    answer = await cluster.post("/api/v1/undeterred/imports", {"mode": mode, "source": old.url})
    number = answer["import"]["id"]
    assert old.url not in str(answer)

    async def has_ended() -> bool:
        found = (await cluster.get(f"/api/v1/undeterred/imports/{number}"))["import"]
        return found["state"] not in ("WAITING", "RUNNING")

    await cluster.until(has_ended, what=f"import {number} has ended")
    found = (await cluster.get(f"/api/v1/undeterred/imports/{number}"))["import"]
    assert (found["state"], found["error"]) == ("COMPLETED", "")
    return {table["kind"]: table for table in found["tables"]}


async def test_imported_experiments_go_on_as_if_they_had_run_here(cluster: Platform, old: Old) -> None:
    prepared(cluster, old)
    tables = await done(cluster, old, "RUN")
    assert tables["experiments"]["written"] == "123"
    with cluster.database.read() as session:
        assert session.scalars(select(Import.source)).all() == [""], "the address has a password"

    # looked at
    assert (await cluster.experiment(5))["name"] == "search-24"
    assert len(await cluster.metrics(1)) == 1
    assert any("Scheduling Trial 1" in line for line in await cluster.logs(1))
    assert (await cluster.get("/api/v1/checkpoints/20e0fd1f-2d04-4fa5-af6e-fa028aca056b"))["checkpoint"]["uuid"]

    # compared
    curves = await cluster.get("/api/v1/trials/compare", trialIds=[1, 2], metricNames=["val_loss"], group="validation")
    assert [shown["trial"]["id"] for shown in curves["trials"]] == [1, 2]
    assert all(shown["metrics"][0]["data"] for shown in curves["trials"])

    # warm-started from, by an experiment of ours
    searcher = {"max_length": {"batches": 101}, "source_trial_id": 1, "metric": "val_loss"}
    wanted = {**cluster_config(searcher), "entrypoint": "python3 more.py"}
    started = await cluster.create(wanted, {"more.py": ONE_MORE})
    assert (await cluster.finish(started))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(started)
    assert "restored ['metadata.json', 'state.txt']" in await cluster.logs(trial["id"])

    # continued: one that was paused there and never ran, and one that had completed
    for number in (40, 1):
        await cluster.post("/api/v1/experiments/continue", {"id": number, "overrideConfig": ""})
    assert (await cluster.finish(40))["state"] == (await cluster.finish(1))["state"] == "STATE_COMPLETED"
    assert "restored ['metadata.json', 'state.txt']" in await cluster.logs(1)
    assert [report["totalBatches"] for report in await cluster.metrics(1)] == [100, 101]
    assert await verified(cluster, 1) == await verified(cluster, 40) == 3

    # forked, with all that its trials had reached; and started from
    config = (await cluster.experiment(5))["config"]
    config |= {"name": "forked", "searcher": config["searcher"] | {"max_trials": 25}}
    forked = await cluster.post("/api/v1/experiments/5/fork", {"config": json.dumps(config)})
    fork = await cluster.finish(forked["experiment"]["id"])
    assert (fork["state"], fork["numTrials"]) == ("STATE_COMPLETED", 25)
    values = [
        trial["bestValidation"]["metrics"]["avgMetrics"]["val_loss"] for trial in await cluster.trials(fork["id"])
    ]
    assert sorted(values)[0] == 0.005
    assert len([value for value in values if value != 0.005]) == 24, "they did not run again"

    # deleted, but for the files of a storage that is no one's here
    response = await cluster.http.delete("/api/v1/experiments/3")
    assert response.status_code == 200, response.text

    async def is_gone() -> bool:
        return (await cluster.http.get("/api/v1/experiments/3")).status_code == 404

    await cluster.until(is_gone, what="it is deleted")

    # and once more, while the old cluster lives
    tables = await done(cluster, old, "RUN")
    assert {kind: table["written"] for kind, table in tables.items() if table["written"] != "0"} == {}


async def test_a_source_that_can_not_be_used_is_named_without_its_password(cluster: Platform) -> None:
    body = {"mode": "PLAN", "source": "postgresql://me:hunter2@127.0.0.1:1/old"}
    number = (await cluster.post("/api/v1/undeterred/imports", body))["import"]["id"]

    async def is_tried_again() -> bool:
        return (await cluster.get(f"/api/v1/undeterred/imports/{number}"))["import"]["error"] != ""

    await cluster.until(is_tried_again, what="the reason is shown")
    found = (await cluster.get(f"/api/v1/undeterred/imports/{number}"))["import"]
    assert "hunter2" not in str(found)
    assert "127.0.0.1" in found["error"]
    refused = await cluster.http.post("/api/v1/undeterred/imports", json=body)
    assert (refused.status_code, "cancel" in refused.text) == (409, True)
    await cluster.post(f"/api/v1/undeterred/imports/{number}/cancel")

    async def has_ended() -> bool:
        return (await cluster.get(f"/api/v1/undeterred/imports/{number}"))["import"]["state"] == "CANCELED"

    await cluster.until(has_ended, what="it has ended")
    handle = cluster.temporal.get_workflow_handle(f"import-{number}")
    history = (await handle.fetch_history()).to_json()
    assert "hunter2" not in history
