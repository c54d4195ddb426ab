"""`det experiment create`: what it shows, what it checks before it sends anything, and that it creates once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli import check
from cli.create import left_out_of
from determined import __version__
from tests.unit.cli.conftest import BrokenOff, Cluster, Det
from tests.unit.cli.test_experiment import experiment

CONFIG = """
name: digits
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 3}}
"""
WRONG = """\
name: digits
searcher:
  name: single
  metirc: loss
  max_length: {batches: 3}
resources:
  slots_per_trail: 2
"""
CREATE = "POST /api/v1/experiments"


@pytest.fixture
def folder(tmp_path: Path, cluster: Cluster) -> Path:
    cluster.routes[CREATE] = {"experiment": experiment("ACTIVE")}
    cluster.routes["GET /api/v1/master"] = {"version": "0.38.1", "undeterredVersion": __version__}
    (tmp_path / "config.yaml").write_text(CONFIG)
    for name, content in {
        "train.py": "print()",
        "weights.bin": "w" * 2_500_000,
        "data/large": "x",
        "pkg/model.py": "m",
        "pkg/__pycache__/model.pyc": "c",
        "pkg/notes.tmp": "n",
        ".detignore": "data\n*.tmp\n",
    }.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def was_sent(cluster: Cluster) -> bool:
    return any(name == CREATE for name, _, _ in cluster.requests)


def test_it_shows_what_is_sent_and_what_is_left_out(det: Det, folder: Path) -> None:
    result = det("e", "create", folder / "config.yaml", folder / "model")
    assert (result.code, result.out) == (0, "Created experiment 7\n")
    assert "3 file(s), 2.5 MB: weights.bin (2.5 MB), train.py, pkg/model.py\n" in result.err
    assert "Left out by .detignore or as never needed: data/, pkg/__pycache__/, pkg/notes.tmp\n" in result.err


def test_many_names_are_cut_short(det: Det, folder: Path) -> None:
    for at in range(20):
        (folder / "model" / f"many{at:02}.py").write_text("x")
    assert "23 file(s), 2.5 MB: weights.bin (2.5 MB), train.py, pkg/model.py, many19.py, many18.py, … 18 more" in (
        det("e", "create", folder / "config.yaml", folder / "model").err
    )


def test_left_out_names_a_folder_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    assert left_out_of(tmp_path, {"a"}) == ["a/b/"]
    assert left_out_of(tmp_path, {"a", "a/b"}) == ["a/b/c"]
    assert left_out_of(tmp_path, {"a", "a/b", "a/b/c"}) == []


def test_all_problems_at_once_and_nothing_is_sent(cluster: Cluster, det: Det, folder: Path) -> None:
    path = folder / "config.yaml"
    path.write_text(WRONG)
    result = det("e", "create", path, folder / "model")
    assert result.code == 1
    assert not was_sent(cluster)
    first, *lines = result.err.splitlines()
    assert first == f"{path} has 4 problems; nothing was sent:"
    assert f"{path}: managed experiments require entrypoint" in lines
    assert any(line.startswith(f"{path}:2:1: <config>.searcher: metric is a required property") for line in lines)
    assert any(line.startswith(f"{path}:4:3: ") and 'did you mean "metric"?' in line for line in lines)
    assert any(line.startswith(f"{path}:7:3: ") and 'did you mean "slots_per_trial"?' in line for line in lines)


def test_lines_are_not_named_if_the_text_is_not_the_files(det: Det, folder: Path) -> None:
    path = folder / "config.yaml"
    result = det("e", "create", path, "--config", "resources.slots_per_trail=2")
    assert result.code == 1
    assert f'{path}: <config>.resources: additionalProperties "slots_per_trail" not allowed' in result.err


def test_a_cluster_of_another_version_decides(cluster: Cluster, det: Det, folder: Path) -> None:
    cluster.routes["GET /api/v1/master"] = {"version": "0.38.1", "undeterredVersion": "9.8.7"}
    (folder / "config.yaml").write_text(WRONG)
    result = det("e", "create", folder / "config.yaml")
    assert result.code == 0
    assert was_sent(cluster)
    assert f"This client has version {__version__} and the cluster 9.8.7, which decides" in result.err
    assert result.err.count("\nwarning: ") == 4


def test_a_template_fills_up_before_the_check(cluster: Cluster, det: Det, folder: Path) -> None:
    (folder / "config.yaml").write_text("entrypoint: python3 train.py\n")
    assert det("e", "create", folder / "config.yaml").code == 1
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 3}}
    cluster.routes["GET /api/v1/templates/base"] = {"template": {"config": {"searcher": searcher}}}
    assert det("e", "create", folder / "config.yaml", "--template", "base").code == 0


@pytest.mark.parametrize(
    ("storage", "count"),
    [("{storage_path: x}", 0), ("{type: shared_fs, host_path: /x, storag: x}", 1), ("{type: sharedfs}", 1)],
)
def test_storage_is_judged_if_it_says_its_type(storage: str, count: int) -> None:
    """Without one it becomes whatever the cluster's is."""
    assert len(check.findings(f"{CONFIG}checkpoint_storage: {storage}\n")) == count


@pytest.mark.parametrize("text", ["", "a: [1", "[]", "version: 7", "\tx"])
def test_text_that_is_no_configuration_is_a_finding(text: str) -> None:
    found = check.findings(text)
    assert found
    assert all(check.describe(problem, "c.yaml").startswith("c.yaml:") for problem in found)


def test_an_answer_that_vanishes_makes_no_second_experiment(cluster: Cluster, det: Det, folder: Path) -> None:
    answers: list[Any] = [BrokenOff(), (503, {"message": "away"}), {"experiment": experiment("ACTIVE")}]
    left = iter(answers)
    cluster.routes[CREATE] = lambda query, body: next(left)
    result = det("e", "create", folder / "config.yaml")
    assert (result.code, result.out) == (0, "Created experiment 7\n")
    assert len(cluster.keys) == len(answers)
    assert len(set(cluster.keys)) == 1


def test_it_says_so_if_it_may_have_been_created(cluster: Cluster, det: Det, folder: Path) -> None:
    cluster.routes[CREATE] = BrokenOff()
    result = det("e", "create", folder / "config.yaml")
    assert result.code == 1
    assert "it may have been created: look with `det experiment list`" in result.err


# -- several documents -------------------------------------------------------------------------------------------------

MANY = "POST /api/v1/undeterred/experiments"
SEVERAL = f"# two seeds\n---\n{CONFIG.strip()}\n--- # the other one\n{CONFIG.strip()}\nreproducibility: {{experiment_seed: 2}}\n---\n"


def test_a_file_with_several_documents_creates_one_of_each(det: Det, folder: Path, cluster: Cluster) -> None:
    made = [{"id": 7, "name": "digits", "warnings": [], "notices": ["a notice"]}, {"id": 8, "name": "digits"}]
    cluster.routes[MANY] = {"experiments": made}
    (folder / "config.yaml").write_text(SEVERAL)
    result = det("e", "create", folder / "config.yaml", folder / "model", "--project_id", "3", "--paused")
    assert (result.code, result.out) == (0, "Created experiment 7\nCreated experiment 8\n"), result.err
    assert "warning: a notice" in result.err
    [(_, _, body)] = [request for request in cluster.requests if request[0] == MANY]
    texts = [each["config"] for each in body["experiments"]]
    assert [text.strip().splitlines()[-1][:15] for text in texts] == ["searcher: {name", "reproducibility"]
    assert [(each["activate"], each["projectId"]) for each in body["experiments"]] == [(False, 3)] * 2
    assert len(body["modelDefinition"]) == 4


def test_what_is_wrong_with_a_later_document_is_said_with_its_line_of_the_file(
    det: Det, folder: Path, cluster: Cluster
) -> None:
    (folder / "config.yaml").write_text(SEVERAL.replace("experiment_seed: 2", "experiment_sed: 2"))
    result = det("e", "create", folder / "config.yaml", folder / "model")
    assert result.code == 1
    line = SEVERAL[: SEVERAL.index("reproducibility")].count("\n") + 1
    assert f"config.yaml:{line}:" in result.err
    assert not any(name == MANY for name, _, _ in cluster.requests)


@pytest.mark.parametrize("option", ["--follow", "-f", "--test-mode", "--local"])
def test_what_is_for_one_experiment_takes_one_document(det: Det, folder: Path, cluster: Cluster, option: str) -> None:
    (folder / "config.yaml").write_text(SEVERAL)
    result = det("e", "create", folder / "config.yaml", folder / "model", option)
    assert result.code == 1
    assert "has 2 documents: --follow, -f, --test-mode and --local take one" in result.err
    assert not cluster.requests


def test_one_document_is_sent_as_it_is(det: Det, folder: Path, cluster: Cluster) -> None:
    text = f"# seed 1\n---\n{CONFIG}"
    (folder / "config.yaml").write_text(text)
    assert det("e", "create", folder / "config.yaml", folder / "model").code == 0
    [(_, _, body)] = [request for request in cluster.requests if request[0] == CREATE]
    assert body["config"] == text
