"""`det dev simulate-pool`: traces read and refused, figures, comparisons, pictures. No cluster is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.trace import read_trace
from tests.unit.cli.conftest import Det

REPOSITORY = Path(__file__).resolve().parents[3]
TRACE: dict[str, Any] = {
    "agents": [{"count": 4, "slots": 8}],
    "jobs": [
        {"name": "sweep", "duration_s": 3600, "count": 32, "user": "ada", "priority": 50},
        {"name": "urgent", "at_s": 600, "slots": 16, "duration_s": 600, "user": "bob", "priority": 10},
        {"name": "giant", "slots": 64, "duration_s": 10, "user": "eve"},
    ],
}
GENERATE: dict[str, Any] = {
    "jobs": 50,
    "seed": 3,
    "over_s": 1000,
    "slots": {1: 0.5, 8: 0.5},
    "duration_s": {"median": 100, "sigma": 1},
    "users": 3,
    "priorities": {10: 1, 42: 2},
}


def cells(out: str) -> dict[str, list[str]]:
    """The rows of all printed tables, by their first column."""
    rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines() if "|" in line]
    return {row[0]: row[1:] for row in rows}


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "trace.yaml"
    path.write_text(json.dumps(fields, indent=1))
    return path


def generated(folder: Path, **changes: Any) -> Path:
    fields = {key: value for key, value in {**GENERATE, **changes}.items() if value is not None}
    return written(folder, agents=[{"count": 2, "slots": 8}], generate=fields)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """32 slots, filled for an hour by one job, and another one that comes before it in rank."""
    return written(tmp_path, **TRACE)


def test_shows_use_waits_and_shares_without_a_cluster(det: Det, trace: Path) -> None:
    result = det("dev", "simulate-pool", trace)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("32 slots, 3 jobs, 34 requests\n")
    rows = cells(result.out)
    assert rows["makespan"] == ["70.0 min"]
    # 32 slots for 3600 s and 16 for 600 s, in 4200 s
    assert rows["utilization"] == ["92.9%"]
    assert rows["something waited for"] == ["50.0 min"]
    assert rows["fairness among users"] == ["0.500"]
    assert rows["slot hours worked"] == ["34.7"]
    assert rows["decisions"] == ["3"]
    assert rows["all"] == ["34", "0 s, 0 s, 50.0 min"]
    assert rows["1 slot"] == ["32", "0 s, 0 s, 0 s"]
    assert rows["priority 10"] == ["1", "50.0 min, 50.0 min, 50.0 min"]
    assert (rows["ada"], rows["bob"]) == (["92.3%"], ["7.7%"])
    assert "as it is: 1 never ran: giant\n" in result.out


def test_compares_side_by_side(det: Det, trace: Path) -> None:
    changes = ["preemption=true", "settings.scheduler=fair_share,quotas={users: {ada: 24, bob: 8}}"]
    result = det("dev", "simulate-pool", trace, "--compare", changes[0], "--compare", changes[1])
    assert result.code == 0, result.err
    rows = cells(result.out)
    assert rows[""] == ["as it is", *changes]
    assert rows["priority 10"][1:3] == ["50.0 min, 50.0 min, 50.0 min", "30 s, 30 s, 30 s"]
    assert rows["preemptions"][:2] == ["0", "16"]
    assert rows["slot hours lost"][:2] == ["0.0", "0.1"]


def test_json_has_figures_and_every_request(det: Det, trace: Path) -> None:
    result = det("dev", "simulate-pool", trace, "--compare", "preemption=true", "--json")
    assert result.code == 0, result.err
    plain, changed = json.loads(result.out)
    assert (plain["name"], plain["settings"]["preemption"]) == ("as it is", False)
    assert (changed["name"], changed["settings"]["preemption"]) == ("preemption=true", True)
    figures = changed["figures"]
    assert (figures["slots"], figures["jobs"], figures["requests"]) == (32, 3, 34)
    assert (figures["preemptions"], figures["lostSlotS"], figures["neverRan"]) == (16, 480, ["giant"])
    assert figures["workSlotS"] == 32 * 3600 + 16 * 600
    assert figures["waitsBySlots"]["16"] == {"requests": 1, "p50S": 30, "p95S": 30, "maxS": 30}
    assert figures["waitsByPriority"]["50"]["requests"] == 32
    assert figures["shares"]["ada"] + figures["shares"]["bob"] == pytest.approx(1)
    urgent = next(request for request in changed["requests"] if request["name"] == "urgent")
    assert urgent == {
        "name": "urgent",
        "job": "urgent",
        "user": "bob",
        "slots": 16,
        "priority": 10,
        "atS": 600,
        "firstStartS": 630,
        "endS": 1230,
        "preemptions": 0,
        "suspendedS": 0,
    }


def test_draws_the_same_jobs_from_the_same_seed(tmp_path: Path) -> None:
    jobs = read_trace(generated(tmp_path)).jobs
    assert jobs == read_trace(generated(tmp_path)).jobs
    assert jobs != read_trace(generated(tmp_path, seed=4)).jobs
    assert len(jobs) == 50
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert all(0 <= job.at_s <= 1000 for job in jobs)
    assert {job.slots for job in jobs} == {1, 8}
    assert {job.user for job in jobs} == {"user-1", "user-2", "user-3"}
    assert {job.priority for job in jobs} == {10, 42}
    rate = read_trace(generated(tmp_path, over_s=None, arrival_per_hour=3600, users=["ada"], priorities=None)).jobs
    assert 25 < rate[-1].at_s < 100
    assert {(job.user, job.priority) for job in rate} == {("ada", None)}


def test_reads_yaml_as_well_as_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.yaml"
    path.write_text("agents: [{slots: 2}]\ntick_s: 5\njobs:\n  - {name: no, duration_s: 1e1, user: yes}\n")
    trace = read_trace(path)
    assert (trace.tick_s, trace.preemption_s, trace.agents[0].count) == (5, 30, 1)
    assert (trace.jobs[0].name, trace.jobs[0].user, trace.jobs[0].duration_s) == ("no", "yes", 10)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"agents": []}, "agents: List should have at least 1 item after validation, not 0"),
        ({"agents": [{"count": 0, "slots": 8}]}, "agents[0].count: 0: expected greater than or equal to 1"),
        ({"agents": [{"slots": 8, "size": 3}]}, "agents[0].size: 3: there is no such field"),
        ({"agents": [{"count": 1}]}, "agents[0].slots: this is required"),
        (
            {"settings": {"scheduler": "lottery"}},
            "settings.scheduler: 'lottery': expected 'priority', 'fair_share' or 'round_robin'",
        ),
        ({"tick_s": 0}, "tick_s: 0: expected greater than or equal to 0.001"),
        (
            {"preemption_s": "soon"},
            "preemption_s: 'soon': expected a valid number, unable to parse string as a number",
        ),
        ({"jobs": [{"name": "a", "duration_s": -1}]}, "jobs[0].duration_s: -1: expected greater than or equal to 0"),
        (
            {"jobs": [{"name": "a", "duration_s": 1}] * 2},
            "jobs: 'a' is the name of 2 jobs; give each its own",
        ),
        ({"jobs": []}, "expected jobs, or generate to draw some"),
        ({"generate": {**GENERATE, "over_s": None}}, "generate: expected either over_s or arrival_per_hour"),
        ({"generate": {**GENERATE, "users": 0}}, "generate.users: 0: expected names, or a number of at least 1"),
        ({"generate": {**GENERATE, "slots": {"x": 1}}}, "generate.slots.x: 'x': expected a valid integer"),
        ({"generate": {**GENERATE, "priorities": {100: 1}}}, "generate.priorities.100: '100': expected less than"),
    ],
)
def test_refuses_a_bad_trace_by_field_value_and_what_was_expected(
    det: Det, tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    path = written(tmp_path, **{**TRACE, **fields})
    result = det("dev", "simulate-pool", path)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"the trace '{path}' can't be used: {told}")
    assert len(result.err.splitlines()) == 1


def test_refuses_what_is_no_trace(det: Det, tmp_path: Path) -> None:
    path = tmp_path / "trace.yaml"
    assert "can't be read: No such file or directory" in det("dev", "simulate-pool", path).err
    path.write_text("agents: [")
    assert f"the trace '{path}' is not YAML: while parsing" in det("dev", "simulate-pool", path).err
    path.write_text("12")
    assert det("dev", "simulate-pool", path).err == (
        f"the trace '{path}' can't be used: 12: expected `name: value` lines\n"
    )
    path.write_text(json.dumps({"agents": [{"slots": -1}] * 30, "jobs": TRACE["jobs"]}))
    lines = det("dev", "simulate-pool", path).err.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("and 20 more")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("scheduler", "expected key=value of the settings, such as scheduler=fair_share, but found 'scheduler'"),
        ("scheduler=x", "scheduler: 'x': expected 'priority', 'fair_share' or 'round_robin'"),
        ("speed=1", "speed: 1: there is no such field"),
        ("quotas.users.ada=-1", "quotas.users.ada: -1: expected greater than or equal to 0"),
        ("preemption=[", "<config>.preemption: "),
    ],
)
def test_refuses_a_bad_change(det: Det, trace: Path, change: str, told: str) -> None:
    result = det("dev", "simulate-pool", trace, "--compare", change)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"--compare {change!r}: {told}")


class TestPlot:
    def test_draws_utilization_waits_and_shares(self, det: Det, trace: Path, tmp_path: Path) -> None:
        path = tmp_path / "pool.svg"
        result = det("dev", "simulate-pool", trace, "--compare", "preemption=true", "--plot", path)
        assert (result.code, result.err) == (0, f"drawn: {path}\n")
        assert cells(result.out)["preemptions"] == ["0", "16"]
        text = path.read_text()
        for shown in ("slots that work", "waits", "slots held, by user: as it is", "preemption=true", "ada", "bob"):
            assert f"<!-- {shown} -->" in text, shown

    def test_draws_many_users_and_jobs_that_never_ran(self, det: Det, tmp_path: Path) -> None:
        path = generated(tmp_path, users=12)
        assert det("dev", "simulate-pool", path, "--json", "--plot", tmp_path / "many.png").code == 0
        assert (tmp_path / "many.png").read_bytes().startswith(b"\x89PNG")
        path = written(tmp_path, agents=[{"slots": 1}], jobs=[{"name": "a", "slots": 2, "duration_s": 1}])
        assert det("dev", "simulate-pool", path, "--plot", tmp_path / "none.png").code == 0
        assert (tmp_path / "none.png").stat().st_size > 0

    def test_refuses_before_anything_is_simulated(
        self, det: Det, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def plot(name: str) -> tuple[int, str, str]:
            result = det("dev", "simulate-pool", trace, "--plot", tmp_path / name)
            return result.code, result.out, result.err

        assert plot("x.doc") == (
            1, "", f"--plot: '{tmp_path}/x.doc': expected a name that ends with .png or .svg\n"
        )  # fmt: skip
        assert plot("none/x.png") == (
            1, "", f"--plot: '{tmp_path}/none/x.png': there is no folder '{tmp_path}/none'\n"
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        assert plot("x.png") == (1, "", "plots need matplotlib: pip install 'undeterred[plot]'\n")


def test_the_examples_can_be_read(det: Det) -> None:
    folder = REPOSITORY / "examples" / "scheduling"
    assert det("dev", "simulate-pool", folder / "pool-trace.yaml").code == 0
    large = read_trace(folder / "large-trace.yaml")
    assert sum(group.count * group.slots for group in large.agents) == 10_000
    assert len(large.jobs) == 100_000
