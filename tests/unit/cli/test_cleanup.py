"""`det experiment continue`, `gc` and `set gc-policy` against canned answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cluster, Det

DOOMED = [
    {"UUID": "aaa", "TrialID": 4, "StepsCompleted": 10, "State": "COMPLETED", "Size": 1500, "Resources": {}},
    {"UUID": "bbb", "TrialID": 4, "StepsCompleted": 20, "State": "COMPLETED", "Size": 500, "Resources": {}},
]


@pytest.fixture(autouse=True)
def routes(cluster: Cluster) -> None:
    cluster.routes |= {
        "GET /experiments/7/preview_gc": {"metric_name": "loss", "checkpoints": DOOMED},
        "POST /api/v1/undeterred/experiments/7/gc": {},
        "PATCH /api/v1/experiments/7": {"experiment": {"id": 7}},
        "POST /api/v1/experiments/continue": {"experiment": {"id": 7}},
    }


def sent(cluster: Cluster) -> list[str]:
    return [route for route, _, _ in cluster.requests if not route.startswith("GET")]


def test_dry_run_lists_what_would_go_and_changes_nothing(cluster: Cluster, det: Det) -> None:
    result = det("e", "gc", "7", "--dry-run", "--save-trial-best", "3")
    assert result.code == 0
    assert "aaa" in result.out
    assert "bbb" in result.out
    assert "2 checkpoints, 2.0 KB" in result.out
    assert cluster.query_of("GET /experiments/7/preview_gc") == {"save_trial_best": ["3"]}
    assert sent(cluster) == []


def test_gc_asks_then_removes(cluster: Cluster, det: Det) -> None:
    assert det("e", "gc", "7", "--yes").code == 0
    assert sent(cluster) == ["POST /api/v1/undeterred/experiments/7/gc"]
    refused = det("e", "gc", "7", "--save-trial-best", "3")
    assert refused.code != 0
    assert "set gc-policy 7" in refused.err
    cluster.routes["GET /experiments/7/preview_gc"] = {"metric_name": "loss", "checkpoints": []}
    cluster.requests.clear()
    assert "No checkpoint would be removed" in det("e", "gc", "7", "--yes").out
    assert sent(cluster) == []


def test_policy_is_changed_after_its_preview(cluster: Cluster, det: Det) -> None:
    words = ["--save-experiment-best", "0", "--save-trial-best", "1", "--save-trial-latest", "2", "--yes"]
    result = det("e", "set", "gc-policy", "7", *words)
    assert result.code == 0
    assert cluster.body_of("PATCH /api/v1/experiments/7") == {
        "checkpointStorage": {"saveExperimentBest": 0, "saveTrialBest": 1, "saveTrialLatest": 2}
    }
    missing = det("e", "set", "gc-policy", "7", "--save-trial-best", "1")
    assert missing.code == 2
    assert "--save-experiment-best" in missing.err


def test_continue_sends_only_what_is_to_be_different(cluster: Cluster, det: Det, tmp_path: Path) -> None:
    assert "Continued experiment 7" in det("e", "continue", "7").out
    assert cluster.body_of("POST /api/v1/experiments/continue") == {"id": 7}
    det("e", "continue", "7", "--config", "searcher.max_length.batches=200")
    override = cluster.body_of("POST /api/v1/experiments/continue")["overrideConfig"]
    assert override.split() == ["searcher:", "max_length:", "batches:", "200"]
    file = tmp_path / "more.yaml"
    file.write_text("max_restarts: 3\n")
    det("e", "continue", "7", "--config-file", str(file))
    assert cluster.body_of("POST /api/v1/experiments/continue")["overrideConfig"] == "max_restarts: 3\n"
    cluster.routes["POST /api/v1/experiments/continue"] = (
        400,
        {"message": "experiment in non terminal state 'ACTIVE'"},
    )
    refused = det("e", "continue", "7")
    assert refused.code != 0
    assert "non terminal state" in refused.err
